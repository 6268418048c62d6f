//! A rank of the campaign: `oxccl-campaign rank PHASE RANK NRANKS SEED DEAD LATE_MS`. It hears how
//! to begin on its standard input, and ends with a line that says how it went.

use crate::plan::{GROW_ROOT, Phase, sender, split_members};
use crate::trace::{BEGIN, END, mark};
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::bootstrap::{ID_BYTES, UniqueId, launch, new_unique_id};
use oxccl_runtime::comm::{Communicator, Holder, Member, Options, Origin, create};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::host::arena;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::op::{Call, Transfer};
use oxccl_runtime::{Error, group};
use oxccl_tests::sequence::Random;
use rustix::process::{Signal, getpid, kill_process};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Operations of the phase that is about them.
const ROUNDS: u64 = 30;
/// 64-bit words of the largest all-reduce.
const MAX_WORDS: usize = (4 << 20) / 8;
/// The same of what is sent before leaving.
const LAST_WORDS: usize = (1 << 20) / 8;
/// Words of the all-reduce by which a communicator shows that it works.
const PROOF_WORDS: usize = 1000;

/// How a rank ends other than well.
enum Ended {
    /// By an error, whose site names a peer, or −1.
    Failed { code: i32, peer: i32, text: String },
    /// With other data than was sent.
    WrongData(String),
    /// It was not needed: who was to make its id has ended.
    Excused,
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        let peer = error.site().map_or(-1, |site| site.peer);
        Ended::Failed { code: error.code() as i32, peer, text: error.to_string() }
    }
}

impl Ended {
    /// The same with the peer's number in the job, whose ranks `members` are the communicator's.
    fn among(mut self, members: &[u32]) -> Self {
        if let Ended::Failed { peer, .. } = &mut self {
            let known = usize::try_from(*peer).ok().and_then(|peer| members.get(peer));
            *peer = known.map_or(*peer, |member| *member as i32);
        }
        self
    }
}

type Result<T> = std::result::Result<T, Ended>;

/// Runs the rank that the arguments describe.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let number = |i: usize| arguments[i].parse::<u64>().expect("a number");
    let rank = Rank {
        phase: Phase::parse(&arguments[0]).expect("a phase"),
        rank: number(1) as u32,
        nranks: number(2) as u32,
        seed: number(3),
        dead: arguments[4].parse().ok(),
        late_ms: number(5),
    };
    match rank.play() {
        Ok(()) => say("done"),
        Err(Ended::Excused) => say("excused"),
        Err(Ended::Failed { code, peer, text }) => {
            say(&format!("code {code} peer {peer}: {text}"));
            // As a program that gives up: nothing is destroyed or aborted.
            std::process::exit(3);
        }
        Err(Ended::WrongData(what)) => {
            say(&format!("wrong data: {what}"));
            std::process::exit(4);
        }
    }
    ExitCode::SUCCESS
}

/// Prints a line, also when nobody reads it any more.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The id that the launcher or another rank made; or one made here, for the others.
fn meet() -> Result<UniqueId> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a pipe");
    match line.trim_end().strip_prefix("id ") {
        Some(text) => Ok(parse_id(text).expect("an id")),
        None if line.is_empty() => Err(Ended::Excused),
        None => make_id("id"),
    }
}

/// Makes an id and tells it to the supervisor.
fn make_id(what: &str) -> Result<UniqueId> {
    let id = new_unique_id()?;
    say(&format!("{what} {}", launch::hex(&id.encode())));
    Ok(id)
}

fn parse_id(text: &str) -> Option<UniqueId> {
    let mut bytes = [0; ID_BYTES];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    UniqueId::decode(&bytes)
}

/// As a C program's: it stays until it is destroyed, also where an error ends the program first.
fn keep(comm: &Arc<Communicator>) {
    std::mem::forget(comm.clone());
}

/// Memory that stays, whatever is still done with it after an error.
fn words(count: usize, mapped: bool) -> Result<&'static mut [u64]> {
    if !mapped {
        return Ok(vec![0; count].leak());
    }
    let memory = arena::allocate(count * 8)?.cast::<u64>();
    // SAFETY: the memory is zeroed, aligned to pages, this large and never freed.
    Ok(unsafe { std::slice::from_raw_parts_mut(memory, count) })
}

/// What a rank has at a place.
fn word(seed: u64, rank: u32, index: usize) -> u64 {
    Random(seed.wrapping_add(index as u64 * 256 + u64::from(rank))).draw()
}

fn fill(words: &mut [u64], seed: u64, rank: u32) {
    words.iter_mut().enumerate().for_each(|(i, w)| *w = word(seed, rank, i));
}

fn compare(got: &[u64], what: &str, expected: impl Fn(usize) -> u64) -> Result<()> {
    match (0..got.len()).find(|&i| got[i] != expected(i)) {
        None => Ok(()),
        Some(i) => {
            let (n, got, expected) = (got.len(), got[i], expected(i));
            let text = format!("{what}: word {i} of {n} is {got:#x}, expected {expected:#x}");
            Err(Ended::WrongData(text))
        }
    }
}

/// A collective of whole buffers.
fn run(
    comm: &Arc<Communicator>,
    stream: &Arc<Stream>,
    spec: Spec,
    input: &[u64],
    output: &mut [u64],
) -> Result<()> {
    let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
    let (dtype, op, count) = (DataType::Uint64, ReduceOp::Sum, output.len() as u64);
    let call = Call { spec, input: from, output: to, count, dtype, op, scale: None };
    group::collective(comm, &call, stream)?;
    stream.synchronize(None)?;
    Ok(())
}

fn all_reduce(
    comm: &Arc<Communicator>,
    stream: &Arc<Stream>,
    (input, output): (&mut [u64], &mut [u64]),
    seed: u64,
) -> Result<()> {
    fill(input, seed, comm.rank());
    output.fill(0);
    let spec = Spec::new(Collective::AllReduce, comm.nranks(), 0);
    run(comm, stream, spec, input, output)?;
    compare(output, "all-reduce", |i| {
        (0..comm.nranks()).map(|rank| word(seed, rank, i)).fold(0, u64::wrapping_add)
    })
}

/// Sends and receives, as one group.
fn exchange(
    comm: &Arc<Communicator>,
    stream: &Arc<Stream>,
    messages: &mut [(u32, bool, &mut [u64])],
) -> Result<()> {
    group::start();
    for (peer, send, words) in messages {
        let (data, bytes) = (words.as_mut_ptr().cast(), words.len() * 8);
        let transfer = Transfer { peer: *peer, send: *send, data, bytes, dtype: DataType::Uint64 };
        group::transfer(comm, transfer, stream)?;
    }
    group::end()?;
    stream.synchronize(None)?;
    Ok(())
}

/// Everyone sends to the next one.
fn shift(
    comm: &Arc<Communicator>,
    stream: &Arc<Stream>,
    (input, output): (&mut [u64], &mut [u64]),
    seed: u64,
) -> Result<()> {
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let (next, before) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
    fill(input, seed, rank);
    output.fill(0);
    let mut messages = [(next, true, input), (before, false, output)];
    exchange(comm, stream, &mut messages)?;
    compare(messages[1].2, "receive", |i| word(seed, before, i))
}

/// A size of any order of magnitude.
fn size(random: &mut Random, max: usize) -> usize {
    let limit = 1u64 << random.below(u64::from(max.ilog2()) + 1);
    1 + random.below(limit) as usize
}

/// A rank's part.
struct Rank {
    phase: Phase,
    rank: u32,
    nranks: u32,
    seed: u64,
    dead: Option<u32>,
    late_ms: u64,
}

impl Rank {
    fn play(&self) -> Result<()> {
        let id = meet()?;
        let is_newcomer = self.rank == self.nranks;
        let joins = is_newcomer || self.phase == Phase::Init;
        if joins {
            mark(BEGIN);
        }
        let (rank, nranks) = (self.rank, self.nranks + u32::from(is_newcomer));
        let (device, options) = (self.device(), Options::default());
        let comm = Arc::new(create(&Member { id, rank, nranks, device, options })?);
        keep(&comm);
        if joins {
            mark(END);
        }
        if self.phase != Phase::Shrink {
            self.prove(&comm, &[])?;
        }
        match self.phase {
            _ if joins => Ok(comm.destroy()?),
            Phase::Leave => self.leave(&comm),
            _ => {
                self.go_on(&comm)?;
                Ok(comm.destroy()?)
            }
        }
    }

    fn device(&self) -> Device {
        Device::Host(self.rank as i32)
    }

    /// What a communicator's ranks do next.
    fn go_on(&self, comm: &Arc<Communicator>) -> Result<()> {
        match self.phase {
            Phase::Split => {
                let members = split_members(self.nranks, self.rank);
                let (color, key) = ((self.rank % 2) as i32, -(self.rank as i32));
                mark(BEGIN);
                self.live_in(&comm.split(color, key), &members)?;
            }
            Phase::Shrink => {
                let dead = self.dead.expect("a shrink leaves one out");
                self.lose(comm, dead)?;
                let members: Vec<u32> = (0..self.nranks).filter(|r| *r != dead).collect();
                mark(BEGIN);
                self.live_in(&comm.shrink(vec![dead], true), &members)?;
            }
            Phase::Grow => {
                mark(BEGIN);
                let root = self.rank == GROW_ROOT;
                let id = root.then(|| make_id("newcomer")).transpose()?;
                self.live_in(&comm.grow(self.nranks + 1, id), &[])?;
            }
            _ => {
                mark(BEGIN);
                self.operate(comm)?;
                mark(END);
            }
        }
        Ok(())
    }

    /// Makes a communicator from another one, which ends the phase, and uses it.
    fn live_in(&self, origin: &Origin, members: &[u32]) -> Result<()> {
        let holder = Holder::new(self.device(), Options::default());
        holder.make(origin)?;
        let comm = holder.ready()?;
        keep(comm);
        mark(END);
        self.prove(comm, members)?;
        comm.destroy().map_err(|error| Ended::from(error).among(members))
    }

    /// Shows that a communicator works; its ranks are these of the first one.
    fn prove(&self, comm: &Arc<Communicator>, members: &[u32]) -> Result<()> {
        let buffers = (words(PROOF_WORDS, false)?, words(PROOF_WORDS, false)?);
        let proved = all_reduce(comm, &Stream::new(), buffers, self.seed);
        proved.map_err(|ended| ended.among(members))
    }

    /// Operations until the loss of `dead` ends them, which is this rank or another one.
    fn lose(&self, comm: &Arc<Communicator>, dead: u32) -> Result<()> {
        let (input, output) = (words(PROOF_WORDS, false)?, words(PROOF_WORDS, false)?);
        let stream = Stream::new();
        loop {
            match all_reduce(comm, &stream, (&mut *input, &mut *output), self.seed) {
                // All have made the communicator.
                Ok(()) if self.rank == dead => {
                    kill_process(getpid(), Signal::KILL).expect("a process may end itself");
                }
                Ok(()) => {}
                Err(Ended::Failed { peer: 0.., .. }) => return Ok(()),
                Err(other) => return Err(other),
            }
        }
    }

    fn operate(&self, comm: &Arc<Communicator>) -> Result<()> {
        let stream = Stream::new();
        let plain = (words(MAX_WORDS, false)?, words(MAX_WORDS, false)?);
        let mapped = (words(MAX_WORDS, true)?, words(MAX_WORDS, true)?);
        for round in 0..ROUNDS {
            let seed = self.seed.wrapping_add(round << 32);
            let mut random = Random(seed);
            let count = size(&mut random, MAX_WORDS);
            let (input, output) = match random.below(2) {
                0 => (&mut plain.0[..count], &mut plain.1[..count]),
                _ => (&mut mapped.0[..count], &mut mapped.1[..count]),
            };
            match random.below(4) {
                0 => shift(comm, &stream, (input, output), seed)?,
                _ => all_reduce(comm, &stream, (input, output), seed)?,
            }
        }
        Ok(())
    }

    /// One rank tells the others something and leaves at once; they may come late.
    fn leave(&self, comm: &Arc<Communicator>) -> Result<()> {
        let mut random = Random(self.seed);
        let root = sender(self.seed, self.nranks);
        let (count, broadcast) = (size(&mut random, LAST_WORDS), random.below(2) == 0);
        let stream = Stream::new();
        let (input, output) = (words(count, false)?, words(count, false)?);
        fill(input, self.seed, root);
        mark(BEGIN);
        if self.rank != root {
            let late_ms = Random(self.seed ^ u64::from(self.rank)).below(self.late_ms);
            std::thread::sleep(Duration::from_millis(late_ms));
        }
        if broadcast {
            let spec = Spec::new(Collective::Broadcast, self.nranks, root);
            run(comm, &stream, spec, input, output)?;
        } else if self.rank == root {
            let others = (0..self.nranks).filter(|peer| *peer != root);
            for peer in others {
                exchange(comm, &stream, &mut [(peer, true, &mut *input)])?;
            }
        } else {
            exchange(comm, &stream, &mut [(root, false, &mut *output)])?;
        }
        if self.rank != root {
            compare(output, "what the leaving rank said", |i| word(self.seed, root, i))?;
        }
        comm.destroy()?;
        mark(END);
        Ok(())
    }
}
