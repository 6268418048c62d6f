//! Networks that reduce (CollNet): a plugin's `iallreduce` as an edge to a switch. What this rank
//! sends there comes back reduced with what the other ranks of its rail send.

mod functions;
mod group;

use super::instance::Unread;
use super::load::{Kind, structure};
use super::{Plugin, net};
use crate::error::Result;
use crate::log::{self, Level, Subsystem};
use crate::proxy::{CurrentCall, Ends, Reducing};
use functions::Functions;
use group::Unconnected;
use oxccl_net::Handle;
use oxccl_plan::{DataType, ReduceOp};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const KIND: Kind = Kind {
    name: "collnet",
    prefix: "libnccl-net",
    symbol: "ncclCollNetPlugin_v",
    versions: &[12, 11, 10, 9, 8],
    lists: true,
};

/// The advice of errors about networks that reduce.
const HINT: &str = "ask the vendor; NCCL_COLLNET_ENABLE=0 goes without";

/// Returns the plugins in the libraries of net plugins, which are loaded once per process.
fn plugins() -> &'static [Plugin<Unread<Functions>>] {
    static PLUGINS: OnceLock<Vec<Plugin<Unread<Functions>>>> = OnceLock::new();
    PLUGINS.get_or_init(|| {
        let attempts = net::libraries().iter().map(|l| structure(&KIND, l.clone(), false));
        // SAFETY: the symbol's name says what the structure is.
        let of = |found| unsafe { Unread::of(found) };
        attempts.filter_map(|a| Plugin::take((&KIND, Subsystem::Net), a, of).0).collect()
    })
}

/// The types and operations that a network reduces: a bit for each pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reductions(pub(crate) u64);

impl Reductions {
    /// The reductions that networks may offer, in the order of their numbers; an average is a sum
    /// that this library divides.
    const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];

    fn bit(dtype: DataType, op: ReduceOp) -> u64 {
        1 << (dtype as usize * Self::OPS.len() + op.combining() as usize)
    }

    /// Returns whether a type is reduced by an operation.
    pub(crate) fn contain(self, dtype: DataType, op: ReduceOp) -> bool {
        self.0 & Self::bit(dtype, op) != 0
    }

    /// Returns all pairs of a type and an operation.
    fn all() -> impl Iterator<Item = (DataType, ReduceOp)> {
        DataType::ALL.into_iter().flat_map(|dtype| Self::OPS.map(|op| (dtype, op)))
    }
}

/// How the messages of an edge are read: the size of their header in bytes, and what the operation
/// that a header tells reduces. Behind the header are the data, or, in a message without data, the
/// [`Unstaged`](oxccl_net::Unstaged) that says where they are.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    pub(crate) header_bytes: usize,
    pub(crate) reduction: fn(&[u8]) -> Option<(DataType, ReduceOp)>,
}

/// A network that reduces, before it is connected.
pub(crate) struct CollNet {
    /// The name that the plugin has given itself, and its version: what ranks of one group share.
    pub(crate) name: String,
    label: String,
    instance: Reducing<Unconnected>,
    /// The address of this rank.
    pub(crate) handle: Handle,
}

/// A network that reduces, connected: the edge to its switch, and its reductions.
pub(crate) type Connected = (Ends, Reductions);

impl CollNet {
    /// Starts the first plugin that can reduce messages of `bytes` bytes in memory of the host.
    /// `place` is the index of this rank among those of its host, by which devices are dealt out;
    /// `prepare` is called first, in the thread that calls the plugin.
    /// Fails with the reason why there is none. Blocks while the plugin starts; each of its calls
    /// may take as long as `limit`.
    pub(crate) fn start(
        (comm, place): (u64, usize),
        bytes: usize,
        limit: Duration,
        prepare: impl Fn() -> Result<()> + Send + Copy + 'static,
    ) -> std::result::Result<Self, String> {
        let mut why = "no library of NCCL_NET_PLUGIN has one".to_owned();
        for plugin in plugins() {
            match Self::begin(plugin, (comm, place), bytes, (limit, prepare)) {
                Ok(made) => return Ok(made),
                Err(error) => why = format!("{}: {error}", plugin.label),
            }
        }
        Err(why)
    }

    fn begin(
        plugin: &'static Plugin<Unread<Functions>>,
        (comm, place): (u64, usize),
        bytes: usize,
        (limit, prepare): (Duration, impl Fn() -> Result<()> + Send + 'static),
    ) -> Result<Self> {
        let current = CurrentCall::new(plugin.label.clone(), HINT).with_setup(limit);
        let current = Arc::new(current);
        let calls = current.clone();
        let make = move || {
            let failed = |e| oxccl_net::Error::new("preparing a thread", e, "");
            prepare().map_err(failed)?;
            Unconnected::start(plugin, calls, comm)
        };
        let instance = Reducing::start(make, current)?;
        let handle = instance.call(move |instance| instance.listen(place, bytes))?;
        let (name, version) = (&plugin.name, plugin.version);
        let (name, label) = (format!("{name} (v{version})"), plugin.label.clone());
        Ok(Self { name, label, instance, handle })
    }

    /// Connects the ranks of a rail, of which this is number `rank`, and asks for the reductions:
    /// there are plugins that know them only then. Waits for the others for `limit` at most, and as
    /// long as `stop` finds no reason against it.
    pub(crate) fn connect(
        self,
        (handles, rank): (Vec<Handle>, usize),
        format: Format,
        (limit, mut stop): (Duration, impl FnMut() -> Option<oxccl_net::Error>),
    ) -> oxccl_net::Result<Connected> {
        let (label, start) = (&self.label, Instant::now());
        let late = || {
            let cause = || format!("it has not returned for {:.1} s", limit.as_secs_f32());
            let error = || oxccl_net::Error::local(format!("connect of {label}"), cause(), HINT);
            (start.elapsed() >= limit).then(error)
        };
        let connect = move |instance: &mut Unconnected| instance.connect(handles, rank, format);
        let made = self.instance.connect(connect, || stop().or_else(late))?;
        let reductions = self.instance.call(|instance| instance.reductions())?;
        let text = format!("{} reduces between hosts", self.label);
        log::line(Level::Info, Subsystem::Net, &text);
        Ok((made, reductions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_a_bit_and_an_average_is_a_sum() {
        let bits = Reductions::all().map(|(dtype, op)| Reductions::bit(dtype, op));
        assert_eq!(bits.fold(0, |all, bit| all | bit), (1 << 48) - 1);
        let sums = Reductions(Reductions::bit(DataType::Float16, ReduceOp::Sum));
        assert!(sums.contain(DataType::Float16, ReduceOp::Avg));
        assert!(!sums.contain(DataType::Float16, ReduceOp::Max));
        assert!(!sums.contain(DataType::Bfloat16, ReduceOp::Sum));
    }
}
