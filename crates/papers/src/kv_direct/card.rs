//! The production processor on the simulated card: accesses and cycles take virtual time.
//!
//! The card's logic acts at the edges of its clock. One operation enters the pipeline at an edge;
//! the execution engine, which is beside it, forwards one operation on a line of value in a cycle
//! (kv-direct §3.3.3). The bytes of an access to memory are seen at the edge after their arrival.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use loch_engines::kv_direct::dispatch::Dispatcher;
use loch_engines::kv_direct::processor::{Clock, Processor};
use loch_engines::kv_direct::timed::{Timed, Timing};
use loch_engines::lines::Line;
use loch_fabric::sim::SimCard;

use super::packet::Operation;
use super::timing::{CardTiming, TimedDram};

/// The memory of a processor on the card: a share of host memory, cached in the card's memory.
pub type Memory = Dispatcher<Timed<Vec<Line>, Chip>, TimedDram>;

/// The processor on the card.
pub type CardProcessor = Processor<Operation, Memory, (), Chip>;

/// The logic of a card: its clock, and its ways to memory. Clones are the same logic.
#[derive(Clone)]
pub struct Chip(Rc<State>);

struct State {
    /// Accesses, and whether they and cycles take time.
    timing: CardTiming,
    clock_ns: f64,
    /// The last edge.
    edge: Cell<u64>,
    /// The edge from which on the execution engine is free.
    engine_free: Cell<u64>,
}

impl Chip {
    /// Logic that takes no time before [`Chip::start`].
    pub fn new(card: SimCard) -> Self {
        let clock_ns = card.profile().clock_ns();
        let [edge, engine_free] = [const { Cell::new(0) }; 2];
        let timing = CardTiming::new(card);
        timing.set_runs(false);
        Self(Rc::new(State { timing, clock_ns, edge, engine_free }))
    }

    /// Memory of the card, of so many lines.
    pub fn dram(&self, lines: u32) -> TimedDram {
        TimedDram::new(lines, self.0.timing.clone())
    }

    /// From now on its accesses and cycles take time.
    pub fn start(&self) {
        self.0.timing.set_runs(true);
    }

    /// The time of the last edge.
    pub fn now_ns(&self) -> f64 {
        self.0.edge.get() as f64 * self.0.clock_ns
    }

    /// Waits for the next edge.
    pub async fn next_edge(&self) {
        self.reach(self.0.edge.get() + 1).await;
    }

    /// Waits for the first edge after the next one that is at `ns` or later.
    pub async fn edge_from(&self, ns: f64) {
        let edge = (ns / self.0.clock_ns).ceil() as u64;
        self.reach(edge.max(self.0.edge.get() + 1)).await;
    }

    async fn reach(&self, edge: u64) {
        let State { timing, clock_ns, .. } = &*self.0;
        let card = timing.card();
        card.wait((edge as f64 * clock_ns - card.now_ns() as f64).max(0.0)).await;
        self.0.edge.set(edge);
    }
}

impl Clock for Chip {
    async fn cycles(&self, count: usize) {
        let State { timing, edge, engine_free, .. } = &*self.0;
        if !timing.runs() {
            return;
        }
        let over = engine_free.get().max(edge.get()) + count as u64;
        engine_free.set(over);
        // The pipeline has a turn at every edge while anything is under way.
        let is_over = || if edge.get() >= over { Poll::Ready(()) } else { Poll::Pending };
        poll_fn(|_| is_over()).await;
    }
}

impl Timing for Chip {
    async fn dma_read(&self, bytes: usize) {
        self.0.timing.dma_read(bytes).await;
    }

    async fn dma_write(&self, bytes: usize) {
        self.0.timing.dma_write(bytes).await;
    }
}
