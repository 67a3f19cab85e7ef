//! Large values written in place: reserve, fill, commit. Nothing is copied.

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::draft::{Draft, DraftValue, Rule};
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::layout::dte::flags;
use crate::operation::{PutOptions, Version};

/// An entry whose value is being written in place. [`Reservation::commit`] makes it the key's
/// value. If the reservation is dropped before, it leaves nothing behind.
///
/// While a reservation lives, its client's epoch stands still: memory that other clients wait to
/// reuse waits with it.
pub struct Reservation<'a, F: Fabric> {
    client: &'a Client<F>,
    key: Vec<u8>,
    /// The draft, without its key.
    draft: Draft<'static>,
    /// The entry and the client's epoch; `None` once committed.
    held: Option<(Own, Pin<'a, F>)>,
}

impl<F: Fabric> Client<F> {
    /// Reserves memory for a value of `len` bytes under `key`.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn reserve(
        &self,
        key: &[u8],
        len: usize,
        options: PutOptions,
    ) -> Result<Reservation<'_, F>, EngineError> {
        let draft = self.draft(key, DraftValue::InPlace(len), flags::BLIND, options).await?;
        let held = self.allocate(draft.entry_len()).await?;
        let draft = Draft { key: &[], value: DraftValue::InPlace(len), ..draft };
        Ok(Reservation { client: self, key: key.to_vec(), draft, held: Some(held) })
    }
}

impl<F: Fabric> Reservation<'_, F> {
    fn draft(&self) -> Draft<'_> {
        Draft { key: &self.key, value: DraftValue::InPlace(self.len()), ..self.draft }
    }

    fn value_addr(&self) -> RemoteAddr {
        let (own, _) = self.held.as_ref().expect("held until it is committed");
        own.at.add(self.draft().header(own.generation).value_at() as u64)
    }

    /// Bytes of the value.
    #[allow(clippy::len_without_is_empty, reason = "an empty value is as good as any")]
    pub fn len(&self) -> usize {
        self.draft.value_len()
    }

    /// Writes `bytes` at `offset` into the value.
    ///
    /// # Errors
    /// The fabric's.
    ///
    /// # Panics
    /// If they do not fit into the value.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), EngineError> {
        let end = offset.checked_add(bytes.len());
        let inside = end.is_some_and(|end| end <= self.len());
        assert!(inside, "{} bytes at {offset} of a value of {}", bytes.len(), self.len());
        Ok(self.client.fabric.store(self.value_addr().add(offset as u64), &[bytes])?)
    }

    /// The address of the value, for code that fills it without a copy (a system call, a device).
    /// The bytes are shared memory: write through the pointer, form no reference.
    ///
    /// # Errors
    /// The fabric's.
    pub fn as_mut_ptr(&mut self) -> Result<*mut u8, EngineError> {
        Ok(self.client.fabric.raw(self.value_addr(), self.len())?)
    }

    /// Reads the first `len` bytes of the value.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn read(&self, len: usize) -> Result<Vec<u8>, EngineError> {
        assert!(len <= self.len(), "{len} bytes of a value of {}", self.len());
        let bytes = Buf::with_capacity(len);
        let (bytes, read) = self.client.fabric.read(self.value_addr(), len, bytes).await;
        read?;
        Ok(bytes.into_vec())
    }

    /// Makes the entry the key's value. Returns the version.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn commit(mut self) -> Result<Version, EngineError> {
        let client = self.client;
        let _leaving = client.leaving();
        let (own, _) = self.held.as_ref().expect("committed once");
        // Until it is installed, the entry goes back if this future ends.
        client.write(&self.draft(), *own).await?;
        let (own, epoch) = self.held.take().expect("it was there a moment ago");
        let installed = client.install(&self.draft(), own, epoch, Rule::Always).await;
        // It is done or has failed, whatever becomes of the verbs that it did not wait for.
        _ = client.come_to_rest().await;
        installed?;
        Ok(self.draft.version)
    }
}

impl<F: Fabric> Drop for Reservation<'_, F> {
    fn drop(&mut self) {
        if let Some((own, mut epoch)) = self.held.take() {
            // If the note cannot be written, the entry is left to the scrubber.
            if self.client.release(own).is_ok() {
                epoch.paid();
            }
            drop(epoch);
            // Nobody may use the client for long, and what it has posted may be under way.
            self.client.leave();
        }
    }
}
