//! What is asked of a collective: its kind, its root, and which blocks each rank gives and gets.

/// The collective operations with equal blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Collective {
    /// Everyone gets the reduction of all inputs.
    AllReduce = 0,
    /// Everyone gets the root's input.
    Broadcast = 1,
    /// The root gets the reduction of all inputs.
    Reduce = 2,
    /// Everyone gets all inputs, in rank order.
    AllGather = 3,
    /// Rank `r` gets the reduction of block `r` of all inputs.
    ReduceScatter = 4,
    /// Rank `r` gets block `r` of every input, in rank order.
    AllToAll = 5,
    /// The root gets all inputs, in rank order.
    Gather = 6,
    /// Rank `r` gets block `r` of the root's input.
    Scatter = 7,
}

impl Collective {
    /// All of them.
    pub const ALL: [Collective; 8] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
    ];

    /// The name that `oxccl perf` takes and nccl-tests uses for its programs.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "alltoall",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
        }
    }

    /// Whether elements are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Whether one rank plays a special part.
    pub const fn rooted(self) -> bool {
        matches!(
            self,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        )
    }
}

/// A collective on a communicator of a given size; the facts that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// What is done.
    pub collective: Collective,
    /// Number of ranks.
    pub nranks: u32,
    /// The root; 0 where there is none.
    pub root: u32,
}

impl Spec {
    /// A specification; `root` is ignored where the collective has none.
    pub fn new(collective: Collective, nranks: u32, root: u32) -> Self {
        Self { collective, nranks, root: if collective.rooted() { root } else { 0 } }
    }

    /// How many blocks of `count` elements the input of `rank` has (0: it has no input).
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

    /// How many blocks of `count` elements the output of `rank` has (0: it has no output).
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

    /// The input block of `from` that belongs into `block` of the output of `rank`; for
    /// reductions the block that every rank contributes.
    pub fn source_block(&self, rank: u32) -> u32 {
        match self.collective {
            Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter => rank,
            _ => 0,
        }
    }

    /// The rank whose input fills `block` of an output; none for reductions, where all do.
    pub fn source_rank(&self, block: u32) -> Option<u32> {
        match self.collective {
            Collective::Broadcast | Collective::Scatter => Some(self.root),
            Collective::AllGather | Collective::AllToAll | Collective::Gather => Some(block),
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => None,
        }
    }

    /// In place: the block of `rank`'s larger buffer that its smaller one coincides with, as
    /// `(input block, output block)`. None where the collective cannot be in place at this rank.
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
