//! The results: the table of nccl-tests, JSON and the plot.

use super::buffer::Device;
use super::measure::Case;
use super::options::{Kind, Options};
use super::plot;
use crate::error::{Error, Result};
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
    pub(super) device: &'static str,
    pub(super) ranks: u32,
    pub(super) bytes: u64,
    #[serde(rename = "type")]
    pub(super) dtype: &'static str,
    pub(super) op: &'static str,
    pub(super) in_place: bool,
    pub(super) time_us: f64,
    pub(super) time_us_min: f64,
    pub(super) algbw: f64,
    pub(super) busbw: f64,
    pub(super) wrong: u64,
    #[serde(skip)]
    root: i64,
    #[serde(skip)]
    count: u64,
}

impl Row {
    pub(super) fn new(
        (lib, device): (&str, Device),
        case: &Case,
        place: Place,
        time_us: f64,
        time_us_min: f64,
        wrong: u64,
    ) -> Self {
        let algbw = case.bytes as f64 / time_us / 1e3;
        let reduces = case.kind.collective().is_some_and(|c| c.reduces());
        let rooted = case.kind.collective().is_some_and(|c| c.rooted());
        Self {
            collective: case.kind.name(),
            lib: lib.to_owned(),
            device: device.name(),
            ranks: case.spec.nranks,
            bytes: case.bytes,
            dtype: case.dtype.name(),
            op: if reduces { case.op.name() } else { "none" },
            in_place: place == Place::In,
            time_us,
            time_us_min,
            algbw,
            busbw: algbw * case.bus_factor(),
            wrong,
            root: if rooted { i64::from(case.spec.root) } else { -1 },
            count: case.count,
        }
    }
}

/// The collector and printer of rows; silent on all ranks but the first.
pub(super) struct Report<'a> {
    options: &'a Options,
    leader: bool,
    rows: Vec<Row>,
    json: Option<std::fs::File>,
    working: bool,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        options: &'a Options,
        leader: bool,
        nranks: u32,
        launch: &Launch,
        device: Device,
    ) -> Result<Self> {
        let failed = |path: &str, e: std::io::Error| Error::File {
            path: path.to_owned(),
            cause: e.to_string(),
        };
        let json = match &options.json {
            Some(path) if leader => Some(std::fs::File::create(path).map_err(|e| failed(path, e))?),
            _ => None,
        };
        if leader {
            let memory = match options.register {
                0 => "malloc",
                1 => "ncclMemAlloc",
                _ => "ncclMemAlloc, in windows",
            };
            println!(
                "# device: {}, memory from {memory}; {nranks} ranks by {}",
                device.name(),
                if options.ranks.is_some() { "--ranks" } else { launch.launcher }
            );
        }
        Ok(Self { options, leader, rows: Vec::new(), json, working: false })
    }

    /// Prints the head of a table.
    pub(super) fn section(&self, kind: Kind) {
        if !self.leader {
            return;
        }
        println!("#\n# {}", kind.name());
        println!(
            "#{:>12} {:>13} {:>9} {:>7} {:>6} | {:^32} | {:^32}{}",
            "size",
            "count",
            "type",
            "redop",
            "root",
            "out-of-place",
            "in-place",
            if self.options.vs.is_some() { " | lib, time ratio" } else { "" }
        );
        let columns = format!("{:>9} {:>8} {:>7} {:>5}", "time", "algbw", "busbw", "#wrong");
        println!(
            "#{:>12} {:>13} {:>9} {:>7} {:>6} | {columns} | {columns}",
            "(B)", "(elements)", "", "", ""
        );
        let units = format!("{:>9} {:>8} {:>7} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
        println!("#{:>12} {:>13} {:>9} {:>7} {:>6} | {units} | {units}", "", "", "", "", "");
    }

    /// Shows on a terminal what is being measured.
    pub(super) fn working(&mut self, bytes: u64) {
        if self.leader && std::io::stderr().is_terminal() {
            eprint!("\r  measuring {bytes} bytes … ");
            self.working = true;
        }
    }

    /// Prints the rows of one case: for each library out of place and in place.
    pub(super) fn rows(&mut self, rows: &[Row]) -> Result<()> {
        self.rows.extend(rows.iter().cloned());
        if !self.leader {
            return Ok(());
        }
        if std::mem::take(&mut self.working) {
            eprint!("\r{:40}\r", "");
        }
        if let Some(file) = &mut self.json {
            for row in rows {
                let written = serde_json::to_writer(&mut *file, row).map_err(std::io::Error::from);
                written.and_then(|()| writeln!(file)).map_err(|e| Error::File {
                    path: self.options.json.clone().unwrap_or_default(),
                    cause: e.to_string(),
                })?;
            }
        }
        let mut libs: Vec<&str> = Vec::new();
        for row in rows {
            if !libs.contains(&row.lib.as_str()) {
                libs.push(&row.lib);
            }
        }
        let first = rows.first().map_or(0.0, |row| row.time_us);
        for lib in &libs {
            let of = |in_place| rows.iter().find(|r| r.lib == *lib && r.in_place == in_place);
            let columns = |row: Option<&Row>| match row {
                Some(r) => {
                    format!("{:>9.2} {:>8.2} {:>7.2} {:>6}", r.time_us, r.algbw, r.busbw, r.wrong)
                }
                None => format!("{:>9} {:>8} {:>7} {:>6}", "-", "-", "-", "-"),
            };
            let Some(out) = of(false) else { continue };
            let ratio = if libs.len() > 1 {
                format!(" | {lib} {:.2}", out.time_us / first)
            } else {
                String::new()
            };
            println!(
                "{:>13} {:>13} {:>9} {:>7} {:>6} | {} | {}{ratio}",
                out.bytes,
                out.count,
                out.dtype,
                out.op,
                out.root,
                columns(Some(out)),
                columns(of(true))
            );
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
        let mean = self.rows.iter().map(|r| r.busbw).sum::<f64>() / self.rows.len().max(1) as f64;
        println!("# Avg bus bandwidth    : {mean:.4} GB/s");
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
