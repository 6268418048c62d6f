//! Binary trees: logarithmic latency for any number of ranks over any link.
//!
//! The tree lies in order over positions 1…n: the height of a position is its number of trailing
//! zero bits. All-reduce runs two trees at once, each over half of the data; the second tree is
//! shifted by a position so that a leaf of one tree is an inner node of the other. (After P.
//! Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
//! and scan", 2009.)

use super::{Algorithm, Generator, Needs, edge_layout};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Order, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Tree,
    name: "tree",
    needs: Needs::Edges,
    canonical: false,
    layout,
    program: |spec, rank| ops(spec, rank).into(),
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    if spec.nranks < 2 {
        return None;
    }
    match spec.collective {
        Collective::AllReduce => Some(edge_layout(2, 1, 0)),
        Collective::Broadcast => Some(edge_layout(1, 1, 0)),
        Collective::Reduce => Some(edge_layout(1, 1, 1)),
        _ => None,
    }
}

/// A tree: the position of rank 0 determines the positions of all others.
#[derive(Clone, Copy)]
struct Tree {
    nranks: u32,
    /// The shift of the tree: rank 0 stands at position `shift + 1`.
    shift: u32,
}

impl Tree {
    fn top(nranks: u32) -> u32 {
        1 << nranks.ilog2()
    }

    /// Returns the tree in which `root` stands on top.
    fn rooted(nranks: u32, root: u32) -> Self {
        Self { nranks, shift: (Self::top(nranks) - 1 + nranks - root) % nranks }
    }

    fn position(self, rank: u32) -> u32 {
        (rank + self.shift) % self.nranks + 1
    }

    fn rank(self, position: u32) -> u32 {
        (position - 1 + self.nranks - self.shift) % self.nranks
    }

    fn parent(self, rank: u32) -> Option<u32> {
        let mut x = self.position(rank);
        if x == Self::top(self.nranks) {
            return None;
        }
        loop {
            let low = x & x.wrapping_neg();
            x = (x ^ low) | (low << 1);
            if x <= self.nranks {
                return Some(self.rank(x));
            }
        }
    }

    fn children(self, rank: u32) -> Vec<u32> {
        let x = self.position(rank);
        let half = (x & x.wrapping_neg()) / 2;
        if half == 0 {
            return Vec::new();
        }
        let mut children = vec![self.rank(x - half)];
        // If the right child is missing, the top of its left subtree replaces it, if there is one.
        let mut right = x + half;
        while right > self.nranks {
            let low = right & right.wrapping_neg();
            if low == 1 {
                return children;
            }
            right -= low / 2;
        }
        children.push(self.rank(right));
        children
    }

    /// Returns the operations that fold the children's partial results with the rank's own input,
    /// and send the result on or finish the reduction on top.
    fn up(self, rank: u32, part: u32, partial: Buffer) -> Vec<Op> {
        let mut local = Slice::part(Buffer::Input, 0, part);
        let parent = self.parent(rank);
        let children = self.children(rank);
        let mut ops = Vec::new();
        for (i, &peer) in children.iter().enumerate() {
            let finish = parent.is_none() && i + 1 == children.len();
            let dst = Slice::part(if finish { Buffer::Output } else { partial }, 0, part);
            ops.push(Op::RecvReduce { peer, local, dst, order: Order::LocalFirst, finish });
            local = dst;
        }
        ops.extend(parent.map(|peer| Op::Send { peer, src: local }));
        ops
    }

    /// Returns the operations that take the result from the parent and pass it to the children.
    fn down(self, rank: u32, source: Buffer, part: u32) -> Vec<Op> {
        let dst = Slice::part(Buffer::Output, 0, part);
        let parent = self.parent(rank);
        let src = if parent.is_some() { dst } else { Slice::part(source, 0, part) };
        let receive = parent.map(|peer| Op::Recv { peer, dst });
        let sends = self.children(rank).into_iter().map(|peer| Op::Send { peer, src });
        receive.into_iter().chain(sends).collect()
    }
}

fn ops(spec: &Spec, rank: u32) -> Vec<Op> {
    let rooted = Tree::rooted(spec.nranks, spec.root);
    match spec.collective {
        Collective::Broadcast => {
            let mut ops = rooted.down(rank, Buffer::Input, 0);
            if rank == spec.root {
                let src = Slice::block(Buffer::Input, 0);
                ops.push(Op::Copy { src, dst: Slice::block(Buffer::Output, 0) });
            }
            ops
        }
        Collective::Reduce => rooted.up(rank, 0, Buffer::Scratch),
        _ => {
            let trees = [0, 1].map(|shift| Tree { nranks: spec.nranks, shift });
            let up = trees.iter().zip(0..).flat_map(|(t, part)| t.up(rank, part, Buffer::Output));
            let down = trees.iter().zip(0..).flat_map(|(t, p)| t.down(rank, Buffer::Output, p));
            up.chain(down).collect()
        }
    }
}

fn cost_us(spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    let depth = f64::from(spec.nranks.ilog2());
    // An inner node serves its two children one after the other.
    let children = f64::from((spec.nranks - 1).min(2));
    let level = |bytes: u64, reduces: bool| children * model.hop_us(bytes, reduces);
    let pipelined = |bytes: u64, reduces: bool| {
        let window = bytes.min(model.bytes_at_a_time());
        (depth - 1.0).max(0.0) * level(window, reduces) + level(bytes, reduces)
    };
    match spec.collective {
        Collective::AllReduce => pipelined(bytes, true) + pipelined(bytes, false),
        Collective::Reduce => pipelined(bytes, true),
        _ => pipelined(bytes, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree_and_reach_everyone() {
        for nranks in 2..200 {
            for root in [0, 1, nranks / 2, nranks - 1] {
                let tree = Tree::rooted(nranks, root);
                assert_eq!(tree.parent(root), None);
                let mut seen = 1;
                for rank in 0..nranks {
                    for child in tree.children(rank) {
                        assert_eq!(tree.parent(child), Some(rank), "n {nranks} root {root}");
                        seen += 1;
                    }
                }
                assert_eq!(seen, nranks);
            }
        }
    }
}
