//! Devices: who carries out what is planned.

pub mod host;

use std::cell::Cell;

thread_local! {
    /// Index of this thread's current device.
    pub static CURRENT: Cell<i32> = const { Cell::new(0) };
}
