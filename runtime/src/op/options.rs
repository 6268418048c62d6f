//! The options of one collective, which its caller gives beyond the arguments.

use oxccl_plan::selection::Selection;
use std::time::Duration;

/// The policy of one call about thread blocks, as `CTAPolicy` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockPolicy {
    /// Neither of the others.
    Default = 1,
    /// Few thread blocks.
    Efficiency = 2,
    /// No thread blocks, where copy engines can do the work.
    Zero = 3,
}

/// The most thread blocks under [`BlockPolicy::Efficiency`]: half of the usual ones, which reach
/// three quarters of their speed or more (docs/performance.md).
pub const EFFICIENT_BLOCKS: u8 = 16;

/// The options of one call. The default is those of a plain call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallOptions {
    /// The algorithms to choose from; `None`: those of the communicator.
    pub selection: Option<Selection>,
    /// True if the call fails where no algorithm of the selection serves.
    pub forced: bool,
    /// True if only algorithms that always give the same bits may reduce.
    pub deterministic: bool,
    /// The maximum number of thread blocks, 1 to 64; `None`: that of the communicator.
    pub max_blocks: Option<u8>,
    /// The policy about thread blocks; `None`: that of the communicator.
    pub policy: Option<BlockPolicy>,
    /// The longest time that the call waits; `None`: that of the communicator.
    pub limit: Option<Duration>,
    /// The number by which the call is known to profilers and in records; 0 for none.
    pub tag: u64,
    /// True if an event is recorded behind the call.
    pub has_event: bool,
}

/// The number of bits of [`CallOptions::agreed`].
pub(crate) const AGREED_BITS: u32 = 10;
/// The places of the policy and of the event.
const POLICY_AT: u32 = 7;
const EVENT_AT: u32 = 9;

impl CallOptions {
    /// Returns the most thread blocks that the call may take; `None`: those of the communicator.
    pub fn most_blocks(&self) -> Option<u8> {
        let efficient = self.policy == Some(BlockPolicy::Efficiency);
        self.max_blocks.into_iter().chain(efficient.then_some(EFFICIENT_BLOCKS)).min()
    }

    /// Returns the options that all ranks have to give alike, in [`AGREED_BITS`] bits; 0 for a
    /// plain call. Algorithms are compared by themselves, and the other options are each rank's
    /// own.
    pub(crate) fn agreed(&self) -> u16 {
        let blocks = u16::from(self.max_blocks.unwrap_or(0));
        let policy = self.policy.map_or(0, |policy| policy as u16);
        blocks | policy << POLICY_AT | u16::from(self.has_event) << EVENT_AT
    }

    /// Returns the part of a text that tells what [`agreed`](Self::agreed) has; empty for a plain
    /// call.
    pub(crate) fn agreed_text(bits: u16) -> String {
        let mut text = match bits & ((1 << POLICY_AT) - 1) {
            0 => String::new(),
            blocks => format!(", maxCTAs {blocks}"),
        };
        text += match bits >> POLICY_AT & 3 {
            0 => "",
            1 => ", CTAPolicy DEFAULT",
            2 => ", CTAPolicy EFFICIENCY",
            _ => ", CTAPolicy ZERO",
        };
        if bits >> EVENT_AT & 1 == 1 {
            text += ", with a launchCompletionEvent";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_and_a_maximum_both_bound_the_thread_blocks() {
        let most = |max_blocks, policy| {
            CallOptions { max_blocks, policy, ..CallOptions::default() }.most_blocks()
        };
        let efficient = Some(BlockPolicy::Efficiency);
        assert_eq!([most(None, None), most(Some(4), None)], [None, Some(4)]);
        assert_eq!([most(None, efficient), most(Some(4), efficient)], [Some(16), Some(4)]);
        assert_eq!(most(Some(20), efficient), Some(16));
        assert_eq!(most(None, Some(BlockPolicy::Zero)), None);
    }

    #[test]
    fn what_ranks_agree_on_is_told_and_fits_its_bits() {
        let mut seen = std::collections::HashSet::new();
        let policies = [BlockPolicy::Default, BlockPolicy::Efficiency, BlockPolicy::Zero];
        for max_blocks in (1..=64).map(Some).chain([None]) {
            for policy in policies.map(Some).into_iter().chain([None]) {
                for has_event in [false, true] {
                    let options =
                        CallOptions { max_blocks, policy, has_event, ..CallOptions::default() };
                    let bits = options.agreed();
                    assert!(bits < 1 << AGREED_BITS && seen.insert(bits), "{options:?}");
                    assert_eq!(CallOptions::agreed_text(bits).is_empty(), bits == 0);
                }
            }
        }
        assert_eq!(CallOptions::default().agreed(), 0);
        assert_eq!(CallOptions::agreed_text(0), "");
        let all = CallOptions {
            max_blocks: Some(4),
            policy: Some(BlockPolicy::Zero),
            has_event: true,
            ..CallOptions::default()
        };
        let text = ", maxCTAs 4, CTAPolicy ZERO, with a launchCompletionEvent";
        assert_eq!(CallOptions::agreed_text(all.agreed()), text);
    }
}
