//! The clients, as the paper's packet generator is: batched operations, sent over a link of 40 Gb/s
//! (kv-direct §5.2.1).
//!
//! The link is a resource for each direction, which carries one packet after the other. Clients
//! send either when there is room in a window of unanswered operations, which saturates the
//! processor, or at even intervals, whatever is answered.

use std::collections::VecDeque;
use std::rc::Rc;

use loch_engines::requests::packet::Writer;

use super::packet::{Done, Packet};
use super::workload::Source;

/// The network of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Gigabytes in a second, each way: 40 Gb/s.
    pub gbyte_s: f64,
    /// Bytes of a packet beside its payload (kv-direct §4, "header and padding overhead").
    pub header_bytes: usize,
    /// Time from one end to the other, one way: half of 2 µs (kv-direct §4).
    pub one_way_ns: f64,
    /// The largest payload of a packet: Ethernet's 1500 bytes less the headers. Longer replies take
    /// several packets.
    pub payload_bytes_max: usize,
}

impl Network {
    /// As in the paper.
    pub const PAPER: Self =
        Self { gbyte_s: 5.0, header_bytes: 88, one_way_ns: 1000.0, payload_bytes_max: 1400 };
}

impl Network {
    /// How long a direction is busy with `payload` bytes.
    pub fn on_wire_ns(&self, payload: usize) -> f64 {
        let packets = payload.div_ceil(self.payload_bytes_max).max(1);
        (payload + packets * self.header_bytes) as f64 / self.gbyte_s
    }
}

/// When clients send operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// While fewer operations than this are unanswered.
    Window(usize),
    /// This many operations in a microsecond.
    Open(f64),
}

/// One direction of the link.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    free_ns: f64,
    busy_ns: f64,
}

impl Way {
    /// Carries `payload` bytes from `from_ns` on, or from when it is free; returns when the last
    /// one arrives.
    fn carry(&mut self, from_ns: f64, payload: usize, network: &Network) -> f64 {
        let for_ns = network.on_wire_ns(payload);
        self.free_ns = self.free_ns.max(from_ns) + for_ns;
        self.busy_ns += for_ns;
        self.free_ns
    }
}

/// A packet that was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered {
    /// Operations of the packet.
    pub count: usize,
    /// Time from its sending to the arrival of its replies.
    pub latency_ns: f64,
    /// The network's part of this time.
    pub network_ns: f64,
}

/// The clients and the link.
pub struct Clients {
    network: Network,
    pace: Pace,
    batch: usize,
    source: Source,
    writer: Writer,
    /// Operations that may still be sent.
    left: u64,
    unanswered: usize,
    answered: u64,
    next_ns: f64,
    to: Way,
    fro: Way,
    arriving: VecDeque<(f64, Rc<Packet>)>,
    returning: VecDeque<(f64, usize)>,
    done: Done,
}

impl Clients {
    /// Clients that send `count` operations of `source` from `now_ns` on, up to `batch` in a
    /// packet.
    pub fn new(
        network: Network,
        (pace, batch): (Pace, usize),
        source: Source,
        count: u64,
        now_ns: f64,
    ) -> Self {
        Self {
            network,
            pace,
            batch,
            source,
            writer: Writer::default(),
            left: count,
            unanswered: 0,
            answered: 0,
            next_ns: now_ns,
            to: Way::default(),
            fro: Way::default(),
            arriving: VecDeque::new(),
            returning: VecDeque::new(),
            done: Done::default(),
        }
    }

    /// Takes replies and sends due packets, up to now.
    pub fn send(&mut self, now_ns: f64) {
        while self.returning.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
            let (at_ns, count) = self.returning.pop_front().expect("it is there");
            self.unanswered -= count;
            self.answered += count as u64;
            if matches!(self.pace, Pace::Window(_)) {
                self.next_ns = at_ns;
            }
        }
        while self.left > 0 {
            match self.pace {
                Pace::Window(window) if self.unanswered >= window => return,
                Pace::Window(_) => {
                    self.send_packet(self.next_ns);
                }
                Pace::Open(_) if self.next_ns > now_ns => return,
                Pace::Open(per_us) => {
                    let count = self.send_packet(self.next_ns);
                    self.next_ns += count as f64 / per_us * 1e3;
                }
            }
        }
    }

    fn send_packet(&mut self, at_ns: f64) -> usize {
        self.writer.clear();
        let most = self.batch.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.source.fill(&mut self.writer, most, self.network.payload_bytes_max);
        let packet = Packet::new(&self.writer, at_ns, &self.done);
        let from_ns = at_ns + self.network.one_way_ns;
        let arrives_ns = self.to.carry(from_ns, packet.request_bytes(), &self.network);
        let count = packet.count();
        self.left -= count as u64;
        self.unanswered += count;
        self.arriving.push_back((arrives_ns, packet));
        count
    }

    /// The next packet that has arrived.
    pub fn arrived(&mut self, now_ns: f64) -> Option<Rc<Packet>> {
        self.arriving.front().filter(|(at_ns, _)| *at_ns <= now_ns)?;
        self.arriving.pop_front().map(|(_, packet)| packet)
    }

    /// Sends the replies of a packet that is done.
    pub fn answer(&mut self, now_ns: f64) -> Option<Answered> {
        let packet = self.done.borrow_mut().pop()?;
        assert_eq!(packet.failed(), 0, "the bench asks for what there is");
        let sent_ns = self.fro.carry(now_ns, packet.reply_bytes(), &self.network);
        let at_ns = sent_ns + self.network.one_way_ns;
        let count = packet.count();
        self.returning.push_back((at_ns, count));
        let request_ns = self.network.on_wire_ns(packet.request_bytes());
        let network_ns = self.network.one_way_ns + request_ns + at_ns - now_ns;
        Some(Answered { count, latency_ns: at_ns - packet.sent_ns, network_ns })
    }

    /// When clients or the link have something to do next; `None` if all operations are answered.
    pub fn next_ns(&self) -> Option<f64> {
        let arrival = self.arriving.front().map(|(at_ns, _)| *at_ns);
        let reply = self.returning.front().map(|(at_ns, _)| *at_ns);
        let sends = self.left > 0 && matches!(self.pace, Pace::Open(_));
        let sending = sends.then_some(self.next_ns);
        [arrival, reply, sending].into_iter().flatten().min_by(f64::total_cmp)
    }

    /// Operations whose replies have arrived.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// How long the link was busy, each way.
    pub fn busy_ns(&self) -> [f64; 2] {
        [self.to.busy_ns, self.fro.busy_ns]
    }
}
