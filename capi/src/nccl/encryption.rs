//! The encryption of connections.

use super::config::{NCCL_API_MAGIC, header};
use super::types::ncclResult_t;
use crate::boundary::boundary;
use oxccl_runtime::bootstrap::encryption::{self, Key, LEAST_KEY_BYTES};
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::fork;
use oxccl_twin::twin;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// The ways to encrypt connections.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclEncryptionMode_t {
    /// Connections are authenticated, and not encrypted.
    NCCL_ENCRYPTION_MODE_NONE = 0,
    /// Connections are encrypted with a key that all ranks have; only ranks of one host.
    NCCL_ENCRYPTION_MODE_PSK = 1,
}

/// The encryption of connections; begin with NCCL_ENCRYPTION_CONFIG_INITIALIZER.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclEncryptionConfig_v23200 {
    /// Set by the initializer.
    pub size: usize,
    /// Set by the initializer.
    pub magic: c_uint,
    /// Set by the initializer.
    pub version: c_uint,
    /// An ncclEncryptionMode_t.
    pub mode: c_int,
    /// The key, a text of 16 bytes or more that nobody can guess; null without encryption.
    pub psk: *const c_char,
}

/// The encryption of connections.
pub type ncclEncryptionConfig_t = ncclEncryptionConfig_v23200;

/// # Safety
/// `config` is null, or points to an ncclEncryptionConfig_t of any version, whose key is null or
/// ends with a zero byte.
unsafe fn set_encryption(config: *const ncclEncryptionConfig_t) -> Result<()> {
    const FUNCTION: &str = "ncclSetEncryption";
    if config.is_null() {
        return Err(Error::argument(FUNCTION, "config", "null", "a structure"));
    }
    let what = (FUNCTION, "config", "NCCL_ENCRYPTION_CONFIG_INITIALIZER");
    // SAFETY: not null; the structures of all versions begin alike.
    let (size, _) = unsafe { header(config.cast(), NCCL_API_MAGIC, what)? };
    if size < size_of::<ncclEncryptionConfig_t>() {
        let got = format!("a structure of {size} bytes");
        let expected = "a size that NCCL_ENCRYPTION_CONFIG_INITIALIZER sets";
        return Err(Error::argument(FUNCTION, "config", got, expected));
    }
    // SAFETY: the structure has these fields.
    let (mode, psk) = unsafe {
        ((&raw const (*config).mode).read_unaligned(), (&raw const (*config).psk).read_unaligned())
    };
    let key = match mode {
        0 => None,
        1 => {
            let expected = format!("a text of at least {LEAST_KEY_BYTES} bytes");
            if psk.is_null() {
                return Err(Error::argument(FUNCTION, "psk", "null", expected));
            }
            // SAFETY: not null, and a text by the contract of the caller.
            let text = unsafe { CStr::from_ptr(psk) }.to_bytes();
            if text.len() < LEAST_KEY_BYTES {
                let got = format!("a text of {} bytes", text.len());
                return Err(Error::argument(FUNCTION, "psk", got, expected));
            }
            Some(Key::new(text))
        }
        mode => {
            let expected = "0 (NCCL_ENCRYPTION_MODE_NONE) or 1 (NCCL_ENCRYPTION_MODE_PSK)";
            return Err(Error::argument(FUNCTION, "mode", mode, expected));
        }
    };
    fork::check()?;
    encryption::set_key(key);
    Ok(())
}

/// Chooses the encryption of the connections by which communicators are made from now on. All ranks
/// choose alike, or making a communicator fails with ncclInvalidUsage on all of them. With
/// NCCL_ENCRYPTION_MODE_PSK, so does making a communicator of ranks on several hosts: connections
/// for data are not encrypted.
///
/// `config`: in, read before the call returns. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { set_encryption(config) })
}
