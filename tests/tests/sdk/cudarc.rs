//! The crate cudarc's own bindings of NCCL run on our `libnccl.so`.

use crate::docs::prepare_cargo;
use crate::{ROOT, folder, have, libraries, prefix, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The manifest of a program, in which the version is that of the workspace.
const MANIFEST: &str = r#"
[package]
name = "program"
edition = "2024"
[dependencies.cudarc]
version = "VERSION"
default-features = false
features = ["std", "driver", "nccl", "dynamic-loading", "cuda-13000"]
[[bin]]
name = "program"
path = "main.rs"
[workspace]
"#;

/// Returns the version of the crate that the workspace has, and the folder of its source.
fn crate_source() -> (String, PathBuf) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = succeed(Command::new(rustc).arg("-vV"));
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let mut command = Command::new(cargo);
    command.current_dir(ROOT).args(["metadata", "--offline", "--format-version", "1"]);
    // What other systems would need may never have been loaded here.
    command.args(["--filter-platform", host]);
    let output = command.output().expect("it runs").stdout;
    let metadata: serde_json::Value = serde_json::from_slice(&output).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let found = packages.iter().find(|package| package["name"] == "cudarc").expect("cudarc");
    let manifest = Path::new(found["manifest_path"].as_str().expect("a path"));
    let version = found["version"].as_str().expect("a version").to_owned();
    (version, manifest.parent().expect("a folder").to_owned())
}

/// Returns the names that its bindings load, of any version of NCCL that it knows.
fn loaded_names(source: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(source.join("src/nccl/sys/mod.rs")).expect("its bindings");
    let names = text.split("load::<_F>(\"").skip(1);
    names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

#[test]
fn every_name_that_it_loads_is_exported() {
    let (_, source) = crate_source();
    let names = loaded_names(&source);
    assert!(names.len() > 50 && names.iter().any(|name| name == "ncclAllReduce"), "{names:?}");
    let list = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(libraries(prefix()).join("liboxccl.so.2")),
    );
    let exported: Vec<&str> = list.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !exported.iter().any(|e| e.split('@').next() == Some(name)))
        .collect();
    assert!(missing.is_empty(), "these are not exported: {missing:?}");
}

#[test]
fn a_program_reduces_with_it_in_host_memory() {
    if !have("cc") {
        return;
    }
    let (version, _) = crate_source();
    let folder = folder("cudarc");
    prepare_cargo(&folder);
    std::fs::write(folder.join("Cargo.toml"), MANIFEST.replace("VERSION", &format!("={version}")))
        .expect("room");
    let main = Path::new(ROOT).join("tests/sdk/cudarc/main.rs");
    std::fs::copy(main, folder.join("main.rs")).expect("a copy");
    let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    build.current_dir(&folder).args(["build", "--quiet", "--offline"]);
    succeed(build.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR"));
    // It looks for libnccl.so where the loader does.
    let reduces = |end: fn(&mut Command) -> (Option<i32>, String), libraries: &Path| {
        let mut program = Command::new(folder.join("target/debug/program"));
        program.env("OXCCL_DEVICE", "host").env("LD_LIBRARY_PATH", libraries);
        let (status, text) = end(&mut program);
        let right = ["rank 0 is right", "rank 1 is right"].map(|rank| text.contains(rank));
        assert_eq!((status, right), (Some(0), [true; 2]), "{text}");
    };
    reduces(|program| crate::run(prefix(), program), &libraries(prefix()));
    if have("python3") {
        let wheel = xtask::wheel::wheel(Path::new(ROOT), prefix(), &folder, None);
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "zipfile", "-e"]).arg(wheel.expect("it is made")).arg(&folder);
        succeed(&mut unpack);
        reduces(crate::watch, &folder.join("oxccl"));
    }
}
