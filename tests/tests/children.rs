//! Split, shrink, grow, abort, revoke and non-blocking communicators, through the C interface.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{last_error, ok};
use oxccl::nccl::children::{ncclCommGetUniqueId, ncclCommGrow, ncclCommShrink, ncclCommSplit};
use oxccl::nccl::collectives::ncclAllReduce;
use oxccl::nccl::comm::{
    ncclCommCount, ncclCommDestroy, ncclCommFinalize, ncclCommGetAsyncError,
    ncclCommInitRankConfig, ncclCommUserRank, ncclGetUniqueId,
};
use oxccl::nccl::config::ncclConfig_t;
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::lifetime::{
    ncclCommAbort, ncclCommMemStats, ncclCommResume, ncclCommRevoke, ncclCommSuspend,
};
use oxccl::nccl::types::{
    ncclComm_t, ncclCommMemStat_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use oxccl::oxccl::launch::oxcclSetInitTimeout;
use oxccl::oxccl::stream::{oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamSynchronize};
use oxccl::oxccl::types::oxcclStream_t;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use ncclResult_t::*;

const SECOND: Duration = Duration::from_secs(1);

fn id() -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: a place for the id.
    assert_eq!(unsafe { ncclGetUniqueId(&mut id) }, ncclSuccess);
    id
}

fn config(blocking: bool) -> ncclConfig_t {
    ncclConfig_t { blocking: i32::from(blocking), ..ncclConfig_t::default() }
}

/// A sum that was called, on a stream of its own.
struct Called {
    result: ncclResult_t,
    stream: oxcclStream_t,
    _input: Vec<f32>,
    output: Vec<f32>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Called {}

impl Called {
    fn wait(self) -> Result<f32, ncclResult_t> {
        // SAFETY: any handle may be passed.
        let done = unsafe { oxcclStreamSynchronize(self.stream, 60_000_000_000) };
        assert_ne!(done, ncclInProgress, "the stream is stuck");
        // SAFETY: as above.
        ok(unsafe { oxcclStreamDestroy(self.stream) });
        for result in [self.result, done] {
            if result != ncclSuccess {
                return Err(result);
            }
        }
        assert!(self.output.iter().all(|&v| v == self.output[0]));
        Ok(self.output[0])
    }
}

/// A rank's own view of a communicator.
#[derive(Clone, Copy)]
struct Comm(ncclComm_t);

// SAFETY: handles may be used from any thread.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Comm {
    fn new(nranks: i32, id: ncclUniqueId, rank: i32) -> Self {
        let mut comm = null_mut();
        // SAFETY: a place for the handle, and a whole configuration.
        ok(unsafe { ncclCommInitRankConfig(&mut comm, nranks, id, rank, &mut config(true)) });
        Self(comm)
    }

    /// Does not wait for the others.
    fn begin(nranks: i32, id: ncclUniqueId, rank: i32) -> Self {
        let mut comm = null_mut();
        let mut config = config(false);
        // SAFETY: a place for the handle, and a whole configuration.
        let made = unsafe { ncclCommInitRankConfig(&mut comm, nranks, id, rank, &mut config) };
        assert_eq!(made, ncclInProgress);
        Self(comm)
    }

    fn rank(self) -> i32 {
        let mut rank = -1;
        // SAFETY: a place for the number.
        ok(unsafe { ncclCommUserRank(self.0, &mut rank) });
        rank
    }

    fn nranks(self) -> i32 {
        let mut count = -1;
        // SAFETY: a place for the number.
        ok(unsafe { ncclCommCount(self.0, &mut count) });
        count
    }

    fn async_error(self) -> ncclResult_t {
        let mut error = ncclInternalError;
        // SAFETY: a place for the code.
        ok(unsafe { ncclCommGetAsyncError(self.0, &mut error) });
        error
    }

    /// Calls the sum of `count` elements, rank + 1 each, over all ranks.
    fn call_sum(self, count: usize) -> Called {
        let input = vec![self.rank() as f32 + 1.0; count];
        let mut output = vec![0f32; count];
        let mut stream = null_mut();
        // SAFETY: a place for the handle.
        ok(unsafe { oxcclStreamCreate(&mut stream) });
        let (float, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let (float, sum) = (MaybeUninit::new(float), MaybeUninit::new(sum));
        // SAFETY: buffers of this size that live until the stream is synchronised.
        let result = unsafe { ncclAllReduce(from, to, count, float, sum, self.0, stream) };
        Called { result, stream, _input: input, output }
    }

    /// Sums `count` elements, rank + 1 each, over all ranks; the code of the call or of the
    /// synchronisation.
    fn sum(self, count: usize) -> Result<f32, ncclResult_t> {
        self.call_sum(count).wait()
    }

    /// Checks that all ranks of the communicator work together.
    #[track_caller]
    fn works(self) {
        let n = self.nranks();
        for count in [1, 1000, 100_000] {
            assert_eq!(self.sum(count), Ok((n * (n + 1) / 2) as f32), "{}", last_error());
        }
    }

    fn split(self, color: i32, key: i32) -> Option<Self> {
        let mut new = std::ptr::dangling_mut();
        // SAFETY: a place for the handle.
        ok(unsafe { ncclCommSplit(self.0, color, key, &mut new, null_mut()) });
        (!new.is_null()).then_some(Self(new))
    }

    fn shrink(self, excluded: &mut [i32], flags: i32) -> Self {
        let mut new = null_mut();
        let (list, count) = (excluded.as_mut_ptr(), excluded.len() as i32);
        // SAFETY: a list of this length and a place for the handle.
        ok(unsafe { ncclCommShrink(self.0, list, count, &mut new, null_mut(), flags) });
        Self(new)
    }

    fn destroy(self) {
        // SAFETY: any handle may be passed.
        ok(unsafe { ncclCommDestroy(self.0) });
    }

    fn abort(self) -> ncclResult_t {
        let start = Instant::now();
        // SAFETY: any handle may be passed.
        let result = unsafe { ncclCommAbort(self.0) };
        // It promises a second also beside a rank that never comes; one more is for a busy machine.
        assert!(start.elapsed() < 2 * SECOND, "abort took {:?}", start.elapsed());
        result
    }
}

/// Runs a function as every rank of a communicator, each in a thread.
fn ranks(nranks: i32, run: impl Fn(Comm) + Sync) {
    let id = id();
    std::thread::scope(|scope| {
        for rank in 0..nranks {
            let run = &run;
            scope.spawn(move || run(Comm::new(nranks, id, rank)));
        }
    });
}

#[test]
fn split_by_color_and_key() {
    ranks(5, |comm| {
        let rank = comm.rank();
        // Evens in reverse order, odds in order, rank 4 in none.
        let (color, key) = if rank == 4 { (-1, 0) } else { (rank % 2, -rank * (1 - rank % 2)) };
        match comm.split(color, key) {
            None => assert_eq!(rank, 4),
            Some(child) => {
                assert_eq!(child.nranks(), 2);
                let expected = [1, 0, 0, 1][rank as usize];
                assert_eq!(child.rank(), expected, "of {rank}");
                child.works();
                // Children have children, beside the parent's own work.
                let alone = child.split(child.rank(), 0).expect("a color");
                assert_eq!((alone.nranks(), alone.sum(10)), (1, Ok(1.0)));
                alone.destroy();
                child.destroy();
            }
        }
        comm.works();
        comm.destroy();
    });
}

#[test]
fn communicators_used_in_different_orders_from_threads_and_streams_make_progress() {
    const EACH: usize = 6;
    ranks(3, |comm| {
        let children: Vec<Comm> =
            (0..EACH).map(|i| comm.split(0, i as i32).expect("a color")).collect();
        // All queued from one thread, on a stream each, in an order of this rank's own.
        let count = 30_000;
        let input = vec![comm.rank() as f32 + 1.0; count];
        let mut outputs = vec![vec![0f32; count]; EACH];
        let mut streams = [null_mut(); EACH];
        // SAFETY: buffers of this size that live until the streams are synchronised.
        unsafe {
            streams.iter_mut().for_each(|stream| ok(oxcclStreamCreate(stream)));
            for i in 0..EACH {
                let at = (i * (1 + comm.rank() as usize * 4) + comm.rank() as usize) % EACH;
                let at = if comm.rank() == 2 { EACH - 1 - i } else { at };
                let (float, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
                let (float, sum) = (MaybeUninit::new(float), MaybeUninit::new(sum));
                let (from, to) = (input.as_ptr().cast(), outputs[at].as_mut_ptr().cast());
                ok(ncclAllReduce(from, to, count, float, sum, children[at].0, streams[at]));
            }
            for stream in streams {
                ok(oxcclStreamSynchronize(stream, 60_000_000_000));
                ok(oxcclStreamDestroy(stream));
            }
        }
        assert!(outputs.iter().flatten().all(|&v| v == 6.0));
        // And each from a thread of its own, at once.
        std::thread::scope(|scope| {
            for &child in &children {
                scope.spawn(move || child.works());
            }
        });
        children.iter().for_each(|child| child.destroy());
        comm.destroy();
    });
}

#[test]
fn several_children_of_one_parent_in_one_group_keep_the_order_of_calls() {
    ranks(4, |comm| {
        for _ in 0..20 {
            let rank = comm.rank();
            let (mut rows, mut columns) = (null_mut(), null_mut());
            // SAFETY: places for the handles that live until the group ends.
            unsafe {
                ok(ncclGroupStart());
                ok(ncclCommSplit(comm.0, rank / 2, 0, &mut rows, null_mut()));
                ok(ncclCommSplit(comm.0, rank % 2 + 10, -rank, &mut columns, null_mut()));
                ok(ncclGroupEnd());
            }
            let (rows, columns) = (Comm(rows), Comm(columns));
            assert_eq!((rows.nranks(), rows.rank()), (2, rank % 2));
            assert_eq!((columns.nranks(), columns.rank()), (2, 1 - rank / 2));
            rows.works();
            columns.works();
            rows.destroy();
            columns.destroy();
        }
        comm.destroy();
    });
}

#[test]
fn ranks_that_were_excluded_may_shrink_with_others_later() {
    ranks(4, |comm| {
        if comm.rank() != 3 {
            comm.shrink(&mut [3], 0).destroy();
        }
        if comm.rank() != 2 {
            let child = comm.shrink(&mut [2], 0);
            child.works();
            child.destroy();
        }
        comm.destroy();
    });
}

#[test]
fn a_child_outlives_its_parent() {
    ranks(3, |comm| {
        let child = comm.split(0, 0).expect("a color");
        comm.destroy();
        child.works();
        child.destroy();
    });
}

#[test]
fn shrink_without_an_error() {
    ranks(4, |comm| {
        if comm.rank() != 2 {
            let child = comm.shrink(&mut [2], 0);
            assert_eq!(child.nranks(), 3);
            child.works();
            child.destroy();
        }
        comm.works();
        comm.destroy();
    });
}

#[test]
fn shrink_ends_operations_that_hang_and_makes_a_working_communicator() {
    ranks(4, |comm| {
        if comm.rank() == 1 {
            // It never calls; the others wait for it.
            let deadline = Instant::now() + 60 * SECOND;
            while comm.async_error() == ncclSuccess {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
            assert_eq!(comm.async_error(), ncclRemoteError);
            assert_eq!(comm.abort(), ncclSuccess);
            return;
        }
        let (input, mut output) = (vec![1f32; 50_000], vec![0f32; 50_000]);
        let mut stream = null_mut();
        // SAFETY: buffers of this size that live until the stream is synchronised.
        unsafe {
            ok(oxcclStreamCreate(&mut stream));
            let (float, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
            let (float, sum) = (MaybeUninit::new(float), MaybeUninit::new(sum));
            let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
            // Another rank may have ended it already.
            let _ = ncclAllReduce(from, to, 50_000, float, sum, comm.0, stream);
            let child = comm.shrink(&mut [1], 1);
            assert_eq!(child.nranks(), 3);
            assert_ne!(oxcclStreamSynchronize(stream, 10_000_000_000), ncclInProgress);
            output.fill(7.0);
            child.works();
            assert!(output.iter().all(|&v| v == 7.0));
            child.destroy();
            ok(oxcclStreamDestroy(stream));
        }
        assert_eq!(comm.abort(), ncclSuccess);
    });
}

#[test]
fn grow_by_two() {
    let (barrier, id_of_root) = (Barrier::new(5), Mutex::new(None));
    let join = |comm: Option<Comm>, id: Option<ncclUniqueId>, rank| {
        let mut new = null_mut();
        let handle = comm.map_or(null_mut(), |c| c.0);
        let id = id.as_ref().map_or(null(), |id| id as *const _);
        // SAFETY: an id or null, and a place for the handle.
        ok(unsafe { ncclCommGrow(handle, 5, id, rank, &mut new, null_mut()) });
        let new = Comm(new);
        assert_eq!(new.nranks(), 5);
        new.works();
        new.destroy();
    };
    let (barrier, id_of_root) = (&barrier, &id_of_root);
    let first = id();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let comm = Comm::new(3, first, rank);
                let mut id = None;
                if rank == 1 {
                    let mut made = ncclUniqueId { internal: [0; 128] };
                    // SAFETY: a place for the id.
                    ok(unsafe { ncclCommGetUniqueId(comm.0, &mut made) });
                    *id_of_root.lock().unwrap() = Some(made);
                    id = Some(made);
                }
                barrier.wait();
                join(Some(comm), id, -1);
                comm.works();
                comm.destroy();
            });
        }
        for rank in 3..5 {
            scope.spawn(move || {
                barrier.wait();
                let id = *id_of_root.lock().unwrap();
                join(None, id, rank);
            });
        }
    });
}

#[test]
fn one_rank_grows() {
    let comm = Comm::new(1, id(), 0);
    let mut made = ncclUniqueId { internal: [0; 128] };
    // SAFETY: a place for the id.
    ok(unsafe { ncclCommGetUniqueId(comm.0, &mut made) });
    std::thread::scope(|scope| {
        for (parent, rank) in [(comm, -1), (Comm(null_mut()), 1)] {
            scope.spawn(move || {
                let parent: Comm = parent;
                let mut new = null_mut();
                // SAFETY: an id and a place for the handle.
                ok(unsafe { ncclCommGrow(parent.0, 2, &made, rank, &mut new, null_mut()) });
                Comm(new).works();
                Comm(new).destroy();
            });
        }
    });
    comm.destroy();
}

#[test]
fn abort_ends_a_hanging_operation_and_is_told_to_the_others() {
    ranks(3, |comm| match comm.rank() {
        0 => {
            // The operation hangs: rank 2 never calls.
            let called = comm.call_sum(1000);
            std::thread::scope(|scope| {
                scope.spawn(move || assert!(called.wait().is_err()));
                assert_eq!(comm.abort(), ncclSuccess);
            });
        }
        1 => {
            assert_eq!(comm.sum(1000), Err(ncclRemoteError));
            let text = last_error();
            assert!(text.contains("ncclCommAbort"), "{text}");
            assert_eq!(comm.abort(), ncclSuccess);
        }
        _ => {
            let deadline = Instant::now() + 60 * SECOND;
            while comm.async_error() != ncclRemoteError {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
            comm.destroy();
        }
    });
}

#[test]
fn a_revoked_communicator_is_quiet_and_can_be_split() {
    ranks(2, |comm| {
        if comm.rank() == 0 {
            let start = Instant::now();
            let called = comm.call_sum(1000);
            std::thread::scope(|scope| {
                scope.spawn(move || assert!(called.wait().is_err()));
                // SAFETY: any handle may be passed.
                ok(unsafe { ncclCommRevoke(comm.0, 0) });
            });
            assert!(start.elapsed() < 10 * SECOND);
        } else {
            // SAFETY: any handle may be passed.
            ok(unsafe { ncclCommRevoke(comm.0, 0) });
        }
        assert_eq!(comm.async_error(), ncclSuccess);
        assert_eq!(comm.sum(10), Err(ncclInvalidUsage));
        // SAFETY: any handle may be passed.
        assert_eq!(unsafe { ncclCommFinalize(comm.0) }, ncclInvalidUsage);
        let child = comm.split(0, 0).expect("a color");
        child.works();
        child.destroy();
        comm.destroy();
    });
}

#[track_caller]
fn wait(comm: Comm) -> ncclResult_t {
    let deadline = Instant::now() + 60 * SECOND;
    loop {
        match comm.async_error() {
            ncclInProgress => assert!(Instant::now() < deadline, "still in progress"),
            other => return other,
        }
        std::thread::yield_now();
    }
}

#[test]
fn non_blocking_init_split_and_finalize() {
    let id = id();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let comm = Comm::begin(3, id, rank);
                assert_eq!(wait(comm), ncclSuccess);
                comm.works();
                let mut child = null_mut();
                // SAFETY: a place for the handle.
                let split = unsafe { ncclCommSplit(comm.0, 0, -rank, &mut child, null_mut()) };
                assert_eq!(split, ncclInProgress);
                // Either may be asked.
                assert_eq!(wait(comm), ncclSuccess);
                let child = Comm(child);
                assert_eq!((wait(child), child.rank()), (ncclSuccess, 2 - rank));
                child.works();
                for comm in [child, comm] {
                    // SAFETY: any handle may be passed.
                    assert_eq!(unsafe { ncclCommFinalize(comm.0) }, ncclInProgress);
                    assert_eq!(wait(comm), ncclSuccess);
                    comm.destroy();
                }
            });
        }
    });
}

#[test]
fn non_blocking_shrink_and_grow() {
    let (first, second, made) = (id(), Mutex::new(None), Barrier::new(3));
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (second, made) = (&second, &made);
            scope.spawn(move || {
                let comm = Comm::begin(3, first, rank);
                assert_eq!(wait(comm), ncclSuccess);
                let mut shrunk = Comm(null_mut());
                if rank != 1 {
                    let (mut list, none) = ([1], null_mut());
                    let list = list.as_mut_ptr();
                    // SAFETY: a list of one rank, and a place for the handle.
                    let result = unsafe { ncclCommShrink(comm.0, list, 1, &mut shrunk.0, none, 0) };
                    assert_eq!(
                        (result, wait(comm), wait(shrunk)),
                        (ncclInProgress, ncclSuccess, ncclSuccess)
                    );
                    assert_eq!((shrunk.nranks(), shrunk.rank()), (2, rank / 2));
                    shrunk.works();
                }
                if rank == 0 {
                    let mut id = ncclUniqueId { internal: [0; 128] };
                    // SAFETY: a place for the id.
                    ok(unsafe { ncclCommGetUniqueId(shrunk.0, &mut id) });
                    *second.lock().unwrap() = Some(id);
                }
                made.wait();
                // The rank that stayed out comes back as a new one, the last.
                let id = second.lock().unwrap().filter(|_| rank < 2);
                let id = id.as_ref().map_or(null(), |id| id as *const _);
                let number = if rank == 1 { 2 } else { -1 };
                let (mut grown, mut config) = (null_mut(), config(false));
                // SAFETY: an id or null, a place for the handle, and a whole configuration.
                let result =
                    unsafe { ncclCommGrow(shrunk.0, 3, id, number, &mut grown, &mut config) };
                let grown = Comm(grown);
                assert_eq!(
                    (result, wait(grown)),
                    (ncclInProgress, ncclSuccess),
                    "{}",
                    last_error()
                );
                assert_eq!((grown.nranks(), grown.rank()), (3, [0, 2, 1][rank as usize]));
                grown.works();
                for comm in [grown, shrunk, comm] {
                    comm.destroy();
                }
            });
        }
    });
}

#[test]
fn a_non_blocking_init_that_fails_is_told_with_the_ranks_that_did_not_come() {
    let id = id();
    std::thread::scope(|scope| {
        for rank in [1, 3] {
            scope.spawn(move || {
                limit(300);
                let comm = Comm::begin(4, id, rank);
                assert_eq!(wait(comm), ncclSystemError);
                let text = last_error();
                let named = text.contains("2 of 4 ranks did not come within 0.");
                assert!(named && text.contains(" s: ranks 0, 2; look whether"), "{text}");
                let mut count = 0;
                // SAFETY: a place for the number.
                assert_eq!(unsafe { ncclCommCount(comm.0, &mut count) }, ncclSystemError);
                assert_eq!(last_error(), text);
                assert_eq!(comm.abort(), ncclSuccess);
            });
        }
    });
}

#[test]
fn a_child_in_the_making_can_be_aborted_and_its_parent_goes_on() {
    let (id, aborted) = (id(), Barrier::new(2));
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let aborted = &aborted;
            scope.spawn(move || {
                let comm = Comm::begin(2, id, rank);
                assert_eq!(wait(comm), ncclSuccess);
                if rank == 0 {
                    let mut child = null_mut();
                    // SAFETY: a place for the handle.
                    let split = unsafe { ncclCommSplit(comm.0, 0, 0, &mut child, null_mut()) };
                    assert_eq!(split, ncclInProgress);
                    // Rank 1 does not come before it is gone.
                    assert_eq!(Comm(child).abort(), ncclSuccess);
                    assert_eq!(wait(comm), ncclSuccess);
                }
                aborted.wait();
                comm.works();
                comm.destroy();
            });
        }
    });
}

#[test]
fn non_blocking_communicators_of_one_thread_in_a_group() {
    let id = id();
    let mut comms = [Comm(null_mut()); 2];
    // SAFETY: places for the handles that live on, and whole configurations.
    unsafe {
        ok(ncclGroupStart());
        for (rank, comm) in comms.iter_mut().enumerate() {
            ok(ncclCommInitRankConfig(&mut comm.0, 2, id, rank as i32, &mut config(false)));
        }
        assert_eq!(ncclGroupEnd(), ncclInProgress);
    }
    comms.iter().for_each(|&comm| assert_eq!(wait(comm), ncclSuccess));
    std::thread::scope(|scope| {
        for comm in comms {
            scope.spawn(move || comm.works());
        }
    });
    comms.iter().for_each(|comm| comm.destroy());
}

#[test]
fn a_communicator_in_the_making_refuses_calls_and_can_be_aborted() {
    let comm = Comm::begin(2, id(), 0);
    let mut count = 0;
    // SAFETY: a place for the number.
    assert_eq!(unsafe { ncclCommCount(comm.0, &mut count) }, ncclInvalidUsage);
    assert!(last_error().contains("not ready"), "{}", last_error());
    // Rank 1 never comes.
    assert_eq!(comm.abort(), ncclSuccess);
}

/// How long the making of communicators that this thread begins may take; −1 for the default.
fn limit(ms: i64) {
    // SAFETY: any number may be passed.
    ok(unsafe { oxcclSetInitTimeout(if ms < 0 { -1 } else { ms * 1_000_000 }) });
}

#[test]
fn a_limit_of_the_thread_bounds_init_and_split_and_names_the_ranks_that_do_not_come() {
    let (start, id) = (Instant::now(), id());
    std::thread::scope(|scope| {
        for rank in [0, 2] {
            scope.spawn(move || {
                // The shorter one holds for both.
                limit(if rank == 0 { 300 } else { 3_600_000 });
                let mut comm = null_mut();
                // SAFETY: a place for the handle, and a whole configuration.
                let made =
                    unsafe { ncclCommInitRankConfig(&mut comm, 4, id, rank, &mut config(true)) };
                assert_eq!((made, comm), (ncclSystemError, null_mut()));
                let text = last_error();
                assert!(
                    text.contains("2 of 4 ranks did not come within 0.")
                        && text.contains(" s: ranks 1, 3; look whether"),
                    "{text}"
                );
            });
        }
    });
    ranks(2, |comm| {
        if comm.rank() == 0 {
            limit(300);
            let mut new = null_mut();
            // SAFETY: a place for the handle.
            let split = unsafe { ncclCommSplit(comm.0, 0, 0, &mut new, null_mut()) };
            assert_eq!(split, ncclSystemError);
            let text = last_error();
            assert!(text.contains("1 of 2 ranks did not come within 0.3 s: rank 1;"), "{text}");
            limit(-1);
        }
        // The parent is as it was.
        comm.works();
        comm.destroy();
    });
    assert!(start.elapsed() < 30 * SECOND, "that was OXCCL_INIT_TIMEOUT");
}

/// Ranks 1 and 2 split a communicator of three, all without waiting; rank 0 has no color, and ends
/// the parent before they have called.
fn split_without_rank_0(end: impl Fn(Comm, &AtomicU32) + Sync) {
    let (id, called, ending) = (id(), AtomicU32::new(0), Barrier::new(3));
    let split = |comm: Comm, color| {
        let mut child = std::ptr::dangling_mut();
        // SAFETY: a place for the handle.
        let made = unsafe { ncclCommSplit(comm.0, color, 0, &mut child, null_mut()) };
        assert_eq!(made, ncclInProgress);
        Comm(child)
    };
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (called, ending, end, split) = (&called, &ending, &end, &split);
            scope.spawn(move || {
                let comm = Comm::begin(3, id, rank);
                assert_eq!(wait(comm), ncclSuccess);
                if rank == 0 {
                    // It holds the meeting.
                    assert!(split(comm, -1).0.is_null());
                    ending.wait();
                    return end(comm, called);
                }
                ending.wait();
                (0..1000).for_each(|_| std::thread::yield_now());
                called.fetch_add(1, Ordering::Release);
                let child = split(comm, 0);
                assert_eq!(wait(child), ncclSuccess, "{}", last_error());
                child.works();
                child.destroy();
                comm.destroy();
            });
        }
    });
}

#[test]
fn a_parent_is_not_destroyed_before_the_others_have_split_and_an_abort_does_not_hinder_them() {
    split_without_rank_0(|comm, called| {
        comm.destroy();
        // From here on the process may end.
        assert_eq!(called.load(Ordering::Acquire), 2);
    });
    split_without_rank_0(|comm, _| assert_eq!(comm.abort(), ncclSuccess));
}

#[test]
fn suspended_communicators_take_no_operations_and_less_memory() {
    ranks(2, |comm| {
        let stat = |stat| {
            let mut value = 0;
            // SAFETY: a place for the number.
            ok(unsafe { ncclCommMemStats(comm.0, MaybeUninit::new(stat), &mut value) });
            value
        };
        use ncclCommMemStat_t::*;
        comm.works();
        // Several packets of a rank are put together in memory of the communicator.
        assert_eq!(comm.sum(100), Ok(3.0));
        let before = stat(ncclStatGpuMemSuspend);
        assert!(before > 0);
        assert_eq!(stat(ncclStatGpuMemTotal), before + stat(ncclStatGpuMemPersist));
        // SAFETY: any handle may be passed.
        unsafe {
            ok(ncclCommSuspend(comm.0, 1));
            assert_eq!(ncclCommSuspend(comm.0, 1), ncclInvalidUsage);
        }
        assert_eq!(stat(ncclStatGpuMemSuspended), 1);
        assert!(stat(ncclStatGpuMemSuspend) < before);
        assert_eq!(comm.sum(10), Err(ncclInvalidUsage));
        // SAFETY: any handle may be passed.
        unsafe {
            ok(ncclCommResume(comm.0));
            assert_eq!(ncclCommResume(comm.0), ncclInvalidUsage);
        }
        assert_eq!(stat(ncclStatGpuMemSuspended), 0);
        comm.works();
        comm.destroy();
    });
}
