//! PUTs with a condition, and fetch_add: updates whose CAS expects the word that was tested.
//!
//! From that CAS to the commit no client can change the slot without aborting the entry in it. The
//! tested condition therefore still holds at the commit, which is the linearization point.

use std::cell::Cell;

use loch_fabric::Fabric;

use super::client::Client;
use crate::error::EngineError;
use crate::nessie::ops::draft::{DraftValue, Rule};
use crate::operation::{Conditional, Expect, PutOptions};

impl<F: Fabric> Client<F> {
    /// Gives `key` the value `value` if the present value is as expected.
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
        let draft = self.draft(key, DraftValue::Bytes(value), options).await?;
        Ok(self.install(&draft, expect.into()).await?.conditional(draft.version))
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns the number
    /// before; a key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Client::put`], and [`EngineError::NotACounter`].
    pub async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        let number = DraftValue::Number(Cell::new(add));
        let draft = self.draft(key, number, PutOptions::default()).await?;
        Ok(self.install(&draft, Rule::Add(add)).await?.before())
    }
}
