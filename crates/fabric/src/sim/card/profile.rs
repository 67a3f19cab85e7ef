//! The costs of a programmable card: the numbers of its DMA engines, its memory and its clock.

/// One kind of card. Times are nanoseconds; a gigabyte is 10^9 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CardProfile {
    /// Its name.
    pub name: &'static str,
    /// The source of the numbers.
    pub source: &'static str,
    /// Clocks in a microsecond: each takes one operation into the pipeline, and each DMA engine
    /// begins one request.
    pub clock_mhz: f64,
    /// PCIe links to its host. Each has tags, credits and a DMA engine of its own.
    pub links: u32,
    /// Gigabytes in a second that a link carries, each way.
    pub link_gbyte_s: f64,
    /// Bytes of a TLP beside its payload.
    pub tlp_bytes: u64,
    /// Most payload of a TLP: a longer WRITE, and the answer to a longer READ, is several.
    pub payload_bytes_max: u64,
    /// Most bytes of a READ request: a longer READ is several, with a tag each.
    pub read_bytes_max: u64,
    /// READs that a link's engine can tell apart, and therefore the most that are under way.
    pub tags: u32,
    /// READs that the root complex takes from a link before it has answered.
    pub read_credits: u32,
    /// WRITEs that the root complex takes from a link before it has carried them out.
    pub write_credits: u32,
    /// Time from when the engine takes up a READ of 64 bytes until they arrive, with nothing else
    /// under way, if the host has them in its processor's cache.
    pub read_ns: f64,
    /// The most that a READ of uncached bytes takes longer; drawn evenly from 0.
    pub random_ns: f64,
    /// Time from a WRITE's last byte on the link to its credit's return.
    pub write_credit_ns: f64,
    /// Time from when the host rings a doorbell until the card hears it.
    pub doorbell_ns: f64,
    /// Gigabytes in a second to and from the card's own memory.
    pub dram_gbyte_s: f64,
    /// Time from a request to the card's own memory to its bytes, with nothing else under way.
    pub dram_ns: f64,
}

impl CardProfile {
    /// The card of the KV-Direct paper.
    pub const KV_DIRECT: CardProfile = CardProfile {
        name: "kv-direct",
        source: "KV-Direct: 180 MHz (§4); two Gen3 x8 links (§4) of 7.87 GB/s, 26 bytes a TLP, READs \
                 of 800 ns cached and 250 ns more on average random, 64 tags, 84 and 88 credits \
                 (§2.4); payload of 256 bytes (§6.1); memory of 12.8 GB/s (§2.4). Tags and credits \
                 are a link's: 64 of them make the 60 M/s of one link of Figure 3a. Assumptions: \
                 the even distribution of what a random READ takes longer; READ requests of 512 \
                 bytes, PCIe's usual limit; a WRITE's credit after the 500 ns of a round trip \
                 (§2.4); doorbells of half of one; 150 ns for memory on the card",
        clock_mhz: 180.0,
        links: 2,
        link_gbyte_s: 7.87,
        tlp_bytes: 26,
        payload_bytes_max: 256,
        read_bytes_max: 512,
        tags: 64,
        read_credits: 84,
        write_credits: 88,
        read_ns: 800.0,
        random_ns: 500.0,
        write_credit_ns: 500.0,
        doorbell_ns: 250.0,
        dram_gbyte_s: 12.8,
        dram_ns: 150.0,
    };

    /// The same card with this number of links.
    pub const fn with_links(self, links: u32) -> Self {
        Self { links, ..self }
    }

    /// Nanoseconds of a clock.
    pub fn clock_ns(&self) -> f64 {
        1e3 / self.clock_mhz
    }

    /// Nanoseconds that a link is busy with this many bytes of payload, in as many TLPs as they
    /// need.
    pub fn on_link_ns(&self, payload: u64) -> f64 {
        let packets = payload.div_ceil(self.payload_bytes_max).max(1);
        (payload + packets * self.tlp_bytes) as f64 / self.link_gbyte_s
    }

    /// How many accesses of this many bytes to random places the links carry in a microsecond if
    /// nothing else limits them.
    pub fn on_links_per_us(&self, payload: u64) -> f64 {
        f64::from(self.links) * 1e3 / self.on_link_ns(payload)
    }
}
