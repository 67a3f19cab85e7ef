//! Tests of the simulated fabric: the times that follow from the numbers of a profile, and the
//! effect of each fault.

mod card;
mod failures;
mod faults;
mod messages;
mod shared;
mod stops;
mod stores;
mod timing;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use super::{Faults, ProcessId, Profile, SimEndpoint, World};
use crate::{Buf, Fabric, FabricError, RegionId, RemoteAddr};

const HERE: RegionId = RegionId(0);
const THERE: RegionId = RegionId(1);
/// Bytes of a node's memory.
const BYTES: u64 = 1 << 17;

/// A world that ends with its test.
struct Lab {
    world: World,
}

impl std::ops::Deref for Lab {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.world.clone().end();
    }
}

impl Lab {
    fn of(profile: Profile, nodes: usize, seed: u64, faults: Faults) -> Self {
        let world = World::new(seed, profile, faults);
        (0..nodes).for_each(|_| _ = world.add_node(BYTES));
        Self { world }
    }

    /// Two nodes.
    fn with(faults: Faults) -> Self {
        Self::of(Profile::CONNECTX_3_56, 2, 1, faults)
    }

    /// Starts a program on a node's host.
    fn go<P>(&self, node: RegionId, program: impl FnOnce(SimEndpoint) -> P) -> ProcessId
    where
        P: Future<Output = ()> + 'static,
    {
        let process = self.add_process(node);
        self.start(process, program(self.endpoint(process)));
        process
    }

    /// Runs the simulation for this long.
    fn run_for(&self, ns: u64) {
        self.run_until(self.now_ns() + ns);
    }

    /// Runs the simulation until no event is left.
    fn finish(&self) {
        while self.step() {
            assert!(self.events() < 1_000_000, "it never ends");
        }
    }

    fn words(&self, from: RemoteAddr, count: u64) -> Vec<u64> {
        (0..count).map(|word| self.load(from.add(word * 8))).collect()
    }
}

/// Messages of programs to a test.
struct Told<T>(Rc<RefCell<Vec<T>>>);

impl<T> Clone for Told<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Told<T> {
    fn new() -> Self {
        Self(Rc::default())
    }

    fn tell(&self, what: T) {
        self.0.borrow_mut().push(what);
    }

    fn take(&self) -> Vec<T> {
        self.0.take()
    }
}

fn at(node: RegionId, offset: u64) -> RemoteAddr {
    RemoteAddr::new(node, offset)
}

async fn put(f: &SimEndpoint, at: RemoteAddr, word: u64) -> Result<(), FabricError> {
    f.write(at, Buf::from(word.to_le_bytes().to_vec())).await.1
}

async fn word(f: &SimEndpoint, at: RemoteAddr) -> u64 {
    f.read_bucket(at, 1).await.expect("it can be read")[0]
}

/// Whether all bytes of a word are the same, as in the images that tests of tearing write.
fn is_whole(word: u64) -> bool {
    word == (word & 0xFF) * 0x0101_0101_0101_0101
}

#[test]
fn a_world_that_ended_is_freed() {
    let world = World::new(1, Profile::ONE_HOST, Faults { slow_stores: 1.0, ..Faults::default() });
    let node = world.add_node(4096);
    let dropped = Rc::new(Cell::new(0));
    for _ in 0..3 {
        let process = world.add_process(node);
        let (f, within, dropped) = (world.endpoint(process), world.clone(), dropped.clone());
        world.start(process, async move {
            loop {
                drop(f.fetch_add(at(node, 0), 1));
                f.store(at(node, 64), &[&[1; 20]]).expect("it is in bounds");
                f.send(process, b"to itself").expect("it is short");
                put(&f, at(node, 8), 1).await.expect("it is in bounds");
                f.pause(5).await;
                dropped.set(dropped.get() + u64::from(within.now_ns() > 1_000_000_000));
            }
        });
    }
    world.run_until(50_000);
    assert!(world.load(at(node, 0)) > 3, "they work");
    let weak = Rc::downgrade(&world.0);
    world.end();
    assert_eq!(weak.strong_count(), 0, "something holds the world");
    assert_eq!(Rc::strong_count(&dropped), 1, "a program was not dropped");
}

#[test]
fn a_world_whose_programs_ended_is_freed_too() {
    let lab = Lab::with(Faults::default());
    lab.go(HERE, |f| async move { put(&f, at(THERE, 0), 1).await.expect("it is in bounds") });
    lab.finish();
    let weak = Rc::downgrade(&lab.world.0);
    drop(lab);
    assert_eq!(weak.strong_count(), 0);
}
