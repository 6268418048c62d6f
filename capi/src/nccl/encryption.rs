//! The encryption of connections.

use super::config::{NCCL_API_MAGIC, header};
use super::types::ncclResult_t;
use crate::boundary::boundary;
use oxccl_runtime::error::{Error, Result};
use oxccl_twin::twin;
use std::ffi::{c_char, c_int, c_uint};

/// The ways to encrypt connections.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclEncryptionMode_t {
    /// Connections are authenticated, and not encrypted.
    NCCL_ENCRYPTION_MODE_NONE = 0,
    /// Connections are encrypted with a key that all ranks have.
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
    /// The key, a text, or null.
    pub psk: *const c_char,
}

/// The encryption of connections.
pub type ncclEncryptionConfig_t = ncclEncryptionConfig_v23200;

/// # Safety
/// `config` is null, or points to an ncclEncryptionConfig_t of any version.
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
    // SAFETY: the structure has this field.
    match unsafe { (&raw const (*config).mode).read_unaligned() } {
        0 => Ok(()),
        1 => {
            let what = "ncclSetEncryption: encryption is not built in";
            Err(Error::usage(what, "encrypt below the library, for example by WireGuard"))
        }
        mode => {
            let expected = "0 (NCCL_ENCRYPTION_MODE_NONE) or 1 (NCCL_ENCRYPTION_MODE_PSK)";
            Err(Error::argument(FUNCTION, "mode", mode, expected))
        }
    }
}

/// Chooses the encryption of the connections that this process makes from now on. With
/// NCCL_ENCRYPTION_MODE_PSK: fails with ncclInvalidUsage, as encryption is not built in.
///
/// `config`: in. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { set_encryption(config) })
}
