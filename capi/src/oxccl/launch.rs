//! Communicators from the launcher's environment, and their limits.

use crate::boundary::boundary;
use crate::nccl::comm::make;
use crate::nccl::types::{ncclComm_t, ncclResult_t};
use crate::objects;
use oxccl_runtime::bootstrap::launch;
use oxccl_runtime::error::Error;
use std::ffi::c_void;
use std::time::Duration;

/// Makes a communicator of all processes that oxccl run, mpirun, srun or torchrun started; alone
/// without a launcher. The device's index becomes the rank on this host.
///
/// `comm`: out. `config`: must be null in this version. Blocks as ncclCommInitRank.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclCommInitEnv(
    comm: *mut ncclComm_t,
    config: *const c_void,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclCommInitEnv";
        if !config.is_null() {
            let hint = "configurations come with a later version";
            return Err(Error::usage(format!("{FUNCTION}: config is not null"), hint));
        }
        let launched = launch::detect()?;
        let (rank, nranks, local) =
            launched.as_ref().map_or((0, 1, 0), |l| (l.rank, l.nranks, l.local_rank));
        let id = match &launched {
            Some(launch) => launch::unique_id(launch)?,
            None => oxccl_runtime::bootstrap::new_unique_id()?,
        };
        objects::DEVICE.set(local as i32);
        // SAFETY: passed on from the caller.
        unsafe { make(FUNCTION, comm, nranks as i32, id, rank as i32, local as i32) }
    })
}

/// Bounds how long an operation of the communicator may wait for a peer without getting anywhere;
/// then it fails with ncclRemoteError, and the communicator with it.
///
/// `timeoutNs`: nanoseconds, −1 for no bound. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclCommSetTimeout(comm: ncclComm_t, timeoutNs: i64) -> ncclResult_t {
    boundary(|| {
        let comm = objects::get(&objects::COMMS, comm, "oxcclCommSetTimeout", "comm")?;
        comm.set_timeout(u64::try_from(timeoutNs).ok().map(Duration::from_nanos));
        Ok(())
    })
}
