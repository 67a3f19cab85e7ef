//! Data tables that are larger than any host of the tests: their memory is taken as it is touched.

mod cluster;

use cluster::{Plan, TestCluster};
use loch_engines::limits::{CHUNK_BYTES, DATA_TABLE_BYTES_MAX, SEARCH_CHUNKS};
use loch_engines::nessie::geometry::Protocol;
use loch_engines::nessie::ite::Ite;
use loch_engines::nessie::slab::Chunk;
use loch_engines::nessie::{Client, PutOptions};
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, RemoteAddr, lanes::block_on};

const SHORT: usize = 64;
const LONG: usize = 300_000;

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(number: usize, round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + round * 7 + at) as u8).collect()
}

fn put(client: &Client<ShmEndpoint>, key: &[u8], value: &[u8]) {
    block_on(client.put(key, value, PutOptions::default())).unwrap();
}

fn get(client: &Client<ShmEndpoint>, key: &[u8]) -> Option<Vec<u8>> {
    block_on(client.get(key, Buf::new())).unwrap().map(|value| value.to_vec())
}

/// Two clients put, move, read and delete short and long values by all paths.
fn exercise(cluster: &TestCluster) {
    let (one, other) = (cluster.client(0), cluster.client(0));
    let long = |number: usize| if number.is_multiple_of(40) { LONG } else { SHORT + number };
    let keys: Vec<_> = (0..400).map(key).collect();
    for round in 0..3 {
        for (number, key) in keys.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
            put(&one, key, &value(number, round, long(number)));
        }
        let values: Vec<_> =
            (0..keys.len()).map(|number| value(number, round, long(number))).collect();
        let items: Vec<_> = keys.iter().zip(&values).skip(1).step_by(2).collect();
        block_on(other.put_many(&items, |_, _| ())).unwrap();
        let mut found = 0;
        block_on(one.get_many(&keys, |number, seen| {
            assert!(seen.is_some_and(|seen| *seen == values[number]), "{number} in {round}");
            found += 1;
        }))
        .unwrap();
        assert_eq!(found, keys.len());
        for (key, value) in keys.iter().zip(&values) {
            assert_eq!(get(&other, key).as_ref(), Some(value));
        }
    }
    for key in keys.iter().step_by(3) {
        assert!(block_on(other.delete(key)).unwrap());
        assert_eq!(get(&one, key), None);
    }
}

/// The places of the entries that the index names.
fn offsets(cluster: &TestCluster) -> Vec<u64> {
    let (client, geometry) = (cluster.client(0), cluster.map.shape.geometry);
    let slots = geometry.shard_bytes() / 8;
    let slots = cluster.map.shards().iter().flat_map(|shard| (0..slots).map(|s| shard.add(s * 8)));
    let words = slots.map(|slot| Ite(client.fabric().load(slot).unwrap()));
    let codec = &cluster.map.codec;
    words.filter(|word| codec.is_visible(*word)).map(|word| codec.place(word).offset).collect()
}

#[test]
fn a_table_of_two_tebibytes_and_more_has_a_larger_grain_and_is_sound() {
    let plan = Plan { table_bytes: (2 << 40) + (4 << 30), sparse: true, ..Plan::default() };
    let cluster = TestCluster::new(Plan { index_slots: 1 << 14, ..plan });
    assert_eq!(cluster.map.shape.bits.grain_bytes(), 32);
    exercise(&cluster);
    assert!(offsets(&cluster).iter().any(|at| *at > 2 << 40), "long values lie at the far end");
    let report = block_on(cluster.client(0).check()).unwrap();
    assert!(report.broken.is_empty(), "{:?}", report.broken);
}

#[test]
fn the_largest_table_has_entries_up_to_its_last_bytes() {
    let bytes = DATA_TABLE_BYTES_MAX + DATA_TABLE_BYTES_MAX / CHUNK_BYTES * 8 + (64 << 20);
    let cluster = TestCluster::new(Plan { table_bytes: bytes, sparse: true, ..Plan::default() });
    assert_eq!(cluster.map.shape.geometry.data_bytes(), DATA_TABLE_BYTES_MAX);
    exercise(&cluster);
    let last = *offsets(&cluster).iter().max().unwrap();
    assert!(last > DATA_TABLE_BYTES_MAX - (1 << 20), "{last:#x}");
}

/// Small tables with the addresses of large ones are checked whole.
#[test]
fn tables_of_every_grain_are_sound() {
    for bits in 34..=43 {
        let plan = Plan { table_bytes: 64 << 20, addresses_of: Some(1 << bits), ..Plan::default() };
        let cluster = TestCluster::new(plan);
        let grain = cluster.map.shape.bits.grain_bytes();
        exercise(&cluster);
        assert!(offsets(&cluster).iter().all(|at| at % grain == 0), "{grain}");
        let report = block_on(cluster.client(0).check()).unwrap();
        assert!(report.broken.is_empty(), "{grain}: {:?}", report.broken);
    }
    let published = Protocol::Published { previous_versions: true };
    let plan = Plan { protocol: published, addresses_of: Some(1 << 43), ..Plan::default() };
    let client = TestCluster::new(plan).published_over(0, |shm| shm);
    block_on(client.put(b"key", b"value", PutOptions::default())).unwrap();
    let seen = block_on(client.get(b"key", Buf::new())).unwrap();
    assert_eq!(seen.as_deref(), Some(&b"value"[..]));
}

/// A search for a slab once read the whole chunk table: 128 KiB for a data table of 1 GiB, and two
/// gigabytes for one of 8 TiB.
#[test]
fn a_search_for_a_slab_goes_on_where_the_last_one_ended() {
    let plan = Plan { table_bytes: 5 << 30, sparse: true, ..Plan::default() };
    let cluster = TestCluster::new(plan);
    let chunks = cluster.map.shape.geometry.chunks;
    let client = cluster.client(0);
    // Others have the first two parts and the last, and one chunk in the middle is left behind.
    let taken = Chunk::Leased { class: 0, chunks: 1, owner: 99 }.to_word();
    let set = |chunk: u64, word: u64| {
        let at: RemoteAddr = cluster.map.chunk_addr(0, chunk);
        client.fabric().store(at, &[&word.to_le_bytes()]).unwrap();
    };
    for chunk in (0..2 * SEARCH_CHUNKS).chain(chunks - SEARCH_CHUNKS..chunks) {
        set(chunk, taken);
    }
    put(&client, b"short", &[1; SHORT]);
    put(&client, b"long", &[2; LONG]);
    let mut seen = offsets(&cluster);
    seen.sort_unstable();
    let part = SEARCH_CHUNKS * CHUNK_BYTES;
    assert!((2 * part..3 * part).contains(&seen[0]), "the first part with room: {seen:?}");
    let long = chunks * CHUNK_BYTES - part;
    assert!((long - 2 * part..long).contains(&seen[1]), "the last part with room: {seen:?}");
    // A search goes all round before it gives up, and finds what became free behind it.
    for chunk in 0..chunks {
        set(chunk, taken);
    }
    let run = client.map().classes.of(LONG + 100).chunks as u64;
    let from = SEARCH_CHUNKS - run + 1;
    (from..from + run).for_each(|chunk| set(chunk, 0));
    put(&client, b"long", &[3; LONG]);
    assert_eq!(get(&client, b"long"), Some(vec![3; LONG]));
    let at = *offsets(&cluster).iter().min().unwrap();
    assert_eq!(at / CHUNK_BYTES, from, "a run may end in the next part");
}
