//! A worker of nessie-server or nessie-hybrid, as its node runs it: a client of its own node.

use loch_fabric::Fabric;

use super::{NessieServer, Worker, table};
use crate::engine::Workers;
use crate::nessie::{self, CacheLimits};
use crate::requests::Turns;
use crate::scan::{Page, Step};
use crate::serve::{self, Report, Work, WorkerError, WorkerHost, WorkerTransport};

impl Workers for NessieServer {
    type Shared = ();

    fn shared(_: &Self::Map) {}

    async fn serve<H: WorkerHost>(_: &(), host: &H) -> Result<(), WorkerError> {
        serve(host).await
    }
}

/// As [`Workers::serve`], for every table of nessie's layout that workers serve.
///
/// # Errors
/// The worker's errors.
pub(crate) async fn serve<H: WorkerHost>(host: &H) -> Result<(), WorkerError> {
    let (transport, site) = (host.transport(), host.site());
    serve::in_sessions(host, async |attached, session| {
        let map = table::map(&attached.params, &attached.places);
        let map = map.expect("it was checked when it was read");
        // They outlive the client: giving its slabs back takes CASes of its own node's words.
        let (endpoint, mut links) = transport.endpoint(&attached.memory, site, &session)?;
        // A worker has no remote memory that it could cache.
        let cache = CacheLimits { lines: 1, entry_bytes_max: 0 };
        let (table, tuning) = (map.table.clone(), host.tuning());
        let client = nessie::Client::new(endpoint, table, session, cache, tuning.operation_us);
        let worker = Worker::open(client, map, site.id, transport.sessions(site))?;
        host.opened();
        let (next, is_drained) = {
            let (turns, fabric) = (worker.serve(tuning.lanes), worker.client().fabric());
            let mut serving = Serving { worker: &worker, turns };
            let mut tend = |_: &_| transport.tend(fabric, &mut links);
            let next = serve::run(&mut serving, &mut tend, host).await?;
            // Requests keep coming, so the draining does not end without a bound.
            (next, serve::drain(&mut serving, tend, fabric, host, true).await?)
        };
        let detached = worker.into_client().detach().await;
        Ok((next, is_drained && detached.is_ok()))
    })
    .await
}

struct Serving<'a, F: Fabric, N> {
    worker: &'a Worker<F>,
    turns: N,
}

impl<F: Fabric, N: Turns> Work for Serving<'_, F, N> {
    #[inline]
    async fn turn(&mut self) -> Result<bool, WorkerError> {
        let was_busy = self.turns.turn()?;
        self.worker.after_turn(was_busy);
        Ok(was_busy)
    }

    /// A worker has nothing private to report: all of its table is in shared memory.
    fn report(&mut self, _: bool) -> Result<Option<Report>, WorkerError> {
        Ok(Some(Report::default()))
    }

    /// Clients scan its memory by themselves.
    fn scan(&mut self, _: &Step, _: bool) -> Result<Option<Page>, WorkerError> {
        Ok(Some(Page::default()))
    }
}
