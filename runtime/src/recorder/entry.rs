//! An operation as it is recorded.

use crate::op::descriptor::Descriptor;
use crate::op::{Call, OneSided, Operation, Programs};
use oxccl_plan::{Carrier, DataType};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A collective.
    Collective = 1,
    /// Sends and receives that run together.
    Exchange = 2,
    /// A put with a signal.
    Put = 3,
    /// A signal alone.
    Signal = 4,
    /// A wait for signals.
    Wait = 5,
}

impl Kind {
    pub(super) const ALL: [Self; 5] =
        [Self::Collective, Self::Exchange, Self::Put, Self::Signal, Self::Wait];
}

/// The words of one operation.
#[repr(C, align(128))]
pub struct Entry {
    /// The operation's number plus one; 0 while the entry is written.
    pub(super) number: AtomicU64,
    /// The first word of the [`Descriptor`], and in the upper half the [`Kind`] and, from bit 40
    /// on, the number of sends and receives.
    pub(super) what: AtomicU64,
    /// The second word of the descriptor.
    pub(super) count: AtomicU64,
    /// The number among the operations of its kind: collectives, or all others.
    pub(super) of_kind: AtomicU64,
    /// Bytes of a block, or of all sends and receives.
    pub(super) bytes: AtomicU64,
    /// The peer of the first send or receive plus one, or 0; with [`SENDS`] if it is a send.
    pub(super) peer: AtomicU64,
    /// The stream's number.
    pub(super) stream: AtomicU64,
    /// The number that the caller gave it, or 0.
    pub(super) tag: AtomicU64,
    /// The [`Carrier`]s that may carry the data of a collective: a bit for each number.
    pub(super) carriers: AtomicU64,
    /// The times at which it was called, began to run and ended; 0 if it has not.
    pub(super) called: AtomicU64,
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
}

const _: () = assert!(size_of::<Entry>() == 128);

/// The bit of [`Entry::peer`] that marks sends.
pub(super) const SENDS: u64 = 1 << 63;
/// The place of the number of sends and receives in [`Entry::what`].
pub(super) const TRANSFERS_AT: u32 = 40;
/// The largest number that fits there.
const MAX_TRANSFERS: u64 = (1 << (64 - TRANSFERS_AT)) - 1;

impl Entry {
    /// Returns whether this is the entry of an operation.
    #[inline]
    pub(super) fn is_of(&self, number: u64) -> bool {
        self.number.load(Ordering::Relaxed) == number + 1
    }

    /// Writes an operation, called on a stream at a time.
    #[inline]
    pub(super) fn write(&self, of: &Called, what: &What, (called, begun): (u64, u64)) {
        let Called { number, of_kind, stream, tag } = *of;
        let What { kind, descriptor, bytes, peer, transfers, carriers, .. } = *what;
        let (first, count) = descriptor.to_words();
        // Who reads takes the words only if the number is right before and after them.
        self.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let words = [
            (&self.what, u64::from(first) | (kind as u64) << 32 | transfers << TRANSFERS_AT),
            (&self.count, count),
            (&self.of_kind, of_kind),
            (&self.bytes, bytes),
            (&self.peer, peer),
            (&self.stream, stream as u64),
            (&self.tag, tag),
            (&self.carriers, carriers),
            (&self.called, called),
            (&self.begun, begun),
            (&self.ended, 0),
        ];
        words.iter().for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        self.number.store(number + 1, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.number.store(0, Ordering::Release);
    }
}

/// An operation, as it is recorded.
#[derive(Clone, Copy)]
pub struct What {
    kind: Kind,
    descriptor: Descriptor,
    pub(super) bytes: u64,
    peer: u64,
    /// Messages of an exchange, or collectives of a batch.
    transfers: u64,
    carriers: u64,
    /// The number that the call itself has; 0: that of its thread.
    pub(super) tag: u64,
}

/// The call of an operation that is recorded.
#[derive(Clone, Copy)]
pub struct Called {
    /// The number of the operation.
    pub number: u64,
    /// The number among the operations of its kind.
    pub(super) of_kind: u64,
    /// The number of its stream.
    pub(super) stream: usize,
    /// The number that the caller gave it.
    pub(super) tag: u64,
}

impl What {
    /// Returns the descriptor of the operation.
    #[inline]
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// Returns the number of the kind of a collective; `None` for other operations.
    #[inline]
    pub(super) fn collective_kind(&self) -> Option<usize> {
        (self.kind == Kind::Collective).then(|| self.descriptor.collective_kind())
    }

    /// Returns the number of collectives of the operation.
    #[inline]
    pub(super) fn collectives(&self) -> u64 {
        if self.kind == Kind::Collective { self.transfers.max(1) } else { 0 }
    }

    /// Describes a collective.
    #[inline]
    pub fn collective(programs: &Programs, call: &Call) -> Self {
        Self {
            kind: Kind::Collective,
            descriptor: programs.descriptor(call),
            bytes: call.count * call.dtype.size() as u64,
            peer: 0,
            transfers: 0,
            carriers: carriers_of(programs),
            tag: programs.options.tag,
        }
    }

    /// Describes an operation.
    pub fn of(operation: &Operation) -> Self {
        let (kind, descriptor, bytes, peer, transfers) = match operation {
            Operation::Collective(programs, call) => return Self::collective(programs, call),
            Operation::Batch(batch) => {
                let tag = batch.calls()[0].0.options.tag;
                let (descriptor, carriers) = (batch.descriptor(), carriers_of(&batch.calls()[0].0));
                let (bytes, transfers) = (batch.bytes(), batch.calls().len() as u64);
                let kind = Kind::Collective;
                return Self { kind, descriptor, bytes, peer: 0, transfers, carriers, tag };
            }
            Operation::Exchange(transfers) => {
                let (list, first) = (&transfers.list, transfers.list.first());
                let bytes = list.iter().map(|transfer| transfer.bytes as u64).sum();
                let dtype = first.map_or(DataType::Int8, |transfer| transfer.dtype);
                let peer = first.map(|transfer| (transfer.peer, transfer.send));
                (Kind::Exchange, Descriptor::message(dtype, bytes), bytes, peer, list.len())
            }
            Operation::OneSided(item) => match &**item {
                OneSided::Signal(peer, put, _) => {
                    let kind = if put.is_some() { Kind::Put } else { Kind::Signal };
                    let bytes = put.as_ref().map_or(0, |put| put.bytes as u64);
                    (kind, Descriptor::signals(1), bytes, Some((*peer, true)), 0)
                }
                OneSided::Wait(awaited) => {
                    let count = awaited.iter().map(|awaited| awaited.count).sum();
                    let peer = awaited.first().map(|first| (first.peer, false));
                    (Kind::Wait, Descriptor::signals(count), 0, peer, 0)
                }
            },
        };
        let sends = |sends| if sends { SENDS } else { 0 };
        let peer = peer.map_or(0, |(peer, send)| (u64::from(peer) + 1) | sends(send));
        let transfers = (transfers as u64).min(MAX_TRANSFERS);
        Self { kind, descriptor, bytes, peer, transfers, carriers: 0, tag: 0 }
    }
}

/// Returns the set of the carriers of a call: which one it is depends on where its buffers lie,
/// which is known when it runs.
#[inline]
fn carriers_of(programs: &Programs) -> u64 {
    let bit = |carrier: Carrier| 1 << carrier as u64;
    let mapped = programs.mapped.as_ref().map_or(0, |bound| bit(bound.carrier));
    let engines = if programs.engines { bit(Carrier::CopyEngines) } else { 0 };
    bit(programs.any.carrier) | mapped | engines
}
