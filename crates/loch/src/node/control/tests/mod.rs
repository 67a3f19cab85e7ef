//! The control plane on loopback TCP, with an acceptor that stands for the device.

mod certificates;
mod endings;
mod grants;
mod links;
mod planes;
#[path = "../../../../tests/ports/mod.rs"]
pub(crate) mod ports;
mod probes;
pub(crate) mod rig;
mod strangers;
