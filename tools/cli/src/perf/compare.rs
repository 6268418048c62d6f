//! `--compare`: what fell between two runs.

use crate::error::{Error, Result};
use serde_json::Value;
use std::process::ExitCode;

/// The fields that tell the rows of a file apart. A file may lack some of these in all rows.
const KEYS: [&str; 13] = [
    "collective",
    "device",
    "ranks",
    "memory",
    "vs_memory",
    "graph",
    "aggregate",
    "bytes",
    "count",
    "type",
    "op",
    "root",
    "in_place",
];

/// The share of a figure below which it counts as fallen.
const LEFT: f64 = 0.95;

/// Compares the rows of two files of `--json` and prints what fell. The exit code is 2 if something
/// did.
pub(super) fn compare(old: &str, new: &str) -> Result<ExitCode> {
    let (old, new) = (read(old)?, read(new)?);
    let Compared { fallen, compared, missing } = fallen(&old, &new);
    fallen.iter().for_each(|line| println!("{line}"));
    println!("# {} of {compared} rows fell by more than 5 %", fallen.len());
    if missing > 0 {
        println!("# {missing} rows of the old run are not in the new one");
    }
    Ok(if fallen.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// Reads the rows of the library that is measured: those with a ratio, if there are any, since the
/// others are the measure.
fn read(path: &str) -> Result<Vec<Value>> {
    let failed = |cause: String| Error::File { path: path.to_owned(), cause };
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let wrong = |cause: String| failed(format!("{cause}; expected what --json wrote"));
    let mut document: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let Value::Array(mut rows) = document["rows"].take() else {
        return Err(wrong("it has no list \"rows\"".to_owned()));
    };
    for (i, row) in rows.iter_mut().enumerate() {
        if !row["time_us"].is_f64() {
            return Err(wrong(format!("row {i} has no number \"time_us\": {row}")));
        }
        // What all rows of a run share stands in the head.
        for key in KEYS {
            if row[key].is_null() && !document[key].is_null() {
                row[key] = document[key].clone();
            }
        }
    }
    if rows.iter().any(|row| row["ratio"].is_f64()) {
        rows.retain(|row| row["ratio"].is_f64());
    }
    Ok(rows)
}

struct Compared {
    /// A line for each row that fell.
    fallen: Vec<String>,
    compared: usize,
    /// Rows of the old run that the new one lacks.
    missing: usize,
}

fn fallen(old: &[Value], new: &[Value]) -> Compared {
    let mut result = Compared { fallen: Vec::new(), compared: 0, missing: 0 };
    for before in old {
        let Some(now) = new.iter().find(|now| KEYS.iter().all(|key| before[key] == now[key]))
        else {
            result.missing += 1;
            continue;
        };
        result.compared += 1;
        let figures = |row: &Value| (row["ratio"].as_f64(), row["time_us"].as_f64());
        let (what, left, [from, to]) = match (figures(before), figures(now)) {
            ((Some(before), _), (Some(now), _)) => ("ratio", now / before, [before, now]),
            ((_, before), (_, now)) => {
                let [before, now] = [before, now].map(|time| time.unwrap_or(f64::NAN));
                ("time in µs", before / now, [before, now])
            }
        };
        if left < LEFT {
            let values = KEYS.iter().filter(|key| !before[**key].is_null());
            let case: Vec<String> = values.map(|key| format!("{key} {}", before[*key])).collect();
            let percent = (1.0 - left) * 100.0;
            let case = case.join(", ").replace('"', "");
            result.fallen.push(format!("{case}: {what} {from:.2} → {to:.2}, {percent:.0} % less"));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_fell_is_the_ratio_where_both_runs_have_it_and_else_the_speed() {
        let row = |bytes: u32, time_us: f64, ratio: Option<f64>| json!({"collective": "reduce", "bytes": bytes, "time_us": time_us, "ratio": ratio});
        let lines = |old: &[Value], new: &[Value]| fallen(old, new).fallen;
        let old = [row(8, 4.0, Some(2.0)), row(64, 4.0, Some(2.0)), row(512, 4.0, None)];
        // A slower machine for both libraries.
        let new = [row(8, 8.0, Some(1.95)), row(64, 4.0, Some(1.5)), row(512, 4.1, None)];
        let text = "collective reduce, bytes 64: ratio 2.00 → 1.50, 25 % less";
        assert_eq!(lines(&old, &new), [text]);
        let slow = [row(512, 5.0, Some(1.0))];
        let text = "collective reduce, bytes 512: time in µs 4.00 → 5.00, 20 % less";
        assert_eq!(lines(&old, &slow), [text]);
        let compared = fallen(&old, &slow);
        assert_eq!((compared.compared, compared.missing), (1, 2));
        assert!(lines(&old, &old).is_empty());
    }
}
