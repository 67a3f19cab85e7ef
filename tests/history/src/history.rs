//! What was recorded: operations on keys, and what they came to.

/// What was asked of one key. Values are tags, versions what the store said. 0 is never a value
/// that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// The value and its version.
    Get,
    /// To have this value.
    Put(u64),
    /// To have this value if it has none.
    PutIfAbsent(u64),
    /// To have another value if the one it has is of this version.
    PutIfVersion {
        /// The version it must have.
        version: u64,
        /// The new value.
        value: u64,
    },
    /// To have no value.
    Delete,
    /// To have so much more, wrapping; without a value it counts as 0.
    Add(u64),
    /// To have the value it has with this one behind it, which is [`appended`]; without a value
    /// this one.
    Append(u64),
    /// To have what a function makes of the number it has.
    Update(Update),
    /// To have no value if it has this one, or what was appended to it, whose time has come: nobody
    /// asks it, so the outcome is unknown. It is called at the earliest moment at which somebody's
    /// clock may say so, and from then on it happens once or, for the outcome is never told, not at
    /// all.
    Expire(u64),
}

/// The value that is made of `value` with `piece` behind it. No two are made the same, and none is
/// a small number, which is not to be expected before 2^32 of them.
#[must_use]
pub fn appended(value: u64, piece: u64) -> u64 {
    let mixed = (value ^ piece.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29 ^ piece).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ value.rotate_left(17)
}

/// Other functions of a number than adding. But where it is said, a key without a value counts as
/// 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    /// So much more, or the greatest number that there is.
    AddSaturating(u64),
    /// This one.
    Exchange(u64),
    /// Another one if it is the expected one, else what it is.
    CompareSwap {
        /// What it must be.
        expected: u64,
        /// The new number.
        value: u64,
    },
    /// So much more, wrapping; a key without a value keeps none.
    AddIfPresent(u64),
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// GET: the value and its version, or nothing.
    Found(Option<(u64, u64)>),
    /// GET of a store that tells no versions: the value.
    Value(u64),
    /// GET that tells no more than that there is a value.
    Present,
    /// A PUT of any kind took effect: the version the store gave the value.
    Stored(u64),
    /// It took effect, and nothing else was told. After such a DELETE there is no value, whatever
    /// there was before.
    Done,
    /// A condition did not hold: the version the key has, if it has a value.
    Refused(Option<u64>),
    /// As it was not absent, of a store that tells no versions.
    Held,
    /// DELETE: whether there was a value.
    Deleted(bool),
    /// ADD and updates: the number before.
    Before(u64),
    /// Certainly without effect: no memory, index full, timed out before publishing.
    NoEffect,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It returned with this answer.
    Known(Answer),
    /// Its client crashed, or got an error that says nothing, or still waits: it may take effect at
    /// any moment after its call, or never.
    Unknown,
    /// As unknown, but it had its effect by this moment if it ever has one: what a process did, it
    /// did before it was dead.
    UnknownUntil(u64),
}

/// One operation. Operations of one client may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Who asked; for the reader of a history alone.
    pub client: u32,
    /// Of which key.
    pub key: u64,
    /// What.
    pub ask: Ask,
    /// When, by a clock that all clients share. Operations that touch in one instant are
    /// concurrent.
    pub called: u64,
    /// When it was answered; `u64::MAX` if it never was. Without meaning if the outcome is unknown.
    pub returned: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// Operations, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    operations: Vec<Operation>,
}

impl Ask {
    /// What an update makes of a number, or of no value; `None` for what is no update, and where
    /// nothing becomes of nothing.
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

    /// Whether the value that it writes depends on what there is.
    pub(crate) fn is_update(self) -> bool {
        matches!(self, Ask::Add(_) | Ask::Update(_))
    }
}

impl Operation {
    /// From when on it can have no effect any more: the end of its interval.
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

    /// The value it writes if it takes effect, unless that depends on what there is.
    pub(crate) fn value(&self) -> Option<u64> {
        match self.ask {
            Ask::Put(value) | Ask::PutIfAbsent(value) | Ask::PutIfVersion { value, .. } => {
                Some(value)
            }
            Ask::Get | Ask::Delete | Ask::Add(_) | Ask::Append(_) | Ask::Update(_) => None,
            Ask::Expire(_) => None,
        }
    }

    /// Whether it certainly changed nothing.
    pub(crate) fn is_read(&self) -> bool {
        match self.outcome {
            Outcome::Known(answer) => matches!(
                answer,
                Answer::Found(_)
                    | Answer::Value(_)
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

    /// How many there are.
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
