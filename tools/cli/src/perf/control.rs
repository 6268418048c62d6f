//! How the processes of a measurement agree: through communicators of the built-in library in host
//! memory, apart from what is measured.

use super::buffer::Device;
use crate::api::{Api, Handle, UniqueId};
use crate::error::{Error, Result};
use oxccl_plan::{DataType, ReduceOp};
use oxccl_runtime::bootstrap::launch::{self, Launch};
use std::time::Duration;

/// The time between looks of a process that only listens.
const NAP: Duration = Duration::from_micros(500);

/// A communicator of the built-in library with one rank per process, on the host.
pub(super) struct Control {
    api: Api,
    comm: Handle,
    stream: Handle,
    rank: u32,
}

impl Control {
    /// Joins all processes of the job.
    pub(super) fn new(launch: &Launch) -> Result<Self> {
        let api = Api::built_in();
        let id = match launch.nranks {
            1 => oxccl_runtime::bootstrap::new_unique_id()?,
            _ => launch::unique_id(launch, oxccl_runtime::comm::Options::default().init_limit())?,
        };
        let (mut comm, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (n, rank) = (launch.nranks as i32, launch.rank as i32);
        let id = UniqueId(id.encode());
        // SAFETY: the places are writable.
        unsafe {
            api.device_set(launch.rank, Device::HOST.kind, launch.local_rank as i32)?;
            api.comm_init_rank(launch.rank, &mut comm, n, id, rank)?;
            api.stream_create(launch.rank, &mut stream)?;
        }
        Ok(Self { api, comm, stream, rank: launch.rank })
    }

    /// Joins those processes that name the same group. The calling thread is on the host, as after
    /// [`new`](Self::new).
    pub(super) fn split(&self, group: u32) -> Result<Self> {
        let (mut comm, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (group, key, none) = (group as i32, self.rank as i32, std::ptr::null_mut());
        // SAFETY: the communicator is alive, and the places are writable.
        unsafe {
            self.api.comm_split(self.rank, self.comm, group, key, &mut comm, none)?;
            self.api.stream_create(self.rank, &mut stream)?;
        }
        Ok(Self { api: self.api, comm, stream, rank: self.rank })
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { self.api.stream_synchronize(self.rank, self.stream, -1) }
    }

    /// As [`wait`](Self::wait), asleep nearly all the time: others measure meanwhile, and on a
    /// machine with few processors a thread that spins would disturb them.
    fn sleep(&self) -> Result<()> {
        const IN_PROGRESS: i32 = 7;
        loop {
            // SAFETY: the stream is alive.
            match unsafe { self.api.stream_query(self.rank, self.stream) } {
                Err(Error::Call { code: IN_PROGRESS, .. }) => std::thread::sleep(NAP),
                done => return done,
            }
        }
    }

    /// Begins to give all processes the bytes of one of them; they must live until the stream is
    /// done.
    fn spread(&self, root: u32, bytes: &mut [u8]) -> Result<()> {
        let data = bytes.as_mut_ptr().cast();
        let (len, dtype, root) = (bytes.len(), DataType::Uint8 as i32, root as i32);
        // SAFETY: the callers keep the buffer until the stream is done.
        unsafe {
            self.api.broadcast(self.rank, data, data, len, dtype, root, self.comm, self.stream)
        }
    }

    /// Gives all processes the bytes of one of them.
    pub(super) fn broadcast(&self, root: u32, bytes: &mut [u8]) -> Result<()> {
        self.spread(root, bytes)?;
        self.wait()
    }

    /// Returns the texts of all processes, in the order of the ranks.
    pub(super) fn texts(&self, nranks: u32, own: &str) -> Result<Vec<String>> {
        let text = |rank| {
            let mut len = (own.len() as u64).to_ne_bytes();
            self.broadcast(rank, &mut len)?;
            let mut bytes = own.as_bytes().to_vec();
            bytes.resize(u64::from_ne_bytes(len) as usize, 0);
            self.broadcast(rank, &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        (0..nranks).map(text).collect()
    }

    /// Gives all processes the numbers of one of them. No process has them before that one calls,
    /// and those that only listen sleep until then.
    pub(super) fn share<const N: usize>(
        &self,
        root: u32,
        numbers: Option<[f64; N]>,
    ) -> Result<[f64; N]> {
        let mut bytes = numbers.unwrap_or([0.0; N]).map(f64::to_ne_bytes);
        self.spread(root, bytes.as_flattened_mut())?;
        if numbers.is_some() { self.wait() } else { self.sleep() }?;
        Ok(bytes.map(f64::from_ne_bytes))
    }

    /// Combines a number of each process.
    pub(super) fn reduce(&self, value: f64, op: ReduceOp) -> Result<f64> {
        let (input, mut output) = (value, 0.0f64);
        let (from, to) = ((&raw const input).cast(), (&raw mut output).cast());
        let (dtype, op) = (DataType::Float64 as i32, op as i32);
        // SAFETY: the buffers live until the stream is done.
        unsafe { self.api.all_reduce(self.rank, from, to, 1, dtype, op, self.comm, self.stream)? };
        self.wait()?;
        Ok(output)
    }

    /// Returns when all processes have called this.
    pub(super) fn meet(&self) -> Result<()> {
        self.reduce(0.0, ReduceOp::Sum).map(|_| ())
    }

    pub(super) fn close(self) -> Result<()> {
        // SAFETY: both handles are alive and used no more.
        unsafe {
            self.api.comm_destroy(self.rank, self.comm)?;
            self.api.stream_destroy(self.rank, self.stream)
        }
    }
}
