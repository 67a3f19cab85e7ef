//! The positions of a ring with one sender and one receiver, and the rules by which the two may
//! touch its bytes.
//!
//! A position counts the bytes sent since the ring was made; its place is the remainder of the
//! position by the ring's length. Two words are shared. The **tail** says up to where records are
//! whole; only the sender stores it. The **head** says up to where records were taken; only the
//! receiver stores it.
//!
//! # Invariants
//! 1. The bytes from head to tail belong to the receiver, the others to the sender. Each side hands
//!    bytes over by storing its word after it has touched them for the last time
//!    ([`words::store_after`]).
//! 2. Both words are multiples of a line, so a line never belongs to both sides at a time.
//! 3. Neither side trusts the other: the sender treats an impossible word as a full ring, and the
//!    receiver then continues from the tail.
//!
//! # Faults survived
//! A sender that is killed at any instruction has stored its tail or has not: its successor
//! continues from the tail, and a half-written record behind the tail is not a message. A receiver
//! that starts again continues from the tail. A side that stands still holds nothing that the other
//! side waits for: a full ring is reported, and the sender does not wait for it.

use crate::limits::CACHE_LINE_BYTES;
use crate::sync::AtomicU64;

use super::words;

const LINE: u64 = CACHE_LINE_BYTES as u64;

/// A position rounded down to a whole line; every sound position is a whole line.
fn whole(position: u64) -> u64 {
    position & !(LINE - 1)
}

/// The sender's end of a ring.
#[derive(Debug)]
pub(super) struct Writer {
    /// Up to where records were written.
    tail: u64,
    /// The head as last seen.
    head: u64,
    ring_bytes: u64,
}

impl Writer {
    /// Continues where the last sender of this ring ended.
    pub fn resume(tail: &AtomicU64, head: &AtomicU64, ring_bytes: u64) -> Self {
        Self { tail: whole(words::load(tail)), head: words::load(head), ring_bytes }
    }

    /// The position of the next record, whose length is a number of whole lines, if there is room
    /// for it. The receiver does not see it before [`Self::publish`].
    #[inline(always)]
    pub fn room(&mut self, head: &AtomicU64, record_bytes: u64) -> Option<u64> {
        if !self.fits(record_bytes) {
            // Only now, because a look at the receiver's line is expensive.
            self.head = words::load(head);
            if !self.fits(record_bytes) {
                return None;
            }
        }
        let at = self.tail;
        self.tail = at.wrapping_add(record_bytes);
        Some(at)
    }

    #[inline(always)]
    fn fits(&self, record_bytes: u64) -> bool {
        // With an impossible head, more bytes seem to be used than the ring has.
        let used = self.tail.wrapping_sub(self.head);
        self.ring_bytes.checked_sub(used).is_some_and(|free| record_bytes <= free)
    }

    /// Gives the receiver all records that were written.
    #[inline(always)]
    pub fn publish(&self, tail: &AtomicU64) {
        words::store_after(tail, self.tail);
    }
}

/// The receiver's end of a ring.
#[derive(Debug)]
pub(super) struct Reader {
    /// Up to where records were taken.
    head: u64,
    /// The tail as last seen, never more than a ring ahead of the head.
    tail: u64,
}

impl Reader {
    /// Starts at the tail: messages to an earlier receiver are lost.
    pub fn restart(tail: &AtomicU64, head: &AtomicU64) -> Self {
        let at = whole(words::load(tail));
        words::store_after(head, at);
        Self { head: at, tail: at }
    }

    /// Whether there are records. Looks at the sender's word if all records that were seen are
    /// taken.
    #[inline(always)]
    pub fn look(&mut self, tail: &AtomicU64, head: &AtomicU64, ring_bytes: u64) -> bool {
        if self.head != self.tail {
            return true;
        }
        let seen = words::load(tail);
        if seen == self.tail {
            return false;
        }
        self.tail = whole(seen);
        if self.tail.wrapping_sub(self.head) > ring_bytes {
            // A sound sender is never that far ahead (invariant 3).
            self.skip(head);
        }
        self.head != self.tail
    }

    /// Whether some of the records that were seen are left.
    #[inline(always)]
    pub fn has_more(&self) -> bool {
        self.head != self.tail
    }

    /// The position of the next record.
    #[inline(always)]
    pub fn at(&self) -> u64 {
        self.head
    }

    /// Whether a record of this many bytes fits into the bytes that the sender has sent.
    #[inline(always)]
    pub fn holds(&self, record_bytes: u64) -> bool {
        record_bytes <= self.tail.wrapping_sub(self.head)
    }

    /// Gives the bytes of the next record back to the sender.
    #[inline(always)]
    pub fn take(&mut self, head: &AtomicU64, record_bytes: u64) {
        self.head = self.head.wrapping_add(record_bytes);
        words::store_after(head, self.head);
    }

    /// Gives back all bytes that were seen.
    #[cold]
    pub fn skip(&mut self, head: &AtomicU64) {
        self.head = self.tail;
        words::store_after(head, self.head);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const RING: u64 = 4 * LINE;

    fn ring() -> [AtomicU64; 2] {
        [AtomicU64::new(0), AtomicU64::new(0)]
    }

    #[test]
    fn a_full_ring_takes_nothing_until_something_is_taken() {
        let [tail, head] = ring();
        let mut writer = Writer::resume(&tail, &head, RING);
        let mut reader = Reader::restart(&tail, &head);
        assert_eq!(writer.room(&head, 3 * LINE), Some(0));
        assert_eq!(writer.room(&head, 2 * LINE), None);
        assert!(!reader.look(&tail, &head, RING), "nothing was published");
        writer.publish(&tail);
        assert!(reader.look(&tail, &head, RING) && reader.holds(3 * LINE));
        assert!(!reader.holds(4 * LINE));
        reader.take(&head, 3 * LINE);
        assert_eq!(writer.room(&head, 2 * LINE), Some(3 * LINE));
    }

    #[test]
    fn positions_pass_the_end_of_numbers() {
        let start = 0u64.wrapping_sub(2 * LINE);
        let [tail, head] = [AtomicU64::new(start), AtomicU64::new(start)];
        let mut writer = Writer::resume(&tail, &head, RING);
        let mut reader = Reader::restart(&tail, &head);
        for round in 0..4 {
            assert_eq!(writer.room(&head, LINE), Some(start.wrapping_add(round * LINE)));
            writer.publish(&tail);
            assert!(reader.look(&tail, &head, RING));
            reader.take(&head, LINE);
        }
    }

    #[test]
    fn words_that_cannot_be_lose_messages_and_nothing_else() {
        let [tail, head] = ring();
        let mut reader = Reader::restart(&tail, &head);
        for mad in [1, RING + 64, u64::MAX, 1 << 63, 65, 7] {
            words::store_after(&tail, mad);
            assert!(!reader.look(&tail, &head, RING) || reader.holds(LINE));
            reader.skip(&head);
            // The next sender finds a ring that works.
            let mut writer = Writer::resume(&tail, &head, RING);
            let at = writer.room(&head, LINE).expect("the receiver went on from the tail");
            writer.publish(&tail);
            assert!(reader.look(&tail, &head, RING) && reader.at() == at);
            reader.take(&head, LINE);
            // An impossible head counts as a full ring.
            words::store_after(&head, mad);
            let far = Writer::resume(&tail, &head, RING).room(&head, RING);
            assert_eq!(far, None);
            words::store_after(&head, reader.at());
        }
    }
}

/// Every interleaving, and every order of memory that the language allows, of a sender and a
/// receiver of a ring of two records. Budget: 10 seconds for the three together in a release build.
#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use crate::sync::Ordering::Relaxed;
    use loom::sync::Arc;
    use loom::thread;

    const RING: u64 = 2 * LINE;

    /// A ring whose records are two words, which are loaded and stored without any order.
    struct Shared {
        tail: AtomicU64,
        head: AtomicU64,
        words: [[AtomicU64; 2]; 2],
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let word = || AtomicU64::new(0);
            let words = [[word(), word()], [word(), word()]];
            Arc::new(Self { tail: word(), head: word(), words })
        }

        fn record(&self, at: u64) -> &[AtomicU64; 2] {
            &self.words[(at % RING / LINE) as usize]
        }

        /// Sends a record, or only its first `steps` of three steps; whether there was room.
        fn send(&self, writer: &mut Writer, number: u64, steps: usize) -> bool {
            let Some(at) = writer.room(&self.head, LINE) else { return false };
            for word in self.record(at).iter().take(steps) {
                word.store(number, Relaxed);
            }
            if steps > 2 {
                writer.publish(&self.tail);
            }
            true
        }

        /// Takes a record, which must be whole.
        fn take(&self, reader: &mut Reader) -> Option<u64> {
            if !reader.look(&self.tail, &self.head, RING) {
                return None;
            }
            assert!(reader.holds(LINE));
            let [first, second] = self.record(reader.at());
            let number = first.load(Relaxed);
            assert_eq!(number, second.load(Relaxed), "a torn record was taken");
            reader.take(&self.head, LINE);
            Some(number)
        }
    }

    fn writer(ring: &Shared) -> Writer {
        Writer::resume(&ring.tail, &ring.head, RING)
    }

    #[test]
    fn loom_records_arrive_whole_and_in_order() {
        loom::model(|| {
            let ring = Shared::new();
            let sender = ring.clone();
            let sending = thread::spawn(move || {
                let mut writer = writer(&sender);
                (1..=4).filter(|number| sender.send(&mut writer, *number, 3)).count()
            });
            let mut reader = Reader::restart(&ring.tail, &ring.head);
            let mut got: Vec<u64> = (0..3).filter_map(|_| ring.take(&mut reader)).collect();
            let sent = sending.join().expect("the sender does not panic");
            got.extend(std::iter::from_fn(|| ring.take(&mut reader)));
            assert!(got.is_sorted_by(|a, b| a < b), "{got:?}");
            assert!(got.len() <= sent && sent >= 2, "{got:?} of {sent}");
        });
    }

    #[test]
    fn loom_a_sender_may_die_anywhere() {
        for steps in 0..=3 {
            loom::model(move || {
                let ring = Shared::new();
                let sender = ring.clone();
                let sending = thread::spawn(move || {
                    let mut first = writer(&sender);
                    sender.send(&mut first, 1, 3);
                    sender.send(&mut first, 2, steps);
                    sender.send(&mut writer(&sender), 3, 3)
                });
                let mut reader = Reader::restart(&ring.tail, &ring.head);
                let mut got: Vec<u64> = (0..2).filter_map(|_| ring.take(&mut reader)).collect();
                sending.join().expect("the sender does not panic");
                got.extend(std::iter::from_fn(|| ring.take(&mut reader)));
                assert!(got.is_sorted_by(|a, b| a < b), "{got:?}");
                assert!(steps == 3 || !got.contains(&2), "it was not sent: {got:?}");
            });
        }
    }

    #[test]
    fn loom_a_receiver_may_start_again() {
        loom::model(|| {
            let ring = Shared::new();
            let sender = ring.clone();
            let sending = thread::spawn(move || {
                let mut writer = writer(&sender);
                (1..=3).filter(|number| sender.send(&mut writer, *number, 3)).count()
            });
            let mut reader = Reader::restart(&ring.tail, &ring.head);
            let before = ring.take(&mut reader);
            // The sender has died somewhere after its last look, and its successor knows nothing of
            // it.
            reader.look(&ring.tail, &ring.head, RING);
            let mut reader = Reader::restart(&ring.tail, &ring.head);
            let after = ring.take(&mut reader);
            sending.join().expect("the sender does not panic");
            assert!(before.is_none() || before < after.or(Some(4)), "{before:?}, {after:?}");
            while ring.take(&mut reader).is_some() {}
            assert!(ring.send(&mut writer(&ring), 9, 3), "all room is there again");
            assert_eq!(ring.take(&mut reader), Some(9));
        });
    }
}
