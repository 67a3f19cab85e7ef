//! A worker that is a processor: takes packets, has their operations executed, and sends the
//! results (kv-direct §3.3, Figure 4).
//!
//! # Invariants
//! 1. The operations of a packet are admitted in their order, and the packets of one client in
//!    theirs.
//! 2. A packet is answered when all of its operations are answered.
//! 3. A packet that changes something is executed once for each session, however often it comes:
//!    its answer is kept until its slot is used again ([`Inbox`]).
//! 4. Before an operation is admitted, there are versions for all operations that can be under way.
//!
//! The results of a packet can get lost with the connection to its client: the client sends the
//! packet again and gets the kept answer. When the processor dies all of its values die with it:
//! they are in its process's memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loch_fabric::{Buf, Fabric, FabricError, RegionId};

use super::answers::{Opened, PackedJob};
use super::key::KeyHash;
use super::processor::{Counts, Job, Pipeline, Processor, Settings};
use super::storage::Storage;
use super::vector::UserFunctions;
use crate::error::EngineError;
use crate::lines::HostMemory;
use crate::requests::bells::Rings;
use crate::requests::message::REPLY_TRAILER_BYTES;
use crate::requests::{
    Inbox, Incoming, RequestMap, Sessions, Ticket, Turns, WorkerId, send_reply, within,
};
use crate::spare::SpareBuffers;
use crate::versions::Versions;

/// The most packets that wait to be admitted.
const OPEN_PACKETS_MAX: usize = 64;
/// Versions that must be available before an operation is admitted.
const VERSIONS_MIN: u64 = 1 << 16;
/// After this many polls of a WRITE of results its lane is given up: the client's node may be gone.
/// If it is not, the client asks again. The WRITE goes on by itself.
const REPLY_POLLS_MAX: u32 = 1000;

/// A worker of a kv-direct table: one partition, and the packets for it.
pub struct Worker<F: Fabric, H, U> {
    fabric: F,
    map: Arc<RequestMap>,
    id: WorkerId,
    /// The number of this worker's partition.
    partition: u32,
    partitions: u32,
    seed: u64,
    inbox: RefCell<Inbox>,
    rings: Rings,
    processor: Processor<PackedJob, H, U>,
    finished: Rc<RefCell<Vec<Rc<Opened>>>>,
    spare: SpareBuffers,
    is_paused: Cell<bool>,
}

impl<F: Fabric, H: HostMemory, U: UserFunctions> Worker<F, H, U> {
    /// Worker `id` of a table whose keys are hashed with `seed`. It starts now, with the values of
    /// `storage`, for the clients whose sessions `sessions` knows.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is not mapped and writable.
    #[expect(clippy::too_many_arguments, reason = "each is of another origin")]
    pub fn open(
        fabric: F,
        map: &Arc<RequestMap>,
        id: WorkerId,
        storage: Storage<H>,
        functions: U,
        seed: u64,
        settings: Settings,
        sessions: Sessions,
    ) -> Result<Self, EngineError> {
        let inbox = RefCell::new(Inbox::open(&fabric, map, id, sessions)?);
        let (nodes, workers) = (map.area().nodes(), map.area().service().workers);
        Ok(Self {
            inbox,
            rings: Rings::default(),
            processor: Processor::new(storage, functions, (), settings),
            finished: Rc::default(),
            spare: SpareBuffers::default(),
            is_paused: Cell::new(false),
            map: map.clone(),
            id,
            partition: u32::from(id.node) * u32::from(workers) + u32::from(id.worker),
            partitions: u32::from(nodes) * u32::from(workers),
            seed,
            fabric,
        })
    }

    /// The fabric, for its counters.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The partition.
    pub fn storage(&self) -> &Storage<H> {
        self.processor.storage()
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        self.processor.counts()
    }

    /// Whether the worker takes no more packets. After the next idle turn no operation is under
    /// way: the partition can then be looked at, or taken.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.set(is_paused);
    }

    /// Ends the worker and returns the partition and the functions.
    pub fn into_parts(self) -> (Storage<H>, U) {
        self.processor.into_parts()
    }

    /// Serves packets for as long as the result lives. If it is dropped, operations under way are
    /// given up in the middle, as when the worker dies.
    pub fn serve(&self) -> impl Turns + '_ {
        Serving {
            worker: self,
            pipeline: self.processor.pipeline(),
            open: VecDeque::new(),
            ahead: 0,
            stalled: None,
            spare: VecDeque::new(),
            reply: |ticket, reply| self.reply(ticket, reply),
            replies: Vec::new(),
            lease: || self.lease(),
            leasing: None,
        }
    }

    async fn lease(&self) -> Result<(), EngineError> {
        let mut versions = Versions::new(self.home());
        let leased = versions.lease_block(&self.fabric).await?;
        self.processor.supply_versions(leased);
        Ok(())
    }

    fn home(&self) -> RegionId {
        self.map.base(self.id.node).region()
    }

    /// Sends an answer.
    async fn reply(&self, ticket: Ticket, reply: Buf) {
        let sent = send_reply(&self.fabric, &self.map, self.home(), &ticket, reply);
        // A client asks again for results that do not arrive.
        if let Some((reply, _)) = within(REPLY_POLLS_MAX, sent).await {
            self.rings.note(self.map.client_bell_addr(ticket.client));
            self.spare.give_back(reply);
        }
    }

    /// Executes the GETs with which the rest of a packet begins, as far as that is possible at
    /// once. Returns their number.
    #[inline(never)]
    fn execute_gets(&self, packet: &Rc<Opened>, from: usize) -> usize {
        let key = |number| packet.get(from + number).filter(|(hash, _)| self.owns(*hash));
        packet.answer_each(from, |answers| {
            self.processor.execute_gets(key, |outcome| answers.take(&Ok(outcome)));
        })
    }

    #[inline(always)]
    fn owns(&self, hash: KeyHash) -> bool {
        hash.partition(self.partitions) == self.partition
    }
}

/// A worker at work.
struct Serving<'a, F: Fabric, H, U, P, R, S, L, G> {
    worker: &'a Worker<F, H, U>,
    pipeline: P,
    /// Packets that are open, and their next operations.
    open: VecDeque<(Rc<Opened>, usize)>,
    /// Operations of these packets that are not admitted yet.
    ahead: usize,
    /// The operation for which the pipeline stalls.
    stalled: Option<PackedJob>,
    /// Packets to be used again.
    spare: VecDeque<Rc<Opened>>,
    reply: R,
    replies: Vec<Pin<Box<S>>>,
    lease: L,
    leasing: Option<Pin<Box<G>>>,
}

impl<F, H, U, P, R, S, L, G> Turns for Serving<'_, F, H, U, P, R, S, L, G>
where
    F: Fabric,
    H: HostMemory,
    U: UserFunctions,
    P: Pipeline<PackedJob>,
    R: Fn(Ticket, Buf) -> S,
    S: Future<Output = ()>,
    L: Fn() -> G,
    G: Future<Output = Result<(), EngineError>>,
{
    fn turn(&mut self) -> Result<bool, FabricError> {
        if !self.has_versions()? {
            return Ok(true);
        }
        let taken = !self.worker.is_paused.get() && self.take()?;
        self.admit();
        let under_way = self.pipeline.turn();
        self.answer();
        self.go_on_replying();
        let waits = self.stalled.is_some() || !self.open.is_empty();
        let was_busy = taken || under_way || waits || !self.replies.is_empty();
        self.worker.rings.after_turn(&self.worker.fabric, was_busy);
        Ok(was_busy)
    }
}

impl<F, H, U, P, R, S, L, G> Serving<'_, F, H, U, P, R, S, L, G>
where
    F: Fabric,
    H: HostMemory,
    U: UserFunctions,
    P: Pipeline<PackedJob>,
    R: Fn(Ticket, Buf) -> S,
    S: Future<Output = ()>,
    L: Fn() -> G,
    G: Future<Output = Result<(), EngineError>>,
{
    /// Whether there are enough versions, or no versions are needed. Leases versions in time.
    fn has_versions(&mut self) -> Result<bool, FabricError> {
        let processor = &self.worker.processor;
        if !processor.settings().versions || processor.versions_left() >= VERSIONS_MIN {
            return Ok(true);
        }
        let leasing = self.leasing.get_or_insert_with(|| Box::pin((self.lease)()));
        if let Poll::Ready(leased) = poll(leasing) {
            self.leasing = None;
            match leased {
                // The worker's own node's memory was out of reach: it tries again later.
                Ok(()) | Err(EngineError::Ambiguous(_)) => (),
                Err(EngineError::Fabric(error)) => return Err(error),
                Err(error) => panic!("versions cannot be leased: {error}"),
            }
        }
        Ok(processor.versions_left() >= VERSIONS_MIN)
    }

    /// Takes packets out of the request slots. Returns whether there were any.
    fn take(&mut self) -> Result<bool, FabricError> {
        let mut taken = false;
        let worker = self.worker;
        // Enough for all lanes while the worker looks for the next packets. A packet that is taken
        // earlier leaves the processor's caches before it is admitted.
        let wanted = worker.processor.settings().in_flight;
        while self.ahead < wanted && self.open.len() < OPEN_PACKETS_MAX {
            let mut message = worker.spare.take();
            let incoming = worker.inbox.borrow_mut().poll(&worker.fabric, &mut message)?;
            let Some(incoming) = incoming else {
                worker.spare.give_back(message);
                break;
            };
            if !taken {
                worker.processor.set_now_ms(worker.fabric.wall_ms());
                taken = true;
            }
            match incoming {
                Incoming::Execute(ticket) => self.open(ticket, message),
                Incoming::Answer(ticket) => {
                    worker.spare.give_back(message);
                    let reply = worker.inbox.borrow().repeat(&ticket, worker.spare.take());
                    self.send(ticket, reply);
                }
                Incoming::Hello(_) => worker.spare.give_back(message),
            }
        }
        Ok(taken)
    }

    fn open(&mut self, ticket: Ticket, message: Buf) {
        let room = self.worker.map.area().service().reply_bytes as usize - REPLY_TRAILER_BYTES;
        let mut packet = self.spare.pop_front().unwrap_or_default();
        let opened = match Rc::get_mut(&mut packet) {
            Some(opened) => opened,
            // The packet's last operation was answered, and is being written back.
            None => {
                self.spare.push_back(packet);
                packet = Rc::default();
                Rc::get_mut(&mut packet).expect("a new packet is nobody else's")
            }
        };
        let (seed, memory) = (self.worker.seed, self.worker.spare.take());
        let expect = |hash| self.worker.processor.prefetch(hash);
        let finished = &self.worker.finished;
        let (before, read) = opened.open(ticket, message, seed, (room, memory), finished, expect);
        self.worker.spare.give_back(before);
        match read {
            Ok(()) => {
                self.ahead += packet.left();
                self.open.push_back((packet, 0));
            }
            // A packet that tells no number of operations gets no reply.
            Err(_) => self.spare.push_back(packet),
        }
    }

    /// Admits operations, in their order, as long as there is room.
    fn admit(&mut self) {
        while self.pipeline.has_room() {
            let Some(job) = self.stalled.take().or_else(|| self.next_job()) else { return };
            if let Err(job) = self.pipeline.admit(job) {
                self.stalled = Some(job);
                return;
            }
        }
    }

    /// The next operation of the packets that are open.
    #[inline]
    fn next_job(&mut self) -> Option<PackedJob> {
        loop {
            let (packet, next) = self.open.front_mut()?;
            if packet.get(*next).is_some() {
                let done = self.worker.execute_gets(packet, *next);
                *next += done;
                self.ahead -= done;
            }
            let Some(job) = packet.job(*next) else {
                self.open.pop_front();
                continue;
            };
            *next += 1;
            self.ahead -= 1;
            let Ok(job) = job else { continue };
            if self.worker.owns(job.hash()) {
                return Some(job);
            }
            job.misdirected();
        }
    }

    /// Answers the packets whose operations are all done.
    fn answer(&mut self) {
        while let Some(packet) = self.take_finished() {
            let (ticket, outcomes) = (packet.ticket(), packet.outcomes());
            let (reply, _) = self.worker.inbox.borrow_mut().complete(&ticket, outcomes);
            self.spare.push_back(packet);
            self.send(ticket, reply);
        }
    }

    fn take_finished(&self) -> Option<Rc<Opened>> {
        self.worker.finished.borrow_mut().pop()
    }

    fn send(&mut self, ticket: Ticket, reply: Buf) {
        let mut sending = Box::pin((self.reply)(ticket, reply));
        if poll(&mut sending).is_pending() {
            self.replies.push(sending);
        }
    }

    fn go_on_replying(&mut self) {
        self.replies.retain_mut(|sending| poll(sending).is_pending());
    }
}

fn poll<T: Future>(future: &mut Pin<Box<T>>) -> Poll<T::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
