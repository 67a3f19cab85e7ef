//! The scripts of clients.

use std::fmt;
use std::str::FromStr;

/// A key. Two are enough: one whose history is checked, and one that gets in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Key {
    /// The first.
    #[default]
    A,
    /// The second.
    B,
}

/// Keys there are.
pub const KEYS: usize = 2;
/// Clients at most.
pub const CLIENTS_MAX: usize = 4;
/// Operations of a client at most.
pub const SCRIPT_MAX: usize = 3;

impl Key {
    /// Its number.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The key with a number.
    pub fn from_index(index: u8) -> Self {
        if index == 0 { Self::A } else { Self::B }
    }
}

/// An operation of a script. Values are 1 to 9; 0 means that there is no value.
///
/// A value also stands for its version: scripts that use conditions write no value twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Returns the value.
    Get(Key),
    /// Returns the value, and looks at it in place once more.
    Pin(Key),
    /// Sets the value.
    Put(Key, u8),
    /// Sets the value. If there is none, and the slot shows another key's, that one is evicted: the
    /// insert takes its place.
    PutOver(Key, u8, u8),
    /// Removes the value, and returns whether there was one.
    Delete(Key),
    /// `put_if_version`: sets the value to the second if it is the first, and returns whether it
    /// was.
    PutIf(Key, u8, u8),
    /// `put_if_absent`: sets the value if there is none, and returns whether it did.
    PutIfAbsent(Key, u8),
    /// `fetch_add`: adds one to the value (a missing value counts as 0), and returns the value
    /// before.
    FetchAdd(Key),
    /// DELETE as published: removes the value and does not report whether there was one.
    Remove(Key),
    /// Removes the value if the slot shows it: an eviction, which has its effect with its CAS.
    Evict(Key, u8),
    /// Moves the entry of the first slot to the second.
    Move(u8, u8),
    /// Settles a slot that another client left undecided, as a PUT does if it finds no room.
    Settle(u8),
    /// Frees an entry that is in use though no slot names it.
    Scrub,
}

impl Op {
    /// The key, if the operation has one. Operations without a key change no visible value.
    pub fn key(self) -> Option<Key> {
        match self {
            Self::Get(key) | Self::Pin(key) | Self::Put(key, _) | Self::Delete(key) => Some(key),
            Self::PutIf(key, ..) | Self::PutIfAbsent(key, _) => Some(key),
            Self::FetchAdd(key) | Self::Remove(key) | Self::Evict(key, _) => Some(key),
            Self::PutOver(key, ..) => Some(key),
            Self::Move(..) | Self::Settle(_) | Self::Scrub => None,
        }
    }

    /// Whether the operation only reads the value of a key.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Get(_) | Self::Pin(_))
    }

    /// The value of the key after the operation if it was `value` before, and the result.
    pub fn apply(self, value: u8) -> (u8, u8) {
        match self {
            Self::Get(_) | Self::Pin(_) => (value, value),
            Self::Put(_, new) | Self::PutOver(_, new, _) => (new, 0),
            Self::Delete(_) => (0, u8::from(value != 0)),
            Self::PutIf(_, was, new) if value == was && value != 0 => (new, 1),
            Self::PutIfAbsent(_, new) if value == 0 => (new, 1),
            Self::PutIf(..) | Self::PutIfAbsent(..) => (value, 0),
            Self::FetchAdd(_) => (value + 1, value),
            Self::Remove(_) | Self::Evict(..) => (0, 0),
            Self::Move(..) | Self::Settle(_) | Self::Scrub => (value, 0),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Get(key) => write!(f, "GET({key:?})"),
            Self::Pin(key) => write!(f, "PIN({key:?})"),
            Self::Put(key, value) => write!(f, "PUT({key:?},{value})"),
            Self::PutOver(key, value, slot) => write!(f, "PUT_OVER({key:?},{value},{slot})"),
            Self::Delete(key) => write!(f, "DELETE({key:?})"),
            Self::PutIf(key, was, value) => write!(f, "PUT_IF({key:?},{was}->{value})"),
            Self::PutIfAbsent(key, value) => write!(f, "PUT_IF_ABSENT({key:?},{value})"),
            Self::FetchAdd(key) => write!(f, "FETCH_ADD({key:?})"),
            Self::Remove(key) => write!(f, "DELETE({key:?})"),
            Self::Evict(key, slot) => write!(f, "EVICT({key:?},{slot})"),
            Self::Move(from, to) => write!(f, "MOVE({from}->{to})"),
            Self::Settle(slot) => write!(f, "SETTLE({slot})"),
            Self::Scrub => write!(f, "SCRUB"),
        }
    }
}

impl FromStr for Op {
    type Err = String;

    /// Reads an operation as it is shown.
    fn from_str(text: &str) -> Result<Self, String> {
        read(text).ok_or(format!("what is {text}?"))
    }
}

fn read(text: &str) -> Option<Op> {
    let (name, arguments) = text.split_once('(').unwrap_or((text, ")"));
    let mut arguments = arguments.strip_suffix(')')?.split([',', '>']);
    let mut next = || arguments.next().map(|argument| argument.trim_end_matches('-'));
    let key = |argument: &str| match argument {
        "A" => Some(Key::A),
        "B" => Some(Key::B),
        _ => None,
    };
    let number = |argument: &str| argument.parse::<u8>().ok().filter(|number| *number <= 9);
    Some(match name {
        "GET" => Op::Get(key(next()?)?),
        "PIN" => Op::Pin(key(next()?)?),
        "PUT" => Op::Put(key(next()?)?, number(next()?)?),
        "PUT_OVER" => Op::PutOver(key(next()?)?, number(next()?)?, number(next()?)?),
        "DELETE" => Op::Delete(key(next()?)?),
        "PUT_IF" => Op::PutIf(key(next()?)?, number(next()?)?, number(next()?)?),
        "PUT_IF_ABSENT" => Op::PutIfAbsent(key(next()?)?, number(next()?)?),
        "FETCH_ADD" => Op::FetchAdd(key(next()?)?),
        "EVICT" => Op::Evict(key(next()?)?, number(next()?)?),
        "MOVE" => Op::Move(number(next()?)?, number(next()?)?),
        "SETTLE" => Op::Settle(number(next()?)?),
        "SCRUB" => Op::Scrub,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_read_as_they_are_shown() {
        for op in [
            Op::Get(Key::A),
            Op::Pin(Key::B),
            Op::Put(Key::B, 3),
            Op::PutOver(Key::A, 3, 1),
            Op::Delete(Key::A),
            Op::PutIf(Key::A, 9, 1),
            Op::PutIfAbsent(Key::B, 2),
            Op::FetchAdd(Key::A),
            Op::Evict(Key::B, 1),
            Op::Move(1, 2),
            Op::Settle(2),
            Op::Scrub,
        ] {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        assert!("PUT(A)".parse::<Op>().is_err() && "PUT(A,10)".parse::<Op>().is_err());
    }
}
