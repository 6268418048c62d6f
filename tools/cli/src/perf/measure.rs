//! The turns: each library measures a case while the others wait.
//!
//! With `--vs` every process measures one of the libraries only, as a program that uses it would:
//! neither shares a CUDA context, threads, or the driver's locks with the other. The first half of
//! the processes has the first library, the second half the other one. All of them hear what was
//! measured through a communicator in host memory, and that passes the turn; who waits for it
//! sleeps.

use super::buffer::Device;
use super::case::Case;
use super::control::Control;
use super::cuda;
use super::options::{Kind, Options};
use super::report::{Place, Row};
use super::team::{Team, Times};
use crate::doctor::driver_version;
use crate::error::{Error, Result};
use oxccl_runtime::bootstrap::launch::Launch;

/// A library with its turn, and the ranks of this process if it is one of the library's.
pub(super) struct Player<'a> {
    /// As the results call the library.
    pub(super) name: String,
    /// The library's version.
    pub(super) version: String,
    /// The operations that the library lacks.
    lacks: Vec<Kind>,
    /// True if the library exchanges blocks in place, which NVIDIA's does not.
    has_all_to_all_in_place: bool,
    /// The process that tells the others what was measured.
    first: u32,
    pub(super) team: Option<Team<'a>>,
}

impl<'a> Player<'a> {
    /// Makes a player; all processes do, with the same name and first process.
    pub(super) fn new(
        everyone: &Control,
        (name, first): (&str, u32),
        team: Option<Team<'a>>,
    ) -> Result<Self> {
        let facts = |team: &Team<'_>| -> Result<[f64; 3]> {
            let (api, flag) = (team.api(), |(i, kind): (usize, Kind)| (kind, 1 << i));
            let bits = Kind::EACH.into_iter().enumerate().map(flag);
            let lacks = bits.filter(|(kind, _)| !api.has(kind.function()));
            let lacks: u32 = lacks.map(|(_, bit)| bit).sum();
            Ok([api.version(first)?, i32::from(!api.is_foreign()), lacks as i32].map(f64::from))
        };
        let own = team.as_ref().map(facts).transpose()?;
        let [version, in_place, lacks] = everyone.share(first, own)?.map(|number| number as i32);
        let [major, minor, patch] = [version / 10000, version / 100 % 100, version % 100];
        let version = format!("{major}.{minor}.{patch}");
        let of_bit = |(i, kind): (usize, Kind)| (lacks >> i & 1 == 1).then_some(kind);
        let lacks = Kind::EACH.into_iter().enumerate().filter_map(of_bit).collect();
        let (name, has_all_to_all_in_place) = (name.to_owned(), in_place == 1);
        Ok(Self { name, version, lacks, has_all_to_all_in_place, first, team })
    }

    /// Returns whether the library has an operation.
    pub(super) fn has(&self, kind: Kind) -> bool {
        !self.lacks.contains(&kind)
    }

    /// Returns whether the library has an operation out of place or in place.
    pub(super) fn has_form(&self, kind: Kind, place: Place) -> bool {
        self.has_all_to_all_in_place || (kind, place) != (Kind::AllToAll, Place::In)
    }

    /// Has the team of this player work while the others wait; returns its figures to all.
    fn turn(
        &mut self,
        everyone: &Control,
        work: impl FnOnce(&mut Team<'a>) -> Result<[f64; 2]>,
    ) -> Result<[f64; 2]> {
        let own = self.team.as_mut().map(work).transpose()?;
        everyone.share(self.first, own)
    }
}

/// Returns this process's place among those of its library, and the number of the library, for
/// `libraries` of them.
pub(super) fn seat(launch: &Launch, libraries: u32) -> Result<(Launch, u32)> {
    if libraries == 1 {
        return Ok((launch.clone(), 0));
    }
    let Launch { rank, nranks, local_rank, .. } = *launch;
    if !nranks.is_multiple_of(libraries) || local_rank != rank {
        return Err(Error::Options(format!(
            "--vs: this is process {rank} of {nranks}, and number {local_rank} on its host; \
             expected an even number of processes, all on one host: the first half measures the \
             first library, the others the second; use --ranks, or start them so"
        )));
    }
    let each = nranks / libraries;
    let rank = rank % each;
    let own = Launch { rank, nranks: each, local_rank: rank, ..launch.clone() };
    Ok((own, launch.rank / each))
}

/// The facts that all rows of a measurement share.
pub(super) struct Setting<'a> {
    pub(super) options: &'a Options,
    pub(super) device: Device,
    /// The name of the GPU; empty on the host.
    pub(super) device_name: String,
    /// The version of NVIDIA's driver; `None` on the host, or where it is not told.
    pub(super) driver: Option<String>,
    /// The day and time at which it began.
    pub(super) date: String,
    pub(super) nranks: u32,
}

impl<'a> Setting<'a> {
    /// Requires the device to be the calling thread's.
    pub(super) fn new(options: &'a Options, device: Device, nranks: u32) -> Result<Self> {
        let device_name = if device.is_cuda() { cuda::name()? } else { String::new() };
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let date = utc(since.map_or(0, |since| since.as_secs()));
        let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
        let driver = text.as_deref().filter(|_| device.is_cuda()).and_then(driver_version);
        let driver = driver.map(str::to_owned);
        Ok(Self { options, device, device_name, driver, date, nranks })
    }

    fn row(
        &self,
        player: &Player<'_>,
        case: &Case,
        place: Place,
        rounds: &[Times],
        [wrong, blocks]: [f64; 2],
    ) -> Row {
        let mean = |of: fn(&Times) -> f64| rounds.iter().map(of).sum::<f64>() / rounds.len() as f64;
        let times = rounds.iter().map(|times| times.time_us);
        let (time_us, options) = (mean(|times| times.time_us), self.options);
        let algbw = case.bytes as f64 / time_us / 1e3;
        let collective = case.kind.collective();
        let rooted = collective.is_some_and(|c| c.rooted());
        let per_round = self.iterations(case) * options.aggregate.max(1) * options.graph.max(1);
        Row {
            collective: case.kind.name(),
            lib: player.name.clone(),
            bytes: case.bytes,
            count: case.count,
            dtype: case.dtype.name(),
            op: if collective.is_some_and(|c| c.reduces()) { case.op.name() } else { "none" },
            root: if rooted { i64::from(case.spec.root) } else { -1 },
            in_place: place == Place::In,
            pair: case.pair,
            iterations: per_round * rounds.len() as u32,
            time_us,
            time_us_min: times.fold(f64::INFINITY, f64::min),
            cpu_us: mean(|times| times.cpu_us),
            algbw,
            busbw: algbw * case.bus_factor(),
            blocks: self.device.is_cuda().then_some(blocks as u32),
            ratio: None,
            wrong: wrong as u64,
        }
    }

    /// Returns the timed iterations of a round.
    fn iterations(&self, case: &Case) -> u32 {
        self.options.iterations(case.bytes, self.device.is_cuda()).div_ceil(ROUNDS)
    }

    /// Measures a case with every player in turn, in [`ROUNDS`] rounds. The rows of the first one
    /// have the ratio to its time of the last one's.
    pub(super) fn alternate(
        &self,
        everyone: &Control,
        players: &mut [Player<'_>],
        case: &Case,
    ) -> Result<Vec<Row>> {
        let mut all: Vec<Row> = Vec::new();
        let iterations = self.iterations(case);
        let has = |place: &Place| {
            case.has(*place) && players.iter().all(|player| player.has_form(case.kind, *place))
        };
        let places: Vec<Place> = [Place::Out, Place::In].into_iter().filter(has).collect();
        for place in places {
            let mut rounds = vec![Vec::new(); players.len()];
            for _ in 0..ROUNDS {
                for (player, rounds) in players.iter_mut().zip(&mut rounds) {
                    let [time_us, cpu_us] = player.turn(everyone, |team| {
                        let times = team.time(case, place, iterations)?;
                        Ok([times.time_us, times.cpu_us])
                    })?;
                    rounds.push(Times { time_us, cpu_us });
                }
            }
            let mut rows = Vec::new();
            for (player, rounds) in players.iter_mut().zip(&rounds) {
                let checked = player.turn(everyone, |team| {
                    let blocks = f64::from(team.blocks(case, place)?);
                    Ok([team.check(case, place)? as f64, blocks])
                })?;
                rows.push(self.row(player, case, place, rounds, checked));
            }
            if let [first, .., last] = &mut rows[..] {
                first.ratio = Some(last.time_us / first.time_us);
            }
            all.append(&mut rows);
        }
        Ok(all)
    }
}

/// Rounds in which a case is measured; its iterations are divided among the rounds.
const ROUNDS: u32 = 3;

/// Returns the day and the time of so many seconds since 1970, in UTC.
fn utc(seconds: u64) -> String {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_runtime::bootstrap::launch::Meet;

    #[test]
    fn seconds_since_1970_have_a_date() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59:59Z");
    }

    #[test]
    fn each_library_has_one_half_of_the_processes_of_the_host() {
        let launch = |rank, nranks, local_rank| {
            let meet = Meet::Host(String::new());
            Launch { rank, nranks, local_rank, meet, launcher: "a test" }
        };
        let seat = |libraries, rank, nranks, local_rank| {
            let found = seat(&launch(rank, nranks, local_rank), libraries);
            found.map(|(own, library)| (own.rank, own.nranks, own.local_rank, library))
        };
        assert_eq!(seat(1, 3, 5, 1).expect("a place"), (3, 5, 1, 0));
        assert_eq!(seat(2, 1, 6, 1).expect("a place"), (1, 3, 1, 0));
        assert_eq!(seat(2, 5, 6, 5).expect("a place"), (2, 3, 2, 1));
        for (rank, nranks, local_rank) in [(0, 3, 0), (3, 6, 0)] {
            let text = seat(2, rank, nranks, local_rank).expect_err("no place").to_string();
            assert!(text.contains("an even number of processes, all on one host"), "{text}");
        }
    }
}
