//! `loch bench` against the peers that are installed: real processes, for half
//! a second each.

mod running;

use std::process::{Command, Stdio};

use running::{bench, is_installed};

const LOCH: &str = env!("CARGO_BIN_EXE_loch");

/// The fields on which programs rely, in their order.
const FIELDS: &str = "engine fabric nodes clients lanes records key_size value_size reads dist \
    seconds ops ops_per_s gets puts get_hits goodput_bytes_per_s get_us put_us retries errors \
    verbs_per_get verbs_per_put round_trips_per_get round_trips_per_put bytes_per_get \
    bytes_per_put server_cpu_s client_cpu_s limit_ops_per_s limit_one_ops_per_s limit_share \
    limit_share_spread limit_one_share limit_one_share_spread times_the_first \
    times_the_first_spread background_hogs batches read_mode";

/// The objects of a run that has to succeed.
fn objects(arguments: &str) -> Vec<serde_json::Value> {
    let output = bench(&format!("--json --verify --engine none {arguments}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "loch bench {arguments}: {stderr}");
    let stdout = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn check_peer(peer: &str, lanes: u32, has_server: bool) {
    let line = format!("--peer {peer} --records 5000 --seconds 0.5 --lanes {lanes} --clients 2");
    let objects = objects(&line);
    assert_eq!(objects.len(), 1);
    let object = &objects[0];
    let count = |field: &str| object[field].as_u64().unwrap_or_else(|| panic!("{field}: {object}"));
    assert_eq!(object["engine"], peer);
    assert!(count("gets") > 100 && count("puts") > 5, "{object}");
    assert_eq!(count("get_hits"), count("gets"), "{object}");
    assert_eq!(count("ops"), count("gets") + count("puts"), "{object}");
    assert_eq!(count("errors"), 0, "{object}");
    for kind in ["get_us", "put_us"] {
        let at = |quantile: &str| object[kind][quantile].as_f64().expect("timed");
        assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("p999"), "{object}");
    }
    assert!(object["seconds"].as_f64().is_some_and(|s| (0.5..5.0).contains(&s)), "{object}");
    assert!(object["client_cpu_s"].as_f64().is_some_and(|s| s > 0.0), "{object}");
    assert_eq!(object["server_cpu_s"].is_number(), has_server, "{object}");
    for field in ["fabric", "nodes", "retries", "verbs_per_get", "limit_ops_per_s"] {
        assert!(object[field].is_null(), "{field}: {object}");
    }
}

#[test]
fn memcached() {
    if is_installed("memcached") {
        check_peer("memcached", 1, true);
        check_peer("memcached", 32, true);
    }
}

#[test]
fn redis() {
    if is_installed("redis-server") {
        check_peer("redis", 1, true);
        check_peer("redis", 32, true);
    }
}

#[test]
fn the_gateway_asked_as_memcached_and_as_redis_are() {
    for peer in ["gateway-memcached", "gateway-resp"] {
        check_peer(peer, 1, true);
        check_peer(peer, 32, true);
    }
}

#[test]
fn servers_are_reached_over_tcp_too() {
    let mut peers = vec!["gateway-memcached", "gateway-resp"];
    peers.extend(is_installed("memcached").then_some("memcached"));
    peers.extend(is_installed("redis-server").then_some("redis"));
    let line = "--peer-transport tcp --peer-threads 1 --records 100 --ops 2000 --clients 2";
    for object in objects(&format!("{line} --peer {}", peers.join(","))) {
        assert_eq!((&object["ops"], &object["errors"]), (&2000.into(), &0.into()), "{object}");
        assert_eq!(object["gets"], object["get_hits"], "{object}");
    }
}

#[test]
fn a_gateway_refuses_keys_that_memcacheds_protocol_cannot_have() {
    let line = "--engine none --peer gateway-memcached --key-size 251 --records 100";
    let output = bench(line);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("gateway-memcached") && stderr.contains("250 bytes"), "{stderr}");
}

#[test]
fn lmdb() {
    check_peer("lmdb", 1, false);
    check_peer("lmdb", 32, false);
}

#[test]
fn maps_inside_one_process() {
    let line = "--peer papaya,hashbrown --records 5000 --ops 20000 --reads 0.5";
    let objects = objects(line);
    let names: Vec<_> = objects.iter().map(|object| object["engine"].as_str()).collect();
    assert_eq!(names, [Some("papaya"), Some("hashbrown")]);
    for object in &objects {
        assert_eq!((&object["ops"], &object["errors"]), (&20_000.into(), &0.into()), "{object}");
        assert_eq!(object["gets"], object["get_hits"], "{object}");
        assert!(object["server_cpu_s"].is_null() && object["limit_share"].is_null(), "{object}");
    }
    assert!(objects[0]["times_the_first"].is_null());
    let times = objects[1]["times_the_first"].as_f64().expect("they took turns");
    let spread = |at: usize| objects[1]["times_the_first_spread"][at].as_f64().expect("a bound");
    assert!(0.0 < spread(0) && spread(0) <= times && times <= spread(1), "{}", objects[1]);
}

#[test]
fn every_peer_holds_large_values() {
    let mut peers = vec!["lmdb", "gateway-memcached", "gateway-resp"];
    peers.extend(is_installed("memcached").then_some("memcached"));
    peers.extend(is_installed("redis-server").then_some("redis"));
    let line = "--records 40 --value-size 3MiB --reads 0.5 --ops 400 --lanes 8 --dist uniform";
    for object in objects(&format!("{line} --peer {}", peers.join(","))) {
        assert_eq!(object["ops"], 400, "{object}");
        assert_eq!(object["gets"], object["get_hits"], "{object}");
    }
}

#[test]
fn fields_stand_in_the_contracts_order() {
    let output = bench("--json --engine none --peer lmdb --records 100 --ops 1000");
    let line = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let mut rest = line.as_str();
    for field in FIELDS.split_whitespace() {
        let at = rest.find(&format!("\"{field}\":")).unwrap_or_else(|| panic!("{field}: {line}"));
        rest = &rest[at..];
    }
    assert_eq!(line.lines().count(), 1);
    let object: serde_json::Value = serde_json::from_str(&line).expect("one object");
    assert_eq!(object.as_object().map(|o| o.len()), Some(FIELDS.split_whitespace().count()));
}

#[test]
fn counts_are_a_function_of_the_seed() {
    let counts = |seed: u32| {
        let line = format!("--peer lmdb --records 1000 --ops 20000 --clients 2 --seed {seed}");
        let object = objects(&line).remove(0);
        (object["gets"].as_u64(), object["puts"].as_u64())
    };
    assert_eq!(counts(3), counts(3));
    assert_ne!(counts(3), counts(4));
}

#[test]
fn hogs_end_with_the_run() {
    let line = "bench --json --engine none --peer lmdb --records 100 --seconds 0.2 \
                --background-hogs 2";
    let mut run = Command::new(LOCH)
        .args(line.split_whitespace())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary under test starts");
    let hogs_of_this_run = format!("bench-hog --parent {}", run.id());
    assert!(run.wait().expect("it can be waited for").success());
    let hogs = Command::new("pgrep").args(["-f", &hogs_of_this_run]).output();
    let left = hogs.map(|hogs| String::from_utf8_lossy(&hogs.stdout).into_owned());
    assert_eq!(left.unwrap_or_default(), "");
}

#[test]
fn people_get_a_table() {
    let output = bench("--engine none --peer lmdb --records 100 --ops 1000");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("operations/s") && stdout.contains("lmdb"), "{stdout}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no progress into a pipe");
}

#[test]
fn usage_errors_exit_with_2_and_nothing_on_stdout() {
    for line in ["--engine none", "--key-size 4 --peer lmdb", "--dist zipf:2", "--nonsense"] {
        let output = bench(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line}");
    }
}
