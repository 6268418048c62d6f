//! The hosts of a job. On other hosts ssh starts a launcher, which has a part of the ranks: it
//! reads the id from its standard input, then numbers of signals, and ends its ranks when that is
//! closed.

use super::signals::forwarded;
use super::{Options, Tag, aside};
use crate::error::{Error, Result};
use crate::given::OF_RANKS;
use oxccl_runtime::bootstrap::{UniqueId, launch};
use rustix::process::{Signal, getpid, kill_process};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

/// The variables that ranks on other hosts have as well.
const FORWARDED: [&str; 3] = ["NCCL_", "OXCCL_", "LD_LIBRARY_PATH"];

/// A host and its number of ranks, as a user gives them: `name` or `name:2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) ranks: u32,
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, ranks) = text.rsplit_once(':').unwrap_or((text, "1"));
        let ranks = ranks.parse().ok().filter(|ranks| *ranks > 0);
        // An option of ssh is no host.
        let name = Some(name).filter(|name| !name.is_empty() && !name.starts_with('-'));
        let host = name.zip(ranks).map(|(name, ranks)| Self { name: name.to_owned(), ranks });
        host.ok_or_else(|| "a host like node1, or node1:2 for two ranks".to_owned())
    }
}

/// Ranks of a job that one launcher starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(super) first: u32,
    pub(super) count: u32,
    /// The ranks of the whole job.
    pub(super) nranks: u32,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers: Vec<u32> = text.split(':').filter_map(|n| n.parse().ok()).collect();
        match numbers[..] {
            [first, count, nranks] => Ok(Self { first, count, nranks }),
            _ => Err("three numbers".to_owned()),
        }
    }
}

/// Ranks of one host.
pub(super) struct Seat<'a> {
    /// The host; `None` for this one.
    pub(super) host: Option<&'a str>,
    pub(super) part: Part,
}

/// Returns the ranks of each host. Fails if a host is named twice: ranks of a host are numbered by
/// its one launcher.
pub(super) fn seats(options: &Options) -> Result<Vec<Seat<'_>>> {
    if let Some(part) = options.part {
        return Ok(vec![Seat { host: None, part }]);
    }
    if options.host.is_empty() {
        let part = Part { first: 0, count: options.ranks, nranks: options.ranks };
        return Ok(vec![Seat { host: None, part }]);
    }
    let nranks = options.host.iter().map(|host| host.ranks).sum();
    let own = rustix::system::uname();
    let own = own.nodename().to_string_lossy();
    let mut first = 0;
    let mut seats: Vec<Seat<'_>> = Vec::new();
    for Host { name, ranks } in &options.host {
        let far = *name != "localhost" && *name != own;
        let (host, part) = (far.then_some(&**name), Part { first, count: *ranks, nranks });
        if seats.iter().any(|seat| seat.host == host) {
            let text = format!("--host: {name} is there twice; give its ranks at once, as in a:2");
            return Err(Error::Options(text));
        }
        seats.push(Seat { host, part });
        first += ranks;
    }
    Ok(seats)
}

/// Starts the launcher of a part on another host, and gives it the id. The host's ranks end when
/// the standard input of what this returns is closed.
pub(super) fn spawn(host: &str, part: Part, options: &Options, id: &UniqueId) -> Result<Child> {
    let own = std::env::current_exe();
    let folder = std::env::current_dir();
    let (own, folder) = own.and_then(|own| Ok((own, folder?))).map_err(failed("this program"))?;
    let mut words = ["exec", "env"].map(OsString::from).to_vec();
    words.extend(std::env::vars_os().filter_map(|(name, value)| {
        let text = name.to_string_lossy();
        let goes = FORWARDED.iter().any(|prefix| text.starts_with(prefix));
        let set = [&name, OsStr::new("="), &value].map(OsStr::as_bytes).concat();
        (goes && !OF_RANKS.contains(&&*text)).then(|| OsString::from_vec(set))
    }));
    let Part { first, count, nranks } = part;
    words.extend([own.into(), "run".into(), format!("--part={first}:{count}:{nranks}").into()]);
    words.push(format!("--grace={}", options.grace).into());
    let tags = if options.tag_output == Tag::Yes { "yes" } else { "no" };
    words.push(format!("--tag-output={tags}").into());
    if options.pin {
        words.push("--pin".into());
    }
    if let Some(folder) = &options.output {
        words.extend([OsString::from("--output"), folder.clone().into()]);
    }
    words.push("--".into());
    words.extend(options.program.iter().cloned());
    let mut line = quoted(&["cd".into(), folder.into()]);
    line.push("&& ");
    line.push(quoted(&words));
    let mut command = Command::new(&options.ssh);
    command.arg(host).arg(line).stdin(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(failed(&options.ssh.to_string_lossy()))?;
    let id = launch::hex(&id.encode());
    if let Some(input) = &mut child.stdin {
        // Its end says more than a pipe that it has closed.
        let _ = input.write_all(format!("{id}\n").as_bytes());
    }
    Ok(child)
}

fn failed(path: &str) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |e| Error::File { path: path.clone(), cause: e.to_string() }
}

/// Returns words as a line for a shell.
fn quoted(words: &[OsString]) -> OsString {
    let mut line = Vec::new();
    for word in words {
        line.push(b'\'');
        for byte in word.as_bytes() {
            match byte {
                b'\'' => line.extend_from_slice(b"'\\''"),
                byte => line.push(*byte),
            }
        }
        line.extend_from_slice(b"' ");
    }
    OsString::from_vec(line)
}

/// Reads the id of the job from the standard input of the launcher of a part. From now on this
/// process gets the signals whose numbers come there, and SIGHUP when it ends.
pub(super) fn id_of_part() -> Result<UniqueId> {
    let bad = |cause: &str| Error::Options(format!("--part: no id on the standard input: {cause}"));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|e| bad(&e.to_string()))?;
    let id = launch::parse_id(line.trim().as_bytes()).ok_or_else(|| bad("it is none"))?;
    aside(|| {
        let lines = std::io::stdin().lock().lines().map_while(std::io::Result::ok);
        let told = lines.filter_map(|line| Signal::from_named_raw(line.parse().ok()?));
        for signal in told.filter(|signal| forwarded(*signal).is_some()).chain([Signal::HUP]) {
            // A process may always signal itself.
            let _ = kill_process(getpid(), signal);
        }
    });
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_names_and_numbers_of_ranks() {
        let host = |name: &str, ranks| Ok(Host { name: name.to_owned(), ranks });
        assert_eq!("node1".parse(), host("node1", 1));
        assert_eq!("me@node1:12".parse(), host("me@node1", 12));
        for text in ["", ":2", "node1:0", "node1:x", "node1:-1", "-oProxyCommand=x"] {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_shell_reads_the_words_as_they_are() {
        let words = ["printf", "<%s>", "a b", "it's", "$HOME `x` \"y\"", "", "&&", "\\", "é\n"];
        let line = quoted(&words.map(OsString::from));
        let output = Command::new("sh").arg("-c").arg(line).output().expect("a shell");
        let expected: String = words[2..].iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
}
