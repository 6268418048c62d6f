//! The descriptor of a rank's operation, in 96 bits that can be read back: ranks compare
//! descriptors, and an error names both sides where they differ.

use super::options::{AGREED_BITS, CallOptions};
use oxccl_plan::generate::GENERATORS;
use oxccl_plan::words::counted;
use oxccl_plan::{Algorithm, Collective, DataType, ReduceOp, Spec};
use std::fmt;

/// An operation, as far as all ranks have to agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Descriptor {
    /// Collective, type, operation, root and the algorithm for any memory; or [`MESSAGES`] and a
    /// type; or [`SIGNALS`]; or [`BATCH`], and the collective, the type and the number of calls.
    what: u32,
    /// Elements per block, in the first five bits the algorithm for mapped memory, plus one, and
    /// below these the options of the call; bytes of a message; number of signals; a digest of the
    /// descriptors of a batch.
    count: u64,
}

/// The kind of sends and receives, which are compared message by message.
const MESSAGES: u32 = 0x1f << ANY_AT;
/// The kind of waits for signals of one-sided operations; no collective has these first bits
/// either.
const SIGNALS: u32 = 0x1e << ANY_AT;
/// The kind of collectives of a group that run together; no collective has these first bits either.
const BATCH: u32 = 0x1d << ANY_AT;
/// The places of the operation, of the root, of the algorithms' numbers, and of the options.
const OP_AT: u32 = 8;
const ROOT_AT: u32 = 11;
const ANY_AT: u32 = 27;
const MAPPED_AT: u32 = 59;
const OPTIONS_AT: u32 = MAPPED_AT - AGREED_BITS;
/// The largest number of elements that a descriptor tells apart: more fit no address space.
const MAX_COUNT: u64 = (1 << OPTIONS_AT) - 1;
const _: () = assert!(GENERATORS.len() <= (BATCH >> ANY_AT) as usize);

/// The number in the place of a reduction operation: a user's own scale before the sum.
const SCALED_SUM: u32 = 5;
const _: () = assert!(SCALED_SUM < 1 << (ROOT_AT - OP_AT));

/// The increment of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a word whose upper half depends on all bits of another one: the finaliser of SplitMix64
/// up to its last shift.
#[inline]
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

impl Descriptor {
    /// Returns the descriptor of a collective; `scaled` if inputs are multiplied by a user's scalar
    /// first.
    #[inline]
    pub fn collective(
        spec: &Spec,
        dtype: DataType,
        op: ReduceOp,
        scaled: bool,
        count: u64,
    ) -> Self {
        // The operation matters only where elements are combined.
        let op = match (spec.collective.reduces(), scaled) {
            (false, _) => 0,
            (true, true) => SCALED_SUM,
            (true, false) => op as u32,
        };
        let kind = spec.collective as u32 | (dtype as u32) << 4 | op << OP_AT;
        Self { what: kind | (spec.root & 0xffff) << ROOT_AT, count: count & MAX_COUNT }
    }

    /// Returns the descriptor of a collective with the algorithms that may carry it out: a tuner
    /// may choose others on other ranks.
    #[inline]
    pub fn by(self, any: Algorithm, mapped: Option<Algorithm>) -> Self {
        let mapped = mapped.map_or(0, |algorithm| algorithm as u64 + 1);
        Self { what: self.what | (any as u32) << ANY_AT, count: self.count | mapped << MAPPED_AT }
    }

    /// Returns the descriptor of a collective with the options that its caller gave.
    #[inline]
    pub(crate) fn under(self, agreed: u16) -> Self {
        Self { what: self.what, count: self.count | u64::from(agreed) << OPTIONS_AT }
    }

    /// Returns the names of the algorithms of a collective, that for any memory and, where there is
    /// another one, that for memory that all ranks map; `None` for other operations.
    pub fn plans(&self) -> Option<String> {
        self.call().map(|_| self.algorithms())
    }

    fn algorithms(&self) -> String {
        let name = |number: usize| GENERATORS.get(number).map_or("an unknown plan", |g| g.name);
        let any = name((self.what >> ANY_AT) as usize);
        match self.count >> MAPPED_AT {
            0 => any.to_owned(),
            mapped => format!("{any} or {}", name(mapped as usize - 1)),
        }
    }

    /// Returns the texts of two operations that differ: with their algorithms, if only these do.
    pub fn texts(self, other: Self) -> [String; 2] {
        let texts = [self, other].map(|d| d.to_string());
        if texts[0] != texts[1] || self.is_message() {
            return texts;
        }
        if self.is_batch() {
            let what = "counts, operations, roots, algorithms or options";
            return texts.map(|text| format!("{text}, with other {what}"));
        }
        [self, other].map(|d| format!("{d} by {}, as its tuner or options chose", d.algorithms()))
    }

    /// Returns the descriptor of collectives of a kind and a type that run together.
    pub fn batch(
        dtype: DataType,
        collective: Collective,
        calls: impl ExactSizeIterator<Item = Self>,
    ) -> Self {
        let number = calls.len() as u32 & 0xffff;
        let what = BATCH | collective as u32 | (dtype as u32) << 4 | number << ROOT_AT;
        let count = calls.fold(0, |sum, Self { what, count }| {
            mix(mix(sum ^ u64::from(what).wrapping_mul(GOLDEN)) ^ count)
        });
        Self { what, count }
    }

    /// Returns whether these are collectives of a group that run together.
    const fn is_batch(&self) -> bool {
        self.what >> ANY_AT == BATCH >> ANY_AT
    }

    /// Returns whether this is one collective.
    fn is_collective(&self) -> bool {
        !self.is_message() && !self.is_batch() && *self != Self::signals(self.count)
    }

    /// Returns the descriptor of a message of send and receive.
    pub const fn message(dtype: DataType, bytes: u64) -> Self {
        Self { what: MESSAGES | (dtype as u32) << 4, count: bytes }
    }

    /// Returns the descriptor of a wait for so many signals.
    pub const fn signals(count: u64) -> Self {
        Self { what: SIGNALS, count }
    }

    /// Returns the descriptor of the message with this tag and so many bytes; `None` for the tag of
    /// a collective.
    pub const fn of_message(tag: u32, bytes: u64) -> Option<Self> {
        if tag & 1 == 0 {
            return None;
        }
        Some(Self { what: MESSAGES | (tag >> 1 & 15) << 4, count: bytes })
    }

    /// Returns the number of a collective's kind.
    #[inline]
    pub(crate) const fn collective_kind(&self) -> usize {
        (self.what & 15) as usize
    }

    /// Returns whether this is a message of send and receive.
    pub const fn is_message(&self) -> bool {
        self.what & MESSAGES == MESSAGES
    }

    /// Returns the type and the operation of a collective that reduces, where a user's own scale
    /// was applied before, and an average is divided after its sum; `None` for others.
    pub fn reduction(&self) -> Option<(DataType, ReduceOp)> {
        let collective = Collective::ALL.get((self.what & 15) as usize)?;
        let dtype = *DataType::ALL.get((self.what >> 4 & 15) as usize)?;
        let op = match self.what >> OP_AT & ((1 << (ROOT_AT - OP_AT)) - 1) {
            SCALED_SUM => ReduceOp::Sum,
            number => *ReduceOp::ALL.get(number as usize)?,
        };
        (self.is_collective() && collective.reduces()).then_some((dtype, op.combining()))
    }

    /// Returns the kind of a collective, or of a batch's; `None` for other operations.
    pub fn kind(&self) -> Option<Collective> {
        let moves = self.is_message() || *self == Self::signals(self.count);
        Collective::ALL.iter().find(|c| !moves && **c as u32 == self.what & 15).copied()
    }

    /// Returns the kind and the type of a batch's collectives; `None` for other operations.
    pub fn batched(&self) -> Option<(Collective, DataType)> {
        let dtype = DataType::ALL.get((self.what >> 4 & 15) as usize).copied();
        self.is_batch().then(|| self.kind().zip(dtype)).flatten()
    }

    /// Returns the collective with its root, if it has one, its type and the number of elements of
    /// a block; `None` if this is not one collective.
    pub fn call(&self) -> Option<(Collective, Option<u32>, DataType, u64)> {
        if !self.is_collective() {
            return None;
        }
        let collective = *Collective::ALL.iter().find(|c| **c as u32 == self.what & 15)?;
        let dtype = *DataType::ALL.get((self.what >> 4 & 15) as usize)?;
        let root = collective.rooted().then_some(self.what >> ROOT_AT & 0xffff);
        Some((collective, root, dtype, self.count & MAX_COUNT))
    }

    /// Returns the type of the data of a message; `None` for other operations.
    pub fn message_type(&self) -> Option<DataType> {
        let dtype = DataType::ALL.get((self.what >> 4 & 15) as usize).copied();
        self.is_message().then_some(dtype).flatten()
    }

    /// Returns 32 bits that differ where descriptors of collectives differ, except for collisions
    /// with a probability of 1 in 2³¹. The tag is even for collectives and odd for messages, of
    /// which it contains only the type.
    #[inline]
    pub const fn tag(&self) -> u32 {
        if self.is_message() {
            return (self.what >> 4 & 15) << 1 | 1;
        }
        (mix(self.count ^ (self.what as u64).wrapping_mul(GOLDEN)) >> 32) as u32 & !1
    }

    /// Returns the words that [`from_words`](Self::from_words) reads back.
    pub const fn to_words(self) -> (u32, u64) {
        (self.what, self.count)
    }

    /// Returns the descriptor that [`to_words`](Self::to_words) wrote. Other words also give a
    /// descriptor that can be displayed, not a failure.
    pub const fn from_words(what: u32, count: u64) -> Self {
        Self { what, count }
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_message() {
            let dtype = DataType::ALL.get((self.what >> 4 & 15) as usize);
            let name = dtype.map_or("an unknown type", |d| d.name());
            let size = counted(self.count, "byte", "bytes");
            return write!(f, "send/recv of {size} of {name}");
        }
        if self.what == SIGNALS {
            return write!(f, "wait_signal for {}", counted(self.count, "signal", "signals"));
        }
        let collective = Collective::ALL.iter().find(|c| **c as u32 == self.what & 15);
        let dtype = DataType::ALL.get((self.what >> 4 & 15) as usize);
        let (Some(collective), Some(dtype)) = (collective, dtype) else {
            return write!(f, "an unknown operation {:#x}", self.what);
        };
        if self.is_batch() {
            let number = self.what >> ROOT_AT & 0xffff;
            return write!(f, "a group of {number} {} of {}", collective.name(), dtype.name());
        }
        write!(f, "{} of {} × {}", collective.name(), self.count & MAX_COUNT, dtype.name())?;
        if collective.reduces() {
            let op = self.what >> OP_AT & 7;
            match ReduceOp::ALL.get(op as usize) {
                Some(op) => write!(f, ", {}", op.name())?,
                None => write!(f, ", a scaled sum")?,
            }
        }
        if collective.rooted() {
            write!(f, ", root {}", self.what >> ROOT_AT & 0xffff)?;
        }
        let options = self.count >> OPTIONS_AT & ((1 << AGREED_BITS) - 1);
        f.write_str(&CallOptions::agreed_text(options as u16))
    }
}

/// A descriptor with its tag, computed once per operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The descriptor of the operation.
    pub descriptor: Descriptor,
    /// The [`Descriptor::tag`] of the descriptor.
    pub tag: u32,
}

impl Label {
    /// Returns the label of a collective whose tag stands for all collectives so far, too: `before`
    /// is that tag of the collective before. Two such tags differ, but for collisions, if any of
    /// these collectives differ.
    #[inline]
    pub const fn behind(self, before: u32) -> Self {
        // For each tag this maps different tags before to different results, and the other way
        // round: a difference stays.
        let tag = (before.rotate_left(5) ^ self.tag).wrapping_mul(GOLDEN as u32);
        Self { tag, ..self }
    }
}

impl From<Descriptor> for Label {
    fn from(descriptor: Descriptor) -> Self {
        Self { descriptor, tag: descriptor.tag() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_stays_in_the_tags_of_all_collectives_so_far() {
        let label = |root, count| {
            let spec = Spec::new(Collective::Broadcast, 8, root);
            let (dtype, op) = (DataType::Int8, ReduceOp::Sum);
            Label::from(Descriptor::collective(&spec, dtype, op, false, count))
        };
        let [mut ours, mut theirs] = [0, 1].map(|root| label(root, 4).behind(0).tag);
        for count in 0..10_000 {
            assert_ne!(ours, theirs, "after {count}");
            [ours, theirs] = [ours, theirs].map(|before| label(0, count).behind(before).tag);
        }
        assert_eq!(label(0, 4).behind(7), label(0, 4).behind(7));
        assert_ne!(label(0, 4).behind(7), label(0, 4).behind(8));
    }

    #[test]
    fn every_difference_shows_in_tag_and_text() {
        let mut seen = std::collections::HashMap::new();
        for collective in Collective::ALL {
            for root in [0, 1, 7] {
                for dtype in DataType::ALL {
                    for op in ReduceOp::ALL {
                        for count in [0, 1, 100, 1 << 40] {
                            let spec = Spec::new(collective, 8, root);
                            let d = Descriptor::collective(&spec, dtype, op, false, count);
                            let (what, count) = d.to_words();
                            assert_eq!(Descriptor::from_words(what, count), d);
                            let before = seen.insert(d.tag(), d.to_string());
                            assert!(before.is_none_or(|text| text == d.to_string()), "{d}");
                        }
                    }
                }
            }
        }
        let spec = Spec::new(Collective::AllReduce, 8, 0);
        let sum =
            |count| Descriptor::collective(&spec, DataType::Int8, ReduceOp::Sum, false, count);
        let batch = |counts: &[u64]| {
            let calls: Vec<_> = counts.iter().map(|count| sum(*count)).collect();
            Descriptor::batch(DataType::Int8, Collective::AllReduce, calls.into_iter())
        };
        let batches = [batch(&[1, 2]), batch(&[2, 1]), batch(&[1, 2, 1]), batch(&[1, 2, 2])];
        for (i, of) in batches.into_iter().enumerate() {
            let (what, count) = of.to_words();
            assert_eq!(Descriptor::from_words(what, count), of);
            assert!(batches[..i].iter().all(|before| before.tag() != of.tag()), "{of}");
            let number = if i < 2 { 2 } else { 3 };
            assert_eq!(of.to_string(), format!("a group of {number} all_reduce of int8"));
            assert_eq!((of.kind(), of.call()), (Some(Collective::AllReduce), None));
            assert_eq!(of.batched(), Some((Collective::AllReduce, DataType::Int8)));
            assert!(of.reduction().is_none() && !of.is_message() && of.plans().is_none());
        }
        let text = "a group of 2 all_reduce of int8, with other counts, operations, roots";
        assert!(batches[0].texts(batches[1])[1].starts_with(text));
        assert_eq!(batches[0].texts(batches[2])[1], "a group of 3 all_reduce of int8");
        for dtype in DataType::ALL {
            let message = Descriptor::message(dtype, 5);
            assert!(message.is_message() && !seen.contains_key(&message.tag()));
            assert_eq!(message.to_string(), format!("send/recv of 5 bytes of {}", dtype.name()));
            assert_eq!(Descriptor::of_message(message.tag(), 5), Some(message));
        }
        let one = Descriptor::message(DataType::Int8, 1);
        assert_eq!(one.to_string(), "send/recv of 1 byte of int8");
        assert!(seen.keys().all(|&tag| Descriptor::of_message(tag, 5).is_none()));
        let spec = Spec::new(Collective::AllReduce, 8, 0);
        let plain = Descriptor::collective(&spec, DataType::Int8, ReduceOp::Sum, false, 5);
        let by = |any| plain.by(any, Some(Algorithm::TwoShotMapped));
        let [ring, tree] = [Algorithm::Ring, Algorithm::Tree].map(by);
        assert!(
            ring != tree && ring.tag() != tree.tag() && ring != plain.by(Algorithm::Ring, None)
        );
        let text =
            "all_reduce of 5 × int8, sum by tree or two_shot_mapped, as its tuner or options chose";
        assert_eq!(ring.texts(tree)[1], text);
        let (few, text) = (ring.under(4), "all_reduce of 5 × int8, sum, maxCTAs 4");
        assert!(few.tag() != ring.tag() && ring.texts(few)[1] == text && few.call() == ring.call());
        let last = GENERATORS.len() - 1;
        assert!(!plain.by(GENERATORS[last].algorithm, None).is_message());
        let six = Descriptor::collective(&spec, DataType::Int8, ReduceOp::Sum, false, 6);
        let six = six.by(Algorithm::Ring, None);
        assert_eq!(six.texts(ring)[0], "all_reduce of 6 × int8, sum");
        let spec = Spec::new(Collective::Reduce, 8, 3);
        let d = Descriptor::collective(&spec, DataType::Float32, ReduceOp::Max, false, 9);
        assert_eq!(d.to_string(), "reduce of 9 × float, max, root 3");
    }
}
