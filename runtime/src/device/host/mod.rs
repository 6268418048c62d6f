//! The host device: memory that peers map, streams, events, graphs, and the executor.

pub mod arena;
pub mod collective;
pub mod endpoint;
pub mod event;
pub mod exchange;
pub mod graph;
pub mod kernels;
pub mod one_sided;
pub mod pull;
pub mod reach;
pub mod scale;
pub mod stream;
mod suspicion;
pub mod task;
pub mod worker;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use stream::Stream;

/// The default stream of a device of this process.
pub fn default_stream(device: i32) -> Arc<Stream> {
    static STREAMS: OnceLock<Mutex<HashMap<i32, Arc<Stream>>>> = OnceLock::new();
    let mut streams = STREAMS.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    streams.entry(device).or_default().clone()
}
