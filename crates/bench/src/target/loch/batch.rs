//! The operations that a client keeps under way, handed to the table as batches.

use std::cell::RefCell;
use std::pin::Pin;

use loch::lanes::{self, block_on};
use loch::{Error, Table};

use crate::measure::{Kind, Op, Outcome, Run};
use crate::workload::Workload;

/// The operations of one batch, and the buffers that batches reuse.
struct Batch {
    gets: Vec<Op>,
    /// Which of the GETs are answered.
    answered: Vec<bool>,
    keys: Vec<Vec<u8>>,
    puts: Vec<Op>,
    pairs: Vec<Pair>,
    /// The PUTs of values that GETs did not find.
    fills: Vec<Op>,
}

impl Batch {
    /// With room for the keys and values of `size` operations.
    fn new(run: &Run<'_>, size: usize) -> Self {
        let workload = run.workload();
        let (key, value) = (vec![0; workload.key_size()], vec![0; workload.value_size()]);
        Batch {
            gets: Vec::with_capacity(size),
            answered: Vec::with_capacity(size),
            keys: vec![key.clone(); size],
            puts: Vec::with_capacity(size),
            pairs: vec![(key, value); size],
            fills: Vec::new(),
        }
    }

    /// Fills the batch with the next operations of the run. Returns whether there are any.
    fn fill(&mut self, run: &Run<'_>) -> bool {
        let workload = run.workload();
        self.gets.clear();
        self.puts.clear();
        while self.gets.len() + self.puts.len() < self.keys.len() {
            let Some(op) = run.next() else { break };
            match op.kind {
                Kind::Get => {
                    workload.write_key(op.record, &mut self.keys[self.gets.len()]);
                    self.gets.push(op);
                }
                Kind::Put => {
                    write_pair(workload, &op, &mut self.pairs[self.puts.len()]);
                    self.puts.push(op);
                }
            }
        }
        !self.gets.is_empty() || !self.puts.is_empty()
    }

    /// Does all operations, GETs and PUTs at the same time, and hands each result to `done`.
    async fn operate(
        &mut self,
        table: &Table,
        run: &Run<'_>,
        mut done: impl FnMut(Result<(), Error>),
    ) {
        let Batch { gets, answered, keys, puts, pairs, fills } = self;
        let mut halves: Vec<Half<'_>> = Vec::with_capacity(2);
        if !gets.is_empty() {
            halves.push(Box::pin(get(table, run, (gets, answered, keys), fills)));
        }
        if !puts.is_empty() {
            halves.push(Box::pin(put(table, run, (puts, pairs))));
        }
        lanes::run(2, halves, &mut done).await;
        if !fills.is_empty() {
            fills.iter().zip(&mut *pairs).for_each(|(op, pair)| {
                write_pair(run.workload(), op, pair);
            });
            done(put(table, run, (fills, pairs)).await);
            fills.clear();
        }
    }
}

/// The key and the value of a PUT.
type Pair = (Vec<u8>, Vec<u8>);

/// The GETs of a batch, or its PUTs.
type Half<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// GETs, and finishes each GET: those that an error left without an answer have failed.
async fn get(
    table: &Table,
    run: &Run<'_>,
    (gets, answered, keys): (&[Op], &mut Vec<bool>, &[Vec<u8>]),
    fills: &mut Vec<Op>,
) -> Result<(), Error> {
    answered.clear();
    answered.resize(gets.len(), false);
    let found = |get: usize, value: Option<loch::ValueRef<'_>>| {
        let outcome = value.as_deref().map_or(Outcome::Missing, Outcome::Found);
        run.finish(&gets[get], outcome);
        answered[get] = true;
        fills.extend(run.fill(&gets[get], outcome));
    };
    let done = table.asynch().get_each(&keys[..gets.len()], found).await;
    let left = gets.iter().zip(&*answered).filter(|(_, answered)| !**answered);
    left.for_each(|(get, _)| run.finish(get, Outcome::Failed));
    done
}

/// PUTs, and finishes each PUT.
async fn put(table: &Table, run: &Run<'_>, (puts, pairs): (&[Op], &[Pair])) -> Result<(), Error> {
    let done = table.asynch().put_many(&pairs[..puts.len()]).await.map(drop);
    let outcome = if done.is_ok() { Outcome::Stored } else { Outcome::Failed };
    puts.iter().for_each(|put| run.finish(put, outcome));
    done
}

/// Writes key and value of a PUT.
#[inline]
fn write_pair(workload: &Workload, put: &Op, (key, value): &mut Pair) {
    workload.write_key(put.record, key);
    value.resize(put.size as usize, 0);
    workload.write_value(put.record, put.version, value);
}

/// The batches that a client has under way where others work for it: it then makes one up while
/// they work on the other. A client that works alone has all operations in one.
const UNDER_WAY: usize = 2;

/// Does the operations of `run`, `lanes` at a time. A PUT that is refused makes all PUTs of its
/// batch count as refused. Returns why the last operation that was refused was.
///
/// # Errors
/// An error after which nothing works, by `goes_on_after`.
pub fn operate(
    table: &Table,
    run: &Run<'_>,
    lanes: usize,
    goes_on_after: impl Fn(&Error) -> bool,
) -> Result<Option<Error>, Error> {
    let retries = table.counters().retries;
    let (refusal, end) = (RefCell::new(None), RefCell::new(Ok(())));
    let done = &|done| match done {
        Err(error) if goes_on_after(&error) => _ = refusal.replace(Some(error)),
        Err(error) => *end.borrow_mut() = Err(error),
        Ok(()) => (),
    };
    let end_seen = &end;
    let under_way = if table.mapped().is_some() { 1 } else { UNDER_WAY.min(lanes) };
    let batches = (0..under_way).map(|number| async move {
        let mut batch = Batch::new(run, (lanes + number) / under_way);
        while end_seen.borrow().is_ok() && batch.fill(run) {
            batch.operate(table, run, done).await;
        }
    });
    block_on(lanes::run(under_way, batches, drop));
    end.into_inner()?;
    run.retried(table.counters().retries - retries);
    Ok(refusal.into_inner())
}

#[cfg(test)]
mod tests {
    use loch::{ByteSize, Cluster, EmbeddedConfig, TableConfig};

    use super::*;
    use crate::measure::Budget;
    use crate::measure::tests::with_run;

    #[test]
    fn every_operation_is_finished_once_also_beside_others_that_are_refused() {
        for engine in ["nessie", "nessie-server"] {
            let value_max = Some(ByteSize::new(64));
            let engine = engine.parse().unwrap();
            let table = TableConfig { engine, value_max, ..TableConfig::default() };
            let config = EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() };
            let table = Cluster::embedded(config).unwrap().table("default").unwrap();
            for (bytes, is_refused) in [(64, false), (65, true)] {
                operates(&table, bytes, is_refused);
            }
        }
    }

    fn operates(table: &Table, bytes: usize, is_refused: bool) {
        let budget = Budget { ops: 1000, ns: u64::MAX };
        let line = format!("--records 100 --ops 1000 --reads 0.5 --value-size {bytes}");
        let (tally, _) = with_run(&line, budget, 1, |run| {
            let refusal = operate(table, run, 17, |_| true).unwrap();
            assert_eq!(refusal.is_some(), is_refused, "{refusal:?}");
        });
        assert_eq!(tally.gets + tally.puts + tally.errors, 1000, "{tally:?}");
        assert!(tally.gets > 400 && (tally.errors > 400) == is_refused, "{tally:?}");
        assert_eq!(tally.puts == 0, is_refused, "{tally:?}");
    }
}
