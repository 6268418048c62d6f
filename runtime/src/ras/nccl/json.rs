//! The state of a job as the JSON document that NCCL's service writes, with one more key: the
//! causes of a standstill.

use super::{Answer, COUNTED, CommState, Missing, Place, Survey, layout};
use crate::NCCL_VERSION;
use crate::ras::verdict::Verdict;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

#[derive(Serialize)]
struct Report<'a> {
    nccl_version: &'static str,
    cuda_runtime_version: i32,
    cuda_driver_version: i32,
    timestamp: &'a str,
    communicators_count: usize,
    communicators: Vec<Communicator<'a>>,
    ras: Ras,
    causes: &'a [Verdict],
}

#[derive(Serialize)]
struct Communicator<'a> {
    hash: String,
    secondary_hash: String,
    size: u32,
    ranks_count: usize,
    missing_ranks_count: usize,
    ranks: Vec<Rank<'a>>,
    missing_ranks: Vec<MissingRank<'a>>,
}

#[derive(Serialize)]
struct Rank<'a> {
    rank: u32,
    host: &'a str,
    pid: u32,
    cuda_dev: u32,
    nvml_dev: u32,
    status: Status,
    collective_counts: Counts,
}

#[derive(Serialize)]
struct Status {
    init_state: u32,
    async_error: u32,
    finalize_called: bool,
    destroy_flag: bool,
    abort_flag: bool,
}

/// The numbers of calls of the collectives that are [`COUNTED`].
struct Counts([u64; COUNTED.len()]);

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(COUNTED.len()))?;
        for ((_, name), count) in COUNTED.iter().zip(self.0) {
            map.serialize_entry(name, &count)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct MissingRank<'a> {
    rank: u32,
    host: &'a str,
    pid: i64,
    cuda_dev: i64,
    nvml_dev: i64,
    status: MissingStatus,
}

#[derive(Serialize)]
struct MissingStatus {
    unresponsive: bool,
    considered_dead: bool,
}

#[derive(Serialize)]
struct Ras {
    collection_time_sec: f64,
    timeouts_count: usize,
}

impl<'a> Communicator<'a> {
    fn of(comm: &'a CommState) -> Self {
        let CommState { number, size, ref answers, ref missing } = *comm;
        // The number is random, and the same on all ranks: parts of it tell no more than it does.
        let secondary_hash = format!("{:#x}:{:#x}", number.rotate_left(32), !number);
        Self {
            hash: format!("{number:#x}"),
            secondary_hash,
            size,
            ranks_count: answers.len(),
            missing_ranks_count: missing.len(),
            ranks: answers.iter().map(Rank::of).collect(),
            missing_ranks: missing.iter().map(MissingRank::of).collect(),
        }
    }
}

impl<'a> Rank<'a> {
    fn of(answer: &'a Answer) -> Self {
        let Answer { rank, ref place, init_state, async_error, counts, .. } = *answer;
        let Place { ref host, pid, device } = *place;
        let status = Status {
            init_state,
            async_error,
            finalize_called: answer.finalized,
            destroy_flag: answer.destroyed,
            abort_flag: answer.aborted,
        };
        let (cuda_dev, nvml_dev) = (device, device);
        Self { rank, host, pid, cuda_dev, nvml_dev, status, collective_counts: Counts(counts) }
    }
}

impl<'a> MissingRank<'a> {
    fn of(missing: &'a Missing) -> Self {
        let Missing { rank, ref place, unresponsive, dead: considered_dead } = *missing;
        let number = |of: fn(&Place) -> u32| place.as_ref().map_or(-1, |place| of(place).into());
        let device = number(|place| place.device);
        Self {
            rank,
            host: place.as_ref().map_or("unknown", |place| &place.host),
            pid: number(|place| place.pid),
            cuda_dev: device,
            nvml_dev: device,
            status: MissingStatus { unresponsive, considered_dead },
        }
    }
}

/// Returns the state of a job as a document of this time of day.
pub fn report(survey: &Survey, timestamp: &str) -> String {
    let communicators: Vec<_> = survey.comms.iter().map(Communicator::of).collect();
    let (cuda_runtime_version, cuda_driver_version) = survey.cuda_versions;
    let report = Report {
        nccl_version: NCCL_VERSION,
        cuda_runtime_version,
        cuda_driver_version,
        timestamp,
        communicators_count: communicators.len(),
        communicators,
        ras: Ras { collection_time_sec: survey.seconds, timeouts_count: survey.timeouts },
        causes: &survey.causes,
    };
    layout::document(&report, false)
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn the_document_of_a_job_has_nccls_keys_in_their_order() {
        let text = report(&samples::incomplete(), "2026-11-25 13:06:53");
        assert_eq!(text, include_str!("samples/incomplete.json"));
    }

    #[test]
    fn a_job_without_communicators_has_a_document_too() {
        let text = report(&Survey::new(&[], &[], Vec::new(), 0.0), "2026-11-25 13:06:53");
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(document["communicators_count"], 0);
        assert!(text.contains("\"communicators\": [\n\n  ],\n"), "{text}");
        assert!(text.ends_with("  \"causes\": [\n\n  ]\n}\n"), "{text}");
    }
}
