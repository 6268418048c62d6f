//! Which variable someone may have meant.

/// Longer names are not compared: it would take long, and no variable is as long.
const NAME_BYTES: usize = 64;

/// How many characters have to be inserted, removed or replaced to make `b` of `a`.
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

/// A name without the prefix that most have in common.
fn stem(name: &str) -> &str {
    name.strip_prefix("NCCL_").or_else(|| name.strip_prefix("OXCCL_")).unwrap_or(name)
}

/// The name most like `name`, if one is like it: also one with another prefix.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES {
        return None;
    }
    let upper = name.to_ascii_uppercase();
    let wanted = stem(&upper);
    let limit = (wanted.len() / 3).clamp(1, 3);
    let near = |candidate: &'a str| {
        let stems = distance(wanted, stem(candidate));
        (stems <= limit).then(|| (stems, distance(&upper, candidate), candidate))
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
