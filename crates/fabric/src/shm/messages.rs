//! Messages between threads of one host: mailboxes in shared memory.
//!
//! A message is copied into the receiver's mailbox, into the ring that the sender has there, and
//! out of it by the receiver. `mailbox.rs` draws the bytes and says why there is a ring for each
//! pair; `ring.rs` holds the protocol of one ring and its loom models.
//!
//! # Semantics
//! Between two ends messages arrive whole, once, and in order. They are lost
//! * when the ring has no room: the receiver does not take them, or not fast enough;
//! * when the receiver's process ends before it has taken them: its successor in the same mailbox
//!   starts with messages that are sent from then on;
//! * when the sender's process is killed inside of [`Messages::send_all`]. A sender can be killed
//!   or stopped at any instruction: all others continue, and see only whole messages.
//!
//! An address stays valid when a successor replaces an end in the same mailbox, for example a
//! worker that starts again.
//!
//! # Speed
//! Sending touches the lines of the record and the line of the tail, and the receiver's head once
//! for each turn of the ring. There are no locked instructions and no fences. A receiver looks at
//! all tails at once and prefetches the first records of all rings that have some, before it takes
//! the first: their misses overlap. It takes all records that it has seen before it looks again, so
//! a sender that never rests does not keep it from the others.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::limits::{MAIL_MESSAGE_BYTES_MAX, MAIL_PEERS_MAX, REGIONS_MAX};
use crate::messages::{AddressKind, check_lengths};
use crate::{Buf, FabricError, MessageAddress, Messages, RegionId, RemoteAddr, Result};

use super::Region;
use super::mailbox::{Mailbox, record_bytes};
use super::ring::{Reader, Writer};

/// A thread that receives or sends messages, as one [`ShmMessages`] knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(u32);

/// One thread's messages to and from others of this host.
///
/// ```
/// use std::sync::Arc;
/// use loch_fabric::shm::{MailboxShape, Region, ShmMessages};
/// use loch_fabric::{Buf, Messages, RegionId, RemoteAddr};
///
/// let region = Arc::new(Region::anonymous(1 << 20)?);
/// let shape = MailboxShape::new(2, 64 << 10);
/// let regions = || [(RegionId(0), region.clone())];
/// let [client, worker] = [0, shape.bytes()].map(|offset| {
///     shape.format(&region, offset);
///     ShmMessages::open(regions(), RemoteAddr::new(RegionId(0), offset))
/// });
/// let (client, worker) = (client?, worker?);
///
/// let to_worker = client.peer(&worker.address())?;
/// client.send(to_worker, b"a request")?;
/// let (from, request) = worker.try_receive(Buf::new()).expect("it has arrived");
/// assert_eq!(&request[..], b"a request");
/// worker.send(from, b"the reply")?;
/// let (from, reply) = client.try_receive(request).expect("it has arrived");
/// assert_eq!((from, &reply[9..]), (to_worker, &b"the reply"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShmMessages {
    at: RemoteAddr,
    inner: RefCell<Inner>,
}

struct Inner {
    /// By their numbers.
    regions: Vec<Option<Arc<Region>>>,
    /// The name of this end in others' mailboxes.
    name: u64,
    mailbox: Mailbox,
    /// The receiver's end of each ring.
    rings: Box<[Incoming]>,
    /// Rings that were claimed when last looked at: the first ones.
    claimed: u32,
    /// Rings that had messages when they were last looked at.
    ready: Vec<u32>,
    peers: Vec<Outgoing>,
    numbers: HashMap<u64, Peer>,
    lost: u64,
}

/// A ring of this end's mailbox.
struct Incoming {
    reader: Reader,
    /// Its sender, once a message has arrived.
    from: Option<Peer>,
}

/// This end's ring in a peer's mailbox.
struct Outgoing {
    mailbox: Mailbox,
    ring: u32,
    writer: Writer,
}

/// The name of the end with this mailbox; never 0.
fn name_of(mailbox: RemoteAddr) -> u64 {
    mailbox.to_word().wrapping_add(1)
}

impl ShmMessages {
    /// Takes over the mailbox at `mailbox`; messages to its previous owner are lost. Peers'
    /// mailboxes have to be in one of `regions`, and their memory writable.
    ///
    /// The previous owner must have ended.
    ///
    /// # Errors
    /// [`FabricError::Unattached`] if its region is not among `regions`,
    /// [`FabricError::BadAddress`] if there is no mailbox, [`FabricError::ReadOnly`].
    ///
    /// # Panics
    /// If two regions have the same number.
    pub fn open(
        regions: impl IntoIterator<Item = (RegionId, Arc<Region>)>,
        mailbox: RemoteAddr,
    ) -> Result<Self> {
        let mut table = vec![None; REGIONS_MAX];
        for (id, region) in regions {
            let before = table[id.0 as usize].replace(region);
            assert!(before.is_none(), "region {} is given twice", id.0);
        }
        let own = open_mailbox(&table, mailbox)?;
        let ring = |ring| {
            let reader = Reader::restart(own.tail(ring), own.head(ring));
            Incoming { reader, from: None }
        };
        let inner = Inner {
            regions: table,
            name: name_of(mailbox),
            rings: (0..own.senders()).map(ring).collect(),
            claimed: 0,
            ready: Vec::with_capacity(own.senders() as usize),
            mailbox: own,
            peers: Vec::new(),
            numbers: HashMap::new(),
            lost: 0,
        };
        Ok(Self { at: mailbox, inner: RefCell::new(inner) })
    }

    /// Messages of this end that found no room and were lost.
    pub fn lost(&self) -> u64 {
        self.inner.borrow().lost
    }
}

fn open_mailbox(regions: &[Option<Arc<Region>>], at: RemoteAddr) -> Result<Mailbox> {
    let region = regions.get(at.region().0 as usize).and_then(Option::as_ref);
    let region = region.ok_or(FabricError::Unattached { region: at.region() })?;
    Mailbox::open(region.clone(), at)
}

impl Inner {
    /// The peer of that name; this end gets a ring in its mailbox.
    fn peer(&mut self, name: u64) -> Result<Peer> {
        if let Some(peer) = self.numbers.get(&name) {
            return Ok(*peer);
        }
        if self.peers.len() >= MAIL_PEERS_MAX {
            return Err(FabricError::PeersExhausted { max: MAIL_PEERS_MAX as u64 });
        }
        let at = RemoteAddr::from_word(name.wrapping_sub(1));
        let mailbox = open_mailbox(&self.regions, at)?;
        let ring = mailbox.claim(self.name)?;
        let (tail, head) = (mailbox.tail(ring), mailbox.head(ring));
        let writer = Writer::resume(tail, head, mailbox.ring_bytes());
        let peer = Peer(self.peers.len() as u32);
        self.peers.push(Outgoing { mailbox, ring, writer });
        self.numbers.insert(name, peer);
        Ok(peer)
    }

    /// Writes a message, which is sent when [`Self::publish`] is called for its peer.
    #[inline(always)]
    fn write(&mut self, to: Peer, bytes: &[u8]) {
        let Outgoing { mailbox, ring, writer } = &mut self.peers[to.0 as usize];
        match writer.room(mailbox.head(*ring), record_bytes(bytes.len())) {
            Some(position) => mailbox.write(*ring, position, bytes),
            None => self.lost += 1,
        }
    }

    #[inline(always)]
    fn publish(&mut self, to: Peer) {
        let Outgoing { mailbox, ring, writer } = &self.peers[to.0 as usize];
        writer.publish(mailbox.tail(*ring));
    }

    /// The next message, appended to `buf`.
    #[inline(always)]
    fn take(&mut self, buf: &mut Buf) -> Option<Peer> {
        if self.ready.is_empty() {
            self.look();
        }
        while let Some(ring) = self.ready.last() {
            let ring = *ring;
            let taken = self.take_from(ring, buf);
            if !self.rings[ring as usize].reader.has_more() {
                self.ready.pop();
            }
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// Finds the rings that have messages, and prefetches the lines of their first ones.
    #[inline(always)]
    fn look(&mut self) {
        while self.claimed < self.mailbox.senders() && self.mailbox.owner(self.claimed) != 0 {
            self.claimed += 1;
        }
        for ring in (0..self.claimed).rev() {
            let reader = &mut self.rings[ring as usize].reader;
            let (tail, head) = (self.mailbox.tail(ring), self.mailbox.head(ring));
            if reader.look(tail, head, self.mailbox.ring_bytes()) {
                self.mailbox.prefetch(ring, reader.at());
                self.ready.push(ring);
            }
        }
    }

    /// The next message of a ring that has some. `None` if the ring has no valid sender or the
    /// message is impossible; then all messages in the ring are dropped.
    #[inline(always)]
    fn take_from(&mut self, ring: u32, buf: &mut Buf) -> Option<Peer> {
        let from = match self.rings[ring as usize].from {
            Some(from) => Some(from),
            None => self.meet(ring),
        };
        let reader = &mut self.rings[ring as usize].reader;
        let position = reader.at();
        let len = self.mailbox.message_len(ring, position);
        match (from, len.filter(|len| reader.holds(record_bytes(*len)))) {
            (Some(from), Some(len)) => {
                self.mailbox.read(ring, position, len, buf);
                reader.take(self.mailbox.head(ring), record_bytes(len));
                Some(from)
            }
            _ => {
                reader.skip(self.mailbox.head(ring));
                None
            }
        }
    }

    /// Finds the sender of a ring. Messages of a sender that cannot be answered are ignored.
    #[cold]
    fn meet(&mut self, ring: u32) -> Option<Peer> {
        let peer = self.peer(self.mailbox.owner(ring));
        if let Err(error) = peer {
            tracing::debug!(ring, %error, "a sender that cannot be answered is not heard");
        }
        self.rings[ring as usize].from = peer.ok();
        self.rings[ring as usize].from
    }
}

impl Messages for ShmMessages {
    type Peer = Peer;

    fn message_bytes_max(&self) -> usize {
        MAIL_MESSAGE_BYTES_MAX
    }

    fn address(&self) -> MessageAddress {
        MessageAddress::new(AddressKind::Mailbox, [self.at.to_word(), 0, 0])
    }

    fn peer(&self, address: &MessageAddress) -> Result<Peer> {
        let [at, ..] = address.of_kind(AddressKind::Mailbox)?;
        self.inner.borrow_mut().peer(name_of(RemoteAddr::from_word(at)))
    }

    #[inline]
    fn send_all(&self, messages: &[(Peer, &[u8])]) -> Result<()> {
        check_lengths(messages, self.message_bytes_max())?;
        let inner = &mut *self.inner.borrow_mut();
        let mut messages = messages.iter().peekable();
        while let Some((to, bytes)) = messages.next() {
            inner.write(*to, bytes);
            // Messages in a row to one peer are sent by one store.
            if messages.peek().is_none_or(|(next, _)| next != to) {
                inner.publish(*to);
            }
        }
        Ok(())
    }

    #[inline]
    fn try_receive(&self, mut buf: Buf) -> Result<(Peer, Buf), Buf> {
        match self.inner.borrow_mut().take(&mut buf) {
            Some(peer) => Ok((peer, buf)),
            None => Err(buf),
        }
    }
}
