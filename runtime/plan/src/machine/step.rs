//! The execution of one operation of one rank on the machine.

use super::{Access, Fault, Machine, Running, Values};
use crate::ir::{Buffer, Destination, From, Op, Order, Slice, UserMemory, inbox_place};
use std::ops::Range;

/// One operation being executed.
pub(super) struct Step<'m, 'r, 'a, 'b, V: Values> {
    pub(super) machine: &'m mut Machine<'a, V>,
    pub(super) run: &'r mut Running<'b, V::Value>,
    pub(super) rank: u32,
    pub(super) step: usize,
    pub(super) window: u64,
}

impl<V: Values> Step<'_, '_, '_, '_, V> {
    pub(super) fn execute(&mut self, op: Op) -> Result<bool, Fault> {
        let rank = self.rank;
        match op {
            Op::Copy { src, dst } => {
                let at = |s: Slice| self.run.locate(rank, s.buffer, s.block, self.window, s.part);
                let user = |s: Slice| matches!(s.buffer, Buffer::Input | Buffer::Output);
                if user(src) && user(dst) && at(src) == at(dst) {
                    return Ok(true);
                }
                let values = self.load(rank, src)?;
                self.store(rank, dst, values)?;
                let elems = self.elems(src);
                self.machine.spend(rank, |m, b| m.copy_us(elems * b));
            }
            Op::Send { peer, src } => {
                return self.send(peer, src);
            }
            Op::Recv { peer, dst } => {
                let Some(values) = self.take(peer, dst, false)? else { return Ok(false) };
                self.store(rank, dst, values)?;
            }
            Op::RecvReduce { peer, local, dst, order, finish } => {
                let Some(incoming) = self.take(peer, local, true)? else { return Ok(false) };
                let own = self.load(rank, local)?;
                let mut folded = Vec::new();
                for (own, incoming) in own.into_iter().zip(incoming) {
                    let operands = match order {
                        Order::IncomingFirst => [incoming, own],
                        Order::LocalFirst => [own, incoming],
                    };
                    folded.push(self.machine.values.fold(&operands, finish));
                }
                self.store(rank, dst, folded)?;
            }
            Op::Acquire => return self.acquire(),
            Op::Signal => {
                self.reach(0..self.run.plan.spec.nranks)?;
                self.machine.spend(rank, |m, _| m.signal_us);
                let state = &mut self.machine.ranks[rank as usize];
                state.phase += 1;
                state.signals.push((state.clock.clone(), state.now_us));
            }
            Op::Wait { from, signal } => {
                let signals = u64::from(self.run.plan.layout.signals);
                let target = self.run.phase_base + self.window * signals + u64::from(signal);
                return self.wait(from, target);
            }
            Op::Get { peer, src, dst } => {
                let values = self.load(peer, src)?;
                self.store(rank, dst, values)?;
                let elems = self.elems(src);
                self.machine.spend(rank, |m, b| m.read_us(elems * b, 1, false));
            }
            Op::Put { peer, src, dst } => {
                let values = self.load(rank, src)?;
                self.store(peer, dst, values)?;
                let elems = self.elems(src);
                self.machine.spend(rank, |m, b| m.put_us(elems * b));
            }
            Op::Reduce { src, own, dst, finish } => self.reduce(src, own, dst, finish)?,
            Op::Fold { src, count, own, at, dst, finish } => {
                self.fold_blocks((src, count), (own, at), dst, finish)?;
            }
        }
        Ok(true)
    }

    fn send(&mut self, peer: u32, src: Slice) -> Result<bool, Fault> {
        let (values, elems) = (self.load(self.rank, src)?, self.elems(src));
        if values.is_empty() {
            return Ok(true);
        }
        if peer >= self.run.plan.spec.nranks {
            return self.contribute(peer, src, values, elems);
        }
        Ok(self.machine.send(self.rank, peer, (values, (0, 0)), self.step, elems))
    }

    fn fold_blocks(
        &mut self,
        (src, count): (Slice, u32),
        (own, at): (Slice, u32),
        dst: Slice,
        finish: bool,
    ) -> Result<(), Fault> {
        let block = |number| Slice { block: src.block + number, ..src };
        let operand = |number| if number == at { own } else { block(number) };
        let operands = (0..count).map(|number| self.load(self.rank, operand(number)));
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        let folded = self.fold(&operands, finish);
        let elems = self.elems(own) * u64::from(count);
        self.machine.spend(self.rank, |m, b| m.read_us(elems * b, count - 1, true));
        self.store(self.rank, dst, folded)
    }

    /// Folds the operands, each a list of parts.
    fn fold(&mut self, operands: &[Vec<V::Value>], finish: bool) -> Vec<V::Value> {
        let parts = operands.first().map_or(0, Vec::len);
        let column = |part: usize| operands.iter().map(|o| o[part].clone()).collect::<Vec<_>>();
        (0..parts).map(|part| self.machine.values.fold(&column(part), finish)).collect()
    }

    fn reduce(
        &mut self,
        src: Slice,
        own: Slice,
        dst: Destination,
        finish: bool,
    ) -> Result<(), Fault> {
        let nranks = self.run.plan.spec.nranks;
        let mut operands = Vec::new();
        for other in 0..nranks {
            let operand = match (other == self.rank, src.buffer) {
                (true, _) => self.load(self.rank, own)?,
                (false, Buffer::Inbox) => {
                    self.load(self.rank, Slice { block: src.block + other, ..src })?
                }
                (false, _) => self.load(other, src)?,
            };
            operands.push(operand);
        }
        let folded = self.fold(&operands, finish);
        let elems = self.elems(src);
        self.machine.spend(self.rank, |m, b| {
            let bytes = elems * b * u64::from(nranks);
            let read = match src.buffer {
                Buffer::Inbox => m.inbox_us(bytes),
                _ => m.read_us(bytes, nranks - 1, true),
            };
            match dst {
                Destination::Inboxes(..) => read + m.put_us(elems * b * u64::from(nranks - 1)),
                _ => read,
            }
        });
        match dst {
            Destination::Own(slice) => self.store(self.rank, slice, folded),
            Destination::Both(one, two) => {
                self.store(self.rank, one, folded.clone())?;
                self.store(self.rank, two, folded)
            }
            Destination::Peer(peer, slice) => self.store(peer, slice, folded),
            Destination::Everyone(slice) => {
                (0..nranks).try_for_each(|peer| self.store(peer, slice, folded.clone()))
            }
            Destination::Inboxes(own, slice) => {
                self.store(self.rank, own, folded.clone())?;
                let rank = self.rank;
                let mut others = (0..nranks).filter(|&peer| peer != rank);
                others.try_for_each(|peer| self.store(peer, slice, folded.clone()))
            }
        }
    }

    fn elems(&self, slice: Slice) -> u64 {
        self.run.geometry.range(self.window, slice.part, slice.parts).1
    }

    /// Returns the parts of a slice that have elements in this window.
    pub(super) fn parts(&self, slice: Slice) -> impl Iterator<Item = u32> + use<V> {
        let (geometry, window) = (self.run.geometry, self.window);
        (slice.part..slice.part + slice.parts).filter(move |&p| geometry.range(window, p, 1).1 > 0)
    }

    fn take(
        &mut self,
        peer: u32,
        slice: Slice,
        fold: bool,
    ) -> Result<Option<Vec<V::Value>>, Fault> {
        let expected = self.parts(slice).count();
        if expected == 0 {
            return Ok(Some(Vec::new()));
        }
        let elems = self.elems(slice);
        let Some(message) = self.machine.receive(peer, self.rank, elems, fold) else {
            return Ok(None);
        };
        let got = message.values.len();
        if got != expected {
            return Err(Fault::Length { rank: self.rank, step: self.step, got, expected });
        }
        self.take_back(peer);
        Ok(Some(message.values))
    }

    /// Fails if one of these ranks is of another team than this one.
    fn reach(&self, mut peers: Range<u32>) -> Result<(), Fault> {
        let team = self.machine.options.team_of(self.rank);
        match peers.find(|peer| !team.contains(peer)) {
            None => Ok(()),
            Some(peer) => Err(Fault::OutOfReach { rank: self.rank, step: self.step, peer }),
        }
    }

    fn load(&mut self, owner: u32, slice: Slice) -> Result<Vec<V::Value>, Fault> {
        self.reach(owner..owner + 1)?;
        let mut values = Vec::new();
        for part in self.parts(slice) {
            values.push(if let Some(cell) = self.slot_cell(owner, slice, part)? {
                self.load_stage(owner, slice, cell)?
            } else {
                self.load_user(owner, slice, part)?
            });
        }
        Ok(values)
    }

    fn load_user(&mut self, owner: u32, slice: Slice, part: u32) -> Result<V::Value, Fault> {
        let (buffer, i) = self.run.locate(owner, slice.buffer, slice.block, self.window, part);
        let access = self.machine.access(self.rank, self.step);
        let cell = &mut self.run.memory[owner as usize][buffer][i];
        if self.run.plan.layout.user_memory != UserMemory::Private && self.machine.options.races {
            cell.reads.push(access);
        }
        if let Some(lent) = cell.lent {
            return Err(Fault::Lent { rank: self.rank, step: self.step, lent });
        }
        let (write, value) = (cell.write, cell.value.clone());
        self.machine.check_order(self.rank, self.step, write, "a read")?;
        let what = || format!("block {} part {part} of {:?}", slice.block, slice.buffer);
        value.ok_or_else(|| Fault::Empty { rank: self.rank, step: self.step, what: what() })
    }

    /// Returns the cell of a slot that holds a part; fails if the layout has no room for it. `None`
    /// for other memory.
    fn slot_cell(&self, owner: u32, slice: Slice, part: u32) -> Result<Option<usize>, Fault> {
        let (layout, nranks) = (&self.run.plan.layout, self.run.plan.spec.nranks);
        let (cell, fits) = match slice.buffer {
            Buffer::Stage => {
                let cell = slice.block * self.run.geometry.parts + part;
                (cell, slice.block < layout.stage_blocks)
            }
            Buffer::Inbox => {
                let others = slice.block % nranks != owner && slice.parts == 1;
                let place = inbox_place(slice.block, owner, nranks);
                (slice.block, others && place < layout.inbox_blocks && layout.stage_blocks == 0)
            }
            _ => return Ok(None),
        };
        let what = || format!("{slice:?} of rank {owner}");
        let no_room = || Fault::NoRoom { rank: self.rank, step: self.step, what: what() };
        if fits { Ok(Some(cell as usize)) } else { Err(no_room()) }
    }

    fn generation(&self) -> (usize, u64) {
        let window = self.run.stage_base + self.window;
        ((window & 1) as usize, window + 1)
    }

    fn load_stage(&mut self, owner: u32, slice: Slice, i: usize) -> Result<V::Value, Fault> {
        let (index, generation) = self.generation();
        let access = self.machine.access(self.rank, self.step);
        let slot = &mut self.machine.stage[owner as usize][index];
        let found = (slot.generation == generation).then(|| slot.cells.get(i).cloned().flatten());
        let Some((value, write)) = found.flatten() else {
            let what = format!("{slice:?} of rank {owner}");
            return Err(Fault::Empty { rank: self.rank, step: self.step, what });
        };
        slot.reads.retain(|(cell, r)| (*cell, r.rank) != (i, access.rank));
        slot.reads.push((i, access));
        self.machine.check_order(self.rank, self.step, write, "a read of the stage")?;
        Ok(value)
    }

    fn store(&mut self, owner: u32, slice: Slice, values: Vec<V::Value>) -> Result<(), Fault> {
        self.reach(owner..owner + 1)?;
        for (part, value) in self.parts(slice).zip(values) {
            if let Some(cell) = self.slot_cell(owner, slice, part)? {
                self.store_stage(owner, cell, value)?;
            } else {
                self.store_user(owner, slice, part, value)?;
            }
        }
        Ok(())
    }

    fn store_user(
        &mut self,
        owner: u32,
        slice: Slice,
        part: u32,
        value: V::Value,
    ) -> Result<(), Fault> {
        let (rank, step) = (self.rank, self.step);
        let (buffer, i) = self.run.locate(owner, slice.buffer, slice.block, self.window, part);
        let aliased = self.run.in_place[owner as usize];
        if slice.buffer == Buffer::Input || (buffer == Buffer::Input as usize && !aliased) {
            return Err(Fault::InputWritten { rank, step });
        }
        let access = self.machine.access(rank, step);
        let cell = &mut self.run.memory[owner as usize][buffer][i];
        if let Some(lent) = cell.lent {
            return Err(Fault::Lent { rank, step, lent });
        }
        let before = std::mem::replace(&mut cell.write, access);
        let reads = std::mem::take(&mut cell.reads);
        cell.value = Some(value);
        self.machine.check_order(rank, step, before, "a write")?;
        reads.iter().try_for_each(|&r| self.machine.check_order(rank, step, r, "a write"))
    }

    fn store_stage(&mut self, owner: u32, i: usize, value: V::Value) -> Result<(), Fault> {
        let (rank, step) = (self.rank, self.step);
        let (index, generation) = self.generation();
        let access = self.machine.access(rank, step);
        if self.machine.ranks[rank as usize].acquired[index] != generation {
            return Err(Fault::NotAcquired { rank, step });
        }
        let slot = &mut self.machine.stage[owner as usize][index];
        slot.enter(generation);
        if slot.cells.len() <= i {
            slot.cells.resize_with(i + 1, || None);
        }
        let before = slot.cells[i].replace((value, access)).map(|(_, write)| write);
        let reads = slot.reads.iter().filter(|(cell, _)| *cell == i).map(|(_, read)| *read);
        let same: Vec<_> = reads.chain(before).collect();
        let earlier = slot.earlier.clone();
        let check = |what, all: &[Access]| {
            all.iter().try_for_each(|&a| self.machine.check_order(rank, step, a, what))
        };
        check("a write to the stage", &same)?;
        check("early reuse of a stage slot", &earlier)
    }

    fn acquire(&mut self) -> Result<bool, Fault> {
        let (index, generation) = self.generation();
        let rank = self.rank as usize;
        if !self.wait(From::All, self.machine.ranks[rank].slot_need[index])? {
            return Ok(false);
        }
        self.machine.ranks[rank].acquired[index] = generation;
        Ok(true)
    }

    fn wait(&mut self, from: From, target: u64) -> Result<bool, Fault> {
        let rank = self.rank;
        let peers = match from {
            From::All => 0..self.run.plan.spec.nranks,
            From::One(peer) => peer..peer + 1,
        };
        self.reach(peers.clone())?;
        let behind = |p: u32| p != rank && self.machine.ranks[p as usize].phase < target;
        if peers.clone().any(behind) {
            return Ok(false);
        }
        for peer in peers.filter(|&p| p != rank) {
            let (clock, time) = self.machine.ranks[peer as usize].signals[target as usize].clone();
            self.machine.join(rank, &clock);
            if let Some((model, _)) = self.machine.options.costs {
                let now = &mut self.machine.ranks[rank as usize].now_us;
                *now = now.max(time + model.latency_us) + model.poll_us;
            }
        }
        Ok(true)
    }
}
