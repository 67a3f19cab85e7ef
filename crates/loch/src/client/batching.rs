//! The clients that do operations on many keys together, rather than as many single ones.

use loch_engines::net::Net;
use loch_engines::operation::Found;
use loch_engines::{EngineError, kv_direct, nessie};
use loch_fabric::shm::ShmEndpoint;

use super::net::Shm;

/// A client that does operations on many keys together.
pub(crate) enum Batching<'a> {
    /// In stages over all keys.
    Stages(&'a nessie::Client<ShmEndpoint>),
    /// In packets, which workers execute.
    Packets(&'a kv_direct::Client<<Shm as Net>::Waiting>),
}

impl<'a> Batching<'a> {
    /// GETs many keys. `found` is called once for each key, with its index, in any order.
    ///
    /// # Errors
    /// As [`Kv::get`](loch_engines::Kv::get). After an error no further GETs are begun.
    pub async fn get_many<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        found: impl FnMut(usize, Option<Found<'_>>),
    ) -> Result<(), EngineError> {
        match self {
            Self::Stages(client) => client.get_many(keys, found).await,
            Self::Packets(client) => client.get_many(keys, found).await,
        }
    }

    /// PUTs many pairs. `stored` is called for each pair, with its index and version, in any order.
    ///
    /// # Errors
    /// As [`Kv::put`](loch_engines::Kv::put). After an error no further PUTs are begun.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self,
        pairs: &[(K, V)],
        stored: impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        match self {
            Self::Stages(client) => client.put_many(pairs, stored).await,
            Self::Packets(client) => client.put_many(pairs, stored).await,
        }
    }

    /// The client whose steps over many keys overlap, which has more kinds of batches.
    pub fn stages(self) -> Option<&'a nessie::Client<ShmEndpoint>> {
        match self {
            Self::Stages(client) => Some(client),
            Self::Packets(_) => None,
        }
    }
}
