//! Nodes on a network without a device: clients at their sockets, and the requests made for them.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loch_fabric::shm::ShmEndpoint;
use serde_json::{Value, json};

use super::NodeFabric;
use crate::layout::memory::{ClusterMemory, TableView};
use crate::node::Node;
use crate::node::control::ControlPlane;
use crate::node::control::registry::Acceptor;
use crate::node::control::tests::ports::free_address;
use crate::node::control::tests::rig::{Book, eventually};
use crate::node::plan::NodePlan;
use crate::node::scrubber::ClusterAccess;
use crate::node::workers::transport::MappedTransport;
use crate::session::connection::Connection;
use crate::session::opened::Chosen;
use crate::session::slot::SessionId;
use crate::session::wire::Connect;
use crate::{ByteSize, Cluster, ConnectOptions, Error, FabricKind, NodeConfig};

const WAIT: Duration = Duration::from_secs(20);

/// A fabric without a device, and so without a way to the memory of other nodes.
struct Deviceless(Book);

struct Nowhere;

impl NodeFabric for Deviceless {
    type ClusterAccess = Nowhere;
    type Transport = MappedTransport;

    fn acceptor(&self) -> Arc<dyn Acceptor> {
        Arc::new(self.0.clone())
    }

    fn cluster(&self, _hub: Arc<ControlPlane>) -> Nowhere {
        Nowhere
    }

    fn transport(&self, _hub: Arc<ControlPlane>) -> MappedTransport {
        unreachable!("no table of these nodes has workers")
    }
}

impl ClusterAccess for Nowhere {
    type Endpoint = ShmEndpoint;

    fn memory(&mut self) -> Result<Arc<ClusterMemory>, Error> {
        Err(Error::Device { problem: "there is none".into() })
    }

    fn endpoint(
        &mut self,
        _: &ClusterMemory,
        _: &TableView,
        _: SessionId,
    ) -> Result<ShmEndpoint, Error> {
        unreachable!("there is no memory to ask for it")
    }
}

/// Two machines in one folder.
struct Hosts {
    dir: tempfile::TempDir,
    addresses: Vec<String>,
    books: [Book; 2],
}

impl Hosts {
    fn new() -> Self {
        let addresses = vec![free_address(), free_address()];
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "the secret of both hosts").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        Self { dir, addresses, books: Default::default() }
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("{node}.sock"))
    }

    fn start(&self, node: usize) -> Node {
        let config = NodeConfig {
            name: format!("host{node}"),
            socket: self.socket(node),
            region: Some(self.dir.path().join(format!("{node}.region"))),
            memory: ByteSize::new(4 << 20),
            fabric: FabricKind::Verbs,
            listen: Some(self.addresses[node].clone()),
            cluster: self.addresses.iter().map(PathBuf::from).collect(),
            secret: Some(self.dir.path().join("secret")),
            sessions: 4,
            ..NodeConfig::default()
        };
        let mut plan = NodePlan::new(&config).unwrap();
        let network = plan.network.take().unwrap();
        let fabric = |_: &_| Ok(Deviceless(self.books[node].clone()));
        let medium = network.medium.clone().unwrap();
        let chosen = Chosen { medium, reason: String::new() };
        Node::start_networked(&config, &plan, (network, chosen), fabric).unwrap()
    }

    fn connect(&self, node: usize, read_only: bool) -> Connection {
        let admitted = Connection::open(&self.socket(node), read_only, Instant::now(), WAIT);
        admitted.unwrap().map(read_only).unwrap().0
    }

    fn cluster(&self, node: usize) -> Cluster {
        let options = ConnectOptions { connect_timeout: WAIT, ..ConnectOptions::default() };
        Cluster::connect_with(self.socket(node), options).unwrap()
    }

    /// Asks for a connection to a node.
    fn ask(
        &self,
        connection: &Connection,
        session: Option<(u32, u64)>,
        node: u16,
        offer: &str,
    ) -> Result<Value, Error> {
        let facts = connection.member(node, WAIT)?;
        let ask = Connect {
            session,
            secret: None,
            endpoint: 5,
            node,
            identity: facts.identity,
            table: 0,
            unreliable: false,
            offer: offer.into(),
        };
        connection.connect(ask, WAIT)
    }

    fn ask_soon(
        &self,
        connection: &Connection,
        session: Option<(u32, u64)>,
        node: u16,
        offer: &str,
    ) {
        eventually("it is connected", || self.ask(connection, session, node, offer).is_ok());
    }
}

#[test]
fn a_node_is_its_clients_broker_and_fences_them_when_they_go() {
    let hosts = Hosts::new();
    let _nodes = [hosts.start(0), hosts.start(1)];
    let client = hosts.connect(0, false);
    let SessionId { slot, incarnation } = client.open_session(4, WAIT).unwrap();
    let session = (slot, incarnation);
    hosts.ask_soon(&client, Some(session), 1, "far");
    assert_eq!(hosts.ask(&client, Some(session), 0, "near").unwrap(), json!({"answers": "near"}));
    let cluster = hosts.cluster(0);
    assert_eq!(cluster.info().nodes[0].sessions_taken, 1);
    drop(client);
    eventually("its slot is free", || cluster.info().nodes[0].sessions_taken == 0);
    assert!(hosts.books.iter().all(|book| book.admitted().is_empty()));
}

#[test]
fn a_session_that_is_closed_is_fenced_and_nobody_speaks_for_it_any_more() {
    let hosts = Hosts::new();
    let _nodes = [hosts.start(0), hosts.start(1)];
    let client = hosts.connect(0, false);
    let SessionId { slot, incarnation } = client.open_session(4, WAIT).unwrap();
    let session = (slot, incarnation);
    hosts.ask_soon(&client, Some(session), 1, "far");
    client.close_session(session.0, session.1, WAIT).unwrap();
    eventually("it is fenced", || hosts.books[1].admitted().is_empty());
    let error = hosts.ask(&client, Some(session), 1, "late").unwrap_err();
    assert!(error.to_string().contains("no session"), "{error}");
    let error = hosts.ask(&client, Some((3, 77)), 1, "invented").unwrap_err();
    assert!(error.to_string().contains("no session"), "{error}");
}

#[test]
fn readers_are_ended_with_their_connection() {
    let hosts = Hosts::new();
    let _nodes = [hosts.start(0), hosts.start(1)];
    let reader = hosts.connect(0, true);
    hosts.ask_soon(&reader, None, 1, "reads");
    let error = hosts.ask(&reader, Some((1, 1)), 1, "writes").unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    drop(reader);
    eventually("it is ended", || hosts.books[1].admitted().is_empty());
}

#[test]
fn a_home_that_restarts_goes_on_with_the_sessions_that_live() {
    let hosts = Hosts::new();
    let (home, _other) = (hosts.start(0), hosts.start(1));
    let client = hosts.connect(0, false);
    let SessionId { slot, incarnation } = client.open_session(4, WAIT).unwrap();
    let session = (slot, incarnation);
    hosts.ask_soon(&client, Some(session), 1, "before");
    home.stop();
    assert_eq!(hosts.books[1].admitted(), [json!("before")]);
    let _home = hosts.start(0);
    let client = hosts.connect(0, false);
    hosts.ask_soon(&client, Some(session), 1, "after");
    assert_eq!(hosts.books[1].admitted(), [json!("after")]);
    client.close_session(session.0, session.1, WAIT).unwrap();
    eventually("it is fenced", || hosts.books[1].admitted().is_empty());
}

/// Whether a device lacks, or the build lacks devices.
fn is_of_device(error: &Error) -> bool {
    match error {
        Error::Device { .. } => true,
        error => cfg!(not(feature = "verbs")) && error.to_string().contains("no verbs backend"),
    }
}

#[test]
fn a_cluster_is_known_without_a_device_but_no_table_is_opened() {
    let hosts = Hosts::new();
    let (_home, other) = (hosts.start(0), hosts.start(1));
    let cluster = hosts.cluster(0);
    let info = cluster.info();
    assert_eq!((info.home, info.nodes.len()), (0, 2));
    assert_eq!(info.nodes[1].name, "host1");
    assert_eq!(info.nodes[1].socket, PathBuf::from(&hosts.addresses[1]));
    assert!(info.nodes.iter().all(|node| node.up));
    // This machine has no RDMA device of that name. The reason is reported, and no session is held.
    if let Some(error) = cluster.table("default").err() {
        assert!(is_of_device(&error), "{error}");
    }
    eventually("no session is left", || cluster.info().nodes[0].sessions_taken == 0);
    other.stop();
    eventually("it is seen to be down", || !cluster.info().nodes[1].up);
}

#[test]
fn a_node_that_is_missing_is_named() {
    let hosts = Hosts::new();
    let _home = hosts.start(0);
    let options =
        ConnectOptions { connect_timeout: Duration::from_millis(300), ..ConnectOptions::default() };
    let error = Cluster::connect_with(hosts.socket(0), options).err().unwrap();
    let Error::NodeUnreachable { socket, remedy } = &error else { panic!("{error}") };
    assert_eq!(*socket, PathBuf::from(&hosts.addresses[1]));
    assert!(remedy.contains("node 1: ") && remedy.contains("loch serve"), "{remedy}");
    let text = error.to_string();
    assert_eq!(text.matches(&hosts.addresses[1]).count(), 1, "{text}");
}

#[test]
fn a_host_without_a_device_is_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let config = NodeConfig {
        socket: dir.path().join("s"),
        region: Some(dir.path().join("r")),
        memory: ByteSize::new(4 << 20),
        fabric: FabricKind::Verbs,
        device: Some("no such device".into()),
        ..NodeConfig::default()
    };
    let error = Node::start(config).err().unwrap();
    assert!(is_of_device(&error), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
