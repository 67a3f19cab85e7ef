//! The path of a client's requests: by SEND (pilaf §3.1), or by WRITE into the client's request
//! slot if they are longer than a datagram.
//!
//! The paper's messages have no limit, because it uses SEND over reliable connections. Datagrams
//! have a limit. The server looks at slots anyway, so a long request WRITTEN into a slot needs no
//! pieces, no order among pieces, and no memory for incomplete requests. A client may write only
//! its own request slots.

use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, Messages, RemoteAddr};

use crate::requests::{BySend, ByWrite, RequestPath, Sent, WorkerId};

/// Bytes of the longest reply. Replies carry no values, unless a client asks for one by message.
pub const REPLY_BYTES_MAX: usize = 496;

/// Requests by SEND, or by WRITE if they are too long for that.
#[derive(Clone, Debug)]
pub struct SendOrWrite<P> {
    /// The path by SEND.
    pub send: BySend<P>,
    /// The path by WRITE.
    pub write: ByWrite,
    /// Bytes of the longest request that goes by SEND, if the fabric can send that many.
    pub send_bytes_max: usize,
}

impl<F: Fabric + Messages> RequestPath<F> for SendOrWrite<F::Peer> {
    const BY_SEND: bool = true;

    #[inline]
    async fn send(
        &self,
        fabric: &F,
        to: WorkerId,
        slot: (RemoteAddr, u32),
        message: Buf,
    ) -> (Buf, Result<Sent, FabricError>) {
        if self.sends(fabric, message.len()) {
            return self.send.send(fabric, to, slot, message).await;
        }
        let (len, max) = (message.len() as u64, u64::from(slot.1));
        if len > max {
            return (message, Err(FabricError::TooLong { len, max }));
        }
        self.write.send(fabric, to, slot, message).await
    }

    #[inline]
    fn sends(&self, fabric: &F, len: usize) -> bool {
        len <= fabric.message_bytes_max().min(self.send_bytes_max)
    }

    fn meet(&self, fabric: &F, worker: WorkerId, at: &MessageAddress) {
        self.send.meet(fabric, worker, at);
    }
}
