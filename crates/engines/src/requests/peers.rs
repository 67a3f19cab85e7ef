//! The addresses to which a worker sends its replies.

use super::message::Ticket;
use super::worker::Incoming;

/// The clients of a worker that have introduced themselves, as its fabric knows them.
#[derive(Debug)]
pub struct Peers<P>(Vec<Option<P>>);

impl<P: Copy> Peers<P> {
    /// An empty list with room for this many clients.
    pub fn new(clients: u32) -> Self {
        Self(vec![None; clients as usize])
    }

    /// Takes note of the sender of a message that an [`Inbox`](super::Inbox) has accepted. Only a
    /// greeting may say where replies go: a request may be a copy that was sent from elsewhere.
    #[inline]
    pub fn heard(&mut self, incoming: &Incoming, from: P) {
        if let Incoming::Hello(ticket) = incoming {
            self.0[ticket.client as usize] = Some(from);
        }
    }

    /// The address for replies to a client, if the client has introduced itself.
    #[inline]
    pub fn of(&self, ticket: &Ticket) -> Option<P> {
        self.0[ticket.client as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Body;

    #[test]
    fn replies_go_where_a_client_has_introduced_itself() {
        let mut peers = Peers::new(2);
        let [first, second] = [0, 1].map(|client| Ticket::new(client, 5, &Body::Hello));
        peers.heard(&Incoming::Execute(first), 'x');
        peers.heard(&Incoming::Answer(first), 'x');
        assert_eq!((peers.of(&first), peers.of(&second)), (None, None));
        peers.heard(&Incoming::Hello(first), 'a');
        peers.heard(&Incoming::Hello(second), 'b');
        peers.heard(&Incoming::Execute(first), 'x');
        peers.heard(&Incoming::Answer(first), 'x');
        assert_eq!((peers.of(&first), peers.of(&second)), (Some('a'), Some('b')));
        peers.heard(&Incoming::Hello(first), 'c');
        assert_eq!((peers.of(&first), peers.of(&second)), (Some('c'), Some('b')));
    }
}
