//! A table's operations as futures.

use crate::{Conditional, Error, Expect, PutOptions, Reservation, Table, Value, Version};

/// The operations of a [`Table`] as futures, for the lanes of its thread ([`lanes`](crate::lanes))
/// or any executor that stays on one thread. Each operation is what it is on the table; dropping
/// its future is like dying in the middle of it: it may or may not have happened.
#[derive(Clone, Copy)]
pub struct AsyncTable<'a> {
    _table: &'a Table,
}

impl<'a> AsyncTable<'a> {
    /// As [`Table::get`].
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn get(self, key: &[u8]) -> Result<Option<Value>, Error> {
        let _ = key;
        todo!()
    }

    /// As [`Table::get_into`].
    ///
    /// # Errors
    /// As [`Table::get_into`].
    pub async fn get_into(self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Version>, Error> {
        let _ = (key, into);
        todo!()
    }

    /// As [`Table::contains`].
    ///
    /// # Errors
    /// As [`Table::contains`].
    pub async fn contains(self, key: &[u8]) -> Result<bool, Error> {
        let _ = key;
        todo!()
    }

    /// As [`Table::put`].
    ///
    /// # Errors
    /// As [`Table::put`].
    pub async fn put(self, key: &[u8], value: &[u8]) -> Result<Version, Error> {
        self.put_with(key, value, PutOptions::default()).await
    }

    /// As [`Table::put_with`].
    ///
    /// # Errors
    /// As [`Table::put_with`].
    pub async fn put_with(
        self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<Version, Error> {
        let _ = (key, value, options);
        todo!()
    }

    /// As [`Table::put_if`].
    ///
    /// # Errors
    /// As [`Table::put_if`].
    pub async fn put_if(
        self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, Error> {
        let _ = (key, value, expect, options);
        todo!()
    }

    /// As [`Table::fetch_add`].
    ///
    /// # Errors
    /// As [`Table::fetch_add`].
    pub async fn fetch_add(self, key: &[u8], add: u64) -> Result<u64, Error> {
        let _ = (key, add);
        todo!()
    }

    /// As [`Table::delete`].
    ///
    /// # Errors
    /// As [`Table::delete`].
    pub async fn delete(self, key: &[u8]) -> Result<bool, Error> {
        let _ = key;
        todo!()
    }

    /// As [`Table::get_many`].
    ///
    /// # Errors
    /// As [`Table::get_many`].
    pub async fn get_many<K: AsRef<[u8]>>(self, keys: &[K]) -> Result<Vec<Option<Value>>, Error> {
        let _ = keys;
        todo!()
    }

    /// As [`Table::put_many`].
    ///
    /// # Errors
    /// As [`Table::put_many`].
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Version>, Error> {
        let _ = pairs;
        todo!()
    }

    /// As [`Table::reserve`].
    ///
    /// # Errors
    /// As [`Table::reserve`].
    pub async fn reserve(self, key: &[u8], len: usize) -> Result<Reservation<'a>, Error> {
        let _ = (key, len);
        todo!()
    }
}
