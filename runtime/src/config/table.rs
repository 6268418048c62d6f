//! The variables that the library reads: a row is a documented field of [`Config`].

use super::accepted::{CTAS, NO_NVLINK, NO_NVLS, NO_SHARING, ORDERED, PROXIES, STREAMS};
use super::value::{DeviceChoice, Parse};
use super::verbosity::{Level, Levels, Subsystems};
use super::{Lookup, Report, Status, Variable, read};
use std::time::Duration;

const fn status(reason: &[&'static str]) -> Status {
    match reason {
        [] => Status::Honoured,
        [reason, ..] => Status::Accepted(reason),
    }
}

macro_rules! variables {
    ($($section:literal {
        $($(#[doc = $doc:literal])+
        $field:ident: $t:ty = $name:literal, $default:literal $(, $reason:expr)?;)*
    })*) => {
        /// The values of all variables, read once at the first use of the library.
        #[derive(Clone, Debug)]
        pub struct Config {
            $($($(#[doc = $doc])+ pub $field: $t,)*)*
            /// The origins of the values, and complaints about them.
            pub report: Report,
        }

        pub(super) static FIELDS: &[Variable] = &[
            $($(Variable {
                section: $section,
                name: $name,
                kind: <$t as Parse>::KIND,
                default: $default,
                doc: concat!($($doc),+).trim_ascii_start(),
                status: status(&[$($reason)?]),
            },)*)*
        ];

        impl Config {
            pub(super) fn from_rows(lookup: &Lookup<'_>) -> Self {
                let mut report = Report::default();
                let mut rows = FIELDS.iter();
                $($(let $field = {
                    let row = rows.next().expect("a row per field");
                    read::<$t>(row, lookup, &mut report)
                };)*)*
                Self { $($($field,)*)* report }
            }
        }
    };
}

variables! {
"Creation of communicators" {
    /// Device of new communicators: auto, host or cuda.
    device: DeviceChoice = "OXCCL_DEVICE", "auto";
    /// Address `host:port` of the rendezvous, which then needs no unique id to be passed around.
    comm_id: String = "NCCL_COMM_ID", "";
    /// File (mode 0600) with the job's secret for NCCL_COMM_ID, or with a whole unique id.
    secret_file: String = "OXCCL_SECRET_FILE", "";
    /// 1 lets NCCL_COMM_ID listen beyond loopback without a secret.
    insecure: bool = "OXCCL_INSECURE", "0";
    /// What tells hosts apart; ranks with equal values share memory. Default: this boot and
    /// network namespace.
    hostid: String = "NCCL_HOSTID", "";
    /// Number of consecutive ranks that make a host, for tests with several hosts on one machine.
    /// 0: all ranks that can share memory.
    ranks_per_node: u64 = "OXCCL_RANKS_PER_NODE", "0";
    /// Network plugins to try, in this order, between hosts: a list of paths, or of names that
    /// stand for `libnccl-net-NAME.so`; STATIC_PLUGIN is in the program; `none` loads none.
    /// Default: `libnccl-net.so`, if it is there.
    net_plugin: String = "NCCL_NET_PLUGIN", "";
    /// Tuner plugin, which chooses plans: a path, or a name that stands for
    /// `libnccl-tuner-NAME.so`; STATIC_PLUGIN is in the program; `none` loads none. Default:
    /// `libnccl-tuner.so` if it is there, or else the library of a network plugin, if that has a
    /// tuner.
    tuner_plugin: String = "NCCL_TUNER_PLUGIN", "";
    /// Profiler plugin, which is told of calls and operations: a path, or a name that stands for
    /// `libnccl-profiler-NAME.so`; STATIC_PLUGIN is in the program; `none` loads none. Default:
    /// `libnccl-profiler.so` if it is there, or else the library of a network plugin, if that has a
    /// profiler.
    profiler_plugin: String = "NCCL_PROFILER_PLUGIN", "";
    /// Interfaces to use: a list of prefixes; `^` excludes, `=` takes names exactly.
    socket_ifname: String = "NCCL_SOCKET_IFNAME", "";
    /// Address family: AF_INET or AF_INET6; empty takes either.
    socket_family: String = "NCCL_SOCKET_FAMILY", "";
    /// Multiplied by NCCL_NSOCKS_PERTHREAD, the connections between two ranks of different hosts.
    /// GPUs have at most 4, each with a thread, and 4 where both are 0. Ranks in host memory have
    /// at most 64, of which this number counts up to 16, and 1 where both are 0. They have no
    /// threads for them: who calls or waits moves the data, in messages that take the connections
    /// in turn, which helps where a network limits each connection. Each has memory of its own. 0
    /// stands for 1 where the other one is set. The least number of any rank holds.
    socket_nthreads: u64 = "NCCL_SOCKET_NTHREADS", "0";
    /// Connections for each of the threads of NCCL_SOCKET_NTHREADS, which has the rest.
    nsocks_perthread: u64 = "NCCL_NSOCKS_PERTHREAD", "0";
    /// 1 connects two ranks of different hosts when the edge between them is used first, 0 all of
    /// them when a communicator is made. Default: 1 in communicators in host memory of which a rank
    /// has more than 16 on other hosts. Rank 0's value holds for a communicator; ranks on GPUs are
    /// always connected when it is made.
    runtime_connect: Option<bool> = "NCCL_RUNTIME_CONNECT", "";
    /// How long initialisation waits for all ranks.
    init_timeout: Duration = "OXCCL_INIT_TIMEOUT", "60s";
    /// Gibibytes of address space from which oxcclMemAlloc and ncclMemAlloc take memory; 0 means
    /// twice the machine's memory.
    arena_gib: u64 = "OXCCL_ARENA_GIB", "0";
    /// This process's rank, as set by `oxccl run`.
    rank: String = "OXCCL_RANK", "";
    /// The number of ranks, as set by `oxccl run`.
    nranks: String = "OXCCL_NRANKS", "";
    /// This process's rank on its host, as set by `oxccl run`.
    local_rank: String = "OXCCL_LOCAL_RANK", "";
    /// Folder for the files through which launched processes find each other; for several hosts one
    /// that they share. Default: one of this user below the folder for temporary files.
    rendezvous: String = "OXCCL_RENDEZVOUS", "";
}
"Operations" {
    /// How long an operation may wait for a peer; 0 waits for ever.
    timeout: Duration = "OXCCL_TIMEOUT", "0s";
    /// 1 gives the same bits whatever the algorithm, the memory, the split and the grouping of a
    /// reduction, and however ranks are spread over hosts: all contributions are folded in rank
    /// order, with one rounding. Rank 0's value holds for a communicator.
    deterministic: bool = "OXCCL_DETERMINISTIC", "0";
    /// Algorithm to use wherever it serves, for example `ring`; empty leaves it to the cost model.
    algorithm: String = "OXCCL_ALGORITHM", "";
    /// Protocols between GPUs, as a list; with `^` before it, those that are left out. With LL128
    /// data travel in lines of 128 bytes where NVLink connects all GPUs of a communicator on one
    /// host, which is fast without registered buffers; without it large registered buffers are used
    /// in place. Lists by function have no effect. All ranks need the same value.
    proto: String = "NCCL_PROTO", "";
    /// 1 uses buffers in place that ncclCommRegister was told of; on GPUs, and in networks.
    local_register: bool = "NCCL_LOCAL_REGISTER", "1";
    /// 1 has the peers map the buffers of captured operations, to use them in place; on GPUs.
    graph_register: bool = "NCCL_GRAPH_REGISTER", "1";
    /// 1 forbids GPUs to reach each other's memory: their data goes through memory of the host.
    p2p_disable: bool = "NCCL_P2P_DISABLE", "0";
    /// Greatest distance at which GPUs reach each other's memory: LOC or 0 is as
    /// NCCL_P2P_DISABLE=1; NVL, PIX, PXB, PHB, SYS and greater numbers leave it to what the driver
    /// offers.
    p2p_level: String = "NCCL_P2P_LEVEL", "";
    /// 1 forbids memory of the host between GPUs that do not reach each other.
    shm_disable: bool = "NCCL_SHM_DISABLE", "0";
    /// First value of all counters between ranks; for tests of their wrap-around.
    counter_start: u64 = "OXCCL_COUNTER_START", "0";
}
"Instead of fields of ncclConfig_t" {
    /// Overrides `blocking`: 0 makes creation, finalisation and group ends return before they are
    /// complete.
    comm_blocking: Option<bool> = "NCCL_COMM_BLOCKING", "";
    /// Overrides `cgaClusterSize`, thread blocks that run as a cluster.
    cga_cluster_size: Option<i64> = "NCCL_CGA_CLUSTER_SIZE", "", CTAS;
    /// Overrides `minCTAs`, the least number of thread blocks.
    min_ctas: Option<i64> = "NCCL_MIN_CTAS", "", CTAS;
    /// Overrides `maxCTAs`, the greatest number of thread blocks; of a collective on GPUs at most
    /// 32.
    max_ctas: Option<i64> = "NCCL_MAX_CTAS", "";
    /// Overrides `CTAPolicy`: DEFAULT, EFFICIENCY, ZERO, joined by `|`. ZERO has copy engines of
    /// GPUs move what they can; EFFICIENCY has collectives on GPUs take 16 thread blocks at most.
    cta_policy: Option<String> = "NCCL_CTA_POLICY", "";
    /// Overrides `netName`: the network to use, by name.
    net: Option<String> = "NCCL_NET", "";
    /// Overrides `collnetEnable`: 1 has switches reduce where a plugin has such.
    collnet_enable: Option<i64> = "NCCL_COLLNET_ENABLE", "";
    /// The least number of hosts between which switches reduce.
    collnet_node_threshold: u64 = "NCCL_COLLNET_NODE_THRESHOLD", "2";
    /// 1 goes without switches where ranks have different networks that reduce, instead of failing.
    ignore_collnet_mismatch: bool = "NCCL_IGNORE_COLLNET_MISMATCH", "0";
    /// Greatest distance between a GPU and a device of a network at which it reads and writes the
    /// memory of the GPU itself (GPUDirect RDMA): LOC, PIX, PXB, PHB or SYS, or 0 to 4.
    net_gdr_level: String = "NCCL_NET_GDR_LEVEL", "PXB";
    /// 1 has a network's device read from the memory of a GPU, too, 0 only write there. Default: 1
    /// from compute capability 8.0 on.
    net_gdr_read: Option<bool> = "NCCL_NET_GDR_READ", "";
    /// 1 flushes all data that have come to the memory of a GPU. Default: where the GPU or the
    /// network needs it.
    net_force_flush: bool = "NCCL_NET_FORCE_FLUSH", "0";
    /// 0 registers memory of GPUs with networks by its address also where a dma-buf would do.
    dmabuf_enable: bool = "NCCL_DMABUF_ENABLE", "1";
    /// Overrides `nvlsCTAs`, thread blocks for reductions in NVLink switches.
    nvls_nchannels: Option<i64> = "NCCL_NVLS_NCHANNELS", "", NO_NVLS;
    /// Overrides `nChannelsPerNetPeer`, channels to each peer of another host.
    nchannels_per_net_peer: Option<i64> = "NCCL_NCHANNELS_PER_NET_PEER", "", CTAS;
    /// Overrides `nvlinkCentricSched`: 1 orders sends and receives for NVLink.
    nvlink_util_centric_sched_enable: Option<i64> = "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE", "",
        NO_NVLINK;
    /// Overrides `splitShare`: 1 lets split communicators share their parent's resources.
    comm_split_share_resources: Option<i64> = "NCCL_COMM_SPLIT_SHARE_RESOURCES", "", NO_SHARING;
    /// Overrides `shrinkShare`: 1 lets shrunk communicators share their parent's resources.
    comm_shrink_share_resources: Option<i64> = "NCCL_COMM_SHRINK_SHARE_RESOURCES", "", NO_SHARING;
    /// Overrides `numRmaCtx`, contexts of signals for one-sided operations; at most 4.
    num_rma_ctx: Option<i64> = "NCCL_NUM_RMA_CTX", "";
    /// Overrides `maxP2pPeers`, peers that send and receive at a time.
    p2p_max_peers: Option<i64> = "NCCL_P2P_MAX_PEERS", "", PROXIES;
    /// Overrides `graphUsageMode`: 1 makes it 2, graphs may mix with other work; 0 makes it 0.
    graph_mixing_support: Option<i64> = "NCCL_GRAPH_MIXING_SUPPORT", "";
    /// Overrides `graphStreamOrdering`: 0 lets captured operations of a communicator overlap.
    graph_stream_ordering: Option<i64> = "NCCL_GRAPH_STREAM_ORDERING", "", ORDERED;
    /// Overrides `launchOrderImplicit`: 1 orders communicators of a device as the program calls
    /// them.
    launch_order_implicit: Option<i64> = "NCCL_LAUNCH_ORDER_IMPLICIT", "", STREAMS;
}
"Configuration and logging" {
    /// Plugin that answers for variables, instead of environment and files: for all of NCCL's, and
    /// for this library's own that it has. A path, or a name that stands for
    /// `libnccl-env-NAME.so`; STATIC_PLUGIN is in the program; `none` loads none. Default:
    /// `libnccl-env.so`, if it is there.
    env_plugin: String = "NCCL_ENV_PLUGIN", "";
    /// File to read variables from, instead of `~/.nccl.conf`; only from the environment.
    conf_file: String = "NCCL_CONF_FILE", "";
    /// Log level: NONE, VERSION, WARN, INFO, ABORT or TRACE.
    debug: Level = "NCCL_DEBUG", "WARN";
    /// Which INFO and TRACE lines are logged: a list of INIT, COLL, P2P, SHM, NET, GRAPH, TUNING,
    /// ENV, ALLOC, CALL, PROXY, NVLS, BOOTSTRAP, REG, PROFILE, RAS, DESTROY, ALLOC_HOST, or ALL;
    /// `^` before the list takes all but these. COLL has a line for each
    /// collective, send and receive of NCCL's with its arguments.
    debug_subsys: Subsystems = "NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV";
    /// File to append log lines to, instead of standard error; made with mode 0600, no link. `%h`
    /// is the host's name, `%p` the process, `%%` a percent sign. `/dev/stdout` and `/dev/stderr`
    /// are the process's streams.
    debug_file: String = "NCCL_DEBUG_FILE", "";
    /// Time before log lines, as for strftime, with `%1f` to `%9f` for digits of the second; empty
    /// writes none.
    debug_timestamp_format: String = "NCCL_DEBUG_TIMESTAMP_FORMAT", "[%F %T] ";
    /// Which levels' lines get the time: a list of VERSION, WARN, INFO, ABORT, TRACE, or ALL; `^`
    /// before the list takes all but these.
    debug_timestamp_levels: Levels = "NCCL_DEBUG_TIMESTAMP_LEVELS", "WARN";
    /// 1 has ncclParamGetAllParameterKeys and ncclParamDumpAll include variables that NCCL does not
    /// document.
    param_dump_all: bool = "NCCL_PARAM_DUMP_ALL", "0";
}
"Service" {
    /// 0 has no RAS service, which tells the state of the job, as `ncclras` asks for it.
    ras_enable: bool = "NCCL_RAS_ENABLE", "1";
    /// Address `host:port` at which the service listens, the same in all processes of a user on a
    /// host. Nothing is asked of who connects: elsewhere than on loopback, everybody who reaches
    /// the port sees names, numbers and calls of processes.
    ras_addr: String = "NCCL_RAS_ADDR", "localhost:28028";
    /// Factor on the times after which the service does without the answers of other processes (5
    /// s), and closes connections of clients that do not read (60 s).
    ras_timeout_factor: u64 = "NCCL_RAS_TIMEOUT_FACTOR", "1";
}
"Bindings" {
    /// Path of this library, for the bindings that load it while the program runs: Julia, Python,
    /// and Go with the build tag oxccl_dlopen. Empty: the system finds liboxccl.so.2.
    library: String = "OXCCL_LIBRARY", "";
}
}
