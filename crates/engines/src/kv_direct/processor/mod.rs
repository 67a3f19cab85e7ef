//! The out-of-order engine: executes operations, and executes independent operations at the same
//! time (kv-direct §3.3.3).
//!
//! An operation looks its key up, is applied to the value that it found, and writes the change.
//! Operations on the same key that were admitted meanwhile are applied to the same value before it
//! is written (*data forwarding*): a popular key costs one lookup and one write for all of them. A
//! value that was changed in place is written back when no operation waits for it any more.
//!
//! If memory can be loaded, an operation on an inline entry is executed in its bucket at once, when
//! it is admitted, unless another operation of its slot is under way.
//!
//! | file | what it does |
//! | --- | --- |
//! | `lanes.rs` | operations under way |
//! | `straight.rs` | the usual operation on an inline entry, and GETs in a row |
//! | `execute.rs` | looks up, forwards, writes back |
//! | `apply.rs` | what each operation does to the value at hand |
//! | `op_context.rs` | the value at hand |
//!
//! # Invariants
//! 1. An operation is applied only while its lane has the key's bucket to itself (the station's
//!    invariant 1), to the value that the operation before it left.
//! 2. An answered change is not lost. A change is answered before its write-back only if the
//!    write-back cannot fail, because the value stays where it is ([`Storage::stays`]); every other
//!    change is written first and then answered.
//! 3. An operation that fails leaves the value as it was.
//!
//! # Differs from the paper
//! In the paper the write-back is a PUT of its own, which looks the key up again. Here the lane
//! that forwards still has the bucket, so it writes at once.
mod apply;
mod execute;
mod lanes;
mod op_context;
mod straight;

use std::cell::{Cell, RefCell};

pub use self::lanes::Pipeline;
use self::lanes::Tray;
use super::key::KeyHash;
use super::station::Station;
use super::storage::Storage;
use super::vector::UserFunctions;
use crate::error::EngineError;
use crate::limits::{KV_DIRECT_IN_FLIGHT, KV_DIRECT_WAITING};
use crate::lines::HostMemory;
use crate::operation::{Operation, Outcome};
use crate::planted::{self, Bug};

/// One operation, with the place for its result.
pub trait Job {
    /// The hash of the operation's key.
    fn hash(&self) -> KeyHash;
    /// The operation's key.
    fn key(&self) -> &[u8];
    /// The operation.
    fn operation(&self) -> Operation<'_>;
    /// Takes the result: the operation has taken effect.
    fn answer(&self, outcome: Result<Outcome<'_>, EngineError>);
}

/// The clock of the processor's logic. In one cycle it forwards an operation on a value of one
/// line, or on one line of a longer value.
#[expect(async_fn_in_trait, reason = "a processor and its clock stay on one thread")]
pub trait Clock {
    /// Waits for `count` cycles, which no other operation uses.
    async fn cycles(&self, count: usize);
}

/// No clock: the processor runs as fast as it can.
impl Clock for () {
    #[inline(always)]
    async fn cycles(&self, _: usize) {}
}

/// The settings of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Operations that execute at the same time.
    pub in_flight: usize,
    /// Operations that may wait for others.
    pub waiting: usize,
    /// Whether operations wait in the station and get forwarded values; otherwise the pipeline
    /// stalls for them (kv-direct §5.1.3).
    pub out_of_order: bool,
    /// Whether values have versions.
    pub versions: bool,
}

impl Default for Settings {
    /// The paper's settings.
    fn default() -> Self {
        let (in_flight, waiting) = (KV_DIRECT_IN_FLIGHT, KV_DIRECT_WAITING);
        Self { in_flight, waiting, out_of_order: true, versions: true }
    }
}

/// The counts of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were executed.
    pub executed: u64,
    /// The executed operations that used a value at hand.
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
    /// For each lane the place of its next operation.
    trays: Box<[Tray<J>]>,
    now_ms: Cell<u64>,
    /// The next version, and the end of the versions that may be given.
    versions: Cell<(u64, u64)>,
    counts: Cell<Counts>,
    /// Whether the processor waited for the host's daemon in vain.
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

    /// The processor's settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The processor's clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Sets the time by which values expire.
    pub fn set_now_ms(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
    }

    /// The storage and the functions.
    pub fn into_parts(self) -> (Storage<H>, U) {
        (self.storage, self.functions)
    }

    /// The number of versions that can be given before more must be
    /// [supplied](Self::supply_versions).
    pub fn versions_left(&self) -> u64 {
        let (next, end) = self.versions.get();
        end - next
    }

    /// Supplies versions that no value of the table ever had.
    pub fn supply_versions(&self, versions: std::ops::Range<u64>) {
        self.versions.set((versions.start, versions.end));
    }

    /// Prefetches the bucket of an operation that will be admitted, if its memory can be
    /// [loaded](HostMemory::loads).
    #[inline(always)]
    pub fn prefetch(&self, hash: KeyHash) {
        self.storage.prefetch(self.storage.group(hash));
    }

    #[inline(always)]
    fn slot(&self, group: u32, hash: KeyHash) -> usize {
        let group = match planted::is(Bug::SlotOfKey) {
            true => hash.bucket(u32::MAX),
            false => group,
        };
        Station::<J>::slot_of(group)
    }

    /// Whether an operation has its slot to itself from now on.
    fn claims(&self, job: &J) -> bool {
        let slot = self.slot(self.storage.group(job.hash()), job.hash());
        self.station.borrow_mut().claim(slot)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }
}
