//! One thread's endpoint to the memory and the messages of its host, in one object, as engines need
//! it.

use super::{Peer, ShmEndpoint, ShmMessages};
use crate::{Buf, Fabric, FabricError, MessageAddress, Messages, RemoteAddr, UnreliableWrites};

/// An endpoint and a mailbox.
pub struct ShmThread {
    /// The memory.
    pub memory: ShmEndpoint,
    /// The messages.
    pub messages: ShmMessages,
}

impl Messages for ShmThread {
    type Peer = Peer;

    fn message_bytes_max(&self) -> usize {
        self.messages.message_bytes_max()
    }

    fn address(&self) -> MessageAddress {
        self.messages.address()
    }

    fn peer(&self, address: &MessageAddress) -> Result<Peer, FabricError> {
        self.messages.peer(address)
    }

    #[inline]
    fn send_all(&self, messages: &[(Peer, &[u8])]) -> Result<(), FabricError> {
        self.messages.send_all(messages)
    }

    #[inline]
    fn try_receive(&self, buf: Buf) -> Result<(Peer, Buf), Buf> {
        self.messages.try_receive(buf)
    }
}

impl Fabric for ShmThread {
    crate::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes compare_swap fetch_add
        write_unsignaled write is_mapped store store_before store_after announce load load_bytes
        reload will_store raw posted is_settled now_us wall_ms random pause yield_now => memory
    );
}

impl UnreliableWrites for ShmThread {
    #[inline]
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.memory.write_unreliable(at, bytes)
    }
}
