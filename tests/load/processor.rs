//! How long a thread waited for a processor: what a busy machine adds to an operation.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The kernel's account of a thread's time in its queue; without one, nothing is known of it.
pub struct Queue {
    account: Option<File>,
    last: Cell<(Instant, Duration)>,
}

/// Reading the account costs as much as some operations: it is not read again for this long.
const RESOLUTION: Duration = Duration::from_millis(2);

/// Shorter times are not looked into.
const SHORT: Duration = Duration::from_millis(10);

impl Queue {
    pub fn of_this_thread() -> Self {
        let account = File::open("/proc/thread-self/schedstat").ok();
        let queue = Self { account, last: Cell::new((Instant::now(), Duration::ZERO)) };
        queue.read();
        queue
    }

    /// The time spent in the queue up to now, or up to a moment ago.
    pub fn lately(&self) -> Duration {
        let (at, waited) = self.last.get();
        if at.elapsed() < RESOLUTION { waited } else { self.read() }
    }

    /// How much of the time `took` that has just ended was spent in the queue, where `before` is
    /// what [`Queue::lately`] said at its beginning.
    pub fn waited_in(&self, took: Duration, before: Duration) -> Duration {
        if took < SHORT { Duration::ZERO } else { self.read().saturating_sub(before) }
    }

    /// Fields: nanoseconds on a processor, nanoseconds in the queue, and how often.
    fn read(&self) -> Duration {
        let mut text = [0; 96];
        let read = self.account.as_ref().and_then(|account| account.read_at(&mut text, 0).ok());
        let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
        let waited = text.split_ascii_whitespace().nth(1).and_then(|ns| ns.parse().ok());
        let waited = Duration::from_nanos(waited.unwrap_or(0));
        self.last.set((Instant::now(), waited));
        waited
    }
}
