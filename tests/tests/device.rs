//! The tests of any device, on host memory: on GPUs they are run by hand (`docs/gpu-results.md`).

use oxccl_tests::job::bind_to_parent;
use std::process::Command;

/// Runs the rows whose name and layout contain one of some texts.
fn expect_success(rows: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl-device-tests"));
    command.env("OXCCL_DEVICE", "host").args(rows);
    let output = bind_to_parent(&mut command).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("| every collective, type and operation"), "{text}");
}

#[test]
fn the_tests_of_any_device_pass_on_host_memory_by_ranks_of_one_process() {
    expect_success(&["Single", "Threads"]);
}

/// Beside the ones above, as many of these wait most of the time.
#[test]
fn the_tests_of_any_device_pass_on_host_memory_by_a_process_for_each_rank() {
    expect_success(&["Processes"]);
}
