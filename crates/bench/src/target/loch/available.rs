//! The engines that this build can measure, and their fabrics.

use crate::error::TargetError;
use crate::system::{Engine, Fabric};
use crate::target::Result;

/// Checks that this build can measure the engine over the fabric.
pub fn check(engine: Engine, fabric: Fabric) -> Result<()> {
    if !can_be_measured(engine, fabric) {
        let there = |fabric| {
            let engines = Engine::all().filter(|engine| can_be_measured(*engine, fabric));
            engines.map(Engine::name).collect::<Vec<_>>().join(", ")
        };
        return Err(TargetError::EngineUnavailable {
            engine: engine.name(),
            fabric: fabric.name(),
            there: there(fabric),
            simulated: there(Fabric::Sim),
        });
    }
    if fabric == Fabric::Verbs && !cfg!(feature = "verbs") {
        return Err(TargetError::FabricUnavailable { fabric: fabric.name() });
    }
    Ok(())
}

fn can_be_measured(engine: Engine, fabric: Fabric) -> bool {
    match fabric {
        Fabric::Shm => true,
        // A processor's accesses to its memory have no costs here: the card that it runs on is
        // simulated by the papers' harness.
        Fabric::Sim => !engine.packs_operations(),
        // Tables of the published protocol are not served over a network.
        Fabric::Tcp | Fabric::Verbs => !engine.is_published(),
    }
}

/// The engines of this build that differ in more than options, for people.
pub fn engine_names() -> String {
    Engine::main().map(Engine::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Engine {
        name.parse().unwrap()
    }

    #[test]
    fn verbs_are_there_if_they_were_built() {
        let checked = check(named("nessie"), Fabric::Verbs).map_err(|error| error.to_string());
        match cfg!(feature = "verbs") {
            true => assert_eq!(checked, Ok(())),
            false => assert!(checked.unwrap_err().contains("--features verbs")),
        }
    }

    #[test]
    fn an_engine_that_cannot_be_measured_is_named_with_those_that_can() {
        for engine in Engine::all() {
            assert!(check(engine, Fabric::Shm).is_ok());
            assert!(engine == named("kv-direct") || check(engine, Fabric::Sim).is_ok());
        }
        for (engine, fabric) in [("nessie-published", Fabric::Verbs), ("kv-direct", Fabric::Sim)] {
            let error = check(named(engine), fabric).unwrap_err();
            let text = error.to_string();
            assert!(
                !error.is_skip() && text.contains(engine) && text.contains("this build"),
                "{text}"
            );
        }
    }
}
