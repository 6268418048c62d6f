//! Tables of values by host: a line per value, `HOSTS NAME=VALUE`, where HOSTS is the name of a
//! host, or a pattern in which `*` stands for any text. Lines that begin with `#` are comments.

use std::collections::BTreeMap;
use std::ffi::CString;

/// A line that is none of a table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} is {found:?}; expected HOSTS NAME=VALUE")]
pub(crate) struct Error {
    line: usize,
    found: String,
}

/// The values of a host, by the names of variables.
pub(crate) type Values = BTreeMap<String, CString>;

/// Returns the values that a table has for a host: of each variable that of the last line that fits
/// the host. Fails at the first bad line, whatever host it is for, so that all hosts tell of it.
pub(crate) fn read(text: &str, host: &str) -> Result<Values, Error> {
    let short = host.split('.').next().unwrap_or(host);
    let mut values = Values::new();
    for (line, text) in (1..).zip(text.lines().map(str::trim)) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (hosts, name, value) =
            entry(text).ok_or_else(|| Error { line, found: text.to_owned() })?;
        if fits(hosts, host) || fits(hosts, short) {
            values.insert(name.to_owned(), value);
        }
    }
    Ok(values)
}

/// Returns the hosts, the name and the value of a line; `None` if it lacks one of them.
fn entry(text: &str) -> Option<(&str, &str, CString)> {
    let (hosts, setting) = text.split_once(char::is_whitespace)?;
    let (name, value) = setting.split_once('=')?;
    let name = name.trim();
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = !name.is_empty() && name.chars().all(of_name);
    let value = CString::new(value.trim()).ok()?;
    // With a `=` it is a value without hosts, which would be lost silently.
    (is_name && !hosts.contains('=')).then_some((hosts, name, value))
}

/// Returns whether a name fits a pattern, in which `*` stands for any text, also for none.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        // The first place of a part leaves the most for those that follow.
        let Some((_, after)) = name.split_once(part) else { return false };
        name = after;
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in [
            ("node1", "node1"),
            ("*", "node1"),
            ("*", ""),
            ("node*", "node"),
            ("*1", "node11"),
            ("n*e*1", "node1"),
            ("n**1", "n1"),
            ("*.rack2.*", "node1.rack2.example"),
            ("a*ab*b", "aabab"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("node1", "node11"),
            ("", "node1"),
            ("node*", "gpu1"),
            ("*1", "node12"),
            ("a*a", "a"),
            ("n*e*1", "n1"),
            ("a*b*b", "ab"),
            ("Node*", "node1"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn the_last_line_that_fits_a_host_counts() {
        let text = "# Interfaces.\n\n  * NCCL_SOCKET_IFNAME = eth0 \r\n\
                    node7* NCCL_SOCKET_IFNAME=eth1\nnode71\tNCCL_SOCKET_IFNAME==eth2,eth3\n\
                    node7*   OXCCL_TIMEOUT=30s # and more\nnode71 OXCCL_TIMEOUT=\n\
                    *.b.example NCCL_IB_HCA=mlx5_0\n";
        let of = |host: &str| {
            let values = read(text, host).expect("a table");
            let shown = |(name, value): (&String, &CString)| {
                format!("{name}={}", value.to_str().expect("a text"))
            };
            values.iter().map(shown).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(of("login"), "NCCL_SOCKET_IFNAME=eth0");
        let seven = "NCCL_SOCKET_IFNAME=eth1; OXCCL_TIMEOUT=30s # and more";
        assert_eq!(of("node7"), seven);
        // The whole name, or what stands before the first dot.
        assert_eq!(of("node7.b.example"), format!("NCCL_IB_HCA=mlx5_0; {seven}"));
        assert_eq!(of("node71.c.example"), "NCCL_SOCKET_IFNAME==eth2,eth3; OXCCL_TIMEOUT=");
    }

    #[test]
    fn what_is_no_line_of_a_table_is_named_with_its_number() {
        let error = |line: &str| read(&format!("# a\n{line}\n"), "here").expect_err(line);
        assert_eq!(
            error("elsewhere NCCL_DEBUG").to_string(),
            "line 2 is \"elsewhere NCCL_DEBUG\"; expected HOSTS NAME=VALUE"
        );
        for line in [
            "NCCL_DEBUG=INFO",
            "NCCL_DEBUG = INFO",
            "NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5_0",
            "node1 node2 NCCL_DEBUG=INFO",
            "node1 =INFO",
            "node1 NCCL-DEBUG=INFO",
            "node1 NCCL_DEBUG=a\0b",
        ] {
            assert_eq!(error(line), Error { line: 2, found: line.to_owned() });
        }
    }
}
