//! The examples on 4 ranks, in each language: they run by the commands of their README, and find
//! out a library that is wrong.

use crate::{ROOT, folder, have, on_four_ranks, pkg_config, prefix, run, succeed, watch};
use oxccl_tests::missing;
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
fn check(folder: &str, program: impl Fn(&str) -> Vec<OsString>, wrong_at: &str) {
    let mpirun = have("mpirun");
    for (name, start, ranks) in EXAMPLES {
        if start == Start::Mpirun && !mpirun {
            continue;
        }
        let program = program(name);
        let text = succeed(&mut command(name, start, &program));
        assert_eq!(text.matches("verified\n").count(), ranks, "{folder}/{name}: {text}");
        let mut command = command(name, start, &program);
        let (status, text) = run(prefix(), command.env(wrong_at, wrong()));
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
        check("c", |name| vec![folder.join(name).into()], "LD_PRELOAD");
    }
}

#[test]
fn in_cpp() {
    if have("cc") && have("c++") && have("pkg-config") {
        // Open MPI's own C++ interface, which is no more, does not compile without warnings.
        let flags = ["-std=c++17", "-DOMPI_SKIP_MPICXX"];
        let folder = compile("cpp", "cpp", ["c++", "mpicxx"], &flags);
        check("cpp", |name| vec![folder.join(name).into()], "LD_PRELOAD");
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
    check("go", |name| vec![folder.join(name).into()], "LD_PRELOAD");
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
    check("python", program, "OXCCL_LIBRARY");
}

/// The commands of `examples/README.md`, by block.
fn blocks() -> Vec<String> {
    let text = std::fs::read_to_string(examples().join("README.md")).expect("a file");
    let blocks = text.split("```sh\n").skip(1);
    let commands = |block: &str| block.split_once("```").map(|(commands, _)| commands.to_owned());
    blocks.map(|block| commands(block).expect("an end of the block")).collect()
}

/// The languages in the order of the README: their folders, and the tools that the first example
/// needs.
const LANGUAGES: [(&str, &[&str]); 6] = [
    ("c", &["cc", "pkg-config"]),
    ("cpp", &["c++", "pkg-config"]),
    ("go", &["go"]),
    ("julia", &["julia"]),
    ("python", &["python3"]),
    ("rust/examples", &[]),
];

fn all_there(tools: &[&str]) -> bool {
    match tools {
        ["go"] => crate::go::have_go(),
        ["python3"] => crate::python::have_numpy() && have_venv(),
        tools => tools.iter().all(|tool| have(tool)),
    }
}

/// Whether Python can make virtual environments; Debian has that in a package of its own.
fn have_venv() -> bool {
    let output = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
    let output = output.expect("it runs");
    if !output.status.success() {
        missing("python3", String::from_utf8_lossy(&output.stderr).trim());
    }
    output.status.success()
}

/// Runs commands of the README; what they printed.
fn as_written(commands: &str) -> String {
    let mut shell = Command::new("bash");
    shell.args(["-euc", commands]).current_dir(ROOT).env("PYTHONDONTWRITEBYTECODE", "1");
    // Nothing but what the commands say; and they say `target`.
    for variable in ["PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "OXCCL_LIBRARY", "CARGO_TARGET_DIR"] {
        shell.env_remove(variable);
    }
    // No test downloads anything, and tests may run as root.
    for variable in ["PIP_NO_INDEX", "PIP_DISABLE_PIP_VERSION_CHECK"] {
        shell.env(variable, "1");
    }
    for variable in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        shell.env(variable, "1");
    }
    let (status, text) = watch(&mut shell);
    assert_eq!(status, Some(0), "{commands}: {text}");
    text
}

#[test]
fn in_rust_they_need_nothing_unsafe() {
    let folder = examples().join("rust/examples");
    for name in names(&folder) {
        let text = std::fs::read_to_string(folder.join(&name).with_extension("rs"));
        assert!(!text.expect("an example").contains("unsafe"), "{name}");
    }
}

#[test]
fn as_their_readme_says() {
    let blocks = blocks();
    assert_eq!(blocks.len(), 2 * LANGUAGES.len() + 1, "{blocks:?}");
    let (first, rest) = blocks.split_at(LANGUAGES.len());
    let (once, all) = (&rest[0], &rest[1..]);
    let mpirun = have("mpirun");
    let once = if mpirun { once.clone() } else { format!("mpirun() {{ :; }}\n{once}") };
    let started = EXAMPLES.iter().filter(|(_, start, _)| mpirun || *start != Start::Mpirun);
    let ranks: usize = started.map(|(.., ranks)| ranks).sum();
    for ((folder, tools), (first, all)) in LANGUAGES.iter().zip(first.iter().zip(all)) {
        assert_eq!(names(&examples().join(folder)), EXAMPLES.map(|(name, ..)| name));
        let commands = first.lines().flat_map(|line| line.split("&&")).count();
        // A virtual environment takes one more.
        let most = 3 + usize::from(first.contains("-m venv"));
        assert!(commands <= most, "more than {most} commands: {first}");
        if !all_there(tools) {
            continue;
        }
        let text = as_written(first);
        assert_eq!(text.matches("sum verified\n").count(), 4, "{first}: {text}");
        let mut compilers = ["mpicc", "mpicxx"].into_iter().filter(|name| all.contains(name));
        if compilers.all(have) {
            let text = as_written(&format!("{once}{all}"));
            assert_eq!(text.matches(" verified\n").count(), ranks, "{all}: {text}");
        }
    }
}
