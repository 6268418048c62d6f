//! The Python package on threads and processes.

use crate::{ROOT, have, on_four_ranks, prefix, succeed};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn folder() -> PathBuf {
    Path::new(ROOT).join("bindings/python")
}

pub(crate) fn have_numpy() -> bool {
    if !have("python3") {
        return false;
    }
    let output = Command::new("python3").args(["-c", "import numpy"]).output();
    let found = output.is_ok_and(|output| output.status.success());
    if !found {
        missing("python3", "it has no NumPy");
    }
    found
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
fn a_library_that_is_not_there_is_an_error() {
    if !have_numpy() {
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-c", "import oxccl"]).env("OXCCL_LIBRARY", "/nonexistent.so");
    let output = python(&mut command).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("/nonexistent.so"), "{text}");
}
