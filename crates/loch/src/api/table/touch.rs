//! TOUCH and GET-and-touch: another expiry for a value that stays as it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loch_engines::operation::{self, Conditional, Done, Operation, Outcome};
use loch_fabric::Buf;
use loch_fabric::lanes::block_on;

use crate::{AsyncTable, Result, Table, Value, Version};

/// When a value expires.
///
/// An expiry that lies in the past is no error: the value has then expired, and the key has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// After this time, with a resolution of 1 ms.
    In(Duration),
    /// At this time, with a resolution of 1 ms.
    At(SystemTime),
}

impl Table {
    /// Gives the value of `key` another expiry, or none, in one atomic step. Returns the value's
    /// new version; `None` if the key has no value, and then still has none. A value that has
    /// expired is no value.
    ///
    /// The bytes of the value stay. Its version is new, so [`Table::put_if_version`] with the old
    /// version is refused from then on. In a table that evicts, a touch is a use of the value, as a
    /// GET is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use loch::{Expiry, PutOptions};
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put_with(b"session", b"ann", PutOptions { expiry: Expiry::In(Duration::from_secs(5)) })?;
    /// let version = table.touch(b"session", Expiry::In(Duration::from_secs(1800)))?;
    /// let value = table.get(b"session")?.expect("it lives for half an hour");
    /// assert_eq!((&value[..], Some(value.version())), (&b"ann"[..], version));
    ///
    /// table.touch(b"session", Expiry::Never)?;
    /// assert_eq!(table.get(b"session")?.and_then(|value| value.expires_at()), None);
    /// assert_eq!(table.touch(b"nobody", Expiry::Never)?, None);
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn touch(&self, key: &[u8], expiry: Expiry) -> Result<Option<Version>> {
        block_on(self.asynch().touch(key, expiry))
    }

    /// As [`Table::touch`], and returns the value, with its new version and its new expiry. No
    /// other operation comes between the two.
    ///
    /// ```
    /// use std::time::Duration;
    /// use loch::Expiry;
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put(b"session", b"ann")?;
    /// let value = table.get_and_touch(b"session", Expiry::In(Duration::from_secs(1800)))?;
    /// assert!(value.is_some_and(|value| value.expires_at().is_some()));
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn get_and_touch(&self, key: &[u8], expiry: Expiry) -> Result<Option<Value>> {
        block_on(self.asynch().get_and_touch(key, expiry))
    }

    /// The engine's form of an expiry.
    pub(crate) fn expiring(&self, expiry: Expiry) -> operation::PutOptions {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let expires_at_ms = match expiry {
            Expiry::Never => None,
            Expiry::In(ttl) => Some(self.operations().wall_ms().saturating_add(millis(ttl))),
            // 0 would say that the value does not expire.
            Expiry::At(time) => Some(time.duration_since(UNIX_EPOCH).map_or(1, millis).max(1)),
        };
        operation::PutOptions { expires_at_ms }
    }
}

impl AsyncTable<'_> {
    /// As [`Table::touch`].
    ///
    /// # Errors
    /// As [`Table::touch`].
    pub async fn touch(self, key: &[u8], expiry: Expiry) -> Result<Option<Version>> {
        let table = self.table();
        table.writable()?;
        let touch = Operation::Touch { of: None, options: table.expiring(expiry) };
        let touched = table.execute(key, touch).await.and_then(Outcome::conditional);
        match touched.map_err(|error| table.error(error))? {
            Conditional::Done(version) => Ok(Some(version)),
            Conditional::Refused(_) => Ok(None),
        }
    }

    /// As [`Table::get_and_touch`].
    ///
    /// # Errors
    /// As [`Table::get_and_touch`].
    pub async fn get_and_touch(self, key: &[u8], expiry: Expiry) -> Result<Option<Value>> {
        let table = self.table();
        table.writable()?;
        let options = table.expiring(expiry);
        let touch = Operation::GetAndTouch(options);
        let done = table.operations().execute(key, touch, Buf::new()).await;
        done.and_then(Done::into_found).map_err(|error| table.error(error))
    }
}
