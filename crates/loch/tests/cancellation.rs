//! Futures that are dropped in sessions that live on, in threads of several processes, where memory
//! is short: nothing that was acknowledged may be lost, nothing be stale or torn, and in the end no
//! slab be closed, no session announce an operation, and no entry be leaked.
//!
//! `LOCH_STRESS_SECONDS` is the time for each fabric, kind of table and part of the memory that all
//! values would fill: twelve in all. Unless it is set, each fabric and kind has one part, and a
//! second.

mod dropping;
mod host;
mod ports;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dropping::memory::Memory;
use dropping::worker::PRESENT_PERCENT;
use dropping::{Done, Order, Process, SIZES, THREADS, Task};
use host::Host;
use loch::{ByteSize, FabricKind, Node, NodeConfig, Table, TableConfig};
use ports::free_address;

const PROCESSES: u64 = 2;
/// Rounds of use after which no slab is closed that was closed before them.
const USES: usize = 20;
/// The part of its node's memory that one client fills with values of one length, after all others
/// are deleted.
const REFILLED_MIN: f64 = 0.75;

/// Not a test: what the other processes run.
#[test]
#[ignore = "a helper: the other tests of this file run it as a process"]
fn process_of_workers() {
    dropping::work_if_told();
}

/// The tests of this file take turns: each needs the processors for itself.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}

fn configs(host: &Host, fabric: FabricKind, evicts: bool) -> Vec<NodeConfig> {
    let mut table = TableConfig { name: "default".into(), ..TableConfig::default() };
    if evicts {
        table.set("eviction", "sieve").unwrap();
    }
    let config = |name| NodeConfig {
        memory: ByteSize::new(8 << 20),
        fabric,
        tables: vec![table.clone()],
        ..host.config(name)
    };
    if fabric == FabricKind::Shm {
        return vec![config("a")];
    }
    let secret = host.dir.path().join("secret");
    std::fs::write(&secret, "of all nodes of the test").unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let addresses = ["a", "b"].map(|_| free_address());
    let on_network = |(name, address): (&'static str, &String)| NodeConfig {
        listen: Some(address.clone()),
        cluster: addresses.iter().map(Into::into).collect(),
        secret: Some(secret.clone()),
        ..config(name)
    };
    ["a", "b"].into_iter().zip(&addresses).map(on_network).collect()
}

/// All that is asked for, over a fabric and in a kind of table.
fn stress(fabric: FabricKind, evicts: bool) {
    let _turn = turn();
    let seconds = std::env::var("LOCH_STRESS_SECONDS").ok().map(|it| it.parse().expect("seconds"));
    let percents: &[u64] = if seconds.is_some() { &[70, 90, 105] } else { &[105] };
    percents.iter().for_each(|it| stress_at(*it, fabric, evicts, seconds.unwrap_or(1)));
}

fn stress_at(percent: u64, fabric: FabricKind, evicts: bool, seconds: u64) {
    let host = Host::new();
    let configs = configs(&host, fabric, evicts);
    let nodes: Vec<Node> = configs.iter().map(|it| Node::start(it.clone()).unwrap()).collect();
    let memory = Memory::of(&configs);
    let workers = PROCESSES * THREADS;
    let entry_bytes: u64 = SIZES.iter().map(|size| memory.entry_bytes(*size)).sum();
    // One key in eight has a number, which takes hardly any memory.
    let room = memory.data_bytes() * SIZES.len() as u64 / entry_bytes;
    let task = |process: u64| Task {
        socket: configs[process as usize % configs.len()].socket.clone(),
        first: process * THREADS,
        workers,
        keys: room * percent * 8 / 7 / PRESENT_PERCENT / workers,
        evicts,
        seconds,
        seed: percent << 32,
    };
    let start = |process| Process::start("process_of_workers", &task(process));
    let mut processes: Vec<Process> = (0..PROCESSES).map(start).collect();
    let mut done = Done::default();
    processes.iter().for_each(|process| done.add(process.answer()));
    println!("{} {percent} %, evicts: {evicts}: {done:?}", fabric.name());
    assert!(done.dropped > 0, "nothing was dropped");
    assert!(evicts || percent < 100 || done.refused > 0, "memory was not short");

    // The workers have dropped operations, and are still.
    vanishes("an announced operation", || {
        let announcing = memory.announcing();
        (!announcing.is_empty()).then(|| format!("{announcing:?}"))
    });
    // What their sessions before the last had closed comes back without them.
    vanishes("what sessions have left that others outlive", || {
        let slabs = memory.of_the_dead();
        (!slabs.is_empty()).then(|| format!("{slabs:?}"))
    });
    // They go on, and what they had closed comes back into use.
    let mut stuck = memory.closed();
    for round in 0..USES {
        for process in &mut processes {
            process.tell(Order::Use(SIZES[round % SIZES.len()]));
        }
        stuck = stuck.intersection(&memory.closed()).copied().collect();
    }
    assert_eq!(stuck, BTreeSet::new(), "slabs are closed for ever");
    let mut ended = Done::default();
    processes.iter_mut().for_each(|process| ended.add(process.tell(Order::End)));
    processes.into_iter().for_each(Process::ended);
    let table = host_table(&configs[0]);
    vanishes("what ended sessions have left", || {
        let (report, slabs) = (table.check().unwrap(), memory.of_the_dead());
        assert_eq!(report.broken, Vec::<String>::new());
        let is_left = report.unshown + report.tentative + report.moving > 0 || !slabs.is_empty();
        is_left.then(|| format!("{report:?}, {slabs:?}"))
    });
    let values = table.check().unwrap().values;
    assert!(values == ended.values || evicts && values < ended.values, "{values} of {ended:?}");
    if !evicts {
        refill(&table, &memory, nodes.len() as u64, &task(0));
    }
}

/// Waits, for a bounded time, until nothing is left of something.
fn vanishes(what: &str, mut left: impl FnMut() -> Option<String>) {
    let until = Instant::now() + Duration::from_secs(60);
    while let Some(left) = left() {
        assert!(Instant::now() < until, "{what} stays for ever: {left}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn host_table(config: &NodeConfig) -> Table {
    loch::Cluster::connect(&config.socket).unwrap().table("default").unwrap()
}

/// Deletes everything, and puts values of one length until there is no memory.
fn refill(table: &Table, memory: &Memory, nodes: u64, task: &Task) {
    let keys = (0..task.workers).flat_map(|worker| (0..task.keys).map(move |key| (worker, key)));
    let names: Vec<_> = keys.map(|(worker, key)| format!("{worker}/{key}")).collect();
    table.delete_many(&names).unwrap();
    let put = |number: &u64| table.put(format!("new {number}").as_bytes(), &[7; 6000]).is_ok();
    let filled = (0..).take_while(put).count() as u64 * memory.entry_bytes(6000);
    let part = filled as f64 * nodes as f64 / memory.data_bytes() as f64;
    assert!(part >= REFILLED_MIN, "{part} of the memory can be filled");
}

#[test]
fn dropped_futures_harm_nobody_in_a_table_that_stores_on_one_host() {
    stress(FabricKind::Shm, false);
}

#[test]
fn dropped_futures_harm_nobody_in_a_table_that_evicts_on_one_host() {
    stress(FabricKind::Shm, true);
}

#[test]
fn dropped_futures_harm_nobody_in_a_table_that_stores_on_two_hosts() {
    stress(FabricKind::Tcp, false);
}

#[test]
fn dropped_futures_harm_nobody_in_a_table_that_evicts_on_two_hosts() {
    stress(FabricKind::Tcp, true);
}
