//! A worker: one session at a time, and the keys that only it changes.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use loch::lanes::{block_on, run};
use loch::{
    AsyncTable, Cluster, Conditional, EngineError, Error, ErrorKind, Expect, Expiry, Pinned,
    PutOptions, Result, ScanCursor, Table, Value,
};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::model::{Content, Key, May, Piece};
use super::{SIZES, Task};

const LANES: usize = 12;
/// Keys that are changed in a round.
const BATCH: usize = 36;
/// Of the operations that change a key so many percent leave it with a value.
pub const PRESENT_PERCENT: u64 = 85;
/// Values that a worker has pinned at a time.
const PINS: usize = 6;
/// Values that an APPEND makes longer have fewer pieces than this.
const PIECES: usize = 4;
/// Keys with more possible contents than this are read before they are changed again.
const CONTENTS: usize = 8;
/// Rounds of a session of a worker that does not keep it: the least and the most.
const ROUNDS: std::ops::Range<u32> = 10..60;

/// A worker, with all that it knows of its keys.
pub struct Worker {
    task: Task,
    number: u64,
    random: RefCell<SmallRng>,
    model: RefCell<Vec<May>>,
    serial: Cell<u64>,
    pub done: Cell<u64>,
    pub dropped: Cell<u64>,
    pub refused: Cell<u64>,
    pub wrong: RefCell<Vec<String>>,
}

/// A pinned value, and the hash of its bytes when it was pinned.
type Held<'a> = (Pinned<'a>, u64);

impl Worker {
    pub fn new(task: Task, number: u64) -> Self {
        let forgets = |number| task.evicts || Key { worker: 0, number }.may_expire();
        let model = (0..task.keys).map(|number| May::absent(forgets(number))).collect();
        Self {
            number,
            random: SmallRng::seed_from_u64(task.seed ^ number).into(),
            model: RefCell::new(model),
            serial: Cell::default(),
            done: Cell::default(),
            dropped: Cell::default(),
            refused: Cell::default(),
            wrong: RefCell::default(),
            task,
        }
    }

    /// Fills the memory, and works for the time that the task says, in one session after the other
    /// or in one. At last all operations of a session are dropped. Returns the table of that
    /// session, which was not used since.
    pub fn work(&self, cluster: &Cluster) -> Table {
        let open = || cluster.table("default").expect("a node has slots for all workers");
        self.fill(&open());
        let until = Instant::now() + Duration::from_secs(self.task.seconds);
        // Every other worker keeps its session.
        let is_over = || Instant::now() >= until || !self.wrong.borrow().is_empty();
        loop {
            let table = open();
            let rounds = match self.number.is_multiple_of(2) {
                true => u32::MAX,
                false => self.random.borrow_mut().random_range(ROUNDS),
            };
            let mut held = Vec::new();
            for _ in 0..rounds {
                self.round(&table, &mut held);
                if is_over() {
                    break;
                }
            }
            drop(held);
            let polls = self.below(100) as u32;
            let work = self.changes(table.asynch());
            block_on(unless_dropped(Some(Patience::Polls(1 + polls)), run(LANES, work, |()| ())));
            if is_over() {
                return table;
            }
        }
    }

    /// Puts a value under each key but those of numbers.
    fn fill(&self, table: &Table) {
        let keys = self.keys().filter(|key| !key.is_number());
        block_on(run(LANES, keys.map(|key| self.put(table.asynch(), key)), |()| ()));
    }

    fn round<'a>(&self, table: &'a Table, held: &mut Vec<Held<'a>>) {
        let lanes = table.asynch();
        block_on(run(LANES, self.changes(lanes), |()| ()));
        block_on(run(LANES, (0..LANES).map(|_| self.read_of_others(lanes)), |()| ()));
        self.pin(lanes, held);
        if self.below(20) == 0 {
            self.scan(lanes);
        }
        if self.below(4) == 0 {
            let some = self.some_keys(BATCH);
            self.look(lanes, &some);
        }
    }

    /// Operations on some of the worker's keys, each key in one operation alone. Some operations
    /// are dropped.
    fn changes<'a>(
        &'a self,
        table: AsyncTable<'a>,
    ) -> impl Iterator<Item = impl Future<Output = ()>> {
        let mut keys = self.some_keys(BATCH);
        let mut operations: Vec<Vec<Key>> = Vec::new();
        while !keys.is_empty() {
            let count = if self.below(8) == 0 { 2 + self.below(6) as usize } else { 1 };
            operations.push(keys.split_off(keys.len().saturating_sub(count)));
        }
        operations.into_iter().map(move |keys| async move {
            let patience = self.patience();
            let work = async {
                match keys[..] {
                    [key] => self.change(table, key).await,
                    _ => self.change_many(table, &keys).await,
                }
            };
            match unless_dropped(patience, work).await {
                Some(()) => self.done.set(self.done.get() + 1),
                None => self.dropped.set(self.dropped.get() + 1),
            }
        })
    }

    async fn change(&self, table: AsyncTable<'_>, key: Key) {
        if self.may(key, |may| may.contents.len()) > CONTENTS {
            return self.get(table, key).await;
        }
        let kind = self.below(100);
        match kind {
            _ if kind >= PRESENT_PERCENT => self.delete(table, key, kind.is_multiple_of(3)).await,
            0..10 => self.get(table, key).await,
            10..20 => self.touch(table, key, kind.is_multiple_of(2)).await,
            _ if key.is_number() => self.add(table, key).await,
            20..35 => self.append(table, key).await,
            35..50 => self.put_if(table, key, kind % 3).await,
            50..55 => self.reserve(table, key).await,
            _ => self.put(table, key).await,
        }
    }

    async fn put(&self, table: AsyncTable<'_>, key: Key) {
        let value = Content::Pieces(vec![self.new_piece()]);
        let expiry = match key.may_expire() {
            true => Expiry::In(Duration::from_millis(20 + self.below(2000))),
            false => Expiry::Never,
        };
        let before = self.begin(key, &|_| Some(value.clone()));
        let done = table.put_with(&key.name(), &key.bytes(&value), PutOptions { expiry }).await;
        let done = done.map(|version| (vec![Some(value)], Some(version)));
        self.end(key, before, done);
    }

    async fn reserve(&self, table: AsyncTable<'_>, key: Key) {
        let value = Content::Pieces(vec![self.new_piece()]);
        let bytes = key.bytes(&value);
        let before = self.begin(key, &|_| Some(value.clone()));
        let reserved = table.reserve(&key.name(), bytes.len()).await;
        let done = match reserved.and_then(|mut it| it.write_at(0, &bytes).map(|()| it)) {
            // Some that are filled are not wanted any more.
            Ok(_) if self.below(4) == 0 => Ok((before.clone(), None)),
            Ok(reservation) => {
                let done = reservation.commit_async().await;
                done.map(|version| (vec![Some(value)], Some(version)))
            }
            Err(error) => Err(error),
        };
        self.end(key, before, done);
    }

    async fn append(&self, table: AsyncTable<'_>, key: Key) {
        let is_long = |content: &Option<Content>| match content {
            Some(Content::Pieces(pieces)) => pieces.len() >= PIECES,
            _ => false,
        };
        if self.may(key, |may| may.contents.iter().any(is_long)) {
            return self.put(table, key).await;
        }
        let piece = Piece { bytes: SIZES[0], ..self.new_piece() };
        let appended = |content: &Option<Content>| match content {
            Some(Content::Pieces(pieces)) => {
                Some(Content::Pieces(pieces.iter().copied().chain([piece]).collect()))
            }
            _ => Some(Content::Pieces(vec![piece])),
        };
        let before = self.begin(key, &appended);
        let done = table.append(&key.name(), &key.piece(piece)).await;
        let after = before.iter().map(appended).collect();
        self.end(key, before, done.map(|version| (after, Some(version))));
    }

    async fn add(&self, table: AsyncTable<'_>, key: Key) {
        let add = 1 + self.below(1000);
        let number = |content: &Option<Content>| match content {
            Some(Content::Number(number)) => *number,
            _ => 0,
        };
        let before = self.begin(key, &|it| Some(Content::Number(number(it).wrapping_add(add))));
        let done = table.fetch_add(&key.name(), add).await;
        let done = done.map(|found| {
            if !before.iter().any(|content| number(content) == found) {
                self.tell(key, format!("FETCH-ADD found {found}, not one of {before:?}"));
            }
            (vec![Some(Content::Number(found.wrapping_add(add)))], None)
        });
        self.end(key, before, done);
    }

    /// A PUT if the key is absent, if it has the version that it was last seen with, or if it has
    /// an older one.
    async fn put_if(&self, table: AsyncTable<'_>, key: Key, which: u64) {
        let (known, version, old) = self.may(key, |may| {
            let known =
                (may.contents.len() == 1 && !may.forgets).then(|| may.contents[0].is_some());
            (known, may.version, may.old_version)
        });
        let (expect, must) = match (which, version, old) {
            (1, Some(version), _) => (Expect::Version(version), known.filter(|it| *it)),
            (2, _, Some(old)) if version != Some(old) => (Expect::Version(old), Some(false)),
            _ => (Expect::Absent, known.map(|has_value| !has_value)),
        };
        let value = Content::Pieces(vec![self.new_piece()]);
        let before = self.begin(key, &|_| Some(value.clone()));
        let bytes = key.bytes(&value);
        let done = table.put_if(&key.name(), &bytes, expect, PutOptions::default()).await;
        let done = done.map(|done| {
            let is_done = matches!(done, Conditional::Done(_));
            if must.is_some_and(|must| must != is_done) {
                self.tell(
                    key,
                    format!("PUT-IF {expect:?} ended as {done:?}, it may be {before:?}"),
                );
            }
            match done {
                Conditional::Done(version) => (vec![Some(value)], Some(version)),
                Conditional::Refused(_) => (before.clone(), None),
            }
        });
        self.end(key, before, done);
    }

    async fn delete(&self, table: AsyncTable<'_>, key: Key, conditional: bool) {
        let version = self.may(key, |may| may.version).filter(|_| conditional);
        let (before, forgets) = (self.begin(key, &|_| None), self.may(key, |may| may.forgets));
        let done = match version {
            Some(version) => table.delete_if_version(&key.name(), version).await,
            None => table.delete(&key.name()).await,
        };
        let done = done.map(|had| {
            let may_have = before.iter().any(Option::is_some);
            let must_have = !before.contains(&None) && !forgets;
            if had && !may_have || !had && must_have {
                self.tell(key, format!("DELETE of {version:?} said {had}, it may be {before:?}"));
            }
            (vec![None], None)
        });
        self.end(key, before, done);
    }

    async fn touch(&self, table: AsyncTable<'_>, key: Key, gets: bool) {
        let expiry = Expiry::In(Duration::from_secs(1 << 20));
        let before = self.begin(key, &Option::clone);
        if !gets {
            let done = table.touch(&key.name(), expiry).await;
            let is_known = before.len() == 1;
            let done = done.map(|version| (before.clone(), version.filter(|_| is_known)));
            return self.end(key, before, done);
        }
        match table.get_and_touch(&key.name(), expiry).await {
            Ok(found) => self.found(key, found.as_ref()),
            Err(error) => self.end(key, before, Err(error)),
        }
    }

    async fn get(&self, table: AsyncTable<'_>, key: Key) {
        match table.get(&key.name()).await {
            Ok(found) => self.found(key, found.as_ref()),
            Err(error) => self.tell(key, format!("GET: {error}")),
        }
    }

    /// A batch of PUTs in which keys may occur twice, or of DELETEs.
    async fn change_many(&self, table: AsyncTable<'_>, keys: &[Key]) {
        if self.below(100) >= PRESENT_PERCENT {
            let before: Vec<_> = keys.iter().map(|key| self.begin(*key, &|_| None)).collect();
            let names: Vec<_> = keys.iter().map(|key| key.name()).collect();
            match table.delete_many(&names).await {
                Ok(_) => {
                    let absent = || Ok((vec![None], None));
                    keys.iter().zip(before).for_each(|(key, it)| self.end(*key, it, absent()));
                }
                Err(error) => self.check_refusal(keys[0], &error),
            }
            return;
        }
        let keys: Vec<Key> = keys.iter().copied().filter(|key| !key.is_number()).collect();
        let twice = keys.iter().copied().filter(|_| self.below(4) == 0).collect::<Vec<_>>();
        let put = |key: &Key| (*key, Content::Pieces(vec![self.new_piece()]));
        let puts: Vec<_> = keys.iter().chain(&twice).map(put).collect();
        let before: Vec<_> =
            puts.iter().map(|(key, value)| self.begin(*key, &|_| Some(value.clone()))).collect();
        let pairs: Vec<_> =
            puts.iter().map(|(key, value)| (key.name(), key.bytes(value))).collect();
        match table.put_many(&pairs).await {
            Ok(_) => {
                for (key, before) in keys.iter().zip(before) {
                    let of_key = puts.iter().filter(|(of, _)| of == key);
                    let values = of_key.map(|(_, value)| Some(value.clone())).collect();
                    self.end(*key, before, Ok((values, None)));
                }
            }
            // Some may have been done.
            Err(error) => self.check_refusal(keys[0], &error),
        }
    }

    /// Reads any workers' keys: their values have to be whole.
    async fn read_of_others(&self, table: AsyncTable<'_>) {
        let any =
            |_| Key { worker: self.below(self.task.workers), number: self.below(self.task.keys) };
        let keys: Vec<Key> = (0..1 + self.below(16)).map(any).collect();
        let names: Vec<_> = keys.iter().map(|key| key.name()).collect();
        let Some(found) = unless_dropped(self.patience(), table.get_many(&names)).await else {
            return self.dropped.set(self.dropped.get() + 1);
        };
        match found {
            Ok(found) => {
                for (key, value) in keys.iter().zip(found) {
                    self.content(*key, value.as_deref());
                }
            }
            Err(error) => self.tell(keys[0], format!("a batch of GETs: {error}")),
        }
    }

    /// Pins a value, and looks at others that are pinned.
    fn pin<'a>(&self, table: AsyncTable<'a>, held: &mut Vec<Held<'a>>) {
        let key = Key { worker: self.below(self.task.workers), number: self.below(self.task.keys) };
        let name = key.name();
        match block_on(unless_dropped(self.patience(), table.pin(&name))) {
            None => self.dropped.set(self.dropped.get() + 1),
            Some(Ok(None)) => (),
            Some(Ok(Some(pinned))) => {
                self.content(key, Some(&pinned));
                held.push((pinned, 0));
                let (pinned, hash) = held.last_mut().expect("it was pushed");
                *hash = hash_of(pinned);
            }
            Some(Err(error)) => self.tell(key, format!("a pin: {error}")),
        }
        for (pinned, hash) in held.iter() {
            if hash_of(pinned) != *hash {
                self.tell(key, "a pinned value has changed".into());
            }
        }
        while held.len() > PINS || !held.is_empty() && self.below(3) == 0 {
            let _ends = held.swap_remove(self.below(held.len() as u64) as usize);
        }
    }

    /// Scans the worker's own keys, which nobody changes meanwhile.
    fn scan(&self, table: AsyncTable<'_>) {
        let (prefix, mut seen) = (format!("{}/", self.number), Vec::new());
        let pages = async {
            let mut next = Some(ScanCursor::default());
            while let Some(from) = next {
                let page = table.scan_page(&from, prefix.as_bytes()).await?;
                seen.extend(page.keys.into_iter().map(|key| key.key));
                next = page.next;
            }
            Ok(())
        };
        let some = Key { worker: self.number, number: 0 };
        match block_on(unless_dropped(self.patience(), pages)) {
            None => return self.dropped.set(self.dropped.get() + 1),
            Some(Err::<_, Error>(error)) => return self.tell(some, format!("a scan: {error}")),
            Some(Ok(())) => (),
        }
        seen.sort_unstable();
        for key in self.keys() {
            let (may, must) = self.may(key, |may| {
                let may_have = may.contents.iter().any(Option::is_some);
                (may_have, !may.contents.contains(&None) && !may.forgets)
            });
            let is_seen = seen.binary_search(&key.name()).is_ok();
            if is_seen && !may || !is_seen && must {
                self.tell(key, format!("a scan has it: {is_seen}"));
            }
        }
    }

    /// Reads keys of the worker, which have nothing else from then on than what was found.
    fn look(&self, table: AsyncTable<'_>, keys: &[Key]) {
        let work = keys.iter().map(|key| self.get(table, *key));
        block_on(run(LANES, work, |()| ()));
    }

    /// Reads all keys. Returns how many have a value.
    pub fn look_at_all(&self, table: &Table) -> u64 {
        self.look(table.asynch(), &self.keys().collect::<Vec<_>>());
        let has_value = |may: &&May| may.contents[0].is_some();
        self.model.borrow().iter().filter(has_value).count() as u64
    }

    /// Puts values of one size under all keys but those of numbers, without dropping anything.
    pub fn use_memory(&self, table: &Table, size: usize) {
        let lanes = table.asynch();
        let work = self.keys().filter(|key| !key.is_number()).map(|key| async move {
            let value = Content::Pieces(vec![Piece { bytes: size, ..self.new_piece() }]);
            let before = self.begin(key, &|_| Some(value.clone()));
            let done = lanes.put(&key.name(), &key.bytes(&value)).await;
            self.end(key, before, done.map(|version| (vec![Some(value)], Some(version))));
        });
        block_on(run(LANES, work, |()| ()));
    }

    fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        let worker = self.number;
        (0..self.task.keys).map(move |number| Key { worker, number })
    }

    fn some_keys(&self, count: usize) -> Vec<Key> {
        let mut keys: Vec<Key> = self.keys().collect();
        let (some, _) = keys.partial_shuffle(&mut *self.random.borrow_mut(), count);
        some.to_vec()
    }

    fn below(&self, limit: u64) -> u64 {
        self.random.borrow_mut().random_range(0..limit)
    }

    fn new_piece(&self) -> Piece {
        self.serial.set(self.serial.get() + 1);
        let bytes = SIZES[self.below(SIZES.len() as u64) as usize];
        Piece { serial: self.serial.get(), bytes }
    }

    /// Whether and when an operation is dropped.
    fn patience(&self) -> Option<Patience> {
        match self.below(6) {
            0 | 1 => Some(Patience::Polls(1 + (1 << self.below(9)) - self.below(2) as u32)),
            2 => Some(Patience::Until(Instant::now() + Duration::from_micros(self.below(3000)))),
            _ => None,
        }
    }

    fn may<T>(&self, key: Key, look: impl Fn(&May) -> T) -> T {
        look(&self.model.borrow()[key.number as usize])
    }

    fn begin(
        &self,
        key: Key,
        effect: &dyn Fn(&Option<Content>) -> Option<Content>,
    ) -> Vec<Option<Content>> {
        self.model.borrow_mut()[key.number as usize].begins(effect)
    }

    fn end(
        &self,
        key: Key,
        before: Vec<Option<Content>>,
        done: Result<(Vec<Option<Content>>, Option<loch::Version>)>,
    ) {
        let may = &mut self.model.borrow_mut()[key.number as usize];
        match done {
            Ok((after, version)) => may.ended(after, version),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => (),
            Err(error) => {
                may.ended(before, None);
                self.check_refusal(key, &error);
            }
        }
    }

    fn check_refusal(&self, key: Key, error: &Error) {
        match error.engine().map(EngineError::kind) {
            Some(ErrorKind::OutcomeUnknown) => (),
            Some(ErrorKind::NoRoom | ErrorKind::TryAgain) => {
                self.refused.set(self.refused.get() + 1);
            }
            _ => self.tell(key, error.to_string()),
        }
    }

    fn found(&self, key: Key, found: Option<&Value>) {
        let version = found.map(Value::version);
        let content = self.content(key, found.map(|value| &value[..]));
        let may = &mut self.model.borrow_mut()[key.number as usize];
        let expected = may.contents.clone();
        if !may.is_found(content.clone(), version) {
            self.tell(key, format!("it has {content:?}, may have {expected:?}"));
        }
    }

    fn content(&self, key: Key, bytes: Option<&[u8]>) -> Option<Content> {
        let bytes = bytes?;
        let content = key.content(bytes);
        if content.is_none() {
            self.tell(key, format!("a torn value of {} bytes", bytes.len()));
        }
        content
    }

    fn tell(&self, key: Key, wrong: String) {
        self.wrong.borrow_mut().push(format!("{}/{}: {wrong}", key.worker, key.number));
    }
}

/// How long an operation is waited for.
enum Patience {
    Polls(u32),
    Until(Instant),
}

/// The result of a future, unless it is dropped before.
async fn unless_dropped<T>(patience: Option<Patience>, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut polls) = (pin!(work), 0);
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        polls += 1;
        let is_over = match patience {
            None => false,
            Some(Patience::Polls(most)) => polls >= most,
            Some(Patience::Until(until)) => Instant::now() >= until,
        };
        if is_over { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
