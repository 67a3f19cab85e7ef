//! The clients of both protocols as clients of an engine.
//!
//! The futures of [`Kv`] are those of the operations themselves: one that awaits another costs a GET over
//! shared memory some percent.

use loch_fabric::{Buf, Fabric};

use super::{Client, published};
use crate::engine::Kv;
use crate::error::EngineError;
use crate::operation::{Conditional, Expect, Operation, Outcome, PutOptions, Value};

/// Forwards what both protocols have by the same names.
macro_rules! kv {
    ($($client:ident)::+) => {
        impl<F: Fabric> Kv for $($client)::+<F> {
            type Fabric = F;

            fn fabric(&self) -> &F {
                self.fabric()
            }

            fn retries(&self) -> u64 {
                self.counts().retries.get()
            }

            #[inline]
            fn get(
                &self,
                key: &[u8],
                buf: Buf,
            ) -> impl Future<Output = Result<Option<Value>, EngineError>> {
                self.get(key, buf)
            }

            fn contains(&self, key: &[u8]) -> impl Future<Output = Result<bool, EngineError>> {
                self.contains(key)
            }

            async fn execute(
                &self,
                key: &[u8],
                operation: Operation<'_>,
            ) -> Result<Outcome<'static>, EngineError> {
                Ok(match operation {
                    Operation::Get => return Err(EngineError::Unsupported),
                    Operation::Contains => Outcome::Contained(self.contains(key).await?),
                    Operation::Put { value, options } => {
                        Outcome::Stored(self.put(key, value, options).await?)
                    }
                    Operation::PutIf { value, expect, options } => {
                        self.put_if(key, value, expect, options).await?.into()
                    }
                    Operation::Delete => Outcome::Deleted(self.delete(key).await?),
                    Operation::FetchAdd(add) => Outcome::Before(self.fetch_add(key, add).await?),
                })
            }

            #[inline]
            fn put(
                &self,
                key: &[u8],
                value: &[u8],
                options: PutOptions,
            ) -> impl Future<Output = Result<u64, EngineError>> {
                self.put(key, value, options)
            }

            fn put_if(
                &self,
                key: &[u8],
                value: &[u8],
                expect: Expect,
                options: PutOptions,
            ) -> impl Future<Output = Result<Conditional, EngineError>> {
                self.put_if(key, value, expect, options)
            }

            fn delete(&self, key: &[u8]) -> impl Future<Output = Result<bool, EngineError>> {
                self.delete(key)
            }

            fn fetch_add(
                &self,
                key: &[u8],
                add: u64,
            ) -> impl Future<Output = Result<u64, EngineError>> {
                self.fetch_add(key, add)
            }

            fn detach(&self) -> impl Future<Output = Result<(), EngineError>> {
                self.detach()
            }
        }
    };
}

kv!(Client);
kv!(published::Client);
