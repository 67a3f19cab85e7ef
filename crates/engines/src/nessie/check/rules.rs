//! What a protocol's words mean, for those who walk a whole table: the scrubber and the check.
//!
//! Both protocols share the layout, so both share the walk: which slots and entries there are, and
//! what to do with one that is out of place. What *is* out of place, and how it is put right, each
//! protocol says for itself.

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

/// What the index says of an entry.
pub(in crate::nessie) enum Standing {
    /// It is needed, for good.
    Shown,
    /// A slot holds it, but it is not decided for how long, or that is over.
    Undecided(usize, Ite),
    /// Nothing needs it, in two equal looks.
    Unnamed,
    /// The slots changed between the looks.
    Unclear,
}

/// What only the protocol knows.
pub(in crate::nessie) trait Rules {
    /// What the index says of an entry; `None` if it is another incarnation by now.
    async fn standing(&self, suspect: Suspect) -> Result<Option<Standing>, EngineError>;

    /// Settles one step of what somebody, who is dead, left undecided in a slot; whether it may
    /// take another.
    async fn settle_left(
        &self,
        suspect: Suspect,
        slot: usize,
        word: Ite,
        report: &mut Scrubbed,
    ) -> Result<bool, EngineError>;

    /// What is wrong with a slot that holds a word, if anything is.
    async fn wrong_with(&self, at: RemoteAddr, word: Ite) -> Result<Option<String>, EngineError>;

    /// Counts a slot that is not EMPTY as what it is.
    async fn count_slot(
        &self,
        at: RemoteAddr,
        word: Ite,
        report: &mut CheckReport,
    ) -> Result<(), EngineError>;
}
