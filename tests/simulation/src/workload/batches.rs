//! Batches beside the work of other workloads.

use loch_fabric::sim::Profile;
use rand::{Rng, RngExt};

use super::{SHORT, Setting, Workload, sometimes};

/// Batches beside the work of another workload, where memory is near.
pub fn near(random: &mut impl Rng) -> Setting {
    use Workload::{Expiry, Full, HeldUp, Hot, Moves, Reuse, Scarce, Wraps};
    let others = [Hot, Full, Reuse, Moves, Scarce, Wraps, HeldUp, Expiry];
    let mut setting = others[random.random_range(0..others.len())].setting(random);
    setting.profile = Profile { retry_ns: setting.profile.retry_ns, ..Profile::ONE_HOST };
    let options = &mut setting.table.options;
    options.checksums = false;
    with_batches(&mut setting, random);
    // The single operations beside the batches, and what batches leave to the general path.
    let options = &mut setting.table.options;
    options.cache = Some(random.random_bool(0.25));
    options.batched_reads = Some(random.random_bool(0.25));
    setting
}

/// Batches beside the work of another workload, over a network.
pub fn far(random: &mut impl Rng) -> Setting {
    use Workload::{Coarse, Expiry, Full, HeldUp, Hot, Moves, Reuse, Scarce, Wraps};
    let others = [Hot, Reuse, Moves, Expiry, Full, Scarce, Wraps, HeldUp, Coarse];
    let other = random.random_range(0..others.len());
    let mut setting = others[other].setting(random);
    setting.profile = Profile { retry_ns: setting.profile.retry_ns, ..Profile::CONNECTX_3_56 };
    let table = &mut setting.table;
    // The first ones have as much room as they like.
    if other < 4 {
        table.nodes = table.nodes.max(2);
    }
    table.options.checksums = true;
    table.options.cache = [None, Some(true), Some(false)][random.random_range(0..3usize)];
    with_batches(&mut setting, random);
    if random.random_bool(0.3) {
        // Connections break while many CASes are under way.
        setting.cut_every_us = sometimes(random, 1.0, 500);
    }
    setting
}

/// Makes a part of the work batches, in some runs with answers that are held up for as long as a
/// generation takes to start over.
fn with_batches(setting: &mut Setting, random: &mut impl Rng) {
    setting.batches = random.random_range(0.2..0.8);
    setting.keys = setting.keys.max(3);
    if random.random_bool(0.3) {
        setting.table.gen_bits = Some(random.random_range(1..=2));
        (setting.quarantine, setting.value_bytes) = (0, SHORT);
        let faults = &mut setting.faults;
        (faults.delays, faults.delay_ns) = (random.random_range(0.02..0.2), 100_000);
    }
}
