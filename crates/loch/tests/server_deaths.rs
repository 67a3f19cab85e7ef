//! Servers that are killed: real processes, at any moment of their work, under load. Their clients go
//! on, learn of every mutation whether it was done or that nobody knows, and find what their engine
//! promises to keep.

mod host;

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::{Host, eventually};
use loch::lanes::{block_on, run};
use loch::{AsyncTable, ByteSize, Cluster, ConnectOptions, Error, Node, NodeConfig, TableConfig};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A configuration, in TOML.
const CONFIG: &str = "LOCH_TEST_CONFIG";

/// Not a test: what the killed processes run.
#[test]
#[ignore = "a helper: the other tests of this file run it as a process"]
fn server_process() {
    let config = std::env::var(CONFIG).expect("only as a helper");
    let _node = Node::start(NodeConfig::from_toml(&config).unwrap()).unwrap();
    println!("ready");
    // Ends too when the parent does, however it does.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

struct Server {
    child: Child,
}

impl Server {
    fn start(config: &NodeConfig) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server_process", "--ignored", "--nocapture"])
            .env(CONFIG, toml::to_string(config).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let ready = stdout.lines().map_while(Result::ok).any(|l| l.contains("ready"));
        let server = Self { child };
        assert!(ready, "the node did not come up");
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Keys of a client.
const KEYS: usize = 64;
const LANES: usize = 8;

/// What is known of a key's number: it is one from the first to the second; 0 is no value.
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
            Err(Error::Ambiguous { .. }) => self.ambiguous.set(self.ambiguous.get() + 1),
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
    let table = match &table.log {
        Some(log) => TableConfig { log: Some(host.dir.path().join(log)), ..table },
        None => table,
    };
    let engine = table.engine.clone();
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
    TableConfig { engine: engine.into(), ..TableConfig::default() }
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
fn pilaf_with_a_synced_log_keeps_what_was_acknowledged() {
    let log = Some("log".into());
    a_server_is_killed(TableConfig { log, sync: true, ..table("pilaf") }, true);
}

/// Without a log, and with one that is not synced, of which the last records may be lost.
#[test]
fn pilaf_without_a_log_loses_everything_and_goes_on() {
    a_server_is_killed(table("pilaf"), false);
}

#[test]
fn who_waits_for_a_dead_server_is_told_within_the_time_he_gave() {
    for engine in ["nessie-server", "nessie-hybrid", "herd", "pilaf"] {
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
        assert!(matches!(error, Error::Ambiguous { .. }), "{engine}: {error}");
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
