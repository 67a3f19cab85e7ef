//! The waits of a client: grace periods under way, and the actions that become possible when they
//! have passed (`memory/reclaim.rs`).
//!
//! # Invariants
//! 1. A wait is in the client's list, or a lane has it in its hands and puts it back when the
//!    lane's future ends, wherever that is. So a future that is dropped loses no slab that it has
//!    seized or closed.
//! 2. The grace period of a wait begins after the last slab was added to it.

use loch_fabric::Fabric;

use super::Client;
use super::alloc::Parked;
use super::claims::Claim;
use crate::epoch::Grace;
use crate::error::EngineError;
use crate::nessie::layout::slab::{Class, Slab};
use crate::planted::{self, Bug};

/// An action that becomes possible after grace periods.
#[derive(Debug)]
pub(in crate::nessie) struct Wait {
    /// The grace period that is under way; `None` if the next one is still to begin.
    grace: Option<Grace>,
    /// The number of grace periods that have to follow this one.
    more: u32,
    pub then: Then,
}

/// The action that becomes possible.
#[derive(Debug)]
pub(in crate::nessie) enum Then {
    Rested(Class, Vec<Parked>),
    Seize(Vec<(Slab, Class)>),
    /// Closed slabs without an entry in use are to be taken apart, to make room for a class.
    TakeApart(Class, Vec<(Slab, Class)>),
    /// Seized slabs whose values are to be evicted, so that they can be taken apart.
    Empty(Class, Vec<(Slab, Class)>),
}

impl Then {
    /// Whether a planted bug makes the client act without waiting.
    fn is_hasty(&self) -> bool {
        match self {
            Self::Rested(..) => false,
            Self::Seize(..) | Self::Empty(..) => planted::is(Bug::SeizedUsedAtOnce),
            Self::TakeApart(..) => planted::is(Bug::RecutAtOnce),
        }
    }

    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Rested(_, places) => places.is_empty(),
            Self::Seize(slabs) | Self::TakeApart(_, slabs) | Self::Empty(_, slabs) => {
                slabs.is_empty()
            }
        }
    }
}

/// A wait that a lane has in its hands. It goes to the list when this is dropped, unless nothing is
/// left to do (invariant 1).
pub(in crate::nessie) struct InHand<'a, F: Fabric> {
    client: &'a Client<F>,
    wait: Option<Wait>,
    /// Whether it was in the list before: then it counts as a wait meanwhile.
    was_listed: bool,
}

impl<'a, F: Fabric> InHand<'a, F> {
    /// Takes the next wait off the list.
    pub fn next(client: &'a Client<F>) -> Option<Self> {
        let wait = client.waits.borrow_mut().pop_front()?;
        client.looking.set(client.looking.get() + 1);
        Some(Self { client, wait: Some(wait), was_listed: true })
    }

    pub fn wait(&mut self) -> &mut Wait {
        self.wait.as_mut().expect("it is in hand until it is dropped")
    }

    /// Adds a slab that a lane has claimed, and has now seized or closed.
    pub fn add(&mut self, claim: Claim<'_, F>, class: Class) {
        match &mut self.wait().then {
            Then::Seize(slabs) | Then::TakeApart(_, slabs) | Then::Empty(_, slabs) => {
                slabs.push((claim.slab(), class));
            }
            Then::Rested(..) => unreachable!("entries rest, and not slabs"),
        }
        claim.end();
    }

    /// Puts the wait into the list, with its grace period begun. Returns whether there is anything
    /// to wait for. If a node cannot be reached, the grace period begins later.
    pub async fn begin(mut self) -> Result<bool, EngineError> {
        let is_any = !self.wait().then.is_done();
        if is_any {
            unless_out_of_reach(self.has_passed().await)?;
        }
        Ok(is_any)
    }

    /// Whether all grace periods have passed. Begins the next one if it is time.
    pub async fn has_passed(&mut self) -> Result<bool, EngineError> {
        let client = self.client;
        let wait = self.wait();
        if let Some(grace) = &mut wait.grace {
            if !grace.has_passed(&client.fabric).await? && !wait.then.is_hasty() {
                return Ok(false);
            }
            if wait.more == 0 {
                return Ok(true);
            }
            wait.more -= 1;
            wait.grace = None;
        }
        wait.grace = Some(Grace::begin(&client.fabric, client.map.sessions()).await?);
        Ok(false)
    }
}

/// What was found about a wait: nothing yet, with the error, if a node cannot be reached. A lost
/// node holds up what waits for its sessions, and nothing else.
pub(in crate::nessie) fn unless_out_of_reach(
    looked: Result<bool, EngineError>,
) -> Result<(bool, Option<EngineError>), EngineError> {
    match looked {
        Err(error) if error.is_of_the_fabric() => Ok((false, Some(error))),
        looked => Ok((looked?, None)),
    }
}

impl<F: Fabric> Drop for InHand<'_, F> {
    fn drop(&mut self) {
        let wait = self.wait.take().filter(|wait| !wait.then.is_done());
        if self.was_listed {
            self.client.looking.set(self.client.looking.get() - 1);
        } else if planted::is(Bug::GatheredLost)
            && wait.as_ref().is_some_and(|wait| wait.grace.is_none())
        {
            return;
        }
        self.client.waits.borrow_mut().extend(wait);
    }
}

impl<F: Fabric> Client<F> {
    /// A wait for a grace period, and so many more, after which an action is possible. The grace
    /// period is still to [begin](InHand::begin).
    pub(in crate::nessie) fn gather(&self, more: u32, then: Then) -> InHand<'_, F> {
        let wait = Some(Wait { grace: None, more, then });
        InHand { client: self, wait, was_listed: false }
    }
}

impl<F: Fabric> Client<F> {
    /// Whether this client goes on with a slab, which is out of use, when it is used again.
    pub fn has_in_hand(&self, slab: Slab) -> bool {
        let has = |slabs: &[(Slab, Class)]| slabs.iter().any(|(at, _)| *at == slab);
        self.waits.borrow().iter().any(|wait| match &wait.then {
            Then::Rested(..) => false,
            Then::Seize(slabs) | Then::TakeApart(_, slabs) | Then::Empty(_, slabs) => has(slabs),
        })
    }
}
