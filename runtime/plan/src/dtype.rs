//! Element types and reduction operations, with the numbers that `nccl.h` gives them.

/// The type of one element of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    Int8 = 0,
    /// Unsigned 8-bit integer.
    Uint8 = 1,
    /// Signed 32-bit integer.
    Int32 = 2,
    /// Unsigned 32-bit integer.
    Uint32 = 3,
    /// Signed 64-bit integer.
    Int64 = 4,
    /// Unsigned 64-bit integer.
    Uint64 = 5,
    /// IEEE binary16.
    Float16 = 6,
    /// IEEE binary32.
    Float32 = 7,
    /// IEEE binary64.
    Float64 = 8,
    /// The upper half of a binary32.
    Bfloat16 = 9,
    /// 8 bits: 4 of exponent, 3 of mantissa, no infinities (OCP E4M3).
    Float8e4m3 = 10,
    /// 8 bits: 5 of exponent, 2 of mantissa (OCP E5M2).
    Float8e5m2 = 11,
}

impl DataType {
    /// Every type, at the index that is its number in `nccl.h`.
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8e4m3,
        DataType::Float8e5m2,
    ];

    /// Returns the type with this number in `nccl.h`.
    pub fn from_number(number: i32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|i| Self::ALL.get(i)).copied()
    }

    /// Returns the size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 | DataType::Float8e4m3 | DataType::Float8e5m2 => 1,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }

    /// Returns whether elements are floats that reach less far than what they are summed in: a sum
    /// of elements in range may be out of range, though their average is not.
    pub const fn reaches_less_than_sums(self) -> bool {
        matches!(self, DataType::Float16 | DataType::Float8e4m3 | DataType::Float8e5m2)
    }

    /// Returns the name that nccl-tests prints.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Int8 => "int8",
            DataType::Uint8 => "uint8",
            DataType::Int32 => "int32",
            DataType::Uint32 => "uint32",
            DataType::Int64 => "int64",
            DataType::Uint64 => "uint64",
            DataType::Float16 => "half",
            DataType::Float32 => "float",
            DataType::Float64 => "double",
            DataType::Bfloat16 => "bfloat16",
            DataType::Float8e4m3 => "f8e4m3",
            DataType::Float8e5m2 => "f8e5m2",
        }
    }
}

/// The operation by which elements of different ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum = 0,
    /// The product; integers wrap.
    Prod = 1,
    /// The largest element; a NaN loses against a number.
    Max = 2,
    /// The smallest element; a NaN loses against a number.
    Min = 3,
    /// The sum, divided by the number of ranks once all contributions are in.
    Avg = 4,
}

impl ReduceOp {
    /// Every operation, at the index that is its number in `nccl.h`.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

    /// Returns the operation with this number in `nccl.h`.
    pub fn from_number(number: i32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|i| Self::ALL.get(i)).copied()
    }

    /// Returns the operation that combines two contributions: the sum for an average.
    pub const fn combining(self) -> Self {
        match self {
            ReduceOp::Avg => ReduceOp::Sum,
            other => other,
        }
    }

    /// Returns the name that nccl-tests prints.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Avg => "avg",
        }
    }
}
