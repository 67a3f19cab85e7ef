//! A node's walk removes what has expired, and nothing else, without anybody touching it.

mod cluster;

use cluster::{Plan, TestCluster};
use loch_engines::Kv;
use loch_engines::nessie::geometry::{Options, Protocol};
use loch_engines::nessie::{AnyClient, Conditional, Expired, ExpiryWalk, PutOptions};
use loch_engines::operation::Expect;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, lanes::block_on};

type Client = AnyClient<ShmEndpoint>;

/// Expired before any test began.
const OVER: PutOptions = PutOptions { expires_at_ms: Some(1) };
/// Expires after every test has ended.
const LATER: PutOptions = PutOptions { expires_at_ms: Some(u64::MAX) };
const NEVER: PutOptions = PutOptions { expires_at_ms: None };

fn storing() -> Plan {
    Plan::default()
}

fn evicting() -> Plan {
    let options = Options { evicts: true, ..Options::default() };
    Plan { options, bucket_slots: 3, ..Plan::default() }
}

fn published() -> Plan {
    Plan { protocol: Protocol::Published { previous_versions: true }, ..Plan::default() }
}

fn client(cluster: &TestCluster, node: u8) -> Client {
    match cluster.map.shape.protocol {
        Protocol::Loch => AnyClient::Loch(cluster.client(node)),
        Protocol::Published { .. } => AnyClient::Published(cluster.published_over(node, |shm| shm)),
    }
}

fn key(i: u64) -> Vec<u8> {
    format!("key {i}").into_bytes()
}

fn put(client: &Client, i: u64, len: usize, options: PutOptions) {
    block_on(client.put(&key(i), &vec![i as u8; len], options)).unwrap();
}

/// Walks once from the beginning to the end. Returns the sum of its pieces, and their number.
fn walk(client: &Client) -> (Expired, usize) {
    let (mut walk, mut sum) = (ExpiryWalk::default(), Expired::default());
    for pieces in 1..100_000 {
        let piece = block_on(client.expire_some(&mut walk)).unwrap();
        sum.expiring += piece.expiring;
        sum.removed += piece.removed;
        if piece.is_over {
            assert_eq!(walk, ExpiryWalk::default(), "the next piece begins another walk");
            return (sum, pieces);
        }
    }
    panic!("the walk has no end");
}

fn check(client: &Client) {
    let report = block_on(client.check()).unwrap();
    assert_eq!((report.broken, report.unshown), (Vec::<String>::new(), 0));
}

/// The entries in use, and the values counted as expired and as evicted.
fn usage(client: &Client) -> (u64, u64, u64) {
    let all = block_on(client.usage()).unwrap();
    let counts = || all.iter().filter_map(|of| of.forgotten.as_ref()).flatten();
    let entries = all.iter().map(|of| of.entries).sum();
    (entries, counts().map(|of| of.expired).sum(), counts().map(|of| of.evicted).sum())
}

fn may_expire(client: &Client, dti: u8) -> bool {
    client.fabric().load(client.map().ledger(dti).expiring()).unwrap() != 0
}

#[test]
fn what_has_expired_is_removed_and_counted_and_nothing_else_is() {
    for plan in [storing(), evicting(), published()] {
        let cluster = TestCluster::new(plan);
        let (writer, node) = (client(&cluster, 0), client(&cluster, 0));
        for i in 0..3000 {
            let len = [20, 300, 5000][i as usize % 3];
            put(&writer, i, len, [OVER, LATER, NEVER][i as usize / 3 % 3]);
        }
        // The last value is too long for the entries of a slab.
        put(&writer, 3000, 700_000, OVER);
        assert_eq!(usage(&node), (3001, 0, 0));
        let (expired, _) = walk(&node);
        assert_eq!((expired.removed, expired.expiring), (1003, 2002));
        assert_eq!(usage(&node), (1998, 1003, 0));
        check(&node);
        let (again, _) = walk(&node);
        assert_eq!((again.removed, again.expiring), (0, 999));
        for i in 0..=3000 {
            let is_there = block_on(writer.contains(&key(i))).unwrap();
            assert_eq!(is_there, i < 3000 && i / 3 % 3 != 0, "key {i}");
        }
    }
}

#[test]
fn a_client_uses_the_memory_of_what_the_node_has_removed() {
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 20, ..storing() });
    let (writer, node) = (client(&cluster, 0), client(&cluster, 0));
    let fill = |first: u64, options| {
        let put = |i: &u64| block_on(writer.put(&key(first + i), &[7; 1000], options)).is_ok();
        (0..10_000).take_while(put).count()
    };
    let fits = fill(0, OVER);
    assert!((500..5000).contains(&fits), "{fits}");
    for round in 1..5 {
        assert_eq!(fill(round * 100_000, OVER), 0, "memory is full");
        assert_eq!(walk(&node).0.removed, fits as u64);
        assert_eq!(fill(round * 100_000, OVER), fits);
    }
}

#[test]
fn a_table_knows_whether_a_value_ever_had_an_expiry() {
    let ways: [fn(&Client); 4] = [
        |client| put(client, 1, 100, LATER),
        |client| put(client, 1, 10_000, LATER),
        |client| {
            let done = block_on(client.put_if(&key(1), b"v", Expect::Absent, LATER));
            assert!(matches!(done.unwrap(), Conditional::Done(_)));
        },
        |client| {
            let AnyClient::Loch(own) = client else { return put(client, 1, 9, LATER) };
            let reserved = block_on(own.reserve(&key(1), 9, LATER)).unwrap();
            block_on(reserved.commit()).unwrap();
        },
    ];
    for plan in [storing, evicting, published] {
        for way in ways {
            let cluster = TestCluster::new(Plan { nodes: 2, ..plan() });
            let client = client(&cluster, 1);
            put(&client, 0, 100, NEVER);
            assert!(!may_expire(&client, 0) && !may_expire(&client, 1));
            way(&client);
            assert!(!may_expire(&client, 0) && may_expire(&client, 1), "the entry is on node 1");
        }
    }
}

/// The slots that show a node's entries are on all nodes. Each node removes what is in its memory.
#[test]
fn a_node_removes_what_is_in_its_memory_wherever_the_index_shows_it() {
    for plan in [storing, evicting, published] {
        let cluster = TestCluster::new(Plan { nodes: 3, ..plan() });
        let clients = [0, 1, 2].map(|node| client(&cluster, node));
        for i in 0..900 {
            put(&clients[i as usize % 3], i, 100, OVER);
        }
        for (node, left) in clients.iter().zip([600, 300, 0]) {
            assert_eq!(walk(node).0.removed, 300);
            assert_eq!(usage(node).0, left);
        }
        check(&clients[0]);
    }
}

/// The note of an entry that was replaced may be late, or get lost with its client. Until then the
/// entry looks as if it were in use.
#[test]
fn an_old_entry_that_has_expired_does_not_cost_its_key_a_newer_value() {
    for plan in [storing(), evicting()] {
        let cluster = TestCluster::new(plan);
        let (writer, node) = (client(&cluster, 0), client(&cluster, 0));
        put(&writer, 1, 100, OVER);
        let class = cluster.map.classes.of(32 + 8 + 5 + 100);
        let base = cluster.map.data_base(0).unwrap();
        let chunk = (0..cluster.map.shape.geometry.chunks)
            .find(|chunk| node.fabric().load(cluster.map.chunk_addr(0, *chunk)).unwrap() != 0)
            .unwrap();
        let note = base.add(chunk * (64 << 10) + class.note_at(0));
        put(&writer, 1, 100, NEVER);
        assert_ne!(node.fabric().load(note).unwrap() as u32, 0, "it was noted");
        node.fabric().store(note, &[&[0; 4]]).unwrap();
        let (expired, _) = walk(&node);
        assert_eq!((expired.expiring, expired.removed), (1, 0));
        let found = block_on(writer.get(&key(1), Buf::new())).unwrap();
        assert_eq!(found.map(|value| value.to_vec()), Some(vec![1; 100]));
    }
}

#[test]
fn a_walk_is_made_in_pieces_that_are_bounded() {
    let cluster =
        TestCluster::new(Plan { table_bytes: 32 << 20, index_slots: 1 << 16, ..storing() });
    let (writer, node) = (client(&cluster, 0), client(&cluster, 0));
    (0..50_000).for_each(|i| put(&writer, i, 30, LATER));
    let (expired, pieces) = walk(&node);
    assert_eq!((expired.expiring, expired.removed), (50_000, 0));
    assert!((12..20).contains(&pieces), "{pieces} pieces of 4096 looks");
    (0..10_000).for_each(|i| put(&writer, i, 30, OVER));
    let (expired, pieces) = walk(&node);
    assert_eq!((expired.expiring, expired.removed), (50_000, 10_000));
    assert!((40..60).contains(&pieces), "{pieces} pieces of 256 removals, or of 4096 looks");
    check(&node);
    // Chunks without a slab are looks, too.
    let cluster = TestCluster::new(Plan { table_bytes: 2 << 30, sparse: true, ..storing() });
    let (_, pieces) = walk(&client(&cluster, 0));
    let looks = cluster.map.shape.geometry.chunks as usize;
    assert!(pieces >= looks / 4096 && pieces > 2, "{pieces} pieces of {looks} looks");
}

/// The node sees entries that a client is writing, slabs that are cut, and values that are replaced
/// by others that have not expired.
#[test]
#[allow(clippy::disallowed_methods, reason = "the clients of several processes, and a node")]
fn a_walk_beside_clients_removes_no_value_that_has_not_expired() {
    for plan in [storing, evicting] {
        let cluster = TestCluster::new(Plan { table_bytes: 4 << 20, ..plan() });
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let walker = scope.spawn(|| {
                let node = client(&cluster, 0);
                let mut removed = 0;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    removed += walk(&node).0.removed;
                }
                removed
            });
            let writers = [0, 1].map(|writer| {
                let cluster = &cluster;
                scope.spawn(move || {
                    let client = client(cluster, 0);
                    for round in 0..20_000_u64 {
                        let i = writer * 100 + round % 20;
                        let len = [50, 60, 3000][round as usize % 3];
                        put(&client, i, len, OVER);
                        put(&client, i, len, LATER);
                        assert!(block_on(client.contains(&key(i))).unwrap(), "key {i}");
                        put(&client, i, len, OVER);
                    }
                    block_on(client.detach()).unwrap();
                })
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(walker.join().unwrap() > 0, "the walk has had something to remove");
        });
        let node = client(&cluster, 0);
        walk(&node);
        assert_eq!(usage(&node).0, 0);
        check(&node);
    }
}
