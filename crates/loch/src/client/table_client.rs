//! The client of a table over one network, for any engine.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use loch_engines::limits::SCAN_PAGE_KEYS;
use loch_engines::nessie::{AnyClient, CheckReport};
use loch_engines::net::Access;
use loch_engines::operation::{Batch, Done, Operation, Outcome, PutOptions, SomeOf};
use loch_engines::registry::{Client, Operating};
use loch_engines::requests::{Timing, WorkerId};
use loch_engines::scan::{Cursor, Key, Listed, Step};
use loch_engines::{EngineError, Kv};
use loch_fabric::{Buf, Fabric};

use super::aside::aside;
use super::counters::Counters;
use super::in_place::InPlace;
use super::net::{Network, OpenParams};
use super::nodes::Nodes;
use super::operations::{Looking, Operations};
use super::options::ConnectOptions;
use super::scanning::{ScanPlace, Scanned};
use crate::layout::memory::{ClusterMemory, TableView};
use crate::limits::{RETRY_PAUSE, RETRY_PAUSE_MAX, SCAN_PAGE_STEPS};
use crate::session::table_session::TableSession;
use crate::session::wire::{Inspected, WorkerScan};
use crate::{Error, Result, Usage};

/// The client of a table, and the nodes that it asks for facts.
pub(crate) struct TableClient<N: Network> {
    /// The engine's client.
    pub client: Client<N>,
    nodes: Nodes,
    options: ConnectOptions,
    table: TableView,
    /// A client that looks at the table's memory, if this one does not: kept for as long as a scan
    /// goes on.
    scanner: RefCell<Option<Box<Reader<N>>>>,
}

impl<N: Network> TableClient<N> {
    /// Opens a table.
    ///
    /// # Errors
    /// [`Error::SessionsExhausted`] if the session's slot is not one of the table's; also the
    /// reason why the table's nodes cannot be reached.
    pub fn open(params: OpenParams<'_>) -> Result<Self> {
        let OpenParams { nodes, memory, table, table_session, options } = params;
        let session = table_session.session();
        if table.engine().needs().workers && !session.is_observer() {
            check_slot(memory, table, table_session)?;
            if !nodes.are_remote() {
                wait_for_workers(memory, table, options.connect_timeout)?;
            }
        }
        let access = Access {
            node: session.home().0.into(),
            session,
            timing: Timing { resend_us: N::RESEND_US, timeout_us: options.operation_timeout_us() },
            cache: options.cache,
            batch: options.batch.max(1),
        };
        Ok(Self {
            client: Client::open(&table.parts, access, N::connector(params)?)?,
            nodes: nodes.clone(),
            options: options.clone(),
            table: table.clone(),
            scanner: RefCell::default(),
        })
    }

    /// Begins an operation again if it lacked a connection that was made meanwhile. Such an error
    /// says that nothing was changed. Then lets the client come to rest.
    async fn attempt<T, F: Future<Output = Result<T, EngineError>>>(
        &self,
        operation: impl Fn() -> F,
        meaning: fn(EngineError) -> EngineError,
    ) -> Result<T, EngineError> {
        let endpoint = self.client.fabric();
        let _leaving = N::BREAKS.then(|| Leaving(&self.client));
        let mut attempts = N::begin(endpoint);
        loop {
            let done = operation().await.map_err(meaning);
            if N::goes_on(endpoint, &mut attempts, done.as_ref().err()).await {
                continue;
            }
            if N::BREAKS {
                // The operation is done, whatever becomes of the verbs that it did not wait for.
                _ = self.client.come_to_rest().await;
            }
            return done;
        }
    }

    /// Does the operations of a batch, and begins those that have no outcome again if one lacked a
    /// connection that was made meanwhile: its error says that none of them was done.
    async fn batch(
        &self,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        let (done, is_done) = (&RefCell::new(done), &RefCell::new(vec![false; batch.len()]));
        let attempt = || async move {
            let left: Vec<_> = (0..batch.len()).filter(|at| !is_done.borrow()[*at]).collect();
            let some = SomeOf::new(batch, &left);
            let mut seen = |at: usize, outcome: Outcome<'_>| {
                is_done.borrow_mut()[left[at]] = true;
                done.borrow_mut()(left[at], outcome);
            };
            self.client.execute_many(some.batch(), &mut seen).await
        };
        let meaning = if batch.is_read() { of_read } else { |error| error };
        self.attempt(attempt, meaning).await
    }

    /// Adds to an error of the engine the facts of the table and its nodes: a worker did not answer
    /// because its node is down, or there is no connection for some reason.
    #[cold]
    fn explain(&self, error: EngineError) -> Error {
        let known = match &error {
            EngineError::Timeout { .. } if self.client.nessie().is_none() => {
                N::missing_node(self.client.fabric(), &self.nodes)
            }
            EngineError::Fabric(error) => N::explain(self.client.fabric(), *error),
            _ => None,
        };
        known.unwrap_or_else(|| Error::Table { table: self.table.name.clone(), source: error })
    }
}

impl<N: Network> TableClient<N>
where
    Self: Send,
{
    /// Opens a client that reads the memory of this table, which is in nessie's layout. This client
    /// may have no right to read it.
    async fn reader(&self) -> Result<Reader<N>> {
        let (nodes, options) = (self.nodes.clone(), self.options.clone());
        let number = self.table.number;
        let open = move || {
            let (memory, table_session) = nodes.reader();
            let table = memory.tables.get(number).filter(|table| table.nessie().is_some());
            let table = table.ok_or_else(|| Error::ClusterMismatch {
                problem: "a node has come back with other tables: open the table again".into(),
            })?;
            let client = Self::open(OpenParams {
                nodes: &nodes,
                memory: &memory,
                table,
                table_session: &table_session,
                options: &options,
            })?;
            Ok(Reader { client, _session: table_session })
        };
        aside(self.client.fabric(), open).await
    }

    /// Looks at the table's memory, if it is in nessie's layout: with this client if it works
    /// alone, else with a client that only reads.
    async fn look<T>(
        &self,
        at: impl AsyncFn(&AnyClient<N::Direct>) -> Result<T, EngineError>,
    ) -> Result<Option<T>> {
        if self.table.nessie().is_none() {
            return Ok(None);
        }
        let reader = match self.client.nessie() {
            Some(_) => None,
            None => Some(self.reader().await?),
        };
        self.look_by(reader.as_ref(), at).await.map(Some)
    }

    /// The same by this reader, if this client may not read.
    async fn look_by<T>(
        &self,
        reader: Option<&Reader<N>>,
        at: impl AsyncFn(&AnyClient<N::Direct>) -> Result<T, EngineError>,
    ) -> Result<T> {
        let looker = reader.map_or(self, |reader| &reader.client);
        let client = looker.client.nessie();
        let client = client.expect("without a session a table of nessie's layout is read so");
        let seen = looker.attempt(|| at(client), of_read).await;
        seen.map_err(|error| self.explain(error))
    }

    /// As [`Table::scan_page`](crate::Table::scan_page).
    async fn scan(&self, from: &ScanPlace, prefix: &[u8]) -> Result<Scanned> {
        let memory = self.nodes.memory().name_of(self.table.number);
        let begin = ScanPlace { memory, ..ScanPlace::default() };
        let from = if from.memory == memory { from } else { &begin };
        if self.table.nessie().is_none() {
            return self.scan_by_workers(from, prefix).await;
        }
        let reader = match (self.client.nessie(), self.scanner.take()) {
            (Some(_), _) => None,
            (None, Some(kept)) => Some(kept),
            (None, None) => Some(Box::new(self.reader().await?)),
        };
        let page = async |client: &AnyClient<N::Direct>| scan_memory(client, from, prefix).await;
        let scanned = self.look_by(reader.as_deref(), page).await?;
        if scanned.next.is_some() {
            self.scanner.replace(reader);
        }
        Ok(scanned)
    }

    /// Asks one worker after the other, node by node, for its keys.
    async fn scan_by_workers(&self, from: &ScanPlace, prefix: &[u8]) -> Result<Scanned> {
        let workers = self.table.entry.params.service.workers;
        let nodes = self.nodes.memory().nodes.len() as u32;
        let all = nodes * u32::from(workers);
        let mut place = match from.worker < all {
            true => from.clone(),
            false => ScanPlace { memory: from.memory, ..ScanPlace::default() },
        };
        let step = Step { from: place.at, prefix: prefix.to_vec() };
        let [node, worker] = [place.worker / u32::from(workers), place.worker % u32::from(workers)];
        let scan = WorkerScan { worker: worker as u16, step };
        let (nodes, table) = (self.nodes.clone(), self.table.number);
        let ask = move || nodes.scan(node as usize, table, scan);
        let page = aside(self.client.fabric(), ask).await?;
        place = match page.next {
            Some(at) => ScanPlace { at, ..place },
            None => ScanPlace { worker: place.worker + 1, at: Cursor::default(), ..place },
        };
        Ok(Scanned { keys: page.keys, next: (place.worker < all).then_some(place) })
    }

    /// Asks what each node's workers have of the table, and whether it is sound.
    async fn inspect(&self, check: bool) -> Result<Vec<Inspected>> {
        let (nodes, table) = (self.nodes.clone(), self.table.number);
        aside(self.client.fabric(), move || nodes.inspect(table, check)).await
    }

    async fn check(&self) -> Result<CheckReport> {
        if let Some(report) = self.look(AnyClient::check).await? {
            return Ok(report);
        }
        let mut all = CheckReport::default();
        for (node, told) in self.inspect(true).await?.into_iter().enumerate() {
            all.slots += told.slots;
            all.values += told.entries;
            let broken = told.broken.into_iter();
            all.broken.extend(broken.map(|what| format!("node {node}: {what}")));
        }
        Ok(all)
    }

    async fn usage(&self) -> Result<Vec<Usage>> {
        if let Some(usage) = self.look(AnyClient::usage).await? {
            return Ok(usage);
        }
        let told = self.inspect(false).await?;
        Ok(told.iter().map(|told| told.usage()).collect())
    }
}

/// An operation of a client over a network. When this is dropped, after the operation's future,
/// nobody may use the client for long.
struct Leaving<'a, N: Network>(&'a Client<N>);

impl<N: Network> Drop for Leaving<'_, N> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A client that looks at a table's memory.
struct Reader<N: Network> {
    client: TableClient<N>,
    /// Dropped after the client; ends its connections.
    _session: TableSession,
}

impl<N: Network> Operations for TableClient<N>
where
    Self: Send,
{
    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
        buf: Buf,
    ) -> Operating<'a, Done> {
        if !N::BREAKS {
            return self.client.execute(key, operation, buf);
        }
        let meaning = if operation.is_read() { of_read } else { |error| error };
        let buf = Cell::new(buf);
        let execute = move || self.client.execute(key, operation, buf.take());
        Box::pin(self.attempt(execute, meaning))
    }

    fn shares(&self, is_read: bool) -> bool {
        self.client.shares(is_read)
    }

    fn execute_many<'a>(
        &'a self,
        batch: Batch<'a>,
        done: &'a mut dyn FnMut(usize, Outcome<'_>),
    ) -> Operating<'a, ()> {
        if !N::BREAKS {
            return self.client.execute_many(batch, done);
        }
        Box::pin(self.batch(batch, done))
    }

    fn reserve<'a: 'k, 'k>(
        &'a self,
        key: &'k [u8],
        len: usize,
        options: PutOptions,
    ) -> Operating<'k, Option<Box<dyn InPlace + 'a>>> {
        let Some(client) = self.client.nessie() else {
            let lengths = self.table.engine().needs().lengths(&self.table.entry.params);
            return Box::pin(std::future::ready(lengths.check(key, len).map(|()| None)));
        };
        Box::pin(async move {
            let reserve = || client.reserve(key, len, options);
            let place = self.attempt(reserve, |error| error).await?;
            Ok(place.map(|place| Box::new(place) as Box<dyn InPlace + 'a>))
        })
    }

    fn scan<'a>(&'a self, from: &'a ScanPlace, prefix: &'a [u8]) -> Looking<'a, Scanned> {
        Box::pin(self.scan(from, prefix))
    }

    fn check(&self) -> Looking<'_, CheckReport> {
        Box::pin(self.check())
    }

    fn usage(&self) -> Looking<'_, Vec<Usage>> {
        Box::pin(self.usage())
    }

    fn counters(&self) -> Counters {
        let counts = self.client.nessie().map(AnyClient::counts);
        Counters {
            verbs: self.client.counted(),
            retries: self.client.retries(),
            moves: counts.map_or(0, |counts| counts.moves.get()),
            helped: counts.map_or(0, |counts| counts.helped.get()),
        }
    }

    fn bytes_carried(&self) -> Option<[u64; 2]> {
        N::bytes_carried(self.client.fabric())
    }

    fn wall_ms(&self) -> u64 {
        self.client.fabric().wall_ms()
    }

    fn explain(&self, error: EngineError) -> Error {
        self.explain(error)
    }

    fn detach(&self) -> Operating<'_, ()> {
        Box::pin(self.client.detach())
    }
}

/// A page of a table that clients scan by themselves. An error in its middle loses nothing: the
/// page is read again.
async fn scan_memory<F: Fabric>(
    client: &AnyClient<F>,
    from: &ScanPlace,
    prefix: &[u8],
) -> Result<Scanned, EngineError> {
    let (mut keys, mut at) = (Vec::new(), from.at.clone());
    for _ in 0..SCAN_PAGE_STEPS {
        let mut found = |listed: Listed<'_>| {
            if listed.key.starts_with(prefix) {
                keys.push(Key::from(listed));
            }
        };
        match client.scan(&at, &mut found).await? {
            Some(next) => at = next,
            None => return Ok(Scanned { keys, next: None }),
        }
        if keys.len() >= SCAN_PAGE_KEYS {
            break;
        }
    }
    Ok(Scanned { keys, next: Some(ScanPlace { at, ..*from }) })
}

/// An error of an operation that changes nothing, so the outcome is never unknown.
fn of_read(error: EngineError) -> EngineError {
    match error {
        EngineError::Ambiguous(cause) => EngineError::Fabric(cause),
        error => error,
    }
}

/// Checks that the clients of a session's slot can have the table open.
fn check_slot(
    memory: &ClusterMemory,
    table: &TableView,
    table_session: &TableSession,
) -> Result<()> {
    let (session, slots) = (table_session.session(), table.entry.params.service.sessions_per_node);
    if session.slot() < slots {
        return Ok(());
    }
    let node = memory.nodes[usize::from(session.home().0)].as_ref();
    let socket = node.map(|node| node.socket.clone()).unwrap_or_default();
    Err(Error::SessionsExhausted { socket, sessions: slots - 1 })
}

/// Waits until every worker has published its incarnation: otherwise the first operations would
/// wait for the workers, and an operation may have less time than a node takes to start.
fn wait_for_workers(memory: &ClusterMemory, table: &TableView, within: Duration) -> Result<()> {
    let requests = table.parts.requests().expect("workers serve it");
    let endpoint = memory.endpoint(0);
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

#[cfg(test)]
mod tests {
    use loch_fabric::{FabricError, RegionId, RemoteAddr};

    use super::*;

    #[test]
    fn a_read_never_has_an_unknown_outcome() {
        let cause = FabricError::OutcomeUnknown { at: RemoteAddr::new(RegionId(1), 8) };
        assert_eq!(of_read(EngineError::Ambiguous(cause)), EngineError::Fabric(cause));
        assert_eq!(of_read(EngineError::KeyEmpty), EngineError::KeyEmpty);
    }
}
