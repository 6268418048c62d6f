//! Makes ranks' buffers known to their peers and maps those of the peers, in a thread of its own: no
//! operation waits for it, and the monitor is not held up by a driver that waits for a GPU.

use super::driver::{Gpu, Relaxed, cu};
use super::export::{self, Exported, Mapping};
use super::mail::{Address, Letter, Mail, News, Postbox};
use super::registry::{Registry, State};
use super::seat::Seat;
use super::shared::Memory;
use crate::bootstrap::deadline::Deadline;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use oxccl_kernels::abi;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::mem::offset_of;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

/// Between looks while peers have to answer or a box is full.
const SOON: Duration = Duration::from_millis(2);
/// Between looks otherwise.
const LATER: Duration = Duration::from_secs(10);

/// How a peer is told.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its box.
    pub address: Address,
    /// Whether it lives in this process.
    pub here: bool,
}

/// What a rank shares with its peers beyond the memory that it began with.
pub struct Sharing {
    gpu: &'static Gpu,
    rank: u32,
    post: Postbox,
    peers: Vec<Peer>,
    /// [`abi::Maps`].
    maps: CUdeviceptr,
    registry: Mutex<Registry>,
    desk: Mutex<Desk>,
    stage_wanted: AtomicBool,
    /// GPUs do not reach each other: nothing of them is mapped.
    apart: bool,
    /// Bytes of the large stage.
    pub bytes: AtomicU64,
}

/// What the thread works with.
#[derive(Default)]
struct Desk {
    mapped: HashMap<(u32, u32), Mapping>,
    letters: VecDeque<(u32, Letter)>,
    stage: Option<Arc<Memory>>,
    stream: Option<Private>,
}

/// A stream that nobody else uses.
struct Private(CUstream);

// SAFETY: streams may be used from any thread.
unsafe impl Send for Private {}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: this value's alone; all that was launched there was waited for.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Sharing {
    /// Nothing is shared yet. `maps` is zeroed memory of the GPU.
    pub fn new(gpu: &'static Gpu, rank: u32, nranks: u32, maps: CUdeviceptr) -> Result<Self> {
        mapper()?;
        Ok(Self {
            gpu,
            rank,
            post: Postbox::new()?,
            peers: Vec::new(),
            maps,
            registry: Mutex::new(Registry::new(rank, nranks)),
            desk: Mutex::default(),
            stage_wanted: AtomicBool::new(false),
            apart: false,
            bytes: AtomicU64::new(0),
        })
    }

    /// Where this rank is told.
    pub fn address(&self) -> Address {
        self.post.address
    }

    /// All ranks, by number.
    pub fn connect(&mut self, peers: Vec<Peer>) {
        self.peers = peers;
    }

    /// Whether all ranks live in this process.
    pub fn all_here(&self) -> bool {
        self.peers.iter().all(|peer| peer.here)
    }

    /// GPUs do not reach each other: no memory of them is mapped from here on.
    pub fn stay_apart(&mut self) {
        self.apart = true;
    }

    /// Whether GPUs do not reach each other.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Gives a descriptor to some ranks, and takes theirs. Blocks until all have come.
    pub fn swap_descriptors(
        &self,
        own: Option<OwnedFd>,
        ranks: &[usize],
        deadline: &Deadline,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let segments: Vec<_> = own.into_iter().map(|fd| (0, Arc::new(fd))).collect();
        let mut letters: VecDeque<_> = ranks
            .iter()
            .map(|&rank| {
                let exported = Exported { segments: segments.clone(), ..Exported::default() };
                let news = News::Offer(0, exported);
                let mail = Mail { from: self.rank, number: u32::MAX, generation: 0, news };
                (rank, Letter::new(&self.peers[rank].address.key, &mail))
            })
            .collect();
        let mut taken = Vec::new();
        while taken.len() < ranks.len() || !letters.is_empty() {
            for _ in 0..letters.len() {
                let Some((rank, letter)) = letters.pop_front() else { break };
                if !letter.send(&self.peers[rank].address)? {
                    letters.push_back((rank, letter));
                }
            }
            while let Some(mail) = self.post.take() {
                let from = mail.from as usize;
                if let News::Offer(_, mut exported) = mail.news
                    && let Some((_, fd)) = exported.segments.pop()
                    && let Some(fd) = Arc::into_inner(fd)
                    && ranks.contains(&from)
                {
                    taken.push((from, fd));
                }
            }
            if deadline.passed() {
                let missing = ranks.iter().find(|rank| taken.iter().all(|(from, _)| from != *rank));
                let rank = missing.copied().unwrap_or(0);
                let why = format!("rank {rank} did not pass its host memory on in time");
                return Err(deadline.error(|| Error::Init { why }));
            }
            let mut fds = [PollFd::new(&*self.post.socket, PollFlags::IN)];
            crate::bootstrap::wire::wait_for(&mut fds, deadline.slice().min(SOON));
        }
        Ok(taken)
    }

    /// The buffers.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// Has the large stage made, in the background.
    pub fn want_stage(&self) {
        if !self.apart && !self.stage_wanted.swap(true, Ordering::Relaxed) {
            wake();
        }
    }

    fn stream(&self, desk: &mut Desk) -> Result<CUstream> {
        if desk.stream.is_none() {
            let mut stream = std::ptr::null_mut();
            let nonblocking = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: a place for the handle.
            unsafe { cu!(cuStreamCreate(&mut stream, nonblocking)) }?;
            desk.stream = Some(Private(stream));
        }
        Ok(desk.stream.as_ref().map_or(std::ptr::null_mut(), |stream| stream.0))
    }

    /// Writes a word of the maps.
    fn set(&self, desk: &mut Desk, at: usize, value: u64) -> Result<()> {
        let (to, from, stream) = (self.maps + at as u64, &raw const value, self.stream(desk)?);
        // SAFETY: a word of memory that this rank owns; the value is read before this returns.
        unsafe {
            cu!(cuMemcpyAsync(to, from as u64, size_of::<u64>(), stream))?;
            cu!(cuStreamSynchronize(stream))
        }
    }

    fn set_ready(&self, desk: &mut Desk, number: u32, generation: u64) -> Result<()> {
        let at = offset_of!(abi::Maps, ready) + number as usize * size_of::<u64>();
        self.set(desk, at, generation)
    }

    fn set_base(&self, desk: &mut Desk, peer: u32, number: u32, base: u64) -> Result<()> {
        let index = peer as usize * abi::BUFFERS + number as usize;
        self.set(desk, offset_of!(abi::Maps, bases) + index * size_of::<u64>(), base)
    }

    fn write(&self, desk: &mut Desk, peer: u32, mail: &Mail) {
        if let Some(to) = self.peers.get(peer as usize) {
            desk.letters.push_back((peer, Letter::new(&to.address.key, mail)));
        }
    }

    fn write_all(&self, desk: &mut Desk, mail: &Mail) {
        let others = (0..self.peers.len() as u32).filter(|&peer| peer != self.rank);
        others.for_each(|peer| self.write(desk, peer, mail));
    }

    fn make_stage(&self, desk: &mut Desk) -> Result<()> {
        if desk.stage.is_some() || !self.stage_wanted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let stream = self.stream(desk)?;
        let bytes = abi::MAX_CHANNELS * 2 * abi::STAGE_SLOT_BYTES;
        let stage = Memory::new(self.gpu, bytes, stream)?;
        let base = stage.at();
        self.bytes.store(bytes as u64, Ordering::Relaxed);
        desk.stage = Some(stage);
        self.set_base(desk, self.rank, abi::STAGE_BUFFER, base)?;
        self.registry().hold_stage(base, bytes as u64);
        Ok(())
    }

    /// Offers what is wanted, and takes back what is left.
    fn tell(&self, desk: &mut Desk, seat: &Seat) -> Result<()> {
        self.make_stage(desk)?;
        let wanted = self.registry().all(|state| state == State::Wanted);
        for number in wanted {
            let buffer = self.registry().get(number);
            let exported = match self.all_here() {
                true => Ok(Exported::default()),
                false => export::export(buffer.base, buffer.len),
            };
            let told = exported.map(|exported| {
                let news = News::Offer(buffer.base, exported);
                let generation = buffer.generation;
                self.write_all(desk, &Mail { from: self.rank, number, generation, news });
            });
            if let Err(error) = &told {
                say(&format!("a buffer at {:#x} is not used in place: {error}", buffer.base));
            }
            self.registry().offered(number, told.is_ok());
        }
        let leaving = self.registry().all(|state| state == State::Leaving);
        for &number in &leaving {
            self.set_ready(desk, number, 0)?;
        }
        // An operation that still found it ready ends first.
        if !leaving.is_empty() && !seat.busy() {
            for number in leaving {
                let generation = self.registry().get(number).generation;
                let mail = Mail { from: self.rank, number, generation, news: News::Withdraw };
                self.write_all(desk, &mail);
                self.registry().withdrawn(number);
            }
        }
        Ok(())
    }

    fn hear(&self, desk: &mut Desk, mail: Mail) -> Result<()> {
        let Mail { from, number, generation, news } = mail;
        let known = (from as usize) < self.peers.len() && (number as usize) < abi::BUFFERS;
        if !known {
            return Ok(());
        }
        let answer = |news| Mail { from: self.rank, number, generation, news };
        match news {
            News::Offer(base, exported) => {
                let mapped = match self.peers[from as usize].here {
                    true => export::map_here(self.gpu, base),
                    false => export::map(self.gpu, exported),
                };
                if let Err(error) = &mapped {
                    say(&format!("a buffer of rank {from} is not used in place: {error}"));
                }
                let has = mapped.is_ok();
                if let Ok(mapping) = mapped {
                    self.set_base(desk, from, number, mapping.address())?;
                    desk.mapped.insert((from, number), mapping);
                }
                self.write(desk, from, &answer(News::Answer(has)));
            }
            News::Answer(has) => {
                let ready = self.registry().answered(number, generation, from, has);
                if ready {
                    self.set_ready(desk, number, generation)?;
                }
            }
            News::Withdraw => {
                self.set_base(desk, from, number, 0)?;
                desk.mapped.remove(&(from, number));
                self.write(desk, from, &answer(News::Returned));
            }
            News::Returned => self.registry().returned(number, generation, from),
        }
        Ok(())
    }

    /// Sends letters until a box is full; those to others go on.
    fn post(&self, desk: &mut Desk) {
        let mut full = 0u32;
        let letters = std::mem::take(&mut desk.letters);
        for (peer, letter) in letters {
            let blocked = full & 1 << peer != 0;
            // A peer that is gone needs no answers.
            if blocked || !letter.send(&self.peers[peer as usize].address).unwrap_or(true) {
                full |= 1 << peer;
                desk.letters.push_back((peer, letter));
            }
        }
    }

    /// Does what there is to do; true while more comes soon.
    fn work(&self, seat: &Seat) -> Result<bool> {
        let _place = (self.gpu.enter()?, Relaxed::begin()?);
        let mut desk = lock(&self.desk);
        while let Some(mail) = self.post.take() {
            self.hear(&mut desk, mail)?;
        }
        self.tell(&mut desk, seat)?;
        self.post(&mut desk);
        Ok(!desk.letters.is_empty() || self.registry().waits())
    }

    /// Lets go of all that it has of others. The GPU's context is the thread's.
    pub fn close(&self) {
        let Desk { mapped, stage, stream, .. } = std::mem::take(&mut *lock(&self.desk));
        drop((mapped, stage, stream));
    }
}

fn say(text: &str) {
    log::line(Level::Info, Subsystem::Reg, text);
}

struct Mapper {
    seats: Mutex<Vec<Weak<Seat>>>,
    wake: UnixStream,
}

fn mapper() -> Result<&'static Mapper> {
    static MAPPER: OnceLock<Result<Mapper>> = OnceLock::new();
    let made = MAPPER.get_or_init(|| {
        let failed = |e| Error::system("starting a thread", e, "raise ulimit -n and -u");
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        woken.set_nonblocking(true).map_err(failed)?;
        let thread = std::thread::Builder::new().name("oxccl-map".to_owned());
        thread.spawn(move || run(&woken)).map_err(failed)?;
        Ok(Mapper { seats: Mutex::default(), wake })
    });
    made.as_ref().map_err(Clone::clone)
}

/// Serves a seat from now on.
pub fn attend(seat: &Arc<Seat>) {
    // It was started when the seat was made.
    if let Ok(mapper) = mapper() {
        lock(&mapper.seats).push(Arc::downgrade(seat));
        wake();
    }
}

/// Has it look at once.
pub fn wake() {
    if let Ok(mapper) = mapper() {
        let _ = (&mapper.wake).write(&[1]);
    }
}

fn seats() -> Vec<Arc<Seat>> {
    let Ok(mapper) = mapper() else { return Vec::new() };
    let mut seats = lock(&mapper.seats);
    seats.retain(|seat| seat.strong_count() > 0);
    seats.iter().filter_map(Weak::upgrade).collect()
}

/// Takes back all buffers within memory that goes away.
pub fn forget(base: u64, len: u64) {
    let mut any = false;
    for seat in seats() {
        if let Some(sharing) = seat.sharing() {
            sharing.registry().forget(base, len);
            any = true;
        }
    }
    if any {
        wake();
    }
}

fn run(mut woken: &UnixStream) {
    loop {
        let (mut limit, mut boxes) = (LATER, Vec::new());
        // Not kept while this waits: a seat ends with its communicator and graphs.
        for seat in seats() {
            let Some(sharing) = seat.sharing() else { continue };
            boxes.push(sharing.post.socket.clone());
            let worked = catch_unwind(AssertUnwindSafe(|| sharing.work(&seat)));
            match worked.unwrap_or_else(|panic| Err(Error::panicked(&*panic))) {
                Ok(false) => {}
                Ok(true) => limit = SOON,
                // The communicator goes on without.
                Err(error) => {
                    say(&error.to_string());
                    limit = limit.min(Duration::from_millis(100));
                }
            }
        }
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        fds.extend(boxes.iter().map(|socket| PollFd::new(&**socket, PollFlags::IN)));
        crate::bootstrap::wire::wait_for(&mut fds, limit);
        drop(fds);
        let _ = woken.read(&mut [0; 64]);
    }
}
