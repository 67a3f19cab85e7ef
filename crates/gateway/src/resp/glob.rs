//! Patterns of keys, as Redis has them: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a character that
//! stands for itself.
//!
//! A pattern is parsed once. To match it takes up to its length times that of the key, so whoever
//! does it lets others go on meanwhile.

use crate::failure::Failure;
use crate::limits::{MATCH_STEPS, PATTERN_BYTES_MAX};
use crate::pace::Pace;

/// A pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    parts: Vec<Part>,
    /// The fewest bytes of a key.
    least: usize,
}

/// What stands for a byte, or for any bytes.
#[derive(Debug)]
enum Part {
    Star,
    Any,
    Byte(u8),
    /// A bit for each byte.
    Class(Box<[u64; 4]>),
}

impl Part {
    fn has(&self, byte: u8) -> bool {
        match self {
            Self::Star | Self::Any => true,
            Self::Byte(own) => *own == byte,
            Self::Class(bits) => bits[usize::from(byte / 64)] >> (byte % 64) & 1 == 1,
        }
    }
}

/// How far a match has come.
#[derive(Debug, Default)]
struct Matching {
    part: usize,
    byte: usize,
    /// Where the last star was, and the key's byte at which what follows it was tried last.
    star: Option<(usize, usize)>,
}

/// The bytes that every key of the pattern begins with.
pub(crate) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    &pattern[..end.unwrap_or(pattern.len())]
}

impl Pattern {
    pub fn parse(pattern: &[u8]) -> Result<Self, Failure> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("ERR the pattern has more than {PATTERN_BYTES_MAX} bytes").into());
        }
        let (mut parts, mut rest) = (Vec::new(), pattern);
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            parts.push(match first {
                // Two stars are as good as one.
                b'*' if matches!(parts.last(), Some(Part::Star)) => continue,
                b'*' => Part::Star,
                b'?' => Part::Any,
                b'[' => {
                    let (class, behind) = class(rest);
                    rest = behind;
                    Part::Class(Box::new(class))
                }
                b'\\' => match rest.split_first() {
                    Some((escaped, behind)) => {
                        rest = behind;
                        Part::Byte(*escaped)
                    }
                    None => Part::Byte(b'\\'),
                },
                literal => Part::Byte(*literal),
            });
        }
        let least = parts.iter().filter(|part| !matches!(part, Part::Star)).count();
        Ok(Self { parts, least })
    }

    /// Whether a key is of the pattern.
    pub async fn matches(&self, key: &[u8], pace: &Pace) -> bool {
        let mut matching = Matching::default();
        loop {
            pace.breathe().await;
            if let Some(is_match) = self.go_on(&mut matching, key, MATCH_STEPS) {
                return is_match;
            }
        }
    }

    /// Goes on with a match for so many steps. Returns whether the key is of the pattern, if that
    /// is known by then.
    fn go_on(&self, matching: &mut Matching, key: &[u8], steps: usize) -> Option<bool> {
        if key.len() < self.least {
            return Some(false);
        }
        let Matching { part, byte, star } = matching;
        for _ in 0..steps {
            let is_matched = match (self.parts.get(*part), key.get(*byte)) {
                (Some(Part::Star), _) => {
                    *star = Some((*part, *byte));
                    *part += 1;
                    continue;
                }
                (None, None) => return Some(true),
                (Some(part), Some(byte)) => part.has(*byte),
                _ => false,
            };
            match star {
                _ if is_matched => (*part, *byte) = (*part + 1, *byte + 1),
                Some((at, tried)) if *tried < key.len() => {
                    *tried += 1;
                    (*part, *byte) = (*at + 1, *tried);
                }
                _ => return Some(false),
            }
        }
        None
    }
}

/// The bytes of a class, and what stands behind it. A class without an end ends with the pattern.
fn class(pattern: &[u8]) -> ([u64; 4], &[u8]) {
    let is_negated = pattern.first() == Some(&b'^');
    let mut rest = &pattern[usize::from(is_negated)..];
    let mut bits = [0u64; 4];
    let mut add = |byte: u8| bits[usize::from(byte / 64)] |= 1 << (byte % 64);
    loop {
        rest = match *rest {
            [] => break,
            [b'\\', escaped, ref behind @ ..] => {
                add(escaped);
                behind
            }
            [b']', ref behind @ ..] => {
                rest = behind;
                break;
            }
            [first, b'-', last, ref behind @ ..] => {
                (first.min(last)..=first.max(last)).for_each(&mut add);
                behind
            }
            [first, ref behind @ ..] => {
                add(first);
                behind
            }
        };
    }
    (if is_negated { bits.map(|bits| !bits) } else { bits }, rest)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn matches(pattern: &[u8], key: &[u8]) -> bool {
        let pattern = Pattern::parse(pattern).unwrap();
        pattern.go_on(&mut Matching::default(), key, usize::MAX).unwrap()
    }

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

    #[test]
    fn a_class_is_parsed_once_and_a_pattern_has_a_bound() {
        let class = [b"*[", &[b'b'; PATTERN_BYTES_MAX - 3][..], b"]"].concat();
        let pattern = Pattern::parse(&class).unwrap();
        assert_eq!((pattern.parts.len(), pattern.least), (2, 1));
        let steps = 4 * 65_000;
        let is_match = pattern.go_on(&mut Matching::default(), &[b'a'; 65_000], steps);
        assert_eq!(is_match, Some(false));
        assert!(Pattern::parse(&[&class[..], b"b"].concat()).is_err());
    }

    /// Each round goes on where the last one has stopped.
    #[test]
    fn a_match_that_takes_long_lets_others_go_on() {
        let (pattern, key) = ([b"*", &[b'a'; 20_000][..], b"b"].concat(), [b'a'; 30_000]);
        let (pattern, pace) = (Pattern::parse(&pattern).unwrap(), Pace::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut matching = Box::pin(pattern.matches(&key, &pace));
        let rounds = (0..).find(|_| {
            pace.begin_round();
            matching.as_mut().poll(&mut cx).is_ready()
        });
        assert!(rounds > Some(10), "{rounds:?} rounds");
    }
}
