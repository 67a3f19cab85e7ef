//! Addresses for the nodes of tests.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports that the system gives to nobody by itself: a connection of another test could else have
/// the port before a node listens there.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// An address at which no process listens.
pub fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Tests of other processes begin elsewhere.
        let next =
            std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (next % PORTS.len() as u32) as u16;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().unwrap().to_string();
        }
    }
}
