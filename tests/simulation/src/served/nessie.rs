//! nessie-server and nessie-hybrid: so few slots that inserts move other keys, and so few chunks
//! that memory is used again.

use std::rc::Rc;

use loch::ByteSize;
use loch_engines::nessie::geometry::Geometry;
use loch_engines::nessie::options::LayoutOptions;
use loch_engines::region::{Service, TableParams};
use loch_engines::registry::Options;
use loch_engines::serve::Tuning;
use loch_engines::{nessie_hybrid, nessie_server};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::design::{Design, Hostile};
use super::setting::Setting;
use crate::workload::SCARCE;

/// How long a worker's nessie client goes on with an operation.
const OPERATION_US: u64 = 20_000;

struct Nessie {
    setting: Setting,
    buckets: u32,
    chunks: u64,
}

/// A table whose clients make a request for every operation.
pub fn server(random: &mut ChaCha8Rng, is_scarce: bool) -> Rc<dyn Design> {
    draw(random, is_scarce, |layout, _| nessie_server::Options { layout }.into())
}

/// A table whose clients do GETs by themselves and make requests for the rest.
pub fn hybrid(random: &mut ChaCha8Rng, is_scarce: bool) -> Rc<dyn Design> {
    draw(random, is_scarce, |layout, random| {
        let cache = [None, Some(true), Some(false)][random.random_range(0..3)];
        nessie_hybrid::Options { layout, cache, plus: true }.into()
    })
}

fn draw(
    random: &mut ChaCha8Rng,
    is_scarce: bool,
    options: impl FnOnce(LayoutOptions, &mut ChaCha8Rng) -> Options,
) -> Rc<dyn Design> {
    let mut setting = Setting::draw(random, false);
    let (filter_bits, multi_read) = (random.random(), random.random());
    let layout =
        LayoutOptions { bucket_slots: Some(2), filter_bits, multi_read, ..Default::default() };
    setting = setting.of(options(layout, random));
    if !is_scarce {
        return Rc::new(Nessie { setting, buckets: 4, chunks: 40 });
    }
    // All values together would fill 70 to 110 % of the memory.
    let (value_bytes, slab_entries) = SCARCE[random.random_range(0..SCARCE.len())];
    setting.nodes = random.random_range(1..=2);
    let chunks = random.random_range(2..=4);
    let room = (u64::from(setting.nodes) * chunks * slab_entries) as f64;
    setting.keys = ((room * random.random_range(0.7..1.1)) as u64).max(2);
    (setting.value_bytes, setting.numbers_from, setting.churns) = (value_bytes, u64::MAX, true);
    setting.lanes = random.random_range(1..=6);
    setting.ops = 60;
    setting.table.value_max = value_bytes.iter().max().map(|len| ByteSize::new(*len as u64));
    Rc::new(Nessie { setting, buckets: 64, chunks })
}

impl Design for Nessie {
    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn shrink(&self, params: &mut TableParams) {
        let geometry = Geometry {
            shards_per_node: 1,
            buckets_per_shard: self.buckets,
            chunks: self.chunks,
            ..Geometry::of(params)
        };
        *params = geometry.params(Service { replies: self.setting.replies, ..params.service });
    }

    fn tuning(&self) -> Tuning {
        Tuning { lanes: 4, operation_us: OPERATION_US, ..Tuning::default() }
    }

    fn hostile(&self) -> Option<Hostile> {
        Some(Hostile::Liar)
    }
}
