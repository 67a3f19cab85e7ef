//! Datagrams and unreliable WRITEs.

use super::*;
use crate::UnreliableWrites;
use crate::sim::DATAGRAM_BYTES_MAX;

/// The datagrams that arrive, of 20.
fn arrivals(faults: Faults, is_cut: bool) -> Vec<Vec<u8>> {
    let lab = Lab::with(faults);
    let got = Told::new();
    let told = got.clone();
    let receiver = lab.go(THERE, |f| async move {
        loop {
            told.tell(f.receive().await);
        }
    });
    if is_cut {
        lab.cut(HERE, THERE);
    }
    let sender = lab.go(HERE, |f| async move {
        for number in 0..20 {
            f.send(receiver, &vec![number; usize::from(number) * 10]).expect("it is short");
            f.pause(10).await;
        }
    });
    lab.finish();
    let got = got.take();
    assert!(got.iter().all(|(from, _)| *from == sender));
    got.into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn datagrams_arrive_get_lost_and_arrive_twice() {
    let all: Vec<_> = (0..20).map(|n| vec![n; usize::from(n) * 10]).collect();
    assert_eq!(arrivals(Faults::default(), false), all);
    assert!(arrivals(Faults { lost_messages: 1.0, ..Faults::default() }, false).is_empty());
    assert!(arrivals(Faults::default(), true).is_empty(), "nobody sends them again");
    let twice = arrivals(Faults { doubled_messages: 1.0, ..Faults::default() }, false);
    assert!(twice.iter().eq(all.iter().flat_map(|one| [one, one])));
}

#[test]
fn a_datagram_that_is_too_long_is_refused() {
    let lab = Lab::with(Faults::default());
    let got = Told::new();
    let told = got.clone();
    let receiver = lab.go(HERE, |f| async move { told.tell(f.receive().await.1.len()) });
    lab.go(THERE, |f| async move {
        let (len, max) = (DATAGRAM_BYTES_MAX as u64 + 1, DATAGRAM_BYTES_MAX as u64);
        let refused = f.send(receiver, &vec![0; len as usize]);
        assert_eq!(refused, Err(FabricError::TooLong { len, max }));
        assert_eq!(f.send(receiver, &vec![0; len as usize - 1]), Ok(()));
    });
    lab.finish();
    assert_eq!(got.take(), [DATAGRAM_BYTES_MAX]);
}

#[test]
fn the_dead_get_no_datagrams() {
    let lab = Lab::with(Faults::default());
    let got = Told::new();
    let told = got.clone();
    let receiver = lab.go(THERE, |f| async move { told.tell(f.receive().await) });
    lab.go(HERE, |f| async move { f.send(receiver, b"late").expect("it is short") });
    lab.run_for(500);
    lab.kill(receiver);
    lab.finish();
    assert!(got.take().is_empty());
}

#[test]
fn an_unreliable_write_may_get_lost() {
    for (lost_messages, expected) in [(0.0, 20), (1.0, 0)] {
        let lab = Lab::with(Faults { lost_messages, ..Faults::default() });
        lab.go(HERE, |f| async move {
            for number in 0..20 {
                let word = at(THERE, number * 8);
                f.write_unreliable(word, &1u64.to_le_bytes()).expect("it is in bounds");
            }
            assert!(!f.is_settled(f.posted()));
            f.pause(100).await;
            assert!(f.is_settled(f.posted()), "a lost one is over as well");
        });
        lab.finish();
        assert_eq!(lab.words(at(THERE, 0), 20).iter().sum::<u64>(), expected);
    }
}

#[test]
fn an_unreliable_write_breaks_no_connection() {
    let lab = Lab::with(Faults::default());
    lab.cut(HERE, THERE);
    let process = lab.go(HERE, |f| async move {
        f.write_unreliable(at(THERE, 0), &[1; 8]).expect("it is in bounds");
        f.pause(2_000_000).await;
        assert!(f.is_settled(f.posted()), "it was sent once");
        assert!(f.broken().is_empty());
        assert_eq!(word(&f, at(THERE, 0)).await, 0, "the cut is over, and it was lost");
    });
    lab.run_for(1_000_000_000);
    lab.heal(THERE, HERE);
    lab.finish();
    assert!(lab.has_ended(process));
}
