//! A rank of this process: its buffers, its calls, and the check of its results.

use super::buffer::{Buffer, Memory};
use super::case::Case;
use super::cuda;
use super::data;
use super::options::{Kind, Options};
use super::report::Place;
use crate::api::{Api, Handle};
use crate::error::Result;

/// A rank of this process.
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) comm: Handle,
    stream: Handle,
    input: Buffer,
    output: Buffer,
    /// The registrations of input and output, or their windows, as the options say.
    registered: Vec<Handle>,
    /// The events around what is timed.
    begin: Handle,
    end: Handle,
    /// What [`Member::capture_end`] made.
    graph: Handle,
}

// SAFETY: the handles are used by one thread at a time, and the library allows any thread.
unsafe impl Send for Member {}

impl Member {
    /// Makes a rank on this thread's device, without its communicator.
    pub(super) fn new(api: &Api, rank: u32, bytes: usize, memory: Memory) -> Result<Self> {
        let (comm, graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        let [mut stream, mut begin, mut end] = [std::ptr::null_mut(); 3];
        // SAFETY: the places are writable.
        unsafe {
            api.stream_create(rank, &mut stream)?;
            api.event_create(rank, &mut begin)?;
            api.event_create(rank, &mut end)?;
        }
        let input = Buffer::new(api, (rank, stream), bytes, memory)?;
        let output = Buffer::new(api, (rank, stream), bytes, memory)?;
        let registered = Vec::new();
        Ok(Self { rank, comm, stream, input, output, registered, begin, end, graph })
    }

    /// Registers the buffers, as windows if the options say so; all ranks have to do this, those of
    /// a process in a group.
    pub(super) fn register(&mut self, api: &Api, options: &Options) -> Result<()> {
        self.registered = vec![std::ptr::null_mut(); 2];
        for (buffer, handle) in [&self.input, &self.output].into_iter().zip(&mut self.registered) {
            let (data, bytes) = (buffer.data().cast(), buffer.bytes());
            let flags = oxccl::nccl::types::NCCL_WIN_COLL_SYMMETRIC;
            // SAFETY: buffer and handle outlive the registration, and the end of the group.
            unsafe {
                match options.register {
                    2 => api.window_register(self.rank, self.comm, data, bytes, handle, flags)?,
                    _ => api.comm_register(self.rank, self.comm, data, bytes, handle)?,
                }
            }
        }
        Ok(())
    }

    /// Destroys all that the rank has; none of it may be in use.
    pub(super) fn close(self, api: &Api, options: &Options) -> Result<()> {
        let rank = self.rank;
        // SAFETY: the handles are alive and used no more.
        unsafe {
            // NCCL leaves the handle null where it made no registration.
            for handle in self.registered.into_iter().filter(|handle| !handle.is_null()) {
                match options.register {
                    2 => api.window_deregister(rank, self.comm, handle)?,
                    _ => api.comm_deregister(rank, self.comm, handle)?,
                }
            }
            api.comm_destroy(rank, self.comm)?;
            api.event_destroy(rank, self.begin)?;
            api.event_destroy(rank, self.end)?;
            api.stream_destroy(rank, self.stream)?;
        }
        self.input.free(api)?;
        self.output.free(api)
    }

    pub(super) fn synchronize(&self, api: &Api) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { api.stream_synchronize(self.rank, self.stream, -1) }
    }

    /// Has the stream take the time, before or after what is timed.
    pub(super) fn mark(&self, api: &Api, end: bool) -> Result<()> {
        let event = if end { self.end } else { self.begin };
        // SAFETY: both are alive.
        unsafe { api.event_record(self.rank, event, self.stream) }
    }

    /// Returns the time between the two marks, which the stream has reached, in µs.
    pub(super) fn marked_us(&self, api: &Api) -> Result<f64> {
        let mut ms = 0.0;
        // SAFETY: the events are alive, and the place is writable.
        unsafe { api.event_elapsed_time(self.rank, &mut ms, self.begin, self.end)? };
        Ok(f64::from(ms) * 1e3)
    }

    /// Begins to capture the rank's calls.
    pub(super) fn capture_begin(&self, api: &Api) -> Result<()> {
        const THREAD_LOCAL: i32 = 1;
        // SAFETY: the stream is alive.
        unsafe { api.begin_capture(self.rank, self.stream, THREAD_LOCAL) }
    }

    /// Makes a graph of what was captured, for [`Member::replay`].
    pub(super) fn capture_end(&mut self, api: &Api) -> Result<()> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the places are writable and the handles alive.
        unsafe {
            api.end_capture(self.rank, self.stream, &mut graph)?;
            api.graph_instantiate(self.rank, &mut self.graph, graph)?;
            api.graph_destroy(self.rank, graph, std::ptr::null_mut())
        }
    }

    /// Ends a capture on a GPU; returns the thread blocks of the kernel that has most of them.
    pub(super) fn captured_blocks(&self, api: &Api) -> Result<u32> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the place is writable and the stream alive.
        unsafe { api.end_capture(self.rank, self.stream, &mut graph) }?;
        let blocks = cuda::most_blocks(graph);
        // SAFETY: the handle is alive and used no more.
        unsafe { api.graph_destroy(self.rank, graph, std::ptr::null_mut()) }?;
        blocks
    }

    /// Launches the graph once.
    pub(super) fn replay(&self, api: &Api) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { api.graph_launch(self.rank, self.graph, self.stream) }
    }

    /// Destroys the graph.
    pub(super) fn forget_graph(&mut self, api: &Api) -> Result<()> {
        let graph = std::mem::replace(&mut self.graph, std::ptr::null_mut());
        // SAFETY: the handle is alive and used no more.
        unsafe { api.graph_destroy(self.rank, std::ptr::null_mut(), graph) }
    }

    /// Returns the input and output for a case.
    fn places(&self, case: &Case, place: Place) -> (*mut u8, *mut u8) {
        let (input, output) = (self.input.data(), self.output.data());
        if place == Place::Out {
            return (input, output);
        }
        let Some((in_block, out_block)) = case.spec.in_place(self.rank) else {
            return (input, output);
        };
        // In place, both lie in the output buffer, which holds the larger of them.
        let block = case.block_bytes();
        let at = |offset: u32| output.wrapping_add(offset as usize * block);
        (at(out_block), at(in_block))
    }

    /// Calls the operation.
    pub(super) fn launch(&self, api: &Api, case: &Case, place: Place) -> Result<()> {
        if !case.has_part(self.rank) {
            return Ok(());
        }
        let (from, to) = self.places(case, place);
        let (from, to) = (from.cast_const().cast(), to.cast());
        let (count, dtype, op) = (case.count as usize, case.dtype as i32, case.op as i32);
        let (root, comm, stream) = (case.spec.root as i32, self.comm, self.stream);
        let rank = self.rank;
        // SAFETY: handles and buffers are alive until the stream is synchronised.
        unsafe {
            match case.kind {
                Kind::AllReduce | Kind::All => {
                    api.all_reduce(rank, from, to, count, dtype, op, comm, stream)
                }
                Kind::Broadcast => api.broadcast(rank, from, to, count, dtype, root, comm, stream),
                Kind::Reduce => api.reduce(rank, from, to, count, dtype, op, root, comm, stream),
                Kind::AllGather => api.all_gather(rank, from, to, count, dtype, comm, stream),
                Kind::ReduceScatter => {
                    api.reduce_scatter(rank, from, to, count, dtype, op, comm, stream)
                }
                Kind::AllToAll => api.all_to_all(rank, from, to, count, dtype, comm, stream),
                Kind::Gather => api.gather(rank, from, to, count, dtype, root, comm, stream),
                Kind::Scatter => api.scatter(rank, from, to, count, dtype, root, comm, stream),
                Kind::SendRecv | Kind::SendRecvPairs | Kind::SendRecvMany => {
                    self.exchange(api, case)
                }
            }
        }
    }

    /// Sends the input in so many messages, and receives as many, in a group.
    fn exchange(&self, api: &Api, case: &Case) -> Result<()> {
        let messages = case.kind.messages() as usize;
        let (count, dtype) = (case.count as usize / messages, case.dtype as i32);
        let (rank, (send_to, receive_from)) = (self.rank, case.peers(self.rank));
        let (send_to, receive_from) = (send_to as i32, receive_from as i32);
        // SAFETY: handles and buffers are alive until the stream is synchronised.
        unsafe {
            api.group_start(rank)?;
            for message in 0..messages {
                let at = message * count * case.dtype.size();
                let from = self.input.data().wrapping_add(at).cast_const().cast();
                let to = self.output.data().wrapping_add(at).cast();
                api.send(rank, from, count, dtype, send_to, self.comm, self.stream)?;
                api.recv(rank, to, count, dtype, receive_from, self.comm, self.stream)?;
            }
            api.group_end(rank)
        }
    }

    /// Fills the input with an iteration's data, and the output with rubbish.
    pub(super) fn prepare(
        &self,
        api: &Api,
        case: &Case,
        place: Place,
        iteration: u64,
    ) -> Result<()> {
        let (block, rank) = (case.block_bytes(), self.rank);
        let (input, _) = self.places(case, place);
        self.output.set(api, 0, 0xa5, case.spec.output_blocks(rank) as usize * block)?;
        let in_output = place == Place::In && case.spec.in_place(rank).is_some();
        let buffer = if in_output { &self.output } else { &self.input };
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

    /// Returns the number of elements of the output that an iteration left wrong.
    pub(super) fn wrong(
        &self,
        api: &Api,
        case: &Case,
        place: Place,
        iteration: u64,
    ) -> Result<u64> {
        let (block, rank) = (case.block_bytes(), self.rank);
        if !case.has_part(rank) {
            return Ok(0);
        }
        let (_, output) = self.places(case, place);
        let at = output as usize - self.output.data() as usize;
        let spec = case.expected_spec(rank);
        let mut got = vec![0; block];
        (0..spec.output_blocks(rank))
            .map(|b| {
                self.output.read(api, at + b as usize * block, &mut got)?;
                let what = (case.dtype, case.op);
                Ok(data::wrong(&spec, what, iteration, (rank, b), case.count, &got))
            })
            .sum::<Result<u64>>()
    }
}

/// Bytes of input that are made at a time: a multiple of every type's size.
const PIECE: usize = 4 << 20;
