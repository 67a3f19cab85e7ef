//! The baselines as systems of the bench.

use std::sync::atomic::AtomicBool;

use loch_bench::error::TargetError;
use loch_bench::measured::Measured;
use loch_bench::progress::Progress;
use loch_bench::spec::Spec;
use loch_bench::system::Fabric;
use loch_bench::target::{Endpoint, Service, System, Target};

use super::name::BaselineName;
use super::{process, simulated};

impl System for BaselineName {
    fn name(&self) -> &'static str {
        self.as_str()
    }

    fn is_loch(&self) -> bool {
        true
    }

    fn start(
        &self,
        spec: &Spec,
        interrupted: &AtomicBool,
    ) -> Result<Box<dyn Service>, TargetError> {
        if spec.fabric != Fabric::Shm {
            return Err(TargetError::Impossible(format!(
                "--fabric {}: baselines run over shm, and with --fabric sim",
                spec.fabric.name()
            )));
        }
        Ok(Box::new(process::Server::start(*self, spec, interrupted)?))
    }

    fn connect(
        &self,
        spec: &Spec,
        endpoint: &Endpoint,
        client: u32,
    ) -> Result<Box<dyn Target>, TargetError> {
        process::connect(*self, spec, endpoint, client)
    }

    fn simulate(
        &self,
        spec: &Spec,
        progress: &Progress,
        interrupted: &AtomicBool,
    ) -> Result<Measured, TargetError> {
        simulated::measure(*self, spec, progress, interrupted)
    }
}
