//! Values that a process has pinned while other processes replace them, and pins of a process that
//! is killed.

mod host;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use host::{Host, eventually};
use loch::{Cluster, ConnectOptions, EngineError, Error, Table};

const SOCKET: &str = "LOCH_TEST_SOCKET";
const ROLE: &str = "LOCH_TEST_ROLE";
const VALUE_BYTES: usize = 1 << 20;
/// The keys that the process which is killed has pinned.
const PINNED: [&str; 4] = ["0", "1", "2", "3"];

/// Not a test: what the other processes run.
#[test]
#[ignore = "a helper: the other tests of this file run it as a process"]
fn other_process() {
    let socket = std::env::var_os(SOCKET).expect("only as a helper");
    let table = Cluster::connect(socket).unwrap().table("default").unwrap();
    match std::env::var(ROLE).unwrap().as_str() {
        "replaces" => {
            for n in 0..1000u32 {
                table.put(b"key", &vec![n as u8; VALUE_BYTES]).unwrap();
            }
            assert!(table.delete(b"key").unwrap());
            table.put(b"another", &vec![9; VALUE_BYTES]).unwrap();
            println!("done");
        }
        _ => {
            let pins = PINNED.map(|key| table.pin(key.as_bytes()).unwrap().expect("it is there"));
            assert!(pins.iter().all(|pinned| pinned.is_in_place()));
            println!("done");
            // Until it is killed.
            loop {
                std::thread::park();
            }
        }
    }
}

/// Starts another process, and waits until it says that it is done.
fn run(host: &Host, role: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--ignored", "--nocapture"])
        .env(SOCKET, host.socket("a"))
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = stdout.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("done")), "the process that {role} failed");
    if role == "replaces" {
        // It ends by itself, and has more to say.
        lines.for_each(drop);
    }
    child
}

#[test]
fn a_pinned_value_stays_while_another_process_replaces_and_deletes_it() {
    let host = Host::new();
    let _node = host.start("a");
    let table = host.connect("a").table("default").unwrap();
    let version = table.put(b"key", &vec![77; VALUE_BYTES]).unwrap();
    let pinned = table.pin(b"key").unwrap().unwrap();
    run(&host, "replaces").wait().unwrap();
    assert!(pinned.is_in_place() && pinned.version() == version);
    assert!(pinned.len() == VALUE_BYTES && pinned.iter().all(|byte| *byte == 77));
    assert!(table.get(b"key").unwrap().is_none());
    assert_eq!(table.check().unwrap().broken, Vec::<String>::new());
}

fn fill(table: &Table) {
    let put = |n: u32| table.put(n.to_string().as_bytes(), &vec![1; VALUE_BYTES]);
    let refused = (0..).find_map(|n| put(n).err());
    assert!(
        matches!(refused, Some(Error::Table { source: EngineError::OutOfMemory { .. }, .. })),
        "{refused:?}"
    );
}

#[test]
fn memory_that_a_killed_process_had_pinned_comes_back() {
    let host = Host::new();
    let _node = host.start("a");
    let options = ConnectOptions {
        operation_timeout: Duration::from_millis(300),
        ..ConnectOptions::default()
    };
    let table = Cluster::connect_with(host.socket("a"), options).unwrap();
    let table = table.table("default").unwrap();
    fill(&table);
    let mut pinner = run(&host, "pins");
    PINNED.iter().for_each(|key| assert!(table.delete(key.as_bytes()).unwrap()));
    // All values have one length: what is free is what is pinned.
    let put = || table.put(b"x", &vec![2; VALUE_BYTES]);
    assert!(matches!(put(), Err(Error::Table { source: EngineError::OutOfMemory { .. }, .. })));
    pinner.kill().unwrap();
    pinner.wait().unwrap();
    eventually("the pins end", || put().is_ok());
    for key in PINNED {
        table.put(key.as_bytes(), &vec![3; VALUE_BYTES - 1]).unwrap();
        table.delete(key.as_bytes()).unwrap();
    }
    assert_eq!(table.check().unwrap().broken, Vec::<String>::new());
}

/// The node may go away and come back while a value is pinned, as it may in any operation.
#[test]
fn a_pin_outlives_a_restart_of_its_node() {
    let host = Host::new();
    let node = host.start("a");
    let table = host.connect("a").table("default").unwrap();
    table.put(b"key", &vec![77; VALUE_BYTES]).unwrap();
    let pinned = table.pin(b"key").unwrap().unwrap();
    node.stop();
    let _node = host.start("a");
    run(&host, "replaces").wait().unwrap();
    assert!(pinned.iter().all(|byte| *byte == 77));
}
