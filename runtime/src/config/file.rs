//! Configuration files: lines `NAME=VALUE`, empty lines, and comments that begin with `#`.

use oxccl_plan::words::counted;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes up to which files are read.
const FILE_BYTES: u64 = 1 << 20;
/// Bytes that a line may have at most.
const LINE_BYTES: usize = 4096;
/// Bad lines that are reported one by one; further ones are only counted.
const COMPLAINTS: usize = 8;

/// A line that sets a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the line, from 1.
    pub line: usize,
    /// The name of the variable.
    pub name: String,
    /// The value, without spaces around it.
    pub value: String,
}

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The variables. If several lines have one name, only the first is here.
    pub entries: Vec<Entry>,
    /// Lines that cannot be read: number from 1 and reason. Their number is bounded.
    pub complaints: Vec<(usize, String)>,
}

/// Reads a file's content, which may be any bytes.
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let mut seen = std::collections::HashMap::new();
    let mut bad = 0;
    for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let why = match entry(text) {
            Ok(None) => continue,
            Ok(Some((name, value))) => match seen.insert(name.to_owned(), line) {
                None => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    parsed.entries.push(Entry { line, name, value });
                    continue;
                }
                Some(first) => {
                    seen.insert(name.to_owned(), first);
                    format!("{name} is set again; line {first} counts")
                }
            },
            Err(why) => why.to_owned(),
        };
        bad += 1;
        if bad <= COMPLAINTS {
            parsed.complaints.push((line, why));
        } else if let Some(last) = parsed.complaints.last_mut() {
            let more = counted(bad - COMPLAINTS, "more line is bad", "more lines are bad");
            *last = (line, format!("{why}; {more}"));
        }
    }
    parsed
}

/// Returns the name and the value of a line; `None` if the line is empty or a comment.
fn entry(line: &[u8]) -> Result<Option<(&str, &str)>, &'static str> {
    if line.len() > LINE_BYTES {
        return Err("longer than 4096 bytes");
    }
    let text = std::str::from_utf8(line).map_err(|_| "not UTF-8")?.trim();
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err("a control character");
    }
    let (name, value) = text.split_once('=').ok_or("no NAME=VALUE")?;
    let name = name.trim();
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty()
        || !name.chars().all(of_name)
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("no NAME=VALUE");
    }
    Ok(Some((name, value.trim())))
}

/// Reads a file. Returns `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Parsed>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    // Opening a pipe must not wait for its other end.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let meta = file.metadata().map_err(failed)?;
    if path == Path::new("/dev/null") {
        return Ok(Some(Parsed::default()));
    }
    if !meta.is_file() || meta.len() > FILE_BYTES {
        return Err(format!("{}: not a regular file of at most 1 MiB", path.display()));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(parse(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &[u8]) -> Vec<(usize, String, String)> {
        parse(text).entries.into_iter().map(|e| (e.line, e.name, e.value)).collect()
    }

    #[test]
    fn lines_are_read_with_comments_spaces_and_equal_signs_in_values() {
        let text = b"# c\n\nNCCL_DEBUG = INFO \r\n  # x\nNCCL_SOCKET_IFNAME==eth0\nOXCCL_TIMEOUT=";
        let expected = [(3, "NCCL_DEBUG", "INFO"), (5, "NCCL_SOCKET_IFNAME", "=eth0")];
        let expected = expected.into_iter().chain([(6, "OXCCL_TIMEOUT", "")]);
        let expected: Vec<_> = expected.map(|(l, n, v)| (l, n.to_owned(), v.to_owned())).collect();
        assert_eq!(entries(text), expected);
        assert!(parse(text).complaints.is_empty());
    }

    #[test]
    fn bad_lines_are_reported_by_number_and_do_not_hide_good_ones() {
        let mut text = b"nonsense\nNCCL_A=\xff\nA B=/x\nNCCL_B=1\x00\nNCCL_C=".to_vec();
        text.extend(vec![b'x'; LINE_BYTES]);
        text.extend(b"\nNCCL_D=2\nNCCL_D=3\n");
        let parsed = parse(&text);
        let lines: Vec<usize> = parsed.complaints.iter().map(|c| c.0).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5, 7]);
        assert_eq!(parsed.complaints[5].1, "NCCL_D is set again; line 6 counts");
        assert_eq!(entries(&text), [(6, "NCCL_D".to_owned(), "2".to_owned())]);
    }

    #[test]
    fn a_file_of_rubbish_gives_few_complaints() {
        let parsed = parse(&b"x\n".repeat(100_000));
        assert_eq!((parsed.entries.len(), parsed.complaints.len()), (0, COMPLAINTS));
        let last = &parsed.complaints[COMPLAINTS - 1];
        assert_eq!(*last, (100_000, "no NAME=VALUE; 99992 more lines are bad".to_owned()));
    }

    #[test]
    fn only_regular_files_are_read() {
        assert_eq!(read(Path::new("/nonexistent/nccl.conf")), Ok(None));
        assert_eq!(read(Path::new("/dev/null")), Ok(Some(Parsed::default())));
        let text = read(Path::new("/dev/zero")).unwrap_err();
        assert!(text.contains("/dev/zero") && text.contains("regular"), "{text}");
        assert!(read(Path::new("/")).is_err());
    }
}
