//! The search for an order.
//!
//! A **configuration** is the set of operations that are in the order so far, and the state that
//! they lead to. From each configuration the search continues with every operation that may come
//! next: those that were called before the first remaining operation returned. A configuration that
//! failed once is not entered again.
//!
//! # What makes it fast
//! * **A read that fits comes at once**, without an alternative: it changes nothing, so any next
//!   operation could come after it as well. This does not hold if an optional operation expired
//!   before the read was called, or if the read gives a value its version.
//! * **The operation that returns first comes first.** An operation that was under way for long is
//!   not tried at every possible place, until another operation requires it.
//! * **A configuration is remembered as 128 bits**: each operation and each state has random bits,
//!   and the bits of a configuration are their exclusive or, so a step costs the same after a
//!   million operations as after ten. A collision of two configurations, which is not to be
//!   expected before 2^60 of them, could only hide an order, never invent one.
//!
//! # Invariants
//! 1. The reported versions are a function of the operations in the order. So is the latest call
//!    among them, which determines the optional operations that have expired. Neither needs to be
//!    remembered with a configuration.
//! 2. Neither does how often the store forgot: between two times there is a write in the order.
//! 3. An optional operation changes the state, and is followed by an operation that depends on the
//!    state. Otherwise the order would be valid without it.

use std::collections::HashSet;

use crate::Ask;
use crate::history::Operation;
use crate::model::{State, Value};
use crate::prepare::{OfKey, Prepared, prepare};

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Order,
    /// There is no order; in the longest attempts this operation had no place.
    NoOrder {
        blocked: usize,
    },
    /// The budget was too small; the longest attempts ended before this operation.
    Exhausted {
        blocked: usize,
    },
}

/// Whether the operations, all on one key that has no value at first, have an order. Looks at no
/// more than `budget` configurations.
pub(crate) fn search(operations: &[Operation], budget: u64) -> Found {
    let of_key = prepare(operations);
    let mut search = Search::new(&of_key, budget);
    let found = search.run();
    let blocked = of_key.must.get(search.blocked).map_or(0, |must| must.origin);
    match found {
        Some(true) => Found::Order,
        Some(false) => Found::NoOrder { blocked },
        None => Found::Exhausted { blocked },
    }
}

/// A list of numbers, from which any can be taken, and put back in reverse.
struct Links {
    next: Vec<u32>,
    previous: Vec<u32>,
}

/// An operation in the order, or the choice of one.
struct Frame {
    /// Its alternatives begin here.
    first: usize,
    /// The next alternative.
    next: usize,
    /// The chosen operation.
    chosen: Option<u32>,
    /// Whether the optional ones are among the alternatives already, or do not matter.
    complete: bool,
    before: Place,
}

/// The position of the search, without the lists.
#[derive(Clone, Copy)]
struct Place {
    state: State,
    print: u128,
    latest_call: u64,
    after_optional: bool,
}

struct Search<'a> {
    must: &'a [Prepared],
    may: &'a [Prepared],
    /// The remaining operations of `must`, by call and by return. The last place is before the
    /// first.
    by_call: Links,
    by_return: Links,
    /// All of `may`, by when they expire.
    by_expiry: Vec<u32>,
    /// Which of `may` are in the order.
    taken: Vec<bool>,
    /// How many operations in the order report each version.
    told: Vec<u32>,
    place: Place,
    frames: Vec<Frame>,
    /// Alternatives of all frames. Numbers from `must.len()` on are optional.
    choices: Vec<u32>,
    failed: HashSet<u128>,
    budget: u64,
    placed: usize,
    placed_max: usize,
    blocked: usize,
}

impl<'a> Search<'a> {
    fn new(of_key: &'a OfKey, budget: u64) -> Self {
        let OfKey { must, may, versions } = of_key;
        let calls: Vec<u32> = (0..must.len() as u32).collect();
        let mut returns = calls.clone();
        returns.sort_by_key(|n| must[*n as usize].returned);
        let mut by_expiry: Vec<u32> = (0..may.len() as u32).collect();
        by_expiry.sort_by_key(|n| may[*n as usize].returned);
        Self {
            must,
            may,
            by_expiry,
            by_call: Links::new(&calls),
            by_return: Links::new(&returns),
            taken: vec![false; may.len()],
            told: vec![0; *versions],
            place: Place { state: None, print: 0, latest_call: 0, after_optional: false },
            frames: Vec::new(),
            choices: Vec::new(),
            failed: HashSet::new(),
            budget,
            placed: 0,
            placed_max: 0,
            blocked: 0,
        }
    }

    /// Whether there is an order; `None` if the budget was too small.
    fn run(&mut self) -> Option<bool> {
        loop {
            let Some(first_return) = self.first_return() else {
                return Some(true);
            };
            if let Some(read) = self.read_that_fits(first_return) {
                self.open(true);
                self.try_step(read);
                continue;
            }
            if self.is_new() {
                if self.budget == 0 {
                    return None;
                }
                self.budget -= 1;
                self.open(false);
                self.choose_from_must(first_return);
            }
            if !self.advance() {
                return Some(false);
            }
        }
    }

    /// When the first remaining operation returned.
    fn first_return(&mut self) -> Option<u64> {
        let first = self.by_return.first()?;
        if self.placed >= self.placed_max {
            (self.placed_max, self.blocked) = (self.placed, first as usize);
        }
        Some(self.must[first as usize].returned)
    }

    fn read_that_fits(&self, first_return: u64) -> Option<u32> {
        let state = self.place.state;
        let mut next = self.next_in_must(first_return);
        next.find(|n| {
            let read = &self.must[*n as usize];
            read.step.is_read() && self.applied(*n) == Some(state) && !self.expires_any(read.called)
        })
    }

    /// Whether an operation that was called at this moment makes an optional operation come too
    /// late.
    fn expires_any(&self, called: u64) -> bool {
        let until = |n: &u32| self.may[*n as usize].returned;
        let first = self.by_expiry.partition_point(|n| until(n) < self.place.latest_call);
        let mut expired = self.by_expiry[first..].iter().take_while(|n| until(n) < called);
        expired.any(|n| !self.taken[*n as usize])
    }

    fn next_in_must(&self, first_return: u64) -> impl Iterator<Item = u32> {
        let all = std::iter::successors(self.by_call.first(), |n| self.by_call.after(*n));
        all.take_while(move |n| self.must[*n as usize].called <= first_return)
    }

    /// Whether this configuration is entered for the first time.
    fn is_new(&mut self) -> bool {
        let optional = if self.place.after_optional { u128::MAX / 3 } else { 0 };
        self.failed.insert(self.place.print ^ bits_of_state(self.place.state) ^ optional)
    }

    fn open(&mut self, complete: bool) {
        let first = self.choices.len();
        self.frames.push(Frame { first, next: first, chosen: None, complete, before: self.place });
    }

    fn choose_from_must(&mut self, first_return: u64) {
        let first = self.choices.len();
        let mut choices = std::mem::take(&mut self.choices);
        choices.extend(self.next_in_must(first_return));
        choices[first..].sort_by_key(|n| self.must[*n as usize].returned);
        self.choices = choices;
    }

    /// Of interchangeable operations, chooses only the one that expires first.
    fn choose_from_may(&mut self, first_return: u64) {
        let mut class = usize::MAX;
        for (n, may) in self.may.iter().enumerate() {
            let open = may.called <= first_return && may.returned >= self.place.latest_call;
            if open && !self.taken[n] && may.class != class {
                class = may.class;
                self.choices.push((self.must.len() + n) as u32);
            }
        }
    }

    /// Takes steps back until there is an alternative, and takes it; returns whether there was one.
    fn advance(&mut self) -> bool {
        while let Some(frame) = self.frames.last_mut() {
            if let Some(chosen) = frame.chosen.take() {
                let before = frame.before;
                self.take_back(chosen, before);
            }
            let frame = self.frames.last_mut().expect("it was not removed");
            if let Some(&choice) = self.choices.get(frame.next) {
                frame.next += 1;
                if self.try_step(choice) {
                    return true;
                }
            } else if !frame.complete {
                frame.complete = true;
                let first_return = self.by_return.first().expect("a choice had to be made");
                self.choose_from_may(self.must[first_return as usize].returned);
            } else {
                self.choices.truncate(frame.first);
                self.frames.pop();
            }
        }
        false
    }

    fn applied(&self, n: u32) -> Option<State> {
        let step = &self.prepared(n).step;
        step.apply(self.place.state, |version| self.told[version as usize] == 0)
    }

    /// Puts an operation into the order, as the choice of the last frame, if it fits.
    fn try_step(&mut self, n: u32) -> bool {
        let Some(state) = self.applied(n) else {
            return false;
        };
        let optional = n as usize >= self.must.len();
        let prepared = self.prepared(n);
        let (ask, called) = (prepared.step.ask, prepared.called);
        let blind =
            matches!(ask, Ask::Put(_)) || (optional && matches!(ask, Ask::Delete | Ask::Forget));
        if (self.place.after_optional && blind) || (optional && state == self.place.state) {
            return false;
        }
        for version in prepared.step.versions().into_iter().flatten() {
            self.told[version as usize] += 1;
        }
        let repeats = ask == Ask::Forget;
        if optional {
            self.taken[n as usize - self.must.len()] = !repeats;
        } else {
            self.by_call.remove(n);
            self.by_return.remove(n);
            self.placed += 1;
        }
        self.place = Place {
            state,
            print: self.place.print ^ if repeats { 0 } else { bits_of(n as u64) },
            latest_call: self.place.latest_call.max(called),
            after_optional: optional,
        };
        self.frames.last_mut().expect("it was opened for this").chosen = Some(n);
        true
    }

    fn take_back(&mut self, n: u32, before: Place) {
        for version in self.prepared(n).step.versions().into_iter().flatten() {
            self.told[version as usize] -= 1;
        }
        match (n as usize).checked_sub(self.must.len()) {
            Some(optional) => self.taken[optional] = false,
            None => {
                self.by_return.put_back(n);
                self.by_call.put_back(n);
                self.placed -= 1;
            }
        }
        self.place = before;
    }

    fn prepared(&self, n: u32) -> &'a Prepared {
        let n = n as usize;
        if n < self.must.len() { &self.must[n] } else { &self.may[n - self.must.len()] }
    }
}

impl Links {
    fn new(order: &[u32]) -> Self {
        let end = order.len() as u32;
        let mut links =
            Self { next: vec![end; order.len() + 1], previous: vec![end; order.len() + 1] };
        let mut last = end;
        for &n in order {
            links.next[last as usize] = n;
            links.previous[n as usize] = last;
            last = n;
        }
        links.next[last as usize] = end;
        links.previous[end as usize] = last;
        links
    }

    fn end(&self) -> u32 {
        self.next.len() as u32 - 1
    }

    fn first(&self) -> Option<u32> {
        self.after(self.end())
    }

    fn after(&self, n: u32) -> Option<u32> {
        Some(self.next[n as usize]).filter(|next| *next != self.end())
    }

    fn remove(&mut self, n: u32) {
        let (next, previous) = (self.next[n as usize], self.previous[n as usize]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
    }

    /// Undoes the last `remove` that was not undone; it removed `n`.
    fn put_back(&mut self, n: u32) {
        let (next, previous) = (self.next[n as usize], self.previous[n as usize]);
        self.next[previous as usize] = n;
        self.previous[next as usize] = n;
    }
}

/// SplitMix64's output for a counter.
fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn bits_of(n: u64) -> u128 {
    (mix(2 * n) as u128) << 64 | mix(2 * n + 1) as u128
}

fn bits_of_state(state: State) -> u128 {
    let Some(held) = state else {
        return 0;
    };
    let of_value = |salt: u64, value| match value {
        Value::Number(number) => mix(mix(salt ^ 1) ^ number),
        Value::Unseen => mix(mix(salt ^ 2)),
    };
    let half = |salt: u64| {
        let version = held.version.map_or(0, |version| version + 1);
        mix(of_value(of_value(salt, held.root), held.value) ^ version)
    };
    (half(0x5bd1_e995) as u128) << 64 | half(0xc2b2_ae35) as u128
}
