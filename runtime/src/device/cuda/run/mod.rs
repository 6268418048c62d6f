//! Operations on a GPU: their launches, their order, and the streams and thread blocks that they
//! take.

pub mod batch;
pub mod captured;
pub mod chunks;
pub mod edges;
pub mod engines;
pub mod held;
pub mod launch;
pub mod lines;
pub mod one_sided;
pub mod order;
pub mod streams;
pub mod timing;
