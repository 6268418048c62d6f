//! Graphs of both devices.

use super::object::{OnDevice, both, destroy, find};
use super::{cuda, host};
use crate::error::{Error, Result};
use crate::handle::{Handles, Named};
use std::sync::{Arc, Mutex};

/// A captured graph.
pub type Graph = OnDevice<Arc<host::graph::Graph>, cuda::graph::Graph>;

/// A graph of the host device that is ready to launch; an update replaces its content.
type HostExecutable = Mutex<Arc<host::graph::Graph>>;

/// A graph that is ready to launch.
pub type Executable = OnDevice<Arc<HostExecutable>, cuda::graph::Executable>;

static GRAPHS: Handles<host::graph::Graph> = Handles::new(4);
static EXECUTABLES: Handles<HostExecutable> = Handles::new(5);

impl Graph {
    /// Stores a graph of the host device and returns a handle for it.
    pub(super) fn keep(graph: host::graph::Graph) -> Result<usize> {
        GRAPHS.insert(Arc::new(graph))
    }

    /// Looks a graph up.
    pub fn of_handle(handle: usize, named: Named) -> Result<Self> {
        find(&GRAPHS, handle, named)
    }

    /// Destroys a graph; executables made from it stay valid.
    pub fn destroy(handle: usize, named: Named) -> Result<()> {
        destroy(&GRAPHS, handle, named, cuda::graph::Graph::destroy)
    }

    /// Makes the graph ready to launch. Returns the handle of the executable.
    pub fn instantiate(self) -> Result<usize> {
        match self {
            Graph::Host(graph) => EXECUTABLES.insert(Arc::new(Mutex::new(graph))),
            Graph::Cuda(graph) => Ok(graph.instantiate()?.0 as usize),
        }
    }
}

impl Executable {
    /// Looks up a graph that is ready to launch.
    pub fn of_handle(handle: usize, named: Named) -> Result<Self> {
        find(&EXECUTABLES, handle, named)
    }

    /// Destroys the executable; launches under way still complete.
    pub fn destroy(handle: usize, named: Named) -> Result<()> {
        destroy(&EXECUTABLES, handle, named, cuda::graph::Executable::destroy)
    }

    /// Replaces the parameters by those of a graph with the same nodes. Launches under way keep the
    /// old parameters. `named` is the name of the graph's argument in errors.
    pub fn update(self, graph: Graph, named: Named) -> Result<()> {
        let (executable, graph) = match both(self, graph, named)? {
            OnDevice::Host(pair) => pair,
            OnDevice::Cuda((executable, graph)) => return executable.update(graph),
        };
        let mut current = executable.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((got, expected)) = current.difference(&graph) {
            return Err(Error::argument(named.0, named.1, got, expected));
        }
        *current = graph;
        Ok(())
    }
}
