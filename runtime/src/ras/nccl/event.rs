//! Events of a job that clients of the service listen to.

use super::conversation::Format;
use super::{Peer, layout};
use serde::Serialize;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A process has joined the job.
    New,
    /// A process has ended.
    Dead,
}

/// An event of the group LIFECYCLE, the only group of which there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub kind: Kind,
    /// The process that it has happened to.
    pub peer: Peer,
}

#[derive(Serialize)]
struct Document<'a> {
    timestamp: &'a str,
    group: &'static str,
    event: &'static str,
    peer: Process<'a>,
    details: &'static str,
}

#[derive(Serialize)]
struct Process<'a> {
    host: &'a str,
    pid: u32,
    cuda_devs: &'a BTreeSet<u32>,
    nvml_devs: &'a BTreeSet<u32>,
}

impl Event {
    /// Returns the event as a client gets it, with its time of day.
    pub fn text(&self, format: Format, timestamp: &str) -> String {
        let event = match self.kind {
            Kind::New => "PEER_NEW",
            Kind::Dead => "PEER_DEAD",
        };
        let Peer { host, pid, devices, .. } = &self.peer;
        match format {
            // The blank before the details, of which there are none, is NCCL's.
            Format::Text => format!("[{timestamp}] {event}: {} \n", self.peer.line()),
            Format::Json | Format::Records => {
                let peer = Process { host, pid: *pid, cuda_devs: devices, nvml_devs: devices };
                let (group, details) = ("LIFECYCLE", "");
                layout::document(&Document { timestamp, group, event, peer, details }, true)
            }
        }
    }
}

/// The identity of a process: on this host its number, as the address may change; on other hosts
/// address, number and device, as processes of containers may have one number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A process of this host.
    Here(u32),
    /// A process of another host, with one of its devices.
    Elsewhere(String, u32, u32),
}

/// The processes of a job that were alive at the last look.
#[derive(Debug, Default)]
pub struct Watched(Vec<(Key, Peer)>);

impl Watched {
    /// Returns the processes of a job, none of which is new.
    pub fn new(job: Vec<(Key, Peer)>) -> Self {
        Self(job)
    }

    /// Returns what has happened since the last look: `job` are the processes of the job now, and
    /// `lives` says whether a process is alive. One that is in no communicator any more is not
    /// dead.
    pub fn look(&mut self, job: Vec<(Key, Peer)>, lives: impl Fn(&Key) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        self.0.retain(|(key, peer)| {
            let is_alive = lives(key);
            if !is_alive {
                events.push(Event { kind: Kind::Dead, peer: peer.clone() });
            }
            is_alive
        });
        let known = self.0.iter().zip(0..);
        let mut known: BTreeMap<Key, usize> =
            known.map(|((key, _), at)| (key.clone(), at)).collect();
        for (key, peer) in job.into_iter().filter(|(key, _)| lives(key)) {
            match known.entry(key.clone()) {
                Entry::Occupied(at) => self.0[*at.get()].1.devices.extend(&peer.devices),
                Entry::Vacant(at) => {
                    at.insert(self.0.len());
                    self.0.push((key, peer.clone()));
                    events.push(Event { kind: Kind::New, peer });
                }
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::peer;
    use super::*;

    #[test]
    fn events_are_written_as_nccl_does() {
        let event = Event { kind: Kind::Dead, peer: peer(1524345, &[1]) };
        assert_eq!(
            event.text(Format::Text, "2025-12-19 13:07:07"),
            "[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1 \
             \n"
        );
        let event = Event { kind: Kind::New, peer: peer(77, &[0, 3]) };
        assert_eq!(
            event.text(Format::Text, "2025-12-19 13:07:07"),
            "[2025-12-19 13:07:07] PEER_NEW: Process 77 on node 172.16.64.245 managing GPUs 0,3 \n"
        );
        let json = "{\n  \"timestamp\": \"2025-12-19 13:07:07\",\n  \"group\": \"LIFECYCLE\",\n  \
                    \"event\": \"PEER_NEW\",\n  \"peer\": {\n    \"host\": \"172.16.64.245\",\n    \
                    \"pid\": 77,\n    \"cuda_devs\": [0,3],\n    \"nvml_devs\": [0,3]\n  },\n  \
                    \"details\": \"\"\n}\n";
        assert_eq!(event.text(Format::Json, "2025-12-19 13:07:07"), json);
    }

    #[test]
    fn a_process_is_new_once_and_dead_once() {
        let here = |pid: u32, device: u32| (Key::Here(pid), peer(pid, &[device]));
        let mut watched = Watched::new(vec![here(1, 0), here(2, 1)]);
        let seen = |events: Vec<Event>| {
            events.iter().map(|event| (event.kind, event.peer.pid)).collect::<Vec<_>>()
        };
        let job = || vec![here(1, 0), here(3, 2)];
        // The second one has left the job, but lives.
        assert_eq!(seen(watched.look(job(), |_| true)), [(Kind::New, 3)]);
        assert_eq!(seen(watched.look(job(), |_| true)), []);
        let job = || vec![here(1, 0)];
        let is_first = |key: &Key| *key == Key::Here(1);
        assert_eq!(seen(watched.look(job(), is_first)), [(Kind::Dead, 2), (Kind::Dead, 3)]);
        assert_eq!(seen(watched.look(job(), is_first)), []);
    }

    #[test]
    fn processes_of_containers_on_another_host_may_have_one_number() {
        let key = |device| Key::Elsewhere("10.0.0.2".to_owned(), 1, device);
        let job = || [3, 4].map(|device| (key(device), peer(1, &[device]))).to_vec();
        let mut watched = Watched::new(job());
        // The roster still has the dead one.
        let lives = |of: &Key| *of != key(4);
        let [event] = &watched.look(job(), lives)[..] else { panic!("one") };
        assert!(event.kind == Kind::Dead && event.peer.devices == BTreeSet::from([4]), "{event:?}");
        assert_eq!(watched.look(job(), lives), []);
    }
}
