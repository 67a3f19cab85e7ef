//! The bytes of a request and of a reply.
//!
//! A message ends with a trailer. If the message stands at the end of its slot, its last words are
//! always in the same place, however long it is (herd §4.2). Its length is a multiple of eight
//! bytes.
//!
//! | request, from its end | field |
//! | --- | --- |
//! | ... | zeros up to a multiple of 8, value, key, expiry (8, if flagged), operand (8, if flagged) |
//! | -40 | operation (1), flags (1), bytes of the key less one (2), client (4) |
//! | -32 | session incarnation (6), reply slot (2) |
//! | -24 | worker incarnation (4), bytes of the value (4) |
//! | -16 | attempt (1), number (7) |
//! | -8 | the seal of all bytes before ([`seal`](super::seal)) |
//!
//! | reply, from its end | field |
//! | --- | --- |
//! | ... | zeros up to a multiple of 8, value |
//! | -48 | status (1), flags, zero (1), worker (2), worker incarnation (4) |
//! | -40 | first operand: a version, a number, what an error tells |
//! | -32 | second operand: the expiry or 0, what an error tells |
//! | -24 | low quarter of the session incarnation (2), reply slot (2), bytes of the value (4) |
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

use super::code::{Code, HAVE_OPERAND};
use super::reply::Short;
use super::seal::Seal;
use crate::limits::KEY_BYTES_MAX;
use crate::operation::{Expect, Operation, PutOptions};

/// Bytes of a request's trailer.
pub const REQUEST_TRAILER_BYTES: usize = 40;
/// The most bytes that a request has besides key and value.
pub const REQUEST_OVERHEAD_BYTES: usize = REQUEST_TRAILER_BYTES + 16;
/// Bytes of a reply's trailer. A reply has nothing else besides the value.
pub const REPLY_TRAILER_BYTES: usize = 48;
/// The word with number and attempt, from the end of a message.
pub const POLL_WORD_FROM_END: usize = 16;
/// The word of a reply that tells the bytes of its value, from the end of the message.
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

/// The flag of a request that gives a value an expiry.
const EXPIRES: u8 = 1;

/// Everything of a request but key and value. A worker keeps it while it serves the request.
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
    code: Code,
    flags: u8,
    key_less_one: u16,
    value_len: u32,
}

/// The content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A greeting, which introduces its client.
    Hello,
    /// An operation on a key.
    One(Request<'a>),
    /// Many operations, as [`kv_direct`](crate::kv_direct) packs them. A packet has no key, and
    /// only workers of that engine unpack it.
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
    /// An operation on a key.
    #[inline]
    pub fn one(key: &'a [u8], operation: Operation<'a>) -> Self {
        Self::One(Request { key, operation })
    }

    /// Whether the request changes nothing, so that it may be executed again.
    #[inline]
    pub fn is_read(&self) -> bool {
        match self {
            Self::Hello => true,
            Self::One(request) => request.operation.is_read(),
            Self::Packet { is_read, .. } => *is_read,
        }
    }

    #[inline]
    pub(super) fn key(&self) -> &'a [u8] {
        if let Self::One(request) = self { request.key } else { &[] }
    }

    /// The bytes that the request carries besides a key.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        match self {
            Self::Hello => &[],
            Self::One(request) => request.operation.value(),
            Self::Packet { bytes, .. } => bytes,
        }
    }

    #[inline]
    fn options(&self) -> PutOptions {
        let Self::One(Request { operation, .. }) = self else { return PutOptions::default() };
        match operation {
            Operation::Put { options, .. }
            | Operation::PutIf { options, .. }
            | Operation::Touch { options, .. } => *options,
            _ => PutOptions::default(),
        }
    }

    #[inline]
    fn code(&self) -> Code {
        let operation = match self {
            Self::Hello => return Code::Hello,
            Self::Packet { is_read: false, .. } => return Code::Packet,
            Self::Packet { is_read: true, .. } => return Code::ReadPacket,
            Self::One(request) => request.operation,
        };
        match operation {
            Operation::Get => Code::Get,
            Operation::Contains => Code::Contains,
            Operation::Put { .. } => Code::Put,
            Operation::PutIf { expect: Expect::Absent, .. } => Code::PutIfAbsent,
            Operation::PutIf { expect: Expect::Version(_), .. } => Code::PutIfVersion,
            Operation::Delete { of: None } => Code::Delete,
            Operation::Delete { of: Some(_) } => Code::DeleteVersion,
            Operation::FetchAdd(_) => Code::FetchAdd,
            Operation::Append(_) => Code::Append,
            Operation::Touch { of: None, .. } => Code::Touch,
            Operation::Touch { of: Some(_), .. } => Code::TouchVersion,
            other => panic!("only a packet carries {other:?}"),
        }
    }

    /// The operation's operand, if it has one.
    #[inline]
    fn operand(&self) -> Option<u64> {
        let Self::One(Request { operation, .. }) = self else { return None };
        match operation {
            Operation::PutIf { expect: Expect::Version(operand), .. }
            | Operation::FetchAdd(operand)
            | Operation::Touch { of: Some(operand), .. }
            | Operation::Delete { of: Some(operand) } => Some(*operand),
            _ => None,
        }
    }
}

impl Ticket {
    /// The ticket of a request of this client.
    ///
    /// # Panics
    /// If the key has 0 or more than [`KEY_BYTES_MAX`] bytes, or a number has too many bits.
    pub fn new(client: u32, session: u64, body: &Body<'_>) -> Self {
        assert!(session >> SESSION_BITS == 0, "a session incarnation has {SESSION_BITS} bits");
        let key = body.key();
        let is_keyed = matches!(body, Body::One(_));
        assert!(!is_keyed || (1..=KEY_BYTES_MAX).contains(&key.len()), "keys are checked on entry");
        let expires = body.options().expires_at_ms.is_some();
        Self {
            client,
            session,
            worker: 0,
            number: 0,
            attempt: 0,
            reply: 0,
            code: body.code(),
            flags: if expires { EXPIRES } else { 0 },
            key_less_one: if is_keyed { (key.len() - 1) as u16 } else { 0 },
            value_len: u32::try_from(body.value().len()).expect("values are checked on entry"),
        }
    }

    /// Whether the request is a greeting, which only introduces its client.
    #[inline]
    pub fn is_hello(&self) -> bool {
        self.code == Code::Hello
    }

    /// Whether the request changes nothing, so that it may be executed again.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self.code, Code::Hello | Code::Get | Code::Contains | Code::ReadPacket)
    }

    /// Whether the request is a packet of operations, which has no key.
    #[inline]
    pub fn is_packet(&self) -> bool {
        matches!(self.code, Code::Packet | Code::ReadPacket)
    }

    /// Bytes of the message.
    #[inline]
    pub fn message_len(&self) -> usize {
        self.body_len().next_multiple_of(8) + REQUEST_TRAILER_BYTES
    }

    /// The bytes of a message, from the words of its trailer that tell lengths. If these words are
    /// not a request's, the message cannot be read.
    #[inline(always)]
    pub(super) fn told_len([kind, lens]: [u64; 2]) -> usize {
        let [code, flags, low, high, ..] = kind.to_le_bytes();
        let is_keyless = [Code::Hello, Code::Packet, Code::ReadPacket].map(|it| it as u8);
        let has_operand = HAVE_OPERAND.map(|it| it as u8);
        let key_less_one = usize::from(u16::from_le_bytes([low, high]));
        let key = if is_keyless.contains(&code) { 0 } else { key_less_one + 1 };
        let words = usize::from(flags & EXPIRES) + usize::from(has_operand.contains(&code));
        let body = (lens >> 32) as usize + key + words * 8;
        body.next_multiple_of(8) + REQUEST_TRAILER_BYTES
    }

    /// Whether the request is a PUT without a condition.
    #[inline]
    pub fn is_put(&self) -> bool {
        self.code == Code::Put
    }

    /// The key in the message that the ticket was read from; empty if the request has no key.
    ///
    /// # Panics
    /// If `message` is shorter than the ticket's.
    #[inline]
    pub fn key<'a>(&self, message: &'a [u8]) -> &'a [u8] {
        let words = usize::from(self.expires()) + usize::from(self.has_operand());
        let end = message.len() - REQUEST_TRAILER_BYTES - words * 8;
        &message[end - self.key_len()..end]
    }

    #[inline]
    fn key_len(&self) -> usize {
        let keyed = !self.is_hello() && !self.is_packet();
        if keyed { usize::from(self.key_less_one) + 1 } else { 0 }
    }

    #[inline]
    fn has_operand(&self) -> bool {
        HAVE_OPERAND.contains(&self.code)
    }

    #[inline]
    fn expires(&self) -> bool {
        self.flags & EXPIRES != 0
    }

    #[inline]
    fn body_len(&self) -> usize {
        let words = usize::from(self.expires()) + usize::from(self.has_operand());
        self.value_len as usize + self.key_len() + words * 8
    }

    /// The word for which the receiver polls.
    #[inline]
    pub(super) fn poll_word(&self) -> u64 {
        self.number << 8 | u64::from(self.attempt)
    }

    fn words(&self) -> [u64; WORDS - 1] {
        [
            u64::from_le_bytes({
                let [a, b] = self.key_less_one.to_le_bytes();
                let [c, d, e, f] = self.client.to_le_bytes();
                [self.code as u8, self.flags, a, b, c, d, e, f]
            }),
            self.session | u64::from(self.reply) << SESSION_BITS,
            u64::from(self.worker) | u64::from(self.value_len) << 32,
            self.poll_word(),
        ]
    }

    /// Reads all words of a trailer but the checksum; `None` if they cannot belong to a request.
    #[inline]
    pub(super) fn parse(words: [u64; WORDS - 1]) -> Option<Self> {
        let [code, flags, a, b, c, d, e, f] = words[0].to_le_bytes();
        let code = Code::try_read_from_bytes(&[code]).ok()?;
        let ticket = Self {
            client: u32::from_le_bytes([c, d, e, f]),
            session: session_number(words[1]),
            worker: words[2] as u32,
            number: words[3] >> 8,
            attempt: words[3] as u8,
            reply: (words[1] >> SESSION_BITS) as u16,
            code,
            flags,
            key_less_one: u16::from_le_bytes([a, b]),
            value_len: (words[2] >> 32) as u32,
        };
        let puts = matches!(code, Code::Put | Code::PutIfAbsent | Code::PutIfVersion);
        let brings = code == Code::Append || ticket.is_packet();
        let touches = matches!(code, Code::Touch | Code::TouchVersion);
        let fits = puts
            || flags == 0 && (ticket.value_len == 0 || brings)
            || touches && ticket.value_len == 0;
        let known = flags & !EXPIRES == 0;
        (known && fits && ticket.number != 0 && ticket.session != 0).then_some(ticket)
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

    /// The content of the message that the ticket was read from.
    ///
    /// # Panics
    /// If `message` is shorter than the ticket's.
    #[inline]
    pub fn body<'a>(&self, message: &'a [u8]) -> Body<'a> {
        let body = &message[..message.len() - REQUEST_TRAILER_BYTES];
        let (body, operand) = self.split_word(body, self.has_operand());
        let (body, expires_at_ms) = self.split_word(body, self.expires());
        let (body, key) = body.split_at(body.len() - self.key_len());
        let value = &body[body.len() - self.value_len as usize..];
        let options = PutOptions { expires_at_ms };
        let operand = operand.unwrap_or(0);
        let operation = match self.code {
            Code::Hello => return Body::Hello,
            Code::Packet => return Body::Packet { bytes: value, is_read: false },
            Code::ReadPacket => return Body::Packet { bytes: value, is_read: true },
            Code::Get => Operation::Get,
            Code::Contains => Operation::Contains,
            Code::Put => Operation::Put { value, options },
            Code::PutIfAbsent => Operation::PutIf { value, expect: Expect::Absent, options },
            Code::PutIfVersion => {
                Operation::PutIf { value, expect: Expect::Version(operand), options }
            }
            Code::Delete => Operation::Delete { of: None },
            Code::DeleteVersion => Operation::Delete { of: Some(operand) },
            Code::FetchAdd => Operation::FetchAdd(operand),
            Code::Append => Operation::Append(value),
            Code::Touch => Operation::Touch { of: None, options },
            Code::TouchVersion => Operation::Touch { of: Some(operand), options },
        };
        Body::One(Request { key, operation })
    }

    /// The operation in the message that the ticket was read from.
    ///
    /// # Panics
    /// If it is a greeting or a packet, or `message` is shorter than the ticket's.
    #[inline]
    pub fn request<'a>(&self, message: &'a [u8]) -> Request<'a> {
        match self.body(message) {
            Body::One(request) => request,
            other => panic!("{other:?} is no operation"),
        }
    }

    /// The range of the packet in the message that the ticket was read from.
    ///
    /// # Panics
    /// If `message` is shorter than the ticket's.
    pub fn packet_at(&self, message: &[u8]) -> std::ops::Range<usize> {
        let end = message.len() - REQUEST_TRAILER_BYTES;
        end - self.value_len as usize..end
    }

    #[inline]
    fn split_word<'a>(&self, body: &'a [u8], present: bool) -> (&'a [u8], Option<u64>) {
        if !present {
            return (body, None);
        }
        let (body, word) = body.split_at(body.len() - 8);
        (body, Some(u64::from_le_bytes(word.try_into().expect("eight bytes"))))
    }

    /// Appends the message to `buf`, which must be empty.
    pub fn write(&self, body: &Body<'_>, seal: Seal, buf: &mut Buf) {
        assert!(buf.is_empty(), "a message is on its own");
        let pad = self.body_len().next_multiple_of(8) - self.body_len();
        buf.extend_from_slice(&[0; 8][..pad]);
        buf.extend_from_slice(body.value());
        buf.extend_from_slice(body.key());
        for word in [body.options().expires_at_ms, body.operand()].into_iter().flatten() {
            buf.extend_from_slice(&word.to_le_bytes());
        }
        finish(buf, self.words(), seal);
    }
}

/// Everything of a reply but the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// The worker of the cluster that replies: [`Area::source`](super::layout::Area::source).
    pub source: u16,
    /// The worker's incarnation.
    pub worker: u32,
    /// The low quarter of the incarnation of the session that sent the request.
    pub session: u16,
    /// The reply slot that waits for the reply.
    pub reply: u16,
    /// The number of the request.
    pub number: u64,
    /// The answer without the bytes of its value.
    pub short: Short,
    value_len: u32,
}

impl ReplyHead {
    /// The head of a reply to a request.
    pub fn new(ticket: &Ticket, source: u16, worker: u32, short: Short, value: &[u8]) -> Self {
        let value_len = u32::try_from(value.len()).expect("values are checked on entry");
        let (session, reply) = (ticket.session as u16, ticket.reply);
        Self { source, worker, session, reply, number: ticket.number, short, value_len }
    }

    /// Bytes of the message.
    #[inline]
    pub fn message_len(&self) -> usize {
        self.value_len().next_multiple_of(8) + REPLY_TRAILER_BYTES
    }

    /// The bytes of a message, from the word of its trailer that tells the length. If that word is
    /// not a reply's, the message cannot be read.
    #[inline]
    pub(super) fn told_len(word: u64) -> usize {
        ((word >> 32) as usize).next_multiple_of(8) + REPLY_TRAILER_BYTES
    }

    /// Bytes of the value.
    #[inline]
    pub fn value_len(&self) -> usize {
        self.value_len as usize
    }

    /// The range of the value in the message.
    #[inline]
    pub fn value_at(&self) -> std::ops::Range<usize> {
        let end = self.value_len().next_multiple_of(8);
        end - self.value_len()..end
    }

    #[inline]
    pub(super) fn parse(words: [u64; REPLY_WORDS - 1]) -> Option<Self> {
        let [status, flags, a, b, c, d, e, f] = words[0].to_le_bytes();
        let short = Short { status, first: words[1], second: words[2] };
        let head = Self {
            source: u16::from_le_bytes([a, b]),
            worker: u32::from_le_bytes([c, d, e, f]),
            session: words[3] as u16,
            reply: (words[3] >> 16) as u16,
            number: words[4] >> 8,
            short,
            value_len: (words[3] >> 32) as u32,
        };
        let fits = head.value_len == 0 || short.has_value();
        (flags == 0 && fits && head.number != 0).then_some(head)
    }

    /// Reads a whole message; `None` unless it is a complete reply with the right seal.
    #[inline]
    pub fn read(message: &[u8], seal: Seal) -> Option<Self> {
        let head = Self::parse(last_words(message)?)?;
        (head.message_len() == message.len() && seal.holds(message)).then_some(head)
    }

    /// Appends the message to `buf`, which must be empty.
    pub fn write(&self, value: &[u8], seal: Seal, buf: &mut Buf) {
        assert!(buf.is_empty(), "a message is on its own");
        debug_assert_eq!(value.len(), self.value_len());
        buf.extend_from_slice(&[0; 8][..self.value_at().start]);
        buf.extend_from_slice(value);
        let [a, b] = self.source.to_le_bytes();
        let [c, d, e, f] = self.worker.to_le_bytes();
        finish(
            buf,
            [
                u64::from_le_bytes([self.short.status, 0, a, b, c, d, e, f]),
                self.short.first,
                self.short.second,
                u64::from(self.session)
                    | u64::from(self.reply) << 16
                    | u64::from(self.value_len) << 32,
                self.number << 8,
            ],
            seal,
        );
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

/// Appends a trailer and the seal.
#[inline]
fn finish<const N: usize>(buf: &mut Buf, words: [u64; N], seal: Seal) {
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
    use crate::requests::reply::Answer;

    const SEAL: Seal = Seal::CHECKSUM;

    fn bodies<'a>(
        key: &'a [u8],
        value: &'a [u8],
        operand: u64,
        expiry: Option<u64>,
    ) -> Vec<Body<'a>> {
        let options = PutOptions { expires_at_ms: expiry };
        let operations = [
            Operation::Get,
            Operation::Contains,
            Operation::Put { value, options },
            Operation::PutIf { value, expect: Expect::Absent, options },
            Operation::PutIf { value, expect: Expect::Version(operand), options },
            Operation::Delete { of: None },
            Operation::Delete { of: Some(operand) },
            Operation::FetchAdd(operand),
            Operation::Append(value),
            Operation::Touch { of: None, options },
            Operation::Touch { of: Some(operand), options },
        ];
        let packet = Body::Packet { bytes: value, is_read: operand.is_multiple_of(2) };
        operations.map(|operation| Body::one(key, operation)).into_iter().chain([packet]).collect()
    }

    fn get() -> Ticket {
        Ticket { number: 3, ..Ticket::new(9, 7, &Body::one(b"k", Operation::Get)) }
    }

    proptest! {
        #[test]
        fn requests_survive_the_trip_and_every_flipped_bit_is_noticed(
            key in prop::collection::vec(any::<u8>(), 1..40),
            value in prop::collection::vec(any::<u8>(), 0..60),
            (operand, expiry, flip) in any::<(u64, Option<u64>, u16)>(),
            (number, attempt, reply) in (1u64..1 << NUMBER_BITS, any::<u8>(), any::<u16>()),
        ) {
            for body in bodies(&key, &value, operand, expiry) {
                let new = Ticket::new(9, 7, &body);
                let ticket = Ticket { worker: 5, number, attempt, reply, ..new };
                let mut message = Buf::new();
                ticket.write(&body, SEAL, &mut message);
                prop_assert_eq!(message.len(), ticket.message_len());
                prop_assert!(message.len() <= key.len() + value.len() + REQUEST_OVERHEAD_BYTES + 7);
                prop_assert_eq!(Ticket::read(&message, SEAL), Some(ticket));
                prop_assert_eq!(ticket.body(&message), body);
                prop_assert_eq!(ticket.key(&message), body.key());
                let [kind, _, lens, _] = last_words(&message).unwrap();
                prop_assert_eq!(Ticket::told_len([kind, lens]), message.len());
                if ticket.is_packet() {
                    prop_assert_eq!(&message[ticket.packet_at(&message)], &value[..]);
                }
                let mut bad = message.to_vec();
                let bit = usize::from(flip) % (bad.len() * 8);
                bad[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(Ticket::read(&bad, SEAL), None);
            }
        }

        #[test]
        fn replies_survive_the_trip_and_every_flipped_bit_is_noticed(
            value in prop::collection::vec(any::<u8>(), 0..60),
            (first, second, flip) in any::<(u64, u64, u16)>(),
        ) {
            let ticket = get();
            let found = Answer::found(&value, first, (second != 0).then_some(second));
            let head = ReplyHead::new(&ticket, 2, 5, found.short(), &value);
            let mut message = Buf::new();
            head.write(&value, SEAL, &mut message);
            prop_assert_eq!(ReplyHead::read(&message, SEAL), Some(head));
            prop_assert_eq!(&message[head.value_at()], &value[..]);
            let mut bad = message.to_vec();
            let bit = usize::from(flip) % (bad.len() * 8);
            bad[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(ReplyHead::read(&bad, SEAL), None);
        }

        #[test]
        fn hostile_bytes_with_the_right_seal_do_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120),
            code in 0u8..15, flags in 0u8..3, value_len in 0u32..64, key in 0u16..32,
        ) {
            // Bytes that are no message are dropped at once: these look like a request.
            if let Some(at) = bytes.len().checked_sub(REQUEST_TRAILER_BYTES) {
                bytes[at] = code;
                bytes[at + 1] = flags;
                bytes[at + 2..at + 4].copy_from_slice(&key.to_le_bytes());
                bytes[at + 20..at + 24].copy_from_slice(&value_len.to_le_bytes());
                let end = bytes.len() - 8;
                let word = SEAL.word(&bytes[..end]);
                bytes[end..].copy_from_slice(&word);
            }
            if let Some(ticket) = Ticket::read(&bytes, SEAL) {
                let has_key =
                    matches!(ticket.body(&bytes), Body::One(request) if !request.key.is_empty());
                prop_assert_eq!(has_key, !ticket.is_hello() && !ticket.is_packet());
            }
            if let Some(head) = ReplyHead::read(&bytes, SEAL) {
                prop_assert_eq!(bytes[head.value_at()].len(), head.value_len());
                let _ = head.short.answer(&bytes[head.value_at()]);
            }
        }
    }

    /// One wrong field is enough, whatever the other fields say.
    #[test]
    fn words_that_no_client_writes_are_no_request() {
        for body in bodies(b"key", b"value", 5, Some(6)) {
            let ticket = Ticket { number: 1, ..Ticket::new(9, 7, &body) };
            let words = ticket.words();
            assert_eq!(Ticket::parse(words), Some(ticket));
            let with = |word: usize, clear: u64, set: u64| {
                let mut words = words;
                words[word] = words[word] & !clear | set;
                Ticket::parse(words)
            };
            for code in [0, Code::DeleteVersion as u8 + 1, u8::MAX] {
                assert_eq!(with(0, 0xff, u64::from(code)), None, "operation {code}");
            }
            assert_eq!(with(0, 0, 0x0200), None, "a flag that there is not");
            assert_eq!(with(1, (1 << SESSION_BITS) - 1, 0), None, "session 0");
            assert_eq!(with(3, !0xff, 0), None, "number 0");
            let brings = !body.value().is_empty();
            let expires = body.options() != PutOptions::default();
            assert_eq!(with(0, 0, 0x0100).is_some(), expires, "only values expire: {body:?}");
            assert_eq!(with(2, 0, 1 << 32).is_some(), brings, "it has no value: {body:?}");
        }
    }

    /// A reply's head with one field that no worker writes.
    #[test]
    fn words_that_no_worker_writes_are_no_reply() {
        let ticket = get();
        for answer in [Answer::found(b"value", 1, None), Answer::Stale(4)] {
            let head = ReplyHead::new(&ticket, 2, 5, answer.short(), answer.value());
            let mut message = Buf::new();
            head.write(answer.value(), SEAL, &mut message);
            let words = last_words(&message).unwrap();
            assert_eq!(ReplyHead::parse(words), Some(head));
            let with = |word: usize, clear: u64, set: u64| {
                let mut words = words;
                words[word] = words[word] & !clear | set;
                ReplyHead::parse(words)
            };
            assert_eq!(with(0, 0, 0x0100), None, "a flag");
            assert_eq!(with(4, !0xff, 0), None, "number 0");
            let has_value = !answer.value().is_empty();
            assert_eq!(with(3, 0, 1 << 32).is_some(), has_value, "it has no value: {answer:?}");
        }
    }

    #[test]
    fn a_greeting_is_a_message_without_a_key() {
        let ticket = Ticket { number: 1, ..Ticket::new(9, 7, &Body::Hello) };
        let mut message = Buf::new();
        ticket.write(&Body::Hello, SEAL, &mut message);
        assert_eq!(message.len(), REQUEST_TRAILER_BYTES);
        assert_eq!(Ticket::read(&message, SEAL), Some(ticket));
        assert_eq!((ticket.is_hello(), ticket.body(&message)), (true, Body::Hello));
    }
}
