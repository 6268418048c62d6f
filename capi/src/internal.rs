//! Exports of NCCL's library that no header declares: for what NVIDIA's own tools look up.

use crate::boundary::boundary;
use crate::nccl::param;

/// Same as [`param::ncclResetDebugInit`], under the name by which NVIDIA's own tools find it.
///
/// # Safety
/// No other thread changes the environment meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclResetDebugInitInternal() {
    // The function returns nothing; the error stays for ncclGetLastError.
    let _ = boundary(param::reset_debug_init);
}
