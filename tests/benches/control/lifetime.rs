//! Init, split and destroy of 2 ranks: from before the call to its return on the slower rank.

use crate::{median_and_min, ok};
use oxccl::nccl::children::ncclCommSplit;
use oxccl::nccl::collectives::{ncclAllReduce, ncclBroadcast};
use oxccl::nccl::comm::{ncclCommDestroy, ncclCommInitRank, ncclGetUniqueId};
use oxccl::nccl::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use oxccl::oxccl::launch::oxcclCommInitEnv;
use oxccl::oxccl::stream::{oxcclStreamCreate, oxcclStreamSynchronize};
use oxccl::oxccl::types::oxcclStream_t;
use oxccl_tests::job::Job;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const REPETITIONS: usize = 50;
/// Fresh pairs of processes, for what only the first communicator of a process costs.
const FRESH: usize = 20;
const NO_ID: ncclUniqueId = ncclUniqueId { internal: [0; 128] };

/// Milliseconds of each repetition.
#[derive(Default)]
struct Times {
    init: Vec<f64>,
    split: Vec<f64>,
    destroy: Vec<f64>,
}

/// A rank of the communicator over which ranks agree when to start and how long it took.
struct Outer {
    comm: ncclComm_t,
    rank: i32,
    /// Its own: on one stream the ranks of a process would wait for each other.
    stream: oxcclStream_t,
}

impl Outer {
    fn new(comm: ncclComm_t, rank: i32) -> Self {
        let mut stream = null_mut();
        // SAFETY: the place is writable.
        ok(unsafe { oxcclStreamCreate(&mut stream) });
        Self { comm, rank, stream }
    }

    fn synchronize(&self) {
        // SAFETY: the handle is alive.
        ok(unsafe { oxcclStreamSynchronize(self.stream, -1) });
    }

    /// The largest of the ranks' values; none returns before all have come.
    fn max(&self, value: f64) -> f64 {
        let (mut value, dtype) = (value, MaybeUninit::new(ncclDataType_t::ncclFloat64));
        let (place, op) = ((&raw mut value).cast(), MaybeUninit::new(ncclRedOp_t::ncclMax));
        // SAFETY: the value lives until the stream is synchronised.
        ok(unsafe { ncclAllReduce(place, place, 1, dtype, op, self.comm, self.stream) });
        self.synchronize();
        value
    }

    /// A new id, the same on all ranks.
    fn id(&self) -> ncclUniqueId {
        let mut id = NO_ID;
        if self.rank == 0 {
            // SAFETY: the id is writable.
            ok(unsafe { ncclGetUniqueId(&mut id) });
        }
        let (place, dtype) = ((&raw mut id).cast(), MaybeUninit::new(ncclDataType_t::ncclUint8));
        // SAFETY: the id lives until the stream is synchronised.
        ok(unsafe { ncclBroadcast(place, place, 128, dtype, 0, self.comm, self.stream) });
        self.synchronize();
        id
    }

    /// Milliseconds that a call took on the slower rank.
    fn time(&self, call: impl FnOnce()) -> f64 {
        self.max(0.0);
        let start = Instant::now();
        call();
        self.max(start.elapsed().as_secs_f64() * 1e3)
    }

    fn measure(&self) -> Times {
        let mut times = Times::default();
        for _ in 0..REPETITIONS {
            let id = self.id();
            let (mut comm, mut child) = (null_mut(), null_mut());
            // SAFETY: the places are writable and the handles alive.
            unsafe {
                let init = || ok(ncclCommInitRank(&mut comm, 2, id, self.rank));
                times.init.push(self.time(init));
                let split = || ok(ncclCommSplit(comm, 0, self.rank, &mut child, null_mut()));
                times.split.push(self.time(split));
                times.destroy.push(self.time(|| ok(ncclCommDestroy(child))));
                times.destroy.push(self.time(|| ok(ncclCommDestroy(comm))));
            }
        }
        times
    }
}

/// A rank in a process of its own: `measure` repeats and prints its times, anything else is the
/// time (ns since 1970) at which to make the first communicator.
pub(crate) fn rank(what: &str) {
    let begin = what.parse::<u128>();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    while begin.as_ref().is_ok_and(|&begin| now() < begin) {
        std::hint::spin_loop();
    }
    let (start, mut comm) = (Instant::now(), null_mut());
    // SAFETY: the place is writable.
    ok(unsafe { oxcclCommInitEnv(&mut comm, null()) });
    let first = start.elapsed().as_secs_f64() * 1e3;
    let rank = std::env::var("OXCCL_RANK").map_or(0, |rank| rank.parse().unwrap_or(0));
    if begin.is_ok() {
        println!("first {first}");
    } else {
        let times = Outer::new(comm, rank).measure();
        for (name, values) in
            [("init", times.init), ("split", times.split), ("destroy", times.destroy)]
        {
            values.iter().for_each(|value| println!("{name} {value}"));
        }
    }
    // SAFETY: the handle is alive.
    ok(unsafe { ncclCommDestroy(comm) });
}

/// What each of 2 ranks in processes of their own printed.
fn processes(what: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("the path of this program");
    let job = Job::start(&program, 2, Duration::from_secs(60), |_, command| {
        command.args(["rank", what]);
    });
    let ended = job.wait();
    ended.iter().for_each(|e| assert_eq!(e.status, Some(0), "{}", e.output));
    ended.into_iter().map(|e| e.output).collect()
}

fn printed(output: &str, name: &str) -> Vec<f64> {
    let of_name = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    output.lines().filter_map(of_name).collect()
}

fn threads() -> Times {
    let mut id = NO_ID;
    // SAFETY: the id is writable.
    ok(unsafe { ncclGetUniqueId(&mut id) });
    let run = |rank: i32| {
        let mut comm = null_mut();
        // SAFETY: the place is writable.
        ok(unsafe { ncclCommInitRank(&mut comm, 2, id, rank) });
        let times = Outer::new(comm, rank).measure();
        // SAFETY: the handle is alive.
        ok(unsafe { ncclCommDestroy(comm) });
        times
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        let times = run(0);
        other.join().expect("the other rank");
        times
    })
}

fn row(what: &str, limit: &str, values: Vec<f64>) {
    let (median, min) = median_and_min(values);
    println!("| {what} | {limit} | {median:.3} | {min:.3} |");
}

/// Prints the table.
pub(crate) fn table() {
    println!(
        "\n2 ranks, ms on the slower rank\n\n| what | limit | median | min |\n|---|---|---|---|"
    );
    let mut first = Vec::new();
    for _ in 0..FRESH {
        // Long enough for both processes to have started.
        let begin = SystemTime::now() + Duration::from_millis(100);
        let begin = begin.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let slower = processes(&begin.to_string())
            .iter()
            .flat_map(|o| printed(o, "first"))
            .fold(0.0, f64::max);
        first.push(slower);
    }
    row("first init of two processes", "5", first);
    let output = &processes("measure")[0];
    row("init, processes", "5", printed(output, "init"));
    row("split, processes", "2", printed(output, "split"));
    row("destroy, processes", "1", printed(output, "destroy"));
    let times = threads();
    row("init, threads", "5", times.init);
    row("split, threads", "2", times.split);
    row("destroy, threads", "1", times.destroy);
}
