//! The interface of a socket peer's wire format to the pipeline.

use crate::tally::Usage;

/// Status lines are short: a line without an end after this many bytes is garbage.
const LINE_BYTES_MAX: usize = 4096;

/// A peer's wire format.
pub trait Protocol {
    /// Appends a request for the value of `key`.
    fn get(&self, key: &[u8], out: &mut Vec<u8>);

    /// Appends the part of a request before the value that it stores, which has `len` bytes.
    fn put_head(&self, key: &[u8], len: usize, out: &mut Vec<u8>);

    /// The part of a request behind the value.
    fn put_tail(&self) -> &'static [u8] {
        b"\r\n"
    }

    /// A request for the server's statistics, which are text.
    const STATISTICS: &'static [u8];

    /// Parses the statistics at the front of `bytes`: a `Reply::Value`.
    fn parse_statistics<'a>(&self, bytes: &'a [u8]) -> Parsed<'a>;

    /// What the statistics say of a server that evicts; `None` if they do not say it.
    fn usage(statistics: &str) -> Option<Usage>;

    /// Parses the reply at the front of `bytes`.
    fn parse<'a>(&self, bytes: &'a [u8]) -> Parsed<'a>;
}

/// The front of the bytes received.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not a whole reply; at least this many bytes are needed in all.
    Partial(usize),
    /// A reply of this many bytes.
    Whole(usize, Reply<'a>),
    /// Not a reply of this protocol.
    Garbage,
}

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The value asked for.
    Value(&'a [u8]),
    /// No such key.
    Missing,
    /// Stored.
    Stored,
    /// Refused, in the server's words.
    Refused(&'a [u8]),
}

/// The number that follows `name` at the beginning of a line of statistics.
pub fn statistic(statistics: &str, name: &str) -> Option<u64> {
    let rest = statistics.lines().find_map(|line| line.strip_prefix(name))?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// A decimal number; `None` for anything else, or if it does not fit.
pub fn decimal(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0usize, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + usize::from(digit - b'0'))
    })
}

/// The line at the front of `bytes`, without its CRLF; else the result of the parse.
#[inline]
pub fn line(bytes: &[u8]) -> Result<&[u8], Parsed<'static>> {
    match bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') {
        Some(end) => bytes[..end].strip_suffix(b"\r").ok_or(Parsed::Garbage),
        None if bytes.len() >= LINE_BYTES_MAX => Err(Parsed::Garbage),
        None => Err(Parsed::Partial(bytes.len() + 1)),
    }
}

/// The reply whose status line is followed by `len` bytes of value and CRLF,
/// `head` bytes being the status line with its CRLF.
#[inline]
pub fn value(bytes: &[u8], head: usize, len: usize) -> Parsed<'_> {
    let whole = head + len + 2;
    if bytes.len() < whole {
        return Parsed::Partial(whole);
    }
    if &bytes[whole - 2..whole] != b"\r\n" {
        return Parsed::Garbage;
    }
    Parsed::Whole(whole, Reply::Value(&bytes[head..head + len]))
}

/// Checks for every protocol's tests.
#[cfg(test)]
pub mod tests {
    use super::*;

    /// A reply that is cut anywhere is `Partial`, and needs no more bytes than the whole one; a
    /// whole reply is the same whatever follows it.
    pub fn holds_when_split(protocol: &impl Protocol, whole: &[u8], expected: Reply<'_>) {
        for cut in 0..whole.len() {
            match protocol.parse(&whole[..cut]) {
                Parsed::Partial(needed) => {
                    assert!(cut < needed && needed <= whole.len(), "cut at {cut}: {needed}");
                }
                parsed => panic!("cut at {cut}: {parsed:?}"),
            }
        }
        for next in [&b""[..], b"\r", b"VA 3\r\n", b"$5\r\nab"] {
            let bytes = [whole, next].concat();
            match protocol.parse(&bytes) {
                Parsed::Whole(len, reply) => assert_eq!((len, &reply), (whole.len(), &expected)),
                parsed => panic!("followed by {next:?}: {parsed:?}"),
            }
        }
    }

    #[test]
    fn numbers_are_decimal_and_bounded() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"268435456"), Some(1 << 28));
        for bad in [&b""[..], b"-1", b"1 ", b"9999999999999999999"] {
            assert_eq!(decimal(bad), None);
        }
    }

    #[test]
    fn statistics_are_found_by_the_beginnings_of_lines() {
        let text = "a_b:1\r\nb:23\r\ndb0:keys=4,expires=0\r\nempty:\r\n";
        let found = ["b:", "db0:keys=", "a:", "empty:"].map(|name| statistic(text, name));
        assert_eq!(found, [Some(23), Some(4), None, None]);
    }

    #[test]
    fn a_line_that_does_not_end_is_none() {
        assert_eq!(line(&[b'x'; LINE_BYTES_MAX]), Err(Parsed::Garbage));
        assert_eq!(line(b"OK\n"), Err(Parsed::Garbage));
        assert_eq!(line(b"OK"), Err(Parsed::Partial(3)));
        assert_eq!(line(b"OK\r\nmore"), Ok(&b"OK"[..]));
    }
}
