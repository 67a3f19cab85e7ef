//! Processes that are stopped between two accesses of memory.

use super::*;
use crate::sim::{Change, How};

/// Every store is preceded by a stop of up to a millisecond.
const STOPS: Faults = Faults { stops: 1.0, stop_ns: 500_000, ..FAULTLESS };
const FAULTLESS: Faults = Faults {
    torn: 0.0,
    tear_ns: 0,
    delays: 0.0,
    delay_ns: 0,
    slow_stores: 0.0,
    store_ns: 0,
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

const WORD: RemoteAddr = RemoteAddr::new(HERE, 64);
const RESULT: RemoteAddr = RemoteAddr::new(HERE, 128);

#[test]
fn others_go_on_between_a_check_and_the_store_that_relies_on_it() {
    let lab = Lab::with(STOPS);
    let stopped = lab.go(HERE, |fabric| async move {
        if fabric.load(WORD).unwrap() == 0 {
            fabric.store(RESULT, &[&1u64.to_le_bytes()]).unwrap();
            // Its own order stays: this load comes after the store.
            assert_eq!(fabric.load(RESULT), Ok(1));
        }
    });
    lab.make_mortal(stopped);
    // This process is not mortal, and runs while the first one stands still.
    lab.go(HERE, |fabric| async move {
        fabric.pause(10).await;
        assert_eq!(fabric.load(RESULT), Ok(0));
        fabric.store(WORD, &[&7u64.to_le_bytes()]).unwrap();
        fabric.store(RESULT, &[&2u64.to_le_bytes()]).unwrap();
    });
    lab.run_until(10_000_000);
    assert!(lab.has_ended(stopped));
    assert_eq!((lab.load(WORD), lab.load(RESULT)), (7, 1), "it stored what it had no reason to");
}

#[test]
fn one_that_dies_while_it_is_stopped_does_not_store() {
    let lab = Lab::with(STOPS);
    let stopped = lab.go(HERE, |fabric| async move {
        fabric.store(RESULT, &[&1u64.to_le_bytes()]).unwrap();
        fabric.pause(1).await;
    });
    lab.make_mortal(stopped);
    let world = lab.world.clone();
    lab.while_stopped(move || {
        world.kill(stopped);
        true
    });
    // Something has to happen meanwhile.
    lab.go(HERE, |fabric| async move { fabric.pause(10).await });
    lab.run_until(10_000_000);
    assert!(!lab.is_alive(stopped));
    assert_eq!(lab.load(RESULT), 0);
}

#[test]
fn turns_that_come_up_during_a_stop_are_not_lost() {
    let lab = Lab::with(STOPS);
    let done = Rc::new(Cell::new(false));
    let told = done.clone();
    let stopped = lab.go(HERE, |fabric| async move {
        // The answer arrives long before the process continues, and wakes it while it is stopped.
        let answer = fabric.fetch_add(WORD, 1);
        fabric.store(RESULT, &[&1u64.to_le_bytes()]).unwrap();
        assert_eq!(answer.await, Ok(0));
        told.set(true);
    });
    lab.make_mortal(stopped);
    lab.run_until(10_000_000);
    assert!(done.get() && lab.has_ended(stopped));
}

#[test]
fn stops_are_nested_and_all_end() {
    let lab = Lab::with(STOPS);
    let many: Vec<ProcessId> = (0..10)
        .map(|n: u64| {
            let process = lab.go(HERE, |fabric| async move {
                for round in 1..=5u64 {
                    let at = RESULT.add(n * 8);
                    fabric.store(at, &[&round.to_le_bytes()]).unwrap();
                    assert_eq!(fabric.load(at), Ok(round));
                    fabric.pause(3).await;
                }
            });
            lab.make_mortal(process);
            process
        })
        .collect();
    lab.run_until(100_000_000);
    assert!(many.iter().all(|process| lab.has_ended(*process)));
}

#[test]
fn a_watch_is_told_who_changed_what() {
    let lab = Lab::with(FAULTLESS);
    let told: Rc<RefCell<Vec<Change>>> = Rc::default();
    let into = told.clone();
    lab.watch(move |change| into.borrow_mut().push(change));
    let process = lab.go(HERE, |fabric| async move {
        fabric.store(RemoteAddr::new(HERE, 60), &[&[1; 8]]).unwrap();
        let there = RemoteAddr::new(THERE, 8);
        assert_eq!(fabric.compare_swap(there, 0, 5).await, Ok(0));
        assert_eq!(fabric.compare_swap(there, 0, 6).await, Ok(5));
        fabric.write(there, vec![2; 4].into()).await.1.unwrap();
    });
    lab.run_until(1_000_000);
    let told = told.borrow();
    assert!(told.iter().all(|change| change.by == process));
    let what: Vec<_> = told.iter().map(|c| (c.at.offset(), c.len, c.before, c.how)).collect();
    let swapped = How::Atomic { from: 0, to: 5 };
    let expected =
        [(60, 4, 0, How::Store), (64, 4, 0, How::Store), (8, 8, 0, swapped), (8, 4, 5, How::Write)];
    assert_eq!(what, expected);
}
