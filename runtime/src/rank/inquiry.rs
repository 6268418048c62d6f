//! Questions about the state of a job that go from process to process over control connections.
//! Monitors answer them, so that they are answered whatever the ranks do.
//!
//! A question has a random number. A process that hears of it for the first time passes it on over
//! all its control connections and answers; answers go back the way the question came.

use super::wake_pair;
use crate::link::control::Control;
use crate::link::notice::{self, Notice};
use crate::recorder::{read, wire};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The most questions that a process remembers, so that it passes on each of them once.
const QUESTIONS: usize = 1024;
/// The age from which on a question makes room for another one: it has been everywhere by then.
const OLD: Duration = Duration::from_secs(1);
/// The longest time for which answers to a question are passed on.
const LONGEST: Duration = Duration::from_secs(600);
/// Bytes that wait for a connection above which no answers are added: signs of life come after
/// them.
const WAITING_BYTES: usize = 1 << 20;
/// Bytes of answers that wait for who has asked, above which no more are kept.
const KEPT_BYTES: usize = 64 << 20;

const _: () = assert!(wire::MAX_BYTES <= notice::STATUS_BYTES);

/// A question that the process has heard of.
struct Question {
    number: u64,
    /// The connection that it came by; `None` for this process's own question.
    back: Option<Weak<Control>>,
    heard: Instant,
    until: Instant,
}

/// The questions of a process, and the answers to its own.
pub(super) struct Inquiries {
    questions: Vec<Question>,
    /// A question of this process that is still to be passed on.
    asks: Option<(u64, Duration)>,
    answers: Vec<Vec<u8>>,
    /// Bytes of `answers`.
    bytes: usize,
    wake: Option<UnixStream>,
}

impl Inquiries {
    pub(super) const fn new() -> Self {
        Self { questions: Vec::new(), asks: None, answers: Vec::new(), bytes: 0, wake: None }
    }

    /// Takes a question of this process, instead of the last one.
    fn ask(&mut self, number: u64, limit: Duration) {
        self.asks = Some((number, limit));
        self.questions.retain(|question| question.back.is_some());
        (self.answers, self.bytes) = (Vec::new(), 0);
    }

    /// Passes this process's question on, over all its connections.
    pub(super) fn go_on(&mut self, all: &[Arc<Control>], now: Instant) {
        let Some((number, limit)) = self.asks.take() else { return };
        self.note(Question { number, back: None, heard: now, until: now + limit.min(LONGEST) });
        let notice = notice::status_wanted(number, limit);
        all.iter().for_each(|control| control.tell(&notice));
    }

    /// Notes a question. Returns whether it is new, and there is room for it.
    fn note(&mut self, question: Question) -> bool {
        if self.questions.iter().any(|known| known.number == question.number) {
            return false;
        }
        if self.questions.len() >= QUESTIONS {
            // They are in the order in which they came.
            if question.heard < self.questions[0].heard + OLD {
                return false;
            }
            self.questions.remove(0);
        }
        self.questions.push(question);
        true
    }

    /// Takes a notice that came over a connection; `all` are the connections of the process, and
    /// `own` makes its answer.
    pub(super) fn hear(
        &mut self,
        (from, notice): (&Arc<Control>, Notice),
        all: &[Arc<Control>],
        own: impl FnOnce() -> Option<Vec<u8>>,
        now: Instant,
    ) {
        self.questions.retain(|question| question.until > now);
        match notice {
            Notice::StatusWanted(number, limit) => {
                let (back, until) = (Some(Arc::downgrade(from)), now + limit.min(LONGEST));
                if !self.note(Question { number, back, heard: now, until }) {
                    return;
                }
                let notice = notice::status_wanted(number, limit);
                let others = all.iter().filter(|control| !Arc::ptr_eq(control, from));
                others.for_each(|control| control.tell(&notice));
                if let Some(answer) = own() {
                    from.tell(&notice::status(number, &answer));
                }
            }
            Notice::Status(number, answer) => {
                let question = self.questions.iter().find(|question| question.number == number);
                match question.map(|question| &question.back) {
                    None => {}
                    Some(None) => self.keep(answer),
                    Some(Some(back)) => {
                        let back = back.upgrade().filter(|back| back.waiting() < WAITING_BYTES);
                        back.iter().for_each(|back| back.tell(&notice::status(number, &answer)));
                    }
                }
            }
            _ => {}
        }
    }

    fn keep(&mut self, answer: Vec<u8>) {
        if self.bytes + answer.len() > KEPT_BYTES {
            return;
        }
        self.bytes += answer.len();
        self.answers.push(answer);
        if let Some(wake) = &self.wake {
            // It is awake if there is no room.
            let _ = (&*wake).write(&[1]);
        }
    }
}

static INQUIRIES: Mutex<Inquiries> = Mutex::new(Inquiries::new());

/// The questions of this process.
pub(super) fn lock() -> MutexGuard<'static, Inquiries> {
    INQUIRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what this process tells those who ask.
pub(super) fn own() -> Option<Vec<u8>> {
    let root = Path::new(read::PROC);
    read::process(root, read::own_pid(root)).map(|process| wire::encode(&process))
}

/// Returns the end of a connection at which answers show from now on.
pub fn listen() -> std::io::Result<UnixStream> {
    let (wake, woken) = wake_pair()?;
    lock().wake = Some(wake);
    Ok(woken)
}

/// Asks all processes that control connections reach, instead of an earlier question; answers are
/// taken for so long.
pub fn ask(number: u64, limit: Duration) {
    lock().ask(number, limit);
    super::monitor::wake();
}

/// Takes the answers that have come.
pub fn take() -> Vec<Vec<u8>> {
    let mut inquiries = lock();
    inquiries.bytes = 0;
    std::mem::take(&mut inquiries.answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with its ends of connections, in a network without sockets' delays.
    struct Node {
        inquiries: Inquiries,
        controls: Vec<Arc<Control>>,
        answered: usize,
    }

    /// Returns processes that these pairs of them connect.
    fn connected(count: usize, pairs: &[(usize, usize)]) -> Vec<Node> {
        let node = |_| Node { inquiries: Inquiries::new(), controls: Vec::new(), answered: 0 };
        let mut nodes: Vec<Node> = (0..count).map(node).collect();
        for &(a, b) in pairs {
            let ends = UnixStream::pair().unwrap();
            nodes[a].controls.push(Arc::new(Control::new(ends.0.into())));
            nodes[b].controls.push(Arc::new(Control::new(ends.1.into())));
        }
        nodes
    }

    /// Has all processes look until nothing is said any more.
    fn settle(nodes: &mut [Node], now: Instant) {
        let mut quiet = false;
        while !quiet {
            quiet = true;
            for (number, node) in nodes.iter_mut().enumerate() {
                node.inquiries.go_on(&node.controls, now);
                for from in node.controls.clone() {
                    for notice in from.receive().0 {
                        quiet = false;
                        let answered = &mut node.answered;
                        let own = || {
                            *answered += 1;
                            Some(vec![number as u8; number])
                        };
                        node.inquiries.hear((&from, notice), &node.controls, own, now);
                    }
                }
            }
        }
    }

    fn answers(node: &mut Node) -> Vec<usize> {
        let mut answers: Vec<_> = node.inquiries.answers.drain(..).map(|a| a.len()).collect();
        answers.sort_unstable();
        answers
    }

    #[test]
    fn every_process_that_can_be_reached_answers_once_whatever_the_ways() {
        let now = Instant::now();
        // A chain with a circle, two connections between two processes, and one apart.
        let pairs = [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (3, 4)];
        let mut nodes = connected(6, &pairs);
        for number in 1..4 {
            nodes[0].inquiries.ask(number, Duration::from_secs(5));
            settle(&mut nodes, now);
            assert_eq!(answers(&mut nodes[0]), [1, 2, 3, 4]);
        }
        let answered: Vec<_> = nodes.iter().map(|node| node.answered).collect();
        assert_eq!(answered, [0, 3, 3, 3, 3, 0]);
        // Two ask at a time.
        nodes[0].inquiries.ask(7, Duration::from_secs(5));
        nodes[4].inquiries.ask(8, Duration::from_secs(5));
        settle(&mut nodes, now);
        assert_eq!(answers(&mut nodes[0]), [1, 2, 3, 4]);
        assert_eq!(answers(&mut nodes[4]), [0, 1, 2, 3]);
    }

    #[test]
    fn what_comes_late_or_unasked_is_dropped_and_memory_is_bounded() {
        let now = Instant::now();
        let mut nodes = connected(2, &[(0, 1)]);
        let limit = Duration::from_secs(5);
        nodes[0].inquiries.ask(1, limit);
        let controls = nodes[0].controls.clone();
        nodes[0].inquiries.go_on(&controls, now);
        nodes[1].controls[0].tell(&notice::status(2, b"unasked"));
        nodes[1].controls[0].tell(&notice::status(1, b"in time"));
        settle(&mut nodes[..1], now);
        assert_eq!(answers(&mut nodes[0]), [7]);
        nodes[1].controls[0].tell(&notice::status(1, b"late"));
        settle(&mut nodes[..1], now + limit);
        assert!(answers(&mut nodes[0]).is_empty());
        // A process that asks without end is not answered without end.
        let mut ask = |numbers: std::ops::Range<u64>, at| {
            for number in numbers {
                nodes[1].controls[0].tell(&notice::status_wanted(number, Duration::MAX));
                settle(&mut nodes[..1], at);
            }
            (nodes[0].inquiries.questions.len(), nodes[0].answered)
        };
        let most = QUESTIONS as u64;
        assert_eq!(ask(10..10 + 2 * most, now + limit), (QUESTIONS, QUESTIONS));
        assert_eq!(ask(10 + most..20 + most, now + limit + OLD), (QUESTIONS, QUESTIONS + 10));
        let (len, _) = ask(0..1, now + limit + OLD + LONGEST);
        assert_eq!(len, 1, "those of before are over");
    }
}
