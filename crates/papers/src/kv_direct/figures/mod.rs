//! The figures, one in a file.

pub mod batching;
pub mod cards;
pub mod dispatch;
pub mod dma;
pub mod gather;
pub mod latency;
pub mod out_of_order;
mod paper;
pub mod ratios;
pub mod scale;
pub mod throughput;
pub mod vectors;
