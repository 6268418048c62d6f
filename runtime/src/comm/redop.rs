//! Reduction operations that the user made for a communicator.

use crate::error::{Error, Result};
use crate::op::Scale;
use oxccl_plan::DataType;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// The exclusive upper bound of indices, so that the numbers of operations in C stay below
/// `ncclMaxRedOp`.
const MAX_INDEX: u32 = (1 << 31) - 1 - 5;

/// A sum whose operands are multiplied first: the input of every rank by that rank's scalar.
#[derive(Clone, Copy, Debug)]
pub struct PreMulSum {
    /// Type of the scalar, and of the calls that may use it.
    pub dtype: DataType,
    /// The scalar.
    pub scale: Scale,
}

/// The operations of a communicator. An index is never used twice.
#[derive(Default)]
pub struct RedOps(Mutex<Table>);

#[derive(Default)]
struct Table {
    alive: HashMap<u32, PreMulSum>,
    next: u32,
}

impl RedOps {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds an operation and returns its index.
    pub fn create(&self, op: PreMulSum) -> Result<u32> {
        let mut table = self.table();
        let index = table.next;
        if index >= MAX_INDEX {
            let what = "2^31 reduction operations were made on this communicator";
            return Err(Error::usage(what, "make operations once and use them often"));
        }
        table.next += 1;
        table.alive.insert(index, op);
        Ok(index)
    }

    /// Returns the operation with this index, or the reason why there is none.
    pub fn get(&self, index: u32) -> Result<PreMulSum, &'static str> {
        let table = self.table();
        table.alive.get(&index).copied().ok_or_else(|| absent(&table, index))
    }

    /// Destroys an operation. Calls made before keep what they need of it.
    pub fn destroy(&self, index: u32) -> Result<(), &'static str> {
        let mut table = self.table();
        match table.alive.remove(&index) {
            Some(_) => Ok(()),
            None => Err(absent(&table, index)),
        }
    }
}

fn absent(table: &Table, index: u32) -> &'static str {
    if index < table.next {
        "which was destroyed"
    } else {
        "which was not made on this communicator"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_not_used_again() {
        let ops = RedOps::default();
        let op = PreMulSum { dtype: DataType::Int8, scale: Scale::Value(3) };
        assert_eq!((ops.create(op).unwrap(), ops.create(op).unwrap()), (0, 1));
        assert_eq!(ops.destroy(0), Ok(()));
        assert_eq!(ops.create(op).unwrap(), 2);
        assert_eq!(ops.get(0).unwrap_err(), "which was destroyed");
        assert_eq!(ops.destroy(0), Err("which was destroyed"));
        assert_eq!(ops.get(3).unwrap_err(), "which was not made on this communicator");
        assert!(ops.get(1).is_ok() && ops.get(2).is_ok());
    }
}
