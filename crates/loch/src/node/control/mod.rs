//! The control plane of a node whose memory is reached over a network. It lets connections in, has
//! other nodes let this node's clients in, and fences clients before their memory is used again.
//!
//! A client talks only to its home node. The home node vouches that the client is of the right user
//! and that its session lives. Nodes prove to each other that they are of one cluster
//! (`credentials.rs`) and speak over TCP (`messages.rs`). Each node dials every other node and asks
//! over the link it dialed, so there are two links between any two nodes, each with one thread at
//! either end:
//!
//! ```text
//! client ── unix socket ── server ──jobs──▶ peer (one a node) ── link ──▶ listener ── registry
//! ```
//!
//! # Invariants
//! 1. The server's thread never waits: jobs are queued, and replies come back through a queue.
//! 2. A session's slot shows the session until no node can execute a verb of it any more
//!    (`fences.rs`).
//! 3. A request to a node is answered or fails within [`ASK_TIMEOUT`]. A dead node is noticed
//!    within [`PING_INTERVAL`] plus that.
//! 4. A connection whose other side has not proven that it is a node costs one of
//!    [`HANDSHAKES_MAX`] threads, for [`HANDSHAKE_TIMEOUT`], and a frame. It gives way to later
//!    ones (`handshakes.rs`).
//!
//! # Faults
//! *A link breaks:* the node dials again and first says which of its clients live; all others are
//! fenced. *A node's process dies:* the kernel destroys the queue pairs of its process, so the
//! connections that it had let in die with it. The connections of its own clients on other nodes
//! die as soon as they meet their end. But another node cannot tell this from a network that
//! refuses to carry connections. *A node is silent, or refuses connections:* it may hold
//! connections. Sessions that its peers want fenced there stay dying until some process of the node
//! speaks again. That costs slots and memory, but not safety (`fences.rs`). *A node comes back with
//! clients that lived on:* it says which ones, and assumes that all others may be connected
//! anywhere. *A host vanishes with its clients:* no client posts on their connections any more, and
//! no node uses again what they held, since only their own node frees it. The connections are
//! therefore harmless; they are ended when the node returns, or after [`HOME_SILENCE_MAX`]. It is
//! harmless to end one too early: a client that was only cut off makes another.
//!
//! [`ASK_TIMEOUT`]: crate::limits::ASK_TIMEOUT
//! [`PING_INTERVAL`]: crate::limits::PING_INTERVAL
//! [`HANDSHAKES_MAX`]: crate::limits::HANDSHAKES_MAX
//! [`HANDSHAKE_TIMEOUT`]: crate::limits::HANDSHAKE_TIMEOUT
//! [`HOME_SILENCE_MAX`]: crate::limits::HOME_SILENCE_MAX

pub(crate) mod arrivals;
pub(crate) mod credentials;
pub(crate) mod members;
pub(crate) mod registry;

mod channel;
mod fences;
mod handshakes;
mod jobs;
mod link;
mod listener;
mod local;
mod messages;
pub(crate) mod network;
mod noise;
mod peer;
mod preface;
pub(crate) mod probe;
mod tls;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use loch_engines::requests::Holder;

use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::{ASK_TIMEOUT, INSPECT_TIMEOUT};
use crate::node::attacher::LatestMemory;
use crate::node::control_client::{Caller, ControlClient, ReplyQueue};
use crate::node::scrubber::ScrubberHandle;
use crate::node::sessions::{SessionEnd, Sessions};
use crate::node::workers::Inspector;
use crate::session::slot::SessionId;
use crate::session::wire::{Code, Connect, Question, Refused, Reply, Told};
use crate::{Error, Result};

use credentials::Credentials;
use fences::Fences;
use handshakes::Handshakes;
use jobs::{Job, Jobs};
pub(crate) use listener::ControlPort;
pub(in crate::node) use listener::listen_at;
use listener::{ControlListener, InboundState};
use members::Members;
use registry::{Acceptor, Registry};

/// The parts of a control plane.
pub(crate) struct ControlParts {
    /// This node, with its region.
    pub own: Member,
    pub sessions: Arc<Sessions>,
    pub acceptor: Arc<dyn Acceptor>,
    /// The name of the fabric, which all nodes must have.
    pub fabric: &'static str,
    /// The control addresses of all nodes, in order.
    pub addresses: Vec<String>,
    /// Where links from other nodes come in; a node that is alone needs no port.
    pub port: Option<ControlPort>,
    pub credentials: Credentials,
}

/// A running control plane. Dropping it ends all connections that it let in, and stops it.
pub(crate) struct ControlThreads {
    plane: Arc<ControlPlane>,
    listener: Option<ControlListener>,
    workers: Vec<JoinHandle<()>>,
}

/// The state that the threads share.
pub(crate) struct ControlPlane {
    pub members: Members,
    registry: Registry,
    sessions: Arc<Sessions>,
    fences: Mutex<Fences>,
    handshakes: Arc<Handshakes>,
    credentials: Credentials,
    /// The queue of the worker for each node.
    jobs: Vec<Sender<Job>>,
    /// The state of the links from each node.
    inbound: Vec<Mutex<InboundState>>,
    scrubber: OnceLock<ScrubberHandle>,
    /// The memory of all nodes, as the node's workers have it.
    latest_memory: Arc<LatestMemory>,
    inspector: OnceLock<Inspector>,
}

impl ControlThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::Os`] if the address cannot be listened at.
    pub fn start(parts: ControlParts) -> Result<Self> {
        let ControlParts { own, sessions, acceptor, fabric, addresses, port, credentials } = parts;
        let (node, nodes) = (own.header.node as usize, addresses.len());
        let (jobs, queues): (Vec<_>, Vec<_>) = (0..nodes).map(|_| mpsc::channel()).unzip();
        let mut process = [0; 8];
        rustix::rand::getrandom(&mut process, rustix::rand::GetRandomFlags::empty())
            .map_err(Error::os("draw random bytes for", &own.socket))?;
        let plane = Arc::new(ControlPlane {
            handshakes: Arc::new(Handshakes::new(&addresses, node)),
            members: Members::new(own.clone(), u64::from_ne_bytes(process), fabric, addresses),
            registry: Registry::new(own, acceptor),
            fences: Mutex::new(Fences::new(nodes, node, inherited(&sessions))),
            sessions,
            credentials,
            jobs,
            inbound: (0..nodes).map(|_| Mutex::default()).collect(),
            scrubber: OnceLock::new(),
            latest_memory: Arc::default(),
            inspector: OnceLock::new(),
        });
        plane.publish_memory();
        let listener = port.map(|port| ControlListener::open(port, plane.clone())).transpose()?;
        let mut control = Self { plane, listener, workers: Vec::with_capacity(nodes) };
        for (number, queue) in queues.into_iter().enumerate() {
            let plane = control.plane.clone();
            let worker = std::thread::Builder::new().name(format!("loch-peer-{number}"));
            let worker = worker.spawn(move || match number == node {
                true => local::serve(&plane, Jobs::new(queue)),
                false => peer::PeerWorker::new(plane, number).run(Jobs::new(queue)),
            });
            let os = Error::os("start a thread for", "the control plane".as_ref());
            control.workers.push(worker.map_err(os)?);
        }
        Ok(control)
    }

    /// The state that the other parts of the node use.
    pub fn plane(&self) -> &Arc<ControlPlane> {
        &self.plane
    }
}

/// The sessions that the node's last process left, both living and dead.
fn inherited(sessions: &Sessions) -> HashSet<Caller> {
    let all = sessions.living().into_iter().chain(sessions.dying());
    all.map(|session| caller_of(sessions, session)).collect()
}

fn no_node(node: u16) -> Reply {
    Reply::Refused(Refused::new(Code::Other, format!("there is no node {node}")))
}

/// The caller under which a session asks for connections.
fn caller_of(sessions: &Sessions, session: SessionId) -> Caller {
    match sessions.is_workers(session) {
        true => Caller::Worker(session),
        false => Caller::Session(session),
    }
}

impl Drop for ControlThreads {
    fn drop(&mut self) {
        // The connections end before another node may take this process for gone.
        self.plane.registry.close();
        drop(self.listener.take());
        for queue in &self.plane.jobs {
            // A worker that has ended already does not need the job.
            let _ = queue.send(Job::Stop);
        }
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                tracing::error!("a thread of the control plane had panicked");
            }
        }
    }
}

impl ControlPlane {
    /// Sets the scrubber that is told when a session was fenced.
    pub fn set_scrubber(&self, scrubber: ScrubberHandle) {
        // The value is set once, by the node that starts both.
        let _ = self.scrubber.set(scrubber);
        self.wake_workers();
    }

    /// Has a connection let in, and waits for it. The node's own scrubber uses this.
    ///
    /// # Errors
    /// The refusal.
    pub fn connect_own(&self, caller: Caller, ask: Connect) -> Result<serde_json::Value, Refused> {
        let (sender, answer) = mpsc::channel();
        // If the caller has given up, the receiver is gone.
        self.enqueue(caller, ask, Box::new(move |reply| drop(sender.send(reply))));
        match answer.recv() {
            Ok(Reply::Connected { answer }) => Ok(answer),
            Ok(Reply::Refused(refused)) => Err(refused),
            _ => Err(Refused::new(Code::Away, "the node stops")),
        }
    }

    /// Has a connection let in. `reply` is called with the answer, and the caller does not wait.
    pub fn enqueue(&self, caller: Caller, ask: Connect, reply: Box<dyn FnOnce(Reply) + Send>) {
        match self.jobs.get(ask.node as usize) {
            // A worker that has ended drops the job, because the node stops.
            Some(queue) => drop(queue.send(Job::Connect { caller, ask, reply })),
            None => reply(no_node(ask.node)),
        }
    }

    /// Asks the workers of this node.
    fn ask_own(&self, question: Question) -> Result<Told, Refused> {
        let (sender, told) = mpsc::channel();
        // If the caller has given up, the receiver is gone.
        let answer = Box::new(move |answer| drop(sender.send(answer)));
        let table = question.table;
        if !self.inspector.get().is_some_and(|inspector| inspector.ask(question, answer)) {
            let text = format!("table {table} has no such workers there");
            return Err(Refused::new(Code::Other, text));
        }
        let told = told.recv_timeout(ASK_TIMEOUT);
        told.map_err(|_| Refused::new(Code::Busy, "its workers have too much to do to tell"))
    }

    /// Sets the inspector by which other nodes ask this node's workers.
    pub fn set_inspector(&self, inspector: Inspector) {
        // The value is set once, by the node that starts both.
        let _ = self.inspector.set(inspector);
    }

    /// The session that was let in from a slot of a node to a table, for the table's workers.
    pub fn holder(&self, table: usize, node: u16, slot: u32) -> Option<Holder> {
        self.registry.holder(table, node, slot)
    }

    /// The memory of all nodes, as the node's workers have it.
    pub fn latest_memory(&self) -> &Arc<LatestMemory> {
        &self.latest_memory
    }

    /// Publishes the memory of all nodes after a node came up for the first time, or came back.
    fn publish_memory(&self) {
        let known = self.members.known();
        if known.iter().any(Option::is_none) {
            return;
        }
        match ClusterMemory::join(known, self.members.own()) {
            Ok(memory) => self.latest_memory.publish(Arc::new(memory)),
            // The node's clients get the same error.
            Err(error) => tracing::error!(%error, "the nodes do not make a cluster"),
        }
    }

    fn wake_workers(&self) {
        for queue in &self.jobs {
            let _ = queue.send(Job::Wake);
        }
    }

    /// Writes down that a client may be connected to a node from now on.
    ///
    /// # Errors
    /// A refusal if the client is ending; then it must not be connected.
    fn touch(&self, node: usize, caller: Caller) -> Result<(), Refused> {
        let mut fences = self.fences();
        let lives = match caller {
            Caller::Session(session) | Caller::Worker(session) => self.sessions.lives(session),
            Caller::Reader { .. } => fences.is_reading(&caller),
        };
        if !lives {
            return Err(Refused::new(Code::NoSuchSession, "the session has ended meanwhile"));
        }
        fences.touch(node, caller);
        Ok(())
    }

    /// The clients that a node has to fence now.
    fn owed(&self, node: usize) -> Vec<Caller> {
        let fences = self.fences();
        let dying = self.sessions.dying().into_iter();
        let dying: Vec<_> = dying.map(|it| caller_of(&self.sessions, it)).collect();
        fences.owed(node, &dying)
    }

    /// The clients of this node that live.
    fn living(&self) -> HashSet<Caller> {
        let fences = self.fences();
        let sessions = self.sessions.living().into_iter();
        let sessions = sessions.map(|it| caller_of(&self.sessions, it));
        sessions.chain(fences.readers()).collect()
    }

    /// Changes the fences, and frees the slots of sessions that are clear now.
    fn settle<T>(&self, change: impl FnOnce(&mut Fences) -> T) -> T {
        let mut fences = self.fences();
        let outcome = change(&mut fences);
        for session in self.sessions.dying() {
            if fences.is_clear(&caller_of(&self.sessions, session))
                && let Some(how) = self.sessions.reap(session)
                && let Some(scrubber) = self.scrubber.get()
            {
                scrubber.ended(how == SessionEnd::Died);
            }
        }
        outcome
    }

    fn inbound(&self, node: usize) -> MutexGuard<'_, InboundState> {
        self.inbound[node].lock().expect("nothing panics while it is held")
    }

    fn fences(&self) -> MutexGuard<'_, Fences> {
        self.fences.lock().expect("nothing panics while it is held")
    }
}

impl ControlClient for ControlPlane {
    fn member(&self, node: u16) -> Reply {
        self.members.facts(node)
    }

    fn connect(&self, caller: Caller, ask: Connect, replies: Arc<ReplyQueue>, token: u64) {
        if let Caller::Reader { .. } = caller {
            self.fences().enter(caller);
        }
        self.enqueue(caller, ask, Box::new(move |reply| replies.send(token, reply)));
    }

    fn ask(&self, node: u16, question: Question, replies: Arc<ReplyQueue>, token: u64) {
        let reply = Box::new(move |reply| replies.send(token, reply));
        match self.jobs.get(usize::from(node)) {
            // As for a connection, a worker that has ended drops the job.
            Some(queue) => {
                let until = Instant::now() + INSPECT_TIMEOUT;
                drop(queue.send(Job::Ask { question, until, reply }));
            }
            None => reply(no_node(node)),
        }
    }

    fn leave(&self, connection: u64) {
        self.fences().leave(connection);
        self.wake_workers();
    }

    fn sessions_ended(&self) {
        self.settle(|_| ());
        self.wake_workers();
    }
}
