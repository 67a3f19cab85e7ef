//! What operations leave that are dropped in the middle, between machines.

mod ports;

use std::fs::Permissions;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use loch::{ByteSize, Cluster, ConnectOptions, FabricKind, Node, NodeConfig, Table};
use ports::free_address;

/// Two nodes over TCP, and a cluster attached at each.
fn two_nodes() -> ([Node; 2], [Cluster; 2], tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "of all nodes of the test").unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let addresses = [(); 2].map(|()| free_address());
    let nodes = [0, 1].map(|node: usize| {
        let config = NodeConfig {
            name: format!("n{node}"),
            socket: dir.path().join(format!("{node}.sock")),
            region: Some(dir.path().join(format!("{node}.region"))),
            memory: ByteSize::new(8 << 20),
            fabric: FabricKind::Tcp,
            listen: Some(addresses[node].clone()),
            cluster: addresses.iter().map(PathBuf::from).collect(),
            secret: Some(secret.clone()),
            ..NodeConfig::default()
        };
        Node::start(config).unwrap()
    });
    let connect_timeout = Duration::from_secs(30);
    let options = ConnectOptions { connect_timeout, ..ConnectOptions::default() };
    let clusters = [0, 1]
        .map(|node: usize| Cluster::connect_with(nodes[node].socket(), options.clone()).unwrap());
    (nodes, clusters, dir)
}

/// Drops a future after so many polls at most. Returns whether it had not ended.
fn is_dropped(future: impl Future, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    (0..polls).all(|_| future.as_mut().poll(&mut cx).is_pending())
}

/// PUTs of which most are dropped, for new keys and for old ones. Returns how many are.
fn drop_puts(table: &Table, round: u32) -> usize {
    let keys = (0..200u32).map(|key| (round * 50 + key).to_le_bytes());
    let is_dropped = |(number, key): &(usize, [u8; 4])| {
        is_dropped(table.asynch().put(key, &[7; 3000]), 1 + number % 4)
    };
    keys.enumerate().filter(is_dropped).count()
}

/// Looks until no entry is left that no slot shows. Whoever else is idle does something meanwhile.
fn wait_until_all_is_back(admin: &Table, others: Option<&Table>) {
    let until = Instant::now() + Duration::from_secs(60);
    while admin.check().unwrap().unshown > 0 {
        assert!(Instant::now() < until, "entries are left: {:?}", admin.check().unwrap());
        if let Some(table) = others {
            table.contains(b"any").unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Their memory was gone until another client died.
#[test]
fn memory_of_dropped_futures_is_back_while_the_table_is_open_and_when_it_is_closed() {
    let (_nodes, clusters, _dir) = two_nodes();
    let admin = clusters[1].table("default").unwrap();
    let table = clusters[0].table("default").unwrap();
    for round in 0..2 {
        assert!(drop_puts(&table, round) > 50);
        wait_until_all_is_back(&admin, Some(&table));
    }
    drop(table);
    for round in 2..4 {
        let table = clusters[0].table("default").unwrap();
        assert!(drop_puts(&table, round) > 50);
        drop(table);
        wait_until_all_is_back(&admin, None);
    }
    assert!(admin.check().unwrap().broken.is_empty());
}
