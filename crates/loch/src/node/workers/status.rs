//! The status of a node's workers: whether they have to end, and the error of a worker that failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use loch_fabric::shm::Bell;

use crate::{Error, Result};

/// The status of a node's workers.
pub(crate) struct WorkersStatus {
    stopping: AtomicBool,
    /// The bells of the workers, which look whether they have to end when they are rung.
    bells: Mutex<Vec<Bell>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The number of workers that do not serve yet.
    opening: usize,
    error: Option<Error>,
    /// Is called when a worker fails.
    alarm: Option<Box<dyn FnOnce() + Send>>,
}

impl WorkersStatus {
    /// The status of `workers` workers, which have not begun.
    pub fn new(workers: usize) -> Self {
        let state = State { opening: workers, error: None, alarm: None };
        let stopping = AtomicBool::new(false);
        Self {
            stopping,
            bells: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The error of a worker that has failed.
    pub fn error(&self) -> Option<Error> {
        self.state().error.clone()
    }

    /// Sets the function that is called when a worker fails. It is called at once if one has
    /// failed.
    pub fn set_alarm(&self, alarm: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.error.is_some() {
            drop(state);
            return alarm();
        }
        state.alarm = Some(Box::new(alarm));
    }

    /// Waits until a worker fails, or all are told to end. Returns the error of the worker.
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
        self.bells().iter().for_each(Bell::ring);
    }

    /// Adds the bell of a worker.
    pub(super) fn add_bell(&self, bell: Bell) {
        self.bells().push(bell);
    }

    fn bells(&self) -> MutexGuard<'_, Vec<Bell>> {
        self.bells.lock().expect("nothing panics while it is held")
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

    pub(super) fn wait_until_open(&self) -> Result<()> {
        let opening = |state: &mut State| state.opening > 0 && state.error.is_none();
        let state = self.changed.wait_while(self.state(), opening);
        state.expect("nothing panics while it is held").error.clone().map_or(Ok(()), Err)
    }

    /// One more worker serves.
    pub(super) fn opened(&self) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn workers_that_sleep_are_woken_to_end() {
        let (status, bell) = (WorkersStatus::new(1), Bell::private().unwrap());
        status.add_bell(bell.clone());
        bell.arm();
        status.stop();
        assert!(bell.sleep(Duration::from_secs(60)), "it was rung");
    }
}
