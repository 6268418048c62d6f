//! Keeps the plugin in the process: NCCL unloads it with its last communicator and loads it again,
//! and what the plugin has opened would be opened once more.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
