//! The multiplication of a rank's input before a sum: a private copy, made in stretches.

use super::kernels;
use crate::error::{Error, Result};
use crate::op::{Address, Call, Scale};

/// Bytes that are multiplied before other work gets a turn: a multiple of every element's size.
const STRETCH_BYTES: usize = 128 << 10;

/// A multiplied copy of a rank's input. It holds no memory before the first stretch.
#[derive(Default)]
pub struct Scaled {
    copy: Vec<u64>,
    factor: [u8; 8],
    done: usize,
}

impl Scaled {
    /// Multiplies the next stretch of the call's input of `blocks` blocks. Returns the bytes of the
    /// stretch, and the whole copy once it is complete.
    pub fn stretch(&mut self, call: &Call, blocks: u32) -> Result<(usize, Option<*const u8>)> {
        let size = call.dtype.size();
        let len = blocks as usize * call.count as usize * size;
        if self.done == 0 {
            self.copy.try_reserve_exact(len.div_ceil(8)).map_err(|e| {
                let what = format!("allocating {len} bytes for the multiplied input");
                Error::system(what, e, "reduce fewer elements at a time")
            })?;
            self.factor = match call.scale {
                Some(Scale::Value(word)) => word.to_ne_bytes(),
                Some(Scale::At(Address(from))) => {
                    let mut bytes = [0; 8];
                    // SAFETY: there is one element, by the contract of the operation; no element
                    // is larger than 8 bytes.
                    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size) };
                    bytes
                }
                None => return Err(Error::Internal { what: "no factor to scale by".to_owned() }),
            };
        }
        let copy: *mut u8 = self.copy.as_mut_ptr().cast();
        let bytes = (len - self.done).min(STRETCH_BYTES);
        // SAFETY: the input has `len` bytes by the contract of the call, and the copy room for
        // them.
        unsafe {
            let (to, from) = (copy.add(self.done), call.input.add(self.done));
            kernels::scale(to, from, bytes, call.dtype, self.factor);
        }
        self.done += bytes;
        Ok((bytes, (self.done == len).then_some(copy.cast_const())))
    }
}
