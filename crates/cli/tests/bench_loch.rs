//! `loch bench` and `loch demo` on Loch itself: nodes and clients are real
//! processes, for about a second each, and nothing of them is left.

#[path = "../../../tests/measured/mod.rs"]
mod measured;

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use measured::{Run, files, number};

const LOCH: &str = env!("CARGO_BIN_EXE_loch");

/// The one object of a run that has to succeed and to leave nothing.
fn object(name: &str, options: &str) -> Value {
    measured::object(LOCH, name, options)
}

#[test]
fn nessie_on_two_nodes_with_two_clients() {
    let object = object("two", "--engine nessie --nodes 2 --clients 2 --records 20000 --seconds 1");
    for (field, expected) in [("engine", "nessie"), ("fabric", "shm"), ("dist", "zipf:0.99")] {
        assert_eq!(object[field], expected, "{object}");
    }
    for (field, expected) in [("nodes", 2), ("clients", 2), ("lanes", 16), ("records", 20_000)] {
        assert_eq!(object[field], expected, "{object}");
    }
    assert!(number(&object, "gets") > 1000.0 && number(&object, "puts") > 50.0, "{object}");
    assert_eq!(object["gets"], object["get_hits"], "{object}");
    assert_eq!(number(&object, "ops"), number(&object, "gets") + number(&object, "puts"));
    assert_eq!(object["errors"], 0, "{object}");
    assert!(object["retries"].is_u64(), "{object}");
    assert!((1.0..10.0).contains(&number(&object, "seconds")), "{object}");
    for kind in ["get_us", "put_us"] {
        let at = |quantile| number(&object[kind], quantile);
        assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("p999"), "{object}");
    }
    // A slot and an entry; now and then a second slot, or another key's entry.
    assert!((2.0..3.0).contains(&number(&object, "round_trips_per_get")), "{object}");
    assert!((2.0..3.0).contains(&number(&object, "verbs_per_get")), "{object}");
    assert!((2.0..5.0).contains(&number(&object, "round_trips_per_put")), "{object}");
    assert!((3.0..7.0).contains(&number(&object, "verbs_per_put")), "{object}");
    // 32 B of slots and an entry of 112 B at the least.
    assert!((144.0..250.0).contains(&number(&object, "bytes_per_get")), "{object}");
    assert!(number(&object, "bytes_per_put") > 40.0, "{object}");
    let (limit, one) = (number(&object, "limit_ops_per_s"), number(&object, "limit_one_ops_per_s"));
    assert!(limit >= one && one > 1e5, "{object}");
    let spread = |at: usize| object["limit_share_spread"][at].as_f64().expect("a share");
    let share = number(&object, "limit_share");
    assert!(0.0 < spread(0) && spread(0) <= share && share <= spread(1), "{object}");
    assert!(number(&object, "limit_one_share") > 0.0, "{object}");
    assert!(number(&object, "client_cpu_s") > 0.0, "{object}");
    // The nodes lend memory and sleep; a scrub takes moments.
    assert!(number(&object, "server_cpu_s") <= 0.2, "{object}");
}

#[test]
fn one_lane_one_client_more_nodes_than_clients() {
    let object = object(
        "one",
        "--nodes 3 --clients 1 --lanes 1 --records 5000 --reads 0.5 --ops 20000 --dist uniform",
    );
    assert_eq!((&object["ops"], &object["errors"]), (&Value::from(20_000), &Value::from(0)));
    assert_eq!(object["gets"], object["get_hits"], "{object}");
}

#[test]
fn over_tcp_operations_are_compared_with_messages_of_their_lengths() {
    for engine in ["nessie", "kv-direct"] {
        let line = format!("--engine {engine} --fabric tcp --far on --records 2000 --seconds 1");
        let object = object("far", &format!("{line} --clients 2"));
        let [far, fabric] = ["far", "fabric"].map(|field| &object[field]);
        assert_eq!((far, fabric), (&Value::from(true), &Value::from("tcp")), "{object}");
        assert_eq!((&object["gets"], &object["errors"]), (&object["get_hits"], &Value::from(0)));
        let limit = |field: &str| number(&object, &format!("limit_{field}"));
        assert!(limit("ops_per_s") >= limit("one_ops_per_s"), "{object}");
        assert!(limit("one_ops_per_s") > 100.0 && limit("share") > 0.0, "{object}");
    }
    let near = object("near", "--fabric tcp --records 2000 --seconds 1");
    assert!(near["limit_ops_per_s"].is_null() && near.get("far").is_none(), "{near}");
}

#[test]
fn an_open_loop_does_what_is_wanted_and_no_more() {
    let line = "--engine nessie-server --records 2000 --seconds 1";
    let object = object("open", &format!("{line} --rate 1000"));
    // Within five deviations of a Poisson process; fewer where the machine did not keep up.
    assert!((1.0..1160.0).contains(&number(&object, "ops")), "{object}");
    assert_eq!((number(&object, "offered_ops_per_s"), &object["errors"]), (1000.0, &0.into()));
    let share = self::object("open-share", &format!("{line} --rate 10%"));
    let wanted = number(&share, "offered_ops_per_s");
    let most = wanted + 5.0 * wanted.sqrt();
    assert!(wanted > 0.0 && number(&share, "ops") <= most, "{share}");
}

#[test]
fn at_rest_servers_are_measured_all_the_same() {
    let line = "--engine nessie-server --records 2000 --seconds 0.5 --rate 0";
    let (rests, polls) = (object("rest", line), object("polls", &format!("{line} --dedicated")));
    assert_eq!((number(&rests, "ops"), number(&polls, "ops")), (0.0, 0.0));
    let cpu_s = |object| number(object, "server_cpu_s");
    assert!(cpu_s(&rests) < cpu_s(&polls), "a worker that never sleeps: {rests} {polls}");
}

#[test]
fn long_values_and_only_updates() {
    let object = object(
        "long",
        "--nodes 2 --clients 2 --lanes 4 --records 40 --value-size 1MiB --reads 0 --ops 400",
    );
    assert_eq!((&object["puts"], &object["errors"]), (&Value::from(400), &Value::from(0)));
    assert!(object["verbs_per_get"].is_null() && object["limit_ops_per_s"].is_number(), "{object}");
}

#[test]
fn switches_of_the_table_show_in_what_a_get_costs() {
    let trips = |name: &str, switches: &str| {
        let line = format!("--records 20000 --reads 1 --ops 100000 --dist zipf:0.99 {switches}");
        let object = object(name, &line);
        (number(&object, "round_trips_per_get"), number(&object, "bytes_per_get"))
    };
    let plain = trips("plain", "");
    let (cached, unfiltered) = (trips("cache", "--cache on"), trips("filter", "--filter-bits off"));
    assert!(cached.0 < plain.0 * 0.8, "a warm cache saves round trips: {cached:?} of {plain:?}");
    assert!(unfiltered.1 > plain.1 * 1.2, "others' entries are read: {unfiltered:?} of {plain:?}");
}

/// The steps of nessie, Figure 13: basic, and then one optimisation more each.
const ABLATION: [&str; 5] = [
    "--filter-bits off --cache off --previous-versions off --multi-read off",
    "--cache off --previous-versions off --multi-read off",
    "--cache on --cache-entry-max 32KiB --previous-versions off --multi-read off",
    "--cache on --cache-entry-max 32KiB --multi-read off",
    "--cache on --cache-entry-max 32KiB",
];

#[test]
fn every_step_of_the_ablation_can_be_measured() {
    let line = "--engine nessie-published --value-size 16KiB --records 600 --ops 3000 --reads 0.5 \
                --nodes 2 --clients 2 --bucket-slots 1 --index-fill 60 --dist uniform";
    for fabric in ["shm", "sim"] {
        let bytes = ABLATION.map(|step| {
            let object = object("ablation", &format!("{line} --fabric {fabric} {step}"));
            assert_eq!(object["engine"], "nessie-published");
            assert_eq!((&object["errors"], &object["gets"]), (&0.into(), &object["get_hits"]));
            number(&object, "bytes_per_get")
        });
        assert!(bytes[0] > bytes[1] * 1.1, "{fabric}: filters spare long READs: {bytes:?}");
        assert!(bytes[1] > bytes[2] * 1.1, "{fabric}: so does the cache: {bytes:?}");
    }
}

/// The output of a simulated run.
fn simulated(options: &str) -> Vec<u8> {
    let line = format!("bench --fabric sim --json --verify --records 3000 {options}");
    let output = Run::new(LOCH, "sim", &line).output();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{options}: {stderr}");
    output.stdout
}

fn simulated_object(options: &str) -> Value {
    serde_json::from_slice(&simulated(options)).expect("one object")
}

#[test]
fn a_simulated_run_is_repeated_to_the_last_byte() {
    let options = "--nodes 3 --clients 7 --lanes 4 --reads 0.5 --seconds 0.001";
    let first = simulated(&format!("{options} --seed 5"));
    assert_eq!(first, simulated(&format!("{options} --seed 5")));
    assert_ne!(first, simulated(&format!("{options} --seed 6")));
}

#[test]
fn a_simulated_run_has_the_fields_of_a_real_one_and_says_what_was_simulated() {
    let real = object("fields", "--records 3000 --ops 3000");
    let line = "--nodes 4 --clients 8 --reads 0.5 --ops 4000 --profile connectx3-10g";
    let simulated = simulated_object(line);
    let fields = |object: &Value| -> Vec<String> {
        object.as_object().expect("an object").keys().cloned().collect()
    };
    let mut expected = fields(&real);
    expected.extend(["connections".into(), "profile".into()]);
    expected.sort_unstable();
    assert_eq!(fields(&simulated), expected);
    assert_eq!(simulated["connections"], "client");
    assert_eq!(simulated["profile"], "connectx3-10g");
    assert_eq!((&simulated["fabric"], &simulated["ops"]), (&"sim".into(), &4000.into()));
    assert_eq!(simulated["gets"], simulated["get_hits"], "{simulated}");
    assert_eq!((&simulated["errors"], &simulated["server_cpu_s"]), (&0.into(), &0.0.into()));
    assert!(simulated["limit_ops_per_s"].is_null() && number(&simulated, "client_cpu_s") > 0.0);
}

#[test]
fn one_simulated_get_takes_two_round_trips_of_two_microseconds() {
    let object = simulated_object(
        "--nodes 8 --clients 1 --lanes 1 --reads 1 --cache off --dist uniform --ops 1000",
    );
    // Slots of all three hash functions in one doorbell, then the entry; now and then another
    // key's entry first. HERD (§3.2) measured 2 us for a READ.
    assert!((1.9..2.3).contains(&number(&object, "round_trips_per_get")), "{object}");
    assert!((3.9..4.2).contains(&number(&object["get_us"], "p50")), "{object}");
    assert!((3.9..4.3).contains(&number(&object, "verbs_per_get")), "{object}");
}

#[test]
fn simulated_links_bound_long_values_and_hogs_take_processors() {
    let object = simulated_object(
        "--profile connectx3-10g --nodes 4 --clients 32 --lanes 2 --reads 1 --cache off \
         --dist uniform --value-size 16KiB --ops 4000",
    );
    let remote_gbit_s = number(&object, "goodput_bytes_per_s") * 8.0 / 1e9 * 3.0 / 4.0;
    assert!((24.0..40.0).contains(&remote_gbit_s), "of 40: {object}");
    let small = "--nodes 2 --clients 4 --lanes 1 --reads 1 --dist uniform --seconds 0.05";
    let alone = number(&simulated_object(small), "ops_per_s");
    let beside = number(&simulated_object(&format!("{small} --background-hogs 22")), "ops_per_s");
    assert!((0.3..0.7).contains(&(beside / alone)), "two share a core: {beside} of {alone}");
}

#[test]
fn what_cannot_be_simulated_is_a_usage_error() {
    for (options, word) in [
        ("--fabric sim --peer redis", "two runs"),
        ("--profile connectx3-10g", "--fabric sim"),
        ("--fabric sim --nodes 300", "256"),
    ] {
        let output = Run::new(LOCH, "not", &format!("bench {options}")).output();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {stderr}");
        assert!(stderr.contains(word) && output.stdout.is_empty(), "{options}: {stderr}");
    }
}

#[test]
fn an_engine_that_is_not_there_is_a_usage_error_that_says_what_is() {
    for (options, word) in [
        ("--fabric verbs --engine nessie-published", "nessie-published"),
        ("--fabric sim --engine kv-direct", "has nessie, nessie-published"),
    ] {
        let output = Run::new(LOCH, "not", &format!("bench --records 10 {options}")).output();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {stderr}");
        assert!(stderr.contains(word) && stderr.contains("not in this build"), "{stderr}");
        assert!(output.stdout.is_empty(), "{options}");
    }
}

#[test]
fn a_build_without_verbs_says_so() {
    if cfg!(feature = "verbs") {
        return;
    }
    for options in ["", "--attach /nowhere/a.sock"] {
        let line = format!("bench --records 10 --fabric verbs {options}");
        let output = Run::new(LOCH, "not", &line).output();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("--features verbs") && output.stdout.is_empty(), "{stderr}");
    }
}

#[test]
fn more_than_nodes_can_hold_is_refused_at_once() {
    let output = Run::new(LOCH, "much", "bench --records 1000000 --value-size 1MiB").output();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--records"), "{stderr}");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let line = "bench --nodes 2 --clients 2 --seconds 60 --json --peer gateway-resp";
    for (name, signal) in [("int", Signal::INT), ("term", Signal::TERM)] {
        let mut run = Run::new(LOCH, name, line);
        let output = run.interrupted(signal);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        run.nothing_is_left();
    }
}

#[test]
fn the_nodes_of_a_killed_run_end_too() {
    let mut run = Run::new(LOCH, "kill", "bench --nodes 2 --clients 2 --seconds 60 --json");
    run.interrupted(Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline && !run.processes().is_empty() {
        thread::yield_now();
    }
    assert_eq!(run.processes(), Vec::<String>::new());
    let left = files(run.process);
    let regions = left.iter().filter(|file| file.extension().is_some_and(|e| e == "region"));
    assert_eq!(regions.count(), 0, "nodes remove their memory themselves: {left:?}");
    for file in left.iter().rev() {
        let removed = std::fs::remove_file(file).or_else(|_| std::fs::remove_dir(file));
        removed.expect("what the killed bench could not remove is small and ours");
    }
}

#[test]
fn the_demo_shows_a_table_and_what_to_try_next() {
    let mut run = Run::new(LOCH, "demo", "demo --records 2000 --seconds 0.2");
    let began = Instant::now();
    let output = run.output();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(began.elapsed() < Duration::from_secs(60));
    for word in ["nessie", "lmdb", "gateway-resp", "× of", "loch serve", "loch bench --help"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    let (tables, _) = stdout.split_once("Try next").expect("it was looked for");
    assert!(tables.lines().all(|line| line.chars().count() <= 100), "{tables}");
    run.nothing_is_left();
}
