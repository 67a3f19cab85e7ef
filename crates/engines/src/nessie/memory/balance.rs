//! Balance: how the memory of a table that evicts follows the sizes of the values that are used.
//!
//! Memory belongs to a size class until it is emptied. A class that gets many new values would
//! evict its own, however good, beside memory of another class that nobody uses any more. So a
//! client that evicts looks now and then at other memory. If the values there are worth much less,
//! for the bytes that they take, than those that it evicts, it begins to empty that memory, and
//! goes on evicting until it has it: a few long values may stand where many short ones would bring
//! more hits. Much less, because with a slab the good values in it are evicted too.
//!
//! When the sizes change, short values that nobody wants any more have good marks at first, and a
//! long one must be worth as much as all those in its place. So what values of a class seem to be
//! worth by their marks is multiplied by the share of it that shows in the uses of the whole class
//! and of the others (`client/uses.rs`).
//!
//! A client that comes for one operation has learned nothing of all that. It also takes memory in
//! which it finds no value that was used for longer than those that it evicts. And if a class has
//! just come into use, it has hardly any memory, and loses its values in the epoch in which they
//! came. Then such a client takes memory in which it finds no value that was ever used.
//!
//! A look first takes memory that is free: the slabs that were emptied may have been longer than
//! the one that was wanted.
//!
//! A look costs about as much as some evictions, so one that finds nothing is followed by a pause
//! twice as long as the last; one that finds memory is followed by two more, then by four, and so
//! on (`client/balance.rs`).

use loch_fabric::Fabric;

use super::empty::Run;
use super::lease::Kind;
use super::victims::Victim;
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::layout::slab::Class;

/// Memory is given to a class if what it holds is worth less, for its bytes, than this part of the
/// values that the class evicts.
const WORTH_PART: f32 = 0.25;
/// Grace periods that a client waits for before it begins to empty more.
const WAITS_MAX: usize = 16;
/// How often values of a run are looked at again before it is emptied.
const LOOKS_AGAIN: usize = 4;

impl<F: Fabric> Client<F> {
    /// Goes on with memory that was begun to be emptied. Returns whether there is room now.
    pub(super) async fn has_grown(&self) -> Result<bool, EngineError> {
        let waits = !self.waits.borrow().is_empty() || self.has_left();
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
        let worths = evicted.iter().map(|victim| self.worth_of_victim(victim));
        let any = || self.fabric.random();
        let ages = evicted.iter().map(|victim| victim.mark.age(self.mark_epoch()));
        let oldest = if self.worth.has_learned() { None } else { ages.max() };
        let evicted = self.alloc.borrow_mut().list(class).balance.evicted(&class, worths, any);
        let Some(evicted) = evicted else { return Ok(()) };
        if self.waits.borrow().len() >= WAITS_MAX {
            return Ok(());
        }
        let looks = self.alloc.borrow_mut().list(class).balance.looks();
        let mut begun = false;
        for _ in 0..looks {
            begun = self.lease_any(class, Kind::Free, 1).await?;
            if begun {
                continue;
            }
            let dti = self.tables[self.any(self.tables.len())];
            begun = match self.cheapest_run(dti, class).await? {
                Some(run) => {
                    let is_to_go = |run: &Run| {
                        is_worth_less(run, &class, evicted)
                            || oldest.is_some_and(|age| self.is_forgotten(run, age))
                    };
                    self.empty_for(class, run, is_to_go).await?
                }
                None => false,
            };
            if !begun || self.waits.borrow().len() >= WAITS_MAX {
                break;
            }
        }
        self.alloc.borrow_mut().list(class).balance.has_looked(&class, begun);
        Ok(())
    }

    /// Begins to empty a run for a class if the run's values, as far as they are looked at, are to
    /// go. Returns whether it did.
    async fn empty_for(
        &self,
        class: Class,
        mut run: Run,
        is_to_go: impl Fn(&Run) -> bool,
    ) -> Result<bool, EngineError> {
        for _ in 0..LOOKS_AGAIN {
            if !is_to_go(&run) {
                return Ok(false);
            }
            self.look_into(&mut run).await?;
        }
        Ok(is_to_go(&run) && self.empty_run(class, run).await?)
    }

    /// Whether nobody is interested in the values of a run, compared with those that are evicted at
    /// this age. A mark says in which epoch its value was used: that may have been when the epoch
    /// ended. Of values that came in the same epoch the marks do not tell which is older.
    fn is_forgotten(&self, run: &Run, age: u8) -> bool {
        let unused = f32::from(run.unused) - 1.0 + self.part_of_epoch();
        unused > f32::from(age) || !run.is_used && age == 0
    }
}

/// Whether a run's values are worth much less, for its bytes, than the values that a class evicts.
fn is_worth_less(run: &Run, class: &Class, evicted: f32) -> bool {
    let evicted = evicted / class.entry_bytes as f32;
    (run.worth as f32) < WORTH_PART * evicted * run.bytes() as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nessie::layout::slab::{Classes, Slab};

    #[test]
    fn values_are_compared_by_their_worth_for_a_byte() {
        let classes = Classes::new(64 << 20, 16);
        let (short, long) = (classes.of(1000), classes.of(64_000));
        let slab = Slab { dti: 0, chunk: 0 };
        let is_less = |class: Class, worth: u32, than: &Class, evicted: f32| {
            let mut run = Run::new(vec![(slab, class, 0)]);
            run.worth = u64::from(class.entries * worth);
            is_worth_less(&run, than, evicted)
        };
        assert!(is_less(long, 100, &short, 100.0));
        assert!(!is_less(short, 100, &long, 100.0));
        assert!(!is_less(long, 100, &short, 3.0), "with the slab go its good values too");
        assert!(is_less(short, 1, &long, 500.0));
    }
}
