//! The times of a processor's accesses to its memory on a simulated card.

use std::cell::Cell;
use std::rc::Rc;

use loch_engines::kv_direct::dispatch::{LocalDram, Mark, NicDram};
use loch_engines::kv_direct::timed::Timing;
use loch_engines::lines::{LINE_BYTES, Line};
use loch_fabric::sim::SimCard;

/// The times of accesses on a simulated card; they take no time until its clock is started.
#[derive(Clone)]
pub struct CardTiming {
    card: SimCard,
    runs: Rc<Cell<bool>>,
}

impl CardTiming {
    /// The times of a card, from now on.
    pub fn new(card: SimCard) -> Self {
        Self { card, runs: Rc::new(Cell::new(true)) }
    }

    /// Switches time off, to fill memories, or on again.
    pub fn set_runs(&self, runs: bool) {
        self.runs.set(runs);
    }

    /// Whether accesses take time.
    pub fn runs(&self) -> bool {
        self.runs.get()
    }

    /// The card.
    pub fn card(&self) -> &SimCard {
        &self.card
    }

    /// One clock cycle of the pipeline.
    pub async fn cycle(&self) {
        if self.runs.get() {
            self.card.cycle().await;
        }
    }

    /// An access to the card's own memory.
    async fn dram(&self, bytes: usize, is_write: bool) {
        if !self.runs.get() {
            return;
        }
        match is_write {
            true => self.card.dram_write(bytes).await,
            false => self.card.dram_read(bytes).await,
        }
    }
}

impl Timing for CardTiming {
    async fn dma_read(&self, bytes: usize) {
        if self.runs.get() {
            self.card.dma_read(bytes).await;
        }
    }

    async fn dma_write(&self, bytes: usize) {
        if self.runs.get() {
            self.card.dma_write(bytes).await;
        }
    }
}

/// The card's own memory, whose accesses take the card's time.
pub struct TimedDram {
    local: LocalDram<Vec<Line>>,
    timing: CardTiming,
}

impl TimedDram {
    /// Memory of so many lines, with empty slots.
    pub fn new(lines: u32, timing: CardTiming) -> Self {
        Self { local: LocalDram::new(vec![Line::ZERO; lines as usize]), timing }
    }
}

impl NicDram for TimedDram {
    fn slots(&self) -> u32 {
        self.local.slots()
    }

    async fn read(&self, slot: u32) -> (Mark, Line) {
        self.timing.dram(LINE_BYTES, false).await;
        self.local.peek(slot)
    }

    async fn write(&self, slot: u32, mark: Mark, line: &Line) {
        self.local.write(slot, mark, line).await;
        self.timing.dram(LINE_BYTES, true).await;
    }

    fn peek(&self, slot: u32) -> (Mark, Line) {
        self.local.peek(slot)
    }
}
