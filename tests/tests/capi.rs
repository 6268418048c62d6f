//! C programs against the headers and the shared library, in C11 and in C++17.

use oxccl_tests::job::{bind_to_parent, wait_until};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// A folder of its own with `liboxccl.so` and `liboxccl.so.2`: the library that this test was built
/// with, from `deps`, because the copy one level up may be stale.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let built = test.parent().expect("a folder").join("liboxccl.so");
    assert!(built.exists(), "{} is not there", built.display());
    let folder = std::env::temp_dir().join(format!("oxccl-capi-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for link in ["liboxccl.so", "liboxccl.so.2"] {
        let _ = std::fs::remove_file(folder.join(link));
        std::os::unix::fs::symlink(&built, folder.join(link)).expect("a link");
    }
    folder
}

fn compile(source: &str, compiler: &str, flags: &[&str], folder: &Path) -> Option<PathBuf> {
    let program = folder.join("program");
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O1"])
        .args(flags)
        .arg("-I")
        .arg(Path::new(MANIFEST).join("../capi/include"))
        .arg(Path::new(MANIFEST).join("capi").join(source))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", folder.display()))
        .arg("-loxccl")
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .output();
    match output {
        Err(e) => {
            missing(compiler, &e.to_string());
            None
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler} {source}: {text}");
            Some(program)
        }
    }
}

fn run(source: &str, language: (&str, &[&str]), expected: &str) {
    let (compiler, flags) = language;
    let folder = library(&format!("{source}-{}-{}", compiler, flags.len()));
    let Some(program) = compile(source, compiler, flags, &folder) else { return };
    let mut command = Command::new(program);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bind_to_parent(command).spawn().expect("it starts");
    let status = wait_until(&mut child, Instant::now() + Duration::from_secs(90));
    let output = child.wait_with_output().expect("output");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(status, Some(0), "{source}: {text}");
    assert!(text.contains(expected), "{source}: {text}");
    std::fs::remove_dir_all(folder).expect("it can be removed");
}

const C11: (&str, &[&str]) = ("cc", &["-std=c11", "-D_GNU_SOURCE"]);
const CPP17: (&str, &[&str]) = ("c++", &["-x", "c++", "-std=c++17"]);

#[test]
fn every_collective_over_four_processes_in_c() {
    run("collectives.c", C11, "all collectives are right");
}

#[test]
fn every_collective_over_four_processes_in_cpp() {
    run("collectives.c", CPP17, "all collectives are right");
}

#[test]
fn counts_per_rank_and_user_defined_reductions_over_processes_and_tcp() {
    run("counts.c", C11, "all counts are right");
    run("counts.c", CPP17, "all counts are right");
}

#[test]
fn with_cudas_types_from_a_header_of_that_name() {
    // What CUDA's own header declares, as far as nccl.h needs it.
    let folder = library("cuda-include");
    let header = folder.join("cuda_runtime.h");
    std::fs::write(&header, "typedef struct CUstream_st *cudaStream_t;\n").expect("a header");
    let include = format!("-I{}", folder.display());
    let flags = ["-std=c11", "-D_GNU_SOURCE", "-DEXPECT_CUDA", include.as_str()];
    run("collectives.c", ("cc", &flags), "all collectives are right");
    std::fs::remove_dir_all(folder).expect("it can be removed");
}

#[test]
fn bad_arguments_are_named() {
    run("arguments.c", C11, "all arguments are checked");
    run("arguments.c", CPP17, "all arguments are checked");
}

#[test]
fn one_thread_with_many_devices() {
    run("devices.c", C11, "many devices work in one thread");
}

#[test]
fn the_library_exports_its_interface_and_nothing_else() {
    let folder = library("symbols");
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(folder.join("liboxccl.so")).output();
    let Ok(output) = output else { return missing("nm", "binutils are not installed") };
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    let ours = |n: &&&str| ["nccl", "pnccl", "oxccl"].iter().any(|p| n.starts_with(p));
    let alien: Vec<_> = names.iter().filter(|n| !ours(n)).collect();
    assert!(alien.is_empty(), "{alien:?}");
    let twins = names.iter().filter(|n| n.starts_with("nccl"));
    let lonely: Vec<_> = twins.filter(|n| !names.contains(&format!("p{n}").as_str())).collect();
    assert!(names.len() > 80 && lonely.is_empty(), "{} {lonely:?}", names.len());
    let dynamic = Command::new("readelf").arg("-d").arg(folder.join("liboxccl.so")).output();
    let Ok(dynamic) = dynamic else { return missing("readelf", "binutils are not installed") };
    let text = String::from_utf8_lossy(&dynamic.stdout).into_owned();
    assert!(text.contains("liboxccl.so.2") && text.contains("NODELETE"), "{text}");
    std::fs::remove_dir_all(folder).expect("it can be removed");
}
