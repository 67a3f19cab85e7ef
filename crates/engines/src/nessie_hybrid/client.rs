//! A client of a nessie-hybrid table.

use loch_fabric::{Buf, Fabric, FabricError, VerbCount};

use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::{Kv, get_and_touch};
use crate::nessie::{self, Attempts, CacheLimits};
use crate::nessie_server::Served;
use crate::nessie_server::ask::Asker;
use crate::operation::{Batch, Done, Operation, Outcome, Value};
use crate::requests::{Counts, Timing};

/// A client of a table: one thread's session, endpoint, requests under way and cache.
///
/// Its operations are `async` and take `&self`, so any number of them can be under way in the lanes
/// of its thread.
pub struct Client<F: Fabric> {
    reader: nessie::Client<F>,
    asker: Asker,
}

impl<F: Fabric> Client<F> {
    /// A client over `fabric`, to which all regions of `map` are attached.
    ///
    /// # Panics
    /// If the session is an observer's, or not of a node and slot of the map.
    pub fn new(
        fabric: F,
        map: Served,
        session: Session,
        cache: CacheLimits,
        timing: Timing,
        batch: usize,
    ) -> Self {
        let asker = Asker::of(map.clone(), &session, timing, batch);
        let reader = nessie::Client::new(fabric, map.table, session, cache, timing.timeout_us);
        Self { reader, asker }
    }

    /// The client that does the GETs, for its counts, and to detach it when this client ends.
    pub fn reader(&self) -> &nessie::Client<F> {
        &self.reader
    }

    /// The table's map.
    pub fn map(&self) -> &Served {
        self.asker.owners()
    }

    /// The counts of requests.
    pub fn counts(&self) -> &Counts {
        self.asker.requester().counts()
    }

    /// Makes the worker look at a key whose value has expired, which removes it.
    #[cold]
    async fn expire(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.ask(key, Operation::Contains).await?.outcome().contained()
    }

    #[inline]
    async fn ask(&self, key: &[u8], operation: Operation<'_>) -> Result<Done, EngineError> {
        let done = self.asker.ask(self.fabric(), key, operation, Buf::new()).await;
        // While the request was under way a GET may have ended whose epoch the request kept up.
        self.reader.rest()?;
        done
    }
}

impl<F: Fabric> Kv for Client<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        self.reader.fabric()
    }

    fn counted(&self) -> VerbCount {
        self.asker.requester().counted(self.fabric())
    }

    fn retries(&self) -> u64 {
        self.asker.requester().counts().repeated() + self.reader.retries()
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        // Linearization point: nessie's GET's, or the worker's, if the worker found no value.
        let mut found = self.reader.get(key, buf).await;
        self.asker.requester().was_busy();
        let mut attempts = Attempts::default();
        while may_not_write(&found) {
            if !self.expire(key).await? {
                return Ok(None);
            }
            // There is another value, or by the worker's clock the value has not expired yet.
            attempts.again(&self.reader).await?;
            found = self.reader.get(key, Buf::new()).await;
        }
        found
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError> {
        match operation {
            Operation::Get => Ok(self.get(key, buf).await?.into()),
            Operation::Contains => {
                let found = self.reader.contains(key).await;
                self.asker.requester().was_busy();
                if may_not_write(&found) {
                    return self.ask(key, operation).await;
                }
                Ok(Done::without_bytes(Outcome::Contained(found?), buf))
            }
            Operation::GetAndTouch(options) => {
                let execute = async |operation, buf| self.execute(key, operation, buf).await;
                Box::pin(get_and_touch(self.fabric(), options, buf, execute)).await
            }
            _ => self.ask(key, operation).await,
        }
    }

    /// Other operations than PUTs and DELETEs share messages in lanes, or need none.
    fn shares(&self, is_read: bool) -> bool {
        !is_read
    }

    async fn execute_many(
        &self,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        let ended = self.asker.ask_many(self.fabric(), batch, done).await;
        self.reader.rest()?;
        ended
    }

    async fn come_to_rest(&self) -> Result<(), EngineError> {
        self.reader.come_to_rest().await
    }

    fn leave(&self) {
        self.reader.leave();
    }

    async fn detach(&self) -> Result<(), EngineError> {
        self.reader.detach().await
    }
}

/// Whether a GET met an expired value that it has no right to remove.
fn may_not_write<T>(found: &Result<T, EngineError>) -> bool {
    matches!(found, Err(EngineError::Fabric(FabricError::ReadOnly { .. })))
}
