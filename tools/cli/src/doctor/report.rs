//! The rows of a report, as a table and as JSON.

use super::checks::pairs::Pair;
use super::checks::{Check, Verdict};
use crate::error::{Error, Result, writer};
use crate::given::Variable;
use oxccl_plan::words::counted;
use serde::{Deserialize, Serialize};

/// The subject of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Item {
    /// A check.
    Check(Check),
    /// A variable.
    Variable(Variable),
    /// Two ranks.
    Pair(Pair),
}

/// A line of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    /// The host; `None` for what is about all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    #[serde(flatten)]
    pub(super) item: Item,
}

impl Row {
    pub(super) fn of_job(item: Item) -> Self {
        Self { host: None, item }
    }

    pub(super) fn check(&self) -> Option<&Check> {
        match &self.item {
            Item::Check(check) => Some(check),
            Item::Variable(_) | Item::Pair(_) => None,
        }
    }
}

/// Returns a line of JSON for each row.
pub(super) fn json(rows: &[Row]) -> String {
    let line = |row| serde_json::to_string(row).map_or_else(|e| e.to_string(), |line| line + "\n");
    rows.iter().map(line).collect()
}

/// Writes the rows to a file, of which `-` is the standard output and `%h` the host's name.
pub(super) fn write(path: &str, host: &str, rows: &[Row]) -> Result<()> {
    let path = path.replace("%h", host);
    let failed = |e: std::io::Error| Error::File { path: path.clone(), cause: e.to_string() };
    let mut file = writer(&path)?;
    file.write_all(json(rows).as_bytes()).and_then(|()| file.flush()).map_err(failed)
}

/// Reads the rows that [`write`] wrote.
pub(super) fn read(path: &str) -> Result<Vec<Row>> {
    let failed = |cause: String| Error::File { path: path.to_owned(), cause };
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let row = |(i, line): (usize, &str)| {
        let wrong = || {
            let number = i + 1;
            failed(format!("line {number} is {line:?}; expected a row that --json wrote"))
        };
        serde_json::from_str::<Row>(line).map_err(|_| wrong())
    };
    text.lines().enumerate().map(row).collect()
}

/// The columns of a line, and the one at which texts begin.
const WIDTH: usize = 100;
const INDENT: usize = 36;

/// Returns words in lines from [`INDENT`] on; the first line continues one that ends there.
fn wrapped(words: &str) -> String {
    let (mut text, mut column) = (String::new(), INDENT);
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > INDENT && column + 1 + length > WIDTH {
            text += &format!("\n{:INDENT$}", "");
            column = INDENT;
        } else if column > INDENT {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text + "\n"
}

/// Returns the number of checks with each verdict, the worst first.
fn summary(checks: &[&Check]) -> String {
    let number = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let texts = [
        counted(number(Verdict::Failure), "failure", "failures"),
        counted(number(Verdict::Warning), "warning", "warnings"),
        format!("{} ok", number(Verdict::Ok)),
        format!("{} not applicable", number(Verdict::NotApplicable)),
    ];
    texts.join(", ")
}

/// Returns the checks of a host, or of all ranks, as a table of those whose verdict is `shown`.
pub(super) fn table(title: &str, checks: &[&Check], shown: impl Fn(Verdict) -> bool) -> String {
    let mut text = format!("# {title}: {}\n", summary(checks));
    for check in checks.iter().filter(|check| shown(check.verdict)) {
        text += &format!("{:<16}{:<20}{}", check.verdict.name(), check.name, wrapped(&check.found));
        if !check.advice.is_empty() {
            text += &format!("{:INDENT$}{}", "", wrapped(&format!("→ {}", check.advice)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_lines_of_json_and_back() {
        let rows = [
            Row {
                host: Some("node1".to_owned()),
                item: Item::Check(Check::warning("a", "b", "c")),
            },
            Row {
                host: Some("node1".to_owned()),
                item: Item::Variable(Variable {
                    variable: "NCCL_DEBUG".to_owned(),
                    value: "INFO".to_owned(),
                    origin: "environment".to_owned(),
                }),
            },
            Row::of_job(Item::Pair(Pair { pair: [0, 1], time_us: 1.5, algbw: 2.5, wrong: 0 })),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        write(&path("%h.json"), "node1", &rows).expect("room");
        assert_eq!(read(&path("node1.json")).expect("rows"), rows);
        for text in ["x", "{}", "[1]", "{\"host\":\"a\"}", "{\"check\":\"a\",\"verdict\":\"?\"}"] {
            std::fs::write(path("bad"), format!("{text}\n")).expect("room");
            let error = read(&path("bad")).expect_err("no row").to_string();
            assert!(error.contains("line 1 is"), "{error}");
        }
    }

    #[test]
    fn a_table_has_all_texts_in_lines_of_its_width() {
        let long = "word ".repeat(60);
        let checks = [Check::ok("first", &*long), Check::failure("second", "found", &long)];
        let text = table("node1", &checks.iter().collect::<Vec<_>>(), |_| true);
        assert!(text.starts_with("# node1: 1 failure, 0 warnings, 1 ok, 0 not applicable\nok"));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 120);
        let some = table("a", &checks.iter().collect::<Vec<_>>(), |v| v > Verdict::Ok);
        assert!(!some.contains("\nok") && some.contains("\nfailure"), "{some}");
    }
}
