//! Copies by the system from and to the memory of another process, which takes no part in them.

use crate::error::{Error, Result};

/// The most bytes that one system call moves: the kernel's limit is just below 2 GiB.
const MAX_BYTES: usize = 1 << 30;

/// Copies `len` bytes from address `from` of process `pid`, which is rank `peer`'s.
///
/// # Safety
/// `to` is writable for `len` bytes. (A bad address in the other process is an error, no crash.)
pub unsafe fn pull(pid: i32, from: usize, to: *mut u8, len: usize, peer: u32) -> Result<()> {
    move_all("process_vm_readv", peer, len, |done, bytes| {
        let (local, remote) = (vector(to.wrapping_add(done), bytes), remote(from + done, bytes));
        // SAFETY: both vectors have one element; the local one is writable by the contract.
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Copies a word from a rank's process, to find out whether the system allows it.
pub fn pulled(pid: i32, from: usize, rank: u32) -> Result<[u8; 16]> {
    let mut word = [0u8; 16];
    // SAFETY: the word has 16 bytes.
    unsafe { pull(pid, from, word.as_mut_ptr(), word.len(), rank) }?;
    Ok(word)
}

/// Copies `len` bytes to address `to` of process `pid`, which is rank `peer`'s.
///
/// # Safety
/// `from` is readable for `len` bytes. (A bad address in the other process is an error, no crash.)
pub unsafe fn push(pid: i32, to: usize, from: *const u8, len: usize, peer: u32) -> Result<()> {
    move_all("process_vm_writev", peer, len, |done, bytes| {
        let local = vector(from.wrapping_add(done).cast_mut(), bytes);
        let remote = remote(to + done, bytes);
        // SAFETY: both vectors have one element; the local one is readable by the contract.
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) }
    })
}

fn vector(at: *mut u8, bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: bytes }
}

fn remote(at: usize, bytes: usize) -> libc::iovec {
    vector(std::ptr::without_provenance_mut(at), bytes)
}

fn move_all(call: &str, peer: u32, len: usize, step: impl Fn(usize, usize) -> isize) -> Result<()> {
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(MAX_BYTES);
        let moved = step(done, bytes);
        if moved <= 0 {
            let call = format!("{call} of {bytes} bytes of rank {peer}");
            let hint = "the rank has ended, or its buffer is smaller than the call says";
            let error = std::io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EFAULT) {
                let cause = "that rank has no memory there: its buffer is smaller than its call \
                             says, or was freed before the call's stream was synchronised";
                return Err(Error::system(call, cause, hint));
            }
            return Err(Error::system(call, error, hint));
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
            to.fill(0);
            push(pid, to.as_mut_ptr() as usize, from.as_ptr(), 10_000, 0).unwrap();
            assert_eq!(from, to);
            let text = push(pid, 16, from.as_ptr(), 10, 0).unwrap_err().to_string();
            assert!(text.contains("of rank 0") && text.contains("has no memory there"), "{text}");
            let text = pull(pid, 16, to.as_mut_ptr(), 10, 3).unwrap_err().to_string();
            assert!(text.contains("of rank 3") && text.contains("has no memory there"), "{text}");
        }
    }
}
