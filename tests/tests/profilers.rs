//! Profiler plugins: loaded as users load them, of every version.

#[path = "common/plugin.rs"]
mod plugin;

use oxccl_tests::c::{self, C11, Program};
use oxccl_tests::job::Ended;
use plugin::{MANIFEST, Plugin, expect_success};
use std::process::Command;

/// The kinds of events that each version reports of calls: group, collective, transfer, channel,
/// group of calls, call, call of a transfer, launch.
const PROFILED: [(u32, &[u32]); 7] = [
    (1, &[0, 1, 2]),
    (2, &[0, 1, 2]),
    (3, &[0, 1, 2, 6]),
    (4, &[0, 1, 2, 6]),
    (5, &[0, 1, 2, 6, 8, 9, 10, 11]),
    (6, &[0, 1, 2, 6, 8, 9, 10, 11]),
    (7, &[0, 1, 2, 6, 8, 9, 10, 11]),
];

#[test]
fn every_version_of_profilers_is_told_of_calls_and_operations_and_their_ends() {
    for (version, kinds) in PROFILED {
        let Some(plugin) = Plugin::compile("profiler", version, &[]) else { return };
        let of_profiler = ("NCCL_PROFILER_PLUGIN", plugin.path());
        let variables = [of_profiler, ("NCCL_DEBUG_SUBSYS", "PROFILE")];
        // Collectives, sends and receives, alone and in groups.
        let ended = plugin.run(2, &["sequence", "10", "150", "50000"], &variables);
        expect_success(&ended);
        for ended in &ended {
            let text = format!("profiler plugin Fixture ({}, v{version}) is used", plugin.path());
            assert!(ended.output.contains(&text), "{}", ended.output);
            assert!(!ended.output.contains("wrong use"), "version {version}: {}", ended.output);
        }
        let of_rank: String = kinds.iter().map(|kind| format!("kind {kind}\n")).collect();
        // Some are groups that the rank has made.
        let deep = if version >= 5 { "deep\n" } else { "" };
        let expected = format!("{of_rank}{deep}ended\n").repeat(2);
        assert_eq!(plugin.take_report(), expected, "version {version}");
    }
}

/// Between hosts there are messages, too, over TCP and over a plugin.
#[test]
fn every_version_of_profilers_is_told_of_messages_between_hosts() {
    let Some(net) = Plugin::net(12, &[]) else { return };
    for (version, kinds) in PROFILED {
        let Some(plugin) = Plugin::compile("profiler", version, &[]) else { return };
        for net in ["none", net.path()] {
            let of_profiler = ("NCCL_PROFILER_PLUGIN", plugin.path());
            let hosts = ("OXCCL_RANKS_PER_NODE", "1");
            let variables = [of_profiler, ("NCCL_NET_PLUGIN", net), hosts];
            let ended = plugin.run(3, &["sequence", "10", "100", "200000"], &variables);
            expect_success(&ended);
            for Ended { output, .. } in &ended {
                assert!(!output.contains("wrong use"), "version {version}, {net}: {output}");
            }
            let report = plugin.take_report();
            assert!(!report.contains("left"), "version {version}, {net}: {report}");
            for kind in kinds.iter().chain(&[3, 4]) {
                let ranks = report.matches(&format!("kind {kind}\n")).count();
                assert_eq!(ranks, 3, "version {version}, {net}, kind {kind}: {report}");
            }
        }
    }
}

/// The net plugin tells of each message, also of those that it refuses first. The profiler checks
/// that this belongs to the message's own step, by its lane, its number and its size.
#[test]
fn net_plugins_tell_of_each_message_as_a_part_of_its_step() {
    let Some(profiler) = Plugin::compile("profiler", 7, &[]) else { return };
    for (version, fault) in [(10, "none"), (11, "none"), (11, "reluctant"), (12, "null region")] {
        let Some(net) = Plugin::net(version, &[]) else { return };
        let variables = [
            ("NCCL_PROFILER_PLUGIN", profiler.path()),
            ("NCCL_NET_PLUGIN", net.path()),
            ("OXCCL_RANKS_PER_NODE", "1"),
            ("FIXTURE", fault),
        ];
        let ended = profiler.run(3, &["sequence", "10", "100", "200000"], &variables);
        expect_success(&ended);
        for Ended { output, .. } in &ended {
            assert!(!output.contains("wrong use"), "version {version}, {fault}: {output}");
        }
        let report = profiler.take_report();
        let kinds = report.matches("kind 7\n").count();
        assert!(kinds == 3 && !report.contains("left"), "version {version}, {fault}: {report}");
        // Both ranks of each direction tell the same.
        let lanes: Vec<_> = report.lines().filter(|line| line.starts_with("lane ")).collect();
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                let between = format!("lane 0 of {from} to {to}: ");
                let of_both = lanes.iter().filter(|line| line.starts_with(&between));
                assert_eq!(of_both.count(), 2, "version {version}, {fault}: {report}");
            }
        }
        let is_pair = |line: &&str| lanes.iter().filter(|other| *other == line).count() == 2;
        assert!(lanes.iter().all(is_pair), "version {version}, {fault}: {report}");
    }
}

/// It is called by the thread that calls the net plugin, or by the plugin itself: nobody blames the
/// net, and an abort takes no longer, which the rank checks.
#[test]
fn a_profiler_that_does_not_return_below_a_net_plugin_is_named_on_all_ranks() {
    let Some(profiler) = Plugin::compile("profiler", 7, &[]) else { return };
    let Some(net) = Plugin::net(12, &[]) else { return };
    let functions = ["startEvent", "stopEvent", "recordEventState"];
    std::thread::scope(|scope| {
        let cases = functions.into_iter().flat_map(|f| ["failure", "abort"].map(|how| (f, how)));
        for (function, how) in cases {
            let (profiler, net) = (&profiler, &net);
            scope.spawn(move || {
                let fault = format!("{function}=hang");
                let variables = [
                    ("NCCL_PROFILER_PLUGIN", profiler.path()),
                    ("NCCL_NET_PLUGIN", net.path()),
                    ("OXCCL_RANKS_PER_NODE", "1"),
                    ("FIXTURE", fault.as_str()),
                    ("FIXTURE_RANK", "1"),
                    ("FIXTURE_AFTER", "61"),
                    // Messages and their parts alone, but for what contains them.
                    ("FIXTURE_MASK", "128"),
                ];
                let ended = profiler.run(3, &["beside", how], &variables);
                if how == "abort" {
                    return expect_success(&ended);
                }
                let text = format!("{function} of profiler plugin Fixture (");
                for (rank, Ended { status, output }) in ended.iter().enumerate() {
                    assert!(status.is_some_and(|s| s != 0), "{fault} {rank}: {output}");
                    let named = |line: &str| {
                        line.contains(&text) && line.contains("has not returned for 10 s")
                    };
                    assert!(output.lines().any(named), "{fault} {rank}: {output}");
                    let blames = output.contains(" of net plugin Fixture (");
                    assert!(!blames, "{fault} {rank}: {output}");
                }
            });
        }
    });
}

#[test]
fn a_profiler_is_told_of_what_it_asks_for_with_all_that_contains_it() {
    let Some(plugin) = Plugin::compile("profiler", 7, &[]) else { return };
    let Some(net) = Plugin::net(11, &[]) else { return };
    // The kinds that are asked for, and those that come, on one host and on two.
    for (mask, per_node, net, kinds) in [
        ("0", "2", "none", &[][..]),
        ("256", "2", "none", &[8]),
        ("64", "2", "none", &[0, 1, 2, 6, 8, 9, 10]),
        // Parts of channels, of which there are none.
        ("32768", "2", "none", &[0, 1, 2, 6, 8, 9, 10]),
        ("8", "1", "none", &[0, 1, 2, 3, 8, 9, 10]),
        ("16", "1", "none", &[0, 1, 2, 3, 4, 8, 9, 10]),
        ("64", "1", "none", &[0, 1, 2, 6, 8, 9, 10]),
        ("8", "1", net.path(), &[0, 1, 2, 3, 8, 9, 10]),
        ("16", "1", net.path(), &[0, 1, 2, 3, 4, 8, 9, 10]),
        ("128", "1", net.path(), &[0, 1, 2, 3, 4, 7, 8, 9, 10]),
        ("64", "1", net.path(), &[0, 1, 2, 6, 8, 9, 10]),
    ] {
        let of_profiler = ("NCCL_PROFILER_PLUGIN", plugin.path());
        let hosts = ("OXCCL_RANKS_PER_NODE", per_node);
        let variables = [of_profiler, hosts, ("FIXTURE_MASK", mask), ("NCCL_NET_PLUGIN", net)];
        let ended = plugin.run(2, &["sequence", "11", "60", "5000"], &variables);
        expect_success(&ended);
        assert!(!ended[0].output.contains("wrong use"), "{mask}: {}", ended[0].output);
        let of_rank: String = kinds.iter().map(|kind| format!("kind {kind}\n")).collect();
        let report = plugin.take_report();
        // The net plugin tells of its end, too.
        let told = report.split("ended\n").filter(|told| told.starts_with("kind "));
        let kinds = |told: &str| -> String {
            told.split_inclusive('\n').filter(|line| line.starts_with("kind ")).collect()
        };
        let ranks = if of_rank.is_empty() { 0 } else { 2 };
        assert_eq!(told.map(kinds).collect::<Vec<_>>(), vec![of_rank; ranks], "{mask}: {report}");
        assert!(!report.contains("left"), "{mask}: {report}");
    }
}

#[test]
fn a_profiler_and_a_tuner_serve_several_communicators_of_a_process() {
    let Some(profiler) = Plugin::compile("profiler", 6, &[]) else { return };
    let Some(tuner) = Plugin::compile("tuner", 5, &[]) else { return };
    let both = [("NCCL_PROFILER_PLUGIN", profiler.path()), ("NCCL_TUNER_PLUGIN", tuner.path())];
    let ended = profiler.run(2, &["crowd", "3"], &both);
    expect_success(&ended);
    assert!(!ended.iter().any(|e| e.output.contains("wrong use")), "{}", ended[0].output);
    let report = profiler.take_report();
    assert!(report.contains("kind 1\n") && !report.contains("left"), "{report}");
    assert!(report.contains("asked\n") && !report.contains("not asked"), "{report}");
}

/// All functions of C in groups, on several streams and in graphs, by ranks that are threads.
#[test]
fn programs_in_c_are_profiled_and_tuned_also_where_they_capture() {
    let Some(program) = Program::build("collectives.c", C11) else { return };
    let Some(profiler) = Plugin::compile("profiler", 7, &[]) else { return };
    let Some(tuner) = Plugin::compile("tuner", 6, &[]) else { return };
    // On one host, and on as many as there are ranks.
    for (per_host, more) in [("", &[][..]), ("1", &["kind 3\n", "kind 4\n"])] {
        let mut command = Command::new(program.path());
        command
            .env("NCCL_PROFILER_PLUGIN", profiler.path())
            .env("NCCL_TUNER_PLUGIN", tuner.path())
            .env("OXCCL_RANKS_PER_NODE", per_host)
            .env("FIXTURE_REPORT", profiler.report());
        let output = c::expect_success(&mut command, "");
        assert!(!output.contains("wrong use"), "{output}");
        let report = profiler.take_report();
        let texts = ["kind 6\n", "captured\n", "deep\n", " replays\n"];
        let told = texts.iter().chain(more).all(|text| report.contains(text));
        assert!(told && !report.contains("left") && !report.contains("not asked"), "{report}");
    }
}

/// Calls that are not launched, communicators that end within a group, and operations that wait in
/// a stream while their communicator is aborted.
#[test]
fn events_end_in_order_or_not_at_all_but_never_after_their_profiler() {
    let Some(program) = Program::build("profiled.c", C11) else { return };
    for version in [4, 7] {
        let Some(profiler) = Plugin::compile("profiler", version, &[]) else { return };
        let mut command = Command::new(program.path());
        command.env("NCCL_PROFILER_PLUGIN", profiler.path());
        let output = c::expect_success(&mut command, "all ended");
        assert!(!output.contains("wrong use"), "version {version}: {output}");
        // Version 7 is the first one with tags.
        for what in ["call with tag 71\n", "operation with tag 71\n", "call with tag 72\n"] {
            assert_eq!(output.matches(what).count(), usize::from(version == 7), "{what}{output}");
        }
        assert_eq!(
            output.matches("with tag").count(),
            if version == 7 { 4 } else { 0 },
            "{output}"
        );
    }
}

/// Of two ranks one comes late, to a collective and to a message.
#[test]
fn events_of_operations_end_only_once_the_last_rank_has_come() {
    let include = format!("-I{MANIFEST}/../plugins/include");
    let flags = [C11.1, &[include.as_str(), "-rdynamic"]].concat();
    let Some(program) = Program::build("late.c", (C11.0, &flags)) else { return };
    let mut command = Command::new(program.path());
    command.env("NCCL_PROFILER_PLUGIN", "STATIC_PLUGIN");
    c::expect_success(&mut command, " events, 0 ended early");
}

/// Nothing depends on a profiler: calls go on, and the log says what is missing.
#[test]
fn a_profiler_that_fails_is_named_and_calls_go_on() {
    let Some(plugin) = Plugin::compile("profiler", 5, &[]) else { return };
    std::thread::scope(|scope| {
        for (fault, text) in [
            ("init=error", "init of profiler plugin Fixture"),
            ("init=hang", "it has not returned for 10 s"),
            ("startEvent=error", "startEvent of profiler plugin Fixture"),
            ("stopEvent=error", "stopEvent of profiler plugin Fixture"),
            ("recordEventState=error", "recordEventState of profiler plugin Fixture"),
            ("finalize=error", "finalize of profiler plugin Fixture"),
            ("no handles", "is used"),
        ] {
            let plugin = &plugin;
            scope.spawn(move || {
                let variables = [
                    ("NCCL_PROFILER_PLUGIN", plugin.path()),
                    ("NCCL_DEBUG_SUBSYS", "PROFILE"),
                    ("FIXTURE", fault),
                ];
                let ended = plugin.run(2, &["sequence", "12", "30", "5000"], &variables);
                expect_success(&ended);
                let output = &ended[0].output;
                assert!(
                    output.contains(text) && !output.contains("wrong use"),
                    "{fault}: {output}"
                );
            });
        }
    });
}

/// In the newest version, and in older ones where they are the newest.
#[test]
fn our_profiler_writes_a_trace_and_a_page() {
    let installed = "libnccl-profiler-oxccl-trace.so";
    let plugin = Plugin::own("liboxccl_profiler_trace.so", installed);
    for version in [7, 6, 5] {
        expect_trace_and_page(&plugin, version);
        plugin.hide(&format!("ncclProfiler_v{version}"));
    }
}

/// Each process writes a trace with what it did, and a page.
fn expect_trace_and_page(plugin: &Plugin, version: u32) {
    let folder = plugin.folder.join(format!("v{version}"));
    std::fs::create_dir(&folder).expect("a folder");
    let beginning = folder.join("trace");
    let variables = [
        ("NCCL_PROFILER_PLUGIN", "oxccl-trace"),
        ("LD_LIBRARY_PATH", plugin.folder.to_str().expect("a plain path")),
        ("NCCL_PROFILE_DUMP_FILE", beginning.to_str().expect("a plain path")),
        ("NCCL_DEBUG_SUBSYS", "PROFILE"),
    ];
    let ended = plugin.run(2, &["sequence", "8", "60", "100000"], &variables);
    expect_success(&ended);
    let used = format!(", v{version}) is used");
    assert!(ended[0].output.contains(&used), "{used}: {}", ended[0].output);
    let files = |end: &str| {
        let entries = std::fs::read_dir(&folder).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|e| e == end)).collect::<Vec<_>>()
    };
    let (traces, pages) = (files("json"), files("html"));
    assert_eq!((traces.len(), pages.len()), (2, 2));
    let mut ranks = Vec::new();
    for trace in traces {
        let text = std::fs::read_to_string(trace).expect("a trace");
        let trace: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        let count = |phase: &str, name: &str| {
            let named = |e: &&serde_json::Value| name.is_empty() || e["name"] == name;
            events.iter().filter(|e| e["ph"] == phase).filter(named).count()
        };
        // All begins have ends; a call is in a group and launches an operation.
        assert_eq!(count("b", ""), count("e", ""));
        assert!(count("b", "AllReduce") > 0 && count("X", "AllReduce") > 0, "{text}");
        assert_eq!(count("b", "channel 0"), count("b", "") / 2);
        assert!(count("X", "group") > 0 && count("X", "launch") > 0, "{text}");
        let begins: Vec<_> = events.iter().filter(|e| e["ph"] == "b").collect();
        let timed = |e: &&serde_json::Value| e["ts"].as_f64().is_some_and(|ts| ts > 0.0);
        assert!(begins.iter().all(timed), "{text}");
        let rank = |e: &serde_json::Value| e["args"]["name"].as_str().map(str::to_owned);
        ranks.extend(events.iter().filter(|e| e["name"] == "process_name").filter_map(rank));
    }
    ranks.sort();
    assert!(ranks[0].starts_with("rank 0 (") && ranks[1].starts_with("rank 1 ("), "{ranks:?}");
    let page = std::fs::read_to_string(&pages[0]).expect("a page");
    assert!(page.contains("<td>AllReduce<td>") && page.matches("<svg").count() == 2);
}
