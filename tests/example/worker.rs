//! A worker of the example: executes one request after the other.

use std::collections::HashMap;

use loch_fabric::{Fabric, Messages};

use super::{Example, Map, hash_of};
use crate::effect::{Effect, Versioned};
use crate::engine::{Engine, Workers};
use crate::error::EngineError;
use crate::limits::PACKET_OPS_MAX;
use crate::operation::{Outcome, Version};
use crate::requests::mailboxes::PACKET_MESSAGE_BYTES;
use crate::requests::{ROUND_MESSAGES_MAX, Request, Round, Server};
use crate::scan::{Listed, Page, Step};
use crate::serve::{self, Report, Work, WorkerError, WorkerHost, WorkerTransport};
use crate::versions::Versions;

struct Worker<F: Messages> {
    requests: Server<F>,
    versions: Versions,
    values: Values,
}

/// The parts of a worker's keys that a scan takes one after the other.
const PARTS: u64 = 1 << 12;

struct Values {
    parts: Vec<HashMap<Vec<u8>, Versioned<Vec<u8>>>>,
    bytes: u64,
    map: Map,
}

impl Workers for Example {
    type Shared = ();

    fn shared(_: &Map) {}

    async fn serve<H: WorkerHost>(_: &(), host: &H) -> Result<(), WorkerError> {
        let Some(attached) = host.attached().await else { return Ok(()) };
        let (transport, site, map) = (host.transport(), host.site(), Example::map_of(&attached));
        let fabric = transport.mail(&attached.memory, site, map.mailed.of_worker(site.id))?;
        let sessions = transport.sessions(site);
        let requests = Server::open(
            fabric,
            map.mailed.requests(),
            site.id,
            sessions,
            true,
            PACKET_MESSAGE_BYTES,
        )?;
        let versions = Versions::new(map.mailed.requests().base(site.id.node).region());
        let parts = (0..PARTS).map(|_| HashMap::new()).collect();
        let values = Values { parts, bytes: 0, map };
        let worker = Worker { requests, versions, values };
        serve::by_mail(host, worker, |worker| worker.requests.fabric()).await.map(drop)
    }
}

impl<F: Fabric + Messages> Work for Worker<F> {
    /// Takes the requests that are there, executes them, and sends the replies.
    async fn turn(&mut self) -> Result<bool, WorkerError> {
        let needed = (2 * ROUND_MESSAGES_MAX * PACKET_OPS_MAX) as u64;
        let leased = self.versions.ensure(self.requests.fabric(), needed).await;
        if !serve::unless_out_of_reach(leased.map(|()| true).map_err(WorkerError::from))? {
            return Ok(false);
        }
        let mut round = Round::default();
        while let Some((ticket, message)) = self.requests.next(&mut round)? {
            self.requests.execute(&ticket, message, |fabric, request, answer| {
                let (version, now_ms) = (self.versions.take(), fabric.wall_ms());
                answer(self.values.execute(request, version.as_u64(), now_ms));
            });
        }
        self.requests.flush()?;
        Ok(round.taken() > 0)
    }

    fn report(&mut self, _: bool) -> Result<Option<Report>, WorkerError> {
        let Values { parts, bytes, map } = &self.values;
        let entries = parts.iter().map(|part| part.len() as u64).sum();
        let (entry_bytes, data_bytes) = (*bytes, map.bytes);
        Ok(Some(Report { entries, entry_bytes, data_bytes, ..Report::default() }))
    }

    fn scan(&mut self, step: &Step, _: bool) -> Result<Option<Page>, WorkerError> {
        let now_ms = self.requests.fabric().wall_ms();
        Ok(Some(step.page(PARTS, now_ms, |part, listing| {
            for (key, value) in &self.values.parts[part as usize] {
                listing.add(Listed::new(key, value));
            }
        })))
    }
}

impl Values {
    /// Linearization point of every operation: the whole of it is done in this call.
    fn execute(
        &mut self,
        Request { key, operation }: Request<'_>,
        version: u64,
        now_ms: u64,
    ) -> Result<Outcome<'_>, EngineError> {
        if self.present(key).is_some_and(|value| value.is_expired(now_ms)) {
            self.remove(key);
        }
        if operation.is_read() {
            return Ok(operation.on(self.present(key), Version::from_u64(version))?.0);
        }
        let (outcome, effect) = operation.on(self.present(key), Version::from_u64(version))?;
        let outcome = outcome.without_value()?;
        match effect {
            Effect::Nothing => {}
            Effect::Remove => self.remove(key),
            Effect::Store(value) => self.store(key, value.to_owned())?,
        }
        Ok(outcome)
    }

    fn present(&self, key: &[u8]) -> Option<Versioned<&[u8]>> {
        self.parts[Self::part(key)].get(key).map(Versioned::borrowed)
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.parts[Self::part(key)].remove(key) {
            self.bytes -= self.bytes_of(key, &old.value);
        }
    }

    fn store(&mut self, key: &[u8], new: Versioned<Vec<u8>>) -> Result<(), EngineError> {
        self.map.lengths.check(key, new.value.len())?;
        let (capacity, bytes) = (self.map.bytes, self.bytes_of(key, &new.value));
        let old = self.present(key).map_or(0, |old| self.bytes_of(key, old.value));
        let all = (self.bytes - old).saturating_add(bytes);
        if all > capacity {
            return Err(EngineError::OutOfMemory { bytes, capacity });
        }
        self.bytes = all;
        self.parts[Self::part(key)].insert(key.into(), new);
        Ok(())
    }

    fn part(key: &[u8]) -> usize {
        (hash_of(key) >> 32) as usize % PARTS as usize
    }

    fn bytes_of(&self, key: &[u8], value: &[u8]) -> u64 {
        self.map.entry_bytes.saturating_add((key.len() + value.len()) as u64)
    }
}
