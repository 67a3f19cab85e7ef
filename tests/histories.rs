//! The answers to real processes are linearizable, while clients are killed or stand still for
//! longer than any operation may take, and nodes are killed and come back.
//!
//! A run is a number of rounds on one cluster. In each, clients contend for a few keys of the round
//! and record what they ask and are answered, with the host's monotonic clock; at its end all
//! records are put together and checked, and the table is.
//!
//! `LOCH_LONG=1` goes on for three minutes. `LOCH_SEED=n` repeats the random choices of a run,
//! though not what the processors make of them.

mod recorded;
mod support;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use loch_history::{History, Operation, Outcome, check};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use recorded::{Done, HOT_KEYS, OPERATION_TIMEOUT, Recorded, Task, name_of, now};
use rustix::process::Signal;
use support::{Node, is_long, private_dir, socket_of, wait_for};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The tables, which take turns: the usual shape, one in which entries have to move most, that with
/// all that is else for slow networks, and one that evicts. Their indexes are tiny, and memory is
/// scarce.
const CONFIG: &str = r#"
memory = "16MiB"

[[table]]
name = "usual"
index_slots = 32
value_max = "64KiB"

[[table]]
name = "pairs"
index_slots = 32
value_max = "64KiB"
ways = 2
bucket_slots = 2

[[table]]
name = "cached"
index_slots = 32
value_max = "64KiB"
bucket_slots = 1
cache = true
batched_reads = true
checksums = true

[[table]]
name = "evicting"
index_slots = 32
value_max = "64KiB"
eviction = "sieve"
"#;
const TABLES: [&str; 4] = ["usual", "pairs", "cached", EVICTING];
const EVICTING: &str = "evicting";

/// Of the slots of an index so many have a key of the crowd, if all of them are there.
const CROWDED: f64 = 0.9;

/// The lanes of the clients that run at a time; with one, it is a client that waits for each
/// answer.
const LANES: [usize; 6] = [1, 1, 1, 2, 4, 8];

/// How long the clients of a round work.
const ROUND: Duration = Duration::from_millis(2000);

/// How long a client stands still: longer than an operation may take, and than anybody waits.
const STOP: Duration = Duration::from_millis(2 * OPERATION_TIMEOUT.as_millis() as u64 + 100);

/// How long a node is away, at least.
const NODE_DOWN: Duration = Duration::from_millis(100);

/// Configurations that the checker may look at for each key.
const BUDGET: u64 = 5_000_000;

/// Memory of dead clients is free by then.
const LEAKS_RETURN_MAX: Duration = Duration::from_secs(20);

/// Not a test of its own: the process of a client.
#[test]
#[ignore = "started by the other test"]
fn client_process() {
    recorded::work_if_told();
}

/// Counts of a run's events.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    operations: usize,
    /// On a key on which another client's operation was under way.
    overlapping: usize,
    unknown: usize,
    without_effect: usize,
    kills: usize,
    /// Of clients that had an operation under way.
    kills_in_operation: usize,
    stops: usize,
    stops_in_operation: usize,
    nodes_killed: usize,
    keys: usize,
}

struct Cluster {
    dir: tempfile::TempDir,
    /// Of what the clients record: larger than shared memory may be.
    records: tempfile::TempDir,
    nodes: Vec<Node>,
}

impl Cluster {
    fn start() -> Self {
        let records = tempfile::tempdir().expect("a directory");
        let mut cluster = Self { dir: private_dir(), records, nodes: Vec::new() };
        std::fs::write(cluster.config(), CONFIG).expect("a file");
        cluster.nodes = (0..NAMES.len()).map(|node| cluster.start_node(node)).collect();
        cluster
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("loch.toml")
    }

    fn start_node(&self, node: usize) -> Node {
        let sockets = NAMES.map(|name| socket_of(self.dir.path(), name));
        let sockets = sockets.each_ref().map(|socket| socket.to_str().expect("text")).join(",");
        let config = self.config();
        let config = config.to_str().expect("text");
        Node::start(self.dir.path(), NAMES[node], &["--config", config, "--cluster", &sockets])
    }

    fn attach(&self) -> loch::Cluster {
        loch::Cluster::connect(&self.nodes[0].socket).expect("the nodes are up")
    }

    /// How many keys fill the index of a table.
    fn crowd(&self, table: &str) -> usize {
        let info = self.attach().info();
        let info = info.tables.iter().find(|info| info.name == table).expect("it was declared");
        (info.index_slots as f64 * CROWDED) as usize
    }

    /// Makes room for the next round's keys.
    fn delete_keys_of(&self, table: &str, round: u64) {
        let keys = HOT_KEYS + self.crowd(table);
        let table = self.attach().table(table).expect("the nodes are up");
        for key in 0..keys {
            table.delete(&name_of(round, key)).expect("nobody else wants it any more");
        }
    }

    /// After all clients have ended.
    fn check_afterwards(&mut self) {
        let ended = Instant::now();
        wait_for("what the dead left to be freed", || self.nodes[0].is_clean().then_some(()));
        assert!(ended.elapsed() <= LEAKS_RETURN_MAX, "it took {:?}", ended.elapsed());
        self.nodes[0].assert_no_sessions();
        for node in &mut self.nodes {
            assert_eq!(node.process.try_ended(), None, "{}", node.log());
        }
    }
}

/// A round under way.
struct Round<'a> {
    cluster: &'a mut Cluster,
    table: &'static str,
    crowd: usize,
    tally: &'a mut Tally,
    random: &'a mut ChaCha8Rng,
    clients: Vec<Recorded>,
    /// Which of them stand still, and since when.
    still: HashMap<u32, Instant>,
    /// When each client was stopped, by its number.
    stopped_at: Vec<(u32, u64)>,
    down: Option<(usize, Instant)>,
    history: Vec<Operation>,
    next_client: u32,
}

impl Round<'_> {
    /// The operations of its clients, and the number of the next client.
    fn run(mut self) -> (Vec<Operation>, u32) {
        self.clients = (0..LANES.len()).map(|place| self.start_client(place)).collect();
        self.clients.iter_mut().for_each(|client| client.wait_for_operations(100));
        let (begun, mut faults) = (Instant::now(), 0);
        while begun.elapsed() < ROUND {
            let pause = Duration::from_millis(self.random.random_range(10..160));
            let since = Instant::now();
            wait_for("the next fault", || (since.elapsed() >= pause).then_some(()));
            self.end_faults();
            self.clients.iter_mut().for_each(Recorded::assert_alive);
            // Every round has one of each.
            let fault = if faults < 3 { faults } else { self.random.random_range(0..20) };
            match fault {
                0 | 3..6 => self.stop_client(),
                1 | 6..9 => self.kill_node(),
                _ => self.kill_client(),
            }
            faults += 1;
        }
        wait_for("the last faults to end", || {
            self.end_faults();
            (self.still.is_empty() && self.down.is_none()).then_some(())
        });
        let clients = std::mem::take(&mut self.clients);
        clients.into_iter().for_each(|client| self.collect(client.stop()));
        self.count_stops();
        (self.history, self.next_client)
    }

    fn start_client(&mut self, place: usize) -> Recorded {
        let client = self.next_client;
        self.next_client += 1;
        let task = Task {
            dir: self.cluster.records.path().into(),
            socket: self.cluster.nodes[place % NAMES.len()].socket.clone(),
            client,
            table: self.table.into(),
            crowd: self.crowd,
            value_max: usize::MAX,
            round: self.tally.rounds,
            lanes: LANES[place],
            over_network: false,
            seed: self.random.random(),
        };
        Recorded::start(task, "client_process")
    }

    /// Any client, also one that stands still; another one takes its place.
    fn kill_client(&mut self) {
        let place = self.random.random_range(0..self.clients.len());
        let fresh = self.start_client(place);
        let victim = std::mem::replace(&mut self.clients[place], fresh);
        self.still.remove(&victim.task.client);
        let done = victim.kill();
        self.tally.kills += 1;
        self.tally.kills_in_operation += (done.cut_off > 0) as usize;
        self.collect(done);
    }

    /// Two at most, so that others go on meanwhile.
    fn stop_client(&mut self) {
        let place = self.random.random_range(0..self.clients.len());
        let client = &mut self.clients[place];
        if self.still.len() < 2 && !self.still.contains_key(&client.task.client) {
            client.process.signal(Signal::STOP);
            self.still.insert(client.task.client, Instant::now());
            self.stopped_at.push((client.task.client, now()));
            self.tally.stops += 1;
        }
    }

    fn kill_node(&mut self) {
        if self.down.is_none() {
            let node = self.random.random_range(0..NAMES.len());
            self.cluster.nodes[node].process.kill();
            self.down = Some((node, Instant::now()));
            self.tally.nodes_killed += 1;
        }
    }

    /// Lets those go on that stood still for long enough, and the node.
    fn end_faults(&mut self) {
        for client in &mut self.clients {
            let since = self.still.get(&client.task.client);
            if since.is_some_and(|since| since.elapsed() >= STOP) {
                self.still.remove(&client.task.client);
                client.process.signal(Signal::CONT);
            }
        }
        if let Some((node, since)) = self.down
            && since.elapsed() >= NODE_DOWN
        {
            self.cluster.nodes[node] = self.cluster.start_node(node);
            let ready = &self.cluster.nodes[node].ready;
            assert!(ready.contains("taken over"), "{ready}");
            self.down = None;
        }
    }

    fn collect(&mut self, done: Done) {
        self.history.extend(done.operations);
    }

    fn count_stops(&mut self) {
        for (client, moment) in &self.stopped_at {
            let is_hit =
                |o: &Operation| o.client == *client && o.called < *moment && *moment < end_of(o);
            self.tally.stops_in_operation += self.history.iter().any(is_hit) as usize;
        }
    }
}

fn end_of(operation: &Operation) -> u64 {
    match operation.outcome {
        Outcome::Known(_) => operation.returned,
        Outcome::Unknown => u64::MAX,
        Outcome::UnknownUntil(moment) => moment,
    }
}

/// Operations during which one of another client was under way on the same key.
fn overlapping(history: &History) -> usize {
    let mut count = 0;
    for (_, operations) in history.by_key() {
        let mut latest: Option<&Operation> = None;
        for operation in &operations {
            let overlaps =
                |o: &Operation| o.client != operation.client && operation.called <= end_of(o);
            count += latest.is_some_and(overlaps) as usize;
            if latest.is_none_or(|o| end_of(o) < end_of(operation)) {
                latest = Some(operation);
            }
        }
    }
    count
}

impl Tally {
    fn count(&mut self, history: &History) {
        let has = |outcome: fn(&Outcome) -> bool| {
            history.operations().iter().filter(|o| outcome(&o.outcome)).count()
        };
        self.operations += history.len();
        self.overlapping += overlapping(history);
        self.unknown += has(|outcome| !matches!(outcome, Outcome::Known(_)));
        let nothing = loch_history::Answer::NoEffect;
        self.without_effect +=
            history.operations().iter().filter(|o| o.outcome == Outcome::Known(nothing)).count();
        self.keys += history.by_key().len();
    }

    /// A run in which nothing happened proves nothing.
    fn assert_eventful(&self) {
        let rounds = self.rounds as usize;
        assert!(self.operations >= 20_000 * rounds, "{self}");
        assert!(self.overlapping >= 500 * rounds, "{self}");
        assert!(self.kills >= 2 * rounds, "{self}");
        assert!(self.kills_in_operation >= rounds, "{self}");
        assert!(self.stops >= rounds && self.stops_in_operation >= 1, "{self}");
        assert!(self.nodes_killed >= rounds, "{self}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds, {} operations ({} overlapping, {} of unknown outcome, {} refused), \
             {} clients killed ({} in an operation), {} stopped ({} in an operation), \
             {} nodes killed, {} keys",
            self.rounds,
            self.operations,
            self.overlapping,
            self.unknown,
            self.without_effect,
            self.kills,
            self.kills_in_operation,
            self.stops,
            self.stops_in_operation,
            self.nodes_killed,
            self.keys
        )
    }
}

fn seed() -> u64 {
    let given = std::env::var("LOCH_SEED").ok();
    given.map_or_else(|| now() % 1_000_000, |seed| seed.parse().expect("a seed is a number"))
}

#[test]
fn what_real_processes_are_answered_is_linearizable() {
    let duration = Duration::from_secs(if is_long() { 170 } else { 8 });
    let (seed, begun) = (seed(), Instant::now());
    let repeat = format!("LOCH_SEED={seed} cargo test -p loch-cli --test histories -- --nocapture");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut cluster = Cluster::start();
    let (mut tally, mut next_client) = (Tally::default(), 0);
    let mut checking = Duration::ZERO;
    while begun.elapsed() < duration || (tally.rounds as usize) < TABLES.len() {
        let table = TABLES[tally.rounds as usize % TABLES.len()];
        tally.rounds += 1;
        let round = Round {
            crowd: cluster.crowd(table),
            cluster: &mut cluster,
            table,
            tally: &mut tally,
            random: &mut random,
            clients: Vec::new(),
            still: HashMap::new(),
            stopped_at: Vec::new(),
            down: None,
            history: Vec::new(),
            next_client,
        };
        let (operations, next) = round.run();
        next_client = next;
        cluster.nodes[0].checked_tables();
        cluster.delete_keys_of(table, tally.rounds);
        let mut history = History::from(operations);
        tally.count(&history);
        if table == EVICTING {
            history = history.forgetting();
        }
        let checked = Instant::now();
        let verdict = check(&history, BUDGET);
        checking += checked.elapsed();
        assert!(verdict.is_linearizable(), "{tally}\ntable {table}, {verdict}\nrepeat: {repeat}");
    }
    cluster.check_afterwards();
    println!("{tally}: linearizable (checked in {checking:.1?}), seed {seed}");
    tally.assert_eventful();
    cluster.nodes.into_iter().map(|node| node.stop(Signal::TERM)).for_each(|status| {
        assert_eq!(status.code(), Some(0));
    });
    let dir = cluster.dir.path().to_owned();
    cluster.dir.close().expect("nobody uses it");
    assert!(!dir.exists());
}
