//! The engines whose servers take part, in virtual time: what `loch bench --fabric sim` says of them
//! is what their papers say an operation costs, and the same every time.

use std::process::Command;

use serde_json::Value;

const LOCH: &str = env!("CARGO_BIN_EXE_loch");

/// What a run prints, which has to succeed.
fn output(options: &str) -> String {
    let line = format!("bench --fabric sim --json --verify --dist uniform {options}");
    let output = Command::new(LOCH).args(line.split_whitespace()).output();
    let output = output.expect("the binary under test starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{options}: {stderr}");
    String::from_utf8(output.stdout).expect("JSON is text")
}

/// Its objects, one for each engine.
fn objects(options: &str) -> Vec<Value> {
    let lines = output(options);
    lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

fn object(options: &str) -> Value {
    let mut objects = objects(options);
    assert_eq!(objects.len(), 1, "{options}");
    objects.remove(0)
}

fn number(object: &Value, field: &str) -> f64 {
    object[field].as_f64().unwrap_or_else(|| panic!("{field}: {object}"))
}

/// What a GET and what a PUT costs: verbs and round trips.
fn costs(object: &Value) -> [(f64, f64); 2] {
    ["get", "put"].map(|kind| {
        let of = |what: &str| number(object, &format!("{what}_per_{kind}"));
        (of("verbs"), of("round_trips"))
    })
}

#[test]
fn a_line_for_each_engine_and_every_digit_again() {
    let engines = ["nessie", "nessie-published", "nessie-server", "nessie-hybrid", "herd", "pilaf"];
    let options = format!(
        "--engine {} --nodes 2 --clients 5 --lanes 3 --window 2 --records 2000 --reads 0.5 \
         --seconds 0.0005",
        engines.join(",")
    );
    let first = output(&format!("{options} --seed 5"));
    assert_eq!(first, output(&format!("{options} --seed 5")));
    assert_ne!(first, output(&format!("{options} --seed 6")));
    for (line, engine) in first.lines().zip(engines) {
        let object: Value = serde_json::from_str(line).expect("an object");
        assert_eq!(object["engine"], engine);
        assert_eq!(object["errors"], 0, "{object}");
        assert_eq!(object["gets"], object["get_hits"], "{object}");
        let serves = !["nessie", "nessie-published"].contains(&engine);
        assert_eq!(number(&object, "server_cpu_s") > 0.0, serves, "{object}");
        // Nothing is lost here.
        assert!(!serves || engine == "nessie-hybrid" || object["retries"] == 0, "{object}");
    }
}

#[test]
fn a_request_takes_two_writes_and_one_round_trip_and_nothing_at_home() {
    let server = |nodes: u32| {
        object(&format!(
            "--engine nessie-server --nodes {nodes} --clients {nodes} --lanes 1 --records 3000 \
             --reads 0.5 --ops 3000"
        ))
    };
    assert_eq!(costs(&server(1)), [(0.0, 0.0); 2]);
    // Three of four keys are another node's.
    for (verbs, round_trips) in costs(&server(4)) {
        assert!((1.4..1.6).contains(&verbs) && (0.7..0.8).contains(&round_trips), "{verbs}");
    }
}

#[test]
fn hybrid_clients_read_by_themselves_and_ask_for_the_rest() {
    let object = object(
        "--engine nessie-hybrid --nodes 4 --clients 4 --lanes 1 --records 3000 --reads 0.5 \
         --ops 3000 --cache off",
    );
    // Slots of three functions in one doorbell and then an entry; or a request and a reply.
    let [get, put] = costs(&object);
    assert!((2.8..3.4).contains(&get.0) && (1.4..1.7).contains(&get.1), "{object}");
    assert!((1.4..1.6).contains(&put.0) && (0.7..0.8).contains(&put.1), "{object}");
}

#[test]
fn one_core_of_herd_answers_four_million_requests_and_six_fill_the_card() {
    let herd = |workers: u32| {
        let object = object(&format!(
            "--engine herd --workers {workers} --clients 48 --client-hosts 16 --lanes 4 --window 4 \
             --records 20000 --value-size 32 --seconds 0.0005"
        ));
        assert_eq!(costs(&object), [(2.0, 1.0); 2]);
        (number(&object, "ops_per_s") / 1e6, number(&object, "server_cpu_s") / 0.0005)
    };
    let (mops, cores) = herd(1);
    assert!((4.0..7.0).contains(&mops) && (0.9..1.1).contains(&cores), "{mops} M/s, {cores}");
    let (mops, cores) = herd(6);
    // 21 M SENDs a second (herd §3.2.2).
    assert!((18.0..22.0).contains(&mops) && cores < 6.1, "{mops} M/s, {cores}");
}

#[test]
fn workers_are_what_bounds_small_requests() {
    let line = |workers: u32| {
        object(&format!(
            "--engine nessie-server --nodes 2 --clients 24 --lanes 4 --workers {workers} \
             --records 3000 --reads 0.9 --seconds 0.001"
        ))
    };
    let (one, two) = (line(1), line(2));
    assert!(number(&two, "ops_per_s") > 1.5 * number(&one, "ops_per_s"), "{one} {two}");
    let busy = number(&one, "server_cpu_s") / (2.0 * number(&one, "seconds"));
    assert!((0.9..1.05).contains(&busy), "all of both workers' time: {one}");
}

#[test]
fn the_papers_baselines_cost_what_the_papers_say() {
    let run = |engine: &str, options: &str| {
        let object = object(&format!(
            "--engine {engine} --clients 6 --lanes 2 --window 2 --records 2000 --value-size 32 \
             --reads 0.5 --seconds 0.0005 {options}"
        ));
        assert_eq!((&object["engine"], &object["errors"]), (&engine.into(), &0.into()), "{object}");
        assert!(number(&object, "server_cpu_s") > 0.0, "{object}");
        object
    };
    let hosts = "--client-hosts 3 --workers 2";
    // One READ of 6 * (16 + 32) bytes, or one of pointers and one of the value; a PUT is a WRITE
    // and the WRITE of its reply (herd §5.1.2).
    for (engine, reads, bytes) in [("farm-em", 1.0, 288.0), ("farm-em-var", 2.0, 144.0 + 32.0)] {
        let object = run(engine, hosts);
        assert_eq!(object["gets"], object["get_hits"], "{object}");
        let [get, put] = costs(&object);
        assert!((reads..reads + 0.05).contains(&get.0) && get.0 == get.1, "{object}");
        assert!((bytes..bytes * 1.05).contains(&number(&object, "bytes_per_get")), "{object}");
        assert_eq!(put, (2.0, 1.0), "{object}");
    }
    for engine in ["echo-send-send", "echo-write-write", "echo-write-send"] {
        let object = run(engine, hosts);
        assert_eq!((costs(&object), &object["get_hits"]), ([(2.0, 1.0); 2], &0.into()), "{object}");
        assert!(number(&object, "gets") > 0.0, "{object}");
    }
    let object = run("pilaf-vo", "");
    assert_eq!(object["gets"], object["get_hits"], "{object}");
    // On its nodes' hosts, too, where replies are stored.
    for (engine, hits) in [("farm-em", true), ("farm-em-var", true), ("echo-write-write", false)] {
        let object = run(engine, "--nodes 2");
        assert_eq!(object["gets"] == object["get_hits"], hits, "{object}");
        // Values that were being written when they were read.
        assert!(number(&object, "retries") < 0.01 * number(&object, "gets"), "{object}");
    }
}

#[test]
fn what_no_datagram_holds_is_refused() {
    for engine in ["pilaf-vo", "echo-write-send"] {
        let line = format!("bench --fabric sim --engine {engine} --records 10 --value-size 4KiB");
        let output = Command::new(LOCH).args(line.split_whitespace()).output();
        let output = output.expect("the binary under test starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("--value-size") && stderr.contains(engine), "{stderr}");
    }
}

#[test]
fn lanes_beyond_the_window_get_their_turn() {
    let object = object(
        "--engine nessie-server --nodes 2 --clients 2 --lanes 12 --window 2 --records 1000 \
         --reads 0 --ops 4000",
    );
    let at = |quantile| number(&object["put_us"], quantile);
    // Six lanes share a slot. One that never gets it waits for as long as the run takes.
    assert!(at("p999") < 1.5 * at("p90"), "{object}");
}
