//! The simulated endpoint's messages, as the traits have them.

use super::verb::Work;
use super::{DATAGRAM_BYTES_MAX, ProcessId, SimEndpoint};
use crate::messages::{AddressKind, check_lengths};
use crate::{Buf, FabricError, MessageAddress, Messages, RemoteAddr, Result, UnreliableWrites};

impl SimEndpoint {
    /// The same endpoint on a network whose messages have up to this many bytes.
    #[must_use]
    pub fn with_message_bytes_max(self, message_bytes_max: usize) -> Self {
        Self { message_bytes_max: message_bytes_max.min(DATAGRAM_BYTES_MAX), ..self }
    }
}

impl Messages for SimEndpoint {
    type Peer = ProcessId;

    fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    fn address(&self) -> MessageAddress {
        MessageAddress::new(AddressKind::Process, [u64::from(self.process.0), 0, 0])
    }

    fn peer(&self, address: &MessageAddress) -> Result<ProcessId> {
        let [number, ..] = address.of_kind(AddressKind::Process)?;
        let there_are = self.world.process_count();
        let known = u32::try_from(number).ok().filter(|number| *number < there_are);
        let why = "there is no such process";
        known.map(ProcessId).ok_or(FabricError::BadAddress { why })
    }

    fn send_all(&self, messages: &[(ProcessId, &[u8])]) -> Result<()> {
        check_lengths(messages, self.message_bytes_max)?;
        messages.iter().try_for_each(|(to, bytes)| SimEndpoint::send(self, *to, bytes))
    }

    /// Virtual time stands still here: a loop that polls has to pause.
    fn try_receive(&self, mut buf: Buf) -> Result<(ProcessId, Buf), Buf> {
        match self.world.take_datagram(self.process) {
            Some((from, bytes)) => {
                buf.extend_from_slice(&bytes);
                Ok((from, buf))
            }
            None => Err(buf),
        }
    }
}

impl UnreliableWrites for SimEndpoint {
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let id = self.post(Work::Write, at, bytes.to_vec())?;
        let lost = self.world.happens(self.world.faults.borrow().lost_messages);
        if let Some(verb) = self.world.verbs.borrow_mut().get(id) {
            (verb.unreliable, verb.lost, verb.detached) = (true, lost, true);
        }
        Ok(())
    }
}
