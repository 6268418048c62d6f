//! `go-module`: the Go package under a path by which other modules fetch it, in the layout of a
//! module proxy, which is files alone.

use crate::install::{Error, make_place, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the package in the repository.
const PACKAGE: &str = "bindings/go";
/// The script that packs a folder below a name.
const PACK: &str = include_str!("go_module.py");

/// Options of `go-module`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Path by which programs import the package, such as example.org/oxccl.
    #[arg(long, value_parser = path)]
    pub path: String,
    /// Folder for the files of the proxy; made if it is missing. GOPROXY=file://FOLDER names it.
    #[arg(long)]
    pub output: PathBuf,
}

/// Reads a module's path that `go get` takes.
fn path(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._~".contains(c);
    let is_part = |part: &str| !part.is_empty() && part.chars().all(known) && !part.ends_with('.');
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    if first.contains('.') && std::iter::once(first).chain(rest.split('/')).all(is_part) {
        return Ok(text.to_owned());
    }
    let expected = "a host with a dot and a path, in small letters, such as example.org/oxccl";
    Err(format!("{text:?} is no path that go get takes: expected {expected}"))
}

/// Returns the command of a shell that fetches a version of the module from a folder. The database
/// of checksums that `go` asks knows no module of a private proxy.
pub fn command(folder: &Path, path: &str, version: &str) -> String {
    format!("GONOSUMDB={path} GOPROXY=file://{} go get {path}@{version}", folder.display())
}

/// Writes the module's files; returns its version, such as `v0.1.0`.
pub fn write(root: &Path, options: &Options) -> Result<String, Error> {
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let place = options.output.join(&options.path).join("@v");
    let tree = options.output.join(".oxccl-go");
    // The folder may be left from an earlier run.
    let _ = std::fs::remove_dir_all(&tree);
    let from = root.join(PACKAGE);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |e| Error::File(path, e)
    };
    // The module is told by its manifest, and by an example that imports it.
    let own = |text: String| {
        let text = text.replacen("module oxccl\n", &format!("module {}\n", options.path), 1);
        text.replace("\t\"oxccl\"\n", &format!("\t\"{}\"\n", options.path))
    };
    for entry in std::fs::read_dir(&from).map_err(failed(&from))? {
        let (path, to) =
            entry.map(|e| (e.path(), tree.join(e.file_name()))).map_err(failed(&from))?;
        if path.is_file() {
            let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
            make_place(&to)?;
            std::fs::write(&to, own(text)).map_err(failed(&to))?;
        }
    }
    let manifest = tree.join("go.mod");
    let text = std::fs::read_to_string(&manifest).map_err(failed(&manifest))?;
    for (name, text) in [
        (place.join(format!("{version}.mod")), text),
        (place.join(format!("{version}.info")), format!("{{\"Version\":\"{version}\"}}\n")),
        (place.join("list"), format!("{version}\n")),
    ] {
        make_place(&name)?;
        std::fs::write(&name, text).map_err(failed(&name))?;
    }
    let prefix = format!("{}@{version}", options.path);
    let archive = place.join(format!("{version}.zip"));
    let mut pack = Command::new("python3");
    run(pack.args(["-c", PACK]).arg(&tree).arg(&prefix).arg(&archive))?;
    std::fs::remove_dir_all(&tree).map_err(failed(&tree))?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_that_go_takes() {
        for right in ["example.org/oxccl", "a.b/c/d-e_f"] {
            assert_eq!(path(right).as_deref(), Ok(right));
        }
        for wrong in ["oxccl", "", "example.org", "example.org/", "a.b/C", "a.b//c", "/a.b/c"] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
