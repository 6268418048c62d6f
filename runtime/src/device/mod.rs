//! Devices: who carries out what is planned.

pub mod host;
