//! Nodes of a cluster over TCP that stand still, die and come back, and their clients. Each node is
//! a process.

mod ports;

use std::cell::Cell;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use loch::engines::region::{SESSION_BYTES, SESSIONS_OFFSET};
use loch::{
    ByteSize, Cluster, ConnectOptions, Error, FabricKind, Node, NodeConfig, Table, TableConfig,
    lanes,
};
use loch_fabric::shm::Region;
use ports::free_address;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The variable that tells a node's process its folder, number and engine, and both addresses.
const NODE: &str = "LOCH_TEST_NODE";

/// Not a test: a node, until it is killed or the test ends.
#[test]
#[ignore = "a helper: the other tests of this file run it as a process"]
fn node_process() {
    let told = std::env::var(NODE).expect("only as a helper");
    let told: Vec<&str> = told.split(' ').collect();
    let [dir, node, engine, addresses @ ..] = &told[..] else { panic!("{told:?}") };
    let (dir, node) = (Path::new(dir), node.parse::<usize>().unwrap());
    let engine = engine.parse().unwrap();
    let table = TableConfig { name: "default".into(), engine, ..TableConfig::default() };
    let config = NodeConfig {
        name: format!("n{node}"),
        socket: socket_of(dir, node),
        region: Some(region_of(dir, node)),
        memory: ByteSize::new(16 << 20),
        fabric: FabricKind::Tcp,
        listen: Some(addresses[node].into()),
        cluster: addresses.iter().map(PathBuf::from).collect(),
        secret: Some(dir.join("secret")),
        tables: vec![table],
        ..NodeConfig::default()
    };
    let _node = Node::start(config).unwrap();
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn socket_of(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("{node}.sock"))
}

fn region_of(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("{node}.region"))
}

/// The configuration of two nodes.
struct Pair {
    dir: tempfile::TempDir,
    addresses: [String; 2],
    engine: &'static str,
}

/// A node's process. Dropping it kills it.
struct NodeProcess {
    child: Child,
    /// Kept open, so that the process can write.
    _stdout: BufReader<ChildStdout>,
}

impl Pair {
    fn new(engine: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "the secret of both nodes").unwrap();
        std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        Self { dir, addresses: [free_address(), free_address()], engine }
    }

    fn start(&self, node: usize) -> NodeProcess {
        let dir = self.dir.path().display();
        let told = format!("{dir} {node} {} {}", self.engine, self.addresses.join(" "));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node_process", "--ignored", "--nocapture"])
            .env(NODE, told)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = stdout.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("ready")), "node {node} did not come up");
        NodeProcess { child, _stdout: stdout }
    }

    fn start_both(&self) -> [NodeProcess; 2] {
        [0, 1].map(|node| self.start(node))
    }

    /// Removes the region of a node that has ended.
    fn forget(&self, node: usize) {
        std::fs::remove_file(region_of(self.dir.path(), node)).unwrap();
    }

    fn try_table_at(&self, node: usize) -> Result<Table, Error> {
        Cluster::connect(socket_of(self.dir.path(), node))?.table("default")
    }

    fn table_at(&self, node: usize) -> Table {
        wait_for("the table", || self.try_table_at(node).ok())
    }

    /// Waits until keys are stored that belong to either node.
    fn wait_until_stored(&self) {
        wait_for("all keys to be stored", || {
            let table = self.try_table_at(0).ok()?;
            (0..20u32).all(|key| table.put(&key.to_le_bytes(), b"value").is_ok()).then_some(())
        });
    }

    /// Waits until clients of both nodes are told that this node has come back without its memory.
    fn wait_until_refused(&self, name: &str) {
        let sentence = [name, "without its memory", "\"default\"", "stop all nodes", "fresh"];
        for node in [0, 1] {
            let refusal = wait_for("the refusal", || {
                let refused = match self.try_table_at(node) {
                    Ok(table) => (0..200u32).find_map(|key| table.get(&key.to_le_bytes()).err()),
                    Err(error) => Some(error),
                };
                refused.filter(|error| matches!(error, Error::ClusterMismatch { .. }))
            });
            let text = refusal.to_string();
            assert!(sentence.iter().all(|words| text.contains(words)), "at node {node}: {text}");
        }
    }
}

impl NodeProcess {
    fn send(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("it is one");
        kill_process(pid, signal).expect("it is there");
    }

    /// Has all of its threads stand still.
    fn stop(&self) {
        self.send(Signal::STOP);
        let pid = Pid::from_raw(self.child.id() as i32);
        let (_, status) = waitpid(pid, WaitOptions::UNTRACED).unwrap().expect("it waits");
        assert!(status.stopped(), "{status:?}");
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The sessions of a node that are looked at.
const CLIENTS_MAX: u64 = 8;

const LANES: usize = 16;
const PUTS: u32 = 2000;

/// PUTs from many lanes. In the middle of it node `stops` stands still until an operation has
/// failed.
fn put_while_one_stands_still(table: &Table, stops: &NodeProcess) {
    let (failed, stopped) = (Cell::new(0), Cell::new(false));
    let table = table.asynch();
    let puts = (0..PUTS).map(|number| {
        if number == PUTS / 2 {
            stops.stop();
            stopped.set(true);
        }
        async move { table.put(&(number % 300).to_le_bytes(), &[7; 2000]).await }
    });
    lanes::block_on(lanes::run(LANES, puts, |put| {
        if put.is_err() && stopped.replace(false) {
            stops.send(Signal::CONT);
        }
        failed.set(failed.get() + u32::from(put.is_err()));
    }));
    assert!(failed.get() > 0 && !stopped.get(), "{} failed, before it stood still", failed.get());
}

/// Each connection that broke left an entry for each operation that was under way, until a client
/// died: 67 after a node had stood still four times.
#[test]
fn what_broken_connections_leave_is_scrubbed_while_the_client_lives_and_when_it_has_left() {
    let pair = Pair::new("nessie");
    let [_a, b] = pair.start_both();
    let (table, admin) = (pair.table_at(0), pair.table_at(1));
    let is_clean = || matches!(admin.check(), Ok(report) if report.unshown == 0);
    for _ in 0..2 {
        put_while_one_stands_still(&table, &b);
        wait_for("what the living client left", || {
            // A session that nobody uses may wait for its verbs for ever.
            _ = table.put(b"it goes on", b"");
            is_clean().then_some(())
        });
    }
    put_while_one_stands_still(&table, &b);
    drop(table);
    wait_for("what the client left that has ended", || is_clean().then_some(()));
}

/// Whether a client's session at the node with this region announces an operation.
fn announces(region: &Region) -> bool {
    let word = |offset| {
        let mut word = [0; 8];
        region.copy_out(offset, &mut word);
        u64::from_le_bytes(word)
    };
    let slots = (1..=CLIENTS_MAX).map(|slot| SESSIONS_OFFSET + slot * SESSION_BYTES);
    slots.into_iter().any(|slot| word(slot) != 0 && word(slot + 8) & 1 == 1)
}

/// The client's verbs were lost with their connection, and nobody made it again until the client
/// was used again: its session announced its last operation for ever, and no memory changed hands.
/// Clients of nessie-hybrid were never waited for at all.
#[test]
fn a_client_that_lost_its_connection_in_its_last_operation_comes_to_rest() {
    for engine in ["nessie", "nessie-hybrid"] {
        let pair = Pair::new(engine);
        let [_a, b] = pair.start_both();
        let options = ConnectOptions {
            connect_timeout: Duration::from_secs(60),
            operation_timeout: Duration::from_secs(1),
            ..ConnectOptions::default()
        };
        let cluster = Cluster::connect_with(socket_of(pair.dir.path(), 0), options).unwrap();
        let table = cluster.table("default").unwrap();
        let region = Region::open(&region_of(pair.dir.path(), 0), false).unwrap();
        let keys = || (0..64u32).map(u32::to_le_bytes);
        // The client remembers where values are: the first verb of another PUT changes memory.
        for _ in 0..2 {
            keys().for_each(|key| _ = table.put(&key, &[7; 100]).unwrap());
        }
        assert!(!announces(&region), "{engine}: it is at rest");
        b.stop();
        let lost = keys().find(|key| table.put(key, &[8; 100]).is_err());
        // A PUT of nessie-hybrid announces nothing, and a GET announces until its client's
        // requests have settled.
        _ = table.get(&lost.expect("some keys need the other node"));
        assert!(announces(&region), "{engine}: verbs are under way");
        drop(b);
        let _b = pair.start(1);
        wait_for("the client to come to rest", || (!announces(&region)).then_some(()));
    }
}

/// Words of the other node's index still named entries of the memory that was gone, and the node
/// was let in.
#[test]
fn a_node_without_its_memory_is_refused_where_an_index_names_its_entries() {
    let pair = Pair::new("nessie");
    let [a, b] = pair.start_both();
    let put_all = |table: &Table| {
        (0..200u32).for_each(|key| _ = table.put(&key.to_le_bytes(), &[7; 100]).unwrap());
    };
    put_all(&pair.table_at(1));
    drop(b);
    // With its memory it is welcome.
    let b = pair.start(1);
    wait_for("all values", || {
        let table = pair.try_table_at(0).ok()?;
        let is_there = |key: u32| matches!(table.get(&key.to_le_bytes()), Ok(Some(_)));
        (0..200).all(is_there).then_some(())
    });
    drop(b);
    pair.forget(1);
    let b = pair.start(1);
    pair.wait_until_refused("\"n1\"");
    // As the sentence says.
    drop((a, b));
    [0, 1].iter().for_each(|node| pair.forget(*node));
    let _nodes = pair.start_both();
    put_all(&pair.table_at(0));
}

/// Each node by itself, while the other one still has its old memory.
#[test]
fn nodes_that_are_started_fresh_one_after_the_other_meet_with_their_new_memory() {
    let pair = Pair::new("nessie");
    let [a, b] = pair.start_both();
    pair.table_at(0).put(b"key", b"value").unwrap();
    drop(a);
    pair.forget(0);
    let _a = pair.start(0);
    pair.wait_until_refused("\"n0\"");
    drop(b);
    pair.forget(1);
    let _b = pair.start(1);
    pair.wait_until_stored();
}

#[test]
fn a_region_that_is_deleted_on_another_host_is_told_of() {
    let pair = Pair::new("nessie");
    let [_a, _b] = pair.start_both();
    drop(pair.table_at(0));
    let cluster = Cluster::connect(socket_of(pair.dir.path(), 0)).unwrap();
    let are_deleted =
        || cluster.info().nodes.iter().map(|it| it.region_deleted).collect::<Vec<_>>();
    assert_eq!(are_deleted(), [false, false]);
    pair.forget(1);
    wait_for("the other node to hear of it", || (are_deleted() == [false, true]).then_some(()));
}

/// A key of such a table belongs to one node, with its slots and its entry.
#[test]
fn a_node_without_its_memory_is_let_in_where_only_its_own_index_names_its_entries() {
    let pair = Pair::new("nessie-server");
    let [_a, b] = pair.start_both();
    pair.table_at(0).put(b"key", b"value").unwrap();
    drop(b);
    pair.forget(1);
    let _b = pair.start(1);
    pair.wait_until_stored();
}
