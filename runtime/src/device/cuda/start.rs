//! The numbers at which a rank's counters begin.

use crate::device::cuda::driver::{Relaxed, cu};
use crate::device::cuda::layout::Private;
use crate::device::cuda::rank::CudaRank;
use crate::error::Result;
use oxccl_kernels::abi;

impl CudaRank {
    /// Sets all counters to a number, before any peer writes here: zero, except in tests of
    /// counters that wrap around.
    pub fn start(&mut self, number: u64) -> Result<()> {
        if number == 0 {
            return Ok(());
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.begins_at = number;
        }
        let _context = self.gpu.enter()?;
        let _relaxed = Relaxed::begin()?;
        let peers = self.network().map_or(self.nranks, |network| network.peers_of(self.nranks));
        let parts = Private::new(peers, self.view.nranks, 0);
        let words = vec![number; abi::WORDS_BYTES / size_of::<u64>()];
        let counters = || abi::Counters {
            packets: number,
            phase: number,
            slot_need: [number; 2],
            agreements: number,
            ..abi::Counters::default()
        };
        let counters: Vec<_> = (0..abi::MAX_CHANNELS).map(|_| counters()).collect();
        let lane = || abi::LaneCounters { messages: number, room: number, ..Default::default() };
        let lanes: Vec<_> = (0..parts.lanes).map(|_| lane()).collect();
        let signals = [[number; abi::USER_SIGNALS]; abi::MAX_RANKS];
        let common = abi::Shared {
            fault: abi::FAULT_NONE,
            written: 0,
            begun: number,
            operations: number,
            compared: number,
            called: [abi::Called::default(); abi::ANNOUNCEMENTS],
            in_place: 0,
            moved: 0,
            told_input: 0,
            told_output: 0,
            next_look_ns: 0,
            told: 0,
            exchanges: 0,
            tellings: 0,
            next_telling_ns: 0,
            limit_ns: 0,
            left: 0,
            line_users: 0,
            unused: 0,
            signals_given: signals,
            signals_taken: signals,
        };
        let (view, at) = (&self.view, self.view.shared[self.view.rank as usize]);
        let line = abi::LineCounters { put: number, taken: number, ..Default::default() };
        let edges = (view.nranks * view.line_channels) as usize;
        upload(view.line_counters, &vec![line; edges])?;
        upload(at + view.line_credits_at, &vec![number; edges])?;
        upload(at, &words)?;
        upload(view.counters, &counters)?;
        upload(view.counters + parts.lanes_at, &lanes)?;
        upload(view.common, &[common])
    }
}

/// Copies to memory of the GPU. Requires its context to be current on this thread.
pub(super) fn upload<T>(to: u64, from: &[T]) -> Result<()> {
    // SAFETY: memory of this size by the callers, and what is copied lives until it is done.
    unsafe { cu!(cuMemcpyHtoD_v2(to, from.as_ptr().cast(), size_of_val(from))) }
}
