//! The memory of a cluster: the layouts of its nodes' regions, checked against each other; where
//! each table is in them; and the regions that this process has mapped. On shared memory these are
//! all regions, over a network only the home node's.
//!
//! # Invariants
//! 1. Node `n`'s region is attached under `RegionId(n)`, and its header gives the same node number
//!    and the right number of nodes.
//! 2. All nodes declare the same tables with the same geometry, so every client computes the same
//!    slots for a key.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loch_engines::engine::{Place, Sizes};
use loch_engines::error::LayoutError;
use loch_engines::nessie::hash::TableMap;
use loch_engines::region::{
    DIRECTORY_OFFSET, Header, PEERS_OFFSET, SESSION_BYTES, SESSIONS_OFFSET, TableEntry,
};
use loch_engines::registry::{EngineId, Map};
use loch_fabric::shm::{Region, RegionError, ShmEndpoint};
use loch_fabric::{RegionId, RemoteAddr};

use zerocopy::FromBytes;

use crate::layout::difference::table_facts;
use crate::layout::facts::{MemberFacts, unhex};
use crate::layout::plan::{self, Plan};
use crate::layout::table_info::TableInfo;
use crate::{ByteSize, Error, Result, TableProtocol};

/// An odd number without a pattern.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A node: the layout of its region, and the region if this process has it mapped.
#[derive(Clone)]
pub(crate) struct Member {
    pub name: String,
    /// The node's socket, or its address on another host.
    pub socket: PathBuf,
    pub header: Header,
    pub tables: Vec<TableEntry>,
    region: Option<Arc<Region>>,
}

impl Member {
    /// Reads header and directory of a region.
    ///
    /// # Errors
    /// [`LayoutError`] if this version does not write such header and directory.
    pub fn read(name: String, socket: PathBuf, region: Arc<Region>) -> Result<Self, LayoutError> {
        let (header, tables) = read_layout(&region)?;
        Ok(Self { name, socket, header, tables, region: Some(region) })
    }

    /// Whether the region's file was deleted, as far as this process can see.
    pub fn is_deleted(&self) -> bool {
        self.region.as_ref().is_some_and(|region| region.is_unlinked())
    }

    /// A node that is only planned.
    pub fn planned(number: usize, plan: Plan) -> Self {
        let Plan { header, tables, .. } = plan;
        Self { name: number.to_string(), socket: PathBuf::new(), header, tables, region: None }
    }

    /// A node of which only header and directory are known.
    ///
    /// # Errors
    /// [`Error::RegionDamaged`] if this version does not write such header and directory.
    pub fn told(name: &str, address: &Path, header: &str, directory: &str) -> Result<Self> {
        let damaged = |what: String| Error::RegionDamaged { path: address.into(), what };
        let [head, tables] = [header, directory].map(unhex);
        let (Some(head), Some(tables)) = (head, tables) else {
            return Err(damaged("its header or directory is not hexadecimal".into()));
        };
        let region_bytes = Header::read_from_prefix(&head).map_or(0, |(h, _)| h.region_bytes);
        let parsed = parse_header(&head, region_bytes)
            .and_then(|header| Ok((header, parse_directory(&header, &tables)?)));
        let (header, tables) = parsed.map_err(|error| damaged(error.to_string()))?;
        Ok(Self { name: name.into(), socket: address.into(), header, tables, region: None })
    }

    /// A node as the facts of another node describe it.
    ///
    /// # Errors
    /// As [`Member::told`].
    pub fn of_facts(facts: &MemberFacts, address: &Path) -> Result<Self> {
        Self::told(&facts.name, address, &facts.header, &facts.directory)
    }

    /// The region.
    ///
    /// # Panics
    /// If the region is not mapped: see [`Member::mapped`].
    pub fn region(&self) -> &Arc<Region> {
        self.mapped().expect("a node's own region is mapped, and on shared memory every one")
    }

    /// The region, if it is mapped.
    pub fn mapped(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// The number of session slots for clients. The first slot is the scrubber's, and the last
    /// slots are the workers'.
    pub fn client_sessions(&self) -> u32 {
        plan::client_sessions(&self.header, &self.tables) as u32
    }

    /// The session slots of a table's workers.
    pub fn worker_slots(&self, table: usize) -> std::ops::Range<u32> {
        let sessions =
            |tables: &[TableEntry]| tables.iter().map(plan::worker_sessions_of).sum::<u64>() as u32;
        let first = 1 + self.client_sessions() + sessions(&self.tables[..table]);
        first..first + sessions(&self.tables[table..=table])
    }

    /// The parts of a table of this node, as offsets into its region, if there is such a table.
    pub fn parts(&self, table: usize) -> Option<Map> {
        let entry = self.tables.get(table)?;
        let place = RemoteAddr::new(RegionId(0), entry.offset);
        let places = vec![(place, self.header.sessions); self.header.nodes.into()];
        Some(Map::of(entry, &places).expect("it was checked when it was read"))
    }

    /// The name of a table of whose index words on one node may name entries on another, if there
    /// is one. It is one of nessie in which no node owns a key.
    fn spread_table(&self) -> Option<&str> {
        let spreads = |table: &usize| {
            let parts = self.parts(*table);
            parts.as_ref().and_then(Map::nessie).is_some_and(|map| !map.shape.coupled)
        };
        let table = (0..self.tables.len()).find(spreads)?;
        self.tables[table].name()
    }

    /// The word of this node's region that has the identity of another node's memory.
    fn peer_word(&self, node: &Self) -> Option<&AtomicU64> {
        let number = u64::from(node.header.node);
        Some(self.mapped()?.word(PEERS_OFFSET + number * size_of::<u64>() as u64))
    }

    /// Notes that from now on words of this node's index may name entries of that memory of another
    /// node.
    pub fn meet(&self, node: &Self) {
        if !self.mapped().is_some_and(|region| region.is_writable()) {
            return;
        }
        if let Some(word) = self.peer_word(node) {
            let _ =
                word.compare_exchange(0, node.header.identity, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Checks that another node has the memory with which this one has met it, if words of this
    /// one's index may name entries of it.
    fn check_memory(&self, node: &Self) -> Result<()> {
        let known = self.peer_word(node).map_or(0, |word| word.load(Ordering::Acquire));
        if known == 0 || known == node.header.identity || self.header.node == node.header.node {
            return Ok(());
        }
        let Some(table) = self.spread_table() else { return Ok(()) };
        let (name, socket) = (&node.name, node.socket.display());
        Err(Error::ClusterMismatch {
            problem: format!(
                "node {name:?} ({socket}) has come back without its memory, and the index of table \
                 {table:?} on node {:?} ({}) still names entries that were there: stop all nodes, \
                 remove all their regions, and start the cluster fresh",
                self.name,
                self.socket.display()
            ),
        })
    }

    /// The number of client session slots that are taken, if the region is mapped.
    pub fn client_sessions_taken(&self) -> Option<u32> {
        let region = self.mapped()?;
        let taken = |slot: &u32| {
            let word = region.word(SESSIONS_OFFSET + *slot as u64 * SESSION_BYTES);
            word.load(Ordering::Relaxed) != 0
        };
        Some((1..=self.client_sessions()).filter(taken).count() as u32)
    }
}

/// Makes an error of the fabric one of this crate, with the path of the region.
pub(crate) fn of_region(path: &Path) -> impl FnOnce(RegionError) -> Error {
    move |error| match error {
        RegionError::NoSpace { bytes, free, .. } => {
            let (size, free) = (ByteSize::new(bytes), free.map(ByteSize::new));
            Error::NoSpace { path: path.into(), size, free }
        }
        RegionError::Stopped { .. } => Error::StartStopped,
        RegionError::Os { action, source, .. } => Error::os(action, path)(source),
        other => Error::RegionDamaged { path: path.into(), what: other.to_string() },
    }
}

/// Reads header and directory.
pub(crate) fn read_layout(region: &Region) -> Result<(Header, Vec<TableEntry>), LayoutError> {
    let damaged = |what: &str| LayoutError::Damaged { what: what.into() };
    let mut head = [0; size_of::<Header>()];
    if region.len() < head.len() as u64 {
        return Err(damaged("header"));
    }
    region.copy_out(0, &mut head);
    let header = parse_header(&head, region.len())?;
    let mut directory = vec![0; header.tables as usize * size_of::<TableEntry>()];
    if DIRECTORY_OFFSET + directory.len() as u64 > region.len() {
        return Err(damaged("table directory"));
    }
    region.copy_out(DIRECTORY_OFFSET, &mut directory);
    let tables = parse_directory(&header, &directory)?;
    Ok((header, tables))
}

fn parse_header(head: &[u8], region_bytes: u64) -> Result<Header, LayoutError> {
    let header = Header::parse(head, region_bytes)?;
    if header.sessions == 0 {
        return Err(LayoutError::Damaged { what: "header".into() });
    }
    Ok(header)
}

fn parse_directory(header: &Header, directory: &[u8]) -> Result<Vec<TableEntry>, LayoutError> {
    let parse = |at| TableEntry::parse(directory, at, header);
    let tables: Vec<TableEntry> =
        (0..header.tables as usize).map(parse).collect::<Result<_, _>>()?;
    let damaged = |what: String| Err(LayoutError::Damaged { what });
    if tables_overlap(&tables) {
        return damaged("table directory (two tables share memory)".into());
    }
    let workers: u64 = tables.iter().map(plan::worker_sessions_of).sum();
    if workers >= header.sessions.into() {
        return damaged("table directory (more workers than sessions)".into());
    }
    let places = vec![(RemoteAddr::new(RegionId(0), 0), header.sessions); header.nodes.into()];
    for entry in &tables {
        if let Err(error) = Map::of(entry, &places) {
            return damaged(format!("table directory ({error})"));
        }
    }
    Ok(tables)
}

fn tables_overlap(tables: &[TableEntry]) -> bool {
    let mut ranges: Vec<(u64, u64)> = tables.iter().map(|t| (t.offset, t.end())).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].1 > pair[1].0)
}

/// A table on all nodes.
#[derive(Clone)]
pub(crate) struct TableView {
    pub name: String,
    /// The table's number in the directory.
    pub number: usize,
    pub entry: TableEntry,
    pub parts: Map,
    /// For each node the offset of the table, and the node's session slots.
    pub places: Vec<Place>,
}

impl TableView {
    /// The table's engine.
    pub fn engine(&self) -> EngineId {
        self.parts.engine()
    }

    /// The map of a table in nessie's layout. Such tables are scrubbed.
    pub fn nessie(&self) -> Option<&Arc<TableMap>> {
        self.parts.nessie()
    }

    /// The description of the table for users.
    fn info(&self) -> TableInfo {
        let Sizes { ways, bucket_slots, index_slots, index_bytes, data_bytes, grain_bytes } =
            self.parts.sizes();
        let params = &self.entry.params;
        let shape = self.nessie().map(|map| map.shape);
        let protocol = shape.map(|shape| TableProtocol::from(shape.protocol));
        TableInfo {
            name: self.name.clone(),
            engine: self.engine().name().into(),
            protocol: protocol.unwrap_or_default(),
            index_slots,
            index_bytes,
            data_bytes,
            grain_bytes,
            value_bytes_max: params.value_bytes_max,
            ways,
            bucket_slots,
            workers: params.service.workers,
            evicts: self.parts.evicts(),
        }
    }
}

/// The nodes of a cluster. An unknown node is `None`.
pub(crate) struct ClusterMemory {
    pub nodes: Vec<Option<Member>>,
    pub tables: Vec<TableView>,
}

impl ClusterMemory {
    /// Joins the nodes of a cluster; node `home` has to be known.
    ///
    /// # Errors
    /// [`Error::ClusterMismatch`] names node and table, or the node that lacks its memory.
    pub fn join(nodes: Vec<Option<Member>>, home: usize) -> Result<Self> {
        let first = nodes[home].as_ref().expect("the home node is known");
        for (number, node) in nodes.iter().enumerate() {
            if let Some(node) = node {
                check_member(first, node, number, nodes.len())?;
            }
        }
        let pairs = || {
            let others = |one| nodes.iter().flatten().map(move |other| (one, other));
            nodes.iter().flatten().flat_map(others)
        };
        pairs().try_for_each(|(one, other)| one.check_memory(other))?;
        pairs().for_each(|(one, other)| one.meet(other));
        let place = |table: usize, number: usize| {
            // An unknown node is never accessed, so its offset does not matter.
            let node = nodes[number].as_ref().unwrap_or(first);
            let at = RemoteAddr::new(RegionId(number as u8), node.tables[table].offset);
            (at, node.header.sessions)
        };
        let view = |(number, entry): (usize, &TableEntry)| {
            let places: Vec<_> = (0..nodes.len()).map(|node| place(number, node)).collect();
            let parts = Map::of(entry, &places).expect("it was checked when it was read");
            let name = entry.name().unwrap_or_default().to_owned();
            TableView { name, number, entry: *entry, parts, places }
        };
        let tables = first.tables.iter().enumerate().map(view).collect();
        Ok(Self { nodes, tables })
    }

    /// The tables in whose memory clients, or workers as clients, work with leases.
    pub fn nessie_tables(&self) -> impl Iterator<Item = (&TableView, &Arc<TableMap>)> {
        self.tables.iter().filter_map(|table| Some((table, table.nessie()?)))
    }

    /// Returns whether every node is known.
    pub fn is_complete(&self) -> bool {
        self.nodes.iter().all(Option::is_some)
    }

    /// The identities of the nodes' memory.
    pub fn identities(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.nodes.iter().map(|node| node.as_ref().map(|node| node.header.identity))
    }

    /// A number for a table and the memory that it is in. If a node has its memory made anew, the
    /// number is another one.
    pub fn name_of(&self, table: usize) -> u64 {
        self.identities().fold(table as u64, |name, identity| {
            (name ^ identity.unwrap_or(0)).wrapping_mul(MIX).rotate_left(32)
        })
    }

    /// The regions that are mapped.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, Arc<Region>)> + '_ {
        let mapped = |(number, node): (usize, &Option<Member>)| {
            let region = node.as_ref().and_then(Member::mapped)?;
            Some((RegionId(number as u8), region.clone()))
        };
        self.nodes.iter().enumerate().filter_map(mapped)
    }

    /// An endpoint to all mapped regions.
    pub fn endpoint(&self, home: usize) -> ShmEndpoint {
        let mut endpoint = ShmEndpoint::new(RegionId(home as u8));
        self.regions().for_each(|(number, region)| endpoint.attach(number, region));
        endpoint
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`] lists the tables of the cluster.
    pub fn table(&self, name: &str) -> Result<&TableView> {
        let found = self.tables.iter().find(|table| table.name == name);
        found.ok_or_else(|| Error::NoSuchTable {
            name: name.into(),
            have: self.tables.iter().map(|t| t.name.clone()).collect(),
        })
    }

    /// The descriptions of the tables for users.
    pub fn table_infos(&self) -> Vec<TableInfo> {
        self.tables.iter().map(TableView::info).collect()
    }
}

/// Checks that a node is the expected one, declares the same tables as the first, and has the
/// memory that the first knows.
pub(crate) fn check_member(
    first: &Member,
    node: &Member,
    number: usize,
    nodes: usize,
) -> Result<()> {
    let who = |node: &Member| format!("node {:?} ({})", node.name, node.socket.display());
    let mismatch = |problem: String| Err(Error::ClusterMismatch { problem });
    let (place, of) = (node.header.node as usize, node.header.nodes as usize);
    if (place, of) != (number, nodes) {
        return mismatch(format!(
            "{} is node {place} of {of}, but number {number} of {nodes} for {}: give all nodes the \
             same `cluster` list",
            who(node),
            who(first)
        ));
    }
    if node.tables.len() != first.tables.len() {
        return mismatch(format!(
            "{} has {} tables, {} has {}: declare the same tables on all nodes",
            who(node),
            node.tables.len(),
            who(first),
            first.tables.len()
        ));
    }
    for (theirs, ours) in node.tables.iter().zip(&first.tables) {
        let facts = table_facts(theirs, ours);
        if let Some(fact) = facts.into_iter().find(|fact| fact.have != fact.want) {
            return mismatch(format!(
                "{}: {} on {}, {} on {}: declare the same tables on all nodes",
                fact.field,
                fact.have,
                who(node),
                fact.want,
                who(first)
            ));
        }
    }
    first.check_memory(node)
}
