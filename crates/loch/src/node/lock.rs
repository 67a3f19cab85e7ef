//! Advisory locks on files and folders, waited for within a bound.
//!
//! A lock outlives its owner for a moment: until the system has taken a dead process's memory
//! apart, or until a child that was forked has become another program. So whoever wants it waits a
//! little.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

use crate::limits::RETRY_PAUSE;

/// Locks `file`, which others may hold for up to `wait`; whether it did.
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
