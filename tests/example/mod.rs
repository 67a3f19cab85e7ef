//! The engine of `docs/adding-an-engine.md`: every worker owns a part of the keys, and keeps their
//! values in a `HashMap`. Clients SEND it their requests, and it SENDs the replies.
//!
//! # Linearization points
//! Every operation takes effect when its worker executes it, between its call and its return.
//!
//! # Faults
//! * **A message is lost, comes twice, or late**: see [`requests`](crate::requests).
//! * **A worker dies.** Its values die with it. The next worker begins with an empty map.

mod worker;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::engine::{Engine, Needs, Place, Plan, Sizes};
use crate::error::LayoutError;
use crate::kv::{Kv, Lengths};
use crate::limits::REPLIES_MAX;
use crate::net::{Access, Connect, Net};
use crate::region::{SEED, TableParams};
use crate::requests::budget::Budget;
use crate::requests::mailboxes::{Mailboxes, MailedRequests};
use crate::requests::{Area, Client, Owners, SendingClient, Service, WorkerId};
use crate::room::Room;

/// Bytes of the longest key together with its value: both fit a datagram of every fabric.
const ITEM_BYTES_MAX: usize = 900;

/// The engine whose workers keep the values in a `HashMap`.
pub struct Example;

/// The options of such a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Bytes that a value takes besides itself and its key. Default 64.
    pub entry_bytes: Option<u64>,
}

/// The addresses of a table's parts, and the numbers that its clients and workers have to know.
#[derive(Clone)]
pub struct Map {
    mailed: MailedRequests,
    lengths: Lengths,
    /// Bytes of memory of each worker.
    bytes: u64,
    entry_bytes: u64,
}

fn mailboxes(service: Service, nodes: u16) -> Result<Mailboxes, LayoutError> {
    Mailboxes::for_items(service, nodes, ITEM_BYTES_MAX, ITEM_BYTES_MAX)
}

fn hash_of(key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, SEED)
}

/// The hash of a key says which worker owns it.
pub struct ByHash;

impl Owners for ByHash {
    fn owner(&self, area: &Area, key: &[u8]) -> WorkerId {
        area.worker((hash_of(key) % u64::from(area.workers())) as u32)
    }
}

impl Engine for Example {
    const ID: u32 = 1000;
    const NAMES: &'static [&'static str] = &["example"];
    const NEEDS: Needs = Needs {
        workers: true,
        private_memory: true,
        session_to_read: true,
        key_and_value_bytes_max: Some(ITEM_BYTES_MAX),
        ..Needs::NOTHING
    };
    type Options = Options;
    type Map = Map;
    type Client<N: Net> = SendingClient<N::Waiting, ByHash>;

    fn plan(options: &Options, room: &Room) -> Result<Plan, LayoutError> {
        let budget = Budget::new(room);
        let service = budget.service(REPLIES_MAX);
        let bytes = mailboxes(service, room.nodes)?.end();
        let private_bytes = budget.left(bytes)?;
        let worker_bytes = private_bytes / u64::from(room.workers);
        let params = TableParams {
            nodes: room.nodes,
            value_bytes_max: room.value_max.unwrap_or(ITEM_BYTES_MAX as u64 - 1),
            service,
            words: [worker_bytes, options.entry_bytes.unwrap_or(64), 0, 0, 0, 0],
            ..TableParams::default()
        };
        Ok(Plan { params, bytes, private_bytes })
    }

    fn map(params: &TableParams, places: &[Place]) -> Result<Map, LayoutError> {
        let [bytes, entry_bytes, 0, 0, 0, 0] = params.words else {
            return Err(LayoutError::Geometry("a reserved field of a table is not zero".into()));
        };
        let mailed = MailedRequests::new(mailboxes(params.service, params.nodes)?, places);
        Ok(Map { mailed, lengths: Self::NEEDS.lengths(params), bytes, entry_bytes })
    }

    fn mailed(map: &Map) -> Option<&MailedRequests> {
        Some(&map.mailed)
    }

    fn sizes(map: &Map) -> Sizes {
        let workers = u64::from(map.mailed.requests().area().workers());
        Sizes { data_bytes: map.bytes.saturating_mul(workers), ..Sizes::default() }
    }

    fn client<N: Net, C: Connect<N>>(
        map: &Map,
        access: Access,
        connect: C,
    ) -> Result<Self::Client<N>, C::Error> {
        let Access { session, node, timing, batch, .. } = access;
        let fabric = connect.waiting(Some(map.mailed.of_client(node, session.slot())))?;
        let requests = map.mailed.requests().clone();
        let lengths = map.lengths;
        Ok(Client::sending(fabric, requests, &session, node, timing, ByHash, lengths, batch))
    }

    fn direct<N: Net>(client: &Self::Client<N>) -> &N::Direct {
        N::direct(client.fabric())
    }
}
