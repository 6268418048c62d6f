//! Copies from the memory of another process by the system, without its help.

use crate::error::{Error, Result};

/// The most that one call moves: the kernel's limit is just below 2 GiB.
const MAX_BYTES: usize = 1 << 30;

/// Copies `len` bytes from address `from` of process `pid`, which is rank `peer`'s.
///
/// # Safety
/// `to` is writable for `len` bytes. (A bad address in the other process is an error, no crash.)
pub unsafe fn pull(pid: i32, from: usize, to: *mut u8, len: usize, peer: u32) -> Result<()> {
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(MAX_BYTES);
        let local = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: bytes };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut::<libc::c_void>(from + done),
            iov_len: bytes,
        };
        // SAFETY: both vectors have one element; the local one is writable by the contract.
        let moved =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        if moved <= 0 {
            let call = format!("process_vm_readv of {bytes} bytes from rank {peer}");
            let hint = "the rank has ended, or its buffer is smaller than the call says";
            return Err(Error::system(call, std::io::Error::last_os_error(), hint));
        }
        done += moved as usize;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_can_be_pulled_and_bad_addresses_are_errors() {
        let pid = std::process::id() as i32;
        let (from, mut to) = (vec![7u8; 10_000], vec![0u8; 10_000]);
        // SAFETY: both buffers have 10 000 bytes.
        unsafe {
            pull(pid, from.as_ptr() as usize, to.as_mut_ptr(), 10_000, 0).unwrap();
            assert_eq!(from, to);
            assert!(
                pull(pid, 16, to.as_mut_ptr(), 10, 3).unwrap_err().to_string().contains("rank 3")
            );
        }
    }
}
