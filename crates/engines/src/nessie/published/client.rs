//! One client of one table of this protocol.

use std::sync::Arc;

use loch_fabric::Fabric;

use super::entry::{Dte, Previous, Status};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::nessie::client;
use crate::nessie::layout::geometry::Protocol;
use crate::nessie::layout::hash::TableMap;
use crate::nessie::layout::ite::{Ite, Place, State};
use crate::net::CacheLimits;
use crate::planted::{self, Bug};

/// A client of a table of the published protocol, repaired. It has the methods of
/// [`super::super::Client`] except for reservations, with the same meaning and errors.
///
/// The client uses a client of the other kind for everything that both protocols share: memory,
/// sessions, epochs and the validation of READs.
pub struct Client<F: Fabric> {
    pub(in crate::nessie) base: client::Client<F>,
    /// Whether a GET takes the previous version of an undecided entry.
    pub(super) previous_versions: bool,
}

impl<F: Fabric> Client<F> {
    /// A client over `fabric`, to which all regions of `map` are attached.
    ///
    /// `timeout_us` bounds the time for which an operation goes on after its first restart.
    ///
    /// # Panics
    /// If the table is of another protocol.
    pub fn new(
        fabric: F,
        map: Arc<TableMap>,
        session: Session,
        cache: CacheLimits,
        timeout_us: u64,
    ) -> Self {
        let Protocol::Published { previous_versions } = map.shape.protocol else {
            panic!("the table is of another protocol");
        };
        let base = client::Client::of_any_protocol(fabric, map, session, cache, timeout_us);
        Self { base, previous_versions }
    }

    /// The client of the other kind. Its count of "helped" counts undecided entries of others that
    /// were aborted.
    pub fn base(&self) -> &client::Client<F> {
        &self.base
    }

    /// The word that names an entry of a key with these filter bits.
    pub(super) fn word(&self, filter: u64, place: Place, generation: u64) -> Ite {
        self.base.map.codec.entry(State::Visible { hop: 0 }, filter, place, generation)
    }

    /// Decides a pending entry: `P -> status`, by CAS at the card that owns the entry's memory.
    /// Returns whether the entry was still pending and had that generation.
    pub(super) async fn decide(
        &self,
        word: Ite,
        generation: u64,
        status: Status,
    ) -> Result<bool, EngineError> {
        let Some((at, _)) = self.base.entry_at(word) else { return Ok(false) };
        let (from, to) = (Status::Pending.word(generation), status.word(generation));
        let at = Status::addr(at);
        if status == Status::Committed && planted::is(Bug::CommitsBlindly) {
            let was = self.base.read_word(at).await?;
            self.base.fabric.compare_swap(at, was, to).await?;
            return Ok(true);
        }
        Ok(self.base.fabric.compare_swap(at, from, to).await? == from)
    }

    /// Aborts an entry that another client left pending.
    pub(super) async fn abort(&self, word: Ite, dte: &Dte) -> Result<bool, EngineError> {
        let helped = &self.base.counts.helped;
        helped.set(helped.get() + 1);
        self.decide(word, dte.header.generation, Status::Aborted).await
    }

    /// Retires an entry to which no word refers any more because of this client's CAS.
    pub(super) fn retire(&self, old: Previous) -> Result<(), EngineError> {
        let class = self.base.map.classes.of(old.len);
        let place = self.base.map.codec.place(old.word);
        let Some(entry) = class.entry(place) else {
            // The operation is done; but the word that it replaced names no entry.
            tracing::warn!(?place, bytes = old.len, "damaged memory: no entry is there");
            return Ok(());
        };
        self.base.retire(entry, &class, old.generation)
    }
}
