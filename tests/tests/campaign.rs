//! A short campaign of faults against jobs of real processes; `oxccl-campaign` plays longer ones.

use oxccl_tests::job::{bind_to_parent, wait_until};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// As many as fit into a minute on two processors; with the seed they are of all kinds.
const ATTEMPTS: u64 = 20;

#[test]
fn survivors_of_kills_stops_and_cuts_name_the_one_at_fault_in_time() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl-campaign"));
    command.args(["--seed", "57", "--jobs", "2", "--attempts", &ATTEMPTS.to_string()]);
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    command.stdin(Stdio::null()).stdout(writer.try_clone().expect("a descriptor")).stderr(writer);
    let mut campaign = bind_to_parent(&mut command).spawn().expect("a campaign starts");
    drop(command);
    let heard = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("a pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let status = wait_until(&mut campaign, Instant::now() + Duration::from_secs(600));
    let output = heard.join().expect("no panic");
    println!("{output}");
    let sums = output.lines().find_map(|line| line.strip_prefix("| all | |  | "));
    let sums = sums.unwrap_or_else(|| panic!("no table: {status:?}\n{output}"));
    let counts: Vec<u64> = sums.split(['|', ' ']).filter_map(|count| count.parse().ok()).collect();
    let [attempts, right, others @ ..] = &counts[..] else { panic!("{sums}") };
    assert!(*attempts >= ATTEMPTS && attempts == right, "{output}");
    assert!(others.iter().all(|count| *count == 0), "{output}");
    assert_eq!(status, Some(0), "{output}");
}
