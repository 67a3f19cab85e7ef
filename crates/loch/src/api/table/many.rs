//! Operations on many keys at a time.

use loch_fabric::lanes::block_on;

use super::Table;
use crate::{Result, Value, ValueRef, Version};

impl Table {
    /// Returns the values of many keys in the order of the keys, with several GETs under way at a
    /// time.
    ///
    /// # Errors
    /// As [`Table::get`]. After the first error no further GETs are begun.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        block_on(self.asynch().get_many(keys))
    }

    /// Hands the value of each of many keys to `found`, with the key's index, in any order. Copies
    /// each value once, into a buffer of the table, so this is the fastest way to read short
    /// values. `found` must not use the table: the other operations stand still meanwhile.
    ///
    /// ```
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put_many(&[("red", "4"), ("blue", "38")])?;
    /// let mut bytes = 0;
    /// table.get_each(&["blue", "green", "red"], |key, value| match value {
    ///     Some(value) => bytes += value.len(),
    ///     None => assert_eq!(key, 1),
    /// })?;
    /// assert_eq!(bytes, 3);
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::get`]. After the first error no further GETs are begun; `found` may have been
    /// called for some of the keys, before or after the one that failed.
    pub fn get_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        found: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<()> {
        block_on(self.asynch().get_each(keys, found))
    }

    /// Puts many pairs, with several PUTs under way at a time. Returns the versions in the order of
    /// the pairs. Of two pairs with the same key either may win (in batches of `nessie` the later
    /// one), and versions say nothing about the order.
    ///
    /// # Errors
    /// As [`Table::put`]. After the first error no further PUTs are begun. Other PUTs may have been
    /// done, and it does no harm to call again.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Version>> {
        block_on(self.asynch().put_many(pairs))
    }

    /// Returns for each of many keys whether it has a value, in the order of the keys. Reads no
    /// values.
    ///
    /// # Errors
    /// As [`Table::get_many`].
    pub fn contains_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        block_on(self.asynch().contains_many(keys))
    }

    /// Returns how many of these keys, from the first one on, have a value: the number of the first
    /// key without one, or of all. A cache of the blocks of a text, whose keys name all that comes
    /// before a block, finds out in this way how much of the text it has. Looks at up to
    /// [`PREFIX_KEYS`](crate::limits::PREFIX_KEYS) keys at a time, and at none behind those among
    /// which it has found one without a value. Each key is looked at once: while others write, the
    /// answer may never have been true as a whole.
    ///
    /// ```
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put_many(&[("a", "1"), ("ab", "2"), ("abcd", "4")])?;
    /// assert_eq!(table.contains_prefix(&["a", "ab", "abc", "abcd"])?, 2);
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::contains_many`], for the keys at which it looks.
    pub fn contains_prefix<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<usize> {
        block_on(self.asynch().contains_prefix(keys))
    }

    /// Removes the values of many keys. Returns for each key whether it had one, in the order of
    /// the keys.
    ///
    /// ```
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put_many(&[("red", "4"), ("blue", "38")])?;
    /// assert_eq!(table.delete_many(&["blue", "green"])?, [true, false]);
    /// assert_eq!(table.contains_many(&["red", "green", "blue"])?, [true, false, false]);
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::delete`]. After the first error no further DELETEs are begun. Others may have
    /// been done, and it does no harm to call again.
    pub fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        block_on(self.asynch().delete_many(keys))
    }
}
