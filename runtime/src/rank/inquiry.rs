//! Questions about the state of a job that go from process to process over control connections.
//! Monitors answer them, so that they are answered whatever the ranks do.
//!
//! A question has a random number. A process that hears of it for the first time passes it on over
//! all its control connections and answers; answers go back the way the question came. Numbers are
//! remembered for longer than any copy of a question can be under way, whatever limit it has: a
//! process that forgot one would pass it on once more, and a circle of connections would not rest.

use super::wake_pair;
use crate::link::control::Control;
use crate::link::notice::{self, Notice};
use crate::recorder::{read, wire};
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The most questions that a process remembers. Others are neither passed on nor answered until
/// there is room.
const QUESTIONS: usize = 4096;
/// The time for which a question is remembered.
const REMEMBERED: Duration = Duration::from_secs(180);
/// The shortest and the longest time for which answers to a question are passed on.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(120);
/// The time for which an answer of this process serves all who ask: making one takes milliseconds
/// where a process has many descriptors, and signs of life come from the same thread.
const ANSWER_SERVES: Duration = Duration::from_millis(250);
/// Bytes that wait for a connection above which no questions and answers are added: signs of life
/// come after them.
const WAITING_BYTES: usize = 1 << 20;
/// Bytes of answers to a question above which no more are kept.
pub const KEPT_BYTES: usize = 64 << 20;

const _: () = assert!(wire::MAX_BYTES <= notice::STATUS_BYTES);

/// The way back to who has asked.
enum Back {
    /// This process asks.
    Own,
    /// This process has asked, and asks something else now.
    Over,
    /// The connection that the question came by.
    By(Weak<Control>),
}

/// A question that the process has heard of.
struct Question {
    number: u64,
    back: Back,
    heard: Instant,
    /// The time until which answers are passed on.
    until: Instant,
}

/// The questions of a process, and the answers to its own.
pub(super) struct Inquiries {
    /// In the order in which they came.
    questions: VecDeque<Question>,
    /// A question of this process that is still to be passed on.
    asks: Option<(u64, Duration)>,
    answers: Vec<Vec<u8>>,
    /// Bytes of the answers so far, of those too that were taken.
    bytes: usize,
    /// The latest answer of this process, and its time.
    own: Option<(Instant, Vec<u8>)>,
    wake: Option<UnixStream>,
}

/// Passes something on, unless too much waits for the connection.
fn tell(control: &Control, notice: &[u8]) {
    if control.waiting() < WAITING_BYTES {
        control.tell(notice);
    }
}

impl Inquiries {
    pub(super) const fn new() -> Self {
        Self {
            questions: VecDeque::new(),
            asks: None,
            answers: Vec::new(),
            bytes: 0,
            own: None,
            wake: None,
        }
    }

    /// Takes a question of this process, instead of the last one.
    pub(super) fn ask(&mut self, number: u64, limit: Duration) {
        self.asks = Some((number, limit.clamp(SHORTEST, LONGEST)));
        let own = self.questions.iter_mut().filter(|question| matches!(question.back, Back::Own));
        own.for_each(|question| question.back = Back::Over);
        (self.answers, self.bytes) = (Vec::new(), 0);
    }

    /// Passes this process's question on, over all its connections.
    pub(super) fn go_on(&mut self, all: &[Arc<Control>], now: Instant) {
        let Some((number, limit)) = self.asks.take() else { return };
        if self.note(Question { number, back: Back::Own, heard: now, until: now + limit }) {
            let notice = notice::status_wanted(number, limit);
            all.iter().for_each(|control| tell(control, &notice));
        }
    }

    /// Notes a question. Returns whether it is new, and there is room for it.
    fn note(&mut self, question: Question) -> bool {
        let now = question.heard;
        while self.questions.front().is_some_and(|first| first.heard + REMEMBERED < now) {
            self.questions.pop_front();
        }
        let is_new = self.questions.iter().all(|known| known.number != question.number);
        let is_noted = is_new && self.questions.len() < QUESTIONS;
        if is_noted {
            self.questions.push_back(question);
        }
        is_noted
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
        match notice {
            Notice::StatusWanted(number, limit) => {
                let limit = limit.clamp(SHORTEST, LONGEST);
                let back = Back::By(Arc::downgrade(from));
                if !self.note(Question { number, back, heard: now, until: now + limit }) {
                    return;
                }
                let notice = notice::status_wanted(number, limit);
                let others = all.iter().filter(|control| !Arc::ptr_eq(control, from));
                others.for_each(|control| tell(control, &notice));
                if self.own.as_ref().is_none_or(|(made, _)| *made + ANSWER_SERVES < now) {
                    self.own = own().map(|answer| (now, answer));
                }
                if let Some((_, answer)) = &self.own {
                    tell(from, &notice::status(number, answer));
                }
            }
            Notice::Status(number, answer) => {
                let asked = |question: &&Question| question.number == number;
                let question = self.questions.iter().find(asked);
                match question.filter(|question| question.until > now).map(|of| &of.back) {
                    None | Some(Back::Over) => {}
                    Some(Back::Own) => self.keep(answer),
                    Some(Back::By(back)) => {
                        let back = back.upgrade();
                        back.iter().for_each(|back| tell(back, &notice::status(number, &answer)));
                    }
                }
            }
            _ => {}
        }
    }

    /// Takes the answers to this process's question that have come.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.answers)
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
    lock().take()
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
        let mut answers: Vec<_> = node.inquiries.take().iter().map(Vec::len).collect();
        answers.sort_unstable();
        answers
    }

    #[test]
    fn every_process_that_can_be_reached_answers_once_whatever_the_ways_and_limits() {
        let mut now = Instant::now();
        // A chain with a circle, two connections between two processes, and one apart.
        let pairs = [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (3, 4)];
        let mut nodes = connected(6, &pairs);
        let limits = [Duration::from_secs(5), Duration::ZERO, Duration::MAX];
        for (number, limit) in (1..).zip(limits) {
            now += 2 * ANSWER_SERVES;
            nodes[0].inquiries.ask(number, limit);
            settle(&mut nodes, now);
            assert_eq!(answers(&mut nodes[0]), [1, 2, 3, 4]);
        }
        let answered: Vec<_> = nodes.iter().map(|node| node.answered).collect();
        assert_eq!(answered, [0, 3, 3, 3, 3, 0]);
        // Two ask at a time; answers that were just made serve both.
        now += 2 * ANSWER_SERVES;
        nodes[0].inquiries.ask(7, limits[0]);
        nodes[4].inquiries.ask(8, limits[0]);
        settle(&mut nodes, now);
        assert_eq!(answers(&mut nodes[0]), [1, 2, 3, 4]);
        assert_eq!(answers(&mut nodes[4]), [0, 1, 2, 3]);
        let answered: Vec<_> = nodes.iter().map(|node| node.answered).collect();
        assert_eq!(answered, [1, 4, 4, 4, 4, 0]);
    }

    #[test]
    fn a_question_that_comes_back_late_is_no_new_one() {
        let now = Instant::now();
        let mut nodes = connected(3, &[(0, 1), (1, 2), (2, 0)]);
        nodes[0].inquiries.ask(1, SHORTEST);
        let controls = nodes[0].controls.clone();
        nodes[0].inquiries.go_on(&controls, now);
        // The others hear of it when it is over, and who asked asks something else.
        nodes[0].inquiries.ask(2, SHORTEST);
        settle(&mut nodes, now + 2 * SHORTEST);
        assert_eq!(answers(&mut nodes[0]), [1, 2]);
        let numbers = |node: &Node| node.inquiries.questions.len();
        assert_eq!(nodes.iter().map(numbers).collect::<Vec<_>>(), [2, 2, 2]);
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
        // One that answers without end is heard no more, also if its answers are taken meanwhile.
        nodes[0].inquiries.ask(3, limit);
        nodes[0].inquiries.go_on(&controls, now);
        let mut kept = 0;
        for _ in 0..KEPT_BYTES / wire::MAX_BYTES + 9 {
            let answer = (&controls[0], Notice::Status(3, vec![0; wire::MAX_BYTES]));
            nodes[0].inquiries.hear(answer, &controls, || None, now);
            kept += answers(&mut nodes[0]).iter().sum::<usize>();
        }
        assert_eq!(kept, KEPT_BYTES);
        // A process that asks without end, and reads nothing, is not answered without end.
        let large = vec![0; wire::MAX_BYTES];
        let mut ask = |numbers: std::ops::Range<u64>, at| {
            for number in numbers {
                let question = Notice::StatusWanted(number, Duration::MAX);
                let own = || Some(large.clone());
                nodes[0].inquiries.hear((&controls[0], question), &controls, own, at);
            }
            (nodes[0].inquiries.questions.len(), controls[0].waiting())
        };
        let most = QUESTIONS as u64;
        let (questions, waiting) = ask(10..10 + 2 * most, now + limit);
        assert_eq!(questions, QUESTIONS);
        assert!(waiting < WAITING_BYTES + 2 * wire::MAX_BYTES, "{waiting}");
        let (questions, _) = ask(0..1, now + limit + 2 * REMEMBERED);
        assert_eq!(questions, 1, "those of before are over");
    }
}
