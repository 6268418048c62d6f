//! Every function of the C interface is used by each binding, or it is said here why not.

use crate::ROOT;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use xtask::model::{Kind, Model};

/// Functions that a binding does not call, and why.
type Exceptions = &'static [(&'static str, &'static str)];

const ALL: Exceptions = &[
    ("ncclBcast", "ncclBroadcast is the same with one buffer"),
    ("ncclCommInitRank", "ncclCommInitRankConfig does the same"),
    ("ncclCommInitRankScalable", "of several ids only the first is used"),
    ("ncclGetLastError", "oxcclLastError has the code and the ranks too"),
    ("ncclMemAlloc", "oxcclMemAlloc is the same"),
    ("ncclMemFree", "oxcclMemFree is the same"),
    ("ncclParamDumpAll", "variables are for who starts a program: oxccl env shows them"),
    ("ncclParamGet", "as ncclParamDumpAll"),
    ("ncclParamGetAllParameterKeys", "as ncclParamDumpAll"),
    ("ncclParamGetI16", "as ncclParamDumpAll"),
    ("ncclParamGetI32", "as ncclParamDumpAll"),
    ("ncclParamGetI8", "as ncclParamDumpAll"),
    ("ncclParamGetParameter", "as ncclParamDumpAll"),
    ("ncclParamGetStr", "as ncclParamDumpAll"),
    ("ncclParamGetU16", "as ncclParamDumpAll"),
    ("ncclParamGetU32", "as ncclParamDumpAll"),
    ("ncclParamGetU64", "as ncclParamDumpAll"),
    ("ncclParamGetU8", "as ncclParamDumpAll"),
    ("ncclResetDebugInit", "oxcclSetLog changes what is logged"),
    ("ncclWinGetUserPtr", "who opened the window has its memory"),
];

/// What reads a variable, which Go alone does: a context may end later than OXCCL_INIT_TIMEOUT.
const VARIABLES: Exceptions =
    &[("ncclParamBind", "as ncclParamDumpAll"), ("ncclParamGetI64", "as ncclParamDumpAll")];

const GO: Exceptions = &[
    ("ncclCommFinalize", "Close completes all operations"),
    ("ncclCommInitAll", "ranks of one process are goroutines, each with Init"),
    (
        "oxcclStreamHostFunc",
        "a captured function is called who knows how often: nobody could free it",
    ),
    ("oxcclTag", "it is a thread's, and goroutines change threads"),
];

const JULIA: Exceptions = &[
    ("ncclCommInitAll", "it blocks; ranks of one process are tasks, each with Comm"),
    ("ncclGetErrorString", "oxcclLastError has a better text"),
    ("oxcclStreamHostFunc", "Julia must not be called by a foreign thread"),
    (
        "oxcclStreamSynchronize",
        "it blocks, which stops garbage collection: oxcclStreamQuery is asked",
    ),
    ("oxcclTag", "it is a thread's, and tasks change threads"),
];

const PYTHON: Exceptions = &[
    ("ncclCommFinalize", "close completes all operations"),
    ("ncclCommGetAsyncError", "calls wait, and raise what failed"),
    ("ncclCommInitAll", "ranks of one process are threads, each with Comm"),
    ("ncclGetErrorString", "oxcclLastError has a better text"),
    (
        "oxcclStreamHostFunc",
        "a captured function is called who knows how often: nobody could free it",
    ),
];

const RUST: Exceptions = &[
    ("ncclCommCuDevice", "the stream of a communicator on a GPU tells it"),
    ("ncclCommFinalize", "close completes all operations"),
    ("ncclCommMemStats", "NCCL_DEBUG=INFO tells it"),
    ("ncclGetErrorString", "oxcclLastError has a better text"),
    ("ncclGetVersion", "the library is a part of the program, which cargo knows the version of"),
    ("oxcclDeviceCount", "cudarc counts GPUs"),
    ("oxcclGetVersion", "as ncclGetVersion"),
    ("oxcclGraphExecUpdate", "a graph ends with its scope: another one takes its place"),
    ("oxcclMemcpyAsync", "slices are copied by Rust"),
    ("oxcclMemsetAsync", "slices are filled by Rust"),
    ("oxcclSetInitTimeout", "OXCCL_INIT_TIMEOUT says it"),
    ("oxcclSetLog", "NCCL_DEBUG and NCCL_DEBUG_FILE say it"),
    ("oxcclStreamHostFunc", "what has to come after operations stands behind their scope"),
    ("oxcclStreamQuery", "a scope waits for all of its operations"),
];

/// The files of a folder that are written by hand and no tests.
fn by_hand(folder: &str, extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(ROOT).join(folder);
    let files = std::fs::read_dir(&folder).expect("a folder").map(|e| e.expect("a file").path());
    let hand = |path: &PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let generated = stem.ends_with("_gen") || stem.ends_with("_test");
        path.extension().is_some_and(|e| e == extension) && !generated
    };
    files.filter(hand).collect()
}

/// The words of files, without comments.
fn words(files: &[PathBuf], comment: &str) -> BTreeSet<String> {
    assert!(!files.is_empty());
    let mut words = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("a file");
        for line in text.lines() {
            let code = line.split(comment).next().unwrap_or_default();
            let split = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.extend(split.map(str::to_owned));
        }
    }
    words
}

/// What is neither used nor excepted, and what is excepted without need.
fn check(language: &str, used: &BTreeSet<String>, own: &[Exceptions]) -> Vec<String> {
    let model = Model::read(Path::new(ROOT)).expect("the interface can be read");
    let functions: BTreeSet<_> = model
        .0
        .iter()
        .filter(|d| matches!(d.what, Kind::Function(..)))
        .map(|d| d.name.as_str())
        .collect();
    let excepted: BTreeSet<_> =
        ALL.iter().chain(own.iter().copied().flatten()).map(|(name, _)| *name).collect();
    let missing = functions.iter().filter(|f| !used.contains(**f) && !excepted.contains(*f));
    let missing = missing.map(|f| format!("{language} does not use {f}, and nothing says why"));
    let stale = excepted.iter().filter(|f| used.contains(**f) || !functions.contains(*f));
    let stale = stale.map(|f| format!("{language}: {f} is excepted, but used or unknown"));
    missing.chain(stale).collect()
}

#[test]
fn every_function_is_used_by_each_binding_or_it_is_said_why_not() {
    let headers = ["bindings/cpp/oxccl.hpp", "bindings/cpp/oxccl_base.hpp"];
    let cpp = words(&headers.map(|header| Path::new(ROOT).join(header)), "//");
    let mut go = words(&by_hand("bindings/go", "go"), "//");
    let julia = words(&by_hand("bindings/julia/OxCCL.jl/src", "jl"), "#");
    let python =
        ["__init__.py", "_dropped.py", "_ending.py", "_library.py", "_made.py", "_options.py"];
    let python = python.map(|file| Path::new(ROOT).join("bindings/python/oxccl").join(file));
    let python = words(&python, "#");
    let rust = words(&by_hand("bindings/rust/src", "rs"), "//");
    // The generated shim takes the text of every error.
    go.insert("oxcclLastError".to_owned());
    let mut complaints = check("C++", &cpp, &[VARIABLES]);
    complaints.extend(check("Go", &go, &[GO]));
    complaints.extend(check("Julia", &julia, &[JULIA, VARIABLES]));
    complaints.extend(check("Python", &python, &[PYTHON, VARIABLES]));
    complaints.extend(check("Rust", &rust, &[RUST, VARIABLES]));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
