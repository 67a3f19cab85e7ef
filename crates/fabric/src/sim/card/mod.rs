//! A programmable card on a node's host: DMA over PCIe, memory of its own, and a clock, in virtual
//! time (kv-direct §2.3, §2.4, §4).
//!
//! What a process on the card does takes no processor's time ([`World::make_logic`]): its time is
//! in clocks, in the links to its host and in its memory. These are resources, each of which does
//! one thing after the other; their times are fractions of nanoseconds, so that rates come out
//! exact. Only the moment at which a future becomes ready is a whole nanosecond.
//!
//! Bytes are not moved here: a future says when they would be there.
//!
//! # Invariants
//! 1. At most so many READs and WRITEs are under way on a link as it has tags and credits.
//! 2. What was begun goes on when its future is dropped.

mod link;
mod profile;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use rand::RngExt;

use self::link::{Link, Request, Sent, occupy};
pub use self::profile::CardProfile;
use super::verb::ProcessId;
use super::world::{Event, Inner, World};

/// A card of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardId(u32);

/// What happens to a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// A process has come to begin an operation.
    Begin(u32),
    /// A root complex answers a READ.
    Answer(u32),
    /// A READ's last byte is there.
    Land(u32),
    /// A WRITE's credit is back at a link.
    Credit(u32),
    /// A part of an operation is over.
    Part(u32),
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
enum Work {
    DmaRead { bytes: u64, cached: bool },
    DmaWrite { bytes: u64 },
    DramRead { bytes: u64 },
    DramWrite { bytes: u64 },
    Cycle,
    Wait { ns: f64 },
}

#[derive(Debug)]
struct Op {
    process: ProcessId,
    work: Work,
    /// Parts that are not over.
    left: u32,
    /// Whether its future lives.
    held: bool,
}

/// The state of a card.
#[derive(Debug)]
pub(super) struct Card {
    profile: CardProfile,
    links: Vec<Link>,
    dram_ns: f64,
    clock_ns: f64,
    ops: Vec<Op>,
    free_ops: Vec<u32>,
    /// READs under way, and the link of each.
    flights: Vec<(u32, Sent)>,
    free_flights: Vec<u32>,
}

impl World {
    /// Adds a card.
    pub fn add_card(&self, profile: CardProfile) -> CardId {
        let mut cards = self.0.cards.borrow_mut();
        cards.push(Card {
            profile,
            links: (0..profile.links).map(|_| Link::default()).collect(),
            dram_ns: 0.0,
            clock_ns: 0.0,
            ops: Vec::new(),
            free_ops: Vec::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
        });
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
        self.0.process(process).logic = Some(super::process::Logic { clock_ns, bell });
    }
}

/// A process's way to a card. Operations begin when they are called, in that order, and go on when
/// their futures are dropped.
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

    /// READs so many consecutive bytes of host memory that no cache has.
    pub fn dma_read(&self, bytes: usize) -> CardOp {
        self.begin(Work::DmaRead { bytes: bytes as u64, cached: false })
    }

    /// READs so many consecutive bytes that the host's processor has in its cache: what it just
    /// wrote.
    pub fn dma_read_cached(&self, bytes: usize) -> CardOp {
        self.begin(Work::DmaRead { bytes: bytes as u64, cached: true })
    }

    /// WRITEs so many consecutive bytes of host memory; ready when the link has taken them.
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

    /// Waits until a doorbell is heard that is rung now, by a process of the host.
    pub fn doorbell(&self) -> CardOp {
        self.wait(self.profile().doorbell_ns)
    }

    fn begin(&self, work: Work) -> CardOp {
        let op = {
            let mut cards = self.world.cards.borrow_mut();
            let card = &mut cards[self.card.0 as usize];
            card.add_op(Op { process: self.process, work, left: 1, held: true })
        };
        let spent_ns = self.world.process(self.process).spent_ns;
        if spent_ns == 0 {
            self.world.begin(self.card, op);
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
        match cards[self.card.0 as usize].ops[self.op as usize].left {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

impl Drop for CardOp {
    fn drop(&mut self) {
        let mut cards = self.world.cards.borrow_mut();
        let card = &mut cards[self.card.0 as usize];
        let op = &mut card.ops[self.op as usize];
        op.held = false;
        if op.left == 0 {
            card.free_ops.push(self.op);
        }
    }
}

impl Card {
    fn add_op(&mut self, op: Op) -> u32 {
        let Some(index) = self.free_ops.pop() else {
            self.ops.push(op);
            return self.ops.len() as u32 - 1;
        };
        self.ops[index as usize] = op;
        index
    }

    fn add_flight(&mut self, link: u32, sent: Sent) -> u32 {
        let Some(index) = self.free_flights.pop() else {
            self.flights.push((link, sent));
            return self.flights.len() as u32 - 1;
        };
        self.flights[index as usize] = (link, sent);
        index
    }

    /// A part of an operation is over; its process if all are, and somebody waits.
    fn end_part(&mut self, op: u32) -> Option<ProcessId> {
        let it = &mut self.ops[op as usize];
        it.left -= 1;
        if it.left > 0 {
            return None;
        }
        if !it.held {
            self.free_ops.push(op);
            return None;
        }
        Some(it.process)
    }

    /// The link with the least to do.
    fn idlest(&mut self) -> (u32, &mut Link) {
        let least = self.links.iter_mut().enumerate().min_by_key(|(_, link)| link.load());
        let (index, link) = least.expect("a card has a link");
        (index as u32, link)
    }
}

/// The first whole nanosecond at which what happens at `ns` has happened.
fn whole(ns: f64) -> u64 {
    ns.ceil() as u64
}

impl Inner {
    pub fn card_step(&self, id: CardId, step: Step) {
        let now = self.now_ns.get() as f64;
        let mut cards = self.cards.borrow_mut();
        let card = &mut cards[id.0 as usize];
        let mut over = None;
        match step {
            Step::Begin(op) => {
                drop(cards);
                return self.begin(id, op);
            }
            Step::Answer(flight) => {
                let (link, sent) = card.flights[flight as usize];
                let lands = card.links[link as usize].answer(sent, &card.profile);
                card.flights[flight as usize].1.ns = lands;
                self.at(whole(lands), Event::Card(id, Step::Land(flight)));
                // Its credit is back.
                self.send(id, card, link, now);
            }
            Step::Land(flight) => {
                let (link, sent) = card.flights[flight as usize];
                card.free_flights.push(flight);
                over = card.end_part(sent.request.op);
                card.links[link as usize].return_tag();
                self.send(id, card, link, sent.ns);
            }
            Step::Credit(link) => {
                card.links[link as usize].return_write_credit();
                self.send(id, card, link, now);
            }
            Step::Part(op) => over = card.end_part(op),
        }
        drop(cards);
        if let Some(process) = over {
            self.wake(process, self.now_ns.get());
        }
    }

    /// Begins an operation.
    fn begin(&self, id: CardId, op: u32) {
        let now = self.now_ns.get() as f64;
        let mut cards = self.cards.borrow_mut();
        let card = &mut cards[id.0 as usize];
        let profile = card.profile;
        let ends = match card.ops[op as usize].work {
            Work::DmaRead { bytes, cached } => {
                card.ops[op as usize].left = bytes.div_ceil(profile.read_bytes_max).max(1) as u32;
                for bytes in parts(bytes, profile.read_bytes_max) {
                    let random_ns = if cached { 0.0 } else { self.even(profile.random_ns) };
                    let host_ns = profile.read_ns + random_ns;
                    let (link, queue) = card.idlest();
                    queue.add_read(Request { op, bytes, host_ns });
                    self.send(id, card, link, now);
                }
                return;
            }
            Work::DmaWrite { bytes } => {
                let most = profile.payload_bytes_max;
                card.ops[op as usize].left = bytes.div_ceil(most).max(1) as u32;
                for bytes in parts(bytes, most) {
                    let (link, queue) = card.idlest();
                    queue.add_write(Request { op, bytes, host_ns: 0.0 });
                    self.send(id, card, link, now);
                }
                return;
            }
            Work::DramRead { bytes } => {
                let for_ns = bytes as f64 / profile.dram_gbyte_s;
                occupy(&mut card.dram_ns, now, for_ns) + for_ns.max(profile.dram_ns)
            }
            Work::DramWrite { bytes } => {
                let for_ns = bytes as f64 / profile.dram_gbyte_s;
                occupy(&mut card.dram_ns, now, for_ns) + for_ns
            }
            Work::Cycle => {
                let clock_ns = profile.clock_ns();
                occupy(&mut card.clock_ns, now, clock_ns) + clock_ns
            }
            Work::Wait { ns } => now + ns,
        };
        self.at(whole(ends), Event::Card(id, Step::Part(op)));
    }

    /// Sends what waits at a link and can be sent.
    fn send(&self, id: CardId, card: &mut Card, link: u32, now: f64) {
        let profile = card.profile;
        while let Some(sent) = card.links[link as usize].send_read(now, &profile) {
            let flight = card.add_flight(link, sent);
            self.at(whole(sent.ns), Event::Card(id, Step::Answer(flight)));
        }
        while let Some(sent) = card.links[link as usize].send_write(now, &profile) {
            self.at(whole(sent.ns), Event::Card(id, Step::Part(sent.request.op)));
            let credit_ns = sent.ns + profile.write_credit_ns;
            self.at(whole(credit_ns), Event::Card(id, Step::Credit(link)));
        }
    }

    /// A number from 0 up to `most`, all as likely.
    fn even(&self, most: f64) -> f64 {
        self.random.borrow_mut().random::<f64>() * most
    }
}

/// Lengths of the requests that so many bytes are moved with.
fn parts(bytes: u64, most: u64) -> impl Iterator<Item = u64> {
    (0..bytes.div_ceil(most).max(1)).map(move |part| (bytes - part * most).min(most))
}
