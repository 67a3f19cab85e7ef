//! The client of a table that workers serve, whatever its engine.

use std::time::{Duration, Instant};

use loch_engines::EngineError;
use loch_engines::epoch::Session;
use loch_engines::limits::{HERD_ITEM_BYTES_MAX, KEY_BYTES_MAX};
use loch_engines::nessie::CheckReport;
use loch_engines::nessie_server::Served as Map;
use loch_engines::operation::Value;
use loch_engines::region::EngineId;
use loch_engines::requests::{BySend, ByUnreliableWrite, Counts, Timing, WorkerId};
use loch_engines::{herd, nessie, nessie_hybrid, nessie_server, pilaf};
use loch_fabric::shm::{Peer, ShmEndpoint, ShmMessages};
use loch_fabric::{
    Buf, Fabric, FabricError, MessageAddress, Messages, RegionId, RemoteAddr, VerbCount,
};

use super::endpoint::Patient;
use super::layout::PILAF_SEND_BYTES_MAX;
use super::whereabouts::Whereabouts;
use crate::engine::name_of;
use crate::limits::{RESEND_US, RETRY_PAUSE, RETRY_PAUSE_MAX};
use crate::memory::{Mailed, Memory, Parts, TableView};
use crate::{ConnectOptions, Counters, Error, Usage};

/// The client of a table, and how it asks what its nodes know.
pub(crate) struct Served {
    pub engine: Engine,
    whereabouts: Whereabouts,
    table: String,
    /// The table's number.
    number: usize,
    engine_name: &'static str,
    key_and_value_max: usize,
    value_max: u64,
}

/// The clients of the engines, over shared memory.
pub(crate) enum Engine {
    Server(WithInspector),
    Hybrid(nessie_hybrid::Client<Patient>),
    Herd(herd::Client<Patient<ShmMessages>, ByUnreliableWrite>),
    HerdBySend(herd::Client<Patient<ShmMessages>, BySend<Peer>>),
    Pilaf(pilaf::Client<Patient<ShmMessages>>),
    Observer(Observer),
}

/// A client of nessie-server, and one that looks at the table's memory itself: for checks.
pub(crate) struct WithInspector {
    pub client: nessie_server::Client<Patient>,
    inspector: nessie::Client<ShmEndpoint>,
}

/// A client of a table with mailboxes that was attached for reading: it has none.
pub(crate) struct Observer {
    fabric: ShmEndpoint,
    /// Of a pilaf table. The reads of herd are requests.
    reader: Option<pilaf::Reader>,
}

impl Observer {
    pub async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        check_key(key)?;
        let reader = self.reader.as_ref().ok_or(EngineError::ReadOnly)?;
        reader.get(&self.fabric, key, buf).await
    }

    pub async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        check_key(key)?;
        let reader = self.reader.as_ref().ok_or(EngineError::ReadOnly)?;
        reader.contains(&self.fabric, key).await
    }
}

fn check_key(key: &[u8]) -> Result<(), EngineError> {
    match key.len() {
        0 => Err(EngineError::KeyEmpty),
        len if len > KEY_BYTES_MAX => Err(EngineError::KeyTooLong { len }),
        _ => Ok(()),
    }
}

impl Served {
    /// The client of `table` that holds `session`, at node `home`.
    ///
    /// # Errors
    /// [`Error::SessionsExhausted`] if the session's slot is not one of the table's,
    /// [`Error::NodeUnreachable`] if a worker has not started.
    pub fn open(
        memory: &Memory,
        table: &TableView,
        home: usize,
        session: Session,
        options: &ConnectOptions,
        whereabouts: Whereabouts,
    ) -> Result<Self, Error> {
        if !session.is_observer() {
            check_slot(memory, table, home, &session)?;
            wait_for_workers(memory, table, home, options.connect_timeout)?;
        }
        let value_max = table.entry.geometry.value_bytes_max;
        let key_and_value_max = match table.engine() {
            EngineId::Herd => HERD_ITEM_BYTES_MAX,
            _ => usize::MAX,
        };
        let engine = match &table.parts {
            Parts::Served(map) => of_nessie(memory, table, home, session, options, map),
            Parts::Mailed(mailed) => mailed_client(memory, table, home, session, options, mailed)
                .map_err(Error::Fabric)?,
            Parts::Nessie(_) => unreachable!("nobody serves it"),
        };
        let engine_name = name_of(table.engine());
        let (table, number) = (table.name.clone(), table.number);
        Ok(Self { engine, whereabouts, table, number, engine_name, key_and_value_max, value_max })
    }

    /// Whether a value of such a length can be put under the key.
    ///
    /// # Errors
    /// [`EngineError`] as the PUT's.
    pub fn check_lengths(&self, key: &[u8], len: usize) -> Result<(), EngineError> {
        check_key(key)?;
        let Some(room) = self.key_and_value_max.checked_sub(key.len()) else {
            return Err(EngineError::KeyTooLong { len: key.len() });
        };
        let max = self.value_max.min(room as u64);
        if len as u64 > max {
            return Err(EngineError::ValueTooLong { len: len as u64, max });
        }
        Ok(())
    }

    /// What the table's nodes know better about an error than the engine: that a worker did not
    /// answer because its node is down.
    pub fn explain(&self, error: &EngineError) -> Option<Error> {
        match error {
            EngineError::Timeout { .. } => self.whereabouts.missing_node(),
            EngineError::ReadOnly => {
                let engine = self.engine_name;
                Some(Error::NeedsSession { table: self.table.clone(), engine })
            }
            _ => None,
        }
    }

    /// As [`Table::check`](crate::Table::check).
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Fabric`].
    pub async fn check(&self) -> Result<CheckReport, Failed> {
        match &self.engine {
            Engine::Server(served) => Ok(served.inspector.check().await?),
            Engine::Hybrid(client) => Ok(client.reader().check().await?),
            _ => {
                let mut all = CheckReport::default();
                for (node, told) in self.whereabouts.inspect(self.number)?.into_iter().enumerate() {
                    all.slots += told.slots;
                    all.values += told.entries;
                    let broken = told.broken.into_iter();
                    all.broken.extend(broken.map(|what| format!("node {node}: {what}")));
                }
                Ok(all)
            }
        }
    }

    /// As [`Table::usage`](crate::Table::usage).
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Fabric`].
    pub async fn usage(&self) -> Result<Vec<Usage>, Failed> {
        let client = match &self.engine {
            Engine::Server(served) => &served.inspector,
            Engine::Hybrid(client) => return usage_of(client.reader()).await,
            _ => {
                let told = self.whereabouts.inspect(self.number)?;
                return Ok(told.iter().map(|told| told.usage()).collect());
            }
        };
        usage_of(client).await
    }

    /// As [`Table::counters`](crate::Table::counters).
    pub fn counters(&self) -> Counters {
        let of = |verbs: VerbCount, counts: &Counts| Counters {
            verbs,
            retries: counts.resent.get() + counts.stale.get(),
            ..Counters::default()
        };
        match &self.engine {
            Engine::Server(it) => of(it.client.counted(), it.client.counts()),
            Engine::Hybrid(client) => {
                let (reader, counters) =
                    (client.reader().counts(), of(client.counted(), client.counts()));
                let retries = counters.retries + reader.retries.get();
                Counters { retries, ..counters }
            }
            Engine::Herd(client) => of(client.counted(), client.counts()),
            Engine::HerdBySend(client) => of(client.counted(), client.counts()),
            Engine::Pilaf(client) => of(client.counted(), client.requests()),
            Engine::Observer(it) => {
                Counters { verbs: it.fabric.counters().snapshot(), ..Counters::default() }
            }
        }
    }

    /// Wall-clock time in milliseconds since the Unix epoch.
    pub fn wall_ms(&self) -> u64 {
        match &self.engine {
            Engine::Server(it) => it.client.fabric().wall_ms(),
            Engine::Hybrid(client) => client.fabric().wall_ms(),
            Engine::Herd(client) => client.fabric().wall_ms(),
            Engine::HerdBySend(client) => client.fabric().wall_ms(),
            Engine::Pilaf(client) => client.fabric().wall_ms(),
            Engine::Observer(it) => it.fabric.wall_ms(),
        }
    }

    /// Leaves nothing behind.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn detach(&self) -> Result<(), EngineError> {
        match &self.engine {
            // It shares its session with no other that would have begun an operation.
            Engine::Server(it) => it.inspector.detach().await,
            Engine::Hybrid(client) => client.reader().detach().await,
            _ => Ok(()),
        }
    }
}

/// Why a table could not be looked at.
pub(crate) enum Failed {
    Engine(EngineError),
    Node(Error),
}

impl From<EngineError> for Failed {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Node(error)
    }
}

async fn usage_of<F: Fabric>(client: &nessie::Client<F>) -> Result<Vec<Usage>, Failed> {
    let mut all = Vec::new();
    for dti in 0..client.map().data_tables() {
        all.push(client.usage(dti as u8).await?);
    }
    Ok(all)
}

/// Whether a session's slot is one of those whose clients can have the table open.
fn check_slot(
    memory: &Memory,
    table: &TableView,
    home: usize,
    session: &Session,
) -> Result<(), Error> {
    let slots = table.entry.service.sessions_per_node;
    if session.slot() < slots {
        return Ok(());
    }
    let node = memory.nodes[home].as_ref();
    let socket = node.map(|node| node.socket.clone()).unwrap_or_default();
    Err(Error::SessionsExhausted { socket, sessions: slots - 1 })
}

/// Waits until every worker has made itself known: what is asked of one before that is ambiguous.
fn wait_for_workers(
    memory: &Memory,
    table: &TableView,
    home: usize,
    within: Duration,
) -> Result<(), Error> {
    let requests = table.parts.requests().expect("workers serve it");
    let endpoint = memory.endpoint(home);
    let (until, mut pause) = (Instant::now() + within, RETRY_PAUSE);
    for node in 0..requests.area().nodes() {
        for worker in 0..requests.area().service().workers {
            let word = requests.incarnation_addr(WorkerId { node, worker });
            while endpoint.load(word).map_err(Error::Fabric)? == 0 {
                if Instant::now() >= until {
                    let at = memory.nodes[usize::from(node)].as_ref();
                    return Err(Error::NodeUnreachable {
                        socket: at.map(|node| node.socket.clone()).unwrap_or_default(),
                        remedy: "its workers have not started: are all nodes of the cluster up?"
                            .into(),
                    });
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
            }
        }
    }
    Ok(())
}

fn timing(options: &ConnectOptions) -> Timing {
    Timing { resend_us: RESEND_US, timeout_us: options.operation_timeout_us() }
}

/// The client of a table of nessie that workers serve. Who only reads needs none: it reads as a
/// client of nessie.
fn of_nessie(
    memory: &Memory,
    table: &TableView,
    home: usize,
    session: Session,
    options: &ConnectOptions,
    map: &Map,
) -> Engine {
    let fabric = Patient::new(memory.endpoint(home), ());
    let (map, timing) = (map.clone(), timing(options));
    if table.engine() == EngineId::NessieHybrid {
        let client = nessie_hybrid::Client::new(fabric, map, session, options.cache, timing);
        return Engine::Hybrid(client);
    }
    let table = map.table.clone();
    let client = nessie_server::Client::new(fabric, map, &session, timing);
    let timeout_us = options.operation_timeout_us();
    let inspector =
        nessie::Client::new(memory.endpoint(home), table, session, options.cache, timeout_us);
    Engine::Server(WithInspector { client, inspector })
}

fn mailed_client(
    memory: &Memory,
    table: &TableView,
    home: usize,
    session: Session,
    options: &ConnectOptions,
    mailed: &Mailed,
) -> Result<Engine, FabricError> {
    let (requests, geometry) = (&mailed.requests, &table.entry.geometry);
    let (seed, is_pilaf) = (geometry.seed, table.engine() == EngineId::Pilaf);
    let roots = || (0..geometry.nodes).map(|node| mailed.root(node)).collect();
    if session.is_observer() {
        let timeout_us = options.operation_timeout_us();
        let reader = is_pilaf.then(|| pilaf::Reader::new(roots(), seed, timeout_us));
        return Ok(Engine::Observer(Observer { fabric: memory.endpoint(home), reader }));
    }
    let node = home as u16;
    let mailbox = mailed.client_mailbox(node, session.slot());
    let messages = ShmMessages::open(memory.regions(), mailbox)?;
    let workers = peers(&messages, mailed)?;
    let fabric = Patient::new(memory.endpoint(home), messages);
    let (map, timing) = (requests.clone(), timing(options));
    if is_pilaf {
        let access = pilaf::Access {
            roots: roots(),
            map,
            servers: workers,
            seed,
            value_bytes_max: geometry.value_bytes_max,
            send_bytes_max: PILAF_SEND_BYTES_MAX,
        };
        let client = pilaf::Client::new(fabric, access, &session, timing);
        return Ok(Engine::Pilaf(client));
    }
    let service = requests.area().service();
    let to = BySend { workers, per_node: service.workers };
    if service.request_bytes == 0 {
        let by = to.clone();
        let client = herd::Client::new(fabric, map, &session, node, by, to, timing, seed);
        return Ok(Engine::HerdBySend(client));
    }
    let by = ByUnreliableWrite { home: RegionId(home as u8) };
    let client = herd::Client::new(fabric, map, &session, node, by, to, timing, seed);
    Ok(Engine::Herd(client))
}

/// All workers of a table, node by node, as a client knows them.
fn peers(messages: &ShmMessages, mailed: &Mailed) -> Result<Vec<Peer>, FabricError> {
    let area = mailed.requests.area();
    let mut peers = Vec::new();
    for node in 0..area.nodes() {
        for worker in 0..area.service().workers {
            let at = mailed.worker_mailbox(WorkerId { node, worker });
            peers.push(messages.peer(&address_of(messages, at))?);
        }
    }
    Ok(peers)
}

/// The address of a mailbox: on shared memory that is its place.
fn address_of(messages: &ShmMessages, mailbox: RemoteAddr) -> MessageAddress {
    let mut words = messages.address().words();
    words[0] = mailbox.to_word();
    MessageAddress::from_words(words)
}
