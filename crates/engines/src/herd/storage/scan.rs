//! Lists the keys of a partition, bucket after bucket. A key never leaves the chain of its bucket.

use std::ops::DerefMut;

use super::entry::{Head, present};
use super::lossy::{BUCKET_WORDS, position_of};
use super::{Keeper, Partition};
use crate::scan::{Listed, Listing, Page, Step};

impl<M: DerefMut<Target = [u64]>> Partition<M> {
    /// The keys of a step of a scan.
    pub fn scan(&self, step: &Step, now_ms: u64) -> Page {
        match &self.keeper {
            Keeper::Cache { log, .. } => {
                let buckets = self.index().len() / BUCKET_WORDS;
                step.page(buckets as u64, now_ms, |bucket, listing| {
                    let first = bucket as usize * BUCKET_WORDS;
                    for word in &self.index()[first..first + BUCKET_WORDS] {
                        let position = position_of(*word);
                        if *word != 0 && log.has(position) {
                            self.list(position.place, listing);
                        }
                    }
                })
            }
            Keeper::Store { index, .. } => {
                step.page(index.buckets().into(), now_ms, |bucket, listing| {
                    for word in index.chain(self.index(), bucket as u32) {
                        self.list(word as u32, listing);
                    }
                })
            }
        }
    }

    fn list(&self, place: u32, listing: &mut Listing<'_>) {
        let key = Head::at(self.data(), place).key(self.data(), place);
        let key = key.expect("entries lie inside the data");
        listing.add(Listed::new(key, &present(self.data(), place)));
    }
}
