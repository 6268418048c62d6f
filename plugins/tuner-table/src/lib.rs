//! A tuner plugin for NCCL, versions 4 to 6: it takes the plan of a call from the first rule in a
//! table that is about the call. `NCCL_TUNER_PLUGIN=libnccl-tuner-oxccl-table.so` and
//! `NCCL_TUNER_CONFIG_FILE=FILE`; `oxccl perf --tune FILE` writes such a table.

#![allow(non_upper_case_globals, reason = "the names are NCCL's")]

pub mod table;

use oxccl_plan::nccl::{TunerAlgorithm, TunerProtocol};
use oxccl_plugin_abi::export::{INFO, INTERNAL_ERROR, INVALID_USAGE, SUCCESS, Table, WARN, say};
use oxccl_plugin_abi::tuner::{
    ncclFunc_t, ncclNvlDomainInfo_v5_t, ncclNvlDomainInfo_v6_t, ncclTuner_v4_t, ncclTuner_v5_t,
    ncclTuner_v6_t, ncclTunerConstants_v5_t, ncclTunerConstants_v6_t,
};
use oxccl_plugin_abi::{ncclDebugLogger_t, ncclResult_t};
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use table::{Call, Rule};

const NAME: &CStr = c"OxCCL-Table";
/// The subsystem of tuning in logs.
const TUNING: u64 = 0x40;
/// The time of cells without a plan (`NCCL_ALGO_PROTO_IGNORE`).
const UNAVAILABLE: f32 = -1.0;

/// The cells of the largest cost table.
const CELLS: usize = TunerAlgorithm::ALL.len() * TunerProtocol::ALL.len();

/// How often a rule was taken, by the cell.
static USED: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];

/// Returns how often a rule with this cell was taken in this process: 0 where there is no plan.
/// For programs that measure plans.
#[unsafe(no_mangle)]
pub extern "C" fn oxccl_tuner_table_used(algorithm: u32, protocol: u32) -> u64 {
    let cell = algorithm as usize * TunerProtocol::ALL.len() + protocol as usize;
    USED.get(cell).map_or(0, |used| used.load(Ordering::Relaxed))
}

/// The use of the tuner by a communicator.
struct Instance {
    rules: Vec<Rule>,
    /// The numbers of hosts and ranks.
    size: (usize, usize),
}

/// Reads the table that the environment names, anew for each communicator.
fn rules(log: ncclDebugLogger_t) -> Result<Vec<Rule>, String> {
    let Some(file) = std::env::var_os("NCCL_TUNER_CONFIG_FILE") else {
        say(log, (INFO, TUNING), NAME, "NCCL_TUNER_CONFIG_FILE is not set: there are no rules");
        return Ok(Vec::new());
    };
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let text = std::fs::read_to_string(&file).map_err(|e| named(&e))?;
    let rules = table::read(&text).map_err(|e| named(&e))?;
    say(log, (INFO, TUNING), NAME, &format!("{}: {} rules", file.display(), rules.len()));
    Ok(rules)
}

/// Makes the state of a communicator.
///
/// # Safety
/// `context` is a place for a pointer.
unsafe fn start(
    context: *mut *mut c_void,
    size: (usize, usize),
    log: ncclDebugLogger_t,
) -> ncclResult_t {
    let made = catch_unwind(AssertUnwindSafe(|| rules(log)));
    let rules = match made {
        Ok(Ok(rules)) => rules,
        Ok(Err(why)) => {
            say(log, (WARN, TUNING), NAME, &why);
            return INVALID_USAGE;
        }
        Err(_) => return INTERNAL_ERROR,
    };
    // SAFETY: by the contract.
    unsafe { context.write(Box::into_raw(Box::new(Instance { rules, size })).cast()) };
    SUCCESS
}

unsafe extern "C" fn init_v4(
    nranks: usize,
    nodes: usize,
    log: ncclDebugLogger_t,
    context: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by the interface.
    unsafe { start(context, (nodes, nranks), log) }
}

unsafe extern "C" fn init<Domains, Constants>(
    context: *mut *mut c_void,
    _comm: u64,
    nranks: usize,
    nodes: usize,
    log: ncclDebugLogger_t,
    _domains: *mut Domains,
    _constants: *mut Constants,
) -> ncclResult_t {
    // SAFETY: by the interface.
    unsafe { start(context, (nodes, nranks), log) }
}

unsafe extern "C" fn get_coll_info(
    context: *mut c_void,
    function: ncclFunc_t,
    bytes: usize,
    pipe_ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> ncclResult_t {
    // SAFETY: the context is one that was handed out.
    let instance = unsafe { &*context.cast::<Instance>() };
    let (rows, columns) = (algorithms.max(0) as usize, protocols.max(0) as usize);
    // SAFETY: the table is an array of so many rows, though its type does not say so.
    let costs = unsafe { std::slice::from_raw_parts_mut(costs.cast::<f32>(), rows * columns) };
    let (pipe_ops, registered) = (i64::from(pipe_ops), Some(i64::from(registered)));
    let call = Call { function, bytes: bytes as u64, pipe_ops, registered };
    let about = |rule: &&Rule| rule.is_about(&call, instance.size);
    for rule in instance.rules.iter().filter(about) {
        let (row, column) = (rule.cell.algorithm as usize, rule.cell.protocol as usize);
        let cell = costs.get_mut(row * columns + column);
        let Some(cell) = cell.filter(|cell| column < columns && **cell != UNAVAILABLE) else {
            continue;
        };
        *cell = 0.0;
        USED[row * TunerProtocol::ALL.len() + column].fetch_add(1, Ordering::Relaxed);
        if let Some(wanted) = rule.channels.and_then(|wanted| c_int::try_from(wanted).ok()) {
            // SAFETY: a place for a number.
            unsafe { channels.write(wanted) };
        }
        break;
    }
    SUCCESS
}

unsafe extern "C" fn finalize(context: *mut c_void) -> ncclResult_t {
    if !context.is_null() {
        // SAFETY: the context was handed out, and is not used any more.
        drop(unsafe { Box::from_raw(context.cast::<Instance>()) });
    }
    SUCCESS
}

/// The plugin in version 6.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v6: Table<ncclTuner_v6_t> = Table::new(ncclTuner_v6_t {
    name: NAME.as_ptr(),
    init: Some(init::<ncclNvlDomainInfo_v6_t, ncclTunerConstants_v6_t>),
    getCollInfo: Some(get_coll_info),
    finalize: Some(finalize),
    getChunkSize: None,
});

/// The plugin in version 5.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v5: Table<ncclTuner_v5_t> = Table::new(ncclTuner_v5_t {
    name: NAME.as_ptr(),
    init: Some(init::<ncclNvlDomainInfo_v5_t, ncclTunerConstants_v5_t>),
    getCollInfo: Some(get_coll_info),
    finalize: Some(finalize),
});

/// The plugin in version 4.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v4: Table<ncclTuner_v4_t> = Table::new(ncclTuner_v4_t {
    name: NAME.as_ptr(),
    init: Some(init_v4),
    getCollInfo: Some(get_coll_info),
    destroy: Some(finalize),
});
