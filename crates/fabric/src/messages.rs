//! Unreliable messages, for engines whose server takes part in an operation.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::task::Poll;

use crate::{Buf, Fabric, FabricError, RemoteAddr, Result};

/// The address of a thread's messages: plain data, which can be published in memory or sent. It is
/// checked when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageAddress([u64; MessageAddress::WORDS]);

/// The backend of an address, in its last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressKind {
    /// A mailbox in shared memory.
    Mailbox = 1,
    /// A simulated process.
    Process = 2,
    /// A queue pair.
    #[cfg(feature = "verbs")]
    QueuePair = 3,
    /// A mailbox that is reached over a connection.
    Connection = 4,
}

impl MessageAddress {
    /// Words of an address.
    pub const WORDS: usize = 4;

    /// The address of which [`Self::words`] made these words. Whether it is valid is checked when
    /// it is used.
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self(words)
    }

    /// The address as words.
    pub const fn words(self) -> [u64; Self::WORDS] {
        self.0
    }

    pub(crate) fn new(kind: AddressKind, [a, b, c]: [u64; 3]) -> Self {
        Self([a, b, c, kind as u64])
    }

    /// The words that [`Self::new`] got.
    pub(crate) fn of_kind(&self, kind: AddressKind) -> Result<[u64; 3]> {
        match self.of_keyed(kind)? {
            (words, 0) => Ok(words),
            _ => Err(FabricError::BadAddress { why: "it has a key" }),
        }
    }

    /// The same, with a key that every message to it has to carry.
    #[cfg(feature = "verbs")]
    pub(crate) fn with_key(self, key: u32) -> Self {
        let [a, b, c, kind] = self.0;
        Self([a, b, c, kind | u64::from(key) << 32])
    }

    /// The words that [`Self::new`] got, and the key.
    pub(crate) fn of_keyed(&self, kind: AddressKind) -> Result<([u64; 3], u32)> {
        let [a, b, c, of] = self.0;
        if of as u32 == kind as u32 {
            return Ok(([a, b, c], (of >> 32) as u32));
        }
        let why = if of == 0 { "it is empty" } else { "it is another fabric's" };
        Err(FabricError::BadAddress { why })
    }
}

/// One thread's datagrams.
///
/// # Not promised
/// That a message arrives, that it arrives once, or that it arrives after an earlier message. A
/// message that arrives is whole.
pub trait Messages {
    /// Another thread, as this thread knows it.
    type Peer: Copy + Eq + Debug;

    /// Bytes of the longest message.
    fn message_bytes_max(&self) -> usize;

    /// The address to which others send.
    fn address(&self) -> MessageAddress;

    /// The peer at an address, to send to. The same address gives the same peer, and so does a
    /// message from there.
    ///
    /// # Errors
    /// [`FabricError::BadAddress`] for an invalid address, [`FabricError::PeersExhausted`] if
    /// either end knows too many others, and other errors of the backend on the way there.
    fn peer(&self, address: &MessageAddress) -> Result<Self::Peer>;

    /// Sends `bytes` to a peer.
    ///
    /// # Errors
    /// [`FabricError::TooLong`] beyond [`Messages::message_bytes_max`].
    #[inline]
    fn send(&self, to: Self::Peer, bytes: &[u8]) -> Result<()> {
        self.send_all(&[(to, bytes)])
    }

    /// Sends several messages in one doorbell, or in a few.
    ///
    /// # Errors
    /// [`FabricError::TooLong`] if one of them is; then none is sent.
    fn send_all(&self, messages: &[(Self::Peer, &[u8])]) -> Result<()>;

    /// The next message if one is there, appended to `buf`, and its sender; else `buf` unchanged.
    /// For workers that poll: it never waits, and allocates nothing if `buf` has room.
    fn try_receive(&self, buf: Buf) -> Result<(Self::Peer, Buf), Buf>;

    /// The next message, appended to `buf`, and its sender. A future that is dropped while it waits
    /// takes no message.
    fn receive(&self, buf: Buf) -> impl Future<Output = (Self::Peer, Buf)> + '_ {
        let mut buf = Some(buf);
        poll_fn(move |cx| {
            let taken = buf.take().expect("it is not polled again after it was ready");
            match self.try_receive(taken) {
                Ok(message) => Poll::Ready(message),
                Err(back) => {
                    buf = Some(back);
                    // For executors that sleep; the lanes' waker does nothing.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        })
    }
}

/// Checks messages before the first of them is sent.
///
/// # Errors
/// [`FabricError::TooLong`] if one of them has more than `max` bytes.
#[inline]
pub(crate) fn check_lengths<P>(messages: &[(P, &[u8])], max: usize) -> Result<()> {
    match messages.iter().find(|(_, bytes)| bytes.len() > max) {
        None => Ok(()),
        Some((_, long)) => Err(FabricError::TooLong { len: long.len() as u64, max: max as u64 }),
    }
}

/// A thread may have no messages: then nothing arrives, and nobody can be sent anything.
impl<M: Messages> Messages for Option<M> {
    type Peer = M::Peer;

    fn message_bytes_max(&self) -> usize {
        self.as_ref().map_or(0, M::message_bytes_max)
    }

    fn address(&self) -> MessageAddress {
        let nowhere = MessageAddress::from_words([0; MessageAddress::WORDS]);
        self.as_ref().map_or(nowhere, M::address)
    }

    fn peer(&self, address: &MessageAddress) -> Result<M::Peer> {
        let Some(messages) = self else {
            return Err(FabricError::BadAddress { why: "this thread has no messages" });
        };
        messages.peer(address)
    }

    #[inline]
    fn send_all(&self, messages: &[(M::Peer, &[u8])]) -> Result<()> {
        self.as_ref().map_or(Ok(()), |ours| ours.send_all(messages))
    }

    #[inline]
    fn try_receive(&self, buf: Buf) -> Result<(M::Peer, Buf), Buf> {
        match self {
            Some(messages) => messages.try_receive(buf),
            None => Err(buf),
        }
    }
}

/// WRITEs over a connection that does not report whether they arrive.
pub trait UnreliableWrites: Fabric {
    /// WRITEs `bytes` without waiting. No party learns whether they arrive; aligned words of them
    /// are written atomically. [`Fabric::is_settled`] holds when the WRITE cannot arrive any more.
    ///
    /// # Errors
    /// As [`Fabric::write_unsignaled`].
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()>;
}
