//! A fabric that watches a client: what it does is counted, where it writes is looked at, and while
//! it works the memory may change under its hands.
//!
//! Time is virtual: a verb takes a microsecond, and a pause more than was asked for.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::region::{EPOCH_OFFSET, STAMP_OFFSET};
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{
    Buf, Caps, Counters, Fabric, FabricError, RegionId, RemoteAddr, RoundTrip, Validation,
};

/// Pauses are so many times as long as was asked for: waiting is cheap, polling is not.
const PAUSE_FACTOR: u64 = 16;

/// A word that changes while an operation is under way.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Which word.
    pub at: RemoteAddr,
    /// The bits to flip in it.
    pub flip: u64,
    /// After so many verbs.
    pub after: u64,
    /// Whether it changes again with every verb after that.
    pub again: Again,
}

/// How a word goes on changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It does not.
    No,
    /// There and back.
    Back,
    /// Always to something new.
    On,
}

/// Shared by all clients of a run: time, and the changes to come.
pub struct Run {
    /// The nodes' memory.
    pub regions: Vec<Arc<Region>>,
    /// Bytes that clients may use besides the words before the tables: the table.
    pub table: std::ops::Range<u64>,
    /// The session slots.
    pub slots: std::ops::Range<u64>,
    /// The most that one READ may ask for.
    pub read_bytes_max: usize,
    now_us: Cell<u64>,
    /// Verbs of the operation under way, and how many it may take.
    verbs: Cell<(u64, u64)>,
    change: RefCell<Option<Change>>,
    random: Cell<u64>,
}

impl Run {
    /// A run over these regions.
    pub fn new(
        regions: Vec<Arc<Region>>,
        table: std::ops::Range<u64>,
        slots: std::ops::Range<u64>,
        read_bytes_max: usize,
    ) -> Self {
        Self {
            regions,
            table,
            slots,
            read_bytes_max,
            now_us: Cell::new(1_000_000),
            verbs: Cell::default(),
            change: RefCell::default(),
            random: Cell::new(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// An operation begins that may take so many verbs.
    pub fn begin(&self, verbs_max: u64, change: Option<Change>) {
        self.verbs.set((0, verbs_max));
        *self.change.borrow_mut() = change;
    }

    /// Changes a word.
    pub fn flip(&self, at: RemoteAddr, flip: u64) {
        let region = &self.regions[at.region().0 as usize];
        region.word(at.offset()).fetch_xor(flip, std::sync::atomic::Ordering::Relaxed);
    }

    fn add(&self, at: RemoteAddr, add: u64) {
        let region = &self.regions[at.region().0 as usize];
        region.word(at.offset()).fetch_add(add, std::sync::atomic::Ordering::Relaxed);
    }

    fn step(&self) {
        if std::thread::panicking() {
            // A fault was found already: drops on the way out must not hide it.
            return;
        }
        let (verbs, max) = self.verbs.get();
        self.verbs.set((verbs + 1, max));
        assert!(verbs < max, "an operation takes more than {max} verbs");
        self.now_us.set(self.now_us.get() + 1);
        let mut change = self.change.borrow_mut();
        if let Some(due) = change.filter(|change| verbs >= change.after) {
            match due.again {
                Again::No => *change = None,
                Again::Back => (),
                Again::On if verbs == due.after => (),
                Again::On => return self.add(due.at, due.flip | 1),
            }
            self.flip(due.at, due.flip);
        }
    }

    fn reads(&self, at: RemoteAddr, len: usize) {
        self.step();
        assert!(len <= self.read_bytes_max, "a READ of {len} bytes");
        self.assert_ours(at, len);
    }

    fn writes(&self, at: RemoteAddr, len: usize) {
        self.step();
        self.assert_ours(at, len);
    }

    /// A fabric may refuse what is out of bounds, but only after it has broken the connection, as
    /// an RDMA NIC does: such a verb must not be posted.
    fn assert_ours(&self, at: RemoteAddr, len: usize) {
        let (from, to) = (at.offset(), at.offset() + len as u64);
        let within = |range: &std::ops::Range<u64>| from >= range.start && to <= range.end;
        let word = (from == EPOCH_OFFSET || from == STAMP_OFFSET) && len == 8;
        let node = (at.region().0 as usize) < self.regions.len();
        let ours = node && (word || within(&self.slots) || within(&self.table));
        assert!(ours, "{len} bytes at {at} are not the table's");
    }
}

/// A client's way to the memory of a [`Run`].
pub struct Watch {
    inner: ShmEndpoint,
    run: Rc<Run>,
    /// Whether a round trip is dear, so that entries are validated by checksums.
    dear: bool,
}

impl Watch {
    /// An endpoint of a client whose home is `home`.
    pub fn new(run: Rc<Run>, home: RegionId, dear: bool) -> Self {
        let mut inner = ShmEndpoint::new(home);
        for (n, region) in run.regions.iter().enumerate() {
            inner.attach(RegionId(n as u8), region.clone());
        }
        Self { inner, run, dear }
    }
}

impl Fabric for Watch {
    fn caps(&self) -> Caps {
        let caps = self.inner.caps();
        if self.dear {
            return Caps { validation: Validation::Checksum, round_trip: RoundTrip::Dear, ..caps };
        }
        caps
    }
    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<(), FabricError>> + 'a {
        let each = out.len() / at.len() * 8;
        at.iter().for_each(|at| self.run.reads(*at, each));
        self.inner.read_words(at, out)
    }
    fn read_bucket(
        &self,
        at: RemoteAddr,
        words: usize,
    ) -> impl Future<Output = Result<[u64; 4], FabricError>> + '_ {
        self.run.reads(at, words * 8);
        self.inner.read_bucket(at, words)
    }
    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.run.reads(at, len);
        self.inner.read(at, len, buf)
    }
    fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<u64, FabricError>)> + '_ {
        self.run.reads(word, 8);
        self.run.reads(at, len);
        self.inner.read_word_and_bytes(word, at, len, buf)
    }
    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        self.run.writes(at, 8);
        self.inner.compare_swap(at, expect, new)
    }
    fn fetch_add(
        &self,
        at: RemoteAddr,
        add: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        self.run.writes(at, 8);
        self.inner.fetch_add(at, add)
    }
    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        self.run.writes(at, bytes.len());
        self.inner.write_unsignaled(at, bytes)
    }
    fn write(
        &self,
        at: RemoteAddr,
        buf: Buf,
    ) -> impl Future<Output = (Buf, Result<(), FabricError>)> + '_ {
        self.run.writes(at, buf.len());
        self.inner.write(at, buf)
    }
    fn is_mapped(&self, region: RegionId) -> bool {
        self.inner.is_mapped(region)
    }
    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<(), FabricError> {
        self.run.writes(at, parts.iter().map(|p| p.len()).sum());
        self.inner.store(at, parts)
    }
    fn store_before(&self, at: RemoteAddr, word: u64) -> Result<(), FabricError> {
        self.run.writes(at, 8);
        self.inner.store_before(at, word)
    }
    fn store_after(&self, at: RemoteAddr, word: u64) -> Result<(), FabricError> {
        self.run.writes(at, 8);
        self.inner.store_after(at, word)
    }
    fn announce(&self, at: RemoteAddr, word: u64) -> Result<(), FabricError> {
        self.run.writes(at, 8);
        self.inner.announce(at, word)
    }
    fn load(&self, at: RemoteAddr) -> Result<u64, FabricError> {
        self.run.reads(at, 8);
        self.inner.load(at)
    }
    fn reload(&self, at: RemoteAddr) -> Result<u64, FabricError> {
        self.run.reads(at, 8);
        self.inner.reload(at)
    }
    fn will_store(&self, at: RemoteAddr, len: usize) {
        self.inner.will_store(at, len);
    }
    fn raw(&self, at: RemoteAddr, len: usize) -> Result<*mut u8, FabricError> {
        self.run.writes(at, len);
        self.inner.raw(at, len)
    }
    fn posted(&self) -> u64 {
        self.inner.posted()
    }
    fn is_settled(&self, mark: u64) -> bool {
        self.inner.is_settled(mark)
    }
    fn now_us(&self) -> u64 {
        self.run.now_us.get()
    }
    fn wall_ms(&self) -> u64 {
        self.run.now_us.get() / 1000
    }
    fn random(&self) -> u64 {
        let mut x = self.run.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.run.random.set(x);
        x
    }
    async fn pause(&self, us: u64) {
        self.run.step();
        self.run.now_us.set(self.run.now_us.get() + us * PAUSE_FACTOR);
    }
}
