//! A client's messages: to the mailboxes of workers, over its connections, and their replies.

use std::sync::{Arc, Mutex, MutexGuard};

use super::engine::Engine;
use super::pushed::TcpWorker;
use super::turns::lock;
use crate::away::Carrier;
use crate::limits::{MAIL_MESSAGE_BYTES_MAX, TCP_LISTEN_EVERY};
use crate::messages::{AddressKind, check_lengths};
use crate::{Buf, FabricError, MessageAddress, Messages, RegionId, Result};

/// The messages of a [`TcpEndpoint`](super::TcpEndpoint)'s thread, over its connections. Made by
/// [`TcpEndpoint::messages`](super::TcpEndpoint::messages).
pub struct TcpMessages {
    engine: Arc<Mutex<Engine>>,
}

impl TcpMessages {
    pub(super) fn new(engine: Arc<Mutex<Engine>>) -> Self {
        Self { engine }
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        lock(&self.engine)
    }
}

impl Messages for TcpMessages {
    type Peer = TcpWorker;

    fn message_bytes_max(&self) -> usize {
        MAIL_MESSAGE_BYTES_MAX
    }

    /// Nobody sends to it: workers answer on the connection on which they were asked.
    fn address(&self) -> MessageAddress {
        MessageAddress::from_words([0; MessageAddress::WORDS])
    }

    fn peer(&self, address: &MessageAddress) -> Result<TcpWorker> {
        let [region, mailbox, rest] = address.of_kind(AddressKind::Connection)?;
        match (u8::try_from(region), u32::try_from(mailbox), rest) {
            (Ok(region), Ok(mailbox), 0) => Ok(TcpWorker { region: RegionId(region), mailbox }),
            _ => Err(FabricError::BadAddress { why: "it is no worker's" }),
        }
    }

    /// A message to a node to which there is no connection is lost.
    fn send_all(&self, messages: &[(TcpWorker, &[u8])]) -> Result<()> {
        check_lengths(messages, self.message_bytes_max())?;
        let mut engine = self.engine();
        messages.iter().for_each(|(to, bytes)| engine.queue_message(*to, bytes));
        engine.ring();
        Ok(())
    }

    fn try_receive(&self, mut buf: Buf) -> Result<(TcpWorker, Buf), Buf> {
        let mut engine = self.engine();
        if engine.pushed.is_empty() {
            // A thread with lanes looks after each round, and another does here.
            engine.listen();
            engine.look_every(TCP_LISTEN_EVERY);
        }
        let Some((from, message)) = engine.pushed.take() else { return Err(buf) };
        buf.extend_from_slice(&message);
        Ok((from, buf))
    }
}
