//! Hosts that are network namespaces behind a router, whose ways can be cut.
//!
//! The router is the namespace of the thread that made it, so it is gone with the thread and the
//! descriptors here. Packets between hosts that are cut off vanish without an answer.

use crate::job::{bind_to_parent, wait_until};
use crate::missing;
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The name of the rules that cut.
const CUT: &str = "pref 100";

/// A network of the calling thread, and the hosts behind it.
pub struct Network {
    hosts: Vec<File>,
}

fn unshare(flags: UnshareFlags) -> Result<(), String> {
    // SAFETY: these namespaces are about networks and users; no memory or descriptor changes hands.
    unsafe { unshare_unsafe(flags) }.map_err(|e| format!("unshare {flags:?}: {e}"))
}

/// Runs `ip` with some arguments.
pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    run(Command::new("ip").args(arguments.split(' ')), arguments)
}

fn run(command: &mut Command, arguments: &str) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Moves the process off the machine's network into a namespace of its own, whether as root or in a
/// user namespace. It must have one thread.
pub fn leave_the_machine() -> Result<(), String> {
    ip("-V")?;
    if unshare(UnshareFlags::NEWNET).is_err() {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
        let maps = [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("0 {user} 1")),
            ("gid_map", format!("0 {group} 1")),
        ];
        for (name, text) in maps {
            let path = format!("/proc/self/{name}");
            std::fs::write(&path, text).map_err(|e| format!("{path}: {e}"))?;
        }
    }
    ip("link set lo up")
}

/// The options of `unshare` by which a command's processes see no others and nobody's numbers, as
/// in a container: the first one has number 1.
pub const HIDDEN: [&str; 5] =
    ["--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Returns whether processes may be hidden so; the test is skipped where that is not permitted.
pub fn can_hide() -> bool {
    let tried = Command::new("unshare").args(HIDDEN).arg("true").output();
    let can = tried.as_ref().is_ok_and(|tried| tried.status.success());
    if !can {
        missing("unshare", &format!("{tried:?}"));
    }
    can
}

/// The variable of a process that has a network of its own.
const APART: &str = "OXCCL_TEST_APART";

/// Runs a part of a test, which is run alone by this name, in a process that has a network of its
/// own with so many hosts. The test is skipped where that is not permitted.
pub fn apart(test: &str, hosts: u32, part: impl FnOnce(&Network)) {
    if std::env::var_os(APART).is_some() {
        // A new user namespace may have taken it away.
        set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
        return match Network::new(hosts) {
            Ok(network) => part(&network),
            Err(reason) => missing("netns", &reason),
        };
    }
    let options = ["--map-root-user", "--net"];
    let tried = Command::new("unshare").args(options).arg("true").output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        return missing("netns", &format!("{tried:?}"));
    }
    let own = std::env::current_exe().expect("a path");
    let mut command = Command::new("unshare");
    command.args(options).arg(own).args(["--exact", test, "--nocapture"]).env(APART, "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = bind_to_parent(&mut command).spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let heard = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let status = wait_until(&mut child, Instant::now() + Duration::from_secs(150));
    println!("{}", heard.join().expect("no panic").expect("text"));
    assert_eq!(status, Some(0));
}

/// A namespace that stays while its file is open.
fn space() -> Result<File, String> {
    let make = || {
        unshare(UnshareFlags::NEWNET)?;
        File::open("/proc/thread-self/ns/net").map_err(|e| format!("a namespace: {e}"))
    };
    std::thread::spawn(make).join().map_err(|_| "no namespace".to_owned())?
}

/// Returns how many segments were sent again in the namespace of this thread.
fn sent_again() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("the counters");
    // A line of names, and one of numbers.
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, numbers) = lines.next().zip(lines.next()).expect("those of TCP");
    let mut all = names.split(' ').zip(numbers.split(' '));
    let number = all.find(|(name, _)| *name == "RetransSegs").map(|(_, number)| number.parse());
    number.expect("the counter").expect("a number")
}

impl Network {
    /// Makes the calling thread's namespace, and what it starts, a router with so many hosts behind
    /// it.
    pub fn new(hosts: u32) -> Result<Self, String> {
        unshare(UnshareFlags::NEWNET)?;
        ip("link set lo up")?;
        let forward = "/proc/sys/net/ipv4/ip_forward";
        std::fs::write(forward, "1").map_err(|e| format!("{forward}: {e}"))?;
        let network = Self { hosts: (0..hosts).map(|_| space()).collect::<Result<_, _>>()? };
        (0..hosts).try_for_each(|host| network.wire(host))?;
        Ok(network)
    }

    /// Connects a host with the router.
    fn wire(&self, host: u32) -> Result<(), String> {
        let space = self.space(host);
        ip(&format!("link add h{host} type veth peer name eth0 netns {space}"))?;
        ip(&format!("addr add 10.77.{host}.1/24 dev h{host}"))?;
        ip(&format!("link set h{host} up"))?;
        for arguments in [
            "link set lo up".to_owned(),
            format!("addr add {}/24 dev eth0", self.address(host)),
            "link set eth0 up".to_owned(),
            format!("route add default via 10.77.{host}.1"),
        ] {
            let mut command = Command::new("ip");
            command.args(arguments.split(' '));
            run(self.enter(&mut command, host), &arguments)?;
        }
        Ok(())
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Runs a function on a host, in a thread of its own.
    pub fn on<T: Send>(&self, host: u32, run: impl FnOnce() -> T + Send) -> T {
        let space = &self.hosts[host as usize];
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("its namespace may be entered");
                run()
            });
            thread.join().expect("no panic")
        })
    }

    /// Returns how many segments the hosts had to send again.
    pub fn sent_again(&self) -> u64 {
        (0..self.hosts()).map(|host| self.on(host, sent_again)).sum()
    }

    /// Returns the path of a host's namespace.
    pub fn space(&self, host: u32) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.hosts[host as usize].as_raw_fd())
    }

    /// Returns the address of a host.
    pub fn address(&self, host: u32) -> Ipv4Addr {
        Ipv4Addr::from([10, 77, host as u8, 2])
    }

    /// Has a command run on a host.
    pub fn enter<'a>(&self, command: &'a mut Command, host: u32) -> &'a mut Command {
        let fd = self.hosts[host as usize].try_clone().expect("a descriptor");
        // SAFETY: the closure makes one system call, which is safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(())
            })
        }
    }

    /// Cuts a host off from another one, or from all.
    pub fn cut(&self, (host, other): (u32, Option<u32>)) {
        let of = |host: u32| format!("10.77.{host}.0/24");
        let ways = match other {
            Some(other) => [
                format!("from {} to {}", of(host), of(other)),
                format!("from {} to {}", of(other), of(host)),
            ],
            None => [format!("from {}", of(host)), format!("to {}", of(host))],
        };
        for way in ways {
            ip(&format!("rule add {CUT} {way} blackhole")).expect("a rule");
        }
    }

    /// Lets no host connect to another one, except at the ports of the system's services: a
    /// firewall.
    pub fn block(&self) {
        let ports = "ipproto tcp dport 1024-65534";
        ip(&format!("rule add {CUT} {ports} blackhole")).expect("a rule");
    }

    /// Gives the interface of a host another size of packets than the others have.
    pub fn set_mtu(&self, host: u32, bytes: u32) {
        let arguments = format!("link set eth0 mtu {bytes}");
        let mut command = Command::new("ip");
        command.args(arguments.split(' '));
        run(self.enter(&mut command, host), &arguments).expect("a size");
    }

    /// Has the router throw away what comes faster for a host than a slow cable carries. An error
    /// if the system cannot do so.
    pub fn narrow(&self, host: u32) -> Result<(), String> {
        let arguments =
            format!("qdisc add dev h{host} root tbf rate 200mbit burst 32kb limit 40kb");
        run(Command::new("tc").args(arguments.split(' ')), &arguments)
    }

    /// Takes back all cuts.
    pub fn mend(&self) {
        while ip(&format!("rule del {CUT}")).is_ok() {}
    }
}
