//! Environment plugins, which answer for variables, well behaved and not.

#[path = "common/plugin.rs"]
mod plugin;

use oxccl_tests::job::{Ended, Job};
use plugin::{Plugin, RANK};
use std::path::Path;
use std::time::Duration;

#[test]
fn environment_plugins_answer_for_every_variable() {
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
