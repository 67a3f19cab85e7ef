//! Values that are read in place: their memory is not used again, whatever happens to their keys.

mod cluster;

use std::cell::Cell;
use std::pin::Pin;

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::limits::PINS_MAX;
use loch_engines::nessie::{Client, Conditional, Expect, Pinned, PutOptions};
use loch_engines::operation::Version;
use loch_fabric::lanes::{self, block_on};
use loch_fabric::limits::LANES_PAUSE_US_MAX;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric};

fn put(client: &Client<ShmEndpoint>, key: &str, value: &[u8]) -> Result<Version, EngineError> {
    block_on(client.put(key.as_bytes(), value, PutOptions::default()))
}

fn pin<'a>(client: &'a Client<ShmEndpoint>, key: &str) -> Pinned<'a, ShmEndpoint> {
    block_on(client.pin(key.as_bytes())).unwrap().expect("the key has a value")
}

fn bytes(pinned: &Pinned<'_, ShmEndpoint>) -> Vec<u8> {
    pinned.fabric().still(pinned.at(), pinned.len()).unwrap().to_vec()
}

/// A small cluster of two nodes, and a client at each that uses freed entries at once.
fn two_nodes() -> (TestCluster, [Client<ShmEndpoint>; 2]) {
    let plan = Plan { nodes: 2, table_bytes: 2 << 20, index_slots: 2048, ..Plan::default() };
    let cluster = TestCluster::new(plan);
    let clients = [0, 1].map(|node| {
        let client = cluster.client(node);
        client.set_quarantine(0);
        client
    });
    (cluster, clients)
}

#[test]
fn a_pinned_value_outlives_its_replacements_and_its_key() {
    let (_cluster, [reader, writer]) = two_nodes();
    for len in [0, 1, 100, 5_000, 60_000] {
        let value = vec![7; len];
        let version = put(&writer, "key", &value).unwrap();
        let pinned = pin(&reader, "key");
        assert_eq!((pinned.version(), pinned.len()), (version, len));
        for n in 0..1000u32 {
            put(&writer, "key", &vec![n as u8; len]).unwrap();
            assert!(bytes(&pinned) == value, "changed by PUT {n} of {len} bytes");
        }
        assert!(block_on(writer.delete(b"key")).unwrap());
        assert!(block_on(reader.pin(b"key")).unwrap().is_none());
        (0..50).for_each(|n| _ = put(&writer, &format!("other {n}"), &vec![9; len]).unwrap());
        assert!(bytes(&pinned) == value, "changed after the DELETE of {len} bytes");
    }
    assert_eq!(block_on(reader.check()).unwrap().broken, Vec::<String>::new());
}

/// Pins of several clients on one entry are as many reasons to keep it.
#[test]
fn an_entry_is_used_again_only_after_its_last_pin() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..Plan::default() });
    let [first, second, writer] = [0, 0, 0].map(|node| cluster.client(node));
    put(&writer, "key", &[1; 3_000]).unwrap();
    let (a, b, c) = (pin(&first, "key"), pin(&second, "key"), pin(&first, "key"));
    let at = a.at();
    // All memory is put to use, with keys as long as the pinned one, and given back.
    let comes_back = || {
        let keys: Vec<_> = (100..999).map(|n| n.to_string()).collect();
        let stored = |key: &&String| put(&writer, key, &[9; 3_000]).is_ok();
        let stored: Vec<_> = keys.iter().take_while(stored).collect();
        assert!(stored.len() < keys.len(), "there was memory left");
        let comes_back = stored.iter().any(|key| pin(&writer, key).at() == at);
        stored.iter().for_each(|key| assert!(block_on(writer.delete(key.as_bytes())).unwrap()));
        comes_back
    };
    assert!(block_on(writer.delete(b"key")).unwrap());
    assert!(!comes_back());
    drop(b);
    drop(a);
    assert!(!comes_back() && bytes(&c) == [1; 3_000]);
    drop(c);
    assert!(comes_back());
}

fn fill(client: &Client<ShmEndpoint>, len: usize) -> usize {
    (0..).take_while(|n| put(client, &format!("{len} {n}"), &vec![9; len]).is_ok()).count()
}

fn delete_all(client: &Client<ShmEndpoint>, len: usize, count: usize) {
    (0..count).for_each(|n| _ = block_on(client.delete(format!("{len} {n}").as_bytes())).unwrap());
}

/// What a pin costs others: its slab keeps its class, and all other memory is theirs.
#[test]
fn a_slab_with_a_pinned_entry_is_not_cut_anew_and_all_others_are() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..Plan::default() });
    let (reader, writer) = (cluster.client(0), cluster.client(0));
    let (long, short) = (60_000, 2_000);
    let longs = fill(&writer, long);
    let pinned = pin(&reader, &format!("{long} 3"));
    delete_all(&writer, long, longs);
    let shorts = fill(&writer, short);
    assert!(shorts * short > (longs - 2) * long * 4 / 5, "{shorts} short values fit");
    assert!(bytes(&pinned) == vec![9; long], "its chunk was cut anew");
    // When the pin has ended, its memory can be had as well.
    drop(pinned);
    assert!(fill(&writer, short + 1) >= 20);
    assert_eq!(block_on(writer.check()).unwrap().broken, Vec::<String>::new());
}

/// A pinned entry that is free is a note that a sweep finds: it must not be taken for memory that
/// can be had, while there is other memory of other classes.
#[test]
fn a_pin_holds_back_its_own_entry_only() {
    for len in [3_000, 300_000] {
        let plan = Plan { table_bytes: 8 << 20, index_slots: 1 << 14, ..Plan::default() };
        let cluster = TestCluster::new(plan);
        let (reader, writer) = (cluster.client(0), cluster.client(0));
        put(&writer, "pinned", &vec![7; len]).unwrap();
        let pinned = pin(&reader, "pinned");
        assert!(block_on(writer.delete(b"pinned")).unwrap());
        let others = fill(&writer, 1_000);
        delete_all(&writer, 1_000, others);
        let stored = fill(&writer, len);
        assert!(stored * len > 8 << 19, "{stored} values of {len} bytes fit");
        assert!(bytes(&pinned) == vec![7; len]);
    }
}

/// The last memory is pinned: that is memory that there is not, and not a race that was lost.
#[test]
fn without_other_memory_a_pin_is_reported_as_lack_of_memory() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..Plan::default() });
    let (reader, writer) = (cluster.client(0), cluster.client(0));
    let count = fill(&writer, 60_000);
    let pinned = pin(&reader, "60000 0");
    assert!(block_on(writer.delete(b"60000 0")).unwrap());
    let refused = put(&writer, "another", &[1; 60_000]);
    assert!(matches!(refused, Err(EngineError::OutOfMemory { .. })), "{refused:?}, {count}");
    drop(pinned);
    put(&writer, "another", &[1; 60_000]).unwrap();
}

/// A client that dies with a pin: its node ends the pin with the session.
#[test]
fn pins_end_with_their_session() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..Plan::default() });
    let (reader, writer) = (cluster.client(0), cluster.client(0));
    fill(&writer, 60_000);
    std::mem::forget(pin(&reader, "60000 0"));
    assert!(block_on(writer.delete(b"60000 0")).unwrap());
    assert!(put(&writer, "another", &[1; 60_000]).is_err());
    cluster.kill(reader.incarnation());
    put(&writer, "another", &[1; 60_000]).unwrap();
}

#[test]
fn a_session_has_so_many_pins_and_no_more() {
    let (_cluster, [reader, writer]) = two_nodes();
    put(&writer, "key", &[1; 100]).unwrap();
    let mut pins: Vec<_> = (0..PINS_MAX).map(|_| pin(&reader, "key")).collect();
    let refused = block_on(reader.pin(b"key")).err();
    assert_eq!(refused, Some(EngineError::TooManyPins { max: PINS_MAX }));
    assert!(block_on(reader.pin(b"absent")).unwrap().is_none(), "an absent key needs no pin");
    drop(pins.swap_remove(5));
    pins.push(pin(&reader, "key"));
    assert!(block_on(reader.pin(b"key")).is_err());
}

/// The other operations do not care whether an entry was pinned.
#[test]
fn an_entry_that_was_pinned_is_read_replaced_and_scrubbed_like_any_other() {
    let (_cluster, [reader, writer]) = two_nodes();
    for n in 0..3u8 {
        let first = put(&writer, "key", &[n; 100]).unwrap();
        let pinned = pin(&reader, "key");
        let found = block_on(writer.get(b"key", Buf::new())).unwrap().unwrap();
        assert_eq!((&found[..], found.version()), (&[n; 100][..], first));
        let mut seen = 0;
        block_on(writer.get_many(&["key"], |_, found| {
            seen += usize::from(found.is_some_and(|found| *found == [n; 100]));
        }))
        .unwrap();
        assert_eq!(seen, 1);
        let (value, expect) = ([n; 50], Expect::Version(first));
        let put = block_on(writer.put_if(b"key", &value, expect, PutOptions::default()));
        assert!(matches!(put, Ok(Conditional::Done(_))), "{put:?}");
        assert_eq!(block_on(writer.scrub(1, 1_000_000)).unwrap().freed, 0);
        assert_eq!(block_on(writer.check()).unwrap().broken, Vec::<String>::new());
        assert_eq!(bytes(&pinned), [n; 100]);
    }
}

#[test]
fn an_expired_value_is_not_pinned_and_a_pinned_one_outlives_its_expiry() {
    let (_cluster, [reader, writer]) = two_nodes();
    let now = reader.fabric().wall_ms();
    let put = |expires_at_ms| {
        let options = PutOptions { expires_at_ms: Some(expires_at_ms) };
        block_on(writer.put(b"key", &[1; 100], options)).unwrap();
    };
    put(now - 1);
    assert!(block_on(reader.pin(b"key")).unwrap().is_none());
    put(now + 30);
    let pinned = pin(&reader, "key");
    assert_eq!(pinned.expires_at_ms(), Some(now + 30));
    while reader.fabric().wall_ms() < now + 31 {
        block_on(reader.fabric().pause(1000));
    }
    assert!(block_on(reader.get(b"key", Buf::new())).unwrap().is_none());
    assert_eq!(bytes(&pinned), [1; 100]);
}

/// A PUT of a long value, which waits for a pin.
async fn put_long(client: &Client<ShmEndpoint>, key: &str) -> Result<Version, EngineError> {
    client.put(key.as_bytes(), &[1; 60_000], PutOptions::default()).await
}

/// To look for other memory means to close slabs, in which others then find nothing.
#[test]
fn a_lane_that_waits_for_a_pin_leaves_the_others_their_memory() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..Plan::default() });
    let (reader, writer) = (cluster.client(0), cluster.client(0));
    writer.set_quarantine(0);
    // A slab of short values, most of which are free.
    (0..31).for_each(|n| _ = put(&writer, &format!("short {n}"), &[1; 1_000]).unwrap());
    fill(&writer, 60_000);
    (0..30)
        .for_each(|n| assert!(block_on(writer.delete(format!("short {n}").as_bytes())).unwrap()));
    let _pinned = pin(&reader, "60000 0");
    assert!(block_on(writer.delete(b"60000 0")).unwrap());
    let (writer, is_over) = (&writer, Cell::new(false));
    let long = async {
        let refused = put_long(writer, "long").await;
        assert!(matches!(refused, Err(EngineError::OutOfMemory { .. })), "{refused:?}");
        is_over.set(true);
    };
    let short = async {
        while !is_over.get() {
            writer.put(b"short 30", &[2; 1_000], PutOptions::default()).await.unwrap();
        }
    };
    let lanes: [Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(long), Box::pin(short)];
    block_on(lanes::run(2, lanes, |()| ()));
}

#[test]
fn lanes_that_wait_for_pins_go_on_when_these_end() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..Plan::default() });
    let (reader, writer) = (cluster.client(0), cluster.client(0));
    fill(&writer, 60_000);
    let pins = [pin(&reader, "60000 0"), pin(&reader, "60000 1")];
    (0..2).for_each(|n| assert!(block_on(writer.delete(format!("60000 {n}").as_bytes())).unwrap()));
    let writer = &writer;
    let put = |key| async move { _ = put_long(writer, key).await.unwrap() };
    let end = async {
        // During a longer pause the thread sleeps, and the writers do not go on.
        for _ in 0..100 {
            writer.fabric().pause(LANES_PAUSE_US_MAX).await;
        }
        drop(pins);
    };
    let lanes: [Pin<Box<dyn Future<Output = ()>>>; 3] =
        [Box::pin(put("a")), Box::pin(put("b")), Box::pin(end)];
    block_on(lanes::run(3, lanes, |()| ()));
}

#[test]
fn clients_that_wait_for_one_pin_are_told_that_there_is_no_memory() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..Plan::default() });
    let (reader, writers) = (cluster.client(0), [cluster.client(0), cluster.client(0)]);
    fill(&writers[0], 60_000);
    let _pinned = pin(&reader, "60000 0");
    assert!(block_on(writers[0].delete(b"60000 0")).unwrap());
    let puts = writers.each_ref().map(|writer| put_long(writer, "key"));
    block_on(lanes::run(2, puts, |refused| {
        assert!(matches!(refused, Err(EngineError::OutOfMemory { .. })), "{refused:?}");
    }));
}
