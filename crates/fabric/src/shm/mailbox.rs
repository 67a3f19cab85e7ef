//! A mailbox in a region: a ring for each thread that sends to it.
//!
//! | offset | bytes | field | stored by |
//! | --- | --- | --- | --- |
//! | 0 | 8 | `LOCHMAIL` | the process that formats it |
//! | 8 | 4 | *n*: senders that it has rings for | the process that formats it |
//! | 12 | 4 | *b*: bytes of a ring, a power of two | the process that formats it |
//! | 64 | 8*n* | the owners of the rings: the address of the sender's own mailbox + 1; 0: no owner | a sender, by CAS, once |
//! | 64 + L(8*n*) | 8*n* | tails | each ring's sender |
//! | 64 + 2 L(8*n*) | 8*n* | heads | the receiver |
//! | 64 + 3 L(8*n*) | *b* *n* | rings | each ring's sender |
//!
//! L rounds up to whole lines of 64 bytes; a mailbox begins on a line. A record in a ring:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | *m*: bytes of the message |
//! | 8 | *m* | the message; bytes that do not fit before the ring's end are at its start |
//! | | | unused, up to a whole line |
//!
//! # Why a ring for each sender
//! Senders of a shared queue meet at its tail: every message costs them an atomic on a contended
//! line, and if a sender dies between claiming a cell and filling it, its successors must know that
//! it is dead before the cell is used again. A sender with a ring of its own needs no atomic and
//! waits for nobody; whatever it does, it harms only its own messages. The price is memory, *b*
//! bytes for each pair that talks. It is bounded because senders are known: clients and workers
//! have places, and a place's mailbox is its name.
//!
//! The tails lie side by side, so that a receiver with many silent senders looks at few lines and
//! pages. A sender claims the lowest free ring, so the receiver looks at claimed rings only.
//!
//! # Invariants
//! 1. Rings are claimed in order and for good, by a sender's name: a successor with the same name
//!    finds the ring of its predecessor.
//! 2. A mailbox has one owner at a time, who receives from it and sends under its name. The holder
//!    of the place (a session slot, a worker's place) hands it on only after the previous owner has
//!    died.
//! 3. The header is copied once, when a mailbox is opened, and the copy is checked.
//!
//! A process that may write a mailbox's memory may forge and destroy its messages. It can neither
//! make the receiver touch memory outside of the mailbox nor keep it busy for good.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::limits::{CACHE_LINE_BYTES, MAIL_MESSAGE_BYTES_MAX, MAIL_RING_BYTES, MAIL_SENDERS_MAX};
use crate::sync::AtomicU64;
use crate::{Buf, FabricError, RemoteAddr, Result, bounds};

use super::{Region, copy, words};

const MAGIC: u64 = u64::from_le_bytes(*b"LOCHMAIL");
const LINE: u64 = CACHE_LINE_BYTES as u64;
const SHAPE_AT: u64 = 8;
const OWNERS_AT: u64 = 64;
const RECORD_HEADER_BYTES: u64 = 8;

const _: () = assert!(SHAPE_AT + 8 <= OWNERS_AT && OWNERS_AT.is_multiple_of(LINE));
const _: () = assert!(*MAIL_RING_BYTES.start() as u64 >= record_bytes(MAIL_MESSAGE_BYTES_MAX));

/// Bytes of a record with a message of `len` bytes: whole lines, so that a sender never writes a
/// line that is being read.
#[inline(always)]
pub(super) const fn record_bytes(len: usize) -> u64 {
    (RECORD_HEADER_BYTES + len as u64).next_multiple_of(LINE)
}

/// How much memory a mailbox has, and for how many senders.
///
/// ```
/// use loch_fabric::shm::MailboxShape;
/// let shape = MailboxShape::new(256, 16 << 10);
/// assert_eq!(shape.bytes(), 64 + 3 * 8 * 256 + 256 * (16 << 10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxShape {
    senders: u32,
    ring_bytes: u32,
}

impl MailboxShape {
    /// Rings for `senders` senders. A ring has room for `ring_bytes / 64` of the shortest messages
    /// and for `ring_bytes / 4160` of the longest; a message that finds no room is lost.
    ///
    /// # Panics
    /// If there are no senders or over [`MAIL_SENDERS_MAX`], or `ring_bytes` is no power of two in
    /// [`MAIL_RING_BYTES`].
    pub const fn new(senders: u32, ring_bytes: u32) -> Self {
        let shape = Self { senders, ring_bytes };
        assert!(shape.is_sound(), "a mailbox that cannot be");
        shape
    }

    const fn is_sound(self) -> bool {
        self.senders > 0
            && self.senders <= MAIL_SENDERS_MAX
            && self.ring_bytes.is_power_of_two()
            && self.ring_bytes >= *MAIL_RING_BYTES.start()
            && self.ring_bytes <= *MAIL_RING_BYTES.end()
    }

    /// Bytes of memory, whole lines.
    pub const fn bytes(self) -> u64 {
        self.ring_at(self.senders)
    }

    /// Makes an empty mailbox. No thread may use the memory at this time: neither the owner of an
    /// old mailbox nor its senders.
    ///
    /// # Panics
    /// If `offset` is no multiple of 64, or the mailbox is not wholly inside the region, or the
    /// region is mapped read-only.
    pub fn format(self, region: &Region, offset: u64) {
        assert!(offset.is_multiple_of(LINE), "a mailbox begins on a line");
        let inside = bounds::is_inside(offset, self.bytes(), region.len());
        assert!(inside, "the mailbox is not in the region");
        let mut first = [0; OWNERS_AT as usize];
        first[..8].copy_from_slice(&MAGIC.to_le_bytes());
        first[8..12].copy_from_slice(&self.senders.to_le_bytes());
        first[12..16].copy_from_slice(&self.ring_bytes.to_le_bytes());
        region.copy_in(offset, &first);
        for line in (OWNERS_AT..self.ring_at(0)).step_by(LINE as usize) {
            region.copy_in(offset + line, &[0; LINE as usize]);
        }
    }

    const fn array_bytes(self) -> u64 {
        (8 * self.senders as u64).next_multiple_of(LINE)
    }

    const fn tails_at(self) -> u64 {
        OWNERS_AT + self.array_bytes()
    }

    const fn heads_at(self) -> u64 {
        OWNERS_AT + 2 * self.array_bytes()
    }

    const fn ring_at(self, ring: u32) -> u64 {
        OWNERS_AT + 3 * self.array_bytes() + ring as u64 * self.ring_bytes as u64
    }
}

/// A mailbox mapped into this process, for writing.
pub(super) struct Mailbox {
    /// Its first byte. Invariant: `shape.bytes()` bytes from here are inside of what `_region`
    /// maps, and it begins on a line.
    base: NonNull<u8>,
    shape: MailboxShape,
    _region: Arc<Region>,
}

// SAFETY: `base` points into the mapping that `_region` holds; a mapping belongs to the process,
// not to a thread, and `Region` is `Send` itself.
unsafe impl Send for Mailbox {}

impl Mailbox {
    /// Opens the mailbox at `at`, which is in `region`.
    ///
    /// # Errors
    /// [`FabricError::BadAddress`] if there is none, [`FabricError::ReadOnly`] if the region is.
    pub fn open(region: Arc<Region>, at: RemoteAddr) -> Result<Self> {
        let bad = |why| FabricError::BadAddress { why };
        let is_inside = |bytes: u64| bounds::is_inside(at.offset(), bytes, region.len());
        if !at.offset().is_multiple_of(LINE) || !is_inside(OWNERS_AT) {
            return Err(bad("it is not inside of its region"));
        }
        if !region.is_writable() {
            return Err(FabricError::ReadOnly { at });
        }
        let mut header = [0; SHAPE_AT as usize + 8];
        region.copy_out(at.offset(), &mut header);
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let shape = MailboxShape { senders: number(8), ring_bytes: number(12) };
        if header[..8] != MAGIC.to_le_bytes() || !shape.is_sound() || !is_inside(shape.bytes()) {
            return Err(bad("there is no mailbox"));
        }
        // SAFETY: the mailbox is inside of the mapping, as was just checked.
        let base = unsafe { region.base().add(at.offset() as usize) };
        Ok(Self { base, shape, _region: region })
    }

    pub fn senders(&self) -> u32 {
        self.shape.senders
    }

    pub fn ring_bytes(&self) -> u64 {
        u64::from(self.shape.ring_bytes)
    }

    /// The ring of the sender with that name, claimed now if it has none.
    ///
    /// # Errors
    /// [`FabricError::PeersExhausted`] if all rings belong to others.
    pub fn claim(&self, name: u64) -> Result<u32> {
        assert!(name != 0, "nobody's name");
        for ring in 0..self.senders() {
            let owner = words::load(self.owner_word(ring));
            let owner = match owner {
                0 => words::compare_swap(self.owner_word(ring), 0, name),
                owner => owner,
            };
            if owner == 0 || owner == name {
                return Ok(ring);
            }
        }
        Err(FabricError::PeersExhausted { max: u64::from(self.senders()) })
    }

    /// The owner of a ring; 0 if it has none.
    pub fn owner(&self, ring: u32) -> u64 {
        words::load(self.owner_word(ring))
    }

    fn owner_word(&self, ring: u32) -> &AtomicU64 {
        self.word(OWNERS_AT, ring)
    }

    #[inline(always)]
    pub fn tail(&self, ring: u32) -> &AtomicU64 {
        self.word(self.shape.tails_at(), ring)
    }

    #[inline(always)]
    pub fn head(&self, ring: u32) -> &AtomicU64 {
        self.word(self.shape.heads_at(), ring)
    }

    /// A ring's word of the array at that offset.
    #[inline(always)]
    fn word(&self, array_at: u64, ring: u32) -> &AtomicU64 {
        assert!(ring < self.shape.senders, "ring {ring} of {}", self.shape.senders);
        let offset = array_at + 8 * u64::from(ring);
        // SAFETY: an array has a word for each ring, is inside of the mailbox, and begins on a
        // line; every process reaches these bytes as atomics or in the copy engine only.
        unsafe { &*self.base.as_ptr().add(offset as usize).cast::<AtomicU64>() }
    }

    /// The first byte of a record, and the number of bytes from it to the ring's end.
    #[inline(always)]
    fn place(&self, ring: u32, position: u64) -> (*mut u8, usize) {
        assert!(ring < self.shape.senders, "ring {ring} of {}", self.shape.senders);
        let within = position & (self.ring_bytes() - 1) & !(LINE - 1);
        // SAFETY: inside of the ring, as its length is a power of two, and so of the mailbox.
        let place = unsafe { self.base.as_ptr().add((self.shape.ring_at(ring) + within) as usize) };
        (place, (self.ring_bytes() - within) as usize)
    }

    /// Writes a record. The caller must have room for it there.
    #[inline(always)]
    pub fn write(&self, ring: u32, position: u64, message: &[u8]) {
        assert!(message.len() <= MAIL_MESSAGE_BYTES_MAX, "a message of {} bytes", message.len());
        let (place, rest) = self.place(ring, position);
        let first = message.len().min(rest - RECORD_HEADER_BYTES as usize);
        // SAFETY: a place has a line at least, which the header's word begins. `first` bytes fit
        // behind it, and the others at the start of the ring, which has room for the longest
        // message (asserted above). Others reach these bytes as atomics or in the copy engine only.
        unsafe {
            words::store_before(&*place.cast::<AtomicU64>(), message.len() as u64);
            copy::copy_in(message.as_ptr(), place.add(RECORD_HEADER_BYTES as usize), first);
            if first < message.len() {
                let (start, _) = self.place(ring, 0);
                copy::copy_in(message.as_ptr().add(first), start, message.len() - first);
            }
        }
    }

    /// The length that the record at a position claims, if it is possible.
    #[inline(always)]
    pub fn message_len(&self, ring: u32, position: u64) -> Option<usize> {
        let (place, _) = self.place(ring, position);
        // SAFETY: a place has a line at least, and is aligned as one.
        let len = words::load(unsafe { &*place.cast::<AtomicU64>() });
        usize::try_from(len).ok().filter(|len| *len <= MAIL_MESSAGE_BYTES_MAX)
    }

    /// Appends the message of `len` bytes at a position to `buf`.
    #[inline(always)]
    pub fn read(&self, ring: u32, position: u64, len: usize, buf: &mut Buf) {
        assert!(len <= MAIL_MESSAGE_BYTES_MAX, "a message of {len} bytes");
        let (place, rest) = self.place(ring, position);
        let first = len.min(rest - RECORD_HEADER_BYTES as usize);
        // SAFETY: as in `write`: `first` bytes lie behind the header and the others at the start of
        // the ring; all `len` of them are copied to the room given.
        unsafe {
            buf.append_with(len, |into| {
                copy::copy_out(place.add(RECORD_HEADER_BYTES as usize), into, first);
                if first < len {
                    copy::copy_out(self.place(ring, 0).0, into.add(first), len - first);
                }
            });
        }
    }

    /// Prefetches the first lines of the record at a position.
    #[inline(always)]
    pub fn prefetch(&self, ring: u32, position: u64) {
        copy::prefetch(self.place(ring, position).0);
        copy::prefetch(self.place(ring, position.wrapping_add(LINE)).0);
    }
}
