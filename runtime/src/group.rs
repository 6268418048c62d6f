//! Groups: calls between start and end are checked one by one and launched together.

use crate::comm::{Communicator, Holder, NO_COLOR, Origin};
use crate::device::Target;
use crate::device::cuda::order;
use crate::device::cuda::stream::Stream as CudaStream;
use crate::device::host::event::Event;
use crate::device::host::stream::Stream;
use crate::device::host::task::Work;
use crate::error::{Error, Result};
use crate::op::descriptor::Descriptor;
use crate::op::{Call, OneSided, Transfer, Transfers};
use std::cell::RefCell;
use std::mem::{ManuallyDrop, take};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A call that was checked and waits for the end of its group.
enum Pending {
    Collective(Arc<Communicator>, Call, Arc<Stream>),
    /// What runs on a GPU, but for sends and receives.
    Kernel(Arc<Communicator>, Kernel, CudaStream),
    Transfer(Arc<Communicator>, Transfer, Target),
    /// Something else, such as a collective made of transfers: never mixed with other sends and
    /// receives of the group.
    Work(Arc<Communicator>, Work, Arc<Stream>),
    Create(Creation),
}

impl Pending {
    fn comm(&self) -> Option<&Arc<Communicator>> {
        match self {
            Pending::Collective(comm, ..)
            | Pending::Kernel(comm, ..)
            | Pending::Transfer(comm, ..)
            | Pending::Work(comm, ..) => Some(comm),
            Pending::Create(_) => None,
        }
    }
}

/// What a GPU runs.
enum Kernel {
    Collective(Call),
    Exchange(Transfers),
    OneSided(OneSided),
}

impl Kernel {
    fn launch(&self, comm: &Communicator, stream: CudaStream) -> Result<()> {
        match self {
            Kernel::Collective(call) => comm.run_on_gpu(call, stream),
            Kernel::Exchange(transfers) => comm.exchange_on_gpu(&transfers.list, stream),
            Kernel::OneSided(item) => comm.one_sided_on_gpu(item, stream),
        }
    }

    /// Whether it gives peers nothing.
    fn only_waits(&self) -> bool {
        matches!(self, Kernel::OneSided(item) if item.only_waits())
    }
}

/// A communicator to be made.
pub struct Creation {
    /// How.
    pub origin: Origin,
    /// What it goes into.
    pub holder: Arc<Holder>,
    /// The parent's, for children.
    pub parent: Option<Arc<Holder>>,
    /// Gives its maker the handle; false: there is none for this rank.
    pub finish: Box<dyn FnOnce(Arc<Holder>, bool) -> Result<()>>,
}

/// What came of a group or a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launched {
    /// Everything is launched, or made.
    Done,
    /// A communicator that does not block is still being made.
    InProgress,
}

#[derive(Default)]
struct Group {
    depth: u32,
    calls: Vec<Pending>,
    error: Option<Error>,
}

impl Group {
    const NONE: Self = Self { depth: 0, calls: Vec::new(), error: None };
}

/// What a thread leaves in a group that it did not end goes with the thread.
struct Unended;

impl Drop for Unended {
    fn drop(&mut self) {
        // Dropped behind the borrow: it may be the last of a communicator.
        drop(GROUP.with_borrow_mut(|g| take(&mut **g)));
    }
}

thread_local! {
    /// Never dropped itself: calls and groups work in exit handlers, too.
    static GROUP: RefCell<ManuallyDrop<Group>> =
        const { RefCell::new(ManuallyDrop::new(Group::NONE)) };
    static UNENDED: Unended = const { Unended };
}

/// Begins a group; groups nest.
pub fn start() {
    // In exit handlers it is gone already.
    let _ = UNENDED.try_with(|_| ());
    GROUP.with_borrow_mut(|g| g.depth += 1);
}

/// Whether this thread is within a group.
pub fn active() -> bool {
    GROUP.with_borrow(|g| g.depth > 0)
}

/// Remembers that a call of the group failed: nothing of the group is launched then.
pub fn note_error(error: &Error) {
    GROUP.with_borrow_mut(|g| {
        if g.depth > 0 {
            g.error.get_or_insert_with(|| error.clone());
        }
    });
}

/// Ends a group; the outermost end launches. Blocks: never, but for communicators that are made.
pub fn end() -> Result<Launched> {
    match leave()? {
        Some(calls) => launch(calls),
        None => Ok(Launched::Done),
    }
}

/// Launches the calls of a group. Where that panics nobody knows what was launched, so all their
/// communicators fail.
fn launch(calls: Vec<Pending>) -> Result<Launched> {
    let mut comms: Vec<Arc<Communicator>> = Vec::new();
    for comm in calls.iter().filter_map(Pending::comm) {
        if !comms.iter().any(|known| Arc::ptr_eq(known, comm)) {
            comms.push(comm.clone());
        }
    }
    let launched = catch_unwind(AssertUnwindSafe(|| Prepared::new(calls)?.launch()));
    launched.unwrap_or_else(|panic| {
        let error = Error::panicked(&*panic);
        comms.iter().for_each(|comm| comm.endpoint().rank.fail(error.clone()));
        Err(error)
    })
}

/// Ends a group without launching anything: all calls are checked, and the outermost end tells how
/// long they would take by the cost model, in µs. A communicator does one operation after the
/// other, several work side by side. A group that makes communicators is refused, and none is made.
/// Blocks: never.
pub fn simulate_end() -> Result<Option<f64>> {
    leave()?.map(|calls| Prepared::new(calls)?.estimate_us()).transpose()
}

/// Leaves a group; the calls of the outermost.
fn leave() -> Result<Option<Vec<Pending>>> {
    crate::fork::check()?;
    let group = GROUP.with_borrow_mut(|g| {
        if g.depth == 0 {
            let what = "ncclGroupEnd without ncclGroupStart";
            return Err(Error::usage(what, "balance the calls"));
        }
        g.depth -= 1;
        Ok((g.depth == 0).then(|| take(&mut **g)))
    })?;
    match group {
        Some(Group { error: Some(error), .. }) => Err(error),
        group => Ok(group.map(|group| group.calls)),
    }
}

/// A collective: launched at once outside groups.
pub fn collective(comm: &Arc<Communicator>, call: Call, stream: &Arc<Stream>) -> Result<()> {
    if !active() {
        return stream.launch(comm.endpoint(), comm.programs(&call)?, call);
    }
    let pending = Pending::Collective(comm.clone(), call, stream.clone());
    GROUP.with_borrow_mut(|g| g.calls.push(pending));
    Ok(())
}

/// A collective on a GPU: launched at once outside groups.
pub fn collective_on_gpu(comm: &Arc<Communicator>, call: Call, stream: CudaStream) -> Result<()> {
    launch_kernel(comm.clone(), Kernel::Collective(call), stream)
}

/// A send or receive: a group of its own outside groups.
pub fn transfer(comm: Arc<Communicator>, transfer: Transfer, stream: Target) -> Result<()> {
    let call = Pending::Transfer(comm, transfer, stream);
    if !active() {
        return Prepared::new(vec![call])?.launch().map(drop);
    }
    GROUP.with_borrow_mut(|g| g.calls.push(call));
    Ok(())
}

/// A collective made of transfers: launched at once outside groups.
pub fn exchange(comm: Arc<Communicator>, transfers: Transfers, stream: Target) -> Result<()> {
    let stream = match stream {
        Target::Host(stream) => stream,
        Target::Cuda(stream) => return launch_kernel(comm, Kernel::Exchange(transfers), stream),
    };
    let work = Work::Exchange(comm.endpoint().clone(), Arc::new(transfers));
    launch_work(comm, work, stream)
}

/// A one-sided operation: launched at once outside groups.
pub fn one_sided(comm: Arc<Communicator>, item: OneSided, stream: Target) -> Result<()> {
    let stream = match stream {
        Target::Host(stream) => stream,
        Target::Cuda(stream) => return launch_kernel(comm, Kernel::OneSided(item), stream),
    };
    let work = Work::OneSided(comm.endpoint().clone(), Arc::new(item));
    launch_work(comm, work, stream)
}

fn launch_kernel(comm: Arc<Communicator>, kernel: Kernel, stream: CudaStream) -> Result<()> {
    if !active() {
        return kernel.launch(&comm, stream);
    }
    GROUP.with_borrow_mut(|g| g.calls.push(Pending::Kernel(comm, kernel, stream)));
    Ok(())
}

fn launch_work(comm: Arc<Communicator>, work: Work, stream: Arc<Stream>) -> Result<()> {
    if !active() {
        return stream.enqueue(work, true);
    }
    GROUP.with_borrow_mut(|g| g.calls.push(Pending::Work(comm, work, stream)));
    Ok(())
}

/// A communicator to be made: at the end of the group, together with the group's others.
pub fn create_communicator(creation: Creation) -> Result<Launched> {
    crate::fork::check()?;
    if !active() {
        return create_all(vec![creation]);
    }
    GROUP.with_borrow_mut(|g| g.calls.push(Pending::Create(creation)));
    Ok(Launched::Done)
}

/// The calls of a group, checked and ready.
#[derive(Default)]
struct Prepared {
    creations: Vec<Creation>,
    /// Collectives, in the order of calls.
    works: Vec<(Arc<Communicator>, Work, Arc<Stream>)>,
    /// The same on GPUs.
    kernels: Vec<(Arc<Communicator>, Kernel, CudaStream)>,
    /// Each communicator's sends and receives.
    exchanges: Vec<Exchange>,
}

impl Prepared {
    /// Everything is checked before anything is launched.
    fn new(calls: Vec<Pending>) -> Result<Self> {
        let mut prepared = Self::default();
        let Self { creations, works, kernels, exchanges } = &mut prepared;
        for call in calls {
            match call {
                Pending::Create(creation) => creations.push(creation),
                Pending::Collective(comm, call, stream) => {
                    let programs = comm.programs(&call)?;
                    let work = Work::Collective(comm.endpoint().clone(), programs, call);
                    works.push((comm, work, stream));
                }
                Pending::Kernel(comm, kernel, stream) => kernels.push((comm, kernel, stream)),
                Pending::Work(comm, work, stream) => works.push((comm, work, stream)),
                Pending::Transfer(comm, transfer, stream) => {
                    match exchanges.iter_mut().find(|e| Arc::ptr_eq(&e.comm, &comm)) {
                        Some(exchange) => exchange.add(transfer, stream),
                        None => exchanges.push(Exchange {
                            comm,
                            transfers: vec![transfer],
                            streams: vec![stream],
                        }),
                    }
                }
            }
        }
        exchanges.iter().try_for_each(Exchange::check)?;
        Ok(prepared)
    }

    /// Makes the communicators, then launches the rest. Where a part of the group is launched and
    /// the rest cannot be, the communicators of all calls fail: the peers wait for the whole.
    fn launch(mut self) -> Result<Launched> {
        let created = create_all(std::mem::take(&mut self.creations))?;
        let comms = self.communicators();
        let mut first = None;
        let outcome = self.launch_calls(&mut first);
        if let Err(error) = &outcome
            && first.is_some_and(|stream| !stream.is_capturing())
        {
            comms.iter().for_each(|comm| comm.endpoint().rank.fail(error.clone()));
        }
        outcome.map(|()| created)
    }

    /// The communicators of all calls.
    fn communicators(&self) -> Vec<Arc<Communicator>> {
        let works = self.works.iter().map(|(comm, ..)| comm);
        let kernels = self.kernels.iter().map(|(comm, ..)| comm);
        let exchanges = self.exchanges.iter().map(|exchange| &exchange.comm);
        let mut all: Vec<_> = works.chain(kernels).chain(exchanges).cloned().collect();
        all.dedup_by(|a, b| Arc::ptr_eq(a, b));
        all
    }

    /// Collectives and puts first, in the order of calls, then each communicator's transfers as
    /// one, then what waits for signals. Notes the stream on which something was launched first.
    fn launch_calls(self, launched: &mut Option<Target>) -> Result<()> {
        let mut streams: Vec<Arc<Stream>> = Vec::new();
        // What waits for a peer's signals must not hold up what the peer waits for.
        let waits = |work: &Work| matches!(work, Work::OneSided(_, item) if item.only_waits());
        let (last, works): (Vec<_>, Vec<_>) =
            self.works.into_iter().partition(|(_, work, _)| waits(work));
        for (_, work, stream) in works {
            stream.enqueue(work, false)?;
            launched.get_or_insert_with(|| Target::Host(stream.clone()));
            streams.push(stream);
        }
        let (waits, kernels): (Vec<_>, Vec<_>) =
            self.kernels.into_iter().partition(|(_, kernel, _)| kernel.only_waits());
        for (comm, kernel, stream) in kernels {
            kernel.launch(&comm, stream)?;
            launched.get_or_insert(Target::Cuda(stream));
        }
        for exchange in self.exchanges {
            let stream = exchange.streams[0].clone();
            exchange.launch()?;
            if let Target::Host(stream) = &stream {
                streams.push(stream.clone());
            }
            launched.get_or_insert(stream);
        }
        for (_, work, stream) in last {
            stream.enqueue(work, false)?;
            streams.push(stream);
        }
        waits.iter().try_for_each(|(comm, kernel, stream)| kernel.launch(comm, *stream))?;
        nudge(&streams);
        Ok(())
    }

    fn estimate_us(&self) -> Result<f64> {
        if !self.creations.is_empty() {
            let what = "a group that makes communicators has no estimate; none was made";
            return Err(Error::usage(what, "make them outside the group to simulate"));
        }
        let works = self.works.iter().map(|(comm, work, _)| {
            let time_us = match work {
                Work::Collective(_, programs, call) => comm.estimate_us(programs, call),
                Work::Exchange(_, transfers) => comm.estimate_exchange_us(&transfers.list),
                Work::OneSided(_, item) => comm.estimate_one_sided_us(item),
                _ => 0.0,
            };
            Ok::<_, Error>((comm, time_us))
        });
        let kernels = self.kernels.iter().map(|(comm, kernel, _)| {
            let time_us = match kernel {
                Kernel::Collective(call) => comm.estimate_us(&*comm.programs(call)?, call),
                Kernel::Exchange(transfers) => comm.estimate_exchange_us(&transfers.list),
                Kernel::OneSided(item) => comm.estimate_one_sided_us(item),
            };
            Ok::<_, Error>((comm, time_us))
        });
        let exchanges =
            self.exchanges.iter().map(|e| Ok((&e.comm, e.comm.estimate_exchange_us(&e.transfers))));
        let mut sums: Vec<(&Arc<Communicator>, f64)> = Vec::new();
        for estimate in works.chain(kernels).chain(exchanges) {
            let (comm, time_us) = estimate?;
            match sums.iter_mut().find(|(known, _)| Arc::ptr_eq(known, comm)) {
                Some((_, sum)) => *sum += time_us,
                None => sums.push((comm, time_us)),
            }
        }
        Ok(sums.into_iter().map(|(_, sum)| sum).fold(0.0, f64::max))
    }
}

/// Moves what was launched on for a moment, as a single call would.
fn nudge(streams: &[Arc<Stream>]) {
    const LOOK: crate::device::host::collective::Budget =
        crate::device::host::collective::Budget { polls: 4, bytes: 16 << 10 };
    for stream in streams.iter().take(64) {
        stream.advance(LOOK);
    }
}

/// The transfers of one communicator.
struct Exchange {
    comm: Arc<Communicator>,
    transfers: Vec<Transfer>,
    streams: Vec<Target>,
}

impl Exchange {
    fn add(&mut self, transfer: Transfer, stream: Target) {
        self.transfers.push(transfer);
        if !self.streams.contains(&stream) {
            self.streams.push(stream);
        }
    }

    /// Messages to itself need their other half in the same group, and of streams all or none are
    /// captured.
    fn check(&self) -> Result<()> {
        let rank = self.comm.rank();
        let captured = |stream: &Target| match stream {
            Target::Host(stream) => stream.is_capturing(),
            // CUDA says so itself, of the first one that does not fit.
            Target::Cuda(_) => false,
        };
        let (all, any) = (self.streams.iter().all(captured), self.streams.iter().any(captured));
        if any && !all {
            let what =
                "a group's sends and receives are on streams of which only some are captured";
            return Err(Error::usage(what, "capture all of them, or none"));
        }
        let own = |send: bool| {
            let of = move |t: &&Transfer| t.peer == rank && t.send == send;
            let message = |t: &Transfer| Descriptor::message(t.dtype, t.bytes as u64).to_string();
            self.transfers.iter().filter(of).map(message).collect::<Vec<_>>()
        };
        let (sent, received) = (own(true), own(false));
        if sent != received {
            let what = format!("rank {rank} sends {sent:?} to itself and receives {received:?}");
            let hint = "a send to itself needs an equal receive in the same group";
            return Err(Error::usage(what, hint));
        }
        Ok(())
    }

    /// Runs on the first stream; the others wait for it, and it for what they had to do before.
    fn launch(self) -> Result<()> {
        let hosts = self.streams.iter().filter_map(|stream| match stream {
            Target::Host(stream) => Some(stream.clone()),
            Target::Cuda(_) => None,
        });
        let hosts: Vec<Arc<Stream>> = hosts.collect();
        let Some((first, others)) = hosts.split_first() else { return self.launch_on_gpu() };
        for other in others {
            let before = Arc::new(Event::default());
            other.record(&before)?;
            first.wait_event(&before)?;
        }
        let transfers = Arc::new(Transfers { operation: "send/recv", list: self.transfers });
        first
            .enqueue(Work::Exchange(self.comm.endpoint().clone(), transfers), others.is_empty())?;
        if !others.is_empty() {
            let after = Arc::new(Event::default());
            first.record(&after)?;
            others.iter().try_for_each(|other| other.wait_event(&after))?;
        }
        Ok(())
    }
}

impl Exchange {
    /// The same with CUDA streams.
    fn launch_on_gpu(self) -> Result<()> {
        let streams = self.streams.iter().filter_map(|stream| match stream {
            Target::Cuda(stream) => Some(*stream),
            Target::Host(_) => None,
        });
        let streams: Vec<CudaStream> = streams.collect();
        let Some((first, others)) = streams.split_first() else { return Ok(()) };
        let _context = self.comm.enter_gpu()?;
        others.iter().try_for_each(|other| order::join(*other, *first))?;
        self.comm.exchange_on_gpu(&self.transfers, *first)?;
        others.iter().try_for_each(|other| order::join(*first, *other))
    }
}

/// Makes communicators side by side: their ranks may wait for each other. Those that do not block
/// go on in threads of their own.
fn create_all(creations: Vec<Creation>) -> Result<Launched> {
    let (blocking, others): (Vec<_>, Vec<_>) =
        creations.into_iter().partition(|c| c.holder.options().blocking);
    let launched = if others.is_empty() { Launched::Done } else { Launched::InProgress };
    for Creation { origin, holder, parent, finish } in others {
        let member = !matches!(origin, Origin::Split { color: NO_COLOR, .. });
        finish(holder.clone(), member)?;
        holder.start(parent, move |holder| holder.make(&origin).map(drop))?;
    }
    if let [_] = &blocking[..] {
        for Creation { origin, holder, finish, .. } in blocking {
            let member = holder.make(&origin)?;
            finish(holder, member)?;
        }
        return Ok(launched);
    }
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = blocking
            .iter()
            .map(|c| (c.holder.clone(), &c.origin))
            .map(|(holder, origin)| scope.spawn(move || holder.make(origin)))
            .collect();
        let panicked = || Error::Internal { what: "making a communicator panicked".to_owned() };
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let mut outcome = Ok(launched);
    for (Creation { holder, finish, .. }, result) in blocking.into_iter().zip(results) {
        let result = result.and_then(|member| finish(holder, member));
        if outcome.is_ok() {
            outcome = result.map(|()| launched);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap;
    use crate::comm::{Member, Options, create};
    use crate::device::Device;
    use oxccl_plan::{Collective, DataType, ReduceOp, Spec};

    /// A communicator of one rank.
    fn alone() -> Arc<Communicator> {
        let id = bootstrap::new_unique_id().unwrap();
        let (device, options) = (Device::Host(0), Options::default());
        Arc::new(create(&Member { id, rank: 0, nranks: 1, device, options }).unwrap())
    }

    /// An all-reduce of nothing.
    fn call(nranks: u32) -> Call {
        let spec = Spec::new(Collective::AllReduce, nranks, 0);
        let (input, output) = (std::ptr::null(), std::ptr::null_mut());
        let (dtype, op) = (DataType::Int8, ReduceOp::Sum);
        Call { spec, input, output, count: 0, dtype, op, scale: None }
    }

    #[test]
    fn a_group_that_panics_fails_its_communicators_and_the_next_one_works() {
        let (comm, other, stream) = (alone(), alone(), Stream::new());
        let device = Device::Host(0);
        let holder = Arc::new(Holder::new(device, Options::default()));
        let origin = Origin::Id { id: bootstrap::new_unique_id().unwrap(), rank: 0, nranks: 1 };
        let finish = Box::new(|_: Arc<Holder>, _: bool| -> Result<()> { panic!("half done") });
        start();
        collective(&comm, call(1), &stream).unwrap();
        create_communicator(Creation { origin, holder, parent: None, finish }).unwrap();
        let error = end().unwrap_err().to_string();
        assert!(error.contains("a panic: half done"), "{error}");
        let failure = comm.failure().expect("it failed").to_string();
        assert!(failure.contains("a panic: half done"), "{failure}");
        assert!(other.failure().is_none(), "it had no part in it");
        start();
        collective(&other, call(1), &stream).unwrap();
        assert_eq!(end().unwrap(), Launched::Done);
        assert!(stream.synchronize(None).unwrap());
    }

    #[test]
    fn what_has_no_estimate_is_an_error_and_not_0() {
        let comm = alone();
        let kernel = |nranks| {
            let stream = CudaStream(std::ptr::null_mut());
            Pending::Kernel(comm.clone(), Kernel::Collective(call(nranks)), stream)
        };
        let estimate = |nranks| Prepared::new(vec![kernel(nranks)]).unwrap().estimate_us();
        assert!(estimate(1).unwrap() >= 0.0);
        let error = estimate(0).unwrap_err().to_string();
        assert!(error.contains("no plan serves"), "{error}");
    }
}
