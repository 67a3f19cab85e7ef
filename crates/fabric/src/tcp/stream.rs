//! The two ways of a connection, plain or sealed. Their users read the same for both.
//!
//! A plain way is the socket itself: what is long goes straight between it and the region. A
//! sealed one goes through records (`sealed.rs`).

use std::io;
use std::os::fd::BorrowedFd;

use super::sealed::{Broken, Opener, Sealer};
use super::socket::{self, Moved};
use crate::Buf;
use crate::limits::TCP_CHUNK_BYTES;
use crate::shm::Region;

/// Both ways of one end.
pub(super) struct Halves {
    pub inward: Inward,
    pub outward: Outward,
}

/// The way on which an end receives.
pub(super) enum Inward {
    Plain,
    Sealed(Box<Opener>),
}

/// The way on which an end sends.
///
/// Bytes that were not sent are given to it again: each call begins with the byte behind those of
/// which the calls before have said that they were sent.
pub(super) enum Outward {
    Plain,
    Sealed(Box<Sealer>),
}

impl Halves {
    pub fn plain() -> Self {
        Self { inward: Inward::Plain, outward: Outward::Plain }
    }

    pub fn sealed(opener: Opener, sealer: Sealer) -> Self {
        let (inward, outward) = (Box::new(opener), Box::new(sealer));
        Self { inward: Inward::Sealed(inward), outward: Outward::Sealed(outward) }
    }
}

impl Inward {
    /// Receives into private memory.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn receive(&mut self, socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<Moved, Broken> {
        match self {
            Self::Plain => Ok(socket::receive(socket, into)?),
            Self::Sealed(opener) => opener.receive(socket, into.len(), |at, bytes| {
                into[at..at + bytes.len()].copy_from_slice(bytes);
            }),
        }
    }

    /// Receives into a region.
    ///
    /// # Errors
    /// [`Broken`].
    ///
    /// # Panics
    /// If the bytes are not all inside the region, or it is read-only.
    pub fn receive_into(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &Region,
        offset: u64,
        len: usize,
    ) -> Result<Moved, Broken> {
        match self {
            Self::Plain => Ok(socket::receive_into(socket, region, offset, len)?),
            Self::Sealed(opener) => opener.receive(socket, len, |at, bytes| {
                region.copy_in(offset + at as u64, bytes);
            }),
        }
    }

    /// Receives up to `len` bytes, and appends them to a buffer.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn append(
        &mut self,
        socket: BorrowedFd<'_>,
        len: usize,
        buf: &mut Buf,
    ) -> Result<Moved, Broken> {
        match self {
            Self::Plain => Ok(socket::append(socket, len, buf)?),
            Self::Sealed(opener) => {
                buf.reserve(len);
                opener.receive(socket, len, |_, bytes| buf.extend_from_slice(bytes))
            }
        }
    }

    /// The part of a turn that it took to receive so many bytes at once. Records may be so short
    /// that a chunk of them has few bytes of contents.
    pub fn cost_of(&self, bytes: usize) -> usize {
        match self {
            Self::Plain => bytes,
            Self::Sealed(_) => bytes.max(TCP_CHUNK_BYTES),
        }
    }

    /// Bytes of memory that it holds between calls.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Sealed(opener) => opener.held_bytes(),
        }
    }
}

impl Outward {
    /// Sends private memory.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Moved> {
        match self {
            Self::Plain => socket::send(socket, bytes),
            Self::Sealed(sealer) => sealer.send(socket, bytes.len(), |at, contents| {
                contents.copy_from_slice(&bytes[at..at + contents.len()]);
            }),
        }
    }

    /// Sends bytes of a region.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// If they are not all inside the region.
    pub fn send_from(
        &mut self,
        socket: BorrowedFd<'_>,
        region: &Region,
        offset: u64,
        len: usize,
    ) -> io::Result<Moved> {
        match self {
            Self::Plain => socket::send_from(socket, region, offset, len),
            Self::Sealed(sealer) => sealer.send(socket, len, |at, contents| {
                region.copy_out(offset + at as u64, contents);
            }),
        }
    }

    /// Bytes, behind those that were sent, some of which the other end may have as well.
    pub fn untold_bytes(&self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Sealed(sealer) => sealer.untold_bytes(),
        }
    }

    /// Bytes of memory that it holds between calls.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Sealed(sealer) => sealer.held_bytes(),
        }
    }
}
