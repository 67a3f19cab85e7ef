//! Whether a history can be explained: linearizability, step by step.
//!
//! A **world** is one explanation of the history so far: the value that each key would have, and
//! for every operation under way whether it has taken effect and with which result. The monitor
//! carries the set of all worlds. An invocation adds a pending operation to each; then every
//! pending operation may take effect, in every order, which gives more worlds; a return keeps the
//! worlds in which the operation has taken effect with that very result. If no world is left, no
//! order of the operations explains what the clients saw. The monitor guesses nothing and leaves
//! nothing out, so its answer is exact for every history in a search, complete or not.
//!
//! A state of a model holds only the number of its set: there are few different sets.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::script::{CLIENTS_MAX, KEYS, Key, Op, SCRIPT_MAX};

const CALLS_MAX: usize = CLIENTS_MAX * SCRIPT_MAX;

/// The number of a set of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct History(u32);

impl History {
    /// No world is left: the history cannot be explained.
    pub const IMPOSSIBLE: Self = Self(u32::MAX);
}

/// An operation of a script: client and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call(u8);

impl Call {
    /// Operation `nth` of `client`.
    pub fn new(client: usize, nth: usize) -> Self {
        assert!(client < CLIENTS_MAX && nth < SCRIPT_MAX, "call {nth} of client {client}");
        Self((client * SCRIPT_MAX + nth) as u8)
    }
}

/// The events of an operation that are visible from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It began.
    Invoked,
    /// It returned a result.
    Returned(u8),
    /// It failed, and reported that it had no effect.
    Failed,
    /// It ended without an answer, or its client died: it may have had its effect, or may have it
    /// later, or never.
    Unknown,
    /// The value of a key was evicted.
    Evicted(Key),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Progress {
    /// Not begun, or over.
    Idle,
    Pending,
    TookEffect(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct World {
    values: [u8; KEYS],
    calls: [Progress; CALLS_MAX],
}

/// The sets of worlds that a search has met.
pub struct Monitor {
    ops: [Option<Op>; CALLS_MAX],
    sets: RefCell<Sets>,
}

#[derive(Default)]
struct Sets {
    worlds: Vec<Vec<World>>,
    numbers: HashMap<Vec<World>, History>,
    after: HashMap<(History, Call, Event), History>,
}

impl Monitor {
    /// A monitor of the operations of these scripts, a script a client.
    pub fn new(scripts: &[Vec<Op>]) -> Self {
        let mut ops = [None; CALLS_MAX];
        for (client, script) in scripts.iter().enumerate() {
            for (nth, op) in script.iter().enumerate() {
                ops[Call::new(client, nth).0 as usize] = Some(*op);
            }
        }
        Self { ops, sets: RefCell::default() }
    }

    /// The history in which nothing has happened yet.
    pub fn start(&self, values: [u8; KEYS]) -> History {
        let world = World { values, calls: [Progress::Idle; CALLS_MAX] };
        self.sets.borrow_mut().number(vec![world])
    }

    /// The history after one more event.
    pub fn after(&self, history: History, call: Call, event: Event) -> History {
        if history == History::IMPOSSIBLE {
            return history;
        }
        let known = self.sets.borrow().after.get(&(history, call, event)).copied();
        known.unwrap_or_else(|| {
            let worlds = self.sets.borrow().worlds[history.0 as usize].clone();
            let worlds = self.close(worlds.into_iter().filter_map(|w| w.observe(call, event)));
            let mut sets = self.sets.borrow_mut();
            let after = if worlds.is_empty() { History::IMPOSSIBLE } else { sets.number(worlds) };
            sets.after.insert((history, call, event), after);
            after
        })
    }

    /// Adds the worlds that become possible when pending operations take effect.
    fn close(&self, worlds: impl Iterator<Item = World>) -> Vec<World> {
        let mut closed: Vec<World> = worlds.collect();
        let mut next = 0;
        while next < closed.len() {
            let world = closed[next];
            for call in (0..CALLS_MAX).filter(|c| world.calls[*c] == Progress::Pending) {
                let op = self.ops[call].expect("only operations of scripts are invoked");
                let key = op.key().expect("only operations with a key are invoked").index();
                let mut after = world;
                let (value, result) = op.apply(world.values[key]);
                after.values[key] = value;
                after.calls[call] = Progress::TookEffect(result);
                if !closed.contains(&after) {
                    closed.push(after);
                }
            }
            next += 1;
        }
        closed.sort_unstable();
        closed.dedup();
        closed
    }
}

impl Sets {
    fn number(&mut self, worlds: Vec<World>) -> History {
        if let Some(number) = self.numbers.get(&worlds) {
            return *number;
        }
        let number = History(self.worlds.len() as u32);
        self.worlds.push(worlds.clone());
        self.numbers.insert(worlds, number);
        number
    }
}

impl World {
    /// The world after an event; `None` if the event is impossible in this world.
    fn observe(mut self, call: Call, event: Event) -> Option<Self> {
        if let Event::Evicted(key) = event {
            self.values[key.index()] = 0;
            return Some(self);
        }
        let progress = &mut self.calls[call.0 as usize];
        *progress = match (event, *progress) {
            (Event::Invoked, _) => Progress::Pending,
            (Event::Returned(seen), Progress::TookEffect(result)) if seen == result => {
                Progress::Idle
            }
            (Event::Failed, Progress::Pending) => Progress::Idle,
            (Event::Unknown, Progress::Pending) => Progress::Pending,
            (Event::Unknown, _) => Progress::Idle,
            (Event::Returned(_) | Event::Failed | Event::Evicted(_), _) => return None,
        };
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Key::{A, B};
    use Event::{Evicted, Failed, Invoked, Returned, Unknown};

    /// Whether a history over key A, which has value 9 at first, can be explained.
    fn explained(scripts: &[Vec<Op>], events: &[(usize, usize, Event)]) -> bool {
        let monitor = Monitor::new(scripts);
        let start = monitor.start([9, 0]);
        let end = events.iter().fold(start, |history, (client, nth, event)| {
            monitor.after(history, Call::new(*client, *nth), *event)
        });
        end != History::IMPOSSIBLE
    }

    #[test]
    fn a_read_sees_the_last_write_that_returned() {
        let scripts = [vec![Op::Put(A, 1)], vec![Op::Get(A)]];
        let history = |value| {
            [(0, 0, Invoked), (0, 0, Returned(0)), (1, 0, Invoked), (1, 0, Returned(value))]
        };
        assert!(explained(&scripts, &history(1)));
        assert!(!explained(&scripts, &history(9)));
        assert!(!explained(&scripts, &history(0)));
    }

    #[test]
    fn a_write_under_way_may_be_seen_or_not() {
        let scripts = [vec![Op::Put(A, 1)], vec![Op::Get(A), Op::Get(A)]];
        let history = |first, second| {
            [
                (0, 0, Invoked),
                (1, 0, Invoked),
                (1, 0, Returned(first)),
                (1, 1, Invoked),
                (1, 1, Returned(second)),
            ]
        };
        assert!(explained(&scripts, &history(9, 9)));
        assert!(explained(&scripts, &history(9, 1)));
        assert!(explained(&scripts, &history(1, 1)));
        assert!(!explained(&scripts, &history(1, 9)), "new, then old");
    }

    #[test]
    fn two_deletes_cannot_both_have_found_one_value() {
        let scripts = [vec![Op::Delete(A)], vec![Op::Delete(A)]];
        let history = |first, second| {
            [(0, 0, Invoked), (1, 0, Invoked), (0, 0, Returned(first)), (1, 0, Returned(second))]
        };
        assert!(explained(&scripts, &history(1, 0)) && explained(&scripts, &history(0, 1)));
        assert!(!explained(&scripts, &history(1, 1)) && !explained(&scripts, &history(0, 0)));
    }

    #[test]
    fn a_crashed_write_may_take_effect_late_but_not_twice() {
        let scripts =
            [vec![Op::FetchAdd(A)], vec![Op::Get(A), Op::Get(A)], vec![Op::Put(A, 3), Op::Get(A)]];
        let crash = [(0, 0, Invoked), (0, 0, Unknown), (1, 0, Invoked), (1, 0, Returned(9))];
        let late = [(1, 1, Invoked), (1, 1, Returned(10))];
        let put = [(2, 0, Invoked), (2, 0, Returned(0)), (2, 1, Invoked)];
        assert!(explained(&scripts, &[&crash[..], &late].concat()));
        assert!(explained(&scripts, &[&crash[..], &put, &[(2, 1, Returned(4))]].concat()));
        assert!(explained(&scripts, &[&crash[..], &late, &put, &[(2, 1, Returned(3))]].concat()));
        assert!(!explained(&scripts, &[&crash[..], &late, &put, &[(2, 1, Returned(4))]].concat()));
    }

    #[test]
    fn a_failure_without_effect_must_have_had_none() {
        let scripts = [vec![Op::Put(A, 1)], vec![Op::Get(A)]];
        let seen = [(0, 0, Invoked), (1, 0, Invoked), (1, 0, Returned(1)), (0, 0, Failed)];
        assert!(!explained(&scripts, &seen));
        let unseen = [(0, 0, Invoked), (1, 0, Invoked), (1, 0, Returned(9)), (0, 0, Failed)];
        assert!(explained(&scripts, &unseen));
    }

    #[test]
    fn what_was_evicted_is_absent_until_it_is_written_again() {
        let scripts = [vec![Op::Put(A, 1)], vec![Op::Get(A)]];
        let (evicted, read) =
            ((0, 0, Evicted(A)), |value| [(1, 0, Invoked), (1, 0, Returned(value))]);
        let put = [(0, 0, Invoked), (0, 0, Returned(0))];
        assert!(explained(&scripts, &[&[evicted][..], &read(0)].concat()));
        assert!(!explained(&scripts, &[&[evicted][..], &read(9)].concat()));
        assert!(!explained(&scripts, &[&put[..], &[evicted], &read(1)].concat()));
        // A PUT under way may come before or after it.
        let during = |value| [&put[..1], &[evicted], &put[1..], &read(value)].concat();
        assert!(explained(&scripts, &during(0)) && explained(&scripts, &during(1)));
        assert!(!explained(&scripts, &during(9)));
    }

    #[test]
    fn conditions_are_held_to_what_they_say() {
        let scripts = [vec![Op::PutIf(A, 9, 1)], vec![Op::PutIf(A, 9, 2)], vec![Op::Get(A)]];
        let both = [(0, 0, Invoked), (1, 0, Invoked), (0, 0, Returned(1)), (1, 0, Returned(1))];
        assert!(!explained(&scripts, &both));
        let absent = [vec![Op::PutIfAbsent(B, 1)], vec![Op::Get(B)]];
        let found = [(0, 0, Invoked), (0, 0, Returned(1)), (1, 0, Invoked), (1, 0, Returned(1))];
        assert!(explained(&absent, &found));
    }
}
