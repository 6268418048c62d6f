//! Communicators on GPUs, on as many ranks as there are GPUs.

extern crate oxccl_rs as oxccl;

mod common;

use common::random;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, result, sys};
use oxccl::cuda::{Comm, Window, group};
use oxccl::{CallOptions, Code, CtaPolicy, Id, Parts, ReduceOp, Shrink, Signals};
use oxccl_tests::missing;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Returns the number of GPUs; says so and returns none where a test has to be skipped.
fn gpus() -> usize {
    // SAFETY: the library is only looked for.
    let count = match unsafe { sys::is_culib_present() } {
        true => result::init().and_then(|()| CudaContext::device_count()).unwrap_or(0),
        false => 0,
    };
    if count == 0 {
        missing("gpu", "there is no GPU, or no driver");
    }
    count as usize
}

/// Runs a function as a rank on each GPU, for one test after the other: calls of CUDA that wait for
/// all work of a GPU would wait there for kernels of another test, and the other way round on the
/// next GPU.
fn on_gpus(run: impl Fn(&Comm, &Arc<CudaStream>) -> Outcome + Sync) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (count, run) = (gpus(), &run);
    if count == 0 {
        return;
    }
    let id = Id::new().expect("an id");
    let rank = |rank: usize| -> Outcome {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let comm = Comm::from_rank(&stream, rank, count, id)?;
        run(&comm, &stream)?;
        Ok(comm.close()?)
    };
    let rank = &rank;
    std::thread::scope(|threads| {
        let ranks: Vec<_> = (0..count).map(|r| threads.spawn(move || rank(r))).collect();
        for rank in ranks {
            rank.join().expect("no panic").expect("no error");
        }
    });
}

#[test]
fn collectives_on_slices_of_cudarc() {
    on_gpus(|comm, stream| {
        let (rank, size) = (comm.rank(), comm.size());
        let (sum, last) = ((size * (size + 1) / 2) as f32, size - 1);
        let mine = stream.clone_htod(&[rank as f32 + 1.0; 1000])?;
        let mut out = stream.alloc_zeros::<f32>(1000)?;
        comm.all_reduce(&mine, &mut out, ReduceOp::Sum)?;
        assert_eq!(stream.clone_dtoh(&out)?, [sum; 1000]);
        comm.broadcast(&mut out, 0)?;
        comm.all_reduce_in_place(&mut out, &comm.multiplied_sum(0.5)?)?;
        assert_eq!(stream.clone_dtoh(&out)?, [sum * size as f32 / 2.0; 1000]);
        comm.reduce(&mine, Some(&mut out), ReduceOp::Max, last)?;
        if rank == last {
            assert_eq!(stream.clone_dtoh(&out)?, [size as f32; 1000]);
        }
        let mut all = stream.alloc_zeros::<f32>(1000 * size)?;
        comm.all_gather(&mine, &mut all)?;
        let gathered: Vec<f32> = (0..size).flat_map(|r| [r as f32 + 1.0; 1000]).collect();
        assert_eq!(stream.clone_dtoh(&all)?, gathered);
        comm.reduce_scatter(&all, &mut out, ReduceOp::Sum)?;
        assert_eq!(stream.clone_dtoh(&out)?, [(size * (rank + 1)) as f32; 1000]);
        let mut swapped = stream.alloc_zeros::<f32>(1000 * size)?;
        comm.all_to_all(&all, &mut swapped)?;
        assert_eq!(stream.clone_dtoh(&swapped)?, vec![rank as f32 + 1.0; 1000 * size]);
        comm.gather(&mine, Some(&mut swapped), 0)?;
        comm.scatter(Some(&swapped), &mut out, 0)?;
        assert_eq!(stream.clone_dtoh(&out)?, [rank as f32 + 1.0; 1000]);
        let error = comm.all_gather(&mine, &mut out).err().map(|error| error.code());
        assert_eq!(error, (size > 1).then_some(Code::InvalidArgument));
        Ok(())
    });
}

#[test]
fn ranks_exchange_data_in_groups_and_communicators_have_children() {
    on_gpus(|comm, stream| {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let mine = stream.clone_htod(&[rank as u64; 10])?;
        let mut theirs: CudaSlice<u64> = stream.alloc_zeros(10)?;
        group(|g| {
            comm.send_on(g, &mine, next)?;
            comm.recv_on(g, &mut theirs, before)
        })?;
        assert_eq!(stream.clone_dtoh(&theirs)?, [before as u64; 10]);
        let alone = comm.split(Some(rank), 0)?.expect("a part of it");
        alone.all_reduce_in_place(&mut theirs, ReduceOp::Sum)?;
        assert_eq!((alone.rank(), alone.size()), (0, 1));
        assert_eq!(stream.clone_dtoh(&theirs)?, [before as u64; 10]);
        if size > 1 && rank > 0 {
            let rest = comm.shrink(&[0], Shrink::Idle)?;
            assert_eq!(rest.size(), size - 1);
        }
        assert!(comm.async_error().is_none());
        Ok(())
    });
}

#[test]
fn calls_have_options_and_are_captured_and_memory_is_registered() {
    on_gpus(|comm, stream| {
        let (rank, size) = (comm.rank(), comm.size());
        let sum = (size * (size + 1) / 2) as f32;
        let options = CallOptions::new().deterministic(true).tag(7);
        let mut x = stream.clone_htod(&[rank as f32 + 1.0; 1000])?;
        comm.with(&options).all_reduce_in_place(&mut x, ReduceOp::Sum)?;
        assert_eq!(stream.clone_dtoh(&x)?, [sum; 1000]);
        let none = CallOptions::new().algorithms("none_of_them");
        let refused = comm.with(&none).all_reduce_in_place(&mut x, ReduceOp::Sum);
        assert_eq!(refused.err().map(|error| error.code()), Some(Code::InvalidArgument));

        const LARGE: usize = 4 << 20;
        let mut mine = stream.clone_htod(&vec![rank as f32; LARGE])?;
        let mut all = stream.alloc_zeros::<f32>(LARGE * size)?;
        comm.in_place()?;
        {
            let (mine, mut all) = (comm.register(&mut mine)?, comm.register(&mut all)?);
            for _ in 0..20 {
                comm.all_gather(&mine, &mut all)?;
                stream.synchronize()?;
            }
            let last = stream.clone_dtoh(&*all)?;
            assert!((0..size).all(|r| last[r * LARGE] == r as f32));
        }

        stream.memcpy_htod(&[rank as f32; 1000], &mut x)?;
        let mut all = stream.alloc_zeros::<f32>(1000 * size)?;
        comm.capture(
            |group| comm.all_gather_on(group, &x, &mut all),
            |graph| (0..3).try_for_each(|_| graph.launch()),
        )?;
        let gathered: Vec<f32> = (0..size).flat_map(|r| [r as f32; 1000]).collect();
        assert_eq!(stream.clone_dtoh(&all)?, gathered);
        comm.capture(
            |group| comm.all_reduce_in_place_on(group, &mut x, ReduceOp::Sum),
            |graph| (0..2).try_for_each(|_| graph.launch()),
        )?;
        let sum = (size * (size - 1) / 2 * size) as f32;
        assert_eq!(stream.clone_dtoh(&x)?, [sum; 1000]);
        // Calls on a stream that somebody else captures are refused.
        let usage = |outcome: oxccl::Result<()>| outcome.err().map(|error| error.code());
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let refused = usage(comm.broadcast(&mut x, 0));
        stream.end_capture(
            CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        )?;
        assert_eq!(refused, Some(Code::InvalidUsage));
        comm.broadcast(&mut x, 0)?;
        assert_eq!(stream.clone_dtoh(&x)?, [sum; 1000]);
        Ok(())
    });
}

#[test]
fn communicators_grow_and_end_early() {
    let count = gpus();
    if count == 0 {
        return;
    }
    // The ranks of one GPU at first, then as many as there are GPUs.
    let (id, (send, receive)) = (Id::new().expect("an id"), std::sync::mpsc::channel());
    let first = move || -> Outcome {
        let stream = CudaContext::new(0)?.new_stream()?;
        let comm = Comm::from_rank(&stream, 0, 1, id)?;
        let growth = comm.growth_id()?;
        for _ in 1..count {
            send.send(growth)?;
        }
        let all = if count > 1 { comm.grow(count, Some(growth))? } else { comm };
        ended_by_the_first(&all, &stream)
    };
    let later = |rank: usize, id: Id| -> Outcome {
        let stream = CudaContext::new(rank)?.new_stream()?;
        ended_by_the_first(&Comm::join(&stream, rank, count, id)?, &stream)
    };
    let later = &later;
    std::thread::scope(|threads| {
        let mut ranks = vec![threads.spawn(first)];
        for rank in 1..count {
            let id = receive.recv().expect("the first rank lives");
            ranks.push(threads.spawn(move || later(rank, id)));
        }
        for rank in ranks {
            rank.join().expect("no panic").expect("no error");
        }
    });
}

/// Sums on all ranks; then the first one ends all operations of the communicator.
fn ended_by_the_first(comm: &Comm, stream: &Arc<CudaStream>) -> Outcome {
    comm.set_timeout(Some(Duration::from_secs(20)))?;
    let mut x = stream.clone_htod(&[1.0_f32; 100])?;
    comm.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
    assert_eq!(stream.clone_dtoh(&x)?, [comm.size() as f32; 100]);
    comm.suspend()?;
    comm.resume()?;
    comm.all_reduce_in_place(&mut x, ReduceOp::Max)?;
    assert_eq!(stream.clone_dtoh(&x)?, [comm.size() as f32; 100]);
    // Nobody ends it before all have read their results.
    comm.all_reduce_in_place(&mut x, ReduceOp::Max)?;
    stream.synchronize()?;
    if comm.rank() == 0 {
        comm.revoke()?;
    } else {
        let start = Instant::now();
        while comm.async_error().is_none() {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not hear of the end");
            std::thread::yield_now();
        }
    }
    assert!(comm.all_reduce_in_place(&mut x, ReduceOp::Sum).is_err());
    Ok(comm.abort()?)
}

/// The byte with which memory is filled before something is to be written there.
const POISON: u64 = 0xc7c7_c7c7_c7c7_c7c7;

/// Returns a seed that no test had before, and prints it for who looks for a failure.
fn fresh() -> usize {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let seed = since.as_nanos() as usize;
    println!("the seed is {seed}");
    seed
}

/// Returns random numbers, whose sums do not overflow.
fn numbers(seed: &[usize], len: usize) -> Vec<u64> {
    let first = random(seed) as usize;
    (0..len).map(|i| random(&[first, i]) >> 8).collect()
}

/// Waits for all ranks.
fn meet(comm: &Comm) -> Outcome {
    let mut word = comm.stream().clone_htod(&[0_u64])?;
    comm.all_reduce_in_place(&mut word, ReduceOp::Sum)?;
    Ok(comm.stream().synchronize()?)
}

/// Puts random parts of a share into the window of every rank, grouped or not.
fn puts(comm: &Comm, share: usize, (seed, round): (usize, usize)) -> Outcome {
    let (rank, size, stream) = (comm.rank(), comm.size(), comm.stream());
    let mut window = Window::new(comm, share * size)?;
    stream.memcpy_htod(&vec![POISON; share * size], &mut window)?;
    meet(comm)?;
    // The elements of its share that a rank writes into the window of another one.
    let part = |from: usize, to: usize| {
        let begin = random(&[seed, round, from, to]) as usize % share;
        let len = 1 + random(&[seed, round, from, to, 1]) as usize % (share - begin);
        begin..begin + len
    };
    let data = |from: usize| numbers(&[seed, round, from], share);
    let (mine, signal) = (stream.clone_htod(&data(rank))?, round % 16);
    let parts: Vec<_> = (0..size).map(|to| part(rank, to)).collect();
    let views: Vec<_> = parts.iter().map(|part| mine.slice(part.clone())).collect();
    let at = |to: usize| rank * share + parts[to].start;
    // SAFETY: every rank writes into a share of its own, which is read behind all signals, and no
    // window ends before all ranks have met again.
    let put = |to: usize| unsafe { comm.put(&views[to], &window, to, at(to), signal) };
    match round % 2 {
        0 => (0..size).try_for_each(put)?,
        _ => group(|g| {
            // SAFETY: as above.
            let put = |to| unsafe { comm.put_on(g, &views[to], &window, to, at(to), signal) };
            (0..size).try_for_each(put)
        })?,
    }
    let signals = |from| Signals { from, signal, count: 1 };
    comm.wait_signals(&(0..size).map(signals).collect::<Vec<_>>())?;
    let mut expected = vec![POISON; share * size];
    for from in 0..size {
        let part = part(from, rank);
        expected[from * share..][part.clone()].copy_from_slice(&data(from)[part]);
    }
    assert!(stream.clone_dtoh(&window)? == expected, "round {round}");
    meet(comm)
}

#[test]
fn windows_are_written_by_other_ranks_and_used_in_collectives() {
    let seed = fresh();
    on_gpus(|comm, stream| {
        for round in 0..6 {
            puts(comm, [1, 999, 200_001][round / 2], (seed, round))?;
        }
        let (next, before) =
            ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
        comm.signal(next, 15)?;
        comm.wait_signals(&[Signals { from: before, signal: 15, count: 1 }])?;
        assert!(Window::<u64>::new(comm, 0).is_err());

        const LARGE: usize = 1 << 17;
        let sparing = CallOptions::new().cta_policy(CtaPolicy::Zero);
        let (mut mine, mut all) =
            (Window::new(comm, LARGE)?, Window::new(comm, LARGE * comm.size())?);
        for round in 0..5 {
            let data = |rank: usize| numbers(&[seed, round, rank, 2], LARGE);
            stream.memcpy_htod(&data(comm.rank()), &mut mine)?;
            stream.memcpy_htod(&vec![POISON; LARGE * comm.size()], &mut all)?;
            comm.with(&sparing).all_gather(&mine, &mut all)?;
            let gathered: Vec<u64> = (0..comm.size()).flat_map(data).collect();
            assert!(stream.clone_dtoh(&all)? == gathered, "round {round}");
        }
        println!("{} operations by copy engines", comm.by_copy_engines()?);
        // Nobody reads a window that has ended.
        meet(comm)
    });
}

/// Parts of a buffer, with gaps between them, in a random order.
struct Places {
    counts: Vec<usize>,
    displs: Vec<usize>,
    len: usize,
}

impl Places {
    fn new(counts: Vec<usize>, seed: &[usize]) -> Self {
        let (mut displs, mut len) = (vec![0; counts.len()], 0);
        let first = random(seed) as usize % counts.len();
        for i in 0..counts.len() {
            let i = (first + i) % counts.len();
            len += random(&[first, len, i]) as usize % 4;
            displs[i] = len;
            len += counts[i];
        }
        Self { counts, displs, len: len + 1 }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { counts: &self.counts, displs: &self.displs }
    }

    /// Returns a buffer with these parts, poisoned between them.
    fn filled(&self, part: impl Fn(usize) -> Vec<u64>) -> Vec<u64> {
        let mut all = vec![POISON; self.len];
        for (rank, (&at, &count)) in self.displs.iter().zip(&self.counts).enumerate() {
            all[at..at + count].copy_from_slice(&part(rank));
        }
        all
    }
}

/// Uploads numbers with one more behind them, as `cudarc` allocates no empty slices.
fn upload(stream: &Arc<CudaStream>, mut data: Vec<u64>) -> Result<CudaSlice<u64>, DriverError> {
    data.push(POISON);
    stream.clone_htod(&data)
}

/// Every collective with counts per rank once; `base` makes the numbers of the round.
fn with_counts(comm: &Comm, base: [usize; 2]) -> Outcome {
    let (rank, size, stream) = (comm.rank(), comm.size(), comm.stream());
    let [seed, round] = base;
    let most = [1, 60, 20_000][round % 3] + 1;
    let count = |from: usize, to: usize| random(&[seed, round, from, to, 3]) as usize % most;
    let data = |from: usize, to: usize| numbers(&[seed, round, from, to], count(from, to));
    let poison = |len: usize| stream.clone_htod(&vec![POISON; len]);
    let root = random(&base) as usize % size;

    // The contribution of a rank is what it has for itself.
    let own = |of: usize| data(of, of);
    let places = Places::new((0..size).map(|of| count(of, of)).collect(), &[seed, round, rank]);
    let (mine, n) = (upload(stream, own(rank))?, places.counts[rank]);
    let mut all = poison(places.len)?;
    comm.all_gather_v(&mine.slice(0..n), &mut all, places.parts())?;
    assert!(stream.clone_dtoh(&all)? == places.filled(own), "all_gather_v");

    let mut all = poison(places.len)?;
    let output = (rank == root).then_some((&mut all, places.parts()));
    comm.gather_v(&mine.slice(0..n), output, root)?;
    let expected = if rank == root { places.filled(own) } else { vec![POISON; places.len] };
    assert!(stream.clone_dtoh(&all)? == expected, "gather_v");

    let (scattered, mut out) = (stream.clone_htod(&places.filled(own))?, poison(n + 1)?);
    let input = (rank == root).then_some((&scattered, places.parts()));
    comm.scatter_v(input, &mut out.slice_mut(0..n), root)?;
    assert!(stream.clone_dtoh(&out)? == [own(rank), vec![POISON]].concat(), "scatter_v");

    let inputs = |of: usize| numbers(&[seed, round, of, 4], places.counts.iter().sum());
    let (input, mut out) = (upload(stream, inputs(rank))?, poison(n + 1)?);
    let view = input.slice(0..input.len() - 1);
    let (block, sum) = (&mut out.slice_mut(0..n), ReduceOp::Sum);
    comm.reduce_scatter_v(&view, block, &places.counts, sum)?;
    let begin: usize = places.counts[..rank].iter().sum();
    let sums = (begin..begin + n).map(|i| (0..size).map(|of| inputs(of)[i]).sum());
    let expected: Vec<u64> = sums.chain([POISON]).collect();
    assert!(stream.clone_dtoh(&out)? == expected, "reduce_scatter_v");

    let sent = Places::new((0..size).map(|to| count(rank, to)).collect(), &[seed, rank, 5]);
    let taken = Places::new((0..size).map(|from| count(from, rank)).collect(), &[seed, rank, 6]);
    let input = stream.clone_htod(&sent.filled(|to| data(rank, to)))?;
    let mut all = poison(taken.len)?;
    comm.all_to_all_v(&input, sent.parts(), &mut all, taken.parts())?;
    let expected = taken.filled(|from| data(from, rank));
    assert!(stream.clone_dtoh(&all)? == expected, "all_to_all_v");
    Ok(())
}

#[test]
fn collectives_have_a_count_for_each_rank() {
    let seed = fresh();
    on_gpus(|comm, _| (0..12).try_for_each(|round| with_counts(comm, [seed, round])));
}

#[test]
fn events_of_cudarc_are_recorded_behind_calls() {
    let seed = fresh();
    on_gpus(|comm, stream| {
        const COUNT: usize = 100_000;
        let data = |rank: usize| numbers(&[seed, rank], COUNT);
        let (options, event) = (CallOptions::new(), stream.context().new_event(None)?);
        let (other, mine) =
            (stream.context().new_stream()?, stream.clone_htod(&data(comm.rank()))?);
        let mut out = stream.clone_htod(&vec![POISON; COUNT])?;
        let recording = comm.with(&options).recording(&event);
        recording.all_reduce(&mine, &mut out, ReduceOp::Max)?;
        other.wait(&event)?;
        let found = other.clone_dtoh(&out)?;
        let greatest = |i: usize| (0..comm.size()).map(|rank| data(rank)[i]).max();
        assert!((0..COUNT).step_by(997).all(|i| Some(found[i]) == greatest(i)));
        event.synchronize()?;
        assert!(event.is_complete());
        let captured = comm.capture(
            |group| recording.all_reduce_in_place_on(group, &mut out, ReduceOp::Max),
            |_| Ok(()),
        );
        assert_eq!(captured.err().map(|error| error.code()), Some(Code::InvalidUsage));
        meet(comm)
    });
}

#[test]
fn a_limit_ends_a_call_of_which_a_rank_takes_no_part_and_calls_have_no_deadline() {
    const LIMIT: Duration = Duration::from_millis(400);
    let seed = fresh();
    on_gpus(|comm, stream| {
        let (rank, last) = (comm.rank(), comm.size() - 1);
        let mut x = stream.clone_htod(&numbers(&[seed, rank], 1000))?;
        let options = CallOptions::new().deadline(LIMIT);
        let refused = comm.with(&options).all_reduce_in_place(&mut x, ReduceOp::Sum);
        let refused = refused.expect_err("GPUs have no deadlines of calls");
        assert_eq!(refused.code(), Code::InvalidUsage);
        assert!(refused.to_string().contains("no deadline of its own"), "{refused}");
        // Nothing was begun.
        comm.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
        let all: Vec<_> = (0..=last).map(|rank| numbers(&[seed, rank], 1000)).collect();
        let sums: Vec<u64> = (0..1000).map(|i| all.iter().map(|of| of[i]).sum()).collect();
        assert_eq!(stream.clone_dtoh(&x)?, sums);
        if last == 0 {
            return Ok(());
        }
        meet(comm)?;
        let start = Instant::now();
        if rank != last {
            comm.set_timeout(Some(LIMIT))?;
            // Who comes late hears of it at the call.
            let _ = comm.all_reduce_in_place(&mut x, ReduceOp::Sum);
        }
        let error = loop {
            assert!(start.elapsed() < LIMIT + Duration::from_secs(5), "it does not end");
            if let Some(error) = comm.async_error() {
                break error.to_string();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(error.contains(&format!("rank {last}")), "{error}");
        let start = Instant::now();
        comm.abort()?;
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        Ok(())
    });
}
