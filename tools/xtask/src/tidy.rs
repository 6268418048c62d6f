//! Rules of the code base that no compiler checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The most lines of a file.
const FILE_LINES: usize = 800;
/// The most lines of a function.
const FUNCTION_LINES: usize = 70;
/// The most fields of a struct of the library.
const STRUCT_FIELDS: usize = 25;
/// The most characters of a line, except in tables and in texts of messages.
const COLUMNS: usize = 100;
/// The file with the table of layers, and the first line of the table.
const LAYERS: (&str, &str) = ("ARCHITECTURE.md", "| part | may use | unsafe |");
/// The folder that the table is about.
const LAYERED: &str = "runtime/src/";
/// The names by which a socket's buffer is given a size. The system adapts buffers to the network
/// only as long as nobody does.
const BUFFER_SIZES: [&str; 4] = ["SO_SNDBUF", "SO_RCVBUF", "send_buffer_size", "recv_buffer_size"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    // Cargo marks the target folders that it makes, wherever they are, with this file. A folder
    // `target` may have existed before, without the mark.
    if folder.join("CACHEDIR.TAG").exists() || folder.ends_with("target") {
        return;
    }
    let Ok(listing) = std::fs::read_dir(folder) else { return };
    for entry in listing.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && !name.to_string_lossy().starts_with('.') {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "cuh") {
            found.push(path);
        }
    }
}

/// Returns all violations of the rules, one line each.
pub fn complaints(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    sources(root, &mut files);
    files.sort();
    let mut complaints = Vec::new();
    let table = std::fs::read_to_string(root.join(LAYERS.0)).unwrap_or_default();
    let mut layers = Layers::read(&table);
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        check(&name, &text, &mut complaints);
        layers.check(&name, &text, &mut complaints);
    }
    layers.check_table(&mut complaints);
    complaints
}

/// A row of the table of layers.
#[derive(Default)]
struct Layer {
    may_use: BTreeSet<String>,
    may_be_unsafe: bool,
    /// The parts that the code really uses; `is_unsafe` is true if it really has `unsafe`.
    uses: BTreeSet<String>,
    is_unsafe: bool,
}

/// The parts of the runtime, with the parts that each may use, and whether each may be unsafe.
struct Layers(BTreeMap<String, Layer>);

impl Layers {
    /// Reads the table: a row per part, the parts that it may use, and whether it may be unsafe.
    fn read(text: &str) -> Self {
        let rows = text.lines().skip_while(|line| *line != LAYERS.1).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|')).map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let mut next = || cells.next().unwrap_or_default();
            let name = next().trim_matches('`').to_owned();
            let may_use = next().split_whitespace().map(|part| part.trim_matches('`').to_owned());
            let may_use = may_use.collect();
            (name, Layer { may_use, may_be_unsafe: next() == "yes", ..Layer::default() })
        });
        Self(rows.collect())
    }

    /// Returns the part to which a path within the runtime, such as `device/host/arena`, belongs.
    fn part(&self, path: &str) -> Option<String> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        ends.map(|end| &path[..end]).rfind(|part| self.0.contains_key(*part)).map(str::to_owned)
    }

    /// Checks a file, and notes the parts that it uses.
    fn check(&mut self, name: &str, text: &str, complaints: &mut Vec<String>) {
        let Some(path) = name.strip_prefix(LAYERED).and_then(|path| path.strip_suffix(".rs"))
        else {
            return;
        };
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if path == "lib" {
            return;
        }
        let Some(own) = self.part(path) else {
            complaints.push(format!("{name}: {} has no row in {}", path, LAYERS.0));
            return;
        };
        // Tests may use everything.
        let code = without_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join("\n");
        let is_unsafe = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"];
        let is_unsafe = is_unsafe.iter().any(|word| code.contains(word));
        let used: BTreeSet<String> =
            used(&code).iter().filter_map(|path| self.part(path)).collect();
        let Some(layer) = self.0.get_mut(&own) else { return };
        // A folder and the folders in it may use each other.
        let within = |path: &str, part: &str| format!("{path}/").starts_with(&format!("{part}/"));
        let apart = |part: &&String| !within(path, part) && !within(part, &own);
        for part in used.iter().filter(apart) {
            if !layer.may_use.contains(part) {
                complaints.push(format!("{name}: {own} may not use {part} ({})", LAYERS.0));
            }
            layer.uses.insert(part.clone());
        }
        layer.is_unsafe |= is_unsafe;
        if is_unsafe && !layer.may_be_unsafe {
            complaints.push(format!("{name}: {own} may not be unsafe ({})", LAYERS.0));
        }
    }

    /// Checks the table: it must have no cycles and no permissions that nothing needs any more.
    fn check_table(&self, complaints: &mut Vec<String>) {
        for (name, layer) in &self.0 {
            for part in layer.may_use.difference(&layer.uses) {
                complaints.push(format!("{}: {name} does not use {part}", LAYERS.0));
            }
            if layer.may_be_unsafe && !layer.is_unsafe {
                complaints.push(format!("{}: {name} is not unsafe", LAYERS.0));
            }
            let mut reached = layer.may_use.clone();
            let mut new: Vec<String> = reached.iter().cloned().collect();
            while let Some(part) = new.pop() {
                let next = self.0.get(&part).into_iter().flat_map(|layer| &layer.may_use);
                new.extend(next.filter(|part| reached.insert((*part).clone())).cloned());
            }
            if reached.contains(name) {
                complaints.push(format!("{}: {name} uses itself by way of others", LAYERS.0));
            }
        }
    }
}

/// Returns a source without its tests, which stand at the end.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// Returns the paths that code names from the root of its crate, such as `device/host/arena`.
fn used(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let word = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            text[..end.unwrap_or(text.len())].to_owned()
        };
        // A list names one of the parts with each of its entries.
        let list = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let begins: Vec<&str> = match list {
            Some((list, _)) => list.split(',').map(str::trim).collect(),
            None => vec![rest],
        };
        for begin in begins {
            let mut path = Vec::new();
            let mut rest = begin;
            loop {
                let name = word(rest);
                rest = &rest[name.len()..];
                path.push(name);
                match rest.strip_prefix("::") {
                    Some(next) if !next.starts_with('{') => rest = next,
                    _ => break,
                }
            }
            paths.push(path.join("/"));
        }
    }
    paths
}

fn check(name: &str, text: &str, complaints: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > FILE_LINES {
        complaints.push(format!("{name}: {} lines, at most {FILE_LINES}", lines.len()));
    }
    for (i, line) in lines.iter().enumerate() {
        if line.chars().count() > COLUMNS && !line.contains('"') {
            complaints.push(format!("{name}:{}: more than {COLUMNS} columns", i + 1));
        }
    }
    if !name.ends_with(".rs") {
        return;
    }
    if !text.starts_with("//!") && !text.starts_with("#![doc") {
        complaints.push(format!("{name}: no //! header"));
    }
    let runtime = name.starts_with("runtime/src") || name.starts_with("capi/src");
    if runtime && !name.starts_with("runtime/src/config/") && text.contains("env::var") {
        complaints.push(format!("{name}: reads the environment outside runtime/src/config"));
    }
    let outside = ["capi/", "tools/", "bindings/", "plugins/"];
    if outside.iter().any(|folder| name.starts_with(folder)) && !name.ends_with("tidy.rs") {
        for device in ["device::host", "device::cuda"].iter().filter(|d| text.contains(**d)) {
            complaints.push(format!("{name}: names {device}, which only runtime/src/device may"));
        }
    }
    let sockets = ["runtime/", "plugins/"].iter().any(|folder| name.starts_with(folder));
    if sockets && BUFFER_SIZES.iter().any(|word| without_tests(text).contains(word)) {
        complaints.push(format!("{name}: sets the size of a socket's buffer"));
    }
    if name.starts_with("runtime/") {
        check_structs(name, &lines, complaints);
    }
    let without_reason = |line: &&str| line.trim() == "#[ignore]";
    if lines.iter().any(without_reason) {
        complaints.push(format!("{name}: a test is ignored without a reason"));
    }
    check_functions(name, &lines, complaints);
}

fn check_structs(name: &str, lines: &[&str], complaints: &mut Vec<String>) {
    let mut open: Option<(usize, usize)> = None;
    for (i, line) in lines.iter().enumerate() {
        let begins = line.trim_start_matches("pub").trim_start_matches("(crate)");
        let begins = begins.trim_start_matches("(super)").trim_start().starts_with("struct ");
        if begins && line.ends_with('{') {
            open = Some((i, 0));
        } else if *line == "}" {
            if let Some((start, fields)) = open.take().filter(|(_, n)| *n > STRUCT_FIELDS) {
                let at = start + 1;
                complaints.push(format!(
                    "{name}:{at}: a struct of {fields} fields, at most {STRUCT_FIELDS}"
                ));
            }
        } else if let Some((_, fields)) = &mut open {
            let field = line.trim_start();
            let begins = line.starts_with("    ") && !line.starts_with("     ");
            *fields +=
                usize::from(begins && !field.starts_with(['/', '#']) && field.contains(": "));
        }
    }
}

fn check_functions(name: &str, lines: &[&str], complaints: &mut Vec<String>) {
    let mut open: Option<(usize, usize)> = None;
    for (i, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let code = line.trim_start();
        let words = code.split("fn ").next().unwrap_or_default();
        let keywords = ["pub", "pub(crate)", "pub(super)", "unsafe", "const", "extern", "\"C\""];
        let begins =
            code.contains("fn ") && words.split_whitespace().all(|w| keywords.contains(&w));
        if begins && open.is_none() {
            open = Some((i, indent));
        }
        if let Some((start, depth)) = open
            && *line == format!("{:depth$}}}", "")
        {
            if i - start + 1 > FUNCTION_LINES {
                let length = i - start + 1;
                complaints.push(format!("{name}:{}: a function of {length} lines", start + 1));
            }
            open = None;
        } else if begins && (code.ends_with(';') || code.ends_with("}")) {
            open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the complaints about these files, with this table of layers.
    fn complaints_of(table: &str, files: &[(&str, &str)]) -> Vec<String> {
        let mut layers = Layers::read(table);
        let mut complaints = Vec::new();
        for (name, text) in files {
            check(name, text, &mut complaints);
            layers.check(name, text, &mut complaints);
        }
        layers.check_table(&mut complaints);
        complaints
    }

    const TABLE: &str = "| part | may use | unsafe |\n|---|---|---|\n| `low` | | yes |\n\
                         | `high` | `low` `high/side` | |\n| `high/side` | `low` | |\n";
    const LOW: (&str, &str) = ("runtime/src/low.rs", "//! A.\nfn f() { unsafe { g() } }\n");
    const HIGH: (&str, &str) = ("runtime/src/high/mod.rs", "//! A.\nuse crate::low::f;\n");
    const SIDE: (&str, &str) = ("runtime/src/high/side/a.rs", "//! A.\nuse crate::low;\n");

    #[test]
    fn what_is_in_order_is_not_complained_of() {
        let table = TABLE.replace(" `high/side` | |\n|", " | |\n|");
        let found = complaints_of(&table, &[LOW, HIGH, SIDE]);
        assert!(found.is_empty(), "{found:?}");
    }

    /// One violation of each rule.
    #[test]
    fn every_rule_is_enforced() {
        let table = TABLE.replace(" `high/side` | |\n|", " | |\n|");
        let planted = |name: &str, text: &str, complaint: &str| {
            let found = complaints_of(&table, &[LOW, HIGH, SIDE, (name, text)]);
            assert!(found.len() == 1 && found[0].contains(complaint), "{complaint}: {found:?}");
        };
        planted("tests/a.rs", "fn f() {}\n", "no //! header");
        let long = "//! A.\n".repeat(FILE_LINES + 1);
        planted("tests/a.rs", &long, "801 lines, at most 800");
        let long = format!("//! A.\nfn f() {{\n{}}}\n", "    x();\n".repeat(80));
        planted("tests/a.rs", &long, "a function of 82 lines");
        let wide = format!("//! A.\n// {}\n", "x".repeat(100));
        planted("tests/a.rs", &wide, ":2: more than 100 columns");
        planted("kernels/cuda/a.cuh", &wide, ":2: more than 100 columns");
        let text = "//! A.\nfn f() { std::env::var(\"A\"); }\n";
        planted("runtime/src/low/a.rs", text, "reads the environment outside");
        for text in ["use crate::high::a;", "use crate::{high, low};", "fn f(x: crate::high::X) {}"]
        {
            let text = format!("//! A.\n{text}\n");
            planted("runtime/src/low/a.rs", &text, "low may not use high");
        }
        let text = "//! A.\nfn f() { unsafe { g() } }\n";
        planted("runtime/src/high/a.rs", text, "high may not be unsafe");
        planted("runtime/src/other.rs", "//! A.\n", "other has no row");
        let text =
            format!("//! A.\nstruct S {{\n{}}}\n", "    /// A.\n    pub a: u8,\n".repeat(26));
        planted("runtime/plan/src/a.rs", &text, "a struct of 26 fields, at most 25");
        let text = "//! A.\nuse oxccl_runtime::device::cuda::rank;\n";
        planted("capi/src/a.rs", text, "names device::cuda, which only runtime/src/device may");
        planted("tests/a.rs", "//! A.\n#[ignore]\nfn f() {}\n", "ignored without a reason");
        let text = "//! A.\nfn f() { s.set_send_buffer_size(1); }\n";
        planted("runtime/net/src/a.rs", text, "sets the size of a socket's buffer");
    }

    #[test]
    fn the_table_itself_is_checked() {
        let circle = TABLE.replace("| `low` | |", "| `low` | `high` |");
        let up = ("runtime/src/low/b.rs", "//! A.\nuse crate::high;\n");
        let found = complaints_of(&circle, &[LOW, HIGH, SIDE, up]);
        assert!(found.iter().any(|line| line.contains("low uses itself")), "{found:?}");
        let found = complaints_of(TABLE, &[LOW, HIGH, SIDE]);
        assert_eq!(found, ["ARCHITECTURE.md: high does not use high/side"]);
        let safe = complaints_of(TABLE, &[("runtime/src/low.rs", "//! A.\n")]);
        assert!(safe.contains(&"ARCHITECTURE.md: low is not unsafe".to_owned()), "{safe:?}");
    }

    #[test]
    fn tests_and_comments_may_name_everything() {
        let text = "//! As crate::high.\n#[cfg(test)]\nmod tests {\n    use crate::high;\n}\n";
        let table = TABLE.replace(" `high/side` | |\n|", " | |\n|");
        let found = complaints_of(&table, &[LOW, HIGH, SIDE, ("runtime/src/low/a.rs", text)]);
        assert!(found.is_empty(), "{found:?}");
    }
}
