//! Clients of a table that evicts fill it at once, with values of many sizes, and are killed in the
//! middle of that. The others never see an error, no key has a value that is not its last one, and
//! no memory is lost.
//!
//! `LOCH_LONG=1` goes on for ten minutes instead of eight seconds.

mod support;

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use loch::{Cluster, Table};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{Node, Process, is_long, private_dir, socket_of, wait_for};

const NAMES: [&str; 2] = ["a", "b"];
/// Processes that fill the table at once.
const FILLERS: usize = 8;
/// Keys of each. Their values would take many times the memory there is.
const KEYS: u64 = 4000;
/// One of the processes is killed that often, on the average.
const APART_MS: u64 = 250;
/// The lengths of values: while one is put most, others are put too.
const LENGTHS: [usize; 6] = [40, 300, 1000, 4000, 20_000, 100_000];
/// How much of the data tables values of one length fill afterwards. The rest is what their size
/// class wastes, and a few slabs of other lengths that nobody evicted yet.
const REFILLED_MIN: f64 = 0.75;

/// Tells a process that it is a filler: the socket of its node, and its number.
const TASK: &str = "LOCH_TEST_FILLER";

/// Not a test of its own: the process of a client, which ends with its standard input.
#[test]
#[ignore = "started by the other test"]
fn filler_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (socket, number) = task.rsplit_once(' ').expect("two words");
    let cluster = Cluster::connect(socket).expect("the node is up");
    let mut filler = Filler::new(cluster.table("cache").expect("a session"), number);
    let stop = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    // One that was started last is told to end at once, and has found nothing by then.
    while !stop.is_finished() || filler.hits == 0 {
        filler.step();
    }
}

/// A client whose keys nobody else writes.
struct Filler {
    table: Table,
    name: String,
    random: ChaCha8Rng,
    /// The number of the next value. Those of processes before this one are smaller.
    next: u64,
    /// What the keys can have at most, as far as it is known: a value, or none.
    last: HashMap<u64, Option<u64>>,
    hits: u64,
}

impl Filler {
    fn new(table: Table, name: &str) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
        let next = since.as_micros() as u64;
        let random = ChaCha8Rng::seed_from_u64(next);
        Self { table, name: name.to_owned(), random, next, last: HashMap::new(), hits: 0 }
    }

    fn step(&mut self) {
        // Some keys are used more than others.
        let key = self.random.random_range(0..KEYS) * self.random.random_range(0..KEYS) / KEYS;
        match self.random.random_range(0..100) {
            0..5 => self.delete(key),
            5..15 => self.put(key),
            15..25 => self.look(key, true),
            _ => self.look(key, false),
        }
    }

    fn name_of(&self, key: u64) -> Vec<u8> {
        format!("{} {key}", self.name).into_bytes()
    }

    fn delete(&mut self, key: u64) {
        self.table.delete(&self.name_of(key)).expect("a DELETE never fails");
        self.last.insert(key, None);
    }

    fn put(&mut self, key: u64) {
        // Each second another length is put most.
        let usual = LENGTHS[(self.next / 1_000_000) as usize % LENGTHS.len()];
        let others = LENGTHS[self.random.random_range(0..LENGTHS.len())];
        let len = if self.random.random_bool(0.8) { usual } else { others };
        let value = value_of(self.next, len);
        self.table.put(&self.name_of(key), &value).expect("a PUT always finds room");
        self.last.insert(key, Some(self.next));
        self.next += 1;
    }

    fn look(&mut self, key: u64, in_place: bool) {
        let name = self.name_of(key);
        let found = if in_place {
            let pinned = self.table.pin(&name).expect("a GET never fails");
            pinned.map(|value| {
                let number = number_of(&value);
                std::thread::sleep(Duration::from_micros(self.random.next_u64() % 200));
                assert_eq!(number_of(&value), number, "a pinned value stays");
                number
            })
        } else {
            self.table.get(&name).expect("a GET never fails").map(|value| number_of(&value))
        };
        self.hits += u64::from(found.is_some());
        if let (Some(last), Some(_)) = (self.last.get(&key), found) {
            assert_eq!(found, *last, "key {key}: an older value, or one that was gone");
        }
        self.last.insert(key, found);
        if found.is_none() {
            self.put(key);
        }
    }
}

/// A value that says which one it is, all over.
fn value_of(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(*value.first_chunk().expect("no value is that short"));
    assert!(value == value_of(number, value.len()), "a value that nobody put");
    number
}

fn start_filler(socket: &Path, number: usize) -> Process {
    let task = format!("{} {number}", socket.display());
    Process::of_this_test("filler_process", TASK, &task)
}

#[test]
fn clients_that_fill_a_cache_and_are_killed_lose_no_memory_and_spoil_nothing() {
    let dir = private_dir();
    let sockets = NAMES.map(|name| socket_of(dir.path(), name));
    let config = "memory = \"16MiB\"\n[[table]]\nname = \"cache\"\neviction = \"sieve\"\n";
    let file = dir.path().join("loch.toml");
    std::fs::write(&file, config).expect("a file");
    let all = sockets.each_ref().map(|socket| socket.to_str().expect("text")).join(",");
    let flags = ["--config", file.to_str().expect("text"), "--cluster", &all];
    let nodes = NAMES.map(|name| Node::start(dir.path(), name, &flags));

    let socket = |number: usize| &sockets[number % sockets.len()];
    let mut fillers: Vec<_> = (0..FILLERS).map(|n| start_filler(socket(n), n)).collect();
    let mut random = ChaCha8Rng::seed_from_u64(17);
    let time = Duration::from_secs(if is_long() { 600 } else { 8 });
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < time {
        let (pause, killed) = (random.random_range(0..2 * APART_MS), Instant::now());
        wait_for("the next kill", || (killed.elapsed().as_millis() as u64 >= pause).then_some(()));
        for (number, filler) in fillers.iter_mut().enumerate() {
            assert_eq!(filler.try_ended(), None, "filler {number}: an error, above");
        }
        let victim = random.random_range(0..FILLERS);
        fillers[victim].kill();
        fillers[victim] = start_filler(socket(victim), victim);
        kills += 1;
    }
    for filler in &mut fillers {
        drop(filler.child.stdin.take());
        assert!(filler.ended().success(), "an error, above");
    }

    let begun = nodes[0].checked_tables()[0].clone();
    wait_for("leaked entries to be freed", || nodes[0].is_clean().then_some(()));
    nodes[0].assert_no_sessions();
    let filled = refill(socket(0));
    println!(
        "{kills} kills; {} values, {} unshown at first; {filled:.2} of the memory filled afterwards",
        begun["values"], begun["unshown"]
    );
    assert!(filled >= REFILLED_MIN, "{filled:.2}");
    nodes[0].checked_tables();
}

/// Puts values of one length, three times as many as there is room for; which part of the memory
/// those fill that are left.
fn refill(socket: &Path) -> f64 {
    let cluster = Cluster::connect(socket).expect("the cluster is up");
    let table = cluster.table("cache").expect("a session");
    let bytes = cluster.info().tables[0].data_bytes;
    let value = [7; 8000];
    let keys = 3 * bytes / value.len() as u64;
    for key in 0..keys {
        table.put(&key.to_le_bytes(), &value).expect("a PUT always finds room");
    }
    let held = (0..keys).filter(|key| table.contains(&key.to_le_bytes()).expect("it can be read"));
    (held.count() * value.len()) as f64 / bytes as f64
}
