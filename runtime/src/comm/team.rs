//! Teams: evenly spaced ranks of a communicator, as device-side programs address them.

use super::Communicator;

/// Ranks at even distances, with the place of the asking rank among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Team {
    /// Number of members.
    pub nranks: i32,
    /// The asking rank's place among the members.
    pub rank: i32,
    /// Distance of neighbours, in ranks of the communicator.
    pub stride: i32,
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the size of the blocks into which the ranks are divided so that all ranks of a block
/// share memory: the greatest size that divides every run of neighbouring ranks with equal hosts.
pub(super) fn size(hosts: impl IntoIterator<Item = u64>) -> u32 {
    let (mut size, mut run, mut last) = (0, 0, None);
    for host in hosts {
        if last.is_some_and(|l| l != host) {
            size = gcd(size, run);
            run = 0;
        }
        run += 1;
        last = Some(host);
    }
    gcd(size, run).max(1)
}

impl Communicator {
    /// Returns the team of all ranks.
    pub fn team_world(&self) -> Team {
        Team { nranks: self.nranks() as i32, rank: self.rank() as i32, stride: 1 }
    }

    /// Returns the block of neighbouring ranks that share memory with this one ("load-store
    /// accessible").
    pub fn team_lsa(&self) -> Team {
        Team {
            nranks: self.topology.team as i32,
            rank: (self.rank() % self.topology.team) as i32,
            stride: 1,
        }
    }

    /// Returns the ranks that have this rank's place in their blocks.
    pub fn team_rail(&self) -> Team {
        let nranks = (self.nranks() / self.topology.team) as i32;
        let rank = (self.rank() / self.topology.team) as i32;
        Team { nranks, rank, stride: self.topology.team as i32 }
    }

    /// Returns the communicator's rank for a member of a team; `None` if `member` is not in the
    /// team or its rank is not in the communicator.
    pub fn team_to_world(&self, team: Team, member: i32) -> Option<i32> {
        translate(team, member, self.team_world())
    }

    /// Returns the place in this rank's block for a member of a team; `None` if the member is not
    /// in the block.
    pub fn team_to_lsa(&self, team: Team, member: i32) -> Option<i32> {
        translate(team, member, self.team_lsa())
    }
}

/// Returns the place of a team's member in `to`, a team whose neighbours are one rank apart.
fn translate(team: Team, member: i32, to: Team) -> Option<i32> {
    let steps = i64::from(member) - i64::from(team.rank);
    let place = i64::from(to.rank) + steps * i64::from(team.stride);
    let known = (0..team.nranks).contains(&member);
    i32::try_from(place).ok().filter(|p| known && (0..to.nranks).contains(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_greatest_that_divide_every_run_of_a_host() {
        for (hosts, expected) in [
            (vec![7], 1),
            (vec![7, 7, 7, 7], 4),
            (vec![7, 7, 8, 8], 2),
            (vec![7, 7, 7, 7, 8, 8], 2),
            (vec![7, 7, 7, 8, 8], 1),
            (vec![7, 8, 7, 8], 1),
            (vec![7, 7, 8, 8, 7, 7], 2),
        ] {
            assert_eq!(size(hosts.iter().copied()), expected, "{hosts:?}");
        }
    }

    #[test]
    fn members_are_translated_and_strangers_refused() {
        // Rank 5 of 8, in blocks of four.
        let world = Team { nranks: 8, rank: 5, stride: 1 };
        let lsa = Team { nranks: 4, rank: 1, stride: 1 };
        let rail = Team { nranks: 2, rank: 1, stride: 4 };
        assert_eq!(
            (0..2).map(|m| translate(rail, m, world)).collect::<Vec<_>>(),
            [Some(1), Some(5)]
        );
        assert_eq!(
            (0..4).filter_map(|m| translate(lsa, m, world)).collect::<Vec<_>>(),
            [4, 5, 6, 7]
        );
        assert_eq!(
            [0, 3, 4, 7, 8].map(|m| translate(world, m, lsa)),
            [None, None, Some(0), Some(3), None]
        );
        let absurd = Team { nranks: i32::MAX, rank: i32::MIN, stride: i32::MAX };
        assert_eq!(translate(absurd, i32::MAX - 1, world), None);
    }
}
