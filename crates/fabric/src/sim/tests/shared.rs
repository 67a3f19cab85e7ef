//! Connections that the processes of a host share.

use super::*;
use crate::FabricError::{OutcomeUnknown, Unreachable};
use crate::limits::{RD_ATOMIC_MAX, SEND_QUEUE_WRS};

const PROFILE: Profile = Profile::CONNECTX_3_56;
/// Long enough for any verb that meets no fault.
const SOON_NS: u64 = 20_000;

/// Starts a program whose process shares the connections of its host.
fn share<P>(lab: &Lab, program: impl FnOnce(SimEndpoint) -> P) -> ProcessId
where
    P: Future<Output = ()> + 'static,
{
    let process = lab.add_process(HERE);
    lab.share_connections(process);
    lab.start(process, program(lab.endpoint(process)));
    process
}

/// Adds to a word of the other node, and then makes the connection again until an addition works.
async fn adds_until_it_works(f: SimEndpoint, first: Told<Result<u64, FabricError>>) {
    let mut done = f.fetch_add(at(THERE, 0), 1).await;
    first.tell(done);
    while done.is_err() {
        if !f.broken().is_empty() {
            f.reconnect(THERE).await.expect("the node answers");
        }
        assert!(f.is_settled(f.posted()), "the old connection was ended");
        done = f.fetch_add(at(THERE, 8), 1).await;
    }
}

#[test]
fn a_fence_stops_the_verbs_of_one_client_and_not_those_of_the_others() {
    for keys_outlive_fences in [false, true] {
        let lab = Lab::with(Faults { keys_outlive_fences, ..Faults::default() });
        let (dies, first) = (
            share(&lab, |f| async move {
                drop(f.fetch_add(at(THERE, 16), 1));
                std::future::pending().await
            }),
            Told::new(),
        );
        let told = first.clone();
        lab.run_for(400);
        lab.kill(dies);
        lab.fence(dies);
        // Its verb is under way: the node refuses it, and the connection breaks for both.
        let lives = share(&lab, |f| adds_until_it_works(f, told));
        lab.finish();
        assert!(lab.has_ended(lives));
        let unknown = OutcomeUnknown { at: at(THERE, 0) };
        let (first_outcome, words) =
            if keys_outlive_fences { (Ok(0), [1, 0, 1]) } else { (Err(unknown), [0, 1, 0]) };
        assert_eq!(first.take(), [first_outcome]);
        assert_eq!(lab.words(at(THERE, 0), 3), words);
    }
}

#[test]
fn a_fence_with_nothing_under_way_is_not_felt_by_the_others() {
    let lab = Lab::with(Faults::default());
    let first = share(&lab, |f| async move { put(&f, at(THERE, 0), 1).await.expect("it works") });
    lab.run_for(SOON_NS);
    lab.fence(first);
    let second = share(&lab, |f| async move { put(&f, at(THERE, 8), 2).await.expect("it works") });
    lab.finish();
    assert!(lab.has_ended(second));
    assert_eq!(lab.words(at(THERE, 0), 2), [1, 2]);
}

#[test]
fn a_client_that_was_fenced_while_it_stood_still_breaks_the_connection_and_is_out() {
    let lab = Lab::with(Faults::default());
    let fenced = share(&lab, |f| async move {
        put(&f, at(THERE, 0), 1).await.expect("nothing is wrong yet");
        f.pause(1_000).await;
        // It does not know better; the node does.
        assert_eq!(put(&f, at(THERE, 0), 7).await, Err(OutcomeUnknown { at: at(THERE, 0) }));
        assert_eq!(f.reconnect(THERE).await, Err(Unreachable { region: THERE }));
        assert_eq!(put(&f, at(HERE, 0), 7).await, Err(Unreachable { region: HERE }));
    });
    let other = share(&lab, |f| async move {
        put(&f, at(THERE, 8), 1).await.expect("nothing is wrong yet");
        f.pause(2_000).await;
        assert_eq!(f.broken(), [THERE], "for all");
        f.reconnect(THERE).await.expect("it has its rights");
        put(&f, at(THERE, 8), 2).await.expect("it works again");
    });
    lab.run_for(SOON_NS);
    lab.fence(fenced);
    lab.finish();
    assert!(lab.has_ended(fenced) && lab.has_ended(other));
    assert_eq!((lab.load(at(HERE, 0)), lab.words(at(THERE, 0), 2)), (0, vec![1, 2]));
}

#[test]
fn an_access_error_breaks_the_connection_for_all_and_one_makes_it_again() {
    let lab = Lab::with(Faults::default());
    let first = Told::new();
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let told = first.clone();
            share(&lab, |f| async move {
                word(&f, at(THERE, 0)).await;
                f.pause(100).await;
                adds_until_it_works(f, told).await;
            })
        })
        .collect();
    lab.run_for(101_000);
    lab.misuse_connection(clients[0], THERE);
    lab.finish();
    assert!(clients.iter().all(|client| lab.has_ended(*client)));
    let first = first.take();
    let failed = first.iter().filter(|done| done.is_err()).count() as u64;
    assert!(failed > 0, "{first:?}");
    assert_eq!(lab.load(at(THERE, 8)), failed);
    assert_eq!(lab.world.0.nodes.borrow()[0].connections, 1, "all are on one");
}

#[test]
fn a_client_that_dies_while_it_posts_breaks_the_connection() {
    let (mut broken, mut whole) = (0, 0);
    for seed in 0..40 {
        let lab = Lab::of(PROFILE, 2, seed, Faults::default());
        let other = share(&lab, |f| async move {
            put(&f, at(THERE, 8), 1).await.expect("nothing is wrong yet");
            std::future::pending().await
        });
        let dies = share(&lab, |f| async move {
            word(&f, at(THERE, 0)).await;
            f.pause(100).await;
            adds_until_it_works(f, Told::new()).await;
        });
        lab.run_for(SOON_NS);
        lab.make_mortal(dies);
        lab.set_faults(Faults { deaths: 1.0, ..Faults::default() });
        lab.finish();
        assert!(!lab.is_alive(dies) && lab.is_alive(other));
        match lab.endpoint(other).broken()[..] {
            [] => whole += 1,
            _ => broken += 1,
        }
        // It died at its post: before it had the lock back, or after.
        assert_eq!(lab.load(at(THERE, 0)) == 1, lab.endpoint(other).broken().is_empty());
    }
    assert!(broken > 8 && whole > 8, "{broken} broken, {whole} not");
}

#[test]
fn what_is_given_up_is_unknown_for_all_until_the_connection_is_ended() {
    let lab = Lab::with(Faults::default());
    let adds = |offset, told: Told<u64>| {
        move |f: SimEndpoint| async move {
            let unknown = OutcomeUnknown { at: at(THERE, offset) };
            assert_eq!(f.fetch_add(at(THERE, offset), 1).await, Err(unknown));
            let mark = f.posted();
            assert!(!f.is_settled(mark), "it may still be executed");
            while f.reconnect(THERE).await.is_err() {}
            assert!(f.is_settled(mark));
            told.tell(f.fetch_add(at(THERE, offset), 100).await.expect("it works"));
        }
    };
    let found = Told::new();
    let first = share(&lab, adds(0, found.clone()));
    lab.cut(HERE, THERE);
    lab.run_for(1_000_000);
    let second = share(&lab, adds(8, found.clone()));
    // The second has waited for less than the first, and loses its verb with it.
    lab.run_for(PROFILE.retry_ns - 900_000);
    lab.heal(HERE, THERE);
    lab.finish();
    assert!(lab.has_ended(first) && lab.has_ended(second));
    assert_eq!((found.take(), lab.words(at(THERE, 0), 2)), (vec![0, 0], vec![100, 100]));
}

#[test]
fn a_connection_has_so_many_verbs_under_way_and_so_many_in_its_queue() {
    let lab = Lab::with(Faults::default());
    let most = u64::from(SEND_QUEUE_WRS);
    let reads = share(&lab, |f| async move {
        let all: Vec<_> = (0..50).map(|_| f.read_bucket(at(THERE, 0), 1)).collect();
        for read in all {
            read.await.expect("it is in bounds");
        }
    });
    lab.cut(HERE, THERE);
    lab.run_for(SOON_NS);
    let sent = lab.world.0.verbs.borrow().ids(|verb| verb.is_sent).len();
    assert_eq!(sent, usize::from(RD_ATOMIC_MAX), "the others wait");
    // Another client finds room for some of its verbs; the others die with it.
    let dies = share(&lab, |f| async move {
        for _ in 0..200 {
            drop(f.fetch_add(at(THERE, 8), 1));
        }
        std::future::pending().await
    });
    lab.run_for(100_000);
    lab.kill(dies);
    lab.heal(HERE, THERE);
    lab.finish();
    assert!(lab.has_ended(reads));
    assert_eq!(lab.load(at(THERE, 8)), most - 50);
}

#[test]
fn clients_post_one_after_the_other() {
    let longest_ns = |shares: bool| {
        let lab = Lab::with(Faults::default());
        let times = Told::new();
        for _ in 0..4 {
            let process = lab.add_process(HERE);
            if shares {
                lab.share_connections(process);
            }
            let (f, world, told) = (lab.endpoint(process), lab.world.clone(), times.clone());
            lab.start(process, async move {
                f.write_unsignaled(at(THERE, 8), &[1; 8]).expect("it works");
                told.tell(world.0.process(process).spent_ns);
            });
        }
        lab.finish();
        times.take().into_iter().max().expect("there are four")
    };
    let (own, shared) = (longest_ns(false), longest_ns(true));
    let turn_ns = longest_ns(true) - own;
    assert_eq!(own, PROFILE.resume_ns + PROFILE.post_ns);
    assert!(turn_ns > 4 * 100 && shared < 1_000, "{own}, {shared}");
}

#[test]
fn a_client_that_stands_still_while_it_posts_holds_the_others_up() {
    let mut late = 0;
    for seed in 0..40 {
        let lab = Lab::of(PROFILE, 2, seed, Faults::default());
        let halts = share(&lab, |f| async move {
            word(&f, at(THERE, 0)).await;
            f.pause(100).await;
            _ = f.write_unsignaled(at(THERE, 8), &[1; 8]);
        });
        lab.run_for(SOON_NS);
        lab.make_restless(halts);
        lab.set_faults(Faults { pauses: 1.0, pause_ns: 1_000_000, ..Faults::default() });
        lab.run_for(200_000);
        let other =
            share(&lab, |f| async move { put(&f, at(THERE, 16), 1).await.expect("it works") });
        lab.run_for(100_000);
        late += u32::from(!lab.has_ended(other));
        lab.finish();
        assert!(lab.has_ended(other) && lab.load(at(THERE, 8)) != 0);
    }
    assert!((8..32).contains(&late), "it stood still before its post or after it: {late}");
}

#[test]
fn a_card_holds_the_connections_of_hosts() {
    // 256 clients of one host leave 15 % of the rate if each has its own connection.
    let count = |shares: bool| {
        let lab = Lab::with(Faults::default());
        for _ in 0..256 {
            let process = lab.add_process(HERE);
            if shares {
                lab.share_connections(process);
            }
            let f = lab.endpoint(process);
            lab.start(process, async move { put(&f, at(THERE, 0), 1).await.expect("it works") });
        }
        lab.finish();
        let connections = lab.world.0.nodes.borrow()[0].connections;
        (connections, lab.now_ns())
    };
    let ((own, own_ns), (shared, shared_ns)) = (count(false), count(true));
    assert_eq!((own, shared), (256, 1));
    assert!(shared_ns < own_ns, "{shared_ns} {own_ns}");
}

#[test]
fn a_host_that_failed_has_no_connections_left() {
    let lab = Lab::with(Faults::default());
    share(&lab, |f| async move {
        put(&f, at(THERE, 0), 1).await.expect("it works");
        std::future::pending().await
    });
    lab.run_for(SOON_NS);
    lab.crash_node(HERE, false);
    assert_eq!(lab.world.0.nodes.borrow()[0].connections, 0);
    lab.revive_node(HERE);
    let next = share(&lab, |f| async move { put(&f, at(THERE, 0), 2).await.expect("it works") });
    lab.finish();
    assert!(lab.has_ended(next));
    assert_eq!(lab.load(at(THERE, 0)), 2);
}
