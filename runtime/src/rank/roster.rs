//! The members of the communicators of this process: where each of them runs, for those who ask
//! about the whole job. Asking takes no lock on which an operation waits.

use super::Rank;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A member of a communicator.
#[derive(Debug)]
pub struct Member {
    /// The address of the member's host.
    pub host: IpAddr,
    /// The number of its process in the process's own namespace.
    pub pid: u32,
    /// The number of its device.
    pub device: u32,
    /// True if its process has a number of this process's namespace.
    pub is_here: bool,
    dead: AtomicBool,
}

impl Member {
    /// Returns a member that lives.
    pub fn new(host: IpAddr, pid: u32, device: u32, is_here: bool) -> Self {
        Self { host, pid, device, is_here, dead: AtomicBool::new(false) }
    }

    /// Returns whether the member has died.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

/// The members of a communicator, by rank.
#[derive(Debug)]
pub struct Roster {
    /// The number of the communicator.
    pub comm: u64,
    /// The members.
    pub members: Vec<Member>,
}

static ROSTERS: Mutex<Vec<Weak<Roster>>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<Weak<Roster>>> {
    ROSTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the members of all communicators of this process.
pub fn rosters() -> Vec<Arc<Roster>> {
    lock().iter().filter_map(Weak::upgrade).collect()
}

impl Rank {
    /// Notes where the members of the communicator run.
    pub fn set_roster(&self, roster: Roster) {
        let roster = Arc::new(roster);
        let mut all = lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&roster));
        drop(all);
        let _ = self.roster.set(roster);
    }

    /// Returns the number of a peer's process, in its own namespace, and the address of its host,
    /// `None` for this rank's own one; `None` if that is not known.
    pub(super) fn process_of(&self, peer: u32) -> Option<(u32, Option<IpAddr>)> {
        let is_here = self.local.get(peer as usize)?.is_some();
        let member = self.roster.get()?.members.get(peer as usize)?;
        Some((member.pid, (!is_here).then_some(member.host)))
    }

    /// Notes on the roster that a member has died.
    pub(super) fn strike(&self, peer: u32) {
        if let Some(member) = self.roster.get().and_then(|r| r.members.get(peer as usize)) {
            member.dead.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rosters_tell_who_has_died_and_end_with_their_ranks() {
        let rank = Rank::new(0, vec![None; 2], None, vec![0; 2]);
        let member = |pid| Member::new([192, 0, 2, 1].into(), pid, 0, true);
        rank.set_roster(Roster { comm: 0x5e7, members: vec![member(1), member(2)] });
        let find = || rosters().into_iter().find(|roster| roster.comm == 0x5e7);
        let dead = || find().map(|r| r.members.iter().map(Member::is_dead).collect::<Vec<_>>());
        assert_eq!(dead(), Some(vec![false, false]));
        rank.lose(1, "its process ended".to_owned());
        assert_eq!(dead(), Some(vec![false, true]));
        drop(rank);
        assert_eq!(dead(), None);
    }
}
