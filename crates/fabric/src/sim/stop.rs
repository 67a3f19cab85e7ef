//! Processes that are stopped between two accesses of memory, as SIGSTOP or the scheduler would do
//! it: the agenda goes on inside the call by which they accessed it ([`World`]'s invariant 4).

use std::cmp::Reverse;
use std::rc::Rc;

use super::process::Process;
use super::state::Inner;
use super::verb::ProcessId;
use super::{Faults, World};

/// The most processes that are stopped in their turns at a time: each uses some of the stack.
const STOPPED_MAX: u32 = 6;

impl World {
    /// Sets the function that is called after each event while a process is stopped in its turn
    /// ([`Faults::stops`]), because the caller of [`World::step`] waits for that turn. The function
    /// polls nothing and does not call `step`. When it returns `false`, stopped processes continue
    /// at once.
    pub fn while_stopped(&self, between: impl Fn() -> bool + 'static) {
        *self.0.between.borrow_mut() = Some(Rc::new(between));
    }
}

impl Inner {
    /// Lets a fault stop the process here, between two accesses of memory, at `share` of the usual
    /// rate. If it does, returns when the process continues, or is dead.
    pub fn stop(&self, id: ProcessId, share: f64) {
        let Faults { stops, stop_ns, .. } = *self.faults.borrow();
        if stops == 0.0 || self.stopped.get() == STOPPED_MAX {
            return;
        }
        let Process { restless, alive, running, .. } = *self.process(id);
        if !restless || !alive || !running || !self.happens(stops * share) {
            return;
        }
        let mut process = self.process(id);
        let until =
            self.now_ns.get() + process.spent_ns + stop_ns / 2 + self.up_to(stop_ns * 3 / 2);
        process.cpu_ns += process.spent_ns;
        (process.spent_ns, process.stopped) = (0, true);
        process.busy_until_ns = process.busy_until_ns.max(until);
        drop(process);
        self.stopped.set(self.stopped.get() + 1);
        let between = self.between.borrow().clone();
        let is_due = || self.agenda.borrow().peek().is_some_and(|Reverse(next)| next.0 < until);
        let mut goes_on = true;
        while goes_on && self.process(id).alive && is_due() {
            self.step();
            goes_on = between.as_ref().is_none_or(|between| between());
        }
        if goes_on && self.process(id).alive {
            self.now_ns.set(self.now_ns.get().max(until));
        }
        self.stopped.set(self.stopped.get() - 1);
    }
}
