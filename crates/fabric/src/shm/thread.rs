//! One thread's way to the memory and the messages of its host, in one object, as engines want it.

use std::future::Future;

use super::{Peer, ShmEndpoint, ShmMessages};
use crate::limits::BUCKET_WORDS_MAX;
use crate::{
    Buf, Caps, Counters, Fabric, FabricError, MessageAddress, Messages, RegionId, RemoteAddr,
    UnreliableWrites,
};

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
    fn caps(&self) -> Caps {
        self.memory.caps()
    }

    fn counters(&self) -> &Counters {
        self.memory.counters()
    }

    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<(), FabricError>> + 'a {
        self.memory.read_words(at, out)
    }

    fn read_bucket(
        &self,
        at: RemoteAddr,
        words: usize,
    ) -> impl Future<Output = Result<[u64; BUCKET_WORDS_MAX], FabricError>> + '_ {
        self.memory.read_bucket(at, words)
    }

    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.memory.read(at, len, buf)
    }

    fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<u64, FabricError>)> + '_ {
        self.memory.read_word_and_bytes(word, at, len, buf)
    }

    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        self.memory.compare_swap(at, expect, new)
    }

    fn fetch_add(
        &self,
        at: RemoteAddr,
        add: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        self.memory.fetch_add(at, add)
    }

    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.memory.write_unsignaled(at, bytes)
    }

    fn write(
        &self,
        at: RemoteAddr,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.memory.write(at, buf)
    }

    fn is_mapped(&self, region: RegionId) -> bool {
        self.memory.is_mapped(region)
    }

    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<(), FabricError> {
        self.memory.store(at, parts)
    }

    fn store_before(&self, at: RemoteAddr, word: u64) -> Result<(), FabricError> {
        self.memory.store_before(at, word)
    }

    fn announce(&self, at: RemoteAddr, word: u64) -> Result<(), FabricError> {
        self.memory.announce(at, word)
    }

    #[inline]
    fn load(&self, at: RemoteAddr) -> Result<u64, FabricError> {
        self.memory.load(at)
    }

    fn load_bytes(&self, at: RemoteAddr, len: usize, buf: &mut Buf) -> Result<(), FabricError> {
        self.memory.load_bytes(at, len, buf)
    }

    fn reload(&self, at: RemoteAddr) -> Result<u64, FabricError> {
        self.memory.reload(at)
    }

    fn will_store(&self, at: RemoteAddr) {
        self.memory.will_store(at);
    }

    fn raw(&self, at: RemoteAddr, len: usize) -> Result<*mut u8, FabricError> {
        self.memory.raw(at, len)
    }

    fn now_us(&self) -> u64 {
        self.memory.now_us()
    }

    fn wall_ms(&self) -> u64 {
        self.memory.wall_ms()
    }

    fn random(&self) -> u64 {
        self.memory.random()
    }

    fn pause(&self, us: u64) -> impl Future<Output = ()> + '_ {
        self.memory.pause(us)
    }

    #[inline]
    fn breathe(&self) -> impl Future<Output = ()> + '_ {
        self.memory.breathe()
    }
}

impl UnreliableWrites for ShmThread {
    #[inline]
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.memory.write_unreliable(at, bytes)
    }
}
