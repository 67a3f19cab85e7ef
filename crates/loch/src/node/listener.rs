//! The node's socket: how it is made and removed, and which users may connect.
//!
//! # Invariants
//! 1. A socket at which a node answers is never replaced. A socket at which no node answers was
//!    left by a dead node. The folder is locked while the socket is looked at and replaced, so both
//!    are one step.
//! 2. Only the node's user can connect, because the socket has its mode before it listens. Root can
//!    connect all the same, so the node asks the kernel for the user id of every client.
//! 3. A node removes only the socket that it made, and replaces only a socket of its own user.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::lock::lock_within;
use crate::layout::config::prepare_folder;
use crate::limits::{BACKLOG, SOCKET_LOCK_TIMEOUT};
use crate::private;
use crate::session::connection::may_attach;
use crate::{Error, Result};

/// A socket that listens.
pub(super) struct Listener {
    pub fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file: invariant 3.
    made: (u64, u64),
}

/// The process at the other end of a connection, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerCredentials {
    /// 0 if the process has no number here, because it is in another PID namespace.
    pub pid: u32,
    pub uid: u32,
}

/// Returns whether a node answers at `socket`. The check is cheap, and the answer may be old at
/// once.
///
/// # Errors
/// The operating system's error, if there is no socket to ask with.
pub(super) fn is_live(socket: &SocketAddrUnix) -> Result<bool, Errno> {
    // A plain connect would wait for ever for a node that is stopped and whose queue is full.
    match rustix::net::connect(stream_socket()?, socket) {
        Ok(()) => Ok(true),
        // A full queue belongs to a node that will empty it.
        Err(error) => Ok(error == Errno::AGAIN),
    }
}

/// Makes a socket that never blocks.
fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

impl Listener {
    /// Makes the socket and listens.
    ///
    /// # Errors
    /// [`Error::SocketInUse`], [`Error::NotPrivate`], [`Error::Os`].
    pub fn open(path: &Path) -> Result<Self> {
        prepare_folder(path, "socket")?;
        let address = SocketAddrUnix::new(path).map_err(Error::os("name", path))?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        let _alone = lock_folder(dir, path)?;
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(Error::config(
                    "socket",
                    format!("{} is there and is no socket", path.display()),
                ));
            }
            Ok(there) => {
                private::check_socket(&there, path)?;
                if is_live(&address).map_err(Error::os("connect to", path))? {
                    return Err(Error::SocketInUse { socket: path.into() });
                }
                tracing::info!(socket = %path.display(), "replacing the socket of a dead node");
                std::fs::remove_file(path).map_err(Error::os("remove", path))?;
            }
            Err(_) => (),
        }
        let fd = stream_socket().map_err(Error::os("open", path))?;
        // The file is made with the mode of the socket, so it never has another mode (invariant 2).
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(private::FILE_MODE))
            .map_err(Error::os("set the mode of", path))?;
        rustix::net::bind(&fd, &address).map_err(Error::os("bind", path))?;
        let made = std::fs::symlink_metadata(path).map_err(Error::os("stat", path))?;
        rustix::net::listen(&fd, BACKLOG).map_err(Error::os("listen at", path))?;
        Ok(Self { fd, path: path.into(), made: (made.dev(), made.ino()) })
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a connection. Returns `None` if no client waits.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.fd, flags) {
            Ok(stream) => Ok(Some(stream)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let there = std::fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == self.made) {
            // A socket that stays is replaced by the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the credentials of a client, and whether it may attach.
pub(super) fn identify(stream: &OwnedFd) -> nix::Result<(PeerCredentials, bool)> {
    let peer = getsockopt(stream, sockopt::PeerCredentials)?;
    let peer = PeerCredentials { pid: peer.pid() as u32, uid: peer.uid() };
    let may_attach = may_attach(peer.uid, private::user());
    Ok((peer, may_attach && !private::stands_for_others(peer.uid)))
}

/// Locks a folder against other nodes that start in it.
fn lock_folder(dir: &Path, socket: &Path) -> Result<File> {
    let file = File::open(dir).map_err(Error::os("open", dir))?;
    if lock_within(&file, SOCKET_LOCK_TIMEOUT).map_err(Error::os("lock", dir))? {
        return Ok(file);
    }
    Err(Error::Os {
        action: "lock",
        path: dir.into(),
        cause: format!(
            "another process holds it; choose a folder of your own for {}",
            socket.display()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_not_replaced_and_a_stale_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(Listener::open(&path), Err(Error::SocketInUse { .. })));
        // A killed process leaves its socket like this.
        let dead = std::mem::ManuallyDrop::new(listener);
        rustix::net::shutdown(&dead.fd, rustix::net::Shutdown::Both).unwrap();
        let listener = Listener::open(&path).unwrap();
        assert_eq!(listener.path(), path);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(Listener::open(&path), Err(Error::Config { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn a_listener_removes_only_its_own_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = Listener::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = Listener::open(&path).unwrap();
        drop(first);
        let address = SocketAddrUnix::new(second.path()).unwrap();
        assert!(path.exists() && is_live(&address).unwrap());
    }

    #[test]
    fn a_node_serves_its_user_and_root() {
        assert!(may_attach(1000, 1000) && may_attach(0, 1000));
        assert!(!may_attach(1000, 1001) && !may_attach(1000, 0));
    }
}
