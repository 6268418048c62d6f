//! Debian packages, installed into an empty root by dpkg and used by a program.

use crate::{
    ROOT, folder, have, libraries, on_four_ranks, pkg_config, run, succeed, succeed_under,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// dpkg for a root of its own; what the packages need of Debian is not there.
fn dpkg(root: &Path) -> Command {
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", root.display())).arg("--force-depends");
    command
}

/// Lets Debian's own checker look at packages, but for that with the static library, which takes
/// half a minute.
fn look_by_lintian(files: &[PathBuf]) {
    if !have("lintian") {
        return;
    }
    // Who makes packages gives an address; the tests have none.
    let address = "root-in-contact,bogus-mail-host,bogus-mail-host-in-debian-changelog";
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning", "--suppress-tags", address, "--allow-root"]);
    succeed(lintian.args(files));
}

#[test]
fn packages_are_installed_used_and_removed() {
    if !have("dpkg-deb") || !have("dpkg") || !have("cc") || !have("pkg-config") {
        return;
    }
    let folder = folder("deb");
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let homepage = Some("https://oxccl.example".to_owned());
    let (output, profile) = (folder.join("packages"), profile.to_owned());
    let options = xtask::deb::Options { output, profile, homepage };
    let files = xtask::deb::build(Path::new(ROOT), &options).expect("packages");
    assert_eq!(files.len(), 5, "{files:?}");
    look_by_lintian(&files);
    let root = folder.join("root");
    for place in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        std::fs::create_dir_all(root.join(place)).expect("a folder");
    }
    std::fs::write(root.join("var/lib/dpkg/status"), "").expect("a file");
    succeed(dpkg(&root).arg("--install").args(&files));
    let text = succeed(dpkg(&root).args(["--status", "liboxccl-dev"]));
    assert!(text.contains("Depends: liboxccl2 (= ") && text.contains("libc6 (>= 2."), "{text}");
    assert!(text.contains("Homepage: https://oxccl.example\n"), "{text}");
    let text = succeed(dpkg(&root).args(["--status", "oxccl-nccl-compat"]));
    assert!(text.contains("Depends: liboxccl2 (= ") && !text.contains("-dev"), "{text}");
    let usr = root.join("usr");
    let libraries = libraries(&usr);
    assert!(libraries.ends_with(format!("{}-linux-gnu", std::env::consts::ARCH)), "{libraries:?}");
    // Debian has the licences in a place of its own.
    assert!(!usr.join("share/licenses").exists());
    for file in ["liboxccl.so.2", "liboxccl.a", "libnccl.so.2", "cmake/oxccl/oxccl-config.cmake"] {
        assert!(libraries.join(file).exists(), "{file}");
    }
    for (read, file) in [
        ("cat", "bash-completion/completions/oxccl"),
        ("zcat", "man/man1/oxccl.1.gz"),
        ("zcat", "man/man1/oxccl-run.1.gz"),
        ("zcat", "doc/liboxccl2/changelog.gz"),
        ("cat", "doc/liboxccl2/copyright"),
    ] {
        let text = succeed(Command::new(read).arg(usr.join("share").join(file)));
        assert!(text.contains("oxccl"), "{file}: {text}");
    }
    let program = folder.join("hello");
    let flags = pkg_config(&usr, &["--cflags", "--libs", "oxccl"]);
    let hello = Path::new(ROOT).join("tests/sdk/hello.c");
    succeed_under(&usr, Command::new("cc").arg(hello).args(flags).arg("-o").arg(&program));
    let mut command = Command::new(usr.join("bin/oxccl"));
    let text = succeed_under(&usr, command.args(["run", "-n", "4"]).arg(&program));
    assert_eq!(text.matches("of 4: all right").count(), 4, "{text}");
    if have("cmake") {
        let build = folder.join("build");
        let source = crate::install::cmake_project(&folder.join("cmake"));
        let mut command = Command::new("cmake");
        succeed_under(&usr, command.arg("-B").arg(&build).arg("-S").arg(source));
        succeed_under(&usr, Command::new("cmake").arg("--build").arg(&build));
        let text = succeed_under(&usr, &mut on_four_ranks(&usr, &build.join("hello")));
        assert_eq!(text.matches("of 4: all right").count(), 4, "{text}");
    }
    succeed(dpkg(&root).args([
        "--purge",
        "liboxccl2",
        "liboxccl-dev",
        "oxccl",
        "oxccl-nccl-compat",
        "oxccl-nccl-compat-dev",
    ]));
    assert!(!usr.exists(), "something is left");
    let (status, _) = run(&usr, dpkg(&root).args(["--status", "oxccl"]));
    assert_eq!(status, Some(1), "it is still known");
}

#[test]
fn shells_know_the_command() {
    if !have("bash") {
        return;
    }
    let file = crate::prefix().join("share/bash-completion/completions/oxccl");
    let script = r#". "$0"; COMP_WORDS=(oxccl pl); COMP_CWORD=1; _oxccl oxccl pl oxccl; echo "${COMPREPLY[*]}""#;
    let text = succeed(Command::new("bash").args(["-c", script]).arg(file));
    assert_eq!(text.trim(), "plan");
}
