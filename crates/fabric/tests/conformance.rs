//! The promises of the trait [`Fabric`], on every backend: one list of tests, which is the same for
//! all (`suite!` has one list).
//!
//! A test here relies on nothing but the trait: what one backend promises beyond it is tested
//! beside that backend. What a passed run says depends on what the backend can do to a test:
//!
//! | | shm | sim, four profiles | verbs |
//! | --- | --- | --- | --- |
//! | what verbs do, bounds and errors, counters, posting and dropping | pinned | pinned | pinned |
//! | a region for reading only | by the mapping | has none: not run | by the rights granted |
//! | one home mapped, another not | both are mapped | pinned; `sim_one_host` maps both | pinned |
//! | many endpoints at a time | threads, truly parallel | processes in virtual time, one schedule | threads, each with its queue pairs |
//! | unsignaled and dropped verbs are under way for a while | never: executed when posted | pinned | pinned, on an idle card |
//! | reloads ([`Validation::Reread`]), cheap round trips | pinned | `sim_one_host` only | has none |
//!
//! Conditions that the suite cannot force, and the tests that do:
//!
//! | | shm | sim | verbs |
//! | --- | --- | --- | --- |
//! | torn READs, transfers in any order | torn by chance; the order of words: loom, `src/shm/words.rs` | forced: `src/sim/tests/faults.rs` | allowed, not forced |
//! | verbs that overtake each other | none do | forced: `src/sim/tests/faults.rs` | allowed, not forced |
//! | stores that are seen late | by chance; loom | forced: `src/sim/tests/stores.rs` | nobody maps another node |
//! | atomics that the processor's are not atomic with | there are none | forced: `src/sim/tests/faults.rs` | allowed, not forced |
//! | peers and links that fail | a process holds nothing | forced: `src/sim/tests/failures.rs` | `tests/verbs.rs`, `tests/two_hosts.rs` |
//! | keys, rights and their withdrawal (protection domains) | the mapping's | none | `tests/verbs.rs` |
//!
//! TCP has one home mapped, and its verbs are under way until their answers come; what it does with
//! keys, fences and hostile clients is tested in `src/tcp/tests/`. Its suite runs with and without
//! encryption.
//!
//! Verbs run where there is an RDMA device (`make verbs-test` makes one); without it, or without
//! the feature, their tests are skipped or not built.

#[allow(dead_code, reason = "the suites share it")]
mod backends;
mod tools;

use std::cell::Cell;
use std::future::Future;

use backends::{BYTES, Cluster, REGIONS, Shm, Sim};
use loch_fabric::limits::{
    BUCKET_WORDS_MAX, DOORBELL_READS_MAX, TRANSFER_BYTES_MAX, WHOLE_WORDS_BYTES_MAX,
};
use loch_fabric::{
    Buf, Chase, Fabric, FabricError, RegionId, RemoteAddr, RoundTrip, Step, Swap, Validation,
    VerbCount, lanes,
};
use tools::{HERE, THERE, at, bad_places, bad_words, bytes, pattern, put, settle, word};

/// Runs the suite on a backend.
macro_rules! suite {
    ($($backend:ident: $cluster:ty,)* = $tests:tt) => {
        $(mod $backend { use super::*; suite!(@ $cluster, $tests); })*
        #[cfg(feature = "verbs")]
        mod verbs { use super::*; suite!(@ backends::verbs::Verbs, $tests); }
    };
    (@ $cluster:ty, [$($test:ident,)*]) => {
        $(#[test] fn $test() {
            if <$cluster>::is_here() {
                super::$test::<$cluster>();
            }
        })*
    };
}

suite! {
    shm: Shm,
    sim_connectx3_10: Sim<0>,
    sim_connectx3_56: Sim<1>,
    sim_connectx6_200: Sim<2>,
    sim_one_host: Sim<3>,
    tcp: backends::tcp::Tcp<false>,
    tcp_encrypted: backends::tcp::Tcp<true>,
    = [
        what_is_written_is_read,
        a_doorbell_reads_several_places,
        a_bucket_is_padded_with_zeros,
        a_read_appends,
        chases_come_to_their_ends,
        a_chase_that_goes_astray_is_an_error,
        many_places_are_read_in_their_order,
        a_read_of_many_that_is_refused_appends_nothing,
        each_of_many_swaps_has_its_own_outcome,
        many_verbs_that_are_dropped_take_effect,
        a_word_and_bytes_come_together,
        a_swap_happens_on_a_match_only,
        an_addition_wraps,
        an_unsignaled_write_arrives,
        refused_reads_change_nothing,
        refused_writes_change_nothing,
        a_region_for_reading_refuses_writes,
        verbs_are_posted_when_called,
        a_dropped_verb_takes_effect,
        a_verb_after_a_completed_one_sees_it,
        verbs_are_counted,
        a_mapped_region_takes_stores,
        an_unmapped_region_takes_none,
        a_pause_lets_others_work_and_ends,
        time_does_not_go_back,
        random_words_differ,
        atomics_of_many_lose_nothing,
        words_do_not_tear,
        words_of_long_reads_do_not_tear,
        what_was_awaited_is_settled,
    ]
}

fn what_is_written_is_read<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for region in [HERE, THERE] {
                for len in [0, 1, 7, 8, 9, 63, 64, 65, 1000, 4096, 70_001] {
                    for offset in [0, 1, 7, 8, 61, 4093] {
                        let (to, what) = (at(region, 64 + offset), pattern(len, offset));
                        put(f, at(region, 0), &vec![0xEE; len + 8192]).await;
                        let (back, done) = f.write(to, Buf::from(what.clone())).await;
                        assert_eq!((&back[..], done), (&what[..], Ok(())), "it gives the buffer");
                        assert_eq!(bytes(f, to, len).await, what, "{len} bytes at {to}");
                        let around = bytes(f, at(region, 0), len + 8192).await;
                        let (first, end) = (64 + offset as usize, 64 + offset as usize + len);
                        assert!(around[..first].iter().all(|b| *b == 0xEE), "before {to}");
                        assert!(around[end..].iter().all(|b| *b == 0xEE), "after {to} + {len}");
                    }
                }
            }
        })
    });
}

fn a_doorbell_reads_several_places<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for region in [HERE, THERE] {
                let all: Vec<u64> = (1..=64).collect();
                let image: Vec<u8> = all.iter().flat_map(|w| w.to_le_bytes()).collect();
                put(f, at(region, 0), &image).await;
                for count in 1..=DOORBELL_READS_MAX {
                    for each in [1, 3, 8] {
                        // The last place first, and the first one twice.
                        let starts: Vec<usize> = (0..count).map(|i| (count - i) % 4 * 9).collect();
                        let places: Vec<_> =
                            starts.iter().map(|word| at(region, *word as u64 * 8)).collect();
                        let mut out = vec![0; count * each];
                        assert_eq!(f.read_words(&places, &mut out).await, Ok(()));
                        let expected = starts.iter().flat_map(|word| &all[*word..word + each]);
                        assert!(out.iter().eq(expected), "{out:?} at {starts:?}");
                    }
                }
            }
        })
    });
}

fn a_bucket_is_padded_with_zeros<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            put(f, at(THERE, 64), &[0xFF; 64]).await;
            for words in 0..=BUCKET_WORDS_MAX {
                let mut expected = [0; BUCKET_WORDS_MAX];
                expected[..words].fill(u64::MAX);
                assert_eq!(f.read_bucket(at(THERE, 64), words).await, Ok(expected));
            }
        })
    });
}

fn a_read_appends<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            put(f, at(THERE, 3), b"one sided").await;
            let mut buf = Buf::new();
            buf.extend_from_slice(b"> ");
            let (buf, done) = f.read(at(THERE, 3), 4, buf).await;
            assert_eq!(done, Ok(()));
            let (buf, done) = f.read(at(THERE, 7), 5, buf).await;
            assert_eq!((&buf[..], done), (&b"> one sided"[..], Ok(())));
            let (buf, done) = f.read(at(THERE, 7), 0, buf).await;
            assert_eq!((&buf[..], done), (&b"> one sided"[..], Ok(())));
        })
    });
}

/// Chases whose buckets and entries are drawn from their numbers, and what they were given.
struct Chased {
    count: usize,
    words: usize,
    len: usize,
    buckets: Vec<Vec<u64>>,
    entries: Vec<Option<Vec<u8>>>,
}

impl Chased {
    fn new(count: usize, words: usize, len: usize) -> Self {
        Self { count, words, len, buckets: vec![Vec::new(); count], entries: vec![None; count] }
    }

    fn region(number: usize) -> RegionId {
        if number % 3 == 1 { HERE } else { THERE }
    }

    /// The bucket number `way` of a chase.
    fn bucket_at(number: usize, way: usize) -> RemoteAddr {
        at(Self::region(number + way), (number * 16 + way * 8) as u64)
    }

    /// The buckets that a chase reads, and whether an entry follows.
    fn ways(number: usize) -> (usize, bool) {
        (1 + number % 4, !number.is_multiple_of(5))
    }

    fn entry_at(number: usize) -> RemoteAddr {
        at(Self::region(number), 2048 + number as u64 * 24)
    }

    async fn run<F: Fabric>(mut self, f: &F, image: &[u8]) {
        let (mut buf, before) = (Buf::new(), f.counters().snapshot());
        let (count, words, len) = (self.count, self.words, self.len);
        assert_eq!(f.chase(count, words, len, &mut buf, &mut self).await, Ok(()));
        let bytes = |at: RemoteAddr, len: usize| &image[at.offset() as usize..][..len];
        let (mut reads, mut moved) = (0, 0);
        for number in 0..count {
            let (ways, ends) = Self::ways(number);
            let expected: Vec<u64> = (0..ways)
                .flat_map(|way| bytes(Self::bucket_at(number, way), words * 8).chunks_exact(8))
                .map(|word| u64::from_le_bytes(word.try_into().expect("8")))
                .collect();
            assert_eq!(self.buckets[number], expected, "{number}");
            let entry = ends.then(|| bytes(Self::entry_at(number), len).to_vec());
            assert_eq!(self.entries[number], entry, "{number}");
            reads += ways + usize::from(ends);
            moved += ways * words * 8 + usize::from(ends) * len;
        }
        let cost = f.counters().snapshot() - before;
        assert_eq!((cost.reads, cost.bytes), (reads as u64, moved as u64));
    }
}

impl Chase for Chased {
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        Self::bucket_at(number, 0)
    }

    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        assert!(bucket[self.words..].iter().all(|word| *word == 0), "not READ");
        let (ways, ends) = Self::ways(number);
        self.buckets[number].extend(&bucket[..self.words]);
        match self.buckets[number].len().checked_div(self.words).unwrap_or(ways) {
            way if way < ways => Step::Bucket(Self::bucket_at(number, way)),
            _ if ends => Step::Entry(Self::entry_at(number)),
            _ => Step::End,
        }
    }

    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        assert_eq!(entry.first_chunk(), Some(&again.to_le_bytes()), "the first word");
        assert!(self.entries[number].replace(entry.to_vec()).is_none(), "an entry comes once");
    }
}

fn chases_come_to_their_ends<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let image: Vec<u8> = (0..16384u64).map(|byte| ((byte * 31) >> 3) as u8).collect();
            for (number, part) in image.chunks(4096).enumerate() {
                put(f, at(HERE, number as u64 * 4096), part).await;
                put(f, at(THERE, number as u64 * 4096), part).await;
            }
            for count in [0, 1, 2, 15, 16, 17, 32, 33, 100, 256] {
                for (words, len) in [(4, 112), (1, 8), (2, 1023), (3, 1024), (4, 2000)] {
                    Chased::new(count, words, len).run(f, &image).await;
                }
            }
        })
    });
}

/// Chases of which one goes where it must not.
struct Astray {
    good: RemoteAddr,
    bucket: RemoteAddr,
    next: Step,
}

impl Chase for Astray {
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        if number == 20 { self.bucket } else { self.good }
    }

    fn step(&mut self, number: usize, _: &[u64; BUCKET_WORDS_MAX]) -> Step {
        if number == 20 { self.next } else { Step::Entry(self.good) }
    }

    fn arrived(&mut self, _: usize, _: &[u8], _: u64) {}
}

fn a_chase_that_goes_astray_is_an_error<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let good = at(HERE, 64);
            let outside = bad_places(16);
            for (place, error) in bad_words(16) {
                let mut ways = vec![(place, Step::End), (good, Step::Bucket(place))];
                if outside.iter().any(|(outside, _)| *outside == place) {
                    ways.push((good, Step::Entry(place)));
                }
                for (bucket, next) in ways {
                    let mut astray = Astray { good, bucket, next };
                    let done = f.chase(40, 2, 16, &mut Buf::new(), &mut astray).await;
                    assert_eq!(done, Err(error), "{bucket} {next:?}");
                }
            }
        })
    });
}

/// As many verbs as do not fit into the send queue of a connection at a time.
const MANY: usize = 300;

fn many_places_are_read_in_their_order<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let image = pattern(8192, 0);
            for region in [HERE, THERE] {
                put(f, at(region, 0), &image[..4096]).await;
                put(f, at(region, 4096), &image[4096..]).await;
            }
            for count in [0, 1, 2, 17, MANY] {
                let place = |number: usize| {
                    let region = if number.is_multiple_of(3) { HERE } else { THERE };
                    (at(region, number as u64 * 13), number * 7 % 1100)
                };
                let reads: Vec<_> = (0..count).map(place).collect();
                let mut expected = b"> ".to_vec();
                for (at, len) in &reads {
                    expected.extend_from_slice(&image[at.offset() as usize..][..*len]);
                }
                let (before, buf) = (f.counters().snapshot(), Buf::from(b"> ".to_vec()));
                let (buf, done) = f.read_many(&reads, buf).await;
                assert_eq!(done, Ok(()));
                assert!(buf[..] == expected, "{count} READs");
                let cost = f.counters().snapshot() - before;
                let moved = expected.len() as u64 - 2;
                assert_eq!((cost.reads, cost.bytes), (count as u64, moved));
                let one_by_one = f.caps().round_trip == RoundTrip::Cheap;
                assert!(one_by_one || cost.round_trips == 1, "{} doorbells", cost.round_trips);
            }
        })
    });
}

fn a_read_of_many_that_is_refused_appends_nothing<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let good = (at(HERE, 0), 9);
            for (place, error) in bad_places(9) {
                for reads in [[(place, 9), good], [good, (place, 9)]] {
                    let (buf, done) = f.read_many(&reads, Buf::from(b"kept".to_vec())).await;
                    assert_eq!((&buf[..], done), (&b"kept"[..], Err(error)));
                }
            }
            let len = TRANSFER_BYTES_MAX + 1;
            let error = FabricError::TooLong { len: len as u64, max: len as u64 - 1 };
            assert_eq!(f.read_many(&[good, (at(HERE, 0), len)], Buf::new()).await.1, Err(error));
        })
    });
}

/// Swaps many words; the outcomes in the order of the swaps.
async fn swap_all<F: Fabric>(f: &F, swaps: &[Swap]) -> Vec<Result<u64, FabricError>> {
    let mut outcomes = vec![None; swaps.len()];
    let seen = |number: usize, outcome| {
        assert!(outcomes[number].replace(outcome).is_none(), "{number} has one outcome");
    };
    f.compare_swap_many(swaps, seen).await;
    outcomes.into_iter().map(|outcome| outcome.expect("each has an outcome")).collect()
}

fn each_of_many_swaps_has_its_own_outcome<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            assert_eq!(swap_all(f, &[]).await, []);
            let place = |number: usize| {
                at(if number.is_multiple_of(2) { HERE } else { THERE }, 64 + number as u64 * 8)
            };
            let swap = |number: usize| {
                // Every third expects what is not there.
                let expect = u64::from(number % 3 == 2);
                Swap { at: place(number), expect, new: number as u64 + 7 }
            };
            let swaps: Vec<_> = (0..MANY).map(swap).collect();
            let before = f.counters().snapshot();
            assert_eq!(swap_all(f, &swaps).await, [Ok(0); MANY]);
            let cost = f.counters().snapshot() - before;
            assert_eq!((cost.atomics, cost.bytes), (MANY as u64, MANY as u64 * 8));
            let one_by_one = f.caps().round_trip == RoundTrip::Cheap;
            assert!(one_by_one || cost.round_trips == 1, "{} doorbells", cost.round_trips);
            for number in 0..MANY {
                let now = if number % 3 == 2 { 0 } else { number as u64 + 7 };
                assert_eq!(word(f, place(number)).await, now, "{number}");
            }
            // Some of them are refused, and the others are done.
            for (bad, error) in bad_words(8) {
                let good = at(THERE, 8);
                let now = word(f, good).await;
                let swaps = [(good, now), (bad, 0), (good, now + 1)].map(|(at, expect)| Swap {
                    at,
                    expect,
                    new: now + 1,
                });
                let outcomes = swap_all(f, &swaps).await;
                assert_eq!(outcomes[1], Err(error), "{bad}");
                assert!(outcomes[0] == Ok(now) && outcomes[2].is_ok(), "{outcomes:?}");
                assert_eq!(word(f, good).await, now + 1);
            }
        })
    });
}

fn many_verbs_that_are_dropped_take_effect<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let swap = |number: u64| Swap { at: at(THERE, number * 8), expect: 0, new: number };
            let swaps: Vec<_> = (0..40).map(swap).collect();
            let reads: Vec<_> = swaps.iter().map(|swap| (swap.at, 100)).collect();
            let posted = f.counters().snapshot();
            drop(f.read_many(&reads, Buf::new()));
            drop(f.compare_swap_many(&swaps, |_, _| panic!("nobody waits")));
            let posted = f.counters().snapshot() - posted;
            settle(f).await;
            assert_eq!(posted.reads, 40, "they are posted when called");
            for swap in swaps.iter().filter(|_| posted.atomics == 40) {
                assert_eq!(word(f, swap.at).await, swap.new);
            }
            // A backend without a way of its own swaps one word after the other.
            assert!(posted.atomics == 40 || f.caps().round_trip == RoundTrip::Cheap);
        })
    });
}

fn a_word_and_bytes_come_together<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            put(f, at(THERE, 8), &7u64.to_le_bytes()).await;
            put(f, at(HERE, 101), b"bytes").await;
            let buf = Buf::from(b"and ".to_vec());
            let before = f.counters().snapshot();
            let (buf, word) = f.read_word_and_bytes(at(THERE, 8), at(HERE, 101), 5, buf).await;
            assert_eq!((&buf[..], word), (&b"and bytes"[..], Ok(7)));
            let cost = f.counters().snapshot() - before;
            assert_eq!((cost.reads, cost.round_trips, cost.bytes), (2, 1, 13));
        })
    });
}

fn a_swap_happens_on_a_match_only<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for place in [at(HERE, 16), at(THERE, 16)] {
                assert_eq!(f.compare_swap(place, 0, u64::MAX).await, Ok(0));
                assert_eq!(f.compare_swap(place, 0, 1).await, Ok(u64::MAX), "no match");
                assert_eq!(word(f, place).await, u64::MAX, "nothing was swapped");
                assert_eq!(f.compare_swap(place, u64::MAX, 5).await, Ok(u64::MAX));
                assert_eq!(f.compare_swap(place, 5, 5).await, Ok(5), "the same word again");
                assert_eq!(word(f, place).await, 5);
                let near = [at(place.region(), 8), at(place.region(), 24)];
                assert_eq!([word(f, near[0]).await, word(f, near[1]).await], [0, 0]);
            }
        })
    });
}

fn an_addition_wraps<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for place in [at(HERE, 16), at(THERE, 16)] {
                assert_eq!(f.fetch_add(place, u64::MAX).await, Ok(0));
                assert_eq!(f.fetch_add(place, 3).await, Ok(u64::MAX));
                assert_eq!(f.fetch_add(place, 0).await, Ok(2));
                assert_eq!(word(f, place).await, 2);
                assert_eq!(word(f, at(place.region(), 24)).await, 0, "no carry into the next");
            }
        })
    });
}

fn an_unsignaled_write_arrives<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let most = f.caps().inline_bytes;
            assert!(most >= 64);
            let there = [8, most, 13, 0].map(|len| (THERE, len));
            for (region, len) in [(HERE, 8), (HERE, most)].into_iter().chain(there) {
                let what = pattern(len, 5);
                assert_eq!(f.write_unsignaled(at(region, 1000), &what), Ok(()));
                settle(f).await;
                assert_eq!(bytes(f, at(region, 1000), len).await, what);
            }
        })
    });
}

fn refused_reads_change_nothing<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for (place, error) in bad_words(16) {
                assert_eq!(f.read_words(&[place], &mut [0; 2]).await, Err(error));
                let both = [at(HERE, 0), place];
                assert_eq!(f.read_words(&both, &mut [0; 4]).await, Err(error), "one of two");
                assert_eq!(f.read_bucket(place, 2).await, Err(error));
            }
            for (place, error) in bad_words(8) {
                let kept = Buf::from(b"kept".to_vec());
                let (buf, done) = f.read_word_and_bytes(place, at(HERE, 0), 8, kept).await;
                assert_eq!((&buf[..], done), (&b"kept"[..], Err(error)));
            }
            for (place, error) in bad_places(9) {
                let (buf, done) = f.read(place, 9, Buf::from(b"kept".to_vec())).await;
                assert_eq!((&buf[..], done), (&b"kept"[..], Err(error)));
                let kept = Buf::from(b"kept".to_vec());
                let (buf, done) = f.read_word_and_bytes(at(HERE, 0), place, 9, kept).await;
                assert_eq!((&buf[..], done), (&b"kept"[..], Err(error)));
            }
            let len = TRANSFER_BYTES_MAX + 1;
            let error = FabricError::TooLong { len: len as u64, max: len as u64 - 1 };
            assert_eq!(f.read(at(HERE, 0), len, Buf::new()).await.1, Err(error));
            let both = f.read_word_and_bytes(at(HERE, 0), at(HERE, 0), len, Buf::new()).await;
            assert_eq!(both.1, Err(error));
        })
    });
}

fn refused_writes_change_nothing<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for region in [HERE, THERE] {
                put(f, at(region, 0), &[3; 64]).await;
                put(f, at(region, BYTES - 64), &[3; 64]).await;
            }
            for (place, error) in bad_words(8) {
                assert_eq!(f.compare_swap(place, 0, 1).await, Err(error));
                assert_eq!(f.compare_swap(place, 0x0303_0303_0303_0303, 1).await, Err(error));
                assert_eq!(f.fetch_add(place, 1).await, Err(error));
                if f.is_mapped(place.region()) {
                    assert_eq!(f.store_before(place, 1), Err(error));
                    assert_eq!(f.store_after(place, 1), Err(error));
                    assert_eq!(f.announce(place, 1), Err(error));
                    assert_eq!(f.load(place), Err(error));
                }
            }
            for (place, error) in bad_places(9) {
                let (buf, done) = f.write(place, Buf::from(vec![1; 9])).await;
                assert_eq!((&buf[..], done), (&[1; 9][..], Err(error)));
                assert_eq!(f.write_unsignaled(place, &[1; 9]), Err(error));
                if f.is_mapped(place.region()) {
                    assert_eq!(f.store(place, &[&[1; 4], &[1; 5]]), Err(error));
                    assert_eq!(f.raw(place, 9), Err(error));
                }
            }
            settle(f).await;
            for region in [HERE, THERE] {
                assert_eq!(bytes(f, at(region, 0), 64).await, [3; 64]);
                assert_eq!(bytes(f, at(region, BYTES - 64), 64).await, [3; 64]);
            }
        })
    });
}

fn a_region_for_reading_refuses_writes<C: Cluster>() {
    let cluster = C::new();
    cluster.run_reader(|f, _| {
        Box::pin(async move {
            let place = at(THERE, 64);
            let refused = FabricError::ReadOnly { at: place };
            assert_eq!(f.compare_swap(place, 0, 1).await, Err(refused));
            assert_eq!(f.fetch_add(place, 1).await, Err(refused));
            assert_eq!(f.write(place, Buf::from(vec![1; 9])).await.1, Err(refused));
            assert_eq!(f.write_unsignaled(place, &[1; 9]), Err(refused));
            if f.is_mapped(THERE) {
                assert_eq!(f.store(place, &[&[1]]), Err(refused));
                assert_eq!(f.store_before(place, 1), Err(refused));
                assert_eq!(f.store_after(place, 1), Err(refused));
                assert_eq!(f.announce(place, 1), Err(refused));
                assert_eq!(f.raw(place, 1), Err(refused));
                assert_eq!(f.load(place), Ok(0));
            }
            assert_eq!(bytes(f, place, 16).await, [0; 16], "it can be read, and nothing changed");
            assert_eq!(f.compare_swap(at(HERE, 64), 0, 1).await, Ok(0), "the other one can");
        })
    });
}

fn verbs_are_posted_when_called<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let before = f.counters().snapshot();
            let places = [at(THERE, 0)];
            let mut out = [0];
            let mut futures: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
            let (swap, add) = (f.compare_swap(places[0], 0, 1), f.fetch_add(at(THERE, 8), 1));
            let read = f.read_words(&places, &mut out);
            let write = f.write(at(THERE, 16), Buf::from(vec![1; 8]));
            let posted = f.counters().snapshot() - before;
            assert_eq!((posted.reads, posted.writes, posted.atomics), (1, 1, 2));
            futures.push(Box::pin(async { assert_eq!(swap.await, Ok(0)) }));
            futures.push(Box::pin(async { assert_eq!(add.await, Ok(0)) }));
            futures.push(Box::pin(async { assert_eq!(read.await, Ok(())) }));
            futures.push(Box::pin(async { assert_eq!(write.await.1, Ok(())) }));
            for future in futures.into_iter().rev() {
                future.await;
            }
            assert!(out[0] <= 1, "before the swap or after it");
            let waited = f.counters().snapshot() - before;
            assert_eq!((waited.verbs, waited.round_trips), (4, 4));
        })
    });
}

fn a_dropped_verb_takes_effect<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for region in [HERE, THERE] {
                drop(f.fetch_add(at(region, 0), 5));
                drop(f.compare_swap(at(region, 8), 0, 6));
                drop(f.write(at(region, 16), Buf::from(7u64.to_le_bytes().to_vec())));
                drop(f.read(at(region, 0), 100, Buf::with_capacity(100)));
                settle(f).await;
                let image: Vec<u8> = [5u64, 6, 7].iter().flat_map(|w| w.to_le_bytes()).collect();
                assert_eq!(bytes(f, at(region, 0), 24).await, image);
            }
        })
    });
}

fn a_verb_after_a_completed_one_sees_it<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for region in [HERE, THERE] {
                for i in 0..50u64 {
                    let place = at(region, 64 + i % 3 * 8);
                    put(f, place, &i.to_le_bytes()).await;
                    assert_eq!(word(f, place).await, i);
                    assert_eq!(f.fetch_add(place, 1).await, Ok(i));
                    assert_eq!(f.compare_swap(place, i + 1, i).await, Ok(i + 1));
                    assert_eq!(f.read_bucket(place, 1).await.map(|b| b[0]), Ok(i));
                }
            }
        })
    });
}

fn verbs_are_counted<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for (region, remote) in [(HERE, 0), (THERE, 1)] {
                let before = f.counters().snapshot();
                word(f, at(region, 0)).await;
                let two = [at(region, 0), at(region, 64)];
                f.read_words(&two, &mut [0; 8]).await.expect("it is in bounds");
                f.read_bucket(at(region, 0), 3).await.expect("it is in bounds");
                bytes(f, at(region, 0), 5).await;
                put(f, at(region, 0), &[0; 3]).await;
                f.write_unsignaled(at(region, 0), &[0; 2]).expect("it is in bounds");
                f.compare_swap(at(region, 0), 0, 0).await.expect("it is in bounds");
                f.fetch_add(at(region, 0), 0).await.expect("it is in bounds");
                let (verbs, bytes) = (9, 8 + 64 + 24 + 5 + 3 + 2 + 8 + 8);
                let expected = VerbCount {
                    verbs,
                    remote_verbs: verbs * remote,
                    round_trips: 7,
                    reads: 5,
                    writes: 2,
                    atomics: 2,
                    bytes,
                    remote_bytes: bytes * remote,
                };
                assert_eq!(f.counters().snapshot() - before, expected);
            }
            settle(f).await;
        })
    });
}

fn a_mapped_region_takes_stores<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            assert!(f.is_mapped(HERE), "everybody maps what is at home");
            let before = f.counters().snapshot();
            let parts: [&[u8]; 4] = [b"one", b"", b" sided", b"!"];
            assert_eq!(f.store(at(HERE, 5), &parts), Ok(()));
            assert_eq!(f.store_before(at(HERE, 64), 8), Ok(()));
            assert_eq!(f.announce(at(HERE, 72), 9), Ok(()));
            assert_eq!(f.store_after(at(HERE, 80), 10), Ok(()));
            assert_eq!(f.load(at(HERE, 80)), Ok(10));
            f.will_store(at(HERE, 72), 8);
            f.will_store(at(HERE, 60), 20);
            f.will_store(at(RegionId(77), 1 << 50), 100);
            assert_eq!((f.load(at(HERE, 64)), f.load(at(HERE, 72))), (Ok(8), Ok(9)));
            if f.caps().validation == Validation::Reread {
                assert_eq!(f.reload(at(HERE, 72)), Ok(9));
            }
            assert_eq!(f.counters().snapshot(), before, "stores and loads are no verbs");
            assert_eq!(bytes(f, at(HERE, 5), 10).await, b"one sided!");
            assert_eq!((word(f, at(HERE, 64)).await, word(f, at(HERE, 72)).await), (8, 9));
            let raw = f.raw(at(HERE, 5), 10).expect("it is mapped");
            let last = f.raw(at(HERE, 5).add(9), 1).expect("it is mapped");
            assert_eq!(last as usize - raw as usize, 9);
            let mut loaded = Buf::new();
            loaded.extend_from_slice(b"by ");
            assert_eq!(f.load_bytes(at(HERE, 64), 13, &mut loaded), Ok(()));
            assert_eq!(loaded[..], *b"by \x08\0\0\0\0\0\0\0\x09\0\0\0\0");
            assert!(f.raw(at(HERE, BYTES), 0).is_ok(), "nothing can be at the end");
        })
    });
}

fn an_unmapped_region_takes_none<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let nowhere = RegionId(77);
            assert!(!f.is_mapped(nowhere));
            for region in [THERE, nowhere].into_iter().filter(|region| !f.is_mapped(*region)) {
                let (place, error) = (at(region, 0), FabricError::Unattached { region });
                assert_eq!(f.store(place, &[&[1]]), Err(error));
                assert_eq!(f.store_before(place, 1), Err(error));
                assert_eq!(f.store_after(place, 1), Err(error));
                assert_eq!(f.announce(place, 1), Err(error));
                assert_eq!(f.load(place), Err(error));
                assert_eq!(f.load_bytes(place, 1, &mut Buf::new()), Err(error));
                assert_eq!(f.raw(place, 1), Err(error));
            }
            assert_eq!(word(f, at(THERE, 0)).await, 0);
            // A round trip is cheap where it is no round trip.
            let is_cheap = f.caps().round_trip == RoundTrip::Cheap;
            assert!(!is_cheap || f.is_mapped(THERE));
        })
    });
}

fn a_pause_lets_others_work_and_ends<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let added = Cell::new(0);
            let seen = Cell::new(u64::MAX);
            let lane = |number: usize| {
                let (added, seen) = (&added, &seen);
                async move {
                    if number == 0 {
                        // Several times, as a verb takes longer than this on an emulated card. One
                        // pause after the other gives nobody a turn but by the pause itself.
                        for _ in 0..100 {
                            f.pause(300).await;
                            seen.set(added.get());
                            if added.get() > 0 {
                                break;
                            }
                        }
                        return;
                    }
                    for i in 0..20 {
                        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Ok(i));
                        added.set(added.get() + 1);
                        f.pause(0).await;
                    }
                }
            };
            lanes::run(2, (0..2).map(lane), |()| ()).await;
            assert_eq!(added.get(), 20);
            assert!(seen.get() > 0 && seen.get() != u64::MAX, "the other lane stood still");
        })
    });
}

fn time_does_not_go_back<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let mut last = f.now_us();
            let wall = f.wall_ms();
            for us in (0..40).chain([600]) {
                // Verbs before this moment do not count.
                drop(f.fetch_add(at(THERE, 0), 1));
                let began = f.now_us();
                f.pause(us).await;
                let now = f.now_us();
                assert!(began >= last && now >= began + us, "{last}, {began}, {us} later {now}");
                last = now;
            }
            assert!(f.wall_ms() >= wall);
            settle(f).await;
        })
    });
}

fn random_words_differ<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let mut words: Vec<u64> = (0..100).map(|_| f.random()).collect();
            words.sort_unstable();
            words.dedup();
            assert!(words.len() > 98);
        })
    });
}

/// Endpoints of the tests of concurrency, and what each does.
const ENDPOINTS: usize = 6;
const ROUNDS: u64 = 200;

fn homes() -> Vec<RegionId> {
    (0..ENDPOINTS).map(|i| RegionId(i as u8 % REGIONS)).collect()
}

fn atomics_of_many_lose_nothing<C: Cluster>() {
    let cluster = C::new();
    cluster.run(&homes(), |f, _| {
        Box::pin(async move {
            let (sum, swaps) = (at(THERE, 0), at(THERE, 8));
            for _ in 0..ROUNDS {
                f.fetch_add(sum, 3).await.expect("it is in bounds");
                let mut seen = word(f, swaps).await;
                loop {
                    let old = f.compare_swap(swaps, seen, seen + 1).await.expect("in bounds");
                    if old == seen {
                        break;
                    }
                    assert!(old > seen, "it only grows");
                    seen = old;
                }
            }
        })
    });
    cluster.run(&[HERE], |f, _| {
        Box::pin(async move {
            let all = ENDPOINTS as u64 * ROUNDS;
            assert_eq!(word(f, at(THERE, 0)).await, 3 * all);
            assert_eq!(word(f, at(THERE, 8)).await, all);
        })
    });
}

fn words_do_not_tear<C: Cluster>() {
    const FIRST: RemoteAddr = RemoteAddr::new(THERE, 64);
    C::new().run(&homes(), |f, number| {
        Box::pin(async move {
            for round in 0..ROUNDS {
                let mut image = Vec::new();
                if number % 2 == 0 {
                    // Each word is one byte eight times over.
                    (0..6).for_each(|_| image.extend([(round * 7 + number as u64) as u8; 8]));
                    put(f, FIRST, &image).await;
                    f.write_unsignaled(FIRST, &image).expect("it is in bounds");
                    f.pause(1).await;
                } else {
                    // Not from the first word's first byte on.
                    let read = bytes(f, FIRST.add(3), 45).await;
                    image.extend_from_slice(&read);
                }
                let words = image[if number % 2 == 0 { 0 } else { 5 }..].chunks_exact(8);
                words.for_each(|w| assert!(w.iter().all(|b| *b == w[0]), "torn: {w:?}"));
            }
        })
    });
}

/// More is READ than the buffers on the way hold, and the client is slow to take it: over TCP words
/// were sent in two halves of two moments.
fn words_of_long_reads_do_not_tear<C: Cluster>() {
    const LEN: usize = 3 * WHOLE_WORDS_BYTES_MAX / 2;
    const UNDER_WAY: usize = 48;
    const READS: usize = 4 * UNDER_WAY;
    const READERS: u64 = 2;
    /// More than there are while the readers read.
    const WRITES_MAX: u32 = 1_000_000;
    const ENDED: RemoteAddr = RemoteAddr::new(THERE, BYTES - 8);
    C::new().run(&[THERE, HERE, HERE], |f, number| {
        Box::pin(async move {
            if number == 0 {
                let images = [1, 2].map(|byte| vec![byte; LEN]);
                for image in (0..WRITES_MAX).map(|round| &images[round as usize % 2]) {
                    put(f, at(THERE, 0), image).await;
                    f.pause(1).await;
                    if word(f, ENDED).await == READERS {
                        return;
                    }
                }
                panic!("the readers do not end");
            }
            // Not from the first word's first byte on, nor to the last one's last byte.
            let read = |_| f.read_whole_words(at(THERE, 3), LEN - 4, Buf::with_capacity(LEN));
            let reads = (0..READS).map(read);
            let (mut whole, mut torn) = (0, 0);
            let has_come = |(buf, done): (Buf, Result<(), FabricError>)| {
                let words = buf.get(5..).unwrap_or_default().chunks_exact(8);
                let is_whole = |word: &[u8]| word.iter().all(|byte| *byte == word[0]);
                torn += words.filter(|word| !is_whole(word)).count();
                whole += usize::from(done.is_ok());
            };
            lanes::run(UNDER_WAY, reads, has_come).await;
            f.fetch_add(ENDED, 1).await.expect("it is in bounds");
            assert_eq!((whole, torn), (READS, 0), "READs that ended well, and torn words");
        })
    });
}

fn what_was_awaited_is_settled<C: Cluster>() {
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let first = f.posted();
            assert!(f.is_settled(first), "nothing is under way");
            put(f, at(THERE, 0), &[1; 100]).await;
            f.fetch_add(at(THERE, 0), 1).await.expect("it is in bounds");
            word(f, at(THERE, 0)).await;
            assert!(f.is_settled(f.posted()), "all was awaited");
            assert!(f.posted() >= first);
            let mark = f.posted();
            f.write_unsignaled(at(THERE, 0), &[2; 8]).expect("it is in bounds");
            drop(f.fetch_add(at(THERE, 8), 1));
            assert!(f.is_settled(mark), "what is under way was posted after the mark");
            settle(f).await;
            assert_eq!(word(f, at(THERE, 0)).await, u64::from_le_bytes([2; 8]));
        })
    });
}
