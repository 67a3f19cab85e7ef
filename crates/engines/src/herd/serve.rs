//! A worker of herd, as its node runs it: one partition, in the memory of the node's process.

use loch_fabric::Zeroed;

use super::storage::Partition;
use super::{Herd, PartitionShape, Settings, Worker};
use crate::engine::{Engine, Workers};
use crate::serve::{self, Report, Work, WorkerError, WorkerHost, WorkerTransport};

impl Workers for Herd {
    type Shared = ();

    fn shared(_: &Self::Map) {}

    async fn serve<H: WorkerHost>(_: &(), host: &H) -> Result<(), WorkerError> {
        let Some(attached) = host.attached().await else { return Ok(()) };
        let (transport, site, params) = (host.transport(), host.site(), &attached.params);
        let map = Herd::map(params, &attached.places).expect("it was checked when it was read");
        let plan = map.partition.plan().expect("it was checked when it was read");
        let partition = Partition::new(serve::zeroed::<u64>(plan.words())?, &plan)
            .with_value_max(params.value_bytes_max);
        let mailbox = map.mailboxes.of_worker(&map.requests, site.id);
        let fabric = transport.mail(&attached.memory, site, mailbox)?;
        let settings = Settings { seed: map.seed, depth: host.tuning().depth };
        let sessions = transport.sessions(site);
        let worker = Worker::open(fabric, &map.requests, site.id, partition, settings, sessions)?;
        host.opened();
        let mut serving = Serving { transport, worker, shape: map.partition, seed: map.seed };
        while let Some(anew) = serve::run(&mut serving, host).await? {
            transport.attach(serving.worker.fabric(), &anew.memory)?;
        }
        Ok(())
    }
}

struct Serving<'a, T: WorkerTransport> {
    transport: &'a T,
    worker: Worker<T::Mail, Zeroed<u64>>,
    shape: PartitionShape,
    seed: u64,
}

impl<T: WorkerTransport> Work for Serving<'_, T> {
    #[inline]
    fn tend(&mut self) {
        self.transport.tend_mail(self.worker.fabric());
    }

    #[inline]
    async fn turn(&mut self) -> Result<bool, WorkerError> {
        serve::unless_out_of_reach(self.worker.turn().await.map_err(WorkerError::from))
    }

    /// The effects of executed requests are in the partition whole, whatever else is in the
    /// pipeline.
    fn report(&mut self, _: bool) -> Result<Option<Report>, WorkerError> {
        let report = self.worker.partition().check(self.seed);
        Ok(Some(Report {
            slots: self.shape.index_slots,
            index_bytes: self.shape.bytes.saturating_sub(report.data_bytes),
            data_bytes: report.data_bytes,
            entries: report.entries,
            entry_bytes: report.entry_bytes,
            broken: report.broken,
            counts: Vec::new(),
        }))
    }
}
