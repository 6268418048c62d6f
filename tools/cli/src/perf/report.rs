//! The results: the table of nccl-tests, JSON and the plot.

use super::buffer::Memory;
use super::measure::{Player, Setting};
use super::options::{Kind, Options};
use super::plot;
use crate::error::{Error, Result, writer};
use oxccl_runtime::bootstrap::launch::Launch;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Out of place or in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Out,
    In,
}

/// One measurement; a line of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) collective: &'static str,
    pub(super) lib: String,
    /// The library's version, as `ncclGetVersion` tells it.
    pub(super) version: String,
    /// The day and time at which the run began.
    pub(super) date: String,
    pub(super) device: &'static str,
    pub(super) device_name: String,
    pub(super) ranks: u32,
    /// The buffers, as `-R` numbers them.
    pub(super) memory: u32,
    /// The launches of each graph; 0 without graphs.
    pub(super) graph: u32,
    pub(super) bytes: u64,
    pub(super) count: u64,
    #[serde(rename = "type")]
    pub(super) dtype: &'static str,
    pub(super) op: &'static str,
    /// -1 where there is none.
    pub(super) root: i64,
    pub(super) in_place: bool,
    /// The ranks of `--matrix` that exchanged alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pair: Option<[u32; 2]>,
    /// The operations that were timed.
    pub(super) iterations: u32,
    pub(super) time_us: f64,
    pub(super) time_us_min: f64,
    /// The time that a call takes on the processor.
    pub(super) cpu_us: f64,
    pub(super) algbw: f64,
    pub(super) busbw: f64,
    /// The other library's time over this one's, in the rows of the first library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    pub(super) wrong: u64,
}

/// The collector and printer of rows; silent on all ranks but the first.
pub(super) struct Report<'a> {
    options: &'a Options,
    leader: bool,
    rows: Vec<Row>,
    json: Option<Box<dyn Write>>,
    working: bool,
}

impl<'a> Report<'a> {
    pub(super) fn new(setting: &Setting<'a>, launch: &Launch) -> Result<Self> {
        let (options, leader) = (setting.options, launch.rank == 0);
        let json = options.json.as_deref().filter(|_| leader).map(writer).transpose()?;
        if leader {
            let memory = match (Memory::wanted(options, setting.device), options.register) {
                (Memory::Malloc, _) => "malloc",
                (Memory::Driver, _) => "cuMemAlloc",
                (Memory::Library, 2) => "ncclMemAlloc, in windows",
                (Memory::Library, _) => "ncclMemAlloc",
            };
            println!(
                "# device: {}, memory from {memory}; {} ranks by {}",
                setting.device.name(),
                setting.nranks,
                if options.ranks.is_some() { "--ranks" } else { launch.launcher }
            );
        }
        Ok(Self { options, leader, rows: Vec::new(), json, working: false })
    }

    /// Prints what is compared.
    pub(super) fn players(&self, players: &[Player<'_>]) {
        if let (true, [first, last]) = (self.leader, players) {
            println!("# {} {} beside {} {}", first.name, first.version, last.name, last.version);
        }
    }

    /// Prints the head of a table.
    pub(super) fn section(&self, kind: Kind) {
        if !self.leader {
            return;
        }
        println!("#\n# {}", kind.name());
        // Where two are compared.
        let (ratio, meaning) = match (&self.options.vs, &self.options.tune) {
            (Some(_), _) => {
                (" | library | ratio", "| its time / oxccl's: above 1, oxccl is faster")
            }
            (_, Some(_)) => (" | plan | ratio", "| its time / that of the own choice"),
            _ => ("", ""),
        };
        let left = |texts: [&str; 5]| {
            let [size, count, dtype, op, root] = texts;
            format!("#{size:>12} {count:>13} {dtype:>9} {op:>7} {root:>6}")
        };
        let names = left(["size", "count", "type", "redop", "root"]);
        println!("{names} | {:^39} | {:^39}{ratio}", "out-of-place", "in-place");
        let columns =
            format!("{:>9} {:>6} {:>8} {:>7} {:>5}", "time", "cpu", "algbw", "busbw", "#wrong");
        println!("{} | {columns} | {columns} {meaning}", left(["(B)", "(elements)", "", "", ""]));
        let units =
            format!("{:>9} {:>6} {:>8} {:>7} {:>6}", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
        println!("{} | {units} | {units}", left([""; 5]));
    }

    /// Shows on a terminal what is being measured.
    pub(super) fn working(&mut self, bytes: u64) {
        if self.leader && std::io::stderr().is_terminal() {
            eprint!("\r  measuring {bytes} bytes … ");
            self.working = true;
        }
    }

    /// Returns whether this rank prints.
    pub(super) fn is_leader(&self) -> bool {
        self.leader
    }

    /// Prints the rows of one case: for each library out of place and in place.
    pub(super) fn rows(&mut self, rows: Vec<Row>) -> Result<()> {
        if self.leader {
            if std::mem::take(&mut self.working) {
                eprint!("\r{:40}\r", "");
            }
            print(&rows);
        }
        self.keep(&rows)
    }

    /// Writes rows to the file of JSON, and keeps them for the last lines.
    pub(super) fn keep(&mut self, rows: &[Row]) -> Result<()> {
        if self.leader {
            self.write(rows)?;
        }
        self.rows.extend_from_slice(rows);
        Ok(())
    }

    /// Writes a line of JSON per row.
    fn write(&mut self, rows: &[Row]) -> Result<()> {
        let Some(file) = &mut self.json else { return Ok(()) };
        for row in rows {
            let written = serde_json::to_writer(&mut *file, row).map_err(std::io::Error::from);
            written.and_then(|()| writeln!(file)).map_err(|e| Error::File {
                path: self.options.json.clone().unwrap_or_default(),
                cause: e.to_string(),
            })?;
        }
        Ok(())
    }

    /// Prints the last lines; returns the number of wrong elements.
    pub(super) fn finish(&mut self) -> Result<u64> {
        let wrong: u64 = self.rows.iter().map(|row| row.wrong).sum();
        if !self.leader {
            return Ok(wrong);
        }
        match (self.options.check, wrong) {
            (0, _) => println!("# Out of bounds values : not checked (-c 0)"),
            (_, 0) => println!("# Out of bounds values : 0 OK (checked on fresh random data)"),
            (_, n) => {
                println!("# Out of bounds values : {n} FAILED (checked on fresh random data)")
            }
        }
        if self.options.matrix {
            return Ok(wrong);
        }
        let mean = self.rows.iter().map(|r| r.busbw).sum::<f64>() / self.rows.len().max(1) as f64;
        println!("# Avg bus bandwidth    : {mean:.4} GB/s");
        if self.options.vs.is_some() {
            for (collective, in_place, mean) in mean_ratios(&self.rows) {
                let place = if in_place { "in place" } else { "out of place" };
                println!("# Geometric mean ratio : {mean:.2} ({collective}, {place})");
            }
        }
        if let Some(path) = &self.options.plot {
            plot::write(path, &self.rows)?;
            println!("# plot in {path}");
        }
        println!(
            "# next: oxccl perf all --ranks 4, or --json FILE, --plot FILE.svg, -R 0 for malloc"
        );
        Ok(wrong)
    }
}

/// Prints a line for each library, with the ratios in that of the last one. The rows are those out
/// of place of each library, and then those in place, if there are any.
fn print(rows: &[Row]) {
    let columns = |row: Option<&Row>| match row {
        Some(r) => format!(
            "{:>9.2} {:>6.2} {:>8.2} {:>7.2} {:>6}",
            r.time_us, r.cpu_us, r.algbw, r.busbw, r.wrong
        ),
        None => format!("{:>9} {:>6} {:>8} {:>7} {:>6}", "-", "-", "-", "-", "-"),
    };
    let (out, within) = rows.split_at(rows.iter().filter(|row| !row.in_place).count());
    for (i, row) in out.iter().enumerate() {
        let end = match (out.len(), i) {
            (1, _) => String::new(),
            (_, 0) => format!(" | {}", row.lib),
            _ => {
                let ratios = rows.iter().filter_map(|row| row.ratio);
                let ratios: Vec<String> = ratios.map(|ratio| format!("{ratio:.2}")).collect();
                format!(" | {} | {}", row.lib, ratios.join(" "))
            }
        };
        println!(
            "{:>13} {:>13} {:>9} {:>7} {:>6} | {} | {}{end}",
            row.bytes,
            row.count,
            row.dtype,
            row.op,
            row.root,
            columns(Some(row)),
            columns(within.get(i))
        );
    }
}

/// Returns the geometric mean of the ratios of each collective, out of place and in place.
fn mean_ratios(rows: &[Row]) -> Vec<(&'static str, bool, f64)> {
    let mut means: Vec<(&'static str, bool, f64)> = Vec::new();
    let ratios = |collective, in_place| {
        let of = move |row: &&Row| row.collective == collective && row.in_place == in_place;
        rows.iter().filter(of).filter_map(|row| row.ratio)
    };
    for row in rows {
        let (collective, in_place) = (row.collective, row.in_place);
        if means.iter().any(|mean| (mean.0, mean.1) == (collective, in_place)) {
            continue;
        }
        let (sum, count) = ratios(collective, in_place)
            .fold((0.0, 0), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
        if count > 0 {
            means.push((collective, in_place, (sum / f64::from(count)).exp()));
        }
    }
    means
}
