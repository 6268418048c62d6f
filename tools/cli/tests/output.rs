//! The output of commands on a terminal, on a full disk, and to readers that have enough.

use oxccl_tests::job::bind_to_parent;
use oxccl_tests::missing;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// A command that dies with the test, and after two minutes.
fn timed(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "120", program]).env("OXCCL", OXCCL).stdin(Stdio::null());
    command.env_remove("NCCL_DEBUG");
    command
}

#[test]
fn a_reader_that_has_enough_ends_the_command_silently() {
    let all = "\"$OXCCL\" plan all --explain | head -n 1; \"$OXCCL\" env | head -n 1; \
               \"$OXCCL\" perf all --ranks 2 --device host -e 64 -n 1 | head -n 1; \
               \"$OXCCL\" perf all --device host -e 64 -n 1 | head -n 1";
    let mut command = timed("sh");
    let ended = bind_to_parent(command.args(["-c", all])).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert!(ended.status.success() && out.lines().count() == 4, "{out}{err}");
    assert_eq!(err, "");
}

#[test]
fn a_reader_that_has_enough_ends_the_ranks_and_nothing_else() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("reader");
    // It may be there from the last run.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    // The ranks of the first log while they meet, and their launcher has a file with a secret. The
    // second is a rank of the shell's.
    let all = "NCCL_DEBUG=INFO \"$OXCCL\" perf all --ranks 2 --device host -e 64 2>&1 | head -n 1; \
               export OXCCL_RANK=0 OXCCL_NRANKS=1; \
               (\"$OXCCL\" perf all --ranks 1 --device host; echo ended with $? >&2) | \
               head -n 1";
    let mut command = timed("sh");
    command.args(["-c", all]).env("TMPDIR", &folder);
    let ended = bind_to_parent(&mut command).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert!(out.lines().count() == 2 && err.ends_with("ended with 141\n"), "{out}{err}");
    let left: Vec<_> = std::fs::read_dir(&folder).expect("the folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Runs a line of the shell; its exit code, and what it printed.
fn shell(line: &str) -> (Option<i32>, String, String) {
    let mut command = timed("sh");
    let ended = bind_to_parent(command.args(["-c", line])).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let full = "No space left on device (os error 28)\n";
    let perf = "perf all_reduce --ranks 1 -e 8 -n 1";
    for command in ["plan all_reduce", "doctor --no-pairs", "ras", "ras --json", perf] {
        let (code, _, err) = shell(&format!("OXCCL_DEVICE=host \"$OXCCL\" {command} >/dev/full"));
        assert_eq!(code, Some(1), "{command}: {err}");
        assert!(err.contains(&format!("oxccl: standard output: {full}")), "{command}: {err}");
    }
    let document = format!("OXCCL_DEVICE=host \"$OXCCL\" {perf} --json - >/dev/full");
    let (code, _, err) = shell(&document);
    assert!(code == Some(1) && err.contains(&format!("oxccl: -: {full}")), "{err}");
    let (code, _, err) = shell("\"$OXCCL\" run -n 2 echo hi >/dev/full");
    assert_eq!((code, err), (Some(1), format!("oxccl: what the ranks write is lost: {full}")));
}

#[test]
fn calls_are_logged_where_that_is_asked_for() {
    let log = |kind: &str, subsystems: &str| {
        let variables = format!("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS={subsystems}");
        let options = "--ranks 2 --device host -b 8 -e 8 -n 1 -w 0";
        let (code, out, err) = shell(&format!("{variables} \"$OXCCL\" perf {kind} {options}"));
        assert_eq!(code, Some(0), "{out}{err}");
        out + &err
    };
    let text = log("reduce", "COLL");
    for rank in 0..2 {
        let prefix = format!(", rank {rank}] OXCCL INFO ncclReduce: sendbuff 0x");
        let of_rank = text.lines().find(|line| line.contains(&prefix)).expect("a line");
        let told = ["count 2 datatype float op sum root 0 comm 0x", " [nranks=2] stream 0x"];
        assert!(told.iter().all(|part| of_rank.contains(part)), "{of_rank}");
    }
    let text = log("sendrecv", "COLL");
    let receives = " OXCCL INFO ncclRecv: recvbuff 0x";
    assert!(text.contains(receives) && text.contains("count 2 datatype float peer 1"), "{text}");
    assert!(!log("reduce", "INIT").contains("ncclReduce: "));
}

/// A command and what it has started; killed when this is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn a_terminal_shows_what_is_measured_while_it_takes_long() {
    if let Err(e) = Command::new("script").arg("--version").output() {
        return missing("script", &e.to_string());
    }
    // So many calls take minutes on any machine; nothing waits for their end.
    let line = "exec \"$OXCCL\" perf all_reduce --device host --ranks 2 -b 8M -e 8M -n 1000000";
    let mut command = timed("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    command.env("SHELL", "/bin/sh").process_group(0).stdout(Stdio::piped());
    let script = bind_to_parent(&mut command).spawn();
    let mut script = Group(script.expect("it starts"));
    let mut terminal = script.0.stdout.take().expect("a pipe");
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&shown).contains("measuring 8388608 bytes … ") {
        let n = terminal.read(&mut part).expect("what the terminal shows");
        assert!(n > 0, "it ended: {}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&part[..n]);
    }
}
