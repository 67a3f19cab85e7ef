//! Slabs that change hands: what a session remembers of one must not outlive its lease.

mod cluster;

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::nessie::slab::Slab;
use loch_engines::nessie::{Client, PutOptions};
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr, lanes::block_on};

fn put<F: Fabric>(client: &Client<F>, key: &[u8], value: &[u8]) {
    block_on(client.put(key, value, PutOptions::default())).unwrap();
}

fn get<F: Fabric>(client: &Client<F>, key: &[u8]) -> Option<Vec<u8>> {
    block_on(client.get(key, Buf::new())).unwrap().map(|v| v.to_vec())
}

/// A cluster of 2 MiB in which a client holds all chunks but one, with long values.
fn all_but_one_chunk(index_slots: u64) -> (TestCluster, Client<ShmEndpoint>) {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, index_slots, ..Plan::default() });
    let holder = cluster.client(0);
    for i in 1..cluster.map.shape.geometry.chunks {
        put(&holder, format!("long {i}").as_bytes(), &vec![9; 60_000]);
    }
    (cluster, holder)
}

/// A lane of one process was about to adopt a slab while another lane leased it. Between the two,
/// another process seized the slab, used it and left. The first process had then two records of the
/// slab's unused entries, the older one under the newer, and from the older it handed out entries
/// that held acknowledged values, in the same generation: their keys became ABSENT.
#[test]
fn acknowledged_values_survive_a_slab_that_comes_back() {
    let (cluster, _holder) = all_but_one_chunk(64);
    let (first, other) = (cluster.client(0), cluster.client(0));
    let value = vec![1; 2000];
    // A lane finds no free entry, and looks at the chunk table: its READ is under way.
    let mut lane = pin!(first.put(b"lane", &value, PutOptions::default()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(lane.as_mut().poll(&mut cx).is_pending());
    // Another lane leases the last chunk: a slab with one entry used, the others fresh.
    put(&first, b"another lane", &value);
    // The other process has no memory left: it seizes that slab, which has room, and uses it.
    let theirs = |i: u32| format!("theirs {i}").into_bytes();
    let acknowledged = |i: u32| format!("acknowledged {i} {}", "x".repeat(1980)).into_bytes();
    (0..5).for_each(|i| put(&other, &theirs(i), &acknowledged(i)));
    block_on(other.detach()).unwrap();
    cluster.kill(other.incarnation());
    // The lane goes on: it adopts the slab that was left behind.
    loop {
        if let Poll::Ready(done) = lane.as_mut().poll(&mut cx) {
            done.unwrap();
            break;
        }
    }
    // Other keys, until the slab is used up.
    let mut more = (0..100).map(|n| format!("more {n}"));
    let full = more
        .find(|key| block_on(first.put(key.as_bytes(), &value, PutOptions::default())).is_err());
    assert!(full.is_some(), "the memory was to be used up");
    for i in 0..5 {
        assert!(get(&first, &theirs(i)) == Some(acknowledged(i)), "acknowledged value {i} is lost");
    }
    assert_eq!(block_on(first.check()).unwrap().broken, Vec::<String>::new());
}

type Hook = Rc<RefCell<Option<(u64, Box<dyn FnOnce()>)>>>;

/// Stands still before it stores a note that frees the entry at an offset, and lets others work.
struct Halting {
    inner: ShmEndpoint,
    hook: Hook,
}

impl Fabric for Halting {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes compare_swap fetch_add
        write_unsignaled write is_mapped store_before store_after announce load reload raw now_us wall_ms random
        pause => inner
    );

    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<(), FabricError> {
        let frees = parts.len() == 1 && parts[0].len() == 4 && parts[0] != [0; 4];
        let halts = frees && self.hook.borrow().as_ref().is_some_and(|(o, _)| *o == at.offset());
        if halts {
            let (_, others_work) = self.hook.borrow_mut().take().unwrap();
            others_work();
        }
        self.inner.store(at, parts)
    }
}

/// A client had let an entry rest, saw that it was still its own, and was stopped (SIGSTOP) right
/// before it noted that the entry is free. It was in no epoch, so others did not wait for it: they
/// scrubbed the entry, took the slab apart and cut it for values of another size. When the client
/// went on it changed four bytes in the middle of an acknowledged value.
#[test]
fn a_client_that_stands_still_before_it_stores_a_note_damages_nothing() {
    let (cluster, holder) = all_but_one_chunk(1024);
    let hook: Hook = Rc::default();
    let halting = cluster.client_over(0, |inner| Halting { inner, hook: hook.clone() });
    // Unused entries get the last short generation, so that all of them rest before their reuse.
    cluster.set_stamps(cluster.map.shape.bits.gen_bits, 4);
    let value = vec![1; 2000];
    let keys: Vec<String> = (0..31).map(|i| format!("short {i}")).collect();
    keys.iter().for_each(|key| put(&halting, key.as_bytes(), &value));
    keys.iter().for_each(|key| assert!(block_on(halting.delete(key.as_bytes())).unwrap()));
    let slab = cluster.map.slab_addr(Slab { dti: 0, chunk: 0 });
    let note = slab.offset() + 64 + 4 * 30;
    let long: Vec<u8> = (0..60_000u32).map(|i| (i % 251) as u8).collect();
    let other = Rc::new(cluster.client(0));
    let (others, theirs) = ((holder, other.clone()), long.clone());
    let others_work = move || {
        let (scrubber, other) = others;
        // As far as they come: they wait for a client that is in an epoch, and may give up.
        let _ = block_on(scrubber.scrub(0, 10_000));
        let small = block_on(other.put(b"other", &[2; 2000], PutOptions::default())).is_ok();
        if small {
            assert!(block_on(other.delete(b"other")).unwrap());
        }
        let _ = block_on(other.put(b"victim", &theirs, PutOptions::default()));
    };
    *hook.borrow_mut() = Some((note, Box::new(others_work)));
    let again = block_on(halting.put(b"again", &value, PutOptions::default()));
    assert!(hook.borrow().is_none(), "it was to stand still once");
    // The others had to give up, or had their value stored; either way it stays.
    let stored = get(&*other, b"victim");
    assert!(stored.is_none() || stored == Some(long), "an acknowledged value has changed");
    // It stood still for longer than an operation may take, or lost its slab to the others.
    if again.is_ok() {
        assert_eq!(get(&halting, b"again"), Some(value));
    }
    assert_eq!(block_on(other.check()).unwrap().broken, Vec::<String>::new());
}
