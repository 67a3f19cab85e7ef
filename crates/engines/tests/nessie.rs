//! The nessie engine over shm, one process: what each operation does, alone and in company.

#![expect(
    clippy::disallowed_methods,
    reason = "what threads do to each other is tested with threads"
)]

mod cluster;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::limits::{MOVE_DEPTH_MAX, MOVE_SEARCH_SLOTS_MAX};
use loch_engines::nessie::dte::HEADER_BYTES;
use loch_engines::nessie::geometry::Options;
use loch_engines::nessie::hash::Candidates;
use loch_engines::nessie::ite::Ite;
use loch_engines::nessie::{Client, Conditional, Expect, PutOptions};
use loch_engines::operation::{ValueRef, Version};
use loch_engines::region::EPOCH_OFFSET;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, RegionId, lanes::block_on};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn get(client: &Client<ShmEndpoint>, key: &[u8]) -> Option<Vec<u8>> {
    block_on(client.get(key, Buf::new())).unwrap().map(|v| v.to_vec())
}

fn put(client: &Client<ShmEndpoint>, key: &[u8], value: &[u8]) -> u64 {
    block_on(client.put(key, value, PutOptions::default())).unwrap().as_u64()
}

fn delete(client: &Client<ShmEndpoint>, key: &[u8]) -> bool {
    block_on(client.delete(key)).unwrap()
}

fn assert_sound(client: &Client<ShmEndpoint>) {
    let report = block_on(client.check()).unwrap();
    assert_eq!(report.broken, Vec::<String>::new());
    assert_eq!((report.unshown, report.tentative, report.moving), (0, 0, 0), "{report:?}");
}

#[test]
fn a_value_comes_back_until_it_is_deleted() {
    let cluster = TestCluster::new(Plan::default());
    let client = cluster.client(0);
    assert_eq!(get(&client, b"loch"), None);
    put(&client, b"loch", b"deep");
    assert_eq!(get(&client, b"loch").as_deref(), Some(&b"deep"[..]));
    put(&client, b"loch", b"");
    assert_eq!(get(&client, b"loch").as_deref(), Some(&b""[..]));
    assert!(block_on(client.contains(b"loch")).unwrap());
    assert!(delete(&client, b"loch"));
    assert!(!delete(&client, b"loch"));
    assert_eq!(get(&client, b"loch"), None);
    assert!(!block_on(client.contains(b"loch")).unwrap());
    assert_sound(&client);
}

/// Every combination of options, sizes from nothing to many chunks, against a map.
#[test]
fn a_random_workload_agrees_with_a_map() {
    for bits in 0..64u32 {
        let tri = |on: u32, auto: u32| if auto == 1 { None } else { Some(on == 1) };
        let options = Options {
            filter_bits: bits & 1 != 0,
            cache: tri(bits >> 1 & 1, 0),
            multi_read: bits & 4 != 0,
            batched_reads: tri(bits >> 3 & 1, 0),
            checksums: bits & 16 != 0,
            evicts: false,
        };
        let (ways, bucket_slots) = [(3, 4), (2, 2), (4, 4), (3, 1)][bits as usize / 16];
        let plan =
            Plan { ways, bucket_slots, options, nodes: 1 + (bits % 3) as u16, ..Plan::default() };
        let cluster = TestCluster::new(plan);
        let clients = [cluster.client(0), cluster.client(0)];
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut rng = ChaCha8Rng::seed_from_u64(bits as u64);
        for _ in 0..1500 {
            let client = &clients[rng.random_range(0..2)];
            let key = match rng.random_range(0..200u32) {
                0 => vec![7; 5000],
                n => format!("key {n}").into_bytes(),
            };
            match rng.random_range(0..13) {
                10.. => operate_on_many(client, &mut model, &mut rng),
                0..5 => assert_eq!(get(client, &key), model.get(&key).cloned()),
                5..8 => {
                    let len = match rng.random_range(0..50) {
                        0 => rng.random_range(0..300_000),
                        1..10 => rng.random_range(0..5000),
                        _ => rng.random_range(0..100),
                    };
                    let mut value = vec![0; len];
                    rng.fill_bytes(&mut value);
                    put(client, &key, &value);
                    model.insert(key, value);
                }
                8 => assert_eq!(delete(client, &key), model.remove(&key).is_some()),
                _ => {
                    let add = rng.random_range(0..1000);
                    match block_on(client.fetch_add(&key, add)) {
                        Ok(before) => {
                            let number =
                                |v: &Vec<u8>| u64::from_le_bytes(v[..].try_into().unwrap());
                            assert_eq!(before, model.get(&key).map_or(0, number));
                            model.insert(key, (before.wrapping_add(add)).to_le_bytes().to_vec());
                        }
                        Err(EngineError::NotACounter { len }) => {
                            assert_eq!(Some(len as usize), model.get(&key).map(Vec::len));
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
        for (key, value) in &model {
            assert_eq!(get(&clients[0], key).as_ref(), Some(value));
        }
        assert_sound(&clients[0]);
    }
}

/// A batch of any kind, on keys some of which are twice in it.
fn operate_on_many(
    client: &Client<ShmEndpoint>,
    model: &mut HashMap<Vec<u8>, Vec<u8>>,
    rng: &mut ChaCha8Rng,
) {
    let mut keys: Vec<_> = (0..rng.random_range(1..=40))
        .map(|_| format!("key {}", rng.random_range(1..200)).into_bytes())
        .collect();
    match rng.random_range(0..4) {
        0 => {
            let mut seen = vec![None; keys.len()];
            let found = |key: usize, found: Option<ValueRef<'_>>| {
                seen[key] = Some(found.map(|found| found.to_vec()));
            };
            block_on(client.get_many(&keys, found)).unwrap();
            for (key, seen) in keys.iter().zip(seen) {
                assert_eq!(seen, Some(model.get(key).cloned()), "{key:?}");
            }
        }
        1 => {
            let mut seen = vec![None; keys.len()];
            block_on(client.contains_many(&keys, |key, has| seen[key] = Some(has))).unwrap();
            let expected = keys.iter().map(|key| Some(model.contains_key(key)));
            assert_eq!(seen, expected.collect::<Vec<_>>());
        }
        2 => {
            let value = |_| vec![rng.random(); rng.random_range(0..2000)];
            let pairs: Vec<_> = keys.iter().cloned().zip((0..).map(value)).collect();
            let mut stored = vec![0; pairs.len()];
            block_on(client.put_many(&pairs, |pair, _| stored[pair] += 1)).unwrap();
            assert_eq!(stored, vec![1; pairs.len()]);
            model.extend(pairs);
        }
        _ => {
            keys.sort();
            keys.dedup();
            let mut seen = vec![None; keys.len()];
            block_on(client.delete_many(&keys, |key, had| seen[key] = Some(had))).unwrap();
            let expected = keys.iter().map(|key| Some(model.remove(key).is_some()));
            assert_eq!(seen, expected.collect::<Vec<_>>());
        }
    }
}

/// A remembered word is only as good as what is remembered of its entry: version and expiry.
#[test]
fn conditions_hold_or_refuse() {
    for cache in [false, true] {
        let options = Options { cache: Some(cache), ..Options::default() };
        let cluster = TestCluster::new(Plan { options, ..Plan::default() });
        let client = cluster.client(0);
        let now = client.fabric().wall_ms();
        let put_until = |value: &[u8], expect, expires_at_ms| {
            block_on(client.put_if(b"k", value, expect, PutOptions { expires_at_ms })).unwrap()
        };
        let put_if = |value: &[u8], expect| put_until(value, expect, None);
        assert_eq!(put_if(b"0", Expect::Version(Version::from_u64(9))), Conditional::Refused(None));
        let Conditional::Done(first) = put_if(b"1", Expect::Absent) else {
            panic!("it was absent")
        };
        assert_eq!(put_if(b"2", Expect::Absent), Conditional::Refused(Some(first)));
        let Conditional::Done(second) = put_if(b"2", Expect::Version(first)) else {
            panic!("it was first")
        };
        assert_eq!(put_if(b"3", Expect::Version(first)), Conditional::Refused(Some(second)));
        assert_eq!(get(&client, b"k").as_deref(), Some(&b"2"[..]));
        let past = Some(now - 1);
        let Conditional::Done(expired) = put_until(b"4", Expect::Version(second), past) else {
            panic!("it was second")
        };
        assert_eq!(put_if(b"5", Expect::Version(expired)), Conditional::Refused(None));
        put_until(b"6", Expect::Absent, past);
        assert!(matches!(put_if(b"7", Expect::Absent), Conditional::Done(_)));
        assert_eq!(get(&client, b"k").as_deref(), Some(&b"7"[..]));
        assert!(delete(&client, b"k"));
        put_until(b"8", Expect::Absent, past);
        assert!(!delete(&client, b"k"), "its time had come before");
        assert_sound(&client);
    }
}

/// The course of a PUT of a key that another client changes after each of the PUT's steps in
/// turn: its retries, and the key's value when both are done. `change` is told the version that it
/// finds.
fn overtaken(
    cache: bool,
    change: impl Fn(&Client<ShmEndpoint>, Version),
) -> Vec<(u64, Option<Vec<u8>>)> {
    let options = Options { cache: Some(cache), batched_reads: Some(true), ..Options::default() };
    let overtaken_after = |steps: u32| {
        let cluster = TestCluster::new(Plan { options, ..Plan::default() });
        let (client, other) = (cluster.client(0), cluster.client(0));
        put(&other, b"other", b"value");
        let version = put(&client, b"key", b"old");
        let mut put = pin!(client.put(b"key", b"new", PutOptions::default()));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..steps {
            if put.as_mut().poll(&mut cx).is_ready() {
                return None;
            }
        }
        change(&other, Version::from_u64(version));
        block_on(put).unwrap();
        assert_sound(&client);
        Some((client.counts().retries.get(), get(&other, b"key")))
    };
    (0..).map_while(overtaken_after).collect()
}

/// It took effect right before the other one if that was no answer to anybody either. What it
/// remembered may have changed before it began, and says nothing of when.
#[test]
fn a_put_that_another_put_overtakes_is_done() {
    let (new, theirs) = (Some(b"new".to_vec()), Some(b"theirs".to_vec()));
    let change = |other: &Client<ShmEndpoint>, _| _ = put(other, b"key", b"theirs");
    let cold = overtaken(false, change);
    assert!(cold.iter().all(|(retries, _)| *retries == 0), "{cold:?}");
    let values: Vec<_> = cold.into_iter().map(|(_, value)| value).collect();
    assert!(values[0] == new && values.contains(&theirs), "{values:?}");
    let warm = overtaken(true, change);
    assert_eq!(warm[0], (0, new), "it began after the other one had ended");
}

#[test]
fn a_put_that_something_else_overtakes_begins_again() {
    let put_if = |other: &Client<ShmEndpoint>, version| {
        let (expect, options) = (Expect::Version(version), PutOptions::default());
        let done = block_on(other.put_if(b"key", b"theirs", expect, options)).unwrap();
        assert!(matches!(done, Conditional::Done(_)));
    };
    let take_away = |other: &Client<ShmEndpoint>, _| assert!(delete(other, b"key"));
    for overtaken in [overtaken(false, put_if), overtaken(false, take_away)] {
        let is_new = |value: &Option<Vec<u8>>| value.as_deref() == Some(&b"new"[..]);
        assert!(overtaken.iter().all(|(_, value)| is_new(value)), "{overtaken:?}");
        assert!(overtaken.iter().any(|(retries, _)| *retries > 0), "{overtaken:?}");
    }
}

#[test]
fn an_expired_value_is_absent_and_its_memory_comes_back() {
    let cluster = TestCluster::new(Plan::default());
    let client = cluster.client(0);
    let now = client.fabric().wall_ms();
    let at = |ms| PutOptions { expires_at_ms: Some(ms) };
    block_on(client.put(b"old", b"1", at(now - 1))).unwrap();
    block_on(client.put(b"new", b"2", at(now + 3_600_000))).unwrap();
    assert_eq!(get(&client, b"old"), None);
    let found = block_on(client.get(b"new", Buf::new())).unwrap().unwrap();
    assert_eq!((&found[..], found.expires_at_ms()), (&b"2"[..], Some(now + 3_600_000)));
    block_on(client.put(b"old", b"3", at(now - 1))).unwrap();
    assert_eq!(block_on(client.fetch_add(b"old", 5)).unwrap(), 0, "an expired number is no number");
    assert_sound(&client);
}

#[test]
fn a_reservation_is_written_in_place_or_leaves_nothing() {
    let cluster = TestCluster::new(Plan {
        options: Options { checksums: true, ..Options::default() },
        ..Plan::default()
    });
    let client = cluster.client(0);
    let mut reserved = block_on(client.reserve(b"big", 1 << 20, PutOptions::default())).unwrap();
    reserved.write_at(0, &vec![1; 1 << 19]).unwrap();
    reserved.write_at(1 << 19, &vec![2; 1 << 19]).unwrap();
    assert_eq!(get(&client, b"big"), None);
    block_on(reserved.commit()).unwrap();
    let value = get(&client, b"big").unwrap();
    assert!(value[..1 << 19].iter().all(|b| *b == 1) && value[1 << 19..].iter().all(|b| *b == 2));
    drop(block_on(client.reserve(b"big", 1 << 20, PutOptions::default())).unwrap());
    assert_eq!(get(&client, b"big").unwrap().len(), 1 << 20);
    assert_sound(&client);
}

#[test]
fn bad_input_is_named() {
    let cluster = TestCluster::new(Plan::default());
    let client = cluster.client(0);
    let put = |key: &[u8], value: &[u8]| block_on(client.put(key, value, PutOptions::default()));
    assert_eq!(put(b"", b"v"), Err(EngineError::KeyEmpty));
    assert_eq!(put(&vec![1; 65537], b"v"), Err(EngineError::KeyTooLong { len: 65537, max: 65536 }));
    put(&vec![1; 65536], b"v").unwrap();
    assert_eq!(get(&client, &vec![1; 65536]).as_deref(), Some(&b"v"[..]));
    let huge = vec![0; (64 << 20) + 1];
    assert!(matches!(put(b"k", &huge), Err(EngineError::ValueTooLong { .. })));
    assert!(matches!(put(b"k", &huge[..64 << 20]), Err(EngineError::OutOfMemory { .. })));
    assert_sound(&client);
    // The memory of all nodes.
    let client = TestCluster::new(Plan { nodes: 3, ..Plan::default() }).client(0);
    let full = block_on(client.put(b"k", &huge[1..], PutOptions::default()));
    let Err(EngineError::OutOfMemory { bytes, capacity }) = full else { panic!("{full:?}") };
    assert!(bytes > 64 << 20 && (40 << 20..48 << 20).contains(&capacity), "{capacity}");
}

/// The index fills up by way of moves; then inserts are refused, updates are not, and deleting
/// makes room.
#[test]
fn a_full_index_is_an_error_and_nothing_is_lost() {
    for (ways, bucket_slots, percent) in [(3, 4, 97), (3, 1, 84), (2, 4, 94)] {
        let cluster =
            TestCluster::new(Plan { ways, bucket_slots, index_slots: 2000, ..Plan::default() });
        let client = cluster.client(0);
        let slots = cluster.map.shape.geometry.index_slots();
        let mut keys = 0u64;
        let error = loop {
            let before = client.counts().moves.get();
            match block_on(client.put(
                &keys.to_le_bytes(),
                &keys.to_le_bytes(),
                PutOptions::default(),
            )) {
                Ok(_) => keys += 1,
                Err(error) => break error,
            }
            let moves = client.counts().moves.get() - before;
            assert!(moves <= MOVE_DEPTH_MAX as u64, "{moves} moves for one key");
        };
        assert!(matches!(error, EngineError::IndexFull { .. }), "{error}");
        println!(
            "{ways} ways of {bucket_slots}: {keys} of {slots}, {} moves",
            client.counts().moves.get()
        );
        assert!(
            client.counts().moves.get() > 0 && keys * 100 > slots * percent,
            "{keys} of {slots}"
        );
        for key in 0..keys {
            assert_eq!(get(&client, &key.to_le_bytes()), Some(key.to_le_bytes().to_vec()));
            put(&client, &key.to_le_bytes(), b"again");
        }
        assert!(delete(&client, &0u64.to_le_bytes()));
        put(&client, &0u64.to_le_bytes(), b"back");
        assert_sound(&client);
    }
}

/// A moved entry is known by its key, which may be long, and may be all that the entry holds.
#[test]
fn a_search_for_room_ends_and_reads_keys_and_no_more() {
    for key_len in [32, 72, 500] {
        let cluster = TestCluster::new(Plan { index_slots: 8000, ..Plan::default() });
        let client = cluster.client(0);
        let entry_len = HEADER_BYTES + key_len;
        let class = cluster.map.classes.of(entry_len);
        assert!(key_len > 32 || class.entry_bytes == entry_len as u64, "the key ends its entry");
        let key = |n: u64| [&n.to_le_bytes()[..], &vec![7; key_len - 8]].concat();
        let mut keys = 0;
        let (refused, cost) = loop {
            let before = client.fabric().counters().snapshot();
            match block_on(client.put(&key(keys), b"", PutOptions::default())) {
                Ok(_) => keys += 1,
                Err(error) => break (error, client.fabric().counters().snapshot() - before),
            }
        };
        assert!(matches!(refused, EngineError::IndexFull { .. }), "{refused}");
        assert!(client.counts().moves.get() > 0);
        // Of each slot that was looked at: its entry's head, in one READ or two, and the buckets.
        let of_a_slot = if key_len > 72 { 2 } else { 1 } + 3;
        let looked_at = cost.reads / of_a_slot;
        println!("{keys} keys of {key_len} bytes, {looked_at} slots, {cost:?}");
        assert!(looked_at <= MOVE_SEARCH_SLOTS_MAX as u64 + 10, "{looked_at} slots");
        let bytes = (entry_len.max(104) + 3 * 32) as u64;
        assert!(cost.bytes <= (looked_at + 10) * bytes, "{cost:?}");
        (0..keys).for_each(|n| assert_eq!(get(&client, &key(n)), Some(Vec::new())));
    }
}

/// Memory that one client filled and deleted serves others, in other sizes.
#[test]
fn memory_goes_from_size_to_size_and_from_client_to_client() {
    let cluster = TestCluster::new(Plan::default());
    let (a, b) = (cluster.client(0), cluster.client(0));
    for (round, len) in [100, 3000, 40_000, 500_000, 100].into_iter().enumerate() {
        let client = if round % 2 == 0 { &a } else { &b };
        let mut keys = 0u32;
        while block_on(client.put(&keys.to_le_bytes(), &vec![9; len], PutOptions::default()))
            .is_ok()
        {
            keys += 1;
            if keys as u64 * len as u64 > 8 << 20 || keys > 8000 {
                break;
            }
        }
        assert!(
            keys as usize * len > 5 << 20 || keys > 8000,
            "round {round}: {keys} values of {len}"
        );
        for key in 0..keys {
            assert_eq!(get(&a, &key.to_le_bytes()).unwrap().len(), len);
            assert!(delete(client, &key.to_le_bytes()));
        }
        assert_sound(&a);
    }
}

/// Short generations start over; entries rest in between, as long as anybody is in an operation.
#[test]
fn an_entry_rests_before_its_generation_starts_over() {
    let cluster =
        TestCluster::new(Plan { table_bytes: 2 << 20, index_slots: 64, ..Plan::default() });
    let bits = cluster.map.shape.bits.gen_bits;
    cluster.set_stamps(bits, 400);
    let (a, b) = (cluster.client(0), cluster.client(0));
    let shown = || {
        let candidates = Candidates::of(&cluster.map, b"k");
        let words = (0..candidates.count()).map(|c| a.fabric().load(candidates.slot(c)).unwrap());
        let word = words.map(Ite).find(|w| cluster.map.codec.is_visible(*w)).unwrap();
        (cluster.map.codec.place(word), cluster.map.codec.generation(word))
    };
    // All memory is leased while stamps, and so the generations of new slabs, are near the end.
    let long = vec![1; 60_000];
    let mut keys = 0u64;
    while block_on(a.put(&keys.to_le_bytes(), &long, PutOptions::default())).is_ok() {
        keys += 1;
    }
    assert!(keys > 10 && delete(&a, &0u64.to_le_bytes()) && delete(&a, &1u64.to_le_bytes()));
    put(&a, b"k", &long);
    // An operation of b is under way: no grace period passes, so no generation starts over.
    let held = b.hold().unwrap();
    let mut last = HashMap::new();
    let refused = (0..100_000).any(|_| match block_on(a.put(b"k", &long, PutOptions::default())) {
        Ok(_) => {
            let (place, generation) = shown();
            let before = last.insert(place, generation);
            assert!(before.is_none_or(|b| b < generation), "it started over beside an operation");
            false
        }
        Err(EngineError::OutOfMemory { .. }) => true,
        Err(error) => panic!("{error}"),
    });
    assert!(refused, "all entries rest");
    drop(held);
    let mut over = 0;
    for _ in 0..1000 {
        put(&a, b"k", &long);
        let (place, generation) = shown();
        over += last.insert(place, generation).is_some_and(|b| b > generation) as u32;
        assert_eq!(get(&b, b"k").as_ref(), Some(&long));
    }
    assert!(over > 0, "now they do start over");
    let report = block_on(a.check()).unwrap();
    assert_eq!(report.broken, Vec::<String>::new());
}

/// A state that a client left half done is put right by the next client, and by scrubbing.
#[test]
fn what_a_dead_client_leaves_is_scrubbed() {
    let cluster = TestCluster::new(Plan::default());
    let (live, dead) = (cluster.client(0), cluster.client(0));
    for i in 0..1000u64 {
        put(&dead, &i.to_le_bytes(), b"installed");
    }
    // Entries that were written and never installed: their owner dies.
    for i in 0..50u64 {
        std::mem::forget(
            block_on(dead.reserve(&i.to_le_bytes(), 9, PutOptions::default())).unwrap(),
        );
    }
    std::mem::forget(dead);
    assert!(
        matches!(block_on(live.scrub(0, 1000)), Err(EngineError::Timeout { .. })),
        "it may yet come back"
    );
    cluster.kill(2);
    let released = block_on(loch_engines::nessie::release_dead(live.fabric(), &cluster.map, 0, 2));
    assert!(released.unwrap() > 0, "its slabs are up for others");
    let scrubbed = block_on(live.scrub(0, 1_000_000)).unwrap();
    assert_eq!((scrubbed.freed, scrubbed.entries), (50, 1050), "{scrubbed:?}");
    for i in 0..1000u64 {
        assert_eq!(get(&live, &i.to_le_bytes()).as_deref(), Some(&b"installed"[..]));
    }
    assert_sound(&live);
}

/// The expected `round_trips_per_*`: the columns of Loch in docs/protocol.md, cold and warm.
#[test]
fn operations_take_the_documented_round_trips() {
    let cost = |client: &Client<ShmEndpoint>, op: &dyn Fn()| {
        let before = client.fabric().counters().snapshot();
        op();
        (client.fabric().counters().snapshot() - before).round_trips
    };
    for warm in [false, true] {
        let options =
            Options { cache: Some(warm), batched_reads: Some(true), ..Options::default() };
        let cluster = TestCluster::new(Plan { options, ..Plan::default() });
        let client = cluster.client(0);
        let region = client.fabric().region(RegionId(0)).unwrap();
        let epoch = region.word(EPOCH_OFFSET);
        epoch.store(10, Ordering::Release);
        // Leases, stamps and the read hint are out of the way.
        put(&client, b"other", b"value");
        get(&client, b"other");
        // A key whose home is free: an insert is a collect, a second look and one CAS.
        assert_eq!(cost(&client, &|| _ = put(&client, b"key", b"value")), 3);
        let by = |cold, hot| if warm { hot } else { cold };
        assert_eq!(cost(&client, &|| _ = get(&client, b"key")), by(2, 1));
        assert_eq!(cost(&client, &|| _ = put(&client, b"key", b"value")), by(3, 1));
        let version = put(&client, b"key", b"value");
        let put_if = || {
            let (expect, options) =
                (Expect::Version(Version::from_u64(version)), PutOptions::default());
            let done = block_on(client.put_if(b"key", b"other", expect, options)).unwrap();
            assert!(matches!(done, Conditional::Done(_)));
        };
        assert_eq!(cost(&client, &put_if), by(3, 1));
        assert_eq!(cost(&client, &|| assert!(get(&client, b"none").is_none())), 2);
        assert_eq!(cost(&client, &|| assert!(delete(&client, b"key"))), by(3, 1));
        assert_eq!(cost(&client, &|| assert!(!delete(&client, b"key"))), 2);
        // Of a long entry only the place is remembered; slot and entry are READ in one doorbell.
        let long = vec![3; 5000];
        put(&client, b"long", &long);
        for _ in 0..3 {
            let trips = cost(&client, &|| assert_eq!(get(&client, b"long").as_ref(), Some(&long)));
            assert!(if warm { trips == 1 } else { trips > 1 }, "{trips}");
            // Every use confirms what is remembered.
            epoch.fetch_add(1, Ordering::AcqRel);
        }
        let other = cluster.client(0);
        assert!(delete(&other, b"long"));
        assert_eq!(get(&client, b"long"), None);
    }
}

/// Where a round trip is cheap, an update READs one bucket after the other until one shows the key,
/// then the entry's head, and changes the slot by one CAS.
#[test]
fn an_update_over_shared_memory_stops_at_the_bucket_that_has_the_key() {
    let plan = Plan { index_slots: 96, table_bytes: 4 << 20, ..Plan::default() };
    let cluster = TestCluster::new(plan);
    let client = cluster.client(0);
    let slots = cluster.map.shape.geometry.index_slots();
    let keys = || (0..slots * 3 / 4).map(u64::to_le_bytes);
    keys().for_each(|key| _ = put(&client, &key, b"value"));
    let mut exact = [0; 3];
    for key in keys() {
        let candidates = Candidates::of(&cluster.map, &key);
        let words = || {
            let all = (0..candidates.count()).map(|slot| candidates.slot(slot));
            all.map(|at| client.fabric().load(at).unwrap()).collect::<Vec<u64>>()
        };
        let words_before = words();
        let before = client.fabric().counters().snapshot();
        put(&client, &key, b"other");
        let trips = (client.fabric().counters().snapshot() - before).round_trips;
        let changed: Vec<usize> =
            (0..candidates.count()).filter(|slot| words()[*slot] != words_before[*slot]).collect();
        let [slot] = changed[..] else { panic!("one slot has changed, not {changed:?}") };
        let at = candidates.slot(slot).offset();
        let way =
            candidates.buckets().iter().position(|b| (b.offset()..b.offset() + 32).contains(&at));
        let way = way.unwrap();
        assert!(trips >= way as u64 + 3);
        exact[way] += u64::from(trips == way as u64 + 3);
    }
    // More are needed where a word of another key with the same filter comes first, and for stamps.
    assert!(exact.iter().all(|keys| *keys > 3), "{exact:?}");
    assert!(exact.iter().sum::<u64>() * 4 > slots * 3 / 4 * 3, "{exact:?}");
}

/// A line carried the epoch of the session's newest lane, not that of the lane that saw the word:
/// it was believed for one grace period longer than memory waits before it is used again.
#[test]
fn a_remembered_word_is_not_believed_for_longer_because_another_lane_is_newer() {
    let options = Options { cache: Some(true), batched_reads: Some(true), ..Options::default() };
    let cluster = TestCluster::new(Plan { options, ..Plan::default() });
    let writer = cluster.client(0);
    put(&writer, b"key", b"value");
    put(&writer, b"other", b"value");
    let client = cluster.client(0);
    let region = client.fabric().region(RegionId(0)).unwrap();
    let next_epoch = || region.word(EPOCH_OFFSET).fetch_add(1, Ordering::AcqRel);
    // A lane sees the word; another one begins an epoch later, before the first has ended.
    let mut first = pin!(client.get(b"key", Buf::new()));
    let mut second = pin!(client.get(b"other", Buf::new()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    next_epoch();
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(block_on(first).unwrap().is_some());
    assert!(block_on(second).unwrap().is_some());
    // Two epochs after the word was seen, and one after the other lane began.
    next_epoch();
    let before = client.fabric().counters().snapshot();
    assert_eq!(get(&client, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!((client.fabric().counters().snapshot() - before).round_trips, 2, "it is looked up");
}

#[test]
fn lanes_and_threads_agree_on_counters() {
    let cluster = TestCluster::new(Plan { nodes: 2, ..Plan::default() });
    const THREADS: u64 = 3;
    const ADDS: u64 = 4000;
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let cluster = &cluster;
            scope.spawn(move || {
                let client = cluster.client((t % 2) as u8);
                let work = (0..ADDS).map(|i| {
                    let client = &client;
                    async move { client.fetch_add(&[(i % 5) as u8], 1).await.unwrap() }
                });
                block_on(loch_fabric::lanes::run(4, work, |_| {}));
                block_on(client.detach()).unwrap();
            });
        }
    });
    let client = cluster.client(0);
    let sum: u64 = (0..5).map(|k| block_on(client.fetch_add(&[k], 0)).unwrap()).sum();
    assert_eq!(sum, THREADS * ADDS);
    assert_sound(&client);
}

/// Threads put, delete and read a few keys in a tiny, crowded table; every value read is whole and
/// was put under that key.
#[test]
fn crowded_threads_read_only_what_was_written() {
    for (ways, bucket_slots) in [(3, 4), (3, 1)] {
        let plan =
            Plan { ways, bucket_slots, index_slots: 64, table_bytes: 4 << 20, ..Plan::default() };
        let cluster = TestCluster::new(plan);
        let value = |key: u8, n: u32| {
            let len = (n % 7) as usize * 300 + 8;
            [&[key; 4][..], &n.to_le_bytes()]
                .concat()
                .into_iter()
                .cycle()
                .take(len)
                .collect::<Vec<u8>>()
        };
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let cluster = &cluster;
                scope.spawn(move || {
                    let client = cluster.client(0);
                    let client = &client;
                    let work = (0..20_000u32).map(|i| async move {
                        let mut rng = ChaCha8Rng::seed_from_u64(t << 32 | i as u64);
                        let key: u8 = rng.random_range(0..200);
                        match rng.random_range(0..10) {
                            0..4 => match client
                                .put(&[key], &value(key, i), PutOptions::default())
                                .await
                            {
                                Ok(_) | Err(EngineError::IndexFull { .. }) => (),
                                Err(error) => panic!("{error}"),
                            },
                            4..7 => drop(client.delete(&[key]).await.unwrap()),
                            _ => {
                                if let Some(v) = client.get(&[key], Buf::new()).await.unwrap() {
                                    let n = u32::from_le_bytes(v[4..8].try_into().unwrap());
                                    assert_eq!(&v[..], value(key, n), "key {key}");
                                }
                            }
                        }
                    });
                    block_on(loch_fabric::lanes::run(4, work, |_| {}));
                });
            }
        });
        assert_sound(&cluster.client(0));
    }
}

/// While others fill the index to the brim, so that entries move all the time, a key that has a
/// value never seems to have none, and never goes back to an older one.
#[test]
fn a_value_is_neither_missed_nor_seen_to_go_back_while_entries_move() {
    for (ways, bucket_slots) in [(3, 1), (2, 2), (3, 4)] {
        let plan =
            Plan { ways, bucket_slots, index_slots: 96, table_bytes: 4 << 20, ..Plan::default() };
        let cluster = TestCluster::new(plan);
        let slots = cluster.map.shape.geometry.index_slots();
        const STEADY: u8 = 16;
        const ROUNDS: u64 = 3000;
        let writer = cluster.client(0);
        for key in 0..STEADY {
            put(&writer, &[key], &0u64.to_le_bytes());
        }
        let done = std::sync::atomic::AtomicBool::new(false);
        let moves = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (done, moves, cluster) = (&done, &moves, &cluster);
            for _ in 0..2 {
                scope.spawn(move || {
                    let client = cluster.client(0);
                    let mut seen = [0u64; STEADY as usize];
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        for key in 0..STEADY {
                            let value =
                                get(&client, &[key]).expect("it has had a value from the start");
                            let now = u64::from_le_bytes(value.try_into().unwrap());
                            assert!(now >= seen[key as usize], "key {key} went back to {now}");
                            seen[key as usize] = now;
                        }
                    }
                });
            }
            scope.spawn(move || {
                let client = cluster.client(0);
                let mut rng = ChaCha8Rng::seed_from_u64(7);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let key = rng.random_range(0..slots).to_be_bytes();
                    match block_on(client.put(&key, b"in the way", PutOptions::default())) {
                        Ok(_) => (),
                        Err(EngineError::IndexFull { .. }) => drop(delete(&client, &key)),
                        Err(error) => panic!("{error}"),
                    }
                    if rng.random_range(0..3) == 0 {
                        delete(&client, &rng.random_range(0..slots).to_be_bytes());
                    }
                }
                moves.store(client.counts().moves.get(), std::sync::atomic::Ordering::Relaxed);
            });
            for round in 1..=ROUNDS {
                for key in 0..STEADY {
                    put(&writer, &[key], &round.to_le_bytes());
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(moves.into_inner() > 10, "entries moved");
        assert_sound(&cluster.client(0));
    }
}
