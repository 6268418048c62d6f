//! Explanations of choices, in lines for a person.

use crate::carrier::Carrier;
use crate::cost::CostModel;
use crate::ir::{Buffer, Capacity, Destination, Geometry, Op, Slice};
use crate::lines::is_chain;
use crate::select::{self, Candidate, Memory, Policy, Topology, candidates, choose};
use crate::words::counted;
use crate::{Plan, Spec};
use std::fmt::Write;

/// Returns the plans among which a call is chosen with their times by the cost model, and which
/// is chosen.
pub fn table(spec: Spec, bytes: u64, topology: &Topology, policy: Policy) -> String {
    let mut text = format!(
        "{} of {} per block on {}, {}\n",
        spec.collective.name(),
        counted(bytes, "byte", "bytes"),
        counted(spec.nranks, "rank", "ranks"),
        between(topology)
    );
    let Some(choice) = choose(spec, bytes, topology, policy) else {
        return text + " no plan serves what the policy asks for\n";
    };
    let mapped = choice.mapped.map_or(choice.any_memory.plan, |route| route.plan);
    for (memory, title, chosen) in [
        (Memory::Any, "any memory", choice.any_memory.plan),
        (Memory::Mapped, "memory that all ranks map", mapped),
        (Memory::Windows, "memory in windows", mapped),
    ] {
        if memory == Memory::Windows && !choice.engines {
            continue;
        }
        text += &format!(" {title}:\n");
        let of = |policy| candidates(spec, bytes, topology, memory, policy);
        for Candidate { plan, cost_us, .. } in serving(policy, of) {
            // If no other plan pays for mapped memory, mapped memory is treated as any memory.
            let as_any = chosen == choice.any_memory.plan;
            let (memory, cost_us) = match as_any && plan == chosen {
                true => (Memory::Any, select::cost_us(&plan, bytes, topology, Memory::Any)),
                false => (memory, cost_us),
            };
            let carrier = Carrier::of(&plan, bytes, topology, memory).name();
            let mark = if plan == chosen { "  chosen" } else { "" };
            let name = plan.algorithm.name();
            text += &format!("  {name:<16} {carrier:<12} {cost_us:>12.2} us{mark}\n");
        }
    }
    text
}

/// Returns what lies between the ranks.
fn between(topology: &Topology) -> String {
    match topology.team {
        _ if topology.direct => "all sharing memory".to_owned(),
        1 => "over the network".to_owned(),
        team => format!("over the network, in teams of {team}"),
    }
}

/// Returns how messages go, and the time by the cost model of a group in which each rank sends and
/// receives `count` messages that have so many bytes together in each direction.
pub fn messages(
    name: &str,
    (nranks, count): (u32, u64),
    bytes: u64,
    topology: &Topology,
) -> String {
    let (carrier, cost_us) = message_cost((nranks, count), bytes, topology);
    let (between, carrier) = (between(topology), carrier.name());
    let cut = if count > 1 { format!(" in {count} messages") } else { String::new() };
    let bytes = counted(bytes, "byte", "bytes");
    let from = match nranks {
        1 => "a rank to itself".to_owned(),
        _ => format!("each of {nranks} ranks"),
    };
    format!(
        "{name} of {bytes}{cut} from {from}, {between}\n \
         no plan: each rank's own calls say what goes where\n  {:<16} {carrier:<12} \
         {cost_us:>12.2} us\n",
        "messages"
    )
}

/// Returns what carries a group of messages as of [`messages`], and its time by the cost model.
fn message_cost((nranks, count): (u32, u64), bytes: u64, topology: &Topology) -> (Carrier, f64) {
    let each = bytes / count.max(1);
    let ends: Vec<_> = (0..count).flat_map(|_| [(each, true), (each, false)]).collect();
    // A rank alone sends to itself.
    let (ends, own) = if nranks > 1 { (&ends[..], 0) } else { (&ends[..0], bytes) };
    let carrier = match (nranks, topology.lines) {
        (..=1, _) => Carrier::Local,
        (_, true) => Carrier::Lines,
        (_, false) => Carrier::Edges,
    };
    (carrier, topology.model.for_buffer(2 * bytes).messages_us(ends, own))
}

/// Returns what decides how messages go, where their time goes by the cost model, and what each
/// rank does.
pub fn message_reasons((nranks, count): (u32, u64), bytes: u64, topology: &Topology) -> String {
    let (carrier, cost_us) = message_cost((nranks, count), bytes, topology);
    // A byte for each message, as none of them is left out then.
    let fixed_us = message_cost((nranks, count), count.min(bytes), topology).1.min(cost_us);
    let moved = (u32::try_from(count).unwrap_or(u32::MAX), bytes);
    let work = match nranks {
        1 => Work { copied: bytes, ..Work::default() },
        _ => Work { sent: moved, received: moved, ..Work::default() },
    };
    let way = match carrier {
        Carrier::Local => "from a rank's own memory to its own memory",
        Carrier::Lines => "in lines between GPUs that reach each other's memory",
        _ => "by edges, each between two ranks",
    };
    let bytes_us = cost_us - fixed_us;
    let mut text = format!(
        " Messages always go {way}: nothing is chosen.\n  {:<16} {fixed_us:.2} us for any size + \
         {bytes_us:.2} us\n",
        "messages"
    );
    if bytes > 0 {
        let _ = writeln!(text, "  {:<16} {}", "", work.text());
    }
    text
}

/// Returns the candidates `of` a policy; of all algorithms where those that it selects need other
/// memory, as in [`select::Candidates::new`].
fn serving(policy: Policy, of: impl Fn(Policy) -> Vec<Candidate>) -> Vec<Candidate> {
    let selected = of(policy);
    if selected.is_empty() { of(Policy { only: None, ..policy }) } else { selected }
}

/// Returns why plans are chosen: where the time of each one goes by the cost model, what its
/// busiest rank does, and which one is chosen for any memory by the size. Of memory that all
/// ranks map only what is chosen there, if it is another plan. Empty where no plan serves.
pub fn reasons(spec: Spec, bytes: u64, topology: &Topology, policy: Policy) -> String {
    let Some(choice) = choose(spec, bytes, topology, policy) else { return String::new() };
    let of = |memory| serving(policy, |policy| candidates(spec, bytes, topology, memory, policy));
    let all = of(Memory::Any);
    let mut text = reason(&choice.any_memory.plan, &all, "any memory");
    text += &sizes(spec, topology, policy);
    let detail = |of: &Candidate, memory| detail(of, memory, (bytes, topology));
    all.iter().for_each(|candidate| text += &detail(candidate, Memory::Any));
    let Some(mapped) = choice.mapped.map(|route| route.plan) else { return text };
    let windows = choice.engines.then_some((Memory::Windows, "memory in windows"));
    for (memory, title) in
        [Some((Memory::Mapped, "memory that all ranks map")), windows].into_iter().flatten()
    {
        let all = of(memory);
        text += &reason(&mapped, &all, title);
        let chosen = all.iter().find(|candidate| candidate.plan == mapped);
        chosen.iter().for_each(|candidate| text += &detail(candidate, memory));
    }
    text
}

/// Returns the line that tells which plan is chosen among some, and by how much.
fn reason(chosen: &Plan, all: &[Candidate], title: &str) -> String {
    let mut text = format!(" {} is chosen for {title}", chosen.algorithm.name());
    let own = all.iter().find(|candidate| candidate.plan == *chosen);
    let next = all.iter().find(|candidate| candidate.plan != *chosen);
    if let Some((own, next)) = own.zip(next)
        && own.cost_us <= next.cost_us
    {
        let less = ((1.0 - own.cost_us / next.cost_us) * 100.0).round();
        let name = next.plan.algorithm.name();
        let _ = match less {
            0.0 => write!(text, ": by the cost model it takes as long as {name}"),
            _ => write!(text, ": by the cost model it takes {less} % less than {name}"),
        };
    }
    text + ".\n"
}

/// Returns where the time of a plan goes, and what its busiest rank does.
fn detail(of: &Candidate, memory: Memory, (bytes, topology): (u64, &Topology)) -> String {
    let Candidate { plan, carrier, cost_us } = of;
    let model = match carrier {
        Carrier::Lines => topology.model.lines(&plan.spec, is_chain(plan)),
        _ => topology.model,
    };
    let fixed_us = select::cost_us(plan, 1, topology, memory).min(*cost_us);
    let (name, bytes_us) = (plan.algorithm.name(), cost_us - fixed_us);
    let mut text = format!("  {name:<16} {fixed_us:.2} us for any size + {bytes_us:.2} us\n");
    let busiest = (0..plan.spec.nranks).map(|rank| Work::of(plan, rank, bytes, &model));
    if let Some(work) = busiest.max_by_key(Work::bytes) {
        let _ = writeln!(text, "  {:<16} {}", "", work.text());
    }
    text
}

/// The largest size that is looked at for the same choice, as a power of two.
const LARGEST: u32 = 40;

/// Returns a line with what is chosen for any memory by the size; empty if it is the same for all.
fn sizes(spec: Spec, topology: &Topology, policy: Policy) -> String {
    let chosen = |bytes| {
        let choice = choose(spec, bytes, topology, policy);
        choice.map_or("none", |choice| choice.any_memory.plan.algorithm.name())
    };
    let mut name = chosen(1);
    let mut text = name.to_owned();
    for power in 0..LARGEST {
        // The choice changes at most once between two powers of two, or almost so.
        let (mut before, mut after) = (1u64 << power, 2u64 << power);
        if chosen(after) == name {
            continue;
        }
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            *(if chosen(middle) == name { &mut before } else { &mut after }) = middle;
        }
        name = chosen(2u64 << power);
        text += &format!(", from {} on {name}", size_text(after));
    }
    if text.contains(',') { format!(" By size it is {text}.\n") } else { String::new() }
}

/// The work of a rank in a call: bytes that it moves, and how often. Of operands that are folded,
/// the first one does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    copied: u64,
    sent: (u32, u64),
    received: (u32, u64),
    read: (u32, u64),
    written: (u32, u64),
    folded: u64,
    signals: u32,
}

impl Work {
    /// Returns what a rank does in a plan for blocks of so many bytes, which pass through slots of
    /// the model's sizes in windows.
    fn of(plan: &Plan, rank: u32, bytes: u64, model: &CostModel) -> Self {
        let room = Capacity {
            edge_slot_elems: model.edge_slot_bytes,
            message_elems: model.message_bytes,
            stage_slot_elems: model.stage_slot_bytes,
            align_elems: 1,
        };
        let windows = Geometry::new(&plan.layout, bytes, &room).windows() as u32;
        let (parts, window_elems) = (plan.layout.parts, bytes.max(1));
        let whole = Geometry::of_windows(bytes, parts, window_elems, 1);
        let len = |slice: Slice| whole.range(0, slice.part, slice.parts).1;
        let peers = u64::from(plan.spec.nranks - 1);
        let mut work = Self::default();
        // Nothing is sent or read where a slice is empty.
        let add = |to: &mut (u32, u64), len: u64, times: u32| {
            to.0 += if len > 0 { times * windows } else { 0 };
            to.1 += len;
        };
        for op in plan.program(rank).ops {
            match op {
                Op::Copy { src, .. } => work.copied += len(src),
                Op::Send { src, .. } => add(&mut work.sent, len(src), 1),
                Op::Recv { dst, .. } => add(&mut work.received, len(dst), 1),
                Op::RecvReduce { dst, .. } => {
                    add(&mut work.received, len(dst), 1);
                    work.folded += len(dst);
                }
                Op::Get { dst, .. } => add(&mut work.read, len(dst), 1),
                Op::Put { src, .. } => add(&mut work.written, len(src), 1),
                Op::Reduce { src, own, dst, .. } => {
                    // The inbox is this rank's own.
                    if src.buffer != Buffer::Inbox {
                        add(&mut work.read, peers * len(own), peers as u32);
                    }
                    work.folded += peers * len(own);
                    match dst {
                        Destination::Own(_) => {}
                        Destination::Both(_, second) => work.copied += len(second),
                        Destination::Peer(_, dst) => add(&mut work.written, len(dst), 1),
                        Destination::Everyone(dst) | Destination::Inboxes(dst, _) => {
                            add(&mut work.written, peers * len(dst), peers as u32);
                        }
                    }
                }
                Op::Fold { dst, count, .. } => work.folded += u64::from(count - 1) * len(dst),
                Op::Signal => work.signals += windows,
                Op::Acquire | Op::Wait { .. } => {}
            }
        }
        work
    }

    /// Returns all bytes that the rank moves.
    fn bytes(&self) -> u64 {
        let moved = [self.sent, self.received, self.read, self.written].map(|(_, bytes)| bytes);
        self.copied + self.folded + moved.iter().sum::<u64>()
    }

    fn text(&self) -> String {
        let times = |verb: &str, what: &str, (times, bytes): (u32, u64)| {
            let pieces = || counted(times, what, &format!("{what}s"));
            (times > 0).then(|| format!("{verb} {} in {}", size_text(bytes), pieces()))
        };
        let some =
            |verb: &str, bytes: u64| (bytes > 0).then(|| format!("{verb} {}", size_text(bytes)));
        let signals = match self.signals {
            0 => None,
            1 => Some("signals once".to_owned()),
            times => Some(format!("signals {times} times")),
        };
        let all = [
            times("sends", "message", self.sent),
            times("receives", "message", self.received),
            times("reads", "piece", self.read).map(|text| text + " of peers"),
            times("writes", "piece", self.written).map(|text| text + " of peers"),
            some("folds", self.folded),
            some("copies", self.copied),
            signals,
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Returns a number of bytes as `1.5 MiB`.
fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).min(UNITS.len() as u32);
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    let value = if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") };
    format!("{value} {}", UNITS[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collective;

    #[test]
    fn what_a_rank_does_is_counted() {
        let work = |algorithm: &str, spec: Spec, rank, bytes| {
            let mut plans = Plan::candidates(spec);
            let plan = plans.find(|plan| plan.algorithm.name() == algorithm).expect("a plan");
            Work::of(&plan, rank, bytes, &CostModel::SHARED_MEMORY)
        };
        let all_reduce = Spec::new(Collective::AllReduce, 4, 0);
        let ring = work("ring", all_reduce, 1, 4096);
        let text = "sends 6 KiB in 6 messages, receives 6 KiB in 6 messages, folds 3 KiB";
        assert_eq!(ring.text(), text);
        // A part passes through slots of 64 KiB.
        let windows = work("ring", all_reduce, 1, 1 << 20);
        assert_eq!((windows.sent, windows.folded), ((24, 3 << 19), 3 << 18));
        // Elements of one part alone are sent, by the rank that has them or the sum.
        assert_eq!(work("ring", all_reduce, 1, 1).sent.1, 2);
        let two_shot = work("two_shot_edges", all_reduce, 1, 4096);
        assert_eq!((two_shot.folded, two_shot.sent), (3072, (6, 6144)));
        let spec = Spec { team: 2, ..all_reduce };
        let rails = work("rails_one_shot", spec, 1, 4096);
        assert!(rails.folded > 0 && rails.folded <= 3 * 4096, "{rails:?}");
        let shot = work("one_shot_mapped", Spec::new(Collective::AllGather, 4, 0), 2, 1000);
        assert_eq!((shot.read, shot.sent, shot.folded), ((3, 3000), (0, 0), 0));
        assert_eq!(Work::default().text(), "");
    }

    #[test]
    fn sizes_have_units() {
        let texts = [0, 1023, 1024, 1536, 1 << 20, 3 << 29, 1 << 40].map(size_text);
        assert_eq!(texts, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "1.5 GiB", "1 TiB"]);
    }
}
