//! Packets of replies.

use super::{CODE, EXTRA, Malformed, as_length, length_len, push_length, skip, take, take_length};
use crate::kv_direct::operation::{Failure, Reply};

/// The reply has an expiry.
const EXPIRES: u8 = EXTRA;
/// The value is as long as the last one before.
const SAME_SIZE: u8 = 1 << 6;
/// The byte starts a run.
const RUN: u8 = 1 << 7;
/// Replies of a run.
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
    pub const TOO_LONG: u8 = 16;
    pub const OUT_OF_MEMORY: u8 = 17;
    pub const NOT_A_VECTOR: u8 = 18;
    pub const NO_FUNCTION: u8 = 19;
    pub const TRAPPED: u8 = 20;
    pub const UNFIT: u8 = 21;
    pub const UNSUPPORTED: u8 = 22;
    pub const MALFORMED: u8 = 23;
    pub const DAMAGED: u8 = 24;
    pub const NO_ROOM: u8 = 25;
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
    parts[status::TOO_LONG as usize] = KNOWN | 16;
    parts[status::OUT_OF_MEMORY as usize] = KNOWN | 16;
    parts[status::NOT_A_VECTOR as usize] = KNOWN | 16;
    parts[status::NO_FUNCTION as usize] = KNOWN | 2;
    parts[status::TRAPPED as usize] = KNOWN | 2;
    parts[status::UNFIT as usize] = KNOWN;
    parts[status::UNSUPPORTED as usize] = KNOWN;
    parts[status::MALFORMED as usize] = KNOWN;
    parts[status::DAMAGED as usize] = KNOWN;
    parts[status::NO_ROOM as usize] = KNOWN;
    parts
};

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
    fn of(reply: &Reply<'a>) -> Self {
        let bare = |status| Self { first: status, words: [0; 2], expires_at_ms: 0, value: &[] };
        let one = |status, word| Self { words: [word, 0], ..bare(status) };
        let versioned = |without, with, version: u64| match version {
            0 => bare(without),
            _ => one(with, version),
        };
        match *reply {
            Reply::Found { version, expires_at_ms, value } => {
                let found = versioned(status::FOUND, status::FOUND_VERSION, version);
                let flag = if expires_at_ms.is_some() { EXPIRES } else { 0 };
                let (first, expires_at_ms) = (found.first | flag, expires_at_ms.unwrap_or(0));
                Self { first, expires_at_ms, value, ..found }
            }
            Reply::Absent => bare(status::ABSENT),
            Reply::Contained(false) => bare(status::NOT_CONTAINED),
            Reply::Contained(true) => bare(status::CONTAINED),
            Reply::Stored(version) => versioned(status::STORED, status::STORED_VERSION, version),
            Reply::Refused(None) => bare(status::REFUSED),
            Reply::Refused(Some(version)) => one(status::REFUSED_VERSION, version),
            Reply::Deleted(false) => bare(status::NOT_DELETED),
            Reply::Deleted(true) => bare(status::DELETED),
            Reply::Scalar(scalar) => one(status::SCALAR, scalar),
            Reply::Updated(count) => one(status::UPDATED, count),
            Reply::Vector(value) => Self { value, ..bare(status::VECTOR) },
            Reply::Failed(failure) => Self::failed(failure),
        }
    }

    fn failed(failure: Failure) -> Self {
        let (first, words) = match failure {
            Failure::TooLong { len, max } => (status::TOO_LONG, [len, max]),
            Failure::OutOfMemory { bytes, capacity } => (status::OUT_OF_MEMORY, [bytes, capacity]),
            Failure::NotAVector { len, wanted } => (status::NOT_A_VECTOR, [len, wanted]),
            Failure::NoFunction(number) => (status::NO_FUNCTION, [u64::from(number), 0]),
            Failure::Trapped(number) => (status::TRAPPED, [u64::from(number), 0]),
            Failure::Unfit => (status::UNFIT, [0; 2]),
            Failure::Unsupported => (status::UNSUPPORTED, [0; 2]),
            Failure::Malformed => (status::MALFORMED, [0; 2]),
            Failure::Damaged => (status::DAMAGED, [0; 2]),
            Failure::NoRoom => (status::NO_ROOM, [0; 2]),
        };
        Self { first, words, expires_at_ms: 0, value: &[] }
    }

    #[inline]
    fn has(&self, part: u8) -> u8 {
        PARTS[usize::from(self.first & CODE)] & part
    }

    /// Bytes besides the first one and the length.
    #[inline]
    fn body_len(&self) -> usize {
        let expiry = if self.first & EXPIRES != 0 { 8 } else { 0 };
        usize::from(self.has(WORDS)) + expiry + self.value.len()
    }
}

/// Packs replies into a packet.
///
/// ```
/// use loch_engines::kv_direct::operation::Reply;
/// use loch_engines::kv_direct::packet::{Replies, ReplyWriter};
/// let mut packet = ReplyWriter::default();
/// for value in [b"red ", b"blue", b"grey"] {
///     packet.push(&Reply::Found { version: 0, expires_at_ms: None, value });
/// }
/// assert_eq!(packet.bytes(), b"\x01\x04red \x81bluegrey");
/// assert!(Replies::new(3).all(packet.bytes()).all(|reply| reply.is_ok()));
/// ```
#[derive(Debug, Default)]
pub struct ReplyWriter {
    bytes: Vec<u8>,
    /// The first byte of the last reply, without `SAME_SIZE`; 0 if there is no reply.
    first: u8,
    value_len: u32,
    /// The start of the last reply's run, and the number of replies in it.
    run: Option<(usize, u8)>,
}

impl ReplyWriter {
    /// Adds a reply.
    ///
    /// # Panics
    /// If a value has 4 GiB or more.
    #[inline(always)]
    pub fn push(&mut self, reply: &Reply<'_>) {
        match reply {
            // The usual reply: it continues a run.
            Reply::Found { version, expires_at_ms: None, value } => {
                let first = if *version == 0 { status::FOUND } else { status::FOUND_VERSION };
                let is_same = value.len() == self.value_len as usize;
                match &mut self.run {
                    Some((at, count)) if self.first == first && is_same && *count < RUN_MAX => {
                        self.bytes[*at] = RUN | *count;
                        *count += 1;
                        if *version != 0 {
                            self.bytes.extend_from_slice(&version.to_le_bytes());
                        }
                        self.bytes.extend_from_slice(value);
                    }
                    _ => self.push_parts(&Parts::of(reply)),
                }
            }
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

    /// The bytes that the packet would have with this reply.
    pub fn len_with(&self, reply: &Reply<'_>) -> usize {
        let parts = Parts::of(reply);
        self.bytes.len() + self.head_len(&parts) + parts.body_len()
    }

    /// Bytes besides the body of a reply.
    #[inline]
    fn head_len(&self, parts: &Parts<'_>) -> usize {
        let is_same = parts.value.len() as u64 == u64::from(self.value_len);
        match self.run {
            Some((_, count)) if count < RUN_MAX && self.repeats(parts) => 0,
            _ if self.repeats(parts) || parts.has(VALUE) == 0 || is_same => 1,
            _ => 1 + length_len(as_length(parts.value.len())),
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
pub struct Replies {
    at: usize,
    left: usize,
    /// The first byte of the last reply; 0 before the first one.
    first: u8,
    value_len: u32,
    /// Replies that are left in the current run.
    run: u8,
}

impl Replies {
    /// The position before the first of `count` replies.
    pub fn new(count: usize) -> Self {
        Self { at: 0, left: count, first: 0, value_len: 0, run: 0 }
    }

    /// The replies from here on, one after the other.
    pub fn all<'a>(
        mut self,
        packet: &'a [u8],
    ) -> impl Iterator<Item = Result<Reply<'a>, Malformed>> {
        std::iter::from_fn(move || self.next(packet))
    }

    /// The end of the last reply's value.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The next reply. After a malformed reply all are malformed.
    #[inline]
    pub fn next<'a>(&mut self, packet: &'a [u8]) -> Option<Result<Reply<'a>, Malformed>> {
        self.left = self.left.checked_sub(1)?;
        let mut at = self.at;
        match self.decode(packet, &mut at) {
            Some(reply) if self.left > 0 || at == packet.len() && self.run == 0 => {
                self.at = at;
                Some(Ok(reply))
            }
            _ => {
                let malformed = Malformed { at: self.at as u32 };
                self.at = packet.len();
                self.run = 0;
                Some(Err(malformed))
            }
        }
    }

    #[inline]
    fn decode<'a>(&mut self, packet: &'a [u8], at: &mut usize) -> Option<Reply<'a>> {
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
    ) -> Option<Reply<'a>> {
        let word = |mut at| Some(u64::from_le_bytes(take(words, &mut at)?));
        let number = || Some(u16::from_le_bytes(take(words, &mut 0)?));
        Some(match self.first & CODE {
            status::FOUND => Reply::Found { version: 0, expires_at_ms, value },
            status::FOUND_VERSION => Reply::Found { version: word(0)?, expires_at_ms, value },
            status::ABSENT => Reply::Absent,
            status::NOT_CONTAINED => Reply::Contained(false),
            status::CONTAINED => Reply::Contained(true),
            status::STORED => Reply::Stored(0),
            status::STORED_VERSION => Reply::Stored(word(0)?),
            status::REFUSED => Reply::Refused(None),
            status::REFUSED_VERSION => Reply::Refused(Some(word(0)?)),
            status::NOT_DELETED => Reply::Deleted(false),
            status::DELETED => Reply::Deleted(true),
            status::SCALAR => Reply::Scalar(word(0)?),
            status::UPDATED => Reply::Updated(word(0)?),
            status::VECTOR => Reply::Vector(value),
            status => Reply::Failed(match status {
                status::TOO_LONG => Failure::TooLong { len: word(0)?, max: word(8)? },
                status::OUT_OF_MEMORY => {
                    Failure::OutOfMemory { bytes: word(0)?, capacity: word(8)? }
                }
                status::NOT_A_VECTOR => Failure::NotAVector { len: word(0)?, wanted: word(8)? },
                status::NO_FUNCTION => Failure::NoFunction(number()?),
                status::TRAPPED => Failure::Trapped(number()?),
                status::UNFIT => Failure::Unfit,
                status::UNSUPPORTED => Failure::Unsupported,
                status::MALFORMED => Failure::Malformed,
                status::DAMAGED => Failure::Damaged,
                status::NO_ROOM => Failure::NoRoom,
                _ => return None,
            }),
        })
    }
}
