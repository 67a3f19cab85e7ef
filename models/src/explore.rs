//! The search: it visits every state of a model, breadth first, so a counterexample is a shortest
//! one.
//!
//! The search keeps the states of the current and the next level. For each older state it keeps
//! about 20 bytes: a fingerprint ([`crate::fingerprint`], with the probability of a collision), and
//! the number of the state from which it was reached, with the step. A trace is told by playing
//! those steps again. All orders are fixed, so a search gives the same answer every time.

use std::hash::Hash;

use crate::fingerprint::{Seen, fingerprint};

/// A system of states and steps.
pub trait Model {
    /// A whole state: two equal states have the same future.
    type State: Clone + Eq + Hash;

    /// The state in which it begins.
    fn initial(&self) -> Self::State;

    /// Calls `emit` with every state that one step leads to, always in the same order, and with a
    /// description of the step; without `told` the description may be missing.
    fn successors(
        &self,
        state: &Self::State,
        told: bool,
        emit: &mut dyn FnMut(String, Self::State),
    );

    /// The violation in a state, if there is one.
    fn violation(&self, state: &Self::State) -> Option<String>;

    /// Whether all clients have finished in a state without steps.
    fn may_end(&self, _state: &Self::State) -> bool {
        true
    }

    /// Renames values that only have to be different, so that states that differ only in names are
    /// one.
    fn canonical(&self, _state: &mut Self::State) {}

    /// A state in a line, for traces.
    fn show(&self, state: &Self::State) -> String;
}

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All states were visited, and none has a violation.
    Holds,
    /// A state has a violation, and this is a shortest way to it.
    Violated(Counterexample),
    /// The allowed number of states has no violation, but there are more states.
    Truncated,
}

/// A shortest way to a state with a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// The violation.
    pub what: String,
    /// The initial state.
    pub start: String,
    /// Each step in words, with the state it leads to.
    pub steps: Vec<(String, String)>,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Different states.
    pub states: u64,
    /// Steps looked at.
    pub transitions: u64,
    /// Steps of the longest of all shortest ways.
    pub depth: u32,
    /// States without a step.
    pub terminal: u64,
    /// The answer.
    pub verdict: Verdict,
}

/// How a state was reached first.
struct Origin {
    from: u32,
    nth: u32,
}

/// Visits all states of a model, or `states_max` of them.
pub fn explore<M: Model>(model: &M, states_max: u64) -> Outcome {
    let mut outcome =
        Outcome { states: 1, transitions: 0, depth: 0, terminal: 0, verdict: Verdict::Holds };
    let mut first = model.initial();
    model.canonical(&mut first);
    let mut seen = Seen::default();
    seen.insert(fingerprint(&first));
    let mut origins = vec![Origin { from: 0, nth: 0 }];
    if let Some(what) = model.violation(&first) {
        outcome.verdict = Verdict::Violated(retell(model, &origins, 0, what));
        return outcome;
    }
    let mut level = vec![(first, 0)];
    while !level.is_empty() && outcome.verdict == Verdict::Holds {
        let mut next = Vec::new();
        for (state, number) in level {
            let mut nth = 0;
            model.successors(&state, false, &mut |_, mut after| {
                let origin = Origin { from: number, nth };
                nth += 1;
                outcome.transitions += 1;
                if outcome.verdict != Verdict::Holds {
                    return;
                }
                model.canonical(&mut after);
                if !seen.insert(fingerprint(&after)) {
                    return;
                }
                let this = origins.len() as u32;
                origins.push(origin);
                outcome.states += 1;
                if let Some(what) = model.violation(&after) {
                    outcome.verdict = Verdict::Violated(retell(model, &origins, this, what));
                } else if outcome.states >= states_max {
                    outcome.verdict = Verdict::Truncated;
                }
                next.push((after, this));
            });
            outcome.terminal += u64::from(nth == 0);
            if nth == 0 && !model.may_end(&state) {
                let what = "deadlock: nobody can take a step".to_owned();
                outcome.verdict = Verdict::Violated(retell(model, &origins, number, what));
            }
            if outcome.verdict != Verdict::Holds {
                break;
            }
        }
        outcome.depth += u32::from(!next.is_empty());
        level = next;
    }
    outcome
}

/// Plays the way to state `last` again, in words.
fn retell<M: Model>(model: &M, origins: &[Origin], last: u32, what: String) -> Counterexample {
    let mut way = Vec::new();
    let mut at = last;
    while at != 0 {
        let origin = &origins[at as usize];
        way.push(origin.nth);
        at = origin.from;
    }
    let mut state = model.initial();
    model.canonical(&mut state);
    let mut told = Counterexample { what, start: model.show(&state), steps: Vec::new() };
    for chosen in way.into_iter().rev() {
        let mut taken = None;
        let mut nth = 0;
        model.successors(&state, true, &mut |words, after| {
            if nth == chosen {
                taken = Some((words, after));
            }
            nth += 1;
        });
        let (words, mut after) = taken.expect("a model emits the same steps every time");
        model.canonical(&mut after);
        told.steps.push((words, model.show(&after)));
        state = after;
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two jugs, of 5 and 3 litres, and a tap: can there be 4 litres?
    struct Jugs {
        wanted: u8,
    }

    impl Model for Jugs {
        type State = (u8, u8);

        fn initial(&self) -> (u8, u8) {
            (0, 0)
        }

        fn successors(
            &self,
            &(five, three): &(u8, u8),
            _told: bool,
            emit: &mut dyn FnMut(String, (u8, u8)),
        ) {
            let (into_three, into_five) = (five.min(3 - three), three.min(5 - five));
            emit("fill 5".into(), (5, three));
            emit("fill 3".into(), (five, 3));
            emit("empty 5".into(), (0, three));
            emit("empty 3".into(), (five, 0));
            emit("pour 5 into 3".into(), (five - into_three, three + into_three));
            emit("pour 3 into 5".into(), (five + into_five, three - into_five));
        }

        fn violation(&self, &(five, _): &(u8, u8)) -> Option<String> {
            (five == self.wanted).then(|| format!("{five} litres"))
        }

        fn show(&self, (five, three): &(u8, u8)) -> String {
            format!("{five}+{three}")
        }
    }

    #[test]
    fn a_shortest_way_is_found_and_told() {
        let outcome = explore(&Jugs { wanted: 4 }, u64::MAX);
        let Verdict::Violated(way) = outcome.verdict else { panic!("there is a way") };
        assert_eq!(way.what, "4 litres");
        let steps: Vec<&str> = way.steps.iter().map(|(step, _)| step.as_str()).collect();
        let known =
            ["fill 5", "pour 5 into 3", "empty 3", "pour 5 into 3", "fill 5", "pour 5 into 3"];
        assert_eq!((steps.as_slice(), outcome.depth), (&known[..], 6));
        assert_eq!(way.steps[5].1, "4+3");
    }

    #[test]
    fn all_states_are_counted_once() {
        // Every state in which one jug is full or empty can be reached, and no other: 2·4 + 2·6 -
        // 4.
        let outcome = explore(&Jugs { wanted: 9 }, u64::MAX);
        assert_eq!((outcome.states, outcome.transitions), (16, 96));
        assert_eq!(outcome.verdict, Verdict::Holds);
        assert_eq!(outcome, explore(&Jugs { wanted: 9 }, u64::MAX));
    }

    #[test]
    fn a_search_that_was_cut_short_says_so() {
        let outcome = explore(&Jugs { wanted: 9 }, 10);
        assert_eq!((outcome.states, outcome.verdict), (10, Verdict::Truncated));
    }

    /// Two processes take two locks, in opposite order or in the same.
    struct Locks {
        opposite: bool,
    }

    impl Model for Locks {
        /// How many locks each process has taken, of its two; 3 when it has given them back.
        type State = [u8; 2];

        fn initial(&self) -> [u8; 2] {
            [0, 0]
        }

        fn successors(&self, state: &[u8; 2], _told: bool, emit: &mut dyn FnMut(String, [u8; 2])) {
            let order = |process: usize, n: u8| n ^ u8::from(self.opposite && process == 1);
            let holds = |process: usize, lock: u8| {
                state[process] < 3 && (0..state[process]).any(|n| order(process, n) == lock)
            };
            for process in 0..2 {
                let done = state[process];
                if done == 3 || (done < 2 && holds(1 - process, order(process, done))) {
                    continue;
                }
                let mut after = *state;
                after[process] += 1;
                emit(format!("process {process}"), after);
            }
        }

        fn violation(&self, _state: &[u8; 2]) -> Option<String> {
            None
        }

        fn may_end(&self, state: &[u8; 2]) -> bool {
            *state == [3, 3]
        }

        fn show(&self, state: &[u8; 2]) -> String {
            format!("{state:?}")
        }
    }

    #[test]
    fn a_deadlock_is_found_at_the_first_depth_it_can_be() {
        let outcome = explore(&Locks { opposite: true }, u64::MAX);
        assert!(matches!(outcome.verdict, Verdict::Violated(way) if way.steps.len() == 2));
        let outcome = explore(&Locks { opposite: false }, u64::MAX);
        assert_eq!((outcome.verdict, outcome.terminal), (Verdict::Holds, 1));
    }
}
