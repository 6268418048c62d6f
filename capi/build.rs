//! Links the shared library under its SONAME and keeps it loaded: its threads outlive `dlclose`.

fn main() {
    println!("cargo::rerun-if-changed=exports.map");
    let map = std::path::Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default())
        .join("exports.map");
    for argument in [
        "-Wl,-soname,liboxccl.so.2".to_owned(),
        "-Wl,-z,nodelete".to_owned(),
        format!("-Wl,--version-script={}", map.display()),
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
