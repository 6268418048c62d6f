//! The options that a communicator's creator may ask for: the fields of `ncclConfig_t`, their
//! ranges, the variables that override them, and why some have no effect on the host device.

use super::memory::SIGNALS_PER_CONTEXT;
use crate::config::Config;
use crate::config::accepted::{
    CTAS, NO_CFT, NO_NVLINK, NO_NVLS, NO_SHARING, ORDERED, PREPARED, PROXIES, SIGNALS, STREAMS,
};
use crate::device::Wishes;
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use crate::op::EFFICIENT_BLOCKS;
use std::time::Duration;

/// NCCL's upper limit of thread blocks and channels.
const MAX_CTAS: i32 = 64;
/// The policy bit that prefers few thread blocks.
const POLICY_EFFICIENCY: i32 = 1;
/// The policy bit that prefers no thread blocks.
const POLICY_ZERO: i32 = 2;

/// The options of a communicator; the defaults are NCCL's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// True if creation and destruction of a communicator wait until they are done.
    pub blocking: bool,
    /// Thread blocks per cluster; 0: no clusters.
    pub cga_cluster_size: i32,
    /// The minimum number of thread blocks of a kernel.
    pub min_ctas: i32,
    /// The maximum number of thread blocks of a collective's kernel; the smallest value of all
    /// ranks counts.
    pub max_ctas: i32,
    /// The network plugin to use; `None`: the first that works.
    pub net_name: Option<String>,
    /// True if communicators that are split off may share resources.
    pub split_share: bool,
    /// Traffic class of network connections; `None`: the plugin decides.
    pub traffic_class: Option<i32>,
    /// A name for logs.
    pub name: Option<String>,
    /// True if switches may reduce.
    pub collnet_enable: bool,
    /// Policy bits: 1 prefers few thread blocks, 2 prefers none.
    pub cta_policy: i32,
    /// True if communicators of the survivors of a shrink may share resources.
    pub shrink_share: bool,
    /// Thread blocks for NVLink multicast; `None`: automatic.
    pub nvls_ctas: Option<i32>,
    /// Channels for a peer over the network; `None`: automatic.
    pub channels_per_net_peer: Option<i32>,
    /// True if the schedule of sends prefers NVLink.
    pub nvlink_centric_sched: bool,
    /// The use of graphs: 0 for none, 1 for one graph at a time, 2 for graphs and other work at
    /// once.
    pub graph_usage_mode: i32,
    /// The number of contexts for one-sided operations; 0 forbids these operations.
    pub rma_contexts: i32,
    /// The maximum number of peers that sends and receives address at a time; `None`: all ranks.
    pub max_p2p_peers: Option<i32>,
    /// True if work in graphs keeps the order of the communicator's other work.
    pub graph_stream_ordering: bool,
    /// True if communicators of a device run in the order of the program's calls.
    pub launch_order_implicit: bool,
    /// The number of signals of a context; `None`: all that there are.
    pub rma_signals: Option<i32>,
    /// True if one-sided operations are prepared when the communicator is made.
    pub rma_eager_init: bool,
    /// The use of counted transfers of NVLink switches; `None`: automatic.
    pub host_cft_mode: Option<i32>,
    /// The uses that NVLink multicast is not made of, a bit each; `None`: automatic.
    pub nvls_host_mode: Option<i32>,
    /// The longest time that creation waits for the other ranks; `None`: the value of
    /// `OXCCL_INIT_TIMEOUT`.
    pub init_timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            blocking: true,
            cga_cluster_size: 0,
            min_ctas: 1,
            max_ctas: MAX_CTAS,
            net_name: None,
            split_share: false,
            traffic_class: None,
            name: None,
            collnet_enable: false,
            cta_policy: 0,
            shrink_share: false,
            nvls_ctas: None,
            channels_per_net_peer: None,
            nvlink_centric_sched: false,
            graph_usage_mode: 2,
            rma_contexts: 1,
            max_p2p_peers: None,
            graph_stream_ordering: true,
            launch_order_implicit: false,
            rma_signals: None,
            rma_eager_init: false,
            host_cft_mode: None,
            nvls_host_mode: None,
            init_timeout: None,
        }
    }
}

/// A numeric field of `ncclConfig_t`.
struct Field {
    /// The name of the field.
    name: &'static str,
    /// The variable that overrides the field, without `NCCL_`; empty if there is none.
    variable: &'static str,
    /// The smallest and the largest value that the field accepts.
    range: (i32, i32),
    /// Stores a value of that range.
    set: fn(&mut Options, i32),
    /// Returns the value of the field; `None` if it is left to the library.
    get: fn(&Options) -> Option<i32>,
    /// The reason why the field has no effect on the host device; empty if it has an effect.
    moot: &'static str,
}

const ANY: (i32, i32) = (i32::MIN, i32::MAX);
const SWITCH: (i32, i32) = (0, 1);
const COUNT: (i32, i32) = (1, i32::MAX);

macro_rules! fields {
    ($($name:literal, $variable:literal, $range:expr, $kind:ident $field:ident, $moot:expr;)*) => {
        &[$(Field {
            name: $name,
            variable: $variable,
            range: $range,
            set: |o, v| o.$field = fields!(@set $kind v),
            get: |o| fields!(@get $kind o.$field),
            moot: $moot,
        },)*]
    };
    (@set flag $v:ident) => { $v != 0 };
    (@set number $v:ident) => { $v };
    (@set optional $v:ident) => { Some($v) };
    (@get flag $v:expr) => { Some(i32::from($v)) };
    (@get number $v:expr) => { Some($v) };
    (@get optional $v:expr) => { $v };
}

static FIELDS: &[Field] = fields! {
    "blocking", "COMM_BLOCKING", SWITCH, flag blocking, "";
    "cgaClusterSize", "CGA_CLUSTER_SIZE", (0, i32::MAX), number cga_cluster_size, CTAS;
    "minCTAs", "MIN_CTAS", COUNT, number min_ctas, CTAS;
    "maxCTAs", "MAX_CTAS", COUNT, number max_ctas, "";
    "splitShare", "COMM_SPLIT_SHARE_RESOURCES", SWITCH, flag split_share, NO_SHARING;
    "trafficClass", "", ANY, optional traffic_class, "";
    "collnetEnable", "COLLNET_ENABLE", SWITCH, flag collnet_enable, "";
    "CTAPolicy", "CTA_POLICY", (0, POLICY_EFFICIENCY | POLICY_ZERO), number cta_policy, "";
    "shrinkShare", "COMM_SHRINK_SHARE_RESOURCES", SWITCH, flag shrink_share, NO_SHARING;
    "nvlsCTAs", "NVLS_NCHANNELS", COUNT, optional nvls_ctas, NO_NVLS;
    "nChannelsPerNetPeer", "NCHANNELS_PER_NET_PEER", (1, MAX_CTAS), optional channels_per_net_peer,
        CTAS;
    "nvlinkCentricSched", "NVLINK_UTIL_CENTRIC_SCHED_ENABLE", SWITCH, flag nvlink_centric_sched,
        NO_NVLINK;
    "graphUsageMode", "", (0, 2), number graph_usage_mode, "";
    "numRmaCtx", "NUM_RMA_CTX", (0, i32::MAX), number rma_contexts, "";
    "maxP2pPeers", "P2P_MAX_PEERS", COUNT, optional max_p2p_peers, PROXIES;
    "graphStreamOrdering", "GRAPH_STREAM_ORDERING", SWITCH, flag graph_stream_ordering, ORDERED;
    "launchOrderImplicit", "LAUNCH_ORDER_IMPLICIT", SWITCH, flag launch_order_implicit,
        STREAMS;
    "numRmaSig", "", (1, SIGNALS_PER_CONTEXT as i32), optional rma_signals, SIGNALS;
    "rmaEagerInit", "", SWITCH, flag rma_eager_init, PREPARED;
    "hostCftMode", "", (1, 3), optional host_cft_mode, NO_CFT;
    "nvlsHostMode", "", (0, i32::MAX), optional nvls_host_mode, NO_NVLS;
};

impl Field {
    fn accepts(&self, value: i32) -> bool {
        (self.range.0..=self.range.1).contains(&value)
    }

    fn expected(&self) -> String {
        match self.range {
            SWITCH => "0 or 1".to_owned(),
            (min, i32::MAX) => format!("at least {min}"),
            (min, max) => format!("{min} to {max}"),
        }
    }
}

/// The field whose variable may also have names.
const POLICY: &str = "CTAPolicy";

/// Parses a number as NCCL's variables have it. Policies may also be names, joined by `|`.
fn number(field: &Field, text: &str) -> Option<i32> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    if field.name != POLICY {
        return None;
    }
    text.split('|').try_fold(0, |bits, name| match name.trim().to_ascii_uppercase().as_str() {
        "DEFAULT" => Some(bits),
        "EFFICIENCY" => Some(bits | POLICY_EFFICIENCY),
        "ZERO" => Some(bits | POLICY_ZERO),
        _ => None,
    })
}

impl Options {
    /// Returns the longest time that creation waits for the other ranks.
    pub fn init_limit(&self) -> Duration {
        self.init_timeout.unwrap_or_else(|| Config::get().init_timeout)
    }

    /// Sets a numeric field by its name in `ncclConfig_t`, for the function that was called.
    ///
    /// Fails with the field, the value and the range when the value lies outside.
    pub fn set(&mut self, name: &str, value: i32, function: &'static str) -> Result<()> {
        let Some(field) = FIELDS.iter().find(|f| f.name == name) else {
            return Err(Error::Internal { what: format!("no field of ncclConfig_t is {name}") });
        };
        if !field.accepts(value) {
            let expected = format!("{}, or NCCL_CONFIG_UNDEF_INT", field.expected());
            return Err(Error::argument(function, field.name, value, expected));
        }
        (field.set)(self, value);
        Ok(())
    }

    /// Overrides the program's options by variables, and settles contradictions as NCCL does.
    ///
    /// Values that cannot be used are logged and ignored.
    pub fn with_variables(mut self, config: &Config) -> Self {
        let warnings = self.override_by(&|name| config.given(name));
        warnings.iter().for_each(|w| log::line(Level::Warn, Subsystem::Env, w));
        self
    }

    /// Returns why values of variables are ignored that could be read, a text `NAME=…` for each.
    pub fn ignored(config: &Config) -> Vec<String> {
        Self::default().override_by(&|name| config.given(name))
    }

    fn override_by(&mut self, lookup: &impl Fn(&str) -> Option<String>) -> Vec<String> {
        let mut warnings = Vec::new();
        for field in FIELDS.iter().filter(|f| !f.variable.is_empty()) {
            let variable = format!("NCCL_{}", field.variable);
            let Some(text) = lookup(&variable) else { continue };
            match number(field, &text).filter(|&n| field.accepts(n)) {
                Some(value) => (field.set)(self, value),
                None => warnings.push(format!(
                    "{variable}={text} is ignored: {} takes {}{}",
                    field.name,
                    field.expected(),
                    if field.name == POLICY { ", or DEFAULT, EFFICIENCY, ZERO" } else { "" }
                )),
            }
        }
        if let Some(text) = lookup("NCCL_GRAPH_MIXING_SUPPORT") {
            match text.trim() {
                "0" => self.graph_usage_mode = 0,
                "1" => self.graph_usage_mode = 2,
                _ => warnings
                    .push(format!("NCCL_GRAPH_MIXING_SUPPORT={text} is ignored: it takes 0 or 1")),
            }
        }
        if let Some(name) = lookup("NCCL_NET") {
            self.net_name = Some(name);
        }
        self.settle(&mut warnings);
        warnings
    }

    fn settle(&mut self, warnings: &mut Vec<String>) {
        self.max_ctas = self.max_ctas.min(MAX_CTAS);
        self.min_ctas = self.min_ctas.min(self.max_ctas);
        if self.cta_policy & POLICY_ZERO != 0 && self.cta_policy & POLICY_EFFICIENCY != 0 {
            self.cta_policy = POLICY_ZERO;
            let text = "CTAPolicy has both NCCL_CTA_POLICY_ZERO and _EFFICIENCY: ZERO is taken";
            warnings.push(text.to_owned());
        }
        if self.graph_usage_mode == 2 && !self.graph_stream_ordering {
            self.graph_stream_ordering = true;
            let text = "graphStreamOrdering 0 needs graphUsageMode 0 or 1: it stays 1";
            warnings.push(text.to_owned());
        }
    }

    /// Returns the options that concern the device.
    pub(super) fn of_device(&self) -> Wishes {
        let efficient = self.cta_policy & POLICY_EFFICIENCY != 0;
        let most = if efficient { u32::from(EFFICIENT_BLOCKS) } else { u32::MAX };
        Wishes {
            max_blocks: u32::try_from(self.max_ctas).unwrap_or(1).min(most),
            spares_blocks: self.cta_policy & POLICY_ZERO != 0,
            mixes_graphs: self.graph_usage_mode == 2,
        }
    }

    /// Returns a line for each field that is not at its default and has no effect on the host
    /// device. The line says why.
    pub fn without_effect(&self) -> Vec<String> {
        let default = Self::default();
        let moot = FIELDS.iter().filter(|f| !f.moot.is_empty());
        let changed = moot.filter(|f| (f.get)(self) != (f.get)(&default));
        let line = |name: &str, value: &str, why: &str| {
            format!("option {name} = {value} has no effect: {why}")
        };
        let numbers = changed.map(|f| {
            let value = (f.get)(self).map_or("undefined".to_owned(), |v| v.to_string());
            line(f.name, &value, f.moot)
        });
        numbers.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Status};

    const F: &str = "ncclCommInitRankConfig";

    fn lookup<'a>(values: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| values.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
    }

    #[test]
    fn each_field_takes_its_range_and_names_itself_otherwise() {
        for field in FIELDS {
            let (min, max) = field.range;
            for value in [min, max] {
                let mut options = Options::default();
                options.set(field.name, value, F).unwrap();
                assert_eq!((field.get)(&options), Some(value), "{}", field.name);
            }
            for value in [min.checked_sub(1), max.checked_add(1)].into_iter().flatten() {
                let mut options = Options::default();
                let error = options.set(field.name, value, F).unwrap_err().to_string();
                let parts = [F, field.name, &value.to_string(), &field.expected()];
                assert!(parts.iter().all(|p| error.contains(p)), "{error}");
                assert_eq!(options, Options::default());
            }
        }
    }

    #[test]
    fn variables_override_and_bad_ones_are_named() {
        let mut options = Options { blocking: true, min_ctas: 2, ..Options::default() };
        let values = [
            ("NCCL_COMM_BLOCKING", "0"),
            ("NCCL_NUM_RMA_CTX", "3"),
            ("NCCL_CTA_POLICY", "default|efficiency"),
            ("NCCL_NET", "Socket"),
            ("NCCL_GRAPH_MIXING_SUPPORT", "0"),
            ("NCCL_GRAPH_STREAM_ORDERING", "0"),
            ("NCCL_MIN_CTAS", "0"),
            ("NCCL_COLLNET_ENABLE", "perhaps"),
        ];
        let warnings = options.override_by(&lookup(&values));
        let expected = Options {
            blocking: false,
            min_ctas: 2,
            rma_contexts: 3,
            cta_policy: POLICY_EFFICIENCY,
            net_name: Some("Socket".to_owned()),
            graph_usage_mode: 0,
            graph_stream_ordering: false,
            ..Options::default()
        };
        assert_eq!(options, expected);
        assert_eq!(options.of_device().max_blocks, u32::from(EFFICIENT_BLOCKS));
        assert_eq!(Options::default().of_device().max_blocks, MAX_CTAS as u32);
        let texts = ["NCCL_MIN_CTAS=0 is ignored", "NCCL_COLLNET_ENABLE=perhaps is ignored"];
        assert!(warnings.len() == 2 && warnings.iter().zip(texts).all(|(w, t)| w.contains(t)));
    }

    #[test]
    fn each_variable_is_a_row_that_names_its_field_and_says_the_same_of_its_effect() {
        let row = |variable: &str| {
            let name = format!("NCCL_{variable}");
            config::variables().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}"))
        };
        for Field { name, variable, moot, .. } in FIELDS.iter().filter(|f| !f.variable.is_empty()) {
            let row = row(variable);
            assert!(row.doc.starts_with(&format!("Overrides `{name}`")), "{}", row.doc);
            let status = if moot.is_empty() { Status::Honoured } else { Status::Accepted(moot) };
            assert_eq!(row.status, status, "{name}");
        }
        for (variable, name, status) in [
            ("GRAPH_MIXING_SUPPORT", "graphUsageMode", Status::Honoured),
            ("NET", "netName", Status::Honoured),
        ] {
            let row = row(variable);
            assert!(row.doc.starts_with(&format!("Overrides `{name}`")), "{}", row.doc);
            assert_eq!(row.status, status);
        }
    }

    #[test]
    fn contradictions_are_settled_as_nccl_does() {
        let mut options = Options {
            min_ctas: 100,
            max_ctas: 80,
            cta_policy: POLICY_ZERO | POLICY_EFFICIENCY,
            graph_stream_ordering: false,
            ..Options::default()
        };
        assert_eq!(options.override_by(&|_| None).len(), 2);
        let expected = Options { min_ctas: 64, cta_policy: POLICY_ZERO, ..Options::default() };
        assert_eq!(options, expected);
    }

    #[test]
    fn what_has_no_effect_says_why() {
        assert!(Options::default().without_effect().is_empty());
        let (name, net_name) = (Some("a".to_owned()), Some("IB".to_owned()));
        let effective = Options { blocking: false, name, net_name, ..Options::default() };
        assert!(effective.without_effect().is_empty());
        let mut all = effective;
        for field in FIELDS.iter().filter(|f| !f.moot.is_empty()) {
            let different = if (field.get)(&all) == Some(1) { 0 } else { 1 };
            (field.set)(&mut all, different);
            if field.name == "minCTAs" {
                all.min_ctas = 2;
            }
        }
        let lines = all.without_effect();
        let fields = FIELDS.iter().filter(|f| !f.moot.is_empty()).count();
        assert_eq!(lines.len(), fields, "{lines:?}");
        assert!(lines.iter().all(|l| l.contains(" has no effect: ")));
    }

    #[test]
    fn the_manual_lists_every_field_with_what_it_does_here() {
        let manual = include_str!("../../../docs/nccl.md");
        for field in FIELDS {
            let variable = match field.variable {
                "" => String::new(),
                name => format!("`NCCL_{name}`"),
            };
            let mut line = format!("| {} | {variable} | {} | ", field.name, field.expected());
            if !field.moot.is_empty() {
                line += &format!("no effect: {} |", field.moot);
            }
            assert!(manual.contains(&line), "docs/nccl.md lacks: {line}");
        }
        for text in ["| netName | `NCCL_NET` | ", "| commName | "] {
            assert!(manual.contains(text), "docs/nccl.md lacks: {text}");
        }
    }
}
