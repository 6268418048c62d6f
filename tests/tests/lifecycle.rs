//! Beginning and end: bad arguments under valgrind and AddressSanitizer, forks, exits with work pending,
//! a thousand communicators, 256 ranks, panics.

use oxccl_tests::c::{C11, Program, expect_success, run};
use oxccl_tests::job::Job;
use oxccl_tests::missing;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
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

#[test]
fn a_process_that_ends_with_work_pending_ends_cleanly_and_its_peers_hear_of_it() {
    let Some(program) = Program::build("exits.c", C11) else { return };
    for how in ["return", "exit", "_exit", "thread", "function", "dlclose"] {
        for hosts in ["one", "two"] {
            let limit = Duration::from_secs(30);
            let job = Job::start(&program.path(), 2, limit, |rank, command| {
                command.arg(program.library()).arg(how);
                if hosts == "two" {
                    command.env("NCCL_HOSTID", rank.to_string()).env("NCCL_SOCKET_IFNAME", "lo");
                }
            });
            let ended = job.wait();
            for (rank, ended) in ended.iter().enumerate() {
                let text = &ended.output;
                assert_eq!(ended.status, Some(0), "{how}, {hosts} hosts, rank {rank}: {text}");
            }
            assert!(ended[1].output.contains("rank 0 is gone"), "{how}: {}", ended[1].output);
        }
    }
}

#[test]
fn processes_256_of_one_machine_make_a_communicator() {
    let limit = Duration::from_secs(60);
    let job = Job::start(Path::new(RANK), 256, limit, |_, command| {
        command.arg("once");
    });
    job.expect_success();
}
