//! What a simulated cluster is put together from: the layout of its memory, which follows from a
//! [`NodeConfig`] as that of a real cluster does, and the network and the transport by which the
//! engines' own clients and workers run on [`loch_fabric::sim`].
//!
//! The benchmark and the simulation tests use this. They provide the endpoints, the sessions and
//! the [`WorkerHost`](loch_engines::serve::WorkerHost).

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;

use loch_engines::engine::Place;
use loch_engines::epoch::Session;
use loch_engines::net::{Connect, Net};
use loch_engines::region::{TableEntry, TableParams};
use loch_engines::registry::{EngineId, Map};
use loch_engines::requests::Sessions;
use loch_engines::serve::{WorkerError, WorkerSite, WorkerTransport};
use loch_fabric::sim::SimEndpoint;
use loch_fabric::{Fabric, Messages, RegionId, RemoteAddr, UnreliableWrites};

use crate::layout::memory::{ClusterMemory, Member};
use crate::layout::plan::Plan;
use crate::{Error, NodeConfig, Result};

/// The memory of every node of a cluster.
pub struct Layout {
    /// Bytes of each node's region.
    pub region_bytes: u64,
    /// The session slots of each node that are its clients'. The slot before the first of them is
    /// the scrubber's.
    pub client_slots: Range<u32>,
    /// The tables, in the order of the configuration.
    pub tables: Vec<Table>,
}

/// A table over all nodes. Node `n` has the region with number `n`.
#[derive(Clone)]
pub struct Table {
    /// The parameters in the directory.
    pub params: TableParams,
    /// Where the table begins on each node, and the number of that node's session slots.
    pub places: Vec<Place>,
    /// The addresses of the table's parts.
    pub map: Map,
    /// The session slots of each node that are the table's workers', if those have sessions.
    pub worker_slots: Range<u32>,
}

impl Layout {
    /// The layout of the cluster that `config.cluster` lists, whose nodes all have this
    /// configuration.
    ///
    /// # Errors
    /// As [`NodeConfig::check_tables`].
    ///
    /// ```
    /// let config = loch::NodeConfig::from_toml("cluster = [\"a\", \"b\"]")?;
    /// let layout = loch::simulated::Layout::of(&config)?;
    /// assert_eq!(layout.tables[0].places.len(), 2);
    /// # Ok::<(), loch::Error>(())
    /// ```
    pub fn of(config: &NodeConfig) -> Result<Self> {
        Self::changed(config, |_, _| ())
    }

    /// As [`Layout::of`], with changed parameters: `change` gets the number of a table and its
    /// parameters. So a simulated table can be smaller than any that can be declared.
    ///
    /// # Errors
    /// As [`Layout::of`]; [`Error::Config`] if the changed parameters make no table, or one that
    /// is larger than before.
    pub fn changed(config: &NodeConfig, change: impl Fn(usize, &mut TableParams)) -> Result<Self> {
        let nodes = config.cluster.len().max(1);
        let members = (0..nodes).map(|node| {
            let mut plan = Plan::of_node(config, node, nodes)?;
            for (number, entry) in plan.tables.iter_mut().enumerate() {
                change(number, &mut entry.params);
                fit(entry, plan.header.sessions, nodes)?;
            }
            Ok(Some(Member::planned(node, plan)))
        });
        let memory = ClusterMemory::join(members.collect::<Result<_>>()?, 0)?;
        let first = memory.nodes[0].as_ref().expect("it was planned");
        let tables = memory.tables.iter().map(|view| Table {
            params: view.entry.params,
            places: view.places.clone(),
            map: view.parts.clone(),
            worker_slots: first.worker_slots(view.number),
        });
        let ends = first.tables.iter().map(TableEntry::end);
        Ok(Self {
            region_bytes: ends.max().unwrap_or(first.header.tables_offset()),
            client_slots: 1..1 + first.client_sessions(),
            tables: tables.collect(),
        })
    }
}

/// Gives a table the length that its parameters say.
fn fit(entry: &mut TableEntry, sessions: u32, nodes: usize) -> Result<()> {
    let name = || format!("table {:?}", entry.name().unwrap_or_default());
    let place = |node: usize| (RemoteAddr::new(RegionId(node as u8), entry.offset), sessions);
    let places: Vec<Place> = (0..nodes).map(place).collect();
    let engine = EngineId::of(entry).expect("it was planned");
    let map = Map::new(engine, &entry.params, &places);
    let map = map.map_err(|error| Error::config(name(), error.to_string()))?;
    if map.bytes() > entry.bytes {
        // The next table lies behind it.
        let problem = format!("with these parameters it has {} bytes", map.bytes());
        return Err(Error::config(name(), format!("{problem}, and place for {}", entry.bytes)));
    }
    entry.bytes = map.bytes();
    Ok(())
}

/// An endpoint of a simulated process that asks workers.
pub trait Endpoint: Fabric + Messages + UnreliableWrites + 'static {
    /// The process's own endpoint inside it.
    fn sim(&self) -> &SimEndpoint;

    /// The process's own endpoint.
    fn into_sim(self) -> SimEndpoint;
}

impl Endpoint for SimEndpoint {
    fn sim(&self) -> &SimEndpoint {
        self
    }

    fn into_sim(self) -> SimEndpoint {
        self
    }
}

/// The simulated network, whose clients ask workers with endpoints of type `E`.
pub struct SimNet<E>(PhantomData<E>);

impl<E: Endpoint> Net for SimNet<E> {
    type Direct = SimEndpoint;
    type Waiting = E;

    fn direct(waiting: &E) -> &SimEndpoint {
        waiting.sim()
    }
}

/// The connector of a process.
pub struct Connector<E>(pub E);

impl<E: Endpoint> Connect<SimNet<E>> for Connector<E> {
    type Error = Infallible;

    fn direct(self) -> Result<SimEndpoint, Infallible> {
        Ok(self.0.into_sim())
    }

    fn waiting(self, _: Option<RemoteAddr>) -> Result<E, Infallible> {
        Ok(self.0)
    }
}

/// The transport of a worker's process. Every process reaches all memory.
pub struct Transport<E> {
    /// Makes an endpoint of the process.
    pub endpoint: Box<dyn Fn() -> E>,
    /// What the worker's node knows of the clients' sessions.
    pub sessions: Box<dyn Fn() -> Sessions>,
}

impl<E: Endpoint> WorkerTransport for Transport<E> {
    type Memory = ();
    type Endpoint = E;
    type ReplyLinks = ();
    type Mail = E;

    fn endpoint(&self, (): &(), _: &WorkerSite, _: &Session) -> Result<(E, ()), WorkerError> {
        Ok(((self.endpoint)(), ()))
    }

    fn tend(&self, _: &E, (): &mut ()) {}

    fn mail(&self, (): &(), _: &WorkerSite, _: RemoteAddr) -> Result<E, WorkerError> {
        Ok((self.endpoint)())
    }

    fn tend_mail(&self, _: &E) {}

    fn attach(&self, _: &E, (): &()) -> Result<(), WorkerError> {
        Ok(())
    }

    fn sessions(&self, _: &WorkerSite) -> Sessions {
        (self.sessions)()
    }
}

#[cfg(test)]
mod tests {
    use loch_engines::nessie::geometry::Geometry;

    use super::*;

    fn config(engine: &str) -> NodeConfig {
        let text = format!("sessions = 5\n[[table]]\nengine = '{engine}'");
        NodeConfig::from_toml(&text).unwrap()
    }

    #[test]
    fn the_sessions_of_scrubber_clients_and_workers_are_in_this_order() {
        let layout = Layout::of(&config("nessie-server")).unwrap();
        let Table { worker_slots, places, .. } = &layout.tables[0];
        assert_eq!((layout.client_slots, worker_slots.clone(), places[0].1), (1..6, 6..7, 7));
    }

    #[test]
    fn a_changed_table_may_be_shorter_than_its_place_and_not_longer() {
        let with_chunks = |change: fn(u64) -> u64| {
            Layout::changed(&config("nessie"), |_, params| {
                let geometry = Geometry::of(params);
                let chunks = change(geometry.chunks);
                *params = Geometry { chunks, ..geometry }.params(params.service);
            })
        };
        let planned = with_chunks(|chunks| chunks).unwrap().region_bytes;
        assert!(with_chunks(|chunks| chunks / 2).unwrap().region_bytes < planned);
        let error = with_chunks(|chunks| chunks + 1).err().expect("it has no such place");
        assert!(error.to_string().contains("and place for"), "{error}");
    }
}
