//! Loch's data paths: memory layouts and protocols, as async code over the [`loch_fabric`] trait.
//!
//! An engine answers one question: who does the work of an operation when memory is remote?
//! [`nessie`] answers: the client alone. Engines make no system calls and name no fabric backend;
//! time and randomness come in through the fabric.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

// `tests/reference`, which unit tests of the harness of the papers use too, names this crate.
#[cfg(test)]
extern crate self as loch_engines;

pub mod checksum;
pub mod effect;
pub mod engine;
pub mod epoch;
pub mod error;
#[cfg(feature = "example")]
#[path = "../../../tests/example/mod.rs"]
pub mod example;
pub mod functions;
pub mod herd;
pub mod key_hash;
pub mod kv;
pub mod kv_direct;
pub mod limits;
pub mod lines;
pub mod log;
pub mod nessie;
pub mod nessie_hybrid;
pub mod nessie_server;
pub mod net;
pub mod operation;
pub mod pilaf;
#[doc(hidden)]
pub mod planted;
pub mod region;
pub mod registry;
pub mod requests;
pub mod room;
pub mod scan;
mod secret;
pub mod serve;
pub mod size;
mod spare;
mod sync;
mod value;
mod versions;

pub use engine::Engine;
pub use error::EngineError;
pub use kv::Kv;
