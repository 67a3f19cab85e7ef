//! A table, for one thread: the blocking operations.

pub(crate) mod asynch;
mod many;
pub(crate) mod pinned;
pub(crate) mod reservation;
pub(crate) mod scan;
pub(crate) mod touch;

use std::cell::Cell;

use loch_engines::EngineError;
use loch_engines::nessie::{AnyClient, Client};
use loch_engines::operation::{self, Operation, Outcome};
use loch_engines::registry::EngineId;
use loch_fabric::Buf;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;

use crate::client::backend::Backend;
use crate::client::batching::Batching;
use crate::client::counters::Counters;
use crate::client::operations::Operations;
use crate::layout::memory::TableView;
use crate::limits::{KEPT_BUF_BYTES_MAX, LANES_DEFAULT, LANES_MAX};
use crate::session::table_session::TableSession;
use crate::{
    AsyncTable, CheckReport, Conditional, Error, Expect, Expiry, Lambda, Number, Pinned,
    Reservation, Result, Scan, ScanCursor, ScanPage, Usage, Value, Version,
};

/// A table of a cluster, for one thread: it can be sent to another thread, but not shared. Every
/// thread opens its own table.
///
/// A table holds one session slot of its home node until it is dropped. The node's process may go
/// away and come back meanwhile.
///
/// An operation that a table refuses, or does not finish, returns [`Error::Table`], with an
/// [`EngineError`] in it.
///
/// A process that is forked from the table's process must not use the table. In the child every
/// operation fails with [`Error::Forked`], and dropping the table does nothing; attach again there.
/// An operation that was under way in the parent ([`Table::asynch`]) must not be continued in the
/// child.
///
/// ```
/// use loch::{Cluster, Conditional, EmbeddedConfig};
/// let cluster = Cluster::embedded(EmbeddedConfig::default())?;
/// let table = cluster.table("default")?;
///
/// let first = table.put(b"key", b"one")?;
/// assert!(matches!(table.put_if_version(b"key", b"two", first)?, Conditional::Done(_)));
/// let Conditional::Refused(Some(now)) = table.put_if_version(b"key", b"three", first)? else {
///     panic!("the version is not the first any more");
/// };
/// assert_eq!(table.get(b"key")?.map(|value| value.version()), Some(now));
///
/// // Every thread has its own table.
/// std::thread::scope(|scope| {
///     scope.spawn(|| cluster.table("default")?.put(b"key", b"from another thread"));
/// });
/// # Ok::<(), loch::Error>(())
/// ```
pub struct Table {
    backend: Backend,
    name: String,
    engine: EngineId,
    lanes: usize,
    /// The buffer that `get_into` uses again and again.
    spare: Cell<Buf>,
    /// The session ends after the client has left its slabs behind.
    table_session: TableSession,
}

/// Options of a PUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// When the value expires. Default: never.
    pub expiry: Expiry,
}

impl Table {
    /// The table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same operations as futures, for the lanes of this thread.
    pub fn asynch(&self) -> AsyncTable<'_> {
        AsyncTable::new(self)
    }

    /// Lets up to `lanes` operations overlap in `get_many` and `put_many`, where these are not done
    /// together (as on tables of `nessie` and `kv-direct` in shared memory); 1 to 4096. The default
    /// is the number of requests that the client can have under way at all workers of the table,
    /// and at least 16. A number outside this range is replaced by the nearest in it.
    #[must_use]
    pub fn with_lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes.clamp(1, LANES_MAX);
        self
    }

    /// Returns the value of `key`, if it has one.
    ///
    /// # Errors
    /// [`EngineError::KeyEmpty`], [`EngineError::KeyTooLong`]; [`EngineError::Timeout`] if other
    /// clients kept changing the key's slots, or the key's worker did not answer;
    /// [`Error::NodeUnreachable`] if the worker's node is down.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        block_on(self.asynch().get(key))
    }

    /// Replaces the contents of `into` by the value of `key` and returns its version. If the key
    /// has no value `into` is empty afterwards. Allocates nothing if `into` has room.
    ///
    /// # Errors
    /// As [`Table::get`]; then `into` is empty.
    pub fn get_into(&self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Version>> {
        block_on(self.asynch().get_into(key, into))
    }

    /// Returns the value of `key` in place, if it has one: without a copy, where the table's memory
    /// is mapped and clients read it themselves (see [`Pinned`]). For long values: for those of a
    /// few hundred bytes a copy is faster.
    ///
    /// ```
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put(b"block", &[7; 1 << 20])?;
    /// if let Some(block) = table.pin(b"block")? {
    ///     assert_eq!(block.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 7 << 20);
    /// }
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::get`], and [`EngineError::TooManyPins`].
    pub fn pin(&self, key: &[u8]) -> Result<Option<Pinned<'_>>> {
        block_on(self.asynch().pin(key))
    }

    /// Gives `key` the value `value`. Returns the value's version.
    ///
    /// # Errors
    /// As [`Table::get`], and [`EngineError::ValueTooLong`], [`EngineError::IndexFull`],
    /// [`EngineError::OutOfMemory`], [`EngineError::ReadOnly`]. After any error but
    /// [`EngineError::Ambiguous`] the key has its old value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        self.put_with(key, value, PutOptions::default())
    }

    /// As [`Table::put`], with options.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_with(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Version> {
        block_on(self.asynch().put_with(key, value, options))
    }

    /// Removes the value of `key`. Returns whether it had one.
    ///
    /// # Errors
    /// As [`Table::get`], and [`EngineError::ReadOnly`].
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        block_on(self.asynch().delete(key))
    }

    /// Removes the value of `key` if it has this version. Returns whether it did. Like
    /// [`Table::delete`] it needs no memory, so a full table does not refuse it.
    ///
    /// ```
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put(b"job", b"waits")?;
    /// let job = table.get(b"job")?.expect("it was put");
    /// assert!(table.delete_if_version(b"job", job.version())?, "nobody else has taken it");
    /// assert!(!table.delete_if_version(b"job", job.version())?);
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::delete`].
    pub fn delete_if_version(&self, key: &[u8], version: Version) -> Result<bool> {
        block_on(self.asynch().delete_if_version(key, version))
    }

    /// Returns whether `key` has a value, without reading the value.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        block_on(self.asynch().contains(key))
    }

    /// Gives `key` the value `value` if the condition `expect` holds.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional> {
        block_on(self.asynch().put_if(key, value, expect, options))
    }

    /// Gives `key` the value `value` if its value has this version.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_if_version(
        &self,
        key: &[u8],
        value: &[u8],
        version: Version,
    ) -> Result<Conditional> {
        self.put_if(key, value, Expect::Version(version), PutOptions::default())
    }

    /// Gives `key` the value `value` if the key has none.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Conditional> {
        self.put_if(key, value, Expect::Absent, PutOptions::default())
    }

    /// Appends `bytes` to the value of `key`. Bytes that other clients append or put at the same
    /// time come before or after, never in between. A key without a value gets `bytes` as its
    /// value. Returns the version of the new value. The new value expires when the old one did; a
    /// value that is created does not expire.
    ///
    /// ```
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.append(b"log", b"one,")?;
    /// let version = table.append(b"log", b"two,")?;
    /// let value = table.get(b"log")?.expect("it was appended to");
    /// assert_eq!((&value[..], value.version()), (&b"one,two,"[..], version));
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::put`]; [`EngineError::ValueTooLong`] if both together are too long.
    pub fn append(&self, key: &[u8], bytes: &[u8]) -> Result<Version> {
        block_on(self.asynch().append(key, bytes))
    }

    /// Adds `add`, wrapping, to the number under `key` (8 bytes, little-endian) and returns the
    /// number before. A key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Table::put`], and [`EngineError::NotACounter`].
    pub fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64> {
        block_on(self.asynch().fetch_add(key, add))
    }

    /// Replaces the number under `key` by the result of the function, where the value is, and
    /// returns the number before. A key without a value counts as 0. In tables of `kv-direct`.
    ///
    /// ```
    /// # use loch::{Cluster, EmbeddedConfig, Lambda, TableConfig};
    /// # let table = TableConfig { engine: "kv-direct".parse()?, ..TableConfig::default() };
    /// # let config = EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() };
    /// # let table = Cluster::embedded(config)?.table("default")?;
    /// assert_eq!(table.update(b"seats", Lambda::add(40u16))?, 0);
    /// assert_eq!(table.update(b"seats", Lambda::saturating_subtract(50u16))?, 40);
    /// assert_eq!(table.update(b"seats", Lambda::compare_swap(0, 1u16))?, 0);
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::put`], and [`Error::OtherEngine`], [`EngineError::NotAVector`] if the value is
    /// not one number of this type, [`EngineError::UnfitFunction`], [`EngineError::NoFunction`],
    /// [`EngineError::FunctionFailed`].
    pub fn update<T: Number>(&self, key: &[u8], lambda: Lambda<T>) -> Result<T> {
        block_on(self.asynch().update(key, lambda))
    }

    /// Replaces each number under `key` by the result of the function. Returns how many numbers
    /// there are, if the key has a value.
    ///
    /// # Errors
    /// As [`Table::update`]. After an error all numbers have their old values.
    pub fn update_all<T: Number>(&self, key: &[u8], lambda: Lambda<T>) -> Result<Option<u64>> {
        block_on(self.asynch().update_all(key, lambda))
    }

    /// As [`Table::update_all`], but returns the numbers before.
    ///
    /// # Errors
    /// As [`Table::update_all`].
    pub fn fetch_update_all<T: Number>(
        &self,
        key: &[u8],
        lambda: Lambda<T>,
    ) -> Result<Option<Vec<T>>> {
        block_on(self.asynch().fetch_update_all(key, lambda))
    }

    /// Replaces each number under `key` by the result of the function with the operand of the same
    /// index. There must be as many operands as numbers; the function's own operand is not used.
    /// Returns how many numbers there are, if the key has a value.
    ///
    /// # Errors
    /// As [`Table::update_all`].
    pub fn update_each<T: Number>(
        &self,
        key: &[u8],
        lambda: Lambda<T>,
        operands: &[T],
    ) -> Result<Option<u64>> {
        block_on(self.asynch().update_each(key, lambda, operands))
    }

    /// As [`Table::update_each`], but returns the numbers before.
    ///
    /// # Errors
    /// As [`Table::update_all`].
    pub fn fetch_update_each<T: Number>(
        &self,
        key: &[u8],
        lambda: Lambda<T>,
        operands: &[T],
    ) -> Result<Option<Vec<T>>> {
        block_on(self.asynch().fetch_update_each(key, lambda, operands))
    }

    /// Combines all numbers under `key` by the function, one after the other, beginning with its
    /// operand: with `Lambda::add(0)` the result is their sum.
    ///
    /// # Errors
    /// The errors of [`Table::get`] and [`Table::update`].
    pub fn reduce<T: Number>(&self, key: &[u8], lambda: Lambda<T>) -> Result<Option<T>> {
        block_on(self.asynch().reduce(key, lambda))
    }

    /// Returns the numbers under `key` that the function keeps, in their order. The value is not
    /// changed.
    ///
    /// # Errors
    /// As [`Table::reduce`].
    pub fn filter<T: Number>(&self, key: &[u8], lambda: Lambda<T>) -> Result<Option<Vec<T>>> {
        block_on(self.asynch().filter(key, lambda))
    }

    /// Reserves memory for a value of `len` bytes, to be written in place and then committed
    /// without a copy. Bytes that are not written have unspecified contents.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn reserve(&self, key: &[u8], len: usize) -> Result<Reservation<'_>> {
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
    ) -> Result<Reservation<'_>> {
        block_on(self.asynch().reserve_with(key, len, options))
    }

    /// Scans the table: an iterator over its keys, in no order, that reads page by page while other
    /// clients are at work.
    ///
    /// A key that has a value from the beginning of the scan to its end is found, and perhaps more
    /// than once. A key that is found had a value at some moment of the scan. Keys that come or go
    /// meanwhile may be found or not.
    ///
    /// ```
    /// # let table = loch::Cluster::embedded(loch::EmbeddedConfig::default())?.table("default")?;
    /// table.put_many(&[("user:1", "Ada"), ("user:2", "Grace"), ("colour", "green")])?;
    /// let mut users = Vec::new();
    /// for found in table.scan().prefix(b"user:") {
    ///     let found = found?;
    ///     users.push((found.key, found.value_bytes));
    /// }
    /// users.sort();
    /// assert_eq!(users, [(b"user:1".to_vec(), 3), (b"user:2".to_vec(), 5)]);
    /// # Ok::<(), loch::Error>(())
    /// ```
    pub fn scan(&self) -> Scan<'_> {
        Scan::new(self)
    }

    /// The next keys of a scan that begin with `prefix`, and where the scan goes on. One call looks
    /// at a bounded part of the table, so it may find nothing before the scan is at its end.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`EngineError::Fabric`]; [`EngineError::Timeout`] if other
    /// clients keep changing a slot; [`EngineError::NoScans`]. The page can be asked for again.
    pub fn scan_page(&self, from: &ScanCursor, prefix: &[u8]) -> Result<ScanPage> {
        block_on(self.asynch().scan_page(from, prefix))
    }

    /// Walks the whole table and verifies its invariants, while other clients are at work.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`EngineError::Fabric`]. Broken invariants are not an error;
    /// the report lists them.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_process()?;
        block_on(self.operations().check())
    }

    /// The use of the table's memory, node by node. The call reads every entry's generation.
    ///
    /// # Errors
    /// As [`Table::check`].
    pub fn usage(&self) -> Result<Vec<Usage>> {
        block_on(self.asynch().usage())
    }

    /// The costs of this table's operations so far. The difference of two results is the cost of
    /// the operations in between.
    pub fn counters(&self) -> Counters {
        self.operations().counters()
    }

    /// The bytes that this table's connections have sent and received since they were made, for
    /// measurements. Only the fabric `tcp` counts them.
    #[doc(hidden)]
    pub fn bytes_carried(&self) -> Option<[u64; 2]> {
        self.operations().bytes_carried()
    }

    /// The client of a table of nessie whose memory is all mapped: for measurements of that memory.
    #[doc(hidden)]
    pub fn mapped(&self) -> Option<&AnyClient<ShmEndpoint>> {
        match &self.backend {
            Backend::Shm(table) => table.client.nessie(),
            Backend::Network(_) => None,
        }
    }

    pub(crate) fn new(table: &TableView, backend: Backend, table_session: TableSession) -> Self {
        // A batch is asked for at once, as far as there are request slots.
        let slots = table.parts.requests().map_or(0, |requests| {
            let area = requests.area();
            area.workers() as usize * usize::from(area.service().window)
        });
        let (name, engine) = (table.name.clone(), table.engine());
        let lanes = slots.clamp(LANES_DEFAULT, LANES_MAX);
        Self { backend, name, engine, lanes, spare: Cell::default(), table_session }
    }

    /// The client whose operations are awaited in place, if the table has such a client.
    #[inline]
    pub(crate) fn in_place(&self) -> Option<&Client<ShmEndpoint>> {
        self.backend.in_place()
    }

    /// Whether a [`Reservation`] is memory of the table that this process writes to directly. Then
    /// filling it copies the value once, and otherwise once more.
    pub fn reserves_in_place(&self) -> bool {
        self.in_place().is_some()
    }

    /// Whether a [`Pinned`] is the value where it is, in memory that this process has mapped, and
    /// not a copy of it.
    pub fn pins_in_place(&self) -> bool {
        self.in_place().is_some_and(Client::pins)
    }

    /// The client that does operations on many keys together, if the table has such a client.
    #[inline]
    pub(crate) fn batching(&self, is_read: bool) -> Option<Batching<'_>> {
        self.backend.batching(is_read)
    }

    /// Whether GETs of many keys are done together, rather than as many single ones.
    #[doc(hidden)]
    pub fn takes_batches(&self) -> bool {
        self.batching(true).is_some()
    }

    /// All operations, boxed.
    pub(crate) fn operations(&self) -> &dyn Operations {
        self.backend.operations()
    }

    /// Executes an operation that returns no value, whatever the backend is.
    pub(crate) async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        let done = self.operations().execute(key, operation, Buf::new()).await?;
        done.outcome().without_value()
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    #[cold]
    pub(crate) fn error(&self, error: EngineError) -> Error {
        self.operations().explain(error)
    }

    /// Refuses an operation that computes on values, if the engine does not. `operation` is its
    /// name, for the error.
    ///
    /// # Errors
    /// [`Error::OtherEngine`] if the table's engine does not compute.
    pub(crate) fn check_computes(&self, operation: &'static str) -> Result<()> {
        if self.engine.needs().computes {
            return Ok(());
        }
        let computes = EngineId::ALL.iter().find(|engine| engine.needs().computes);
        let (engine, engines) = (self.engine.name(), computes.map_or("no engine", |it| it.name()));
        Err(Error::OtherEngine { table: self.name.clone(), engine, operation, engines })
    }

    /// Refuses a process that was forked from the table's. It would take the same entries as its
    /// parent, in the same session.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.table_session.is_inherited() {
            return Err(Error::Forked);
        }
        Ok(())
    }

    /// Refuses a mutation of a table that is attached for reading, before the table is looked at.
    #[inline]
    pub(crate) fn writable(&self) -> Result<()> {
        self.check_process()?;
        if self.table_session.is_read_only() {
            return Err(self.error(EngineError::ReadOnly));
        }
        Ok(())
    }

    /// The engine's form of the options.
    pub(crate) fn engine_options(&self, options: PutOptions) -> operation::PutOptions {
        self.expiring(options.expiry)
    }

    /// Makes the table look as if a child had inherited it.
    #[cfg(test)]
    pub(crate) fn inherit(&mut self) {
        self.table_session.inherit();
    }

    /// The buffer of `get_into`.
    #[inline]
    pub(crate) fn take_spare(&self) -> Buf {
        self.spare.take()
    }

    #[inline]
    pub(crate) fn keep_spare(&self, buf: Buf) {
        if buf.len() <= KEPT_BUF_BYTES_MAX {
            self.spare.set(buf);
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.table_session.is_read_only() || self.table_session.is_inherited() {
            return;
        }
        if let Err(error) = block_on(self.operations().detach()) {
            // When the session has ended the node finds the memory.
            tracing::warn!(table = self.name, %error, "the table's memory was not left in order");
        }
    }
}

#[cfg(test)]
mod tests {
    use loch_engines::Kv;
    use loch_engines::nessie::slab::Chunk;
    use loch_fabric::Fabric;

    use super::*;
    use crate::{Cluster, EmbeddedConfig, TableConfig};

    /// A table as a child that was forked from its process has it.
    fn inherited(engine: &str) -> (Cluster, Table) {
        let table = TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() };
        let config = EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() };
        let cluster = Cluster::embedded(config).unwrap();
        let mut table = cluster.table("default").unwrap();
        table.put(b"k", b"its own").unwrap();
        table.inherit();
        (cluster, table)
    }

    #[track_caller]
    fn assert_forked<T>(done: Result<T, Error>) {
        let error = done.err().expect("it is the parent's table");
        assert!(matches!(error, Error::Forked), "{error}");
        assert!(error.to_string().contains("Cluster::connect"), "{error}");
    }

    /// If a child left its parent's slabs behind, other clients would take them while the parent
    /// goes on to allocate from them.
    #[test]
    fn a_child_leaves_no_slab_of_its_parents_behind() {
        let (cluster, table) = inherited("nessie");
        let other = cluster.table("default").unwrap();
        let abandoned = || {
            let client = other.mapped().expect("it is of nessie, and embedded");
            let chunks = 0..client.map().shape.geometry.chunks;
            let fabric = client.fabric();
            let word = |chunk| fabric.load(client.map().chunk_addr(0, chunk)).unwrap();
            let found = chunks.map(|chunk| Chunk::from_word(word(chunk)));
            found.filter(|chunk| matches!(chunk, Some(Chunk::Abandoned { .. }))).count()
        };
        drop(table);
        assert_eq!(abandoned(), 0);
        let parents = cluster.table("default").unwrap();
        parents.put(b"k", b"v").unwrap();
        drop(parents);
        assert_eq!(abandoned(), 1, "its owner leaves it to others");
    }

    #[test]
    fn a_batch_overlaps_as_many_operations_as_there_are_request_slots() {
        for (engine, window, lanes) in [
            ("nessie", None, LANES_DEFAULT),
            ("herd", Some(1), LANES_DEFAULT),
            ("herd", Some(20), 40),
        ] {
            let mut table =
                TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() };
            (table.window, table.workers) = (window, window.map(|_| 2));
            let config = EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() };
            let table = Cluster::embedded(config).unwrap().table("default").unwrap();
            assert_eq!(table.lanes(), lanes, "{engine} with a window of {window:?}");
            assert_eq!(table.with_lanes(3).lanes(), 3);
        }
    }

    #[test]
    fn a_child_is_refused_whatever_it_asks_for() {
        for engine in ["nessie", "nessie-server", "nessie-hybrid", "pilaf", "herd", "kv-direct"] {
            let (cluster, table) = inherited(engine);
            let add = Lambda::add(1u64);
            assert_forked(table.get(b"k"));
            assert_forked(table.get_into(b"k", &mut Vec::new()));
            assert_forked(table.contains(b"k"));
            assert_forked(table.get_many(&[b"k"]));
            assert_forked(table.put(b"k", b"v"));
            assert_forked(table.put_with(b"k", b"v", PutOptions::default()));
            assert_forked(table.put_many(&[(b"k", b"v")]));
            assert_forked(table.contains_many(&[b"k"]));
            assert_forked(table.delete_many(&[b"k"]));
            assert_forked(table.put_if_absent(b"k", b"v"));
            assert_forked(table.put_if_version(b"k", b"v", Version::from_u64(1)));
            assert_forked(table.fetch_add(b"k", 1));
            assert_forked(table.delete(b"k"));
            assert_forked(table.touch(b"k", crate::Expiry::Never));
            assert_forked(table.get_and_touch(b"k", crate::Expiry::Never));
            assert_forked(table.update(b"k", add));
            assert_forked(table.update_all(b"k", add));
            assert_forked(table.fetch_update_all(b"k", add));
            assert_forked(table.update_each(b"k", add, &[1]));
            assert_forked(table.fetch_update_each(b"k", add, &[1]));
            assert_forked(table.reduce(b"k", add));
            assert_forked(table.filter(b"k", Lambda::equal(1u64)));
            assert_forked(table.reserve(b"k", 1));
            assert_forked(table.scan_page(&ScanCursor::default(), b""));
            assert_forked(table.check());
            assert_forked(table.usage());
            drop(table);
            // The parent's session goes on, and its values stay.
            let taken = cluster.info().nodes[0].sessions_taken;
            assert_eq!(taken, 1, "{engine}: a child ends nothing of its parent's");
            let own = cluster.table("default").unwrap();
            assert_eq!(&own.get(b"k").unwrap().unwrap()[..], b"its own", "{engine}");
        }
    }
}
