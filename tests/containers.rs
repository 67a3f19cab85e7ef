//! Nodes, gateways and commands in containers of their own, as far as namespaces make these: each
//! process is in other PID, IPC, user and mount namespaces than the others. They share a folder of
//! shared memory, in which the node's socket and region are.

mod support;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use support::gateway::{Gateway, Wire};
use support::{LOCH, Node, loch, private_dir, run, wait_for};
use tempfile::TempDir;

/// The namespaces that a container has to itself. The processes of one do not see those of another.
const APART: [&str; 7] =
    ["--user", "--map-root-user", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"];
/// The flags of a node.
const FLAGS: [&str; 6] = ["--memory", "64MiB", "--table", "default", "--table", "other"];
/// The threads of a gateway that have a session each: two that serve clients, and one that looks
/// at the table.
const GATEWAY_SESSIONS: u64 = 3;

/// A command that does the same in a container.
fn apart(command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(APART).arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

/// A folder for a node, where containers can be made and the kernel tells of processes in others.
/// Otherwise the test is skipped, which is a failure in CI.
fn place(test: &str) -> Option<TempDir> {
    let made = apart(&Command::new("true")).stderr(Stdio::null()).status();
    let why = match made.is_ok_and(|it| it.success()) {
        false => "needs the right to make user, PID and mount namespaces",
        true if !kernel_tells_of_processes() => "needs Linux 6.9",
        true => return Some(private_dir()),
    };
    assert!(std::env::var_os("CI").is_none_or(|it| it != "true"), "CI is to run {test}: {why}");
    // The harness swallows what `eprintln` writes.
    std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes()).expect("written");
    None
}

fn kernel_tells_of_processes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(9))
}

fn node(dir: &TempDir) -> Node {
    Node::start_by(apart(&Command::new(LOCH)), dir.path(), "a", &FLAGS)
}

fn gateway(dir: &TempDir, node: &Node) -> Gateway {
    Gateway::start_by(apart(&Command::new(LOCH)), dir.path(), node, "g")
}

/// The figures of a node: its sessions that are taken, and slabs that clients have leased.
fn taken(node: &Node) -> (u64, u64) {
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{stats}"));
    let sessions = number(&stats["nodes"][0]["sessions_taken"]);
    (sessions, number(&stats["tables"][0]["usage"][0]["leased_slabs"]))
}

/// Stores values of many sizes, so that the gateway leases memory for each.
fn store(gateway: &Gateway) {
    let mut client = Wire::to(&gateway.resp);
    for shift in 0..14 {
        let value = "v".repeat(1 << shift);
        client.send(format!("SET k{shift} {value}\r\n").as_bytes());
        assert_eq!(client.line(), "+OK");
    }
}

/// All that a client that was killed has held comes back.
fn all_comes_back(node: &Node) {
    wait_for("the sessions end and the memory comes back", || {
        (taken(node) == (0, 0)).then_some(())
    });
    assert!(node.is_clean(), "{}", node.checked_tables());
}

/// A client of another container was refused: its node could not see its process.
#[test]
fn clients_of_other_containers_are_served_and_their_deaths_are_noticed() {
    let test = "clients_of_other_containers_are_served_and_their_deaths_are_noticed";
    let Some(dir) = place(test) else { return };
    let node = node(&dir);
    let by_command = |arguments: &[&str]| {
        let mut command = loch();
        command.env("LOCH_SOCKET", &node.socket).args(arguments);
        run(&mut apart(&command), b"")
    };
    by_command(&["put", "colour", "green"]).expect(0, &[]);
    assert_eq!(by_command(&["get", "colour"]).expect(0, &[]).text(), "green");
    let mut gateway = gateway(&dir, &node);
    store(&gateway);
    let (sessions, slabs) = taken(&node);
    assert!(sessions == GATEWAY_SESSIONS && slabs > 0, "{sessions} sessions, {slabs} slabs");
    gateway.process.kill();
    all_comes_back(&node);
    // It opens one table after the other: its process is watched, and not any more, and again.
    by_command(&["check"]).expect(0, &[]);
    assert!(!node.log().contains("cannot"), "{}", node.log());
}

/// The next process of a node gets no descriptor of a client's process that it does not see. It
/// must not give away what such a client still uses.
#[test]
fn a_client_of_another_container_outlives_its_nodes_process() {
    let test = "a_client_of_another_container_outlives_its_nodes_process";
    let Some(dir) = place(test) else { return };
    outlives(&dir, node(&dir));
}

/// A node on the host sees the processes of all containers. The next one sees none of them, and
/// took them for dead.
#[test]
fn a_client_outlives_a_node_that_moves_into_a_container() {
    let test = "a_client_outlives_a_node_that_moves_into_a_container";
    let Some(dir) = place(test) else { return };
    outlives(&dir, Node::start(dir.path(), "a", &FLAGS));
}

/// A client in a container goes on when its node is killed and started in another container.
fn outlives(dir: &TempDir, mut first: Node) {
    let mut gateway = gateway(dir, &first);
    store(&gateway);
    let before = taken(&first);
    first.process.kill();
    // What was killed is the node's parent.
    wait_for("the node's end", || UnixStream::connect(&first.socket).is_err().then_some(()));
    let again = node(dir);
    assert_eq!(taken(&again), before, "its sessions go on");
    let mut client = Wire::to(&gateway.resp);
    client.send(b"GET k3\r\n");
    assert_eq!((client.line(), client.line()), ("$8".into(), "v".repeat(8)));
    store(&gateway);
    gateway.process.kill();
    all_comes_back(&again);
}

/// As orchestrators give secrets to a container that has no files for them.
#[test]
fn a_gateway_takes_its_password_from_the_environment() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "a", &["--memory", "64MiB"]);
    let gateway = |password: &str| {
        let mut command = loch();
        command.env("LOCH_PASSWORD", password);
        command
    };
    let serving = Gateway::start_by(gateway("swordfish"), dir.path(), &node, "g");
    let mut client = Wire::to(&serving.resp);
    for (request, answer) in [("GET k", "-NOAUTH"), ("AUTH swordfish", "+OK"), ("GET k", "$-1")] {
        client.send(format!("{request}\r\n").as_bytes());
        let line = client.line();
        assert!(line.starts_with(answer), "{request}: {line}");
    }
    let refused = |password: &str, flags: &[&str]| {
        let mut command = gateway(password);
        command.args(["gateway", "--resp", "127.0.0.1:0", "--socket"]).arg(&node.socket);
        run(command.args(flags), b"")
    };
    for trivial in ["", "seven b"] {
        refused(trivial, &[]).expect(2, &["LOCH_PASSWORD", "8 to 1024"]);
    }
    refused("swordfish\nswordfish", &[]).expect(2, &["LOCH_PASSWORD", "line end"]);
    refused("swordfish", &["--no-password"]).expect(2, &["--no-password", "LOCH_PASSWORD"]);
}
