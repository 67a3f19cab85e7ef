//! The simulated endpoint's messages, as the traits have them.

use super::{DATAGRAM_BYTES_MAX, ProcessId, SimEndpoint};
use crate::{Buf, FabricError, Messages, RemoteAddr, UnreliableWrites};

impl Messages for SimEndpoint {
    type Peer = ProcessId;

    fn message_bytes_max(&self) -> usize {
        DATAGRAM_BYTES_MAX
    }

    fn send_all(&self, messages: &[(ProcessId, &[u8])]) -> Result<(), FabricError> {
        let max = DATAGRAM_BYTES_MAX as u64;
        if let Some((_, long)) = messages.iter().find(|(_, bytes)| bytes.len() as u64 > max) {
            return Err(FabricError::TooLong { len: long.len() as u64, max });
        }
        messages.iter().try_for_each(|(to, bytes)| SimEndpoint::send(self, *to, bytes))
    }

    async fn receive(&self, mut buf: Buf) -> (ProcessId, Buf) {
        let (from, bytes) = SimEndpoint::receive(self).await;
        buf.extend_from_slice(&bytes);
        (from, buf)
    }
}

impl UnreliableWrites for SimEndpoint {
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
        SimEndpoint::write_unreliable(self, at, bytes)
    }
}
