//! PUTs with a condition, and fetch_add.
//!
//! Each of them is an update whose CAS expects the word that was tested. Their entries are not
//! BLIND: a PUT that loses to one of them starts over, and they themselves are never absorbed.

use std::cell::Cell;

use loch_fabric::Fabric;

use super::draft::{DraftValue, Rule};
use crate::error::EngineError;
use crate::nessie::client::Client;
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
        // To make room for the new value by evicting the one that it replaces would be in vain.
        let _spared = match expect {
            Expect::Version(version) if self.evicts() => Some(self.spare_version(version)),
            _ => None,
        };
        let draft = self.draft(key, DraftValue::Bytes(value), 0, options).await?;
        let (own, epoch) = self.allocate(draft.entry_len()).await?;
        self.write(&draft, own).await?;
        let installed = self.install(&draft, own, epoch, expect.into()).await?;
        Ok(installed.conditional(draft.version))
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns the number
    /// before; a key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Client::put`], and [`EngineError::NotACounter`].
    pub async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        let number = DraftValue::Number(Cell::new(add));
        let draft = self.draft(key, number, 0, PutOptions::default()).await?;
        let (own, epoch) = self.allocate(draft.entry_len()).await?;
        self.write(&draft, own).await?;
        Ok(self.install(&draft, own, epoch, Rule::Add(add)).await?.before())
    }
}
