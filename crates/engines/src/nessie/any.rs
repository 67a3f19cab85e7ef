//! A client of either of nessie's two protocols, as the table requires.

use std::sync::Arc;

use loch_fabric::{Fabric, FabricError};

use super::check::expire::ExpiryWalk;
use super::check::report::{CheckReport, Expired, Scrubbed, Usage};
use super::client::{Client, Counts};
use super::layout::geometry::Protocol;
use super::layout::hash::TableMap;
#[cfg(feature = "planted")]
use super::layout::ite::Place;
use super::ops::reserve::Reservation;
use super::published;
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::kv::OneOf;
use crate::net::Access;
use crate::operation::PutOptions;
use crate::scan::{Cursor, Listed};

/// A client of a table of nessie's layout: the first kind goes by Loch's own protocol, the second
/// by the published one.
pub type AnyClient<F> = OneOf<Client<F>, published::Client<F>>;

impl<F: Fabric> AnyClient<F> {
    /// The client over `fabric` that has `access` to a table.
    pub fn new(fabric: F, map: Arc<TableMap>, access: Access) -> Self {
        let Access { session, cache, timing, .. } = access;
        let timeout_us = timing.timeout_us;
        match map.shape.protocol {
            Protocol::Loch => Self::First(Client::new(fabric, map, session, cache, timeout_us)),
            Protocol::Published { .. } => {
                Self::Second(published::Client::new(fabric, map, session, cache, timeout_us))
            }
        }
    }

    /// The table's map.
    pub fn map(&self) -> &Arc<TableMap> {
        self.base().map()
    }

    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        self.base().counts()
    }

    /// Reserves memory for a value of `len` bytes under `key`; `None` if the protocol has no
    /// entries that are filled in place.
    ///
    /// # Errors
    /// The errors of a PUT.
    pub async fn reserve(
        &self,
        key: &[u8],
        len: usize,
        options: PutOptions,
    ) -> Result<Option<Reservation<'_, F>>, EngineError> {
        match self {
            Self::First(client) => client.reserve(key, len, options).await.map(Some),
            Self::Second(client) => client.check_lengths(key, len).map(|()| None),
        }
    }

    /// As [`Client::set_quarantine`].
    pub fn set_quarantine(&self, entries: usize) {
        self.base().set_quarantine(entries);
    }

    /// The incarnation of this client's session.
    pub fn incarnation(&self) -> u64 {
        self.base().incarnation()
    }

    /// As [`Client::rest`].
    ///
    /// # Errors
    /// The fabric's.
    pub fn rest(&self) -> Result<(), FabricError> {
        self.base().rest()
    }

    /// As [`Client::is_at_rest`].
    pub fn is_at_rest(&self) -> bool {
        self.base().is_at_rest()
    }

    /// As [`Client::hold`].
    ///
    /// # Errors
    /// The fabric's.
    pub fn hold(&self) -> Result<Pin<'_, F>, EngineError> {
        self.base().hold()
    }

    /// As [`Client::remembers`].
    #[cfg(feature = "planted")]
    pub fn remembers(&self, place: Place, generation: u64, home_epoch: u64) -> bool {
        self.base().remembers(place, generation, home_epoch)
    }

    /// As [`Client::wander`].
    ///
    /// # Errors
    /// As [`Client::wander`].
    #[cfg(feature = "planted")]
    pub async fn wander(&self, key: &[u8]) -> Result<bool, EngineError> {
        match self {
            Self::First(client) => client.wander(key).await,
            Self::Second(client) => client.wander(key).await,
        }
    }

    /// As [`Client::outlast`].
    ///
    /// # Errors
    /// As [`Client::outlast`].
    pub async fn outlast(&self, wait_us: u64) -> Result<(), EngineError> {
        self.base().outlast(wait_us).await
    }

    /// As [`Client::scrub`], by the rules of the table's protocol.
    ///
    /// # Errors
    /// As [`Client::scrub`].
    pub async fn scrub(&self, dti: u8, wait_us: u64) -> Result<Scrubbed, EngineError> {
        match self {
            Self::First(client) => client.scrub(dti, wait_us).await,
            Self::Second(client) => client.scrub(dti, wait_us).await,
        }
    }

    /// As [`Client::scan`].
    ///
    /// # Errors
    /// As [`Client::scan`]; [`EngineError::NoScans`] if the table is of the published protocol.
    pub async fn scan(
        &self,
        from: &Cursor,
        found: &mut dyn FnMut(Listed<'_>),
    ) -> Result<Option<Cursor>, EngineError> {
        match self {
            Self::First(client) => client.scan(from, found).await,
            Self::Second(_) => Err(EngineError::NoScans),
        }
    }

    /// As [`Client::expire_some`], by the rules of the table's protocol.
    ///
    /// # Errors
    /// As [`Client::expire_some`].
    pub async fn expire_some(&self, walk: &mut ExpiryWalk) -> Result<Expired, EngineError> {
        match self {
            Self::First(client) => client.expire_some(walk).await,
            Self::Second(client) => client.expire_some(walk).await,
        }
    }

    /// As [`Client::check`].
    ///
    /// # Errors
    /// The fabric's.
    pub async fn check(&self) -> Result<CheckReport, EngineError> {
        match self {
            Self::First(client) => client.check().await,
            Self::Second(client) => client.check().await,
        }
    }

    /// How the data table of each node is used. Reads every entry's generation.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn usage(&self) -> Result<Vec<Usage>, EngineError> {
        let mut all = Vec::new();
        for dti in 0..self.map().data_tables() {
            all.push(self.base().usage(dti as u8).await?);
        }
        Ok(all)
    }

    /// The memory, sessions and epochs that both kinds of client have in common.
    fn base(&self) -> &Client<F> {
        match self {
            Self::First(client) => client,
            Self::Second(client) => &client.base,
        }
    }
}
