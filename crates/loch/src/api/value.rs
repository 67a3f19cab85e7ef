//! The result of a GET: a value and its version.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loch_engines::operation;

/// Names one value: no other value of the table ever has the same version.
///
/// Versions can be compared for equality, but have no order: a later value may have a smaller
/// version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// Makes the version from the number that [`Version::as_u64`] returned.
    pub const fn from_u64(version: u64) -> Self {
        Self(version)
    }

    /// The version as a number, which can be kept or sent.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value: its bytes, and its version.
///
/// ```
/// use loch::{Cluster, EmbeddedConfig};
/// let table = Cluster::embedded(EmbeddedConfig::default())?.table("default")?;
/// let version = table.put(b"key", b"value")?;
/// let value = table.get(b"key")?.expect("it was just put");
/// assert_eq!((&value[..], value.version()), (&b"value"[..], version));
/// assert_eq!(value.into_vec(), b"value");
/// # Ok::<(), loch::Error>(())
/// ```
#[derive(Clone)]
pub struct Value(operation::Value);

/// A value that [`Table::get_each`](crate::Table::get_each) hands over: its bytes, and its version.
#[derive(Clone, Copy)]
pub struct ValueRef<'a>(operation::Found<'a>);

impl<'a> From<operation::Found<'a>> for ValueRef<'a> {
    #[inline]
    fn from(found: operation::Found<'a>) -> Self {
        Self(found)
    }
}

impl<'a> From<&'a Value> for ValueRef<'a> {
    fn from(value: &'a Value) -> Self {
        Self(operation::Found::from(&value.0))
    }
}

impl ValueRef<'_> {
    /// The version of the value.
    #[inline]
    pub fn version(&self) -> Version {
        Version(self.0.version)
    }
}

impl Deref for ValueRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.value
    }
}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, version) = (self.len(), self.version());
        f.debug_struct("ValueRef").field("len", &len).field("version", &version).finish()
    }
}

impl From<operation::Value> for Value {
    #[inline]
    fn from(found: operation::Value) -> Self {
        Self(found)
    }
}

impl Value {
    /// The version of the value.
    pub fn version(&self) -> Version {
        Version(self.0.version())
    }

    /// The time at which the value expires, if it was put with a time to live.
    pub fn expires_at(&self) -> Option<SystemTime> {
        let at = self.0.expires_at_ms()?;
        UNIX_EPOCH.checked_add(Duration::from_millis(at))
    }

    /// The bytes without the version. They move inside their allocation, and none is made.
    pub fn into_vec(self) -> Vec<u8> {
        let (first, len) = (self.as_ptr() as usize, self.len());
        let mut bytes = self.0.into_buf().into_vec();
        let at = first - bytes.as_ptr() as usize;
        bytes.truncate(at + len);
        bytes.drain(..at);
        bytes
    }
}

impl Deref for Value {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, bytes: &[u8]) -> bool {
        **self == *bytes
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("bytes", &self.len())
            .field("version", &self.version())
            .finish()
    }
}
