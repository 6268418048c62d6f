//! `oxccl share`: completions for shells and manual pages, from the command's own options.

use crate::error::{Error, Result};
use clap_complete::aot::{Shell, generate_to};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `oxccl share`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder, such as /usr/share.
    folder: PathBuf,
}

/// The folders in which shells look for completions.
const COMPLETIONS: [(Shell, &str, Option<&str>); 3] = [
    // Bash takes the name of the file for that of the command.
    (Shell::Bash, "bash-completion/completions", Some("oxccl")),
    (Shell::Zsh, "zsh/site-functions", None),
    (Shell::Fish, "fish/vendor_completions.d", None),
];

pub(crate) fn main(options: &Options, mut command: clap::Command) -> Result<ExitCode> {
    // No pages about pages.
    let manual = command.clone().disable_help_subcommand(true);
    for (shell, place, name) in COMPLETIONS {
        let folder = make(&options.folder.join(place))?;
        let made = generate_to(shell, &mut command, "oxccl", &folder).map_err(failed(&folder))?;
        if let Some(name) = name {
            std::fs::rename(&made, folder.join(name)).map_err(failed(&made))?;
        }
    }
    let folder = make(&options.folder.join("man/man1"))?;
    clap_mangen::generate_to(manual, &folder).map_err(failed(&folder))?;
    Ok(ExitCode::SUCCESS)
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |e| Error::File { path: path.clone(), cause: e.to_string() }
}

fn make(folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    Ok(folder.to_owned())
}
