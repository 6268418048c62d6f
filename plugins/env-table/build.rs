//! Keeps the plugin in the process: NCCL unloads it while the process exits, when other threads may
//! still call it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
