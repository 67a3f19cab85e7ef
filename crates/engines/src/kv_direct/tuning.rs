//! The best size of the hash index, and the best threshold for inline entries (kv-direct §5.1.1).
//!
//! A larger index has fewer collisions, but leaves less memory for slabs. So, for a given
//! threshold, the best index is the largest one with which everything still fits; and the best
//! threshold is the one that then needs the fewest accesses. Both depend on the sizes of the
//! entries and on how full the memory will be.
//!
//! The figures come from a *sample*: some thousand chains are filled as a partition would be, with
//! hashed keys and in the same order of preference, and their buckets and accesses are counted. The
//! result has a precision of about one percent, and every repetition gives the same result.

use super::bucket::{INLINE_BYTES_MAX, SLOTS, slots_for};
use super::header::Header;
use super::item::Format;
use super::key::{KeyHash, SECONDARY_BITS};
use crate::error::LayoutError;
use crate::lines::LINE_BYTES;

/// Entries of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Bytes of their keys.
    pub key_bytes: usize,
    /// Bytes of their values.
    pub value_bytes: usize,
    /// The share of these entries among all, in proportion to the others' shares.
    pub share: f64,
}

/// The entries that will be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Corpus {
    /// The format of the table's entries.
    pub format: Format,
    /// The sizes of the entries.
    pub sizes: Vec<Size>,
    /// The share of the memory that keys and values will have.
    pub utilisation: f64,
}

/// The costs of a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The memory that the choice needs; 1 is all memory.
    pub memory: f64,
    /// Accesses of a GET.
    pub get: f64,
    /// Accesses of a PUT of a key that has a value of the same size.
    pub put: f64,
}

/// The best choice for a [`Corpus`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuned {
    /// The hash index's share of the memory.
    pub index_ratio: f64,
    /// Entries of up to this many bytes are inline.
    pub inline_bytes_max: u16,
    /// The costs of this choice.
    pub estimate: Estimate,
}

/// The most entries of a sample.
const SAMPLE_ENTRIES: f64 = 100_000.0;
/// The most and the fewest chains of a sample.
const SAMPLE_CHAINS: (f64, f64) = (8192.0, 32.0);
/// Memory that is left free: for slabs of unwanted sizes in the pools, and for the error of the
/// sample.
const SPARE: f64 = 0.02;
/// The smallest index that is considered.
const RATIO_MIN: f64 = 1.0 / 4096.0;
/// The number of halving steps in the search for the index ratio.
const STEPS: usize = 12;

/// An entry of a sample.
#[derive(Clone, Copy)]
struct Shape {
    /// Slots of the entry's bucket that it takes, and whether it is inline.
    slots: u32,
    is_inline: bool,
    slab_bytes: u64,
}

impl Corpus {
    /// Entries of one size.
    pub fn of_one_size(
        format: Format,
        key_bytes: usize,
        value_bytes: usize,
        utilisation: f64,
    ) -> Self {
        Self { format, sizes: vec![Size { key_bytes, value_bytes, share: 1.0 }], utilisation }
    }

    /// The index ratio and the inline threshold with the fewest accesses, for as many GETs as PUTs.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if there are no such entries, or if they fit with no choice.
    pub fn tune(&self) -> Result<Tuned, LayoutError> {
        let shares = self.sizes.iter().map(|size| size.share).sum::<f64>();
        let is_valid = self.sizes.iter().all(|size| size.share >= 0.0 && size.key_bytes > 0);
        if !(is_valid && shares > 0.0 && shares.is_finite()) {
            return Err(LayoutError::Geometry(
                "sizes to tune for have keys of at least one byte and shares that are not negative, \
                 not all of them 0"
                    .into(),
            ));
        }
        if !(self.utilisation > 0.0 && self.utilisation < 1.0) {
            return Err(LayoutError::Geometry(format!(
                "the utilisation is {}, it has to be above 0 and below 1",
                self.utilisation
            )));
        }
        let mut thresholds: Vec<u64> =
            self.sizes.iter().map(|size| self.body_bytes(size)).collect();
        thresholds.retain(|&bytes| bytes <= INLINE_BYTES_MAX as u64);
        thresholds.push(0);
        thresholds.sort_unstable();
        thresholds.dedup();
        let choices = thresholds.iter().filter_map(|&bytes| self.largest_index(bytes as u16));
        let cost = |choice: &Tuned| choice.estimate.get + choice.estimate.put;
        choices.min_by(|one, other| cost(one).total_cmp(&cost(other))).ok_or_else(|| {
            LayoutError::Geometry(format!(
                "entries of {:.0} bytes cannot fill {:.0} % of the memory: buckets and slabs are larger \
                 than what they hold; ask for less",
                self.item_bytes(),
                100.0 * self.utilisation
            ))
        })
    }

    /// The largest index with which everything fits.
    fn largest_index(&self, inline_bytes_max: u16) -> Option<Tuned> {
        let choice = |index_ratio| {
            let estimate = self.estimate(index_ratio, inline_bytes_max);
            let tuned = Tuned { index_ratio, inline_bytes_max, estimate };
            (estimate.memory <= 1.0 - SPARE).then_some(tuned)
        };
        if let Some(whole) = choice(1.0) {
            return Some(whole);
        }
        let mut best = choice(RATIO_MIN)?;
        let mut too_large = 1.0;
        for _ in 0..STEPS {
            // The search first finds the order of magnitude: values of a megabyte want a small
            // index.
            let middle: f64 = match too_large / best.index_ratio > 2.0 {
                true => (best.index_ratio * too_large).sqrt(),
                false => (best.index_ratio + too_large) / 2.0,
            };
            match choice(middle) {
                Some(fits) => best = fits,
                None => too_large = middle,
            }
        }
        Some(best)
    }

    /// The costs of an index ratio and an inline threshold.
    pub fn estimate(&self, index_ratio: f64, inline_bytes_max: u16) -> Estimate {
        let per_line = self.utilisation * LINE_BYTES as f64 / self.item_bytes();
        let per_chain = per_line / index_ratio;
        let chains = (SAMPLE_ENTRIES / per_chain).clamp(SAMPLE_CHAINS.1, SAMPLE_CHAINS.0) as u32;
        let entries = (per_chain * f64::from(chains)).round().max(1.0) as u64;
        let shapes: Vec<Shape> =
            self.sizes.iter().map(|s| self.shape(s, inline_bytes_max)).collect();
        let mut sample = Sample::new(chains);
        for entry in 0..entries {
            let hash = KeyHash::of(0, &entry.to_le_bytes());
            // One half of the hash chooses the chain, the other half the size.
            let size = self.size_at(f64::from(hash.partition(1 << 24)) / f64::from(1 << 24));
            sample.add(hash.bucket(chains) as usize, shapes[size]);
        }
        let lines = sample.lines() / f64::from(chains);
        let (reads, writes) = (sample.reads / entries as f64, 1.0);
        Estimate { memory: index_ratio * lines, get: reads, put: reads + writes }
    }

    fn shape(&self, size: &Size, inline_bytes_max: u16) -> Shape {
        let body = self.body_bytes(size);
        let is_inline = body <= inline_bytes_max.into();
        let class = Header::class_for(body).filter(|_| !is_inline);
        let slots = if is_inline { slots_for(body as usize) } else { 1 };
        Shape { slots, is_inline, slab_bytes: class.map_or(0, |class| class.bytes()) }
    }

    /// The size of the entry at position `at` among all, from 0 to 1.
    fn size_at(&self, at: f64) -> usize {
        let mut left = at * self.sizes.iter().map(|size| size.share).sum::<f64>();
        let found = self.sizes.iter().position(|size| {
            left -= size.share;
            left < 0.0
        });
        found.unwrap_or(self.sizes.len() - 1)
    }

    fn body_bytes(&self, size: &Size) -> u64 {
        self.format.body_bytes(size.key_bytes, size.value_bytes, false)
    }

    /// Average bytes of an entry's key and value.
    fn item_bytes(&self) -> f64 {
        let bytes = |size: &Size| (size.key_bytes + size.value_bytes) as f64 * size.share;
        let shares: f64 = self.sizes.iter().map(|size| size.share).sum();
        self.sizes.iter().map(bytes).sum::<f64>() / shares
    }
}

/// Some chains of a partition.
struct Sample {
    /// For each chain, the free slots and the pointers of each bucket.
    chains: Vec<Vec<(u32, u32)>>,
    slab_bytes: u64,
    /// Accesses of GETs, one for each entry, together.
    reads: f64,
}

impl Sample {
    fn new(chains: u32) -> Self {
        Self { chains: vec![vec![(SLOTS, 0)]; chains as usize], slab_bytes: 0, reads: 0.0 }
    }

    /// Adds an entry to the first bucket of its chain that has room, as a partition does.
    fn add(&mut self, chain: usize, shape: Shape) {
        let buckets = &mut self.chains[chain];
        let at = buckets.iter().position(|(free, _)| *free >= shape.slots).unwrap_or(buckets.len());
        if at == buckets.len() {
            buckets.push((SLOTS, 0));
        }
        // Another key's entry is read if it has the same secondary hash.
        let before: u32 = buckets[..=at].iter().map(|(_, pointers)| pointers).sum();
        let false_matches = f64::from(before) / f64::from(1 << SECONDARY_BITS);
        self.reads += at as f64 + 1.0 + false_matches + if shape.is_inline { 0.0 } else { 1.0 };
        self.slab_bytes += shape.slab_bytes;
        let (free, pointers) = &mut buckets[at];
        *free -= shape.slots;
        *pointers += u32::from(!shape.is_inline);
    }

    /// Lines of all chains and of the slabs of their entries.
    fn lines(&self) -> f64 {
        let buckets: usize = self.chains.iter().map(Vec::len).sum();
        buckets as f64 + self.slab_bytes as f64 / LINE_BYTES as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_direct::item::Item;
    use crate::kv_direct::storage::{Options, Plan, Storage};
    use crate::lines::{HostMemory, Line, Near};
    use crate::operation::Version;
    use loch_fabric::lanes::block_on;

    const SEED: u64 = 5;
    const FIXED: Format = Format { key_bytes: Some(8), versions: false };

    /// A partition with such an index, filled from a corpus of one size.
    struct Filled {
        storage: Storage<Near<Vec<Line>>>,
        entries: u64,
        value: Vec<u8>,
        item: Item,
    }

    impl Filled {
        /// `None` if not everything fits.
        fn new(corpus: &Corpus, tuned: &Tuned, bytes: u64) -> Option<Self> {
            let size = corpus.sizes[0];
            let options = Options {
                bytes,
                index_ratio: tuned.index_ratio,
                inline_bytes_max: tuned.inline_bytes_max,
                versions: false,
                value_bytes_max: size.value_bytes as u64,
                key_bytes: Some(8),
            };
            let plan = Plan::new(&options).unwrap();
            let memory = Near::new(vec![Line::ZERO; plan.lines() as usize]);
            let storage = Storage::new(memory, &plan, plan.pools());
            let entries = (corpus.utilisation * bytes as f64 / corpus.item_bytes()) as u64;
            let value = vec![1; size.value_bytes];
            let mut filled = Self { storage, entries, value, item: Item::new() };
            (0..entries).all(|key| filled.put(key)).then_some(filled)
        }

        fn put(&mut self, key: u64) -> bool {
            let (key, Self { storage, value, item, .. }) = (key.to_le_bytes(), self);
            block_on(async {
                let hash = KeyHash::of(SEED, &key);
                let mut lookup = storage.lookup(hash, &key, item).await.unwrap();
                storage.store(&mut lookup, &key, value, Version::from_u64(0), None).await.is_ok()
            })
        }

        fn get(&mut self, key: u64) -> bool {
            let (key, hash) = (key.to_le_bytes(), KeyHash::of(SEED, &key.to_le_bytes()));
            block_on(self.storage.lookup(hash, &key, &mut self.item)).unwrap().found()
        }

        /// Accesses of `work` for each entry.
        fn accesses(&mut self, mut work: impl FnMut(&mut Self, u64) -> bool) -> f64 {
            let before = self.storage.memory().counts();
            assert!((0..self.entries).all(|key| work(self, key)));
            let after = self.storage.memory().counts();
            (after.all() - before.all()) as f64 / self.entries as f64
        }
    }

    /// kv-direct §5.1.1, Figure 11: "close to 1 memory access per GET and close to 2 memory
    /// accesses per PUT under non-extreme memory utilizations", one more of each if not inline. A
    /// bucket of five 10-byte entries can be 78 % full, a slab of a 62-byte entry and its slot 90
    /// %: a utilisation is extreme when only long chains pack that tightly, from 55 % and 85 % on.
    #[test]
    fn a_tuned_partition_has_few_accesses() {
        println!("| entry | utilisation | index ratio | GET | PUT | estimated | chained |");
        for (value_bytes, utilisations) in
            [(2, &[0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6][..]), (54, &[0.2, 0.4, 0.6, 0.8][..])]
        {
            let more = if value_bytes == 2 { 0.0 } else { 1.0 };
            for &utilisation in utilisations {
                let corpus = Corpus::of_one_size(FIXED, 8, value_bytes, utilisation);
                let tuned = corpus.tune().unwrap();
                let mut filled = Filled::new(&corpus, &tuned, 4 << 20).expect("everything fits");
                let get = filled.accesses(Filled::get) - more;
                let put = filled.accesses(Filled::put) - more;
                let report = filled.storage.check(SEED);
                assert_eq!(report.broken, Vec::<String>::new());
                assert!((report.utilisation() - utilisation).abs() < 0.001);
                println!(
                    "| {} B | {:.0} % | {:.3} | {:.3} | {:.3} | {:.3} | {} |",
                    8 + value_bytes,
                    100.0 * utilisation,
                    tuned.index_ratio,
                    get + more,
                    put + more,
                    tuned.estimate.get,
                    report.chained
                );
                assert!((get + more - tuned.estimate.get).abs() < 0.03, "{tuned:?}");
                assert!((put - get - 1.0).abs() < 0.001, "a PUT is a GET and a write");
                let most = match utilisation {
                    ..0.45 => 1.05,
                    ..0.52 => 1.15,
                    ..0.57 => 1.25,
                    0.8.. => 1.05,
                    _ => 1.4,
                };
                assert!(get < most, "{get} accesses at {utilisation}");
            }
        }
    }

    #[test]
    fn no_larger_index_holds_it_all() {
        for (value_bytes, utilisation) in [(2, 0.5), (7, 0.6), (54, 0.8), (500, 0.7)] {
            let corpus = Corpus::of_one_size(FIXED, 8, value_bytes, utilisation);
            let tuned = corpus.tune().unwrap();
            assert!(Filled::new(&corpus, &tuned, 8 << 20).is_some(), "{tuned:?}");
            let ratios = (1..100).map(|step| tuned.index_ratio * (1.0 + f64::from(step) / 50.0));
            let mut too_large = ratios.filter(|&ratio| {
                corpus.estimate(ratio, tuned.inline_bytes_max).memory > 1.0 + SPARE / 2.0
            });
            let larger = Tuned { index_ratio: too_large.next().unwrap(), ..tuned };
            assert!(Filled::new(&corpus, &larger, 8 << 20).is_none(), "{tuned:?}");
        }
    }

    /// kv-direct §3.3.1, Figure 6: with more memory in use, fewer entries had better be inline.
    #[test]
    fn the_fuller_the_memory_the_lower_the_threshold() {
        let size = |value_bytes| Size { key_bytes: 8, value_bytes, share: 1.0 };
        let sizes: Vec<Size> = [2, 7, 12, 17, 27, 42].map(size).to_vec();
        let threshold = |utilisation| {
            Corpus { format: FIXED, sizes: sizes.clone(), utilisation }
                .tune()
                .unwrap()
                .inline_bytes_max
        };
        let thresholds: Vec<u16> = [0.1, 0.3, 0.5, 0.6].map(threshold).to_vec();
        assert!(thresholds.is_sorted_by(|one, next| one >= next), "{thresholds:?}");
        assert!(thresholds[0] >= 35 && thresholds[3] < thresholds[0], "{thresholds:?}");
    }

    #[test]
    fn long_values_want_little_index() {
        let corpus = Corpus::of_one_size(FIXED, 8, 1 << 20, 0.45);
        let tuned = corpus.tune().unwrap();
        assert_eq!(tuned.inline_bytes_max, 0);
        assert!((2.0..2.1).contains(&tuned.estimate.get), "{tuned:?}");
    }

    #[test]
    fn what_cannot_be_is_said() {
        let error = |value_bytes, utilisation| {
            let corpus = Corpus::of_one_size(FIXED, 8, value_bytes, utilisation);
            corpus.tune().unwrap_err().to_string()
        };
        assert!(error(2, 0.9).contains("entries of 10 bytes cannot fill 90 %"));
        assert!(error(2, 1.5).contains("the utilisation is 1.5"));
        let none = Corpus { format: FIXED, sizes: Vec::new(), utilisation: 0.5 };
        assert!(none.tune().unwrap_err().to_string().contains("sizes to tune for"));
    }
}
