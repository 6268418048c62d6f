//! The installed product as others use it: build systems and languages, each outside the
//! repository.

mod complete;
mod cpp;
mod cudarc;
mod deb;
mod docs;
mod examples;
mod go;
mod hostcuda;
mod install;
mod julia;
mod launchers;
mod mpi;
mod python;
mod reference;

use oxccl_tests::job::{bind_to_parent, wait_until};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What `cargo xtask install` made in an empty folder, once for all tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
        // It is there from the last run.
        let _ = std::fs::remove_dir_all(&prefix);
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let options = xtask::install::Options {
            prefix: prefix.clone(),
            libdir: xtask::install::LIBDIR.to_owned(),
            profile: profile.to_owned(),
            nccl_compat: true,
            rdma: false,
            glibc: None,
        };
        xtask::install::install(Path::new(ROOT), &options).expect("it installs");
        prefix
    })
}

/// An empty folder for a test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sdk-{name}"));
    // It may be there from the last run.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Tells whether a program is there; skips the test where it is not.
fn have(program: &str) -> bool {
    let argument = if program == "go" { "version" } else { "--version" };
    match Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => true,
        Err(e) => {
            missing(program, &e.to_string());
            false
        }
    }
}

/// Runs a command to its success, with the installed libraries and packages in its sight; what it
/// printed.
fn succeed(command: &mut Command) -> String {
    succeed_under(prefix(), command)
}

fn succeed_under(prefix: &Path, command: &mut Command) -> String {
    let (status, text) = run(prefix, command);
    assert_eq!(status, Some(0), "{command:?}: {text}");
    text
}

/// Four ranks run a program that ends as `quiet` says, in which the others end before rank 0, and
/// nobody is lost; then as `broken` says, in which rank 1 fails, and the others lose it.
fn expect_ends(program: impl Fn(&str) -> (Option<i32>, String), quiet: &str, broken: &str) {
    let (status, text) = program(quiet);
    assert_eq!((status, text.contains("lost rank")), (Some(0), false), "{text}");
    let (status, text) = program(broken);
    assert_eq!(status, Some(1), "{text}");
    let told = ["lost rank 1", ": its process ended"].map(|part| text.contains(part));
    assert_eq!(told, [true; 2], "{text}");
    assert!(!text.contains("destroyed"), "{text}");
}

/// The folder of libraries below a prefix; in Debian's packages it has another name.
fn libraries(prefix: &Path) -> PathBuf {
    let debian = prefix.join(xtask::deb::libdir());
    if debian.exists() { debian } else { prefix.join("lib") }
}

/// Runs a command, with what is installed under a prefix in its sight; its status, and what it
/// printed.
fn run(prefix: &Path, command: &mut Command) -> (Option<i32>, String) {
    let lib = libraries(prefix);
    let own = command.get_envs().any(|(name, _)| name == "OXCCL_LIBRARY");
    if !own {
        command.env("OXCCL_LIBRARY", lib.join("liboxccl.so.2"));
    }
    command
        .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
        .env("LD_LIBRARY_PATH", &lib)
        .env("CMAKE_PREFIX_PATH", prefix);
    watch(command)
}

/// Runs a command, at most for ten minutes; its status, and what it printed.
fn watch(command: &mut Command) -> (Option<i32>, String) {
    let log = folder_file();
    let file = std::fs::File::create(&log).expect("a file");
    command.stdin(Stdio::null()).stdout(file.try_clone().expect("a second handle")).stderr(file);
    let mut child = bind_to_parent(command).spawn().expect("it starts");
    let status = wait_until(&mut child, Instant::now() + Duration::from_secs(600));
    let text = std::fs::read_to_string(&log).expect("what it printed");
    std::fs::remove_file(&log).expect("it can be removed");
    (status, text)
}

/// What pkg-config says, as words.
fn pkg_config(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let text = succeed_under(prefix, Command::new("pkg-config").args(arguments));
    text.split_whitespace().map(str::to_owned).collect()
}

/// A file of its own: a pipe would fill up before the end.
fn folder_file() -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sdk-{}-{number}.log", std::process::id()))
}

/// What the logs of 4 ranks of `hello.go`, `.jl` and `.py` say of the options that those ask for.
fn expect_options(log: &str) {
    let line = "communicator greeting: option minCTAs = 8 has no effect";
    assert_eq!(log.matches(line).count(), 4, "{log}");
}

/// A program on 4 ranks, started by the installed command.
fn on_four_ranks(prefix: &Path, program: &Path) -> Command {
    let mut command = Command::new(prefix.join("bin/oxccl"));
    command.args(["run", "-n", "4"]).arg(program);
    command
}
