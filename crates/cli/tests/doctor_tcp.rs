//! `loch doctor --fabric tcp`: what it finds out about the nodes of a list.

#[path = "../../loch/tests/ports/mod.rs"]
mod ports;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ports::free_address;
use serde_json::Value;
use support::{Ended, Node, loch, private_dir, run};

fn secret(dir: &Path, name: &str) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, format!("the secret of {name}")).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    file
}

fn node(dir: &Path, name: &str, listen: &str, cluster: &[String], secret: &Path) -> Node {
    let (cluster, secret) = (cluster.join(","), secret.to_str().unwrap());
    let flags = ["--memory", "16MiB", "--fabric", "tcp", "--agent-threads", "2"];
    let of_cluster = ["--listen", listen, "--cluster", &cluster, "--secret", secret];
    Node::start(dir, name, &[&flags[..], &of_cluster].concat())
}

fn doctor(arguments: &[&str]) -> Ended {
    let mut command = loch();
    command.args(["doctor", "--fabric", "tcp", "--no-self-test"]).args(arguments);
    run(&mut command, b"")
}

/// The report about a list of nodes.
fn examined(code: i32, cluster: &[String], secret: &Path) -> Value {
    let cluster = cluster.join(",");
    let ended = doctor(&["--json", "--cluster", &cluster, "--secret", secret.to_str().unwrap()]);
    assert_eq!(ended.code, Some(code), "{ended:?}");
    let report = ended.json();
    assert_eq!((&report["ok"], &report["fabric"]), (&(code == 0).into(), &"tcp".into()));
    report
}

/// What stands in a line about a node, and its remedy.
fn said<'a>(report: &'a Value, address: &str, what: &str) -> (&'a str, String) {
    let name = format!("{address} {what}");
    let mut findings = report["findings"].as_array().unwrap().iter();
    let found = findings.find(|it| it["name"] == name.as_str());
    let found = found.unwrap_or_else(|| panic!("no {name:?} in {report}"));
    let words = format!("{} -> {}", found["text"], found["remedy"]);
    (found["mark"].as_str().unwrap(), words)
}

/// The threads of a node's agent.
fn agents_of(node: &Node) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{}/task", node.process.pid())).unwrap();
    let names = threads.map(|it| std::fs::read_to_string(it.unwrap().path().join("comm")));
    names.filter(|name| name.as_ref().is_ok_and(|it| it.starts_with("loch-tcp"))).count()
}

fn assert_measured(node: &Value) {
    let number = |field: &str| node[field].as_f64().unwrap_or_else(|| panic!("{field}: {node}"));
    assert!(node["error"].is_null() && node["is_here"] == true, "{node}");
    assert!(node["reads"].as_u64() >= Some(1) && number("connect_us") > 0.0, "{node}");
    assert!(0.0 < number("p50_us") && number("p50_us") <= number("p99_us"), "{node}");
    assert!(number("mb_s") > 0.0, "{node}");
}

#[test]
fn nodes_that_are_well_are_measured_and_not_disturbed() {
    let dir = private_dir();
    let dir = dir.path();
    let (ours, cluster) = (secret(dir, "ours"), [free_address(), free_address()]);
    let [a, b] = ["a", "b"].map(|name| {
        let listen = &cluster[usize::from(name == "b")];
        node(dir, name, listen, &cluster, &ours)
    });
    a.loch(&["put", "--wait", "1m", "colour", "green"]).expect(0, &[]);
    let report = examined(0, &cluster, &ours);
    let nodes = report["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    nodes.iter().for_each(assert_measured);
    for (address, word) in [(&cluster[0], "node 0 of 2"), (&cluster[1], "node 1 of 2")] {
        let (mark, words) = said(&report, address, "node");
        assert!(mark == "ok" && words.contains(word), "{words}");
        for what in ["connection", "round trip", "bandwidth"] {
            said(&report, address, what);
        }
    }
    // As people read it, with the node's own configuration.
    let file = dir.join("a.toml");
    let text = format!("listen = {:?}\ncluster = {cluster:?}\nsecret = {ours:?}\n", cluster[0]);
    std::fs::write(&file, text).unwrap();
    let ended = doctor(&["--config", file.to_str().unwrap()]);
    let text = ended.expect(0, &[]).text();
    for word in ["this host", "over TCP", "p50", "p99", "MB/s", &cluster[1]] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert_eq!(b.loch(&["get", "--wait", "1m", "colour"]).expect(0, &[]).text(), "green");
    let stats = a.loch(&["stats", "--json"]).expect(0, &[]).json();
    assert!(stats["nodes"].as_array().unwrap().iter().all(|it| it["sessions_taken"] == 0));
    for node in [a, b] {
        assert_eq!(agents_of(&node), 2);
        let log = node.log();
        assert_eq!(log.matches("a node of the cluster is up").count(), 1, "{log}");
        assert!(!log.contains("was refused"), "{log}");
    }
}

#[test]
fn an_address_without_a_node_and_one_of_another_program_are_told_apart() {
    let dir = private_dir();
    let dir = dir.path();
    let other = TcpListener::bind(free_address()).unwrap();
    let cluster = [free_address(), free_address(), other.local_addr().unwrap().to_string()];
    let ours = secret(dir, "ours");
    let _node = node(dir, "a", &cluster[0], &cluster, &ours);
    // It ends with this process. The node asks it as well, again and again.
    std::thread::spawn(move || {
        for stream in other.incoming() {
            stream.and_then(|mut stream| stream.write_all(b"SSH-2.0-other\r\n")).unwrap_or(());
        }
    });
    let report = examined(1, &cluster, &ours);
    assert_measured(&report["nodes"][0]);
    for (node, words) in
        [(1, ["no node runs at this address", "loch serve"]), (2, ["SSH-2.0-", "ss -ltnp"])]
    {
        let (mark, said) = said(&report, &cluster[node], "node");
        assert_eq!(mark, "problem");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(report["nodes"][node]["p50_us"].is_null(), "{report}");
    }
    assert!(report["nodes"][1]["connect_us"].is_null() && report["nodes"][2]["error"].is_string());
}

#[test]
fn a_node_that_does_not_admit_this_host_says_why() {
    let dir = private_dir();
    let dir = dir.path();
    let (ours, theirs) = (secret(dir, "ours"), secret(dir, "theirs"));
    let cluster = [free_address(), free_address()];
    let [_a, _b] = [0, 1].map(|n| node(dir, &format!("n{n}"), &cluster[n], &cluster, &theirs));
    let of_first = |report: &Value| said(report, &cluster[0], "node").1;
    let words = of_first(&examined(1, &cluster, &ours));
    assert!(words.contains("it has another secret") && words.contains("`secret` file"), "{words}");
    // The right secret, and the list in another order, or a part of it.
    let [a, b] = &cluster;
    let words = of_first(&examined(1, &[b.clone(), a.clone()], &theirs));
    assert!(words.contains("node 0 of 2") && words.contains("`cluster` list"), "{words}");
    let words = of_first(&examined(1, &cluster[..1], &theirs));
    assert!(words.contains("number 0 of 1"), "{words}");
    // Without a secret it cannot be said whether the nodes are well.
    let ended = doctor(&["--cluster", &cluster.join(",")]);
    let text = ended.expect(0, &[]).text();
    assert!(text.contains("wants a secret") && text.contains("--secret FILE"), "{text}");
}

#[test]
fn a_wrong_call_is_told_apart_from_nodes_that_do_not_run() {
    let nobody = free_address();
    let ended = doctor(&["--cluster", &nobody]);
    assert!(ended.code == Some(1) && ended.stderr.contains("1 problem"), "{ended:?}");
    doctor(&["--cluster", "/run/loch.sock"]).expect(2, &["HOST:PORT"]);
    doctor(&["--cluster", &nobody, "--secret", "/nowhere"]).expect(2, &["/nowhere"]);
    doctor(&["--config", "/nowhere"]).expect(2, &["/nowhere"]);
    let mut shm = loch();
    run(shm.args(["doctor", "--cluster", &nobody]), b"").expect(2, &["--fabric tcp"]);
    let none = doctor(&[]);
    assert!(none.expect(0, &[]).text().contains("none was named"), "{none:?}");
}
