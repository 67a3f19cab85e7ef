//! Messages that the fabric's counters do not know of: SENDs.

use std::cell::Cell;

use loch::VerbCount;

/// Messages of one client's operations, its own and the replies to them.
#[derive(Debug, Default)]
pub struct Messages(Cell<VerbCount>);

impl Messages {
    /// Notes that a request was answered: so many SENDs with so many bytes, and the round trips that
    /// nobody else counted.
    pub fn note(&self, sends: u64, round_trips: u64, bytes: usize) {
        let bytes = bytes as u64;
        let sent = VerbCount {
            verbs: sends,
            remote_verbs: sends,
            round_trips,
            bytes,
            remote_bytes: bytes,
            ..VerbCount::default()
        };
        self.0.set(self.0.get() + sent);
    }

    /// All so far.
    pub fn count(&self) -> VerbCount {
        self.0.get()
    }
}
