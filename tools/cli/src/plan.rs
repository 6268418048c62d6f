//! `oxccl plan`: shows which plan serves a call, and why.

use crate::error::{Error, Result};
use crate::perf::options::{Kind, size};
use oxccl_plan::select::{self, Policy, Topology};
use oxccl_plan::words::counted;
use oxccl_plan::{Spec, explain, lines};
use oxccl_runtime::bootstrap::root::MAX_RANKS;
use oxccl_runtime::config::Config;
use oxccl_runtime::{comm, device};
use std::process::ExitCode;

/// Kinds of devices.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DeviceKind {
    /// Host memory.
    Host,
    /// GPUs that reach each other's memory, each of one rank.
    Cuda,
}

/// Examples and environment of `oxccl plan`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl plan all_reduce -n 8 -b 1M
  oxccl plan all -n 16 --hosts 2 -b 64K
  oxccl plan all_gather -n 4 --device cuda --program 0

Environment: OXCCL_ALGORITHM, OXCCL_DETERMINISTIC, NCCL_PROTO and OXCCL_DEVICE change what is
chosen.

Exit code: 0, or 1 for options or variables that cannot be used.";

/// Options of `oxccl plan`.
#[derive(clap::Args)]
#[command(after_long_help = MORE)]
pub(crate) struct Options {
    /// The collective, messages, or all of them.
    collective: Kind,
    /// Number of ranks.
    #[arg(long, short = 'n', default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: u32,
    /// Bytes per block: the count of the call times the size of its type.
    #[arg(long, short = 'b', default_value = "1M", value_parser = size)]
    bytes: u64,
    /// The root, for rooted collectives.
    #[arg(long, short = 'r', default_value_t = 0)]
    root: u32,
    /// Number of hosts among which the ranks are divided evenly; they talk over TCP.
    #[arg(long, default_value_t = 1)]
    hosts: u32,
    /// Location of the data; by default the device that the library would take here.
    #[arg(long)]
    device: Option<DeviceKind>,
    /// Say why: where the time of each plan goes by the cost model, what its busiest rank does, and
    /// for which sizes the choice is the same.
    #[arg(long)]
    explain: bool,
    /// Print this rank's program of the chosen plan.
    #[arg(long, value_name = "RANK")]
    program: Option<u32>,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let kinds = options.collective.wanted(options.ranks).map_err(Error::Options)?;
    if options.root >= options.ranks {
        let text = format!(
            "--root: rank {} of {}; expected a rank below that",
            options.root, options.ranks
        );
        return Err(Error::Options(text));
    }
    if let Some(rank) = options.program.filter(|&rank| rank >= options.ranks) {
        let text =
            format!("--program: rank {rank} of {}; expected a rank below that", options.ranks);
        return Err(Error::Options(text));
    }
    let is_host = match options.device {
        Some(kind) => kind == DeviceKind::Host,
        None => device::current()?.is_host(),
    };
    let team = options.ranks / options.hosts.max(1);
    if team * options.hosts != options.ranks {
        let text = format!(
            "--hosts: {} on {}; expected equally many on each",
            counted(options.ranks, "rank", "ranks"),
            counted(options.hosts, "host", "hosts")
        );
        return Err(Error::Options(text));
    }
    let config = Config::checked()?;
    let policy = comm::policy_of(config)?;
    // As a communicator does without lines where they carry nothing of the one algorithm.
    let lines = config.wants_lines() && policy.single().is_none_or(lines::carry);
    let topology = device::usual_topology(is_host, options.ranks, team, lines)?;
    for (number, kind) in kinds.into_iter().enumerate() {
        if number > 0 {
            println!();
        }
        match kind.collective() {
            Some(collective) => {
                let spec = Spec::new(collective, options.ranks, options.root);
                show(spec, options, &topology, policy);
            }
            None => {
                let shape = (options.ranks, kind.messages());
                print!("{}", explain::messages(kind.name(), shape, options.bytes, &topology));
                if options.explain {
                    print!("{}", explain::message_reasons(shape, options.bytes, &topology));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints which plan serves a collective. As in a communicator, all algorithms may where the one
/// that is asked for does not serve.
fn show(spec: Spec, options: &Options, topology: &Topology, mut policy: Policy) {
    if let Some(only) = policy.single()
        && select::choose(spec, options.bytes, topology, policy).is_none()
    {
        println!("OXCCL_ALGORITHM={} does not serve {}:", only.name(), spec.collective.name());
        policy.only = None;
    }
    print!("{}", explain::table(spec, options.bytes, topology, policy));
    if options.explain {
        print!("{}", explain::reasons(spec, options.bytes, topology, policy));
    }
    if let Some(rank) = options.program
        && let Some(choice) = select::choose(spec, options.bytes, topology, policy)
    {
        let plan = choice.any_memory.plan;
        println!("program of rank {rank} of {}:", plan.algorithm.name());
        for (step, op) in plan.program(rank).ops.iter().enumerate() {
            println!("  {step:>4}  {op:?}");
        }
    }
}
