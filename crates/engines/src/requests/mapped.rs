//! Messages in mapped memory: loads read them, stores write them.

use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};

use super::message::{
    POLL_WORD_FROM_END, REPLY_TRAILER_BYTES, REQUEST_TRAILER_BYTES, ReplyHead, Ticket,
};
use super::seal::Seal;

/// The word of a request's trailer that tells the bytes of the value, from the trailer's start.
const LENGTHS_WORD: u64 = 16;

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
    let lengths = [fabric.load(trailer)?, fabric.load(trailer.add(LENGTHS_WORD))?];
    let len = Ticket::told_len(lengths);
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
#[inline]
pub(super) fn load_reply<F: Fabric>(
    fabric: &F,
    slot: RemoteAddr,
    bytes: u32,
    expected: impl Fn(&ReplyHead) -> bool,
    message: &mut Buf,
) -> Result<Option<ReplyHead>, FabricError> {
    let trailer = load_words(fabric, slot, bytes)?;
    let [a, b, c, d, e, _] = trailer;
    let Some(head) = ReplyHead::parse([a, b, c, d, e]) else { return Ok(None) };
    let len = head.message_len();
    if len > bytes as usize || !expected(&head) {
        return Ok(None);
    }
    message.clear();
    fabric.load_bytes(start_of(slot, bytes, len), len - REPLY_TRAILER_BYTES, message)?;
    append(&trailer, message);
    Ok(Seal::CHECKSUM.holds(message).then_some(head))
}

/// The last words of a slot.
#[inline(always)]
fn load_words<F: Fabric>(
    fabric: &F,
    slot: RemoteAddr,
    bytes: u32,
) -> Result<[u64; REPLY_TRAILER_BYTES / 8], FabricError> {
    let mut words = [0; REPLY_TRAILER_BYTES / 8];
    let at = start_of(slot, bytes, REPLY_TRAILER_BYTES);
    for (i, word) in words.iter_mut().enumerate() {
        *word = fabric.load(at.add(i as u64 * 8))?;
    }
    Ok(words)
}

#[inline(always)]
fn append(words: &[u64], message: &mut Buf) {
    for word in words {
        message.extend_from_slice(&word.to_le_bytes());
    }
}
