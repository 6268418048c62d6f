//! The finding of plugins: libraries by NCCL's names, and the structures in them.

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
use std::error::Error;
use std::ffi::c_void;

/// A kind of plugins.
pub(super) struct Kind {
    /// The name in texts.
    pub(super) name: &'static str,
    /// The beginning of the libraries' names.
    pub(super) prefix: &'static str,
    /// The beginning of the structures' names; the number of the version follows.
    pub(super) symbol: &'static str,
    /// The versions that are understood, the newest first.
    pub(super) versions: &'static [u32],
    /// True if the variable may name several libraries, as with NCCL only that of networks may.
    pub(super) lists: bool,
}

/// A structure that was found in a library.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// The version of the structure.
    pub(super) version: u32,
    /// The structure, which stays for as long as the process.
    pub(super) at: *const c_void,
}

// SAFETY: the structure stays, and is only read by who has the right to begin its plugin.
unsafe impl Send for Found {}
// SAFETY: as above.
unsafe impl Sync for Found {}

/// Returns the libraries that a variable names: `None` for the default one, which need not be
/// there.
pub(super) fn wanted(kind: &Kind, variable: Option<&str>) -> Vec<Option<String>> {
    let list = variable.unwrap_or_default().split(|c| kind.lists && c == ',').map(str::trim);
    let names: Vec<_> = list.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    match names.as_slice() {
        [] => vec![None],
        [only] if only.eq_ignore_ascii_case("none") => Vec::new(),
        _ => names.into_iter().map(Some).collect(),
    }
}

/// Returns the names by which a library is looked for: the default one, or a path or name as it is
/// given, and then the name as the end of the usual name.
fn candidates(kind: &Kind, name: Option<&str>) -> Vec<String> {
    let Some(name) = name else { return vec![format!("{}.so", kind.prefix)] };
    let is_file = name.contains('/') || (name.starts_with("lib") && name.ends_with(".so"));
    let mut candidates = vec![name.to_owned()];
    if !is_file {
        candidates.push(format!("{}-{name}.so", kind.prefix));
    }
    candidates
}

/// The value of a variable that names the program itself.
const STATIC: &str = "STATIC_PLUGIN";

/// A library that was opened, and its name in texts. It stays for as long as the process.
#[derive(Clone)]
pub(super) struct Opened {
    library: &'static Library,
    pub(super) file: String,
}

impl Opened {
    fn new(library: Library, file: &str) -> Self {
        // Threads of a plugin may run until the end of the process.
        Self { library: Box::leak(Box::new(library)), file: file.to_owned() }
    }
}

/// The outcome of an attempt to load a plugin.
pub(super) struct Attempt {
    /// The library, if one was opened.
    pub(super) opened: Option<Opened>,
    /// The structure, if one was found.
    pub(super) found: Option<Found>,
    /// A line for the log that says what was tried, what was found, and why it is not taken.
    pub(super) line: String,
    /// True if something was asked for that is not there.
    pub(super) warns: bool,
}

/// Loads a library and looks for a structure. Libraries are never unloaded.
pub(super) fn load(kind: &Kind, name: Option<&str>) -> Attempt {
    if name == Some(STATIC) {
        return structure(kind, Opened::new(Library::this(), "the program"), true);
    }
    let mut failures = Vec::new();
    for candidate in candidates(kind, name) {
        match open(&candidate) {
            Ok((library, lack)) => {
                let opened = Opened::new(library, &candidate);
                let mut attempt = structure(kind, opened, name.is_some());
                if let Some(lack) = lack {
                    attempt.warns = true;
                    attempt.line += &format!(
                        "; not all that it calls is there, and such a call ends the process, \
                         unless LD_PRELOAD has the library: {lack}"
                    );
                }
                return attempt;
            }
            Err(cause) => failures.push(cause),
        }
    }
    let line = format!("{} plugin: {}", kind.name, failures.join("; "));
    // The default library is rarely there; one that was asked for should be.
    Attempt { opened: None, found: None, line, warns: name.is_some() }
}

/// Opens a library. Returns what it lacks, too, if not all of its symbols are there: such a library
/// may serve without what needs them.
fn open(file: &str) -> Result<(Library, Option<String>), String> {
    let open = |bind| {
        // SAFETY: the user has named the library, or installed it under the name of a plugin; its
        // initialisers run, as they would with NCCL.
        let library = unsafe { Library::open(Some(file), bind | RTLD_LOCAL) };
        library.map_err(|e| e.source().map_or_else(|| e.to_string(), ToString::to_string))
    };
    open(RTLD_NOW).map(|library| (library, None)).or_else(|lack| Ok((open(RTLD_LAZY)?, Some(lack))))
}

/// Looks for a structure in a library, which should have one if it was asked for.
pub(super) fn structure(kind: &Kind, opened: Opened, asked_for: bool) -> Attempt {
    let symbol = |version: &u32| {
        let name = format!("{}{version}", kind.symbol);
        // SAFETY: a symbol of this name is a structure, of which only the address is taken.
        let symbol = unsafe { opened.library.get::<*const c_void>(name.as_bytes()) }.ok()?;
        let at = symbol.into_raw().cast_const();
        (!at.is_null()).then_some(Found { version: *version, at })
    };
    let found = kind.versions.iter().find_map(symbol);
    let file = &opened.file;
    let Kind { name, symbol, versions, .. } = kind;
    let line = match found {
        Some(Found { version, .. }) => format!("{name} plugin {file}: found {symbol}{version}"),
        None => {
            let versions: Vec<_> = versions.iter().map(u32::to_string).collect();
            let versions = versions.join(", ");
            format!("{name} plugin {file}: it has no {symbol} of the versions {versions}")
        }
    };
    Attempt { opened: Some(opened), found, line, warns: found.is_none() && asked_for }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        name: "net",
        prefix: "libnccl-net",
        symbol: "ncclNetPlugin_v",
        versions: &[12, 6],
        lists: true,
    };

    #[test]
    fn libraries_have_nccls_names() {
        let of = |name| candidates(&KIND, name);
        assert_eq!(of(None), ["libnccl-net.so"]);
        assert_eq!(of(Some("ofi")), ["ofi", "libnccl-net-ofi.so"]);
        assert_eq!(of(Some("/opt/x.so")), ["/opt/x.so"]);
        assert_eq!(of(Some("libfast.so")), ["libfast.so"]);
    }

    #[test]
    fn variables_are_lists_or_one_name_and_none_is_nothing() {
        let some = |name: &str| Some(name.to_owned());
        let one = Kind { lists: false, ..KIND };
        for kind in [&KIND, &one] {
            assert_eq!(wanted(kind, None), [None]);
            assert_eq!(wanted(kind, Some("")), [None]);
            assert_eq!(wanted(kind, Some("none")), []);
            assert_eq!(wanted(kind, Some(" None")), []);
        }
        assert_eq!(wanted(&KIND, Some("a, b,,c")), [some("a"), some("b"), some("c")]);
        assert_eq!(wanted(&one, Some("/opt/a,b/x.so ")), [some("/opt/a,b/x.so")]);
    }

    #[test]
    fn the_program_itself_and_missing_libraries_have_no_structure() {
        let program = load(&KIND, Some(STATIC));
        let text = "net plugin the program: it has no ncclNetPlugin_v of the versions 12, 6";
        assert!(program.found.is_none() && program.warns);
        assert_eq!(program.line, text);
        let missing = load(&KIND, Some("there-is-none"));
        assert!(missing.found.is_none() && missing.warns);
        assert!(missing.line.contains("libnccl-net-there-is-none.so"), "{}", missing.line);
        assert!(!load(&KIND, None).warns);
    }
}
