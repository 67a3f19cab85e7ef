//! A client of a nessie-server table.

use loch_fabric::{Buf, Fabric, VerbCount};

use super::ask::Asker;
use super::served::Served;
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::Kv;
use crate::operation::{Operation, Outcome, Value};
use crate::requests::{Counts, Timing};

/// A client of a table: one thread's session slot, endpoint, and requests under way.
///
/// Its operations are `async` and take `&self`, so any number of them can be started in the lanes
/// of its thread. Operations beyond the window wait for each other.
pub struct Client<F: Fabric> {
    fabric: F,
    asker: Asker,
}

impl<F: Fabric> Client<F> {
    /// A client over `fabric`, to which all regions of `map` are attached.
    ///
    /// # Panics
    /// If the session is an observer's, or its node or slot is not one of the map's.
    pub fn new(fabric: F, map: Served, session: &Session, timing: Timing) -> Self {
        Self { fabric, asker: Asker::new(map, session, timing) }
    }

    /// The table's map.
    pub fn map(&self) -> &Served {
        self.asker.map()
    }

    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        self.asker.counts()
    }
}

impl<F: Fabric> Kv for Client<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn counted(&self) -> VerbCount {
        self.asker.requester().counted(&self.fabric)
    }

    fn retries(&self) -> u64 {
        self.asker.counts().repeated()
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.asker.ask(&self.fabric, key, Operation::Get, buf).await?.into_found()
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        let told = self.asker.ask(&self.fabric, key, Operation::Contains, Buf::new()).await?;
        told.outcome()?.contained()
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        let told = self.asker.ask(&self.fabric, key, operation, Buf::new()).await?;
        told.outcome()?.without_value()
    }
}
