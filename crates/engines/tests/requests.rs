//! A worker against clients that speak for others: by datagrams, which any client can send, and
//! by session numbers, which a client writes as it likes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::error::EngineError;
use loch_engines::operation::{Expect, Operation, Outcome, PutOptions, Version};
use loch_engines::requests::message::Expected;
use loch_engines::requests::packet::OutcomeWriter;
use loch_engines::requests::*;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};

const HOME: RegionId = RegionId(0);
const TO: WorkerId = WorkerId { node: 0, worker: 0 };
/// The slot of the client that others speak for, and its number.
const SLOT: u32 = 1;
/// A session, and the secret that it shares with the worker's node.
const OWN: u64 = 77;
const SECRET: Option<Secret> = Some(Secret::new([3, 5]));

/// A node's sessions, by slot.
type Slots = Rc<RefCell<HashMap<u32, Holder>>>;

/// A node with one worker.
struct Rig {
    region: Arc<Region>,
    map: Arc<RequestMap>,
    slots: Slots,
    server: ShmEndpoint,
    inbox: Inbox,
}

impl Rig {
    /// Requests come by SEND unless they are `written`; so do replies.
    fn new(written: bool) -> Self {
        let region = Arc::new(Region::anonymous(1 << 20).unwrap());
        let slot = |bytes: u32| if written { bytes } else { 0 };
        let service = Service {
            workers: 1,
            window: 4,
            replies: 8,
            sessions_per_node: 2,
            request_bytes: slot(Service::request_bytes_for(16, 100).unwrap()),
            reply_bytes: slot(Service::reply_bytes_for(100).unwrap()),
            ..Service::default()
        };
        let area = Area::new(service, 1).unwrap();
        let map = Arc::new(RequestMap::new(area, vec![RemoteAddr::new(HOME, 1 << 16)]));
        let slots = Slots::default();
        slots.borrow_mut().insert(SLOT, Holder::new(OWN, SECRET));
        let known = slots.clone();
        let sessions = Box::new(move |_, slot| known.borrow().get(&slot).copied());
        let server = endpoint(&region);
        let inbox = Inbox::open(&server, &map, TO, sessions).unwrap();
        Self { region, map, slots, server, inbox }
    }

    fn worker(&self) -> u32 {
        self.inbox.incarnation()
    }

    /// A PUT by a session that says it is `session`, served as a worker does.
    fn put(&mut self, session: u64) -> Result<(), EngineError> {
        let reply = self.ask(session, put(b"value"), Outcome::Stored(Version::from_u64(5)));
        reply.map(|reply| assert_eq!(reply.outcome().unwrap().stored(), Ok(Version::from_u64(5))))
    }

    fn ask(
        &mut self,
        session: u64,
        operation: Operation<'_>,
        outcome: Outcome<'_>,
    ) -> Result<Reply, EngineError> {
        let client = endpoint(&self.region);
        let replies = WrittenReplies::of(&self.map, self.map.area().client(0, SLOT));
        let session = Session::new(HOME, SLOT, session);
        let timing = Timing { resend_us: 200, timeout_us: 50_000 };
        let by = ByWrite { home: HOME };
        let requester = Requester::new(self.map.clone(), &session, 0, by, replies, timing);
        let asks = requester.call(&client, TO, b"key", operation, Buf::new());
        let (server, inbox, map) = (&self.server, &mut self.inbox, &self.map);
        let serves = async {
            let mut message = Buf::new();
            loop {
                let (ticket, reply) = match inbox.poll(server, &mut message).unwrap() {
                    Some(Incoming::Execute(ticket)) => {
                        assert_eq!(ticket.request(&message).unwrap().operation, operation);
                        (ticket, inbox.complete(&ticket, OutcomeWriter::one(&Ok(outcome))).0)
                    }
                    Some(Incoming::Answer(ticket)) => (ticket, inbox.repeat(&ticket, Buf::new())),
                    Some(Incoming::Hello(_)) | None => {
                        server.yield_now().await;
                        continue;
                    }
                };
                send_reply(server, map, HOME, &ticket, reply).await.1.unwrap();
            }
        };
        let (mut asks, mut serves) = (std::pin::pin!(asks), std::pin::pin!(serves));
        block_on(std::future::poll_fn(|cx| {
            let _: std::task::Poll<()> = serves.as_mut().poll(cx);
            asks.as_mut().poll(cx)
        }))
    }
}

fn endpoint(region: &Arc<Region>) -> ShmEndpoint {
    let mut endpoint = ShmEndpoint::new(HOME);
    endpoint.attach(HOME, region.clone());
    endpoint
}

fn put(value: &[u8]) -> Operation<'_> {
    Operation::Put { value, options: PutOptions::default() }
}

/// The bytes of the first PUT of `session` to the worker of that incarnation.
fn datagram(session: u64, worker: u32, value: &[u8], secret: Option<Secret>) -> Buf {
    let operation = put(value);
    let mut ticket = Ticket::new(SLOT, session, &Body::one(b"key", operation));
    (ticket.worker, ticket.number) = (worker, 1);
    let mut message = Buf::new();
    ticket.write(&Body::one(b"key", operation), Seal::of_request(secret), &mut message);
    message
}

fn greeting(session: u64, number: u64, secret: Option<Secret>) -> Buf {
    let mut ticket = Ticket::new(SLOT, session, &Body::Hello);
    ticket.number = number;
    let mut message = Buf::new();
    ticket.write(&Body::Hello, Seal::of_request(secret), &mut message);
    message
}

/// Somebody who reaches the worker's queue pair asked with no incarnation, was told the worker's,
/// and then sent a PUT as the victim's first one. It was executed, and the victim's own was
/// answered with what had become of the other.
#[test]
fn whoever_does_not_know_the_secret_gets_nothing_done_and_no_answer() {
    let mut rig = Rig::new(false);
    let worker = rig.worker();
    for secret in [None, Some(Secret::new([3, 6]))] {
        assert_eq!(rig.inbox.accept(&datagram(OWN, 0, b"forged", secret)), None, "an incarnation");
        assert_eq!(rig.inbox.accept(&datagram(OWN, worker, b"forged", secret)), None);
        assert_eq!(rig.inbox.accept(&datagram(OWN + 1, worker, b"forged", secret)), None);
        assert_eq!(rig.inbox.accept(&greeting(OWN, 9, secret)), None, "replies are diverted");
    }
    let Some(Incoming::Execute(ticket)) = rig.inbox.accept(&datagram(OWN, worker, b"m", SECRET))
    else {
        panic!("the victim's own PUT is not executed");
    };
    // Its reply proves where it came from, too.
    let (reply, _) =
        rig.inbox.complete(&ticket, OutcomeWriter::one(&Ok(Outcome::Stored(Version::from_u64(5)))));
    let head = |secret| message::ReplyHead::read(&reply, Seal::of_reply(secret));
    assert!(head(SECRET).is_some() && head(None).is_none());
    assert!(message::ReplyHead::read(&reply, Seal::of_request(SECRET)).is_none());
}

#[test]
fn what_is_repeated_is_answered_and_diverts_no_reply() {
    let mut rig = Rig::new(false);
    let worker = rig.worker();
    let (hello, request) = (greeting(OWN, 1, SECRET), datagram(OWN, worker, b"v", SECRET));
    assert!(matches!(rig.inbox.accept(&hello), Some(Incoming::Hello(_))));
    assert!(matches!(rig.inbox.accept(&request), Some(Incoming::Execute(_))));
    // A copy of the greeting from elsewhere would have replies sent there.
    assert_eq!(rig.inbox.accept(&hello), None);
    assert!(!matches!(rig.inbox.accept(&request), Some(Incoming::Execute(_))), "it is done");
    assert!(matches!(rig.inbox.accept(&greeting(OWN, 2, SECRET)), Some(Incoming::Hello(_))));
}

#[test]
fn a_worker_whose_requests_are_written_takes_greetings_alone_as_datagrams() {
    let mut rig = Rig::new(true);
    let worker = rig.worker();
    assert_eq!(rig.inbox.accept_greeting(&datagram(OWN, worker, b"v", SECRET)), None);
    assert_eq!(rig.inbox.accept_greeting(&datagram(OWN, 0, b"v", SECRET)), None);
    let hello = rig.inbox.accept_greeting(&greeting(OWN, 1, SECRET));
    assert!(matches!(hello, Some(Incoming::Hello(_))));
}

/// A request slot has 192 bytes here, and so has a reply slot.
#[test]
fn a_message_may_fill_its_slot() {
    let mut rig = Rig::new(true);
    let (value, found) = ([7; 117], [8; 136]);
    let got =
        Outcome::Found { version: Version::from_u64(5), expires_at_ms: Some(4), value: &found };
    let (expect, options) =
        (Expect::Version(Version::from_u64(3)), PutOptions { expires_at_ms: Some(4) });
    let longest = Operation::PutIf { value: &value, expect, options };
    let reply = rig.ask(OWN, longest, Outcome::Stored(Version::from_u64(6))).unwrap();
    assert_eq!(reply.outcome().unwrap().stored(), Ok(Version::from_u64(6)));
    let reply = rig.ask(OWN + 1, Operation::Get, got);
    assert!(reply.is_err(), "the slot is another session's");
    rig.slots.borrow_mut().insert(SLOT, Holder::new(OWN + 1, SECRET));
    let reply = rig.ask(OWN + 1, Operation::Get, got).unwrap();
    assert_eq!(&reply.into_done().unwrap().into_found().unwrap().unwrap()[..], found);
}

/// A request names the slot that waits for its reply. One that names a slot behind its client's own
/// would have the worker write into the next client's.
#[test]
fn a_reply_is_written_into_a_slot_of_its_client_or_nowhere() {
    let rig = Rig::new(true);
    let replies = rig.map.area().service().replies;
    let send = |reply_slot: u16, value: &[u8]| {
        let mut ticket = Ticket::new(0, OWN, &Body::one(b"key", Operation::Get));
        (ticket.number, ticket.reply) = (1, reply_slot);
        let mut reply = rig.inbox.repeat(&ticket, Buf::new());
        reply.extend_from_slice(value);
        block_on(send_reply(&rig.server, &rig.map, HOME, &ticket, reply)).1.unwrap();
    };
    let slot_is_empty = |client: u32, slot: u16| {
        let mut bytes = Buf::new();
        rig.server.load_bytes(rig.map.reply_addr(client, slot), 192, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == 0)
    };
    for slot in [replies, replies + 1, u16::MAX] {
        send(slot, &[]);
    }
    send(replies - 1, &[7; 161]);
    assert!((0..replies).all(|slot| slot_is_empty(0, slot) && slot_is_empty(1, slot)));
    send(replies - 1, &[]);
    assert!(!slot_is_empty(0, replies - 1) && slot_is_empty(1, 0));
}

#[test]
fn each_reply_is_looked_for_in_the_slot_that_its_request_named() {
    let rig = Rig::new(true);
    let client = rig.map.area().client(0, SLOT);
    let lanes = 0..rig.map.area().service().replies;
    for lane in lanes.clone() {
        let mut ticket = Ticket::new(client, OWN, &Body::one(b"key", Operation::Get));
        (ticket.number, ticket.reply) = (u64::from(lane) + 1, lane);
        let reply = rig.inbox.repeat(&ticket, Buf::new());
        block_on(send_reply(&rig.server, &rig.map, HOME, &ticket, reply)).1.unwrap();
    }
    let replies = WrittenReplies::of(&rig.map, client);
    for lane in lanes {
        let number = u64::from(lane) + 1;
        let expected = Expected { number, reply: lane, source: 0, session: OWN as u16 };
        let found = replies.poll(&rig.server, &expected, &mut Buf::new()).unwrap();
        assert_eq!(found.map(|head| head.number), Some(u64::from(lane) + 1));
    }
}

/// A client writes a request into its own slot whose length says that it is longer than the slot.
#[test]
fn a_request_that_says_it_is_longer_than_its_slot_is_nonsense() {
    let mut rig = Rig::new(true);
    let (client, bytes) = (rig.map.area().client(0, SLOT), rig.map.area().service().request_bytes);
    let request = datagram(OWN, rig.worker(), &[7; 100], None);
    let at = rig.map.request_addr(TO, client, 1).add(u64::from(bytes) - request.len() as u64);
    for value_len in [150, 160, 1 << 20, u32::MAX] {
        let mut request = request.to_vec();
        let field = request.len() - 20..request.len() - 16;
        request[field].copy_from_slice(&u32::to_le_bytes(value_len));
        rig.server.store(at, &[&request]).unwrap();
        assert_eq!(rig.inbox.poll(&rig.server, &mut Buf::new()), Ok(None), "{value_len}");
    }
    rig.server.store(at, &[&request]).unwrap();
    let found = rig.inbox.poll(&rig.server, &mut Buf::new());
    assert!(matches!(found, Ok(Some(Incoming::Execute(_)))));
}

/// A client wrote 2^48-1 as its session into its own request slot. The worker believed the number
/// for its size, and every later session of the slot was taken for an older one, until the worker
/// ended.
#[test]
fn a_client_that_names_a_session_that_will_never_be_locks_nobody_out() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.put(OWN), Ok(()), "an ordinary session");
    let last = (1 << message::SESSION_BITS) - 1;
    assert!(rig.put(last).is_err(), "the slot is another session's");
    assert_eq!(rig.put(OWN), Ok(()), "it was disturbed by nobody");
    // The node gives the slot to the next client; its number need not even be greater.
    for next in [OWN + 1, 5] {
        rig.slots.borrow_mut().insert(SLOT, Holder::new(next, None));
        assert_eq!(rig.put(next), Ok(()), "session {next} is locked out");
    }
    // The word that incarnations are counted by is in memory that clients can write.
    let wild = u64::MAX << 20 | 7;
    rig.slots.borrow_mut().insert(SLOT, Holder::new(wild, None));
    assert_eq!(rig.put(wild), Ok(()));
}
