//! Answers on their way to a client.
//!
//! A long value goes from the table to the socket, as far as the socket takes it. The part that a
//! slow client does not take is copied, if all copies of the gateway are not too many already;
//! otherwise the value is read again when the client takes more. Should it have changed by then,
//! the connection ends: an answer cannot be taken back. No value is pinned while a client is waited
//! for.
//!
//! Some clients send many requests before they take the first answer. Their answers may be more
//! than usual, as long as there is memory for slow clients.
//!
//! Answers to commands that change what they read are nowhere else, so they are held whole. When
//! clients have left too many of them, such commands are not executed.

use std::io::{self, Write};
use std::ops::Range;

use loch::{EngineError, Error, Version};

use crate::context::Context;
use crate::copies::{Copies, Share};
use crate::figures::add;
use crate::limits::{COPIES_BYTES_MAX, LONG_BYTES, OUTPUT_BYTES, STEP_BYTES, UNTAKEN_BYTES_MAX};
use crate::store::Held;

/// The answers of a connection that the system has not taken yet.
#[derive(Debug)]
pub(crate) struct Output<'t> {
    pub bytes: Vec<u8>,
    /// Bytes that the system has taken so far.
    pub sent: u64,
    /// Those of `bytes`.
    written: usize,
    /// A value behind these bytes.
    long: Option<Long<'t>>,
    /// What is taken of what the gateway has for slow clients.
    kept: Share,
    /// What others are held.
    held: Share,
}

/// A value that is sent from where it is.
#[derive(Debug)]
struct Long<'t> {
    place: Place<'t>,
    /// What is sent, of the stored value.
    rest: Range<usize>,
    /// What follows the value.
    tail: &'static [u8],
}

#[derive(Debug)]
enum Place<'t> {
    Pinned(Vec<u8>, Held<'t>),
    /// It is read again when the client takes more.
    Later(Vec<u8>, Version),
}

impl<'t> Long<'t> {
    /// The same, whose value can be read.
    async fn found(self, cx: &Context<'t>) -> io::Result<Self> {
        let Place::Later(key, version) = self.place else { return Ok(self) };
        let value = pin_to_send(cx, &key).await.map_err(io::Error::other)?;
        let value = value.filter(|value| value.version() == version);
        let value = value.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { place: Place::Pinned(key, value), ..self })
    }
}

impl<'t> Output<'t> {
    pub fn new(copies: &Copies) -> Self {
        let (kept, held) = (Share::of(&copies.kept), Share::of(&copies.held));
        Self { bytes: Vec::new(), sent: 0, written: 0, long: None, kept, held }
    }

    /// Whether more answers may be written.
    pub fn is_open(&self) -> bool {
        self.bytes.len() < OUTPUT_BYTES + self.kept.bytes() && self.long.is_none()
    }

    /// Whether more answers may be written although the client does not take these.
    pub fn may_grow(&mut self) -> bool {
        let wants = self.long.is_none() && !self.is_open();
        self.is_open() || wants && self.kept.grow(OUTPUT_BYTES, UNTAKEN_BYTES_MAX) && self.is_open()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.long.is_none()
    }

    /// Sends a part of the value of this key, and the tail, behind the bytes so far.
    pub fn send(&mut self, key: &[u8], value: Held<'t>, part: Range<usize>, tail: &'static [u8]) {
        assert!(self.long.is_none(), "nothing is written behind a long value");
        self.long = Some(Long { place: Place::Pinned(key.to_vec(), value), rest: part, tail });
    }

    /// Writes answers. Returns whether the system has taken all of them.
    pub async fn flush(&mut self, to: &mut impl Write, cx: &Context<'t>) -> io::Result<bool> {
        self.hold();
        let has_gone = self.write_all(to, cx).await?;
        self.hold();
        Ok(has_gone)
    }

    /// Others see what is held, as long as it is.
    fn hold(&mut self) {
        self.held.set(self.bytes.len().saturating_sub(OUTPUT_BYTES + self.kept.bytes()));
    }

    async fn write_all(&mut self, to: &mut impl Write, cx: &Context<'t>) -> io::Result<bool> {
        loop {
            let rest = &self.bytes[self.written..];
            let written = write(to, rest, cx)?;
            self.written += written;
            self.sent += written as u64;
            if self.written < self.bytes.len() {
                self.drop_written();
                self.unpin();
                return Ok(false);
            }
            self.bytes.clear();
            self.written = 0;
            self.kept.set(0);
            let Some(long) = self.long.take() else { return has_gone(to) };
            let long = self.long.insert(long.found(cx).await?);
            if let Place::Pinned(_, value) = &long.place {
                let written = write(to, &value[long.rest.clone()], cx)?;
                long.rest.start += written;
                self.sent += written as u64;
            }
            self.unpin();
        }
    }

    /// What was taken needs no memory any more. The rest moves only if it is the smaller part.
    fn drop_written(&mut self) {
        if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.bytes.shrink_to(OUTPUT_BYTES);
            self.written = 0;
        }
    }

    /// Copies what is left of a value, if there is memory for that. Otherwise one byte of it waits
    /// for the client.
    fn unpin(&mut self) {
        let is_pinned = |long: &mut Long<'t>| matches!(long.place, Place::Pinned(..));
        let Some(long) = self.long.take_if(is_pinned) else { return };
        let Long { place: Place::Pinned(key, value), rest: part, tail } = long else { return };
        let rest = &value[part.clone()];
        if self.kept.grow(rest.len(), COPIES_BYTES_MAX) {
            self.bytes.extend_from_slice(rest);
            self.bytes.extend_from_slice(tail);
        } else {
            self.bytes.push(rest[0]);
            let place = Place::Later(key, value.version());
            self.long = Some(Long { place, rest: part.start + 1..part.end, tail });
        }
    }
}

/// The value of a key, which is sent at once, as far as the system takes it: that is a step of the
/// round. Whoever waits for a step has neither a pin nor memory that others may need.
pub(crate) async fn pin_to_send<'t>(
    cx: &Context<'t>,
    key: &[u8],
) -> loch::Result<Option<Held<'t>>> {
    let longs = &cx.store.load().longs;
    loop {
        let known = longs.len(key);
        if let Some(len) = known {
            cx.pace().step(len.min(STEP_BYTES)).await;
        }
        let value = match cx.store.pin(key).await {
            // Other turns have all pins for a moment. A copy would be on no account.
            Err(Error::Table { source: EngineError::TooManyPins { .. }, .. }) => {
                cx.pace().next_round().await;
                continue;
            }
            pinned => pinned?,
        };
        let len = value.as_ref().map_or(0, |value| value.len());
        longs.note(key, len);
        if known.is_some() || len < LONG_BYTES {
            return Ok(value);
        }
        // It is known from now on, and pinned again in its turn, unless that would copy it again.
        if !cx.store.table().pins_in_place() {
            cx.pace().stepped(len.min(STEP_BYTES));
            return Ok(value);
        }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::task::{self, Waker};

    use loch::lanes::block_on;

    use super::*;
    use crate::context::Shared;
    use crate::load::Load;
    use crate::store::Store;

    /// A client that takes nothing.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    #[test]
    fn a_value_is_not_pinned_while_a_client_takes_what_stands_before_it() {
        let shared = Shared::for_test();
        let table = shared.cluster.table("default").unwrap();
        let load = Load::new(&shared.work, &shared.copies);
        let cx = Context::new(&shared, Store::new(&table, &shared.uses, &load), 0);
        let (value, copies) = (vec![7; 100_000], &shared.copies);
        for others in [0, COPIES_BYTES_MAX] {
            table.put(b"k", &value).unwrap();
            let mut other = Share::of(&copies.kept);
            assert!(other.grow(others, COPIES_BYTES_MAX));
            let output = || {
                let mut output = Output { bytes: b"before ".to_vec(), ..Output::new(copies) };
                output.send(
                    b"k",
                    block_on(cx.store.pin(b"k")).unwrap().unwrap(),
                    1000..90_000,
                    b" behind",
                );
                assert!(!block_on(output.flush(&mut Full, &cx)).unwrap());
                let is_pinned = |long: &Long<'_>| matches!(long.place, Place::Pinned(..));
                assert!(!output.long.as_ref().is_some_and(is_pinned));
                output
            };
            let (mut first, mut second, mut sent) = (output(), output(), Vec::new());
            assert!(block_on(first.flush(&mut sent, &cx)).unwrap());
            assert!(sent == [b"before ", &value[1000..90_000], b" behind"].concat());
            // What is not copied is read again, and must be the same.
            table.put(b"k", b"another").unwrap();
            let is_copied = others == 0;
            assert_eq!(block_on(second.flush(&mut Vec::new(), &cx)).is_ok(), is_copied);
            drop(second);
            assert_eq!(copies.bytes(), others as u64, "all is given back");
        }
    }

    #[test]
    fn a_round_sends_few_long_values_however_much_clients_take() {
        struct Taking<'a>(&'a Cell<usize>);

        impl Write for Taking<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.set(self.0.get() + bytes.len());
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let shared = Shared::for_test();
        let table = shared.cluster.table("default").unwrap();
        let load = Load::new(&shared.work, &shared.copies);
        let cx = Context::new(&shared, Store::new(&table, &shared.uses, &load), 0);
        let value = vec![7; STEP_BYTES];
        table.put(b"k", &value).unwrap();
        // More than there are pins.
        let (taken, clients) = (Cell::new(0), 100);
        for known in [0, value.len()] {
            load.longs.note(b"k", known);
            taken.set(0);
            let mut turns: Vec<_> = (0..clients)
                .map(|_| {
                    let (cx, mut to, copies) = (&cx, Taking(&taken), &shared.copies);
                    Box::pin(async move {
                        let mut output = Output::new(copies);
                        let value = pin_to_send(cx, b"k").await.unwrap().unwrap();
                        let len = value.len();
                        output.send(b"k", value, 0..len, b"");
                        assert!(output.flush(&mut to, cx).await.unwrap());
                    })
                })
                .collect();
            let mut lanes = task::Context::from_waker(Waker::noop());
            while !turns.is_empty() {
                cx.pace().begin_round();
                let before = taken.get();
                turns.retain_mut(|turn| turn.as_mut().poll(&mut lanes).is_pending());
                // A step's value may come a round later.
                assert!(taken.get() <= before + 2 * value.len(), "known: {known}");
                assert!(known == 0 || table.pin(b"k").is_ok(), "whoever waits has no pin");
            }
            assert_eq!(taken.get(), clients * value.len());
        }
    }

    #[test]
    fn answers_grow_as_long_as_there_is_memory_for_slow_clients() {
        let copies = Copies::default();
        let mut outputs: Vec<Output<'_>> = (0..3).map(|_| Output::new(&copies)).collect();
        for output in &mut outputs {
            while output.may_grow() {
                output.bytes.resize(output.bytes.len() + OUTPUT_BYTES, 0);
            }
        }
        assert_eq!(copies.bytes(), UNTAKEN_BYTES_MAX as u64);
        let lens = outputs.iter().map(|output| output.bytes.len()).collect::<Vec<_>>();
        assert_eq!(lens, [OUTPUT_BYTES + UNTAKEN_BYTES_MAX, OUTPUT_BYTES, OUTPUT_BYTES]);
        drop(outputs);
        assert_eq!(copies.bytes(), 0);
    }
}
