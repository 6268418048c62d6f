//! The versioned structures. Callers of any NCCL from 2.14 on state the version that they were
//! built with, and only the fields that this version knew are read.

use oxccl_runtime::comm::Options;
use oxccl_runtime::config::Config;
use oxccl_runtime::error::{Error, Result};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::offset_of;
use std::ptr;
use std::time::Duration;

/// Marks an ncclConfig_t that its initializer made.
pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;
/// Marks an ncclSimInfo_t that its initializer made.
const SIM_MAGIC: c_uint = 0x7468_5283;
/// A field that is left to the library.
pub(super) const UNDEFINED: c_int = c_int::MIN;

/// The options of a new communicator; begin with NCCL_CONFIG_INITIALIZER. Fields left alone take
/// NCCL's defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclConfig_v23100 {
    /// Set by the initializer.
    pub size: usize,
    /// Set by the initializer.
    pub magic: c_uint,
    /// Set by the initializer.
    pub version: c_uint,
    /// 1: creation and end wait until they are done (default); 0: they do not.
    pub blocking: c_int,
    /// Thread blocks per cluster, from 0 on.
    pub cgaClusterSize: c_int,
    /// Fewest thread blocks of a kernel, from 1 on.
    pub minCTAs: c_int,
    /// Most thread blocks of a kernel, from 1 on; at least minCTAs.
    pub maxCTAs: c_int,
    /// The network plugin to use; null: the first that works.
    pub netName: *const c_char,
    /// 1: communicators split off may share resources.
    pub splitShare: c_int,
    /// Traffic class of network connections.
    pub trafficClass: c_int,
    /// A name for logs, or null.
    pub commName: *const c_char,
    /// 1: switches may reduce.
    pub collnetEnable: c_int,
    /// Bits NCCL_CTA_POLICY_….
    pub CTAPolicy: c_int,
    /// 1: communicators that survivors make may share resources.
    pub shrinkShare: c_int,
    /// Thread blocks for NVLink multicast, from 1 on.
    pub nvlsCTAs: c_int,
    /// Channels for a peer over the network, 1 to 64.
    pub nChannelsPerNetPeer: c_int,
    /// 1: the schedule of sends prefers NVLink.
    pub nvlinkCentricSched: c_int,
    /// 0: no graphs; 1: one graph at a time; 2: graphs and other work at once (default).
    pub graphUsageMode: c_int,
    /// Contexts for one-sided operations (default 1); 0 forbids them.
    pub numRmaCtx: c_int,
    /// Most peers that sends and receives address at a time, from 1 on.
    pub maxP2pPeers: c_int,
    /// 1: work in graphs keeps the order of the communicator's other work (default).
    pub graphStreamOrdering: c_int,
    /// 1: communicators of a device run in the order of the program's calls.
    pub launchOrderImplicit: c_int,
    /// Signals of a context for one-sided operations, 1 to 16.
    pub numRmaSig: c_int,
    /// 1: one-sided operations are prepared when the communicator is made.
    pub rmaEagerInit: c_int,
    /// An ncclHostCftMode_t.
    pub hostCftMode: c_int,
    /// Bits of ncclNvlsHostMode_t.
    pub nvlsHostMode: c_int,
}

/// Values of hostCftMode: counted transfers of NVLink switches.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclHostCftMode_t {
    /// Left to the library.
    ncclHostCftDefault = -2147483648,
    /// On.
    ncclHostCftEnable = 1,
    /// Off.
    ncclHostCftDisable = 2,
    /// On where it is possible.
    ncclHostCftFallback = 3,
}

/// Bits of nvlsHostMode: what NVLink multicast is not used for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ncclNvlsHostMode_t {
    /// Left to the library.
    ncclNvlsHostModeDefault = -2147483648,
    /// Used for all.
    ncclNvlsHostModeEnable = 0,
    /// Not for transport and registered buffers.
    ncclNvlsHostModeDisableTransport = 1,
    /// Not for symmetric kernels and copy engines.
    ncclNvlsHostModeDisableSymmetricMultimem = 2,
    /// Used for nothing.
    ncclNvlsHostModeDisable = 0x7fff_ffff,
}

/// The options of a new communicator.
pub type ncclConfig_t = ncclConfig_v23100;

/// The answer of ncclGroupSimulateEnd; begin with NCCL_SIM_INFO_INITIALIZER.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclSimInfo_v22200 {
    /// Set by the initializer.
    pub size: usize,
    /// Set by the initializer.
    pub magic: c_uint,
    /// Set by the initializer.
    pub version: c_uint,
    /// Out: the time that the group would take, in microseconds.
    pub estimatedTime: f32,
}

/// The answer of ncclGroupSimulateEnd.
pub type ncclSimInfo_t = ncclSimInfo_v22200;

/// The sizes that are accepted: from that of 2.14 to those of versions far beyond this one.
const SIZES: std::ops::RangeInclusive<usize> = 24..=4096;

const INITIAL: ncclConfig_t = ncclConfig_v23100 {
    size: size_of::<ncclConfig_t>(),
    magic: NCCL_API_MAGIC,
    version: super::info::NCCL_VERSION_CODE as c_uint,
    blocking: UNDEFINED,
    cgaClusterSize: UNDEFINED,
    minCTAs: UNDEFINED,
    maxCTAs: UNDEFINED,
    netName: ptr::null(),
    splitShare: UNDEFINED,
    trafficClass: UNDEFINED,
    commName: ptr::null(),
    collnetEnable: UNDEFINED,
    CTAPolicy: UNDEFINED,
    shrinkShare: UNDEFINED,
    nvlsCTAs: UNDEFINED,
    nChannelsPerNetPeer: UNDEFINED,
    nvlinkCentricSched: UNDEFINED,
    graphUsageMode: UNDEFINED,
    numRmaCtx: UNDEFINED,
    maxP2pPeers: UNDEFINED,
    graphStreamOrdering: UNDEFINED,
    launchOrderImplicit: UNDEFINED,
    numRmaSig: UNDEFINED,
    rmaEagerInit: UNDEFINED,
    hostCftMode: UNDEFINED,
    nvlsHostMode: UNDEFINED,
};

impl Default for ncclConfig_v23100 {
    /// Returns what NCCL_CONFIG_INITIALIZER makes.
    fn default() -> Self {
        INITIAL
    }
}

/// Name, first version and value of a numeric field.
type Field = (&'static str, c_uint, fn(&ncclConfig_t) -> c_int);

/// The numeric fields. A field that took the place of padding needs its version, not only the
/// structure's size. trafficClass came with 2.26: callers built with 2.25 have padding there,
/// although NCCL reads it. The last five came with 2.31 and 2.32: callers built with 2.31 may have
/// padding in the place of some.
const FIELDS: [Field; 21] = [
    ("blocking", 21400, |c| c.blocking),
    ("cgaClusterSize", 21700, |c| c.cgaClusterSize),
    ("minCTAs", 21700, |c| c.minCTAs),
    ("maxCTAs", 21700, |c| c.maxCTAs),
    ("splitShare", 21800, |c| c.splitShare),
    ("trafficClass", 22600, |c| c.trafficClass),
    ("collnetEnable", 22700, |c| c.collnetEnable),
    ("CTAPolicy", 22700, |c| c.CTAPolicy),
    ("shrinkShare", 22700, |c| c.shrinkShare),
    ("nvlsCTAs", 22700, |c| c.nvlsCTAs),
    ("nChannelsPerNetPeer", 22800, |c| c.nChannelsPerNetPeer),
    ("nvlinkCentricSched", 22800, |c| c.nvlinkCentricSched),
    ("graphUsageMode", 22900, |c| c.graphUsageMode),
    ("numRmaCtx", 22900, |c| c.numRmaCtx),
    ("maxP2pPeers", 23000, |c| c.maxP2pPeers),
    ("graphStreamOrdering", 23005, |c| c.graphStreamOrdering),
    ("launchOrderImplicit", 23200, |c| c.launchOrderImplicit),
    ("numRmaSig", 23200, |c| c.numRmaSig),
    ("rmaEagerInit", 23200, |c| c.rmaEagerInit),
    ("hostCftMode", 23200, |c| c.hostCftMode),
    ("nvlsHostMode", 23200, |c| c.nvlsHostMode),
];

/// First versions with netName and commName.
const NET_NAME: c_uint = 21700;
const COMM_NAME: c_uint = 22700;

/// Returns the options of a configuration, overridden by the environment variables. Strings are
/// copied.
///
/// Without a configuration, a child has its parent's options (`inherited`), others the defaults.
/// With one, fields that are left alone take the defaults, for children too, as in NCCL.
///
/// # Safety
/// `config` is null, or points to an ncclConfig_t of any version from 2.14 on.
pub(crate) unsafe fn read(
    config: *const ncclConfig_t,
    function: &'static str,
    inherited: Option<&Options>,
) -> Result<Options> {
    let options = if config.is_null() {
        inherited.cloned().unwrap_or_default()
    } else {
        // SAFETY: by the contract of this function.
        unsafe { parse(config, function)? }
    };
    let mut options = options.with_variables(Config::get());
    options.init_timeout = INIT_TIMEOUT.get().or(options.init_timeout);
    Ok(options)
}

thread_local! {
    /// The limit that oxcclSetInitTimeout set.
    pub(crate) static INIT_TIMEOUT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Returns the size and version of a structure; all versioned structures begin alike. Nothing is
/// read beyond the size that the structure states.
///
/// # Safety
/// `from` points to a size, and to as many bytes as that says where it is 24 to 4096.
pub(crate) unsafe fn header(
    from: *const u8,
    expected: c_uint,
    (function, argument, initializer): (&'static str, &'static str, &'static str),
) -> Result<(usize, c_uint)> {
    // SAFETY: by the contract of this function.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    // The size of a structure is a multiple of its alignment.
    if !SIZES.contains(&size) || size % 8 != 0 {
        let got = format!("a structure of {size} bytes");
        let expected = format!("a size that {initializer} sets, from 24 bytes on");
        return Err(Error::argument(function, argument, got, expected));
    }
    // SAFETY: the structure has at least 24 bytes.
    let (magic, version) = unsafe {
        let word = |at| from.add(at).cast::<c_uint>().read_unaligned();
        (word(8), word(12))
    };
    if magic != expected {
        let got = format!("a structure with magic {magic:#x}");
        let expected = format!("magic {expected:#x}: begin with {initializer}");
        return Err(Error::argument(function, argument, got, expected));
    }
    Ok((size, version))
}

/// Returns the options that a structure asks for. Fails if no initializer made the structure, or a
/// field is out of its range.
///
/// # Safety
/// `config` points to an ncclConfig_t of any version from 2.14 on: to a size, to as many bytes as
/// that says where it is 24 to 4096, and its texts are null or end with a zero byte.
pub unsafe fn parse(config: *const ncclConfig_t, function: &'static str) -> Result<Options> {
    let from = config.cast::<u8>();
    let what = (function, "config", "NCCL_CONFIG_INITIALIZER");
    // SAFETY: by the contract of this function.
    let (size, version) = unsafe { header(from, NCCL_API_MAGIC, what)? };
    let mut fields = INITIAL;
    // SAFETY: the caller's structure has `size` bytes; any bytes make integers and pointers.
    unsafe {
        let bytes = size.min(size_of::<ncclConfig_t>());
        ptr::copy_nonoverlapping(from, (&raw mut fields).cast::<u8>(), bytes);
    }
    let mut options = Options::default();
    for (name, since, value) in FIELDS {
        let value = value(&fields);
        if version >= since && value != UNDEFINED {
            options.set(name, value, function)?;
        }
    }
    let bounded = version >= 21700 && fields.maxCTAs != UNDEFINED;
    if bounded && options.min_ctas > options.max_ctas {
        let expected = format!("at most maxCTAs, which is {}", options.max_ctas);
        return Err(Error::argument(function, "minCTAs", options.min_ctas, expected));
    }
    // Has an effect only without a maximum of the caller's, as in NCCL.
    options.min_ctas = options.min_ctas.min(options.max_ctas);
    let text = |pointer: *const c_char, since| {
        (version >= since && !pointer.is_null()).then(|| {
            // SAFETY: the fields of the caller's version are null or strings.
            unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
        })
    };
    options.net_name = text(fields.netName, NET_NAME);
    options.name = text(fields.commName, COMM_NAME);
    Ok(options)
}

/// Stores the estimate of ncclGroupSimulateEnd, in microseconds, if the caller's structure has
/// room for it; null takes nothing.
///
/// # Safety
/// `info` is null, or points to an ncclSimInfo_t of any version.
pub unsafe fn store_estimate(
    info: *mut ncclSimInfo_t,
    microseconds: f32,
    function: &'static str,
) -> Result<(), Error> {
    if info.is_null() {
        return Ok(());
    }
    let what = (function, "simInfo", "NCCL_SIM_INFO_INITIALIZER");
    // SAFETY: not null; all versions have at least 24 bytes, so the estimate lies within.
    unsafe {
        header(info.cast::<u8>(), SIM_MAGIC, what)?;
        let place = info.cast::<u8>().add(offset_of!(ncclSimInfo_t, estimatedTime));
        place.cast::<f32>().write_unaligned(microseconds);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: &str = "ncclCommInitRankConfig";
    const POISON: i32 = 0x5a5a_5a5a;

    /// Returns a structure as a caller of some version passes it: header, then 32-bit words, filled
    /// up with poison to 512 bytes. Pointers take two words.
    fn image(size: usize, version: u32, words: &[i32]) -> [u64; 64] {
        let mut bytes = Vec::new();
        bytes.extend((size as u64).to_ne_bytes());
        bytes.extend(NCCL_API_MAGIC.to_ne_bytes());
        bytes.extend(version.to_ne_bytes());
        words.iter().for_each(|w| bytes.extend(w.to_ne_bytes()));
        assert!(bytes.len() <= size, "{} of {size} bytes", bytes.len());
        bytes.resize(512, 0x5a);
        let words: Vec<u64> =
            bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        words.try_into().unwrap()
    }

    fn parsed(image: &[u64; 64]) -> Result<Options> {
        // SAFETY: the image has 512 bytes, more than any structure.
        unsafe { parse(image.as_ptr().cast(), F) }
    }

    fn pointer(text: &'static CStr) -> [i32; 2] {
        let bits = text.as_ptr() as u64;
        [bits as i32, (bits >> 32) as i32]
    }

    /// Returns the words of a complete structure but the last one, which is padding: blocking 0,
    /// cluster 2, CTAs 3 and 4, splitShare 1, traffic class 5, then the rest; all differ from the
    /// defaults.
    fn all_words() -> Vec<i32> {
        let [n0, n1] = pointer(c"Socket");
        let [c0, c1] = pointer(c"weights");
        vec![0, 2, 3, 4, n0, n1, 1, 5, c0, c1, 1, 1, 1, 6, 7, 1, 1, 8, 9, 0, 1, 10, 1, 2, 3]
    }

    /// Returns the options of the first `groups` groups of fields of `all_words`; a version added
    /// each group.
    fn expected(groups: usize) -> Options {
        let full = Options {
            blocking: false,
            cga_cluster_size: 2,
            min_ctas: 3,
            max_ctas: 4,
            net_name: Some("Socket".to_owned()),
            split_share: true,
            traffic_class: Some(5),
            name: Some("weights".to_owned()),
            collnet_enable: true,
            cta_policy: 1,
            shrink_share: true,
            nvls_ctas: Some(6),
            channels_per_net_peer: Some(7),
            nvlink_centric_sched: true,
            graph_usage_mode: 1,
            rma_contexts: 8,
            max_p2p_peers: Some(9),
            graph_stream_ordering: false,
            launch_order_implicit: true,
            rma_signals: Some(10),
            rma_eager_init: true,
            host_cft_mode: Some(2),
            nvls_host_mode: Some(3),
            init_timeout: None,
        };
        let mut options = Options { blocking: full.blocking, ..Options::default() };
        let take: [fn(&mut Options, &Options); 9] = [
            |o, f| {
                (o.cga_cluster_size, o.min_ctas) = (f.cga_cluster_size, f.min_ctas);
                (o.max_ctas, o.net_name) = (f.max_ctas, f.net_name.clone());
            },
            |o, f| o.split_share = f.split_share,
            |o, f| o.traffic_class = f.traffic_class,
            |o, f| {
                (o.name, o.collnet_enable) = (f.name.clone(), f.collnet_enable);
                (o.cta_policy, o.shrink_share) = (f.cta_policy, f.shrink_share);
                o.nvls_ctas = f.nvls_ctas;
            },
            |o, f| {
                o.channels_per_net_peer = f.channels_per_net_peer;
                o.nvlink_centric_sched = f.nvlink_centric_sched;
            },
            |o, f| {
                (o.graph_usage_mode, o.rma_contexts) = (f.graph_usage_mode, f.rma_contexts);
            },
            |o, f| o.max_p2p_peers = f.max_p2p_peers,
            |o, f| o.graph_stream_ordering = f.graph_stream_ordering,
            |o, f| {
                o.launch_order_implicit = f.launch_order_implicit;
                (o.rma_signals, o.rma_eager_init) = (f.rma_signals, f.rma_eager_init);
                (o.host_cft_mode, o.nvls_host_mode) = (f.host_cft_mode, f.nvls_host_mode);
            },
        ];
        take[..groups].iter().for_each(|t| t(&mut options, &full));
        options
    }

    #[test]
    fn every_version_is_read_as_far_as_it_goes() {
        // Size, version, words that the version knew, groups of fields; padding is poison.
        for (size, version, words, groups) in [
            (24, 21403, 1, 0),
            (40, 21701, 6, 1),
            (48, 21801, 7, 2),
            (48, 22501, 7, 2),
            (48, 22602, 8, 3),
            (72, 22703, 14, 4),
            (80, 22803, 16, 5),
            (88, 22902, 18, 6),
            (96, 23003, 19, 7),
            (96, 23004, 19, 7),
            (96, 23007, 20, 8),
            (120, 23203, 25, 9),
            // Nobody knows what the callers of 2.31 have behind graphStreamOrdering.
            (120, 23102, 25, 8),
        ] {
            let image = image(size, version, &all_words()[..words]);
            assert_eq!(parsed(&image).unwrap(), expected(groups), "{version}");
        }
    }

    #[test]
    fn a_later_and_larger_version_is_read_as_far_as_this_one_goes() {
        let mut words = all_words();
        words.extend([POISON; 15]);
        assert_eq!(parsed(&image(176, 23300, &words)).unwrap(), expected(9));
    }

    #[test]
    fn undefined_fields_take_the_defaults_also_for_children() {
        let initial = INITIAL;
        let parent = Options { blocking: false, ..Options::default() };
        // SAFETY: null, or a structure of this version.
        let (given, none, inherited) = unsafe {
            (
                parse(&initial, F).unwrap(),
                read(ptr::null(), F, None).unwrap(),
                read(ptr::null(), F, Some(&parent)).unwrap(),
            )
        };
        assert_eq!(given, Options::default());
        assert_eq!(none, Options::default().with_variables(Config::get()));
        assert_eq!(inherited, parent.with_variables(Config::get()));
    }

    #[test]
    fn what_no_initializer_made_is_refused() {
        let mut alien = image(120, 23203, &all_words());
        alien[1] = 0;
        let error = parsed(&alien).unwrap_err().to_string();
        assert!(
            error.contains("magic 0x0") && error.contains("NCCL_CONFIG_INITIALIZER"),
            "{error}"
        );
        for size in [0, 8, 16, 23, 25, 44, 4104, usize::MAX, 1 << 40] {
            let mut image = image(120, 23203, &all_words());
            image[0] = size as u64;
            let error = parsed(&image).unwrap_err().to_string();
            assert!(error.contains(&format!("a structure of {size} bytes")), "{error}");
        }
    }

    #[test]
    fn bad_values_are_named() {
        for (word, value, name) in [
            (0, 2, "blocking"),
            (1, -1, "cgaClusterSize"),
            (2, 0, "minCTAs"),
            (2, 5, "minCTAs"),
            (3, -7, "maxCTAs"),
            (6, 2, "splitShare"),
            (10, -1, "collnetEnable"),
            (11, 4, "CTAPolicy"),
            (12, 3, "shrinkShare"),
            (13, 0, "nvlsCTAs"),
            (14, 65, "nChannelsPerNetPeer"),
            (15, 2, "nvlinkCentricSched"),
            (16, 3, "graphUsageMode"),
            (17, -1, "numRmaCtx"),
            (18, 0, "maxP2pPeers"),
            (19, 2, "graphStreamOrdering"),
            (20, 2, "launchOrderImplicit"),
            (21, 17, "numRmaSig"),
            (22, -1, "rmaEagerInit"),
            (23, 4, "hostCftMode"),
            (24, -1, "nvlsHostMode"),
        ] {
            let mut words = all_words();
            words[word] = value;
            let error = parsed(&image(120, 23203, &words)).unwrap_err().to_string();
            assert!(error.contains(&format!("argument {name} is {value}; expected")), "{error}");
        }
    }

    #[test]
    fn an_estimate_is_stored_only_where_an_initializer_was() {
        let mut info = ncclSimInfo_v22200 {
            size: size_of::<ncclSimInfo_t>(),
            magic: SIM_MAGIC,
            version: 22200,
            estimatedTime: -1.0,
        };
        let function = "ncclGroupSimulateEnd";
        // SAFETY: null, or a structure of this version.
        unsafe {
            store_estimate(ptr::null_mut(), 1.5, function).unwrap();
            store_estimate(&mut info, 1.5, function).unwrap();
            assert_eq!(info.estimatedTime, 1.5);
            info.magic = NCCL_API_MAGIC;
            assert!(store_estimate(&mut info, 2.5, function).is_err());
            (info.magic, info.size) = (SIM_MAGIC, 16);
            assert!(store_estimate(&mut info, 2.5, function).is_err());
        }
        assert_eq!(info.estimatedTime, 1.5);
    }
}
