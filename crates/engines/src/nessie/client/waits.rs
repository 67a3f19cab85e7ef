//! The waits of a client: grace periods under way, and the actions that become possible when they
//! have passed (`memory/reclaim.rs`).

use super::alloc::Parked;
use crate::epoch::Grace;
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
    TakeApart(Vec<(Slab, Class)>),
}

impl Then {
    /// Whether a planted bug makes the client act without waiting.
    pub fn is_hasty(&self) -> bool {
        match self {
            Self::Rested(..) => false,
            Self::Seize(..) => planted::is(Bug::SeizedUsedAtOnce),
            Self::TakeApart(..) => planted::is(Bug::RecutAtOnce),
        }
    }
}
