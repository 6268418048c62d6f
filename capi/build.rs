//! Links the shared library under its SONAME and keeps it loaded: its threads outlive `dlclose`.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=exports.map");
    // Checkouts may share a target folder, and with it the output of this script: so the output
    // names no path of a checkout.
    let map =
        PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("exports.map");
    let text = std::fs::read("exports.map").expect("exports.map can be read");
    std::fs::write(&map, text).expect("the output folder is writable");
    for argument in [
        "-Wl,-soname,liboxccl.so.2".to_owned(),
        "-Wl,-z,nodelete".to_owned(),
        format!("-Wl,--version-script={}", map.display()),
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
