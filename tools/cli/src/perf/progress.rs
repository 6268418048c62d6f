//! A line that tells what is being measured, and for how long, once that takes a moment.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time after which the line shows, and from one change of it to the next.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// What is being measured, until it is dropped; then the line is gone.
pub(super) struct Progress {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins to tell `what` is measured.
    pub(super) fn start(what: String, mut to: impl Write + Send + 'static, pace: Duration) -> Self {
        let (end, ended) = channel();
        let tell = move || {
            let begun = Instant::now();
            let mut shown = 0;
            // A terminal that is gone shows nothing.
            while ended.recv_timeout(pace) == Err(RecvTimeoutError::Timeout) {
                let text = format!("  measuring {what} … {:.0} s ", begun.elapsed().as_secs_f64());
                shown = text.chars().count();
                let _ = write!(to, "\r{text}").and_then(|()| to.flush());
            }
            if shown > 0 {
                let _ = write!(to, "\r{:shown$}\r", "");
            }
        };
        // Without a thread there is no line, which does not matter to the results.
        let thread = std::thread::Builder::new().spawn(tell).ok();
        Self { end: Some(end), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end = None;
        // It has nothing to return, and does not panic.
        self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal that hands on what is written to it.
    struct Terminal(Sender<String>);

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Nobody listens any more once the line is gone.
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_takes_longer_than_a_moment_is_told_with_its_time_until_it_is_done() {
        let (to, from) = channel();
        let pace = Duration::from_millis(500);
        let progress = Progress::start("8 bytes".to_owned(), Terminal(to), pace);
        let mut text = String::new();
        while !text.contains("measuring 8 bytes … ") {
            text += &from.recv().expect("a line");
        }
        drop(progress);
        text.extend(from.iter());
        assert!(text.ends_with('\r'), "{text:?}");
    }

    #[test]
    fn what_takes_a_moment_is_not_told() {
        let (to, from) = channel();
        drop(Progress::start("8 bytes".to_owned(), Terminal(to), Duration::from_secs(600)));
        assert_eq!(from.iter().count(), 0);
    }
}
