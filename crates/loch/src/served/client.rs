//! The client of a table that workers serve, whatever its engine.

#[cfg(feature = "verbs")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use loch_engines::epoch::Session;
use loch_engines::limits::KEY_BYTES_MAX;
use loch_engines::nessie::CheckReport;
use loch_engines::operation::Value;
use loch_engines::registry::Map as Parts;
use loch_engines::requests::{BySend, ByUnreliableWrite, Timing, WorkerId};
use loch_engines::{EngineError, Kv, herd, kv_direct, nessie_hybrid, nessie_server, pilaf};
use loch_fabric::shm::ShmMessages;
#[cfg(feature = "verbs")]
use loch_fabric::verbs::{Datagrams, VerbsEndpoint};
use loch_fabric::{Buf, Fabric, Messages, RegionId, RemoteAddr};

use super::endpoint::Patient;
#[cfg(feature = "verbs")]
use super::net::Verbs;
use super::net::{Net, Shm};
use super::whereabouts::{Inspector, Whereabouts};
#[cfg(feature = "verbs")]
use crate::attachment::Attachment;
#[cfg(feature = "verbs")]
use crate::lease::Lease;
use crate::limits::{RETRY_PAUSE, RETRY_PAUSE_MAX};
use crate::memory::{Memory, TableView};
#[cfg(feature = "verbs")]
use crate::remote::{Attempts, Ways, of_verbs};
use crate::{ConnectOptions, Counters, Error, Usage};

/// The client of a table, and how it asks what its nodes know.
pub(crate) struct Served<N: Net> {
    pub engine: Engine<N>,
    options: ConnectOptions,
    whereabouts: Whereabouts,
    table: String,
    /// The table's number.
    number: usize,
    engine_name: &'static str,
    key_and_value_max: usize,
    value_max: u64,
}

/// The clients of the engines.
pub(crate) enum Engine<N: Net> {
    Server(nessie_server::Client<Patient<N>>),
    Hybrid(nessie_hybrid::Client<Patient<N>>),
    Herd(herd::Client<Patient<N, N::Mail>, ByUnreliableWrite>),
    HerdBySend(herd::Client<Patient<N, N::Mail>, BySend<PeerOf<N>>>),
    Pilaf(pilaf::Client<Patient<N, N::Mail>>),
    KvDirect(kv_direct::Client<Patient<N>>),
    Observer(Observer<N>),
}

type PeerOf<N> = <<N as Net>::Mail as Messages>::Peer;

/// An expression with the client of an engine, whichever it is.
macro_rules! with_engine {
    ($engine:expr, $client:ident => $with:expr, $observer:ident => $or:expr) => {
        match $engine {
            $crate::served::client::Engine::Server($client) => $with,
            $crate::served::client::Engine::Hybrid($client) => $with,
            $crate::served::client::Engine::Herd($client) => $with,
            $crate::served::client::Engine::HerdBySend($client) => $with,
            $crate::served::client::Engine::Pilaf($client) => $with,
            $crate::served::client::Engine::KvDirect($client) => $with,
            $crate::served::client::Engine::Observer($observer) => $or,
        }
    };
}
pub(crate) use with_engine;

/// A client of a table with mailboxes that was attached for reading: it has none.
pub(crate) struct Observer<N: Net> {
    fabric: Patient<N>,
    /// Of a pilaf table. The reads of herd and kv-direct are requests.
    reader: Option<pilaf::Reader>,
}

impl<N: Net> Observer<N> {
    pub async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        check_key(key)?;
        let reader = self.reader.as_ref().ok_or(EngineError::NeedsSession)?;
        reader.get(&self.fabric, key, buf).await
    }

    pub async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        check_key(key)?;
        let reader = self.reader.as_ref().ok_or(EngineError::NeedsSession)?;
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

/// Whose client is opened, of which table, and how.
pub(crate) struct Opening<'a> {
    pub memory: &'a Memory,
    pub table: &'a TableView,
    pub home: usize,
    pub session: Session,
    pub options: &'a ConnectOptions,
    pub whereabouts: Whereabouts,
}

impl Served<Shm> {
    /// The client of a table, all of whose memory is mapped.
    ///
    /// # Errors
    /// [`Error::SessionsExhausted`] if the session's slot is not one of the table's,
    /// [`Error::NodeUnreachable`] if a worker has not started.
    pub fn open(opening: Opening<'_>) -> Result<Self, Error> {
        let Opening { memory, table, home, ref session, options, .. } = opening;
        if !session.is_observer() {
            check_slot(memory, table, home, session)?;
            wait_for_workers(memory, table, home, options.connect_timeout)?;
        }
        let mail = |mailbox| ShmMessages::open(memory.regions(), mailbox).map_err(Error::Fabric);
        Self::over(memory.endpoint(home), (), mail, opening)
    }
}

#[cfg(feature = "verbs")]
impl Served<Verbs> {
    /// The client of a table whose nodes are on other hosts, but for its home.
    ///
    /// # Errors
    /// As [`Ways::open`], and [`Error::SessionsExhausted`].
    pub fn open(
        attachment: &Arc<Attachment>,
        memory: &Arc<Memory>,
        table: &TableView,
        lease: &Lease,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let (home, session) = (attachment.home(), lease.session());
        if !session.is_observer() {
            check_slot(memory, table, home, &session)?;
        }
        let (attached, number) = (attachment.clone(), table.number);
        let (fabric, ways) = Ways::open(attached, memory.clone(), number, lease, options)?;
        let region_bytes = memory.nodes[home].as_ref().map_or(0, |it| it.header.region_bytes);
        let whereabouts = Whereabouts::Attached(attachment.clone());
        let opening = Opening { memory, table, home, session, options, whereabouts };
        let mail = |_| {
            let datagrams = Datagrams::new(&attachment.device()?);
            datagrams.map_err(|error| of_verbs(error, region_bytes))
        };
        Self::over(fabric, ways, mail, opening)
    }

    /// The endpoint, and its connections.
    fn linked(&self) -> (&VerbsEndpoint, &Ways) {
        with_engine!(
            &self.engine,
            client => (client.fabric().bare(), client.fabric().patience()),
            observer => (observer.fabric.bare(), observer.fabric.patience())
        )
    }

    /// As [`Ways::begin`].
    pub fn begin(&self) -> Attempts {
        let (endpoint, ways) = self.linked();
        ways.begin(endpoint)
    }

    /// As [`Ways::goes_on`].
    pub async fn goes_on(&self, attempts: &mut Attempts, error: Option<&EngineError>) -> bool {
        let (endpoint, ways) = self.linked();
        ways.goes_on(endpoint, attempts, error).await
    }

    /// What is known of an error that is for want of a connection.
    pub fn explain_network(&self, error: &EngineError) -> Option<Error> {
        match error {
            EngineError::Fabric(error) => self.linked().1.explain(*error),
            error => self.explain(error),
        }
    }
}

impl<N: Net> Served<N> {
    fn over(
        fabric: N::Fabric,
        patience: N::Patience,
        mail: impl FnOnce(RemoteAddr) -> Result<N::Mail, Error>,
        opening: Opening<'_>,
    ) -> Result<Self, Error> {
        let Opening { table, home, session, options, whereabouts, .. } = opening;
        let value_max = table.entry.params.value_bytes_max;
        let needs = table.engine().needs();
        let key_and_value_max = needs.key_and_value_bytes_max.unwrap_or(usize::MAX);
        let timing = Timing { resend_us: N::RESEND_US, timeout_us: options.operation_timeout_us() };
        let node = home as u16;
        let engine = match &table.parts {
            Parts::NessieServer(map) => {
                let fabric = Patient::new(fabric, patience, ());
                let client = nessie_server::Client::new(fabric, map.clone(), &session, timing);
                Engine::Server(client)
            }
            // Who only reads needs no client: it reads as a client of nessie.
            Parts::NessieHybrid(map) => {
                let fabric = Patient::new(fabric, patience, ());
                let (map, cache) = (map.clone(), options.cache);
                Engine::Hybrid(nessie_hybrid::Client::new(fabric, map, session, cache, timing))
            }
            Parts::Nessie(_) => unreachable!("nobody serves it"),
            Parts::Herd(_) | Parts::KvDirect(_) if session.is_observer() => {
                let fabric = Patient::new(fabric, patience, ());
                Engine::Observer(Observer { fabric, reader: None })
            }
            Parts::Pilaf(map) if session.is_observer() => {
                let fabric = Patient::new(fabric, patience, ());
                let reader = pilaf::Reader::new(map.roots(), map.seed, timing.timeout_us);
                Engine::Observer(Observer { fabric, reader: Some(reader) })
            }
            Parts::Herd(map) => {
                let mail = mail(map.mailboxes.of_client(&map.requests, node, session.slot()))?;
                of_herd(Patient::new(fabric, patience, mail), map, node, &session, timing)
            }
            Parts::Pilaf(map) => {
                let mail = mail(map.mailboxes.of_client(&map.requests, node, session.slot()))?;
                let fabric = Patient::new(fabric, patience, mail);
                let access = pilaf::Access {
                    roots: map.roots(),
                    map: map.requests.clone(),
                    servers: BySend::seeking(&map.requests),
                    seed: map.seed,
                    value_bytes_max: value_max,
                    send_bytes_max: pilaf::SEND_BYTES_MAX,
                };
                Engine::Pilaf(pilaf::Client::new(fabric, access, &session, timing))
            }
            Parts::KvDirect(map) => {
                let access = kv_direct::Access {
                    map: map.requests.clone(),
                    seed: map.seed,
                    value_bytes_max: value_max,
                    batch: options.batch.max(1),
                };
                let fabric = Patient::new(fabric, patience, ());
                Engine::KvDirect(kv_direct::Client::new(fabric, access, &session, node, timing))
            }
        };
        let (engine_name, options) = (table.engine().name(), options.clone());
        let (table, number) = (table.name.clone(), table.number);
        Ok(Self {
            engine,
            options,
            whereabouts,
            table,
            number,
            engine_name,
            key_and_value_max,
            value_max,
        })
    }

    /// The client, if it is one of kv-direct. Who only reads has none.
    #[inline]
    pub fn kv_direct(&self) -> Option<&kv_direct::Client<Patient<N>>> {
        match &self.engine {
            Engine::KvDirect(client) => Some(client),
            _ => None,
        }
    }

    /// The name of the table's engine.
    pub fn engine_name(&self) -> &'static str {
        self.engine_name
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
            EngineError::NeedsSession => {
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
        if self.has_nessie_layout() {
            return self.inspector()?.check().await;
        }
        let mut all = CheckReport::default();
        for (node, told) in self.whereabouts.inspect(self.number)?.into_iter().enumerate() {
            all.slots += told.slots;
            all.values += told.entries;
            let broken = told.broken.into_iter();
            all.broken.extend(broken.map(|what| format!("node {node}: {what}")));
        }
        Ok(all)
    }

    /// As [`Table::usage`](crate::Table::usage).
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Fabric`].
    pub async fn usage(&self) -> Result<Vec<Usage>, Failed> {
        if self.has_nessie_layout() {
            return self.inspector()?.usage().await;
        }
        let told = self.whereabouts.inspect(self.number)?;
        Ok(told.iter().map(|told| told.usage()).collect())
    }

    fn has_nessie_layout(&self) -> bool {
        matches!(self.engine, Engine::Server(_) | Engine::Hybrid(_))
    }

    /// A reader of the table's memory: the client itself need not have the right to.
    fn inspector(&self) -> Result<Inspector, Error> {
        self.whereabouts.inspector(self.number, &self.options)
    }

    /// As [`Table::counters`](crate::Table::counters).
    pub fn counters(&self) -> Counters {
        let (verbs, retries) = with_engine!(
            &self.engine,
            client => (client.counted(), client.retries()),
            observer => (observer.fabric.counters().snapshot(), 0)
        );
        Counters { verbs, retries, ..Counters::default() }
    }

    /// Wall-clock time in milliseconds since the Unix epoch.
    pub fn wall_ms(&self) -> u64 {
        with_engine!(&self.engine, it => it.fabric().wall_ms(), it => it.fabric.wall_ms())
    }

    /// Leaves nothing behind.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn detach(&self) -> Result<(), EngineError> {
        with_engine!(&self.engine, client => client.detach().await, observer => {
            let _ = observer;
            Ok(())
        })
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

/// Whether a session's slot is one of those whose clients can have the table open.
fn check_slot(
    memory: &Memory,
    table: &TableView,
    home: usize,
    session: &Session,
) -> Result<(), Error> {
    let slots = table.entry.params.service.sessions_per_node;
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

/// A client of herd, whose requests go as the table says.
fn of_herd<N: Net>(
    fabric: Patient<N, N::Mail>,
    table: &herd::Map,
    node: u16,
    session: &Session,
    timing: Timing,
) -> Engine<N> {
    let (map, seed) = (table.requests.clone(), table.seed);
    let workers = BySend::seeking(&map);
    if map.area().service().request_bytes == 0 {
        let by = workers.clone();
        let client = herd::Client::new(fabric, map, session, node, by, workers, timing, seed);
        return Engine::HerdBySend(client);
    }
    let by = ByUnreliableWrite { home: RegionId(node as u8) };
    Engine::Herd(herd::Client::new(fabric, map, session, node, by, workers, timing, seed))
}
