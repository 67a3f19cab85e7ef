//! Two hosts on one machine: network namespaces, joined by a wire that may delay what goes over it,
//! and lose some.
//!
//! A wire that does neither is a pair of `veth` devices, which the kernel joins. For any other,
//! each host's device is a TAP, and a thread of this process carries the frames from one to the
//! other ([`Weather`]). `tc netem` would do the same without that thread, but many kernels lack it.
//!
//! All this needs root.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod hosts;
mod wire;

pub use hosts::Hosts;
pub use wire::Weather;
