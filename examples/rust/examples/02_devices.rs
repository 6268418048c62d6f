//! One process drives many devices: all GPUs, or four devices of the host. `02_devices`

use oxccl::nccl::collectives::ncclAllReduce;
use oxccl::nccl::comm::ncclCommInitAll;
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::types::{ncclDataType_t, ncclRedOp_t};
use oxccl::oxccl::device::{oxcclDeviceCount, oxcclDeviceGet, oxcclDeviceSet};
use oxccl::oxccl::types::oxcclDeviceKind_t;
use oxccl_examples::{Outcome, Rank, check, verdict};
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

fn ranks() -> Outcome<Vec<Rank<i32>>> {
    let (mut kind, mut index, mut n) = (oxcclDeviceKind_t::oxcclDeviceHost, 0, 4);
    // SAFETY: all places are valid, and there is one for each communicator.
    let comms = unsafe {
        check(oxcclDeviceGet(&mut kind, &mut index))?;
        if kind == oxcclDeviceKind_t::oxcclDeviceCuda {
            check(oxcclDeviceCount(MaybeUninit::new(kind), &mut n))?;
        }
        let mut comms = vec![null_mut(); n as usize];
        check(ncclCommInitAll(comms.as_mut_ptr(), n, null()))?;
        comms
    };
    let ranks = comms.into_iter().zip(0..).map(|(comm, device)| {
        // What is made from here on belongs to this device.
        // SAFETY: any kind and number may be passed.
        check(unsafe { oxcclDeviceSet(MaybeUninit::new(kind), device) })?;
        Rank::of(comm, |_| 1)
    });
    ranks.collect()
}

fn sums() -> Outcome<bool> {
    let mut ranks = ranks()?;
    for r in &ranks {
        r.put(0, &[r.rank + 1])?;
    }
    let int = MaybeUninit::new(ncclDataType_t::ncclInt32);
    let sum = MaybeUninit::new(ncclRedOp_t::ncclSum);
    // One thread makes the calls of all ranks: they belong together.
    // SAFETY: the buffers have an element and live until the streams are synchronized.
    unsafe {
        check(ncclGroupStart())?;
        for r in &ranks {
            check(ncclAllReduce(r.x.cast(), r.x.cast(), 1, int, sum, r.comm, r.stream))?;
        }
        check(ncclGroupEnd())?;
    }
    let mut right = true;
    for r in &ranks {
        let mut got = [0];
        r.get(0, &mut got)?;
        right &= got[0] == r.nranks * (r.nranks + 1) / 2;
    }
    ranks.clear();
    Ok(right)
}

fn main() -> ExitCode {
    verdict(sums(), 0, 1, "sums on all devices")
}
