//! Compiles the logger.

fn main() {
    println!("cargo:rerun-if-changed=src/logger.c");
    cc::Build::new().file("src/logger.c").warnings(true).compile("oxccl_plugin_logger");
}
