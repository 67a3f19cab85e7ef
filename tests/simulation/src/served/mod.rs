//! The engines whose workers take part in operations.

mod cluster;
mod design;
mod herd;
mod kv_direct;
mod memory;
mod nessie;
mod node;
mod other;
mod pilaf;
mod recorder;
mod run;
mod script;
mod sessions;
mod setting;
mod worker;

use std::str::FromStr;

use loch_engines::herd::Mode;
use loch_engines::registry::EngineId;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::report::Report;

/// An engine whose servers take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// nessie-server: workers do everything.
    Server,
    /// nessie-hybrid: clients GET, workers do the rest.
    Hybrid,
    /// nessie-server with memory that all values together would fill to 70 to 110 %.
    ServerScarce,
    /// nessie-hybrid with such memory.
    HybridScarce,
    /// herd that loses nothing but what dies with its worker.
    HerdStore,
    /// herd that lets the oldest values go.
    HerdCache,
    /// pilaf with a log.
    Pilaf,
    /// kv-direct.
    KvDirect,
    /// Another one of the registry.
    Other(EngineId),
}

impl Engine {
    /// The engines whose tables the tests know.
    const KNOWN: [Engine; 8] = [
        Engine::Server,
        Engine::Hybrid,
        Engine::ServerScarce,
        Engine::HybridScarce,
        Engine::HerdStore,
        Engine::HerdCache,
        Engine::Pilaf,
        Engine::KvDirect,
    ];

    /// All engines of the registry that have workers.
    pub fn all() -> impl Iterator<Item = Engine> {
        let is_known = |id: EngineId| Self::KNOWN.iter().any(|engine| engine.id() == id);
        let others = EngineId::ALL.iter().copied();
        let others = others.filter(move |id| id.needs().workers && !is_known(*id));
        Self::KNOWN.into_iter().chain(others.map(Engine::Other))
    }

    fn id(self) -> EngineId {
        match self {
            Engine::Server | Engine::ServerScarce => EngineId::NessieServer,
            Engine::Hybrid | Engine::HybridScarce => EngineId::NessieHybrid,
            Engine::HerdStore | Engine::HerdCache => EngineId::Herd,
            Engine::Pilaf => EngineId::Pilaf,
            Engine::KvDirect => EngineId::KvDirect,
            Engine::Other(id) => id,
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Server => "server",
            Engine::Hybrid => "hybrid",
            Engine::ServerScarce => "server-scarce",
            Engine::HybridScarce => "hybrid-scarce",
            Engine::HerdStore => "herd-store",
            Engine::HerdCache => "herd-cache",
            Engine::Pilaf | Engine::KvDirect | Engine::Other(_) => self.id().name(),
        }
    }

    /// Whether the events for which the runs exist have happened in them.
    ///
    /// # Errors
    /// The event that has not happened.
    pub fn check_strikes(self, total: &Report) -> Result<(), String> {
        let is_scarce = matches!(self, Engine::ServerScarce | Engine::HybridScarce);
        let needed = [
            ("a client died", total.deaths > 0),
            ("a worker died", total.restarts > 0),
            ("memory was attached anew", total.attached > 0),
            ("an outcome was unknown", total.unknown > 0),
            ("a snapshot was made", total.snapshots > 0 || self != Engine::Pilaf),
            ("a cache lost a value", total.lossy > 0 || self != Engine::HerdCache),
            ("operations were forwarded", total.forwarded > 0 || self != Engine::KvDirect),
            ("a link was cut", total.cuts > 0 || self != Engine::KvDirect),
            ("memory ran out", total.refused > 0 || !(is_scarce || self == Engine::KvDirect)),
            ("slabs were seized", total.slabs.taken_over > 0 || !is_scarce),
            ("most outcomes are known", total.operations > 5 * total.unknown),
        ];
        match needed.into_iter().find(|(_, has)| !has) {
            None => Ok(()),
            Some((what, _)) => Err(format!("{}: it is not so that {what}", self.name())),
        }
    }

    /// Runs one seed.
    ///
    /// # Errors
    /// The violation, in words, with the history that shows it.
    pub fn run(self, seed: u64) -> Result<Report, String> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let design = match self {
            Engine::Server => nessie::server(&mut random, false),
            Engine::Hybrid => nessie::hybrid(&mut random, false),
            Engine::ServerScarce => nessie::server(&mut random, true),
            Engine::HybridScarce => nessie::hybrid(&mut random, true),
            Engine::HerdStore => herd::draw(&mut random, Mode::Store),
            Engine::HerdCache => herd::draw(&mut random, Mode::Cache),
            Engine::Pilaf => pilaf::draw(&mut random),
            Engine::KvDirect => kv_direct::draw(&mut random),
            Engine::Other(id) => other::draw(&mut random, id),
        };
        run::run(design, random)
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::all().find(|engine| engine.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::all().map(Self::name).collect();
            names.join(", ")
        })
    }
}
