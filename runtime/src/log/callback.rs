//! Delivers log lines to the user's function, in a separate thread. A thread that logs may hold
//! locks of the library or be one on which others wait, and the function may call the library.

use super::Level;
use oxccl_plan::words::counted;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A user's function that receives the level and the text of a line.
pub type Callback = Box<dyn Fn(i32, &str) + Send + Sync>;

/// Lines that wait for a slow callback; further lines are only counted.
const ROOM: usize = 4096;
/// The longest time that the end of the process waits for pending lines.
const LAST: Duration = Duration::from_secs(1);

struct Line {
    to: Arc<Callback>,
    level: i32,
    text: String,
}

struct Mailbox {
    callback: Option<Arc<Callback>>,
    lines: VecDeque<Line>,
    /// The number of lines taken in, and the number of lines delivered, so far.
    taken: u64,
    delivered: u64,
    lost: u64,
    /// The process in which the thread runs: a forked child has no such thread.
    process: u32,
}

/// The mailbox of the process; tests have their own.
pub(super) struct Post {
    mailbox: Mutex<Mailbox>,
    changed: Condvar,
}

pub(super) static POST: Post = Post::new();

thread_local! {
    /// True in the thread that calls the callback.
    static DELIVERS: Cell<bool> = const { Cell::new(false) };
}

/// Delivers the last lines, so that a program that ends because of an error still gets them. No
/// callback runs later.
extern "C" fn at_exit() {
    let mut mailbox = POST.mailbox();
    mailbox.callback = None;
    POST.wait(mailbox, Some(LAST));
}

impl Post {
    const fn new() -> Self {
        let mailbox = Mailbox {
            callback: None,
            lines: VecDeque::new(),
            taken: 0,
            delivered: 0,
            lost: 0,
            process: 0,
        };
        Self { mailbox: Mutex::new(mailbox), changed: Condvar::new() }
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Replaces the callback. Blocks until the previous callback has received its lines and
    /// returned, unless called from within it.
    pub(super) fn set(&self, callback: Option<Callback>) {
        let mut mailbox = self.mailbox();
        mailbox.callback = callback.map(Arc::new);
        self.wait(mailbox, None);
    }

    /// Waits until the lines taken so far are delivered, for at most `limit`.
    fn wait(&self, mut mailbox: MutexGuard<'_, Mailbox>, limit: Option<Duration>) {
        let (start, taken) = (Instant::now(), mailbox.taken);
        let here = mailbox.process == std::process::id() && !DELIVERS.get();
        while here && mailbox.delivered < taken {
            let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(mailbox, left.min(LAST));
            mailbox = woken.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// Takes a line for the callback. Returns false if there is no callback or no thread for it.
    pub(super) fn take(&'static self, level: Level, text: &str) -> bool {
        let mut mailbox = self.mailbox();
        let Some(to) = mailbox.callback.clone() else { return false };
        if mailbox.process != std::process::id() && !self.start(&mut mailbox) {
            return false;
        }
        if mailbox.lines.len() >= ROOM {
            mailbox.lost += 1;
            return true;
        }
        if mailbox.lost > 0 {
            let lost = counted(mailbox.lost, "line was lost", "lines were lost");
            let text = format!("{lost}: the log callback is too slow");
            mailbox.lost = 0;
            mailbox.put(Line { to: to.clone(), level: Level::Warn as i32, text });
        }
        mailbox.put(Line { to, level: level as i32, text: text.to_owned() });
        self.changed.notify_all();
        true
    }

    fn start(&'static self, mailbox: &mut Mailbox) -> bool {
        // In a forked child, no thread delivers the lines that the parent's thread still had.
        mailbox.lines.clear();
        mailbox.delivered = mailbox.taken;
        let run = move || self.deliver();
        if std::thread::Builder::new().name("oxccl-log".to_owned()).spawn(run).is_err() {
            return false;
        }
        if mailbox.process == 0 && std::ptr::eq(self, &POST) {
            // SAFETY: the handler is a function that lives as long as the library, which is never
            // unloaded. Where there is no room for it, the last lines may get lost.
            unsafe { libc::atexit(at_exit) };
        }
        mailbox.process = std::process::id();
        true
    }

    fn deliver(&self) {
        DELIVERS.set(true);
        let mut mailbox = self.mailbox();
        loop {
            let Some(Line { to, level, text }) = mailbox.lines.pop_front() else {
                mailbox = self.changed.wait(mailbox).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            drop(mailbox);
            // A callback that panics loses its line, but not those after it.
            let _ = catch_unwind(AssertUnwindSafe(|| to(level, &text)));
            drop(to);
            mailbox = self.mailbox();
            mailbox.delivered += 1;
            self.changed.notify_all();
        }
    }
}

impl Mailbox {
    fn put(&mut self, line: Line) {
        self.taken += 1;
        self.lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn lines_come_in_order_the_last_before_the_callback_is_replaced_and_lost_ones_are_counted() {
        static OWN: Post = Post::new();
        let (sender, heard) = channel();
        let (open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        OWN.set(Some(Box::new(move |level, text| {
            if text == "0" {
                // The other lines have to wait.
                let _ = gate.lock().unwrap().recv();
                panic!("a callback may panic");
            }
            sender.send((level, text.to_owned())).unwrap();
        })));
        assert!(OWN.take(Level::Info, "0"));
        // The first line may be on its way already, or not.
        (1..ROOM as u32 + 9).for_each(|i| assert!(OWN.take(Level::Info, &i.to_string())));
        open.send(()).unwrap();
        OWN.wait(OWN.mailbox(), None);
        assert!(OWN.take(Level::Warn, "last"));
        OWN.set(None);
        assert!(!OWN.take(Level::Warn, "nobody hears"));
        let lines: Vec<(i32, String)> = heard.iter().collect();
        let (counted, [notice, last]) = lines.split_at(lines.len() - 2) else {
            panic!("{} lines", lines.len());
        };
        assert!((ROOM - 1..=ROOM).contains(&counted.len()));
        let expected = (1u32..).map(|i| (Level::Info as i32, i.to_string()));
        assert!(counted.iter().cloned().eq(expected.take(counted.len())));
        let lost = format!("{} lines were lost", ROOM + 8 - counted.len());
        assert!(notice.0 == Level::Warn as i32 && notice.1.starts_with(&lost), "{notice:?}");
        assert_eq!(*last, (Level::Warn as i32, "last".to_owned()));
    }
}
