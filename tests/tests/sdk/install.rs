//! C programs that find the installed library by pkg-config and CMake, and under NCCL's name.

use crate::{ROOT, folder, have, on_four_ranks, pkg_config, prefix, succeed, succeed_under};
use std::path::{Path, PathBuf};
use std::process::Command;

fn source(name: &str) -> PathBuf {
    Path::new(ROOT).join("tests/sdk").join(name)
}

/// Compiles a C program by what pkg-config says.
fn compile(prefix: &Path, name: &str, compiler: &[&str], package: &[&str], to: &Path) {
    let flags = pkg_config(prefix, package);
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]).args(compiler);
    succeed(command.arg(source(name)).args(flags).arg("-o").arg(to));
}

/// Runs the first example on 4 ranks.
fn check_hello(prefix: &Path, program: &Path) {
    let text = succeed_under(prefix, &mut on_four_ranks(prefix, program));
    let ranks = text.lines().filter(|l| l.contains("of 4: all right")).count();
    assert_eq!(ranks, 4, "{text}");
}

/// The libraries that a program is linked to.
fn needed(program: &Path) -> String {
    succeed(Command::new("readelf").arg("-d").arg(program))
}

#[test]
fn by_pkg_config_shared_and_static() {
    if !have("cc") || !have("pkg-config") || !have("readelf") {
        return;
    }
    let folder = folder("pkg-config");
    let (shared, fixed) = (folder.join("shared"), folder.join("static"));
    compile(prefix(), "hello.c", &[], &["--cflags", "--libs", "oxccl"], &shared);
    assert!(needed(&shared).contains("[liboxccl.so.2]"));
    check_hello(prefix(), &shared);
    let flags = ["--static", "--cflags", "--libs", "oxccl"];
    compile(prefix(), "hello.c", &["-static"], &flags, &fixed);
    assert!(!needed(&fixed).contains("NEEDED"));
    check_hello(prefix(), &fixed);
}

#[test]
fn licences_are_installed() {
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let installed = std::fs::read(prefix().join("share/licenses/oxccl").join(license));
        let own = std::fs::read(Path::new(ROOT).join(license)).expect("a licence");
        assert!(installed.expect("a licence") == own);
    }
}

#[test]
fn from_a_prefix_that_was_moved() {
    if !have("cc") || !have("pkg-config") {
        return;
    }
    let folder = folder("moved");
    let moved = folder.join("elsewhere");
    // With links: the libraries are large.
    succeed(Command::new("cp").arg("-al").arg(prefix()).arg(&moved));
    let flags = pkg_config(&moved, &["--cflags", "--libs", "oxccl"]);
    let there = |flag: &&String| flag.contains("elsewhere") || flag.as_str() == "-loxccl";
    assert!(flags.iter().all(|f| there(&f)), "{flags:?}");
    let program = folder.join("hello");
    compile(&moved, "hello.c", &[], &["--cflags", "--libs", "oxccl"], &program);
    check_hello(&moved, &program);
    let known = moved.join("lib/pkgconfig/oxccl.pc");
    let old = prefix().display().to_string();
    for file in [known, moved.join("lib/cmake/oxccl/oxccl-config.cmake")] {
        let text = std::fs::read_to_string(&file).expect("a file");
        assert!(!text.contains(&old) && !text.contains('@'), "{}: {text}", file.display());
    }
}

#[test]
fn without_debug_information_but_for_a_file_that_debuggers_find() {
    if !have("objcopy") || !have("readelf") {
        return;
    }
    let sections = |file: &str| {
        succeed(Command::new("readelf").args(["--wide", "--sections"]).arg(prefix().join(file)))
    };
    let library = sections("lib/liboxccl.so.2");
    assert!(library.contains(".gnu_debuglink") && !library.contains(".debug_info"), "{library}");
    assert!(sections("lib/.debug/liboxccl.so.2.debug").contains(".debug_info"));
    for file in ["bin/oxccl", "lib/liboxccl.a", "lib/libnccl-net-oxccl.so"] {
        assert!(!sections(file).contains(".debug_info"), "{file}");
    }
}

#[test]
fn and_removed_again() {
    let moved = folder("removed").join("prefix");
    succeed(Command::new("cp").arg("-al").arg(prefix()).arg(&moved));
    std::fs::write(moved.join("bin/theirs"), "").expect("a file");
    let installed = xtask::install::Installed { prefix: moved.clone() };
    let changed = xtask::install::uninstall(&installed).expect("it is removed");
    assert!(changed.is_empty(), "{changed:?}");
    let left = succeed(Command::new("find").arg(&moved).args(["-mindepth", "1"]));
    let theirs = moved.join("bin/theirs");
    assert_eq!(
        left.lines().collect::<Vec<_>>(),
        [moved.join("bin"), theirs].map(|p| p.display().to_string())
    );
}

/// Copies the project that finds the library by CMake into a new folder.
pub(crate) fn cmake_project(folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder");
    for file in ["CMakeLists.txt", "hello.c"] {
        std::fs::copy(source(file), folder.join(file)).expect("a copy");
    }
    folder.to_owned()
}

#[test]
fn by_cmake() {
    if !have("cmake") || !have("cc") || !have("readelf") {
        return;
    }
    let folder = cmake_project(&folder("cmake"));
    succeed(Command::new("cmake").arg("-B").arg(folder.join("build")).arg("-S").arg(&folder));
    succeed(Command::new("cmake").arg("--build").arg(folder.join("build")));
    check_hello(prefix(), &folder.join("build/hello"));
    check_hello(prefix(), &folder.join("build/hello-static"));
    assert!(!needed(&folder.join("build/hello-static")).contains("liboxccl"));
}

#[test]
fn under_the_name_of_nccl() {
    if !have("cc") || !have("pkg-config") || !have("readelf") {
        return;
    }
    let folder = folder("nccl");
    let program = folder.join("nccl");
    compile(prefix(), "nccl.c", &[], &["--cflags", "--libs", "nccl"], &program);
    let text = succeed(&mut Command::new(&program));
    assert!(text.contains("version 23203") && text.contains("liboxccl.so.2"), "{text}");
    let version = pkg_config(prefix(), &["--modversion", "nccl"]);
    assert_eq!(version, ["2.32.3"]);
    let own = needed(&prefix().join("lib/libnccl.so.2"));
    assert!(own.contains("[libnccl.so.2]") && own.contains("[liboxccl.so.2]"), "{own}");
}

#[test]
fn preloaded_in_place_of_another_nccl() {
    if !have("cc") {
        return;
    }
    let folder = folder("preloaded");
    let other = folder.join("libnccl.so.2");
    let code = folder.join("other.c");
    std::fs::write(&code, "int ncclGetVersion(int *v) { *v = 1; return 0; }\n").expect("a file");
    let library = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o"];
    succeed(Command::new("cc").args(library).arg(&other).arg(&code));
    // Found by RPATH, as PyTorch finds its own.
    let program = folder.join("program");
    let mut command = Command::new("cc");
    command.arg("-I").arg(prefix().join("include")).arg(source("nccl.c")).arg(&other);
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display());
    succeed(command.arg(rpath).arg("-o").arg(&program));
    let text = succeed(&mut Command::new(&program));
    assert!(text.contains("version 1\n"), "{text}");
    let ours = prefix().join("lib/libnccl.so.2");
    let text = succeed(Command::new(&program).env("LD_PRELOAD", &ours));
    assert!(text.contains("version 23203\n"), "{text}");
    let alien = text.lines().filter(|l| l.starts_with('/'));
    let alien: Vec<_> = alien.filter(|l| !l.starts_with(&prefix().display().to_string())).collect();
    assert!(alien.is_empty(), "{alien:?}");
}
