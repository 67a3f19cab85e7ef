//! The clients that do operations on many keys together, rather than as many single ones.

use loch_engines::net::Net;
use loch_engines::operation::Found;
use loch_engines::{EngineError, kv_direct, nessie};
use loch_fabric::shm::ShmEndpoint;

use super::net::Shm;
use super::operations::Operations;

/// A client that does operations on many keys together.
pub(crate) enum Batching<'a> {
    /// In stages over all keys.
    Stages(Stages<'a>),
    /// In packets, which workers execute.
    Packets(&'a kv_direct::Client<<Shm as Net>::Waiting>),
}

/// A client of nessie.
pub(crate) enum Stages<'a> {
    /// On shared memory, where the steps of many keys overlap.
    Near(&'a nessie::Client<ShmEndpoint>),
    /// Over a network, where the keys share round trips.
    Far(&'a dyn Operations),
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
            Self::Stages(Stages::Near(client)) => client.get_many(keys, found).await,
            // Boxed, so that the future is as small as batches on one host need it.
            Self::Stages(Stages::Far(client)) => Box::pin(get_far(client, keys, found)).await,
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
            Self::Stages(Stages::Near(client)) => client.put_many(pairs, stored).await,
            Self::Stages(Stages::Far(client)) => Box::pin(put_far(client, pairs, stored)).await,
            Self::Packets(client) => client.put_many(pairs, stored).await,
        }
    }

    /// The client that works in stages, which has more kinds of batches.
    pub fn stages(self) -> Option<Stages<'a>> {
        match self {
            Self::Stages(client) => Some(client),
            Self::Packets(_) => None,
        }
    }
}

impl Stages<'_> {
    /// Hands on whether each of many keys has a value.
    ///
    /// # Errors
    /// As [`Batching::get_many`].
    pub async fn contains_many<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        mut contained: impl FnMut(usize, bool),
    ) -> Result<(), EngineError> {
        match self {
            Self::Near(client) => client.contains_many(keys, contained).await,
            Self::Far(client) => client.contains_many(&bytes(keys), &mut contained).await,
        }
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
        match self {
            Self::Near(client) => client.delete_many(keys, deleted).await,
            Self::Far(client) => client.delete_many(&bytes(keys), &mut deleted).await,
        }
    }
}

async fn get_far<K: AsRef<[u8]>>(
    client: &dyn Operations,
    keys: &[K],
    mut found: impl FnMut(usize, Option<Found<'_>>),
) -> Result<(), EngineError> {
    client.get_many(&bytes(keys), &mut found).await
}

async fn put_far<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    client: &dyn Operations,
    pairs: &[(K, V)],
    mut stored: impl FnMut(usize, u64),
) -> Result<(), EngineError> {
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
    client.put_many(&pairs, &mut stored).await
}

fn bytes<K: AsRef<[u8]>>(keys: &[K]) -> Vec<&[u8]> {
    keys.iter().map(AsRef::as_ref).collect()
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::{Cluster, EmbeddedConfig};

    #[test]
    fn batches_through_the_trait_are_those_of_the_client() {
        let table = Cluster::embedded(EmbeddedConfig::default()).unwrap().table("default").unwrap();
        let far = || Stages::Far(table.operations());
        let keys: Vec<_> = (0..300u32).map(|key| key.to_le_bytes()).collect();
        let pairs: Vec<_> = keys[..200].iter().map(|key| (*key, *key)).collect();
        let mut versions = vec![0; 200];
        let put =
            Batching::Stages(far()).put_many(&pairs, |pair, version| versions[pair] = version);
        block_on(put).unwrap();
        assert!(versions.iter().all(|version| *version > 0));
        let mut found = vec![None; 300];
        let get = Batching::Stages(far()).get_many(&keys, |key, value| {
            found[key] = value.map(|value| (value.version, value.value.to_vec()));
        });
        block_on(get).unwrap();
        for (number, found) in found.iter().enumerate() {
            let expected = versions.get(number).map(|version| (*version, keys[number].to_vec()));
            assert_eq!(*found, expected);
        }
        let mut deleted = vec![None; 300];
        block_on(far().delete_many(&keys, |key, had| deleted[key] = Some(had))).unwrap();
        assert!(deleted.iter().enumerate().all(|(key, had)| *had == Some(key < 200)));
        let mut contained = vec![None; 300];
        block_on(far().contains_many(&keys, |key, has| contained[key] = Some(has))).unwrap();
        assert_eq!(contained, [Some(false); 300]);
        let refused = block_on(far().delete_many(&[&b"good"[..], b""], |_, _| ()));
        assert_eq!(refused, Err(EngineError::KeyEmpty));
    }
}
