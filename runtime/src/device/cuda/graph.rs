//! CUDA graphs.

use crate::device::cuda::driver::{self, Relaxed, cu};
use crate::device::cuda::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUresult,
};

/// A graph: its handle, which is alive.
#[derive(Clone, Copy, Debug)]
pub struct Graph(pub CUgraph);

/// A graph made ready to launch: its handle, which is alive.
#[derive(Clone, Copy, Debug)]
pub struct Executable(pub CUgraphExec);

impl Graph {
    /// Makes the graph ready to be launched.
    pub fn instantiate(self) -> Result<Executable> {
        let _place = (driver::enter_any()?, Relaxed::begin()?);
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is alive; a place for the handle.
        unsafe { cu!(cuGraphInstantiateWithFlags(&mut executable, self.0, 0)) }?;
        Ok(Executable(executable))
    }

    /// Destroys the graph.
    pub fn destroy(self) -> Result<()> {
        let _place = (driver::enter_any()?, Relaxed::begin()?);
        // SAFETY: the caller's graph, which it gives up.
        unsafe { cu!(cuGraphDestroy(self.0)) }
    }
}

impl Executable {
    /// Takes over the parameters of a graph with the same nodes; launches under way keep theirs.
    pub fn update(self, graph: Graph) -> Result<()> {
        let _place = (driver::enter_any()?, Relaxed::begin()?);
        let mut info = CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: std::ptr::null_mut(),
            errorFromNode: std::ptr::null_mut(),
        };
        // SAFETY: both are alive; a place for what differs.
        match unsafe { sys::cuGraphExecUpdate_v2(self.0, graph.0, &mut info) } {
            CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => {
                let got = format!("one that cannot be put in ({:?})", info.result);
                let expected = "the nodes of the executable, of the same kinds";
                Err(Error::argument("oxcclGraphExecUpdate", "graph", got, expected))
            }
            result => driver::check(result, "cuGraphExecUpdate"),
        }
    }

    /// Runs the graph once, in the order of the stream.
    pub fn launch(self, stream: Stream) -> Result<()> {
        let _place = stream.enter()?;
        // SAFETY: both are alive.
        unsafe { cu!(cuGraphLaunch(self.0, stream.0)) }
    }

    /// Destroys the executable; launches under way are completed.
    pub fn destroy(self) -> Result<()> {
        let _place = (driver::enter_any()?, Relaxed::begin()?);
        // SAFETY: the caller's handle, which it gives up.
        unsafe { cu!(cuGraphExecDestroy(self.0)) }
    }
}

impl From<usize> for Graph {
    fn from(handle: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(handle))
    }
}

impl From<usize> for Executable {
    fn from(handle: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(handle))
    }
}
