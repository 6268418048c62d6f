//! What is recorded of a process: communicators and events.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The most events that are kept; later ones are counted only. So many take about 50 MB, and a
/// second to be written.
const MOST_EVENTS: usize = 1 << 18;

/// A communicator.
pub(crate) struct Comm {
    pub(crate) name: String,
    pub(crate) number: u64,
    pub(crate) rank: i32,
    pub(crate) nranks: i32,
    pub(crate) nodes: i32,
}

/// The kind of an event, with what is known of it.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A group of calls, or a single call.
    Group { depth: i32, captured: bool },
    /// A call.
    Call { function: Arc<str>, count: u64, dtype: Arc<str>, captured: bool },
    /// The launch of operations.
    Launch,
    /// A collective, or a send or receive.
    Operation(Operation),
    /// The work of an operation in one channel.
    Channel { number: u8 },
}

/// An operation.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) function: Arc<str>,
    pub(crate) count: u64,
    pub(crate) dtype: Arc<str>,
    /// The root, or the peer of a send or receive.
    pub(crate) other: i32,
    pub(crate) algorithm: Arc<str>,
    pub(crate) protocol: Arc<str>,
    pub(crate) channels: u8,
    /// The plan or kernel; empty in versions that do not tell.
    pub(crate) variant: Arc<str>,
}

impl Operation {
    /// Returns the bytes of `count` elements; 0 for types that are not known.
    pub(crate) fn bytes(&self) -> u64 {
        let name = self.dtype.trim_start_matches("nccl").to_ascii_lowercase();
        let size = match name.as_str() {
            "int8" | "uint8" | "char" | "float8e4m3" | "float8e5m2" => 1,
            "float16" | "half" | "bfloat16" => 2,
            "int32" | "int" | "uint32" | "float32" | "float" => 4,
            "int64" | "uint64" | "float64" | "double" => 8,
            _ => 0,
        };
        self.count * size
    }
}

/// An event. Times are in ns since 1970; those of GPUs are by their own clock.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) parent: u64,
    pub(crate) comm: usize,
    pub(crate) thread: i32,
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
    /// Begin and end by the GPU's clock; zeros where there is none.
    pub(crate) gpu_ns: (u64, u64),
    pub(crate) what: What,
}

/// The record of a process.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) comms: Vec<Comm>,
    /// Communicators that have not ended.
    pub(crate) live: usize,
    open: HashMap<u64, Event>,
    pub(crate) events: Vec<Event>,
    last: u64,
    pub(crate) dropped: u64,
    names: HashSet<Arc<str>>,
}

impl Record {
    /// Returns a text, kept once.
    pub(crate) fn name(&mut self, text: &str) -> Arc<str> {
        if let Some(found) = self.names.get(text) {
            return found.clone();
        }
        let kept: Arc<str> = text.into();
        self.names.insert(kept.clone());
        kept
    }

    /// Begins an event; returns its id, which is not 0. `None` if there are too many.
    pub(crate) fn begin(&mut self, event: Event) -> Option<u64> {
        if self.open.len() + self.events.len() >= MOST_EVENTS {
            self.dropped += 1;
            return None;
        }
        self.last += 1;
        self.open.insert(self.last, Event { id: self.last, ..event });
        Some(self.last)
    }

    /// Changes an event that has begun and not ended.
    pub(crate) fn open(&mut self, id: u64) -> Option<&mut Event> {
        self.open.get_mut(&id)
    }

    /// Ends an event.
    pub(crate) fn end(&mut self, id: u64, now_ns: u64) {
        if let Some(mut event) = self.open.remove(&id) {
            event.ended_ns = now_ns;
            self.events.push(event);
        }
    }

    /// Returns the operations with their times in ns: those that the channels took where there is
    /// such an event, and the operation's own otherwise.
    pub(crate) fn operations(&self) -> Vec<(&Event, &Operation, u64)> {
        let mut channels: HashMap<u64, (u64, u64)> = HashMap::new();
        for event in &self.events {
            if let What::Channel { .. } = event.what {
                let (began, ended) = match event.gpu_ns {
                    (0, _) | (_, 0) => (event.began_ns, event.ended_ns),
                    gpu => gpu,
                };
                let span = channels.entry(event.parent).or_insert((began, ended));
                *span = (span.0.min(began), span.1.max(ended));
            }
        }
        let time = |event: &Event| match channels.get(&event.id) {
            Some((began, ended)) => ended.saturating_sub(*began),
            None => event.ended_ns.saturating_sub(event.began_ns),
        };
        let mut operations = Vec::new();
        for event in &self.events {
            if let What::Operation(operation) = &event.what {
                operations.push((event, operation, time(event)));
            }
        }
        operations
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn event(parent: u64, began_ns: u64, what: What) -> Event {
        let (comm, thread, gpu_ns) = (0, 7, (0, 0));
        Event { id: 0, parent, comm, thread, began_ns, ended_ns: 0, gpu_ns, what }
    }

    /// Two operations: one with a channel timed by a GPU, and one without channels.
    pub(crate) fn sample() -> Record {
        let mut record = Record::default();
        let name = "grad \"0\"".to_owned();
        record.comms.push(Comm { name, number: 9, rank: 1, nranks: 4, nodes: 2 });
        let [function, dtype, cell] =
            ["AllReduce", "ncclFloat32", "RING"].map(|text| record.name(text));
        let (variant, protocol) = (record.name(""), record.name("LL"));
        let (count, other, channels) = (256, 0, 2);
        let algorithm = cell;
        let operation =
            Operation { function, count, dtype, other, algorithm, protocol, channels, variant };
        let first = record.begin(event(0, 1000, What::Operation(operation.clone()))).unwrap();
        let second = record.begin(event(0, 5000, What::Operation(operation))).unwrap();
        let channel = record.begin(event(first, 1500, What::Channel { number: 0 })).unwrap();
        record.open(channel).unwrap().gpu_ns = (70, 470);
        record.end(first, 1100);
        record.end(channel, 9000);
        record.end(second, 5300);
        record
    }

    #[test]
    fn the_time_of_an_operation_is_that_of_its_channels_if_there_are_any() {
        let record = sample();
        let found: Vec<_> =
            record.operations().iter().map(|(_, of, ns)| (of.bytes(), *ns)).collect();
        assert_eq!(found, [(1024, 400), (1024, 300)]);
    }
}
