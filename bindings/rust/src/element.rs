//! The types of elements, and the operations that reduce them.

use capi::nccl::types::ncclDataType_t;

pub(crate) mod sealed {
    use super::ncclDataType_t;

    /// Keeps the set of element types closed, and tells C which one it is.
    pub trait Sealed {
        /// The type in C. Every pattern of its bits has to be a valid value.
        const TYPE: ncclDataType_t;
    }
}

/// A type of elements that ranks exchange: `i8`, `u8`, `i32`, `u32`, `i64`, `u64`, `f32`, `f64`,
/// [`F8E4M3`], [`F8E5M2`], and with the feature `half` also `half::f16` and `half::bf16`. Other
/// crates cannot implement it.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {}

/// A number of 8 bits with 4 bits of exponent and 3 of mantissa, as OCP defines E4M3: its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// A number of 8 bits with 5 bits of exponent and 2 of mantissa, as OCP defines E5M2: its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

macro_rules! elements {
    ($($type:ty => $number:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {
            const TYPE: ncclDataType_t = ncclDataType_t::$number;
        }
        impl Element for $type {}
    )*};
}

elements! {
    i8 => ncclInt8,
    u8 => ncclUint8,
    i32 => ncclInt32,
    u32 => ncclUint32,
    i64 => ncclInt64,
    u64 => ncclUint64,
    f32 => ncclFloat32,
    f64 => ncclFloat64,
    F8E4M3 => ncclFloat8e4m3,
    F8E5M2 => ncclFloat8e5m2,
}

#[cfg(feature = "half")]
elements! {
    half::f16 => ncclFloat16,
    half::bf16 => ncclBfloat16,
}

/// An operation that reduces the elements of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Prod,
    /// The greatest element.
    Max,
    /// The smallest element.
    Min,
    /// The sum divided by the number of ranks.
    Avg,
}
