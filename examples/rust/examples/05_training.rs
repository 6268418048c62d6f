//! Softmax regression on Fisher's irises: every rank has a part of the flowers, and all add up
//! their gradients in each step: `oxccl run -n 4 05_training ../data/iris.csv`

use oxccl::{Comm, ReduceOp};
use oxccl_examples::{Outcome, as_rank};
use std::process::ExitCode;

const INPUTS: usize = 5;
const KINDS: usize = 3;
const WEIGHTS: usize = INPUTS * KINDS;
const EPOCHS: usize = 300;

struct Flower {
    inputs: [f64; INPUTS],
    kind: usize,
}

/// Four lengths in cm and the kind per line, after a line of titles; lengths are centred and
/// scaled.
fn load(path: &str) -> Outcome<Vec<Flower>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let flower = |line: &str| {
        let numbers: Result<Vec<f64>, _> = line.split(',').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[a, b, c, d, kind]) => {
                Ok(Flower { inputs: [a, b, c, d, 1.0], kind: kind as usize })
            }
            _ => Err(format!("{path}: {line} is no flower").into()),
        }
    };
    let mut flowers = text.lines().skip(1).map(flower).collect::<Outcome<Vec<_>>>()?;
    let n = flowers.len() as f64;
    for j in 0..4 {
        let mean = flowers.iter().map(|f| f.inputs[j]).sum::<f64>() / n;
        let variance = flowers.iter().map(|f| (f.inputs[j] - mean).powi(2)).sum::<f64>() / n;
        flowers.iter_mut().for_each(|f| f.inputs[j] = (f.inputs[j] - mean) / variance.sqrt());
    }
    Ok(flowers)
}

/// Adds a flower's gradient, and whether its kind was guessed.
fn learn(w: &[f64], flower: &Flower, sums: &mut [f64]) {
    let mut p = [0.0; KINDS];
    for (p, w) in p.iter_mut().zip(w.chunks(INPUTS)) {
        *p = w.iter().zip(flower.inputs).map(|(w, x)| w * x).sum::<f64>().exp();
    }
    let sum: f64 = p.iter().sum();
    for (k, gradient) in sums[..WEIGHTS].chunks_mut(INPUTS).enumerate() {
        let off = p[k] / sum - f64::from(u8::from(k == flower.kind));
        gradient.iter_mut().zip(flower.inputs).for_each(|(g, x)| *g += off * x);
    }
    let best = (0..KINDS).max_by(|&a, &b| p[a].total_cmp(&p[b]));
    sums[WEIGHTS] += f64::from(u8::from(best == Some(flower.kind)));
}

fn train(comm: &Comm, flowers: &[Flower]) -> Outcome<bool> {
    let mut w = [0.0; WEIGHTS];
    // Gradient, and good guesses.
    let mut sums = [0.0; WEIGHTS + 1];
    for _ in 0..EPOCHS {
        sums.fill(0.0);
        let own = flowers.iter().skip(comm.rank()).step_by(comm.size());
        own.for_each(|flower| learn(&w, flower, &mut sums));
        comm.all_reduce_in_place(&mut sums, ReduceOp::Sum)?;
        w.iter_mut().zip(sums).for_each(|(w, g)| *w -= 0.5 * g / flowers.len() as f64);
    }
    // All ranks have come to the same weights.
    let mut most = [0.0; WEIGHTS];
    comm.all_reduce(&w, &mut most, ReduceOp::Max)?;
    Ok(most == w && (0.95 * 150.0..=150.0).contains(&sums[WEIGHTS]))
}

fn main() -> ExitCode {
    as_rank("flowers", |comm| {
        let path = std::env::args().nth(1).ok_or("usage: 05_training iris.csv")?;
        train(comm, &load(&path)?)
    })
}
