//! A worker's request slots: whose requests it finds, in which order, and at what cost.

use std::sync::Arc;

use loch_engines::operation::{Operation, Outcome, PutOptions, Version};
use loch_engines::requests::packet::OutcomeWriter;
use loch_engines::requests::*;
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::sim::{Faults, Profile, World};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};

const HOME: RegionId = RegionId(0);
const TO: WorkerId = WorkerId { node: 0, worker: 0 };
const WINDOW: u16 = 2;
/// Every client's.
const SESSION: u64 = 5;
const PUT: Operation<'_> =
    Operation::Put { value: b"value", options: PutOptions { expires_at_ms: None } };

fn map(clients: u32) -> Arc<RequestMap> {
    let service = Service {
        workers: 1,
        window: WINDOW,
        replies: 1,
        sessions_per_node: clients,
        request_bytes: 128,
        reply_bytes: 64,
        ..Service::default()
    };
    let area = Area::new(service, 1).unwrap();
    Arc::new(RequestMap::new(area, vec![RemoteAddr::new(HOME, 0)]))
}

/// A worker, and the memory that its clients write to.
struct Rig {
    map: Arc<RequestMap>,
    endpoint: ShmEndpoint,
    inbox: Inbox,
    message: Buf,
}

impl Rig {
    fn new(clients: u32) -> Self {
        let map = map(clients);
        let mut endpoint = ShmEndpoint::new(HOME);
        let bytes = map.area().bytes().next_multiple_of(1 << 16);
        endpoint.attach(HOME, Arc::new(Region::anonymous(bytes).unwrap()));
        let sessions = Box::new(|_, _| Some(Holder::new(SESSION, None)));
        let inbox = Inbox::open(&endpoint, &map, TO, sessions).unwrap();
        Self { map, endpoint, inbox, message: Buf::new() }
    }

    fn ticket(&self, client: u32, number: u64) -> Ticket {
        let mut ticket = Ticket::new(client, SESSION, &Body::one(b"key", PUT));
        (ticket.worker, ticket.number) = (self.inbox.incarnation(), number);
        ticket
    }

    /// Writes a request into the slot of that number of client `into`.
    fn write(&self, ticket: &Ticket, into: u32) {
        let mut message = Buf::new();
        ticket.write(&Body::one(b"key", PUT), Seal::CHECKSUM, &mut message);
        let slot = self.map.request_addr(TO, into, ticket.number);
        self.endpoint.store(slot.add(128 - message.len() as u64), &[&message]).unwrap();
    }

    fn send(&self, client: u32, number: u64) {
        self.write(&self.ticket(client, number), client);
    }

    /// The request that the worker finds next in this round; it is executed at once.
    fn poll(&mut self) -> Option<Incoming> {
        let found = self.inbox.poll(&self.endpoint, &mut self.message).unwrap();
        if let Some(Incoming::Execute(ticket)) = &found {
            let stored = OutcomeWriter::one(&Ok(Outcome::Stored(Version::from_u64(1))));
            assert!(self.inbox.complete(ticket, stored).1, "it is done once");
        }
        found
    }

    /// The client whose request is executed next in this round, and the number of that request.
    fn next(&mut self) -> Option<(u32, u64)> {
        self.poll().map(|found| match found {
            Incoming::Execute(ticket) => (ticket.client, ticket.number),
            other => panic!("{other:?}"),
        })
    }

    /// The requests that are found in a round.
    fn round(&mut self) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// The roll call looks at sixteen slots in each round, and there are eighty.
#[test]
fn a_first_request_is_found_wherever_it_is() {
    for client in 0..40 {
        for number in [1, 2] {
            let mut rig = Rig::new(40);
            rig.send(client, number);
            let found: Vec<_> = (0..5).flat_map(|_| rig.round()).collect();
            assert_eq!(found, [(client, number)]);
        }
    }
}

#[test]
fn the_next_request_of_an_active_client_is_found_at_once() {
    let mut rig = Rig::new(40);
    let clients = [3, 17, 38];
    clients.iter().for_each(|client| rig.send(*client, 1));
    let first: Vec<_> = (0..6).flat_map(|_| rig.round()).collect();
    assert_eq!(first, clients.map(|client| (client, 1)));
    for number in 2..40 {
        // In any order, and not all of them each time.
        let mut senders: Vec<_> =
            clients.into_iter().filter(|it| *it != 17 || number < 9).collect();
        senders.rotate_left(number as usize % 2);
        senders.iter().for_each(|client| rig.send(*client, number));
        let mut found: Vec<_> = senders.iter().map(|_| rig.next().unwrap()).collect();
        found.sort_unstable();
        senders.sort_unstable();
        assert_eq!(found, senders.iter().map(|it| (*it, number)).collect::<Vec<_>>());
        assert_eq!(rig.round(), []);
        assert_eq!(rig.inbox.active(), 3);
    }
}

/// A worker that slept looks at all slots, not only at those of active clients: a client that rang,
/// or that came just before the bell was armed, may be any.
#[test]
fn a_worker_that_slept_finds_the_request_of_any_client_at_once() {
    const CLIENTS: u32 = 100;
    let mut rig = Rig::new(CLIENTS);
    let bell = rig.map.bell_addr(TO);
    let ring = |rig: &Rig, word| rig.endpoint.announce(bell, word).unwrap();
    rig.send(CLIENTS - 1, 1);
    assert_eq!(rig.round(), [], "the roll call comes there later");
    ring(&rig, 1);
    assert_eq!(rig.round(), [], "before a short sleep the worker looks at few slots");
    assert_eq!(rig.round(), [(CLIENTS - 1, 1)], "nobody rang, and it will sleep for longer");
    assert_eq!(rig.round(), []);
    ring(&rig, 0);
    rig.send(CLIENTS - 2, 1);
    assert_eq!(rig.round(), [(CLIENTS - 2, 1)], "somebody rang");
    rig.send(CLIENTS - 3, 1);
    assert_eq!(rig.round(), [], "the worker is awake");
}

/// A worker at rest wakes up now and then. A look at all slots costs a millisecond where there are
/// many, so it is made once for each rest: a client that sends something later rings.
#[test]
fn a_worker_that_nobody_has_woken_does_not_look_at_all_slots_again() {
    const CLIENTS: u32 = 100;
    let mut rig = Rig::new(CLIENTS);
    let bell = rig.map.bell_addr(TO);
    let ring = |rig: &Rig, word| rig.endpoint.announce(bell, word).unwrap();
    ring(&rig, 1);
    assert_eq!((rig.round(), rig.round()), (vec![], vec![]), "it sleeps, and looks at all slots");
    // This request is not rung for, as no client's is: so only a look at its slot finds it.
    rig.send(CLIENTS - 1, 1);
    let looks = (0..).take_while(|_| rig.round().is_empty()).count() as u32;
    assert!(looks > CLIENTS * u32::from(WINDOW) / 16 - 5, "only the roll call came by: {looks}");
    // What was found keeps the worker awake. Before it sleeps again it looks at all slots again.
    ring(&rig, 0);
    rig.round();
    ring(&rig, 1);
    assert_eq!((rig.round(), rig.round()), (vec![], vec![]));
    // A bell that rings during that look, or after it, has the worker look once more.
    ring(&rig, 0);
    rig.send(CLIENTS - 2, 1);
    assert_eq!(rig.round(), [(CLIENTS - 2, 1)]);
}

/// Active clients, for which workers are woken all the time, do not make them look at all slots.
#[test]
fn a_worker_that_was_woken_by_an_active_client_looks_at_few_slots() {
    const CLIENTS: u32 = 100;
    let mut rig = Rig::new(CLIENTS);
    rig.send(0, 1);
    assert_eq!(rig.round(), [(0, 1)]);
    rig.endpoint.announce(rig.map.bell_addr(TO), 1).unwrap();
    assert_eq!(rig.round(), []);
    rig.endpoint.announce(rig.map.bell_addr(TO), 0).unwrap();
    rig.send(0, 2);
    rig.send(CLIENTS - 1, 1);
    assert_eq!(rig.round(), [(0, 2)]);
}

/// A client that sends its next request as soon as one is answered does not keep others waiting.
#[test]
fn of_one_client_at_most_a_window_comes_in_a_round() {
    let mut rig = Rig::new(2);
    for client in [0, 1] {
        rig.send(client, 1);
    }
    assert_eq!(rig.round(), [(0, 1), (1, 1)]);
    rig.send(1, 2);
    for number in 2..2 + u64::from(WINDOW) {
        rig.send(0, number);
        assert_eq!(rig.next(), Some((0, number)));
    }
    rig.send(0, 2 + u64::from(WINDOW));
    assert_eq!(rig.next(), Some((1, 2)));
}

#[test]
fn a_client_that_is_silent_for_long_is_not_looked_at_any_more() {
    const ROUNDS: usize = 1 << 14;
    let mut rig = Rig::new(2);
    rig.send(0, 1);
    assert_eq!(rig.next(), Some((0, 1)));
    for _ in 1..ROUNDS {
        assert_eq!((rig.round(), rig.inbox.active()), (vec![], 1));
    }
    rig.round();
    assert_eq!(rig.inbox.active(), 0);
    // One that had a request meanwhile is.
    rig.send(0, 2);
    for _ in 0..ROUNDS / 2 {
        rig.round();
    }
    rig.send(0, 3);
    for _ in 0..ROUNDS / 2 + 2 {
        rig.round();
    }
    assert_eq!(rig.inbox.active(), 1);
    rig.send(0, 4);
    assert_eq!(rig.round(), [(0, 4)]);
}

/// It stays in its slot until the client writes another one there.
#[test]
fn a_request_for_another_incarnation_is_refused_once_each_time_that_it_is_sent() {
    let mut rig = Rig::new(2);
    rig.send(0, 1);
    assert_eq!(rig.round(), [(0, 1)]);
    for attempt in 0..3 {
        let mut ticket = rig.ticket(0, 2);
        (ticket.worker, ticket.attempt) = (ticket.worker.wrapping_add(1), attempt);
        rig.write(&ticket, 0);
        assert_eq!(rig.poll(), Some(Incoming::Answer(ticket)));
        for _ in 0..9 {
            assert_eq!(rig.poll(), None);
        }
    }
    rig.send(0, 3);
    assert_eq!(rig.round(), [(0, 3)]);
}

/// Rights to memory say who writes where. A request in a slot of another client is not that
/// client's.
#[test]
fn a_request_in_the_slot_of_another_is_not_executed() {
    let mut rig = Rig::new(2);
    for client in [1, 2, u32::MAX] {
        rig.write(&rig.ticket(client, 1), 0);
        assert_eq!(rig.round(), [], "client {client}");
    }
    // The slot of number 1 is that of number 3 too, and not that of number 2.
    let slot = rig.map.request_addr(TO, 0, 1);
    let mut message = Buf::new();
    rig.ticket(0, 2).write(&Body::one(b"key", PUT), Seal::CHECKSUM, &mut message);
    rig.endpoint.store(slot.add(128 - message.len() as u64), &[&message]).unwrap();
    assert_eq!(rig.round(), []);
    rig.send(0, 3);
    assert_eq!(rig.round(), [(0, 3)]);
}

/// Requests in the slots when a worker starts were for the one before.
#[test]
fn a_worker_does_not_look_at_what_was_there_before_it() {
    let mut rig = Rig::new(2);
    rig.send(0, 1);
    let sessions = Box::new(|_, _| Some(Holder::new(SESSION, None)));
    rig.inbox = Inbox::open(&rig.endpoint, &rig.map, TO, sessions).unwrap();
    assert_eq!(rig.poll(), None);
    let mut again = rig.ticket(0, 1);
    again.attempt = 1;
    rig.write(&again, 0);
    assert_eq!(rig.round(), [(0, 1)]);
}

#[test]
fn a_read_may_be_executed_again_and_a_mutation_must_not() {
    let mut rig = Rig::new(2);
    for (number, operation, is_once) in [(1, Operation::Get, false), (2, PUT, true)] {
        let mut ticket = Ticket::new(0, SESSION, &Body::one(b"key", operation));
        (ticket.worker, ticket.number) = (rig.inbox.incarnation(), number);
        let mut message = Buf::new();
        ticket.write(&Body::one(b"key", operation), Seal::CHECKSUM, &mut message);
        assert_eq!(rig.inbox.accept(&message), Some(Incoming::Execute(ticket)));
        let absent = OutcomeWriter::one(&Ok(Outcome::Absent));
        assert_eq!(rig.inbox.complete(&ticket, absent).1, is_once);
        let again = match is_once {
            false => Incoming::Execute(ticket),
            true => Incoming::Answer(ticket),
        };
        assert_eq!(rig.inbox.accept(&message), Some(again));
    }
    for client in [2, u32::MAX] {
        let mut message = Buf::new();
        rig.ticket(client, 1).write(&Body::one(b"key", PUT), Seal::CHECKSUM, &mut message);
        assert_eq!(rig.inbox.accept(&message), None, "there is no client {client}");
    }
}

/// The same numbers are drawn in both worlds. In the second the first of them is what the last
/// worker had.
#[test]
fn a_worker_never_takes_the_incarnation_of_the_one_before_it() {
    let open = |last: u32| {
        let map = map(1);
        let world = World::new(3, Profile::CONNECTX_3_56, Faults::default());
        world.add_node(map.area().bytes());
        world.store(map.incarnation_addr(TO), u64::from(last));
        let endpoint = world.endpoint(world.add_process(HOME));
        let inbox = Inbox::open(&endpoint, &map, TO, Box::new(|_, _| None)).unwrap();
        let known = world.load(map.incarnation_addr(TO));
        assert_eq!(u64::from(inbox.incarnation()), known, "it is made known");
        inbox.incarnation()
    };
    let drawn = open(0);
    assert_ne!(drawn, 0);
    assert_eq!(open(1), drawn);
    assert_ne!(open(drawn), drawn);
}
