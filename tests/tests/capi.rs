//! C programs against the headers and the shared library, in C11 and in C++17.

use oxccl_tests::c::{C11, CPP17, library, run};
use oxccl_tests::missing;
use std::process::Command;

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
    const TYPES: &str =
        "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n";
    let folder = library("cuda-include");
    let header = folder.join("cuda_runtime.h");
    std::fs::write(&header, TYPES).expect("a header");
    let include = format!("-I{}", folder.display());
    let flags = ["-std=c11", "-D_GNU_SOURCE", "-DEXPECT_CUDA", include.as_str()];
    run("collectives.c", ("cc", &flags), "all collectives are right");
}

#[test]
fn bad_arguments_are_named() {
    run("arguments.c", C11, "all arguments are checked");
    run("arguments.c", CPP17, "all arguments are checked");
}

#[test]
fn variables_are_read_from_environment_and_file_and_by_ncclparam() {
    run("params.c", C11, "all variables are read");
    run("params.c", CPP17, "all variables are read");
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
    // NCCL's library has this one without a twin, too.
    let alone = |n: &&&str| **n == "ncclResetDebugInitInternal";
    let twins = names.iter().filter(|n| n.starts_with("nccl") && !alone(n));
    let lonely: Vec<_> = twins.filter(|n| !names.contains(&format!("p{n}").as_str())).collect();
    assert!(names.len() > 80 && lonely.is_empty(), "{} {lonely:?}", names.len());
    let dynamic = Command::new("readelf").arg("-d").arg(folder.join("liboxccl.so")).output();
    let Ok(dynamic) = dynamic else { return missing("readelf", "binutils are not installed") };
    let text = String::from_utf8_lossy(&dynamic.stdout).into_owned();
    assert!(text.contains("liboxccl.so.2") && text.contains("NODELETE"), "{text}");
}
