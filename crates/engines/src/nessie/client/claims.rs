//! Claims: what becomes of a slab if the future of a lane ends while the lane changes the slab's
//! descriptor.
//!
//! A lane claims a slab before it posts its first CAS on the descriptor. It ends the claim when it
//! knows what the descriptor says, and this client's lists or one of its waits say the same. If the
//! future ends in between, because it is dropped or because a verb has failed, the slab is
//! **left**: a CAS may still be under way, or may have been executed although nobody saw it. A
//! second attempt could undo what other clients did since. So the client waits until its verbs have
//! settled, and then READs the descriptor: from there it knows how to go on.
//!
//! # Invariants
//! 1. A slab whose descriptor may be another than this client thinks has a claim. At most one lane
//!    has the claim, and while the slab is left no lane gets it.
//! 2. A left slab is looked at only when all verbs have settled that were posted before it was
//!    left.
//! 3. A descriptor is a claim too, towards other clients: if this client dies, its node goes on
//!    from it ([`release_dead`](crate::nessie::check::scrub::release_dead)), and knows as much.

use loch_fabric::Fabric;

use super::Client;
use crate::nessie::layout::slab::Slab;
use crate::planted::{self, Bug};

/// A slab that a lane has claimed, or that was left.
#[derive(Debug)]
pub(in crate::nessie) struct Claimed {
    slab: Slab,
    /// Set when the slab was left: the mark up to which verbs must have settled.
    left: Option<u64>,
}

/// A lane's claim on a slab. The slab is left if this is dropped before it has ended.
#[must_use = "the slab is left when this is dropped"]
pub(in crate::nessie) struct Claim<'a, F: Fabric> {
    client: &'a Client<F>,
    slab: Slab,
    has_ended: bool,
}

impl<F: Fabric> Claim<'_, F> {
    pub fn slab(&self) -> Slab {
        self.slab
    }

    /// The descriptor is what this client's lists and waits say, or is no business of this client.
    pub fn end(mut self) {
        self.has_ended = true;
    }
}

impl<F: Fabric> Drop for Claim<'_, F> {
    fn drop(&mut self) {
        let mut claims = self.client.claims.borrow_mut();
        let at = claims.iter().position(|claimed| claimed.slab == self.slab);
        let at = at.expect("it is there from the claim on");
        if self.has_ended {
            claims.swap_remove(at);
        } else {
            claims[at].left = Some(self.client.fabric.posted());
        }
    }
}

impl<F: Fabric> Client<F> {
    /// Claims a slab, unless it is claimed already or was left.
    pub(in crate::nessie) fn claim(&self, slab: Slab) -> Option<Claim<'_, F>> {
        let mut claims = self.claims.borrow_mut();
        if claims.iter().any(|claimed| claimed.slab == slab) {
            return None;
        }
        claims.push(Claimed { slab, left: None });
        Some(Claim { client: self, slab, has_ended: false })
    }

    /// Claims a slab that was left and can be looked at (invariant 2).
    pub(in crate::nessie) fn claim_left(&self) -> Option<Claim<'_, F>> {
        let is_settled = |mark| planted::is(Bug::LeftSeenEarly) || self.fabric.is_settled(mark);
        let mut claims = self.claims.borrow_mut();
        let left = claims.iter_mut().find(|claimed| claimed.left.is_some_and(is_settled))?;
        left.left = None;
        Some(Claim { client: self, slab: left.slab, has_ended: false })
    }

    /// Whether slabs were left.
    pub(in crate::nessie) fn has_left(&self) -> bool {
        self.claims.borrow().iter().any(|claimed| claimed.left.is_some())
    }
}
