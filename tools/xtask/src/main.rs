//! `cargo xtask`: generates, checks, installs and packages.

use clap::Parser;
use oxccl_runtime::NCCL_VERSION;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Chores of the OxCCL workspace.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Writes the files that are generated from the source: headers, bindings, docs/environment.md,
    /// docs/speed.svg.
    Codegen,
    /// Checks the rules of the source that no compiler knows.
    Tidy,
    /// Writes the facts of NCCL's unpacked wheel where the tests read them.
    AbiFacts {
        /// Folder of the unpacked wheel.
        wheel: PathBuf,
    },
    /// Writes the facts of NCCL's headers for plugins where the tests read them.
    PluginFacts {
        /// Folders of headers: `src/include` and `src/include/plugin` of NCCL's source, with its
        /// `nccl.h`, and CUDA's.
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// Builds and installs libraries, headers, the command and the files for build systems.
    Install(xtask::install::Options),
    /// Removes what was installed under a prefix.
    Uninstall(xtask::install::Installed),
    /// Makes a Python wheel.
    Wheel {
        /// Folder for the wheel; made if it is missing.
        #[arg(long)]
        output: PathBuf,
        /// Cargo's profile.
        #[arg(long, default_value = "dist")]
        profile: String,
        /// Oldest glibc that all of it runs with, as 2.28; needs cargo-zigbuild. Without this it is
        /// that of this machine.
        #[arg(long, value_name = "VERSION", value_parser = xtask::install::glibc_version)]
        glibc: Option<String>,
        /// Address of the project that the wheel names.
        #[arg(long, value_name = "URL", value_parser = xtask::install::address)]
        homepage: Option<String>,
    },
    /// Writes the Go package as a module that `go get` fetches by a path, for a module proxy.
    GoModule(xtask::go_module::Options),
    /// Writes a reference of the interface for each language, with the language's own tool.
    Reference(xtask::reference::Options),
    /// Makes Debian packages.
    Deb(xtask::deb::Options),
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let done = match Chore::parse() {
        Chore::Codegen => codegen(&root),
        Chore::AbiFacts { wheel } => {
            let collect = |scratch: &Path| xtask::abi::collect(&wheel, scratch);
            facts(&root, &format!("nccl-{NCCL_VERSION}.txt"), collect).map_err(|e| e.to_string())
        }
        Chore::PluginFacts { folders } => {
            let collect = |scratch: &Path| xtask::abi::plugins::collect(&folders, scratch);
            facts(&root, "plugins.txt", collect).map_err(|e| e.to_string())
        }
        Chore::Tidy => {
            let complaints = xtask::tidy::complaints(&root);
            complaints.is_empty().then_some(()).ok_or(complaints.join("\n"))
        }
        Chore::Install(options) => install(&root, &options),
        Chore::Uninstall(installed) => uninstall(&installed),
        Chore::Wheel { output, profile, glibc, homepage } => {
            wheel(&root, &output, (profile, glibc), homepage)
        }
        Chore::GoModule(options) => go_module(&root, &options),
        Chore::Reference(options) => reference(&root, &options),
        Chore::Deb(options) => deb(&root, &options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn install(root: &Path, options: &xtask::install::Options) -> Result<(), String> {
    xtask::install::install(root, options).map_err(|e| e.to_string())?;
    let prefix = std::fs::canonicalize(&options.prefix).unwrap_or_else(|_| options.prefix.clone());
    println!("installed under {}; so that compilers and shells find it:", prefix.display());
    print!("{}", xtask::install::exports(&prefix, &options.libdir));
    Ok(())
}

fn uninstall(installed: &xtask::install::Installed) -> Result<(), String> {
    let left = xtask::install::uninstall(installed).map_err(|e| e.to_string())?;
    left.iter().for_each(|file| println!("{file} has changed since, and stays"));
    println!("what was installed in {} is gone", installed.prefix.display());
    Ok(())
}

fn wheel(
    root: &Path,
    output: &Path,
    (profile, glibc): (String, Option<String>),
    homepage: Option<String>,
) -> Result<(), String> {
    let prefix = output.join(".oxccl-prefix");
    let options = xtask::install::Options {
        prefix: prefix.clone(),
        profile,
        nccl_compat: true,
        rdma: false,
        glibc,
        libdir: xtask::install::LIBDIR.to_owned(),
    };
    xtask::install::install(root, &options).map_err(|e| e.to_string())?;
    let wheel = xtask::wheel::wheel(root, &prefix, output, homepage.as_deref());
    let wheel = wheel.map_err(|e| e.to_string())?;
    println!("made {}", wheel.display());
    std::fs::remove_dir_all(&prefix).map_err(|e| format!("{}: {e}", prefix.display()))
}

fn go_module(root: &Path, options: &xtask::go_module::Options) -> Result<(), String> {
    let version = xtask::go_module::write(root, options).map_err(|e| e.to_string())?;
    let path = std::fs::canonicalize(&options.output).unwrap_or(options.output.clone());
    println!("{}", xtask::go_module::command(&path, &options.path, &version));
    Ok(())
}

fn reference(root: &Path, options: &xtask::reference::Options) -> Result<(), String> {
    let (pages, missing) = xtask::reference::write(root, options).map_err(|e| e.to_string())?;
    pages.iter().for_each(|page| println!("{}", page.display()));
    missing.iter().for_each(|tool| println!("left out, for want of {tool}"));
    Ok(())
}

fn deb(root: &Path, options: &xtask::deb::Options) -> Result<(), String> {
    let files = xtask::deb::build(root, options).map_err(|e| e.to_string())?;
    files.iter().for_each(|file| println!("{}", file.display()));
    Ok(())
}

/// Writes a file of facts.
fn facts(
    root: &Path,
    name: &str,
    collect: impl FnOnce(&Path) -> Result<String, xtask::abi::Error>,
) -> Result<(), xtask::abi::Error> {
    let file = |path: &Path, e| xtask::abi::Error::File(path.to_owned(), e);
    let scratch = std::env::temp_dir().join(format!("oxccl-abi-facts-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|e| file(&scratch, e))?;
    let text = collect(&scratch)?;
    std::fs::remove_dir_all(&scratch).map_err(|e| file(&scratch, e))?;
    let facts = root.join("tests/abi").join(name);
    std::fs::write(&facts, text).map_err(|e| file(&facts, e))
}

fn codegen(root: &Path) -> Result<(), String> {
    xtask::headers::write(root).map_err(|e| e.to_string())?;
    xtask::bindings::write(root).map_err(|e| e.to_string())?;
    xtask::quoted::write(root)?;
    let file = xtask::environment::FILE;
    xtask::environment::write(root).map_err(|e| format!("{file}: {e}"))?;
    let file = xtask::speed::FILE;
    xtask::speed::write(root).map_err(|e| format!("{file}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_packages_are_read_or_refused() {
        let read = |arguments: &str| Chore::try_parse_from(arguments.split(' '));
        let deb = read("xtask deb --output /a --profile dev");
        let right = |o: &xtask::deb::Options| o.output == Path::new("/a") && o.profile == "dev";
        assert!(matches!(deb, Ok(Chore::Deb(options)) if right(&options)));
        assert!(read("xtask deb --output /a --homepage nonsense").is_err());
        let wheel = read("xtask wheel --output /a --homepage https://a.example");
        assert!(matches!(wheel, Ok(Chore::Wheel { profile, .. }) if profile == "dist"));
        let uninstall = read("xtask uninstall --prefix /a");
        let right = |i: &xtask::install::Installed| i.prefix == Path::new("/a");
        assert!(matches!(uninstall, Ok(Chore::Uninstall(installed)) if right(&installed)));
        let module = read("xtask go-module --output /a --path example.org/oxccl");
        let right = |o: &xtask::go_module::Options| o.output == Path::new("/a");
        assert!(matches!(module, Ok(Chore::GoModule(options)) if right(&options)));
        let reference = read("xtask reference --output /a");
        let right = |o: &xtask::reference::Options| o.output == Path::new("/a");
        assert!(matches!(reference, Ok(Chore::Reference(options)) if right(&options)));
        for wrong in [
            "xtask deb",
            "xtask deb --prefix /a",
            "xtask wheel",
            "xtask abi-facts",
            "xtask uninstall",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
