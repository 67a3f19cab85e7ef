//! A processor's memory, whose accesses take their time, and functions that users could have
//! registered.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

use loch_engines::kv_direct::dispatch::{Dispatcher, LocalDram};
use loch_engines::kv_direct::memory::Line;
use loch_engines::kv_direct::operation::{Element, Failure};
use loch_engines::kv_direct::storage::Plan;
use loch_engines::kv_direct::timed::{Timed, Timing};
use loch_engines::kv_direct::vector::{Operands, UserFunctions};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::config::Config;

/// Host memory behind a card with some of its own.
pub type Memory = Dispatcher<Timed<Vec<Line>, Jitter>, LocalDram<Vec<Line>>>;

/// A processor's memory, all zero.
pub fn memory(config: &Config, plan: &Plan, seed: u64) -> Memory {
    let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
    let jitter = Jitter { random, polls_max: config.polls_max };
    let host = Timed::new(vec![Line::ZERO; plan.lines() as usize], jitter);
    Dispatcher::new(host, LocalDram::new(vec![Line::ZERO; config.cache_lines]), config.cached)
}

/// Accesses that are over after some polls, whoever was first.
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

    async fn dram(&self, _: usize, _: bool) {
        self.wait(0).await;
    }

    async fn cycle(&self) {
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
    ) -> Result<(), Failure> {
        let (Element::U64, Operands::Scalar(operand), TRAPS) = (element, operands, number) else {
            return Err(Failure::NoFunction(number));
        };
        let (numbers, _) = value.as_chunks_mut::<8>();
        let half = numbers.len().div_ceil(2);
        for bytes in &mut numbers[..half] {
            *bytes = u64::from_le_bytes(*bytes).wrapping_add(operand).to_le_bytes();
        }
        Err(Failure::Trapped(number))
    }

    fn reduce(&self, number: u16, _: Element, _: u64, _: &[u8]) -> Result<u64, Failure> {
        Err(Failure::NoFunction(number))
    }

    fn filter(
        &self,
        number: u16,
        _: Element,
        _: u64,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        Err(Failure::NoFunction(number))
    }
}
