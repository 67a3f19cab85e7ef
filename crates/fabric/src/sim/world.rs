//! The simulated cluster: nodes, processes and virtual time.
//!
//! # Invariants
//! 1. Everything that is random comes from one generator, in the order of the agenda; nothing is
//!    kept in an order that depends on addresses or the operating system. So a seed decides all.
//! 2. Time never goes back, and of two events at the same moment the one that was entered first
//!    comes first.
//! 3. A dead process changes nothing any more, but verbs that it posted may still be executed until
//!    it is fenced ([`World::fence`]), as a network card continues after a process was killed.
//! 4. A process that is stopped ([`Faults::stops`]) keeps its turn: the agenda goes on inside the
//!    call by which it accessed memory. So stops are nested, and a process that was stopped earlier
//!    continues later. No state of the simulation is borrowed meanwhile.

use std::cmp::Reverse;
use std::future::Future;
use std::rc::Rc;

use rand::RngExt;

use super::memory::Memory;
use super::nic::Nic;
use super::process::{Process, Slices};
use super::state::{Inner, Node, pair};
use super::verb::{ProcessId, Stage, Verb};
use super::watch::Change;
use super::{Faults, Profile, SimEndpoint};
use crate::RegionId;

/// A cluster in virtual time.
///
/// ```
/// use loch_fabric::sim::{Faults, Profile, World};
/// use loch_fabric::{Fabric, RemoteAddr};
///
/// let world = World::new(7, Profile::CONNECTX_3_56, Faults::default());
/// let (here, there) = (world.add_node(4096), world.add_node(4096));
/// let process = world.add_process(here);
/// let fabric = world.endpoint(process);
/// world.start(process, async move {
///     let was = fabric.compare_swap(RemoteAddr::new(there, 64), 0, 9).await;
///     assert_eq!(was, Ok(0));
/// });
/// world.run_until(1_000_000);
/// assert!(world.has_ended(process));
/// assert_eq!(world.load(RemoteAddr::new(there, 64)), 9);
/// ```
#[derive(Clone)]
pub struct World(pub(super) Rc<Inner>);

impl World {
    /// An empty cluster in which `seed` decides everything.
    pub fn new(seed: u64, profile: Profile, faults: Faults) -> Self {
        Self(Rc::new(Inner::new(seed, profile, faults)))
    }

    /// Adds a node with this many bytes of memory, all zero. Nodes are numbered in order.
    ///
    /// # Panics
    /// If there are 256 already.
    pub fn add_node(&self, bytes: u64) -> RegionId {
        let mut nodes = self.0.nodes.borrow_mut();
        let id = u8::try_from(nodes.len()).expect("a cluster has up to 256 nodes");
        let memory = Rc::new(Memory::new(bytes));
        nodes.push(Node { memory, nic: Nic::default(), up: true, incarnation: 0, connections: 0 });
        RegionId(id)
    }

    /// Adds a process on a node's host. It does nothing before [`World::start`].
    pub fn add_process(&self, node: RegionId) -> ProcessId {
        let mut processes = self.0.processes.borrow_mut();
        let mut process = Process::new(node);
        let skew = self.0.faults.borrow().wall_skew_ms as i64;
        process.wall_skew_ms = self.0.random.borrow_mut().random_range(-skew..=skew) / 2;
        processes.push(process);
        ProcessId(processes.len() as u32 - 1)
    }

    /// Lets a process die and stand still where [`Faults`] say so.
    pub fn make_mortal(&self, process: ProcessId) {
        self.0.process(process).mortal = true;
        self.make_restless(process);
    }

    /// Lets a process stand still where [`Faults`] say so.
    pub fn make_restless(&self, process: ProcessId) {
        self.0.process(process).restless = true;
    }

    /// Lets the processes of a node share its `cores` with each other and with `hogs` further
    /// processes that never sleep, in slices of the profile's length.
    pub fn share_cores(&self, node: RegionId, cores: u32, hogs: u32) {
        let slice_ns = self.0.profile.slice_ns;
        let mut processes = self.0.processes.borrow_mut();
        let own: Vec<&mut Process> = processes.iter_mut().filter(|p| p.node == node).collect();
        let all = own.len() as u64 + u64::from(hogs);
        if all <= u64::from(cores) {
            return;
        }
        let period_ns = slice_ns * all / u64::from(cores);
        for process in own {
            let phase_ns = self.0.random.borrow_mut().random_range(0..period_ns);
            process.slices = Some(Slices { period_ns, on_ns: slice_ns, phase_ns });
        }
    }

    /// A process's way to the cluster.
    pub fn endpoint(&self, process: ProcessId) -> SimEndpoint {
        SimEndpoint::new(self.0.clone(), process)
    }

    /// Gives a process its program, which begins to run now.
    ///
    /// # Panics
    /// If it has one.
    pub fn start(&self, process: ProcessId, program: impl Future<Output = ()> + 'static) {
        let previous = self.0.process(process).task.replace(Box::pin(program));
        assert!(previous.is_none(), "a process runs one program");
        self.0.wake(process, self.now_ns());
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.0.events.get()
    }

    /// Processor time that a process took.
    pub fn cpu_ns(&self, process: ProcessId) -> u64 {
        self.0.process(process).cpu_ns
    }

    /// Whether a process's program ran to its end, and all that it stored is in memory, as it is
    /// before any message in which the process could say so.
    pub fn has_ended(&self, process: ProcessId) -> bool {
        let process = self.0.process(process);
        let runs = process.running || process.task.is_some();
        process.alive && !runs && process.stores.is_empty()
    }

    /// Whether a process was not killed.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.0.process(process).alive
    }

    /// Changes the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        *self.0.faults.borrow_mut() = faults;
    }

    /// The word at an address, as it is at this moment.
    pub fn load(&self, at: crate::RemoteAddr) -> u64 {
        self.0.memory(at.region()).load(at.offset())
    }

    /// Writes a word, as the node's own process does.
    pub fn store(&self, at: crate::RemoteAddr, word: u64) {
        self.0.memory(at.region()).store(at.offset(), word);
    }

    /// Kills a process: its program does not run any more, and its stores that are not in memory
    /// yet are lost.
    pub fn kill(&self, process: ProcessId) {
        let task = self.0.kill(process);
        // Its destructors run, and change nothing: the process is dead.
        drop(task);
    }

    /// Does what a node does before it gives a dead process's place to another: ends the process's
    /// connections at all nodes for good, or invalidates its keys there if it shares connections.
    /// No verb is executed any more that it has posted, or that it still posts if it only stood
    /// still.
    pub fn fence(&self, process: ProcessId) {
        self.0.process(process).fenced = true;
        self.0.fence(process, None);
    }

    /// Processes that died of a fault since this was last asked.
    pub fn take_died(&self) -> Vec<ProcessId> {
        std::mem::take(&mut self.0.died.borrow_mut())
    }

    /// Lets a process stand still.
    pub fn pause(&self, process: ProcessId, ns: u64) {
        let until = self.now_ns() + ns;
        let mut process = self.0.process(process);
        process.busy_until_ns = process.busy_until_ns.max(until);
    }

    /// Lets no message pass between two nodes, until [`World::heal`].
    pub fn cut(&self, a: RegionId, b: RegionId) {
        self.0.cuts.borrow_mut().insert(pair(a, b));
    }

    /// Undoes [`World::cut`].
    pub fn heal(&self, a: RegionId, b: RegionId) {
        self.0.cuts.borrow_mut().remove(&pair(a, b));
    }

    /// Makes the link between two nodes `times` times slower; 1 undoes it.
    pub fn slow_link(&self, a: RegionId, b: RegionId, times: u64) {
        let mut slow = self.0.slow.borrow_mut();
        slow.retain(|(nodes, _)| *nodes != pair(a, b));
        if times > 1 {
            slow.push((pair(a, b), times));
        }
    }

    /// Lets a node's host fail with the processes on it, which are returned. Its memory is zeroed
    /// if it is lost.
    pub fn crash_node(&self, node: RegionId, memory_is_lost: bool) -> Vec<ProcessId> {
        let of_node = |(index, process): (usize, &Process)| {
            (process.node == node && process.alive).then_some(ProcessId(index as u32))
        };
        let own: Vec<ProcessId> =
            self.0.processes.borrow().iter().enumerate().filter_map(of_node).collect();
        own.iter().for_each(|process| self.kill(*process));
        let shared = self.0.queues.borrow().working(|queue| queue.host == node);
        shared.into_iter().for_each(|queue| self.0.lose_queue(queue));
        let mut nodes = self.0.nodes.borrow_mut();
        let node = &mut nodes[node.0 as usize];
        node.up = false;
        if memory_is_lost {
            node.memory.clear();
            node.incarnation += 1;
        }
        own
    }

    /// Brings a failed node back. Connections to it stay broken until they are made again.
    pub fn revive_node(&self, node: RegionId) {
        self.0.nodes.borrow_mut()[node.0 as usize].up = true;
        // Requests from before the failure find no connection.
        let flying = |verb: &Verb| verb.at.region() == node && verb.stage == Stage::Request;
        let ids = self.0.verbs.borrow().ids(flying);
        ids.into_iter().for_each(|id| self.0.fail(id));
        let shared = self.0.queues.borrow().working(|queue| queue.node == node);
        shared.into_iter().for_each(|queue| self.0.break_queue(queue));
        for process in self.0.processes.borrow_mut().iter_mut() {
            process.disconnect(node);
        }
    }

    /// Runs until virtual time `ns`; later events stay due.
    pub fn run_until(&self, ns: u64) {
        while self.0.agenda.borrow().peek().is_some_and(|Reverse(next)| next.0 <= ns) {
            self.step();
        }
        self.0.now_ns.set(self.now_ns().max(ns));
    }

    /// Lets the next event happen; returns whether there was one.
    pub fn step(&self) -> bool {
        self.0.step()
    }

    /// Sets the function that is told of every change of memory by a process, just after the change
    /// and one word at a time: for invariants about who may change what. The function changes
    /// nothing.
    pub fn watch(&self, watch: impl Fn(Change) + 'static) {
        *self.0.watch.borrow_mut() = Some(Rc::new(watch));
    }

    /// Ends the simulation: drops every program. A world whose processes still run is never freed
    /// otherwise, because they hold it.
    pub fn end(self) {
        (*self.0.between.borrow_mut(), *self.0.watch.borrow_mut()) = (None, None);
        let count = self.0.processes.borrow().len() as u32;
        (0..count).for_each(|process| self.kill(ProcessId(process)));
    }
}
