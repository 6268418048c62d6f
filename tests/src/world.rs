//! All ranks of a communicator in this process, by the Rust interface. Ranks in processes of their
//! own are started by [`crate::job`], simulated ones by [`crate::simulation`].

use crate::sequence::Player;
use oxccl_runtime::bootstrap;
use oxccl_runtime::comm::{Communicator, Member, Options, create};
use oxccl_runtime::device::Device;
use oxccl_runtime::device::host::stream::Stream;
use std::sync::Arc;

/// Runs a function as every rank of a new communicator, each in a thread of its own. Returns the
/// results by rank.
pub fn on_threads<T: Send>(
    nranks: u32,
    options: &Options,
    run: impl Fn(Player) -> T + Sync,
) -> Vec<T> {
    let id = bootstrap::new_unique_id().expect("an id");
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (id, device, options) = (id.clone(), Device::Host(rank as i32), options.clone());
            let member = Member { id, rank, nranks, device, options };
            let run = &run;
            scope.spawn(move || {
                let comm = Arc::new(create(&member).expect("a communicator"));
                run(Player { comm, stream: Stream::new() })
            })
        };
        let threads: Vec<_> = (0..nranks).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// All ranks of a new communicator, each with a stream, for one thread.
pub fn players(nranks: u32) -> Vec<Player> {
    on_threads(nranks, &Options::default(), |player| player)
}

/// All ranks of a new communicator.
pub fn communicators(nranks: u32) -> Vec<Arc<Communicator>> {
    players(nranks).into_iter().map(|player| player.comm).collect()
}
