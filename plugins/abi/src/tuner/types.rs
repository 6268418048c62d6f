//! The structures of all versions.

use crate::{ncclDebugLogger_t, ncclResult_t};
use std::ffi::{c_char, c_int, c_void};

/// The collective that a tuner is asked about (`ncclFuncBroadcast` … `ncclFuncAllReduce`).
pub type ncclFunc_t = c_int;

/// The domains of a communicator's ranks that NVLink connects.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclNvlDomainInfo_v5_t {
    /// The number of domains.
    pub nNvlDomains: c_int,
    /// The number of ranks in the smallest one.
    pub minRanksPerNvlDomain: c_int,
    /// The number of ranks in the largest one.
    pub maxRanksPerNvlDomain: c_int,
}

/// The same as in version 5.
pub type ncclNvlDomainInfo_v6_t = ncclNvlDomainInfo_v5_t;

/// The constants of NCCL's own cost model. OxCCL has another one: it passes zeros, and what a tuner
/// writes has no effect.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ncclTunerConstants_v5_t {
    /// Latencies in µs by algorithm and protocol.
    pub baseLatencies: [[f64; 3]; 7],
    /// Latencies of a hop in µs by link (NVLink, PCI, network), algorithm and protocol.
    pub hwLatencies: [[[f64; 3]; 7]; 3],
    /// Bandwidths of the protocol LL in GB/s, by generation of GPUs and number of hosts (1, 2,
    /// more), as all that follow.
    pub llMaxBws: [[f64; 3]; 4],
    /// Rings with the protocol LL128, per channel.
    pub perChMaxRingLL128Bws: [[f64; 3]; 4],
    /// Trees with the protocol LL128, per channel.
    pub perChMaxTreeLL128Bws: [[f64; 3]; 4],
    /// Trees with other protocols, per channel.
    pub perChMaxTreeBws: [[f64; 3]; 4],
    /// Trees over NVLink SHARP, per channel.
    pub perChMaxNVLSTreeBws: [[f64; 3]; 4],
}

/// The same as in version 5.
pub type ncclTunerConstants_v6_t = ncclTunerConstants_v5_t;

/// The functions of a tuner plugin, `ncclTunerPlugin_v6`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclTuner_v6_t {
    /// The name.
    pub name: *const c_char,
    /// Comes first, once for each communicator, and gives a context for the other calls.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            commId: u64,
            nRanks: usize,
            nNodes: usize,
            logFunction: ncclDebugLogger_t,
            nvlDomainInfo: *mut ncclNvlDomainInfo_v6_t,
            constants: *mut ncclTunerConstants_v6_t,
        ) -> ncclResult_t,
    >,
    /// Is asked once for each kind and size of calls. `collCostTable` is an array of `numAlgo` rows
    /// with `numProto` times in µs; a time of −1 means that the cell has no plan and must stay. The
    /// plan of the cell with the smallest time runs. `nBytes` are those of the larger buffer;
    /// `regBuff` is 1 for buffers that all ranks map.
    pub getCollInfo: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            collType: ncclFunc_t,
            nBytes: usize,
            numPipeOps: c_int,
            collCostTable: *mut *mut f32,
            numAlgo: c_int,
            numProto: c_int,
            regBuff: c_int,
            nChannels: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// Comes last, once for each communicator.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
    /// Is not called: chunks follow from the plan. May be null.
    pub getChunkSize: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            collType: ncclFunc_t,
            nBytes: usize,
            algo: c_int,
            proto: c_int,
            nChannels: c_int,
            chunkSize: *mut usize,
        ) -> ncclResult_t,
    >,
}

/// The functions of a tuner plugin, `ncclTunerPlugin_v5`, without the size of chunks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclTuner_v5_t {
    /// The same as in version 6.
    pub name: *const c_char,
    /// The same as in version 6.
    pub init: Option<
        unsafe extern "C" fn(
            context: *mut *mut c_void,
            commId: u64,
            nRanks: usize,
            nNodes: usize,
            logFunction: ncclDebugLogger_t,
            nvlDomainInfo: *mut ncclNvlDomainInfo_v5_t,
            constants: *mut ncclTunerConstants_v5_t,
        ) -> ncclResult_t,
    >,
    /// The same as in version 6.
    pub getCollInfo: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            collType: ncclFunc_t,
            nBytes: usize,
            numPipeOps: c_int,
            collCostTable: *mut *mut f32,
            numAlgo: c_int,
            numProto: c_int,
            regBuff: c_int,
            nChannels: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// The same as in version 6.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a tuner plugin, `ncclTunerPlugin_v4`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclTuner_v4_t {
    /// The same as in version 6.
    pub name: *const c_char,
    /// The same as in version 6, without the number of the communicator.
    pub init: Option<
        unsafe extern "C" fn(
            nRanks: usize,
            nNodes: usize,
            logFunction: ncclDebugLogger_t,
            context: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// The same as in version 6.
    pub getCollInfo: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            collType: ncclFunc_t,
            nBytes: usize,
            numPipeOps: c_int,
            collCostTable: *mut *mut f32,
            numAlgo: c_int,
            numProto: c_int,
            regBuff: c_int,
            nChannels: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// The same as `finalize` in version 6.
    pub destroy: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a tuner plugin, `ncclTunerPlugin_v3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclTuner_v3_t {
    /// The same as in version 6.
    pub name: *const c_char,
    /// The same as in version 4.
    pub init: Option<
        unsafe extern "C" fn(
            nRanks: usize,
            nNodes: usize,
            logFunction: ncclDebugLogger_t,
            context: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// The same as in version 6, without `regBuff`.
    pub getCollInfo: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            collType: ncclFunc_t,
            nBytes: usize,
            numPipeOps: c_int,
            collCostTable: *mut *mut f32,
            numAlgo: c_int,
            numProto: c_int,
            nChannels: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// The same as in version 4.
    pub destroy: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}

/// The functions of a tuner plugin, `ncclTunerPlugin_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclTuner_v2_t {
    /// The same as in version 6.
    pub name: *const c_char,
    /// The same as in version 4.
    pub init: Option<
        unsafe extern "C" fn(
            nRanks: usize,
            nNodes: usize,
            logFunction: ncclDebugLogger_t,
            context: *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    /// Chooses a row and a column itself; −1 leaves the choice to the library.
    pub getCollInfo: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            collType: ncclFunc_t,
            nBytes: usize,
            collNetSupport: c_int,
            nvlsSupport: c_int,
            numPipeOps: c_int,
            algorithm: *mut c_int,
            protocol: *mut c_int,
            nChannels: *mut c_int,
        ) -> ncclResult_t,
    >,
    /// The same as in version 4.
    pub destroy: Option<unsafe extern "C" fn(context: *mut c_void) -> ncclResult_t>,
}
