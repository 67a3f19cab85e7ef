//! The engines whose servers take part, in virtual time: what `loch bench --fabric sim` says of
//! them is what their papers say an operation costs, and the same every time.

#[path = "../../../tests/measured/mod.rs"]
mod measured;

use serde_json::Value;

use measured::{costs, number, simulated};

const LOCH: &str = env!("CARGO_BIN_EXE_loch");

fn object(options: &str) -> Value {
    measured::simulated_object(LOCH, options)
}

#[test]
fn a_line_for_each_engine_and_every_digit_again() {
    let engines = ["nessie", "nessie-published", "nessie-server", "nessie-hybrid", "herd", "pilaf"];
    let options = format!(
        "--engine {} --nodes 2 --clients 5 --lanes 3 --window 2 --records 2000 --reads 0.5 \
         --seconds 0.0005",
        engines.join(",")
    );
    let first = simulated(LOCH, &format!("{options} --seed 5"));
    assert_eq!(first, simulated(LOCH, &format!("{options} --seed 5")));
    assert_ne!(first, simulated(LOCH, &format!("{options} --seed 6")));
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
    let hybrid = |name: &str| {
        object(&format!(
            "--engine {name} --nodes 4 --clients 4 --lanes 1 --records 3000 --reads 0.5 --ops 3000 \
             --cache off"
        ))
    };
    // Slots of three functions in one doorbell and then an entry; or a request and a reply.
    let plus = hybrid("nessie-hybrid+");
    let [get, put] = costs(&plus);
    assert!((2.8..3.4).contains(&get.0) && (1.4..1.7).contains(&get.1), "{plus}");
    assert!((1.4..1.6).contains(&put.0) && (0.7..0.8).contains(&put.1), "{plus}");
    // The paper's version has no filter bits, and READs entries of other keys.
    let [without, _] = costs(&hybrid("nessie-hybrid"));
    assert!(without.0 > get.0 + 0.3 && without.1 > get.1 + 0.3, "{without:?} {get:?}");
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
fn lanes_beyond_the_window_get_their_turn() {
    let object = object(
        "--engine nessie-server --nodes 2 --clients 2 --lanes 12 --window 2 --records 1000 \
         --reads 0 --ops 4000",
    );
    let at = |quantile| number(&object["put_us"], quantile);
    // Six lanes share a slot. One that never gets it waits for as long as the run takes.
    assert!(at("p999") < 1.5 * at("p90"), "{object}");
}
