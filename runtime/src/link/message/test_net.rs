//! A network for tests.

use oxccl_net::tcp::Tcp;
use oxccl_net::{Connecting, Error, Handle, Listener, Net, Properties, Receiver, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// TCP over loopback that counts its listeners, and whose connections have one direction each if
/// that is asked for.
pub(crate) struct TestNet {
    tcp: Tcp,
    open: bool,
    duplex: bool,
    /// True if a listener accepts one connection alone.
    once: bool,
    listeners: AtomicUsize,
}

/// A listener that accepts so many connections.
struct Few(Box<dyn Listener>, usize);

impl Listener for Few {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        if self.1 == 0 {
            return Err(Error::new("accept", "it has accepted already", ""));
        }
        let accepted = self.0.accept()?;
        self.1 -= usize::from(accepted.is_some());
        Ok(accepted)
    }
}

impl TestNet {
    pub(crate) fn new(duplex: bool) -> Arc<Self> {
        Self::with(true, duplex, false)
    }

    /// Returns a network that is used as those of plugins are.
    pub(crate) fn like_plugins() -> Arc<Self> {
        Self::with(false, false, false)
    }

    /// Returns one whose listeners accept one connection alone.
    pub(crate) fn accepting_once() -> Arc<Self> {
        Self::with(false, false, true)
    }

    fn with(open: bool, duplex: bool, once: bool) -> Arc<Self> {
        let tcp = Tcp::at("127.0.0.1:0".parse().unwrap());
        Arc::new(Self { tcp, open, duplex, once, listeners: AtomicUsize::new(0) })
    }

    /// Returns the number of listeners so far.
    pub(crate) fn listeners(&self) -> usize {
        self.listeners.load(Ordering::Relaxed)
    }
}

impl Net for TestNet {
    fn name(&self) -> &str {
        self.tcp.name()
    }

    fn is_open_to_strangers(&self) -> bool {
        self.open
    }

    fn is_duplex(&self) -> bool {
        self.duplex
    }

    fn devices(&self) -> usize {
        self.tcp.devices()
    }

    fn properties(&self, device: usize) -> Result<Properties> {
        self.tcp.properties(device)
    }

    fn listen(&self, device: usize) -> Result<(Handle, Box<dyn Listener>)> {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        let (handle, listener) = self.tcp.listen(device)?;
        Ok((handle, if self.once { Box::new(Few(listener, 1)) } else { listener }))
    }

    fn connect(&self, device: usize, to: Handle) -> Result<Box<dyn Connecting>> {
        self.tcp.connect(device, to)
    }
}
