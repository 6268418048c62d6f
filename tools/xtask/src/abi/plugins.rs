//! Facts about NCCL's plugins: `tests/abi/plugins.txt` has them, as [`collect`] takes them from the
//! headers that NVIDIA offers to authors of plugins.

use super::declarations::Declarations;
use super::{Error, ask, preprocess};
use std::path::{Path, PathBuf};

/// A header for authors of plugins, NVIDIA's and ours.
pub struct Header {
    /// The name.
    pub name: &'static str,
    /// The structures of all versions that plugins export.
    pub structures: &'static [&'static str],
    /// The constants that facts are about.
    numbers: &'static [&'static str],
}

/// The headers that facts are about.
pub const HEADERS: [Header; 4] = [
    Header {
        name: "nccl_net.h",
        structures: &[
            "ncclNet_v6_t",
            "ncclNet_v7_t",
            "ncclNet_v8_t",
            "ncclNet_v9_t",
            "ncclNet_v10_t",
            "ncclNet_v11_t",
            "ncclNet_v12_t",
            "ncclCollNet_v8_t",
            "ncclCollNet_v9_t",
            "ncclCollNet_v10_t",
            "ncclCollNet_v11_t",
            "ncclCollNet_v12_t",
        ],
        numbers: &[
            "NCCL_NET_HANDLE_MAXSIZE",
            "NCCL_NET_MAX_REQUESTS",
            "NCCL_PTR_HOST",
            "NCCL_PTR_CUDA",
            "NCCL_PTR_DMABUF",
            "NCCL_NET_OPTIONAL_RECV_COMPLETION",
            "NCCL_NET_TRAFFIC_CLASS_UNDEF",
            "NCCL_NET_DEVICE_HOST",
            "NCCL_NET_DEVICE_UNPACK",
            "NCCL_LOG_VERSION",
            "NCCL_LOG_WARN",
            "NCCL_LOG_INFO",
            "NCCL_LOG_ABORT",
            "NCCL_LOG_TRACE",
            "NCCL_INIT",
            "NCCL_NET",
            "NCCL_PROXY",
            "NCCL_PROFILE",
            "NCCL_DESTROY",
            "NCCL_ALLOC_HOST",
        ],
    },
    Header {
        name: "nccl_tuner.h",
        structures: &[
            "ncclTuner_v2_t",
            "ncclTuner_v3_t",
            "ncclTuner_v4_t",
            "ncclTuner_v5_t",
            "ncclTuner_v6_t",
        ],
        numbers: &[
            "NCCL_ALGO_UNDEF",
            "NCCL_ALGO_TREE",
            "NCCL_ALGO_RING",
            "NCCL_ALGO_COLLNET_DIRECT",
            "NCCL_ALGO_COLLNET_CHAIN",
            "NCCL_ALGO_NVLS",
            "NCCL_ALGO_NVLS_TREE",
            "NCCL_ALGO_PAT",
            "NCCL_NUM_ALGORITHMS",
            "NCCL_PROTO_UNDEF",
            "NCCL_PROTO_LL",
            "NCCL_PROTO_LL128",
            "NCCL_PROTO_SIMPLE",
            "NCCL_NUM_PROTOCOLS",
            "NCCL_ALGO_PROTO_IGNORE",
            "ncclFuncBroadcast",
            "ncclFuncReduce",
            "ncclFuncAllGather",
            "ncclFuncReduceScatter",
            "ncclFuncAllReduce",
            "ncclFuncWaitSignal",
            "NCCL_TUNING",
        ],
    },
    Header {
        name: "nccl_profiler.h",
        structures: &[
            "ncclProfiler_v1_t",
            "ncclProfiler_v2_t",
            "ncclProfiler_v3_t",
            "ncclProfiler_v4_t",
            "ncclProfiler_v5_t",
            "ncclProfiler_v6_t",
            "ncclProfiler_v7_t",
        ],
        numbers: &[
            "ncclProfileGroup",
            "ncclProfileColl",
            "ncclProfileP2p",
            "ncclProfileProxyOp",
            "ncclProfileProxyStep",
            "ncclProfileProxyCtrl",
            "ncclProfileKernelCh",
            "ncclProfileNetPlugin",
            "ncclProfileGroupApi",
            "ncclProfileCollApi",
            "ncclProfileP2pApi",
            "ncclProfileKernelLaunch",
            "ncclProfileCeColl",
            "ncclProfileCeSync",
            "ncclProfileCeBatch",
            "ncclProfileKernelPhase",
            "ncclProfilerProxyOpSendPosted",
            "ncclProfilerProxyOpSendRemFifoWait",
            "ncclProfilerProxyOpSendTransmitted",
            "ncclProfilerProxyOpSendDone",
            "ncclProfilerProxyOpRecvPosted",
            "ncclProfilerProxyOpRecvReceived",
            "ncclProfilerProxyOpRecvTransmitted",
            "ncclProfilerProxyOpRecvDone",
            "ncclProfilerProxyStepSendGPUWait",
            "ncclProfilerProxyStepSendWait",
            "ncclProfilerProxyStepRecvWait",
            "ncclProfilerProxyStepRecvFlushWait",
            "ncclProfilerProxyStepRecvGPUWait",
            "ncclProfilerProxyCtrlIdle",
            "ncclProfilerProxyCtrlActive",
            "ncclProfilerProxyCtrlSleep",
            "ncclProfilerProxyCtrlWakeup",
            "ncclProfilerProxyCtrlAppend",
            "ncclProfilerProxyCtrlAppendEnd",
            "ncclProfilerProxyOpInProgress_v4",
            "ncclProfilerProxyStepSendPeerWait_v4",
            "ncclProfilerNetPluginUpdate",
            "ncclProfilerKernelChStop",
            "ncclProfilerGroupStartApiStop",
            "ncclProfilerGroupEndApiStart",
            "ncclProfilerCeCollStart",
            "ncclProfilerCeCollComplete",
            "ncclProfilerCeSyncStart",
            "ncclProfilerCeSyncComplete",
            "ncclProfilerCeBatchStart",
            "ncclProfilerCeBatchComplete",
            "ncclProfilerKernelPhaseStop",
        ],
    },
    Header {
        name: "nccl_env.h",
        structures: &["ncclEnv_v1_t", "ncclEnv_v2_t"],
        numbers: &["NCCL_ENV"],
    },
];

/// Returns the structures of a header of this name.
pub fn structures(name: &str) -> &'static [&'static str] {
    HEADERS.iter().find(|header| header.name == name).map_or(&[], |header| header.structures)
}

/// Returns the text of the facts about plugins, from the folders of headers in which NVIDIA's are,
/// and what they include. `scratch`: an empty folder.
pub fn collect(folders: &[PathBuf], scratch: &Path) -> Result<String, Error> {
    let mut text = "# Facts about NCCL's plugins on x86-64, from the headers for their authors.\n\
         # Generated by `cargo run -p xtask -- plugin-facts FOLDER...`; do not edit.\n"
        .to_owned();
    let folders: Vec<_> = folders.iter().map(PathBuf::as_path).collect();
    for header in HEADERS {
        let name = header.name;
        let include = format!("#include <nccl.h>\n#include <nccl_common.h>\n#include <{name}>\n");
        let declarations = Declarations::parse(&preprocess(&include, "-P", &folders, scratch)?, "");
        let questions = declarations.questions_of_plugins(header.structures, header.numbers);
        let answers = ask(&include, &questions, &folders, scratch)?;
        text.push_str(&format!("\n[{name}]\n{answers}"));
    }
    Ok(text)
}
