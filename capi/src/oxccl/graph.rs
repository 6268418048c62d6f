//! Graphs: capture, instantiation, launch.

use super::types::{oxcclCaptureMode_t, oxcclGraph_t, oxcclGraphExec_t, oxcclStream_t};
use crate::boundary::boundary;
use crate::nccl::types::ncclResult_t;
use crate::{convert, objects};
use oxccl_runtime::device::{Executable, Graph};
use oxccl_runtime::error::Error;
use std::mem::MaybeUninit;

/// Begins a capture: calls on the stream, and on streams that wait for its events, go into a graph
/// instead of being executed. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamBeginCapture(
    stream: oxcclStream_t,
    mode: MaybeUninit<oxcclCaptureMode_t>,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclStreamBeginCapture";
        // SAFETY: C passed an initialised int; any int is a valid i32.
        let mode = unsafe { mode.as_ptr().cast::<i32>().read() };
        if !(0..=2).contains(&mode) {
            let expected = "oxcclCaptureGlobal (0) to oxcclCaptureRelaxed (2)";
            return Err(Error::argument(FUNCTION, "mode", mode, expected));
        }
        objects::stream(stream, FUNCTION)?.begin_capture(mode)
    })
}

/// Ends the capture that began on this stream. `graph`: out. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclStreamEndCapture(
    stream: oxcclStream_t,
    graph: *mut oxcclGraph_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclStreamEndCapture";
        let stream = objects::stream(stream, FUNCTION)?;
        convert::place(graph, FUNCTION, "graph")?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(graph, stream.end_capture()? as oxcclGraph_t, FUNCTION, "graph") }
    })
}

/// Makes an executable graph. `exec`: out. The graph may be destroyed before it.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclGraphInstantiate(
    exec: *mut oxcclGraphExec_t,
    graph: oxcclGraph_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclGraphInstantiate";
        let graph = Graph::of_handle(graph as usize, (FUNCTION, "graph"))?;
        convert::place(exec, FUNCTION, "exec")?;
        // SAFETY: passed on from the caller.
        unsafe { convert::store(exec, graph.instantiate()? as oxcclGraphExec_t, FUNCTION, "exec") }
    })
}

/// Puts another graph's parameters into an executable graph: both need the same calls in the same
/// order, on the same communicators; buffers, counts and roots may differ. Launches under way keep
/// their parameters.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclGraphExecUpdate(
    exec: oxcclGraphExec_t,
    graph: oxcclGraph_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclGraphExecUpdate";
        let exec = Executable::of_handle(exec as usize, (FUNCTION, "exec"))?;
        exec.update(Graph::of_handle(graph as usize, (FUNCTION, "graph"))?, (FUNCTION, "graph"))
    })
}

/// Runs a graph once, in the order of the stream. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclGraphLaunch(
    exec: oxcclGraphExec_t,
    stream: oxcclStream_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclGraphLaunch";
        let exec = Executable::of_handle(exec as usize, (FUNCTION, "exec"))?;
        objects::stream(stream, FUNCTION)?.launch(exec, FUNCTION)
    })
}

/// Destroys a graph, an executable graph, or both; null is ignored. Launches under way complete.
/// Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxcclGraphDestroy(
    graph: oxcclGraph_t,
    exec: oxcclGraphExec_t,
) -> ncclResult_t {
    boundary(|| {
        const FUNCTION: &str = "oxcclGraphDestroy";
        if !graph.is_null() {
            Graph::destroy(graph as usize, (FUNCTION, "graph"))?;
        }
        if !exec.is_null() {
            Executable::destroy(exec as usize, (FUNCTION, "exec"))?;
        }
        Ok(())
    })
}
