//! The plan of a communicator of one rank: every collective is a copy of block 0.

use super::{Algorithm, Generator, Needs, edge_layout};
use crate::cost::CostModel;
use crate::ir::{Buffer, Layout, Op, Slice};
use crate::spec::Spec;

pub(super) const GENERATOR: Generator = Generator {
    algorithm: Algorithm::Local,
    name: "local",
    needs: Needs::Nothing,
    canonical: true,
    layout,
    program: |_, _| vec![COPY].into(),
    cost_us,
};

fn layout(spec: &Spec) -> Option<Layout> {
    (spec.nranks == 1).then_some(edge_layout(1, 0, 0))
}

const COPY: Op =
    Op::Copy { src: Slice::block(Buffer::Input, 0), dst: Slice::block(Buffer::Output, 0) };

fn cost_us(_: &Spec, bytes: u64, model: &CostModel) -> f64 {
    model.copy_us(bytes)
}
