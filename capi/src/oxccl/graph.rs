//! Graphs: capture, instantiation, launch.

use super::types::{oxcclCaptureMode_t, oxcclGraph_t, oxcclGraphExec_t, oxcclStream_t};
use crate::boundary::boundary;
use crate::nccl::types::ncclResult_t;
use crate::objects::On;
use crate::{convert, objects};
use oxccl_runtime::device::cuda::graph::{Executable, Graph};
use oxccl_runtime::device::host::task::Work;
use oxccl_runtime::error::Error;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

/// Begins to capture: calls on the stream, and on streams that wait for its events, go into a graph
/// instead of being done. Blocks: never.
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
        match objects::stream(stream, FUNCTION)? {
            On::Host(stream) => stream.begin_capture(),
            On::Cuda(stream) => stream.begin_capture(mode),
        }
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
        unsafe {
            match stream {
                On::Host(stream) => {
                    let captured = Arc::new(stream.end_capture()?);
                    objects::put(&objects::GRAPHS, captured, graph, FUNCTION)
                }
                On::Cuda(stream) => {
                    convert::store(graph, stream.end_capture()?.0.cast(), FUNCTION, "graph")
                }
            }
        }
    })
}

/// Makes a graph ready to be launched. `exec`: out. The graph may be destroyed before it.
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
        let graph = objects::find(&objects::GRAPHS, graph, FUNCTION, "graph")?;
        convert::place(exec, FUNCTION, "exec")?;
        // SAFETY: passed on from the caller.
        unsafe {
            match graph {
                On::Host(graph) => {
                    let made = Arc::new(Mutex::new(graph));
                    objects::put(&objects::EXECUTABLES, made, exec, FUNCTION)
                }
                On::Cuda(graph) => {
                    let made = Graph::instantiate(graph)?;
                    convert::store(exec, made.0.cast(), FUNCTION, "exec")
                }
            }
        }
    })
}

/// Puts another graph's parameters into an executable graph: both need the same calls in the same
/// order, on the same communicators; buffers, counts and roots may differ. Launches that are under
/// way keep theirs.
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
        let exec = objects::find(&objects::EXECUTABLES, exec, FUNCTION, "exec")?;
        let graph = objects::find(&objects::GRAPHS, graph, FUNCTION, "graph")?;
        let (exec, graph) = match objects::both(exec, graph, FUNCTION, "graph")? {
            On::Host(pair) => pair,
            On::Cuda((exec, graph)) => return Executable::update(exec, graph),
        };
        let mut current = exec.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((got, expected)) = current.difference(&graph) {
            return Err(Error::argument(FUNCTION, "graph", got, expected));
        }
        *current = graph;
        Ok(())
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
        let exec = objects::find(&objects::EXECUTABLES, exec, FUNCTION, "exec")?;
        match objects::both(exec, objects::stream(stream, FUNCTION)?, FUNCTION, "stream")? {
            On::Host((exec, stream)) => {
                let graph = exec.lock().unwrap_or_else(|e| e.into_inner()).clone();
                stream.enqueue(Work::Graph(graph), true)
            }
            On::Cuda((exec, stream)) => Executable::launch(exec, stream),
        }
    })
}

/// Ends a graph, an executable graph, or both; null is ignored. Launches under way are completed.
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
        if !graph.is_null()
            && let On::Cuda(graph) = objects::take(&objects::GRAPHS, graph, FUNCTION, "graph")?
        {
            Graph::destroy(graph)?;
        }
        if !exec.is_null()
            && let On::Cuda(exec) = objects::take(&objects::EXECUTABLES, exec, FUNCTION, "exec")?
        {
            Executable::destroy(exec)?;
        }
        Ok(())
    })
}
