//! `cargo xtask codegen | tidy | abi-facts WHEEL | install --prefix DIR [--libdir lib]
//! [--nccl-compat] [--profile NAME] | wheel --out DIR [--profile NAME] | deb --output DIR [--profile NAME]`.

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask codegen | tidy | abi-facts WHEEL | install --prefix DIR \
                     [--libdir lib] [--nccl-compat] [--profile NAME] | wheel --out DIR [--profile NAME] \
                     | deb --output DIR [--profile NAME]";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let complaints = match arguments[..] {
        ["codegen"] => codegen(&root).err(),
        ["abi-facts", wheel] => abi_facts(&root, Path::new(wheel)).err().map(|e| e.to_string()),
        ["tidy"] => {
            let complaints = xtask::tidy::complaints(&root);
            (!complaints.is_empty()).then(|| complaints.join("\n"))
        }
        ["install", ref options @ ..] => install(&root, options).err(),
        ["wheel", "--out", out] => wheel(&root, Path::new(out), None).err(),
        ["wheel", "--out", out, "--profile", profile] => {
            wheel(&root, Path::new(out), Some(profile.to_owned())).err()
        }
        ["deb", ref options @ ..] => deb(&root, options).err(),
        _ => Some(USAGE.to_owned()),
    };
    match complaints {
        None => ExitCode::SUCCESS,
        Some(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn install(root: &Path, options: &[&str]) -> Result<(), String> {
    let options = xtask::install::Options::parse(options)?;
    xtask::install::install(root, &options).map_err(|e| e.to_string())?;
    println!("installed under {}", options.prefix.display());
    Ok(())
}

fn wheel(root: &Path, out: &Path, profile: Option<String>) -> Result<(), String> {
    let prefix = out.join(".oxccl-prefix");
    let options = xtask::install::Options {
        prefix: prefix.clone(),
        profile,
        nccl_compat: true,
        ..Default::default()
    };
    xtask::install::install(root, &options).map_err(|e| e.to_string())?;
    let wheel = xtask::wheel::wheel(root, &prefix, out).map_err(|e| e.to_string())?;
    println!("made {}", wheel.display());
    std::fs::remove_dir_all(&prefix).map_err(|e| format!("{}: {e}", prefix.display()))
}

fn deb(root: &Path, options: &[&str]) -> Result<(), String> {
    let options = xtask::deb::Options::parse(options)?;
    let files = xtask::deb::build(root, &options).map_err(|e| e.to_string())?;
    files.iter().for_each(|file| println!("{}", file.display()));
    Ok(())
}

/// Writes the facts of an unpacked wheel where the tests read them.
fn abi_facts(root: &Path, wheel: &Path) -> Result<(), xtask::abi::Error> {
    let file = |path: &Path, e| xtask::abi::Error::File(path.to_owned(), e);
    let scratch = std::env::temp_dir().join(format!("oxccl-abi-facts-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|e| file(&scratch, e))?;
    let text = xtask::abi::collect(wheel, &scratch)?;
    std::fs::remove_dir_all(&scratch).map_err(|e| file(&scratch, e))?;
    let facts = root.join("tests/abi/nccl-2.30.7.txt");
    std::fs::write(&facts, text).map_err(|e| file(&facts, e))
}

fn codegen(root: &Path) -> Result<(), String> {
    xtask::headers::write(root).map_err(|e| e.to_string())?;
    xtask::bindings::write(root).map_err(|e| e.to_string())?;
    let file = xtask::environment::FILE;
    xtask::environment::write(root).map_err(|e| format!("{file}: {e}"))
}
