//! A client of either of nessie's two protocols, as the table requires.

use std::sync::Arc;

use loch_fabric::{Buf, Fabric};

use super::check::expire::ExpiryWalk;
use super::check::report::{CheckReport, Expired, Scrubbed, Usage};
use super::client::{Client, Counts};
use super::layout::geometry::Protocol;
use super::layout::hash::TableMap;
use super::ops::reserve::Reservation;
use super::published;
use crate::error::EngineError;
use crate::kv::{Kv, check_key};
use crate::net::Access;
use crate::operation::{Batch, Done, Operation, Outcome, PutOptions};
use crate::scan::{Cursor, Listed};

/// A client of a table of nessie's layout.
pub enum AnyClient<F: Fabric> {
    /// A client that goes by Loch's own protocol.
    Loch(Client<F>),
    /// A client that goes by the published protocol.
    Published(published::Client<F>),
}

impl<F: Fabric> Kv for AnyClient<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        self.base().fabric()
    }

    fn retries(&self) -> u64 {
        self.base().retries()
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError> {
        match self {
            Self::Loch(client) => client.execute(key, operation, buf).await,
            // In a box: its future is thrice as large.
            Self::Published(client) => Box::pin(client.execute(key, operation, buf)).await,
        }
    }

    fn shares(&self, is_read: bool) -> bool {
        matches!(self, Self::Loch(client) if client.shares(is_read))
    }

    async fn execute_many(
        &self,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        match self {
            Self::Loch(client) => client.execute_many(batch, done).await,
            Self::Published(_) => Err(EngineError::Unsupported),
        }
    }

    fn come_to_rest(&self) -> impl Future<Output = Result<(), EngineError>> {
        self.base().come_to_rest()
    }

    fn leave(&self) {
        self.base().leave();
    }

    fn detach(&self) -> impl Future<Output = Result<(), EngineError>> {
        self.base().detach()
    }
}

impl<F: Fabric> AnyClient<F> {
    /// The client over `fabric` that has `access` to a table.
    pub fn new(fabric: F, map: Arc<TableMap>, access: Access) -> Self {
        let Access { session, cache, timing, .. } = access;
        let timeout_us = timing.timeout_us;
        match map.shape.protocol {
            Protocol::Loch => Self::Loch(Client::new(fabric, map, session, cache, timeout_us)),
            Protocol::Published { .. } => {
                Self::Published(published::Client::new(fabric, map, session, cache, timeout_us))
            }
        }
    }

    /// The memory, sessions and epochs that both kinds of client have in common.
    pub fn base(&self) -> &Client<F> {
        match self {
            Self::Loch(client) => client,
            Self::Published(client) => client.base(),
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
            Self::Loch(client) => client.reserve(key, len, options).await.map(Some),
            Self::Published(client) => {
                check_key(key)?;
                client.base().check_value(len).map(|()| None)
            }
        }
    }

    /// As [`Client::wander`].
    ///
    /// # Errors
    /// As [`Client::wander`].
    #[cfg(feature = "planted")]
    pub async fn wander(&self, key: &[u8]) -> Result<bool, EngineError> {
        match self {
            Self::Loch(client) => client.wander(key).await,
            Self::Published(client) => client.wander(key).await,
        }
    }

    /// As [`Client::scrub`], by the rules of the table's protocol.
    ///
    /// # Errors
    /// As [`Client::scrub`].
    pub async fn scrub(&self, dti: u8, wait_us: u64) -> Result<Scrubbed, EngineError> {
        match self {
            Self::Loch(client) => client.scrub(dti, wait_us).await,
            Self::Published(client) => client.scrub(dti, wait_us).await,
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
            Self::Loch(client) => client.scan(from, found).await,
            Self::Published(_) => Err(EngineError::NoScans),
        }
    }

    /// As [`Client::expire_some`], by the rules of the table's protocol.
    ///
    /// # Errors
    /// As [`Client::expire_some`].
    pub async fn expire_some(&self, walk: &mut ExpiryWalk) -> Result<Expired, EngineError> {
        match self {
            Self::Loch(client) => client.expire_some(walk).await,
            Self::Published(client) => client.expire_some(walk).await,
        }
    }

    /// As [`Client::check`].
    ///
    /// # Errors
    /// The fabric's.
    pub async fn check(&self) -> Result<CheckReport, EngineError> {
        match self {
            Self::Loch(client) => client.check().await,
            Self::Published(client) => client.check().await,
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
}
