//! The state of a simulated cluster, and the agenda of what happens next.
//!
//! [`World`](super::World) has the invariants.

use std::cell::{Cell, RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::card::{Card, CardId, Step};
use super::mailboxes::Mailboxes;
use super::memory::{Memory, pieces};
use super::nic::Nic;
use super::process::{Logic, Process, Rung, Task};
use super::queue::Queues;
use super::verb::{ProcessId, Stage, Verb, VerbId, Verbs};
use super::watch::{Change, How, Watch};
use super::{Faults, Profile};
use crate::{RegionId, RemoteAddr};

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
    pub queues: RefCell<Queues>,
    /// Pairs of nodes, the lower first, between which nothing passes.
    pub cuts: RefCell<BTreeSet<(RegionId, RegionId)>>,
    /// Pairs of nodes and how many times slower their link is.
    pub slow: RefCell<Vec<((RegionId, RegionId), u64)>>,
    /// Processes that died of a fault since they were last asked for.
    pub died: RefCell<Vec<ProcessId>>,
    pub datagrams: RefCell<Mailboxes>,
    pub cards: RefCell<Vec<Card>>,
    rung: Arc<Rung>,
    pub events: Cell<u64>,
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
    /// Goes up when its memory is lost: processes that knew the node must not take it for the same.
    pub incarnation: u32,
    /// Connections that its processes post on.
    pub connections: u32,
}

type Entry = (u64, u64, Event);

/// An event.
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

impl Drop for Inner {
    /// Programs hold endpoints, which hold the world: without this it would hold itself.
    fn drop(&mut self) {
        debug_assert!(self.processes.borrow().iter().all(|process| process.task.is_none()));
    }
}

/// The lower of two first.
pub(super) fn pair(a: RegionId, b: RegionId) -> (RegionId, RegionId) {
    if a <= b { (a, b) } else { (b, a) }
}

impl Inner {
    pub fn new(seed: u64, profile: Profile, faults: Faults) -> Self {
        Self {
            profile,
            faults: RefCell::new(faults),
            now_ns: Cell::new(0),
            serial: Cell::new(0),
            agenda: RefCell::default(),
            random: RefCell::new(ChaCha8Rng::seed_from_u64(seed)),
            nodes: RefCell::default(),
            processes: RefCell::default(),
            verbs: RefCell::default(),
            queues: RefCell::default(),
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
        }
    }

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

    pub fn process(&self, process: ProcessId) -> RefMut<'_, Process> {
        RefMut::map(self.processes.borrow_mut(), |all| &mut all[process.0 as usize])
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

    /// Whether an event of this rate happens now.
    pub fn happens(&self, rate: f64) -> bool {
        rate > 0.0 && self.random.borrow_mut().random_bool(rate)
    }

    /// A random number up to `most`.
    pub fn up_to(&self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.random.borrow_mut().random_range(0..=most) }
    }

    /// Gives a process a turn at `ns`, or at the first later moment when it has a processor.
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
    pub fn kill(&self, id: ProcessId) -> Option<Task> {
        self.die(id);
        self.process(id).task.take()
    }

    /// Stores that are not in memory are lost, and so are verbs that wait for them: the process
    /// died before it posted these.
    fn die(&self, id: ProcessId) {
        let mut process = self.process(id);
        process.alive = false;
        process.left = None;
        // Its own time has advanced by the turn that it has at this moment.
        let now = self.now_ns.get() + process.spent_ns;
        process.stores.lose_after(now);
        drop(process);
        let mut verbs = self.verbs.borrow_mut();
        for verb in verbs.ids(|verb| verb.process == id && verb.leaves_ns > now) {
            let number = verbs.remove(verb).map(|verb| verb.number);
            number.map(|number| self.process(id).unsettled.remove(&number));
        }
    }

    /// Lets a fault kill the process here, or make it stand still.
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

    /// A process's own connections, to one node or to all, are ended at the nodes.
    pub fn fence(&self, id: ProcessId, node: Option<RegionId>) {
        let is_own = |verb: &Verb| verb.process == id && verb.queue.is_none();
        self.end(|verb| is_own(verb) && node.is_none_or(|node| verb.at.region() == node));
    }

    /// Verbs are executed no more, because their connections were ended at the nodes. Those whose
    /// outcome their processes do not know yet fail.
    pub fn end(&self, wanted: impl Fn(&Verb) -> bool) {
        let ids = self.verbs.borrow().ids(wanted);
        for verb in ids {
            let mut verbs = self.verbs.borrow_mut();
            let Some(one) = verbs.get(verb) else { continue };
            let (process, number, stage) = (one.process, one.number, one.stage);
            if matches!(stage, Stage::Done(_)) && !one.unknown {
                continue;
            }
            one.unknown = false;
            drop(verbs);
            self.settle(process, number);
            if !matches!(stage, Stage::Done(_)) {
                self.fail(verb);
            }
            let mut verbs = self.verbs.borrow_mut();
            if verbs.get(verb).is_some_and(|verb| verb.detached) {
                verbs.remove(verb);
            }
        }
    }

    /// Notes that a verb was executed, or never will be. Stores the word that was left until then.
    pub fn settle(&self, id: ProcessId, number: u64) {
        let mut process = self.process(id);
        process.unsettled.remove(&number);
        let oldest = process.unsettled.first().copied();
        let left = process.left.take_if(|left| oldest.is_none_or(|oldest| oldest >= left.0));
        drop(process);
        if let Some((_, at, word)) = left {
            self.change(id, at, &word.to_le_bytes(), How::Store);
        }
    }

    /// Tells a process that a verb's outcome is unknown; it will not be executed.
    pub fn fail(&self, id: VerbId) {
        let mut verbs = self.verbs.borrow_mut();
        let Some(verb) = verbs.get(id) else { return };
        let (process, number, node) = (verb.process, verb.number, verb.at.region());
        verb.stage = Stage::Done(Err(verb.lost()));
        verb.unknown = false;
        if verb.detached {
            verbs.remove(id);
        }
        drop(verbs);
        self.settle(process, number);
        self.process(process).disconnect(node);
        self.wake(process, self.now_ns.get());
    }

    /// Reports a change of memory.
    pub fn changed(&self, change: Change) {
        let watch = self.watch.borrow().clone();
        if let Some(watch) = watch {
            watch(change);
        }
    }

    /// Writes bytes to memory, and reports each changed word.
    pub fn change(&self, by: ProcessId, at: RemoteAddr, bytes: &[u8], how: How) {
        let memory = self.memory(at.region());
        let Some(watch) = self.watch.borrow().clone() else {
            return memory.write(at.offset(), bytes);
        };
        for (offset, piece) in pieces(at.offset(), bytes.len()) {
            let (before, len) = (memory.load(offset & !7), piece.len());
            memory.write(offset, &bytes[piece]);
            watch(Change { by, at: RemoteAddr::new(at.region(), offset), len, before, how });
        }
    }
}
