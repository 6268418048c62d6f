//! `--tune`: measures the plans of every cell of NCCL's cost table beside the library's own choice,
//! and writes the rules by which the tuner plugin takes those that are faster.
//!
//! The plugin reads its table anew for each communicator. The process starts itself again with the
//! plugin and a table of its own, into which it writes a rule before it makes a communicator.

use super::buffer::Device;
use super::case::Case;
use super::control::Control;
use super::measure::{Player, Setting};
use super::options::{Kind, Options};
use super::report::{Report, Row};
use super::team::Team;
use crate::api::Api;
use crate::error::{Error, Result};
use oxccl_plan::nccl::{Cell, TunerAlgorithm, TunerProtocol, tunable};
use oxccl_plan::words::counted;
use oxccl_runtime::bootstrap::launch::Launch;
use oxccl_tuner_table::table::Rule;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variables of the plugin and of its table.
const PLUGIN: &str = "NCCL_TUNER_PLUGIN";
const TABLE: &str = "NCCL_TUNER_CONFIG_FILE";
/// A plan is taken only if it is faster than the library's choice by this factor.
const GAIN: f64 = 0.97;

/// The algorithms of NCCL's that have plans here.
const ALGORITHMS: [TunerAlgorithm; 5] = [
    TunerAlgorithm::Tree,
    TunerAlgorithm::Ring,
    TunerAlgorithm::Nvls,
    TunerAlgorithm::NvlsTree,
    TunerAlgorithm::Pat,
];

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::File { path: path.display().to_string(), cause: e.to_string() }
}

/// Returns the plugin: the one that the user names, or that beside this program, or the one that
/// the loader finds.
fn plugin() -> Result<PathBuf> {
    if let Some(named) = std::env::var(PLUGIN).ok().filter(|named| !named.is_empty()) {
        // A path, or the end of the usual name.
        let is_file = named.contains('/') || named.contains(".so");
        let file = if is_file { named } else { format!("libnccl-tuner-{named}.so") };
        return Ok(file.into());
    }
    let own = std::env::current_exe().map_err(failed(Path::new("this program")))?;
    let folder = own.parent().unwrap_or(Path::new("."));
    // Installed, or as cargo builds them.
    let names = ["../lib/libnccl-tuner-oxccl-table.so", "deps/liboxccl_tuner_table.so"];
    let found = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
    Ok(found.unwrap_or_else(|| "libnccl-tuner-oxccl-table.so".into()))
}

/// Fails for options that cannot be combined with `--tune`.
fn check(options: &Options) -> Result<()> {
    let refused = if options.lib.is_some() || options.vs.is_some() {
        "measures the built-in library only"
    } else if options.dtypes.len() > 1 || options.ops.len() > 1 || options.root == "all" {
        "measures one type, operation and root"
    } else {
        return Ok(());
    };
    Err(Error::Options(format!("--tune {refused}")))
}

/// Starts this process again, with the plugin and a table. Returns only if that fails.
pub(super) fn restart(options: &Options) -> Error {
    let again = || -> Result<Error> {
        check(options)?;
        let random = RandomState::new().build_hasher().finish();
        let folder = std::env::temp_dir().join(format!("oxccl-tune-{random:x}"));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed(&folder))?;
        let table = folder.join("rules.csv");
        std::fs::write(&table, "").map_err(failed(&table))?;
        let own = std::env::current_exe().map_err(failed(Path::new("this program")))?;
        let cause = Command::new(&own)
            .args(std::env::args_os().skip(1))
            .arg("--tune-rules")
            .arg(&table)
            .env(PLUGIN, plugin()?)
            .env(TABLE, &table)
            .exec();
        Ok(failed(&own)(cause))
    };
    again().unwrap_or_else(|error| error)
}

/// The plugin's table, removed at the end, and its count of the calls that took a rule.
struct Table {
    file: PathBuf,
    library: libloading::Library,
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(folder) = self.file.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Table {
    fn open(file: &Path) -> Result<Self> {
        let path = plugin()?;
        let unusable = |e: libloading::Error| Error::Library {
            path: path.display().to_string(),
            why: format!("{e}; --tune needs the tuner plugin of this library"),
        };
        // SAFETY: the plugin has no initialisers; a communicator would load it just so.
        let library = unsafe { libloading::Library::new(&path) };
        let used = library.and_then(|library| {
            let table = Self { file: file.to_owned(), library };
            table.used(cells()[0]).map(|_| table)
        });
        if used.is_err()
            && let Some(folder) = file.parent()
        {
            let _ = std::fs::remove_dir_all(folder);
        }
        used.map_err(unusable)
    }

    /// Returns how often communicators of this process took a rule with this cell.
    fn used(&self, cell: Cell) -> std::result::Result<u64, libloading::Error> {
        type Used = extern "C" fn(u32, u32) -> u64;
        // SAFETY: the function of that name in the plugin is of this type.
        let used: libloading::Symbol<'_, Used> =
            unsafe { self.library.get(b"oxccl_tuner_table_used")? };
        Ok(used(cell.algorithm as u32, cell.protocol as u32))
    }

    /// Has communicators that are made from now on take this cell for all calls with such buffers.
    fn force(&self, cell: Cell, registered: Option<i64>) -> Result<()> {
        let rule = |kind: &Kind| {
            let collective = kind.collective().filter(|c| tunable(*c).is_some())?;
            Some(rule(collective, (0, u64::MAX >> 1), cell, None, registered).to_string())
        };
        let rules: Vec<String> = Kind::EACH.iter().filter_map(rule).collect();
        std::fs::write(&self.file, rules.join("\n")).map_err(failed(&self.file))
    }
}

fn cells() -> Vec<Cell> {
    let of = |algorithm| TunerProtocol::ALL.map(|protocol| Cell { algorithm, protocol });
    ALGORITHMS.into_iter().flat_map(of).collect()
}

fn rule(
    collective: oxccl_plan::Collective,
    bytes: (u64, u64),
    cell: Cell,
    ranks: Option<i64>,
    registered: Option<i64>,
) -> Rule {
    let (channels, nodes, pipe_ops) = (None, None, None);
    Rule { collective, bytes, cell, channels, nodes, ranks, pipe_ops, registered }
}

/// The fastest plan that was found for a case.
struct Best {
    bytes: u64,
    /// The time beside that of the library's own choice.
    ratio: f64,
    /// `None` for the library's own choice.
    cell: Option<Cell>,
}

/// Returns the ratio of the two teams' times, over both places; the first one's is the whole.
fn ratio(rows: &[Row]) -> f64 {
    let first = rows.first().map_or("", |row| row.lib.as_str());
    let sum = |own: bool| -> f64 {
        rows.iter().filter(|row| (row.lib == first) == own).map(|row| row.time_us).sum()
    };
    sum(false) / sum(true)
}

/// Measures all cells for the kinds that tuners are asked about, and writes the table to `file`.
pub(super) fn tune(
    (options, launch): (&Options, &Launch),
    file: &str,
    own_table: &Path,
) -> Result<u64> {
    let table = Table::open(own_table)?;
    // For buffers that all ranks map, a plan that does not use this is taken from the answer about
    // other buffers.
    let registered = (options.register == 0).then_some(0);
    let api = Api::built_in();
    // Before `Control::new` chooses the host for this thread.
    let device = Device::find(options, &api, launch.rank)?;
    let everyone = Control::new(launch)?;
    let team = || Team::new((options, launch), &everyone, device, api);
    let player = |name: &str, team| Player::new(&everyone, (name, 0), Some(team));
    let close = |player: Option<Player<'_>>| {
        player.and_then(|player| player.team).map_or(Ok(()), Team::close)
    };
    let own = team()?;
    let nranks = own.nranks();
    let setting = Setting::new(options, device, nranks)?;
    let mut players = vec![player("own choice", own)?];
    let root = options.roots(nranks).map_err(Error::Options)?[0];
    let mut report = Report::new(&setting, launch, &players)?;
    let mut kinds = options.kind().wanted(nranks).map_err(Error::Options)?;
    kinds.retain(|kind| kind.collective().and_then(tunable).is_some());
    let case =
        |kind, bytes| Case::new(kind, nranks, root, options.dtypes[0], options.ops[0], bytes);
    // Sizes are rounded to whole elements of all ranks.
    let sizes = |kind: Kind| {
        let mut sizes: Vec<u64> =
            options.sizes().into_iter().map(|bytes| case(kind, bytes).bytes).collect();
        sizes.dedup();
        sizes.into_iter().map(|bytes| Best { bytes, ratio: GAIN, cell: None }).collect()
    };
    let mut best: Vec<(Kind, Vec<Best>)> = kinds.iter().map(|kind| (*kind, sizes(*kind))).collect();
    for cell in cells() {
        table.force(cell, registered)?;
        let name = format!("{}/{}", cell.algorithm.name(), cell.protocol.name());
        players.push(player(&name, team()?)?);
        for (kind, best) in &mut best {
            report.section(*kind);
            for best in best {
                let used = table.used(cell).unwrap_or(0);
                report.working(counted(best.bytes, "byte", "bytes"));
                let case = case(*kind, best.bytes);
                let rows = setting.alternate(&everyone, &mut players, &case)?;
                if table.used(cell).unwrap_or(0) == used {
                    continue;
                }
                let ratio = ratio(&rows);
                if ratio < best.ratio && rows.iter().all(|row| row.wrong == 0) {
                    (best.ratio, best.cell) = (ratio, Some(cell));
                }
                report.rows(rows)?;
            }
        }
        close(players.pop())?;
    }
    let wrong = report.finish()?;
    close(players.pop())?;
    drop(players);
    everyone.close()?;
    if launch.rank == 0 {
        let rules = rules(&best, nranks, registered);
        write(Path::new(file), &rules)?;
    }
    Ok(wrong)
}

/// Returns a rule for each run of sizes with the same plan, up to the next size that has another.
fn rules(best: &[(Kind, Vec<Best>)], nranks: u32, registered: Option<i64>) -> Vec<Rule> {
    let ranks = Some(i64::from(nranks));
    let mut rules = Vec::new();
    for (kind, best) in best {
        let Some(collective) = kind.collective() else { continue };
        for run in best.chunk_by(|a, b| a.cell == b.cell) {
            let (Some(cell), [first, ..]) = (run[0].cell, run) else { continue };
            let after = best.iter().find(|other| other.bytes > run[run.len() - 1].bytes);
            let last = after.map_or(run[run.len() - 1].bytes, |after| after.bytes - 1);
            rules.push(rule(collective, (first.bytes, last), cell, ranks, registered));
        }
    }
    rules
}

fn write(file: &Path, rules: &[Rule]) -> Result<()> {
    let mut text = "# Written by oxccl perf --tune: collective, least and largest size in bytes, \
                    algorithm, protocol,\n# channels, hosts, ranks, operations in a group, \
                    registered buffers; -1 for any.\n"
        .to_owned();
    for rule in rules {
        text += &format!("{rule}\n");
    }
    std::fs::write(file, text).map_err(failed(file))?;
    println!("# {} rules in {}; to use them:", rules.len(), file.display());
    println!("#   NCCL_TUNER_PLUGIN=oxccl-table {TABLE}={}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_sizes_with_one_plan_become_a_rule() {
        let [tree, ring] = [cells()[0], cells()[3]];
        let best = |bytes, cell| Best { bytes, ratio: 0.5, cell };
        let found = [
            (Kind::AllReduce, vec![best(8, None), best(64, Some(tree)), best(512, Some(tree))]),
            (Kind::AllGather, vec![best(8, Some(ring)), best(64, Some(tree)), best(512, None)]),
        ];
        let texts: Vec<String> = rules(&found, 4, Some(0)).iter().map(Rule::to_string).collect();
        assert_eq!(
            texts,
            [
                "allreduce,64,512,tree,ll,-1,-1,4,-1,0",
                "allgather,8,63,ring,ll,-1,-1,4,-1,0",
                "allgather,64,511,tree,ll,-1,-1,4,-1,0",
            ]
        );
    }
}
