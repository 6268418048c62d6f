//! Communicators on GPUs, on as many ranks as there are GPUs.

extern crate oxccl_rs as oxccl;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result, sys};
use oxccl::cuda::{Comm, group};
use oxccl::{CallOptions, Code, Id, ReduceOp, Shrink};
use oxccl_tests::missing;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
