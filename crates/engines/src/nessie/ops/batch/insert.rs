//! Inserts of a batch, where memory is near: for keys whose buckets showed no value.
//!
//! The buckets are in the processor's caches by now. So one insert after the other is done, without
//! a future of its own, by the steps of `ops/insert.rs`; the usual case only. A key is left to the
//! general path if a slot may show it, if no slot is free, or if another client is faster.

use loch_fabric::Fabric;

use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::batch::{Batch, Renewed};
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::{Ite, State};
use crate::nessie::ops::insert::Over;
use crate::operation::Version;
use crate::planted::{self, Bug};

/// How far an insert came.
enum Inserted {
    /// The value is in the index.
    Yes,
    /// No word of the index named the entry.
    No,
    /// A tentative word named it, which is gone.
    Withdrawn,
}

impl<F: Fabric> Client<F> {
    /// Inserts the keys that are left of a batch, if none of their buckets showed them. Returns
    /// those whose entries must be renewed before they are named again (rule U).
    pub(super) async fn insert_rest(
        &self,
        batch: &mut Batch,
        stored: &mut impl FnMut(usize, Version),
    ) -> Result<Renewed, EngineError> {
        let mut renewed = Renewed::default();
        if !self.is_near || batch.rest.is_empty() {
            return Ok(renewed);
        }
        self.look_at_clock().await?;
        let rest = std::mem::take(&mut batch.rest);
        for (at, key) in rest.iter().enumerate() {
            let number = usize::from(*key);
            let (look, own) = (&batch.looks[number], &batch.owned[number]);
            if look.way < self.map.shape.geometry.ways {
                batch.rest.push(*key);
                continue;
            }
            match self.insert_at_once(look.hash, own).await {
                Ok(Inserted::Yes) => stored(number, batch.written[number].version),
                Ok(Inserted::No) => batch.rest.push(*key),
                Ok(Inserted::Withdrawn) => {
                    if !planted::is(Bug::BatchWordTwice) {
                        renewed.insert(*key);
                    }
                    batch.rest.push(*key);
                }
                Err(error) => {
                    // The fabric's: whether a word names this entry, only the scrubber knows.
                    let others = batch.rest.iter().chain(&rest[at + 1..]);
                    let own = |key: &u8| batch.owned[usize::from(*key)];
                    return Err(self.released(others.map(own), error));
                }
            }
        }
        Ok(renewed)
    }

    async fn insert_at_once(&self, hash: KeyHash, own: &Own) -> Result<Inserted, EngineError> {
        let codec = &self.map.codec;
        let candidates = Candidates::from_hash(&self.map, hash);
        let count = candidates.count();
        let is_other =
            |word: &Ite| codec.is_empty(*word) || !codec.has_filter(*word, candidates.filter);
        // Protocol K1. The look is posted after the home word arrived.
        let mut home = Ite(self.fabric.load(candidates.slot(0))?);
        let (words, marks) = self.collect_marked(&candidates).await?;
        if planted::is(Bug::BatchLooksHomeLast) {
            home = Ite(self.fabric.load(candidates.slot(0))?);
        }
        if !words[..count].iter().all(is_other) {
            return Ok(Inserted::No);
        }
        let new = self.visible(candidates.filter, own);
        if codec.is_empty(home) {
            // Linearization point of an insert at home (protocol K2).
            if self.cas(&candidates, 0, home, new).await?.is_err() {
                return Ok(Inserted::No);
            }
            self.mark_inserted(&candidates, 0, marks[0])?;
            return Ok(Inserted::Yes);
        }
        let free = (1..count).find(|slot| codec.is_empty(words[*slot]));
        let over = match free.map(|free| (free, Over::Empty(words[free]))) {
            None if self.evicts() && self.evicts_in_slots(own.class) => {
                Box::pin(self.victim_in_slots(&candidates, &words, &marks)).await?
            }
            over => over,
        };
        let Some((slot, over)) = over else { return Ok(Inserted::No) };
        let tentative = codec.with_state(new, State::Tentative);
        // Protocol K5.
        if !self.begin_tentatively(&candidates, slot, over, tentative).await? {
            return Ok(Inserted::No);
        }
        // Protocol K6. A free home must be used.
        let words = self.collect(&candidates).await?;
        let mut others = (0..count).filter(|other| *other != slot).map(|other| &words[other]);
        let gives_way = slot != 0 && codec.is_empty(words[0]) || !others.all(is_other);
        if gives_way && !planted::is(Bug::BatchDuplicateStays) {
            // Protocol K8.
            self.clear(&candidates, slot, tentative).await?;
            return Ok(Inserted::Withdrawn);
        }
        // Linearization point of an insert elsewhere (protocol K7).
        if self.cas(&candidates, slot, tentative, new).await?.is_err() {
            // Another client removed the word.
            return Ok(Inserted::Withdrawn);
        }
        self.mark_inserted(&candidates, slot, marks[0])?;
        Ok(Inserted::Yes)
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::nessie::client::tests::clients_with;
    use crate::nessie::layout::geometry::Options;
    use crate::nessie::layout::marks::{Mark, Marks};
    use crate::operation::PutOptions;

    /// Otherwise a value would look as old as the one that was in its slot before, or as old as the
    /// client's last look at the clock.
    #[test]
    fn what_a_batch_inserts_is_marked_as_new() {
        let options = Options { evicts: true, ..Options::default() };
        let [others, client] = clients_with(3 << 20, options);
        let pairs: Vec<_> = (1..700u64).map(|number| (number.to_le_bytes(), [7; 100])).collect();
        let put = |client: &Client<_>| {
            block_on(client.put(&[0; 8], &[7; 100], PutOptions::default())).unwrap();
        };
        put(&others);
        block_on(others.turn_over(3 * others.epoch_bytes())).unwrap();
        // An update, after which the client has memory and has not looked at the clock.
        put(&client);
        block_on(client.put_many(&pairs, |_, _| ())).unwrap();
        let mut marked = 0;
        for bucket in 0..client.map.buckets() {
            let (at, _) = client.map.run(bucket, 1);
            let marks = Marks(client.fabric.load(client.map.marks_addr(at)).unwrap());
            for position in 0..3 {
                let word = Ite(client.fabric.load(at.add(position as u64 * 8)).unwrap());
                let mut since = 3..=client.mark_epoch();
                let is_new = since.any(|epoch| marks.of(position) == Mark::new(epoch));
                marked += usize::from(client.map.codec.is_visible(word) && is_new);
            }
        }
        assert_eq!(marked, pairs.len());
    }
}
