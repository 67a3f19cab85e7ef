//! One client: a session at its home node, and `lanes` operations under way.
//!
//! Operations go through the public API, as those of programs do: broken connections are made
//! again, and values are copied into a buffer that the lane reuses. Those of the published protocol
//! go to its client below the API, which boxes them: that would halve their number, and say nothing
//! about the protocol.

use std::cell::Cell;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use loch::lanes::block_on;
use loch::{Cluster, ConnectOptions, EngineError, Error, Pinned, Table, VerbCount, Version};
use loch_engines::Kv;
use loch_engines::nessie::AnyClient;
use quanta::Clock;

use super::batch;
use super::exchange::{COUNTED, Counts, Traffic as Exchanged};
use super::homes::Homes;
use super::lane::{
    LOAD_BATCH, LOAD_LANES_MIN, Lane, OPERATION_LIMIT, Store, load_batch, operate, time_every,
};
use super::limit;
use crate::error::TargetError;
use crate::measure::{Outcome, Run};
use crate::measured::Limits;
use crate::options::{ReadMode, TABLE};
use crate::spec::Spec;
use crate::system::Engine;
use crate::tally::{Traffic, Usage};
use crate::target::{Endpoint, Result, Target};
use crate::trace::Trace;
use crate::workload::{Workload, touched};

/// How long nodes may take to admit a client: they start together.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A connected client.
pub struct Client {
    engine: Engine,
    table: Table,
    /// The sockets of all nodes that it may attach to.
    sockets: Vec<PathBuf>,
    homes: Homes,
    options: ConnectOptions,
    lanes: usize,
    time_every: u32,
    /// Whether operations are handed over in batches.
    batches: bool,
    read_mode: ReadMode,
    /// Where the bare loops are in the trace.
    cursor: limit::Cursor,
    /// The other end of the bare loop over TCP, if there is one.
    echo: Option<SocketAddr>,
    /// What an operation takes of the connections, once that was counted.
    exchanged: Option<Option<Exchanged>>,
    /// Whether no operation of the run changes the table.
    is_at_rest: bool,
    /// Why the last refused operation of a run was refused.
    refusal: Option<String>,
}

impl Client {
    /// Attaches to the cluster at this client's home node.
    pub fn connect(engine: Engine, spec: &Spec, endpoint: &Endpoint, client: u32) -> Result<Self> {
        let homes = Homes::of(endpoint, spec, client);
        let options = connect_options(spec);
        let name = spec.attach.as_ref().map_or(TABLE, |attach| &attach.table);
        let table = open(&endpoint.paths[homes.home], name, &options);
        let table = table.map_err(lost(engine, "connect"))?;
        let (sockets, home) = (endpoint.paths.clone(), homes.home);
        let time_every = if spec.fabric.is_network() { 1 } else { time_every(spec) };
        Ok(Client {
            engine,
            sockets,
            homes,
            options,
            lanes: spec.lanes,
            time_every,
            batches: spec.batches() && table.takes_batches(),
            read_mode: spec.read_mode,
            cursor: limit::Cursor::default(),
            echo: endpoint.echoes.get(home).copied(),
            exchanged: None,
            is_at_rest: spec.reads == 1.0 && spec.attach.is_none(),
            refusal: None,
            table,
        })
    }

    /// Does the operations of `run` in all lanes. Returns why the last refused one was refused.
    fn operate<S: Store<Error: Display>>(
        &self,
        store: &S,
        run: &Run<'_>,
        sums: Option<&Cell<Traffic>>,
        action: &'static str,
    ) -> Result<Option<String>> {
        let done = block_on(operate(store, run, self.lanes, sums));
        let refusal = done.map_err(lost(self.engine, action))?;
        Ok(refusal.map(|error| error.to_string()))
    }
}

impl Client {
    /// The rates of the bare loop over TCP.
    fn limits_of_exchange(&mut self, workload: &Workload, trace: &Trace) -> Result<Option<Limits>> {
        let Some(address) = self.echo else { return Ok(None) };
        let exchanged = match self.exchanged {
            Some(known) => known,
            None => *self.exchanged.insert(self.count_exchanged(workload, trace)?),
        };
        let limits = exchanged.map(|traffic| traffic.limits(self.lanes, address));
        limits.transpose().map_err(lost(self.engine, "run the bare loop"))
    }

    /// Counts what some operations take of the client's connections.
    fn count_exchanged(&self, workload: &Workload, trace: &Trace) -> Result<Option<Exchanged>> {
        let Some(before) = Counts::of(&self.table) else { return Ok(None) };
        let clock = Clock::new();
        let run = Run::begin(workload, trace, &clock, 0, COUNTED, u32::MAX);
        self.operate(&TableLanes(&self.table), &run, None, "count an operation")?;
        let (_, tally, ..) = run.end();
        let after = Counts::of(&self.table);
        Ok(after.and_then(|after| Exchanged::between(before, after, tally.gets + tally.puts)))
    }
}

impl Target for Client {
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut done = 0;
        let lanes = self.lanes.max(LOAD_LANES_MIN);
        for (node, part) in self.homes.parts(records) {
            let elsewhere = (node != self.homes.home)
                .then(|| open(&self.sockets[node], self.table.name(), &self.options))
                .transpose()
                .map_err(lost(self.engine, "open the table"))?;
            let table = elsewhere.as_ref().unwrap_or(&self.table);
            let mut next = part.start;
            while next < part.end {
                let end = part.end.min(next + LOAD_BATCH);
                block_on(load_batch(&TableLanes(table), workload, next..end, lanes))
                    .map_err(lost(self.engine, "load a record"))?;
                done += end - next;
                next = end;
                progress(done);
            }
        }
        Ok(())
    }

    fn run(&mut self, run: &Run<'_>) -> Result<()> {
        const ACTION: &str = "run an operation";
        self.refusal = match self.table.mapped() {
            Some(AnyClient::Published(published)) => self.operate(published, run, None, ACTION)?,
            _ if self.batches => {
                let done = batch::operate(&self.table, run, self.lanes, TableLanes::goes_on_after);
                done.map_err(lost(self.engine, ACTION))?.map(|error| error.to_string())
            }
            _ if self.read_mode == ReadMode::Pin => {
                self.operate(&PinnedLanes(TableLanes(&self.table)), run, None, ACTION)?
            }
            _ => self.operate(&TableLanes(&self.table), run, None, ACTION)?,
        };
        Ok(())
    }

    fn batches(&self) -> bool {
        self.batches
    }

    fn time_every(&self) -> u32 {
        self.time_every
    }

    fn refusal(&self) -> Option<String> {
        self.refusal.clone()
    }

    fn usage(&mut self) -> Result<Option<Usage>> {
        let nodes = self.table.usage().map_err(lost(self.engine, "ask for the table's use"))?;
        let mut sum = Usage::default();
        for node in nodes {
            sum.values += node.entries;
            let forgotten = node.forgotten.unwrap_or_default();
            sum.evicted += forgotten.iter().map(|class| class.evicted).sum::<u64>();
        }
        Ok(Some(sum))
    }

    fn traffic(&mut self, run: &Run<'_>) -> Result<Option<Traffic>> {
        let sum = Cell::new(Traffic::default());
        self.operate(&TableLanes(&self.table), run, Some(&sum), "count an operation")?;
        Ok(Some(sum.get()))
    }

    /// There is none for tables of mapped memory whose clients do not do all work themselves, for
    /// tables over verbs, and for clusters that are not the bench's own.
    fn limits(&mut self, workload: &Workload, trace: &Trace) -> Result<Option<Limits>> {
        let Some(client) = self.table.mapped() else {
            return self.limits_of_exchange(workload, trace);
        };
        let reach = (&**client.map(), client.fabric());
        let limits = limit::limits(reach, workload, trace, &mut self.cursor, self.is_at_rest);
        limits.map_err(lost(self.engine, "measure the bare loops"))
    }
}

/// How the bench's clients attach.
fn connect_options(spec: &Spec) -> ConnectOptions {
    ConnectOptions {
        connect_timeout: CONNECT_LIMIT,
        operation_timeout: OPERATION_LIMIT,
        populate: true,
        far: spec.far,
        cache: spec.table.cache_limits(),
        batch: spec.servers.batch,
        ..ConnectOptions::default()
    }
}

fn open(socket: &PathBuf, table: &str, options: &ConnectOptions) -> Result<Table, Error> {
    Cluster::connect_with(socket, options.clone())?.table(table)
}

fn lost<E: Display>(engine: Engine, action: &'static str) -> impl Fn(E) -> TargetError {
    TargetError::lost(engine.name(), action)
}

/// A table as the lanes use it.
struct TableLanes<'a>(&'a Table);

impl Store for TableLanes<'_> {
    type Found = Option<Version>;
    type Stored = Version;
    type Error = Error;

    #[inline]
    fn get(&self, lane: &mut Lane) -> impl Future<Output = Result<Option<Version>, Error>> {
        self.0.asynch().get_into(&lane.key, &mut lane.got)
    }

    #[inline]
    fn outcome<'a>(found: &'a Option<Version>, lane: &'a Lane) -> Outcome<'a> {
        found.map_or(Outcome::Missing, |_| Outcome::Found(&lane.got))
    }

    #[inline]
    fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Version, Error>> {
        self.0.asynch().put(key, value)
    }

    fn retries(&self) -> u64 {
        self.0.counters().retries
    }

    fn counted(&self) -> VerbCount {
        self.0.counters().verbs
    }

    fn goes_on_after(error: &Error) -> bool {
        use EngineError::{Ambiguous, IndexFull, OutOfMemory, Timeout};
        matches!(
            error.engine(),
            Some(Timeout { .. } | OutOfMemory { .. } | IndexFull { .. } | Ambiguous(_))
        )
    }
}

/// The same, with values read in place.
struct PinnedLanes<'a>(TableLanes<'a>);

impl<'t> Store for PinnedLanes<'t> {
    type Found = Option<Pinned<'t>>;
    type Stored = Version;
    type Error = Error;

    #[inline]
    fn get(&self, lane: &mut Lane) -> impl Future<Output = Result<Option<Pinned<'t>>, Error>> {
        self.0.0.asynch().pin(&lane.key)
    }

    #[inline]
    fn outcome<'a>(found: &'a Option<Pinned<'t>>, _: &'a Lane) -> Outcome<'a> {
        found.as_deref().map_or(Outcome::Missing, |value| Outcome::Found(touched(value)))
    }

    #[inline]
    fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Version, Error>> {
        self.0.put(key, value)
    }

    fn retries(&self) -> u64 {
        self.0.retries()
    }

    fn counted(&self) -> VerbCount {
        self.0.counted()
    }

    fn goes_on_after(error: &Error) -> bool {
        TableLanes::goes_on_after(error)
    }
}
