//! Plugins: loaded as users load them, of every version. Those that misbehave while they are used
//! are in `plugin_faults.rs`.

#[path = "common/plugin.rs"]
mod plugin;

use oxccl_tests::c::{C11, Program};
use oxccl_tests::job::{Ended, Job};
use oxccl_tests::missing;
use plugin::{MANIFEST, Plugin, RANK, expect_success};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn every_version_of_net_plugins_carries_all_collectives_and_is_closed() {
    for version in 6..=12 {
        let Some(plugin) = Plugin::net(version, &[]) else { return };
        for (nranks, per_node, fault) in [(2, "1", ""), (4, "2", "reluctant")] {
            // Connections are made at first use, or when the communicator is made.
            let variables = [
                ("OXCCL_RANKS_PER_NODE", per_node),
                ("FIXTURE", fault),
                ("NCCL_RUNTIME_CONNECT", ["0", "1"][version as usize % 2]),
            ];
            let ended = plugin.job(nranks, &["sequence", "5", "150", "200000"], &variables);
            expect_success(&ended);
            for ended in &ended {
                let used = format!("libnccl-net-v{version}.so, v{version}): device ");
                let output = &ended.output;
                assert!(
                    output.contains("net plugin Fixture (") && output.contains(&used),
                    "{output}"
                );
                assert!(!output.contains("wrong use"), "{output}");
            }
            let report = plugin.take_report();
            assert_eq!(report, "ended\n".repeat(nranks as usize), "version {version}");
        }
    }
}

/// `accept` blocks until somebody connects, and the first `isend` until it was accepted, in the one
/// thread that makes all calls; sizes of messages are not told; requests are tested in their order;
/// the device is said to have one connection: plugins for NCCL do and ask that.
#[test]
fn a_plugin_may_block_until_the_peer_has_done_its_part_and_tell_no_sizes() {
    for (version, connect) in [(6, "0"), (11, "1")] {
        let Some(plugin) = Plugin::net(version, &[]) else { return };
        let variables = [("FIXTURE", "strict"), ("NCCL_RUNTIME_CONNECT", connect)];
        let ended = plugin.job(3, &["sequence", "5", "50", "20000"], &variables);
        expect_success(&ended);
        for ended in &ended {
            assert!(ended.output.contains("net plugin Fixture ("), "{}", ended.output);
            assert!(!ended.output.contains("wrong use"), "{}", ended.output);
        }
        assert_eq!(plugin.take_report(), "ended\n".repeat(3), "version {version}");
    }
}

/// A slow plugin is done with all that was sent when a communicator ends right after it.
#[test]
fn a_slow_plugin_is_done_with_all_requests_at_the_end() {
    let Some(plugin) = Plugin::net(11, &[]) else { return };
    for (fault, connect, lanes) in [("slow", "0", "3"), ("slow", "1", "1"), ("slower", "1", "2")] {
        let lanes = ("NCCL_NSOCKS_PERTHREAD", lanes);
        let variables = [("FIXTURE", fault), ("NCCL_RUNTIME_CONNECT", connect), lanes];
        expect_success(&plugin.job(3, &["sequence", "3", "10", "2000"], &variables));
        assert_eq!(plugin.take_report(), "ended\n".repeat(3), "{variables:?}");
    }
}

/// The plugin for UCX of NVIDIA tells the size of the place as that of a message.
#[test]
fn a_plugin_may_tell_the_size_of_the_place_as_that_of_a_message() {
    let Some(plugin) = Plugin::net(11, &[]) else { return };
    let ended = plugin.job(3, &["sequence", "5", "50", "20000"], &[("FIXTURE", "capacity")]);
    expect_success(&ended);
}

/// Plugins find the variables of configuration files in the environment, which counts more, also
/// where they look when they are loaded.
#[test]
fn a_plugin_sees_the_variables_of_files() {
    let Some(plugin) = Plugin::net(11, &[]) else { return };
    let file = plugin.folder.join("conf");
    std::fs::write(&file, "NCCL_TESTS_MARK=of the file\n").expect("a file");
    let file = ("NCCL_CONF_FILE", file.to_str().expect("a plain path"));
    for (variables, mark) in [
        (&[file][..], "the mark is of the file, at first it was of the file"),
        (&[file, ("NCCL_TESTS_MARK", "own")], "the mark is own, at first it was own"),
    ] {
        let ended = plugin.job(2, &["once"], variables);
        expect_success(&ended);
        assert!(ended.iter().all(|e| e.output.contains(mark)), "{}", ended[0].output);
    }
}

/// With all when a communicator is made, or with those whose edges calls use.
#[test]
fn ranks_are_connected_when_a_communicator_is_made_or_at_the_first_use() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    for (at_first_use, body, connected) in
        [("", "idle", 2), ("0", "idle", 2), ("1", "idle", 0), ("1", "once", 2)]
    {
        let ended = plugin.job(3, &[body], &[("NCCL_RUNTIME_CONNECT", at_first_use)]);
        expect_success(&ended);
        for Ended { output, .. } in &ended {
            assert!(output.contains("net plugin Fixture ("), "{output}");
            let found = output.matches("it has connected").count();
            assert_eq!(found, connected, "{at_first_use:?}, {body}: {output}");
        }
    }
}

/// Whoever waits makes the calls of our own transport.
#[test]
fn only_a_plugin_has_a_thread_that_makes_its_calls() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    for (library, proxies) in [("none", 0), (plugin.path(), 1)] {
        let ended = plugin.job(2, &["threads"], &[("NCCL_NET_PLUGIN", library)]);
        expect_success(&ended);
        for Ended { output, .. } in &ended {
            let found = output.matches("thread oxccl-proxy\n").count();
            assert_eq!(found, proxies, "{library}: {output}");
        }
    }
}

/// Several communicators in one process begin and end at the same time.
#[test]
fn a_plugin_is_begun_and_ended_by_one_thread_at_a_time() {
    for version in [8, 10, 12] {
        let Some(plugin) = Plugin::net(version, &[]) else { return };
        let ended = plugin.job(2, &["crowd", "3"], &[("FIXTURE_CROWD", "1")]);
        expect_success(&ended);
        assert!(!ended.iter().any(|e| e.output.contains("wrong use")), "{}", ended[0].output);
        assert_eq!(plugin.take_report(), "ended\n".repeat(2), "version {version}");
    }
}

/// Threads that it has started may run until the end of the process.
#[test]
fn a_plugin_stays_in_the_process_after_its_last_communicator() {
    for (version, starts) in [(10, 1), (12, 4)] {
        let Some(plugin) = Plugin::net(version, &[]) else { return };
        let ended = plugin.job(1, &["again"], &[("FIXTURE_CROWD", "1")]);
        expect_success(&ended);
        let output = &ended[0].output;
        let file = format!("/libnccl-net-v{version}.so");
        let is_mapped = |line: &str| line.starts_with("mapped ") && line.ends_with(&file);
        assert!(output.lines().any(is_mapped), "{output}");
        let begun = output.matches(&format!("version {version} starts")).count();
        assert!(begun == starts && !output.contains("wrong use"), "{begun}: {output}");
        // Its destructors have run once, with the end of the process.
        assert_eq!(plugin.take_report(), "ended\n", "version {version}");
    }
}

/// A communicator and its child have a context each.
#[test]
fn a_plugin_has_a_context_for_each_communicator() {
    for version in [11, 12] {
        let Some(plugin) = Plugin::net(version, &[]) else { return };
        let ended = plugin.job(2, &["with-child"], &[]);
        expect_success(&ended);
        for Ended { output, .. } in &ended {
            assert_eq!(output.matches(&format!("version {version} starts")).count(), 2, "{output}");
            assert!(!output.contains("wrong use"), "{output}");
        }
        assert_eq!(plugin.take_report(), "ended\n".repeat(2), "version {version}");
    }
}

/// Found by its path and by the end of its usual name; in the newest version, and in the other one
/// where it is the only one.
#[test]
fn our_tcp_transport_works_as_a_plugin() {
    let plugin = Plugin::tcp();
    let folder = plugin.folder.to_str().expect("a plain path");
    for (name, version) in [(plugin.path(), 12), ("oxccl", 11)] {
        if version == 11 {
            plugin.hide("ncclNetPlugin_v12");
        }
        let variables = [
            ("NCCL_NET_PLUGIN", name),
            ("LD_LIBRARY_PATH", folder),
            ("NCCL_SOCKET_IFNAME", "lo"),
            ("NCCL_NET", "OxCCL-TCP"),
        ];
        let ended = plugin.job(3, &["sequence", "6", "400", "3000000"], &variables);
        expect_success(&ended);
        let (output, used) = (&ended[0].output, format!("v{version}): device "));
        assert!(output.contains("net plugin OxCCL-TCP (") && output.contains(&used), "{output}");
    }
}

/// One library of each kind is on the library path, and no variable names it.
#[test]
fn installed_plugins_are_found_by_nccls_names() {
    let kinds = [("net", 12), ("tuner", 6), ("profiler", 7), ("env", 2)];
    let compile = |(kind, version)| Plugin::compile(kind, version, &[]);
    let Some(plugins) = kinds.into_iter().map(compile).collect::<Option<Vec<_>>>() else { return };
    let folder = &plugins[0].folder;
    let installed = |kind: &str| folder.join(format!("libnccl-{kind}.so"));
    for (plugin, (kind, _)) in plugins.iter().zip(kinds) {
        std::fs::copy(plugin.path(), installed(kind)).expect("a free name");
    }
    let variables = [
        ("LD_LIBRARY_PATH", folder.to_str().expect("a plain path")),
        // The environment plugin answers with these.
        ("PLUGIN_OXCCL_RANKS_PER_NODE", "1"),
        ("PLUGIN_NCCL_DEBUG", "INFO"),
        ("PLUGIN_NCCL_DEBUG_SUBSYS", "ALL"),
    ];
    let ended = plugins[0].run(2, &["sequence", "5", "60", "100000"], &variables);
    expect_success(&ended);
    for Ended { output, .. } in &ended {
        let used = |(kind, version): (&str, u32)| match kind {
            "env" => format!("NCCL_DEBUG=INFO (env plugin Fixture v{version})"),
            _ => format!("{kind} plugin Fixture (libnccl-{kind}.so, v{version})"),
        };
        for used in kinds.map(used) {
            assert!(output.contains(&used), "{used}: {output}");
        }
        assert!(!output.contains("wrong use"), "{output}");
    }
}

/// Driven by a program that checks each byte, also those behind a message.
#[test]
fn our_tcp_transport_works_without_the_library() {
    let plugin = Plugin::tcp();
    let tests = Path::new(MANIFEST);
    let program = plugin.folder.join("messages");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(tests.join("../plugins/include"))
        .arg("-I")
        .arg(tests.join("../capi/include"))
        .arg(tests.join("plugins/messages.c"))
        .args(["-ldl", "-o"])
        .arg(&program)
        .output();
    let compiled = match compiled {
        Err(e) => return missing("cc", &e.to_string()),
        Ok(compiled) => compiled,
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // Its own limit is 60 s for whatever it waits for.
    let output = Command::new(&program)
        .args([plugin.path(), "0", "0", "262144"])
        .env("NCCL_SOCKET_IFNAME", "lo")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.ends_with("OK\n"), "{text}");
}

#[test]
fn a_plugin_that_cannot_serve_is_refused_with_the_reason_and_another_net_is_used() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    for (fault, reason) in [
        ("no devices", "refused, it has no devices"),
        ("negative devices", "it says that there are -1"),
        ("GPUs only", "does not take memory of the host"),
        ("offload", "is served by GPUs, which is not supported"),
        ("small messages", "its device 1 carries messages of 1000 bytes, "),
        ("init=error", "init of net plugin Fixture"),
        ("devices=error", "devices of net plugin Fixture"),
        ("getProperties=error", "getProperties of net plugin Fixture"),
    ] {
        let ended = plugin.job(2, &["once"], &[("FIXTURE", fault)]);
        expect_success(&ended);
        assert!(ended.iter().all(|e| e.output.contains(reason)), "{fault}: {}", ended[0].output);
        assert!(!ended.iter().any(|e| e.output.contains("wrong use")), "{}", ended[0].output);
        assert_eq!(plugin.take_report(), "ended\n".repeat(2), "{fault}");
        // If the plugin was asked for by name, there is no other one.
        let ended = plugin.job(2, &["once"], &[("FIXTURE", fault), ("NCCL_NET", "fixture")]);
        for ended in &ended {
            let told = ["choosing the net \"fixture\"", reason];
            let told = told.iter().all(|text| ended.output.contains(text));
            assert!(ended.status != Some(0) && told, "{}", ended.output);
        }
        plugin.take_report();
    }
    let ended = plugin.job(2, &["once"], &[("FIXTURE", "null texts")]);
    expect_success(&ended);
}

/// All ranks send no more than the device of any rank carries.
#[test]
fn a_device_that_carries_no_large_messages_gets_none() {
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    let fault = [("FIXTURE", "medium messages"), ("OXCCL_RANKS_PER_NODE", "1")];
    for only in [None, Some(("FIXTURE_RANK", "1"))] {
        let variables: Vec<_> = fault.into_iter().chain(only).collect();
        let ended = plugin.job(3, &["sequence", "5", "60", "4000000"], &variables);
        expect_success(&ended);
        for Ended { output, .. } in &ended {
            assert!(output.contains(" is used") && !output.contains("refused"), "{output}");
            assert!(!output.contains("wrong use"), "{output}");
        }
        assert_eq!(plugin.take_report(), "ended\n".repeat(3));
    }
}

/// There is a line for each attempt to load a plugin, and one for each attempt to begin it.
#[test]
fn the_first_plugin_of_a_list_that_can_serve_is_used() {
    let Some(empty) = Plugin::net(11, &["-DFAULT=\"no devices\""]) else { return };
    let Some(plugin) = Plugin::net(12, &[]) else { return };
    let missing = format!("{}/libnone.so", plugin.folder.display());
    let list = [missing.as_str(), empty.path(), plugin.path()].join(",");
    let ended = plugin.job(2, &["once"], &[("NCCL_NET_PLUGIN", list.as_str())]);
    expect_success(&ended);
    for Ended { output, .. } in &ended {
        for (file, told) in [
            (missing.as_str(), &["cannot open shared object file"][..]),
            (empty.path(), &["found ncclNetPlugin_v11", "v11): refused, it has no devices"]),
            (plugin.path(), &["found ncclNetPlugin_v12", "v12): device 0 is used"]),
        ] {
            let of = |line: &&str| line.contains(" net plugin") && line.contains(file);
            let lines: Vec<_> = output.lines().filter(of).collect();
            let right = lines.iter().zip(told).all(|(line, text)| line.contains(text));
            assert!(right && lines.len() == told.len(), "{lines:#?}: {output}");
        }
        assert!(!output.contains("wrong use"), "{output}");
    }
    assert_eq!(plugin.take_report(), "ended\n".repeat(4));
}

/// Of any kind: one line tells what was found, and why it is refused.
#[test]
fn a_plugin_without_a_name_is_refused_in_one_line() {
    for (kind, version, symbol) in [
        ("net", 12, "ncclNetPlugin_v12"),
        ("tuner", 6, "ncclTunerPlugin_v6"),
        ("profiler", 7, "ncclProfiler_v7"),
        ("env", 2, "ncclEnvPlugin_v2"),
    ] {
        let Some(plugin) = Plugin::compile(kind, version, &["-DNAME=NULL"]) else { return };
        let variable = format!("NCCL_{}_PLUGIN", kind.to_uppercase());
        let variables = [(variable.as_str(), plugin.path()), ("OXCCL_RANKS_PER_NODE", "1")];
        let ended = plugin.run(2, &["once"], &variables);
        expect_success(&ended);
        for Ended { output, .. } in &ended {
            let says = |line: &str| line.contains(" found ") || line.contains(" refused");
            let of = |line: &&str| line.contains(plugin.path()) && says(line);
            let lines: Vec<_> = output.lines().filter(of).collect();
            let text = format!("{}: found {symbol}; refused, it has no name", plugin.path());
            assert!(matches!(lines[..], [line] if line.contains(&text)), "{kind}: {output}");
        }
    }
}

#[test]
fn ranks_that_choose_different_nets_are_told_both() {
    let Some(plugin) = Plugin::net(9, &[]) else { return };
    let ended = plugin.job(3, &["once"], &[("FIXTURE", "no devices"), ("FIXTURE_RANK", "2")]);
    for ended in ended {
        let text = "rank 0 uses the net Fixture, rank 2 the net Socket";
        assert!(ended.status != Some(0) && ended.output.contains(text), "{}", ended.output);
    }
}

#[test]
fn a_plugin_without_a_function_is_refused() {
    let Some(plugin) = Plugin::net(8, &["-DNO_ISEND", "-Wno-unused-function"]) else { return };
    let ended = plugin.job(2, &["once"], &[]);
    expect_success(&ended);
    let text = "refused, init of net plugin Fixture";
    assert!(ended[0].output.contains(text), "{}", ended[0].output);
    assert!(ended[0].output.contains("it has no function isend"), "{}", ended[0].output);
}

/// It serves as long as nothing needs what is missing, which is named beforehand.
#[test]
fn a_plugin_with_a_missing_symbol_is_loaded_and_the_symbol_is_named() {
    let Some(plugin) = Plugin::net(12, &["-DUNDEFINED", "-Wl,-z,lazy"]) else { return };
    let ended = plugin.job(2, &["once"], &[]);
    expect_success(&ended);
    for ended in &ended {
        let output = &ended.output;
        let named = output.contains("undefined symbol: function_that_is_nowhere");
        assert!(named && output.contains("net plugin Fixture ("), "{output}");
    }
    let ended = plugin.job(2, &["once"], &[("FIXTURE", "calls what is missing")]);
    assert!(ended.iter().all(|ended| ended.status != Some(0)));
}

/// As NVIDIA's plugin for InfiniBand does, which is found under either name.
#[test]
fn a_plugin_may_set_its_functions_and_its_name_when_it_begins() {
    for version in [6, 9, 12] {
        let Some(plugin) = Plugin::net(version, &["-DLATE"]) else { return };
        for name in ["", "Fixture", "Complete"] {
            let ended = plugin.job(2, &["sequence", "5", "20", "2000"], &[("NCCL_NET", name)]);
            expect_success(&ended);
            assert!(ended.iter().all(|e| e.output.contains("is used")), "{}", ended[0].output);
            assert!(!ended.iter().any(|e| e.output.contains("wrong use")), "{}", ended[0].output);
            assert_eq!(plugin.take_report(), "ended\n".repeat(2), "version {version}");
        }
        let ended = plugin.job(2, &["once"], &[("NCCL_NET", "Compleat")]);
        let text = "there is no such net; there are: Fixture, Complete, Socket";
        assert!(ended.iter().all(|e| e.output.contains(text)), "{}", ended[0].output);
        assert_eq!(plugin.take_report(), "ended\n".repeat(2), "version {version}");
    }
}

/// That of the environment answers for the variables that name the others.
#[test]
fn plugins_within_the_program_are_found() {
    let include = format!("-I{MANIFEST}/../plugins/include");
    let others = ["tuner", "profiler", "env"];
    let others = others.map(|kind| format!("{MANIFEST}/capi/static_{kind}.c"));
    let others = others.each_ref().map(String::as_str);
    let flags = [C11.1, &[include.as_str(), "-rdynamic"], &others].concat();
    let Some(program) = Program::build("static_plugin.c", (C11.0, &flags)) else { return };
    let kinds = ["NET", "TUNER", "PROFILER"];
    let job = Job::start(&program.path(), 2, Duration::from_secs(60), |_, command| {
        command.envs(kinds.map(|kind| (format!("PLUGIN_NCCL_{kind}_PLUGIN"), "STATIC_PLUGIN")));
        command.envs([("PLUGIN_NCCL_DEBUG", "INFO"), ("PLUGIN_NCCL_DEBUG_SUBSYS", "ALL")]);
        command.env("PLUGIN_NCCL_NET", "Fixture").env("NCCL_ENV_PLUGIN", "STATIC_PLUGIN");
        command.env("OXCCL_RANKS_PER_NODE", "1");
    });
    for ended in job.wait() {
        assert_eq!(ended.status, Some(0), "{}", ended.output);
        let found = "environment plugin the program: found ncclEnvPlugin_v2";
        assert!(ended.output.contains(found), "{}", ended.output);
        for kind in kinds.map(str::to_lowercase) {
            let found = format!("{kind} plugin Fixture (the program, v");
            let mut lines = ended.output.lines().filter(|line| line.contains(&found));
            assert!(lines.any(|line| line.contains("is used")), "no {kind}: {}", ended.output);
        }
    }
}

/// Ranks that wait long look at all peers; over a plugin they must not ask for messages that never
/// come.
#[test]
fn nothing_is_under_way_at_the_end_also_after_a_long_wait() {
    let Some(plugin) = Plugin::net(11, &[]) else { return };
    let ended = plugin.job(4, &["late"], &[("OXCCL_ALGORITHM", "ring")]);
    expect_success(&ended);
    assert_eq!(plugin.take_report(), "ended\n".repeat(4));
}

#[test]
fn every_version_of_tuners_chooses_plans_and_is_ended() {
    for version in 2..=6 {
        let Some(plugin) = Plugin::compile("tuner", version, &[]) else { return };
        // The row and the column, and what it is called here.
        for (cell, plan) in [("1,2", "ring, edges"), ("0,2", "tree, edges"), ("4,1", ", stage")] {
            let variables = [("NCCL_TUNER_PLUGIN", plugin.path()), ("FIXTURE_CELL", cell)];
            let ended = plugin.run(3, &["sequence", "8", "60", "100000"], &variables);
            expect_success(&ended);
            for ended in &ended {
                let output = &ended.output;
                let used = format!("tuner plugin Fixture ({}, v{version}) is used", plugin.path());
                let told = [used.as_str(), "3 ranks on 1 hosts"];
                assert!(told.iter().all(|text| output.contains(text)), "{output}");
                assert_eq!(output.contains("have no effect"), version >= 5, "{output}");
                assert!(!output.contains("wrong use"), "{output}");
                let of = |line: &&str| line.contains("all_reduce of");
                let chosen: Vec<_> = output.lines().filter(of).collect();
                // The line says first what runs for any memory.
                let right = |line: &str| {
                    let first = line.split(';').next().unwrap_or_default();
                    first.contains(plan) || line.contains(" of 0 bytes")
                };
                let all = chosen.iter().all(|line| right(line));
                assert!(all && chosen.len() > 3, "{cell}: {chosen:?}");
            }
            assert_eq!(plugin.take_report(), "asked\n".repeat(3), "version {version}");
        }
    }
}

/// Rules in NVIDIA's format; a table that cannot be read is named with the line. In the newest
/// version, and in older ones where they are the newest.
#[test]
fn our_tuner_takes_plans_from_a_table() {
    let plugin = Plugin::own("liboxccl_tuner_table.so", "libnccl-tuner-oxccl-table.so");
    let table = plugin.folder.join("rules.csv");
    let variables = [
        ("NCCL_TUNER_PLUGIN", "oxccl-table"),
        ("LD_LIBRARY_PATH", plugin.folder.to_str().expect("a plain path")),
        ("NCCL_TUNER_CONFIG_FILE", table.to_str().expect("a plain path")),
    ];
    let rules = "# COLLNET has no plan here.\nallreduce,0,99999999,collnet_chain,simple,-1,-1,-1\n\
                 allreduce,0,99999999,ring,simple,4,1,3\nallgather,0,9999,pat,simple,-1,1,8\n";
    std::fs::write(&table, rules).expect("a table");
    for version in [6, 5, 4] {
        let ended = plugin.run(3, &["sequence", "8", "60", "100000"], &variables);
        expect_success(&ended);
        for Ended { output, .. } in &ended {
            let used = format!(", v{version}) is used");
            let told = output.contains("rules.csv: 3 rules") && output.contains(&used);
            assert!(told, "{used}: {output}");
            let of = |line: &&str| line.contains("all_reduce of") && !line.contains(" of 0 bytes");
            let chosen: Vec<_> = output.lines().filter(of).collect();
            let ring = |line: &&str| line.contains("ring, edges");
            assert!(!chosen.is_empty() && chosen.iter().all(ring), "{chosen:?}");
        }
        if version > 4 {
            plugin.hide(&format!("ncclTunerPlugin_v{version}"));
        }
    }
    std::fs::write(&table, "allreduce,0,1,ring,simple,-1,1,3\nallreduce,0,1,ring\n").expect("it");
    for Ended { status, output } in &plugin.run(2, &["sequence", "8", "60", "1000"], &variables) {
        assert_ne!(*status, Some(0), "{output}");
        let line = "rules.csv: line 2: the number of fields is \"4\"; expected 8 to 10";
        assert!(output.contains(line), "{output}");
        assert!(output.contains("init of tuner plugin OxCCL-Table"), "{output}");
    }
}

/// Several hosts, and a library that has no net.
#[test]
fn a_tuner_is_found_in_the_library_of_a_net_and_may_leave_all_to_the_library() {
    for fault in ["", "nothing", "all"] {
        let Some(plugin) = Plugin::compile("tuner", 4, &[]) else { return };
        let ended = plugin.job(3, &["sequence", "9", "60", "100000"], &[("FIXTURE", fault)]);
        expect_success(&ended);
        let output = &ended[0].output;
        assert!(output.contains("it has no ncclNetPlugin_v"), "{output}");
        assert!(
            output.contains("v4) is used") && output.contains("3 ranks on 3 hosts"),
            "{output}"
        );
        assert!(!output.contains("wrong use"), "{output}");
    }
}

/// Whether or not the net can serve, unless none is asked for.
#[test]
fn a_tuner_and_a_profiler_are_found_beside_the_net_of_a_library() {
    for (kind, version) in [("tuner", 6), ("profiler", 7)] {
        let source = format!("{MANIFEST}/plugins/{kind}.c");
        let Some(plugin) = Plugin::net(version, &[&source]) else { return };
        let variable = format!("NCCL_{}_PLUGIN", kind.to_uppercase());
        let none = (variable.as_str(), "none");
        for (fault, asked) in [("", None), ("no devices", None), ("no devices", Some(none))] {
            let mut variables = vec![("FIXTURE", fault), ("NCCL_DEBUG_SUBSYS", "ALL")];
            variables.extend(asked);
            let ended = plugin.job(2, &["once"], &variables);
            expect_success(&ended);
            let output = &ended[0].output;
            let serves = format!("net plugin Fixture ({}, v{version}): device ", plugin.path());
            assert_eq!(output.contains(&serves), fault.is_empty(), "{output}");
            assert_eq!(output.contains("refused, it has no devices"), !fault.is_empty());
            let used = format!("{kind} plugin Fixture ({}, v{version}) is used", plugin.path());
            assert_eq!(output.contains(&used), asked.is_none(), "{fault}: {output}");
            assert!(!output.contains("wrong use"), "{output}");
        }
    }
}

#[test]
fn a_tuner_that_fails_or_hangs_or_differs_is_named_on_all_ranks() {
    let Some(plugin) = Plugin::compile("tuner", 6, &[]) else { return };
    let path = plugin.path();
    std::thread::scope(|scope| {
        for fault in ["init=error", "init=hang", "getCollInfo=error", "getCollInfo=hang"] {
            let plugin = &plugin;
            scope.spawn(move || {
                let one = [("NCCL_TUNER_PLUGIN", path), ("FIXTURE", fault), ("FIXTURE_RANK", "1")];
                let start = Instant::now();
                let ended = plugin.run(3, &["once"], &one);
                assert!(start.elapsed() < Duration::from_secs(60), "{fault}");
                let function = fault.split('=').next().unwrap_or_default();
                for (rank, ended) in ended.iter().enumerate() {
                    let (output, text) = (&ended.output, format!("{function} of tuner plugin"));
                    assert!(ended.status.is_some_and(|s| s != 0), "{fault} {rank}: {output}");
                    assert!(output.contains(&text), "{fault} {rank}: {output}");
                    assert!(rank == 1 || output.contains("rank 1"), "{fault} {rank}: {output}");
                }
            });
        }
    });
    let ended =
        plugin.run(2, &["once"], &[("NCCL_TUNER_PLUGIN", path), ("FIXTURE", "finalize=error")]);
    expect_success(&ended);
    assert!(ended[0].output.contains("finalize of tuner plugin Fixture"), "{}", ended[0].output);
    // One rank has no tuner; one chooses other plans.
    let job = |differs: (&'static str, &'static str), same: &[(&str, &str)]| {
        let job = Job::start(Path::new(RANK), 2, Duration::from_secs(60), |rank, command| {
            command.arg("once").env("NCCL_TUNER_PLUGIN", path).envs(same.iter().copied());
            if rank == 1 {
                command.env(differs.0, differs.1);
            }
        });
        job.wait()
    };
    for ended in job(("NCCL_TUNER_PLUGIN", "none"), &[]) {
        let text = "rank 0 uses the tuner Fixture, rank 1 no tuner";
        assert!(ended.status != Some(0) && ended.output.contains(text), "{}", ended.output);
    }
    for ended in job(("FIXTURE_CELL", "1,2"), &[("FIXTURE_CELL", "0,2")]) {
        let output = &ended.output;
        assert!(ended.status != Some(0), "{output}");
        let both = ["by ring", "by tree"].iter().all(|text| output.contains(text));
        assert!(both && output.contains("as its tuner or options chose"), "{output}");
    }
}

/// The plugin takes seconds to begin, one communicator after the other.
#[test]
fn a_plugin_that_is_slow_to_begin_is_waited_for() {
    let Some(tuner) = Plugin::compile("tuner", 6, &[]) else { return };
    let slow = [("NCCL_TUNER_PLUGIN", tuner.path()), ("FIXTURE", "init=slow")];
    expect_success(&tuner.run(2, &["crowd", "4"], &slow));
    assert_eq!(tuner.take_report(), "asked\n".repeat(2));
}
