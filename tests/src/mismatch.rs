//! Calls that differ between ranks, and what every rank has to be told about them.

use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::comm::Communicator;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::op::{Call, Transfer};
use oxccl_runtime::{Code, Error, group};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One of the differing calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A collective of so many elements.
    Collective(Collective, u64, DataType, ReduceOp, u32),
    /// Rank 0 sends so many elements to all others, which receive.
    SendFromZero(u64, DataType),
    /// Rank 0 receives so many from all others, which send.
    SendToZero(u64, DataType),
}

/// Calls of which every pair differs; sizes are multiples of `base` elements.
pub fn cases(base: u64) -> Vec<Case> {
    use Collective::*;
    let reduce_scatter = Case::Collective(ReduceScatter, base, DataType::Float32, ReduceOp::Sum, 0);
    vec![
        Case::Collective(AllReduce, base, DataType::Float32, ReduceOp::Sum, 0),
        Case::Collective(AllReduce, base + 1, DataType::Float32, ReduceOp::Sum, 0),
        Case::Collective(AllReduce, base * 3, DataType::Float32, ReduceOp::Sum, 0),
        Case::Collective(AllReduce, 0, DataType::Float32, ReduceOp::Sum, 0),
        Case::Collective(AllReduce, base, DataType::Int32, ReduceOp::Sum, 0),
        Case::Collective(AllReduce, base, DataType::Float32, ReduceOp::Max, 0),
        Case::Collective(Broadcast, base, DataType::Float32, ReduceOp::Sum, 0),
        Case::Collective(Broadcast, base, DataType::Float32, ReduceOp::Sum, 1),
        Case::Collective(Gather, base, DataType::Float32, ReduceOp::Sum, 1),
        Case::Collective(AllToAll, base, DataType::Float32, ReduceOp::Sum, 0),
        reduce_scatter,
        Case::SendFromZero(base, DataType::Int32),
        Case::SendFromZero(base * 3, DataType::Int32),
        Case::SendFromZero(0, DataType::Int32),
        Case::SendFromZero(base, DataType::Float32),
        Case::SendToZero(base, DataType::Int32),
    ]
}

/// A buffer that ends where an inaccessible page begins.
struct Guarded {
    base: *mut u8,
    whole: usize,
    at: *mut u8,
}

const PAGE: usize = 4096;
const POISON: u8 = 0xab;

impl Guarded {
    fn new(bytes: usize) -> Self {
        let room = bytes.next_multiple_of(PAGE);
        let whole = room + 2 * PAGE;
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses.
        let base: *mut u8 =
            unsafe { mmap_anonymous(std::ptr::null_mut(), whole, flags, MapFlags::PRIVATE) }
                .expect("memory")
                .cast();
        for guard in [0, PAGE + room] {
            // SAFETY: pages of the mapping that nothing uses.
            unsafe { mprotect(base.add(guard).cast(), PAGE, MprotectFlags::empty()) }
                .expect("a guard page");
        }
        // SAFETY: within the mapping.
        Self { base, whole, at: unsafe { base.add(PAGE + room - bytes) } }
    }
}

impl Guarded {
    fn bytes(&self) -> usize {
        self.base.wrapping_add(self.whole - PAGE).addr() - self.at.addr()
    }

    fn poison(&self) {
        // SAFETY: the buffer's own bytes, which nothing uses yet.
        unsafe { self.at.write_bytes(POISON, self.bytes()) };
    }

    fn is_poisoned(&self) -> bool {
        // SAFETY: as above; the operation is over.
        (0..self.bytes()).all(|i| unsafe { self.at.add(i).read() } == POISON)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this buffer's own; its operation is over.
        unsafe { munmap(self.base.cast(), self.whole) }.expect("it is mapped");
    }
}

/// Makes the call and waits for the error, at most for a minute.
pub fn outcome(comm: &Arc<Communicator>, case: Case) -> Error {
    let deadline = Instant::now() + Duration::from_secs(60);
    let stream = Stream::new();
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let (input, output);
    match case {
        Case::Collective(kind, count, dtype, op, root) => {
            let spec = Spec::new(kind, nranks, root);
            let block = count as usize * dtype.size();
            input = Guarded::new(spec.input_blocks(rank) as usize * block);
            output = Guarded::new(spec.output_blocks(rank) as usize * block);
            input.poison();
            let (input, output) = (input.at, output.at);
            let call = Call { spec, input, output, count, dtype, op, scale: None };
            // It may be told at the call.
            let _ = group::collective(comm, &call, &stream);
        }
        Case::SendFromZero(count, dtype) | Case::SendToZero(count, dtype) => {
            let bytes = count as usize * dtype.size();
            let from_zero = matches!(case, Case::SendFromZero(..));
            (input, output) = (Guarded::new(bytes), Guarded::new(bytes * nranks as usize));
            input.poison();
            output.poison();
            let peers = if rank == 0 { 1..nranks } else { 0..1 };
            group::start();
            for (i, peer) in peers.enumerate() {
                let send = (rank == 0) == from_zero;
                let to = output.at.wrapping_add(i * bytes);
                let data = if send { input.at } else { to };
                let transfer = Transfer { peer, send, data, bytes, dtype };
                let _ = group::transfer(comm, transfer, &stream);
            }
            let _ = group::end();
        }
    }
    loop {
        let done = stream.synchronize(Some(Duration::from_millis(20))).unwrap_or(true);
        match comm.failure() {
            Some(error) if done => {
                assert!(input.is_poisoned(), "rank {rank}'s input has changed: {case:?}");
                // What a collective leaves in its output is unknown, but for the guards around it.
                if !matches!(case, Case::Collective(..)) {
                    assert!(output.is_poisoned(), "rank {rank} received something: {case:?}");
                }
                return error;
            }
            _ => assert!(Instant::now() < deadline, "rank {rank} was told nothing: {case:?}"),
        }
    }
}

/// Whether an error names two sides of a difference.
pub fn names_both(error: &Error) -> bool {
    let text = error.to_string();
    let differ = text.contains("calls differ") && text.contains(" calls ");
    // Those that differ only in who begins to send.
    let both_send = text.contains(" and ") && text.contains("both send to each other");
    error.code() == Code::InvalidUsage && (differ || both_send)
}
