//! The costs of hardware: the numbers of a network card, a link and a processor.

use crate::limits::{CACHE_LINE_BYTES, ROUND_TRIP_BYTES};
use crate::{Atomics, Caps, RoundTrip, Validation};

/// One kind of hardware. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its name on the command line.
    pub name: &'static str,
    /// The source of the numbers.
    pub source: &'static str,
    /// What an endpoint can do, and what is cheap on it.
    pub caps: Caps,
    /// Whether every process maps the memory of all nodes, as on one host.
    pub one_host: bool,
    /// Time from one NIC to another, with the work of both NICs, without queueing.
    pub one_way_ns: u64,
    /// Gigabits a link carries in a second, each way.
    pub link_gbit_s: f64,
    /// Gigabits in a second that cross a host's bus when a NIC serves its own host.
    pub bus_gbit_s: f64,
    /// Bytes of headers around a payload.
    pub header_bytes: u64,
    /// The interval at which a NIC takes up READs and atomics to send.
    pub issue_read_ns: f64,
    /// The interval at which a NIC takes up WRITEs to send.
    pub issue_write_ns: f64,
    /// The interval at which a NIC serves READs.
    pub serve_read_ns: f64,
    /// The interval at which a NIC serves WRITEs.
    pub serve_write_ns: f64,
    /// The interval at which a NIC executes atomics, one after the other.
    pub serve_atomic_ns: f64,
    /// Time from a NIC to its host's memory and back.
    pub dma_ns: u64,
    /// Payload that a WRITE carries inline: longer ones are fetched first.
    pub inline_bytes: u64,
    /// Connections whose state a NIC holds, of those that its own host's processes post on.
    pub connections: u32,
    /// The cost of a verb for the sending NIC if it has to fetch the connection's state first.
    pub connection_miss_ns: f64,
    /// Processor time to ring a doorbell.
    pub doorbell_ns: u64,
    /// Processor time to write one verb.
    pub post_ns: u64,
    /// Processor time to take completions and go on.
    pub resume_ns: u64,
    /// Gigabytes in a second that a processor copies into its own node's memory.
    pub copy_gbyte_s: f64,
    /// How long a request is repeated until its connection is given up.
    pub retry_ns: u64,
    /// How long a scheduler lets a process run while others wait.
    pub slice_ns: u64,
}

/// A fabric over a network.
const NETWORK: Caps = Caps {
    atomics: Atomics::Nic,
    validation: Validation::Checksum,
    round_trip: RoundTrip::Dear,
    round_trip_bytes: ROUND_TRIP_BYTES,
    inline_bytes: CACHE_LINE_BYTES,
};

/// The ConnectX-3 that both papers used, at its slower link.
const CONNECTX_3: Profile = Profile {
    name: "connectx3-10g",
    source: "10 GbE ConnectX-3 of the Nessie paper (§6). Rates of the same card from HERD (§3.2): \
             READs 19.5 M/s both ways, WRITEs 35 M/s in and 21 M/s out, and 256 connections that \
             bring the latter to 15 % (§3.3), from which connections and their misses are set; \
             atomics 2.24 M/s from KV-Direct (§1). Round trip of 2 us from HERD (§3.2). The host's \
             side, a PCIe 3.0 bus of 8 lanes and copies of 5 GB/s, is an assumption",
    caps: NETWORK,
    one_host: false,
    one_way_ns: 800,
    link_gbit_s: 10.0,
    bus_gbit_s: 63.0,
    header_bytes: 60,
    issue_read_ns: 1e3 / 19.5,
    issue_write_ns: 1e3 / 21.0,
    serve_read_ns: 1e3 / 19.5,
    serve_write_ns: 1e3 / 35.0,
    serve_atomic_ns: 1e3 / 2.24,
    dma_ns: 250,
    inline_bytes: 256,
    connections: 64,
    connection_miss_ns: 360.0,
    doorbell_ns: 60,
    post_ns: 20,
    resume_ns: 40,
    copy_gbyte_s: 5.0,
    retry_ns: 500_000_000,
    slice_ns: 4_000_000,
};

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 5] = [
        Self::CONNECTX_3_10,
        Self::CONNECTX_3_56,
        Self::CONNECTX_6_200,
        Self::ONE_HOST,
        Self::KV_DIRECT_40,
    ];

    /// The cluster of the Nessie paper.
    pub const CONNECTX_3_10: Profile = CONNECTX_3;

    /// The cluster of the HERD paper.
    pub const CONNECTX_3_56: Profile = Profile {
        name: "connectx3-56g",
        source: "56 Gb/s ConnectX-3 of the HERD paper (§5.1); the other numbers as connectx3-10g",
        link_gbit_s: 56.0,
        header_bytes: 34,
        ..CONNECTX_3
    };

    /// A card of today.
    pub const CONNECTX_6_200: Profile = Profile {
        name: "connectx6-200g",
        source: "200 Gb/s, 215 M messages/s and 0.8 us from its product brief; the rate of atomics \
                 (20 M/s on one NIC), the number of connections and the host's side (PCIe 4.0 of 16 \
                 lanes, copies of 10 GB/s) are assumptions",
        one_way_ns: 650,
        link_gbit_s: 200.0,
        bus_gbit_s: 252.0,
        copy_gbyte_s: 10.0,
        issue_read_ns: 1e3 / 107.0,
        issue_write_ns: 1e3 / 107.0,
        serve_read_ns: 1e3 / 107.0,
        serve_write_ns: 1e3 / 107.0,
        serve_atomic_ns: 50.0,
        dma_ns: 200,
        connections: 4096,
        connection_miss_ns: 60.0,
        ..CONNECTX_3
    };

    /// Processes of one host, which map all memory: for tests of the code for cheap round trips.
    /// Its times have no meaning.
    pub const ONE_HOST: Profile = Profile {
        name: "one-host",
        source: "none: for tests",
        caps: Caps {
            atomics: Atomics::Coherent,
            validation: Validation::Reread,
            round_trip: RoundTrip::Cheap,
            round_trip_bytes: ROUND_TRIP_BYTES,
            inline_bytes: CACHE_LINE_BYTES,
        },
        one_host: true,
        one_way_ns: 20,
        link_gbit_s: 200.0,
        bus_gbit_s: 200.0,
        copy_gbyte_s: 100.0,
        header_bytes: 0,
        issue_read_ns: 1.0,
        issue_write_ns: 1.0,
        serve_read_ns: 1.0,
        serve_write_ns: 1.0,
        serve_atomic_ns: 1.0,
        dma_ns: 20,
        doorbell_ns: 1,
        post_ns: 1,
        resume_ns: 1,
        connections: u32::MAX,
        connection_miss_ns: 0.0,
        ..CONNECTX_3
    };

    /// The network of the KV-Direct paper, between cards that run their own programs.
    pub const KV_DIRECT_40: Profile = Profile {
        name: "kv-direct-40g",
        source: "40 GbE, 88 bytes of headers around a WRITE, and 2 us there and back from KV-Direct \
                 (§2.4, §4); its cards take up and serve one message a clock of 180 MHz and keep \
                 the bytes themselves, without a DMA, and no state of connections is missing: \
                 assumptions",
        one_way_ns: 1000,
        link_gbit_s: 40.0,
        header_bytes: 88,
        issue_read_ns: 1e3 / 180.0,
        issue_write_ns: 1e3 / 180.0,
        serve_read_ns: 1e3 / 180.0,
        serve_write_ns: 1e3 / 180.0,
        serve_atomic_ns: 1e3 / 180.0,
        dma_ns: 0,
        inline_bytes: u64::MAX,
        connections: u32::MAX,
        connection_miss_ns: 0.0,
        ..CONNECTX_3
    };

    /// The profile of that name.
    pub fn by_name(name: &str) -> Option<Profile> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// Nanoseconds that `payload` bytes occupy a link.
    pub(super) fn on_link_ns(&self, payload: u64) -> f64 {
        ((payload + self.header_bytes) * 8) as f64 / self.link_gbit_s
    }
}

/// Takes a resource for `for_ns` from `from_ns` on, or from when it is free; returns when that
/// begins.
pub(super) fn occupy(free_ns: &mut f64, from_ns: f64, for_ns: f64) -> f64 {
    let begins = free_ns.max(from_ns);
    *free_ns = begins + for_ns;
    begins
}
