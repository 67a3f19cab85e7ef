//! The operations of a client, by the same names for all engines.

use loch_engines::EngineError;
use loch_engines::operation::{Conditional, Expect};

/// A client's operations.
#[allow(async_fn_in_trait, reason = "one thread, no bounds")]
pub trait Client {
    /// The value and its version.
    async fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>, EngineError>;
    /// Whether there is one.
    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError>;
    /// The new version.
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, EngineError>;
    /// What became of it.
    async fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
    ) -> Result<Conditional, EngineError>;
    /// Whether there was a value.
    async fn delete(&self, key: &[u8]) -> Result<bool, EngineError>;
    /// The number before.
    async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError>;
}

/// Makes an engine's client one of this harness: the operations of all have the same names.
macro_rules! client {
    ($client:ty) => {
        impl crate::served::client::Client for $client {
            async fn get(
                &self,
                key: &[u8],
            ) -> Result<Option<(Vec<u8>, u64)>, loch_engines::EngineError> {
                let found = self.get(key, loch_fabric::Buf::new()).await?;
                Ok(found.map(|value| (value.to_vec(), value.version())))
            }
            async fn contains(&self, key: &[u8]) -> Result<bool, loch_engines::EngineError> {
                self.contains(key).await
            }
            async fn put(
                &self,
                key: &[u8],
                value: &[u8],
            ) -> Result<u64, loch_engines::EngineError> {
                self.put(key, value, loch_engines::operation::PutOptions::default()).await
            }
            async fn put_if(
                &self,
                key: &[u8],
                value: &[u8],
                expect: loch_engines::operation::Expect,
            ) -> Result<loch_engines::operation::Conditional, loch_engines::EngineError> {
                self.put_if(key, value, expect, loch_engines::operation::PutOptions::default())
                    .await
            }
            async fn delete(&self, key: &[u8]) -> Result<bool, loch_engines::EngineError> {
                self.delete(key).await
            }
            async fn fetch_add(
                &self,
                key: &[u8],
                add: u64,
            ) -> Result<u64, loch_engines::EngineError> {
                self.fetch_add(key, add).await
            }
        }
    };
}
pub(crate) use client;
