//! The operations of a process on a [card](super::card), in virtual time.
//!
//! Such a process takes no processor time ([`World::make_logic`]): its time passes in clocks, in
//! the links to its host and in the card's memory. Only the moment at which a future becomes ready
//! is a whole nanosecond.
//!
//! No bytes are moved here: a future says when they would arrive.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use rand::RngExt;

use super::card::{Card, CardId, CardProfile, Step, Work};
use super::process::Logic;
use super::state::{Event, Inner};
use super::verb::ProcessId;
use super::world::World;

impl World {
    /// Adds a card.
    pub fn add_card(&self, profile: CardProfile) -> CardId {
        let mut cards = self.0.cards.borrow_mut();
        cards.push(Card::new(profile));
        CardId(cards.len() as u32 - 1)
    }

    /// A process's way to a card.
    pub fn card(&self, card: CardId, process: ProcessId) -> SimCard {
        SimCard { world: self.0.clone(), card, process }
    }

    /// Makes a process logic on a card: its turns and its verbs take no processor time, and if one
    /// of its wakers is called it has a turn at the next clock of `card`.
    pub fn make_logic(&self, process: ProcessId, card: CardId) {
        let clock_ns = self.0.cards.borrow()[card.0 as usize].profile.clock_ns().ceil() as u64;
        let bell = self.0.bell(process);
        self.0.process(process).logic = Some(Logic { clock_ns, bell });
    }
}

/// A process's way to a card. Operations begin when they are called, in that order, and continue
/// when their futures are dropped.
#[derive(Clone)]
pub struct SimCard {
    world: Rc<Inner>,
    card: CardId,
    process: ProcessId,
}

impl SimCard {
    /// The numbers of the card.
    pub fn profile(&self) -> CardProfile {
        self.world.cards.borrow()[self.card.0 as usize].profile
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.world.now_ns.get()
    }

    /// READs this many consecutive bytes of host memory that no cache has.
    pub fn dma_read(&self, bytes: usize) -> CardOp {
        self.begin(Work::DmaRead { bytes: bytes as u64, cached: false })
    }

    /// READs this many consecutive bytes that the host's processor has in its cache, because it has
    /// just written them.
    pub fn dma_read_cached(&self, bytes: usize) -> CardOp {
        self.begin(Work::DmaRead { bytes: bytes as u64, cached: true })
    }

    /// WRITEs this many consecutive bytes of host memory; ready when the link has taken them.
    pub fn dma_write(&self, bytes: usize) -> CardOp {
        self.begin(Work::DmaWrite { bytes: bytes as u64 })
    }

    /// Reads the card's own memory.
    pub fn dram_read(&self, bytes: usize) -> CardOp {
        self.begin(Work::DramRead { bytes: bytes as u64 })
    }

    /// Writes the card's own memory; ready when it has taken the bytes.
    pub fn dram_write(&self, bytes: usize) -> CardOp {
        self.begin(Work::DramWrite { bytes: bytes as u64 })
    }

    /// A clock of the pipeline: one operation enters it at each.
    pub fn cycle(&self) -> CardOp {
        self.begin(Work::Cycle)
    }

    /// Lets time pass.
    pub fn wait(&self, ns: f64) -> CardOp {
        self.begin(Work::Wait { ns })
    }

    /// Waits until the card hears a doorbell that a process of the host rings now.
    pub fn doorbell(&self) -> CardOp {
        self.wait(self.profile().doorbell_ns)
    }

    fn begin(&self, work: Work) -> CardOp {
        let op = {
            let mut cards = self.world.cards.borrow_mut();
            let card = &mut cards[self.card.0 as usize];
            card.add_op(self.process, work)
        };
        let spent_ns = self.world.process(self.process).spent_ns;
        if spent_ns == 0 {
            self.world.card_step(self.card, Step::Begin(op));
        } else {
            let ns = self.world.now_ns.get() + spent_ns;
            self.world.at(ns, Event::Card(self.card, Step::Begin(op)));
        }
        CardOp { world: self.world.clone(), card: self.card, op }
    }
}

/// An operation of a card; ready when it is over.
#[must_use = "nobody waits for it"]
pub struct CardOp {
    world: Rc<Inner>,
    card: CardId,
    op: u32,
}

impl Future for CardOp {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let cards = self.world.cards.borrow();
        match cards[self.card.0 as usize].is_over(self.op) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for CardOp {
    fn drop(&mut self) {
        self.world.cards.borrow_mut()[self.card.0 as usize].let_go(self.op);
    }
}

impl Inner {
    pub fn card_step(&self, id: CardId, step: Step) {
        let now = self.now_ns.get() as f64;
        // At the first whole nanosecond at which it has happened.
        let mut at = |ns: f64, step| self.at(ns.ceil() as u64, Event::Card(id, step));
        let even = |most| self.random.borrow_mut().random::<f64>() * most;
        let over = self.cards.borrow_mut()[id.0 as usize].step(step, now, &mut at, even);
        if let Some(process) = over {
            self.wake(process, self.now_ns.get());
        }
    }
}
