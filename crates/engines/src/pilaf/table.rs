//! A table of pilaf: its plan, and the places of its parts.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use loch_fabric::RemoteAddr;
use loch_fabric::limits::MAIL_MESSAGE_BYTES_MAX;
use serde::{Deserialize, Serialize};

use super::Shape;
use super::client::{self, Client};
use super::layout::{ARENA_OFFSET, LINE_BYTES};
use super::path::REPLY_BYTES_MAX;
use crate::engine::{Engine, LogConfig, Needs, Place, Plan, Sizes};
use crate::error::LayoutError;
use crate::kv::Kv;
use crate::limits::REPLIES_MAX;
use crate::net::{Access, Connect, Net};
use crate::region::{SEED, TableParams};
use crate::requests::budget::{Budget, REQUEST_KEY_BYTES};
use crate::requests::mailboxes::{Mailboxes, MailedRequests};
use crate::requests::{BySend, RequestMap, Service};
use crate::room::Room;
use crate::size::InWords;

/// The engine whose clients do GETs by READs that verify themselves, and whose one worker per node
/// does PUTs.
#[derive(Clone, Copy, Debug)]
pub struct Pilaf;

/// The options of a table of pilaf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of its first index on each node; the index grows by itself. Default: one slot for
    /// every 1024 bytes of the table's memory.
    pub index_slots: Option<u64>,
    /// The folder of its logs: each node has a log of its own there. Default: no log, and the table
    /// is empty after the node's process has ended.
    pub log: Option<PathBuf>,
    /// Whether a change is on disk before it is acknowledged. Default no: then the changes of the
    /// last millisecond are lost if the process is killed, and the changes of the last tenth of a
    /// second or more if the machine stops.
    pub sync: bool,
}

/// Bytes of memory for each slot of the first index.
const BYTES_PER_INDEX_SLOT: u64 = 1024;

/// The least number of longest values that a table holds.
const LONGEST_VALUES_MIN: u64 = 4;

/// Longer requests are WRITTEN into request slots, so that mailboxes need no room for a window of
/// them.
pub const SEND_BYTES_MAX: usize = 1024;

const _: () = assert!(SEND_BYTES_MAX <= MAIL_MESSAGE_BYTES_MAX);

/// The places of a pilaf table's parts.
#[derive(Clone, Debug)]
pub struct Map {
    /// The requests and the mailboxes.
    pub mailed: MailedRequests,
    /// Bytes of each node's arena.
    arena_bytes: u64,
    /// Slots of each node's first index.
    index_slots: u64,
    /// Bytes of the longest value.
    value_bytes_max: u64,
    /// The seed with which keys are hashed.
    pub seed: u64,
}

impl Map {
    fn requests(&self) -> &RequestMap {
        self.mailed.requests()
    }

    /// The root of each node's part.
    pub fn roots(&self) -> Vec<RemoteAddr> {
        (0..self.requests().area().nodes()).map(|node| self.root(node)).collect()
    }

    /// The root of a node's part.
    pub fn root(&self, node: u16) -> RemoteAddr {
        self.requests().base(node).add(self.mailed.mailboxes().next_page())
    }

    /// The shape of a node's part, for its worker.
    pub fn shape(&self, node: u16) -> Shape {
        Shape {
            root: self.root(node),
            arena_bytes: self.arena_bytes,
            index_slots: self.index_slots,
            value_bytes_max: self.value_bytes_max,
            seed: self.seed,
            node: node as u8,
        }
    }
}

fn mailboxes(service: Service, nodes: u16) -> Result<Mailboxes, LayoutError> {
    Mailboxes::new(service, nodes, SEND_BYTES_MAX, REPLY_BYTES_MAX)
}

/// The sizes of arena and index in a directory entry.
/// Slots that an index may have: more than the candidates of a key.
const INDEX_SLOTS: RangeInclusive<u64> = 4..=1 << 32;

fn sizes_of(params: &TableParams) -> Result<(u64, u64), LayoutError> {
    match params.words {
        [arena_bytes, index_slots, 0, 0, 0, 0]
            if INDEX_SLOTS.contains(&index_slots)
                && index_slots.is_power_of_two()
                && arena_bytes.is_multiple_of(ARENA_OFFSET)
                && arena_bytes / 2 >= index_slots * LINE_BYTES =>
        {
            Ok((arena_bytes, index_slots))
        }
        _ => Err(LayoutError::Geometry("a table's arena cannot be".into())),
    }
}

impl Engine for Pilaf {
    const ID: u32 = 5;
    const NAMES: &'static [&'static str] = &["pilaf"];
    const NEEDS: Needs = Needs { workers: true, ..Needs::NOTHING };
    type Options = Options;
    type Map = Map;

    fn log(options: &Options) -> Option<LogConfig> {
        let folder = options.log.clone()?;
        Some(LogConfig { folder, sync: options.sync })
    }

    fn plan(options: &Options, room: &Room) -> Result<Plan, LayoutError> {
        let wrong = |problem: String| Err(LayoutError::Geometry(problem));
        if room.workers != 1 {
            return wrong(format!(
                "workers is {}: pilaf has one worker on each node",
                room.workers
            ));
        }
        if options.sync && options.log.is_none() {
            return wrong("sync needs a log: name its folder (log)".into());
        }
        let budget = Budget::new(room);
        let mut value_max = budget.value_max(budget.request_slots(), 0)?;
        if room.value_max.is_none() {
            value_max = value_max.min(room.share / 2 / LONGEST_VALUES_MIN);
        }
        let packet = budget.packet_bytes(budget.request_slots());
        let request = packet.max(REQUEST_KEY_BYTES + value_max);
        let request_bytes = Service::request_bytes_for(0, request)?;
        let service = Service { request_bytes, ..budget.service(REPLIES_MAX) };
        let root_at = mailboxes(service, room.nodes)?.next_page();
        let arena_bytes = budget.left(root_at + ARENA_OFFSET)? / ARENA_OFFSET * ARENA_OFFSET;
        // Doubled until the index has at least the wanted slots: blocks are powers of two, and so
        // is the index.
        let wanted = options.index_slots.unwrap_or(arena_bytes / BYTES_PER_INDEX_SLOT);
        let index_slots = wanted.clamp(8, *INDEX_SLOTS.end()).next_power_of_two();
        if arena_bytes / 2 < index_slots.saturating_mul(LINE_BYTES) || arena_bytes < 4 * value_max {
            return wrong(format!(
                "of its memory {} are left for {index_slots} index slots and values of {}: give it \
                 more memory, fewer index_slots or a smaller value_max",
                InWords(arena_bytes),
                InWords(value_max)
            ));
        }
        let params = TableParams {
            nodes: room.nodes,
            value_bytes_max: value_max,
            seed: SEED,
            service,
            words: [arena_bytes, index_slots, 0, 0, 0, 0],
            ..TableParams::default()
        };
        Ok(Plan { params, bytes: root_at + ARENA_OFFSET + arena_bytes, private_bytes: 0 })
    }

    fn map(params: &TableParams, places: &[Place]) -> Result<Map, LayoutError> {
        let Service { workers, request_bytes, .. } = params.service;
        if workers != 1 || request_bytes == 0 {
            let text = format!("pilaf has one worker with slots for requests, not {workers}");
            return Err(LayoutError::Geometry(text));
        }
        let mailed = MailedRequests::new(mailboxes(params.service, params.nodes)?, places);
        let (arena_bytes, index_slots) = sizes_of(params)?;
        let TableParams { value_bytes_max, seed, .. } = *params;
        Ok(Map { mailed, arena_bytes, index_slots, value_bytes_max, seed })
    }

    fn bytes(map: &Map) -> u64 {
        (map.mailed.mailboxes().next_page() + ARENA_OFFSET).saturating_add(map.arena_bytes)
    }

    fn mailed(map: &Map) -> Option<&MailedRequests> {
        Some(&map.mailed)
    }

    fn readable(map: &Map, node: u16) -> Vec<Range<u64>> {
        let (begin, end) = (map.root(node).offset(), map.requests().base(node).offset());
        vec![map.requests().worker_lines_of(node), begin..end + Self::bytes(map)]
    }

    /// A client without a session can still read.
    type Client<N: Net> = Client<N::Waiting>;

    fn client<N: Net, C: Connect<N>>(
        table: &Map,
        access: Access,
        connect: C,
    ) -> Result<Self::Client<N>, C::Error> {
        let Access { session, timing, batch, .. } = access;
        if session.is_observer() {
            let fabric = connect.waiting(None)?;
            return Ok(Client::observer(fabric, table.roots(), table.seed, timing));
        }
        let map = table.mailed.requests().clone();
        let mailbox = table.mailed.of_client(map.node_of(session.home()), session.slot());
        let fabric = connect.waiting(Some(mailbox))?;
        let access = client::Access {
            roots: table.roots(),
            servers: BySend::seeking(&map),
            map,
            seed: table.seed,
            value_bytes_max: table.value_bytes_max,
            send_bytes_max: SEND_BYTES_MAX,
            batch,
        };
        Ok(Client::new(fabric, access, &session, timing))
    }

    fn direct<N: Net>(client: &Self::Client<N>) -> &N::Direct {
        N::direct(client.fabric())
    }

    fn facts(params: &TableParams) -> Vec<(&'static str, String)> {
        let Ok((arena_bytes, index_slots)) = sizes_of(params) else { return Vec::new() };
        vec![("index_slots", index_slots.to_string()), ("arena bytes", arena_bytes.to_string())]
    }

    fn sizes(map: &Map) -> Sizes {
        let nodes = u64::from(map.requests().area().nodes());
        // The index is a block of the arena.
        let index_bytes = map.index_slots * LINE_BYTES;
        Sizes {
            index_slots: map.index_slots * nodes,
            index_bytes: index_bytes * nodes,
            data_bytes: (map.arena_bytes - index_bytes) * nodes,
            ..Sizes::default()
        }
    }
}
