//! Streams, and the scopes that wait for the operations which borrow memory.
//!
//! Nothing here hands out a guard whose destructor would have to run: as with
//! `std::thread::scope`, the function that opens a scope is on the stack below the caller's code,
//! and waits before it returns or unwinds.

use crate::call::{HOST, check, on_device};
use crate::comm::Comm;
use crate::error::{Code, Error, Result};
use capi::nccl::group::{ncclGroupEnd, ncclGroupSimulateEnd, ncclGroupStart};
use capi::oxccl::stream::{oxcclStreamCreate, oxcclStreamDestroy, oxcclStreamSynchronize};
use capi::oxccl::types::oxcclStream_t;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{null_mut, without_provenance_mut};

/// A queue of operations, which run one after the other while the program goes on.
///
/// Operations are put on a stream within [`scope`](Self::scope). Several streams of one program
/// are independent of each other; operations of one communicator run in the order of their calls on
/// whatever streams.
#[derive(Debug)]
pub struct Stream {
    handle: usize,
    /// The process that made the stream, whose threads work for it.
    process: u32,
}

impl Stream {
    /// Makes a stream. Blocks: never. Fails in a forked child.
    pub fn new() -> Result<Self> {
        let handle = on_device(HOST, || {
            let mut place = null_mut();
            // SAFETY: a place for the handle.
            check(unsafe { oxcclStreamCreate(&mut place) })?;
            Ok(place.addr())
        })?;
        Ok(Self { handle, process: std::process::id() })
    }

    /// Calls a function with a scope, in which operations go on this stream without waiting. Their
    /// buffers stay borrowed until the scope ends.
    ///
    /// Blocks until all operations of the scope are complete, also if the function returns an error
    /// or panics. A panic aborts the communicators whose operations are in the scope: so nobody
    /// waits for calls that do not come. Fails with the function's error, or else with the first
    /// error of an operation. It cannot be called within a group.
    ///
    /// ```
    /// # extern crate oxccl_rs as oxccl;
    /// # fn main() -> oxccl::Result<()> {
    /// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
    /// let (a, mut sums, mut all) = ([1.0, 2.0], [0.0; 2], vec![0.0; 2 * comm.size()]);
    /// oxccl::Stream::new()?.scope(|s| {
    ///     comm.all_reduce_on(s, &a, &mut sums, oxccl::ReduceOp::Sum)?;
    ///     comm.all_gather_on(s, &a, &mut all)
    ///     // Other work can be done here.
    /// })?;
    /// assert_eq!(sums, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Nothing that an operation writes can be read in the scope:
    ///
    /// ```compile_fail,E0502
    /// # extern crate oxccl_rs as oxccl;
    /// # fn f(comm: oxccl::Comm, mut stream: oxccl::Stream) -> oxccl::Result<()> {
    /// let mut sums = [1.0];
    /// stream.scope(|s| {
    ///     comm.all_reduce_in_place_on(s, &mut sums, oxccl::ReduceOp::Sum)?;
    ///     println!("{sums:?}");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// A buffer has to live longer than the scope:
    ///
    /// ```compile_fail,E0597
    /// # extern crate oxccl_rs as oxccl;
    /// # fn f(comm: oxccl::Comm, mut stream: oxccl::Stream) -> oxccl::Result<()> {
    /// stream.scope(|s| {
    ///     let mut sums = [1.0];
    ///     comm.all_reduce_in_place_on(s, &mut sums, oxccl::ReduceOp::Sum)
    /// })
    /// # }
    /// ```
    pub fn scope<'env, R>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        run("scope", Some(self), f)
    }

    pub(crate) fn raw(&self) -> oxcclStream_t {
        without_provenance_mut(self.handle)
    }

    /// Waits until the stream has done everything, and returns the error of its work.
    fn finish(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        let synchronize = || check(unsafe { oxcclStreamSynchronize(self.raw(), -1) });
        // The error of work is told once, when all work is done: then nothing is left to be told.
        synchronize().inspect_err(|error| {
            // A forked child has memory of its own, and no threads that work on it.
            if synchronize().is_err() && std::process::id() == self.process {
                eprintln!("oxccl: operations that use borrowed memory cannot be awaited: {error}");
                std::process::abort();
            }
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: any handle may be passed; work that is queued would be done nevertheless.
        unsafe { oxcclStreamDestroy(self.raw()) };
    }
}

/// A scope in which operations are begun, and at whose end they are complete. [`Stream::scope`] and
/// [`group`] make it.
///
/// The lifetime `'scope` is that of the scope: buffers are borrowed for it. `'env` is that of what
/// the scope may borrow.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    /// The stream of all operations; without one each communicator takes one of its own.
    stream: Option<&'env Stream>,
    used: RefCell<Vec<Used<'scope>>>,
    /// True while operations are captured.
    captures: Cell<bool>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A communicator that has operations in a scope, and its stream if that is its own.
#[derive(Debug)]
struct Used<'scope> {
    comm: &'scope Comm,
    own: Option<Stream>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Calls a function whose operations in this scope are launched together at its end: sends and
    /// receives then wait for no order, and a thread can make the calls of several ranks.
    ///
    /// Blocks: never. If the function fails or panics, nothing is launched. Fails with the
    /// function's error, or with that of one of the calls. It cannot be called within a group.
    pub fn group<R>(&'scope self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        // All calls of the group are in scopes that have not ended.
        grouped("group", f)
    }

    /// Notes that operations of a communicator are in this scope; returns their stream.
    pub(crate) fn enter(&self, comm: &'scope Comm) -> Result<oxcclStream_t> {
        let mut used = self.used.borrow_mut();
        let at = match used.iter().position(|known| std::ptr::eq(known.comm, comm)) {
            Some(at) => at,
            None => {
                let own = if self.stream.is_some() { None } else { Some(comm.lend_stream()?) };
                used.push(Used { comm, own });
                used.len() - 1
            }
        };
        let own = used[at].own.as_ref().or(self.stream);
        Ok(own.map_or(null_mut(), Stream::raw))
    }

    /// Returns the stream of all operations, which the scope of a group has not.
    pub(crate) fn stream(&self) -> Option<&'env Stream> {
        self.stream
    }

    /// Returns the stream for a call that has its place among the operations, which those of a
    /// group have only at its end.
    pub(crate) fn own_stream(&self, call: &str) -> Result<&'env Stream> {
        let text = format!(
            "{call} is not possible within a group, whose operations are launched at its end; \
             call it before or after the group, in the scope of a stream"
        );
        let none = || Error::new(Code::InvalidUsage, text);
        self.stream.filter(|_| !GROUPED.get()).ok_or_else(none)
    }

    /// Notes that operations are captured from now on, or not any more.
    pub(crate) fn set_captures(&self, captures: bool) {
        self.captures.set(captures);
    }

    /// Returns whether operations are captured.
    pub(crate) fn captures(&self) -> bool {
        self.captures.get()
    }

    fn abort(&self) {
        for used in &*self.used.borrow() {
            // Whoever catches the panic is told of it, and not of this.
            let _ = used.comm.abort();
        }
    }

    /// Waits for all operations, and returns the first error.
    fn finish(&self) -> Result<()> {
        let mut outcome = self.stream.map_or(Ok(()), Stream::finish);
        for Used { comm, own } in self.used.take() {
            let Some(stream) = own else { continue };
            let finished = stream.finish();
            comm.take_back(stream);
            outcome = outcome.and(finished);
        }
        outcome
    }
}

/// Calls a function with a scope whose operations are launched together when it returns, and waits
/// for them.
///
/// Sends and receives of a group wait for no order, so ranks can exchange data; and one thread can
/// make the calls of several ranks. Within the function nothing that waits is allowed: neither
/// operations without a scope nor the making of communicators.
///
/// Blocks until all operations are complete. If the function fails or panics, nothing is launched,
/// and a panic aborts the communicators, as in [`Stream::scope`]. Fails with the function's error,
/// with that of a call, or with the first error of an operation.
///
/// ```
/// # extern crate oxccl_rs as oxccl;
/// # fn main() -> oxccl::Result<()> {
/// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
/// let (rank, size) = (comm.rank(), comm.size());
/// let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
/// let (mine, mut theirs) = ([rank as u64], [0]);
/// oxccl::group(|g| {
///     comm.send_on(g, &mine, next)?;
///     comm.recv_on(g, &mut theirs, before)
/// })?;
/// assert_eq!(theirs, [before as u64]);
/// # Ok(())
/// # }
/// ```
///
/// Buffers of its calls cannot be used before the group has ended:
///
/// ```compile_fail,E0502
/// # extern crate oxccl_rs as oxccl;
/// # fn f(comm: oxccl::Comm) -> oxccl::Result<()> {
/// let (mine, mut theirs) = ([1], [0]);
/// oxccl::group(|g| {
///     comm.send_on(g, &mine, 1)?;
///     comm.recv_on(g, &mut theirs, 1)?;
///     println!("{theirs:?}");
///     Ok(())
/// })
/// # }
/// ```
pub fn group<'env, R>(
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
) -> Result<R> {
    run("group", None, |scope| scope.group(|| f(scope)))
}

/// Calls a function with a new scope, and waits for the operations that it began.
pub(crate) fn run<'env, R>(
    call: &str,
    stream: Option<&'env Stream>,
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
) -> Result<R> {
    outside_group(call)?;
    let (used, captures) = (RefCell::new(Vec::new()), Cell::new(false));
    let scope = Scope { stream, used, captures, scope: PhantomData, env: PhantomData };
    let outcome = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    if outcome.is_err() {
        scope.abort();
    }
    let finished = scope.finish();
    let value = outcome.unwrap_or_else(|panic| resume_unwind(panic))?;
    finished.map(|()| value)
}

thread_local! {
    /// True while this thread collects the calls of a group.
    static GROUPED: Cell<bool> = const { Cell::new(false) };
}

/// Fails within a group: a call that waits would wait for what is not launched yet.
pub(crate) fn outside_group(call: &str) -> Result<()> {
    if GROUPED.get() {
        let text = format!(
            "{call} waits, which is not possible within a group; \
             call it after the group, or the form of it that takes the group's scope"
        );
        return Err(Error::new(Code::InvalidUsage, text));
    }
    Ok(())
}

/// Fails within a capture for what records an event. A stream that waited for the event would be
/// captured, too, and its operations be launched when nobody keeps their buffers any more.
pub(crate) fn outside_capture(captured: bool, call: &str) -> Result<()> {
    if captured {
        let text = format!("{call} is not possible within a capture; do it before or after");
        return Err(Error::new(Code::InvalidUsage, text));
    }
    Ok(())
}

/// Calls a function whose calls are launched together at its end; if it fails, nothing is.
pub(crate) fn grouped<R>(call: &str, f: impl FnOnce() -> Result<R>) -> Result<R> {
    outside_group(call)?;
    // SAFETY: it takes no arguments.
    check(unsafe { ncclGroupStart() })?;
    GROUPED.set(true);
    let open = OpenGroup;
    let value = f()?;
    std::mem::forget(open);
    GROUPED.set(false);
    // SAFETY: it takes no arguments.
    check(unsafe { ncclGroupEnd() })?;
    Ok(value)
}

/// A group that has to end without a launch.
struct OpenGroup;

impl Drop for OpenGroup {
    fn drop(&mut self) {
        GROUPED.set(false);
        // SAFETY: nothing is asked for. It ends the group whatever it returns.
        unsafe { ncclGroupSimulateEnd(null_mut()) };
    }
}
