//! Graphs: captured work that is replayed as one task.
//!
//! A capture is a list of nodes, each with the nodes that it depends on. Operations of one
//! communicator are chained in the order of their calls, whatever streams they were captured on.

use super::collective::Budget;
use super::endpoint::Endpoint;
use super::event::Event;
use super::task::{Failed, Step, Task, Work};
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone)]
struct Node {
    work: Work,
    after: Vec<usize>,
}

#[derive(Default)]
struct Build {
    nodes: Vec<Node>,
    /// The last node of each communicator.
    last: Vec<(Arc<Endpoint>, usize)>,
    ended: bool,
}

type Shared = Arc<Mutex<Build>>;

fn lock(build: &Shared) -> MutexGuard<'_, Build> {
    build.lock().unwrap_or_else(|e| e.into_inner())
}

/// A point of a capture, recorded in an event.
#[derive(Clone)]
pub struct Captured {
    build: Shared,
    after: Vec<usize>,
}

impl Captured {
    /// Returns whether the capture is over.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.build).ended
    }
}

/// A stream's part of a capture.
pub struct Capture {
    build: Shared,
    /// The nodes that the next node of this stream depends on.
    after: Vec<usize>,
    /// True if the capture began on this stream.
    origin: bool,
}

impl Capture {
    pub(super) fn new() -> Self {
        Self { build: Shared::default(), after: Vec::new(), origin: true }
    }

    /// Creates the part of a stream that joins a capture by waiting for one of its events.
    pub(super) fn forked(at: Captured) -> Self {
        Self { build: at.build, after: at.after, origin: false }
    }

    /// Returns whether the stream still belongs to the capture. A stream that joined is free when
    /// the capture ends.
    pub(super) fn is_live(&self) -> bool {
        self.origin || !lock(&self.build).ended
    }

    pub(super) fn add(&mut self, work: Work) -> Result<()> {
        let mut build = lock(&self.build);
        if build.ended {
            let what = "the capture that this stream had joined is over";
            return Err(Error::usage(what, "capture again"));
        }
        let mut after = std::mem::take(&mut self.after);
        let node = build.nodes.len();
        if let Some(endpoint) = work.endpoint() {
            match build.last.iter_mut().find(|(e, _)| Arc::ptr_eq(e, endpoint)) {
                Some((_, last)) => after.push(std::mem::replace(last, node)),
                None => build.last.push((endpoint.clone(), node)),
            }
        }
        build.nodes.push(Node { work, after });
        self.after = vec![node];
        Ok(())
    }

    pub(super) fn record(&self, event: &Event) {
        event.capture(Captured { build: self.build.clone(), after: self.after.clone() });
    }

    pub(super) fn join(&mut self, at: Captured) -> Result<()> {
        if !Arc::ptr_eq(&at.build, &self.build) {
            let what = "the event belongs to another capture";
            return Err(Error::usage(what, "merge the streams of one capture only"));
        }
        self.after.extend(at.after);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Graph> {
        if !self.origin {
            let what = "the capture began on another stream";
            return Err(Error::usage(what, "end it on the stream where it began"));
        }
        let mut build = lock(&self.build);
        build.ended = true;
        build.last.clear();
        Ok(Graph { nodes: std::mem::take(&mut build.nodes) })
    }
}

/// A captured graph, also after its instantiation.
#[derive(Clone)]
pub struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// Returns the work of all nodes.
    pub fn works(&self) -> impl Iterator<Item = &Work> {
        self.nodes.iter().map(|node| &node.work)
    }

    /// Returns why another graph cannot replace this one: what the other one is, and what this one
    /// is. `None` if it can.
    pub fn difference(&self, other: &Graph) -> Option<(String, String)> {
        let (got, expected) = (other.nodes.len(), self.nodes.len());
        if got != expected {
            let nodes = |n| format!("a graph of {n} nodes");
            return Some((nodes(got), nodes(expected)));
        }
        self.nodes.iter().zip(&other.nodes).enumerate().find_map(|(i, (old, new))| {
            let (got, expected) = if new.after == old.after {
                new.work.difference(&old.work)?
            } else {
                (format!("after the nodes {:?}", new.after), format!("after {:?}", old.after))
            };
            Some((format!("a graph whose node {i} is {got}"), format!("{expected}, as before")))
        })
    }
}

/// One launch of a graph. All operations take their numbers at the launch, in captured order.
pub struct GraphRun {
    nodes: Vec<(Option<Task>, Vec<usize>)>,
    open: usize,
    error: Option<Failed>,
}

impl GraphRun {
    pub(super) fn start(graph: &Graph) -> Result<Self> {
        let mut nodes = Vec::new();
        for node in &graph.nodes {
            nodes.push((Some(Task::start(node.work.clone(), 0)?), node.after.clone()));
        }
        let open = nodes.len();
        Ok(Self { nodes, open, error: None })
    }

    /// Gives up what has not begun, as [`Task::abandon`] does.
    pub(super) fn abandon(&mut self, error: &Error) {
        self.nodes.iter_mut().filter_map(|(task, _)| task.as_mut()).for_each(|t| t.abandon(error));
    }

    pub(super) fn step(&mut self, budget: Budget) -> Step {
        let mut moved = false;
        for i in 0..self.nodes.len() {
            let ready = self.nodes[i].1.iter().all(|&dep| self.nodes[dep].0.is_none());
            let Some(task) = self.nodes[i].0.as_mut().filter(|_| ready) else { continue };
            match task.step(budget) {
                Step::Done(result) => {
                    self.nodes[i].0 = None;
                    self.open -= 1;
                    moved = true;
                    // Later nodes still run, as the order of their communicators' operations
                    // depends on it.
                    if let Err(e) = result {
                        self.error.get_or_insert(e);
                    }
                }
                Step::Waiting { moved: task_moved } => moved |= task_moved,
            }
        }
        if self.open == 0 {
            return Step::Done(self.error.take().map_or(Ok(()), Err));
        }
        Step::Waiting { moved }
    }
}
