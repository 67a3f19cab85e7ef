//! The reservation station: the operations that are under way, and those that wait for them
//! (kv-direct §3.3.3).
//!
//! The station is a table of hash slots. Operations of one slot count as dependent: their keys may
//! differ, so there are false dependencies, but no true dependency is missed. The first operation
//! of a slot *executes*. Operations that come meanwhile are chained behind it, in their order. When
//! the first has been executed, its lane takes the operations on its own key out of the chain,
//! wherever they stand ([`Station::next_of_key`]), and executes them on the value that it has at
//! hand. Then the first of the others is next ([`Station::next`]).
//!
//! # Invariants
//! 1. At most one operation of a slot executes, or some that share the slot. All keys of one bucket
//!    have the same slot, so an operation that changes something has its bucket and the chain
//!    behind it to itself. Reads share a slot where a value at hand saves them nothing.
//! 2. Operations on one key are executed in the order in which they were admitted: the chain has
//!    that order, and a lane that takes an operation from its middle takes the first one on that
//!    key.
//!
//! An operation that begins and ends before anything else happens has no place in the station. It
//! only looks whether the slot is [free](Station::is_free), which both invariants need.

use crate::planted::{self, Bug};

/// Slots of a station: 1024 of them keep false dependencies of 256 operations below 25 % (kv-direct
/// §3.3.3).
pub const STATION_SLOTS: usize = 1024;

/// The name that stands for no place.
const NONE: u16 = u16::MAX;

/// A reservation station for jobs of type `J`.
#[derive(Debug)]
pub struct Station<J> {
    slots: Box<[Slot; STATION_SLOTS]>,
    places: Vec<Place<J>>,
    /// The first unused place.
    spare: u16,
    waiting: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The number of operations that execute.
    executing: u16,
    /// Whether the executing operation does not share the slot.
    is_exclusive: bool,
    first: u16,
    last: u16,
}

#[derive(Debug)]
struct Place<J> {
    job: Option<J>,
    next: u16,
}

impl<J> Station<J> {
    /// A station with room for `waiting_max` operations that wait.
    ///
    /// # Panics
    /// If `waiting_max` is more than 65,534.
    pub fn new(waiting_max: usize) -> Self {
        assert!(waiting_max < usize::from(NONE), "{waiting_max} operations cannot wait");
        let next = |place: usize| if place + 1 < waiting_max { place as u16 + 1 } else { NONE };
        let idle = Slot { executing: 0, is_exclusive: false, first: NONE, last: NONE };
        Self {
            slots: Box::new([idle; STATION_SLOTS]),
            places: (0..waiting_max).map(|at| Place { job: None, next: next(at) }).collect(),
            spare: if waiting_max > 0 { 0 } else { NONE },
            waiting: 0,
        }
    }

    /// The slot of a group of keys that exclude each other.
    #[inline]
    pub fn slot_of(group: u32) -> usize {
        group as usize % STATION_SLOTS
    }

    /// The number of operations that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether one more operation can wait.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.spare != NONE || planted::is(Bug::FullStationExecutes)
    }

    /// Whether an operation that begins and ends now, with nothing in between, needs no place in
    /// its slot: it waits for none, and none waits for it. It may share the slot if `shares` says
    /// so.
    #[inline(always)]
    pub fn is_free(&self, slot: usize, shares: bool) -> bool {
        let known = &self.slots[slot];
        known.executing == 0
            || shares && !known.is_exclusive && known.first == NONE
            || planted::is(Bug::InPlaceBesideOthers)
    }

    /// Admits an operation, which may share its slot with others if `shares` says so. Returns
    /// whether it executes now. If not, it has to [wait](Self::wait), or the pipeline stalls
    /// (kv-direct §5.1.3).
    #[inline(always)]
    pub fn admit(&mut self, slot: usize, shares: bool) -> bool {
        let known = &mut self.slots[slot];
        let is_shared = !known.is_exclusive || planted::is(Bug::ReadsBesideWrites);
        let is_full = self.spare == NONE && !self.places.is_empty();
        let executes = known.executing == 0
            || shares && is_shared && known.first == NONE
            || is_full && planted::is(Bug::FullStationExecutes);
        if executes {
            known.executing += 1;
            known.is_exclusive = !shares;
        }
        executes
    }

    /// If the executing operation is the only one of its slot, makes it stop sharing the slot.
    /// Returns whether it has the slot to itself.
    #[inline]
    pub fn claim(&mut self, slot: usize) -> bool {
        let known = &mut self.slots[slot];
        known.is_exclusive |= known.executing == 1;
        known.executing == 1
    }

    /// Chains an operation behind the executing operation of its slot.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn wait(&mut self, slot: usize, job: J) {
        assert!(self.spare != NONE, "whoever admits looks for room first");
        let place = self.spare;
        let there = &mut self.places[usize::from(place)];
        self.spare = there.next;
        *there = Place { job: Some(job), next: NONE };
        let known = &mut self.slots[slot];
        if known.first == NONE {
            known.first = place;
        } else {
            self.places[usize::from(known.last)].next = place;
        }
        known.last = place;
        self.waiting += 1;
    }

    /// Whether an operation waits for the executing operation of a slot.
    #[inline]
    pub fn is_awaited(&self, slot: usize) -> bool {
        self.slots[slot].first != NONE
    }

    /// Takes the first operation in the chain for which `is` says yes, if there is one. If it may
    /// not overtake others, this is the first operation of the chain or none. There is none for an
    /// operation that shares its slot.
    #[inline]
    pub fn next_of_key(
        &mut self,
        slot: usize,
        may_overtake: bool,
        is: impl Fn(&J) -> bool,
    ) -> Option<J> {
        if !self.claim(slot) {
            return None;
        }
        let (mut before, mut at) = (NONE, self.slots[slot].first);
        while at != NONE {
            let Place { job, next } = &self.places[usize::from(at)];
            if job.as_ref().is_some_and(&is) {
                return Some(self.take(slot, before, at));
            }
            if !may_overtake {
                return None;
            }
            (before, at) = (at, *next);
        }
        None
    }

    /// Ends an operation of the slot: if no other executes, the first waiting operation is next.
    #[inline]
    pub fn next(&mut self, slot: usize) -> Option<J> {
        let known = &mut self.slots[slot];
        if known.first == NONE || known.executing > 1 {
            known.executing -= 1;
            return None;
        }
        known.is_exclusive = true;
        let first = known.first;
        Some(self.take(slot, NONE, first))
    }

    /// Takes the operation at `at`, which stands behind `before`, out of a chain.
    #[inline]
    fn take(&mut self, slot: usize, before: u16, at: u16) -> J {
        let place = &mut self.places[usize::from(at)];
        let next = std::mem::replace(&mut place.next, self.spare);
        let job = place.job.take().expect("what is in a chain waits");
        self.spare = at;
        self.waiting -= 1;
        let known = &mut self.slots[slot];
        if known.last == at {
            known.last = before;
        }
        match before {
            NONE => known.first = next,
            before => self.places[usize::from(before)].next = next,
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_share_a_slot_until_something_waits_for_it() {
        let mut station = Station::new(4);
        assert!(station.is_free(3, false) && station.is_free(3, true));
        assert!(station.admit(3, true) && station.admit(3, true) && !station.claim(3));
        assert!(!station.is_free(3, false) && station.is_free(3, true));
        assert!(!station.admit(3, false));
        station.wait(3, "put");
        assert!(!station.admit(3, true) && !station.is_free(3, true), "it would overtake");
        station.wait(3, "get");
        assert_eq!(station.next_of_key(3, true, |_| true), None, "another one executes");
        assert_eq!(station.next(3), None);
        assert_eq!(station.next(3), Some("put"));
        assert!(!station.admit(3, true) && !station.is_free(3, true) && station.admit(4, true));
        assert_eq!((station.next(3), station.next(3)), (Some("get"), None));
        assert!(station.admit(3, true) && station.claim(3) && !station.admit(3, true));
    }

    proptest! {
        /// Compares the station with a plain queue for each slot: operations are (key, number).
        #[test]
        fn no_operation_on_a_key_overtakes_another(
            steps in prop::collection::vec((0usize..3, 0u8..4, 0u8..4), 1..300),
        ) {
            let mut station = Station::new(8);
            let mut model = vec![(None, VecDeque::new()); 3];
            for (number, (slot, step, key)) in steps.into_iter().enumerate() {
                let (executing, queue) = &mut model[slot];
                match step {
                    0 if station.has_room() => {
                        if station.admit(slot, false) {
                            prop_assert!(executing.is_none());
                            *executing = Some((key, number));
                        } else {
                            station.wait(slot, (key, number));
                            queue.push_back((key, number));
                        }
                    }
                    1 | 2 => {
                        let Some((key, _)) = *executing else { continue };
                        let at = queue.iter().position(|(other, _)| *other == key);
                        let at = at.filter(|at| step == 1 || *at == 0);
                        let expected = at.and_then(|at| queue.remove(at));
                        let found =
                            station.next_of_key(slot, step == 1, |(other, _)| *other == key);
                        prop_assert_eq!(found, expected);
                    }
                    _ if executing.is_some() => {
                        *executing = queue.pop_front();
                        prop_assert_eq!(station.next(slot), *executing);
                    }
                    _ => (),
                }
                prop_assert_eq!(station.is_awaited(slot), !model[slot].1.is_empty());
                let waiting = model.iter().map(|(_, queue)| queue.len()).sum::<usize>();
                prop_assert_eq!(station.waiting(), waiting);
                prop_assert_eq!(station.has_room(), waiting < 8);
            }
        }
    }
}
