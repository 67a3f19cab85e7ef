//! Walks a whole table and verifies its invariants: `loch check`.

use loch_fabric::limits::WHOLE_WORDS_BYTES_MAX;
use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::report::{CheckReport, ForgottenOf, Scrubbed, Usage};
use super::rules::Rules;
use super::walk::slab_of;
use crate::error::EngineError;
use crate::limits::{CHUNK_BYTES, VALUE_BYTES_MAX};
use crate::nessie::client::Client;
use crate::nessie::layout::dte::{Header, note_of};
use crate::nessie::layout::ite::{Ite, Place};
use crate::nessie::layout::slab::{Chunk, LARGE, Slab};

/// A report lists this many broken invariants at most, and counts no further.
const BROKEN_MAX: usize = 100;
/// Words of the index that are read at a time.
const BLOCK_WORDS: usize = 4096;
const _: () = assert!(BLOCK_WORDS * 8 <= WHOLE_WORDS_BYTES_MAX);
/// Looks at something that seems broken before it is reported: other clients may be changing it.
const LOOKS: usize = 5;
/// The pause between those looks.
const LOOK_AGAIN_US: u64 = 200;

impl<F: Fabric> Client<F> {
    /// Verifies I1 and I2 for every slot, and every chunk descriptor and entry. May run beside
    /// other clients: something that looks broken is looked at again before it is reported.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn check(&self) -> Result<CheckReport, EngineError> {
        self.check_by(self).await
    }

    /// [`Client::check`] by the rules of a protocol.
    pub(in crate::nessie) async fn check_by(
        &self,
        rules: &impl Rules,
    ) -> Result<CheckReport, EngineError> {
        let mut report = CheckReport::default();
        let geometry = self.map.shape.geometry;
        let words = geometry.buckets_per_shard as usize * geometry.bucket_words();
        for shard in self.map.shards().to_vec() {
            for from in (0..words).step_by(BLOCK_WORDS) {
                let at = shard.add(from as u64 * 8);
                let bytes = BLOCK_WORDS.min(words - from) * 8;
                let (block, done) = self.fabric.read(at, bytes, Buf::with_capacity(bytes)).await;
                done?;
                for (i, word) in block.chunks_exact(8).enumerate() {
                    let (at, word) = (at.add(i as u64 * 8), word.try_into().expect("eight bytes"));
                    let (_, position) = self.map.bucket_of(at);
                    // The last word of a bucket may be that of its marks.
                    if position < usize::from(geometry.bucket_slots) {
                        let word = Ite(u64::from_le_bytes(word));
                        self.check_slot(rules, at, word, &mut report).await?;
                    }
                }
            }
        }
        for dti in (0..self.map.data_tables()).map(|dti| dti as u8) {
            self.check_chunks(dti, &mut report).await?;
            let mut scrubbed = Scrubbed::default();
            for suspect in self.suspects(rules, dti, &mut scrubbed).await? {
                report.unshown += 1;
                report.unshown_bytes += suspect.class.entry_bytes;
            }
        }
        Ok(report)
    }

    async fn check_slot(
        &self,
        rules: &impl Rules,
        at: RemoteAddr,
        word: Ite,
        report: &mut CheckReport,
    ) -> Result<(), EngineError> {
        report.slots += 1;
        if self.map.codec.is_empty(word) {
            return Ok(());
        }
        let mut word = word;
        let mut wrong = None;
        for _ in 0..LOOKS {
            let _epoch = self.session.pin(&self.fabric)?;
            wrong = rules.wrong_with(at, word).await?;
            if wrong.is_none() {
                break;
            }
            if report.broken.len() == BROKEN_MAX {
                // The check does not wait for these: in a damaged index this would be every slot.
                break;
            }
            self.fabric.pause(LOOK_AGAIN_US).await;
            word = Ite(self.read_word(at).await?);
            if self.map.codec.is_empty(word) {
                return Ok(());
            }
        }
        rules.count_slot(at, word, report).await?;
        if let Some(wrong) = wrong
            && report.broken.len() < BROKEN_MAX
        {
            report.broken.push(format!("slot at {at} holds {:#018x}: {wrong}", word.0));
        }
        Ok(())
    }

    /// I2: the entry is one of its class, in a slab, and not free.
    pub(in crate::nessie) async fn wrong_with_entry(
        &self,
        place: Place,
        header: &Header,
    ) -> Result<Option<String>, EngineError> {
        let class = self.map.classes.of(header.entry_len());
        let Some(entry) = class.entry(place) else {
            return Ok(Some(format!(
                "no entry of {} bytes starts where it points",
                class.entry_bytes
            )));
        };
        let word =
            self.read_word(self.map.chunk_addr(entry.slab.dti, entry.slab.chunk as u64)).await?;
        if slab_of(Chunk::from_word(word)) != Some((class.id, class.chunks)) {
            return Ok(Some(format!("its slab is none of {} bytes an entry", class.entry_bytes)));
        }
        let note = self.read_note(class, entry).await?;
        Ok((note == note_of(header.generation)).then(|| "I2: the entry it names is free".into()))
    }

    async fn check_chunks(&self, dti: u8, report: &mut CheckReport) -> Result<(), EngineError> {
        let mut wrong = self.wrong_chunks(dti).await?;
        for _ in 1..LOOKS {
            if wrong.is_empty() {
                return Ok(());
            }
            self.fabric.pause(LOOK_AGAIN_US).await;
            let now = self.wrong_chunks(dti).await?;
            wrong.retain(|w| now.contains(w));
        }
        wrong.truncate(BROKEN_MAX.saturating_sub(report.broken.len()));
        report.broken.extend(wrong);
        Ok(())
    }

    async fn wrong_chunks(&self, dti: u8) -> Result<Vec<String>, EngineError> {
        let words = self.read_chunk_table(dti).await?;
        let mut wrong = Vec::new();
        let mut owned_until = 0;
        for (at, word) in words.iter().enumerate() {
            let chunk = Chunk::from_word(*word);
            let head = slab_of(chunk);
            match chunk {
                None => wrong.push(format!(
                    "chunk {at} of data table {dti}: descriptor {word:#x} means nothing"
                )),
                Some(Chunk::Tail { back }) if at >= owned_until => {
                    wrong.push(format!(
                        "chunk {at} of data table {dti} is {back} into a run that there is not"
                    ));
                }
                Some(Chunk::Free) if at < owned_until => {
                    wrong.push(format!("chunk {at} of data table {dti} is free inside a slab"));
                }
                _ => (),
            }
            if let Some((id, chunks)) = head {
                if self.map.slab_class(at as u32, id, chunks).is_none() {
                    wrong.push(format!(
                        "chunk {at} of data table {dti}: no slab of class {id} and {chunks} chunks \
                         can be there"
                    ));
                } else {
                    owned_until = at + chunks as usize;
                }
            }
        }
        Ok(wrong)
    }

    /// The values in a node's memory that were evicted or have expired.
    async fn forgotten(&self, dti: u8) -> Result<Vec<ForgottenOf>, EngineError> {
        let longest = self.map.classes.of(VALUE_BYTES_MAX as usize);
        let mut all = Vec::new();
        for class in self.map.classes.all().iter().chain([&longest]) {
            let [first, _] = self.map.ledger(dti).counts(class);
            let mut counts = [0; 2];
            self.fabric.read_words(&[first], &mut counts).await?;
            let [evicted, expired] = counts;
            let entry_bytes = if class.id == LARGE { 0 } else { class.entry_bytes };
            all.push(ForgottenOf { entry_bytes, evicted, expired });
        }
        all.retain(|of| of.evicted + of.expired > 0);
        Ok(all)
    }

    /// How data table `dti` is used. Reads every slab's notes, and the generations of its entries.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn usage(&self, dti: u8) -> Result<Usage, EngineError> {
        let geometry = self.map.shape.geometry;
        let mut usage = Usage {
            index_bytes: geometry.index_bytes(),
            data_bytes: geometry.data_bytes(),
            forgotten: Some(self.forgotten(dti).await?),
            ..Usage::default()
        };
        for (at, word) in self.read_chunk_table(dti).await?.into_iter().enumerate() {
            let chunk = Chunk::from_word(word);
            let Some((id, chunks)) = slab_of(chunk) else {
                continue;
            };
            let Some(class) = self.map.slab_class(at as u32, id, chunks) else {
                continue;
            };
            let slab = Slab { dti, chunk: at as u32 };
            let used = self.used_entries(slab, class).await?.len() as u64;
            usage.slab_bytes += chunks as u64 * CHUNK_BYTES;
            usage.entries += used;
            usage.entry_bytes += used * class.entry_bytes;
            match chunk {
                Some(Chunk::Abandoned { .. }) => usage.abandoned_slabs += 1,
                _ => usage.leased_slabs += 1,
            }
        }
        Ok(usage)
    }
}
