//! Plans of tables of every engine, and the errors of tables that cannot be laid out.

use loch_engines::kv_direct::PartitionShape;
use loch_engines::limits::VALUE_BYTES_DEFAULT;
use loch_engines::nessie::geometry::Geometry;
use loch_engines::requests::{Area, Service};

use super::*;

const MIB: u64 = 1 << 20;
const SERVED: [&str; 6] =
    ["nessie-server", "nessie-hybrid", "nessie-hybrid+", "herd", "pilaf", "kv-direct"];

fn plan(memory: u64, tables: &[TableConfig]) -> Result<Plan, Error> {
    planned(memory, 1, 64, tables)
}

fn planned(
    memory: u64,
    nodes: usize,
    sessions: u32,
    tables: &[TableConfig],
) -> Result<Plan, Error> {
    let memory = ByteSize::new(memory);
    Plan::new(Sizes { node: 0, nodes, memory, sessions, is_remote: false, tables })
}

/// A table of nessie.
fn table(name: &str) -> TableConfig {
    TableConfig { name: name.into(), ..TableConfig::default() }
}

/// A table with these fields.
fn declared(fields: &str) -> TableConfig {
    TableConfig::from_toml(fields).unwrap()
}

/// The plan of a table with these fields.
fn of(engine: &str, fields: &str, memory: u64, nodes: usize) -> Result<Plan, Error> {
    let table = declared(&format!("engine = '{engine}'\n{fields}"));
    planned(memory, nodes, 1024, &[table])
}

fn geometry(plan: &Plan) -> Geometry {
    Geometry::of(&plan.tables[0].params)
}

#[test]
fn the_index_takes_about_seven_percent() {
    for memory in [8 << 20, 256 << 20, 8 << 30] {
        let geometry = geometry(&plan(memory, &[]).unwrap());
        let share = geometry.index_bytes() as f64 / memory as f64;
        assert!((0.06..0.08).contains(&share), "{memory}: {share}");
        let used = geometry.index_bytes() + geometry.data_bytes();
        assert!(used as f64 > memory as f64 * 0.95 - (1 << 18) as f64, "{memory}: {used}");
    }
}

#[test]
fn tables_without_a_share_divide_the_rest() {
    let named = TableConfig { memory: Some(ByteSize::new(16 << 20)), ..table("a") };
    let plan = plan(64 << 20, &[named, table("b"), table("c")]).unwrap();
    let data: Vec<u64> =
        plan.tables.iter().map(|t| Geometry::of(&t.params).data_bytes() >> 20).collect();
    assert!((14..16).contains(&data[0]) && (21..24).contains(&data[1]), "{data:?}");
    assert!(data[1].abs_diff(data[2]) <= 1, "{data:?}");
}

#[test]
fn the_longest_value_fits_its_table() {
    let longest = |memory| plan(memory, &[]).unwrap().tables[0].params.value_bytes_max;
    assert_eq!(longest(1 << 30), VALUE_BYTES_DEFAULT);
    assert!(longest(16 << 20) <= 4 << 20);
    let greedy = TableConfig { value_max: Some(ByteSize::new(16 << 20)), ..table("t") };
    let error = plan(16 << 20, &[greedy]).unwrap_err().to_string();
    assert!(error.contains("value_max is 16MiB"), "{error}");
}

#[test]
fn a_table_that_cannot_be_laid_out_is_named() {
    let with = |fields: &str| plan(64 << 20, &[declared(fields)]).unwrap_err().to_string();
    for (error, word) in [
        (plan(64 << 10, &[]).unwrap_err().to_string(), "(with memory = \"2MiB\" it fits)"),
        (with("ways = 9"), "ways is 9"),
        (with("bucket_slots = 3"), "bucket_slots is 3, it may be 1, 2 or 4"),
        (with("eviction = 'sieve'\nbucket_slots = 4"), "1 or 3, because the table evicts"),
        (with("eviction = 'sieve'\nprotocol = 'published'"), "does not evict"),
        (with("previous_versions = true"), "is for protocol \"published\""),
        (with("workers = 2"), "workers is for nessie-server"),
        (with("name = ''"), "name"),
        (with(&format!("name = '{}'", "n".repeat(49))), "1 to 48"),
        (with("memory = '1GiB'"), "(default 1GiB)"),
        (with("memory = '1MiB'"), "(with memory = \"2MiB\" for table \"default\" it fits)"),
        (with("index_slots = 9000000000000000000"), "index_slots"),
        (with("index_slots = 0"), "index_slots is 0"),
        (with("value_max = '2GiB'"), "value_max"),
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    let twice = plan(64 << 20, &[table("t"), table("t")]).unwrap_err().to_string();
    assert!(twice.contains("twice"), "{twice}");
}

/// Over a network clients of nessie-hybrid have no rights to write marks.
#[test]
fn a_table_evicts_where_its_clients_may_mark_what_they_use() {
    for (engine, is_remote, evicts) in [
        ("nessie", true, true),
        ("nessie-server", true, true),
        ("nessie-hybrid", false, true),
        ("nessie-hybrid", true, false),
        ("nessie-hybrid+", true, false),
    ] {
        let tables = [declared(&format!("engine = '{engine}'\neviction = 'sieve'"))];
        let (nodes, memory, sessions) = (1, ByteSize::new(64 << 20), 64);
        let plan =
            Plan::new(Sizes { node: 0, nodes, memory, sessions, is_remote, tables: &tables });
        let refused = plan.err().map(|error| error.to_string());
        let is_right = refused.as_ref().is_none_or(|error| error.contains("remove eviction"));
        assert!(refused.is_none() == evicts && is_right, "{engine} {is_remote}: {refused:?}");
    }
}

#[test]
fn memory_that_an_engine_cannot_use_is_no_error() {
    for engine in SERVED {
        let table = declared(&format!("name = 't'\nengine = '{engine}'"));
        for gib in [64, 1 << 10] {
            let planned = plan(gib << 30, std::slice::from_ref(&table));
            assert!(planned.is_ok(), "{engine} of {gib} GiB: {}", planned.unwrap_err());
        }
    }
}

#[test]
fn memory_that_no_table_can_use_is_left_out_of_the_region() {
    assert_eq!(plan(9 << 40, &[]).unwrap().left_out, None, "one table uses 8 TiB and its index");
    let planned = plan(1 << 46, &[]).unwrap();
    let end = planned.tables[0].end();
    assert!((8 << 40..12 << 40).contains(&end), "{end}");
    assert_eq!(planned.header.region_bytes, end.next_multiple_of(TABLE_ALIGN_BYTES));
    let left_out = planned.left_out.unwrap();
    assert_eq!(left_out.bytes, (1 << 46) - planned.header.region_bytes);
    assert!(left_out.reason().contains("up to 8TiB a node"), "{}", left_out.reason());
    // The table could use more, but is given no more.
    let named = TableConfig { memory: Some(ByteSize::new(16 << 20)), ..table("t") };
    let left_out = plan(64 << 20, &[named]).unwrap().left_out.unwrap();
    assert!(left_out.bytes >= 47 << 20, "{left_out:?}");
    assert!(left_out.reason().contains("`memory` of its own"), "{}", left_out.reason());
    // A small unused part is not reported.
    let small = TableConfig { memory: Some(ByteSize::new(60 << 20)), ..table("t") };
    let planned = plan(64 << 20, &[small]).unwrap();
    assert_eq!((planned.header.region_bytes, planned.left_out), (64 << 20, None));
}

#[test]
fn a_changed_configuration_is_told_apart_field_by_field() {
    let made = plan(64 << 20, &[table("t")]).unwrap();
    assert_eq!(made.difference(&made.header, &made.tables), None);
    let field = |changed: Plan| {
        let difference = changed.difference(&made.header, &made.tables).unwrap();
        assert_ne!(difference.have, difference.want);
        difference.field
    };
    let with =
        |fields: &str| plan(64 << 20, &[declared(&format!("name = 't'\n{fields}"))]).unwrap();
    assert_eq!(field(plan(65 << 20, &[table("t")]).unwrap()), "memory");
    assert_eq!(field(plan(64 << 20, &[table("u")]).unwrap()), "table name");
    assert_eq!(field(with("memory = '60MiB'")), "table \"t\": memory");
    assert_eq!(field(with("ways = 2")), "table \"t\": ways");
    assert_eq!(field(with("cache = true")), "table \"t\": options");
    assert_eq!(field(with("protocol = 'published'")), "table \"t\": protocol");
    assert_eq!(field(with("index_slots = 4096")), "table \"t\": index_slots");
    let two = plan(64 << 20, &[table("t"), table("u")]).unwrap();
    assert_eq!(field(two), "tables");
}

#[test]
fn tables_have_no_more_in_the_process_than_the_host_has() {
    let herd = |name: &str| declared(&format!("name = '{name}'\nengine = 'herd'"));
    let plans = [plan(256 << 20, &[herd("a"), herd("b")]).unwrap()];
    check_private(&plans, 256 << 20).unwrap();
    let error = check_private(&plans, 128 << 20).unwrap_err().to_string();
    assert!(error.contains("table \"b\"") && error.contains("has 128MiB"), "{error}");
    // The file system gives or refuses the memory of a region.
    check_private(&[plan(64 << 20, &[table("t")]).unwrap()], 0).unwrap();
}

#[test]
fn requests_take_no_more_than_their_share_if_nothing_else_is_said() {
    for engine in SERVED {
        for (memory, nodes) in [(256 * MIB, 1), (256 * MIB, 4), (4096 * MIB, 2)] {
            let planned = of(engine, "", memory, nodes).unwrap();
            let entry = &planned.tables[0];
            let Service { sessions_per_node, .. } = entry.params.service;
            let requests = Area::new(entry.params.service, entry.params.nodes).unwrap().bytes();
            // Replies without a value take additional memory.
            assert!(requests <= memory / 8 + MIB, "{engine}: {requests} of {memory}");
            assert_eq!(sessions_per_node, 65);
        }
    }
}

#[test]
fn values_of_herd_and_kv_direct_are_not_in_the_region() {
    for engine in ["herd", "kv-direct"] {
        let planned = of(engine, "", 256 * MIB, 1).unwrap();
        assert!(planned.header.region_bytes <= 33 * MIB, "{}", planned.header.region_bytes);
        let all = planned.header.region_bytes + planned.private_bytes.iter().sum::<u64>();
        assert!((255 * MIB..=256 * MIB).contains(&all), "{engine}: {all}");
    }
    let pilaf = of("pilaf", "", 256 * MIB, 1).unwrap();
    assert_eq!((pilaf.header.region_bytes, pilaf.private_bytes), (256 * MIB, vec![0]));
}

#[test]
fn workers_that_are_clients_have_session_slots_of_their_own() {
    let own = [("nessie-server", 4), ("nessie-hybrid", 4), ("kv-direct", 4), ("herd", 1)];
    for (engine, own) in own {
        let planned = of(engine, "workers = 3", 256 * MIB, 1).unwrap();
        assert_eq!(planned.header.sessions, 1024 + own, "{engine}");
        assert_eq!(crate::layout::plan::client_sessions(&planned.header, &planned.tables), 1024);
    }
}

#[test]
fn a_table_that_cannot_be_served_is_named() {
    let of = |engine, fields| of(engine, fields, 16 * MIB, 1).unwrap_err().to_string();
    for (error, word) in [
        (of("herd", "workers = 0"), "workers is 0"),
        (of("herd", "window = 257"), "window is 257"),
        (of("herd", "sessions = 1025"), "1 to the node's 1024"),
        (of("herd", "value_max = 4096"), "952"),
        (of("herd", "index_slots = 1073741824"), "index"),
        (of("herd", "sessions = 1024\nwindow = 64"), "fewer sessions"),
        (of("pilaf", "workers = 2"), "one worker"),
        (of("pilaf", "value_max = 8388608"), "value_max"),
        (of("nessie-server", "sessions = 1024"), "value_max"),
        (of("kv-direct", "index_ratio = 1.1"), "index_ratio is 1.1"),
        (of("kv-direct", "index_ratio = nan"), "index_ratio is NaN"),
        (of("kv-direct", "inline_bytes = 1000"), "inline_bytes is 1000"),
        (of("kv-direct", "key_bytes = 0"), "key_bytes is 0"),
        (of("kv-direct", "packet_bytes = 0"), "packet_bytes is 0"),
        (of("nessie-server", "value_max = 1048576"), "shorter values (value_max)"),
    ] {
        assert!(error.contains(word) && error.contains("default"), "{word}: {error}");
    }
}

#[test]
fn a_table_is_tuned_for_what_it_will_hold() {
    let tuned = |key, value, utilisation, more: &str| {
        let wanted = format!(
            "tuned_for = {{ key_bytes = {key}, value_bytes = {value}, utilisation = {utilisation} }}"
        );
        let plan = of("kv-direct", &format!("{wanted}\n{more}"), 16 * MIB, 1)?;
        Ok::<_, Error>(PartitionShape::of(&plan.tables[0].params).unwrap())
    };
    let (of_short, of_long) = (tuned(8, 8, 0.4, "").unwrap(), tuned(8, 2000, 0.4, "").unwrap());
    assert!(of_short.inline_bytes >= 16, "{of_short:?}");
    assert!(of_short.index_millionths > of_long.index_millionths, "{of_long:?}");
    for (utilisation, more, word) in [
        (1.5, "", "1.5"),
        (0.99, "", "tuned_for"),
        (0.4, "inline_bytes = 8", "say either"),
        (0.4, "index_ratio = 0.5", "say either"),
        (0.4, "key_bytes = 9", "key_bytes is 9"),
    ] {
        let error = tuned(8, 8, utilisation, more).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("default"), "{word}: {error}");
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    for (engine, fields, word) in [
        ("pilaf", "sync = true", "sync needs a log"),
        ("nessie-hybrid", "cache = true", "cache is for nessie and nessie-hybrid+"),
    ] {
        let error = of(engine, fields, 64 * MIB, 1).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("default"), "{word}: {error}");
    }
}

#[test]
fn the_hybrid_of_the_paper_has_no_filter_bits_and_one_read_at_a_time() {
    for (engine, has) in [("nessie-hybrid", false), ("nessie-hybrid+", true), ("nessie", true)] {
        let plan = of(engine, "", 64 * MIB, 1).unwrap();
        // The first two switches: filter bits and multiple READs.
        let switches = geometry(&plan).options & 3;
        assert_eq!(switches, if has { 3 } else { 0 }, "{engine}");
    }
}

#[test]
fn a_changed_service_is_told_apart() {
    let field = |engine, (then, fields): (&str, &str)| {
        let made = of(engine, "", 64 * MIB, 1).unwrap();
        let changed = of(then, fields, 64 * MIB, 1).unwrap();
        changed.difference(&made.header, &made.tables).unwrap().field
    };
    assert_eq!(field("herd", ("pilaf", "")), "table \"default\": engine");
    assert_eq!(field("herd", ("herd", "workers = 2")), "table \"default\": workers");
    assert!(field("herd", ("herd", "sessions = 9")).contains("sessions"));
    assert!(field("herd", ("herd", "mode = 'store'")).contains("mode"));
    // The example does not say which of its options differ.
    let options = field("example", ("example", "entry_bytes = 1000"));
    assert_eq!(options, "table \"default\": options of its engine");
    let field = |fields| field("kv-direct", ("kv-direct", fields));
    assert_eq!(field("index_ratio = 0.3"), "table \"default\": index_ratio");
    assert_eq!(field("versions = false"), "table \"default\": versions");
    assert_eq!(field("key_bytes = 8"), "table \"default\": key_bytes");
}

#[test]
fn over_a_network_entries_carry_checksums_and_only_lochs_own_protocol_is_spoken() {
    let of = |fields: &str| {
        let text = format!("fabric = 'verbs'\n[[table]]\n{fields}");
        NodeConfig::from_toml(&text).unwrap()
    };
    let planned = Plan::of_node(&of(""), 0, 2).unwrap();
    assert!(geometry(&planned).validate().unwrap().options.checksums);
    let error = Plan::of_node(&of("protocol = 'published'"), 0, 2).unwrap_err().to_string();
    assert!(error.contains("is for fabric \"shm\" only"), "{error}");
}
