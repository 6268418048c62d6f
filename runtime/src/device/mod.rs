//! The devices, which carry out what is planned. Code outside of this folder names neither of them:
//! it reaches both by [`Executor`], [`Stream`], [`Event`], [`Graph`] and the functions here.

pub mod cuda;
mod event;
mod executor;
mod graph;
pub mod host;
mod memory;
mod object;
mod stream;

use crate::config::{Config, DeviceChoice};
use crate::error::Result;
use crate::link;
use crate::log;
use oxccl_plan::select::Topology;
use std::cell::Cell;

pub use cuda::create::Wishes;
pub use cuda::driver::links::{GpuLinks, Link, links};
#[cfg(feature = "testing")]
pub(crate) use cuda::sharing::{exchange::decode as decode_datagram, offer::Offer as CudaOffer};
pub use event::Event;
pub use executor::{Executor, Parts, Registration, Told, Unfinished, reach};
pub use graph::{Executable, Graph};
pub use host::reach::{Process, arena_fd};
pub use host::worker::{note_waiting_threads, wait_while};
pub use memory::{allocate, free, left};
pub use stream::{Function, Stream};

/// The device of a communicator: where its data lies and what moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// Host memory. The number selects nothing but the default stream.
    Host(i32),
    /// A GPU, by its number in this process.
    Cuda(i32),
}

impl Device {
    /// Returns the device of the same kind with another number.
    pub fn with_index(self, index: i32) -> Self {
        match self {
            Device::Host(_) => Device::Host(index),
            Device::Cuda(_) => Device::Cuda(index),
        }
    }

    /// Returns the device with a number: a host device, or a GPU.
    pub fn numbered(is_host: bool, index: i32) -> Self {
        if is_host { Device::Host(index) } else { Device::Cuda(index) }
    }

    /// Returns whether this is a host device.
    pub fn is_host(self) -> bool {
        matches!(self, Device::Host(_))
    }

    /// Returns the number of lanes that a communicator asks for between two ranks of different
    /// hosts, each with connections and, on GPUs, a thread of its own.
    pub fn lanes(self) -> usize {
        let Config { socket_nthreads, nsocks_perthread, .. } = Config::get();
        self.lanes_of(connections(*socket_nthreads, *nsocks_perthread))
    }

    fn lanes_of(self, asked: Option<usize>) -> usize {
        match self {
            Device::Host(_) => asked.unwrap_or(1),
            Device::Cuda(_) => asked.unwrap_or(usize::MAX).min(cuda::network::LANES),
        }
    }

    /// Returns the bytes of an edge's slot in a communicator of `nranks` ranks, on one host or on
    /// several, where edges within a host and between hosts carry messages of the same size.
    pub fn edge_slot_bytes(self, nranks: u32, one_host: bool) -> usize {
        match self {
            Device::Host(_) if !one_host => link::network_slot_bytes(nranks),
            Device::Host(_) => link::edge_slot_bytes(nranks),
            Device::Cuda(_) => link::edge_slot_bytes(nranks).min(cuda::layout::LANE_SLOT_BYTES),
        }
    }

    /// Returns the number of the device.
    pub fn index(self) -> i32 {
        match self {
            Device::Host(index) | Device::Cuda(index) => index,
        }
    }

    /// Returns the versions of CUDA that the library is built for and that the driver has; `None`
    /// for host memory.
    pub fn cuda_versions(self) -> Option<(i32, i32)> {
        match self {
            Device::Host(_) => None,
            Device::Cuda(_) => Some(cuda::driver::versions()),
        }
    }
}

/// The most threads for the connections between two ranks, and the most connections, as for NCCL.
const MOST_THREADS: u64 = 16;
const MOST_CONNECTIONS: u64 = 64;

/// Returns the number of connections of so many threads that have so many `each`. A 0 stands for
/// the usual number: `None` for two of them, else 1.
fn connections(threads: u64, each: u64) -> Option<usize> {
    if (threads, each) == (0, 0) {
        return None;
    }
    let threads = threads.clamp(1, MOST_THREADS);
    Some((threads * each.clamp(1, MOST_CONNECTIONS / threads)) as usize)
}

/// Returns how plans run for `nranks` ranks, `team` of them on each host, on the devices of one
/// kind, as far as that is known before a communicator is made. Assumed is host memory of which the
/// system copies what is not mapped, on hosts with as many processors as this one, or GPUs that
/// reach each other, each of one rank; `lines` tells whether their links carry lines. Fails for
/// more ranks than a device can have.
pub fn usual_topology(is_host: bool, nranks: u32, team: u32, lines: bool) -> Result<Topology> {
    let one_host = team == nranks;
    let edge_slot_bytes = Device::numbered(is_host, 0).edge_slot_bytes(nranks, one_host);
    if is_host {
        let turns = host::worker::ranks_per_processor(team as usize);
        return Ok(host::topology(nranks, team, one_host, edge_slot_bytes, turns));
    }
    cuda::rank::check_ranks(team)?;
    match one_host {
        true => Ok(cuda::run::launch::usual_topology(nranks, lines)),
        false => Ok(cuda::run::edges::topology(team, edge_slot_bytes)),
    }
}

/// Returns the number of devices of a kind: processors, or GPUs that the driver shows.
pub fn count(is_host: bool) -> i32 {
    match is_host {
        true => std::thread::available_parallelism().map_or(1, |n| n.get() as i32),
        // No driver is no error here: a program calls this to find out.
        false => cuda::driver::count().unwrap_or(0),
    }
}

thread_local! {
    /// The device that this thread chose.
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

/// Prepares a thread of the library to run functions of others for ranks on a device: they find its
/// GPU current, as with NCCL, and whatever they do leaves captures of other threads alone.
pub fn prepare_thread(device: Device) -> Result<()> {
    match device {
        Device::Cuda(index) => {
            cuda::driver::gpu(index)?.select()?;
            std::mem::forget(cuda::driver::Relaxed::begin()?);
            Ok(())
        }
        Device::Host(_) => Ok(()),
    }
}

/// Returns the calling thread's device: the chosen one, else the one that `OXCCL_DEVICE` selects,
/// where auto means CUDA if there are a driver and a GPU. If the thread has a CUDA context, that
/// context selects the GPU, so that cudaSetDevice takes effect.
pub fn current() -> Result<Device> {
    let gpu = |index| cuda::driver::current().unwrap_or(index);
    match CHOSEN.get() {
        Some(Device::Cuda(index)) => Ok(Device::Cuda(gpu(index))),
        Some(host) => Ok(host),
        None => match Config::checked()?.device {
            DeviceChoice::Host => Ok(Device::Host(0)),
            DeviceChoice::Cuda => cuda::driver::count().map(|_| Device::Cuda(gpu(0))),
            DeviceChoice::Auto => match cuda::driver::count() {
                Ok(_) if cuda::built() => Ok(Device::Cuda(gpu(0))),
                _ => Ok(Device::Host(0)),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::select::{Memory, Policy, candidates};
    use oxccl_plan::{Collective, Spec};

    #[test]
    fn threads_and_their_connections_multiply_up_to_the_limits_of_nccl() {
        for (threads, each, all) in [
            (0, 0, None),
            (1, 0, Some(1)),
            (0, 3, Some(3)),
            (2, 3, Some(6)),
            (17, 1, Some(16)),
            (3, 100, Some(63)),
            (u64::MAX, u64::MAX, Some(64)),
        ] {
            assert_eq!(connections(threads, each), all, "{threads} threads with {each} each");
        }
    }

    #[test]
    fn gpus_have_four_lanes_at_most_and_host_memory_as_many_as_are_asked_for() {
        for (asked, host, gpu) in [(None, 1, 4), (Some(2), 2, 2), (Some(9), 9, 4)] {
            assert_eq!(Device::Host(0).lanes_of(asked), host, "{asked:?}");
            assert_eq!(Device::Cuda(0).lanes_of(asked), gpu, "{asked:?}");
        }
    }

    #[test]
    fn a_topology_names_the_carriers_of_all_plans_that_serve_there() {
        for (is_host, team, lines) in [
            (true, 4, false),
            (true, 2, false),
            (false, 4, true),
            (false, 4, false),
            (false, 2, true),
        ] {
            let topology = usual_topology(is_host, 4, team, lines).expect("ranks fit");
            let carriers = topology.carriers();
            for collective in Collective::ALL {
                for bytes in [8, 64 << 10, 64 << 20] {
                    for memory in [Memory::Any, Memory::Mapped, Memory::Windows] {
                        let spec = Spec::new(collective, 4, 1);
                        let all = candidates(spec, bytes, &topology, memory, Policy::default());
                        for of in all {
                            assert!(
                                carriers.contains(&of.carrier),
                                "{of:?} is not in {carriers:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn on_gpus_sixteen_ranks_of_each_host_are_the_most_and_all_hosts_have_no_limit() {
        for (nranks, team) in [(2, 2), (16, 16), (32, 16), (1 << 16, 16), (1 << 16, 1)] {
            usual_topology(false, nranks, team, true).expect("ranks fit");
            // A rank counts those of its host.
            let place = |rank| (rank < team as usize).then_some(rank);
            let local: Vec<_> = (0..nranks as usize).map(place).collect();
            let here = cuda::layout::Membership { rank: 0, local: &local }.ranks().len();
            assert_eq!(here, team as usize);
            cuda::rank::check_ranks(here as u32).expect("ranks fit");
        }
        for (nranks, team) in [(17, 17), (34, 17)] {
            let error = usual_topology(false, nranks, team, true).unwrap_err();
            assert_eq!(
                error.to_string(),
                "a communicator of 17 GPUs of one host; up to 16 ranks of each host are supported \
                 on GPUs"
            );
            assert_eq!(error.code(), crate::error::Code::InvalidUsage);
        }
    }
}
