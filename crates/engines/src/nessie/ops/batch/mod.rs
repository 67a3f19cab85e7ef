//! Operations on many keys in steps: the steps of many keys overlap, and no key has a future or a
//! buffer of its own.
//!
//! A batch follows the rules of the single operations, and its linearization points are theirs.
//! Only the usual case is done here: the first match in a bucket is the key's entry, and nobody
//! changes it. The other keys are left to the general path, after those.
//!
//! Over a network each stage is one doorbell: all buckets, all entries with the second buckets of
//! the keys that need them, all CASes. The values of PUTs are written before the first, into memory
//! of the client's own node; notes about old entries are not waited for. A batch does without the
//! stages that the client's cache makes needless (`far.rs`).
//!
//! **Errors.** A stage of READs that fails ends the batch, which then has changed nothing. Each CAS
//! has an outcome of its own. A CAS of unknown outcome may have been executed, or may be later: its
//! key is neither done nor left to the general path, and the entry that it may have put into the
//! index is left to the scrubber.

mod delete;
mod far;
mod get;
mod insert;
mod put;

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Fabric, Step, Validation, lanes};
use zerocopy::FromBytes;

use crate::error::EngineError;
use crate::kv::check_key;
use crate::limits::{BATCH_ENTRY_BYTES_MAX, BATCH_PUTS, WAYS_MAX};
use crate::nessie::client::Client;
use crate::nessie::client::batch::{Batch, Look, Old};
use crate::nessie::layout::dte::{HEADER_BYTES, Header, flags};
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::marks::Marks;
use crate::nessie::ops::read::{Want, has_sums};
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// Whether batches are worth it: in shared memory, and if entries are short over a network.
    /// Otherwise as many single operations, in lanes, cost less.
    #[inline]
    pub fn takes_batches(&self) -> bool {
        self.is_near || self.has_stages() && self.read_hint.get() <= BATCH_ENTRY_BYTES_MAX
    }

    /// Whether a batch is done in stages, whose entries are validated by their generations alone,
    /// or by checksums alone.
    #[inline]
    fn has_stages(&self) -> bool {
        let by_checksum = self.fabric.caps().validation == Validation::Checksum;
        self.is_near || by_checksum && !self.session.is_observer()
    }

    /// From a key's bucket to the entry that its first match names, or to the next bucket. The end
    /// of a look is a bucket that was the last, or a word that names no entry of `len` bytes.
    #[inline(always)]
    fn follow(&self, look: &mut Look, bucket: &[u64; BUCKET_WORDS_MAX], len: usize) -> Step {
        let filter = look.hash.filter(&self.map);
        let Some(position) = self.map.codec.first_match(bucket, filter) else {
            return self.next_bucket(look);
        };
        look.word = Ite(bucket[position]);
        if self.evicts() {
            look.mark = self.marks_in(bucket).of(position);
        }
        match self.entry_at(look.word) {
            Some((entry, room)) if room >= len => {
                look.slot = look.slot.add(position as u64 * 8);
                Step::Entry(entry)
            }
            _ => Step::End,
        }
    }

    /// The word of marks of a bucket, in a table that evicts.
    #[inline(always)]
    fn marks_in(&self, bucket: &[u64; BUCKET_WORDS_MAX]) -> Marks {
        Marks(bucket[usize::from(self.map.shape.geometry.bucket_slots)])
    }

    #[cold]
    fn next_bucket(&self, look: &mut Look) -> Step {
        look.way += 1;
        let way = usize::from(look.way);
        if way == usize::from(self.map.shape.geometry.ways) {
            return Step::End;
        }
        let mut buckets = [look.slot; WAYS_MAX];
        for way in 0..=way {
            buckets[way] = look.hash.bucket(&self.map, &buckets[..way]);
        }
        look.slot = buckets[way];
        Step::Bucket(buckets[way])
    }

    /// The header of an entry that was looked at, if it is plain, of the key, and of the
    /// incarnation that the word names. `again` is its generation, READ again afterwards. Where
    /// that is not done (`FAR`) the checksums tell; the value's counts if the value is wanted.
    /// `copy` is for the header of an entry that is not aligned.
    #[inline(always)]
    fn sound<'e, const FAR: bool>(
        &self,
        word: Ite,
        (key, want): (&[u8], Want),
        entry: &'e [u8],
        again: u64,
        copy: &'e mut Option<Header>,
    ) -> Option<&'e Header> {
        let header = match Header::ref_from_prefix(entry) {
            Ok((header, _)) => header,
            Err(_) => {
                *copy = Header::read(entry);
                copy.as_ref()?
            }
        };
        let is_plain = header.flags & !flags::BLIND == 0;
        let has_key = || entry.get(HEADER_BYTES..HEADER_BYTES + header.key_len()) == Some(key);
        let is_unchanged = again == header.generation || planted::is(Bug::BatchBelievesTorn);
        let has_sums = || {
            let place = self.map.codec.place(word);
            !FAR || has_sums(header, place, entry, want == Want::Value)
        };
        let is_sound = is_plain && is_unchanged && self.is_named(word, header) && has_key();
        (is_sound && has_sums()).then_some(header)
    }

    /// The next step of a look of a batch. Keys whose looks end without an entry are left to the
    /// general path.
    #[inline(always)]
    fn step(
        &self,
        batch: &mut Batch,
        number: usize,
        bucket: &[u64; BUCKET_WORDS_MAX],
        entry_len: usize,
    ) -> Step {
        let step = self.follow(&mut batch.looks[number], bucket, entry_len);
        if step == Step::End {
            batch.rest.push(number as u8);
        }
        step
    }

    /// Keeps an entry that is to be taken out of the index, if it is the key's and nobody moves it.
    /// Otherwise the key is left to the general path.
    #[inline(always)]
    fn keep_old<const FAR: bool>(
        &self,
        batch: &mut Batch,
        number: usize,
        key: &[u8],
        entry: &[u8],
        again: u64,
    ) {
        let Batch { looks, old, rest, .. } = batch;
        let (word, number) = (looks[number].word, number as u8);
        let mut copy = None;
        let header = self.sound::<FAR>(word, (key, Want::Key), entry, again, &mut copy);
        match header.filter(|_| self.map.codec.is_unmoved(word)) {
            Some(header) => old.push(Old {
                key: number,
                entry_len: header.entry_len() as u32,
                generation: header.generation,
            }),
            None => rest.push(number),
        }
    }

    /// Does operations of the general path side by side, so that none waits for another's epoch.
    /// Returns the error of one if any failed.
    async fn all_of<T, O: Future<Output = Result<T, EngineError>>>(
        &self,
        operations: Vec<O>,
        mut done: impl FnMut(T),
    ) -> Result<(), EngineError> {
        let mut result = Ok(());
        let ended = |ended: Result<T, EngineError>| match ended {
            Ok(answer) => done(answer),
            Err(error) => add_error(&mut result, error),
        };
        lanes::run(BATCH_PUTS, operations, ended).await;
        result
    }
}

/// Adds an error to the result of a batch. An error after which an operation may have been done, or
/// may not, tells more than any other.
#[cold]
fn add_error(result: &mut Result<(), EngineError>, error: EngineError) {
    let is_ambiguous = |error: &EngineError| matches!(error, EngineError::Ambiguous(_));
    match result {
        Err(known) if is_ambiguous(known) || !is_ambiguous(&error) => (),
        _ => *result = Err(error),
    }
}

/// The length of the longest key.
fn longest<'k>(keys: impl Iterator<Item = &'k [u8]>) -> Result<usize, EngineError> {
    let mut longest = 0;
    for key in keys {
        check_key(key)?;
        longest = longest.max(key.len());
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use loch_fabric::{FabricError, RegionId, RemoteAddr};

    use super::*;

    #[test]
    fn what_may_have_been_done_is_the_error_whatever_comes_before_and_after() {
        let region = RegionId(0);
        let known = || EngineError::from(FabricError::Unreachable { region });
        let unknown =
            || EngineError::from(FabricError::OutcomeUnknown { at: RemoteAddr::new(region, 0) });
        let told = |errors: &[&dyn Fn() -> EngineError]| {
            let mut result = Ok(());
            errors.iter().for_each(|error| add_error(&mut result, error()));
            matches!(result, Err(EngineError::Ambiguous(_)))
        };
        assert!(!told(&[&known, &known]));
        assert!(told(&[&unknown, &known]) && told(&[&known, &unknown]) && told(&[&unknown]));
        // The first of each kind.
        let mut result = Err(EngineError::KeyEmpty);
        add_error(&mut result, known());
        assert!(matches!(result, Err(EngineError::KeyEmpty)));
    }
}
