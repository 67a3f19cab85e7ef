//! A processor's memory, whose accesses take time, and functions that users could have registered.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

use loch_engines::functions::{Element, FunctionFailure, Operands, UserFunctions};
use loch_engines::kv_direct::dispatch::{Dispatcher, LocalDram};
use loch_engines::kv_direct::timed::{Timed, Timing};
use loch_engines::lines::{Counts, HALF_BYTES, HostMemory, Line, Near, Purpose};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Host memory behind a card that has some memory of its own.
type Behind = Dispatcher<Timed<Vec<Line>, Jitter>, LocalDram<Vec<Line>>>;

/// A processor's memory.
pub enum Memory {
    /// The memory of the processor's own host.
    Near(Near<Vec<Line>>),
    /// Behind a card.
    Card(Box<Behind>),
}

/// The kind of a processor's memory.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Whether memory is loaded, not accessed by DMA.
    pub is_near: bool,
    /// The most polls that an access by DMA takes.
    pub polls_max: u32,
    /// The share of memory that the card's memory caches, and the lines of the card's memory.
    pub cached: f64,
    pub cache_lines: usize,
}

impl Kind {
    /// Memory of so many lines, all zero.
    pub fn memory(&self, lines: u32, seed: u64) -> Memory {
        let lines = vec![Line::ZERO; lines as usize];
        if self.is_near {
            return Memory::Near(Near::new(lines));
        }
        let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
        let jitter = Jitter { random, polls_max: self.polls_max };
        let dram = LocalDram::new(vec![Line::ZERO; self.cache_lines]);
        let host = Timed::new(lines, jitter);
        Memory::Card(Box::new(Dispatcher::new(host, dram, self.cached)))
    }
}

/// Forwards to whichever memory it is.
macro_rules! either {
    ($self:expr, $memory:ident => $access:expr) => {
        match $self {
            Memory::Near($memory) => $access,
            Memory::Card($memory) => $access,
        }
    };
}

impl HostMemory for Memory {
    fn loads(&self) -> bool {
        either!(self, memory => memory.loads())
    }

    fn lines(&self) -> u32 {
        either!(self, memory => memory.lines())
    }

    async fn read_line(&self, purpose: Purpose, at: u32) -> Line {
        either!(self, memory => memory.read_line(purpose, at).await)
    }

    fn in_place<R>(&self, work: impl FnOnce(&mut [Line], &mut Counts) -> R) -> Option<R> {
        either!(self, memory => memory.in_place(work))
    }

    async fn write_line(&self, purpose: Purpose, at: u32, line: &Line) {
        either!(self, memory => memory.write_line(purpose, at, line).await);
    }

    async fn write_half(&self, purpose: Purpose, half: u32, bytes: &[u8; HALF_BYTES]) {
        either!(self, memory => memory.write_half(purpose, half, bytes).await);
    }

    async fn read(&self, purpose: Purpose, at: u32, into: &mut [Line]) {
        either!(self, memory => memory.read(purpose, at, into).await);
    }

    async fn write(&self, purpose: Purpose, at: u32, from: &[Line]) {
        either!(self, memory => memory.write(purpose, at, from).await);
    }

    fn counts(&self) -> Counts {
        either!(self, memory => memory.counts())
    }

    fn peek(&self, at: u32) -> Line {
        either!(self, memory => memory.peek(at))
    }

    async fn exchange(&self, is_write: bool, lines: usize) {
        either!(self, memory => memory.exchange(is_write, lines).await);
    }
}

/// Accesses that are over after some polls, in any order.
pub struct Jitter {
    random: RefCell<ChaCha8Rng>,
    polls_max: u32,
}

impl Jitter {
    async fn wait(&self, least: u32) {
        let mut left = self.random.borrow_mut().random_range(least..=self.polls_max);
        poll_fn(|_| match left {
            0 => Poll::Ready(()),
            _ => {
                left -= 1;
                Poll::Pending
            }
        })
        .await;
    }
}

impl Timing for Jitter {
    async fn dma_read(&self, _: usize) {
        self.wait(1).await;
    }

    async fn dma_write(&self, _: usize) {
        self.wait(0).await;
    }
}

/// Adds, and traps after the first half of the elements.
pub const TRAPS: u16 = 3;

/// Functions that users registered.
pub struct Functions;

impl UserFunctions for Functions {
    fn update(
        &self,
        number: u16,
        element: Element,
        operands: Operands<'_>,
        value: &mut [u8],
    ) -> Result<(), FunctionFailure> {
        let (Element::U64, Operands::Scalar(operand), TRAPS) = (element, operands, number) else {
            return Err(FunctionFailure::Unknown(number));
        };
        let (numbers, _) = value.as_chunks_mut::<8>();
        let half = numbers.len().div_ceil(2);
        for bytes in &mut numbers[..half] {
            *bytes = u64::from_le_bytes(*bytes).wrapping_add(operand).to_le_bytes();
        }
        Err(FunctionFailure::Trapped(number))
    }
}
