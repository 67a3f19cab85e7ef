//! One table on one card, and its measurements.

use std::cell::RefCell;
use std::rc::Rc;

use hdrhistogram::Histogram;
use loch_engines::kv_direct::dispatch::Dispatcher;
use loch_engines::kv_direct::item::Item;
use loch_engines::kv_direct::key::KeyHash;
use loch_engines::kv_direct::processor::{Pipeline, Processor, Settings};
use loch_engines::kv_direct::slab::SlabDaemon;
use loch_engines::kv_direct::storage::Storage;
use loch_engines::kv_direct::timed::Timed;
use loch_engines::lines::Line;
use loch_engines::requests::packet::Cursor;
use loch_fabric::sim::{CardProfile, Faults, Profile, World};

use super::card::{CardProcessor, Chip};
use super::clients::{Clients, Network, Pace};
use super::packet::{Operation, Packet};
use super::shape::Shape;
use super::totals::{Measured, Totals};
use super::workload::{Kind, Source, Workload};
use loch_engines::operation::Version;

/// Host memory's lines for each line of the card's: 64 GiB and 4 GiB (kv-direct §3.3.4).
const LINES_PER_DRAM_LINE: u32 = 16;
/// Unmeasured operations before and after the measured ones, as a share of these; there are at
/// least as many as the clients have under way.
const RAMP: f64 = 0.2;
/// The share of the highest throughput at which latency is measured: beyond it, queueing would
/// dominate the latency.
pub const PEAK_SHARE: f64 = 0.95;
/// The bench ends here if the simulation does not.
const VIRTUAL_NS_MAX: u64 = 60_000_000_000;

/// A table on a card.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The card.
    pub card: CardProfile,
    /// Lines of host memory.
    pub lines: u32,
    /// The load dispatch ratio.
    pub ratio: f64,
    /// Whether operations are executed out of order.
    pub out_of_order: bool,
    /// Its keys, which all have a value, and their popularity while the card's memory is warmed.
    pub workload: Workload,
    /// The seed, which decides everything that is random.
    pub seed: u64,
}

/// Operations that are measured.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The requests; the keys are those of the table.
    pub workload: Workload,
    /// When they are sent; if this is `None`, at even intervals, [close](PEAK_SHARE) to the
    /// throughput of the load before.
    pub pace: Option<Pace>,
    /// Operations in a packet, at most.
    pub batch: usize,
    /// Operations that are measured.
    pub count: u64,
}

/// Measures one load after the other on one table.
pub fn measure(setup: &Setup, loads: &[Load]) -> Vec<Measured> {
    let world = World::new(setup.seed, Profile::KV_DIRECT_40, Faults::default());
    let node = world.add_node(64);
    let (card, process) = (world.add_card(setup.card), world.add_process(node));
    world.make_logic(process, card);
    let chip = Chip::new(world.card(card, process));
    let results = Rc::new(RefCell::new(Vec::new()));
    let (setup, loads, all) = (*setup, loads.to_vec(), results.clone());
    world.start(process, async move {
        let processor = fill(&setup, &chip).await;
        warm(&processor, &setup).await;
        chip.start();
        for (number, load) in (1..).zip(loads) {
            let peak = all.borrow().last().map_or(0.0, Measured::mops);
            let pace = load.pace.unwrap_or(Pace::Open(PEAK_SHARE * peak));
            let source = Source::new(load.workload, setup.seed, number);
            let sent = (load.count, load.batch, pace);
            let measured = drive(&processor, &chip, &setup, source, sent).await;
            all.borrow_mut().push(measured);
        }
    });
    while !world.has_ended(process) && world.now_ns() < VIRTUAL_NS_MAX && world.step() {}
    assert!(world.has_ended(process), "all operations are answered in bounded time");
    world.end();
    results.take()
}

/// A table of which every key has a value.
async fn fill(setup: &Setup, chip: &Chip) -> CardProcessor {
    let Setup { lines, workload, seed, .. } = *setup;
    let plan = Shape::of(&workload, lines).plan();
    let pools = plan.pools();
    let host = Timed::new(vec![Line::ZERO; lines as usize], chip.clone());
    let dram_lines = (lines / LINES_PER_DRAM_LINE).max(1);
    let memory = Dispatcher::new(host, chip.dram(dram_lines), setup.ratio);
    let mut daemon = SlabDaemon::new(pools.clone());
    let storage = Storage::new(memory, &plan, pools);
    let (mut item, value) = (Item::default(), vec![0; workload.value_bytes]);
    for rank in 0..workload.keys {
        if rank % 64 == 0 {
            while daemon.turn() {}
        }
        let Some(key) = workload.key(rank, seed) else { continue };
        let key = &key[..workload.key_bytes];
        let hash = KeyHash::of(seed, key);
        let mut lookup = storage.lookup(hash, key, &mut item).await.expect("a new table is whole");
        let stored = storage.store(&mut lookup, key, &value, Version::from_u64(0), None).await;
        stored.expect("memory is planned for twice as much");
    }
    let settings =
        Settings { out_of_order: setup.out_of_order, versions: false, ..Settings::default() };
    Processor::new(storage, (), chip.clone(), settings)
}

/// Lets the card's memory fill with popular lines.
async fn warm(processor: &CardProcessor, setup: &Setup) {
    let storage = processor.storage();
    let mut source = Source::new(setup.workload, setup.seed, 0);
    let (mut item, value) = (Item::default(), vec![0; setup.workload.value_bytes]);
    if setup.ratio == 0.0 {
        return;
    }
    for _ in 0..8 * (setup.lines / LINES_PER_DRAM_LINE) {
        let key = source.key();
        let key = &key[..setup.workload.key_bytes];
        let hash = KeyHash::of(setup.seed, key);
        let mut lookup = storage.lookup(hash, key, &mut item).await.expect("the table is whole");
        if source.kind() != Kind::Get {
            let stored = storage.store(&mut lookup, key, &value, Version::from_u64(0), None).await;
            stored.expect("the value has its place");
        }
    }
}

/// Operations that have arrived, in their order.
#[derive(Default)]
struct Inlet {
    packet: Option<(Rc<Packet>, Cursor)>,
    /// The operation for which the pipeline stalls.
    stalled: Option<Operation>,
}

impl Inlet {
    fn next(&mut self, clients: &mut Clients, now_ns: f64, seed: u64) -> Option<Operation> {
        if let Some(stalled) = self.stalled.take() {
            return Some(stalled);
        }
        loop {
            if let Some((packet, cursor)) = &mut self.packet
                && let Some(operation) = Operation::next(packet, cursor, seed)
            {
                return Some(operation);
            }
            let packet = clients.arrived(now_ns)?;
            let cursor = packet.cursor();
            self.packet = Some((packet, cursor));
        }
    }

    /// Whether an operation that has arrived waits.
    fn has_more(&self) -> bool {
        let more = self.packet.as_ref().is_some_and(|(_, cursor)| cursor.left() > 0);
        more || self.stalled.is_some()
    }
}

/// Lets clients send until all operations are answered: the work of the pipeline at each edge.
async fn drive(
    processor: &CardProcessor,
    chip: &Chip,
    setup: &Setup,
    source: Source,
    (count, batch, pace): (u64, usize, Pace),
) -> Measured {
    let window = if let Pace::Window(window) = pace { window as u64 } else { 0 };
    let ramp = window.max((count as f64 * RAMP) as u64);
    let (all, pace) = (count + 2 * ramp, (pace, batch));
    let mut clients = Clients::new(Network::PAPER, pace, source, all, chip.now_ns());
    let (mut pipeline, mut inlet) = (processor.pipeline(), Inlet::default());
    let histogram = || Histogram::new(3).expect("three digits are few");
    let (mut latency, mut network) = (histogram(), histogram());
    let (mut from, mut to, mut admitted) = (None, None, 0);
    loop {
        let now_ns = chip.now_ns();
        clients.send(now_ns);
        let answered = clients.answered();
        for (moment, after) in [(&mut from, ramp), (&mut to, ramp + count)] {
            if moment.is_none() && answered >= after {
                *moment = Some(Totals::now(processor, &clients, now_ns, admitted));
            }
        }
        if pipeline.has_room()
            && let Some(operation) = inlet.next(&mut clients, now_ns, setup.seed)
        {
            match pipeline.admit(operation) {
                Ok(()) => admitted += 1,
                Err(operation) => inlet.stalled = Some(operation),
            }
        }
        let is_busy = pipeline.turn();
        while let Some(reply) = clients.answer(now_ns) {
            if from.is_some() && to.is_none() {
                let count = reply.count as u64;
                latency.record_n(reply.latency_ns as u64, count).expect("it grows");
                network.record_n(reply.network_ns as u64, count).expect("it grows");
            }
        }
        match clients.next_ns() {
            _ if is_busy || inlet.has_more() => chip.next_edge().await,
            Some(ns) => chip.edge_from(ns).await,
            None => break,
        }
    }
    let (from, to) = from.zip(to).expect("all were answered");
    Measured { latency, network, totals: to.since(&from), card: setup.card }
}
