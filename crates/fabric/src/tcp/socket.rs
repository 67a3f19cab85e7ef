//! Sockets and the memory of regions: what is long goes from the one to the other without a copy in
//! between.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::Buf;
use crate::shm::Region;

/// What a socket did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing: it is not ready.
    Nothing,
    /// The other end has ended the connection.
    End,
}

fn moved(result: isize) -> io::Result<Moved> {
    match result {
        0 => Ok(Moved::End),
        1.. => Ok(Moved::Bytes(result as usize)),
        _ => match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::WouldBlock => Ok(Moved::Nothing),
            error if error.kind() == ErrorKind::Interrupted => Ok(Moved::Nothing),
            error => Err(error),
        },
    }
}

/// Receives into private memory.
pub(super) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Moved> {
    // SAFETY: the pointer and the length are those of a slice that is borrowed for the call.
    let received = unsafe {
        libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT)
    };
    moved(received)
}

/// The next byte, which is left to be received, if it is there.
pub(super) fn peek(socket: BorrowedFd<'_>) -> io::Result<Option<u8>> {
    let mut byte = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: the pointer is that of a byte that is borrowed for the call, and the length is 1.
    let peeked = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    Ok(matches!(moved(peeked)?, Moved::Bytes(_)).then_some(byte))
}

/// Sends private memory.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Moved> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the pointer and the length are those of a slice that is borrowed for the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    moved(sent)
}

/// Ends a connection, of which others may hold the socket.
pub(super) fn shut_down(socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::net::shutdown(socket, rustix::net::Shutdown::Both)
}

/// Bytes that a connection has sent and the other end has confirmed, and that it has received, as
/// the system counts them.
pub(super) fn carried(socket: BorrowedFd<'_>) -> io::Result<[u64; 2]> {
    // `struct tcp_info` of linux/tcp.h, up to `tcpi_bytes_received`, in words: 104 bytes of other
    // facts, two rates, and then these two counts.
    let mut info = [0u64; 17];
    let mut len = size_of_val(&info) as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the pointer is that of an array of `len` bytes that is borrowed for the call.
    let got = unsafe {
        let into = info.as_mut_ptr().cast();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut len)
    };
    match got {
        0 => Ok([info[15], info[16]]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives into a region.
///
/// # Panics
/// If the bytes are not all inside the region, or it is read-only.
pub(super) fn receive_into(
    socket: BorrowedFd<'_>,
    region: &Region,
    offset: u64,
    len: usize,
) -> io::Result<Moved> {
    assert!(region.is_writable(), "the region is mapped read-only");
    let place = region.place(offset, len as u64);
    // SAFETY: `place` has checked the bounds, and the region stays mapped while it is borrowed. The
    // system writes the bytes as another process would, to whose writes this one is used: no
    // reference to them is formed.
    let received = unsafe { libc::recv(socket.as_raw_fd(), place.cast(), len, libc::MSG_DONTWAIT) };
    moved(received)
}

/// Sends bytes of a region.
///
/// # Panics
/// If they are not all inside the region.
pub(super) fn send_from(
    socket: BorrowedFd<'_>,
    region: &Region,
    offset: u64,
    len: usize,
) -> io::Result<Moved> {
    let place = region.place(offset, len as u64);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: as in `receive_into`, but the system only reads.
    let sent = unsafe { libc::send(socket.as_raw_fd(), place.cast_const().cast(), len, flags) };
    moved(sent)
}

/// Receives up to `len` bytes, and appends them to a buffer.
pub(super) fn append(socket: BorrowedFd<'_>, len: usize, buf: &mut Buf) -> io::Result<Moved> {
    let mut result = Ok(Moved::Nothing);
    let fill = |room: *mut u8| {
        // SAFETY: `append_some` gives room for `len` bytes, which nobody else has.
        let received =
            unsafe { libc::recv(socket.as_raw_fd(), room.cast(), len, libc::MSG_DONTWAIT) };
        result = moved(received);
        received.max(0) as usize
    };
    // SAFETY: the system says how many bytes it has written.
    unsafe { buf.append_some(len, fill) };
    result
}
