//! One operation after the other, in each lane of a baseline's client.

use std::cell::RefCell;

use loch::lanes;
use loch_bench::measure::{Kind, Outcome, Run};
use loch_bench::target::loch::lane::{Lane, refuse};
use loch_engines::operation::PutOptions;
use loch_engines::{EngineError, Kv};

/// Does the operations of `run` in several lanes. Returns why the last refused one was refused.
pub async fn operate<S: Kv>(
    store: &S,
    run: &Run<'_>,
    lanes: usize,
) -> Result<Option<EngineError>, EngineError> {
    let retries = store.retries();
    let refusal = RefCell::new(None);
    let mut fatal = None;
    let work = (0..lanes).map(|_| lane(store, run, &refusal));
    lanes::run(lanes, work, |ended| {
        fatal = fatal.take().or(ended.err());
    })
    .await;
    run.retried(store.retries() - retries);
    fatal.map_or(Ok(refusal.into_inner()), Err)
}

/// One lane of a run: does one operation after the other until there are no more.
async fn lane<S: Kv>(
    store: &S,
    run: &Run<'_>,
    refusal: &RefCell<Option<EngineError>>,
) -> Result<(), EngineError> {
    let workload = run.workload();
    let mut lane = Lane::new(workload);
    while let Some(op) = run.next_due().await {
        let result = match op.kind {
            Kind::Get => {
                workload.write_key(op.record, &mut lane.key);
                let buf = std::mem::take(&mut lane.buf);
                store.get(&lane.key, buf).await.map(|found| match found {
                    Some(found) => {
                        run.finish(&op, Outcome::Found(&found));
                        lane.buf = found.into_buf();
                    }
                    None => run.finish(&op, Outcome::Missing),
                })
            }
            Kind::Put => {
                let (key, value) = lane.pair(workload, &op);
                let stored = store.put(key, value, PutOptions::default()).await;
                stored.map(|_| run.finish(&op, Outcome::Stored))
            }
        };
        if let Err(error) = result {
            refuse(run, &op, error, refusal)?;
        }
    }
    Ok(())
}
