//! The operations of a communicator, each in a form that waits and in one for a scope.

use crate::call::{check, number};
use crate::comm::Comm;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::options::With;
use crate::reduction::Reduction;
use crate::scope::{Scope, run};
use capi::nccl::collectives::{
    ncclAllGather, ncclAllReduce, ncclAlltoAll, ncclBroadcast, ncclGather, ncclRecv, ncclReduce,
    ncclReduceScatter, ncclScatter, ncclSend,
};
use capi::nccl::configured::{
    ncclAllGatherConfig, ncclAllReduceConfig, ncclAlltoAllConfig, ncclBroadcastConfig,
    ncclGatherConfig, ncclReduceConfig, ncclReduceScatterConfig, ncclScatterConfig,
};
use capi::nccl::types::ncclDataType_t;
use capi::oxccl::vcollectives::{
    oxcclAllGatherv, oxcclAlltoAllv, oxcclGatherv, oxcclReduceScatterv, oxcclScatterv,
};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// The parts of a buffer that belong to the ranks, in elements. The part of rank `r` begins at
/// `displs[r]` and has `counts[r]` elements. Parts that are received must not overlap.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The number of elements of each rank.
    pub counts: &'a [usize],
    /// The position of the first element of each rank; of no importance where there are none.
    pub displs: &'a [usize],
}

/// Defines operations: `name, name_on: |comm| (arguments) { checks } calls`, where communicator
/// and stream follow the arguments of the call. Buffers are borrowed for `'a`. What is `configured`
/// has a second call, whose last argument are options.
macro_rules! operations {
    (plain: $($(#[$doc:meta])* $name:ident, $on:ident: |$comm:pat_param| (
        $($argument:ident: $type:ty),*
    ) { $($checks:tt)* } $call:ident($($value:expr),*);)*) => {
        /// Operations. All ranks make the calls of a communicator in the same order.
        impl Comm {$(
            forms! { $(#[$doc])* ('a) &'a self,
                $name, $on[T: Element]($($argument: $type),*) scope {
                let $comm = self;
                $($checks)*
                let stream = scope.enter(self)?;
                // SAFETY: the buffers have as many elements as the call says, which was checked,
                // and stay borrowed until the scope ends, which waits for the stream.
                check(unsafe { $call($($value,)* self.raw(), stream) })
            } }
        )*}
    };
    (configured: $($(#[$doc:meta])* $name:ident, $on:ident: |$comm:pat_param| (
        $($argument:ident: $type:ty),*
    ) { $($checks:tt)* } $call:ident | $configured:ident($($value:expr),*);)*) => {
        /// Collectives that can have options, by [`with`](Self::with). All ranks make the calls of
        /// a communicator in the same order.
        impl Comm {$(
            forms! { $(#[$doc])* ('a) &'a self,
                $name, $on[T: Element]($($argument: $type),*) scope {
                With::nothing(self).$on(scope, $($argument),*)
            } }
        )*}

        /// Collectives with options.
        impl<'a> With<'a, '_> {$(
            forms! { $(#[$doc])* () self, $name, $on[T: Element]($($argument: $type),*) scope {
                let comm = self.comm;
                self.refuse_record(scope.captures())?;
                let $comm = comm;
                $($checks)*
                let stream = scope.enter(comm)?;
                self.lend(|options| {
                    // SAFETY: the buffers have as many elements as the call says, which was
                    // checked, and stay borrowed until the scope ends, which waits for the stream.
                    // Options are read before the call returns.
                    check(unsafe { match options {
                        None => $call($($value,)* comm.raw(), stream),
                        Some(options) => $configured($($value,)* comm.raw(), stream, options),
                    } })
                })
            } }
        )*}
    };
}

/// Defines a method that waits, and the one for a scope that it calls.
macro_rules! forms {
    ($(#[$doc:meta])* ($($life:lifetime)?) $(&$borrow:lifetime)? $self:ident, $name:ident,
        $on:ident[$($generics:tt)*]($($argument:ident: $type:ty),*)
        $scope:ident { $($body:tt)* }) => {
        $(#[$doc])*
        ///
        /// Blocks until it is complete on this rank. Fails if a length is wrong, if the calls of
        /// the ranks differ, or if another rank fails.
        pub fn $name<$($life,)? $($generics)*>(
            $(&$borrow)? $self,
            $($argument: $type),*
        ) -> Result<()> {
            run(stringify!($name), None, |scope| $self.$on(scope, $($argument),*))
        }

        #[doc = concat!("Begins [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        /// It is complete when the scope ends. Blocks: never. Fails if a length is wrong, or if the
        /// communicator has failed.
        pub fn $on<$($life,)? $($generics)*>(
            $(&$borrow)? $self,
            $scope: &'a Scope<'a, '_>,
            $($argument: $type),*
        ) -> Result<()> {
            $($body)*
        }
    };
}

pub(crate) use forms;

operations! {
configured:
    /// Leaves the reduction of all ranks' inputs in every rank's output, which is as long as the
    /// input.
    all_reduce, all_reduce_on: |_| (input: &'a [T], output: &'a mut [T], op: impl Reduction<T>) {
        equal("all_reduce", "output", output.len(), input.len())?;
    } ncclAllReduce | ncclAllReduceConfig(
        of(input), to(output), input.len(), type_of::<T>(), op.number()
    );

    /// Replaces every rank's elements by the reduction of all ranks'.
    all_reduce_in_place, all_reduce_in_place_on: |_| (data: &'a mut [T], op: impl Reduction<T>) {
        let at = to(data);
    } ncclAllReduce | ncclAllReduceConfig(at, at, data.len(), type_of::<T>(), op.number());

    /// Replaces every rank's elements by those of rank `root`.
    broadcast, broadcast_on: |_| (data: &'a mut [T], root: usize) {
        let at = to(data);
    } ncclBroadcast | ncclBroadcastConfig(at, at, data.len(), type_of::<T>(), number(root));

    /// Leaves the reduction of all ranks' inputs in the output of rank `root`, which is as long as
    /// the input. The other ranks' output is ignored.
    reduce, reduce_on: |comm| (
        input: &'a [T], output: Option<&'a mut [T]>, op: impl Reduction<T>, root: usize
    ) {
        let output = comm.at_root("reduce", "output", output, root)?;
        let len = output.as_ref().map_or(input.len(), |output| output.len());
        equal("reduce", "output", len, input.len())?;
        let output = output.map_or(null_mut(), to);
    } ncclReduce | ncclReduceConfig(
        of(input), output, input.len(), type_of::<T>(), op.number(), number(root)
    );

    /// Replaces the elements of rank `root` by the reduction of all ranks'. Those of the other
    /// ranks stay.
    reduce_in_place, reduce_in_place_on: |_| (
        data: &'a mut [T], op: impl Reduction<T>, root: usize
    ) {
        let at = to(data);
    } ncclReduce | ncclReduceConfig(at, at, data.len(), type_of::<T>(), op.number(), number(root));

    /// Leaves the inputs of all ranks one behind the other in every rank's output, which has a
    /// block as long as the input for each rank.
    all_gather, all_gather_on: |comm| (input: &'a [T], output: &'a mut [T]) {
        equal("all_gather", "output", output.len(), comm.blocks(input.len()))?;
    } ncclAllGather | ncclAllGatherConfig(of(input), to(output), input.len(), type_of::<T>());

    /// Fills the blocks of the other ranks in a buffer that has a block of equal length for each
    /// rank, and this rank's own elements in its block.
    all_gather_in_place, all_gather_in_place_on: |comm| (data: &'a mut [T]) {
        let count = comm.block("all_gather_in_place", "data", data.len())?;
        let data = data.as_mut_ptr();
        let own = data.wrapping_add(comm.rank() * count);
    } ncclAllGather | ncclAllGatherConfig(own.cast(), data.cast(), count, type_of::<T>());

    /// Leaves this rank's block of the reduction of all ranks' inputs in its output. The input has
    /// a block as long as the output for each rank.
    reduce_scatter, reduce_scatter_on: |comm| (
        input: &'a [T], output: &'a mut [T], op: impl Reduction<T>
    ) {
        equal("reduce_scatter", "input", input.len(), comm.blocks(output.len()))?;
    } ncclReduceScatter | ncclReduceScatterConfig(
        of(input), to(output), output.len(), type_of::<T>(), op.number()
    );

    /// Replaces this rank's block of a buffer, which has a block of equal length for each rank, by
    /// the reduction of all ranks'. The other blocks stay.
    reduce_scatter_in_place, reduce_scatter_in_place_on: |comm| (
        data: &'a mut [T], op: impl Reduction<T>
    ) {
        let count = comm.block("reduce_scatter_in_place", "data", data.len())?;
        let data = data.as_mut_ptr();
        let own = data.wrapping_add(comm.rank() * count);
    } ncclReduceScatter | ncclReduceScatterConfig(
        data.cast(), own.cast(), count, type_of::<T>(), op.number()
    );

    /// Sends block `r` of this rank's input to rank `r`, in whose output it becomes the block of
    /// this rank. Input and output are equally long, with a block of equal length for each rank.
    all_to_all, all_to_all_on: |comm| (input: &'a [T], output: &'a mut [T]) {
        let count = comm.block("all_to_all", "input", input.len())?;
        equal("all_to_all", "output", output.len(), input.len())?;
    } ncclAlltoAll | ncclAlltoAllConfig(of(input), to(output), count, type_of::<T>());

    /// Exchanges block `r` of this rank with this rank's block on rank `r`. The buffer has a block
    /// of equal length for each rank.
    all_to_all_in_place, all_to_all_in_place_on: |comm| (data: &'a mut [T]) {
        let count = comm.block("all_to_all_in_place", "data", data.len())?;
        let at = to(data);
    } ncclAlltoAll | ncclAlltoAllConfig(at, at, count, type_of::<T>());

    /// Leaves the inputs of all ranks one behind the other in the output of rank `root`, which has
    /// a block as long as the input for each rank. The other ranks' output is ignored.
    gather, gather_on: |comm| (input: &'a [T], output: Option<&'a mut [T]>, root: usize) {
        let output = comm.at_root("gather", "output", output, root)?;
        let expected = comm.blocks(input.len());
        let len = output.as_ref().map_or(expected, |output| output.len());
        equal("gather", "output", len, expected)?;
        let output = output.map_or(null_mut(), to);
    } ncclGather | ncclGatherConfig(of(input), output, input.len(), type_of::<T>(), number(root));

    /// Fills the blocks of the other ranks in the buffer of rank `root`. Every rank's buffer has a
    /// block of equal length for each rank, and this rank's own elements in its block.
    gather_in_place, gather_in_place_on: |comm| (data: &'a mut [T], root: usize) {
        let count = comm.block("gather_in_place", "data", data.len())?;
        let data = data.as_mut_ptr();
        let own = data.wrapping_add(comm.rank() * count);
    } ncclGather | ncclGatherConfig(own.cast(), data.cast(), count, type_of::<T>(), number(root));

    /// Leaves block `r` of the input of rank `root` in the output of rank `r`. The input has a
    /// block as long as the output for each rank. The other ranks' input is ignored.
    scatter, scatter_on: |comm| (input: Option<&'a [T]>, output: &'a mut [T], root: usize) {
        let input = comm.at_root("scatter", "input", input, root)?;
        let expected = comm.blocks(output.len());
        equal("scatter", "input", input.map_or(expected, <[T]>::len), expected)?;
        let input = input.map_or(null(), of);
    } ncclScatter | ncclScatterConfig(
        input, to(output), output.len(), type_of::<T>(), number(root)
    );

    /// Fills this rank's block with that of rank `root`. Every rank's buffer has a block of equal
    /// length for each rank; the other blocks stay.
    scatter_in_place, scatter_in_place_on: |comm| (data: &'a mut [T], root: usize) {
        let count = comm.block("scatter_in_place", "data", data.len())?;
        let data = data.as_mut_ptr();
        let own = data.wrapping_add(comm.rank() * count);
    } ncclScatter | ncclScatterConfig(data.cast(), own.cast(), count, type_of::<T>(), number(root));
}

operations! {
plain:
    /// Sends elements to rank `peer`, which has to receive as many. Calls of one communicator run
    /// one behind the other, also those of several threads, and a large send waits for its receive:
    /// ranks that send to each other, or in a circle, do so in a [`group`](crate::group()), else
    /// they wait for ever.
    send, send_on: |_| (data: &'a [T], peer: usize) {
    } ncclSend(of(data), data.len(), type_of::<T>(), number(peer));

    /// Receives elements from rank `peer`, which has to send as many. Where that rank receives from
    /// this one before it sends, both do so in a [`group`](crate::group()).
    recv, recv_on: |_| (data: &'a mut [T], peer: usize) {
    } ncclRecv(to(data), data.len(), type_of::<T>(), number(peer));

    /// Gathers the inputs of all ranks, of different lengths, in the parts of every rank's output.
    all_gather_v, all_gather_v_on: |comm| (
        input: &'a [T], output: &'a mut [T], parts: Parts<'_>
    ) {
        let (counts, displs) = comm.parts("all_gather_v", ("output", output.len()), parts)?;
    } oxcclAllGatherv(of(input), input.len(), to(output), counts, displs, type_of::<T>());

    /// Fills the parts of the other ranks in every rank's buffer, which has this rank's own
    /// elements in its part.
    all_gather_v_in_place, all_gather_v_in_place_on: |comm| (data: &'a mut [T], parts: Parts<'_>) {
        let (counts, displs) = comm.parts("all_gather_v_in_place", ("data", data.len()), parts)?;
        let (own, len) = comm.own_part(data, parts);
        let data = to(data);
    } oxcclAllGatherv(own.cast_const(), len, data, counts, displs, type_of::<T>());

    /// Leaves this rank's block of the reduction of all ranks' inputs in its output, where the
    /// block of rank `r` has `counts[r]` elements. The input has all blocks one behind the other;
    /// all ranks pass the same counts.
    reduce_scatter_v, reduce_scatter_v_on: |comm| (
        input: &'a [T], output: &'a mut [T], counts: &[usize], op: impl Reduction<T>
    ) {
        comm.counts("reduce_scatter_v", counts, input.len(), output.len())?;
    } oxcclReduceScatterv(of(input), to(output), counts.as_ptr(), type_of::<T>(), op.number());

    /// Replaces this rank's block of a buffer by the reduction of all ranks'. The buffer has the
    /// blocks of all ranks one behind the other, of `counts[r]` elements for rank `r`, which all
    /// ranks pass alike. The other blocks stay.
    reduce_scatter_v_in_place, reduce_scatter_v_in_place_on: |comm| (
        data: &'a mut [T], counts: &[usize], op: impl Reduction<T>
    ) {
        equal("reduce_scatter_v_in_place", "counts", counts.len(), comm.size())?;
        let sum = |counts: &[usize]| counts.iter().fold(0, |sum: usize, &n| sum.saturating_add(n));
        equal("reduce_scatter_v_in_place", "data", data.len(), sum(counts))?;
        let data = data.as_mut_ptr();
        let own = data.wrapping_add(sum(&counts[..comm.rank()]));
    } oxcclReduceScatterv(
        data.cast(), own.cast(), counts.as_ptr(), type_of::<T>(), op.number()
    );

    /// Sends part `r` of this rank's input to rank `r`, and leaves what comes from rank `r` in part
    /// `r` of the output.
    all_to_all_v, all_to_all_v_on: |comm| (
        input: &'a [T], sent: Parts<'_>, output: &'a mut [T], received: Parts<'_>
    ) {
        let sent = comm.parts("all_to_all_v", ("input", input.len()), sent)?;
        let received = comm.parts("all_to_all_v", ("output", output.len()), received)?;
    } oxcclAlltoAllv(
        of(input), sent.0, sent.1, to(output), received.0, received.1, type_of::<T>()
    );

    /// Gathers the inputs of all ranks, of different lengths, in the parts of the output of rank
    /// `root`. The other ranks' output is ignored.
    gather_v, gather_v_on: |comm| (
        input: &'a [T], output: Option<(&'a mut [T], Parts<'_>)>, root: usize
    ) {
        let (output, counts, displs) = match comm.at_root("gather_v", "output", output, root)? {
            Some((output, parts)) => {
                let parts = comm.parts("gather_v", ("output", output.len()), parts)?;
                (to(output), parts.0, parts.1)
            }
            None => (null_mut(), null(), null()),
        };
    } oxcclGatherv(
        of(input), input.len(), output, counts, displs, type_of::<T>(), number(root)
    );

    /// Fills the parts of the other ranks in the buffer of rank `root`. Every rank's buffer has the
    /// parts of all ranks, and this rank's own elements in its part.
    gather_v_in_place, gather_v_in_place_on: |comm| (
        data: &'a mut [T], parts: Parts<'_>, root: usize
    ) {
        let (counts, displs) = comm.parts("gather_v_in_place", ("data", data.len()), parts)?;
        let (own, len) = comm.own_part(data, parts);
        let data = to(data);
    } oxcclGatherv(
        own.cast_const(), len, data, counts, displs, type_of::<T>(), number(root)
    );

    /// Leaves part `r` of the input of rank `root` in the output of rank `r`. The other ranks'
    /// input is ignored.
    scatter_v, scatter_v_on: |comm| (
        input: Option<(&'a [T], Parts<'_>)>, output: &'a mut [T], root: usize
    ) {
        let (input, counts, displs) = match comm.at_root("scatter_v", "input", input, root)? {
            Some((input, parts)) => {
                let parts = comm.parts("scatter_v", ("input", input.len()), parts)?;
                (of(input), parts.0, parts.1)
            }
            None => (null(), null(), null()),
        };
    } oxcclScatterv(
        input, counts, displs, to(output), output.len(), type_of::<T>(), number(root)
    );

    /// Fills this rank's part with that of rank `root`. Every rank's buffer has the parts of all
    /// ranks; the other parts stay.
    scatter_v_in_place, scatter_v_in_place_on: |comm| (
        data: &'a mut [T], parts: Parts<'_>, root: usize
    ) {
        let (counts, displs) = comm.parts("scatter_v_in_place", ("data", data.len()), parts)?;
        let (own, len) = comm.own_part(data, parts);
        let data = of(data);
    } oxcclScatterv(data, counts, displs, own, len, type_of::<T>(), number(root));
}

fn of<T>(input: &[T]) -> *const c_void {
    input.as_ptr().cast()
}

fn to<T>(output: &mut [T]) -> *mut c_void {
    output.as_mut_ptr().cast()
}

pub(crate) fn type_of<T: Element>() -> MaybeUninit<ncclDataType_t> {
    MaybeUninit::new(T::TYPE)
}

/// Fails if an argument has another length than the call needs.
pub(crate) fn equal(call: &str, argument: &str, got: usize, expected: usize) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let got = format!("has {got} elements");
    Err(Error::argument(call, argument, &got, &expected.to_string()))
}

/// Checks of lengths.
impl Comm {
    /// Returns the length of a buffer with a block of `count` elements for each rank.
    pub(crate) fn blocks(&self, count: usize) -> usize {
        count.saturating_mul(self.size())
    }

    /// Returns the length of a block of a buffer that has one for each rank.
    pub(crate) fn block(&self, call: &str, argument: &str, len: usize) -> Result<usize> {
        if len.is_multiple_of(self.size()) {
            return Ok(len / self.size());
        }
        let got = format!("has {len} elements");
        let expected = format!("a multiple of {}, the number of ranks", self.size());
        Err(Error::argument(call, argument, &got, &expected))
    }

    /// Returns what only the root has to pass; `None` on the other ranks.
    pub(crate) fn at_root<B>(
        &self,
        call: &str,
        argument: &str,
        buffer: Option<B>,
        root: usize,
    ) -> Result<Option<B>> {
        if root != self.rank() {
            return Ok(None);
        }
        let missing = || Error::argument(call, argument, "is None", "a buffer at the root");
        buffer.ok_or_else(missing).map(Some)
    }

    /// Returns this rank's part of a buffer, which was checked, and its length.
    fn own_part<T>(&self, data: &mut [T], parts: Parts<'_>) -> (*mut c_void, usize) {
        let (len, displ) = (parts.counts[self.rank()], parts.displs[self.rank()]);
        // The place of no elements is of no importance.
        let displ = if len > 0 { displ } else { 0 };
        (data.as_mut_ptr().wrapping_add(displ).cast(), len)
    }

    /// Checks that an input has the blocks of all ranks, and an output that of this rank.
    pub(crate) fn counts(
        &self,
        call: &str,
        counts: &[usize],
        input: usize,
        output: usize,
    ) -> Result<()> {
        equal(call, "counts", counts.len(), self.size())?;
        let all = counts.iter().fold(0, |sum: usize, &count| sum.saturating_add(count));
        equal(call, "input", input, all)?;
        equal(call, "output", output, counts[self.rank()])
    }

    /// Checks that the parts of all ranks lie within a buffer; returns them for C.
    pub(crate) fn parts(
        &self,
        call: &str,
        (argument, len): (&str, usize),
        Parts { counts, displs }: Parts<'_>,
    ) -> Result<(*const usize, *const usize)> {
        equal(call, "counts", counts.len(), self.size())?;
        equal(call, "displs", displs.len(), self.size())?;
        for (rank, (&count, &displ)) in counts.iter().zip(displs).enumerate() {
            let end = displ.saturating_add(count);
            if count > 0 && end > len {
                let got = format!("has {len} elements");
                let expected = format!("at least {end}, the end of the part of rank {rank}");
                return Err(Error::argument(call, argument, &got, &expected));
            }
        }
        Ok((counts.as_ptr(), displs.as_ptr()))
    }
}
