//! The answers to clients on two machines are linearizable, while clients and nodes are killed,
//! nodes come back, and the wire between the machines is cut.
//!
//! Over TCP the machines are network namespaces, where these can be made. Over real RDMA verbs it
//! runs in both guests of
//! `vm/run --hosts 2 --env LOCH_VERBS_TEST=1 -- TEST_BINARY what_two_machines --nocapture`;
//! anywhere else that test does nothing. Each host has a node and clients, which record what they
//! ask and are answered. A run is a few rounds, each on keys of its own; a round is a number of
//! faults, one after the other, and after each the clients have to get on. At its end host 1 puts
//! the records of both hosts on one clock (`guest/clock.rs`) and checks them.
//!
//! `LOCH_SEED=n` repeats the faults of a run, though not what the processors make of them, and
//! `LOCH_LONG=1` has more rounds; both go through `--env`.

mod guest;
mod recorded;
mod support;

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use guest::clock::{Asker, Offset, answer};
use guest::config::{CONTROL_PORT, address, configuration};
use guest::merge::{CLIENTS_OF_HOST, merged, records_in};
use guest::namespaces::{FOUL, Namespaces};
use guest::wire::Cut;
use guest::{Guest, HOSTS, in_shared};
use loch::{Cluster, ConnectOptions};
use loch_history::{Answer, Ask, History, Outcome, check};
use loch_wire::Weather;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use recorded::record::Recorder;
use recorded::{HOT_KEYS, Recorded, Task, name_of, now};
use rustix::process::Signal;
use support::{LOCH, Node, Process, is_long, private_dir, socket_of, wait_for};

/// Of the engine nessie.
const TABLES: [&str; 3] = ["usual", "pairs", "cached"];
/// Of engines whose servers take part.
const SERVED: [&str; 5] = ["server", "hybrid", "pilaf", "herd", "direct"];
/// Whose values are in their workers' own memory, and are lost with it.
const FORGETFUL: [&str; 2] = ["herd", "direct"];
/// The longest value of herd that there is room for beside a key.
const VALUE_MAX_OF_HERD: usize = 900;

const SECRET: &str = "the secret of both machines";

/// Of the slots of an index so many have a key of the crowd, if all of them are there.
const CROWDED: f64 = 0.9;

/// But not more of them: kv-direct has as many slots as its memory has room for.
const CROWD_MAX: usize = 64;

/// Rounds of a long run.
const LONG_ROUNDS: usize = 12;

/// The lanes of the clients that run at a time on each host.
const LANES: [usize; 2] = [1, 4];

/// Longer than Soft-RoCE goes on trying, which is a second: `TIMEOUT_EXPONENT` in the fabric's
/// limits.
const CUT: Duration = Duration::from_millis(4000);
/// Shorter than that.
const BLINK: Duration = Duration::from_millis(300);
/// How long a node is away: longer than that, too.
const NODE_DOWN: Duration = Duration::from_millis(2000);

/// Operations that a client has to be answered after each fault, before the next.
const ANSWERS: usize = 20;
/// How long clients may take for that.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// Memory of dead clients is free by then.
const LEAKS_RETURN_MAX: Duration = Duration::from_secs(30);

/// By how much an operation of host 2 may be widened: less than most operations take that meet a
/// fault. A round trip over the wire of emulated hosts takes half a millisecond, and tens of them
/// where others use the processors.
const UNCERTAINTY_MAX: Duration = Duration::from_millis(50);

/// Operations over TCP that are checked at least. A run has 1,500 at least.
const OPERATIONS_OVER_TCP: usize = 200_000;
/// They are more than tens of thousands a run on two processors that others use as well.
const RUNS_MAX: usize = 12;
/// By what name a run tells how many operations it had.
const OPERATIONS: &str = "operations";

/// The checker's verdict on a sound history.
const LINEARIZABLE: &str = "linearizable";

/// Configurations that the checker may look at for each key.
const BUDGET: u64 = 5_000_000;

/// Not a test of its own: the process of a client.
#[test]
#[ignore = "started by the other test"]
fn client_process() {
    recorded::work_if_told();
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A client of each host is killed.
    Clients,
    /// The node of this host is killed, and comes back.
    Node(usize),
    /// The wire of this host is cut, until cards have given up. Meanwhile a client dies: of this
    /// host or of the other.
    Cut { host: usize, how: Cut, kills: usize },
    /// The wire of this host is cut, but not for so long.
    Blink { host: usize, how: Cut },
}

/// Faults of each kind, in any order.
fn faults(random: &mut ChaCha8Rng) -> Vec<Fault> {
    let mut host = || random.random_range(1..=HOSTS);
    let mut faults = vec![
        Fault::Clients,
        Fault::Node(host()),
        Fault::Cut { host: host(), how: Cut::Loud, kills: host() },
        Fault::Cut { host: host(), how: Cut::Silent, kills: host() },
        Fault::Blink { host: host(), how: [Cut::Loud, Cut::Silent][host() - 1] },
    ];
    faults.shuffle(random);
    faults
}

/// Faults of those kinds that clients of workers notice, in any order.
fn faults_of_served(random: &mut ChaCha8Rng) -> Vec<Fault> {
    let mut host = || random.random_range(1..=HOSTS);
    // That of which queue pairs for datagrams notice something.
    let cut = Fault::Cut { host: host(), how: Cut::Loud, kills: host() };
    let mut faults = vec![Fault::Node(host()), cut];
    faults.shuffle(random);
    faults
}

/// The tables and the faults of each round. A short run has faults of each kind on tables of
/// nessie, in two rounds, and some on all tables that workers serve, in a third; a long one every
/// kind in every round.
fn rounds(random: &mut ChaCha8Rng, seed: u64) -> Vec<(Vec<&'static str>, Vec<Fault>)> {
    let nessies = TABLES.iter().cycle().skip((seed % TABLES.len() as u64) as usize);
    let nessies = nessies.map(|table| vec![*table]);
    if is_long() {
        let all: Vec<_> = nessies.take(TABLES.len()).chain([SERVED.to_vec()]).collect();
        let all = all.into_iter().cycle().take(LONG_ROUNDS);
        return all.map(|tables| (tables, faults(random))).collect();
    }
    let all = faults(random);
    let mut rounds: Vec<_> = nessies.zip(all.chunks(3).map(<[Fault]>::to_vec)).collect();
    rounds.push((SERVED.to_vec(), faults_of_served(random)));
    rounds
}

/// Counts of a run's events, complete on host 1.
#[derive(Debug, Default)]
struct Tally {
    rounds: usize,
    operations: usize,
    across: usize,
    ambiguous: usize,
    cut_off: usize,
    refused: usize,
    clients_killed: usize,
    nodes_killed: usize,
    loud_cuts: usize,
    silent_cuts: usize,
    blinks: usize,
    uncertainty: Duration,
    slowest_recovery: Duration,
}

impl Tally {
    fn count_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Clients => self.clients_killed += HOSTS,
            Fault::Node(_) => self.nodes_killed += 1,
            Fault::Cut { how, .. } => {
                self.loud_cuts += (how == Cut::Loud) as usize;
                self.silent_cuts += (how == Cut::Silent) as usize;
                self.clients_killed += 1;
            }
            Fault::Blink { .. } => self.blinks += 1,
        }
    }

    fn count_history(&mut self, history: &History) {
        let nothing = Outcome::Known(Answer::NoEffect);
        self.operations += history.len();
        self.refused += history.operations().iter().filter(|o| o.outcome == nothing).count();
    }

    /// A run in which nothing happened proves nothing.
    fn assert_eventful(&self) {
        let rounds = self.rounds;
        assert!(self.operations >= 500 * rounds, "{self}");
        assert!(self.across >= 50 * rounds, "{self}");
        assert!(self.ambiguous >= 1 && self.cut_off >= 1 && self.refused >= 1, "{self}");
        assert!(self.clients_killed >= 2 * HOSTS && self.nodes_killed >= 1, "{self}");
        assert!(self.loud_cuts >= 1 && self.silent_cuts >= 1 && self.blinks >= 1, "{self}");
        assert!(self.uncertainty <= UNCERTAINTY_MAX, "{self}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds, {} operations ({} overlapping one of the other host, {} of unknown \
             outcome, {} refused), {} clients killed ({} in an operation), {} nodes killed, {} \
             wires cut loudly, {} silently, {} for a moment, clocks within {:.1?}, clients of host \
             1 on after {:.1?} at most",
            self.rounds,
            self.operations,
            self.across,
            self.ambiguous,
            self.refused,
            self.clients_killed,
            self.cut_off,
            self.nodes_killed,
            self.loud_cuts,
            self.silent_cuts,
            self.blinks,
            self.uncertainty,
            self.slowest_recovery,
        )
    }
}

/// The processes of this host.
struct Machine {
    guest: Guest,
    dir: tempfile::TempDir,
    /// Of what the clients record.
    records: tempfile::TempDir,
    node: Node,
    clients: Vec<Recorded>,
    /// Of the clients that were killed in this round.
    dead: Vec<Task>,
    next_client: u32,
    /// For what concerns this host alone.
    random: ChaCha8Rng,
    asker: Option<Asker>,
    tally: Tally,
}

impl Machine {
    fn start(guest: Guest, seed: u64) -> Self {
        let dir = private_dir();
        let secret = dir.path().join("secret");
        fs::write(&secret, SECRET).expect("a file");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("a file");
        let log = dir.path().join("log");
        let config = configuration(guest.host, guest::fabric(), &secret, &log);
        fs::write(dir.path().join("loch.toml"), config).expect("a file");
        Self {
            guest,
            node: start_node(&dir, guest.host),
            dir,
            records: tempfile::tempdir().expect("a directory"),
            clients: Vec::new(),
            dead: Vec::new(),
            next_client: guest.host as u32 * CLIENTS_OF_HOST,
            random: ChaCha8Rng::seed_from_u64(seed ^ guest.host as u64),
            asker: (guest.host == 1).then(Asker::new),
            tally: Tally::default(),
        }
    }

    fn is_first(&self) -> bool {
        self.guest.host == 1
    }

    fn attach(&self) -> Cluster {
        let options =
            ConnectOptions { connect_timeout: support::PATIENCE, ..ConnectOptions::default() };
        Cluster::connect_with(&self.node.socket, options).expect("the nodes are up")
    }

    /// How many keys fill the index of a table, if that can be made small.
    fn crowd(&self, table: &str) -> usize {
        let info = self.attach().info();
        let info = info.tables.iter().find(|info| info.name == table).expect("it was declared");
        ((info.index_slots as f64 * CROWDED) as usize).min(CROWD_MAX)
    }

    /// Makes room for keys of a later round in the same tables.
    fn delete_keys_of(&self, round: &Round) {
        for (name, crowd) in &round.tables {
            let table = self.attach().table(name).expect("the nodes are up");
            for key in 0..HOT_KEYS + crowd {
                table.delete(&name_of(round.number, key)).expect("nobody else wants it any more");
            }
        }
    }

    fn start_client(&mut self, round: &Round, place: usize) -> Recorded {
        let client = self.take_number();
        let (table, crowd) = round.tables[place % round.tables.len()];
        let task = Task {
            dir: self.records.path().into(),
            socket: socket_of(self.dir.path(), &name_of_node(self.guest.host)),
            client,
            table: table.into(),
            crowd,
            value_max: if table == "herd" { VALUE_MAX_OF_HERD } else { usize::MAX },
            round: round.number,
            lanes: LANES[place % LANES.len()],
            over_network: true,
            seed: self.random.random(),
        };
        Recorded::start(task, "client_process")
    }

    /// A client, or one of each table if there are several.
    fn kill_clients(&mut self, round: &Round) {
        let places = 0..self.clients.len();
        match round.tables.len() {
            1 => {
                let place = self.random.random_range(places);
                self.kill_client(round, place);
            }
            _ => places.for_each(|place| self.kill_client(round, place)),
        }
    }

    /// Another one takes its place.
    fn kill_client(&mut self, round: &Round, place: usize) {
        let fresh = self.start_client(round, place);
        let mut victim = std::mem::replace(&mut self.clients[place], fresh);
        victim.assert_alive();
        victim.process.kill();
        self.dead.push(victim.task);
    }

    /// Does this host's part of a fault, until it is over.
    fn suffer(&mut self, fault: Fault, round: &Round) {
        let own = self.guest.host;
        match fault {
            Fault::Clients => self.kill_clients(round),
            Fault::Node(host) if host == own => {
                self.node.process.kill();
                self.record_loss(round);
                last(NODE_DOWN);
                self.node = start_node(&self.dir, own);
                let ready = &self.node.ready;
                assert!(ready.contains("taken over"), "{ready}");
            }
            Fault::Node(_) => (),
            Fault::Cut { host, how, kills } => {
                if host == own {
                    how.begin();
                }
                last(CUT / 2);
                if kills == own {
                    self.kill_clients(round);
                }
                last(CUT / 2);
                if host == own {
                    how.end();
                }
            }
            Fault::Blink { host, how } if host == own => {
                how.begin();
                last(BLINK);
                how.end();
            }
            Fault::Blink { .. } => (),
        }
    }

    /// Keys of a node that was killed may be gone from now on: as if a client had begun to delete
    /// all of them when it was killed, with an unknown outcome.
    fn record_loss(&mut self, round: &Round) {
        for (table, crowd) in round.tables.iter().filter(|(name, _)| FORGETFUL.contains(name)) {
            let task = Task {
                client: self.take_number(),
                table: (*table).into(),
                ..self.clients[0].task.clone()
            };
            let recorder = Recorder::create(&task.record());
            for key in 0..HOT_KEYS + crowd {
                recorder.called(key as u64, Ask::Delete);
            }
            self.dead.push(task);
        }
    }

    fn take_number(&mut self) -> u32 {
        self.next_client += 1;
        self.next_client - 1
    }

    /// Waits until every client is answered again.
    fn recover(&mut self, fault: Fault) {
        let (moment, begun) = (now(), Instant::now());
        for client in &mut self.clients {
            wait_for(&format!("answers after {fault:?}"), || {
                client.assert_alive();
                last(Duration::from_millis(20));
                (client.answered_since(moment) >= ANSWERS).then_some(())
            });
        }
        let took = begun.elapsed();
        println!("host {}: {fault:?}, on after {took:.1?}", self.guest.host);
        assert!(took <= RECOVERY_MAX, "{fault:?}: it took {took:?}\n{}", self.node.log());
        self.tally.slowest_recovery = self.tally.slowest_recovery.max(took);
    }

    /// Widens what is known of the clocks, on the host that has to know.
    fn measure(&mut self, offset: &mut Option<Offset>) {
        if let Some(asker) = &mut self.asker {
            let measured = asker.measure();
            *offset = Some(offset.map_or(measured, |known| known.hull(measured)));
        }
    }

    fn run(&mut self, round: &Round) {
        let at = |place: &str| format!("round-{}-{place}", round.number);
        let mut offset = None;
        self.guest.meet(&at("begins"));
        self.measure(&mut offset);
        let places = LANES.len().max(round.tables.len());
        self.clients = (0..places).map(|place| self.start_client(round, place)).collect();
        self.clients.iter_mut().for_each(|client| client.wait_for_operations(ANSWERS as u64));
        for (number, fault) in round.faults.iter().enumerate() {
            self.guest.meet(&at(&format!("fault-{number}")));
            self.suffer(*fault, round);
            self.tally.count_fault(*fault);
            self.guest.meet(&at(&format!("fault-{number}-is-over")));
            self.recover(*fault);
            self.measure(&mut offset);
        }
        self.hand_in(round);
        self.guest.meet(&at("was-recorded"));
        self.measure(&mut offset);
        self.tally.rounds += 1;
        if let Some(offset) = offset {
            self.judge(round, offset);
        }
        // Any other verdict ends the wait as well.
        assert_eq!(self.guest.hear(&at("verdict")), LINEARIZABLE);
    }

    /// Lets the clients end, and puts all records where host 1 finds them.
    fn hand_in(&mut self, round: &Round) {
        for (table, _) in &round.tables {
            let folder = round.records_of(self.guest.host, table);
            fs::create_dir(folder).expect("the guests share a folder");
        }
        let mut tasks = std::mem::take(&mut self.dead);
        for mut client in std::mem::take(&mut self.clients) {
            client.end();
            tasks.push(client.task);
        }
        // One that was killed early has none.
        for task in tasks.iter().filter(|task| task.record().exists()) {
            let (record, folder) = (task.record(), round.records_of(self.guest.host, &task.table));
            let name = record.file_name().expect("a file's");
            fs::copy(&record, folder.join(name)).expect("the guests share a folder");
            fs::remove_file(&record).expect("it was copied");
        }
    }

    fn judge(&mut self, round: &Round, offset: Offset) {
        let mut wrong = Vec::new();
        for (table, _) in &round.tables {
            let [first, second] = [1, 2].map(|host| records_in(&round.records_of(host, table)));
            println!("table {table}, operations: {} and {}", first.len(), second.len());
            let merged = merged(first, second, offset, TABLES.contains(table));
            self.tally.count_history(&merged.history);
            self.tally.across += merged.across;
            self.tally.ambiguous += merged.ambiguous;
            self.tally.cut_off += merged.cut_off;
            let begun = Instant::now();
            let verdict = check(&merged.history, BUDGET).to_string();
            println!("round {} was checked in {:.1?}: {verdict}", round.number, begun.elapsed());
            if verdict != LINEARIZABLE {
                wrong.push(format!("table {table}: {verdict}"));
            }
        }
        self.tally.uncertainty = self.tally.uncertainty.max(offset.uncertainty());
        let verdict = if wrong.is_empty() { LINEARIZABLE.into() } else { wrong.concat() };
        self.guest.tell(&format!("round-{}-verdict", round.number), &verdict);
    }

    /// After all clients have ended.
    fn check_afterwards(&mut self) {
        let ended = Instant::now();
        // The check walks the memory of both nodes, which takes a while.
        let mut took = Duration::ZERO;
        if self.is_first() {
            took = wait_for("what the dead left to be freed", || {
                let looks = ended.elapsed();
                self.node.is_clean().then_some(looks)
            });
            println!("nothing was left after {took:.1?}, found after {:.1?}", ended.elapsed());
        }
        self.guest.meet("checked");
        let (checked, cluster) = (Instant::now(), self.attach());
        wait_for("all sessions to end", || {
            cluster.info().nodes.iter().all(|node| node.sessions_taken == 0).then_some(())
        });
        took += checked.elapsed();
        println!("host {}: clean after {took:.1?}", self.guest.host);
        assert!(took <= LEAKS_RETURN_MAX, "it took {took:?}\n{}", self.node.log());
        assert_eq!(self.node.process.try_ended(), None, "{}", self.node.log());
        self.guest.meet("all-is-well");
    }
}

/// Shows what a node logged, should the test fail.
struct Telltale(PathBuf);

impl Drop for Telltale {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("its node's log:\n{}", fs::read_to_string(&self.0).unwrap_or_default());
        }
    }
}

/// Faults on keys of their own.
struct Round {
    number: u64,
    /// With the keys that fill their indexes.
    tables: Vec<(&'static str, usize)>,
    faults: Vec<Fault>,
}

impl Round {
    fn records_of(&self, host: usize, table: &str) -> PathBuf {
        in_shared(format!("round-{}-records-of-{host}-{table}", self.number))
    }
}

fn name_of_node(host: usize) -> String {
    format!("host{host}")
}

fn start_node(dir: &tempfile::TempDir, host: usize) -> Node {
    let config = dir.path().join("loch.toml");
    let config = config.to_str().expect("text");
    Node::start(dir.path(), &name_of_node(host), &["--config", config])
}

/// Lets something go on for so long.
fn last(time: Duration) {
    let begun = Instant::now();
    wait_for("time to pass", || (begun.elapsed() >= time).then_some(()));
}

/// The seed of both hosts.
fn seed(guest: Guest) -> u64 {
    if guest.host == 1 {
        let given = std::env::var("LOCH_SEED").ok();
        let seed = given.map_or_else(|| now() % 1_000_000, |seed| seed.parse().expect("a number"));
        guest.tell("seed", &seed.to_string());
    }
    guest.hear("seed").parse().expect("a number")
}

/// Several runs: the wire of every second one delays and loses.
#[test]
fn what_two_hosts_are_answered_over_tcp_is_linearizable() {
    let (mut operations, mut runs) = (0, 0);
    while operations < OPERATIONS_OVER_TCP {
        let weather = if runs % 2 == 0 { Weather::FAIR } else { FOUL };
        let made = Namespaces::make(weather).or_else(|why| {
            println!("this wire neither delays nor loses, but is cut: {why}");
            Namespaces::make(Weather::FAIR)
        });
        let hosts = match made {
            Ok(hosts) => hosts,
            Err(why) => return println!("skipped: there are no network namespaces: {why}"),
        };
        hosts.run("what_two_machines_are_answered_is_linearizable");
        let told = hosts.told(OPERATIONS).expect("the first host has told it");
        operations += told.parse::<usize>().expect("a number");
        runs += 1;
        assert!(
            runs < RUNS_MAX,
            "{operations} operations in {runs} runs: this machine is too slow"
        );
    }
    println!("{operations} operations over TCP in {runs} runs");
}

/// What the README says of two hosts; and either node is killed and comes back.
#[test]
fn two_hosts_over_tcp_are_a_cluster_that_outlives_its_processes() {
    let hosts = match Namespaces::make(Weather::FAIR) {
        Ok(hosts) => hosts,
        Err(why) => return println!("skipped: there are no network namespaces: {why}"),
    };
    let dir = private_dir();
    let secret = dir.path().join("secret");
    fs::write(&secret, SECRET).expect("a file");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("a file");
    let loch = |host: usize, words: &[&str]| {
        let mut command = hosts.command(host, LOCH.as_ref());
        command.env("LOCH_SOCKET", socket_of(dir.path(), &name_of_node(host)));
        command.args(words);
        command
    };
    let serve = |host: usize| {
        let region = dir.path().join(format!("{host}.region")).display().to_string();
        let cluster = [1, 2].map(|host| address(host, CONTROL_PORT));
        let (listen, secret) = (&cluster[host - 1], secret.to_str().expect("text"));
        let words = ["serve", "--memory", "16MiB", "--region", &region, "--listen", listen];
        let mut command = loch(host, &words);
        command.args(["--cluster", &cluster.join(","), "--secret", secret]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Process::new(command.spawn().expect("ip is there"))
    };
    let answer = |host: usize, words: &[&str]| {
        let ended = loch(host, words).output().expect("ip is there");
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ended.stderr));
        text
    };
    let mut nodes = [serve(1), serve(2)];
    let doctor = |host: usize| {
        let cluster = [1, 2].map(|host| address(host, CONTROL_PORT)).join(",");
        let words = ["doctor", "--fabric", "tcp", "--no-self-test", "--cluster", &cluster];
        let ended = loch(host, &words).arg("--secret").arg(&secret).output().expect("ip is there");
        (ended.status.code(), String::from_utf8_lossy(&ended.stdout).into_owned())
    };
    let keys: Vec<String> = (0..20).map(|key| format!("key-{key}")).collect();
    for key in &keys {
        answer(1, &["put", "--wait", "1m", key, &format!("of {key}")]);
    }
    let are_there = |host: usize| {
        for key in &keys {
            assert_eq!(answer(host, &["get", "--wait", "1m", key]), format!("of {key}"), "{host}");
        }
    };
    are_there(2);
    assert!(answer(2, &["stats"]).contains("fabric tcp: "), "it says which");
    for host in [1, 2] {
        let (code, found) = doctor(host);
        assert_eq!((code, found.matches("MB/s from it").count()), (Some(0), 2), "{found}");
        nodes[host - 1].kill();
        let [here, there] = [host, 3 - host].map(doctor);
        assert!(here.0 == Some(1) && here.1.contains("no node runs at this address"), "{here:?}");
        assert!(there.0 == Some(1) && there.1.contains("it refuses connections"), "{there:?}");
        let stats = loch(3 - host, &["stats"]).output().expect("ip is there");
        let shows_it = String::from_utf8_lossy(&stats.stdout).contains("down");
        assert!(stats.status.code() == Some(3) && shows_it, "{stats:?}");
        nodes[host - 1] = serve(host);
        (1..=HOSTS).for_each(are_there);
    }
    let check = answer(1, &["check"]);
    assert!(check.contains("20 values") && check.contains("0 broken"), "{check}");
}

#[test]
fn what_two_machines_are_answered_is_linearizable() {
    let Some(guest) = Guest::this() else {
        println!("skipped: it is started by another test, or LOCH_VERBS_TEST is not set");
        return;
    };
    let (begun, seed) = (Instant::now(), seed(guest));
    println!("host {}: LOCH_SEED={seed}", guest.host);
    if guest.host == 2 {
        answer();
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut machine = Machine::start(guest, seed);
    let _telltale = Telltale(machine.node.log_path().to_owned());
    for (number, (tables, faults)) in (0..).zip(rounds(&mut random, seed)) {
        println!("host {}: round {number}, tables {tables:?}, {:.1?}", guest.host, begun.elapsed());
        let tables = tables.into_iter().map(|table| (table, machine.crowd(table))).collect();
        let round = Round { number, tables, faults };
        machine.run(&round);
        // Otherwise every round has a table of its own.
        if machine.is_first() && is_long() {
            machine.delete_keys_of(&round);
        }
    }
    machine.check_afterwards();
    println!("host {}: done after {:.1?}", guest.host, begun.elapsed());
    if machine.is_first() {
        println!("{}: linearizable, seed {seed}", machine.tally);
        machine.tally.assert_eventful();
        guest.tell(OPERATIONS, &machine.tally.operations.to_string());
    }
    let Machine { node, dir, .. } = machine;
    assert_eq!(node.stop(Signal::TERM).code(), Some(0));
    let path = dir.path().to_owned();
    dir.close().expect("nobody uses it");
    assert!(!path.exists());
}
