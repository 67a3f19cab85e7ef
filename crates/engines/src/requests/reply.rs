//! A worker's answers, and the few bytes of an answer that it remembers.

use super::packet::Failure;
use crate::error::EngineError;
use crate::operation::Outcome;

/// An answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<'a> {
    /// The operation was done.
    Done(Outcome<'a>),
    /// The operations of a packet were done: their results, packed.
    Packet(&'a [u8]),
    /// The operation was not done, or nobody knows.
    Failed(Failure),
    /// The request was not looked at: it was meant for another incarnation of the worker than this
    /// one.
    Stale(u32),
}

/// An answer without the bytes of its value: the part that is remembered of a mutation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Short {
    pub(super) status: u8,
    pub(super) first: u64,
    pub(super) second: u64,
}

/// The status bytes of a reply.
mod status {
    pub const STALE: u8 = 1;
    pub const FOUND: u8 = 2;
    pub const FOUND_EXPIRING: u8 = 3;
    pub const ABSENT: u8 = 4;
    pub const CONTAINED: u8 = 5;
    pub const STORED: u8 = 6;
    pub const REFUSED: u8 = 7;
    pub const REFUSED_ABSENT: u8 = 8;
    pub const DELETED: u8 = 9;
    pub const SCALAR: u8 = 10;
    pub const PACKET: u8 = 11;
}

impl<'a> Answer<'a> {
    /// A value that was found.
    pub fn found(value: &'a [u8], version: u64, expires_at_ms: Option<u64>) -> Self {
        Answer::Done(Outcome::Found { version, expires_at_ms, value })
    }

    /// The bytes of the answer's value.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        match self {
            Answer::Done(Outcome::Found { value, .. }) | Answer::Packet(value) => value,
            _ => &[],
        }
    }

    /// Everything but the value.
    #[inline]
    pub fn short(&self) -> Short {
        let (status, first, second) = match *self {
            Answer::Stale(incarnation) => (status::STALE, u64::from(incarnation), 0),
            Answer::Packet(_) => (status::PACKET, 0, 0),
            Answer::Failed(failure) => {
                let (status, [first, second]) = failure.parts();
                (status, first, second)
            }
            Answer::Done(outcome) => match outcome {
                Outcome::Found { version, expires_at_ms: None, .. } => (status::FOUND, version, 0),
                Outcome::Found { version, expires_at_ms: Some(at), .. } => {
                    (status::FOUND_EXPIRING, version, at)
                }
                Outcome::Absent => (status::ABSENT, 0, 0),
                Outcome::Contained(is) => (status::CONTAINED, u64::from(is), 0),
                Outcome::Stored(version) => (status::STORED, version, 0),
                Outcome::Refused(Some(version)) => (status::REFUSED, version, 0),
                Outcome::Refused(None) => (status::REFUSED_ABSENT, 0, 0),
                Outcome::Deleted(was) => (status::DELETED, u64::from(was), 0),
                Outcome::Scalar(number) => (status::SCALAR, number, 0),
                other => panic!("only a packet carries {other:?}"),
            },
        };
        Short { status, first, second }
    }
}

impl Answer<'_> {
    /// The error if the client asked for something else.
    #[cold]
    pub(super) fn of_another_request(&self) -> EngineError {
        match self {
            Answer::Done(outcome) => outcome.of_another_operation(),
            _ => EngineError::Damaged {
                what: "a worker told the results of a packet when asked for something else".into(),
            },
        }
    }
}

impl Short {
    /// Whether the answer has a value.
    #[inline]
    pub(super) fn has_value(&self) -> bool {
        matches!(self.status, status::FOUND | status::FOUND_EXPIRING | status::PACKET)
    }

    /// The incarnation of the worker that did not look at the request because the request was meant
    /// for another one.
    #[inline]
    pub(super) fn stale(&self) -> Option<u32> {
        if self.status == status::STALE { u32::try_from(self.first).ok() } else { None }
    }

    /// The answer, with its value; `None` if the short answer is invalid.
    #[inline]
    pub fn answer<'a>(&self, value: &'a [u8]) -> Option<Answer<'a>> {
        let (first, second) = (self.first, self.second);
        let outcome = match self.status {
            status::STALE => return Some(Answer::Stale(u32::try_from(first).ok()?)),
            status::FOUND => Outcome::Found { version: first, expires_at_ms: None, value },
            status::FOUND_EXPIRING => {
                Outcome::Found { version: first, expires_at_ms: Some(second), value }
            }
            status::ABSENT => Outcome::Absent,
            status::CONTAINED => Outcome::Contained(first != 0),
            status::STORED => Outcome::Stored(first),
            status::REFUSED => Outcome::Refused(Some(first)),
            status::REFUSED_ABSENT => Outcome::Refused(None),
            status::DELETED => Outcome::Deleted(first != 0),
            status::SCALAR => Outcome::Scalar(first),
            status::PACKET => return Some(Answer::Packet(value)),
            status => {
                return Failure::of_parts(status, [first, second]).map(Answer::Failed);
            }
        };
        Some(Answer::Done(outcome))
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::{FabricError, RemoteAddr};

    use super::*;

    #[test]
    fn answers_survive_the_trip() {
        let answers = [
            Answer::Stale(77),
            Answer::found(b"value", 3, None),
            Answer::found(b"value", 3, Some(0)),
            Answer::Done(Outcome::Absent),
            Answer::Done(Outcome::Contained(true)),
            Answer::Done(Outcome::Stored(1 << 60)),
            Answer::Done(Outcome::Refused(None)),
            Answer::Done(Outcome::Refused(Some(4))),
            Answer::Done(Outcome::Deleted(false)),
            Answer::Done(Outcome::Scalar(u64::MAX)),
            Answer::Packet(b"results"),
        ];
        for answer in answers {
            assert_eq!(answer.short().answer(answer.value()), Some(answer.clone()));
        }
        let at = RemoteAddr::new(loch_fabric::RegionId(3), 64);
        let errors = [
            EngineError::ValueTooLong { len: 9, max: 8 },
            EngineError::IndexFull { slots: 9, moves: 5 },
            EngineError::OutOfMemory { bytes: 9, capacity: 8 },
            EngineError::Timeout { timeout_us: 9 },
            EngineError::NotACounter { len: 9 },
            EngineError::Ambiguous(FabricError::OutcomeUnknown { at }),
            EngineError::Unsupported,
            EngineError::Fabric(FabricError::Unreachable { region: at.region() }),
        ];
        for error in errors {
            let answer = Answer::Failed(Failure::from(&error));
            assert_eq!(answer.short().answer(&[]), Some(answer.clone()));
            let Answer::Failed(failure) = answer else { unreachable!() };
            assert_eq!(failure.into_error(at), error);
        }
        let damaged = Failure::from(&EngineError::Damaged { what: String::new() });
        assert_eq!(Answer::Failed(damaged).short().answer(&[]), Some(Answer::Failed(damaged)));
        assert!(matches!(damaged.into_error(at), EngineError::Damaged { .. }));
    }

    /// An error that is worth another attempt differs from an error that stays: a client over a
    /// network connects again and repeats a request that found no memory, until its time is up.
    #[test]
    fn a_refusal_for_good_is_not_taken_for_an_outage() {
        let at = RemoteAddr::new(loch_fabric::RegionId(3), 64);
        let away = FabricError::Unreachable { region: at.region() };
        let told = |error: EngineError| Failure::from(&error).into_error(at);
        assert_eq!(told(EngineError::Fabric(away)), EngineError::Fabric(away));
        for refused in [
            EngineError::KeyEmpty,
            EngineError::KeyOfOtherLength { len: 3, want: 8 },
            EngineError::ReadOnly,
            EngineError::Unsupported,
        ] {
            assert_eq!(told(refused), EngineError::Unsupported);
        }
    }

    #[test]
    fn a_status_that_is_none_is_no_answer() {
        let known = |status| Short { status, first: 0, second: 0 }.answer(&[]).is_some();
        assert_eq!((0..=u8::MAX).filter(|status| known(*status)).count(), 27);
    }
}
