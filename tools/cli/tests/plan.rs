//! `oxccl plan` and `oxccl env`, as users run them: what they show is what a communicator does.

use oxccl_tests::job::bind_to_parent;
use std::process::{Command, Stdio};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// The end of a command.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the command with variables; it dies with the test, and after two minutes.
fn oxccl(variables: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "120", OXCCL]).args(arguments).envs(variables.iter().copied());
    let ended = bind_to_parent(&mut command).stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: ended.status.code(), out: text(&ended.stdout), err: text(&ended.stderr) }
}

#[test]
fn plans_of_all_collectives_are_shown_and_the_way_of_messages() {
    let Ended { code, out, err } =
        oxccl(&[], &["plan", "all", "-n", "2", "-b", "8", "--device", "host"]);
    let heads = out.lines().filter(|l| l.contains(" of 8 bytes per block on 2 ranks")).count();
    assert!(code == Some(0) && heads == 8, "{out}{err}");
    for (kind, cut) in
        [("sendrecv", ""), ("sendrecv_pairs", ""), ("sendrecv_many", " in 64 messages")]
    {
        let head = format!("{kind} of 8 bytes{cut} from each of 2 ranks, all sharing");
        assert!(out.contains(&head), "{out}");
    }
    let alone = ["plan", "all", "-n", "1", "-b", "1", "--device", "host"];
    let Ended { code, out, err } = oxccl(&[], &alone);
    let head = out.contains("all_reduce of 1 byte per block on 1 rank, all sharing memory\n");
    assert!(code == Some(0) && head && !out.contains("1 ranks"), "{out}{err}");
    assert!(out.contains("sendrecv of 1 byte from a rank to itself, "), "{out}");
    for (alias, name) in [("all_to_all", "alltoall"), ("send_recv", "sendrecv")] {
        let plan = |kind| oxccl(&[], &["plan", kind, "-b", "8", "--device", "host"]).out;
        assert!(plan(alias).starts_with(&format!("{name} of 8 bytes ")), "{}", plan(alias));
    }
    let explained = ["plan", "sendrecv_many", "-b", "1M", "--device", "host", "--explain"];
    let Ended { code, out, err } = oxccl(&[], &explained);
    let told = ["us for any size + ", "sends 1 MiB in 64 messages, receives 1 MiB in 64 messages"];
    assert!(code == Some(0) && told.iter().all(|text| out.contains(text)), "{out}{err}");
    let of_rank = |rank| ["plan", "all_reduce", "-n", "4", "--device", "host", "--program", rank];
    let Ended { code, out, .. } = oxccl(&[], &of_rank("3"));
    assert!(code == Some(0) && out.contains("program of rank 3 of "), "{out}");
    let Ended { code, err, .. } = oxccl(&[], &of_rank("9"));
    assert!(code == Some(1) && err.contains("rank 9 of 4; expected a rank below"), "{err}");
    let Ended { code, out, err } = oxccl(&[], &["plan", "sendrecv", "--device", "cuda"]);
    let line = out.lines().find(|line| line.contains("lines") && line.ends_with(" us"));
    assert!(code == Some(0) && line.is_some_and(|line| line.contains("messages")), "{out}{err}");
}

#[test]
fn plans_name_what_moves_their_data_also_of_gpus_that_are_not_here() {
    let chosen_by = |protocols: &str, arguments: &[&str]| -> Vec<String> {
        let ended = oxccl(&[("NCCL_PROTO", protocols)], &[&["plan"], arguments].concat());
        assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
        let lines = ended.out.lines().filter(|line| line.ends_with("chosen"));
        lines.map(|line| line[19..31].trim().to_owned()).collect()
    };
    let chosen = |arguments: &[&str]| chosen_by("", arguments);
    let host = |bytes| chosen(&["all_reduce", "-n", "4", "-b", bytes, "--device", "host"]);
    assert_eq!(host("8"), ["packets", "packets"]);
    assert_eq!(host("256K"), ["stage", "in place"]);
    assert_eq!(host("64M"), ["remote read", "in place"]);
    let cuda = |protocols, bytes| {
        let arguments = ["all_gather", "-n", "4", "-b", bytes, "--device", "cuda"];
        chosen_by(protocols, &arguments)
    };
    assert_eq!(cuda("", "8"), ["lines", "lines"]);
    assert_eq!(cuda("^LL128", "8"), ["packets", "packets"]);
    assert_eq!(cuda("^LL128", "256M"), ["stage", "in place", "copy engines"]);
    assert_eq!(chosen(&["all_reduce", "-n", "4", "--hosts", "4"]), ["edges", "edges"]);
}

#[test]
fn plans_are_chosen_as_a_communicator_chooses_them() {
    let plan = |name: &str, collective: &str, device: &str| {
        let arguments = ["plan", collective, "-n", "4", "-b", "256K", "--device", device];
        oxccl(&[("OXCCL_ALGORITHM", name)], &arguments)
    };
    // The names of what is chosen, of which there is some for any memory.
    let chosen = |name: &str, collective: &str, device: &str| {
        let Ended { code, out, err } = plan(name, collective, device);
        let any = out.split("any memory:").nth(1).and_then(|text| text.lines().nth(1));
        assert!(code == Some(0) && any.is_some_and(|line| line.contains(" us")), "{out}{err}");
        let lines = out.lines().filter(|line| line.ends_with("chosen"));
        let names = lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned));
        (names.collect::<Vec<_>>(), out.contains(" does not serve "))
    };
    for name in ["ring", "tree"] {
        let (names, is_unserved) = chosen(name, "all_reduce", "host");
        assert!(!is_unserved && names.iter().all(|chosen| chosen == name), "{names:?}");
    }
    assert_eq!(chosen("one_shot_mapped", "all_reduce", "host").0[1], "one_shot_mapped");
    for (name, collective, device) in
        [("ring", "alltoall", "host"), ("ring", "all_reduce", "cuda"), ("tree", "gather", "cuda")]
    {
        let (names, is_unserved) = chosen(name, collective, device);
        assert!(is_unserved && !names.is_empty() && !names.contains(&name.to_owned()), "{names:?}");
    }
    let Ended { code, err, .. } = plan("no_such", "all_reduce", "host");
    let told = err.contains("OXCCL_ALGORITHM=no_such (environment) is no algorithm");
    assert!(code == Some(1) && told, "{code:?} {err}");
}

#[test]
fn plans_are_those_of_the_device_that_a_communicator_would_be_on() {
    let plan = |device: &[&str]| {
        let arguments = [&["plan", "all_reduce", "-n", "4", "-b", "256K"], device].concat();
        let Ended { code, out, err } = oxccl(&[("OXCCL_DEVICE", "host")], &arguments);
        assert_eq!(code, Some(0), "{err}");
        out
    };
    assert_eq!(plan(&[]), plan(&["--device", "host"]));
    assert_ne!(plan(&[]), plan(&["--device", "cuda"]));
}

#[test]
fn plans_are_explained_and_variables_listed() {
    let Ended { code, out, .. } =
        oxccl(&[], &["plan", "all_reduce", "-n", "5", "-b", "2K", "--explain", "--program", "1"]);
    let is_shown = out.contains("any memory:") && out.contains("for any size +");
    assert!(code == Some(0) && is_shown, "{out}");
    assert!(out.contains(" is chosen for any memory: by the cost model it takes "), "{out}");
    assert!(out.contains(" By size it is one_shot, from "), "{out}");
    let explain = ["plan", "all_reduce", "-n", "4", "-b", "1M", "--device", "host", "--explain"];
    let Ended { out, .. } = oxccl(&[], &explain);
    let mapped = " is chosen for memory that all ranks map: by the cost model it takes ";
    let (_, after) = out.split_once(mapped).expect("the other memory is explained, too");
    let lines: Vec<&str> = after.lines().take(3).collect();
    assert!(lines[1].contains(" us for any size + ") && lines[2].contains("reads "), "{out}");
    let among_gpus = ["plan", "all", "-n", "4", "-b", "4M", "--device", "cuda", "--explain"];
    let Ended { code, out, err } = oxccl(&[], &among_gpus);
    assert!(code == Some(0) && out.contains(" is chosen for any memory"), "{out} {err}");
    let Ended { code, err, .. } = oxccl(&[], &["plan", "all_reduce", "-n", "65537"]);
    assert!(code == Some(1) && err.contains("65537 is not in 1..=65536"), "{err}");
    let Ended { code, out, .. } = oxccl(&[], &["env"]);
    assert!(code == Some(0) && out.contains("NCCL_SOCKET_IFNAME"), "{out}");
    let Ended { code, out, .. } =
        oxccl(&[("NCCL_SOCKET_FAMILY", "AF_INET")], &["env", "--json", "socket"]);
    let read = |line| serde_json::from_str::<serde_json::Value>(line).expect("an object");
    let all: Vec<_> = out.lines().map(read).collect();
    let of = |name: &str| all.iter().find(|variable| variable["name"] == name);
    assert!(code == Some(0) && all.len() > 2 && of("OXCCL_DEVICE").is_none(), "{out}");
    assert!(of("NCCL_SOCKET_FAMILY").is_some_and(|v| v["value"] == "AF_INET"), "{out}");
    let Ended { code, out, err } = oxccl(&[("OXCCL_DEVICE", "gpu")], &["env", "--changed"]);
    assert!(code == Some(2) && err.contains("OXCCL_DEVICE=gpu"), "{err}");
    assert!(out.contains("    Refused: OXCCL_DEVICE=gpu (environment) cannot be read"), "{out}");
}
