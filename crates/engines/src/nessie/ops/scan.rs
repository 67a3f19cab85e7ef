//! SCAN: the keys of the table, run by run of the index (protocol C).
//!
//! A word stays in its slot as long as its key has the same value, unless a MOVE takes it along. It
//! may then come to a slot that the scan has passed, from one that the scan has not reached. So a
//! mover notes the destination in the [move ring](crate::nessie::moves) of its node after the copy
//! is in place, and before the source is dropped, and the scan looks at the noted buckets too.
//!
//! # Why no key is missed
//! Suppose that a key has a value all the time, and that the scan did not see it when it passed the
//! slot where the key was at the start. Then that slot had been dropped before, so the move was
//! noted before. The ring is read after that, so the scan looks at the destination, where the copy
//! stood before the move was noted. If the key is not there either, then it has been moved on
//! before this look, and that move was noted before it too. The scan ends only when the counts of
//! all rings, read after the last look, say that nothing was noted since. So the last of those
//! moves was looked at as well, and there the key is.

use loch_fabric::limits::DOORBELL_READS_MAX;
use loch_fabric::{Buf, Fabric, RemoteAddr, lanes};

use crate::error::EngineError;
use crate::limits::SCAN_STEP_BUCKETS;
use crate::nessie::client::{Attempts, Client};
use crate::nessie::layout::dte::Header;
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::moves::{MoveRing, Noted};
use crate::planted::{self, Bug};
use crate::scan::{Cursor, Listed};

/// Entries that are read side by side.
const LANES: usize = 16;
/// Moves of one node at which a step looks.
const MOVES_OF_STEP: u64 = 1024;
/// How often a scan that has nothing else to do waits for a noted move to be written. The mover may
/// have died in between.
const WAITS_MAX: u32 = 50;
const WAIT_US: u64 = 200;

impl<F: Fabric> Client<F> {
    /// Does the next step of a scan: hands the keys of a run of buckets to `found`, and those that
    /// were moved meanwhile. Returns where the scan goes on; `None` if it has come to its end.
    ///
    /// # Errors
    /// The fabric's; [`EngineError::Timeout`] if other clients keep changing a slot. The step can
    /// be tried again.
    pub async fn scan(
        &self,
        from: &Cursor,
        found: &mut dyn FnMut(Listed<'_>),
    ) -> Result<Option<Cursor>, EngineError> {
        let _epoch = self.session.pin(&self.fabric)?;
        let mut at = from.clone();
        if at.noted.len() != self.map.data_tables() || at.place > self.map.buckets() {
            at = Cursor { noted: self.count_moves().await?, ..Cursor::default() };
        }
        if at.place < self.map.buckets() {
            let (run, count) = self.map.run(at.place, SCAN_STEP_BUCKETS);
            self.list(run, count, found).await?;
            at.place += count;
        }
        let is_level = self.look_at_moves(&mut at, found).await?;
        Ok((!is_level || at.place < self.map.buckets()).then_some(at))
    }

    /// The number of moves that were noted on each node.
    async fn count_moves(&self) -> Result<Vec<u64>, EngineError> {
        let rings = (0..self.map.data_tables()).map(|dti| self.map.move_ring(dti as u8).count());
        let rings: Vec<_> = rings.collect();
        let mut counts = vec![0; rings.len()];
        for (some, counts) in
            rings.chunks(DOORBELL_READS_MAX).zip(counts.chunks_mut(DOORBELL_READS_MAX))
        {
            self.fabric.read_words(some, counts).await?;
        }
        Ok(counts)
    }

    /// Looks at the buckets to which words were moved since. Returns `true` if there were none.
    async fn look_at_moves(
        &self,
        at: &mut Cursor,
        found: &mut dyn FnMut(Listed<'_>),
    ) -> Result<bool, EngineError> {
        let counts = self.count_moves().await?;
        if counts == at.noted || planted::is(Bug::MovesNotFollowed) {
            return Ok(true);
        }
        // A count falls when its node comes back with other memory.
        if at.noted.iter().zip(&counts).any(|(noted, count)| noted > count) {
            return Ok(begin_again(at, counts));
        }
        let (before, is_last) = (at.noted.clone(), at.place == self.map.buckets());
        for (dti, count) in counts.iter().enumerate() {
            let ring = self.map.move_ring(dti as u8);
            let end = (*count).min(at.noted[dti].saturating_add(MOVES_OF_STEP));
            while at.noted[dti] < end {
                let number = at.noted[dti];
                let word = self.read_word(ring.entry(number)).await?;
                match MoveRing::noted(word, number) {
                    Noted::To(distance) => {
                        self.list(self.map.shards()[dti].add(distance), 1, found).await?;
                    }
                    Noted::NotYet if planted::is(Bug::MoveAwaitedInVain) => (),
                    Noted::NotYet if is_last && at.waited >= WAITS_MAX => {
                        return Ok(begin_again(at, counts));
                    }
                    Noted::NotYet => break,
                    // More moves than the ring holds.
                    Noted::Lost => return Ok(begin_again(at, counts)),
                }
                at.noted[dti] += 1;
            }
        }
        at.waited = if is_last && at.noted == before { at.waited + 1 } else { 0 };
        if at.waited > 0 {
            self.fabric.pause(WAIT_US).await;
        }
        Ok(false)
    }

    /// Hands the keys in some buckets of one shard to `found`.
    async fn list(
        &self,
        run: RemoteAddr,
        buckets: u64,
        found: &mut dyn FnMut(Listed<'_>),
    ) -> Result<(), EngineError> {
        let geometry = &self.map.shape.geometry;
        let bytes = (buckets * geometry.bucket_bytes()) as usize;
        let (block, done) = self.fabric.read(run, bytes, Buf::with_capacity(bytes)).await;
        done?;
        let words = block.as_chunks().0.iter().enumerate();
        let slots = words.filter(|(at, _)| {
            // The last word of a bucket may be that of its marks.
            at % geometry.bucket_words() < usize::from(geometry.bucket_slots)
        });
        let looks = slots
            .map(|(at, word)| (run.add(at as u64 * 8), Ite(u64::from_le_bytes(*word))))
            .filter(|(_, word)| self.map.codec.is_visible(*word))
            .map(|(slot, word)| self.head_in(slot, word));
        let mut result = Ok(());
        lanes::run(LANES, looks, |head| match head {
            Ok(Some((header, head))) if !self.is_expired(&header, &head) => found(Listed {
                key: &head[header.key_at()..header.value_at()],
                value_bytes: header.value_len() as u64,
                version: header.version,
                expires_at_ms: header.expires_at_ms(&head),
            }),
            Ok(_) => (),
            Err(error) => result = Err(error),
        })
        .await;
        result
    }

    /// The entry that a slot shows, up to its value; `None` if it shows none. The slot has shown
    /// `word`.
    async fn head_in(
        &self,
        slot: RemoteAddr,
        mut word: Ite,
    ) -> Result<Option<(Header, Buf)>, EngineError> {
        let mut attempts = Attempts::default();
        while self.map.codec.is_visible(word) {
            let head = self.read_head(word).await?;
            // No grace period waits for an observer.
            if head.is_some()
                && (!self.session.is_observer() || self.read_word(slot).await? == word.0)
            {
                return Ok(head);
            }
            attempts.again(self).await?;
            word = Ite(self.read_word(slot).await?);
        }
        Ok(None)
    }
}

/// Begins a scan again that can no longer tell what was moved. Moves that were noted before it
/// begins need no look.
fn begin_again(at: &mut Cursor, counts: Vec<u64>) -> bool {
    *at = Cursor { noted: counts, ..Cursor::default() };
    false
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::epoch::Session;
    use crate::nessie::client::tests::{client, clients_with};
    use crate::nessie::layout::geometry::Options;
    use crate::operation::PutOptions;

    /// The keys that a step finds, and where the scan goes on.
    fn step<F: Fabric>(
        client: &Client<F>,
        from: &Cursor,
        found: &mut BTreeSet<Vec<u8>>,
    ) -> Option<Cursor> {
        block_on(client.scan(from, &mut |one| _ = found.insert(one.key.to_vec()))).unwrap()
    }

    fn scan<F: Fabric>(client: &Client<F>, mut from: Cursor) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        for _ in 0..1000 {
            match step(client, &from, &mut found) {
                Some(next) => from = next,
                None => return found,
            }
        }
        panic!("the scan does not end: {from:?}");
    }

    /// A client of a table with keys, and their names; the longest are longer than the first READ
    /// of an entry.
    fn filled() -> (Client<impl Fabric>, BTreeSet<Vec<u8>>) {
        let client = client(2 << 20);
        let names: BTreeSet<Vec<u8>> = (0..200u8).map(|n| vec![n; 1 + n as usize]).collect();
        for name in &names {
            block_on(client.put(name, b"value", PutOptions::default())).unwrap();
        }
        (client, names)
    }

    #[test]
    fn a_cursor_that_is_not_the_tables_begins_again() {
        let (client, names) = filled();
        let all = client.map.buckets();
        for (place, noted) in [(all + 1, vec![0]), (all, vec![]), (all, vec![9]), (3, vec![0, 0])] {
            let from = Cursor { place, noted, waited: 0 };
            assert_eq!(scan(&client, from.clone()), names, "{from:?}");
        }
        let end = Cursor { place: all, noted: vec![0], waited: 0 };
        assert_eq!(scan(&client, end), BTreeSet::new());
    }

    /// No grace period waits for an observer: the entry may have got another key while it was read.
    #[test]
    fn an_observer_believes_an_entry_only_if_its_slot_still_shows_it() {
        let [client, mut observer] = clients_with(2 << 20, Options::default());
        observer.session = Session::observer(observer.session.home());
        block_on(client.put(b"key", b"value", PutOptions::default())).unwrap();
        let slot = client.candidates(b"key").unwrap().slot(0);
        let word = Ite(client.fabric.load(slot).unwrap());
        let finds = |client: &Client<_>| block_on(client.head_in(slot, word)).unwrap().is_some();
        assert!(finds(&observer));
        block_on(client.delete(b"key")).unwrap();
        assert_eq!((finds(&client), finds(&observer)), (true, false));
    }

    #[test]
    fn a_scan_begins_again_when_the_ring_does_not_hold_all_moves() {
        let (client, names) = filled();
        let ring = client.map.move_ring(0);
        let (mut found, bucket) = (BTreeSet::new(), client.map.shards()[0]);
        let next = step(&client, &Cursor::default(), &mut found).unwrap();
        for _ in 0..=ring.entries() {
            block_on(client.note_move(bucket)).unwrap();
        }
        let again = step(&client, &next, &mut found).unwrap();
        assert_eq!((again.place, &again.noted[..]), (0, &[ring.entries() + 1][..]));
        assert_eq!(scan(&client, again), names);
    }

    #[test]
    fn a_move_that_is_never_written_is_waited_for_and_then_passed() {
        let (client, names) = filled();
        let first = step(&client, &Cursor::default(), &mut BTreeSet::new()).unwrap();
        // Its mover is dead.
        block_on(client.fabric.fetch_add(client.map.move_ring(0).count(), 1)).unwrap();
        assert_eq!(scan(&client, first), names);
    }
}
