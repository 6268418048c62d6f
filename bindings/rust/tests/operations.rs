//! Every operation in each form, on every type, with random data and a plain computation.

extern crate oxccl_rs as oxccl;

mod common;

use common::{on_ranks, random};
use oxccl::{
    Buffer, CallOptions, Comm, Element, Parts, ReduceOp, Result, Signals, Stream, Window, group,
};
use std::fmt::Debug;
use std::iter::repeat_n;

/// The forms of an operation.
#[derive(Clone, Copy, Debug)]
enum Form {
    Waiting,
    Scope,
    Group,
    /// A waiting call with options, where the operation can have any.
    Options,
}

const FORMS: [Form; 4] = [Form::Waiting, Form::Scope, Form::Group, Form::Options];
const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
/// The number of elements of a block: none, few, in packets, and in a stage.
const COUNTS: [usize; 4] = [0, 1, 67, 5000];

/// Calls an operation in one of its forms.
macro_rules! call {
    ($form:expr, $comm:expr, $name:ident, $on:ident($($argument:expr),* $(,)?)) => {
        match $form {
            Form::Waiting | Form::Options => $comm.$name($($argument),*),
            Form::Scope => Stream::new()?.scope(|s| $comm.$on(s, $($argument),*)),
            Form::Group => group(|g| $comm.$on(g, $($argument),*)),
        }
    };
}

/// Calls an operation that can have options in one of its forms.
macro_rules! configured {
    ($form:expr, $comm:expr, $name:ident, $on:ident($($argument:expr),* $(,)?)) => {
        match $form {
            Form::Options => $comm.with(&CallOptions::new().max_ctas(2)).$name($($argument),*),
            form => call!(form, $comm, $name, $on($($argument),*)),
        }
    };
}

/// Numbers that stand for elements of any type; results are exact in all of them.
trait Number: Element + PartialEq + Debug + Default {
    /// Returns the quotient, which wraps or is cut off where the type does that.
    fn quotient(number: i64, by: i64) -> Self;
}

macro_rules! numbers {
    ($($integer:ident)*; $($float:ident)*) => {
        $(impl Number for $integer {
            fn quotient(number: i64, by: i64) -> Self {
                (number / by) as $integer
            }
        })*
        $(impl Number for $float {
            fn quotient(number: i64, by: i64) -> Self {
                (number as f64 / by as f64) as $float
            }
        })*
    };
}

numbers! { i8 u8 i32 u32 i64 u64; f32 f64 }

impl Number for half::f16 {
    fn quotient(number: i64, by: i64) -> Self {
        Self::from_f64(number as f64 / by as f64)
    }
}

impl Number for half::bf16 {
    fn quotient(number: i64, by: i64) -> Self {
        Self::from_f64(number as f64 / by as f64)
    }
}

/// Returns so many halves, from 0 to 32, as a float with so many bits of mantissa and such a bias.
fn bits(halves: i64, mantissa: u32, bias: u32) -> u8 {
    let Some(exponent) = halves.checked_ilog2() else { return 0 };
    let rest = (halves - (1 << exponent)) << mantissa >> exponent;
    ((exponent + bias - 1) << mantissa) as u8 + rest as u8
}

impl Number for oxccl::F8E4M3 {
    fn quotient(number: i64, by: i64) -> Self {
        Self(bits(2 * number / by, 3, 7))
    }
}

impl Number for oxccl::F8E5M2 {
    fn quotient(number: i64, by: i64) -> Self {
        Self(bits(2 * number / by, 2, 15))
    }
}

/// Element `at` of the input of a rank, from 1 to 4.
fn element(rank: usize, at: usize) -> i64 {
    (random(&[rank, at]) % 4 + 1) as i64
}

fn elements<T: Number>(rank: usize, range: std::ops::Range<usize>) -> Vec<T> {
    range.map(|at| T::quotient(element(rank, at), 1)).collect()
}

/// The reduction of the inputs of all ranks.
fn reduced<T: Number>(size: usize, op: ReduceOp, range: std::ops::Range<usize>) -> Vec<T> {
    let reduce = |at| {
        let all = (0..size).map(|rank| element(rank, at));
        let (number, by) = match op {
            ReduceOp::Prod => (all.product(), 1),
            ReduceOp::Max => (all.max().expect("a rank"), 1),
            ReduceOp::Min => (all.min().expect("a rank"), 1),
            ReduceOp::Avg => (all.sum(), size as i64),
            _ => (all.sum(), 1),
        };
        T::quotient(number, by)
    };
    range.map(reduce).collect()
}

/// A buffer with a block for each rank, in which only the block of a rank is filled.
fn only_block<T: Number>(size: usize, rank: usize, block: &[T]) -> Vec<T> {
    let mut all = vec![T::default(); size * block.len()];
    all[rank * block.len()..][..block.len()].copy_from_slice(block);
    all
}

fn zeros<T: Number>(len: usize) -> Vec<T> {
    vec![T::default(); len]
}

fn reductions<T: Number>(comm: &Comm, form: Form, count: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let root = count % size;
    let (input, whole) = (elements::<T>(rank, 0..count), elements::<T>(rank, 0..size * count));
    let own = rank * count..(rank + 1) * count;
    // An average of three is not exact in all types.
    for op in OPS.into_iter().filter(|op| *op != ReduceOp::Avg || size != 3) {
        let (sums, mut out) = (reduced::<T>(size, op, 0..count), zeros(count));
        configured!(form, comm, all_reduce, all_reduce_on(&input, &mut out, op))?;
        assert_eq!(out, sums, "all_reduce {form:?} {op:?}");
        let mut data = input.clone();
        configured!(form, comm, all_reduce_in_place, all_reduce_in_place_on(&mut data, op))?;
        assert_eq!(data, sums, "all_reduce_in_place {form:?} {op:?}");

        let mut out = zeros(count);
        let place = (rank == root).then_some(&mut out[..]);
        configured!(form, comm, reduce, reduce_on(&input, place, op, root))?;
        assert_eq!(out, if rank == root { sums.clone() } else { zeros(count) }, "reduce {op:?}");
        let mut data = input.clone();
        configured!(form, comm, reduce_in_place, reduce_in_place_on(&mut data, op, root))?;
        assert_eq!(data, if rank == root { sums } else { input.clone() }, "reduce_in_place {op:?}");

        let (sums, mut out) = (reduced::<T>(size, op, own.clone()), zeros(count));
        configured!(form, comm, reduce_scatter, reduce_scatter_on(&whole, &mut out, op))?;
        assert_eq!(out, sums, "reduce_scatter {form:?} {op:?}");
        let mut data = whole.clone();
        configured!(
            form,
            comm,
            reduce_scatter_in_place,
            reduce_scatter_in_place_on(&mut data, op)
        )?;
        let mut expected = whole.clone();
        expected[own.clone()].copy_from_slice(&sums);
        assert_eq!(data, expected, "reduce_scatter_in_place {form:?} {op:?}");
    }
    Ok(())
}

fn copies<T: Number>(comm: &Comm, form: Form, count: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (root, all) = (count % size, size * count);
    let input = elements::<T>(rank, 0..count);
    let gathered: Vec<T> = (0..size).flat_map(|r| elements(r, 0..count)).collect();
    let at_root = |expected: &[T], otherwise: &[T]| {
        if rank == root { expected.to_vec() } else { otherwise.to_vec() }
    };

    let mut data = input.clone();
    configured!(form, comm, broadcast, broadcast_on(&mut data, root))?;
    assert_eq!(data, elements(root, 0..count), "broadcast {form:?}");

    let mut out = zeros(all);
    configured!(form, comm, all_gather, all_gather_on(&input, &mut out))?;
    assert_eq!(out, gathered, "all_gather {form:?}");
    let mut data = only_block(size, rank, &input);
    configured!(form, comm, all_gather_in_place, all_gather_in_place_on(&mut data))?;
    assert_eq!(data, gathered, "all_gather_in_place {form:?}");

    let mut out = zeros(all);
    let place = (rank == root).then_some(&mut out[..]);
    configured!(form, comm, gather, gather_on(&input, place, root))?;
    assert_eq!(out, at_root(&gathered, &zeros(all)), "gather {form:?}");
    let mut data = only_block(size, rank, &input);
    configured!(form, comm, gather_in_place, gather_in_place_on(&mut data, root))?;
    assert_eq!(data, at_root(&gathered, &only_block(size, rank, &input)), "gather_in_place");

    let (whole, block) = (elements(root, 0..all), elements(root, rank * count..(rank + 1) * count));
    let mut out = zeros::<T>(count);
    let from = (rank == root).then_some(&whole[..]);
    configured!(form, comm, scatter, scatter_on(from, &mut out, root))?;
    assert_eq!(out, block, "scatter {form:?}");
    let mut data = at_root(&whole, &zeros(all));
    configured!(form, comm, scatter_in_place, scatter_in_place_on(&mut data, root))?;
    assert_eq!(data, at_root(&whole, &only_block(size, rank, &block)), "scatter_in_place");

    let (input, mut out) = (elements::<T>(rank, 0..all), zeros(all));
    let exchanged: Vec<T> =
        (0..size).flat_map(|r| elements(r, rank * count..(rank + 1) * count)).collect();
    configured!(form, comm, all_to_all, all_to_all_on(&input, &mut out))?;
    assert_eq!(out, exchanged, "all_to_all {form:?}");
    let mut data = input.clone();
    configured!(form, comm, all_to_all_in_place, all_to_all_in_place_on(&mut data))?;
    assert_eq!(data, exchanged, "all_to_all_in_place {form:?}");
    Ok(())
}

/// Counts and displacements, where parts lie one behind the other with a gap between two.
struct Layout {
    counts: Vec<usize>,
    displs: Vec<usize>,
    len: usize,
}

impl Layout {
    fn new(counts: Vec<usize>) -> Self {
        let (mut displs, mut len) = (Vec::new(), 0);
        for count in &counts {
            displs.push(len);
            len += count + 1;
        }
        Self { counts, displs, len }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { counts: &self.counts, displs: &self.displs }
    }

    /// A buffer with these parts, each followed by a zero.
    fn filled<T: Number>(&self, part: impl Fn(usize) -> Vec<T>) -> Vec<T> {
        let ranks = 0..self.counts.len();
        ranks.flat_map(|r| part(r).into_iter().chain(repeat_n(T::default(), 1))).collect()
    }
}

fn with_counts<T: Number>(comm: &Comm, form: Form, most: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let root = most % size;
    let count = |from: usize, to: usize| random(&[most, from, to]) as usize % (most + 1);
    // What every rank sends to the root and what the root sends; what is sent from rank to rank.
    let layout = Layout::new((0..size).map(|r| count(r, root)).collect());
    let sent = Layout::new((0..size).map(|r| count(rank, r)).collect());
    let received = Layout::new((0..size).map(|r| count(r, rank)).collect());
    let own = layout.counts[rank];
    let input = elements::<T>(rank, 0..own);
    let gathered = layout.filled::<T>(|r| elements(r, 0..layout.counts[r]));
    let scattered = layout.filled::<T>(|r| elements(root, r..r + layout.counts[r]));

    let mut out = zeros(layout.len);
    call!(form, comm, all_gather_v, all_gather_v_on(&input, &mut out, layout.parts()))?;
    assert_eq!(out, gathered, "all_gather_v {form:?}");

    let only_own = |at: usize, part: &[T]| {
        layout.filled::<T>(|r| if r == at { part.to_vec() } else { zeros(layout.counts[r]) })
    };
    let mut data = only_own(rank, &input);
    call!(form, comm, all_gather_v_in_place, all_gather_v_in_place_on(&mut data, layout.parts()))?;
    assert_eq!(data, gathered, "all_gather_v_in_place {form:?}");
    let mut data = only_own(rank, &input);
    let parts = layout.parts();
    call!(form, comm, gather_v_in_place, gather_v_in_place_on(&mut data, parts, root))?;
    let expected = if rank == root { gathered.clone() } else { only_own(rank, &input) };
    assert_eq!(data, expected, "gather_v_in_place {form:?}");
    let mut data = if rank == root { scattered.clone() } else { zeros(layout.len) };
    call!(form, comm, scatter_v_in_place, scatter_v_in_place_on(&mut data, parts, root))?;
    let part = elements(root, rank..rank + own);
    let expected = if rank == root { scattered.clone() } else { only_own(rank, &part) };
    assert_eq!(data, expected, "scatter_v_in_place {form:?}");

    let mut out = zeros(layout.len);
    let place = (rank == root).then_some((&mut out[..], layout.parts()));
    call!(form, comm, gather_v, gather_v_on(&input, place, root))?;
    assert_eq!(out, if rank == root { gathered } else { zeros(layout.len) }, "gather_v {form:?}");

    let mut out = zeros::<T>(own);
    let from = (rank == root).then_some((&scattered[..], layout.parts()));
    call!(form, comm, scatter_v, scatter_v_on(from, &mut out, root))?;
    assert_eq!(out, elements(root, rank..rank + own), "scatter_v {form:?}");

    let (input, mut out) =
        (sent.filled::<T>(|r| elements(rank, r..r + sent.counts[r])), zeros(received.len));
    let (from, to) = (sent.parts(), received.parts());
    call!(form, comm, all_to_all_v, all_to_all_v_on(&input, from, &mut out, to))?;
    let expected = received.filled::<T>(|r| elements(r, rank..rank + received.counts[r]));
    assert_eq!(out, expected, "all_to_all_v {form:?}");

    let first: usize = layout.counts[..rank].iter().sum();
    let (input, mut out) = (elements::<T>(rank, 0..layout.counts.iter().sum()), zeros::<T>(own));
    let (counts, op) = (&layout.counts[..], ReduceOp::Sum);
    call!(form, comm, reduce_scatter_v, reduce_scatter_v_on(&input, &mut out, counts, op))?;
    assert_eq!(out, reduced(size, op, first..first + own), "reduce_scatter_v {form:?}");
    let (mut data, mut expected) = (input.clone(), input);
    expected[first..first + own].copy_from_slice(&out);
    call!(
        form,
        comm,
        reduce_scatter_v_in_place,
        reduce_scatter_v_in_place_on(&mut data, counts, op)
    )?;
    assert_eq!(data, expected, "reduce_scatter_v_in_place {form:?}");
    Ok(())
}

/// Rank 0 sends to all others; then all exchange in a ring.
fn messages<T: Number>(comm: &Comm, form: Form, count: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    if rank == 0 {
        let data = elements::<T>(0, 0..count);
        (1..size).try_for_each(|peer| call!(form, comm, send, send_on(&data, peer)))?;
    } else {
        let mut data = zeros::<T>(count);
        call!(form, comm, recv, recv_on(&mut data, 0))?;
        assert_eq!(data, elements(0, 0..count), "recv {form:?}");
    }
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mine, mut theirs) = (elements::<T>(rank, 0..count), zeros::<T>(count));
    group(|g| {
        comm.recv_on(g, &mut theirs, before)?;
        comm.send_on(g, &mine, next)
    })?;
    assert_eq!(theirs, elements(before, 0..count), "a ring");
    Ok(())
}

fn check<T: Number>() {
    for size in 1..=4 {
        let everything = |comm: Comm| -> Result<()> {
            for (form, count) in FORMS.into_iter().flat_map(|f| COUNTS.map(|count| (f, count))) {
                reductions::<T>(&comm, form, count)?;
                copies::<T>(&comm, form, count)?;
                with_counts::<T>(&comm, form, count)?;
                messages::<T>(&comm, form, count)?;
            }
            comm.close()
        };
        let outcomes = on_ranks(size, everything);
        assert_eq!(outcomes, vec![Ok(()); size], "{}", std::any::type_name::<T>());
    }
}

#[test]
fn integers_of_8_bits() {
    check::<i8>();
    check::<u8>();
}

#[test]
fn integers_of_32_bits() {
    check::<i32>();
    check::<u32>();
}

#[test]
fn integers_of_64_bits() {
    check::<i64>();
    check::<u64>();
}

#[test]
fn floats() {
    check::<f32>();
    check::<f64>();
}

#[test]
fn floats_of_16_bits() {
    check::<half::f16>();
    check::<half::bf16>();
}

#[test]
fn elements_of_8_bits_with_a_fraction_are_copied_and_reduced() {
    let work = |comm: Comm| -> Result<()> {
        copies::<oxccl::F8E4M3>(&comm, Form::Scope, 67)?;
        copies::<oxccl::F8E5M2>(&comm, Form::Waiting, 67)?;
        // Their products are exact, and their sums up to 8.
        reductions::<oxccl::F8E4M3>(&comm, Form::Waiting, 67)?;
        comm.close()
    };
    assert_eq!(on_ranks(2, work), [Ok(()), Ok(())]);
}

#[test]
fn each_rank_multiplies_its_elements_by_a_factor_of_its_own() {
    let work = |comm: Comm| -> Result<[f64; 3]> {
        let multiple = comm.multiplied_sum(10_f64.powi(comm.rank() as i32))?;
        let (mut x, mut y, mut z) = ([1.0], [0.0], [3.0]);
        comm.all_reduce_in_place(&mut x, &multiple)?;
        Stream::new()?.scope(|s| comm.all_reduce_on(s, &[2.0], &mut y, &multiple))?;
        // The factor is kept for calls that were made.
        group(|g| {
            comm.all_reduce_in_place_on(g, &mut z, &multiple)?;
            drop(multiple);
            Ok(())
        })?;
        let mut bytes = [comm.rank() as u8 + 1];
        comm.all_reduce_in_place(&mut bytes, &comm.multiplied_sum(2_u8)?)?;
        assert_eq!(bytes, [12]);
        Ok([x[0], y[0], z[0]])
    };
    assert_eq!(on_ranks(3, work), vec![Ok([111.0, 222.0, 333.0]); 3]);
}

#[test]
fn registered_slices_are_used_as_others_are() {
    let work = |comm: Comm| -> Result<i64> {
        let mut data = vec![comm.rank() as i64 + 1; 1 << 18];
        let mut registered = comm.register(&mut data)?;
        comm.all_reduce_in_place(&mut registered, ReduceOp::Sum)?;
        assert!(registered.iter().all(|x| *x == registered[0]));
        drop(registered);
        comm.register(&mut data[1..])?[0] += 1;
        assert!(comm.register::<u8>(&mut []).is_err());
        comm.close()?;
        Ok(data[1] - data[0] + data[0])
    };
    assert_eq!(on_ranks(2, work), [Ok(4), Ok(4)]);
}

#[test]
fn ranks_write_into_each_others_windows() {
    let work = |comm: Comm| -> Result<Vec<u32>> {
        let (rank, size) = (comm.rank(), comm.size());
        let window = Window::<u32>::new(&comm, size)?;
        let own = [rank as u32 + 1];
        Stream::new()?.scope(|s| {
            for peer in 0..size {
                // SAFETY: each rank has an element of its own, and waits for all signals before it
                // reads them or drops the window.
                unsafe { comm.put_on(s, &own, &window, peer, rank, 3)? };
                comm.signal_on(s, peer, 4)?;
            }
            let from = |signal| move |from| Signals { from, signal, count: 1 };
            let all: Vec<_> = (0..size).flat_map(|r| [from(3)(r), from(4)(r)]).collect();
            comm.wait_signals_on(s, &all)
        })?;
        let found = window.to_vec();
        comm.signal((rank + 1) % size, 0)?;
        comm.wait_signals(&[Signals { from: (rank + size - 1) % size, signal: 0, count: 1 }])?;
        // SAFETY: nothing is written.
        let wrong = unsafe { comm.put(&own, &window, 0, usize::MAX, 3) };
        let text = wrong.expect_err("no such element").to_string();
        assert!(text.contains("at is 18446744073709551615"), "{text}");
        comm.all_reduce_in_place(&mut [0], ReduceOp::Sum)?;
        Ok(found)
    };
    assert_eq!(on_ranks(3, work), vec![Ok(vec![1, 2, 3]); 3]);
}

#[test]
fn peers_use_buffers_in_place() {
    const COUNT: usize = 1 << 20;
    let sum = |comm: Comm| -> Result<(bool, bool)> {
        let mut data = Buffer::<f32>::new(COUNT)?;
        assert!(data.iter().all(|x| *x == 0.0), "it is zero at first");
        data.copy_from_slice(&elements::<f32>(comm.rank(), 0..COUNT));
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
        let right = *data == reduced::<f32>(comm.size(), ReduceOp::Sum, 0..COUNT)[..];
        Ok((right, comm.in_place()? > 0))
    };
    assert_eq!(on_ranks(2, sum), [Ok((true, true)), Ok((true, true))]);
    assert_eq!(Buffer::<u64>::new(0).map(|empty| empty.len()), Ok(0));
}

#[test]
fn one_thread_makes_the_calls_of_all_ranks() -> Result<()> {
    let comms = Comm::all_in_process(4)?;
    let mut data: Vec<_> = comms.iter().map(|comm| elements::<i32>(comm.rank(), 0..100)).collect();
    group(|g| {
        let mut both = comms.iter().zip(&mut data);
        both.try_for_each(|(comm, data)| comm.all_reduce_in_place_on(g, data, ReduceOp::Sum))
    })?;
    assert_eq!(data, vec![reduced::<i32>(4, ReduceOp::Sum, 0..100); 4]);
    Ok(())
}

#[test]
fn operations_on_several_streams_and_in_graphs_follow_the_order_of_their_calls() {
    let work = |comm: Comm| -> Result<i64> {
        let (mut x, mut y) = ([1], [comm.rank() as i64]);
        let mut other = Stream::new()?;
        Stream::new()?.scope(|s| {
            let graph = s.capture(|| comm.all_reduce_in_place_on(s, &mut x, ReduceOp::Sum))?;
            other.scope(|o| {
                graph.launch()?;
                comm.all_reduce_in_place_on(o, &mut y, ReduceOp::Max)?;
                graph.launch()
            })?;
            graph.launch()
        })?;
        Ok(x[0] * 10 + y[0])
    };
    assert_eq!(on_ranks(3, work), [Ok(272), Ok(272), Ok(272)]);
}
