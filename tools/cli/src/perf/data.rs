//! Test data: fresh random elements that every rank can compute for every other, and the check of
//! results against the definition of the collective.

use oxccl_plan::arith::{Bf16, E4m3, E5m2, Element, F16};
use oxccl_plan::{DataType, ReduceOp, Spec};

/// Returns a well-mixed number for each element (the finaliser of SplitMix64).
fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the value of an element, so small that reductions of many ranks stay exact or nearly so.
fn value(dtype: DataType, op: ReduceOp, random: u64) -> f64 {
    let unsigned = matches!(dtype, DataType::Uint8 | DataType::Uint32 | DataType::Uint64);
    if op == ReduceOp::Prod {
        return match random & 7 {
            0 => 2.0,
            1 if spacing(dtype) > 0.0 => 0.5,
            2 | 3 if !unsigned => -1.0,
            _ => 1.0,
        };
    }
    let (range, unit) = match dtype {
        DataType::Float8e4m3 | DataType::Float8e5m2 => (8, 0.25),
        DataType::Bfloat16 => (16, 0.5),
        DataType::Float16 => (64, 0.25),
        _ => (128, 1.0),
    };
    let number = (random % range) as f64 * unit;
    if unsigned { number } else { number - range as f64 / 2.0 * unit }
}

fn put(dtype: DataType, value: f64, bytes: &mut [u8]) {
    match dtype {
        DataType::Int8 => (value as i64 as i8).store(bytes),
        DataType::Uint8 => (value as i64 as u8).store(bytes),
        DataType::Int32 => (value as i64 as i32).store(bytes),
        DataType::Uint32 => (value as i64 as u32).store(bytes),
        DataType::Int64 => (value as i64).store(bytes),
        DataType::Uint64 => (value as i64 as u64).store(bytes),
        DataType::Float16 => F16::round(value as f32).store(bytes),
        DataType::Float32 => (value as f32).store(bytes),
        DataType::Float64 => value.store(bytes),
        DataType::Bfloat16 => Bf16::round(value as f32).store(bytes),
        DataType::Float8e4m3 => E4m3::round(value as f32).store(bytes),
        DataType::Float8e5m2 => E5m2::round(value as f32).store(bytes),
    }
}

/// Fills a rank's input with elements from `first` on.
pub(crate) fn fill(dtype: DataType, op: ReduceOp, seed: u64, first: u64, out: &mut [u8]) {
    for (i, bytes) in (first..).zip(out.chunks_exact_mut(dtype.size())) {
        put(dtype, value(dtype, op, mix(seed, i)), bytes);
    }
}

/// Returns the seed of a rank's data in an iteration.
pub(crate) fn seed(iteration: u64, rank: u32) -> u64 {
    mix(iteration, u64::from(rank) + 1)
}

/// Returns the relative spacing of a type's values; 0 for exact types.
fn spacing(dtype: DataType) -> f64 {
    match dtype {
        DataType::Float64 => f64::EPSILON,
        DataType::Float32 => f64::from(f32::EPSILON),
        DataType::Float16 => 1.0 / 1024.0,
        DataType::Bfloat16 => 1.0 / 128.0,
        DataType::Float8e4m3 => 1.0 / 8.0,
        DataType::Float8e5m2 => 1.0 / 4.0,
        _ => 0.0,
    }
}

fn get(dtype: DataType, bytes: &[u8]) -> f64 {
    oxccl_plan::with_element!(dtype, E => {
        let lane = E::load(bytes).widen();
        ToF64::to_f64(lane)
    })
}

trait ToF64 {
    fn to_f64(self) -> f64;
}

macro_rules! to_f64 {
    ($($t:ty),*) => {$(impl ToF64 for $t { fn to_f64(self) -> f64 { self as f64 } })*};
}
to_f64!(i8, u8, i32, u32, i64, u64, f32, f64);

/// Counts the wrong elements of one block of a rank's output.
///
/// Copies and exact types must match bit for bit. A float reduction may differ by one rounding per
/// fold: the number of ranks times the type's spacing times the sum of magnitudes.
pub(crate) fn wrong(
    spec: &Spec,
    (dtype, op): (DataType, ReduceOp),
    iteration: u64,
    (rank, block): (u32, u32),
    count: u64,
    got: &[u8],
) -> u64 {
    let size = dtype.size();
    let source = u64::from(spec.source_block(rank)) * count;
    let contributors: Vec<u32> = match spec.source_rank(block) {
        Some(from) => vec![from],
        None => (0..spec.nranks).collect(),
    };
    let mut operands = vec![vec![0u8; STRETCH * size]; contributors.len()];
    let mut wrong = 0;
    for (i, got) in got.chunks(STRETCH * size).enumerate() {
        let first = source + (i * STRETCH) as u64;
        for (&from, operand) in contributors.iter().zip(&mut operands) {
            fill(dtype, op, seed(iteration, from), first, &mut operand[..got.len()]);
        }
        let all: Vec<&[u8]> = operands.iter().map(|o| &o[..got.len()]).collect();
        if let [only] = all[..] {
            wrong += different(size, only, got);
            continue;
        }
        let expected = oxccl_plan::arith::fold(dtype, op, &all, Some(spec.nranks));
        if expected != got {
            wrong += beyond_tolerance(dtype, op, &all, &expected, got);
        }
    }
    wrong
}

fn different(size: usize, expected: &[u8], got: &[u8]) -> u64 {
    if expected == got {
        return 0;
    }
    let pairs = expected.chunks_exact(size).zip(got.chunks_exact(size));
    pairs.filter(|(expected, got)| expected != got).count() as u64
}

fn beyond_tolerance(
    dtype: DataType,
    op: ReduceOp,
    operands: &[&[u8]],
    expected: &[u8],
    got: &[u8],
) -> u64 {
    let (size, n) = (dtype.size(), operands.len() as f64);
    let inexact = matches!(op, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Prod);
    let elements = expected.chunks_exact(size).zip(got.chunks_exact(size)).enumerate();
    let wrong = elements.filter(|(i, (expected, got))| {
        let magnitudes = operands.iter().map(|o| get(dtype, &o[i * size..(i + 1) * size]).abs());
        let magnitude: f64 = match op {
            ReduceOp::Sum => magnitudes.sum(),
            ReduceOp::Avg => magnitudes.sum::<f64>() / n,
            _ => get(dtype, expected).abs(),
        };
        let gap = (get(dtype, expected) - get(dtype, got)).abs();
        let near = inexact && gap <= n * spacing(dtype) * magnitude;
        expected != got && !near
    });
    wrong.count() as u64
}

/// Elements that are checked at a time.
const STRETCH: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::Collective;

    #[test]
    fn right_results_pass_and_a_flipped_bit_is_counted() {
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL {
                let (n, count) = (5u32, 3000usize);
                let spec = Spec::new(Collective::AllReduce, n, 0);
                let inputs: Vec<Vec<u8>> = (0..n)
                    .map(|rank| {
                        let mut data = vec![0; count * dtype.size()];
                        fill(dtype, op, seed(7, rank), 0, &mut data);
                        data
                    })
                    .collect();
                let operands: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                let mut out = oxccl_plan::arith::fold(dtype, op, &operands, Some(n));
                let check = |out: &[u8]| wrong(&spec, (dtype, op), 7, (1, 0), count as u64, out);
                assert_eq!(check(&out), 0, "{dtype:?} {op:?}");
                // The highest byte holds the sign and the exponent; 0x7f is a NaN of both fp8.
                let byte = 2000 * dtype.size() + dtype.size() - 1;
                let fp8 = matches!(dtype, DataType::Float8e4m3 | DataType::Float8e5m2);
                out[byte] = if fp8 { 0x7f } else { out[byte] ^ 0x7f };
                assert_eq!(check(&out), 1, "{dtype:?} {op:?}");
            }
        }
    }
}
