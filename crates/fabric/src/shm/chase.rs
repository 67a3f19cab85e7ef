//! Many pointers chased at once: each step of a chase prefetches what the next one reads, and the
//! steps of many chases are interleaved.

use super::{copy, words};
use crate::limits::BUCKET_WORDS_MAX;
use crate::sync::AtomicU64;
use crate::{Buf, Chase, RemoteAddr, Result, Step};

/// Chases whose same step is made in a row.
const GROUP: usize = 16;
/// Chases that make a step before the next step is made of those before them: the time in which
/// lines arrive. With more, a core would be asked for more lines than it can have under way.
const AHEAD: usize = 16;

/// Posts READs of a doorbell.
///
/// # Safety
/// A place that [`Post::post`] returns has `len` mapped bytes and is aligned to a word, for as long
/// as the poster is borrowed.
pub(super) unsafe trait Post {
    /// The place of a READ, whose lines are prefetched. Adds one to `remote` if it is another
    /// node's.
    fn post(&self, at: RemoteAddr, len: usize, remote: &mut u64) -> Result<*const u8>;

    /// Counts a doorbell of READs of `len` bytes, `remote` of them to other nodes.
    fn count(&self, reads: usize, remote: u64, len: usize);
}

/// Chases under way. Invariant: a place in `buckets` has `words` mapped words, one in `entries` has
/// `len` mapped bytes, and all are aligned to words, while the poster is borrowed.
pub(super) struct Chases<'a, P: Post> {
    poster: &'a P,
    words: usize,
    len: usize,
    count: usize,
    /// Chases that have begun.
    begun: usize,
    buckets: Ring,
    entries: Ring,
    /// READs of buckets and of entries to other nodes.
    remote: [u64; 2],
}

/// Places that were posted, with the numbers of their chases, in order.
struct Ring {
    places: [(usize, *const u8); RING],
    taken: usize,
    posted: usize,
}

/// Places that a ring can have: a power of two.
const RING: usize = 32;
const _: () = assert!(AHEAD + GROUP <= RING && RING.is_power_of_two());

impl Ring {
    const EMPTY: Self = Self { places: [(0, std::ptr::null()); RING], taken: 0, posted: 0 };

    #[inline(always)]
    fn push(&mut self, number: usize, place: *const u8) {
        self.places[self.posted % RING] = (number, place);
        self.posted += 1;
    }

    #[inline(always)]
    fn pop(&mut self) -> (usize, *const u8) {
        self.taken += 1;
        self.places[(self.taken - 1) % RING]
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.posted - self.taken
    }

    /// How many places may be taken now so that `keep` places stay.
    #[inline(always)]
    fn ready(&self, keep: usize) -> usize {
        self.len().saturating_sub(keep).min(GROUP)
    }
}

impl<'a, P: Post> Chases<'a, P> {
    #[inline(always)]
    pub fn new(poster: &'a P, words: usize, len: usize, count: usize) -> Self {
        assert!(words <= BUCKET_WORDS_MAX && len >= 8, "a bucket's words, and a word of an entry");
        let (buckets, entries) = (Ring::EMPTY, Ring::EMPTY);
        Self { poster, words, len, count, begun: 0, buckets, entries, remote: [0; 2] }
    }

    /// Makes all steps of all chases.
    #[inline(always)]
    pub fn run(&mut self, buf: &mut Buf, chase: &mut impl Chase) -> Result<()> {
        let done = self.run_uncounted(buf, chase);
        let Self { buckets, entries, remote: [remote_buckets, remote_entries], .. } = self;
        self.poster.count(buckets.posted, *remote_buckets, self.words * 8);
        self.poster.count(entries.posted, *remote_entries, self.len);
        done
    }

    #[inline(always)]
    fn run_uncounted(&mut self, buf: &mut Buf, chase: &mut impl Chase) -> Result<()> {
        loop {
            self.begin(chase)?;
            let all_began = self.begun == self.count;
            let keep = if all_began { 0 } else { AHEAD };
            self.step(self.buckets.ready(keep), chase)?;
            let all_stepped = all_began && self.buckets.len() == 0;
            let keep = if all_stepped { 0 } else { AHEAD };
            self.end(self.entries.ready(keep), buf, chase);
            if all_stepped && self.entries.len() == 0 {
                return Ok(());
            }
        }
    }

    // Each of these is a function of its own: for all together the registers do not suffice.

    #[inline(never)]
    fn begin(&mut self, chase: &mut impl Chase) -> Result<()> {
        let room = RING - self.buckets.len();
        for _ in 0..(self.count - self.begun).min(room).min(GROUP) {
            let number = self.begun;
            self.begun += 1;
            self.post_bucket(number, chase.bucket(number))?;
        }
        Ok(())
    }

    #[inline(always)]
    fn post_bucket(&mut self, number: usize, at: RemoteAddr) -> Result<()> {
        let place = self.poster.post(at, self.words * 8, &mut self.remote[0])?;
        self.buckets.push(number, place);
        Ok(())
    }

    #[inline(never)]
    fn step(&mut self, chases: usize, chase: &mut impl Chase) -> Result<()> {
        for _ in 0..chases {
            let (number, place) = self.buckets.pop();
            // SAFETY: by this type's invariant the place has so many words.
            let load = |i| unsafe { load_word(place, i) };
            let bucket = match self.words {
                // The usual number, known when this is compiled.
                BUCKET_WORDS_MAX => std::array::from_fn(load),
                words => std::array::from_fn(|i| if i < words { load(i) } else { 0 }),
            };
            match chase.step(number, &bucket) {
                Step::Entry(at) => {
                    let remote = &mut self.remote[1];
                    let place = self.poster.post(at, self.len, remote)?;
                    self.entries.push(number, place);
                }
                Step::Bucket(at) => self.post_bucket(number, at)?,
                Step::End => (),
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn end(&mut self, chases: usize, buf: &mut Buf, chase: &mut impl Chase) {
        for _ in 0..chases {
            let (number, place) = self.entries.pop();
            buf.clear();
            // SAFETY: by this type's invariant the place has `len` mapped bytes; the copy
            // initialises as many.
            unsafe { buf.append_with(self.len, |room| copy::copy_out(place, room, self.len)) };
            // SAFETY: by this type's invariant there is a whole and aligned word.
            let again = words::load_after(unsafe { &*place.cast::<AtomicU64>() });
            chase.arrived(number, buf, again);
        }
    }
}

/// Loads word `i` from a place.
///
/// # Safety
/// `place` must be 8-aligned and mapped for `i + 1` words.
#[inline(always)]
pub(super) unsafe fn load_word(place: *const u8, i: usize) -> u64 {
    // SAFETY: by this function's contract; every process reaches these bytes as atomics or in the
    // copy engine only.
    words::load(unsafe { &*place.cast::<AtomicU64>().add(i) })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, Barrier};

    use super::*;
    use crate::lanes::block_on;
    use crate::shm::{Region, ShmEndpoint};
    use crate::{Fabric, RegionId};

    const WORD: RemoteAddr = RemoteAddr::new(RegionId(0), 64);
    const ENTRY: RemoteAddr = RemoteAddr::new(RegionId(0), 4096);
    const ENTRY_WORDS: usize = 512;

    /// Chases of one entry, which another thread writes all the time.
    struct Torn {
        /// The word of the bucket, by chase. It names the incarnation of the entry that is whole.
        words: [u64; 64],
        /// The number of whole copies that were believed.
        whole: u32,
        /// The number of torn copies that only the second load of the generation told.
        reused: u32,
        /// The number of torn copies that were believed.
        wrong: u32,
    }

    impl Chase for Torn {
        fn bucket(&mut self, _: usize) -> RemoteAddr {
            WORD
        }

        fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
            self.words[number] = bucket[0];
            Step::Entry(ENTRY)
        }

        fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
            let words = entry.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let is_whole = words.clone().all(|word| word == self.words[number]);
            let first = words.into_iter().next();
            if first != Some(self.words[number]) || again != self.words[number] {
                self.reused += u32::from(first == Some(self.words[number]) && !is_whole);
                return;
            }
            self.whole += u32::from(is_whole);
            self.wrong += u32::from(!is_whole);
        }
    }

    /// A writer that reuses an entry stores the generation before any other byte. A copy that the
    /// writer tears therefore shows another generation when that word is loaded again.
    #[test]
    fn an_entry_that_changes_while_it_is_copied_is_told_from_a_whole_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("region");
        let region = Arc::new(Region::create(&path, 1 << 16).expect("a region"));
        let endpoint = || {
            let mut endpoint = ShmEndpoint::new(RegionId(0));
            endpoint.attach(RegionId(0), region.clone());
            endpoint
        };
        let (stop, begin) = (AtomicBool::new(false), Barrier::new(2));
        let mut torn = Torn { words: [0; 64], whole: 0, reused: 0, wrong: 0 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let fabric = endpoint();
                begin.wait();
                for generation in 1u64.. {
                    let body = generation.to_le_bytes().repeat(ENTRY_WORDS - 1);
                    fabric.store_before(ENTRY, generation).expect("mapped");
                    fabric.store(ENTRY.add(8), &[&body]).expect("mapped");
                    fabric.store_after(WORD, generation).expect("mapped");
                    // The pauses give the reader whole entries, too.
                    for _ in 0..generation % 512 {
                        std::hint::spin_loop();
                    }
                    if stop.load(Relaxed) {
                        return;
                    }
                }
            });
            let fabric = endpoint();
            begin.wait();
            let mut buf = Buf::new();
            let until = quanta::Instant::now() + std::time::Duration::from_secs(60);
            while (torn.reused < 100 || torn.whole < 100) && quanta::Instant::now() < until {
                let chased = fabric.chase(64, 1, ENTRY_WORDS * 8, &mut buf, &mut torn);
                if let Err(error) = block_on(chased) {
                    stop.store(true, Relaxed);
                    panic!("{error}");
                }
            }
            stop.store(true, Relaxed);
        });
        let Torn { whole, reused, wrong, .. } = torn;
        assert!(wrong == 0 && reused > 0 && whole > 0, "{wrong} wrong, {reused}, {whole}");
    }
}
