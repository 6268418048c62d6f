//! The Julia package: its own tests on tasks and processes, and in another project.

use crate::{ROOT, expect_ends, expect_options, folder, have, prefix, run, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;

fn package() -> PathBuf {
    std::fs::canonicalize(Path::new(ROOT).join("bindings/julia/OxCCL.jl")).expect("it is there")
}

#[test]
fn its_own_tests_pass_on_tasks() {
    if !have("julia") {
        return;
    }
    // A copy: Julia writes a manifest beside the project.
    let copy = folder("julia").join("OxCCL.jl");
    succeed(Command::new("cp").arg("-r").arg(package()).arg(&copy));
    let mut command = Command::new("julia");
    command
        .arg(format!("--project={}", copy.display()))
        .args(["-e", "using Pkg; Pkg.test(julia_args=`-O0`)"]);
    let text = succeed(&mut command);
    assert!(text.contains("Testing OxCCL tests passed"), "{text}");
}

#[test]
fn its_own_tests_pass_on_processes() {
    if !have("julia") {
        return;
    }
    let tests = package().join("test/runtests.jl");
    succeed(on_four_julias("julia-processes").arg(tests));
}

#[test]
fn who_ends_first_without_closing_is_not_lost_to_the_others_but_after_an_exception() {
    if !have("julia") {
        return;
    }
    let call = "using OxCCL; comm = Comm(); Barrier(comm);";
    let program = |end: &str| {
        let mut ranks = on_four_julias("julia-end");
        run(prefix(), ranks.args(["-e", &format!("{call} {end}")]))
    };
    let broken = "comm.rank == 1 && error(\"broken\"); Barrier(comm)";
    expect_ends(program, "comm.rank == 0 && sleep(1)", broken);
    let (status, text) = program("comm.rank == 0 && Send(ones(1), comm; dest = 1)");
    let told = text.contains("at the end of the process: rank 0 has sent to rank 1");
    assert_eq!((status, told), (Some(0), true), "{text}");
}

#[test]
fn another_project_uses_it() {
    if !have("julia") {
        return;
    }
    let hello = Path::new(ROOT).join("tests/sdk/hello.jl");
    let text = succeed(on_four_julias("julia-user").arg(hello).env("NCCL_DEBUG", "INFO"));
    assert_eq!(text.matches("of 4: all right").count(), 4, "{text}");
    expect_options(&text);
}

#[test]
fn the_system_finds_the_library_unless_the_environment_names_it() {
    if !have("julia") {
        return;
    }
    let project = project("julia-library");
    let mut hello = Command::new("julia");
    hello.args(["-O0", &project]).arg(Path::new(ROOT).join("tests/sdk/hello.jl"));
    let text = succeed(hello.env_remove("OXCCL_LIBRARY"));
    assert!(text.contains("rank 0 of 1: all right"), "{text}");
    let mut load = Command::new("julia");
    load.args(["-O0", &project, "-e", "using OxCCL"]).env("OXCCL_LIBRARY", "/nonexistent.so");
    let (status, text) = run(prefix(), &mut load);
    assert!(status == Some(1) && text.contains("/nonexistent.so"), "{status:?}: {text}");
    assert!(text.contains("OXCCL_LIBRARY names /nonexistent.so"), "{text}");
    assert!(text.contains("Set OXCCL_LIBRARY to the path of"), "{text}");
    // Where nobody names it and the system does not find it, the error tells where it looked.
    load = Command::new("julia");
    load.args(["-O0", &project, "-e", "using OxCCL"]);
    let output = load.env_remove("OXCCL_LIBRARY").env_remove("LD_LIBRARY_PATH").output();
    let output = output.expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains(
            "OXCCL_LIBRARY is not set, nor is the preference `library`, and the system \
             (LD_LIBRARY_PATH, ldconfig) has no liboxccl.so.2"
        ),
        "{text}"
    );
    assert!(text.contains("Set OXCCL_LIBRARY to the path of"), "{text}");
}

/// Julia on 4 ranks, in an empty project that has the package; a file is to follow.
fn on_four_julias(name: &str) -> Command {
    let mut command = Command::new(prefix().join("bin/oxccl"));
    command.args(["run", "-n", "4", "julia", "-O0", &project(name)]);
    command
}

/// The option that names an empty project that has the package.
fn project(name: &str) -> String {
    let folder = folder(name);
    let project = format!("--project={}", folder.display());
    let develop = format!("using Pkg; Pkg.develop(PackageSpec(path={:?}))", package());
    succeed(Command::new("julia").args([&project, "-e", &develop]));
    // So that four processes need not compile it side by side.
    succeed(Command::new("julia").args([&project, "-e", "using OxCCL"]));
    project
}
