//! An all-reduce on host memory by the crate cudarc's own bindings of NCCL, which load libnccl.so.

use cudarc::nccl::{result, sys};
use std::ptr::null_mut;

fn rank(rank: i32, size: i32, id: sys::ncclUniqueId) -> Result<[f32; 2], result::NcclError> {
    let (mine, mut sum) = ([rank as f32 + 1.0, 10.0], [0.0; 2]);
    let (from, to) = (mine.as_ptr().cast(), sum.as_mut_ptr().cast());
    let (float, add) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
    let mut comm = null_mut();
    // SAFETY: both buffers have two elements, and live until the end of the communicator, which
    // completes its operations.
    unsafe {
        result::comm_init_rank(&mut comm, size, id, rank)?;
        result::all_reduce(from, to, 2, float, add, comm, null_mut())?;
        result::comm_finalize(comm)?;
        result::comm_destroy(comm)?;
    }
    Ok(sum)
}

/// The variable by which the second process gets the id.
const ID: &str = "PROGRAM_ID";

/// Checks the sums of a rank. Each rank is a process: those of one would share the default stream.
fn check(of: i32, id: sys::ncclUniqueId) -> Result<(), result::NcclError> {
    assert_eq!(rank(of, 2, id)?, [3.0, 20.0]);
    println!("rank {of} is right");
    Ok(())
}

fn main() -> Result<(), result::NcclError> {
    if let Ok(text) = std::env::var(ID) {
        let mut internal = [0; 128];
        for (byte, number) in internal.iter_mut().zip(text.split(',')) {
            *byte = number.parse().expect("a byte");
        }
        return check(1, sys::ncclUniqueId { internal });
    }
    println!("version {}", result::get_nccl_version()?);
    let id = result::get_uniqueid()?;
    let text = id.internal.map(|byte| byte.to_string()).join(",");
    let mut other = std::process::Command::new(std::env::current_exe().expect("a path"));
    let mut other = other.env(ID, text).spawn().expect("it starts");
    check(0, id)?;
    assert!(other.wait().expect("a child").success());
    Ok(())
}
