//! The engines whose workers take part in operations.

mod cluster;
mod herd;
mod kv_direct;
mod nessie;
mod pilaf;
mod recorder;
mod script;
mod setting;

use clap::ValueEnum;
use loch_engines::herd::storage::Mode;

use crate::report::Report;

/// An engine whose servers take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 8] = [
        Engine::Server,
        Engine::Hybrid,
        Engine::ServerScarce,
        Engine::HybridScarce,
        Engine::HerdStore,
        Engine::HerdCache,
        Engine::Pilaf,
        Engine::KvDirect,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_name().to_string()
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
        match self {
            Engine::Server => cluster::run::<nessie::ServerDriven<false>>(seed),
            Engine::Hybrid => cluster::run::<nessie::Hybrid<false>>(seed),
            Engine::ServerScarce => cluster::run::<nessie::ServerDriven<true>>(seed),
            Engine::HybridScarce => cluster::run::<nessie::Hybrid<true>>(seed),
            Engine::HerdStore => herd::run(Mode::Store, seed),
            Engine::HerdCache => herd::run(Mode::Cache, seed),
            Engine::Pilaf => cluster::run::<pilaf::Pilaf>(seed),
            Engine::KvDirect => cluster::run::<kv_direct::KvDirect>(seed),
        }
    }
}
