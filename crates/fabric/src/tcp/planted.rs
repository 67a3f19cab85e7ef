//! Faults that can be planted in the agent of a test, to show that the tests of what an agent
//! promises find them.

/// A promise that an agent breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Keys are not checked before a verb is executed.
    KeysUnchecked,
    /// Dropping an [`Accepted`](super::Accepted) shuts no gate.
    FenceForgotten,
    /// A WRITE is answered, and then applied.
    AnsweredBeforeApplied,
}

/// The fault that is planted in one agent.
#[derive(Debug, Default)]
pub(super) struct Planted {
    #[cfg(test)]
    fault: std::sync::OnceLock<Fault>,
}

impl Planted {
    #[cfg(test)]
    pub fn plant(&self, fault: Fault) {
        self.fault.set(fault).expect("one fault at a time");
    }

    /// Whether this fault is planted: never, but in tests.
    #[inline(always)]
    pub fn is(&self, fault: Fault) -> bool {
        #[cfg(test)]
        let is_planted = self.fault.get() == Some(&fault);
        #[cfg(not(test))]
        let is_planted = {
            let _ = fault;
            false
        };
        is_planted
    }
}
