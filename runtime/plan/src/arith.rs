//! The arithmetic of reductions: the one definition that every executor has to meet bit for bit.
//!
//! 16- and 8-bit floats are folded in float32 and rounded to nearest even where the plan states a
//! rounding; fp8 saturates at its largest finite value; a NaN result is the canonical quiet NaN.
//! Max and min prefer a number to a NaN and order −0 below +0. The functions are branch-free and
//! inlined, so that the compiler vectorises the executors' loops over them.

use crate::dtype::{DataType, ReduceOp};

/// The type in which elements are folded.
pub trait Lane: Copy + Send + Sync + 'static {
    /// Returns the sum (integers wrap).
    fn plus(self, other: Self) -> Self;
    /// Returns the product (integers wrap).
    fn times(self, other: Self) -> Self;
    /// Returns the larger value.
    fn larger(self, other: Self) -> Self;
    /// Returns the smaller value.
    fn smaller(self, other: Self) -> Self;
    /// Divides by the number of ranks; integers are rounded towards zero.
    fn divide(self, nranks: u32) -> Self;
}

macro_rules! integer_lane {
    ($($t:ty => $wide:ty),*) => {$(
        impl Lane for $t {
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { if self > other { self } else { other } }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { if self < other { self } else { other } }
            #[inline(always)]
            fn divide(self, nranks: u32) -> Self {
                // The type itself may not be able to represent the number of ranks.
                (self as $wide / <$wide>::from(nranks)) as $t
            }
        }
    )*};
}
integer_lane!(i8 => i64, u8 => i64, i32 => i64, u32 => i64, i64 => i128, u64 => i128);

macro_rules! float_lane {
    ($t:ty, $bits:ty, $nan:expr) => {
        impl Lane for $t {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                let sum = self + other;
                if sum.is_nan() { <$t>::from_bits($nan) } else { sum }
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                let product = self * other;
                if product.is_nan() { <$t>::from_bits($nan) } else { product }
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let equal = <$t>::from_bits(self.to_bits() & other.to_bits());
                let number = if self.is_nan() { other } else { self };
                let number = if number.is_nan() { <$t>::from_bits($nan) } else { number };
                let less = if self < other { other } else { number };
                let ordered = if self > other { self } else { less };
                if self == other { equal } else { ordered }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let equal = <$t>::from_bits(self.to_bits() | other.to_bits());
                let number = if self.is_nan() { other } else { self };
                let number = if number.is_nan() { <$t>::from_bits($nan) } else { number };
                let more = if self > other { other } else { number };
                let ordered = if self < other { self } else { more };
                if self == other { equal } else { ordered }
            }
            #[inline(always)]
            fn divide(self, nranks: u32) -> Self {
                let quotient = self / nranks as $t;
                if quotient.is_nan() { <$t>::from_bits($nan) } else { quotient }
            }
        }
    };
}
float_lane!(f32, u32, 0x7fc0_0000);
float_lane!(f64, u64, 0x7ff8_0000_0000_0000);

/// An element as it is stored in memory.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type in which the element is folded.
    type Lane: Lane;
    /// Bytes of one element.
    const SIZE: usize;
    /// Converts the element to its lane.
    fn widen(self) -> Self::Lane;
    /// Rounds a lane to the element type.
    fn round(lane: Self::Lane) -> Self;
    /// Reads an element from native-endian bytes.
    fn load(bytes: &[u8]) -> Self;
    /// Writes the element as native-endian bytes.
    fn store(self, bytes: &mut [u8]);
}

macro_rules! plain_element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Lane = $t;
            const SIZE: usize = size_of::<$t>();
            #[inline(always)]
            fn widen(self) -> $t { self }
            #[inline(always)]
            fn round(lane: $t) -> Self { lane }
            fn load(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$t>()];
                raw.copy_from_slice(bytes);
                <$t>::from_ne_bytes(raw)
            }
            fn store(self, bytes: &mut [u8]) { bytes.copy_from_slice(&self.to_ne_bytes()) }
        }
    )*};
}
plain_element!(i8, u8, i32, u32, i64, u64, f32, f64);

macro_rules! small_float {
    ($(#[$doc:meta])* $name:ident($raw:ty), $widen:path, $round:path) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub $raw);
        impl Element for $name {
            type Lane = f32;
            const SIZE: usize = size_of::<$raw>();
            #[inline(always)]
            fn widen(self) -> f32 { $widen(self.0) }
            #[inline(always)]
            fn round(lane: f32) -> Self { Self($round(lane)) }
            fn load(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$raw>()];
                raw.copy_from_slice(bytes);
                Self(<$raw>::from_ne_bytes(raw))
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.0.to_ne_bytes());
            }
        }
    };
}
small_float!(
    /// IEEE binary16.
    F16(u16), f16_to_f32, f32_to_f16);
small_float!(
    /// The upper half of a binary32.
    Bf16(u16), bf16_to_f32, f32_to_bf16);
small_float!(
    /// OCP E4M3.
    E4m3(u8), e4m3_to_f32, f32_to_e4m3);
small_float!(
    /// OCP E5M2.
    E5m2(u8), e5m2_to_f32, f32_to_e5m2);

/// The constant whose addition and subtraction rounds a float32 below 2^22 to an integer, ties to
/// even.
const INTEGER_ROUNDER: f32 = 8_388_608.0;

#[inline(always)]
fn f16_to_f32(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff);
    let sign = u32::from(h & 0x8000) << 16;
    let normal = (magnitude << 13).wrapping_add(112 << 23);
    // No multiplication of subnormal float32 values: programs may run with denormals flushed to
    // zero.
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let special = (magnitude << 13) | 0x7f80_0000;
    let finite = if magnitude < 0x400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

#[inline(always)]
fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 16) & 0x8000;
    let rounded = magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    let normal = rounded.wrapping_sub(112 << 10);
    let scaled = f32::from_bits(magnitude.min(0x3880_0000)) * 16_777_216.0;
    let subnormal = (scaled + INTEGER_ROUNDER).to_bits() & 0xffff;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let infinite = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    if magnitude > 0x7f80_0000 { 0x7e00 } else { (sign | infinite) as u16 }
}

#[inline(always)]
fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if x.is_nan() { 0x7fc0 } else { rounded as u16 }
}

#[inline(always)]
fn fp8_to_f32<const MANTISSA: u32, const BIAS: u32>(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    let sign = u32::from(code & 0x80) << 24;
    let normal = (magnitude << (23 - MANTISSA)).wrapping_add((127 - BIAS) << 23);
    let unit = f32::from_bits((127 + 1 - BIAS - MANTISSA) << 23);
    let subnormal = (magnitude as i32 as f32 * unit).to_bits();
    f32::from_bits(sign | if magnitude < (1 << MANTISSA) { subnormal } else { normal })
}

#[inline(always)]
fn f32_to_fp8<const MANTISSA: u32, const BIAS: u32, const LARGEST: u32>(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 24) & 0x80;
    let shift = 23 - MANTISSA;
    let smallest_normal = (128 - BIAS) << 23;
    let half = (1 << (shift - 1)) - 1 + ((magnitude >> shift) & 1);
    let normal = (magnitude.wrapping_add(half) >> shift).wrapping_sub((127 - BIAS) << MANTISSA);
    let scale = f32::from_bits((127 + BIAS - 1 + MANTISSA) << 23);
    let scaled = f32::from_bits(magnitude.min(smallest_normal)) * scale;
    let subnormal = (scaled + INTEGER_ROUNDER).to_bits() & 0xff;
    let code = if magnitude < smallest_normal { subnormal } else { normal.min(LARGEST) };
    if x.is_nan() { 0x7f } else { (sign | code) as u8 }
}

#[inline(always)]
fn e4m3_to_f32(code: u8) -> f32 {
    let nan = code & 0x7f == 0x7f;
    if nan { f32::NAN } else { fp8_to_f32::<3, 7>(code) }
}

#[inline(always)]
fn f32_to_e4m3(x: f32) -> u8 {
    f32_to_fp8::<3, 7, 0x7e>(x)
}

#[inline(always)]
fn e5m2_to_f32(code: u8) -> f32 {
    let plain = fp8_to_f32::<2, 15>(code);
    let special = f32::from_bits(plain.to_bits() | 0x7f80_0000);
    if code & 0x7f >= 0x7c { special } else { plain }
}

#[inline(always)]
fn f32_to_e5m2(x: f32) -> u8 {
    f32_to_fp8::<2, 15, 0x7b>(x)
}

/// Combines two lanes; avg adds.
#[inline(always)]
pub fn combine<L: Lane>(op: ReduceOp, a: L, b: L) -> L {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => a.plus(b),
        ReduceOp::Prod => a.times(b),
        ReduceOp::Max => a.larger(b),
        ReduceOp::Min => a.smaller(b),
    }
}

/// Runs `$body` with `$t` bound to the element type of a [`DataType`].
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DataType::Int8 => {
                type $t = i8;
                $body
            }
            $crate::DataType::Uint8 => {
                type $t = u8;
                $body
            }
            $crate::DataType::Int32 => {
                type $t = i32;
                $body
            }
            $crate::DataType::Uint32 => {
                type $t = u32;
                $body
            }
            $crate::DataType::Int64 => {
                type $t = i64;
                $body
            }
            $crate::DataType::Uint64 => {
                type $t = u64;
                $body
            }
            $crate::DataType::Float16 => {
                type $t = $crate::arith::F16;
                $body
            }
            $crate::DataType::Float32 => {
                type $t = f32;
                $body
            }
            $crate::DataType::Float64 => {
                type $t = f64;
                $body
            }
            $crate::DataType::Bfloat16 => {
                type $t = $crate::arith::Bf16;
                $body
            }
            $crate::DataType::Float8e4m3 => {
                type $t = $crate::arith::E4m3;
                $body
            }
            $crate::DataType::Float8e5m2 => {
                type $t = $crate::arith::E5m2;
                $body
            }
        }
    };
}

/// Folds operands of equal length from left to right in the accumulation type, divides if this
/// finishes an avg (`finish` is the number of ranks), and rounds once. Panics on unequal lengths.
pub fn fold(dtype: DataType, op: ReduceOp, operands: &[&[u8]], finish: Option<u32>) -> Vec<u8> {
    fn typed<E: Element>(op: ReduceOp, operands: &[&[u8]], finish: Option<u32>) -> Vec<u8> {
        let mut out = operands[0].to_vec();
        for (i, bytes) in out.chunks_exact_mut(E::SIZE).enumerate() {
            let at = i * E::SIZE..(i + 1) * E::SIZE;
            let mut lane = E::load(&operands[0][at.clone()]).widen();
            for operand in &operands[1..] {
                lane = combine(op, lane, E::load(&operand[at.clone()]).widen());
            }
            if let (Some(nranks), ReduceOp::Avg) = (finish, op) {
                lane = lane.divide(nranks);
            }
            E::round(lane).store(bytes);
        }
        out
    }
    with_element!(dtype, E => typed::<E>(op, operands, finish))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_floats_agree_with_the_half_crate() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(h), half::f16::from_bits(h).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()));
            let (ours, theirs) = (bf16_to_f32(h), half::bf16::from_bits(h).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()));
        }
        for i in 0..1u32 << 21 {
            let x = f32::from_bits(i.wrapping_mul(2_049) ^ (i << 22));
            if x.is_nan() {
                assert_eq!((f32_to_f16(x), f32_to_bf16(x)), (0x7e00, 0x7fc0));
                continue;
            }
            assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{x:e}");
            assert_eq!(f32_to_bf16(x), half::bf16::from_f32(x).to_bits(), "{x:e}");
        }
    }

    /// The nearest finite code by search: an independent statement of "nearest, ties to even".
    fn nearest(x: f32, decode: fn(u8) -> f32) -> u8 {
        let finite = (0..=0x7fu8).filter(|&c| decode(c).is_finite());
        let best = finite
            .min_by(|&a, &b| {
                let gap = |c: u8| (f64::from(decode(c)) - f64::from(x.abs().min(1e6))).abs();
                gap(a).total_cmp(&gap(b)).then((a & 1).cmp(&(b & 1)))
            })
            .expect("there are finite codes");
        best | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn eight_bit_floats_round_to_the_nearest_code_and_saturate() {
        for i in 0..200_000u32 {
            let x = f32::from_bits(i.wrapping_mul(0x9e37_79b9));
            // Between the smallest code and past the largest; the search is exact there.
            if x.is_nan() {
                assert_eq!((f32_to_e4m3(x), f32_to_e5m2(x)), (0x7f, 0x7f));
                continue;
            }
            assert_eq!(f32_to_e4m3(x), nearest(x, e4m3_to_f32), "{x:e}");
            assert_eq!(f32_to_e5m2(x), nearest(x, e5m2_to_f32), "{x:e}");
        }
        for c in 0..=u8::MAX {
            let (a, b) = (e4m3_to_f32(c), e5m2_to_f32(c));
            assert!(a.is_nan() || f32_to_e4m3(a) == c);
            assert!(!b.is_finite() || f32_to_e5m2(b) == c);
        }
        assert_eq!((e4m3_to_f32(0x7e), e5m2_to_f32(0x7b)), (448.0, 57_344.0));
    }

    #[test]
    fn max_and_min_are_defined_for_zeros_and_nans() {
        let nan = f32::from_bits(0xffc0_1234);
        assert_eq!(Lane::larger(-0.0f32, 0.0).to_bits(), 0);
        assert_eq!(Lane::smaller(0.0f32, -0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(Lane::larger(nan, 1.0), 1.0);
        assert_eq!(Lane::smaller(1.0, nan), 1.0);
        assert_eq!(Lane::larger(nan, nan).to_bits(), 0x7fc0_0000);
        assert_eq!(Lane::plus(nan, 1.0).to_bits(), 0x7fc0_0000);
        assert_eq!(Lane::larger(3.0f32, 2.0), 3.0);
        assert_eq!(Lane::smaller(3.0f32, 2.0), 2.0);
    }

    #[test]
    fn avg_rounds_once_and_divides_integers_towards_zero() {
        let bytes = |v: &[i8]| v.iter().map(|&x| x as u8).collect::<Vec<_>>();
        let (a, b) = (bytes(&[-3, 100]), bytes(&[0, 100]));
        let out = fold(DataType::Int8, ReduceOp::Avg, &[&a, &b], Some(2));
        assert_eq!(out, bytes(&[-1, -28]));
        assert_eq!(fold(DataType::Int8, ReduceOp::Avg, &[&a, &b], None), bytes(&[-3, -56]));
    }
}
