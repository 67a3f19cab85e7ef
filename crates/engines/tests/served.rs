//! Nessie's served versions, one client and two workers on a simulated cluster: what an operation
//! costs, and what a client is told when workers start anew. Under faults, with many clients, they
//! are run by the simulation program (`tests/simulation`).

use std::cell::Cell;
use std::rc::Rc;

use loch_engines::epoch::Session;
use loch_engines::nessie::geometry::{Geometry, Options};
use loch_engines::nessie::hash::KeyHash;
use loch_engines::nessie::{self, CacheLimits};
use loch_engines::nessie_hybrid;
use loch_engines::nessie_server::{self, Served, Worker};
use loch_engines::operation::{Operation, Outcome, PutOptions};
use loch_engines::requests::message::Expected;
use loch_engines::requests::packet::{Outcomes, Writer};
use loch_engines::requests::{
    Body, Failure, Holder, ReplyPath, Seal, Service, Ticket, Timing, Turns, WorkerId,
    WrittenReplies, within,
};
use loch_engines::{EngineError, Kv};
use loch_fabric::sim::{Faults, ProcessId, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, FabricError, RegionId, RemoteAddr, lanes};

/// A worker serves so many requests at a time.
const LANES: usize = 4;
/// How long a worker's nessie client goes on with an operation.
const TIMEOUT_US: u64 = 20_000;

/// A process: its endpoint and its session.
struct Seat {
    endpoint: SimEndpoint,
    session: Session,
}

async fn serve(map: Served, seat: Seat, id: WorkerId) {
    let cache = CacheLimits { lines: 16, entry_bytes_max: 512 };
    let Seat { endpoint, session } = seat;
    let client = nessie::Client::new(endpoint, map.table.clone(), session, cache, TIMEOUT_US);
    let sessions = Box::new(|_, slot| Some(Holder::new(u64::from(slot), None)));
    let worker = Worker::open(client, map, id, sessions).unwrap();
    let mut turns = worker.serve(LANES);
    loop {
        turns.turn().expect("its own memory is there");
        worker.client().fabric().yield_now().await;
    }
}

/// Two nodes with a worker each, and nothing goes wrong.
fn calm() -> (World, Served) {
    let service = Service {
        workers: 1,
        window: 2,
        replies: 2,
        sessions_per_node: 4,
        request_bytes: Service::request_bytes_for(16, 4096).unwrap(),
        reply_bytes: Service::reply_bytes_for(4096).unwrap(),
        ..Service::default()
    };
    let options = Options { checksums: true, ..Options::default() };
    let geometry = Geometry::plan(2, 4 << 20, 64, 3, 2, 4096, options).unwrap().coupled();
    let world = World::new(7, Profile::CONNECTX_3_56, Faults::default());
    let places = [0, 1].map(|node| (RemoteAddr::new(RegionId(node), 1 << 16), 4));
    let map = Served::new(geometry.validate().unwrap(), service, &places).unwrap();
    for _ in 0..2 {
        world.add_node((1 << 16) + Served::bytes(&map.table.shape, map.requests.area()));
    }
    (world, map)
}

fn seat(world: &World, node: u16, incarnation: u64) -> (ProcessId, Seat) {
    let process = world.add_process(RegionId(node as u8));
    let session = Session::new(RegionId(node as u8), incarnation as u32, incarnation);
    (process, Seat { endpoint: world.endpoint(process), session })
}

fn start_worker(world: &World, map: &Served, node: u16, incarnation: u64) -> ProcessId {
    let (process, seat) = seat(world, node, incarnation);
    world.start(process, serve(map.clone(), seat, WorkerId { node, worker: 0 }));
    process
}

fn finish(world: &World, process: ProcessId) {
    while !world.has_ended(process) {
        assert!(world.step() && world.now_ns() < 1_000_000_000, "it ends");
    }
}

#[test]
fn an_operation_costs_a_request_and_a_reply_and_nothing_at_home() {
    let (world, map) = calm();
    let _ = [0, 1].map(|node| start_worker(&world, &map, node, 1));
    let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
    world.start(process, async move {
        let client = nessie_server::Client::new(endpoint, map, &session, Timing::default(), 16);
        // The far worker's first answer is which incarnation it is.
        for key in 0..20u32 {
            assert_eq!(client.contains(&key.to_le_bytes()).await, Ok(false));
        }
        for key in 0..20u32 {
            let (key, value) = (key.to_le_bytes(), vec![key as u8; key as usize * 200]);
            let before = client.counted();
            client.put(&key, &value, PutOptions::default()).await.unwrap();
            let put = client.counted() - before;
            let found = client.get(&key, Buf::new()).await.unwrap().unwrap();
            assert_eq!(&found[..], value);
            let get = client.counted() - before - put;
            let owner = KeyHash::of(&client.map().table, &key).owner(&client.map().table);
            let costs = if owner == 0 { (0, 0, 0) } else { (2, 2, 1) };
            assert_eq!((put.verbs, put.remote_verbs, put.round_trips), costs);
            assert_eq!((get.verbs, get.remote_verbs, get.round_trips), costs);
            assert!(owner == 0 || get.remote_bytes > value.len() as u64);
            for counted in [put, get] {
                assert_eq!((counted.writes, counted.bytes), (costs.0, counted.remote_bytes));
            }
        }
    });
    finish(&world, process);
    world.end();
}

/// The first request to a worker was sent whole for no incarnation, answered with the worker's, and
/// sent again.
#[test]
fn a_client_learns_the_incarnation_of_a_worker_before_it_sends_it_a_payload() {
    let (world, map) = calm();
    let _ = [0, 1].map(|node| start_worker(&world, &map, node, 1));
    let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
    world.start(process, async move {
        endpoint.pause(1_000).await;
        let client = nessie_server::Client::new(endpoint, map, &session, Timing::default(), 16);
        let is_far = |key: &u32| client.owner(&key.to_le_bytes()).node == 1;
        let keys: Vec<_> = (0u32..).filter(is_far).take(2).map(u32::to_le_bytes).collect();
        let value = [7; 4000];
        let mut before = client.counted();
        for (key, read) in keys.iter().zip([1, 0]) {
            client.put(key, &value, PutOptions::default()).await.unwrap();
            let counted = client.counted();
            let verbs = counted.verbs - before.verbs;
            let round_trips = counted.round_trips - before.round_trips;
            let bytes = counted.remote_bytes - before.remote_bytes;
            // A request, its reply, and before the first one a READ of the worker's line.
            assert_eq!((verbs, round_trips), (2 + read, 1 + read));
            assert!((4000..4300).contains(&bytes), "the value travels once: {bytes} bytes");
            before = counted;
        }
        assert_eq!(client.retries(), 0);
    });
    finish(&world, process);
    world.end();
}

/// The lane that had sent the packet of others was dropped, and their changes were ambiguous.
#[test]
fn operations_go_on_when_the_lane_that_leads_their_packet_is_dropped() {
    for polls in 0..80 {
        let (world, map) = calm();
        let _ = [0, 1].map(|node| start_worker(&world, &map, node, 1));
        let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
        world.start(process, async move {
            let client = nessie_server::Client::new(endpoint, map, &session, Timing::default(), 16);
            let is_far = |key: &u32| client.owner(&key.to_le_bytes()).node == 1;
            let keys: Vec<_> = (0u32..).filter(is_far).take(5).map(u32::to_le_bytes).collect();
            // The first goes alone, the second begins a packet.
            let add = |lane: usize| {
                let polls = if lane == 1 { polls } else { u32::MAX };
                within(polls, client.fetch_add(&keys[lane], 1))
            };
            let mut ended = Vec::new();
            lanes::run(5, (0..5).map(add), |before| ended.push(before)).await;
            let done = ended.iter().filter(|before| **before == Some(Ok(0))).count();
            let dropped = ended.iter().filter(|before| before.is_none()).count();
            assert!(done + dropped == 5 && dropped <= 1, "{polls} polls: {ended:?}");
            for (lane, key) in keys.iter().enumerate() {
                let number = client.fetch_add(key, 0).await.unwrap();
                let is_once = number == 1 || number == 0 && lane == 1 && dropped == 1;
                assert!(is_once, "{polls} polls, lane {lane}: {number}");
            }
        });
        finish(&world, process);
        world.end();
    }
}

/// A request slot has room for a longer value if the key is short. No worker is there to refuse it.
#[test]
fn lengths_that_the_table_does_not_take_are_refused_before_a_worker_is_asked() {
    let (world, map) = calm();
    let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
    world.start(process, async move {
        let client = nessie_server::Client::new(endpoint, map, &session, Timing::default(), 16);
        let empty = client.get(b"", Buf::new()).await.map(|found| found.is_some());
        assert_eq!(empty, Err(EngineError::KeyEmpty));
        assert_eq!(client.delete(b"").await, Err(EngineError::KeyEmpty));
        let long = client.put(b"key", &[0; 4097], PutOptions::default()).await;
        assert_eq!(long, Err(EngineError::ValueTooLong { len: 4097, max: 4096 }));
    });
    finish(&world, process);
    world.end();
}

/// A packet that tells no number of operations gets no reply. One whose end cannot be read, or that
/// names the key of another node, gets an outcome for each of its operations.
#[test]
fn a_worker_goes_on_after_packets_that_no_client_writes() {
    let (world, map) = calm();
    let _ = [0, 1].map(|node| start_worker(&world, &map, node, 1));
    let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
    world.start(process, async move {
        let (table, requests) = (map.table.clone(), map.requests.clone());
        let key_of = |node: u8| {
            let is_there =
                |key: &u32| KeyHash::of(&table, &key.to_le_bytes()).owner(&table) == node;
            (0..).find(is_there).unwrap().to_le_bytes()
        };
        let ([near, far], client) = ([0, 1].map(key_of), requests.area().client(0, session.slot()));
        let (to, slot_bytes) = (WorkerId { node: 1, worker: 0 }, requests.area().service());
        let mut incarnation = [0];
        endpoint.read_words(&[requests.incarnation_addr(to)], &mut incarnation).await.unwrap();
        let replies = WrittenReplies::of(&requests, client);
        let send = async |number: u64, bytes: &[u8]| {
            let body = Body::Packet { bytes, is_read: false };
            let mut ticket = Ticket::new(client, session.incarnation(), &body);
            (ticket.worker, ticket.number) = (incarnation[0] as u32, number);
            let mut message = Buf::new();
            ticket.write(&body, Seal::CHECKSUM, &mut message);
            let end =
                requests.request_addr(to, client, number).add(slot_bytes.request_bytes.into());
            let at = RemoteAddr::new(end.region(), end.offset() - message.len() as u64);
            endpoint.write(at, message).await.1.unwrap();
            endpoint.pause(1_000).await;
            let session = session.incarnation() as u16;
            let expected = Expected { number, reply: 0, source: 1, session };
            let mut reply = Buf::new();
            let head = replies.poll(&endpoint, &expected, &mut reply).unwrap();
            head.map(|head| reply[..head.packet_len()].to_vec())
        };
        let put = Operation::Put { value: b"value", options: PutOptions::default() };
        for (number, nonsense) in [(1, &b"\0\0"[..]), (2, b"\xff\xff"), (3, b"\x01")] {
            assert_eq!(send(number, nonsense).await, None, "there is no reply");
        }
        let mut packet = Writer::default();
        packet.push(&far, &put);
        packet.push(&near, &put);
        let mut packet = packet.bytes().to_vec();
        packet[0] = 4;
        let outcomes = send(4, &packet).await.expect("there is a reply");
        let outcomes: Vec<_> = Outcomes::new(4).all(&outcomes).map(Result::unwrap).collect();
        assert!(matches!(outcomes[0], Ok(Outcome::Stored(_))), "{outcomes:?}");
        assert_eq!(outcomes[2..], [Err(Failure::Malformed); 2]);
        assert_eq!(outcomes[1], Err(Failure::Unsupported));
    });
    finish(&world, process);
    world.end();
}

/// A client that was idle while its worker started anew has nothing under way that the earlier one
/// may have executed: its next mutation is not ambiguous, near or far.
#[test]
fn an_idle_client_does_not_notice_that_workers_start_anew() {
    let (world, map) = calm();
    let workers = [0, 1].map(|node| start_worker(&world, &map, node, 1));
    let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
    let restarted = Rc::new(Cell::new(false));
    let (waits, table) = (restarted.clone(), map.clone());
    world.start(process, async move {
        let client = nessie_server::Client::new(endpoint, table, &session, Timing::default(), 16);
        for key in 0..20u32 {
            assert_eq!(client.fetch_add(&key.to_le_bytes(), 5).await, Ok(0));
        }
        while !waits.get() {
            client.fabric().pause(50).await;
        }
        for key in 0..20u32 {
            assert_eq!(client.fetch_add(&key.to_le_bytes(), 1).await, Ok(5));
        }
        // The near one's incarnation is looked at, and the far one's at first; then it tells.
        assert_eq!(client.counts().stale.get(), 1);
    });
    world.run_until(1_000_000);
    for (node, worker) in workers.into_iter().enumerate() {
        world.kill(worker);
        world.fence(worker);
        start_worker(&world, &map, node as u16, 3);
    }
    restarted.set(true);
    finish(&world, process);
    world.end();
}

/// A node that starts first forgets the incarnation of the dead worker. Until the next one has made
/// itself known, what became of a mutation is not settled, and nobody is told anything.
#[test]
fn nobody_is_told_what_became_of_a_mutation_before_the_next_worker_knows() {
    let (world, map) = calm();
    let worker = start_worker(&world, &map, 0, 1);
    let _far = start_worker(&world, &map, 1, 1);
    let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
    let (is_dead, is_told) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (waits, tells, table) = (is_dead.clone(), is_told.clone(), map.clone());
    world.start(process, async move {
        let client = nessie_server::Client::new(endpoint, table, &session, Timing::default(), 16);
        let ours = |key: &u32| {
            KeyHash::of(&client.map().table, &key.to_le_bytes()).owner(&client.map().table) == 0
        };
        let key = (0..).find(ours).unwrap().to_le_bytes();
        assert_eq!(client.fetch_add(&key, 5).await, Ok(0));
        while !waits.get() {
            client.fabric().pause(50).await;
        }
        let told = client.fetch_add(&key, 1).await;
        assert!(matches!(told, Err(EngineError::Ambiguous(_))), "{told:?}");
        tells.set(true);
    });
    world.run_until(1_000_000);
    world.kill(worker);
    world.fence(worker);
    is_dead.set(true);
    world.run_until(3_000_000);
    let (starts, Seat { endpoint, .. }) = seat(&world, 0, 3);
    let at = map.requests.incarnation_addr(WorkerId { node: 0, worker: 0 });
    world.start(starts, async move { endpoint.announce(at, 0).unwrap() });
    world.run_until(100_000_000);
    assert!(!is_told.get());
    start_worker(&world, &map, 0, 4);
    finish(&world, process);
    world.end();
}

/// A client's end that may write no table, and whose clock is ahead of the workers'.
struct Ahead {
    inner: SimEndpoint,
    by_ms: Rc<Cell<u64>>,
}

impl Fabric for Ahead {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes fetch_add write_unsignaled
        write
        is_mapped store store_before store_after announce load reload raw now_us random pause
        poll_wait yield_now
        posted is_settled => inner
    );

    async fn compare_swap(&self, at: RemoteAddr, _: u64, _: u64) -> Result<u64, FabricError> {
        Err(FabricError::ReadOnly { at })
    }

    fn wall_ms(&self) -> u64 {
        self.inner.wall_ms() + self.by_ms.get()
    }
}

/// A GET that finds a value expired leaves it to the worker, whose word counts, and which may see
/// the value for longer than anybody waits.
#[test]
fn a_value_that_is_expired_for_its_reader_alone_is_given_up_in_time() {
    let (world, map) = calm();
    let _ = [0, 1].map(|node| start_worker(&world, &map, node, 1));
    let (process, Seat { endpoint, session }) = seat(&world, 0, 2);
    let by_ms = Rc::new(Cell::new(0));
    world.start(process, async move {
        let fabric = Ahead { inner: endpoint, by_ms: by_ms.clone() };
        let cache = CacheLimits::default();
        let timing = Timing { timeout_us: 100_000, ..Timing::default() };
        let client = nessie_hybrid::Client::new(fabric, map, session, cache, timing, 16);
        for key in 0..2u32 {
            let key = key.to_le_bytes();
            let expires_at_ms = Some(client.fabric().wall_ms() + 10_000);
            client.put(&key, b"value", PutOptions { expires_at_ms }).await.unwrap();
            by_ms.set(10_000);
            let timeout_us = timing.timeout_us;
            let got = client.get(&key, Buf::new()).await.map(|found| found.map(|v| v.to_vec()));
            assert_eq!(got, Err(EngineError::Timeout { timeout_us }));
            assert_eq!(client.contains(&key).await, Ok(true), "the worker says so");
            by_ms.set(0);
            assert!(client.get(&key, Buf::new()).await.unwrap().is_some());
            // By the worker's clock too.
            let expires_at_ms = Some(client.fabric().wall_ms() - 1);
            client.put(&key, b"value", PutOptions { expires_at_ms }).await.unwrap();
            assert!(client.get(&key, Buf::new()).await.unwrap().is_none());
        }
    });
    while !world.has_ended(process) {
        assert!(world.step() && world.now_ns() < 60_000_000_000, "it ends");
    }
    world.end();
}
