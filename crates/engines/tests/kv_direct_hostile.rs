//! A client of a table of kv-direct that keeps no rules: it writes what it likes to its own request
//! slots, which is all that it can write. The processor goes on serving others, and what it sends
//! is never of another table of the same node.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::Kv;
use loch_engines::epoch::Session;
use loch_engines::functions::{Builtin, Element, Function, Lambda};
use loch_engines::kv_direct::slab::SlabDaemon;
use loch_engines::kv_direct::storage::{Options, Plan, Storage};
use loch_engines::kv_direct::{Access, Client, Settings, Worker, service};
use loch_engines::lines::{Line, Near};
use loch_engines::operation::{Operation, PutOptions};
use loch_engines::requests::packet::Writer;
use loch_engines::requests::{
    Area, Body, Holder, RequestMap, Seal, Ticket, Timing, Turns, WorkerId,
};
use loch_fabric::sim::{Faults, Profile, World};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEED: u64 = 5;
const NODE: RegionId = RegionId(0);
const ID: WorkerId = WorkerId { node: 0, worker: 0 };
const SECRET: &[u8; 16] = b"another table's!";
const KEYS: u32 = 40;
const MESSAGES: u64 = 20_000;
const PUT: PutOptions = PutOptions { expires_at_ms: None };

/// A table and its one processor.
struct Served {
    map: Arc<RequestMap>,
    executed: Rc<Cell<u64>>,
}

impl Served {
    fn start(world: &World, base: u64, area: Area) -> Self {
        let map = Arc::new(RequestMap::new(area, vec![RemoteAddr::new(NODE, base)]));
        let process = world.add_process(NODE);
        let (endpoint, own, executed) = (world.endpoint(process), map.clone(), Rc::default());
        let counted: Rc<Cell<u64>> = Rc::clone(&executed);
        world.start(process, async move {
            let options = Options {
                bytes: 1 << 18,
                index_ratio: 0.3,
                inline_bytes_max: 25,
                versions: true,
                value_bytes_max: 2_000,
                key_bytes: None,
            };
            let plan = Plan::new(&options).unwrap();
            let pools = plan.pools();
            let mut daemon = SlabDaemon::new(pools.clone());
            let memory = Near::new(vec![Line::ZERO; plan.lines() as usize]);
            let storage = Storage::new(memory, &plan, pools);
            let settings = Settings::default();
            let sessions = Box::new(|_, slot| Some(Holder::new(u64::from(slot), None)));
            let opened = Worker::open(endpoint, &own, ID, storage, (), SEED, settings, sessions);
            let worker = opened.unwrap();
            let mut turns = worker.serve();
            loop {
                turns.turn().expect("its own memory is there");
                daemon.turn();
                counted.set(worker.counts().executed);
                worker.fabric().yield_now().await;
            }
        });
        Self { map, executed }
    }

    fn client(
        &self,
        world: &World,
        slot: u32,
    ) -> (loch_fabric::sim::ProcessId, Client<loch_fabric::sim::SimEndpoint>) {
        let process = world.add_process(NODE);
        let session = Session::new(NODE, slot, u64::from(slot));
        let map = self.map.clone();
        let access = Access { map, seed: SEED, value_bytes_max: 2_000, key_bytes: None, batch: 8 };
        let endpoint = world.endpoint(process);
        (process, Client::new(endpoint, access, &session, 0, Timing::default()))
    }
}

/// Operations on keys of both tables.
fn packet(random: &mut ChaCha8Rng) -> (Vec<u8>, bool) {
    let mut packet = Writer::default();
    for _ in 0..random.random_range(1..20) {
        let key = random.random_range(0..2 * KEYS).to_le_bytes();
        let lambda = Lambda {
            function: match random.random_bool(0.5) {
                true => Function::Builtin(Builtin::Xor),
                false => Function::User(random.random()),
            },
            element: Element::ALL[random.random_range(0..Element::ALL.len())],
            operand: random.random(),
            second: 0,
        };
        let operation = match random.random_range(0..6) {
            0 | 1 => Operation::Get,
            2 => Operation::Put { value: b"mine", options: PUT },
            3 => Operation::Filter(lambda),
            4 => Operation::UpdateAll { lambda, returns: true },
            _ => Operation::Update(lambda),
        };
        packet.push(&key, &operation);
    }
    (packet.bytes().to_vec(), packet.is_read())
}

/// Something for a request slot of `room` bytes, as it would be asked or not.
fn message(random: &mut ChaCha8Rng, mut ticket: Ticket, number: u64, room: usize) -> Vec<u8> {
    let (mut bytes, is_read) = packet(random);
    let how = random.random_range(0..5);
    if how == 0 {
        let len = random.random_range(1..room / 8) * 8;
        return (0..len).map(|_| random.random()).collect();
    }
    if how == 1 || how == 2 {
        // A packet that is not one, in a message that is.
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
    }
    let body = Body::Packet { bytes: &bytes, is_read };
    let worker = ticket.worker;
    ticket = Ticket::new(ticket.client, ticket.session, &body);
    (ticket.worker, ticket.number) = (worker, number);
    let mut message = Buf::new();
    ticket.write(&body, Seal::CHECKSUM, &mut message);
    let mut message = message.to_vec();
    if how == 3 {
        let at = random.random_range(0..message.len());
        message[at] ^= 1 << random.random_range(0..8);
    }
    message
}

#[test]
fn whoever_keeps_no_rules_neither_stops_a_processor_nor_sees_another_table() {
    let world = World::new(SEED, Profile::CONNECTX_3_56, Faults::default());
    let area = Area::new(service(1, 4, 16, 2048, 2_100).unwrap(), 1).unwrap();
    let base = 1 << 16;
    world.add_node(base + 2 * area.bytes());
    let (own, other) =
        (Served::start(&world, base, area), Served::start(&world, base + area.bytes(), area));

    let (writer, client) = other.client(&world, 1);
    world.start(writer, async move {
        for key in 0..KEYS {
            client.put(&key.to_le_bytes(), &SECRET.repeat(4), PUT).await.unwrap();
        }
    });
    while !world.has_ended(writer) {
        assert!(world.step());
    }

    let hostile = world.add_process(NODE);
    let (endpoint, map) = (world.endpoint(hostile), own.map.clone());
    let number_of = area.client(0, 9);
    world.start(hostile, async move {
        let mut random = ChaCha8Rng::seed_from_u64(SEED);
        let mut incarnation = [0];
        endpoint.read_words(&[map.incarnation_addr(ID)], &mut incarnation).await.unwrap();
        let get = Body::Packet { bytes: &[], is_read: true };
        let mut ticket = Ticket::new(number_of, 9, &get);
        ticket.worker = incarnation[0] as u32;
        let room = map.area().service().request_bytes as usize;
        for number in 1..=MESSAGES {
            let message = message(&mut random, ticket, number, room);
            let end = map.request_addr(ID, number_of, number).offset() + room as u64;
            let at = RemoteAddr::new(NODE, end - message.len() as u64);
            endpoint.write(at, Buf::from(message)).await.1.unwrap();
            endpoint.pause(random.random_range(0..10)).await;
        }
    });
    let (good, client) = own.client(&world, 1);
    world.start(good, async move {
        for round in 0..1_000 {
            assert_eq!(client.fetch_add(b"a good client's", 1).await, Ok(round));
        }
    });
    while !(world.has_ended(hostile) && world.has_ended(good)) {
        assert!(world.step() && world.now_ns() < 10_000_000_000, "it ends");
    }
    // Much of it could be read, and was executed.
    assert!(own.executed.get() > 1_000 + MESSAGES, "{}", own.executed.get());
    assert_eq!(other.executed.get(), u64::from(KEYS), "nobody asked the other table");

    // Results are there, and none of them is of the other table.
    let words = (base..base + area.bytes()).step_by(8);
    let seen: Vec<u8> =
        words.flat_map(|at| world.load(RemoteAddr::new(NODE, at)).to_le_bytes()).collect();
    let has = |bytes: &[u8]| seen.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(b"mine") && !has(SECRET));
    let (reader, client) = other.client(&world, 2);
    world.start(reader, async move {
        for key in 0..KEYS {
            let value = client.get(&key.to_le_bytes(), Buf::new()).await.unwrap().unwrap();
            assert_eq!(value[..], SECRET.repeat(4));
        }
    });
    while !world.has_ended(reader) {
        assert!(world.step());
    }
    world.end();
}
