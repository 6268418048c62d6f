//! Reductions whose bits depend on the order of folding, compared with the fold in rank order.
//!
//! Every rank draws the same cases from the seed, so each knows all inputs and what its output has
//! to be: the reference interpreter's, for a plan that folds directly.

use crate::sequence::{Player, Random};
use oxccl_plan::arith::{Bf16, E4m3, E5m2, Element, F16};
use oxccl_plan::{Algorithm, Collective, DataType, Geometry, Plan, ReduceOp, Spec, reference};
use oxccl_runtime::device::host::arena;
use oxccl_runtime::device::host::collective::capacity;
use oxccl_runtime::op::Call;
use oxccl_runtime::{Result, group};
use std::fmt;
use std::ops::Range;

const TYPES: [DataType; 7] = [
    DataType::Float16,
    DataType::Bfloat16,
    DataType::Float8e4m3,
    DataType::Float8e5m2,
    DataType::Float32,
    DataType::Float64,
    DataType::Int8,
];
const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter];
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod];

/// What a run found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Reductions with an output on this rank.
    pub compared: u32,
    /// Those whose bits are not those of the fold in rank order.
    pub differing: u32,
}

impl Found {
    /// Takes in whether an output has the expected bits; `None` where this rank has none.
    fn note(&mut self, equal: Option<bool>) {
        self.compared += u32::from(equal.is_some());
        self.differing += u32::from(equal == Some(false));
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} differ", self.differing, self.compared)
    }
}

/// Memory of malloc or of the arena.
struct Buffer {
    base: *mut u8,
    len: usize,
    arena: bool,
}

impl Buffer {
    fn new(bytes: &[u8], arena: bool) -> Result<Self> {
        let len = bytes.len().max(1);
        let base = if arena {
            arena::allocate(len)?
        } else {
            Box::into_raw(vec![0u8; len].into_boxed_slice()).cast()
        };
        // SAFETY: the memory is new and at least as large.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base, bytes.len()) };
        Ok(Self { base, len, arena })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has this size; tests look at it when no operation is under way.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.arena {
            arena::free(self.base).expect("it came from the arena");
            return;
        }
        // SAFETY: it came from a boxed slice of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.base, self.len)) });
    }
}

/// Adds an element between 2⁻¹⁰ and 2¹⁰ in magnitude: sums cancel and lose low bits, products
/// saturate.
pub fn element(random: &mut Random, dtype: DataType, out: &mut Vec<u8>) {
    let (draw, exponent) = (random.draw(), random.below(20) + 1023 - 10);
    let value = f64::from_bits(draw << 63 | exponent << 52 | draw >> 12);
    let narrow = value as f32;
    match dtype {
        DataType::Float64 => out.extend(value.to_ne_bytes()),
        DataType::Float32 => out.extend(narrow.to_ne_bytes()),
        DataType::Float16 => out.extend(F16::round(narrow).0.to_ne_bytes()),
        DataType::Bfloat16 => out.extend(Bf16::round(narrow).0.to_ne_bytes()),
        DataType::Float8e4m3 => out.push(E4m3::round(narrow).0),
        DataType::Float8e5m2 => out.push(E5m2::round(narrow).0),
        _ => out.extend(&draw.to_ne_bytes()[..dtype.size()]),
    }
}

/// Appends an element at the edge of what a type can hold: a zero, the smallest or largest number,
/// subnormal or not, one, an infinity, or no number, of either sign.
pub fn edge(random: &mut Random, dtype: DataType, out: &mut Vec<u8>) {
    let (exponent, mantissa) = match dtype {
        DataType::Float64 | DataType::Int64 | DataType::Uint64 => (11, 52),
        DataType::Float32 | DataType::Int32 | DataType::Uint32 => (8, 23),
        DataType::Float16 => (5, 10),
        DataType::Bfloat16 => (8, 7),
        DataType::Float8e4m3 | DataType::Int8 | DataType::Uint8 => (4, 3),
        DataType::Float8e5m2 => (5, 2),
    };
    let one_step = 1u64 << mantissa;
    let top = ((1 << exponent) - 1) << mantissa;
    let one = ((1 << (exponent - 1)) - 1) << mantissa;
    let all =
        [0, 1, one_step - 1, one_step, one, one + 1, top - 1, top, top + 1, top + one_step / 2 + 1];
    let bits = all[random.below(all.len() as u64) as usize];
    let sign = random.below(2) << (exponent + mantissa);
    out.extend(&(bits | sign).to_ne_bytes()[..dtype.size()]);
}

/// One reduction, as all ranks know it.
struct Case {
    spec: Spec,
    dtype: DataType,
    op: ReduceOp,
    count: usize,
    inputs: Vec<Vec<u8>>,
    expected: Vec<Vec<u8>>,
    /// The calls that make it up, in elements of each block.
    pieces: Vec<Range<usize>>,
    grouped: bool,
    /// Which ranks' memory is the arena's.
    arena: Vec<bool>,
}

impl Case {
    fn draw(random: &mut Random, spec: Spec, dtype: DataType, op: ReduceOp, limit: u64) -> Self {
        let count = 1 + random.below(limit) as usize;
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let manner = random.below(3);
        while pieces.last().map_or(0, |p| p.end) < count {
            let start = pieces.last().map_or(0, |p| p.end);
            let whole = manner == 0 || pieces.len() == 7;
            let len = if whole { count } else { 1 + random.below(count as u64 / 2 + 1) as usize };
            pieces.push(start..(start + len).min(count));
        }
        let memory = random.below(3);
        let arena = (0..spec.nranks).map(|_| match memory {
            0 => true,
            1 => false,
            _ => random.below(2) == 0,
        });
        let arena = arena.collect();
        let inputs: Vec<Vec<u8>> = (0..spec.nranks)
            .map(|rank| {
                let elements = spec.input_blocks(rank) as usize * count;
                let mut input = Vec::with_capacity(elements * dtype.size());
                (0..elements).for_each(|_| element(random, dtype, &mut input));
                input
            })
            .collect();
        let plan = Plan::new(spec, Algorithm::OneShot).expect("it serves reductions");
        let geometry = Geometry::new(&plan.layout, count as u64, &capacity(64 << 10, dtype));
        let expected = reference::interpret(&plan, geometry, dtype, op, &inputs);
        let expected = expected.expect("the plan is verified");
        Self { spec, dtype, op, count, inputs, expected, pieces, grouped: manner == 2, arena }
    }

    /// The bytes of a piece of every block of the input of `rank`.
    fn input(&self, rank: usize, piece: &Range<usize>) -> Vec<u8> {
        let size = self.dtype.size();
        let blocks = self.inputs[rank].chunks_exact(self.count * size);
        blocks.flat_map(|block| block[piece.start * size..piece.end * size].to_vec()).collect()
    }

    /// Whether the output has the expected bits; None where this rank has none.
    fn run(&self, player: &Player) -> Result<Option<bool>> {
        let rank = player.comm.rank() as usize;
        let (size, arena) = (self.dtype.size(), self.arena[rank]);
        let has_output = self.spec.output_blocks(rank as u32) > 0;
        let mut buffers = Vec::new();
        if self.grouped {
            group::start();
        }
        for piece in &self.pieces {
            let input = Buffer::new(&self.input(rank, piece), arena)?;
            let output = Buffer::new(&vec![0x5a; piece.len() * size], arena)?;
            let call = Call {
                spec: self.spec,
                input: input.base,
                output: if has_output { output.base } else { std::ptr::null_mut() },
                count: piece.len() as u64,
                dtype: self.dtype,
                op: self.op,
                scale: None,
            };
            group::collective(&player.comm, &call, &player.stream)?;
            buffers.push((input, output));
        }
        if self.grouped {
            group::end()?;
        }
        player.stream.synchronize(None)?;
        let got: Vec<u8> = buffers.iter().flat_map(|(_, out)| out.bytes().to_vec()).collect();
        Ok(has_output.then(|| got == self.expected[rank]))
    }
}

/// Averages the largest numbers of types whose sums soon are out of range: each result is such a
/// number. Blocks until all ranks have done so.
pub fn average_largest(player: &Player) -> Result<Found> {
    let largest: [(DataType, &[u8]); 3] = [
        (DataType::Float16, &0x7bffu16.to_ne_bytes()),
        (DataType::Float8e4m3, &[0x7e]),
        (DataType::Float8e5m2, &[0x7b]),
    ];
    let (mut found, nranks) = (Found::default(), player.comm.nranks());
    for (dtype, element) in largest {
        for collective in COLLECTIVES {
            for count in [1, 3000, 400_000] {
                let spec = Spec::new(collective, nranks, nranks - 1);
                let of = |blocks: u32| element.repeat(blocks as usize * count);
                let case = Case {
                    spec,
                    dtype,
                    op: ReduceOp::Avg,
                    count,
                    inputs: (0..nranks).map(|rank| of(spec.input_blocks(rank))).collect(),
                    expected: (0..nranks).map(|rank| of(spec.output_blocks(rank))).collect(),
                    pieces: std::iter::once(0..count).collect(),
                    grouped: false,
                    arena: vec![count == 3000; nranks as usize],
                };
                found.note(case.run(player)?);
            }
        }
    }
    Ok(found)
}

/// Reduces every type, operation and collective: whole, in pieces and in groups, with memory from
/// malloc and from the arena. Blocks until all ranks have done so.
pub fn reduce_all(player: &Player, seed: u64) -> Result<Found> {
    let (mut random, mut found) = (Random(seed), Found::default());
    let nranks = player.comm.nranks();
    for limit in [40, 3000, 40_000] {
        for collective in COLLECTIVES {
            for op in OPS {
                // The large ones take their type by turns: they are about windows.
                let drawn = random.below(TYPES.len() as u64) as usize;
                let types = if limit == 40_000 { &TYPES[drawn..=drawn] } else { &TYPES };
                for &dtype in types {
                    let root = random.below(u64::from(nranks)) as u32;
                    let spec = Spec::new(collective, nranks, root);
                    let case = Case::draw(&mut random, spec, dtype, op, limit);
                    found.note(case.run(player)?);
                }
            }
        }
    }
    Ok(found)
}
