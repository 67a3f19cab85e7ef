//! The out-of-order engine: executes operations, those that do not depend on each other at the same
//! time (kv-direct §3.3.3).
//!
//! An operation looks its key up, is applied to the value that it found, and writes what changed.
//! Operations on the same key that were admitted meanwhile are applied to the same value before it is
//! written (*data forwarding*): a key that everybody wants costs one lookup and one write for all of
//! them. A value that was changed in place is written back when nobody waits for it any more.
//!
//! # Invariants
//! 1. An operation is applied only while its lane has the key's bucket to itself (the station's
//!    invariant 1), to the value that the last one before it left.
//! 2. What was answered is not lost: a change waits for its write-back only if that cannot fail, since
//!    the value stays where it is ([`Storage::stays`]); every other change is made first and answered
//!    then.
//! 3. An operation that fails leaves the value as it was.
//!
//! # Differs from the paper
//! There the write-back is a PUT of its own, which looks the key up again. Here the lane that forwards
//! still has the bucket, so it writes at once.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::item::Item;
use super::key::KeyHash;
use super::memory::{HostMemory, LINE_BYTES};
use super::operation::{Action, Failure, Function, Lambda, Reply};
use super::station::Station;
use super::storage::{Glance, Head, Lookup, Storage};
use super::vector::{self, UserFunctions};
use crate::operation::{Expect, PutOptions};
use crate::planted::{self, Bug};

/// One operation, and where its result goes.
pub trait Job {
    /// The hash of its key.
    fn hash(&self) -> KeyHash;
    /// Its key.
    fn key(&self) -> &[u8];
    /// What is to be done.
    fn action(&self) -> Action<'_>;
    /// Takes the result: the operation has taken effect.
    fn answer(&self, reply: Reply<'_>);
}

/// What the processor's logic takes its time from: in a cycle it forwards an operation on a value of
/// one line, or on one line of a longer value.
#[expect(async_fn_in_trait, reason = "a processor and its clock stay on one thread")]
pub trait Clock {
    /// Waits for so many cycles, which are nobody else's.
    async fn cycles(&self, count: usize);
}

/// No clock: as fast as it goes.
impl Clock for () {
    #[inline(always)]
    async fn cycles(&self, _: usize) {}
}

/// How a processor works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Operations that execute at the same time.
    pub in_flight: usize,
    /// Operations that may wait for others.
    pub waiting: usize,
    /// Whether operations wait in the station and are forwarded to; else the pipeline stalls for
    /// them (kv-direct §5.1.3).
    pub out_of_order: bool,
    /// Whether values have versions.
    pub versions: bool,
}

impl Default for Settings {
    /// As in the paper.
    fn default() -> Self {
        Self { in_flight: 256, waiting: 768, out_of_order: true, versions: true }
    }
}

/// What a processor counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were executed.
    pub executed: u64,
    /// Those of them that were executed on a value at hand.
    pub forwarded: u64,
    /// Values that were written back after they were changed at hand.
    pub written_back: u64,
}

/// Operations that one lane applies to a value at hand while those on other keys wait for the same slot.
const OVERTAKING_MAX: usize = 1024;
/// Longer values are not kept at hand after they were stored.
const FORWARD_BYTES_MAX: usize = 512;

/// One partition and the operations on it.
pub struct Processor<J, H, U, C = ()> {
    storage: Storage<H>,
    functions: U,
    clock: C,
    settings: Settings,
    station: RefCell<Station<J>>,
    /// Where each lane finds what it is to execute.
    trays: Box<[Tray<J>]>,
    now_ms: Cell<u64>,
    /// The next version, and the end of those that may be given.
    versions: Cell<(u64, u64)>,
    counts: Cell<Counts>,
}

/// What a lane is to execute, and its slot.
struct Tray<J> {
    next: Cell<Option<(usize, J)>>,
    is_busy: Cell<bool>,
}

/// What became of an operation on the straight path.
enum Straight {
    /// It is answered.
    Done,
    /// It is answered, and changed the bucket.
    Changed,
    /// It is not for that path.
    No,
}

/// What a lane works with.
#[derive(Debug, Default)]
struct Desk {
    item: Item,
    own: Vec<u8>,
    before: Vec<u8>,
    at_hand: AtHand,
    is_dirty: bool,
    version: u64,
    expires_at_ms: Option<u64>,
}

/// Where a key's value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AtHand {
    /// There is none.
    #[default]
    Absent,
    /// As it was read, but for changes that keep its length.
    Item,
    /// In a copy.
    Own,
    /// In memory only.
    Elsewhere,
}

impl<J> Default for Tray<J> {
    fn default() -> Self {
        Self { next: Cell::new(None), is_busy: Cell::new(false) }
    }
}

impl Desk {
    fn value(&self) -> &[u8] {
        match self.at_hand {
            AtHand::Absent | AtHand::Elsewhere => &[],
            AtHand::Item => self.item.value(),
            AtHand::Own => &self.own,
        }
    }

    fn value_mut(&mut self) -> &mut [u8] {
        match self.at_hand {
            AtHand::Absent | AtHand::Elsewhere => &mut [],
            AtHand::Item => self.item.value_mut(),
            AtHand::Own => &mut self.own,
        }
    }

    fn is_there(&self) -> bool {
        self.at_hand != AtHand::Absent
    }

    fn found(&self) -> Reply<'_> {
        let (version, expires_at_ms) = (self.version, self.expires_at_ms);
        Reply::Found { version, expires_at_ms, value: self.value() }
    }
}

impl<J: Job, H: HostMemory, U: UserFunctions, C: Clock> Processor<J, H, U, C> {
    /// A processor of `storage`.
    pub fn new(storage: Storage<H>, functions: U, clock: C, settings: Settings) -> Self {
        let waiting = if settings.out_of_order { settings.waiting } else { 0 };
        Self {
            storage,
            functions,
            clock,
            settings,
            station: RefCell::new(Station::new(waiting)),
            trays: (0..settings.in_flight).map(|_| Tray::default()).collect(),
            now_ms: Cell::new(0),
            versions: Cell::new((0, 0)),
            counts: Cell::default(),
        }
    }

    /// The partition.
    pub fn storage(&self) -> &Storage<H> {
        &self.storage
    }

    /// How it works.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Its clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Sets the time by which values expire.
    pub fn set_now_ms(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
    }

    /// What it worked with.
    pub fn into_parts(self) -> (Storage<H>, U) {
        (self.storage, self.functions)
    }

    /// How many versions can be given before more must be [supplied](Self::supply_versions).
    pub fn versions_left(&self) -> u64 {
        let (next, end) = self.versions.get();
        end - next
    }

    /// Gives it versions that no value of the table ever had.
    pub fn supply_versions(&self, versions: std::ops::Range<u64>) {
        self.versions.set((versions.start, versions.end));
    }

    /// The lanes in which operations execute, for as long as the processor lives: what is under way
    /// when they are dropped is given up in the middle.
    pub fn pipeline(&self) -> impl Pipeline<J> + '_ {
        Lanes {
            processor: self,
            lanes: self.trays.iter().map(|tray| Box::pin(self.run(tray))).collect(),
            idle: (0..self.trays.len()).collect(),
            busy: Vec::with_capacity(self.trays.len()),
        }
    }

    fn slot(&self, job: &J) -> usize {
        let group = match planted::is(Bug::SlotOfKey) {
            true => job.hash().bucket(u32::MAX),
            false => self.storage.group(job.hash()),
        };
        Station::<J>::slot_of(group)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }

    /// One lane: executes what is in its tray, and then what waits for the same slot, again and again.
    /// It never ends, so that it is never moved: it is large.
    async fn run(&self, tray: &Tray<J>) {
        let mut desk = Desk::default();
        loop {
            let (slot, first) = poll_fn(|_| match tray.next.take() {
                Some(next) => Poll::Ready(next),
                None => Poll::Pending,
            })
            .await;
            let mut job = Some(first);
            while let Some(it) = job {
                let mut head = self.storage.head(it.hash()).await;
                match self.execute_straight(slot, &mut head, &it) {
                    Straight::Done => (),
                    Straight::Changed => self.storage.write_head(&head).await,
                    Straight::No => self.execute(slot, it, head, &mut desk).await,
                }
                job = self.station.borrow_mut().next(slot);
            }
            tray.is_busy.set(false);
        }
    }

    /// Executes what concerns nothing but an inline entry of the head bucket, that stays where it is,
    /// and for which nobody waits. It is done where the entry stands.
    #[inline(always)]
    fn execute_straight(&self, slot: usize, head: &mut Head, job: &J) -> Straight {
        let key = job.key();
        if self.station.borrow().is_awaited_by(slot, |other| other.key() == key) {
            return Straight::No;
        }
        let mut entry = match self.storage.glance(head, job.hash(), key) {
            Glance::Entry(entry) => entry,
            Glance::Unclear => return Straight::No,
            Glance::Absent => {
                let reply = match job.action() {
                    Action::Get => Reply::Absent,
                    Action::Contains => Reply::Contained(false),
                    Action::Delete => Reply::Deleted(false),
                    _ => return Straight::No,
                };
                self.count(|counts| counts.executed += 1);
                job.answer(reply);
                return Straight::Done;
            }
        };
        let expires_at_ms = entry.expires_at_ms();
        if expires_at_ms.is_some_and(|at| at <= self.now_ms.get()) {
            return Straight::No;
        }
        let (reply, straight) = match job.action() {
            Action::Get => {
                let (version, value) = (entry.version(), entry.value());
                (Reply::Found { version, expires_at_ms, value }, Straight::Done)
            }
            Action::Contains => (Reply::Contained(true), Straight::Done),
            Action::Put { value, options }
                if value.len() == entry.value().len()
                    && options.expires_at_ms.is_some() == expires_at_ms.is_some() =>
            {
                let version = self.version();
                entry.value_mut().copy_from_slice(value);
                entry.stamp(version, options.expires_at_ms);
                (Reply::Stored(version), Straight::Changed)
            }
            Action::Update(lambda)
                if entry.value().len() == lambda.element.bytes() && expires_at_ms.is_none() =>
            {
                let before = word(entry.value());
                match vector::scalar(&lambda, before, &self.functions) {
                    Ok(after) => {
                        let value = entry.value_mut();
                        value.copy_from_slice(&after.to_le_bytes()[..value.len()]);
                        entry.stamp(self.version(), None);
                        (Reply::Scalar(before), Straight::Changed)
                    }
                    Err(failure) => (Reply::Failed(failure), Straight::Done),
                }
            }
            _ => return Straight::No,
        };
        self.count(|counts| counts.executed += 1);
        job.answer(reply);
        straight
    }

    async fn execute(&self, slot: usize, job: J, head: Head, desk: &mut Desk) {
        let looked_up = self.storage.lookup_from(head, job.hash(), job.key(), &mut desk.item);
        let mut lookup = match looked_up.await {
            Ok(lookup) => lookup,
            Err(failure) => return job.answer(Reply::Failed(failure)),
        };
        desk.is_dirty = false;
        if lookup.found() {
            desk.at_hand = AtHand::Item;
            (desk.version, desk.expires_at_ms) = (desk.item.version, desk.item.expires_at_ms);
        } else {
            desk.at_hand = AtHand::Absent;
        }
        self.apply(&mut lookup, &job, desk).await;
        self.count(|counts| counts.executed += 1);
        let mut forwarded = 0;
        while desk.at_hand != AtHand::Elsewhere
            && let Some(next) = self.next_of_key(slot, job.key(), forwarded < OVERTAKING_MAX)
        {
            self.clock.cycles(desk.value().len().div_ceil(LINE_BYTES).max(1)).await;
            self.apply(&mut lookup, &next, desk).await;
            forwarded += 1;
        }
        if forwarded > 0 {
            self.count(|counts| {
                counts.executed += forwarded as u64;
                counts.forwarded += forwarded as u64;
            });
        }
        if desk.is_dirty && !planted::is(Bug::NoWriteBack) {
            self.write_back(&mut lookup, job.key(), desk).await;
        }
    }

    #[inline]
    fn next_of_key(&self, slot: usize, key: &[u8], may_overtake: bool) -> Option<J> {
        let mut station = self.station.borrow_mut();
        if !station.is_awaited(slot) {
            return None;
        }
        let any = planted::is(Bug::ForwardsToAnyKey);
        station.next_of_key(slot, may_overtake, |job| job.key() == key || any)
    }

    /// Writes the value at hand to where it stays.
    async fn write_back(&self, lookup: &mut Lookup, key: &[u8], desk: &mut Desk) {
        let (version, expires_at_ms) = (desk.version, desk.expires_at_ms);
        let written = match desk.at_hand {
            AtHand::Item => {
                self.storage.rewrite(lookup, &mut desk.item, version, expires_at_ms).await
            }
            _ => self.storage.store(lookup, key, &desk.own, version, expires_at_ms).await,
        };
        // Invariant 2: the change was answered, so there is no going on without it.
        written.expect("a value that stays where it is can be written there");
        desk.is_dirty = false;
        self.count(|counts| counts.written_back += 1);
    }

    /// Applies an operation to the value at hand and answers it.
    async fn apply(&self, lookup: &mut Lookup, job: &J, desk: &mut Desk) {
        let expires_at_ms = desk.expires_at_ms.filter(|_| !planted::is(Bug::ExpiredSeen));
        if desk.is_there() && expires_at_ms.is_some_and(|at| at <= self.now_ms.get()) {
            let reads_beside = !self.settings.out_of_order && job.action().is_read();
            if reads_beside && !planted::is(Bug::ReadsRemoveExpired) {
                // Others may be reading the bucket: whoever changes the key removes it.
                desk.at_hand = AtHand::Absent;
            } else if let Err(failure) = self.remove(lookup, desk).await {
                return job.answer(Reply::Failed(failure));
            }
        }
        let applied = match job.action() {
            Action::Get => Ok(if desk.is_there() { desk.found() } else { Reply::Absent }),
            Action::Contains => Ok(Reply::Contained(desk.is_there())),
            Action::Put { value, options } => {
                self.put(lookup, job.key(), desk, value, options).await
            }
            Action::PutIf { value, expect, options } => {
                self.put_if(lookup, job.key(), desk, value, expect, options).await
            }
            Action::Delete if desk.is_there() => {
                self.remove(lookup, desk).await.map(|()| Reply::Deleted(true))
            }
            Action::Delete => Ok(Reply::Deleted(false)),
            Action::Update(lambda) => self.update(lookup, job.key(), desk, &lambda).await,
            _ if !desk.is_there() => Ok(Reply::Absent),
            Action::UpdateAll { lambda, returns } => {
                let functions = &self.functions;
                self.update_vector(desk, &lambda, returns, |value| {
                    vector::update_all(&lambda, value, functions)
                })
            }
            Action::UpdateEach { lambda, operands, returns } => {
                let functions = &self.functions;
                self.update_vector(desk, &lambda, returns, |value| {
                    vector::update_each(&lambda, operands, value, functions)
                })
            }
            Action::Reduce(lambda) => {
                vector::reduce(&lambda, desk.value(), &self.functions).map(Reply::Scalar)
            }
            Action::Filter(lambda) => {
                let mut kept = std::mem::take(&mut desk.before);
                kept.clear();
                let filtered = vector::filter(&lambda, desk.value(), &mut kept, &self.functions);
                desk.before = kept;
                filtered.map(|()| Reply::Vector(&desk.before))
            }
        };
        job.answer(applied.unwrap_or_else(Reply::Failed));
    }

    async fn remove(&self, lookup: &mut Lookup, desk: &mut Desk) -> Result<(), Failure> {
        self.storage.remove(lookup).await?;
        desk.at_hand = AtHand::Absent;
        desk.is_dirty = false;
        Ok(())
    }

    /// The next version, where values have some.
    fn version(&self) -> u64 {
        if !self.settings.versions {
            return 0;
        }
        let (next, end) = self.versions.get();
        assert!(next < end, "versions are supplied in time");
        self.versions.set((next + 1, end));
        next
    }

    async fn put<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        desk: &'d mut Desk,
        value: &[u8],
        options: PutOptions,
    ) -> Result<Reply<'d>, Failure> {
        let (version, expires_at_ms) = (self.version(), options.expires_at_ms);
        let is_short = value.len() <= FORWARD_BYTES_MAX;
        let expires = expires_at_ms.is_some();
        if desk.is_there() && is_short && self.storage.stays(lookup, key, value.len(), expires) {
            let keeps_shape = desk.at_hand == AtHand::Item
                && desk.item.value().len() == value.len()
                && desk.item.expires_at_ms.is_some() == expires;
            if keeps_shape {
                desk.item.value_mut().copy_from_slice(value);
            } else {
                keep(desk, value);
            }
            (desk.version, desk.expires_at_ms, desk.is_dirty) = (version, expires_at_ms, true);
            return Ok(Reply::Stored(version));
        }
        self.storage.store(lookup, key, value, version, expires_at_ms).await?;
        (desk.version, desk.expires_at_ms, desk.is_dirty) = (version, expires_at_ms, false);
        if is_short {
            keep(desk, value);
        } else if !planted::is(Bug::StaleAtHand) {
            desk.at_hand = AtHand::Elsewhere;
        }
        Ok(Reply::Stored(version))
    }

    async fn put_if<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        desk: &'d mut Desk,
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Reply<'d>, Failure> {
        let there = desk.is_there().then_some(desk.version);
        let as_expected = match expect {
            Expect::Absent => there.is_none(),
            Expect::Version(_) if !self.settings.versions => return Err(Failure::Unsupported),
            Expect::Version(version) => there == Some(version),
        };
        if !as_expected {
            return Ok(Reply::Refused(there));
        }
        self.put(lookup, key, desk, value, options).await
    }

    /// `update_scalar2scalar`.
    async fn update<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        desk: &'d mut Desk,
        lambda: &Lambda,
    ) -> Result<Reply<'d>, Failure> {
        let bytes = lambda.element.bytes();
        let before = match desk.value() {
            _ if !desk.is_there() => 0,
            value if value.len() == bytes => word(value),
            value => {
                return Err(Failure::NotAVector { len: value.len() as u64, wanted: bytes as u64 });
            }
        };
        let after = vector::scalar(lambda, before, &self.functions)?.to_le_bytes();
        let options = PutOptions::default();
        self.put(lookup, key, desk, &after[..bytes], options).await?;
        Ok(Reply::Scalar(before))
    }

    /// An update of a vector at hand, which keeps its length and so its place.
    fn update_vector<'d>(
        &self,
        desk: &'d mut Desk,
        lambda: &Lambda,
        returns: bool,
        update: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<Reply<'d>, Failure> {
        let elements = (desk.value().len() / lambda.element.bytes()) as u64;
        let may_fail_midway = matches!(lambda.function, Function::User(_));
        if returns || may_fail_midway {
            let mut before = std::mem::take(&mut desk.before);
            before.clear();
            before.extend_from_slice(desk.value());
            desk.before = before;
        }
        if let Err(failure) = update(desk.value_mut()) {
            if may_fail_midway && !planted::is(Bug::HalfUpdateStays) {
                let before = std::mem::take(&mut desk.before);
                desk.value_mut().copy_from_slice(&before);
                desk.before = before;
            }
            return Err(failure);
        }
        if !planted::is(Bug::UpdateKeepsVersion) {
            desk.version = self.version();
        }
        desk.is_dirty = true;
        Ok(if returns { Reply::Vector(&desk.before) } else { Reply::Updated(elements) })
    }
}

/// Keeps a copy of a value at hand.
#[inline]
fn keep(desk: &mut Desk, value: &[u8]) {
    desk.own.clear();
    desk.own.extend_from_slice(value);
    desk.at_hand = AtHand::Own;
}

/// The bytes of one element, as the low ones of a word.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Operations under way.
pub trait Pipeline<J> {
    /// Whether one more operation can be admitted.
    fn has_room(&self) -> bool;

    /// Admits an operation. Gives it back if the pipeline has to stall for it: then nothing else may
    /// be admitted before it.
    ///
    /// # Errors
    /// The operation.
    ///
    /// # Panics
    /// If there is no room.
    fn admit(&mut self, job: J) -> Result<(), J>;

    /// Goes on with all that are under way; whether there are any.
    fn turn(&mut self) -> bool;
}

/// A fixed number of lanes, each of which executes one operation after another.
struct Lanes<'a, J, H, U, C, L> {
    processor: &'a Processor<J, H, U, C>,
    lanes: Vec<Pin<Box<L>>>,
    idle: Vec<usize>,
    /// In the order in which they started.
    busy: Vec<usize>,
}

impl<J, H, U, C, L> Pipeline<J> for Lanes<'_, J, H, U, C, L>
where
    J: Job,
    H: HostMemory,
    U: UserFunctions,
    C: Clock,
    L: Future<Output = ()>,
{
    #[inline]
    fn has_room(&self) -> bool {
        let can_wait = || self.processor.station.borrow().has_room();
        !self.idle.is_empty() && (!self.processor.settings.out_of_order || can_wait())
    }

    #[inline]
    fn admit(&mut self, job: J) -> Result<(), J> {
        let slot = self.processor.slot(&job);
        let mut station = self.processor.station.borrow_mut();
        let starts = if self.processor.settings.out_of_order {
            station.admit(slot, job)
        } else if station.admit_or_stall(slot, !job.action().is_read()) {
            Some(job)
        } else {
            return Err(job);
        };
        drop(station);
        let Some(job) = starts else { return Ok(()) };
        let number = self.idle.pop().expect("whoever admits looks for room first");
        let tray = &self.processor.trays[number];
        tray.next.set(Some((slot, job)));
        tray.is_busy.set(true);
        // Its first access is posted at once, before those of the next operation.
        match go_on(&mut self.lanes[number], tray) {
            true => self.busy.push(number),
            false => self.idle.push(number),
        }
        Ok(())
    }

    fn turn(&mut self) -> bool {
        let Self { processor, lanes, idle, busy } = self;
        busy.retain(|&number| {
            let is_busy = go_on(&mut lanes[number], &processor.trays[number]);
            if !is_busy {
                idle.push(number);
            }
            is_busy
        });
        !busy.is_empty()
    }
}

/// Polls a lane; whether it still has something to do.
#[inline(always)]
fn go_on<J, L: Future<Output = ()>>(lane: &mut Pin<Box<L>>, tray: &Tray<J>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let polled = lane.as_mut().poll(&mut cx);
    debug_assert!(polled.is_pending(), "a lane does not end");
    tray.is_busy.get()
}
