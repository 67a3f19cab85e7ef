//! One key without concurrency: the effect of an operation, and whether its answer fits.

use crate::{Answer, Ask, Update};

/// A value as the search has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    /// A value that no answer shows. All such values are interchangeable.
    Unseen,
}

/// The content of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub value: Value,
    /// The value to which this one was appended, if it was: both expire together. After a TOUCH its
    /// tag.
    pub root: Value,
    /// `None`: the version was not reported so far; it differs from the reported versions of all
    /// other values.
    pub version: Option<u64>,
}

pub(crate) type State = Option<Held>;

/// An effect on the key, and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub ask: Ask,
    /// `None`: there was no answer; it took effect.
    pub answer: Option<Answer>,
    /// Whether the value it writes is [`Value::Unseen`].
    pub unseen: bool,
}

impl Step {
    /// The state after it; `None` if the answer does not fit. `is_new` holds for versions that were
    /// not reported so far.
    pub fn apply(&self, state: State, is_new: impl Fn(u64) -> bool) -> Option<State> {
        match self.answer {
            Some(answer) => self.answered(answer, state, is_new),
            None => self.effect(state, is_new),
        }
    }

    fn answered(
        &self,
        answer: Answer,
        state: State,
        is_new: impl Fn(u64) -> bool,
    ) -> Option<State> {
        let given = |version: u64| is_new(version).then(|| Some(self.written(Some(version))));
        match (self.ask, answer) {
            (Ask::Get, Answer::Found(None))
            | (Ask::Delete, Answer::Deleted(false))
            | (Ask::PutIfVersion { .. }, Answer::Refused(None)) => state.is_none().then_some(None),
            (Ask::Get, Answer::Found(Some((value, version)))) => {
                let held = state.filter(|held| held.value == Value::Number(value))?;
                held.named(version, is_new).map(Some)
            }
            (Ask::Get, Answer::Value(value)) => {
                state.filter(|held| held.value == Value::Number(value)).map(Some)
            }
            (Ask::Get, Answer::Present) | (Ask::PutIfAbsent(_), Answer::Held) => state.map(Some),
            (Ask::Update(Update::AddIfPresent(_)), Answer::Refused(None)) => {
                state.is_none().then_some(None)
            }
            (Ask::PutIfAbsent(_), Answer::Refused(Some(version))) => {
                state?.named(version, is_new).map(Some)
            }
            (Ask::PutIfVersion { version: asked, .. }, Answer::Refused(Some(version))) => {
                if asked == version {
                    return None;
                }
                state?.named(version, is_new).map(Some)
            }
            (Ask::Delete, Answer::Deleted(true)) => state.map(|_| None),
            (Ask::DeleteIfVersion(_), Answer::Deleted(true)) => self.effect(state, is_new),
            (Ask::DeleteIfVersion(version), Answer::Deleted(false)) => {
                state.is_none_or(|held| held.version != Some(version)).then_some(state)
            }
            (Ask::Delete, Answer::Done) => Some(None),
            (Ask::Put(_) | Ask::PutIfAbsent(_) | Ask::Append(_) | Ask::Update(_), Answer::Done) => {
                self.effect(state, is_new)
            }
            (Ask::Append(_), Answer::Stored(version)) => {
                if !is_new(version) {
                    return None;
                }
                let held = self.effect(state, is_new)??;
                Some(Some(Held { version: Some(version), ..held }))
            }
            (Ask::Touch(_), answer) => self.touched(answer, state, is_new),
            (Ask::Put(_), Answer::Stored(version)) => given(version),
            (Ask::PutIfAbsent(_), Answer::Stored(version)) => {
                if state.is_some() {
                    return None;
                }
                given(version)
            }
            (Ask::PutIfVersion { version: asked, .. }, Answer::Stored(version)) => {
                state?.named(asked, &is_new)?;
                if asked == version {
                    return None;
                }
                given(version)
            }
            (Ask::Add(_) | Ask::Update(_), Answer::Before(before)) => {
                let fits = match state.map(|held| held.value) {
                    None => before == 0,
                    Some(value) => value == Value::Number(before),
                };
                if fits { self.effect(state, is_new) } else { None }
            }
            _ => None,
        }
    }

    /// The state after a TOUCH with this answer.
    fn touched(&self, answer: Answer, state: State, is_new: impl Fn(u64) -> bool) -> Option<State> {
        let (value, version) = match answer {
            Answer::Found(None) | Answer::Refused(None) => return state.is_none().then_some(None),
            Answer::Done => (None, None),
            Answer::Value(value) => (Some(value), None),
            Answer::Stored(version) => (None, Some(version)),
            Answer::Found(Some((value, version))) => (Some(value), Some(version)),
            _ => return None,
        };
        let is_it = |held: &Held| value.is_none_or(|value| held.value == Value::Number(value));
        if version.is_some_and(|version| !is_new(version)) {
            return None;
        }
        let held = self.effect(state.filter(is_it), is_new)??;
        Some(Some(Held { version, ..held }))
    }

    fn effect(&self, state: State, is_new: impl Fn(u64) -> bool) -> Option<State> {
        let written = Some(self.written(None));
        match self.ask {
            Ask::Get => Some(state),
            Ask::Put(_) => Some(written),
            Ask::PutIfAbsent(_) => state.is_none().then_some(written),
            Ask::PutIfVersion { version, .. } => state?.named(version, is_new).map(|_| written),
            Ask::DeleteIfVersion(version) => state?.named(version, is_new).map(|_| None),
            Ask::Delete | Ask::Forget => state.map(|_| None),
            Ask::Touch(tag) => {
                let touched = |held| Held { root: Value::Number(tag), version: None, ..held };
                state.map(|held| Some(touched(held)))
            }
            Ask::Expire(value) => {
                state.filter(|held| held.root == Value::Number(value)).map(|_| None)
            }
            // A value made from an unseen value, or with an unseen piece, is unseen as well.
            Ask::Append(_)
                if self.unseen || state.is_some_and(|held| held.value == Value::Unseen) =>
            {
                let root = state.map_or(Value::Unseen, |held| held.root);
                Some(Some(Held { value: Value::Unseen, root, version: None }))
            }
            Ask::Add(_) | Ask::Append(_) | Ask::Update(_) => {
                let before = match state.map(|held| held.value) {
                    None => None,
                    Some(Value::Number(before)) => Some(before),
                    Some(Value::Unseen) => return None,
                };
                let value = Value::Number(self.ask.makes(before)?);
                let appends = matches!(self.ask, Ask::Append(_));
                let root = state.filter(|_| appends).map_or(value, |held| held.root);
                Some(Some(Held { value, root, version: None }))
            }
        }
    }

    /// The versions that this step reports, the version of the state before it first.
    pub fn versions(&self) -> [Option<u64>; 2] {
        let gives = match (self.ask, self.answer) {
            (_, Some(Answer::Stored(version)))
            | (Ask::Touch(_), Some(Answer::Found(Some((_, version))))) => Some(version),
            _ => None,
        };
        let sees = match (self.ask, self.answer) {
            (Ask::Touch(_), Some(Answer::Found(_))) => None,
            (_, Some(Answer::Found(found))) => found.map(|(_, version)| version),
            (_, Some(Answer::Refused(version))) => version,
            (Ask::DeleteIfVersion(_), Some(Answer::Deleted(false))) => None,
            (Ask::PutIfVersion { version, .. } | Ask::DeleteIfVersion(version), _) => Some(version),
            _ => None,
        };
        [sees, gives]
    }

    /// Whether it leaves every state as it is.
    pub fn is_read(&self) -> bool {
        match self.answer {
            Some(Answer::Found(Some(_)) | Answer::Value(_)) => self.ask == Ask::Get,
            Some(
                Answer::Found(None)
                | Answer::Present
                | Answer::Refused(_)
                | Answer::Held
                | Answer::Deleted(false),
            ) => true,
            Some(_) => false,
            None => self.ask == Ask::Get,
        }
    }

    /// The content that a PUT writes.
    fn written(&self, version: Option<u64>) -> Held {
        let value = self.value();
        Held { value, root: value, version }
    }

    fn value(&self) -> Value {
        match self.ask {
            Ask::Put(value) | Ask::PutIfAbsent(value) | Ask::PutIfVersion { value, .. }
                if !self.unseen =>
            {
                Value::Number(value)
            }
            _ => Value::Unseen,
        }
    }
}

impl Held {
    /// The same, once an answer reports this version for it.
    fn named(self, version: u64, is_new: impl Fn(u64) -> bool) -> Option<Self> {
        let fits = match self.version {
            Some(known) => known == version,
            None => is_new(version),
        };
        fits.then_some(Self { version: Some(version), ..self })
    }
}
