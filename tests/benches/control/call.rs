//! What a call costs by itself: an all-reduce of 8 B from its entry to the executor's start.
//!
//! A call also looks for the peer for a moment (64 polls), which is not its own cost. So it is
//! measured where it finds nothing to poll: queued behind an event that has not come, with the peer
//! absent; and, as bounds from above, where it runs from entry to end without waiting.

use crate::{median_and_min, ok};
use oxccl::nccl::collectives::ncclAllReduce;
use oxccl::nccl::comm::{ncclCommDestroy, ncclCommInitAll};
use oxccl::nccl::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t};
use oxccl::oxccl::event::{oxcclEventCreate, oxcclEventDestroy, oxcclEventRecord};
use oxccl::oxccl::stream::{
    oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamHostFunc, oxcclStreamSynchronize,
    oxcclStreamWaitEvent,
};
use oxccl::oxccl::types::oxcclStream_t;
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::bootstrap::new_unique_id;
use oxccl_runtime::comm::{Communicator, Member, Options, create};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::host::collective::{Budget, Running, Visit};
use oxccl_runtime::op::Call;
use oxccl_runtime::recorder::{Recorder, What};
use oxccl_tests::endpoint;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const ROUNDS: usize = 200;
const CALLS: usize = 500;
const SINGLE: usize = 20_000;

/// A rank with its stream and buffers.
struct Rank {
    comm: ncclComm_t,
    stream: oxcclStream_t,
    input: Box<u64>,
    output: Box<u64>,
}

impl Rank {
    fn new(comm: ncclComm_t) -> Self {
        let mut stream = null_mut();
        // SAFETY: the place is writable.
        ok(unsafe { oxcclStreamCreate(&mut stream) });
        Self { comm, stream, input: Box::new(1), output: Box::new(0) }
    }

    #[inline]
    fn call(&mut self) {
        let (from, to) = ((&raw const *self.input).cast(), (&raw mut *self.output).cast());
        let (dtype, op) = (ncclDataType_t::ncclUint64, ncclRedOp_t::ncclSum);
        let (dtype, op) = (MaybeUninit::new(dtype), MaybeUninit::new(op));
        // SAFETY: the buffers live as long as the rank, which is synchronised before its end.
        ok(unsafe { ncclAllReduce(from, to, 1, dtype, op, self.comm, self.stream) });
    }

    fn synchronize(&self) {
        // SAFETY: the handle is alive.
        ok(unsafe { oxcclStreamSynchronize(self.stream, -1) });
    }

    fn end(self) {
        self.synchronize();
        // SAFETY: the handles are alive, and used no more.
        unsafe {
            ok(oxcclStreamDestroy(self.stream));
            ok(ncclCommDestroy(self.comm));
        }
    }
}

/// All ranks of a communicator in this thread.
fn ranks(n: usize) -> Vec<Rank> {
    let mut comms = vec![null_mut(); n];
    // SAFETY: there is room for n handles; null stands for all devices being 0.
    ok(unsafe { ncclCommInitAll(comms.as_mut_ptr(), n as i32, std::ptr::null()) });
    comms.into_iter().map(Rank::new).collect()
}

/// CPU time of this thread in ns.
fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

unsafe extern "C" fn wait(flag: *mut c_void) {
    // SAFETY: the caller passes a flag that lives until the function has returned.
    let flag = unsafe { &*flag.cast::<AtomicBool>() };
    while !flag.load(Ordering::Acquire) {
        std::thread::park_timeout(std::time::Duration::from_micros(100));
    }
}

/// CPU ns per call of calls queued behind an event; the other rank makes its calls later.
fn queued() -> Vec<f64> {
    let mut ranks = ranks(2);
    let (mut gate, mut event) = (null_mut(), null_mut());
    let mut times = Vec::new();
    // SAFETY: places are writable, handles alive, and the flag outlives the function that reads it.
    unsafe {
        ok(oxcclStreamCreate(&mut gate));
        ok(oxcclEventCreate(&mut event));
        for _ in 0..ROUNDS {
            let open = AtomicBool::new(false);
            ok(oxcclStreamHostFunc(gate, Some(wait), (&raw const open).cast_mut().cast()));
            ok(oxcclEventRecord(event, gate));
            ok(oxcclStreamWaitEvent(ranks[0].stream, event));
            let start = cpu();
            (0..CALLS).for_each(|_| ranks[0].call());
            times.push((cpu() - start) / CALLS as f64);
            open.store(true, Ordering::Release);
            ok(oxcclStreamSynchronize(gate, -1));
            (0..CALLS).for_each(|_| ranks[1].call());
            ranks.iter().for_each(Rank::synchronize);
        }
        ok(oxcclStreamDestroy(gate));
        ok(oxcclEventDestroy(event));
    }
    ranks.into_iter().for_each(Rank::end);
    times
}

/// CPU ns per call on a communicator of one rank: from entry to end.
fn alone() -> Vec<f64> {
    let mut ranks = ranks(1);
    let times = (0..ROUNDS).map(|_| {
        let start = cpu();
        (0..CALLS).for_each(|_| ranks[0].call());
        (cpu() - start) / CALLS as f64
    });
    let times = times.collect();
    ranks.into_iter().for_each(Rank::end);
    times
}

/// A communicator of one rank, and a call on it.
fn call_of_one(input: &u64, output: &mut u64) -> (Communicator, Call) {
    let id = new_unique_id().expect("an id");
    let options = Options::default();
    let comm = create(&Member { id, rank: 0, nranks: 1, device: Device::Host(0), options })
        .expect("one rank");
    let call = Call {
        spec: Spec::new(Collective::AllReduce, 1, 0),
        input: (&raw const *input).cast(),
        output: (&raw mut *output).cast(),
        count: 1,
        dtype: DataType::Uint64,
        op: ReduceOp::Sum,
        scale: None,
    };
    (comm, call)
}

/// CPU ns of the executor alone for the same: what [`alone`] takes beyond it is the call's own.
fn executor() -> Vec<f64> {
    let (input, mut output) = (1, 0);
    let (comm, call) = call_of_one(&input, &mut output);
    let programs = comm.programs(&call).expect("a plan").into_owned();
    let made = |_| Running::new(endpoint(&comm), programs.clone(), &call);
    let times = (0..ROUNDS).map(|_| {
        let mut operations: Vec<Running> = (0..CALLS).map(made).collect();
        let start = cpu();
        for operation in &mut operations {
            let visit = operation.visit(endpoint(&comm), Budget { polls: 64, bytes: 16 << 10 });
            assert!(matches!(visit, Visit::Done(Ok(()))));
        }
        (cpu() - start) / CALLS as f64
    });
    times.collect()
}

/// CPU ns of the records of a call for `oxccl ras`: of the call, and of its end.
fn recorded() -> Vec<f64> {
    let (input, mut output) = (1, 0);
    let (comm, call) = call_of_one(&input, &mut output);
    let (programs, recorder) = (comm.programs(&call).expect("a plan"), Recorder::new());
    let times = (0..ROUNDS).map(|_| {
        let start = cpu();
        for _ in 0..CALLS {
            let called = recorder.call(&What::collective(&programs, &call), 1);
            recorder.end(called.number);
        }
        (cpu() - start) / CALLS as f64
    });
    times.collect()
}

/// Wall ns of the first rank's call before the other's (it polls in vain), and of the second's,
/// which finds everything there and runs to its end; less what looking at the clock takes.
fn single() -> (Vec<f64>, Vec<f64>) {
    let mut ranks = ranks(2);
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64
    };
    let clock = median_and_min((0..1000).map(|_| timed(&mut || ())).collect()).0;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..SINGLE {
        first.push(timed(&mut || ranks[0].call()) - clock);
        second.push(timed(&mut || ranks[1].call()) - clock);
        ranks.iter().for_each(Rank::synchronize);
    }
    ranks.into_iter().for_each(Rank::end);
    (first, second)
}

/// Prints the table.
pub(crate) fn table() {
    println!(
        "\nAll-reduce of 8 B, ns per call\n\n| what | limit | median | min |\n|---|---|---|---|"
    );
    let row = |what: &str, limit: &str, times: Vec<f64>| {
        let (median, min) = median_and_min(times);
        println!("| {what} | {limit} | {median:.0} | {min:.0} |");
    };
    row("peer absent, queued behind an event: entry to return, CPU", "150", queued());
    let (whole, executor) = (median_and_min(alone()), median_and_min(executor()));
    let own = (whole.0 - executor.0, whole.1 - executor.1);
    let line = |what: &str, limit: &str, (median, min): (f64, f64)| {
        println!("| {what} | {limit} | {median:.0} | {min:.0} |");
    };
    line(
        "one rank: entry to the executor's start, CPU (the next two rows' difference)",
        "150",
        own,
    );
    line("one rank: entry to the end of the operation, CPU", "", whole);
    line("one rank: the executor alone, CPU", "", executor);
    row("the records of a call and its end, which are part of the whole, CPU", "100", recorded());
    let (first, second) = single();
    row("2 ranks, peer's data there: entry to the end of the operation", "", second);
    row("2 ranks, peer absent: entry to return with 64 polls", "", first);
}
