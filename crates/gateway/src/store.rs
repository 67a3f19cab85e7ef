//! Items: what the commands of both protocols read and change.
//!
//! Every change of an item that depends on what it is now is one [`Store::update`]: read, decide,
//! and put or delete on the condition that the version is still the one that was read. So it is
//! atomic, and linearized at the conditional PUT or DELETE. A transaction on one key does its
//! commands on a [`Draft`] of the item, and one conditional PUT or DELETE stores what they made.
//!
//! A command that only looks at an item does so where the item is ([`Store::read`]). One that
//! copies a long value waits for memory for the copies first ([`Work`](crate::load::Work)).

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use loch::{
    Conditional, EngineError, Error, Expect, Expiry, Pinned, PutOptions, ScanCursor, Table, Value,
    Version,
};

use crate::failure::{Failure, found};
use crate::item::{self, Traits};
use crate::limits::{LONG_BYTES, UPDATE_TIME, WORK_COPIES};
use crate::load::{Grant, Load};
use crate::uses::Uses;

/// An item as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    bytes: Vec<u8>,
    start: usize,
    pub traits: Traits,
    pub expires_at: Option<SystemTime>,
    /// 0 in a transaction that has changed the item.
    pub version: Version,
    /// The memory for it, if it is long.
    _grant: Option<Arc<Grant>>,
}

impl Item {
    fn of(bytes: Vec<u8>, expires_at: Option<SystemTime>, version: Version) -> Self {
        let (traits, data) = item::split(&bytes);
        let start = bytes.len() - data.len();
        Self { bytes, start, traits, expires_at, version, _grant: None }
    }

    fn of_value(value: Value) -> Self {
        let (expires_at, version) = (value.expires_at(), value.version());
        Self::of(value.into_vec(), expires_at, version)
    }

    /// An item that is about to be put.
    pub fn new(bytes: Vec<u8>, traits: Traits, expires: Expires) -> Self {
        let (expires_at, version) = (expires.time(), Version::from_u64(0));
        Self { bytes, start: 0, traits, expires_at, version, _grant: None }
    }

    fn view(&self) -> View<'_> {
        View { data: self.data(), expires_at: self.expires_at, version: self.version }
    }

    /// Has these bytes from a place on, and zeros before it where nothing was.
    fn patch(&mut self, at: usize, part: &[u8]) {
        let (start, end) = (self.start + at, self.start + at + part.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(part);
        self.traits.cas = None;
    }

    /// The bytes that a client has put.
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The bytes that a client has put, for itself.
    pub fn into_data(mut self) -> Vec<u8> {
        self.bytes.drain(..self.start);
        self.bytes
    }

    /// What memcached calls the item's CAS unique.
    pub fn cas(&self) -> u64 {
        self.traits.cas.unwrap_or(self.version.as_u64())
    }
}

/// A value as it is stored: where it is or, if this process cannot have it there, as a copy and the
/// memory for that.
#[derive(Debug)]
pub(crate) struct Held<'t> {
    value: Pinned<'t>,
    _grant: Option<Grant>,
}

impl<'t> Deref for Held<'t> {
    type Target = Pinned<'t>;

    fn deref(&self) -> &Pinned<'t> {
        &self.value
    }
}

/// An item, to be looked at where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// The bytes that a client has put.
    pub data: &'a [u8],
    pub expires_at: Option<SystemTime>,
    /// 0 in a transaction that has changed the item.
    pub version: Version,
}

impl<'a> View<'a> {
    fn of(value: &'a Pinned<'_>) -> Self {
        let (expires_at, version) = (value.expires_at(), value.version());
        View { data: item::split(value).1, expires_at, version }
    }
}

/// When an item expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expires {
    Never,
    At(SystemTime),
}

impl Expires {
    /// As long from now on.
    pub fn after(time: Duration) -> Self {
        SystemTime::now().checked_add(time).map_or(Self::Never, Self::At)
    }

    pub fn options(self) -> PutOptions {
        PutOptions { expiry: self.time().map_or(Expiry::Never, Expiry::At) }
    }

    pub fn has_passed(self) -> bool {
        matches!(self, Self::At(at) if at <= SystemTime::now())
    }

    pub fn time(self) -> Option<SystemTime> {
        match self {
            Self::Never => None,
            Self::At(at) => Some(at),
        }
    }
}

impl From<Option<SystemTime>> for Expires {
    fn from(at: Option<SystemTime>) -> Self {
        at.map_or(Self::Never, Self::At)
    }
}

/// What an update makes of an item.
#[derive(Debug)]
pub(crate) enum Change {
    /// Nothing.
    Keep,
    Put {
        data: Vec<u8>,
        traits: Traits,
        expires: Expires,
    },
    /// These bytes from a place on, and all else as it was; of a new item, zeros before them.
    Patch {
        at: usize,
        part: Vec<u8>,
    },
    /// Another expiry, and all else as it was.
    Expire(Expires),
    Delete,
}

impl Change {
    /// Other bytes, and everything else as it was; of a new item, nothing else.
    pub fn bytes(item: Option<&Item>, data: Vec<u8>) -> Self {
        let traits = item.map(|item| Traits { cas: None, ..item.traits }).unwrap_or_default();
        let expires = item.and_then(|item| item.expires_at).into();
        Self::Put { data, traits, expires }
    }

    /// What is put of an item, with all that stays as it was.
    fn of_item(self, item: Option<Item>) -> Self {
        let changed = match (self, item) {
            (Self::Patch { at, part }, item) => {
                let empty = || Item::new(Vec::new(), Traits::default(), Expires::Never);
                let mut item = item.unwrap_or_else(empty);
                item.patch(at, &part);
                item
            }
            (Self::Expire(expires), Some(item)) => Item { expires_at: expires.time(), ..item },
            (Self::Expire(_), None) => return Self::Keep,
            (other, _) => return other,
        };
        let (traits, expires) = (changed.traits, changed.expires_at.into());
        Self::Put { data: changed.into_data(), traits, expires }
    }
}

/// The items of a table, or of a transaction.
#[derive(Clone, Copy)]
pub(crate) struct Store<'t> {
    table: &'t Table,
    uses: &'t Uses,
    load: &'t Load,
    draft: Option<&'t RefCell<Draft>>,
    /// The items are the command's answer.
    answers: bool,
}

/// An item that a transaction works on.
#[derive(Debug)]
pub(crate) struct Draft {
    key: Vec<u8>,
    item: Option<Item>,
    /// The version that was read.
    base: Option<Version>,
    has_changed: bool,
    /// The memory for it, if it is long.
    _grant: Option<Arc<Grant>>,
}

impl Draft {
    pub fn base(&self) -> Option<Version> {
        self.base
    }
}

impl<'t> Store<'t> {
    /// `load` is that of the table's thread.
    pub fn new(table: &'t Table, uses: &'t Uses, load: &'t Load) -> Self {
        Self { table, uses, load, draft: None, answers: false }
    }

    /// The store of a command whose answer has the item, and is nowhere else then. It finds no long
    /// one while clients have left too many such answers.
    pub fn answers(self, answers: bool) -> Self {
        Self { answers, ..self }
    }

    /// What its commands take from others.
    pub fn load(self) -> &'t Load {
        self.load
    }

    /// When its items were used last.
    pub fn uses(self) -> &'t Uses {
        self.uses
    }

    pub fn table(self) -> &'t Table {
        self.table
    }

    /// Whether commands read and change a draft.
    pub fn is_draft(self) -> bool {
        self.draft.is_some()
    }

    /// The item as it is now, to work on. The work makes it longer by so many bytes at most.
    pub async fn draft(self, key: &[u8], longer: usize) -> Result<Draft, Failure> {
        let (item, grant) = self.fetch(key, longer).await?;
        let base = item.as_ref().map(|item| item.version);
        Ok(Draft { key: key.to_vec(), item, base, has_changed: false, _grant: grant })
    }

    /// The store of a transaction.
    pub fn on<'a>(self, draft: &'a RefCell<Draft>) -> Store<'a>
    where
        't: 'a,
    {
        Store { draft: Some(draft), ..self }
    }

    /// Stores what was made of an item, if nobody has changed it meanwhile. Returns whether it did.
    pub async fn commit(self, draft: Draft) -> Result<bool, Failure> {
        if !draft.has_changed {
            // Nothing was changed: it is as if the transaction had happened when it read.
            return Ok(true);
        }
        let change = match draft.item {
            None => Change::Delete,
            Some(item) => {
                let (traits, expires) = (item.traits, item.expires_at.into());
                Change::Put { data: item.into_data(), traits, expires }
            }
        };
        Ok(self.apply(&draft.key, draft.base, change).await?.is_some())
    }

    pub async fn get(self, key: &[u8]) -> Result<Option<Item>, Failure> {
        if let Some(draft) = self.draft {
            let draft = draft.borrow();
            assert_eq!(draft.key, key, "a transaction on one key names that key alone");
            return Ok(draft.item.clone());
        }
        Ok(self.fetch(key, 0).await?.0)
    }

    /// A value as it is stored. A caller that has memory for values already could wait for itself.
    ///
    /// A copy of a value that is not known to be long has its memory once it has come: otherwise
    /// those that wait for a node which does not answer would have memory that others need.
    pub async fn pin(self, key: &[u8]) -> loch::Result<Option<Held<'t>>> {
        let (table, longs) = (self.table.asynch(), &self.load.longs);
        if self.table.pins_in_place() {
            return Ok(table.pin(key).await?.map(|value| Held { value, _grant: None }));
        }
        let mut known = None;
        if let Some(len) = longs.len(key) {
            known = Some(self.load.take(len).await);
        }
        let value = table.pin(key).await?;
        let len = value.as_ref().map_or(0, |value| value.len());
        longs.note(key, len);
        let grant = (len >= LONG_BYTES).then(|| self.load.work.have(len));
        drop(known);
        Ok(value.map(|value| Held { value, _grant: grant }))
    }

    /// Looks at the item where it is.
    pub async fn read<T>(
        self,
        key: &[u8],
        look: impl FnOnce(Option<View<'_>>) -> T,
    ) -> Result<T, Failure> {
        if let Some(draft) = self.draft {
            let draft = draft.borrow();
            assert_eq!(draft.key, key, "a transaction on one key names that key alone");
            return Ok(look(draft.item.as_ref().map(Item::view)));
        }
        let table = self.table.asynch();
        if let Some(len) = self.load.longs.len(key) {
            self.load.pace.step(len).await;
            match self.pin(key).await {
                Err(Error::Table { source: EngineError::TooManyPins { .. }, .. }) => (),
                pinned => return Ok(look(found(pinned)?.as_deref().map(View::of))),
            }
        }
        let item = found(table.get(key).await)?.map(Item::of_value);
        self.load.pace.stepped(self.note_len(key, item.as_ref()));
        Ok(look(item.as_ref().map(Item::view)))
    }

    /// A copy of the item, which is to become longer by so many bytes at most, and the memory for
    /// both.
    async fn fetch(
        self,
        key: &[u8],
        longer: usize,
    ) -> Result<(Option<Item>, Option<Arc<Grant>>), Failure> {
        let table = self.table.asynch();
        let mut believed = self.load.longs.len(key).unwrap_or(0);
        loop {
            let bytes = believed + longer;
            let mut grant = None;
            if bytes >= LONG_BYTES {
                grant = Some(Arc::new(self.load.take(WORK_COPIES * bytes).await));
                if self.answers && !self.load.copies.may_hold() {
                    return Err(Failure::Held);
                }
                self.load.pace.step(bytes).await;
            }
            let item = found(table.get(key).await)?.map(Item::of_value);
            let len = self.note_len(key, item.as_ref());
            if len < LONG_BYTES || len <= believed {
                let item = item.map(|item| Item { _grant: grant.clone(), ..item });
                return Ok((item, grant));
            }
            // The copy is not kept while others have the memory for theirs.
            self.load.pace.stepped(len);
            believed = len;
        }
    }

    /// Remembers the length of a long item, which is returned.
    fn note_len(self, key: &[u8], item: Option<&Item>) -> usize {
        let len = item.map_or(0, |item| item.bytes.len());
        self.load.longs.note(key, len);
        len
    }

    pub async fn contains(self, key: &[u8]) -> Result<bool, Failure> {
        match self.draft {
            Some(draft) => Ok(draft.borrow().item.is_some()),
            None => Ok(found(self.table.asynch().contains(key).await.map(Some))? == Some(true)),
        }
    }

    /// Puts an item whatever there is.
    pub async fn put(
        self,
        key: &[u8],
        data: &[u8],
        traits: Traits,
        expires: Expires,
    ) -> Result<Version, Failure> {
        if self.draft.is_some() {
            let change = || Change::Put { data: data.to_vec(), traits, expires };
            self.update(key, |_| Ok((change(), ()))).await?;
            return Ok(Version::from_u64(0));
        }
        self.load.longs.note(key, data.len());
        if data.len() >= LONG_BYTES {
            self.load.pace.step(data.len()).await;
        }
        let table = self.table.asynch();
        let version = match item::header(traits, data) {
            None => table.put_with(key, data, expires.options()).await?,
            Some(header) => {
                table.put_with(key, &[&header[..], data].concat(), expires.options()).await?
            }
        };
        self.uses.stored(version);
        Ok(version)
    }

    /// Puts an item of a table where none is. Returns whether it did.
    pub async fn put_new(
        self,
        key: &[u8],
        data: Vec<u8>,
        traits: Traits,
        expires: Expires,
    ) -> Result<bool, Failure> {
        if data.len() >= LONG_BYTES {
            self.load.pace.step(data.len()).await;
        }
        Ok(self.apply(key, None, Change::Put { data, traits, expires }).await?.is_some())
    }

    /// Puts values of different keys that need no header.
    pub async fn put_all(self, pairs: &[(&[u8], &[u8])]) -> loch::Result<()> {
        let versions = self.table.asynch().put_many(pairs).await?;
        versions.into_iter().for_each(|version| self.uses.stored(version));
        Ok(())
    }

    /// Deletes an item. Returns whether there was one.
    pub async fn delete(self, key: &[u8]) -> Result<bool, Failure> {
        match self.draft {
            Some(_) => {
                let delete = |item: Option<&Item>| Ok((Change::Delete, item.is_some()));
                Ok(self.update(key, delete).await?.0)
            }
            None => Ok(found(self.table.asynch().delete(key).await.map(Some))? == Some(true)),
        }
    }

    /// Deletes an item of a table if it has this version. Returns whether it did.
    pub async fn delete_version(self, key: &[u8], version: Version) -> Result<bool, Failure> {
        Ok(self.table.asynch().delete_if_version(key, version).await?)
    }

    /// Changes an item to what `decide` makes of it. Returns what `decide` said, and the version of
    /// the item after it.
    ///
    /// `decide` is called again if somebody has changed the item meanwhile.
    pub async fn update<T>(
        self,
        key: &[u8],
        decide: impl FnMut(Option<&Item>) -> Result<(Change, T), Failure>,
    ) -> Result<(T, Option<Version>), Failure> {
        self.update_longer(key, 0, decide).await
    }

    /// As [`Store::update`], which makes the item longer by so many bytes at most.
    pub async fn update_longer<T>(
        self,
        key: &[u8],
        longer: usize,
        mut decide: impl FnMut(Option<&Item>) -> Result<(Change, T), Failure>,
    ) -> Result<(T, Option<Version>), Failure> {
        if let Some(draft) = self.draft {
            let mut draft = draft.borrow_mut();
            assert_eq!(draft.key, key, "a transaction on one key names that key alone");
            let (change, said) = decide(draft.item.as_ref())?;
            draft.apply(change);
            return Ok((said, draft.item.as_ref().map(|item| item.version)));
        }
        let mut until = None;
        let _under_way = self.load.updating.begin(key).await;
        loop {
            let (item, _grant) = self.fetch(key, longer).await?;
            let base = item.as_ref().map(|item| item.version);
            let (change, said) = decide(item.as_ref())?;
            let change = change.of_item(item);
            if let Some(version) = self.apply(key, base, change).await? {
                return Ok((said, version));
            }
            let until = until.get_or_insert_with(|| Instant::now() + UPDATE_TIME);
            if Instant::now() > *until {
                return Err(Failure::Busy);
            }
        }
    }

    /// Deletes all keys that were there when it began.
    pub async fn flush(self) -> Result<(), Failure> {
        let mut cursor = Some(ScanCursor::default());
        while let Some(from) = cursor {
            let page = self.table.asynch().scan_page(&from, b"").await?;
            let keys: Vec<&[u8]> = page.keys.iter().map(|found| found.key.as_slice()).collect();
            self.table.asynch().delete_many(&keys).await?;
            cursor = page.next;
        }
        Ok(())
    }

    /// Does a change if the version is as expected. Returns the version after it, if it did.
    async fn apply(
        self,
        key: &[u8],
        base: Option<Version>,
        change: Change,
    ) -> Result<Option<Option<Version>>, Failure> {
        let expect = base.map_or(Expect::Absent, Expect::Version);
        let (value, options) = match change {
            Change::Keep => return Ok(Some(base)),
            Change::Patch { .. } | Change::Expire(_) => unreachable!("they are puts by now"),
            Change::Delete => return self.delete_if(key, base).await,
            Change::Put { expires, .. } if expires.has_passed() => {
                return self.delete_if(key, base).await;
            }
            Change::Put { data, traits, expires } => {
                let value = match item::header(traits, &data) {
                    None => data,
                    Some(header) => [&header[..], &data[..]].concat(),
                };
                (value, expires.options())
            }
        };
        match self.table.asynch().put_if(key, &value, expect, options).await? {
            Conditional::Done(version) => {
                self.load.longs.note(key, value.len());
                self.uses.stored(version);
                Ok(Some(Some(version)))
            }
            Conditional::Refused(_) => Ok(None),
        }
    }

    /// Deletes an item if it has this version. The version after it, if it did.
    async fn delete_if(
        self,
        key: &[u8],
        base: Option<Version>,
    ) -> Result<Option<Option<Version>>, Failure> {
        // Where nothing is, nothing is done: it is as if it had happened when the item was read.
        let Some(version) = base else { return Ok(Some(None)) };
        let is_deleted = self.delete_version(key, version).await?;
        if is_deleted {
            self.load.longs.note(key, 0);
        }
        Ok(is_deleted.then_some(None))
    }
}

impl Draft {
    fn apply(&mut self, change: Change) {
        let item = match change {
            Change::Keep => return,
            // In place: a transaction may have many of them.
            Change::Patch { at, part } if self.item.is_some() => {
                let item = self.item.as_mut().expect("it is there");
                item.patch(at, &part);
                item.version = Version::from_u64(0);
                self.has_changed = true;
                return;
            }
            Change::Expire(expires) if !expires.has_passed() => {
                let Some(item) = &mut self.item else { return };
                (item.expires_at, item.version) = (expires.time(), Version::from_u64(0));
                self.has_changed = true;
                return;
            }
            Change::Expire(_) => None,
            Change::Patch { at, part } => {
                let mut item = Item::new(Vec::new(), Traits::default(), Expires::Never);
                item.patch(at, &part);
                Some(item)
            }
            Change::Put { expires, .. } if expires.has_passed() => None,
            Change::Delete => None,
            Change::Put { data, traits, expires } => Some(Item::new(data, traits, expires)),
        };
        (self.item, self.has_changed) = (item, true);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use loch::lanes::block_on;
    use loch::{Cluster, EmbeddedConfig, TableConfig};

    use super::*;
    use crate::limits::WORK_BYTES_MAX;

    fn table() -> (Cluster, Table) {
        let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
        let table = cluster.table("default").unwrap();
        (cluster, table)
    }

    #[test]
    fn an_update_that_finds_another_version_decides_again() {
        let (_cluster, table) = table();
        table.put(b"k", b"1").unwrap();
        let mut seen = Vec::new();
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let update = store.update(b"k", |item| {
            let item = item.expect("it is there");
            seen.push(item.data().to_vec());
            if seen.len() == 1 {
                table.put(b"k", b"2").unwrap();
            }
            Ok((Change::bytes(Some(item), [item.data(), b"+"].concat()), ()))
        });
        let (_, version) = block_on(update).unwrap();
        assert_eq!(seen, [b"1", b"2"]);
        let value = table.get(b"k").unwrap().unwrap();
        assert_eq!((&value[..], Some(value.version())), (&b"2+"[..], version));
    }

    #[test]
    fn an_item_that_an_update_deletes_is_gone_and_only_if_nobody_has_changed_it() {
        let (_cluster, table) = table();
        table.put(b"k", b"1").unwrap();
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let mut first = true;
        let delete = store.update(b"k", |item| {
            let data = item.expect("it is there").data().to_vec();
            if std::mem::take(&mut first) {
                table.put(b"k", b"2").unwrap();
            }
            Ok((Change::Delete, data))
        });
        let (deleted, version) = block_on(delete).unwrap();
        assert_eq!((deleted, version), (b"2".to_vec(), None));
        assert!(table.get(b"k").unwrap().is_none());
    }

    /// Other threads, and other gateways, store longer values than a thread has seen last.
    #[test]
    fn a_copy_has_memory_by_the_length_of_the_value_whatever_it_was_before() {
        let (_cluster, table) = table();
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let known = [0, LONG_BYTES, 5 * LONG_BYTES];
        let lens = [(LONG_BYTES, 0), (4 * LONG_BYTES, 0), (4 * LONG_BYTES, 4 * LONG_BYTES)];
        for (known, (len, longer)) in known.iter().flat_map(|known| lens.map(|it| (*known, it))) {
            table.put(b"k", &vec![1; len]).unwrap();
            load.pace.begin_round();
            load.longs.note(b"k", known);
            let change = |item: Option<&Item>| {
                let data = item.unwrap().data();
                assert!(load.work.bytes() >= WORK_COPIES * data.len(), "of {known} bytes");
                Ok((Change::bytes(item, [data, &data[..longer]].concat()), ()))
            };
            block_on(store.update_longer(b"k", longer, change)).unwrap();
            assert_eq!(load.longs.len(b"k"), Some(len + longer), "it is known at once");
            assert_eq!(load.work.bytes(), 0);
        }
        load.pace.begin_round();
        block_on(store.update(b"k", |_| Ok((Change::Delete, ())))).unwrap();
        assert_eq!(load.longs.len(b"k"), None);
    }

    #[test]
    fn a_draft_is_stored_whole_or_not_at_all() {
        let (_cluster, table) = table();
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let work = |draft| {
            let draft = RefCell::new(draft);
            let on = store.on(&draft);
            block_on(on.put(b"k", b"a", Traits::default(), Expires::Never)).unwrap();
            let more = |item: Option<&Item>| {
                Ok((Change::bytes(item, [item.unwrap().data(), b"b"].concat()), ()))
            };
            block_on(on.update(b"k", more)).unwrap();
            draft.into_inner()
        };
        let draft = work(block_on(store.draft(b"k", 0)).unwrap());
        assert!(table.get(b"k").unwrap().is_none());
        assert!(block_on(store.commit(draft)).unwrap());
        assert_eq!(&table.get(b"k").unwrap().unwrap()[..], b"ab");
        let draft = work(block_on(store.draft(b"k", 0)).unwrap());
        table.put(b"k", b"other").unwrap();
        assert!(!block_on(store.commit(draft)).unwrap());
        assert_eq!(&table.get(b"k").unwrap().unwrap()[..], b"other");
    }

    #[test]
    fn a_draft_whose_time_has_passed_is_gone_at_once() {
        let (_cluster, table) = table();
        table.put(b"k", b"1").unwrap();
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let draft = RefCell::new(block_on(store.draft(b"k", 0)).unwrap());
        let on = store.on(&draft);
        let later = Expires::after(Duration::from_secs(60));
        for (expires, is_there) in [(later, true), (Expires::At(SystemTime::now()), false)] {
            block_on(on.update(b"k", |_| Ok((Change::Expire(expires), ())))).unwrap();
            assert_eq!(block_on(on.get(b"k")).unwrap().is_some(), is_there);
        }
        assert!(block_on(store.commit(draft.into_inner())).unwrap());
        assert!(table.get(b"k").unwrap().is_none());
    }

    #[test]
    fn an_update_that_others_undo_for_long_is_given_up() {
        let (_cluster, table) = table();
        table.put(b"k", b"1").unwrap();
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let mut tries = 0;
        let update = store.update(b"k", |item| {
            tries += 1;
            if tries == 2 {
                std::thread::sleep(UPDATE_TIME);
            }
            table.put(b"k", b"of another one").unwrap();
            Ok((Change::bytes(item, b"x".to_vec()), ()))
        });
        assert!(matches!(block_on(update), Err(Failure::Busy)));
        assert_eq!((tries, &table.get(b"k").unwrap().unwrap()[..]), (2, &b"of another one"[..]));
    }

    #[test]
    fn a_long_value_is_put_in_a_round_that_has_room_for_it() {
        let (_cluster, table) = table();
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let (traits, never) = (Traits::default(), Expires::Never);
        for bytes in [LONG_BYTES - 1, LONG_BYTES] {
            let data = vec![1; bytes];
            load.pace.begin_round();
            for key in [b"put", b"new"] {
                // Others have taken all of the round.
                while Box::pin(load.pace.step(bytes)).as_mut().poll(&mut cx).is_ready() {}
                let mut put: std::pin::Pin<Box<dyn Future<Output = ()>>> = match key {
                    b"put" => Box::pin(async {
                        store.put(key, &data, traits, never).await.unwrap();
                    }),
                    _ => Box::pin(async {
                        assert!(store.put_new(key, data.clone(), traits, never).await.unwrap());
                    }),
                };
                let is_long = bytes == LONG_BYTES;
                let is_put = (0..1000).any(|_| put.as_mut().poll(&mut cx).is_ready());
                assert_eq!(is_put, !is_long, "{bytes} bytes");
                if is_long {
                    load.pace.begin_round();
                    block_on(put);
                }
                assert!(table.delete(key).unwrap());
            }
        }
    }

    /// Over a network a GET of a long value took memory that nobody counted.
    #[test]
    fn a_value_that_cannot_be_pinned_where_it_is_has_memory_for_its_copy() {
        let tables = vec![TableConfig {
            engine: "nessie-server".parse().unwrap(),
            value_max: Some(loch::ByteSize::new(4 * LONG_BYTES as u64)),
            sessions: Some(4),
            window: Some(4),
            ..TableConfig::default()
        }];
        let nodes = EmbeddedConfig { tables, ..EmbeddedConfig::default() };
        let table = Cluster::embedded(nodes).unwrap().table("default").unwrap();
        assert!(!table.pins_in_place());
        let (uses, load) = (Uses::default(), Load::default());
        let store = Store::new(&table, &uses, &load);
        let value = vec![1; 4 * LONG_BYTES];
        for key in [&b"a"[..], b"b", b"c"] {
            table.put(key, &value).unwrap();
        }
        table.put(b"short", b"v").unwrap();
        for round in 0..2 {
            let held = ["a", "b"].map(|key| block_on(store.pin(key.as_bytes())).unwrap().unwrap());
            assert!(held.iter().all(|held| ***held == value[..]));
            assert_eq!(load.work.bytes(), 2 * value.len(), "in round {round}");
        }
        // Others have all of it, and wait for a node that does not answer.
        let others = block_on(load.work.take(WORK_BYTES_MAX));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut unknown = Box::pin(store.pin(b"short"));
        let _ = unknown.as_mut().poll(&mut cx);
        let is_first = Box::pin(load.work.take(0)).as_mut().poll(&mut cx).is_ready();
        assert!(is_first, "it waits for memory");
        drop(unknown);
        assert!(block_on(store.pin(b"short")).unwrap().is_some());
        let held = block_on(store.pin(b"c")).unwrap();
        assert_eq!(load.work.bytes(), WORK_BYTES_MAX + value.len(), "once it has come");
        drop(held);
        let mut waiting = Box::pin(store.pin(b"c"));
        for _ in 0..1000 {
            assert!(waiting.as_mut().poll(&mut cx).is_pending(), "by now it is known");
        }
        drop(others);
        assert!(block_on(waiting).unwrap().is_some());
        // One that has become short gives its memory back.
        table.put(b"c", b"v").unwrap();
        let short = block_on(store.pin(b"c")).unwrap();
        assert_eq!((short.is_some(), load.work.bytes()), (true, 0));
    }
}
