//! A rank of the multi-process tests, `oxccl-test-rank` with one of
//! - `sequence SEED OPERATIONS MAX_BYTES`,
//! - `deterministic SEED THREADS` for reductions compared with the fold in rank order,
//! - `mismatch BASE OURS THEIRS` for two numbers of differing calls,
//! - `windows SEED mapped|plain`,
//! - `idle` for no call,
//! - `threads` to print the names of this process's threads,
//! - `late` and `once` for one all-reduce,
//! - `abandon within|after` for one that an abort ends or follows,
//! - `unmade` for a communicator that is aborted while it is made,
//! - `beside failure|abort` for those of a thread that another one aborts,
//! - `crowd THREADS` for one of so many ranks in each process,
//! - `with-child` for some of a communicator and its child in turn,
//! - `hosts THREADS` for one among as many hosts in a process,
//! - `again` for two communicators of two ranks in this process, one after the other,
//! - `split-with-dead` and `survive FILE` beside a rank that is killed,
//! - `repaint abort|timeout|shrink between|within` beside a rank that is stopped,
//! - `stuck HOW VICTIM CALLS ROOT` for calls that do not end,
//! - `registered HOW CALLS` for all-reduces on registered buffers,
//! - `attended` to all-reduce until the input of rank 0 ends,
//! - `fork` to leave a child behind,
//! - `variables` to print the values of all variables,
//! - `fastest BYTES CALLS` to print the least time of so many all-reduces,
//! - `receives CALLS` to count their system calls,
//! - `loop BYTES` to all-reduce until something fails.

use oxccl::nccl::comm::ncclCommGetAsyncError;
use oxccl::nccl::config::ncclConfig_t;
use oxccl::nccl::lifetime::ncclCommAbort;
use oxccl::nccl::types::ncclResult_t;
use oxccl::oxccl::launch::oxcclCommInitEnv;
use oxccl_plan::{Carrier, Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::bootstrap::encryption::{self, Key};
use oxccl_runtime::bootstrap::{self, launch};
use oxccl_runtime::comm::{Communicator, Holder, Member, Options, create};
use oxccl_runtime::config::{Config, Setting};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::host::arena;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::op::Call;
use oxccl_runtime::{Code, Error, Result, group};
use oxccl_tests::endpoint;
use oxccl_tests::sequence::{Player, Shape, play};
use oxccl_tests::world::on_threads;
use oxccl_tests::{deterministic, mismatch, registered, stuck, windows};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

fn join() -> Result<Arc<Communicator>> {
    let launch = launch::detect()?.expect("started by a test");
    let id = launch::unique_id(&launch, Options::default().init_limit())?;
    let device = Device::Host(launch.local_rank as i32);
    let config = Config::get();
    let options = Options::default().with_variables(config);
    let options = Options { net_name: config.net.clone(), ..options };
    let member = Member { id, rank: launch.rank, nranks: launch.nranks, device, options };
    Ok(Arc::new(create(&member)?))
}

fn sequence(arguments: &[String]) -> Result<()> {
    let number = |i: usize| arguments[i].parse::<u64>().expect("a number");
    let shape = Shape { seed: number(1), operations: number(2) as u32, max_bytes: number(3) };
    let comm = join()?;
    let player = Player { comm: comm.clone(), stream: Stream::new() };
    play(&[player], shape)?;
    let carriers = endpoint(&comm).state().carriers;
    let any = |carrier: Carrier| carriers[carrier as usize] > 0;
    println!("mapped {} pulled {}", any(Carrier::InPlace), any(Carrier::RemoteRead));
    comm.destroy()
}

/// The ranks of this process, each in a thread of its own: a job of one process has `threads`
/// ranks, one of several processes one rank in each.
fn compare_bits(arguments: &[String]) -> Result<()> {
    let seed: u64 = arguments[1].parse().expect("a number");
    let threads: u32 = arguments[2].parse().expect("a number");
    let averages = arguments[0] == "averages";
    let launch = launch::detect()?.expect("started by a test");
    let id = launch::unique_id(&launch, Options::default().init_limit())?;
    let nranks = launch.nranks.max(threads);
    std::thread::scope(|scope| {
        let ranks = (0..threads).map(|thread| {
            let options = Options::default();
            let (rank, device) = (launch.rank + thread, Device::Host(thread as i32));
            let member = Member { id: id.clone(), rank, nranks, device, options };
            scope.spawn(move || -> Result<()> {
                let player = Player { comm: Arc::new(create(&member)?), stream: Stream::new() };
                println!(
                    "{}",
                    match averages {
                        true => deterministic::average_largest(&player)?,
                        false => deterministic::reduce_all(&player, seed)?,
                    }
                );
                player.comm.destroy()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
    })
}

/// Rank 0 makes one call, the others make another one.
fn differ(arguments: &[String]) -> Result<()> {
    let number = |i: usize| arguments[i].parse::<usize>().expect("a number");
    let comm = join()?;
    let cases = mismatch::cases(number(1) as u64);
    let case = cases[if comm.rank() == 0 { number(2) } else { number(3) }];
    let error = mismatch::outcome(&comm, case);
    assert!(mismatch::names_both(&error), "{error}");
    // What the others have to hear stays to be read when this process ends.
    comm.destroy()
}

/// One-sided operations between processes.
fn put(arguments: &[String]) -> Result<()> {
    let comm = join()?;
    let (seed, mapped) = (arguments[1].parse().expect("a number"), arguments[2] == "mapped");
    windows::play(&Player { comm: comm.clone(), stream: Stream::new() }, seed, 300, mapped)?;
    register_again_and_again(&comm)?;
    comm.destroy()
}

/// The same memory as a window and as a buffer, a thousand times: that takes no address space.
fn register_again_and_again(comm: &Communicator) -> Result<()> {
    const BYTES: usize = 1 << 20;
    let memory = arena::allocate(BYTES)?;
    let space = || -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("the size of this process");
        pages.split(' ').next().and_then(|n| n.parse().ok()).expect("a number of pages")
    };
    let before = space();
    for _ in 0..1000 {
        let window = comm.register_window(memory, BYTES)?;
        let buffer = comm.register(memory.addr(), BYTES)?;
        assert!(comm.deregister_window(window) && comm.deregister(buffer)?);
    }
    // One copy of the window would be 256 pages.
    assert!(space() < before + 256, "{before} pages before, {} after", space());
    arena::free(memory)
}

/// Prints a line, also when nobody reads it any more.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Aborts beside a peer that is stopped or dead, or a plugin that does not return. That takes a
/// second at most: this is what the interface promises and no matter of speed. The bound leaves
/// some time for a busy machine, on which a thread waits for its turn.
fn abort(comm: &Communicator) -> Result<()> {
    let start = Instant::now();
    let ended = comm.abort();
    assert!(start.elapsed() < Duration::from_millis(1300), "abort took {:?}", start.elapsed());
    ended
}

/// All-reduces in place on mapped memory until it stops moving, because a rank is stopped; then
/// ends that, repaints the buffers and watches them while the stopped one goes on. `how`: abort;
/// timeout, of the operation; shrink, without the stopped rank 1. That one stops by itself between
/// two operations, or else is stopped wherever it is.
fn repaint(how: &str, stops: bool) -> Result<()> {
    const BYTES: usize = 4 << 20;
    let comm = join()?;
    let stream = Stream::new();
    let spec = Spec::new(Collective::AllReduce, comm.nranks(), 0);
    let (input, output) = (arena::allocate(BYTES)?, arena::allocate(BYTES)?);
    let (dtype, op) = (DataType::Uint8, ReduceOp::Sum);
    let call = Call { spec, input, output, count: BYTES as u64, dtype, op, scale: None };
    let limit = Some(Duration::from_millis(500));
    comm.set_timeout(limit.filter(|_| how == "timeout"));
    for round in 0.. {
        let called = group::collective(&comm, &call, &stream);
        let wait = limit.filter(|_| how != "timeout");
        let done = called.and_then(|()| stream.synchronize(wait));
        if round == 20 {
            assert!(
                endpoint(&comm).state().carriers[Carrier::InPlace as usize] > 0,
                "the buffers are not used in place"
            );
            println!("running");
            if stops && comm.rank() == 1 {
                use rustix::process::{Signal, getpid, kill_process};
                kill_process(getpid(), Signal::STOP).expect("it stops");
            }
        }
        match done {
            Ok(true) => {}
            Ok(false) => break,
            // The limit is over, or another one was first.
            Err(error) if error.code() == Code::RemoteError => break,
            Err(error) => return Err(error),
        }
    }
    let start = Instant::now();
    let ended = match how {
        "shrink" if comm.rank() != 1 => {
            let holder = Holder::new(comm.device(), Options::default());
            let shrunk = holder.make(&comm.shrink(vec![1], true)).map(drop);
            // The survivors' communicator goes on; it is not what is tested here.
            let _ = holder.abort();
            shrunk
        }
        // The operation has ended: nothing is to be done.
        "timeout" => Ok(()),
        _ => abort(&comm),
    };
    assert!(start.elapsed() < Duration::from_secs(5), "{how} took {:?}", start.elapsed());
    if let Err(error) = &ended {
        assert!(error.to_string().contains("may still write"), "{error}");
    }
    if ended.is_err() || !endpoint(&comm).rank.writers().is_empty() {
        // It was stopped in the middle of writing.
        say("exposed");
        return Ok(());
    }
    for buffer in [input, output] {
        // SAFETY: both have so many bytes, and nobody uses them any more.
        unsafe { buffer.write_bytes(0xa5, BYTES) };
    }
    say("repainted");
    while start.elapsed() < Duration::from_secs(3) {
        for buffer in [input, output] {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(buffer, BYTES) };
            assert!(bytes.iter().all(|&b| b == 0xa5), "a peer wrote after the {how}");
        }
    }
    Ok(())
}

/// An all-reduce and an abort, beside a plugin that does not return: `within` the all-reduce, which
/// does not get on then, or only after it.
fn abandon(comm: &Arc<Communicator>, within: bool) -> Result<()> {
    let stream = Stream::new();
    let memory: &mut [u64; 2] = Box::leak(Box::default());
    let spec = Spec::new(Collective::AllReduce, comm.nranks(), 0);
    let (from, to) = ((&raw const memory[0]).cast(), (&raw mut memory[1]).cast());
    let (dtype, op) = (DataType::Uint64, ReduceOp::Sum);
    let call = Call { spec, input: from, output: to, count: 1, dtype, op, scale: None };
    group::collective(comm, &call, &stream)?;
    match stream.synchronize(within.then_some(Duration::from_millis(300))) {
        Ok(done) => assert_eq!(done, !within, "the plugin has returned"),
        // The other rank was first.
        Err(error) => assert_eq!(error.code(), Code::RemoteError, "{error}"),
    }
    abort(comm)
}

/// Begins to make a communicator without waiting for it, which a plugin that does not return holds
/// up on some rank, and aborts it.
fn unmade() -> Result<()> {
    let config = ncclConfig_t { blocking: 0, ..ncclConfig_t::default() };
    let (mut comm, start) = (std::ptr::null_mut(), Instant::now());
    // SAFETY: a place for the handle, and a whole configuration.
    let begun = unsafe { oxcclCommInitEnv(&mut comm, &config) };
    assert_eq!(begun, ncclResult_t::ncclInProgress);
    let mut state = begun;
    while state == begun && start.elapsed() < Duration::from_millis(300) {
        std::thread::yield_now();
        // SAFETY: the handle that was made, and a place for its state.
        unsafe { ncclCommGetAsyncError(comm, &mut state) };
    }
    assert_ne!(state, ncclResult_t::ncclSuccess, "the plugin has returned");
    let start = Instant::now();
    // SAFETY: as above; nobody else uses the handle.
    let ended = unsafe { ncclCommAbort(comm) };
    assert!(start.elapsed() < Duration::from_millis(1300), "abort took {:?}", start.elapsed());
    assert_eq!(ended, ncclResult_t::ncclSuccess);
    Ok(())
}

/// Prints the names of the threads that this process has once a communicator was used.
fn threads() -> Result<()> {
    let comm = join()?;
    reduce(&comm)?;
    for thread in std::fs::read_dir("/proc/self/task").expect("a list") {
        let name = std::fs::read_to_string(thread.expect("an entry").path().join("comm"));
        // One may have ended since.
        println!("thread {}", name.unwrap_or_default().trim_end());
    }
    comm.destroy()
}

/// All-reduces in a thread, which a profiler may keep for ever, beside an abort: after 300 ms, or
/// once the communicator has failed. This thread then waits for the stream of the other one.
fn beside(comm: &Arc<Communicator>, how: &str) -> Result<()> {
    let (calling, stream) = (comm.clone(), Stream::new());
    let on = stream.clone();
    std::thread::spawn(move || {
        let input = vec![1u8; 8];
        // Leaked, as a peer may still write there.
        let output = vec![0u8; 8].leak();
        while reduce_bytes(&calling, &on, &input, output).is_ok() {}
    });
    if how == "abort" {
        std::thread::sleep(Duration::from_millis(300));
        abort(comm)?;
        // The error has been told to the other thread, if that has come back.
        return stream.synchronize(Some(Duration::from_secs(20))).map_or(Ok(()), |ended| {
            assert!(ended, "the stream does not end after an abort");
            Ok(())
        });
    }
    let failure = loop {
        match comm.failure() {
            Some(error) => break error,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let ended = stream.synchronize(Some(Duration::from_secs(20)));
    assert!(ended.is_err() || ended.is_ok_and(|ended| ended), "the stream does not end");
    abort(comm)?;
    Err(failure)
}

/// One all-reduce of rank numbers, and the end.
fn once(comm: &Arc<Communicator>) -> Result<()> {
    reduce(comm)?;
    comm.destroy()
}

fn reduce(comm: &Arc<Communicator>) -> Result<()> {
    let (stream, n) = (Stream::new(), u64::from(comm.nranks()));
    let (input, mut output) = (u64::from(comm.rank()), 0u64);
    let spec = Spec::new(Collective::AllReduce, comm.nranks(), 0);
    let (from, to) = ((&raw const input).cast(), (&raw mut output).cast());
    let (dtype, op) = (DataType::Uint64, ReduceOp::Sum);
    let call = Call { spec, input: from, output: to, count: 1, dtype, op, scale: None };
    group::collective(comm, &call, &stream)?;
    stream.synchronize(None)?;
    assert_eq!(output, n * (n - 1) / 2);
    Ok(())
}

/// All-reduces among as many hosts, each a thread of this process, which prints what a rank takes
/// then.
fn hosts(threads: u32) -> Result<()> {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("it is allowed");
    let (before, all) = (descriptors(), Barrier::new(threads as usize));
    let counted = on_threads(threads, &Options::default(), |Player { comm, .. }| {
        reduce(&comm)?;
        all.wait();
        let open = if comm.rank() == 0 { descriptors() } else { 0 };
        let counted = (open, comm.memory().releasable + comm.memory().persistent);
        all.wait();
        comm.destroy()?;
        Ok(counted)
    });
    let counted = counted.into_iter().collect::<Result<Vec<_>>>()?;
    let descriptors = counted[0].0 - before;
    let bytes = counted.iter().map(|(_, bytes)| bytes).max().expect("ranks");
    println!("descriptors {} bytes {bytes}", descriptors.div_ceil(threads as usize));
    Ok(())
}

/// All-reduces of two ranks in this process, and of two others once the communicator has ended.
/// Prints the plugins that are mapped then.
fn again() -> Result<()> {
    for _ in 0..2 {
        let ended = on_threads(2, &Options::default(), |Player { comm, .. }| once(&comm));
        ended.into_iter().collect::<Result<()>>()?;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let plugins = maps.lines().filter(|line| line.contains("/libnccl-"));
    plugins.for_each(|line| println!("mapped {line}"));
    Ok(())
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list").count()
}

/// Ranks in threads of this process, as many in each; each all-reduces once.
fn crowd(threads: u32) -> Result<()> {
    let launch = launch::detect()?.expect("started by a test");
    let id = launch::unique_id(&launch, Options::default().init_limit())?;
    std::thread::scope(|scope| {
        let rank = |thread| {
            let (rank, nranks) = (launch.rank * threads + thread, launch.nranks * threads);
            let (device, options) = (Device::Host(thread as i32), Options::default());
            let member = Member { id: id.clone(), rank, nranks, device, options };
            scope.spawn(move || once(&Arc::new(create(&member)?)))
        };
        let ranks: Vec<_> = (0..threads).map(rank).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
    })
}

/// All-reduces of a communicator and of its child in turn, which ends first.
fn with_child() -> Result<()> {
    let comm = join()?;
    let holder = Holder::new(comm.device(), Options::default());
    holder.make(&comm.split(0, 0))?;
    let child = holder.ready()?;
    for _ in 0..3 {
        reduce(&comm)?;
        reduce(child)?;
    }
    child.destroy()?;
    once(&comm)
}

/// All-reduces until a rank dies; then a split of all, which cannot be, ends at once.
fn split_with_dead() -> Result<()> {
    let comm = join()?;
    let error = forever(&comm, 8).expect_err("a rank is killed");
    let victim = error.site().map(|site| site.peer);
    let (holder, start) = (Holder::new(comm.device(), Options::default()), Instant::now());
    let error = holder.make(&comm.split(0, 0)).expect_err("a rank is dead");
    let named = (error.code(), error.site().map(|site| site.peer));
    assert_eq!(named, (Code::RemoteError, victim), "{error}");
    // The limit of initialisation is a minute.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    abort(&comm)
}

/// All-reduces until a rank dies, goes on without it, and with a new one in its place: that finds
/// the id in a file.
fn survive(id_file: &str) -> Result<()> {
    let comm = join()?;
    let error = forever(&comm, 65536).expect_err("a rank is killed");
    let victim = error.site().and_then(|site| u32::try_from(site.peer).ok()).expect("a rank");
    let make = |origin| -> Result<Arc<Communicator>> {
        let holder = Holder::new(comm.device(), Options::default());
        holder.make(&origin)?;
        holder.ready().cloned()
    };
    let shrunk = make(comm.shrink(vec![victim], true))?;
    assert_eq!((comm.nranks(), shrunk.nranks()), (4, 3));
    let id = (shrunk.rank() == 1).then(bootstrap::new_unique_id).transpose()?;
    if let Some(id) = &id {
        launch::write_private_file(Path::new(id_file), launch::hex(&id.encode()).as_bytes())?;
        println!("killed {victim}");
    }
    let grown = make(shrunk.grow(4, id))?;
    once(&grown)?;
    once(&shrunk)?;
    abort(&comm)
}

/// All-reduces bytes, and waits for the end of that.
fn reduce_bytes(
    comm: &Arc<Communicator>,
    stream: &Arc<Stream>,
    input: &[u8],
    output: &mut [u8],
) -> Result<()> {
    let spec = Spec::new(Collective::AllReduce, comm.nranks(), 0);
    let (from, to, count) = (input.as_ptr(), output.as_mut_ptr(), input.len() as u64);
    let (dtype, op) = (DataType::Uint8, ReduceOp::Sum);
    let call = Call { spec, input: from, output: to, count, dtype, op, scale: None };
    group::collective(comm, &call, stream)?;
    stream.synchronize(None).map(drop)
}

/// Prints the time of the fastest of so many all-reduces, in ms.
fn fastest(bytes: usize, calls: u32) -> Result<()> {
    let (comm, stream) = (join()?, Stream::new());
    let (input, mut output) = (vec![1u8; bytes], vec![0u8; bytes]);
    let mut fastest = Duration::MAX;
    for _ in 0..calls {
        let start = Instant::now();
        reduce_bytes(&comm, &stream, &input, &mut output)?;
        fastest = fastest.min(start.elapsed());
    }
    println!("fastest {}", fastest.as_millis());
    comm.destroy()
}

/// Prints `running` after the first operations; ends with the error.
fn forever(comm: &Arc<Communicator>, bytes: usize) -> Result<()> {
    let stream = Stream::new();
    let (input, mut output) = (vec![1u8; bytes], vec![0u8; bytes]);
    for round in 0u64.. {
        reduce_bytes(comm, &stream, &input, &mut output)?;
        if round == 10 {
            println!("running");
        }
    }
    Ok(())
}

/// All-reduces so many times between hosts, and prints how many messages came, and by how many
/// receives.
fn count_receives(calls: u32) -> Result<()> {
    let comm = join()?;
    let counted = || {
        let state = endpoint(&comm).state();
        let messages: u64 = state.edges.iter().map(|edge| edge.messages().1).sum();
        (messages, oxccl_net::tcp::receives())
    };
    // The first one connects the ranks.
    reduce(&comm)?;
    let before = counted();
    (0..calls).try_for_each(|_| reduce(&comm))?;
    let after = counted();
    println!("messages {} receives {}", after.0 - before.0, after.1 - before.1);
    comm.destroy()
}

/// All-reduces until the input of rank 0 ends. Prints `running` after the first operation.
fn attended() -> Result<()> {
    let (comm, stream) = (join()?, Stream::new());
    let over = Arc::new(AtomicBool::new(false));
    if comm.rank() == 0 {
        let over = over.clone();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            over.store(true, Ordering::Release);
        });
    }
    let (mut output, mut calls) = (0u64, 0u64);
    while output == 0 {
        let input = u64::from(over.load(Ordering::Acquire));
        let spec = Spec::new(Collective::AllReduce, comm.nranks(), 0);
        let (from, to) = ((&raw const input).cast(), (&raw mut output).cast());
        let (dtype, op) = (DataType::Uint64, ReduceOp::Sum);
        let call = Call { spec, input: from, output: to, count: 1, dtype, op, scale: None };
        group::collective(&comm, &call, &stream)?;
        stream.synchronize(None)?;
        if calls == 0 {
            println!("running");
        }
        calls += 1;
    }
    println!("calls {calls}");
    comm.destroy()
}

/// Ends and leaves a forked child behind, which prints `running` and ends with its input.
fn leave_a_child() -> Result<()> {
    let comm = join()?;
    // SAFETY: the child makes system calls only.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: as above, with memory of its own.
        unsafe {
            libc::write(1, b"running\n".as_ptr().cast(), 8);
            while libc::read(0, [0u8; 8].as_mut_ptr().cast(), 8) > 0 {}
            libc::_exit(0)
        }
    }
    comm.destroy()
}

/// Prints the values of all variables and where they come from, and the warnings.
fn variables() -> Result<()> {
    let report = &Config::get().report;
    for Setting { variable, value, origin, .. } in &report.settings {
        println!("{}={value} ({origin})", variable.name);
    }
    report.warnings.iter().for_each(|warning| println!("{warning}"));
    Ok(())
}

/// The variable with the key of encrypted connections.
const KEY: &str = "OXCCL_TEST_KEY";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let key = std::env::var(KEY).ok().map(|text| Key::new(text.as_bytes()));
    encryption::set_key(key);
    let outcome = match arguments.first().map(String::as_str) {
        Some("sequence") => sequence(&arguments),
        Some("deterministic" | "averages") => compare_bits(&arguments),
        Some("mismatch") => differ(&arguments),
        Some("windows") => put(&arguments),
        Some("repaint") => repaint(&arguments[1], arguments[2] == "between"),
        Some("idle") => join().and_then(|comm| comm.destroy()),
        Some("threads") => threads(),
        Some("unmade") => unmade(),
        Some("once") => join().and_then(|comm| once(&comm)),
        Some("abandon") => join().and_then(|comm| abandon(&comm, arguments[1] == "within")),
        Some("beside") => join().and_then(|comm| beside(&comm, &arguments[1])),
        Some("late") => join().and_then(|comm| {
            // The others begin to suspect something after a second.
            if comm.rank() == 2 {
                std::thread::sleep(Duration::from_millis(1500));
            }
            once(&comm)
        }),
        Some("crowd") => crowd(arguments[1].parse().expect("a number")),
        Some("again") => again(),
        Some("with-child") => with_child(),
        Some("hosts") => hosts(arguments[1].parse().expect("a number")),
        Some("split-with-dead") => split_with_dead(),
        Some("survive") => survive(&arguments[1]),
        Some("stuck") => {
            let number = |i: usize| arguments[i].parse::<u32>().expect("a number");
            join().and_then(|comm| {
                stuck::play(&comm, &arguments[1], number(2), (number(3), number(4)))
            })
        }
        Some("fastest") => {
            let number = |i: usize| arguments[i].parse::<u32>().expect("a number");
            fastest(number(1) as usize, number(2))
        }
        Some("registered") => {
            let rounds = arguments[2].parse().expect("a number");
            join().and_then(|comm| registered::play(&comm, &arguments[1], rounds))
        }
        Some("fork") => leave_a_child(),
        Some("attended") => attended(),
        Some("variables") => variables(),
        Some("receives") => count_receives(arguments[1].parse().expect("a number")),
        Some("loop") => {
            let bytes = arguments[1].parse().expect("a number");
            join().and_then(|comm| forever(&comm, bytes))
        }
        other => panic!("unknown test {other:?}"),
    };
    if let Err(error) = outcome {
        let peer = error.site().map_or(-1, |site| site.peer);
        println!("code {} peer {peer}: {error}", Error::code(&error) as i32);
        std::process::exit(3);
    }
}
