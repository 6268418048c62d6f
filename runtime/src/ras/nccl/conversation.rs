//! The conversation with a client of the service: bytes in, replies and requests out.
//! No sockets, no clock.

use std::time::Duration;

/// The most bytes of a line, with its end.
pub const LINE_BYTES: usize = 1024;
/// The group of events about processes that come and go.
pub const LIFECYCLE: u8 = 1;
/// The group of events about connections between processes.
pub const TRACE: u8 = 2;
/// Stands for a client that sets no limit, and for limits that nobody waits for.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// The format of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    Text,
    /// A JSON document.
    Json,
    /// A JSON document of ours with what the processes record; NCCL has no such format.
    Records,
}

/// A report that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The format of the report.
    pub format: Format,
    /// True if more ranks are to be listed one by one.
    pub verbose: bool,
    /// The time after which processes that have not answered are left out.
    pub limit: Duration,
}

/// An action that a client's words ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the client these bytes.
    Say(Vec<u8>),
    /// Give the client a report, and close the connection after that.
    Report(Wanted),
    /// Close the connection: the client has sent too long a line.
    Close,
}

/// The conversation with a client.
#[derive(Debug)]
pub struct Conversation {
    format: Format,
    limit: Duration,
    groups: u8,
    /// The beginning of a line.
    input: Vec<u8>,
    /// True once nothing is heard any more.
    over: bool,
}

impl Conversation {
    /// Returns the conversation with a client that has said nothing, and who waits so long for
    /// processes unless it says otherwise.
    pub fn new(limit: Duration) -> Self {
        Self { format: Format::Text, limit, groups: 0, input: Vec::new(), over: false }
    }

    /// Returns the format of answers.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the groups of events that the client listens to.
    pub fn groups(&self) -> u8 {
        if self.over { 0 } else { self.groups }
    }

    /// Takes bytes that the client has sent.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<Action> {
        let mut actions = Vec::new();
        for &byte in bytes {
            if self.over {
                break;
            }
            if byte != b'\n' {
                self.input.push(byte);
                if self.input.len() >= LINE_BYTES {
                    self.over = true;
                    actions.push(Action::Close);
                }
                continue;
            }
            let line = std::mem::take(&mut self.input);
            actions.push(self.obey(line.strip_suffix(b"\r").unwrap_or(&line)));
        }
        actions
    }

    fn obey(&mut self, line: &[u8]) -> Action {
        let say = |text: &str| Action::Say(text.as_bytes().to_vec());
        let after = |word: &str| {
            let (begin, rest) = line.split_at_checked(word.len())?;
            begin.eq_ignore_ascii_case(word.as_bytes()).then_some(rest)
        };
        let is = |words: &str| after(words).is_some_and(<[u8]>::is_empty);
        if after("client protocol ").is_some() {
            return say("SERVER PROTOCOL 2\n");
        }
        if let Some(rest) = after("timeout ") {
            return match limit(rest) {
                Some(limit) => {
                    self.limit = limit;
                    say("OK\n")
                }
                None => Action::Say(echo("ERROR: Invalid timeout value ", rest, "\n")),
            };
        }
        if let Some(rest) = after("set format ") {
            let formats =
                [("text", Format::Text), ("json", Format::Json), ("records", Format::Records)];
            let is_named = |name: &str| rest.eq_ignore_ascii_case(name.as_bytes());
            return match formats.into_iter().find(|(name, _)| is_named(name)) {
                Some((_, format)) => {
                    self.format = format;
                    say("OK\n")
                }
                None => Action::Say(echo("ERROR: Invalid format ", rest, "\n")),
            };
        }
        if is("status") || is("verbose status") {
            self.over = true;
            let (format, limit) = (self.format, self.limit);
            return Action::Report(Wanted { format, verbose: is("verbose status"), limit });
        }
        let groups = if is("monitor") { Some(&b""[..]) } else { after("monitor ") };
        let Some(list) = groups else {
            return Action::Say(echo("ERROR: Unknown command ", line, "\n"));
        };
        match event_groups(list.trim_ascii_start()) {
            Ok(groups) => {
                self.groups = groups;
                say("OK\n")
            }
            Err(word) => Action::Say(echo("ERROR: Invalid event group '", word, "'\n")),
        }
    }
}

fn echo(before: &str, said: &[u8], after: &str) -> Vec<u8> {
    [before.as_bytes(), said, after.as_bytes()].concat()
}

/// Returns a number of seconds as a limit; 0 stands for none.
fn limit(text: &[u8]) -> Option<Duration> {
    let seconds: f64 = std::str::from_utf8(text.trim_ascii_start()).ok()?.parse().ok()?;
    if !seconds.is_finite() || seconds < 0.0 {
        return None;
    }
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST);
    Some(if limit.is_zero() { LONGEST } else { limit })
}

/// Returns the groups of events in a list, or the word that names none.
fn event_groups(list: &[u8]) -> Result<u8, &[u8]> {
    if list.is_empty() {
        return Ok(LIFECYCLE);
    }
    let names = [("lifecycle", LIFECYCLE), ("trace", TRACE), ("all", u8::MAX)];
    list.split(|&byte| byte == b',').try_fold(0, |groups, word| {
        let named = names.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|(_, group)| groups | group).ok_or(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Returns what is said to the lines of a new client.
    fn answers(lines: &[u8]) -> Vec<Action> {
        Conversation::new(LIMIT).hear(lines)
    }

    fn said(text: &str) -> Action {
        Action::Say(text.as_bytes().to_vec())
    }

    fn wanted(format: Format, verbose: bool, limit: Duration) -> Action {
        Action::Report(Wanted { format, verbose, limit })
    }

    #[test]
    fn every_command_is_answered_as_nccl_does() {
        for (line, answer) in [
            ("CLIENT PROTOCOL 2", "SERVER PROTOCOL 2"),
            ("client protocol what", "SERVER PROTOCOL 2"),
            ("CLIENT PROTOCOL", "ERROR: Unknown command CLIENT PROTOCOL"),
            ("TIMEOUT 5\r", "OK"),
            ("TIMEOUT 0.25", "OK"),
            ("timeout 1e400", "ERROR: Invalid timeout value 1e400"),
            ("TIMEOUT 5s", "ERROR: Invalid timeout value 5s"),
            ("TIMEOUT -1", "ERROR: Invalid timeout value -1"),
            ("TIMEOUT nan", "ERROR: Invalid timeout value nan"),
            ("TIMEOUT inf", "ERROR: Invalid timeout value inf"),
            ("TIMEOUT ", "ERROR: Invalid timeout value "),
            ("TIMEOUT", "ERROR: Unknown command TIMEOUT"),
            ("set FORMAT Json", "OK"),
            ("SET FORMAT text", "OK"),
            ("SET FORMAT records", "OK"),
            ("SET FORMAT xml", "ERROR: Invalid format xml"),
            ("SET FORMAT json ", "ERROR: Invalid format json "),
            ("SET  FORMAT json", "ERROR: Unknown command SET  FORMAT json"),
            ("", "ERROR: Unknown command "),
            ("STATUS ", "ERROR: Unknown command STATUS "),
            (" STATUS", "ERROR: Unknown command  STATUS"),
            ("VERBOSE", "ERROR: Unknown command VERBOSE"),
            ("MONITORING", "ERROR: Unknown command MONITORING"),
            ("MONITOR most", "ERROR: Invalid event group 'most'"),
            ("MONITOR trace, all", "ERROR: Invalid event group ' all'"),
            ("MONITOR trace,", "ERROR: Invalid event group ''"),
            ("DIAGNOSTICS", "ERROR: Unknown command DIAGNOSTICS"),
        ] {
            let answer = said(&format!("{answer}\n"));
            assert_eq!(answers(format!("{line}\n").as_bytes()), [answer], "{line:?}");
        }
    }

    #[test]
    fn settings_hold_for_the_report_after_which_nothing_is_heard() {
        let ok = || said("OK\n");
        let plain = wanted(Format::Text, false, LIMIT);
        assert_eq!(answers(b"status\nSTATUS\n"), [plain]);
        let asked = answers(b"TIMEOUT 0.5\nSET FORMAT json\nVERBOSE STATUS\nTIMEOUT 1\n");
        let report = wanted(Format::Json, true, Duration::from_millis(500));
        assert_eq!(asked, [ok(), ok(), report]);
        let asked = answers(b"TIMEOUT 9\nTIMEOUT x\nTIMEOUT 0\nSTATUS\n");
        let refused = said("ERROR: Invalid timeout value x\n");
        assert_eq!(asked, [ok(), refused, ok(), wanted(Format::Text, false, LONGEST)]);
    }

    #[test]
    fn lines_may_come_in_any_pieces() {
        let all = b"CLIENT PROTOCOL 2\r\nwhat\xff\nSTATUS\n";
        let unknown = Action::Say(b"ERROR: Unknown command what\xff\n".to_vec());
        let expected = [said("SERVER PROTOCOL 2\n"), unknown, wanted(Format::Text, false, LIMIT)];
        for size in 1..all.len() {
            let mut conversation = Conversation::new(LIMIT);
            let heard: Vec<_> = all.chunks(size).flat_map(|c| conversation.hear(c)).collect();
            assert_eq!(heard, expected, "{size}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_ends_the_conversation() {
        let longest = "x".repeat(LINE_BYTES - 1);
        let refused = said(&format!("ERROR: Unknown command {longest}\n"));
        assert_eq!(answers(format!("{longest}\n").as_bytes()), [refused]);
        assert_eq!(answers(format!("{longest}x\nSTATUS\n").as_bytes()), [Action::Close]);
    }

    #[test]
    fn who_listens_may_change_the_groups_until_it_asks_for_a_report() {
        let mut client = Conversation::new(LIMIT);
        assert_eq!(client.groups(), 0);
        let ok = said("OK\n");
        for (line, groups) in [
            (&b"MONITOR\n"[..], LIFECYCLE),
            (b"monitor   trace\n", TRACE),
            (b"MONITOR Lifecycle,TRACE\n", LIFECYCLE | TRACE),
            (b"MONITOR \n", LIFECYCLE),
            (b"MONITOR all\n", u8::MAX),
        ] {
            assert_eq!((client.hear(line), client.groups()), (vec![ok.clone()], groups));
        }
        client.hear(b"MONITOR trace,most\n");
        assert_eq!(client.groups(), u8::MAX);
        client.hear(b"STATUS\n");
        assert_eq!(client.groups(), 0);
    }
}
