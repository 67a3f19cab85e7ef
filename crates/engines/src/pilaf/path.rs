//! The way of a client's requests: by SEND (pilaf §3.1), and what is longer than a datagram by
//! WRITE into the client's request slot.
//!
//! The paper's messages have no limit, because it uses SEND over reliable connections. Datagrams
//! have one, and a slot is what the server looks at anyway: so a long request needs no pieces, no
//! order among them, and no memory for those that miss some. A client may write its own request
//! slots and nothing else.

use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, Messages, RemoteAddr};

use crate::requests::path::Path;
use crate::requests::{BySend, ByWrite, RequestPath, Sent, WorkerId};

/// Requests by SEND, and by WRITE where they are too long for that.
#[derive(Clone, Debug)]
pub struct SendOrWrite<P> {
    /// Where to.
    pub send: BySend<P>,
    /// From where.
    pub write: ByWrite,
    /// Bytes of the longest request that is sent, if the fabric sends as long ones.
    pub send_bytes_max: usize,
}

impl<P> Path for SendOrWrite<P> {
    const BY_SEND: bool = true;
}

impl<F: Fabric + Messages> RequestPath<F> for SendOrWrite<F::Peer> {
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
