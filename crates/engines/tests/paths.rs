//! Whom a message reaches, and which lane a reply.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use loch_engines::operation::{Outcome, Version};
use loch_engines::requests::message::{Expected, ReplyHead};
use loch_engines::requests::packet::{OutcomeWriter, Outcomes};
use loch_engines::requests::*;
use loch_fabric::lanes::block_on;
use loch_fabric::sim::{Faults, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Caps, Messages, RegionId, RemoteAddr};

const NODES: u16 = 2;
const WORKERS: u16 = 3;

/// Two nodes with three workers each, and a client.
struct Rig {
    world: World,
    map: RequestMap,
    workers: Vec<(WorkerId, SimEndpoint)>,
    client: SimEndpoint,
}

fn rig() -> Rig {
    let service = Service {
        workers: WORKERS,
        window: 1,
        replies: 2,
        sessions_per_node: 1,
        ..Service::default()
    };
    let area = Area::new(service, NODES).unwrap();
    let world = World::new(1, Profile::CONNECTX_3_56, Faults::default());
    let bases = (0..NODES).map(|_| RemoteAddr::new(world.add_node(area.bytes()), 0)).collect();
    let ids = (0..NODES).flat_map(|node| (0..WORKERS).map(move |worker| WorkerId { node, worker }));
    let start = |id: WorkerId| world.endpoint(world.add_process(RegionId(id.node as u8)));
    let workers = ids.map(|id| (id, start(id))).collect();
    let client = world.endpoint(world.add_process(RegionId(0)));
    Rig { world: world.clone(), map: RequestMap::new(area, bases), workers, client }
}

impl Rig {
    /// The messages that a process has received.
    fn received(&self, at: &SimEndpoint) -> Vec<Vec<u8>> {
        while self.world.step() {}
        std::iter::from_fn(|| at.try_receive(Buf::new()).ok()).map(|(_, b)| b.to_vec()).collect()
    }

    /// Sends each worker its place in the list; who got what.
    fn send_to_all(&self, path: &BySend<<SimEndpoint as Messages>::Peer>) -> Vec<Vec<Vec<u8>>> {
        for (place, (id, _)) in self.workers.iter().enumerate() {
            let slot = (RemoteAddr::new(RegionId(0), 0), 0);
            let mut message = Buf::new();
            message.extend_from_slice(&[place as u8]);
            block_on(path.send(&self.client, *id, slot, message)).1.unwrap();
        }
        self.workers.iter().map(|(_, worker)| self.received(worker)).collect()
    }
}

#[test]
fn a_request_reaches_the_worker_that_it_is_for() {
    let rig = rig();
    let own: Vec<_> = (0..rig.workers.len()).map(|place| vec![vec![place as u8]]).collect();
    let peers: Vec<_> = rig.workers.iter().map(|(_, worker)| worker.process()).collect();
    let named = BySend::new(&peers, WORKERS);
    assert_eq!(rig.send_to_all(&named), own);
    // Workers that are known by name are not looked for, and move nowhere.
    assert!(!ReplyPath::<SimEndpoint>::seeks(&SentReplies::new(named.clone(), &rig.map, None)));
    RequestPath::meet(&named, &rig.client, rig.workers[0].0, &rig.workers[1].1.address());
    assert_eq!(rig.send_to_all(&named), own);
    // One that has to be found out gets nothing until it is known.
    let sought = BySend::seeking(&rig.map);
    assert!(ReplyPath::<SimEndpoint>::seeks(&SentReplies::new(sought.clone(), &rig.map, None)));
    assert_eq!(rig.send_to_all(&sought), vec![Vec::<Vec<u8>>::new(); own.len()]);
    for (id, worker) in &rig.workers {
        RequestPath::meet(&sought, &rig.client, *id, &worker.address());
    }
    assert_eq!(rig.send_to_all(&sought), own);
}

/// Two lanes wait, and the replies come in the other order. The first that looks takes its own, and
/// keeps the other's.
#[test]
fn a_reply_is_kept_for_the_lane_that_waits_for_it() {
    let rig = rig();
    let replies = SentReplies::new(BySend::seeking(&rig.map), &rig.map, None);
    let reply = |slot: u16, number: u64, version: u64| {
        let mut ticket = Ticket::new(0, 1, &Body::Hello);
        (ticket.reply, ticket.number) = (slot, number);
        let mut message = OutcomeWriter::one(&Ok(Outcome::Stored(Version::from_u64(version))));
        ReplyHead::new(&ticket, 0, 1, message.len()).finish(Seal::CHECKSUM, &mut message);
        rig.workers[0].1.send(rig.client.process(), &message).unwrap();
        while rig.world.step() {}
    };
    let look = |slot: u16, number: u64| {
        let expected = Expected { number, reply: slot, source: 0, session: 1 };
        let mut message = Buf::new();
        let head = replies.poll(&rig.client, &expected, &mut message).unwrap();
        assert!(head.is_none() || ReplyHead::read(&message, Seal::CHECKSUM) == head);
        head.map(|head| Outcomes::new(1).next(&message[..head.packet_len()]).unwrap().unwrap())
            .map(|outcome| outcome.unwrap().stored().unwrap().as_u64())
    };
    reply(1, 7, 70);
    // Whatever others send is passed over.
    rig.workers[0].1.send(rig.client.process(), b"nonsense").unwrap();
    reply(9, 7, 99);
    reply(0, 6, 60);
    assert_eq!((look(0, 6), look(0, 6)), (Some(60), None));
    assert_eq!((look(1, 7), look(1, 7)), (Some(70), None));
    // Of what came for a lane the newest counts, and only if it is what the lane waits for.
    for (slot, number, version) in [(1, 8, 80), (1, 9, 90), (0, 6, 61)] {
        reply(slot, number, version);
    }
    assert_eq!(look(0, 8), None);
    assert_eq!((look(1, 9), look(1, 8)), (Some(90), None));
}

/// Of the two fabrics one copies as many bytes.
#[test]
fn a_request_that_the_fabric_copies_is_not_waited_for() {
    for (inline_bytes, expected) in [(64, Sent::Awaited), (1000, Sent::Written)] {
        let caps = Caps { inline_bytes, ..Profile::CONNECTX_3_56.caps };
        let profile = Profile { caps, ..Profile::CONNECTX_3_56 };
        let world = World::new(1, profile, Faults::default());
        let [here, there] = [(); 2].map(|()| world.add_node(4096));
        let client = world.endpoint(world.add_process(here));
        let slot = (RemoteAddr::new(there, 0), 1000);
        let path = ByWrite { home: here };
        let to = WorkerId { node: 1, worker: 0 };
        let mut sending = pin!(path.send(&client, to, slot, Buf::from(vec![7; 1000])));
        let mut cx = Context::from_waker(Waker::noop());
        let mut sent = sending.as_mut().poll(&mut cx);
        assert_eq!(sent.is_ready(), expected == Sent::Written);
        while sent.is_pending() {
            assert!(world.step(), "the WRITE ends");
            sent = sending.as_mut().poll(&mut cx);
        }
        while world.step() {}
        let Poll::Ready((message, sent)) = sent else { unreachable!() };
        assert_eq!((message.len(), sent), (1000, Ok(expected)));
        let landed = |word: u64| world.load(RemoteAddr::new(there, 8 * word));
        assert!((0..125).all(|word| landed(word) == 0x0707_0707_0707_0707));
    }
}
