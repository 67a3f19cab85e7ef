//! Engines whose workers serve: the whole way of a request, client and worker, in one thread on
//! shared memory. The engine puts client and worker together as it does for a node; after each turn
//! of the worker the client's lanes have theirs.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use loch_engines::Kv;
use loch_engines::epoch::Session;
use loch_engines::lines::{Line, Near};
use loch_engines::log::{Logging, MemoryStorage};
use loch_engines::net::{Access, CacheLimits, Connect, Net};
use loch_engines::operation::{Batch, Operation, Outcome, PutOptions};
use loch_engines::region::TableEntry;
use loch_engines::registry::{Client, Map, Options, Shared};
use loch_engines::requests::{Holder, Sessions, Timing, WorkerId};
use loch_engines::room::Room;
use loch_engines::serve::{
    self, Attached, Next, Report, WorkerError, WorkerHost, WorkerSite, WorkerTransport,
};
use loch_fabric::shm::{MailboxShape, Region, ShmEndpoint, ShmMessages, ShmThread};
use loch_fabric::{Buf, RegionId, RemoteAddr, Zeroed, lanes};

use crate::{Key, Operations, Path, RECORDS, VALUE, key_of};

const NODE: RegionId = RegionId(0);
/// Where the table begins: behind the session slots.
const BASE: u64 = 1 << 16;
const SLOTS: u32 = 4;
const CLIENT: u32 = 1;
const WORKER: u32 = 2;
const LANES: usize = 16;
const BATCH: usize = 32;
const PUT: Operation<'_> =
    Operation::Put { value: &VALUE, options: PutOptions { expires_at_ms: None } };

/// GETs and PUTs one at a time, in 16 lanes, and in batches of 32.
pub fn paths() -> Vec<Path> {
    let engines = ["nessie-server", "herd", "kv-direct"];
    let verbs: [(&str, Operations<Rig>); 6] = [
        ("GET", get_one),
        ("PUT", put_one),
        ("GET in 16 lanes", get),
        ("PUT in 16 lanes", put),
        ("GET in batches of 32", get_in_batches),
        ("PUT in batches of 32", put_in_batches),
    ];
    let path = |engine, (verb, run): (&str, Operations<Rig>)| {
        let rig = Rig::start(engine);
        put(&rig, &(0..RECORDS).map(key_of).collect::<Vec<_>>());
        let name = format!("{engine} {verb}");
        Path { name, run: Box::new(move |keys| run(&rig, keys)) }
    };
    engines.into_iter().flat_map(|engine| verbs.map(|verb| path(engine, verb))).collect()
}

fn get_one(rig: &Rig, keys: &[Key]) {
    let gets = keys.iter().map(|key| rig.client.get(key, Buf::new()));
    rig.serve(lanes::run(1, gets, |found| {
        assert!(found.expect("the worker answers").is_some());
    }));
}

fn put_one(rig: &Rig, keys: &[Key]) {
    let puts = keys.iter().map(|key| rig.client.execute(key, PUT, Buf::new()));
    rig.serve(lanes::run(1, puts, |stored| {
        stored.expect("there is room");
    }));
}

fn get_in_batches(rig: &Rig, keys: &[Key]) {
    rig.serve(async {
        for batch in keys.chunks(BATCH) {
            let batch: Vec<_> = batch.iter().map(|key| &key[..]).collect();
            let mut found = 0;
            let mut done = |_, outcome: Outcome<'_>| {
                found += usize::from(matches!(outcome, Outcome::Found { .. }));
            };
            let got = rig.client.execute_many(Batch::Get(&batch), &mut done).await;
            got.expect("the worker answers");
            assert_eq!(found, batch.len());
        }
    });
}

fn put_in_batches(rig: &Rig, keys: &[Key]) {
    rig.serve(async {
        for batch in keys.chunks(BATCH) {
            let batch: Vec<_> = batch.iter().map(|key| (&key[..], &VALUE[..])).collect();
            let mut stored = 0;
            let put = rig.client.execute_many(Batch::Put(&batch), &mut |_, _| stored += 1).await;
            put.expect("there is room");
            assert_eq!(stored, batch.len());
        }
    });
}

fn get(rig: &Rig, keys: &[Key]) {
    let gets = keys.iter().map(|key| rig.client.get(key, Buf::new()));
    rig.serve(lanes::run(LANES, gets, |found| {
        assert!(found.expect("the worker answers").is_some());
    }));
}

fn put(rig: &Rig, keys: &[Key]) {
    let puts = keys.iter().map(|key| rig.client.execute(key, PUT, Buf::new()));
    rig.serve(lanes::run(LANES, puts, |stored| {
        stored.expect("there is room");
    }));
}

/// A client and the worker that serves it.
struct Rig {
    client: Client<OneThread>,
    worker: RefCell<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Rig {
    fn start(engine: &str) -> Self {
        let options: Options = engine.parse().expect("it is an engine");
        let id = options.engine();
        let room = Room {
            share: 8 << 20,
            nodes: 1,
            value_max: Some(VALUE.len() as u64),
            workers: 1,
            window: None,
            slots: SLOTS,
            is_remote: false,
        };
        let plan = options.plan(&room).expect("there is room");
        let bytes = BASE..BASE + plan.bytes;
        let entry = TableEntry::new("t", id as u32, bytes, plan.params).expect("a name");
        let places = vec![(RemoteAddr::new(NODE, BASE), SLOTS)];
        let map = Map::of(&entry, &places).expect("it was planned");
        let memory = Memory::of(&map, BASE + plan.bytes);
        let host = Host {
            site: WorkerSite { id: WorkerId { node: 0, worker: 0 }, table: 0, name: "t".into() },
            table: Attached { params: plan.params, places, memory: () },
            memory: memory.clone(),
            shared: Shared::of(&map),
        };
        let shared = host.shared.clone();
        let access = Access {
            session: Session::new(NODE, CLIENT, 1),
            node: 0,
            timing: Timing::default(),
            cache: CacheLimits::default(),
            batch: 64,
        };
        let Ok(client) = Client::open(&map, access, memory);
        let serve = async move { shared.serve(&host).await.expect("its memory is there") };
        Rig { client, worker: RefCell::new(Box::pin(serve)) }
    }

    /// Does the client's work, by turns with the worker.
    fn serve(&self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        lanes::block_on(poll_fn(|cx| {
            let served = self.worker.borrow_mut().as_mut().poll(cx);
            assert!(served.is_pending(), "a worker does not end by itself");
            work.as_mut().poll(cx)
        }));
    }
}

/// A node's memory, with a mailbox of its own for those that have none in the table.
#[derive(Clone)]
struct Memory {
    region: Arc<Region>,
    spare: RemoteAddr,
}

impl Memory {
    fn of(map: &Map, bytes: u64) -> Self {
        let shape = MailboxShape::new(1, 1 << 16);
        let spare = bytes.next_multiple_of(4096);
        let region = Arc::new(Region::anonymous(spare + shape.bytes()).expect("there is memory"));
        region.populate();
        for (offset, mailbox) in map.mailboxes() {
            mailbox.format(&region, BASE + offset);
        }
        shape.format(&region, spare);
        Self { region, spare: RemoteAddr::new(NODE, spare) }
    }

    fn endpoint(&self) -> ShmEndpoint {
        let mut endpoint = ShmEndpoint::new(NODE);
        endpoint.attach(NODE, self.region.clone());
        endpoint
    }

    fn thread(&self, mailbox: RemoteAddr) -> ShmThread {
        let messages = ShmMessages::open([(NODE, self.region.clone())], mailbox);
        ShmThread { memory: self.endpoint(), messages: messages.expect("it is formatted") }
    }
}

/// The network of one thread.
struct OneThread;

impl Net for OneThread {
    type Direct = ShmEndpoint;
    type Waiting = ShmThread;

    fn direct(waiting: &ShmThread) -> &ShmEndpoint {
        &waiting.memory
    }
}

impl Connect<OneThread> for Memory {
    type Error = Infallible;

    fn direct(self) -> Result<ShmEndpoint, Infallible> {
        Ok(self.endpoint())
    }

    fn waiting(self, mailbox: Option<RemoteAddr>) -> Result<ShmThread, Infallible> {
        Ok(self.thread(mailbox.unwrap_or(self.spare)))
    }
}

impl WorkerTransport for Memory {
    type Memory = ();
    type Endpoint = ShmEndpoint;
    type ReplyLinks = ();
    type Mail = ShmThread;

    fn endpoint(
        &self,
        (): &(),
        _: &WorkerSite,
        _: &Session,
    ) -> Result<(ShmEndpoint, ()), WorkerError> {
        Ok((self.endpoint(), ()))
    }

    fn tend(&self, _: &ShmEndpoint, (): &mut ()) {}

    fn mail(&self, (): &(), _: &WorkerSite, at: RemoteAddr) -> Result<ShmThread, WorkerError> {
        Ok(self.thread(at))
    }

    fn tend_mail(&self, _: &ShmThread) {}

    fn attach(&self, _: &ShmThread, (): &()) -> Result<(), WorkerError> {
        Ok(())
    }

    fn sessions(&self, _: &WorkerSite) -> Sessions {
        Box::new(|_, slot| (slot == CLIENT).then(|| Holder::new(1, None)))
    }
}

/// The worker's part of the node.
struct Host {
    site: WorkerSite,
    table: Attached<()>,
    memory: Memory,
    shared: Shared,
}

impl WorkerHost for Host {
    type Transport = Memory;
    type Storage = MemoryStorage;
    type Functions = ();
    type Lines = Near<Zeroed<Line>>;

    fn site(&self) -> &WorkerSite {
        &self.site
    }

    fn transport(&self) -> &Memory {
        &self.memory
    }

    fn log(&self) -> Result<Option<Logging<MemoryStorage>>, WorkerError> {
        Ok(None)
    }

    fn functions(&self) {}

    fn lines(&self, lines: u32) -> Result<Near<Zeroed<Line>>, WorkerError> {
        serve::own_lines(lines)
    }

    async fn attached(&self) -> Option<Attached<()>> {
        Some(self.table.clone())
    }

    async fn open_session(&self) -> Option<Session> {
        Some(Session::new(NODE, WORKER, 1))
    }

    fn close_session(&self, _: bool) {}

    fn opened(&self) {}

    /// The client has its turn.
    async fn after(&self, was_busy: bool) -> Next<()> {
        if was_busy {
            self.wake_housekeeper();
        }
        let mut has_waited = false;
        poll_fn(|_| match std::mem::replace(&mut has_waited, true) {
            false => Poll::Pending,
            true => Poll::Ready(Next::Turn),
        })
        .await
    }

    fn report(&self, _: Report) {}

    fn is_stopping(&self) -> bool {
        false
    }

    fn wake_housekeeper(&self) {
        if let Some(housekeeper) = self.shared.housekeeper() {
            housekeeper.turn();
        }
    }
}
