//! From a configuration to the layout of a region, and back: the layout that a region file must
//! have to be taken over.
//!
//! The part of a configuration about memory and tables is checked here and nowhere else. The plan
//! is a pure function of the configuration: the same configuration gives the same layout. A warm
//! restart depends on this.

mod workers;

use loch_engines::region::{
    Header, LAYOUT_VERSION, MAGIC, TABLE_ALIGN_BYTES, TableEntry, tables_offset,
};
use loch_engines::registry::EngineId;
use loch_engines::room::Room;
use loch_engines::size::InWords;

use crate::layout::declaration::for_others;
use crate::layout::difference::{Difference, table_facts};
use crate::limits::{
    DATA_TABLE_BYTES_MAX, NODES_MAX, SERVED_SESSIONS_DEFAULT, SESSIONS_MAX, TABLE_NAME_BYTES_MAX,
    TABLES_MAX, WORKERS_MAX,
};
use crate::{ByteSize, EmbeddedConfig, Error, NodeConfig, Result, TableConfig};
use workers::worker_sessions;
pub(crate) use workers::worker_sessions_of;

/// The size of a region is a multiple of the page size.
const PAGE_BYTES: u64 = 4096;

/// Unused memory is left out of the region if it is more than an eighth, and more than this.
const UNUSED_BYTES_MAX: u64 = 16 << 20;

/// Up to this size an error says how much memory would be enough.
const LEAST_MIB_MAX: u64 = 256;

/// The layout of a node's region. The header has no identity yet.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub header: Header,
    pub tables: Vec<TableEntry>,
    /// The bytes that each table has in the memory of the node's process.
    private_bytes: Vec<u64>,
    /// The memory that no table uses, if it is so much that the region does not have it.
    left_out: Option<LeftOut>,
}

/// Memory of a node that no table uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeftOut {
    bytes: u64,
    /// How much of it the declarations give to no table.
    unclaimed: u64,
}

impl LeftOut {
    /// The reason for most of it, and what can be changed.
    fn reason(&self) -> String {
        if self.unclaimed > self.bytes / 2 {
            return "every table has a `memory` of its own, and together these are less than the \
                    node's: raise the `memory` of a table, declare a table without `memory`, or \
                    lower the node's `memory`"
                .into();
        }
        format!(
            "a table of nessie has up to {} a node besides its index, tables of other engines have \
             less: declare more tables, or lower `memory`",
            ByteSize::new(DATA_TABLE_BYTES_MAX)
        )
    }
}

impl NodeConfig {
    /// Checks that a node can have these tables. [`Node::start`](crate::Node::start) does the same
    /// check first, but this works on any machine. Only the number of nodes in `cluster` counts; no
    /// device, file or address is looked at.
    ///
    /// # Errors
    /// [`Error::Config`] names the table and the problem.
    ///
    /// ```
    /// let config = loch::NodeConfig::from_toml("memory = \"64KiB\"\n[[table]]\nindex_slots = 65536")?;
    /// assert!(config.check_tables().is_err());
    /// # Ok::<(), loch::Error>(())
    /// ```
    pub fn check_tables(&self) -> Result<()> {
        let nodes = self.cluster.len().max(1);
        Plan::of_node(self, 0, nodes).map(drop)
    }
}

/// The plans of all nodes inside this process.
pub(crate) fn of_embedded(config: &EmbeddedConfig) -> Result<Vec<Plan>> {
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
            is_remote: false,
            tables: &config.tables,
        })
    };
    let plans: Vec<Plan> = (0..nodes).map(plan).collect::<Result<_>>()?;
    plans[0].tell_what_is_left_out();
    check_private(&plans, host_bytes())?;
    Ok(plans)
}

/// Checks that a host with so much memory can have the tables that are in the memory of a process.
/// The system gives such memory as it is used. It would not refuse the tables, but end the process
/// later.
///
/// # Errors
/// [`Error::NoMemory`].
pub(crate) fn check_private(plans: &[Plan], host_bytes: u64) -> Result<()> {
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

/// The memory of this host, together with its swap space.
pub(crate) fn host_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    (host.totalram + host.totalswap) * u64::from(host.mem_unit)
}

/// The input of a plan.
#[derive(Clone, Copy)]
struct Sizes<'a> {
    node: usize,
    nodes: usize,
    memory: ByteSize,
    sessions: u32,
    /// Whether memory is reached over a network.
    is_remote: bool,
    tables: &'a [TableConfig],
}

impl Sizes<'_> {
    /// What would fit, if there is something and it is not large: the node with more memory, or one
    /// of the tables.
    fn way_out(self) -> Option<String> {
        let of_mib = |mib: u64| ByteSize::new(mib << 20);
        let with_memory = |mib| Plan::laid_out(Sizes { memory: of_mib(mib), ..self }).is_ok();
        if let Some(least) = least_mib(with_memory).map(of_mib) {
            let is_more = least.bytes() > self.memory.bytes();
            return is_more.then(|| format!("with memory = \"{least}\" it fits"));
        }
        (0..self.tables.len()).find_map(|at| {
            let given = self.tables[at].memory?;
            let of_table = |mib| {
                let mut tables = self.tables.to_vec();
                tables[at].memory = Some(of_mib(mib));
                Plan::laid_out(Sizes { tables: &tables, ..self }).is_ok()
            };
            let least = least_mib(of_table).map(of_mib).filter(|l| l.bytes() > given.bytes())?;
            let name = &self.tables[at].name;
            Some(format!("with memory = \"{least}\" for table {name:?} it fits"))
        })
    }
}

/// The least number of MiB that is enough, up to [`LEAST_MIB_MAX`].
fn least_mib(is_enough: impl Fn(u64) -> bool) -> Option<u64> {
    let mut enough = (0..=LEAST_MIB_MAX.ilog2()).map(|n| 1 << n).find(|mib| is_enough(*mib))?;
    let mut too_little = enough / 2;
    while enough - too_little > 1 {
        let middle = too_little.midpoint(enough);
        *(if is_enough(middle) { &mut enough } else { &mut too_little }) = middle;
    }
    Some(enough)
}

impl Plan {
    /// The plan of one of `nodes` nodes with these tables.
    pub fn of_node(config: &NodeConfig, node: usize, nodes: usize) -> Result<Self> {
        let NodeConfig { memory, sessions, ref tables, .. } = *config;
        let is_remote = config.is_on_network();
        Self::new(Sizes { node, nodes, memory, sessions, is_remote, tables })
    }

    fn new(sizes: Sizes<'_>) -> Result<Self> {
        Self::laid_out(sizes).map_err(|error| match error {
            Error::Config { field, problem } => Error::Config {
                field,
                problem: match sizes.way_out() {
                    Some(way_out) => format!("{problem} ({way_out})"),
                    None => problem,
                },
            },
            other => other,
        })
    }

    fn laid_out(sizes: Sizes<'_>) -> Result<Self> {
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
        // The node's own scrubber has a slot, and so has each worker that is a client of its node.
        let own = 1 + worker_sessions(tables)?;
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
        let for_tables = memory_bytes.saturating_sub(offset);
        let shares = shares(tables, for_tables, sizes.memory)?;
        let unclaimed = for_tables.saturating_sub(shares.iter().sum());
        let mut entries = Vec::with_capacity(tables.len());
        let mut private_bytes = Vec::with_capacity(tables.len());
        for (table, share) in tables.iter().zip(shares) {
            let wrong = |problem: String| Error::config(format!("table {:?}", table.name), problem);
            let room = room_of(table, share, &sizes).map_err(wrong)?;
            let plan = table.engine.plan(&room).map_err(|error| wrong(error.to_string()))?;
            let (engine, place) = (table.engine.engine() as u32, offset..offset + plan.bytes);
            let entry = TableEntry::new(&table.name, engine, place, plan.params);
            let entry = entry.map_err(|error| wrong(error.to_string()))?;
            offset = entry.end().next_multiple_of(TABLE_ALIGN_BYTES);
            private_bytes.push(plan.private_bytes);
            entries.push(entry);
        }
        let private: u64 = private_bytes.iter().sum();
        let unused = memory_bytes.saturating_sub(offset.saturating_add(private));
        let is_left_out = unused > (memory_bytes / 8).max(UNUSED_BYTES_MAX);
        if private > 0 || is_left_out {
            // Memory of the workers' process is not in the region as well.
            header.region_bytes = memory_bytes.min(offset);
        }
        let left_out = is_left_out.then_some(LeftOut { bytes: unused, unclaimed });
        Ok(Self { header, tables: entries, private_bytes, left_out })
    }

    /// Logs a warning if the tables do not use all memory of the node.
    pub fn tell_what_is_left_out(&self) {
        if let Some(left_out) = &self.left_out {
            tracing::warn!(
                left_out = %InWords(left_out.bytes),
                "the tables do not use all memory of the node, and the rest is left out: {}",
                left_out.reason()
            );
        }
    }

    /// The differences of an older region: the field, its value there, and the planned value.
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
        let is_elsewhere = |table: &TableEntry| {
            EngineId::of(table).is_some_and(|engine| engine.needs().private_memory)
        };
        let elsewhere = tables.iter().chain(&self.tables).any(is_elsewhere);
        let tables = tables.iter().zip(&self.tables);
        let mut of_tables: Vec<_> =
            tables.flat_map(|(have, want)| table_facts(have, want)).collect();
        // If some tables have memory elsewhere, their own sizes decide how long the region is.
        let place = if elsewhere { of_tables.len() } else { 0 };
        of_tables.insert(place, memory);
        facts.extend(of_tables);
        facts.into_iter().find(|fact| fact.have != fact.want)
    }
}

/// The number of a node's session slots that are for clients.
pub(crate) fn client_sessions(header: &Header, tables: &[TableEntry]) -> u64 {
    let own = 1 + tables.iter().map(worker_sessions_of).sum::<u64>();
    (header.sessions as u64).saturating_sub(own)
}

fn check_tables(tables: &[TableConfig]) -> Result<()> {
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

/// The room of a table with `share` bytes of the memory.
fn room_of(table: &TableConfig, share: u64, sizes: &Sizes<'_>) -> Result<Room, String> {
    let TableConfig { workers, window, sessions, .. } = *table;
    let engine = table.engine.engine();
    if !engine.needs().workers {
        let said = [("workers", workers.is_some()), ("window", window.is_some())];
        let said = said.into_iter().chain([("sessions", sessions.is_some())]);
        if let Some((field, _)) = said.into_iter().find(|(_, said)| *said) {
            let served = EngineId::ALL.iter().filter(|engine| engine.needs().workers);
            let served: Vec<_> = served.map(|engine| engine.name()).collect();
            return Err(for_others(field, &served, table.engine.name()));
        }
    }
    let clients = sizes.sessions;
    let sessions = sessions.unwrap_or(clients.min(SERVED_SESSIONS_DEFAULT));
    if sessions == 0 || sessions > clients {
        return Err(format!("sessions is {sessions}, it may be 1 to the node's {clients}"));
    }
    Ok(Room {
        share,
        nodes: sizes.nodes as u16,
        value_max: table.value_max.map(ByteSize::bytes),
        workers: workers.unwrap_or(1),
        window,
        slots: sessions + 1,
        is_remote: sizes.is_remote,
    })
}

/// The bytes of each table on one node.
fn shares(tables: &[TableConfig], room: u64, memory: ByteSize) -> Result<Vec<u64>> {
    let claimed = tables.iter().filter_map(|t| t.memory).map(ByteSize::bytes);
    let claimed = claimed.fold(0, u64::saturating_add);
    let Some(rest) = room.checked_sub(claimed) else {
        let claim = |table: &TableConfig| Some(format!("{} {}", table.name, table.memory?));
        let claims: Vec<_> = tables.iter().filter_map(claim).collect();
        return Err(Error::config(
            "memory",
            format!(
                "the tables claim {} ({}), and of {memory} there are {} for tables: give the node \
                 more memory, or the tables less",
                InWords(claimed),
                claims.join(", "),
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

const _: () = {
    let own = 1 + TABLES_MAX as u32 * WORKERS_MAX as u32;
    assert!(tables_offset(SESSIONS_MAX + own) < 32 << 20);
};

#[cfg(test)]
mod tests;
