//! Files of the system, below a root folder that tests replace.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The folder that stands for `/`.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl From<PathBuf> for Root {
    fn from(folder: PathBuf) -> Self {
        Self(folder)
    }
}

impl Root {
    /// Returns whether this is the root folder of the system itself.
    pub(crate) fn is_real(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Returns the place of a path, which is given without the leading slash.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the text of a file without white space at its ends; `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.at(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the number in a file; `None` if there is none.
    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the bytes of a file that another may write to meanwhile, up to the first read that
    /// would wait: each read returns at most one record of such a file.
    pub(crate) fn records(&self, path: &str) -> std::io::Result<Vec<u8>> {
        /// The most records that are read.
        const MOST: usize = 1 << 20;
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.read(true).custom_flags(libc::O_NONBLOCK).open(self.at(path))?;
        let (mut all, mut record) = (Vec::new(), [0; 8192]);
        for _ in 0..MOST {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => all.extend_from_slice(&record[..length]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                // The record was overwritten before it was read: the next read finds the next one.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    /// Returns the names in a folder, numbers within them in their order; none if the folder cannot
    /// be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort_by_key(|name| natural(name));
        names
    }

    /// Returns the target of a symbolic link as it is written there.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.at(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// Returns the last part of the target of a symbolic link.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link(path)?;
        target.rsplit('/').next().map(str::to_owned)
    }
}

/// Returns a key by which `node10` comes after `node2`.
fn natural(name: &str) -> (String, u64, String) {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(name.len() - digits);
    (stem.to_owned(), number.parse().unwrap_or(0), name.to_owned())
}

/// Returns the numbers of a list of the kernel, as `0-3,8`; `None` if it is no such list.
pub(crate) fn numbers(list: &str) -> Option<Vec<u32>> {
    /// More numbers than a machine has of anything.
    const MOST: u32 = 1 << 20;
    let mut all = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Returns numbers in rising order as a list of the kernel.
pub(crate) fn list(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Returns a number of bytes with a unit, as `7.9 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value.fract() == 0.0 {
        true => format!("{value} {}", UNITS[unit]),
        false => format!("{value:.1} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read_and_written() {
        for (text, expected) in [("0-3,8", vec![0, 1, 2, 3, 8]), ("5\n", vec![5]), ("", vec![])] {
            let found = numbers(text).expect("a list");
            assert_eq!((found.clone(), list(&found)), (expected, text.trim().to_owned()));
        }
        for text in ["x", "3-1", "0-4294967295", "1-", "-1", "0,,x"] {
            assert_eq!(numbers(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let texts = [0, 1023, 65536, 1536 << 20, u64::MAX].map(size);
        assert_eq!(texts, ["0 bytes", "1023 bytes", "64 KiB", "1.5 GiB", "16777216 TiB"]);
    }

    #[test]
    fn a_root_is_read_and_what_is_missing_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["node10", "node2", "node1"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        std::fs::write(folder.path().join("number"), " 12\n").expect("room");
        let root = Root::from(folder.path().to_owned());
        assert_eq!(root.names(""), ["node1", "node2", "node10", "number"]);
        assert_eq!((root.number("number"), root.number::<u32>("node1")), (Some(12), None));
        assert_eq!(root.records("number").expect("a file"), b" 12\n");
        assert!(root.records("none").is_err() && root.names("none").is_empty());
        assert!(!root.is_real() && root.link("number").is_none());
    }
}
