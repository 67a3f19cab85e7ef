//! Differences that the document names.

use std::fmt;

use super::sequence::{Request, Step, shown};

/// A kind of differences.
pub struct Allowed {
    /// What `docs/gateway.md` says of it.
    pub sentence: &'static str,
    /// Whether the servers have other data behind it, so that nothing more can be compared.
    pub ends: bool,
    pub is: fn(&Difference<'_>) -> bool,
}

/// Answers that differ, and the requests up to there.
pub struct Difference<'a> {
    pub steps: &'a [Step],
    pub step: usize,
    pub request: usize,
    /// The request that is answered, or those of the step if their answers cannot be told apart.
    pub requests: &'a [Request],
    pub ours: &'a [u8],
    pub theirs: &'a [u8],
}

impl Difference<'_> {
    /// The request.
    pub fn asked(&self) -> &Request {
        &self.requests[0]
    }

    pub fn ours_begins(&self, text: &str) -> bool {
        self.ours.starts_with(text.as_bytes())
    }

    /// All requests up to this one, with their clients.
    pub fn before(&self) -> impl DoubleEndedIterator<Item = (usize, &Request)> {
        let whole = self.steps[..self.step].iter();
        let whole =
            whole.flat_map(|step| step.requests.iter().map(|request| (step.client, request)));
        let here = &self.steps[self.step];
        let count = self.request + self.requests.len();
        whole.chain(here.requests[..count].iter().map(|request| (here.client, request)))
    }
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for request in self.requests {
            writeln!(f, "{}", shown(&request.bytes))?;
        }
        writeln!(f, "  ours   {}", shown(self.ours))?;
        write!(f, "  theirs {}", shown(self.theirs))
    }
}
