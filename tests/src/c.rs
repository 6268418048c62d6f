//! C programs against the headers and the shared library.

use crate::job::{bind_to_parent, wait_until};
use crate::missing;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// A folder that goes with its owner.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one among the temporary files; `name` is part of its name.
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let own = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("oxccl-{own}-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that failed may leave it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A folder of its own with `liboxccl.so` and `liboxccl.so.2`: the library that this test was built
/// with, from `deps`, because the copy one level up may be stale.
pub fn library(name: &str) -> Folder {
    let test = std::env::current_exe().expect("a path");
    let built = test.parent().expect("a folder").join("liboxccl.so");
    assert!(built.exists(), "{} is not there", built.display());
    let folder = Folder::new(name);
    for link in ["liboxccl.so", "liboxccl.so.2"] {
        std::os::unix::fs::symlink(&built, folder.join(link)).expect("a link");
    }
    folder
}

/// A language: the compiler and its flags.
pub type Language<'a> = (&'a str, &'a [&'a str]);
/// C11, with what POSIX adds.
pub const C11: Language<'_> = ("cc", &["-std=c11", "-D_GNU_SOURCE"]);
/// C++17.
pub const CPP17: Language<'_> = ("c++", &["-x", "c++", "-std=c++17"]);

/// A compiled program; its folder goes with it.
pub struct Program {
    folder: Folder,
}

impl Program {
    /// Compiles a program of `tests/capi` and links it with the library; None where there is no
    /// such compiler.
    pub fn build(source: &str, (compiler, flags): Language<'_>) -> Option<Self> {
        let program = Self { folder: library(source) };
        let output = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"])
            .args(flags)
            .arg("-I")
            .arg(Path::new(MANIFEST).join("../capi/include"))
            .arg(Path::new(MANIFEST).join("capi").join(source))
            .arg("-o")
            .arg(program.path())
            .arg(format!("-L{}", program.folder.display()))
            // What names no function of the library itself shall load it at run time.
            .args(["-Wl,--as-needed", "-loxccl", "-ldl"])
            .arg(format!("-Wl,-rpath,{}", program.folder.display()))
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

    /// The program's file.
    pub fn path(&self) -> PathBuf {
        self.folder.join("program")
    }

    /// The library's file.
    pub fn library(&self) -> PathBuf {
        self.folder.join("liboxccl.so.2")
    }
}

/// Runs a command, at most 90 s, and checks that it succeeds and prints `expected`; what it
/// printed.
pub fn expect_success(command: &mut Command, expected: &str) -> String {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bind_to_parent(piped).spawn().expect("it starts");
    let status = wait_until(&mut child, Instant::now() + Duration::from_secs(90));
    let output = child.wait_with_output().expect("output");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(status, Some(0), "{command:?}: {text}");
    assert!(text.contains(expected), "{command:?}: {text}");
    text
}

/// Compiles and runs a program.
pub fn run(source: &str, language: Language<'_>, expected: &str) {
    if let Some(program) = Program::build(source, language) {
        expect_success(&mut Command::new(program.path()), expected);
    }
}
