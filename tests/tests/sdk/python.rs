//! The Python package on threads and processes.

use crate::{ROOT, expect_ends, folder as empty_folder, have, on_four_ranks, prefix, run, succeed};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn folder() -> PathBuf {
    Path::new(ROOT).join("bindings/python")
}

pub(crate) fn have_numpy() -> bool {
    have("python3") && can_import("python3", "numpy")
}

/// Whether Python has a module; skips the test, as lacking `what`, where it has not.
fn can_import(what: &str, module: &str) -> bool {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("import {module}")]);
    command.env("OXCCL_LIBRARY", prefix().join("lib/liboxccl.so.2"));
    let output = python(&mut command).output().expect("it runs");
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        missing(what, text.trim().lines().last().unwrap_or("it fails"));
    }
    output.status.success()
}

/// Without writing bytecode into the repository.
fn python(command: &mut Command) -> &mut Command {
    command.env("PYTHONPATH", folder()).env("PYTHONDONTWRITEBYTECODE", "1")
}

#[test]
fn collectives_errors_graphs_and_aborts_on_threads_and_processes() {
    if !have_numpy() {
        return;
    }
    let tests = folder().join("tests/test_oxccl.py");
    let text = succeed(python(Command::new("python3").arg(&tests)));
    assert!(text.contains("Python is right"), "{text}");
    let mut ranks = on_four_ranks(prefix(), Path::new("python3"));
    let text = succeed(python(ranks.arg(&tests)));
    assert_eq!(text.matches("Python is right").count(), 4, "{text}");
}

#[test]
fn who_ends_first_without_closing_is_not_lost_to_the_others_but_after_an_exception() {
    if !have_numpy() {
        return;
    }
    let call = "import numpy, oxccl, time; comm = oxccl.Comm(); x = numpy.ones(1)\n\
                comm.all_reduce(x)\n";
    let program = |end: &str| {
        let mut ranks = on_four_ranks(prefix(), Path::new("python3"));
        run(prefix(), python(ranks.args(["-c", &format!("{call}{end}")])))
    };
    let broken = "comm.rank != 1 or 1 / 0\ncomm.all_reduce(x)";
    expect_ends(program, "time.sleep(1 if comm.rank == 0 else 0)", broken);
    let (status, text) = program("comm.rank != 0 or comm.send(x, 1)");
    let told = text.contains("at the end of the process: rank 0 has sent to rank 1");
    assert_eq!((status, told), (Some(0), true), "{text}");
}

#[test]
fn ranks_of_multiprocessing_end_so_too() {
    if !have_numpy() {
        return;
    }
    let spawned = Path::new(ROOT).join("tests/sdk/spawned.py");
    for method in ["fork", "spawn"] {
        let program = |end: &str| {
            let mut ranks = Command::new("python3");
            run(prefix(), python(ranks.arg(&spawned).args([method, end])))
        };
        expect_ends(program, "well", "broken");
    }
}

#[test]
fn the_system_finds_the_library_where_nobody_names_it() {
    if !have_numpy() {
        return;
    }
    let mut hello = Command::new("python3");
    hello.arg(Path::new(ROOT).join("tests/sdk/hello.py")).env_remove("OXCCL_LIBRARY");
    let text = succeed(python(&mut hello));
    assert!(text.contains("rank 0 of 1: all right"), "{text}");
}

#[test]
fn a_library_that_is_not_there_is_an_error() {
    if !have_numpy() {
        return;
    }
    let import = |variable: Option<&str>| {
        let mut command = Command::new("python3");
        command.args(["-c", "import oxccl"]).env_remove("LD_LIBRARY_PATH");
        match variable {
            Some(path) => command.env("OXCCL_LIBRARY", path),
            None => command.env_remove("OXCCL_LIBRARY"),
        };
        let output = python(&mut command).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("Set OXCCL_LIBRARY to the path of liboxccl.so.2"), "{text}");
        text
    };
    let text = import(Some("/nonexistent.so"));
    assert!(text.contains("OXCCL_LIBRARY names /nonexistent.so"), "{text}");
    // Without the variable it looks beside the package, and then asks the system.
    let text = import(None);
    assert!(text.contains("OXCCL_LIBRARY is not set, "), "{text}");
    assert!(text.contains("bindings/python/oxccl/liboxccl.so.2 is not there"), "{text}");
    assert!(text.contains("the system (LD_LIBRARY_PATH, ldconfig) has no liboxccl.so.2"), "{text}");
}

#[test]
fn pytorch_tensors_and_its_distributed_backend() {
    if !have_numpy() || !can_import("torch", "oxccl.torch") {
        return;
    }
    // Alone, and as one of several backends where this version takes it.
    let mut command = Command::new("python3");
    command.args(["-c", "import oxccl.torch; print(oxccl.torch._IN_PYTHON)"]);
    let several = succeed(python(&mut command)).trim() == "True";
    for backend in ["oxccl", "cpu:oxccl,cuda:gloo"].into_iter().take(1 + usize::from(several)) {
        let mut ranks = on_four_ranks(prefix(), Path::new("python3"));
        let meeting = empty_folder("torch");
        ranks.arg(folder().join("tests/test_torch.py")).arg(&meeting).arg(backend);
        let text = succeed(python(ranks.env("OMP_NUM_THREADS", "1")));
        assert_eq!(text.matches("PyTorch is right").count(), 4, "{text}");
    }
}

#[test]
fn a_wheel_installs_library_command_and_package() {
    if !have_numpy() || !can_import("python3", "venv, ensurepip") {
        return;
    }
    let folder = empty_folder("wheel");
    let homepage = "https://oxccl.example";
    let wheel = xtask::wheel::wheel(Path::new(ROOT), prefix(), &folder, Some(homepage));
    let wheel = wheel.expect("it is made");
    let files = succeed(Command::new("python3").args(["-m", "zipfile", "-l"]).arg(&wheel));
    for file in std::fs::read_dir(self::folder().join("oxccl")).expect("the package") {
        let name = file.expect("a file").file_name().to_string_lossy().into_owned();
        let ours = name.ends_with(".py") || name.ends_with(".typed");
        assert!(!ours || files.contains(&format!("oxccl/{name} ")), "{name} is not in: {files}");
    }
    let name = wheel.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("oxccl-") && name.contains("-py3-none-manylinux_2_"), "{name}");
    // NumPy is taken from the system: no test downloads anything.
    let venv = folder.join("venv");
    let mut command = Command::new("python3");
    succeed(command.args(["-m", "venv", "--system-site-packages"]).arg(&venv));
    let mut pip = Command::new(venv.join("bin/pip"));
    let offline = ["install", "--no-index", "--disable-pip-version-check"];
    succeed(pip.args(offline).arg(&wheel));
    let mut pip = Command::new(venv.join("bin/pip"));
    let text = succeed(pip.args(["show", "--verbose", "oxccl"]));
    assert!(text.contains(homepage), "{text}");
    // Nothing but what is installed is in its sight.
    let installed = |program: &mut Command| {
        let program = program.current_dir(&folder).env_clear();
        let output = program.env("OXCCL_DEVICE", "host").output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        text
    };
    let mut ranks = on_four_ranks(&venv, &venv.join("bin/python"));
    let text = installed(ranks.arg(Path::new(ROOT).join("tests/sdk/hello.py")));
    let there = format!("of 4: all right, by {}", venv.display());
    assert_eq!(text.matches(&there).count(), 4, "{text}");
    let mut about = Command::new(venv.join("bin/python"));
    let script = "from importlib.metadata import metadata as m; print(m('oxccl')['Description'])";
    let readme = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("README");
    assert_eq!(installed(about.args(["-c", script])).trim(), readme.trim());
    // Programs that load NCCL by this name find its functions.
    let mut load = Command::new(venv.join("bin/python"));
    let script = "import ctypes, oxccl, pathlib; \
                  ctypes.CDLL(pathlib.Path(oxccl.__file__).parent / 'libnccl.so').ncclAllReduce";
    installed(load.args(["-c", script]));
    let mut perf = Command::new(venv.join("bin/oxccl"));
    installed(perf.args(["perf", "all_reduce", "--ranks", "4", "-b", "8", "-e", "1M", "-n", "5"]));
    let mut list = Command::new(venv.join("bin/python"));
    let script = "from importlib.metadata import entry_points as e; \
                  print([p.value for p in e(group='torch.distributed.backends')])";
    assert_eq!(installed(list.args(["-c", script])).trim(), "['oxccl.torch:register']");
}
