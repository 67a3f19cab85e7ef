//! The published protocol, repaired, one client at a time: what its operations do and what they
//! cost, with every switch of the ablation, and what is left when a client dies in the middle.

#![allow(clippy::disallowed_methods, reason = "a test may use the threads that engines may not")]

mod cluster;
mod stepped;

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::limits::KEY_BYTES_MAX;
use loch_engines::nessie::geometry::{Options, Protocol};
use loch_engines::nessie::slab::Slab;
use loch_engines::nessie::{Conditional, Expect, PutOptions, published};
use loch_engines::operation::Version;
use loch_engines::region::EPOCH_OFFSET;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, VerbCount};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use stepped::{Run, Stepped};

type Client = published::Client<ShmEndpoint>;

const WITH_PREVIOUS: Protocol = Protocol::Published { previous_versions: true };
const WITHOUT_PREVIOUS: Protocol = Protocol::Published { previous_versions: false };

/// The bytes of a table whose slabs of short entries are one chunk each.
const OF_ONE_CHUNK: u64 = 4 << 20;

fn plan(options: Options) -> Plan {
    Plan { options, protocol: WITH_PREVIOUS, ..Plan::default() }
}

fn client(cluster: &TestCluster) -> Client {
    cluster.published_over(0, |shm| shm)
}

fn put<F: Fabric>(client: &published::Client<F>, key: &[u8], value: &[u8]) -> u64 {
    block_on(client.put(key, value, PutOptions::default())).unwrap().as_u64()
}

fn get<F: Fabric>(client: &published::Client<F>, key: &[u8]) -> Option<Vec<u8>> {
    block_on(client.get(key, Buf::new())).unwrap().map(|found| found.to_vec())
}

fn assert_sound(client: &Client) {
    let report = block_on(client.check()).unwrap();
    assert_eq!(report.broken, Vec::<String>::new());
    assert_eq!((report.tentative, report.moving, report.unshown), (0, 0, 0), "{report:?}");
}

/// Index words come again. The scrubber looks at entries between operations, when its own epoch
/// stands still: it took what a dead PUT had left for the value that it remembered by the same
/// word.
#[test]
fn the_scrubber_believes_no_remembered_entry_between_operations() {
    let cached = Options { cache: Some(true), ..Options::default() };
    let cluster = TestCluster::new(plan(cached));
    let client = client(&cluster);
    put(&client, b"key", b"value");
    // As a PUT that died leaves it: pending.
    let class = client.base().map().classes.of(b"key".len() + b"value".len() + 72);
    let first = client.base().map().slab_addr(Slab { dti: 0, chunk: 0 }).add(class.entry_at(0));
    let region = client.base().fabric().region(first.region()).unwrap();
    let was = region.word(first.offset() + 32).fetch_xor(3, Ordering::AcqRel);
    assert_eq!(was & 3, 2, "it was committed");
    let report = block_on(client.check()).unwrap();
    assert_eq!((report.values, report.tentative), (0, 1), "{report:?}");
    region.word(EPOCH_OFFSET).fetch_add(2, Ordering::AcqRel);
    let scrubbed = block_on(client.scrub(0, 1_000_000)).unwrap();
    assert_eq!((scrubbed.suspects, scrubbed.tentative), (1, 1), "{scrubbed:?}");
    assert_eq!(get(&client, b"key"), None);
    assert_sound(&client);
}

/// Every combination of switches, sizes from nothing to many chunks, against a map.
#[test]
fn a_random_workload_agrees_with_a_map() {
    for bits in 0..64u32 {
        let options = Options {
            filter_bits: bits & 1 != 0,
            cache: Some(bits & 2 != 0),
            multi_read: bits & 4 != 0,
            batched_reads: Some(bits & 8 != 0),
            checksums: bits & 16 != 0,
            evicts: false,
        };
        let (ways, bucket_slots) = [(3, 4), (2, 2), (4, 4), (3, 1)][bits as usize / 16];
        let protocol = if bits & 32 == 0 { WITH_PREVIOUS } else { WITHOUT_PREVIOUS };
        let nodes = 1 + (bits % 3) as u16;
        let cluster =
            TestCluster::new(Plan { ways, bucket_slots, protocol, nodes, ..plan(options) });
        let clients = [client(&cluster), client(&cluster)];
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut random = ChaCha8Rng::seed_from_u64(bits as u64);
        for _ in 0..800 {
            let client = &clients[random.random_range(0..2)];
            let key = match random.random_range(0..120u32) {
                0 => vec![7; 5000],
                n => format!("key {n}").into_bytes(),
            };
            match random.random_range(0..8) {
                0..3 => {
                    let most = [100, 5000, 90_000][random.random_range(0..3)];
                    let value = vec![random.random(); random.random_range(0..most)];
                    put(client, &key, &value);
                    model.insert(key, value);
                }
                3 => {
                    let was = model.remove(&key).is_some();
                    assert_eq!(block_on(client.delete(&key)).unwrap(), was);
                }
                4 => {
                    let there = block_on(client.contains(&key)).unwrap();
                    assert_eq!(there, model.contains_key(&key));
                }
                _ => assert_eq!(get(client, &key), model.get(&key).cloned(), "{options:?}"),
            }
        }
        assert_sound(&clients[0]);
    }
}

#[test]
fn conditions_and_counters_see_the_value_there_is() {
    let cluster = TestCluster::new(plan(Options::default()));
    let client = client(&cluster);
    let plain = PutOptions::default();
    let put_if = |value: &[u8], expect| block_on(client.put_if(b"key", value, expect, plain));
    let Conditional::Done(first) = put_if(b"1", Expect::Absent).unwrap() else { panic!("absent") };
    let refused = Conditional::Refused(Some(first));
    assert_eq!(put_if(b"2", Expect::Absent), Ok(refused));
    assert_eq!(put_if(b"2", Expect::Version(Version::default())), Ok(refused));
    let Ok(Conditional::Done(second)) = put_if(b"2", Expect::Version(first)) else {
        panic!("the version is right")
    };
    let found = block_on(client.get(b"key", Buf::new())).unwrap().unwrap();
    assert_eq!((&found[..], found.version()), (&b"2"[..], second));
    let add = |key: &[u8], n| block_on(client.fetch_add(key, n));
    assert_eq!(add(b"key", 1), Err(EngineError::NotACounter { len: 1 }));
    assert!(block_on(client.delete(b"key")).unwrap());
    assert_eq!(put_if(b"3", Expect::Version(second)), Ok(Conditional::Refused(None)));
    assert_eq!([add(b"n", 5), add(b"n", 6), add(b"n", 0)], [Ok(0), Ok(5), Ok(11)]);
    assert_sound(&client);
}

#[test]
fn what_has_expired_is_gone_for_everybody() {
    let cluster = TestCluster::new(plan(Options::default()));
    let client = client(&cluster);
    let past = PutOptions { expires_at_ms: Some(1) };
    let future = PutOptions { expires_at_ms: Some(client.base().fabric().wall_ms() + 1_000_000) };
    for (options, there) in [(past, false), (future, true)] {
        let put = || block_on(client.put(b"key", b"value", options)).unwrap();
        put();
        assert_eq!(get(&client, b"key").is_some(), there);
        put();
        assert_eq!(block_on(client.contains(b"key")).unwrap(), there);
        put();
        let done = block_on(client.put_if(b"key", b"new", Expect::Absent, options)).unwrap();
        assert_eq!(matches!(done, Conditional::Done(_)), !there);
        assert_eq!(block_on(client.delete(b"key")).unwrap(), there);
    }
    put(&client, b"key", b"for good");
    let found = block_on(client.get(b"key", Buf::new())).unwrap().unwrap();
    assert_eq!(found.expires_at_ms(), None);
    assert_sound(&client);
}

/// The column "repaired" in docs/protocol.md, in round trips; the CAS on the status of an own entry
/// is one too, of the loop-back kind.
#[test]
fn operations_take_the_documented_round_trips() {
    let cost = |client: &Client, op: &dyn Fn()| -> VerbCount {
        let before = client.base().fabric().counters().snapshot();
        op();
        client.base().fabric().counters().snapshot() - before
    };
    for cache in [false, true] {
        let options =
            Options { cache: Some(cache), batched_reads: Some(true), ..Options::default() };
        let (ways, bucket_slots) = (3, 1);
        let cluster = TestCluster::new(Plan { ways, bucket_slots, ..plan(options) });
        let client = client(&cluster);
        // Leases, stamps and the read hint are out of the way.
        put(&client, b"other", b"value");
        get(&client, b"other");
        let counts = |op: &dyn Fn()| {
            let count = cost(&client, op);
            (count.round_trips, count.reads, count.atomics, count.writes)
        };
        // Collect, CAS, reverse pass, commit. Nothing is retired.
        assert_eq!(counts(&|| _ = put(&client, b"key", b"value")), (4, 6, 2, 0));
        // The header of what is replaced has to be read unless it is known.
        let known = cache as u64;
        assert_eq!(counts(&|| _ = get(&client, b"key")), (2 - known, 4 - known, 0, 0));
        let update = (4 - known, 4 - known, 2, 1);
        assert_eq!(counts(&|| _ = put(&client, b"key", b"value")), update);
        assert_eq!(counts(&|| assert!(get(&client, b"none").is_none())), (2, 6, 0, 0));
        let delete = || assert!(block_on(client.delete(b"key")).unwrap());
        assert_eq!(counts(&delete), (3 - known, 4 - known, 1, 1));
        let again = || assert!(!block_on(client.delete(b"key")).unwrap());
        assert_eq!(counts(&again), (2, 6, 0, 0));
    }
}

/// One slot after the other, as published: a GET stops at the first that shows the value.
#[test]
fn a_sequential_get_reads_no_further_than_it_must() {
    let options = Options { cache: Some(false), batched_reads: Some(false), ..Options::default() };
    let cluster = TestCluster::new(Plan { bucket_slots: 1, ..plan(options) });
    let client = client(&cluster);
    put(&client, b"key", b"value");
    get(&client, b"key");
    let before = client.base().fabric().counters().snapshot();
    get(&client, b"key");
    let count = client.base().fabric().counters().snapshot() - before;
    assert_eq!((count.reads, count.atomics), (2, 0), "its first slot, and the entry");
}

/// A client over a fabric that stops before every verb.
fn stepped(cluster: &TestCluster) -> (Rc<Run>, published::Client<Stepped>) {
    let random = ChaCha8Rng::seed_from_u64(5).into();
    let run = Rc::new(Run { steps: Cell::new(0), random });
    let client = cluster.published_over(0, |shm| Stepped::new(shm, run.clone()));
    (run, client)
}

/// A writer dies after each of its steps in turn. The key has its old value or its new one, for
/// readers at once; writers go on; and the scrubber leaves nothing behind.
#[test]
fn a_writer_may_die_anywhere() {
    for protocol in [WITH_PREVIOUS, WITHOUT_PREVIOUS] {
        for (old, deletes) in [(None, false), (Some("old"), false), (Some("old"), true)] {
            for steps in 1.. {
                let plan = Plan { protocol, table_bytes: OF_ONE_CHUNK, ..plan(Options::default()) };
                let cluster = TestCluster::new(plan);
                let survivor = client(&cluster);
                if let Some(old) = old {
                    put(&survivor, b"key", old.as_bytes());
                }
                let (_, dying) = stepped(&cluster);
                // Only a client that is never dropped dies as a process does.
                let dying: &'static published::Client<Stepped> = Box::leak(Box::new(dying));
                let work: std::pin::Pin<Box<dyn Future<Output = ()>>> = if deletes {
                    Box::pin(async { drop(dying.delete(b"key").await) })
                } else {
                    Box::pin(async { drop(dying.put(b"key", b"new", PutOptions::default()).await) })
                };
                let mut work = Box::leak(Box::new(work)).as_mut();
                let mut cx = Context::from_waker(Waker::noop());
                let ended = (0..steps).any(|_| work.as_mut().poll(&mut cx).is_ready());
                if ended {
                    break;
                }
                cluster.kill(dying.base().incarnation());
                let now = get(&survivor, b"key");
                let new = if deletes { None } else { Some(b"new".to_vec()) };
                let was = old.map(|old| old.as_bytes().to_vec());
                assert!(now == was || now == new, "after {steps} steps: {now:?}");
                block_on(survivor.scrub(0, 1_000_000)).unwrap();
                assert_sound(&survivor);
                assert_eq!(get(&survivor, b"key"), now, "after {steps} steps");
                put(&survivor, b"key", b"next");
                assert_eq!(get(&survivor, b"key").as_deref(), Some(&b"next"[..]));
                assert!(block_on(survivor.delete(b"key")).unwrap());
                assert_sound(&survivor);
            }
        }
    }
}

/// An insert that has to move another key dies after each of its steps in turn. No other key is
/// touched, and the next insert succeeds, whether the copy was left pending, committed, or aborted
/// by the scrubber. An aborted one kept every later copy from the same slot to the same slot from
/// being made: each changed the tag of the destination that it expected to be the old one. The
/// interleavings found it (seed 2419).
#[test]
fn a_mover_may_die_anywhere() {
    let made = || {
        let (ways, bucket_slots, tiny_index) = (3, 1, Some(10));
        let table_bytes = OF_ONE_CHUNK;
        let plan = Plan { ways, bucket_slots, tiny_index, table_bytes, ..plan(Options::default()) };
        TestCluster::new(plan)
    };
    // Keys of which the last has to move another one.
    let names = |salt: u32| move |n: u32| format!("key {salt}.{n}").into_bytes();
    let mover = |salt: &u32| {
        let (trial, key) = (made(), names(*salt));
        let client = client(&trial);
        (0..9).find(|n| {
            let _ = block_on(client.put(&key(*n), &key(*n), PutOptions::default()));
            client.base().counts().moves.get() > 0
        })
    };
    let salt = (0..1000).find(|salt| mover(salt).is_some()).expect("some keys meet");
    let (key, mover) = (names(salt), mover(&salt).expect("that is how it was chosen"));
    for scrubs in [true, false] {
        for steps in 1.. {
            let cluster = made();
            let survivor = client(&cluster);
            (0..mover).for_each(|n| _ = put(&survivor, &key(n), &key(n)));
            let (_, dying) = stepped(&cluster);
            // Only a client that is never dropped dies as a process does.
            let dying: &'static published::Client<Stepped> = Box::leak(Box::new(dying));
            let name: &'static [u8] = key(mover).leak();
            let work = dying.put(name, name, PutOptions::default());
            let mut work = Box::leak(Box::new(Box::pin(work))).as_mut();
            let mut cx = Context::from_waker(Waker::noop());
            if (0..steps).any(|_| work.as_mut().poll(&mut cx).is_ready()) {
                assert!(steps > 20, "a move takes more steps than {steps}");
                break;
            }
            cluster.kill(dying.base().incarnation());
            for n in 0..mover {
                assert_eq!(get(&survivor, &key(n)), Some(key(n)), "after {steps} steps");
            }
            if scrubs {
                block_on(survivor.scrub(0, 1_000_000)).unwrap();
                assert_sound(&survivor);
            }
            // The one that has to move another comes first: it finds what was left.
            for n in (0..=mover).rev() {
                put(&survivor, &key(n), &key(n));
            }
            for n in 0..=mover {
                assert_eq!(get(&survivor, &key(n)), Some(key(n)), "after {steps} steps");
            }
            block_on(survivor.scrub(0, 1_000_000)).unwrap();
            assert_sound(&survivor);
        }
    }
}

/// A dead writer's entry, which nobody scrubs: the next writer waits for it, but not for ever.
#[test]
fn patience_ends() {
    for old in [None, Some("old")] {
        let cluster = TestCluster::new(plan(Options::default()));
        let survivor = client(&cluster);
        if let Some(old) = old {
            put(&survivor, b"key", old.as_bytes());
        }
        // The most steps after which it has not taken effect: so it is pending in the index.
        let mut steps = 1;
        loop {
            let trial = TestCluster::new(plan(Options::default()));
            if let Some(old) = old {
                put(&client(&trial), b"key", old.as_bytes());
            }
            let (_, dying) = stepped(&trial);
            let dying: &'static published::Client<Stepped> = Box::leak(Box::new(dying));
            let work = dying.put(b"key", b"new", PutOptions::default());
            let mut work = Box::leak(Box::new(Box::pin(work))).as_mut();
            let mut cx = Context::from_waker(Waker::noop());
            let _ = (0..=steps).any(|_| work.as_mut().poll(&mut cx).is_ready());
            trial.kill(dying.base().incarnation());
            if get(&client(&trial), b"key").as_deref() == Some(b"new") {
                break;
            }
            steps += 1;
        }
        let (_, dying) = stepped(&cluster);
        let dying: &'static published::Client<Stepped> = Box::leak(Box::new(dying));
        let work = Box::leak(Box::new(Box::pin(dying.put(b"key", b"new", PutOptions::default()))));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(!(0..steps).any(|_| work.as_mut().poll(&mut cx).is_ready()));
        cluster.kill(dying.base().incarnation());
        assert_eq!(get(&survivor, b"key").as_deref(), old.map(str::as_bytes));
        put(&survivor, b"key", b"next");
        assert_eq!(survivor.base().counts().helped.get(), 1, "one entry was aborted");
        assert_eq!(get(&survivor, b"key").as_deref(), Some(&b"next"[..]));
    }
}

/// More keys than an index of single slots holds without moving any.
#[test]
fn inserts_make_room() {
    let tiny_index = Some(100);
    let cluster =
        TestCluster::new(Plan { ways: 3, bucket_slots: 1, tiny_index, ..plan(Options::default()) });
    let client = client(&cluster);
    let plain = PutOptions::default();
    let mut there = Vec::new();
    for n in 0..100u32 {
        let key = format!("key {n}").into_bytes();
        match block_on(client.put(&key, &key, plain)) {
            Ok(_) => there.push(key),
            Err(EngineError::IndexFull { slots: 100, .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(there.len() > 80, "three ways hold more than four fifths, not {}", there.len());
    assert!(client.base().counts().moves.get() > 10);
    for key in &there {
        assert_eq!(get(&client, key).as_ref(), Some(key));
    }
    assert_sound(&client);
}

/// Threads put, delete and read a few keys in a tiny, crowded table; every value read is whole and
/// was put under that key.
#[test]
fn crowded_threads_read_only_what_was_written() {
    for protocol in [WITH_PREVIOUS, WITHOUT_PREVIOUS] {
        let (index_slots, table_bytes) = (64, 4 << 20);
        let options = Options::default();
        let cluster =
            TestCluster::new(Plan { index_slots, table_bytes, protocol, ..plan(options) });
        let value = |key: u8, n: u32| {
            let word = [[key; 4], n.to_le_bytes()].concat();
            word.repeat(1 + (n % 7) as usize * 37)
        };
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let cluster = &cluster;
                scope.spawn(move || {
                    let client = client(cluster);
                    let mut random = ChaCha8Rng::seed_from_u64(thread);
                    for n in 0..8000 {
                        let key: u8 = random.random_range(0..40);
                        match random.random_range(0..8) {
                            0..3 => _ = put(&client, &[key], &value(key, n)),
                            3 => _ = block_on(client.delete(&[key])).unwrap(),
                            _ => {
                                let Some(found) = get(&client, &[key]) else { continue };
                                let n = u32::from_le_bytes(found[4..8].try_into().unwrap());
                                assert_eq!(found, value(key, n));
                            }
                        }
                    }
                    block_on(client.base().detach()).unwrap();
                });
            }
        });
        assert_sound(&client(&cluster));
    }
}

/// The scrubber read entries up to where a key of the other protocol can end. A live entry with an
/// expiry and one of the longest keys was taken for one that no key names, and freed.
#[test]
fn a_live_entry_with_the_longest_key_and_an_expiry_is_not_scrubbed() {
    let protocol = Protocol::Published { previous_versions: true };
    let cluster = TestCluster::new(Plan { protocol, ..Plan::default() });
    let client = cluster.published_over(0, |shm| shm);
    let options = PutOptions { expires_at_ms: Some(client.base().fabric().wall_ms() + 3_600_000) };
    for key_len in [KEY_BYTES_MAX - 8, KEY_BYTES_MAX - 7, KEY_BYTES_MAX] {
        let key = vec![7; key_len];
        block_on(client.put(&key, b"acknowledged", options)).unwrap();
        let scrubbed = block_on(client.scrub(0, 1_000_000)).unwrap();
        assert_eq!((scrubbed.suspects, scrubbed.freed), (0, 0), "a key of {key_len} bytes");
        let value = block_on(client.get(&key, Buf::new())).unwrap();
        assert_eq!(value.as_deref(), Some(&b"acknowledged"[..]));
    }
    assert_eq!(block_on(client.check()).unwrap().broken, Vec::<String>::new());
}
