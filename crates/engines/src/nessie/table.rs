//! A table of nessie: its plan, and the places of its parts.

use std::sync::Arc;

use super::any::AnyClient;
use super::geometry::{Geometry, Options as Switches, Protocol};
use super::hash::TableMap;
use super::layout::dte::BEFORE_VALUE_BYTES_MAX;
use super::layout::slab::longest_entry_bytes;
use super::options::{
    BUCKET_SLOTS, BUCKET_SLOTS_OF_CACHE, Eviction, LayoutOptions, Options, TableProtocol,
};
use crate::engine::{Engine, Needs, Place, Plan, Sizes, Workers};
use crate::error::LayoutError;
use crate::kv::Kv;
use crate::limits::{DATA_TABLE_BYTES_MAX, VALUE_BYTES_DEFAULT};
use crate::net::{Access, Connect, Net};
use crate::region::TableParams;
use crate::requests::Service;
use crate::room::Room;
use crate::size::InWords;

/// The engine whose clients do all the work.
#[derive(Clone, Copy, Debug)]
pub struct Nessie;

/// Bytes of a table for each slot of its index, unless the declaration sizes the index: 7.1 % of
/// the memory, so that entries of 16 + 64 bytes and the index fill up at about the same time.
const TABLE_BYTES_PER_INDEX_SLOT: u64 = 112;

/// The least number of longest values that a table holds, if the longest length was not chosen.
pub(crate) const LONGEST_VALUES_MIN: u64 = 4;

impl Engine for Nessie {
    const ID: u32 = 1;
    const NAMES: &'static [&'static str] = &["nessie"];
    const NEEDS: Needs = Needs::NOTHING;
    type Options = Options;
    type Map = Arc<TableMap>;

    fn plan(options: &Options, room: &Room) -> Result<Plan, LayoutError> {
        let wrong = |text: &str| Err(LayoutError::Geometry(text.into()));
        let protocol = match (options.protocol, options.previous_versions) {
            (TableProtocol::Loch, None) => Protocol::Loch,
            (TableProtocol::Loch, Some(_)) => {
                return wrong(
                    "previous_versions is for protocol \"published\"; this table's is \"loch\": \
                     remove previous_versions, or give the table protocol = \"published\"",
                );
            }
            // Connections break over a network, and only clients of Loch's own protocol restart
            // operations then.
            (TableProtocol::Published, _) if room.is_remote => {
                return wrong(
                    "protocol \"published\" is for fabric \"shm\" only: use \"loch\", or shm",
                );
            }
            (TableProtocol::Published, previous) => {
                Protocol::Published { previous_versions: previous.unwrap_or(true) }
            }
        };
        let switches = switches(&options.layout, options.cache, room);
        let geometry = geometry(&options.layout, switches, room.share, room)?;
        let geometry = geometry.with_protocol(protocol);
        let bytes = geometry.validate()?.bytes();
        Ok(Plan { params: geometry.params(Service::default()), bytes, private_bytes: 0 })
    }

    fn map(params: &TableParams, places: &[Place]) -> Result<Self::Map, LayoutError> {
        if params.service != Service::default() || params.words != [0; 6] {
            return Err(LayoutError::Geometry("a table that nobody serves has workers".into()));
        }
        let shape = Geometry::of(params).validate()?;
        Ok(Arc::new(TableMap::new(shape, places)))
    }

    fn bytes(map: &Self::Map) -> u64 {
        map.shape.bytes()
    }

    type Client<N: Net> = AnyClient<N::Direct>;

    fn client<N: Net, C: Connect<N>>(
        map: &Self::Map,
        access: Access,
        connect: C,
    ) -> Result<AnyClient<N::Direct>, C::Error> {
        Ok(AnyClient::new(connect.direct()?, map.clone(), access))
    }

    fn direct<N: Net>(client: &AnyClient<N::Direct>) -> &N::Direct {
        client.fabric()
    }

    fn facts(params: &TableParams) -> Vec<(&'static str, String)> {
        facts(params)
    }

    fn sizes(map: &Self::Map) -> Sizes {
        sizes(map)
    }

    fn evicts(map: &Self::Map) -> bool {
        map.shape.options.evicts
    }
}

impl Workers for Nessie {
    type Shared = ();

    fn shared(_: &Self::Map) {}
}

/// The switches for clients of a table with this layout.
pub(crate) fn switches(layout: &LayoutOptions, cache: Option<bool>, room: &Room) -> Switches {
    let LayoutOptions { filter_bits, multi_read, batched_reads, checksums, eviction, .. } = *layout;
    // Over a network a second READ of the generation costs a round trip.
    let checksums = checksums || room.is_remote;
    let evicts = eviction == Eviction::Sieve;
    Switches { filter_bits, cache, multi_read, batched_reads, checksums, evicts }
}

/// The geometry of a table that has `share` bytes of each node.
pub(crate) fn geometry(
    layout: &LayoutOptions,
    switches: Switches,
    share: u64,
    room: &Room,
) -> Result<Geometry, LayoutError> {
    let wrong = |problem: String| Err(LayoutError::Geometry(problem));
    if layout.index_slots == Some(0) {
        return wrong("index_slots is 0: a table needs at least one, or leave it out".into());
    }
    let usable = share.min(2 * DATA_TABLE_BYTES_MAX);
    let a_node = layout.index_slots.unwrap_or(usable / TABLE_BYTES_PER_INDEX_SLOT).max(1);
    let Some(slots) = a_node.checked_mul(u64::from(room.nodes)) else {
        return wrong(format!("index_slots is {a_node}: that is too many"));
    };
    let value_max = room.value_max.unwrap_or(VALUE_BYTES_DEFAULT);
    let LayoutOptions { ways, bucket_slots, .. } = *layout;
    let bucket_slots = bucket_slots.unwrap_or(match switches.evicts {
        true => BUCKET_SLOTS_OF_CACHE,
        false => BUCKET_SLOTS,
    });
    let geometry =
        Geometry::plan(room.nodes, share, slots, ways, bucket_slots, value_max, switches)?;
    let (data, grain_bytes) = (geometry.data_bytes(), geometry.validate()?.bits.grain_bytes());
    // The bytes that are left for the longest value besides its key and its header.
    let longest = longest_entry_bytes(data, grain_bytes);
    let most = longest.saturating_sub(BEFORE_VALUE_BYTES_MAX as u64);
    match room.value_max {
        Some(max) if max > most => wrong(format!(
            "value_max is {}, but its data table has {} a node, which hold a value of up to {}: give \
             the table more memory",
            InWords(max),
            InWords(data),
            InWords(most)
        )),
        Some(_) => Ok(geometry),
        None => {
            let value_bytes_max = VALUE_BYTES_DEFAULT.min(data / LONGEST_VALUES_MIN);
            Ok(Geometry { value_bytes_max, ..geometry })
        }
    }
}

/// As [`Engine::facts`], for every table that is laid out as nessie's.
pub(crate) fn facts(params: &TableParams) -> Vec<(&'static str, String)> {
    let geometry = Geometry::of(params);
    let shape = geometry.validate();
    let shown =
        |show: fn(&super::geometry::Shape) -> String| shape.as_ref().map(show).unwrap_or_default();
    vec![
        // A cache has other buckets, if the declaration does not say how many slots they have.
        ("eviction", shown(|shape| if shape.options.evicts { "sieve" } else { "none" }.into())),
        ("ways", geometry.ways.to_string()),
        ("bucket_slots", geometry.bucket_slots.to_string()),
        ("protocol", shown(|shape| format!("{:?}", shape.protocol))),
        ("options", shown(|shape| format!("{:?}", shape.options))),
        ("index_slots", geometry.index_slots().to_string()),
        ("index shards", geometry.shards_per_node.to_string()),
        ("data bytes a node", geometry.data_bytes().to_string()),
    ]
}

/// As [`Engine::sizes`], for every table that is laid out as nessie's.
pub(crate) fn sizes(map: &TableMap) -> Sizes {
    let (geometry, nodes) = (&map.shape.geometry, u64::from(map.shape.geometry.nodes));
    Sizes {
        ways: geometry.ways,
        bucket_slots: geometry.bucket_slots,
        index_slots: geometry.index_slots(),
        index_bytes: geometry.index_bytes() * nodes,
        data_bytes: geometry.data_bytes() * nodes,
        grain_bytes: map.shape.bits.grain_bytes(),
    }
}
