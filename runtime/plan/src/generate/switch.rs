//! Reduction in the network: every rank sends its data once and gets the result once, however many
//! ranks there are.

use super::{Algorithm, Generator, Needs, edge_layout};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Slice};
use crate::spec::{Collective, Spec};

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Switch,
    name: "switch",
    needs: Needs::Switch,
    canonical: false,
    layout,
    program: |spec, rank| ops(spec, rank).into(),
    cost_us,
};

/// The parts of a window: while the network reduces one, the ranks read or write the other. Edges
/// have room for as many.
const PARTS: u32 = 2;

fn layout(spec: &Spec) -> Option<Layout> {
    // Teams have their switches on the rails.
    let serves = spec.collective == Collective::AllReduce && spec.nranks > 1 && spec.team == 1;
    serves.then_some(edge_layout(PARTS, 1, 0))
}

fn ops(spec: &Spec, _rank: u32) -> Vec<Op> {
    let (peer, part) = (spec.switch(0), |buffer, part| Slice::part(buffer, 0, part));
    let sends = (0..PARTS).map(|p| Op::Send { peer, src: part(Buffer::Input, p) });
    let results = (0..PARTS).flat_map(|p| {
        let own = part(Buffer::Output, p);
        let finish = Op::Fold { src: own, count: 1, own, at: 0, dst: own, finish: true };
        [Op::Recv { peer, dst: own }, finish]
    });
    sends.chain(results).collect()
}

fn cost_us(_spec: &Spec, bytes: u64, model: &CostModel) -> f64 {
    // Whatever other edges have.
    let model = model.in_one_lane();
    let windows = bytes.div_ceil(u64::from(PARTS) * model.message_bytes).max(1) as f64;
    windows * 2.0 * model.latency_us
        + model.send_us(bytes)
        + model.receive_us(bytes, false)
        + model.read_us(bytes, 0, false)
}
