//! What the fuzz targets do with their bytes, as functions that need no fuzzer: `fuzz/` feeds them
//! under libFuzzer, the test `replay` feeds them what was kept and what a seed makes of it.
//!
//! A target panics when something is wrong. `docs/fuzzing.md` says what each holds the code to.

#![forbid(unsafe_code)]

mod config;
mod entry;
mod input;
mod memory;
mod region_header;
mod wire;

pub use config::config;
pub use entry::entry;
pub use memory::memory;
pub use region_header::region_header;
pub use wire::wire;

/// A function that is fed bytes, and panics if something is wrong.
pub type Target = fn(&[u8]);

/// All targets, by their names.
pub const TARGETS: [(&str, Target); 5] = [
    ("config", config),
    ("entry", entry),
    ("memory", memory),
    ("region_header", region_header),
    ("wire", wire),
];
