//! Faults of transfers, and that a seed decides everything.

use super::*;
use crate::lanes;

/// All faults at once strike three processes that use every verb; returns what happened.
fn storm(seed: u64) -> (u64, u64, Vec<u64>, u64) {
    let faults = Faults {
        torn: 0.5,
        tear_ns: 2_000,
        delays: 0.3,
        delay_ns: 1_000,
        slow_stores: 0.5,
        store_ns: 3_000,
        atomic_window_ns: 100,
        deaths: 0.001,
        pauses: 0.01,
        pause_ns: 10_000,
        lost_messages: 0.1,
        doubled_messages: 0.1,
        wall_skew_ms: 100,
        ..Faults::default()
    };
    let lab = Lab::of(Profile::CONNECTX_3_56, 2, seed, faults);
    let sum = Rc::new(Cell::new(0u64));
    for number in 0..3 {
        let sum = sum.clone();
        let process = lab.go(RegionId(number % 2), |f| async move {
            for i in 0..200 {
                let place = at(THERE, f.random() % 64 * 8);
                _ = f.compare_swap(place, 0, f.random()).await;
                _ = f.write(place, Buf::from(vec![i; 40])).await;
                _ = f.store(at(RegionId(number % 2), 1000), &[&[i; 30]]);
                _ = f.send(ProcessId(2), &[i]);
                let (buf, _) = f.read(at(HERE, 1000), 30, Buf::new()).await;
                buf.iter().for_each(|b| sum.set(sum.get().wrapping_mul(31) + u64::from(*b)));
                f.pause(f.random() % 5).await;
            }
        });
        lab.make_mortal(process);
    }
    lab.finish();
    let image = [lab.words(at(HERE, 0), 200), lab.words(at(THERE, 0), 200)].concat();
    (lab.events(), lab.now_ns(), image, sum.get())
}

#[test]
fn a_seed_decides_everything() {
    let runs: Vec<_> = (0..8).map(storm).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, storm(seed as u64), "seed {seed}");
        let others = runs.iter().filter(|other| other.2 == run.2 && other.1 == run.1).count();
        assert_eq!(others, 1, "seed {seed} is like another");
    }
}

/// One process READs seven words while another stores them, each version with one `store`; returns
/// how many READs mixed versions. `into` bytes before the first whole word are read too.
fn mixed_reads(torn: f64, into: u64) -> usize {
    let lab = Lab::with(Faults { torn, tear_ns: 5_000, ..Faults::default() });
    lab.go(THERE, |f| async move {
        for version in 0..250 {
            f.store(at(THERE, 56), &[&[version; 72]]).expect("it is mapped");
            f.pause(2).await;
        }
    });
    let reads = Told::new();
    let told = reads.clone();
    lab.go(HERE, |f| async move {
        for _ in 0..100 {
            let from = at(THERE, 64 - into);
            let (buf, done) = f.read(from, 56 + into as usize, Buf::new()).await;
            done.expect("it is in bounds");
            told.tell(buf.into_vec());
        }
    });
    lab.finish();
    let is_mixed = |read: &Vec<u8>| {
        for word in read[into as usize..].chunks_exact(8) {
            assert!(word.iter().all(|b| *b == word[0]), "a torn word: {word:?}");
        }
        read.iter().any(|b| *b != read[0])
    };
    reads.take().iter().filter(|read| is_mixed(read)).count()
}

#[test]
fn torn_reads_mix_versions_and_tear_no_word() {
    assert_eq!(mixed_reads(0.0, 0), 0);
    let mixed = mixed_reads(1.0, 0);
    assert!(mixed > 30, "{mixed} of 100");
    // Words are those of memory, not those of the transfer.
    let mixed = mixed_reads(1.0, 4);
    assert!(mixed > 30, "{mixed} of 100");
}

/// At how many moments a WRITE of seven words and some bytes before them was partly done.
fn moments_of_mixture(torn: f64, into: u64) -> usize {
    let lab = Lab::with(Faults { torn, tear_ns: 5_000, ..Faults::default() });
    let process = lab.go(HERE, |f| async move {
        for version in 1..100 {
            let image = Buf::from(vec![version; 56 + into as usize]);
            f.write(at(THERE, 64 - into), image).await.1.expect("it is in bounds");
        }
    });
    let mut moments = 0;
    while !lab.has_ended(process) {
        assert!(lab.step());
        let words = lab.words(at(THERE, 64), 7);
        assert!(words.iter().all(|word| is_whole(*word)), "a torn word: {words:x?}");
        moments += usize::from(words.iter().any(|word| *word != words[0]));
    }
    assert!(lab.words(at(THERE, 64), 7).iter().all(|word| *word & 0xFF == 99), "all arrives");
    assert_eq!(lab.load(at(THERE, 56)) >> 56, if into > 0 { 99 } else { 0 });
    assert_eq!(lab.load(at(THERE, 120)), 0, "and no more than that");
    moments
}

#[test]
fn torn_writes_mix_versions_and_tear_no_word() {
    assert_eq!(moments_of_mixture(0.0, 0), 0);
    let moments = moments_of_mixture(1.0, 0);
    assert!(moments > 50, "{moments}");
    // Words are those of memory, not those of the transfer.
    let moments = moments_of_mixture(1.0, 4);
    assert!(moments > 50, "{moments}");
}

/// In how many of 200 pairs the verb that was posted second was over first, and in how many the
/// WRITE that was posted second was overwritten by the first.
fn overtakings(delays: f64) -> (usize, usize) {
    let lab = Lab::with(Faults { delays, delay_ns: 3_000, ..Faults::default() });
    let seen = Told::new();
    let told = seen.clone();
    lab.go(HERE, |f| async move {
        for _ in 0..200 {
            let mut order = Vec::new();
            let add = |number: u64| {
                let add = f.fetch_add(at(THERE, number * 8), 1);
                async move { add.await.map(|_| number) }
            };
            let pair = [add(1), add(2)];
            lanes::run(2, pair, |done| order.push(done.expect("in bounds"))).await;
            let writes = [1u64, 2].map(|word| put(&f, at(THERE, 0), word));
            lanes::run(2, writes, |done| done.expect("in bounds")).await;
            told.tell((order == [2, 1], word(&f, at(THERE, 0)).await == 1));
        }
    });
    lab.finish();
    let seen = seen.take();
    (seen.iter().filter(|pair| pair.0).count(), seen.iter().filter(|pair| pair.1).count())
}

#[test]
fn delayed_verbs_overtake_each_other() {
    assert_eq!(overtakings(0.0), (0, 0));
    let (answers, requests) = overtakings(0.5);
    assert!(answers > 20 && requests > 20, "{answers}, {requests}");
}

#[test]
fn atomics_of_a_card_are_atomic_with_each_other() {
    let lab = Lab::with(Faults { atomic_window_ns: 500, ..Faults::default() });
    for home in [HERE, THERE, HERE, THERE] {
        lab.go(home, |f| async move {
            for _ in 0..100 {
                f.fetch_add(at(THERE, 0), 1).await.expect("it is in bounds");
                let mut seen = word(&f, at(THERE, 8)).await;
                loop {
                    let old = f.compare_swap(at(THERE, 8), seen, seen + 1).await;
                    let old = old.expect("it is in bounds");
                    if old == seen {
                        break;
                    }
                    seen = old;
                }
            }
        });
    }
    lab.finish();
    assert_eq!(lab.words(at(THERE, 0), 2), [400, 400]);
}

/// A moment between an atomic's look at its word and its change of it.
const IN_THE_WINDOW_NS: u64 = 11_500;

#[test]
fn a_store_in_the_middle_of_an_atomic_is_overwritten() {
    for (announces, store_at_us, remains) in [(false, 5, 1), (true, 5, 1), (true, 50, 100)] {
        let lab = Lab::with(Faults { atomic_window_ns: 20_000, ..Faults::default() });
        lab.go(HERE, |f| async move {
            assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Ok(0));
        });
        lab.go(THERE, |f| async move {
            f.pause(store_at_us).await;
            let place = at(THERE, 0);
            let stored =
                if announces { f.announce(place, 100) } else { f.store_before(place, 100) };
            stored.expect("it is mapped");
        });
        lab.run_for(IN_THE_WINDOW_NS);
        assert_eq!(lab.load(at(THERE, 0)), if store_at_us == 5 { 100 } else { 0 });
        lab.finish();
        assert_eq!(lab.load(at(THERE, 0)), remains, "stored after {store_at_us} us");
    }
}

/// The second of the two moments counts: a store before it is seen.
#[test]
fn a_store_in_the_middle_of_a_coherent_atomic_is_seen() {
    let faults = Faults { atomic_window_ns: 20_000, ..Faults::default() };
    let lab = Lab::of(Profile::ONE_HOST, 2, 1, faults);
    let swapped = Told::new();
    let told = swapped.clone();
    lab.go(HERE, |f| async move {
        told.tell(f.compare_swap(at(THERE, 0), 0, 1).await);
    });
    lab.go(THERE, |f| async move {
        f.pause(5).await;
        f.store_before(at(THERE, 0), 100).expect("it is mapped");
    });
    lab.finish();
    assert_eq!((swapped.take(), lab.load(at(THERE, 0))), (vec![Ok(100)], 100));
}

/// Two processes swap the same word at the same time; returns how many were told that they
/// succeeded.
fn winners(cpu_atomics: bool) -> usize {
    let lab = Lab::with(Faults { atomic_window_ns: 20_000, cpu_atomics, ..Faults::default() });
    let won = Told::new();
    for (home, new, after) in [(HERE, 1, 0), (THERE, 2, 5)] {
        let told = won.clone();
        lab.go(home, |f| async move {
            f.pause(after).await;
            if f.compare_swap(at(THERE, 0), 0, new).await == Ok(0) {
                told.tell(new);
            }
        });
    }
    lab.finish();
    won.take().len()
}

#[test]
fn swaps_by_a_processor_and_by_a_card_both_succeed() {
    assert_eq!(winners(false), 1);
    assert_eq!(winners(true), 2);
}

#[test]
fn atomics_by_a_processor_do_what_they_should_alone() {
    let lab = Lab::with(Faults { cpu_atomics: true, ..Faults::default() });
    lab.go(HERE, |f| async move {
        assert_eq!(f.fetch_add(at(HERE, 0), 7).await, Ok(0));
        assert_eq!(f.compare_swap(at(HERE, 0), 8, 9).await, Ok(7));
        assert_eq!(f.compare_swap(at(HERE, 0), 7, 9).await, Ok(7));
        assert!(f.compare_swap(at(HERE, 4), 7, 9).await.is_err());
    });
    lab.finish();
    assert_eq!(lab.load(at(HERE, 0)), 9);
}
