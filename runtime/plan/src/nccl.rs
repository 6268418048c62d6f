//! NCCL's names of plans: the cells of its cost table, by which tuners choose and profilers show
//! plans. Numbers and names are those of `nccl_tuner.h` and of NCCL's logs.

use crate::carrier::Carrier;
use crate::generate::Algorithm;
use crate::listed::listed;
use crate::select::Candidate;
use crate::spec::Collective;

listed! {
    /// An algorithm of NCCL's, a row of the cost table.
    enum TunerAlgorithm,
    named
    /// Returns NCCL's name.
    {
        /// A logarithmic number of hops.
        Tree = 0, "TREE";
        /// A linear number of hops.
        Ring = 1, "RING";
        /// Reductions in the network, each rank with all of its host.
        CollnetDirect = 2, "COLLNET_DIRECT";
        /// Reductions in the network, with chains in the hosts.
        CollnetChain = 3, "COLLNET_CHAIN";
        /// Every rank reaches the memory of every other one, in NCCL by switches.
        Nvls = 4, "NVLS";
        /// In NCCL the same within hosts, and trees between them; here, teams and rails.
        NvlsTree = 5, "NVLS_TREE";
        /// Bruck's all-gather and its transpose.
        Pat = 6, "PAT";
    }
}

listed! {
    /// A protocol of NCCL's, a column of the cost table.
    enum TunerProtocol,
    named
    /// Returns NCCL's name.
    {
        /// Data travel together with flags.
        Ll = 0, "LL";
        /// Lines of 128 bytes with a flag; here, what goes through memory of the library.
        Ll128 = 1, "LL128";
        /// The data as they are.
        Simple = 2, "SIMPLE";
    }
}

/// A cell of the cost table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The row.
    pub algorithm: TunerAlgorithm,
    /// The column.
    pub protocol: TunerProtocol,
}

impl Cell {
    /// Returns the cell of a plan and the carrier of its data.
    pub fn of(algorithm: Algorithm, carrier: Carrier) -> Self {
        use TunerAlgorithm::{CollnetDirect, Nvls, NvlsTree, Pat, Ring, Tree};
        use TunerProtocol::{Ll, Ll128, Simple};
        let (algorithm, protocol) = match algorithm {
            Algorithm::Ring | Algorithm::Pairwise | Algorithm::Local => (Ring, Simple),
            Algorithm::OneShotEdges => (Ring, Ll),
            Algorithm::TwoShotEdges => (Ring, Ll128),
            Algorithm::Tree => (Tree, Simple),
            Algorithm::Halving => (Tree, Ll128),
            Algorithm::Bruck => (Pat, Simple),
            Algorithm::RailsRing | Algorithm::RailsTree | Algorithm::RailsBruck => {
                (NvlsTree, Simple)
            }
            Algorithm::RailsHalving | Algorithm::RailsTwoShot => (NvlsTree, Ll128),
            Algorithm::RailsOneShot | Algorithm::RailsWhole => (NvlsTree, Ll),
            Algorithm::Switch | Algorithm::RailsSwitch => (CollnetDirect, Simple),
            Algorithm::OneShot
            | Algorithm::OneShotMapped
            | Algorithm::TwoShot
            | Algorithm::TwoShotMapped
            | Algorithm::TwoShotPulled
            | Algorithm::Push => match carrier {
                Carrier::Packets => (Nvls, Ll),
                Carrier::Stage | Carrier::Inbox => (Nvls, Ll128),
                _ => (Nvls, Simple),
            },
        };
        Self { algorithm, protocol }
    }
}

/// Returns NCCL's number of a collective that tuners are asked about (`ncclFunc_t`); `None` for
/// others.
pub fn tunable(collective: Collective) -> Option<u32> {
    match collective {
        Collective::Broadcast => Some(0),
        Collective::Reduce => Some(1),
        Collective::AllGather => Some(2),
        Collective::ReduceScatter => Some(3),
        Collective::AllReduce => Some(4),
        Collective::AllToAll | Collective::Gather | Collective::Scatter => None,
    }
}

/// A cost table as tuners see it: times in µs, [`UNAVAILABLE`] where no plan serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostTable(pub [[f32; TunerProtocol::ALL.len()]; TunerAlgorithm::ALL.len()]);

/// The time of a cell without a plan (`NCCL_ALGO_PROTO_IGNORE`).
pub const UNAVAILABLE: f32 = -1.0;

impl CostTable {
    /// Returns the table of candidates: each cell has the time of its cheapest plan.
    pub fn of(candidates: &[Candidate]) -> Self {
        let mut table = Self([[UNAVAILABLE; TunerProtocol::ALL.len()]; TunerAlgorithm::ALL.len()]);
        for candidate in candidates {
            let cost_us = candidate.cost_us as f32;
            let place = table.place(candidate);
            if *place == UNAVAILABLE || cost_us < *place {
                *place = cost_us;
            }
        }
        table
    }

    fn place(&mut self, candidate: &Candidate) -> &mut f32 {
        let Cell { algorithm, protocol } = Cell::of(candidate.plan.algorithm, candidate.carrier);
        &mut self.0[algorithm as usize][protocol as usize]
    }

    /// Gives candidates the times that a tuner has made of this table, and sorts them by these. The
    /// plans of a cell keep their distances. Plans without a time are left out, unless none has
    /// one: then nothing changes. Returns whether anything has changed.
    pub fn apply(mut self, mut tuned: Self, candidates: &mut Vec<Candidate>) -> bool {
        let mut changed = false;
        let mut retimed = candidates.clone();
        retimed.retain_mut(|candidate| {
            let (before, after) = (*self.place(candidate), *tuned.place(candidate));
            if before.to_bits() != after.to_bits() {
                changed = true;
                candidate.cost_us += f64::from(after) - f64::from(before);
            }
            after >= 0.0
        });
        if !changed || retimed.is_empty() {
            return false;
        }
        retimed.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
        *candidates = retimed;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Plan;
    use crate::spec::Spec;

    fn candidate(algorithm: Algorithm, carrier: Carrier, cost_us: f64) -> Candidate {
        let plan = Plan::new(Spec::new(Collective::AllReduce, 4, 0), algorithm);
        Candidate { plan: plan.expect("it serves"), carrier, cost_us }
    }

    fn order(candidates: &[Candidate]) -> Vec<(Algorithm, f64)> {
        candidates.iter().map(|c| (c.plan.algorithm, c.cost_us)).collect()
    }

    #[test]
    fn a_tuner_reorders_cells_and_takes_plans_away() {
        let all = vec![
            candidate(Algorithm::OneShotMapped, Carrier::InPlace, 2.0),
            candidate(Algorithm::Tree, Carrier::Edges, 3.0),
            candidate(Algorithm::TwoShotMapped, Carrier::InPlace, 4.0),
            candidate(Algorithm::Ring, Carrier::Edges, 5.0),
        ];
        let table = CostTable::of(&all);
        let (nvls, ring, tree) = (4, 1, 0);
        assert_eq!((table.0[nvls][2], table.0[ring][2], table.0[tree][2]), (2.0, 5.0, 3.0));
        assert_eq!(table.0.as_flattened().iter().filter(|c| **c == UNAVAILABLE).count(), 18);

        let mut same = all.clone();
        assert!(!table.apply(table, &mut same) && same == all);

        let (mut tuned, mut some) = (table, all.clone());
        tuned.0[ring][2] = 0.0;
        assert!(table.apply(tuned, &mut some));
        assert_eq!(order(&some)[0], (Algorithm::Ring, 0.0));

        let mut some = all.clone();
        tuned.0[nvls][2] = 100.0;
        tuned.0[tree][2] = UNAVAILABLE;
        assert!(table.apply(tuned, &mut some));
        let expected = [
            (Algorithm::Ring, 0.0),
            (Algorithm::OneShotMapped, 100.0),
            (Algorithm::TwoShotMapped, 102.0),
        ];
        assert_eq!(order(&some), expected);

        for nothing in [UNAVAILABLE, f32::NAN] {
            let mut same = all.clone();
            assert!(!table.apply(CostTable([[nothing; 3]; 7]), &mut same) && same == all);
        }
        // A cell that has no plan stays without one.
        let (mut tuned, mut same) = (table, all.clone());
        tuned.0[6][0] = 0.0;
        assert!(!table.apply(tuned, &mut same) && same == all);
    }
}
