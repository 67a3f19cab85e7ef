//! Unreliable messages: what engines use whose server takes part in an operation.

use std::fmt::Debug;
use std::future::Future;

use crate::{Buf, Fabric, FabricError, RemoteAddr};

/// One thread's datagrams.
///
/// # Not promised
/// That a message arrives, arrives once, or after one that was sent before. What arrives is whole.
pub trait Messages {
    /// Another thread's, as this one knows it.
    type Peer: Copy + Eq + Debug;

    /// Bytes of the longest message.
    fn message_bytes_max(&self) -> usize;

    /// Sends `bytes` to a peer.
    ///
    /// # Errors
    /// [`FabricError::TooLong`] beyond [`Messages::message_bytes_max`].
    fn send(&self, to: Self::Peer, bytes: &[u8]) -> Result<(), FabricError> {
        self.send_all(&[(to, bytes)])
    }

    /// Sends several messages in one doorbell, or in a few.
    ///
    /// # Errors
    /// [`FabricError::TooLong`] if one of them is; then none is sent.
    fn send_all(&self, messages: &[(Self::Peer, &[u8])]) -> Result<(), FabricError>;

    /// The next message, appended to `buf`, and who sent it. Dropped while it waits it takes none.
    fn receive(&self, buf: Buf) -> impl Future<Output = (Self::Peer, Buf)> + '_;
}

/// WRITEs over a connection that does not tell whether they arrive.
pub trait UnreliableWrites: Fabric {
    /// WRITEs `bytes` without waiting. Nobody learns whether they arrive; aligned words of them are
    /// written atomically. [`Fabric::is_settled`] holds when it will not arrive any more.
    ///
    /// # Errors
    /// As [`Fabric::write_unsignaled`].
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError>;
}
