//! Balance: how the memory of a table that evicts follows the sizes of the values that are used.
//!
//! Memory belongs to a size class until it is emptied. A class that gets many new values would
//! evict its own, however good, beside memory of another class that nobody uses any more. So a
//! client that evicts looks now and then at other memory. If none of many values there was used as
//! lately as those that it evicts, nobody is interested in that memory: the client begins to empty
//! it, and goes on evicting until it has it. A class that has just come into use has hardly any
//! memory, and loses its values in the epoch in which they came. It takes memory of values that
//! were never used.
//!
//! Memory in use stays where it is, though its values may be worth less: with a slab the good
//! values in it are evicted too, and that costs more misses than the better use brings. When the
//! sizes change, all that was put before is older than all that is evicted since, so every look
//! finds memory.
//!
//! A look costs about as much as some evictions, so one that finds nothing is followed by a pause
//! twice as long as the last; one that finds memory is followed by two more, then by four, and so
//! on (`client/balance.rs`).

use loch_fabric::Fabric;

use super::empty::Run;
use super::evict::Victim;
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::layout::slab::Class;

/// What others have is given to a class if nobody has used it for longer, by so many epochs, than
/// what the class evicts.
const EPOCHS_OLDER: f32 = 0.1;
/// A class that evicts its values sooner, in the mean, has too little memory for them to be used.
const EPOCHS_SOON: f32 = 0.5;
/// Grace periods that a client waits for before it begins to empty more.
const WAITS_MAX: usize = 16;
/// How often values of a run are looked at again before it is emptied.
const LOOKS_AGAIN: usize = 4;

impl<F: Fabric> Client<F> {
    /// Goes on with memory that was begun to be emptied. Returns whether there is room now.
    pub(super) async fn has_grown(&self) -> Result<bool, EngineError> {
        let waits = !self.waits.borrow().is_empty();
        Ok(waits && Box::pin(self.poll_waits()).await?)
    }

    /// Evicts values of a class, as many as are wanted or a few, and looks now and then whether
    /// other memory should belong to it. Returns whether there is room now.
    pub(super) async fn evict_in_balance(
        &self,
        class: Class,
        wanted: usize,
    ) -> Result<bool, EngineError> {
        let evicted = self.evict(class, wanted).await?;
        if let Some(victims) = evicted.as_ref().filter(|_| self.evicts()) {
            Box::pin(self.balance(class, victims)).await?;
        }
        Ok(evicted.is_some())
    }

    async fn balance(&self, class: Class, evicted: &[Victim]) -> Result<(), EngineError> {
        let epoch = self.mark_epoch();
        let ages = evicted.iter().map(|victim| victim.mark.age(epoch));
        let any = || self.fabric.random();
        let age = self.alloc.borrow_mut().list(class).balance.evicted(&class, ages, any);
        let Some(age) = age else { return Ok(()) };
        if self.waits.borrow().len() >= WAITS_MAX {
            return Ok(());
        }
        let looks = self.alloc.borrow_mut().list(class).balance.looks();
        let mut begun = false;
        for _ in 0..looks {
            let dti = self.tables[self.any(self.tables.len())];
            begun = match self.cheapest_run(dti, class).await? {
                Some(run) => self.empty_if_forgotten(class, run, age).await?,
                None => false,
            };
            if !begun || self.waits.borrow().len() >= WAITS_MAX {
                break;
            }
        }
        self.alloc.borrow_mut().list(class).balance.has_looked(begun);
        Ok(())
    }

    /// Begins to empty a run for a class that evicts at this mean age, if nobody is interested in
    /// the run's values, as far as they are looked at. Returns whether it did.
    async fn empty_if_forgotten(
        &self,
        class: Class,
        mut run: Run,
        age: f32,
    ) -> Result<bool, EngineError> {
        for _ in 0..LOOKS_AGAIN {
            if !self.is_forgotten(&run, age) {
                return Ok(false);
            }
            self.look_into(&mut run).await?;
        }
        Ok(self.is_forgotten(&run, age) && self.empty_run(class, run).await?)
    }

    /// Whether nobody is interested in the values of a run, compared with those of a class that are
    /// evicted at this mean age. Of values that came in the same epoch the marks do not tell which
    /// is older. But if the class loses its values as soon as they come, the others were there for
    /// longer, and nobody has used them either.
    fn is_forgotten(&self, run: &Run, age: f32) -> bool {
        self.unused_for(run) > age + EPOCHS_OLDER || !run.is_used && age < EPOCHS_SOON
    }

    /// For how many epochs, at least, nobody has used the values of a run that were looked at. A
    /// mark says in which epoch its value was used: that may have been when the epoch ended.
    fn unused_for(&self, run: &Run) -> f32 {
        f32::from(run.unused) - 1.0 + self.part_of_epoch()
    }
}
