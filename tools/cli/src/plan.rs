//! `oxccl plan`: shows which plan serves a call, and why.

use crate::error::{Error, Result};
use crate::perf;
use oxccl_plan::select::{self, Memory, Policy};
use oxccl_plan::{Spec, simulate};
use oxccl_runtime::config::Config;
use oxccl_runtime::device;
use std::process::ExitCode;

/// Kinds of devices.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Host memory.
    Host,
    /// GPUs that reach each other's memory, each of one rank.
    Cuda,
}

/// Options of `oxccl plan`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The collective.
    collective: perf::options::Kind,
    /// Number of ranks.
    #[arg(long, short = 'n', default_value_t = 4)]
    ranks: u32,
    /// Bytes per block: the count of the call times the size of its type.
    #[arg(long, short = 'b', default_value = "1M", value_parser = perf::options::size)]
    bytes: u64,
    /// The root, for rooted collectives.
    #[arg(long, short = 'r', default_value_t = 0)]
    root: u32,
    /// Number of hosts among which the ranks are divided evenly; they talk over TCP.
    #[arg(long, default_value_t = 1)]
    hosts: u32,
    /// Location of the data; by default the device that the library would take here.
    #[arg(long)]
    device: Option<Kind>,
    /// Add the simulator's time of every plan.
    #[arg(long)]
    explain: bool,
    /// Print this rank's program of the chosen plan.
    #[arg(long, value_name = "RANK")]
    program: Option<u32>,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let Some(collective) = options.collective.collective() else {
        let text = "plan knows the eight collectives; send/recv follows each rank's own calls";
        return Err(Error::Options(text.to_owned()));
    };
    if options.ranks == 0 || options.root >= options.ranks {
        return Err(Error::Options("the root has to be one of at least one rank".to_owned()));
    }
    let is_host = match options.device {
        Some(kind) => kind == Kind::Host,
        None => device::current()?.is_host(),
    };
    let team = options.ranks / options.hosts.max(1);
    if team * options.hosts != options.ranks {
        return Err(Error::Options("every host has to have equally many ranks".to_owned()));
    }
    let topology =
        device::usual_topology(is_host, options.ranks, team, Config::get().wants_lines())?;
    let spec = Spec::new(collective, options.ranks, options.root);
    let policy = Policy { only: None, deterministic: Config::checked()?.deterministic };
    print!("{}", select::explain(spec, options.bytes, &topology, policy));
    if options.explain {
        let memory = Memory::Mapped;
        for candidate in select::candidates(spec, options.bytes, &topology, memory, policy) {
            let name = candidate.plan.algorithm.name();
            match simulate::time_us(&candidate.plan, options.bytes, &topology.model) {
                Ok(time_us) => println!("  {name:<16} {time_us:>12.2} us  simulated"),
                Err(fault) => println!("  {name:<16} {fault}"),
            }
        }
    }
    if let Some(rank) = options.program.filter(|&r| r < options.ranks)
        && let Some(choice) = select::choose(spec, options.bytes, &topology, policy)
    {
        let plan = choice.any_memory.plan;
        println!("program of rank {rank} of {}:", plan.algorithm.name());
        for (step, op) in plan.program(rank).ops.iter().enumerate() {
            println!("  {step:>4}  {op:?}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
