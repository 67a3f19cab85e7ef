//! Posting: from verbs to work requests, and their order.
//!
//! Every verb goes through its link's queue, which is empty nearly always. A verb that finds no
//! slot or no room waits there, in order, and is posted as completions arrive.
//!
//! # Invariants
//! 1. Fewer work requests are under way than the completion queue has places.
//! 2. Links with a queue that is not empty are in `waiting`, so that completions move them on.
//! 3. A link leaves `links`, and its queue pair is destroyed, when none of its requests is under
//!    way: no slot is free while a card may still write it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::away::keys::Keys;
use crate::away::ops::{OpId, Ops};
use crate::limits::{COMPLETION_BATCH, COMPLETIONS_MAX, REGIONS_MAX};
use crate::rights::Access;
use crate::{FabricError, RegionId, RemoteAddr, Result};

use super::Device;
use super::flights::{Flight, Then};
use super::link::{Link, Task, Work};
use super::pool::Pool;
use super::setup::Transport;
use super::sys::{CHAIN_MAX, Caps, Chain, Completion, Cq, Qp, Request, Verb};

/// The verbs of one thread that are under way.
pub(super) struct Engine {
    /// Dropped first: queue pairs stop before the pool is deregistered.
    pub links: Vec<Option<Link>>,
    pub cq: Arc<Cq>,
    pub pool: Pool,
    pub ops: Ops,
    /// By transport and region.
    ways: [Vec<Option<Way>>; 2],
    waiting: VecDeque<u16>,
    pub completions: Box<[Completion; COMPLETION_BATCH]>,
    chain: Box<Chain>,
    /// Operations whose last verb is in the chain.
    whole: Vec<OpId>,
    pub in_flight: usize,
    /// Verbs posted so far.
    pub posted: u64,
    generation: u16,
    /// The completion queue is lost: verbs that were under way are never known to be over.
    pub is_dead: bool,
}

/// The way to a peer, which outlives the connections to it.
pub(super) struct Way {
    region_bytes: u64,
    keys: Keys,
    /// `None`: broken.
    pub link: Option<u16>,
    /// The number of the first verb of unknown outcome, until the connection is made again.
    pub unknown: Option<u64>,
    /// The first of the unreliable WRITEs that have left and may not have arrived, and the time in
    /// microseconds after which none of them arrives any more.
    pub lingering: Option<(u64, u64)>,
}

impl Engine {
    pub fn new(device: &Device) -> io::Result<Self> {
        Ok(Self {
            cq: Cq::new(&device.context, COMPLETIONS_MAX)?,
            pool: Pool::new(&device.pd)?,
            ops: Ops::default(),
            links: Vec::new(),
            ways: [Vec::new(), Vec::new()],
            waiting: VecDeque::new(),
            completions: Box::new([Completion::none(); COMPLETION_BATCH]),
            chain: Chain::new(),
            whole: Vec::with_capacity(CHAIN_MAX),
            in_flight: 0,
            posted: 0,
            generation: 0,
            is_dead: false,
        })
    }

    #[inline]
    pub fn way(&self, transport: Transport, region: RegionId) -> Option<&Way> {
        self.ways[transport as usize].get(region.0 as usize)?.as_ref()
    }

    pub fn way_mut(&mut self, transport: Transport, region: RegionId) -> Option<&mut Way> {
        self.ways[transport as usize].get_mut(region.0 as usize)?.as_mut()
    }

    /// All ways, with their regions.
    pub fn ways(&self) -> impl Iterator<Item = (RegionId, &Way)> {
        self.ways.iter().flat_map(|ways| {
            let numbered = ways.iter().enumerate();
            numbered.filter_map(|(region, way)| Some((RegionId(region as u8), way.as_ref()?)))
        })
    }

    /// Whether `len` bytes at `at` may be used with `access`.
    #[inline]
    pub fn check(
        &self,
        transport: Transport,
        at: RemoteAddr,
        len: usize,
        access: Access,
    ) -> Result<()> {
        let way = self.known(transport, at.region())?;
        way.keys.check_verb(way.region_bytes, at, len, access)
    }

    /// Like [`Engine::check`], for `words` words; the word of an atomic must have one key.
    #[inline]
    pub fn check_words(&self, at: RemoteAddr, words: usize, access: Access) -> Result<()> {
        let way = self.known(Transport::Reliable, at.region())?;
        way.keys.check_words(way.region_bytes, at, words, access)
    }

    fn known(&self, transport: Transport, region: RegionId) -> Result<&Way> {
        self.way(transport, region).ok_or(FabricError::Unattached { region })
    }

    /// Queues a verb of `op`; returns the link of the queue. A verb that touches no byte is over at
    /// once, and so is a verb that cannot be sent.
    #[inline]
    pub fn queue(
        &mut self,
        transport: Transport,
        op: OpId,
        task: Task,
        at: RemoteAddr,
        len: usize,
    ) -> Option<u16> {
        let region = at.region();
        let index = self.way(transport, region).and_then(|way| way.link);
        let Some(index) = index.filter(|_| !self.is_dead) else {
            self.ops.end(op, Err(FabricError::Unreachable { region }));
            return None;
        };
        if len == 0 {
            self.ops.end(op, Ok(()));
            return None;
        }
        let number = self.posted;
        self.posted += 1;
        let link = self.links[usize::from(index)].as_mut().expect("ways lead to links");
        link.queue.push_back(Work { op: Some(op), task, at, len, done: 0, number });
        Some(index)
    }

    /// Posts as much of a link's queue as possible, with one doorbell, or a few.
    pub fn pump(&mut self, index: u16) {
        while self.fill_chain(index) {
            let link = self.links[usize::from(index)].as_mut().expect("it was just filled from");
            // SAFETY: requests that are not inline name slots of the pool, which are registered for
            // as long as the pool lives and belong to these requests until they are over (`Pool`,
            // invariant 1, `Engine`, invariant 3). Inline requests name memory of operations, which
            // are not freed before `end_whole`.
            let posted = unsafe { link.qp.post(&mut self.chain) };
            self.end_whole();
            if let Err(count) = posted {
                self.take_back(index, self.chain.len() - count);
                self.break_link(index);
                return;
            }
        }
        let Some(link) = &mut self.links[usize::from(index)] else { return };
        if !link.queue.is_empty() && !link.waiting {
            link.waiting = true;
            self.waiting.push_back(index);
        }
    }

    /// The same for the links of many verbs, each of which may be named many times.
    pub fn pump_all(&mut self, mut links: Vec<u16>) {
        links.sort_unstable();
        links.dedup();
        links.into_iter().for_each(|link| self.pump(link));
    }

    /// Fills the chain from a link's queue; whether there is anything in it.
    fn fill_chain(&mut self, index: u16) -> bool {
        self.chain.clear();
        let reserved = 2 * self.links.len();
        let Some(link) = &mut self.links[usize::from(index)] else { return false };
        let way = self.ways[link.transport as usize][link.region.0 as usize].as_ref();
        let keys = &way.expect("links belong to ways").keys;
        while !self.chain.is_full()
            && link.flights.has_room()
            && self.in_flight + reserved < COMPLETIONS_MAX as usize
        {
            let Some((mut request, flight)) = link.cut(keys, &mut self.pool, &mut self.ops) else {
                break;
            };
            if let Some(op) = flight.op {
                self.ops.begin(op);
            }
            let sequence = link.flights.push(flight);
            self.in_flight += 1;
            request.id = id_of(index, link.generation, sequence);
            self.chain.push(&request);
            if link.queue.front().is_some_and(Work::is_whole) {
                let work = link.queue.pop_front().expect("it was just looked at");
                self.whole.extend(work.op);
            }
            // Nothing waits for an inline, unsignaled request, and it does not need its bytes any
            // more.
            if !flight.signaled
                && let Some(op) = flight.op
            {
                link.flights.forget_last();
                self.whole.push(op);
            }
        }
        self.chain.len() > 0
    }

    /// Ends the part of operations that was waiting for the doorbell.
    fn end_whole(&mut self) {
        for op in self.whole.drain(..) {
            self.ops.end(op, Ok(()));
        }
    }

    /// Takes back the last `count` requests of a link, which could not be posted.
    fn take_back(&mut self, index: u16, count: usize) {
        let link = self.links[usize::from(index)].as_mut().expect("it was just posted to");
        for _ in 0..count {
            let flight = link.flights.pop_unposted().expect("it was just pushed");
            self.in_flight -= 1;
            if let Some(slot) = flight.slot {
                self.pool.give(slot);
            }
            if let Some(op) = flight.op {
                // Other pieces of the same verb may have been executed.
                self.ops.end(op, Err(FabricError::lost(flight.at, flight.mutates)));
            }
        }
    }

    /// Posts verbs that waited for slots or room.
    pub fn pump_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            let index = self.waiting.pop_front().expect("it was counted");
            if let Some(link) = &mut self.links[usize::from(index)] {
                link.waiting = false;
                self.pump(index);
            }
        }
    }

    /// Requests a completion after the requests under way, if none will come.
    pub fn flush(&mut self, index: u16) {
        let Some(link) = &mut self.links[usize::from(index)] else { return };
        if !link.works || link.flushing || !link.queue.is_empty() || !link.flights.ends_unsignaled()
        {
            return;
        }
        link.flushing = true;
        let at = RemoteAddr::new(link.region, 0);
        let (op, task, number) = (None, Task::Flush, self.posted);
        link.queue.push_back(Work { op, task, at, len: 1, done: 0, number });
        self.pump(index);
    }

    /// Takes a connected queue pair into use. An earlier connection is given up: its peer's end is
    /// gone, so the outcome of its verbs does not matter any more.
    pub fn install(
        &mut self,
        (transport, region): (Transport, RegionId),
        region_bytes: u64,
        keys: Keys,
        (qp, caps): (Qp, Caps),
    ) {
        let before = self.way(transport, region).and_then(|way| way.link);
        if let Some(before) = before {
            self.break_link(before);
        }
        for link in self.links.iter_mut().flatten() {
            link.fenced |= (link.transport, link.region) == (transport, region);
        }
        self.generation = self.generation.wrapping_add(1);
        let link = Link::new(region, transport, qp, caps, self.generation);
        let free = self.links.iter().position(Option::is_none);
        let index = free.unwrap_or(self.links.len());
        assert!(index < LINKS_MAX, "so many connections cannot be draining at a time");
        if index == self.links.len() {
            self.links.push(None);
        }
        self.links[index] = Some(link);
        let link = Some(index as u16);
        let ways = &mut self.ways[transport as usize];
        if ways.len() <= region.0 as usize {
            ways.resize_with(region.0 as usize + 1, || None);
        }
        ways[region.0 as usize] =
            Some(Way { region_bytes, keys, link, unknown: None, lingering: None });
    }

    /// Gives a connection up: nothing more is posted, waiting verbs are not sent, and verbs under
    /// way stay until they are flushed.
    pub fn break_link(&mut self, index: u16) {
        let Some(link) = self.links[usize::from(index)].as_mut().filter(|link| link.works) else {
            return;
        };
        link.works = false;
        let (region, generation) = (link.region, link.generation);
        let way = self.ways[link.transport as usize][region.0 as usize].as_mut();
        let way = way.expect("links belong to ways");
        way.link = None;
        for work in link.queue.drain(..) {
            let is_unknown = work.done > 0 && work.task.mutates();
            if is_unknown {
                way.unknown = Some(way.unknown.map_or(work.number, |n| n.min(work.number)));
            }
            if let Some(op) = work.op {
                self.ops.end(op, Err(FabricError::lost(work.at, is_unknown)));
            }
        }
        if let Err(error) = link.qp.stop() {
            tracing::warn!(%error, region = region.0, "cannot stop a QP");
        }
        // This request is flushed after all others, with a completion of its own.
        let (number, at) = (self.posted, RemoteAddr::new(region, 0));
        let (mutates, signaled, op, slot, len) = (false, true, None, None, 0);
        let then = Then::Drained;
        let marker = Flight { number, mutates, signaled, op, then, slot, len, at };
        let id = id_of(index, generation, link.flights.push(marker));
        let (verb, local, inline) = (Verb::Write(way.keys.anywhere()), None, false);
        self.chain.clear();
        self.chain.push(&Request { id, verb, local, inline, signaled });
        // SAFETY: the request names no local memory.
        match unsafe { link.qp.post(&mut self.chain) } {
            Ok(()) => self.in_flight += 1,
            // Then the completions of all others must do.
            Err(_) => _ = link.flights.pop_unposted(),
        }
        self.bury(index);
    }

    /// Gives up connections that broke without a report from the card.
    #[cold]
    pub fn break_stalled(&mut self, now_us: u64) {
        for index in 0..self.links.len() {
            let Some(link) = &mut self.links[index] else { continue };
            if link.works && link.has_stalled(now_us) {
                tracing::warn!(region = link.region.0, "a connection stands still: given up");
                self.break_link(index as u16);
            }
        }
    }

    /// Destroys the queue pair of a link that is given up and drained.
    pub fn bury(&mut self, index: u16) {
        let link = &mut self.links[usize::from(index)];
        if link.as_ref().is_some_and(|link| !link.works && link.flights.is_empty()) {
            *link = None;
        }
    }
}

/// One link for each region and transport, and as many that are being drained.
const LINKS_MAX: usize = 4 * REGIONS_MAX;

/// The number that comes back with a completion: the link, its generation, and the request.
fn id_of(index: u16, generation: u16, sequence: u32) -> u64 {
    u64::from(index) << 48 | u64::from(generation) << 32 | u64::from(sequence)
}

/// The parts of [`id_of`].
pub(super) fn parts_of(id: u64) -> (u16, u16, u32) {
    ((id >> 48) as u16, (id >> 32) as u16, id as u32)
}
