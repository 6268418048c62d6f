//! The order of a communicator's operations on a GPU: one at a time, in the order of calls and
//! graph launches, whatever their streams.

use crate::device::cuda::driver::{Relaxed, cu};
use crate::device::cuda::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUevent, CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureStatus,
};
use std::collections::VecDeque;
use std::ptr::{null, null_mut};

/// Makes the later work of `to` wait for the work that is queued to `from`. Both streams belong to
/// the thread's current context.
pub fn join(from: Stream, to: Stream) -> Result<()> {
    let mut event = null_mut();
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: living streams by the contract of the call; the driver keeps what it needs of the
    // event.
    unsafe {
        cu!(cuEventCreate(&mut event, flags))?;
        let recorded = cu!(cuEventRecord(event, from.0));
        let joined = recorded.and_then(|()| cu!(cuStreamWaitEvent(to.0, event, 0)));
        cu!(cuEventDestroy_v2(event))?;
        joined
    }
}

/// The capture that a stream is in.
#[derive(Clone, Copy)]
pub struct Capture {
    id: u64,
    graph: CUgraph,
    /// The first of the nodes on which the next node of the stream will depend.
    last: CUgraphNode,
}

/// The last launches of a communicator, after which its next operation runs.
pub struct Order {
    /// The event that is recorded after each operation, also by graphs when they are launched.
    event: CUevent,
    /// The number of the stream of the last operation outside of captures.
    stream: Option<u64>,
    /// The last captures that have operations of the communicator.
    captures: VecDeque<Captured>,
    /// True once graphs hold operations: their launches are not seen here.
    captured: bool,
    /// True if graphs order themselves against other operations of the communicator.
    pub mixes: bool,
}

// SAFETY: events and nodes may be used from any thread.
unsafe impl Send for Order {}

/// A capture with operations of the communicator.
#[derive(Clone, Copy)]
struct Captured {
    id: u64,
    /// The node of the last operation.
    last: CUgraphNode,
    /// The node that records the event after that operation; null if none does.
    recorded: CUgraphNode,
}

const EXTERNAL: u32 = 1;
/// Adds a node to those on which the next node of a capture depends; `SET` replaces them by it.
const ADD: u32 = 0;
const SET: u32 = 1;
/// The most captures of a communicator that may be under way at a time.
const REMEMBERED: usize = 16;

/// Returns the capture that a stream is in, if any.
fn capture_of(stream: CUstream) -> Result<Option<Capture>> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut count) = (0, null_mut(), 0);
    let (mut nodes, mut edges) = (null(), null());
    // SAFETY: places for all results.
    unsafe {
        cu!(cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut edges,
            &mut count
        ))?;
    }
    match status {
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(None),
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => {
            // SAFETY: there are `count` nodes.
            let last = if count > 0 { unsafe { nodes.read() } } else { null_mut() };
            Ok(Some(Capture { id, graph, last }))
        }
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
            let hint = "end it, and look at what invalidated it";
            Err(Error::usage("the stream's capture is invalidated", hint))
        }
    }
}

/// Returns the graph into which a stream is captured; `None` if it is not captured.
pub fn graph_of(stream: Stream) -> Result<Option<CUgraph>> {
    Ok(capture_of(stream.0)?.map(|capture| capture.graph))
}

/// Returns the number of a stream, which no other stream ever has. Not for a stream that is
/// captured.
pub fn number_of(stream: Stream) -> Result<u64> {
    let mut number = 0;
    // SAFETY: a place for the number.
    unsafe { cu!(cuStreamGetId(stream.0, &mut number)) }?;
    Ok(number)
}

impl Order {
    /// Creates the order of a communicator that has launched nothing yet. Requires the GPU's
    /// context to be current on this thread.
    pub fn new(mixes: bool) -> Result<Self> {
        let mut event = null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: a place for the event.
        unsafe { cu!(cuEventCreate(&mut event, flags)) }?;
        Ok(Self { event, stream: None, captures: VecDeque::new(), captured: false, mixes })
    }

    /// Returns whether an operation is under way.
    pub fn busy(&self) -> bool {
        let _relaxed = Relaxed::begin();
        // SAFETY: a living event.
        let answer = unsafe { sys::cuEventQuery(self.event) };
        answer == CUresult::CUDA_ERROR_NOT_READY
    }

    /// Makes a stream wait for all that was launched so far.
    pub fn mark(&self, stream: Stream) -> Result<()> {
        // SAFETY: a living stream by the contract of the call, and a living event.
        unsafe { cu!(cuStreamWaitEvent(stream.0, self.event, 0)) }
    }

    /// Launches after all that was launched before, and calls `keep` with the graph of each new
    /// capture. Returns the number of the stream; `None` if it is captured.
    pub fn launch(
        &mut self,
        stream: Stream,
        keep: impl FnOnce(CUgraph) -> Result<()>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<Option<u64>> {
        match capture_of(stream.0)? {
            None => self.launch_now(stream.0, launch).map(Some),
            Some(capture) => {
                self.launch_captured(stream.0, capture, keep, launch)?;
                Ok(None)
            }
        }
    }

    fn launch_now(&mut self, stream: CUstream, launch: impl FnOnce() -> Result<()>) -> Result<u64> {
        let number = number_of(Stream(stream))?;
        if self.captured || self.stream.is_some_and(|last| last != number) {
            // SAFETY: a living stream by the contract of the call.
            unsafe { cu!(cuStreamWaitEvent(stream, self.event, 0)) }?;
        }
        let launched = launch();
        self.stream = Some(number);
        // Also after an error: what was queued before it has to be waited for.
        // SAFETY: as above.
        let recorded = unsafe { cu!(cuEventRecord(self.event, stream)) };
        launched.and(recorded).map(|()| number)
    }

    fn launch_captured(
        &mut self,
        stream: CUstream,
        capture: Capture,
        keep: impl FnOnce(CUgraph) -> Result<()>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let known = self.captures.iter().find(|known| known.id == capture.id).copied();
        match known {
            Some(Captured { mut last, .. }) if last != capture.last => {
                // SAFETY: a node of this graph.
                unsafe {
                    cu!(cuStreamUpdateCaptureDependencies_v2(stream, &mut last, null(), 1, ADD))?;
                }
            }
            Some(_) => {}
            None => {
                keep(capture.graph)?;
                if self.mixes {
                    // SAFETY: a living stream by the contract of the call.
                    unsafe { cu!(cuStreamWaitEvent(stream, self.event, EXTERNAL)) }?;
                }
            }
        }
        launch()?;
        self.captured = true;
        let last = capture_of(stream)?.map_or(null_mut(), |capture| capture.last);
        let recorded = match known {
            _ if !self.mixes => null_mut(),
            Some(known) if !known.recorded.is_null() => move_record(capture.graph, known, last)?,
            _ => self.record_beside(stream, last)?,
        };
        self.captures.retain(|known| known.id != capture.id);
        // Nothing tells when a capture has ended, so the oldest one is dropped.
        if self.captures.len() == REMEMBERED {
            self.captures.pop_front();
        }
        self.captures.push_back(Captured { id: capture.id, last, recorded });
        Ok(())
    }

    /// Records the event after `last`, the node of the first operation of a capture. No node of the
    /// graph waits for the record, which is returned.
    fn record_beside(&self, stream: CUstream, mut last: CUgraphNode) -> Result<CUgraphNode> {
        // SAFETY: a living stream by the contract of the call, and a node of its graph.
        unsafe {
            cu!(cuEventRecordWithFlags(self.event, stream, EXTERNAL))?;
            let recorded = capture_of(stream)?.map_or(null_mut(), |capture| capture.last);
            cu!(cuStreamUpdateCaptureDependencies_v2(stream, &mut last, null(), 1, SET))?;
            Ok(recorded)
        }
    }
}

/// Has the record of a capture follow `last`, the node of an operation after the known ones,
/// instead of the one before it; returns the record. With a record for each operation, a launch of
/// the graph takes the processor 2.5 to 3.5 µs for each instead of 0.06, and the GPU 0.6 µs more
/// (docs/performance.md).
fn move_record(graph: CUgraph, known: Captured, last: CUgraphNode) -> Result<CUgraphNode> {
    let Captured { last: before, recorded, .. } = known;
    if last != before {
        // SAFETY: nodes of this graph; the record follows `before` alone, and `last` follows it.
        unsafe {
            cu!(cuGraphAddDependencies_v2(graph, &last, &recorded, null(), 1))?;
            // A graph that allocates memory lets no dependency go; this one changes nothing then.
            let _ = cu!(cuGraphRemoveDependencies_v2(graph, &before, &recorded, null(), 1));
        }
    }
    Ok(recorded)
}

impl Drop for Order {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { sys::cuEventDestroy_v2(self.event) };
    }
}
