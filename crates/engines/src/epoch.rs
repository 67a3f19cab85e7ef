//! Epochs: how a client tells that it holds nothing old, and how an owner waits for that.
//!
//! Three things need it: a slot whose short generation is about to repeat, memory that is about to
//! be cut into entries of another size, and an entry that looks leaked. Each must wait until every
//! operation that was under way has ended. No clock is involved: a client that is silent in the
//! middle of an operation makes the owner wait and costs space, nothing else.
//!
//! # Protocol
//! Every node has an epoch word. A session announces, in its slot at its home node, the epoch word
//! it has seen and whether an operation is under way. A grace period adds one to the epoch of every
//! node and has passed when every session of every node is idle or has announced the new epoch.
//!
//! # Invariants
//! 1. While an operation runs, its session announces an epoch that is not newer than the one the
//!    operation began in.
//! 2. A session that goes from idle to active announces first and then looks at the epoch again, so
//!    of the two, it and a grace period that begins at that moment, at least one sees the other
//!    (model-checked in the fabric's shared words).
//! 3. What an operation posted and nobody waited for, or what became of it nobody knows, counts as
//!    an operation under way until it is certainly over ([`Fabric::is_settled`]): a note that is
//!    still on its way must not land in memory that was cut anew, nor a CAS find its entry reused.
//!    A session that stops in the middle of that goes on announcing until it is used again.
//! 4. A word in a session's cache carries the epoch that the session announced when the word was
//!    last seen in its slot, which is not newer than that of the operation that saw it: another lane
//!    may have begun in a newer one meanwhile. The word is not used when the session's epoch is two
//!    or more beyond it. So *two* grace periods in a row outlast every cached word too.

use std::cell::Cell;

use loch_fabric::{Buf, Fabric, FabricError, RegionId, RemoteAddr};
use zerocopy::FromBytes;

use crate::error::EngineError;
use crate::limits::LOOKS_MAX;
use crate::planted::{self, Bug};
use crate::region::{EPOCH_OFFSET, SESSION_BYTES, SESSIONS_OFFSET, SessionSlot, session_addr};
use crate::requests::Secret;

/// A session's half of the protocol: counts the operations of one thread.
#[derive(Debug)]
pub struct Session {
    home: RegionId,
    slot: u32,
    incarnation: u64,
    /// What the session's datagrams are sealed with.
    secret: Option<Secret>,
    /// The epoch in which operations now begin, and how many of them are under way.
    current: Cell<(u64, u32)>,
    /// The epoch before, and how many operations that began in it are still under way.
    draining: Cell<(u64, u32)>,
    /// Set when operations have ended, but not all that they posted: the mark up to which that must
    /// be settled. Zero: there is nothing of the kind.
    unsettled: Cell<u64>,
}

/// How long a session that ends waits for what it posted; its node waits for the rest.
const QUIESCE_US_MAX: u64 = 100_000;
/// Pause between two looks.
const QUIESCE_POLL_US: u64 = 2;

/// An operation under way; ends it when dropped.
#[must_use = "the operation ends when this is dropped"]
pub struct Pin<'a, F: Fabric> {
    session: &'a Session,
    fabric: &'a F,
    epoch: u64,
}

impl Session {
    /// A session without a slot, for a client that may only read: grace periods do not wait for it,
    /// so it must look at the index again after it read an entry, and must not cache.
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
        let unsettled = Cell::new(0);
        Self { home, slot, incarnation, secret: None, current: none(), draining: none(), unsettled }
    }

    /// The same, with a secret that the nodes know which let it in.
    #[must_use]
    pub fn with_secret(self, secret: Option<Secret>) -> Self {
        Self { secret, ..self }
    }

    /// What the session's datagrams are sealed with.
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

    /// Which of the sessions that ever held the slot this is.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The newest epoch this session works in.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.current.get().0
    }

    /// The epoch that this session announces: that of the oldest operation under way.
    #[inline]
    pub fn announced(&self) -> u64 {
        let (draining, old) = self.draining.get();
        if old > 0 { draining } else { self.epoch() }
    }

    /// The epoch by which a remembered word would be judged now, where the home node's is this one: for
    /// tests that look into caches.
    #[cfg(feature = "planted")]
    pub(crate) fn judges_by(&self, home_epoch: u64) -> u64 {
        let (epoch, under_way) = self.current.get();
        if under_way > 0 || self.is_draining() { epoch } else { home_epoch }
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// The fabric's, and [`EngineError::Damaged`] if the epoch is another at every look.
    #[inline]
    pub fn pin<'a, F: Fabric>(&'a self, fabric: &'a F) -> Result<Pin<'a, F>, EngineError> {
        if self.is_observer() {
            return Ok(Pin { session: self, fabric, epoch: 0 });
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
        Ok(Pin { session: self, fabric, epoch })
    }

    /// Whether something of an older epoch than the current one keeps its announcement up.
    #[inline(always)]
    fn is_draining(&self) -> bool {
        self.draining.get().1 > 0 || self.unsettled.get() != 0
    }

    /// Ends what only waited for verbs to settle. Whoever waits for a grace period must do this now
    /// and then, lest others wait for it.
    #[inline(always)]
    pub(crate) fn settle<F: Fabric>(&self, fabric: &F) -> Result<(), FabricError> {
        let mark = self.unsettled.get();
        if mark == 0 || self.draining.get().1 > 0 || !is_settled(fabric, mark) {
            return Ok(());
        }
        self.unsettled.set(0);
        let (epoch, under_way) = self.current.get();
        self.announce(fabric, epoch << 1 | (under_way > 0) as u64)
    }

    #[inline]
    fn announce<F: Fabric>(&self, fabric: &F, word: u64) -> Result<(), FabricError> {
        fabric.announce(session_addr(self.home, self.slot).add(8), word)
    }

    /// Whether something that the operations posted is not over, now that they are: then what they
    /// announced stays.
    #[inline(always)]
    fn lags<F: Fabric>(&self, fabric: &F) -> bool {
        let mark = fabric.posted();
        let settled = is_settled(fabric, mark);
        self.unsettled.set(if settled { 0 } else { mark });
        !settled
    }

    /// Waits until nothing that this session posted is under way any more.
    pub async fn quiesce<F: Fabric>(&self, fabric: &F) -> Result<(), FabricError> {
        let until = fabric.now_us() + QUIESCE_US_MAX;
        while self.unsettled.get() != 0 && fabric.now_us() < until {
            self.settle(fabric)?;
            fabric.pause(QUIESCE_POLL_US).await;
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
        // The older phase is asked first: if both carry the same number, either count will do.
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
        // Idle: no handshake is needed to stop claiming something.
        let at = session_addr(self.home, self.slot).add(8);
        fabric.store(at, &[&(self.current.get().0 << 1).to_le_bytes()])
    }
}

/// A grace period takes longer than many looks: nobody begins them as fast as that.
#[cold]
fn restless_epoch() -> EngineError {
    EngineError::Damaged { what: "the epoch of the home node never stands still".into() }
}

/// [`Fabric::is_settled`], unless a planted bug forgets what is under way.
#[inline(always)]
fn is_settled<F: Fabric>(fabric: &F, mark: u64) -> bool {
    planted::is(Bug::ForgetsWhatIsUnderWay) || fabric.is_settled(mark)
}

impl<F: Fabric> Drop for Pin<'_, F> {
    fn drop(&mut self) {
        let ended = self.session.unpin(self.fabric, self.epoch);
        debug_assert!(
            ended.is_ok(),
            "the home region is mapped and writable: it was when we began"
        );
    }
}

/// A grace period under way: what it waits for.
#[derive(Debug)]
pub struct Grace {
    /// For each node the epoch that sessions must have announced.
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

    /// Whether every operation that was under way when it began has ended. Never waits; once a
    /// node's sessions have passed they are not asked again.
    pub async fn has_passed<F: Fabric>(&mut self, fabric: &F) -> Result<bool, FabricError> {
        while let Some((node, sessions, epoch)) = self.awaited.last().copied() {
            let at = RemoteAddr::new(node, SESSIONS_OFFSET);
            let bytes = (sessions as u64 * SESSION_BYTES) as usize;
            let (slots, done) = fabric.read(at, bytes, Buf::with_capacity(bytes)).await;
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
