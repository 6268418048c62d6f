//! The Go module: its own tests on goroutines and processes, with the race detector, loaded at run
//! time, and as a dependency of another module.

use crate::{ROOT, expect_options, folder, have, on_four_ranks, prefix, succeed};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use std::process::Command;

fn module() -> PathBuf {
    Path::new(ROOT).join("bindings/go")
}

/// Whether there is a Go that has what go.mod asks for.
pub(crate) fn have_go() -> bool {
    if !have("go") || !have("cc") || !have("pkg-config") {
        return false;
    }
    let version = succeed(Command::new("go").args(["env", "GOVERSION"]));
    let minor = version.trim().trim_start_matches("go1.").split('.').next().map(str::parse::<u32>);
    let fits = matches!(minor, Some(Ok(minor)) if minor >= 21);
    if !fits {
        missing("go", &format!("{} is older than go1.21", version.trim()));
    }
    fits
}

/// Go's command in a folder; it uses no network.
pub(crate) fn go(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.current_dir(folder).args(arguments);
    command.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "-buildvcs=false");
    command
}

#[test]
fn its_own_tests_pass_and_it_is_clean() {
    if !have_go() {
        return;
    }
    let unformatted = succeed(Command::new("gofmt").arg("-l").arg(module()));
    assert_eq!(unformatted, "", "gofmt would change these");
    succeed(&mut go(&module(), &["vet", "./..."]));
    succeed(&mut go(&module(), &["test", "-count=1", "-race", "./..."]));
    let program = folder("go").join("tests");
    succeed(go(&module(), &["test", "-c", "-o"]).arg(&program));
    let text = succeed(&mut on_four_ranks(prefix(), &program));
    assert_eq!(text.matches("PASS\n").count(), 4, "{text}");
}

#[test]
fn it_needs_no_library_to_be_built() {
    if !have_go() {
        return;
    }
    let program = folder("go-dlopen").join("tests");
    let mut build = go(&module(), &["test", "-c", "-tags", "oxccl_dlopen", "-o"]);
    succeed(build.arg(&program).env("PKG_CONFIG", "/nonexistent"));
    let text = succeed(&mut Command::new(&program));
    assert!(text.contains("PASS\n"), "{text}");
    // The system finds it where nobody names it.
    let mut one = Command::new(&program);
    one.args(["-test.v", "-test.run", "^TestDevices$"]).env_remove("OXCCL_LIBRARY");
    let text = succeed(&mut one);
    assert!(text.contains("--- PASS: TestDevices"), "{text}");
    let output = Command::new(&program).env("OXCCL_LIBRARY", "/nonexistent.so").output();
    let text = String::from_utf8_lossy(&output.expect("it runs").stderr).into_owned();
    assert!(text.contains("cannot load /nonexistent.so"), "{text}");
}

#[test]
fn another_module_uses_it() {
    if !have_go() {
        return;
    }
    let folder = folder("go-user");
    let path = std::fs::canonicalize(module()).expect("it is there");
    let require = format!("require oxccl v0.0.0\nreplace oxccl => {}\n", path.display());
    std::fs::write(folder.join("go.mod"), format!("module user\n\ngo 1.21\n\n{require}"))
        .expect("a file");
    std::fs::copy(Path::new(ROOT).join("tests/sdk/hello.go"), folder.join("main.go"))
        .expect("a copy");
    succeed(&mut go(&folder, &["build", "-o", "hello", "."]));
    let mut ranks = on_four_ranks(prefix(), &folder.join("hello"));
    let text = succeed(ranks.env("NCCL_DEBUG", "INFO"));
    assert_eq!(text.matches("of 4: all right").count(), 4, "{text}");
    expect_options(&text);
}

#[test]
fn a_module_from_a_proxy_is_fetched_vetted_and_vendored() {
    if !have_go() || !have("python3") {
        return;
    }
    let folder = folder("go-module");
    let options = xtask::go_module::Options {
        path: "example.org/oxccl".to_owned(),
        output: folder.join("proxy"),
    };
    let version = xtask::go_module::write(Path::new(ROOT), &options).expect("it is written");
    let user = folder.join("user");
    std::fs::create_dir_all(&user).expect("a folder");
    std::fs::write(user.join("go.mod"), "module user\n\ngo 1.21\n").expect("a file");
    let program = std::fs::read_to_string(Path::new(ROOT).join("tests/sdk/hello.go"));
    let program = program.expect("a program").replace("\"oxccl\"", "\"example.org/oxccl\"");
    std::fs::write(user.join("main.go"), program).expect("a file");
    let go = |arguments: &[&str]| {
        let mut command = go(&user, arguments);
        command.env("GOMODCACHE", folder.join("cache"));
        // Go takes what a version contains from its index of an earlier run.
        command.env("GOFLAGS", "-modcacherw").env("GODEBUG", "goindex=0");
        command
    };
    // The line that is printed: words, of which the first two are variables.
    let line = xtask::go_module::command(&options.output, &options.path, &version);
    let words: Vec<&str> = line.split(' ').collect();
    let [no_database, proxy, "go", arguments @ ..] = &words[..] else { panic!("{line}") };
    let variables = [no_database, proxy].map(|word| word.split_once('=').expect("a variable"));
    let mut get = go(arguments);
    succeed(get.envs(variables));
    succeed(&mut go(&["vet", "./...", "example.org/oxccl"]));
    succeed(&mut go(&["mod", "vendor"]));
    succeed(&mut go(&["build", "-mod=vendor", "-o", "hello", "."]));
    let text = succeed(&mut on_four_ranks(prefix(), &user.join("hello")));
    assert_eq!(text.matches("of 4: all right").count(), 4, "{text}");
}
