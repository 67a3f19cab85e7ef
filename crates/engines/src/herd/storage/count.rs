//! Counts the entries of a partition. A store knows their number. In a cache entries go without a
//! word, so the worker looks at some buckets at a time.

use std::ops::DerefMut;

use super::check::Report;
use super::entry::Head;
use super::lossy::{BUCKET_WORDS, position_of};
use super::{Keeper, Partition};
use crate::limits::GRAIN_BYTES;

/// Buckets of a cache that are looked at in a step.
const STEP_BUCKETS: usize = 128;

/// How far a count has come.
#[derive(Debug, Default)]
pub struct Count {
    /// The first word of the next bucket.
    at: usize,
    entries: u64,
    grains: u64,
}

impl<M: DerefMut<Target = [u64]>> Partition<M> {
    /// Goes on with a count. Returns the report at its end, after which another count begins.
    pub fn count(&self, count: &mut Count) -> Option<Report> {
        let (entries, grains) = match &self.keeper {
            Keeper::Store { heap, entries, .. } => (*entries, heap.taken_grains()),
            Keeper::Cache { log, .. } => {
                let step = self.index()[count.at..].iter().take(STEP_BUCKETS * BUCKET_WORDS);
                for word in step.filter(|word| **word != 0) {
                    let position = position_of(*word);
                    if log.has(position) {
                        count.entries += 1;
                        count.grains += u64::from(Head::at(self.data(), position.place).grains());
                    }
                }
                count.at += STEP_BUCKETS * BUCKET_WORDS;
                if count.at < self.index().len() {
                    return None;
                }
                let Count { entries, grains, .. } = std::mem::take(count);
                (entries, grains)
            }
        };
        let data_bytes = std::mem::size_of_val(self.data()) as u64;
        Some(Report { entries, entry_bytes: grains * GRAIN_BYTES, data_bytes, broken: Vec::new() })
    }
}
