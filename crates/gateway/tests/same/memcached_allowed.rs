//! Which answers to requests of memcached are the same, and which differences the document names.

use std::time::Duration;

use super::allowed::Allowed;
use super::sequence::Request;
use super::support::text;

/// Whether answers say the same. CAS uniques are any numbers, what `me` tells is for people, and
/// times go on.
pub fn is_same(ours: &[u8], theirs: &[u8], slack: Duration) -> bool {
    if ours == theirs {
        return true;
    }
    let [ours, theirs] = [ours, theirs].map(text);
    let (ours, theirs) = (ours.split("\r\n"), theirs.split("\r\n"));
    ours.clone().count() == theirs.clone().count()
        && ours.zip(theirs).all(|(ours, theirs)| is_same_line(ours, theirs, slack))
}

fn is_same_line(ours: &str, theirs: &str, slack: Duration) -> bool {
    let [ours, theirs] = [ours, theirs].map(|line| line.split(' ').collect::<Vec<_>>());
    if ours[0] == "ME" && theirs[0] == "ME" {
        return true;
    }
    if ours.len() != theirs.len() {
        return false;
    }
    let is_value = ours[0] == "VALUE" && ours.len() == 5;
    // Both clocks have whole seconds.
    let most = slack.as_secs() + 2;
    let is_same = |(at, (ours, theirs)): (usize, (&&str, &&str))| {
        let number = |letter: char| {
            let number = |word: &str| word.strip_prefix(letter)?.parse::<u64>().ok();
            number(ours).zip(number(theirs))
        };
        ours == theirs
            || is_value && at == 4
            || number('c').is_some()
            || number('t').is_some_and(|(a, b)| a > 900 && b > 900 && a.abs_diff(b) <= most)
            // What a gateway knows of the use of an item depends on what it has read with it.
            || number('l').is_some()
            || number('h').is_some()
    };
    ours.iter().zip(&theirs).enumerate().all(is_same)
}

pub const ALLOWED: &[Allowed] = &[
    Allowed {
        sentence: "a number that becomes shorter has no spaces behind it",
        ends: true,
        is: |difference| {
            // The spaces stay in the value where something was joined to it.
            let joins = |request: &Request| {
                ["append", "prepend"].contains(&request.word(0).as_str()) || has_flag(request, b'M')
            };
            let mut since = difference.before().skip_while(|(_, request)| !counts(request));
            since.next().is_some()
                && (since.any(|(_, request)| joins(request))
                    || without_lengths(difference.ours) == without_lengths(difference.theirs))
        },
    },
    Allowed {
        sentence: "a number that becomes longer is as stale as it was, and has the time that `ma` gives it",
        ends: true,
        is: |difference| {
            let expires = |request: &Request| request.word(0) == "ma" && has_flag(request, b'T');
            let is_gone = |answer: &[u8]| {
                ["NOT_FOUND", "NF", "EN", "NS", "NOT_STORED"]
                    .iter()
                    .any(|code| contains(answer, code))
            };
            difference.before().any(|(_, request)| counts(request))
                && without_marks(difference.ours) == without_marks(difference.theirs)
                || difference.before().any(|(_, request)| expires(request))
                    && is_gone(difference.ours)
        },
    },
    Allowed {
        sentence: "`k` and `b` tell the key as the request has it",
        ends: false,
        is: |difference| without_key(difference.ours) == without_key(difference.theirs),
    },
    Allowed {
        sentence: "`t` of a time that has passed is 0",
        ends: false,
        is: |difference| {
            let is_past = |word: &str| word == "t0" || word.starts_with("t42949");
            let rest = |answer: &[u8]| words_but(answer, is_past);
            contains(difference.ours, " t0") && rest(difference.ours) == rest(difference.theirs)
        },
    },
    Allowed {
        sentence: "with `I`, a CAS unique that is not the item's counts as an older one, except with `MA` \
                   and `MP`",
        ends: true,
        is: |difference| {
            let stales = |request: &Request| {
                request.word(0) == "ms" && has_flag(request, b'I') && has_flag(request, b'C')
            };
            difference.requests.iter().any(stales)
                && contains(difference.ours, "HD")
                && contains(difference.theirs, "EX")
        },
    },
    Allowed {
        sentence: "`E`, the `x` of `md`, and `N` with `MA` and `MP` are those of newer versions",
        ends: true,
        is: |difference| {
            let vivifies = |request: &Request| {
                request.word(0) == "ms" && has_flag(request, b'N') && has_flag(request, b'M')
            };
            let is_newer = |request: &Request| has_flag(request, b'x') || has_flag(request, b'E');
            let is_refused = contains(difference.theirs, "CLIENT_ERROR invalid");
            difference.requests.iter().any(vivifies) && contains(difference.theirs, "NS")
                || difference.requests.iter().any(is_newer) && is_refused
        },
    },
    Allowed {
        sentence: "a command whose opaque token is too long does nothing",
        ends: true,
        is: |difference| difference.before().any(|(_, request)| has_long_opaque(request)),
    },
    Allowed {
        sentence: "The data behind a line that is refused for its key or its flags are passed over; \
                   memcached takes some of them for requests.",
        ends: true,
        is: |difference| {
            let is_refused = |request: &Request| {
                let lines = request.bytes.iter().filter(|byte| **byte == b'\n').count();
                let has_long_key = request.words.get(1).is_some_and(|key| key.len() > 250);
                lines > 1 && (request.words.len() > 19 || has_long_key)
            };
            difference.requests.iter().any(is_refused)
        },
    },
    Allowed {
        sentence: "CAS uniques are Loch's versions, so `touch` changes them, and so does an `mg` that \
                   hands an item out for renewal.",
        ends: true,
        is: |difference| {
            let touches = |request: &Request| {
                let name = request.word(0);
                let is_renewed = [b'I', b'R', b'N'].iter().any(|flag| has_flag(request, *flag));
                let touches = ["touch", "gat", "gats"].contains(&name.as_str());
                touches || is_renewed || has_flag(request, b'T')
            };
            let asks = |request: &Request| request.word(0) == "cas" || has_flag(request, b'C');
            difference.before().any(|(_, request)| asks(request))
                && difference.before().any(|(_, request)| touches(request))
        },
    },
];

fn contains(answer: &[u8], part: &str) -> bool {
    text(answer).contains(part)
}

/// Whether a request adds to a number.
fn counts(request: &Request) -> bool {
    ["incr", "decr", "ma"].contains(&request.word(0).as_str())
}

/// Whether a meta command has a flag.
fn has_flag(request: &Request, flag: u8) -> bool {
    let is_meta = matches!(request.word(0).as_str(), "mg" | "ms" | "md" | "ma");
    is_meta && request.words.iter().skip(2).any(|word| word.first() == Some(&flag))
}

fn has_long_opaque(request: &Request) -> bool {
    let is_long = |word: &Vec<u8>| word.len() > 32 && word[0] == b'O';
    request.words.iter().skip(2).any(is_long)
}

fn is_unique(word: &str) -> bool {
    let digits = word.strip_prefix('c').filter(|digits| !digits.is_empty());
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The words of an answer but for some of them, CAS uniques, keys and uses.
fn words_but(answer: &[u8], is_out: impl Fn(&str) -> bool) -> Vec<String> {
    let word = |word: &str| {
        let is_loose = is_use(word) || word == "b" || word.starts_with('k');
        let is_kept = !is_loose && !is_out(word);
        is_kept.then(|| if is_unique(word) { "c#" } else { word }.to_owned())
    };
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if words[0] == "VALUE" && words.len() == 5 {
            words[4] = "#";
        }
        words.into_iter().filter_map(word).chain(["\n".to_owned()]).collect::<Vec<_>>()
    };
    let is_told = |line: &&str| !line.starts_with("ME ");
    text(answer).split("\r\n").filter(is_told).flat_map(line).collect()
}

/// What an answer tells of an item's use.
fn is_use(word: &str) -> bool {
    let is_second = word.strip_prefix('l').is_some_and(|idle| idle.parse::<u64>().is_ok());
    word == "h0" || word == "h1" || is_second
}

/// An answer without spaces in values, and without the lengths of values.
fn without_lengths(answer: &[u8]) -> Vec<String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let is_length =
            |word: &str| word.strip_prefix('s').is_some_and(|len| len.parse::<u64>().is_ok());
        match words[..] {
            ["VALUE", key, flags, ..] => format!("VALUE {key} {flags}"),
            ["VA" | "HD", ..] => {
                let skipped = if words[0] == "VA" { 2 } else { 1 };
                let is_loose = |word: &str| {
                    is_unique(word)
                        || is_length(word)
                        || is_use(word)
                        || word == "b"
                        || word.starts_with('k')
                };
                let rest = words[skipped.min(words.len())..].iter();
                rest.filter(|word| !is_loose(word)).copied().collect()
            }
            _ => words.concat(),
        }
    };
    text(answer).split("\r\n").map(line).collect()
}

/// An answer without the marks of items that are stale or to be renewed, and without their times.
fn without_marks(answer: &[u8]) -> Vec<String> {
    let is_time =
        |word: &str| word.strip_prefix('t').is_some_and(|left| left.parse::<i64>().is_ok());
    words_but(answer, |word| ["W", "X", "Z"].contains(&word) || is_time(word))
}

/// An answer without the keys that meta commands tell.
fn without_key(answer: &[u8]) -> Vec<String> {
    words_but(answer, |_| false)
}
