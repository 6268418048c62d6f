//! Net plugins, and the choice of the network of a communicator.

mod connection;
pub(super) mod functions;
pub(super) mod properties;

use super::instance::Unread;
use super::load::{Kind, Opened, wanted};
use super::{Plugin, load};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::proxy::{CurrentCall, Proxy};
use connection::PluginNet;
use functions::Functions;
use oxccl_net::tcp::Tcp;
use oxccl_net::{HOST, Net, Properties};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const KIND: Kind = Kind {
    name: "net",
    prefix: "libnccl-net",
    symbol: "ncclNetPlugin_v",
    versions: &[12, 11, 10, 9, 8, 7, 6],
    lists: true,
};

/// The advice of errors about networks.
const HINT: &str = "see the lines of NCCL_DEBUG=INFO about net plugins, and NCCL_NET";

/// The libraries of net plugins, which may have plugins of other kinds, too.
struct Loaded {
    plugins: Vec<Plugin<Unread<Functions>>>,
    libraries: Vec<Opened>,
}

/// Returns what `NCCL_NET_PLUGIN` names, in its order, loaded once per process.
fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        let mut loaded = Loaded { plugins: Vec::new(), libraries: Vec::new() };
        for name in wanted(&KIND, Some(&Config::get().net_plugin)) {
            let attempt = load(&KIND, name.as_deref());
            // SAFETY: the symbol's name says what the structure is.
            let of = |found| unsafe { Unread::of(found) };
            let (plugin, library) = Plugin::take((&KIND, Subsystem::Net), attempt, of);
            loaded.plugins.extend(plugin);
            loaded.libraries.extend(library);
        }
        loaded
    })
}

/// Returns the libraries of net plugins, whether or not they have a net.
pub(super) fn libraries() -> &'static [Opened] {
    &loaded().libraries
}

/// The demands of a communicator on a network.
pub(crate) struct Need<'a> {
    /// The communicator's number, by which plugins know it.
    pub(crate) comm: u64,
    /// The name of the network, if one is asked for.
    pub(crate) name: Option<&'a str>,
    /// The traffic class, if one is asked for.
    pub(crate) traffic_class: Option<i32>,
    /// The local address of the library's own transport.
    pub(crate) address: SocketAddr,
    /// The number of ranks of other hosts.
    pub(crate) peers: usize,
    /// The size of the longest message in bytes, where the network carries as many.
    pub(crate) message_bytes: usize,
    /// The size of the longest message that it has to carry, in bytes.
    pub(crate) least_bytes: usize,
    /// The index of this rank among those of its host, by which devices are dealt out.
    pub(crate) place: usize,
    /// The longest time that the making of the communicator may take.
    pub(crate) limit: Duration,
    /// The function that a thread runs before it makes the network's calls.
    pub(crate) prepare: Arc<dyn Fn() -> Result<()> + Send + Sync>,
}

/// The network of a communicator.
pub(crate) struct Chosen {
    /// The network.
    pub(crate) net: Arc<dyn Net>,
    /// This rank's device.
    pub(crate) device: usize,
    /// The threads that make the network's calls; none where the waiting ones do.
    pub(crate) threads: usize,
    /// The name of the network in errors, with its plugin.
    pub(crate) label: String,
}

impl Chosen {
    /// Returns the number of lanes, at most `wanted`, for which the device has connections, and the
    /// process half of its descriptors.
    pub(crate) fn lanes(&self, need: &Need<'_>, wanted: usize) -> Result<usize> {
        let connections = self.net.properties(self.device)?.max_connections;
        let directions = if self.net.is_duplex() { 1 } else { 2 };
        let files = getrlimit(Resource::Nofile).current.map(|files| files / 2);
        Ok(lanes((connections, files), directions * need.peers, wanted))
    }

    /// Returns the size of the longest message that is needed and that the device carries.
    pub(crate) fn message_bytes(&self, need: &Need<'_>) -> Result<usize> {
        let most = self.net.properties(self.device)?.max_bytes;
        Ok(usize::try_from(most).map_or(need.message_bytes, |most| most.min(need.message_bytes)))
    }

    /// Returns what the ranks have to [`agree`] on.
    pub(crate) fn agreement(&self, agreed: Agreed) -> Vec<u8> {
        let Agreed { lanes, message_bytes } = agreed;
        let bytes = (message_bytes as u32).to_le_bytes();
        [&[lanes as u8], &bytes[..], self.net.name().as_bytes()].concat()
    }
}

/// What all ranks have of their networks: the least of what they offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The number of lanes.
    pub(crate) lanes: usize,
    /// The size of the longest message in bytes.
    pub(crate) message_bytes: usize,
}

/// Returns the number of lanes, at most `wanted`, of so many connections each, for a device that
/// says how many it has, and a process with room for so many descriptors; `None` is no limit.
fn lanes((connections, files): (i32, Option<u64>), each: usize, wanted: usize) -> usize {
    // NVIDIA's plugin for InfiniBand says 1, whatever it carries.
    let connections = u64::try_from(connections).ok().filter(|connections| *connections > 1);
    let most = [connections, files].into_iter().flatten().min();
    let lanes = most.map_or(wanted, |most| usize::try_from(most).unwrap_or(wanted) / each.max(1));
    lanes.clamp(1, wanted)
}

/// Returns the network of a communicator: the first plugin that has what is needed, or else TCP.
/// Blocks while the plugin starts. A plugin may give itself another name once it has begun: if no
/// network has the name that is asked for, all are begun, and may have it then.
pub(crate) fn choose(need: &Need<'_>) -> Result<Chosen> {
    let admits = |name: &str| need.name.is_none_or(|wanted| wanted.eq_ignore_ascii_case(name));
    let mut refused = Vec::new();
    let mut names: Vec<_> = loaded().plugins.iter().map(|plugin| plugin.name.clone()).collect();
    let tcp = Tcp::at(need.address);
    let named = |plugin: &&Plugin<_>| admits(&plugin.name);
    let known = admits(tcp.name()) || loaded().plugins.iter().any(|plugin| named(&plugin));
    for plugin in loaded().plugins.iter().filter(|plugin| !known || named(plugin)) {
        let label = &plugin.label;
        match start(plugin, need) {
            Ok((net, _)) if !known && !admits(net.name()) => {
                let name = net.name().to_owned();
                names.extend((name != plugin.name).then_some(name));
            }
            Ok((net, device)) => {
                let own = net.name();
                let own = if own == plugin.name { String::new() } else { format!(" of {own}") };
                let text = format!("{label}: device {device}{own} is used");
                log::line(Level::Info, Subsystem::Net, &text);
                let label = label.clone();
                return Ok(Chosen { net: Arc::new(net), device, threads: 1, label });
            }
            Err(why) => {
                warn_first(&format!("{label}: refused, {why}"));
                refused.push(format!("{label}: {why}"));
            }
        }
    }
    if admits(tcp.name()) {
        let label = format!("net {}", tcp.name());
        return Ok(Chosen { net: Arc::new(tcp), device: 0, threads: 0, label });
    }
    names.push(tcp.name().to_owned());
    let wanted = need.name.unwrap_or_default();
    let cause = match refused.as_slice() {
        [] => format!("there is no such net; there are: {}", names.join(", ")),
        refused => refused.join("; "),
    };
    Err(Error::system(format!("choosing the net {wanted:?}"), cause, HINT))
}

/// Logs a text, the first time in this process as a warning.
fn warn_first(text: &str) {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let is_new = KNOWN.lock().unwrap_or_else(|e| e.into_inner()).insert(text.to_owned());
    log::line(if is_new { Level::Warn } else { Level::Info }, Subsystem::Net, text);
}

/// Starts a plugin for a communicator; fails if it has not got what is needed.
fn start(
    plugin: &'static Plugin<Unread<Functions>>,
    need: &Need<'_>,
) -> std::result::Result<(Proxy, usize), String> {
    let hint = "ask the vendor; NCCL_NET_PLUGIN=none goes without";
    // The error of a call that does not return names it, so it comes before that of the making.
    let setup_limit = need.limit * 3 / 4;
    let current = CurrentCall::new(plugin.label.clone(), hint).with_setup(setup_limit);
    let current = Arc::new(current);
    let (calls, comm, class) = (current.clone(), need.comm, need.traffic_class);
    let prepare = need.prepare.clone();
    let make = move || {
        let failed = |e: Error| oxccl_net::Error::new("preparing a thread", e, "");
        prepare().map_err(failed)?;
        let net = PluginNet::start(plugin, calls, comm, class.unwrap_or(-1))?;
        Ok(Box::new(net) as Box<dyn Net>)
    };
    let net = Proxy::start(make, current).map_err(|error| error.to_string())?;
    let mut usable = Vec::new();
    let mut why = "it has no devices".to_owned();
    for device in 0..net.devices() {
        let properties = net.properties(device).map_err(|error| error.to_string())?;
        match lack(&properties, need) {
            None => usable.push(device),
            Some(lack) => why = format!("its device {device} {lack}"),
        }
    }
    match usable.len() {
        0 => Err(why),
        number => Ok((net, usable[need.place % number])),
    }
}

/// Returns what a device lacks of what is needed.
fn lack(device: &Properties, need: &Need<'_>) -> Option<String> {
    // Not `max_connections`, which is 1 with NVIDIA's plugin for InfiniBand, whatever it carries.
    if device.offloaded {
        return Some("is served by GPUs, which is not supported".to_owned());
    }
    if device.memory & HOST == 0 {
        return Some("does not take memory of the host".to_owned());
    }
    (device.max_bytes < need.least_bytes as u64).then(|| {
        let (most, bytes) = (device.max_bytes, need.least_bytes);
        format!("carries messages of {most} bytes, {bytes} are needed")
    })
}

/// Returns what all ranks have. Fails unless all have chosen the same network; `told` is what they
/// say, by rank.
pub(crate) fn agree(told: &[Vec<u8>]) -> Result<Agreed> {
    let name = |told: &Vec<u8>| told.get(5..).unwrap_or_default().to_vec();
    let Some(rank) = told.iter().position(|other| name(other) != name(&told[0])) else {
        let lanes = told.iter().filter_map(|told| told.first()).min();
        let bytes = |told: &Vec<u8>| Some(u32::from_le_bytes(*told.get(1..)?.first_chunk()?));
        let bytes = told.iter().map(|told| bytes(told).unwrap_or(0)).min();
        let lanes = lanes.map_or(1, |lanes| usize::from(*lanes).max(1));
        return Ok(Agreed { lanes, message_bytes: bytes.unwrap_or(0) as usize });
    };
    let text = |rank: usize| String::from_utf8_lossy(&name(&told[rank])).into_owned();
    let why = format!(
        "rank 0 uses the net {}, rank {rank} the net {}; set NCCL_NET or NCCL_NET_PLUGIN alike on \
         all ranks, and see why one was refused (NCCL_DEBUG=INFO)",
        text(0),
        text(rank)
    );
    Err(Error::Init { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_descriptors_limit_lanes_but_one_connection_is_no_limit() {
        assert_eq!([0, 1, 2, 8, 64].map(|most| lanes((most, None), 2, 4)), [4, 4, 1, 4, 4]);
        assert_eq!([2, 4, 6].map(|files| lanes((1, Some(files)), 2, 4)), [1, 2, 3]);
        assert_eq!(lanes((64, Some(6)), 2, 4), 3);
        assert_eq!(lanes((8, Some(u64::MAX)), 0, 4), 4);
    }

    #[test]
    fn ranks_with_different_nets_are_named_with_them() {
        let told = |names: [&str; 3]| {
            [4u8, 2, 3].map(|lanes| {
                let bytes = (1000 - u32::from(lanes)).to_le_bytes();
                [&[lanes], &bytes[..], names[lanes as usize - 2].as_bytes()].concat()
            })
        };
        let agreed = Agreed { lanes: 2, message_bytes: 996 };
        assert_eq!(agree(&told(["A", "A", "A"])).unwrap(), agreed);
        // By lanes: of rank 1, 2 and 0.
        let text = agree(&told(["A", "Socket", "A"])).unwrap_err().to_string();
        assert!(text.contains("rank 0 uses the net A, rank 2 the net Socket"), "{text}");
    }
}
