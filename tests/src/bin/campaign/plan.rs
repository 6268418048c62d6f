//! What an attempt does: phase, layout and fault, and all else that is drawn from its seed.

use oxccl_tests::sequence::Random;
use std::time::Duration;

/// What the ranks do when the fault comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    Init,
    Split,
    Shrink,
    Grow,
    Operations,
    Leave,
}

impl Phase {
    pub(crate) const ALL: [Phase; 6] =
        [Phase::Init, Phase::Split, Phase::Shrink, Phase::Grow, Phase::Operations, Phase::Leave];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::Split => "split",
            Phase::Shrink => "shrink",
            Phase::Grow => "grow",
            Phase::Operations => "operations",
            Phase::Leave => "leave",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

/// What happens to the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT before anyone may give it up.
    Pause,
    /// SIGSTOP for longer, then SIGCONT or SIGKILL.
    Stop,
    /// The network between its host and others goes away silently.
    Cut,
}

impl Fault {
    pub(crate) const ALL: [Fault; 5] =
        [Fault::None, Fault::Kill, Fault::Pause, Fault::Stop, Fault::Cut];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::Kill => "kill",
            Fault::Pause => "pause",
            Fault::Stop => "stop",
            Fault::Cut => "cut",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Whether all ranks have to succeed nevertheless.
    pub(crate) fn is_harmless(self) -> bool {
        matches!(self, Fault::None | Fault::Pause)
    }
}

/// Where the ranks are.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    /// Ranks of the first communicator.
    pub(crate) nranks: u32,
    /// Hosts, on which they lie in equal blocks.
    pub(crate) hosts: u32,
    /// Whether the hosts are network namespaces; else they have different names.
    pub(crate) spaces: bool,
    /// Whether the launcher holds the rendezvous; else rank 0 does.
    pub(crate) launcher: bool,
}

/// Hosts of the layout with the most namespaces.
pub(crate) const SPACES: u32 = 3;

pub(crate) static LAYOUTS: [Layout; 5] = [
    Layout { name: "one", nranks: 4, hosts: 1, spaces: false, launcher: true },
    Layout { name: "two", nranks: 4, hosts: 2, spaces: false, launcher: false },
    Layout { name: "four", nranks: 4, hosts: 4, spaces: false, launcher: true },
    Layout { name: "net2", nranks: 4, hosts: 2, spaces: true, launcher: false },
    Layout { name: "net3", nranks: 3, hosts: SPACES, spaces: true, launcher: false },
];

impl Layout {
    /// The host of a rank; a rank that joins later is on the last one.
    pub(crate) fn host(&self, rank: u32) -> u32 {
        rank.min(self.nranks - 1) * self.hosts / self.nranks
    }
}

/// The rank that makes the id of a growth.
pub(crate) const GROW_ROOT: u32 = 1;

/// One kind of attempt: a row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) phase: Phase,
    pub(crate) layout: &'static Layout,
    pub(crate) fault: Fault,
}

impl Cell {
    pub(crate) fn name(&self) -> String {
        format!("{} {} {}", self.phase.name(), self.layout.name, self.fault.name())
    }

    /// The rows; those of namespaces only where `spaces` can be had.
    pub(crate) fn all(spaces: bool) -> Vec<Cell> {
        let mut cells = Vec::new();
        for phase in Phase::ALL {
            for layout in LAYOUTS.iter().filter(|layout| spaces || !layout.spaces) {
                let faults = Fault::ALL.into_iter().filter(|fault| match fault {
                    // Of the other phases the counting runs are that.
                    Fault::None => phase == Phase::Leave,
                    Fault::Cut => layout.spaces,
                    _ => true,
                });
                cells.extend(faults.map(|fault| Cell { phase, layout, fault }));
            }
        }
        cells
    }
}

/// An attempt.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) cell: Cell,
    /// Where the rest comes from.
    pub(crate) seed: u64,
    pub(crate) victim: u32,
    /// The rank that a shrink leaves out, because it ends before.
    pub(crate) dead: Option<u32>,
    /// How long the victim stays stopped.
    pub(crate) hold: Duration,
    /// Whether it is killed after that.
    pub(crate) ends: bool,
    /// How late a rank may come to what another one sends before it leaves.
    pub(crate) late_ms: u64,
    /// The hosts between which the network goes away; None: all others.
    pub(crate) cut: (u32, Option<u32>),
    /// The stop of the victim, counted from the beginning of the phase, at which the fault comes.
    pub(crate) step: Option<u64>,
}

impl Plan {
    pub(crate) fn new(cell: Cell, seed: u64) -> Self {
        let Cell { phase, layout, fault } = cell;
        let mut random = Random(seed);
        let nranks = layout.nranks;
        let newcomers = u32::from(phase == Phase::Grow);
        let mut victim = random.below(u64::from(nranks + newcomers)) as u32;
        let away = 1 + random.below(u64::from(nranks) - 1) as u32;
        let dead = (phase == Phase::Shrink).then_some((victim + away) % nranks);
        let hold_ms = match fault {
            Fault::Pause => 200 + random.below(2600),
            // Within the limit of initialisation.
            _ => 3000 + random.below(5000),
        };
        let ends = fault == Fault::Stop && random.below(2) == 0;
        let late_ms = if fault == Fault::None { 3000 } else { 300 };
        if fault == Fault::Cut && victim == nranks {
            // A cut has no victim but hosts; the newcomer's is the last rank's.
            victim = nranks - 1;
        }
        let own = layout.host(victim);
        let alive =
            |host: &u32| (0..nranks).any(|rank| layout.host(rank) == *host && Some(rank) != dead);
        let others: Vec<u32> =
            (0..layout.hosts).filter(|host| *host != own).filter(alive).collect();
        let all = others.len() < 2 || random.below(2) == 0;
        let other = others.get(random.below(others.len() as u64) as usize).copied();
        let cut = (own, other.filter(|_| !all));
        let hold = Duration::from_millis(hold_ms);
        Self { cell, seed, victim, dead, hold, ends, late_ms, cut, step: None }
    }

    /// The run without a fault that counts the victim's steps.
    pub(crate) fn counting(&self) -> Self {
        let cell = Cell { fault: Fault::None, ..self.cell };
        Self { cell, step: None, ..self.clone() }
    }

    /// The number of processes.
    pub(crate) fn processes(&self) -> u32 {
        self.cell.layout.nranks + u32::from(self.newcomer().is_some())
    }

    /// The rank that joins in a growth.
    pub(crate) fn newcomer(&self) -> Option<u32> {
        (self.cell.phase == Phase::Grow).then_some(self.cell.layout.nranks)
    }

    /// Whether the fault ends the victim.
    pub(crate) fn is_deadly(&self) -> bool {
        self.cell.fault == Fault::Kill || self.ends
    }

    /// A rank's number in the communicator that the phase makes, where it has one.
    pub(crate) fn number_in_child(&self, rank: u32) -> u32 {
        match (self.cell.phase, self.dead) {
            (Phase::Split, _) => {
                let members = split_members(self.cell.layout.nranks, rank);
                members.iter().position(|member| *member == rank).unwrap_or(0) as u32
            }
            (_, Some(dead)) => rank - u32::from(rank > dead),
            _ => rank,
        }
    }
}

/// The ranks of the color that `rank` has in the split, in the order of their keys.
pub(crate) fn split_members(nranks: u32, rank: u32) -> Vec<u32> {
    (0..nranks).rev().filter(|member| member % 2 == rank % 2).collect()
}

/// The rank that tells the others something before it leaves.
pub(crate) fn sender(seed: u64, nranks: u32) -> u32 {
    (Random(seed).draw() % u64::from(nranks)) as u32
}
