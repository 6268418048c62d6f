//! The ranks of this process: their communicators, the timed and the checked iterations.

use super::buffer::{Device, Memory};
use super::case::Case;
use super::control::Control;
use super::member::Member;
use super::options::Options;
use super::report::Place;
use crate::api::{Api, UniqueId};
use crate::error::{Error, Result};
use oxccl_plan::ReduceOp;
use oxccl_runtime::bootstrap::launch::Launch;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The ranks of this process that use one library, by thread, and a communicator of the processes
/// that use it.
pub(super) struct Team<'a> {
    api: Api,
    options: &'a Options,
    device: Device,
    threads: Vec<Vec<Member>>,
    nranks: u32,
    control: &'a Control,
    iteration: u64,
}

/// The greatest of the ranks' numbers, as `-a` numbers it.
const MAXIMUM: u32 = 3;

/// The times of one operation in µs, combined over the ranks as the options say.
#[derive(Clone, Copy, Default)]
pub(super) struct Times {
    /// On the device, from before the first operation to after the last one.
    pub(super) time_us: f64,
    /// On the processor, in the call.
    pub(super) cpu_us: f64,
}

impl<'a> Team<'a> {
    /// Makes the ranks of this process, which is one of those that the launch and the control are
    /// about.
    pub(super) fn new(
        (options, launch): (&'a Options, &Launch),
        control: &'a Control,
        device: Device,
        api: Api,
    ) -> Result<Self> {
        if api.is_foreign() && !device.is_cuda() {
            let why = "it has no oxcclDeviceSet, as libraries that take data of GPUs only, but \
                       the buffers are to be in memory of the host; use --device cuda";
            return Err(Error::Library { path: api.name().to_owned(), why: why.to_owned() });
        }
        let per_process = options.threads * options.per_thread;
        let nranks = launch.nranks * per_process;
        let mut id = UniqueId([0; 128]);
        if launch.rank == 0 {
            // SAFETY: the place is writable.
            unsafe { api.get_unique_id(0, &mut id) }?;
        }
        control.broadcast(0, &mut id.0)?;
        let first = launch.rank * per_process;
        let bytes = options.max_bytes.max(64) as usize;
        let memory = Memory::wanted(options, device);
        let place = |rank: u32| launch.local_rank * per_process + rank - first;
        let mut threads: Vec<Vec<Member>> = Vec::new();
        for thread in 0..options.threads {
            let ranks = (0..options.per_thread).map(|i| first + thread * options.per_thread + i);
            let members = ranks.map(|rank| {
                device.choose(&api, rank, place(rank))?;
                Member::new(&api, rank, bytes, memory)
            });
            threads.push(members.collect::<Result<_>>()?);
        }
        // SAFETY: groups may contain creations; the handles' places outlive the group.
        unsafe {
            api.group_start(first)?;
            for member in threads.iter_mut().flatten() {
                device.choose(&api, member.rank, place(member.rank))?;
                let (n, rank) = (nranks as i32, member.rank as i32);
                api.comm_init_rank(member.rank, &mut member.comm, n, id, rank)?;
            }
            api.group_end(first)?;
            if options.register > 0 {
                api.group_start(first)?;
                let mut members = threads.iter_mut().flatten();
                members.try_for_each(|member| member.register(&api, options))?;
                api.group_end(first)?;
            }
        }
        Ok(Self { api, options, device, threads, nranks, control, iteration: 0 })
    }

    pub(super) fn api(&self) -> Api {
        self.api
    }

    pub(super) fn nranks(&self) -> u32 {
        self.nranks
    }

    pub(super) fn close(self) -> Result<()> {
        let mut members = self.threads.into_iter().flatten();
        members.try_for_each(|member| member.close(&self.api, self.options))
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

    /// Times a case. With graphs, all ranks meet before each replay.
    pub(super) fn time(&mut self, case: &Case, place: Place, iterations: u32) -> Result<Times> {
        let options = self.options;
        let calls = |api: &Api, members: &[Member], iterations: u32| -> Result<Duration> {
            // Two readings of the clock take as long as a part of a small call.
            if options.blocking == 0 {
                let start = Instant::now();
                for _ in 0..iterations {
                    launch_all(api, members, case, place, options.aggregate)?;
                }
                return Ok(start.elapsed());
            }
            let mut in_calls = Duration::ZERO;
            for _ in 0..iterations {
                let start = Instant::now();
                launch_all(api, members, case, place, options.aggregate)?;
                in_calls += start.elapsed();
                members.iter().try_for_each(|member| member.synchronize(api))?;
            }
            Ok(in_calls)
        };
        let warmup = options.warmup.min(iterations.max(1));
        self.timed(|api, members| calls(api, members, warmup))?;
        let total = if options.graph == 0 {
            self.timed(|api, members| calls(api, members, iterations))?
        } else {
            self.capture(case, place, iterations, options.aggregate)?;
            let mut total = Times::default();
            for replay in 0..options.warmup + options.graph {
                let Times { time_us, cpu_us } = self.timed(replay_all)?;
                if replay >= options.warmup {
                    total.time_us += time_us;
                    total.cpu_us += cpu_us;
                }
            }
            self.forget_graphs()?;
            total
        };
        let operations = iterations * options.aggregate.max(1) * options.graph.max(1);
        let own = [total.time_us, total.cpu_us].map(|us| us / f64::from(operations));
        // Ranks without a part take no time.
        let average = if case.pair.is_some() { MAXIMUM } else { options.average };
        let [time_us, cpu_us] = self.combined(own, average)?;
        Ok(Times { time_us, cpu_us })
    }

    /// Lets all ranks meet, runs a function on every thread, and waits for what it launched.
    /// Returns the longest time of a rank here; the function returns what its calls took.
    fn timed(
        &mut self,
        work: impl Fn(&Api, &[Member]) -> Result<Duration> + Sync,
    ) -> Result<Times> {
        // Who waits long for the last one sleeps meanwhile, and may go on late. At the second
        // meeting nobody waits long, so that all go on at the same time.
        self.control.meet()?;
        self.control.meet()?;
        let [time_ns, cpu_ns] = [const { AtomicU64::new(0) }; 2];
        self.on_threads(|api, members, barrier| {
            barrier.wait();
            members.iter().try_for_each(|member| member.mark(api, false))?;
            let in_calls = work(api, members)?;
            members.iter().try_for_each(|member| member.mark(api, true))?;
            members.iter().try_for_each(|member| member.synchronize(api))?;
            for member in members {
                let ns = (member.marked_us(api)? * 1e3) as u64;
                time_ns.fetch_max(ns, Ordering::Relaxed);
            }
            cpu_ns.fetch_max(in_calls.as_nanos() as u64, Ordering::Relaxed);
            Ok(0)
        })?;
        let us = |ns: AtomicU64| ns.into_inner() as f64 / 1e3;
        Ok(Times { time_us: us(time_ns), cpu_us: us(cpu_ns) })
    }

    /// Combines the processes' numbers, as `-a` numbers the ways.
    fn combined<const N: usize>(&self, own: [f64; N], average: u32) -> Result<[f64; N]> {
        let op = match average {
            0 => return self.control.share(0, Some(own)),
            1 => ReduceOp::Avg,
            2 => ReduceOp::Min,
            _ => ReduceOp::Max,
        };
        let mut all = own;
        for number in &mut all {
            *number = self.control.reduce(*number, op)?;
        }
        Ok(all)
    }

    /// Makes a graph with all iterations for each rank of this process.
    fn capture(&mut self, case: &Case, place: Place, iterations: u32, group: u32) -> Result<()> {
        self.on_threads(|api, members, _| {
            members.iter().try_for_each(|member| member.capture_begin(api))?;
            (0..iterations).try_for_each(|_| launch_all(api, members, case, place, group))?;
            members.iter_mut().try_for_each(|member| member.capture_end(api))?;
            Ok(0)
        })
        .map(|_| ())
    }

    /// Returns the thread blocks of the kernel of the operation that has most of them, on any rank;
    /// 0 on the host.
    pub(super) fn blocks(&mut self, case: &Case, place: Place) -> Result<u32> {
        if !self.device.is_cuda() {
            return Ok(0);
        }
        let (most, group) = (AtomicU64::new(0), self.options.aggregate);
        self.on_threads(|api, members, _| {
            members.iter().try_for_each(|member| member.capture_begin(api))?;
            launch_all(api, members, case, place, group)?;
            for member in members.iter() {
                let blocks = u64::from(member.captured_blocks(api)?);
                most.fetch_max(blocks, Ordering::Relaxed);
            }
            Ok(0)
        })?;
        Ok(self.control.reduce(most.into_inner() as f64, ReduceOp::Max)? as u32)
    }

    fn forget_graphs(&mut self) -> Result<()> {
        let mut members = self.threads.iter_mut().flatten();
        members.try_for_each(|member| member.forget_graph(&self.api))
    }

    /// Runs the case on fresh random data with poisoned outputs; returns the number of wrong
    /// elements on all ranks.
    pub(super) fn check(&mut self, case: &Case, place: Place) -> Result<u64> {
        let (mut wrong, graph) = (0, self.options.graph > 0);
        for _ in 0..self.options.check {
            self.iteration += 1;
            let iteration = self.iteration;
            if graph {
                self.capture(case, place, 1, 1)?;
            }
            let own = self.on_threads(|api, members, _| {
                for member in members.iter() {
                    member.prepare(api, case, place, iteration)?;
                }
                if graph {
                    replay_all(api, members)?;
                } else {
                    launch_all(api, members, case, place, 1)?;
                }
                members.iter().try_for_each(|member| member.synchronize(api))?;
                members.iter().map(|member| member.wrong(api, case, place, iteration)).sum()
            })?;
            if graph {
                self.forget_graphs()?;
            }
            wrong += self.control.reduce(own as f64, ReduceOp::Sum)? as u64;
        }
        Ok(wrong)
    }
}

/// Launches the operation of all members so many times, in a group if that is more than one call.
fn launch_all(api: &Api, members: &[Member], case: &Case, place: Place, group: u32) -> Result<()> {
    let (first, grouped) = (members[0].rank, members.len() > 1 || group > 1);
    if grouped {
        // SAFETY: no pointers.
        unsafe { api.group_start(first) }?;
    }
    for _ in 0..group.max(1) {
        members.iter().try_for_each(|member| member.launch(api, case, place))?;
    }
    if grouped {
        // SAFETY: what the calls of the group name is alive until the streams are synchronised.
        unsafe { api.group_end(first) }?;
    }
    Ok(())
}

/// Launches every member's graph once; returns the time that the calls took.
fn replay_all(api: &Api, members: &[Member]) -> Result<Duration> {
    let start = Instant::now();
    members.iter().try_for_each(|member| member.replay(api))?;
    Ok(start.elapsed())
}
