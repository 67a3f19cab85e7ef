//! The operations of a table as futures. The blocking operations run these futures to their end.

use std::cell::Cell;

use loch_engines::EngineError;
use loch_engines::operation::{Done, Operation, Outcome};
use loch_fabric::{Buf, lanes};

use super::reservation::ValuePlace;
use crate::client::scanning::Scanned;
use crate::limits::PREFIX_KEYS;
use crate::{
    Conditional, Expect, Lambda, Number, Pinned, PutOptions, Reservation, Result, ScanCursor,
    ScanPage, ScannedKey, Table, Usage, Value, ValueRef, Version,
};

/// The operations of a [`Table`] as futures, for the lanes of its thread ([`lanes`]) or for any
/// executor that stays on one thread. Each operation does the same as on the table. An operation
/// whose future is dropped may or may not have happened, as if the client had died in the middle of
/// it. Memory that the operation took and did not use is back some seconds later, when the node has
/// scrubbed the table, whether or not the table is still open.
///
/// No operation has the thread wait for a node that is down or silent: it waits in its lane, or as
/// one task of its executor, and all others go on. An operation that lacks a node ends with
/// [`Error::NodeUnreachable`](crate::Error::NodeUnreachable) within the
/// [time](crate::ConnectOptions::operation_timeout) that operations have; operations that need no
/// such node do not notice.
///
/// ```
/// use loch::{Cluster, EmbeddedConfig, lanes};
/// let table = Cluster::embedded(EmbeddedConfig::default())?.table("default")?;
/// let table = table.asynch();
/// let adds = (0..100).map(|i| table.fetch_add(if i % 2 == 0 { b"even" } else { b"odd" }, i));
/// lanes::block_on(lanes::run(8, adds, |before| assert!(before.is_ok())));
/// let even: u64 = (0..100).step_by(2).sum();
/// assert_eq!(lanes::block_on(table.fetch_add(b"even", 0))?, even);
/// # Ok::<(), loch::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct AsyncTable<'a> {
    table: &'a Table,
}

impl<'a> AsyncTable<'a> {
    #[inline]
    pub(crate) fn new(table: &'a Table) -> Self {
        Self { table }
    }

    /// The table.
    pub(super) fn table(self) -> &'a Table {
        self.table
    }

    /// As [`Table::get`].
    ///
    /// # Errors
    /// As [`Table::get`].
    #[inline]
    pub async fn get(self, key: &[u8]) -> Result<Option<Value>> {
        self.table.check_process()?;
        let found = match self.table.in_place() {
            Some(client) => client.get_in_place(key, Buf::new()).await,
            None => self.find(key, Buf::new()).await,
        };
        found.map_err(|error| self.table.error(error))
    }

    /// As [`Table::get_into`].
    ///
    /// # Errors
    /// As [`Table::get_into`].
    #[inline]
    pub async fn get_into(self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Version>> {
        into.clear();
        let table = self.table;
        table.check_process()?;
        let found = match table.in_place() {
            Some(client) => client.get_in_place(key, table.take_spare()).await,
            None => self.find(key, table.take_spare()).await,
        };
        match found {
            Ok(Some(found)) => {
                into.extend_from_slice(&found);
                let version = found.version();
                table.keep_spare(found.into_buf());
                Ok(Some(version))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(table.error(error)),
        }
    }

    /// As [`Table::pin`].
    ///
    /// # Errors
    /// As [`Table::pin`].
    pub async fn pin(self, key: &[u8]) -> Result<Option<Pinned<'a>>> {
        let table = self.table;
        table.check_process()?;
        let Some(client) = table.in_place().filter(|client| client.pins()) else {
            return Ok(self.get(key).await?.map(|value| Pinned::copied(table, value)));
        };
        let pinned = client.pin(key).await.map_err(|error| table.error(error))?;
        pinned.map(|pinned| Pinned::in_place(table, client.fabric(), pinned)).transpose()
    }

    /// As [`Table::contains`].
    ///
    /// # Errors
    /// As [`Table::contains`].
    pub async fn contains(self, key: &[u8]) -> Result<bool> {
        self.table.check_process()?;
        let found = match self.table.in_place() {
            Some(client) => client.contains(key).await,
            None => self.table.execute(key, Operation::Contains).await.and_then(Outcome::contained),
        };
        found.map_err(|e| self.table.error(e))
    }

    /// As [`Table::put`].
    ///
    /// # Errors
    /// As [`Table::put`].
    #[inline]
    pub async fn put(self, key: &[u8], value: &[u8]) -> Result<Version> {
        self.put_with(key, value, PutOptions::default()).await
    }

    /// As [`Table::put_with`].
    ///
    /// # Errors
    /// As [`Table::put_with`].
    #[inline]
    pub async fn put_with(self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Version> {
        self.table.writable()?;
        let options = self.table.engine_options(options);
        let stored = match self.table.in_place() {
            Some(client) => client.put(key, value, options).await,
            None => self
                .table
                .execute(key, Operation::Put { value, options })
                .await
                .and_then(Outcome::stored),
        };
        stored.map_err(|error| self.table.error(error))
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
    ) -> Result<Conditional> {
        self.table.writable()?;
        let options = self.table.engine_options(options);
        let done = match self.table.in_place() {
            Some(client) => client.put_if(key, value, expect, options).await,
            None => {
                let put = Operation::PutIf { value, expect, options };
                self.table.execute(key, put).await.and_then(Outcome::conditional)
            }
        };
        done.map_err(|e| self.table.error(e))
    }

    /// As [`Table::append`].
    ///
    /// # Errors
    /// As [`Table::append`].
    pub async fn append(self, key: &[u8], bytes: &[u8]) -> Result<Version> {
        self.table.writable()?;
        let appended = self.table.execute(key, Operation::Append(bytes)).await;
        appended.and_then(Outcome::stored).map_err(|e| self.table.error(e))
    }

    /// As [`Table::fetch_add`].
    ///
    /// # Errors
    /// As [`Table::fetch_add`].
    pub async fn fetch_add(self, key: &[u8], add: u64) -> Result<u64> {
        self.table.writable()?;
        let before = match self.table.in_place() {
            Some(client) => client.fetch_add(key, add).await,
            None => {
                self.table.execute(key, Operation::FetchAdd(add)).await.and_then(Outcome::scalar)
            }
        };
        before.map_err(|e| self.table.error(e))
    }

    /// As [`Table::update`].
    ///
    /// # Errors
    /// As [`Table::update`].
    pub async fn update<T: Number>(self, key: &[u8], lambda: Lambda<T>) -> Result<T> {
        let update = Operation::Update(lambda.of_engine());
        let before = self.compute("update", key, update, |done| done.outcome().scalar()).await;
        before.map(T::of_word)
    }

    /// As [`Table::update_all`].
    ///
    /// # Errors
    /// As [`Table::update_all`].
    pub async fn update_all<T: Number>(self, key: &[u8], lambda: Lambda<T>) -> Result<Option<u64>> {
        let update = Operation::UpdateAll { lambda: lambda.of_engine(), returns: false };
        self.compute("update_all", key, update, |done| done.outcome().updated()).await
    }

    /// As [`Table::fetch_update_all`].
    ///
    /// # Errors
    /// As [`Table::fetch_update_all`].
    pub async fn fetch_update_all<T: Number>(
        self,
        key: &[u8],
        lambda: Lambda<T>,
    ) -> Result<Option<Vec<T>>> {
        let update = Operation::UpdateAll { lambda: lambda.of_engine(), returns: true };
        let before = self.compute("fetch_update_all", key, update, Done::into_vector).await?;
        Ok(before.map(|before| T::of_bytes(&before)))
    }

    /// As [`Table::update_each`].
    ///
    /// # Errors
    /// As [`Table::update_each`].
    pub async fn update_each<T: Number>(
        self,
        key: &[u8],
        lambda: Lambda<T>,
        operands: &[T],
    ) -> Result<Option<u64>> {
        let (lambda, operands) = (lambda.of_engine(), &T::bytes(operands));
        let update = Operation::UpdateEach { lambda, operands, returns: false };
        self.compute("update_each", key, update, |done| done.outcome().updated()).await
    }

    /// As [`Table::fetch_update_each`].
    ///
    /// # Errors
    /// As [`Table::fetch_update_each`].
    pub async fn fetch_update_each<T: Number>(
        self,
        key: &[u8],
        lambda: Lambda<T>,
        operands: &[T],
    ) -> Result<Option<Vec<T>>> {
        let (lambda, operands) = (lambda.of_engine(), &T::bytes(operands));
        let update = Operation::UpdateEach { lambda, operands, returns: true };
        let before = self.compute("fetch_update_each", key, update, Done::into_vector).await?;
        Ok(before.map(|before| T::of_bytes(&before)))
    }

    /// As [`Table::reduce`].
    ///
    /// # Errors
    /// As [`Table::reduce`].
    pub async fn reduce<T: Number>(self, key: &[u8], lambda: Lambda<T>) -> Result<Option<T>> {
        let reduce = Operation::Reduce(lambda.of_engine());
        let reduced = self.compute("reduce", key, reduce, |done| done.outcome().reduced()).await?;
        Ok(reduced.map(T::of_word))
    }

    /// As [`Table::filter`].
    ///
    /// # Errors
    /// As [`Table::filter`].
    pub async fn filter<T: Number>(self, key: &[u8], lambda: Lambda<T>) -> Result<Option<Vec<T>>> {
        let filter = Operation::Filter(lambda.of_engine());
        let kept = self.compute("filter", key, filter, Done::into_vector).await?;
        Ok(kept.map(|kept| T::of_bytes(&kept)))
    }

    /// Executes an operation that computes, and returns what `read` makes of the outcome. `name` is
    /// the operation's name, for the error.
    async fn compute<T>(
        self,
        name: &'static str,
        key: &[u8],
        operation: Operation<'_>,
        read: fn(Done) -> Result<T, EngineError>,
    ) -> Result<T> {
        let table = self.table;
        if operation.is_read() { table.check_process() } else { table.writable() }?;
        table.check_computes(name)?;
        let done = table.operations().execute(key, operation, Buf::new()).await;
        done.and_then(read).map_err(|error| table.error(error))
    }

    /// A GET by a client that is not awaited in place.
    #[inline]
    async fn find(self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.table.operations().execute(key, Operation::Get, buf).await?.into_found()
    }

    /// As [`Table::delete`].
    ///
    /// # Errors
    /// As [`Table::delete`].
    pub async fn delete(self, key: &[u8]) -> Result<bool> {
        self.table.writable()?;
        let deleted = match self.table.in_place() {
            Some(client) => client.delete(key).await,
            None => self.delete_value(key, None).await,
        };
        deleted.map_err(|e| self.table.error(e))
    }

    /// As [`Table::delete_if_version`].
    ///
    /// # Errors
    /// As [`Table::delete_if_version`].
    pub async fn delete_if_version(self, key: &[u8], version: Version) -> Result<bool> {
        self.table.writable()?;
        let deleted = self.delete_value(key, Some(version)).await;
        deleted.map_err(|e| self.table.error(e))
    }

    async fn delete_value(self, key: &[u8], of: Option<Version>) -> Result<bool, EngineError> {
        self.table.execute(key, Operation::Delete { of }).await?.deleted()
    }

    /// As [`Table::get_many`].
    ///
    /// # Errors
    /// As [`Table::get_many`].
    pub async fn get_many<K: AsRef<[u8]>>(self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        let mut values = vec![None; keys.len()];
        self.table.check_process()?;
        match self.table.batching(true) {
            Some(client) => {
                let done = client.get_many(keys, |key, found| {
                    values[key] = found.map(|found| found.to_value());
                });
                done.await.map_err(|error| self.table.error(error))?;
            }
            None => {
                let get = |key: usize| self.get(keys[key].as_ref());
                self.many(keys.len(), get, |key, value| values[key] = value).await?;
            }
        }
        Ok(values)
    }

    /// As [`Table::get_each`].
    ///
    /// # Errors
    /// As [`Table::get_each`].
    pub async fn get_each<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<()> {
        self.table.check_process()?;
        if let Some(client) = self.table.batching(true) {
            let done = client.get_many(keys, found);
            return done.await.map_err(|error| self.table.error(error));
        }
        let get = |key: usize| self.get(keys[key].as_ref());
        self.many(keys.len(), get, |key, value| found(key, value.as_ref().map(ValueRef::from)))
            .await
    }

    /// As [`Table::put_many`].
    ///
    /// # Errors
    /// As [`Table::put_many`].
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Version>> {
        self.table.writable()?;
        let mut versions = vec![Version::default(); pairs.len()];
        if let Some(client) = self.table.batching(false) {
            let stored = |pair: usize, version| versions[pair] = version;
            client.put_many(pairs, stored).await.map_err(|error| self.table.error(error))?;
            return Ok(versions);
        }
        let put = |pair: usize| self.put(pairs[pair].0.as_ref(), pairs[pair].1.as_ref());
        self.many(pairs.len(), put, |pair, version| versions[pair] = version).await?;
        Ok(versions)
    }

    /// As [`Table::contains_many`].
    ///
    /// # Errors
    /// As [`Table::contains_many`].
    pub async fn contains_many<K: AsRef<[u8]>>(self, keys: &[K]) -> Result<Vec<bool>> {
        self.table.check_process()?;
        let mut contained = vec![false; keys.len()];
        if let Some(client) = self.table.batching(true) {
            let done = client.contains_many(keys, |key, has_value| contained[key] = has_value);
            done.await.map_err(|error| self.table.error(error))?;
            return Ok(contained);
        }
        let contains = |key: usize| self.contains(keys[key].as_ref());
        self.many(keys.len(), contains, |key, has_value| contained[key] = has_value).await?;
        Ok(contained)
    }

    /// As [`Table::contains_prefix`].
    ///
    /// # Errors
    /// As [`Table::contains_prefix`].
    pub async fn contains_prefix<K: AsRef<[u8]>>(self, keys: &[K]) -> Result<usize> {
        for (group, keys) in keys.chunks(PREFIX_KEYS).enumerate() {
            let contained = self.contains_many(keys).await?;
            if let Some(missing) = contained.iter().position(|has_value| !has_value) {
                return Ok(group * PREFIX_KEYS + missing);
            }
        }
        Ok(keys.len())
    }

    /// As [`Table::delete_many`].
    ///
    /// # Errors
    /// As [`Table::delete_many`].
    pub async fn delete_many<K: AsRef<[u8]>>(self, keys: &[K]) -> Result<Vec<bool>> {
        self.table.writable()?;
        let mut deleted = vec![false; keys.len()];
        if let Some(client) = self.table.batching(false) {
            let done = client.delete_many(keys, |key, had_value| deleted[key] = had_value);
            done.await.map_err(|error| self.table.error(error))?;
            return Ok(deleted);
        }
        let delete = |key: usize| self.delete(keys[key].as_ref());
        self.many(keys.len(), delete, |key, had_value| deleted[key] = had_value).await?;
        Ok(deleted)
    }

    /// As [`Table::scan_page`].
    ///
    /// # Errors
    /// As [`Table::scan_page`].
    pub async fn scan_page(self, from: &ScanCursor, prefix: &[u8]) -> Result<ScanPage> {
        self.table.check_process()?;
        let Scanned { keys, next } = self.table.operations().scan(&from.0, prefix).await?;
        let keys = keys.into_iter().map(ScannedKey::from).collect();
        Ok(ScanPage { keys, next: next.map(ScanCursor) })
    }

    /// As [`Table::usage`].
    ///
    /// # Errors
    /// As [`Table::usage`].
    pub async fn usage(self) -> Result<Vec<Usage>> {
        self.table.check_process()?;
        self.table.operations().usage().await
    }

    /// As [`Table::reserve`].
    ///
    /// # Errors
    /// As [`Table::reserve`].
    pub async fn reserve(self, key: &[u8], len: usize) -> Result<Reservation<'a>> {
        self.reserve_with(key, len, PutOptions::default()).await
    }

    /// As [`Table::reserve_with`].
    ///
    /// # Errors
    /// As [`Table::reserve_with`].
    pub async fn reserve_with(
        self,
        key: &[u8],
        len: usize,
        options: PutOptions,
    ) -> Result<Reservation<'a>> {
        self.table.writable()?;
        let options = self.table.engine_options(options);
        let reserved = self.table.operations().reserve(key, len, options).await;
        let reserved = reserved.map_err(|error| self.table.error(error))?;
        let place = match reserved {
            Some(place) => ValuePlace::InTable(place),
            None => ValuePlace::own(key, len, options),
        };
        Ok(Reservation::new(self.table, place))
    }

    /// Runs `count` operations in the table's lanes, and hands on their outputs. After an error no
    /// further operation is begun.
    async fn many<T, F>(
        self,
        count: usize,
        operation: impl Fn(usize) -> F,
        mut output: impl FnMut(usize, T),
    ) -> Result<()>
    where
        F: Future<Output = Result<T>>,
    {
        let has_failed = Cell::new(false);
        let mut result = Ok(());
        let work = (0..count).take_while(|_| !has_failed.get()).map(|number| {
            let operation = operation(number);
            async move { (number, operation.await) }
        });
        let done = |(number, done): (usize, Result<T>)| match done {
            Ok(done) => output(number, done),
            Err(error) if !has_failed.replace(true) => result = Err(error),
            Err(_) => (),
        };
        lanes::run(self.table.lanes(), work, done).await;
        result
    }
}
