//! PIN: a GET that leaves the value where it is, and keeps it there.

use loch_fabric::{Atomics, Buf, Fabric, RemoteAddr};

use super::get::Pass;
use super::read::{Want, names_nothing};
use crate::error::EngineError;
use crate::limits::PINS_MAX;
use crate::nessie::client::pins::pin_addr;
use crate::nessie::client::{Attempts, Client};
use crate::nessie::layout::dte::{Header, PINNED};
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::Ite;
use crate::operation::Version;
use crate::planted::{self, Bug};

/// A value in place. Its memory is not used for anything else until this is dropped, whatever
/// happens to the key.
///
/// A pin is not an operation under way: no grace period waits for it, and it holds back the memory
/// of its own entry alone, and of the slab around it if that is to be cut anew.
#[must_use = "the pin ends when this is dropped"]
pub struct Pinned<'a, F: Fabric> {
    announced: Announced<'a, F>,
    value: RemoteAddr,
    len: usize,
    version: Version,
    expires_at_ms: Option<u64>,
}

/// A pin that other clients can see; withdrawn when dropped.
struct Announced<'a, F: Fabric> {
    client: &'a Client<F>,
    number: u32,
}

impl<F: Fabric> Client<F> {
    /// Whether values can be pinned: only where all clients reach all memory by their processors,
    /// and where this client has a session to announce its pins in.
    pub fn pins(&self) -> bool {
        let is_coherent = self.fabric.caps().atomics == Atomics::Coherent;
        self.is_all_mapped && is_coherent && !self.session.is_observer()
    }

    /// The value of `key` in place, if it has one.
    ///
    /// # Errors
    /// As [`Client::get`], and [`EngineError::TooManyPins`].
    ///
    /// # Panics
    /// If values cannot be pinned: [`Client::pins`].
    pub async fn pin(&self, key: &[u8]) -> Result<Option<Pinned<'_, F>>, EngineError> {
        assert!(self.pins(), "values are pinned in shared memory, by a session");
        let hash = self.hash(key)?;
        self.pins.count(&self.fabric, &self.session).await?;
        let _epoch = self.session.pin(&self.fabric)?;
        let candidates = Candidates::from_hash(&self.map, hash);
        let (mut attempts, mut buf) = (Attempts::default(), Buf::new());
        loop {
            let (filled, pass) = self.get_pass(&candidates, key, Want::Key, buf, None).await;
            buf = filled;
            match pass? {
                Pass::Found(slot, word, header, _) if self.is_expired(&header, &buf) => {
                    if self.expire(&candidates, key, slot, word, &header).await? {
                        return Ok(None);
                    }
                }
                Pass::Found(slot, word, header, mark) => {
                    let expires_at_ms = header.expires_at_ms(&buf);
                    let slot = candidates.slot(slot);
                    if let Some(pinned) = self.pin_entry(slot, word, &header).await? {
                        self.used(slot, mark)?;
                        return Ok(Some(Pinned { expires_at_ms, ..pinned }));
                    }
                }
                Pass::Absent => return Ok(None),
                Pass::Changed => (),
            }
            attempts.again(self).await?;
        }
    }

    /// Pins the entry that `slot` shows by `word`; `None` if the slot has changed. Called in the
    /// epoch in which the slot was read, so the entry's bytes still are an entry's.
    async fn pin_entry(
        &self,
        slot: RemoteAddr,
        word: Ite,
        header: &Header,
    ) -> Result<Option<Pinned<'_, F>>, EngineError> {
        let (at, _) = self.entry_at(word).ok_or_else(|| names_nothing(word))?;
        // Protocol L2.
        let announced = self.announce_pin(at)?;
        let marked = header.generation | PINNED;
        if header.generation != marked {
            let seen = self.fabric.compare_swap(at, header.generation, marked).await?;
            if seen != header.generation && seen != marked {
                return Ok(None);
            }
        }
        // Protocol L3. Linearization point: this READ of the slot.
        if self.read_word(slot).await? != word.0 && !planted::is(Bug::PinUnverified) {
            return Ok(None);
        }
        Ok(Some(Pinned {
            announced,
            value: at.add(header.value_at() as u64),
            len: header.value_len(),
            version: header.version,
            expires_at_ms: None,
        }))
    }

    fn announce_pin(&self, entry: RemoteAddr) -> Result<Announced<'_, F>, EngineError> {
        let number = self.pins.take().ok_or(EngineError::TooManyPins { max: PINS_MAX })?;
        let announced = Announced { client: self, number };
        self.fabric.announce(pin_addr(&self.map, &self.session, number), entry.to_word())?;
        Ok(announced)
    }
}

impl<F: Fabric> Drop for Announced<'_, F> {
    fn drop(&mut self) {
        let Client { fabric, map, session, pins, .. } = self.client;
        // After all loads of the value. If the word cannot be stored, it ends with the session.
        let _ = fabric.store_after(pin_addr(map, session, self.number), 0);
        pins.give_back(self.number);
    }
}

impl<F: Fabric> Pinned<'_, F> {
    /// Where the value lies.
    pub fn at(&self) -> RemoteAddr {
        self.value
    }

    /// Bytes of the value.
    #[allow(clippy::len_without_is_empty, reason = "an empty value is as good as any")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The version of the value.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The expiry of the value, in milliseconds since the Unix epoch, if it has one.
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// The fabric of the client that holds the pin.
    pub fn fabric(&self) -> &F {
        &self.announced.client.fabric
    }
}
