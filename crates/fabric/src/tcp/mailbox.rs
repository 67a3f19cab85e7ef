//! A worker's messages: what clients send to its mailbox, and its replies on their connections.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::admission::{Admitted, Push};
use super::frame::Told;
use super::lent::Lent;
use super::letters::Letters;
use crate::limits::MAIL_MESSAGE_BYTES_MAX;
use crate::messages::{AddressKind, check_lengths};
use crate::shm::Bell;
use crate::{Buf, FabricError, MessageAddress, Messages, RegionId, Result};

/// One worker's messages from and to clients that have connected to its node's agent. Made by
/// [`Agent::mailbox`](super::Agent::mailbox).
///
/// A message to a client leaves with the next [`TcpMailbox::flush`]. It is lost with the client's
/// connection, or if the client does not take it.
pub struct TcpMailbox {
    lent: Arc<Lent>,
    letters: Arc<Letters>,
    address: MessageAddress,
    number: u32,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    /// What was taken out of the mailbox.
    taken: VecDeque<(Arc<Admitted>, Vec<u8>)>,
    clients: HashMap<u64, Weak<Admitted>>,
    /// Clients for which something has to leave.
    dirty: Vec<Arc<Admitted>>,
    /// The number of clients above which those that have gone are forgotten.
    clients_max: usize,
}

/// A client, as a worker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpClient(u64);

#[cfg(test)]
impl TcpClient {
    pub(super) fn of(number: u64) -> Self {
        Self(number)
    }
}

impl TcpMailbox {
    pub(super) fn open(lent: Arc<Lent>, region: RegionId, bell: Option<Bell>) -> Self {
        let letters = Arc::new(Letters::new(bell));
        let number = lent.open_mailbox(&letters);
        let words = [region.0.into(), number.into(), 0];
        let address = MessageAddress::new(AddressKind::Connection, words);
        let inner = RefCell::default();
        Self { lent, letters, address, number, inner }
    }

    /// Sends the messages. A worker calls it after each of its turns.
    pub fn flush(&self) {
        self.inner.borrow_mut().dirty.drain(..).for_each(|client| client.flush());
    }
}

impl Inner {
    fn know(&mut self, client: &Arc<Admitted>) -> TcpClient {
        let known = self.clients.entry(client.number);
        known.or_insert_with(|| Arc::downgrade(client));
        if self.clients.len() > self.clients_max {
            self.clients.retain(|_, client| client.strong_count() > 0);
            self.clients_max = 2 * self.clients.len() + 64;
        }
        TcpClient(client.number)
    }
}

impl Messages for TcpMailbox {
    type Peer = TcpClient;

    fn message_bytes_max(&self) -> usize {
        MAIL_MESSAGE_BYTES_MAX
    }

    fn address(&self) -> MessageAddress {
        self.address
    }

    /// Clients have no addresses: they send first.
    fn peer(&self, _: &MessageAddress) -> Result<TcpClient> {
        Err(FabricError::BadAddress { why: "a client sends first" })
    }

    fn send_all(&self, messages: &[(TcpClient, &[u8])]) -> Result<()> {
        check_lengths(messages, self.message_bytes_max())?;
        let Inner { clients, dirty, .. } = &mut *self.inner.borrow_mut();
        for (TcpClient(to), bytes) in messages {
            let Some(client) = clients.get(to).and_then(Weak::upgrade) else { continue };
            let told = Told::Message { mailbox: self.number, len: bytes.len() as u32 };
            if client.push(told, &[bytes]) == Push::First {
                dirty.push(client);
            }
        }
        Ok(())
    }

    fn try_receive(&self, mut buf: Buf) -> Result<(TcpClient, Buf), Buf> {
        let inner = &mut *self.inner.borrow_mut();
        self.letters.take(&mut inner.taken);
        let Some((from, message)) = inner.taken.pop_front() else { return Err(buf) };
        buf.extend_from_slice(&message);
        Ok((inner.know(&from), buf))
    }
}

impl Drop for TcpMailbox {
    fn drop(&mut self) {
        self.lent.close_mailbox(self.number);
    }
}
