//! The engines that this build can measure, and their fabrics.

use crate::error::TargetError;
use crate::system::{Engine, Fabric};

/// Loch's engines that can be measured.
const ENGINES: &[Engine] = &[
    Engine::Nessie,
    Engine::NessiePublished,
    Engine::NessieHybrid,
    Engine::NessieServer,
    Engine::Herd,
    Engine::Pilaf,
    Engine::KvDirect,
];

/// Checks that this build can measure the engine over the fabric.
pub fn check(engine: Engine, fabric: Fabric) -> Result<(), TargetError> {
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
    match fabric {
        Fabric::Shm => ENGINES.to_vec(),
        // Its processors are simulated with the card that they run on, not with these.
        Fabric::Sim => but(Engine::KvDirect).collect(),
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
        for engine in ENGINES {
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
