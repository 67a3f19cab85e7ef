//! The processor's side: allocate and free (kv-direct §3.3.2, §4).
//!
//! For each of the small classes the processor has a stack of free slabs in its own memory. The
//! processor pops and pushes at its left end. When the stack has become low or high, its right end
//! exchanges a batch with the left end of the host's stack. Fetching a batch takes three accesses:
//! the claim is written, the daemon's positions are read, then the entries. Handing it back takes
//! two: entries, position. After an exchange the stack is at least a batch away from the next one,
//! which makes less than 0.05 accesses for each allocation or free, in whatever order they come.
//!
//! Larger slabs come straight from the host's stacks and go straight back.
//!
//! # Invariants
//! 1. A stack of the processor holds slabs of its class, and larger ones that are cut when popped.
//! 2. If an allocation finds no slab in the host's stacks of its class and above, and none in the
//!    processor's stacks, it hands back all slabs of the processor, and asks the daemon to merge.
//!    If there still is no slab when the daemon has answered, and nothing has changed since, no
//!    such slab exists; the processor does not look for it again before something changes.
//! 3. Slabs change hands in one go, between two awaits: other operations under way never see half
//!    of an exchange. The operation that needed the exchange then awaits its accesses.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use super::merge::cover;
use super::pools::Question;
use super::traffic::Traffic;
use super::{Class, Place, Pools, Slab};
use crate::limits::{SLAB_BATCH, SLABS_HIGH, SLABS_LOW};
use crate::lines::HostMemory;

/// The processor cuts a larger slab into this many slabs of the class that ran out, if it has to
/// help itself: twice a batch, so that no exchange is near after that.
const HELPING_SHIFT: u8 = (2 * SLAB_BATCH).ilog2() as u8;

/// The processor's own stack of a class.
#[derive(Debug)]
struct Stack {
    /// The left end is the front.
    slabs: VecDeque<Slab>,
    /// With this many slabs or fewer a batch is fetched.
    low: usize,
    /// Whether the last batch was not full.
    is_dry: bool,
}

impl Stack {
    fn new() -> Self {
        let slabs = VecDeque::with_capacity(2 * SLABS_HIGH);
        Self { slabs, low: SLABS_LOW, is_dry: false }
    }

    /// Pops a slab of this class; cuts a larger one.
    #[inline(always)]
    fn pop(&mut self, class: Class) -> Option<Place> {
        let mut slab = self.slabs.pop_front()?;
        while slab.class() > class {
            let (lower, upper) = slab.halves()?;
            self.slabs.push_front(upper);
            slab = lower;
        }
        Some(slab.place())
    }
}

/// The processor's side of its slab allocator.
///
/// When dropped, it hands all its slabs back to the pools.
#[derive(Debug)]
pub struct Slabs {
    pools: Arc<Pools>,
    stacks: [RefCell<Stack>; Class::CACHED],
    /// Whether slabs were freed or fetched since the last question to the daemon.
    has_changed: Cell<bool>,
    /// No slab of this class or above exists, unless something has changed.
    hopeless: Cell<Option<Class>>,
}

impl Slabs {
    /// The only processor's side of `pools`.
    pub fn new(pools: Arc<Pools>) -> Self {
        let stacks = std::array::from_fn(|_| RefCell::new(Stack::new()));
        Self { pools, stacks, has_changed: Cell::new(true), hopeless: Cell::new(None) }
    }

    /// The pools that it shares with the daemon.
    pub fn pools(&self) -> &Arc<Pools> {
        &self.pools
    }

    /// A slab of this class, if there is one.
    ///
    /// If there is none and [`Self::starving`] says that the daemon was asked, it is worth trying
    /// again after the answer: the memory may be there in pieces.
    #[inline]
    pub async fn allocate<H: HostMemory>(&self, memory: &H, class: Class) -> Option<Place> {
        if let Some(stack) = self.stacks.get(class.index()) {
            let stack = &mut *stack.borrow_mut();
            if stack.slabs.len() > stack.low {
                return stack.pop(class);
            }
        }
        // Boxed, so that an operation's future has no room for this rare part.
        Box::pin(self.allocate_slowly(memory, class)).await
    }

    /// Takes back a slab that was allocated as this class.
    ///
    /// # Panics
    /// If the class is above the largest of the pools.
    #[inline]
    pub async fn free<H: HostMemory>(&self, memory: &H, place: Place, class: Class) {
        let slab = Slab::new(place, class);
        self.has_changed.set(true);
        if let Some(stack) = self.stacks.get(class.index()) {
            let slabs = &mut stack.borrow_mut().slabs;
            slabs.push_front(slab);
            if slabs.len() <= SLABS_HIGH {
                return;
            }
        }
        Box::pin(self.free_slowly(memory, slab)).await;
    }

    /// Whether the daemon was asked for memory and has not yet answered. The daemon answers within
    /// a bounded number of its turns, if it gets turns.
    pub fn starving(&self) -> bool {
        matches!(self.pools.question(), Question::Open(_))
    }

    /// All free slabs, in the order of their places. Only correct while neither an operation nor
    /// the daemon is at work, and the daemon's last turn said that there is no more work.
    pub fn free_slabs(&self) -> Vec<Slab> {
        let mut slabs: Vec<Slab> = self.pools.slabs().collect();
        self.stacks.iter().for_each(|stack| slabs.extend(&stack.borrow().slabs));
        slabs.sort_unstable();
        slabs
    }

    #[cold]
    async fn allocate_slowly<H: HostMemory>(&self, memory: &H, class: Class) -> Option<Place> {
        let mut traffic = Traffic::default();
        let place = self.find(class, &mut traffic);
        traffic.settle(memory).await;
        place
    }

    /// Hands back a batch of the class of `slab`; if the class has no stack here, hands back `slab`
    /// alone.
    #[cold]
    async fn free_slowly<H: HostMemory>(&self, memory: &H, slab: Slab) {
        let class = slab.class();
        let batch = match self.stacks.get(class.index()) {
            Some(stack) => {
                let slabs = &mut stack.borrow_mut().slabs;
                slabs.split_off(slabs.len() - SLAB_BATCH)
            }
            None => VecDeque::from([slab]),
        };
        let mut traffic = Traffic::default();
        self.hand_back(class, batch, &mut traffic);
        traffic.settle(memory).await;
    }

    /// Looks for a slab in all stacks.
    fn find(&self, class: Class, traffic: &mut Traffic) -> Option<Place> {
        let is_hopeless = self.hopeless.get().is_some_and(|hopeless| class >= hopeless);
        if (is_hopeless && !self.has_changed.get()) || class > self.pools.largest() {
            return None;
        }
        let place = match self.stacks.get(class.index()) {
            Some(stack) => self.restock(class, &mut stack.borrow_mut(), traffic),
            None => self.take_large(class, class, traffic).map(Slab::place),
        };
        match self.pools.question() {
            Question::Open(_) => {}
            Question::Answered if place.is_some() || !self.has_changed.get() => {
                if place.is_none() {
                    self.hopeless.set(Some(class));
                }
                self.pools.thank();
                traffic.write(1);
            }
            // The daemon may be at work and hold the wanted slab.
            Question::Answered | Question::None if place.is_none() => self.ask(traffic),
            Question::Answered | Question::None => {}
        }
        place
    }

    /// Fetches slabs for a stack that has few, and pops one slab.
    fn restock(&self, class: Class, stack: &mut Stack, traffic: &mut Traffic) -> Option<Place> {
        self.refill(class, stack, traffic);
        if stack.slabs.is_empty() && !self.take_larger(class, stack, traffic) {
            self.take_own(class, stack);
        }
        stack.pop(class)
    }

    /// Fetches a batch from the host's stack of the class.
    fn refill(&self, class: Class, stack: &mut Stack, traffic: &mut Traffic) {
        let mut want = SLAB_BATCH;
        if stack.is_dry {
            // The processor claims only slabs that were there lately: a look costs less than a vain
            // claim.
            traffic.read(self.pools.daemon_lines());
            want = want.min(self.pools.stack(class).len() as usize);
        }
        let got = self.fetch(class, want, traffic, |slab| stack.slabs.push_back(slab));
        stack.is_dry = got < SLAB_BATCH;
        // If the host has few slabs, it is not asked again before half of them are used.
        stack.low = if stack.is_dry { SLABS_LOW.min(stack.slabs.len() / 2) } else { SLABS_LOW };
    }

    /// Takes slabs of a larger class from the host for an empty stack. Returns whether there were
    /// any.
    fn take_larger(&self, class: Class, stack: &mut Stack, traffic: &mut Traffic) -> bool {
        let next = Class::new(class.number() + 1).unwrap_or(class);
        for larger in Class::between(next, Class::LARGEST_CACHED.min(self.pools.largest())) {
            // Half of them, because the larger class may lack slabs as well.
            let want = SLAB_BATCH.min(self.pools.stack(larger).len().div_ceil(2) as usize);
            if self.fetch(larger, want, traffic, |slab| stack.slabs.push_back(slab)) > 0 {
                return true;
            }
        }
        let Some(first) = Class::new(Class::LARGEST_CACHED.number() + 1) else { return false };
        let Some(enough) = Class::new(class.number() + HELPING_SHIFT) else { return false };
        let Some(slab) = self.take_large(first, enough.max(first), traffic) else { return false };
        stack.slabs.extend(cover(slab.start()..slab.end(), Class::LARGEST_CACHED));
        true
    }

    /// Takes half of the processor's slabs of other classes that are large enough.
    fn take_own(&self, class: Class, stack: &mut Stack) {
        // The empty stack is the one that is borrowed.
        for other in self.stacks.iter().filter_map(|other| other.try_borrow_mut().ok()) {
            let slabs = &mut { other }.slabs;
            let fit = slabs.iter().filter(|slab| slab.class() >= class).count();
            let mut left = fit.div_ceil(2);
            slabs.retain(|slab| {
                let is_taken = left > 0 && slab.class() >= class;
                if is_taken {
                    left -= 1;
                    stack.slabs.push_back(*slab);
                }
                !is_taken
            });
            if !stack.slabs.is_empty() {
                return;
            }
        }
    }

    /// Takes one slab of the smallest class from `class` on that the host has, cut to `cut` if it
    /// is larger. The other pieces go to the host's stacks.
    fn take_large(&self, class: Class, cut: Class, traffic: &mut Traffic) -> Option<Slab> {
        let mut taken = None;
        for larger in Class::between(class, self.pools.largest()) {
            // The first fetch reads the positions of all stacks.
            if larger > class && self.pools.stack(larger).len() == 0 {
                continue;
            }
            if self.fetch(larger, 1, traffic, |slab| taken = Some(slab)) > 0 {
                break;
            }
        }
        let mut slab = taken?;
        let is_cut = slab.class() > cut;
        while slab.class() > cut {
            let (lower, upper) = slab.halves()?;
            let stack = self.pools.stack(upper.class());
            traffic.write_entries(stack, stack.put_left(&[upper]));
            slab = lower;
        }
        if is_cut {
            self.pools.has_changed();
            traffic.write(1);
        }
        Some(slab)
    }

    /// Takes up to `want` slabs from the host's stack of a class. Returns how many.
    fn fetch(
        &self,
        class: Class,
        want: usize,
        traffic: &mut Traffic,
        into: impl FnMut(Slab),
    ) -> usize {
        if want == 0 {
            return 0;
        }
        let stack = self.pools.stack(class);
        let taken = stack.take_left(want, into);
        self.pools.has_changed();
        let got = (taken.end - taken.start) as usize;
        traffic.write(1);
        traffic.read(self.pools.daemon_lines());
        traffic.read_entries(stack, taken);
        if got < want {
            // The claim goes back.
            traffic.write(1);
        }
        if got > 0 {
            self.has_changed.set(true);
        }
        got
    }

    /// Puts slabs on the host's stack of a class.
    fn hand_back(&self, class: Class, mut slabs: VecDeque<Slab>, traffic: &mut Traffic) {
        let stack = self.pools.stack(class);
        traffic.write_entries(stack, stack.put_left(slabs.make_contiguous()));
        self.pools.has_changed();
        traffic.write(1);
    }

    /// Hands back all slabs.
    fn hand_back_all(&self, traffic: &mut Traffic) {
        let classes = Class::between(Class::SMALLEST, self.pools.largest());
        for (class, stack) in classes.zip(&self.stacks) {
            let slabs = std::mem::take(&mut stack.borrow_mut().slabs);
            if !slabs.is_empty() {
                self.hand_back(class, slabs, traffic);
            }
        }
    }

    /// Asks the daemon to merge all free slabs.
    fn ask(&self, traffic: &mut Traffic) {
        self.hand_back_all(traffic);
        self.has_changed.set(false);
        self.hopeless.set(None);
        self.pools.ask();
        traffic.write(1);
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        self.hand_back_all(&mut Traffic::default());
    }
}
