//! The calls and answers of a run, and whether they are linearizable.

use std::cell::RefCell;
use std::collections::BTreeMap;

use loch_engines::EngineError;
use loch_fabric::sim::World;
use loch_fabric::{FabricError, RemoteAddr};
use loch_history::{Answer, Ask, History, Operation, Outcome, check};

use crate::report::{Report, judge};

/// The operations so far. The outcome of an operation that has not returned is unknown.
pub struct Recorder {
    world: World,
    operations: RefCell<Vec<Operation>>,
    /// DELETEs that no client called.
    losses: RefCell<Vec<Operation>>,
    tags: RefCell<u64>,
    /// The workers, by the words of their incarnations.
    workers: RefCell<BTreeMap<RemoteAddr, Presence>>,
    absurd: RefCell<Option<String>>,
}

/// The number of configurations that the search may look at for one history: if clients give up
/// soon and workers die often, many outcomes are unknown.
const SEARCH_BUDGET: u64 = 16_000_000;

/// The times at which a worker was there.
#[derive(Clone, Copy, Debug, Default)]
struct Presence {
    /// When the last incarnation made itself known.
    announced_ns: u64,
    /// The time since which there is no incarnation.
    gone_ns: Option<u64>,
}

/// For this long after its node forgot a worker, a client may still get an answer that the worker
/// gave before it died: messages are held up for up to 500 us.
const SAID_BEFORE_NS: u64 = 600_000;

impl Recorder {
    pub fn new(world: World) -> Self {
        Self {
            world,
            operations: RefCell::default(),
            losses: RefCell::default(),
            tags: RefCell::new(0),
            workers: RefCell::default(),
            absurd: RefCell::default(),
        }
    }

    /// A recorder for a forger, whose operations are not recorded: no other recorder has its
    /// values.
    pub fn of_a_forger(world: World) -> Self {
        Self { tags: RefCell::new(1 << 24), ..Self::new(world) }
    }

    /// A value that was never written before.
    pub fn tag(&self) -> u64 {
        let mut tags = self.tags.borrow_mut();
        *tags += 1;
        // The low half is free for additions.
        *tags << 32
    }

    /// Records the call of an operation, and gives it a number.
    pub fn call(&self, client: u32, key: u64, ask: Ask) -> usize {
        let mut operations = self.operations.borrow_mut();
        let (called, outcome) = (self.world.now_ns(), Outcome::Unknown);
        operations.push(Operation { client, key, ask, called, returned: u64::MAX, outcome });
        operations.len() - 1
    }

    /// Records the return of an operation.
    pub fn answer(&self, number: usize, answer: Answer) {
        let operation = &mut self.operations.borrow_mut()[number];
        operation.returned = self.world.now_ns();
        operation.outcome = Outcome::Known(answer);
    }

    /// Records how an operation ended for a client with this patience.
    pub fn settle(&self, number: usize, ended: Result<Answer, EngineError>, timeout_us: u64) {
        let ask = self.operations.borrow()[number].ask;
        match ended {
            Ok(answer) => self.answer(number, answer),
            Err(EngineError::Ambiguous(FabricError::OutcomeUnknown { at })) => {
                self.unknown(number, timeout_us, at);
            }
            Err(EngineError::Ambiguous(_)) => (),
            // A GET without an answer says nothing, and stays unknown.
            Err(EngineError::Timeout { .. }) if ask == Ask::Get => (),
            Err(EngineError::Timeout { .. } | EngineError::OutOfMemory { .. }) => {
                self.answer(number, Answer::NoEffect);
            }
            Err(EngineError::ValueTooLong { .. }) if matches!(ask, Ask::Append(_)) => {
                self.answer(number, Answer::NoEffect);
            }
            Err(error) => panic!("{ask:?}: {error}"),
        }
    }

    /// Records that something is wrong, besides answers.
    pub fn wrong(&self, what: String) {
        self.absurd.borrow_mut().get_or_insert(what);
    }

    /// Records that a key's value is lost now, if it had one.
    pub fn lost(&self, key: u64) {
        let now = self.world.now_ns();
        let (client, outcome) = (u32::MAX, Outcome::UnknownUntil(now));
        let (called, returned) = (now, u64::MAX);
        let loss = Operation { client, key, ask: Ask::Delete, called, returned, outcome };
        self.losses.borrow_mut().push(loss);
    }

    /// Looks whether there is a worker, whose incarnation is in that word.
    pub fn look_at(&self, word: RemoteAddr) {
        let is_there = self.world.load(word) != 0;
        let mut workers = self.workers.borrow_mut();
        let presence = workers.entry(word).or_default();
        match presence.gone_ns {
            None if !is_there => presence.gone_ns = Some(self.world.now_ns()),
            Some(_) if is_there => {
                *presence = Presence { announced_ns: self.world.now_ns(), gone_ns: None };
            }
            _ => (),
        }
    }

    /// Records that a client was told that the outcome of a mutation is unknown, although it had
    /// time left. The mutation was at the worker whose incarnation is in that word. Then there must
    /// have been another incarnation since: as long as there is none, the work of the dead one may
    /// still come to light.
    fn unknown(&self, number: usize, timeout_us: u64, word: RemoteAddr) {
        let now = self.world.now_ns();
        let called = self.operations.borrow()[number].called;
        let Some(presence) = self.workers.borrow().get(&word).copied() else { return };
        // A client's clock ticks in microseconds, and is as far ahead as its process is busy.
        let is_early = now + 5_000 < called + timeout_us * 1_000;
        let gone = presence.gone_ns.is_some_and(|since| now > since + SAID_BEFORE_NS);
        if is_early && gone && called > presence.announced_ns {
            let told = format!(
                "a client that had asked at {called} ns was told at {now} ns of {word} what no worker \
                 knows yet: {presence:?}"
            );
            self.wrong(told);
        }
    }

    /// Whether all answers were possible.
    ///
    /// # Errors
    /// The impossible answer.
    pub fn nothing_absurd(&self) -> Result<(), String> {
        self.absurd.borrow().clone().map_or(Ok(()), Err)
    }

    /// Counts the operations, and judges them. `evicts`: whether values may disappear.
    pub fn judge(&self, report: &mut Report, evicts: bool) -> Result<(), String> {
        let mut operations = self.operations.take();
        report.count(&operations);
        operations.append(&mut self.losses.borrow_mut());
        let mut history = History::from(operations);
        if evicts {
            report.lossy = u64::from(!check(&history, SEARCH_BUDGET).is_linearizable());
            history = history.forgetting();
        }
        judge(&history, SEARCH_BUDGET)
    }
}
