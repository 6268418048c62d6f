//! Files of the repository that pages of the book quote as they are, so that the pages read well
//! wherever they are shown.
//!
//! A line `<!-- from ../examples/c/01_hello.c -->` begins a quotation, and [`END`] ends it. Of a
//! page the text itself stands between the two, of other files a block of code.

use std::path::{Path, PathBuf};

/// The line that ends a quotation.
pub const END: &str = "<!-- end -->";

/// Returns the file that a quotation beginning with this line quotes, from the page's folder;
/// `None` for other lines.
pub fn source(line: &str) -> Option<&str> {
    line.strip_prefix("<!-- from ")?.strip_suffix(" -->")
}

/// Returns a page with what the files that it quotes have now, by `read`.
///
/// # Errors
///
/// A file cannot be read, or a quotation has no end.
fn renewed(text: &str, read: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out += &format!("{line}\n");
        let Some(path) = source(line) else { continue };
        let contents = read(path)?;
        out += &match path.rsplit_once('.') {
            Some((_, "md")) => contents,
            Some((_, language)) => format!("```{language}\n{contents}```\n"),
            None => format!("```text\n{contents}```\n"),
        };
        // Before another beginning: else what stands between the two would be lost.
        let end = lines.find(|line| *line == END || source(line).is_some());
        if end != Some(END) {
            return Err(format!("{path} is quoted without an end"));
        }
        out += &format!("{END}\n");
    }
    Ok(out)
}

/// Returns the pages of the book that are not what codegen would write, with what it would write.
///
/// # Errors
///
/// A page, or a file that it quotes, cannot be read.
pub fn stale(root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let folder = root.join("docs");
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut stale = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == "md") {
            let text = std::fs::read_to_string(&path).map_err(failed)?;
            let wanted = renewed(&text, |path| {
                let quoted = folder.join(path);
                let failed = |e| format!("{}: {e}", quoted.display());
                std::fs::read_to_string(&quoted).map_err(failed)
            })?;
            if wanted != text {
                stale.push((path, wanted));
            }
        }
    }
    Ok(stale)
}

/// Renews the quotations of all pages.
///
/// # Errors
///
/// As [`stale`], and where a page cannot be written.
pub fn write(root: &Path) -> Result<(), String> {
    for (path, text) in stale(root)? {
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotations_are_renewed_and_have_an_end() {
        let read = |path: &str| match path {
            "a.c" => Ok("int a;\n".to_owned()),
            "b.md" => Ok("Text.\n".to_owned()),
            other => Err(other.to_owned()),
        };
        let renewed = |text: &str| renewed(text, read);
        let page = "One\n<!-- from a.c -->\nold\n<!-- end -->\nTwo\n\
                    <!-- from b.md -->\n<!-- end -->\n";
        let wanted = "One\n<!-- from a.c -->\n```c\nint a;\n```\n<!-- end -->\nTwo\n\
                      <!-- from b.md -->\nText.\n<!-- end -->\n";
        assert_eq!(renewed(page).as_deref(), Ok(wanted));
        assert_eq!(renewed(wanted).as_deref(), Ok(wanted));
        let open = "<!-- from a.c -->\n";
        for open in [open, &format!("{open}Two\n<!-- from b.md -->\n<!-- end -->\n")] {
            assert_eq!(renewed(open), Err("a.c is quoted without an end".to_owned()));
        }
        assert_eq!(renewed("<!-- from c.c -->\n<!-- end -->\n"), Err("c.c".to_owned()));
    }
}
