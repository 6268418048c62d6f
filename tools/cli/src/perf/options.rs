//! The options of `oxccl perf`: those of nccl-tests, and a few more.

use clap::ValueEnum;
use oxccl_plan::words::counted;
use oxccl_plan::{Collective, DataType, ReduceOp};

/// The operations that can be measured. Help and tables name them as nccl-tests does; an alias is
/// the name in the manner of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub(crate) enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    #[value(name = "alltoall", alias = "all_to_all")]
    AllToAll,
    Gather,
    Scatter,
    /// Each rank sends to the next one, and receives from the one before.
    #[value(name = "sendrecv", alias = "send_recv")]
    SendRecv,
    /// Ranks 0 and 1, 2 and 3, and so on send to each other.
    #[value(name = "sendrecv_pairs", alias = "send_recv_pairs")]
    SendRecvPairs,
    /// As sendrecv, in a group of 64 messages.
    #[value(name = "sendrecv_many", alias = "send_recv_many")]
    SendRecvMany,
    /// All of them, one after the other.
    All,
}

impl Kind {
    pub(crate) const EACH: [Kind; 11] = [
        Kind::AllReduce,
        Kind::Broadcast,
        Kind::Reduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Gather,
        Kind::Scatter,
        Kind::SendRecv,
        Kind::SendRecvPairs,
        Kind::SendRecvMany,
    ];

    /// Returns the collective; `None` for sends and receives, and for all.
    pub(crate) fn collective(self) -> Option<Collective> {
        Some(match self {
            Kind::AllReduce => Collective::AllReduce,
            Kind::Broadcast => Collective::Broadcast,
            Kind::Reduce => Collective::Reduce,
            Kind::AllGather => Collective::AllGather,
            Kind::ReduceScatter => Collective::ReduceScatter,
            Kind::AllToAll => Collective::AllToAll,
            Kind::Gather => Collective::Gather,
            Kind::Scatter => Collective::Scatter,
            Kind::SendRecv | Kind::SendRecvPairs | Kind::SendRecvMany | Kind::All => return None,
        })
    }

    /// Returns the messages into which a rank's data are cut: those of a group of sends, or one.
    pub(crate) fn messages(self) -> u64 {
        if self == Kind::SendRecvMany { 64 } else { 1 }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::SendRecvPairs => "sendrecv_pairs",
            Kind::SendRecvMany => "sendrecv_many",
            _ => self.collective().map_or("sendrecv", Collective::name),
        }
    }

    /// Returns the function of C that it calls; for sends and receives one that has the other
    /// beside it.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Kind::AllReduce | Kind::All => "ncclAllReduce",
            Kind::Broadcast => "ncclBroadcast",
            Kind::Reduce => "ncclReduce",
            Kind::AllGather => "ncclAllGather",
            Kind::ReduceScatter => "ncclReduceScatter",
            Kind::AllToAll => "ncclAlltoAll",
            Kind::Gather => "ncclGather",
            Kind::Scatter => "ncclScatter",
            Kind::SendRecv | Kind::SendRecvPairs | Kind::SendRecvMany => "ncclSend",
        }
    }

    /// Returns the kinds to measure between so many ranks.
    pub(crate) fn wanted(self, nranks: u32) -> Result<Vec<Kind>, String> {
        let possible = |kind: &Kind| *kind != Kind::SendRecvPairs || nranks.is_multiple_of(2);
        match self {
            Kind::All => Ok(Kind::EACH.into_iter().filter(possible).collect()),
            kind if possible(&kind) => Ok(vec![kind]),
            _ => Err(format!(
                "sendrecv_pairs on {}; expected an even number of them, since each has a partner",
                counted(nranks, "rank", "ranks")
            )),
        }
    }
}

/// The location of buffers that the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wanted {
    /// As OXCCL_DEVICE says; without it CUDA where there is a GPU, else the host.
    Auto,
    /// Host memory.
    Host,
    /// GPU memory.
    Cuda,
}

/// Reads a number of bytes with an optional suffix K, M, G or T (powers of 1024).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let text = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    /// More than any machine has: what is to be added to it does not overflow.
    const MOST: f64 = (1u64 << 50) as f64;
    let bytes = digits.parse::<f64>().ok().map(|number| number * (1u64 << shift) as f64);
    let bytes = bytes.filter(|bytes| (0.0..=MOST).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| "a size like 8, 64K or 32M".to_owned())
}

fn dtypes(text: &str) -> Result<Vec<DataType>, String> {
    if text == "all" {
        return Ok(DataType::ALL.to_vec());
    }
    let found = DataType::ALL.into_iter().find(|t| t.name() == text);
    let names: Vec<_> = DataType::ALL.iter().map(|t| t.name()).collect();
    found.map(|t| vec![t]).ok_or_else(|| format!("one of {}, all", names.join(", ")))
}

fn ops(text: &str) -> Result<Vec<ReduceOp>, String> {
    if text == "all" {
        return Ok(ReduceOp::ALL.to_vec());
    }
    let found = ReduceOp::ALL.into_iter().find(|o| o.name() == text);
    found.map(|o| vec![o]).ok_or_else(|| "one of sum, prod, max, min, avg, all".to_owned())
}

/// The list that one value of an option stands for.
type List<T> = Vec<T>;

/// Examples, environment and exit codes of `oxccl perf`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl perf all_reduce -b 8 -e 128M -f 2
  oxccl perf all --ranks 4 --json all.json --plot all.svg
  oxccl perf all_gather --vs /usr/lib/x86_64-linux-gnu/libnccl.so.2 -R 0
  oxccl perf --matrix --ranks 4 --plot pairs.svg
  mpirun -n 4 oxccl perf alltoall

Environment: OXCCL_DEVICE (auto, host, cuda), and all variables of the library: see oxccl env.

Exit code: 0 if all results were right, 2 if some were wrong, 1 after other failures.";

/// Options of `oxccl perf`.
#[derive(clap::Args, Clone)]
#[command(after_long_help = MORE)]
pub(crate) struct Options {
    /// Operation to measure [default: all_reduce].
    collective: Option<Kind>,
    /// Smallest size in bytes.
    #[arg(short = 'b', long = "minbytes", default_value = "8", value_parser = size)]
    pub(crate) min_bytes: u64,
    /// Largest size in bytes.
    #[arg(short = 'e', long = "maxbytes", default_value = "32M", value_parser = size)]
    pub(crate) max_bytes: u64,
    /// Step between sizes in bytes, instead of a factor.
    #[arg(short = 'i', long = "stepbytes", value_parser = size)]
    pub(crate) step_bytes: Option<u64>,
    /// Factor between sizes.
    #[arg(short = 'f', long = "stepfactor", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) step_factor: u64,
    /// Timed iterations per size (default: more for small sizes).
    #[arg(short = 'n', long = "iters", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: Option<u32>,
    /// Iterations before the timed ones.
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 5)]
    pub(crate) warmup: u32,
    /// Operations launched as one group per iteration.
    #[arg(short = 'm', long = "agg_iters", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) aggregate: u32,
    /// Checked iterations on fresh random data, per size and place; 0 for none.
    #[arg(short = 'c', long = "check", default_value_t = 1)]
    pub(crate) check: u32,
    /// Type of elements, such as float, double, half, bfloat16, int32 or uint8, or all.
    #[arg(short = 'd', long = "datatype", default_value = "float", value_parser = dtypes)]
    pub(crate) dtypes: List<DataType>,
    /// Reduction operation (sum, prod, max, min, avg), or all.
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = ops)]
    pub(crate) ops: List<ReduceOp>,
    /// Root, or all.
    #[arg(short = 'r', long = "root", default_value = "0")]
    pub(crate) root: String,
    /// Ranks per thread.
    #[arg(short = 'g', long = "ngpus", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) per_thread: u32,
    /// Threads per process.
    #[arg(short = 't', long = "nthreads", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) threads: u32,
    /// Capture the iterations in a graph and launch it this many times, after all ranks have met; 0
    /// for no graph.
    #[arg(short = 'G', long = "cudagraph", default_value_t = 0)]
    pub(crate) graph: u32,
    /// Synchronise after every operation (1), or once after all (0).
    #[arg(short = 'z', long = "blocking", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=1))]
    pub(crate) blocking: u32,
    /// Buffers: 0 of which the library knows nothing (malloc; on GPUs as cudaMalloc gives them), 1
    /// from ncclMemAlloc and registered, 2 from ncclMemAlloc in symmetric windows.
    #[arg(short = 'R', long = "local_register", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(0..=2))]
    pub(crate) register: u32,
    /// Times reported: 0 of rank 0, 1 average, 2 minimum, 3 maximum over ranks.
    #[arg(short = 'a', long = "average", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(0..=3))]
    pub(crate) average: u32,
    /// Start this many processes on this host, and as many again for --vs. Without this, without
    /// -t, -g and a launcher: a process for each GPU or, in host memory, for each processor, from 2
    /// to 16.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ranks: Option<u32>,
    /// Why there are so many processes, of which this is one, where the user did not say how many.
    #[arg(long, hide = true)]
    pub(crate) ranks_by: Option<String>,
    /// The process that has started this one for `--ranks`, or without it.
    #[arg(long, hide = true)]
    pub(crate) launcher: Option<i32>,
    /// Bind process i to processor i.
    #[arg(long)]
    pub(crate) pin: bool,
    /// Location of the buffers.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) device: Wanted,
    /// Measure this NCCL-compatible library instead of the built-in one.
    #[arg(long, value_name = "PATH")]
    pub(crate) lib: Option<String>,
    /// Measure this library too, such as NVIDIA's libnccl.so.2, in turn and in processes of its
    /// own, and print the ratio of its times to those of the first library. With --pin times of
    /// small sizes differ less from run to run.
    #[arg(long, value_name = "PATH")]
    pub(crate) vs: Option<String>,
    /// Buffers of the library of --vs, as -R numbers them, where they are to be others: what each
    /// library is fastest with.
    #[arg(long, requires = "vs", value_name = "LOCAL_REGISTER",
          value_parser = clap::value_parser!(u32).range(0..=2))]
    pub(crate) vs_register: Option<u32>,
    /// Have every two ranks exchange data alone, pair after pair, of the smallest and the largest
    /// size, and print the times and bandwidths as tables; with --plot as a picture.
    #[arg(long, conflicts_with_all = ["collective", "vs", "tune", "compare"])]
    pub(crate) matrix: bool,
    /// Write the results as a JSON document to this file: host, device, ranks, versions and date,
    /// and a list of rows; with - to the standard output, and the table to the standard error.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<String>,
    /// Draw the time and the bus bandwidth over the size into this file; with --vs the ratio of the
    /// times instead of the bandwidth.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<String>,
    /// Measure nothing; compare two files of --json and print what fell by more than 5 %: the ratio
    /// of the times where both have it, else the speed.
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
    pub(crate) compare: Option<Vec<String>>,
    /// Measure all plans, and write the rules by which the tuner plugin takes the fastest.
    #[arg(long, value_name = "FILE")]
    pub(crate) tune: Option<String>,
    /// With --matrix, write the variables that each rank is given, too, for oxccl doctor.
    #[arg(long, hide = true, requires = "matrix")]
    pub(crate) variables: bool,
    /// The table of this process's plugin, for --tune.
    #[arg(long, hide = true, requires = "tune")]
    pub(crate) tune_rules: Option<std::path::PathBuf>,
}

impl Options {
    /// Fails if there is no size to measure.
    pub(crate) fn check_sizes(&self) -> Result<(), String> {
        if self.step_bytes == Some(0) {
            return Err("-i 0: expected a step of at least one byte".to_owned());
        }
        let (least, most) = (self.min_bytes, self.max_bytes);
        if least <= most {
            let steps = self.step_bytes.map_or(0, |step| (most - least) / step);
            return match steps {
                0..=1_000_000 => Ok(()),
                _ => Err(format!("-i: {steps} sizes; expected a million at most")),
            };
        }
        Err(format!(
            "-b {least} is more than -e {most}: expected a smallest size up to the largest"
        ))
    }

    /// Returns the operation to measure.
    pub(crate) fn kind(&self) -> Kind {
        self.collective.unwrap_or(Kind::AllReduce)
    }

    /// Returns the options for one of the libraries: the first one, or that of `--vs`.
    pub(crate) fn of_library(&self, library: u32) -> Self {
        let register = self.vs_register.filter(|_| library > 0).unwrap_or(self.register);
        Self { register, ..self.clone() }
    }

    /// Returns the options of a process that is as many ranks as there are for this reason.
    pub(crate) fn with_ranks_by(&self, reason: Option<&str>) -> Self {
        Self { ranks_by: reason.map(str::to_owned), ..self.clone() }
    }

    /// Returns the sizes to measure.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let mut sizes = Vec::new();
        let mut next = self.min_bytes;
        while next <= self.max_bytes {
            sizes.push(next);
            next = match self.step_bytes {
                Some(step) => next.saturating_add(step),
                None => next.saturating_mul(self.step_factor).max(1),
            };
        }
        sizes
    }

    /// Returns the number of timed iterations for a size, so that all sizes take about as long.
    /// GPUs get more iterations between waits, because a wait takes as long as several of them.
    pub(crate) fn iterations(&self, bytes: u64, on_gpus: bool) -> u32 {
        let [small, medium, large, huge] =
            if on_gpus { [400, 300, 150, 60] } else { [400, 100, 20, 5] };
        self.iterations.unwrap_or(match bytes {
            0..=65_536 => small,
            65_537..=1_048_576 => medium,
            1_048_577..=8_388_608 => large,
            _ => huge,
        })
    }

    /// Returns the roots to measure.
    pub(crate) fn roots(&self, nranks: u32) -> Result<Vec<u32>, String> {
        if self.root == "all" {
            return Ok((0..nranks).collect());
        }
        let root = self.root.parse().ok().filter(|&r| r < nranks);
        root.map(|r| vec![r])
            .ok_or_else(|| format!("-r {}: expected 0 to {} or all", self.root, nranks - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_names_of_nccl_tests_and_aliases_like_the_others() {
        for kind in Kind::EACH {
            assert_eq!(Kind::from_str(kind.name(), false), Ok(kind));
        }
        for (alias, kind) in [
            ("all_to_all", Kind::AllToAll),
            ("send_recv", Kind::SendRecv),
            ("send_recv_pairs", Kind::SendRecvPairs),
            ("send_recv_many", Kind::SendRecvMany),
        ] {
            assert_eq!(Kind::from_str(alias, false), Ok(kind));
        }
    }

    #[test]
    fn sizes_with_suffixes() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("1K"), Ok(1024));
        assert_eq!(size("32M"), Ok(32 << 20));
        assert_eq!(size("0.5GiB"), Ok(1 << 29));
        assert_eq!(size("1T"), Ok(1 << 40));
        for wrong in ["x", "-8", "nan", "inf", "1e30", "2000T", ""] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
