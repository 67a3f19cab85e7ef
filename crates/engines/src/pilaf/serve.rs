//! The worker of a pilaf table on one node, as the node runs it. Only this worker writes the table
//! there.

use super::layout::LINE_BYTES;
use super::{Pilaf, Worker};
use crate::engine::{Engine, Workers};
use crate::log::Storage;
use crate::serve::{self, Report, Work, WorkerError, WorkerHost, WorkerTransport};

impl Workers for Pilaf {
    type Shared = ();

    fn shared(_: &Self::Map) {}

    async fn serve<H: WorkerHost>(_: &(), host: &H) -> Result<(), WorkerError> {
        let Some(attached) = host.attached().await else { return Ok(()) };
        let (transport, site) = (host.transport(), host.site());
        let map = Pilaf::map(&attached.params, &attached.places);
        let (map, node) = (map.expect("it was checked when it was read"), site.id.node);
        let logging = host.log()?;
        let mailbox = map.mailboxes.of_worker(&map.requests, site.id);
        let fabric = transport.mail(&attached.memory, site, mailbox)?;
        let sessions = transport.sessions(site);
        let worker = Worker::open(fabric, &map.requests, node, map.shape(node), logging, sessions)?;
        let recovered = worker.recovered();
        tracing::info!(table = site.name, ?recovered, "the table is open");
        host.opened();
        let mut serving = Serving { transport, worker };
        while let Some(anew) = serve::run(&mut serving, host).await? {
            transport.attach(serving.worker.fabric(), &anew.memory)?;
        }
        Ok(serving.worker.close()?)
    }
}

struct Serving<'a, T: WorkerTransport, S> {
    transport: &'a T,
    worker: Worker<T::Mail, S>,
}

impl<T: WorkerTransport, S: Storage> Work for Serving<'_, T, S> {
    #[inline]
    fn tend(&mut self) {
        self.transport.tend_mail(self.worker.fabric());
    }

    #[inline]
    async fn turn(&mut self) -> Result<bool, WorkerError> {
        Ok(self.worker.turn()?)
    }

    fn report(&mut self, was_busy: bool) -> Result<Option<Report>, WorkerError> {
        // A change that is prepared and not committed counts neither as present nor as absent.
        if was_busy {
            return Ok(None);
        }
        let store = self.worker.store();
        let report = store.check(self.worker.fabric())?;
        let index_bytes = store.slots() * LINE_BYTES;
        Ok(Some(Report {
            slots: store.slots(),
            index_bytes,
            data_bytes: store.shape().arena_bytes.saturating_sub(index_bytes),
            entries: report.keys,
            entry_bytes: report.block_bytes,
            broken: report.broken,
            counts: vec![("snapshots", self.worker.counts().snapshots)],
        }))
    }
}
