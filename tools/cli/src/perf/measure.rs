//! The measurement: the ranks of this process, their buffers, the timed and the checked iterations.

use super::buffer::{Buffer, Device};
use super::data;
use super::options::{Kind, Options};
use super::report::{Place, Row};
use crate::api::{Api, Handle, UniqueId};
use crate::error::{Error, Result};
use oxccl_plan::{DataType, ReduceOp, Spec};
use oxccl_runtime::bootstrap::launch::{self, Launch};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The parameters of one row of the table.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) spec: Spec,
    pub(super) dtype: DataType,
    pub(super) op: ReduceOp,
    /// Elements per block.
    pub(super) count: u64,
    /// The size that the row shows: that of the larger buffer.
    pub(super) bytes: u64,
}

impl Case {
    pub(super) fn new(
        kind: Kind,
        nranks: u32,
        root: u32,
        dtype: DataType,
        op: ReduceOp,
        bytes: u64,
    ) -> Self {
        // Send/recv moves one block like a broadcast does, from each rank to the next.
        let collective = kind.collective().unwrap_or(oxccl_plan::Collective::AllReduce);
        let spec = Spec::new(collective, nranks, root);
        let blocks = u64::from(spec.input_blocks(root).max(spec.output_blocks(root)));
        let count = bytes / dtype.size() as u64 / blocks;
        Self { kind, spec, dtype, op, count, bytes: count * blocks * dtype.size() as u64 }
    }

    fn block_bytes(&self) -> usize {
        self.count as usize * self.dtype.size()
    }

    /// Returns nccl-tests' factor from algorithm to bus bandwidth.
    pub(super) fn bus_factor(&self) -> f64 {
        let n = f64::from(self.spec.nranks);
        match self.kind {
            Kind::AllReduce => 2.0 * (n - 1.0) / n,
            Kind::Broadcast | Kind::Reduce | Kind::SendRecv | Kind::All => 1.0,
            _ => (n - 1.0) / n,
        }
    }

    /// Returns the spec of the expected result. Send/recv must leave at a rank the input of the
    /// rank before it.
    fn expected_spec(&self, rank: u32) -> Spec {
        match self.kind {
            Kind::SendRecv => {
                let from = (rank + self.spec.nranks - 1) % self.spec.nranks;
                Spec::new(oxccl_plan::Collective::Broadcast, self.spec.nranks, from)
            }
            _ => self.spec,
        }
    }
}

/// A rank of this process.
struct Member {
    rank: u32,
    comm: Handle,
    stream: Handle,
    input: Buffer,
    output: Buffer,
    /// The windows over input and output; empty unless the options ask for windows.
    windows: Vec<Handle>,
}

// SAFETY: the handles are used by one thread at a time, and the library allows any thread.
unsafe impl Send for Member {}

impl Member {
    /// Makes a rank on this thread's device, without its communicator.
    fn new(api: &Api, rank: u32, bytes: usize, library: bool) -> Result<Self> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the place is writable.
        let code = unsafe { (api.stream_create)(&mut stream) };
        api.check(rank, "oxcclStreamCreate", code)?;
        let input = Buffer::new(api, (rank, stream), bytes, library)?;
        let output = Buffer::new(api, (rank, stream), bytes, library)?;
        let comm = std::ptr::null_mut();
        Ok(Self { rank, comm, stream, input, output, windows: Vec::new() })
    }

    /// Registers the buffers as windows; all ranks have to do this.
    fn open_windows(&mut self, api: &Api) -> Result<()> {
        for buffer in [&self.input, &self.output] {
            let (data, bytes, mut window) = (buffer.data(), buffer.bytes(), std::ptr::null_mut());
            let flags = oxccl::nccl::types::NCCL_WIN_COLL_SYMMETRIC;
            // SAFETY: the buffer outlives the window; the place is writable.
            let code =
                unsafe { (api.window_register)(self.comm, data.cast(), bytes, &mut window, flags) };
            api.check(self.rank, "ncclCommWindowRegister", code)?;
            self.windows.push(window);
        }
        Ok(())
    }

    /// Destroys all that the rank has; none of it may be in use.
    fn close(self, api: &Api) -> Result<()> {
        // SAFETY: the handles are alive and used no more.
        unsafe {
            for window in self.windows {
                let code = (api.window_deregister)(self.comm, window);
                api.check(self.rank, "ncclCommWindowDeregister", code)?;
            }
            let code = (api.comm_destroy)(self.comm);
            api.check(self.rank, "ncclCommDestroy", code)?;
            let code = (api.stream_destroy)(self.stream);
            api.check(self.rank, "oxcclStreamDestroy", code)?;
        }
        self.input.free(api)?;
        self.output.free(api)
    }
}

/// The ranks of this process that use one library, by thread, and a communicator of the processes.
pub(super) struct Team {
    name: String,
    api: Api,
    device: Device,
    threads: Vec<Vec<Member>>,
    nranks: u32,
    control: Control,
    iteration: u64,
}

/// A communicator of the built-in library with one rank per process, on the host, through which the
/// processes agree.
struct Control {
    api: Api,
    comm: Handle,
    stream: Handle,
    rank: u32,
}

impl Control {
    fn new(launch: &Launch) -> Result<Self> {
        let api = Api::built_in();
        let id = match launch.nranks {
            1 => oxccl_runtime::bootstrap::new_unique_id()?,
            _ => launch::unique_id(launch, oxccl_runtime::comm::Options::default().init_limit())?,
        };
        let (mut comm, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (n, rank) = (launch.nranks as i32, launch.rank as i32);
        let id = UniqueId(id.encode());
        // SAFETY: the places are writable.
        unsafe {
            let code = (api.device_set)(Device::HOST.kind, launch.local_rank as i32);
            api.check(launch.rank, "oxcclDeviceSet", code)?;
            api.check(
                launch.rank,
                "ncclCommInitRank",
                (api.comm_init_rank)(&mut comm, n, id, rank),
            )?;
            api.check(launch.rank, "oxcclStreamCreate", (api.stream_create)(&mut stream))?;
        }
        Ok(Self { api, comm, stream, rank: launch.rank })
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        let code = unsafe { (self.api.stream_synchronize)(self.stream, -1) };
        self.api.check(self.rank, "oxcclStreamSynchronize", code)
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        let data = bytes.as_mut_ptr().cast();
        let (comm, stream) = (self.comm, self.stream);
        // SAFETY: the buffer lives until the stream is done.
        let code = unsafe {
            (self.api.broadcast)(data, data, bytes.len(), DataType::Uint8 as i32, 0, comm, stream)
        };
        self.api.check(self.rank, "ncclBroadcast", code)?;
        self.wait()
    }

    fn reduce(&self, value: f64, op: ReduceOp) -> Result<f64> {
        let (input, mut output) = (value, 0.0f64);
        let (to, op) = ((&raw mut output).cast(), op as i32);
        // SAFETY: the buffers live until the stream is done.
        let code = unsafe {
            let from = (&raw const input).cast();
            let dtype = DataType::Float64 as i32;
            (self.api.all_reduce)(from, to, 1, dtype, op, self.comm, self.stream)
        };
        self.api.check(self.rank, "ncclAllReduce", code)?;
        self.wait()?;
        Ok(output)
    }

    fn close(self) -> Result<()> {
        // SAFETY: both handles are alive and used no more.
        unsafe {
            self.api.check(self.rank, "ncclCommDestroy", (self.api.comm_destroy)(self.comm))?;
            let code = (self.api.stream_destroy)(self.stream);
            self.api.check(self.rank, "oxcclStreamDestroy", code)
        }
    }
}

impl Team {
    pub(super) fn new(options: &Options, launch: &Launch, name: String, api: Api) -> Result<Self> {
        // Before `Control::new` chooses the host for this thread.
        let device = Device::find(options, &api, launch.rank)?;
        let control = Control::new(launch)?;
        let per_process = options.threads * options.per_thread;
        let nranks = launch.nranks * per_process;
        let mut id = UniqueId([0; 128]);
        if launch.rank == 0 {
            // SAFETY: the place is writable.
            api.check(0, "ncclGetUniqueId", unsafe { (api.get_unique_id)(&mut id) })?;
        }
        // Its plan is chosen here, not while others' are being counted.
        control.reduce(0.0, ReduceOp::Sum)?;
        control.broadcast(&mut id.0)?;
        let first = launch.rank * per_process;
        let bytes = options.max_bytes.max(64) as usize;
        let place = |rank: u32| launch.local_rank * per_process + rank - first;
        let mut threads: Vec<Vec<Member>> = Vec::new();
        for thread in 0..options.threads {
            let ranks = (0..options.per_thread).map(|i| first + thread * options.per_thread + i);
            let members = ranks.map(|rank| {
                device.choose(&api, rank, place(rank))?;
                Member::new(&api, rank, bytes, options.register > 0)
            });
            threads.push(members.collect::<Result<_>>()?);
        }
        // SAFETY: groups may contain creations; the handles' places outlive the group.
        unsafe {
            api.check(first, "ncclGroupStart", (api.group_start)())?;
            for member in threads.iter_mut().flatten() {
                device.choose(&api, member.rank, place(member.rank))?;
                let (n, rank) = (nranks as i32, member.rank as i32);
                let code = (api.comm_init_rank)(&mut member.comm, n, id, rank);
                api.check(member.rank, "ncclCommInitRank", code)?;
            }
            api.check(first, "ncclGroupEnd", (api.group_end)())?;
        }
        if options.register == 2 {
            threads.iter_mut().flatten().try_for_each(|member| member.open_windows(&api))?;
        }
        Ok(Self { name, api, device, threads, nranks, control, iteration: 0 })
    }

    pub(super) fn nranks(&self) -> u32 {
        self.nranks
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    pub(super) fn close(self) -> Result<()> {
        for member in self.threads.into_iter().flatten() {
            member.close(&self.api)?;
        }
        self.control.close()
    }

    /// Runs a function on every thread of this process and adds up what the threads return.
    fn on_threads(
        &mut self,
        work: impl Fn(&Api, &mut [Member], &Barrier) -> Result<u64> + Sync,
    ) -> Result<u64> {
        let barrier = Barrier::new(self.threads.len());
        let api = self.api;
        if let [members] = &mut self.threads[..] {
            return work(&api, members, &barrier);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .threads
                .iter_mut()
                .map(|members| scope.spawn(|| work(&api, members, &barrier)))
                .collect();
            let panicked = |_| Err(Error::Options("a measuring thread panicked".to_owned()));
            threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).sum()
        })
    }

    /// Returns the time of one operation in µs, combined over the ranks as the options say.
    fn time(
        &mut self,
        options: &Options,
        case: &Case,
        place: Place,
        iterations: u32,
    ) -> Result<f64> {
        let warmup = options.warmup.min(iterations.max(1));
        self.on_threads(|api, members, _| {
            (0..warmup).try_for_each(|_| launch_all(api, members, case, place, options))?;
            synchronize(api, members)?;
            Ok(0)
        })?;
        let graphs = if options.graph > 0 {
            self.capture(options, case, place, iterations)?
        } else {
            Vec::new()
        };
        self.control.reduce(0.0, ReduceOp::Sum)?;
        let elapsed_ns = AtomicU64::new(0);
        self.on_threads(|api, members, barrier| {
            barrier.wait();
            let start = Instant::now();
            if options.graph > 0 {
                for _ in 0..options.graph {
                    replay(api, members, &graphs)?;
                }
            } else {
                for _ in 0..iterations {
                    launch_all(api, members, case, place, options)?;
                    if options.blocking == 1 {
                        synchronize(api, members)?;
                    }
                }
            }
            synchronize(api, members)?;
            elapsed_ns.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            Ok(0)
        })?;
        self.destroy_graphs(graphs)?;
        let runs = u64::from(iterations)
            * u64::from(options.aggregate.max(1))
            * u64::from(options.graph.max(1));
        let own_us = elapsed_ns.load(Ordering::Relaxed) as f64 / 1e3 / runs as f64;
        let op =
            [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max][options.average as usize];
        if options.average == 0 {
            let mut bytes = own_us.to_ne_bytes();
            self.control.broadcast(&mut bytes)?;
            return Ok(f64::from_ne_bytes(bytes));
        }
        self.control.reduce(own_us, op)
    }

    fn destroy_graphs(&self, graphs: Vec<(u32, usize)>) -> Result<()> {
        graphs.into_iter().try_for_each(|(rank, exec)| {
            // SAFETY: the handle is alive and used no more.
            let code = unsafe { (self.api.graph_destroy)(std::ptr::null_mut(), exec as Handle) };
            self.api.check(rank, "oxcclGraphDestroy", code)
        })
    }

    /// Returns an executable graph with all iterations for each rank of this process.
    fn capture(
        &mut self,
        options: &Options,
        case: &Case,
        place: Place,
        iterations: u32,
    ) -> Result<Vec<(u32, usize)>> {
        let graphs = std::sync::Mutex::new(Vec::new());
        self.on_threads(|api, members, _| {
            for member in members.iter() {
                // SAFETY: the stream is alive; 1: thread-local.
                let code = unsafe { (api.begin_capture)(member.stream, 1) };
                api.check(member.rank, "oxcclStreamBeginCapture", code)?;
            }
            (0..iterations).try_for_each(|_| launch_all(api, members, case, place, options))?;
            for member in members.iter() {
                let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
                // SAFETY: the places are writable and the handles alive.
                unsafe {
                    let code = (api.end_capture)(member.stream, &mut graph);
                    api.check(member.rank, "oxcclStreamEndCapture", code)?;
                    let code = (api.graph_instantiate)(&mut exec, graph);
                    api.check(member.rank, "oxcclGraphInstantiate", code)?;
                    let code = (api.graph_destroy)(graph, std::ptr::null_mut());
                    api.check(member.rank, "oxcclGraphDestroy", code)?;
                }
                graphs.lock().unwrap_or_else(|e| e.into_inner()).push((member.rank, exec as usize));
            }
            Ok(0)
        })?;
        Ok(graphs.into_inner().unwrap_or_else(|e| e.into_inner()))
    }

    /// Runs the case on fresh random data with poisoned outputs; returns the number of wrong
    /// elements on all ranks.
    fn check(&mut self, options: &Options, case: &Case, place: Place) -> Result<u64> {
        let mut wrong = 0;
        for _ in 0..options.check {
            self.iteration += 1;
            let iteration = self.iteration;
            let single = Options { aggregate: 1, ..options.clone() };
            let graphs = match options.graph {
                0 => Vec::new(),
                _ => self.capture(&single, case, place, 1)?,
            };
            let own = self.on_threads(|api, members, _| {
                for member in members.iter_mut() {
                    prepare(api, member, case, place, iteration)?;
                }
                if options.graph == 0 {
                    launch_all(api, members, case, place, &single)?;
                } else {
                    replay(api, members, &graphs)?;
                }
                synchronize(api, members)?;
                let count = |member| verdict(api, member, case, place, iteration);
                members.iter_mut().map(count).sum()
            })?;
            self.destroy_graphs(graphs)?;
            wrong += self.control.reduce(own as f64, ReduceOp::Sum)? as u64;
        }
        Ok(wrong)
    }
}

/// Rounds in which a case is measured; its iterations are divided among the rounds.
const ROUNDS: u32 = 3;

/// Measures a case on every team in turn, in [`ROUNDS`] rounds; returns the mean and the fastest.
pub(super) fn alternate(options: &Options, teams: &mut [Team], case: &Case) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for place in [Place::Out, Place::In] {
        // Send/recv has no in-place form.
        let skipped = place == Place::In && case.kind == Kind::SendRecv;
        let mut times = vec![Vec::new(); teams.len()];
        let on_gpus = teams.iter().any(|team| team.device.kind == Device::CUDA);
        let iterations = options.iterations(case.bytes, on_gpus).div_ceil(ROUNDS);
        for _ in 0..ROUNDS {
            for (team, times) in teams.iter_mut().zip(&mut times) {
                if !skipped {
                    times.push(team.time(options, case, place, iterations)?);
                }
            }
        }
        for (i, team) in teams.iter_mut().enumerate() {
            if skipped {
                continue;
            }
            let wrong = team.check(options, case, place)?;
            let time_us = times[i].iter().sum::<f64>() / times[i].len() as f64;
            let time_us_min = times[i].iter().copied().fold(f64::INFINITY, f64::min);
            rows.push(Row::new(
                (&team.name, team.device),
                case,
                place,
                time_us,
                time_us_min,
                wrong,
            ));
        }
    }
    Ok(rows)
}

/// Returns the input and output of a member for a case.
fn places(member: &mut Member, case: &Case, place: Place) -> (*mut u8, *mut u8) {
    let (input, output) = (member.input.data(), member.output.data());
    if place == Place::Out {
        return (input, output);
    }
    let Some((in_block, out_block)) = case.spec.in_place(member.rank) else {
        return (input, output);
    };
    // In place, both lie in the output buffer, which holds the larger of them.
    let block = case.block_bytes();
    let at = |offset: u32| output.wrapping_add(offset as usize * block);
    (at(out_block), at(in_block))
}

fn launch_all(
    api: &Api,
    members: &mut [Member],
    case: &Case,
    place: Place,
    options: &Options,
) -> Result<()> {
    let grouped = members.len() > 1 || options.aggregate > 1;
    // SAFETY: handles and buffers are alive until the streams are synchronised.
    unsafe {
        if grouped {
            api.check(members[0].rank, "ncclGroupStart", (api.group_start)())?;
        }
        for _ in 0..options.aggregate.max(1) {
            for member in members.iter_mut() {
                launch_one(api, member, case, place)?;
            }
        }
        if grouped {
            api.check(members[0].rank, "ncclGroupEnd", (api.group_end)())?;
        }
    }
    Ok(())
}

unsafe fn launch_one(api: &Api, member: &mut Member, case: &Case, place: Place) -> Result<()> {
    let (input, output) = places(member, case, place);
    let (input, output) = (input.cast_const().cast(), output.cast());
    let (count, dtype, op) = (case.count as usize, case.dtype as i32, case.op as i32);
    let (root, comm, stream) = (case.spec.root as i32, member.comm, member.stream);
    let (rank, n) = (member.rank, case.spec.nranks);
    // SAFETY: passed on from the caller.
    let (call, code) = unsafe {
        match case.kind {
            Kind::AllReduce | Kind::All => {
                ("ncclAllReduce", (api.all_reduce)(input, output, count, dtype, op, comm, stream))
            }
            Kind::Broadcast => {
                ("ncclBroadcast", (api.broadcast)(input, output, count, dtype, root, comm, stream))
            }
            Kind::Reduce => {
                ("ncclReduce", (api.reduce)(input, output, count, dtype, op, root, comm, stream))
            }
            Kind::AllGather => {
                ("ncclAllGather", (api.all_gather)(input, output, count, dtype, comm, stream))
            }
            Kind::ReduceScatter => (
                "ncclReduceScatter",
                (api.reduce_scatter)(input, output, count, dtype, op, comm, stream),
            ),
            Kind::AllToAll => {
                ("ncclAlltoAll", (api.all_to_all)(input, output, count, dtype, comm, stream))
            }
            Kind::Gather => {
                ("ncclGather", (api.gather)(input, output, count, dtype, root, comm, stream))
            }
            Kind::Scatter => {
                ("ncclScatter", (api.scatter)(input, output, count, dtype, root, comm, stream))
            }
            Kind::SendRecv => {
                let (to, from) = ((rank + 1) % n, (rank + n - 1) % n);
                api.check(rank, "ncclGroupStart", (api.group_start)())?;
                let code = (api.send)(input, count, dtype, to as i32, comm, stream);
                api.check(rank, "ncclSend", code)?;
                let code = (api.recv)(output, count, dtype, from as i32, comm, stream);
                api.check(rank, "ncclRecv", code)?;
                ("ncclGroupEnd", (api.group_end)())
            }
        }
    };
    api.check(rank, call, code)
}

/// Launches every member's graph once.
fn replay(api: &Api, members: &[Member], graphs: &[(u32, usize)]) -> Result<()> {
    members.iter().try_for_each(|member| {
        let exec = graphs.iter().find(|(rank, _)| *rank == member.rank);
        let exec = exec.map_or(std::ptr::null_mut(), |(_, exec)| *exec as Handle);
        // SAFETY: both handles are alive.
        let code = unsafe { (api.graph_launch)(exec, member.stream) };
        api.check(member.rank, "oxcclGraphLaunch", code)
    })
}

fn synchronize(api: &Api, members: &[Member]) -> Result<()> {
    members.iter().try_for_each(|member| {
        // SAFETY: the stream is alive.
        let code = unsafe { (api.stream_synchronize)(member.stream, -1) };
        api.check(member.rank, "oxcclStreamSynchronize", code)
    })
}

fn prepare(
    api: &Api,
    member: &mut Member,
    case: &Case,
    place: Place,
    iteration: u64,
) -> Result<()> {
    let (block, rank) = (case.block_bytes(), member.rank);
    let (input, _) = places(member, case, place);
    member.output.set(api, 0, 0xa5, case.spec.output_blocks(rank) as usize * block)?;
    let in_output = place == Place::In && case.spec.in_place(rank).is_some();
    let buffer = if in_output { &member.output } else { &member.input };
    let at = input as usize - buffer.data() as usize;
    let len = case.spec.input_blocks(rank) as usize * block;
    let seed = data::seed(iteration, rank);
    let mut staging = vec![0; len.min(PIECE)];
    for begin in (0..len).step_by(PIECE) {
        let piece = &mut staging[..PIECE.min(len - begin)];
        data::fill(case.dtype, case.op, seed, (begin / case.dtype.size()) as u64, piece);
        buffer.write(api, at + begin, piece)?;
    }
    Ok(())
}

/// Bytes of input that are made at a time: a multiple of every type's size.
const PIECE: usize = 4 << 20;

fn verdict(
    api: &Api,
    member: &mut Member,
    case: &Case,
    place: Place,
    iteration: u64,
) -> Result<u64> {
    let (block, rank) = (case.block_bytes(), member.rank);
    let (_, output) = places(member, case, place);
    let at = output as usize - member.output.data() as usize;
    let spec = case.expected_spec(rank);
    let mut got = vec![0; block];
    (0..spec.output_blocks(rank))
        .map(|b| {
            member.output.read(api, at + b as usize * block, &mut got)?;
            let what = (case.dtype, case.op);
            Ok(data::wrong(&spec, what, iteration, (rank, b), case.count, &got))
        })
        .sum()
}
