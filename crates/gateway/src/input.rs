//! The bytes that a client has sent and that are not executed yet.
//!
//! An idle connection holds none. A thread lends its connections buffers for a turn; a connection
//! keeps only the bytes of a request that has not come whole, and more room only for bytes that
//! have come. A thread keeps some long buffers too: memory that is new is made of pages that the
//! system has to clear first, which takes longer than all else about a long value.

use std::cell::RefCell;
use std::io::{self, Read};

use crate::limits::{LANES, LONG_BUFFER_BYTES_MAX, LONG_BUFFERS, READ_BYTES};

/// Of a request, one of so many parts has to be there, before there is memory for all.
const BELIEVED_PARTS: usize = 4;

/// Buffers that connections use by turns.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    short: RefCell<Vec<Vec<u8>>>,
    /// The last one is the one that was given back last.
    long: RefCell<Vec<Vec<u8>>>,
}

impl Pool {
    fn take(&self) -> Vec<u8> {
        self.short.borrow_mut().pop().unwrap_or_else(|| vec![0; READ_BYTES])
    }

    /// A buffer of so many bytes, more than a short one has, or of little more.
    fn take_long(&self, bytes: usize) -> Vec<u8> {
        let mut pool = self.long.borrow_mut();
        let fits = |buffer: &Vec<u8>| (bytes..=bytes + READ_BYTES).contains(&buffer.len());
        match pool.iter().rposition(fits) {
            Some(at) => pool.remove(at),
            None => vec![0; bytes],
        }
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let (pool, most) = match buffer.len() {
            READ_BYTES => (&self.short, LANES),
            len if len > READ_BYTES && len <= LONG_BUFFER_BYTES_MAX => (&self.long, LONG_BUFFERS),
            _ => return,
        };
        let mut pool = pool.borrow_mut();
        if pool.len() == most {
            // Of long ones the oldest goes: it may be shorter than what is needed now.
            pool.remove(0);
        }
        pool.push(buffer);
    }
}

/// The input of a connection.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// All initialised; what is used of it is `start..end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// What came of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

impl Input {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Reads once, `most` bytes at most, from a connection whose next request has `needed` bytes at
    /// least.
    pub fn read(
        &mut self,
        from: &mut impl Read,
        pool: &Pool,
        needed: usize,
        most: usize,
    ) -> io::Result<Came> {
        self.make_room(pool, needed);
        let room = &mut self.buffer[self.end..];
        // A turn is short, however long the request is.
        let len = room.len().min(most);
        let room = &mut room[..len];
        match from.read(room) {
            Ok(0) => Ok(Came::End),
            Ok(count) => {
                self.end += count;
                Ok(Came::Bytes(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Came::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Came::Nothing),
            Err(error) => Err(error),
        }
    }

    fn make_room(&mut self, pool: &Pool, needed: usize) {
        if self.buffer.len() - self.end >= READ_BYTES / 2 {
            return;
        }
        let len = self.len();
        if len <= READ_BYTES / 2 {
            let mut buffer = pool.take();
            buffer[..len].copy_from_slice(self.bytes());
            pool.give_back(std::mem::replace(&mut self.buffer, buffer));
        } else if self.start >= READ_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
        } else {
            // A request of which a good part has come is believed to have the rest.
            let is_believed = needed / BELIEVED_PARTS <= len;
            // The rest of many parts is announced part by part.
            let is_known = is_believed && needed > len + READ_BYTES;
            let room = if is_known { needed } else { 2 * len };
            let mut buffer = pool.take_long(room + READ_BYTES);
            buffer[..len].copy_from_slice(self.bytes());
            pool.give_back(std::mem::replace(&mut self.buffer, buffer));
        }
        (self.start, self.end) = (0, len);
    }

    /// Puts bytes before the others.
    pub fn put_back(&mut self, mut front: Vec<u8>, pool: &Pool) {
        front.extend_from_slice(self.bytes());
        (self.start, self.end) = (0, front.len());
        pool.give_back(std::mem::replace(&mut self.buffer, front));
    }

    /// Takes bytes that are executed off the front.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "no more is executed than has come");
        self.start += count;
    }

    /// Gives back all memory that the rest does not need.
    pub fn shrink(&mut self, pool: &Pool) {
        let len = self.len();
        if self.buffer.len() < READ_BYTES || len > READ_BYTES / 2 {
            return;
        }
        let rest = self.bytes().to_vec();
        pool.give_back(std::mem::replace(&mut self.buffer, rest));
        (self.start, self.end) = (0, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_any_pieces_is_there_in_order_and_takes_no_more_memory_than_it_must() {
        let pool = Pool::default();
        let all: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let (mut input, mut from, mut at) = (Input::default(), &all[..], 0);
        for round in 0usize.. {
            let mut part = (&mut from).take(1 + round as u64 * 977);
            let came = input.read(&mut part, &pool, 0, READ_BYTES).unwrap();
            assert_eq!(input.bytes(), &all[at..at + input.len()]);
            let consumed =
                if round % 7 < 5 { 0 } else { input.len() - round % 100.min(input.len()) };
            input.consume(consumed);
            at += consumed;
            input.shrink(&pool);
            assert!(input.buffer.len() <= 2 * input.len() + 3 * READ_BYTES);
            if came == Came::End {
                break;
            }
        }
        let rest = input.len();
        input.consume(rest);
        assert_eq!(at + rest, all.len());
        input.shrink(&pool);
        assert_eq!(input.buffer.capacity(), 0);
    }

    #[test]
    fn long_buffers_are_used_again_and_a_thread_keeps_few_of_them() {
        let pool = Pool::default();
        let first = pool.take_long(1 << 20);
        let at = first.as_ptr();
        pool.give_back(first);
        let short = pool.take_long(1 << 19);
        assert_ne!(short.as_ptr(), at, "it is much longer than what is needed");
        let again = pool.take_long((1 << 20) - 1);
        assert_eq!((again.as_ptr(), again.len()), (at, 1 << 20));
        let others: Vec<_> = (0..2 * LONG_BUFFERS).map(|_| pool.take_long(1 << 18)).collect();
        pool.give_back(again);
        others.into_iter().for_each(|buffer| pool.give_back(buffer));
        pool.give_back(vec![0; LONG_BUFFER_BYTES_MAX + 1]);
        let kept = pool.long.borrow();
        assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [1 << 18; LONG_BUFFERS]);
    }
}
