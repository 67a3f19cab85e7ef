//! Epochs: how a client announces that it holds nothing old, and how an owner waits for all clients
//! to do that.
//!
//! Three cases need epochs: a slot whose short generation is about to repeat, memory that is about
//! to be cut into entries of another size, and an entry that looks leaked. In each case the owner
//! must wait until every operation that was under way has ended. The protocol uses no clock: a
//! client that falls silent in the middle of an operation makes the owner wait, which costs space
//! and nothing else.
//!
//! # Protocol
//! Every node has an epoch word. Each session has a slot at its home node. There it announces the
//! value of the epoch word that it has seen, and whether an operation is under way. A grace period
//! adds one to the epoch of every node. It has passed when every session of every node is idle or
//! has announced the new epoch.
//!
//! # Invariants
//! 1. While an operation runs, its session announces an epoch that is not newer than the one the
//!    operation began in.
//! 2. A session that goes from idle to active announces first and then looks at the epoch again. If
//!    a grace period begins at that moment, then at least one of the two sees the other
//!    (model-checked in the fabric's shared words).
//!    A session goes idle with a store that comes after all stores of its operations, on any
//!    processor. A process that sees the session idle therefore sees all of its stores.
//! 3. A verb that an operation posted without waiting for it, or whose outcome nobody knows, counts
//!    as an operation under way until it is certainly over ([`Fabric::is_settled`]): a note that is
//!    still on its way must not land in memory that was cut anew, and a CAS must not find its entry
//!    reused. A session that stops in that state goes on announcing until it is used again, so
//!    clients over a network wait a moment for such verbs ([`Session::come_to_rest`]). If that was
//!    in vain, or the operation's future is dropped, the end of the announcement is left to the
//!    fabric ([`Session::leave`]), and taken back before the session announces anything else.
//! 4. A word in a session's cache carries the epoch that the session announced when the word was
//!    last seen in its slot. That epoch is not newer than the epoch of the operation that saw the
//!    word, although another lane may have begun in a newer epoch meanwhile. The word is not used
//!    when the session's epoch is two or more beyond it, nor between operations. *Two* grace
//!    periods in a row therefore outlast every cached word too.

use std::cell::Cell;

use loch_fabric::{Buf, Fabric, FabricError, RegionId, RemoteAddr};
use zerocopy::FromBytes;

use crate::error::EngineError;
use crate::limits::LOOKS_MAX;
use crate::planted::{self, Bug};
use crate::region::{
    EPOCH_OFFSET, SCRUBBER_SLOT, SESSION_BYTES, SESSIONS_OFFSET, SessionSlot, session_addr,
    session_bell_addr, session_left_addr,
};
use crate::secret::Secret;

/// A session's half of the protocol. It counts the operations of one thread.
#[derive(Debug)]
pub struct Session {
    home: RegionId,
    slot: u32,
    incarnation: u64,
    /// The secret that seals the session's datagrams.
    secret: Option<Secret>,
    /// The epoch in which new operations begin, and the number of them that are under way.
    current: Cell<(u64, u32)>,
    /// The previous epoch, and the number of its operations that are still under way.
    draining: Cell<(u64, u32)>,
    /// Set when operations have ended before all verbs that they posted: the mark up to which the
    /// verbs must settle. Zero if there are no such verbs.
    unsettled: Cell<u64>,
    /// Whether operations have posted verbs, and nobody has waited for these yet.
    has_posted: Cell<bool>,
    /// Whether the end of the announcement was left to the fabric.
    is_left: Cell<bool>,
    /// How long a session that comes to rest waits for them: half as long after each time in vain.
    patience_us: Cell<u64>,
}

/// How long a session that ends waits for its verbs; its node waits for the rest.
const QUIESCE_US_MAX: u64 = 100_000;
/// The pause between two looks.
const QUIESCE_POLL_US: u64 = 2;

/// Notes when it is dropped that verbs are still to be waited for.
struct Unfinished<'a>(&'a Cell<bool>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// An operation under way; ends it when dropped.
#[must_use = "the operation ends when this is dropped"]
pub struct Pin<'a, F: Fabric> {
    session: &'a Session,
    fabric: &'a F,
    epoch: u64,
    /// See [`Pin::owe`].
    owes: bool,
}

impl Session {
    /// A session without a slot, for a client that may only read. Grace periods do not wait for it,
    /// so the client must look at the index again after it has read an entry, and must not cache.
    pub fn observer(home: RegionId) -> Self {
        Self::new(home, u32::MAX, 0)
    }

    /// Whether this is an observer's session.
    #[inline]
    pub fn is_observer(&self) -> bool {
        self.incarnation == 0
    }

    /// The session that holds `slot` at `home`.
    pub fn new(home: RegionId, slot: u32, incarnation: u64) -> Self {
        let none = || Cell::new((0, 0));
        Self {
            home,
            slot,
            incarnation,
            secret: None,
            current: none(),
            draining: none(),
            unsettled: Cell::new(0),
            has_posted: Cell::new(false),
            is_left: Cell::new(false),
            patience_us: Cell::new(QUIESCE_US_MAX),
        }
    }

    /// The same session, with a secret that it shares with the nodes which let it in.
    #[must_use]
    pub fn with_secret(self, secret: Option<Secret>) -> Self {
        Self { secret, ..self }
    }

    /// The secret that seals the session's datagrams.
    pub fn secret(&self) -> Option<Secret> {
        self.secret
    }

    /// The node whose memory is this client's own.
    pub fn home(&self) -> RegionId {
        self.home
    }

    /// The slot at the home node.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The incarnation of the session, among all sessions that ever held the slot.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The newest epoch in which this session works.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.current.get().0
    }

    /// Whether an operation is under way. Between operations the session's epoch stands still while
    /// the nodes' epochs go on, so it cannot tell whether a remembered word is too old.
    #[inline]
    pub fn is_working(&self) -> bool {
        self.under_way() > 0
    }

    /// The number of operations that are under way.
    #[inline]
    pub fn under_way(&self) -> usize {
        (self.current.get().1 + self.draining.get().1) as usize
    }

    /// Whether no operation is under way, and no verb that one has posted.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_working() && self.unsettled.get() == 0
    }

    /// The epoch that this session announces: the epoch of its oldest operation under way.
    #[inline]
    pub fn announced(&self) -> u64 {
        let (draining, old) = self.draining.get();
        if old > 0 { draining } else { self.epoch() }
    }

    /// The epoch by which a remembered word would be judged now, if this were the home node's
    /// epoch: for tests that look into caches.
    #[cfg(feature = "planted")]
    pub(crate) fn judges_by(&self, home_epoch: u64) -> u64 {
        let (epoch, under_way) = self.current.get();
        // The announcement that was left to the fabric may have ended.
        let is_announcing = under_way > 0 || self.is_draining() && !self.is_left.get();
        if is_announcing { epoch } else { home_epoch }
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// The fabric's, and [`EngineError::Damaged`] if every look shows another epoch.
    #[inline]
    pub fn pin<'a, F: Fabric>(&'a self, fabric: &'a F) -> Result<Pin<'a, F>, EngineError> {
        if self.is_observer() {
            return Ok(Pin { session: self, fabric, epoch: 0, owes: false });
        }
        let word = RemoteAddr::new(self.home, EPOCH_OFFSET);
        self.settle(fabric)?;
        let (mut epoch, under_way) = self.current.get();
        if under_way == 0 && !self.is_draining() {
            // Invariant 2: announce, then look again.
            let mut looks = 0;
            loop {
                let seen = fabric.load(word)?;
                self.announce(fabric, seen << 1 | 1)?;
                epoch = seen;
                if fabric.load(word)? == seen {
                    break;
                }
                looks += 1;
                if looks == LOOKS_MAX {
                    self.announce(fabric, seen << 1)?;
                    return Err(restless_epoch());
                }
            }
            self.current.set((epoch, 1));
        } else {
            let seen = fabric.load(word)?;
            if seen != epoch && !self.is_draining() {
                self.draining.set((epoch, under_way));
                self.current.set((seen, 1));
                epoch = seen;
            } else {
                self.current.set((epoch, under_way + 1));
            }
        }
        Ok(Pin { session: self, fabric, epoch, owes: false })
    }

    /// Whether an operation or a verb of an older epoch than the current one keeps the announcement
    /// up.
    #[inline(always)]
    fn is_draining(&self) -> bool {
        self.draining.get().1 > 0 || self.unsettled.get() != 0
    }

    /// Ends the announcements that only waited for verbs to settle. A client that waits for a grace
    /// period must call this now and then, so that others do not wait for it.
    #[inline(always)]
    pub(crate) fn settle<F: Fabric>(&self, fabric: &F) -> Result<(), FabricError> {
        // Nothing of an older epoch is under way then: until the verbs have settled no other epoch
        // begins.
        let mark = self.unsettled.get();
        if mark == 0 {
            return Ok(());
        }
        if self.is_left.take() && !planted::is(Bug::LeftWordStays) {
            // From now on this thread decides again what is announced.
            fabric.take_back();
        }
        if !is_settled(fabric, mark) {
            return Ok(());
        }
        self.unsettled.set(0);
        let (epoch, under_way) = self.current.get();
        self.announce(fabric, epoch << 1 | (under_way > 0) as u64)
    }

    #[inline]
    fn announce<F: Fabric>(&self, fabric: &F, word: u64) -> Result<(), FabricError> {
        fabric.announce(self.slot_word(), word)
    }

    /// Where the session announces its epoch.
    #[inline]
    fn slot_word(&self) -> RemoteAddr {
        session_addr(self.home, self.slot).add(8)
    }

    /// Whether a verb that the operations posted is still under way after they have ended: then
    /// their announcement stays.
    #[inline(always)]
    fn lags<F: Fabric>(&self, fabric: &F) -> bool {
        let mark = fabric.posted();
        let settled = is_settled(fabric, mark);
        if !settled && self.unsettled.get() == 0 {
            // Also verbs that an operation waited for, if its future was dropped.
            self.has_posted.set(true);
        }
        self.unsettled.set(if settled { 0 } else { mark });
        !settled
    }

    /// Notes that an operation has posted a verb and does not wait for it.
    #[inline(always)]
    pub(crate) fn posts(&self) {
        self.has_posted.set(true);
    }

    /// Tells the node that this session has left something to the scrubber: an entry that no word
    /// of the index shows and no note says to be free. The node scrubs when it has time, and in any
    /// case after the session has ended.
    #[cold]
    pub fn leaves<F: Fabric>(&self, fabric: &F) {
        if self.is_observer() {
            return;
        }
        // The node takes the word back before it looks for what was left. If the word is still set
        // after this fence, then the node looks later, and finds it.
        fabric.fence();
        let word = session_left_addr(self.home, self.slot);
        if fabric.load(word) == Ok(0) && fabric.store(word, &[&1u64.to_le_bytes()]).is_ok() {
            fabric.ring(&[session_bell_addr(self.home, SCRUBBER_SLOT)]);
        }
    }

    /// Waits for the verbs that operations have posted and not waited for, unless another operation
    /// is under way. A session that was not used again would keep its announcement for ever
    /// (invariant 3), and no memory could change hands. While connections are broken it waits less
    /// and less.
    pub(crate) async fn come_to_rest<F: Fabric>(&self, fabric: &F) -> Result<(), FabricError> {
        if self.is_working() || !self.has_posted.take() {
            return Ok(());
        }
        let patience_us = self.patience_us.get();
        // If this future is dropped, the next call goes on waiting.
        let unfinished = Unfinished(&self.has_posted);
        self.settle_within(fabric, patience_us, || !self.is_working()).await?;
        std::mem::forget(unfinished);
        // An operation that began meanwhile waits in this one's place when it has ended.
        self.has_posted.set(self.is_working());
        let in_vain = self.unsettled.get() != 0 && !self.is_working();
        if in_vain {
            // A note may be lost with its connection.
            self.leaves(fabric);
        }
        self.patience_us.set(if in_vain { patience_us / 2 } else { QUIESCE_US_MAX });
        Ok(())
    }

    /// Called when nobody may use this session for long. If verbs keep its announcement up, the
    /// fabric ends the announcement when they have settled, whatever this thread does.
    pub(crate) fn leave<F: Fabric>(&self, fabric: &F) {
        let is_announcing = self.unsettled.get() != 0 && !self.is_working();
        if is_announcing && !planted::is(Bug::LeftAnnouncing) {
            self.is_left.set(true);
            fabric.store_when_settled(self.slot_word(), self.epoch() << 1);
        }
    }

    /// Waits until no verb of this session is under way any more. If that takes long, the rest is
    /// left to the fabric, as by [`Session::leave`].
    pub async fn quiesce<F: Fabric>(&self, fabric: &F) -> Result<(), FabricError> {
        self.settle_within(fabric, QUIESCE_US_MAX, || true).await?;
        self.leave(fabric);
        Ok(())
    }

    /// Waits for verbs to settle, but not for longer than `within_us`, and as long as `goes_on`.
    async fn settle_within<F: Fabric>(
        &self,
        fabric: &F,
        within_us: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), FabricError> {
        let until = fabric.now_us() + within_us;
        while self.unsettled.get() != 0 && goes_on() && fabric.now_us() < until {
            self.settle(fabric)?;
            fabric.pause(QUIESCE_POLL_US).await;
        }
        if self.unsettled.get() != 0 {
            self.leaves(fabric);
        }
        Ok(())
    }

    #[inline]
    fn unpin<F: Fabric>(&self, fabric: &F, began: u64) -> Result<(), FabricError> {
        if self.is_observer() {
            return Ok(());
        }
        let (draining, old) = self.draining.get();
        let (current, new) = self.current.get();
        // The older phase is asked first: if both phases carry the same number, either count will
        // do.
        if old > 0 && began == draining {
            self.draining.set((draining, old - 1));
            if old > 1 || self.lags(fabric) {
                return Ok(());
            }
            if new > 0 {
                return self.announce(fabric, current << 1 | 1);
            }
        } else {
            self.current.set((current, new - 1));
            if new > 1 || old > 0 || self.lags(fabric) {
                return Ok(());
            }
        }
        // Idle: a session needs no handshake to withdraw its announcement.
        let at = self.slot_word();
        let word = self.current.get().0 << 1;
        if planted::is(Bug::IdleBeforeStores) {
            return fabric.store(at, &[&word.to_le_bytes()]);
        }
        fabric.store_after(at, word)
    }
}

/// More looks mean damage: a grace period takes longer than many looks, so nobody begins them as
/// fast as that.
#[cold]
fn restless_epoch() -> EngineError {
    EngineError::Damaged { what: "the epoch of the home node never stands still".into() }
}

/// [`Fabric::is_settled`], unless a planted bug forgets what is under way.
#[inline(always)]
fn is_settled<F: Fabric>(fabric: &F, mark: u64) -> bool {
    planted::is(Bug::ForgetsWhatIsUnderWay) || fabric.is_settled(mark)
}

impl<F: Fabric> Pin<'_, F> {
    /// From now on the operation has memory of which only it knows: an entry that it has taken, or
    /// one whose word it is about to take out of the index. If it ends now, because its future is
    /// dropped or because nobody knows what became of a verb, the entry is left to the scrubber.
    #[inline(always)]
    pub(crate) fn owe(&mut self) {
        self.owes = true;
    }

    /// The entry is in the index, or was given back.
    #[inline(always)]
    pub(crate) fn paid(&mut self) {
        self.owes = false;
    }

    /// Ends an operation that has given back what it had, unless the fabric has failed.
    pub(crate) fn ends_with<T>(
        mut self,
        outcome: Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.owes &= matches!(outcome, Err(EngineError::Ambiguous(_) | EngineError::Fabric(_)));
        outcome
    }
}

impl<F: Fabric> Drop for Pin<'_, F> {
    fn drop(&mut self) {
        if self.owes {
            self.session.leaves(self.fabric);
        }
        let ended = self.session.unpin(self.fabric, self.epoch);
        debug_assert!(
            ended.is_ok(),
            "the home region is mapped and writable: it was when we began"
        );
    }
}

/// A grace period under way.
#[derive(Debug)]
pub struct Grace {
    /// For each node the epoch that its sessions must have announced.
    awaited: Vec<(RegionId, u32, u64)>,
}

impl Grace {
    /// Begins a grace period over `nodes`, each with its number of session slots.
    pub async fn begin<F: Fabric>(
        fabric: &F,
        nodes: &[(RegionId, u32)],
    ) -> Result<Self, FabricError> {
        let mut awaited = Vec::with_capacity(nodes.len());
        for (node, sessions) in nodes {
            let old = fabric.fetch_add(RemoteAddr::new(*node, EPOCH_OFFSET), 1).await?;
            awaited.push((*node, *sessions, old.wrapping_add(1)));
        }
        Ok(Self { awaited })
    }

    /// Whether every operation that was under way at the beginning has ended. Never waits. Once the
    /// sessions of a node have passed they are not asked again.
    pub async fn has_passed<F: Fabric>(&mut self, fabric: &F) -> Result<bool, FabricError> {
        while let Some((node, sessions, epoch)) = self.awaited.last().copied() {
            let at = RemoteAddr::new(node, SESSIONS_OFFSET);
            let bytes = (sessions as u64 * SESSION_BYTES) as usize;
            let (slots, done) = fabric.read_whole_words(at, bytes, Buf::with_capacity(bytes)).await;
            done?;
            for slot in slots.chunks_exact(SESSION_BYTES as usize) {
                let slot = SessionSlot::read_from_bytes(slot).expect("a chunk is a slot long");
                let active = slot.announced & 1 == 1;
                if slot.incarnation != 0 && active && slot.announced >> 1 < epoch {
                    return Ok(false);
                }
            }
            self.awaited.pop();
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use loch_fabric::lanes::block_on;
    use loch_fabric::shm::{Region, ShmEndpoint};
    use proptest::prelude::*;

    use super::*;

    const HOME: RegionId = RegionId(0);
    const SLOTS: u32 = 5;
    /// The slot of the session under test: neither the first nor the last one.
    const SLOT: u32 = 3;
    const EPOCH: RemoteAddr = RemoteAddr::new(HOME, EPOCH_OFFSET);

    /// One node's memory. Its clock moves only in pauses, and its verbs stay under way until the
    /// test says that they are over.
    struct Node {
        shm: ShmEndpoint,
        region: Arc<Region>,
        now_us: Cell<u64>,
        posted: Cell<u64>,
        settled: Cell<u64>,
        /// The time when everything that was posted is over.
        settles_at_us: Cell<u64>,
        /// The number of looks at the epoch after which it changes.
        restless: Cell<usize>,
        looks: Cell<usize>,
        /// The word that is to be stored when verbs have settled.
        left: Cell<Option<(RemoteAddr, u64)>>,
    }

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let bytes = SESSIONS_OFFSET + SLOTS as u64 * SESSION_BYTES;
            let region = Arc::new(Region::create(&dir.path().join("region"), bytes).unwrap());
            let mut shm = ShmEndpoint::new(HOME);
            shm.attach(HOME, region.clone());
            let zero = || Cell::new(0);
            let (now_us, settles_at_us) = (Cell::new(1_000_000), Cell::new(u64::MAX));
            let (restless, looks) = (Cell::new(0), Cell::new(0));
            let (posted, settled) = (zero(), zero());
            let left = Cell::new(None);
            Self { shm, region, now_us, posted, settled, settles_at_us, restless, looks, left }
        }

        fn set_slot(&self, slot: u32, incarnation: u64, announced: u64) {
            let words = [incarnation.to_le_bytes(), announced.to_le_bytes()].concat();
            self.region.copy_in(session_addr(HOME, slot).offset(), &words);
        }

        /// The epoch and the activity in the slot of the session under test.
        fn announced(&self) -> (u64, bool) {
            let word = self.shm.load(session_addr(HOME, SLOT).add(8)).unwrap();
            (word >> 1, word & 1 == 1)
        }

        fn epoch(&self) -> u64 {
            self.shm.load(EPOCH).unwrap()
        }

        fn next_epoch(&self) {
            self.shm.store_before(EPOCH, self.epoch() + 1).unwrap();
        }

        fn has_passed(&self, epoch: u64) -> bool {
            let mut grace = Grace { awaited: vec![(HOME, SLOTS, epoch)] };
            block_on(grace.has_passed(self)).unwrap()
        }
    }

    impl Fabric for Node {
        loch_fabric::pass_on!(
            caps counters read_words read_bucket read chase read_word_and_bytes
            compare_swap fetch_add write_unsignaled write is_mapped store store_before store_after
            announce reload raw wall_ms random
            => shm
        );

        fn load(&self, at: RemoteAddr) -> Result<u64, FabricError> {
            let word = self.shm.load(at)?;
            if at == EPOCH {
                self.looks.set(self.looks.get() + 1);
                assert!(self.looks.get() < 10_000, "it looks for ever");
                if self.restless.get() > 0 {
                    self.restless.set(self.restless.get() - 1);
                    self.next_epoch();
                }
            }
            Ok(word)
        }

        fn posted(&self) -> u64 {
            self.posted.get()
        }

        fn is_settled(&self, mark: u64) -> bool {
            self.settled.get() >= mark
        }

        fn store_when_settled(&self, at: RemoteAddr, word: u64) {
            self.left.set(Some((at, word)));
        }

        fn take_back(&self) {
            self.left.set(None);
        }

        fn now_us(&self) -> u64 {
            self.now_us.get()
        }

        async fn pause(&self, us: u64) {
            // Others have a turn.
            let mut turns = 0;
            poll_fn(|context| {
                turns += 1;
                context.waker().wake_by_ref();
                if turns == 1 { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            self.now_us.set(self.now_us.get() + us);
            assert!(self.now_us.get() < 10_000_000, "it waits for ever");
            if self.now_us.get() >= self.settles_at_us.get() {
                self.settled.set(self.posted.get());
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Begin,
        End(prop::sample::Index),
        NextEpoch,
        Post,
        AllOver,
        Settle,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => Just(Act::Begin),
            3 => any::<prop::sample::Index>().prop_map(Act::End),
            2 => Just(Act::NextEpoch),
            1 => Just(Act::Post),
            1 => Just(Act::AllOver),
            1 => Just(Act::Settle),
        ]
    }

    /// The announcement that a session must make, computed from the list of its operations.
    #[derive(Default)]
    struct Model {
        /// The epoch in which new operations begin.
        phase: u64,
        /// The epochs in which the operations under way began.
        began: Vec<u64>,
        /// The time until which verbs keep the announcement up although their operations have
        /// ended.
        until_settled: Option<u64>,
        announced: (u64, bool),
    }

    impl Model {
        fn has_older(&self) -> bool {
            self.began.iter().any(|began| *began < self.phase)
        }

        fn settle(&mut self, settled: u64) {
            if !self.has_older() && self.until_settled.is_some_and(|mark| mark <= settled) {
                self.until_settled = None;
                self.announced = (self.phase, !self.began.is_empty());
            }
        }

        fn begin(&mut self, now: u64, settled: u64) {
            self.settle(settled);
            if !self.has_older() && self.until_settled.is_none() {
                self.phase = now;
                if self.began.is_empty() {
                    self.announced = (now, true);
                }
            }
            self.began.push(self.phase);
        }

        fn end(&mut self, at: usize, posted: u64, settled: u64) {
            let began = self.began.swap_remove(at);
            if self.has_older() || began == self.phase && !self.began.is_empty() {
                return;
            }
            self.until_settled = (settled < posted).then_some(posted);
            if self.until_settled.is_none() {
                self.announced = (self.phase, !self.began.is_empty());
            }
        }
    }

    proptest! {
        /// Invariants 1 and 3, and that a busy session does not keep its epoch for ever: an
        /// announcement holds up only the grace periods that began after its oldest operation, or
        /// after a verb of an ended operation.
        #[test]
        fn a_session_announces_its_oldest_operation_and_what_is_not_settled(
            acts in prop::collection::vec(act(), 1..60),
        ) {
            let node = Node::new();
            let secret = Some(Secret::new([5, 6]));
            let session = Session::new(HOME, SLOT, 7).with_secret(secret);
            node.set_slot(SLOT, 7, 0);
            prop_assert_eq!((session.slot(), session.secret()), (SLOT, secret));
            let (mut pins, mut model) = (Vec::new(), Model::default());
            for act in acts {
                match act {
                    Act::Begin => {
                        pins.push((session.pin(&node).unwrap(), node.epoch()));
                        model.begin(node.epoch(), node.settled.get());
                    }
                    Act::End(_) if pins.is_empty() => (),
                    Act::End(at) => {
                        let at = at.index(pins.len());
                        drop(pins.swap_remove(at));
                        model.end(at, node.posted.get(), node.settled.get());
                    }
                    Act::NextEpoch => node.next_epoch(),
                    Act::Post => node.posted.set(node.posted.get() + 1),
                    Act::AllOver => node.settled.set(node.posted.get()),
                    Act::Settle => {
                        session.settle(&node).unwrap();
                        model.settle(node.settled.get());
                    }
                }
                let (epoch, active) = node.announced();
                prop_assert_eq!((epoch, active), model.announced);
                prop_assert_eq!(session.is_working(), !pins.is_empty());
                for (_, at_begin) in &pins {
                    prop_assert!(active && epoch <= *at_begin, "invariant 1");
                }
                if let Some(oldest) = model.began.iter().min() {
                    prop_assert_eq!(session.announced(), *oldest);
                    prop_assert_eq!(session.epoch(), model.phase);
                }
                for awaited in epoch.saturating_sub(1)..epoch + 3 {
                    prop_assert_eq!(node.has_passed(awaited), !active || awaited <= epoch);
                }
            }
            drop(pins);
            node.settled.set(node.posted.get());
            session.settle(&node).unwrap();
            prop_assert!(!node.announced().1, "all is over");
        }
    }

    /// Invariant 2: the session announces and looks again, until nothing has changed in between.
    #[test]
    fn a_session_that_becomes_active_has_announced_the_epoch_that_it_sees() {
        for changes in [0, 1, 2, 3, 10] {
            let node = Node::new();
            node.set_slot(SLOT, 7, 0);
            node.restless.set(changes);
            let session = Session::new(HOME, SLOT, 7);
            let pin = session.pin(&node).unwrap();
            assert_eq!(node.announced(), (changes as u64, true));
            assert_eq!(session.epoch(), changes as u64);
            drop(pin);
            assert_eq!(node.announced(), (changes as u64, false));
        }
    }

    #[test]
    fn an_epoch_that_is_another_at_every_look_is_damage_and_leaves_the_session_idle() {
        let node = Node::new();
        node.set_slot(SLOT, 7, 0);
        node.restless.set(usize::MAX);
        let session = Session::new(HOME, SLOT, 7);
        assert!(matches!(session.pin(&node), Err(EngineError::Damaged { .. })));
        assert_eq!(node.looks.get(), 2 * LOOKS_MAX);
        assert!(!node.announced().1, "nobody waits for an operation that did not begin");
        node.restless.set(0);
        let pin = session.pin(&node).unwrap();
        assert_eq!(node.announced(), (node.epoch(), true));
        drop(pin);
        assert!(!node.announced().1);
    }

    #[test]
    fn an_observer_announces_nothing() {
        let node = Node::new();
        node.set_slot(SLOT, 7, 0);
        let observer = Session::observer(HOME);
        drop(observer.pin(&node).unwrap());
        assert_eq!((node.looks.get(), node.announced()), (0, (0, false)));
    }

    /// A session that ends waits for its verbs, but not for ever: its node waits for the rest.
    #[test]
    fn quiesce_waits_for_what_was_posted_and_not_longer_than_its_bound() {
        for (settles_after_us, waits_us) in
            [(1, 2), (10, 10), (99_999, QUIESCE_US_MAX), (u64::MAX / 2, QUIESCE_US_MAX)]
        {
            let node = Node::new();
            node.set_slot(SLOT, 7, 0);
            let session = Session::new(HOME, SLOT, 7);
            let pin = session.pin(&node).unwrap();
            node.posted.set(1);
            drop(pin);
            assert!(node.announced().1);
            let began = node.now_us.get();
            node.settles_at_us.set(began + settles_after_us);
            block_on(session.quiesce(&node)).unwrap();
            // The look that sees it comes after the pause.
            let waited = node.now_us.get() - began;
            assert!((waits_us..waits_us + 3).contains(&waited), "{waited} of {waits_us}");
            assert_eq!(node.announced().1, settles_after_us >= QUIESCE_US_MAX - 1);
        }
    }

    #[test]
    fn a_session_that_comes_to_rest_waits_for_what_it_posted_and_less_while_that_is_in_vain() {
        let node = Node::new();
        node.set_slot(SLOT, 7, 0);
        let session = Session::new(HOME, SLOT, 7);
        let operate = |settles_after_us: u64| {
            let pin = session.pin(&node).unwrap();
            node.posted.set(node.posted.get() + 1);
            session.posts();
            node.settles_at_us.set(node.now_us.get() + settles_after_us);
            pin
        };
        let rest = || {
            let began = node.now_us.get();
            block_on(session.come_to_rest(&node)).unwrap();
            (node.now_us.get() - began, node.announced().1)
        };
        drop(operate(10));
        let (waited, is_active) = rest();
        assert!((10..13).contains(&waited) && !is_active, "{waited}");
        assert_eq!(rest(), (0, false), "nothing was posted since");
        let pin = operate(10);
        drop(operate(10));
        assert_eq!(rest(), (0, true), "another operation is under way");
        drop(pin);
        assert!(!rest().1, "the last one waits for all");
        for part in [1, 2, 4, 8] {
            drop(operate(u64::MAX / 2));
            let ((waited, is_active), most) = (rest(), QUIESCE_US_MAX / part);
            assert!((most..most + 3).contains(&waited) && is_active, "{waited} of {most}");
        }
        drop(operate(10));
        assert!(!rest().1);
        drop(operate(QUIESCE_US_MAX - 10));
        assert!(!rest().1, "it is patient again");
        drop(operate(10));
        let mut rests = pin!(session.come_to_rest(&node));
        let mut poll = || rests.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        let pin = session.pin(&node).unwrap();
        assert!(poll(), "another lane has begun an operation meanwhile, which posts nothing");
        drop(pin);
        assert!(node.announced().1 && !rest().1);
    }

    /// A future is dropped while its verb is under way, and the session is not used again.
    #[test]
    fn a_session_that_is_left_announces_nothing_when_its_verbs_have_settled() {
        let node = Node::new();
        node.set_slot(SLOT, 7, 0);
        node.next_epoch();
        let session = Session::new(HOME, SLOT, 7);
        session.leave(&node);
        let operate = || {
            let pin = session.pin(&node).unwrap();
            node.posted.set(node.posted.get() + 1);
            pin
        };
        let pin = operate();
        session.leave(&node);
        assert_eq!(node.left.get(), None, "an operation is under way");
        drop(pin);
        session.leave(&node);
        let (at, idle) = node.left.get().expect("the verb is under way");
        // The fabric stores the word, or the next operation begins before.
        for is_stored in [true, false] {
            if is_stored {
                node.settled.set(node.posted.get());
                node.shm.store_after(at, idle).unwrap();
                assert_eq!(node.announced(), (1, false));
            }
            let pin = operate();
            assert_eq!((node.announced().1, node.left.get()), (true, None), "{is_stored}");
            drop(pin);
            session.leave(&node);
            assert_eq!(node.left.get(), Some((at, idle)));
        }
        // It is dropped while it comes to rest, and the next to come to rest goes on waiting.
        let polled = |rests: std::pin::Pin<&mut dyn Future<Output = Result<(), FabricError>>>| {
            rests.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(!polled(pin!(session.come_to_rest(&node))));
        assert_eq!(node.left.get(), None, "it looks by itself");
        node.settles_at_us.set(node.now_us.get() + 10);
        block_on(session.come_to_rest(&node)).unwrap();
        assert!(!node.announced().1);
    }

    #[test]
    fn a_grace_period_waits_for_active_sessions_of_all_nodes_that_began_before_it() {
        for slot in 0..SLOTS {
            let node = Node::new();
            node.shm.store_before(EPOCH, 6).unwrap();
            let mut grace = block_on(Grace::begin(&node, &[(HOME, SLOTS)])).unwrap();
            assert_eq!((node.epoch(), grace.awaited[0]), (7, (HOME, SLOTS, 7)));
            let mut passes = |incarnation, announced| {
                node.set_slot(slot, incarnation, announced);
                block_on(grace.has_passed(&node)).unwrap()
            };
            assert!(!passes(1, 6 << 1 | 1), "it was active before");
            assert!(!passes(1, 1), "and for long");
            assert!(passes(1, 7 << 1 | 1), "it has seen the new epoch");
            assert!(passes(1, 6 << 1 | 1), "it is not asked twice");
            for (incarnation, announced) in [(0, 6 << 1 | 1), (1, 6 << 1), (1, 8 << 1 | 1)] {
                node.set_slot(slot, incarnation, announced);
                assert!(node.has_passed(7), "{incarnation} {announced}");
            }
        }
    }
}
