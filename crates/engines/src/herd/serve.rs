//! A worker of herd, as its node runs it: one partition, in the memory of the node's process.

use loch_fabric::{Fabric, Messages, Zeroed};

use super::storage::{Count, Partition, Report as OfPartition};
use super::{Herd, PartitionShape, Settings, Worker};
use crate::engine::{Engine, Workers};
use crate::scan::{Page, Step};
use crate::serve::{self, Report, Work, WorkerError, WorkerHost, WorkerTransport};

impl Workers for Herd {
    type Shared = ();

    fn shared(_: &Self::Map) {}

    async fn serve<H: WorkerHost>(_: &(), host: &H) -> Result<(), WorkerError> {
        let Some(attached) = host.attached().await else { return Ok(()) };
        let (transport, site, params) = (host.transport(), host.site(), &attached.params);
        let map = Herd::map_of(&attached);
        let plan = map.partition.plan().expect("it was checked when it was read");
        let partition = Partition::new(serve::zeroed::<u64>(plan.words())?, &plan)
            .with_value_max(params.value_bytes_max);
        let mailbox = map.mailed.of_worker(site.id);
        let fabric = transport.mail(&attached.memory, site, mailbox)?;
        let settings = Settings { seed: map.seed, depth: host.tuning().depth };
        let sessions = transport.sessions(site);
        let worker =
            Worker::open(fabric, map.mailed.requests(), site.id, partition, settings, sessions)?;
        let (shape, seed, count) = (map.partition, map.seed, Count::default());
        let serving = Serving { worker, shape, seed, count };
        serve::by_mail(host, serving, |serving| serving.worker.fabric()).await.map(drop)
    }
}

struct Serving<F: Messages> {
    worker: Worker<F, Zeroed<u64>>,
    shape: PartitionShape,
    seed: u64,
    /// The count that is under way.
    count: Count,
}

impl<F: Messages> Serving<F> {
    fn of_table(&self, report: OfPartition) -> Report {
        Report {
            slots: self.shape.index_slots,
            index_bytes: self.shape.bytes.saturating_sub(report.data_bytes),
            data_bytes: report.data_bytes,
            entries: report.entries,
            entry_bytes: report.entry_bytes,
            broken: report.broken,
            counts: Vec::new(),
        }
    }
}

impl<F: Fabric + Messages> Work for Serving<F> {
    #[inline]
    async fn turn(&mut self) -> Result<bool, WorkerError> {
        serve::unless_out_of_reach(self.worker.turn().await.map_err(WorkerError::from))
    }

    /// The effects of executed requests are in the partition whole, whatever else is in the
    /// pipeline.
    fn report(&mut self, _: bool) -> Result<Option<Report>, WorkerError> {
        let report = self.worker.partition().check(self.seed);
        Ok(Some(self.of_table(report)))
    }

    fn count(&mut self, _: bool) -> Result<Option<Report>, WorkerError> {
        let counted = self.worker.partition().count(&mut self.count);
        Ok(counted.map(|report| self.of_table(report)))
    }

    fn scan(&mut self, step: &Step, _: bool) -> Result<Option<Page>, WorkerError> {
        let now_ms = self.worker.fabric().wall_ms();
        Ok(Some(self.worker.partition().scan(step, now_ms)))
    }
}
