//! The node's memory, as its device lends it.

use loch_fabric::verbs::{Host, Offer};

use crate::node::control::registry::{Acceptor, Admission, Visit};

/// The node's memory, as its device lends it.
pub(in crate::node::network) struct LentRegion(pub Host);

impl Acceptor for LentRegion {
    fn accept(&self, visit: &Visit<'_>) -> Result<(Admission, serde_json::Value), String> {
        let offer: Offer =
            serde_json::from_value(visit.offer.clone()).map_err(|e| e.to_string())?;
        let (accepted, answer) = self.0.accept(&offer, visit.grants).map_err(|e| e.to_string())?;
        let answer = serde_json::to_value(&answer).map_err(|e| e.to_string())?;
        Ok((Box::new(accepted), answer))
    }
}
