//! Workloads that do the work of others: in another table, in place, or from fewer hosts.

use loch_engines::limits::DATA_TABLE_BYTES_MAX;
use loch_fabric::sim::Profile;
use rand::{Rng, RngExt};

use super::{Lives, Setting, Workload, sometimes};

/// Values that expire, by clocks that differ.
pub fn expiry(usual: Setting, random: &mut impl Rng) -> Setting {
    let mut setting = usual;
    setting.expires = random.random_range(0.2..0.9);
    // It is not drawn, so that the rest of the setting stays as it was before there were TOUCHes.
    setting.touches = setting.expires > 0.4;
    setting.keys = random.random_range(2..=6);
    setting.deletes = 1;
    setting.faults.wall_skew_ms = random.random_range(0..=2);
    setting.lives = Some(Lives { long: 1, ops_max: 20 });
    setting
}

/// The work of another workload in a table with the addresses of the largest one: entries begin at
/// multiples of 128 bytes and more.
pub fn coarse(random: &mut impl Rng) -> Setting {
    let others = [Workload::Hot, Workload::Full, Workload::Reuse, Workload::Long];
    let mut setting = others[random.random_range(0..others.len())].usual(random);
    setting.table.addresses_of = Some(DATA_TABLE_BYTES_MAX);
    setting
}

/// Values that are read in place beside the work of another workload, where memory is near.
pub fn pins(random: &mut impl Rng) -> Setting {
    use Workload::{Expiry, HeldUp, Hot, Long, Moves, Reuse, Scarce, Wraps};
    let others = [Hot, Reuse, Long, Moves, Scarce, Wraps, HeldUp, Expiry];
    let mut setting = others[random.random_range(0..others.len())].setting(random);
    setting.profile = Profile { retry_ns: setting.profile.retry_ns, ..Profile::ONE_HOST };
    setting.table.options.checksums = false;
    setting.pins = random.random_range(0.1..0.6);
    if random.random_bool(0.3) {
        // Freed entries are used at once, by stores that are late.
        setting.quarantine = 0;
        (setting.faults.slow_stores, setting.faults.store_ns) = (0.5, 20_000);
    }
    setting
}

/// The work of another workload in a table that evicts: memory or the index is often short.
pub fn cache(random: &mut impl Rng) -> Setting {
    use Workload::{Expiry, Full, HeldUp, Hot, Moves, Reuse, Scarce, Wraps};
    let others = [Scarce, Scarce, Wraps, HeldUp, Full, Reuse, Moves, Expiry, Hot];
    let mut setting = others[random.random_range(0..others.len())].setting(random);
    setting.table.options.evicts = true;
    setting.table.bucket_slots = if setting.table.bucket_slots == 1 { 1 } else { 3 };
    if random.random_bool(0.3) && setting.profile.one_host {
        setting.pins = random.random_range(0.1..0.3);
    }
    setting
}

/// Scans beside the work of another workload, and keys that stay while they are moved.
pub fn scans(random: &mut impl Rng) -> Setting {
    use Workload::{Full, Hot, Moves, Reuse, Wraps};
    let others = [Moves, Moves, Moves, Full, Hot, Reuse, Wraps];
    let mut setting = others[random.random_range(0..others.len())].setting(random);
    setting.scans = random.random_range(0.05..0.3);
    setting.stays = random.random_range(1..=4);
    setting.crowd = setting.crowd.saturating_sub(setting.stays);
    if setting.moves == 0.0 && random.random() {
        setting.moves = random.random_range(0.1..0.6);
    }
    setting
}

/// The work of another workload by clients that live as long as the run, and drop many futures.
pub fn dropped(random: &mut impl Rng) -> Setting {
    use Workload::{Batches, Cache, FarBatches, HeldUp, Moves, Pins, Reuse, Scarce, Wraps};
    let others =
        [Scarce, Scarce, Cache, Cache, Reuse, HeldUp, Wraps, Batches, FarBatches, Moves, Pins];
    let mut setting = others[random.random_range(0..others.len())].setting(random);
    setting.cancels = random.random_range(0.1..0.7);
    (setting.rests, setting.lives) = (true, None);
    (setting.kill_every_us, setting.cut_every_us, setting.crash_every_us) = (0, 0, 0);
    (setting.faults.deaths, setting.faults.pauses, setting.faults.stops) = (0.0, 0.0, 0.0);
    setting
}

/// The work of another workload by several clients of few hosts, which share connections. Clients
/// die more often than elsewhere, and what they have under way is held up for as long as the node
/// takes to fence them.
pub fn hosts(random: &mut impl Rng) -> Setting {
    use Workload::{Expiry, Full, HeldUp, Hot, Long, Moves, Reuse, Scarce, Wraps};
    let others = [Hot, Full, Reuse, Long, Moves, Scarce, Wraps, HeldUp, Expiry];
    let mut setting = others[random.random_range(0..others.len())].setting(random);
    if setting.profile.one_host {
        setting.profile = Profile { retry_ns: setting.profile.retry_ns, ..Profile::CONNECTX_3_56 };
        let options = &mut setting.table.options;
        (options.cache, options.batched_reads, options.checksums) = (None, None, true);
    }
    setting.shared_misuse_every_us = Some(sometimes(random, 0.5, 400));
    if random.random() {
        setting.kill_every_us = 100 + random.random_range(0..300u64);
    }
    let faults = &mut setting.faults;
    if random.random() {
        faults.delays = random.random_range(0.02..0.4);
        faults.delay_ns = [5_000, 30_000, 300_000][random.random_range(0..3usize)];
    }
    setting
}
