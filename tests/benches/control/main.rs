//! What everything but data costs: making, splitting and destroying communicators, a call itself,
//! and the bootstrap of many ranks. Prints Markdown tables: `cargo bench -p oxccl-tests --bench
//! control`, or with `lifetime`, `call` or `bootstrap` one of them.

mod bootstrap;
mod call;
mod lifetime;

use oxccl::nccl::types::ncclResult_t;

/// Ends the benchmark when a call of the library failed.
fn ok(result: ncclResult_t) {
    assert_eq!(result, ncclResult_t::ncclSuccess, "{}", last_error());
}

fn last_error() -> String {
    // SAFETY: null asks for the last error of any communicator; the text stays until the next
    // error.
    let text = unsafe { oxccl::nccl::info::ncclGetLastError(std::ptr::null_mut()) };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a text of the library ends in a zero.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Median and least of some numbers.
fn median_and_min(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (model, processors) =
        (model.map_or("?", |(_, name)| name), std::thread::available_parallelism());
    format!("{model}, {} processors, Linux {}", processors.map_or(0, usize::from), release.trim())
}

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let chosen = arguments.first().map(String::as_str);
    if chosen == Some("rank") {
        return lifetime::rank(&arguments[1]);
    }
    println!("Machine: {}.", machine());
    type Table = (&'static str, fn());
    const TABLES: [Table; 3] =
        [("lifetime", lifetime::table), ("call", call::table), ("bootstrap", bootstrap::table)];
    for (name, table) in TABLES {
        if chosen.is_none_or(|chosen| chosen == name) {
            table();
        }
    }
}
