//! Short texts in memory that others read while they are written.

use std::sync::atomic::{AtomicU64, Ordering};

/// A text of at most eight times `WORDS` bytes; the rest is zero. Who reads it meanwhile may see
/// parts of two texts.
#[repr(C)]
pub(super) struct Text<const WORDS: usize>(pub(super) [AtomicU64; WORDS]);

impl<const WORDS: usize> Text<WORDS> {
    /// Writes a text, or as much of it as fits.
    pub(super) fn write(&self, text: &str) {
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=text.len().min(WORDS * 8)).rev().find(fits).unwrap_or(0);
        let bytes = &text.as_bytes()[..end];
        let mut chunks = bytes.chunks(8);
        for word in &self.0 {
            let mut value = [0; 8];
            let chunk = chunks.next().unwrap_or_default();
            value[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
    }

    /// Returns the text, without what is no character.
    pub(super) fn read(&self) -> String {
        let words = self.0.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bytes: Vec<u8> = words.flatten().take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_replaced_whole() {
        let text = Text([const { AtomicU64::new(0) }; 2]);
        for (written, read) in [
            ("", ""),
            ("0123456789abcdefgh", "0123456789abcdef"),
            ("0123456789abcdeµ", "0123456789abcde"),
            ("short", "short"),
        ] {
            text.write(written);
            assert_eq!(text.read(), read);
        }
        text.0[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(text.read(), "\u{fffd}".repeat(8));
    }
}
