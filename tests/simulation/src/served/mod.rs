//! The engines whose workers take part in operations.

mod cluster;
mod design;
mod herd;
mod kv_direct;
mod memory;
mod nessie;
mod pilaf;
mod recorder;
mod run;
mod script;
mod sessions;
mod setting;
mod worker;

use clap::ValueEnum;
use loch_engines::herd::TableMode;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

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
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let design = match self {
            Engine::Server => nessie::server(&mut random, false),
            Engine::Hybrid => nessie::hybrid(&mut random, false),
            Engine::ServerScarce => nessie::server(&mut random, true),
            Engine::HybridScarce => nessie::hybrid(&mut random, true),
            Engine::HerdStore => herd::draw(&mut random, TableMode::Store),
            Engine::HerdCache => herd::draw(&mut random, TableMode::Cache),
            Engine::Pilaf => pilaf::draw(&mut random),
            Engine::KvDirect => kv_direct::draw(&mut random),
        };
        run::run(design, random)
    }
}
