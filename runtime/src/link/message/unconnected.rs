//! An edge whose connections are made at its first use.

use crate::link::{Lanes, Observe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// An edge that is not connected yet. It is shared by the operations, which ask for the edge, and
/// whoever makes the connections.
pub struct Unconnected {
    asked: AtomicBool,
    made: Mutex<Option<Lanes>>,
    ask: Box<dyn Fn() + Send + Sync>,
    /// The maker of the observers of the messages, if somebody has them observed.
    observe: OnceLock<Observe>,
}

impl Unconnected {
    /// Returns an edge for which `ask` is called once, when it is used first.
    pub fn new(ask: impl Fn() + Send + Sync + 'static) -> Self {
        let (asked, made, observe) = Default::default();
        Self { asked, made, ask: Box::new(ask), observe }
    }

    fn made(&self) -> MutexGuard<'_, Option<Lanes>> {
        self.made.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Asks for the connections, unless that was done before.
    pub fn ask(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            (self.ask)();
        }
    }

    /// Has the messages observed once there are any, where the transport can.
    pub fn observe(&self, observe: Observe) {
        let _ = self.observe.set(observe);
    }

    /// Takes the connected edge, once it is there.
    pub fn take(&self) -> Option<Lanes> {
        let mut lanes = self.made().take()?;
        self.observe.get().into_iter().for_each(|observe| lanes.observe(observe));
        Some(lanes)
    }

    /// Hands the connected edge over, to be taken at the next use.
    pub fn complete(&self, edge: Lanes) {
        // A use from now on need not ask.
        self.asked.store(true, Ordering::Release);
        *self.made() = Some(edge);
    }
}
