//! Agents and endpoints on the loopback of this machine, in one process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use loch_fabric::lanes::block_on;
use loch_fabric::shm::Region;
use loch_fabric::tcp::{Accepted, Agent, AgentOptions, Answer, Client, TcpEndpoint};
use loch_fabric::{Access, Grant, RegionId};

use super::{BYTES, Cluster, Program, REGIONS, all, run_threads};

/// How long an agent may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A region, and its node's side.
pub struct Node {
    pub region: Arc<Region>,
    pub agent: Agent,
}

impl Node {
    pub fn new(threads: usize, encrypt: bool) -> Self {
        let region = Arc::new(Region::anonymous(BYTES).expect("a megabyte is free"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a loopback");
        let options = AgentOptions { threads, encrypt, ..AgentOptions::default() };
        let agent = Agent::start(region.clone(), listener, options).expect("there are threads");
        Self { region, agent }
    }

    /// Lets a client in.
    pub fn admit(&self, grants: &[Grant]) -> (Accepted, SocketAddr, Answer) {
        let client = Client { grants, replies: None, bells: Vec::new(), seat: None };
        let (accepted, answer) = self.agent.accept(client).expect("the grants are sound");
        (accepted, self.agent.address(), answer)
    }

    /// Connects an endpoint, which knows this node as `id`.
    pub fn accept(&self, endpoint: &TcpEndpoint, id: RegionId, grants: &[Grant]) -> Accepted {
        let (accepted, address, answer) = self.admit(grants);
        endpoint.connect(id, BYTES, address, &answer, PATIENCE).expect("the agent is up");
        accepted
    }
}

/// Threads of this process, and nodes in it. Whether their connections are encrypted.
pub struct Tcp<const ENCRYPT: bool> {
    nodes: Vec<Node>,
}

impl<const ENCRYPT: bool> Tcp<ENCRYPT> {
    /// An endpoint with those rights to each region, and the nodes' sides of its connections.
    fn endpoint(&self, home: RegionId, rights: &[Access]) -> (TcpEndpoint, Vec<Accepted>) {
        let endpoint = TcpEndpoint::new(home, self.nodes[home.0 as usize].region.clone());
        let others = rights.iter().enumerate().filter(|(id, _)| *id != usize::from(home.0));
        let connect = |(id, access): (usize, &Access)| {
            self.nodes[id].accept(&endpoint, RegionId(id as u8), &all(*access))
        };
        let accepted = others.map(connect).collect();
        (endpoint, accepted)
    }
}

impl<const ENCRYPT: bool> Cluster for Tcp<ENCRYPT> {
    type F = TcpEndpoint;

    fn new() -> Self {
        Self {
            nodes: (1..=usize::from(REGIONS)).map(|threads| Node::new(threads, ENCRYPT)).collect(),
        }
    }

    fn run(&self, homes: &[RegionId], program: Program<TcpEndpoint>) {
        let connect = |home| self.endpoint(home, &[Access::Full; REGIONS as usize]);
        run_threads(homes, connect, program);
    }

    fn run_reader(&self, program: Program<TcpEndpoint>) -> bool {
        let mut rights = [Access::Full; REGIONS as usize];
        *rights.last_mut().expect("there are some") = Access::Read;
        let (endpoint, _accepted) = self.endpoint(RegionId(0), &rights);
        block_on(program(&endpoint, 0));
        true
    }
}
