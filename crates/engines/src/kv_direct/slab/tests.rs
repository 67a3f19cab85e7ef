//! Scenarios of processor and daemon together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use loch_fabric::lanes::block_on;
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::limits::SLAB_BATCH;
use crate::lines::{HostMemory, Line, Near};

/// Turns after which a daemon of these tests has finished all its work.
const TURNS_MAX: usize = 1_000_000;

/// A processor and a daemon, with the slabs in use.
struct Rig {
    memory: Near<Vec<Line>>,
    slabs: Slabs,
    daemon: SlabDaemon,
    /// The class of each used slab, by its first place.
    used: BTreeMap<u32, Class>,
    first: u32,
    end: u32,
}

impl Rig {
    fn new(first: u32, places: u32, largest: u8) -> Self {
        let end = first + places;
        let pools = Pools::new(first..end, Class::new(largest).expect("a class"));
        let (slabs, daemon) = (Slabs::new(pools.clone()), SlabDaemon::new(pools));
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

    /// Allocates as a user that has the patience that the daemon needs.
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

    fn turns(&mut self, turns: u8) {
        for _ in 0..turns {
            self.daemon.turn();
        }
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

    /// Gives all slabs back, and returns to the state of the beginning.
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
    /// Frees one of the used slabs, by its rank.
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

#[test]
fn only_what_changes_the_stacks_is_work_for_the_daemon() {
    let mut rig = Rig::new(1 << 12, 1 << 12, 6);
    let pools = rig.slabs.pools().clone();
    let (mut changes, mut operations) = (0, 0);
    rig.rest();
    for _ in 0..20 * SLAB_BATCH {
        assert!(!pools.are_unseen(), "the daemon has seen all");
        let before = pools.stack(Class::SMALLEST).len();
        rig.allocate(Class::SMALLEST).expect("there is enough");
        let has_changed = pools.stack(Class::SMALLEST).len() != before;
        assert!(pools.are_unseen() || !has_changed, "a change is work");
        (changes, operations) = (changes + u32::from(pools.are_unseen()), operations + 1);
        rig.rest();
    }
    assert!((1..operations / 4).contains(&changes), "{changes} of {operations}");
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
                Step::Turns(turns) => rig.turns(turns),
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
        // From place 64 on: before the first and after the last multiple of a slab there is too
        // little.
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

/// A walk through a worker's memory between two turns of a merge took the slabs that the daemon
/// held for lost. The simulation found it.
#[test]
fn a_daemon_at_rest_holds_no_slabs() {
    let mut rig = Rig::new(1 << 12, 1 << 12, 12);
    while rig.allocate(class(0)).is_some() {}
    rig.used.keys().copied().collect::<Vec<_>>().into_iter().for_each(|place| rig.free(place));
    assert_eq!(rig.allocate_once(class(12)), None, "it asks for a merge");
    // It begins a merge, and takes slabs.
    rig.turns(2);
    let free = |rig: &Rig| rig.slabs.free_slabs().iter().map(|it| it.class().places()).sum::<u32>();
    assert!(free(&rig) < 1 << 12, "the daemon holds some");
    rig.daemon.rest();
    assert_eq!(free(&rig), 1 << 12);
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
        // In the middle of a merge, or between two.
        rig.allocate_once(class(14));
        rig.turns(turns % 12);
        let pools = rig.slabs.pools().clone();
        rig.daemon = SlabDaemon::new(pools.clone());
        rig.slabs = Slabs::new(pools);
    }
    rig.audit();
    rig.start_over();
}

/// The bound on accesses for each allocation and each free (kv-direct §3.3.1: "< 0.1 amortized DMA
/// operations per dynamic memory allocation").
const ACCESSES_MAX: f64 = 0.1;

/// Runs `steps` steps, with a turn of the daemon after each `every` steps. Each step returns how
/// many slabs it allocated or freed. Returns the accesses for each slab.
fn cost(
    rig: &mut Rig,
    steps: usize,
    every: usize,
    mut step: impl FnMut(&mut Rig, usize) -> usize,
) -> f64 {
    let before = rig.accesses();
    let mut slabs = 0;
    for number in 0..steps {
        slabs += step(rig, number);
        if (number + 1).is_multiple_of(every) {
            rig.daemon.turn();
        }
    }
    (rig.accesses() - before) as f64 / slabs as f64
}

/// 16 MiB.
fn large() -> Rig {
    Rig::new(1 << 10, 1 << 19, 22)
}

/// Some slab that is in use.
fn victim(rig: &Rig, rng: &mut impl Rng) -> u32 {
    let from = rng.random_range(rig.first..rig.end);
    let mut behind = rig.used.range(from..).chain(&rig.used);
    *behind.next().expect("something is used").0
}

#[test]
fn replacing_slabs_costs_little() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut rig = large();
    for number in (0..5).cycle().take(50_000) {
        rig.allocate(class(number));
    }
    let replace = |rig: &mut Rig, rng: &mut ChaCha8Rng, number: Option<u8>| {
        let place = victim(rig, rng);
        let old = rig.used[&place];
        rig.free(place);
        let class = number.and_then(Class::new).unwrap_or(old);
        rig.allocate(class).expect("there is memory");
        2
    };
    let same = cost(&mut rig, 200_000, 1000, |rig, _| replace(rig, &mut rng, None));
    assert!(same < ACCESSES_MAX, "{same}");
    let mut sizes = ChaCha8Rng::seed_from_u64(3);
    let any = cost(&mut rig, 200_000, 1000, |rig, _| {
        replace(rig, &mut rng, Some(sizes.random_range(0..5)))
    });
    assert!(any < ACCESSES_MAX, "{any}");
}

/// An adversary that changes direction whenever slabs were exchanged.
#[test]
fn going_to_and_fro_around_a_watermark_costs_little() {
    for number in 0..5 {
        let mut rig = large();
        let mut used = Vec::new();
        used.extend((0..1000).map_while(|_| rig.allocate(class(number))));
        let mut is_freeing = false;
        let cost = cost(&mut rig, 50_000, 1000, |rig, _| {
            let before = rig.accesses();
            match used.pop() {
                Some(place) if is_freeing => rig.free(place.number()),
                last => used.extend(last.into_iter().chain(rig.allocate(class(number)))),
            }
            is_freeing ^= rig.accesses() > before;
            1
        });
        assert!((0.01..ACCESSES_MAX).contains(&cost), "class {number}: {cost}");
    }
}

/// An adversary that stays at one level, at any of them.
#[test]
fn alternating_costs_little_on_every_level() {
    let mut rig = large();
    for _ in 0..600 {
        let place = rig.allocate(class(1)).expect("there is memory");
        let cost = cost(&mut rig, 500, 1000, |rig, _| {
            rig.free(place.number());
            2 * usize::from(rig.allocate(class(1)) == Some(place))
        });
        assert!(cost < ACCESSES_MAX, "{cost}");
    }
}

#[test]
fn bursts_cost_little() {
    for number in 0..5 {
        let mut rig = large();
        let burst = |rig: &mut Rig, slabs: usize| {
            for _ in 0..slabs {
                rig.allocate(class(number)).expect("there is memory");
            }
            rig.used.keys().copied().collect::<Vec<_>>().into_iter().for_each(|at| rig.free(at));
            2 * slabs
        };
        let cost = cost(&mut rig, 10, 1, |rig, _| burst(rig, 20_000));
        assert!(cost < ACCESSES_MAX, "class {number}: {cost}");
    }
}

/// Nearly all memory in slabs of one size, then in slabs of another, up and down.
#[test]
fn shifting_sizes_costs_little() {
    let mut rig = large();
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for number in [0, 4, 0, 2, 3, 1, 4] {
        let mut old: Vec<u32> = rig.used.keys().copied().collect();
        old.shuffle(&mut rng);
        let new = (rig.end - rig.first) as usize / 10 * 9 / class(number).places() as usize;
        let cost = cost(&mut rig, old.len() + new, 1000, |rig, _| {
            match old.pop() {
                Some(place) => rig.free(place),
                None => drop(rig.allocate(class(number)).expect("a tenth is free")),
            }
            1
        });
        assert!(cost < ACCESSES_MAX, "to class {number}: {cost}");
    }
    rig.audit();
}

/// The race that the models of `stack.rs` check, with all the code around it.
#[test]
#[allow(clippy::disallowed_methods, reason = "a race needs another thread")]
fn both_sides_work_at_the_same_time() {
    let mut rig = Rig::new(77, 1 << 16, 16);
    let daemon = SlabDaemon::new(rig.slabs.pools().clone());
    let mut daemon = std::mem::replace(&mut rig.daemon, daemon);
    let is_over = AtomicBool::new(false);
    let turns = std::thread::scope(|scope| {
        let turning = scope.spawn(|| {
            let mut turns = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                turns += u64::from(daemon.turn());
            }
            drop(daemon);
            turns
        });
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for round in 0..200u32 {
            let largest = if round.is_multiple_of(4) { 9 } else { 3 };
            for _ in 0..2000 {
                rig.allocate_once(class(rng.random_range(0..largest)));
            }
            let places: Vec<u32> = rig.used.keys().copied().collect();
            let part = rng.random_range(0.1..1.0);
            places.iter().filter(|_| rng.random_bool(part)).for_each(|place| rig.free(*place));
        }
        is_over.store(true, Ordering::Relaxed);
        turning.join().expect("the daemon does not panic")
    });
    assert!(turns > 0, "it had something to do");
    rig.audit();
    rig.start_over();
}

#[test]
fn without_a_daemon_it_still_costs_little() {
    for number in 0..5 {
        let mut rig = large();
        let slabs = 500_000 >> number;
        let cost = cost(&mut rig, slabs, usize::MAX, |rig, _| {
            usize::from(rig.allocate_once(class(number)).is_some())
        });
        assert_eq!(rig.used.len(), slabs);
        assert!(cost < ACCESSES_MAX, "class {number}: {cost}");
    }
}
