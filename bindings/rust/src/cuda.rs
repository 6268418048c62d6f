//! Communicators on GPUs, for the slices and streams of the crate `cudarc`.
//!
//! Operations are queued on the stream of their communicator, as kernels are, and nothing waits for
//! them. `cudarc` keeps the order of what uses a slice on several streams, and frees its memory
//! behind that.
//!
//! Events are those of `cudarc`, on [`Comm::stream`]: they are recorded, awaited by other streams
//! and asked for as behind any other work, and [`With::recording`] records one behind a call.

use crate::call::{Device, check, number};
use crate::comm::{Id, Shrink};
use crate::element::{Element, F8E4M3, F8E5M2};
use crate::error::{Code, Error, Result};
use crate::operations::{Parts, equal, type_of};
use crate::options::{self, CallOptions};
use crate::reduction::{MultipliedSum, Reduction};
use crate::scope::grouped;
use capi::nccl::collectives::{
    ncclAllGather, ncclAllReduce, ncclAlltoAll, ncclBroadcast, ncclGather, ncclRecv, ncclReduce,
    ncclReduceScatter, ncclScatter, ncclSend,
};
use capi::nccl::configured::{
    ncclAllGatherConfig, ncclAllReduceConfig, ncclAlltoAllConfig, ncclBroadcastConfig,
    ncclGatherConfig, ncclReduceConfig, ncclReduceScatterConfig, ncclScatterConfig,
};
use capi::nccl::types::cudaStream_t;
use capi::nccl::window::{ncclCommDeregister, ncclCommRegister};
use capi::oxccl::info::oxcclCommByCopyEngines;
use capi::oxccl::types::oxcclDeviceKind_t;
use capi::oxccl::vcollectives::{
    oxcclAllGatherv, oxcclAlltoAllv, oxcclGatherv, oxcclReduceScatterv, oxcclScatterv,
};
use cudarc::driver::sys::{CUdeviceptr, CUgraphInstantiate_flags};
use cudarc::driver::sys::{CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{
    CudaEvent, CudaGraph, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice,
    DriverError, SyncOnDrop,
};
use std::cell::RefCell;
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::without_provenance_mut;
use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

// SAFETY: one byte, of which every pattern is valid.
unsafe impl DeviceRepr for F8E4M3 {}
// SAFETY: one byte, of which every pattern is valid.
unsafe impl DeviceRepr for F8E5M2 {}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Error::new(Code::Cuda, error.to_string())
    }
}

/// A rank's part of a communicator on the GPU of a stream.
///
/// It ends as a [`crate::Comm`] does: when it is dropped, by [`close`](Self::close), or by
/// [`abort`](Self::abort).
///
/// ```no_run
/// # extern crate oxccl_rs as oxccl;
/// use cudarc::driver::CudaContext;
/// use oxccl::{Id, ReduceOp, cuda};
///
/// # fn f(rank: usize, size: usize, id: Id) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(rank)?.default_stream();
/// let comm = cuda::Comm::from_rank(&stream, rank, size, id)?;
/// let mut x = stream.clone_htod(&[1.0_f32, 2.0])?;
/// comm.all_reduce_in_place(&mut x, ReduceOp::Sum)?;
/// assert_eq!(stream.clone_dtoh(&x)?, [size as f32, 2.0 * size as f32]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Comm {
    comm: crate::Comm,
    stream: Arc<CudaStream>,
    /// Waits for earlier uses of slices that a graph will use; made for the first one, as `cudarc`
    /// keeps the order of streams only where there are several.
    before: OnceLock<Arc<CudaStream>>,
}

/// Making, asking and ending communicators.
impl Comm {
    /// Makes the part of rank `rank` in a communicator of `size` ranks, which all have the same id.
    /// Blocks until all ranks have come, as [`crate::Comm::from_rank`] does.
    pub fn from_rank(stream: &Arc<CudaStream>, rank: usize, size: usize, id: Id) -> Result<Self> {
        let comm = crate::Comm::on(gpu_of(stream), rank, size, id)?;
        Ok(Self::of(comm, stream))
    }

    /// Makes a communicator of the ranks with the same color, on the same stream, as
    /// [`crate::Comm::split`] does.
    pub fn split(&self, color: Option<usize>, key: i32) -> Result<Option<Self>> {
        let part = self.comm.split(color, key)?;
        Ok(part.map(|comm| Self::of(comm, &self.stream)))
    }

    /// Makes a communicator without some ranks, on the same stream, as [`crate::Comm::shrink`]
    /// does.
    pub fn shrink(&self, exclude: &[usize], state: Shrink) -> Result<Self> {
        Ok(Self::of(self.comm.shrink(exclude, state)?, &self.stream))
    }

    /// Makes the id by which ranks join one growth of this communicator, as
    /// [`crate::Comm::growth_id`] does.
    pub fn growth_id(&self) -> Result<Id> {
        self.comm.growth_id()
    }

    /// Makes a communicator of more ranks, on the same stream, as [`crate::Comm::grow`] does.
    pub fn grow(&self, size: usize, id: Option<Id>) -> Result<Self> {
        Ok(Self::of(self.comm.grow(size, id)?, &self.stream))
    }

    /// Makes the part of a rank that is new in a communicator that grows, as [`crate::Comm::join`]
    /// does.
    pub fn join(stream: &Arc<CudaStream>, rank: usize, size: usize, id: Id) -> Result<Self> {
        let comm = crate::Comm::join_on(gpu_of(stream), rank, size, id)?;
        Ok(Self::of(comm, stream))
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// Returns the stream on which operations are queued.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Returns this communicator with options for the calls that are made with what it returns. On
    /// GPUs a call with a deadline of its own fails; [`set_timeout`](Self::set_timeout) limits all.
    pub fn with<'options>(&self, options: &'options CallOptions) -> With<'_, 'options> {
        With { comm: self, options: self.comm.with(options) }
    }

    /// Registers memory with this communicator, as [`crate::Comm::register`] does; it lies in one
    /// allocation. What a plan gains by it, `oxccl plan` tells. The registration ends when what it
    /// returns is dropped. Blocks: never.
    pub fn register<'a, T: Element, S: DevicePtrMut<T>>(
        &'a self,
        data: &'a mut S,
    ) -> Result<Registered<'a, S>> {
        let mut handle = null_mut();
        let bytes = data.len() * size_of::<T>();
        let (address, guard) = data.device_ptr_mut(&self.stream);
        // SAFETY: the slice is borrowed while it is registered; there is a place for the handle.
        let registered = check(unsafe {
            let at = with_exposed_provenance_mut(address as usize);
            ncclCommRegister(self.comm.raw(), at, bytes, &mut handle)
        });
        drop(guard);
        registered?;
        Ok(Registered { comm: self, data, handle: handle.addr() })
    }

    /// Makes a sum of multiples, as [`crate::Comm::multiplied_sum`] does.
    pub fn multiplied_sum<T: Element>(&self, factor: T) -> Result<MultipliedSum<'_, T>> {
        self.comm.multiplied_sum(factor)
    }

    /// Returns the error with which the communicator failed; `None` while it works.
    pub fn async_error(&self) -> Option<Error> {
        self.comm.async_error()
    }

    /// Limits how long an operation may wait for another rank, as [`crate::Comm::set_timeout`]
    /// does.
    pub fn set_timeout(&self, limit: Option<Duration>) -> Result<()> {
        self.comm.set_timeout(limit)
    }

    /// Returns the number of collectives that were carried out in place, as
    /// [`crate::Comm::in_place`] does.
    pub fn in_place(&self) -> Result<u64> {
        self.comm.in_place()
    }

    /// Returns the number of operations whose data copy engines moved: large puts, all-gathers and
    /// all-to-alls between windows, above all with [`CtaPolicy::Zero`](crate::CtaPolicy::Zero).
    pub fn by_copy_engines(&self) -> Result<u64> {
        let mut count = 0;
        // SAFETY: a place for the result.
        check(unsafe { oxcclCommByCopyEngines(self.comm.raw(), &mut count) })?;
        Ok(count)
    }

    /// Ends all operations, as [`crate::Comm::revoke`] does.
    pub fn revoke(&self) -> Result<()> {
        self.comm.revoke()
    }

    /// Gives memory of the communicator back, as [`crate::Comm::suspend`] does.
    pub fn suspend(&self) -> Result<()> {
        self.comm.suspend()
    }

    /// Lets a suspended communicator take operations again.
    pub fn resume(&self) -> Result<()> {
        self.comm.resume()
    }

    /// Completes all operations and ends this rank's part of the communicator, as
    /// [`crate::Comm::close`] does.
    pub fn close(self) -> Result<()> {
        self.comm.close()
    }

    /// Ends the communicator at once, as [`crate::Comm::abort`] does.
    pub fn abort(&self) -> Result<()> {
        self.comm.abort()
    }

    fn of(comm: crate::Comm, stream: &Arc<CudaStream>) -> Self {
        Self { comm, stream: stream.clone(), before: OnceLock::new() }
    }

    fn raw(&self) -> cudaStream_t {
        self.stream.cu_stream().cast()
    }
}

/// Returns the GPU of a stream.
fn gpu_of(stream: &CudaStream) -> Device {
    (oxcclDeviceKind_t::oxcclDeviceCuda, number(stream.context().ordinal()))
}

/// A communicator whose calls have options, made by [`Comm::with`]. It has the eight collectives
/// that NCCL gives options, in both forms that [`Comm`] has.
#[derive(Clone, Copy, Debug)]
pub struct With<'comm, 'options> {
    comm: &'comm Comm,
    options: options::With<'comm, 'options>,
}

impl<'comm> With<'comm, '_> {
    /// Records an event behind the calls that are made with what this returns, as
    /// [`crate::With::recording`] does. Fails within [`capture`](Comm::capture).
    pub fn recording(self, event: &'comm CudaEvent) -> Self {
        Self { options: self.options.with_event(event.cu_event().addr()), ..self }
    }
}

/// Registered memory, made by [`Comm::register`] and used as the slice itself, which cannot be
/// exchanged for another one meanwhile.
#[derive(Debug)]
pub struct Registered<'a, S> {
    comm: &'a Comm,
    data: &'a mut S,
    handle: usize,
}

impl<S> Deref for Registered<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.data
    }
}

impl<T, S: DeviceSlice<T>> DeviceSlice<T> for Registered<'_, S> {
    fn len(&self) -> usize {
        self.data.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.data.stream()
    }
}

impl<T, S: DevicePtr<T>> DevicePtr<T> for Registered<'_, S> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.data.device_ptr(stream)
    }
}

impl<T, S: DevicePtrMut<T>> DevicePtrMut<T> for Registered<'_, S> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.data.device_ptr_mut(stream)
    }
}

impl<S> Drop for Registered<'_, S> {
    fn drop(&mut self) {
        // SAFETY: any handle may be passed.
        unsafe { ncclCommDeregister(self.comm.comm.raw(), without_provenance_mut(self.handle)) };
    }
}

/// Calls that are launched together, made by [`group`], or captured, made by [`Comm::capture`].
pub struct Group<'g> {
    /// The guards that tell other streams of the use of slices, once it is queued.
    guards: RefCell<Vec<SyncOnDrop<'g>>>,
    /// The stream that is captured, and the one that waits for earlier uses of the slices.
    captured: Option<(&'g Arc<CudaStream>, &'g CudaStream)>,
    /// The streams of its calls, unless they are captured.
    streams: RefCell<Vec<&'g CudaStream>>,
}

impl<'g> Group<'g> {
    /// Returns the stream by which `cudarc` knows of the use of slices. Fails if the communicator's
    /// stream is captured and this group is not, or the other way round.
    fn enter(&self, comm: &'g Comm) -> Result<&'g CudaStream> {
        let wrong = |text: &str| Err(Error::new(Code::InvalidUsage, text.to_owned()));
        comm.stream.context().bind_to_thread()?;
        match self.captured {
            None => {
                refuse_capture(&comm.stream)?;
                self.streams.borrow_mut().push(&comm.stream);
                Ok(&comm.stream)
            }
            Some((stream, before)) if Arc::ptr_eq(stream, &comm.stream) => Ok(before),
            Some(_) => wrong("the communicator has another stream than the one that is captured"),
        }
    }
}

/// A group, and the stream by which `cudarc` knows of the use of slices.
#[derive(Clone, Copy)]
struct On<'a, 'g> {
    group: &'a Group<'g>,
    stream: &'g CudaStream,
}

impl<'g> On<'_, 'g> {
    fn input<T>(self, data: &'g impl DevicePtr<T>) -> *const c_void {
        let (address, guard) = data.device_ptr(self.stream);
        self.group.guards.borrow_mut().push(guard);
        with_exposed_provenance(address as usize)
    }

    fn output<T>(self, data: &'g mut impl DevicePtrMut<T>) -> *mut c_void {
        let (address, guard) = data.device_ptr_mut(self.stream);
        self.group.guards.borrow_mut().push(guard);
        with_exposed_provenance_mut(address as usize)
    }
}

/// Calls a function whose operations are launched together when it returns.
///
/// Sends and receives of a group wait for no order, so ranks can exchange data; and one thread can
/// make the calls of several GPUs. If the function fails or panics, nothing is launched. Blocks:
/// never.
pub fn group<'g, R>(f: impl FnOnce(&Group<'g>) -> Result<R>) -> Result<R> {
    let group = Group { guards: RefCell::default(), captured: None, streams: RefCell::default() };
    grouped("group", || {
        let value = f(&group)?;
        // What is launched now would be captured.
        group.streams.borrow().iter().try_for_each(|stream| refuse_capture(stream))?;
        Ok(value)
    })
    // Only now that all is queued the guards are dropped.
}

/// Fails if somebody else captures a stream: slices would be used after they are given back.
fn refuse_capture(stream: &CudaStream) -> Result<()> {
    let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let text = "the stream is captured; capture operations by Comm::capture";
    let refused = || Error::new(Code::InvalidUsage, text.to_owned());
    (stream.capture_status()? == none).then_some(()).ok_or_else(refused)
}

/// Operations that were captured by [`Comm::capture`].
pub struct Graph<'g> {
    graph: Option<CudaGraph>,
    stream: &'g Arc<CudaStream>,
    /// Dropped behind the graph.
    _guards: Vec<SyncOnDrop<'g>>,
}

impl Graph<'_> {
    /// Queues all operations on the communicator's stream. All ranks launch their graphs in the
    /// same order. Blocks: never.
    pub fn launch(&self) -> Result<()> {
        refuse_capture(self.stream)?;
        // Without a graph nothing was captured.
        self.graph.as_ref().map_or(Ok(()), |graph| Ok(graph.launch()?))
    }
}

impl std::fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("stream", self.stream).finish_non_exhaustive()
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // After an error of CUDA nothing uses the slices any more, and the next call tells it.
        let _ = self.stream.synchronize();
    }
}

impl Comm {
    /// Captures the operations that a function puts into a group, instead of launching them, and
    /// passes the graph on to another function, which launches it as often as it likes.
    ///
    /// Blocks until what has used the slices before is done and, at the end, until all launches are
    /// complete: until then the slices are borrowed.
    ///
    /// ```no_run
    /// # extern crate oxccl_rs as oxccl;
    /// # use oxccl::{ReduceOp, cuda};
    /// # fn f(comm: &cuda::Comm, data: &mut cudarc::driver::CudaSlice<f32>) -> oxccl::Result<()> {
    /// comm.capture(
    ///     |group| comm.all_reduce_in_place_on(group, data, ReduceOp::Sum),
    ///     |graph| (0..3).try_for_each(|_| graph.launch()),
    /// )
    /// # }
    /// ```
    ///
    /// The slices cannot be used while the graph may be launched:
    ///
    /// ```compile_fail,E0505
    /// # extern crate oxccl_rs as oxccl;
    /// # use oxccl::{ReduceOp, cuda};
    /// # fn f(comm: &cuda::Comm, mut data: cudarc::driver::CudaSlice<f32>) -> oxccl::Result<()> {
    /// comm.capture(
    ///     |group| comm.all_reduce_in_place_on(group, &mut data, ReduceOp::Sum),
    ///     |graph| {
    ///         drop(data);
    ///         graph.launch()
    ///     },
    /// )
    /// # }
    /// ```
    pub fn capture<'g, R>(
        &'g self,
        calls: impl FnOnce(&Group<'g>) -> Result<()>,
        run: impl FnOnce(&Graph<'_>) -> Result<R>,
    ) -> Result<R> {
        let before = self.before()?;
        let captured = Some((&self.stream, before));
        let group = Group { guards: RefCell::default(), captured, streams: RefCell::default() };
        let mut capture = Capture::begin(&self.stream)?;
        let called = grouped("capture", || calls(&group)).and_then(|()| capture.end());
        drop(capture);
        let (graph, error) = match called {
            Ok(graph) => (graph, None),
            Err(error) => (None, Some(error)),
        };
        // Its end waits for what may have been launched though it should have been captured.
        let guards = group.guards.into_inner();
        let graph = Graph { graph, stream: &self.stream, _guards: guards };
        error.map_or(Ok(()), Err)?;
        before.synchronize()?;
        run(&graph)
    }

    /// Returns the stream that waits for earlier uses of slices.
    fn before(&self) -> Result<&CudaStream> {
        if let Some(before) = self.before.get() {
            return Ok(before);
        }
        let new = self.stream.context().new_stream()?;
        Ok(self.before.get_or_init(|| new))
    }
}

/// The capture of a stream, which ends with this value: also after an error or a panic.
struct Capture<'a>(Option<&'a Arc<CudaStream>>);

impl<'a> Capture<'a> {
    fn begin(stream: &'a Arc<CudaStream>) -> Result<Self> {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        Ok(Self(Some(stream)))
    }

    /// Ends it; returns what was captured, `None` for nothing.
    fn end(&mut self) -> Result<Option<CudaGraph>> {
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let ended = self.0.take().map(|stream| stream.end_capture(flags));
        Ok(ended.transpose()?.flatten())
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // After an error of the calls, what was captured is not wanted.
        let _ = self.end();
    }
}

/// Defines operations in both forms: `name, name_on: |comm, group| (arguments) { checks } call`,
/// where communicator and stream follow the arguments of the call; of those that can have options
/// also for [`With`].
macro_rules! operations {
    (plain: $($(#[$doc:meta])* $name:ident, $on:ident: |$comm:pat_param, $group:pat_param| (
        $($argument:ident: $type:ty),*
    ) { $($checks:tt)* } $call:ident($($value:expr),*);)*) => {
        /// Operations without options. All ranks make the calls of a communicator in the same
        /// order.
        impl Comm {$(
            forms! { $(#[$doc])* ('g) &'g self,
                $name, $on[T: Element]($($argument: $type),*) group {
                let ($comm, $group) = (self, On { group, stream: group.enter(self)? });
                $($checks)*
                // SAFETY: the slices are on a GPU and have as many elements as the call says, which
                // was checked. What uses them later is queued behind this, by the group's guards.
                check(unsafe { $call($($value,)* self.comm.raw(), self.raw()) })
            } }
        )*}
    };
    (configured: $($(#[$doc:meta])* $name:ident, $on:ident: |$comm:pat_param, $group:pat_param| (
        $($argument:ident: $type:ty),*
    ) { $($checks:tt)* } $call:ident | $configured:ident($($value:expr),*);)*) => {
        /// Collectives, which can have options by [`with`](Self::with). All ranks make the calls of
        /// a communicator in the same order.
        impl Comm {$(
            forms! { $(#[$doc])* ('g) &'g self,
                $name, $on[T: Element]($($argument: $type),*) group {
                let plain = With { comm: self, options: options::With::nothing(&self.comm) };
                plain.$on(group, $($argument),*)
            } }
        )*}

        /// Collectives with options.
        impl<'g> With<'g, '_> {$(
            forms! { $(#[$doc])* () self, $name, $on[T: Element]($($argument: $type),*) group {
                let comm = self.comm;
                self.options.refuse_record(group.captured.is_some())?;
                let ($comm, $group) = (comm, On { group, stream: group.enter(comm)? });
                $($checks)*
                self.options.lend(|options| {
                    // SAFETY: as for messages. Options are read before the call returns.
                    check(unsafe { match options {
                        None => $call($($value,)* comm.comm.raw(), comm.raw()),
                        Some(options) => {
                            $configured($($value,)* comm.comm.raw(), comm.raw(), options)
                        }
                    } })
                })
            } }
        )*}
    };
}

/// Defines a method that queues an operation, and the one for a group that it calls.
macro_rules! forms {
    ($(#[$doc:meta])* ($($life:lifetime)?) $(&$borrow:lifetime)? $self:ident, $name:ident,
        $on:ident[$($generics:tt)*]($($argument:ident: $type:ty),*)
        $group:ident { $($body:tt)* }) => {
        $(#[$doc])*
        ///
        /// Blocks: never. Fails if a length is wrong, or if the communicator has failed.
        pub fn $name<$($life,)? $($generics)*>(
            $(&$borrow)? $self,
            $($argument: $type),*
        ) -> Result<()> {
            group(|group| $self.$on(group, $($argument),*))
        }

        #[doc = concat!("Puts [`", stringify!($name), "`](Self::", stringify!($name), ")")]
        /// into a group, at whose end it is launched.
        pub fn $on<$($life,)? $($generics)*>(
            $(&$borrow)? $self,
            $group: &Group<'g>,
            $($argument: $type),*
        ) -> Result<()> {
            $($body)*
        }
    };
}

// Behind the macro that it uses.
mod window;

pub use window::Window;

operations! { configured:
    /// Leaves the reduction of all ranks' inputs in every rank's output, which is as long.
    all_reduce, all_reduce_on: |_, group| (
        input: &'g impl DevicePtr<T>, output: &'g mut impl DevicePtrMut<T>, op: impl Reduction<T>
    ) {
        let count = input.len();
        equal("all_reduce", "output", output.len(), count)?;
        let (from, to) = (group.input(input), group.output(output));
    } ncclAllReduce | ncclAllReduceConfig(from, to, count, type_of::<T>(), op.number());

    /// Replaces every rank's elements by the reduction of all ranks'.
    all_reduce_in_place, all_reduce_in_place_on: |_, group| (
        data: &'g mut impl DevicePtrMut<T>, op: impl Reduction<T>
    ) {
        let (count, at) = (data.len(), group.output(data));
    } ncclAllReduce | ncclAllReduceConfig(at, at, count, type_of::<T>(), op.number());

    /// Replaces every rank's elements by those of rank `root`.
    broadcast, broadcast_on: |_, group| (data: &'g mut impl DevicePtrMut<T>, root: usize) {
        let (count, at) = (data.len(), group.output(data));
    } ncclBroadcast | ncclBroadcastConfig(at, at, count, type_of::<T>(), number(root));

    /// Leaves the reduction of all ranks' inputs in the output of rank `root`, which is as long.
    /// The other ranks' output is ignored.
    reduce, reduce_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: Option<&'g mut impl DevicePtrMut<T>>,
        op: impl Reduction<T>, root: usize
    ) {
        let output = comm.comm.at_root("reduce", "output", output, root)?;
        let count = input.len();
        equal("reduce", "output", output.as_ref().map_or(count, |output| output.len()), count)?;
        let to = output.map_or(null_mut(), |output| group.output(output));
        let from = group.input(input);
    } ncclReduce | ncclReduceConfig(from, to, count, type_of::<T>(), op.number(), number(root));

    /// Replaces the elements of rank `root` by the reduction of all ranks'. Those of the other
    /// ranks stay.
    reduce_in_place, reduce_in_place_on: |_, group| (
        data: &'g mut impl DevicePtrMut<T>, op: impl Reduction<T>, root: usize
    ) {
        let (count, at) = (data.len(), group.output(data));
    } ncclReduce | ncclReduceConfig(at, at, count, type_of::<T>(), op.number(), number(root));

    /// Leaves the inputs of all ranks one behind the other in every rank's output.
    all_gather, all_gather_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: &'g mut impl DevicePtrMut<T>
    ) {
        let count = input.len();
        equal("all_gather", "output", output.len(), comm.comm.blocks(count))?;
        let (from, to) = (group.input(input), group.output(output));
    } ncclAllGather | ncclAllGatherConfig(from, to, count, type_of::<T>());

    /// Leaves this rank's block of the reduction of all ranks' inputs in its output. The input has
    /// a block as long as the output for each rank.
    reduce_scatter, reduce_scatter_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: &'g mut impl DevicePtrMut<T>, op: impl Reduction<T>
    ) {
        let count = output.len();
        equal("reduce_scatter", "input", input.len(), comm.comm.blocks(count))?;
        let (from, to) = (group.input(input), group.output(output));
    } ncclReduceScatter | ncclReduceScatterConfig(from, to, count, type_of::<T>(), op.number());

    /// Sends block `r` of this rank's input to rank `r`, in whose output it becomes the block of
    /// this rank. Input and output are equally long, with a block of equal length for each rank.
    all_to_all, all_to_all_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: &'g mut impl DevicePtrMut<T>
    ) {
        let count = comm.comm.block("all_to_all", "input", input.len())?;
        equal("all_to_all", "output", output.len(), input.len())?;
        let (from, to) = (group.input(input), group.output(output));
    } ncclAlltoAll | ncclAlltoAllConfig(from, to, count, type_of::<T>());

    /// Leaves the inputs of all ranks one behind the other in the output of rank `root`. The other
    /// ranks' output is ignored.
    gather, gather_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: Option<&'g mut impl DevicePtrMut<T>>, root: usize
    ) {
        let output = comm.comm.at_root("gather", "output", output, root)?;
        let (count, all) = (input.len(), comm.comm.blocks(input.len()));
        equal("gather", "output", output.as_ref().map_or(all, |output| output.len()), all)?;
        let to = output.map_or(null_mut(), |output| group.output(output));
        let from = group.input(input);
    } ncclGather | ncclGatherConfig(from, to, count, type_of::<T>(), number(root));

    /// Leaves block `r` of the input of rank `root` in the output of rank `r`. The other ranks'
    /// input is ignored.
    scatter, scatter_on: |comm, group| (
        input: Option<&'g impl DevicePtr<T>>, output: &'g mut impl DevicePtrMut<T>, root: usize
    ) {
        let input = comm.comm.at_root("scatter", "input", input, root)?;
        let (count, all) = (output.len(), comm.comm.blocks(output.len()));
        equal("scatter", "input", input.map_or(all, |input| input.len()), all)?;
        let from = input.map_or(null(), |input| group.input(input));
        let to = group.output(output);
    } ncclScatter | ncclScatterConfig(from, to, count, type_of::<T>(), number(root));
}

operations! { plain:
    /// Sends elements to rank `peer`, which has to receive as many. Ranks that send to each other,
    /// or in a circle, do so in a [`group`](crate::cuda::group()), else they wait for ever.
    send, send_on: |_, group| (data: &'g impl DevicePtr<T>, peer: usize) {
        let (count, from) = (data.len(), group.input(data));
    } ncclSend(from, count, type_of::<T>(), number(peer));

    /// Receives elements from rank `peer`, which has to send as many.
    recv, recv_on: |_, group| (data: &'g mut impl DevicePtrMut<T>, peer: usize) {
        let (count, to) = (data.len(), group.output(data));
    } ncclRecv(to, count, type_of::<T>(), number(peer));
}

operations! { plain:
    /// Gathers the inputs of all ranks, of different lengths, in the parts of every rank's output.
    all_gather_v, all_gather_v_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: &'g mut impl DevicePtrMut<T>, parts: Parts<'_>
    ) {
        let (counts, displs) = comm.comm.parts("all_gather_v", ("output", output.len()), parts)?;
        let (count, from, to) = (input.len(), group.input(input), group.output(output));
    } oxcclAllGatherv(from, count, to, counts, displs, type_of::<T>());

    /// Leaves this rank's block of the reduction of all ranks' inputs in its output, where the
    /// block of rank `r` has `counts[r]` elements. The input has all blocks one behind the other;
    /// all ranks pass the same counts.
    reduce_scatter_v, reduce_scatter_v_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: &'g mut impl DevicePtrMut<T>, counts: &[usize],
        op: impl Reduction<T>
    ) {
        comm.comm.counts("reduce_scatter_v", counts, input.len(), output.len())?;
        let (from, to) = (group.input(input), group.output(output));
    } oxcclReduceScatterv(from, to, counts.as_ptr(), type_of::<T>(), op.number());

    /// Sends part `r` of this rank's input to rank `r`, and leaves what comes from rank `r` in part
    /// `r` of the output.
    all_to_all_v, all_to_all_v_on: |comm, group| (
        input: &'g impl DevicePtr<T>, sent: Parts<'_>, output: &'g mut impl DevicePtrMut<T>,
        received: Parts<'_>
    ) {
        let sent = comm.comm.parts("all_to_all_v", ("input", input.len()), sent)?;
        let received = comm.comm.parts("all_to_all_v", ("output", output.len()), received)?;
        let (from, to) = (group.input(input), group.output(output));
    } oxcclAlltoAllv(from, sent.0, sent.1, to, received.0, received.1, type_of::<T>());

    /// Gathers the inputs of all ranks, of different lengths, in the parts of the output of rank
    /// `root`. The other ranks' output is ignored.
    gather_v, gather_v_on: |comm, group| (
        input: &'g impl DevicePtr<T>, output: Option<(&'g mut impl DevicePtrMut<T>, Parts<'_>)>,
        root: usize
    ) {
        let (to, counts, displs) = match comm.comm.at_root("gather_v", "output", output, root)? {
            Some((output, parts)) => {
                let parts = comm.comm.parts("gather_v", ("output", output.len()), parts)?;
                (group.output(output), parts.0, parts.1)
            }
            None => (null_mut(), null(), null()),
        };
        let (count, from) = (input.len(), group.input(input));
    } oxcclGatherv(from, count, to, counts, displs, type_of::<T>(), number(root));

    /// Leaves part `r` of the input of rank `root` in the output of rank `r`. The other ranks'
    /// input is ignored.
    scatter_v, scatter_v_on: |comm, group| (
        input: Option<(&'g impl DevicePtr<T>, Parts<'_>)>, output: &'g mut impl DevicePtrMut<T>,
        root: usize
    ) {
        let (from, counts, displs) = match comm.comm.at_root("scatter_v", "input", input, root)? {
            Some((input, parts)) => {
                let parts = comm.comm.parts("scatter_v", ("input", input.len()), parts)?;
                (group.input(input), parts.0, parts.1)
            }
            None => (null(), null(), null()),
        };
        let (count, to) = (output.len(), group.output(output));
    } oxcclScatterv(from, counts, displs, to, count, type_of::<T>(), number(root));
}
