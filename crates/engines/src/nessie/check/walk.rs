//! The entries of a table that are in use, and those entries among them that no slot shows.

use loch_fabric::{Fabric, lanes};

use super::report::Scrubbed;
use super::rules::{Rules, Standing, Suspect};
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::layout::dte::note_of;
use crate::nessie::layout::slab::{Chunk, Class, Entry, Slab};

/// Entries looked at side by side.
const LANES: usize = 16;

impl<F: Fabric> Client<F> {
    /// The entries of a data table that are in use but that no slot shows.
    pub(super) async fn suspects(
        &self,
        rules: &impl Rules,
        dti: u8,
        report: &mut Scrubbed,
    ) -> Result<Vec<Suspect>, EngineError> {
        let mut suspects = Vec::new();
        for (chunk, word) in self.read_chunk_table(dti).await?.into_iter().enumerate() {
            let Some((id, chunks)) = slab_of(Chunk::from_word(word)) else {
                continue;
            };
            let Some(class) = self.map.slab_class(chunk as u32, id, chunks) else {
                continue;
            };
            let slab = Slab { dti, chunk: chunk as u32 };
            let used = self.used_entries(slab, class).await?;
            report.entries += used.len() as u64;
            let looks = used.into_iter().map(|suspect| async move {
                rules.standing(suspect).await.map(|standing| (suspect, standing))
            });
            let mut failed = None;
            lanes::run(LANES, looks, |look| match look {
                Ok((_, Some(Standing::Shown))) => (),
                Ok((suspect, _)) => suspects.push(suspect),
                Err(error) => failed = Some(error),
            })
            .await;
            if let Some(error) = failed {
                return Err(error);
            }
        }
        report.suspects = suspects.len() as u64;
        Ok(suspects)
    }

    /// The entries of a slab that are in use, by their notes and generations.
    pub(super) async fn used_entries(
        &self,
        slab: Slab,
        class: Class,
    ) -> Result<Vec<Suspect>, EngineError> {
        let base = self.map.slab_addr(slab);
        let (formatted, notes) = self.read_notes(slab, class).await?;
        let mut used = Vec::new();
        for (number, note) in notes.into_iter().enumerate().take(formatted as usize) {
            let number = number as u32;
            let generation = self.read_word(base.add(class.entry_at(number))).await?;
            if note != note_of(generation) {
                used.push(Suspect { class, entry: Entry { slab, number }, generation });
            }
        }
        Ok(used)
    }
}

/// Class and run of a descriptor that heads a slab with entries.
pub(super) fn slab_of(chunk: Option<Chunk>) -> Option<(u8, u32)> {
    match chunk? {
        Chunk::Leased { class, chunks, .. }
        | Chunk::Abandoned { class, chunks, .. }
        | Chunk::Seized { class, chunks, .. }
        | Chunk::Closing { class, chunks, .. } => Some((class, chunks)),
        Chunk::Free | Chunk::Forming { .. } | Chunk::Tail { .. } => None,
    }
}
