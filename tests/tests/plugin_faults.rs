//! Plugins that misbehave while they are used: functions that fail or do not return, null handles,
//! lies.

#[path = "common/plugin.rs"]
mod plugin;

use oxccl_tests::job::Job;
use oxccl_tests::network::apart;
use plugin::{Plugin, RANK, expect_success, tells_of_the_limit};
use std::path::Path;
use std::time::{Duration, Instant};

/// The communicator cannot be made, or its first operation fails.
#[test]
fn a_plugin_that_fails_is_named_with_its_function_and_all_ranks_end() {
    let Some(plugin) = Plugin::net(11, &[]) else { return };
    let named = |function: &str| format!("{function} of net plugin Fixture (");
    let functions = ["listen", "connect", "accept", "regMr", "isend", "irecv", "test"];
    for (function, at_first_use) in functions.into_iter().flat_map(|f| [(f, "0"), (f, "1")]) {
        let fault = format!("{function}=error");
        let connect = ("NCCL_RUNTIME_CONNECT", at_first_use);
        let variables = [("FIXTURE", &*fault), ("FIXTURE_RANK", "1"), connect];
        let ended = plugin.job(3, &["once"], &variables);
        for (rank, ended) in ended.iter().enumerate() {
            let output = &ended.output;
            assert!(ended.status.is_some_and(|s| s != 0), "{fault}, rank {rank}:\n{output}");
            assert!(output.contains(&named(function)), "{fault}, rank {rank}:\n{output}");
            assert!(output.contains("ncclSystemError"), "{fault}, rank {rank}:\n{output}");
        }
    }
}

/// All operations are complete by then; a listener ends before there are any.
#[test]
fn a_plugin_that_fails_at_an_end_spoils_nothing() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    for function in ["closeListen", "deregMr", "closeSend", "closeRecv", "finalize"] {
        let fault = format!("{function}=error");
        let ended = plugin.job(2, &["once"], &[("FIXTURE", &*fault), ("FIXTURE_RANK", "1")]);
        expect_success(&ended);
        let output = &ended[1].output;
        assert!(output.contains(&format!("{function} of net plugin Fixture (")), "{output}");
    }
}

/// In the middle of operations the communicator fails on all ranks, with the one cause.
#[test]
fn a_plugin_that_fails_or_hangs_during_operations_is_named_on_all_ranks() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    std::thread::scope(|scope| {
        for fault in ["isend=error", "irecv=error", "test=error", "isend=hang", "test=hang"] {
            let plugin = &plugin;
            scope.spawn(move || {
                let variables =
                    [("FIXTURE", fault), ("FIXTURE_RANK", "1"), ("FIXTURE_AFTER", "60")];
                let start = Instant::now();
                let ended = plugin.job(3, &["sequence", "7", "3000", "100000"], &variables);
                assert!(
                    start.elapsed() < Duration::from_secs(60),
                    "{fault}: {:?}",
                    start.elapsed()
                );
                let function = fault.split('=').next().unwrap_or_default();
                for (rank, ended) in ended.iter().enumerate() {
                    let output = &ended.output;
                    let text = format!("{function} of net plugin Fixture (");
                    assert!(ended.status.is_some_and(|s| s != 0), "{fault} {rank}: {output}");
                    assert!(output.contains(&text), "{fault} {rank}: {output}");
                    assert!(rank == 1 || output.contains("rank 1"), "{fault} {rank}: {output}");
                    // An error may be the peer's fault, a call that does not return is not.
                    let blames = ["rank 0", "rank 2"].iter().any(|peer| output.contains(peer));
                    let is_own = rank == 1 && fault.ends_with("hang");
                    assert!(!(is_own && blames), "{fault} {rank}: {output}");
                }
            });
        }
    });
}

#[test]
fn a_null_listener_lies_about_sizes_and_too_few_connections_are_errors() {
    let Some(plugin) = Plugin::net(10, &[]) else { return };
    for (fault, text) in [
        ("null listener", "it returned no listener"),
        ("lies", "1048576 bytes from rank"),
        ("negative size", "it says that -5 bytes have arrived"),
        ("one connection", "it returned ncclSystemError"),
    ] {
        let ended = plugin.job(2, &["once"], &[("FIXTURE", fault)]);
        assert!(ended.iter().all(|e| e.status.is_some_and(|s| s != 0)), "{fault}");
        assert!(ended.iter().any(|e| e.output.contains(text)), "{fault}: {}", ended[0].output);
    }
}

/// Rank 1 ends in the middle of operations, or resets a connection.
#[test]
fn a_rank_that_dies_and_a_connection_that_is_reset_below_a_plugin_are_told_with_the_host() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    std::thread::scope(|scope| {
        for fault in ["isend=exit", "irecv=exit", "test=exit", "resets"] {
            let plugin = &plugin;
            scope.spawn(move || {
                let variables =
                    [("FIXTURE", fault), ("FIXTURE_RANK", "1"), ("FIXTURE_AFTER", "60")];
                let start = Instant::now();
                let ended = plugin.job(3, &["sequence", "7", "3000", "100000"], &variables);
                let took = start.elapsed();
                assert!(took < Duration::from_secs(60), "{fault}: {took:?}");
                let dies = fault.ends_with("exit");
                for (rank, ended) in ended.iter().enumerate() {
                    let output = &ended.output;
                    if dies && rank == 1 {
                        assert_eq!(ended.status, Some(9), "{fault}: {output}");
                        continue;
                    }
                    assert_eq!(ended.status, Some(3), "{fault} {rank}: {output}");
                    let named = [" lost rank ", "rank 1", " on the host "];
                    let named = named.iter().all(|text| output.contains(text));
                    assert!(named, "{fault} {rank}: {output}");
                    let lost = output.contains("lost rank 1");
                    assert!(!dies || lost, "{fault} {rank}: {output}");
                }
            });
        }
    });
}

/// Between hosts with networks of their own, in the middle of operations.
#[test]
fn a_cut_cable_below_a_plugin_is_told_with_the_rank_and_its_host() {
    let test = "a_cut_cable_below_a_plugin_is_told_with_the_rank_and_its_host";
    apart(test, 2, |network| {
        let Some(plugin) = Plugin::net(12, &[]) else { return };
        let mut job = Job::start(Path::new(RANK), 2, Duration::from_secs(100), |rank, command| {
            network.enter(command, rank).args(["loop", "65536"]);
            command.env("NCCL_COMM_ID", format!("{}:4000", network.address(0)));
            command.env("NCCL_NET_PLUGIN", plugin.path()).env("NCCL_NET", "Fixture");
            command.env("FIXTURE_ADDRESS", network.address(rank).to_string());
        });
        job.wait_until_running(2);
        network.cut((0, None));
        let start = Instant::now();
        let ended = job.wait();
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        for (rank, ended) in (0u32..).zip(&ended) {
            let (other, output) = (1 - rank, &ended.output);
            let lost = format!("code 6 peer {other}: rank {rank} lost rank {other}");
            let host = format!(" on the host {}", network.address(other));
            assert!(output.contains(&lost) && output.contains(&host), "rank {rank}: {output}");
        }
    });
}

/// They come first where a plugin listens: one proves nothing, one goes away, one says nothing.
#[test]
fn strangers_where_a_plugin_listens_are_refused_and_the_job_is_done() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    std::thread::scope(|scope| {
        for (fault, why) in [
            ("stranger lies", Some("its first message does not prove that it knows the secret")),
            ("stranger leaves", Some(" of net plugin Fixture (")),
            ("stranger waits", None),
        ] {
            for at_first_use in ["0", "1"] {
                let plugin = &plugin;
                scope.spawn(move || {
                    let variables = [("FIXTURE", fault), ("NCCL_RUNTIME_CONNECT", at_first_use)];
                    let ended = plugin.job(3, &["sequence", "9", "60", "100000"], &variables);
                    expect_success(&ended);
                    for ended in &ended {
                        let refused = |why: &str| {
                            let is_it = |line: &str| {
                                line.contains("a data connection was refused: ")
                                    && line.contains(why)
                            };
                            ended.output.lines().any(is_it)
                        };
                        assert!(why.is_none_or(refused), "{fault}: {}", ended.output);
                    }
                });
            }
        }
    });
}

/// Null is a handle as any other one, as with NCCL, whose own sockets have no handles of memory;
/// only that such memory is not deregistered.
#[test]
fn null_handles_of_memory_and_null_contexts_are_handed_back() {
    for (kind, version, fault, end) in [
        ("net", 8, "null region", "ended\n"),
        ("net", 11, "null context", "ended\n"),
        ("net", 12, "null context", "ended\n"),
        ("tuner", 2, "null context", "asked\n"),
        ("tuner", 6, "null context", "asked\n"),
        ("profiler", 1, "null context", "ended\n"),
        ("profiler", 7, "null context", "ended\n"),
    ] {
        // Tuners and profilers are found in libraries of nets, too.
        let Some(plugin) = Plugin::compile(kind, version, &[]) else { return };
        let variables = [("FIXTURE", fault), ("NCCL_DEBUG_SUBSYS", "ALL")];
        let ended = plugin.job(2, &["sequence", "5", "60", "100000"], &variables);
        expect_success(&ended);
        let (output, report) = (&ended[0].output, plugin.take_report());
        let used = format!("{kind} plugin Fixture ({}, v{version})", plugin.path());
        assert!(output.contains(&used) && output.contains(" is used"), "{output}");
        assert!(!output.contains("wrong use"), "{kind} {version}: {output}");
        assert!(!report.contains("left") && report.matches(end).count() == 2, "{kind}: {report}");
    }
}

#[test]
fn what_never_connects_is_never_taken_or_never_completes_ends_with_the_limits() {
    let Some(plugin) = Plugin::net(7, &[]) else { return };
    let sequence = ["sequence", "8", "60", "100000"];
    std::thread::scope(|scope| {
        // Where a communicator is made, and in the middle of operations: there only a limit of
        // theirs ends them, as where a peer computes.
        for (fault, after, text) in [
            ("never connects", None, "net plugin Fixture ("),
            ("never completes", None, "net Fixture: "),
            ("null send", None, "net Fixture: "),
            ("null receive", None, "net Fixture: "),
            ("never completes", Some("100"), " over net plugin Fixture ("),
            ("null send", Some("10"), " over net plugin Fixture ("),
            ("null receive", Some("10"), " over net plugin Fixture ("),
        ] {
            let plugin = &plugin;
            scope.spawn(move || {
                let body = if after.is_some() { &sequence[..] } else { &["once"][..] };
                let limit = if after.is_some() { "OXCCL_TIMEOUT" } else { "OXCCL_INIT_TIMEOUT" };
                let after = ("FIXTURE_AFTER", after.unwrap_or("0"));
                let start = Instant::now();
                let ended = plugin.job(2, body, &[("FIXTURE", fault), after, (limit, "2s")]);
                assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
                for ended in &ended {
                    let output = &ended.output;
                    assert!(ended.status.is_some_and(|s| s != 0), "{fault}: {output}");
                    let of_operations = limit == "OXCCL_TIMEOUT";
                    // Of a message that a plugin never takes the limit of the rendezvous may tell
                    // first, which ends at the same time as that of the connection.
                    let never_taken = !of_operations && fault.starts_with("null ");
                    let late = never_taken && output.contains(" ranks did not come within 2 s");
                    let named = output.contains(text) && output.contains("rank ");
                    assert!(named || late, "{fault}: {output}");
                    assert!(!of_operations || tells_of_the_limit(output), "{fault}: {output}");
                }
            });
        }
    });
}

#[test]
fn a_function_that_does_not_return_is_named_and_the_process_ends() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    // All at once: each waits for ten seconds, or what is left to the making of a communicator.
    std::thread::scope(|scope| {
        let making = ["init", "devices", "getProperties", "listen", "connect", "accept"];
        let working = ["regMr", "isend", "irecv", "test"];
        let ending = ["deregMr", "closeSend", "closeRecv", "closeListen", "finalize"];
        for function in [&making[..], &working, &ending].concat() {
            let plugin = &plugin;
            scope.spawn(move || {
                let fault = format!("{function}=hang");
                let setup = ["init", "listen", "connect", "accept"].contains(&function);
                let limit = if setup { "10.5" } else { "10" };
                let variables = [
                    ("FIXTURE", fault.as_str()),
                    ("FIXTURE_RANK", "0"),
                    ("NCCL_NET", "Fixture"),
                    ("OXCCL_INIT_TIMEOUT", "14s"),
                ];
                let start = Instant::now();
                let ended = plugin.job(2, &["once"], &variables);
                let took = start.elapsed();
                assert!(took < Duration::from_secs(60), "{fault}: {took:?}");
                assert!(ended.iter().all(|e| e.status.is_some()), "{fault}");
                let (output, text) = (&ended[0].output, "has not returned for ");
                let named = output.contains(&format!("{function} of net plugin Fixture ("));
                assert!(named && output.contains(text), "{fault}: {output}");
                // Where something is ended, it is enough that the log tells and the process ends.
                if !ending.contains(&function) {
                    let in_time = output.contains(&format!("{text}{limit} s"));
                    assert!(in_time && ended[0].status != Some(0), "{fault}: {output}");
                    assert!(ended[1].status != Some(0), "{fault}: {}", ended[1].output);
                }
            });
        }
    });
}

/// However long the function may take: it is left behind. The rank checks the time.
#[test]
fn an_abort_waits_a_second_at_most_for_a_function_that_does_not_return() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    // What holds an all-reduce up, and what only the end of its connections calls.
    let working = ["listen", "connect", "accept", "closeListen", "regMr", "isend", "irecv", "test"];
    let ending = ["deregMr", "closeSend", "closeRecv", "finalize"];
    std::thread::scope(|scope| {
        for function in [&working[..], &ending].concat() {
            let plugin = &plugin;
            scope.spawn(move || {
                let fault = format!("{function}=hang");
                let connect = ("NCCL_RUNTIME_CONNECT", "1");
                let variables = [("FIXTURE", fault.as_str()), ("FIXTURE_RANK", "1"), connect];
                let is_end = ending.contains(&function);
                let how = if is_end { "after" } else { "within" };
                let ended = plugin.job(2, &["abandon", how], &variables);
                expect_success(&ended);
                let output = &ended[1].output;
                let named = output.contains(&format!("{function} of net plugin Fixture ("))
                    && output.contains("has not returned for");
                // The thread that makes connections is left behind with what it waits for.
                assert!(named || !is_end, "{fault}: {output}");
            });
        }
    });
}

/// The thread that makes the communicator is left behind. The ranks check the time.
#[test]
fn an_abort_of_what_a_plugin_does_not_let_be_made_takes_a_second_at_most() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    std::thread::scope(|scope| {
        for function in ["init", "listen", "connect", "accept"] {
            let plugin = &plugin;
            scope.spawn(move || {
                let fault = format!("{function}=hang");
                let variables = [("FIXTURE", fault.as_str()), ("FIXTURE_RANK", "1")];
                let start = Instant::now();
                let ended = plugin.job(2, &["unmade"], &variables);
                assert!(start.elapsed() < Duration::from_secs(30), "{fault}");
                expect_success(&ended);
            });
        }
    });
}

/// Whichever thread is in it: that one is left behind, and the ranks end.
#[test]
fn a_profiler_that_does_not_return_from_an_event_is_named_on_all_ranks() {
    let Some(plugin) = Plugin::compile("profiler", 7, &[]) else { return };
    let functions = ["startEvent", "stopEvent", "recordEventState"];
    std::thread::scope(|scope| {
        let ends = [("failure", "3"), ("abort", "3"), ("failure", "1"), ("abort", "1")];
        for (function, (how, per_host)) in functions.into_iter().flat_map(|f| ends.map(|e| (f, e)))
        {
            let plugin = &plugin;
            scope.spawn(move || {
                let fault = format!("{function}=hang");
                let of_profiler = ("NCCL_PROFILER_PLUGIN", plugin.path());
                let (rank, after) = (("FIXTURE_RANK", "1"), ("FIXTURE_AFTER", "60"));
                let start = Instant::now();
                let hosts = ("OXCCL_RANKS_PER_NODE", per_host);
                let variables = [of_profiler, ("FIXTURE", fault.as_str()), rank, after, hosts];
                let ended = plugin.run(3, &["beside", how], &variables);
                assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
                if how == "abort" {
                    // The rank checks the time.
                    return expect_success(&ended);
                }
                let text = format!("{function} of profiler plugin Fixture ({}, v7)", plugin.path());
                for (rank, ended) in ended.iter().enumerate() {
                    let output = &ended.output;
                    assert!(ended.status.is_some_and(|s| s != 0), "{fault} {rank}: {output}");
                    let named = |line: &str| {
                        line.contains(&text) && line.contains("has not returned for 10 s")
                    };
                    assert!(output.lines().any(named), "{fault} {rank}: {output}");
                    assert!(rank == 1 || output.contains("rank 1"), "{fault} {rank}: {output}");
                }
            });
        }
    });
}

/// The end of a communicator waits for them for a second at most, and all work is done.
#[test]
fn a_tuner_or_a_profiler_that_does_not_end_is_named_and_left_behind() {
    for (kind, version) in [("tuner", 6), ("profiler", 7)] {
        let Some(plugin) = Plugin::compile(kind, version, &[]) else { return };
        let variable = format!("NCCL_{}_PLUGIN", kind.to_uppercase());
        let variables = [(variable.as_str(), plugin.path()), ("FIXTURE", "finalize=hang")];
        let ended = plugin.run(2, &["once"], &variables);
        expect_success(&ended);
        let text = format!("finalize of {kind} plugin Fixture ({}, v{version})", plugin.path());
        for ended in &ended {
            let named = |line: &str| line.contains(&text) && line.contains("has not returned for");
            assert!(ended.output.lines().any(named), "{}", ended.output);
        }
    }
}
