//! The worker of a pilaf table on one node, as the node runs it. Only this worker writes the table
//! there.

use loch_fabric::{Fabric, Messages};

use super::check::StoreReport;
use super::layout::LINE_BYTES;
use super::{Pilaf, Worker};
use crate::engine::{Engine, Workers};
use crate::log::Storage;
use crate::scan::{Page, Step};
use crate::serve::{self, Report, Work, WorkerError, WorkerHost, WorkerTransport};

impl Workers for Pilaf {
    type Shared = ();

    fn shared(_: &Self::Map) {}

    async fn serve<H: WorkerHost>(_: &(), host: &H) -> Result<(), WorkerError> {
        let Some(attached) = host.attached().await else { return Ok(()) };
        let (transport, site) = (host.transport(), host.site());
        let (map, node) = (Pilaf::map_of(&attached), site.id.node);
        let logging = host.log()?;
        let mailbox = map.mailed.of_worker(site.id);
        let fabric = transport.mail(&attached.memory, site, mailbox)?;
        let sessions = transport.sessions(site);
        let worker =
            Worker::open(fabric, map.mailed.requests(), node, map.shape(node), logging, sessions)?;
        let recovered = worker.recovered();
        tracing::info!(
            table = site.name,
            from_snapshot = recovered.from_snapshot,
            replayed = recovered.replayed,
            torn_bytes = recovered.torn_bytes,
            "the table is open"
        );
        serve::by_mail(host, worker, Worker::fabric).await?.close()
    }
}

impl<F: Fabric + Messages, S: Storage> Work for Worker<F, S> {
    #[inline]
    async fn turn(&mut self) -> Result<bool, WorkerError> {
        self.turn()
    }

    /// A change that waits for its sync is not in the table yet, and the check knows what it has
    /// taken. A worker whose log syncs every change may never be idle, so it reports at any time.
    fn report(&mut self, _: bool) -> Result<Option<Report>, WorkerError> {
        let report = self.store().check(self.fabric())?;
        Ok(Some(of_table(self, report)))
    }

    fn count(&mut self, _: bool) -> Result<Option<Report>, WorkerError> {
        Ok(Some(of_table(self, self.store().counted())))
    }

    /// A change that waits for its sync is not shown to anybody yet.
    fn scan(&mut self, step: &Step, _: bool) -> Result<Option<Page>, WorkerError> {
        Ok(Some(self.scan(step)?))
    }
}

fn of_table<F: Fabric + Messages, S: Storage>(
    worker: &Worker<F, S>,
    report: StoreReport,
) -> Report {
    let store = worker.store();
    let index_bytes = store.slots() * LINE_BYTES;
    Report {
        slots: store.slots(),
        index_bytes,
        data_bytes: store.shape().arena_bytes.saturating_sub(index_bytes),
        entries: report.keys,
        entry_bytes: report.block_bytes,
        broken: report.broken,
        counts: vec![("snapshots", worker.counts().snapshots)],
    }
}
