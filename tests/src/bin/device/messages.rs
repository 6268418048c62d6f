//! Messages of all sizes and in all numbers.

use crate::rank::{Memory, Outcome, Rank, Replay, choose, group, ok, one};
use oxccl::oxccl::types::oxcclCaptureMode_t::oxcclCaptureThreadLocal;
use oxccl_tests::sequence::Random;

/// Messages of the same sizes between all ranks, each with itself included.
pub(crate) struct Mail {
    sizes: Vec<usize>,
    sends: Memory,
    receives: Memory,
}

impl Mail {
    pub(crate) fn new(rank: &Rank, sizes: Vec<usize>) -> Outcome<Self> {
        let total = sizes.iter().sum::<usize>() * rank.nranks as usize;
        Ok(Self { sizes, sends: Memory::new(total)?, receives: Memory::new(total)? })
    }

    /// Number, peer and place of all messages in one direction.
    fn all(&self, rank: &Rank) -> impl Iterator<Item = (usize, i32, std::ops::Range<usize>)> {
        let mut at = 0;
        (0..rank.nranks).flat_map(|peer| (0..self.sizes.len()).map(move |n| (n, peer))).map(
            move |(number, peer)| {
                let start = at;
                at += self.sizes[number];
                (number, peer, start..at)
            },
        )
    }

    /// Writes what a round sends, and poisons what it receives.
    pub(crate) fn fill(&self, rank: &Rank, round: u64) -> Outcome {
        let mut data = Vec::new();
        for (number, peer, place) in self.all(rank) {
            data.extend(pattern(round, rank.rank, peer, number, place.len()));
        }
        rank.upload(self.sends.at, &data)?;
        rank.upload(self.receives.at, &vec![0xa5; data.len()])
    }

    /// Calls all sends and receives, in a group of the caller.
    pub(crate) fn post(&self, rank: &Rank) -> Outcome {
        for (_, peer, place) in self.all(rank) {
            ok(rank.message(true, self.sends.part(place.start), place.len(), peer))?;
            ok(rank.message(false, self.receives.part(place.start), place.len(), peer))?;
        }
        Ok(())
    }

    pub(crate) fn verify(&self, rank: &Rank, round: u64) -> Outcome {
        rank.synchronize()?;
        let total = self.all(rank).last().map_or(0, |(.., place)| place.end);
        let found = rank.download(self.receives.at, total)?;
        let own = rank.rank;
        for (number, peer, place) in self.all(rank) {
            let bytes = place.len();
            if found[place] != pattern(round, peer, own, number, bytes)[..] {
                return Err(format!("message {number} of {bytes} from {peer} to {own} differs"));
            }
        }
        Ok(())
    }
}

/// What a message consists of.
fn pattern(round: u64, from: i32, to: i32, number: usize, bytes: usize) -> Vec<u8> {
    let pair = (from as u64) << 40 | (to as u64) << 32;
    let mut random = Random(round << 48 | pair | number as u64);
    let words = (0..bytes.div_ceil(8)).flat_map(|_| random.draw().to_ne_bytes());
    words.take(bytes).collect()
}

/// Every rank sends messages of many sizes to every rank in one group, three times.
pub(crate) fn sizes(ranks: &[Rank]) -> Outcome {
    let mut mails = Vec::new();
    for rank in ranks {
        choose(rank.rank)?;
        let mail = Mail::new(
            rank,
            vec![300_000, 3_000_000, 1, 0, 4096, 65_536, 65_537, 100_001, 3, 3_000_000],
        )?;
        mail.fill(rank, 0)?;
        mails.push(mail);
    }
    let mut all = ranks.iter().zip(&mails);
    for _ in 0..3 {
        group(|| all.clone().try_for_each(|(rank, mail)| mail.post(rank)))?;
    }
    all.try_for_each(|(rank, mail)| mail.verify(rank, 0))?;
    drop(mails);
    ranks.iter().try_for_each(|rank| rank.leave())
}

/// More messages in one group than anything has places for.
pub(crate) fn many(ranks: &[Rank]) -> Outcome {
    let rank = one(ranks)?;
    let mail = Mail::new(rank, (0..1500).map(|number| 1 + number * 7 % 61).collect())?;
    let post = || group(|| mail.post(rank));
    for round in 1..3 {
        mail.fill(rank, round)?;
        post()?;
        mail.verify(rank, round)?;
    }
    let replay = Replay::capture(rank.stream, oxcclCaptureThreadLocal, post)?;
    rank.all_idle()?;
    for round in 3..6 {
        mail.fill(rank, round)?;
        replay.launch(rank.stream)?;
        mail.verify(rank, round)?;
    }
    drop(replay);
    rank.leave()
}
