//! Grouped sends and receives on the machine: each lane (peer and direction) advances when it can.

use super::{Fault, Machine, Transfer, Values};

impl<V: Values> Machine<'_, V> {
    pub(super) fn run_exchange(&mut self, transfers: &[Vec<Transfer>]) -> Result<(), Fault> {
        let mut moved_pieces: Vec<Vec<u64>> =
            transfers.iter().map(|list| vec![0; list.len()]).collect();
        loop {
            let (mut moved, mut waiting) = (false, None);
            for (rank, list) in transfers.iter().enumerate() {
                let mut busy: Vec<(u32, bool)> = Vec::new();
                for (step, transfer) in list.iter().enumerate() {
                    let lane = (transfer.peer, transfer.send);
                    if transfer.peer == rank as u32 || busy.contains(&lane) {
                        continue;
                    }
                    let nth = list[..step].iter().filter(|t| (t.peer, t.send) == lane).count();
                    let at = (rank as u32, step, nth as u64);
                    while moved_pieces[rank][step] < transfer.pieces
                        && self.exchange_piece(transfer, at, moved_pieces[rank][step])?
                    {
                        moved_pieces[rank][step] += 1;
                        moved = true;
                    }
                    if moved_pieces[rank][step] < transfer.pieces {
                        busy.push(lane);
                        waiting = Some((rank as u32, step, *transfer));
                    }
                }
            }
            match waiting {
                None => return Ok(()),
                Some((rank, step, transfer)) if !moved => {
                    let awaited = format!("{transfer:?}");
                    return Err(Fault::Deadlock { rank, step, window: 0, awaited });
                }
                Some(_) => {}
            }
        }
    }

    fn exchange_piece(
        &mut self,
        transfer: &Transfer,
        (rank, step, nth): (u32, usize, u64),
        piece: u64,
    ) -> Result<bool, Fault> {
        if transfer.send {
            return Ok(self.send(rank, transfer.peer, (Vec::new(), (nth, piece)), step, 0));
        }
        let Some(message) = self.receive(transfer.peer, rank, 0, false) else {
            return Ok(false);
        };
        if message.piece == (nth, piece) {
            return Ok(true);
        }
        let what = format!("message {:?} where {:?} is awaited", message.piece, (nth, piece));
        Err(Fault::Unmatched { rank: transfer.peer, step: message.step, what })
    }
}
