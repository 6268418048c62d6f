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
    for page in std::fs::read_dir(&folder).map_err(failed(&folder))? {
        let path = page.map_err(failed(&folder))?.path();
        // Others have pages in this folder, too.
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !(name == "oxccl.1" || name.starts_with("oxccl-") && name.ends_with(".1")) {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
        std::fs::write(&path, in_sections(text)).map_err(failed(&path))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a manual page with the sections in which readers look for what the end of the help has,
/// and with the name and version of this program in its footer.
fn in_sections(mut page: String) -> String {
    if let Some(begin) = page.find(".TH ")
        && let Some(length) = page[begin..].find('\n')
    {
        let name = page[begin..].split(' ').nth(1).unwrap_or_default();
        let title = format!(".TH {name} 1 \"\" \"oxccl {}\"", env!("CARGO_PKG_VERSION"));
        page.replace_range(begin..begin + length, &title);
    }
    for (text, section) in [
        (".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n"),
        ("\nEnvironment: ", "\n.SH ENVIRONMENT\n"),
        ("\nExit code: ", "\n.SH \"EXIT STATUS\"\n"),
    ] {
        page = page.replacen(text, section, 1);
    }
    page
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |e| Error::File { path: path.clone(), cause: e.to_string() }
}

fn make(folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    Ok(folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Returns the names of pages for a command and the commands below it, in order.
    fn commands(of: &clap::Command, above: &str) -> Vec<String> {
        let name = format!("{above}{}", of.get_name());
        let below = of.get_subcommands().filter(|command| !command.is_hide_set());
        let below = below.flat_map(|command| commands(command, &format!("{name}-")));
        let mut names: Vec<_> = below.chain([name.clone()]).collect();
        names.sort();
        names
    }

    #[test]
    fn every_page_has_examples_environment_and_exit_codes() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options { folder: folder.path().to_owned() };
        let of_others = folder.path().join("man/man1/ls.1.gz");
        std::fs::create_dir_all(of_others.with_file_name("")).expect("a folder");
        std::fs::write(&of_others, [0x1f, 0x8b, 0xff]).expect("a file");
        main(&options, crate::Arguments::command()).expect("pages");
        let pages = std::fs::read_dir(folder.path().join("man/man1")).expect("pages");
        let mut names = Vec::new();
        assert_eq!(std::fs::read(&of_others).expect("it is there"), [0x1f, 0x8b, 0xff]);
        for page in pages {
            let path = page.expect("a page").path();
            if path == of_others {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a page");
            for part in ["EXAMPLES", "ENVIRONMENT", "\"EXIT STATUS\""] {
                let is_there = text.contains(&format!("\n.SH {part}\n"));
                assert!(is_there, "{}: no {part}: {text}", path.display());
            }
            assert!(!text.contains("EXTRA"), "{text}");
            let footer = concat!(" 1 \"\" \"oxccl ", env!("CARGO_PKG_VERSION"), "\"\n");
            assert!(text.contains(footer), "{text}");
            names.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
        }
        names.sort();
        // One for each command that is shown: none about pages.
        assert_eq!(names, commands(&crate::Arguments::command(), ""));
        assert!(names.contains(&"oxccl-ras-dump".to_owned()), "{names:?}");
    }
}
