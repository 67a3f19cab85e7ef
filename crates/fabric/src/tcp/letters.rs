//! What clients have sent to a worker.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::admission::Admitted;
use super::turns::lock;
use crate::limits::TCP_MAILBOX_BYTES_MAX;
use crate::shm::Bell;

/// What has arrived in a mailbox.
pub(super) struct Letters {
    bell: Option<Bell>,
    state: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    letters: VecDeque<(Arc<Admitted>, Vec<u8>)>,
    bytes: usize,
}

impl Letters {
    pub fn new(bell: Option<Bell>) -> Self {
        Self { bell, state: Mutex::default() }
    }

    /// Puts a message in. Returns whether there was room.
    pub fn put(&self, from: &Arc<Admitted>, message: &[u8]) -> bool {
        let mut state = lock(&self.state);
        // Each has a place in the queue, too.
        let bytes = message.len() + size_of::<(Arc<Admitted>, Vec<u8>)>();
        if state.bytes + bytes > TCP_MAILBOX_BYTES_MAX {
            return false;
        }
        state.bytes += bytes;
        state.letters.push_back((from.clone(), message.to_vec()));
        true
    }

    /// Takes all messages, if `into` is empty.
    pub fn take(&self, into: &mut VecDeque<(Arc<Admitted>, Vec<u8>)>) {
        if into.is_empty() {
            let mut state = lock(&self.state);
            std::mem::swap(into, &mut state.letters);
            state.bytes = 0;
        }
    }

    /// Wakes the worker.
    pub fn ring(&self) {
        self.bell.iter().for_each(Bell::ring);
    }
}
