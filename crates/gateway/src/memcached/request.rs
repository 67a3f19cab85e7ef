//! Requests: a line of words, and a block of data behind some of them.

use crate::limits::{MEMCACHED_LINE_BYTES, MEMCACHED_LIST_BYTES};

/// What the front of some bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// A request, whose words were added to those that were handed in.
    Request { data: Data<'a>, consumed: usize },
    /// The beginning of a line.
    Cut,
    /// The beginning of a request that has so many bytes at least.
    Incomplete { needed: usize },
    /// A line that cannot be one of this protocol.
    TooLong,
    /// A request of memcached's binary protocol.
    Binary,
}

/// The data block of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data<'a> {
    None,
    Block(&'a [u8]),
    /// The block does not end where the line says.
    Bad,
    /// The block is longer than a value can be: so many bytes are still to be passed over.
    TooLarge {
        rest: usize,
    },
}

/// The most bytes of the lines of data blocks that memcached takes for a length.
const LENGTH_MAX: u64 = i32::MAX as u64 - 2;

/// The most bytes of a data block from a client that has not given the password.
const STRANGER_DATA_BYTES: u64 = MEMCACHED_LINE_BYTES as u64;

/// The first byte of each request of the binary protocol.
const BINARY: u8 = 0x80;

/// Parses the request at the front, of which so many bytes were looked at: they are a part of one
/// line. A data block of more than `data_max` bytes is not waited for. A client that is not known
/// has to be brief.
pub(crate) fn parse<'a>(
    bytes: &'a [u8],
    (is_known, data_max): (bool, u64),
    looked: usize,
    words: &mut Vec<&'a [u8]>,
) -> Parsed<'a> {
    let data_max = if is_known { data_max } else { data_max.min(STRANGER_DATA_BYTES) };
    if bytes.first() == Some(&BINARY) {
        return Parsed::Binary;
    }
    let end = bytes[looked..].iter().position(|byte| *byte == b'\n').map(|end| looked + end);
    let is_list = || {
        let start = bytes.trim_ascii_start();
        [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|verb| start.starts_with(verb))
    };
    let len = end.unwrap_or(bytes.len());
    let most = || if is_known && is_list() { MEMCACHED_LIST_BYTES } else { MEMCACHED_LINE_BYTES };
    if len > MEMCACHED_LINE_BYTES && len > most() {
        return Parsed::TooLong;
    }
    let Some(end) = end else { return Parsed::Cut };
    let before = words.len();
    words.extend(self::words(&bytes[..end]));
    let start = end + 1;
    let Some(len) = data_len(&words[before..]) else {
        return Parsed::Request { data: Data::None, consumed: start };
    };
    if len > data_max {
        let whole = len.saturating_add(2);
        let here = ((bytes.len() - start) as u64).min(whole);
        let rest = (whole - here) as usize;
        return Parsed::Request { data: Data::TooLarge { rest }, consumed: start + here as usize };
    }
    let (len, behind) = (len as usize, b"\r\n".len());
    if bytes.len() < start + len + behind {
        words.truncate(before);
        return Parsed::Incomplete { needed: start + len + behind };
    }
    let data = match &bytes[start + len..][..behind] {
        b"\r\n" => Data::Block(&bytes[start..start + len]),
        _ => Data::Bad,
    };
    Parsed::Request { data, consumed: start + len + behind }
}

/// The words of a line whose data block has not come whole, where that begins, and its length.
pub(crate) fn begun_block(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize, usize)> {
    let start = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let words = words(&bytes[..start - 1]).collect::<Vec<_>>();
    let len = usize::try_from(data_len(&words)?).ok()?;
    (start.saturating_add(len).saturating_add(2) > bytes.len()).then_some((words, start, len))
}

/// The words of a line.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// The length of the data block behind a line, if the line is right so far.
fn data_len(words: &[&[u8]]) -> Option<u64> {
    let len = match *words.first()? {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" if matches!(words.len(), 5 | 6) => {
            words[4]
        }
        b"cas" if matches!(words.len(), 6 | 7) && number::<u64>(words[5]).is_some() => words[4],
        b"ms" if words.len() >= 3 => words[2],
        _ => return None,
    };
    let is_right =
        words[0] == b"ms" || flags(words[2]).is_some() && number::<i64>(words[3]).is_some();
    let len = u64::try_from(number::<i64>(len)?).ok()?;
    Some(len).filter(|len| *len <= LENGTH_MAX && is_right)
}

/// A number that a word is.
pub(crate) trait Number: Sized {
    /// The number of this sign and these digits, unless it has too many bits.
    fn of(is_negative: bool, digits: u64) -> Option<Self>;
}

impl Number for i64 {
    fn of(is_negative: bool, digits: u64) -> Option<Self> {
        if is_negative { 0i64.checked_sub_unsigned(digits) } else { digits.try_into().ok() }
    }
}

impl Number for u64 {
    /// The C library wraps a negative number round, and memcached refuses only what is large then.
    fn of(is_negative: bool, digits: u64) -> Option<Self> {
        let wrapped = digits.wrapping_neg();
        if is_negative {
            Some(wrapped).filter(|wrapped| *wrapped as i64 >= 0)
        } else {
            Some(digits)
        }
    }
}

/// A number in decimal digits, as the C library reads one: blanks and a sign may stand before the
/// digits, and anything behind a blank.
pub(crate) fn number<T: Number>(word: &[u8]) -> Option<T> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = word.iter().position(|byte| !is_blank(byte)).unwrap_or(word.len());
    let (is_negative, word) = match &word[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let end = word.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(word.len());
    let (digits, behind) = word.split_at(end);
    let ends = behind.first().is_none_or(|byte| *byte == 0 || is_blank(byte));
    let digits = std::str::from_utf8(digits).ok()?.parse().ok()?;
    T::of(is_negative, digits).filter(|_| ends)
}

/// Flags of an item: of more than 32 bits, memcached keeps the low ones.
pub(crate) fn flags(word: &[u8]) -> Option<u32> {
    number::<u64>(word).map(|flags| flags as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(bytes: &[u8]) -> (Parsed<'_>, Vec<&[u8]>) {
        let mut words = Vec::new();
        (parse(bytes, (true, 1000), 0, &mut words), words)
    }

    #[test]
    fn a_number_is_what_the_c_library_reads() {
        for (word, signed, unsigned) in [
            ("5", Some(5), Some(5)),
            ("+5", Some(5), Some(5)),
            ("\t -0x", None, None),
            (" \t-7\tx", Some(-7), None),
            ("-0", Some(0), Some(0)),
            ("-18446744073709551615", None, Some(1)),
            ("18446744073709551615", None, Some(u64::MAX)),
            ("18446744073709551616", None, None),
            ("-9223372036854775808", Some(i64::MIN), None),
            ("", None, None),
            ("+", None, None),
            ("5x", None, None),
        ] {
            assert_eq!(number::<i64>(word.as_bytes()), signed, "{word}");
            assert_eq!(number::<u64>(word.as_bytes()), unsigned, "{word}");
        }
    }

    #[test]
    fn a_block_has_begun_behind_its_line_and_ends_with_its_last_byte() {
        let request = b"set key 7 -1 5 noreply\r\nab\r\nc\r\n";
        let start = request.len() - 7;
        for end in 0..=request.len() {
            let begun = begun_block(&request[..end]);
            assert_eq!(begun.is_some(), (start..request.len()).contains(&end), "{end}");
            if let Some((words, at, len)) = begun {
                assert_eq!((words.len(), words[1], at, len), (6, &b"key"[..], start, 5));
            }
        }
        for other in ["get k\r\n", "set k x 0 5\r\nab", "set k 0 0 -5\r\nab", "set k 0 0 5", "mg k"]
        {
            assert_eq!(begun_block(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_request_is_whole_with_its_last_byte_and_never_needs_more_than_it_has() {
        for request in [
            "get a  b\r\n",
            "set k 1 -5 3\r\na\nb\r\n",
            "cas k 1 0 2 77 noreply\r\nab\r\n",
            "ms k 4 T0\r\n\r\n\r\n\r\n",
            "\n",
        ] {
            let bytes = request.as_bytes();
            for end in 0..bytes.len() {
                let needed = match parsed(&bytes[..end]).0 {
                    Parsed::Cut => end + 1,
                    Parsed::Incomplete { needed } => needed,
                    other => panic!("{request:?} {end}: {other:?}"),
                };
                assert!(needed > end && needed <= bytes.len(), "{request:?} {end} {needed}");
            }
            let Parsed::Request { consumed, .. } = parsed(bytes).0 else { panic!("{request:?}") };
            assert_eq!(consumed, bytes.len());
        }
        assert_eq!(parsed(b"get a  b\r\n").1, [&b"get"[..], b"a", b"b"]);
    }

    #[test]
    fn a_block_that_does_not_end_or_does_not_fit_is_told() {
        let bad = Parsed::Request { data: Data::Bad, consumed: 16 };
        assert_eq!(parsed(b"set k 0 0 1\r\nabc").0, bad);
        let rest = |bytes: &'static [u8]| match parsed(bytes).0 {
            Parsed::Request { data: Data::TooLarge { rest }, consumed } => (rest, consumed),
            other => panic!("{other:?}"),
        };
        assert_eq!(rest(b"set k 0 0 1001\r\n"), (1003, 16));
        assert_eq!(rest(b"set k 0 0 1001\r\nabc"), (1000, 19));
        // No length: the next line is a request of its own, as with memcached.
        for line in ["set k 0 0 x\r\n", "set k 0 0 -1\r\n", "set k 0 0\r\n", "set k -1 0 2\r\n"] {
            let (Parsed::Request { data, consumed }, _) = parsed(line.as_bytes()) else {
                panic!("{line}")
            };
            assert_eq!((data, consumed), (Data::None, line.len()));
        }
        assert_eq!(parsed(&[b'x'; 3000]).0, Parsed::TooLong);
        for verb in ["get ", "gets ", "gat 0 ", "gats 0 "] {
            let list = [verb.as_bytes(), &[b'k'; 3000]].concat();
            assert_eq!(parsed(&list).0, Parsed::Cut);
        }
    }

    #[test]
    fn a_stranger_makes_nobody_wait_for_a_long_line_or_long_data() {
        let parsed = |bytes: &[u8]| match parse(bytes, (false, 1 << 20), 0, &mut Vec::new()) {
            Parsed::Incomplete { needed } => Some(needed),
            Parsed::Cut => Some(bytes.len() + 1),
            Parsed::TooLong | Parsed::Request { data: Data::TooLarge { .. }, .. } => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(parsed(b"set auth 0 0 2048\r\n"), Some(19 + 2048 + 2));
        assert_eq!(parsed(b"set auth 0 0 2049\r\n"), None);
        let list = |len: usize| [&b"get "[..], &vec![b'k'; len - 4]].concat();
        assert_eq!(parsed(&list(2048)), Some(2049));
        assert_eq!(parsed(&list(2049)), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
            for prefix in [&b""[..], b"set k 0 0 ", b"ms k ", b"set k 0 0 3\r\n"] {
                let bytes = [prefix, &bytes].concat();
                if let Parsed::Request { consumed, .. } = parsed(&bytes).0 {
                    prop_assert!(consumed > 0 && consumed <= bytes.len());
                }
            }
        }
    }
}
