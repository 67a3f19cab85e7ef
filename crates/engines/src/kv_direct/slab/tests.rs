//! Scenarios of both sides together.

use std::collections::BTreeMap;
use std::sync::Arc;

use loch_fabric::lanes::block_on;
use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::kv_direct::memory::{HostMemory, Line, Near};

/// Turns after which a daemon of these tests has done all there is to do.
const TURNS_MAX: usize = 1_000_000;

/// A processor and a daemon, and what is in use.
struct Rig {
    memory: Near<Vec<Line>>,
    slabs: Slabs,
    daemon: Daemon,
    /// By first place: the class.
    used: BTreeMap<u32, Class>,
    first: u32,
    end: u32,
}

impl Rig {
    fn new(first: u32, places: u32, largest: u8) -> Self {
        let end = first + places;
        let pools = Pools::new(first..end, Class::new(largest).expect("a class"));
        let (slabs, daemon) = (Slabs::new(pools.clone()), Daemon::new(pools));
        Self { memory: Near::new(Vec::new()), slabs, daemon, used: BTreeMap::new(), first, end }
    }

    fn allocate_once(&mut self, class: Class) -> Option<Place> {
        let place = block_on(self.slabs.allocate(&self.memory, class))?;
        let (start, end) = (place.number(), place.number() + class.places());
        assert!(self.first <= start && end <= self.end, "{place:?} is not ours");
        assert!(start.is_multiple_of(class.places()), "{place:?} is no place for {class:?}");
        let before = self.used.range(..end).next_back();
        assert!(before.is_none_or(|(start_of, class)| start_of + class.places() <= start));
        self.used.insert(start, class);
        Some(place)
    }

    /// As a user does who has the patience that the daemon needs.
    fn allocate(&mut self, class: Class) -> Option<Place> {
        for _ in 0..3 {
            if let Some(place) = self.allocate_once(class) {
                return Some(place);
            }
            if !self.slabs.starving() {
                return None;
            }
            self.rest();
        }
        panic!("asked and answered, and still no answer");
    }

    fn free(&mut self, place: u32) {
        let class = self.used.remove(&place).expect("it is used");
        let place = Place::new(place).expect("not 0");
        block_on(self.slabs.free(&self.memory, place, class));
    }

    fn rest(&mut self) {
        assert!((0..TURNS_MAX).any(|_| !self.daemon.turn()), "the daemon does not come to rest");
    }

    /// Every place is used or free, and not both.
    fn audit(&mut self) {
        self.rest();
        let mut all: Vec<(u32, u32)> =
            self.slabs.free_slabs().iter().map(|slab| (slab.start(), slab.end())).collect();
        all.extend(self.used.iter().map(|(start, class)| (*start, start + class.places())));
        all.sort_unstable();
        let mut at = self.first;
        for (start, end) in all {
            assert_eq!(start, at, "lost or found twice");
            at = end;
        }
        assert_eq!(at, self.end);
    }

    /// Gives everything back, and takes it as it was in the beginning.
    fn start_over(&mut self) {
        for place in self.used.keys().copied().collect::<Vec<_>>() {
            self.free(place);
        }
        self.audit();
        let mut slabs: Vec<Slab> =
            merge::cover(self.first..self.end, self.slabs.pools().largest()).collect();
        slabs.sort_unstable_by_key(|slab| std::cmp::Reverse(slab.class()));
        for slab in slabs {
            assert!(self.allocate(slab.class()).is_some(), "{slab:?} was there once");
        }
        assert_eq!(self.allocate(Class::SMALLEST), None, "that is all");
    }

    fn accesses(&self) -> u64 {
        self.memory.counts().slabs.all()
    }
}

fn class(number: u8) -> Class {
    Class::new(number).expect("a class")
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u8),
    /// One of those that are used, by its rank.
    Free(usize),
    Turns(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..=10).prop_map(Step::Allocate),
        4 => any::<usize>().prop_map(Step::Free),
        1 => any::<u8>().prop_map(Step::Turns),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_overlaps_and_nothing_is_lost(
        first in 1u32..3000,
        places in 1u32..20_000,
        largest in 0u8..=14,
        steps in proptest::collection::vec(step(), 0..2000),
    ) {
        let mut rig = Rig::new(first, places, largest);
        for step in steps {
            match step {
                Step::Allocate(number) => drop(rig.allocate_once(class(number))),
                Step::Free(rank) if !rig.used.is_empty() => {
                    let place = *rig.used.keys().nth(rank % rig.used.len()).expect("of so many");
                    rig.free(place);
                }
                Step::Free(_) => {}
                Step::Turns(turns) => (0..turns).for_each(|_| drop(rig.daemon.turn())),
            }
        }
        rig.audit();
        rig.start_over();
    }
}

#[test]
fn all_memory_can_be_used_as_slabs_of_any_size() {
    for number in 0..=12 {
        let mut rig = Rig::new(64, 1 << 14, 14);
        let mut count = 0;
        while rig.allocate(class(number)).is_some() {
            count += 1;
        }
        // From place 64 on: up to the first and from the last multiple of a slab there is too little.
        let whole = merge::cover(64..(1 << 14) + 64, class(number));
        assert_eq!(count, whole.filter(|slab| slab.class() == class(number)).count());
        rig.audit();
        rig.start_over();
    }
}

#[test]
fn a_processor_without_a_daemon_helps_itself() {
    let mut rig = Rig::new(1, 1 << 16, 16);
    let mut count = 0;
    while rig.allocate_once(class(0)).is_some() {
        count += 1;
    }
    assert_eq!(count, 1 << 16, "every place");
}

#[test]
fn what_is_free_in_pieces_is_merged_for_whoever_asks() {
    let mut rig = Rig::new(1 << 12, 1 << 12, 12);
    while rig.allocate(class(0)).is_some() {}
    // All but one place of each KiB, then the last ones of the first half.
    let places: Vec<u32> = rig.used.keys().copied().collect();
    places.iter().filter(|place| **place % 32 != 7).for_each(|place| rig.free(*place));
    assert_eq!(rig.allocate(class(5)), None, "no KiB is free");
    assert!(!rig.slabs.starving());
    let before = rig.accesses();
    assert_eq!((rig.allocate(class(5)), rig.allocate(class(6))), (None, None));
    assert_eq!(rig.accesses(), before, "which is known");
    assert!(rig.allocate(class(4)).is_some(), "512 bytes are");
    places.iter().filter(|place| **place % 32 == 7 && **place < 6000).for_each(|at| rig.free(*at));
    assert!(rig.allocate(class(9)).is_some(), "asked for again, since something was freed");
    rig.audit();
    rig.start_over();
}

#[test]
fn whoever_is_dropped_hands_back_what_it_had() {
    let mut rig = Rig::new(1, 40_000, 14);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for turns in 0..60 {
        for _ in 0..500 {
            rig.allocate_once(class(rng.random_range(0..3)));
        }
        let places: Vec<u32> = rig.used.keys().copied().collect();
        places.iter().filter(|_| rng.random_bool(0.4)).for_each(|place| rig.free(*place));
        // Somewhere in a merge, or between two.
        rig.allocate_once(class(14));
        (0..turns % 12).for_each(|_| drop(rig.daemon.turn()));
        let pools = rig.slabs.pools().clone();
        rig.daemon = Daemon::new(pools.clone());
        rig.slabs = Slabs::new(pools);
    }
    rig.audit();
    rig.start_over();
}

/// Accesses per allocation or free of `steps`; the daemon has a turn after every `every` of them.
fn cost(rig: &mut Rig, every: usize, steps: usize, mut step: impl FnMut(&mut Rig, usize)) -> f64 {
    let before = rig.accesses();
    for number in 0..steps {
        step(rig, number);
        if number % every == 0 {
            rig.daemon.turn();
        }
    }
    (rig.accesses() - before) as f64 / steps as f64
}
