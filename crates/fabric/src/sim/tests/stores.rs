//! Stores that reach memory late.

use super::*;

const SLOW: Faults = Faults {
    torn: 0.0,
    tear_ns: 0,
    delays: 0.0,
    delay_ns: 0,
    slow_stores: 1.0,
    store_ns: 20_000,
    atomic_window_ns: 0,
    cpu_atomics: false,
    keys_outlive_fences: false,
    deaths: 0.0,
    pauses: 0.0,
    pause_ns: 0,
    stops: 0.0,
    stop_ns: 0,
    lost_messages: 0.0,
    doubled_messages: 0.0,
    wall_skew_ms: 0,
};

/// Every state of eight words in memory while a program runs.
fn states<P>(seed: u64, program: impl FnOnce(SimEndpoint) -> P) -> Vec<Vec<u64>>
where
    P: Future<Output = ()> + 'static,
{
    let lab = Lab::of(Profile::CONNECTX_3_56, 2, seed, SLOW);
    lab.go(HERE, program);
    let mut states = vec![lab.words(at(HERE, 0), 8)];
    while lab.step() {
        states.push(lab.words(at(HERE, 0), 8));
    }
    states.dedup();
    states
}

#[test]
fn words_of_a_segment_arrive_late_and_in_any_order() {
    let image: Vec<u8> = (1..=8u64).flat_map(u64::to_le_bytes).collect();
    let mut firsts = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let image = image.clone();
        let states = states(seed, |f| async move {
            f.store(at(HERE, 0), &[&image[..20], &image[20..]]).expect("it is mapped");
        });
        assert_eq!(states.first().expect("one"), &[0; 8]);
        assert_eq!(states.last().expect("one"), &(1..=8).collect::<Vec<_>>());
        assert!(states.len() > 4, "word by word: {states:?}");
        firsts.insert(states[1].iter().position(|word| *word != 0));
    }
    assert!(firsts.len() > 4, "any of them may be the first");
}

#[test]
fn segments_and_stores_to_one_word_keep_their_order() {
    for seed in 0..30 {
        let states = states(seed, |f| async move {
            f.store(at(HERE, 0), &[&[1; 16]]).expect("it is mapped");
            f.store_before(at(HERE, 16), 1).expect("it is mapped");
            f.store(at(HERE, 24), &[&[2; 8]]).expect("it is mapped");
            f.store_before(at(HERE, 32), 2).expect("it is mapped");
            for version in 3..6 {
                f.store(at(HERE, 40), &[&[version; 16]]).expect("it is mapped");
            }
        });
        let mut last = [0, 0];
        for state in states {
            let is_whole_segment = state[0] != 0 && state[1] != 0 && state[2] != 0;
            assert!(is_whole_segment || (state[3] == 0 && state[4] == 0), "{state:x?}");
            assert!((state[3] != 0 && state[4] != 0) || state[5..7] == [0, 0], "{state:x?}");
            assert!(state[5] >= last[0] && state[6] >= last[1], "back to an older word");
            last = [state[5], state[6]];
        }
        assert_eq!(last, [0x0505_0505_0505_0505; 2]);
    }
}

#[test]
fn a_store_that_comes_after_all_before_it_does() {
    for seed in 0..30 {
        let states = states(seed, |f| async move {
            f.store(at(HERE, 0), &[&[1; 16]]).expect("it is mapped");
            f.store_after(at(HERE, 16), 1).expect("it is mapped");
            f.store(at(HERE, 24), &[&[2; 8]]).expect("it is mapped");
            f.store_after(at(HERE, 32), 2).expect("it is mapped");
        });
        for state in &states {
            assert!(state[2] == 0 || (state[0] != 0 && state[1] != 0), "{state:x?}");
            assert!(state[4] == 0 || state[..4].iter().all(|word| *word != 0), "{state:x?}");
        }
        assert_eq!(states.last().expect("one")[4], 2);
    }
}

#[test]
fn a_process_sees_its_own_stores_at_once() {
    let lab = Lab::with(SLOW);
    let process = lab.go(HERE, |f| async move {
        for version in 1..20u64 {
            f.store(at(HERE, 4), &[&[9; 4], &version.to_le_bytes()]).expect("it is mapped");
            assert_eq!(f.load(at(HERE, 0)), Ok(0x0909_0909 << 32));
            assert_eq!(f.load(at(HERE, 8)), Ok(version));
            f.store_before(at(HERE, 16), version).expect("it is mapped");
            assert_eq!(f.load(at(HERE, 16)), Ok(version));
            f.pause(version).await;
            assert_eq!((f.load(at(HERE, 8)), f.load(at(HERE, 16))), (Ok(version), Ok(version)));
        }
    });
    lab.finish();
    assert!(lab.has_ended(process));
}

#[test]
fn a_verb_leaves_after_the_stores_before_it() {
    let lab = Lab::with(SLOW);
    let process = lab.go(HERE, |f| async move {
        for version in 1..50u64 {
            f.store(at(HERE, 64), &[&version.to_le_bytes()]).expect("it is mapped");
            f.store(at(HERE, 128), &[&version.to_le_bytes()]).expect("it is mapped");
            // To another node, whose process then looks here; to its own memory; by an atomic.
            put(&f, at(THERE, 0), version).await.expect("it is in bounds");
            assert_eq!(word(&f, at(HERE, 64)).await, version);
            assert_eq!(f.fetch_add(at(HERE, 128), 0).await, Ok(version));
        }
    });
    lab.go(THERE, |f| async move {
        for _ in 0..400 {
            let announced = f.load(at(THERE, 0)).expect("it is mapped");
            assert!(word(&f, at(HERE, 64)).await >= announced);
            assert!(word(&f, at(HERE, 128)).await >= announced);
        }
    });
    lab.finish();
    assert!(lab.has_ended(process));
}

#[test]
fn an_announcement_is_in_memory_with_all_before_it() {
    let lab = Lab::with(SLOW);
    let world = lab.world.clone();
    let process = lab.go(HERE, |f| async move {
        f.store(at(HERE, 0), &[&[1; 8]]).expect("it is mapped");
        assert_eq!(world.load(at(HERE, 0)), 0);
        f.announce(at(HERE, 8), 2).expect("it is mapped");
        assert_eq!((world.load(at(HERE, 0)) & 1, world.load(at(HERE, 8))), (1, 2));
        f.store(at(HERE, 16), &[&[3; 8]]).expect("it is mapped");
        f.raw(at(HERE, 16), 8).expect("it is mapped");
        assert_eq!(world.load(at(HERE, 16)) & 3, 3, "what is filled in place is not overwritten");
    });
    lab.finish();
    assert!(lab.has_ended(process));
}

#[test]
fn death_loses_stores_and_the_verbs_that_wait_for_them() {
    let lab = Lab::with(SLOW);
    let process = lab.go(HERE, |f| async move {
        f.write_unsignaled(at(THERE, 0), &[1; 8]).expect("it is in bounds");
        f.store(at(HERE, 0), &[&[2; 64]]).expect("it is mapped");
        f.write_unsignaled(at(THERE, 8), &[3; 8]).expect("it is in bounds");
        std::future::pending().await
    });
    lab.run_for(10);
    let later = lab.words(at(HERE, 0), 8);
    assert!(later.contains(&0), "not all is there");
    lab.run_for(200);
    let then = lab.words(at(HERE, 0), 8);
    lab.kill(process);
    lab.finish();
    assert_eq!(lab.words(at(HERE, 0), 8), then, "no store of the dead arrives");
    let [first, second] = [0, 8].map(|offset| lab.load(at(THERE, offset)));
    assert_eq!((first & 1, second), (1, 0), "the first had left, the second waited");
}

#[test]
fn what_the_dead_posted_follows_their_stores() {
    // In a turn that took longer than its stores, the later verbs were kept when the process died,
    // but the stores were lost: an entry became visible that had never been written.
    let mut arrived = [0; 2];
    for seed in 0..40 {
        let lab = Lab::of(Profile::CONNECTX_3_56, 2, seed, SLOW);
        let process = lab.add_process(HERE);
        let (f, world) = (lab.endpoint(process), lab.world.clone());
        lab.start(process, async move {
            f.store(at(HERE, 0), &[&[1; 16]]).expect("it is mapped");
            f.write_unsignaled(at(THERE, 0), &[1; 8]).expect("it is in bounds");
            f.work(14_000);
            world.kill(process);
        });
        lab.finish();
        let is_there = lab.load(at(THERE, 0)) != 0;
        assert!(!is_there || !lab.words(at(HERE, 0), 2).contains(&0), "seed {seed}");
        arrived[usize::from(is_there)] += 1;
    }
    assert!(arrived[0] > 5 && arrived[1] > 5, "{arrived:?}");
}
