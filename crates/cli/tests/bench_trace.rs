//! `loch bench --trace`: files of requests, replayed on Loch and on the peers that are installed.

mod running;

use std::fmt::Write;

use running::{bench, is_installed};
use serde_json::Value;
use tempfile::TempDir;

/// Requests of one file.
const REQUESTS: u64 = 30_000;

/// A file of requests of `keys` keys, few of which have most of the requests: values of 100 to
/// 1000 bytes. Returns also the number of keys that it asks for.
fn file(dir: &TempDir, keys: u64) -> (String, u64) {
    let (mut text, mut seen) = (String::from("key,size\n"), std::collections::HashSet::new());
    let mut state = 1u64;
    for _ in 0..REQUESTS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = (state >> 33) as f64 / (1u64 << 31) as f64;
        let key = (uniform.powi(4) * keys as f64) as u64;
        seen.insert(key);
        writeln!(text, "user:{key},{}", 100 + key * 7919 % 900).expect("text can be written");
    }
    let path = dir.path().join("requests.csv");
    std::fs::write(&path, text).expect("a temporary file can be written");
    (path.display().to_string(), seen.len() as u64)
}

/// Loch, its gateway, and the peers that are installed.
fn systems() -> (String, usize) {
    let peers =
        [("memcached", "memcached"), ("redis", "redis-server"), ("redis-lfu", "redis-server")];
    let peers = peers.into_iter().filter(|(_, program)| is_installed(program));
    let peers = peers.map(|(peer, _)| peer).chain(["gateway-memcached", "gateway-resp"]);
    let peers: Vec<_> = peers.collect();
    (format!("--engine nessie,nessie-server --peer {}", peers.join(",")), 2 + peers.len())
}

/// The objects of a replay that has to succeed.
fn replayed(file: &str, options: &str) -> Vec<Value> {
    let (systems, count) = systems();
    let options = format!("{systems} --trace {file} --eviction sieve {options}");
    let output = bench(&format!("--json --verify {options}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{options}: {stderr}");
    let lines = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let objects: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(objects.len(), count, "{lines}");
    objects
}

fn number(object: &Value, field: &str) -> u64 {
    object[field].as_u64().unwrap_or_else(|| panic!("{field}: {object}"))
}

/// The PUTs that a system refused: none, but for a few of memcached's, which refuses a value when
/// all that it looks at to make room is in use.
fn refused(object: &Value) -> u64 {
    let (refused, puts) = (number(object, "errors"), number(object, "puts"));
    let most = if object["engine"] == "memcached" { puts / 100 } else { 0 };
    assert!(refused <= most && puts > 0, "{object}");
    refused
}

#[test]
fn a_cache_with_room_for_all_misses_each_key_once() {
    let dir = TempDir::new().expect("a temporary directory");
    let (file, keys) = file(&dir, 2000);
    for object in replayed(&file, "--memory 16MiB --key-size 24") {
        assert_eq!(
            (number(&object, "gets"), number(&object, "puts")),
            (REQUESTS, keys),
            "{object}"
        );
        assert_eq!(number(&object, "get_hits"), REQUESTS - keys, "{object}");
        let ratio = object["hit_ratio"].as_f64().expect("a ratio");
        assert!((ratio - (1.0 - keys as f64 / REQUESTS as f64)).abs() < 1e-6, "{object}");
        assert_eq!((number(&object, "values_held"), number(&object, "evicted")), (keys, 0));
        let kept = ["records", "memory_bytes", "errors"].map(|field| number(&object, field));
        assert_eq!(kept, [keys, 16 << 20, 0], "{object}");
        assert_eq!((&object["dist"], object["trace"].as_str()), (&"trace".into(), Some(&*file)));
    }
}

#[test]
fn a_cache_that_is_too_small_evicts_and_still_hits() {
    let dir = TempDir::new().expect("a temporary directory");
    let (file, keys) = file(&dir, 60_000);
    for object in replayed(&file, "--memory 2MiB --index-slots 8192") {
        let [gets, hits, puts] = ["gets", "get_hits", "puts"].map(|field| number(&object, field));
        assert_eq!((gets, gets - hits), (REQUESTS, puts + refused(&object)), "{object}");
        let [held, evicted] = ["values_held", "evicted"].map(|field| number(&object, field));
        // 550 bytes in the mean; memcached gives each size a first page, whatever its limit is.
        assert!(held > 1000 && held < 12_000 && evicted > 1000, "{object}");
        assert!(held + evicted >= puts && puts >= keys, "{object}");
        for ratio in ["hit_ratio", "byte_hit_ratio"] {
            let ratio = object[ratio].as_f64().expect("a ratio");
            assert!((0.2..0.6).contains(&ratio), "{object}");
        }
        assert!(object["limit_ops_per_s"].is_null() && object["verbs_per_get"].is_null());
    }
}

#[test]
fn clients_share_the_requests_and_ops_end_the_replay() {
    let dir = TempDir::new().expect("a temporary directory");
    let (file, _) = file(&dir, 2000);
    for object in replayed(&file, "--memory 16MiB --clients 3 --lanes 4") {
        assert_eq!(number(&object, "gets"), REQUESTS, "{object}");
    }
    // The file is not begun again, however many requests are asked for.
    for (ops, gets) in [(100, 100), (REQUESTS + 100, REQUESTS)] {
        for object in replayed(&file, &format!("--memory 16MiB --ops {ops}")) {
            assert_eq!(number(&object, "gets"), gets, "{object}");
        }
    }
}

/// A client that had replayed its part and whose last verbs were still under way was waited for, so
/// no memory changed hands any more, and the PUTs of the others failed after a minute.
#[test]
fn clients_over_a_network_do_not_wait_for_those_that_are_done() {
    let dir = TempDir::new().expect("a temporary directory");
    let (mut text, mut state) = (String::new(), 1u64);
    for _ in 0..12_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = (state >> 33) as f64 / (1u64 << 31) as f64;
        let key = (uniform.powi(2) * 60_000.0) as u64;
        let size = match key * 7919 % 200 {
            rare @ 0..4 => [2000, 12_000, 60_000, 200_000][rare as usize],
            often => [30, 100, 400][often as usize % 3],
        };
        writeln!(text, "k{key},{size}").expect("text can be written");
    }
    let file = dir.path().join("sizes.csv");
    std::fs::write(&file, text).expect("a temporary file can be written");
    let options = "--engine nessie --fabric tcp --nodes 2 --clients 4 --memory 4MiB";
    let output = bench(&format!("--trace {} --eviction sieve {options}", file.display()));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

#[test]
fn a_workload_of_the_benchs_own_fills_a_cache_too() {
    let (systems, count) = systems();
    // The operations ask for more keys than memory holds, whatever was there before.
    let line = "--eviction sieve --memory 8MiB --records 40000 --value-size 500 --ops 40000 \
                --dist uniform";
    let output = bench(&format!("--json --verify {systems} {line} --reads 1"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    assert_eq!(lines.lines().count(), count, "{lines}");
    for line in lines.lines() {
        let object: Value = serde_json::from_str(line).expect(line);
        let [gets, hits, puts] = ["gets", "get_hits", "puts"].map(|field| number(&object, field));
        assert_eq!((gets, gets - hits), (40_000, puts + refused(&object)), "{object}");
        assert!(number(&object, "evicted") > 0 && number(&object, "values_held") > 0, "{object}");
        assert_eq!(object["hit_ratio"], object["byte_hit_ratio"], "{object}");
    }
}

#[test]
fn files_that_cannot_be_replayed_are_refused_by_line() {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("bad.csv");
    std::fs::write(&path, "user:1,10\nuser:2\n").expect("a temporary file can be written");
    let long = dir.path().join("long.csv");
    std::fs::write(&long, "key,size\na,1\nb,9000000\nc,9000000\n").expect("as before");
    let cache = "--eviction sieve --memory 16MiB";
    for (line, said) in [
        (format!("--trace {} {cache}", path.display()), "line 2"),
        (format!("--trace {}/none.csv {cache}", dir.path().display()), "none.csv"),
        (format!("--trace {} {cache}", dir.path().display()), "not a file"),
        (format!("--trace {}", path.display()), "--eviction sieve"),
        (format!("--trace {} --eviction sieve --memory 8MiB", long.display()), "bytes: line 3"),
    ] {
        let output = bench(&line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(output.stdout.is_empty() && stderr.contains(said), "{line}: {stderr}");
    }
    let (file, _) = file(&dir, 100);
    let output = bench(&format!("--engine none --peer lmdb --trace {file} {cache}"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it does not evict"));
}
