//! What a scrub may free, and what not.

mod cluster;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::nessie::slab::{Chunk, FORMATTED_OFFSET, Slab};
use loch_engines::nessie::{Client, PutOptions};
use loch_engines::region::EPOCH_OFFSET;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Fabric, RegionId, RemoteAddr};

const WAIT_US: u64 = 1_000_000;

/// A client takes an entry and dies; how many entries a scrub then frees, if `meanwhile` happens when
/// it has chosen its suspects and waits for its grace period.
fn freed(meanwhile: impl Fn(&Client<ShmEndpoint>)) -> u64 {
    let cluster = TestCluster::new(Plan::default());
    let dead = cluster.client(0);
    std::mem::forget(block_on(dead.reserve(b"key", 100, Default::default())).unwrap());
    cluster.kill(dead.incarnation());
    let client = cluster.client(0);
    let epoch = || client.fabric().load(RemoteAddr::new(RegionId(0), EPOCH_OFFSET)).unwrap();
    let before = epoch();
    let mut scrub = pin!(client.scrub(0, WAIT_US));
    let mut cx = Context::from_waker(Waker::noop());
    let mut chosen = false;
    loop {
        if let Poll::Ready(done) = scrub.as_mut().poll(&mut cx) {
            assert!(chosen, "no suspect was found");
            return done.unwrap().freed;
        }
        if !chosen && epoch() != before {
            chosen = true;
            meanwhile(&client);
        }
    }
}

#[test]
fn what_a_dead_client_took_is_freed() {
    assert_eq!(freed(|_| ()), 1);
}

/// Notes and count of a slab, read while it was cut anew, made a suspect of an entry that was never
/// used. It was freed, and then handed out twice: as a free one, and as a fresh one. The simulation
/// found it (workload `long`).
#[test]
fn an_entry_that_was_never_used_is_not_freed() {
    let cut_anew = |client: &Client<ShmEndpoint>| {
        let slab = client.map().slab_addr(Slab { dti: 0, chunk: 0 });
        let region = client.fabric().region(slab.region()).unwrap();
        region.word(slab.offset() + FORMATTED_OFFSET).store(0, Ordering::Release);
    };
    assert_eq!(freed(cut_anew), 0);
}

/// The scrubber gives back slabs whose session ended while it was seizing them. It read the sessions
/// first, and then the descriptors: a session that began in between and seized a slab seemed to have
/// ended, and its slab was abandoned under it, open for others without the grace period it waits for.
#[test]
fn a_slab_that_a_new_session_seizes_during_a_scrub_stays_its_own() {
    let mut steps = 0;
    loop {
        let cluster = TestCluster::new(Plan::default());
        let owner = cluster.client(0);
        block_on(owner.put(b"key", b"value", PutOptions::default())).unwrap();
        let table = owner.map().chunk_addr(0, 0);
        let region = owner.fabric().region(table.region()).unwrap();
        let descriptor = region.word(table.offset());
        let Some(Chunk::Leased { class, chunks, .. }) =
            Chunk::from_word(descriptor.load(Ordering::Acquire))
        else {
            panic!("the first slab is leased");
        };
        let scrubber = cluster.client(0);
        let mut scrub = pin!(scrubber.scrub(0, WAIT_US));
        let mut cx = Context::from_waker(Waker::noop());
        let ended = (0..steps).any(|_| scrub.as_mut().poll(&mut cx).is_ready());
        if ended {
            break;
        }
        let thief = cluster.client(0);
        let seized = Chunk::Seized { class, chunks, owner: thief.incarnation() as u32 }.to_word();
        descriptor.store(seized, Ordering::Release);
        block_on(scrub).unwrap();
        let now = Chunk::from_word(descriptor.load(Ordering::Acquire));
        assert_eq!(now, Chunk::from_word(seized), "seized after {steps} steps of the scrub");
        steps += 1;
    }
    assert!(steps > 3, "a scrub takes more steps than {steps}");
}
