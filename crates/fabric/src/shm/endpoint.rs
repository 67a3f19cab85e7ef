//! The shm endpoint: verbs as prefetch, copy and CPU atomics.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::bounds::is_inside;
use crate::counters::Verb;
use crate::fabric::words_of_each;
use crate::limits::{
    BUCKET_WORDS_MAX, CACHE_LINE_BYTES, DOORBELL_READS_MAX, LANES_PAUSE_US_MAX, PREFETCH_LINES_MAX,
    REGIONS_MAX, ROUND_TRIP_BYTES, TRANSFER_BYTES_MAX,
};
use crate::sync::AtomicU64;
use crate::{
    Atomics, Buf, Caps, Chase, Counters, Fabric, FabricError, RegionId, RemoteAddr, Result,
    RoundTrip, UnreliableWrites, Validation,
};

use super::chase::{Chases, Post, load_word};
use super::{Region, bell, copy, parking, words};

/// One thread's endpoint to the regions of this host.
///
/// ```
/// use std::sync::Arc;
/// use loch_fabric::shm::{Region, ShmEndpoint};
/// use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr, lanes::block_on};
///
/// let dir = tempfile::tempdir()?;
/// let region = Arc::new(Region::create(&dir.path().join("region"), 1 << 16)?);
/// let mut fabric = ShmEndpoint::new(RegionId(0));
/// fabric.attach(RegionId(0), region);
///
/// let at = RemoteAddr::new(RegionId(0), 128);
/// fabric.store(at, &[b"one ", b"sided"])?;
/// let (buf, done) = block_on(fabric.read(at, 9, Buf::new()));
/// done?;
/// assert_eq!(&buf[..], b"one sided");
/// assert_eq!(fabric.counters().snapshot().reads, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShmEndpoint {
    home: RegionId,
    /// By region: every region's number is in bounds.
    slots: Box<[Slot; REGIONS_MAX]>,
    counters: Counters,
    clock: quanta::Clock,
    random: RefCell<SmallRng>,
}

/// A region as the hot path needs it. Invariant: `base .. base + len` is what `region` maps;
/// without a region the lengths are zero.
struct Slot {
    base: *mut u8,
    len: u64,
    /// The length of what may be written: all or nothing.
    writable_len: u64,
    region: Option<Arc<Region>>,
}

impl Slot {
    const EMPTY: Self = Self { base: std::ptr::null_mut(), len: 0, writable_len: 0, region: None };
}

// SAFETY: `base` points into the mapping that `region` holds; a mapping belongs to the process, not
// to a thread, and `Region` is `Send` and `Sync` itself.
unsafe impl Send for Slot {}

impl ShmEndpoint {
    /// An endpoint without regions; verbs to `home` count as local.
    pub fn new(home: RegionId) -> Self {
        Self {
            home,
            slots: Box::new([Slot::EMPTY; REGIONS_MAX]),
            counters: Counters::default(),
            clock: quanta::Clock::new(),
            random: RefCell::new(SmallRng::from_rng(&mut rand::rng())),
        }
    }

    /// Makes a region reachable under `id`.
    ///
    /// # Panics
    /// If `id` is taken.
    pub fn attach(&mut self, id: RegionId, region: Arc<Region>) {
        let slot = &mut self.slots[id.0 as usize];
        assert!(slot.region.is_none(), "region {} is attached already", id.0);
        *slot = Slot {
            base: region.base().as_ptr(),
            len: region.len(),
            writable_len: if region.is_writable() { region.len() } else { 0 },
            region: Some(region),
        };
    }

    /// The region attached under `id`.
    pub fn region(&self, id: RegionId) -> Option<&Arc<Region>> {
        self.slots[id.0 as usize].region.as_ref()
    }

    /// The place of `len` bytes at `at`, checked.
    #[inline(always)]
    pub(super) fn locate(&self, at: RemoteAddr, len: usize, write: bool) -> Result<*mut u8> {
        let slot = &self.slots[at.region().0 as usize];
        let room = if write { slot.writable_len } else { slot.len };
        if len > TRANSFER_BYTES_MAX || !is_inside(at.offset(), len as u64, room) {
            return Err(self.refusal(at, len, slot));
        }
        // SAFETY: `offset + len <= room <= slot.len`, and `slot.len` bytes from `base` are mapped
        // while `self` holds the region.
        Ok(unsafe { slot.base.add(at.offset() as usize) })
    }

    #[cold]
    fn refusal(&self, at: RemoteAddr, len: usize, slot: &Slot) -> FabricError {
        if slot.region.is_none() {
            FabricError::Unattached { region: at.region() }
        } else if len > TRANSFER_BYTES_MAX {
            FabricError::TooLong { len: len as u64, max: TRANSFER_BYTES_MAX as u64 }
        } else if !is_inside(at.offset(), len as u64, slot.len) {
            FabricError::OutOfBounds { at, len: len as u64, region_bytes: slot.len }
        } else {
            FabricError::ReadOnly { at }
        }
    }

    /// The word at `at`, checked.
    #[inline(always)]
    pub(super) fn word(&self, at: RemoteAddr, write: bool) -> Result<&AtomicU64> {
        let place = self.locate(at, 8, write)?;
        if !at.offset().is_multiple_of(8) {
            return Err(self.misaligned(at, 8));
        }
        // SAFETY: located and aligned above (mappings are page-aligned); the mapping lives as long
        // as `self`; every process reaches these bytes as atomics or in the copy engine only.
        Ok(unsafe { &*place.cast::<AtomicU64>() })
    }

    #[inline(always)]
    fn count(&self, verb: Verb, at: RemoteAddr, bytes: usize) {
        self.counters.count(verb, at.region() != self.home, bytes as u64);
    }

    /// Posts a READ: counts it, prefetches its lines, and returns the place of its bytes. The place
    /// stays mapped for as long as the endpoint is borrowed.
    #[inline(always)]
    fn post_read(&self, at: RemoteAddr, len: usize) -> Result<*const u8> {
        self.count(Verb::Read, at, len);
        let place = self.locate(at, len, false)?.cast_const();
        self.each_line(place, len, copy::prefetch);
        Ok(place)
    }

    /// Calls `hint` with the first lines of `len` bytes.
    #[inline(always)]
    pub(super) fn each_line(&self, place: *const u8, len: usize, hint: impl Fn(*const u8)) {
        // These branches follow from the length, which is often the same. The number of lines
        // follows from the place as well, and would be guessed wrong.
        hint(place);
        if len > CACHE_LINE_BYTES {
            let len = len.min(PREFETCH_LINES_MAX * CACHE_LINE_BYTES);
            let mut at = CACHE_LINE_BYTES;
            while at < len {
                hint(place.wrapping_add(at));
                at += CACHE_LINE_BYTES;
            }
        }
        hint(place.wrapping_add(len).wrapping_sub(1));
    }

    /// Posts a READ of `words` words.
    #[inline(always)]
    fn post_words(&self, at: RemoteAddr, words: usize) -> Result<*const u8> {
        let place = self.post_read(at, words * 8)?;
        if !at.offset().is_multiple_of(8) {
            return Err(self.misaligned(at, words * 8));
        }
        Ok(place)
    }

    #[cold]
    pub(super) fn misaligned(&self, at: RemoteAddr, len: usize) -> FabricError {
        let region_bytes = self.slots[at.region().0 as usize].len;
        FabricError::OutOfBounds { at, len: len as u64, region_bytes }
    }

    /// Completes a READ: appends its bytes to `buf`.
    ///
    /// # Safety
    /// `place` must come from [`Self::post_read`] or [`Self::locate`] with the same `len`, and
    /// `self` must have been borrowed since.
    #[inline(always)]
    pub(super) unsafe fn complete_read(&self, place: *const u8, len: usize, buf: &mut Buf) {
        // SAFETY: by this function's contract `place` has `len` mapped bytes; `append_with` gives
        // room for `len` private ones, and `copy` initialises all of them.
        unsafe { buf.append_with(len, |room| copy::copy_out(place, room, len)) };
    }

    /// Lets the thread sleep at this bell if all of its lanes do nothing but wait there. `false`:
    /// the executor of the thread cannot do so, or the bell is not mapped for writing. The lane
    /// then has to wake itself.
    #[inline]
    pub fn park(&self, cx: &Context<'_>, at: RemoteAddr) -> bool {
        self.region(at.region()).is_some_and(|region| parking::wait(cx, region, at.offset()))
    }
}

// SAFETY: a place is located with its length and checked to be aligned; it stays mapped while the
// endpoint is borrowed.
unsafe impl Post for ShmEndpoint {
    #[inline(always)]
    fn post(&self, at: RemoteAddr, len: usize, remote: &mut u64) -> Result<*const u8> {
        let place = self.locate(at, len, false)?;
        if !at.offset().is_multiple_of(8) {
            return Err(self.misaligned(at, len));
        }
        self.each_line(place, len, copy::prefetch);
        *remote += u64::from(at.region() != self.home);
        Ok(place)
    }

    fn count(&self, reads: usize, remote: u64, len: usize) {
        let local = reads as u64 - remote;
        self.counters.count_many(Verb::Read, true, remote, len as u64);
        self.counters.count_many(Verb::Read, false, local, len as u64);
        self.counters.count_round_trip();
    }
}

/// A future that is pending once, so that the other lanes have their turn while the lines arrive.
#[derive(Default)]
struct Turn {
    taken: bool,
}

impl Future for Turn {
    type Output = ();
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.taken {
            return Poll::Ready(());
        }
        self.taken = true;
        // For executors that sleep; the lanes' waker does nothing.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Fabric for ShmEndpoint {
    #[inline(always)]
    fn caps(&self) -> Caps {
        Caps {
            atomics: Atomics::Coherent,
            validation: Validation::Reread,
            round_trip: RoundTrip::Cheap,
            round_trip_bytes: ROUND_TRIP_BYTES,
            inline_bytes: CACHE_LINE_BYTES,
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline(always)]
    fn read_words<'a>(
        &'a self,
        at: &'a [RemoteAddr],
        out: &'a mut [u64],
    ) -> impl Future<Output = Result<()>> + 'a {
        let each = words_of_each(at.len(), out.len());
        let mut places = [Err(FabricError::Unattached { region: self.home }); DOORBELL_READS_MAX];
        for (place, at) in places.iter_mut().zip(at) {
            *place = self.post_words(*at, each);
        }
        self.counters.count_round_trip();
        async move {
            Turn::default().await;
            for (place, out) in places.into_iter().zip(out.chunks_exact_mut(each)) {
                let place = place?;
                for (i, out) in out.iter_mut().enumerate() {
                    // SAFETY: `post_words` checked `each` words at `place`.
                    *out = unsafe { load_word(place, i) };
                }
            }
            Ok(())
        }
    }

    #[inline(always)]
    fn read_bucket(
        &self,
        at: RemoteAddr,
        words: usize,
    ) -> impl Future<Output = Result<[u64; BUCKET_WORDS_MAX]>> + '_ {
        assert!(words <= BUCKET_WORDS_MAX, "words of a bucket");
        let place = self.post_words(at, words);
        self.counters.count_round_trip();
        async move {
            Turn::default().await;
            let place = place?;
            let mut bucket = [0; BUCKET_WORDS_MAX];
            for (i, out) in bucket.iter_mut().enumerate().take(words) {
                // SAFETY: `post_words` checked `words` words at `place`.
                *out = unsafe { load_word(place, i) };
            }
            Ok(bucket)
        }
    }

    #[inline(always)]
    fn read(
        &self,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        let place = self.post_read(at, len);
        self.counters.count_round_trip();
        async move {
            Turn::default().await;
            // SAFETY: posted above with this length, and `self` is borrowed by this future.
            let done = place.map(|place| unsafe { self.complete_read(place, len, &mut buf) });
            (buf, done)
        }
    }

    #[inline(always)]
    async fn chase(
        &self,
        count: usize,
        words: usize,
        len: usize,
        buf: &mut Buf,
        chase: &mut impl Chase,
    ) -> Result<()> {
        Turn::default().await;
        Chases::new(self, words, len, count).run(buf, chase)
    }

    #[inline(always)]
    fn read_word_and_bytes(
        &self,
        word: RemoteAddr,
        at: RemoteAddr,
        len: usize,
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<u64>)> + '_ {
        let word = self.post_words(word, 1);
        let place = self.post_read(at, len);
        self.counters.count_round_trip();
        async move {
            Turn::default().await;
            let (word, place) = match (word, place) {
                (Ok(word), Ok(place)) => (word, place),
                (Err(error), _) | (_, Err(error)) => return (buf, Err(error)),
            };
            // SAFETY: `post_words` checked a word at the place.
            let word = unsafe { load_word(word, 0) };
            // SAFETY: posted above with this length, and `self` is borrowed by this future.
            unsafe { self.complete_read(place, len, &mut buf) };
            (buf, Ok(word))
        }
    }

    #[inline(always)]
    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64>> + '_ {
        // Executed when it is posted: the word was read just before, so its line is near.
        self.count(Verb::CompareSwap, at, 8);
        self.counters.count_round_trip();
        std::future::ready(self.word(at, true).map(|w| words::compare_swap(w, expect, new)))
    }

    #[inline(always)]
    fn fetch_add(&self, at: RemoteAddr, add: u64) -> impl Future<Output = Result<u64>> + '_ {
        self.count(Verb::FetchAdd, at, 8);
        self.counters.count_round_trip();
        std::future::ready(self.word(at, true).map(|w| words::fetch_add(w, add)))
    }

    #[inline(always)]
    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        assert!(
            bytes.len() <= CACHE_LINE_BYTES,
            "an inline WRITE has at most {CACHE_LINE_BYTES} bytes"
        );
        self.count(Verb::Write, at, bytes.len());
        self.store(at, &[bytes])
    }

    fn write(&self, at: RemoteAddr, buf: Buf) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        self.count(Verb::Write, at, buf.len());
        self.counters.count_round_trip();
        let done = self.store(at, &[&buf]);
        std::future::ready((buf, done))
    }

    fn is_mapped(&self, region: RegionId) -> bool {
        self.region(region).is_some()
    }

    #[inline(always)]
    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<()> {
        let len = parts.iter().map(|p| p.len()).sum();
        let mut place = self.locate(at, len, true)?;
        for part in parts {
            // SAFETY: `locate` checked the sum of all parts, and `place` advances by each in turn;
            // a part is private memory of this process.
            unsafe {
                copy::copy_in(part.as_ptr(), place, part.len());
                place = place.add(part.len());
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn store_before(&self, at: RemoteAddr, word: u64) -> Result<()> {
        words::store_before(self.word(at, true)?, word);
        Ok(())
    }

    #[inline(always)]
    fn store_after(&self, at: RemoteAddr, word: u64) -> Result<()> {
        words::store_after(self.word(at, true)?, word);
        Ok(())
    }

    #[inline(always)]
    fn announce(&self, at: RemoteAddr, word: u64) -> Result<()> {
        words::announce(self.word(at, true)?, word);
        Ok(())
    }

    #[inline(always)]
    fn load(&self, at: RemoteAddr) -> Result<u64> {
        Ok(words::load(self.word(at, false)?))
    }

    #[inline]
    fn load_bytes(&self, at: RemoteAddr, len: usize, buf: &mut Buf) -> Result<()> {
        let place = self.locate(at, len, false)?;
        // SAFETY: `locate` gave `len` mapped bytes, and the endpoint was borrowed since.
        unsafe { self.complete_read(place, len, buf) };
        Ok(())
    }

    #[inline(always)]
    fn reload(&self, at: RemoteAddr) -> Result<u64> {
        Ok(words::load_after(self.word(at, false)?))
    }

    #[inline(always)]
    fn will_read(&self, at: RemoteAddr) {
        if let Ok(place) = self.locate(at, 1, false) {
            copy::prefetch(place);
        }
    }

    #[inline(always)]
    fn will_store(&self, at: RemoteAddr, len: usize) {
        if let Ok(place) = self.locate(at, len, true) {
            self.each_line(place, len, copy::prefetch_to_write);
        }
    }

    fn raw(&self, at: RemoteAddr, len: usize) -> Result<*mut u8> {
        self.locate(at, len, true)
    }

    /// Every verb is executed when it is posted, so there is nothing to count.
    #[inline]
    fn posted(&self) -> u64 {
        0
    }

    #[inline]
    fn is_settled(&self, _: u64) -> bool {
        true
    }

    #[inline]
    fn now_us(&self) -> u64 {
        let raw = self.clock.raw();
        self.clock.delta_as_nanos(0, raw) / 1000
    }

    fn wall_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |d| d.as_millis() as u64)
    }

    fn random(&self) -> u64 {
        self.random.borrow_mut().next_u64()
    }

    #[inline]
    fn yield_now(&self) -> impl Future<Output = ()> + '_ {
        Turn::default()
    }

    #[inline]
    fn poll_wait(&self, cx: &mut Context<'_>, bell: Option<RemoteAddr>) {
        if !bell.is_some_and(|bell| self.park(cx, bell)) {
            cx.waker().wake_by_ref();
        }
    }

    #[inline]
    fn ring(&self, bells: &[RemoteAddr]) {
        words::before_bells();
        bells.iter().filter_map(|at| self.word(*at, true).ok()).for_each(bell::ring);
    }

    #[inline]
    fn is_core_wanted(&self) -> bool {
        parking::is_core_wanted()
    }

    async fn pause(&self, us: u64) {
        if us > LANES_PAUSE_US_MAX {
            std::thread::sleep(std::time::Duration::from_micros(us));
            return;
        }
        // A time slice that is given away here may be lost for milliseconds, for all lanes of the
        // thread.
        let until = self.now_us() + us;
        while self.now_us() < until {
            std::hint::spin_loop();
            Turn::default().await;
        }
    }
}

impl UnreliableWrites for ShmEndpoint {
    /// Executed when it is posted, and never lost.
    #[inline(always)]
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        self.count(Verb::Write, at, bytes.len());
        self.store(at, &[bytes])
    }
}
