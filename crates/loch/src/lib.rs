//! Loch: an RDMA-native in-memory key-value store.
//!
//! A **node** ([`Node`], the process `loch serve`) owns memory and lends it out. A **client**
//! attaches to that memory ([`Cluster`]) and executes every operation on a **table** ([`Table`]) by
//! itself, with one-sided verbs. No server takes part, and a node's process may be down while its
//! clients work.
//!
//! ```
//! use loch::{Cluster, EmbeddedConfig};
//!
//! // Nodes in this process, for tests and for programs that want no other process. To attach
//! // to a running node write `Cluster::connect(socket)`; the rest is the same.
//! let cluster = Cluster::embedded(EmbeddedConfig::default())?;
//! let table = cluster.table("default")?;
//!
//! let version = table.put(b"colour", b"green")?;
//! assert_eq!(&table.get(b"colour")?.expect("it was just put")[..], b"green");
//!
//! table.put_if_version(b"colour", b"blue", version)?;
//! assert_eq!(table.fetch_add(b"visits", 1)?, 0);
//! assert!(table.delete(b"colour")?);
//! # Ok::<(), loch::Error>(())
//! ```
//!
//! The lanes of one thread execute many operations at a time: while one lane waits, another works.
//!
//! ```
//! # use loch::{Cluster, EmbeddedConfig};
//! use loch::lanes::{block_on, run};
//! # let table = Cluster::embedded(EmbeddedConfig::default())?.table("default")?;
//! table.put_many(&[("a", "1"), ("b", "2"), ("c", "3")])?;
//! let lanes = table.asynch();
//! let mut found = 0;
//! let work = ["a", "b", "x"].into_iter().map(|key| lanes.get(key.as_bytes()));
//! block_on(run(16, work, |value| found += matches!(value, Ok(Some(_))) as usize));
//! assert_eq!(found, 2);
//! # Ok::<(), loch::Error>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod api;
mod client;
mod embedded;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod layout;
pub mod limits;
mod node;
mod private;
mod secret_file;
mod session;
#[doc(hidden)]
pub mod simulated;

pub use api::cluster::{Cluster, ClusterInfo, NodeInfo};
pub use api::lambda::{Builtin, Element, Function, Integer, Lambda, Number};
pub use api::table::asynch::AsyncTable;
pub use api::table::pinned::Pinned;
pub use api::table::reservation::Reservation;
pub use api::table::scan::{ParseScanCursorError, Scan, ScanCursor, ScanPage, ScannedKey};
pub use api::table::touch::Expiry;
pub use api::table::{PutOptions, Table};
pub use client::counters::Counters;
pub use client::options::ConnectOptions;
pub use error::{Error, Result};
pub use layout::config::{
    Connections, EmbeddedConfig, FabricKind, NodeConfig, TlsConfig, WorkersConfig, default_socket,
};
#[doc(hidden)]
pub use layout::config::{SHARED_OVER_TCP, SHARED_OVER_VERBS};
pub use layout::declaration::TableConfig;
pub use layout::table_info::TableInfo;
/// The engines, with the options of their tables.
pub use loch_engines as engines;
pub use loch_engines::engine::FunctionConfig;
pub use loch_engines::error::{EngineError, ErrorKind};
pub use loch_engines::nessie::options::TableProtocol;
pub use loch_engines::nessie::{CacheLimits, CheckReport, ForgottenOf, Usage};
pub use loch_engines::operation::{Conditional, Expect, Value, ValueRef, Version};
/// An engine, with the options of a table.
pub use loch_engines::registry::Options as Engine;
pub use loch_engines::size::{ByteSize, ParseSizeError};
#[doc(hidden)]
pub use loch_fabric::RateLimit;
pub use loch_fabric::shm::Pages;
pub use loch_fabric::{FabricError, VerbCount, lanes};
pub use node::control::probe::{ClusterProbe, NodeFacts, NodeProbe, ProbeError, ProbeReads};
#[cfg(feature = "functions")]
pub use node::functions::{FunctionError, FunctionInstance, FunctionLimits, Functions};
pub use node::storage::FileStorage;
pub use node::{Node, NodeWatch};
#[doc(hidden)]
pub use secret_file::open_secret;
