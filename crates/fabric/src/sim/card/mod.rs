//! The state of a programmable card on a node's host: DMA over PCIe, memory of its own, and a clock
//! (kv-direct §2.3, §2.4, §4).
//!
//! Each of these is a resource that does one thing after the other. Their times are fractions of
//! nanoseconds, so that rates come out exact.
//!
//! # Invariants
//! 1. A link has at most as many READs and WRITEs under way as it has tags and credits.
//! 2. An operation that was begun continues when its future is dropped.

mod link;
mod profile;

use self::link::{Link, Request, Sent};
pub use self::profile::CardProfile;
use super::profile::occupy;
use super::verb::ProcessId;

/// A card of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardId(pub(super) u32);

/// An event of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// A process begins an operation.
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

/// The work of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
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
    pub profile: CardProfile,
    links: Vec<Link>,
    dram_ns: f64,
    clock_ns: f64,
    ops: Vec<Op>,
    free_ops: Vec<u32>,
    /// READs under way, and the link of each.
    flights: Vec<(u32, Sent)>,
    free_flights: Vec<u32>,
}

impl Card {
    pub fn new(profile: CardProfile) -> Self {
        Self {
            profile,
            links: (0..profile.links).map(|_| Link::default()).collect(),
            dram_ns: 0.0,
            clock_ns: 0.0,
            ops: Vec::new(),
            free_ops: Vec::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
        }
    }

    /// Whether an operation is over.
    pub fn is_over(&self, op: u32) -> bool {
        self.ops[op as usize].left == 0
    }

    /// Notes that no future waits for an operation any more.
    pub fn let_go(&mut self, op: u32) {
        self.ops[op as usize].held = false;
        if self.is_over(op) {
            self.free_ops.push(op);
        }
    }

    /// Adds an operation of a process; its number.
    pub fn add_op(&mut self, process: ProcessId, work: Work) -> u32 {
        let op = Op { process, work, left: 1, held: true };
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

    /// Ends a part of an operation; returns its process if all parts are over and the process
    /// waits.
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

    /// Does a step that is due. Steps that follow are given to `at`; `even(most)` is a random
    /// number from 0 up to `most`. Returns the process that waits for an operation that is now
    /// over.
    pub fn step(
        &mut self,
        step: Step,
        now: f64,
        at: &mut impl FnMut(f64, Step),
        even: impl Fn(f64) -> f64,
    ) -> Option<ProcessId> {
        match step {
            Step::Begin(op) => self.begin(op, now, at, even),
            Step::Answer(flight) => {
                let (link, sent) = self.flights[flight as usize];
                let lands = self.links[link as usize].answer(sent, &self.profile);
                self.flights[flight as usize].1.ns = lands;
                at(lands, Step::Land(flight));
                // Its credit is back.
                self.send(link, now, at);
            }
            Step::Land(flight) => {
                let (link, sent) = self.flights[flight as usize];
                self.free_flights.push(flight);
                let over = self.end_part(sent.request.op);
                self.links[link as usize].return_tag();
                self.send(link, sent.ns, at);
                return over;
            }
            Step::Credit(link) => {
                self.links[link as usize].return_write_credit();
                self.send(link, now, at);
            }
            Step::Part(op) => return self.end_part(op),
        }
        None
    }

    /// Begins an operation.
    fn begin(
        &mut self,
        op: u32,
        now: f64,
        at: &mut impl FnMut(f64, Step),
        even: impl Fn(f64) -> f64,
    ) {
        let profile = self.profile;
        let ends = match self.ops[op as usize].work {
            Work::DmaRead { bytes, cached } => {
                self.ops[op as usize].left = bytes.div_ceil(profile.read_bytes_max).max(1) as u32;
                for bytes in parts(bytes, profile.read_bytes_max) {
                    let random_ns = if cached { 0.0 } else { even(profile.random_ns) };
                    let host_ns = profile.read_ns + random_ns;
                    let (link, queue) = self.idlest();
                    queue.add_read(Request { op, bytes, host_ns });
                    self.send(link, now, at);
                }
                return;
            }
            Work::DmaWrite { bytes } => {
                let most = profile.payload_bytes_max;
                self.ops[op as usize].left = bytes.div_ceil(most).max(1) as u32;
                for bytes in parts(bytes, most) {
                    let (link, queue) = self.idlest();
                    queue.add_write(Request { op, bytes, host_ns: 0.0 });
                    self.send(link, now, at);
                }
                return;
            }
            Work::DramRead { bytes } => {
                let for_ns = bytes as f64 / profile.dram_gbyte_s;
                occupy(&mut self.dram_ns, now, for_ns) + for_ns.max(profile.dram_ns)
            }
            Work::DramWrite { bytes } => {
                let for_ns = bytes as f64 / profile.dram_gbyte_s;
                occupy(&mut self.dram_ns, now, for_ns) + for_ns
            }
            Work::Cycle => {
                let clock_ns = profile.clock_ns();
                occupy(&mut self.clock_ns, now, clock_ns) + clock_ns
            }
            Work::Wait { ns } => now + ns,
        };
        at(ends, Step::Part(op));
    }

    /// Sends what waits at a link and can be sent.
    fn send(&mut self, link: u32, now: f64, at: &mut impl FnMut(f64, Step)) {
        let profile = self.profile;
        while let Some(sent) = self.links[link as usize].send_read(now, &profile) {
            let flight = self.add_flight(link, sent);
            at(sent.ns, Step::Answer(flight));
        }
        while let Some(sent) = self.links[link as usize].send_write(now, &profile) {
            at(sent.ns, Step::Part(sent.request.op));
            at(sent.ns + profile.write_credit_ns, Step::Credit(link));
        }
    }
}

/// Lengths of the requests that move `bytes` bytes.
fn parts(bytes: u64, most: u64) -> impl Iterator<Item = u64> {
    (0..bytes.div_ceil(most).max(1)).map(move |part| (bytes - part * most).min(most))
}
