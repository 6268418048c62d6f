//! Objects that C holds handles of. Objects of the host device are this library's. Objects of CUDA
//! are the driver's, and their handles are passed through.

use super::cuda;
use crate::error::{Error, Result};
use crate::fork;
use crate::handle::{Dead, Handles, Named, may_be_cuda};
use std::sync::Arc;

/// An object of one of the two devices.
pub enum OnDevice<H, C> {
    /// An object of the host device.
    Host(H),
    /// An object of CUDA.
    Cuda(C),
}

/// Returns whether a handle that is not this library's is one of CUDA. Every such handle is, if
/// there is CUDA. As in CUDA, its object has to be alive.
#[cold]
fn is_cuda(handle: usize) -> bool {
    may_be_cuda(handle) && cuda::driver::count().is_ok()
}

/// Returns the object that a table found, or the handle as one of CUDA's.
pub(super) fn on<T, C: From<usize>>(
    found: std::result::Result<T, Dead>,
    handle: usize,
    named: Named,
) -> Result<OnDevice<T, C>> {
    match found {
        Ok(object) => Ok(OnDevice::Host(object)),
        Err(Dead::Alien) if is_cuda(handle) => Ok(OnDevice::Cuda(handle.into())),
        Err(why) => Err(why.error(handle, named)),
    }
}

/// Looks a handle up.
pub(super) fn find<T: 'static, C: From<usize>>(
    table: &Handles<T>,
    handle: usize,
    named: Named,
) -> Result<OnDevice<Arc<T>, C>> {
    fork::check()?;
    on(table.get(handle), handle, named)
}

/// Ends an object: the host device's with its last reference, CUDA's by `end`.
pub(super) fn destroy<T: 'static, C: From<usize>>(
    table: &Handles<T>,
    handle: usize,
    named: Named,
    end: impl FnOnce(C) -> Result<()>,
) -> Result<()> {
    fork::check()?;
    match on(table.remove(handle), handle, named)? {
        OnDevice::Host(_) => Ok(()),
        OnDevice::Cuda(object) => end(object),
    }
}

/// Returns two objects of the same device. Fails if their devices differ; `second` is the name of
/// the second argument in errors.
pub(super) fn both<A, B, C, D>(
    a: OnDevice<A, C>,
    b: OnDevice<B, D>,
    (function, second): Named,
) -> Result<OnDevice<(A, B), (C, D)>> {
    let (got, expected) = match (a, b) {
        (OnDevice::Host(a), OnDevice::Host(b)) => return Ok(OnDevice::Host((a, b))),
        (OnDevice::Cuda(c), OnDevice::Cuda(d)) => return Ok(OnDevice::Cuda((c, d))),
        (OnDevice::Host(_), OnDevice::Cuda(_)) => {
            ("CUDA's", "one of the host device, as the other argument")
        }
        (OnDevice::Cuda(_), OnDevice::Host(_)) => {
            ("the host device's", "one of CUDA, as the other argument")
        }
    };
    Err(Error::argument(function, second, got, expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Event, Stream};

    /// An address in this process, as the handles of CUDA are.
    const ADDRESS: usize = 0x7f00_1234_5678;

    #[test]
    fn every_handle_of_ours_is_the_hosts_and_others_are_cudas_where_there_is_cuda() {
        crate::device::choose(crate::device::Device::Host(0)).unwrap();
        let event = |handle| Event::of_handle(handle, ("f", "event"));
        let stream = |handle| Stream::of_handle(handle, "f");
        let handle = Event::create().unwrap();
        assert!(matches!(event(handle), Ok(Event::Host(_))));
        let wrong_kind = stream(handle).err().expect("it is no stream").to_string();
        assert!(wrong_kind.contains("no handle of that kind"), "{wrong_kind}");
        Event::destroy(handle, ("f", "event")).unwrap();
        let destroyed = event(handle).err().expect("it is dead").to_string();
        assert!(destroyed.contains("which was destroyed"), "{destroyed}");
        assert!(event(0).is_err(), "null is no event of CUDA's");
        match (event(ADDRESS), stream(ADDRESS), cuda::driver::count()) {
            (Ok(Event::Cuda(event)), Ok(Stream::Cuda(stream)), Ok(_)) => {
                assert_eq!((event.0 as usize, stream.0 as usize), (ADDRESS, ADDRESS));
            }
            (Err(event), Err(stream), Err(_)) => {
                assert!(event.to_string().contains("no handle of that kind"), "{event}");
                assert!(stream.to_string().contains("no handle of that kind"), "{stream}");
            }
            _ => panic!("the driver is there, or it is not"),
        }
    }

    #[test]
    fn what_is_of_the_host_does_not_mix_with_what_is_of_cuda() {
        use OnDevice::{Cuda, Host};
        let mix = |a: OnDevice<i32, u8>, b: OnDevice<i32, u8>| both(a, b, ("f", "event"));
        assert!(matches!(mix(Host(1), Host(2)), Ok(Host((1, 2)))));
        assert!(matches!(mix(Cuda(1), Cuda(2)), Ok(Cuda((1, 2)))));
        let text = |a, b| mix(a, b).err().expect("they differ").to_string();
        let host_first = text(Host(1), Cuda(2));
        assert!(host_first.contains("event is CUDA's; expected one of the host"), "{host_first}");
        let cuda_first = text(Cuda(1), Host(2));
        assert!(cuda_first.contains("event is the host device's; expected one of CUDA"));
    }
}
