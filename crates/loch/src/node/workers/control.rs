//! What a worker is told between two turns, and what it tells.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::Gathering;
use super::rest::Rest;
use crate::limits::{NEIGHBOUR_PAUSE, WORKER_TURNS};
use crate::memory::Memory;
use crate::node::neighbours::Surroundings;
use crate::wire::Inspected;
use crate::{Error, WorkersConfig};

/// That a worker is to tell what it has.
pub(super) struct Order {
    pub gathering: Arc<Mutex<Gathering>>,
}

impl Order {
    /// Tells. The last one answers for all.
    pub fn tell(self, told: Inspected) {
        let mut gathering = self.gathering.lock().expect("nothing panics while it is held");
        gathering.told = std::mem::take(&mut gathering.told).and(told);
        gathering.left -= 1;
        if gathering.left == 0 {
            for answer in std::mem::take(&mut gathering.answers) {
                answer(gathering.told.clone());
            }
        }
    }
}

/// What a worker does next.
pub(super) enum Next {
    /// The next turn.
    Turn,
    /// Nodes have come back with other memory: this is all of it now.
    Attach(Arc<Memory>),
    /// Tell.
    Tell(Order),
    /// End.
    Stop,
}

/// One worker's.
pub(super) struct Control {
    failure: Arc<Failure>,
    surroundings: Arc<Surroundings>,
    /// Which memory the worker has.
    generation: u64,
    orders: Receiver<Order>,
    rest: Rest,
    /// Busy turns since the last look around.
    turns: u32,
}

impl Control {
    pub fn new(
        waiting: &WorkersConfig,
        failure: Arc<Failure>,
        surroundings: Arc<Surroundings>,
        orders: Receiver<Order>,
    ) -> Self {
        let rest = Rest::new(waiting);
        Self { failure, surroundings, generation: 0, orders, rest, turns: 0 }
    }

    pub fn failure(&self) -> &Arc<Failure> {
        &self.failure
    }

    /// What the node knows of all nodes' memory.
    pub fn surroundings(&self) -> &Arc<Surroundings> {
        &self.surroundings
    }

    /// The memory of all nodes, waited for; `None` if the worker is to end.
    pub fn memory(&mut self) -> Option<Arc<Memory>> {
        let (generation, memory) = self.surroundings.wait(|| self.failure.is_stopping())?;
        self.generation = generation;
        Some(memory)
    }

    /// What comes about sooner or later; `None` if the worker is to end before.
    pub fn wait_for<T>(&self, mut it: impl FnMut() -> Option<T>) -> Option<T> {
        while !self.failure.is_stopping() {
            if let Some(there) = it() {
                return Some(there);
            }
            // Whoever stops the workers unparks them.
            std::thread::park_timeout(NEIGHBOUR_PAUSE);
        }
        None
    }

    /// The worker serves from now on.
    pub fn opened(&self) {
        self.failure.opened();
    }

    /// After a turn: rests, if there was nothing to do, and says what is next.
    #[inline]
    pub fn after(&mut self, was_busy: bool) -> Next {
        if was_busy {
            self.rest.end();
            self.turns += 1;
            if self.turns < WORKER_TURNS {
                return Next::Turn;
            }
        } else {
            self.rest.go_on();
        }
        self.turns = 0;
        self.look_around()
    }

    fn look_around(&mut self) -> Next {
        if self.failure.is_stopping() {
            return Next::Stop;
        }
        if let Some((generation, memory)) = self.surroundings.newer_than(self.generation) {
            self.generation = generation;
            return Next::Attach(memory);
        }
        self.orders.try_recv().map_or(Next::Turn, Next::Tell)
    }
}

/// How a node's workers are doing.
pub(crate) struct Failure {
    stopping: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Workers that do not serve yet.
    opening: usize,
    error: Option<Error>,
    /// What is to happen when one fails.
    alarm: Option<Box<dyn FnOnce() + Send>>,
}

impl Failure {
    /// Of so many workers, which have not begun.
    pub fn new(workers: usize) -> Self {
        let state = State { opening: workers, error: None, alarm: None };
        let stopping = AtomicBool::new(false);
        Self { stopping, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// What one failed of, if one did.
    pub fn error(&self) -> Option<Error> {
        self.state().error.clone()
    }

    /// Has this happen when a worker fails; now, if one did.
    pub fn set_alarm(&self, alarm: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.error.is_some() {
            drop(state);
            return alarm();
        }
        state.alarm = Some(Box::new(alarm));
    }

    /// Waits until a worker fails, or all are told to end; what it failed of.
    pub fn wait(&self) -> Option<Error> {
        let over = |state: &mut State| !self.is_stopping() && state.error.is_none();
        let state = self.changed.wait_while(self.state(), over);
        state.expect("nothing panics while it is held").error.clone()
    }

    /// Tells all workers to end.
    pub(super) fn stop(&self) {
        let _state = self.state();
        self.stopping.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub(super) fn fail(&self, error: Error) {
        let alarm = {
            let mut state = self.state();
            state.error.get_or_insert(error);
            state.alarm.take()
        };
        self.stop();
        if let Some(alarm) = alarm {
            alarm();
        }
    }

    pub(super) fn wait_until_open(&self) -> Result<(), Error> {
        let opening = |state: &mut State| state.opening > 0 && state.error.is_none();
        let state = self.changed.wait_while(self.state(), opening);
        state.expect("nothing panics while it is held").error.clone().map_or(Ok(()), Err)
    }

    fn opened(&self) {
        self.state().opening -= 1;
        self.changed.notify_all();
    }

    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}
