//! Reductions of elements: the operations that the library has, and sums of multiples.

use crate::call::check;
use crate::comm::Comm;
use crate::element::{Element, ReduceOp};
use crate::error::Result;
use capi::nccl::redop::{ncclRedOpCreatePreMulSum, ncclRedOpDestroy};
use capi::nccl::types::{ncclRedOp_t, ncclScalarResidence_t};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

pub(crate) mod sealed {
    use super::{MaybeUninit, ncclRedOp_t};

    /// Keeps the set of reductions closed, and tells C which one it is.
    pub trait Sealed {
        /// Returns the operation's number, which need not be one that C's enumeration names.
        fn number(&self) -> MaybeUninit<ncclRedOp_t>;
    }
}

/// A reduction of elements: a [`ReduceOp`], or a reference to a [`MultipliedSum`].
pub trait Reduction<T: Element>: sealed::Sealed {}

impl sealed::Sealed for ReduceOp {
    fn number(&self) -> MaybeUninit<ncclRedOp_t> {
        MaybeUninit::new(match self {
            ReduceOp::Sum => ncclRedOp_t::ncclSum,
            ReduceOp::Prod => ncclRedOp_t::ncclProd,
            ReduceOp::Max => ncclRedOp_t::ncclMax,
            ReduceOp::Min => ncclRedOp_t::ncclMin,
            ReduceOp::Avg => ncclRedOp_t::ncclAvg,
        })
    }
}

impl<T: Element> Reduction<T> for ReduceOp {}

/// A sum in which each rank's elements are first multiplied by a factor of that rank, made by
/// [`Comm::multiplied_sum`].
#[derive(Debug)]
pub struct MultipliedSum<'comm, T: Element> {
    comm: &'comm Comm,
    number: MaybeUninit<ncclRedOp_t>,
    factor: PhantomData<T>,
}

impl<T: Element> sealed::Sealed for &MultipliedSum<'_, T> {
    fn number(&self) -> MaybeUninit<ncclRedOp_t> {
        self.number
    }
}

impl<T: Element> Reduction<T> for &MultipliedSum<'_, T> {}

impl<T: Element> Drop for MultipliedSum<'_, T> {
    fn drop(&mut self) {
        // SAFETY: any numbers may be passed; calls that were made keep the factor.
        unsafe { ncclRedOpDestroy(self.number, self.comm.raw()) };
    }
}

impl Comm {
    /// Makes a sum in which this rank's elements are first multiplied by a factor; the other ranks
    /// may have others. It works for calls of this communicator. Blocks: never.
    ///
    /// ```
    /// # extern crate oxccl_rs as oxccl;
    /// # fn main() -> oxccl::Result<()> {
    /// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
    /// let half = comm.multiplied_sum(0.5)?;
    /// let mut x = [3.0];
    /// comm.all_reduce_in_place(&mut x, &half)?;
    /// assert_eq!(x, [1.5 * comm.size() as f64]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn multiplied_sum<T: Element>(&self, mut factor: T) -> Result<MultipliedSum<'_, T>> {
        let mut number = MaybeUninit::<ncclRedOp_t>::uninit();
        let (from, at) = ((&raw mut factor).cast(), number.as_mut_ptr());
        let residence = MaybeUninit::new(ncclScalarResidence_t::ncclScalarHostImmediate);
        let dtype = MaybeUninit::new(T::TYPE);
        // SAFETY: a place for the number, and a factor of the type, read before the call returns.
        check(unsafe { ncclRedOpCreatePreMulSum(at, from, dtype, residence, self.raw()) })?;
        Ok(MultipliedSum { comm: self, number, factor: PhantomData })
    }
}
