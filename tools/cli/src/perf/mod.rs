//! `oxccl perf`: nccl-tests, built in.

mod buffer;
mod case;
mod compare;
mod control;
mod cuda;
mod data;
mod matrix;
mod measure;
mod member;
pub(crate) mod options;
mod plot;
mod progress;
mod report;
mod team;
mod tune;

use crate::api::Api;
use crate::error::{Error, Result, can_write};
use crate::run;
use crate::topo::read::memory_bytes;
use buffer::Device;
use case::Case;
use control::Control;
use measure::{Player, Setting};
use options::{Kind, Options};
use oxccl_plan::words::counted;
use oxccl_runtime::bootstrap::launch::{self, Launch, Meet};
use report::{Place, Report};
use std::process::ExitCode;
use team::Team;

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    if let Some([old, new]) = options.compare.as_deref() {
        return compare::compare(old, new);
    }
    let libraries = if options.vs.is_some() { 2 } else { 1 };
    options.check_sizes().map_err(Error::Options)?;
    let launch = launch::detect()?;
    if let (Some(ranks), Some(launch)) = (options.ranks, &launch)
        && launch.nranks != ranks * libraries
    {
        let Launch { launcher, nranks, .. } = launch;
        let started = counted(*nranks, "rank", "ranks");
        let why = format!("--ranks {ranks}: {launcher} has started {started}; leave it out");
        return Err(Error::Options(why));
    }
    if let Some(path) = options.plot.as_ref().filter(|path| !path.ends_with(".svg")) {
        let why = format!("--plot {path}: expected a name that ends with .svg, as that is drawn");
        return Err(Error::Options(why));
    }
    // What cannot be written is told before anything runs.
    [&options.json, &options.plot].into_iter().flatten().try_for_each(|path| can_write(path))?;
    let (processes, reason) = match (options.ranks, &launch) {
        (None, None) => default_processes(options)?,
        (ranks, _) => (ranks.unwrap_or(1), None),
    };
    if launch.is_none() && Device::find(options, &Api::built_in(), 0)?.gpus().is_none() {
        let per_process = options.threads.saturating_mul(options.per_thread);
        let ranks = processes.saturating_mul(libraries).saturating_mul(per_process);
        check_memory(options.max_bytes, ranks)?;
    }
    match launch {
        None if options.ranks.is_some() || processes * libraries > 1 => {
            // Told once, before each rank would.
            let per_process = options.threads.saturating_mul(options.per_thread);
            options.roots(processes.saturating_mul(per_process)).map_err(Error::Options)?;
            let own = std::env::current_exe().map_err(|e| Error::File {
                path: "this program".to_owned(),
                cause: e.to_string(),
            })?;
            let mut program = vec![own.into_os_string()];
            program.extend(std::env::args_os().skip(1));
            // Behind the name of this command.
            program.insert(2, format!("--launcher={}", std::process::id()).into());
            if let Some(reason) = reason {
                program.insert(2, format!("--ranks-by={reason}").into());
            }
            run::start(&run::Options::plain(processes * libraries, options.pin, program))
        }
        Some(launch) => {
            if let Some(launcher) = options.launcher {
                run::end_job_with_reader(launcher);
            }
            member(options, &launch, libraries)
        }
        None => {
            let alone = Launch {
                rank: 0,
                nranks: 1,
                local_rank: 0,
                meet: Meet::Host("alone".to_owned()),
                launcher: "one process",
            };
            member(&options.with_ranks_by(reason), &alone, libraries)
        }
    }
}

/// The most processes where nobody says how many.
const MOST_PROCESSES: usize = 16;

/// Returns the number of processes where nobody says how many, and the words for why: one, without
/// words, where several ranks are in it, else as many as GPUs or, in host memory, as processors,
/// but two at least.
fn default_processes(options: &Options) -> Result<(u32, Option<&'static str>)> {
    if options.per_thread * options.threads > 1 {
        return Ok((1, None));
    }
    let gpus = Device::find(options, &Api::built_in(), 0)?.gpus();
    Ok((usual_processes(gpus), Some(reason(gpus, processors()))))
}

/// Fails if the buffers of all ranks do not fit the memory of the host, whose kernel would kill one
/// of them.
fn check_memory(max_bytes: u64, ranks: u32) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let needed = max_bytes.saturating_mul(2).saturating_mul(ranks.into());
    match memory_bytes(&text, "MemAvailable:") {
        Some(available) if needed > available => {
            let mib = [needed, available].map(|bytes| bytes >> 20);
            let ranks = counted(ranks, "rank has", "ranks have");
            Err(Error::Options(format!(
                "-e: {ranks} buffers of {} MiB, and {} MiB are available; expected a smaller size, \
                 or fewer ranks",
                mib[0], mib[1]
            )))
        }
        _ => Ok(()),
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Returns the words for why there are so many processes where nobody says how many.
fn reason(gpus: Option<u32>, processors: usize) -> &'static str {
    match (gpus, processors) {
        (Some(_), _) => "one per GPU",
        (None, ..2) => "two at least",
        (None, 2..=MOST_PROCESSES) => "one per processor",
        (None, _) => "16 at most",
    }
}

/// Returns the number of processes where nobody says how many: as many as GPUs or, in host memory
/// (`None`), as processors, but two at least.
pub(crate) fn usual_processes(gpus: Option<u32>) -> u32 {
    match gpus {
        Some(gpus) => gpus.max(1),
        None => processors().clamp(2, MOST_PROCESSES) as u32,
    }
}

/// Runs the measurement in one of its processes.
fn member(options: &Options, launch: &Launch, libraries: u32) -> Result<ExitCode> {
    let code = |wrong| if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) };
    match (&options.tune, &options.tune_rules) {
        (Some(_), None) => return Err(tune::restart(options)),
        (Some(file), Some(table)) => return tune::tune((options, launch), file, table).map(code),
        (None, _) => {}
    }
    let (own, library) = measure::seat(launch, libraries)?;
    let paths = [&options.lib, &options.vs];
    let api = match paths[library as usize] {
        Some(path) => Api::load(path)?,
        None => Api::built_in(),
    };
    // Before `Control::new` chooses the host for this thread.
    let device = Device::find(options, &api, own.rank)?;
    let everyone = Control::new(launch)?;
    let control = everyone.split(library)?;
    let of_library = options.of_library(library);
    let team = Team::new((&of_library, &own), &control, device, api)?;
    let setting = Setting::new(options, device, team.nranks())?;
    let mut team = Some(team);
    let mut players = Vec::new();
    for (number, path) in (0..libraries).zip(paths) {
        let name = path.as_deref().unwrap_or("oxccl");
        let team = if number == library { team.take() } else { None };
        players.push(Player::new(&everyone, (name, number * own.nranks), team)?);
    }
    let mut report = Report::new(&setting, launch, &players)?;
    let measure = if options.matrix { matrix::measure } else { measure_all };
    let wrong = measure(&setting, &everyone, &mut players, &mut report)?;
    for player in players {
        player.team.map_or(Ok(()), Team::close)?;
    }
    control.close()?;
    everyone.close()?;
    Ok(code(wrong))
}

/// Measures all that the options ask for; returns the number of wrong elements.
fn measure_all(
    setting: &Setting<'_>,
    everyone: &Control,
    players: &mut [Player<'_>],
    report: &mut Report<'_>,
) -> Result<u64> {
    let (options, nranks) = (setting.options, setting.nranks);
    let roots = options.roots(nranks).map_err(Error::Options)?;
    for kind in options.kind().wanted(nranks).map_err(Error::Options)? {
        // One that was asked for by name fails instead.
        let lacking = players.iter().find(|player| !player.has(kind));
        if let (Some(player), Kind::All) = (lacking, options.kind()) {
            let (name, lib, function) = (kind.name(), &player.name, kind.function());
            report.say(format_args!("#\n# {name} is left out: {lib} has no {function}"));
            continue;
        }
        let collective = kind.collective();
        let reduces = collective.is_some_and(|c| c.reduces());
        let ops = if reduces { &options.ops[..] } else { &options.ops[..1] };
        let rooted = collective.is_some_and(|c| c.rooted());
        report.section(kind);
        if let Some(player) = players.iter().find(|player| !player.has_form(kind, Place::In)) {
            report.say(format_args!("# in place it is left out: {} does not do it", player.name));
        }
        for &dtype in &options.dtypes {
            for &op in ops {
                for &root in if rooted { &roots[..] } else { &roots[..1] } {
                    let sizes = options.sizes().into_iter();
                    let mut cases: Vec<Case> = sizes
                        .map(|bytes| Case::new(kind, nranks, root, dtype, op, bytes))
                        .collect();
                    // Sizes are rounded to whole elements of all ranks.
                    cases.dedup_by_key(|case| case.bytes);
                    for case in cases {
                        report.working(counted(case.bytes, "byte", "bytes"));
                        report.rows(setting.alternate(everyone, players, &case)?)?;
                    }
                }
            }
        }
    }
    report.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_process_for_each_gpu_or_processor() {
        assert_eq!([0, 1, 4, 8].map(|gpus| usual_processes(Some(gpus))), [1, 1, 4, 8]);
        assert!((2..=16).contains(&usual_processes(None)));
        assert_eq!(
            [1, 2, 16, 17].map(|processors| reason(None, processors)),
            ["two at least", "one per processor", "one per processor", "16 at most"]
        );
        assert_eq!(reason(Some(4), 8), "one per GPU");
    }
}
