//! Recorded operations on keys, and their outcomes.

/// The request on one key. Values are tags; versions come from the store. No operation writes the
/// value 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// The value and its version.
    Get,
    /// To have this value.
    Put(u64),
    /// To have this value if it has none.
    PutIfAbsent(u64),
    /// To have another value if its value has this version.
    PutIfVersion {
        /// The version it must have.
        version: u64,
        /// The new value.
        value: u64,
    },
    /// To have no value.
    Delete,
    /// To have no value if its value has this version.
    DeleteIfVersion(u64),
    /// To have this much more, wrapping; a missing value counts as 0.
    Add(u64),
    /// To have its value with this one behind it, which is [`appended`]; a key without a value gets
    /// this one.
    Append(u64),
    /// To have its value with another expiry, if it has one. The tag names that expiry, if there is
    /// one: the value then ends by [`Ask::Expire`] with this tag, and not with its own any more.
    Touch(u64),
    /// To have the result of a function of its number.
    Update(Update),
    /// To have no value if it has this one, or one that was appended to it, and its expiry is still
    /// its own; or if it was last touched with this tag. Its time has come.
    /// No client requests an expiry, so the outcome is unknown. It is called at the earliest moment
    /// at which some clock may say that the value has expired. From then on it happens once, or not
    /// at all, because no outcome is ever reported.
    Expire(u64),
    /// The store has no value any more, because it may forget one at any moment, as a cache does.
    /// No client requests that, so the outcome is unknown; and it stands for any number of times.
    /// [`History::forgetting`] adds it.
    Forget,
}

/// The value that is made of `value` with `piece` behind it. No two such values are equal, and none
/// is a small number; exceptions are not to be expected before 2^32 of them.
#[must_use]
pub fn appended(value: u64, piece: u64) -> u64 {
    let mixed = (value ^ piece.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29 ^ piece).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ value.rotate_left(17)
}

/// Functions of a number other than adding. A missing value counts as 0, unless a variant says
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    /// This much more, or the greatest possible number.
    AddSaturating(u64),
    /// This one.
    Exchange(u64),
    /// Another number if the number is the expected one; otherwise no change.
    CompareSwap {
        /// The expected number.
        expected: u64,
        /// The new number.
        value: u64,
    },
    /// This much more, wrapping; a key without a value still has none.
    AddIfPresent(u64),
}

/// An answer of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// GET: the value and its version, or nothing. TOUCH that returns the value: the same, with the
    /// new version.
    Found(Option<(u64, u64)>),
    /// GET of a store that reports no versions: the value.
    Value(u64),
    /// GET that reports only that there is a value.
    Present,
    /// A PUT of any kind or a TOUCH took effect: the version the store gave the value.
    Stored(u64),
    /// It took effect, and the answer says nothing else. After such a DELETE there is no value,
    /// whether or not there was one before.
    Done,
    /// A condition did not hold: the version the key has, if it has a value.
    Refused(Option<u64>),
    /// The key was not absent; from a store that reports no versions.
    Held,
    /// DELETE: whether there was a value.
    Deleted(bool),
    /// ADD and updates: the number before.
    Before(u64),
    /// Certainly without effect: no memory, index full, timed out before publishing.
    NoEffect,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It returned with this answer.
    Known(Answer),
    /// Its client crashed, got an error that does not tell, or still waits: the operation may take
    /// effect at any moment after its call, or never.
    Unknown,
    /// Like `Unknown`, but if it ever has an effect, it had it by this moment: a process acts only
    /// before its death.
    UnknownUntil(u64),
}

/// One operation. Operations of one client may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The client that called it; only for people who read a history.
    pub client: u32,
    /// The key.
    pub key: u64,
    /// The request.
    pub ask: Ask,
    /// When it was called, by a clock that all clients share. Operations that touch in one instant
    /// are concurrent.
    pub called: u64,
    /// When it was answered; `u64::MAX` if it never was. Without meaning if the outcome is unknown.
    pub returned: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

impl Operation {
    /// That the store may forget a value of this key from this moment on.
    fn forgets(key: u64, called: u64) -> Self {
        let (client, returned, outcome) = (u32::MAX, u64::MAX, Outcome::Unknown);
        Self { client, key, ask: Ask::Forget, called, returned, outcome }
    }
}

/// Operations, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    operations: Vec<Operation>,
}

impl Ask {
    /// The result of an update of a number, or of no value. `None` if this is no update, or if a
    /// missing value stays missing.
    pub(crate) fn makes(self, before: Option<u64>) -> Option<u64> {
        let number = before.unwrap_or(0);
        match self {
            Ask::Add(add) => Some(number.wrapping_add(add)),
            Ask::Update(Update::AddSaturating(add)) => Some(number.saturating_add(add)),
            Ask::Update(Update::Exchange(value)) => Some(value),
            Ask::Update(Update::CompareSwap { expected, value }) => {
                Some(if number == expected { value } else { number })
            }
            Ask::Update(Update::AddIfPresent(add)) => Some(before?.wrapping_add(add)),
            Ask::Append(piece) => Some(before.map_or(piece, |before| appended(before, piece))),
            _ => None,
        }
    }

    /// Whether the value that it writes depends on the value before.
    pub(crate) fn is_update(self) -> bool {
        matches!(self, Ask::Add(_) | Ask::Update(_))
    }
}

impl Operation {
    /// The end of its interval: afterwards it can have no effect any more.
    pub(crate) fn until(&self) -> u64 {
        match self.outcome {
            Outcome::Known(_) => self.returned,
            Outcome::Unknown => u64::MAX,
            Outcome::UnknownUntil(moment) => moment.max(self.called),
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        matches!(self.outcome, Outcome::Known(_))
    }

    /// The value that it writes if it takes effect, unless that depends on the value before.
    pub(crate) fn value(&self) -> Option<u64> {
        match self.ask {
            Ask::Put(value) | Ask::PutIfAbsent(value) | Ask::PutIfVersion { value, .. } => {
                Some(value)
            }
            Ask::Get
            | Ask::Delete
            | Ask::DeleteIfVersion(_)
            | Ask::Add(_)
            | Ask::Append(_)
            | Ask::Update(_) => None,
            Ask::Touch(_) | Ask::Expire(_) | Ask::Forget => None,
        }
    }

    /// The tag of the expiry that it gives the present value.
    pub(crate) fn touch(&self) -> Option<u64> {
        if let Ask::Touch(tag) = self.ask { Some(tag) } else { None }
    }

    /// Whether it certainly changed nothing.
    pub(crate) fn is_read(&self) -> bool {
        match self.outcome {
            Outcome::Known(Answer::Found(Some(_)) | Answer::Value(_)) => self.ask == Ask::Get,
            Outcome::Known(answer) => matches!(
                answer,
                Answer::Found(None)
                    | Answer::Present
                    | Answer::Refused(_)
                    | Answer::Held
                    | Answer::Deleted(false)
                    | Answer::NoEffect
            ),
            Outcome::Unknown | Outcome::UnknownUntil(_) => self.ask == Ask::Get,
        }
    }
}

impl History {
    /// No operations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    /// The same, of a store that may forget any value at any moment.
    #[must_use]
    pub fn forgetting(mut self) -> Self {
        let keys = self.by_key();
        let first = keys.iter().map(|(key, operations)| (*key, operations[0].called));
        self.operations.extend(first.map(|(key, called)| Operation::forgets(key, called)));
        self
    }

    /// The number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// In the order they were added.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The operations on each key, keys in ascending order.
    #[must_use]
    pub fn by_key(&self) -> Vec<(u64, Vec<Operation>)> {
        let mut sorted = self.operations.clone();
        sorted.sort_by_key(|operation| (operation.key, operation.called));
        let of_one_key = sorted.chunk_by(|a, b| a.key == b.key);
        of_one_key.map(|operations| (operations[0].key, operations.to_vec())).collect()
    }
}

impl From<Vec<Operation>> for History {
    fn from(operations: Vec<Operation>) -> Self {
        Self { operations }
    }
}

impl FromIterator<Operation> for History {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        Self { operations: operations.into_iter().collect() }
    }
}

impl Extend<Operation> for History {
    fn extend<I: IntoIterator<Item = Operation>>(&mut self, operations: I) {
        self.operations.extend(operations);
    }
}
