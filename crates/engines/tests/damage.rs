//! A client on damaged memory: it reports the damage, and comes to an end. Found by
//! fuzzing (docs/fuzzing.md); here each is told by itself.

mod cluster;

use std::sync::atomic::Ordering;

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::nessie::ite::{Ite, State};
use loch_engines::nessie::slab::{Chunk, Slab};
use loch_engines::nessie::{Client, PutOptions};
use loch_engines::operation::Version;
use loch_engines::region::{EPOCH_OFFSET, STAMP_OFFSET};
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, RegionId, RemoteAddr};

fn set(client: &Client<ShmEndpoint>, at: RemoteAddr, word: u64) {
    let region = client.fabric().region(at.region()).unwrap();
    region.word(at.offset()).store(word, Ordering::Release);
}

fn get(client: &Client<ShmEndpoint>, at: RemoteAddr) -> u64 {
    let region = client.fabric().region(at.region()).unwrap();
    region.word(at.offset()).load(Ordering::Acquire)
}

fn put(client: &Client<ShmEndpoint>, key: &[u8]) -> Result<Version, EngineError> {
    block_on(client.put(key, b"value", PutOptions::default()))
}

/// The slots of the index that hold a word.
fn taken_slots(client: &Client<ShmEndpoint>) -> Vec<RemoteAddr> {
    let slots = client.map().shape.geometry.shard_bytes() / 8;
    let shards = client.map().shards().iter();
    let all = shards.flat_map(|shard| (0..slots).map(|slot| shard.add(slot * 8)));
    all.filter(|at| !client.map().codec.is_empty(Ite(get(client, *at)))).collect()
}

fn is_damaged<T: std::fmt::Debug>(result: Result<T, EngineError>) {
    assert!(matches!(result, Err(EngineError::Damaged { .. })), "{result:?}");
}

/// A PUT asserted that there are stamps left, and added to what it had read before it looked.
#[test]
fn a_stamp_word_at_its_end_is_damage() {
    let client = TestCluster::new(Plan::default()).client(0);
    for stamp in [u64::MAX, u64::MAX - 8, 1 << 50, (1 << 50) - 1] {
        set(&client, RemoteAddr::new(RegionId(0), STAMP_OFFSET), stamp);
        is_damaged(put(&client, b"key"));
    }
}

/// A grace period added to the epoch, and a cache to that of a line.
#[test]
fn an_epoch_may_be_any_number() {
    let options =
        loch_engines::nessie::geometry::Options { cache: Some(true), ..Default::default() };
    let client = TestCluster::new(Plan { options, ..Plan::default() }).client(0);
    for epoch in [u64::MAX, 0, 1 << 63, u64::MAX - 1] {
        put(&client, b"key").unwrap();
        set(&client, RemoteAddr::new(RegionId(0), EPOCH_OFFSET), epoch);
        assert!(block_on(client.get(b"key", Buf::new())).unwrap().is_some());
        assert!(block_on(client.delete(b"key")).unwrap());
    }
}

/// Such a word was taken for one that somebody is changing, and looked at until the time was up;
/// `check` gave up on it.
#[test]
fn an_index_word_that_names_no_place_is_damage_and_is_reported() {
    let client = TestCluster::new(Plan::default()).client(0);
    put(&client, b"key").unwrap();
    let slot = taken_slots(&client)[0];
    let place = client.map().codec.place(Ite(get(&client, slot)));
    set(&client, slot, get(&client, slot) ^ ((place.offset / 16) ^ 0xf_ffff) << 44);
    let damaged = client.map().codec.place(Ite(get(&client, slot)));
    assert!(damaged.offset >= client.map().shape.geometry.data_bytes(), "{damaged:?}");
    is_damaged(block_on(client.get(b"key", Buf::new())));
    is_damaged(put(&client, b"key"));
    is_damaged(block_on(client.delete(b"key")));
    assert_eq!(block_on(client.check()).unwrap().broken.len(), 1);
}

/// The insert looked at the word until it would change, for ever.
#[test]
fn an_insert_does_not_wait_for_ever_for_a_word_that_lies() {
    let cluster = TestCluster::new(Plan { tiny_index: Some(4), ..Plan::default() });
    let client = cluster.client(0);
    // The index is full, and then of tentative words whose generation is not their entries'.
    for key in 0..64u8 {
        let _ = put(&client, &[key]);
    }
    let codec = client.map().codec;
    for at in taken_slots(&client) {
        let word = Ite(get(&client, at));
        let other = codec.with_state(Ite(word.0 ^ 1 << 12), State::Tentative);
        set(&client, at, other.0);
    }
    let timed_out = |key| matches!(put(&client, &[key]), Err(EngineError::Timeout { .. }));
    assert!((0..64u8).any(timed_out), "one of them has met such a word, and came to an end");
}

/// The notes said that all entries are free, none was, and the allocation swept again and again,
/// with much memory left.
#[test]
fn notes_that_lie_do_not_hold_an_allocation_for_ever() {
    let client = TestCluster::new(Plan::default()).client(0);
    let map = client.map();
    let slab = |chunk: u32| match Chunk::from_word(get(&client, map.chunk_addr(0, chunk as u64))) {
        Some(Chunk::Leased { class, chunks, .. }) => map.slab_class(chunk, class, chunks),
        _ => None,
    };
    // A slab is used up, or its entries' notes would be cleared when they are used first.
    let mut keys = 0u32..;
    let mut next = || put(&client, &keys.next().unwrap().to_le_bytes()).unwrap();
    next();
    let class = slab(0).unwrap();
    while slab(class.chunks).is_none() {
        next();
    }
    for entry in 0..class.entries {
        let note = map.slab_addr(Slab { dti: 0, chunk: 0 }).add(class.note_at(entry));
        client.fabric().region(note.region()).unwrap().copy_in(note.offset(), &[0xff; 4]);
    }
    // Of others, and then of a third slab.
    (0..class.entries + 10).for_each(|_| _ = next());
    assert!(slab(2 * class.chunks).is_some());
}

/// All memory is in use, and notes promise that some of it is not: an allocation sweeps again and
/// again, but for no longer than an operation may take.
#[test]
fn an_allocation_that_only_notes_give_hope_times_out() {
    let plan = Plan { table_bytes: 2 << 20, index_slots: 1024, ..Plan::default() };
    let client = TestCluster::new(plan).client(0);
    let long = |key: u32| {
        block_on(client.put(&key.to_le_bytes(), &vec![7; 60_000], PutOptions::default()))
    };
    let stored = (0..).take_while(|key| long(*key).is_ok()).count() as u32;
    assert!(stored > 10);
    let map = client.map();
    for chunk in 0..map.shape.geometry.chunks as u32 {
        let slab = map.slab_addr(Slab { dti: 0, chunk });
        set(&client, slab.add(64), u64::MAX);
    }
    let timed_out = long(stored);
    assert!(matches!(timed_out, Err(EngineError::Timeout { .. })), "{timed_out:?}");
}

/// A descriptor whose run ends behind the data table was believed, and led the scrubber out of it.
#[test]
fn a_run_past_the_end_of_the_data_table_is_no_slab() {
    let client = TestCluster::new(Plan::default()).client(0);
    put(&client, b"key").unwrap();
    let map = client.map();
    let last = map.shape.geometry.chunks - 1;
    for chunks in [2, 16, 1 << 20, (1 << 21) - 1] {
        let long = Chunk::Abandoned { class: u8::MAX, chunks, free_hint: 1 };
        set(&client, map.chunk_addr(0, last), long.to_word());
        set(&client, map.slab_addr(Slab { dti: 0, chunk: last as u32 }).add(8), 1);
        assert_eq!(map.slab_class(last as u32, u8::MAX, chunks), None);
        block_on(client.scrub(0, 1000)).unwrap();
        block_on(client.usage(0)).unwrap();
        assert_eq!(block_on(client.check()).unwrap().broken.len(), 1);
    }
}
