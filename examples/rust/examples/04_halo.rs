//! Heat in a rod that is cut into a piece per rank. In each step neighbours exchange the cells at
//! their edges: `oxccl run -n 4 04_halo`

use oxccl::nccl::collectives::{ncclRecv, ncclSend};
use oxccl::nccl::group::{ncclGroupEnd, ncclGroupStart};
use oxccl::nccl::types::ncclDataType_t;
use oxccl_examples::{Outcome, Rank, check, verdict};
use std::mem::MaybeUninit;
use std::process::ExitCode;

const CELLS: usize = 64;
const STEPS: usize = 200;

/// Cells from a number on, between two of the neighbours.
fn initial(from: usize, n: usize) -> Vec<f64> {
    let cell = |i: usize| if i.is_multiple_of(17) { 100.0 } else { (i % 5) as f64 };
    let cells = (from + 1..=from + n).map(cell);
    std::iter::once(0.0).chain(cells).chain([0.0]).collect()
}

fn step(u: &mut [f64]) {
    let old = u.to_vec();
    for (new, w) in u[1..].iter_mut().zip(old.windows(3)) {
        *new = w[1] + 0.25 * (w[0] - 2.0 * w[1] + w[2]);
    }
}

/// Fills the cells of the neighbours; those beyond the rod's ends stay 0.
fn exchange(r: &Rank<f64>, u: &mut [f64]) -> Outcome {
    r.put(0, &[u[1], u[CELLS], 0.0, 0.0])?;
    let double = MaybeUninit::new(ncclDataType_t::ncclFloat64);
    // In a group, sends and receives wait for no order.
    // SAFETY: there are four elements, until the stream is synchronized.
    unsafe {
        check(ncclGroupStart())?;
        for (side, peer) in [r.rank - 1, r.rank + 1].into_iter().enumerate() {
            if (0..r.nranks).contains(&peer) {
                check(ncclSend(r.x.add(side).cast(), 1, double, peer, r.comm, r.stream))?;
                check(ncclRecv(r.x.add(2 + side).cast(), 1, double, peer, r.comm, r.stream))?;
            }
        }
        check(ncclGroupEnd())?;
    }
    let mut edges = [0.0; 2];
    r.get(2, &mut edges)?;
    [u[0], u[CELLS + 1]] = edges;
    Ok(())
}

fn heat(r: &Rank<f64>) -> Outcome<bool> {
    let first = r.rank as usize * CELLS;
    let (mut u, mut whole) = (initial(first, CELLS), initial(0, r.nranks as usize * CELLS));
    for _ in 0..STEPS {
        exchange(r, &mut u)?;
        step(&mut u);
        step(&mut whole);
    }
    Ok(u[1..=CELLS] == whole[first + 1..=first + CELLS])
}

fn main() -> ExitCode {
    match Rank::from_env(|_| 4) {
        Ok(r) => verdict(heat(&r), r.rank, r.nranks, "heat"),
        Err(error) => verdict(Err(error), 0, 1, "start"),
    }
}
