//! ECHO: a request and a reply, and no store behind them (herd §3.3, Figure 5).
//!
//! A PUT's request has a value and its reply says that it was stored; a GET's reply has as many
//! bytes as a value. So messages are as long as a store's, and their rate bounds any store with one
//! round trip. Nothing is stored, so GETs never hit.

use std::marker::PhantomData;
use std::sync::Arc;

use loch::VerbCount;
use loch_bench::error::TargetError;
use loch_bench::spec::Spec;
use loch_engines::epoch::Session;
use loch_engines::operation::{Done, Operation, Outcome, Version};
use loch_engines::requests::packet::Answered;
use loch_engines::requests::{
    BySend, ByUnreliableWrite, Failure, ReplyPath, Request, RequestMap, RequestPath, Requester,
    SentReplies, Sessions, Timing, WorkerId, WrittenReplies,
};
use loch_engines::{EngineError, Kv};
use loch_fabric::{Buf, RegionId};

use super::baseline::{Baseline, Owners, Place, Thread, check_datagrams, requests};
use super::server::{Execute, Server};

/// The verbs that carry requests and replies.
pub trait EchoPaths: 'static {
    /// The variant's name.
    const NAME: &'static str;
    /// By SEND, or by WRITE.
    const REQUESTS_BY_SEND: bool;
    /// By SEND, or by WRITE.
    const REPLIES_BY_SEND: bool;
    /// The way of requests.
    type Requests<F: Thread>: RequestPath<F>;
    /// The way of replies.
    type Replies<F: Thread>: ReplyPath<F>;

    /// The way of a client's requests.
    fn requests<F: Thread>(home: RegionId, to: &BySend<F::Peer>) -> Self::Requests<F>;

    /// The way of its replies.
    fn replies<F: Thread>(to: &BySend<F::Peer>, map: &RequestMap, client: u32) -> Self::Replies<F>;
}

/// Both by SEND.
pub struct SendSend;

/// Both by WRITE.
pub struct WriteWrite;

/// Requests by WRITE, replies by SEND, as HERD has them.
pub struct WriteSend;

impl EchoPaths for SendSend {
    const NAME: &'static str = "echo-send-send";
    const REQUESTS_BY_SEND: bool = true;
    const REPLIES_BY_SEND: bool = true;
    type Requests<F: Thread> = BySend<F::Peer>;
    type Replies<F: Thread> = SentReplies<F::Peer>;

    fn requests<F: Thread>(_: RegionId, to: &BySend<F::Peer>) -> BySend<F::Peer> {
        to.clone()
    }

    fn replies<F: Thread>(to: &BySend<F::Peer>, map: &RequestMap, _: u32) -> SentReplies<F::Peer> {
        SentReplies::new(to.clone(), map, None)
    }
}

impl EchoPaths for WriteWrite {
    const NAME: &'static str = "echo-write-write";
    const REQUESTS_BY_SEND: bool = false;
    const REPLIES_BY_SEND: bool = false;
    type Requests<F: Thread> = ByUnreliableWrite;
    type Replies<F: Thread> = WrittenReplies;

    fn requests<F: Thread>(home: RegionId, _: &BySend<F::Peer>) -> ByUnreliableWrite {
        ByUnreliableWrite { home }
    }

    fn replies<F: Thread>(_: &BySend<F::Peer>, map: &RequestMap, client: u32) -> WrittenReplies {
        WrittenReplies::of(map, client)
    }
}

impl EchoPaths for WriteSend {
    const NAME: &'static str = "echo-write-send";
    const REQUESTS_BY_SEND: bool = false;
    const REPLIES_BY_SEND: bool = true;
    type Requests<F: Thread> = ByUnreliableWrite;
    type Replies<F: Thread> = SentReplies<F::Peer>;

    fn requests<F: Thread>(home: RegionId, _: &BySend<F::Peer>) -> ByUnreliableWrite {
        ByUnreliableWrite { home }
    }

    fn replies<F: Thread>(to: &BySend<F::Peer>, map: &RequestMap, _: u32) -> SentReplies<F::Peer> {
        SentReplies::new(to.clone(), map, None)
    }
}

/// Requests and replies.
pub struct Echo<W> {
    map: Arc<RequestMap>,
    owners: Owners,
    value_bytes: usize,
    ways: PhantomData<fn() -> W>,
}

/// A client.
pub struct Client<F: Thread, W: EchoPaths> {
    fabric: F,
    owners: Owners,
    requester: Requester<W::Requests<F>, W::Replies<F>>,
}

/// The worker's reply to each request.
pub struct Reflector {
    /// A buffer with the length of a value.
    value: Vec<u8>,
}

impl<W: EchoPaths> Baseline for Echo<W> {
    type Client<F: Thread> = Client<F, W>;
    type Server<F: Thread> = Server<F, Reflector>;
    const REPLIES_BY_SEND: bool = W::REPLIES_BY_SEND;

    fn lay_out(spec: &Spec, place: Place) -> Result<Self, TargetError> {
        if W::REQUESTS_BY_SEND || W::REPLIES_BY_SEND {
            check_datagrams(W::NAME, spec)?;
        }
        let map = requests(spec, &place, 0, (W::REQUESTS_BY_SEND, W::REPLIES_BY_SEND))?;
        let (owners, value_bytes) = (Owners::of(spec), spec.value_size);
        Ok(Self { map, owners, value_bytes, ways: PhantomData })
    }

    fn bytes(&self) -> u64 {
        self.map.area().bytes()
    }

    fn messages_at(&self) -> u64 {
        0
    }

    fn client<F: Thread>(
        &self,
        fabric: F,
        session: &Session,
        host: u16,
        workers: &[F::Peer],
        timing: Timing,
    ) -> Client<F, W> {
        let area = self.map.area();
        let to = BySend::new(workers, area.service().workers);
        let requests = W::requests::<F>(session.home(), &to);
        let replies = W::replies::<F>(&to, &self.map, area.client(host, session.slot()));
        let requester = Requester::new(self.map.clone(), session, host, requests, replies, timing);
        Client { fabric, owners: self.owners, requester }
    }

    fn server<F: Thread>(
        &self,
        fabric: F,
        id: WorkerId,
        sessions: Sessions,
    ) -> Result<Server<F, Reflector>, EngineError> {
        let reflector = Reflector { value: vec![0; self.value_bytes] };
        Server::open(fabric, self.map.clone(), id, reflector, sessions)
    }
}

impl<F: Thread> Execute<F> for Reflector {
    fn execute(&mut self, _: &F, request: Request<'_>) -> Answered<'_> {
        match request.operation {
            Operation::Get => Ok(Outcome::Found {
                version: Version::from_u64(0),
                expires_at_ms: None,
                value: &self.value,
            }),
            Operation::Put { .. } => Ok(Outcome::Stored(Version::from_u64(0))),
            _ => Err(Failure::Unsupported),
        }
    }
}

/// Only GET and PUT.
impl<F: Thread, W: EchoPaths> Kv for Client<F, W> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn counted(&self) -> VerbCount {
        self.requester.counted(&self.fabric)
    }

    fn retries(&self) -> u64 {
        self.requester.counts().repeated()
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError> {
        let to = self.owners.owner(key);
        let done = self.requester.call(&self.fabric, to, key, operation, buf).await?.into_done()?;
        // The value is no record's.
        Ok(if operation == Operation::Get { done.into_found().map(|_| None)?.into() } else { done })
    }
}
