//! The folds of the host device, compiled for several instruction sets, one of which is chosen at
//! run time.
//!
//! The arithmetic is that of `oxccl_plan::arith`, inlined and vectorised by the compiler. This file
//! only adds pointers, blocking, and stores that bypass the cache.

use crate::os::copy::copy;
use oxccl_plan::arith::{Element, Lane, combine};
use oxccl_plan::{DataType, ReduceOp, with_element};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Bytes that a fold produces before it writes them out: small enough for the first-level cache
/// beside as much of each source.
const BLOCK: usize = 2048;
/// The same where all results bypass the cache, which is faster in whole pages.
const STREAMED_BLOCK: usize = 4096;

/// The parameters of a fold.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    /// The type of the elements.
    pub dtype: DataType,
    /// The reduction.
    pub op: ReduceOp,
    /// The number of ranks if the fold completes a reduction.
    pub finish: Option<u32>,
    /// The destinations to which results bypass the cache: a bit for each, from the lowest one on.
    pub streaming: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx512 {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Isa::Avx2;
            }
        }
        Isa::Baseline
    })
}

/// Folds `srcs` from left to right and writes the result to every one of `dsts`.
///
/// # Safety
/// Every source is readable and every destination writable for `len` bytes, a multiple of the
/// element's size. A destination may equal a source but not overlap one otherwise.
pub unsafe fn fold(dsts: &[*mut u8], srcs: &[*const u8], len: usize, how: Fold) {
    with_element!(how.dtype, E => {
        // SAFETY: passed on from the caller.
        unsafe { fold_typed::<E>(dsts, srcs, len, how) }
    });
}

unsafe fn fold_typed<E: Element>(dsts: &[*mut u8], srcs: &[*const u8], len: usize, how: Fold) {
    // One destination that stays in the cache is computed in place, unless it is a source too:
    // loops whose pointers may alias are not vectorised.
    let aliased = srcs.iter().any(|src| std::ptr::eq(*src, dsts[0]));
    let most = if how.streaming == u64::MAX { STREAMED_BLOCK } else { BLOCK };
    let direct = dsts.len() == 1 && how.streaming & 1 == 0 && !aliased;
    let mut block = MaybeUninit::<Block>::uninit();
    let mut at = 0;
    while at < len {
        let bytes = if direct { len } else { most.min(len - at) };
        // SAFETY: `bytes` from `at` on lie within all buffers, or within the block, whose bytes are
        // written before they are read.
        unsafe {
            let out = if direct { dsts[0] } else { block.as_mut_ptr().cast() };
            fold_block::<E>(out, srcs, at, bytes, how);
            if !direct {
                for (number, &dst) in dsts.iter().enumerate() {
                    let streaming = how.streaming >> number & 1 == 1;
                    copy(dst.add(at), block.as_ptr().cast(), bytes, streaming);
                }
            }
        }
        at += bytes;
    }
}

/// Writes the products of `src`'s elements and one factor, each rounded once, as
/// [`ReduceOp::Prod`] folds them. The factor's bytes come first in `factor`.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, a multiple of the element's size, and they
/// do not overlap.
pub unsafe fn scale(dst: *mut u8, src: *const u8, len: usize, dtype: DataType, factor: [u8; 8]) {
    let how = Fold { dtype, op: ReduceOp::Prod, finish: None, streaming: 0 };
    let mut factors = Block([0; STREAMED_BLOCK]);
    for element in factors.0.chunks_exact_mut(dtype.size()) {
        element.copy_from_slice(&factor[..dtype.size()]);
    }
    for at in (0..len).step_by(BLOCK) {
        let bytes = BLOCK.min(len - at);
        // SAFETY: `bytes` from `at` on lie within both buffers, and the block has as many.
        unsafe { fold(&[dst.add(at)], &[src.add(at), factors.0.as_ptr()], bytes, how) };
    }
}

#[repr(align(64))]
struct Block([u8; STREAMED_BLOCK]);

unsafe fn fold_block<E: Element>(
    out: *mut u8,
    srcs: &[*const u8],
    at: usize,
    bytes: usize,
    how: Fold,
) {
    let count = bytes / E::SIZE;
    // SAFETY: passed on from the caller; the features were detected.
    unsafe {
        match isa() {
            Isa::Baseline => by_op::<E>(out.cast(), srcs, at, count, how),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => by_op_avx2::<E>(out.cast(), srcs, at, count, how),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => by_op_avx512::<E>(out.cast(), srcs, at, count, how),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2")]
unsafe fn by_op_avx2<E: Element>(
    out: *mut E,
    srcs: &[*const u8],
    at: usize,
    count: usize,
    how: Fold,
) {
    // SAFETY: passed on from the caller.
    unsafe { by_op::<E>(out, srcs, at, count, how) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,bmi2")]
unsafe fn by_op_avx512<E: Element>(
    out: *mut E,
    srcs: &[*const u8],
    at: usize,
    count: usize,
    how: Fold,
) {
    // SAFETY: passed on from the caller.
    unsafe { by_op::<E>(out, srcs, at, count, how) }
}

/// Fixes the operation and the number of sources, so that the loops vectorise.
#[inline(always)]
unsafe fn by_op<E: Element>(out: *mut E, srcs: &[*const u8], at: usize, count: usize, how: Fold) {
    let divide = how.finish.filter(|_| how.op == ReduceOp::Avg);
    // SAFETY: passed on from the caller.
    unsafe {
        match how.op {
            ReduceOp::Sum | ReduceOp::Avg => {
                by_sources::<E>(out, srcs, at, count, divide, |a, b| combine(ReduceOp::Sum, a, b));
            }
            ReduceOp::Prod => {
                by_sources::<E>(out, srcs, at, count, None, |a, b| combine(ReduceOp::Prod, a, b));
            }
            ReduceOp::Max => {
                by_sources::<E>(out, srcs, at, count, None, |a, b| combine(ReduceOp::Max, a, b));
            }
            ReduceOp::Min => {
                by_sources::<E>(out, srcs, at, count, None, |a, b| combine(ReduceOp::Min, a, b));
            }
        }
    }
}

#[inline(always)]
unsafe fn by_sources<E: Element>(
    out: *mut E,
    srcs: &[*const u8],
    at: usize,
    count: usize,
    divide: Option<u32>,
    f: impl Fn(E::Lane, E::Lane) -> E::Lane + Copy,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match *srcs {
            [a, b] => fixed::<E, 2>(out, [a, b], at, count, divide, f),
            [a, b, c] => fixed::<E, 3>(out, [a, b, c], at, count, divide, f),
            [a, b, c, d] => fixed::<E, 4>(out, [a, b, c, d], at, count, divide, f),
            _ => any::<E>(out, srcs, at, count, divide, f),
        }
    }
}

#[inline(always)]
unsafe fn fixed<E: Element, const N: usize>(
    out: *mut E,
    srcs: [*const u8; N],
    at: usize,
    count: usize,
    divide: Option<u32>,
    f: impl Fn(E::Lane, E::Lane) -> E::Lane + Copy,
) {
    // SAFETY: `count` elements from byte `at` on are readable, and `count` of `out` writable.
    let load =
        |s: usize, i: usize| unsafe { srcs[s].add(at).cast::<E>().add(i).read_unaligned().widen() };
    let folded = |i: usize| (1..N).fold(load(0, i), |lane, s| f(lane, load(s, i)));
    match divide {
        None => {
            for i in 0..count {
                // SAFETY: as above.
                unsafe { out.add(i).write_unaligned(E::round(folded(i))) };
            }
        }
        Some(nranks) => {
            for i in 0..count {
                // SAFETY: as above.
                unsafe { out.add(i).write_unaligned(E::round(folded(i).divide(nranks))) };
            }
        }
    }
}

/// Folds any number of sources. A stretch of lanes stays in registers or the first-level cache.
#[inline(always)]
unsafe fn any<E: Element>(
    out: *mut E,
    srcs: &[*const u8],
    at: usize,
    count: usize,
    divide: Option<u32>,
    f: impl Fn(E::Lane, E::Lane) -> E::Lane + Copy,
) {
    const STRETCH: usize = 128;
    let mut first = 0;
    while first < count {
        let n = STRETCH.min(count - first);
        // SAFETY: elements first..first + n lie within all sources and `out`.
        unsafe {
            let load = |src: *const u8, i: usize| {
                src.add(at).cast::<E>().add(first + i).read_unaligned().widen()
            };
            let mut lanes = [load(srcs[0], 0); STRETCH];
            for (i, lane) in lanes[..n].iter_mut().enumerate() {
                *lane = load(srcs[0], i);
            }
            for &src in &srcs[1..] {
                for (i, lane) in lanes[..n].iter_mut().enumerate() {
                    *lane = f(*lane, load(src, i));
                }
            }
            for (i, &lane) in lanes[..n].iter().enumerate() {
                let lane = divide.map_or(lane, |nranks| lane.divide(nranks));
                out.add(first + i).write_unaligned(E::round(lane));
            }
        }
        first += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_plan::arith;

    #[test]
    fn folds_equal_the_reference_for_all_types_operations_and_offsets() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL {
                for sources in [2, 3, 4, 7] {
                    for (elems, offset) in [(1, 1), (129, 3), (3000, 0)] {
                        let len = elems * dtype.size();
                        let data: Vec<Vec<u8>> = (0..sources)
                            .map(|_| (0..len + offset).map(|_| byte()).collect())
                            .collect();
                        let operands: Vec<&[u8]> = data.iter().map(|d| &d[offset..]).collect();
                        let srcs: Vec<_> = operands.iter().map(|o| o.as_ptr()).collect();
                        let finish = (elems % 2 == 1).then_some(sources as u32);
                        let expected = arith::fold(dtype, op, &operands, finish);
                        for (streaming, copies) in [(0, 1), (1, 1), (0, 3), (2, 2), (u64::MAX, 2)] {
                            let mut out = vec![vec![0xaa; len + offset + 8]; copies];
                            let dsts: Vec<_> =
                                out.iter_mut().map(|o| o[offset..].as_mut_ptr()).collect();
                            // SAFETY: all buffers hold `len` bytes from the given pointers on.
                            unsafe {
                                fold(&dsts, &srcs, len, Fold { dtype, op, finish, streaming });
                            }
                            for o in &out {
                                assert!(o[offset..offset + len] == expected, "{dtype:?} {op:?}");
                                assert_eq!(o[offset + len..], [0xaa; 8]);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let a: Vec<u8> = (0..4096u32).map(|i| (i * 37 + i / 9) as u8).collect();
        let b: Vec<u8> = (0..4096u32).map(|i| (i * 91 + i / 5) as u8).collect();
        let srcs = [a.as_ptr(), b.as_ptr()];
        for op in ReduceOp::ALL {
            let how = Fold { dtype: DataType::Float16, op, finish: Some(2), streaming: 0 };
            let mut outs = Vec::new();
            let mut out = vec![0u8; 4096];
            // SAFETY: all buffers have 4096 bytes; each set is used only where it was detected.
            unsafe {
                by_op::<arith::F16>(out.as_mut_ptr().cast(), &srcs, 0, 2048, how);
                outs.push(out.clone());
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    by_op_avx2::<arith::F16>(out.as_mut_ptr().cast(), &srcs, 0, 2048, how);
                    outs.push(out.clone());
                }
                #[cfg(target_arch = "x86_64")]
                if isa() == Isa::Avx512 {
                    by_op_avx512::<arith::F16>(out.as_mut_ptr().cast(), &srcs, 0, 2048, how);
                    outs.push(out.clone());
                }
            }
            assert!(outs.iter().all(|o| *o == outs[0]), "{op:?}");
        }
    }
}
