//! The memory that the ranks of a host share: the communicator's segment, and the descriptors of
//! the arenas of their processes.

use super::Rendezvous;
use super::members::Members;
use crate::bootstrap::UniqueId;
use crate::bootstrap::descriptors::{self, Group, Listener};
use crate::device;
use crate::error::{Error, Result};
use crate::link::direct::{Segment, SegmentLayout};
use crate::os::memory::{Mapping, sealed_memfd};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashSet;
use std::sync::Arc;

/// The segment of the ranks of this host, and the arenas of their processes, each with a rank.
pub(super) type Shared = (Option<Arc<Segment>>, Vec<(u32, OwnedFd)>);

/// Makes the segment of this host's ranks, or receives it from the leader, and exchanges the
/// descriptors of the arenas. A rank that is alone on its host shares nothing. Blocks for the ranks
/// of this host.
pub(super) fn share(
    members: &Members,
    id: &UniqueId,
    listener: Listener,
    edge_slot_bytes: usize,
    rendezvous: &mut Rendezvous,
) -> Result<Shared> {
    let Members { rank, infos, ranks, .. } = members;
    if ranks.len() < 2 {
        return Ok((None, Vec::new()));
    }
    // Ranks of one process share an arena, which is passed once: one descriptor per thread could
    // fill the table of descriptors.
    let mut seen = HashSet::new();
    let first = |r: &&u32| seen.insert(infos[**r as usize].process.id);
    let shown: Vec<u32> = ranks.iter().filter(first).copied().collect();
    let (comm, secret, deadline) = (id.comm, id.secret, rendezvous.session.deadline().clone());
    let group = Group { rank: *rank, ranks, shown: &shown, comm, secret, deadline };
    let layout = SegmentLayout { nlocal: ranks.len(), edge_slot_bytes };
    let mut none = None;
    let own = device::arena_fd(&mut none)?;
    let session = Some(&mut rendezvous.session);
    let mut fds = if *rank == ranks[0] {
        let segment = sealed_memfd("oxccl-comm", layout.bytes())?;
        descriptors::lead(&group, listener, (own, segment.as_fd()), session)?
    } else {
        descriptors::follow(&group, &infos[ranks[0] as usize].socket, own, session)?
    };
    let missing = || Error::Init { why: "the leader sent no segment".to_owned() };
    let segment = fds.pop().ok_or_else(missing)?;
    let mapping = Mapping::of(segment.as_fd(), layout.bytes())?;
    let segment = Arc::new(Segment::new(mapping, layout));
    segment.initialise(members.own_place(), members.counter_start());
    Ok((Some(segment), shown.into_iter().zip(fds).collect()))
}
