//! Beginning and end: bad arguments under valgrind and AddressSanitizer, forks, exits with work pending,
//! a thousand communicators, 256 ranks, panics.

use oxccl_tests::c::{C11, Program, expect_success, run};
use oxccl_tests::missing;
use std::process::Command;

const NAMED: &str = "no failures; all bad arguments are named";

#[test]
fn every_bad_argument_of_every_function_is_named() {
    run("bad_arguments.c", C11, NAMED);
}

#[test]
fn every_bad_argument_under_valgrind_without_a_leak() {
    if let Err(e) = Command::new("valgrind").arg("--version").output() {
        return missing("valgrind", &e.to_string());
    }
    let Some(program) = Program::build("bad_arguments.c", C11) else { return };
    let mut command = Command::new("valgrind");
    command.args(["--leak-check=full", "--show-leak-kinds=definite"]);
    command.args(["--errors-for-leak-kinds=definite", "--error-exitcode=9"]);
    // An arena of its usual size does not fit beside valgrind's own memory.
    let text = expect_success(command.arg(program.path()).env("OXCCL_ARENA_GIB", "1"), NAMED);
    assert!(text.contains("ERROR SUMMARY: 0 errors"), "{text}");
    let none = ["definitely lost: 0 bytes", "no leaks are possible"];
    assert!(none.iter().any(|n| text.contains(n)), "{text}");
}

#[test]
fn every_bad_argument_with_address_sanitizer_on_the_c_side() {
    let flags = [C11.1, &["-fsanitize=address", "-fno-omit-frame-pointer"]].concat();
    let probe = std::env::temp_dir().join(format!("oxccl-asan-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-fsanitize=address", "-x", "c", "-", "-o"]).arg(&probe);
    if !compiles(&mut compiler, "int main(void) { return 0; }") {
        return missing("asan", "cc has no AddressSanitizer");
    }
    let _ = std::fs::remove_file(probe);
    let Some(program) = Program::build("bad_arguments.c", ("cc", &flags)) else { return };
    expect_success(&mut Command::new(program.path()), NAMED);
}

fn compiles(compiler: &mut Command, source: &str) -> bool {
    use std::io::Write;
    use std::process::Stdio;
    compiler.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = compiler.spawn() else { return false };
    // A compiler that reads nothing fails below.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(source.as_bytes()));
    child.wait().is_ok_and(|status| status.success())
}

#[test]
fn a_forked_child_gets_errors_and_the_parent_is_not_disturbed() {
    run("fork.c", C11, "forks do no harm");
}

#[test]
fn a_thousand_communicators_leave_nothing_behind() {
    let Some(program) = Program::build("churn.c", C11) else { return };
    for ranks in ["threads", "processes"] {
        let mut command = Command::new(program.path());
        let text = expect_success(command.arg(ranks), "nothing is left behind");
        println!("{text}");
    }
}
