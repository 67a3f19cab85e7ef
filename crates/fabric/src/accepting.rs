//! Listening at ports to which strangers may connect as often as they like.

use std::io::{self, ErrorKind};
use std::net::TcpListener;

use crate::limits::TCP_BACKLOG;

/// Lets more connections wait to be accepted than the standard library does. A connection that
/// finds no place tries again after a second.
///
/// # Errors
/// The system's.
pub fn lengthen_queue(listener: &TcpListener) -> io::Result<()> {
    Ok(rustix::net::listen(listener, TCP_BACKLOG)?)
}

/// Returns whether an error of `accept` is that of one connection, which is gone: the next one can
/// be accepted at once. Any other error is the system's, which lacks descriptors or memory.
pub fn is_of_one_connection(error: &io::Error) -> bool {
    // `accept(2)` lists them: errors that were pending on the new socket, and a firewall's refusal.
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::Interrupted
            | ErrorKind::NetworkDown
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NotConnected
            | ErrorKind::PermissionDenied
            | ErrorKind::TimedOut
    ) || [libc::EPROTO, libc::ENOPROTOOPT, libc::EHOSTDOWN, libc::ENONET, libc::EOPNOTSUPP]
        .map(Some)
        .contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_connection_is_told_from_that_of_the_system() {
        let of_one = |errno| is_of_one_connection(&io::Error::from_raw_os_error(errno));
        for errno in [libc::ECONNABORTED, libc::EPERM, libc::EPROTO, libc::ENETDOWN, libc::EINTR] {
            assert!(of_one(errno), "{}", io::Error::from_raw_os_error(errno));
        }
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EBADF] {
            assert!(!of_one(errno), "{}", io::Error::from_raw_os_error(errno));
        }
    }
}
