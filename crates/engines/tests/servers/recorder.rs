//! What was asked and answered, and whether it is linearizable.

use std::cell::RefCell;

use loch_fabric::sim::World;
use loch_history::{Answer, Ask, History, Operation, Outcome, Verdict, check, timeline};

/// Configurations that the search may look at for one history.
const SEARCH_BUDGET: u64 = 4_000_000;

/// Operations so far. One that has not returned counts as unknown.
pub struct Recorder {
    world: World,
    operations: RefCell<Vec<Operation>>,
    tags: RefCell<u64>,
}

impl Recorder {
    pub fn new(world: World) -> Self {
        Self { world, operations: RefCell::default(), tags: RefCell::new(0) }
    }

    /// A value that was never written before.
    pub fn tag(&self) -> u64 {
        let mut tags = self.tags.borrow_mut();
        *tags += 1;
        // Far from what adding makes.
        *tags << 32
    }

    /// An operation is called; gives it a number.
    pub fn call(&self, client: u32, key: u64, ask: Ask) -> usize {
        let mut operations = self.operations.borrow_mut();
        let (called, outcome) = (self.world.now_ns(), Outcome::Unknown);
        operations.push(Operation { client, key, ask, called, returned: u64::MAX, outcome });
        operations.len() - 1
    }

    /// It returned.
    pub fn answer(&self, number: usize, answer: Answer) {
        let operation = &mut self.operations.borrow_mut()[number];
        operation.returned = self.world.now_ns();
        operation.outcome = Outcome::Known(answer);
    }

    /// How many operations there were, and how many of them are unknown.
    pub fn judge(&self) -> Result<(usize, usize), String> {
        let operations = self.operations.take();
        let is_known = |o: &&Operation| matches!(o.outcome, Outcome::Known(_));
        let known = operations.iter().filter(is_known).count();
        let counts = (operations.len(), operations.len() - known);
        match check(&History::from(operations), SEARCH_BUDGET) {
            Verdict::Linearizable => Ok(counts),
            Verdict::Exhausted { key } => Err(format!("key {key}: the search ran out of budget")),
            Verdict::Violation(violation) => {
                Err(format!("not linearizable\n{}", timeline(&violation.history)))
            }
        }
    }
}
