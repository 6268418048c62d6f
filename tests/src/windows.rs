//! Random one-sided operations, checked against what every rank knows to be written.

use crate::sequence::{Player, Random};
use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::device::host::arena;
use oxccl_runtime::op::{Awaiting, Call, OneSided};
use oxccl_runtime::{Result, group};

/// Bytes of the window that each rank may write, in every other rank's window and its own.
const SHARE: usize = 300_000;

/// One round of puts: of which rank, to which one, which bytes of its share, and what is in them.
#[derive(Clone, Copy)]
struct Written {
    from: u32,
    to: u32,
    at: usize,
    len: usize,
    value: u8,
    index: i32,
}

fn barrier(player: &Player) -> Result<()> {
    let spec = Spec::new(Collective::AllReduce, player.comm.nranks(), 0);
    let (input, mut output) = (1u8, 0u8);
    let (from, to) = (&raw const input, &raw mut output);
    let (dtype, op) = (DataType::Uint8, ReduceOp::Sum);
    let call = Call { spec, input: from, output: to, count: 1, dtype, op, scale: None };
    group::collective(&player.comm, &call, &player.stream)?;
    player.stream.synchronize(None)?;
    assert_eq!(u32::from(output), player.comm.nranks());
    Ok(())
}

/// Plays so many rounds; every rank draws the same from the seed. Panics where a byte is wrong.
pub fn play(player: &Player, seed: u64, rounds: u32, mapped: bool) -> Result<()> {
    let comm = &player.comm;
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let len = SHARE * nranks as usize;
    let mut plain = vec![0u8; if mapped { 0 } else { len }];
    let base = if mapped { arena::allocate(len)? } else { plain.as_mut_ptr() };
    let windows: Vec<u64> =
        (0..3).map(|_| comm.register_window(base, len)).collect::<Result<_>>()?;
    let mut model = vec![0u8; len];
    let mut random = Random(seed);
    for round in 0..rounds {
        let puts: Vec<Written> = (0..1 + random.below(8))
            .map(|_| {
                let (from, to) = (random.below(u64::from(nranks)), random.below(u64::from(nranks)));
                let at = random.below(SHARE as u64) as usize;
                let len = random.below((SHARE - at) as u64 + 1) as usize;
                let len = if random.below(4) == 0 { len } else { len.min(200) };
                let (value, index) = (random.draw() as u8, random.below(16) as i32);
                Written { from: from as u32, to: to as u32, at, len, value, index }
            })
            .collect();
        let window = windows[random.below(3) as usize];
        let grouped = random.below(2) == 0;
        let data: Vec<Vec<u8>> = puts.iter().map(|p| vec![p.value; p.len]).collect();
        if grouped {
            group::start();
        }
        for (put, data) in puts.iter().zip(&data).filter(|(p, _)| p.from == rank) {
            let signal = comm.signal_number(put.index, 0).expect("it is in range");
            let target = (put.to, window, rank as usize * SHARE + put.at);
            let work = comm.put_signal((data.as_ptr(), put.len), target, signal);
            let work = work.expect("the window lives")?;
            group::operation(comm, work, &player.stream)?;
        }
        let awaiting: Vec<Awaiting> = puts
            .iter()
            .filter(|p| p.to == rank)
            .map(|p| {
                let signal = comm.signal_number(p.index, 0).expect("it is in range");
                Awaiting { peer: p.from, signal, count: 1 }
            })
            .collect();
        group::operation(comm, OneSided::Wait(awaiting), &player.stream)?;
        if grouped {
            group::end()?;
        }
        player.stream.synchronize(None)?;
        for put in puts.iter().filter(|p| p.to == rank) {
            let at = put.from as usize * SHARE + put.at;
            model[at..at + put.len].fill(put.value);
        }
        // SAFETY: the window lives, and everything for it has come.
        let window = unsafe { std::slice::from_raw_parts(base, len) };
        assert!(window == model, "rank {rank}, round {round}: the window is not as written");
        barrier(player)?;
    }
    assert!(windows.iter().all(|&window| comm.deregister_window(window)));
    assert!(!comm.deregister_window(windows[0]), "a dead window lives");
    if mapped {
        arena::free(base)?;
    }
    drop(plain);
    Ok(())
}
