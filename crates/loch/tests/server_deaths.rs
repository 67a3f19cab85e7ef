//! Servers that are killed: real processes, at any moment of their work, under load. Their clients
//! go on, learn of every mutation whether it was done or that nobody knows, and find what their
//! engine promises to keep.

mod host;

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::{Host, eventually};
use loch::engines::engine::LogConfig;
use loch::engines::pilaf;
use loch::lanes::{block_on, run};
use loch::{
    AsyncTable, ByteSize, Cluster, ConnectOptions, Error, ErrorKind, Node, NodeConfig, Table,
    TableConfig,
};
use loch_engines::log::Policy;
use loch_engines::nessie::hash::TableMap;
use loch_fabric::RegionId;
use loch_fabric::shm::Region;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A configuration, in TOML.
const CONFIG: &str = "LOCH_TEST_CONFIG";
/// The log line at which a thread of the process shall panic.
const PANICS_AT: &str = "LOCH_TEST_PANICS_AT";

/// Not a test: what the killed processes run.
#[test]
#[ignore = "a helper: the other tests of this file run it as a process"]
fn server_process() {
    let config = std::env::var(CONFIG).expect("only as a helper");
    if let Ok(message) = std::env::var(PANICS_AT) {
        tracing::subscriber::set_global_default(Trap(message)).unwrap();
    }
    let node = Node::start(NodeConfig::from_toml(&config).unwrap()).unwrap();
    let watch = node.watch();
    println!("ready");
    std::thread::spawn(move || watch.wait().inspect(|error| println!("failed: {error}")));
    // Ends too when the parent does, however it does.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Panics in whichever thread logs a certain message.
struct Trap(String);

impl Subscriber for Trap {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &Field, value: &dyn Debug| {
            let said = format!("{value:?}");
            assert!(said != self.0, "the trap closes on: {said}");
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        unreachable!("spans are not enabled")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Server {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(config: &NodeConfig) -> Self {
        Self::start_with(config, &[])
    }

    fn start_with(config: &NodeConfig, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server_process", "--ignored", "--nocapture"])
            .env(CONFIG, toml::to_string(config).unwrap())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut server = Self { child, said };
        assert!(server.says("ready").is_some(), "the node did not come up");
        server
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for a line with that word; none if the process ends before.
    fn says(&mut self, word: &str) -> Option<String> {
        self.said.by_ref().map_while(Result::ok).find(|line| line.contains(word))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Keys of a client.
const KEYS: usize = 64;
const LANES: usize = 8;

/// The bounds of a key's number: it is one from the first to the second; 0 is no value.
type Known = (u64, u64);

/// A client's keys, which nobody else writes.
struct Ledger {
    client: u8,
    /// Whether values survive the death of their server.
    keeps: bool,
    known: RefCell<Vec<Known>>,
    lost: Cell<u64>,
    ambiguous: Cell<u64>,
}

impl Ledger {
    fn key(&self, key: usize) -> [u8; 2] {
        [self.client, key as u8]
    }

    fn value(&self, key: usize, number: u64) -> Vec<u8> {
        let len = 8 + (number as usize * 37 + key) % 500;
        number.to_le_bytes().into_iter().cycle().take(len).collect()
    }

    /// Judges what a key was found to have.
    fn judge(&self, key: usize, found: Option<&[u8]>) {
        let (least, most) = self.known.borrow()[key];
        let number = match found {
            None => 0,
            Some(value) => {
                let number = u64::from_le_bytes(value[..8].try_into().unwrap());
                assert_eq!(value, self.value(key, number), "a value that nobody wrote");
                number
            }
        };
        let fits = (least..=most).contains(&number);
        assert!(
            fits || !self.keeps && number == 0,
            "key {key} of client {} has number {number}, not {least} to {most}",
            self.client
        );
        self.lost.set(self.lost.get() + u64::from(!fits));
        self.known.borrow_mut()[key] = (number, number);
    }

    async fn put(&self, table: AsyncTable<'_>, key: usize) {
        let (least, most) = self.known.borrow()[key];
        let number = most + 1;
        self.known.borrow_mut()[key] = (least, number);
        match table.put(&self.key(key), &self.value(key, number)).await {
            Ok(_) => self.known.borrow_mut()[key] = (number, number),
            // The next GET tells.
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                self.ambiguous.set(self.ambiguous.get() + 1)
            }
            Err(error) => panic!("PUT: {error}"),
        }
    }

    async fn get(&self, table: AsyncTable<'_>, key: usize) {
        let found = table.get(&self.key(key)).await.unwrap_or_else(|e| panic!("GET: {e}"));
        self.judge(key, found.as_deref());
    }
}

/// One client: puts and gets until it is to stop.
fn work(cluster: &Cluster, client: u8, keeps: bool, stop: &AtomicBool, ops: &AtomicU64) -> Ledger {
    let table = cluster.table("default").unwrap();
    let ledger = Ledger {
        client,
        keeps,
        known: RefCell::new(vec![(0, 0); KEYS]),
        lost: Cell::new(0),
        ambiguous: Cell::new(0),
    };
    let (of, table) = (&ledger, table.asynch());
    let lane = |lane: usize| async move {
        let mut random = SmallRng::seed_from_u64(u64::from(client) << 8 | lane as u64);
        while !stop.load(Ordering::Relaxed) {
            let key = random.random_range(0..KEYS / LANES) * LANES + lane;
            if random.random() {
                of.put(table, key).await;
            } else {
                of.get(table, key).await;
            }
            ops.fetch_add(1, Ordering::Relaxed);
        }
    };
    block_on(run(LANES, (0..LANES).map(lane), |()| ()));
    ledger
}

fn patient(host: &Host) -> Cluster {
    let options = ConnectOptions {
        // Longer than a server is away, so that nothing is given up that may be done later.
        operation_timeout: Duration::from_secs(60),
        ..ConnectOptions::default()
    };
    Cluster::connect_with(host.socket("a"), options).unwrap()
}

/// Kills the server of a table three times while two clients work, and looks at everything.
fn a_server_is_killed(table: TableConfig, keeps: bool) {
    let host = Host::new();
    let engine = table.engine.name();
    let table = match table.engine.log() {
        Some(LogConfig { folder, sync }) => logging(host.dir.path().join(folder), sync),
        None => table,
    };
    let config =
        NodeConfig { memory: ByteSize::new(64 << 20), tables: vec![table], ..host.config("a") };
    let first = Server::start(&config);
    let cluster = patient(&host);
    let (stop, ops) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut random = SmallRng::seed_from_u64(5);
    let (_server, ledgers) = std::thread::scope(|scope| {
        let mut server = first;
        let clients = [0, 1].map(|client| {
            let (cluster, stop, ops) = (&cluster, &stop, &ops);
            scope.spawn(move || work(cluster, client, keeps, stop, ops))
        });
        for _ in 0..3 {
            let until = ops.load(Ordering::Relaxed) + random.random_range(200..2000);
            eventually("the clients go on", || {
                let ended = clients.iter().any(|client| client.is_finished());
                ended || ops.load(Ordering::Relaxed) >= until
            });
            drop(server);
            server = Server::start(&config);
        }
        let until = ops.load(Ordering::Relaxed) + 1000;
        eventually("the clients go on", || {
            let ended = clients.iter().any(|client| client.is_finished());
            ended || ops.load(Ordering::Relaxed) >= until
        });
        stop.store(true, Ordering::Relaxed);
        (server, clients.map(|client| client.join().unwrap()))
    });
    let table = cluster.table("default").unwrap();
    for ledger in &ledgers {
        for key in 0..KEYS {
            ledger.judge(key, table.get(&ledger.key(key)).unwrap().as_deref());
        }
    }
    eventually("what dead workers left is found", || {
        let report = table.check().unwrap();
        assert_eq!(report.broken, Vec::<String>::new());
        report.unshown == 0 && report.tentative == 0 && report.moving == 0
    });
    let [lost, ambiguous] = [|l: &Ledger| l.lost.get(), |l: &Ledger| l.ambiguous.get()]
        .map(|count| ledgers.iter().map(count).sum::<u64>());
    let ops = ops.load(Ordering::Relaxed);
    println!("{engine}: 3 deaths, {ops} operations, {ambiguous} ambiguous, {lost} values lost");
    assert!(keeps || lost > 0, "the values were in the server's own memory");
}

fn table(engine: &str) -> TableConfig {
    TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() }
}

/// A table of pilaf with a log.
fn logging(log: PathBuf, sync: bool) -> TableConfig {
    TableConfig::new("default", pilaf::Options { log: Some(log), sync, ..Default::default() })
}

#[test]
fn nessie_server_keeps_everything() {
    a_server_is_killed(TableConfig { workers: Some(2), ..table("nessie-server") }, true);
}

#[test]
fn nessie_hybrid_keeps_everything() {
    a_server_is_killed(table("nessie-hybrid"), true);
}

#[test]
fn herd_loses_everything_and_goes_on() {
    a_server_is_killed(TableConfig { workers: Some(2), ..table("herd") }, false);
}

#[test]
fn kv_direct_loses_everything_and_goes_on() {
    a_server_is_killed(TableConfig { workers: Some(2), ..table("kv-direct") }, false);
}

#[test]
fn pilaf_with_a_synced_log_keeps_what_was_acknowledged() {
    a_server_is_killed(logging("log".into(), true), true);
}

#[test]
fn pilaf_without_a_log_loses_everything_and_goes_on() {
    a_server_is_killed(table("pilaf"), false);
}

/// Keys of the client of an asynchronous log, and how long their values are.
const LOGGED_KEYS: usize = 24;
const LOGGED_VALUE_BYTES: usize = 1000;

/// A change: of which key, its number, and whether it was acknowledged.
#[derive(Clone, Copy)]
struct Change {
    key: usize,
    number: u64,
    done: bool,
}

fn logged_key(key: usize) -> [u8; 2] {
    [b'l', key as u8]
}

fn logged_value(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(LOGGED_VALUE_BYTES).collect()
}

/// Puts every key for the first time; which node each is on.
fn owners_of(table: &Table) -> Vec<usize> {
    let entries = || table.usage().unwrap().iter().map(|usage| usage.entries).collect::<Vec<_>>();
    let owner = |key| {
        let before = entries();
        table.put(&logged_key(key), &logged_value(0)).unwrap();
        entries().iter().zip(before).position(|(now, before)| *now > before).unwrap()
    };
    (0..LOGGED_KEYS).map(owner).collect()
}

/// Puts one key after the other until it is to stop.
fn change(cluster: &Cluster, first: u64, stop: &AtomicBool, last: &AtomicU64) -> Vec<Change> {
    let table = cluster.table("default").unwrap();
    let mut changes = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let number = first + changes.len() as u64;
        let key = (number * 7) as usize % LOGGED_KEYS;
        let done = match table.put(&logged_key(key), &logged_value(number)) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => false,
            Err(error) => panic!("PUT: {error}"),
        };
        changes.push(Change { key, number, done });
        last.store(number, Ordering::Relaxed);
    }
    changes
}

/// Judges what is left of one node's changes: of its keys all but a suffix of them, which is no
/// longer than what the log gathers. Gives the number of those that were acknowledged and lost.
fn judge_suffix(changes: &[&Change], found: &[u64]) -> usize {
    let last = changes.iter().map(|change| found[change.key]).max().unwrap_or(0);
    let mut expected = [0; LOGGED_KEYS];
    changes.iter().filter(|it| it.number <= last).for_each(|it| expected[it.key] = it.number);
    for change in changes {
        let (found, expected) = (found[change.key], expected[change.key]);
        assert_eq!(found, expected, "key {}: up to change {last} all are there", change.key);
    }
    let lost = changes.iter().filter(|change| change.done && change.number > last).count();
    let most = Policy::default().write_bytes / LOGGED_VALUE_BYTES + 1;
    assert!(lost <= most, "{lost} changes are lost, of {most} at most");
    lost
}

/// Kills both nodes of a cluster while a client puts. What each has lost is the end of its own
/// changes, as far as the log gathers them; and nothing that had time to get there.
#[test]
fn pilaf_with_an_asynchronous_log_loses_little_of_what_was_last() {
    let host = Host::of(&["a", "b"]);
    let log = host.dir.path().join("log");
    let configs = ["a", "b"].map(|name| {
        let table = logging(log.clone(), false);
        NodeConfig { memory: ByteSize::new(64 << 20), tables: vec![table], ..host.config(name) }
    });
    let mut servers = configs.each_ref().map(Server::start);
    let cluster = patient(&host);
    let owners = owners_of(&cluster.table("default").unwrap());
    assert!((0..2).all(|node| owners.contains(&node)), "both nodes have keys");
    let mut random = SmallRng::seed_from_u64(9);
    let (mut kept, mut first, mut lost) = (Vec::<Change>::new(), 1, 0);
    for round in 0..6 {
        let (stop, last) = (AtomicBool::new(false), AtomicU64::new(0));
        let until = first + random.random_range(100..1000);
        let changes = std::thread::scope(|scope| {
            let client = scope.spawn(|| change(&cluster, first, &stop, &last));
            let has_ended = || client.is_finished();
            let is_there = || has_ended() || last.load(Ordering::Relaxed) >= until;
            eventually("the client goes on", is_there);
            stop.store(true, Ordering::Relaxed);
            if round % 2 == 1 {
                // The last record is written though nothing follows it.
                eventually("the client stops", has_ended);
                let last = logged_value(last.load(Ordering::Relaxed));
                eventually("the last change is in a file", || is_in_a_file(&log, &last));
            }
            servers.iter_mut().for_each(Server::kill);
            servers = configs.each_ref().map(Server::start);
            client.join().unwrap()
        });
        first += changes.len() as u64;
        kept.extend(changes);
        let table = cluster.table("default").unwrap();
        let number = |key| {
            let value = table.get(&logged_key(key)).unwrap().expect("it is never deleted");
            let number = u64::from_le_bytes(value[..8].try_into().unwrap());
            assert_eq!(value[..], logged_value(number)[..], "a value that nobody wrote");
            number
        };
        let found: Vec<u64> = (0..LOGGED_KEYS).map(number).collect();
        for node in 0..2 {
            let changes: Vec<_> = kept.iter().filter(|it| owners[it.key] == node).collect();
            let here = judge_suffix(&changes, &found);
            assert!(round % 2 == 0 || here == 0, "it had time to get there");
            lost += here;
        }
        // A lost change has no trace.
        let survives = |change: &Change| {
            let node = owners[change.key];
            let on_it = (0..LOGGED_KEYS).filter(|key| owners[*key] == node);
            on_it.map(|key| found[key]).max().is_some_and(|last| change.number <= last)
        };
        kept.retain(survives);
    }
    println!("pilaf: 6 deaths of 2 nodes, {} changes, {lost} acknowledged ones lost", first - 1);
}

/// Whether a segment of some node's log has these bytes.
fn is_in_a_file(log: &Path, bytes: &[u8]) -> bool {
    let folders = std::fs::read_dir(log).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|path| path.read_dir().unwrap());
    files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .any(|file| file.windows(bytes.len()).any(|window| window == bytes))
}

/// A worker that panics in the middle of a request takes its node with it: so its clients are told,
/// and whoever runs the node, by which worker and why.
#[test]
fn a_worker_that_panics_stops_its_node_and_tells_why() {
    let host = Host::new();
    let config = NodeConfig { tables: vec![table("nessie-server")], ..host.config("a") };
    let trap = [(PANICS_AT, "a request could not be served")];
    let mut server = Server::start_with(&config, &trap);
    let time = Duration::from_secs(2);
    let options = ConnectOptions { operation_timeout: time, ..ConnectOptions::default() };
    let cluster = Cluster::connect_with(host.socket("a"), options).unwrap();
    let table = cluster.table("default").unwrap();
    assert!(!table.contains(b"key").unwrap());
    // Memory that is damaged: there are no numbers left for versions.
    let region = Region::open(&host.region("a"), true).unwrap();
    let stamps = TableMap::stamp_addr(RegionId(0)).offset();
    region.word(stamps).store(u64::MAX / 2, Ordering::Relaxed);
    let error = table.put(b"key", b"value").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    let why = server.says("failed: ").expect("it tells before it ends");
    for word in ["\"default\"", "worker 0", "panicked", "the trap closes"] {
        assert!(why.contains(word), "{word}: {why}");
    }
    let error = table.contains(b"key").unwrap_err();
    assert!(matches!(error, Error::NodeUnreachable { .. }), "{error}");
    let anew = ConnectOptions { connect_timeout: time, ..ConnectOptions::default() };
    let error = Cluster::connect_with(host.socket("a"), anew).err().expect("nobody is there");
    assert!(matches!(error, Error::NodeUnreachable { .. }), "{error}");
}

#[test]
fn a_client_of_a_dead_server_gets_an_error_within_its_time() {
    for engine in ["nessie-server", "nessie-hybrid", "herd", "pilaf", "kv-direct"] {
        let host = Host::new();
        let config = NodeConfig { tables: vec![table(engine)], ..host.config("a") };
        let server = Server::start(&config);
        let time = Duration::from_millis(300);
        let options = ConnectOptions { operation_timeout: time, ..ConnectOptions::default() };
        let cluster = Cluster::connect_with(host.socket("a"), options).unwrap();
        let table = cluster.table("default").unwrap();
        table.put(b"key", b"value").unwrap();
        drop(server);
        let begun = Instant::now();
        let error = table.put(b"key", b"other").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{engine}: {error}");
        match (engine, table.get(b"key")) {
            ("nessie-hybrid" | "pilaf", found) => {
                assert_eq!(&found.unwrap().unwrap()[..], b"value")
            }
            (_, found) => {
                let error = found.unwrap_err();
                assert!(matches!(error, Error::NodeUnreachable { .. }), "{engine}: {error}");
                assert!(error.to_string().contains("loch serve"), "{error}");
            }
        }
        let took = begun.elapsed();
        assert!(took < 3 * time + Duration::from_secs(2), "{engine}: it took {took:?}");
        drop(table);
        // The next one tells all who wait, and is as good as the one before.
        let _server = Server::start(&config);
        let table = cluster.table("default").unwrap();
        table.put(b"key", b"again").unwrap();
    }
}
