//! Rules of the code base that no compiler checks.

use std::path::{Path, PathBuf};

/// A file has at most so many lines.
const FILE_LINES: usize = 800;
/// A function has at most so many lines.
const FUNCTION_LINES: usize = 70;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    // Cargo marks the target folders that it makes, wherever they are, with this file; `target` may
    // have been made for something else before.
    if folder.join("CACHEDIR.TAG").exists() || folder.ends_with("target") {
        return;
    }
    let Ok(listing) = std::fs::read_dir(folder) else { return };
    for entry in listing.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && !name.to_string_lossy().starts_with('.') {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Everything that breaks a rule, a line each.
pub fn complaints(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    sources(root, &mut files);
    files.sort();
    let mut complaints = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        check(&name, &text, &mut complaints);
    }
    complaints
}

fn check(name: &str, text: &str, complaints: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    if !text.starts_with("//!") && !text.starts_with("#![doc") {
        complaints.push(format!("{name}: no //! header"));
    }
    if lines.len() > FILE_LINES {
        complaints.push(format!("{name}: {} lines, at most {FILE_LINES}", lines.len()));
    }
    let runtime = name.starts_with("runtime/src") || name.starts_with("capi/src");
    if runtime && !name.starts_with("runtime/src/config/") && text.contains("env::var") {
        complaints.push(format!("{name}: reads the environment outside runtime/src/config"));
    }
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
    #[test]
    fn rules_are_enforced() {
        let mut complaints = Vec::new();
        let long = format!("fn f() {{\n{}}}\n", "    x();\n".repeat(80));
        super::check("runtime/src/a.rs", &format!("{long}std::env::var(\"A\");"), &mut complaints);
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        complaints.clear();
        super::check("a.rs", "//! A.\nfn f() {\n}\n", &mut complaints);
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}
