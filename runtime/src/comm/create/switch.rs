//! The switch of this rank's rail: a network that reduces, if all ranks have one.

use super::Rendezvous;
use super::members::Members;
use crate::bootstrap::Gather;
use crate::config::Config;
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::link::message::{HEADER_BYTES, Header, Identity, Incoming, MessageEdge, Outgoing};
use crate::log::{self, Level, Subsystem};
use crate::plugin::collnet::{CollNet, Format, Reductions};
use oxccl_net::{HANDLE_BYTES, Handle};
use std::time::Duration;

/// The most ranks that a line names which could not connect.
const NAMED: usize = 8;

/// The most bytes of a name or a reason that a rank tells.
const LONGEST: usize = 1000;

/// The first byte of a rank that has what it needs. Other ranks send 0 and the reason.
const READY: u8 = 1;

/// The link to a switch with the ranks of a team, and what the switch reduces.
pub(super) type Switch = ((MessageEdge, u32), Reductions);

/// A rank's network: the address where the rank listens, and its name.
#[derive(Debug)]
struct Offer {
    handle: Handle,
    name: String,
}

impl Offer {
    fn encode(&self) -> Vec<u8> {
        [&[READY], &self.handle.0[..], shortened(&self.name)].concat()
    }

    /// Returns the offer of a rank, or the reason why it has no network that reduces.
    fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        let rest = ready(bytes)?;
        let short = || "it sent a broken offer".to_owned();
        let (handle, name) = rest.split_first_chunk::<HANDLE_BYTES>().ok_or_else(short)?;
        Ok(Self { handle: Handle(*handle), name: String::from_utf8_lossy(name).into_owned() })
    }
}

/// Returns what follows the first byte, or the reason why the rank is not ready.
fn ready(bytes: &[u8]) -> std::result::Result<&[u8], String> {
    match bytes.split_first() {
        Some((&READY, rest)) => Ok(rest),
        _ => Err(String::from_utf8_lossy(bytes.get(1..).unwrap_or_default()).into_owned()),
    }
}

/// Returns the bytes of a rank that is not ready.
fn unready(why: &str) -> Vec<u8> {
    [&[0], shortened(why)].concat()
}

/// Returns the beginning of a text, as long as texts in a meeting may be.
fn shortened(text: &str) -> &[u8] {
    let bytes = text.as_bytes();
    &bytes[..bytes.len().min(LONGEST)]
}

/// Connects this rank with the switch of its rail, and returns the ranks of a team with it. `None`
/// unless all ranks ask for that, and all
/// have a network that reduces. Fails if the ranks have different ones. Blocks for all ranks.
pub(super) fn connect(
    (identity, device): (Identity, Device),
    members: &Members,
    rendezvous: &mut Rendezvous,
    slot_bytes: usize,
) -> Result<Option<Switch>> {
    if !members.ask_for_switch() {
        return Ok(None);
    }
    // The other ranks hear in time of a plugin that does not return, and go without.
    let limit = rendezvous.session.left() * 3 / 4;
    let made = begin((identity, device), members, HEADER_BYTES + slot_bytes, limit);
    let own = match &made {
        Ok(net) => Offer { handle: net.handle.clone(), name: net.name.clone() }.encode(),
        Err(why) => unready(why),
    };
    let told = rendezvous.gather(&own)?;
    let offers = told
        .iter()
        .enumerate()
        .map(|(rank, bytes)| Offer::decode(bytes).map_err(|why| format!("rank {rank}: {why}")));
    let (net, offers) = match (made, offers.collect::<std::result::Result<Vec<_>, _>>()) {
        (Ok(net), Ok(offers)) => (net, offers),
        (_, Err(why)) | (Err(why), _) => return Ok(without(identity.rank, &why)),
    };
    if let Some(why) = differing(&offers) {
        return match Config::get().ignore_collnet_mismatch {
            true => Ok(without(identity.rank, &why)),
            false => Err(Error::Init { why }),
        };
    }
    let (team, own) = (members.team() as usize, identity.rank as usize);
    let rail = offers.into_iter().skip(own % team).step_by(team);
    let handles = rail.map(|offer| offer.handle).collect();
    // As above.
    let limit = rendezvous.session.left() * 3 / 4;
    let stop = || {
        let verdict = rendezvous.session.check().err().map(|error| error.to_string());
        let late = || rendezvous.deadline().passed().then(|| "it took too long".to_owned());
        let why = verdict.or_else(late)?;
        Some(oxccl_net::Error::local("connecting a switch", why, ""))
    };
    let reduction = |header: &[u8]| Header::decode(header)?.descriptor.reduction();
    let format = Format { header_bytes: HEADER_BYTES, reduction };
    let ends = net.connect((handles, own / team), format, (limit, stop));
    let edge = ends.map_err(Error::from).and_then(|((sender, receiver, registrar), reductions)| {
        let outgoing = Outgoing::new(sender, identity.rank, slot_bytes);
        let incoming = Incoming::new(receiver, identity.rank, slot_bytes);
        let mut edge = MessageEdge::new(outgoing, incoming).with_registrar(registrar);
        // Nothing blocks for a plugin within an operation.
        edge.register().map(|()| (edge, reductions))
    });
    // A verdict about another rank says more than what it has caused here.
    rendezvous.session.check()?;
    let own = match &edge {
        Ok((_, reductions)) => [&[READY], &reductions.0.to_le_bytes()[..]].concat(),
        Err(error) => unready(&error.to_string()),
    };
    let told = rendezvous.gather(&own)?;
    let failed = |(rank, bytes): (usize, &Vec<u8>)| {
        reductions(bytes).err().map(|why| format!("rank {rank}: {why}"))
    };
    // The others of its rail may have waited for the one that failed.
    let failures: Vec<_> = told.iter().enumerate().filter_map(failed).take(NAMED).collect();
    if !failures.is_empty() {
        return Ok(without(identity.rank, &failures.join("; ")));
    }
    let of_all = told.iter().flat_map(|bytes| reductions(bytes));
    Ok(Some(((edge?.0, members.team()), Reductions(of_all.fold(u64::MAX, |all, bits| all & bits)))))
}

/// Returns the reductions of a rank that is connected, or the reason why it is not.
fn reductions(bytes: &[u8]) -> std::result::Result<u64, String> {
    let bits = ready(bytes)?.try_into().map_err(|_| "it sent broken reductions".to_owned())?;
    Ok(u64::from_le_bytes(bits))
}

/// Starts this rank's network, unless there are too few hosts.
fn begin(
    (identity, device): (Identity, Device),
    members: &Members,
    bytes: usize,
    limit: Duration,
) -> std::result::Result<CollNet, String> {
    let (hosts, least) = (members.host_sizes().len(), Config::get().collnet_node_threshold);
    if (hosts as u64) < least {
        return Err(format!("NCCL_COLLNET_NODE_THRESHOLD asks for {least} hosts, not {hosts}"));
    }
    let prepare = move || device::prepare_thread(device);
    CollNet::start((identity.comm, members.own_place()), bytes, limit, prepare)
}

/// Logs why no switch reduces.
fn without(rank: u32, why: &str) -> Option<Switch> {
    // One line for all ranks.
    let level = if rank == 0 { Level::Warn } else { Level::Info };
    let text = format!("collnetEnable has no effect: {why}");
    log::line_of(Some(rank), level, Subsystem::Net, &text);
    None
}

/// Returns which ranks have different networks, if some have.
fn differing(offers: &[Offer]) -> Option<String> {
    let rank = offers.iter().position(|offer| offer.name != offers[0].name)?;
    Some(format!(
        "rank 0 reduces by the network {}, rank {rank} by {}; set NCCL_NET_PLUGIN alike on all \
         ranks, or NCCL_IGNORE_COLLNET_MISMATCH=1 to go without",
        offers[0].name, offers[rank].name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_and_reasons_are_told_apart_and_differing_names_are_named() {
        let offer = |name: &str| Offer { handle: Handle([7; HANDLE_BYTES]), name: name.to_owned() };
        let bytes = offer("SHARP").encode();
        let read = Offer::decode(&bytes).expect("it is whole");
        assert_eq!((read.handle.0[9], read.name.as_str()), (7, "SHARP"));
        assert_eq!(reductions(&[READY, 5, 0, 0, 0, 0, 0, 0, 1]), Ok(1 << 56 | 5));
        assert_eq!(reductions(&[READY, 5]), Err("it sent broken reductions".to_owned()));
        assert_eq!(reductions(&unready("no switch")), Err("no switch".to_owned()));
        let why = |bytes: &[u8]| Offer::decode(bytes).err();
        assert_eq!(why(&unready("no device")), Some("no device".to_owned()));
        assert_eq!(why(&bytes[..100]), Some("it sent a broken offer".to_owned()));
        assert_eq!(why(&[]), Some(String::new()));
        assert_eq!(differing(&[offer("a"), offer("a")]), None);
        let text = differing(&[offer("a"), offer("a"), offer("b")]).expect("they differ");
        assert!(text.contains("rank 0 reduces by the network a, rank 2 by b"), "{text}");
    }
}
