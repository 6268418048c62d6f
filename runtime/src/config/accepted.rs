//! NCCL's other variables: known, readable through `ncclParam*`, and without effect here, or read
//! by plugins. Each row gives the reason.

use super::value::Kind;
use super::{Lookup, Report, Status, Variable, read};
use std::time::Duration;

pub(crate) const CTAS: &str = "blocks and channels follow from the sizes of calls";
pub(crate) const NETWORKS: &str = "connections between hosts are made and used in one way";
pub(crate) const NO_NVLS: &str = "there are no NVLink switches on the host device";
pub(crate) const NO_SHARING: &str = "children never share their parent's resources";
pub(crate) const PROXIES: &str = "every rank reaches all peers at once, without proxies";
pub(crate) const NO_NVLINK: &str = "there is no NVLink between ranks on the host device";
pub(crate) const ORDERED: &str = "the host device orders graphs and other work always";
pub(crate) const NO_CFT: &str = "there are no counted transfers of NVLink switches";
pub(crate) const PREPARED: &str = "one-sided operations need no preparation";
pub(crate) const SIGNALS: &str = "every context has 16 signals";
const RETRY: &str = "connections are retried until OXCCL_INIT_TIMEOUT is over";
const BOOTSTRAP: &str = "initialisation goes over TCP and needs no staggering";
const RDMA: &str = "the InfiniBand plugin has no use for it";
const TOPOLOGY: &str = "there is no GPU topology on the host device";
const LOCAL: &str = "ranks of one host always share memory";
const CHOICE: &str = "OXCCL_ALGORITHM and the cost model choose";
const CUDA: &str = "the kernels and the memory of this library have no use for it";
const REGISTER: &str = "memory from ncclMemAlloc is used in place without being asked";
pub(crate) const STREAMS: &str = "operations of a communicator run in the order of their calls";
const PLUGINS: &str = "plugins of this kind are not loaded";
const CHECKED: &str = "arguments are always checked";
const SYMMETRIC: &str = "there are no symmetric kernels on the host device";
/// The section whose variables NCCL does not document.
pub(super) const UNDOCUMENTED: &str = "Not documented by NCCL";

/// The effect of a variable by its reason; PLUGIN stands for variables that plugins read.
macro_rules! status {
    (PLUGIN) => {
        Status::Plugins
    };
    ($reason:tt) => {
        Status::Accepted($reason)
    };
}

macro_rules! accepted {
    ($($section:expr => {
        $($kind:ident $name:literal = $default:literal, $reason:tt, $doc:literal;)*
    })*) => {
        pub(super) static ACCEPTED: &[Variable] = &[$($(Variable {
            section: $section,
            name: $name,
            kind: Kind::$kind,
            default: $default,
            doc: $doc,
            status: status!($reason),
        },)*)*];
    };
}

/// Reads the values of these variables, for the report.
pub(super) fn read_all(lookup: &Lookup<'_>, report: &mut Report) {
    for row in ACCEPTED {
        match row.kind {
            Kind::Bool => drop(read::<Option<bool>>(row, lookup, report)),
            Kind::Int => drop(read::<Option<i64>>(row, lookup, report)),
            Kind::Uint => drop(read::<Option<u64>>(row, lookup, report)),
            Kind::Duration => drop(read::<Option<Duration>>(row, lookup, report)),
            Kind::Text => drop(read::<String>(row, lookup, report)),
        }
    }
}

accepted! {
"Network and sockets" => {
    Uint "NCCL_SOCKET_MAGIC" = "0x564ab9f2fc4b9d6c", "connections prove that they know the communicator's secret",
        "First word of NCCL's data connections.";
    Uint "NCCL_SOCKET_RETRY_CNT" = "34", RETRY, "Attempts to connect.";
    Uint "NCCL_SOCKET_RETRY_SLEEP_MSEC" = "100", RETRY, "Milliseconds between attempts to connect, growing.";
    Uint "NCCL_SOCKET_POLL_TIMEOUT_MSEC" = "0", RETRY, "Milliseconds to sleep while the bootstrap waits; 0 spins.";
    Int "NCCL_CROSS_NIC" = "2", NETWORKS, "Whether rings and trees may use different NICs on different hosts: 0, 1, 2 automatic.";
    Bool "NCCL_OOB_NET_ENABLE" = "0", BOOTSTRAP, "1 bootstraps over the network plugin.";
    Text "NCCL_OOB_NET_IFNAME" = "", BOOTSTRAP, "Interfaces for that.";
    Uint "NCCL_UID_STAGGER_THRESHOLD" = "256", BOOTSTRAP, "Ranks per unique id above which connections are staggered.";
    Uint "NCCL_UID_STAGGER_RATE" = "7000", BOOTSTRAP, "Connections per second aimed at then.";
    Bool "NCCL_NET_GDR_C2C" = "1", CUDA, "GPUDirect RDMA through a CPU with a chip-to-chip link.";
    Bool "NCCL_NET_SHARED_BUFFERS" = "1", NETWORKS, "Peers share network buffers for send and receive.";
    Bool "NCCL_NET_SHARED_COMMS" = "1", NETWORKS, "Connections are shared where another GPU's NIC is used.";
    Bool "NCCL_IGNORE_NET_MISMATCH" = "1", NETWORKS, "Accepts ranks that use different networks.";
    Text "NCCL_NET_MERGE_POLICY" = "", NETWORKS, "Which NICs may be used as one: ALL or RAIL.";
    Text "NCCL_NETDEVS_POLICY" = "AUTO", NETWORKS, "NICs given to each GPU: AUTO, MAX:N or ALL.";
}
"InfiniBand and RoCE" => {
    Bool "NCCL_IB_DISABLE" = "0", PLUGIN, "1 uses sockets instead of InfiniBand.";
    Text "NCCL_IB_HCA" = "", PLUGIN, "Adapters to use: `name[:port[:rail[:plane]]]`, `^` excludes, `=` takes names exactly.";
    Uint "NCCL_IB_TIMEOUT" = "20", PLUGIN, "Acknowledgement timeout: 4.096 µs · 2^n.";
    Uint "NCCL_IB_RETRY_CNT" = "7", PLUGIN, "Retransmissions.";
    Int "NCCL_IB_GID_INDEX" = "-1", PLUGIN, "Index of the GID; -1 finds one.";
    Text "NCCL_IB_ADDR_FAMILY" = "AF_INET", PLUGIN, "Address family of the GID.";
    Text "NCCL_IB_ADDR_RANGE" = "", PLUGIN, "Network that the GID has to be in.";
    Uint "NCCL_IB_ROCE_VERSION_NUM" = "2", PLUGIN, "Version of RoCE.";
    Uint "NCCL_IB_SL" = "0", PLUGIN, "Service level.";
    Uint "NCCL_IB_TC" = "0", PLUGIN, "Traffic class.";
    Uint "NCCL_IB_PKEY" = "0", PLUGIN, "Place in the port's table of partition keys.";
    Uint "NCCL_IB_FIFO_TC" = "", PLUGIN, "Traffic class of control messages; default: that of data.";
    Bool "NCCL_IB_RETURN_ASYNC_EVENTS" = "1", RDMA, "Fatal events of adapters become errors.";
    Uint "NCCL_IB_AR_THRESHOLD" = "8192", RDMA, "Bytes above which data and notice are separate messages.";
    Bool "NCCL_IB_OOO_RQ" = "0", RDMA, "Receives may complete out of order.";
    Uint "NCCL_IB_QPS_PER_CONNECTION" = "1", PLUGIN, "Queue pairs per connection.";
    Bool "NCCL_IB_SPLIT_DATA_ON_QPS" = "0", PLUGIN, "Splits messages over the queue pairs.";
    Uint "NCCL_IB_PCI_RELAXED_ORDERING" = "2", RDMA, "Relaxed ordering on PCI: 0, 1, 2 automatic.";
    Bool "NCCL_IB_ADAPTIVE_ROUTING" = "", RDMA, "Adaptive routing; default: on InfiniBand only.";
    Bool "NCCL_IB_ECE_ENABLE" = "1", RDMA, "Enhanced connection establishment.";
    Bool "NCCL_IB_MERGE_NICS" = "1", RDMA, "Uses the ports of an adapter as one NIC.";
    Text "NCCL_IB_CUDA_SUPPORT" = "", "removed in NCCL 2.4.0", "GPUDirect RDMA.";
}
"Topology and placement" => {
    Bool "NCCL_P2P_DIRECT_DISABLE" = "0", LOCAL, "1 forbids direct access between GPUs of one process.";
    Bool "NCCL_NVB_DISABLE" = "0", TOPOLOGY, "1 forbids paths over another GPU.";
    Bool "NCCL_PXN_DISABLE" = "0", TOPOLOGY, "1 forbids the use of other GPUs' NICs.";
    Uint "NCCL_P2P_PXN_LEVEL" = "2", TOPOLOGY, "When send and receive use other GPUs' NICs: 0 never to 2 always.";
    Bool "NCCL_PXN_C2C" = "1", TOPOLOGY, "The same through chip-to-chip links.";
    Text "NCCL_TOPO_FILE" = "/var/run/nvidia-topologyd/virtualTopology.xml", TOPOLOGY, "Topology to load.";
    Text "NCCL_TOPO_DUMP_FILE" = "", TOPOLOGY, "Where to write the topology found.";
    Bool "NCCL_IGNORE_CPU_AFFINITY" = "0", TOPOLOGY, "1 uses the GPU's affinity only, not the job's.";
    Uint "NCCL_MNNVL_ENABLE" = "2", TOPOLOGY, "NVLink between hosts: 0, 1, 2 automatic.";
    Int "NCCL_MNNVL_UUID" = "-1", TOPOLOGY, "Identity of the NVLink fabric.";
    Int "NCCL_MNNVL_CLIQUE_ID" = "-1", TOPOLOGY, "Partition of the NVLink fabric.";
    Bool "NCCL_MULTI_RANK_GPU_ENABLE" = "0", "any number of ranks may use the host device", "1 lets ranks share a GPU.";
}
"Algorithms and resources" => {
    Text "NCCL_ALGO" = "", CHOICE, "Algorithms to choose from: `list;function:list`, `^` excludes.";
    Uint "NCCL_NVLS_ENABLE" = "2", NO_NVLS, "Reductions in NVLink switches: 0, 1, 2 automatic.";
    Uint "NCCL_BUFFSIZE" = "4194304", CTAS, "Bytes of buffer per channel and peer.";
    Uint "NCCL_NTHREADS" = "512", CTAS, "Threads per block.";
    Int "NCCL_MAX_NCHANNELS" = "", "superseded by NCCL_MAX_CTAS in NCCL 2.17", "Greatest number of channels.";
    Int "NCCL_MIN_NCHANNELS" = "", "superseded by NCCL_MIN_CTAS in NCCL 2.17", "Least number of channels.";
    Int "NCCL_MAX_NRINGS" = "", "superseded by NCCL_MAX_NCHANNELS in NCCL 2.5", "Greatest number of rings.";
    Int "NCCL_MIN_NRINGS" = "", "superseded by NCCL_MIN_NCHANNELS in NCCL 2.5", "Least number of rings.";
    Uint "NCCL_P2P_NET_CHUNKSIZE" = "131072", CTAS, "Bytes per step of send and receive between hosts.";
    Uint "NCCL_P2P_LL_THRESHOLD" = "16384", CTAS, "Bytes up to which send and receive use the LL protocol.";
    Bool "NCCL_ALLOC_P2P_NET_LL_BUFFERS" = "0", CTAS, "1 allocates LL buffers for send and receive between hosts.";
    Text "NCCL_SINGLE_RING_THRESHOLD" = "", "removed in NCCL 2.3", "Bytes up to which one ring is used.";
    Text "NCCL_LL_THRESHOLD" = "", "removed in NCCL 2.5", "Bytes up to which the LL protocol is used.";
    Text "NCCL_TREE_THRESHOLD" = "", "removed in NCCL 2.5", "Bytes up to which trees are used.";
    Bool "NCCL_SYM_GIN_KERNELS_ENABLE" = "1", SYMMETRIC, "Symmetric kernels across hosts.";
}
"CUDA, memory and launch" => {
    Bool "NCCL_CUMEM_ENABLE" = "", CUDA, "Allocates with the CUDA driver's virtual memory functions.";
    Bool "NCCL_CUMEM_HOST_ENABLE" = "", CUDA, "The same for host memory.";
    Uint "NCCL_MEM_SYNC_DOMAIN" = "1", CUDA, "Memory synchronisation domain of kernels.";
    Bool "NCCL_LEGACY_CUDA_REGISTER" = "0", CUDA, "1 registers memory from cudaMalloc too.";
    Bool "NCCL_WIN_ENABLE" = "1", "windows need no support that could be missing", "Window registration.";
    Bool "NCCL_SET_STACK_SIZE" = "0", CUDA, "1 sets CUDA's stack size at initialisation.";
    Text "NCCL_LAUNCH_MODE" = "PARALLEL", STREAMS, "How kernels of several devices are launched: PARALLEL or GROUP.";
    Bool "NCCL_LAUNCH_RACE_FATAL" = "1", STREAMS, "Launches that race become errors.";
    Bool "NCCL_IPC_USE_ABSTRACT_SOCKET" = "1", "descriptors pass through abstract Unix sockets always", "Abstract Unix sockets instead of files.";
}
"Checks and names" => {
    Bool "NCCL_SET_THREAD_NAME" = "0", "the library's threads always have names", "Names NCCL's threads.";
    Text "NCCL_CHECK_MODE" = "DEFAULT", CHECKED, "Checks: DEFAULT, DEBUG_LOCAL or DEBUG_GLOBAL.";
    Bool "NCCL_CHECK_POINTERS" = "0", "superseded by NCCL_CHECK_MODE in NCCL 2.29", "1 checks pointers.";
    Bool "NCCL_CHECKS_DISABLE" = "0", "without effect in NCCL too; arguments are always checked", "1 checks no arguments.";
}
UNDOCUMENTED => {
    Text "NCCL_NO_CACHE" = "", "variables are read once", "Variables to read again at each use.";
    Bool "NCCL_WARN_ENABLE_DEBUG_INFO" = "0", "NCCL_DEBUG alone sets the level", "1 logs at INFO after a warning.";
    Uint "NCCL_TOPO_DUMP_FILE_RANK" = "0", TOPOLOGY, "Rank that writes the topology.";
    Text "NCCL_GRAPH_FILE" = "", TOPOLOGY, "Rings and trees to load.";
    Text "NCCL_GRAPH_DUMP_FILE" = "", TOPOLOGY, "Where to write rings and trees.";
    Text "NCCL_NET_MERGE_LEVEL" = "", NETWORKS, "Greatest distance of NICs used as one.";
    Text "NCCL_NET_FORCE_MERGE" = "", NETWORKS, "NICs to use as one.";
    Text "NCCL_GIN_PLUGIN" = "", PLUGINS, "Plugin for networking from GPU kernels.";
    Text "NCCL_RMA_PLUGIN" = "", PLUGINS, "Plugin for one-sided operations.";
    Bool "NCCL_NET_PLUGIN_REF_COUNT" = "", "plugins stay loaded always", "Keeps the network plugin loaded.";
    Bool "NCCL_TUNER_PLUGIN_REF_COUNT" = "", "plugins stay loaded always", "Keeps the tuner plugin loaded.";
    Bool "NCCL_PROFILER_PLUGIN_REF_COUNT" = "", "plugins stay loaded always", "Keeps the profiler plugin loaded.";
    Bool "NCCL_ALLGATHERV_ENABLE" = "1", CHOICE, "Joins broadcasts of a group into one operation.";
    Text "NCCL_SYM_KERNEL" = "", SYMMETRIC, "Symmetric kernel to use, by name.";
    Int "NCCL_SYM_CTAS" = "", SYMMETRIC, "Thread blocks of symmetric kernels.";
    Uint "NCCL_SYM_CE_THRESHOLD" = "8388608", SYMMETRIC, "Elements from which on copy engines gather.";
    Bool "NCCL_SYM_TMA_ENABLE" = "0", SYMMETRIC, "Symmetric kernels that use the tensor memory accelerator.";
    Bool "NCCL_SYM_NOWIN_ENABLE" = "0", SYMMETRIC, "Symmetric kernels on buffers without windows.";
    Int "NCCL_LSA_TEAM_SIZE" = "", SYMMETRIC, "Ranks that reach each other by loads and stores.";
    Int "NCCL_WIN_STRIDE" = "-1", SYMMETRIC, "Distance of ranks in window address space.";
    Bool "NCCL_GIN_ENABLE" = "1", NETWORKS, "Networking from GPU kernels.";
    Int "NCCL_GIN_TYPE" = "", NETWORKS, "Its back end.";
    Uint "NCCL_NVLS_CHUNKSIZE" = "131072", NO_NVLS, "Bytes per step in NVLink switches.";
    Uint "NCCL_PAT_ENABLE" = "2", CHOICE, "The PAT algorithm: 0, 1, 2 automatic.";
    Int "NCCL_P2P_SCHEDULE_GROUP_SIZE" = "", CTAS, "Ranks per group in the schedule of send and receive.";
    Text "NCCL_THREAD_THRESHOLDS" = "", CTAS, "Bytes per thread below which fewer threads are used.";
    Int "NCCL_LL_BUFFSIZE" = "", CTAS, "Bytes of buffer of the LL protocol.";
    Int "NCCL_LL128_BUFFSIZE" = "", CTAS, "Bytes of buffer of the LL128 protocol.";
    Uint "NCCL_P2P_NVL_CHUNKSIZE" = "524288", CTAS, "Bytes per step of send and receive over NVLink.";
    Uint "NCCL_P2P_PCI_CHUNKSIZE" = "131072", CTAS, "Bytes per step of send and receive over PCI.";
    Int "NCCL_P2P_READ_ENABLE" = "", LOCAL, "Reads peers' memory instead of writing to it.";
    Bool "NCCL_P2P_USE_CUDA_MEMCPY" = "0", CUDA, "Copies with copy engines.";
    Uint "NCCL_WORK_FIFO_BYTES" = "1048576", CUDA, "Bytes of the queue of work for kernels.";
    Int "NCCL_WORK_ARGS_BYTES" = "", CUDA, "Bytes of work in kernel arguments.";
    Bool "NCCL_GDRCOPY_ENABLE" = "0", CUDA, "Reaches GPU memory by GDRCopy.";
    Bool "NCCL_SINGLE_PROC_MEM_REG_ENABLE" = "0", REGISTER, "Registers buffers with several ranks in a process.";
    Text "NCCL_PROXY_CPUSET" = "", PROXIES, "Processors of proxy threads.";
    Int "NCCL_PROXY_DUMP_SIGNAL" = "-1", PROXIES, "Signal upon which proxies write their state.";
    Bool "NCCL_REPORT_CONNECT_PROGRESS" = "0", RETRY, "Logs the progress of connecting.";
    Bool "NCCL_NVTX_DISABLE" = "0", CUDA, "1 writes no marks for NVIDIA's profilers.";
    Bool "NCCL_NET_OPTIONAL_RECV_COMPLETION" = "1", NETWORKS, "Networks need not report every completed receive.";
    Bool "NCCL_IB_RESILIENCY_PORT_FAILOVER" = "0", RDMA, "Goes on over another port when one fails.";
    Bool "NCCL_IB_RESILIENCY_PORT_RECOVERY" = "0", RDMA, "Returns to a port that works again.";
    Text "NCCL_IBVERBS_LIB" = "", RDMA, "Library of InfiniBand verbs.";
    Bool "NCCL_DISABLE_MEM_MANAGER" = "0", CUDA, "1 allocates without the memory manager.";
    Bool "NCCL_ENABLE_VERSION_CHECK" = "1", CUDA, "Refuses kernels compiled for newer versions.";
}
}
