//! The workers of every engine, put together as a node does it, on a simulated node: they serve the
//! engine's client, report what they have, go on when nodes have come back with other memory, and
//! end when they are told to.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use loch_engines::epoch::Session;
use loch_engines::herd::RequestWay;
use loch_engines::limits::WORKER_DRAIN_US;
use loch_engines::lines::{Line, Near};
use loch_engines::log::{DiskFaults, Logging, MemoryStorage, Policy};
use loch_engines::nessie::{self, slab::Chunk};
use loch_engines::net::{Access, CacheLimits, Connect, Net};
use loch_engines::operation::{Conditional, Expect, Operation, Outcome, PutOptions};
use loch_engines::region::TableEntry;
use loch_engines::registry::{Client, EngineId, Map, Options, Shared};
use loch_engines::requests::message::ReplyHead;
use loch_engines::requests::packet::{Answered, Outcomes, Writer};
use loch_engines::requests::{Body, Failure, Holder, Seal, Sessions, Ticket, Timing, WorkerId};
use loch_engines::room::Room;
use loch_engines::serve::{
    self, Attached, Next, Report, WorkerError, WorkerHost, WorkerSite, WorkerTransport,
};
use loch_engines::{EngineError, Kv};
use loch_fabric::sim::{Faults, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, MessageAddress, Messages, RegionId, RemoteAddr, Zeroed, lanes};

const NODE: RegionId = RegionId(0);
const BASE: u64 = 1 << 16;
const SLOTS: u32 = 4;
const CLIENT: u32 = 1;
const WORKER: u32 = 2;
const KEY: &[u8] = b"key";
const VALUE: &[u8] = b"value";
const PUT: PutOptions = PutOptions { expires_at_ms: None };

/// The test's side of a worker: orders for it, and what it reports.
#[derive(Default)]
struct Orders {
    attaches: Cell<bool>,
    inspects: Cell<bool>,
    /// Whether it verifies what it reports.
    checks: Cell<bool>,
    stops: Cell<bool>,
    reported: RefCell<Option<Report>>,
    /// Times that it said that it serves.
    opened: Cell<u32>,
    /// How its sessions ended.
    sessions: RefCell<Vec<bool>>,
    /// Times that the housekeeper was woken.
    woken: Cell<u32>,
    /// Processor time that the worker takes for each turn besides its work.
    turn_ns: Cell<u64>,
    /// The incarnation of the client's session: each request comes in another one.
    client: Cell<u64>,
}

struct SimHost {
    endpoint: SimEndpoint,
    transport: SimTransport,
    site: WorkerSite,
    table: Attached<()>,
    logging: Option<Logging<MemoryStorage>>,
    shared: Shared,
    orders: Rc<Orders>,
}

/// All memory is reached by the endpoint of the worker's process.
struct SimTransport {
    endpoint: Box<dyn Fn() -> SimEndpoint>,
    orders: Rc<Orders>,
    world: World,
    map: Map,
}

/// The connections of a worker. When they go the worker has given back what it leased: the CASes
/// for that need them.
struct SimLinks {
    world: World,
    map: Map,
}

impl Drop for SimLinks {
    fn drop(&mut self) {
        let Some(map) = self.map.nessie() else { return };
        let chunks = 0..map.shape.geometry.chunks;
        let words = chunks.map(|chunk| self.world.load(map.chunk_addr(0, chunk)));
        let leased =
            words.filter(|word| matches!(Chunk::from_word(*word), Some(Chunk::Leased { .. })));
        assert!(
            std::thread::panicking() || leased.count() == 0,
            "slabs are leased, links are gone"
        );
    }
}

impl WorkerTransport for SimTransport {
    type Memory = ();
    type Endpoint = SimEndpoint;
    type ReplyLinks = SimLinks;
    type Mail = SimEndpoint;

    fn endpoint(
        &self,
        (): &(),
        _: &WorkerSite,
        session: &Session,
    ) -> Result<(SimEndpoint, SimLinks), WorkerError> {
        assert_eq!((session.home(), session.slot()), (NODE, WORKER));
        let links = SimLinks { world: self.world.clone(), map: self.map.clone() };
        Ok(((self.endpoint)(), links))
    }

    fn tend(&self, endpoint: &SimEndpoint, _: &mut SimLinks) {
        endpoint.work(self.orders.turn_ns.get());
    }

    fn mail(&self, (): &(), _: &WorkerSite, _: RemoteAddr) -> Result<SimEndpoint, WorkerError> {
        Ok((self.endpoint)())
    }

    fn tend_mail(&self, endpoint: &SimEndpoint) {
        endpoint.work(self.orders.turn_ns.get());
    }

    fn attach(&self, _: &SimEndpoint, (): &()) -> Result<(), WorkerError> {
        Ok(())
    }

    fn sessions(&self, _: &WorkerSite) -> Sessions {
        let orders = self.orders.clone();
        Box::new(move |_, slot| (slot == CLIENT).then(|| Holder::new(orders.client.get(), None)))
    }
}

impl WorkerHost for SimHost {
    type Transport = SimTransport;
    type Storage = MemoryStorage;
    type Functions = ();
    type Lines = Near<Zeroed<Line>>;

    fn site(&self) -> &WorkerSite {
        &self.site
    }

    fn transport(&self) -> &SimTransport {
        &self.transport
    }

    fn log(&self) -> Result<Option<Logging<MemoryStorage>>, WorkerError> {
        Ok(self.logging.clone())
    }

    fn functions(&self) {}

    fn lines(&self, lines: u32) -> Result<Near<Zeroed<Line>>, WorkerError> {
        serve::own_lines(lines)
    }

    async fn attached(&self) -> Option<Attached<()>> {
        Some(self.table.clone())
    }

    async fn open_session(&self) -> Option<Session> {
        Some(Session::new(NODE, WORKER, WORKER.into()))
    }

    fn close_session(&self, is_in_order: bool) {
        self.orders.sessions.borrow_mut().push(is_in_order);
    }

    fn opened(&self) {
        self.orders.opened.set(self.orders.opened.get() + 1);
    }

    async fn after(&self, was_busy: bool) -> Next<()> {
        if was_busy {
            self.wake_housekeeper();
        }
        self.endpoint.yield_now().await;
        if self.orders.stops.get() {
            Next::Stop
        } else if self.orders.attaches.take() {
            Next::Attach(Box::new(self.table.clone()))
        } else if self.orders.inspects.get() {
            if self.orders.checks.get() { Next::Report } else { Next::Count }
        } else {
            Next::Turn
        }
    }

    fn report(&self, report: Report) {
        assert!(self.orders.inspects.take(), "it is asked for");
        *self.orders.reported.borrow_mut() = Some(report);
    }

    fn is_stopping(&self) -> bool {
        self.orders.stops.get()
    }

    fn wake_housekeeper(&self) {
        if let Some(housekeeper) = self.shared.housekeeper() {
            self.orders.woken.set(self.orders.woken.get() + 1);
            housekeeper.turn();
        }
    }
}

/// The simulated network.
struct SimNet;

impl Net for SimNet {
    type Direct = SimEndpoint;
    type Waiting = SimEndpoint;

    fn direct(waiting: &SimEndpoint) -> &SimEndpoint {
        waiting
    }
}

/// A client's process.
struct Connector(SimEndpoint);

impl Connect<SimNet> for Connector {
    type Error = Infallible;

    fn direct(self) -> Result<SimEndpoint, Infallible> {
        Ok(self.0)
    }

    fn waiting(self, _: Option<RemoteAddr>) -> Result<SimEndpoint, Infallible> {
        Ok(self.0)
    }
}

/// Stores the value if there is none, and reads it. Returns whether there was none.
async fn ask(map: &Map, incarnation: u64, endpoint: SimEndpoint) -> Result<bool, EngineError> {
    let session = Session::new(NODE, CLIENT, incarnation);
    let (timing, cache) = (Timing::default(), CacheLimits::default());
    let access = Access { session, node: 0, timing, cache, batch: 1 };
    let Ok(client) = Client::<SimNet>::open(map, access, Connector(endpoint));
    let put = Operation::PutIf { value: VALUE, expect: Expect::Absent, options: PUT };
    let done = client.execute(KEY, put, Buf::new()).await?.outcome().conditional()?;
    let value = client.get(KEY, Buf::new()).await?.expect("it is there");
    assert_eq!(&value[..], VALUE);
    client.detach().await?;
    Ok(matches!(done, Conditional::Done { .. }))
}

/// What a test may want otherwise.
struct Setup {
    /// Bytes of the table.
    share: u64,
    /// The policy of the log, if the table has one.
    policy: Policy,
}

impl Default for Setup {
    fn default() -> Self {
        Self { share: 8 << 20, policy: Policy::default() }
    }
}

/// A simulated node with one table, and the worker of that.
struct Rig {
    world: World,
    orders: Rc<Orders>,
    table: Attached<()>,
    map: Map,
    logging: Option<Logging<MemoryStorage>>,
    worker: loch_fabric::sim::ProcessId,
}

impl Rig {
    fn start(engine: EngineId) -> Self {
        Self::with(engine.name().parse().expect("it is its name"))
    }

    fn with(options: Options) -> Self {
        Self::of(options, Setup::default())
    }

    fn of(options: Options, setup: Setup) -> Self {
        let Setup { share, policy } = setup;
        let engine = options.engine();
        let room = Room {
            share,
            nodes: 1,
            value_max: Some(500),
            workers: 1,
            window: Some(4),
            slots: SLOTS,
            is_remote: false,
        };
        let plan = options.plan(&room).expect("there is room");
        let bytes = BASE..BASE + plan.bytes;
        let entry = TableEntry::new("t", engine as u32, bytes, plan.params).expect("a name");
        let places = vec![(RemoteAddr::new(NODE, BASE), SLOTS)];
        let map = Map::of(&entry, &places).expect("it was planned");
        let world = World::new(7, Profile::ONE_HOST, Faults::default());
        world.add_node(BASE + plan.bytes);
        let storage = MemoryStorage::default();
        let logging = Logging { storage, table: 1, policy, compact_bytes: 1 << 20 };
        let mut rig = Self {
            worker: world.add_process(NODE),
            orders: Rc::default(),
            table: Attached { params: plan.params, places, memory: () },
            map,
            logging: (engine == EngineId::Pilaf).then_some(logging),
            world,
        };
        rig.start_worker();
        rig
    }

    /// Starts the worker as a node does that starts.
    fn start_worker(&mut self) {
        let Self { world, orders, table, map, logging, .. } = &*self;
        let (own, worker) = (world.clone(), world.add_process(NODE));
        let site = WorkerId { node: 0, worker: 0 };
        let host = SimHost {
            endpoint: world.endpoint(worker),
            transport: SimTransport {
                endpoint: Box::new(move || own.endpoint(worker)),
                orders: orders.clone(),
                world: world.clone(),
                map: map.clone(),
            },
            site: WorkerSite { id: site, table: 0, name: "t".into() },
            table: table.clone(),
            logging: logging.clone(),
            shared: Shared::of(map),
            orders: orders.clone(),
        };
        world.start(worker, async move {
            let shared = host.shared.clone();
            shared.serve(&host).await.expect("it ends in order");
        });
        self.worker = worker;
    }

    /// Lets the worker end in order.
    fn stop_worker(&self) {
        self.orders.stops.set(true);
        self.step_until(|| self.world.has_ended(self.worker));
        self.orders.stops.set(false);
    }

    /// Whether the key had no value before.
    fn ask(&self) -> bool {
        let process = self.world.add_process(NODE);
        let endpoint = self.world.endpoint(process);
        let (map, answer) = (self.map.clone(), Rc::new(Cell::new(None)));
        let (told, session) = (answer.clone(), self.orders.client.get() + 1);
        self.orders.client.set(session);
        self.world.start(process, async move {
            let asked = ask(&map, session, endpoint).await;
            told.set(Some(asked.expect("the worker answers")));
        });
        self.step_until(|| answer.get().is_some());
        answer.get().expect("it was answered")
    }

    /// Starts a client that knows the worker.
    fn start_client(
        &self,
        work: impl AsyncFnOnce(&Client<SimNet>) + 'static,
    ) -> loch_fabric::sim::ProcessId {
        let process = self.world.add_process(NODE);
        let (endpoint, map) = (self.world.endpoint(process), self.map.clone());
        let session = self.next_session();
        self.world.start(process, async move {
            let (timing, cache) = (Timing::default(), CacheLimits::default());
            let access = Access { session, node: 0, timing, cache, batch: 1 };
            let Ok(client) = Client::<SimNet>::open(&map, access, Connector(endpoint));
            work(&client).await;
        });
        process
    }

    /// Lets a client that knows the worker do its work.
    fn run_client(&self, work: impl AsyncFnOnce(&Client<SimNet>) + 'static) {
        let client = self.start_client(work);
        self.step_until(|| self.world.has_ended(client));
    }

    /// Starts a client that puts values without end, with as many requests under way as it may
    /// have, at a worker that is slower than the client. Returns when the worker serves it.
    fn start_busy_client(&self) {
        self.orders.turn_ns.set(2_000);
        let done = Rc::new(Cell::new(0));
        let told = done.clone();
        self.start_client(async move |client| {
            let puts = (0u64..).map(|number| async move {
                let put = Operation::Put { value: VALUE, options: PUT };
                // The worker may end meanwhile.
                let _ = client.execute(&(number % 100).to_le_bytes(), put, Buf::new()).await;
            });
            lanes::run(4, puts, |()| told.set(told.get() + 1)).await;
        });
        self.step_until(|| done.get() > 200);
    }

    fn next_session(&self) -> Session {
        let incarnation = self.orders.client.get() + 1;
        self.orders.client.set(incarnation);
        Session::new(NODE, CLIENT, incarnation)
    }

    /// Whether a key of a table of nessie's has a value, read without workers.
    fn holds(&self, key: &'static [u8]) -> bool {
        let process = self.world.add_process(NODE);
        let (endpoint, session) = (self.world.endpoint(process), self.next_session());
        let table = self.map.nessie().expect("nessie's layout").clone();
        let found = Rc::new(Cell::new(None));
        let told = found.clone();
        self.world.start(process, async move {
            let cache = CacheLimits::default();
            let client = nessie::Client::new(endpoint, table, session, cache, 1_000_000);
            told.set(Some(client.contains(key).await.expect("its memory is there")));
        });
        self.step_until(|| found.get().is_some());
        found.get().expect("it was found out")
    }

    /// SENDs packets of which nothing, or not the end, can be read, and returns the outcomes of
    /// each.
    fn send_nonsense(&self) -> Vec<Vec<Answered<'static>>> {
        let process = self.world.add_process(NODE);
        let endpoint = self.world.endpoint(process);
        let session = self.next_session();
        let map = self.map.requests().expect("it has workers").clone();
        let outcomes = Rc::new(RefCell::new(Vec::new()));
        let told = outcomes.clone();
        self.world.start(process, async move {
            let mut words = [0; 1 + MessageAddress::WORDS];
            let to = WorkerId { node: 0, worker: 0 };
            endpoint.read_words(&[map.incarnation_addr(to)], &mut words).await.unwrap();
            let [incarnation, address @ ..] = words;
            let worker = endpoint.peer(&MessageAddress::from_words(address)).unwrap();
            let seal = Seal::of_request(session.secret());
            let client = map.area().client(0, session.slot());
            let post = |number: u64, body: &Body<'_>| {
                let mut ticket = Ticket::new(client, session.incarnation(), body);
                (ticket.worker, ticket.number) = (incarnation as u32, number);
                let mut message = Buf::new();
                ticket.write(body, seal, &mut message);
                endpoint.send(worker, &message).unwrap();
            };
            post(1, &Body::Hello);
            let mut put = Writer::default();
            put.push(b"half", &Operation::Put { value: VALUE, options: PUT });
            let mut half = put.bytes().to_vec();
            half[0] = 3;
            let packets = [&b"\0\0"[..], b"\xff\xff", b"\x01", b"\x02\0\xff", &half];
            for (number, bytes) in (1..).zip(packets) {
                post(number, &Body::Packet { bytes, is_read: false });
                endpoint.pause(10_000).await;
                let mut all = Vec::new();
                if let Ok((_, reply)) = endpoint.try_receive(Buf::new()) {
                    let head = ReplyHead::read(&reply, Seal::of_reply(session.secret())).unwrap();
                    let packet = &reply[..head.packet_len()];
                    let outcomes = Outcomes::new(usize::from(bytes[0])).all(packet);
                    all.extend(
                        outcomes
                            .map(|it| it.unwrap().map(|it| Outcome::Stored(it.stored().unwrap()))),
                    );
                }
                told.borrow_mut().push(all);
            }
        });
        self.step_until(|| self.world.has_ended(process));
        outcomes.take()
    }

    /// What a worker reports that has verified everything; a worker that only counts says the same.
    fn report(&self) -> Report {
        let [checked, counted] = [true, false].map(|checks| self.inspect(checks));
        assert_eq!(checked, counted);
        checked
    }

    fn inspect(&self, checks: bool) -> Report {
        self.orders.checks.set(checks);
        self.orders.inspects.set(true);
        self.step_until(|| !self.orders.inspects.get());
        self.orders.reported.take().expect("it was reported")
    }

    fn step_until(&self, is_done: impl Fn() -> bool) {
        while !is_done() {
            assert!(self.world.step() && self.world.now_ns() < 2_000_000_000, "it comes about");
        }
    }
}

#[test]
fn workers_of_every_engine_serve_report_attach_and_end() {
    let served = EngineId::ALL.iter().filter(|engine| engine.needs().workers);
    for engine in served {
        let name = engine.name();
        let rig = Rig::start(*engine);
        assert!(rig.ask(), "{name}: the first PUT finds nothing");
        let report = rig.report();
        // A nessie worker has nothing of its own: all its entries are in the region.
        let has_own = rig.map.nessie().is_none();
        assert_eq!((report.entries, report.broken), (u64::from(has_own), vec![]), "{name}");
        rig.orders.attaches.set(true);
        // One that WRITEs its replies begins anew over other memory; one that SENDs them goes on.
        let sessions = if engine.needs().sessions { vec![true; 2] } else { vec![] };
        let opened = sessions.len().max(1) as u32;
        rig.step_until(|| !rig.orders.attaches.get() && rig.orders.opened.get() == opened);
        assert!(!rig.ask(), "{name}: it has the value that it had");
        assert_eq!(rig.report().entries, u64::from(has_own), "{name}");
        rig.orders.stops.set(true);
        rig.step_until(|| rig.world.has_ended(rig.worker));
        assert_eq!(*rig.orders.sessions.borrow(), sessions, "{name}");
        assert_eq!(rig.orders.opened.get(), opened, "{name}");
        assert_eq!(rig.orders.woken.get() > 0, *engine == EngineId::KvDirect, "{name}");
        rig.world.end();
    }
}

/// A message is well formed, whatever its packet is, so any client can send one.
#[test]
fn workers_go_on_after_packets_that_no_client_writes() {
    // Workers of nessie get requests by WRITE (`served.rs`).
    let by_send = |engine: &&EngineId| {
        let needs = engine.needs();
        needs.workers && !needs.sessions
    };
    let mut asked = 0;
    for engine in EngineId::ALL.iter().filter(by_send) {
        let mut options: Options = engine.name().parse().expect("it is its name");
        if let Options::Herd(herd) = &mut options {
            herd.requests = Some(RequestWay::Send);
        }
        let rig = Rig::with(options);
        let outcomes = rig.send_nonsense();
        assert!(outcomes[..3].iter().all(Vec::is_empty), "{engine:?}: there is no reply");
        let malformed = [Err(Failure::Malformed); 2];
        assert_eq!(outcomes[3], malformed, "{engine:?}");
        assert!(matches!(outcomes[4][0], Ok(Outcome::Stored(_))), "{engine:?}: {outcomes:?}");
        assert_eq!(outcomes[4][1..], malformed, "{engine:?}");
        assert!(rig.ask(), "{engine:?} goes on");
        asked += 1;
    }
    let engines = if cfg!(feature = "example") { 3 } else { 2 };
    assert!(asked >= engines, "herd, pilaf, and the example if it is built");
}

/// A worker that has to end finishes the operations that it has begun, and answers them: no client
/// is left without an answer to a PUT that took effect. The worker is stopped at each moment.
#[test]
fn a_worker_that_ends_answers_what_it_has_begun() {
    let (mut unanswered, mut steps) = (0, 0);
    loop {
        let rig = Rig::start(EngineId::NessieServer);
        assert!(rig.ask());
        let put = rig.start_client(async |client| {
            let put = Operation::Put { value: VALUE, options: PUT };
            assert!(client.execute(b"other", put, Buf::new()).await.is_ok());
        });
        (0..steps).for_each(|_| assert!(rig.world.step()));
        let was_answered = rig.world.has_ended(put);
        rig.orders.stops.set(true);
        rig.step_until(|| rig.world.has_ended(rig.worker));
        // An answer that is under way arrives.
        let until = rig.world.now_ns() + 1_000_000;
        while rig.world.now_ns() < until && rig.world.step() {}
        let is_answered = rig.world.has_ended(put);
        rig.world.kill(put);
        assert!(is_answered || !rig.holds(b"other"), "after {steps} steps");
        if was_answered {
            break;
        }
        unanswered += u32::from(!is_answered);
        steps += 1;
    }
    assert!(unanswered > 0 && steps > unanswered, "{unanswered} of {steps}");
}

/// Requests that keep coming do not keep a worker from its end. But a nessie worker then gives up
/// operations in the middle, so its node has to look for what they left.
#[test]
fn a_worker_that_gives_up_what_it_has_begun_does_not_end_its_session_in_order() {
    let rig = Rig::start(EngineId::NessieServer);
    rig.start_busy_client();
    let asked_ns = rig.world.now_ns();
    rig.stop_worker();
    assert_eq!(*rig.orders.sessions.borrow(), [false]);
    let waited_us = (rig.world.now_ns() - asked_ns) / 1_000;
    assert!((WORKER_DRAIN_US..2 * WORKER_DRAIN_US).contains(&waited_us), "{waited_us}");
    rig.world.end();
}

/// A kv-direct worker begins anew only when it has finished everything, so it takes nothing more
/// meanwhile: requests that keep coming do not hold it up.
#[test]
fn a_worker_of_kv_direct_attaches_other_memory_although_requests_keep_coming() {
    let rig = Rig::start(EngineId::KvDirect);
    rig.start_busy_client();
    let asked_ns = rig.world.now_ns();
    rig.orders.attaches.set(true);
    rig.step_until(|| rig.orders.opened.get() == 2);
    assert_eq!(*rig.orders.sessions.borrow(), [true]);
    let waited_us = (rig.world.now_ns() - asked_ns) / 1_000;
    assert!(waited_us < WORKER_DRAIN_US / 10, "{waited_us}");
    rig.world.end();
}

/// The daemon of a kv-direct worker holds free slabs between two turns of a merge. A worker that
/// looks at its memory meanwhile must not take them for lost.
#[test]
fn a_worker_of_kv_direct_reports_in_the_middle_of_a_merge() {
    const KEYS: u32 = 600;
    let options = "kv-direct".parse().expect("it is its name");
    let rig = Rig::of(options, Setup { share: 1 << 20, ..Setup::default() });
    rig.run_client(async |client| {
        for key in 0..KEYS {
            let put = Operation::Put { value: &[7; 100], options: PUT };
            client.execute(&key.to_le_bytes(), put, Buf::new()).await.expect("there is room");
        }
    });
    for key in 0..KEYS {
        rig.run_client(async move |client| {
            client
                .execute(&key.to_le_bytes(), Operation::Delete { of: None }, Buf::new())
                .await
                .expect("it is there");
        });
        let report = rig.report();
        assert_eq!((report.entries, report.broken), (u64::from(KEYS - 1 - key), vec![]));
    }
    rig.world.end();
}

/// Requests that keep coming do not keep a worker from its report. Changes that pilaf's worker has
/// prepared, and that wait for their sync, are not in the table, and not lost either.
#[test]
fn workers_report_although_requests_keep_coming() {
    for engine in EngineId::ALL.iter().filter(|engine| engine.needs().workers) {
        let options: Options = engine.name().parse().expect("it is its name");
        let policy = Policy { sync: true, ..Policy::default() };
        let rig = Rig::of(options, Setup { policy, ..Setup::default() });
        if let Some(logging) = &rig.logging {
            logging.storage.set_faults(DiskFaults { sync_looks: 3, ..DiskFaults::default() });
        }
        rig.start_busy_client();
        for _ in 0..20 {
            assert_eq!(rig.report().broken, [""; 0], "{engine:?}");
        }
        rig.stop_worker();
        rig.world.end();
    }
}

/// A log is written and synced some time after the answer. A worker of pilaf that ends in order
/// leaves nothing that the loss of power could take back.
#[test]
fn a_worker_of_pilaf_that_ends_in_order_has_made_everything_durable() {
    let mut rig = Rig::start(EngineId::Pilaf);
    assert!(rig.ask());
    rig.stop_worker();
    let disk = rig.logging.as_ref().expect("pilaf has a log").storage.clone();
    disk.kill();
    disk.lose_power(|| 0);
    rig.start_worker();
    assert!(!rig.ask(), "the value is there");
    rig.world.end();
}
