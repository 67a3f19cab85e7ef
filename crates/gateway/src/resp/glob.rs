//! Patterns of keys, as Redis has them: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a character that
//! stands for itself.

/// The bytes that every key of the pattern begins with.
pub(crate) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Whether a key is of a pattern. The time is linear in the key for each `*` at most.
pub(crate) fn matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut p, mut k) = (0, 0);
    // Where the last star was, and the key's byte at which what follows it was tried last.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let matched = match pattern.get(p) {
            None => (k == key.len()).then_some(p),
            Some(b'*') => {
                star = Some((p, k));
                p += 1;
                continue;
            }
            Some(_) => key.get(k).and_then(|byte| one(pattern, p, *byte)),
        };
        match (matched, star) {
            (Some(_), _) if p == pattern.len() => return true,
            (Some(next), _) => (p, k) = (next, k + 1),
            (None, Some((at, tried))) if tried < key.len() => {
                star = Some((at, tried + 1));
                (p, k) = (at + 1, tried + 1);
            }
            (None, _) => return false,
        }
    }
}

/// The end of the part of the pattern at `at`, if it stands for this byte.
fn one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match pattern[at] {
        b'?' => Some(at + 1),
        b'\\' if at + 1 < pattern.len() => (pattern[at + 1] == byte).then_some(at + 2),
        b'[' => {
            let (is_in, end) = class(pattern, at + 1, byte);
            is_in.then_some(end)
        }
        literal => (literal == byte).then_some(at + 1),
    }
}

/// Whether a class has a byte, and where the class ends.
fn class(pattern: &[u8], mut at: usize, byte: u8) -> (bool, usize) {
    let is_negated = pattern.get(at) == Some(&b'^');
    at += usize::from(is_negated);
    let mut is_in = false;
    while let Some(first) = pattern.get(at).copied() {
        match first {
            b'\\' if at + 1 < pattern.len() => {
                is_in |= pattern[at + 1] == byte;
                at += 2;
            }
            b']' => return (is_in != is_negated, at + 1),
            first if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() => {
                let last = pattern[at + 2];
                is_in |= (first.min(last)..=first.max(last)).contains(&byte);
                at += 3;
            }
            first => {
                is_in |= first == byte;
                at += 1;
            }
        }
    }
    // A class without an end ends with the pattern.
    (is_in != is_negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_redis() {
        for (pattern, yes, no) in [
            ("*", &["", "a", "abc"][..], &[][..]),
            ("", &[""], &["a"]),
            ("a*", &["a", "ab"], &["", "ba"]),
            ("*a*b", &["ab", "xaxb", "aabb"], &["ba", "abx"]),
            ("h?llo", &["hello", "hallo"], &["hllo", "heello"]),
            ("h[ae]llo", &["hello", "hallo"], &["hillo"]),
            ("h[^e]llo", &["hallo"], &["hello"]),
            ("h[a-b]llo", &["hallo", "hbllo"], &["hcllo"]),
            ("a\\*", &["a*"], &["ab", "a\\*"]),
            ("[\\]]", &["]"], &["\\"]),
            ("a[bc", &["ab"], &["a", "ad"]),
            ("a\\", &["a\\"], &["a"]),
        ] {
            for key in yes {
                assert!(matches(pattern.as_bytes(), key.as_bytes()), "{pattern} {key}");
            }
            for key in no {
                assert!(!matches(pattern.as_bytes(), key.as_bytes()), "{pattern} {key}");
            }
        }
        assert_eq!(literal_prefix(b"user:*"), b"user:");
        assert_eq!(literal_prefix(b"a\\*"), b"a");
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "a*".repeat(500) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 5000]));
    }
}
