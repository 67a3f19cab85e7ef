//! A client whose engine is known only at run time, as a [`Kv`].

use loch_fabric::{Buf, VerbCount};

use crate::error::EngineError;
use crate::kv::Kv;
use crate::net::Net;
use crate::operation::{Batch, Operation, Outcome, PutOptions, Value};
use crate::registry::Client;

impl<N: Net> Kv for Client<N> {
    type Fabric = N::Direct;

    fn fabric(&self) -> &N::Direct {
        self.direct()
    }

    fn counted(&self) -> VerbCount {
        Self::counted(self)
    }

    fn retries(&self) -> u64 {
        Self::retries(self)
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        Self::get(self, key, buf).await
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        Self::contains(self, key).await
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        Self::execute(self, key, operation).await
    }

    async fn get_and_touch(
        &self,
        key: &[u8],
        options: PutOptions,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        Self::get_and_touch(self, key, options, buf).await
    }

    fn shares(&self, is_read: bool) -> bool {
        Self::shares(self, is_read)
    }

    async fn execute_many(
        &self,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        Self::execute_many(self, batch, done).await
    }

    async fn come_to_rest(&self) -> Result<(), EngineError> {
        Self::come_to_rest(self).await
    }

    fn leave(&self) {
        Self::leave(self);
    }

    async fn detach(&self) -> Result<(), EngineError> {
        Self::detach(self).await
    }
}
