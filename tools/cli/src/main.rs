//! The `oxccl` command.

/// As that of the standard library, but for what cannot be written.
macro_rules! print {
    ($($text:tt)*) => { $crate::error::print(format_args!($($text)*)) };
}

/// As that of the standard library, but for what cannot be written.
macro_rules! println {
    () => { print!("\n") };
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}

mod api;
mod doctor;
mod env;
mod error;
mod given;
mod pci;
mod perf;
mod plan;
mod ras;
mod root;
mod run;
mod share;
mod topo;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Examples, environment and exit codes of `oxccl`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl perf all_reduce
  oxccl run -n 4 ./program
  oxccl help perf

Environment: oxccl env prints all variables of the library.

Exit code: 0; 1 if a command failed; 2 if it found something; of oxccl run that of the program.";

/// Collective communication between processes, measured and explained.
#[derive(Parser)]
#[command(name = "oxccl", version, max_term_width = 100, after_long_help = MORE)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Measure and check a collective, with the options and columns of nccl-tests.
    Perf(Box<perf::options::Options>),
    /// Start a program on several ranks, of this host or of others.
    Run(run::Options),
    /// Show which plan serves a call, and why.
    Plan(plan::Options),
    /// Tell what the ranks on this machine do, and why a job does not move.
    Ras(ras::Options),
    /// Print the environment variables with their values and meaning.
    Env(env::Options),
    /// Check this machine, or several hosts, before a job.
    Doctor(doctor::Options),
    /// Show the GPUs, adapters, processors and links of this machine.
    Topo(topo::Options),
    /// Write completions and manual pages; for `cargo xtask install`.
    #[command(hide = true)]
    Share(share::Options),
}

fn main() -> ExitCode {
    // 2 is the exit code of commands that have found something.
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) => {
            let code = if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            // An output that cannot be written to is no error.
            let _ = error.print();
            return code;
        }
    };
    if !matches!(command, Some(Command::Run(_))) {
        run::end_with_reader();
    }
    let outcome = match command {
        None => {
            // An output that cannot be written to is no error.
            let _ = Arguments::command().print_help();
            return ExitCode::SUCCESS;
        }
        Some(Command::Perf(options)) => perf::main(&options),
        Some(Command::Run(options)) => run::start(&options),
        Some(Command::Plan(options)) => plan::main(&options),
        Some(Command::Ras(options)) => ras::main(&options),
        Some(Command::Env(options)) => env::main(&options),
        Some(Command::Doctor(options)) => doctor::main(&options),
        Some(Command::Topo(options)) => topo::main(&options),
        Some(Command::Share(options)) => share::main(&options, Arguments::command()),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            error::say(&error.to_string());
            ExitCode::from(error.code())
        }
    }
}
