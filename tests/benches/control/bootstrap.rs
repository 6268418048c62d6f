//! The bootstrap of many ranks in one process: over TCP, and the state machines alone.

use oxccl_runtime::bootstrap::auth::{Ends, Role};
use oxccl_runtime::bootstrap::root::{self, BYE, GATHER, JOIN, MAX_BLOB, TABLE};
use oxccl_runtime::bootstrap::wire::{Connection, Frame};
use oxccl_runtime::bootstrap::{Cancel, Deadline, UniqueId, session};
use std::time::{Duration, Instant};

/// The size of what a rank tells about itself when a communicator is made.
const BLOB: usize = 118;
const LIMIT: Duration = Duration::from_secs(60);
/// Threads that drive the ranks over TCP.
const THREADS: u32 = 2;

/// A round of a rank: the first frame also tells the number of ranks.
fn frame(kind: u8, n: u32, rank: u32) -> Frame {
    let mut body = if kind == JOIN { n.to_le_bytes().to_vec() } else { Vec::new() };
    body.resize(body.len() + if kind == JOIN { BLOB } else { 2 }, rank as u8);
    Frame { kind, body }
}

/// Whether a table holds what all ranks told.
fn check(table: &[u8], n: u32) {
    let blobs = root::split_table(table, n).expect("a table");
    assert!((0u32..).zip(&blobs).all(|(rank, blob)| blob.iter().all(|&b| b == rank as u8)));
}

/// The rounds of the initialisation of some ranks, over connections with a rendezvous.
fn drive(id: &UniqueId, n: u32, ranks: std::ops::Range<u32>) {
    let deadline = Deadline::new(LIMIT, &Cancel::default());
    let open = |rank| {
        let ends = Ends { role: Role::Rendezvous, from: rank, to: u32::MAX, comm: id.comm };
        let max_body = (MAX_BLOB + 4) * n as usize;
        let mut connection = Connection::connect(id.address, id.secret, ends, max_body, &deadline)
            .expect("a connection");
        connection.wait_open(&deadline).expect("a handshake");
        (rank, connection)
    };
    let mut connections: Vec<_> = ranks.map(open).collect();
    for kind in [JOIN, GATHER] {
        for (rank, connection) in &mut connections {
            connection.send(&frame(kind, n, *rank));
            connection.progress(Instant::now()).expect("a frame is sent");
        }
        for (_, connection) in &mut connections {
            let answer = connection.wait_frame(&deadline, "the table").expect("a table");
            assert_eq!(answer.kind, TABLE);
            check(&answer.body, n);
        }
    }
    for (_, connection) in &mut connections {
        connection.send(&Frame { kind: BYE, body: Vec::new() });
        connection.progress(Instant::now()).expect("a frame is sent");
    }
}

/// Seconds from the first connection to the end of the rendezvous.
fn over_tcp(n: u32) -> f64 {
    let listener = session::listen("127.0.0.1:0".parse().expect("an address")).expect("a listener");
    let id = UniqueId::new(listener.local_addr().expect("an address")).expect("an id");
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| root::serve(listener, &id, LIMIT).expect("the rendezvous"));
        for thread in 0..THREADS {
            let (id, share) = (&id, n.div_ceil(THREADS));
            scope.spawn(move || drive(id, n, thread * share..((thread + 1) * share).min(n)));
        }
    });
    start.elapsed().as_secs_f64()
}

/// Prints the tables.
pub(crate) fn table() {
    println!("\nBootstrap over TCP on one host, {THREADS} threads for all ranks\n");
    println!("| ranks | limit s | s |\n|---|---|---|");
    for (n, limit) in [(64, ""), (256, ""), (1024, "2"), (4096, "")] {
        println!("| {n} | {limit} | {:.3} |", over_tcp(n));
    }
}
