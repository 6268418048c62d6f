//! What the examples share: a rank with its stream and some memory of its device, and the verdict.
//! Rust has no interface of its own yet: these are the functions of C, from the crate `oxccl`.

use oxccl::nccl::comm::{ncclCommCount, ncclCommDestroy, ncclCommUserRank};
use oxccl::nccl::info::ncclGetLastError;
use oxccl::nccl::types::{ncclComm_t, ncclResult_t};
use oxccl::oxccl::device::{oxcclMemAlloc, oxcclMemFree, oxcclMemcpyAsync};
use oxccl::oxccl::launch::oxcclCommInitEnv;
use oxccl::oxccl::stream::{oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamSynchronize};
use oxccl::oxccl::types::oxcclStream_t;
use std::ffi::CStr;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

/// What can fail.
pub type Outcome<T = ()> = Result<T, String>;

/// The text of a call that failed.
pub fn check(code: ncclResult_t) -> Outcome {
    if code == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: the text stays until this thread's next error.
    let text = unsafe { CStr::from_ptr(ncclGetLastError(null_mut())) };
    Err(text.to_string_lossy().into_owned())
}

/// Says whether the result is right; the program's status.
pub fn verdict(outcome: Outcome<bool>, rank: i32, nranks: i32, what: &str) -> ExitCode {
    let word = match &outcome {
        Ok(true) => "verified",
        Ok(false) => "WRONG",
        Err(error) => error,
    };
    println!("rank {rank} of {nranks}: {what} {word}");
    if outcome == Ok(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A rank with a stream, and memory for `len` elements on its device.
pub struct Rank<T> {
    /// Its part of the communicator.
    pub comm: ncclComm_t,
    /// Its work, in order.
    pub stream: oxcclStream_t,
    /// The elements.
    pub x: *mut T,
    /// How many there are.
    pub len: usize,
    /// Its number.
    pub rank: i32,
    /// How many ranks there are.
    pub nranks: i32,
}

impl<T: Copy> Rank<T> {
    /// One of the ranks that oxccl run, mpirun, srun or torchrun started. Blocks for the others.
    pub fn from_env(len: impl FnOnce(i32) -> usize) -> Outcome<Self> {
        let mut comm = null_mut();
        // SAFETY: the place is valid; no configuration is asked for.
        check(unsafe { oxcclCommInitEnv(&mut comm, null()) })?;
        Self::of(comm, len)
    }

    /// The rank of a communicator, which it ends.
    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "handles are numbers, and looked up")]
    pub fn of(comm: ncclComm_t, len: impl FnOnce(i32) -> usize) -> Outcome<Self> {
        let (mut rank, mut nranks, mut stream, mut x) = (0, 0, null_mut(), null_mut());
        // SAFETY: all places are valid.
        let len = unsafe {
            check(ncclCommUserRank(comm, &mut rank))?;
            check(ncclCommCount(comm, &mut nranks))?;
            check(oxcclStreamCreate(&mut stream))?;
            let len = len(nranks);
            check(oxcclMemAlloc(&mut x, len * size_of::<T>()))?;
            len
        };
        Ok(Self { comm, stream, x: x.cast(), len, rank, nranks })
    }

    /// Brings elements to the device, at `offset`. Blocks.
    pub fn put(&self, offset: usize, from: &[T]) -> Outcome {
        assert!(from.len() <= self.len && offset <= self.len - from.len(), "no room");
        // SAFETY: both have so many elements, and stay until the copy is done.
        unsafe {
            let to = self.x.add(offset).cast();
            check(oxcclMemcpyAsync(to, from.as_ptr().cast(), size_of_val(from), self.stream))?;
        }
        self.synchronize()
    }

    /// Fetches elements from the device, from `offset` on. Blocks.
    pub fn get(&self, offset: usize, to: &mut [T]) -> Outcome {
        assert!(to.len() <= self.len && offset <= self.len - to.len(), "no such elements");
        // SAFETY: as above.
        unsafe {
            let from = self.x.add(offset).cast();
            check(oxcclMemcpyAsync(to.as_mut_ptr().cast(), from, size_of_val(to), self.stream))?;
        }
        self.synchronize()
    }

    /// Waits until everything on the stream is done. Blocks.
    pub fn synchronize(&self) -> Outcome {
        // SAFETY: any handle may be passed.
        check(unsafe { oxcclStreamSynchronize(self.stream, -1) })
    }
}

impl<T> Drop for Rank<T> {
    fn drop(&mut self) {
        // SAFETY: the memory and the handles are this rank's own; synchronized work uses them no
        // more.
        unsafe {
            ncclCommDestroy(self.comm);
            oxcclStreamDestroy(self.stream);
            oxcclMemFree(self.x.cast());
        }
    }
}
