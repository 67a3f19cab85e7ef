//! One thread's endpoint to the memory and the messages of its host, in one object, as engines need
//! it.

use std::task::Context;

use super::{Peer, ShmEndpoint, ShmMessages};
use crate::{Fabric, Messages, RemoteAddr, UnreliableWrites};

/// An endpoint and a mailbox.
pub struct ShmThread {
    /// The memory.
    pub memory: ShmEndpoint,
    /// The messages.
    pub messages: ShmMessages,
}

impl Messages for ShmThread {
    type Peer = Peer;

    crate::pass_on!(message_bytes_max address peer send_all try_receive => messages);
}

impl Fabric for ShmThread {
    crate::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes compare_swap fetch_add
        write_unsignaled write is_mapped store store_before store_after announce load load_bytes
        reload will_store raw posted is_settled now_us wall_ms random pause yield_now => memory
    );

    /// Keeps the thread awake.
    #[inline]
    fn poll_wait(&self, cx: &mut Context<'_>, _: Option<RemoteAddr>) {
        self.memory.poll_wait(cx, None);
    }
}

impl UnreliableWrites for ShmThread {
    crate::pass_on!(write_unreliable => memory);
}
