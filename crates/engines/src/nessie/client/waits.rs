//! The waits of a client: grace periods under way, and the actions that become possible when they
//! have passed (`memory/reclaim.rs`).

use loch_fabric::Fabric;

use super::Client;
use super::alloc::Parked;
use crate::epoch::Grace;
use crate::error::EngineError;
use crate::nessie::layout::slab::{Class, Slab};
use crate::planted::{self, Bug};

/// An action that becomes possible after grace periods.
#[derive(Debug)]
pub(in crate::nessie) struct Wait {
    pub grace: Grace,
    /// The number of grace periods that have to follow this one.
    pub more: u32,
    pub then: Then,
}

/// The action that becomes possible.
#[derive(Debug)]
pub(in crate::nessie) enum Then {
    Rested(Class, Vec<Parked>),
    Seize(Class, Vec<Slab>),
    /// Closed slabs without an entry in use are to be taken apart, to make room for a class.
    TakeApart(Class, Vec<(Slab, Class)>),
    /// Seized slabs whose values are to be evicted, so that they can be taken apart.
    Empty(Class, Vec<(Slab, Class)>),
}

impl Then {
    /// Whether a planted bug makes the client act without waiting.
    pub fn is_hasty(&self) -> bool {
        match self {
            Self::Rested(..) => false,
            Self::Seize(..) | Self::Empty(..) => planted::is(Bug::SeizedUsedAtOnce),
            Self::TakeApart(..) => planted::is(Bug::RecutAtOnce),
        }
    }
}

impl<F: Fabric> Client<F> {
    /// Begins a grace period, after which and so many more an action is possible.
    pub(in crate::nessie) async fn wait_then(
        &self,
        more: u32,
        then: Then,
    ) -> Result<(), EngineError> {
        let grace = Grace::begin(&self.fabric, self.map.sessions()).await?;
        self.waits.borrow_mut().push_back(Wait { grace, more, then });
        Ok(())
    }
}
