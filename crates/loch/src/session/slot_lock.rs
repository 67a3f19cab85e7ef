//! The lock by which a client shows that it lives, where its node cannot see its process.
//!
//! A node watches a client by a descriptor of its process, which it gets from the socket if it does
//! not see the process. A node that is started again on the same memory has no such descriptor, and
//! may be in another PID namespace than the node before, so that it sees other processes. It
//! therefore looks at the lock: the system drops it when the client's process ends, whatever
//! namespaces there are.
//!
//! The lock is on one byte of the region file, whose offset is the slot's number, and belongs to an
//! open file of the client's own. It is shared, so a child that a client has forked, and that holds
//! the file open, keeps no other client out of the slot.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use loch_fabric::shm::Region;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET, flock};

use crate::private::reopen;
use crate::{Error, Result};

/// The lock of a session's slot, until it is released or the process ends.
pub(crate) struct SlotLock {
    file: File,
    slot: u32,
}

impl SlotLock {
    /// Locks a slot of a region, which the node at `socket` has passed.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn take(region: &Region, slot: u32, socket: &Path) -> Result<Self> {
        let file = reopen(region.fd(), socket, true)?;
        fcntl(&file, FcntlArg::F_OFD_SETLK(&of_slot(slot, F_RDLCK)))
            .map_err(Error::os("lock a session's slot of", socket))?;
        Ok(Self { file, slot })
    }

    /// Releases the lock. Closing the file is not enough: a child may hold it open.
    pub fn release(self) {
        // The lock ends with the process, if not now.
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&of_slot(self.slot, F_UNLCK)));
    }
}

/// Returns whether a client has locked a slot. If the system does not tell, the client counts as
/// alive: nobody else may use what it holds.
pub(crate) fn is_locked(region: &Region, slot: u32) -> bool {
    let mut wanted = of_slot(slot, F_WRLCK);
    let asked = fcntl(region.fd().as_fd(), FcntlArg::F_OFD_GETLK(&mut wanted));
    asked.is_err() || i32::from(wanted.l_type) != F_UNLCK
}

fn of_slot(slot: u32, kind: i32) -> flock {
    flock {
        l_type: kind as i16,
        l_whence: SEEK_SET as i16,
        l_start: i64::from(slot),
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_locked_until_the_last_of_its_locks_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let region = Region::create(&path, 1 << 20).unwrap();
        let locked = || [1, 2, 3].map(|slot| is_locked(&region, slot));
        let first = SlotLock::take(&region, 2, &path).unwrap();
        // As if a child of a client that died held the file open.
        let second = SlotLock::take(&region, 2, &path).unwrap();
        assert_eq!(locked(), [false, true, false]);
        first.release();
        assert_eq!(locked(), [false, true, false]);
        let childs = second.file.try_clone().unwrap();
        second.release();
        assert_eq!(locked(), [false; 3], "its child does not hold it");
        let third = SlotLock::take(&region, 3, &path).unwrap();
        assert_eq!(locked(), [false, false, true]);
        // As at the end of a process.
        drop((third, childs));
        assert_eq!(locked(), [false; 3]);
    }
}
