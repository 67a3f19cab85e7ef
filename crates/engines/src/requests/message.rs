//! The bytes of a request and of a reply.
//!
//! A request carries a [packet](super::packet) of operations, a reply the packet of their outcomes.
//! A message ends with a trailer. If the message stands at the end of its slot, its last words are
//! always in the same place, however long it is (herd §4.2). Its length is a multiple of eight
//! bytes.
//!
//! | request | field |
//! | --- | --- |
//! | ... | the packet, zeros up to a multiple of 8 |
//! | -40 from its end | kind (1), zeros (3), client (4) |
//! | -32 | session incarnation (6), reply slot (2) |
//! | -24 | worker incarnation (4), bytes of the packet (4) |
//! | -16 | attempt (1), number (7) |
//! | -8 | the seal of all bytes before ([`seal`](super::seal)) |
//!
//! | reply | field |
//! | --- | --- |
//! | ... | the packet of outcomes, zeros up to a multiple of 8 |
//! | -32 from its end | 1 if the request was for another incarnation (1), zero (1), worker (2), worker incarnation (4) |
//! | -24 | low quarter of the session incarnation (2), reply slot (2), bytes of the packet (4) |
//! | -16 | zero (1), number (7) |
//! | -8 | the seal of all bytes before |
//!
//! # Invariants
//! 1. A message counts only if its seal holds: a WRITE has no inner order, and its words land one
//!    by one. The number is part of the message, so words of an older message in the same slot
//!    never combine with those of a newer one into a message.
//! 2. Decoding neither panics nor reads beyond the bytes, whatever they are.

use loch_fabric::Buf;
use zerocopy::TryFromBytes;

use super::packet::{Cursor, OPERATION_BYTES, OUTCOME_BYTES, One, Writer};
use super::seal::Seal;
use crate::operation::Operation;

/// Bytes of a request's trailer.
pub const REQUEST_TRAILER_BYTES: usize = 40;
/// The most bytes that a request of one operation has besides key and value.
pub const REQUEST_OVERHEAD_BYTES: usize = REQUEST_TRAILER_BYTES + OPERATION_BYTES;
/// Bytes of a reply's trailer.
pub const REPLY_TRAILER_BYTES: usize = 32;
/// The most bytes that a reply of one outcome has besides a value.
pub const REPLY_OVERHEAD_BYTES: usize = REPLY_TRAILER_BYTES + OUTCOME_BYTES;
/// The word with number and attempt, from the end of a message.
pub const POLL_WORD_FROM_END: usize = 16;
/// The word of a reply that tells the bytes of its packet, from the end of the message.
pub(super) const REPLY_LENGTH_FROM_END: usize = 24;
/// Bits of a request's number: enough for two hundred years of a session that makes ten million
/// requests a second.
pub const NUMBER_BITS: u32 = 56;
/// Bits of a session's incarnation in a message.
pub const SESSION_BITS: u32 = 48;

/// The part of a session's incarnation by which messages name it. The word that counts incarnations
/// is in memory that clients can write, so it may have any value.
#[inline]
pub fn session_number(incarnation: u64) -> u64 {
    incarnation & ((1 << SESSION_BITS) - 1)
}

const WORDS: usize = REQUEST_TRAILER_BYTES / 8;
const REPLY_WORDS: usize = REPLY_TRAILER_BYTES / 8;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
enum Kind {
    Hello = 1,
    /// At least one operation changes something.
    Packet,
    /// No operation changes anything.
    ReadPacket,
}

/// Everything of a request but its packet. A worker keeps it while it serves the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The client that asks.
    pub client: u32,
    /// The incarnation of the client's session.
    pub session: u64,
    /// The incarnation that the client believes the worker to have.
    pub worker: u32,
    /// Counts the client's requests at this worker, from 1.
    pub number: u64,
    /// Counts how often this request was sent, from 0, wrapping.
    pub attempt: u8,
    /// The client's reply slot that waits for the reply.
    pub reply: u16,
    kind: Kind,
    len: u32,
}

/// The content of a request.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// A greeting, which introduces its client.
    Hello,
    /// A packet of one operation.
    One(One<'a>),
    /// A packet.
    Packet {
        /// The packet.
        bytes: &'a [u8],
        /// Whether no operation of the packet changes anything.
        is_read: bool,
    },
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The operation.
    pub operation: Operation<'a>,
}

impl<'a> Body<'a> {
    /// A packet of one operation.
    ///
    /// # Panics
    /// If the key has 0 or more than [`KEY_BYTES_MAX`](crate::limits::KEY_BYTES_MAX) bytes.
    #[inline]
    pub fn one(key: &'a [u8], operation: Operation<'a>) -> Self {
        Self::One(One::new(key, operation))
    }

    /// The packet that was packed.
    #[inline]
    pub(super) fn packed(packet: &'a Writer) -> Self {
        Self::Packet { bytes: packet.bytes(), is_read: packet.is_read() }
    }

    /// Bytes of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Hello => 0,
            Self::One(one) => one.len(),
            Self::Packet { bytes, .. } => bytes.len(),
        }
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn kind(&self) -> Kind {
        let is_read = match self {
            Self::Hello => return Kind::Hello,
            Self::One(one) => one.is_read(),
            Self::Packet { is_read, .. } => *is_read,
        };
        if is_read { Kind::ReadPacket } else { Kind::Packet }
    }
}

impl Ticket {
    /// The ticket of a request of this client.
    ///
    /// # Panics
    /// If a number has too many bits, or the packet has 4 GiB.
    #[inline]
    pub fn new(client: u32, session: u64, body: &Body<'_>) -> Self {
        assert!(session >> SESSION_BITS == 0, "a session incarnation has {SESSION_BITS} bits");
        let len = u32::try_from(body.len()).expect("values are checked on entry");
        let kind = body.kind();
        Self { client, session, worker: 0, number: 0, attempt: 0, reply: 0, kind, len }
    }

    /// Whether the request is a greeting, which only introduces its client.
    #[inline]
    pub fn is_hello(&self) -> bool {
        self.kind == Kind::Hello
    }

    /// Whether the request changes nothing, so that it may be executed again.
    #[inline]
    pub fn is_read(&self) -> bool {
        self.kind != Kind::Packet
    }

    /// Bytes of the message.
    #[inline]
    pub fn message_len(&self) -> usize {
        Self::told_len(u64::from(self.len) << 32)
    }

    /// The bytes of a message, from the word of its trailer that tells the length. If that word is
    /// not a request's, the message cannot be read.
    #[inline(always)]
    pub(super) fn told_len(word: u64) -> usize {
        ((word >> 32) as usize).next_multiple_of(8) + REQUEST_TRAILER_BYTES
    }

    /// The word for which the receiver polls.
    #[inline]
    pub(super) fn poll_word(&self) -> u64 {
        self.number << 8 | u64::from(self.attempt)
    }

    #[inline]
    fn words(&self) -> [u64; WORDS - 1] {
        [
            u64::from(self.kind as u8) | u64::from(self.client) << 32,
            self.session | u64::from(self.reply) << SESSION_BITS,
            u64::from(self.worker) | u64::from(self.len) << 32,
            self.poll_word(),
        ]
    }

    /// Reads all words of a trailer but the checksum; `None` if they cannot belong to a request.
    #[inline]
    pub(super) fn parse(words: [u64; WORDS - 1]) -> Option<Self> {
        let kind = Kind::try_read_from_bytes(&[words[0] as u8]).ok()?;
        let ticket = Self {
            client: (words[0] >> 32) as u32,
            session: session_number(words[1]),
            worker: words[2] as u32,
            number: words[3] >> 8,
            attempt: words[3] as u8,
            reply: (words[1] >> SESSION_BITS) as u16,
            kind,
            len: (words[2] >> 32) as u32,
        };
        let has_zeros = words[0] as u32 >> 8 == 0;
        let has_packet = (ticket.len > 0) != ticket.is_hello();
        (has_zeros && has_packet && ticket.number != 0 && ticket.session != 0).then_some(ticket)
    }

    /// Reads a whole message; `None` unless it is a complete request with the right seal.
    #[inline]
    pub fn read(message: &[u8], seal: Seal) -> Option<Self> {
        Self::claimed(message).filter(|_| seal.holds(message))
    }

    /// The request that a message claims to be, whatever its seal.
    #[inline(always)]
    pub(super) fn claimed(message: &[u8]) -> Option<Self> {
        let ticket = Self::parse(last_words(message)?)?;
        (ticket.message_len() == message.len()).then_some(ticket)
    }

    /// The packet in the message that the ticket was read from.
    ///
    /// # Panics
    /// If `message` is shorter than the ticket's.
    #[inline(always)]
    pub fn packet<'a>(&self, message: &'a [u8]) -> &'a [u8] {
        &message[..self.len as usize]
    }

    /// The first operation in the message that the ticket was read from, if it can be read.
    ///
    /// # Panics
    /// If `message` is shorter than the ticket's.
    pub fn request<'a>(&self, message: &'a [u8]) -> Option<Request<'a>> {
        let packet = self.packet(message);
        let packed = Cursor::new(packet).ok()?.next(packet)?.ok()?;
        Some(Request { key: packed.key(packet), operation: packed.operation(packet) })
    }

    /// Appends the message to `buf`, which must be empty.
    #[inline]
    pub fn write(&self, body: &Body<'_>, seal: Seal, buf: &mut Buf) {
        assert!(buf.is_empty(), "a message is on its own");
        match body {
            Body::Hello => (),
            Body::One(one) => one.parts().into_iter().for_each(|part| buf.extend_from_slice(part)),
            Body::Packet { bytes, .. } => buf.extend_from_slice(bytes),
        }
        self.finish(seal, buf);
    }

    /// Appends the rest of the message to `buf`, which holds the packet and nothing else.
    #[inline]
    pub(super) fn finish(&self, seal: Seal, buf: &mut Buf) {
        finish(buf, self.len as usize, self.words(), seal);
    }
}

/// Everything of a reply but its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// The worker of the cluster that replies: [`Area::source`](super::layout::Area::source).
    pub source: u16,
    /// The worker's incarnation.
    pub worker: u32,
    /// Whether the worker did not look at the request, because the request was for another
    /// incarnation.
    pub is_stale: bool,
    /// The low quarter of the incarnation of the session that sent the request.
    pub session: u16,
    /// The reply slot that waits for the reply.
    pub reply: u16,
    /// The number of the request.
    pub number: u64,
    len: u32,
}

impl ReplyHead {
    /// The head of a reply to a request, with a packet of `len` bytes; none says that the request
    /// was for another incarnation.
    #[inline]
    pub fn new(ticket: &Ticket, source: u16, worker: u32, len: usize) -> Self {
        let len = u32::try_from(len).expect("values are checked on entry");
        let (session, reply) = (ticket.session as u16, ticket.reply);
        let is_stale = len == 0;
        Self { source, worker, is_stale, session, reply, number: ticket.number, len }
    }

    /// Bytes of the message.
    #[inline]
    pub fn message_len(&self) -> usize {
        Self::told_len(u64::from(self.len) << 32)
    }

    /// The bytes of a message, from the word of its trailer that tells the length. If that word is
    /// not a reply's, the message cannot be read.
    #[inline]
    pub(super) fn told_len(word: u64) -> usize {
        ((word >> 32) as usize).next_multiple_of(8) + REPLY_TRAILER_BYTES
    }

    /// Bytes of the packet, which comes first in the message.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(super) fn parse(words: [u64; REPLY_WORDS - 1]) -> Option<Self> {
        let [stale, zero, a, b, c, d, e, f] = words[0].to_le_bytes();
        let head = Self {
            source: u16::from_le_bytes([a, b]),
            worker: u32::from_le_bytes([c, d, e, f]),
            is_stale: stale == 1,
            session: words[1] as u16,
            reply: (words[1] >> 16) as u16,
            number: words[2] >> 8,
            len: (words[1] >> 32) as u32,
        };
        let fits = stale <= 1 && head.is_stale == (head.len == 0);
        (zero == 0 && fits && head.number != 0).then_some(head)
    }

    /// Reads a whole message; `None` unless it is a complete reply with the right seal.
    #[inline]
    pub fn read(message: &[u8], seal: Seal) -> Option<Self> {
        let head = Self::parse(last_words(message)?)?;
        (head.message_len() == message.len() && seal.holds(message)).then_some(head)
    }

    /// Appends the rest of the message to `buf`, which holds the packet and nothing else.
    #[inline]
    pub fn finish(&self, seal: Seal, buf: &mut Buf) {
        let [a, b] = self.source.to_le_bytes();
        let [c, d, e, f] = self.worker.to_le_bytes();
        let words = [
            u64::from_le_bytes([u8::from(self.is_stale), 0, a, b, c, d, e, f]),
            u64::from(self.session) | u64::from(self.reply) << 16 | u64::from(self.len) << 32,
            self.number << 8,
        ];
        finish(buf, self.len as usize, words, seal);
    }
}

/// The reply that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The number of the request.
    pub number: u64,
    /// The reply slot.
    pub reply: u16,
    /// The worker of the cluster that was asked.
    pub source: u16,
    /// The low quarter of the incarnation of the client's session.
    pub session: u16,
}

impl Expected {
    /// Whether this is the head of that reply.
    #[inline]
    pub fn is(&self, head: &ReplyHead) -> bool {
        let Self { number, reply, source, session } = *self;
        (head.number, head.reply, head.source, head.session) == (number, reply, source, session)
    }

    /// The word that shows that the reply has come.
    #[inline]
    pub(super) fn poll_word(&self) -> u64 {
        self.number << 8
    }
}

/// Appends zeros, a trailer and the seal to a packet of `len` bytes.
#[inline]
fn finish<const N: usize>(buf: &mut Buf, len: usize, words: [u64; N], seal: Seal) {
    assert!(buf.len() == len, "a message is on its own");
    buf.extend_from_slice(&[0; 8][..len.next_multiple_of(8) - len]);
    buf.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
    let word = seal.word(buf);
    buf.extend_from_slice(&word);
}

/// The `N` words before the last one; `None` if there are fewer.
#[inline(always)]
fn last_words<const N: usize>(message: &[u8]) -> Option<[u64; N]> {
    let end = message.len().checked_sub(8)?;
    let start = end.checked_sub(N * 8)?;
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(message[start..end].chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::operation::{Expect, PutOptions, Version};

    const SEAL: Seal = Seal::CHECKSUM;

    fn operations(value: &[u8], operand: u64, expiry: Option<u64>) -> [Operation<'_>; 11] {
        let options = PutOptions { expires_at_ms: expiry };
        [
            Operation::Get,
            Operation::Contains,
            Operation::Put { value, options },
            Operation::PutIf { value, expect: Expect::Absent, options },
            Operation::PutIf {
                value,
                expect: Expect::Version(Version::from_u64(operand)),
                options,
            },
            Operation::Delete { of: None },
            Operation::Delete { of: Some(Version::from_u64(operand)) },
            Operation::FetchAdd(operand),
            Operation::Append(value),
            Operation::Touch { of: None, options },
            Operation::Touch { of: Some(Version::from_u64(operand)), options },
        ]
    }

    fn get() -> Ticket {
        Ticket { number: 3, ..Ticket::new(9, 7, &Body::one(b"k", Operation::Get)) }
    }

    /// The message with one bit flipped.
    fn flipped(message: &[u8], flip: u16) -> Vec<u8> {
        let mut bad = message.to_vec();
        let bit = usize::from(flip) % (bad.len() * 8);
        bad[bit / 8] ^= 1 << (bit % 8);
        bad
    }

    proptest! {
        #[test]
        fn requests_survive_the_trip_and_every_flipped_bit_is_noticed(
            key in prop::collection::vec(any::<u8>(), 1..40),
            value in prop::collection::vec(any::<u8>(), 0..60),
            (operand, expiry, flip) in any::<(u64, Option<u64>, u16)>(),
            (number, attempt, reply) in (1u64..1 << NUMBER_BITS, any::<u8>(), any::<u16>()),
        ) {
            for operation in operations(&value, operand, expiry) {
                let body = Body::one(&key, operation);
                let new = Ticket::new(9, 7, &body);
                let ticket = Ticket { worker: 5, number, attempt, reply, ..new };
                let mut message = Buf::new();
                ticket.write(&body, SEAL, &mut message);
                prop_assert_eq!(message.len(), ticket.message_len());
                prop_assert!(message.len() <= key.len() + value.len() + REQUEST_OVERHEAD_BYTES + 7);
                prop_assert_eq!(Ticket::read(&message, SEAL), Some(ticket));
                prop_assert_eq!(ticket.is_read(), operation.is_read());
                let request = Request { key: &key, operation };
                prop_assert_eq!(ticket.request(&message), Some(request));
                let [_, _, lens, _] = last_words(&message).unwrap();
                prop_assert_eq!(Ticket::told_len(lens), message.len());
                prop_assert_eq!(Ticket::read(&flipped(&message, flip), SEAL), None);
            }
        }

        #[test]
        fn replies_survive_the_trip_and_every_flipped_bit_is_noticed(
            packet in prop::collection::vec(any::<u8>(), 0..60), flip: u16,
        ) {
            let head = ReplyHead::new(&get(), 2, 5, packet.len());
            let mut message = Buf::from(packet.clone());
            head.finish(SEAL, &mut message);
            prop_assert_eq!(ReplyHead::read(&message, SEAL), Some(head));
            prop_assert_eq!(&message[..head.packet_len()], &packet[..]);
            prop_assert_eq!(head.is_stale, packet.is_empty());
            prop_assert_eq!(ReplyHead::read(&flipped(&message, flip), SEAL), None);
        }

        #[test]
        fn hostile_bytes_with_the_right_seal_do_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120),
            (kind, len) in (0u8..5, 0u32..64),
        ) {
            // Bytes that are no message are dropped at once: these look like a request.
            if let Some(at) = bytes.len().checked_sub(REQUEST_TRAILER_BYTES) {
                bytes[at..at + 4].copy_from_slice(&[kind, 0, 0, 0]);
                bytes[at + 20..at + 24].copy_from_slice(&len.to_le_bytes());
                let end = bytes.len() - 8;
                let word = SEAL.word(&bytes[..end]);
                bytes[end..].copy_from_slice(&word);
            }
            if let Some(ticket) = Ticket::read(&bytes, SEAL) {
                prop_assert_eq!(ticket.packet(&bytes).is_empty(), ticket.is_hello());
                let _ = ticket.request(&bytes);
            }
            if let Some(head) = ReplyHead::read(&bytes, SEAL) {
                prop_assert!(head.packet_len() <= bytes.len());
            }
        }
    }

    /// One wrong field is enough, whatever the other fields say.
    #[test]
    fn words_that_no_client_writes_are_no_request() {
        for body in [Body::one(b"key", Operation::Get), Body::Hello] {
            let ticket = Ticket { number: 1, ..Ticket::new(9, 7, &body) };
            let words = ticket.words();
            assert_eq!(Ticket::parse(words), Some(ticket));
            let with = |word: usize, clear: u64, set: u64| {
                let mut words = words;
                words[word] = words[word] & !clear | set;
                Ticket::parse(words)
            };
            for kind in [0, Kind::ReadPacket as u8 + 1, u8::MAX] {
                assert_eq!(with(0, 0xff, u64::from(kind)), None, "kind {kind}");
            }
            assert_eq!(with(0, 0, 1 << 8), None, "zeros");
            assert_eq!(with(0, 0, 1 << 31), None, "zeros");
            assert_eq!(with(1, (1 << SESSION_BITS) - 1, 0), None, "session 0");
            assert_eq!(with(3, !0xff, 0), None, "number 0");
            assert_eq!(with(2, !0 << 32, 0).is_some(), ticket.is_hello(), "no packet");
            assert_eq!(with(2, 0, 1 << 32).is_some(), !ticket.is_hello(), "a packet");
        }
    }

    /// A reply's head with one field that no worker writes.
    #[test]
    fn words_that_no_worker_writes_are_no_reply() {
        for packet in [&b"outcome"[..], b""] {
            let head = ReplyHead::new(&get(), 2, 5, packet.len());
            let mut message = Buf::from(packet.to_vec());
            head.finish(SEAL, &mut message);
            let words = last_words(&message).unwrap();
            assert_eq!(ReplyHead::parse(words), Some(head));
            let with = |word: usize, clear: u64, set: u64| {
                let mut words = words;
                words[word] = words[word] & !clear | set;
                ReplyHead::parse(words)
            };
            assert_eq!(with(0, 0, 0x0100), None, "zero");
            assert_eq!(with(0, 0xff, 2), None, "neither stale nor not");
            assert_eq!(with(0, 0xff, u64::from(!head.is_stale)), None, "stale, with outcomes");
            assert_eq!(with(2, !0xff, 0), None, "number 0");
        }
    }

    #[test]
    fn a_greeting_is_a_message_without_a_packet() {
        let ticket = Ticket { number: 1, ..Ticket::new(9, 7, &Body::Hello) };
        let mut message = Buf::new();
        ticket.write(&Body::Hello, SEAL, &mut message);
        assert_eq!(message.len(), REQUEST_TRAILER_BYTES);
        assert_eq!(Ticket::read(&message, SEAL), Some(ticket));
        assert!(ticket.is_hello() && ticket.request(&message).is_none());
    }

    /// HERD's request of a key of 16 bytes fits a cache line, and so does its GET here.
    #[test]
    fn a_request_of_one_small_operation_takes_as_few_lines_as_its_key_and_value() {
        let lines = |operation| {
            let body = Body::one(&[7; 16], operation);
            Ticket::new(9, 7, &body).message_len().div_ceil(64)
        };
        let put = |value| Operation::Put { value, options: PutOptions::default() };
        assert_eq!([lines(Operation::Get), lines(Operation::Delete { of: None })], [1, 1]);
        assert_eq!([lines(put(&[7; 32])), lines(put(&[7; 64]))], [2, 2]);
    }
}
