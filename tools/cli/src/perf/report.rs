//! The results: the table of nccl-tests, JSON and the plot.

use super::buffer::{Device, Memory};
use super::measure::{Player, Setting};
use super::options::{Kind, Options};
use super::plot;
use super::progress::{self, Progress};
use crate::error::{Error, Result, writer};
use oxccl_plan::words::counted;
use oxccl_runtime::bootstrap::launch::Launch;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Out of place or in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Out,
    In,
}

/// The head of the document that `--json` writes, which all rows of a run share: it ends with
/// `rows`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Head {
    /// The version of this program.
    pub(super) oxccl: &'static str,
    /// The libraries that are measured.
    pub(super) libraries: Vec<Library>,
    /// The day and time at which the run began.
    pub(super) date: String,
    /// The host of rank 0.
    pub(super) host: String,
    /// The launcher of the ranks.
    pub(super) launcher: &'static str,
    pub(super) device: &'static str,
    /// The name of the GPU; empty on the host.
    pub(super) device_name: String,
    /// The version of NVIDIA's driver; `None` on the host, or where it is not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
    pub(super) ranks: u32,
    /// The buffers, as `-R` numbers them.
    pub(super) memory: u32,
    /// Those of the library of `--vs`, if they are others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vs_memory: Option<u32>,
    /// The launches of each graph; 0 without graphs.
    pub(super) graph: u32,
    /// The operations of each group, if there are groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aggregate: Option<u32>,
}

/// A library that is measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Library {
    /// The name by which rows call it.
    pub(super) lib: String,
    /// The version, as `ncclGetVersion` tells it.
    pub(super) version: String,
}

/// One measurement; a row of the document that `--json` writes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) collective: &'static str,
    pub(super) lib: String,
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
    /// The thread blocks of the operation's kernel that has most of them, on GPUs: as many
    /// multiprocessors at most are busy with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blocks: Option<u32>,
    pub(super) algbw: f64,
    pub(super) busbw: f64,
    /// The other library's time over this one's, in the rows of the first library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    pub(super) wrong: u64,
}

/// The document of `--json`, whose rows are written as they come, one a line.
struct Document {
    file: Box<dyn Write>,
    path: String,
    /// True once a row is written, which the next one is separated from.
    has_rows: bool,
    /// True once its end is written.
    is_complete: bool,
}

impl Document {
    /// Creates the file, and writes the head.
    fn new(path: &str, head: &Head) -> Result<Self> {
        let (file, path) = (writer(path)?, path.to_owned());
        let mut document = Self { file, path, has_rows: false, is_complete: false };
        let head = serde_json::to_string(head).unwrap_or_default();
        let open = head.strip_suffix('}').unwrap_or(&head);
        document.write(format_args!("{open},\"rows\":["))?;
        Ok(document)
    }

    fn row(&mut self, row: &Row) -> Result<()> {
        let separator = if std::mem::replace(&mut self.has_rows, true) { "," } else { "" };
        let row = serde_json::to_string(row).unwrap_or_default();
        self.write(format_args!("{separator}\n{row}"))
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) -> Result<()> {
        self.file.write_fmt(text).map_err(|e| self.failed(&e))
    }

    fn failed(&self, cause: &std::io::Error) -> Error {
        Error::File { path: self.path.clone(), cause: cause.to_string() }
    }

    fn end(&mut self) -> Result<()> {
        self.is_complete = true;
        self.write(format_args!("\n]}}\n"))?;
        self.file.flush().map_err(|e| self.failed(&e))
    }
}

impl Drop for Document {
    /// Ends the document after a failure.
    fn drop(&mut self) {
        if !self.is_complete {
            // Who reads the document notices that its end is missing.
            let _ = self.end();
        }
    }
}

/// The collector and printer of rows; silent on all ranks but the first.
pub(super) struct Report<'a> {
    options: &'a Options,
    head: Head,
    leader: bool,
    rows: Vec<Row>,
    json: Option<Document>,
    progress: Option<Progress>,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        setting: &Setting<'a>,
        launch: &Launch,
        players: &[Player<'_>],
    ) -> Result<Self> {
        let (options, leader) = (setting.options, launch.rank == 0);
        let library = |player: &Player<'_>| Library {
            lib: player.name.clone(),
            version: player.version.clone(),
        };
        let head = Head {
            oxccl: env!("CARGO_PKG_VERSION"),
            libraries: players.iter().map(library).collect(),
            date: setting.date.clone(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            launcher: if options.ranks.is_some() { "--ranks" } else { launch.launcher },
            device: setting.device.name(),
            device_name: setting.device_name.clone(),
            driver: setting.driver.clone(),
            ranks: setting.nranks,
            memory: options.register,
            vs_memory: options.vs_register,
            graph: options.graph,
            aggregate: (options.aggregate > 1).then_some(options.aggregate),
        };
        let json = options.json.as_deref().filter(|_| leader);
        let json = json.map(|path| Document::new(path, &head)).transpose()?;
        let report = Self { options, head, leader, rows: Vec::new(), json, progress: None };
        report.introduce(setting.device);
        Ok(report)
    }

    /// Prints what is measured, and with what.
    fn introduce(&self, of: Device) {
        let memory = |library: u32| {
            let options = self.options.of_library(library);
            match (Memory::wanted(&options, of), options.register) {
                (Memory::Malloc, _) => "malloc",
                (Memory::Driver, _) => "cuMemAlloc",
                (Memory::Library, 2) => "ncclMemAlloc, in windows",
                (Memory::Library, _) => "ncclMemAlloc",
            }
        };
        let (first, other) = (memory(0), memory(1));
        let Head { device, ranks, launcher, .. } = &self.head;
        let number = counted(*ranks, "rank", "ranks");
        let by = match &self.options.ranks_by {
            Some(reason) => format!("({reason}; --ranks N)"),
            None => format!("by {launcher}"),
        };
        self.say(format_args!("# device: {device}, memory from {first}; {number} {by}"));
        if *ranks == 1 {
            self.say(
                "# one rank: nothing goes to another one; with -t 2 two ranks share the device",
            );
        }
        if let [first, last] = &self.head.libraries[..] {
            let names = [&first.lib, &first.version, &last.lib, &last.version];
            let [first, its_version, last, version] = names;
            self.say(format_args!("# {first} {its_version} beside {last} {version}"));
            if self.options.vs_register.is_some() {
                self.say(format_args!("# memory of {last} from {other}"));
            }
        }
    }

    /// Prints a line for people: to the standard output, unless the document goes there.
    pub(super) fn say(&self, line: impl std::fmt::Display) {
        if !self.leader {
            return;
        }
        match self.options.json.as_deref() {
            Some("-") => eprintln!("{line}"),
            _ => println!("{line}"),
        }
    }

    /// Prints the head of a table.
    pub(super) fn section(&self, kind: Kind) {
        self.say(format_args!("#\n# {}", kind.name()));
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
        // On GPUs there is a column more.
        let [sms, pad] = if self.head.device == "cuda" { [" SMs", "    "] } else { [""; 2] };
        let width = 39 + sms.len();
        self.say(format_args!(
            "{names} | {:^width$} | {:^width$}{ratio}",
            "out-of-place", "in-place"
        ));
        let columns = format!(
            "{:>9} {:>6}{sms} {:>8} {:>7} {:>5}",
            "time", "cpu", "algbw", "busbw", "#wrong"
        );
        let kinds = left(["(B)", "(elements)", "", "", ""]);
        self.say(format_args!("{kinds} | {columns} | {columns} {meaning}"));
        let units =
            format!("{:>9} {:>6}{pad} {:>8} {:>7} {:>6}", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
        self.say(format_args!("{} | {units} | {units}", left([""; 5])));
    }

    /// Shows on a terminal what is being measured, once that takes longer than a moment.
    pub(super) fn working(&mut self, what: String) {
        self.rest();
        if self.leader && std::io::stderr().is_terminal() {
            self.progress = Some(Progress::start(what, std::io::stderr(), progress::PACE));
        }
    }

    /// Takes back what [`working`](Self::working) shows.
    pub(super) fn rest(&mut self) {
        self.progress = None;
    }

    /// Returns what all rows have in common.
    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Returns whether this rank prints.
    pub(super) fn is_leader(&self) -> bool {
        self.leader
    }

    /// Prints the rows of one case: for each library out of place and in place.
    pub(super) fn rows(&mut self, rows: Vec<Row>) -> Result<()> {
        self.rest();
        if self.leader {
            table(&rows).into_iter().for_each(|line| self.say(line));
        }
        self.keep(&rows)
    }

    /// Writes rows to the document, and keeps them for the last lines.
    pub(super) fn keep(&mut self, rows: &[Row]) -> Result<()> {
        if let Some(document) = &mut self.json {
            rows.iter().try_for_each(|row| document.row(row))?;
        }
        self.rows.extend_from_slice(rows);
        Ok(())
    }

    /// Prints the last lines; returns the number of wrong elements.
    pub(super) fn finish(&mut self) -> Result<u64> {
        let wrong: u64 = self.rows.iter().map(|row| row.wrong).sum();
        self.json.as_mut().map_or(Ok(()), Document::end)?;
        if !self.leader {
            return Ok(wrong);
        }
        let outcome = match (self.options.check, wrong) {
            (0, _) => "not checked (-c 0)".to_owned(),
            (_, 0) => "0 OK (checked on fresh random data)".to_owned(),
            (_, n) => format!("{n} FAILED (checked on fresh random data)"),
        };
        self.say(format_args!("# Out of bounds values : {outcome}"));
        if self.options.matrix {
            return Ok(wrong);
        }
        let mean = self.rows.iter().map(|r| r.busbw).sum::<f64>() / self.rows.len().max(1) as f64;
        self.say(format_args!("# Avg bus bandwidth    : {mean:.4} GB/s"));
        if self.options.vs.is_some() {
            for (collective, in_place, mean) in mean_ratios(&self.rows) {
                let place = if in_place { "in place" } else { "out of place" };
                self.say(format_args!(
                    "# Geometric mean ratio : {mean:.2} ({collective}, {place})"
                ));
            }
        }
        if let Some(path) = &self.options.plot {
            plot::write(path, &self.head, &self.rows)?;
            self.say(format_args!("# plot in {path}"));
        }
        self.say(
            "# next: oxccl perf all --ranks 4, or --json FILE, --plot FILE.svg, -R 0 for malloc",
        );
        Ok(wrong)
    }
}

/// Returns a line for each library, with the ratios in that of the last one. The rows are those out
/// of place of each library, and then those in place, if there are any.
fn table(rows: &[Row]) -> Vec<String> {
    let on_gpus = rows.iter().any(|row| row.blocks.is_some());
    let columns = |row: Option<&Row>| match row {
        Some(r) => {
            let blocks = r.blocks.map_or_else(String::new, |blocks| format!("{blocks:>4}"));
            format!(
                "{:>9.2} {:>6.2}{blocks} {:>8.2} {:>7.2} {:>6}",
                r.time_us, r.cpu_us, r.algbw, r.busbw, r.wrong
            )
        }
        None => {
            let blocks = if on_gpus { "   -" } else { "" };
            format!("{:>9} {:>6}{blocks} {:>8} {:>7} {:>6}", "-", "-", "-", "-", "-")
        }
    };
    let (out, within) = rows.split_at(rows.iter().filter(|row| !row.in_place).count());
    let line = |(i, row): (usize, &Row)| {
        let end = match (out.len(), i) {
            (1, _) => String::new(),
            (_, 0) => format!(" | {}", row.lib),
            _ => {
                let ratios = rows.iter().filter_map(|row| row.ratio);
                let ratios: Vec<String> = ratios.map(|ratio| format!("{ratio:.2}")).collect();
                format!(" | {} | {}", row.lib, ratios.join(" "))
            }
        };
        format!(
            "{:>13} {:>13} {:>9} {:>7} {:>6} | {} | {}{end}",
            row.bytes,
            row.count,
            row.dtype,
            row.op,
            row.root,
            columns(Some(row)),
            columns(within.get(i))
        )
    };
    out.iter().enumerate().map(line).collect()
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
