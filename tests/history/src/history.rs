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
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// GET: the value and its version, or nothing.
    Found(Option<(u64, u64)>),
    /// A PUT of any kind took effect: the version the store gave the value.
    Stored(u64),
    /// A condition did not hold: the version the key has, if it has a value.
    Refused(Option<u64>),
    /// DELETE: whether there was a value.
    Deleted(bool),
    /// ADD: the number before.
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
            Ask::Get | Ask::Delete | Ask::Add(_) => None,
        }
    }

    /// Whether it certainly changed nothing.
    pub(crate) fn is_read(&self) -> bool {
        match self.outcome {
            Outcome::Known(answer) => matches!(
                answer,
                Answer::Found(_) | Answer::Refused(_) | Answer::Deleted(false) | Answer::NoEffect
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
