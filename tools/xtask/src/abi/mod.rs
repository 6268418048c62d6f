//! Facts about NCCL's binary interface: the declarations of its headers and the exports of its
//! library.
//!
//! `tests/abi/nccl-2.32.3.txt` has the facts, a line each: `question = answer`. [`collect`] takes
//! them from an unpacked wheel: names from the text of the headers, answers from a C program that
//! is compiled against the headers. In the tests the same program, made from the committed
//! questions, is compiled against our headers.

mod declarations;
pub mod plugins;
mod probe;

pub use probe::{answers, source};

use declarations::Declarations;
use oxccl_runtime::NCCL_VERSION;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The errors of collecting facts.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// A program that could not be started.
    #[error("{0}: {1}")]
    Start(String, std::io::Error),
    /// A program that failed.
    #[error("{0} failed: {1}")]
    Failed(String, String),
    /// The path is not that of an unpacked wheel.
    #[error(
        "{0} is not there: unpack the wheel nvidia-nccl-cu13 {NCCL_VERSION} and pass its folder"
    )]
    Missing(PathBuf),
}

/// A header of NCCL's, and the files that have to be included for all its types.
pub struct Header {
    /// The name of the header, both NCCL's and ours.
    pub name: &'static str,
    /// The parts of NCCL's header that declare the exports of the library.
    parts: &'static [&'static str],
}

/// The headers that facts are about.
pub const HEADERS: [Header; 2] = [
    Header { name: "nccl.h", parts: &["nccl.h"] },
    Header {
        name: "nccl_device.h",
        // The whole header needs CUDA's compiler.
        parts: &["nccl.h", "nccl_device/host.h"],
    },
];

/// Replacements of CUDA's headers, with only the declarations that NCCL's headers need.
const CUDA: [(&str, &str); 3] = [
    (
        "cuda_runtime.h",
        "#include <stddef.h>\ntypedef struct CUstream_st *cudaStream_t;\n\
     typedef struct CUevent_st *cudaEvent_t;\n",
    ),
    ("cuda_fp16.h", ""),
    ("cuda.h", "typedef int CUmemLocationType;\n"),
];

/// Runs a program; returns what it printed.
fn run(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| Error::Start(name.clone(), e))?;
    if !output.status.success() {
        return Err(Error::Failed(name, String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|e| Error::File(path.to_owned(), e))
}

/// Returns the names that a shared library defines and that begin with `nccl` or `pnccl`, sorted.
pub fn symbols(library: &Path) -> Result<Vec<String>, Error> {
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let names = text.lines().filter_map(|l| l.split_whitespace().nth(2));
    let mut names: Vec<String> = names
        .filter(|n| n.starts_with("nccl") || n.starts_with("pnccl"))
        .map(str::to_owned)
        .collect();
    names.sort();
    Ok(names)
}

/// Returns the flags by which headers in folders are found.
fn paths(folders: &[&Path]) -> Vec<PathBuf> {
    folders.iter().flat_map(|folder| [PathBuf::from("-I"), folder.to_path_buf()]).collect()
}

/// Returns what the C preprocessor makes of an include of headers, with one more flag.
fn preprocess(
    include: &str,
    flag: &str,
    folders: &[&Path],
    scratch: &Path,
) -> Result<String, Error> {
    let unit = scratch.join("unit.c");
    write(&unit, include)?;
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-E", flag, "-DNCCL_OS_LINUX"]).args(paths(folders));
    run(command.arg(&unit))
}

/// Returns the answers of headers to questions.
fn ask(
    include: &str,
    questions: &[String],
    folders: &[&Path],
    scratch: &Path,
) -> Result<String, Error> {
    let (program, source_file) = (scratch.join("probe"), scratch.join("probe.cpp"));
    write(&source_file, &source(include, questions))?;
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-DNCCL_OS_LINUX"]).args(paths(folders));
    run(command.arg(&source_file).arg("-o").arg(&program))?;
    run(&mut Command::new(&program))
}

/// Returns the text of the facts of an unpacked wheel. `scratch`: an empty folder.
pub fn collect(wheel: &Path, scratch: &Path) -> Result<String, Error> {
    let include = wheel.join("nvidia/nccl/include");
    let library = wheel.join("nvidia/nccl/lib/libnccl.so.2");
    for path in [&include, &library] {
        if !path.exists() {
            return Err(Error::Missing(path.clone()));
        }
    }
    for (name, text) in CUDA {
        write(&scratch.join(name), text)?;
    }
    let symbols = symbols(&library)?;
    let mut text = format!(
        "# Facts about NCCL {NCCL_VERSION} on x86-64, from its headers and its library.\n\
         # Generated by `cargo run -p xtask -- abi-facts WHEEL`; do not edit.\n"
    );
    let mut known: Vec<String> = Vec::new();
    for header in &HEADERS {
        let mut include_all = String::new();
        for part in header.parts {
            include_all.push_str(&format!("#include <{part}>\n"));
        }
        let folders = [scratch, &include];
        let preprocess = |flag| preprocess(&include_all, flag, &folders, scratch);
        let declarations = Declarations::parse(&preprocess("-P")?, &preprocess("-dM")?);
        let exported = |name: &str| symbols.iter().any(|s| s == name);
        let questions = declarations.questions(header.name == "nccl.h", exported, &known);
        let answers = ask(&include_all, &questions, &folders, scratch)?;
        text.push_str(&format!("\n[{}]\n{answers}", header.name));
        known.extend(questions);
    }
    text.push_str(&format!("\n[symbols]\n{}\n", symbols.join("\n")));
    Ok(text)
}

/// Returns the lines of a section of the committed facts.
pub fn section<'a>(facts: &'a str, name: &str) -> Vec<&'a str> {
    let heading = format!("[{name}]");
    let lines = facts.lines().skip_while(|l| *l != heading).skip(1);
    lines.take_while(|l| !l.starts_with('[')).filter(|l| !l.is_empty()).collect()
}
