//! A worker of kv-direct, as its node runs it: a processor with a partition of its own, in the
//! memory of the node's process.
//!
//! The worker WRITEs its replies. So when nodes have come back with other memory it begins anew
//! over other connections, with the entries that it had. Before that it finishes the operations
//! that it has begun: entries outlive their worker only while no operation is under way.

use loch_fabric::Fabric;

use super::bucket::SLOTS;
use super::free_slabs::FreeSlabs;
use super::storage::{Plan, Report as OfStorage, Storage};
use super::{KvDirect, Map, Settings, Worker};
use crate::engine::{Engine, Workers};
use crate::functions::UserFunctions;
use crate::lines::{HostMemory, LINE_BYTES};
use crate::requests::{Turns, WorkerId};
use crate::scan::{Cursor, Page, Step};
use crate::serve::{
    self, Housekeeper, Report, Tuning, Work, WorkerError, WorkerHost, WorkerTransport,
};

impl Workers for KvDirect {
    type Shared = FreeSlabs;

    fn shared(map: &Map) -> FreeSlabs {
        FreeSlabs::new(&map.plan, map.requests.area().service().workers)
    }

    fn housekeeper(shared: &FreeSlabs) -> Option<&dyn Housekeeper> {
        Some(shared)
    }

    async fn serve<H: WorkerHost>(shared: &FreeSlabs, host: &H) -> Result<(), WorkerError> {
        let (transport, site) = (host.transport(), host.site());
        // The state that goes from one session to the next.
        let mut kept = None;
        serve::in_sessions(host, async |attached, session| {
            let map = KvDirect::map_of(attached);
            let (entries, functions) = match kept.take() {
                Some(kept) => kept,
                None => {
                    let (lines, pools) =
                        (host.lines(map.plan.lines())?, shared.pools(site.id.worker));
                    (Storage::new(lines, &map.plan, pools.clone()), host.functions())
                }
            };
            let (endpoint, mut links) = transport.endpoint(&attached.memory, site, &session)?;
            let (settings, sessions) = (settings(&map, host.tuning()), transport.sessions(site));
            let (Map { requests, plan, seed, .. }, id) = (map, site.id);
            let worker = Worker::open(
                endpoint, &requests, id, entries, functions, seed, settings, sessions,
            )?;
            host.opened();
            let next = {
                let (turns, worker) = (worker.serve(), &worker);
                let count = Count::default();
                let mut serving = Serving { worker, turns, shared, id, plan, seed, count };
                let mut tend = |_: &_| transport.tend(worker.fabric(), &mut links);
                let next = serve::run(&mut serving, &mut tend, host).await?;
                worker.pause(true);
                // The worker begins no new operations, so the draining ends.
                serve::drain(&mut serving, tend, worker.fabric(), host, false).await?;
                next
            };
            kept = Some(worker.into_parts());
            // The worker leaves nothing in shared memory that somebody would have to clean up.
            Ok((next, true))
        })
        .await
    }
}

fn settings(map: &Map, tuning: Tuning) -> Settings {
    Settings {
        in_flight: tuning.in_flight,
        waiting: tuning.waiting,
        out_of_order: map.partition.out_of_order,
        versions: map.partition.versions,
    }
}

struct Serving<'a, F: Fabric, M, U, N> {
    worker: &'a Worker<F, M, U>,
    turns: N,
    shared: &'a FreeSlabs,
    id: WorkerId,
    plan: Plan,
    seed: u64,
    count: Count,
}

/// The count that is under way: where it goes on, and what it has found.
#[derive(Default)]
struct Count(Cursor, OfStorage);

impl<F: Fabric, M: HostMemory, U: UserFunctions, N> Serving<'_, F, M, U, N> {
    fn of_table(&self, report: OfStorage) -> Report {
        let buckets = u64::from(self.plan.buckets());
        let index_bytes = buckets * LINE_BYTES as u64;
        Report {
            slots: buckets * SLOTS as u64,
            index_bytes,
            data_bytes: report.bytes.saturating_sub(index_bytes),
            entries: report.entries,
            entry_bytes: report.item_bytes,
            broken: report.broken,
            counts: vec![("forwarded", self.worker.counts().forwarded)],
        }
    }
}

impl<F: Fabric, M: HostMemory, U: UserFunctions, N: Turns> Work for Serving<'_, F, M, U, N> {
    #[inline]
    async fn turn(&mut self) -> Result<bool, WorkerError> {
        serve::unless_out_of_reach(self.turns.turn().map_err(WorkerError::from))
    }

    /// A report is made while no operation is under way: until then the worker begins no new one.
    fn report(&mut self, was_busy: bool) -> Result<Option<Report>, WorkerError> {
        self.worker.pause(was_busy);
        if was_busy {
            return Ok(None);
        }
        let _held = self.shared.hold_off(self.id.worker);
        Ok(Some(self.of_table(self.worker.storage().check(self.seed))))
    }

    /// The steps are those of a scan.
    fn count(&mut self, was_busy: bool) -> Result<Option<Report>, WorkerError> {
        let step = Step { from: std::mem::take(&mut self.count.0), prefix: Vec::new() };
        let Some(page) = self.scan(&step, was_busy)? else {
            self.count.0 = step.from;
            return Ok(None);
        };
        let Count(at, counted) = &mut self.count;
        counted.entries += page.keys.len() as u64;
        let bytes = page.keys.iter().map(|found| found.key.len() as u64 + found.value_bytes);
        counted.item_bytes += bytes.sum::<u64>();
        if let Some(next) = page.next {
            *at = next;
            return Ok(None);
        }
        let bytes = u64::from(self.worker.storage().memory().lines()) * LINE_BYTES as u64;
        let counted = OfStorage { bytes, ..std::mem::take(counted) };
        Ok(Some(self.of_table(counted)))
    }

    /// What an operation has at hand is not in the lines yet: as for a report.
    fn scan(&mut self, step: &Step, was_busy: bool) -> Result<Option<Page>, WorkerError> {
        self.worker.pause(was_busy);
        if was_busy {
            return Ok(None);
        }
        Ok(Some(self.worker.storage().scan(step, self.worker.fabric().wall_ms())))
    }
}
