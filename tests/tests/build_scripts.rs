//! The build scripts, run as cargo runs them: what they compile again, and what they keep.

use oxccl_tests::c::{Folder, expect_success};
use oxccl_tests::job::{bind_to_parent, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A file that is open for writing in a child that was just forked cannot be executed, so one test
/// at a time makes programs.
static ALONE: Mutex<()> = Mutex::new(());

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The build script of a package, compiled, and the package's folder, which is to be filled.
struct Script {
    folder: Folder,
}

impl Script {
    fn of(package: &str) -> Self {
        let script = Self { folder: Folder::new(package) };
        for name in ["package", "out"] {
            std::fs::create_dir(script.folder.join(name)).expect("a folder");
        }
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let mut command = Command::new(rustc);
        command.args(["--edition", "2024"]).arg(Path::new(ROOT).join(package).join("build.rs"));
        expect_success(command.arg("-o").arg(script.folder.join("script")), "");
        script
    }

    fn package(&self) -> PathBuf {
        self.folder.join("package")
    }

    fn out(&self, name: &str) -> PathBuf {
        self.folder.join("out").join(name)
    }

    /// Runs it with variables; whether it succeeded, and what it printed for cargo.
    fn run(&self, variables: &[(&str, &str)]) -> (bool, String) {
        let mut command = Command::new(self.folder.join("script"));
        command.current_dir(self.package()).env_remove("CUDA_HOME").env_remove("CUDAARCHS");
        command.env("PROFILE", "release");
        command.env("CARGO_MANIFEST_DIR", self.package()).env("OUT_DIR", self.out(""));
        command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bind_to_parent(&mut command).spawn().expect("it starts");
        let status = wait_until(&mut child, Instant::now() + Duration::from_secs(60));
        let output = child.wait_with_output().expect("output");
        assert!(status.is_some(), "{}", String::from_utf8_lossy(&output.stderr));
        (status == Some(0), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// What stands for nvcc: notes that it was called, fails for architecture 99, and makes a file of
/// what it was told.
const NVCC: &str = "#!/bin/sh
if [ \"$1\" = --version ]; then read -r version < \"$FAKE/version\"; echo \"$version\"; exit; fi
echo called >> \"$FAKE/calls\"
told=\"$*\"
while [ $# -gt 1 ]; do shift; [ \"$1\" = -o ] && out=$2; done
echo \"$told\" > \"$out\"
case $told in *sm_99*) exit 1;; esac
";

#[test]
fn kernels_are_compiled_again_for_another_compiler_source_or_architecture_and_for_no_other_path() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = Script::of("kernels");
    let fake = script.folder.join("fake");
    let write = |file: PathBuf, text: &str| std::fs::write(file, text).expect("a file");
    let source = script.package().join("cuda/kernels.cu");
    for folder in [script.package().join("cuda"), fake.clone()] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let [environment, first, second] = ["environment", "first", "second"].map(|name| {
        let folder = fake.join(name);
        std::fs::create_dir(&folder).expect("a folder");
        folder.display().to_string()
    });
    for folder in [&first, &second] {
        let nvcc = Path::new(folder).join("nvcc");
        write(nvcc.clone(), NVCC);
        std::fs::set_permissions(nvcc, PermissionsExt::from_mode(0o755)).expect("it is ours");
    }
    write(source.clone(), "one");
    write(fake.join("version"), "release 13.0");
    let calls = || std::fs::read_to_string(fake.join("calls")).unwrap_or_default().lines().count();
    let run = |path: &str, archs: &str| {
        let folder = fake.display().to_string();
        script.run(&[("PATH", path), ("CUDAARCHS", archs), ("FAKE", folder.as_str())])
    };
    let made = || std::fs::read_to_string(script.out("kernels.fatbin")).expect("a result");

    let (ok, text) = run(&first, "90");
    assert!(ok && made().contains("sm_90") && calls() == 1, "{text}: {}", made());
    assert!(text.contains(&format!("rerun-if-changed={first}/nvcc\n")), "{text}");
    assert!(!text.contains("env-changed=PATH"), "{text}");
    let activated = format!("{environment}:{first}");
    assert!(run(&activated, "90").0 && calls() == 1, "another path, the same compiler");
    assert!(run(&activated, "80").0 && calls() == 2 && made().contains("sm_80"), "{}", made());
    write(source, "two");
    assert!(run(&first, "80").0 && calls() == 3, "another source");
    write(fake.join("version"), "release 13.1");
    assert!(run(&first, "80").0 && calls() == 4, "another version");
    assert!(run(&format!("{second}:{first}"), "80").0 && calls() == 5, "another compiler");
    assert!(run(&second, "80").0 && calls() == 5, "the same");
    // What failed is tried again, and leaves nothing that is taken for a result.
    assert!(!run(&second, "99").0 && !run(&second, "99").0 && calls() == 7, "it fails");
    assert!(run(&second, "80").0 && calls() == 7 && made().contains("sm_80"), "{}", made());
    assert!(run(&environment, "80").0 && made().is_empty() && calls() == 7, "no compiler");
    assert!(run(&second, "80").0 && calls() == 7 && made().contains("sm_80"), "as before");
    assert!(run(&second, "").0 && made().is_empty(), "no architecture");
    let (ok, text) = run(&second, "all");
    assert!(ok && calls() == 8 && ["sm_75", "sm_120"].iter().all(|arch| made().contains(arch)));
    assert!(!text.contains("warning"), "{text}");
    assert!(run(&second, "80;90").0 && calls() == 9 && made().contains("sm_90"), "{}", made());
    assert!(run(&second, "all").0 && calls() == 9 && made().contains("sm_120"), "it was kept");
}

#[test]
fn kernels_are_compiled_for_the_gpus_that_are_here() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = Script::of("kernels");
    let path = script.folder.display().to_string();
    let program = |name: &str, text: &str| {
        let file = script.folder.join(name);
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).expect("it is ours");
    };
    std::fs::create_dir(script.package().join("cuda")).expect("a folder");
    std::fs::write(script.folder.join("version"), "release 13.0").expect("a file");
    program("nvcc", NVCC);
    program("nvidia-smi", "#!/bin/sh\nexit 9\n");
    let made = || std::fs::read_to_string(script.out("kernels.fatbin")).expect("a result");
    let run = || script.run(&[("PATH", path.as_str()), ("FAKE", path.as_str())]);
    let (ok, text) = run();
    let warned = "cargo::warning=without kernels, as nvidia-smi finds no GPU";
    assert!(ok && made().is_empty() && text.contains(warned), "{text}");
    program("nvidia-smi", "#!/bin/sh\necho 9.0\necho 8.6\necho 9.0\n");
    let (ok, text) = run();
    assert!(ok && made().contains("sm_86") && made().contains("sm_90"), "{text}: {}", made());
    assert!(!made().contains("sm_80") && !text.contains("warning"), "{text}: {}", made());
}

#[test]
fn the_library_is_linked_without_the_checkout_that_was_built_first() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = Script::of("capi");
    let (here, there) = (Path::new(ROOT).join("capi/exports.map"), script.package());
    std::fs::copy(&here, there.join("exports.map")).expect("a copy");
    let (ok, text) = script.run(&[]);
    std::fs::remove_dir_all(there).expect("it can be removed");
    assert!(ok && text.contains("cargo::rerun-if-changed=exports.map\n"), "{text}");
    let maps = text.lines().filter_map(|line| line.split_once("-Wl,--version-script="));
    let maps: Vec<&str> = maps.map(|(_, path)| path).collect();
    assert_eq!(maps.len(), 1, "{text}");
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    assert!(read(Path::new(maps[0])) == read(&here), "{text}");
}
