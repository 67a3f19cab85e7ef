//! The clients that do operations on many keys together, rather than as many single ones.

use loch_engines::operation::{Batch, Outcome, ValueRef, Version};
use loch_engines::{EngineError, nessie};
use loch_fabric::shm::ShmEndpoint;

use super::operations::Operations;

/// A client that does operations on many keys together.
pub(crate) enum Batching<'a> {
    /// Nessie's client, on shared memory.
    Near(&'a nessie::Client<ShmEndpoint>),
    /// Any other client.
    Any(&'a dyn Operations),
}

impl Batching<'_> {
    /// GETs many keys. `found` is called once for each key, with its index, in any order.
    ///
    /// # Errors
    /// As [`Kv::get`](loch_engines::Kv::get). After an error no further GETs are begun.
    pub async fn get_many<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<(), EngineError> {
        let client = match self {
            Self::Near(client) => return client.get_many(keys, found).await,
            Self::Any(client) => client,
        };
        // Boxed, so that the future is as small as batches on one host need it.
        let get = async {
            let keys = bytes(keys);
            let mut done = |key: usize, outcome: Outcome<'_>| found(key, outcome.found());
            client.execute_many(Batch::Get(&keys), &mut done).await
        };
        Box::pin(get).await
    }

    /// PUTs many pairs. `stored` is called for each pair, with its index and version, in any order.
    ///
    /// # Errors
    /// As [`Kv::put`](loch_engines::Kv::put). After an error no further PUTs are begun.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self,
        pairs: &[(K, V)],
        mut stored: impl FnMut(usize, Version),
    ) -> Result<(), EngineError> {
        let client = match self {
            Self::Near(client) => return client.put_many(pairs, stored).await,
            Self::Any(client) => client,
        };
        let put = async {
            let pairs: Vec<_> =
                pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
            let mut done = |pair: usize, outcome: Outcome<'_>| {
                if let Outcome::Stored(version) = outcome {
                    stored(pair, version);
                }
            };
            client.execute_many(Batch::Put(&pairs), &mut done).await
        };
        Box::pin(put).await
    }

    /// Hands on whether each of many keys has a value.
    ///
    /// # Errors
    /// As [`Batching::get_many`].
    pub async fn contains_many<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        mut contained: impl FnMut(usize, bool),
    ) -> Result<(), EngineError> {
        let client = match self {
            Self::Near(client) => return client.contains_many(keys, contained).await,
            Self::Any(client) => client,
        };
        let mut done = |key: usize, outcome: Outcome<'_>| {
            contained(key, outcome == Outcome::Contained(true));
        };
        client.execute_many(Batch::Contains(&bytes(keys)), &mut done).await
    }

    /// Deletes many keys. `deleted` is called for each key, with whether it had a value.
    ///
    /// # Errors
    /// As [`Kv::delete`](loch_engines::Kv::delete). After an error no further DELETEs are begun.
    pub async fn delete_many<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        mut deleted: impl FnMut(usize, bool),
    ) -> Result<(), EngineError> {
        let client = match self {
            Self::Near(client) => return client.delete_many(keys, deleted).await,
            Self::Any(client) => client,
        };
        let mut done = |key: usize, outcome: Outcome<'_>| {
            deleted(key, outcome == Outcome::Deleted(true));
        };
        client.execute_many(Batch::Delete(&bytes(keys)), &mut done).await
    }
}

fn bytes<K: AsRef<[u8]>>(keys: &[K]) -> Vec<&[u8]> {
    keys.iter().map(AsRef::as_ref).collect()
}
