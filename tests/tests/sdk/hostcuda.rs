//! Programs of the structure of NCCL's guide, on host memory, in C and C++.

use crate::{ROOT, folder, have, pkg_config, prefix, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;

const C: [&str; 2] = ["-std=c11", "-xc"];
// Open MPI's own C++ interface, which is no more, does not compile without warnings.
const CPP: [&str; 3] = ["-std=c++17", "-xc++", "-DOMPI_SKIP_MPICXX"];

fn compile(folder: &Path, source: &str, compiler: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join(format!("{source}-{compiler}"));
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    command.arg(Path::new(ROOT).join("tests/sdk/hostcuda").join(source)).args(["-x", "none"]);
    command.args(pkg_config(prefix(), &["--cflags", "--libs", "oxccl-hostcuda"]));
    succeed(command.arg("-o").arg(&program));
    program
}

#[test]
fn one_thread_drives_all_devices_and_waits_for_their_streams() {
    if !have("cc") || !have("c++") || !have("pkg-config") {
        return;
    }
    let folder = folder("hostcuda-one");
    for (compiler, flags) in [("cc", &C[..]), ("c++", &CPP[..])] {
        for source in ["one_thread.c", "streams.c"] {
            let program = compile(&folder, source, compiler, flags);
            assert!(succeed(&mut Command::new(program)).contains("all right"));
        }
    }
}

#[test]
fn under_mpi_and_in_threads() {
    if !have("mpirun") || !have("mpicc") || !have("mpicxx") || !have("pkg-config") {
        return;
    }
    let folder = folder("hostcuda-mpi");
    let programs = [
        ("one_device.c", "mpicc", &C[..], 4),
        ("one_device.c", "mpicxx", &CPP[..], 4),
        ("many_devices.cpp", "mpicxx", &CPP[..], 2),
        ("communicators.c", "mpicc", &C[..], 2),
        ("communicators.c", "mpicxx", &CPP[..], 2),
    ];
    for (source, compiler, flags, processes) in programs {
        let program = compile(&folder, source, compiler, flags);
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", &processes.to_string()]);
        let text = succeed(command.arg(&program));
        assert_eq!(text.matches("all right").count(), processes, "{source}: {text}");
        if source == "one_device.c" {
            let text = succeed(Command::new(&program).arg("threads"));
            assert_eq!(text.matches("all right").count(), 1, "{text}");
        }
    }
}
