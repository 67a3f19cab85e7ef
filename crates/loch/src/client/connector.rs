//! The connections of one client's endpoint to the nodes of a network, which are made again when
//! they break.
//!
//! To be let in by a node takes a request to the home node, which asks that node, and then a
//! connection to its agent. Each of the two may be silent for seconds, so a thread of its own does
//! both. The client's thread installs the connection at its next look, and never waits. An
//! operation that needs a lost node waits in its lane, and all others go on.
//!
//! A client may be left alone after an operation whose verbs were lost with a connection. Then the
//! thread that waits for these verbs in its place looks after its connections
//! ([`Medium::mend_when_left`]).
//!
//! # Invariants
//! 1. A connection takes the place of another only when its home node has ended the passive end of
//!    the other. The endpoint relies on this. A reader's passive ends may live on: no verb of a
//!    reader changes memory.
//! 2. There is one try at a time to connect to a node, however many lanes need it, and after a
//!    failure a pause before the next one, which doubles up to [`RECONNECT_PAUSE_MAX`].
//! 3. An operation waits for a node that was lost a short time ago, and never longer than its
//!    deadline. When a node has been lost for longer than an operation may take, further operations
//!    fail at once, unless a try to connect has just begun.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loch_engines::EngineError;
use loch_engines::epoch::Session;
use loch_fabric::limits::LANES_PAUSE_US_MAX;
use loch_fabric::{Fabric, FabricError, RegionId, RemoteAddr};

use super::aside::Aside;
use super::attachment::Attachment;
use super::net::OpenParams;
use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::{ADMIT_TIMEOUT, RECONNECT_PAUSE, RECONNECT_PAUSE_MAX, RECONNECT_WAIT};
use crate::session::connection::Connection;
use crate::session::medium::{Links, Medium};
use crate::session::wire::{self, SessionSecret};
use crate::{Error, Result};

/// Makes the connections of one client's endpoint.
pub(crate) struct Connector<M: Medium> {
    medium: M,
    attachment: Arc<Attachment>,
    memory: Arc<ClusterMemory>,
    /// The request to every node, without node, memory and offer.
    ask: wire::Connect,
    /// For each kind of connection to a node, whether its WRITEs may get lost.
    kinds: &'static [bool],
    /// How long an operation goes on after it first had to start over.
    timeout: Duration,
    /// By node.
    links: Mutex<Vec<Link<M>>>,
    /// The number of tries under way.
    tries: AtomicUsize,
}

/// The state of connecting to a node.
struct Link<M: Medium> {
    /// Whether there was ever a connection, which may have broken since.
    made: bool,
    /// The try that is under way.
    under_way: Option<Try<M>>,
    /// The outcome of the last try, if it failed.
    failure: Option<Error>,
    /// When the next try may begin, and the pause after it, should it fail.
    due: Instant,
    pause: Duration,
    /// When the connection was first found to lack.
    lost: Option<Instant>,
    /// The connection to the home node's process over which that process had the client let in. A
    /// reader's connections end with it.
    line: Option<Connection>,
}

/// A try to connect to a node.
struct Try<M: Medium> {
    began: Instant,
    work: Aside<Made<M>>,
}

/// A connection of each kind, ready for use.
struct Made<M: Medium> {
    line: Connection,
    dialed: Vec<M::Dialed>,
}

/// The attempts at one operation.
#[derive(Default)]
pub(crate) struct Attempts {
    /// When the first attempt failed for want of a connection.
    since: Option<Instant>,
}

impl<M: Medium> Links<M> for Arc<Connector<M>> {
    /// A process of the home node that has started meanwhile does not know the session's secret
    /// until it is told. No connection shows this, because the client writes its home memory by
    /// stores.
    fn wait(&self, endpoint: &M::Endpoint) {
        self.mend(endpoint);
        if self.has_other_home() {
            let home = self.attachment.home();
            self.begin(&mut self.links()[home], endpoint, home);
        }
        std::thread::yield_now();
    }
}

impl<M: Medium> Connector<M> {
    /// Opens an endpoint for a table, and waits until it is connected to all nodes that can be
    /// reached now.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::NodeUnreachable`] if the home node cannot let the client in.
    pub fn open(
        medium: M,
        attachment: Arc<Attachment>,
        params: OpenParams<'_>,
    ) -> Result<(M::Endpoint, Arc<Self>)> {
        let OpenParams { memory, table, table_session, options, .. } = params;
        let (home, memory) = (attachment.home(), memory.clone());
        let own = memory.nodes[home].as_ref().expect("the home node is known");
        let endpoint = medium.endpoint(own)?;
        if options.far {
            M::go_far(&endpoint);
        }
        let (session, endpoint_number) = table_session.caller();
        let requests = own.parts(table.number).and_then(|parts| parts.requests().cloned());
        if let (Some(requests), Some((slot, _))) = (requests, session) {
            let (area, service) = (requests.area(), requests.area().service());
            let at = requests.base(0).offset() + area.reply_at(slot, 0);
            let at = RemoteAddr::new(RegionId(home as u8), at);
            let bytes = u64::from(service.replies) * u64::from(service.reply_bytes);
            medium.take_replies(&endpoint, at, bytes.try_into().unwrap_or(u32::MAX));
        }
        let ask = wire::Connect {
            session,
            secret: table_session.session().secret().map(|secret| SessionSecret(secret.words())),
            endpoint: endpoint_number,
            node: 0,
            identity: 0,
            table: table.number as u32,
            unreliable: false,
            offer: serde_json::Value::Null,
        };
        let kinds = match M::writes_unreliably(&memory, table.number) {
            true => &[false, true][..],
            false => &[false],
        };
        let timeout = Duration::from_micros(options.operation_timeout_us());
        let links = Mutex::new(memory.nodes.iter().map(|_| Link::new()).collect());
        let tries = AtomicUsize::default();
        let made = Self { medium, attachment, memory, ask, kinds, timeout, links, tries };
        made.open_all(&endpoint)?;
        let made = Arc::new(made);
        let mends = made.clone();
        M::mend_when_left(&endpoint, move |endpoint| mends.mend(endpoint));
        Ok((endpoint, made))
    }

    /// Connects to all nodes at the same time. Without its home node a client can do nothing. Other
    /// nodes are tried again when they are needed.
    fn open_all(&self, endpoint: &M::Endpoint) -> Result<()> {
        let (home, began) = (self.attachment.home(), Instant::now());
        let nodes = self.memory.nodes.len();
        (0..nodes).for_each(|node| self.try_to(endpoint, node));
        self.wait_for(endpoint, home, began + ADMIT_TIMEOUT);
        if !self.links()[home].made {
            return Err(self.why_lost(home));
        }
        let until = began + self.timeout.min(ADMIT_TIMEOUT);
        (0..nodes).for_each(|node| self.wait_for(endpoint, node, until));
        Ok(())
    }

    /// Has the thread wait until a try to connect has ended.
    fn wait_for(&self, endpoint: &M::Endpoint, node: usize, until: Instant) {
        let wait = |one: &Try<M>| one.work.wait(until);
        let link = &mut self.links()[node];
        if let Some(made) = link.under_way.as_ref().and_then(wait) {
            self.end_try(link, endpoint, node, made);
        }
    }

    /// The links. The thread that has them waits for nothing but, while the client is opened, for a
    /// try.
    fn links(&self) -> MutexGuard<'_, Vec<Link<M>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The messages of the endpoint's thread.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn messages(&self, endpoint: &M::Endpoint) -> Result<M::Messages> {
        self.medium.messages(endpoint)
    }

    /// Makes broken connections again, so that the outcome of their verbs is settled, and memory
    /// for which other clients wait is not held back. Never waits.
    pub fn mend(&self, endpoint: &M::Endpoint) {
        self.install_made(endpoint);
        for region in M::broken(endpoint) {
            self.try_to(endpoint, region.0 as usize);
        }
    }

    /// Called after an operation. Returns whether to begin it again, because it lacked a connection
    /// that is there now.
    pub async fn goes_on(
        &self,
        endpoint: &M::Endpoint,
        attempts: &mut Attempts,
        error: Option<&EngineError>,
    ) -> bool {
        let Some(EngineError::Fabric(error)) = error else {
            return false;
        };
        let Some(node) = self.lacking(*error) else {
            return false;
        };
        let is_first = attempts.since.is_none();
        let since = *attempts.since.get_or_insert_with(Instant::now);
        // Another lane may have been faster; a connection that works is not replaced. But the
        // missing connection may be that of the node's worker.
        let mut pauses = !is_first && !self.lacks(endpoint, node);
        let until = Instant::now() + RECONNECT_PAUSE;
        loop {
            if since.elapsed() > self.timeout {
                return false;
            }
            self.mend(endpoint);
            pauses &= Instant::now() < until;
            if self.lacks(endpoint, node) {
                self.try_to(endpoint, node);
                if !self.is_awaited(node) {
                    return false;
                }
            } else if !pauses {
                return true;
            }
            endpoint.pause(LANES_PAUSE_US_MAX).await;
        }
    }

    /// Returns the node to which an operation lacked a connection.
    fn lacking(&self, error: FabricError) -> Option<usize> {
        let region = error.out_of_reach()?;
        Some(region.0 as usize).filter(|node| *node < self.memory.nodes.len())
    }

    /// Returns whether there is no connection to a node.
    fn lacks(&self, endpoint: &M::Endpoint, node: usize) -> bool {
        !self.links()[node].made || M::broken(endpoint).contains(&RegionId(node as u8))
    }

    /// Returns whether an operation may wait for a node (invariant 3).
    fn is_awaited(&self, node: usize) -> bool {
        let link = &self.links()[node];
        let has_begun = |one: &Try<M>| one.began.elapsed() < RECONNECT_WAIT;
        link.lost.is_none_or(|since| since.elapsed() < self.timeout)
            || link.under_way.as_ref().is_some_and(has_begun)
    }

    /// Returns whether the process of the home node is not the one that has let the client in.
    fn has_other_home(&self) -> bool {
        let line = &self.links()[self.attachment.home()].line;
        line.as_ref().is_some_and(|line| !line.is_open())
    }

    /// Begins to connect to a node, unless there is a connection by now: another thread may have
    /// made it.
    fn try_to(&self, endpoint: &M::Endpoint, node: usize) {
        let link = &mut self.links()[node];
        if !link.made || M::broken(endpoint).contains(&RegionId(node as u8)) {
            self.begin(link, endpoint, node);
        }
    }

    /// Begins to connect to a node, unless that is under way, or failed just now.
    fn begin(&self, link: &mut Link<M>, endpoint: &M::Endpoint, node: usize) {
        let began = Instant::now();
        if link.under_way.is_some() || began < link.due {
            return;
        }
        link.lost.get_or_insert(began);
        match self.begin_try(endpoint, node) {
            Ok(work) => {
                link.under_way = Some(Try { began, work });
                self.tries.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => link.fail(node, error),
        }
    }

    /// Begins a try, whose request has a connection to the home node of its own: its answer may
    /// take long.
    fn begin_try(&self, endpoint: &M::Endpoint, node: usize) -> Result<Aside<Made<M>>> {
        let (member, attachment) = (self.member(node).clone(), self.attachment.clone());
        let ask = |unreliable: &bool| {
            let (unreliable, node) = (*unreliable, node as u16);
            let offer = self.medium.offer(endpoint, &member, unreliable)?;
            let identity = member.header.identity;
            Ok(wire::Connect { node, identity, unreliable, offer, ..self.ask.clone() })
        };
        let asks = self.kinds.iter().map(ask).collect::<Result<Vec<_>>>()?;
        Aside::begin(move || {
            let (home, address) = (attachment.home(), attachment.address(node));
            let line = attachment.line(home, Instant::now(), ADMIT_TIMEOUT)?;
            let dial = |ask| {
                let answer = line.connect(ask, ADMIT_TIMEOUT)?;
                M::dial(&member, &address, answer, ADMIT_TIMEOUT)
            };
            let dialed = asks.into_iter().map(dial).collect::<Result<_>>();
            let dialed = dialed.map_err(|error| match error {
                // The user knows the home node; the error has to name the other node.
                Error::NodeUnreachable { remedy, .. } => {
                    Error::NodeUnreachable { socket: member.socket.clone(), remedy }
                }
                error => error,
            })?;
            Ok(Made { line, dialed })
        })
    }

    /// Uses the connections that have been made since the last look.
    fn install_made(&self, endpoint: &M::Endpoint) {
        // Only a hint: the number is kept by the threads that have the links.
        if self.tries.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (node, link) in self.links().iter_mut().enumerate() {
            let take = |one: &Try<M>| one.work.take();
            if let Some(made) = link.under_way.as_ref().and_then(take) {
                self.end_try(link, endpoint, node, made);
            }
        }
    }

    fn end_try(
        &self,
        link: &mut Link<M>,
        endpoint: &M::Endpoint,
        node: usize,
        made: Result<Made<M>>,
    ) {
        let used = made.and_then(|Made { line, dialed }| {
            let install = |one| self.medium.install(endpoint, self.member(node), one);
            dialed.into_iter().try_for_each(install).map(|()| line)
        });
        self.tries.fetch_sub(1, Ordering::Relaxed);
        link.under_way = None;
        match used {
            Ok(line) => {
                if link.made {
                    self.leaves(endpoint);
                }
                // No other line is of use: a session's connections do not end with theirs.
                let is_kept = self.ask.session.is_none() || node == self.attachment.home();
                *link = Link { made: true, line: is_kept.then_some(line), ..Link::new() };
            }
            Err(error) => link.fail(node, error),
        }
    }

    /// Notes for which nobody waited may have been lost with a connection: the scrubber finds what
    /// they were about.
    fn leaves(&self, endpoint: &M::Endpoint) {
        if let Some((slot, incarnation)) = self.ask.session {
            let home = RegionId(self.attachment.home() as u8);
            Session::new(home, slot, incarnation).leaves(endpoint);
        }
    }

    fn member(&self, node: usize) -> &Member {
        self.memory.nodes[node].as_ref().expect("an attached client knows all nodes")
    }

    /// Explains an error that was caused by a missing connection.
    pub fn explain(&self, error: FabricError) -> Option<Error> {
        Some(self.why_lost(self.lacking(error)?))
    }

    /// The error of a node to which there is no connection, if there is one.
    pub fn missing_node(&self, endpoint: &M::Endpoint) -> Option<Error> {
        let home = self.attachment.home();
        let is_missing =
            |node: &usize| self.lacks(endpoint, *node) || (*node == home && self.has_other_home());
        Some(self.why_lost((0..self.memory.nodes.len()).find(is_missing)?))
    }

    fn why_lost(&self, node: usize) -> Error {
        let known = self.links()[node].failure.clone();
        known.unwrap_or_else(|| Error::NodeUnreachable {
            socket: self.member(node).socket.clone(),
            remedy: "the connection to it broke, and it does not answer".into(),
        })
    }
}

impl<M: Medium> Link<M> {
    fn new() -> Self {
        Self {
            made: false,
            under_way: None,
            failure: None,
            due: Instant::now(),
            pause: RECONNECT_PAUSE,
            lost: None,
            line: None,
        }
    }

    /// A try has failed.
    fn fail(&mut self, node: usize, error: Error) {
        tracing::debug!(node, %error, "a node cannot be connected");
        self.failure = Some(error);
        self.due = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(RECONNECT_PAUSE_MAX);
    }
}
