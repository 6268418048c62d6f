//! Words of texts for people.

use std::fmt::Display;

/// Returns a number with `one` or `many` behind it.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    let word = if number == N::from(1) { one } else { many };
    format!("{number} {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_no_plural() {
        let texts = [0u32, 1, 2].map(|number| counted(number, "rank", "ranks"));
        assert_eq!(texts, ["0 ranks", "1 rank", "2 ranks"]);
        assert_eq!(counted(1usize, "process has", "processes have"), "1 process has");
    }
}
