//! All-reduces on buffers that are registered with the communicator, checked bit for bit. The
//! memory is unmapped once nobody may use it: whoever does so nevertheless crashes.

use crate::endpoint;
use crate::sequence::{Random, outcome};
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::comm::Communicator;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::op::Call;
use oxccl_runtime::{Result, group};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The size of each buffer: several windows.
const BYTES: usize = 300_000;

/// The types and operations of the all-reduces.
const TYPES: [DataType; 4] =
    [DataType::Uint8, DataType::Int32, DataType::Uint64, DataType::Float32];
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Prod, ReduceOp::Avg];

/// Memory that is gone when this is dropped.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, wherever the system wants it.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE) };
        Self(base.expect("memory").cast())
    }

    #[allow(clippy::mut_from_ref, reason = "tests look at the memory while nobody else does")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: the memory has this size, and nobody else uses it while a test looks at it.
        unsafe { std::slice::from_raw_parts_mut(self.0, BYTES) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped with this size; nobody may use it any more.
        unsafe { munmap(self.0.cast(), BYTES) }.expect("it was mapped");
    }
}

/// A rank with its two buffers, input and output, of which some are registered.
struct Rank {
    comm: Arc<Communicator>,
    stream: Arc<Stream>,
    buffers: [Pages; 2],
    handles: Vec<u64>,
}

impl Rank {
    fn new(comm: &Arc<Communicator>, registers: impl Fn(usize) -> bool) -> Result<Self> {
        let buffers = [Pages::new(), Pages::new()];
        let chosen = buffers.iter().enumerate().filter(|(index, _)| registers(*index));
        let handles = chosen.map(|(_, pages)| comm.register(pages.0.addr(), BYTES));
        let handles = handles.collect::<Result<_>>()?;
        Ok(Self { comm: comm.clone(), stream: Stream::new(), buffers, handles })
    }

    /// Ends the registrations.
    fn deregister(&mut self) -> Result<()> {
        let mut handles = self.handles.drain(..);
        handles.try_for_each(|handle| self.comm.deregister(handle).map(|known| assert!(known)))
    }

    /// All-reduces fresh data once, in place on some ranks. Returns false if that is not complete
    /// after `wait`.
    fn reduce(&self, random: &mut Random, wait: Option<Duration>) -> Result<bool> {
        let (rank, nranks) = (self.comm.rank() as usize, self.comm.nranks());
        let dtype = TYPES[random.below(TYPES.len() as u64) as usize];
        let op = OPS[random.below(OPS.len() as u64) as usize];
        let room = (BYTES / dtype.size()) as u64;
        let first = random.below(40);
        let count = 1 + random.below(room - first);
        let (at, len) = (first as usize * dtype.size(), count as usize * dtype.size());
        let data: Vec<_> = (0..nranks).map(|_| random.bytes(len)).collect();
        let in_place: Vec<_> = (0..nranks).map(|_| random.below(2) == 0).collect();
        let [input, output] = &self.buffers;
        output.bytes().fill(0xc7);
        let from = if in_place[rank] { output } else { input };
        from.bytes()[at..at + len].copy_from_slice(&data[rank]);
        let spec = Spec::new(Collective::AllReduce, nranks, 0);
        let (input, output) = (from.0.wrapping_add(at), self.buffers[1].0.wrapping_add(at));
        let call = Call { spec, input, output, count, dtype, op, scale: None };
        group::collective(&self.comm, &call, &self.stream)?;
        if !self.stream.synchronize(wait)? {
            return Ok(false);
        }
        let plan = self.comm.programs(&call)?.any.plan;
        let slot_bytes = endpoint(&self.comm).edge_slot_bytes;
        let expected = outcome(&plan, slot_bytes, count, dtype, op, &data).swap_remove(rank);
        let mut whole = vec![0xc7; BYTES];
        whole[at..at + len].copy_from_slice(&expected);
        let wrong = self.buffers[1].bytes().iter().zip(&whole).position(|(got, want)| got != want);
        assert_eq!(wrong, None, "{count} of {dtype:?} from byte {at} on by {op:?}, rank {rank}");
        Ok(true)
    }
}

/// All-reduces so often with buffers of which are registered: `all`, the `output`, those of `odd`
/// ranks, all until `early`, after which there are others; or all until an all-reduce does not
/// complete, which an `abort` ends. The memory is gone at once after its registration, an error or
/// an abort.
pub fn play(comm: &Arc<Communicator>, how: &str, rounds: u32) -> Result<()> {
    let registers = |index: usize| match how {
        "output" => index == 1,
        "odd" => comm.rank() % 2 == 1,
        _ => true,
    };
    let (mut rank, mut random) = (Rank::new(comm, registers)?, Random(u64::from(rounds)));
    let wait = (how == "abort").then_some(Duration::from_millis(300));
    for round in 0..rounds {
        if how == "early" && round == rounds / 2 {
            rank.deregister()?;
            // The new buffers may lie where the old ones were.
            drop(rank);
            rank = Rank::new(comm, |_| false)?;
        }
        match rank.reduce(&mut random, wait) {
            Ok(true) => {}
            Ok(false) => {
                let start = Instant::now();
                comm.abort()?;
                assert!(start.elapsed() < Duration::from_millis(1300), "{:?}", start.elapsed());
                return Ok(());
            }
            Err(error) => {
                rank.deregister().expect("no operation is under way");
                drop(rank);
                comm.abort()?;
                return Err(error);
            }
        }
    }
    rank.deregister()?;
    drop(rank);
    comm.destroy()
}
