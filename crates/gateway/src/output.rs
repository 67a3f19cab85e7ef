//! Answers on their way to a client.
//!
//! A long value goes from the table to the socket, as far as the socket takes it. The part that a
//! slow client does not take is copied, if all copies of the gateway are not too many already;
//! otherwise the value is read again when the client takes more. Should it have changed by then,
//! the connection ends: an answer cannot be taken back.

use std::io::{self, Write};

use loch::{Pinned, Version};

use crate::context::Context;
use crate::copies::Copies;
use crate::figures::add;
use crate::limits::OUTPUT_BYTES;

/// The answers of a connection that the system has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Output<'t> {
    pub bytes: Vec<u8>,
    written: usize,
    /// A value behind these bytes.
    long: Option<Long<'t>>,
    /// The part of the bytes that counts as copies.
    copied: usize,
}

/// A value that is sent from where it is.
#[derive(Debug)]
struct Long<'t> {
    place: Place<'t>,
    /// What is sent next, of the stored value.
    next: usize,
    /// What follows the value.
    tail: &'static [u8],
}

#[derive(Debug)]
enum Place<'t> {
    Pinned(Vec<u8>, Pinned<'t>),
    /// It is read again when the client takes more.
    Later(Vec<u8>, Version),
}

impl<'t> Output<'t> {
    /// Whether more answers may be written.
    pub fn is_open(&self) -> bool {
        self.bytes.len() < OUTPUT_BYTES && self.long.is_none()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.long.is_none()
    }

    /// Sends a value of this key from its byte `start` on, and the tail, behind the bytes so far.
    pub fn send(&mut self, key: &[u8], value: Pinned<'t>, start: usize, tail: &'static [u8]) {
        assert!(self.long.is_none(), "nothing is written behind a long value");
        self.long = Some(Long { place: Place::Pinned(key.to_vec(), value), next: start, tail });
    }

    /// Writes answers. Returns whether the system has taken all of them.
    pub async fn flush(&mut self, to: &mut impl Write, cx: &Context<'t>) -> io::Result<bool> {
        loop {
            let rest = &self.bytes[self.written..];
            self.written += write(to, rest, cx)?;
            if self.written < self.bytes.len() {
                self.keep_rest();
                return Ok(false);
            }
            self.bytes.clear();
            self.written = 0;
            cx.shared.copies.give_back(std::mem::take(&mut self.copied));
            let Some(long) = self.long.take() else { return has_gone(to) };
            self.flush_long(long, to, cx).await?;
        }
    }

    /// What was taken needs no memory any more.
    fn keep_rest(&mut self) {
        self.bytes.drain(..self.written);
        self.bytes.shrink_to(OUTPUT_BYTES);
        self.written = 0;
    }

    async fn flush_long(
        &mut self,
        mut long: Long<'t>,
        to: &mut impl Write,
        cx: &Context<'t>,
    ) -> io::Result<()> {
        let (key, value) = match long.place {
            Place::Pinned(key, value) => (key, value),
            Place::Later(key, version) => {
                let table = cx.store.table().asynch();
                let value = table.pin(&key).await.map_err(io::Error::other)?;
                let value = value.filter(|value| value.version() == version);
                (key, value.ok_or(io::ErrorKind::NotFound)?)
            }
        };
        long.next += write(to, &value[long.next..], cx)?;
        let rest = &value[long.next..];
        if rest.is_empty() || cx.shared.copies.take(rest.len()) {
            self.copied = rest.len();
            self.bytes.extend_from_slice(rest);
            self.bytes.extend_from_slice(long.tail);
        } else {
            // One byte waits for the client.
            let version = value.version();
            self.bytes.push(rest[0]);
            long.next += 1;
            self.long = Some(Long { place: Place::Later(key, version), ..long });
        }
        Ok(())
    }

    /// Takes the memory of a connection that ends off the accounts.
    pub fn end(&mut self, copies: &Copies) {
        copies.give_back(std::mem::take(&mut self.copied));
    }
}

/// Whether the system has all that was written: a connection with TLS may keep some of it.
fn has_gone(to: &mut impl Write) -> io::Result<bool> {
    match to.flush() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        flushed => flushed.map(|()| true),
    }
}

/// Writes as much as the system takes now.
fn write(to: &mut impl Write, bytes: &[u8], cx: &Context<'_>) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    add(&cx.figures().counters.bytes_out, written as u64);
    Ok(written)
}
