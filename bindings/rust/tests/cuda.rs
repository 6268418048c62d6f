//! Communicators on GPUs, on as many ranks as there are GPUs.

extern crate oxccl_rs as oxccl;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result, sys};
use oxccl::cuda::{Comm, group};
use oxccl::{Code, Id, ReduceOp, Shrink};
use oxccl_tests::missing;
use std::sync::Arc;

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

/// Runs a function as a rank on each GPU.
fn on_gpus(run: impl Fn(&Comm, &Arc<CudaStream>) -> Outcome + Sync) {
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
