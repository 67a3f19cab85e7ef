//! GET and CONTAINS: the client does them alone, by READ (pilaf §3.2, §3.3).
//!
//! A GET looks at the key's candidate slots one after the other. An entry with the key's hash leads
//! to an extent, which is READ in one doorbell with the root's state. Bytes that do not verify were
//! being written: they are read again.
//!
//! # Misses: a flaw of the paper and its repair
//! "A key is always stored in one or two (instead of zero or one) hash table entries during
//! movement" (§3.4) holds at every moment, but a GET looks at three moments. Let key A be in its
//! second candidate slot, and let its first candidate slot be free by now:
//!
//! 1. GET(A) reads slot 0: not A.
//! 2. The server moves A from slot 1 to slot 0 to make room for another key, which it writes into
//!    slot 1. At every moment A is in slot 0 or in slot 1.
//! 3. GET(A) reads slot 1: not A. It reads slot 2: not A. It reports that A is absent, although A
//!    was never absent.
//!
//! The repair: every write of a slot leaves another **stamp** in it. A client believes a miss only
//! after a second look, posted after the first has completed, that shows the same stamps in all
//! slots. No slot changed between its two READs, so at the moment between the two looks all slots
//! held what was read. By `index.rs`, invariant 1, a key that is in none of its slots has no value.
//! If the second look compared keys and not stamps, a move there and back would deceive it. A hit
//! needs no second look, and a miss costs one round trip more than in the paper.
//!
//! # Hits
//! The words of an entry reach memory one by one, and a READ takes them one by one, but an entry
//! that verifies was written by a single store (`layout.rs`, invariants 1 and 2). If that store is
//! not the slot's last one, the READ began before the last word of the next store reached memory;
//! and it ended after all words of its own store had. So at some moment of the READ the entry was
//! the slot's entry in the sense of [`Store::commit`]'s linearization point, and two READs one
//! after the other never see an old entry after a new one. A later use of the extent's memory does
//! not matter (`layout.rs`, invariant 3). The state shows that the slot still belongs to the table
//! (`resize.rs`).
//!
//! [`Store::commit`]: super::store::Store::commit
//!
//! # Faults
//! A GET waits for no other client. It goes on while the server is dead, unless the server died in
//! the middle of writing one of the key's slots or the root: then the GET ends with
//! [`EngineError::Timeout`] and can be repeated when the server is back.

use std::cell::{Cell, RefCell};

use loch_fabric::{Buf, Fabric, RemoteAddr};

use super::hash::{KeyHash, candidates};
use super::layout::{Entry, LINE_WORDS, Root, SlotName, WAYS, extent_addr, slot_addr};
use crate::error::EngineError;
use crate::kv::check_key;
use crate::operation::Value;
use crate::planted::{self, Bug};

/// The counts of a reader.
#[derive(Debug, Default)]
pub struct ReadCounts {
    /// GETs and CONTAINS.
    pub reads: Cell<u64>,
    /// Slots looked at, without second looks.
    pub probes: Cell<u64>,
    /// Entries that did not verify.
    pub torn_entries: Cell<u64>,
    /// Extents that did not verify.
    pub torn_extents: Cell<u64>,
    /// Looks at all slots after a miss.
    pub second_looks: Cell<u64>,
    /// Roots that were read because the state had changed.
    pub roots: Cell<u64>,
}

/// The one-sided half of a client of a table.
#[derive(Debug)]
pub struct Reader {
    /// The root of each node's part.
    nodes: Vec<RemoteAddr>,
    seed: u64,
    roots: RefCell<Vec<Option<Root>>>,
    timeout_us: u64,
    counts: ReadCounts,
}

/// The wanted part of an extent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Value,
    Key,
}

/// The result of reading an extent.
enum Extent {
    /// The extent is the key's.
    Ours,
    /// The extent belongs to another key with the same hash.
    Others,
    /// The extent does not verify: the entry is not the slot's any more.
    Torn,
    /// The index is not the table's any more.
    Moved,
}

/// The result of a second look.
enum Miss {
    /// No slot changed.
    Sure,
    /// A slot changed.
    Changed,
    /// The index is not the table's any more.
    Moved,
}

/// The wanted key, and where it may be.
struct Search<'a> {
    key: &'a [u8],
    name: u64,
    node: usize,
    want: Want,
    root: Root,
    slots: [u64; WAYS],
    began_us: Option<u64>,
    tries: u32,
}

/// Tries without a pause: most races are over by then.
const TRIES_AT_ONCE: u32 = 3;
/// The longest pause is this power of two, in microseconds.
const BACK_OFF_LOG2_MAX: u32 = 6;

impl Reader {
    /// A reader of the table whose part on each node has its root at `nodes`. `timeout_us` bounds
    /// the time for which an operation goes on after it first had to look again.
    pub fn new(nodes: Vec<RemoteAddr>, seed: u64, timeout_us: u64) -> Self {
        let roots = RefCell::new(vec![None; nodes.len()]);
        Self { nodes, seed, roots, timeout_us, counts: ReadCounts::default() }
    }

    /// The counts.
    pub fn counts(&self) -> &ReadCounts {
        &self.counts
    }

    /// The node that serves a key.
    pub fn node_of(&self, key: &[u8]) -> usize {
        KeyHash::of(self.seed, key).node(self.nodes.len())
    }

    /// The value of `key`, if it has one. `buf` is filled with the extent.
    ///
    /// # Errors
    /// [`EngineError::Timeout`] if the slots or the extent kept changing, or if the table is
    /// closed; the fabric's errors.
    pub async fn get<F: Fabric>(
        &self,
        fabric: &F,
        key: &[u8],
        mut buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        let Some(entry) = self.look_up(fabric, key, Want::Value, &mut buf).await? else {
            return Ok(None);
        };
        let expires_at_ms = entry.expires_at_ms(&buf);
        if expires_at_ms.is_some_and(|ms| ms <= fabric.wall_ms()) {
            return Ok(None);
        }
        let at = entry.value_at()..entry.extent_len();
        Ok(Some(Value::new(buf, at, entry.version, expires_at_ms)))
    }

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub async fn contains<F: Fabric>(&self, fabric: &F, key: &[u8]) -> Result<bool, EngineError> {
        let mut buf = Buf::new();
        let found = self.look_up(fabric, key, Want::Key, &mut buf).await?;
        let expires_at_ms = found.and_then(|entry| entry.expires_at_ms(&buf));
        Ok(found.is_some() && expires_at_ms.is_none_or(|ms| ms > fabric.wall_ms()))
    }

    /// The key's entry, with the wanted part of its extent in `buf`.
    async fn look_up<F: Fabric>(
        &self,
        fabric: &F,
        key: &[u8],
        want: Want,
        buf: &mut Buf,
    ) -> Result<Option<Entry>, EngineError> {
        check_key(key)?;
        count(&self.counts.reads, 1);
        let mut search = self.begin(fabric, key, want).await?;
        'table: loop {
            let mut looked = [Entry::EMPTY; WAYS];
            for (way, looked) in looked.iter_mut().enumerate() {
                count(&self.counts.probes, 1);
                let Some(entry) = self.look(fabric, &mut search, way, buf).await? else {
                    self.reopen(fabric, &mut search).await?;
                    continue 'table;
                };
                match entry {
                    (entry, true) => return Ok(Some(entry)),
                    (entry, false) => *looked = entry,
                }
            }
            match self.look_again(fabric, &search, &looked).await? {
                Miss::Sure => return Ok(None),
                Miss::Moved => self.reopen(fabric, &mut search).await?,
                Miss::Changed => self.again(fabric, &mut search).await?,
            }
        }
    }

    async fn begin<'a, F: Fabric>(
        &self,
        fabric: &F,
        key: &'a [u8],
        want: Want,
    ) -> Result<Search<'a>, EngineError> {
        let hash = KeyHash::of(self.seed, key);
        let node = hash.node(self.nodes.len());
        // A placeholder for a moment: no root has a slot that is not there.
        let root = Root::sealed(0, 0, 4, 0);
        let (name, slots) = (hash.name, [0; WAYS]);
        let mut search = Search { key, name, node, want, root, slots, began_us: None, tries: 0 };
        let known = self.roots.borrow()[node];
        match known {
            Some(root) => search.enter(root),
            None => self.reopen(fabric, &mut search).await?,
        }
        Ok(search)
    }

    /// READs the root until it verifies.
    async fn reopen<F: Fabric>(
        &self,
        fabric: &F,
        search: &mut Search<'_>,
    ) -> Result<(), EngineError> {
        loop {
            count(&self.counts.roots, 1);
            let mut words = [0; LINE_WORDS];
            fabric.read_words(&[self.nodes[search.node]], &mut words).await?;
            if let Some(root) = Root::verified(&words) {
                self.roots.borrow_mut()[search.node] = Some(root);
                search.enter(root);
                return Ok(());
            }
            self.again(fabric, search).await?;
        }
    }

    /// Looks at one candidate slot until it verifies. Returns its entry, and whether the entry is
    /// the key's, with the extent in `buf`. `None` if the index is not the table's any more.
    async fn look<F: Fabric>(
        &self,
        fabric: &F,
        search: &mut Search<'_>,
        way: usize,
        buf: &mut Buf,
    ) -> Result<Option<(Entry, bool)>, EngineError> {
        let (at, name) = self.slot(search, way);
        loop {
            let mut words = [0; LINE_WORDS];
            fabric.read_words(&[at], &mut words).await?;
            let Some(entry) = Entry::verified(&words, name) else {
                count(&self.counts.torn_entries, 1);
                // The memory may not be a slot any more, and then it will never verify.
                let mut state = [0];
                fabric.read_words(&[self.nodes[search.node]], &mut state).await?;
                if self.is_replaced(search, state[0]) {
                    return Ok(None);
                }
                self.again(fabric, search).await?;
                continue;
            };
            if entry.is_empty()
                || entry.hash != search.name
                || entry.key_len as usize != search.key.len()
            {
                return Ok(Some((entry, false)));
            }
            match self.read_extent(fabric, search, &entry, buf).await? {
                // Linearization point of a hit: during the READ of the entry, as the module
                // explains.
                Extent::Ours => return Ok(Some((entry, true))),
                Extent::Others => return Ok(Some((entry, false))),
                Extent::Moved => return Ok(None),
                Extent::Torn => {
                    count(&self.counts.torn_extents, 1);
                    self.again(fabric, search).await?;
                }
            }
        }
    }

    async fn read_extent<F: Fabric>(
        &self,
        fabric: &F,
        search: &Search<'_>,
        entry: &Entry,
        buf: &mut Buf,
    ) -> Result<Extent, EngineError> {
        let len = match search.want {
            Want::Value => entry.extent_len(),
            Want::Key => entry.value_at(),
        };
        let root = self.nodes[search.node];
        let at = extent_addr(root, entry.grain);
        buf.clear();
        // The READ is posted after the READ of the entry completed: if the state is still the same,
        // it was the same then.
        let posted = fabric.read_word_and_bytes(root, at, len, std::mem::take(buf));
        let (filled, state) = posted.await;
        *buf = filled;
        if self.is_replaced(search, state?) {
            return Ok(Extent::Moved);
        }
        let whole = match search.want {
            Want::Value => entry.verifies(buf),
            Want::Key => entry.verifies_key(buf),
        };
        if !whole && !planted::is(Bug::TornReadsBelieved) {
            return Ok(Extent::Torn);
        }
        let ours = buf.get(entry.key_at()..entry.value_at()) == Some(search.key);
        Ok(if ours { Extent::Ours } else { Extent::Others })
    }

    /// Looks a second time at all slots, and at the state.
    async fn look_again<F: Fabric>(
        &self,
        fabric: &F,
        search: &Search<'_>,
        looked: &[Entry; WAYS],
    ) -> Result<Miss, EngineError> {
        if planted::is(Bug::NoSecondLook) {
            return Ok(Miss::Sure);
        }
        count(&self.counts.second_looks, 1);
        let places: [_; WAYS] = std::array::from_fn(|way| self.slot(search, way));
        let [a, b, c] = places.map(|(at, _)| at);
        let mut words = [0; (WAYS + 1) * LINE_WORDS];
        // These READs are posted after the first look completed. Their own order does not matter:
        // each slot was unchanged at least until now, and the index was the table's at least until
        // now.
        fabric.read_words(&[a, b, c, self.nodes[search.node]], &mut words).await?;
        let lines = words.as_chunks::<LINE_WORDS>().0;
        if self.is_replaced(search, lines[WAYS][0]) {
            return Ok(Miss::Moved);
        }
        let same = (0..WAYS).all(|way| {
            Entry::verified(&lines[way], places[way].1)
                .is_some_and(|entry| entry.stamp == looked[way].stamp)
        });
        // Linearization point of a miss: any moment between the two looks.
        Ok(if same { Miss::Sure } else { Miss::Changed })
    }

    /// Whether a state shows that the index is not the table's any more.
    fn is_replaced(&self, search: &Search<'_>, state: u64) -> bool {
        state != search.root.state && !planted::is(Bug::NoGenerationCheck)
    }

    fn slot(&self, search: &Search<'_>, way: usize) -> (RemoteAddr, SlotName) {
        let (root, slot) = (&search.root, search.slots[way]);
        let at = slot_addr(self.nodes[search.node], root.index, slot);
        (at, SlotName { generation: root.generation(), slot })
    }

    /// Called before a GET looks again.
    async fn again<F: Fabric>(
        &self,
        fabric: &F,
        search: &mut Search<'_>,
    ) -> Result<(), EngineError> {
        let now = fabric.now_us();
        let began = *search.began_us.get_or_insert(now);
        search.tries += 1;
        if now - began > self.timeout_us {
            return Err(EngineError::Timeout { timeout_us: self.timeout_us });
        }
        if search.tries > TRIES_AT_ONCE {
            let most = 1 << (search.tries - TRIES_AT_ONCE).min(BACK_OFF_LOG2_MAX);
            fabric.pause(fabric.random() % most).await;
        }
        Ok(())
    }
}

impl Search<'_> {
    fn enter(&mut self, root: Root) {
        self.root = root;
        self.slots = candidates(self.name, root.slots);
    }
}

fn count(counter: &Cell<u64>, add: u64) {
    counter.set(counter.get() + add);
}
