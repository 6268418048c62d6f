//! A network for tests.

use oxccl_net::tcp::Tcp;
use oxccl_net::{Connecting, Handle, Listener, Net, Properties, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// TCP over loopback that counts its listeners, and whose connections have one direction each if
/// that is asked for.
pub(crate) struct TestNet {
    tcp: Tcp,
    open: bool,
    duplex: bool,
    listeners: AtomicUsize,
}

impl TestNet {
    pub(crate) fn new(duplex: bool) -> Arc<Self> {
        Self::with(true, duplex)
    }

    /// Returns a network that is used as those of plugins are.
    pub(crate) fn like_plugins() -> Arc<Self> {
        Self::with(false, false)
    }

    fn with(open: bool, duplex: bool) -> Arc<Self> {
        let tcp = Tcp::at("127.0.0.1:0".parse().unwrap());
        Arc::new(Self { tcp, open, duplex, listeners: AtomicUsize::new(0) })
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
        self.tcp.listen(device)
    }

    fn connect(&self, device: usize, to: Handle) -> Result<Box<dyn Connecting>> {
        self.tcp.connect(device, to)
    }
}
