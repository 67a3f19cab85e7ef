//! Sealed streams: the bytes of a way are cut into records, and each record is encrypted and
//! authenticated under a key that both ends have agreed on (`noise.rs`).
//!
//! ```text
//! 0               2                    n + 2    n + 18
//! | n + 16 (u16)  | n bytes, encrypted | tag    |
//! ```
//! The records are transport messages of Noise with AES-256-GCM: their nonces count up from 0, and
//! the key is replaced after each [`RECORDS_PER_KEY`] of them, as Noise's `REKEY` does it. AES-GCM
//! and no other cipher, because processors have instructions for it.
//!
//! # Invariants
//! 1. Nothing of a record is handed out before its tag was checked. A record that was forged,
//!    changed, repeated, left out or moved does not have the tag that is expected, and neither
//!    does any record after it: the connection ends.
//! 2. A record whose sending has begun is sent to its end before another one begins.
//! 3. An [`Opener`] that hands out less than it was asked for holds no whole record: to wait for
//!    the socket is right then.
//!
//! # Memory
//! Records are sealed and opened in one room for each thread. What a connection holds itself is at
//! most what the socket did not take of one room, and what was opened in one room and not taken;
//! at rest it is nothing.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::socket::{self, Moved};
use crate::limits::{TCP_CHUNK_BYTES, TCP_RECORD_BYTES};

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 32;

const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
/// Bytes of the contents of the longest records that this end sends.
const CONTENTS_BYTES: usize = TCP_RECORD_BYTES - LENGTH_BYTES - TAG_BYTES;
/// Records after which a key is replaced. So many of the longest records have 2^32 blocks, with
/// which an attacker's advantage over AES-GCM is below 2^-64.
pub(super) const RECORDS_PER_KEY: u64 = 1 << 20;

thread_local! {
    /// Where this thread seals and opens records.
    static ROOM: RefCell<Box<[u8]>> = RefCell::new(vec![0; TCP_CHUNK_BYTES].into());
}

// The room has a record of any length, and records of this end.
const _: () = assert!(LENGTH_BYTES + u16::MAX as usize <= TCP_CHUNK_BYTES);
const _: () = assert!(TCP_RECORD_BYTES - LENGTH_BYTES <= u16::MAX as usize);
const _: () = assert!(TCP_CHUNK_BYTES.is_multiple_of(TCP_RECORD_BYTES));
const _: () = assert!(RECORDS_PER_KEY * (1 << 16) / 16 <= 1 << 32);

/// A record that is none of the other end's, or not the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadRecord {
    /// It is too short for a tag and contents.
    #[error("a record of {0} bytes, which have no room for contents")]
    Length(u16),
    /// Its tag is not the one that is expected.
    #[error(
        "a record whose seal is wrong: it was forged or changed on the way, or it is not the next"
    )]
    Seal,
}

/// Why nothing can be received any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Record(#[from] BadRecord),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The key of one way.
struct Key {
    key: LessSafeKey,
    /// Records so far.
    records: u64,
}

impl Key {
    fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        Self { key: made(bytes), records: 0 }
    }

    /// The nonce of the next record.
    fn next(&mut self) -> Nonce {
        if self.records > 0 && self.records.is_multiple_of(RECORDS_PER_KEY) {
            self.replace();
        }
        let nonce = nonce(self.records);
        self.records += 1;
        nonce
    }

    /// Noise's `REKEY`: what was sealed before is safe, even if the new key is found out.
    #[cold]
    fn replace(&mut self) {
        let mut bytes = [0; KEY_BYTES];
        let sealed = self.key.seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut bytes);
        let _tag = sealed.expect("this is far from too long");
        self.key = made(&bytes);
    }

    /// Encrypts the contents of the next record. Returns its tag.
    fn seal(&mut self, contents: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = self.next();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), contents);
        let tag = tag.expect("a record is far from too long");
        tag.as_ref().try_into().expect("tags of GCM have this length")
    }

    /// Decrypts the next record, which has its tag at the end. Returns the contents.
    fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<&'a mut [u8], BadRecord> {
        let nonce = self.next();
        self.key.open_in_place(nonce, Aad::empty(), record).map_err(|_| BadRecord::Seal)
    }
}

fn made(bytes: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("the key has its length"))
}

/// The nonce of AES-GCM in Noise.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// The sending end of a sealed way.
pub(super) struct Sealer {
    key: Key,
    /// Records that were sealed and not sent, from the byte at `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// Bytes of the stream that were sealed and of which the caller does not know that they were
    /// sent.
    untold: usize,
}

impl Sealer {
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self { key: Key::new(key), unsent: Vec::new(), sent: 0, untold: 0 }
    }

    /// Sends as many of `len` bytes as there is room for, which `fill` stores: those from its
    /// number on. A byte counts as sent when all of its record was, or later: of
    /// [`Self::untold_bytes`] more, some may have left as well.
    ///
    /// # Errors
    /// The system's.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        len: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> io::Result<Moved> {
        while self.sent < self.unsent.len() {
            match socket::send(socket, &self.unsent[self.sent..])? {
                Moved::Bytes(bytes) => self.sent += bytes,
                moved => return Ok(moved),
            }
        }
        if self.untold > 0 {
            // A connection at rest holds no memory.
            (self.unsent, self.sent) = (Vec::new(), 0);
            let told = self.untold.min(len);
            self.untold -= told;
            return Ok(Moved::Bytes(told));
        }
        ROOM.with_borrow_mut(|room| {
            let (sealed, end) = self.seal(room, len, fill);
            let sent = match socket::send(socket, &room[..end])? {
                Moved::Bytes(sent) if sent == end => return Ok(Moved::Bytes(sealed)),
                Moved::Bytes(sent) => sent,
                Moved::Nothing => 0,
                Moved::End => return Ok(Moved::End),
            };
            // All records but the last have the same length.
            let told = sent / TCP_RECORD_BYTES * CONTENTS_BYTES;
            (self.unsent, self.untold) = (room[sent..end].to_vec(), sealed - told);
            Ok(if told > 0 { Moved::Bytes(told) } else { Moved::Nothing })
        })
    }

    /// Fills the room with records. Returns the bytes of the stream that they have, and their own.
    fn seal(
        &mut self,
        room: &mut [u8],
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> (usize, usize) {
        let (mut sealed, mut end) = (0, 0);
        for record in room.chunks_exact_mut(TCP_RECORD_BYTES) {
            let some = (len - sealed).min(CONTENTS_BYTES);
            if some == 0 {
                break;
            }
            let (length, rest) = record.split_at_mut(LENGTH_BYTES);
            let (contents, rest) = rest.split_at_mut(some);
            length.copy_from_slice(&((some + TAG_BYTES) as u16).to_le_bytes());
            fill(sealed, contents);
            rest[..TAG_BYTES].copy_from_slice(&self.key.seal(contents));
            sealed += some;
            end += LENGTH_BYTES + some + TAG_BYTES;
        }
        (sealed, end)
    }

    /// Bytes that were sealed, behind those of which the caller knows that they were sent.
    pub fn untold_bytes(&self) -> usize {
        self.untold
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub fn held_bytes(&self) -> usize {
        self.unsent.capacity()
    }
}

#[cfg(test)]
impl Sealer {
    /// The next record, without its length.
    pub fn record_for_test(&mut self, contents: &[u8]) -> Vec<u8> {
        let mut record = contents.to_vec();
        let tag = self.key.seal(&mut record);
        record.extend(tag);
        record
    }

    /// Goes on with the record of that number.
    pub fn skip_for_test(&mut self, number: u64) {
        self.key.records = number;
    }
}

/// The receiving end of a sealed way.
pub(super) struct Opener {
    key: Key,
    /// The part of a record that has come.
    part: Vec<u8>,
    /// Bytes that were opened and not handed out, from the byte at `taken` on.
    opened: Vec<u8>,
    taken: usize,
}

impl Opener {
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self { key: Key::new(key), part: Vec::new(), opened: Vec::new(), taken: 0 }
    }

    /// Hands out up to `len` bytes to `take`, each piece with the number of its first byte.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        len: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<Moved, Broken> {
        let mut done = self.take_opened(len, &mut take);
        if done == len {
            return Ok(Moved::Bytes(done));
        }
        ROOM.with_borrow_mut(|room| {
            let held = self.part.len();
            room[..held].copy_from_slice(&self.part);
            let end = match socket::receive(socket, &mut room[held..])? {
                Moved::Bytes(come) => held + come,
                _ if done > 0 => return Ok(Moved::Bytes(done)),
                moved => return Ok(moved),
            };
            let mut rest = &mut room[..end];
            while let Some(record_bytes) = whole_record(rest)? {
                let record;
                (record, rest) = rest.split_at_mut(record_bytes);
                let contents = self.key.open(&mut record[LENGTH_BYTES..])?;
                let (now, later) = contents.split_at(contents.len().min(len - done));
                if !now.is_empty() {
                    take(done, now);
                    done += now.len();
                }
                self.opened.extend_from_slice(later);
            }
            self.part = rest.to_vec();
            Ok(if done > 0 { Moved::Bytes(done) } else { Moved::Nothing })
        })
    }

    /// Hands out what was opened before.
    fn take_opened(&mut self, len: usize, take: &mut impl FnMut(usize, &[u8])) -> usize {
        let rest = &self.opened[self.taken..];
        let some = rest.len().min(len);
        if some > 0 {
            take(0, &rest[..some]);
            self.taken += some;
        }
        if self.taken == self.opened.len() {
            // A connection at rest holds no memory.
            (self.opened, self.taken) = (Vec::new(), 0);
        }
        some
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub fn held_bytes(&self) -> usize {
        self.part.capacity() + self.opened.capacity()
    }
}

/// The bytes of the first record, if it has come whole.
fn whole_record(bytes: &[u8]) -> Result<Option<usize>, BadRecord> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u16::from_le_bytes(*length);
    if usize::from(length) <= TAG_BYTES {
        return Err(BadRecord::Length(length));
    }
    Ok((rest.len() >= length.into()).then_some(LENGTH_BYTES + usize::from(length)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

    fn pair() -> (UnixStream, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        (one, other)
    }

    fn send(sealer: &mut Sealer, socket: &UnixStream, bytes: &[u8]) -> Moved {
        let fill = |at: usize, room: &mut [u8]| room.copy_from_slice(&bytes[at..at + room.len()]);
        sealer.send(socket.as_fd(), bytes.len(), fill).unwrap()
    }

    fn receive(
        opener: &mut Opener,
        socket: &UnixStream,
        len: usize,
    ) -> Result<(Moved, Vec<u8>), Broken> {
        let mut received = Vec::new();
        let moved = opener.receive(socket.as_fd(), len, |at, bytes| {
            assert_eq!(at, received.len());
            received.extend_from_slice(bytes);
        })?;
        assert!(received.len() <= len);
        Ok((moved, received))
    }

    /// The records of these contents.
    fn records(all: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut sealer, (ours, mut theirs)) = (Sealer::new(&KEY), pair());
        let record = |contents: &&[u8]| {
            assert_eq!(send(&mut sealer, &ours, contents), Moved::Bytes(contents.len()));
            let mut record = vec![0; 1 << 16];
            let len = theirs.read(&mut record).unwrap();
            record.truncate(len);
            record
        };
        all.iter().map(record).collect()
    }

    /// What is made of these bytes, and why not of more.
    fn opened(bytes: &[u8]) -> (Vec<u8>, Option<BadRecord>) {
        let (mut opener, (mut ours, theirs)) = (Opener::new(&KEY), pair());
        ours.write_all(bytes).unwrap();
        drop(ours);
        let mut all = Vec::new();
        loop {
            match opener.receive(theirs.as_fd(), 100, |_, some| all.extend_from_slice(some)) {
                Ok(Moved::End) => return (all, None),
                Ok(_) => (),
                Err(Broken::Record(bad)) => return (all, Some(bad)),
                Err(Broken::Io(error)) => panic!("{error}"),
            }
        }
    }

    /// A client may conclude that what has certainly not left was not executed.
    #[test]
    fn the_other_end_has_no_more_than_may_have_been_sent() {
        let (ours, theirs) = pair();
        ours.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
        let (mut sealer, mut opener) = (Sealer::new(&KEY), Opener::new(&KEY));
        let bytes = vec![5; 120_000];
        let (mut sent, mut come) = (0, 0);
        while sent < bytes.len() {
            match send(&mut sealer, &ours, &bytes[sent..]) {
                Moved::Bytes(more) => sent += more,
                moved => assert_eq!(moved, Moved::Nothing),
            }
            while let Moved::Bytes(more) =
                opener.receive(theirs.as_fd(), bytes.len(), |_, _| ()).unwrap()
            {
                come += more;
            }
            assert!(come <= sent + sealer.untold_bytes(), "{come} of {sent}");
        }
        assert_eq!((come, sealer.untold_bytes()), (sent, 0));
    }

    #[test]
    fn a_record_is_these_bytes() {
        let [record] = &records(&[b"contents"])[..] else { panic!() };
        assert_eq!(record[..2], [24, 0], "its length");
        assert_eq!(record.len(), 2 + 8 + 16);
        let mut key = Key::new(&KEY);
        assert_eq!(key.open(&mut record[2..].to_vec()).unwrap(), b"contents");
    }

    #[test]
    fn a_record_that_was_forged_changed_or_cut_opens_nothing() {
        let [record] = &records(&[b"contents"])[..] else { panic!() };
        assert_eq!(opened(record), (b"contents".to_vec(), None));
        for bit in 0..record.len() * 8 {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let (contents, bad) = opened(&changed);
            assert!(contents.is_empty(), "bit {bit}");
            // A record that is said to be longer never comes.
            let is_longer = u16::from_le_bytes([changed[0], changed[1]]) > 24;
            assert_eq!(bad.is_none(), is_longer, "bit {bit}: {bad:?}");
        }
        for len in 0..record.len() {
            assert_eq!(opened(&record[..len]), (vec![], None), "cut after {len} bytes");
        }
        assert_eq!(opened(&[16, 0, 1, 2]), (vec![], Some(BadRecord::Length(16))));
        assert_eq!(opened(&[0; 2]), (vec![], Some(BadRecord::Length(0))));
        let forged = [&[24, 0][..], &[0; 24]].concat();
        assert_eq!(opened(&forged), (vec![], Some(BadRecord::Seal)));
    }

    #[test]
    fn records_that_are_repeated_left_out_or_moved_open_nothing() {
        let all = records(&[b"1", b"2", b"3"]);
        let of = |order: &[usize]| {
            let bytes: Vec<u8> = order.iter().flat_map(|at| all[*at].clone()).collect();
            opened(&bytes)
        };
        assert_eq!(of(&[0, 1, 2]), (b"123".to_vec(), None));
        assert_eq!(of(&[0, 0]), (b"1".to_vec(), Some(BadRecord::Seal)));
        assert_eq!(of(&[0, 2]), (b"1".to_vec(), Some(BadRecord::Seal)));
        assert_eq!(of(&[1, 0, 2]), (vec![], Some(BadRecord::Seal)));
        assert_eq!(of(&[0, 1, 0]), (b"12".to_vec(), Some(BadRecord::Seal)));
    }

    #[test]
    fn keys_are_replaced_at_both_ends_at_the_same_record() {
        let (mut sealer, mut opener) = (Key::new(&KEY), Key::new(&KEY));
        (sealer.records, opener.records) = (RECORDS_PER_KEY - 1, RECORDS_PER_KEY - 1);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let mut record = b"contents".to_vec();
            let tag = sealer.seal(&mut record);
            record.extend(tag);
            seen.push(record.clone());
            assert_eq!(opener.open(&mut record).unwrap(), b"contents");
        }
        let mut old = Key::new(&KEY);
        old.records = RECORDS_PER_KEY - 1;
        assert!(old.open(&mut seen[0]).is_ok());
        let nonce = nonce(RECORDS_PER_KEY);
        let opened = old.key.open_in_place(nonce, Aad::empty(), &mut seen[1]);
        assert!(opened.is_err(), "the first key does not open it");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Whatever the socket takes and brings at a time, and whatever the ends ask for.
        #[test]
        fn a_stream_is_the_same_at_both_ends(
            pieces in prop::collection::vec(1usize..200_000, 1..6),
            wanted in prop::collection::vec(1usize..150_000, 1..6),
            through in 1usize..100_000,
        ) {
            let ((ours, mut between), (mut beyond, theirs)) = (pair(), pair());
            ours.set_nonblocking(true).unwrap();
            beyond.set_nonblocking(true).unwrap();
            let (mut sealer, mut opener) = (Sealer::new(&KEY), Opener::new(&KEY));
            let len: usize = pieces.iter().sum();
            let stream: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            let ends: Vec<usize> =
                pieces.iter().scan(0, |end, some| { *end += some; Some(*end) }).collect();
            let (mut sent, mut received, mut carried) = (0, Vec::new(), Vec::new());
            let mut wanted = wanted.iter().cycle();
            while received.len() < len {
                let end = ends.iter().find(|end| **end > sent).copied().unwrap_or(len);
                if sent < end
                    && let Moved::Bytes(some) = send(&mut sealer, &ours, &stream[sent..end])
                {
                    sent += some;
                }
                let mut some = vec![0; through];
                if let Ok(count) = between.read(&mut some) {
                    carried.extend_from_slice(&some[..count]);
                }
                if let Ok(count) = beyond.write(&carried) {
                    carried.drain(..count);
                }
                let want = *wanted.next().unwrap();
                let (moved, some) = receive(&mut opener, &theirs, want).unwrap();
                // Only whoever got all that was asked for need not wait.
                prop_assert!(some.len() == want || opener.opened.is_empty());
                let expected = match some.len() { 0 => Moved::Nothing, len => Moved::Bytes(len) };
                prop_assert_eq!(moved, expected);
                received.extend(some);
                prop_assert!(sealer.held_bytes() <= TCP_CHUNK_BYTES);
                prop_assert!(opener.held_bytes() <= 3 * TCP_CHUNK_BYTES);
            }
            prop_assert!(received == stream);
            prop_assert_eq!(opener.held_bytes(), 0);
        }
    }
}
