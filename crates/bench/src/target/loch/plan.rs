//! How much memory the nodes get: the memory of the records, and head-room for memory that clients
//! hold besides.
//!
//! Every client loads its part of the records, dealt out to all nodes in equal
//! shares (see `client.rs`). An update puts the new entry into the client's
//! home node, wherever the old one was, so nodes with busier clients fill up; beyond the head-room
//! clients continue in the memory of other nodes.

use std::path::{Path, PathBuf};

use loch::limits::{DATA_TABLE_BYTES_MAX, NODES_MAX, SESSIONS_DEFAULT, SESSIONS_MAX};
use loch::{ByteSize, FabricKind, NodeConfig, TableConfig, WorkersConfig};
use loch_engines::limits::{CHUNK_BYTES, WORKER_LANES};
use loch_engines::nessie::dte::head_bytes;
use loch_engines::nessie::geometry::{Bits, Protocol};
use loch_engines::nessie::options::{BUCKET_SLOTS, LayoutOptions};
use loch_engines::nessie::slab::Classes;
use loch_engines::region::{TABLE_ALIGN_BYTES, tables_offset};
use loch_engines::registry::Map;
use loch_engines::room::Room as TableRoom;
use loch_fabric::{RegionId, RemoteAddr};

use crate::error::TargetError;
use crate::options::{Eviction, Replay, TABLE};
use crate::spec::Spec;
use crate::system::{Engine, Fabric};
use crate::target::Result;

/// Head-room, in percent of the data: for one client, which finds all entries that it retires, and
/// for several, which retire entries in each other's slabs.
const HEADROOM_PERCENT: u64 = 10;
const HEADROOM_OF_MANY_PERCENT: u64 = 25;
/// Further head-room, for small tables: for real nodes, and for simulated nodes, of which many
/// share one process's memory.
const HEADROOM_BYTES: u64 = 64 << 20;
const HEADROOM_BYTES_SIMULATED: u64 = 4 << 20;
/// Tables of other layouts than nessie's have blocks of other lengths, and their nodes do not have
/// equally many: so they get this many times the memory that nessie needs.
const OWN_LAYOUT_TIMES: u64 = 4;
/// Keys and values take this share of the memory of a table that is tuned for their sizes: slabs
/// are powers of two, and partitions are not even.
const TUNED_UTILISATION: f64 = 0.35;
/// Some table of 2 to the power of one of these bytes has room enough for the requests of a run.
const ENOUGH_BITS: std::ops::Range<u32> = 30..41;
/// A simulated client has as many requests under way at one worker as it has lanes, up to this
/// number.
const WINDOW_SIMULATED_MAX: usize = 16;
/// The same on one host, where a worker and a client that share a core hand it over once for all of
/// these requests. With values above this size the slots for so many would need too much memory.
const WINDOW_MAX: usize = 32;
const WINDOW_VALUE_BYTES_MAX: usize = 4 << 10;
/// A window is never smaller unless `--window` says so.
const WINDOW_MIN: usize = 8;
/// Slabs of its own that a client has begun and not filled.
const OPEN_SLABS: u64 = 2;

/// Checks that nodes can have the table of a run, before anything starts.
///
/// # Errors
/// [`TargetError::Impossible`] names the engine.
pub fn check(engine: Engine, spec: &Spec) -> Result<()> {
    let config = match spec.fabric {
        Fabric::Sim => simulated_config(engine, spec)?,
        _ => NodeConfig {
            fabric: fabric_kind(spec.fabric),
            ..node_configs(engine, spec, Path::new("/"))?.swap_remove(0)
        },
    };
    config.check_tables().map_err(|error| impossible(engine, spec, error))
}

/// The fabric of real nodes.
pub fn fabric_kind(fabric: Fabric) -> FabricKind {
    match fabric {
        Fabric::Shm | Fabric::Sim => FabricKind::Shm,
        Fabric::Tcp => FabricKind::Tcp,
        Fabric::Verbs => FabricKind::Verbs,
    }
}

/// The error for a table that cannot be. A replayed file says how long its values are, so the error
/// says where the longest one is.
fn impossible(engine: Engine, spec: &Spec, error: loch::Error) -> TargetError {
    let problem = match error {
        loch::Error::Config { problem, .. } => problem,
        other => other.to_string(),
    };
    let longest = spec.replay.as_ref().map(|Replay { file, longest, .. }| {
        let (file, bytes) = (file.display(), spec.value_size);
        format!("; the longest value of {file} has {bytes} bytes: {longest}")
    });
    let memory = spec.table.memory.map(|memory| format!(", --memory {memory}"));
    TargetError::Impossible(format!(
        "--engine {}{}: {problem}{}",
        engine.name(),
        memory.unwrap_or_default(),
        longest.unwrap_or_default()
    ))
}

/// The configurations of all nodes, whose files lie in `dir`.
pub fn node_configs(engine: Engine, spec: &Spec, dir: &Path) -> Result<Vec<NodeConfig>> {
    let sockets: Vec<_> = (0..spec.nodes).map(|node| dir.join(format!("{node}.sock"))).collect();
    let sessions = Sessions {
        of_node: spec.clients.saturating_mul(2).clamp(SESSIONS_DEFAULT, SESSIONS_MAX),
        // Every client has a session at home, and while it loads one at another node.
        of_table: spec.clients.saturating_mul(2).min(SESSIONS_MAX),
    };
    let room = Room { clients: spec.clients.into(), open_slabs: OPEN_SLABS, bytes: HEADROOM_BYTES };
    let common = config(engine, spec, &sockets, sessions, Some(window(spec)), room)?;
    let config = |node: usize| NodeConfig {
        name: format!("bench-{node}"),
        socket: sockets[node].clone(),
        ephemeral: true,
        region: Some(dir.join(format!("{node}.region"))),
        workers: WorkersConfig { dedicated: spec.servers.dedicated, ..WorkersConfig::default() },
        ..common.clone()
    };
    Ok((0..sockets.len()).map(config).collect())
}

/// The requests that a client has under way at one worker of this host.
fn window(spec: &Spec) -> u16 {
    let most = if spec.value_size <= WINDOW_VALUE_BYTES_MAX { WINDOW_MAX } else { WINDOW_MIN };
    spec.servers.window.unwrap_or(spec.lanes.clamp(WINDOW_MIN, most) as u16)
}

/// The configuration of every simulated node. Memory is reached over a network, so that entries
/// carry checksums.
pub fn simulated_config(engine: Engine, spec: &Spec) -> Result<NodeConfig> {
    let nodes: Vec<_> = (0..spec.nodes).map(|node| PathBuf::from(node.to_string())).collect();
    // A node without a client has a client while it is loaded.
    let clients = spec.clients.div_ceil(spec.nodes);
    let (writers, lanes) = match engine.serves() {
        true => (spec.servers.workers.into(), WORKER_LANES),
        false => (clients, spec.lanes),
    };
    let room = Room {
        // Other clients retire entries in a client's slabs, even if it is alone at its node.
        clients: u64::from(writers).max(2),
        // Lanes that run out of entries at the same moment lease a slab each: over a network that
        // takes long enough for many to meet.
        open_slabs: OPEN_SLABS + lanes as u64,
        bytes: HEADROOM_BYTES_SIMULATED,
    };
    let sessions = Sessions { of_node: clients, of_table: clients };
    let window = spec.lanes.min(WINDOW_SIMULATED_MAX) as u16;
    let window = Some(spec.servers.window.unwrap_or(window));
    let mut config = config(engine, spec, &nodes, sessions, window, room)?;
    if engine.is_published() {
        // Such a table is declared for shared memory only, where the default is no checksums.
        let checksums = config.tables[0].set("checksums", true);
        checksums.map_err(|error| TargetError::Impossible(error.to_string()))?;
    } else {
        config.fabric = FabricKind::Verbs;
    }
    Ok(config)
}

/// Session slots for clients.
#[derive(Clone, Copy)]
struct Sessions {
    of_node: u32,
    /// Each of them has slots for its requests.
    of_table: u32,
}

/// What the configurations of all nodes have in common.
fn config(
    engine: Engine,
    spec: &Spec,
    cluster: &[PathBuf],
    sessions: Sessions,
    window: Option<u16>,
    room: Room,
) -> Result<NodeConfig> {
    check_nodes(spec)?;
    check_item(engine, spec)?;
    let serves = engine.serves();
    let data_bytes = data_bytes_a_node(spec, protocol(engine, spec), room);
    if spec.table.memory.is_none() {
        check_data(spec, data_bytes)?;
    }
    let index_slots = index_slots_a_node(spec);
    let common = TableConfig {
        workers: serves.then_some(spec.servers.workers),
        window: window.filter(|_| serves),
        sessions: serves.then_some(sessions.of_table),
        value_max: Some(ByteSize::new(spec.value_size as u64)),
        ..TableConfig::new(TABLE, engine.options())
    };
    let (mut table, is_tuned) = declare(engine, spec, common, index_slots)
        .map_err(|error| impossible(engine, spec, error))?;
    let map = map_with_room_enough(&table, spec, sessions);
    let is_nessies = map.as_ref().is_some_and(|map| map.nessie().is_some());
    let table_bytes = table_bytes(index_slots, data_bytes);
    let values = match spec.table.memory {
        // Memory that was declared is what the table has, and no more.
        Some(memory) => memory.bytes(),
        None if is_nessies => table_bytes,
        None if is_tuned => tuned_bytes_a_node(spec, room),
        None => table_bytes.saturating_mul(OWN_LAYOUT_TIMES),
    };
    let requests = map.map_or(0, |map| map.request_bytes());
    table.memory = spec.table.memory.map(|_| ByteSize::new(values.max(requests) + requests));
    let memory = tables_offset(sessions.of_node + 1)
        + requests
        // They may take no more than half of a table.
        + values.max(requests)
        + 16 * TABLE_ALIGN_BYTES;
    Ok(NodeConfig {
        memory: ByteSize::new(memory.next_multiple_of(1 << 20)),
        cluster: cluster.to_vec(),
        sessions: sessions.of_node,
        tables: vec![table],
        ..NodeConfig::default()
    })
}

/// Declares what the run chose, and what the table's engine can be told of the workload. Returns
/// also whether the table is tuned for the sizes of keys and values.
fn declare(
    engine: Engine,
    spec: &Spec,
    mut table: TableConfig,
    index_slots: u64,
) -> Result<(TableConfig, bool), loch::Error> {
    let LayoutOptions { ways, filter_bits, multi_read, checksums, .. } = LayoutOptions::default();
    // Engines that keep values in their own memory know the best size of their index.
    let index_slots = match spec.table.memory {
        Some(_) => spec.table.index_slots,
        None => Some(index_slots).filter(|_| !engine.needs().private_memory),
    };
    if let Some(index_slots) = index_slots {
        table.set("index_slots", i64::try_from(index_slots).unwrap_or(i64::MAX))?;
    }
    let tuned_for = toml::Table::from_iter([
        ("key_bytes".to_owned(), toml::Value::from(spec.key_size as i64)),
        ("value_bytes".to_owned(), (spec.value_size as i64).into()),
        ("utilisation".to_owned(), TUNED_UTILISATION.into()),
    ]);
    let is_tuned = table.set("tuned_for", tuned_for).is_ok();
    if engine.is_published() {
        table.set("previous_versions", bool::from(spec.table.previous_versions))?;
    }
    let (own, switch) = (&spec.table, |on| toml::Value::from(bool::from(on)));
    let (automatic, batched): (Option<bool>, Option<bool>) =
        (own.cache.into(), own.batched_reads.into());
    let is_in_order = !bool::from(spec.servers.out_of_order) && engine.packs_operations();
    // Options that were not chosen are left out, because not every engine has them. An engine
    // without an option has it off.
    for (field, value, is_chosen) in [
        ("ways", own.ways.into(), own.ways != ways),
        ("bucket_slots", own.bucket_slots.unwrap_or_default().into(), own.bucket_slots.is_some()),
        ("filter_bits", switch(own.filter_bits), bool::from(own.filter_bits) != filter_bits),
        ("multi_read", switch(own.multi_read), bool::from(own.multi_read) != multi_read),
        ("checksums", switch(own.checksums), bool::from(own.checksums) != checksums),
        ("cache", automatic.unwrap_or_default().into(), automatic.is_some()),
        ("batched_reads", batched.unwrap_or_default().into(), batched.is_some()),
        ("eviction", "sieve".into(), own.eviction == Eviction::Sieve),
        ("out_of_order", false.into(), is_in_order),
    ] {
        let is_off = value.as_bool() == Some(false);
        if is_chosen
            && let Err(error) = table.set(field, value)
            && !is_off
        {
            return Err(error);
        }
    }
    Ok((table, is_tuned))
}

/// The protocol that clients of nessie's tables follow; for tables of other engines it is Loch's
/// own.
fn protocol(engine: Engine, spec: &Spec) -> Protocol {
    match engine.is_published() {
        true => Protocol::Published { previous_versions: spec.table.previous_versions.into() },
        false => Protocol::Loch,
    }
}

fn check_nodes(spec: &Spec) -> Result<()> {
    if spec.nodes as usize <= NODES_MAX {
        return Ok(());
    }
    let problem = format!("--nodes {}: a cluster has up to {NODES_MAX}", spec.nodes);
    Err(TargetError::Impossible(problem))
}

fn check_item(engine: Engine, spec: &Spec) -> Result<()> {
    let bytes = spec.key_size + spec.value_size;
    let Some(max) = engine.needs().key_and_value_bytes_max.filter(|max| bytes > *max) else {
        return Ok(());
    };
    Err(TargetError::Impossible(format!(
        "--value-size {}: keys and values of {} have up to {max} bytes together",
        spec.value_size,
        engine.name()
    )))
}

fn check_data(spec: &Spec, data_bytes: u64) -> Result<()> {
    if data_bytes <= DATA_TABLE_BYTES_MAX {
        return Ok(());
    }
    Err(TargetError::Impossible(format!(
        "{} records need {} a node, and a node's table holds up to {}: raise --nodes above {} \
         or lower --records or --value-size",
        spec.records,
        mib(data_bytes),
        ByteSize::new(DATA_TABLE_BYTES_MAX),
        spec.nodes
    )))
}

fn table_bytes(index_slots: u64, data_bytes: u64) -> u64 {
    index_slots * 8 * 17 / 16 + data_bytes + data_bytes / CHUNK_BYTES * 8
}

/// Bytes of a node's table that is tuned for the sizes of keys and values.
fn tuned_bytes_a_node(spec: &Spec, room: Room) -> u64 {
    let bytes = spec.data_bytes().div_ceil(spec.nodes.into());
    (bytes as f64 / TUNED_UTILISATION) as u64 + room.bytes
}

/// The parts of a table, as its engine lays them out where there is room enough for its requests.
fn map_with_room_enough(table: &TableConfig, spec: &Spec, sessions: Sessions) -> Option<Map> {
    let room = |share: u64| TableRoom {
        share,
        nodes: spec.nodes as u16,
        value_max: table.value_max.map(ByteSize::bytes),
        workers: spec.servers.workers,
        window: table.window,
        slots: sessions.of_table + 1,
        is_remote: false,
    };
    let engine = table.engine.engine();
    let places = vec![(RemoteAddr::new(RegionId(0), 0), room(0).slots); spec.nodes as usize];
    let map = |share: u64| {
        let plan = table.engine.plan(&room(share)).ok()?;
        Map::new(engine, &plan.params, &places).ok()
    };
    ENOUGH_BITS.map(|bits| 1 << bits).find_map(map)
}

fn index_slots_a_node(spec: &Spec) -> u64 {
    let slots = (u128::from(spec.records) * 100).div_ceil(spec.table.index_fill.into());
    u64::try_from(slots).unwrap_or(u64::MAX).div_ceil(spec.nodes.into())
}

/// The content of a node's data table besides the records.
#[derive(Clone, Copy)]
struct Room {
    /// Clients with slabs in it, and how many slabs each has begun and not filled.
    clients: u64,
    open_slabs: u64,
    bytes: u64,
}

/// Bytes of a node's data table. Its size decides how it is cut into slabs, and the slabs decide
/// its size: two rounds settle it.
fn data_bytes_a_node(spec: &Spec, protocol: Protocol, room: Room) -> u64 {
    let entry_bytes = head_bytes(protocol) + spec.key_size + spec.value_size;
    let records = spec.records.div_ceil(spec.nodes.into());
    let mut bytes = records.saturating_mul(entry_bytes as u64);
    let candidates =
        u32::from(spec.table.ways) * u32::from(spec.table.bucket_slots.unwrap_or(BUCKET_SLOTS));
    let nodes = u16::try_from(spec.nodes).unwrap_or(u16::MAX);
    let headroom = if room.clients > 1 { HEADROOM_OF_MANY_PERCENT } else { HEADROOM_PERCENT };
    for _ in 0..2 {
        let planned = bytes.min(DATA_TABLE_BYTES_MAX);
        let grain_bytes = Bits::new(candidates, nodes, planned).grain_bytes();
        let class = Classes::new(planned, grain_bytes).of(entry_bytes);
        let slab_bytes = u64::from(class.chunks) * CHUNK_BYTES;
        let slabs = records.div_ceil(class.entries.into());
        let in_flight = room.clients * (spec.lanes as u64).div_ceil(class.entries.into());
        let open = (room.clients * room.open_slabs).saturating_add(in_flight);
        let filled = slabs.saturating_mul(slab_bytes);
        bytes = filled
            .saturating_add(filled / 100 * headroom)
            .saturating_add(room.bytes)
            .saturating_add(open.saturating_mul(slab_bytes));
    }
    bytes
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;

    fn plan(line: &str) -> Result<Vec<NodeConfig>, TargetError> {
        node_configs("nessie".parse().unwrap(), &spec(line).unwrap(), Path::new("/dir"))
    }

    #[test]
    fn ten_million_small_records_take_little_more_than_their_bytes() {
        let configs = plan("--records 10000000 --value-size 64 --key-size 16").unwrap();
        let bytes = configs[0].memory.bytes() as f64;
        // 112 B an entry, 4 B a note, 10.7 B of index, a tenth of head-room.
        assert!((1.3e9..1.6e9).contains(&bytes), "{bytes}");
    }

    #[test]
    fn all_nodes_share_one_declaration() {
        let configs = plan("--nodes 3 --clients 5 --records 1000").unwrap();
        assert_eq!(configs.len(), 3);
        for (node, config) in configs.iter().enumerate() {
            assert_eq!(config.socket, config.cluster[node]);
            assert_eq!(config.tables, configs[0].tables);
            assert_eq!(config.memory, configs[0].memory);
            assert!(config.ephemeral && config.region.is_some());
        }
    }

    #[test]
    fn requests_have_memory_of_their_own() {
        let plan = |engine: &str, line: &str| {
            node_configs(engine.parse().unwrap(), &spec(line).unwrap(), Path::new("/dir"))
        };
        let line = "--clients 4 --nodes 2 --records 1000 --value-size 16KiB";
        let nessie = plan("nessie", line).unwrap().remove(0);
        let line = format!("{line} --engine nessie-server --workers 3 --window 2");
        let server = plan("nessie-server", &line).unwrap().remove(0);
        // Three workers, two requests each, of eight clients on each of two nodes and two that
        // watch.
        let requests = 3 * 2 * (2 * 8 + 2) * (16 << 10);
        assert!(server.memory.bytes() > nessie.memory.bytes() + requests);
        let table = &server.tables[0];
        assert_eq!((table.workers, table.window, table.sessions), (Some(3), Some(2), Some(8)));
        assert_eq!((nessie.tables[0].workers, nessie.tables[0].sessions), (None, None));
    }

    #[test]
    fn a_client_has_as_many_requests_under_way_as_lanes_within_bounds() {
        let window = |line: &str| window(&spec(line).unwrap());
        assert_eq!(window("--lanes 1"), 8);
        assert_eq!(window("--lanes 20"), 20);
        assert_eq!(window("--lanes 100"), 32);
        assert_eq!(window("--lanes 100 --value-size 8KiB"), 8);
        assert_eq!(window("--engine herd --lanes 100 --window 100"), 100);
    }

    #[test]
    fn many_requests_under_way_have_room_for_their_mailboxes() {
        let line = "--fabric sim --engine herd --nodes 1 --workers 6 --clients 60 --records 10000";
        for engine in ["herd", "nessie-server", "nessie-hybrid", "example"] {
            let config = simulated_config(engine.parse().unwrap(), &spec(line).unwrap()).unwrap();
            assert!(config.check_tables().is_ok(), "{engine}: {:?}", config.check_tables());
            assert!(config.memory.bytes() < 300 << 20, "{engine}: {}", config.memory);
        }
    }

    #[test]
    fn keys_and_values_that_are_too_long_together_are_refused_by_name() {
        let line = "--engine herd --records 10 --value-size 960";
        let refused = node_configs("herd".parse().unwrap(), &spec(line).unwrap(), Path::new("/d"));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("--value-size 960") && refused.contains("952"), "{refused}");
    }

    /// The node said it, and the bench that the node did not start, after other engines had been
    /// measured.
    #[test]
    fn a_table_that_cannot_be_is_refused_before_anything_starts() {
        let refused = |engine: &str, line: &str| {
            let spec = spec(line).unwrap();
            check(engine.parse().unwrap(), &spec).unwrap_err().to_string()
        };
        for (engine, line, words) in [
            ("nessie", "--memory 1KiB", ["--engine nessie, --memory 1KiB", "give it more memory"]),
            ("nessie", "--bucket-slots 3", ["--engine nessie: ", "it may be 1, 2 or 4"]),
            (
                "nessie",
                "--eviction sieve --memory 16MiB --bucket-slots 4",
                ["--memory 16MiB: 16777216 bytes", "it may be 1 or 3, because the table evicts"],
            ),
            (
                "nessie-hybrid",
                "--fabric tcp --eviction sieve",
                ["--engine nessie-hybrid", "over a network"],
            ),
        ] {
            let error = refused(engine, line);
            assert!(words.iter().all(|word| error.contains(word)), "{line}: {error}");
        }
        for engine in Engine::all() {
            // Tables of the published protocol are not served over a network.
            let fabrics = ["shm", "sim", "tcp"].into_iter();
            for fabric in fabrics.filter(|fabric| !engine.is_published() || *fabric != "tcp") {
                let checked = check(engine, &spec(&format!("--fabric {fabric}")).unwrap());
                assert!(checked.is_ok(), "{} {fabric}: {checked:?}", engine.name());
            }
        }
    }

    #[test]
    fn a_configuration_can_be_written_down() {
        for config in plan("--nodes 2 --cache on --value-size 1MiB --records 100").unwrap() {
            let text = toml::to_string(&config).unwrap();
            assert_eq!(NodeConfig::from_toml(&text).unwrap(), config);
        }
    }

    #[test]
    fn long_values_have_room_for_those_under_way() {
        let configs = plan("--records 4 --value-size 64MiB --lanes 8").unwrap();
        assert!(configs[0].memory.bytes() >= (4 + 8) * (64 << 20));
    }

    #[test]
    fn more_than_nodes_can_hold_names_the_way_out() {
        let error = plan("--records 1000000000000").unwrap_err().to_string();
        assert!(error.contains("--nodes"), "{error}");
        assert!(plan("--nodes 300").unwrap_err().to_string().contains("256"));
    }
}
