//! A table of nessie-hybrid: its plan, and the places of its parts.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Client, Served};
use crate::engine::{Engine, Needs, Place, Plan, Sizes, Workers};
use crate::error::LayoutError;
use crate::kv::Kv;
use crate::nessie::options::{Eviction, LayoutOptions};
use crate::nessie::table::{facts, sizes, switches};
use crate::nessie_server::{NessieServer, serve, table};
use crate::net::{Access, Connect, Net};
use crate::region::{STAMP_OFFSET, TableParams};
use crate::requests::RequestMap;
use crate::room::Room;
use crate::serve::{WorkerError, WorkerHost};

/// The engine whose clients do GETs and whose workers do everything else (nessie §6, NessieHY).
#[derive(Clone, Copy, Debug)]
pub struct NessieHybrid;

/// The name of a table with the optimisations that the paper's version lacks.
const PLUS: &str = "nessie-hybrid+";

/// The options of such a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The options of the layout of index and entries.
    #[serde(flatten)]
    pub layout: LayoutOptions,
    /// Whether clients of `nessie-hybrid+` cache remote entries. Default: only where a round trip
    /// is expensive.
    pub cache: Option<bool>,
    /// Whether filter bits, cache and multiple READs follow the declaration (`nessie-hybrid+`), or
    /// are off, as in the paper.
    #[serde(skip)]
    pub plus: bool,
}

impl Engine for NessieHybrid {
    const ID: u32 = 3;
    const NAMES: &'static [&'static str] = &["nessie-hybrid", PLUS];
    const NEEDS: Needs = Needs { requests_only: false, ..NessieServer::NEEDS };
    type Options = Options;
    type Map = Served;

    fn named(options: Options, name: &str) -> Options {
        Options { plus: name == PLUS, ..options }
    }

    fn name(options: &Options) -> &'static str {
        if options.plus { PLUS } else { Self::NAMES[0] }
    }

    fn plan(options: &Options, room: &Room) -> Result<Plan, LayoutError> {
        let &Options { ref layout, cache, plus } = options;
        if cache == Some(true) && !plus {
            return Err(LayoutError::Geometry(format!(
                "cache is for nessie and {PLUS}; this table's engine is nessie-hybrid: remove cache, \
                 or give the table engine = {PLUS:?}"
            )));
        }
        if layout.eviction != Eviction::None && room.is_remote {
            // The marks say what is used, and a client may write nothing over a network.
            return Err(LayoutError::Geometry(
                "over a network clients of nessie-hybrid may only read, so nobody would know what \
                 is used: remove eviction, or give the table engine = \"nessie\" or \
                 \"nessie-server\""
                    .into(),
            ));
        }
        let cache = if plus { cache } else { Some(false) };
        let mut switches = switches(layout, cache, room);
        switches.filter_bits &= plus;
        switches.multi_read &= plus;
        table::plan(layout, switches, false, room)
    }

    fn map(params: &TableParams, places: &[Place]) -> Result<Served, LayoutError> {
        table::map(params, places)
    }

    fn bytes(map: &Served) -> u64 {
        NessieServer::bytes(map)
    }

    fn requests(map: &Served) -> Option<&Arc<RequestMap>> {
        Some(&map.requests)
    }

    /// Index and entries, the workers' lines, and the word of stamps: a client that asks for a
    /// stamp learns that it may only read.
    fn readable(map: &Served, node: u16) -> Vec<Range<u64>> {
        let end = map.requests.base(node).offset();
        let table = end - map.table.shape.bytes()..end;
        vec![STAMP_OFFSET..STAMP_OFFSET + 8, table, map.requests.worker_lines_of(node)]
    }

    type Client<N: Net> = Client<N::Waiting>;

    fn client<N: Net, C: Connect<N>>(
        map: &Served,
        access: Access,
        connect: C,
    ) -> Result<Client<N::Waiting>, C::Error> {
        let Access { session, timing, cache, batch, .. } = access;
        Ok(Client::new(connect.waiting(None)?, map.clone(), session, cache, timing, batch))
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

impl Workers for NessieHybrid {
    type Shared = ();

    fn shared(_: &Self::Map) {}

    async fn serve<H: WorkerHost>(_: &(), host: &H) -> Result<(), WorkerError> {
        serve::serve(host).await
    }
}
