//! MOVE (nessie §4.2.3, repaired): making room by moving an entry to another of its candidates.
//!
//! Only the index word moves; the data stays. The source is **frozen** (F, which names the
//! destination), the destination gets a **copy** (C, which names the source), and then, strictly in
//! this order, the source is dropped and the copy becomes visible for good. F and C are both
//! readable and name the same entry, so readers notice nothing. A mover may stop anywhere. Any
//! writer of the key that meets F or C completes the move, or undoes it if the copy was never made.
//!
//! Between copy and drop the mover looks at all other candidates of the key that it moves. A
//! tentative insert of that key may have looked at the two slots at moments when it saw the value
//! in neither, so the mover removes it. For the same reason the mover gives a free home a new tag.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use crate::error::EngineError;
use crate::limits::{EVICTING_SEARCH_SLOTS_MAX, LOOKS_MAX, MOVE_DEPTH_MAX, MOVE_SEARCH_SLOTS_MAX};
use crate::nessie::client::Client;
use crate::nessie::client::look::Words;
use crate::nessie::layout::dte::{EXPIRY_BYTES, HEADER_BYTES, Header};
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::{Ite, State};
use crate::nessie::layout::moves::MoveRing;
use crate::planted::{self, Bug};

/// Bytes of the key that are read with the header of an entry whose key is not known.
const KEY_GUESS_BYTES: usize = 64;

/// An entry that may be moved to make room.
struct Victim {
    at: RemoteAddr,
    word: Ite,
    /// The victim that this one would make room for, by its place in the search.
    for_the_sake_of: Option<usize>,
    depth: usize,
    /// The victim's key and candidates, once they are read.
    key: Option<(Vec<u8>, Candidates)>,
}

/// One move of a chain.
pub(in crate::nessie) struct Step {
    pub key: Vec<u8>,
    /// The candidates of the key that moves.
    pub candidates: Candidates,
    pub from: usize,
    pub word: Ite,
    pub to: usize,
}

/// The outcome of a search for moves that free a slot.
pub(in crate::nessie) enum Room {
    /// A slot changed: it may be free now.
    Changed,
    /// These moves free a slot, one after the other.
    Chain(Vec<Step>),
    /// No moves free a slot; but these words are about to change.
    Unsettled(Vec<Ite>),
}

/// The chain in which victim `last` moves to its candidate `to`, then the victim that it makes room
/// for moves to its old slot, and so on. `None` if a slot is not a candidate of the key that was
/// read from it.
fn chain_of(search: &[Victim], last: usize, to: usize) -> Option<Vec<Step>> {
    let (mut at, mut to, mut steps) = (last, to, Vec::new());
    loop {
        let victim = &search[at];
        let (key, candidates) = victim.key.clone().expect("a victim on the way was read");
        let from = candidates.index_of(victim.at)?;
        steps.push(Step { key, candidates, from, word: victim.word, to });
        let Some(parent) = victim.for_the_sake_of else { return Some(steps) };
        let (_, parents) = search[parent].key.as_ref().expect("a parent was read first");
        (at, to) = (parent, parents.index_of(victim.at)?);
    }
}

impl<F: Fabric> Client<F> {
    /// Frees one of a key's slots, all of which are taken, by moving other entries. `false` if no
    /// chain of moves can do it; `true` does not promise that a slot is still free.
    pub(super) async fn make_slot(
        &self,
        candidates: &Candidates,
        words: &Words,
    ) -> Result<bool, EngineError> {
        match self.find_room(candidates, words).await? {
            Room::Changed => Ok(true),
            Room::Chain(steps) => {
                for Step { key, candidates, from, word, to } in &steps {
                    if !self.migrate(candidates, key, *from, *word, *to).await? {
                        break;
                    }
                }
                Ok(true)
            }
            Room::Unsettled(words) => {
                for word in &words {
                    self.settle(*word).await?;
                }
                Ok(!words.is_empty())
            }
        }
    }

    /// Looks for moves that free one of a key's slots. The search is breadth-first, which finds the
    /// shortest chain. The chain is made from its end, so that every entry is always in a slot.
    pub(in crate::nessie) async fn find_room(
        &self,
        candidates: &Candidates,
        words: &Words,
    ) -> Result<Room, EngineError> {
        // In a table that evicts, room is made in another way if it is not easily found.
        let most = match self.evicts() {
            true => EVICTING_SEARCH_SLOTS_MAX,
            false => MOVE_SEARCH_SLOTS_MAX,
        };
        let mut search = Vec::new();
        let mut unsettled = Vec::new();
        for (slot, word) in words.iter().copied().enumerate().take(candidates.count()) {
            match self.victim(candidates.slot(slot), word, None, 0) {
                Some(victim) => search.push(victim),
                None if self.is_unsettled(word) => unsettled.push(word),
                None => (),
            }
        }
        let mut next = 0;
        while next < search.len() {
            let Some((key, theirs)) = self.occupant(search[next].word).await? else {
                // The slot changed meanwhile: it may be free now.
                return Ok(Room::Changed);
            };
            search[next].key = Some((key, theirs));
            let others = self.collect(&theirs).await?;
            for (slot, word) in others.into_iter().enumerate().take(theirs.count()) {
                if self.map.codec.is_empty(word) {
                    return Ok(chain_of(&search, next, slot).map_or(Room::Changed, Room::Chain));
                }
                let (at, depth) = (theirs.slot(slot), search[next].depth + 1);
                let known = search.iter().any(|v| v.at == at);
                if known || depth >= MOVE_DEPTH_MAX || search.len() >= most {
                    continue;
                }
                match self.victim(at, word, Some(next), depth) {
                    Some(victim) => search.push(victim),
                    None if self.is_unsettled(word) => unsettled.push(word),
                    None => (),
                }
            }
            next += 1;
        }
        Ok(Room::Unsettled(unsettled))
    }

    /// Settles what a client, which may be dead, left undecided in a slot that is needed: removes a
    /// tentative word, completes or undoes a move. Any client may do both at any time.
    async fn settle(&self, word: Ite) -> Result<(), EngineError> {
        let Some((key, theirs)) = self.occupant(word).await? else { return Ok(()) };
        let words = self.collect(&theirs).await?;
        let Some(slot) = (0..theirs.count()).find(|c| words[*c] == word) else { return Ok(()) };
        if self.map.codec.state(word) == State::Tentative {
            self.clear(&theirs, slot, word).await?;
        } else {
            self.help(&theirs, &key, slot, word).await?;
        }
        Ok(())
    }

    fn victim(
        &self,
        at: RemoteAddr,
        word: Ite,
        for_the_sake_of: Option<usize>,
        depth: usize,
    ) -> Option<Victim> {
        let hops_max = self.map.codec.hops_max();
        let movable =
            matches!(self.map.codec.state(word), State::Visible { hop } if hop < hops_max);
        movable.then_some(Victim { at, word, for_the_sake_of, depth, key: None })
    }

    /// Whether a word is about to change without this client, so that it pays to look again.
    fn is_unsettled(&self, word: Ite) -> bool {
        !self.map.codec.is_unmoved(word)
    }

    /// The key of the entry that a word names, and its candidates; `None` if the slot has changed.
    async fn occupant(&self, word: Ite) -> Result<Option<(Vec<u8>, Candidates)>, EngineError> {
        let Some((_, key)) = self.read_key(word).await? else {
            return Ok(None);
        };
        let candidates = Candidates::of(&self.map, &key);
        Ok(Some((key, candidates)))
    }

    /// The header and the key of the entry that a word names; `None` if the slot has changed.
    pub(in crate::nessie) async fn read_key(
        &self,
        word: Ite,
    ) -> Result<Option<(Header, Vec<u8>)>, EngineError> {
        let head = self.read_head(word).await?;
        Ok(head.map(|(header, head)| (header, head[header.key_at()..header.value_at()].to_vec())))
    }

    /// The entry that a word names, up to its value; `None` if the slot has changed.
    pub(in crate::nessie) async fn read_head(
        &self,
        word: Ite,
    ) -> Result<Option<(Header, Buf)>, EngineError> {
        let place = self.map.codec.place(word);
        let Some((at, room)) = self.entry_at(word) else {
            return Ok(None);
        };
        let first = (HEADER_BYTES + EXPIRY_BYTES + KEY_GUESS_BYTES).min(room);
        let (mut buf, done) = self.fabric.read(at, first, Buf::new()).await;
        done?;
        let Some(header) = Header::read(&buf) else {
            return Ok(None);
        };
        let generation = header.generation & self.map.codec.gen_mask();
        if generation != self.map.codec.generation(word) || header.value_at() > room {
            return Ok(None);
        }
        if header.value_at() > buf.len() {
            let have = buf.len();
            let (more, done) =
                self.fabric.read(at.add(have as u64), header.value_at() - have, buf).await;
            done?;
            buf = more;
        }
        if !self.is_valid(&header, place, at, &buf, false)? {
            return Ok(None);
        }
        Ok(Some((header, buf)))
    }

    /// Moves an entry from candidate `from`, where `word` shows it, to candidate `to` of its key.
    /// Returns whether it did. There is no linearization point: no visible state changes.
    pub(in crate::nessie) async fn migrate(
        &self,
        candidates: &Candidates,
        key: &[u8],
        from: usize,
        word: Ite,
        to: usize,
    ) -> Result<bool, EngineError> {
        let codec = &self.map.codec;
        let State::Visible { hop } = codec.state(word) else {
            return Ok(false);
        };
        if hop >= codec.hops_max() || Ite(self.read_word(candidates.slot(from)).await?) != word {
            return Ok(false);
        }
        // Protocol M2: the destination is read before the source is frozen. Otherwise a PUT of the
        // key could come and go between the freezing and the read, and go unnoticed.
        let free = Ite(self.read_word(candidates.slot(to)).await?);
        if !codec.is_empty(free) {
            return Ok(false);
        }
        let hop = hop + 1;
        let frozen = codec.with_state(word, State::Frozen { hop, to: to as u32 });
        let copy = codec.with_state(word, State::Copy { hop, from: from as u32 });
        // Protocol M3.
        if self.cas(candidates, from, word, frozen).await?.is_err() {
            return Ok(false);
        }
        let free = if planted::is(Bug::DestinationReadLate) {
            Ite(self.read_word(candidates.slot(to)).await?)
        } else {
            free
        };
        if planted::is(Bug::MoveNotedEarly) {
            self.note_move(candidates.slot(to)).await?;
        }
        // Protocol M4.
        if self.cas(candidates, to, free, copy).await?.is_err() {
            let back = codec.with_state(word, State::Visible { hop });
            let _ = self.cas(candidates, from, frozen, back).await?;
            return Ok(false);
        }
        self.finish_move(candidates, key, (from, frozen), (to, copy)).await?;
        self.move_mark(candidates.slot(from), candidates.slot(to)).await?;
        self.counts.moves.set(self.counts.moves.get() + 1);
        Ok(true)
    }

    /// Moves a key's entry to a free candidate, if the key has both: for tests, which need more
    /// moves than full indexes make.
    #[cfg(feature = "planted")]
    pub async fn wander(&self, key: &[u8]) -> Result<bool, EngineError> {
        let candidates = self.candidates(key)?;
        let _epoch = self.session.pin(&self.fabric)?;
        let words = self.collect(&candidates).await?;
        let count = candidates.count();
        // The home comes last: faults that need a free home are the rarest.
        let others = count - 1;
        let first = self.fabric.random() as usize;
        let mut all = (0..others).map(|slot| 1 + (first + slot) % others).chain([0]);
        let Some(free) = all.find(|slot| self.map.codec.is_empty(words[*slot])) else {
            return Ok(false);
        };
        for (slot, word) in words[..count].iter().enumerate() {
            if self.map.codec.is_unmoved(*word)
                && self.read_key(*word).await?.is_some_and(|(_, theirs)| theirs == key)
            {
                return self.migrate(&candidates, key, slot, *word, free).await;
            }
        }
        Ok(false)
    }

    /// Completes a move whose copy is in place (protocol M5 to M8): looks around, notes the move,
    /// drops the source, shows the copy. Any client may do it, and several may do it at once.
    async fn finish_move(
        &self,
        candidates: &Candidates,
        key: &[u8],
        source: (usize, Ite),
        copy: (usize, Ite),
    ) -> Result<(), EngineError> {
        let codec = &self.map.codec;
        let words = self.collect(candidates).await?;
        for (slot, word) in words.into_iter().enumerate().take(candidates.count()) {
            if slot == source.0 || slot == copy.0 {
                continue;
            }
            let mut word = word;
            let mut looks = 0;
            loop {
                let must_go = if codec.is_empty(word) {
                    // A free home gets a new tag: an insert that is about to use it expects the old
                    // one.
                    Some(slot == 0 && !planted::is(Bug::NoHomeBump))
                } else if codec.is_visible(word) || planted::is(Bug::NoMoveScan) {
                    Some(false)
                } else {
                    self.is_tentative_of(candidates, word, key).await?
                };
                match must_go {
                    Some(false) => break,
                    Some(true) if self.clear(candidates, slot, word).await? => break,
                    _ => word = Ite(self.read_word(candidates.slot(slot)).await?),
                }
                looks += 1;
                if looks == LOOKS_MAX {
                    // The move stays as it is, which is right at any time. The next writer of the
                    // key completes it.
                    return Ok(());
                }
            }
        }
        let State::Copy { hop, .. } = codec.state(copy.1) else {
            return Ok(());
        };
        let shown = codec.with_state(copy.1, State::Visible { hop });
        if planted::is(Bug::FinishBeforeDrop) {
            let _ = self.cas(candidates, copy.0, copy.1, shown).await?;
        }
        if !planted::is(Bug::MoveUnnoted) && !planted::is(Bug::MoveNotedEarly) {
            self.note_move(candidates.slot(copy.0)).await?;
        }
        // In this order: between the two steps the copy alone shows the value.
        self.clear(candidates, source.0, source.1).await?;
        let _ = self.cas(candidates, copy.0, copy.1, shown).await?;
        Ok(())
    }

    /// Notes where a word was moved (protocol M6), for scans: see `scan.rs`.
    pub(super) async fn note_move(&self, to: RemoteAddr) -> Result<(), EngineError> {
        let dti = self.map.dti_of(to.region()).expect("a shard is on a node of the table");
        let first = self.map.shards()[usize::from(dti)];
        let distance = self.map.bucket_of(to).0.offset() - first.offset();
        let ring = self.map.move_ring(dti);
        let number = self.fabric.fetch_add(ring.count(), 1).await?;
        let word = MoveRing::word(number, distance).to_le_bytes();
        let (_, done) = self.fabric.write(ring.entry(number), Buf::from(word.to_vec())).await;
        Ok(done?)
    }

    /// Completes or undoes the move that left the F or C `word` in `slot` (protocol H).
    pub(in crate::nessie) async fn help(
        &self,
        candidates: &Candidates,
        key: &[u8],
        slot: usize,
        word: Ite,
    ) -> Result<(), EngineError> {
        let helped = self.complete_or_undo(candidates, key, slot, word).await;
        helped.map_err(EngineError::without_effect)
    }

    async fn complete_or_undo(
        &self,
        candidates: &Candidates,
        key: &[u8],
        slot: usize,
        word: Ite,
    ) -> Result<(), EngineError> {
        let codec = &self.map.codec;
        self.counts.helped.set(self.counts.helped.get() + 1);
        match codec.state(word) {
            State::Frozen { hop, to } => {
                let (to, from) = (to as usize, slot as u32);
                let copy = codec.with_state(word, State::Copy { hop, from });
                let mut looks = 0;
                loop {
                    let there = Ite(self.read_word(candidates.slot(to)).await?);
                    if there == copy {
                        return self.finish_move(candidates, key, (slot, word), (to, copy)).await;
                    }
                    // A free destination gets a new tag first, so that a mover that is only slow
                    // can no longer make its copy.
                    if !codec.is_empty(there)
                        || planted::is(Bug::NoBumpOnUndo)
                        || self.clear(candidates, to, there).await?
                    {
                        break;
                    }
                    looks += 1;
                    if looks == LOOKS_MAX {
                        return Ok(());
                    }
                }
                let back = codec.with_state(word, State::Visible { hop });
                let _ = self.cas(candidates, slot, word, back).await?;
            }
            State::Copy { hop, from } => {
                let from = from as usize;
                let frozen = codec.with_state(word, State::Frozen { hop, to: slot as u32 });
                let there = Ite(self.read_word(candidates.slot(from)).await?);
                if there == frozen {
                    return self.finish_move(candidates, key, (from, frozen), (slot, word)).await;
                }
                let shown = codec.with_state(word, State::Visible { hop });
                let _ = self.cas(candidates, slot, word, shown).await?;
            }
            State::Empty | State::Tentative | State::Visible { .. } => (),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::nessie::client::tests::{client, client_with};
    use crate::nessie::layout::geometry::Options;
    use crate::nessie::layout::marks::{Mark, Marks};
    use crate::operation::PutOptions;

    /// Otherwise what is used would be evicted because it is in the way.
    #[test]
    fn a_mark_goes_with_its_value() {
        let client = client_with(2 << 20, Options { evicts: true, ..Options::default() });
        block_on(client.put(b"key", b"value", PutOptions::default())).unwrap();
        let candidates = client.candidates(b"key").unwrap();
        let slots = [0, candidates.count() - 1];
        let marks = || {
            slots.map(|slot| {
                let (bucket, position) = client.map.bucket_of(candidates.slot(slot));
                Marks(client.fabric.load(client.map.marks_addr(bucket)).unwrap()).of(position)
            })
        };
        let used = Mark::new(3).used(3).unwrap();
        let _epoch = client.session.pin(&client.fabric).unwrap();
        client.write_mark(candidates.slot(0), used).unwrap();
        assert_ne!(marks()[1], used);
        let word = Ite(client.fabric.load(candidates.slot(0)).unwrap());
        assert!(block_on(client.migrate(&candidates, b"key", 0, word, slots[1])).unwrap());
        assert_eq!(marks()[1], used);
    }

    /// One of the entries ends with its data table.
    #[test]
    fn the_key_of_every_entry_can_be_read() {
        let client = client(2 << 20);
        let len = client.map.classes.of(60_000).entry_bytes as usize - HEADER_BYTES;
        let mut ends = 0;
        for number in 0u8.. {
            let key = vec![number; len];
            if block_on(client.put(&key, b"", PutOptions::default())).is_err() {
                break;
            }
            let candidates = client.candidates(&key).unwrap();
            let slots = (0..candidates.count()).map(|slot| candidates.slot(slot));
            let words = slots.map(|at| Ite(client.fabric.load(at).unwrap()));
            let heads = words.filter(|word| !client.map.codec.is_empty(*word)).map(|word| {
                let (header, head) = block_on(client.read_head(word)).unwrap().unwrap();
                ends += u32::from(header.value_at() == client.entry_at(word).unwrap().1);
                head[header.key_at()..].to_vec()
            });
            assert!(heads.collect::<Vec<_>>().contains(&key));
        }
        assert!(ends > 0);
    }
}
