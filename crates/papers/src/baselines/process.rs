//! A baseline on shared memory: one process that serves it, and the clients' side.
//!
//! ```text
//! mailboxes of the workers | mailboxes of the clients | the baseline
//! ```
//! All of this is one region, a file in a private directory in shared memory, which is removed when
//! the server has ended. The server's workers poll for requests without end, as the workers of the
//! papers do. With fewer processors than threads they yield in between, and so do clients.

use std::cell::Cell;
use std::fs;
use std::future::{Future, poll_fn};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use loch::lanes::block_on;
use loch_bench::error::TargetError;
use loch_bench::measure::Run;
use loch_bench::memory::{check_nodes, memory_dir};
use loch_bench::process::{Owned, cpu_seconds, helper_command};
use loch_bench::spec::Spec;
use loch_bench::tally::Traffic;
use loch_bench::target::loch::lane::{
    LOAD_BATCH, LOAD_LANES_MIN, OPERATION_LIMIT, load_batch, operate, time_every,
};
use loch_bench::target::starting::{Starting, start_limit};
use loch_bench::target::{Endpoint, Service, Target};
use loch_bench::workload::Workload;
use loch_engines::epoch::Session;
use loch_engines::requests::{Holder, Timing, WorkerId};
use loch_engines::{EngineError, Kv};
use loch_fabric::shm::{MailboxShape, Peer, Region, ShmEndpoint, ShmMessages, ShmThread};
use loch_fabric::{FabricError, MessageAddress, Messages, RegionId, RemoteAddr};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::baseline::{Baseline, Place, Serve};
use super::name::{BaselineName, Visit, visit};

const REGION: RegionId = RegionId(0);
/// Room for a window of the longest messages.
const RING_BYTES: u32 = 1 << 17;
/// A client that waits longer for a reply sends its request again.
const RESEND: Duration = Duration::from_millis(2);
/// Rounds without work after which a worker yields its processor, and polls after which a client
/// does.
const ROUNDS_ALONE: u32 = 1000;
/// The line that the server prints when it is ready.
const READY: &str = "ready";

/// The layout of the region.
struct Layout<B> {
    baseline: B,
    workers: u32,
    clients: u32,
    bytes: u64,
}

impl<B: Baseline> Layout<B> {
    fn new(spec: &Spec) -> Result<Self, TargetError> {
        if spec.nodes != 1 {
            return Err(TargetError::Impossible(format!(
                "--nodes {}: a baseline has one server with --fabric shm: drop it, or simulate more",
                spec.nodes
            )));
        }
        let (workers, clients) = (spec.servers.workers.into(), spec.clients);
        let mailboxes = u64::from(workers) * mailbox(clients).bytes()
            + u64::from(clients) * mailbox(workers).bytes();
        let place = Place { bases: vec![RemoteAddr::new(REGION, mailboxes)], sessions: clients };
        let baseline = B::lay_out(spec, place)?;
        let bytes = mailboxes + baseline.bytes();
        Ok(Self { baseline, workers, clients, bytes })
    }

    fn worker_mailbox(&self, worker: u32) -> u64 {
        u64::from(worker) * mailbox(self.clients).bytes()
    }

    fn client_mailbox(&self, client: u32) -> u64 {
        self.worker_mailbox(self.workers) + u64::from(client) * mailbox(self.workers).bytes()
    }

    /// All mailboxes: their first bytes and shapes.
    fn format(&self, region: &Region) {
        let of_worker = |worker| mailbox(self.clients).format(region, self.worker_mailbox(worker));
        let of_client = |client| mailbox(self.workers).format(region, self.client_mailbox(client));
        (0..self.workers).for_each(of_worker);
        (0..self.clients).for_each(of_client);
    }
}

fn mailbox(senders: u32) -> MailboxShape {
    MailboxShape::new(senders, RING_BYTES)
}

/// A thread whose mailbox is at `mailbox`.
fn thread_at(region: &Arc<Region>, mailbox: u64) -> Result<ShmThread, FabricError> {
    let mut memory = ShmEndpoint::new(REGION);
    memory.attach(REGION, region.clone());
    let at = RemoteAddr::new(REGION, mailbox);
    let messages = ShmMessages::open([(REGION, region.clone())], at)?;
    Ok(ShmThread { memory, messages })
}

/// The peer that receives at `mailbox`.
fn peer_at(thread: &ShmThread, mailbox: u64) -> Result<Peer, FabricError> {
    // The address of a mailbox is its place.
    let mut words = thread.address().words();
    words[0] = RemoteAddr::new(REGION, mailbox).to_word();
    thread.peer(&MessageAddress::from_words(words))
}

/// The order that a server gets.
#[derive(Serialize, Deserialize)]
struct Order {
    baseline: BaselineName,
    spec: Spec,
    region: PathBuf,
}

/// The hidden subcommand: serves until it is killed.
pub fn serve() -> Result<(), TargetError> {
    let order = serde_json::from_reader(io::stdin()).map_err(not_started)?;
    let Order { baseline, spec, region } = order;
    visit(baseline, Serving { spec: &spec, region: &region })
}

fn not_started(reason: impl ToString) -> TargetError {
    TargetError::NotStarted { server: "the baseline's server", reason: reason.to_string() }
}

struct Serving<'a> {
    spec: &'a Spec,
    region: &'a Path,
}

impl Visit for Serving<'_> {
    type Output = Result<(), TargetError>;

    fn visit<B: Baseline>(self) -> Self::Output {
        let layout = Layout::<B>::new(self.spec)?;
        let region = Arc::new(Region::create(self.region, layout.bytes).map_err(not_started)?);
        region.populate();
        layout.format(&region);
        let (tell, told) = channel();
        thread::scope(|scope| {
            for worker in 0..layout.workers {
                let (layout, region, tell) = (&layout, &region, tell.clone());
                scope.spawn(move || {
                    let ended = work(layout, region, worker, &tell);
                    // This fails only if another worker has reported its end before.
                    let _ = tell.send(ended);
                });
            }
            for _ in 0..layout.workers {
                told.recv().expect("there are workers").map_err(not_started)?;
            }
            let mut output = io::stdout();
            writeln!(output, "{READY}").and_then(|()| output.flush()).map_err(not_started)?;
            // A worker ends only with an error.
            told.recv().expect("there are workers").map_err(not_started)
        })
    }
}

/// Reports that it is ready, and works until an error.
fn work<B: Baseline>(
    layout: &Layout<B>,
    region: &Arc<Region>,
    worker: u32,
    tell: &Sender<Result<(), EngineError>>,
) -> Result<(), EngineError> {
    let thread = thread_at(region, layout.worker_mailbox(worker))?;
    let id = WorkerId { node: 0, worker: worker as u16 };
    let mut server = layout.baseline.server(thread, id, Box::new(session_of))?;
    let _ = tell.send(Ok(()));
    let mut rounds = 0u32;
    loop {
        rounds = if server.turn()? { 0 } else { rounds.saturating_add(1) };
        if rounds >= ROUNDS_ALONE {
            thread::yield_now();
        }
    }
}

/// The running server. Fields are dropped in order: the process before its files.
pub struct Server {
    process: Owned,
    region: PathBuf,
    _dir: TempDir,
}

impl Server {
    /// Starts it and waits until it is ready.
    pub fn start(
        baseline: BaselineName,
        spec: &Spec,
        interrupted: &AtomicBool,
    ) -> Result<Self, TargetError> {
        let bytes = visit(baseline, Needed(spec))?;
        check_nodes(spec, bytes)?;
        let dir = memory_dir().map_err(not_started)?;
        let (region, log) = (dir.path().join("0.region"), dir.path().join("0.log"));
        let order = Order { baseline, spec: spec.clone(), region: region.clone() };
        let process = start(&order, &log).map_err(not_started)?;
        let mut server = Server { process, region, _dir: dir };
        let starting = Starting {
            server: "the baseline's server",
            answers: &|| fs::read_to_string(&log).is_ok_and(|log| log.contains(READY)),
            log: &log,
            limit: start_limit(bytes),
        };
        starting.wait(&mut server.process, interrupted)?;
        Ok(server)
    }
}

fn start(order: &Order, log: &Path) -> io::Result<Owned> {
    let log = fs::File::create(log)?;
    let mut child = helper_command("bench-baseline")?
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let stdin = child.stdin.take();
    let process = Owned::new(child);
    // The order ends when the pipe closes.
    stdin.map_or(Ok(()), |mut stdin| stdin.write_all(&serde_json::to_vec(order)?))?;
    Ok(process)
}

/// Bytes of a region.
struct Needed<'a>(&'a Spec);

impl Visit for Needed<'_> {
    type Output = Result<u64, TargetError>;

    fn visit<B: Baseline>(self) -> Self::Output {
        Layout::<B>::new(self.0).map(|layout| layout.bytes)
    }
}

impl Service for Server {
    fn endpoint(&self) -> Endpoint {
        Endpoint::new(vec![self.region.clone()])
    }

    fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds(self.process.pid())
    }
}

/// A client.
pub struct Client<S> {
    baseline: BaselineName,
    store: S,
    lanes: usize,
    time_every: u32,
    /// Why the last refused operation of a run was refused.
    refusal: Option<EngineError>,
}

/// Every client has a session of its own, and only one.
fn incarnation_of(client: u32) -> u64 {
    u64::from(client) + 1
}

fn session_of(_: u16, slot: u32) -> Option<Holder> {
    Some(Holder::new(incarnation_of(slot), None))
}

/// Connects client number `client` to the server.
pub fn connect(
    baseline: BaselineName,
    spec: &Spec,
    endpoint: &Endpoint,
    client: u32,
) -> Result<Box<dyn Target>, TargetError> {
    visit(baseline, Connecting { baseline, spec, region: &endpoint.paths[0], client })
}

struct Connecting<'a> {
    baseline: BaselineName,
    spec: &'a Spec,
    region: &'a Path,
    client: u32,
}

impl Visit for Connecting<'_> {
    type Output = Result<Box<dyn Target>, TargetError>;

    fn visit<B: Baseline>(self) -> Self::Output {
        let Connecting { baseline, spec, region, client } = self;
        let lost = |reason: String| lost(baseline, "connect", reason);
        let layout = Layout::<B>::new(spec)?;
        let region = Region::open(region, true).map_err(|error| lost(error.to_string()))?;
        let thread = thread_at(&Arc::new(region), layout.client_mailbox(client));
        let thread = thread.map_err(|error| lost(error.to_string()))?;
        let workers = (0..layout.workers)
            .map(|worker| peer_at(&thread, layout.worker_mailbox(worker)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| lost(error.to_string()))?;
        let session = Session::new(REGION, client, incarnation_of(client));
        let timing = Timing {
            resend_us: RESEND.as_micros() as u64,
            timeout_us: OPERATION_LIMIT.as_micros() as u64,
        };
        Ok(Box::new(Client {
            baseline,
            store: layout.baseline.client(thread, &session, 0, &workers, timing),
            lanes: spec.lanes,
            time_every: time_every(spec),
            refusal: None,
        }))
    }
}

fn lost(baseline: BaselineName, action: &'static str, reason: impl ToString) -> TargetError {
    TargetError::Lost { store: baseline.as_str(), action, reason: reason.to_string() }
}

/// Runs a client's lanes to their end; it yields now and then.
fn run<T>(lanes: impl Future<Output = T>) -> T {
    let mut lanes = pin!(lanes);
    let mut polls = 0u32;
    block_on(poll_fn(|cx| {
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(ROUNDS_ALONE) {
            thread::yield_now();
        }
        lanes.as_mut().poll(cx)
    }))
}

impl<S: Kv> Target for Client<S> {
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), TargetError> {
        let lanes = self.lanes.max(LOAD_LANES_MIN);
        let mut next = records.start;
        while next < records.end {
            let end = records.end.min(next + LOAD_BATCH);
            run(load_batch(&self.store, workload, next..end, lanes))
                .map_err(|error| lost(self.baseline, "load a record", error))?;
            next = end;
            progress(next - records.start);
        }
        Ok(())
    }

    fn run(&mut self, operations: &Run<'_>) -> Result<(), TargetError> {
        let done = run(operate(&self.store, operations, self.lanes, None));
        self.refusal = done.map_err(|error| lost(self.baseline, "run an operation", error))?;
        Ok(())
    }

    fn time_every(&self) -> u32 {
        self.time_every
    }

    fn refusal(&self) -> Option<String> {
        self.refusal.as_ref().map(ToString::to_string)
    }

    fn traffic(&mut self, operations: &Run<'_>) -> Result<Option<Traffic>, TargetError> {
        let sums = Cell::new(Traffic::default());
        run(operate(&self.store, operations, self.lanes, Some(&sums)))
            .map_err(|error| lost(self.baseline, "count an operation", error))?;
        Ok(Some(sums.get()))
    }
}
