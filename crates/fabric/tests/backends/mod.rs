//! The backends that the suite is run against: each is a small cluster.

pub mod tcp;
#[cfg(feature = "verbs")]
pub mod verbs;

use std::cell::Cell;
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use loch_fabric::lanes::block_on;
use loch_fabric::shm::{MailboxShape, Region, ShmEndpoint, ShmMessages};
use loch_fabric::sim::{Faults, Profile, SimEndpoint, World};
use loch_fabric::{Access, Fabric, Grant, Messages, RegionId, RemoteAddr};

/// Regions of a cluster.
pub const REGIONS: u8 = 2;
/// Bytes of a region.
pub const BYTES: u64 = 1 << 20;

/// The whole use of an endpoint, from its beginning to its end.
pub type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
/// Makes a task for the endpoint of that number.
pub type Program<F> = for<'a> fn(&'a F, usize) -> Task<'a>;

/// Some regions, all zero at first, and endpoints to them.
pub trait Cluster {
    /// An endpoint.
    type F: Fabric + 'static;

    /// Whether this machine has what the backend needs; says so if it has not.
    fn is_here() -> bool {
        true
    }

    /// [`REGIONS`] regions of [`BYTES`].
    fn new() -> Self;

    /// Makes an endpoint at each of `homes`, which does what `program` says, all at the same time,
    /// and waits for them.
    fn run(&self, homes: &[RegionId], program: Program<Self::F>);

    /// As [`Cluster::run`] for one endpoint that may only read the last region; whether this
    /// backend has such a thing.
    fn run_reader(&self, program: Program<Self::F>) -> bool;
}

/// All of a region.
pub fn all(access: Access) -> [Grant; 1] {
    [Grant { offset: 0, len: BYTES, access }]
}

/// Runs `program` in a thread for each home, at an endpoint that `connect` makes, and keeps the
/// nodes' sides of its connections until it has ended.
fn run_threads<F: Fabric + Send + 'static, A: Send>(
    homes: &[RegionId],
    connect: impl Fn(RegionId) -> (F, A),
    program: Program<F>,
) {
    std::thread::scope(|scope| {
        for (number, home) in homes.iter().enumerate() {
            let (endpoint, accepted) = connect(*home);
            scope.spawn(move || {
                block_on(program(&endpoint, number));
                drop((endpoint, accepted));
            });
        }
    });
}

/// The program of one end of a pair of messengers, with the other end as its peer.
pub type Talk<M> = for<'a> fn(&'a M, <M as Messages>::Peer) -> Task<'a>;

/// Two ends that can send each other messages, and lose none as long as few are under way.
pub trait Post {
    /// An end.
    type M: Messages + 'static;

    /// Whether this machine has what the backend needs; says so if it has not.
    fn is_here() -> bool {
        true
    }

    /// Lets both ends talk, and waits for them.
    fn run(first: Talk<Self::M>, second: Talk<Self::M>);
}

/// Threads of this process and regions in its memory.
pub struct Shm {
    regions: Vec<Arc<Region>>,
}

impl Shm {
    fn endpoint(&self, home: RegionId, regions: &[Arc<Region>]) -> ShmEndpoint {
        let mut endpoint = ShmEndpoint::new(home);
        for (id, region) in regions.iter().enumerate() {
            endpoint.attach(RegionId(id as u8), region.clone());
        }
        endpoint
    }
}

impl Cluster for Shm {
    type F = ShmEndpoint;

    fn new() -> Self {
        let region = |_| Arc::new(Region::anonymous(BYTES).expect("a megabyte is free"));
        Self { regions: (0..REGIONS).map(region).collect() }
    }

    fn run(&self, homes: &[RegionId], program: Program<ShmEndpoint>) {
        run_threads(homes, |home| (self.endpoint(home, &self.regions), ()), program);
    }

    fn run_reader(&self, program: Program<ShmEndpoint>) -> bool {
        let mut regions = self.regions.clone();
        let last = regions.pop().expect("there are some");
        let fd = last.fd().as_fd().try_clone_to_owned().expect("there are free descriptors");
        let read_only = Region::from_fd(fd, BYTES, false).expect("it is mapped already");
        regions.push(Arc::new(read_only));
        block_on(program(&self.endpoint(RegionId(0), &regions), 0));
        true
    }
}

impl Post for Shm {
    type M = ShmMessages;

    fn run(first: Talk<ShmMessages>, second: Talk<ShmMessages>) {
        const SHAPE: MailboxShape = MailboxShape::new(3, 64 << 10);
        let shm = <Self as Cluster>::new();
        // In two regions, and not at their start.
        let ends = [0, 1].map(|id| RemoteAddr::new(RegionId(id), 4096));
        let [a, b] = ends.map(|at| {
            SHAPE.format(&shm.regions[at.region().0 as usize], at.offset());
            let regions = (0..REGIONS).map(RegionId).zip(shm.regions.iter().cloned());
            ShmMessages::open(regions, at).expect("there is a mailbox")
        });
        let to_b = a.peer(&b.address()).expect("it has rings");
        let to_a = b.peer(&a.address()).expect("it has rings");
        std::thread::scope(|scope| {
            for (end, talk, other) in [(a, first, to_b), (b, second, to_a)] {
                scope.spawn(move || block_on(talk(&end, other)));
            }
        });
    }
}

/// A simulated cluster with the profile of that number.
pub struct Sim<const PROFILE: usize> {
    world: World,
}

/// A run that takes more virtual time than this is stuck.
const VIRTUAL_NS_MAX: u64 = 10_000_000_000;

impl<const PROFILE: usize> Cluster for Sim<PROFILE> {
    type F = SimEndpoint;

    fn new() -> Self {
        let world = World::new(1, Profile::ALL[PROFILE], Faults::default());
        (0..REGIONS).for_each(|_| _ = world.add_node(BYTES));
        Self { world }
    }

    fn run(&self, homes: &[RegionId], program: Program<SimEndpoint>) {
        let left = Rc::new(Cell::new(homes.len()));
        for (number, home) in homes.iter().enumerate() {
            let process = self.world.add_process(*home);
            let (endpoint, left) = (self.world.endpoint(process), left.clone());
            self.world.start(process, async move {
                program(&endpoint, number).await;
                left.set(left.get() - 1);
            });
        }
        let until = self.world.now_ns() + VIRTUAL_NS_MAX;
        while left.get() > 0 {
            assert!(self.world.step() && self.world.now_ns() < until, "a program does not end");
        }
    }

    fn run_reader(&self, _program: Program<SimEndpoint>) -> bool {
        false
    }
}

impl<const PROFILE: usize> Post for Sim<PROFILE> {
    type M = SimEndpoint;

    fn run(first: Talk<SimEndpoint>, second: Talk<SimEndpoint>) {
        let sim = <Self as Cluster>::new();
        let ends = [0, 1].map(|home| sim.world.add_process(RegionId(home)));
        let left = Rc::new(Cell::new(2));
        for (number, talk) in [first, second].into_iter().enumerate() {
            let (endpoint, left) = (sim.world.endpoint(ends[number]), left.clone());
            let other = ends[1 - number];
            sim.world.start(ends[number], async move {
                talk(&endpoint, other).await;
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            let now_ns = sim.world.now_ns();
            assert!(sim.world.step() && now_ns < VIRTUAL_NS_MAX, "somebody waits for ever");
        }
    }
}

impl<const PROFILE: usize> Drop for Sim<PROFILE> {
    fn drop(&mut self) {
        self.world.clone().end();
    }
}
