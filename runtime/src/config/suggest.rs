//! Suggestions of the variable that a user may have meant.

/// The longest name that is compared: longer ones would take long, and no variable is as long.
const NAME_BYTES: usize = 64;

/// Returns how many characters must be inserted, removed or replaced to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Returns a name without the prefix that most names share.
fn stem(name: &str) -> &str {
    name.strip_prefix("NCCL_").or_else(|| name.strip_prefix("OXCCL_")).unwrap_or(name)
}

/// Returns the name most like `name`, even with another prefix; `None` if no name is like it.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES {
        return None;
    }
    let upper = name.to_ascii_uppercase();
    let wanted = stem(&upper);
    let limit = (wanted.len() / 3).clamp(1, 3);
    let near = |candidate: &'a str| {
        let (stems, whole) = (distance(wanted, stem(candidate)), distance(&upper, candidate));
        // The mistake may be in the prefix.
        (stems <= limit || whole <= 2).then_some((stems, whole, candidate))
    };
    names.filter_map(near).min().map(|(.., candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!((distance("", "ab"), distance("ab", "ab")), (2, 0));
        assert_eq!((distance("kitten", "sitting"), distance("abc", "acb")), (3, 2));
    }

    #[test]
    fn misspelt_names_are_recognised_and_strange_ones_are_not() {
        let names = ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "OXCCL_TIMEOUT", "NCCL_IB_SL", "NCCL_NET"];
        let nearest = |name| nearest(name, names.into_iter());
        assert_eq!(nearest("NCCL_DEBG"), Some("NCCL_DEBUG"));
        assert_eq!(nearest("DEBUG"), Some("NCCL_DEBUG"));
        assert_eq!(nearest("nccl_debug_fiel"), Some("NCCL_DEBUG_FILE"));
        assert_eq!(nearest("NCCL_TIMEOUT"), Some("OXCCL_TIMEOUT"));
        assert_eq!(nearest("OXCCL_TIMEUOT"), Some("OXCCL_TIMEOUT"));
        assert_eq!(nearest("NCCL_WHATEVER"), None);
        assert_eq!(nearest(&"NCCL_DEBUG".repeat(1000)), None);
    }
}
