//! The teams of a communicator's ranks, and its capabilities for kernels.

use super::types::{
    ncclCftTeamMode_t, ncclCommProperties_t, ncclGinConnectionType_t, ncclGinType_t, ncclTeam,
    ncclTeam_t,
};
use super::unavailable::uncounted;
use crate::boundary::{boundary, boundary_or};
use crate::nccl::config::{self, NCCL_API_MAGIC};
use crate::nccl::types::{ncclComm_t, ncclResult_t};
use crate::objects;
use oxccl_runtime::comm::{Communicator, Team};
use oxccl_runtime::error::{Error, Result};
use oxccl_twin::twin;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;
use std::sync::Arc;

const NO_TEAM: ncclTeam_t = ncclTeam { nRanks: 0, rank: 0, stride: 0 };

fn living(comm: ncclComm_t, function: &'static str) -> Result<Arc<Communicator>> {
    Ok(objects::comm(comm, function)?.clone())
}

fn team_of(team: &Team) -> ncclTeam_t {
    ncclTeam { nRanks: team.nranks, rank: team.rank, stride: team.stride }
}

fn member(
    comm: ncclComm_t,
    function: &'static str,
    team: ncclTeam_t,
    rank: c_int,
    translate: fn(&Communicator, Team, i32) -> Option<i32>,
) -> Result<c_int> {
    let own = Team { nranks: team.nRanks, rank: team.rank, stride: team.stride };
    translate(&*living(comm, function)?, own, rank).ok_or_else(|| {
        let got = format!("{rank} of {team:?}");
        Error::argument(function, "rank", got, "a member that lies within the target team")
    })
}

fn slots(elements: c_int, bytes: c_int) -> Result<c_int> {
    const FUNCTION: &str = "ncclLLA2ACalcSlots";
    let expected = "sizes from 0 on, and fewer than 2^31 slots";
    let bad =
        || Error::argument(FUNCTION, "maxElts", format!("{elements} × {bytes} bytes"), expected);
    let (count, bytes) = (u32::try_from(elements).ok(), u32::try_from(bytes).ok());
    let all = count.zip(bytes).and_then(|(n, b)| n.checked_mul(b.div_ceil(8)));
    all.and_then(|slots| c_int::try_from(slots).ok()).ok_or_else(bad)
}

/// # Safety
/// `props` is null, or points to a structure that NCCL_COMM_PROPERTIES_INITIALIZER began.
unsafe fn query_properties(comm: ncclComm_t, props: *mut ncclCommProperties_t) -> Result<()> {
    const FUNCTION: &str = "ncclCommQueryProperties";
    /// The size since NCCL 2.30; older structures lack fields between others.
    const SIZE: usize = offset_of!(ncclCommProperties_t, commHash);
    let comm = living(comm, FUNCTION)?;
    if props.is_null() {
        return Err(Error::argument(FUNCTION, "props", "null", "a place for the answer"));
    }
    let what = (FUNCTION, "props", "NCCL_COMM_PROPERTIES_INITIALIZER");
    // SAFETY: not null; the structures of all versions begin alike.
    let (size, version) = unsafe { config::header(props.cast(), NCCL_API_MAGIC, what)? };
    if size < SIZE {
        let got = format!("a structure of {size} bytes, version {version}");
        let expected = format!("at least {SIZE} bytes, as since NCCL 2.30");
        return Err(Error::argument(FUNCTION, "props", got, expected));
    }
    let lsa_teams = comm.team_rail().nranks;
    let answer = ncclCommProperties_t {
        size,
        magic: NCCL_API_MAGIC,
        version,
        rank: comm.rank() as c_int,
        nRanks: comm.nranks() as c_int,
        cudaDev: comm.device().index(),
        nvmlDev: -1,
        deviceApiSupport: false,
        multimemSupport: false,
        ginType: ncclGinType_t::NCCL_GIN_TYPE_NONE,
        nLsaTeams: lsa_teams,
        hostRmaSupport: lsa_teams == 1,
        railedGinType: ncclGinType_t::NCCL_GIN_TYPE_NONE,
        commHash: 0,
        ginMinStride: 0,
        ginConnectionType: ncclGinConnectionType_t::NCCL_GIN_CONNECTION_NONE,
        ginSupport: [false; 64],
        devCommRuntimeVersionSize: 0,
        cftSupport: false,
        cftMulticastSupport: false,
        cftCountedSupport: false,
    };
    let bytes = size.min(size_of::<ncclCommProperties_t>());
    // SAFETY: the caller's structure has `size` bytes.
    unsafe {
        ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), props.cast::<u8>(), bytes);
    }
    Ok(())
}

/// Returns the team of all ranks of a communicator; a team of no ranks for a bad handle.
/// Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t {
    boundary_or(NO_TEAM, || Ok(team_of(&living(comm, "ncclTeamWorld")?.team_world())))
}

/// Returns the team of neighbouring ranks that share memory with this one; on one host these are
/// all ranks. A team of no ranks for a bad handle. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t {
    boundary_or(NO_TEAM, || Ok(team_of(&living(comm, "ncclTeamLsa")?.team_lsa())))
}

/// Returns the team of the ranks with the same place in their ncclTeamLsa as this one; a team of
/// no ranks for a bad handle. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t {
    boundary_or(NO_TEAM, || Ok(team_of(&living(comm, "ncclTeamRail")?.team_rail())))
}

/// Would return the team of counted transfers that this rank is in; returns a team of no ranks, as
/// there are none. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
#[allow(unused_variables, reason = "the names of parameters are for the header")]
pub unsafe extern "C" fn ncclTeamCft(
    comm: ncclComm_t,
    mode: MaybeUninit<ncclCftTeamMode_t>,
) -> ncclTeam_t {
    boundary_or(NO_TEAM, || Err(uncounted("ncclTeamCft")))
}

/// Would return the team of counted transfers to all at once that this rank is in; returns a team
/// of no ranks, as there are none. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
#[allow(unused_variables, reason = "the names of parameters are for the header")]
pub unsafe extern "C" fn ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t {
    boundary_or(NO_TEAM, || Err(uncounted("ncclTeamCftMultimem")))
}

/// Returns the rank in the communicator of a team's member; −1 where there is none.
///
/// `team`: a team of the calling rank. `rank`: 0 to team.nRanks − 1. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRankToWorld(
    comm: ncclComm_t,
    team: ncclTeam_t,
    rank: c_int,
) -> c_int {
    boundary_or(-1, || member(comm, "ncclTeamRankToWorld", team, rank, Communicator::team_to_world))
}

/// Returns the place of a team's member in the calling rank's ncclTeamLsa; −1 if it has none.
///
/// `team`: a team of the calling rank. `rank`: 0 to team.nRanks − 1. Blocks: never.
///
/// # Safety
/// Any handle may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclTeamRankToLsa(
    comm: ncclComm_t,
    team: ncclTeam_t,
    rank: c_int,
) -> c_int {
    boundary_or(-1, || member(comm, "ncclTeamRankToLsa", team, rank, Communicator::team_to_lsa))
}

/// Returns the 8-byte slots that elements need in an all-to-all exchange; −1 for invalid sizes.
///
/// `maxElts`: number of elements. `maxEltSize`: bytes of each. Blocks: never.
///
/// # Safety
/// Any integer may be passed.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int {
    boundary_or(-1, || slots(maxElts, maxEltSize))
}

/// Returns the capabilities of a communicator for kernels: on the host device, none.
///
/// `props`: in and out, begun with NCCL_COMM_PROPERTIES_INITIALIZER. Blocks: never.
///
/// # Safety
/// Pointers are null or point to what the documentation says.
#[twin]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommQueryProperties(
    comm: ncclComm_t,
    props: *mut ncclCommProperties_t,
) -> ncclResult_t {
    // SAFETY: passed on from the caller.
    boundary(|| unsafe { query_properties(comm, props) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_eight_bytes_and_absurd_sizes_are_refused() {
        assert_eq!(slots(32, 16).unwrap(), 64);
        assert_eq!(slots(3, 1).unwrap(), 3);
        assert_eq!(slots(0, 9).unwrap(), 0);
        for (elements, bytes) in [(-1, 8), (1, -8), (i32::MAX, i32::MAX)] {
            assert!(slots(elements, bytes).is_err(), "{elements} {bytes}");
        }
    }
}
