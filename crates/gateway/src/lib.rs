//! The protocols of Redis (RESP) and of memcached in front of a table of Loch.
//!
//! A gateway is a process of its own, and a client of Loch like any other: it holds no data. It may
//! crash, be started again, or run in numbers, on any host of the cluster.
//!
//! ```
//! use loch_gateway::{Gateway, GatewayConfig};
//! # use loch::{Cluster, EmbeddedConfig};
//! # use std::io::{Read, Write};
//! # let cluster = Cluster::embedded(EmbeddedConfig::default())?;
//! // For a node in another process: `Cluster::connect(loch::default_socket())?`.
//! let config = GatewayConfig { resp: vec!["127.0.0.1:0".parse()?], ..GatewayConfig::default() };
//! let gateway = Gateway::start(cluster, config)?;
//! # let loch_gateway::Address::Tcp(address) = gateway.resp()[0].clone() else { panic!() };
//! # let mut client = std::net::TcpStream::connect(address)?;
//! # client.write_all(b"SET colour green\r\n")?;
//! # let mut answer = [0; 5];
//! # client.read_exact(&mut answer)?;
//! # assert_eq!(&answer, b"+OK\r\n");
//! gateway.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod address;
mod clients;
mod connection;
mod context;
mod copies;
mod cursors;
mod error;
mod failure;
mod figures;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod gets;
mod http;
mod incoming;
mod input;
mod item;
mod limits;
mod load;
mod looks;
mod memcached;
mod metrics;
mod output;
mod pace;
mod password;
mod protocol;
mod resp;
mod slowlog;
mod store;
mod stream;
mod thread;
mod tls;
mod turns;
mod updating;
mod uses;

pub use address::{Address, ParseAddressError};
pub use error::Error;
pub use gateway::{Gateway, GatewayConfig};
pub use password::PasswordSource;
