//! Hosts and endpoints on the RDMA device of this machine, in one process: packets leave by the
//! card and come back by it.

use std::sync::{Arc, OnceLock};

use loch_fabric::RegionId;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::Region;
use loch_fabric::verbs::{
    Accepted, Access, Datagrams, Device, Grant, Host, Selection, Transport, VerbsEndpoint,
};

use super::{BYTES, Cluster, Post, Program, REGIONS, Talk, all, run_threads};

/// The device of this machine, if there is one.
///
/// # Panics
/// If there is none, and `LOCH_VERBS_TEST=1` says that there has to be.
pub fn device() -> Option<Arc<Device>> {
    static DEVICE: OnceLock<Option<Arc<Device>>> = OnceLock::new();
    let open = || match Device::open(&Selection::default()) {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("LOCH_VERBS_TEST").is_some_and(|is| is == "1") => {
            panic!("LOCH_VERBS_TEST=1, but {error}")
        }
        Err(error) => {
            println!("skipped, as it needs an RDMA device: {error}");
            None
        }
    };
    DEVICE.get_or_init(open).clone()
}

/// A region, and its node's side.
pub struct Node {
    pub region: Arc<Region>,
    pub host: Host,
}

impl Node {
    pub fn new(device: &Arc<Device>) -> Self {
        let region = Arc::new(Region::anonymous(BYTES).expect("a megabyte is free"));
        let host = Host::new(device.clone(), region.clone()).expect("the device has room");
        Self { region, host }
    }

    /// Connects an endpoint, which knows this node as `id`.
    pub fn accept(&self, endpoint: &VerbsEndpoint, id: RegionId, grants: &[Grant]) -> Accepted {
        self.accept_over(Transport::Reliable, endpoint, id, grants)
    }

    pub fn accept_over(
        &self,
        transport: Transport,
        endpoint: &VerbsEndpoint,
        id: RegionId,
        grants: &[Grant],
    ) -> Accepted {
        let offer = endpoint.offer_over(id, transport).expect("the device has room");
        let (accepted, answer) = self.host.accept(&offer, grants).expect("the device has room");
        endpoint.connect(id, BYTES, &answer).expect("the answer is sound");
        accepted
    }
}

/// Threads of this process, and hosts in it.
pub struct Verbs {
    device: Arc<Device>,
    nodes: Vec<Node>,
}

impl Verbs {
    /// An endpoint with those rights to each region, and the other ends of its connections.
    fn endpoint(&self, home: RegionId, rights: &[Access]) -> (VerbsEndpoint, Vec<Accepted>) {
        let region = self.nodes[home.0 as usize].region.clone();
        let endpoint =
            VerbsEndpoint::new(self.device.clone(), home, region).expect("there is room");
        let connect = |(id, access): (usize, &Access)| {
            let both = [Transport::Reliable, Transport::Unreliable];
            both.map(|transport| {
                let (node, id) = (&self.nodes[id], RegionId(id as u8));
                node.accept_over(transport, &endpoint, id, &all(*access))
            })
        };
        let accepted = rights.iter().enumerate().flat_map(connect).collect();
        (endpoint, accepted)
    }
}

impl Cluster for Verbs {
    type F = VerbsEndpoint;

    fn is_here() -> bool {
        device().is_some()
    }

    fn new() -> Self {
        let device = device().expect("`is_here` was asked");
        let nodes = (0..REGIONS).map(|_| Node::new(&device)).collect();
        Self { device, nodes }
    }

    fn run(&self, homes: &[RegionId], program: Program<VerbsEndpoint>) {
        let connect = |home| self.endpoint(home, &[Access::Full; REGIONS as usize]);
        run_threads(homes, connect, program);
    }

    fn run_reader(&self, program: Program<VerbsEndpoint>) -> bool {
        let mut rights = [Access::Full; REGIONS as usize];
        *rights.last_mut().expect("there are some") = Access::Read;
        let (endpoint, _accepted) = self.endpoint(RegionId(0), &rights);
        block_on(program(&endpoint, 0));
        true
    }
}

impl Post for Verbs {
    type M = Datagrams;

    fn is_here() -> bool {
        device().is_some()
    }

    fn run(first: Talk<Datagrams>, second: Talk<Datagrams>) {
        let device = device().expect("`is_here` was asked");
        let [a, b] = [0, 1].map(|_| Datagrams::new(&device).expect("the device has room"));
        let to_b = a.peer(&b.address()).expect("it is near");
        let to_a = b.peer(&a.address()).expect("it is near");
        std::thread::scope(|scope| {
            for (end, talk, other) in [(a, first, to_b), (b, second, to_a)] {
                scope.spawn(move || block_on(talk(&end, other)));
            }
        });
    }
}
