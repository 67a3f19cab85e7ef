//! What clients speak, and how far a session of it has come.

/// What clients of a listener speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp,
    Memcached,
}

/// What a session has done with some input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The bytes of the requests that were executed.
    pub consumed: usize,
    /// The bytes that the next request has at least; 0 if it may be there whole.
    pub needed: usize,
    /// Whether the connection ends.
    pub ends: bool,
}
