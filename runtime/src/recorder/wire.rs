//! The records of a process as bytes, for processes on other hosts.

use super::read::{MAX_RANKS, Process, RankReport, plain};

/// The most bytes of an answer.
pub const MAX_BYTES: usize = 64 << 10;
/// The numbers of operations of each rank of which one is tried after the other until all fits.
const KEPT: [usize; 5] = [16, 8, 4, 1, 0];

/// Returns what a process records, with as many of the latest operations, and of the ranks, as
/// there is room for.
pub fn encode(process: &Process) -> Vec<u8> {
    let mut process = process.clone();
    for kept in KEPT {
        for rank in &mut process.ranks {
            rank.operations.drain(..rank.operations.len().saturating_sub(kept));
            rank.kernels.drain(..rank.kernels.len().saturating_sub(kept));
        }
        let bytes = bytes(&process);
        if bytes.len() <= MAX_BYTES {
            return bytes;
        }
    }
    loop {
        process.ranks.truncate(process.ranks.len() / 2);
        process.left_out = true;
        let bytes = bytes(&process);
        if bytes.len() <= MAX_BYTES || process.ranks.is_empty() {
            return bytes;
        }
    }
}

fn bytes(process: &Process) -> Vec<u8> {
    // Numbers, texts and lists can always be written.
    serde_json::to_vec(process).unwrap_or_default()
}

/// Returns the process that bytes describe; `None` if they describe none.
pub fn decode(bytes: &[u8]) -> Option<Process> {
    let mut process: Process = serde_json::from_slice(bytes).ok()?;
    process.ranks.retain(|rank| rank.rank < rank.nranks && rank.nranks <= MAX_RANKS);
    let Process { host, address, service, command, unanswered, .. } = &mut process;
    [host, address, service, command].into_iter().for_each(clean);
    unanswered.iter_mut().for_each(|of| clean(&mut of.host));
    for RankReport { name, failure, operations, kernels, .. } in &mut process.ranks {
        [name, &mut failure.text].into_iter().for_each(clean);
        kernels.iter_mut().for_each(|run| clean(&mut run.what));
        for operation in operations {
            clean(&mut operation.what);
            operation.plan.iter_mut().chain(&mut operation.carrier).for_each(clean);
        }
    }
    // Nobody waits for a rank that does not exist.
    let ranks = process.ranks.iter_mut();
    for (nranks, waiting) in ranks.filter_map(|rank| Some((rank.nranks, rank.waiting.as_mut()?))) {
        waiting.peer = waiting.peer.filter(|peer| *peer < nranks);
    }
    Some(process)
}

fn clean(text: &mut String) {
    *text = plain(std::mem::take(text));
}

#[cfg(test)]
mod tests {
    use super::super::read::{OperationReport, ProcessState, Unanswered};
    use super::super::{Kind, Source, Stage};
    use super::*;
    use crate::op::descriptor::Descriptor;
    use crate::recorder::KernelCollective;
    use crate::recorder::read::{Awaited, Failure, KernelReport};
    use oxccl_plan::DataType;

    fn operation(number: u64) -> OperationReport {
        OperationReport {
            number,
            kind: Kind::Exchange,
            of_kind: number,
            what: "send/recv".to_owned(),
            plan: None,
            carrier: None,
            bytes: 7,
            peer: Some(1),
            sends: Some(true),
            transfers: 1,
            stream: 1,
            tag: 0,
            called_ns: 5,
            begun_ns: None,
            ended_ns: None,
            descriptor: Descriptor::message(DataType::Int8, number),
        }
    }

    fn kernel(number: u64) -> KernelReport {
        let (what, ended_ns) = ("broadcast".to_owned(), Some(8));
        let descriptor = Descriptor::from_words(0x5, 7);
        KernelReport { number: Some(number), call: None, what, descriptor, begun_ns: 7, ended_ns }
    }

    fn process(ranks: u32, operations: u64) -> Process {
        let rank = |rank| RankReport {
            parent: Some(3),
            comm: u64::MAX,
            name: "tp".to_owned(),
            rank,
            nranks: ranks,
            gpu: Some(3),
            device: 3,
            stage: Stage::Failed,
            begun_ns: 1,
            issued: operations,
            finished: 0,
            collectives: 0,
            collectives_by_kind: [0; 8],
            bytes_by_kind: [1; 8],
            other_bytes: 2,
            waited_ns: 3,
            finalized: false,
            destroyed: true,
            aborted: false,
            waiting: Some(Awaited {
                number: None,
                collective: Some(KernelCollective {
                    number: 5,
                    descriptor: Descriptor::from_words(0x5, u64::MAX),
                    peer_has_begun: Some(true),
                }),
                peer: Some(1),
                step: None,
                since_ns: 4,
                looked_ns: 5,
            }),
            failure: Failure {
                text: "over".to_owned(),
                code: 6,
                source: Source::Peer(2),
                since_ns: Some(6),
            },
            operations: (0..operations).map(operation).collect(),
            kernels: (0..operations).map(kernel).collect(),
            kernels_error_ns: 9,
        };
        Process {
            pid: 7,
            host: "node".to_owned(),
            address: "192.0.2.1".to_owned(),
            service: "127.0.0.1:28028".to_owned(),
            command: "train".to_owned(),
            state: ProcessState::Alive,
            read_ns: 9,
            clock_set_ns: -3,
            ranks: (0..ranks).map(rank).collect(),
            left_out: false,
            unanswered: vec![Unanswered {
                comm: 3,
                rank: 1,
                host: "192.0.2.2".to_owned(),
                pid: 8,
                cut_ns: None,
            }],
        }
    }

    #[test]
    fn a_process_arrives_as_it_is_with_its_latest_operations() {
        let few = process(2, 16);
        assert_eq!(decode(&encode(&few)), Some(few));
        let sent = decode(&encode(&process(1, 64))).expect("a process");
        let numbers: Vec<_> = sent.ranks[0].operations.iter().map(|op| op.number).collect();
        assert_eq!(numbers, (48..64).collect::<Vec<_>>());
        let numbers: Vec<_> = sent.ranks[0].kernels.iter().filter_map(|run| run.number).collect();
        assert_eq!(numbers, (48..64).collect::<Vec<_>>());
    }

    #[test]
    fn what_has_no_room_is_left_out_and_what_is_no_process_is_refused() {
        for ranks in [20, 100, 1024] {
            let bytes = encode(&process(ranks, 64));
            let sent = decode(&bytes).expect("a process");
            assert!(bytes.len() <= MAX_BYTES && !sent.ranks.is_empty(), "{}", bytes.len());
            assert_eq!(sent.left_out, (sent.ranks.len() as u32) < ranks);
        }
        let mut odd = process(2, 1);
        odd.command = "\u{1b}[2J".to_owned();
        odd.ranks[0].nranks = 0;
        odd.ranks[1].nranks = u32::MAX;
        let sent = decode(&encode(&odd)).expect("a process");
        assert_eq!((&sent.command[..], sent.ranks.len()), ("\u{fffd}[2J", 0));
        let sent = decode(&encode(&process(1, 1))).expect("a process");
        assert_eq!(sent.ranks[0].waiting.and_then(|waiting| waiting.peer), None, "of one rank");
        for bytes in [&b""[..], b"{}", b"[1]", &[0xff; 9]] {
            assert_eq!(decode(bytes), None);
        }
    }
}
