//! The promises of the traits [`Messages`] and [`UnreliableWrites`], on every backend: one list of
//! tests, which is the same for all.
//!
//! The suite pins what the traits promise: messages are whole, of any length up to the longest,
//! from whom they say they are; what is refused is not sent; addresses are plain data. It loses
//! nothing because it has few messages under way on backends without faults, and so cannot pin what
//! happens to messages that are lost. What else a backend does is tested beside it:
//!
//! | | shm | sim | verbs |
//! | --- | --- | --- | --- |
//! | messages get lost | when a ring is full, or with a process that dies: `tests/mailboxes.rs` | at random, when cut off, when the receiver is dead: `src/sim/tests/messages.rs` | when no receive buffer is free: `tests/verbs.rs` |
//! | messages arrive twice | never | at random: `src/sim/tests/messages.rs` | allowed, not forced |
//! | messages overtake each other | never | when their times cross | allowed, not forced |
//! | an address outlives its end | yes, in the successor of a mailbox: `tests/mailboxes.rs` | no | no |
//! | unreliable WRITEs get lost | never | at random: `src/sim/tests/messages.rs` | when sent to nobody: `tests/verbs.rs` |

#[allow(dead_code, reason = "the suites share it")]
mod backends;
#[allow(dead_code, reason = "the suites share it")]
mod tools;

use std::future::Future;
use std::task::{Context, Poll, Waker};

use backends::{BYTES, Cluster, Post, Shm, Sim};
use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, Messages, UnreliableWrites};
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
    shm: Shm,
    sim_connectx3_10: Sim<0>,
    sim_connectx3_56: Sim<1>,
    sim_connectx6_200: Sim<2>,
    sim_one_host: Sim<3>,
    = [
        a_message_arrives_whole_and_is_answered,
        messages_of_any_length_arrive,
        a_message_that_is_too_long_is_refused,
        many_messages_go_out_together,
        a_receiver_that_gives_up_takes_nothing,
        a_poll_takes_a_message_or_gives_the_buffer_back,
        an_address_is_plain_data,
        addresses_that_cannot_be_are_refused,
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

fn a_poll_takes_a_message_or_gives_the_buffer_back<P: Post>() {
    P::run(
        |m, other| {
            Box::pin(async move {
                let buf = m.try_receive(Buf::from(b"kept".to_vec())).expect_err("nothing was sent");
                assert_eq!(&buf[..], b"kept");
                m.send(other, b"go").expect("it is short");
                let (_, first) = m.receive(buf).await;
                assert_eq!(&first[..], b"keptone");
                // The second one was sent with it, and is there soon.
                let mut polls = 0;
                let mut buf = first;
                loop {
                    match m.try_receive(buf) {
                        Ok((from, both)) => {
                            assert_eq!((from, &both[..]), (other, &b"keptonetwo"[..]));
                            break;
                        }
                        Err(back) => buf = back,
                    }
                    polls += 1;
                    assert!(polls < 10_000_000 && &buf[..] == b"keptone");
                    turn().await;
                }
            })
        },
        |m, other| {
            Box::pin(async move {
                m.receive(Buf::new()).await;
                m.send(other, b"one").expect("it is short");
                m.send(other, b"two").expect("it is short");
            })
        },
    );
}

/// Lets time go by that only goes by while nothing runs.
async fn turn() {
    let mut is_over = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn an_address_is_plain_data<P: Post>() {
    P::run(
        |m, other| {
            Box::pin(async move {
                let words = m.address().words();
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                m.send(other, &bytes).expect("it is short");
                assert_eq!(&m.receive(Buf::new()).await.1[..], b"found");
            })
        },
        |m, other| {
            Box::pin(async move {
                let (from, bytes) = m.receive(Buf::new()).await;
                let words =
                    bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
                let words: Vec<u64> = words.collect();
                let address = MessageAddress::from_words(words.try_into().expect("four words"));
                let peer = m.peer(&address).expect("it is an address");
                assert_eq!((peer, from), (other, other), "one end is one peer");
                assert_ne!(address, m.address());
                m.send(peer, b"found").expect("it is short");
            })
        },
    );
}

fn addresses_that_cannot_be_are_refused<P: Post>() {
    P::run(
        |m, _| {
            Box::pin(async move {
                let own = m.address().words();
                let refuse = |words| {
                    let refused = m.peer(&MessageAddress::from_words(words));
                    assert!(refused.is_err(), "{words:x?} is {refused:?}");
                };
                refuse([0; MessageAddress::WORDS]);
                refuse([u64::MAX; MessageAddress::WORDS]);
                let [a, b, c, kind] = own;
                refuse([a, b, c, kind + 1]);
                refuse([u64::MAX, u64::MAX, u64::MAX, kind]);
                assert!(m.peer(&m.address()).is_ok(), "nothing is wrong with its own");
            })
        },
        |_, _| Box::pin(async {}),
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
