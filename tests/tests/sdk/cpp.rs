//! The C++ binding: with exceptions on threads and processes, in C++17 and C++20, and without.

use crate::{ROOT, folder, have, on_four_ranks, prefix, succeed};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use std::process::Command;

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];

fn compile(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let found = succeed(Command::new("pkg-config").args(["--cflags", "--libs", "oxccl"]));
    let program = folder.join(format!("{name}{}", flags.concat().replace('/', "_")));
    let mut command = Command::new("c++");
    command.args(WARNINGS).args(["-O0", "-g1", "-pthread"]).args(flags);
    command.arg(Path::new(ROOT).join("tests/sdk").join(name).with_extension("cpp"));
    succeed(command.args(found.split_whitespace()).arg("-o").arg(&program));
    program
}

#[test]
fn collectives_errors_graphs_and_aborts_on_threads_and_processes() {
    if !have("c++") || !have("pkg-config") {
        return;
    }
    let folder = folder("cpp");
    for standard in ["-std=c++17", "-std=c++20"] {
        let program = compile(&folder, "cpp", &[standard]);
        let text = succeed(&mut Command::new(&program));
        assert!(text.contains("C++ is right"), "{text}");
        let text = succeed(&mut on_four_ranks(prefix(), &program));
        assert_eq!(text.matches("C++ is right").count(), 4, "{text}");
    }
}

#[test]
fn without_exceptions() {
    if !have("c++") || !have("pkg-config") {
        return;
    }
    let folder = folder("cpp-returning");
    let program = compile(&folder, "cpp_returning", &["-std=c++17", "-fno-exceptions"]);
    let text = succeed(&mut on_four_ranks(prefix(), &program));
    assert_eq!(text.matches("without exceptions is right").count(), 4, "{text}");
}

#[test]
fn nothing_leaks() {
    if !have("c++") || !have("pkg-config") {
        return;
    }
    let folder = folder("cpp-leaks");
    let probe = folder.join("probe.cpp");
    std::fs::write(&probe, "int main() {}\n").expect("a file");
    let mut command = Command::new("c++");
    command.arg("-fsanitize=address,undefined").arg(&probe).arg("-o").arg(folder.join("probe"));
    if !command.status().is_ok_and(|status| status.success()) {
        return missing("asan", "c++ has no AddressSanitizer");
    }
    let program = compile(&folder, "cpp", &["-std=c++17", "-fsanitize=address,undefined"]);
    let mut command = Command::new(&program);
    let text = succeed(command.env("UBSAN_OPTIONS", "halt_on_error=1"));
    assert!(text.contains("C++ is right"), "{text}");
}
