//! Loch's own engines.
//!
//! The bench's process owns the nodes ([`nodes`]), whose memory is planned for the workload
//! ([`plan`]). Each client's process attaches and runs its lanes through the public API, as
//! programs do ([`api`]), and counts the traffic of operations ([`traffic`]). One of them times the
//! memory accesses that no GET can avoid ([`limit`]); over TCP each of them exchanges messages like
//! those of its operations with a process that does nothing else ([`exchange`]).
//!
//! A cluster can also be one that is not the bench's own ([`attached`]), or be over verbs
//! ([`network`]). [`available`] lists the engines that can be measured.
//!
//! On the simulated fabric all of them run in this process, in virtual time
//! ([`simulated`]).

mod api;
mod attached;
mod available;
mod batch;
mod exchange;
mod homes;
pub mod lane;
mod limit;
mod network;
mod nodes;
pub mod plan;
pub mod simulated;
mod traffic;

use std::sync::atomic::AtomicBool;

use loch_engines::registry::EngineId;

use self::available::check;
use super::{Endpoint, Result, Service, System, Target};
use crate::measured::Measured;
use crate::progress::Progress;
use crate::spec::Spec;
use crate::system::{Engine, Fabric};

pub use self::attached::resolve;
pub use self::available::engine_names;

/// Checks that an engine can be measured in this run, before anything starts.
///
/// # Errors
/// Why it cannot.
pub fn check_run(engine: Engine, spec: &Spec) -> Result<()> {
    check(engine, spec.fabric)?;
    plan::check(engine, spec)
}

impl System for Engine {
    fn name(&self) -> &'static str {
        Engine::name(*self)
    }

    fn is_loch(&self) -> bool {
        true
    }

    fn reads_in_place(&self, fabric: Fabric) -> bool {
        fabric == Fabric::Shm && self.id() == EngineId::Nessie && !self.is_published()
    }

    fn start(&self, spec: &Spec, interrupted: &AtomicBool) -> Result<Box<dyn Service>> {
        check(*self, spec.fabric)?;
        Ok(match &spec.attach {
            Some(attach) => Box::new(attached::Attached::find(attach)?),
            None => Box::new(nodes::Nodes::start(*self, spec, interrupted)?),
        })
    }

    fn connect(&self, spec: &Spec, endpoint: &Endpoint, client: u32) -> Result<Box<dyn Target>> {
        check(*self, spec.fabric)?;
        Ok(Box::new(api::Client::connect(*self, spec, endpoint, client)?))
    }

    fn simulate(
        &self,
        spec: &Spec,
        progress: &Progress,
        interrupted: &AtomicBool,
    ) -> Result<Measured> {
        check(*self, spec.fabric)?;
        simulated::measure(*self, spec, progress, interrupted)
    }
}
