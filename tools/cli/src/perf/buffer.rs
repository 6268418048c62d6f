//! The location of the measured data: the device, and buffers that are filled and read by copies,
//! as the memory of a GPU requires.

use super::cuda;
use super::options::{Options, Wanted};
use crate::api::{Api, Handle};
use crate::error::Result;
use std::ffi::c_int;

/// A kind of device, and the number of such devices that this process sees.
#[derive(Clone, Copy)]
pub(super) struct Device {
    /// The oxcclDeviceKind_t.
    pub(super) kind: c_int,
    count: u32,
}

impl Device {
    /// The host, which takes any number.
    pub(super) const HOST: Self = Self { kind: 0, count: u32::MAX };
    /// The oxcclDeviceKind_t of GPUs.
    pub(super) const CUDA: c_int = 1;

    /// Returns the device that the options ask for, or else the library's own choice, as long as
    /// the calling thread has chosen none.
    pub(super) fn find(options: &Options, api: &Api, rank: u32) -> Result<Self> {
        let (mut kind, mut index, mut count) = (Self::HOST.kind, 0, 0);
        // SAFETY: the places are writable.
        unsafe {
            match options.device {
                Wanted::Host => {}
                Wanted::Cuda => kind = Self::CUDA,
                Wanted::Auto => api.device_get(rank, &mut kind, &mut index)?,
            }
            if kind == Self::HOST.kind {
                return Ok(Self::HOST);
            }
            api.device_count(rank, kind, &mut count)?;
        }
        Ok(Self { kind, count: count.max(0) as u32 })
    }

    /// Makes one of the devices the calling thread's; `place` is the index among the ranks of this
    /// host.
    pub(super) fn choose(self, api: &Api, rank: u32, place: u32) -> Result<()> {
        // Without a device, the library reports the reason.
        let index = place.checked_rem(self.count).unwrap_or(0);
        // SAFETY: no pointers.
        unsafe { api.device_set(rank, self.kind, index as c_int) }
    }

    /// Returns the number of GPUs; `None` for the host.
    pub(super) fn gpus(self) -> Option<u32> {
        self.is_cuda().then_some(self.count)
    }

    pub(super) fn is_cuda(self) -> bool {
        self.kind == Self::CUDA
    }

    pub(super) fn name(self) -> &'static str {
        if self.kind == Self::CUDA { "cuda" } else { "host" }
    }
}

/// The origin of a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// The allocator of this program.
    Malloc,
    /// The CUDA driver, as cudaMalloc gives it: the library knows nothing of it.
    Driver,
    /// The library: `ncclMemAlloc`.
    Library,
}

impl Memory {
    /// Returns the one that the options ask for.
    pub(super) fn wanted(options: &Options, device: Device) -> Self {
        match (options.register, device.is_cuda()) {
            (0, false) => Self::Malloc,
            (0, true) => Self::Driver,
            _ => Self::Library,
        }
    }
}

/// A rank's memory for the largest case.
pub(super) struct Buffer {
    data: *mut u8,
    bytes: usize,
    memory: Memory,
    rank: u32,
    stream: Handle,
}

impl Buffer {
    /// Allocates a buffer on the device of the calling thread, which is also that of the rank's
    /// stream.
    pub(super) fn new(
        api: &Api,
        (rank, stream): (u32, Handle),
        bytes: usize,
        memory: Memory,
    ) -> Result<Self> {
        let data = match memory {
            // Not zeroed memory, which would be one page that is mapped many times.
            Memory::Malloc => Box::into_raw(vec![1u8; bytes].into_boxed_slice()).cast(),
            Memory::Driver => cuda::allocate(bytes)?,
            Memory::Library => {
                let mut data = std::ptr::null_mut();
                // SAFETY: `data` is writable.
                unsafe { api.mem_alloc(rank, &mut data, bytes) }?;
                data.cast()
            }
        };
        let buffer = Self { data, bytes, memory, rank, stream };
        if memory != Memory::Malloc {
            // Touch all pages, so that the system really provides the memory.
            buffer.set(api, 0, 1, bytes)?;
        }
        Ok(buffer)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn data(&self) -> *mut u8 {
        self.data
    }

    /// Returns the address of a part.
    fn part(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at + len <= self.bytes);
        self.data.wrapping_add(at)
    }

    fn wait(&self, api: &Api) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { api.stream_synchronize(self.rank, self.stream, -1) }
    }

    /// Sets `len` bytes from `at` on, and waits for the stream.
    pub(super) fn set(&self, api: &Api, at: usize, value: u8, len: usize) -> Result<()> {
        let to = self.part(at, len).cast();
        // SAFETY: within the buffer, which lives until the stream is done.
        unsafe { api.memset_async(self.rank, to, value.into(), len, self.stream) }?;
        self.wait(api)
    }

    /// Copies to the bytes from `at` on, and waits for the stream.
    pub(super) fn write(&self, api: &Api, at: usize, from: &[u8]) -> Result<()> {
        self.copy(api, self.part(at, from.len()), from.as_ptr(), from.len())
    }

    /// Copies from the bytes from `at` on, and waits for the stream.
    pub(super) fn read(&self, api: &Api, at: usize, to: &mut [u8]) -> Result<()> {
        self.copy(api, to.as_mut_ptr(), self.part(at, to.len()), to.len())
    }

    fn copy(&self, api: &Api, to: *mut u8, from: *const u8, len: usize) -> Result<()> {
        // SAFETY: two parts of this length, one of the buffer, that live until the stream is done.
        unsafe { api.memcpy_async(self.rank, to.cast(), from.cast(), len, self.stream) }?;
        self.wait(api)
    }

    /// Frees the buffer; its stream may be gone.
    pub(super) fn free(self, api: &Api) -> Result<()> {
        match self.memory {
            // SAFETY: it came from a boxed slice of this length.
            Memory::Malloc => drop(unsafe {
                Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data, self.bytes))
            }),
            Memory::Driver => cuda::free(self.data)?,
            // SAFETY: the library allocated it.
            Memory::Library => unsafe { api.mem_free(self.rank, self.data.cast()) }?,
        }
        Ok(())
    }
}
