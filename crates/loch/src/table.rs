//! A table, for one thread: blocking calls.

use std::time::Duration;

use loch_engines::nessie::Client;
use loch_fabric::VerbCount;
use loch_fabric::shm::ShmEndpoint;

use crate::{AsyncTable, CheckReport, Error, Reservation, Usage, Value, Version};

/// A table of a cluster, for one thread: it can be sent to another, but not shared. Every thread
/// opens its own.
pub struct Table {
    _not_sync: std::cell::Cell<()>,
}

/// How a PUT differs from a plain one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// How long the value lives, with a resolution of 1 ms. Default: for ever.
    pub ttl: Option<Duration>,
}

/// What a conditional PUT expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No value.
    Absent,
    /// A value of this version.
    Version(Version),
}

/// What a conditional PUT came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditional {
    /// It was done; the version of the new value.
    Done(Version),
    /// It was not: the version of the value there is, if there is one.
    Refused(Option<Version>),
}

/// What a table's operations cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Verbs, round trips and bytes.
    pub verbs: VerbCount,
    /// Times an operation started over because another changed what it looked at.
    pub retries: u64,
    /// Moves made to free an index slot.
    pub moves: u64,
    /// Unfinished moves of others that were completed or undone.
    pub helped: u64,
}

impl Table {
    /// Its name.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// The same operations as futures, for the lanes of this thread.
    pub fn asynch(&self) -> AsyncTable<'_> {
        todo!()
    }

    /// Overlaps up to `lanes` operations in `get_many` and `put_many`; 1 to 4096, default 16.
    /// Other numbers are taken for the nearest.
    #[must_use]
    pub fn with_lanes(self, lanes: usize) -> Self {
        let _ = lanes;
        todo!()
    }

    /// The value of `key`, if it has one.
    ///
    /// # Errors
    /// [`Error::KeyEmpty`], [`Error::KeyTooLong`]; [`Error::Timeout`] if others kept changing the
    /// key's slots.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, Error> {
        let _ = key;
        todo!()
    }

    /// Replaces the contents of `into` by the value of `key`, if it has one; returns the value's
    /// version. Without a value `into` is empty. Allocates nothing if `into` has room.
    ///
    /// # Errors
    /// As [`Table::get`]; then `into` is empty.
    pub fn get_into(&self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Version>, Error> {
        let _ = (key, into);
        todo!()
    }

    /// Gives `key` the value `value`. Returns the value's version.
    ///
    /// # Errors
    /// As [`Table::get`], and [`Error::ValueTooLong`], [`Error::IndexFull`],
    /// [`Error::OutOfMemory`], [`Error::ReadOnly`]. After any but [`Error::Ambiguous`] the key has
    /// the value it had.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version, Error> {
        self.put_with(key, value, PutOptions::default())
    }

    /// As [`Table::put`], with options.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<Version, Error> {
        let _ = (key, value, options);
        todo!()
    }

    /// Takes the value of `key` away; whether it had one.
    ///
    /// # Errors
    /// As [`Table::get`], and [`Error::ReadOnly`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let _ = key;
        todo!()
    }

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool, Error> {
        let _ = key;
        todo!()
    }

    /// The values of many keys, in their order, with several GETs under way at a time.
    ///
    /// # Errors
    /// As [`Table::get`]: the first one met, and then no further GETs are begun.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, Error> {
        let _ = keys;
        todo!()
    }

    /// Puts many pairs, with several PUTs under way at a time; returns the versions in their order.
    /// Of two pairs with the same key either may win.
    ///
    /// # Errors
    /// As [`Table::put`]: the first one met, and then no further PUTs are begun. Others may have
    /// been done; calling again does no harm.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Version>, Error> {
        let _ = pairs;
        todo!()
    }

    /// Gives `key` the value `value` if what it has is as expected.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, Error> {
        let _ = (key, value, expect, options);
        todo!()
    }

    /// Gives `key` the value `value` if the one it has is of this version.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_if_version(
        &self,
        key: &[u8],
        value: &[u8],
        version: Version,
    ) -> Result<Conditional, Error> {
        self.put_if(key, value, Expect::Version(version), PutOptions::default())
    }

    /// Gives `key` the value `value` if it has none.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Conditional, Error> {
        self.put_if(key, value, Expect::Absent, PutOptions::default())
    }

    /// Adds `add`, wrapping, to the number under `key` (8 bytes, little-endian) and returns what it
    /// was. A key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Table::put`], and [`Error::NotACounter`].
    pub fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, Error> {
        let _ = (key, add);
        todo!()
    }

    /// Reserves memory for a value of `len` bytes, to be written in place and then committed:
    /// nothing is copied. What is not written has unspecified contents.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn reserve(&self, key: &[u8], len: usize) -> Result<Reservation<'_>, Error> {
        self.reserve_with(key, len, PutOptions::default())
    }

    /// As [`Table::reserve`], with options.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn reserve_with(
        &self,
        key: &[u8],
        len: usize,
        options: PutOptions,
    ) -> Result<Reservation<'_>, Error> {
        let _ = (key, len, options);
        todo!()
    }

    /// Walks the whole table and verifies its invariants, beside other clients at work.
    ///
    /// # Errors
    /// [`Error::Fabric`]. Broken invariants are no error but listed in the report.
    pub fn check(&self) -> Result<CheckReport, Error> {
        todo!()
    }

    /// How the table's memory is used, node by node. Reads every entry's generation.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn usage(&self) -> Result<Vec<Usage>, Error> {
        todo!()
    }

    /// What this table's operations cost so far; the difference of two is what happened between.
    pub fn counters(&self) -> Counters {
        todo!()
    }

    /// The engine below, for measurements.
    #[doc(hidden)]
    pub fn engine(&self) -> &Client<ShmEndpoint> {
        todo!()
    }
}
