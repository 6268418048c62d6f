//! Heat in a rod that is cut into a piece per rank. In each step neighbours exchange the cells at
//! their edges: `oxccl run -n 4 04_halo`

use oxccl::{Comm, group};
use oxccl_examples::{Outcome, as_rank};
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
fn exchange(comm: &Comm, u: &mut [f64]) -> Outcome {
    let edges = [[u[1]], [u[CELLS]]];
    let (before, rest) = u.split_at_mut(1);
    let (_, after) = rest.split_at_mut(CELLS);
    let rank = comm.rank();
    // In a group, sends and receives wait for no order.
    group(|g| {
        if rank > 0 {
            comm.send_on(g, &edges[0], rank - 1)?;
            comm.recv_on(g, before, rank - 1)?;
        }
        if rank + 1 < comm.size() {
            comm.send_on(g, &edges[1], rank + 1)?;
            comm.recv_on(g, after, rank + 1)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn heat(comm: &Comm) -> Outcome<bool> {
    let first = comm.rank() * CELLS;
    let (mut u, mut whole) = (initial(first, CELLS), initial(0, comm.size() * CELLS));
    for _ in 0..STEPS {
        exchange(comm, &mut u)?;
        step(&mut u);
        step(&mut whole);
    }
    Ok(u[1..=CELLS] == whole[first + 1..=first + CELLS])
}

fn main() -> ExitCode {
    as_rank("heat", heat)
}
