//! Tuner plugins, which choose the plans of calls.

use super::load::{Found, Kind};
use super::{Facts, Plugin, checked, logger, name_of, need};
use crate::config::Config;
use crate::error::Result;
use crate::log::{self, Level, Subsystem};
use crate::proxy::{CurrentCall, Serve, Worker};
use oxccl_plan::nccl::{CostTable, TunerAlgorithm, TunerProtocol, UNAVAILABLE};
use oxccl_plugin_abi::tuner::{
    ncclNvlDomainInfo_v5_t, ncclTuner_v2_t, ncclTuner_v3_t, ncclTuner_v4_t, ncclTuner_v5_t,
    ncclTuner_v6_t, ncclTunerConstants_v5_t,
};
use oxccl_plugin_abi::{ncclDebugLogger_t, ncclResult_t};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

const KIND: Kind = Kind {
    name: "tuner",
    prefix: "libnccl-tuner",
    symbol: "ncclTunerPlugin_v",
    versions: &[6, 5, 4, 3, 2],
    lists: false,
};

/// The advice of errors about tuners.
const HINT: &str = "ask the vendor; NCCL_TUNER_PLUGIN=none goes without";

/// `init`, with the number of the communicator or without.
#[derive(Clone, Copy)]
enum Init {
    V2(unsafe extern "C" fn(usize, usize, ncclDebugLogger_t, *mut *mut c_void) -> ncclResult_t),
    V5(
        unsafe extern "C" fn(
            *mut *mut c_void,
            u64,
            usize,
            usize,
            ncclDebugLogger_t,
            *mut ncclNvlDomainInfo_v5_t,
            *mut ncclTunerConstants_v5_t,
        ) -> ncclResult_t,
    ),
}

/// `getCollInfo`: which chooses itself, or changes a table; and is told whether buffers are mapped.
#[derive(Clone, Copy)]
enum GetCollInfo {
    V2(
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            usize,
            c_int,
            c_int,
            c_int,
            *mut c_int,
            *mut c_int,
            *mut c_int,
        ) -> ncclResult_t,
    ),
    V3(
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            usize,
            c_int,
            *mut *mut f32,
            c_int,
            c_int,
            *mut c_int,
        ) -> ncclResult_t,
    ),
    V4(
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            usize,
            c_int,
            *mut *mut f32,
            c_int,
            c_int,
            c_int,
            *mut c_int,
        ) -> ncclResult_t,
    ),
}

/// The functions of a tuner.
#[derive(Clone, Copy)]
struct Functions {
    init: Init,
    get_coll_info: GetCollInfo,
    /// `None` where contexts need no end.
    finalize: Option<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
}

/// Takes the functions from a structure; what follows it are the variants of those that differ
/// between versions, and the name of the last one.
macro_rules! functions {
    ($at:expr, $t:ty, $init:path, $info:path, $finalize:ident) => {{
        // SAFETY: by the contract the structure is of this version.
        let table = unsafe { &*$at.cast::<$t>() };
        // SAFETY: the name is a C string by the interface.
        let name = unsafe { name_of(table.name) }?;
        let init = $init(need(table.init, "init")?);
        let get_coll_info = $info(need(table.getCollInfo, "getCollInfo")?);
        Ok((name, Functions { init, get_coll_info, finalize: table.$finalize }))
    }};
}

impl Functions {
    /// Returns the name and the functions of a structure; fails if one is missing.
    ///
    /// # Safety
    /// The structure is one of a tuner plugin, of the version that it is said to have.
    unsafe fn of(found: Found) -> std::result::Result<(String, Self), String> {
        let Found { version, at } = found;
        match version {
            2 => functions! { at, ncclTuner_v2_t, Init::V2, GetCollInfo::V2, destroy },
            3 => functions! { at, ncclTuner_v3_t, Init::V2, GetCollInfo::V3, destroy },
            4 => functions! { at, ncclTuner_v4_t, Init::V2, GetCollInfo::V4, destroy },
            5 => functions! { at, ncclTuner_v5_t, Init::V5, GetCollInfo::V4, finalize },
            6 => functions! { at, ncclTuner_v6_t, Init::V5, GetCollInfo::V4, finalize },
            other => Err(format!("version {other} is not understood")),
        }
    }
}

/// Returns the tuner that `NCCL_TUNER_PLUGIN` names, or that of a network plugin, loaded once per
/// process.
fn plugin() -> Option<&'static Plugin<Functions>> {
    static PLUGIN: OnceLock<Option<Plugin<Functions>>> = OnceLock::new();
    let find = || {
        // SAFETY: the symbol's name says what the structure is.
        let of = |found| unsafe { Functions::of(found) };
        Plugin::find((&KIND, Subsystem::Tuning), &Config::get().tuner_plugin, of)
    };
    PLUGIN.get_or_init(find).as_ref()
}

/// Returns the name of the tuner of this process; empty if there is none.
pub(crate) fn name() -> &'static str {
    plugin().map_or("", |plugin| &plugin.name)
}

/// A tuner in use by a communicator.
pub(crate) struct Tuner {
    worker: Worker<Instance>,
}

impl Tuner {
    /// Starts the tuner of this process for a communicator; `None` if there is none. Blocks while
    /// the plugin starts. Fails if it fails, or does not return.
    pub(crate) fn start(facts: &Facts) -> Result<Option<Self>> {
        let Some(plugin) = plugin() else { return Ok(None) };
        let current = Arc::new(CurrentCall::new(plugin.label.clone(), HINT));
        let (of_thread, facts) = (current.clone(), facts.clone());
        let make = move || Instance::start(plugin, of_thread, &facts);
        let worker = Worker::start("oxccl-tuner", make, current)?;
        let text = format!("{} is used", plugin.label);
        log::line(Level::Info, Subsystem::Tuning, &text);
        Ok(Some(Self { worker }))
    }

    /// Has the tuner change the times of plans for a collective whose larger buffer has so many
    /// bytes. `function` is NCCL's number of the collective, and `mapped` tells whether all ranks
    /// map the buffers. Blocks until the plugin answers; fails if it fails, or does not return.
    pub(crate) fn ask(
        &self,
        function: u32,
        bytes: u64,
        table: CostTable,
        mapped: bool,
    ) -> Result<CostTable> {
        let ask = move |instance: &mut Instance| instance.ask(function, bytes, table, mapped);
        Ok(self.worker.call(ask)?)
    }
}

/// The plugin's state for a communicator. All its calls are made by one thread.
struct Instance {
    plugin: &'static Plugin<Functions>,
    current: Arc<CurrentCall>,
    context: *mut c_void,
}

impl Serve for Instance {}

fn constants() -> ncclTunerConstants_v5_t {
    ncclTunerConstants_v5_t {
        baseLatencies: Default::default(),
        hwLatencies: Default::default(),
        llMaxBws: Default::default(),
        perChMaxRingLL128Bws: Default::default(),
        perChMaxTreeLL128Bws: Default::default(),
        perChMaxTreeBws: Default::default(),
        perChMaxNVLSTreeBws: Default::default(),
    }
}

impl Instance {
    fn start(
        plugin: &'static Plugin<Functions>,
        current: Arc<CurrentCall>,
        facts: &Facts,
    ) -> oxccl_net::Result<Self> {
        let (nranks, nnodes) = (facts.nranks() as usize, facts.hosts.len());
        let number = |ranks: Option<&u32>| ranks.map_or(0, |ranks| *ranks as c_int);
        let mut domains = ncclNvlDomainInfo_v5_t {
            nNvlDomains: nnodes as c_int,
            minRanksPerNvlDomain: number(facts.hosts.iter().min()),
            maxRanksPerNvlDomain: number(facts.hosts.iter().max()),
        };
        let (mut context, mut constants, log) = (null_mut(), self::constants(), logger());
        let at = &mut context;
        let alone = plugin.turn.take(&current)?;
        let result = current.enter("init", || match plugin.functions.init {
            // SAFETY: the function is the plugin's, and has the arguments of its version.
            Init::V2(init) => unsafe { init(nranks, nnodes, log, at) },
            // SAFETY: as above.
            Init::V5(init) => unsafe {
                init(at, facts.comm, nranks, nnodes, log, &mut domains, &mut constants)
            },
        });
        drop(alone);
        checked(&current, "init", result)?;
        if constants != self::constants() {
            let text = format!(
                "{}: the constants that it has written have no effect: the cost model is \
                 another one; its answers count",
                current.label()
            );
            log::line(Level::Info, Subsystem::Tuning, &text);
        }
        Ok(Self { plugin, current, context })
    }

    fn ask(
        &mut self,
        function: u32,
        bytes: u64,
        mut table: CostTable,
        mapped: bool,
    ) -> oxccl_net::Result<CostTable> {
        let (context, function, bytes) = (self.context, function as c_int, bytes as usize);
        let (rows, columns) =
            (TunerAlgorithm::ALL.len() as c_int, TunerProtocol::ALL.len() as c_int);
        let nvls = table.0[TunerAlgorithm::Nvls as usize].iter().any(|cell| *cell != UNAVAILABLE);
        let cells = table.0.as_mut_ptr().cast::<*mut f32>();
        // The number of channels follows from the plan.
        let (mut algorithm, mut protocol, mut channels) = (-1, -1, 0);
        let get = self.plugin.functions.get_coll_info;
        // One operation at a time.
        let ops = 1;
        let result = self.current.enter("getCollInfo", || match get {
            // SAFETY: the function is the plugin's, and has the arguments of its version.
            GetCollInfo::V2(get) => unsafe {
                let (algorithm, protocol) = (&mut algorithm, &mut protocol);
                let nvls = c_int::from(nvls);
                get(context, function, bytes, 0, nvls, ops, algorithm, protocol, &mut channels)
            },
            // SAFETY: as above; the table has so many rows and columns.
            GetCollInfo::V3(get) => unsafe {
                get(context, function, bytes, ops, cells, rows, columns, &mut channels)
            },
            // SAFETY: as above.
            GetCollInfo::V4(get) => unsafe {
                let mapped = c_int::from(mapped);
                get(context, function, bytes, ops, cells, rows, columns, mapped, &mut channels)
            },
        });
        checked(&self.current, "getCollInfo", result)?;
        let row = usize::try_from(algorithm).ok().and_then(|row| table.0.get_mut(row));
        let cell = row.zip(usize::try_from(protocol).ok()).and_then(|(row, at)| row.get_mut(at));
        if let Some(cell) = cell.filter(|cell| **cell != UNAVAILABLE) {
            *cell = 0.0;
        }
        Ok(table)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let Some(finalize) = self.plugin.functions.finalize else { return };
        let context = self.context;
        let ended = self.plugin.turn.take(&self.current).and_then(|_alone| {
            // SAFETY: the function is the plugin's; nothing of the context is in use any more.
            let result = self.current.enter("finalize", || unsafe { finalize(context) });
            checked(&self.current, "finalize", result)
        });
        if let Err(error) = ended {
            log::line(Level::Warn, Subsystem::Tuning, &error.to_string());
        }
    }
}
