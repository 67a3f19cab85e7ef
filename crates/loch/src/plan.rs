//! From a configuration to the layout of a region, and back: what a region file must hold so that
//! it can be taken over.
//!
//! Everything of a configuration is checked here and nowhere else. The plan is a pure function of
//! it: the same configuration gives the same layout, which is what makes a warm restart possible.

mod served;
mod workers;

use std::path::{Path, PathBuf};

use loch_engines::limits::CHUNK_BYTES;
use loch_engines::nessie::geometry::{Geometry, Options, Protocol};
use loch_engines::region::{
    EngineId, Header, LAYOUT_VERSION, MAGIC, SESSION_BYTES, SESSIONS_OFFSET, TABLE_ALIGN_BYTES,
    TableEntry,
};

#[cfg(feature = "verbs")]
use crate::control::network::Network;
use crate::difference::{Difference, table_facts};
use crate::engine::Engine;
use crate::limits::{
    DATA_TABLE_BYTES_MAX, KEY_BYTES_MAX, LONGEST_VALUES_MIN, NODE_NAME_BYTES_MAX, NODES_MAX,
    SESSIONS_MAX, SOCKET_PATH_BYTES_MAX, TABLE_BYTES_PER_INDEX_SLOT, TABLE_NAME_BYTES_MAX,
    TABLES_MAX, VALUE_BYTES_DEFAULT, WORKERS_MAX,
};
use crate::size::InWords;
use crate::{ByteSize, EmbeddedConfig, Error, FabricKind, NodeConfig, TableConfig, TableProtocol};
use served::Room;
use workers::worker_sessions;
pub(crate) use workers::{WorkerPlan, worker_sessions_of};

/// What keys are hashed with, in tables that have no geometry of nessie's to say so.
const SEED: u64 = 0x4c6f_6368_4b65_7973;

/// Regions are whole pages.
const PAGE_BYTES: u64 = 4096;

/// Memory that no table uses is left out when it is more than an eighth, and more than this.
const UNUSED_BYTES_MAX: u64 = 16 << 20;

/// Up to this it is looked for how much memory would do, when some does not.
const LEAST_MIB_MAX: u64 = 256;

/// How a node's region is laid out. The header has no identity yet.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub header: Header,
    pub tables: Vec<TableEntry>,
    /// Bytes that each table has in the memory of the node's process.
    private_bytes: Vec<u64>,
    /// Bytes of the memory that no table uses, and the region does not have.
    left_out: u64,
}

/// A node's configuration, checked, with its paths made absolute.
#[derive(Debug)]
pub(crate) struct NodePlan {
    pub socket: PathBuf,
    /// The sockets of all nodes, in order.
    pub cluster: Vec<PathBuf>,
    pub region: PathBuf,
    pub plan: Plan,
    pub workers: WorkerPlan,
    /// The node's place in the network, if its memory is reached over one.
    #[cfg(feature = "verbs")]
    pub network: Option<Network>,
}

impl NodePlan {
    /// Checks a configuration and lays it out.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NoSuchEngine`].
    pub fn new(config: &NodeConfig) -> Result<Self, Error> {
        check_name(&config.name)?;
        let socket = checked_socket("socket", &config.socket)?;
        #[cfg(feature = "verbs")]
        if config.fabric == FabricKind::Verbs {
            return Self::of_network(config, socket);
        }
        check_shared(config)?;
        let workers = WorkerPlan::new(&config.workers, &config.tables)?;
        let cluster = match &config.cluster[..] {
            [] => vec![socket.clone()],
            sockets => {
                sockets.iter().map(|s| checked_socket("cluster", s)).collect::<Result<_, _>>()?
            }
        };
        let node = position(&cluster, &socket)?;
        let plan = Plan::of_node(config, node, cluster.len(), &config.tables)?;
        Ok(Self {
            plan,
            workers,
            #[cfg(feature = "verbs")]
            network: None,
            region: std::path::absolute(config.region_path())
                .map_err(Error::os("resolve", &config.region_path()))?,
            socket,
            cluster,
        })
    }
}

#[cfg(feature = "verbs")]
impl NodePlan {
    fn of_network(config: &NodeConfig, socket: PathBuf) -> Result<Self, Error> {
        let network = Network::new(config)?;
        let tables = over_network(&config.tables)?;
        let workers = WorkerPlan::new(&config.workers, &tables)?;
        let plan = Plan::of_node(config, network.node, network.addresses.len(), &tables)?;
        Ok(Self {
            plan,
            workers,
            region: std::path::absolute(config.region_path())
                .map_err(Error::os("resolve", &config.region_path()))?,
            socket,
            cluster: network.addresses.iter().map(PathBuf::from).collect(),
            network: Some(network),
        })
    }
}

/// Whether the tables of a configuration can be, and fit the memory: what [`NodePlan::new`] says of
/// them, also of a fabric that this build does not have.
///
/// # Errors
/// [`Error::Config`], [`Error::NoSuchEngine`].
pub(crate) fn check_layout(config: &NodeConfig) -> Result<(), Error> {
    let nodes = config.cluster.len().max(1);
    let plan = match config.fabric {
        FabricKind::Shm => Plan::of_node(config, 0, nodes, &config.tables),
        FabricKind::Verbs => Plan::of_node(config, 0, nodes, &over_network(&config.tables)?),
    };
    plan.map(drop)
}

/// The tables of a node whose memory is reached over a network.
fn over_network(tables: &[TableConfig]) -> Result<Vec<TableConfig>, Error> {
    refuse_published(tables)?;
    // Over a network a second READ of the generation costs a round trip.
    let checked = |table: &TableConfig| {
        let checksums = Engine::of(table)?.id().has_nessie_layout();
        Ok(TableConfig { checksums, ..table.clone() })
    };
    match tables {
        [] => Ok(vec![checked(&TableConfig::default())?]),
        tables => tables.iter().map(checked).collect(),
    }
}

/// Over a network connections break, and only clients of Loch's own protocol begin operations again.
fn refuse_published(tables: &[TableConfig]) -> Result<(), Error> {
    match tables.iter().find(|table| table.protocol == TableProtocol::Published) {
        None => Ok(()),
        Some(table) => {
            let problem = "protocol \"published\" is for fabric \"shm\" only: use \"loch\", or shm";
            Err(Error::config(format!("table {:?}", table.name), problem))
        }
    }
}

/// Memory is shared: what is said of a network would be said in vain.
fn check_shared(config: &NodeConfig) -> Result<(), Error> {
    if config.fabric == FabricKind::Verbs {
        let problem = "this build has no verbs backend: use \"shm\", or build Loch with the \
                       feature `verbs`";
        return Err(Error::config("fabric", problem));
    }
    let vain = [
        ("listen", config.listen.is_some()),
        ("secret", config.secret.is_some()),
        ("tls", config.tls.is_some()),
        ("device", config.device.is_some()),
        ("device_port", config.device_port.is_some()),
        ("gid_index", config.gid_index.is_some()),
    ];
    match vain.into_iter().find(|(_, said)| *said) {
        None => Ok(()),
        Some((field, _)) => {
            let problem = "it is for fabric \"verbs\", this is \"shm\": leave it out, or choose \
                           fabric = \"verbs\"";
            Err(Error::config(field, problem))
        }
    }
}

/// The plans of all nodes inside this process.
pub(crate) fn of_embedded(config: &EmbeddedConfig) -> Result<Vec<Plan>, Error> {
    let nodes = config.nodes as usize;
    if nodes == 0 {
        return Err(Error::config("nodes", "it is 0: at least one is needed"));
    }
    let plan = |node| {
        Plan::new(Sizes {
            node,
            nodes,
            memory: config.memory,
            sessions: config.sessions,
            tables: &config.tables,
        })
    };
    let plans: Vec<Plan> = (0..nodes).map(plan).collect::<Result<_, Error>>()?;
    plans[0].tell_what_is_left_out();
    check_private(&plans, host_bytes())?;
    Ok(plans)
}

/// Whether a host of so many bytes of memory can have what tables have in the memory of a process. The
/// system gives that as it is used, so it would not refuse it: it would end the process later.
///
/// # Errors
/// [`Error::NoMemory`].
pub(crate) fn check_private(plans: &[Plan], host_bytes: u64) -> Result<(), Error> {
    let to_the_mib = |bytes: u64| ByteSize::new(bytes >> 20 << 20);
    let mut all = 0u64;
    for (table, bytes) in plans.iter().flat_map(|plan| plan.tables.iter().zip(&plan.private_bytes))
    {
        all = all.saturating_add(*bytes);
        if *bytes > 0 && all > host_bytes {
            return Err(Error::NoMemory {
                table: table.name().unwrap_or_default().into(),
                size: to_the_mib(all),
                host: to_the_mib(host_bytes),
            });
        }
    }
    Ok(())
}

/// The memory of this host, and what it can swap out.
pub(crate) fn host_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    (host.totalram + host.totalswap) * u64::from(host.mem_unit)
}

/// What a plan depends on.
#[derive(Clone, Copy)]
struct Sizes<'a> {
    node: usize,
    nodes: usize,
    memory: ByteSize,
    sessions: u32,
    tables: &'a [TableConfig],
}

impl Sizes<'_> {
    /// The least memory with which the tables can be laid out, if they can and it is not large.
    fn least(self) -> Option<ByteSize> {
        let of_mib = |mib: u64| ByteSize::new(mib << 20);
        let fits = |mib: &u64| Plan::laid_out(Sizes { memory: of_mib(*mib), ..self }).is_ok();
        let mut enough = (0..=LEAST_MIB_MAX.ilog2()).map(|n| 1 << n).find(fits)?;
        let mut too_little = enough / 2;
        while enough - too_little > 1 {
            let middle = too_little.midpoint(enough);
            *(if fits(&middle) { &mut enough } else { &mut too_little }) = middle;
        }
        Some(of_mib(enough)).filter(|least| least.bytes() > self.memory.bytes())
    }
}

impl Plan {
    /// The plan of a node of so many, whose tables are these.
    fn of_node(
        config: &NodeConfig,
        node: usize,
        nodes: usize,
        tables: &[TableConfig],
    ) -> Result<Self, Error> {
        let NodeConfig { memory, sessions, .. } = *config;
        Self::new(Sizes { node, nodes, memory, sessions, tables })
    }

    fn new(sizes: Sizes<'_>) -> Result<Self, Error> {
        Self::laid_out(sizes).map_err(|error| match error {
            Error::Config { field, problem } => Error::Config {
                field,
                problem: match sizes.least() {
                    Some(least) => format!("{problem} (with memory = \"{least}\" it fits)"),
                    None => problem,
                },
            },
            other => other,
        })
    }

    fn laid_out(sizes: Sizes<'_>) -> Result<Self, Error> {
        if sizes.nodes > NODES_MAX {
            let problem = format!("it has {} nodes, it may have 1 to {NODES_MAX}", sizes.nodes);
            return Err(Error::config("cluster", problem));
        }
        if sizes.sessions == 0 || sizes.sessions > SESSIONS_MAX {
            let problem = format!("it is {}, it may be 1 to {SESSIONS_MAX}", sizes.sessions);
            return Err(Error::config("sessions", problem));
        }
        let default = [TableConfig::default()];
        let tables = if sizes.tables.is_empty() { &default[..] } else { sizes.tables };
        check_tables(tables)?;
        let memory_bytes = sizes.memory.bytes() / PAGE_BYTES * PAGE_BYTES;
        let engines: Vec<Engine> = tables.iter().map(Engine::of).collect::<Result<_, _>>()?;
        // One for the node's own scrubber, and one for each worker that is a client of its node.
        let own = 1 + worker_sessions(tables, &engines)?;
        let mut header = Header {
            magic: MAGIC,
            version: LAYOUT_VERSION,
            node: sizes.node as u16,
            nodes: sizes.nodes as u16,
            region_bytes: memory_bytes,
            sessions: sizes.sessions + own,
            tables: tables.len() as u32,
            identity: 0,
            checksum: 0,
        };
        let mut offset = header.tables_offset();
        let shares = shares(tables, memory_bytes.saturating_sub(offset), sizes.memory)?;
        let mut entries = Vec::with_capacity(tables.len());
        let mut private_bytes = Vec::with_capacity(tables.len());
        for ((table, engine), share) in tables.iter().zip(engines).zip(shares) {
            engine.check_options(table)?;
            let room = Room { offset, share, nodes: header.nodes, slots: sizes.sessions + 1 };
            let entry = if engine.id().is_served() {
                let planned = served::plan(table, engine, room)?;
                private_bytes.push(planned.private_bytes);
                planned.entry
            } else {
                private_bytes.push(0);
                let geometry = geometry(table, share, header.nodes, options(table))?
                    .with_protocol(protocol(table));
                TableEntry::new(&table.name, EngineId::Nessie, offset, geometry)
                    .map_err(|e| Error::config("table", e.to_string()))?
            };
            offset = entry.end().next_multiple_of(TABLE_ALIGN_BYTES);
            entries.push(entry);
        }
        let private: u64 = private_bytes.iter().sum();
        let unused = memory_bytes.saturating_sub(offset.saturating_add(private));
        let is_left_out = unused > (memory_bytes / 8).max(UNUSED_BYTES_MAX);
        if private > 0 || is_left_out {
            // What workers have in their own memory is not in the region as well.
            header.region_bytes = memory_bytes.min(offset);
        }
        let left_out = if is_left_out { unused } else { 0 };
        Ok(Self { header, tables: entries, private_bytes, left_out })
    }

    /// Says in the log that a node has less memory than it was given, if its tables cannot use it.
    pub fn tell_what_is_left_out(&self) {
        if self.left_out > 0 {
            tracing::warn!(
                left_out = %InWords(self.left_out),
                "the tables cannot use all memory of the node, and the rest is left out: a table has \
                 up to {} a node besides its index; declare more tables, or lower `memory`",
                ByteSize::new(DATA_TABLE_BYTES_MAX)
            );
        }
    }

    /// What differs in a region that was made before: field, what it has, what it should have.
    pub fn difference(&self, header: &Header, tables: &[TableEntry]) -> Option<Difference> {
        let (have, want) = (header, &self.header);
        let facts = [
            ("the node's place in its cluster", have.node as u64, want.node as u64),
            ("nodes in the cluster", have.nodes as u64, want.nodes as u64),
            ("tables", have.tables as u64, want.tables as u64),
            ("sessions", client_sessions(have, tables), client_sessions(want, &self.tables)),
        ];
        let mut facts: Vec<Difference> = facts.into_iter().map(Difference::of_numbers).collect();
        let size = |bytes| ByteSize::new(bytes).to_string();
        let memory = Difference {
            field: "memory".into(),
            have: size(have.region_bytes),
            want: size(want.region_bytes),
        };
        let is_elsewhere =
            |table: &TableEntry| table.engine().is_some_and(EngineId::has_private_memory);
        let elsewhere = tables.iter().chain(&self.tables).any(is_elsewhere);
        let tables = tables.iter().zip(&self.tables);
        let mut of_tables: Vec<_> =
            tables.flat_map(|(have, want)| table_facts(have, want)).collect();
        // Where tables have memory elsewhere, they say how long the region is.
        let place = if elsewhere { of_tables.len() } else { 0 };
        of_tables.insert(place, memory);
        facts.extend(of_tables);
        facts.into_iter().find(|fact| fact.have != fact.want)
    }
}

/// Session slots of a node that are its clients'.
pub(crate) fn client_sessions(header: &Header, tables: &[TableEntry]) -> u64 {
    let own = 1 + tables.iter().map(worker_sessions_of).sum::<u64>();
    (header.sessions as u64).saturating_sub(own)
}

fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > NODE_NAME_BYTES_MAX || !name.chars().all(allowed) {
        let problem =
            format!("{name:?} is no name: write 1 to {NODE_NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -");
        return Err(Error::config("name", problem));
    }
    Ok(())
}

fn checked_socket(field: &str, path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path)
        .map_err(|e| Error::config(field, format!("{}: {e}", path.display())))?;
    match absolute.to_str() {
        None => Err(Error::config(field, "the path is not UTF-8")),
        Some(text) if text.len() > SOCKET_PATH_BYTES_MAX => Err(Error::config(
            field,
            format!(
                "{text} has {} bytes, the path of a socket has up to {SOCKET_PATH_BYTES_MAX}",
                text.len()
            ),
        )),
        Some(_) => Ok(absolute),
    }
}

fn position(cluster: &[PathBuf], socket: &Path) -> Result<usize, Error> {
    let mut distinct = std::collections::HashSet::new();
    if let Some(twice) = cluster.iter().find(|it| !distinct.insert(*it)) {
        let problem =
            format!("it names {} twice: write the socket of each node once", twice.display());
        return Err(Error::config("cluster", problem));
    }
    cluster.iter().position(|it| it == socket).ok_or_else(|| {
        let problem = format!(
            "this node's own socket {} is not in it: add it, in the same order on every node, or \
             choose a socket that is in it",
            socket.display()
        );
        Error::config("cluster", problem)
    })
}

fn check_tables(tables: &[TableConfig]) -> Result<(), Error> {
    if tables.len() > TABLES_MAX {
        let problem = format!("{} are declared, a node has up to {TABLES_MAX}", tables.len());
        return Err(Error::config("table", problem));
    }
    let mut names = std::collections::HashSet::new();
    for table in tables {
        let name = &table.name;
        let printable = !name.chars().any(char::is_control);
        if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX || !printable {
            let problem =
                format!("{name:?} is no name: write 1 to {TABLE_NAME_BYTES_MAX} printable bytes");
            return Err(Error::config("table: name", problem));
        }
        if !names.insert(name) {
            return Err(Error::config("table: name", format!("{name:?} is declared twice")));
        }
    }
    Ok(())
}

/// The bytes of each table on one node.
fn shares(tables: &[TableConfig], room: u64, memory: ByteSize) -> Result<Vec<u64>, Error> {
    let claimed = tables.iter().filter_map(|t| t.memory).map(ByteSize::bytes);
    let claimed = claimed.fold(0, u64::saturating_add);
    let Some(rest) = room.checked_sub(claimed) else {
        return Err(Error::config(
            "memory",
            format!(
                "the tables claim {}, and of {memory} there are {} for tables",
                InWords(claimed),
                InWords(room)
            ),
        ));
    };
    let without = tables.iter().filter(|t| t.memory.is_none()).count() as u64;
    let each = rest.checked_div(without).unwrap_or(0);
    let share = |table: &TableConfig| {
        let bytes = table.memory.map_or(each, ByteSize::bytes);
        bytes / TABLE_ALIGN_BYTES * TABLE_ALIGN_BYTES
    };
    Ok(tables.iter().map(share).collect())
}

fn options(table: &TableConfig) -> Options {
    Options {
        filter_bits: table.filter_bits,
        cache: table.cache,
        multi_read: table.multi_read,
        batched_reads: table.batched_reads,
        checksums: table.checksums,
    }
}

fn protocol(table: &TableConfig) -> Protocol {
    match table.protocol {
        TableProtocol::Loch => Protocol::Loch,
        TableProtocol::Published => {
            Protocol::Published { previous_versions: table.previous_versions.unwrap_or(true) }
        }
    }
}

fn geometry(
    table: &TableConfig,
    share: u64,
    nodes: u16,
    options: Options,
) -> Result<Geometry, Error> {
    let wrong = |problem: String| Error::config(format!("table {:?}", table.name), problem);
    let a_node = table
        .index_slots
        .unwrap_or(share.min(2 * DATA_TABLE_BYTES_MAX) / TABLE_BYTES_PER_INDEX_SLOT)
        .max(1);
    let slots = a_node
        .checked_mul(nodes as u64)
        .ok_or_else(|| wrong(format!("index_slots is {a_node}: that is too many")))?;
    let value_max = table.value_max.map(ByteSize::bytes);
    let mut geometry = Geometry::plan(
        nodes,
        share,
        slots,
        table.ways,
        table.bucket_slots,
        value_max.unwrap_or(VALUE_BYTES_DEFAULT),
        options,
    )
    .map_err(|e| wrong(e.to_string()))?;
    let data = geometry.data_bytes();
    // What is left for the longest value beside its key, its header and its slab's.
    let most = data.saturating_sub(KEY_BYTES_MAX as u64 + CHUNK_BYTES);
    match value_max {
        Some(max) if max > most => Err(wrong(format!(
            "value_max is {}, but its data table has {} a node, which hold a value of up to {}: give \
             the table more memory",
            InWords(max),
            InWords(data),
            InWords(most)
        ))),
        Some(_) => Ok(geometry),
        None => {
            let clamped = VALUE_BYTES_DEFAULT.min(data / LONGEST_VALUES_MIN);
            geometry.value_bytes_max = clamped;
            Ok(geometry)
        }
    }
}

const _: () = {
    let own = 1 + TABLES_MAX as u64 * WORKERS_MAX as u64;
    assert!(SESSIONS_OFFSET + (SESSIONS_MAX as u64 + own) * SESSION_BYTES < 8 << 20);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(memory: u64, tables: &[TableConfig]) -> Result<Plan, Error> {
        let memory = ByteSize::new(memory);
        Plan::new(Sizes { node: 0, nodes: 1, memory, sessions: 64, tables })
    }

    fn table(name: &str) -> TableConfig {
        TableConfig { name: name.into(), ..TableConfig::default() }
    }

    #[test]
    fn the_index_takes_about_seven_percent() {
        for memory in [8 << 20, 256 << 20, 8 << 30] {
            let geometry = plan(memory, &[]).unwrap().tables[0].geometry;
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
        let data: Vec<u64> = plan.tables.iter().map(|t| t.geometry.data_bytes() >> 20).collect();
        assert!((14..16).contains(&data[0]) && (21..24).contains(&data[1]), "{data:?}");
        assert!(data[1].abs_diff(data[2]) <= 1, "{data:?}");
    }

    #[test]
    fn the_longest_value_fits_its_table() {
        let longest = |memory| plan(memory, &[]).unwrap().tables[0].geometry.value_bytes_max;
        assert_eq!(longest(1 << 30), VALUE_BYTES_DEFAULT);
        assert!(longest(16 << 20) <= 4 << 20);
        let greedy = TableConfig { value_max: Some(ByteSize::new(16 << 20)), ..table("t") };
        let error = plan(16 << 20, &[greedy]).unwrap_err().to_string();
        assert!(error.contains("value_max is 16MiB"), "{error}");
    }

    #[test]
    fn what_cannot_be_laid_out_is_named() {
        let with = |change: fn(&mut TableConfig)| {
            let mut table = table("t");
            change(&mut table);
            plan(64 << 20, &[table]).unwrap_err().to_string()
        };
        for (error, word) in [
            (plan(64 << 10, &[]).unwrap_err().to_string(), "(with memory = \"2MiB\" it fits)"),
            (with(|t| t.ways = 9), "ways is 9"),
            (with(|t| t.bucket_slots = 3), "bucket_slots is 3"),
            (with(|t| t.engine = "pilau".into()), "nessie-server"),
            (with(|t| t.engine = "nessie-published".into()), "protocol = \"published\""),
            (with(|t| t.name = String::new()), "name"),
            (with(|t| t.name = "n".repeat(49)), "1 to 48"),
            (with(|t| t.memory = Some(ByteSize::new(1 << 30))), "claim"),
            (with(|t| t.memory = Some(ByteSize::new(1 << 20))), "more memory"),
            (with(|t| t.index_slots = Some(u64::MAX)), "index_slots"),
            (with(|t| t.value_max = Some(ByteSize::new(2 << 30))), "value_max"),
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
        let twice = plan(64 << 20, &[table("t"), table("t")]).unwrap_err().to_string();
        assert!(twice.contains("twice"), "{twice}");
    }

    #[test]
    fn memory_that_no_table_can_use_is_left_out_of_the_region() {
        let planned = plan(1 << 40, &[]).unwrap();
        let end = planned.tables[0].end();
        assert!((16 << 30..20 << 30).contains(&end), "{end}");
        assert_eq!(planned.header.region_bytes, end.next_multiple_of(TABLE_ALIGN_BYTES));
        assert_eq!(planned.left_out, (1 << 40) - planned.header.region_bytes);
        // A little of it is not worth a word.
        let small = TableConfig { memory: Some(ByteSize::new(60 << 20)), ..table("t") };
        let planned = plan(64 << 20, &[small]).unwrap();
        assert_eq!((planned.header.region_bytes, planned.left_out), (64 << 20, 0));
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
        let with = |change: fn(&mut TableConfig)| {
            let mut table = table("t");
            change(&mut table);
            plan(64 << 20, &[table]).unwrap()
        };
        assert_eq!(field(plan(65 << 20, &[table("t")]).unwrap()), "memory");
        assert_eq!(field(plan(64 << 20, &[table("u")]).unwrap()), "table name");
        assert_eq!(
            field(with(|t| t.memory = Some(ByteSize::new(60 << 20)))),
            "table \"t\": memory"
        );
        assert_eq!(field(with(|t| t.ways = 2)), "table \"t\": ways");
        assert_eq!(field(with(|t| t.cache = Some(true))), "table \"t\": options");
        let published = |t: &mut TableConfig| t.protocol = TableProtocol::Published;
        assert_eq!(field(with(published)), "table \"t\": protocol");
        assert_eq!(field(with(|t| t.index_slots = Some(4096))), "table \"t\": index_slots");
        let two = plan(64 << 20, &[table("t"), table("u")]).unwrap();
        assert_eq!(field(two), "tables");
    }

    #[test]
    fn tables_have_no_more_in_the_process_than_the_host_has() {
        let herd = |name: &str| TableConfig { engine: "herd".into(), ..table(name) };
        let plans = [plan(256 << 20, &[herd("a"), herd("b")]).unwrap()];
        check_private(&plans, 256 << 20).unwrap();
        let error = check_private(&plans, 128 << 20).unwrap_err().to_string();
        assert!(error.contains("table \"b\"") && error.contains("has 128MiB"), "{error}");
        // What is in a region is the file system's affair.
        check_private(&[plan(64 << 20, &[table("t")]).unwrap()], 0).unwrap();
    }

    #[test]
    fn a_node_knows_its_place() {
        let node = |socket: &str, cluster: &[&str]| {
            NodePlan::new(&NodeConfig {
                socket: socket.into(),
                cluster: cluster.iter().map(PathBuf::from).collect(),
                ..NodeConfig::default()
            })
        };
        let b = node("/b", &["/a", "/b", "/c"]).unwrap();
        assert_eq!((b.plan.header.node, b.plan.header.nodes), (1, 3));
        assert_eq!(node("/a", &[]).unwrap().cluster, [Path::new("/a")]);
        for (socket, cluster, word) in [
            ("/d", &["/a", "/b"][..], "own socket"),
            ("/a", &["/a", "/a"], "twice"),
            (&format!("/{}", "s".repeat(107)), &[], "107"),
        ] {
            let error = node(socket, cluster).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let bad = NodeConfig { name: "a/b".into(), ..NodeConfig::default() };
        assert!(matches!(NodePlan::new(&bad), Err(Error::Config { .. })));
    }
}
