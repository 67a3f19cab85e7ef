//! A value read in place.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loch_engines::nessie;
use loch_fabric::shm::{ShmEndpoint, Still};

use crate::{Result, Table, Value, Version};

/// A value in place: its bytes are the table's memory, and stay as they are until this is dropped,
/// whatever happens to the key meanwhile. Made by [`Table::pin`].
///
/// In tables of `nessie` in shared memory, the bytes are not copied. Everywhere else (over a
/// network, in tables of other engines and of the published protocol, in clusters that are attached
/// for reading only) this holds a copy, which does the same.
///
/// The memory of the value is not used again before this is dropped. So a value that is pinned and
/// then replaced takes room twice; nothing else has to wait for a pin. A table can have
/// [`PINS_MAX`](crate::limits::PINS_MAX) values pinned at a time. A pin does not outlive its table;
/// if the process dies, its pins end with its session.
///
/// The region of the client's own node holds the pins. An operator may remove that region while the
/// client is attached, and start the node again. The node then warns of other memory, and clients
/// that attach later do not see the pins: they may reuse memory of other nodes that is pinned.
///
/// The bytes are shared with the processes that may write the table: those of the node's user, and
/// root's. Those that use this library leave the bytes alone. A child that was forked must not read
/// them: it does not keep the parent's session.
///
/// ```
/// use loch::{Cluster, EmbeddedConfig};
/// let table = Cluster::embedded(EmbeddedConfig::default())?.table("default")?;
/// table.put(b"key", &[1; 1 << 20])?;
/// let pinned = table.pin(b"key")?.expect("it was just put");
/// table.put(b"key", b"another")?;
/// table.delete(b"key")?;
/// assert!(pinned.is_in_place() && pinned.iter().all(|byte| *byte == 1));
/// # Ok::<(), loch::Error>(())
/// ```
#[must_use = "the pin ends when this is dropped"]
pub struct Pinned<'a> {
    table: &'a Table,
    /// Taken when the pin ends.
    value: Option<PinnedValue<'a>>,
}

enum PinnedValue<'a> {
    /// The bytes, and the pin that keeps them as they are.
    InPlace(Still<'a>, nessie::Pinned<'a, ShmEndpoint>),
    Copied(Value),
}

impl<'a> Pinned<'a> {
    /// The value of an entry that is pinned.
    ///
    /// # Errors
    /// [`EngineError::Fabric`](crate::EngineError::Fabric) if the entry is not inside the table.
    pub(crate) fn in_place(
        table: &'a Table,
        shm: &'a ShmEndpoint,
        pinned: nessie::Pinned<'a, ShmEndpoint>,
    ) -> Result<Self> {
        // The promise that the bytes stand still is `pinned`, which is kept beside them. (Protocol
        // L: no client that keeps to it writes into a pinned entry's value.)
        let bytes = shm.still(pinned.at(), pinned.len());
        let bytes = bytes.map_err(|error| table.error(error.into()))?;
        Ok(Self { table, value: Some(PinnedValue::InPlace(bytes, pinned)) })
    }

    pub(crate) fn copied(table: &'a Table, value: Value) -> Self {
        Self { table, value: Some(PinnedValue::Copied(value)) }
    }

    fn value(&self) -> &PinnedValue<'a> {
        self.value.as_ref().expect("it is taken when the pin ends")
    }

    /// The version of the value.
    pub fn version(&self) -> Version {
        match self.value() {
            PinnedValue::InPlace(_, pinned) => pinned.version(),
            PinnedValue::Copied(value) => value.version(),
        }
    }

    /// The time at which the value expires, if it was put with a time to live. It stays readable
    /// here.
    pub fn expires_at(&self) -> Option<SystemTime> {
        match self.value() {
            PinnedValue::InPlace(_, pinned) => {
                UNIX_EPOCH.checked_add(Duration::from_millis(pinned.expires_at_ms()?))
            }
            PinnedValue::Copied(value) => value.expires_at(),
        }
    }

    /// Whether the bytes are the table's own memory, not a copy.
    pub fn is_in_place(&self) -> bool {
        matches!(self.value(), PinnedValue::InPlace(..))
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self.value() {
            PinnedValue::InPlace(bytes, _) => bytes,
            PinnedValue::Copied(value) => value,
        }
    }
}

impl AsRef<[u8]> for Pinned<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, version) = (self.len(), self.version());
        f.debug_struct("Pinned").field("len", &len).field("version", &version).finish()
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if self.table.check_process().is_err() {
            // The pin is the parent's.
            std::mem::forget(self.value.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, EmbeddedConfig, EngineError, Error};

    #[test]
    fn a_child_does_not_end_its_parents_pins() {
        let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
        let (table, mut childs) =
            (cluster.table("default").unwrap(), cluster.table("default").unwrap());
        childs.inherit();
        table.put(b"key", b"value").unwrap();
        assert!(matches!(childs.pin(b"key"), Err(Error::Forked)));
        let pin = || table.pin(b"key");
        for _ in 0..crate::limits::PINS_MAX {
            let mut pinned = pin().unwrap().unwrap();
            // The child has the same pin, through a table that is not its own.
            drop(Pinned { table: &childs, value: pinned.value.take() });
        }
        assert!(
            matches!(pin(), Err(Error::Table { source: EngineError::TooManyPins { .. }, .. })),
            "the parent's pins are there"
        );
    }
}
