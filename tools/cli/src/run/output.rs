//! The output of the ranks: lines with the number of their rank in front, files, or what the
//! launcher has.
//!
//! Lines of the ranks come through pipes, or where the launcher's output is a terminal through a
//! terminal of their own, since programs write line by line to terminals only. One thread reads
//! them all, and writes each line at once.

use super::{Options, Tag};
use crate::error::{Error, Result, say};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{
    OptionalActions, OutputModes, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// The time after which a line that is not complete is shown: on a terminal, as it may be a
/// question, and elsewhere, where programs write lines in pieces.
const QUESTION_MS: u64 = 100;
const PIECES_MS: u64 = 1000;
/// The time for which output is awaited once all ranks have ended: what they have started may keep
/// their output open.
const AFTERWARDS_MS: u64 = 200;
/// The longest line that is kept until it is complete, in bytes.
const LONGEST: usize = 64 << 10;
/// The colours of ranks, in turn, by the numbers of ECMA-48: green, yellow, blue, magenta, cyan,
/// red.
const COLOURS: [u8; 6] = [32, 33, 34, 35, 36, 31];

/// The two outputs of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Out,
    Err,
}

impl Target {
    const ALL: [Self; 2] = [Self::Out, Self::Err];

    fn is_terminal(self) -> bool {
        match self {
            Self::Out => isatty(std::io::stdout()),
            Self::Err => isatty(std::io::stderr()),
        }
    }

    /// Returns what is in front of a rank's lines.
    fn tag(self, rank: u32) -> Vec<u8> {
        // https://no-color.org
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match self.is_terminal() && !plain {
            true => {
                let colour = COLOURS[rank as usize % COLOURS.len()];
                format!("\x1b[{colour}m[{rank}]\x1b[0m ").into_bytes()
            }
            false => format!("[{rank}] ").into_bytes(),
        }
    }

    /// Returns the end that a rank writes to and the one that is read.
    fn channel(self) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
        if !self.is_terminal() {
            let (reads, writes) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            return Ok((writes, reads));
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let reads = openpt(flags)?;
        grantpt(&reads)?;
        unlockpt(&reads)?;
        let writes = ioctl_tiocgptpeer(&reads, flags)?;
        let mut modes = tcgetattr(&writes)?;
        // Lines end as they were written; the launcher's terminal does the rest.
        modes.output_modes.remove(OutputModes::OPOST);
        tcsetattr(&writes, OptionalActions::Now, &modes)?;
        if let Ok(size) = tcgetwinsize(std::io::stderr()) {
            tcsetwinsize(&writes, size)?;
        }
        Ok((writes, reads))
    }
}

/// The output of a rank.
struct Stream {
    target: Target,
    /// The text in front of its lines.
    tag: Vec<u8>,
    /// `None` once it has ended.
    from: Option<OwnedFd>,
    /// What has come of a line and was not shown.
    line: Vec<u8>,
}

/// What the ranks write, on its way to the launcher's output.
pub(super) struct Output<'a> {
    options: &'a Options,
    streams: Vec<Stream>,
}

/// The thread that shows lines, until the ranks have ended.
pub(super) struct Showing {
    /// Returns true if nothing was lost.
    thread: JoinHandle<bool>,
    /// Closing this tells the thread that the ranks have ended.
    end: OwnedFd,
}

impl<'a> Output<'a> {
    /// Makes the folder for the files of the ranks, if there shall be some.
    pub(super) fn new(options: &'a Options) -> Result<Self> {
        if let Some(folder) = &options.output {
            std::fs::create_dir_all(folder).map_err(failed(folder))?;
        }
        Ok(Self { options, streams: Vec::new() })
    }

    /// Sets where a rank writes to.
    pub(super) fn direct(&mut self, rank: u32, command: &mut Command) -> Result<()> {
        for target in Target::ALL {
            let to = match &self.options.output {
                Some(folder) => {
                    let end = if target == Target::Out { "out" } else { "err" };
                    let path = folder.join(format!("rank-{rank}.{end}"));
                    Stdio::from(File::create(&path).map_err(failed(&path))?)
                }
                None if self.options.tag_output == Tag::No => continue,
                None => {
                    let (writes, reads) = target.channel().map_err(|e| {
                        let (e, what) = (std::io::Error::from(e), "no pipe for the output of rank");
                        Error::Options(format!("{what} {rank}: {e}{}", super::more_files(&e)))
                    })?;
                    let (tag, from, line) = (target.tag(rank), Some(reads), Vec::new());
                    self.streams.push(Stream { target, tag, from, line });
                    Stdio::from(writes)
                }
            };
            match target {
                Target::Out => command.stdout(to),
                Target::Err => command.stderr(to),
            };
        }
        Ok(())
    }

    /// Shows the lines from now on; `None` where there are none to be shown.
    pub(super) fn show(self) -> Result<Option<Showing>> {
        if self.streams.is_empty() {
            return Ok(None);
        }
        let failed = |e: std::io::Error| Error::Options(format!("no thread for the output: {e}"));
        let ended = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (ended, end) = ended.map_err(|e| failed(e.into()))?;
        let mut lines = Lines { streams: self.streams, unfinished: None, lost: false };
        let thread = std::thread::Builder::new().spawn(move || {
            lines.show(&ended);
            !lines.lost
        });
        Ok(Some(Showing { thread: thread.map_err(failed)?, end }))
    }
}

impl Showing {
    /// Waits until everything is shown that the ranks have written. All of them have ended. Returns
    /// whether nothing was lost.
    pub(super) fn finish(self) -> bool {
        drop(self.end);
        // A panic has been reported.
        self.thread.join().unwrap_or(false)
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |e| Error::File { path: path.clone(), cause: e.to_string() }
}

/// The lines that are shown.
struct Lines {
    streams: Vec<Stream>,
    /// The stream whose line was shown last and has not ended.
    unfinished: Option<usize>,
    /// True once a line was lost for another reason than that nobody reads any more.
    lost: bool,
}

impl Lines {
    /// Shows what comes until all streams have ended, or for a while after `ended` was closed.
    fn show(&mut self, ended: &OwnedFd) {
        let mut over = false;
        loop {
            let open: Vec<usize> =
                (0..self.streams.len()).filter(|&i| self.streams[i].from.is_some()).collect();
            let ready = match self.wait(&open, (!over).then_some(ended), over) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => return self.lose(&error.into()),
            };
            match ready {
                _ if open.is_empty() => return,
                Ready::Nothing if over => return self.show_rest(),
                Ready::Nothing => self.show_rest(),
                Ready::Ended => over = true,
                Ready::Streams(streams) => streams.into_iter().for_each(|i| self.read(i)),
            }
        }
    }

    fn wait(
        &self,
        open: &[usize],
        ended: Option<&OwnedFd>,
        over: bool,
    ) -> rustix::io::Result<Ready> {
        let begun = self.streams.iter().filter(|stream| !stream.line.is_empty());
        let shown_ms = |of: &Stream| if of.target.is_terminal() { QUESTION_MS } else { PIECES_MS };
        let limit_ms = if over { Some(AFTERWARDS_MS) } else { begun.map(shown_ms).min() };
        let limit = limit_ms.map(|ms| Timespec {
            tv_sec: (ms / 1000) as i64,
            tv_nsec: (ms % 1000 * 1_000_000) as i64,
        });
        let ends = open.iter().filter_map(|&i| self.streams[i].from.as_ref());
        let fds = ends.chain(ended).map(|end| PollFd::new(end, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        if poll(&mut fds, limit.as_ref())? == 0 {
            return Ok(Ready::Nothing);
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let streams: Vec<usize> =
            open.iter().zip(&fds).filter(|(_, fd)| ready(fd)).map(|(&i, _)| i).collect();
        Ok(if streams.is_empty() { Ready::Ended } else { Ready::Streams(streams) })
    }

    /// Takes what has come of a stream, and shows the lines that are complete.
    fn read(&mut self, index: usize) {
        let mut bytes = [0; 4096];
        let stream = &mut self.streams[index];
        let Some(from) = &stream.from else { return };
        match rustix::io::read(from.as_fd(), &mut bytes) {
            Ok(read @ 1..) => stream.line.extend_from_slice(&bytes[..read]),
            Err(Errno::INTR) => return,
            // A terminal whose other end is closed gives an error.
            Ok(0) | Err(_) => {
                stream.from = None;
                if !stream.line.is_empty() || self.unfinished == Some(index) {
                    stream.line.push(b'\n');
                }
            }
        }
        let complete = match stream.line.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if stream.line.len() > LONGEST => stream.line.len(),
            None => 0,
        };
        let rest = stream.line.split_off(complete);
        let lines = std::mem::replace(&mut stream.line, rest);
        lines.split_inclusive(|byte| *byte == b'\n').for_each(|line| self.print(index, line));
    }

    /// Shows the beginnings of lines.
    fn show_rest(&mut self) {
        for index in 0..self.streams.len() {
            let line = std::mem::take(&mut self.streams[index].line);
            if !line.is_empty() {
                self.print(index, &line);
            }
        }
    }

    /// Prints a line, or a part of one.
    fn print(&mut self, index: usize, text: &[u8]) {
        let mut all = Vec::with_capacity(text.len() + 16);
        if self.unfinished != Some(index) {
            if let Some(other) = self.unfinished.take() {
                self.write(other, b"\n");
            }
            all.extend_from_slice(&self.streams[index].tag);
        }
        all.extend_from_slice(text);
        self.unfinished = (!text.ends_with(b"\n")).then_some(index);
        self.write(index, &all);
    }

    /// Writes to the launcher's output. Where that is closed, the rank's is closed as well, so that
    /// the rank is told as if it had it.
    fn write(&mut self, index: usize, bytes: &[u8]) {
        let stream = &mut self.streams[index];
        let written = match stream.target {
            Target::Out => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Target::Err => std::io::stderr().lock().write_all(bytes),
        };
        if let Err(error) = written {
            stream.from = None;
            stream.line.clear();
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                self.lose(&error);
            }
        }
    }

    /// Says once why lines are lost.
    fn lose(&mut self, why: &std::io::Error) {
        if !std::mem::replace(&mut self.lost, true) {
            say(&format!("what the ranks write is lost: {why}"));
        }
    }
}

/// What a wait has found.
enum Ready {
    Nothing,
    Ended,
    Streams(Vec<usize>),
}
