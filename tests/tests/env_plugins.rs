//! Environment plugins, which answer for variables, well behaved and not.

#[path = "common/plugin.rs"]
mod plugin;

use oxccl_runtime::config::{Kind, Variable, variables};
use oxccl_tests::job::{Ended, Job};
use plugin::{Plugin, RANK};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs a rank that prints the values of all variables, and where they come from.
fn values(dress: impl Fn(&mut Command)) -> String {
    let job = Job::start(Path::new(RANK), 1, Duration::from_secs(60), |_, command| {
        dress(command.arg("variables"));
    });
    let Ended { status, output } = job.wait().remove(0);
    assert_eq!(status, Some(0), "{output}");
    output
}

/// Returns a value that a row of the table of variables takes.
fn some_value(row: &Variable) -> &'static str {
    match row.kind {
        Kind::Bool => "1",
        Kind::Int | Kind::Uint => "7",
        Kind::Duration => "7s",
        Kind::Text if row.default.is_empty() => "some text",
        // Of some texts only a few can be read.
        Kind::Text => row.default,
    }
}

#[test]
fn environment_plugins_answer_for_every_variable() {
    for version in [1, 2] {
        let Some(plugin) = Plugin::compile("env", version, &[]) else { return };
        let output = values(|command| {
            command.env("NCCL_ENV_PLUGIN", plugin.path());
            for row in variables() {
                command.env(format!("PLUGIN_{}", row.name), some_value(row));
            }
        });
        for row in variables() {
            let (name, value) = (row.name, some_value(row));
            let line = format!("{name}={value} (env plugin Fixture v{version})\n");
            assert!(output.contains(&line), "{line}{output}");
        }
    }
}

/// In the newest version, and in the other one where it is the only one.
#[test]
fn our_table_has_values_by_host() {
    let plugin = Plugin::own("liboxccl_env_table.so", "libnccl-env-oxccl-table.so");
    expect_values_by_host(&plugin, 2);
    plugin.hide("ncclEnvPlugin_v2");
    expect_values_by_host(&plugin, 1);
}

/// Lines for this host and others; a table that cannot be read is named with the line.
fn expect_values_by_host(plugin: &Plugin, version: u32) {
    let file = plugin.folder.join("hosts.env");
    let variables = [
        ("NCCL_ENV_PLUGIN", "oxccl-table"),
        ("LD_LIBRARY_PATH", plugin.folder.to_str().expect("a plain path")),
        ("NCCL_ENV_CONFIG_FILE", file.to_str().expect("a plain path")),
        ("NCCL_SOCKET_IFNAME", "of-the-environment"),
        ("NCCL_IB_HCA", "of-the-environment"),
    ];
    let run = |table: &str| {
        std::fs::write(&file, table).expect("a table");
        values(|command| {
            command.envs(variables).env_remove("NCCL_HOSTID");
        })
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let output = run(&format!(
        "# For all, for this one, and for another one.\n* NCCL_SOCKET_IFNAME=eth0\n\
         {host} NCCL_SOCKET_IFNAME=lo\n{host} OXCCL_TIMEOUT=7s\n\
         {host}-too NCCL_SOCKET_IFNAME=eth1\n{host}-too NCCL_HOSTID=another\n"
    ));
    let told = ["NCCL_SOCKET_IFNAME=lo", "OXCCL_TIMEOUT=7s", "NCCL_IB_HCA=of-the-environment"];
    let told = told.map(|value| format!("{value} (env plugin OxCCL-Table v{version})"));
    assert!(told.iter().all(|text| output.contains(text)), "{output}");
    assert!(output.contains("NCCL_HOSTID= (default)"), "{output}");
    // NCCL_ENV_CONFIG_FILE is known, too.
    assert!(!output.contains("eth1") && !output.contains("is no variable"), "{output}");
    let output = run(&format!("{host} NCCL_SOCKET_IFNAME=lo\n{host}-too NCCL_DEBUG\n"));
    let line = format!("hosts.env: line 2 is \"{host}-too NCCL_DEBUG\"; expected HOSTS NAME=VALUE");
    let told = [
        line.as_str(),
        "init of OxCCL-Table returned 5",
        "NCCL_SOCKET_IFNAME=of-the-environment (environment)",
    ];
    assert!(told.iter().all(|text| output.contains(text)), "{output}");
}

#[test]
fn what_environment_plugins_answer_counts_and_where_they_fail_the_environment() {
    for version in [1, 2] {
        let Some(plugin) = Plugin::compile("env", version, &[]) else { return };
        let file = plugin.path();
        let variables = [
            ("NCCL_ENV_PLUGIN", file),
            ("NCCL_SOCKET_IFNAME", "there-is-none"),
            ("PLUGIN_NCCL_SOCKET_IFNAME", "lo"),
            ("PLUGIN_NCCL_DEBUG", "INFO"),
            ("PLUGIN_NCCL_DEBUG_SUBSYS", "ENV"),
            ("PLUGIN_OXCCL_TIMEOUT", "7s"),
        ];
        let run = |fault: &str| {
            let job = Job::start(Path::new(RANK), 1, Duration::from_secs(60), |_, command| {
                command.arg("once").envs(variables).env("FIXTURE", fault);
                command.envs([("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ENV")]);
            });
            job.wait().remove(0)
        };
        let ended = run("");
        let output = &ended.output;
        assert_eq!(ended.status, Some(0), "{output}");
        let found = format!("found ncclEnvPlugin_v{version}");
        let origin = format!("env plugin Fixture v{version}");
        let told = ["NCCL_SOCKET_IFNAME=lo", "OXCCL_TIMEOUT=7s", "the plugin has ended"];
        assert!(output.contains(&found) && output.contains(&origin), "{output}");
        assert!(told.iter().all(|text| output.contains(text)), "{output}");
        assert!(!output.contains("there-is-none"), "{output}");
        assert_eq!(output.contains("it answers from version 2 on"), version == 2, "{output}");
        // A plugin that cannot serve leaves the variables to the environment.
        let faults = [
            ("init=error", "init of Fixture returned 2"),
            ("init=hang", "init of Fixture has not returned for 10 s"),
            ("getEnv=hang", "has not returned for 10 s, asked for"),
        ];
        std::thread::scope(|scope| {
            for (fault, text) in faults.into_iter().take(if version == 2 { 3 } else { 1 }) {
                let run = &run;
                scope.spawn(move || {
                    let Ended { output, status, .. } = run(fault);
                    assert!(status.is_some() && output.contains(text), "{fault}: {output}");
                    let falls_back = output.contains("NCCL_SOCKET_IFNAME=there-is-none");
                    assert!(falls_back, "{fault}: {output}");
                });
            }
        });
    }
}

/// The process ends all the same, and has no log any more that could tell of it.
#[test]
fn a_plugin_that_fails_or_does_not_return_at_the_end_is_waited_for_ten_seconds_at_most() {
    let Some(plugin) = Plugin::compile("env", 2, &[]) else { return };
    std::thread::scope(|scope| {
        for (fault, least_s) in [("finalize=error", 0), ("finalize=hang", 10)] {
            let plugin = &plugin;
            scope.spawn(move || {
                let start = Instant::now();
                let output = values(|command| {
                    command.env("NCCL_ENV_PLUGIN", plugin.path()).env("FIXTURE", fault);
                    command.env("PLUGIN_NCCL_SOCKET_IFNAME", "lo");
                });
                let took = start.elapsed();
                let in_time = Duration::from_secs(least_s)..Duration::from_secs(30);
                assert!(in_time.contains(&took), "{fault}: {took:?}");
                let answered = "NCCL_SOCKET_IFNAME=lo (env plugin Fixture v2)";
                assert!(output.contains(answered), "{fault}: {output}");
                assert!(!output.contains("the plugin has ended"), "{fault}: {output}");
            });
        }
    });
}
