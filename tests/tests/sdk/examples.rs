//! The examples on 4 ranks, in each language: they run, and find out a library that is wrong.

use crate::{ROOT, folder, have, on_four_ranks, pkg_config, prefix, run, succeed, watch};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// How an example is started.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    Ranks,
    Alone,
    Mpirun,
}

/// The examples, how they are started, and how many ranks tell the verdict.
const EXAMPLES: [(&str, Start, usize); 8] = [
    ("01_hello", Start::Ranks, 4),
    ("02_devices", Start::Alone, 1),
    ("03_mpi", Start::Mpirun, 4),
    ("04_halo", Start::Ranks, 4),
    ("05_training", Start::Ranks, 4),
    ("06_graph", Start::Ranks, 4),
    ("07_registered", Start::Ranks, 4),
    ("08_lost_rank", Start::Ranks, 3),
];

fn examples() -> PathBuf {
    Path::new(ROOT).join("examples")
}

/// The names in a folder that begin with a digit, without what follows the first point.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
    let stem = |name: String| name.split('.').next().map(str::to_owned);
    let numbered = |name: &String| name.starts_with(|c: char| c.is_ascii_digit());
    let mut names: Vec<_> = names.filter_map(stem).filter(numbered).collect();
    names.sort();
    names
}

/// A library that stands before the installed one.
fn wrong() -> &'static Path {
    static WRONG: OnceLock<PathBuf> = OnceLock::new();
    WRONG.get_or_init(|| {
        let library = folder("wrong").join("libwrong.so");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]).arg(&library);
        command.arg(Path::new(ROOT).join("tests/sdk/wrong.c"));
        succeed(command.args(pkg_config(prefix(), &["--cflags", "--libs", "oxccl"])));
        library
    })
}

/// An example that is started by `program`.
fn command(name: &str, start: Start, program: &[OsString]) -> Command {
    let mut command = match start {
        Start::Ranks => on_four_ranks(prefix(), Path::new(&program[0])),
        Start::Alone => Command::new(&program[0]),
        Start::Mpirun => {
            let mut command = Command::new("mpirun");
            command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]).arg(&program[0]);
            command
        }
    };
    command.args(&program[1..]);
    if name == "05_training" {
        command.arg(examples().join("data/iris.csv"));
    }
    command
}

/// Runs all examples of a folder, and once more with a wrong library, where `wrong_at` is the
/// variable that puts it before the right one.
fn check(folder: &str, program: impl Fn(&str) -> Vec<OsString>, wrong_at: Option<&str>) {
    assert_eq!(names(&examples().join(folder)), EXAMPLES.map(|(name, ..)| name));
    let mpirun = have("mpirun");
    for (name, start, ranks) in EXAMPLES {
        if start == Start::Mpirun && !mpirun {
            continue;
        }
        let program = program(name);
        let text = succeed(&mut command(name, start, &program));
        assert_eq!(text.matches("verified\n").count(), ranks, "{folder}/{name}: {text}");
        let Some(variable) = wrong_at else { continue };
        let mut command = command(name, start, &program);
        let (status, text) = run(prefix(), command.env(variable, wrong()));
        let unnoticed = status == Some(0) || text.contains("verified");
        assert!(status.is_some() && !unnoticed, "{folder}/{name}: {status:?}: {text}");
    }
}

/// Compiles the examples of a folder, one after the other.
fn compile(language: &str, suffix: &str, compilers: [&str; 2], flags: &[&str]) -> PathBuf {
    let folder = folder(&format!("examples-{language}"));
    let found = pkg_config(prefix(), &["--cflags", "--libs", "oxccl"]);
    for (name, start, _) in EXAMPLES {
        let mpi = start == Start::Mpirun;
        if mpi && !have(compilers[1]) {
            continue;
        }
        let mut command = Command::new(compilers[usize::from(mpi)]);
        command.args(["-Wall", "-Wextra", "-Werror", "-O1"]).args(flags);
        command.arg(examples().join(language).join(name).with_extension(suffix));
        succeed(command.args(&found).arg("-lm").arg("-o").arg(folder.join(name)));
    }
    folder
}

#[test]
fn in_c() {
    if have("cc") && have("pkg-config") {
        let folder = compile("c", "c", ["cc", "mpicc"], &[]);
        check("c", |name| vec![folder.join(name).into()], Some("LD_PRELOAD"));
    }
}

#[test]
fn in_cpp() {
    if have("cc") && have("c++") && have("pkg-config") {
        // Open MPI's own C++ interface, which is no more, does not compile without warnings.
        let flags = ["-std=c++17", "-DOMPI_SKIP_MPICXX"];
        let folder = compile("cpp", "cpp", ["c++", "mpicxx"], &flags);
        check("cpp", |name| vec![folder.join(name).into()], Some("LD_PRELOAD"));
    }
}

#[test]
fn in_go() {
    if !crate::go::have_go() {
        return;
    }
    let folder = folder("examples-go");
    let from = examples().join("go");
    let unformatted = succeed(Command::new("gofmt").arg("-l").arg(&from));
    assert_eq!(unformatted, "", "gofmt would change these");
    succeed(&mut crate::go::go(&from, &["vet", "./..."]));
    let mut build = crate::go::go(&from, &["build", "-o"]);
    succeed(build.arg(folder.join("")).arg("./..."));
    check("go", |name| vec![folder.join(name).into()], Some("LD_PRELOAD"));
}

#[test]
fn in_julia() {
    if !have("julia") {
        return;
    }
    let project = crate::julia::project("examples-julia");
    let from = examples().join("julia");
    let program = |name: &str| {
        let file = from.join(name).with_extension("jl");
        vec!["julia".into(), "-O0".into(), project.clone().into(), file.into()]
    };
    check("julia", program, None);
}

#[test]
fn in_python() {
    if !have("cc") || !crate::python::have_numpy() {
        return;
    }
    let path = format!("PYTHONPATH={}", crate::python::folder().display());
    let from = examples().join("python");
    let program = |name: &str| {
        let file = from.join(name).with_extension("py");
        let words = ["env", &path, "PYTHONDONTWRITEBYTECODE=1", "python3"];
        words.iter().map(OsString::from).chain([file.into()]).collect()
    };
    check("python", program, Some("OXCCL_LIBRARY"));
}

#[test]
fn in_rust() {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    // Together with what the installation is made of, so that nothing is built twice.
    let packages = ["oxccl-capi", "oxccl-cli", "oxccl-examples"].map(|name| ["--package", name]);
    let mut command = Command::new(std::env::var("CARGO").unwrap_or("cargo".to_owned()));
    command.args(["build", "--quiet", "--bins", "--examples", "--profile", profile]);
    command.args(packages.concat());
    succeed(command.current_dir(ROOT));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let folder = target.join(if cfg!(debug_assertions) { "debug" } else { "release" });
    let folder = folder.join("examples");
    check("rust/examples", |name| vec![folder.join(name).into()], None);
}

/// The commands of `examples/README.md`, by block.
fn blocks() -> Vec<String> {
    let text = std::fs::read_to_string(examples().join("README.md")).expect("a file");
    let blocks = text.split("```sh\n").skip(1);
    let commands = |block: &str| block.split_once("```").map(|(commands, _)| commands.to_owned());
    blocks.map(|block| commands(block).expect("an end of the block")).collect()
}

#[test]
fn as_their_readme_says() {
    let tools: [&[&str]; 6] =
        [&["cc", "pkg-config"], &["c++", "pkg-config"], &["go"], &["julia"], &["python3"], &[]];
    let blocks = blocks();
    assert_eq!(blocks.len(), tools.len(), "{blocks:?}");
    for (block, tools) in blocks.iter().zip(tools) {
        let commands = block.lines().flat_map(|line| line.split("&&")).count();
        assert!(commands <= 3, "more than three commands: {block}");
        let there = match tools {
            ["go"] => crate::go::have_go(),
            ["python3"] => crate::python::have_numpy(),
            tools => tools.iter().all(|tool| have(tool)),
        };
        if !there {
            continue;
        }
        let mut shell = Command::new("bash");
        shell.args(["-euc", block]).current_dir(ROOT);
        // Nothing but what the commands say; and they say `target`.
        for variable in ["PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "OXCCL_LIBRARY", "CARGO_TARGET_DIR"]
        {
            shell.env_remove(variable);
        }
        let (status, text) = watch(&mut shell);
        let verified = text.matches("sum verified\n").count();
        assert!(status == Some(0) && verified == 4, "{block}: {status:?}: {text}");
    }
}
