//! Numbers from the text of the paper; its figures are pictures.

/// READs of 64 bytes over one link (§2.4, Figure 3a), and the rate that the bytes on the link
/// allow.
pub const DMA_MOPS: [f64; 2] = [60.0, 87.0];
/// Latency of READs of 64 bytes, cached and random (§2.4).
pub const DMA_NS: [f64; 2] = [800.0, 1050.0];
/// The largest gain of gathering, in percent, and its latency (§6.1).
pub const GATHERING: (f64, f64) = (79.0, 20.0);
/// One operation a clock (§4).
pub const CLOCK_MOPS: f64 = 180.0;
/// Atomics on one key if the pipeline stalls (§5.1.3).
pub const STALLED_MOPS: f64 = 0.94;
/// The gain of executing out of order (§5.1.3).
pub const OUT_OF_ORDER_GAIN: f64 = 191.0;
/// Atomics on one key by an RDMA NIC (§5.1.3).
pub const RDMA_MOPS: f64 = 2.24;
/// GETs and PUTs of 10 bytes, long-tail (Table 3).
pub const LONG_TAIL_MOPS: [f64; 2] = [180.0, 114.0];
/// GETs and PUTs of ten cards (Table 3).
pub const TEN_CARDS_MOPS: [f64; 2] = [1220.0, 610.0];
/// Gain of network batching (§5.1.5), and the latency below which it stays.
pub const BATCHING_GAIN: f64 = 4.0;
pub const BATCHING_US: f64 = 3.5;
/// Bytes of a vector, and its throughputs in Table 2 in GB/s: update with return, without return,
/// one key for each element, fetched to the client.
pub const VECTORS: [(usize, [f64; 4]); 5] = [
    (64, [11.52, 4.37, 2.09, 0.03]),
    (128, [11.52, 4.53, 2.09, 0.06]),
    (256, [11.52, 4.62, 2.09, 0.12]),
    (512, [11.52, 4.66, 2.09, 0.24]),
    (1024, [11.52, 4.68, 2.09, 0.46]),
];
