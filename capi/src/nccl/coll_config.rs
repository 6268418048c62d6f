//! The options of one collective, as C gives them.

use super::config::{NCCL_API_MAGIC, UNDEFINED, header};
use super::info::NCCL_VERSION_CODE;
use super::types::cudaEvent_t;
use crate::oxccl::types::{OXCCL_VENDOR_ID, oxcclCallOption_t};
use oxccl_plan::generate::GENERATORS;
use oxccl_plan::selection::Selection;
use oxccl_runtime::comm::Communicator;
use oxccl_runtime::device::Event;
use oxccl_runtime::error::{Error, Result};
use oxccl_runtime::op::{BlockPolicy, CallOptions};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::time::Duration;

/// The name of an option of a vendor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclConfigExtKey_t {
    /// The vendor; OXCCL_VENDOR_ID for this library's options.
    pub vendorId: c_int,
    /// The option, by the vendor's own numbers.
    pub optionId: c_int,
}

/// The value of an option of a vendor.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclConfigExtValue_t {
    /// An integer.
    pub i: c_int,
    /// A text.
    pub s: *const c_char,
    /// Anything else.
    pub raw: *mut c_void,
}

/// An option of a vendor, in a list that ends and names no option twice. Options of other vendors
/// than this library are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclConfigExt {
    /// The next option, or null.
    pub next: *mut ncclConfigExt,
    /// The option.
    pub key: ncclConfigExtKey_t,
    /// The value of the option.
    pub val: ncclConfigExtValue_t,
}

/// An option of a vendor.
pub type ncclConfigExt_t = ncclConfigExt;

/// The options of one collective; begin with NCCL_COLLCONFIG_INITIALIZER. All ranks give the same
/// ones. maxCTAs, CTAPolicy, the choice of the algorithm, and whether there is an event are
/// compared: where they differ, the calls differ, which is an error on all ranks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclCollConfig_v23200 {
    /// Set by the initializer.
    pub size: usize,
    /// Set by the initializer.
    pub magic: c_uint,
    /// Set by the initializer.
    pub version: c_uint,
    /// Options of vendors (oxccl.h has this library's), or null.
    pub ext: *mut ncclConfigExt_t,
    /// Fewest thread blocks, from 1 on; has no effect, as blocks follow from the size of a call.
    pub minCTAs: c_int,
    /// Most thread blocks, from 1 to maxCTAs of the communicator; at least minCTAs.
    pub maxCTAs: c_int,
    /// Thread blocks for NVLink multicast, from 1 on; has no effect, as there is none.
    pub nvlsCTAs: c_int,
    /// Thread blocks per cluster, from 0 on; has no effect, as there are no clusters.
    pub cgaClusterSize: c_int,
    /// The algorithms to choose from: names of `oxccl plan` or NCCL's (`RING`, `TREE_LL`) with
    /// commas between them, and `^` before them to exclude these. Null or empty: automatic.
    pub algSelection: *const c_char,
    /// 1: fails where none of them serves (default); 0: the choice is automatic then.
    pub forceAlgSelection: c_int,
    /// Bits NCCL_CTA_POLICY_…, for this call; left alone, those of the communicator.
    pub CTAPolicy: c_int,
    /// The number by which the call is known to profilers and in `oxccl ras`, below 2^63; 0 for
    /// none, and then that of oxcclTag in `oxccl ras`.
    pub userProfilerTag: u64,
    /// An event that is recorded on the stream behind the call, so that it tells the call's end, or
    /// null. At most one for a communicator in a group; it lives as long as anything waits for it.
    pub launchCompletionEvent: cudaEvent_t,
}

/// The options of one collective.
pub type ncclCollConfig_t = ncclCollConfig_v23200;

const INITIAL: ncclCollConfig_t = ncclCollConfig_v23200 {
    size: size_of::<ncclCollConfig_t>(),
    magic: NCCL_API_MAGIC,
    version: NCCL_VERSION_CODE as c_uint,
    ext: ptr::null_mut(),
    minCTAs: UNDEFINED,
    maxCTAs: UNDEFINED,
    nvlsCTAs: UNDEFINED,
    cgaClusterSize: UNDEFINED,
    algSelection: ptr::null(),
    forceAlgSelection: 1,
    CTAPolicy: UNDEFINED,
    userProfilerTag: 0,
    launchCompletionEvent: ptr::null_mut(),
};

impl Default for ncclCollConfig_v23200 {
    /// Returns what NCCL_COLLCONFIG_INITIALIZER makes.
    fn default() -> Self {
        INITIAL
    }
}

/// The first tag that NCCL keeps for itself.
const RESERVED_TAG: u64 = 1 << 63;
/// The most options of vendors in a list: a longer one is taken for a circle.
const MOST_EXTENSIONS: usize = 1024;
/// The bits of CTAPolicy.
const EFFICIENCY: c_int = super::types::NCCL_CTA_POLICY_EFFICIENCY;
const ZERO: c_int = super::types::NCCL_CTA_POLICY_ZERO;

/// Returns the options of a call, and its event. Nothing of the caller's is kept.
///
/// # Safety
/// `config` points to an ncclCollConfig_t of any version: to a size, and to as many bytes as that
/// says where it is 24 to 4096; its texts end with a zero byte, and its list with null.
pub(super) unsafe fn read(
    config: *const ncclCollConfig_t,
    comm: &Communicator,
    function: &'static str,
) -> Result<(CallOptions, Option<Event>)> {
    // SAFETY: by the contract of this function.
    let (mut options, given) = unsafe { parse(config, comm.options().max_ctas, function)? };
    let event = match given.launchCompletionEvent as usize {
        0 => None,
        handle => Some(Event::of_call(comm.device(), handle, (function, EVENT))?),
    };
    options.has_event = event.is_some();
    Ok((options, event))
}

/// The name of the field with the event.
const EVENT: &str = "launchCompletionEvent";

/// Returns the options without the event, and the caller's structure.
///
/// # Safety
/// As for [`read`].
unsafe fn parse(
    config: *const ncclCollConfig_t,
    most_blocks: c_int,
    function: &'static str,
) -> Result<(CallOptions, ncclCollConfig_t)> {
    let from = config.cast::<u8>();
    let what = (function, "config", "NCCL_COLLCONFIG_INITIALIZER");
    // SAFETY: by the contract of this function.
    let (size, _) = unsafe { header(from, NCCL_API_MAGIC, what)? };
    let mut given = INITIAL;
    // SAFETY: the caller's structure has `size` bytes; any bytes make integers and pointers.
    unsafe {
        let bytes = size.min(size_of::<ncclCollConfig_t>());
        ptr::copy_nonoverlapping(from, (&raw mut given).cast::<u8>(), bytes);
    }
    let mut options = CallOptions {
        max_blocks: blocks(&given, most_blocks, function)?,
        policy: policy(given.CTAPolicy, function)?,
        tag: given.userProfilerTag,
        ..CallOptions::default()
    };
    if given.userProfilerTag >= RESERVED_TAG {
        let (got, expected) = (format!("{:#x}", given.userProfilerTag), "a number below 2^63");
        return Err(Error::argument(function, "userProfilerTag", got, expected));
    }
    let force = (given.forceAlgSelection, (0, 1));
    options.forced = number("forceAlgSelection", force, function)? == Some(1);
    // SAFETY: null or a text, by the contract of this function.
    let selected = unsafe { text(given.algSelection) };
    options.selection = selection(&selected, function)?;
    // SAFETY: by the contract of this function.
    unsafe { extensions(given.ext, &mut options, function)? };
    Ok((options, given))
}

/// Returns a number of a range; `None` if it is left to the library, as options can be that are not
/// switches.
fn number(
    name: &'static str,
    (value, (least, most)): (c_int, (c_int, c_int)),
    function: &'static str,
) -> Result<Option<c_int>> {
    if value == UNDEFINED && (least, most) != (0, 1) {
        return Ok(None);
    }
    if !(least..=most).contains(&value) {
        let expected = match (least, most) {
            (0, 1) => "0 or 1".to_owned(),
            (_, c_int::MAX) => format!("at least {least}, or NCCL_CONFIG_UNDEF_INT"),
            _ => format!("{least} to {most}, or NCCL_CONFIG_UNDEF_INT"),
        };
        return Err(Error::argument(function, name, value, expected));
    }
    Ok(Some(value))
}

/// Checks the numbers of thread blocks; returns their maximum.
fn blocks(given: &ncclCollConfig_t, most: c_int, function: &'static str) -> Result<Option<u8>> {
    let own = number("maxCTAs", (given.maxCTAs, (1, most)), function)?;
    number("minCTAs", (given.minCTAs, (1, own.unwrap_or(most))), function)?;
    number("nvlsCTAs", (given.nvlsCTAs, (1, c_int::MAX)), function)?;
    number("cgaClusterSize", (given.cgaClusterSize, (0, c_int::MAX)), function)?;
    Ok(own.and_then(|own| u8::try_from(own).ok()))
}

/// Returns the policy about thread blocks.
fn policy(value: c_int, function: &'static str) -> Result<Option<BlockPolicy>> {
    let bits = number("CTAPolicy", (value, (0, EFFICIENCY | ZERO)), function)?;
    Ok(bits.map(|bits| match bits {
        // Of both the second one holds, as for communicators.
        bits if bits & ZERO != 0 => BlockPolicy::Zero,
        EFFICIENCY => BlockPolicy::Efficiency,
        _ => BlockPolicy::Default,
    }))
}

/// Returns a text of the caller's; empty for null.
///
/// # Safety
/// `pointer` is null or points to a text that ends with a zero byte.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: by the contract of this function.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Reads algSelection.
fn selection(text: &str, function: &'static str) -> Result<Option<Selection>> {
    Selection::parse(text).map_err(|name| {
        let got =
            if text == name { format!("{text:?}") } else { format!("{text:?} with {name:?}") };
        Error::argument(function, "algSelection", got, Selection::accepted())
    })
}

/// Reads this library's options of a list.
///
/// # Safety
/// `ext` is null, or points to the first option of a list; texts end with a zero byte.
unsafe fn extensions(
    ext: *const ncclConfigExt_t,
    options: &mut CallOptions,
    function: &'static str,
) -> Result<()> {
    let (mut next, mut seen) = (ext, Vec::new());
    for _ in 0..MOST_EXTENSIONS {
        if next.is_null() {
            return Ok(());
        }
        // SAFETY: an option of the list.
        let ncclConfigExt { next: after, key, val } = unsafe { next.read() };
        next = after;
        if key.vendorId != OXCCL_VENDOR_ID {
            continue;
        }
        if seen.contains(&key.optionId) {
            let expected = "each option at most once";
            return Err(Error::argument(function, "ext", named(key), expected));
        }
        seen.push(key.optionId);
        // SAFETY: by the contract of this function.
        unsafe { extension(key, val, options, function)? };
    }
    let got = format!("a list of more than {MOST_EXTENSIONS} options");
    Err(Error::argument(function, "ext", got, "a list that ends with null"))
}

fn named(key: ncclConfigExtKey_t) -> String {
    format!("option {} of OXCCL_VENDOR_ID", key.optionId)
}

/// Reads one of this library's options.
///
/// # Safety
/// The value is what the option has.
unsafe fn extension(
    key: ncclConfigExtKey_t,
    value: ncclConfigExtValue_t,
    options: &mut CallOptions,
    function: &'static str,
) -> Result<()> {
    let all = [
        oxcclCallOption_t::oxcclOptionDeadlineMs,
        oxcclCallOption_t::oxcclOptionDeterministic,
        oxcclCallOption_t::oxcclOptionPlan,
    ];
    let Some(option) = all.into_iter().find(|option| *option as c_int == key.optionId) else {
        let expected = "an oxcclCallOption_t, 1 (oxcclOptionDeadlineMs) to 3 (oxcclOptionPlan)";
        return Err(Error::argument(function, "ext", named(key), expected));
    };
    // SAFETY: whatever the caller has set, the bytes make an integer.
    let integer = unsafe { value.i };
    match option {
        oxcclCallOption_t::oxcclOptionDeadlineMs => {
            let (name, range) = ("oxcclOptionDeadlineMs", (1, c_int::MAX));
            let ms = number(name, (integer, range), function)?.unwrap_or_default();
            options.limit = Some(Duration::from_millis(ms.unsigned_abs().into()));
        }
        oxcclCallOption_t::oxcclOptionDeterministic => {
            let value = (integer, (0, 1));
            options.deterministic = number("oxcclOptionDeterministic", value, function)? == Some(1);
        }
        oxcclCallOption_t::oxcclOptionPlan => {
            // SAFETY: a text, by the contract of this function.
            let name = unsafe { text(value.s) };
            let wrong = |expected: String| {
                Error::argument(function, "oxcclOptionPlan", format!("{name:?}"), expected)
            };
            if options.selection.is_some() {
                return Err(wrong("algSelection or this option, not both".to_owned()));
            }
            let plan = GENERATORS.iter().find(|generator| generator.name == name);
            let names = || GENERATORS.iter().map(|g| g.name).collect::<Vec<_>>().join(", ");
            let plan = plan.ok_or_else(|| wrong(format!("one of {}", names())))?;
            (options.selection, options.forced) = (Some(plan.algorithm.into()), true);
        }
    }
    Ok(())
}
