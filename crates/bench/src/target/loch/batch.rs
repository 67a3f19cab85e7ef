//! The operations that a client keeps under way, handed to the table as batches.

use loch::{Error, Table};

use crate::measure::{Kind, Op, Outcome, Run};

/// The operations of one batch, and the buffers that batches reuse.
struct Batch {
    gets: Vec<Op>,
    keys: Vec<Vec<u8>>,
    puts: Vec<Op>,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Batch {
    /// With room for the keys and values of `size` operations.
    fn new(run: &Run<'_>, size: usize) -> Self {
        let workload = run.workload();
        let (key, value) = (vec![0; workload.key_size()], vec![0; workload.value_size()]);
        Batch {
            gets: Vec::with_capacity(size),
            keys: vec![key.clone(); size],
            puts: Vec::with_capacity(size),
            pairs: vec![(key, value); size],
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
                    let (key, value) = &mut self.pairs[self.puts.len()];
                    workload.write_key(op.record, key);
                    workload.write_value(op.record, op.version, value);
                    self.puts.push(op);
                }
            }
        }
        !self.gets.is_empty() || !self.puts.is_empty()
    }
}

/// Does the operations of `run`, `size` at a time: first those that are GETs, and then the PUTs. A
/// PUT that is refused makes all PUTs of its batch count as refused. Returns why the last one was.
///
/// # Errors
/// An error after which nothing works, by `goes_on_after`.
pub fn operate(
    table: &Table,
    run: &Run<'_>,
    size: usize,
    goes_on_after: impl Fn(&Error) -> bool,
) -> Result<Option<Error>, Error> {
    let retries = table.counters().retries;
    let mut refusal = None;
    let mut batch = Batch::new(run, size);
    while batch.fill(run) {
        let Batch { gets, keys, puts, pairs } = &batch;
        let mut done = Ok(());
        if !gets.is_empty() {
            let mut answered = 0;
            done = table.get_each(&keys[..gets.len()], |get, value| {
                let outcome = value.as_deref().map_or(Outcome::Missing, Outcome::Found);
                run.finish(&gets[get], outcome);
                answered += 1;
            });
            gets.iter().skip(answered).for_each(|get| run.finish(get, Outcome::Failed));
        }
        if !puts.is_empty() && done.is_ok() {
            done = table.put_many(&pairs[..puts.len()]).map(drop);
            let outcome = if done.is_ok() { Outcome::Stored } else { Outcome::Failed };
            puts.iter().for_each(|put| run.finish(put, outcome));
        }
        match done {
            Ok(()) => (),
            Err(error) if goes_on_after(&error) => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    run.retried(table.counters().retries - retries);
    Ok(refusal)
}
