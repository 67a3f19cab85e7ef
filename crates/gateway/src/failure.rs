//! Why a command was not done.

use std::borrow::Cow;

use loch::{EngineError, ErrorKind};

/// A command's failure, to be worded by the protocol.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The store's.
    Store(loch::Error),
    /// The answer to a command that is wrong, in the words of its protocol.
    Said(Cow<'static, str>),
    /// Others kept changing the value.
    Busy,
    /// Too many requests have come in part.
    NoRoom,
    /// Clients have left too many answers that are nowhere else.
    Held,
}

impl From<loch::Error> for Failure {
    fn from(error: loch::Error) -> Self {
        Self::Store(error)
    }
}

impl From<&'static str> for Failure {
    fn from(said: &'static str) -> Self {
        Self::Said(said.into())
    }
}

impl From<String> for Failure {
    fn from(said: String) -> Self {
        Self::Said(said.into())
    }
}

impl Failure {
    /// Whether nobody answers, so that other requests of the batch would wait as long, in vain.
    pub fn is_of_all(&self) -> bool {
        let Self::Store(error) = self else { return false };
        matches!(error.kind(), ErrorKind::TryAgain | ErrorKind::OutcomeUnknown)
    }

    /// Whether the table can have no such key.
    pub fn is_of_key(&self) -> bool {
        matches!(self, Self::Store(error) if is_of_key(error))
    }

    /// For the log.
    pub fn in_words(&self) -> Cow<'_, str> {
        match self {
            Self::Store(error) => error.to_string().into(),
            Self::Said(said) => said.as_ref().into(),
            Self::Busy => "others kept changing the value".into(),
            Self::NoRoom => "too many requests have come in part".into(),
            Self::Held => "clients have left too many answers".into(),
        }
    }

    /// The text of an error of the store, on one line. Clients know nothing of tables.
    pub fn text(error: &loch::Error) -> String {
        let text = error.engine().map_or_else(|| error.to_string(), EngineError::to_string);
        text.replace(['\r', '\n'], " ")
    }
}

/// What was found under a key: nothing, if the table can have no such key.
pub(crate) fn found<T>(done: loch::Result<Option<T>>) -> loch::Result<Option<T>> {
    match done {
        Err(error) if is_of_key(&error) => Ok(None),
        done => done,
    }
}

fn is_of_key(error: &loch::Error) -> bool {
    use EngineError::{KeyEmpty, KeyOfOtherLength, KeyTooLong};
    matches!(error.engine(), Some(KeyEmpty | KeyTooLong { .. } | KeyOfOtherLength { .. }))
}
