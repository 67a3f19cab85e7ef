//! Between a client and its node: the socket, and the session that is opened over it.

pub(crate) mod connection;
#[cfg(feature = "verbs")]
pub(crate) mod device;
#[cfg(not(feature = "verbs"))]
#[path = "no_device.rs"]
pub(crate) mod device;
pub(crate) mod endpoint;
pub(crate) mod lease;
pub(crate) mod local;
pub(crate) mod slot;
pub(crate) mod wire;
