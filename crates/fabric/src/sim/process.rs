//! Processes: each is a future, with its processor time and its stores under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use super::memory::pieces;
use super::verb::{ProcessId, QueueId};
use crate::{RegionId, RemoteAddr};

/// A process's program.
pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// One process on a node's host.
pub(super) struct Process {
    pub node: RegionId,
    pub alive: bool,
    /// Whether faults may kill it.
    pub mortal: bool,
    /// Whether faults may make it stand still.
    pub restless: bool,
    /// `None` before it starts, after it ended, and while it runs.
    pub task: Option<Task>,
    /// Whether it has its turn; it may have been stopped in the middle of it.
    pub running: bool,
    /// Whether it was stopped in its turn; turns that it should have meanwhile are lost.
    pub stopped: bool,
    /// When it is to run next.
    pub wake_ns: Option<u64>,
    /// It does not run before.
    pub busy_until_ns: u64,
    /// Processor time of the turn it has at this moment.
    pub spent_ns: u64,
    /// Processor time of all turns.
    pub cpu_ns: u64,
    pub slices: Option<Slices>,
    pub stores: Stores,
    /// Verbs posted, and the numbers of those that change memory and may still be executed.
    pub posted: u64,
    pub unsettled: BTreeSet<u64>,
    /// A word that is to be stored when the verbs before a mark have settled.
    pub left: Option<(u64, RemoteAddr, u64)>,
    pub connections: BTreeMap<RegionId, Connection>,
    /// Cut off from all nodes for good, because another process may have its place.
    pub fenced: bool,
    /// Whether it uses the connections that the processes of its host share.
    pub shares: bool,
    pub wall_skew_ms: i64,
    /// Set if it is logic on a card and no program of a processor.
    pub logic: Option<Logic>,
}

impl Process {
    pub fn new(node: RegionId) -> Self {
        Self {
            node,
            alive: true,
            mortal: false,
            restless: false,
            task: None,
            running: false,
            stopped: false,
            wake_ns: None,
            busy_until_ns: 0,
            spent_ns: 0,
            cpu_ns: 0,
            slices: None,
            stores: Stores::default(),
            posted: 0,
            unsettled: BTreeSet::new(),
            left: None,
            connections: BTreeMap::new(),
            fenced: false,
            shares: false,
            wall_skew_ms: 0,
            logic: None,
        }
    }

    /// The first moment from `ns` on at which it has a processor.
    pub fn runs_from(&self, ns: u64) -> u64 {
        let ns = ns.max(self.busy_until_ns);
        self.slices.map_or(ns, |slices| slices.runs_from(ns))
    }

    /// Marks the connection to a node broken, if there is one.
    pub fn disconnect(&mut self, node: RegionId) {
        if let Some(connection) = self.connections.get_mut(&node) {
            connection.works = false;
        }
    }
}

/// A process's connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    /// Whether it was not broken, or was made again.
    pub works: bool,
    /// The node's incarnation when the connection was first made. A node that lost its memory since
    /// is another one.
    pub incarnation: u32,
    /// The host's connection, if the process shares those of its host.
    pub queue: Option<QueueId>,
}

/// A process that is logic on a card.
pub(super) struct Logic {
    pub clock_ns: u64,
    /// Gives it a turn at the next clock. Other processes have no bell: code that polls for ever on
    /// a thread would never end here.
    pub bell: Waker,
}

/// Processes whose bells were rung since the last look.
#[derive(Debug, Default)]
pub(super) struct Rung {
    any: AtomicBool,
    processes: Mutex<Vec<ProcessId>>,
}

struct Bell {
    process: ProcessId,
    rung: Arc<Rung>,
}

impl Rung {
    pub fn bell(rung: &Arc<Rung>, process: ProcessId) -> Waker {
        Waker::from(Arc::new(Bell { process, rung: rung.clone() }))
    }

    /// Takes these processes, in the order of their bells.
    pub fn take(&self) -> Vec<ProcessId> {
        if !self.any.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        std::mem::take(&mut *self.processes.lock().expect("no holder panics"))
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut processes = self.rung.processes.lock().expect("no holder panics");
        if !processes.contains(&self.process) {
            processes.push(self.process);
        }
        self.rung.any.store(true, Ordering::Relaxed);
    }
}

/// The share of a processor that a process has if neither it nor the others on the processor sleep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slices {
    /// It has `on_ns` of every `period_ns`.
    pub period_ns: u64,
    pub on_ns: u64,
    /// The moment of a period at which the simulation began.
    pub phase_ns: u64,
}

impl Slices {
    fn runs_from(self, ns: u64) -> u64 {
        let into = (ns + self.phase_ns) % self.period_ns;
        if into < self.on_ns { ns } else { ns + self.period_ns - into }
    }
}

/// Stores that a process made and that are not in memory yet.
///
/// # Invariants
/// 1. The words of one segment reach memory in any order, but all of them before the words of the
///    next segment.
/// 2. Stores to one word reach it in the order in which they were made.
/// 3. A verb leaves only after all stores made before it are in memory.
#[derive(Debug, Default)]
pub(super) struct Stores {
    /// Stores in the order in which they were made, from the name `first` on. `None` stands for a
    /// store that is in memory already; the first one is not.
    waiting: VecDeque<Option<Store>>,
    first: u64,
    /// Words with waiting stores: how many wait, and the last moment of them. There may be
    /// thousands of stores, and each looks up its word. Never iterated.
    words: BTreeMap<(RegionId, u64), (u32, u64)>,
    /// The last moment of the closed segments.
    closed_ns: u64,
    /// The last moment of all.
    pub drained_ns: u64,
}

/// A piece of a store: bytes of one word.
#[derive(Debug)]
pub(super) struct Store {
    pub at: RemoteAddr,
    bytes: [u8; 8],
    len: u8,
    ns: u64,
}

impl Store {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl Stores {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a store; `when(from)` chooses when each piece reaches memory, not before `from`.
    /// Returns the names of the pieces and their moments.
    pub fn add(
        &mut self,
        at: RemoteAddr,
        bytes: &[u8],
        mut when: impl FnMut(u64) -> u64,
    ) -> Vec<(u64, u64)> {
        let from = self.closed_ns;
        let piece = |(offset, range): (u64, std::ops::Range<usize>)| {
            let mut piece = [0; 8];
            piece[..range.len()].copy_from_slice(&bytes[range.clone()]);
            let (id, len) = (self.first + self.waiting.len() as u64, range.len() as u8);
            let at = RemoteAddr::new(at.region(), offset);
            let (count, last_ns) = self.words.entry(word_of(at)).or_default();
            let ns = when(from.max(*last_ns));
            (*count, *last_ns) = (*count + 1, ns);
            self.waiting.push_back(Some(Store { at, bytes: piece, len, ns }));
            self.drained_ns = self.drained_ns.max(ns);
            (id, ns)
        };
        pieces(at.offset(), bytes.len()).map(piece).collect()
    }

    /// All later stores reach memory after all earlier ones.
    pub fn close_segment(&mut self) {
        self.closed_ns = self.drained_ns;
    }

    /// Takes out a piece that reaches memory now; `None` if it is there already.
    pub fn take(&mut self, id: u64) -> Option<Store> {
        let at = usize::try_from(id.checked_sub(self.first)?).ok()?;
        let store = self.waiting.get_mut(at)?.take()?;
        let word = word_of(store.at);
        let (count, _) = self.words.get_mut(&word).expect("it counts what waits");
        *count -= 1;
        if *count == 0 {
            self.words.remove(&word);
        }
        while let Some(None) = self.waiting.front() {
            self.waiting.pop_front();
            self.first += 1;
        }
        Some(store)
    }

    /// Takes out all pieces, in order: they reach memory at once.
    pub fn take_all(&mut self) -> impl Iterator<Item = Store> + use<> {
        (self.closed_ns, self.drained_ns) = (0, 0);
        self.first += self.waiting.len() as u64;
        self.words.clear();
        std::mem::take(&mut self.waiting).into_iter().flatten()
    }

    /// Forgets stores that would reach memory after `ns`.
    pub fn lose_after(&mut self, ns: u64) {
        let lost = |(at, store): (usize, &Option<Store>)| {
            store.as_ref().is_some_and(|store| store.ns > ns).then_some(self.first + at as u64)
        };
        let lost: Vec<u64> = self.waiting.iter().enumerate().filter_map(lost).collect();
        for id in lost {
            self.take(id);
        }
    }

    /// The aligned word at `at` as the process itself sees it, if memory holds `word`.
    pub fn over(&self, at: RemoteAddr, word: u64) -> u64 {
        if !self.words.contains_key(&word_of(at)) {
            return word;
        }
        let mut seen = word.to_le_bytes();
        for store in self.waiting.iter().flatten() {
            if word_of(store.at) == word_of(at) {
                let skip = (store.at.offset() & 7) as usize;
                seen[skip..skip + store.len as usize].copy_from_slice(store.bytes());
            }
        }
        u64::from_le_bytes(seen)
    }
}

fn word_of(at: RemoteAddr) -> (RegionId, u64) {
    (at.region(), at.offset() / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_own_stores_and_segments_keep_their_order() {
        let mut stores = Stores::default();
        let at = RemoteAddr::new(RegionId(0), 8);
        let first = stores.add(at, &1u64.to_le_bytes(), |from| from + 50);
        stores.close_segment();
        let second = stores.add(at.add(4), &[9; 8], |from| from + 1);
        assert_eq!(first[0].1, 50);
        assert_eq!(second.iter().map(|s| s.1).collect::<Vec<_>>(), [51, 51]);
        assert_eq!(stores.over(at, 0), 1 | 0x0909_0909 << 32);
        assert_eq!(stores.take(first[0].0).unwrap().bytes(), 1u64.to_le_bytes());
        assert!(stores.take(first[0].0).is_none());
        assert_eq!(stores.take_all().count(), 2);
        assert!(stores.is_empty());
    }

    #[test]
    fn a_share_of_a_processor_is_on_and_off() {
        let slices = Slices { period_ns: 10, on_ns: 4, phase_ns: 2 };
        let from: Vec<u64> = (0..12).map(|ns| slices.runs_from(ns)).collect();
        assert_eq!(from, [0, 1, 8, 8, 8, 8, 8, 8, 8, 9, 10, 11]);
    }
}
