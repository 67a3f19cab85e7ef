//! Requests: arrays of strings, or one line of words.

use std::ops::Range;

use crate::limits::{
    ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, LINE_BYTES_MAX, STRANGER_ARGUMENTS_MAX, STRANGER_BYTES_MAX,
    STRANGER_REQUEST_BYTES_MAX,
};

/// What the front of some bytes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A request, whose arguments were added to those that were handed in; its bytes.
    Request { consumed: usize },
    /// A request on one line.
    Inline { arguments: Vec<Vec<u8>>, consumed: usize },
    /// The beginning of a request that has so many bytes at least.
    Incomplete { needed: usize },
    /// Nothing that could be a request.
    Wrong(&'static str),
    /// An argument that should begin with a dollar sign begins with this.
    NoBulk(u8),
}

/// Of a request that is shorter, all is parsed again when more has come.
const BEGUN_BYTES: usize = 4 << 10;

/// A long request of many arguments, of which some have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Begun {
    /// Where the arguments are that have come, and their lengths.
    arguments: Vec<(u32, u32)>,
    /// Where the next one begins.
    at: usize,
    /// How many there are still; 0: no request has begun.
    left: usize,
}

/// A line without its end, and the bytes up to the next one.
enum Line<'a> {
    Whole(&'a [u8], usize),
    Cut,
    TooLong,
}

fn line(bytes: &[u8]) -> Line<'_> {
    let looked = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    match looked.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            Line::Whole(looked[..end].strip_suffix(b"\r").unwrap_or(&looked[..end]), end + 1)
        }
        None if bytes.len() >= LINE_BYTES_MAX => Line::TooLong,
        None => Line::Cut,
    }
}

/// Parses the request at the front. `known` says whether the client has given the password, and
/// `begun` goes from one call to the next one for the same request.
pub(crate) fn parse<'a>(
    bytes: &'a [u8],
    known: bool,
    begun: &mut Begun,
    arguments: &mut Vec<&'a [u8]>,
) -> Parsed {
    let before = arguments.len();
    let parsed = match bytes.first() {
        None => Parsed::Incomplete { needed: 1 },
        Some(b'*') => parse_array(bytes, known, begun, arguments),
        Some(_) => parse_inline(bytes),
    };
    if !matches!(parsed, Parsed::Request { .. }) {
        arguments.truncate(before);
    }
    parsed
}

/// A number of Redis' protocol: no sign but a minus, no zeros in front.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = digits.first().is_some_and(|first| first.is_ascii_digit())
        && (digits.len() == 1 || digits[0] != b'0')
        && text != b"-0";
    is_plain.then_some(number)
}

fn parse_array<'a>(
    bytes: &'a [u8],
    known: bool,
    begun: &mut Begun,
    arguments: &mut Vec<&'a [u8]>,
) -> Parsed {
    if begun.left > 0 {
        return go_on(bytes, known, begun, arguments);
    }
    let before = arguments.len();
    let (count, mut at) = match array_head(bytes, known) {
        Ok(head) => head,
        Err(parsed) => return parsed,
    };
    for left in (0..count).rev() {
        match parse_argument(bytes, at, known) {
            Ok((argument, next)) => {
                arguments.push(&bytes[argument]);
                at = next;
            }
            Err(parsed) => {
                if at >= BEGUN_BYTES && matches!(parsed, Parsed::Incomplete { .. }) {
                    let start = bytes.as_ptr().addr();
                    let place = |argument: &&[u8]| {
                        let from = argument.as_ptr().addr() - start;
                        place_of(&(from..from + argument.len()))
                    };
                    let arguments = arguments[before..].iter().map(place).collect();
                    *begun = Begun { arguments, at, left: left + 1 };
                }
                return parsed;
            }
        }
    }
    Parsed::Request { consumed: at }
}

/// Parses what has come of a request since the last time. As long as it is not whole, nothing is
/// done with the arguments that were there before: a client may send it byte by byte.
fn go_on<'a>(
    bytes: &'a [u8],
    known: bool,
    begun: &mut Begun,
    arguments: &mut Vec<&'a [u8]>,
) -> Parsed {
    while begun.left > 0 {
        match parse_argument(bytes, begun.at, known) {
            Ok((argument, next)) => {
                begun.arguments.push(place_of(&argument));
                (begun.at, begun.left) = (next, begun.left - 1);
            }
            Err(parsed) => return parsed,
        }
    }
    let Begun { arguments: places, at, .. } = std::mem::take(begun);
    let argument = |(from, len): (u32, u32)| &bytes[from as usize..][..len as usize];
    arguments.extend(places.into_iter().map(argument));
    Parsed::Request { consumed: at }
}

/// Where an argument begins, and its length.
fn place_of(argument: &Range<usize>) -> (u32, u32) {
    let short = |number: usize| u32::try_from(number).expect("a request has its bounds");
    (short(argument.start), short(argument.len()))
}

/// How many arguments a request has, and where the first one begins.
fn array_head(bytes: &[u8], known: bool) -> Result<(usize, usize), Parsed> {
    let (count, at) = match line(bytes) {
        Line::Cut => return Err(Parsed::Incomplete { needed: bytes.len() + 1 }),
        Line::TooLong => return Err(Parsed::Wrong("too big mbulk count string")),
        Line::Whole(text, end) => (integer(&text[1..]), end),
    };
    let count = match count {
        Some(count) if count <= ARGUMENTS_MAX as i64 => count.max(0) as usize,
        _ => return Err(Parsed::Wrong("invalid multibulk length")),
    };
    match !known && count > STRANGER_ARGUMENTS_MAX {
        true => Err(Parsed::Wrong("unauthenticated multibulk length")),
        false => Ok((count, at)),
    }
}

/// Where the argument is that begins here, and where the next one does.
fn parse_argument(bytes: &[u8], at: usize, known: bool) -> Result<(Range<usize>, usize), Parsed> {
    // What is wrong with the next byte is told when it is there.
    let needs = |needed| Err(Parsed::Incomplete { needed });
    let Some(first) = bytes.get(at) else { return needs(at + 1) };
    if *first != b'$' {
        return Err(Parsed::NoBulk(*first));
    }
    let (len, start) = match line(&bytes[at..]) {
        Line::Cut => return needs(bytes.len() + 1),
        Line::TooLong => return Err(Parsed::Wrong("too big bulk count string")),
        Line::Whole(text, end) => (integer(&text[1..]), at + end),
    };
    let len = match len {
        Some(len @ 0..) if len <= ARGUMENT_BYTES_MAX as i64 => len as usize,
        _ => return Err(Parsed::Wrong("invalid bulk length")),
    };
    if !known && (len > STRANGER_BYTES_MAX || start + len > STRANGER_REQUEST_BYTES_MAX) {
        return Err(Parsed::Wrong("unauthenticated bulk length"));
    }
    if bytes.len() < start + len + 2 {
        return needs(start + len + 2);
    }
    // Redis does not look at the two bytes behind an argument either.
    Ok((start..start + len, start + len + 2))
}

/// Where the key and the value of a SET without options begin and end, if its value has not come
/// whole.
pub(crate) fn begun_set(bytes: &[u8]) -> Option<((usize, usize), (usize, usize))> {
    let Line::Whole(b"*3", mut at) = line(bytes) else { return None };
    let mut argument = || {
        let Line::Whole(head, len) = line(&bytes[at..]) else { return None };
        let start = at + len;
        let len = head.strip_prefix(b"$").and_then(integer)?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        at = end.checked_add(2).filter(|at| *at <= bytes.len()).unwrap_or(bytes.len());
        Some((start, end))
    };
    let (name, key, value) = (argument()?, argument()?, argument()?);
    let name = bytes.get(name.0..name.1)?;
    let is_long = value.0 <= bytes.len() && value.1.saturating_add(2) > bytes.len();
    (name.eq_ignore_ascii_case(b"set") && is_long).then_some((key, value))
}

fn parse_inline(bytes: &[u8]) -> Parsed {
    match line(bytes) {
        Line::Cut => Parsed::Incomplete { needed: bytes.len() + 1 },
        Line::TooLong => Parsed::Wrong("too big inline request"),
        Line::Whole(text, consumed) => match words(text) {
            Some(arguments) => Parsed::Inline { arguments, consumed },
            None => Parsed::Wrong("unbalanced quotes in request"),
        },
    }
}

/// The words of a line, as a shell would have them: in quotes, with escapes in double ones.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.iter().copied().peekable();
    loop {
        while rest.next_if(u8::is_ascii_whitespace).is_some() {}
        let Some(first) = rest.next() else { return Some(words) };
        let mut word = Vec::new();
        let mut next = Some(first);
        while let Some(byte) = next {
            match byte {
                b'"' | b'\'' => {
                    quoted(byte, &mut rest, &mut word)?;
                    // A word ends with its quotes.
                    match rest.peek() {
                        None => break,
                        Some(after) if after.is_ascii_whitespace() => break,
                        Some(_) => return None,
                    }
                }
                byte => word.push(byte),
            }
            next = rest.next_if(|byte| !byte.is_ascii_whitespace());
        }
        words.push(word);
    }
}

/// The bytes up to the closing quote.
fn quoted(quote: u8, rest: &mut impl Iterator<Item = u8>, word: &mut Vec<u8>) -> Option<()> {
    let mut rest = std::iter::from_fn(|| rest.next()).peekable();
    let mut held = None;
    loop {
        let byte = held.take().or_else(|| rest.next())?;
        if byte == quote {
            return Some(());
        }
        if byte != b'\\' {
            word.push(byte);
            continue;
        }
        let escaped = rest.next()?;
        if quote == b'\'' {
            match escaped {
                b'\'' => word.push(b'\''),
                other => {
                    word.push(b'\\');
                    held = Some(other);
                }
            }
            continue;
        }
        match escaped {
            b'n' => word.push(b'\n'),
            b'r' => word.push(b'\r'),
            b't' => word.push(b'\t'),
            b'b' => word.push(8),
            b'a' => word.push(7),
            b'x' => {
                let hex = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
                let high = rest.next()?;
                match hex(high) {
                    None => {
                        word.push(b'x');
                        held = Some(high);
                    }
                    Some(top) => {
                        let low = rest.next()?;
                        match hex(low) {
                            Some(low) => word.push(top << 4 | low),
                            None => {
                                word.extend([b'x', high]);
                                held = Some(low);
                            }
                        }
                    }
                }
            }
            other => word.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(bytes: &[u8]) -> (Parsed, Vec<&[u8]>) {
        let mut arguments = Vec::new();
        let parsed = parse(bytes, true, &mut Begun::default(), &mut arguments);
        (parsed, arguments)
    }

    fn encoded(arguments: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend(format!("${}\r\n", argument.len()).bytes());
            bytes.extend_from_slice(argument);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    /// A client that sent it in parts waited for the error for ever.
    #[test]
    fn what_is_wrong_needs_no_more_bytes_to_be_seen_than_it_has() {
        for wrong in ["*2\r\n$x\r\n", "*1\r\n+", "*x\r\n", "*3\r\n$3\r\nSET\r\n$-1\r\n", "'a'b\r\n"]
        {
            let bytes = wrong.as_bytes();
            for end in 0..bytes.len() {
                let Parsed::Incomplete { needed } = parsed(&bytes[..end]).0 else {
                    panic!("{wrong:?} {end}")
                };
                assert!(needed > end && needed <= bytes.len(), "{wrong:?} {end} {needed}");
            }
            let seen = parsed(bytes).0;
            assert!(matches!(seen, Parsed::Wrong(_) | Parsed::NoBulk(_)), "{wrong:?} {seen:?}");
        }
    }

    #[test]
    fn a_long_request_that_comes_in_parts_is_the_same_and_no_part_is_parsed_twice() {
        let arguments: Vec<Vec<u8>> = (0..5000).map(|at: usize| vec![at as u8; at % 90]).collect();
        let bytes = [encoded(&arguments), b"PING\r\n".to_vec()].concat();
        let (mut begun, mut at_before, mut resumed) = (Begun::default(), 0, 0);
        for end in (0..=bytes.len()).step_by(1777).chain([bytes.len()]) {
            let mut found = Vec::new();
            match parse(&bytes[..end], true, &mut begun, &mut found) {
                Parsed::Request { consumed } => {
                    assert_eq!((found.len(), consumed), (arguments.len(), bytes.len() - 6));
                    assert!(found.iter().zip(&arguments).all(|(found, right)| found == right));
                    assert_eq!(begun, Begun::default());
                    break;
                }
                Parsed::Incomplete { needed } => {
                    assert!(needed > end && needed < bytes.len() && found.is_empty());
                    resumed += usize::from(begun.at > at_before);
                    at_before = begun.at;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(resumed > 50, "{resumed}");
    }

    proptest! {
        #[test]
        fn a_set_has_begun_when_its_value_has_and_ends_with_its_last_byte(
            key in prop::collection::vec(any::<u8>(), 0..9),
            value in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let bytes = encoded(&[b"sEt".to_vec(), key.clone(), value.clone()]);
            let start = bytes.len() - value.len() - 2;
            for end in 0..=bytes.len() {
                let begun = begun_set(&bytes[..end]);
                prop_assert_eq!(begun.is_some(), (start..bytes.len()).contains(&end), "{}", end);
                if let Some((of_key, of_value)) = begun {
                    prop_assert_eq!(&bytes[of_key.0..of_key.1], &key[..]);
                    prop_assert_eq!(of_value, (start, bytes.len() - 2));
                }
            }
            let others = [b"GET".to_vec(), key.clone(), value.clone()];
            let longer = [b"SET".to_vec(), key, value, b"NX".to_vec()];
            for (other, end) in [(encoded(&others), start), (encoded(&longer), start)] {
                prop_assert_eq!(begun_set(&other[..end + 1]), None);
            }
        }

        #[test]
        fn a_request_is_whole_with_its_last_byte_and_never_needs_more_than_it_has(
            arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            rest: Vec<u8>,
        ) {
            let bytes = encoded(&arguments);
            for end in 0..bytes.len() {
                let Parsed::Incomplete { needed } = parsed(&bytes[..end]).0 else {
                    return Err(TestCaseError::fail("it is not whole"));
                };
                prop_assert!(needed > end && needed <= bytes.len());
            }
            let all = [&bytes[..], &rest].concat();
            let (request, found) = parsed(&all);
            prop_assert_eq!(request, Parsed::Request { consumed: bytes.len() });
            prop_assert_eq!(found, arguments.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>, known: bool) {
            for prefix in [&b""[..], b"*2\r\n$", b"*1\r\n$5\r\n", b"\""] {
                let bytes = [prefix, &bytes].concat();
                let consumed = match parse(&bytes, known, &mut Begun::default(), &mut Vec::new()) {
                    Parsed::Request { consumed } | Parsed::Inline { consumed, .. } => consumed,
                    Parsed::Incomplete { needed } => {
                        prop_assert!(needed > bytes.len());
                        continue;
                    }
                    Parsed::Wrong(_) | Parsed::NoBulk(_) => continue,
                };
                prop_assert!(consumed > 0 && consumed <= bytes.len());
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_refused_in_the_words_of_redis() {
        for (bytes, error) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*1\r\n$+1\r\n", "invalid bulk length"),
            (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
        ] {
            assert_eq!(parsed(bytes).0, Parsed::Wrong(error));
        }
        assert_eq!(parsed(b"*1\r\n*1\r\n").0, Parsed::NoBulk(b'*'));
        let long = vec![b'1'; LINE_BYTES_MAX];
        let too_long = |first: &[u8]| parsed(&[first, &long].concat()).0;
        assert_eq!(too_long(b"*"), Parsed::Wrong("too big mbulk count string"));
        assert_eq!(too_long(b"*1\r\n$"), Parsed::Wrong("too big bulk count string"));
        assert_eq!(too_long(b"x"), Parsed::Wrong("too big inline request"));
        let stranger =
            |bytes: &'static [u8]| parse(bytes, false, &mut Begun::default(), &mut Vec::new());
        assert_eq!(stranger(b"*11\r\n"), Parsed::Wrong("unauthenticated multibulk length"));
        assert_eq!(stranger(b"*1\r\n$16385\r\n"), Parsed::Wrong("unauthenticated bulk length"));
    }

    #[test]
    fn a_line_is_words_in_quotes_or_not() {
        for (line, words) in [
            ("", vec![]),
            ("  set  a b ", vec!["set", "a", "b"]),
            (r#"set "a b" 'c\'d'"#, vec!["set", "a b", "c'd"]),
            (r#"x "\x41\n\"\\\q\x4z""#, vec!["x", "A\n\"\\qx4z"]),
            (r#"a"b c""#, vec!["ab c"]),
        ] {
            let bytes = format!("{line}\r\n").into_bytes();
            let Parsed::Inline { arguments, consumed } = parsed(&bytes).0 else { panic!("{line}") };
            assert_eq!(consumed, bytes.len());
            assert_eq!(arguments, words.iter().map(|w| w.as_bytes().to_vec()).collect::<Vec<_>>());
        }
        for line in ["\"a", "'a", "\"a\"b", "\"a\\"] {
            let bytes = format!("{line}\n").into_bytes();
            assert_eq!(parsed(&bytes).0, Parsed::Wrong("unbalanced quotes in request"), "{line}");
        }
    }
}
