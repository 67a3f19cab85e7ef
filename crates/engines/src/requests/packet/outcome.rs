//! Packets of replies.

use loch_fabric::Buf;

use super::failure::{self, Failure};
use super::{CODE, EXTRA, Malformed, as_length, push_length, skip, take, take_length};
use crate::operation::{Outcome, Version};

/// The outcome of an operation, or the reason why it was not done.
pub type Answered<'a> = Result<Outcome<'a>, Failure>;

/// The reply has an expiry.
const EXPIRES: u8 = EXTRA;
/// The value is as long as the last one before.
const SAME_SIZE: u8 = 1 << 6;
/// The byte starts a run.
const RUN: u8 = 1 << 7;
/// Outcomes of a run.
const RUN_MAX: u8 = RUN;

mod status {
    pub const FOUND: u8 = 1;
    pub const FOUND_VERSION: u8 = 2;
    pub const ABSENT: u8 = 3;
    pub const NOT_CONTAINED: u8 = 4;
    pub const CONTAINED: u8 = 5;
    pub const STORED: u8 = 6;
    pub const STORED_VERSION: u8 = 7;
    pub const REFUSED: u8 = 8;
    pub const REFUSED_VERSION: u8 = 9;
    pub const NOT_DELETED: u8 = 10;
    pub const DELETED: u8 = 11;
    pub const SCALAR: u8 = 12;
    pub const UPDATED: u8 = 13;
    pub const VECTOR: u8 = 14;
}

/// The fields of a reply with a status: the bytes of its words, and the fields below. 0: there is
/// no such status.
const KNOWN: u8 = 1 << 5;
/// A value.
const VALUE: u8 = 1 << 6;
/// Possibly an expiry.
const CAN_EXPIRE: u8 = 1 << 7;
const WORDS: u8 = KNOWN - 1;

const PARTS: [u8; CODE as usize + 1] = {
    let mut parts = [0; CODE as usize + 1];
    parts[status::FOUND as usize] = KNOWN | VALUE | CAN_EXPIRE;
    parts[status::FOUND_VERSION as usize] = KNOWN | VALUE | CAN_EXPIRE | 8;
    parts[status::ABSENT as usize] = KNOWN;
    parts[status::NOT_CONTAINED as usize] = KNOWN;
    parts[status::CONTAINED as usize] = KNOWN;
    parts[status::STORED as usize] = KNOWN;
    parts[status::STORED_VERSION as usize] = KNOWN | 8;
    parts[status::REFUSED as usize] = KNOWN;
    parts[status::REFUSED_VERSION as usize] = KNOWN | 8;
    parts[status::NOT_DELETED as usize] = KNOWN;
    parts[status::DELETED as usize] = KNOWN;
    parts[status::SCALAR as usize] = KNOWN | 8;
    parts[status::UPDATED as usize] = KNOWN | 8;
    parts[status::VECTOR as usize] = KNOWN | VALUE;
    let mut status = failure::status::VALUE_TOO_LONG;
    while status <= failure::status::UNREACHABLE {
        parts[status as usize] = KNOWN | failure_words(status);
        status += 1;
    }
    parts
};

/// Bytes of the words of a failure.
const fn failure_words(status: u8) -> u8 {
    use failure::status::*;
    match status {
        VALUE_TOO_LONG | OUT_OF_MEMORY | NOT_A_VECTOR | INDEX_FULL => 16,
        TIMEOUT | NOT_A_COUNTER => 8,
        NO_FUNCTION | FUNCTION_FAILED => 2,
        _ => 0,
    }
}

/// A reply divided into its written parts.
#[derive(Clone, Copy, Debug)]
struct Parts<'a> {
    first: u8,
    /// The words; the status says how many of their bytes count.
    words: [u64; 2],
    expires_at_ms: u64,
    value: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The parts of `reply`.
    #[inline(always)]
    fn of(answered: &Answered<'a>) -> Self {
        let bare = |status| Self { first: status, words: [0; 2], expires_at_ms: 0, value: &[] };
        let one = |status, word| Self { words: [word, 0], ..bare(status) };
        let versioned = |without, with, version: Version| match version.as_u64() {
            0 => bare(without),
            number => one(with, number),
        };
        let outcome = match answered {
            Ok(outcome) => outcome,
            Err(failure) => return Self::failed(*failure),
        };
        match *outcome {
            Outcome::Found { version, expires_at_ms, value } => {
                let found = versioned(status::FOUND, status::FOUND_VERSION, version);
                let flag = if expires_at_ms.is_some() { EXPIRES } else { 0 };
                let (first, expires_at_ms) = (found.first | flag, expires_at_ms.unwrap_or(0));
                Self { first, expires_at_ms, value, ..found }
            }
            Outcome::Absent => bare(status::ABSENT),
            Outcome::Contained(false) => bare(status::NOT_CONTAINED),
            Outcome::Contained(true) => bare(status::CONTAINED),
            Outcome::Stored(version) => versioned(status::STORED, status::STORED_VERSION, version),
            Outcome::Refused(None) => bare(status::REFUSED),
            Outcome::Refused(Some(version)) => one(status::REFUSED_VERSION, version.as_u64()),
            Outcome::Deleted(false) => bare(status::NOT_DELETED),
            Outcome::Deleted(true) => bare(status::DELETED),
            Outcome::Scalar(scalar) => one(status::SCALAR, scalar),
            Outcome::Updated(count) => one(status::UPDATED, count),
            Outcome::Vector(value) => Self { value, ..bare(status::VECTOR) },
        }
    }

    #[cold]
    fn failed(failure: Failure) -> Self {
        let (first, words) = failure.parts();
        Self { first, words, expires_at_ms: 0, value: &[] }
    }

    #[inline]
    fn has(&self, part: u8) -> u8 {
        PARTS[usize::from(self.first & CODE)] & part
    }
}

/// The most bytes of an outcome besides a value.
pub const OUTCOME_BYTES: usize = 24;

/// Packs outcomes into a packet.
///
/// ```
/// use loch_engines::operation::{Outcome, Version};
/// use loch_engines::requests::packet::{Outcomes, OutcomeWriter};
/// let mut packet = OutcomeWriter::default();
/// for value in [b"red ", b"blue", b"grey"] {
///     let version = Version::default();
///     packet.push(&Ok(Outcome::Found { version, expires_at_ms: None, value }));
/// }
/// assert_eq!(packet.bytes(), b"\x01\x04red \x81bluegrey");
/// assert!(Outcomes::new(3).all(packet.bytes()).all(|reply| reply.is_ok()));
/// ```
#[derive(Debug, Default)]
pub struct OutcomeWriter {
    bytes: Vec<u8>,
    /// The first byte of the last reply, without `SAME_SIZE`; 0 if there is no reply.
    first: u8,
    value_len: u32,
    /// The start of the last reply's run, and the number of replies in it.
    run: Option<(usize, u8)>,
}

impl OutcomeWriter {
    /// Adds a reply.
    ///
    /// # Panics
    /// If a value has 4 GiB or more.
    #[inline(always)]
    pub fn push(&mut self, reply: &Answered<'_>) {
        match reply {
            // The usual reply: it continues a run.
            Ok(Outcome::Found { version, expires_at_ms: None, value }) => {
                let first =
                    if version.as_u64() == 0 { status::FOUND } else { status::FOUND_VERSION };
                let is_same = value.len() == self.value_len as usize;
                match &mut self.run {
                    Some((at, count)) if self.first == first && is_same && *count < RUN_MAX => {
                        self.bytes[*at] = RUN | *count;
                        *count += 1;
                        if version.as_u64() != 0 {
                            self.bytes.extend_from_slice(&version.as_u64().to_le_bytes());
                        }
                        self.bytes.extend_from_slice(value);
                    }
                    _ => self.push_parts(&Parts::of(reply)),
                }
            }
            Ok(Outcome::Stored(version)) if version.as_u64() != 0 => match &mut self.run {
                Some((at, count)) if self.first == status::STORED_VERSION && *count < RUN_MAX => {
                    self.bytes[*at] = RUN | *count;
                    *count += 1;
                    self.bytes.extend_from_slice(&version.as_u64().to_le_bytes());
                }
                _ => self.push_parts(&Parts::of(reply)),
            },
            reply => self.push_parts(&Parts::of(reply)),
        }
    }

    #[inline(never)]
    fn push_parts(&mut self, parts: &Parts<'_>) {
        let repeats = self.repeats(parts);
        match &mut self.run {
            Some((at, count)) if repeats && *count < RUN_MAX => {
                self.bytes[*at] = RUN | *count;
                *count += 1;
            }
            run if repeats => {
                *run = Some((self.bytes.len(), 1));
                self.bytes.push(RUN);
            }
            _ => self.push_head(parts),
        }
        let words = usize::from(parts.has(WORDS));
        if words > 0 {
            let bytes = parts.words.map(u64::to_le_bytes);
            self.bytes.extend_from_slice(&bytes.as_flattened()[..words]);
        }
        if parts.first & EXPIRES != 0 {
            self.bytes.extend_from_slice(&parts.expires_at_ms.to_le_bytes());
        }
        self.bytes.extend_from_slice(parts.value);
    }

    /// Begins a reply that differs in its head from the last one.
    fn push_head(&mut self, parts: &Parts<'_>) {
        self.run = None;
        self.first = parts.first;
        let has_value = parts.has(VALUE) != 0;
        let is_same = has_value && parts.value.len() as u64 == u64::from(self.value_len);
        self.bytes.push(parts.first | if is_same { SAME_SIZE } else { 0 });
        if has_value && !is_same {
            self.value_len = as_length(parts.value.len());
            push_length(&mut self.bytes, self.value_len);
        }
    }

    /// Whether a reply has the first byte and length of the last one.
    #[inline]
    fn repeats(&self, parts: &Parts<'_>) -> bool {
        let is_same = parts.value.len() as u64 == u64::from(self.value_len);
        self.first == parts.first && (parts.has(VALUE) == 0 || is_same)
    }

    /// The packet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The packet of one outcome.
    pub fn one(answered: &Answered<'_>) -> Buf {
        let mut packet = Self::default();
        packet.push(answered);
        packet.take()
    }

    /// Takes the packet, and starts another one without memory.
    #[inline]
    pub fn take(&mut self) -> Buf {
        let packet = std::mem::take(&mut self.bytes);
        self.clear();
        Buf::from(packet)
    }

    /// Gives the next packet the memory of a buffer.
    #[inline]
    pub fn reuse(&mut self, buf: Buf) {
        self.bytes = buf.into_vec();
        self.clear();
    }

    /// Starts another packet, in the same memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.first = 0;
        self.value_len = 0;
        self.run = None;
    }
}

/// A position in the reading of a packet of replies. It does not borrow the packet. The caller must
/// pass the same packet every time: another packet is read as if it were hostile.
#[derive(Clone, Copy, Debug)]
pub struct Outcomes {
    at: usize,
    left: usize,
    /// The first byte of the last reply; 0 before the first one.
    first: u8,
    value_len: u32,
    /// Outcomes that are left in the current run.
    run: u8,
}

impl Outcomes {
    /// The position before the first of `count` replies.
    pub fn new(count: usize) -> Self {
        Self { at: 0, left: count, first: 0, value_len: 0, run: 0 }
    }

    /// The replies from here on, one after the other.
    pub fn all<'a>(
        mut self,
        packet: &'a [u8],
    ) -> impl Iterator<Item = Result<Answered<'a>, Malformed>> {
        std::iter::from_fn(move || self.next(packet))
    }

    /// The end of the last reply's value.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The next reply. After a malformed reply all are malformed.
    #[inline(always)]
    pub fn next<'a>(&mut self, packet: &'a [u8]) -> Option<Result<Answered<'a>, Malformed>> {
        self.left = self.left.checked_sub(1)?;
        // The usual outcome: it continues a run of values that have versions.
        if self.run > 0 && self.first == status::FOUND_VERSION {
            let (at, len) = (self.at, 8 + self.value_len as usize);
            let ends_well = match self.left {
                0 => at + len == packet.len() && self.run == 1,
                _ => at + len <= packet.len(),
            };
            if ends_well && let Some((version, value)) = packet[at..at + len].split_first_chunk() {
                (self.at, self.run) = (at + len, self.run - 1);
                let version = Version::from_u64(u64::from_le_bytes(*version));
                return Some(Ok(Ok(Outcome::Found { version, expires_at_ms: None, value })));
            }
        }
        Some(self.next_of_any(packet))
    }

    #[inline(never)]
    fn next_of_any<'a>(&mut self, packet: &'a [u8]) -> Result<Answered<'a>, Malformed> {
        let mut at = self.at;
        match self.decode(packet, &mut at) {
            Some(reply) if self.left > 0 || at == packet.len() && self.run == 0 => {
                self.at = at;
                Ok(reply)
            }
            _ => {
                let malformed = Malformed { at: self.at as u32 };
                self.at = packet.len();
                self.run = 0;
                Err(malformed)
            }
        }
    }

    #[inline]
    fn decode<'a>(&mut self, packet: &'a [u8], at: &mut usize) -> Option<Answered<'a>> {
        if self.run > 0 {
            self.run -= 1;
        } else {
            let [first] = take(packet, at)?;
            if first & RUN != 0 {
                self.run = first & !RUN;
            } else {
                self.head(packet, at, first)?;
            }
        }
        let parts = PARTS[usize::from(self.first & CODE)];
        // A run before the first reply has an invalid status.
        (parts & KNOWN != 0).then_some(())?;
        let words = skip(packet, at, usize::from(parts & WORDS))? as usize;
        let expires_at_ms = match self.first & EXPIRES {
            0 => None,
            _ => Some(u64::from_le_bytes(take(packet, at)?)),
        };
        let value = match parts & VALUE {
            0 => &[][..],
            _ => {
                let len = self.value_len as usize;
                let start = skip(packet, at, len)? as usize;
                &packet[start..start + len]
            }
        };
        self.reply(&packet[words..], expires_at_ms, value)
    }

    /// Reads the rest of the head that starts with `first`.
    #[inline]
    fn head(&mut self, packet: &[u8], at: &mut usize, first: u8) -> Option<()> {
        let parts = PARTS[usize::from(first & CODE)];
        let flags = if parts & VALUE != 0 { SAME_SIZE } else { 0 }
            | if parts & CAN_EXPIRE != 0 { EXPIRES } else { 0 };
        if first & !CODE & !flags != 0 || parts & KNOWN == 0 {
            return None;
        }
        if parts & VALUE != 0 && first & SAME_SIZE == 0 {
            self.value_len = take_length(packet, at)?;
        }
        self.first = first;
        Some(())
    }

    /// The reply of the current status, whose words start `words`.
    #[inline]
    fn reply<'a>(
        &self,
        words: &[u8],
        expires_at_ms: Option<u64>,
        value: &'a [u8],
    ) -> Option<Answered<'a>> {
        let word = |mut at| Some(u64::from_le_bytes(take(words, &mut at)?));
        let version = || word(0).map(Version::from_u64);
        Some(Ok(match self.first & CODE {
            status::FOUND => Outcome::Found { version: Version::default(), expires_at_ms, value },
            status::FOUND_VERSION => Outcome::Found { version: version()?, expires_at_ms, value },
            status::ABSENT => Outcome::Absent,
            status::NOT_CONTAINED => Outcome::Contained(false),
            status::CONTAINED => Outcome::Contained(true),
            status::STORED => Outcome::Stored(Version::default()),
            status::STORED_VERSION => Outcome::Stored(version()?),
            status::REFUSED => Outcome::Refused(None),
            status::REFUSED_VERSION => Outcome::Refused(Some(version()?)),
            status::NOT_DELETED => Outcome::Deleted(false),
            status::DELETED => Outcome::Deleted(true),
            status::SCALAR => Outcome::Scalar(word(0)?),
            status::UPDATED => Outcome::Updated(word(0)?),
            status::VECTOR => Outcome::Vector(value),
            status => return Self::failure(status, words),
        }))
    }

    #[cold]
    fn failure<'a>(status: u8, words: &[u8]) -> Option<Answered<'a>> {
        let mut bytes = [0; 16];
        let len = usize::from(PARTS[usize::from(status)] & WORDS);
        bytes[..len].copy_from_slice(words.get(..len)?);
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("two words"));
        Failure::of_parts(status, [word(0), word(8)]).map(Err)
    }
}
