//! Communicators from the launcher's environment, and their limits.

use crate::boundary::boundary;
use crate::nccl::comm::make;
use crate::nccl::config::{self, ncclConfig_t};
use crate::nccl::types::{ncclComm_t, ncclResult_t};
use crate::{convert, objects};
use oxccl_runtime::bootstrap::launch;
use oxccl_runtime::device;

/// Makes a communicator of all processes that oxccl run, mpirun, srun or torchrun started; without
/// a launcher, of this process alone. The device's index becomes the rank on this host.
///
/// Ranks of several hosts need NCCL_COMM_ID, or, under mpirun and srun, OXCCL_RENDEZVOUS: a folder
/// that all hosts share. Under torchrun they meet at MASTER_ADDR and port MASTER_PORT + 1, as if
/// that were NCCL_COMM_ID; both need OXCCL_SECRET_FILE or OXCCL_INSECURE=1.
///
/// `comm`: out. `config`: as for ncclCommInitRankConfig. Blocks as ncclCommInitRank.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclCommInitEnv(
    comm: *mut ncclComm_t,
    config: *const ncclConfig_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclCommInitEnv";
        // SAFETY: passed on from the caller.
        let options = unsafe { config::read(config, FUNCTION, None)? };
        let launched = launch::detect()?;
        let (rank, nranks, local) =
            launched.as_ref().map_or((0, 1, 0), |l| (l.rank, l.nranks, l.local_rank));
        let id = match &launched {
            Some(launch) => launch::unique_id(launch, options.init_limit())?,
            None => oxccl_runtime::bootstrap::new_unique_id()?,
        };
        let device = device::current()?.with_index(local as i32);
        device::choose(device)?;
        // SAFETY: passed on from the caller.
        unsafe {
            let names = (FUNCTION, "comm", "the rank");
            make(names, comm, nranks as i32, id, rank as i32, device, options)
        }
    })
}

/// Limits the time that an operation of the communicator may wait for a peer without progress; then
/// the operation fails with ncclRemoteError, and the communicator with it.
///
/// `timeoutNs`: nanoseconds, −1 for no bound. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclCommSetTimeout(comm: ncclComm_t, timeoutNs: i64) -> ncclResult_t {
    boundary(|| {
        let comm = objects::comm(comm, "oxcclCommSetTimeout")?;
        comm.set_timeout(convert::limit(timeoutNs, "oxcclCommSetTimeout")?);
        Ok(())
    })
}

/// Limits the time that communicators wait for the other ranks while they are made, instead of
/// OXCCL_INIT_TIMEOUT. It holds for those that the calling thread begins to make from now on, also
/// from other communicators. Then the call fails on all ranks that came, and the error names the
/// missing ranks; the shortest limit of any rank holds.
///
/// `timeoutNs`: nanoseconds; −1: what OXCCL_INIT_TIMEOUT says, and for children what their parent
/// had.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclSetInitTimeout(timeoutNs: i64) -> ncclResult_t {
    boundary(|| {
        config::INIT_TIMEOUT.set(convert::limit(timeoutNs, "oxcclSetInitTimeout")?);
        Ok(())
    })
}
