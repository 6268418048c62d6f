//! Networks that reduce: plugins of every version, well behaved and not.

#[path = "common/plugin.rs"]
mod plugin;

use oxccl_tests::job::Ended;
use plugin::{Plugin, expect_success, tells_of_the_limit};
use std::time::{Duration, Instant};

const ENABLED: (&str, &str) = ("NCCL_COLLNET_ENABLE", "1");

/// Compiles the network of a version; `None` without a C compiler.
fn network(version: u32) -> Option<Plugin> {
    Plugin::compile("collnet", version, &[])
}

/// Returns how many reductions of each rank were not staged, and how many there were, from a report
/// that says that nothing is left. Ranks without the former have two zeros.
fn reduced(report: &str) -> Vec<(u32, u32)> {
    let numbers = |line: &str| {
        let counts = line.strip_prefix("reduced, ").and_then(|rest| rest.strip_suffix(" unstaged"));
        let Some((some, all)) = counts.and_then(|counts| counts.split_once(" of ")) else {
            assert_eq!(line, "reduced", "{report}");
            return (0, 0);
        };
        (some.parse().expect("a number"), all.parse().expect("a number"))
    };
    report.lines().map(numbers).collect()
}

#[test]
fn every_version_reduces_whatever_it_supports_and_is_closed() {
    for version in 8..=12 {
        let Some(plugin) = network(version) else { return };
        for (nranks, per_node, algorithm, fault) in [
            (2, "1", "switch", ""),
            (3, "1", "switch", "sums only"),
            (4, "2", "rails_switch", "reluctant"),
        ] {
            let variables = [
                ENABLED,
                ("OXCCL_RANKS_PER_NODE", per_node),
                ("OXCCL_ALGORITHM", algorithm),
                ("FIXTURE", fault),
                ("NCCL_RUNTIME_CONNECT", ["0", "1"][version as usize % 2]),
            ];
            let ended = plugin.job(nranks, &["sequence", "5", "150", "200000"], &variables);
            expect_success(&ended);
            let used = format!("collnet-v{version}.so, v{version}) reduces between hosts");
            for ended in &ended {
                let output = &ended.output;
                assert!(output.contains("collnet plugin Switch (") && output.contains(&used));
                assert!(output.contains(&format!(": {algorithm}, edges")), "{output}");
                assert!(!output.contains("wrong use"), "{output}");
            }
            let reduced = reduced(&plugin.take_report());
            assert_eq!(reduced.len(), nranks as usize, "version {version}");
        }
    }
}

#[test]
fn switches_reduce_only_where_that_is_asked_for_and_there_are_hosts_enough() {
    let Some(plugin) = network(12) else { return };
    let ended = plugin.job(4, &["sequence", "8", "60", "200000"], &[ENABLED]);
    expect_success(&ended);
    // By its cost, for some sizes.
    assert!(ended[0].output.contains(": switch, edges"), "{}", ended[0].output);
    assert_eq!(reduced(&plugin.take_report()).len(), 4);
    for (variables, text) in [
        (vec![], None),
        (vec![ENABLED, ("OXCCL_RANKS_PER_NODE", "9")], None),
        (
            vec![ENABLED, ("NCCL_COLLNET_NODE_THRESHOLD", "3")],
            Some("collnetEnable has no effect: rank 0: NCCL_COLLNET_NODE_THRESHOLD asks for 3"),
        ),
    ] {
        let ended = plugin.job(2, &["once"], &variables);
        expect_success(&ended);
        let output = &ended[0].output;
        assert!(text.is_none_or(|text| output.contains(text)), "{output}");
        assert_eq!(plugin.take_report().replace("nothing reduced\n", ""), "", "{output}");
    }
}

#[test]
fn a_network_that_cannot_begin_is_gone_without_on_all_ranks_and_the_reason_is_told() {
    let Some(plugin) = network(12) else { return };
    for (fault, reason) in [
        ("no devices", "it has no devices"),
        ("negative devices", "it says that there are -1"),
        ("GPUs only", "does not take memory of the host"),
        ("small", "reduces 1000 bytes"),
        ("init=error", "init of collnet plugin Switch"),
        ("devices=error", "devices of collnet plugin Switch"),
        ("getProperties=error", "getProperties of collnet plugin Switch"),
        ("listen=error", "listen of collnet plugin Switch"),
        ("null listener", "it returned no listener"),
        ("reduceSupport=error", "reduceSupport of collnet plugin Switch"),
        ("connect=error", "connect of collnet plugin Switch"),
        ("null group", "it returned no group"),
        ("regMr=error", "regMr of collnet plugin Switch"),
    ] {
        let variables = [ENABLED, ("FIXTURE", fault), ("FIXTURE_RANK", "1")];
        let ended = plugin.job(2, &["once"], &variables);
        expect_success(&ended);
        let (output, report) = (&ended[0].output, plugin.take_report());
        let told = output.contains("collnetEnable has no effect: ") && output.contains("rank 1: ");
        assert!(told && output.contains(reason), "{fault}: {output}");
        assert!(!ended.iter().any(|e| e.output.contains("wrong use")), "{output}");
        assert_eq!(report, "nothing reduced\n".repeat(2), "{fault}");
    }
}

#[test]
fn different_networks_are_an_error_or_gone_without() {
    let Some(plugin) = network(11) else { return };
    let different = [ENABLED, ("FIXTURE", "other name"), ("FIXTURE_RANK", "1")];
    let text = "rank 0 reduces by the network Switch (v11), rank 1 by Other (v11)";
    for ended in plugin.job(2, &["once"], &different) {
        assert!(ended.status != Some(0) && ended.output.contains(text), "{}", ended.output);
    }
    let ignored = [&different[..], &[("NCCL_IGNORE_COLLNET_MISMATCH", "1")]].concat();
    let ended = plugin.job(2, &["once"], &ignored);
    expect_success(&ended);
    assert!(ended[0].output.contains(text), "{}", ended[0].output);
}

#[test]
fn a_network_that_fails_or_hangs_during_operations_is_named_and_all_ranks_end() {
    let Some(plugin) = network(12) else { return };
    let faults = ["iallreduce=error", "test=error", "iallreduce=hang", "test=hang"];
    std::thread::scope(|scope| {
        for fault in faults {
            let plugin = &plugin;
            scope.spawn(move || {
                let variables = [
                    ENABLED,
                    ("OXCCL_ALGORITHM", "switch"),
                    ("FIXTURE", fault),
                    ("FIXTURE_RANK", "1"),
                    ("FIXTURE_AFTER", "40"),
                ];
                let start = Instant::now();
                let ended = plugin.job(3, &["sequence", "7", "3000", "100000"], &variables);
                assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
                let function = fault.split('=').next().unwrap_or_default();
                for (rank, ended) in ended.iter().enumerate() {
                    let output = &ended.output;
                    let text = format!("{function} of collnet plugin Switch (");
                    assert!(ended.status.is_some_and(|s| s != 0), "{fault} {rank}: {output}");
                    assert!(output.contains(&text), "{fault} {rank}: {output}");
                    assert!(rank == 1 || output.contains("rank 1"), "{fault} {rank}: {output}");
                    let blames = ["rank 0", "rank 2"].iter().any(|peer| output.contains(peer));
                    assert!(rank != 1 || !blames, "{fault} {rank}: {output}");
                }
            });
        }
    });
}

#[test]
fn reductions_that_are_never_taken_or_never_completed_end_with_the_limit() {
    let Some(plugin) = network(12) else { return };
    for fault in ["null request", "never completes"] {
        let variables = [
            ENABLED,
            ("OXCCL_ALGORITHM", "switch"),
            ("OXCCL_TIMEOUT", "2s"),
            ("FIXTURE", fault),
            ("FIXTURE_AFTER", "40"),
        ];
        let start = Instant::now();
        let ended = plugin.job(2, &["sequence", "7", "3000", "100000"], &variables);
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        for ended in &ended {
            let output = &ended.output;
            assert!(ended.status.is_some_and(|s| s != 0), "{fault}: {output}");
            assert!(tells_of_the_limit(output), "{fault}: {output}");
        }
    }
}

/// All reductions are complete when something ends but for listeners, and memory without a handle
/// is as good as any other.
#[test]
fn a_network_that_fails_at_an_end_or_has_no_handles_of_memory_spoils_nothing() {
    let Some(plugin) = network(12) else { return };
    for fault in ["closeListen", "deregMr", "closeColl", "finalize", "null region"] {
        let is_error = fault != "null region";
        let name = if is_error { format!("{fault}=error") } else { fault.to_owned() };
        let variables = [
            ENABLED,
            ("OXCCL_ALGORITHM", "switch"),
            ("FIXTURE", name.as_str()),
            ("FIXTURE_RANK", "1"),
        ];
        let ended = plugin.job(2, &["once"], &variables);
        expect_success(&ended);
        let (output, text) = (&ended[1].output, format!("{fault} of collnet plugin Switch ("));
        assert_eq!(output.contains(&text), is_error, "{fault}: {output}");
        assert!(!output.contains("wrong use"), "{fault}: {output}");
        let report = plugin.take_report();
        let reduced = report.lines().filter(|line| *line == "reduced").count();
        assert_eq!(reduced, 2, "{fault}: {report}");
    }
}

/// What blocks does so before there are operations, and for a limited time.
#[test]
fn ranks_that_hang_or_die_while_a_network_begins_are_told_or_gone_without() {
    let Some(plugin) = network(12) else { return };
    let plugin = &plugin;
    let job = |fault: &'static str, limit: &'static str| {
        let limit = ("OXCCL_INIT_TIMEOUT", limit);
        let variables = [ENABLED, limit, ("FIXTURE", fault), ("FIXTURE_RANK", "1")];
        plugin.job(3, &["once"], &variables)
    };
    std::thread::scope(|scope| {
        // What begins or connects it has most of the time of the making, whatever other calls have.
        for (fault, limit) in [
            ("devices=hang", "30"),
            ("getProperties=hang", "30"),
            ("reduceSupport=hang", "30"),
            ("regMr=hang", "30"),
            ("closeListen=hang", "30"),
            ("init=hang", "9"),
            ("listen=hang", "9"),
            ("connect=hang", "12"),
        ] {
            scope.spawn(move || {
                let ended = job(fault, limit);
                expect_success(&ended);
                let (function, output) = (fault.trim_end_matches("=hang"), &ended[0].output);
                let text = format!("{function} of collnet plugin Switch");
                assert!(output.contains(&text), "{output}");
                assert!(output.contains("it has not returned for"), "{output}");
            });
        }
        scope.spawn(|| {
            for (rank, ended) in job("connect=exit", "30").iter().enumerate() {
                let named = ended.output.contains("rank 1");
                assert!(ended.status != Some(0) && (rank == 1 || named), "{}", ended.output);
            }
        });
    });
}

/// What ends a network, and what holds a reduction up while a rank aborts, which checks the time.
#[test]
fn neither_an_end_nor_an_abort_waits_long_for_a_function_that_does_not_return() {
    let Some(plugin) = network(12) else { return };
    let (working, ending) = (["iallreduce", "test"], ["deregMr", "closeColl", "finalize"]);
    std::thread::scope(|scope| {
        let within = working.map(|function| (function, &["abandon", "within"][..]));
        let after = ending.map(|function| (function, &["abandon", "after"][..]));
        let destroyed = ending.map(|function| (function, &["once"][..]));
        for (function, body) in [&within[..], &after, &destroyed].concat() {
            let plugin = &plugin;
            scope.spawn(move || {
                let fault = format!("{function}=hang");
                let mut variables =
                    vec![ENABLED, ("OXCCL_ALGORITHM", "switch"), ("FIXTURE", fault.as_str())];
                // A reduction may be complete at one rank before the other one's test of it.
                if !body.contains(&"within") {
                    variables.push(("FIXTURE_RANK", "1"));
                }
                let start = Instant::now();
                let ended = plugin.job(2, body, &variables);
                assert!(start.elapsed() < Duration::from_secs(60), "{fault}");
                expect_success(&ended);
                let (output, text) = (&ended[1].output, format!("{function} of collnet plugin"));
                let named = |line: &str| line.contains(&text) && line.contains("has not returned");
                assert!(output.lines().any(named), "{fault} {body:?}: {output}");
            });
        }
    });
}

/// What the network shares tells nothing of it.
#[test]
fn a_rank_that_dies_is_named_by_the_others() {
    let Some(plugin) = network(12) else { return };
    let variables = [
        ENABLED,
        ("OXCCL_ALGORITHM", "switch"),
        ("FIXTURE", "iallreduce=exit"),
        ("FIXTURE_RANK", "1"),
        ("FIXTURE_AFTER", "20"),
    ];
    let start = Instant::now();
    let ended = plugin.job(3, &["sequence", "7", "3000", "100000"], &variables);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    for (rank, ended) in ended.iter().enumerate() {
        let named = ended.output.contains("lost rank 1");
        assert!(ended.status != Some(0) && (rank == 1 || named), "{rank}: {}", ended.output);
    }
}

/// Also those of ranks that end without the call.
#[test]
fn differing_calls_are_told_where_switches_reduce() {
    let Some(plugin) = network(12) else { return };
    let plugin = &plugin;
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                for other in (1..16).skip(part).step_by(4) {
                    let variables = [ENABLED, ("OXCCL_ALGORITHM", "switch")];
                    // In a longer rail, not all ranks are next to the one that differs.
                    let nranks = if other % 5 == 0 { 4 } else { 2 };
                    let calls = ["mismatch", "3000", "0", &other.to_string()];
                    expect_success(&plugin.job(nranks, &calls, &variables));
                }
            });
        }
    });
}

#[test]
fn reductions_of_registered_buffers_are_not_staged_whatever_other_ranks_do() {
    for version in [8, 12] {
        let Some(plugin) = network(version) else { return };
        for (nranks, per_node, algorithm) in [(3, "1", "switch"), (4, "2", "rails_switch")] {
            let variables =
                [ENABLED, ("OXCCL_RANKS_PER_NODE", per_node), ("OXCCL_ALGORITHM", algorithm)];
            for how in ["all", "output", "odd", "early"] {
                let ended = plugin.job(nranks, &["registered", how, "20"], &variables);
                expect_success(&ended);
                let wrong = ended.iter().any(|ended| ended.output.contains("wrong use"));
                let ranks = reduced(&plugin.take_report());
                assert!(!wrong && ranks.len() == nranks as usize, "{how}: {ranks:?}");
                let staged = ranks.iter().filter(|(some, _)| *some == 0).count();
                let right = |&(some, all): &(u32, u32)| match how {
                    // The shares of ranks of a host lie in the output.
                    "output" if per_node == "1" => 0 < some && some < all,
                    "early" => 0 < some && some < all,
                    "odd" => some == all,
                    _ => 0 < some && some == all,
                };
                assert!(ranks.iter().all(right), "{algorithm} {how}: {ranks:?}");
                let even = if how == "odd" { nranks as usize - nranks as usize / 2 } else { 0 };
                assert_eq!(staged, even, "{algorithm} {how}: {ranks:?}");
            }
        }
    }
}

#[test]
fn buffers_that_a_network_refuses_are_staged_and_that_is_told_once() {
    let Some(plugin) = network(12) else { return };
    let variables = [
        ENABLED,
        ("OXCCL_ALGORITHM", "switch"),
        ("FIXTURE", "regMr=error"),
        ("FIXTURE_RANK", "1"),
        // Those of the library.
        ("FIXTURE_AFTER", "2"),
    ];
    let ended = plugin.job(2, &["registered", "all", "10"], &variables);
    expect_success(&ended);
    let text = "300000 bytes at 0x";
    let told = |rank: usize| ended[rank].output.matches(text).count();
    assert_eq!([told(0), told(1)], [0, 1], "{}", ended[1].output);
    let reason = "are copied for the network: regMr of collnet plugin Switch (";
    assert!(ended[1].output.contains(reason), "{}", ended[1].output);
    let mut ranks = reduced(&plugin.take_report());
    ranks.sort_unstable();
    assert!(ranks[0] == (0, 0) && ranks[1].0 > 0 && ranks[1].0 == ranks[1].1, "{ranks:?}");
}

#[test]
fn the_end_of_a_registration_fails_if_the_network_does_not_end_it() {
    let Some(plugin) = network(12) else { return };
    let variables = [
        ENABLED,
        ("OXCCL_ALGORITHM", "switch"),
        ("FIXTURE", "deregMr=error"),
        ("FIXTURE_RANK", "1"),
    ];
    let ended = plugin.job(2, &["registered", "all", "10"], &variables);
    let Ended { status, output } = &ended[1];
    assert_eq!(*status, Some(3), "{output}");
    assert!(output.contains("deregMr of collnet plugin Switch ("), "{output}");
}

/// Runs a job in which rank 1 has a fault after some reductions of registered buffers, whose memory
/// is gone at once after an error or an abort: who uses it then dies of that.
fn with_fault(plugin: &Plugin, how: &str, fault: &str) -> Vec<Ended> {
    let variables = [
        ENABLED,
        ("OXCCL_ALGORITHM", "switch"),
        ("FIXTURE", fault),
        ("FIXTURE_RANK", "1"),
        ("FIXTURE_AFTER", "40"),
    ];
    let ended = plugin.job(3, &["registered", how, "1000"], &variables);
    let wrong = ended.iter().find(|ended| ended.output.contains("wrong use"));
    assert!(wrong.is_none(), "{fault}: {wrong:?}");
    ended
}

/// What the library says where a plugin has buffers that it does not give back.
const KEPT: &str = "may still write into the buffers of an all-reduce: keep them";

#[test]
fn after_an_error_or_an_abort_no_network_uses_registered_buffers() {
    let Some(plugin) = network(12) else { return };
    for (how, fault, own) in [
        ("all", "iallreduce=error", 3),
        ("all", "test=error", 3),
        ("all", "iallreduce=exit", 9),
        ("abort", "never completes", 0),
    ] {
        for (rank, ended) in with_fault(&plugin, how, fault).iter().enumerate() {
            let expected = if rank == 1 { own } else { own.min(3) };
            // Who aborts later may have heard of the first.
            let heard = how == "abort" && ended.status == Some(3);
            let right = ended.status == Some(expected) || heard;
            assert!(right && !ended.output.contains(KEPT), "{fault} {rank}: {ended:?}");
        }
        let report = plugin.take_report();
        assert!(!report.contains("groups") && !report.contains("regions"), "{fault}: {report}");
    }
}

#[test]
fn buffers_that_a_plugin_has_which_does_not_return_are_told() {
    let Some(plugin) = network(12) else { return };
    for (rank, ended) in with_fault(&plugin, "abort", "test=hang").iter().enumerate() {
        let kept = ended.output.contains(KEPT);
        assert!(matches!(ended.status, Some(0 | 3)) && kept == (rank == 1), "{rank}: {ended:?}");
    }
}

/// Our switch in software.
fn soft() -> Plugin {
    Plugin::own("liboxccl_collnet_soft.so", "libnccl-net-oxccl-collnet.so")
}

#[test]
fn our_switch_in_software_reduces_every_type_and_operation() {
    let plugin = soft();
    let folder = plugin.folder.to_str().expect("a plain path");
    for (version, nranks, per_node, algorithm) in
        [(12, 3, "1", "switch"), (12, 4, "2", "rails_switch"), (11, 4, "2", "rails_switch")]
    {
        if version == 11 {
            plugin.hide("ncclCollNetPlugin_v12");
        }
        let variables = [
            ENABLED,
            ("NCCL_NET_PLUGIN", "oxccl-collnet"),
            ("LD_LIBRARY_PATH", folder),
            ("NCCL_SOCKET_IFNAME", "lo"),
            ("OXCCL_RANKS_PER_NODE", per_node),
            ("OXCCL_ALGORITHM", algorithm),
        ];
        expect_success(&plugin.job(nranks, &["registered", "all", "20"], &variables));
        let ended = plugin.job(nranks, &["sequence", "9", "400", "500000"], &variables);
        expect_success(&ended);
        let output = &ended[0].output;
        let used = format!(", v{version}) reduces");
        assert!(output.contains("collnet plugin OxCCL-Soft (") && output.contains(&used));
        assert!(output.contains(&format!(": {algorithm}, edges")), "{output}");
    }
}

#[test]
fn calls_that_differ_at_our_switch_in_software_are_told() {
    let plugin = soft();
    for other in ["1", "4", "13"] {
        let variables = [ENABLED, ("NCCL_SOCKET_IFNAME", "lo"), ("OXCCL_ALGORITHM", "switch")];
        expect_success(&plugin.job(2, &["mismatch", "3000", "0", other], &variables));
    }
}
