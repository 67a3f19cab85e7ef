//! Servers that were started and do not answer yet.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::TargetError;
use crate::process::Owned;
use crate::target::Result;

/// How long a server with memory of its own may take until it is ready, and how much longer for
/// each GiB that it has to allocate. A server that ends is noticed at once. On an emulated
/// processor, a node takes four seconds only to make a key of the secret.
const START_LIMIT: Duration = Duration::from_secs(60);
const START_LIMIT_A_GIB: Duration = Duration::from_secs(4);
/// Between two tries to connect.
const START_POLL: Duration = Duration::from_millis(5);
/// How much of a server's last words an error repeats.
const LAST_WORDS_CHARS: usize = 400;

/// A server that was started and does not answer yet.
pub struct Starting<'a> {
    /// Its name in errors.
    pub server: &'static str,
    /// Whether it answers by now.
    pub answers: &'a dyn Fn() -> bool,
    /// Its log meanwhile.
    pub log: &'a Path,
    /// How long it may take.
    pub limit: Duration,
}

impl Starting<'_> {
    /// Waits until it answers.
    pub fn wait(&self, process: &mut Owned, interrupted: &AtomicBool) -> Result<()> {
        let failed = |reason: String| {
            Err(not_started(self.server, format!("{reason}; it said: {}", last_words(self.log))))
        };
        let deadline = Instant::now() + self.limit;
        while Instant::now() < deadline {
            if (self.answers)() {
                return Ok(());
            }
            if let Some(status) = process.ended() {
                return failed(status);
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(not_started(self.server, "interrupted"));
            }
            thread::sleep(START_POLL);
        }
        failed(format!("its socket did not answer within {} s", self.limit.as_secs()))
    }
}

fn not_started(server: &'static str, reason: impl Into<String>) -> TargetError {
    TargetError::NotStarted { server, reason: reason.into() }
}

/// How long a process that has to allocate `bytes` bytes may take until it is ready.
pub fn start_limit(bytes: u64) -> Duration {
    START_LIMIT + START_LIMIT_A_GIB.mul_f64(bytes as f64 / f64::from(1 << 30))
}

fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = text.trim();
    if text.is_empty() {
        return "nothing".into();
    }
    let skipped = text.chars().count().saturating_sub(LAST_WORDS_CHARS);
    text.chars().skip(skipped).collect()
}
