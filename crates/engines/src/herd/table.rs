//! A table of herd: its plan, and the places of its parts.

use loch_fabric::Messages;
use serde::{Deserialize, Serialize};

use super::storage::{self, Mode};
use super::{Client, Way};
use crate::engine::{Engine, Needs, Place, Plan, Sizes};
use crate::error::LayoutError;
use crate::kv::{Kv, Lengths};
use crate::limits::{HERD_ITEM_BYTES_MAX, HERD_SLOT_BYTES, REPLIES_MAX};
use crate::net::{Access, Connect, Net};
use crate::region::{SEED, TABLE_ALIGN_BYTES, TableParams};
use crate::requests::budget::Budget;
use crate::requests::mailboxes::{Mailboxes, MailedRequests};
use crate::requests::{BySend, ByUnreliableWrite, Service};
use crate::room::Room;

/// The engine whose workers answer from their own memory.
#[derive(Clone, Copy, Debug)]
pub struct Herd;

/// The options of a table of herd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of its index on each node. Default: one slot for every 64 bytes of the table's memory
    /// in a cache, and for every 112 bytes in a store, but no more than a worker can have entries.
    pub index_slots: Option<u64>,
    /// Its behaviour when it is full. Default `cache`.
    pub mode: Option<Mode>,
    /// The way in which requests reach its workers. Default `write`.
    pub requests: Option<RequestWay>,
}

/// The way in which the requests of a table of herd reach its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestWay {
    /// By WRITE, into slots that the workers poll.
    Write,
    /// By SEND: for more clients than a card has room for connections (herd §5.5).
    Send,
}

/// Bytes of a partition for each slot of its index, by mode, unless the declaration sizes the
/// index. A cache loses entries for which its index has no place.
const BYTES_PER_CACHE_SLOT: u64 = 64;
const BYTES_PER_STORE_SLOT: u64 = 112;

/// The places of a herd table's parts, and the shape of its workers' memory.
#[derive(Clone, Debug)]
pub struct Map {
    /// The requests and the mailboxes.
    pub mailed: MailedRequests,
    /// The memory of each worker.
    pub partition: PartitionShape,
    /// The seed with which keys are hashed.
    pub seed: u64,
    /// The lengths of its keys and values.
    pub lengths: Lengths,
}

/// The shape of each worker's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionShape {
    /// The behaviour when the partition is full.
    pub mode: Mode,
    /// Bytes of the memory.
    pub bytes: u64,
    /// Slots of the index.
    pub index_slots: u64,
}

const CACHE: u64 = 1;
const STORE: u64 = 2;

impl PartitionShape {
    /// The division of the memory.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if that does not fit.
    pub fn plan(self) -> Result<storage::Plan, LayoutError> {
        storage::Plan::new(self.mode, self.bytes, self.index_slots)
    }

    fn words(self) -> [u64; 6] {
        let mode = match self.mode {
            Mode::Cache => CACHE,
            Mode::Store => STORE,
        };
        [mode, self.bytes, self.index_slots, 0, 0, 0]
    }

    fn of(params: &TableParams) -> Result<Self, LayoutError> {
        let partition = match params.words {
            [CACHE, bytes, index_slots, 0, 0, 0] => Self { mode: Mode::Cache, bytes, index_slots },
            [STORE, bytes, index_slots, 0, 0, 0] => Self { mode: Mode::Store, bytes, index_slots },
            _ => return Err(LayoutError::Geometry("a table's partitions cannot be".into())),
        };
        partition.plan().map(|_| partition)
    }
}

/// The mailboxes of a table with this service.
fn mailboxes(service: Service, nodes: u16) -> Result<Mailboxes, LayoutError> {
    let by_send = service.request_bytes == 0;
    let request = if by_send { HERD_ITEM_BYTES_MAX } else { 0 };
    Mailboxes::for_items(service, nodes, request, HERD_ITEM_BYTES_MAX)
}

impl Engine for Herd {
    const ID: u32 = 4;
    const NAMES: &'static [&'static str] = &["herd"];
    const NEEDS: Needs = Needs {
        workers: true,
        private_memory: true,
        session_to_read: true,
        unreliable_writes: true,
        requests_only: true,
        key_and_value_bytes_max: Some(HERD_ITEM_BYTES_MAX),
        ..Needs::NOTHING
    };
    type Options = Options;
    type Map = Map;

    fn plan(options: &Options, room: &Room) -> Result<Plan, LayoutError> {
        let value_bytes_max = room.value_max.unwrap_or(HERD_ITEM_BYTES_MAX as u64 - 1);
        let (budget, workers) = (Budget::new(room), u64::from(room.workers));
        let by_send = options.requests == Some(RequestWay::Send);
        let request_bytes = if by_send { 0 } else { HERD_SLOT_BYTES as u32 };
        let service = Service { request_bytes, ..budget.service(REPLIES_MAX) };
        let mailboxes = mailboxes(service, room.nodes)?;
        let mode = options.mode.unwrap_or(Mode::Cache);
        let slot_bytes = match mode {
            Mode::Cache => BYTES_PER_CACHE_SLOT,
            Mode::Store => BYTES_PER_STORE_SLOT,
        };
        let shared = mailboxes.end().next_multiple_of(TABLE_ALIGN_BYTES);
        let bytes = budget.left(shared)? / workers;
        let index_slots = match options.index_slots {
            Some(slots) => slots.div_ceil(workers),
            None => (bytes / slot_bytes).min(storage::ENTRIES_MAX),
        };
        let partition = PartitionShape { mode, bytes, index_slots };
        partition.plan()?;
        let params = TableParams {
            nodes: room.nodes,
            value_bytes_max,
            seed: SEED,
            service,
            words: partition.words(),
            ..TableParams::default()
        };
        Ok(Plan { params, bytes: mailboxes.end(), private_bytes: bytes * workers })
    }

    fn map(params: &TableParams, places: &[Place]) -> Result<Map, LayoutError> {
        let mailed = MailedRequests::new(mailboxes(params.service, params.nodes)?, places);
        let (partition, seed) = (PartitionShape::of(params)?, params.seed);
        Ok(Map { mailed, partition, seed, lengths: Self::NEEDS.lengths(params) })
    }

    fn mailed(map: &Map) -> Option<&MailedRequests> {
        Some(&map.mailed)
    }

    /// Requests by WRITE or by SEND, as the table declares.
    type Client<N: Net> = Client<N::Waiting, Way<<N::Waiting as Messages>::Peer>>;

    fn client<N: Net, C: Connect<N>>(
        table: &Map,
        access: Access,
        connect: C,
    ) -> Result<Self::Client<N>, C::Error> {
        let Access { session, node, timing, batch, .. } = access;
        let (map, seed, home) = (table.mailed.requests().clone(), table.seed, session.home());
        let mailbox = table.mailed.of_client(node, session.slot());
        let fabric = connect.waiting(Some(mailbox))?;
        let workers = BySend::seeking(&map);
        let way = match map.area().service().request_bytes {
            0 => Way::Send(workers.clone()),
            _ => Way::Write(ByUnreliableWrite { home }),
        };
        let lengths = table.lengths;
        Ok(Client::new(fabric, map, &session, node, way, workers, timing, seed, lengths, batch))
    }

    fn direct<N: Net>(client: &Self::Client<N>) -> &N::Direct {
        N::direct(client.fabric())
    }

    fn facts(params: &TableParams) -> Vec<(&'static str, String)> {
        let Ok(PartitionShape { mode, bytes, index_slots }) = PartitionShape::of(params) else {
            return Vec::new();
        };
        let way = if params.service.request_bytes == 0 { "send" } else { "write" };
        vec![
            ("mode", format!("{mode:?}").to_lowercase()),
            ("requests", way.into()),
            ("bytes of a worker", bytes.to_string()),
            ("index_slots", index_slots.to_string()),
        ]
    }

    fn sizes(map: &Map) -> Sizes {
        let workers = u64::from(map.mailed.requests().area().workers());
        let PartitionShape { bytes, index_slots, .. } = map.partition;
        let data = map.partition.plan().map_or(0, |plan| plan.data_bytes());
        Sizes {
            index_slots: index_slots * workers,
            index_bytes: (bytes - data) * workers,
            data_bytes: data * workers,
            ..Sizes::default()
        }
    }

    fn evicts(map: &Map) -> bool {
        map.partition.mode == Mode::Cache
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_any_size_has_an_index_by_default() {
        for mode in [Mode::Cache, Mode::Store] {
            for share in [64 << 20, 1 << 40, 64 << 40] {
                let room = Room {
                    share,
                    nodes: 1,
                    value_max: None,
                    workers: 1,
                    window: None,
                    slots: 8,
                    is_remote: false,
                };
                let options = Options { mode: Some(mode), ..Options::default() };
                let plan = Herd::plan(&options, &room).expect("it can be laid out");
                let partition = PartitionShape::of(&plan.params).expect("it was planned");
                assert!(partition.index_slots >= 1 << 18, "{partition:?}");
            }
        }
    }

    #[test]
    fn what_an_entry_says_of_partitions_survives_the_trip() {
        let partition = PartitionShape { mode: Mode::Store, bytes: 1 << 20, index_slots: 99 };
        let mut params = TableParams { words: partition.words(), ..TableParams::default() };
        assert_eq!(PartitionShape::of(&params), Ok(partition));
        for wrong in [[3, 1 << 20, 99, 0, 0, 0], [1, 1 << 20, 99, 0, 0, 1], [1, 1, 1, 0, 0, 0]] {
            params.words = wrong;
            assert!(PartitionShape::of(&params).is_err(), "{wrong:?}");
        }
    }
}
