//! A table of kv-direct: its plan, and the places of its parts.
//!
//! The region holds only the table's requests. Each worker's index and slabs are in the memory of
//! the node's process, like the values of a herd table; the table's directory entry describes them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bucket::{INLINE_BYTES_MAX, SLOTS};
use super::client::{self, Client};
use super::item::Format;
use super::storage;
use super::tuning::Corpus;
use crate::engine::{Engine, FunctionConfig, Needs, Place, Plan, Sizes};
use crate::error::LayoutError;
use crate::kv::Kv;
use crate::lines::LINE_BYTES;
use crate::net::{Access, Connect, Net};
use crate::region::{SEED, TABLE_ALIGN_BYTES, TableParams};
use crate::requests::budget::{Budget, PACKET_BYTES_DEFAULT, REQUEST_KEY_BYTES, WINDOW_DEFAULT};
use crate::requests::{Area, RequestMap, Service};
use crate::room::Room;
use crate::size::ByteSize;

/// The engine whose workers are processors with their own memory, and compute on values.
#[derive(Clone, Copy, Debug)]
pub struct KvDirect;

/// The options of a table of kv-direct.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The share of a worker's memory that is its index, between 0 and 1 (kv-direct §3.3.1).
    /// Entries that are longer than `inline_bytes`, or find no room in the index, lie in the rest.
    /// Default 0.5.
    pub index_ratio: Option<f64>,
    /// Keys and values that have up to this many bytes together are in the index: a GET then takes
    /// one access to memory, and a PUT two. 0 to 50; default 24.
    pub inline_bytes: Option<u16>,
    /// Chooses `index_ratio` and `inline_bytes` so that there are as few accesses to memory as
    /// possible.
    pub tuned_for: Option<TunedFor>,
    /// Bytes of every key, which entries and requests then need not store. Default: keys of any
    /// length.
    pub key_bytes: Option<u16>,
    /// Whether values have versions. Without versions no value spends bytes on one, all values have
    /// version 0, and a PUT that expects another version is refused. Default yes.
    pub versions: Option<bool>,
    /// Bytes of packets: of the requests that a client makes of a worker in one WRITE, and of the
    /// results. There is room for the longest value in any case. Default 4 KiB, or as much as fits
    /// an eighth of the table's memory.
    pub packet_bytes: Option<ByteSize>,
    /// Whether a worker executes independent operations in any order, and dependent ones on the
    /// value at hand (kv-direct §3.3.3). Without this, for comparison, an operation waits for
    /// earlier operations on the same key. Default yes.
    pub out_of_order: Option<bool>,
    /// The users' functions, `[[table.functions]]` in TOML. They are compiled when a node starts,
    /// and should be the same on all nodes. Default none.
    pub functions: Vec<FunctionConfig>,
}

/// The expected keys and values of a table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedFor {
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// The share of a worker's memory that keys and values will take, between 0 and 1.
    pub utilisation: f64,
}

/// The share of a worker's memory that is its index, unless the table declares another.
const INDEX_RATIO_DEFAULT: f64 = 0.5;
/// Bytes of a key and its value up to which they are in the index, unless the table declares
/// another number.
const INLINE_BYTES_DEFAULT: u16 = 24;

/// The places of a kv-direct table's requests, and the shape of its workers' memory.
#[derive(Clone, Debug)]
pub struct Map {
    /// The requests.
    pub requests: Arc<RequestMap>,
    /// The memory of each worker.
    pub partition: PartitionShape,
    /// The division of that memory.
    pub plan: storage::Plan,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// The seed with which keys are hashed.
    pub seed: u64,
}

/// The shape of a worker's memory, as it stands in [`TableParams::words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionShape {
    /// Bytes of each worker's memory.
    pub bytes: u64,
    /// The share of it that is the index, in millionths.
    pub index_millionths: u64,
    /// Bytes of a key and its value up to which they are in the index.
    pub inline_bytes: u16,
    /// Bytes of every key, if all keys have the same length.
    pub key_bytes: Option<u16>,
    /// Whether values have versions and can expire.
    pub versions: bool,
    /// Whether operations overtake others on other keys.
    pub out_of_order: bool,
}

const MILLION: f64 = 1e6;
const VERSIONS: u64 = 1;
const OUT_OF_ORDER: u64 = 2;

impl PartitionShape {
    /// The shape of a table in the directory.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if the parameters are not a valid shape.
    pub fn of(params: &TableParams) -> Result<Self, LayoutError> {
        let wrong = || LayoutError::Geometry("a table's partitions cannot be".into());
        Self::of_words(params.words).ok_or_else(wrong)
    }

    /// The shape as a directory entry holds it.
    fn words(self) -> [u64; 6] {
        let flags = [(self.versions, VERSIONS), (self.out_of_order, OUT_OF_ORDER)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        let key_bytes = self.key_bytes.map_or(0, u64::from);
        [self.bytes, self.index_millionths, self.inline_bytes.into(), key_bytes, flags, 0]
    }

    fn of_words(words: [u64; 6]) -> Option<Self> {
        let [bytes, index_millionths, inline_bytes, key_bytes, flags, 0] = words else {
            return None;
        };
        let partition = Self {
            bytes,
            index_millionths,
            inline_bytes: inline_bytes.try_into().ok()?,
            key_bytes: Some(u16::try_from(key_bytes).ok()?).filter(|bytes| *bytes > 0),
            versions: flags & VERSIONS != 0,
            out_of_order: flags & OUT_OF_ORDER != 0,
        };
        (partition.words() == words).then_some(partition)
    }

    /// The share of the memory that is the index, as the directory keeps it.
    fn millionths(ratio: f64) -> u64 {
        (ratio * MILLION).round() as u64
    }

    /// The places of all parts in a worker's memory.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`], which names valid values.
    fn plan(self, value_bytes_max: u64) -> Result<storage::Plan, LayoutError> {
        storage::Plan::new(&storage::Options {
            bytes: self.bytes,
            index_ratio: self.index_millionths as f64 / MILLION,
            inline_bytes_max: self.inline_bytes,
            versions: self.versions,
            value_bytes_max,
            key_bytes: self.key_bytes,
        })
    }

    /// The declared shape for a worker's memory of this many bytes.
    fn declared(options: &Options, bytes: u64) -> Result<Self, LayoutError> {
        let wrong = |text: String| Err(LayoutError::Geometry(text));
        let Options { index_ratio, inline_bytes, key_bytes, tuned_for, .. } = *options;
        let versions = options.versions.unwrap_or(true);
        if key_bytes == Some(0) {
            return wrong("key_bytes is 0: a key has at least one byte".into());
        }
        let (ratio, inline) = match tuned_for {
            None => (INDEX_RATIO_DEFAULT, INLINE_BYTES_DEFAULT),
            Some(_) if index_ratio.is_some() || inline_bytes.is_some() => {
                return wrong(
                    "tuned_for chooses index_ratio and inline_bytes: say either it, or those"
                        .into(),
                );
            }
            Some(wanted) => tuned(Format { key_bytes, versions }, wanted)?,
        };
        let ratio = index_ratio.unwrap_or(ratio);
        if !(ratio > 0.0 && ratio <= 1.0) {
            return wrong(format!("index_ratio is {ratio}, it is above 0 and up to 1"));
        }
        let inline_bytes = inline_bytes.unwrap_or(inline);
        if usize::from(inline_bytes) > INLINE_BYTES_MAX {
            return wrong(format!(
                "inline_bytes is {inline_bytes}, it may be 0 to {INLINE_BYTES_MAX}"
            ));
        }
        let index_millionths = Self::millionths(ratio);
        let out_of_order = options.out_of_order.unwrap_or(true);
        Ok(Self { bytes, index_millionths, inline_bytes, key_bytes, versions, out_of_order })
    }
}

/// The best share of a worker's memory for its index, and the best inline threshold.
fn tuned(format: Format, wanted: TunedFor) -> Result<(f64, u16), LayoutError> {
    let TunedFor { key_bytes, value_bytes, utilisation } = wanted;
    let bytes = |bytes: u64| bytes.try_into().unwrap_or(usize::MAX);
    let (key, value) = (bytes(key_bytes), bytes(value_bytes));
    if let Some(fixed) = format.key_bytes.filter(|fixed| u64::from(*fixed) != key_bytes) {
        let text = format!("key_bytes is {fixed}, and it is tuned_for keys of {key_bytes} bytes");
        return Err(LayoutError::Geometry(text));
    }
    let tuned = Corpus::of_one_size(format, key, value, utilisation).tune();
    let tuned = tuned.map_err(|e| LayoutError::Geometry(format!("tuned_for: {e}")))?;
    Ok((tuned.index_ratio, tuned.inline_bytes_max))
}

/// The bytes of a packet: the declared number, or a share of the memory.
fn packet_bytes(options: &Options, share: u64, item_max: u64) -> Result<u32, LayoutError> {
    let chosen = options.packet_bytes.map(ByteSize::bytes);
    let bytes = chosen.unwrap_or_else(|| PACKET_BYTES_DEFAULT.min(share).max(item_max));
    u32::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| {
        LayoutError::Geometry(format!("packet_bytes is {bytes}, it may be 1 to {}", u32::MAX))
    })
}

impl Engine for KvDirect {
    const ID: u32 = 6;
    const NAMES: &'static [&'static str] = &["kv-direct"];
    const NEEDS: Needs = Needs {
        workers: true,
        sessions: true,
        private_memory: true,
        session_to_read: true,
        requests_only: true,
        computes: true,
        ..Needs::NOTHING
    };
    type Options = Options;
    type Map = Map;

    fn functions(options: &Options) -> &[FunctionConfig] {
        &options.functions
    }

    fn plan(options: &Options, room: &Room) -> Result<Plan, LayoutError> {
        let (budget, workers) = (Budget::new(room), u64::from(room.workers));
        let bare = budget.service(4 * WINDOW_DEFAULT);
        let (requests, replies) = (budget.request_slots(), budget.reply_slots(&bare));
        let value_bytes_max = budget.value_max(requests, replies)?;
        let item_max = REQUEST_KEY_BYTES + value_bytes_max;
        let packet_bytes = packet_bytes(options, budget.slot_bytes(requests + replies), item_max)?;
        let Service { workers: of_node, window, sessions_per_node, replies, .. } = bare;
        let service = super::service(of_node, window, sessions_per_node, packet_bytes, item_max)?;
        let area = Area::new(Service { replies, ..service }, room.nodes)?;
        let left = budget.left(area.bytes().next_multiple_of(TABLE_ALIGN_BYTES))?;
        let bytes = (left / workers).min(storage::Plan::BYTES_MAX);
        let partition = PartitionShape::declared(options, bytes)?;
        partition.plan(value_bytes_max)?;
        let params = TableParams {
            nodes: room.nodes,
            value_bytes_max,
            seed: SEED,
            service: *area.service(),
            words: partition.words(),
            ..TableParams::default()
        };
        Ok(Plan { params, bytes: area.bytes(), private_bytes: bytes * workers })
    }

    fn map(params: &TableParams, places: &[Place]) -> Result<Map, LayoutError> {
        let Service { workers, window, sessions_per_node, request_bytes, reply_bytes, .. } =
            params.service;
        let item_max = params.value_bytes_max.saturating_add(1);
        let least = super::service(workers, window, sessions_per_node, 0, item_max)?;
        if request_bytes < least.request_bytes || reply_bytes < least.reply_bytes {
            let text = "a table's slots have no room for an operation on its longest value";
            return Err(LayoutError::Geometry(text.into()));
        }
        let area = Area::new(params.service, params.nodes)?;
        let bases = places.iter().map(|(at, _)| *at).collect();
        let (partition, requests) =
            (PartitionShape::of(params)?, Arc::new(RequestMap::new(area, bases)));
        let TableParams { value_bytes_max, seed, .. } = *params;
        Ok(Map {
            requests,
            partition,
            plan: partition.plan(value_bytes_max)?,
            value_bytes_max,
            seed,
        })
    }

    fn bytes(map: &Map) -> u64 {
        map.requests.area().bytes()
    }

    fn requests(map: &Map) -> Option<&Arc<RequestMap>> {
        Some(&map.requests)
    }

    type Client<N: Net> = Client<N::Waiting>;

    fn client<N: Net, C: Connect<N>>(
        table: &Map,
        access: Access,
        connect: C,
    ) -> Result<Client<N::Waiting>, C::Error> {
        let Access { session, node, timing, batch, .. } = access;
        let fabric = connect.waiting(None)?;
        let &Map { ref requests, seed, value_bytes_max, partition, .. } = table;
        let key_bytes = partition.key_bytes;
        let map = requests.clone();
        let access = client::Access { map, seed, value_bytes_max, key_bytes, batch };
        Ok(Client::new(fabric, access, &session, node, timing))
    }

    fn direct<N: Net>(client: &Client<N::Waiting>) -> &N::Direct {
        N::direct(client.fabric())
    }

    fn facts(params: &TableParams) -> Vec<(&'static str, String)> {
        let Ok(partition) = PartitionShape::of(params) else { return Vec::new() };
        let PartitionShape { bytes, inline_bytes, versions, out_of_order, .. } = partition;
        vec![
            ("bytes of a worker", bytes.to_string()),
            ("index_ratio", (partition.index_millionths as f64 / MILLION).to_string()),
            ("inline_bytes", inline_bytes.to_string()),
            ("key_bytes", partition.key_bytes.map_or("any".into(), |bytes| bytes.to_string())),
            ("versions", versions.to_string()),
            ("out_of_order", out_of_order.to_string()),
        ]
    }

    fn sizes(map: &Map) -> Sizes {
        let area = map.requests.area();
        let workers = u64::from(area.service().workers) * u64::from(area.nodes());
        let buckets = u64::from(map.plan.buckets());
        let index = buckets * LINE_BYTES as u64;
        Sizes {
            index_slots: buckets * SLOTS as u64 * workers,
            index_bytes: index * workers,
            data_bytes: map.partition.bytes.saturating_sub(index) * workers,
            ..Sizes::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_entry_says_survives_the_trip() {
        let partition = PartitionShape {
            bytes: 1 << 20,
            index_millionths: PartitionShape::millionths(0.37),
            inline_bytes: 24,
            key_bytes: Some(8),
            versions: true,
            out_of_order: false,
        };
        for partition in [
            partition,
            PartitionShape { versions: false, out_of_order: true, key_bytes: None, ..partition },
        ] {
            assert_eq!(PartitionShape::of_words(partition.words()), Some(partition));
        }
        let params = TableParams { words: partition.words(), ..TableParams::default() };
        assert_eq!(KvDirect::facts(&params)[1], ("index_ratio", "0.37".into()));
        for wrong in [[1, 1, 1 << 16, 0, 0, 0], [1, 1, 1, 0, 4, 0], [1, 1, 1, 0, 0, 1]] {
            assert_eq!(PartitionShape::of_words(wrong), None);
        }
    }
}
