//! The RAS service: one thread per process that tells clients such as `ncclras` the state of the
//! job, whatever the ranks do.
//!
//! The thread never calls a driver and takes no lock on which an operation waits. What a client
//! sends is read by [`nccl::conversation`](super::nccl::conversation); what it is told comes from
//! memory that the processes of this host share with each other, and from the monitors of others.

mod client;
mod collect;
mod listen;

use super::nccl::conversation::{Format, LIFECYCLE, Wanted};
use super::nccl::event::Watched;
use super::nccl::{Survey, json, text};
use crate::config::Config;
use crate::log::{self, Level, Subsystem};
use crate::rank::inquiry;
use crate::recorder;
use client::Client;
use collect::Collection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// The most clients; when more come, the one that was silent for the longest time makes room.
const CLIENTS: usize = 128;
/// Connections that are taken at a time.
const ACCEPTED: usize = 64;
/// The time for which no connections are taken after a shortage of descriptors.
const SHUT: Duration = Duration::from_secs(1);
/// The time from one report to the next, so that clients do not keep a processor busy; and where
/// other hosts are asked, so that their monitors have time for signs of life.
const BETWEEN: Duration = Duration::from_millis(50);
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(500);
/// The time between two looks at the processes, while clients listen to events.
const LOOK: Duration = Duration::from_secs(1);
/// The time for which the answers of other processes are awaited, times the variable.
const COLLECTION: Duration = Duration::from_secs(5);
/// The longest time for which they are awaited, whatever a client says, times the variable.
const COLLECTION_MOST: Duration = Duration::from_secs(60);
/// The time after which other hosts are asked again for clients that have come meanwhile.
const AGAIN: Duration = Duration::from_secs(2);
/// The time after which a client that reads nothing of its answer is closed, times the variable.
const UNREAD: Duration = Duration::from_secs(60);
/// The longest wait for something to happen.
const IDLE: Duration = Duration::from_secs(3600);

/// Starts the service of this process, unless the user wants none. That it cannot be had is no
/// error of who makes a communicator, who does not wait for it either.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        if !Config::get().ras_enable {
            return;
        }
        let thread = std::thread::Builder::new().name("oxccl-ras".to_owned());
        if let Err(error) = thread.spawn(serve) {
            say_refused(&error);
        }
    });
}

/// The versions of CUDA: of the library, and of the driver. Not set in host memory.
static CUDA_VERSIONS: OnceLock<(i32, i32)> = OnceLock::new();

/// Sets the versions of CUDA that reports tell. The service itself never asks the driver.
pub(crate) fn set_cuda_versions(versions: (i32, i32)) {
    // The first communicator's are those of all.
    let _ = CUDA_VERSIONS.set(versions);
}

fn say_refused(error: &std::io::Error) {
    let line = format!("there is no RAS service at {}: {error}", Config::get().ras_addr);
    log::line(Level::Info, Subsystem::Ras, &line);
}

/// Returns the factor of time limits.
fn factor(config: &Config) -> u32 {
    u32::try_from(config.ras_timeout_factor).unwrap_or(u32::MAX).max(1)
}

/// Listens, which may wait for the name of an address to be found, and serves clients from then on.
fn serve() {
    let config = Config::get();
    let factor = factor(config);
    let listened = listen::listen(&config.ras_addr)
        .and_then(|(listeners, at)| Ok((Service::new(listeners, inquiry::listen()?, factor), at)));
    match listened {
        Ok((mut service, at)) => {
            at.first().copied().into_iter().for_each(recorder::set_service);
            let at = at.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            log::line(Level::Info, Subsystem::Ras, &format!("the RAS service listens at {at}"));
            service.run();
        }
        Err(error) => say_refused(&error),
    }
}

struct Service {
    listeners: Vec<BorrowedFd<'static>>,
    clients: Vec<Client>,
    /// The factor of time limits.
    factor: u32,
    /// The time from which on connections are taken again.
    shut_until: Option<Instant>,
    /// The collection of reports that are waited for; and the time at which the last one ended.
    collection: Option<Collection>,
    reported: Option<Instant>,
    /// The time between two reports.
    between: Duration,
    /// The end of a connection at which answers from other hosts show.
    answers: UnixStream,
    /// The processes of the job, while clients listen to events; and the time of the next look.
    watched: Option<(Watched, Instant)>,
}

impl Service {
    fn new(listeners: Vec<BorrowedFd<'static>>, answers: UnixStream, factor: u32) -> Self {
        let (shut_until, collection, reported, watched) = (None, None, None, None);
        let clients = Vec::new();
        let between = BETWEEN;
        Self {
            listeners,
            clients,
            factor,
            shut_until,
            collection,
            reported,
            between,
            answers,
            watched,
        }
    }

    fn run(&mut self) {
        loop {
            if catch_unwind(AssertUnwindSafe(|| self.round())).is_err() {
                let text = "the RAS service panicked and goes on; please report it";
                log::line(Level::Warn, Subsystem::Ras, text);
                self.clients.clear();
                self.collection = None;
                self.watched = None;
            }
        }
    }

    /// Waits until something happens, and does what is to be done then.
    fn round(&mut self) {
        let (incoming, shown) = self.wait();
        let now = Instant::now();
        for (client, shown) in self.clients.iter_mut().zip(shown) {
            client.visit(shown, now);
        }
        self.clients.retain(|client| !client.is_over(now));
        if incoming {
            self.accept(now);
        }
        self.watch(now);
        self.report(now);
        let stuck = now.checked_sub(UNREAD.saturating_mul(self.factor));
        self.clients.iter_mut().for_each(|client| client.flush(now));
        let stuck = |client: &Client| stuck.is_some_and(|time| client.is_stuck_since(time));
        self.clients.retain(|client| !client.is_over(now) && !stuck(client));
    }

    /// Waits until something happens. Returns whether connections wait to be taken, and what each
    /// client shows.
    fn wait(&mut self) -> (bool, Vec<PollFlags>) {
        let now = Instant::now();
        self.shut_until = self.shut_until.filter(|until| *until > now);
        let next =
            [self.shut_until, self.watched.as_ref().map(|(_, next)| *next), self.next_report(now)];
        let closed = self.clients.iter().filter_map(Client::until);
        let next = next.into_iter().flatten().chain(closed).min();
        let limit = next.map_or(IDLE, |next| next.saturating_duration_since(now));
        let unread = UNREAD.saturating_mul(self.factor);
        let limit = if self.clients.is_empty() { limit } else { limit.min(unread) };
        let listeners =
            self.listeners.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let listeners: Vec<_> = listeners.filter(|_| self.shut_until.is_none()).collect();
        let first = listeners.len();
        let clients = self.clients.iter().map(Client::poll_fd);
        let answers = PollFd::new(&self.answers, PollFlags::IN);
        let mut fds: Vec<_> = listeners.into_iter().chain([answers]).chain(clients).collect();
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) => {}
            Err(Errno::INTR) => return (false, Vec::new()),
            Err(_) => {
                // For want of memory, or of the right to so many descriptors.
                std::thread::sleep(SHUT);
                return (false, Vec::new());
            }
        }
        let (listeners, clients) = fds.split_at(first);
        let incoming = listeners.iter().any(|fd| !fd.revents().is_empty());
        let shown = clients[1..].iter().map(PollFd::revents).collect();
        // Nothing is there if no answer has come.
        let _ = (&self.answers).read(&mut [0; 256]);
        (incoming, shown)
    }

    /// Returns when a report is to be begun, or is due whatever is missing.
    fn next_report(&self, now: Instant) -> Option<Instant> {
        let longest = COLLECTION_MOST.saturating_mul(self.factor);
        let wanted = self.clients.iter().filter_map(|client| client.wanted.as_ref());
        let next = match &self.collection {
            Some(Collection { is_complete: false, .. }) => {
                wanted.map(|(of, since)| *since + of.limit.min(longest)).min()
            }
            _ => wanted.map(|_| now).min(),
        };
        next.map(|next| self.reported.map_or(next, |last| next.max(last + self.between)))
    }

    fn accept(&mut self, now: Instant) {
        let limit = COLLECTION.saturating_mul(self.factor);
        for listener in self.listeners.clone() {
            for _ in 0..ACCEPTED {
                match listen::accept(listener) {
                    Ok(socket) => {
                        if self.clients.len() >= CLIENTS {
                            self.make_room();
                        }
                        self.clients.push(Client::new(socket, limit, now));
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        self.make_room();
                        self.shut_until = Some(now + SHUT);
                        return;
                    }
                    // The connection has ended before it was taken.
                    Err(Errno::CONNABORTED | Errno::INTR) => {}
                    // The socket is of no use, as when the program has closed all descriptors.
                    Err(_) => {
                        self.shut_until = Some(now + SHUT);
                        return;
                    }
                }
            }
        }
    }

    /// Closes the client that was silent for the longest time: first one that waits for nothing,
    /// then one that listens to events, and last one that waits for a report.
    fn make_room(&mut self) {
        let listens = |client: &Client| client.listens_to(u8::MAX).is_some();
        let key = |client: &Client| (client.wanted.is_some(), listens(client), client.active);
        let oldest = self.clients.iter().enumerate().min_by_key(|(_, client)| key(client));
        if let Some((oldest, _)) = oldest {
            self.clients.remove(oldest);
        }
    }

    /// Tells those who listen what has happened to the processes of the job.
    fn watch(&mut self, now: Instant) {
        let listens = |client: &Client| client.listens_to(u8::MAX).is_some();
        if !self.clients.iter().any(listens) {
            self.watched = None;
            return;
        }
        // Before the first client hears that it listens: from then on it misses nothing.
        let begin = || (collect::watch(), now + LOOK);
        let (watched, next) = self.watched.get_or_insert_with(begin);
        if now < *next {
            return;
        }
        *next = now + LOOK;
        let events = collect::look(watched);
        for event in events {
            let time = timestamp();
            let [text, json] = [Format::Text, Format::Json]
                .map(|format| Arc::<[u8]>::from(event.text(format, &time).into_bytes()));
            for client in &mut self.clients {
                match client.listens_to(LIFECYCLE) {
                    Some(Format::Text) => client.tell(&text),
                    Some(Format::Json | Format::Records) => client.tell(&json),
                    None => {}
                }
            }
        }
    }

    /// Gives those who wait for a report the state of the job, once it is collected or they will
    /// wait no longer.
    fn report(&mut self, now: Instant) {
        let longest = COLLECTION_MOST.saturating_mul(self.factor);
        let waiting = self.clients.iter().filter_map(|client| client.wanted.as_ref());
        let Some(limit) = waiting.clone().map(|(wanted, _)| wanted.limit.min(longest)).max() else {
            self.collection = None;
            return;
        };
        let latest = waiting.map(|(_, since)| *since).max();
        let is_early = self.reported.is_some_and(|last| now < last + self.between);
        match &mut self.collection {
            None if is_early => return,
            None => self.collection = Some(Collection::begin(limit)),
            // Who comes later gets nothing that is older than it has to be.
            Some(collection) if latest > Some(collection.asked + AGAIN) => collection.ask(limit),
            Some(_) => {}
        }
        let Some(collection) = &mut self.collection else { return };
        let is_complete = collection.go_on();
        let is_due = |(wanted, since): &(Wanted, Instant)| {
            is_complete || now >= *since + wanted.limit.min(longest)
        };
        let any = self.clients.iter().any(|client| client.wanted.as_ref().is_some_and(is_due));
        if any && !is_early {
            let mut survey = collection.survey();
            survey.cuda_versions = CUDA_VERSIONS.get().copied().unwrap_or_default();
            give(&mut self.clients, is_due, &survey);
            self.reported = Some(Instant::now());
            let asks = collection.asks_others();
            self.between = if asks { BETWEEN_QUESTIONS } else { BETWEEN };
        }
        if self.clients.iter().all(|client| client.wanted.is_none()) {
            self.collection = None;
        }
    }
}

/// Gives a report to those who wait for one and whose turn it is.
fn give(clients: &mut [Client], is_due: impl Fn(&(Wanted, Instant)) -> bool, survey: &Survey) {
    let text = [false, true].map(|verbose| (Format::Text, verbose));
    let kinds = text.into_iter().chain([(Format::Json, false), (Format::Records, false)]);
    for (format, verbose) in kinds {
        // Text alone may be verbose.
        let is =
            |of: &Wanted| of.format == format && (of.verbose == verbose || format != Format::Text);
        let is = |wanted: &(Wanted, Instant)| is(&wanted.0) && is_due(wanted);
        let asked = clients.iter_mut().filter(|client| client.wanted.as_ref().is_some_and(is));
        let mut asked = asked.peekable();
        if asked.peek().is_none() {
            continue;
        }
        let report = match format {
            Format::Text => text::report(survey, verbose),
            Format::Json => json::report(survey, &timestamp()),
            Format::Records => survey.records() + "\n",
        };
        let report: Arc<[u8]> = report.into_bytes().into();
        for client in asked {
            client.wanted = None;
            client.say(&report);
        }
    }
}

/// Returns the local time, as NCCL writes it.
fn timestamp() -> String {
    log::timestamp("%F %T", SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn answers() -> (UnixStream, UnixStream) {
        let (wake, answers) = UnixStream::pair().unwrap();
        answers.set_nonblocking(true).unwrap();
        (wake, answers)
    }

    #[test]
    fn limits_are_longer_by_the_factor() {
        let of_variable = |text: Option<&str>| {
            let lookup =
                |name: &str| text.filter(|_| name == "NCCL_RAS_TIMEOUT_FACTOR").map(str::to_owned);
            factor(&Config::from_lookup(lookup))
        };
        let factors = [None, Some("0"), Some("3"), Some("99999999999")].map(of_variable);
        assert_eq!(factors, [1, 1, 3, u32::MAX]);
        let listener: &'static TcpListener =
            Box::leak(Box::new(TcpListener::bind("127.0.0.1:0").unwrap()));
        listener.set_nonblocking(true).unwrap();
        let (_wake, answers) = answers();
        let mut service = Service::new(vec![listener.as_fd()], answers, 3);
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        far.write_all(b"STATUS\n").unwrap();
        let now = Instant::now();
        service.accept(now);
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        poll(&mut [service.clients[0].poll_fd()], Some(&limit)).unwrap();
        service.clients[0].visit(PollFlags::IN, now);
        let (wanted, since) = service.clients[0].wanted.as_ref().unwrap();
        assert_eq!((wanted.limit, *since), (3 * COLLECTION, now));
    }

    #[test]
    fn reports_tell_the_versions_of_cuda_that_were_set_first() {
        set_cuda_versions((13000, 13020));
        set_cuda_versions((1, 2));
        let ((near, mut far), (_wake, answers)) = (UnixStream::pair().unwrap(), answers());
        let mut service = Service::new(Vec::new(), answers, 1);
        service.clients.push(Client::new(near.into(), Duration::ZERO, Instant::now()));
        far.write_all(b"STATUS\n").unwrap();
        service.round();
        let mut report = [0; 1 << 14];
        let length = far.read(&mut report).unwrap();
        let report = String::from_utf8_lossy(&report[..length]);
        let line = "\nCUDA runtime version 13000, driver version 13020\n";
        assert!(report.contains(line), "{report}");
    }
}
