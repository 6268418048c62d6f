//! The layout of NCCL's JSON: two blanks per level, fractions with three digits.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io::{Result, Write};

/// The layout of a document.
#[derive(Default)]
struct Layout {
    level: usize,
    /// True in a list or an object that is not empty.
    has_value: bool,
    /// True if lists are written on one line.
    inline: bool,
}

impl Layout {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> Result<()> {
        writer.write_all(b"\n")?;
        (0..self.level).try_for_each(|_| writer.write_all(b"  "))
    }
}

impl Formatter for Layout {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> Result<()> {
        write!(writer, "{value:.3}")
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.level += 1;
        self.has_value = false;
        writer.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.level -= 1;
        if !self.inline {
            // An empty list has an empty line.
            if !self.has_value {
                writer.write_all(b"\n")?;
            }
            self.line(writer)?;
        }
        self.has_value = true;
        writer.write_all(b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        if self.inline { Ok(()) } else { self.line(writer) }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.level += 1;
        writer.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.level -= 1;
        self.line(writer)?;
        writer.write_all(b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        self.line(writer)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }
}

/// Returns a document, with the end of its last line; lists on one line if they are to be `inline`.
pub(super) fn document<T: Serialize>(value: &T, inline: bool) -> String {
    let mut bytes = Vec::new();
    let layout = Layout { inline, ..Layout::default() };
    // Numbers, texts and lists can always be written.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut bytes, layout));
    bytes.push(b'\n');
    String::from_utf8(bytes).unwrap_or_default()
}
