//! The counts of a measurement, and what limited it.

use hdrhistogram::Histogram;
use loch_engines::lines::{HostMemory, LINE_BYTES};
use loch_fabric::sim::CardProfile;

use super::card::CardProcessor;
use super::clients::Clients;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Nanoseconds of each operation, from the sending of its packet to the arrival of its replies.
    pub latency: Histogram<u64>,
    /// The network's part of the latency.
    pub network: Histogram<u64>,
    /// The counts meanwhile.
    pub totals: Totals,
    /// The card.
    pub card: CardProfile,
}

/// All counts, at one moment or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Virtual time.
    pub ns: f64,
    /// Operations that were admitted: as many as are answered, but they are not counted packet by
    /// packet.
    pub ops: f64,
    /// Operations that were executed, and how many of them on a value at hand.
    pub executed: f64,
    pub forwarded: f64,
    /// READs and WRITEs of host memory, and their lines.
    pub reads: f64,
    pub writes: f64,
    pub lines_read: f64,
    pub lines_written: f64,
    /// Accesses to the card's memory.
    pub dram: f64,
    /// Accesses to cacheable lines, and how many of them hit.
    pub cacheable: f64,
    pub hits: f64,
    /// How long the link was busy, to the card and from it.
    pub to_ns: f64,
    pub from_ns: f64,
}

impl Totals {
    /// At this moment.
    pub fn now(processor: &CardProcessor, clients: &Clients, ns: f64, ops: u64) -> Self {
        let (memory, counts) = (processor.storage().memory(), processor.counts());
        let (host, dispatched) = (memory.host().counts(), memory.dispatched());
        let parts = [host.index, host.data, host.slabs];
        let [to_ns, from_ns] = clients.busy_ns();
        Self {
            ns,
            ops: ops as f64,
            executed: counts.executed as f64,
            forwarded: counts.forwarded as f64,
            reads: parts.map(|part| part.reads as f64).iter().sum(),
            writes: parts.map(|part| part.writes as f64).iter().sum(),
            lines_read: parts.map(|part| part.lines_read as f64).iter().sum(),
            lines_written: parts.map(|part| part.lines_written as f64).iter().sum(),
            dram: (dispatched.dram_reads + dispatched.dram_writes) as f64,
            cacheable: dispatched.cacheable() as f64,
            hits: (dispatched.read_hits + dispatched.write_hits) as f64,
            to_ns,
            from_ns,
        }
    }

    /// From an earlier moment to this one.
    pub fn since(&self, then: &Self) -> Self {
        Self {
            ns: self.ns - then.ns,
            ops: self.ops - then.ops,
            executed: self.executed - then.executed,
            forwarded: self.forwarded - then.forwarded,
            reads: self.reads - then.reads,
            writes: self.writes - then.writes,
            lines_read: self.lines_read - then.lines_read,
            lines_written: self.lines_written - then.lines_written,
            dram: self.dram - then.dram,
            cacheable: self.cacheable - then.cacheable,
            hits: self.hits - then.hits,
            to_ns: self.to_ns - then.to_ns,
            from_ns: self.from_ns - then.from_ns,
        }
    }
}

/// The resources that can limit operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// One operation a cycle.
    Clock,
    /// 40 Gb/s.
    Network,
    /// READs under way, or bytes, of the links to the host.
    Pcie,
    /// The card's memory.
    Dram,
    /// No resource: operations wait for each other, or the most possible operations are under way.
    InFlight,
}

impl Limit {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Network => "network",
            Self::Pcie => "PCIe",
            Self::Dram => "DRAM",
            Self::InFlight => "in flight",
        }
    }
}

/// A resource that is at least this busy is the limit.
const LIMITS_FROM: f64 = 0.9;

impl Measured {
    /// Operations in a microsecond.
    pub fn mops(&self) -> f64 {
        self.totals.ops / self.totals.ns * 1e3
    }

    /// The share of operations that were executed on a value at hand.
    pub fn merged(&self) -> f64 {
        self.totals.forwarded / self.totals.executed.max(1.0)
    }

    /// The share of accesses to cacheable lines that hit the card's memory.
    pub fn hit_rate(&self) -> f64 {
        self.totals.hits / self.totals.cacheable.max(1.0)
    }

    /// Accesses to host memory for an operation.
    pub fn dma(&self) -> f64 {
        (self.totals.reads + self.totals.writes) / self.totals.ops
    }

    /// How busy each resource is, as a share of its capacity.
    pub fn busy(&self) -> [(Limit, f64); 4] {
        let (totals, card) = (&self.totals, &self.card);
        let in_time = |ns: f64| ns / totals.ns;
        [
            (Limit::Clock, in_time(totals.ops * card.clock_ns())),
            (Limit::Network, in_time(totals.to_ns.max(totals.from_ns))),
            (Limit::Pcie, in_time(pcie_ns(totals, card))),
            (Limit::Dram, in_time(totals.dram * LINE_BYTES as f64 / card.dram_gbyte_s)),
        ]
    }

    /// The resource that limits them.
    pub fn limit(&self) -> Limit {
        let busiest = self.busy().into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        match busiest {
            Some((limit, share)) if share >= LIMITS_FROM => limit,
            _ => Limit::InFlight,
        }
    }
}

/// How long the links need for their traffic: tags, way down, way up.
fn pcie_ns(totals: &Totals, card: &CardProfile) -> f64 {
    let read_ns = card.read_ns + card.random_ns / 2.0;
    let tags_ns = totals.reads * read_ns / f64::from(card.tags);
    let bytes = |lines: f64, tlps: f64| lines * LINE_BYTES as f64 + tlps * card.tlp_bytes as f64;
    let down_ns = bytes(totals.lines_read, totals.reads) / card.link_gbyte_s;
    let up_ns = bytes(totals.lines_written, totals.reads + totals.writes) / card.link_gbyte_s;
    tags_ns.max(down_ns).max(up_ns) / f64::from(card.links)
}
