//! The bootstrap of many ranks in one process: over TCP, and the state machines alone.

use oxccl_runtime::bootstrap::auth::{Client, Ends, Progress, Role, Server};
use oxccl_runtime::bootstrap::dial::Dial;
use oxccl_runtime::bootstrap::root::{
    self, Action, BYE, GATHER, JOIN, MAX_BLOB, MAX_RANKS, Machine, TABLE,
};
use oxccl_runtime::bootstrap::wire::{Connection, Frame};
use oxccl_runtime::bootstrap::{Cancel, Deadline, UniqueId, rendezvous, session};
use std::time::{Duration, Instant};

/// The size of what a rank tells about itself when a communicator is made.
const BLOB: usize = 134;
const LIMIT: Duration = Duration::from_secs(60);
/// Threads that drive the ranks over TCP.
const THREADS: u32 = 2;

/// A round of a rank: the first frame also tells the number of ranks.
fn frame(kind: u8, n: u32, rank: u32) -> Frame {
    let body = match kind {
        JOIN => root::join(n, LIMIT, &[rank as u8; BLOB]),
        _ => vec![rank as u8; 2],
    };
    Frame { kind, body }
}

fn bye() -> Frame {
    Frame { kind: BYE, body: Vec::new() }
}

/// Whether a table holds what all ranks told.
fn check(table: &[u8], n: u32) {
    let blobs = root::split_table(table, n).expect("a table");
    assert!((0u32..).zip(&blobs).all(|(rank, blob)| blob.iter().all(|&b| b == rank as u8)));
}

/// The rounds of the initialisation of some ranks, over connections with a rendezvous.
fn drive(id: &UniqueId, n: u32, ranks: std::ops::Range<u32>) {
    let deadline = Deadline::new(LIMIT, &Cancel::default());
    let open = |rank| -> (u32, Connection) {
        let ends = Ends { role: Role::Rendezvous, from: rank, to: u32::MAX, comm: id.comm };
        let max_body = (MAX_BLOB + 4) * n as usize;
        let mut dial = Dial::new(id.address.into(), id.address.to_string(), id.secret, ends);
        loop {
            let now = Instant::now();
            if let Some(connection) = dial.progress(now).expect("the same secret") {
                return (rank, connection.with_frames(max_body));
            }
            assert!(!deadline.passed(), "{}", dial.why());
            dial.wait_for_event(deadline.slice(), now);
        }
    };
    let mut connections: Vec<_> = ranks.map(open).collect();
    for kind in [JOIN, GATHER] {
        let mut early = Vec::with_capacity(connections.len());
        for (rank, connection) in &mut connections {
            connection.send(&frame(kind, n, *rank));
            // The last one to join may have the table already.
            early.push(connection.progress().expect("a frame is sent"));
        }
        for ((_, connection), early) in connections.iter_mut().zip(early) {
            let wait = || connection.wait_frame(&deadline, "the table").expect("a table");
            let answer = early.unwrap_or_else(wait);
            assert_eq!(answer.kind, TABLE);
            check(&answer.body, n);
        }
    }
    for (_, connection) in &mut connections {
        connection.send(&bye());
        connection.progress().expect("a frame is sent");
    }
}

/// Seconds from the first connection until all ranks have left the rendezvous.
fn over_tcp(n: u32) -> f64 {
    let listener = session::listen("127.0.0.1:0".parse().expect("an address")).expect("a listener");
    let id = UniqueId::new(listener.local_addr().expect("an address")).expect("an id");
    let start = Instant::now();
    std::thread::scope(|scope| {
        rendezvous::start(listener, id.clone(), Vec::new()).expect("the rendezvous");
        for thread in 0..THREADS {
            let (id, share) = (&id, n.div_ceil(THREADS));
            scope.spawn(move || drive(id, n, thread * share..((thread + 1) * share).min(n)));
        }
    });
    start.elapsed().as_secs_f64()
}

/// What the state machines alone took, with a driver in memory.
struct Simulated {
    seconds: f64,
    /// Messages of a rank, sent and received; the same for each.
    of_rank: usize,
    /// Messages of the rendezvous.
    of_root: usize,
    /// Bytes of the tables that a rank receives.
    result: usize,
}

/// Authenticates a rank; the number of messages.
fn authenticate(id: &UniqueId, rank: u32) -> usize {
    let ends = Ends { role: Role::Rendezvous, from: rank, to: u32::MAX, comm: id.comm };
    let mut server = Server::new(id.secret, ends, MAX_RANKS, None).expect("a server");
    let (mut client, hello) = Client::new(id.secret, ends, None).expect("a client");
    let Ok(Progress::Send(challenge)) = server.input(&hello) else { panic!("no challenge") };
    let Ok(Progress::Send(proof)) = client.input(&challenge) else { panic!("no proof") };
    let Ok(Progress::Done(welcome, _)) = server.input(&proof) else { panic!("no welcome") };
    assert!(matches!(client.input(&welcome), Ok(Progress::Done(bytes, _)) if bytes.is_empty()));
    4
}

fn simulated(n: u32) -> Simulated {
    let id = UniqueId::new("127.0.0.1:1".parse().expect("an address")).expect("an id");
    let start = Instant::now();
    let mut messages: Vec<usize> = (0..n).map(|rank| authenticate(&id, rank)).collect();
    let (mut machine, mut result) = (Machine::default(), 0);
    for kind in [JOIN, GATHER, BYE] {
        let mut actions = Vec::new();
        for rank in 0..n {
            messages[rank as usize] += 1;
            let frame = if kind == BYE { bye() } else { frame(kind, n, rank) };
            actions.extend(machine.frame(rank, "memory", frame));
        }
        match &actions[..] {
            [Action::Send(ranks, table)] => {
                // Every rank receives and splits the same table; one of them does it here.
                check(&table.body, n);
                result += table.body.len();
                ranks.iter().for_each(|&rank| messages[rank as usize] += 1);
            }
            [Action::Finish] if kind == BYE => {}
            other => panic!("{} actions", other.len()),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let (of_rank, of_root) = (messages.iter().max().copied().unwrap_or(0), messages.iter().sum());
    Simulated { seconds, of_rank, of_root, result }
}

/// Prints the tables.
pub(crate) fn table() {
    println!("\nBootstrap over TCP on one host, {THREADS} threads for all ranks\n");
    println!("| ranks | limit s | s |\n|---|---|---|");
    for (n, limit) in [(64, ""), (256, ""), (1024, "2"), (4096, "")] {
        println!("| {n} | {limit} | {:.3} |", over_tcp(n));
    }
    println!("\nBootstrap, state machines alone\n");
    println!("| ranks | s | messages per rank | at the rendezvous | bytes of result per rank |");
    println!("|---|---|---|---|---|");
    for n in [64, 256, 1024, 4096, 16384] {
        let Simulated { seconds, of_rank, of_root, result } = simulated(n);
        println!("| {n} | {seconds:.3} | {of_rank} | {of_root} | {result} |");
    }
}
