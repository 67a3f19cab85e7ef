//! Microbenchmarks: the paper's card under single parts of kv-direct.
//!
//! | file | measures |
//! | --- | --- |
//! | [`dma`] | PCIe DMA by payload: throughput and latency (kv-direct Figure 3) |
//! | [`dispatch`] | the DRAM load dispatcher, on and off (Figure 14) |
//! | [`gather`] | CPU-assisted scatter-gather (Figure 18) |
//!
//! Each is a function from a card's numbers to plain structs; the same arguments lead to the same
//! result.

pub mod dispatch;
pub mod dma;
pub mod gather;

use std::future::Future;

use loch_fabric::sim::{CardProfile, Faults, ProcessId, Profile, SimCard, World};

use super::gathered::Courier;

/// Carries batches between a simulated card and processes of its host.
#[derive(Clone)]
pub struct CardCourier {
    pub card: SimCard,
    /// How long a batch waits to be filled.
    pub linger_ns: f64,
}

impl Courier for CardCourier {
    async fn send(&self, bytes: usize) {
        self.card.dma_write(bytes).await;
    }

    async fn fetch(&self, bytes: usize) {
        self.card.doorbell().await;
        if bytes > 0 {
            // The host's processor has just written it.
            self.card.dma_read_cached(bytes).await;
        }
    }

    async fn linger(&self) {
        self.card.wait(self.linger_ns).await;
    }
}

/// A world with one card and logic on it.
struct Bench {
    world: World,
    logic: ProcessId,
    card: SimCard,
}

impl Bench {
    fn new(profile: CardProfile, seed: u64) -> Self {
        let world = World::new(seed, Profile::KV_DIRECT_40, Faults::default());
        let node = world.add_node(64);
        let (card, logic) = (world.add_card(profile), world.add_process(node));
        world.make_logic(logic, card);
        let card = world.card(card, logic);
        Self { world, logic, card }
    }

    /// Runs a program on the card, for `warm_ns` and then for `for_ns`; returns how much each of
    /// `counters` grew in a microsecond of the latter.
    fn rates<const N: usize>(
        &self,
        program: impl Future<Output = ()> + 'static,
        counters: impl Fn() -> [u64; N],
        [warm_ns, for_ns]: [u64; 2],
    ) -> [f64; N] {
        self.world.start(self.logic, program);
        self.world.run_until(self.world.now_ns() + warm_ns);
        let before = counters();
        self.world.run_until(self.world.now_ns() + for_ns);
        let after = counters();
        std::array::from_fn(|n| (after[n] - before[n]) as f64 / (for_ns as f64 / 1e3))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.world.clone().end();
    }
}
