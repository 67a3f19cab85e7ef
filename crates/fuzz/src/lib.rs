//! The fuzz targets as functions that need no fuzzer: `fuzz/` feeds them
//! under libFuzzer, the test `replay` feeds them what was kept and what a seed makes of it.
//!
//! A target panics when something is wrong. `docs/fuzzing.md` says what each holds the code to.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod config;
mod entry;
mod functions;
mod gateway;
mod input;
mod kv_direct_packet;
mod memory;
mod region_header;
mod tcp;
mod wire;

pub use config::config;
pub use entry::entry;
pub use functions::functions;
pub use gateway::{gateway_memcached, gateway_resp};
pub use kv_direct_packet::kv_direct_packet;
pub use memory::memory;
pub use region_header::region_header;
pub use tcp::{tcp_agent, tcp_client};
pub use wire::wire;

/// A function that is fed bytes, and panics if something is wrong.
pub type Target = fn(&[u8]);

/// All targets, by their names.
pub const TARGETS: [(&str, Target); 11] = [
    ("config", config),
    ("entry", entry),
    ("functions", functions),
    ("gateway_memcached", gateway_memcached),
    ("gateway_resp", gateway_resp),
    ("kv_direct_packet", kv_direct_packet),
    ("memory", memory),
    ("region_header", region_header),
    ("tcp_agent", tcp_agent),
    ("tcp_client", tcp_client),
    ("wire", wire),
];
