//! A client of a nessie-hybrid table.

use loch_fabric::{Buf, Fabric, FabricError, VerbCount};

use crate::epoch::Session;
use crate::error::EngineError;
use crate::nessie::{self, Attempts, CacheLimits};
use crate::nessie_server::Served;
use crate::nessie_server::ask::Asker;
use crate::operation::{Conditional, Expect, PutOptions, Value};
use crate::requests::{Counts, Timing};

/// A client of a table: one thread's session, endpoint, requests under way and cache.
///
/// Its operations are `async` and take `&self`, so any number of them can be under way in the lanes
/// of its thread.
pub struct Client<F: Fabric> {
    reader: nessie::Client<F>,
    asker: Asker,
}

impl<F: Fabric> Client<F> {
    /// A client over `fabric`, to which all regions of `map` are attached.
    ///
    /// # Panics
    /// If the session is an observer's, or not of a node and slot of the map.
    pub fn new(
        fabric: F,
        map: Served,
        session: Session,
        cache: CacheLimits,
        timing: Timing,
    ) -> Self {
        let asker = Asker::new(map.clone(), &session, timing);
        let reader = nessie::Client::new(fabric, map.table, session, cache, timing.timeout_us);
        Self { reader, asker }
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        self.reader.fabric()
    }

    /// The client that GETs, for its counts, and to detach it when this one ends.
    pub fn reader(&self) -> &nessie::Client<F> {
        &self.reader
    }

    /// The table's map.
    pub fn map(&self) -> &Served {
        self.asker.map()
    }

    /// What was counted of requests.
    pub fn counts(&self) -> &Counts {
        self.asker.counts()
    }

    /// What this client's operations cost so far: the endpoint's verbs, and the replies, which the
    /// workers sent.
    pub fn counted(&self) -> VerbCount {
        self.asker.requester().counted(self.fabric())
    }

    /// The value of `key`, if it has one. `buf` is filled with the entry.
    ///
    /// # Errors
    /// As [`nessie::Client::get`], and where this client may not write as [`Client::put`].
    pub async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        // Linearization point: that of nessie's GET, or the worker's, which found no value.
        let mut found = self.reader.get(key, buf).await;
        let mut attempts = Attempts::default();
        while may_not_write(&found) {
            if !self.expire(key).await? {
                return Ok(None);
            }
            // Another value, or by the worker's clock its time has not come.
            attempts.again(&self.reader).await?;
            found = self.reader.get(key, Buf::new()).await;
        }
        Ok(found?.map(nessie::Found::into_value))
    }

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        let found = self.reader.contains(key).await;
        if may_not_write(&found) { self.expire(key).await } else { found }
    }

    /// Has the worker look at a key whose value is expired, which removes it.
    #[cold]
    async fn expire(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.asked(self.asker.contains(self.fabric(), key).await)
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
        self.asked(self.asker.put(self.fabric(), key, value, options).await)
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
        self.asked(self.asker.put_if(self.fabric(), key, value, expect, options).await)
    }

    /// Takes the value of `key` away; whether it had one.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.asked(self.asker.delete(self.fabric(), key).await)
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns what it
    /// was; a key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Client::put`], and [`EngineError::NotACounter`].
    pub async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        self.asked(self.asker.fetch_add(self.fabric(), key, add).await)
    }

    /// After a request: while it was under way a GET may have ended, whose epoch it kept up.
    #[inline]
    fn asked<T>(&self, told: Result<T, EngineError>) -> Result<T, EngineError> {
        self.reader.rest()?;
        told
    }
}

/// Whether a GET met an expired value that it has no right to remove.
fn may_not_write<T>(found: &Result<T, EngineError>) -> bool {
    matches!(found, Err(EngineError::Fabric(FabricError::ReadOnly { .. })))
}
