//! `reference`: pages about every function of the interface, for each language by the tool that its
//! programmers know.

use crate::install::{Error, failed, make_place, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The languages that have a reference of their own; C's has C++ as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// C and C++, by doxygen.
    C,
    /// Go, by go doc.
    Go,
    /// Julia, by its own modules Docs and Markdown.
    Julia,
    /// Python, by pdoc.
    Python,
    /// Rust, by rustdoc.
    Rust,
}

/// Options of `reference`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Folder for the pages, with one for each language; made if it is missing.
    #[arg(long)]
    pub output: PathBuf,
    /// Languages, with commas between them; without this all whose tools are there.
    #[arg(long, value_delimiter = ',')]
    pub languages: Vec<Language>,
    /// The shared library, which Julia and Python load for their pages; without this cargo builds
    /// it.
    #[arg(long)]
    pub library: Option<PathBuf>,
}

/// The settings of doxygen. Comments of the headers begin with two strokes, and it looks at
/// those with three.
const DOXYGEN: &str = "\
PROJECT_NAME = OxCCL
INPUT = capi/include bindings/cpp
INPUT_FILTER = \"sed -e s,//,///,\"
EXTENSION_MAPPING = h=C hpp=C++
EXTRACT_ALL = YES
OPTIMIZE_OUTPUT_FOR_C = YES
SORT_MEMBER_DOCS = NO
HAVE_DOT = NO
GENERATE_LATEX = NO
HTML_OUTPUT = .
QUIET = YES
WARNINGS = NO
";

/// The script that writes Julia's page.
const JULIA: &str = include_str!("reference.jl");

/// Writes the pages; returns where they begin, and for each language without a tool what it needs.
pub fn write(root: &Path, options: &Options) -> Result<(Vec<PathBuf>, Vec<String>), Error> {
    use Language::{C, Go, Julia, Python, Rust};
    std::fs::create_dir_all(&options.output).map_err(failed(&options.output))?;
    let output = std::fs::canonicalize(&options.output).map_err(failed(&options.output))?;
    let root = std::fs::canonicalize(root).map_err(failed(root))?;
    let (mut pages, mut missing) = (Vec::new(), Vec::new());
    for language in [C, Go, Julia, Python, Rust] {
        let wanted = options.languages.contains(&language);
        if !wanted && !options.languages.is_empty() {
            continue;
        }
        match needs(language) {
            Some(need) if wanted => return Err(Error::Program(need, "it is not there".to_owned())),
            Some(need) => missing.push(need),
            None => {
                let library = || match &options.library {
                    Some(library) => Ok(library.clone()),
                    None => build(&root),
                };
                pages.push(page(language, &root, &output, library)?);
            }
        }
    }
    Ok((pages, missing))
}

/// Returns the tool that a language lacks here.
fn needs(language: Language) -> Option<String> {
    let (tool, arguments): (_, &[&str]) = match language {
        Language::C => ("doxygen", &["--version"]),
        Language::Go => ("go", &["version"]),
        Language::Julia => ("julia", &["--version"]),
        Language::Python => ("python3", &["-c", "import pdoc, numpy"]),
        Language::Rust => return None,
    };
    let works = Command::new(tool).args(arguments).output().is_ok_and(|o| o.status.success());
    let name = if language == Language::Python { "python3 with pdoc and numpy" } else { tool };
    (!works).then(|| name.to_owned())
}

/// Builds the library.
fn build(root: &Path) -> Result<PathBuf, Error> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    run(Command::new(cargo).current_dir(root).args(["build", "-p", "oxccl-capi"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target.unwrap_or_else(|| root.join("target")).join("debug/liboxccl.so"))
}

/// Writes the pages of a language; returns the first one.
fn page(
    language: Language,
    root: &Path,
    output: &Path,
    library: impl FnOnce() -> Result<PathBuf, Error>,
) -> Result<PathBuf, Error> {
    let folder = |name: &str| output.join(name);
    match language {
        Language::C => {
            let place = folder("c");
            std::fs::create_dir_all(&place).map_err(failed(&place))?;
            let settings = place.join("Doxyfile");
            let text = format!("{DOXYGEN}OUTPUT_DIRECTORY = {}\n", place.display());
            std::fs::write(&settings, text).map_err(failed(&settings))?;
            run(Command::new("doxygen").arg(&settings).current_dir(root))?;
            Ok(place.join("index.html"))
        }
        Language::Go => {
            let page = folder("go").join("oxccl.txt");
            let mut command = Command::new("go");
            let package = root.join("bindings/go");
            let text = command.args(["doc", "-all"]).current_dir(package).output();
            let text = text.map_err(|e| Error::Program("go doc".to_owned(), e.to_string()))?;
            make_place(&page)?;
            std::fs::write(&page, text.stdout).map_err(failed(&page))?;
            Ok(page)
        }
        Language::Julia => {
            let page = folder("julia").join("index.html");
            make_place(&page)?;
            let package = root.join("bindings/julia/OxCCL.jl/src");
            let mut command = Command::new("julia");
            command.args(["-O0", "--startup-file=no", "-e", JULIA]).arg(&package).arg(&page);
            run(command.env("OXCCL_LIBRARY", library()?))?;
            Ok(page)
        }
        Language::Python => {
            let mut command = Command::new("python3");
            command.args(["-m", "pdoc", "oxccl", "-o"]).arg(folder("python"));
            command.env("PYTHONPATH", python_path(root)).env("PYTHONDONTWRITEBYTECODE", "1");
            run(command.env("OXCCL_LIBRARY", library()?))?;
            Ok(folder("python").join("oxccl.html"))
        }
        Language::Rust => {
            let target = folder(".rust");
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
            let mut command = Command::new(cargo);
            command.args(["doc", "--no-deps", "--all-features", "-p", "oxccl-rs", "--target-dir"]);
            run(command.arg(&target).current_dir(root))?;
            let place = folder("rust");
            // The folder may be left from an earlier run.
            let _ = std::fs::remove_dir_all(&place);
            std::fs::rename(target.join("doc"), &place).map_err(failed(&place))?;
            Ok(place.join("oxccl_rs/index.html"))
        }
    }
}

/// Returns the package's folder before what the caller has.
fn python_path(root: &Path) -> std::ffi::OsString {
    let own = root.join("bindings/python");
    let given = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let all = std::iter::once(own).chain(std::env::split_paths(&given));
    std::env::join_paths(all).unwrap_or_default()
}
