//! Host memory whose accesses take the time of another machine: the paper's card, in virtual time
//! (kv-direct §2.4).
//!
//! The lines are memory of this process, and a [`Timing`] gives the duration of each access. The
//! content of a write is there when the write is posted; a read copies when its time is over. So a
//! write is visible to every read that is posted after it (invariant 1 of
//! [`lines`](crate::lines)). No access to half a line is under way beside a write to it
//! (invariant 2), so no operation can tell at which moment of its time an access reached memory.

use std::cell::{Cell, RefCell};
use std::ops::DerefMut;

use crate::lines::{Counts, HALF_BYTES, HostMemory, LINE_BYTES, Line, Purpose};

/// The duration of accesses. Each future is ready when its access is over.
#[expect(async_fn_in_trait, reason = "a processor and its card stay on one thread")]
pub trait Timing {
    /// A READ of consecutive bytes of host memory.
    async fn dma_read(&self, bytes: usize);

    /// A WRITE of consecutive bytes of host memory; ready when it is posted.
    async fn dma_write(&self, bytes: usize);
}

/// Lines in memory, behind a card with the times of `T`.
#[derive(Debug)]
pub struct Timed<M, T> {
    lines: RefCell<M>,
    timing: T,
    counts: Cell<Counts>,
}

impl<M: DerefMut<Target = [Line]>, T: Timing> Timed<M, T> {
    /// Memory that consists of `lines`.
    ///
    /// # Panics
    /// If there are 2^32 lines or more.
    pub fn new(lines: M, timing: T) -> Self {
        assert!(u32::try_from(lines.len()).is_ok(), "a processor has less than 2^32 lines");
        Self { lines: RefCell::new(lines), timing, counts: Cell::default() }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }
}

impl<M: DerefMut<Target = [Line]>, T: Timing> HostMemory for Timed<M, T> {
    fn lines(&self) -> u32 {
        self.lines.borrow().len() as u32
    }

    async fn read_line(&self, purpose: Purpose, at: u32) -> Line {
        self.count(|counts| counts.read(purpose, 1));
        self.timing.dma_read(LINE_BYTES).await;
        self.lines.borrow()[at as usize]
    }

    async fn write_line(&self, purpose: Purpose, at: u32, line: &Line) {
        self.count(|counts| counts.wrote(purpose, 1));
        self.lines.borrow_mut()[at as usize] = *line;
        self.timing.dma_write(LINE_BYTES).await;
    }

    async fn write_half(&self, purpose: Purpose, half: u32, bytes: &[u8; HALF_BYTES]) {
        self.count(|counts| counts.wrote(purpose, 1));
        let at = half as usize % 2 * HALF_BYTES;
        self.lines.borrow_mut()[half as usize / 2].0[at..at + HALF_BYTES].copy_from_slice(bytes);
        self.timing.dma_write(HALF_BYTES).await;
    }

    async fn read(&self, purpose: Purpose, at: u32, into: &mut [Line]) {
        self.count(|counts| counts.read(purpose, into.len()));
        self.timing.dma_read(into.len() * LINE_BYTES).await;
        let at = at as usize;
        into.copy_from_slice(&self.lines.borrow()[at..at + into.len()]);
    }

    async fn write(&self, purpose: Purpose, at: u32, from: &[Line]) {
        self.count(|counts| counts.wrote(purpose, from.len()));
        let place = at as usize..at as usize + from.len();
        self.lines.borrow_mut()[place].copy_from_slice(from);
        self.timing.dma_write(from.len() * LINE_BYTES).await;
    }

    fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn peek(&self, at: u32) -> Line {
        self.lines.borrow()[at as usize]
    }

    async fn exchange(&self, is_write: bool, lines: usize) {
        self.count(|counts| match is_write {
            true => counts.wrote(Purpose::Slabs, lines),
            false => counts.read(Purpose::Slabs, lines),
        });
        match is_write {
            true => self.timing.dma_write(lines * LINE_BYTES).await,
            false => self.timing.dma_read(lines * LINE_BYTES).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loch_fabric::lanes::run;
    use loch_fabric::sim::{CardProfile, Faults, Profile, SimCard, World};

    /// The simulated card's times.
    struct Card(SimCard);

    impl Timing for Card {
        async fn dma_read(&self, bytes: usize) {
            self.0.dma_read(bytes).await;
        }

        async fn dma_write(&self, bytes: usize) {
            self.0.dma_write(bytes).await;
        }
    }

    #[test]
    fn accesses_take_the_time_of_the_card_and_a_write_is_seen_at_once() {
        let world = World::new(1, Profile::KV_DIRECT_40, Faults::default());
        let node = world.add_node(64);
        let (card, process) = (world.add_card(CardProfile::KV_DIRECT), world.add_process(node));
        world.make_logic(process, card);
        let timing = Card(world.card(card, process));
        let within = world.clone();
        world.start(process, async move {
            let memory = Timed::new(vec![Line::ZERO; 256], timing);
            memory.write_line(Purpose::Index, 3, &Line([7; 64])).await;
            let posted_ns = within.now_ns();
            assert!(posted_ns < 20, "{posted_ns}");
            assert_eq!(memory.read_line(Purpose::Index, 3).await, Line([7; 64]));
            let read_ns = within.now_ns() - posted_ns;
            assert!((800..=1301).contains(&read_ns), "{read_ns}");
            // As many accesses as there are tags are under way at once.
            let began_ns = within.now_ns();
            let reads = (0..128).map(|at| memory.read_line(Purpose::Data, at));
            run(128, reads, |_| ()).await;
            assert!(within.now_ns() - began_ns < 2000);
            assert_eq!(memory.counts().data.reads, 128);
            memory.exchange(true, 2).await;
            memory.write_half(Purpose::Data, 7, &[8; 32]).await;
            let mut lines = [Line::ZERO; 2];
            memory.read(Purpose::Index, 2, &mut lines).await;
            assert_eq!(lines[0], Line::ZERO);
            assert_eq!((lines[1].0[31], lines[1].0[32]), (7, 8));
            assert_eq!(memory.counts().slabs.lines_written, 2);
        });
        world.run_until(1_000_000);
        assert!(world.has_ended(process));
        world.end();
    }
}
