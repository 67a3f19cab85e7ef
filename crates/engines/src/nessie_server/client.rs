//! A client of a nessie-server table.

use loch_fabric::Fabric;

use super::ask::Asker;
use super::served::Served;
use crate::epoch::Session;
use crate::requests::{self, ByWrite, Timing, WrittenReplies};

/// A client of a nessie-server table.
pub type Client<F> = requests::Client<F, ByWrite, WrittenReplies, Served>;

impl<F: Fabric> Client<F> {
    /// A client over `fabric`, to which all regions of `map` are attached. It packs up to `batch`
    /// operations into a request.
    ///
    /// # Panics
    /// If the session is an observer's, or its node or slot is not one of the map's.
    pub fn new(fabric: F, map: Served, session: &Session, timing: Timing, batch: usize) -> Self {
        Self::over(fabric, Asker::of(map, session, timing, batch))
    }

    /// The table's map.
    pub fn map(&self) -> &Served {
        self.asker().owners()
    }
}
