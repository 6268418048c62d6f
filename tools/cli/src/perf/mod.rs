//! `oxccl perf`: nccl-tests, built in.

mod buffer;
mod data;
mod measure;
pub(crate) mod options;
mod plot;
mod report;
mod tune;

use crate::api::Api;
use crate::error::{Error, Result};
use crate::run;
use measure::Team;
use options::{Kind, Options};
use oxccl_runtime::bootstrap::launch::{self, Launch, Meet};
use report::{Report, Row};
use std::process::ExitCode;

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let launched = launch::detect()?;
    match (options.ranks, launched) {
        (Some(ranks), None) => {
            let own = std::env::current_exe().map_err(|e| Error::File {
                path: "this program".to_owned(),
                cause: e.to_string(),
            })?;
            let mut program = vec![own.into_os_string()];
            program.extend(std::env::args_os().skip(1));
            let (pin, grace) = (options.pin, run::Grace::default());
            run::start(&run::Options { ranks, pin, grace, program })
        }
        (_, Some(launch)) => member(options, &launch),
        (None, None) => {
            let alone = Launch {
                rank: 0,
                nranks: 1,
                local_rank: 0,
                meet: Meet::Host("alone".to_owned()),
                launcher: "no launcher",
            };
            member(options, &alone)
        }
    }
}

/// Runs the measurement in one of its processes.
fn member(options: &Options, launch: &Launch) -> Result<ExitCode> {
    let kinds = match options.collective {
        Kind::All => Kind::EACH.to_vec(),
        kind => vec![kind],
    };
    let code = |wrong| if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) };
    match (&options.tune, &options.tune_rules) {
        (Some(_), None) => return Err(tune::restart(options)),
        (Some(file), Some(table)) => {
            return tune::tune((options, launch), (file, table), &kinds).map(code);
        }
        (None, _) => {}
    }
    let mut libraries = vec![match &options.lib {
        Some(path) => (path.clone(), Api::load(path)?),
        None => ("oxccl".to_owned(), Api::built_in()),
    }];
    if let Some(path) = &options.vs {
        libraries.push((path.clone(), Api::load(path)?));
    }
    let mut teams = Vec::new();
    for (name, api) in libraries {
        teams.push(Team::new(options, launch, name, api)?);
    }
    let nranks = teams[0].nranks();
    let roots = options.roots(nranks).map_err(Error::Options)?;
    let leader = launch.rank == 0;
    let mut report = Report::new(options, leader, nranks, launch, teams[0].device())?;
    for kind in kinds {
        let collective = kind.collective();
        let ops = if collective.is_some_and(|c| c.reduces()) {
            &options.ops[..]
        } else {
            &options.ops[..1]
        };
        let rooted = collective.is_some_and(|c| c.rooted());
        report.section(kind);
        for &dtype in &options.dtypes {
            for &op in ops {
                for &root in if rooted { &roots[..] } else { &roots[..1] } {
                    for bytes in options.sizes() {
                        let case = measure::Case::new(kind, nranks, root, dtype, op, bytes);
                        report.working(bytes);
                        let rows = measure::alternate(options, &mut teams, &case)?;
                        let rows: Vec<Row> = rows;
                        report.rows(&rows)?;
                    }
                }
            }
        }
    }
    let wrong = report.finish()?;
    for team in teams {
        team.close()?;
    }
    Ok(code(wrong))
}
