//! The failure of a rank and of its peers: the first failure counts, and all ranks hear of it.

use super::Rank;
use crate::error::{Code, Error, Site};
use crate::link::direct::Record;
use crate::link::notice;
use crate::log::{self, Level, Subsystem};
use crate::ras::job;
use crate::ras::verdict::{Cause, Patience, Verdict, verdicts};
use crate::recorder::read::{self, PROC};
use crate::recorder::{KernelCollective, Source};
use std::fmt::Write;
use std::iter;
use std::path::Path;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The loss of a peer.
#[derive(Clone, Debug)]
pub struct Death {
    /// The reason why the peer is believed to be lost.
    pub why: String,
    /// True if the peer has lost this rank: one of the two ranks, or the network between them, is
    /// at fault.
    pub mutual: bool,
}

/// The cause of the error of an operation that waits for a rank which has left.
pub const LEFT: &str = "it has destroyed its communicator, without this call";

/// The longest time that an operation on a broken link waits for the monitor's verdict. The link
/// may be that of a rank that only gave up; the monitor sees who went first.
pub const VERDICT: Duration = Duration::from_secs(1);

/// Turns a failed system call on the link to a peer into the loss of that peer. The operation adds
/// the rest of the site.
pub fn broken(peer: u32) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::System { call, cause, .. } => Error::Remote {
            site: Site { peer: peer as i32, ..Site::default() },
            why: format!("{call}: {cause}"),
        },
        other => other,
    }
}

/// The peer and step that an operation is waiting for, for errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awaited {
    /// The awaited rank; −1 for none.
    pub peer: i32,
    /// The step of the plan.
    pub step: i32,
}

/// Returns the way by which a rank heard of a failure, for the log; `None` if it heard of it from
/// the rank that reports it, or found it itself.
fn path(error: &Error) -> Option<String> {
    let Error::Reported { reporter, via, .. } = error else { return None };
    let text = || format!("the failure that rank {reporter} reports was passed on by rank {via}");
    (via != reporter).then(text)
}

/// Returns what the log says of a failure that a rank with or without operations latches.
fn lines(error: &Error, idle: bool) -> impl Iterator<Item = (Level, String)> {
    let level = match error {
        Error::Aborted { .. } => Level::Info,
        // The rank that reports it has logged it. Many programs let some ranks end by ncclCommAbort
        // when all work is done.
        Error::Reported { .. } if idle => Level::Info,
        _ => Level::Warn,
    };
    iter::once((level, error.to_string())).chain(path(error).map(|path| (Level::Info, path)))
}

impl Rank {
    /// Latches a failure: the first one stays. All operations under way and to come fail with it,
    /// and the peers hear of it. The caller must not hold the lock of the state.
    pub fn fail(&self, mut error: Error) {
        self.note_loss(&error);
        self.explain(&mut error);
        self.name_place(&mut error);
        self.name_network(&mut error);
        if self.failure.set(error.clone()).is_err() {
            // Return only when the peers can see the failure: from then on they write no more.
            while !self.failed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            return;
        }
        let source = match &error {
            Error::Reported { reporter, .. } if *reporter != self.number => Source::Peer(*reporter),
            Error::Aborted { .. } => Source::Asked,
            _ => Source::Here,
        };
        let lines = lines(&error, self.is_idle());
        self.recorder.fail(&error.to_string(), error.code() as i32, source);
        let record = self.record(&error);
        if let (Some(segment), Some(local)) = (&self.segment, self.local[self.number as usize]) {
            segment.publish_failure(local, &record);
        }
        // Before any thread here sees the failure: the process may end then, and the peers would
        // know only that this rank is gone, and users nothing.
        self.tell_all(&notice::failed(&record));
        for (level, text) in lines {
            log::line_of(Some(self.number), level, Subsystem::Coll, &text);
        }
        // From here on operations end, and their buffers belong to the user again.
        self.failed.store(true, Ordering::Release);
        if let Some(accelerator) = self.accelerator() {
            accelerator.abort();
        }
    }

    /// Adds the process to the error about a lost rank, and its host if that is another one.
    fn name_place(&self, error: &mut Error) {
        let Error::Remote { site, why } = error else { return };
        let peer = u32::try_from(site.peer).ok();
        let Some((pid, host)) = peer.and_then(|peer| self.process_of(peer)) else { return };
        let _ = write!(why, ", rank {} being process {pid}", site.peer);
        if let Some(host) = host {
            let _ = write!(why, " on the host {host}");
        }
    }

    /// Adds to the error of an operation that waited too long for a rank of another host the
    /// network between the two.
    fn name_network(&self, error: &mut Error) {
        let Error::Deadline { site, over, .. } = error else { return };
        let is_far = |peer: u32| self.local.get(peer as usize).is_some_and(Option::is_none);
        if let Some(network) = self.network.get()
            && u32::try_from(site.peer).is_ok_and(is_far)
        {
            over.clone_from(network);
        }
    }

    /// Adds to the error of an operation that waited too long what holds it up, as the processes of
    /// this host record it, before this one records that it waits no more.
    fn explain(&self, error: &mut Error) {
        let Error::Deadline { waited_ms, found, .. } = error else { return };
        if self.failure.get().is_some() || !self.recorder.is_read_by_others() {
            return;
        }
        // Ranks that came later have waited for less time.
        let waiting_ns = waited_ms.saturating_mul(1_000_000) / 2;
        let comm = self.recorder.comm();
        let root = Path::new(PROC);
        let job = job::of_process(read::processes(root), read::own_pid(root));
        let patience = Patience { waiting_ns, ..Patience::default() };
        let causes = verdicts(&job, patience);
        // Who waits for the making of a communicator is late for this operation itself.
        let stands = |of: &&Verdict| {
            of.cause.holds_up() && !matches!(of.cause, Cause::Failed | Cause::NotJoined)
        };
        let mut standing = causes.iter().filter(stands);
        let own = standing.clone().find(|verdict| verdict.comm == comm);
        // The awaited rank may have found out the same a moment before.
        let failed = || causes.iter().find(|of| of.cause == Cause::Failed && of.comm == comm);
        if let Some(verdict) = own.or_else(failed).or_else(|| standing.next()) {
            found.clone_from(&verdict.text);
        }
    }

    /// Returns the record that the peers get of a failure: its kind, the rank it is about, and the
    /// cause. The failure that a peer reported is passed on unchanged.
    fn record(&self, error: &Error) -> Record {
        let own = self.number as i32;
        let (code, culprit) = match error {
            Error::Reported { code: Code::RemoteError, lost: false, .. } => (Code::RemoteError, -1),
            Error::Reported { site, code, .. } => (*code, site.peer),
            Error::Remote { site, .. } => (Code::RemoteError, site.peer),
            // The rank that was awaited.
            Error::Deadline { site, .. } => (Code::Timeout, site.peer),
            // No rank is lost.
            Error::Aborted { .. } => (Code::RemoteError, -1),
            error => (error.code(), own),
        };
        let reporter = match error {
            Error::Reported { reporter, .. } => *reporter,
            _ => self.number,
        };
        Record { code, culprit, reporter, text: error.cause(self.number) }
    }

    /// Returns this rank's error for a failure that a peer reports.
    pub fn told(&self, peer: u32, record: Record) -> Error {
        let Record { code, culprit, reporter, text } = record;
        let own = self.number as i32;
        let known = (0..self.nranks as i32).contains(&culprit);
        // The report may have come by way of other ranks.
        let by = if reporter < self.nranks { reporter } else { peer } as i32;
        // A rank that ended its communicator, or could not go on, says so itself.
        let lost = code == Code::RemoteError && known && culprit != by;
        let (code, whom, text) = match code {
            // The same mistake on all sides; the culprit is the rank that found it.
            Code::InvalidUsage => (code, if known { culprit } else { by }, text),
            // The awaited rank may be this rank.
            Code::Timeout => (code, if known { culprit } else { -1 }, text),
            _ if culprit == own => (Code::RemoteError, by, format!("it lost rank {own}: {text}")),
            _ => (Code::RemoteError, if known { culprit } else { by }, text),
        };
        let (site, reporter) = (self.site(whom), by as u32);
        Error::Reported { site, code, reporter, via: peer, lost, text }
    }

    fn site(&self, peer: i32) -> Site {
        if let Some(accelerator) = self.accelerator() {
            accelerator.record();
            if let Some((collective, step)) = self.recorder.kernel_waits_in() {
                let KernelCollective { number: op_seq, descriptor, .. } = collective;
                let operation = descriptor.kind().map_or("", |kind| kind.name());
                return Site { rank: self.number as i32, peer, step, op_seq, operation };
            }
        }
        let op_seq = self.recorder.finished.load(Ordering::Acquire);
        let (number, name) = *self.waiting();
        let operation = if number == op_seq { name } else { "" };
        let step = self.recorder.step_of(op_seq);
        Site { rank: self.number as i32, peer, step, op_seq, operation }
    }

    fn waiting(&self) -> MutexGuard<'_, (u64, &'static str)> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes the operation in which this rank waits, for failures that are found elsewhere.
    pub(crate) fn waits_in(&self, number: u64, name: &'static str) {
        *self.waiting() = (number, name);
    }

    /// Returns the error for the loss of a peer.
    pub fn lost(&self, peer: u32, why: String) -> Error {
        Error::Remote { site: self.site(peer as i32), why }
    }

    /// Returns the error of an operation that waited too long.
    pub(crate) fn deadline_error(
        &self,
        awaited: Awaited,
        operation: &'static str,
        waited_ms: u64,
    ) -> Error {
        let site = Site {
            rank: self.number as i32,
            peer: awaited.peer,
            step: awaited.step,
            op_seq: self.recorder.finished.load(Ordering::Acquire),
            operation,
        };
        Error::Deadline { site, waited_ms, over: String::new(), found: String::new() }
    }
}

impl Rank {
    /// Returns the failure that a peer of this host has published.
    pub fn hear_from(&self, peer: u32) -> Option<Error> {
        let (segment, place) = self.segment.as_ref().zip(self.local[peer as usize])?;
        segment.failure(place).map(|record| self.told(peer, record))
    }

    /// Returns the failure of any peer of this host.
    pub fn hear(&self) -> Option<Error> {
        (0..self.nranks).filter(|&p| p != self.number).find_map(|p| self.hear_from(p))
    }

    /// Returns the failure, if there is one.
    pub fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::Acquire) { self.failure.get().cloned() } else { None }
    }

    /// Returns the failure, if there is one, and notes that the user is told of it.
    pub fn deliver(&self) -> Option<Error> {
        let failure = self.failure()?;
        self.set_delivered();
        Some(failure)
    }

    /// Notes that the user is told of a failure.
    pub fn set_delivered(&self) {
        self.delivered.store(true, Ordering::Release);
    }

    /// Notes that an operation on host memory has ended early.
    pub fn note_cut_short(&self) {
        self.cut_short.store(true, Ordering::Release);
    }

    /// Returns whether an operation on host memory has ended early.
    pub fn is_cut_short(&self) -> bool {
        self.cut_short.load(Ordering::Acquire)
    }

    /// Returns whether the user was told of a failure.
    pub fn is_delivered(&self) -> bool {
        self.delivered.load(Ordering::Acquire)
    }

    fn deaths(&self) -> MutexGuard<'_, Vec<(u32, Death)>> {
        self.deaths.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the first of these peers that died, and its death; also for a communicator that had
    /// failed before.
    pub fn first_death(&self, peers: &[u32]) -> Option<(u32, Death)> {
        self.deaths().iter().find(|(peer, _)| peers.contains(peer)).cloned()
    }

    /// Notes the death of a peer; returns whether the death is new.
    fn note_death(&self, peer: u32, death: Death) -> bool {
        let mut deaths = self.deaths();
        let new = deaths.iter().all(|(known, _)| *known != peer);
        if new {
            self.strike(peer);
            deaths.push((peer, death));
        }
        new
    }

    /// Notes the loss of a rank that a peer reports, unless that peer is believed to be lost
    /// itself: after a cut between two ranks each reports the loss of the other. Returns whether
    /// the loss is new.
    fn note_loss(&self, error: &Error) -> bool {
        let Error::Reported { site, lost: true, reporter, text, .. } = error else { return false };
        let Ok(peer) = u32::try_from(site.peer) else { return false };
        self.first_death(&[*reporter]).is_none()
            && self.note_death(peer, Death { why: text.clone(), mutual: peer == *reporter })
    }

    /// Notes what a peer reports after this rank has failed, and passes a new loss on: the peer may
    /// have no connection with the others.
    pub(crate) fn hear_more(&self, error: &Error) {
        if self.note_loss(error) {
            self.tell_all(&notice::failed(&self.record(error)));
        }
    }

    /// Latches the death of a peer, which writes no more.
    pub fn lose(&self, peer: u32, why: String) {
        if let Some((segment, place)) = self.segment.as_ref().zip(self.local[peer as usize]) {
            segment.writing(place).store(0, Ordering::Release);
        }
        let new = self.note_death(peer, Death { why: why.clone(), mutual: false });
        let error = self.lost(peer, why);
        if new && self.failure().is_some() {
            // Children may be made of a communicator that has failed, so the others hear of the
            // death nevertheless.
            self.tell_all(&notice::failed(&self.record(&error)));
        }
        self.fail(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::control::Control;
    use std::sync::Arc;

    /// A rank of four, in an operation with this name.
    fn alone(number: u32, operation: &'static str) -> Rank {
        let rank = Rank::new(number, vec![None; 4], None, vec![0; 4]);
        rank.waits_in(0, operation);
        rank
    }

    #[test]
    fn what_a_rank_reports_reaches_all_with_one_cause_one_reporter_and_one_remedy() {
        let first = alone(1, "reduce");
        let (second, third) = (alone(2, "all_reduce"), alone(3, "broadcast"));
        let texts = |error: &Error| {
            let record = first.record(error);
            let heard = second.told(1, record.clone());
            // The report is passed on unchanged.
            assert_eq!(second.record(&heard), record);
            let again = third.told(2, second.record(&heard));
            let way = "the failure that rank 1 reports was passed on by rank 2";
            let logged = |error: &Error| Vec::from_iter(lines(error, false));
            let once = |error: &Error| vec![(Level::Warn, error.to_string())];
            assert_eq!([logged(error), logged(&heard)], [once(error), once(&heard)]);
            let both = [once(&again), vec![(Level::Info, way.to_owned())]].concat();
            assert_eq!(logged(&again), both);
            assert_eq!(again.code(), error.code());
            [heard, again].map(|error| error.to_string())
        };
        let remedy = "destroy or abort this communicator, the survivors can make a new one";
        let cause = "its process ended (reported by rank 1)";
        assert_eq!(
            texts(&first.lost(0, "its process ended".to_owned())),
            [
                format!("rank 2 lost rank 0 in all_reduce (operation 0): {cause}; {remedy}"),
                format!("rank 3 lost rank 0 in broadcast (operation 0): {cause}; {remedy}"),
            ]
        );
        let cause = "it lost rank 3: its connection closed (reported by rank 1)";
        let lost = first.record(&first.lost(3, "its connection closed".to_owned()));
        assert_eq!(
            third.told(1, lost).to_string(),
            format!("rank 3 lost rank 1 in broadcast (operation 0): {cause}; {remedy}")
        );
        let deadline = first.deadline_error(Awaited { peer: 3, step: 2 }, "reduce", 500);
        let cause =
            "rank 1 gave up waiting for rank 3 after 500 ms at step 2 of reduce (operation 0)";
        assert_eq!(
            texts(&deadline),
            [
                format!("{cause}; look at what the awaited rank is doing"),
                format!("this rank, 3, was awaited: {cause}; come in time, or raise that limit"),
            ]
        );
        let site = first.site(2);
        let (own, theirs) = ("this".to_owned(), "that".to_owned());
        let mismatch = Error::Mismatch { site, own, theirs, messages: false };
        let expected = format!("{mismatch} (reported by rank 1)");
        assert_eq!(texts(&mismatch), [expected.clone(), expected]);
    }

    #[test]
    fn a_lost_rank_is_named_with_its_process_and_its_host_unless_that_is_this_one() {
        use crate::rank::{Member, Roster};
        let text = |places: Vec<Option<usize>>| {
            let rank = Rank::new(0, places, None, vec![0; 2]);
            let member =
                |host: u8| Member::new([192, 0, 2, host].into(), 70 + u32::from(host), 0, false);
            rank.set_roster(Roster { comm: 0, members: vec![member(1), member(2)] });
            rank.lose(1, "its connection closed".to_owned());
            rank.failure().map(|error| error.to_string()).unwrap_or_default()
        };
        let near = "its connection closed, rank 1 being process 72; ";
        let far = "its connection closed, rank 1 being process 72 on the host 192.0.2.2; ";
        assert!(text(vec![Some(0), None]).contains(far));
        assert!(text(vec![Some(0), Some(1)]).contains(near));
    }

    #[test]
    fn a_limit_names_the_network_to_a_rank_of_another_host() {
        let text = |places: Vec<Option<usize>>| {
            let rank = Rank::new(0, places, None, vec![0; 2]);
            rank.set_network("net plugin Rope (rope.so, v11)".to_owned());
            rank.fail(rank.deadline_error(Awaited { peer: 1, step: 2 }, "reduce", 500));
            let failure = rank.failure().expect("it failed");
            [failure.to_string(), failure.cause(0)]
        };
        let [own, told] = text(vec![Some(0), None]);
        let over = " for rank 1 over net plugin Rope (rope.so, v11) ";
        assert!(own.starts_with("rank 0 waited 500 ms") && own.contains(over), "{own}");
        assert!(told.starts_with("rank 0 gave up waiting") && told.contains(over), "{told}");
        assert!(text(vec![Some(0), Some(1)]).iter().all(|text| !text.contains("Rope")));
    }

    #[test]
    fn the_peers_are_told_of_a_failure_before_anyone_here_sees_it() {
        for _ in 0..100 {
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            let far = Control::new(far.into());
            let rank = alone(0, "");
            rank.set_controls(vec![None, Some(Arc::new(Control::new(near.into()))), None, None]);
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let told = scope.spawn(|| {
                    both.wait();
                    while rank.failure().is_none() {
                        std::hint::spin_loop();
                    }
                    far.receive().0
                });
                both.wait();
                rank.fail(rank.lost(2, "its process ended".to_owned()));
                assert!(!told.join().unwrap().is_empty());
            });
        }
    }

    #[test]
    fn a_loss_that_a_failed_rank_hears_of_is_passed_on_once() {
        let ends = [0, 1].map(|_| std::os::unix::net::UnixStream::pair().unwrap());
        let (near, far): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        let far: Vec<_> = far.into_iter().map(|end| Control::new(end.into())).collect();
        let rank = alone(0, "");
        let near = near.into_iter().map(|end| Some(Arc::new(Control::new(end.into()))));
        rank.set_controls([None].into_iter().chain(near).chain([None]).collect());
        rank.fail(Error::Aborted { by: "a test" });
        let told = || far.iter().map(|end| end.receive().0.len()).collect::<Vec<_>>();
        assert_eq!(told(), [1, 1]);
        let text = "its process ended".to_owned();
        let record = Record { code: Code::RemoteError, culprit: 3, reporter: 1, text };
        for expected in [[1, 1], [0, 0]] {
            rank.hear_more(&rank.told(1, record.clone()));
            assert_eq!(told(), expected);
        }
        assert!(rank.first_death(&[3]).is_some());
    }

    #[test]
    fn a_record_that_blames_no_rank_of_the_communicator_is_about_who_sent_it() {
        let rank = alone(0, "");
        for (code, peer) in [(Code::RemoteError, 2), (Code::InvalidUsage, 2), (Code::Timeout, -1)] {
            for culprit in [-1, 4, i32::MIN, i32::MAX] {
                let told =
                    rank.told(2, Record { code, culprit, reporter: 2, text: "x".to_owned() });
                assert_eq!(told.site().map(|site| site.peer), Some(peer), "{code:?} {culprit}");
            }
        }
    }
}
