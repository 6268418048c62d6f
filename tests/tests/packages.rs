//! The crates that programs in Rust depend on can be packaged, as they have to be for a registry.

use oxccl_tests::missing;
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Runs a command; returns what it printed.
fn output(command: &mut Command) -> String {
    let output = command.current_dir(ROOT).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn cargo() -> Command {
    Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
}

/// Returns the names of the workspace's crates that are for a registry.
fn published() -> Vec<String> {
    let arguments = ["metadata", "--offline", "--no-deps", "--format-version", "1"];
    let metadata: serde_json::Value =
        serde_json::from_str(&output(cargo().args(arguments))).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let public = packages.iter().filter(|package| package["publish"].is_null());
    public.map(|package| package["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn what_programs_depend_on_is_packaged_with_licences_and_a_readme() {
    let version = output(cargo().arg("--version"));
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    if minor.is_none_or(|minor| minor < 90) {
        let why = format!("{} packages no crates that depend on each other", version.trim());
        return missing("cargo-1.90", &why);
    }
    let names = published();
    for name in ["oxccl-rs", "oxccl-capi", "oxccl-cli"] {
        assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    // It is there from the last run.
    let _ = std::fs::remove_dir_all(target.join("package"));
    // Their source is compiled with the workspace; what is looked at here is what belongs to them.
    let mut package = cargo();
    package.args(["package", "--offline", "--allow-dirty", "--no-verify"]);
    for name in &names {
        package.args(["-p", name]);
    }
    output(package.env("CARGO_TARGET_DIR", &target));
    for name in &names {
        let folder = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let archive = target.join("package").join(format!("{folder}.crate"));
        let list = output(Command::new("tar").arg("-tzf").arg(&archive));
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "Cargo.toml", "src/"] {
            assert!(list.contains(&format!("{folder}/{file}")), "{file} is not in {name}: {list}");
        }
    }
}
