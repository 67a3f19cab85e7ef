//! Loch's own engines.
//!
//! The bench's process owns the nodes ([`nodes`]), whose memory is made to
//! measure ([`plan`]); each client's process attaches and runs its lanes
//! ([`client`]), counts what operations send ([`traffic`]) and, one of them,
//! times the memory accesses that no GET can avoid ([`limit`]).
//!
//! A cluster that is not the bench's own ([`attached`]), one over verbs
//! ([`network`]) and engines whose nodes have workers are measured through the
//! public API ([`api`]), as programs use them.
//!
//! What the papers compare their systems with are [`baselines`], which know of no fabric.
//!
//! On the simulated fabric all of them run in this process, in virtual time
//! ([`simulated`]).

mod api;
mod attached;
pub mod baselines;
mod client;
mod limit;
mod network;
mod nodes;
mod plan;
mod simulated;
mod store;
mod traffic;

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use loch_engines::nessie::{self, published};
use loch_fabric::shm::ShmEndpoint;

use super::{Endpoint, Service, Target, TargetError};
use crate::bench::harness::Measured;
use crate::bench::progress::Progress;
use crate::bench::spec::Spec;
use crate::bench::system::{Engine, Fabric};

pub use attached::resolve;

/// Loch's engines that can be measured.
pub const ENGINES: &[Engine] = &[
    Engine::Nessie,
    Engine::NessiePublished,
    Engine::NessieHybrid,
    Engine::NessieServer,
    Engine::Herd,
    Engine::Pilaf,
    Engine::KvDirect,
];

/// Starts the nodes, each a process.
pub fn start(
    engine: Engine,
    spec: &Spec,
    interrupted: &AtomicBool,
) -> Result<Box<dyn Service>, TargetError> {
    check(engine, spec.fabric)?;
    if engine.is_baseline() {
        return Ok(Box::new(baselines::Server::start(engine, spec, interrupted)?));
    }
    match &spec.attach {
        Some(attach) => Ok(Box::new(attached::Attached::find(attach)?)),
        None => Ok(Box::new(nodes::Nodes::start(engine, spec, interrupted)?)),
    }
}

/// Connects one client to the nodes.
pub fn connect(
    engine: Engine,
    spec: &Spec,
    endpoint: &Endpoint,
    client: u32,
) -> Result<Box<dyn Target>, TargetError> {
    check(engine, spec.fabric)?;
    if engine.is_baseline() {
        return baselines::connect(engine, spec, endpoint, client);
    }
    if spec.attach.is_some() || spec.fabric == Fabric::Verbs {
        return Ok(Box::new(api::Client::connect(engine, spec, endpoint, client)?));
    }
    Ok(match engine {
        Engine::Nessie => {
            type Nessie = nessie::Client<ShmEndpoint>;
            Box::new(client::Client::<Nessie>::connect(engine, spec, endpoint, client)?)
        }
        Engine::NessiePublished => {
            type Published = published::Client<ShmEndpoint>;
            Box::new(client::Client::<Published>::connect(engine, spec, endpoint, client)?)
        }
        _ => Box::new(api::Client::connect(engine, spec, endpoint, client)?),
    })
}

/// Runs a whole cluster with its clients in virtual time, in this process.
pub fn simulate(
    engine: Engine,
    spec: &Spec,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Result<Measured, TargetError> {
    check(engine, spec.fabric)?;
    simulated::measure(engine, spec, progress, interrupted)
}

/// Whether this build has both.
fn check(engine: Engine, fabric: Fabric) -> Result<(), TargetError> {
    if !engines(fabric).contains(&engine) {
        let names = |fabric| names(&engines(fabric));
        return Err(TargetError::EngineUnavailable {
            engine: engine.name(),
            fabric: fabric.name(),
            there: names(fabric),
            simulated: names(Fabric::Sim),
        });
    }
    if fabric == Fabric::Verbs && !cfg!(feature = "verbs") {
        return Err(TargetError::FabricUnavailable { fabric: fabric.name() });
    }
    Ok(())
}

/// The engines that can be measured over a fabric.
fn engines(fabric: Fabric) -> Vec<Engine> {
    let but = |other| ENGINES.iter().copied().filter(move |engine| *engine != other);
    let baselines = Engine::BASELINES.iter().copied();
    match fabric {
        Fabric::Shm => [ENGINES, Engine::BASELINES].concat(),
        // Its processors are simulated with the card that they run on, not with these.
        Fabric::Sim => but(Engine::KvDirect).chain(baselines).collect(),
        // Tables of the published protocol are not served over a network.
        Fabric::Verbs => but(Engine::NessiePublished).collect(),
    }
}

/// The engines of this build, for people.
pub fn engine_names() -> String {
    names(ENGINES)
}

fn names(engines: &[Engine]) -> String {
    let names: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
    names.join(", ")
}

/// The table that is measured.
const TABLE: &str = "bench";

/// Where a client's records go when they are loaded.
struct Homes {
    /// The client's home node, and how many nodes can be one.
    home: usize,
    nodes: usize,
    /// Whether they go to all nodes, in equal parts.
    spreads: bool,
}

impl Homes {
    fn of(endpoint: &Endpoint, spec: &Spec, client: u32) -> Self {
        let nodes = endpoint.paths.len();
        let spreads = !(spec.clients as usize).is_multiple_of(nodes);
        Self { home: client as usize % nodes, nodes, spreads }
    }

    /// The parts of `records` that go to each node. Where clients are spread
    /// evenly over the nodes, so is what each of them puts at home.
    fn parts(&self, records: Range<u64>) -> Vec<(usize, Range<u64>)> {
        if !self.spreads {
            return vec![(self.home, records)];
        }
        let (len, nodes) = (records.end - records.start, self.nodes as u64);
        let at = |part: u64| {
            records.start + (u128::from(len) * u128::from(part) / u128::from(nodes)) as u64
        };
        (0..nodes)
            .map(|part| ((self.home + part as usize) % self.nodes, at(part)..at(part + 1)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_there_if_they_were_built() {
        let checked = check(Engine::Nessie, Fabric::Verbs).map_err(|error| error.to_string());
        match cfg!(feature = "verbs") {
            true => assert_eq!(checked, Ok(())),
            false => assert!(checked.unwrap_err().contains("--features verbs")),
        }
    }

    #[test]
    fn what_is_not_in_this_build_says_so() {
        assert!(check(Engine::Nessie, Fabric::Shm).is_ok());
        for engine in ENGINES.iter().chain(Engine::BASELINES) {
            assert!(check(*engine, Fabric::Shm).is_ok());
            assert!(*engine == Engine::KvDirect || check(*engine, Fabric::Sim).is_ok());
        }
        for (engine, fabric, word) in [
            (Engine::NessiePublished, Fabric::Verbs, "nessie-published"),
            (Engine::KvDirect, Fabric::Sim, "kv-direct"),
        ] {
            let error = check(engine, fabric).unwrap_err();
            let text = error.to_string();
            assert!(
                !error.is_skip() && text.contains(word) && text.contains("this build"),
                "{text}"
            );
        }
    }
}
