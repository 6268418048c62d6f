//! `wheel`: a Python wheel with the package, the library and the command, made from an installed
//! prefix.

use crate::install::{self, Error, copy, make_place, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the package in the repository, and (below) the files of the package.
const PACKAGE: &str = "bindings/python/oxccl";
const FILES: [&str; 10] = [
    "__init__.py",
    "_arrays.py",
    "_dropped.py",
    "_ending.py",
    "_gen.py",
    "_library.py",
    "_made.py",
    "_options.py",
    "py.typed",
    "torch.py",
];
/// The libraries of the wheel and their names there. `libnccl.so.2`, which has no code of its own,
/// is for programs that preload it in place of NCCL, and by its other name for those that load it.
const LIBRARIES: [(&str, &str); 3] = [
    ("liboxccl.so.2", "liboxccl.so.2"),
    ("libnccl.so.2", "libnccl.so.2"),
    ("libnccl.so.2", "libnccl.so"),
];
/// The script that writes the list of files with their hashes, and the archive.
const PACK: &str = include_str!("wheel.py");

/// Makes the wheel of the files installed under `prefix`, with NCCL's names, in the folder `out`;
/// returns its path. The name of the wheel states the oldest glibc that its programs can use;
/// `homepage` is an address that its metadata name.
pub fn wheel(
    root: &Path,
    prefix: &Path,
    out: &Path,
    homepage: Option<&str>,
) -> Result<PathBuf, Error> {
    let version = env!("CARGO_PKG_VERSION");
    let tree = out.join(".oxccl-wheel");
    // The folder may be left from an earlier run.
    let _ = std::fs::remove_dir_all(&tree);
    for file in FILES {
        copy(&root.join(PACKAGE).join(file), &tree.join("oxccl").join(file))?;
    }
    let command = prefix.join("bin/oxccl");
    copy(&command, &tree.join(format!("oxccl-{version}.data/scripts/oxccl")))?;
    let mut programs = vec![command];
    for (library, name) in LIBRARIES {
        let from = prefix.join("lib").join(library);
        copy(&from, &tree.join("oxccl").join(name))?;
        programs.push(from);
    }
    let programs: Vec<&Path> = programs.iter().map(PathBuf::as_path).collect();
    let (major, minor) = install::glibc(&programs)?;
    let tag = format!("py3-none-manylinux_{major}_{minor}_{}", std::env::consts::ARCH);
    let info = tree.join(format!("oxccl-{version}.dist-info"));
    let readme = root.join("README.md");
    let readme = std::fs::read_to_string(&readme).map_err(install::failed(&readme))?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(license), &info.join("licenses").join(license))?;
    }
    let address = homepage.map(|address| format!("Project-URL: Homepage, {address}\n"));
    let address = address.unwrap_or_default();
    for (name, text) in [
        (
            "METADATA",
            format!(
                "Metadata-Version: 2.4\nName: oxccl\nVersion: {version}\n\
                 Summary: Collective communication between processes and hosts\n\
                 License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE-APACHE\n\
                 License-File: LICENSE-MIT\nRequires-Python: >=3.10\nRequires-Dist: numpy\n\
                 {address}Description-Content-Type: text/markdown\n\n{readme}"
            ),
        ),
        (
            "WHEEL",
            format!("Wheel-Version: 1.0\nGenerator: oxccl\nRoot-Is-Purelib: false\nTag: {tag}\n"),
        ),
        // With this file PyTorch finds the backend without an import.
        (
            "entry_points.txt",
            "[torch.distributed.backends]\noxccl = oxccl.torch:register\n".to_owned(),
        ),
    ] {
        let to = info.join(name);
        make_place(&to)?;
        std::fs::write(&to, text).map_err(|e| Error::File(to.clone(), e))?;
    }
    let wheel = out.join(format!("oxccl-{version}-{tag}.whl"));
    make_place(&wheel)?;
    let mut pack = Command::new("python3");
    run(pack.args(["-c", PACK]).arg(&tree).arg(&info).arg(&wheel))?;
    std::fs::remove_dir_all(&tree).map_err(|e| Error::File(tree.clone(), e))?;
    Ok(wheel)
}
