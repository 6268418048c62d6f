//! Operations that are captured once and launched often.

use crate::call::check;
use crate::error::{Code, Error, Result};
use crate::scope::{Scope, Stream, outside_group};
use capi::oxccl::graph::{
    oxcclGraphDestroy, oxcclGraphInstantiate, oxcclGraphLaunch, oxcclStreamBeginCapture,
    oxcclStreamEndCapture,
};
use capi::oxccl::types::{oxcclCaptureMode_t, oxcclGraph_t};
use std::mem::{MaybeUninit, forget};
use std::ptr::{null_mut, without_provenance_mut};

/// Operations that were captured in a scope, and can be launched there any number of times.
#[derive(Debug)]
pub struct Graph<'scope> {
    handle: usize,
    stream: &'scope Stream,
}

impl Graph<'_> {
    /// Launches the operations once more, in the order of the scope's stream. Blocks: never.
    pub fn launch(&self) -> Result<()> {
        let graph = without_provenance_mut(self.handle);
        // SAFETY: any handles may be passed. The buffers of the operations are borrowed until the
        // scope ends, which waits for the stream.
        check(unsafe { oxcclGraphLaunch(graph, self.stream.raw()) })
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: any handle may be passed; launches under way complete.
        unsafe { oxcclGraphDestroy(null_mut(), without_provenance_mut(self.handle)) };
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Calls a function whose operations in this scope are put into a graph instead of being done.
    ///
    /// Blocks: never. Fails in the scope of a group, which has no stream, with the function's
    /// error, or if the operations cannot be captured.
    ///
    /// ```
    /// # extern crate oxccl_rs as oxccl;
    /// # fn main() -> oxccl::Result<()> {
    /// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
    /// let mut x = [1];
    /// oxccl::Stream::new()?.scope(|s| {
    ///     let graph =
    ///         s.capture(|| comm.all_reduce_in_place_on(s, &mut x, oxccl::ReduceOp::Sum))?;
    ///     (0..10).try_for_each(|_| graph.launch())
    /// })?;
    /// assert_eq!(x, [comm.size().pow(10)].map(|n| n as i32));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A graph ends with its scope:
    ///
    /// ```compile_fail,E0521
    /// # extern crate oxccl_rs as oxccl;
    /// # fn f(comm: oxccl::Comm, mut stream: oxccl::Stream) -> oxccl::Result<()> {
    /// let (mut x, mut kept) = ([1], None);
    /// stream.scope(|s| {
    ///     let graph =
    ///         s.capture(|| comm.all_reduce_in_place_on(s, &mut x, oxccl::ReduceOp::Sum))?;
    ///     kept = Some(graph);
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn capture(&'scope self, f: impl FnOnce() -> Result<()>) -> Result<Graph<'scope>> {
        outside_group("capture")?;
        let text = "capture needs the scope of a stream, not that of a group; use Stream::scope";
        let stream =
            self.stream().ok_or_else(|| Error::new(Code::InvalidUsage, text.to_owned()))?;
        let mode = MaybeUninit::new(oxcclCaptureMode_t::oxcclCaptureThreadLocal);
        // SAFETY: any handle may be passed.
        check(unsafe { oxcclStreamBeginCapture(stream.raw(), mode) })?;
        self.set_captures(true);
        let open = OpenCapture(self, stream);
        f()?;
        forget(open);
        let captured = end(self, stream)?;
        let mut executable = null_mut();
        // SAFETY: the graph was just captured, and there is a place for the result.
        let made = check(unsafe { oxcclGraphInstantiate(&mut executable, captured) });
        // SAFETY: the graph is this function's own, and what is made of it does not need it.
        unsafe { oxcclGraphDestroy(captured, null_mut()) };
        made.map(|()| Graph { handle: executable.addr(), stream })
    }
}

fn end(scope: &Scope<'_, '_>, stream: &Stream) -> Result<oxcclGraph_t> {
    scope.set_captures(false);
    let mut graph = null_mut();
    // SAFETY: any handle may be passed, and there is a place for the result.
    check(unsafe { oxcclStreamEndCapture(stream.raw(), &mut graph) })?;
    Ok(graph)
}

/// A capture that has to end without a graph.
struct OpenCapture<'a, 'scope, 'env>(&'a Scope<'scope, 'env>, &'a Stream);

impl Drop for OpenCapture<'_, '_, '_> {
    fn drop(&mut self) {
        if let Ok(graph) = end(self.0, self.1) {
            // SAFETY: the graph is this function's own.
            unsafe { oxcclGraphDestroy(graph, null_mut()) };
        }
    }
}
