//! Loch's own engines.
//!
//! The bench's process owns the nodes ([`nodes`]), whose memory is made to
//! measure ([`plan`]); each client's process attaches and runs its lanes
//! ([`client`]), counts what operations send ([`traffic`]) and, one of them,
//! times the memory accesses that no GET can avoid ([`limit`]).
//!
//! On the simulated fabric all of them run in this process, in virtual time
//! ([`simulated`]).

mod client;
mod limit;
mod nodes;
mod plan;
mod simulated;
mod traffic;

use std::sync::atomic::AtomicBool;

use super::{Endpoint, Service, Target, TargetError};
use crate::bench::harness::Measured;
use crate::bench::progress::Progress;
use crate::bench::spec::Spec;
use crate::bench::system::{Engine, Fabric};

/// The engines of this build.
pub const ENGINES: &[Engine] = &[Engine::Nessie];

/// Starts the nodes, each a process.
pub fn start(
    engine: Engine,
    spec: &Spec,
    interrupted: &AtomicBool,
) -> Result<Box<dyn Service>, TargetError> {
    check(engine, spec.fabric)?;
    Ok(Box::new(nodes::Nodes::start(engine, spec, interrupted)?))
}

/// Connects one client to the nodes.
pub fn connect(
    engine: Engine,
    spec: &Spec,
    endpoint: &Endpoint,
    client: u32,
) -> Result<Box<dyn Target>, TargetError> {
    check(engine, spec.fabric)?;
    Ok(Box::new(client::Client::connect(engine, spec, endpoint, client)?))
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
    if !ENGINES.contains(&engine) {
        return Err(TargetError::EngineUnavailable { engine: engine.name() });
    }
    if fabric == Fabric::Verbs {
        return Err(TargetError::FabricUnavailable { fabric: fabric.name() });
    }
    Ok(())
}

/// The engines of this build, for people.
pub fn engine_names() -> String {
    let names: Vec<_> = ENGINES.iter().map(|engine| engine.name()).collect();
    names.join(", ")
}

/// The table that is measured.
const TABLE: &str = "bench";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_this_build_says_so() {
        assert!(check(Engine::Nessie, Fabric::Shm).is_ok());
        assert!(check(Engine::Nessie, Fabric::Sim).is_ok());
        for (engine, fabric, word) in [
            (Engine::Pilaf, Fabric::Shm, "pilaf"),
            (Engine::NessieHybrid, Fabric::Sim, "nessie-hybrid"),
            (Engine::Nessie, Fabric::Verbs, "verbs"),
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
