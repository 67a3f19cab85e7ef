//! Datagrams: unreliable messages between processes, up to a bound in length.

use super::mailboxes::Datagram;
use super::state::{Event, Inner};
use super::verb::ProcessId;

/// Bytes of the longest datagram: an InfiniBand MTU.
pub const DATAGRAM_BYTES_MAX: usize = 4096;

impl Inner {
    /// Sends a datagram; it may be lost, arrive twice, or be overtaken.
    pub fn send_datagram(&self, from: ProcessId, to: ProcessId, bytes: &[u8], ns: u64) {
        let faults = *self.faults.borrow();
        let copies = if self.happens(faults.lost_messages) {
            0
        } else {
            1 + u32::from(self.happens(faults.doubled_messages))
        };
        for _ in 0..copies {
            let arrives = ns + self.message_ns(bytes.len() as u64);
            let mut mail = self.datagrams.borrow_mut();
            let id = mail.next;
            mail.next += 1;
            mail.flying.insert(id, Datagram { from, to, bytes: bytes.to_vec() });
            drop(mail);
            self.at(arrives, Event::Deliver(id));
        }
    }

    pub fn deliver(&self, id: u64) {
        let Some(datagram) = self.datagrams.borrow_mut().flying.remove(&id) else { return };
        let Datagram { from, to, bytes } = datagram;
        let host = self.process(from).node;
        let node = self.process(to).node;
        // No datagram is sent again: one that cannot pass now is lost.
        if self.process(to).alive && self.is_open(host, node) {
            let mut mail = self.datagrams.borrow_mut();
            mail.arrived.entry(to).or_default().push_back((from, bytes));
            drop(mail);
            self.wake(to, self.now_ns.get());
        }
    }

    pub fn take_datagram(&self, to: ProcessId) -> Option<(ProcessId, Vec<u8>)> {
        self.datagrams.borrow_mut().arrived.get_mut(&to)?.pop_front()
    }
}
