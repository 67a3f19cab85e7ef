//! What the traits [`Messages`] and [`UnreliableWrites`] promise, on every backend that has them:
//! the simulator and verbs. Shared memory has neither.

#[allow(dead_code, reason = "the suites share it")]
mod backends;
#[allow(dead_code, reason = "the suites share it")]
mod tools;

use std::future::Future;
use std::task::{Context, Poll, Waker};

use backends::{BYTES, Cluster, Post, Sim};
use loch_fabric::{Buf, Fabric, FabricError, Messages, UnreliableWrites};
use tools::{HERE, THERE, at, bad_places, bytes, pattern, put, settle, word};

macro_rules! suite {
    ($($backend:ident: $cluster:ty,)* = $tests:tt) => {
        $(mod $backend { use super::*; suite!(@ $cluster, $tests); })*
        #[cfg(feature = "verbs")]
        mod verbs { use super::*; suite!(@ backends::verbs::Verbs, $tests); }
    };
    (@ $cluster:ty, [$($test:ident,)*]) => {
        $(#[test] fn $test() {
            if <$cluster as Post>::is_here() {
                super::$test::<$cluster>();
            }
        })*
    };
}

suite! {
    sim_connectx3_56: Sim<1>,
    sim_connectx6_200: Sim<2>,
    = [
        a_message_arrives_whole_and_is_answered,
        messages_of_any_length_arrive,
        a_message_that_is_too_long_is_refused,
        many_messages_go_out_together,
        a_receiver_that_gives_up_takes_nothing,
        an_unreliable_write_arrives,
        many_unreliable_writes_arrive,
        refused_unreliable_writes_change_nothing,
    ]
}

fn a_message_arrives_whole_and_is_answered<P: Post>() {
    P::run(
        |m, other| {
            Box::pin(async move {
                for round in 0..20u8 {
                    m.send(other, &[round; 100]).expect("it is short");
                    let (from, answer) = m.receive(Buf::from(b"> ".to_vec())).await;
                    assert_eq!(from, other, "it is known who sent it");
                    assert_eq!((&answer[..2], &answer[2..]), (&b"> "[..], &[round + 1; 100][..]));
                }
            })
        },
        |m, other| {
            Box::pin(async move {
                for _ in 0..20 {
                    let (from, asked) = m.receive(Buf::new()).await;
                    assert_eq!(from, other);
                    m.send(from, &[asked[0] + 1; 100]).expect("it is short");
                }
            })
        },
    );
}

fn messages_of_any_length_arrive<P: Post>() {
    const LENGTHS: [usize; 10] = [0, 1, 7, 8, 64, 65, 256, 257, 1000, usize::MAX];
    P::run(
        |m, other| {
            Box::pin(async move {
                for len in LENGTHS {
                    let what = pattern(len.min(m.message_bytes_max()), 3);
                    m.send(other, &what).expect("it is not too long");
                    // One after the other, as they may overtake each other.
                    assert!(m.receive(Buf::new()).await.1.is_empty());
                }
            })
        },
        |m, other| {
            Box::pin(async move {
                for len in LENGTHS {
                    let what = pattern(len.min(m.message_bytes_max()), 3);
                    assert_eq!(&m.receive(Buf::new()).await.1[..], &what);
                    m.send(other, &[]).expect("it is short");
                }
            })
        },
    );
}

fn a_message_that_is_too_long_is_refused<P: Post>() {
    P::run(
        |m, other| {
            Box::pin(async move {
                let max = m.message_bytes_max();
                let long = vec![1; max + 1];
                let refused = FabricError::TooLong { len: max as u64 + 1, max: max as u64 };
                assert_eq!(m.send(other, &long), Err(refused));
                assert_eq!(m.send_all(&[(other, &[7]), (other, &long)]), Err(refused));
                assert_eq!(m.send(other, &[8]), Ok(()));
            })
        },
        |m, _| {
            Box::pin(async move {
                assert_eq!(&m.receive(Buf::new()).await.1[..], &[8], "nothing else was sent");
            })
        },
    );
}

fn many_messages_go_out_together<P: Post>() {
    // More than a send queue holds, in turns that the receiver has room for.
    const TURNS: u8 = 10;
    const EACH: u8 = 40;
    P::run(
        |m, other| {
            Box::pin(async move {
                for turn in 0..TURNS {
                    let all: Vec<Vec<u8>> =
                        (0..EACH).map(|i| [turn, i, 0].repeat(usize::from(i) * 4 + 1)).collect();
                    let all: Vec<(_, &[u8])> = all.iter().map(|one| (other, &one[..])).collect();
                    m.send_all(&all).expect("they are short");
                    m.receive(Buf::new()).await;
                }
            })
        },
        |m, other| {
            Box::pin(async move {
                for turn in 0..TURNS {
                    let mut seen = [false; EACH as usize];
                    for _ in 0..EACH {
                        let (_, one) = m.receive(Buf::new()).await;
                        assert_eq!(one[0], turn);
                        assert_eq!(one.len(), (usize::from(one[1]) * 4 + 1) * 3);
                        assert!(one.chunks(3).all(|part| *part == one[..3]));
                        seen[usize::from(one[1])] = true;
                    }
                    assert_eq!(seen, [true; EACH as usize], "each arrived once");
                    m.send(other, &[turn]).expect("it is short");
                }
            })
        },
    );
}

fn a_receiver_that_gives_up_takes_nothing<P: Post>() {
    P::run(
        |m, other| {
            Box::pin(async move {
                for number in 0..10 {
                    m.send(other, &[number]).expect("it is short");
                    m.receive(Buf::new()).await;
                }
            })
        },
        |m, other| {
            Box::pin(async move {
                for number in 0..10 {
                    let mut waiting = Box::pin(m.receive(Buf::new()));
                    let mut cx = Context::from_waker(Waker::noop());
                    let polled = waiting.as_mut().poll(&mut cx);
                    drop(waiting);
                    let (_, one) = match polled {
                        Poll::Ready(message) => message,
                        Poll::Pending => m.receive(Buf::new()).await,
                    };
                    assert_eq!(&one[..], &[number]);
                    m.send(other, &[number]).expect("it is short");
                }
            })
        },
    );
}

fn an_unreliable_write_arrives<C: Cluster>()
where
    C::F: UnreliableWrites,
{
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            for region in [HERE, THERE] {
                for len in [8, 0, 13, 64, 65, 300, 5000] {
                    let what = pattern(len, 5);
                    assert_eq!(f.write_unreliable(at(region, 1001), &what), Ok(()));
                    settle_for_certain(f).await;
                    assert_eq!(bytes(f, at(region, 1001), len).await, what);
                }
            }
        })
    });
}

fn many_unreliable_writes_arrive<C: Cluster>()
where
    C::F: UnreliableWrites,
{
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            let before = f.counters().snapshot();
            for i in 0..300u64 {
                f.write_unreliable(at(THERE, i * 8), &i.to_le_bytes()).expect("it is in bounds");
            }
            let cost = f.counters().snapshot() - before;
            assert_eq!((cost.writes, cost.remote_bytes, cost.round_trips), (300, 2400, 0));
            settle_for_certain(f).await;
            for i in 0..300 {
                assert_eq!(word(f, at(THERE, i * 8)).await, i);
            }
        })
    });
}

fn refused_unreliable_writes_change_nothing<C: Cluster>()
where
    C::F: UnreliableWrites,
{
    C::new().run(&[HERE], |f, _| {
        Box::pin(async move {
            put(f, at(THERE, BYTES - 64), &[3; 64]).await;
            for (place, error) in bad_places(9) {
                assert_eq!(f.write_unreliable(place, &[1; 9]), Err(error));
            }
            settle(f).await;
            assert_eq!(bytes(f, at(THERE, BYTES - 64), 64).await, [3; 64]);
        })
    });
}

/// As [`settle`], for what may linger in the network after it left.
async fn settle_for_certain<F: Fabric>(f: &F) {
    let mark = f.posted();
    for _ in 0..1000 {
        if f.is_settled(mark) {
            return;
        }
        f.pause(1000).await;
    }
    panic!("a WRITE is under way for ever");
}
