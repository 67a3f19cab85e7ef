//! The simulated cluster: nodes, processes, virtual time and the agenda of what happens next.
//!
//! # Invariants
//! 1. Everything that is random comes from one generator, in the order of the agenda; nothing is
//!    kept in an order that depends on addresses or the operating system. So a seed decides all.
//! 2. Time never goes back, and of two events of one moment the one that was entered first is
//!    first.
//! 3. A dead process changes nothing any more, but what it posted may still be executed until it is
//!    fenced ([`World::fence`]), as a network card goes on after a process was killed.
//! 4. A process that is stopped ([`Faults::stops`]) keeps its turn: the agenda goes on inside the
//!    call by which it accessed memory. So stops are nested, and one that was stopped earlier than
//!    another goes on later. Nothing of the simulation is borrowed meanwhile.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::card::{Card, CardId, Step};
use super::memory::Memory;
use super::nic::Nic;
use super::process::{Logic, Process, Rung, Slices};
use super::verb::{ProcessId, Stage, Verb, VerbId, Verbs};
use super::watch::{How, Watch};
use super::{Faults, Profile, SimEndpoint};
use crate::{FabricError, RegionId};

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

pub(super) struct Inner {
    pub profile: Profile,
    pub faults: RefCell<Faults>,
    pub now_ns: Cell<u64>,
    serial: Cell<u64>,
    pub agenda: RefCell<BinaryHeap<Reverse<Entry>>>,
    pub random: RefCell<ChaCha8Rng>,
    pub nodes: RefCell<Vec<Node>>,
    pub processes: RefCell<Vec<Process>>,
    pub verbs: RefCell<Verbs>,
    /// Pairs of nodes, the lower first, between which nothing passes.
    pub cuts: RefCell<BTreeSet<(RegionId, RegionId)>>,
    /// Pairs of nodes and how many times slower their link is.
    pub slow: RefCell<Vec<((RegionId, RegionId), u64)>>,
    /// Processes that died of a fault since they were last asked for.
    died: RefCell<Vec<ProcessId>>,
    pub datagrams: RefCell<super::datagram::Mailboxes>,
    pub cards: RefCell<Vec<Card>>,
    rung: Arc<Rung>,
    events: Cell<u64>,
    /// Processes that are stopped in their turns.
    pub stopped: Cell<u32>,
    pub between: RefCell<Option<Rc<dyn Fn() -> bool>>>,
    pub watch: RefCell<Option<Watch>>,
}

/// A node: memory and a network card.
pub(super) struct Node {
    pub memory: Rc<Memory>,
    pub nic: Nic,
    pub up: bool,
    /// Goes up when its memory is lost: whoever knew it must not take it for the same.
    pub incarnation: u32,
    /// Connections that its processes post on.
    pub connections: u32,
}

type Entry = (u64, u64, Event);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A process has its turn.
    Run(ProcessId),
    /// A verb leaves its process.
    Leave(VerbId),
    /// A request is at its node.
    Arrive(VerbId),
    /// A verb, or a part of it, is executed.
    Execute(VerbId),
    /// An answer is at its process.
    Complete(VerbId),
    /// A process gives a verb up.
    GiveUp(VerbId),
    /// A piece of a store reaches memory.
    Store(ProcessId, u64),
    /// A datagram is there.
    Deliver(u64),
    /// A card goes on.
    Card(CardId, Step),
}

impl World {
    /// An empty cluster in which `seed` decides everything.
    pub fn new(seed: u64, profile: Profile, faults: Faults) -> Self {
        Self(Rc::new(Inner {
            profile,
            faults: RefCell::new(faults),
            now_ns: Cell::new(0),
            serial: Cell::new(0),
            agenda: RefCell::default(),
            random: RefCell::new(ChaCha8Rng::seed_from_u64(seed)),
            nodes: RefCell::default(),
            processes: RefCell::default(),
            verbs: RefCell::default(),
            cuts: RefCell::default(),
            slow: RefCell::default(),
            died: RefCell::default(),
            datagrams: RefCell::default(),
            cards: RefCell::default(),
            rung: Arc::default(),
            events: Cell::new(0),
            stopped: Cell::new(0),
            between: RefCell::default(),
            watch: RefCell::default(),
        }))
    }

    /// Adds a node with so many bytes of memory, all zero. Nodes are numbered in order.
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

    /// Lets the processes of a node share its `cores` with each other and with `hogs` more that
    /// never sleep, in slices of the profile's length.
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

    /// Whether a process's program ran to its end.
    pub fn has_ended(&self, process: ProcessId) -> bool {
        let process = self.0.process(process);
        process.alive && process.task.is_none() && !process.running
    }

    /// Whether a process was not killed.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.0.process(process).alive
    }

    /// Changes what goes wrong from now on.
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

    /// Kills a process: nothing of it runs any more, and stores that are not in memory yet are
    /// lost.
    pub fn kill(&self, process: ProcessId) {
        let task = self.0.kill(process);
        // Its destructors run, and change nothing: the process is dead.
        drop(task);
    }

    /// What a node does before it gives a dead process's place to another: cuts its connections off
    /// at all nodes for good, so that nothing is executed any more that it posted, or will post if
    /// it only stood still.
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

    /// Lets nothing pass between two nodes, until [`World::heal`].
    pub fn cut(&self, a: RegionId, b: RegionId) {
        self.0.cuts.borrow_mut().insert(pair(a, b));
    }

    /// Undoes [`World::cut`].
    pub fn heal(&self, a: RegionId, b: RegionId) {
        self.0.cuts.borrow_mut().remove(&pair(a, b));
    }

    /// Makes the link between two nodes so many times slower; 1 undoes it.
    pub fn slow_link(&self, a: RegionId, b: RegionId, times: u64) {
        let mut slow = self.0.slow.borrow_mut();
        slow.retain(|(nodes, _)| *nodes != pair(a, b));
        if times > 1 {
            slow.push((pair(a, b), times));
        }
    }

    /// A node's host fails, and with it the processes on it, which are returned. Its memory is
    /// zeroed if it is lost.
    pub fn crash_node(&self, node: RegionId, memory_is_lost: bool) -> Vec<ProcessId> {
        let of_node = |(index, process): (usize, &Process)| {
            (process.node == node && process.alive).then_some(ProcessId(index as u32))
        };
        let own: Vec<ProcessId> =
            self.0.processes.borrow().iter().enumerate().filter_map(of_node).collect();
        own.iter().for_each(|process| self.kill(*process));
        let mut nodes = self.0.nodes.borrow_mut();
        let node = &mut nodes[node.0 as usize];
        node.up = false;
        if memory_is_lost {
            node.memory.clear();
            node.incarnation += 1;
        }
        own
    }

    /// A node that failed is back. Connections to it stay broken until they are made again.
    pub fn revive_node(&self, node: RegionId) {
        self.0.nodes.borrow_mut()[node.0 as usize].up = true;
        // Requests from before its failure find no connection.
        let flying = |verb: &Verb| verb.at.region() == node && verb.stage == Stage::Request;
        let ids = self.0.verbs.borrow().ids(flying);
        ids.into_iter().for_each(|id| self.0.fail(id));
        for process in self.0.processes.borrow_mut().iter_mut() {
            process.disconnect(node);
        }
    }

    /// Goes on until virtual time `ns`; whatever is due later stays due.
    pub fn run_until(&self, ns: u64) {
        while self.0.agenda.borrow().peek().is_some_and(|Reverse(next)| next.0 <= ns) {
            self.step();
        }
        self.0.now_ns.set(self.now_ns().max(ns));
    }

    /// Lets the next thing happen; whether there was one.
    pub fn step(&self) -> bool {
        self.0.step()
    }
}

impl Drop for Inner {
    /// Programs hold endpoints, which hold the world: without this it would hold itself.
    fn drop(&mut self) {
        debug_assert!(self.processes.borrow().iter().all(|process| process.task.is_none()));
    }
}

impl World {
    /// Ends the simulation: drops every program. A world whose processes still run is never freed
    /// otherwise, because they hold it.
    pub fn end(self) {
        (*self.0.between.borrow_mut(), *self.0.watch.borrow_mut()) = (None, None);
        let count = self.0.processes.borrow().len() as u32;
        (0..count).for_each(|process| self.kill(ProcessId(process)));
    }
}

/// The lower of two first.
pub(super) fn pair(a: RegionId, b: RegionId) -> (RegionId, RegionId) {
    if a <= b { (a, b) } else { (b, a) }
}

impl Inner {
    pub fn at(&self, ns: u64, event: Event) {
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        self.agenda.borrow_mut().push(Reverse((ns, serial, event)));
    }

    pub fn memory(&self, node: RegionId) -> Rc<Memory> {
        self.nodes.borrow()[node.0 as usize].memory.clone()
    }

    pub fn process_count(&self) -> u32 {
        self.processes.borrow().len() as u32
    }

    pub fn process(&self, process: ProcessId) -> std::cell::RefMut<'_, Process> {
        std::cell::RefMut::map(self.processes.borrow_mut(), |all| &mut all[process.0 as usize])
    }

    pub fn step(&self) -> bool {
        let Some(Reverse((ns, _, event))) = self.agenda.borrow_mut().pop() else {
            return false;
        };
        self.now_ns.set(ns);
        self.events.set(self.events.get() + 1);
        match event {
            Event::Run(process) => self.run(process),
            Event::Leave(verb) => self.leave(verb),
            Event::Arrive(verb) => self.arrive(verb),
            Event::Execute(verb) => self.execute(verb),
            Event::Complete(verb) => self.complete(verb),
            Event::GiveUp(verb) => self.give_up(verb),
            Event::Store(process, id) => self.store_piece(process, id),
            Event::Deliver(id) => self.deliver(id),
            Event::Card(card, step) => self.card_step(card, step),
        }
        self.answer_bells();
        true
    }

    /// Whether something that happens with this rate happens now.
    pub fn happens(&self, rate: f64) -> bool {
        rate > 0.0 && self.random.borrow_mut().random_bool(rate)
    }

    /// A random number up to `most`.
    pub fn up_to(&self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.random.borrow_mut().random_range(0..=most) }
    }

    /// Gives a process a turn at `ns`, or when it has a processor.
    pub fn wake(&self, id: ProcessId, ns: u64) {
        let mut process = self.process(id);
        let ns = process.runs_from(ns.max(self.now_ns.get()));
        if process.alive && process.wake_ns.is_none_or(|at| at > ns) {
            process.wake_ns = Some(ns);
            drop(process);
            self.at(ns, Event::Run(id));
        }
    }

    /// A waker that gives a process a turn.
    pub fn bell(&self, process: ProcessId) -> Waker {
        Rung::bell(&self.rung, process)
    }

    /// Gives processes whose bells were rung a turn at their next clock.
    fn answer_bells(&self) {
        for id in self.rung.take() {
            let clock_ns = self.process(id).logic.as_ref().map_or(0, |logic| logic.clock_ns);
            self.wake(id, self.now_ns.get() + clock_ns);
        }
    }

    fn run(&self, id: ProcessId) {
        let now = self.now_ns.get();
        let mut process = self.process(id);
        if !process.alive || process.wake_ns != Some(now) {
            return;
        }
        process.wake_ns = None;
        let from = process.runs_from(now);
        if from > now {
            drop(process);
            self.wake(id, from);
            return;
        }
        let Some(mut task) = process.task.take() else {
            return;
        };
        let (resume_ns, bell) = match &process.logic {
            Some(Logic { bell, .. }) => (0, Some(bell.clone())),
            None => (self.profile.resume_ns, None),
        };
        (process.spent_ns, process.running) = (resume_ns, true);
        drop(process);
        let mut context = Context::from_waker(bell.as_ref().unwrap_or(Waker::noop()));
        let ended = task.as_mut().poll(&mut context).is_ready();
        // It may have been stopped in its turn.
        let now = self.now_ns.get();
        let mut process = self.process(id);
        process.running = false;
        let stopped = std::mem::take(&mut process.stopped);
        process.cpu_ns += process.spent_ns;
        process.busy_until_ns = process.busy_until_ns.max(now + process.spent_ns);
        process.spent_ns = 0;
        // A turn that was asked for in the middle of this one comes after it.
        if process.alive && !ended {
            process.task = Some(task);
            drop(process);
            if stopped {
                self.wake(id, now);
            }
        } else {
            drop(process);
            drop(task);
        }
    }

    /// Marks a process dead and returns its program, to be dropped while nothing is borrowed.
    pub fn kill(&self, id: ProcessId) -> Option<super::process::Task> {
        self.die(id);
        self.process(id).task.take()
    }

    /// Stores that are not in memory are lost, and so are verbs that wait for them: their process
    /// had not come to post them.
    fn die(&self, id: ProcessId) {
        let mut process = self.process(id);
        process.alive = false;
        // It came as far as the turn that it has at this moment.
        let now = self.now_ns.get() + process.spent_ns;
        process.stores.lose_after(now);
        drop(process);
        let mut verbs = self.verbs.borrow_mut();
        for verb in verbs.ids(|verb| verb.process == id && verb.leaves_ns > now) {
            let number = verbs.remove(verb).map(|verb| verb.number);
            number.map(|number| self.process(id).unsettled.remove(&number));
        }
    }

    /// Whether a fault kills the process here, or lets it stand still.
    pub fn tempt(&self, id: ProcessId) {
        let Faults { deaths, pauses, pause_ns, .. } = *self.faults.borrow();
        let Process { mortal, restless, alive, .. } = *self.process(id);
        if !restless || !alive {
            return;
        }
        if mortal && self.happens(deaths) {
            self.die(id);
            self.died.borrow_mut().push(id);
        } else if self.happens(pauses) {
            let ns = pause_ns / 2 + self.up_to(pause_ns * 3 / 2);
            let until = self.now_ns.get() + ns;
            let mut process = self.process(id);
            process.busy_until_ns = process.busy_until_ns.max(until);
        }
    }

    fn store_piece(&self, id: ProcessId, piece: u64) {
        let store = self.process(id).stores.take(piece);
        if let Some(store) = store {
            self.change(id, store.at, store.bytes(), How::Store);
        }
    }

    /// Verbs of a process, to one node or to all, are executed no more. Those that nobody was told
    /// about fail.
    pub fn fence(&self, id: ProcessId, node: Option<RegionId>) {
        let own =
            |verb: &Verb| verb.process == id && node.is_none_or(|node| verb.at.region() == node);
        let ids = self.verbs.borrow().ids(own);
        for verb in ids {
            let mut verbs = self.verbs.borrow_mut();
            let Some(one) = verbs.get(verb) else { continue };
            let (number, stage) = (one.number, one.stage);
            if matches!(stage, Stage::Done(_)) && !one.unknown {
                continue;
            }
            one.unknown = false;
            drop(verbs);
            self.process(id).unsettled.remove(&number);
            if !matches!(stage, Stage::Done(_)) {
                self.fail(verb);
            }
            let mut verbs = self.verbs.borrow_mut();
            if verbs.get(verb).is_some_and(|verb| verb.detached) {
                verbs.remove(verb);
            }
        }
    }

    /// Tells a process that a verb's outcome is unknown; it will not be executed.
    pub fn fail(&self, id: VerbId) {
        let mut verbs = self.verbs.borrow_mut();
        let Some(verb) = verbs.get(id) else { return };
        let (process, number, node) = (verb.process, verb.number, verb.at.region());
        verb.stage = Stage::Done(Err(FabricError::OutcomeUnknown { at: verb.at }));
        verb.unknown = false;
        if verb.detached {
            verbs.remove(id);
        }
        drop(verbs);
        self.process(process).unsettled.remove(&number);
        self.process(process).disconnect(node);
        self.wake(process, self.now_ns.get());
    }
}
