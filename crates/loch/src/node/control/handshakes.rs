//! The connections at the control port whose other side has not proven yet that it is a node.
//!
//! Each connection takes a thread, for up to [`HANDSHAKE_TIMEOUT`]; that of a probe (`probe.rs`),
//! which is no node, for up to [`PROBE_TIMEOUT`]. So there are few places, and
//! anybody can take one. A node's handshake is over after milliseconds. Therefore a silent
//! connection gives way to later ones, and addresses in the cluster's list have precedence over all
//! others.
//!
//! # Invariants
//! 1. There are never more than [`HANDSHAKES_MAX`] connections here.
//! 2. An address that is no node's has at most [`HANDSHAKES_PER_SOURCE`] connections here. The
//!    oldest connection of the same address gives way.
//! 3. If all places are taken, the oldest connection of another address gives way: of strangers'
//!    addresses if there are any, else of the address that has the most connections. A connection
//!    from a node's address is never turned away. A stranger's connection is turned away if nodes'
//!    addresses have all places.
//! 4. A connection is closed to make room only while it is here, under the lock. A node that has
//!    proven itself has left, and is not closed.
//!
//! # Faults
//! Strangers that come fast enough can push out a node that is still at its handshake: all 64
//! places have to change hands within milliseconds. The node tries again. A process that can send
//! from a node's address, such as a local user of its host, competes with nodes on equal terms.
//!
//! [`HANDSHAKE_TIMEOUT`]: crate::limits::HANDSHAKE_TIMEOUT
//! [`PROBE_TIMEOUT`]: crate::limits::PROBE_TIMEOUT

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard};

use super::link::host_of;
use crate::limits::{HANDSHAKES_MAX, HANDSHAKES_PER_SOURCE};

/// The connections, and the addresses of the cluster's nodes.
pub(super) struct Handshakes {
    state: Mutex<State>,
    /// Notified when a connection has left.
    left: Condvar,
}

struct State {
    /// For each node the addresses of its name, and the address from which it came last.
    nodes: Vec<(Vec<IpAddr>, Option<IpAddr>)>,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Names the connection.
    pub link: u64,
    source: IpAddr,
    /// Whether it came from a node's address.
    pub of_node: bool,
}

impl Waiting {
    pub fn new(link: u64, from: IpAddr, of_node: bool) -> Self {
        Self { link, source: source_of(from.to_canonical()), of_node }
    }
}

/// The decision about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The connection has a place.
    Entered,
    /// The connection gets a place when this link has left, which was closed.
    After(u64),
    /// There is no place.
    TurnedAway,
}

impl Handshakes {
    /// Makes the list for node `own` of a cluster with these addresses.
    pub fn new(addresses: &[String], own: usize) -> Self {
        // Names are looked up when they are dialed. The node does not dial itself.
        let known = |(node, address): (usize, &String)| {
            let ip = host_of(address).parse().ok().filter(|_| node != own);
            (ip.into_iter().collect(), None)
        };
        let nodes = addresses.iter().enumerate().map(known).collect();
        let state = State { nodes, waiting: Vec::with_capacity(HANDSHAKES_MAX) };
        Self { state: Mutex::new(state), left: Condvar::new() }
    }

    /// A node's name has these addresses now.
    pub fn resolved(&self, node: usize, addresses: impl Iterator<Item = IpAddr>) {
        self.state().nodes[node].0 = addresses.map(|ip| ip.to_canonical()).collect();
    }

    /// A link came. If another link has to give way, `close` is called for it under the lock:
    /// invariant 4.
    pub fn enter(&self, link: u64, from: IpAddr, close: impl FnOnce(u64)) -> Entry {
        let mut state = self.state();
        let comer = Waiting::new(link, from, state.is_nodes(from.to_canonical()));
        match place_for(&comer, state.waiting.iter()) {
            Room::Free => {
                state.waiting.push(comer);
                Entry::Entered
            }
            Room::Of(oldest) => {
                close(oldest);
                Entry::After(oldest)
            }
            Room::None => Entry::TurnedAway,
        }
    }

    /// Waits until a link that was closed has left.
    pub fn wait_until_gone(&self, link: u64) {
        let is_here = |state: &mut State| state.waiting.iter().any(|it| it.link == link);
        let waited = self.left.wait_while(self.state(), is_here);
        drop(waited.expect("nothing panics while it is held"));
    }

    /// A link has proven that it is a node's.
    pub fn prove(&self, link: u64, node: usize, from: IpAddr) {
        self.state().nodes[node].1 = Some(from.to_canonical());
        self.leave(link);
    }

    /// A link has ended, or has left already.
    pub fn leave(&self, link: u64) {
        self.state().waiting.retain(|it| it.link != link);
        self.left.notify_all();
    }

    /// Returns whether an address is known to be a node's.
    pub fn is_nodes(&self, from: IpAddr) -> bool {
        self.state().is_nodes(from.to_canonical())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

/// The place that a connection may take.
pub(super) enum Room {
    Free,
    /// The place of this link.
    Of(u64),
    None,
}

impl State {
    fn is_nodes(&self, ip: IpAddr) -> bool {
        self.nodes.iter().any(|(named, came)| named.contains(&ip) || *came == Some(ip))
    }
}

/// Finds a place for a connection among others, by invariants 1 to 3.
pub(super) fn place_for<'a>(
    comer: &Waiting,
    waiting: impl Iterator<Item = &'a Waiting> + Clone,
) -> Room {
    let of_same = waiting.clone().filter(|it| it.source == comer.source);
    if !comer.of_node && of_same.clone().count() >= HANDSHAKES_PER_SOURCE {
        return of_same.clone().next().map_or(Room::None, |it| Room::Of(it.link));
    }
    if waiting.clone().count() < HANDSHAKES_MAX {
        return Room::Free;
    }
    let has_strangers = waiting.clone().any(|it| !it.of_node);
    if !has_strangers && !comer.of_node {
        return Room::None;
    }
    let rivals = waiting.filter(|it| !it.of_node || !has_strangers);
    let mut counts = HashMap::new();
    for it in rivals.clone() {
        *counts.entry(it.source).or_insert(0) += 1;
    }
    let most = counts.values().max().copied();
    let oldest = rivals.clone().find(|it| counts.get(&it.source).copied() == most);
    oldest.map_or(Room::None, |it| Room::Of(it.link))
}

/// The address under which a connection is counted. An owner of one IPv6 address has all addresses
/// with the same first half.
fn source_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node 0 is this one, 1 is at 10.0.0.1, and 2 has a name.
    fn handshakes() -> Handshakes {
        let addresses = ["10.0.0.9:1", "10.0.0.1:1", "two:1"].map(str::to_owned);
        Handshakes::new(&addresses, 0)
    }

    /// A connection comes and waits for the link that gives way. Returns that link.
    fn come(handshakes: &Handshakes, link: u64, from: &str) -> Result<Option<u64>, Entry> {
        let (from, mut closed) = (from.parse().unwrap(), None);
        loop {
            match handshakes.enter(link, from, |oldest| closed = Some(oldest)) {
                Entry::Entered => return Ok(closed),
                Entry::TurnedAway => return Err(Entry::TurnedAway),
                Entry::After(oldest) => {
                    assert_eq!(closed, Some(oldest));
                    handshakes.leave(oldest);
                    handshakes.wait_until_gone(oldest);
                }
            }
        }
    }

    fn links(handshakes: &Handshakes) -> Vec<u64> {
        handshakes.state().waiting.iter().map(|it| it.link).collect()
    }

    #[test]
    fn a_stranger_has_few_places_and_its_oldest_connection_gives_way() {
        let handshakes = handshakes();
        for link in 1..=HANDSHAKES_PER_SOURCE as u64 {
            assert_eq!(come(&handshakes, link, "192.0.2.7"), Ok(None));
        }
        assert_eq!(come(&handshakes, 99, "192.0.2.8"), Ok(None));
        assert_eq!(come(&handshakes, 50, "192.0.2.7"), Ok(Some(1)));
        assert_eq!(come(&handshakes, 51, "::ffff:192.0.2.7"), Ok(Some(2)), "the same address");
        assert_eq!(links(&handshakes), [3, 4, 99, 50, 51]);
    }

    #[test]
    fn addresses_of_ipv6_count_by_their_first_half() {
        let handshakes = handshakes();
        for link in 0..HANDSHAKES_PER_SOURCE as u64 {
            assert_eq!(come(&handshakes, link, &format!("2001:db8::{link}")), Ok(None));
        }
        assert_eq!(come(&handshakes, 10, "2001:db8::1:2:3"), Ok(Some(0)));
        assert_eq!(come(&handshakes, 11, "2001:db8:0:1::1"), Ok(None));
    }

    /// Takes all places for strangers: each address has as many as it may.
    fn crowd(handshakes: &Handshakes) {
        for link in 0..HANDSHAKES_MAX {
            let from = format!("192.0.2.{}", link / HANDSHAKES_PER_SOURCE);
            assert_eq!(come(handshakes, link as u64, &from), Ok(None));
        }
    }

    #[test]
    fn the_oldest_stranger_gives_way_if_all_places_are_taken() {
        let handshakes = handshakes();
        crowd(&handshakes);
        assert_eq!(come(&handshakes, 100, "10.0.0.1"), Ok(Some(0)));
        // That source has fewer now. All others have as many as before, and the oldest of them is
        // the fifth.
        let next = HANDSHAKES_PER_SOURCE as u64;
        assert_eq!(come(&handshakes, 101, "198.51.100.1"), Ok(Some(next)));
        assert_eq!(handshakes.state().waiting.len(), HANDSHAKES_MAX);
    }

    #[test]
    fn strangers_are_turned_away_if_nodes_have_all_places_and_nodes_are_not() {
        let handshakes = handshakes();
        for link in 0..HANDSHAKES_MAX as u64 {
            assert_eq!(come(&handshakes, link, "10.0.0.1"), Ok(None));
        }
        assert_eq!(come(&handshakes, 100, "192.0.2.7"), Err(Entry::TurnedAway));
        assert_eq!(come(&handshakes, 101, "10.0.0.1"), Ok(Some(0)));
        // Its name was looked up, so it gets a place from the address that has the most.
        handshakes.resolved(2, ["10.0.0.2".parse().unwrap()].into_iter());
        assert_eq!(come(&handshakes, 102, "10.0.0.2"), Ok(Some(1)));
        assert_eq!(come(&handshakes, 103, "10.0.0.2"), Ok(Some(2)));
    }

    #[test]
    fn an_address_from_which_a_node_came_is_a_nodes() {
        let handshakes = handshakes();
        let elsewhere = "203.0.113.5".parse().unwrap();
        assert!(!handshakes.is_nodes(elsewhere));
        assert!(!handshakes.is_nodes("10.0.0.9".parse().unwrap()), "a node does not dial itself");
        assert_eq!(come(&handshakes, 1, "203.0.113.5"), Ok(None));
        handshakes.prove(1, 2, elsewhere);
        assert!(links(&handshakes).is_empty());
        assert!(handshakes.is_nodes(elsewhere));
        assert!(handshakes.is_nodes("::ffff:10.0.0.1".parse().unwrap()));
    }
}
