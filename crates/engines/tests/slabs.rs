//! Slabs that change hands: what a session remembers of one must not outlive its lease.

mod cluster;

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::limits::CHUNK_BYTES;
use loch_engines::nessie::dte::HEADER_BYTES;
use loch_engines::nessie::slab::{Chunk, Slab};
use loch_engines::nessie::{Client, PutOptions};
use loch_engines::operation::Version;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr, lanes, lanes::block_on};

fn put<F: Fabric>(client: &Client<F>, key: &[u8], value: &[u8]) {
    block_on(client.put(key, value, PutOptions::default())).unwrap();
}

fn get<F: Fabric>(client: &Client<F>, key: &[u8]) -> Option<Vec<u8>> {
    block_on(client.get(key, Buf::new())).unwrap().map(|v| v.to_vec())
}

/// PUTs long values into so many chunks, each in a run of its own of `run` chunks and more.
/// Returns their keys.
fn fill_chunks(client: &Client<ShmEndpoint>, mut chunks: u64, run: u64) -> Vec<String> {
    let mut keys = Vec::new();
    while chunks > 0 {
        let run = if chunks < 2 * run { chunks } else { run };
        let len = (run * CHUNK_BYTES) as usize - 1000;
        assert_eq!(u64::from(client.map().classes.of(len).chunks), run);
        keys.push(format!("long {}", keys.len()));
        put(client, keys[keys.len() - 1].as_bytes(), &vec![9; len]);
        chunks -= run;
    }
    keys
}

/// A cluster in which a client holds all memory but one slab of 64 KiB, with long values.
fn all_but_one_slab(index_slots: u64) -> (TestCluster, Client<ShmEndpoint>) {
    let cluster = TestCluster::new(Plan { table_bytes: 18 << 20, index_slots, ..Plan::default() });
    let holder = cluster.client(0);
    let (slab, chunks) = (holder.map().classes.of(2000), cluster.map.shape.geometry.chunks);
    assert_eq!(slab.chunks, 4);
    fill_chunks(&holder, chunks - chunks % 4 - 4, 32);
    (cluster, holder)
}

/// A lane of one process is about to adopt a slab that another lane leases; between the two,
/// another process seizes the slab, uses it and leaves. The first process still remembers the
/// slab's header as it was. After `third_at` steps of the lane, if it takes so many, a third lane
/// puts a value; then others do, `more` at most. Says whether the lane took so many steps.
fn a_slab_comes_back(third_at: Option<u32>, more: usize) -> bool {
    let (cluster, _holder) = all_but_one_slab(64);
    let (first, other) = (cluster.client(0), cluster.client(0));
    let value = vec![1; 2000];
    // A lane finds no free entry, and looks at the chunk table: its READ is under way.
    let mut lane = pin!(first.put(b"lane", &value, PutOptions::default()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(lane.as_mut().poll(&mut cx).is_pending());
    // Another lane leases the last slab, with one entry used, the others fresh.
    put(&first, b"another lane", &value);
    // The other process has no memory left: it seizes that slab, which has room, and uses it.
    let theirs = |i: u32| format!("theirs {i}").into_bytes();
    let acknowledged = |i: u32| format!("acknowledged {i} {}", "x".repeat(1980)).into_bytes();
    (0..5).for_each(|i| put(&other, &theirs(i), &acknowledged(i)));
    block_on(other.detach()).unwrap();
    cluster.kill(other.incarnation());
    // The lane goes on: it adopts the slab that was left behind.
    let mut steps = 0;
    let mut so_many = false;
    loop {
        if third_at == Some(steps) {
            put(&first, b"third lane", &value);
            so_many = true;
        }
        if let Poll::Ready(done) = lane.as_mut().poll(&mut cx) {
            done.unwrap();
            break;
        }
        steps += 1;
    }
    // Other keys, until the slab is used up.
    let mut keys = (0..more).map(|n| format!("more {n}"));
    let full = keys
        .find(|key| block_on(first.put(key.as_bytes(), &value, PutOptions::default())).is_err());
    assert!(full.is_some() || more < 30, "the memory was to be used up");
    for i in 0..5 {
        let found = get(&first, &theirs(i));
        assert!(found == Some(acknowledged(i)), "acknowledged value {i} is lost, {third_at:?}");
    }
    assert_eq!(block_on(first.check()).unwrap().broken, Vec::<String>::new());
    so_many
}

/// The first process had two records of the slab's unused entries, the older one under the newer,
/// and from the older it handed out entries that held acknowledged values, in the same generation:
/// their keys became ABSENT.
#[test]
fn acknowledged_values_survive_a_slab_that_comes_back() {
    a_slab_comes_back(None, 100);
}

/// Between the CAS that makes the slab ours again and the look at its header, it is ours by its
/// descriptor, but what is remembered of its header is from before.
#[test]
fn acknowledged_values_survive_while_a_slab_comes_back() {
    let steps = (0..).take_while(|step| a_slab_comes_back(Some(*step), 3)).count();
    assert!(steps > 3, "adopting a slab takes more steps than {steps}");
}

fn store_short(client: &Client<ShmEndpoint>, key: u32) -> Result<Version, EngineError> {
    block_on(client.put(&key.to_le_bytes(), &[1; 2000], PutOptions::default()))
}

/// A cluster of 2 MiB in which a client has stored short values until there was no more memory, and
/// how many: their keys are the numbers from 0 on.
fn full_of_short_values() -> (TestCluster, Client<ShmEndpoint>, u32) {
    let plan = Plan { table_bytes: 2 << 20, index_slots: 2048, ..Plan::default() };
    let cluster = TestCluster::new(plan);
    let client = cluster.client(0);
    let stored = (0..).take_while(|key| store_short(&client, *key).is_ok()).count() as u32;
    assert!(stored > 500);
    (cluster, client, stored)
}

/// All memory is in use; then others delete a key here and there. Its entry is in a slab of the
/// first client, which finds it, wherever it is, before it says that there is no memory.
#[test]
fn the_last_free_entry_is_found_wherever_it_is() {
    let (cluster, first, stored) = full_of_short_values();
    let other = cluster.client(0);
    for n in 0..40 {
        let key = (n * 211 % stored).to_le_bytes();
        assert!(block_on(other.delete(&key)).unwrap());
        store_short(&first, stored + n).expect("an entry is free");
    }
}

fn full_of_long_values() -> (TestCluster, Client<ShmEndpoint>, Vec<String>) {
    let plan = Plan { table_bytes: 2 << 20, index_slots: 2048, ..Plan::default() };
    let cluster = TestCluster::new(plan);
    let client = cluster.client(0);
    let keys = fill_chunks(&client, cluster.map.shape.geometry.chunks, 5);
    assert!(keys.len() > 10);
    (cluster, client, keys)
}

fn delete_all(client: &Client<ShmEndpoint>, keys: &[String]) {
    keys.iter().for_each(|key| assert!(block_on(client.delete(key.as_bytes())).unwrap()));
}

/// A session may be about to take an entry of a slab that has none in use: only who leases it takes
/// it apart.
#[test]
fn an_empty_slab_of_another_session_is_not_taken_apart() {
    let (cluster, first, keys) = full_of_long_values();
    let other = cluster.client(0);
    let words = || {
        let chunks = 0..cluster.map.shape.geometry.chunks;
        let word = |chunk| first.fabric().load(cluster.map.chunk_addr(0, chunk)).unwrap();
        chunks.map(word).collect::<Vec<u64>>()
    };
    let before = words();
    delete_all(&first, &keys);
    let refused = block_on(other.put(b"short", &[2; 2000], PutOptions::default()));
    let class = cluster.map.classes.of(HEADER_BYTES + 2000 + b"short".len());
    let capacity = cluster.map.shape.geometry.data_bytes();
    assert_eq!(refused, Err(EngineError::OutOfMemory { bytes: class.entry_bytes, capacity }));
    assert_eq!(words(), before);
    // The session that leases them does.
    put(&first, b"short", &[2; 2000]);
}

/// Other clients can cut the slabs that a client left behind for values of other sizes.
#[test]
fn abandoned_slabs_are_taken_apart() {
    let (cluster, first, keys) = full_of_long_values();
    delete_all(&first, &keys);
    block_on(first.detach()).unwrap();
    let other = cluster.client(0);
    (0..100u32).for_each(|key| put(&other, &key.to_le_bytes(), &[2; 2000]));
    assert_eq!(block_on(other.check()).unwrap().broken, Vec::<String>::new());
}

/// A note that comes late is of an older generation, and says nothing of the value that is there
/// now.
#[test]
fn a_slab_is_not_taken_apart_because_of_notes_that_came_late() {
    let (cluster, first, keys) = full_of_long_values();
    let values: Vec<_> = keys.iter().map(|key| get(&first, key.as_bytes()).unwrap()).collect();
    let chunks = 0..cluster.map.shape.geometry.chunks as u32;
    let word = |chunk| first.fabric().load(cluster.map.chunk_addr(0, chunk)).unwrap();
    let is_head = |chunk: &u32| {
        matches!(Chunk::from_word(word(u64::from(*chunk))), Some(Chunk::Leased { .. }))
    };
    for chunk in chunks.filter(is_head) {
        let note = cluster.map.slab_addr(Slab { dti: 0, chunk }).add(64);
        let region = first.fabric().region(note.region()).unwrap();
        region.copy_in(note.offset(), &1u32.to_le_bytes());
    }
    let refused = block_on(first.put(b"short", &[2; 2000], PutOptions::default()));
    assert!(matches!(refused, Err(EngineError::OutOfMemory { .. })), "{refused:?}");
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(get(&first, key.as_bytes()), Some(value));
    }
}

/// A lane that needs memory closes a slab with free entries, finds others in use, and opens the
/// slab again. Another lane comes by meanwhile, after so many steps of the first, and does not find
/// the slab leased. Returns whether the first lane took so many steps.
fn a_slab_is_closed_in_vain(steps: u32) -> bool {
    let (cluster, client, stored) = full_of_short_values();
    let other = cluster.client(0);
    (0..10u32).for_each(|key| assert!(block_on(other.delete(&key.to_le_bytes())).unwrap()));
    let long = vec![9; 60_000];
    let mut lane = pin!(client.put(b"long", &long, PutOptions::default()));
    let mut cx = Context::from_waker(Waker::noop());
    let mut is_over = (0..steps).any(|_| lane.as_mut().poll(&mut cx).is_ready());
    let took_so_many = !is_over;
    // The entries may be out of its reach at this moment.
    let _ = store_short(&client, stored);
    while !is_over {
        is_over = lane.as_mut().poll(&mut cx).is_ready();
    }
    store_short(&client, stored + 1).expect("entries are free");
    block_on(client.detach()).unwrap();
    let words = (0..cluster.map.shape.geometry.chunks)
        .map(|chunk| other.fabric().load(cluster.map.chunk_addr(0, chunk)).unwrap());
    let is_leased = |word: u64| matches!(Chunk::from_word(word), Some(Chunk::Leased { .. }));
    assert_eq!(words.filter(|word| is_leased(*word)).count(), 0, "after {steps} steps");
    took_so_many
}

/// The session forgot such a slab: it neither used the slab's free entries again, nor gave the slab
/// back when it ended.
#[test]
fn a_slab_that_was_closed_in_vain_is_not_forgotten() {
    let steps = (0..).take_while(|steps| a_slab_is_closed_in_vain(*steps)).count();
    assert!(steps > 10, "looking for memory takes more steps than {steps}");
}

/// Of several lanes that needed memory, one made room, by grace periods or by adopting a slab,
/// after the others had looked there: they were told that there is no memory.
#[test]
fn lanes_that_wait_for_memory_together_all_get_some() {
    let (_cluster, client, keys) = full_of_long_values();
    delete_all(&client, &keys);
    let client = &client;
    let work = (0..16u8).map(|key| async move {
        client.put(&[key], &vec![key; 1000 * key as usize], PutOptions::default()).await
    });
    block_on(lanes::run(8, work, |stored| assert!(stored.is_ok(), "{stored:?}")));
}

/// All free entries rest at once, because their generations would start over; then they come back.
#[test]
fn entries_that_rest_together_all_come_back() {
    let (cluster, _holder) = all_but_one_slab(1024);
    let client = cluster.client(0);
    cluster.set_stamps(cluster.map.shape.bits.gen_bits, 4);
    let keys: Vec<String> = (0..31).map(|i| format!("short {i}")).collect();
    for _ in 0..3 {
        keys.iter().for_each(|key| put(&client, key.as_bytes(), &[1; 2000]));
        delete_all(&client, &keys);
    }
    assert_eq!(block_on(client.check()).unwrap().broken, Vec::<String>::new());
}

/// As many as there are, between two allocations.
#[test]
fn hundreds_of_entries_that_rest_together_come_back() {
    let (cluster, _holder) = all_but_one_slab(2048);
    let client = cluster.client(0);
    cluster.set_stamps(cluster.map.shape.bits.gen_bits, 4);
    let keys: Vec<String> = (0..500).map(|i| format!("short {i}")).collect();
    for _ in 0..3 {
        keys.iter().for_each(|key| put(&client, key.as_bytes(), &[1; 60]));
        delete_all(&client, &keys);
    }
    assert_eq!(block_on(client.check()).unwrap().broken, Vec::<String>::new());
}

/// A slab that was left behind with room in it is enough for one value: the others are for others.
#[test]
fn one_slab_is_adopted_for_one_value() {
    let (cluster, first, stored) = full_of_short_values();
    let other = cluster.client(0);
    (0..stored).step_by(5).for_each(|key| {
        assert!(block_on(first.delete(&key.to_le_bytes())).unwrap());
    });
    block_on(first.detach()).unwrap();
    put(&other, b"key", &[1; 2000]);
    let owners = (0..cluster.map.shape.geometry.chunks).map(|chunk| {
        Chunk::from_word(other.fabric().load(cluster.map.chunk_addr(0, chunk)).unwrap())
    });
    let leased = owners.filter(|chunk| matches!(chunk, Some(Chunk::Leased { .. })));
    assert_eq!(leased.count(), 1);
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
        write_unsignaled write is_mapped store_before store_after announce load reload raw posted
        is_settled now_us wall_ms random pause => inner
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
    let (cluster, holder) = all_but_one_slab(1024);
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
    // The slab cut for it has fewer notes: the value lies where the note was to be stored.
    let long: Vec<u8> = (0..5_000u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(cluster.map.classes.of(long.len() + 100).chunks, 4);
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

#[test]
fn batches_and_lanes_replace_values_where_little_memory_is_free() {
    for (len, spare) in [(900, 2), (60_000, 1), (300_000, 1)] {
        let cluster =
            TestCluster::new(Plan { table_bytes: 4 << 20, index_slots: 1024, ..Plan::default() });
        let client = cluster.client(0);
        let value = vec![1; len];
        let key = |n: usize| format!("key {n}").into_bytes();
        let put = |n: usize| block_on(client.put(&key(n), &value, PutOptions::default()));
        let count = (0..).find(|n| put(*n).is_err()).unwrap();
        for n in 0..spare {
            block_on(client.delete(&key(n))).unwrap();
        }
        let pairs: Vec<_> = (spare..count).map(|n| (key(n), vec![2; len])).collect();
        for (n, (key, value)) in pairs.iter().enumerate() {
            let put = block_on(client.put(key, value, PutOptions::default()));
            assert!(put.is_ok(), "value {n} of {len} bytes alone: {put:?}");
        }
        let mut stored = 0;
        let put = block_on(client.put_many(&pairs, |_, _| stored += 1));
        assert_eq!((put, stored), (Ok(()), pairs.len()), "{len} bytes");
        let mut puts = 0;
        let all = pairs.iter().map(|(key, value)| client.put(key, value, PutOptions::default()));
        block_on(lanes::run(16, all, |put: Result<_, EngineError>| {
            puts += 1;
            assert!(put.is_ok(), "put {puts} of {len} bytes in lanes: {put:?}");
        }));
    }
}
