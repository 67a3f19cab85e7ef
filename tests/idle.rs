//! A node that has nothing to do sleeps: clients do their operations themselves.
//!
//! `LOCH_LONG=1` looks for a minute instead of three seconds.

mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use loch::{Cluster, ConnectOptions, Expiry, PutOptions, Table};
use rustix::process::Signal;
use support::{Node, Process, is_long, loch, private_dir, wait_for};

/// How often the threads of a process at rest wake up in a second, all together. A thread that
/// looks at each millisecond wakes up a thousand times. What one look may cost is bounded where
/// accesses can be counted: `crates/engines/tests/inbox.rs`.
const WAKE_UPS: u64 = 20;
/// The part of a processor that no process at rest takes, on the slowest of machines: a thread that
/// turns without sleeping takes all of it.
const SPINS: f64 = 0.2;

/// CPU time that the threads of a process have taken, to the nanosecond, and how often they were
/// woken. What the kernel counts in hundredths of a second would hide most of it.
/// For each of its threads, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Effort(BTreeMap<OsString, OfThread>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfThread {
    cpu: Duration,
    switches: u64,
}

impl Effort {
    /// What was done since then. Threads that have ended meanwhile do not count: a sum over all
    /// threads would have been less than before.
    fn since(&self, before: &Self) -> OfThread {
        let mut sum = OfThread::default();
        for (thread, now) in &self.0 {
            let before = before.0.get(thread).copied().unwrap_or_default();
            sum.cpu += now.cpu - before.cpu;
            sum.switches += now.switches - before.switches;
        }
        sum
    }
}

fn effort(pid: u32) -> Effort {
    let process = Path::new("/proc").join(pid.to_string());
    let mut threads = BTreeMap::new();
    for thread in fs::read_dir(process.join("task")).expect("it has threads") {
        let thread = thread.expect("a thread");
        let read = |name| fs::read_to_string(thread.path().join(name));
        // A thread may end at any moment.
        let (Ok(taken), Ok(status)) = (read("schedstat"), read("status")) else { continue };
        let cpu = number(taken.split_ascii_whitespace().next().expect("its CPU time"));
        let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        let switches = lines.map(|(_, count)| number(count)).sum();
        let of = OfThread { cpu: Duration::from_nanos(cpu), switches };
        threads.insert(thread.file_name(), of);
    }
    Effort(threads)
}

fn number(text: &str) -> u64 {
    text.trim().parse().expect("a number")
}

/// Waits until a process has used no CPU for a while.
fn wait_until_calm(pid: u32) {
    let (mut last, mut since) = (effort(pid), Instant::now());
    wait_for("the workers to rest", || {
        let now = effort(pid);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        (since.elapsed() >= Duration::from_millis(300)).then_some(())
    });
}

/// Waits until a process has not been woken for a while, and then looks for much longer, a third of
/// the time each time.
///
/// A virtual machine counts as CPU time of a thread what its host does meanwhile with the core, if
/// only seldom. So the calmest of the thirds counts. A thread that turns does so in all of them.
fn assert_sleeps(pid: u32, when: &str) {
    wait_until_calm(pid);
    let third = Duration::from_secs(if is_long() { 20 } else { 1 });
    let thirds = [0; 3].map(|_| {
        let before = effort(pid);
        // The test is that nothing happens in this time.
        thread::sleep(third);
        effort(pid).since(&before)
    });
    println!("{when}: {thirds:?}, {} s each", third.as_secs());
    let cpu = thirds.map(|of| of.cpu).into_iter().min().expect("three of them");
    let switches = thirds.map(|of| of.switches).into_iter().min().expect("three of them");
    let seconds = third.as_secs();
    assert!(cpu < third.mul_f64(SPINS), "{when}: {cpu:?} in {seconds} s at rest");
    assert!(switches < WAKE_UPS * seconds, "{when}: {switches} wake-ups in {seconds} s at rest");
}

#[test]
fn a_node_at_rest_uses_no_cpu() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "64MiB"]);
    let table = Cluster::connect(&node.socket).and_then(|cluster| cluster.table("default"));
    let table = table.expect("the node is up");
    for key in 0..10_000_u32 {
        table.put(&key.to_le_bytes(), &[7; 64]).expect("there is room");
    }
    assert_sleeps(node.process.pid(), "with an idle client");

    // Clients come, go and die; then there is nothing to do again.
    assert_eq!(node.loch(&["put", "k", "v"]).code, Some(0));
    let mut dying = loch();
    dying.env("LOCH_SOCKET", &node.socket).args(["put", "k", "-"]);
    let stdin = std::process::Stdio::piped();
    let mut dying = Process::new(dying.stdin(stdin).spawn().expect("it starts"));
    let stats = || node.loch(&["stats", "--json"]).json()["nodes"][0]["sessions_taken"].clone();
    wait_for("its session", || (stats() == 2).then_some(()));
    dying.kill();
    wait_for("its session to end", || (stats() == 1).then_some(()));
    assert_sleeps(node.process.pid(), "after a client died");
    assert!(table.get(&1_u32.to_le_bytes()).expect("it can be read").is_some());
}

/// The engines whose tables have workers, and a number of workers.
const SERVED: [(&str, u32); 5] =
    [("nessie-server", 2), ("nessie-hybrid", 1), ("herd", 2), ("pilaf", 1), ("kv-direct", 2)];

fn start_served(dir: &Path, engine: &str, workers: u32) -> (Node, Table) {
    let options = ["--memory", "64MiB", "--engine", engine, "--workers", &workers.to_string()];
    let node = Node::start(dir, engine, &options);
    let table = Cluster::connect(&node.socket).and_then(|cluster| cluster.table("default"));
    (node, table.expect("the node is up"))
}

/// Workers sleep until they are woken.
#[test]
fn workers_at_rest_use_no_cpu() {
    let dir = private_dir();
    for (engine, workers) in SERVED {
        let (node, table) = start_served(dir.path(), engine, workers);
        for key in 0..1000_u32 {
            table.put(&key.to_le_bytes(), &[7; 64]).expect("there is room");
        }
        assert_sleeps(node.process.pid(), engine);
        // And they are there at once.
        assert!(table.get(&1_u32.to_le_bytes()).expect("it can be read").is_some());
    }
}

/// The time that half of these operations take, each after a `pause`.
fn median(pause: Duration, operation: impl Fn()) -> Duration {
    let times = (0..40).map(|_| {
        thread::sleep(pause);
        let begun = Instant::now();
        operation();
        begun.elapsed()
    });
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// A request wakes its worker, and so does what the node wants of it. Otherwise half of them would
/// wait for 50 ms and more, which is half of the first sleep of a worker that rests.
#[test]
fn a_request_wakes_the_worker_that_rests() {
    let dir = private_dir();
    for (engine, workers) in SERVED {
        let (node, table) = start_served(dir.path(), engine, workers);
        let put = || assert!(table.put(b"key", b"value").is_ok());
        let check = || assert!(table.check().is_ok());
        for (name, operation) in [("PUT", &put as &dyn Fn()), ("check", &check)] {
            // A busy machine, and a build without optimizations, take their time for both.
            let [busy, rested] = [0, 5].map(|ms| median(Duration::from_millis(ms), operation));
            println!("{engine}: a {name} takes {busy:?}, after a rest {rested:?}");
            assert!(rested < busy + Duration::from_millis(40), "{engine}: {name}: {rested:?}");
        }
        assert_eq!(node.stop(Signal::TERM).code(), Some(0), "{engine}");
    }
}

/// A client that waits for a worker and is killed leaves its bell armed, and perhaps has disarmed
/// the worker's: others go on.
#[test]
fn a_client_that_is_killed_while_both_sides_sleep_harms_nobody() {
    let dir = private_dir();
    for (engine, workers) in SERVED {
        let (mut node, table) = start_served(dir.path(), engine, workers);
        table.put(b"key", b"value").expect("there is room");
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(5));
            node.process.signal(Signal::STOP);
            let mut client = loch();
            client.env("LOCH_SOCKET", &node.socket).args(["put", "other", "value"]);
            let mut client = Process::new(client.spawn().expect("it starts"));
            thread::sleep(Duration::from_millis(20));
            node.process.signal(Signal::CONT);
            client.kill();
            table.put(b"key", b"anew").expect("the node is up");
            assert_eq!(table.get(b"key").expect("it is up").as_deref(), Some(&b"anew"[..]));
        }
    }
}

/// A client that sleeps while it waits looks by itself now and then.
#[test]
fn a_client_whose_worker_is_killed_while_it_sleeps_gets_an_error_in_time() {
    let dir = private_dir();
    let timeout = Duration::from_secs(1);
    for (engine, workers) in SERVED {
        let (mut node, _) = start_served(dir.path(), engine, workers);
        let options = ConnectOptions { operation_timeout: timeout, ..Default::default() };
        let cluster = Cluster::connect_with(&node.socket, options).expect("the node is up");
        let table = cluster.table("default").expect("the node is up");
        table.put(b"key", b"value").expect("there is room");
        node.process.signal(Signal::STOP);
        // Its threads do not stop all at once.
        thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                // By then the client sleeps.
                thread::sleep(timeout / 4);
                node.process.kill();
            });
            assert!(table.put(b"key", b"anew").is_err(), "{engine}: nobody answers");
        });
        assert!(begun.elapsed() < 20 * timeout, "{engine}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_busy_client_costs_its_node_nothing() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "64MiB"]);
    let table = Cluster::connect(&node.socket).and_then(|cluster| cluster.table("default"));
    let table = table.expect("the node is up");
    let pid = node.process.pid();
    // The calmest of three, as at rest.
    let rounds = [0; 3].map(|_| {
        let (before, begun) = (effort(pid), Instant::now());
        for key in 0..100_000_u32 {
            let key = (key % 10_000).to_le_bytes();
            table.put(&key, &[7; 64]).expect("there is room");
            assert!(table.get(&key).expect("it can be read").is_some());
        }
        let (effort, seconds) = (effort(pid).since(&before), begun.elapsed().as_secs_f64());
        (effort.switches as f64 / seconds, effort.cpu.as_secs_f64() / seconds)
    });
    // A node that had to do with each of the operations would wake up for many of them, or turn.
    let least = |of: fn(&(f64, f64)) -> f64| rounds.iter().map(of).fold(f64::MAX, f64::min);
    assert!(least(|(wake_ups, _)| *wake_ups) < WAKE_UPS as f64, "{rounds:?}");
    assert!(least(|(_, share)| *share) < SPINS, "{rounds:?} of a node whose client works");
}

/// Values with an expiry give their memory back although nobody touches them, and the node takes a
/// small share of a core for that.
#[test]
fn what_has_expired_gives_its_memory_back_by_itself() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "64MiB"]);
    let table = Cluster::connect(&node.socket).and_then(|cluster| cluster.table("default"));
    let table = table.expect("the node is up");
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(3600));
    for key in 0..20_000_u32 {
        let expiry = match key % 4 {
            0 => Expiry::Never,
            1 => Expiry::In(long),
            _ => Expiry::In(short),
        };
        let options = PutOptions { expiry };
        table.put_with(&key.to_le_bytes(), &[7; 64], options).expect("there is room");
    }
    // The node counts what it has removed a moment later.
    let left = wait_for("the memory of what has expired", || {
        let used = table.usage().expect("it can be looked at")[0].clone();
        let expired: u64 = used.forgotten.iter().flatten().map(|of| of.expired).sum();
        (expired >= 10_000).then_some((used.entries, expired))
    });
    assert_eq!(left, (10_000, 10_000), "all others stay");
    let stats = node.loch(&["stats"]);
    let stats = stats.text();
    assert!(stats.contains("values evicted: 0, expired and removed: 10000"), "{stats}");
    assert_eq!(node.loch(&["check"]).code, Some(0));
    // What is left will expire, so the node looks at it now and then.
    let before = effort(node.process.pid());
    thread::sleep(Duration::from_secs(3));
    let cpu = effort(node.process.pid()).since(&before).cpu;
    assert!(cpu < Duration::from_millis(300), "{cpu:?} of 3 s");
}
