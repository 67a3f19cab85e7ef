//! A limit for log lines that other hosts can cause as often as they like.

use std::sync::Mutex;
use std::time::Instant;

use crate::limits::LOG_INTERVAL;

/// The limit of one kind of lines: one line is due in each [`LOG_INTERVAL`], and the others are
/// counted.
///
/// ```
/// use loch_fabric::RateLimit;
/// let (limit, now) = (RateLimit::default(), std::time::Instant::now());
/// assert_eq!((limit.due(now), limit.due(now)), (Some(0), None));
/// ```
#[derive(Debug, Default)]
pub struct RateLimit {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the last line was due.
    last: Option<Instant>,
    /// The lines since then that were left out.
    unsaid: u64,
}

impl RateLimit {
    /// Returns `None` if no line is due, else how many lines were left out since the last one.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().expect("nothing panics while it is held");
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < LOG_INTERVAL) {
            state.unsaid += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_line_is_due_in_each_interval_and_says_how_many_were_left_out() {
        let (limit, start) = (RateLimit::default(), Instant::now());
        let just_before = LOG_INTERVAL - Duration::from_millis(1);
        assert_eq!(limit.due(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(limit.due(start + just_before), None);
        }
        assert_eq!(limit.due(start + LOG_INTERVAL), Some(1000));
        assert_eq!(limit.due(start + LOG_INTERVAL), None);
        assert_eq!(limit.due(start + 2 * LOG_INTERVAL), Some(1));
    }
}
