//! What a protocol's words mean, for those who walk a whole table: the scrubber and the check.
//!
//! Both protocols share the layout, so both share the walk: which slots and entries there are, and
//! what to do with one that is out of place. What *is* out of place, and how it is put right, each
//! protocol says for itself.

use loch_fabric::{Fabric, RemoteAddr};

use super::check::CheckReport;
use super::client::Client;
use super::hash::Candidates;
use super::ite::{Ite, State};
use super::scrub::{Scrubbed, Suspect};
use crate::error::EngineError;

/// What the index says of an entry.
pub(super) enum Standing {
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
pub(super) trait Rules {
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

impl<F: Fabric> Rules for Client<F> {
    async fn standing(&self, suspect: Suspect) -> Result<Option<Standing>, EngineError> {
        let Some(key) = self.key_of(suspect).await? else {
            return Ok(None);
        };
        let candidates = Candidates::of(&self.map, &key);
        let words = self.collect(&candidates).await?;
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if self.names(*word, &suspect) {
                let shown = matches!(self.map.codec.state(*word), State::Visible { .. });
                return Ok(Some(if shown {
                    Standing::Shown
                } else {
                    Standing::Undecided(slot, *word)
                }));
            }
        }
        let again = self.collect(&candidates).await?;
        Ok(Some(if again == words { Standing::Unnamed } else { Standing::Unclear }))
    }

    async fn settle_left(
        &self,
        suspect: Suspect,
        slot: usize,
        word: Ite,
        report: &mut Scrubbed,
    ) -> Result<bool, EngineError> {
        let Some(key) = self.key_of(suspect).await? else {
            return Ok(false);
        };
        let candidates = Candidates::of(&self.map, &key);
        if self.map.codec.is_visible(word) {
            self.help(&candidates, &key, slot, word).await?;
            report.moves += 1;
            return Ok(false);
        }
        // A T from before the grace period: its owner is dead.
        report.tentative += self.clear(&candidates, slot, word).await? as u64;
        Ok(true)
    }

    async fn wrong_with(&self, at: RemoteAddr, word: Ite) -> Result<Option<String>, EngineError> {
        self.wrong_with_slot(at, word).await
    }

    async fn count_slot(
        &self,
        _: RemoteAddr,
        word: Ite,
        report: &mut CheckReport,
    ) -> Result<(), EngineError> {
        match self.map.codec.state(word) {
            State::Tentative => report.tentative += 1,
            State::Visible { .. } => report.values += 1,
            State::Frozen { .. } | State::Copy { .. } => report.moving += 1,
            State::Empty => (),
        }
        Ok(())
    }
}
