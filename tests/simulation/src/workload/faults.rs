//! The faults of a run.

use loch_fabric::sim::Faults;
use rand::{Rng, RngExt};

use super::SWITCHED_ON;

/// Faults of all kinds, of which about half are switched on.
pub(super) fn any(random: &mut impl Rng) -> Faults {
    let delay_ns = [1_000, 5_000, 30_000][random.random_range(0..3usize)];
    let mut rate = |most: f64| {
        if random.random_bool(SWITCHED_ON) { random.random_range(0.0..most) } else { 0.0 }
    };
    Faults {
        torn: rate(1.0),
        tear_ns: 4_000,
        delays: rate(0.5),
        delay_ns,
        slow_stores: rate(0.7),
        store_ns: 2_000,
        atomic_window_ns: 300,
        deaths: rate(0.01),
        pauses: rate(0.01),
        pause_ns: 2_000_000,
        ..Faults::default()
    }
}
