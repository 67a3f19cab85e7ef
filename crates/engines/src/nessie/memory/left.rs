//! Slabs that a lane left in the middle of a change of their descriptors (`client/claims.rs`), and
//! runs that a session was putting together or taking apart when it ended: what becomes of them.

use loch_fabric::Fabric;

use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::client::claims::Claim;
use crate::nessie::client::waits::Then;
use crate::nessie::layout::hash::TableMap;
use crate::nessie::layout::slab::{Chunk, Class, Slab};
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// Puts the slabs to use that were left. Returns whether this made room.
    pub(in crate::nessie) async fn put_right(&self) -> Result<bool, EngineError> {
        let mut room = false;
        while let Some(claim) = self.claim_left() {
            room |= self.put_slab_right(claim).await?;
        }
        Ok(room)
    }

    async fn put_slab_right(&self, claim: Claim<'_, F>) -> Result<bool, EngineError> {
        let slab = claim.slab();
        let own = self.owner().id;
        let word = self.read_word(self.map.chunk_addr(slab.dti, slab.chunk.into())).await?;
        let chunk = Chunk::from_word(word);
        let (id, chunks, forgotten) = match chunk {
            Some(Chunk::Leased { class, chunks, owner }) if owner == own => {
                (class, chunks, Bug::LeftLeased)
            }
            Some(Chunk::Seized { class, chunks, owner }) if owner == own => {
                (class, chunks, Bug::LeftSeized)
            }
            Some(Chunk::Closing { class, chunks, owner }) if owner == own => {
                (class, chunks, Bug::LeftClosing)
            }
            Some(Chunk::Forming { class, chunks, owner }) if owner == own => {
                (class, chunks, Bug::LeftForming)
            }
            _ => {
                claim.end();
                return Ok(false);
            }
        };
        let class = self.map.slab_class(slab.chunk, id, chunks);
        let Some(class) = class.filter(|_| !planted::is(forgotten)) else {
            claim.end();
            return Ok(false);
        };
        match chunk {
            Some(Chunk::Leased { .. }) => self.relist(claim, class).await,
            Some(Chunk::Seized { .. }) => {
                // Its owner may have been in the middle of taking an entry a moment ago.
                let mut seized = self.gather(0, Then::Seize(Vec::new()));
                seized.add(claim, class);
                seized.begin().await?;
                Ok(false)
            }
            _ => {
                let end = u64::from(slab.chunk) + u64::from(chunks);
                let words = self.read_chunks(slab.dti, slab.chunk.into()..end).await?;
                let is_closing = matches!(chunk, Some(Chunk::Closing { .. }));
                if is_closing && tails(&words, chunks) + 1 == chunks {
                    return self.reopen(claim, class, word).await;
                }
                give_back(&self.fabric, &self.map, slab, &words).await?;
                claim.end();
                self.count_room();
                Ok(true)
            }
        }
    }

    /// Leases a whole slab again whose descriptor is `closed`. Lanes of this client may be about to
    /// write entries that they have in it.
    async fn reopen(
        &self,
        claim: Claim<'_, F>,
        class: Class,
        closed: u64,
    ) -> Result<bool, EngineError> {
        if self.cas_chunk(claim.slab(), 0, closed, self.leased(&class)).await? {
            return self.relist(claim, class).await;
        }
        claim.end();
        Ok(false)
    }

    /// Lists a slab anew that this client leases. Returns whether there is room in it.
    pub(super) async fn relist(
        &self,
        claim: Claim<'_, F>,
        class: Class,
    ) -> Result<bool, EngineError> {
        self.alloc.borrow_mut().list(class).forget_slab(claim.slab());
        let has_room = self.list_slab(claim.slab(), class).await?;
        if has_room {
            self.alloc.borrow_mut().list(class).reopened += 1;
        }
        claim.end();
        Ok(has_room)
    }
}

/// Makes a run whole or free that a session was using, putting together or taking apart: a slab
/// with all of its chunks becomes abandoned. `words` are the descriptors from its first chunk on.
/// Nobody but the caller changes them meanwhile.
///
/// # Errors
/// The fabric's.
pub(in crate::nessie) async fn give_back<F: Fabric>(
    fabric: &F,
    map: &TableMap,
    slab: Slab,
    words: &[u64],
) -> Result<(), EngineError> {
    let at = |back: u32| map.chunk_addr(slab.dti, u64::from(slab.chunk) + u64::from(back));
    let (class, chunks, has_contents) = match Chunk::from_word(words[0]) {
        Some(Chunk::Leased { class, chunks, .. } | Chunk::Closing { class, chunks, .. }) => {
            (class, chunks, true)
        }
        Some(Chunk::Forming { class, chunks, .. }) => (class, chunks, false),
        _ => return Ok(()),
    };
    let tails = tails(words, chunks);
    let to = if has_contents && tails + 1 == chunks {
        let entries = map.classes.by_id(class, chunks).map_or(0, |class| class.entries);
        Chunk::Abandoned { class, chunks, free_hint: entries }
    } else {
        // The slab held no entry in use. If it ever held one, two grace periods have passed since:
        // only then does a client begin to take a slab apart.
        for back in (1..=tails).rev() {
            let tail = Chunk::Tail { back }.to_word();
            fabric.compare_swap(at(back), tail, Chunk::Free.to_word()).await?;
        }
        Chunk::Free
    };
    fabric.compare_swap(at(0), words[0], to.to_word()).await?;
    Ok(())
}

/// The number of tails that are in place, of a run of so many chunks. Tails are put in place one
/// after the other, and taken away from the last one on. So there is no tail behind the first
/// missing one, however many the descriptor claims.
fn tails(words: &[u64], chunks: u32) -> u32 {
    let is_tail = |back: &u32| {
        let word = words.get(*back as usize);
        word.is_some_and(|word| *word == Chunk::Tail { back: *back }.to_word())
    };
    (1..chunks).take_while(is_tail).count() as u32
}
