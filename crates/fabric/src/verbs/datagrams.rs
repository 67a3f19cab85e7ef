//! Datagrams: a UD queue pair, and the buffers that messages leave from and arrive in.
//!
//! # Invariants
//! 1. A receive buffer is either posted to the card, or in `arrived`, or just being taken. So a
//!    message that arrives while all are full is lost, and no message is overwritten.
//! 2. Message `n` leaves from send buffer `n % SENDS`, and there are never more than `SENDS`
//!    messages under way. One of any `SIGNAL_EVERY` messages in a row is signaled, so a full queue
//!    moves on.
//! 3. The queue pair is destroyed before its buffers are deregistered: fields are dropped in order.
//! 4. A queue pair that failed is started anew when the card has no receive buffer any more and all
//!    completions were polled: so no buffer is posted twice.
//! 5. Every message carries the key of the queue pair that it comes from as its immediate data, so
//!    that the receiver can answer. A message without a key has no sender, and is dropped.
//! 6. Nothing is kept about the sender of a message: anybody can send any number of messages, each
//!    from another address. This end looks up the way to an address only when it sends a message
//!    there.
//!
//! # Faults
//! A port that goes down puts a queue pair that sends into its error state, for good. The queue
//! pair is started anew under its number, so its address stays; messages under way are lost, as
//! messages may be.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use crate::limits::{
    EMPTY_POLLS_MAX, RECEIVES, SEND_POLLS_MAX, SENDS, SIGNAL_EVERY, WAY_RETRY, WAYS_MAX,
};
use crate::messages::check_lengths;
use crate::{Buf, FabricError, MessageAddress, Messages, Result};
use rand::Rng;

use super::address::Address;
use super::host::os;
use super::pool::Mapping;
use super::routing_header::{HEADER_BYTES, source_gid};
use super::sys::{
    Ah, CHAIN_MAX, Caps, Chain, Completion, Cq, Kind, Local, Mr, Qp, Receive, Registration,
    Request, Status, Verb,
};
use super::{Device, VerbsError};

/// A thread that receives or sends datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(Address);

/// One thread's datagrams: up to a packet each, unreliable.
pub struct Datagrams {
    inner: RefCell<Inner>,
}

struct Inner {
    qp: Qp,
    /// The key that messages to the queue pair have to carry.
    qkey: u32,
    mr: Mr<Mapping>,
    cq: Arc<Cq>,
    device: Arc<Device>,
    mtu_bytes: usize,
    inline_bytes: usize,
    /// The threads of one host share one way; for a way that was not found, the time of the
    /// attempt. At most `WAYS_MAX`.
    ways: HashMap<Way, Result<Ah, Instant>>,
    chain: Box<Chain>,
    /// Messages sent, and those of them whose buffers are free again.
    sent: u32,
    done: u32,
    /// Receive buffers that the card has.
    posted: usize,
    /// The queue pair is in its error state.
    failed: bool,
    /// Messages that have arrived and were not taken: the sender, the buffer, and the bytes.
    arrived: VecDeque<(Peer, u16, usize)>,
    completions: Box<[Completion; BATCH]>,
    /// Polls in a row that brought nothing.
    empty_polls: u32,
}

/// A GID and a LID.
type Way = (u128, u16);

/// Bytes of a receive buffer: a header, and the largest packet, in whole cache lines.
const RECEIVE_BYTES: usize = 4160;
const SEND_BYTES: usize = 4096;
const BUFFER_BYTES: usize = RECEIVES * RECEIVE_BYTES + SENDS * SEND_BYTES;
const BATCH: usize = 32;
/// Marks the completions of receive buffers.
const RECEIVED: u64 = 1 << 32;

const _: () = assert!(RECEIVE_BYTES >= HEADER_BYTES + 4096 && RECEIVE_BYTES.is_multiple_of(64));
const _: () = assert!(SENDS > 2 * SIGNAL_EVERY as usize && SENDS.is_power_of_two());
const _: () = assert!(RECEIVES <= 1 << 16 && CHAIN_MAX <= SENDS);

impl Datagrams {
    /// A queue pair of its own, ready to receive.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn new(device: &Arc<Device>) -> Result<Self, VerbsError> {
        let info = device.describe();
        let cq = Cq::new(&device.context, (SENDS + RECEIVES) as u32);
        let cq = cq.map_err(os("make a completion queue"))?;
        let mapping = Mapping::new(BUFFER_BYTES).map_err(os("map buffers"))?;
        let start = mapping.start();
        // SAFETY: the mapping is held by the registration and so stays mapped as long as that; its
        // bytes are reached by copies through pointers only.
        let mr = unsafe { Mr::new(&device.pd, start, BUFFER_BYTES, Registration::Local, mapping) };
        let mr =
            mr.map_err(|source| VerbsError::Register { bytes: BUFFER_BYTES as u64, source })?;
        let inline_bytes = info.inline_bytes;
        let wanted = Caps { send: SENDS as u32, receive: RECEIVES as u32, inline_bytes };
        let made = Qp::new(&device.pd, Kind::Ud, &cq, &cq, wanted);
        let (qp, caps) = made.map_err(os("make a QP for datagrams"))?;
        // If its highest bit is set, a card replaces the key by the sender's own.
        let (psn, qkey) = (rand::rng().next_u32() >> 8, rand::rng().next_u32() >> 1);
        qp.open(info.port, qkey, psn).map_err(os("open a QP for datagrams"))?;
        let mut inner = Inner {
            qp,
            qkey,
            mr,
            cq,
            device: device.clone(),
            mtu_bytes: info.mtu_bytes as usize,
            inline_bytes: caps.inline_bytes as usize,
            ways: HashMap::new(),
            chain: Chain::new(),
            sent: 0,
            done: 0,
            posted: 0,
            failed: false,
            arrived: VecDeque::with_capacity(RECEIVES),
            completions: Box::new([Completion::none(); BATCH]),
            empty_polls: 0,
        };
        for index in 0..RECEIVES {
            inner.post_receive(index as u16).map_err(os("post a receive buffer"))?;
        }
        Ok(Self { inner: RefCell::new(inner) })
    }

    /// The address to which others send.
    pub fn address(&self) -> Address {
        let inner = self.inner.borrow();
        let end = inner.device.address(&inner.qp, 0);
        let (gid, lid, qp_number) = (end.gid, end.lid, end.qp_number);
        Address { gid, lid, qp_number, qkey: inner.qkey }
    }

    /// The peer at an address, to send to.
    ///
    /// # Errors
    /// [`VerbsError::Hostile`] for an invalid address, [`VerbsError::Os`] if there is no way to it.
    pub fn peer(&self, address: &Address) -> Result<Peer, VerbsError> {
        if address.qp_number >> 24 != 0 || (address.gid == [0; 16] && address.lid == 0) {
            return Err(VerbsError::Hostile { what: "an address that cannot be" });
        }
        let inner = &mut *self.inner.borrow_mut();
        if !matches!(inner.ways.get(&way_to(address)), Some(Ok(_))) {
            inner.find_way(address)?;
        }
        Ok(Peer(*address))
    }
}

impl Inner {
    #[cold]
    fn find_way(&mut self, to: &Address) -> Result<(), VerbsError> {
        let route = self.device.route(to.gid, to.lid);
        let found = Ah::new(&self.device.pd, &route);
        if self.ways.len() >= WAYS_MAX {
            // Chained messages refer to their ways. Posted messages that are not done may fail, and
            // the queue pair with them: messages are then lost, as they may be.
            self.post();
            self.ways.clear();
        }
        let (found, told) = match found {
            Ok(found) => (Ok(found), Ok(())),
            Err(error) => (Err(Instant::now()), Err(error)),
        };
        self.ways.insert(way_to(to), found);
        told.map_err(os("find a way to an address"))
    }

    /// A receive buffer.
    fn receive_place(&self, index: u16) -> *mut u8 {
        assert!(usize::from(index) < RECEIVES, "receive buffer {index}");
        // SAFETY: in bounds of the mapping by the assertion.
        unsafe { self.mr.memory().start().add(usize::from(index) * RECEIVE_BYTES) }
    }

    /// The send buffer of message `number`.
    fn send_place(&self, number: u32) -> *mut u8 {
        let index = number as usize % SENDS;
        // SAFETY: in bounds of the mapping: the send buffers follow the receive buffers.
        unsafe { self.mr.memory().start().add(RECEIVES * RECEIVE_BYTES + index * SEND_BYTES) }
    }

    /// Gives a receive buffer to the card.
    fn post_receive(&mut self, index: u16) -> std::io::Result<()> {
        let start = self.receive_place(index);
        // SAFETY: the buffer does not belong to the card (invariant 1) and has room for a header.
        // It is zeroed because the card may write a header only in part, and the rest of an older
        // header must not be taken for it.
        unsafe { start.write_bytes(0, HEADER_BYTES) };
        let local = Local { start, len: RECEIVE_BYTES as u32, lkey: self.mr.lkey() };
        // SAFETY: registered for as long as the queue pair lives (invariant 3), and left alone
        // until its completion was polled (invariant 1).
        unsafe { self.qp.post_receive(&Receive { id: RECEIVED | u64::from(index), local })? };
        self.posted += 1;
        Ok(())
    }

    /// Takes completions.
    fn progress(&mut self) {
        let count = match self.cq.poll(&mut self.completions[..]) {
            Ok(count) => count,
            Err(error) => return tracing::error!(%error, "cannot poll a completion queue"),
        };
        for index in 0..count {
            let completion = self.completions[index];
            let id = completion.id();
            self.posted -= usize::from(id & RECEIVED != 0);
            if completion.status() != Status::Done {
                self.fail(completion.status());
            }
            if id & RECEIVED == 0 {
                // If the queue pair was started anew meanwhile, this may be an old completion.
                let next = (id as u32).wrapping_add(1);
                if next.wrapping_sub(self.done) <= self.sent.wrapping_sub(self.done) {
                    self.done = next;
                }
            } else if completion.status() == Status::Done {
                self.take_in(&completion, id as u16);
            }
        }
        if self.failed && self.posted == 0 && count == 0 {
            self.start_anew();
        }
    }

    /// Makes the card give back all buffers. Only a failure of this end leads here.
    #[cold]
    fn fail(&mut self, status: Status) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        tracing::warn!(?status, "datagrams failed: they are started anew");
        if let Err(error) = self.qp.stop() {
            tracing::error!(%error, "cannot stop a QP for datagrams");
        }
    }

    /// Invariant 4.
    #[cold]
    fn start_anew(&mut self) {
        let (port, psn) = (self.device.describe().port, rand::rng().next_u32() >> 8);
        let opened = self.qp.reset().and_then(|()| self.qp.open(port, self.qkey, psn));
        if let Err(error) = opened {
            return tracing::debug!(%error, "cannot start a QP for datagrams anew");
        }
        (self.failed, self.done) = (false, self.sent);
        let kept = |index| self.arrived.iter().any(|(_, kept, _)| *kept == index);
        let free: Vec<u16> = (0..RECEIVES as u16).filter(|index| !kept(*index)).collect();
        free.into_iter().for_each(|index| self.give_back(index));
    }

    /// Finds the sender of the message in a receive buffer.
    fn take_in(&mut self, completion: &Completion, index: u16) {
        let mut header = [0; HEADER_BYTES];
        let place = self.receive_place(index);
        // SAFETY: the buffer's completion was polled, so it does not belong to the card any more.
        unsafe { place.copy_to_nonoverlapping(header.as_mut_ptr(), HEADER_BYTES) };
        let (qp_number, lid) = completion.source();
        let gid = if completion.has_routing_header() { source_gid(&header) } else { [0; 16] };
        let Some(qkey) = completion.immediate() else {
            return self.give_back(index);
        };
        let peer = Peer(Address { gid, lid, qp_number, qkey });
        match completion.bytes_received().checked_sub(HEADER_BYTES) {
            Some(len) if len <= RECEIVE_BYTES - HEADER_BYTES => {
                self.arrived.push_back((peer, index, len));
            }
            _ => self.give_back(index),
        }
    }

    fn give_back(&mut self, index: u16) {
        if self.failed {
            // It is posted when the queue pair is started anew.
            return;
        }
        if let Err(error) = self.post_receive(index) {
            tracing::error!(%error, "cannot post a receive buffer");
        }
    }

    /// The next message.
    fn take(&mut self, buf: &mut Buf) -> Option<Peer> {
        if self.arrived.is_empty() {
            self.progress();
        }
        let (peer, index, len) = self.arrived.pop_front()?;
        let place = self.receive_place(index);
        // SAFETY: the buffer does not belong to the card (invariant 1), and has a header and `len`
        // bytes, as `take_in` has checked; all of them are copied to the room given.
        unsafe {
            buf.append_with(len, |into| {
                place.add(HEADER_BYTES).copy_to_nonoverlapping(into, len);
            });
        }
        self.give_back(index);
        Some(peer)
    }

    /// Yields the processor after many polls that brought nothing.
    fn idle(&mut self) {
        self.empty_polls += 1;
        if self.empty_polls > EMPTY_POLLS_MAX {
            self.empty_polls = 0;
            std::thread::yield_now();
        }
    }

    /// Waits for a free send buffer, as long as the card needs for a message; returns whether there
    /// is one.
    fn wait_for_room(&mut self) -> bool {
        for _ in 0..SEND_POLLS_MAX {
            if (self.sent.wrapping_sub(self.done) as usize) < SENDS {
                return true;
            }
            self.progress();
        }
        false
    }

    /// Puts a message into the chain. It is lost, as messages may be, if there is no way to its
    /// peer.
    fn chain(&mut self, Peer(to): Peer, bytes: &[u8]) {
        let ah = match self.ways.get(&way_to(&to)) {
            Some(Ok(ah)) => ah,
            // A failed lookup can take a second, during which no client is served.
            Some(Err(when)) if when.elapsed() < WAY_RETRY => return,
            _ => match self.find_way(&to) {
                Ok(()) => self.ways[&way_to(&to)].as_ref().expect("it was found"),
                Err(error) => return tracing::debug!(%error, ?to, "datagrams are lost"),
            },
        };
        let number = self.sent;
        self.sent = self.sent.wrapping_add(1);
        let inline = bytes.len() <= self.inline_bytes;
        let start = if inline {
            bytes.as_ptr().cast_mut()
        } else {
            let start = self.send_place(number);
            // SAFETY: the buffer is free (invariant 2), and has room for a packet, which the caller
            // has checked the message against.
            unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            start
        };
        let local = Local { start, len: bytes.len() as u32, lkey: self.mr.lkey() };
        let Address { qp_number, qkey, .. } = to;
        self.chain.push(&Request {
            id: u64::from(number),
            verb: Verb::Send { to: ah, qp_number, qkey, immediate: self.qkey },
            local: Some(local),
            inline,
            signaled: number.is_multiple_of(SIGNAL_EVERY),
        });
    }

    /// Rings the doorbell. The bytes of inline messages must still be there, as they are: they are
    /// borrowed for as long as `send_all` runs.
    fn post(&mut self) {
        if self.chain.len() == 0 {
            return;
        }
        // SAFETY: messages that are not inline lie in send buffers, which are registered for as
        // long as the queue pair lives (invariant 3) and are not used again before their completion
        // (invariant 2). Inline messages are borrowed by `send_all`, which calls this.
        let posted = unsafe { self.qp.post(&mut self.chain) };
        if let Err(count) = posted {
            let lost = self.chain.len() - count;
            self.sent = self.sent.wrapping_sub(lost as u32);
            tracing::error!(lost, "cannot post datagrams");
        }
        self.chain.clear();
    }
}

fn way_to(address: &Address) -> Way {
    (u128::from_le_bytes(address.gid), address.lid)
}

impl Messages for Datagrams {
    type Peer = Peer;

    fn message_bytes_max(&self) -> usize {
        self.inner.borrow().mtu_bytes.min(SEND_BYTES)
    }

    fn address(&self) -> MessageAddress {
        Datagrams::address(self).to_plain()
    }

    /// An address without a way to it counts as invalid.
    fn peer(&self, address: &MessageAddress) -> Result<Peer> {
        let address = Address::from_plain(address)?;
        Datagrams::peer(self, &address).map_err(|error| {
            tracing::warn!(%error, ?address, "an address cannot be reached");
            FabricError::BadAddress { why: "there is no way to it" }
        })
    }

    /// Waits while the send queue is full, for as long as the card needs for a message.
    fn send_all(&self, messages: &[(Peer, &[u8])]) -> Result<()> {
        check_lengths(messages, self.message_bytes_max())?;
        let inner = &mut *self.inner.borrow_mut();
        if inner.failed {
            inner.progress();
        }
        if inner.failed {
            // All messages are lost, as messages may be.
            return Ok(());
        }
        for (to, bytes) in messages {
            if inner.chain.is_full() || inner.sent.wrapping_sub(inner.done) as usize == SENDS {
                inner.post();
            }
            if !inner.wait_for_room() {
                // The card makes no progress: the rest is lost, as messages may be.
                break;
            }
            inner.chain(*to, bytes);
        }
        inner.post();
        Ok(())
    }

    fn try_receive(&self, mut buf: Buf) -> Result<(Peer, Buf), Buf> {
        match self.inner.borrow_mut().take(&mut buf) {
            Some(peer) => Ok((peer, buf)),
            None => Err(buf),
        }
    }

    /// Waits, and yields the processor when nothing arrives.
    fn receive(&self, buf: Buf) -> impl Future<Output = (Peer, Buf)> + '_ {
        let mut buf = Some(buf);
        poll_fn(move |cx| {
            let mut taken = buf.take().expect("it is not polled again after it was ready");
            let inner = &mut *self.inner.borrow_mut();
            match inner.take(&mut taken) {
                Some(peer) => Poll::Ready((peer, taken)),
                None => {
                    buf = Some(taken);
                    inner.idle();
                    // For executors that sleep; the lanes' waker does nothing.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Selection;
    use std::time::Duration;

    /// Runs only where a device must be present, as in `tests/verbs.rs`.
    #[test]
    fn nothing_is_kept_of_who_sends() {
        if std::env::var_os("LOCH_VERBS_TEST").is_none() {
            return;
        }
        let device = Device::open(&Selection::default()).expect("there is one");
        let [worker, known, stranger] =
            [(); 3].map(|()| Datagrams::new(&device).expect("there is room"));
        let hears = |from: &Datagrams| {
            let to = from.peer(&worker.address()).expect("it is near");
            from.send(to, b"greeting").expect("it is short");
            let until = Instant::now() + Duration::from_secs(5);
            loop {
                if let Ok((peer, _)) = worker.try_receive(Buf::new()) {
                    return peer;
                }
                assert!(Instant::now() < until, "it does not arrive");
            }
        };
        let peer = hears(&known);
        for key in 0..100 {
            // As if each message came from another end.
            stranger.inner.borrow_mut().qkey = key;
            assert_eq!(hears(&stranger).0.qkey, key);
            assert_eq!(worker.inner.borrow().ways.len(), 0);
        }
        assert_eq!(hears(&known), peer);
        let there = worker.peer(&known.address()).expect("it is near");
        assert_eq!(there, peer);
        let Peer(mut address) = there;
        for host in 0..2 * WAYS_MAX as u16 - 1 {
            // Loopback addresses, which are resolved without an answer from a host.
            address.gid[12..].copy_from_slice(&[127, 1, (host >> 8) as u8, host as u8]);
            worker.send(Peer(address), b"to nobody").expect("it is short");
            assert!(worker.inner.borrow().ways.len() <= WAYS_MAX);
        }
        assert_eq!(
            worker.inner.borrow().ways.len(),
            WAYS_MAX,
            "all were found, the first ones twice"
        );
        let reached = (0..1000).any(|_| {
            worker.send(peer, b"reply").expect("it is short");
            (0..1000)
                .any(|_| matches!(known.try_receive(Buf::new()), Ok((_, m)) if m[..] == *b"reply"))
        });
        assert!(reached, "all ways were found anew");
    }
}
