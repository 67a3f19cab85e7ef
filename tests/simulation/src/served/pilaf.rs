//! Pilaf, with a log whose disk loses bytes that were not synced, fails, and refuses to write
//! appended bytes when no process is left to learn of it.

use std::rc::Rc;

use loch_engines::log::{DiskFaults, Logging, MemoryStorage, Policy};
use loch_engines::pilaf;
use loch_engines::region::TableParams;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::design::{Design, Hostile};
use super::setting::Setting;

const ARENA_BYTES: u64 = 64 << 10;
/// There are so few slots that inserts move other keys.
const INDEX_SLOTS: u64 = 4;
/// The most syncs that succeed in a server's life, if the disk fails.
const SYNCS_MAX: u64 = 100;

/// A table of pilaf, with a log on each node.
struct Pilaf {
    setting: Setting,
    disks: Vec<MemoryStorage>,
    disks_fail: bool,
    /// Whether hosts lose their power.
    loses_power: bool,
}

/// A few keys; or exactly as many as the first index has slots, so that inserts move other keys; or
/// more than that, so that the index grows in every life of a server and its old memory is used for
/// values.
pub fn draw(random: &mut ChaCha8Rng) -> Rc<dyn Design> {
    let mut setting = Setting::draw(random, true).of(pilaf::Options::default());
    setting.table.workers = Some(1);
    let kind = random.random_range(0..3);
    if kind > 0 {
        setting.nodes = 1;
        setting.keys = if kind == 1 { INDEX_SLOTS } else { random.random_range(5..=9) };
        setting.churns = true;
        setting.ops = 60;
    }
    // No requests are too long to be SENT, or some, or all: only greetings are short enough.
    setting.message_bytes_max = [4096, 120, 40][random.random_range(0..3)];
    let disks = (0..setting.nodes).map(|_| {
        let (disk, sync_looks) = (MemoryStorage::default(), random.random_range(0..4));
        disk.set_faults(DiskFaults { sync_looks, ..DiskFaults::default() });
        disk
    });
    let disks = disks.collect();
    let (disks_fail, loses_power) = (random.random(), random.random());
    Rc::new(Pilaf { setting, disks, disks_fail, loses_power })
}

impl Pilaf {
    /// The faults of a node's disk, and of the host, between two lives of its server.
    fn strike(&self, disk: &MemoryStorage, random: &dyn Fn() -> u64) {
        disk.kill();
        if !self.disks_fail {
            if self.loses_power {
                disk.lose_power(random);
            }
            return;
        }
        match random() % 3 {
            0 if self.loses_power => disk.lose_power(random),
            1 => disk.refuse_writes(),
            _ => (),
        }
        let (sync_looks, syncs) = (random() as u32 % 4, random() % SYNCS_MAX);
        disk.set_faults(DiskFaults {
            sync_looks,
            syncs_left: Some(syncs),
            ..DiskFaults::default()
        });
    }
}

impl Design for Pilaf {
    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn shrink(&self, params: &mut TableParams) {
        params.words = [ARENA_BYTES, INDEX_SLOTS, 0, 0, 0, 0];
        params.service.replies = self.setting.replies;
    }

    fn hostile(&self) -> Option<Hostile> {
        Some(Hostile::Forger)
    }

    fn log(&self, node: u16, random: &dyn Fn() -> u64) -> Option<Logging<MemoryStorage>> {
        let disk = &self.disks[usize::from(node)];
        self.strike(disk, random);
        let policy = Policy { sync: true, segment_bytes: 2_000, ..Policy::default() };
        Some(Logging { storage: disk.clone(), table: 1, policy, compact_bytes: 3_000 })
    }

    fn disks_fail(&self) -> bool {
        self.disks_fail
    }

    fn told(&self) -> String {
        format!("disks fail: {}, hosts lose power: {}", self.disks_fail, self.loses_power)
    }
}
