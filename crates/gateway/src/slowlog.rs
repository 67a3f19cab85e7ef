//! Commands that took long, as Redis keeps them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clients::Client;

/// Commands that are kept.
pub(crate) const KEPT: usize = 128;
/// Arguments of a command that are kept, and bytes of one: as in Redis.
const ARGUMENTS: usize = 32;
const ARGUMENT_BYTES: usize = 128;

/// A command that took long.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub id: u64,
    /// Seconds since 1970.
    pub at_s: u64,
    pub took_us: u64,
    pub arguments: Vec<Vec<u8>>,
    pub address: String,
    pub name: String,
}

/// The last commands that took longer than a time.
#[derive(Debug)]
pub(crate) struct Slowlog {
    /// `None`: nothing is kept.
    slower_than: Option<Duration>,
    kept: Mutex<(u64, VecDeque<Slow>)>,
}

impl Slowlog {
    pub fn new(slower_than: Option<Duration>) -> Self {
        Self { slower_than, kept: Mutex::default() }
    }

    pub fn slower_than(&self) -> Option<Duration> {
        self.slower_than
    }

    fn kept(&self) -> MutexGuard<'_, (u64, VecDeque<Slow>)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a command, if it took long enough.
    pub fn note(&self, client: &Client, request: &[&[u8]], took: Duration) {
        if self.slower_than.is_none_or(|time| took < time) {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut arguments: Vec<Vec<u8>> = request.iter().take(ARGUMENTS).map(|a| cut(a)).collect();
        if let Some(more) = request.len().checked_sub(ARGUMENTS).filter(|more| *more > 0) {
            arguments.pop();
            arguments.push(format!("... ({} more arguments)", more + 1).into_bytes());
        }
        let mut kept = self.kept();
        let (id, slow) = &mut *kept;
        slow.truncate(KEPT - 1);
        slow.push_front(Slow {
            id: *id,
            at_s: now.as_secs(),
            took_us: took.as_micros() as u64,
            arguments,
            address: client.address.clone(),
            name: client.said().name.clone(),
        });
        *id += 1;
    }

    /// The last ones, the latest first.
    pub fn last(&self, count: usize) -> Vec<Slow> {
        self.kept().1.iter().take(count).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.kept().1.len()
    }

    pub fn reset(&self) {
        self.kept().1.clear();
    }
}

fn cut(argument: &[u8]) -> Vec<u8> {
    match argument.len().checked_sub(ARGUMENT_BYTES).filter(|more| *more > 0) {
        None => argument.to_vec(),
        Some(more) => {
            let mut bytes = argument[..ARGUMENT_BYTES].to_vec();
            bytes.extend(format!("... ({more} more bytes)").bytes());
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Clients;

    #[test]
    fn the_last_slow_commands_are_kept_and_no_more_of_them_than_tells_which() {
        let clients = Clients::new(2);
        let client = clients.enter("a:1".into(), "b:2".into(), 0, false).unwrap();
        let log = Slowlog::new(Some(Duration::from_millis(10)));
        log.note(&client, &[b"GET", b"fast"], Duration::from_millis(9));
        let long = [b'x'; 200];
        let arguments = [&long[..]; 40];
        for _ in 0..KEPT + 5 {
            log.note(&client, &arguments, Duration::from_millis(10));
        }
        let last = log.last(2);
        assert_eq!((log.len(), last[0].id, last[1].id), (KEPT, 132, 131));
        assert_eq!((last[0].took_us, last[0].arguments.len()), (10_000, 32));
        assert!(last[0].arguments[0].ends_with(b"x... (72 more bytes)"));
        assert_eq!(last[0].arguments[31], b"... (9 more arguments)");
        log.reset();
        assert_eq!(log.len(), 0);
        Slowlog::new(None).note(&client, &[b"GET"], Duration::from_secs(9));
    }
}
