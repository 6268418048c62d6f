//! Tests of `oxccl run`: signals, failures, and processes that ranks leave behind.

use oxccl_runtime::bootstrap::wire::wait_for;
use oxccl_tests::job::{bind_to_parent, wait_until};
use oxccl_tests::missing;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// The time after which a command that has not ended is killed.
const LIMIT: Duration = Duration::from_secs(100);

/// A command that runs, with a folder of its own for temporary files.
struct Launcher {
    child: Child,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Launcher {
    /// Starts `oxccl run` with the default signal handling of a terminal, whatever the test
    /// ignores.
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,HUP,QUIT,TERM", OXCCL, "run", "--tag-output=no"]);
        command.args(arguments);
        Self::of(name, command.env("OXCCL", OXCCL).stdin(Stdio::null()))
    }

    fn of(name: &str, command: &mut Command) -> Self {
        let folder = std::env::temp_dir().join(format!("oxccl-run-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        command.env("TMPDIR", &folder).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bind_to_parent(command).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("its own");
        std::thread::spawn(move || {
            wait_for(&mut [PollFd::new(&process, PollFlags::IN)], LIMIT);
            // The process has usually ended by now.
            let _ = pidfd_send_signal(&process, Signal::KILL);
        });
        Self { child, output, folder }
    }

    /// Returns the next lines of the ranks that begin with `word`, without the word.
    fn lines(&mut self, word: &str, count: usize) -> Vec<String> {
        let lines = self.output.by_ref().lines().map_while(Result::ok);
        let found = lines.filter_map(|line| line.strip_prefix(word).map(str::to_owned));
        let found: Vec<_> = found.take(count).collect();
        assert_eq!(found.len(), count, "{word}: {found:?}");
        found
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("its end was not waited for");
    }

    fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).expect("its folder");
        entries.map(|entry| entry.expect("a name").path()).collect()
    }

    /// Waits for the end of the command; returns its exit code, its further output, and its errors.
    /// No temporary file may be left.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.output.read_to_string(&mut out).expect("text");
        self.child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
        let status = wait_until(&mut self.child, Instant::now() + LIMIT);
        let left = self.left();
        assert!(left.is_empty(), "{left:?} {out}{err}");
        (status, out, err)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The command has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn signals_reach_the_ranks_which_may_take_their_time() {
    for (signal, name, code) in
        [(Signal::HUP, "HUP", 129), (Signal::INT, "INT", 130), (Signal::TERM, "TERM", 143)]
    {
        // The sleep is of the rank's group and ends as well, before the trap runs.
        let script = format!(
            "trap 'echo got {name} $OXCCL_RANK; exit 0' {name}; echo ready; while :; do sleep 1; done"
        );
        let mut launcher = Launcher::start(name, &["-n", "2", "sh", "-c", &script]);
        launcher.lines("ready", 2);
        launcher.signal(signal);
        let (status, out, err) = launcher.end();
        assert_eq!(status, Some(code), "{out}{err}");
        for rank in 0..2 {
            assert!(out.contains(&format!("got {name} {rank}")), "{out}{err}");
        }
        assert!(
            err.contains(&format!("SIG{name}: passed on to the ranks, which have 10s")),
            "{err}"
        );
    }
}

/// A rank that ignores SIGTERM, as do the processes that it has started: a child, and a process
/// that has lost its parent and has a session of its own.
const STUBBORN: &str = "trap '' TERM; echo pid $$; \
     (setsid sh -c 'echo pid $$; exec sleep 90' &); \
     sh -c 'echo pid $$; exec sleep 90' & \
     exec sleep 90";

#[test]
fn nothing_survives_the_grace_period_or_a_second_signal() {
    for (name, grace, signals) in [("grace", "100ms", 1), ("again", "10m", usize::MAX)] {
        let arguments = ["-n", "2", "--grace", grace, "sh", "-c", STUBBORN];
        let mut launcher = Launcher::start(name, &arguments);
        let pids = launcher.lines("pid ", 6);
        for _ in 0..signals {
            launcher.signal(Signal::TERM);
            if launcher.child.try_wait().expect("its own child").is_some() {
                break;
            }
            // A signal that follows at once counts as the same.
            std::thread::sleep(Duration::from_millis(20));
        }
        let (status, out, err) = launcher.end();
        assert_eq!(status, Some(143), "{out}{err}");
        assert!(err.contains("killing the ranks that still run (2)"), "{err}");
        for pid in pids {
            let process = Pid::from_raw(pid.parse().expect("a number")).expect("a process");
            assert!(test_kill_process(process).is_err(), "{pid} survived: {err}");
        }
    }
}

#[test]
fn a_failed_rank_ends_the_others_and_gives_its_status() {
    for (end, code, told) in
        [("exit 7", 7, "exit status: 7"), ("kill -KILL $$", 137, "signal: 9 (SIGKILL)")]
    {
        let script = format!("test $OXCCL_RANK = 1 && {end}; {STUBBORN}");
        let arguments = ["-n", "3", "--grace", "100ms", "sh", "-c", &script];
        let (status, out, err) = Launcher::start("failed", &arguments).end();
        assert_eq!(status, Some(code), "{out}{err}");
        let told = format!("rank 1 ended with {told}; the other ranks (2) have 100ms to end");
        assert!(err.contains(&told), "{err}");
    }
    let (status, out, err) = Launcher::start("missing", &["-n", "2", "/nonexistent/x"]).end();
    assert!(status == Some(127) && err.contains("/nonexistent/x"), "{out}{err}");
    let (status, _, err) = Launcher::start("time", &["--grace", "2h", "true"]).end();
    assert!(status == Some(1) && err.contains("a time like 10, 500ms, 2s or 1m"), "{err}");
}

#[test]
fn a_failure_is_told_with_the_ranks_that_had_ended_before() {
    let told = |name: &str, nranks: &str, well: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        // Rank 3 fails once the launcher has collected the processes of those that end well.
        let script = format!(
            "cd {}; case $OXCCL_RANK in 3) ;; \
             none{}) echo $$ > $OXCCL_RANK.part; mv $OXCCL_RANK.part $OXCCL_RANK; exit 0;; \
             *) exec sleep 60;; esac; for rank in {}; do \
             until test -e $rank && ! kill -0 $(cat $rank) 2> /dev/null; do sleep 0.01; done; \
             done; exit 1",
            folder.path().display(),
            well.iter().map(|rank| format!("|{rank}")).collect::<String>(),
            well.join(" "),
        );
        let (status, out, err) =
            run(name, &["-n", nranks, "--grace", "100ms", "sh", "-c", &script]);
        assert_eq!(status, Some(1), "{out}{err}");
        err.lines().next().unwrap_or_default().to_owned()
    };
    let said = |before: &str, others: u32| {
        format!(
            "oxccl: rank 3 ended with exit status: 1{before}; the other ranks ({others}) have \
             100ms to end, then they are killed"
        )
    };
    assert_eq!(told("before-none", "4", &[]), said("", 3));
    let before = "; rank 1 ended with exit status 0";
    assert_eq!(told("before-one", "4", &["1"]), said(before, 2));
    let well = ["0", "1", "2", "4", "5", "6", "7", "8", "9", "10"];
    let before = "; the ranks 0, 1, 2, 4, 5, 6, 7, 8 and 2 more ended with exit status 0";
    assert_eq!(told("before-many", "12", &well), said(before, 1));
}

#[test]
fn a_killed_launcher_leaves_no_secret_once_the_ranks_have_met() {
    let script = "\"$OXCCL\" perf all_reduce -b 8 -e 8 -n 1 && echo met && exec sleep 90";
    let mut launcher = Launcher::start("killed", &["-n", "2", "sh", "-c", script]);
    launcher.lines("met", 2);
    let until = Instant::now() + LIMIT;
    while !launcher.left().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    launcher.signal(Signal::KILL);
    let (status, ..) = launcher.end();
    assert_eq!(status, None);
}

#[test]
fn the_file_of_a_killed_launcher_is_removed_by_the_next_one_and_no_other_file() {
    // The rank does not join: until the launcher ends the file stays.
    let script = "echo ready; exec sleep 90";
    let mut launcher = Launcher::start("left", &["-n", "1", "sh", "-c", script]);
    launcher.lines("ready", 1);
    let of_running = launcher.left();
    assert_eq!(of_running.len(), 1, "{of_running:?}");
    let name = of_running[0].to_str().expect("text");
    let others = ["notes".to_owned(), format!("{name}.part")].map(|end| launcher.folder.join(end));
    others.iter().for_each(|path| std::fs::write(path, "").expect("room"));
    let link = format!("{}-1", name.rsplit_once('-').expect("two numbers").0);
    std::os::unix::fs::symlink(&others[0], &link).expect("a link");
    let next = |launcher: &Launcher| {
        let mut command = Command::new(OXCCL);
        command.args(["run", "-n", "1", "true"]).env("TMPDIR", &launcher.folder);
        assert!(bind_to_parent(&mut command).status().expect("it runs").success());
        launcher.left()
    };
    assert!(next(&launcher).contains(&of_running[0]), "a job that runs keeps its file");
    launcher.signal(Signal::KILL);
    launcher.child.wait().expect("its end");
    let left = next(&launcher);
    assert!(!left.contains(&of_running[0]) && left.len() == 3, "{left:?}");
}

#[test]
fn ranks_do_not_wait_for_one_whose_process_has_ended() {
    let script = "test $OXCCL_RANK = 1 && exit 0; exec \"$OXCCL\" perf all_reduce -b 8 -e 8 -n 1";
    let (status, out, err) = Launcher::start("absent", &["-n", "3", "sh", "-c", script]).end();
    assert_eq!(status, Some(1), "{out}{err}");
    let told = "initialisation failed: rank 1 ended with exit status: 0 before it joined";
    assert!(err.contains(told), "{out}{err}");
}

#[test]
fn the_help_says_who_has_the_standard_input() {
    let help = Command::new(OXCCL).args(["run", "--help"]).output().expect("it runs");
    let text =
        String::from_utf8_lossy(&help.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("Rank 0 has the standard input"), "{text}");
}

#[test]
fn the_first_rank_has_the_standard_input_also_of_a_terminal() {
    let script = "read line; echo \"$OXCCL_RANK has $line\"";
    let text = |mut launcher: Launcher| {
        let mut input = launcher.child.stdin.take().expect("a pipe");
        input.write_all(b"words\n").expect("room");
        let (status, out, err) = launcher.end();
        assert!(out.contains("0 has words"), "{out}{err}");
        (status, out, err)
    };
    let mut command = Command::new(OXCCL);
    command.args(["run", "-n", "2", "sh", "-c", script]);
    let (status, out, err) = text(Launcher::of("pipe", command.stdin(Stdio::piped())));
    assert!(status == Some(0) && out.contains("1 has \n"), "{out}{err}");
    if let Err(e) = Command::new("script").arg("--version").output() {
        return missing("script", &e.to_string());
    }
    let line = "exec \"$OXCCL\" run -n 1 sh -c \"$SCRIPT\"";
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    command.env("OXCCL", OXCCL).env("SCRIPT", script).env("SHELL", "/bin/sh");
    let (status, out, err) = text(Launcher::of("terminal", command.stdin(Stdio::piped())));
    assert_eq!(status, Some(0), "{out}{err}");
}

/// Runs `oxccl run` with these arguments in a folder of its own; returns exit code and outputs.
fn run(name: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(OXCCL);
    command.arg("run").args(arguments).env("OXCCL", OXCCL).stdin(Stdio::null());
    Launcher::of(name, &mut command).end()
}

#[test]
fn a_program_that_cannot_be_started_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    std::fs::write(&program, "#!/bin/sh\n").expect("a program");
    std::fs::set_permissions(&program, Permissions::from_mode(0o700)).expect("its own");
    let here = |name: &str, line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("OXCCL", OXCCL).current_dir(folder.path());
        Launcher::of(name, command.stdin(Stdio::null())).end()
    };
    let (status, _, err) = here("here", "exec \"$OXCCL\" run program");
    let advice = "program: cannot be started: No such file or directory (os error 2); for the one \
                  in this folder write ./program";
    assert!(status == Some(127) && err.contains(advice), "{err}");
    assert_eq!(here("slash", "exec \"$OXCCL\" run ./program").0, Some(0));
    let (status, _, err) = here("nowhere", "exec \"$OXCCL\" run no-such-program");
    assert!(status == Some(127) && err.ends_with("directory (os error 2)\n"), "{err}");
    std::fs::write(folder.path().join("program.txt"), "").expect("room");
    for (name, program) in [("folder", "/"), ("data", "./program.txt"), ("below", "./program/x")] {
        let (status, _, err) = here(name, &format!("exec \"$OXCCL\" run {program}"));
        assert!(status == Some(126) && err.contains(": cannot be started: "), "{err}");
    }
    let (status, _, err) = here("files", "ulimit -n 12; exec \"$OXCCL\" run -n 8 ./program");
    assert!(status == Some(1) && err.contains("raise the limit (ulimit -n)"), "{err}");
}

#[test]
fn who_has_no_folder_for_temporary_files_is_told_of_its_variable() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let mut command = Command::new(OXCCL);
    command.args(["run", "true"]).env("TMPDIR", &missing).stdin(Stdio::null());
    let output = bind_to_parent(&mut command).output().expect("it runs");
    let err = String::from_utf8_lossy(&output.stderr);
    let writing = format!("writing {}/oxccl-run-", missing.display());
    let advice = "failed: No such file or directory (os error 2); set TMPDIR to a folder in which";
    assert!(output.status.code() == Some(1) && err.contains(&writing), "{err}");
    assert!(err.contains(advice), "{err}");
}

#[test]
fn lines_have_the_number_of_their_rank_in_front() {
    // The second part comes when both ranks have written the first one.
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "cd {}; echo out $OXCCL_RANK; echo err $OXCCL_RANK >&2; printf 'no end'; \
         : > $OXCCL_RANK; until test -e 0 && test -e 1; do sleep 0.01; done; printf ' and more'",
        folder.path().display()
    );
    let (status, out, err) = run("tags", &["-n", "2", "sh", "-c", &script]);
    assert_eq!(status, Some(0), "{out}{err}");
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let parts = |rank: u32| lines.iter().filter(|l| l.starts_with(&format!("[{rank}] "))).count();
    assert!(lines.contains(&"[0] out 0") && lines.contains(&"[1] out 1"), "{out}");
    assert_eq!(parts(0) + parts(1), lines.len(), "{out}");
    let of_rank = |rank: u32| {
        let tag = format!("[{rank}] ");
        let lines = out.lines().filter_map(|line| line.strip_prefix(&tag));
        lines.collect::<String>()
    };
    assert_eq!([0, 1].map(of_rank), ["out 0no end and more", "out 1no end and more"], "{out}");
    let mut errors: Vec<&str> = err.lines().collect();
    errors.sort_unstable();
    assert_eq!(errors, ["[0] err 0", "[1] err 1"]);
    let plain = ["--tag-output=no", "-n", "2", "echo", "text"];
    assert_eq!(run("no-tags", &plain), (Some(0), "text\n".repeat(2), String::new()));
}

#[test]
fn a_long_output_is_whole_and_a_closed_one_ends_the_ranks() {
    let (status, out, err) = run("long", &["-n", "3", "seq", "100000"]);
    assert_eq!(status, Some(0), "{err}");
    for rank in 0..3 {
        let tag = format!("[{rank}] ");
        let numbers = out.lines().filter_map(|line| line.strip_prefix(&tag));
        assert!(numbers.eq((1..=100_000).map(|n| n.to_string())), "rank {rank}");
    }
    let mut command = Command::new("sh");
    command.args(["-c", "\"$OXCCL\" run -n 2 yes | head -n 3"]).env("OXCCL", OXCCL);
    let (status, out, err) = Launcher::of("closed", command.stdin(Stdio::null())).end();
    assert!(status == Some(0) && out.lines().count() == 3, "{out}");
    assert!(err.contains("signal: 13 (SIGPIPE)"), "{err}");
}

#[test]
fn ranks_have_a_terminal_where_the_launcher_has_one() {
    if let Err(e) = Command::new("script").arg("--version").output() {
        return missing("script", &e.to_string());
    }
    let line = "exec \"$OXCCL\" run -n 2 sh -c 'test -t 1 && test -t 2 && echo seen'";
    for (plain, tags) in
        [("", ["\u{1b}[32m[0]\u{1b}[0m ", "\u{1b}[33m[1]\u{1b}[0m "]), ("1", ["[0] ", "[1] "])]
    {
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
        command.env("OXCCL", OXCCL).env("SHELL", "/bin/sh").env("NO_COLOR", plain);
        let (status, out, err) = Launcher::of("tty", command.stdin(Stdio::null())).end();
        assert_eq!(status, Some(0), "{out}{err}");
        for tag in tags {
            assert!(out.lines().any(|line| line.trim_end() == format!("{tag}seen")), "{out:?}");
        }
    }
}

#[test]
fn options_that_are_not_known_are_told_and_those_of_the_program_left_to_it() {
    for (wrong, told) in [("--rank", "'--ranks'"), ("--ntasks", "--ntasks"), ("-x", "'-x'")] {
        let (status, _, err) = run("unknown", &[wrong, "4", "true"]);
        assert!(status == Some(1) && err.contains(told), "{wrong}: {status:?} {err}");
    }
    let arguments = ["-n2", "sh", "-c", "echo $0 $@", "--rank", "-n", "--", "-x"];
    let (status, out, err) = run("own", &arguments);
    assert_eq!(status, Some(0), "{out}{err}");
    assert_eq!(out.matches("--rank -n -- -x").count(), 2, "{out}");
}

#[test]
fn outputs_go_to_files_and_time_ends_a_job() {
    let folder = std::env::temp_dir().join(format!("oxccl-outputs-{}", std::process::id()));
    let to = folder.join("new").display().to_string();
    let script = "echo out $OXCCL_RANK; echo err >&2";
    let (status, out, err) = run("files", &["--output", &to, "-n", "2", "sh", "-c", script]);
    assert_eq!((status, &*out, &*err), (Some(0), "", ""));
    let read = |name: &str| std::fs::read_to_string(folder.join("new").join(name)).expect("a file");
    assert_eq!((read("rank-0.out"), read("rank-1.out")), ("out 0\n".into(), "out 1\n".into()));
    assert_eq!((read("rank-0.err"), read("rank-1.err")), ("err\n".into(), "err\n".into()));
    std::fs::remove_dir_all(&folder).expect("its own");

    let (status, _, err) = run("time", &["--timeout", "300ms", "-n", "2", "sleep", "60"]);
    assert_eq!(status, Some(124), "{err}");
    assert!(
        err.contains("the time is over: SIGTERM to the ranks (2), which have 10s to end"),
        "{err}"
    );
    let (status, _, err) = run("enough", &["--timeout", "60s", "true"]);
    assert_eq!((status, &*err), (Some(0), ""));
    let (status, _, err) = run("none", &["-n", "0", "true"]);
    assert!(status == Some(1) && err.contains("invalid value '0' for '--ranks"), "{err}");
}

/// Writes a program that runs a command here as ssh does on a host, out of reach of signals, and
/// notes the host; returns its path.
fn stand_in(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("oxccl-ssh-{name}-{}", std::process::id()));
    let script = "#!/bin/sh\necho \"to $1\" >&2\nshift\nexec setsid --wait sh -c \"$*\"\n";
    std::fs::write(&path, script).expect("room");
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its own");
    path
}

#[test]
fn ranks_of_other_hosts_are_started_and_ended_with_the_others() {
    let ssh = stand_in("hosts");
    let on = |name: &str, hosts: &str, rest: &[&str], script: &str| {
        let ssh = ssh.display().to_string();
        let arguments = [&["--ssh", &ssh, "--host", hosts], rest, &["sh", "-c", script]].concat();
        run(name, &arguments)
    };
    let (status, out, err) = on(
        "three",
        "localhost,far:2",
        &[],
        "echo \"$OXCCL_RANK of $OXCCL_NRANKS, $OXCCL_LOCAL_RANK here, it's \\$1\"; \
         exec \"$OXCCL\" perf all_reduce -b 8 -e 8 -n 1",
    );
    assert_eq!(status, Some(0), "{out}{err}");
    for line in [
        "[0] 0 of 3, 0 here, it's $1",
        "[1] 1 of 3, 0 here, it's $1",
        "[2] 2 of 3, 1 here, it's $1",
    ] {
        assert!(out.lines().any(|l| l == line), "{line}: {out}{err}");
    }
    assert_eq!(err, "to far\n");

    let fails = "test $OXCCL_RANK = 2 && exit 7; exec sleep 60";
    let (status, out, err) = on("fails", "localhost,far:2", &["--grace", "100ms"], fails);
    assert_eq!(status, Some(7), "{out}{err}");
    assert!(err.contains("rank 2 ended with exit status: 7"), "{err}");
    assert!(err.contains("host far with the ranks 1 to 2 ended with exit status: 7"), "{err}");

    let (status, _, err) =
        on("time", "far:2", &["--timeout", "500ms", "--grace", "5s"], "sleep 60");
    assert_eq!(status, Some(124), "{err}");
    let (status, _, err) = run("name", &["--host=-oProxyCommand=x", "true"]);
    assert!(status == Some(1) && err.contains("a host like node1"), "{err}");
    let (status, _, err) = on("twice", "far,localhost,far:2", &[], "true");
    assert!(status == Some(1) && err.contains("--host: far is there twice"), "{err}");
    let (status, _, err) = on("both", "far", &["-n", "2"], "true");
    assert!(status == Some(1) && err.contains("cannot be used with"), "{err}");
    std::fs::remove_file(&ssh).expect("its own");
}

/// Signals reach the ranks of another host, which may take their time, and what they say then is
/// shown.
#[test]
fn signals_reach_the_ranks_of_other_hosts() {
    let ssh = stand_in("signals");
    let path = ssh.display().to_string();
    let script =
        "trap 'sleep 0.2; echo got it; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let arguments = ["--ssh", &path, "--host", "far:2", "sh", "-c", script];
    let mut launcher = Launcher::start("far-signals", &arguments);
    launcher.lines("ready", 2);
    launcher.signal(Signal::TERM);
    let (status, out, err) = launcher.end();
    assert_eq!((status, out.matches("got it").count()), (Some(143), 2), "{out}{err}");
    std::fs::remove_file(&ssh).expect("its own");
}

/// The ranks of another host do not outlive a launcher that is killed.
#[test]
fn a_killed_launcher_takes_the_ranks_of_other_hosts_with_it() {
    let ssh = stand_in("gone");
    let path = ssh.display().to_string();
    let script = "echo pid $$; exec sleep 90";
    let arguments = ["--ssh", &path, "--host", "far:2", "--grace", "100ms", "sh", "-c", script];
    let mut launcher = Launcher::start("gone", &arguments);
    let processes = launcher.lines("pid ", 2).into_iter().map(|pid| {
        let pid = Pid::from_raw(pid.parse().expect("a number")).expect("a process");
        pidfd_open(pid, PidfdFlags::empty()).expect("it runs")
    });
    let processes: Vec<_> = processes.collect();
    launcher.signal(Signal::KILL);
    let _ = launcher.child.wait();
    for process in &processes {
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        wait_for(&mut ends, LIMIT);
        assert!(!ends[0].revents().is_empty(), "it survived");
    }
    std::fs::remove_file(&ssh).expect("its own");
}
