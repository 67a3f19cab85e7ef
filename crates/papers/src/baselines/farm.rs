//! FaRM-em and FaRM-em-VAR: FaRM as HERD's authors emulate it (herd §5.1.2).
//!
//! A GET is one READ of the key's neighbourhood in the table ([`table`](super::table)), and a
//! second READ if the value is not in the table. A PUT is a request WRITTEN to the server and a
//! reply WRITTEN to the client, both over unreliable connections.

use std::cell::Cell;
use std::sync::Arc;

use loch::VerbCount;
use loch_bench::error::TargetError;
use loch_bench::spec::Spec;
use loch_engines::epoch::Session;
use loch_engines::operation::{Done, Operation, Outcome, Value, Version};
use loch_engines::requests::packet::Answered;
use loch_engines::requests::{
    ByUnreliableWrite, Failure, Request, RequestMap, Requester, Sessions, Timing, WorkerId,
    WrittenReplies,
};
use loch_engines::{EngineError, Kv};
use loch_fabric::{Buf, RemoteAddr};

use super::baseline::{Baseline, Owners, Place, Thread, requests};
use super::server::{Execute, Server};
use super::table::{HEAD_BYTES, NEIGHBOURHOOD, Shape, Table, checksum};

/// Tables begin at multiples of this.
const TABLE_ALIGN_BYTES: u64 = 64;

/// A table for each worker, with values inlined or not.
pub struct Farm<const INLINED: bool> {
    map: Arc<RequestMap>,
    tables: Tables,
}

/// The places of all tables.
#[derive(Clone)]
struct Tables {
    owners: Owners,
    shape: Shape,
    bases: Arc<Vec<RemoteAddr>>,
}

impl Tables {
    fn bytes(&self) -> u64 {
        self.shape.bytes().next_multiple_of(TABLE_ALIGN_BYTES)
    }

    fn base(&self, owner: WorkerId) -> RemoteAddr {
        self.bases[usize::from(owner.node)].add(u64::from(owner.worker) * self.bytes())
    }
}

/// A client.
pub struct Client<F: Thread> {
    fabric: F,
    tables: Tables,
    requester: Requester<ByUnreliableWrite, WrittenReplies>,
    timeout_us: u64,
    /// Values that were being written when they were read.
    torn: Cell<u64>,
}

/// A worker's table.
pub struct Keeper(Table);

impl<const INLINED: bool> Baseline for Farm<INLINED> {
    type Client<F: Thread> = Client<F>;
    type Server<F: Thread> = Server<F, Keeper>;
    const REPLIES_BY_SEND: bool = false;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        let owners = Owners::of(spec);
        // Twice a fair share is enough for any worker: hashes are not that uneven, except with few
        // records.
        let parts = u64::from(owners.nodes * owners.workers);
        let records = (spec.records.div_ceil(parts) * 2).min(spec.records);
        let shape = Shape::new(records, spec.value_size, INLINED, spec.seed);
        let tables = Tables { owners, shape, bases: Arc::new(place.bases.clone()) };
        let requests_at = tables.bytes() * u64::from(owners.workers);
        let map = requests(spec, &place, requests_at, (false, false))?;
        Ok(Self { map, tables })
    }

    fn bytes(&self) -> u64 {
        self.messages_at() + self.map.area().bytes()
    }

    fn messages_at(&self) -> u64 {
        self.tables.bytes() * u64::from(self.tables.owners.workers)
    }

    fn client<F: Thread>(
        &self,
        fabric: F,
        session: &Session,
        host: u16,
        _: &[F::Peer],
        timing: Timing,
    ) -> Client<F> {
        let replies = WrittenReplies::of(&self.map, self.map.area().client(host, session.slot()));
        let requests = ByUnreliableWrite { home: session.home() };
        let requester = Requester::new(self.map.clone(), session, host, requests, replies, timing);
        let (tables, timeout_us) = (self.tables.clone(), timing.timeout_us);
        Client { fabric, tables, requester, timeout_us, torn: Cell::new(0) }
    }

    fn server<F: Thread>(
        &self,
        fabric: F,
        id: WorkerId,
        sessions: Sessions,
    ) -> Result<Server<F, Keeper>, EngineError> {
        let table = Table::new(self.tables.shape, self.tables.base(id));
        Server::open(fabric, self.map.clone(), id, Keeper(table), sessions)
    }
}

impl<F: Thread> Execute<F> for Keeper {
    fn execute(&mut self, fabric: &F, request: Request<'_>) -> Answered<'_> {
        let Operation::Put { value, .. } = request.operation else {
            return Err(Failure::Unsupported);
        };
        match self.0.put(fabric, request.key, value) {
            Ok(()) => Ok(Outcome::Stored(Version::from_u64(0))),
            Err(error) => Err(Failure::from(&error)),
        }
    }
}

/// The result of a look.
enum Look {
    Found(Value),
    Missing,
    /// The value was being written.
    Torn(Buf),
}

impl<F: Thread> Client<F> {
    async fn look(&self, key: &[u8], buf: Buf) -> Result<Look, EngineError> {
        let Tables { shape, .. } = &self.tables;
        let (base, name) = (self.tables.base(self.tables.owners.owner(key)), shape.name(key));
        let slot_bytes = shape.slot_bytes();
        let len = slot_bytes * NEIGHBOURHOOD as usize;
        let mut buf = self.read(shape.neighbourhood(base, name), len, buf).await?;
        let mut slots = buf.chunks_exact(slot_bytes);
        let Some(slot) = slots.position(|slot| slot[..8] == name.to_le_bytes()) else {
            return Ok(Look::Missing);
        };
        let (head, rest) = buf[slot * slot_bytes..][..slot_bytes].split_at(HEAD_BYTES);
        let expected = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
        let mut at = slot * slot_bytes + HEAD_BYTES;
        if !shape.is_inlined() {
            let number = u64::from_le_bytes(rest.try_into().expect("eight bytes"));
            buf = self.read(shape.value(base, number), shape.value_bytes(), buf).await?;
            at = 0;
        }
        let value = at..at + shape.value_bytes();
        if checksum(name, &buf[value.clone()]) != expected {
            return Ok(Look::Torn(buf));
        }
        Ok(Look::Found(Value::new(buf, value, Version::from_u64(0), None)))
    }

    async fn read(&self, at: RemoteAddr, len: usize, mut buf: Buf) -> Result<Buf, EngineError> {
        buf.clear();
        let (buf, done) = self.fabric.read(at, len, buf).await;
        done?;
        Ok(buf)
    }
}

/// Only GET and PUT.
impl<F: Thread> Kv for Client<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn counted(&self) -> VerbCount {
        self.requester.counted(&self.fabric)
    }

    fn retries(&self) -> u64 {
        self.requester.counts().repeated() + self.torn.get()
    }

    async fn get(&self, key: &[u8], mut buf: Buf) -> Result<Option<Value>, EngineError> {
        let mut until = None;
        loop {
            match self.look(key, buf).await? {
                Look::Found(value) => return Ok(Some(value)),
                Look::Missing => return Ok(None),
                Look::Torn(again) => buf = again,
            }
            self.torn.set(self.torn.get() + 1);
            let now = self.fabric.now_us();
            if now >= *until.get_or_insert(now.saturating_add(self.timeout_us)) {
                return Err(EngineError::Timeout { timeout_us: self.timeout_us });
            }
            self.fabric.yield_now().await;
        }
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError> {
        if operation == Operation::Get {
            return Ok(self.get(key, buf).await?.into());
        }
        let to = self.tables.owners.owner(key);
        self.requester.call(&self.fabric, to, key, operation, buf).await?.into_done()
    }
}
