//! Messages in mapped memory: looked at by loads, put there by stores.

use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};

use super::message::{
    POLL_WORD_FROM_END, REPLY_TRAILER_BYTES, REQUEST_TRAILER_BYTES, ReplyHead, Ticket, has_checksum,
};

/// Words loaded before they are appended together.
const CHUNK_WORDS: usize = 32;

/// The address of the word that tells of a message in a slot of `bytes` bytes.
#[inline]
pub(super) fn poll_addr(slot: RemoteAddr, bytes: u32) -> RemoteAddr {
    slot.add(u64::from(bytes) - POLL_WORD_FROM_END as u64)
}

/// The request at the end of a slot, and all of its bytes in `message`; `None` if there is none, or
/// not all of it yet.
#[inline]
pub(super) fn load_request<F: Fabric>(
    fabric: &F,
    slot: RemoteAddr,
    bytes: u32,
    message: &mut Buf,
) -> Result<Option<Ticket>, FabricError> {
    let end = slot.add(u64::from(bytes));
    let trailer = load_words(fabric, slot, bytes, REQUEST_TRAILER_BYTES)?;
    let [a, b, c, d, ..] = trailer;
    let Some(ticket) = Ticket::parse([a, b, c, d]) else { return Ok(None) };
    let len = ticket.message_len();
    if len > bytes as usize {
        return Ok(None);
    }
    message.clear();
    load(fabric, end, len, len - REQUEST_TRAILER_BYTES, message)?;
    append(&trailer[..REQUEST_TRAILER_BYTES / 8], message);
    Ok(has_checksum(message).then_some(ticket))
}

/// The reply at the end of a slot, and all of its bytes in `message`; `None` if it is not there, or
/// not all of it yet, or not the one that is `expected`.
#[inline]
pub(super) fn load_reply<F: Fabric>(
    fabric: &F,
    slot: RemoteAddr,
    bytes: u32,
    expected: impl Fn(&ReplyHead) -> bool,
    message: &mut Buf,
) -> Result<Option<ReplyHead>, FabricError> {
    let end = slot.add(u64::from(bytes));
    let trailer = load_words(fabric, slot, bytes, REPLY_TRAILER_BYTES)?;
    let [a, b, c, d, e, _] = trailer;
    let Some(head) = ReplyHead::parse([a, b, c, d, e]) else { return Ok(None) };
    let len = head.message_len();
    if len > bytes as usize || !expected(&head) {
        return Ok(None);
    }
    message.clear();
    load(fabric, end, len, len - REPLY_TRAILER_BYTES, message)?;
    append(&trailer, message);
    Ok(has_checksum(message).then_some(head))
}

/// The last words of a slot.
#[inline(always)]
fn load_words<F: Fabric>(
    fabric: &F,
    slot: RemoteAddr,
    bytes: u32,
    len: usize,
) -> Result<[u64; REPLY_TRAILER_BYTES / 8], FabricError> {
    let mut words = [0; REPLY_TRAILER_BYTES / 8];
    let at = slot.add(u64::from(bytes) - len as u64);
    for (i, word) in words[..len / 8].iter_mut().enumerate() {
        *word = fabric.load(at.add(i as u64 * 8))?;
    }
    Ok(words)
}

/// Appends the first `count` bytes of the last `len` before `end`; both are multiples of 8.
#[inline]
fn load<F: Fabric>(
    fabric: &F,
    end: RemoteAddr,
    len: usize,
    count: usize,
    message: &mut Buf,
) -> Result<(), FabricError> {
    let start = RemoteAddr::new(end.region(), end.offset() - len as u64);
    let mut words = [0; CHUNK_WORDS];
    let mut next = 0;
    while next < count {
        let words = &mut words[..CHUNK_WORDS.min((count - next) / 8)];
        for (i, word) in words.iter_mut().enumerate() {
            *word = fabric.load(start.add((next + i * 8) as u64))?;
        }
        append(words, message);
        next += words.len() * 8;
    }
    Ok(())
}

#[inline(always)]
fn append(words: &[u64], message: &mut Buf) {
    for word in words {
        message.extend_from_slice(&word.to_le_bytes());
    }
}
