//! The meaning of a protocol's words, for the two walks over a whole table: the scrubber and the
//! check.
//!
//! Both protocols share the layout, so they share the walk: it knows which slots and entries there
//! are, and what to do with an entry that is out of place. Each protocol says for itself which
//! entries *are* out of place, and how they are put right.

use loch_fabric::RemoteAddr;

use super::report::{CheckReport, Scrubbed};
use crate::error::EngineError;
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::slab::{Class, Entry};

/// An entry that seems leaked.
#[derive(Clone, Copy, Debug)]
pub(in crate::nessie) struct Suspect {
    pub class: Class,
    pub entry: Entry,
    pub generation: u64,
}

/// What the index says about an entry.
pub(in crate::nessie) enum Standing {
    /// The entry is needed for good.
    Shown,
    /// A slot holds the entry. How long the entry is needed is undecided, or it is needed no more.
    Undecided(usize, Ite),
    /// No slot needs the entry, in two equal looks.
    Unnamed,
    /// The slots changed between the looks.
    Unclear,
}

/// The part of a walk that depends on the protocol.
pub(in crate::nessie) trait Rules {
    /// What the index says about an entry; `None` if the entry is another incarnation by now.
    async fn standing(&self, suspect: Suspect) -> Result<Option<Standing>, EngineError>;

    /// Takes one step to settle what a dead client left undecided in a slot. Returns whether there
    /// may be another step.
    async fn settle_left(
        &self,
        suspect: Suspect,
        slot: usize,
        word: Ite,
        report: &mut Scrubbed,
    ) -> Result<bool, EngineError>;

    /// Removes the value of a key if it has expired.
    async fn expire_key(&self, key: &[u8]) -> Result<(), EngineError>;

    /// The description of what is wrong with a slot that holds a word, if anything is.
    async fn wrong_with(&self, at: RemoteAddr, word: Ite) -> Result<Option<String>, EngineError>;

    /// Counts a slot that is not EMPTY in the report, by its state.
    async fn count_slot(
        &self,
        at: RemoteAddr,
        word: Ite,
        report: &mut CheckReport,
    ) -> Result<(), EngineError>;
}
