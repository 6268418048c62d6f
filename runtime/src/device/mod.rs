//! Devices: who carries out what is planned.

pub mod cuda;
pub mod host;

use crate::config::Config;
use crate::error::Result;
use crate::log;
use std::cell::Cell;
use std::sync::Arc;

/// Where a communicator's data lies and who moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// Host memory. The number chooses nothing but the default stream.
    Host(i32),
    /// A GPU, by its number in this process.
    Cuda(i32),
}

impl Device {
    /// The one of another number beside it.
    pub fn with_index(self, index: i32) -> Self {
        match self {
            Device::Host(_) => Device::Host(index),
            Device::Cuda(_) => Device::Cuda(index),
        }
    }

    /// Its number.
    pub fn index(self) -> i32 {
        match self {
            Device::Host(index) | Device::Cuda(index) => index,
        }
    }
}

/// A stream of either kind.
#[derive(Clone)]
pub enum Target {
    /// Of the host device.
    Host(Arc<host::stream::Stream>),
    /// A CUDA stream.
    Cuda(cuda::stream::Stream),
}

impl Target {
    /// Whether work on it is recorded into a graph instead of executed.
    pub fn is_capturing(&self) -> bool {
        match self {
            Target::Host(stream) => stream.is_capturing(),
            Target::Cuda(stream) => !matches!(cuda::order::graph_of(*stream), Ok(None)),
        }
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Target::Host(a), Target::Host(b)) => Arc::ptr_eq(a, b),
            (Target::Cuda(a), Target::Cuda(b)) => a == b,
            _ => false,
        }
    }
}

/// Bytes from an address to the end of its allocation, where it is this library's; None for memory
/// from elsewhere, of which nothing is known.
#[inline]
pub fn left(ptr: *const u8) -> Option<usize> {
    host::arena::left(ptr).or_else(|| cuda::memory::left(ptr))
}

thread_local! {
    /// What this thread chose.
    static CHOSEN: Cell<Option<Device>> = const { Cell::new(None) };
}

/// Chooses the calling thread's device.
pub fn choose(device: Device) -> Result<()> {
    match device {
        Device::Cuda(index) => cuda::driver::gpu(index)?.select()?,
        Device::Host(_) => {}
    }
    log::set_device(device.index());
    CHOSEN.set(Some(device));
    Ok(())
}

/// The calling thread's device: what it chose, else what `OXCCL_DEVICE` says, where auto means CUDA
/// when a driver and a GPU are there. Which GPU is up to the thread's CUDA context when it has one,
/// so that cudaSetDevice counts.
pub fn current() -> Result<Device> {
    let gpu = |index| cuda::driver::current().unwrap_or(index);
    match CHOSEN.get() {
        Some(Device::Cuda(index)) => Ok(Device::Cuda(gpu(index))),
        Some(host) => Ok(host),
        None => match Config::get().device.as_str() {
            "host" => Ok(Device::Host(0)),
            "cuda" => cuda::driver::count().map(|_| Device::Cuda(gpu(0))),
            "auto" => match cuda::driver::count() {
                Ok(_) if cuda::built() => Ok(Device::Cuda(gpu(0))),
                _ => Ok(Device::Host(0)),
            },
            _ => {
                let expected = "auto, host or cuda".to_owned();
                Err(Config::get().refused("OXCCL_DEVICE", "is no device", expected))
            }
        },
    }
}
