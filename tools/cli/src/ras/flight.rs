//! Files that PyTorch's analyser of flight recorders reads (`torchfrtrace`, format 2.10).

use oxccl_plan::{Collective, DataType};
use oxccl_runtime::ras::job::{Comm, Member, communicators};
use oxccl_runtime::recorder::Kind;
use oxccl_runtime::recorder::read::ProcessState;
use oxccl_runtime::recorder::read::{KernelReport, OperationReport, Process, RankReport};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The beginning of the names of all files; a rank's number follows.
const PREFIX: &str = "oxccl_rank_";
/// The analyser takes a collective and a message after it for parts of one call if they have one
/// number: messages count from here.
const MESSAGES_FROM: u64 = 1 << 32;
/// The limit that the analyser prints for operations without one, in ms.
const NO_LIMIT_MS: u64 = 0;

#[derive(Serialize)]
struct Dump {
    version: &'static str,
    comm_lib_version: &'static str,
    pg_config: BTreeMap<String, Group>,
    pg_status: BTreeMap<String, Progress>,
    entries: Vec<Entry>,
}

/// A communicator; `ranks` is a Python list as a text.
#[derive(Serialize)]
struct Group {
    name: String,
    desc: String,
    ranks: String,
}

#[derive(Serialize)]
struct Progress {
    last_enqueued_collective: i64,
    last_started_collective: i64,
    last_completed_collective: i64,
}

#[derive(Serialize)]
struct Entry {
    record_id: u64,
    pg_id: u64,
    process_group: (String, String),
    collective_seq_id: u64,
    p2p_seq_id: u64,
    op_id: u64,
    profiling_name: String,
    time_created_ns: u64,
    input_sizes: Vec<Vec<u64>>,
    input_dtypes: Vec<&'static str>,
    output_sizes: Vec<Vec<u64>>,
    output_dtypes: Vec<&'static str>,
    state: &'static str,
    time_discovered_started_ns: Option<u64>,
    time_discovered_completed_ns: Option<u64>,
    retired: bool,
    timeout_ms: u64,
    is_p2p: bool,
}

/// Returns a file for each rank of the largest communicator, by whose numbers the analyser calls
/// the ranks of all communicators. A group of several messages is left out: the analyser has no
/// form for it that says nothing wrong.
pub(super) fn files(processes: &[Process]) -> Vec<(String, Vec<u8>)> {
    let comms = communicators(processes);
    let Some(world) = comms.iter().max_by_key(|comm| comm.nranks) else { return Vec::new() };
    let members = world.members.iter();
    let known = comms.iter().map(|comm| (comm.number, known_from(comm))).collect();
    let file = |member: &Member<'_>| {
        let dump = dump(member.process, member.rank, world, &comms, &known);
        // Numbers, texts and lists can always be written.
        let bytes = serde_pickle::to_vec(&dump, serde_pickle::SerOptions::new());
        (format!("{PREFIX}{}", member.rank.rank), bytes.unwrap_or_default())
    };
    members.map(file).collect()
}

/// Returns the number of the first collective of a communicator that all of its ranks still know,
/// or have not called. The analyser takes what a rank does not know any more for what it missed.
fn known_from(comm: &Comm<'_>) -> u64 {
    let first = |member: &Member<'_>| {
        let of = member.rank.operations.iter().find(|op| op.kind == Kind::Collective);
        of.map_or(member.rank.collectives, |op| op.of_kind)
    };
    comm.members.iter().map(first).max().unwrap_or(0)
}

fn dump(
    process: &Process,
    own: &RankReport,
    world: &Comm<'_>,
    comms: &[Comm<'_>],
    known: &BTreeMap<u64, u64>,
) -> Dump {
    // Of a process with several ranks it is not known which thread has which of them.
    let alone = process.ranks.iter().filter(|rank| rank.comm == own.comm).count() == 1;
    let of_own = |rank: &&RankReport| rank.comm == own.comm && rank.rank == own.rank;
    let ranks: Vec<_> = process.ranks.iter().filter(|rank| alone || of_own(rank)).collect();
    let is_known = |(rank, op): &(&RankReport, &OperationReport)| {
        op.kind != Kind::Collective || known.get(&rank.comm).is_none_or(|from| op.of_kind >= *from)
    };
    let all = ranks.iter().flat_map(|rank| rank.operations.iter().map(move |op| (*rank, op)));
    let mut all: Vec<_> = all.filter(is_known).collect();
    all.sort_by_key(|(_, op)| op.called_ns);
    // From 0 on: the analyser leaves out what has lower numbers than the first entry of any rank.
    let entry = |(id, (rank, op))| entry(id, process, rank, op);
    let (mut pg_config, mut pg_status) = (BTreeMap::new(), BTreeMap::new());
    for (number, rank) in (0u64..).zip(&ranks) {
        if let Some(comm) = comms.iter().find(|comm| comm.number == rank.comm) {
            pg_config.insert(name(rank), group(rank, comm, world));
        }
        pg_status.insert(number.to_string(), progress(process, rank));
    }
    Dump {
        version: "2.10",
        comm_lib_version: concat!("OxCCL ", env!("CARGO_PKG_VERSION")),
        pg_config,
        pg_status,
        entries: (0..).zip(all).filter_map(entry).collect(),
    }
}

fn name(rank: &RankReport) -> String {
    format!("{:016x}", rank.comm)
}

fn description(rank: &RankReport) -> String {
    if rank.name.is_empty() { "undefined".to_owned() } else { rank.name.clone() }
}

/// Returns a communicator with its ranks by their numbers in the largest one, as far as these are
/// known.
fn group(rank: &RankReport, comm: &Comm<'_>, world: &Comm<'_>) -> Group {
    let in_world = |member: &Member<'_>| {
        let same = |other: &&Member<'_>| {
            (other.process.pid, &other.process.host) == (member.process.pid, &member.process.host)
        };
        world.members.iter().find(same).map(|other| other.rank.rank)
    };
    let ranks: Vec<u32> = match comm.number == world.number {
        true => (0..world.nranks).collect(),
        false => comm.members.iter().filter_map(in_world).collect(),
    };
    Group { name: name(rank), desc: description(rank), ranks: format!("{ranks:?}") }
}

/// Returns the state of an operation, by the words of the analyser.
pub(super) fn state(process: &Process, rank: &RankReport, op: &OperationReport) -> &'static str {
    match (rank.gpu, op.kind) {
        (None, _) if op.number < rank.finished => "completed",
        (None, _) if op.begun_ns.is_some() => "started",
        (None, _) => "scheduled",
        (Some(_), Kind::Collective) => state_on_gpu(process, rank, op),
        (Some(_), _) => state_beside(process, rank, op),
    }
}

/// Returns the state of what is no collective on a GPU. Of messages, kernels tell when they begin
/// and end once in a while, and that they wait.
fn state_beside(process: &Process, rank: &RankReport, op: &OperationReport) -> &'static str {
    let earlier = rank.operations.iter().filter(|of| of.number < op.number);
    let is_open = |of: &OperationReport| state_on_gpu(process, rank, of) != "completed";
    let waits = rank.waiting.is_some_and(|waiting| waiting.collective.is_none());
    let is_last = op.number.saturating_add(1) >= rank.issued;
    if earlier.filter(|of| of.kind == Kind::Collective).any(is_open) {
        return "scheduled";
    }
    match (op.begun_ns, op.ended_ns) {
        _ if waits && is_last => "started",
        (Some(_), None) => "started",
        _ => "completed",
    }
}

/// Returns the state of a collective on a GPU. A kernel that waits tells in which one it is; others
/// tell once in a while when they begin and end. Graphs that were launched
/// since the last call of which a kernel told make it uncertain which call a kernel is in.
fn state_on_gpu(process: &Process, rank: &RankReport, op: &OperationReport) -> &'static str {
    /// The time after a collective of which kernels told within which they may tell of no other
    /// one (`TELL_NS` in `watch.cuh`), with the difference of the clocks; and the time until
    /// somebody has looked at what they told.
    const UNTOLD_NS: u64 = 125_000_000;
    const UNSEEN_NS: u64 = 200_000_000;
    let told = |run: &&KernelReport| run.call.is_some() && run.number.is_some();
    let inside = rank.waiting.and_then(|waiting| waiting.collective);
    if let Some(inside) = inside {
        // The number of a call on the GPU, where graphs count, too.
        let ahead = rank.kernels.iter().rfind(told).and_then(|run| {
            let of = rank.operations.iter().find(|op| Some(op.number) == run.call)?;
            run.number?.checked_sub(of.of_kind)
        });
        if ahead.is_none() && inside.number >= rank.collectives {
            // Graphs have run, and no call of which a kernel told is known any more.
            let is_last = op.number.saturating_add(1) == rank.issued;
            let is_it = is_last && op.descriptor == inside.descriptor;
            return if is_it { "started" } else { "completed" };
        }
        let number = op.of_kind.saturating_add(ahead.unwrap_or(0));
        return match number.cmp(&inside.number) {
            Ordering::Less => "completed",
            Ordering::Equal => "started",
            Ordering::Greater => "scheduled",
        };
    }
    let is_past = rank.kernels.iter().any(|run| run.call > Some(op.number));
    match (op.begun_ns, op.ended_ns) {
        (_, Some(_)) => "completed",
        _ if is_past => "completed",
        (Some(_), None) => "started",
        // Nobody looks there at what kernels tell.
        _ if process.state == ProcessState::Stopped => "started",
        // Had it begun, a kernel would have told so.
        _ if process.read_ns.saturating_sub(op.called_ns) > UNSEEN_NS
            && rank
                .kernels
                .last()
                .is_none_or(|run| op.called_ns > run.begun_ns.saturating_add(UNTOLD_NS)) =>
        {
            "scheduled"
        }
        _ => "completed",
    }
}

fn progress(process: &Process, rank: &RankReport) -> Progress {
    let last = |states: &[&str]| {
        let is = |op: &&OperationReport| {
            op.kind == Kind::Collective && states.contains(&state(process, rank, op))
        };
        let last = rank.operations.iter().rfind(is);
        last.map_or(-1, |op| (op.of_kind as i64).saturating_add(1))
    };
    Progress {
        last_enqueued_collective: rank.collectives as i64,
        last_started_collective: last(&["started", "completed"]),
        last_completed_collective: last(&["completed"]),
    }
}

/// Returns the entry of an operation; `None` for what the analyser knows no name of.
fn entry(
    record_id: u64,
    process: &Process,
    rank: &RankReport,
    op: &OperationReport,
) -> Option<Entry> {
    let message = op.kind == Kind::Exchange;
    let (profiling_name, dtype, input, output) = match message {
        true => message_of(rank, op)?,
        false => collective_of(rank, op)?,
    };
    let (collective_seq_id, p2p_seq_id) = match message {
        true => (0, MESSAGES_FROM.saturating_add(op.of_kind)),
        false => (op.of_kind.saturating_add(1), 0),
    };
    let state = state(process, rank, op);
    Some(Entry {
        record_id,
        pg_id: 0,
        process_group: (name(rank), description(rank)),
        collective_seq_id,
        p2p_seq_id,
        op_id: op.number.saturating_add(1),
        profiling_name,
        time_created_ns: op.called_ns,
        input_sizes: vec![vec![input]],
        input_dtypes: vec![torch_name(dtype)],
        output_sizes: vec![vec![output]],
        output_dtypes: vec![torch_name(dtype)],
        state,
        time_discovered_started_ns: op.begun_ns,
        time_discovered_completed_ns: op.ended_ns,
        retired: state == "completed",
        timeout_ms: NO_LIMIT_MS,
        is_p2p: message,
    })
}

/// The name of an operation, its type, and the elements of its input and output.
type Shape = (String, DataType, u64, u64);

fn collective_of(rank: &RankReport, op: &OperationReport) -> Option<Shape> {
    // Those of a batch as one of all their elements.
    let batch = || {
        let (collective, dtype) = op.descriptor.batched()?;
        Some((collective, dtype, op.bytes / dtype.size() as u64))
    };
    let call = op.descriptor.call().map(|(collective, _, dtype, count)| (collective, dtype, count));
    let (collective, dtype, count) = call.or_else(batch)?;
    let all = count.saturating_mul(rank.nranks.into());
    let (name, input, output) = match collective {
        Collective::AllReduce => ("all_reduce", count, count),
        Collective::Broadcast => ("broadcast", count, count),
        Collective::Reduce => ("reduce", count, count),
        Collective::AllGather => ("all_gather", count, all),
        Collective::ReduceScatter => ("reduce_scatter", all, count),
        Collective::AllToAll => ("all_to_all", all, all),
        Collective::Gather => ("gather", count, all),
        Collective::Scatter => ("scatter", all, count),
    };
    Some((format!("nccl:{name}"), dtype, input, output))
}

fn message_of(rank: &RankReport, op: &OperationReport) -> Option<Shape> {
    let (peer, own) = (op.peer?, rank.rank);
    let dtype = op.descriptor.message_type()?;
    let name = match op.sends? {
        true => format!("nccl:send {own}->{peer}"),
        false => format!("nccl:recv {own}<-{peer}"),
    };
    let elements = op.bytes / dtype.size() as u64;
    (op.transfers == 1).then_some((name, dtype, elements, elements))
}

fn torch_name(dtype: DataType) -> &'static str {
    match dtype {
        DataType::Int8 => "Char",
        DataType::Uint8 => "Byte",
        DataType::Int32 => "Int",
        DataType::Uint32 => "UInt32",
        DataType::Int64 => "Long",
        DataType::Uint64 => "UInt64",
        DataType::Float16 => "Half",
        DataType::Float32 => "Float",
        DataType::Float64 => "Double",
        DataType::Bfloat16 => "BFloat16",
        DataType::Float8e4m3 => "Float8_e4m3fn",
        DataType::Float8e5m2 => "Float8_e5m2",
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use serde_json::{Value, json};

    const SECOND: u64 = 1_000_000_000;

    /// The states of three collectives that a rank on a GPU called, a second after each other, as
    /// read 10 s later; graphs replayed 5 before them.
    fn states(kernels: Value, waiting: Value) -> [&'static str; 3] {
        states_of("collective", kernels, waiting)
    }

    /// The same of operations of some kind.
    fn states_of(kind: &str, kernels: Value, waiting: Value) -> [&'static str; 3] {
        let times = (SECOND, 13 * SECOND);
        let mut process = sample::on_gpu(kind, times, &kernels, &waiting);
        let rank = &mut process.ranks[0];
        for run in &rank.kernels {
            let of = rank.operations.iter_mut().find(|op| Some(op.number) == run.call);
            let of = of.into_iter().filter(|op| op.kind == Kind::Exchange);
            of.for_each(|op| (op.begun_ns, op.ended_ns) = (Some(run.begun_ns), run.ended_ns));
        }
        let rank = &process.ranks[0];
        let states = rank.operations.iter().map(|op| state(&process, rank, op));
        states.collect::<Vec<_>>().try_into().expect("three")
    }

    /// A collective of which a kernel told, of the call of that number, at its time.
    fn run(call: u64) -> Value {
        let begun_ns = SECOND * (call + 1) + 1000;
        json!({
            "number": call + 5, "call": call, "what": "all_reduce", "begun_ns": begun_ns,
            "ended_ns": begun_ns + 5000,
        })
    }

    fn waits_in(number: u64) -> Value {
        let descriptor = json!({ "what": 0, "count": 1 });
        json!({
            "number": null, "peer": 1, "step": null, "since_ns": SECOND, "looked_ns": 2 * SECOND,
            "collective": { "number": number, "descriptor": descriptor, "peer_has_begun": false },
        })
    }

    #[test]
    fn a_kernel_that_waits_tells_how_far_its_gpu_has_come() {
        let all = json!([run(0), run(1)]);
        assert_eq!(states(all.clone(), waits_in(7)), ["completed", "completed", "started"]);
        assert_eq!(states(all.clone(), waits_in(6)), ["completed", "started", "scheduled"]);
        assert_eq!(states(json!([]), waits_in(0)), ["started", "scheduled", "scheduled"]);
        // After many collectives of graphs.
        assert_eq!(states(json!([]), waits_in(1000)), ["completed", "completed", "started"]);
    }

    #[test]
    fn messages_have_begun_if_a_kernel_tells_so_or_waits() {
        let of = |runs: &[Value], waiting| states_of("exchange", json!(runs), waiting);
        let mut runs = [run(0), run(1), run(2)];
        runs.iter_mut().for_each(|run| run["number"] = Value::Null);
        assert_eq!(of(&runs, Value::Null), ["completed"; 3]);
        runs[2]["ended_ns"] = Value::Null;
        assert_eq!(of(&runs, Value::Null), ["completed", "completed", "started"]);
        let mut waits = waits_in(0);
        waits["collective"] = Value::Null;
        assert_eq!(of(&[], waits), ["completed", "completed", "started"]);
        assert_eq!(of(&[], Value::Null), ["completed"; 3]);
    }

    #[test]
    fn collectives_of_which_no_kernel_told_in_time_have_not_begun() {
        let of = |kernels| states(kernels, Value::Null);
        assert_eq!(of(json!([run(0), run(1), run(2)])), ["completed"; 3]);
        assert_eq!(of(json!([run(0), run(1)])), ["completed", "completed", "scheduled"]);
        assert_eq!(of(json!([run(2)])), ["completed"; 3]);
        assert_eq!(of(json!([])), ["scheduled"; 3]);
        // Of those soon after one that was told nothing is known: they are done.
        let mut soon = run(2);
        (soon["call"], soon["begun_ns"]) = (Value::Null, (3 * SECOND - 100_000_000).into());
        assert_eq!(of(json!([run(0), run(1), soon])), ["completed"; 3]);
        // Another one told just before.
        let mut graph = run(1);
        (graph["call"], graph["begun_ns"]) = (Value::Null, (2 * SECOND - 1000).into());
        assert_eq!(of(json!([run(0), graph])), ["completed", "completed", "scheduled"]);
    }
}
