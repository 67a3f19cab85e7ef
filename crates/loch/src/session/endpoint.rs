//! An endpoint that yields while it waits.
//!
//! On a machine with fewer cores than threads, a client that spins keeps the worker off the core.
//! On shared memory a client therefore yields the core when all of its lanes wait, and sleeps after
//! a while until the worker wakes it ([`Fabric::poll_wait`]). On an executor that is not Loch's it
//! only yields now and then. Over a network, a waiting client also looks after its connections:
//! without one neither its request arrives nor the reply.

use std::cell::Cell;
use std::future::Future;
use std::task::Context;

use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, FabricError, Messages, RemoteAddr, UnreliableWrites};

use crate::limits::PATIENT_POLLS;

/// An endpoint that has work to do while its user waits.
pub(crate) trait WhileWaiting: Fabric + UnreliableWrites {
    /// Called from time to time while the user waits.
    fn tend(&self);

    /// As [`ShmEndpoint::park`]. `false`: nobody would ring.
    fn park(&self, _cx: &Context<'_>, _bell: RemoteAddr) -> bool {
        false
    }
}

impl WhileWaiting for ShmEndpoint {
    #[inline]
    fn tend(&self) {
        std::thread::yield_now();
    }

    #[inline]
    fn park(&self, cx: &Context<'_>, bell: RemoteAddr) -> bool {
        ShmEndpoint::park(self, cx, bell)
    }
}

/// An endpoint with messages `M`, whose pauses yield the processor.
pub(crate) struct Yielding<E, M> {
    endpoint: E,
    messages: M,
    /// The pauses since a request was last sent.
    pauses: Cell<u32>,
}

impl<E: WhileWaiting, M> Yielding<E, M> {
    pub fn new(endpoint: E, messages: M) -> Self {
        Self { endpoint, messages, pauses: Cell::new(0) }
    }

    /// The endpoint without messages, which does not yield.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    pub fn messages(&self) -> &M {
        &self.messages
    }

    #[inline]
    fn sends(&self) {
        self.pauses.set(0);
    }

    /// Called before a pause. Yields the processor from time to time.
    #[inline]
    fn offer(&self) {
        let pauses = self.pauses.get().wrapping_add(1);
        self.pauses.set(pauses);
        if pauses.is_multiple_of(PATIENT_POLLS) {
            self.endpoint.tend();
        }
    }
}

impl<E: WhileWaiting, M> Fabric for Yielding<E, M> {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read chase read_many read_word_and_bytes
        compare_swap compare_swap_many fetch_add is_mapped is_far store_before
        store_after announce load load_bytes reload
        will_read will_store raw posted is_settled store_when_settled take_back now_us wall_ms
        random ring is_core_wanted => endpoint
    );

    #[inline]
    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.sends();
        self.endpoint.write_unsignaled(at, bytes)
    }

    #[inline]
    fn write(
        &self,
        at: RemoteAddr,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.sends();
        self.endpoint.write(at, buf)
    }

    #[inline]
    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<(), FabricError> {
        self.sends();
        self.endpoint.store(at, parts)
    }

    #[inline]
    fn pause(&self, us: u64) -> impl Future<Output = ()> + '_ {
        self.offer();
        self.endpoint.pause(us)
    }

    #[inline]
    fn poll_wait(&self, cx: &mut Context<'_>, bell: Option<RemoteAddr>) {
        match bell {
            Some(bell) if self.endpoint.park(cx, bell) => (),
            bell => {
                self.offer();
                self.endpoint.poll_wait(cx, bell);
            }
        }
    }

    #[inline]
    fn yield_now(&self) -> impl Future<Output = ()> + '_ {
        self.offer();
        self.endpoint.yield_now()
    }
}

impl<E: WhileWaiting, M> UnreliableWrites for Yielding<E, M> {
    #[inline]
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.sends();
        self.endpoint.write_unreliable(at, bytes)
    }
}

impl<E, M: Messages> Messages for Yielding<E, M> {
    type Peer = M::Peer;

    loch_fabric::pass_on!(message_bytes_max address peer try_receive => messages);

    #[inline]
    fn send_all(&self, messages: &[(M::Peer, &[u8])]) -> Result<(), FabricError> {
        self.pauses.set(0);
        self.messages.send_all(messages)
    }
}
