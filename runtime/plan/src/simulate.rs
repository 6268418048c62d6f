//! The simulator: the time of a plan under a cost model, with every wait accounted for.

use crate::cost::CostModel;
use crate::generate::Plan;
use crate::ir::{Capacity, Geometry};
use crate::machine::{Fault, Machine, Options, Place, Values, Work};

/// Values without contents: only time matters.
struct Nothing;

impl Values for Nothing {
    type Value = ();
    fn input(&mut self, _: Place) {}
    fn fold(&mut self, _: &[()], _: bool) {}
}

/// Returns the time in µs until the last rank has completed a call of `bytes` bytes per block.
pub fn time_us(plan: &Plan, bytes: u64, model: &CostModel) -> Result<f64, Fault> {
    let nranks = plan.spec.nranks;
    let programs: Vec<_> = (0..nranks).map(|r| plan.program(r)).collect();
    let room = Capacity {
        edge_slot_elems: model.edge_slot_bytes,
        message_elems: model.message_bytes,
        stage_slot_elems: model.stage_slot_bytes,
        align_elems: 64,
    };
    let geometry = Geometry::new(&plan.layout, bytes, &room);
    let blocks =
        plan.spec.input_blocks(plan.spec.root).max(plan.spec.output_blocks(plan.spec.root));
    let model = &model.for_buffer(bytes * u64::from(blocks));
    let options = Options {
        edge_slots: 4,
        races: false,
        costs: Some((model, 1)),
        team: plan.spec.team,
        overlap: true,
    };
    let mut machine = Machine::new(nranks, Nothing, options);
    let (programs, in_place) = (&programs[..], &vec![false; nranks as usize][..]);
    machine.run(&Work::Collective { plan, programs, geometry, in_place })?;
    Ok(machine.now_us())
}
