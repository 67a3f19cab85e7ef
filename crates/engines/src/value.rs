//! Values as clients get them: their bytes, their versions and their expiry.

use std::fmt;
use std::ops::{Deref, Range};
use std::time::{Duration, UNIX_EPOCH};

use loch_fabric::Buf;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Names one value: no other value of the table ever has the same version.
///
/// Versions can be compared for equality, but have no order: a later value may have a smaller
/// version. In a table without versions all values have the version 0.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
)]
#[repr(transparent)]
pub struct Version(u64);

impl Version {
    /// Makes the version from the number that [`Version::as_u64`] returned.
    #[inline]
    pub const fn from_u64(version: u64) -> Self {
        Self(version)
    }

    /// The version as a number, which can be kept or sent.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value: its bytes, and its version. It owns the buffer that was read, and shows the bytes of
/// the value in it.
///
/// ```
/// use loch_engines::operation::{Value, Version};
/// let version = Version::from_u64(7);
/// let value = Value::new(b"a value".to_vec().into(), 2..7, version, None);
/// assert_eq!((&value[..], value.version(), value.expires_at()), (&b"value"[..], version, None));
/// assert_eq!(value.into_vec(), b"value");
/// ```
#[derive(Clone)]
pub struct Value {
    buf: Buf,
    at: Range<usize>,
    version: Version,
    /// In milliseconds since the Unix epoch; 0: never. No value that can be read expires at 0.
    expires_at_ms: u64,
}

impl Value {
    /// The value in the bytes `at` of `buf`.
    ///
    /// # Panics
    /// If `at` is not within `buf`.
    #[inline]
    pub fn new(buf: Buf, at: Range<usize>, version: Version, expires_at_ms: Option<u64>) -> Self {
        assert!(at.start <= at.end && at.end <= buf.len(), "a value is inside its buffer");
        Self { buf, at, version, expires_at_ms: expires_at_ms.unwrap_or(0) }
    }

    /// The value that is all of `buf`.
    pub fn new_whole(buf: Buf, version: Version, expires_at_ms: Option<u64>) -> Self {
        let at = 0..buf.len();
        Self::new(buf, at, version, expires_at_ms)
    }

    /// The version of the value.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The time at which the value expires, if it was put with a time to live.
    #[expect(clippy::disallowed_types, reason = "it names a moment: no clock is read")]
    pub fn expires_at(&self) -> Option<std::time::SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.expires_at_ms()?))
    }

    /// When the value expires, in milliseconds since the Unix epoch.
    #[inline]
    pub fn expires_at_ms(&self) -> Option<u64> {
        Some(self.expires_at_ms).filter(|at| *at != 0)
    }

    /// The same bytes after a TOUCH, which gave the value this version and this expiry.
    #[must_use]
    pub fn touched(self, version: Version, expires_at_ms: Option<u64>) -> Self {
        Self { version, expires_at_ms: expires_at_ms.unwrap_or(0), ..self }
    }

    /// The bytes without the version. They move inside their allocation, and none is made.
    pub fn into_vec(self) -> Vec<u8> {
        let mut bytes = self.buf.into_vec();
        bytes.truncate(self.at.end);
        bytes.drain(..self.at.start);
        bytes
    }

    /// The buffer, for the next GET.
    pub fn into_buf(self) -> Buf {
        self.buf
    }

    /// The buffer, and the place of the value in it.
    #[inline]
    pub(crate) fn into_parts(self) -> (Buf, Range<usize>) {
        (self.buf, self.at)
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buf[self.at.clone()]
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
        ValueRef::from(self).fmt(f)
    }
}

/// A value that a GET of many keys hands over: its bytes, and its version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ValueRef<'a> {
    pub(crate) version: Version,
    pub(crate) bytes: &'a [u8],
    pub(crate) expires_at_ms: Option<u64>,
}

impl ValueRef<'_> {
    /// The version of the value.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// A copy that owns its bytes.
    pub fn to_value(&self) -> Value {
        Value::new_whole(Buf::from(self.bytes.to_vec()), self.version, self.expires_at_ms)
    }
}

impl<'a> From<&'a Value> for ValueRef<'a> {
    #[inline]
    fn from(value: &'a Value) -> Self {
        Self { version: value.version, bytes: value, expires_at_ms: value.expires_at_ms() }
    }
}

impl Deref for ValueRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, version) = (self.len(), self.version);
        f.debug_struct("Value").field("len", &len).field("version", &version).finish()
    }
}
