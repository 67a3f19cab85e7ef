//! The client's half: sends a request, waits for its reply, and sends the request again if no reply
//! comes.
//!
//! A client sends a request again under the same number with a new attempt, after a time that
//! doubles, until the request is answered or its time is up. A mutation is
//! [`EngineError::Ambiguous`] if its time is up, or if an earlier incarnation of the worker may
//! have executed it.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr, VerbCount};

use super::bells::Rings;
use super::counts::Counts;
use super::layout::{RequestMap, WorkerId};
use super::message::{Body, ReplyHead, session_number};
use super::packet::{Outcomes, strange_outcomes};
use super::path::{ReplyPath, RequestPath};
use super::window::{Line, Parked, Parking, Replies, UnderWay};
use crate::epoch::Session;
use crate::error::EngineError;
use crate::kv::check_key;
use crate::operation::{Done, Operation, Outcome};
use crate::region::session_bell_addr;
use crate::secret::Secret;
use crate::spare::SpareBuffers;

/// How long a client waits, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the client waits for the first reply before it sends the request again.
    pub resend_us: u64,
    /// How long an operation may take.
    pub timeout_us: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { resend_us: 1_000, timeout_us: 5_000_000 }
    }
}

/// One client's connection to the workers of a table.
#[derive(Debug)]
pub struct Requester<P, R> {
    pub(super) map: Arc<RequestMap>,
    pub(super) home: RegionId,
    pub(super) client: u32,
    pub(super) session: u64,
    pub(super) secret: Option<Secret>,
    /// The number of greetings that were sent.
    pub(super) greetings: Cell<u64>,
    /// The lines of all workers, by [`Area::source`](super::layout::Area::source).
    pub(super) lines: Vec<Line>,
    /// The bell at which the client's thread sleeps.
    pub(super) bell: RemoteAddr,
    /// The workers that were sent something.
    pub(super) rings: Rings,
    pub(super) replies: Replies,
    pub(super) parking: Parking,
    pub(super) requests: P,
    pub(super) answers: R,
    pub(super) timing: Timing,
    pub(super) counts: Counts,
    pub(super) spare: SpareBuffers,
}

/// The reply to a request, with the buffer that holds the outcomes of its packet.
#[derive(Debug)]
pub struct Reply {
    pub(super) head: ReplyHead,
    pub(super) message: Buf,
    /// The worker that was asked.
    pub(super) at: RemoteAddr,
}

impl Reply {
    /// The packet of the outcomes.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        &self.message[..self.head.packet_len()]
    }

    /// The outcome of the one operation of the packet, and the end of its value.
    #[inline]
    fn only(&self) -> Result<(Outcome<'_>, usize), EngineError> {
        let (packet, mut outcomes) = (self.packet(), Outcomes::new(1));
        match outcomes.next(packet) {
            Some(Ok(Ok(outcome))) => Ok((outcome, outcomes.at())),
            Some(Ok(Err(failure))) => Err(failure.into_error(self.at)),
            _ => Err(strange_outcomes()),
        }
    }

    /// The outcome of the one operation of the packet.
    ///
    /// # Errors
    /// The operation's; [`EngineError::Damaged`] if there is no such outcome.
    pub fn outcome(&self) -> Result<Outcome<'_>, EngineError> {
        self.only().map(|(outcome, _)| outcome)
    }

    /// The outcome of the one operation of the packet, which keeps the buffer.
    ///
    /// # Errors
    /// As [`Reply::outcome`].
    #[inline]
    pub fn into_done(self) -> Result<Done, EngineError> {
        let (outcome, end) = self.only()?;
        let at = end - outcome.bytes().len()..end;
        let outcome = outcome.with_bytes(&[]);
        Ok(Done::new(outcome, self.message, at))
    }

    /// The buffer that holds the reply.
    pub fn into_buf(self) -> Buf {
        self.message
    }
}

impl<P, R> Requester<P, R> {
    /// The client that holds `session`, at the `node`-th node of `map`.
    ///
    /// # Panics
    /// If the session is an observer's, or its slot is not one of the map's.
    pub fn new(
        map: Arc<RequestMap>,
        session: &Session,
        node: u16,
        requests: P,
        answers: R,
        timing: Timing,
    ) -> Self {
        assert!(!session.is_observer(), "a client needs a session to be told from others");
        let service = *map.area().service();
        let workers = usize::from(map.area().nodes()) * usize::from(service.workers);
        Self {
            bell: session_bell_addr(session.home(), session.slot()),
            rings: Rings::default(),
            home: session.home(),
            client: map.area().client(node, session.slot()),
            session: session_number(session.incarnation()),
            secret: session.secret(),
            greetings: Cell::new(0),
            lines: (0..workers).map(|_| Line::new(service.window)).collect(),
            replies: Replies::new(service.replies),
            parking: Parking::default(),
            requests,
            answers,
            timing,
            counts: Counts::default(),
            spare: SpareBuffers::default(),
            map,
        }
    }

    /// The client's patience.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// The table's requests.
    pub fn map(&self) -> &Arc<RequestMap> {
        &self.map
    }

    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The verbs that an endpoint counted, and those that its client's requests took besides:
    /// SENDs, and the reply to each request to another node's worker, which that worker sent.
    pub fn counted<F: Fabric>(&self, fabric: &F) -> VerbCount {
        fabric.counters().snapshot() + self.counts.beside()
    }

    /// Called when the client has done an operation without its workers. A client that has more of
    /// them to do wakes its workers later, for several requests at once: where cores are short, a
    /// worker that wakes takes the core of a client.
    #[inline]
    pub fn was_busy(&self) {
        self.rings.was_busy();
    }

    /// Whether a request to this worker could be sent at once.
    #[inline]
    pub fn is_free(&self, to: WorkerId) -> bool {
        self.reap();
        self.lines[usize::from(self.map.area().source(to.node, to.worker))].is_free()
    }

    /// Whether nothing of this client is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.reap();
        self.replies.taken() == 0
    }

    /// Gives back the numbers and reply slots of requests that no lane waits for any more.
    #[inline]
    pub(super) fn reap(&self) {
        while let Some((source, parked)) = self.parking.orphan() {
            drop(self.adopt(source, &parked, None));
        }
    }

    /// The number and the reply slot of a parked request.
    fn adopt<'a>(
        &'a self,
        source: u16,
        parked: &Parked,
        parks: Option<(&'a Parking, usize)>,
    ) -> UnderWay<'a> {
        UnderWay::adopt(&self.lines[usize::from(source)], &self.replies, parked, parks)
    }

    /// The number and the reply slot of the request that is parked at a place, if there is one. It
    /// stays parked until it is sent again, whatever is dropped.
    #[inline]
    pub(super) fn parked(&self, source: u16, place: Option<usize>) -> Option<UnderWay<'_>> {
        let place = place?;
        let parked = self.parking.get(place)?;
        Some(self.adopt(source, &parked, Some((&self.parking, place))))
    }

    /// Asks a worker for one operation and waits for the outcome. `buf` is filled with the reply.
    ///
    /// # Errors
    /// [`EngineError`]; after any but [`EngineError::Ambiguous`] nothing was changed.
    pub async fn call<F>(
        &self,
        fabric: &F,
        to: WorkerId,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Reply, EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        check_key(key)?;
        self.ask(fabric, to, Body::one(key, operation), buf, Ok).await
    }

    /// Looks for what workers or other lanes of this client do, until `look` has found something.
    /// Between two looks other lanes work. If all lanes of the thread wait, the thread lets time
    /// pass; after a look that `is_first` it does not, as the lane may until then have done what
    /// another lane waits for.
    #[inline]
    pub fn until<'a, F: Fabric, T>(
        &'a self,
        fabric: &'a F,
        is_first: bool,
        look: impl FnMut() -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a
    where
        R: ReplyPath<F>,
    {
        Looking { requester: self, fabric, is_first, look }
    }
}

/// The future of [`Requester::until`].
struct Looking<'a, F, P, R, L> {
    requester: &'a Requester<P, R>,
    fabric: &'a F,
    is_first: bool,
    look: L,
}

impl<F, P, R, L> Unpin for Looking<'_, F, P, R, L> {}

impl<F: Fabric, P, R: ReplyPath<F>, T, L: FnMut() -> Option<T>> Future for Looking<'_, F, P, R, L> {
    type Output = T;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(found) = (self.look)() {
            return Poll::Ready(found);
        }
        let Self { requester, fabric, .. } = *self;
        let has_rung = requester.rings.looked(fabric, requester.replies.taken());
        let yields = std::mem::take(&mut self.is_first)
            || !has_rung
            || requester.answers.has_taken_for_others();
        fabric.poll_wait(cx, (!yields).then_some(requester.bell));
        Poll::Pending
    }
}
