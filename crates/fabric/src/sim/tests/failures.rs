//! Deaths, cuts and crashes.

use super::*;
use crate::FabricError::{OutcomeUnknown, Unreachable};

/// Long enough for any verb that meets no fault.
const SOON_NS: u64 = 20_000;
/// Long enough for a verb to be given up.
const GIVEN_UP_NS: u64 = Profile::CONNECTX_3_56.retry_ns + 1_000_000;

/// Adds to two words of the other node and then waits for ever.
async fn adds(f: SimEndpoint) {
    drop(f.fetch_add(at(THERE, 0), 1));
    drop(f.fetch_add(at(THERE, 8), 1));
    std::future::pending().await
}

#[test]
fn what_the_dead_posted_is_executed_until_they_are_fenced() {
    for is_fenced in [false, true] {
        let lab = Lab::with(Faults::default());
        let process = lab.go(HERE, adds);
        lab.run_for(500);
        assert_eq!(lab.words(at(THERE, 0), 2), [0, 0]);
        lab.kill(process);
        assert!(!lab.is_alive(process) && !lab.has_ended(process));
        if is_fenced {
            lab.fence(process);
        }
        lab.finish();
        let expected = if is_fenced { [0, 0] } else { [1, 1] };
        assert_eq!(lab.words(at(THERE, 0), 2), expected);
    }
}

#[test]
fn death_at_a_verb_strikes_before_or_after_it() {
    // A verb was never executed if its process died at it: verbs that were posted in the turn of
    // the death were taken for not posted yet.
    let mut executed = [0; 3];
    for seed in 0..40 {
        let faults = Faults { deaths: 1.0, ..Faults::default() };
        let lab = Lab::of(Profile::CONNECTX_3_56, 2, seed, faults);
        let process = lab.go(HERE, adds);
        lab.make_mortal(process);
        lab.finish();
        assert_eq!(lab.take_died(), [process]);
        assert!(lab.take_died().is_empty() && !lab.is_alive(process));
        let words = lab.words(at(THERE, 0), 2);
        assert_eq!(words[1], 0, "it died at the first");
        executed[words[0] as usize] += 1;
    }
    assert!(executed[0] > 8 && executed[1] > 8, "{executed:?}");
}

#[test]
fn a_dead_process_changes_nothing_by_its_destructors() {
    struct Last(Rc<SimEndpoint>, Told<bool>);
    impl Drop for Last {
        fn drop(&mut self) {
            let f = &self.0;
            _ = f.store(at(HERE, 0), &[&[1; 8]]);
            _ = f.store_before(at(HERE, 8), 1);
            _ = f.announce(at(HERE, 16), 1);
            _ = f.write_unsignaled(at(HERE, 24), &[1; 8]);
            drop(f.fetch_add(at(HERE, 32), 1));
            drop(f.compare_swap(at(HERE, 40), 0, 1));
            self.1.tell(f.raw(at(HERE, 0), 8).is_ok());
        }
    }
    for cpu_atomics in [false, true] {
        let lab = Lab::with(Faults { cpu_atomics, ..Faults::default() });
        let dropped = Told::new();
        let told = dropped.clone();
        let process = lab.go(HERE, |f| async move {
            let last = Last(Rc::new(f), told);
            last.0.pause(1_000_000).await;
        });
        lab.run_for(SOON_NS);
        lab.kill(process);
        assert_eq!(dropped.take(), [false], "its destructors run");
        lab.finish();
        assert_eq!(lab.words(at(HERE, 0), 6), [0; 6]);
    }
}

#[test]
fn a_paused_process_does_not_run_and_its_verbs_do() {
    let lab = Lab::with(Faults::default());
    let process = lab.go(HERE, |f| async move {
        f.fetch_add(at(THERE, 0), 1).await.expect("it is in bounds");
        f.fetch_add(at(THERE, 8), 1).await.expect("it is in bounds");
    });
    lab.run_for(500);
    lab.pause(process, 1_000_000);
    lab.run_for(900_000);
    assert_eq!(lab.words(at(THERE, 0), 2), [1, 0]);
    lab.run_for(200_000);
    assert_eq!(lab.words(at(THERE, 0), 2), [1, 1]);
}

#[test]
fn a_process_that_was_fenced_while_it_stood_still_is_cut_off() {
    // A fenced process could continue on nodes to which it had nothing under way.
    let lab = Lab::with(Faults::default());
    let process = lab.go(HERE, |f| async move {
        put(&f, at(THERE, 0), 1).await.expect("nothing is wrong yet");
        f.pause(1_000).await;
        for node in [HERE, THERE] {
            let refused = Err(Unreachable { region: node });
            assert_eq!(f.fetch_add(at(node, 0), 1).await, Err(Unreachable { region: node }));
            assert_eq!(f.reconnect(node).await, refused);
            assert_eq!(put(&f, at(node, 0), 7).await, refused);
        }
    });
    lab.run_for(SOON_NS);
    lab.fence(process);
    lab.finish();
    assert!(lab.has_ended(process));
    assert_eq!((lab.load(at(HERE, 0)), lab.load(at(THERE, 0))), (0, 1));
}

#[test]
fn a_short_cut_is_only_a_delay() {
    let lab = Lab::with(Faults::default());
    let process = lab.go(HERE, |f| async move {
        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Ok(0));
        assert!(f.is_settled(f.posted()) && f.broken().is_empty());
    });
    lab.cut(THERE, HERE);
    lab.run_for(100_000_000);
    assert!(!lab.has_ended(process) && lab.load(at(THERE, 0)) == 0);
    lab.heal(HERE, THERE);
    lab.run_for(1_000_000);
    assert!(lab.has_ended(process) && lab.load(at(THERE, 0)) == 1);
}

#[test]
fn an_answer_that_does_not_get_through_leaves_the_outcome_unknown() {
    let lab = Lab::with(Faults::default());
    let process = lab.go(HERE, |f| async move {
        let unknown = OutcomeUnknown { at: at(THERE, 0) };
        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Err(unknown));
    });
    while lab.load(at(THERE, 0)) == 0 {
        assert!(lab.step());
    }
    lab.cut(HERE, THERE);
    lab.finish();
    assert!(lab.has_ended(process));
    assert_eq!(lab.load(at(THERE, 0)), 1, "it was executed, and once");
}

/// A process whose verbs do not get through makes its connection again at 700 ms; the cut is over
/// at `healed_ns`. Returns whether that worked, and the word afterwards.
fn cut_until(healed_ns: u64) -> (bool, u64) {
    let lab = Lab::with(Faults::default());
    let made = Told::new();
    let (told, world) = (made.clone(), lab.world.clone());
    let process = lab.go(HERE, |f| async move {
        let began = f.now_us();
        drop(f.fetch_add(at(THERE, 0), 1));
        let unknown = OutcomeUnknown { at: at(THERE, 0) };
        assert_eq!(f.fetch_add(at(THERE, 0), 10).await, Err(unknown));
        let took = f.now_us() - began;
        let retry_us = Profile::CONNECTX_3_56.retry_ns / 1000;
        assert!((retry_us..retry_us + 10).contains(&took), "given up after {took} us");
        assert_eq!(f.broken(), [THERE]);
        let mark = f.posted();
        assert_eq!(put(&f, at(THERE, 8), 1).await, Err(Unreachable { region: THERE }));
        assert_eq!(f.posted(), mark, "that one was not posted");
        assert_eq!(put(&f, at(HERE, 8), 1).await, Ok(()), "other connections work");
        assert!(!f.is_settled(mark), "they may still be executed");
        let refused = f.reconnect(THERE).await;
        assert_eq!(refused.is_ok(), world.now_ns() > healed_ns);
        f.pause(200_000).await;
        let is_made = f.reconnect(THERE).await.is_ok();
        assert_eq!(f.is_settled(mark), is_made || refused.is_ok());
        if is_made {
            assert!(f.broken().is_empty());
            assert_eq!(put(&f, at(THERE, 8), 2).await, Ok(()));
        }
        told.tell(is_made);
    });
    lab.cut(HERE, THERE);
    lab.run_until(healed_ns);
    lab.heal(HERE, THERE);
    lab.run_until(2_000_000_000);
    assert!(lab.has_ended(process));
    let is_made = made.take() == [true];
    assert_eq!(lab.load(at(THERE, 8)), if is_made { 2 } else { 0 });
    (is_made, lab.load(at(THERE, 0)))
}

#[test]
fn a_connection_that_is_made_again_fences_the_old_one() {
    let gave_up = Profile::CONNECTX_3_56.retry_ns;
    // Healed after the verbs were given up and before the connection is made: they are executed.
    assert_eq!(cut_until(gave_up + 30_000_000), (true, 11));
    // Healed when they are not sent any more, or never.
    assert_eq!(cut_until(gave_up + 150_000_000), (true, 0));
    assert_eq!(cut_until(gave_up + 900_000_000), (false, 0));
}

#[test]
fn a_stuck_verb_is_not_executed_on_a_new_connection() {
    let lab = Lab::with(Faults::default());
    let process = lab.go(HERE, |f| async move {
        assert!(f.fetch_add(at(THERE, 0), 1).await.is_err());
        let mark = f.posted();
        while f.reconnect(THERE).await.is_err() {}
        assert!(f.is_settled(mark));
        assert_eq!(f.fetch_add(at(THERE, 0), 100).await, Ok(0));
    });
    lab.cut(HERE, THERE);
    // Just given up: it is sent again in less than 200 us, and the connection is made before.
    lab.run_for(Profile::CONNECTX_3_56.retry_ns + 20_000);
    assert!(!lab.has_ended(process));
    lab.heal(HERE, THERE);
    lab.finish();
    assert!(lab.has_ended(process));
    assert_eq!(lab.load(at(THERE, 0)), 100);
}

#[test]
fn a_verb_that_is_over_does_not_break_the_next_connection() {
    // Verbs are given up one by one. A verb whose future was not polled since, and that was over
    // when its connection was made again, broke the new connection when its own time had come.
    let lab = Lab::with(Faults::default());
    let process = lab.go(HERE, |f| async move {
        let first = f.fetch_add(at(THERE, 0), 1);
        f.pause(100).await;
        let second = f.fetch_add(at(THERE, 0), 1);
        assert!(first.await.is_err());
        while f.reconnect(THERE).await.is_err() {}
        f.pause(1_000).await;
        assert!(f.broken().is_empty(), "the new connection works");
        assert!(second.await.is_err());
        assert_eq!(put(&f, at(THERE, 8), 1).await, Ok(()));
    });
    lab.cut(HERE, THERE);
    lab.run_for(Profile::CONNECTX_3_56.retry_ns + 20_000);
    lab.heal(HERE, THERE);
    lab.finish();
    assert!(lab.has_ended(process));
}

#[test]
fn a_delay_beyond_the_time_of_retries_gives_up_at_once() {
    let delay_ns = 100 * Profile::CONNECTX_3_56.retry_ns;
    let lab = Lab::with(Faults { delays: 1.0, delay_ns, ..Faults::default() });
    let gone = Told::new();
    let (told, world) = (gone.clone(), lab.world.clone());
    lab.go(HERE, |f| async move {
        assert!(f.fetch_add(at(THERE, 0), 1).await.is_err());
        told.tell(world.now_ns());
    });
    lab.cut(HERE, THERE);
    lab.finish();
    assert!(gone.take()[0] >= Profile::CONNECTX_3_56.retry_ns);
    // The turn, the leaving, the arrival, the giving up, the turn; and it is sent no more.
    assert_eq!(lab.events(), 5);
}

#[test]
fn a_node_that_fails_takes_its_processes_along() {
    for memory_is_lost in [false, true] {
        let lab = Lab::with(Faults::default());
        let own = [lab.go(THERE, adds), lab.go(THERE, adds)];
        let other = lab.go(HERE, |f| async move {
            let unknown = OutcomeUnknown { at: at(THERE, 0) };
            f.pause(30).await;
            assert_eq!(f.fetch_add(at(THERE, 0), 10).await, Err(unknown));
        });
        lab.run_for(SOON_NS);
        assert_eq!(lab.words(at(THERE, 0), 2), [2, 2]);
        assert_eq!(lab.crash_node(THERE, memory_is_lost), own);
        assert!(lab.take_died().is_empty(), "no fault of theirs");
        assert!(own.iter().all(|process| !lab.is_alive(*process)) && lab.is_alive(other));
        let then = if memory_is_lost { [0, 0] } else { [2, 2] };
        assert_eq!(lab.words(at(THERE, 0), 2), then);
        lab.run_for(GIVEN_UP_NS);
        assert!(lab.has_ended(other));
        lab.revive_node(THERE);
        lab.finish();
        assert_eq!(lab.words(at(THERE, 0), 2), then, "nothing from before is executed");
    }
}

/// Whether a process can continue with a node that failed and came back.
fn works_on(memory_is_lost: bool, knew_it: bool) -> bool {
    let lab = Lab::with(Faults::default());
    let works = Told::new();
    let told = works.clone();
    lab.go(HERE, |f| async move {
        if knew_it {
            put(&f, at(THERE, 0), 1).await.expect("nothing is wrong yet");
        }
        f.pause(100).await;
        if knew_it {
            assert_eq!(put(&f, at(THERE, 8), 1).await, Err(Unreachable { region: THERE }));
            assert_eq!(f.broken(), [THERE]);
            if f.reconnect(THERE).await == Err(Unreachable { region: THERE }) {
                assert_eq!(put(&f, at(THERE, 8), 1).await, Err(Unreachable { region: THERE }));
                f.reconnect(THERE).await.expect_err("it stays another node");
            }
        }
        told.tell(put(&f, at(THERE, 8), 1).await.is_ok());
    });
    lab.run_for(SOON_NS);
    lab.crash_node(THERE, memory_is_lost);
    lab.run_for(SOON_NS);
    lab.revive_node(THERE);
    lab.finish();
    let works = works.take()[0];
    let kept = u64::from(knew_it && !memory_is_lost);
    assert_eq!(lab.words(at(THERE, 0), 2), [kept, u64::from(works)]);
    works
}

#[test]
fn a_node_without_its_memory_is_another_node() {
    assert!(works_on(false, true));
    assert!(!works_on(true, true), "it must not be taken for the same");
    assert!(works_on(true, false), "who did not know it may get to know it");
}

#[test]
fn a_node_that_fails_executes_nothing() {
    // A verb that had arrived was executed on a node that was down, even after its memory was lost.
    let lab = Lab::with(Faults { torn: 1.0, tear_ns: 50_000, ..Faults::default() });
    lab.go(HERE, |f| async move {
        f.write(at(THERE, 0), Buf::from(vec![1; 2048])).await.1.expect_err("it failed");
    });
    while lab.words(at(THERE, 0), 256).iter().all(|word| *word == 0) {
        assert!(lab.step());
    }
    assert!(lab.words(at(THERE, 0), 256).contains(&0), "half of it is there");
    lab.crash_node(THERE, true);
    lab.run_for(1_000_000);
    lab.revive_node(THERE);
    lab.finish();
    assert_eq!(lab.words(at(THERE, 0), 256), [0; 256]);
}
