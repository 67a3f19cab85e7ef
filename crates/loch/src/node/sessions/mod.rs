//! The session slots of a node and the sessions that hold them.
//!
//! A session is a client's presence in the node's memory: grace periods wait for it, and it owns
//! what it leased. A session belongs to a process. The node frees its slot when the client says so,
//! when the connection over which it was opened is closed, or when its process is gone.
//!
//! # Invariants
//! 1. The low half of an incarnation is the node's number and a counter of 24 bits. It is not 0 and
//!    differs from those of all sessions that live, because chunk descriptors name their owners by
//!    it.
//! 2. A slot shows `announced = 0` before it shows an incarnation, so a grace period never waits
//!    for an epoch that the slot's last session announced.
//! 3. Every session in [`Sessions`] is in its slot. A session that is in a slot but not in
//!    [`Sessions`] is dead.
//! 4. Where clients reach memory over a network, the slot of a session that has ended still shows
//!    the session, and its leases stay, until the session was *fenced*: no verb that its client
//!    posted can be executed on any node any more. Until then the session is *dying*.
//! 5. A slot that shows no incarnation, or a new one, has no pins.
//! 6. A session that has left something to the scrubber says so in its slot. The scrubber takes the
//!    word back before it looks for what was left. A session that ends with the word set counts as
//!    dead.

mod fencing;

use std::collections::HashSet;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) use loch_engines::region::SCRUBBER_SLOT;
use loch_engines::region::{INCARNATION_OFFSET, PINS_BYTES, pins_offset, session_bell_addr};
use loch_fabric::RegionId;
use loch_fabric::shm::{Bell, Region};

use crate::layout::memory::Member;
use crate::session::slot::{
    ANNOUNCED, INCARNATION, LEFT, PID, Process, STARTED, SessionId, slot_word,
};
use crate::session::slot_lock::is_locked;

/// Bits of the counter in an incarnation's low half; the node's number is above it.
const COUNTER_BITS: u32 = 24;

/// The session slots of one node.
pub(crate) struct Sessions {
    region: Arc<Region>,
    /// All slots of the region.
    all: u32,
    node: u8,
    /// The last slot of a client. The slots behind it are the workers'.
    last_client: u32,
    /// Whether sessions are fenced before their slots are freed: invariant 4.
    fenced: bool,
    /// The session in each slot.
    slots: Mutex<Vec<Option<HeldSlot>>>,
}

#[derive(Clone, Copy, Debug)]
struct HeldSlot {
    incarnation: u64,
    process: Process,
    /// How the session ended, if it is dying.
    dying: Option<SessionEnd>,
    /// Whether a node before this one has opened the session.
    is_kept: bool,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The client has said that it holds nothing any more.
    Left,
    /// The client is gone, or has left something to the scrubber.
    Died,
}

impl HeldSlot {
    fn lives(&self) -> bool {
        self.dying.is_none()
    }
}

impl Sessions {
    /// Takes over the slots of a region. Sessions of processes that live are kept, all others end.
    /// If sessions are `fenced`, the slots of ended sessions are freed later, else at once. The
    /// second value is the number of sessions that have ended.
    pub fn restore(node: &Member, fenced: bool) -> (Self, usize) {
        let sessions = Self {
            region: node.region().clone(),
            all: node.header.sessions,
            node: node.header.node as u8,
            last_client: node.client_sessions(),
            fenced,
            slots: Mutex::new(vec![None; node.header.sessions as usize]),
        };
        let mut ended = 0;
        for slot in 0..node.header.sessions {
            let word = |field| sessions.word(slot, field).load(Ordering::Acquire);
            let incarnation = word(INCARNATION);
            if incarnation == 0 {
                // Its client may have freed it while the node was down, and left its pins.
                sessions.clear_pins(slot);
                ended += usize::from(sessions.takes_back(slot));
                continue;
            }
            let process = Process { pid: word(PID) as u32, started: word(STARTED) };
            // This process has the region's lock, so the scrubber and the workers of the last node
            // are gone.
            let is_here = !process.is_unseen() && !process.is_gone();
            // The node before may have seen processes that this one does not see.
            let process = if is_here { process } else { process.unseen_in(slot) };
            let held = HeldSlot { incarnation, process, dying: None, is_kept: true };
            let lives = is_here || is_locked(node.region(), slot);
            if sessions.is_clients(slot) && lives {
                sessions.slots()[slot as usize] = Some(held);
                continue;
            }
            ended += 1;
            if fenced {
                let dying = Some(SessionEnd::Died);
                sessions.slots()[slot as usize] = Some(HeldSlot { dying, ..held });
            } else {
                sessions.clear_pins(slot);
                sessions.word(slot, INCARNATION).store(0, Ordering::Release);
            }
        }
        (sessions, ended)
    }

    /// Opens a session for a client. Returns `None` if all slots are taken.
    pub fn open(&self, process: Process) -> Option<SessionId> {
        let mut slots = self.slots();
        let is_free = |at: &usize| match slots[*at] {
            None => true,
            // The client could not reach the node, and freed the slot itself.
            Some(held) => !self.shows(*at as u32, held.incarnation),
        };
        let slot = self.client_slots().find(is_free)?;
        Some(self.take(&mut slots, slot as u32, process))
    }

    /// Opens the session of a worker in the worker's slot. Returns `None` while the session of the
    /// worker before is dying. A slot has one worker at a time.
    ///
    /// # Panics
    /// If the slot is not a worker's, or the worker before has not ended.
    pub fn open_worker(&self, slot: u32) -> Option<SessionId> {
        assert!(slot > self.last_client, "slot {slot} is a client's");
        let mut slots = self.slots();
        let held = slots[slot as usize];
        assert!(!held.is_some_and(|held| held.lives()), "the worker of slot {slot} has not ended");
        held.is_none().then(|| self.take(&mut slots, slot, Process::own()))
    }

    /// Ends the session of a worker.
    pub fn close_worker(&self, session: SessionId, how: SessionEnd) {
        self.end(session, Process::own(), how);
    }

    fn is_clients(&self, slot: u32) -> bool {
        self.client_slots().contains(&(slot as usize))
    }

    fn client_slots(&self) -> std::ops::RangeInclusive<usize> {
        SCRUBBER_SLOT as usize + 1..=self.last_client as usize
    }

    /// Opens the scrubber's session. Returns `None` while the session of the last node's scrubber
    /// is dying.
    pub fn open_scrubber(&self) -> Option<SessionId> {
        let mut slots = self.slots();
        let free = slots[SCRUBBER_SLOT as usize].is_none();
        free.then(|| self.take(&mut slots, SCRUBBER_SLOT, Process::own()))
    }

    /// Ends the scrubber's session.
    pub fn close_scrubber(&self, session: SessionId) {
        self.end(session, Process::own(), SessionEnd::Died);
    }

    fn take(&self, slots: &mut [Option<HeldSlot>], slot: u32, process: Process) -> SessionId {
        let live = slots.iter().flatten().map(|held| held.incarnation as u32);
        let live: HashSet<u32> = live.collect();
        let incarnation = self.fresh_incarnation(&live);
        self.clear_pins(slot);
        self.word(slot, ANNOUNCED).store(0, Ordering::Release);
        self.word(slot, LEFT).store(0, Ordering::Release);
        self.word(slot, PID).store(process.pid as u64, Ordering::Release);
        self.word(slot, STARTED).store(process.started, Ordering::Release);
        // Invariant 2: the incarnation is stored last, before any client learns of the session.
        self.word(slot, INCARNATION).store(incarnation, Ordering::SeqCst);
        slots[slot as usize] = Some(HeldSlot { incarnation, process, dying: None, is_kept: false });
        SessionId { slot, incarnation }
    }

    fn fresh_incarnation(&self, live: &HashSet<u32>) -> u64 {
        // Only the node writes the word, one thread at a time. A client is able to write it,
        // although it must not. The word is therefore read once, and from any value the next free
        // number is near.
        let word = self.region.word(INCARNATION_OFFSET);
        let mut count = word.load(Ordering::SeqCst);
        loop {
            count = count.wrapping_add(1);
            let counter = count & ((1 << COUNTER_BITS) - 1);
            let low = (self.node as u64) << COUNTER_BITS | counter;
            if counter != 0 && !live.contains(&(low as u32)) {
                word.store(count, Ordering::SeqCst);
                return count >> COUNTER_BITS << 32 | low;
            }
        }
    }

    /// Ends the session of a client's process, if there is one. Returns how it ended.
    pub fn close(
        &self,
        session: SessionId,
        process: Process,
        how: SessionEnd,
    ) -> Option<SessionEnd> {
        // A client in the node's own process must not end the session of the scrubber or of a
        // worker.
        self.is_clients(session.slot).then(|| self.end(session, process, how)).flatten()
    }

    fn end(&self, session: SessionId, process: Process, how: SessionEnd) -> Option<SessionEnd> {
        let mut slots = self.slots();
        let held = slots.get_mut(session.slot as usize)?;
        let is_it = |h: &HeldSlot| h.lives() && h.incarnation == session.incarnation;
        held.as_ref().filter(|h| is_it(h) && h.process == process)?;
        Some(self.end_held(held, session.slot, how))
    }

    fn end_held(&self, held: &mut Option<HeldSlot>, slot: u32, how: SessionEnd) -> SessionEnd {
        let how = if self.takes_back(slot) { SessionEnd::Died } else { how };
        match held {
            Some(h) if self.fenced => h.dying = Some(how),
            _ => {
                if let Some(h) = held.take() {
                    self.free(SessionId { slot, incarnation: h.incarnation });
                }
            }
        }
        how
    }

    /// Returns whether a client's process holds this session.
    pub fn holds(&self, session: SessionId, process: Process) -> bool {
        let slots = self.slots();
        let held = slots.get(session.slot as usize).copied().flatten();
        held.is_some_and(|held| {
            held.lives() && held.incarnation == session.incarnation && held.process == process
        })
    }

    /// Ends all sessions of a client's process, and returns their number.
    pub fn close_all_of(&self, process: Process) -> usize {
        let mut slots = self.slots();
        let mut closed = 0;
        for slot in self.client_slots() {
            let held = &mut slots[slot];
            if held.is_some_and(|h| h.lives() && h.process == process) {
                self.end_held(held, slot as u32, SessionEnd::Died);
                closed += 1;
            }
        }
        closed
    }

    /// Ends the sessions of a client's process whose slots it has not locked, and returns their
    /// number. The process is none that this node watches.
    pub fn close_unlocked_of(&self, process: Process) -> usize {
        let mut slots = self.slots();
        let mut closed = 0;
        for slot in self.client_slots() {
            let held = &mut slots[slot];
            if held.is_some_and(|h| h.lives() && h.is_kept && h.process == process)
                && !is_locked(&self.region, slot as u32)
            {
                self.end_held(held, slot as u32, SessionEnd::Died);
                closed += 1;
            }
        }
        closed
    }

    /// Returns whether a client has held its session since before this node's process.
    pub fn have_kept(&self) -> bool {
        self.slots().iter().flatten().any(|held| held.lives() && held.is_kept)
    }

    /// The processes of clients that hold a session.
    pub fn processes(&self) -> HashSet<Process> {
        let slots = self.slots();
        let clients = slots[self.client_slots()].iter().flatten();
        clients.filter(|held| held.lives()).map(|held| held.process).collect()
    }

    /// Returns whether a client of that process holds a session.
    pub fn has_any_of(&self, process: Process) -> bool {
        let slots = self.slots();
        let mut clients = slots[self.client_slots()].iter().flatten();
        clients.any(|held| held.lives() && held.process == process)
    }

    /// Returns whether a session says that it has left something to the scrubber.
    pub fn have_left(&self) -> bool {
        let slots = self.slots();
        let mut held = (0..self.all).filter(|slot| slots[*slot as usize].is_some());
        held.any(|slot| self.word(slot, LEFT).load(Ordering::Acquire) != 0)
    }

    /// The same, and takes the words back: invariant 6.
    pub fn take_back(&self) -> bool {
        let slots = self.slots();
        let held = (0..self.all).filter(|slot| slots[*slot as usize].is_some());
        held.filter(|slot| self.takes_back(*slot)).count() > 0
    }

    fn takes_back(&self, slot: u32) -> bool {
        let word = self.word(slot, LEFT);
        let has_left = word.load(Ordering::Acquire) != 0 && word.swap(0, Ordering::SeqCst) != 0;
        // What the scrubber looks at from now on shows all that was left before a client saw the
        // word still set.
        fence(Ordering::SeqCst);
        has_left
    }

    /// The bell at which the scrubber sleeps.
    pub fn scrubber_bell(&self) -> Bell {
        let at = session_bell_addr(RegionId(self.node), SCRUBBER_SLOT);
        Bell::new(self.region.clone(), at).expect("the node's own region has slots to write")
    }

    /// The low halves of the incarnations of all sessions that live or are dying.
    pub fn live(&self) -> HashSet<u32> {
        let slots = self.slots();
        slots.iter().flatten().map(|h| h.incarnation as u32).collect()
    }

    /// Returns whether a descriptor's owner is, or was, a session of this node.
    pub fn is_ours(&self, owner: u32) -> bool {
        owner >> COUNTER_BITS == self.node as u32
    }

    fn free(&self, session: SessionId) {
        self.clear_pins(session.slot);
        let word = self.word(session.slot, INCARNATION);
        let _ = word.compare_exchange(session.incarnation, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    fn clear_pins(&self, slot: u32) {
        let first = pins_offset(self.all, slot);
        let pins = (first..first + PINS_BYTES).step_by(size_of::<u64>());
        pins.for_each(|offset| self.region.word(offset).store(0, Ordering::Release));
    }

    fn shows(&self, slot: u32, incarnation: u64) -> bool {
        self.word(slot, INCARNATION).load(Ordering::Acquire) == incarnation
    }

    fn word(&self, slot: u32, field: u64) -> &std::sync::atomic::AtomicU64 {
        slot_word(&self.region, slot, field)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<HeldSlot>>> {
        self.slots.lock().expect("nothing panics while it is held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EmbeddedConfig;
    use crate::session::slot::free_own_slot;

    pub(super) fn node(sessions: u32) -> Member {
        let config = EmbeddedConfig {
            memory: crate::ByteSize::new(4 << 20),
            sessions,
            ..EmbeddedConfig::default()
        };
        let plan = crate::layout::plan::of_embedded(&config).unwrap().remove(0);
        let region = Region::anonymous(plan.header.region_bytes).unwrap();
        crate::node::region::format(&region, &plan).unwrap();
        Member::read("test".into(), "".into(), Arc::new(region)).unwrap()
    }

    pub(super) const GONE: Process = Process { pid: u32::MAX >> 2, started: 1 };

    #[test]
    fn slots_are_taken_and_freed_and_run_out() {
        let node = node(2);
        let (sessions, freed) = Sessions::restore(&node, false);
        assert_eq!(freed, 0);
        let own = Process::own();
        let (a, b) = (sessions.open(own).unwrap(), sessions.open(own).unwrap());
        assert_eq!((a.slot, b.slot, sessions.open(own)), (1, 2, None));
        assert_eq!(node.client_sessions_taken(), Some(2));
        assert_eq!(sessions.close(a, GONE, SessionEnd::Left), None, "it is another's");
        let leaves = |session| sessions.close(session, own, SessionEnd::Left);
        assert_eq!((leaves(a), leaves(a)), (Some(SessionEnd::Left), None));
        let c = sessions.open(own).unwrap();
        assert_eq!(c.slot, a.slot);
        assert_ne!(c.incarnation as u32, a.incarnation as u32);
        let scrubber = sessions.open_scrubber().unwrap();
        assert_eq!(leaves(scrubber), None, "it is no client's");
        assert_eq!(sessions.close_all_of(own), 2);
        sessions.close_scrubber(scrubber);
        assert!(sessions.live().is_empty());
    }

    /// A session that ended in order left its entries for good.
    #[test]
    fn a_session_that_has_left_something_is_noticed_and_counts_as_dead_when_it_ends() {
        for fenced in [false, true] {
            let node = node(4);
            let (sessions, _) = Sessions::restore(&node, fenced);
            let own = Process::own();
            let [a, b] = [(); 2].map(|()| sessions.open(own).unwrap());
            let leave = |session: SessionId| {
                slot_word(node.region(), session.slot, LEFT).store(1, Ordering::Relaxed);
            };
            assert!(!sessions.have_left() && !sessions.take_back());
            leave(a);
            assert!(sessions.have_left() && sessions.take_back());
            assert!(!sessions.have_left(), "it was taken back");
            assert_eq!(sessions.close(a, own, SessionEnd::Left), Some(SessionEnd::Left));
            leave(b);
            assert_eq!(sessions.close(b, own, SessionEnd::Left), Some(SessionEnd::Died));
            let ends = [a, b].map(|session| sessions.reap(session));
            let expected = [SessionEnd::Left, SessionEnd::Died].map(|how| fenced.then_some(how));
            assert_eq!(ends, expected);
            // Its node was down when it ended.
            leave(a);
            assert_eq!(Sessions::restore(&node, fenced).1, 1);
        }
    }

    #[test]
    fn an_incarnation_is_never_zero_nor_one_that_lives() {
        let node = node(8);
        let (sessions, _) = Sessions::restore(&node, false);
        let own = Process::own();
        let counter = node.region().word(INCARNATION_OFFSET);
        counter.store(0, Ordering::Relaxed);
        let first = sessions.open(own).unwrap();
        counter.store((1 << COUNTER_BITS) - 1, Ordering::Relaxed);
        let next = sessions.open(own).unwrap();
        // The counter skips 0, and 1 because that session lives.
        assert_eq!((first.incarnation, next.incarnation), (1, 1 << 32 | 2));
    }

    #[test]
    fn a_restart_keeps_the_sessions_of_processes_that_live() {
        let node = node(8);
        let (sessions, _) = Sessions::restore(&node, false);
        let kept = sessions.open(Process::own()).unwrap();
        sessions.open(GONE).unwrap();
        sessions.open_scrubber().unwrap();
        let (restarted, freed) = Sessions::restore(&node, false);
        assert_eq!((restarted.live().len(), freed), (1, 2));
        assert!(restarted.live().contains(&(kept.incarnation as u32)));
        assert_eq!(restarted.processes(), HashSet::from([Process::own()]));
        assert_eq!(node.client_sessions_taken(), Some(1));
    }

    /// However a session ends, its pins hold nothing back any more; those of others stay.
    #[test]
    fn the_pins_of_a_session_end_before_its_slot_has_another() {
        let node = node(8);
        let (sessions, _) = Sessions::restore(&node, false);
        let own = Process::own();
        let pins = |session: SessionId| {
            node.region().word(pins_offset(node.header.sessions, session.slot))
        };
        let pinned = |process| {
            let session = sessions.open(process).unwrap();
            pins(session).store(7, Ordering::Relaxed);
            session
        };
        let holds = |session| pins(session).load(Ordering::Relaxed) == 7;
        let (kept, freed, dead) = (pinned(own), pinned(own), pinned(GONE));
        free_own_slot(node.region(), freed);
        let (sessions, _) = Sessions::restore(&node, false);
        assert_eq!([kept, freed, dead].map(holds), [true, false, false]);
        free_own_slot(node.region(), kept);
        assert_eq!(sessions.open(own).unwrap().slot, kept.slot);
        assert!(!holds(kept));
    }

    #[test]
    fn a_slot_that_its_client_freed_is_used_again() {
        let node = node(1);
        let (sessions, _) = Sessions::restore(&node, false);
        let own = Process::own();
        let first = sessions.open(own).unwrap();
        free_own_slot(node.region(), first);
        let second = sessions.open(own).unwrap();
        assert_eq!(second.slot, first.slot);
        let ended = sessions.close(first, own, SessionEnd::Left);
        assert_eq!(ended, None, "it must not end the second");
    }
}
