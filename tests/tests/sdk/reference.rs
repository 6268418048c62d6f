//! The references of the interface that `cargo xtask reference` writes, where the tools are there.

use crate::{ROOT, folder, libraries, prefix};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use xtask::reference::{Language, Options, write};

/// Writes the reference of a language, which rustdoc's is not: the compiler checks that one.
fn written(language: Language, name: &str) -> Option<PathBuf> {
    let options = Options {
        output: folder(&format!("reference-{name}")),
        languages: vec![language],
        library: Some(libraries(prefix()).join("liboxccl.so.2")),
    };
    match write(Path::new(ROOT), &options) {
        Ok((pages, _)) => pages.into_iter().next(),
        Err(xtask::install::Error::Program(tool, why)) if why == "it is not there" => {
            missing(&tool, &why);
            None
        }
        Err(e) => panic!("{name}: {e}"),
    }
}

/// Expects texts in a file beside the first page, or in that itself.
fn expect(page: Option<PathBuf>, file: &str, texts: &[&str]) {
    let Some(page) = page else { return };
    assert!(page.is_file(), "{page:?}");
    let file = page.with_file_name(file);
    let text = std::fs::read_to_string(&file).expect("a page");
    for part in texts {
        assert!(text.contains(part), "{part:?} is not in {file:?}");
    }
}

#[test]
fn of_c_by_doxygen() {
    let texts = ["ncclAllReduceConfig", "Registers a buffer."];
    let page = written(Language::C, "c");
    expect(page.clone(), "nccl_8h.html", &texts);
    expect(page, "oxccl_8hpp.html", &["oxccl::returning::communicator"]);
}

#[test]
fn of_go_by_go_doc() {
    let texts = ["func AllReduce[T Element]", "type CallOptions struct"];
    expect(written(Language::Go, "go"), "oxccl.txt", &texts);
}

#[test]
fn of_julia_by_its_own_modules() {
    let texts = ["<code>Allreduce!</code>", "<code>OxCCL.CALL_OPTIONS</code>"];
    expect(written(Language::Julia, "julia"), "index.html", &texts);
}

#[test]
fn of_python_by_pdoc() {
    let texts = ["all_reduce", "deadline_ms", "set_encryption"];
    expect(written(Language::Python, "python"), "oxccl.html", &texts);
}
