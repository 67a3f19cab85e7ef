//! The out-of-order engine: executes operations, those that do not depend on each other at the same
//! time (kv-direct §3.3.3).
//!
//! An operation looks its key up, is applied to the value that it found, and writes what changed.
//! Operations on the same key that were admitted meanwhile are applied to the same value before it
//! is written (*data forwarding*): a key that everybody wants costs one lookup and one write for
//! all of them. A value that was changed in place is written back when nobody waits for it any
//! more.
//!
//! | file | what it does |
//! | --- | --- |
//! | `lanes.rs` | operations under way |
//! | `straight.rs` | the usual operation on an inline entry |
//! | `execute.rs` | looks up, forwards, writes back |
//! | `apply.rs` | what each operation does to the value at hand |
//! | `desk.rs` | the value at hand |
//!
//! # Invariants
//! 1. An operation is applied only while its lane has the key's bucket to itself (the station's
//!    invariant 1), to the value that the last one before it left.
//! 2. What was answered is not lost: a change waits for its write-back only if that cannot fail,
//!    since the value stays where it is ([`Storage::stays`]); every other change is made first and
//!    answered then.
//! 3. An operation that fails leaves the value as it was.
//!
//! # Differs from the paper
//! There the write-back is a PUT of its own, which looks the key up again. Here the lane that
//! forwards still has the bucket, so it writes at once.
mod apply;
mod desk;
mod execute;
mod lanes;
mod straight;

use std::cell::{Cell, RefCell};

pub use self::lanes::Pipeline;
use self::lanes::Tray;
use super::key::KeyHash;
use super::memory::HostMemory;
use super::operation::{Action, Reply};
use super::station::Station;
use super::storage::Storage;
use super::vector::UserFunctions;
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

/// What the processor's logic takes its time from: in a cycle it forwards an operation on a value
/// of one line, or on one line of a longer value.
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
    /// Whether the host's daemon was waited for in vain.
    is_daemon_gone: Cell<bool>,
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
            is_daemon_gone: Cell::new(false),
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

    #[inline(always)]
    fn slot(&self, group: u32, job: &J) -> usize {
        let group = match planted::is(Bug::SlotOfKey) {
            true => job.hash().bucket(u32::MAX),
            false => group,
        };
        Station::<J>::slot_of(group)
    }

    /// Whether an operation has its slot to itself, from now on.
    fn claims(&self, job: &J) -> bool {
        let slot = self.slot(self.storage.group(job.hash()), job);
        self.station.borrow_mut().claim(slot)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }
}
