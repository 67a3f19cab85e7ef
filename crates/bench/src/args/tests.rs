//! Command lines, and the workloads that they become.

use clap::Parser;

use super::*;
use crate::options::{Attach, AutoSwitch, Eviction, Switch};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

/// The spec of a command line, also for the tests of other modules.
pub fn spec(line: &str) -> Result<Spec, String> {
    let line = Line::try_parse_from(std::iter::once("bench").chain(line.split_whitespace()))
        .map_err(|error| error.to_string())?;
    line.bench.spec().map_err(|error| error.to_string())
}

fn named(name: &str) -> Engine {
    name.parse().unwrap()
}

#[test]
fn defaults_are_a_short_skewed_run_of_nessie() {
    let spec = spec("").unwrap();
    assert_eq!(spec.engines, [named("nessie")]);
    assert_eq!((spec.fabric, spec.nodes, spec.clients, spec.lanes), (Fabric::Shm, 1, 1, 16));
    assert_eq!((spec.records, spec.value_size, spec.key_size), (1_000_000, 64, 16));
    assert_eq!((spec.reads, spec.dist), (0.95, Dist::Zipf(0.99)));
    assert_eq!((spec.stop, spec.seed, spec.background_hogs), (Stop::Seconds(5.0), 1, 0));
}

#[test]
fn a_simulated_run_has_defaults_of_its_own() {
    let spec = spec("--fabric sim").unwrap();
    assert_eq!((spec.hardware, spec.stop), (Hardware::ConnectX3At56, Stop::Seconds(0.01)));
}

#[test]
fn lists_are_comma_separated_or_repeated() {
    let spec = spec("--engine pilaf,herd --peer redis --peer lmdb,memcached").unwrap();
    assert_eq!(spec.engines, [named("pilaf"), named("herd")]);
    assert_eq!(spec.peers, [Peer::Redis, Peer::Lmdb, Peer::Memcached]);
}

#[test]
fn a_gateway_is_a_peer_with_threads() {
    let spec = spec("--peer gateway-memcached,gateway-resp --peer-threads 2").unwrap();
    assert_eq!(spec.peers, [Peer::GatewayMemcached, Peer::GatewayResp]);
    assert_eq!(spec.peer_threads, Some(2));
}

#[test]
fn errors_name_the_option_and_the_way_out() {
    for (line, option, way_out) in [
        ("--key-size 7", "--key-size", "8 to"),
        ("--value-size 0", "--value-size", "1 to"),
        ("--value-size 16kb", "--value-size", "16KiB"),
        ("--reads 1.5", "--reads", "from 0"),
        ("--reads NaN", "--reads", "from 0"),
        ("--lanes 0", "--lanes", "1 to"),
        ("--clients 0", "--clients", "1 to"),
        ("--records 0", "--records", "1 to"),
        ("--ops 0", "--ops", "1 or more"),
        ("--seconds 0", "--seconds", "above 0"),
        ("--seconds NaN", "--seconds", "above 0"),
        ("--dist zipf", "--dist", "zipf:THETA"),
        ("--dist zipf:1.2", "--dist", "between 0 and 1"),
        ("--engine none", "--engine", "--peer"),
        ("--profile connectx3-10g", "--profile", "--fabric sim"),
        ("--fabric sim --profile connectx7", "--profile", "connectx6-200g"),
        ("--fabric sim --peer redis", "--peer", "two runs"),
        ("--engine none,nessie --peer lmdb", "--engine", "drop one"),
        ("--engine nessy", "--engine", "nessie-hybrid"),
        ("--seconds 1 --ops 2", "--seconds", "cannot be used with"),
        ("--rate=-1", "--rate", "200000"),
        ("--rate 101%", "--rate", "40%"),
        ("--rate 10 --fabric sim", "--rate", "drop it"),
        ("--rate 10 --peer redis", "--rate", "--peer"),
        ("--rate 0 --ops 10", "--rate", "--seconds"),
        ("--index-slots 64", "--index-slots", "--memory"),
        ("--peer redis --peer-threads 0", "--peer-threads", "1..=256"),
        ("--peer redis-lfu", "--peer", "--eviction sieve"),
        ("--engine herd,nessie --eviction sieve", "herd has no tables", "nessie-server"),
        ("--engine nessie-published --eviction sieve", "nessie-published has", "nessie-server"),
        ("--trace t.csv", "--trace", "--memory 64MiB"),
        ("--trace t.csv --eviction sieve", "--trace", "--memory 64MiB"),
        ("--trace t --eviction sieve --memory 1MiB --fabric sim", "--trace", "--fabric sim"),
        ("--trace t.csv --records 5", "--trace", "--records"),
        ("--trace t.csv --seconds 5", "--trace", "--seconds"),
        ("--trace t.csv --seed 5", "--trace", "--seed"),
        ("--trace t.csv --table t", "--trace", "--table"),
        ("--trace t.csv --load no", "--trace", "--load"),
        ("--memory 64MiB --index-fill 5", "--memory", "--index-fill"),
        ("--far on", "--far", "--fabric tcp"),
        ("--far on --fabric sim", "--far", "--fabric tcp"),
    ] {
        let error = spec(line).expect_err(line);
        assert!(error.contains(option) && error.contains(way_out), "{line}: {error}");
    }
}

#[test]
fn a_spec_survives_its_way_to_a_worker() {
    let spec = spec("--dist zipf:0.7 --ops 12 --rate 12.5%").unwrap();
    let line = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&line).unwrap(), spec);
}

#[test]
fn the_defaults_are_those_of_a_table_nobody_tuned() {
    let own = loch::engines::nessie::options::Options::default();
    let (options, table) = (spec("").unwrap().table, &own.layout);
    assert_eq!(bool::from(options.filter_bits), table.filter_bits);
    assert_eq!(Option::<bool>::from(options.cache), own.cache);
    assert_eq!(bool::from(options.multi_read), table.multi_read);
    assert_eq!(Option::<bool>::from(options.batched_reads), table.batched_reads);
    assert_eq!(bool::from(options.checksums), table.checksums);
    assert_eq!((options.ways, options.bucket_slots), (table.ways, table.bucket_slots));
}

#[test]
fn a_replay_has_one_lane_unless_more_are_asked_for() {
    let line = "--trace t.csv --eviction sieve --memory 64MiB --peer redis-lfu,memcached";
    let spec = |more: &str| super::tests::spec(&format!("{line} {more}")).unwrap();
    assert_eq!((spec("").lanes, spec("").turns(), spec("--lanes 4").lanes), (1, 1, 4));
    assert_eq!(spec("--nodes 2").cache_bytes(), Some(128 << 20));
    assert_eq!(spec("").replay.unwrap().file.to_str(), Some("t.csv"));
}

#[test]
fn a_running_cluster_is_what_it_is() {
    let attached = spec("--attach /run/a.sock --fabric verbs").unwrap().attach;
    let expected = Attach { socket: "/run/a.sock".into(), table: "default".into(), loads: true };
    assert_eq!(attached, Some(expected));
    let attached = spec("--attach /a --load no --table t").unwrap().attach.unwrap();
    assert!(!attached.loads && attached.table == "t");
    for (contradiction, option) in [
        ("--nodes 1", "--nodes"),
        ("--peer redis", "--peer"),
        ("--cache on", "--cache"),
        ("--ways 3", "--ways"),
        ("--index-fill 50", "--index-fill"),
        ("--eviction sieve", "the running nodes say that"),
        ("--fabric sim", "--fabric sim"),
        ("--key-size 15", "--key-size"),
        ("--engine none", "--engine"),
    ] {
        let error = spec(&format!("--attach /a {contradiction}")).expect_err(contradiction);
        assert!(error.contains(option), "{contradiction}: {error}");
    }
    for alone in ["--load no", "--table t"] {
        assert!(spec(alone).expect_err(alone).contains("--attach"), "{alone}");
    }
}

#[test]
fn connections_are_shared_in_the_simulator_alone() {
    assert_eq!(spec("").unwrap().connections, Connections::Client);
    assert_eq!(spec("--fabric sim --connections host").unwrap().connections, Connections::Host);
    for (fabric, reason) in [("shm", "without connections"), ("verbs", "fence")] {
        let error = spec(&format!("--fabric {fabric} --connections host")).expect_err(fabric);
        assert!(error.contains("--connections") && error.contains(reason), "{error}");
        assert!(error.contains("--fabric sim"), "{error}");
    }
}

#[test]
fn workers_are_simulated_and_client_hosts_are_herds() {
    let line = "--fabric sim --engine herd --workers 6 --window 4 --client-hosts 17";
    let default = spec("").unwrap().servers;
    let expected = ServerOptions { workers: 6, window: Some(4), client_hosts: 17, ..default };
    assert_eq!(spec(line).unwrap().servers, expected);
    let line = "--engine kv-direct --batch 1 --out-of-order off";
    let expected = ServerOptions { batch: 1, out_of_order: Switch::Off, ..default };
    assert_eq!(spec(line).unwrap().servers, expected);
    for (line, option, way_out) in [
        ("--workers 2", "--workers", "nessie-server"),
        ("--fabric sim --window 2", "--window", "nessie-server"),
        ("--previous-versions off", "--previous-versions", "nessie-published"),
        ("--engine herd --client-hosts 2", "--client-hosts", "--fabric sim"),
        ("--fabric sim --engine herd,pilaf --workers 2", "--workers", "pilaf"),
        ("--fabric sim --workers 0", "--workers", "1.."),
        ("--dedicated", "--dedicated", "nessie-server"),
        ("--batch 4", "--batch", "--engine kv-direct"),
        ("--out-of-order off", "--out-of-order", "--engine kv-direct"),
        ("--fabric sim --engine herd --dedicated", "--dedicated", "drop it"),
        ("--fabric sim --window 257", "--window", "256"),
        ("--fabric sim --client-hosts 1", "--client-hosts", "--engine herd"),
        ("--fabric sim --engine herd --client-hosts 256", "--client-hosts", "256"),
    ] {
        let error = spec(line).expect_err(line);
        assert!(error.contains(option) && error.contains(way_out), "{line}: {error}");
    }
}

#[test]
fn every_switch_can_be_turned() {
    let options = spec(
        "--filter-bits off --cache on --cache-lines 64 --cache-entry-max 32KiB --multi-read off --previous-versions off --batched-reads on \
         --checksums on --engine nessie-published --ways 2 --bucket-slots 1 \
         --memory 64MiB --index-slots 4096",
    );
    let expected = TableOptions {
        filter_bits: Switch::Off,
        cache: AutoSwitch::On,
        cache_lines: 64,
        cache_entry_max: ByteSize::new(32 << 10),
        multi_read: Switch::Off,
        previous_versions: Switch::Off,
        batched_reads: AutoSwitch::On,
        checksums: Switch::On,
        ways: 2,
        bucket_slots: Some(1),
        eviction: Eviction::None,
        memory: Some(ByteSize::new(64 << 20)),
        index_slots: Some(4096),
        index_fill: 75,
    };
    assert_eq!(options.unwrap().table, expected);
    assert_eq!(spec("--index-fill 50").unwrap().table.index_fill, 50);
    assert_eq!(spec("--eviction sieve").unwrap().table.eviction, Eviction::Sieve);
    for wrong in
        ["--bucket-slots 5", "--eviction lru", "--ways 5", "--cache maybe", "--index-fill 96"]
    {
        assert!(spec(wrong).is_err(), "{wrong}");
    }
}
