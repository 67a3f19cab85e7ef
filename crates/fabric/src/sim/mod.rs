//! The fabric of a simulated cluster: one thread, virtual time, and one seed that decides
//! everything.
//!
//! Engines and lanes run unchanged. They meet everything that RDMA allows and that hardware does:
//!
//! * **time** ([`Profile`]): each card takes up and serves one message after the other, each link
//!   carries one byte after the other, each card executes one atomic after the other; posting and
//!   copying take processor time, and processes that share cores with others run in slices;
//! * **connections**: each process has its own, or the processes of a host share one to each node
//!   ([`World::share_connections`]), so that the cards have fewer to hold;
//! * **cards** ([`SimCard`]): a process may be logic on a programmable card, with DMA over PCIe and
//!   memory of its own, for engines that run there;
//! * **faults** ([`Faults`], and [`World`]'s methods): torn and reordered transfers, delays, stores
//!   that reach memory late, processes that die at any verb or stand still for longer than every
//!   timeout, links that are slow or cut, nodes that fail and come back with or without their
//!   memory, datagrams that get lost or arrive twice.
//!
//! Congestion inside the network, packets (a message is one unit) and caches of processors are not
//! simulated.

mod card;
mod card_ops;
mod connection;
mod datagram;
mod endpoint;
mod faults;
mod flight;
mod mailboxes;
mod many;
mod memory;
mod messages;
mod nic;
mod posted;
mod process;
mod profile;
mod queue;
mod shared;
mod state;
mod stop;
#[cfg(test)]
mod tests;
mod verb;
mod watch;
mod world;

pub use card::{CardId, CardProfile};
pub use card_ops::{CardOp, SimCard};
pub use datagram::DATAGRAM_BYTES_MAX;
pub use endpoint::SimEndpoint;
pub use faults::Faults;
pub use profile::Profile;
pub use verb::ProcessId;
pub use watch::{Change, How};
pub use world::World;
