//! The network as a peer: it reduces what the ranks of a rail send to it.

use super::step::Step;
use super::{Fault, Location, Message, Values};
use crate::ir::{Buffer, Slice};
use std::collections::VecDeque;

impl<V: Values> Step<'_, '_, '_, '_, V> {
    /// Sends a message to a switch; false while it has no room for the message or its result.
    pub(super) fn contribute(
        &mut self,
        switch: u32,
        src: Slice,
        values: Vec<V::Value>,
        elems: u64,
    ) -> Result<bool, Fault> {
        let machine = &mut *self.machine;
        let results = machine.edges.get(&(switch, self.rank)).map_or(0, |edge| edge.queue.len());
        let message = (values, (0, 0));
        if results >= machine.options.edge_slots
            || !machine.send(self.rank, switch, message, self.step, elems)
        {
            return Ok(false);
        }
        self.lend(switch, src);
        self.reduce_messages(switch).map(|()| true)
    }

    /// Notes that the network may use what is sent, and the place of the result, until the result
    /// is received: it may read and write them itself.
    fn lend(&mut self, switch: u32, src: Slice) {
        let (rank, window) = (self.rank, self.window);
        let result = self.run.programs[rank as usize].result(self.step);
        let slices = [Some(src), result].into_iter().flatten();
        let own = slices.filter(|s| !matches!(s.buffer, Buffer::Stage | Buffer::Inbox));
        let lent: Vec<Location> = own
            .flat_map(|slice| {
                let at = |part| self.run.locate(rank, slice.buffer, slice.block, window, part);
                self.parts(slice).map(at).collect::<Vec<_>>()
            })
            .collect();
        let cells = &mut self.run.memory[rank as usize];
        lent.iter().for_each(|&(buffer, i)| cells[buffer][i].lent = Some(self.step));
        self.run.lent.entry((rank, switch)).or_default().push_back(lent);
    }

    /// Notes that the result of the oldest message to a switch was received, if the peer is one.
    pub(super) fn take_back(&mut self, peer: u32) {
        let lent = self.run.lent.get_mut(&(self.rank, peer)).and_then(VecDeque::pop_front);
        let cells = &mut self.run.memory[self.rank as usize];
        lent.into_iter().flatten().for_each(|(buffer, i)| cells[buffer][i].lent = None);
    }

    /// Reduces the oldest messages of a rail once each of its ranks has sent one.
    fn reduce_messages(&mut self, switch: u32) -> Result<(), Fault> {
        let (machine, spec) = (&mut *self.machine, self.run.plan.spec);
        let rail = (switch - spec.nranks..spec.nranks).step_by(spec.team as usize);
        let waits =
            |rank: u32| machine.edges.get(&(rank, switch)).is_some_and(|e| !e.queue.is_empty());
        if !rail.clone().all(waits) {
            return Ok(());
        }
        let mut messages = Vec::new();
        for rank in rail.clone() {
            let edge = machine.edges.entry((rank, switch)).or_default();
            let message = edge.queue.pop_front();
            messages.extend(message.inspect(|message| edge.taken_us.push_back(message.ready_us)));
        }
        let (parts, latency) = (messages[0].values.len(), machine.options.costs);
        if let Some(other) = messages.iter().find(|message| message.values.len() != parts) {
            let (rank, step, got) = (self.rank, other.step, other.values.len());
            return Err(Fault::Length { rank, step, got, expected: parts });
        }
        let fold = |part: usize| {
            let operands: Vec<_> = messages.iter().map(|m| m.values[part].clone()).collect();
            machine.values.fold(&operands, false)
        };
        let values: Vec<_> = (0..parts).map(fold).collect();
        let latest_us = messages.iter().fold(0.0, |t: f64, m| t.max(m.ready_us));
        let ready_us = latest_us + latency.map_or(0.0, |(model, _)| model.latency_us);
        let clocks = messages.iter().filter_map(|message| message.clock.clone());
        let clock = clocks.reduce(|mut all, one| {
            all.iter_mut().zip(one).for_each(|(mine, theirs)| *mine = (*mine).max(theirs));
            all
        });
        for (rank, Message { piece, step, .. }) in rail.zip(messages) {
            let result =
                Message { values: values.clone(), piece, clock: clock.clone(), ready_us, step };
            machine.edges.entry((switch, rank)).or_default().queue.push_back(result);
        }
        Ok(())
    }
}
