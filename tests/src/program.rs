//! C programs against the headers and the shared library.

use crate::job::{bind_to_parent, wait_until};
use crate::missing;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A compiler and its flags.
pub type Language<'a> = (&'a str, &'a [&'a str]);

/// C11 with the functions of POSIX and Linux.
pub const C11: Language<'_> = ("cc", &["-std=c11", "-D_GNU_SOURCE"]);
/// C++17.
pub const CPP17: Language<'_> = ("c++", &["-x", "c++", "-std=c++17"]);

/// The folder of C programs of the tests.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("capi")
}

/// A folder of its own with `liboxccl.so` and `liboxccl.so.2`: the library that this test was built
/// with, from `deps`, because the copy one level up may be stale.
pub fn library(name: &str) -> PathBuf {
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

/// Compiles a source (a path, or a file of `tests/capi`) to `output` in `folder`, which has the
/// library; None without a compiler.
pub fn compile(
    source: &str,
    (compiler, flags): Language<'_>,
    folder: &Path,
    output: &str,
) -> Option<PathBuf> {
    let program = folder.join(output);
    let done = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O1"])
        .args(flags)
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/include"))
        .arg(sources().join(source))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", folder.display()))
        .arg("-loxccl")
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .output();
    match done {
        Err(e) => {
            missing(compiler, &e.to_string());
            None
        }
        Ok(done) => {
            let text = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{compiler} {source}: {text}");
            Some(program)
        }
    }
}

/// Runs a program to its end; returns what it printed. It has to succeed within 90 seconds.
pub fn output(command: &mut Command) -> String {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bind_to_parent(command).spawn().expect("it starts");
    let readers = crate::job::read_all(&mut child);
    let status = wait_until(&mut child, Instant::now() + Duration::from_secs(90));
    let text: Vec<String> = readers.map(|r| r.join().unwrap_or_default()).into();
    assert_eq!(status, Some(0), "{}: {}", command.get_program().display(), text.concat());
    text.concat()
}

/// Compiles and runs a file of `tests/capi`, which has to print `expected`.
pub fn run(source: &str, language: Language<'_>, expected: &str) {
    let folder = library(&format!("{source}-{}-{}", language.0, language.1.len()));
    let Some(program) = compile(source, language, &folder, "program") else { return };
    let text = output(&mut Command::new(program));
    assert!(text.contains(expected), "{source}: {text}");
    std::fs::remove_dir_all(folder).expect("it can be removed");
}
