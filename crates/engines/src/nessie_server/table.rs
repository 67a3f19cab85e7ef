//! A table of nessie that workers serve: its plan, and the places of its parts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Client, Served};
use crate::engine::{Engine, Needs, Place, Plan, Sizes};
use crate::error::LayoutError;
use crate::kv::Kv;
use crate::nessie::geometry::{Geometry, Options as Switches};
use crate::nessie::options::LayoutOptions;
use crate::nessie::table::{LONGEST_VALUES_MIN, facts, geometry, sizes, switches};
use crate::net::{Access, Connect, Net};
use crate::region::TableParams;
use crate::requests::budget::{Budget, REQUEST_KEY_BYTES, WINDOW_DEFAULT};
use crate::requests::{Area, RequestMap, Service};
use crate::room::Room;

/// The engine whose workers are clients of nessie (nessie §6, NessieSD).
#[derive(Clone, Copy, Debug)]
pub struct NessieServer;

/// The options of such a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The options of the layout of index and entries.
    #[serde(flatten)]
    pub layout: LayoutOptions,
}

impl Engine for NessieServer {
    const ID: u32 = 2;
    const NAMES: &'static [&'static str] = &["nessie-server"];
    const NEEDS: Needs =
        Needs { workers: true, sessions: true, requests_only: true, ..Needs::NOTHING };
    type Options = Options;
    type Map = Served;

    fn plan(options: &Options, room: &Room) -> Result<Plan, LayoutError> {
        plan(&options.layout, switches(&options.layout, None, room), true, room)
    }

    fn map(params: &TableParams, places: &[Place]) -> Result<Served, LayoutError> {
        map(params, places)
    }

    fn bytes(map: &Served) -> u64 {
        Served::bytes(&map.table.shape, map.requests.area())
    }

    fn requests(map: &Served) -> Option<&Arc<RequestMap>> {
        Some(&map.requests)
    }

    type Client<N: Net> = Client<N::Waiting>;

    fn client<N: Net, C: Connect<N>>(
        map: &Served,
        access: Access,
        connect: C,
    ) -> Result<Client<N::Waiting>, C::Error> {
        let Access { session, timing, batch, .. } = access;
        Ok(Client::new(connect.waiting(None)?, map.clone(), &session, timing, batch))
    }

    fn direct<N: Net>(client: &Client<N::Waiting>) -> &N::Direct {
        N::direct(client.fabric())
    }

    fn facts(params: &TableParams) -> Vec<(&'static str, String)> {
        facts(params)
    }

    fn sizes(map: &Served) -> Sizes {
        sizes(&map.table)
    }

    fn evicts(map: &Served) -> bool {
        map.table.shape.options.evicts
    }
}

/// As [`Engine::map`], for every table of nessie's layout that workers serve.
pub(crate) fn map(params: &TableParams, places: &[Place]) -> Result<Served, LayoutError> {
    if params.words != [0; 6] {
        return Err(LayoutError::Geometry("a reserved field of a table is not zero".into()));
    }
    Served::new(Geometry::of(params).validate()?, params.service, places)
}

/// Bytes of the outcomes of a packet, if replies carry no values.
const OUTCOMES_BYTES: u64 = 392;

/// As [`Engine::plan`]. `gets` says whether GETs are requests: then replies have room for values.
pub(crate) fn plan(
    layout: &LayoutOptions,
    switches: Switches,
    gets: bool,
    room: &Room,
) -> Result<Plan, LayoutError> {
    let budget = Budget::new(room);
    let bare = budget.service(4 * WINDOW_DEFAULT);
    let (request_slots, reply_slots) = (budget.request_slots(), budget.reply_slots(&bare));
    let mut value_max = budget.value_max(request_slots, if gets { reply_slots } else { 0 })?;
    let packet = budget.packet_bytes(request_slots + reply_slots);
    let area = |value_max: u64| {
        let request = packet.max(REQUEST_KEY_BYTES + value_max);
        let reply = if gets { packet.max(value_max) } else { packet.min(OUTCOMES_BYTES) };
        let service = Service {
            request_bytes: Service::request_bytes_for(0, request)?,
            reply_bytes: Service::reply_bytes_for(reply)?,
            ..bare
        };
        Area::new(service, room.nodes)
    };
    let planned = |area: &Area| geometry(layout, switches, budget.left(area.bytes())?, room);
    let mut requests = area(value_max)?;
    let mut shape = planned(&requests)?;
    if room.value_max.is_none() {
        value_max = value_max.min(shape.data_bytes() / LONGEST_VALUES_MIN);
        requests = area(value_max)?;
        shape = planned(&requests)?;
    }
    let shape = Geometry { value_bytes_max: value_max, ..shape }.coupled();
    let bytes = shape.validate()?.bytes() + requests.bytes();
    Ok(Plan { params: shape.params(*requests.service()), bytes, private_bytes: 0 })
}
