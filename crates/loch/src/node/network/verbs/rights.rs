//! The rights of a client of a served table on a real card, whatever the client claims; and the
//! means of a stranger that was not let in.
//!
//! The tests run where `LOCH_VERBS_TEST` is set, and do nothing elsewhere.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loch_engines::operation::{Operation, PutOptions};
use loch_engines::requests::{Body, Seal, Secret, Ticket, WorkerId};
use loch_fabric::lanes::block_on;
use loch_fabric::shm::Region;
use loch_fabric::verbs::{Access, Answer, Datagrams, Granted, VerbsEndpoint};
use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, Messages, RegionId, RemoteAddr};
use serde::Deserialize;

use super::super::NodeFabric;
use super::VerbsFabric;
use crate::layout::memory::Member;
use crate::node::control::registry::{Acceptor, Admission, Visit, grants};
use crate::node::control::tests::rig::member_with;
use crate::node::control_client::Caller;
use crate::session::slot::{SessionId, incarnation_in};
use crate::session::verbs::Card;
use crate::session::wire::DeviceChoice;
use crate::{Cluster, Node, NodeConfig, TableConfig};

const SLOT: u32 = 2;
const BYTES: [u8; 100] = [0xEE; 100];

/// A client of a node's table that claims rights which it was not given.
struct Liar {
    endpoint: VerbsEndpoint,
    _admission: Admission,
}

impl Liar {
    /// Makes the client; `lie` changes the grants that the client believes it has.
    fn connect(
        own: &Member,
        acceptor: &Arc<dyn Acceptor>,
        lie: impl Fn(Vec<Granted>) -> Vec<Granted>,
    ) -> Self {
        let Card(device) = Card::open(&DeviceChoice::default()).unwrap();
        // The client's home is another node, so the processor executes nothing locally.
        let elsewhere = member_with(1, 2, own_tables("pilaf")).region().clone();
        let endpoint = VerbsEndpoint::new(device, RegionId(1), elsewhere).unwrap();
        let offer = serde_json::to_value(endpoint.offer(RegionId(0)).unwrap()).unwrap();
        let caller = Caller::Session(SessionId { slot: SLOT, incarnation: 7 });
        let grants = &grants(own, 0, 1, caller).unwrap();
        let (admission, answer) =
            acceptor.accept(&Visit { home: 1, table: 0, offer: &offer, grants }).unwrap();
        let answer = Answer::deserialize(&answer).unwrap();
        let answer = Answer { grants: lie(answer.grants.clone()), ..answer };
        endpoint.connect(RegionId(0), own.header.region_bytes, &answer).unwrap();
        Self { endpoint, _admission: admission }
    }

    fn write(&self, offset: u64) -> Result<(), FabricError> {
        let buf = Buf::from(BYTES.to_vec());
        block_on(self.endpoint.write(RemoteAddr::new(RegionId(0), offset), buf)).1
    }
}

fn own_tables(engine: &str) -> Vec<TableConfig> {
    vec![TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() }]
}

fn bytes_at(own: &Member, offset: u64) -> [u8; 100] {
    let mut bytes = [0; 100];
    own.region().copy_out(offset, &mut bytes);
    bytes
}

#[test]
fn a_client_cannot_write_the_table_with_the_keys_it_has() {
    if std::env::var_os("LOCH_VERBS_TEST").is_none() {
        println!("skipped: LOCH_VERBS_TEST is not set");
        return;
    }
    for engine in ["pilaf", "nessie-hybrid"] {
        let own = member_with(0, 2, own_tables(engine));
        let acceptor = VerbsFabric::new(Card::open(&DeviceChoice::default()).unwrap(), &own)
            .unwrap()
            .acceptor();
        let parts = own.parts(0).unwrap();
        let requests = parts.requests().unwrap();
        let client = requests.area().client(1, SLOT);
        let slots = requests.base(0).offset() + requests.area().request_slots_of(0, client).start;
        let entry = &own.tables[0];
        // In pilaf the arena is at the end of the table, in nessie the index is at its beginning.
        let table = if engine == "pilaf" { entry.end() - 4096 } else { entry.offset };
        let before = bytes_at(&own, table);

        let writes_all = |granted: Vec<Granted>| {
            granted.into_iter().map(|it| Granted { access: Access::Full, ..it }).collect()
        };
        let liar = Liar::connect(&own, &acceptor, writes_all);
        liar.write(slots).unwrap();
        assert_eq!(bytes_at(&own, slots), BYTES, "{engine}: its own request slots");
        let refused = liar.write(table).unwrap_err();
        println!("{engine}: {refused}");
        assert_eq!(bytes_at(&own, table), before, "{engine}: the table is as it was");
        // The connection has failed, so nothing else that the client tries on it can succeed.
        assert_eq!(liar.endpoint.broken(), [RegionId(0)], "{engine}");
        let others = requests.base(0).offset() + requests.area().request_slots_of(0, 0).start;
        // The client uses the key of its own slots for another client's slots.
        let elsewhere = |granted: Vec<Granted>| {
            let own = granted.into_iter().filter(|it| it.access == Access::Full);
            let moved = |it: Granted| Granted {
                offset: others,
                address: it.address - it.offset + others,
                ..it
            };
            own.map(moved).collect()
        };
        let other = Liar::connect(&own, &acceptor, elsewhere);
        let before = bytes_at(&own, others);
        other.write(others).unwrap_err();
        assert_eq!(bytes_at(&own, others), before, "{engine}: another client's request slots");
        assert_eq!(other.endpoint.broken(), [RegionId(0)], "{engine}");
    }
}

/// A stranger that sends datagrams to a worker. It knows everything of the worker: its address, the
/// key of its queue pair, its incarnation, and its client. It lacks the secret of the client's
/// session.
struct Stranger {
    datagrams: Datagrams,
    own: Member,
    table: usize,
}

impl Stranger {
    fn new(config: &NodeConfig, table: usize) -> Self {
        let region = Region::open(config.region.as_ref().unwrap(), false).unwrap();
        let own = Member::read("n".into(), config.socket.clone(), Arc::new(region)).unwrap();
        let datagrams = Datagrams::new(&Card::open(&DeviceChoice::default()).unwrap().0).unwrap();
        Self { datagrams, own, table }
    }

    fn words<const N: usize>(&self, at: RemoteAddr) -> [u64; N] {
        let word = |n: usize| self.own.region().word(at.offset() + n as u64 * 8);
        std::array::from_fn(|n| word(n).load(Ordering::SeqCst))
    }

    /// Sends requests and replies in the name of the client in a slot.
    fn speaks_for(&self, slot: u32, key: &[u8]) {
        let parts = self.own.parts(self.table).unwrap();
        let requests = parts.requests().unwrap();
        let id = WorkerId { node: 0, worker: 0 };
        let address = self.words(requests.worker_address_addr(id));
        let to = Messages::peer(&self.datagrams, &MessageAddress::from_words(address)).unwrap();
        let [incarnation] = self.words(requests.incarnation_addr(id));
        // For a free slot any incarnation is as good.
        let session = incarnation_in(&self.own, slot).unwrap_or(1);
        let client = requests.area().client(0, slot);
        let put = Operation::Put { value: b"forged", options: PutOptions::default() };
        let secrets = [None, Some(Secret::new([1, 2]))].map(Seal::of_request);
        for (seal, session) in secrets.iter().flat_map(|seal| [(*seal, session), (*seal, 9)]) {
            for (body, worker) in [
                (Body::Hello, 0),
                (Body::one(key, put), 0),
                (Body::one(key, put), incarnation as u32),
                (Body::one(key, Operation::Get), incarnation as u32),
                (Body::one(key, Operation::Delete { of: None }), incarnation as u32),
            ] {
                // Numbers beyond those that the client has used, so that none repeats a request of
                // its own.
                for number in 1000..1004 {
                    let mut ticket = Ticket::new(client, session, &body);
                    (ticket.worker, ticket.number) = (worker, number);
                    let mut message = Buf::new();
                    ticket.write(&body, seal, &mut message);
                    self.datagrams.send(to, &message).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_stranger_gets_nothing_done_and_no_answer() {
    if std::env::var_os("LOCH_VERBS_TEST").is_none() {
        println!("skipped: LOCH_VERBS_TEST is not set");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config =
        NodeConfig::from_toml(include_str!("../../../../tests/guest/strangers.toml")).unwrap();
    let config = NodeConfig { socket: dir.path().join("socket"), ..config };
    let _node = Node::start(config.clone()).unwrap();
    let cluster = Cluster::connect(&config.socket).unwrap();
    for (number, name) in ["sent", "written", "pilaf"].into_iter().enumerate() {
        let stranger = Stranger::new(&config, number);
        let table = cluster.table(name).unwrap();
        table.put(b"key", b"own").unwrap();
        (1..=4).for_each(|slot| stranger.speaks_for(slot, b"key"));
        // Datagrams over one wire arrive in order: the stranger's datagrams come before these.
        for round in 0..50u32 {
            table.put(b"other", &round.to_le_bytes()).unwrap();
            assert_eq!(table.get(b"key").unwrap().as_deref(), Some(&b"own"[..]), "{name}");
            assert_eq!(table.get(b"other").unwrap().as_deref(), Some(&round.to_le_bytes()[..]));
        }
        table.put(b"key", b"own again").unwrap();
        assert_eq!(table.get(b"key").unwrap().as_deref(), Some(&b"own again"[..]), "{name}");
        let answered = stranger.datagrams.try_receive(Buf::new());
        assert!(answered.is_err(), "{name}: a stranger is answered");
    }
}
