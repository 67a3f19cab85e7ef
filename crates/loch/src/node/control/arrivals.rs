//! The connections that the fabric has accepted for the control port, until the port's thread takes
//! them.
//!
//! # Invariants
//! 1. The fabric's threads never wait here.
//! 2. There are few places, and the rules of `handshakes.rs` say who gets them: an address that is
//!    no node's has some, and strangers give way to nodes.
//! 3. A connection from a node's address is taken before all others. Other connections are taken in
//!    the order in which they came.

use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use super::handshakes::{Handshakes, Room, Waiting, place_for};

/// The connections that have come.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Knows the nodes' addresses. It is set when the control port opens.
    handshakes: OnceLock<Arc<Handshakes>>,
    state: Mutex<State>,
    /// Notified when a connection has come, or no more do.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order in which they came.
    waiting: Vec<Arrival>,
    /// How many have come.
    count: u64,
    is_closed: bool,
}

struct Arrival {
    waiting: Waiting,
    stream: TcpStream,
    from: IpAddr,
}

impl Arrivals {
    /// From now on, nodes have precedence.
    pub(super) fn knows(&self, handshakes: Arc<Handshakes>) {
        // There is one control port.
        let _ = self.handshakes.set(handshakes);
    }

    /// A connection was accepted from an address.
    pub fn push(&self, stream: TcpStream, from: IpAddr) {
        let of_node = self.handshakes.get().is_some_and(|it| it.is_nodes(from));
        let mut state = self.state();
        let waiting = Waiting::new(state.count, from, of_node);
        state.count += 1;
        if state.is_closed {
            return;
        }
        match place_for(&waiting, state.waiting.iter().map(|it| &it.waiting)) {
            Room::Free => (),
            Room::Of(oldest) => state.waiting.retain(|it| it.waiting.link != oldest),
            // Strangers that mean well try again.
            Room::None => return tracing::debug!(%from, "too many connections at a time"),
        }
        state.waiting.push(Arrival { waiting, stream, from });
        self.changed.notify_one();
    }

    /// Waits for a connection, and returns its address too; `None` when no more come.
    pub fn next(&self) -> Option<(TcpStream, IpAddr)> {
        let is_empty = |state: &mut State| !state.is_closed && state.waiting.is_empty();
        let waited = self.changed.wait_while(self.state(), is_empty);
        let mut state = waited.expect("nothing panics while it is held");
        if state.is_closed {
            return None;
        }
        let of_node = state.waiting.iter().position(|it| it.waiting.of_node);
        let Arrival { stream, from, .. } = state.waiting.remove(of_node.unwrap_or(0));
        Some((stream, from))
    }

    /// Ends all connections that wait here. No more come.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.waiting.clear();
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{SocketAddr, TcpListener};
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

    use super::*;
    use crate::limits::{HANDSHAKES_MAX, HANDSHAKES_PER_SOURCE};

    const NODE: [u8; 4] = [127, 0, 0, 1];

    /// The connections to a port at which node 1 of two is known.
    fn arrivals() -> (TcpListener, Arrivals) {
        let arrivals = Arrivals::default();
        let addresses = ["127.0.0.2:1", "127.0.0.1:1"].map(str::to_owned);
        arrivals.knows(Arc::new(Handshakes::new(&addresses, 0)));
        (TcpListener::bind("127.0.0.1:0").unwrap(), arrivals)
    }

    /// A connection from an address of this host. Returns its end of it.
    fn come(from: [u8; 4], listener: &TcpListener, arrivals: &Arrivals) -> TcpStream {
        let near = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&near, &SocketAddr::from((from, 0))).unwrap();
        connect(&near, &listener.local_addr().unwrap()).unwrap();
        let (far, address) = listener.accept().unwrap();
        arrivals.push(far, address.ip());
        near.into()
    }

    fn next(arrivals: &Arrivals) -> (TcpStream, IpAddr) {
        arrivals.next().expect("one has come")
    }

    /// Strangers that sent a byte and reset their connections once kept nodes out: the port's
    /// thread asked each for its address, took the error for one of the system's, and paused.
    #[test]
    fn a_connection_that_was_reset_tells_its_address_like_any_other() {
        let (listener, arrivals) = arrivals();
        for _ in 0..1000 {
            let stranger = come([127, 0, 0, 9], &listener, &arrivals);
            sockopt::set_socket_linger(&stranger, Some(Duration::ZERO)).unwrap();
            drop(stranger);
            let (stream, from) = next(&arrivals);
            assert_eq!(from, IpAddr::from([127, 0, 0, 9]));
            assert_eq!(stream.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        }
    }

    #[test]
    fn strangers_leave_places_to_nodes_which_are_taken_first() {
        let (listener, arrivals) = arrivals();
        let sources = HANDSHAKES_MAX / HANDSHAKES_PER_SOURCE;
        let mut strangers: Vec<_> = (0..10 * HANDSHAKES_MAX)
            .map(|n| come([127, 0, 1, 1 + (n % sources) as u8], &listener, &arrivals))
            .collect();
        let node = come(NODE, &listener, &arrivals);
        strangers.extend((0..HANDSHAKES_MAX).map(|_| come([127, 0, 2, 1], &listener, &arrivals)));
        let (stream, from) = next(&arrivals);
        assert_eq!(from, IpAddr::from(NODE));
        assert_eq!(stream.peer_addr().unwrap(), node.local_addr().unwrap());
        let waiting = arrivals.state().waiting.len();
        assert_eq!(waiting, HANDSHAKES_MAX - 1, "a stranger gave way to the node");
        for _ in 0..waiting {
            assert_ne!(next(&arrivals).1, IpAddr::from(NODE));
        }
    }

    #[test]
    fn one_address_that_is_no_nodes_has_few_places() {
        let (listener, arrivals) = arrivals();
        let strangers: Vec<_> = (0..HANDSHAKES_MAX)
            .map(|_| come([127, 0, 0, 9], &listener, &arrivals).local_addr().unwrap())
            .collect();
        assert_eq!(arrivals.state().waiting.len(), HANDSHAKES_PER_SOURCE);
        let first = arrivals.state().waiting[0].stream.peer_addr();
        let oldest = strangers[HANDSHAKES_MAX - HANDSHAKES_PER_SOURCE];
        // The stranger has closed its end, which is still known.
        assert!(first.is_ok_and(|first| first == oldest), "its newest have them");
    }

    #[test]
    fn a_closed_port_takes_no_more() {
        let (listener, arrivals) = arrivals();
        let _one = come(NODE, &listener, &arrivals);
        arrivals.close();
        let _other = come(NODE, &listener, &arrivals);
        assert!(arrivals.next().is_none() && arrivals.state().waiting.is_empty());
    }
}
