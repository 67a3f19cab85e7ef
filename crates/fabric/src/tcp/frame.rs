//! What travels over a connection: headers of fixed length, and bytes after some of them. All
//! numbers are little-endian.
//!
//! | from | header | bytes after it |
//! | --- | --- | --- |
//! | client | [`Hello`], once, 32 bytes | if encrypted: a [`Message`](super::noise) of 48 bytes |
//! | node | [`Welcome`], once, 8 bytes | likewise, if the client is let in |
//! | client | [`RequestHeader`], 24 bytes | WRITE: the bytes; CAS: [`SwapWords`]; FAA: the word; else: the message |
//! | node | [`AnswerHeader`], 16 bytes | READ: the bytes; CAS and FAA: the word that was there |
//! | node | [`AnswerHeader`] with [`PUSHED_WRITE`] or [`PUSHED_MESSAGE`] | the bytes; the message |
//!
//! A node executes the requests of a connection in their order, and answers in that order; a
//! request without [`SIGNALED`] has no answer. What a worker of the node sends to the client stands
//! between any two answers. A header that is not one of these ends the connection: nothing says
//! where the next one would begin.
//!
//! On an encrypted connection, everything after the greetings travels in records (`sealed.rs`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{MAIL_MESSAGE_BYTES_MAX, TRANSFER_BYTES_MAX};
use crate::rights::Access;

/// The version of all that this file says.
pub const VERSION: u32 = 1;
/// How a connection of a client begins.
pub const MAGIC: [u8; 8] = *b"loch-tcp";

/// Proves that a node has let the client in, which got it over another way.
pub type Token = [u8; 16];

pub const HELLO_BYTES: usize = size_of::<Hello>();
pub const WELCOME_BYTES: usize = size_of::<Welcome>();
pub const REQUEST_BYTES: usize = size_of::<RequestHeader>();
pub const ANSWER_BYTES: usize = size_of::<AnswerHeader>();

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    magic: [u8; 8],
    version: U32,
    /// 0, or [`ENCRYPTED`].
    way: U32,
    token: Token,
}

/// The bit of a greeting whose connection is to be encrypted.
const ENCRYPTED: u32 = 1;

/// The node's answer to a [`Hello`].
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Welcome {
    version: U32,
    /// 0, or the reason why the client is not let in.
    status: U32,
}

/// Why a node does not let a client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// It speaks another version.
    #[error("the node speaks another version of the protocol")]
    Version = 1,
    /// The token opens nothing: it was used, it is too old, or it is another node's.
    #[error("the node does not know the token, which opens one connection soon after it was given")]
    Token = 2,
    /// The node demands encryption.
    #[error("the node lets nobody in whose connection is not encrypted")]
    Plain = 3,
    /// The node does not encrypt.
    #[error("the node does not encrypt, and the client does")]
    Encrypted = 4,
    /// The client has not shown that it knows the key that was given with the token.
    #[error("the client does not know the key that belongs to its token")]
    Key = 5,
}

impl Unwelcome {
    const ALL: [Self; 5] = [Self::Version, Self::Token, Self::Plain, Self::Encrypted, Self::Key];
}

/// The beginning of a request.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    verb: u8,
    flags: u8,
    zero: U16,
    key: U32,
    offset: U64,
    len: U32,
    tag: U32,
}

/// The bit of a request that is answered.
pub const SIGNALED: u8 = 1;

/// The words of a CAS.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SwapWords {
    pub expect: U64,
    pub new: U64,
}

/// The status of bytes for the client's reply slots: the tag is their place there.
pub const PUSHED_WRITE: u32 = 0x100;

/// The status of a message: the tag is the mailbox of the worker that sends it.
pub const PUSHED_MESSAGE: u32 = 0x101;

/// The kind of request that is no verb: a message to a mailbox, which the key names.
const MESSAGE: u8 = 5;

/// The beginning of an answer.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnswerHeader {
    tag: U32,
    /// 0, or the reason why the verb was not executed.
    status: U32,
    /// Bytes after this header.
    len: U64,
}

/// The verbs of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read = 1,
    Write = 2,
    CompareSwap = 3,
    FetchAdd = 4,
}

impl Verb {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::CompareSwap, Self::FetchAdd];

    /// The right that it needs.
    pub fn access(self) -> Access {
        match self {
            Self::Read => Access::Read,
            Self::CompareSwap | Self::FetchAdd => Access::ReadAtomic,
            Self::Write => Access::Full,
        }
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// A request, without the bytes after its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub verb: Verb,
    pub is_signaled: bool,
    /// The number that the answer repeats.
    pub tag: u32,
    pub key: u32,
    pub offset: u64,
    /// Bytes of the region that the verb touches.
    pub len: u32,
}

impl Request {
    /// Bytes after the header.
    pub fn body_bytes(&self) -> usize {
        match self.verb {
            Verb::Read => 0,
            Verb::Write => self.len as usize,
            Verb::CompareSwap => size_of::<SwapWords>(),
            Verb::FetchAdd => 8,
        }
    }

    /// The header.
    pub fn header(&self) -> RequestHeader {
        RequestHeader {
            verb: self.verb as u8,
            flags: if self.is_signaled { SIGNALED } else { 0 },
            zero: U16::ZERO,
            key: self.key.into(),
            offset: self.offset.into(),
            len: self.len.into(),
            tag: self.tag.into(),
        }
    }

    /// The verb that a header begins.
    ///
    /// # Errors
    /// [`Garbage`] says what is wrong with it.
    fn parse(header: &RequestHeader) -> Result<Self, Garbage> {
        let verb = Verb::ALL.into_iter().find(|verb| *verb as u8 == header.verb);
        let verb = verb.ok_or(Garbage("a verb that there is not"))?;
        if header.flags & !SIGNALED != 0 || header.zero != U16::ZERO {
            return Err(Garbage("bits of a request that mean nothing"));
        }
        let is_signaled = header.flags == SIGNALED;
        if !is_signaled && verb != Verb::Write {
            return Err(Garbage("a request for bytes that no answer brings"));
        }
        let len = header.len.get();
        if len as usize > TRANSFER_BYTES_MAX || verb.is_atomic() && len != 8 {
            return Err(Garbage("a length that no verb has"));
        }
        let (tag, key, offset) = (header.tag.get(), header.key.get(), header.offset.get());
        Ok(Self { verb, is_signaled, tag, key, offset, len })
    }
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A verb.
    Verb(Request),
    /// That a message reaches a mailbox.
    Message {
        mailbox: u32,
        /// Bytes after the header.
        len: u32,
    },
}

impl Wanted {
    /// What a header begins.
    ///
    /// # Errors
    /// [`Garbage`] says what is wrong with it.
    pub fn parse(header: &RequestHeader) -> Result<Self, Garbage> {
        if header.verb != MESSAGE {
            return Request::parse(header).map(Self::Verb);
        }
        let rest = (header.flags, header.zero.get(), header.offset.get(), header.tag.get());
        if rest != (0, 0, 0, 0) {
            return Err(Garbage("bits of a message that mean nothing"));
        }
        let (mailbox, len) = (header.key.get(), header.len.get());
        if len as usize > MAIL_MESSAGE_BYTES_MAX {
            return Err(Garbage("a message that is too long"));
        }
        Ok(Self::Message { mailbox, len })
    }

    /// The header.
    pub fn header(&self) -> RequestHeader {
        match *self {
            Self::Verb(request) => request.header(),
            Self::Message { mailbox, len } => RequestHeader {
                verb: MESSAGE,
                flags: 0,
                zero: U16::ZERO,
                key: mailbox.into(),
                offset: U64::ZERO,
                len: len.into(),
                tag: U32::ZERO,
            },
        }
    }
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sent {0}")]
pub struct Garbage(pub &'static str);

/// Why a node has not executed a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The connection has no such key.
    #[error("the connection has no such key")]
    UnknownKey = 1,
    /// The key does not open all of these bytes.
    #[error("the key does not open all of these bytes")]
    OutOfBounds = 2,
    /// The key does not give this right.
    #[error("the key does not give this right")]
    ReadOnly = 3,
    /// The word of an atomic is not aligned.
    #[error("the word of an atomic is not aligned")]
    Misaligned = 4,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::UnknownKey, Self::OutOfBounds, Self::ReadOnly, Self::Misaligned];
}

/// An answer, without the bytes after its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub tag: u32,
    /// Bytes after the header, or why there are none.
    pub result: Result<u32, Refusal>,
}

impl Answer {
    pub fn header(&self) -> AnswerHeader {
        let (status, len) = match self.result {
            Ok(len) => (0, len),
            Err(refusal) => (refusal as u32, 0),
        };
        AnswerHeader { tag: self.tag.into(), status: status.into(), len: u64::from(len).into() }
    }

    fn parse(header: &AnswerHeader) -> Result<Self, Garbage> {
        let (tag, len) = (header.tag.get(), header.len.get());
        let result = match header.status.get() {
            0 if len > TRANSFER_BYTES_MAX as u64 => {
                return Err(Garbage("a length that no verb has"));
            }
            0 => Ok(len as u32),
            _ if len != 0 => return Err(Garbage("bytes after a refusal")),
            status => {
                let refusal = Refusal::ALL.into_iter().find(|it| *it as u32 == status);
                Err(refusal.ok_or(Garbage("a refusal that there is not"))?)
            }
        };
        Ok(Self { tag, result })
    }
}

/// What a node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// An answer to a request.
    Answer(Answer),
    /// Bytes for the client's reply slots.
    Write {
        /// Their place in the slots.
        offset: u32,
        /// Bytes after the header.
        len: u32,
    },
    /// A message of a worker.
    Message {
        /// The worker's mailbox.
        mailbox: u32,
        /// Bytes after the header.
        len: u32,
    },
}

impl Told {
    /// What a header begins.
    ///
    /// # Errors
    /// [`Garbage`] says what is wrong with it.
    pub fn parse(header: &AnswerHeader) -> Result<Self, Garbage> {
        let (tag, len) = (header.tag.get(), header.len.get());
        let within = |max: usize| match len > max as u64 {
            true => Err(Garbage("a reply that is too long")),
            false => Ok(len as u32),
        };
        Ok(match header.status.get() {
            PUSHED_WRITE => Self::Write { offset: tag, len: within(TRANSFER_BYTES_MAX)? },
            PUSHED_MESSAGE => Self::Message { mailbox: tag, len: within(MAIL_MESSAGE_BYTES_MAX)? },
            _ => Self::Answer(Answer::parse(header)?),
        })
    }

    pub fn header(&self) -> AnswerHeader {
        let (tag, status, len) = match *self {
            Self::Answer(answer) => return answer.header(),
            Self::Write { offset, len } => (offset, PUSHED_WRITE, len),
            Self::Message { mailbox, len } => (mailbox, PUSHED_MESSAGE, len),
        };
        AnswerHeader { tag: tag.into(), status: status.into(), len: u64::from(len).into() }
    }
}

impl Hello {
    pub fn new(token: Token, is_encrypted: bool) -> Self {
        let way = if is_encrypted { ENCRYPTED } else { 0 };
        Self { magic: MAGIC, version: VERSION.into(), way: way.into(), token }
    }

    /// The token, if a node of this version can speak with the client.
    ///
    /// # Errors
    /// [`Garbage`] if this is not the beginning of such a connection at all.
    pub fn token(&self) -> Result<Result<Token, Unwelcome>, Garbage> {
        if self.magic != MAGIC {
            return Err(Garbage("something else than a greeting"));
        }
        let is_known = self.version.get() == VERSION && self.way.get() & !ENCRYPTED == 0;
        Ok(if is_known { Ok(self.token) } else { Err(Unwelcome::Version) })
    }

    /// Whether a message of a handshake follows, as the connection is to be encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.magic == MAGIC && self.version.get() == VERSION && self.way.get() == ENCRYPTED
    }
}

impl Welcome {
    pub fn new(result: Result<(), Unwelcome>) -> Self {
        let status = result.map_or_else(|reason| reason as u32, |()| 0);
        Self { version: VERSION.into(), status: status.into() }
    }

    /// Whether the client is let in.
    ///
    /// # Errors
    /// [`Garbage`] if the node's answer is none.
    pub fn result(&self) -> Result<Result<(), Unwelcome>, Garbage> {
        Ok(match (self.status.get(), self.version.get()) {
            (0, VERSION) => Ok(()),
            (0, _) => Err(Unwelcome::Version),
            (status, _) => {
                let reason = Unwelcome::ALL.into_iter().find(|it| *it as u32 == status);
                Err(reason.ok_or(Garbage("something else than a welcome"))?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_are_as_long_as_they_say() {
        let lengths = [HELLO_BYTES, WELCOME_BYTES, REQUEST_BYTES, ANSWER_BYTES];
        assert_eq!(lengths, [32, 8, 24, 16]);
    }

    #[test]
    fn a_request_is_these_bytes() {
        let request = Request {
            verb: Verb::CompareSwap,
            is_signaled: true,
            tag: 0x0102_0304,
            key: 0x0506_0708,
            offset: 0x090A_0B0C_0D0E_0F10,
            len: 8,
        };
        let bytes = request.header();
        let bytes = bytes.as_bytes();
        assert_eq!(bytes[..8], [3, 1, 0, 0, 8, 7, 6, 5]);
        assert_eq!(bytes[8..16], [0x10, 0x0F, 0x0E, 0x0D, 0x0C, 0x0B, 0x0A, 9]);
        assert_eq!(bytes[16..], [8, 0, 0, 0, 4, 3, 2, 1]);
    }

    #[test]
    fn what_no_client_sends_is_garbage() {
        let good =
            Request { verb: Verb::Write, is_signaled: false, tag: 1, key: 2, offset: 3, len: 4 };
        assert_eq!(Wanted::parse(&good.header()), Ok(Wanted::Verb(good)));
        let bad = |change: fn(&mut RequestHeader)| {
            let mut header = good.header();
            change(&mut header);
            Wanted::parse(&header).is_err()
        };
        assert!(bad(|it| it.verb = 0) && bad(|it| it.verb = MESSAGE) && bad(|it| it.verb = 6));
        assert!(bad(|it| it.flags = 2) && bad(|it| it.zero = 1.into()));
        assert!(bad(|it| it.verb = Verb::Read as u8), "nobody would answer");
        assert!(bad(|it| it.len = (TRANSFER_BYTES_MAX as u32 + 1).into()));
        assert!(bad(|it| (it.verb, it.flags) = (Verb::FetchAdd as u8, SIGNALED)), "not a word");
    }

    #[test]
    fn a_greeting_of_another_version_is_understood() {
        for is_encrypted in [false, true] {
            let mut hello = Hello::new([7; 16], is_encrypted);
            assert_eq!(hello.token(), Ok(Ok([7; 16])));
            assert_eq!(hello.is_encrypted(), is_encrypted);
            hello.way = 2.into();
            assert_eq!(hello.token(), Ok(Err(Unwelcome::Version)));
            hello = Hello { version: 2.into(), ..Hello::new([7; 16], is_encrypted) };
            assert_eq!(hello.token(), Ok(Err(Unwelcome::Version)));
            hello.magic[0] = b'L';
            assert!(hello.token().is_err() && !hello.is_encrypted());
        }
        let reasons = Unwelcome::ALL.map(Err);
        for result in reasons.into_iter().chain([Ok(())]) {
            assert_eq!(Welcome::new(result).result(), Ok(result));
        }
    }

    proptest! {
        #[test]
        fn what_is_parsed_is_what_was_sent(
            bytes in any::<[u8; REQUEST_BYTES]>(),
            verb in 0u8..7,
            is_short in any::<bool>(),
        ) {
            let mut header = RequestHeader::read_from_bytes(&bytes).unwrap();
            (header.verb, header.flags, header.zero) = (verb, header.flags & 1, 0.into());
            if is_short {
                header.len = (header.len.get() % 5000).into();
                (header.offset, header.tag) = (0.into(), 0.into());
            }
            if let Ok(wanted) = Wanted::parse(&header) {
                let again = wanted.header();
                prop_assert_eq!(again.as_bytes(), header.as_bytes());
            }
        }

        #[test]
        fn what_a_node_tells_is_what_was_sent(
            bytes in any::<[u8; ANSWER_BYTES]>(),
            status in prop_oneof![0u32..6, 0xFFu32..0x103],
            is_short in any::<bool>(),
        ) {
            let mut header = AnswerHeader::read_from_bytes(&bytes).unwrap();
            header.status = status.into();
            if is_short {
                header.len = (header.len.get() % 5000).into();
            }
            if let Ok(told) = Told::parse(&header) {
                let again = told.header();
                prop_assert_eq!(again.as_bytes(), header.as_bytes());
            }
        }
    }
}
