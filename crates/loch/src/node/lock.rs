//! Advisory locks on files and folders, with a bounded wait.
//!
//! A lock outlives its owner for a moment, until the system has freed a dead process's memory, or
//! until a forked child has executed another program. The next owner therefore waits for a while.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

use crate::limits::RETRY_PAUSE;

/// Locks `file`, which others may hold for up to `wait`. Returns whether it is locked.
pub(super) fn lock_within(file: &File, wait: Duration) -> io::Result<bool> {
    let until = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}
