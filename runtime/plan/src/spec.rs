//! The specification of a collective: its kind, its root, and the blocks that each rank gives and
//! gets.

use crate::listed::listed;

listed! {
    /// The collective operations with equal blocks.
    enum Collective,
    named
    /// Returns the name that `oxccl perf` takes and that nccl-tests uses for its programs.
    {
        /// Every rank gets the reduction of all inputs.
        AllReduce = 0, "all_reduce";
        /// Every rank gets the root's input.
        Broadcast = 1, "broadcast";
        /// The root gets the reduction of all inputs.
        Reduce = 2, "reduce";
        /// Every rank gets all inputs, in rank order.
        AllGather = 3, "all_gather";
        /// Rank `r` gets the reduction of block `r` of all inputs.
        ReduceScatter = 4, "reduce_scatter";
        /// Rank `r` gets block `r` of every input, in rank order.
        AllToAll = 5, "alltoall";
        /// The root gets all inputs, in rank order.
        Gather = 6, "gather";
        /// Rank `r` gets block `r` of the root's input.
        Scatter = 7, "scatter";
    }
}

impl Collective {
    /// Returns whether elements are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Returns whether one rank is the root.
    pub const fn rooted(self) -> bool {
        matches!(
            self,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        )
    }
}

/// A collective on a communicator of a given shape; the facts that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The operation.
    pub collective: Collective,
    /// Number of ranks.
    pub nranks: u32,
    /// The root; 0 if the collective has none.
    pub root: u32,
    /// The number of ranks of a *team*, neighbouring ranks of one host. They may reach each other's
    /// memory; between teams there are edges alone. It divides the number of ranks.
    pub team: u32,
}

impl Spec {
    /// Returns a specification for ranks of one host; `root` is ignored if the collective has none.
    pub fn new(collective: Collective, nranks: u32, root: u32) -> Self {
        let root = if collective.rooted() { root } else { 0 };
        Self { collective, nranks, root, team: nranks }
    }

    /// Returns the specification for ranks in teams of `team` ranks each.
    pub const fn in_teams(self, team: u32) -> Self {
        Self { team, ..self }
    }

    /// Returns the number of the *switch* of a rail, the network as a peer of programs: what all
    /// ranks at this place of their teams send to it comes back to each of them reduced.
    pub const fn switch(&self, place: u32) -> u32 {
        self.nranks + place
    }

    /// Returns whether two ranks have the same place in their teams, and hence the same switch.
    pub const fn shares_rail(&self, rank: u32, other: u32) -> bool {
        rank % self.team == other % self.team
    }

    /// Returns the number of blocks of `count` elements in the input of `rank` (0: it has no
    /// input).
    pub fn input_blocks(&self, rank: u32) -> u32 {
        match self.collective {
            Collective::AllReduce
            | Collective::Reduce
            | Collective::AllGather
            | Collective::Gather => 1,
            Collective::ReduceScatter | Collective::AllToAll => self.nranks,
            Collective::Broadcast => u32::from(rank == self.root),
            Collective::Scatter => self.nranks * u32::from(rank == self.root),
        }
    }

    /// Returns the number of blocks of `count` elements in the output of `rank` (0: it has no
    /// output).
    pub fn output_blocks(&self, rank: u32) -> u32 {
        match self.collective {
            Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::Broadcast
            | Collective::Scatter => 1,
            Collective::AllGather | Collective::AllToAll => self.nranks,
            Collective::Reduce => u32::from(rank == self.root),
            Collective::Gather => self.nranks * u32::from(rank == self.root),
        }
    }

    /// Returns the number of blocks of the largest buffer of any rank.
    pub fn largest_blocks(&self) -> u32 {
        self.input_blocks(self.root).max(self.output_blocks(self.root))
    }

    /// Returns the input block of the source rank that belongs into the output of `rank`; for
    /// reductions the block that every rank contributes.
    pub fn source_block(&self, rank: u32) -> u32 {
        match self.collective {
            Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter => rank,
            Collective::AllReduce
            | Collective::Broadcast
            | Collective::Reduce
            | Collective::AllGather
            | Collective::Gather => 0,
        }
    }

    /// Returns the rank whose input fills `block` of an output; `None` for reductions, to which all
    /// contribute.
    pub fn source_rank(&self, block: u32) -> Option<u32> {
        match self.collective {
            Collective::Broadcast | Collective::Scatter => Some(self.root),
            Collective::AllGather | Collective::AllToAll | Collective::Gather => Some(block),
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => None,
        }
    }

    /// Returns the blocks at which the buffers of `rank` coincide in place, as `(input block,
    /// output block)`: the smaller buffer is that block of the larger one. `None` if the collective
    /// cannot be in place at this rank.
    pub fn in_place(&self, rank: u32) -> Option<(u32, u32)> {
        let both = self.input_blocks(rank) > 0 && self.output_blocks(rank) > 0;
        match self.collective {
            Collective::AllGather | Collective::Gather => both.then_some((0, rank)),
            Collective::ReduceScatter | Collective::Scatter => both.then_some((rank, 0)),
            Collective::AllReduce
            | Collective::Reduce
            | Collective::Broadcast
            | Collective::AllToAll => both.then_some((0, 0)),
        }
    }
}
