//! Jobs for the tests of the reports.

use super::{Known, Peer, Place, Survey, peers};
use crate::op::descriptor::Descriptor;
use crate::ras::verdict::{Cause, Verdict};
use crate::recorder::read::{Failure, OperationReport, Process, ProcessState, RankReport};
use crate::recorder::{Kind, Source, Stage};
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};

const HOST: &str = "172.16.64.245";

/// An all-reduce of so many floats.
pub(in crate::ras) fn descriptor(count: u64) -> Descriptor {
    let spec = Spec::new(Collective::AllReduce, 2, 0);
    Descriptor::collective(&spec, DataType::Float32, ReduceOp::Sum, false, count)
}

/// A collective of so many elements that was called at a time.
pub(in crate::ras) fn call(number: u64, count: u64, called_ns: u64) -> OperationReport {
    OperationReport {
        number,
        kind: Kind::Collective,
        of_kind: number,
        what: descriptor(count).to_string(),
        plan: descriptor(count).plans(),
        carrier: None,
        bytes: 4 * count,
        peer: None,
        sends: None,
        transfers: 0,
        stream: 1,
        tag: 0,
        called_ns,
        begun_ns: Some(called_ns),
        ended_ns: None,
        descriptor: descriptor(count),
    }
}

/// A rank that has called 5 broadcasts and so many reductions to all.
pub(in crate::ras) fn rank(comm: u64, number: u32, nranks: u32, all_reduces: u64) -> RankReport {
    RankReport {
        comm,
        parent: None,
        name: String::new(),
        rank: number,
        nranks,
        gpu: Some(number % 8),
        device: number % 8,
        stage: Stage::Running,
        begun_ns: 0,
        issued: all_reduces + 5,
        finished: all_reduces,
        collectives: all_reduces + 5,
        collectives_by_kind: [all_reduces, 5, 0, 0, 0, 0, 0, 0],
        bytes_by_kind: [0; 8],
        other_bytes: 0,
        waited_ns: 0,
        finalized: false,
        destroyed: false,
        aborted: false,
        waiting: None,
        failure: Failure { text: String::new(), code: 0, source: Source::Here, since_ns: None },
        operations: Vec::new(),
        kernels: Vec::new(),
        kernels_error_ns: 0,
    }
}

pub(in crate::ras) fn process(pid: u32, address: &str, ranks: Vec<RankReport>) -> Process {
    Process {
        pid,
        host: "node1".to_owned(),
        address: address.to_owned(),
        command: "train".to_owned(),
        state: ProcessState::Alive,
        read_ns: 0,
        clock_set_ns: 0,
        left_out: false,
        unanswered: Vec::new(),
        service: String::new(),
        ranks,
    }
}

/// A process with these devices.
pub(super) fn peer(pid: u32, devices: &[u32]) -> Peer {
    let ranks = devices.iter().map(|&device| rank(1, device, 8, 0)).collect();
    peers(&[process(pid, HOST, ranks)]).remove(0)
}

/// Four hosts of eight ranks each, with one communicator of all and one on each host.
pub(super) fn healthy() -> Survey {
    let ranks = (0u32..32).map(|number| {
        let (node, local) = (number / 8, number % 8);
        let ranks = vec![rank(1, number, 32, 9), rank(u64::from(node) + 2, local, 8, 3)];
        process(100 + number, &format!("10.0.0.{node}"), ranks)
    });
    let survey = Survey::new(&ranks.collect::<Vec<_>>(), &[], Vec::new(), 0.0014);
    Survey { cuda_versions: (13000, 13020), ..survey }
}

/// Two ranks of four, of which one is dead and another one unknown.
pub(super) fn incomplete() -> Survey {
    let comm = 0xae94_423c_fbb2_ef4a;
    let job =
        [0u32, 2].map(|number| process(1_524_344 + number, HOST, vec![rank(comm, number, 4, 7)]));
    let place = Place { host: HOST.to_owned(), pid: 1_524_345, device: 1 };
    let known = [Known { comm, rank: 1, place, dead: true, answered: false }];
    let text = "ranks 0, 2 wait for rank 1".to_owned();
    let causes = vec![Verdict { cause: Cause::Unseen, comm, ranks: vec![1], text }];
    let survey = Survey::new(&job, &known, causes, 0.0);
    Survey { cuda_versions: (13000, 13010), ..survey }
}

/// A communicator of twelve ranks: one has failed, one is aborted, one is being made, one has gone,
/// one has not answered, and four have called less than the others.
pub(super) fn differing() -> Survey {
    let comm = 0x27a0_79b8_28ff_1a75;
    let mut job: Vec<_> = (0u32..12)
        .map(|number| {
            let calls = if [3, 4, 7, 8].contains(&number) { 6649 } else { 6650 };
            process(200 + number, "10.0.0.1", vec![rank(comm, number, 12, calls)])
        })
        .collect();
    job[1].ranks[0].stage = Stage::Failed;
    job[1].ranks[0].failure.code = 6;
    job[2].ranks[0].aborted = true;
    job[2].ranks[0].failure.code = 6;
    job[5].ranks[0].stage = Stage::Creating;
    job[5].ranks[0].collectives_by_kind = [0; 8];
    job[6].ranks[0].destroyed = true;
    let gone = job.split_off(10);
    let known = |process: &Process, answered| Known {
        comm,
        rank: process.ranks[0].rank,
        place: Place {
            host: process.address.clone(),
            pid: process.pid,
            device: process.ranks[0].device,
        },
        dead: false,
        answered,
    };
    let known = [known(&gone[0], true), known(&gone[1], false)];
    Survey::new(&job, &known, Vec::new(), 1.25)
}

/// Processes with one device on one host, and with two on another one.
pub(super) fn irregular() -> Survey {
    let job = [
        process(1, "10.0.0.1", vec![rank(1, 0, 4, 0)]),
        process(2, "10.0.0.1", vec![rank(1, 1, 4, 0)]),
        process(3, "10.0.0.2", vec![rank(1, 2, 4, 0), rank(1, 3, 4, 0)]),
    ];
    Survey::new(&job, &[], Vec::new(), 0.0)
}

/// A communicator of 60,000 ranks on two hosts, of which a third has not answered.
pub(super) fn vast() -> Survey {
    let (comm, size) = (1, 60_000);
    let job =
        (0..40_000).map(|number| process(number, "10.0.0.1", vec![rank(comm, number, size, 7)]));
    let known = (0..size).map(|number| {
        let place = Place { host: "10.0.0.2".to_owned(), pid: number, device: number % 8 };
        Known { comm, rank: number, place, dead: false, answered: false }
    });
    Survey::new(&job.collect::<Vec<_>>(), &known.collect::<Vec<_>>(), Vec::new(), 0.0)
}
