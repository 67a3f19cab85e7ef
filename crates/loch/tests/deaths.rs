//! Clients that are killed: real processes, at any moment of their work.

mod host;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use host::{Host, eventually};
use loch::engines::nessie;
use loch::{ByteSize, Cluster, Node, NodeConfig, TableConfig, TableProtocol, lanes};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const SOCKET: &str = "LOCH_TEST_SOCKET";

/// Not a test: what the killed processes run.
#[test]
#[ignore = "a helper: the other tests of this file run it as a process"]
fn client_process() {
    let socket = std::env::var_os(SOCKET).expect("only as a helper");
    let cluster = Cluster::connect(socket).unwrap();
    let table = cluster.table("default").unwrap();
    let mut rng = SmallRng::seed_from_u64(std::process::id() as u64);
    println!("ready");
    loop {
        let work: Vec<(u16, usize, u8)> = (0..1000)
            .map(|_| (rng.random_range(0..300), rng.random_range(8..3000), rng.random()))
            .collect();
        let table = table.asynch();
        let work = work.iter().map(|(key, len, what)| async move {
            let key = key.to_le_bytes();
            match what % 8 {
                0 => drop(table.delete(&key).await.unwrap()),
                1 => {
                    let mut value = table.reserve(&key, *len).await.unwrap();
                    value.write_at(0, &vec![key[0]; *len]).unwrap();
                    value.commit_async().await.unwrap();
                }
                _ => drop(table.put(&key, &vec![key[0]; *len]).await.unwrap()),
            }
        });
        lanes::block_on(lanes::run(8, work, |()| ()));
    }
}

const PROTOCOLS: [TableProtocol; 2] = [TableProtocol::Loch, TableProtocol::Published];

/// A node with room for slabs of all sizes for every client.
fn start(host: &Host, name: &str, protocol: TableProtocol) -> Node {
    let options = nessie::options::Options { protocol, ..Default::default() };
    let tables = vec![TableConfig::new("default", options)];
    let config = NodeConfig { memory: ByteSize::new(128 << 20), tables, ..host.config(name) };
    Node::start(config).unwrap()
}

fn spawn(host: &Host, name: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_process", "--ignored", "--nocapture"])
        .env(SOCKET, host.socket(name))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let ready = stdout.lines().map_while(Result::ok).any(|l| l.contains("ready"));
    assert!(ready, "the client did not come up");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Every value is whole, nothing is broken, and what was leaked is found.
fn assert_recovers(host: &Host, name: &str) {
    let cluster = host.connect(name);
    eventually("their sessions end", || cluster.info().nodes.iter().all(|n| n.sessions_taken == 0));
    let table = cluster.table("default").unwrap();
    eventually("their slabs are released", || {
        table.usage().unwrap().iter().all(|u| u.leased_slabs == 0)
    });
    eventually("their entries are scrubbed", || {
        let report = table.check().unwrap();
        assert_eq!(report.broken, Vec::<String>::new());
        report.unshown == 0 && report.tentative == 0 && report.moving == 0
    });
    for key in 0..300u16 {
        let key = key.to_le_bytes();
        if let Some(value) = table.get(&key).unwrap() {
            assert!(value.iter().all(|b| *b == key[0]), "a torn value");
        }
        table.put(&key, &key[..1]).unwrap();
    }
}

#[test]
fn clients_are_killed_and_nothing_is_left_of_them() {
    for protocol in PROTOCOLS {
        let host = Host::of(&["a", "b"]);
        let _nodes = ["a", "b"].map(|name| start(&host, name, protocol));
        let mut rng = SmallRng::seed_from_u64(3);
        for _ in 0..3 {
            let clients = ["a", "b", "a"].map(|home| spawn(&host, home));
            // Somewhere in the middle of something.
            let busy = std::time::Duration::from_micros(rng.random_range(0..20_000));
            std::thread::sleep(busy);
            clients.into_iter().for_each(kill);
        }
        assert_recovers(&host, "a");
        assert_recovers(&host, "b");
    }
}

#[test]
fn clients_that_die_while_their_node_is_away_are_found_by_the_next() {
    for protocol in PROTOCOLS {
        let host = Host::new();
        let node = start(&host, "a", protocol);
        let (dies, lives) = (spawn(&host, "a"), spawn(&host, "a"));
        node.stop();
        kill(dies);
        let _node = start(&host, "a", protocol);
        let cluster = host.connect("a");
        eventually("one of two is kept", || cluster.info().nodes[0].sessions_taken == 1);
        // It is watched, though it is not connected.
        kill(lives);
        assert_recovers(&host, "a");
    }
}
