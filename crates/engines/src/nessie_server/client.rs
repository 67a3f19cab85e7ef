//! A client of a nessie-server table.

use loch_fabric::{Buf, Fabric, VerbCount};

use super::ask::Asker;
use super::served::Served;
use crate::epoch::Session;
use crate::error::EngineError;
use crate::operation::{Conditional, Expect, PutOptions, Value};
use crate::requests::{Counts, Timing};

/// A client of a table: one thread's session slot, endpoint, and requests under way.
///
/// Its operations are `async` and take `&self`, so any number of them can be under way in the lanes
/// of its thread; beyond the window they wait for each other.
pub struct Client<F: Fabric> {
    fabric: F,
    asker: Asker,
}

impl<F: Fabric> Client<F> {
    /// A client over `fabric`, to which all regions of `map` are attached.
    ///
    /// # Panics
    /// If the session is an observer's, or not of a node and slot of the map.
    pub fn new(fabric: F, map: Served, session: &Session, timing: Timing) -> Self {
        Self { fabric, asker: Asker::new(map, session, timing) }
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The table's map.
    pub fn map(&self) -> &Served {
        self.asker.map()
    }

    /// What was counted besides verbs.
    pub fn counts(&self) -> &Counts {
        self.asker.counts()
    }

    /// What this client's operations cost so far: the endpoint's verbs, and the replies, which the
    /// workers sent.
    pub fn counted(&self) -> VerbCount {
        self.asker.requester().counted(&self.fabric)
    }

    /// The value of `key`, if it has one. `buf` is filled with the reply.
    ///
    /// # Errors
    /// [`EngineError`]; [`EngineError::Timeout`] if the worker did not answer in time.
    pub async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.asker.get(&self.fabric, key, buf).await
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.asker.contains(&self.fabric, key).await
    }

    /// Gives `key` the value `value`. Returns the value's version.
    ///
    /// # Errors
    /// [`EngineError`]; after any but [`EngineError::Ambiguous`] the key's value is what it was.
    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<u64, EngineError> {
        self.asker.put(&self.fabric, key, value, options).await
    }

    /// Gives `key` the value `value` if what it has is as expected.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, EngineError> {
        self.asker.put_if(&self.fabric, key, value, expect, options).await
    }

    /// Takes the value of `key` away; whether it had one.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.asker.delete(&self.fabric, key).await
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns what it
    /// was; a key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Client::put`], and [`EngineError::NotACounter`].
    pub async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        self.asker.fetch_add(&self.fabric, key, add).await
    }
}
