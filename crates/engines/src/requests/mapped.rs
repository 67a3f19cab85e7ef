//! Messages in mapped memory: loads read them, stores write them.

use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};

use super::message::{
    Expected, POLL_WORD_FROM_END, REPLY_LENGTH_FROM_END, REQUEST_TRAILER_BYTES, ReplyHead, Ticket,
};
use super::seal::Seal;

/// The word of a request's trailer that tells the bytes of its packet, from the trailer's start.
const LENGTH_WORD: u64 = 16;

/// The address of the word that shows whether a message is in a slot of `bytes` bytes.
#[inline]
pub(super) fn poll_addr(slot: RemoteAddr, bytes: u32) -> RemoteAddr {
    start_of(slot, bytes, POLL_WORD_FROM_END)
}

/// The address at which a message of `len` bytes begins in a slot of `bytes` bytes.
#[inline]
pub(super) fn start_of(slot: RemoteAddr, bytes: u32, len: usize) -> RemoteAddr {
    slot.add(u64::from(bytes) - len as u64)
}

/// The request at the end of a slot, with all of its bytes in `message`; `None` if there is no
/// request, or if a part of it is still missing.
#[inline]
pub(super) fn load_request<F: Fabric>(
    fabric: &F,
    slot: RemoteAddr,
    bytes: u32,
    message: &mut Buf,
) -> Result<Option<Ticket>, FabricError> {
    let trailer = start_of(slot, bytes, REQUEST_TRAILER_BYTES);
    let len = Ticket::told_len(fabric.load(trailer.add(LENGTH_WORD))?);
    if len > bytes as usize {
        return Ok(None);
    }
    message.clear();
    fabric.load_bytes(start_of(slot, bytes, len), len, message)?;
    // The words may have changed since: what counts is the copy.
    Ok(Ticket::read(message, Seal::CHECKSUM))
}

/// The reply at the end of a slot, with all of its bytes in `message`; `None` if there is no reply,
/// if a part of it is still missing, or if it is not the `expected` one.
#[inline(always)]
pub(super) fn load_reply<F: Fabric>(
    fabric: &F,
    slot: RemoteAddr,
    bytes: u32,
    expected: &Expected,
    message: &mut Buf,
) -> Result<Option<ReplyHead>, FabricError> {
    // The usual look finds nothing.
    if fabric.load(poll_addr(slot, bytes))? != expected.poll_word() {
        return Ok(None);
    }
    let len = ReplyHead::told_len(fabric.load(start_of(slot, bytes, REPLY_LENGTH_FROM_END))?);
    if len > bytes as usize {
        return Ok(None);
    }
    message.clear();
    fabric.load_bytes(start_of(slot, bytes, len), len, message)?;
    // The words may have changed since: what counts is the copy.
    Ok(ReplyHead::read(message, Seal::CHECKSUM).filter(|head| expected.is(head)))
}
