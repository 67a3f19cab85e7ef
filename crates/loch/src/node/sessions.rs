//! A node's session slots: who has which.
//!
//! A session is a client's presence in the node's memory: grace periods wait for it, and what it
//! leased is its own. It belongs to a process; the node frees its slot when the client says so,
//! when the connection it was opened on is closed, or when its process is gone.
//!
//! # Invariants
//! 1. The low half of an incarnation is the node's number and a counter of 24 bits, not 0, and
//!    never that of a session that lives: chunk descriptors name their owners by it.
//! 2. A slot shows `announced = 0` before it shows an incarnation, so a grace period never waits
//!    for what the slot's last session announced.
//! 3. What is held here is in the slots; what is in the slots and not here is of the dead.
//! 4. Where clients reach memory over a network, the slot of a session that has ended shows it, and
//!    what it leased is taken for its own, until it was *fenced*: until nothing that its client
//!    posted, anywhere, can be executed any more. Meanwhile the session is *dying*.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use loch_engines::region::{INCARNATION_OFFSET, SESSION_BYTES, SESSIONS_OFFSET};
use loch_fabric::shm::Region;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::memory::Member;

/// The slot of the node's own scrubber.
pub(crate) const SCRUBBER_SLOT: u32 = 0;

/// Bits of the counter in an incarnation's low half; the node's number is above it.
const COUNTER_BITS: u32 = 24;

/// A process, told apart from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks since it booted.
    pub started: u64,
}

/// An open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Its slot.
    pub slot: u32,
    /// Names it among all sessions that ever held the slot.
    pub incarnation: u64,
}

/// The session slots of one node.
pub(crate) struct Sessions {
    region: Arc<Region>,
    node: u8,
    /// The last slot of a client. Those behind it are the workers'.
    last_client: u32,
    /// Whether sessions are fenced before their slots are freed: invariant 4.
    fenced: bool,
    /// Who holds each slot.
    slots: Mutex<Vec<Option<Held>>>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    incarnation: u64,
    process: Process,
    /// How it ended, if it is dying.
    dying: Option<End>,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its client says that it holds nothing any more.
    Left,
    /// Its client is gone.
    Died,
}

impl Held {
    fn lives(&self) -> bool {
        self.dying.is_none()
    }
}

impl Process {
    /// The process of that number, if it can be seen.
    pub fn of_pid(pid: u32) -> Option<Self> {
        Some(Self { pid, started: start_time(&stat_of(pid).ok()?)? })
    }

    /// Whether it lives no more. Only the kernel's word that there is no such process counts, not
    /// that it could not be asked.
    pub fn is_gone(self) -> bool {
        self.is_gone_by(stat_of(self.pid))
    }

    fn is_gone_by(self, stat: io::Result<String>) -> bool {
        match stat {
            Ok(stat) => start_time(&stat).is_some_and(|started| started != self.started),
            // The second: it ended between two system calls.
            Err(error) => {
                error.kind() == ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
            }
        }
    }

    /// This process.
    pub fn own() -> Self {
        let pid = std::process::id();
        // Without /proc nobody can be told from a later process: then no session outlives its node.
        Self::of_pid(pid).unwrap_or(Self { pid, started: 0 })
    }
}

fn stat_of(pid: u32) -> io::Result<String> {
    std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))
}

/// Field 22 of `/proc/<pid>/stat`. The name, field 2, is in parentheses and may hold anything. The
/// state is not asked: threads may live on in a process whose first one is a zombie.
fn start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

impl Sessions {
    /// The slots of a region, as they were left: sessions of processes that live are kept, the
    /// others' end: of those that are not `fenced` first the slots are freed. The second is how
    /// many have ended.
    pub fn restore(node: &Member, fenced: bool) -> (Self, usize) {
        let sessions = Self {
            region: node.region().clone(),
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
                continue;
            }
            let process = Process { pid: word(PID) as u32, started: word(STARTED) };
            // Whoever has the region's lock is the node: scrubber and workers of the last one are
            // gone.
            let held = Held { incarnation, process, dying: None };
            if sessions.is_clients(slot) && !process.is_gone() {
                sessions.slots()[slot as usize] = Some(held);
                continue;
            }
            ended += 1;
            if fenced {
                let dying = Some(End::Died);
                sessions.slots()[slot as usize] = Some(Held { dying, ..held });
            } else {
                sessions.word(slot, INCARNATION).store(0, Ordering::Release);
            }
        }
        (sessions, ended)
    }

    /// Opens a session for a client; `None` if all slots are taken.
    pub fn open(&self, process: Process) -> Option<Opened> {
        let mut slots = self.slots();
        let is_free = |at: &usize| match slots[*at] {
            None => true,
            // Its client could not reach us, and freed the slot itself.
            Some(held) => !self.shows(*at as u32, held.incarnation),
        };
        let slot = self.client_slots().find(is_free)?;
        Some(self.take(&mut slots, slot as u32, process))
    }

    /// Opens the session of the worker whose slot it is; `None` while that of the worker before is
    /// dying. There is one worker of a slot at a time.
    ///
    /// # Panics
    /// If it is no worker's slot, or the worker before has not ended.
    pub fn open_worker(&self, slot: u32) -> Option<Opened> {
        assert!(slot > self.last_client, "slot {slot} is a client's");
        let mut slots = self.slots();
        let held = slots[slot as usize];
        assert!(!held.is_some_and(|held| held.lives()), "the worker of slot {slot} has not ended");
        held.is_none().then(|| self.take(&mut slots, slot, Process::own()))
    }

    /// Whether a session's slot is a worker's.
    #[cfg(feature = "verbs")]
    pub fn is_workers(&self, session: Opened) -> bool {
        session.slot > self.last_client
    }

    /// Ends the session of a worker.
    pub fn close_worker(&self, session: Opened, how: End) {
        self.end(session, Process::own(), how);
    }

    fn is_clients(&self, slot: u32) -> bool {
        self.client_slots().contains(&(slot as usize))
    }

    fn client_slots(&self) -> std::ops::RangeInclusive<usize> {
        SCRUBBER_SLOT as usize + 1..=self.last_client as usize
    }

    /// Opens the scrubber's session; `None` while that of the last node's scrubber is dying.
    pub fn open_scrubber(&self) -> Option<Opened> {
        let mut slots = self.slots();
        let free = slots[SCRUBBER_SLOT as usize].is_none();
        free.then(|| self.take(&mut slots, SCRUBBER_SLOT, Process::own()))
    }

    /// Ends the scrubber's session.
    pub fn close_scrubber(&self, session: Opened) {
        self.end(session, Process::own(), End::Died);
    }

    fn take(&self, slots: &mut [Option<Held>], slot: u32, process: Process) -> Opened {
        let live = slots.iter().flatten().map(|held| held.incarnation as u32);
        let live: HashSet<u32> = live.collect();
        let incarnation = self.fresh_incarnation(&live);
        self.word(slot, ANNOUNCED).store(0, Ordering::Release);
        self.word(slot, PID).store(process.pid as u64, Ordering::Release);
        self.word(slot, STARTED).store(process.started, Ordering::Release);
        // Invariant 2: last, and before anybody is told.
        self.word(slot, INCARNATION).store(incarnation, Ordering::SeqCst);
        slots[slot as usize] = Some(Held { incarnation, process, dying: None });
        Opened { slot, incarnation }
    }

    fn fresh_incarnation(&self, live: &HashSet<u32>) -> u64 {
        // The node alone writes the word, one thread at a time. A client can, and may not: so it is
        // read once, and whatever it holds, the next number that will do is not far.
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

    /// Ends the session of a client's process; whether there was one.
    pub fn close(&self, session: Opened, process: Process, how: End) -> bool {
        // A client in the node's own process must not name the scrubber's, or a worker's.
        self.is_clients(session.slot) && self.end(session, process, how)
    }

    fn end(&self, session: Opened, process: Process, how: End) -> bool {
        let mut slots = self.slots();
        let Some(held) = slots.get_mut(session.slot as usize) else {
            return false;
        };
        let is_it = |h: &Held| h.lives() && h.incarnation == session.incarnation;
        if !held.as_ref().is_some_and(|h| is_it(h) && h.process == process) {
            return false;
        }
        self.end_held(held, session.slot, how);
        true
    }

    fn end_held(&self, held: &mut Option<Held>, slot: u32, how: End) {
        match held {
            Some(h) if self.fenced => h.dying = Some(how),
            _ => {
                if let Some(h) = held.take() {
                    self.free(Opened { slot, incarnation: h.incarnation });
                }
            }
        }
    }

    /// Frees the slot of a session that is dying and was fenced; how it ended.
    #[cfg(any(test, feature = "verbs"))]
    pub fn bury(&self, session: Opened) -> Option<End> {
        let mut slots = self.slots();
        let held = slots.get_mut(session.slot as usize)?;
        let how = held.filter(|h| h.incarnation == session.incarnation)?.dying?;
        *held = None;
        self.free(session);
        Some(how)
    }

    /// The sessions that are to be fenced.
    #[cfg(any(test, feature = "verbs"))]
    pub fn dying(&self) -> Vec<Opened> {
        self.all_that(|held| !held.lives())
    }

    /// Whether a session lives.
    #[cfg(feature = "verbs")]
    pub fn lives(&self, session: Opened) -> bool {
        let held = self.slots().get(session.slot as usize).copied().flatten();
        held.is_some_and(|held| held.lives() && held.incarnation == session.incarnation)
    }

    /// The sessions that live, the scrubber's among them.
    #[cfg(any(test, feature = "verbs"))]
    pub fn living(&self) -> Vec<Opened> {
        self.all_that(Held::lives)
    }

    #[cfg(any(test, feature = "verbs"))]
    fn all_that(&self, is_so: impl Fn(&Held) -> bool) -> Vec<Opened> {
        let slots = self.slots();
        let held = slots.iter().enumerate().filter_map(|(slot, held)| Some((slot, held.as_ref()?)));
        held.filter(|(_, held)| is_so(held))
            .map(|(slot, held)| Opened { slot: slot as u32, incarnation: held.incarnation })
            .collect()
    }

    /// Whether a client's process holds this session.
    pub fn holds(&self, session: Opened, process: Process) -> bool {
        let slots = self.slots();
        let held = slots.get(session.slot as usize).copied().flatten();
        held.is_some_and(|held| {
            held.lives() && held.incarnation == session.incarnation && held.process == process
        })
    }

    /// Ends all sessions of a client's process; how many there were.
    pub fn close_all_of(&self, process: Process) -> usize {
        let mut slots = self.slots();
        let mut closed = 0;
        for slot in self.client_slots() {
            let held = &mut slots[slot];
            if held.is_some_and(|h| h.lives() && h.process == process) {
                self.end_held(held, slot as u32, End::Died);
                closed += 1;
            }
        }
        closed
    }

    /// The processes of clients that hold a session.
    pub fn processes(&self) -> HashSet<Process> {
        let slots = self.slots();
        let clients = slots[self.client_slots()].iter().flatten();
        clients.filter(|held| held.lives()).map(|held| held.process).collect()
    }

    /// Whether a client of that process holds a session.
    pub fn has_any_of(&self, process: Process) -> bool {
        let slots = self.slots();
        let mut clients = slots[self.client_slots()].iter().flatten();
        clients.any(|held| held.lives() && held.process == process)
    }

    /// The low halves of the incarnations of all sessions that live or are dying.
    pub fn live(&self) -> HashSet<u32> {
        let slots = self.slots();
        slots.iter().flatten().map(|h| h.incarnation as u32).collect()
    }

    /// Whether a descriptor's owner is, or was, a session of this node.
    pub fn is_ours(&self, owner: u32) -> bool {
        owner >> COUNTER_BITS == self.node as u32
    }

    fn free(&self, session: Opened) {
        let word = self.word(session.slot, INCARNATION);
        let _ = word.compare_exchange(session.incarnation, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    fn shows(&self, slot: u32, incarnation: u64) -> bool {
        self.word(slot, INCARNATION).load(Ordering::Acquire) == incarnation
    }

    fn word(&self, slot: u32, field: u64) -> &std::sync::atomic::AtomicU64 {
        slot_word(&self.region, slot, field)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Held>>> {
        self.slots.lock().expect("nothing panics while it is held")
    }
}

/// The incarnation that a slot of a node shows, if there is one and the node's region is mapped.
pub(crate) fn incarnation_in(node: &Member, slot: u32) -> Option<u64> {
    let region = node.mapped().filter(|_| slot < node.header.sessions)?;
    let incarnation = slot_word(region, slot, INCARNATION).load(Ordering::SeqCst);
    (incarnation != 0).then_some(incarnation)
}

/// Frees the slot of a session whose node cannot be told: the client's own hand, for when its
/// node's process is down.
pub(crate) fn free_own_slot(region: &Region, session: Opened) {
    let word = slot_word(region, session.slot, INCARNATION);
    let _ = word.compare_exchange(session.incarnation, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Gives up the slot of a session whose node cannot be told, where sessions are fenced: the next
/// node takes its process for dead.
#[cfg(feature = "verbs")]
pub(crate) fn abandon_own_slot(region: &Region, session: Opened) {
    let word = |field| slot_word(region, session.slot, field);
    if word(INCARNATION).load(Ordering::Acquire) == session.incarnation {
        word(PID).store(0, Ordering::Release);
    }
}

/// Fields of a slot.
const INCARNATION: u64 = 0;
const ANNOUNCED: u64 = 8;
const PID: u64 = 16;
const STARTED: u64 = 24;

fn slot_word(region: &Region, slot: u32, field: u64) -> &std::sync::atomic::AtomicU64 {
    region.word(SESSIONS_OFFSET + slot as u64 * SESSION_BYTES + field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EmbeddedConfig;

    fn node(sessions: u32) -> Member {
        let config = EmbeddedConfig {
            memory: crate::ByteSize::new(4 << 20),
            sessions,
            ..EmbeddedConfig::default()
        };
        let plan = crate::plan::of_embedded(&config).unwrap().remove(0);
        let region = Region::anonymous(plan.header.region_bytes).unwrap();
        super::super::region::format(&region, &plan).unwrap();
        Member::read("test".into(), "".into(), Arc::new(region)).unwrap()
    }

    const GONE: Process = Process { pid: u32::MAX >> 2, started: 1 };

    #[test]
    fn slots_are_taken_and_freed_and_run_out() {
        let node = node(2);
        let (sessions, freed) = Sessions::restore(&node, false);
        assert_eq!(freed, 0);
        let own = Process::own();
        let (a, b) = (sessions.open(own).unwrap(), sessions.open(own).unwrap());
        assert_eq!((a.slot, b.slot, sessions.open(own)), (1, 2, None));
        assert_eq!(node.client_sessions_taken(), Some(2));
        assert!(!sessions.close(a, GONE, End::Left), "it is another's");
        assert!(sessions.close(a, own, End::Left) && !sessions.close(a, own, End::Left));
        let c = sessions.open(own).unwrap();
        assert_eq!(c.slot, a.slot);
        assert_ne!(c.incarnation as u32, a.incarnation as u32);
        let scrubber = sessions.open_scrubber().unwrap();
        assert!(!sessions.close(scrubber, own, End::Left), "it is no client's");
        assert_eq!(sessions.close_all_of(own), 2);
        sessions.close_scrubber(scrubber);
        assert!(sessions.live().is_empty());
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
        // 0 is skipped because it is 0, 1 because it lives.
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

    #[test]
    fn a_fenced_session_keeps_its_slot_until_it_is_buried() {
        let node = node(2);
        let (sessions, _) = Sessions::restore(&node, true);
        let own = Process::own();
        let scrubber = sessions.open_scrubber().unwrap();
        let (a, b) = (sessions.open(own).unwrap(), sessions.open(own).unwrap());
        assert!(sessions.close(a, own, End::Left) && !sessions.close(a, own, End::Left));
        assert!(!sessions.holds(a, own) && sessions.holds(b, own));
        assert_eq!((sessions.dying(), sessions.living()), (vec![a], vec![scrubber, b]));
        assert_eq!((sessions.live().len(), sessions.open(own)), (3, None));
        assert_eq!(sessions.bury(b), None, "it lives");
        assert_eq!((sessions.bury(a), sessions.bury(a)), (Some(End::Left), None));
        assert_eq!(sessions.open(own).unwrap().slot, a.slot);

        // The next node: the scrubber of this one is dead, and so is who is gone.
        sessions.close_all_of(own);
        for session in sessions.dying() {
            sessions.bury(session);
        }
        let gone = sessions.open(GONE).unwrap();
        let (restarted, ended) = Sessions::restore(&node, true);
        assert_eq!((restarted.dying(), ended), (vec![scrubber, gone], 2));
        assert_eq!(restarted.open_scrubber(), None);
        assert_eq!(restarted.bury(scrubber), Some(End::Died));
        assert!(restarted.open_scrubber().is_some());
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
        assert!(!sessions.close(first, own, End::Left), "it must not end the second");
    }

    #[test]
    fn a_start_time_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        for name in ["sh", "a) b (c", ") S 1 2", ""] {
            let stat = format!("77 ({name}) {}", fields.join(" "));
            assert_eq!(start_time(&stat), Some(22), "{name}");
        }
        assert_eq!(start_time("77 (sh) S 1"), None);
        assert!(Process::own().started > 0);
    }

    #[test]
    fn a_process_is_gone_if_the_kernel_says_so_and_not_if_it_cannot_be_asked() {
        let own = Process::own();
        assert!(!own.is_gone() && GONE.is_gone());
        assert!(
            Process { started: own.started + 1, ..own }.is_gone(),
            "a later one has its number"
        );
        for (errno, gone) in [
            (Errno::NOENT, true),
            (Errno::SRCH, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOMEM, false),
            (Errno::ACCESS, false),
        ] {
            assert_eq!(own.is_gone_by(Err(errno.into())), gone, "{errno}");
        }
        assert!(!own.is_gone_by(Ok("no line of that kind".into())));
    }
}
