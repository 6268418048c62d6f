//! The network interfaces that the library takes for connections to other hosts.

use super::Check;
use oxccl_plan::words::counted;

/// An interface that the library may take.
#[derive(Clone, Debug)]
pub(in crate::doctor) struct Interface {
    pub(in crate::doctor) name: String,
    pub(in crate::doctor) address: std::net::IpAddr,
    /// The state as the kernel names it, such as `up`; `None` if that cannot be read.
    pub(in crate::doctor) state: Option<String>,
    /// The largest packet in bytes; `None` if that cannot be read.
    pub(in crate::doctor) mtu: Option<u32>,
    /// The rate that an adapter and its cable are made for, in Mbit/s; `None` if there is no
    /// adapter, or if it tells none.
    pub(in crate::doctor) mbits_s: Option<u32>,
}

impl Interface {
    fn is_down(&self) -> bool {
        matches!(self.state.as_deref(), Some("down" | "lowerlayerdown" | "notpresent" | "dormant"))
    }

    fn shown(&self) -> String {
        let state = match self.state.as_deref() {
            // Loopback has no state.
            None | Some("unknown") => String::new(),
            Some(state) => format!(" {state},"),
        };
        let mtu = self.mtu.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
        format!("{} ({},{state} MTU {mtu})", self.name, self.address)
    }
}

/// Judges the interfaces that the variables admit, the one first that the library takes.
/// `variables` shows the values that have chosen them.
pub(in crate::doctor) fn interface(admitted: &[Interface], variables: &str) -> Check {
    const NAME: &str = "interface";
    let Some(first) = admitted.first() else {
        return Check::failure(
            NAME,
            format!("No network interface is admitted by {variables}."),
            "Name an interface of this machine in NCCL_SOCKET_IFNAME; ip address lists them.",
        );
    };
    let found = format!("The library takes {}, chosen by {variables}.", first.shown());
    let check = if first.is_down() {
        Check::failure(
            NAME,
            format!("{found} This interface is down: no other host is reached."),
            "Name one that is up in NCCL_SOCKET_IFNAME.",
        )
    } else if first.address.is_loopback() {
        let text = "Only ranks of this host are reached.";
        Check::ok(NAME, format!("{found} {text}"))
    } else {
        Check::ok(NAME, found)
    };
    let check = check.fact("name", &first.name);
    match first.mbits_s {
        Some(rate) => check.fact("Mbit/s", rate),
        None => check,
    }
}

/// Judges the largest packets of the interfaces, of which loopback does not count beside others.
pub(in crate::doctor) fn mtu(admitted: &[Interface]) -> Check {
    const NAME: &str = "MTU";
    let mut beyond: Vec<&Interface> = Vec::new();
    for interface in admitted.iter().filter(|i| !i.address.is_loopback()) {
        if beyond.iter().all(|known| known.name != interface.name) {
            beyond.push(interface);
        }
    }
    beyond.retain(|interface| interface.mtu.is_some() && !interface.is_down());
    let Some(first) = beyond.first() else {
        let found = "There is no interface to other hosts that is up and tells its MTU.";
        return Check::not_applicable(NAME, found);
    };
    let shown: Vec<String> = beyond.iter().map(|interface| interface.shown()).collect();
    let shown = shown.join(", ");
    let check = match beyond.iter().all(|interface| interface.mtu == first.mtu) {
        true => Check::ok(NAME, format!("{}: {shown}.", interfaces(beyond.len()))),
        false => Check::warning(
            NAME,
            format!("The interfaces that the library may take have different MTUs: {shown}."),
            "Name those of one network in NCCL_SOCKET_IFNAME, or give all the same MTU: large \
             packets may be lost on the way to a smaller one.",
        ),
    };
    check.fact("bytes", first.mtu.unwrap_or(0))
}

fn interfaces(number: usize) -> String {
    let many = "interfaces to other hosts have the same MTU";
    counted(number, "interface to other hosts is up", many)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn at(name: &str, address: &str, state: Option<&str>, mtu: Option<u32>) -> Interface {
        let address = address.parse().expect("an address");
        let (name, state) = (name.to_owned(), state.map(str::to_owned));
        Interface { name, address, state, mtu, mbits_s: Some(10_000) }
    }

    #[test]
    fn the_first_interface_has_to_be_up() {
        let [up, down] = ["up", "down"].map(|state| at("e", "192.0.2.1", Some(state), Some(1500)));
        let check = interface(std::slice::from_ref(&up), "NCCL_SOCKET_IFNAME=e");
        assert_eq!(check.verdict, Verdict::Ok);
        assert!(check.found.contains("e (192.0.2.1, up, MTU 1500), chosen by NCCL"), "{check:?}");
        assert_eq!(check.facts["Mbit/s"], "10000");
        assert_eq!(interface(&[down.clone(), up.clone()], "").verdict, Verdict::Failure);
        assert_eq!(interface(&[up, down], "").verdict, Verdict::Ok);
        assert_eq!(interface(&[], "NCCL_SOCKET_IFNAME=x").verdict, Verdict::Failure);
        let lo = at("lo", "::1", Some("unknown"), None);
        assert!(interface(&[lo], "").found.contains("Only ranks of this host"));
        let garbage = at("", "0.0.0.0", Some("\u{1}"), Some(0));
        assert_eq!(interface(&[garbage], "").verdict, Verdict::Ok);
    }

    #[test]
    fn interfaces_with_different_packets_are_warned_of() {
        let lo = at("lo", "127.0.0.1", Some("unknown"), Some(65536));
        let a = at("a", "192.0.2.1", Some("up"), Some(1500));
        let b = at("b", "198.51.100.1", Some("up"), Some(9000));
        let off = at("c", "203.0.113.1", Some("down"), Some(576));
        assert_eq!(mtu(&[a.clone(), lo.clone(), off.clone()]).verdict, Verdict::Ok);
        let check = mtu(&[a.clone(), b, lo.clone()]);
        assert_eq!((check.verdict, &*check.facts["bytes"]), (Verdict::Warning, "1500"));
        let second = Interface { address: "fe80::1".parse().expect("an address"), ..a.clone() };
        assert_eq!(mtu(&[a, second]).verdict, Verdict::Ok);
        let silent = at("d", "192.0.2.9", None, None);
        for none in [&[][..], &[lo], &[off], &[silent]] {
            assert_eq!(mtu(none).verdict, Verdict::NotApplicable);
        }
    }
}
