//! How much waits to be sent on a connection for which no lane waits.

/// The requests that nobody awaits, among those that wait to be sent. There is a number for those
/// before a place in the stream and one for those behind it, whatever stands between them.
#[derive(Debug, Default)]
pub(super) struct Unawaited {
    /// The place.
    mark: u64,
    /// Bytes of such requests before it. They count until all of them have left.
    before: u64,
    behind: u64,
}

impl Unawaited {
    /// Takes note of a request of this length that was queued last.
    pub fn add(&mut self, bytes: usize) {
        self.behind += bytes as u64;
    }

    /// The number of bytes, or some more, when these parts of the stream are queued and sent.
    pub fn bytes(&mut self, queued: u64, sent: u64) -> u64 {
        if sent >= self.mark {
            *self = Self { mark: queued, before: self.behind, behind: 0 };
        }
        self.before + self.behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_left_counts_no_more_once_all_before_the_mark_has() {
        let (mut unawaited, mut queued) = (Unawaited::default(), 0);
        let mut queue = |unawaited: &mut Unawaited, bytes, is_awaited: bool| {
            queued += bytes;
            if !is_awaited {
                unawaited.add(bytes as usize);
            }
            queued
        };
        queue(&mut unawaited, 1000, true);
        assert_eq!(unawaited.bytes(1000, 0), 0, "awaited requests do not count");
        queue(&mut unawaited, 50, false);
        let all = queue(&mut unawaited, 7, false);
        assert_eq!(unawaited.bytes(all, 999), 57);
        assert_eq!(unawaited.bytes(all, 1000), 57, "they are behind the new mark");
        let all = queue(&mut unawaited, 3, false);
        assert_eq!(unawaited.bytes(all, 1056), 60);
        assert_eq!(unawaited.bytes(all, 1057), 3);
        assert_eq!(unawaited.bytes(all, all), 0);
    }
}
