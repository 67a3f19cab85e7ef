//! The memory of all nodes, as the workers of one node have it. It is attached when all nodes have
//! come up once, and again when a node comes back with other memory.
//!
//! A thread connects to the other nodes and then sleeps on the connections, which end when a node's
//! process does. At rest the thread uses no CPU.
//!
//! # Faults
//! The thread connects to a node that is down again and again, after ever longer pauses. Its memory
//! stays usable meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loch_fabric::shm::Bell;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};

use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::{CLOSE_TIMEOUT, NEIGHBOUR_PAUSE, NEIGHBOUR_PAUSE_MAX};
use crate::session::connection::Connection;
use crate::session::slot::incarnation_in;
use crate::{Error, Result};

/// The memory of all nodes, once it is known.
#[derive(Default)]
pub(crate) struct LatestMemory {
    /// The number counts how often the memory has changed.
    state: Mutex<(u64, Option<Arc<ClusterMemory>>)>,
    changed: Condvar,
    /// The bells of the workers, which look for other memory when they are rung.
    bells: Mutex<Vec<Bell>>,
}

impl LatestMemory {
    /// Makes memory that never changes.
    pub fn fixed(memory: Arc<ClusterMemory>) -> Self {
        let latest_memory = Self::default();
        latest_memory.publish(memory);
        latest_memory
    }

    /// Returns whether the memory of all nodes is known.
    pub fn is_known(&self) -> bool {
        self.state.lock().expect("nothing panics while it is held").1.is_some()
    }

    /// Waits for the memory of all nodes; returns `None` if it is time to stop.
    pub fn wait(&self, stops: impl Fn() -> bool) -> Option<(u64, Arc<ClusterMemory>)> {
        let mut state = self.state.lock().expect("nothing panics while it is held");
        loop {
            if stops() {
                return None;
            }
            if let (number, Some(memory)) = &*state {
                return Some((*number, memory.clone()));
            }
            // A thread that stops does not notify this condition variable.
            let waited = self.changed.wait_timeout(state, NEIGHBOUR_PAUSE_MAX);
            state = waited.expect("nothing panics while it is held").0;
        }
    }

    /// Returns the memory if it has changed since that number.
    pub fn newer_than(&self, number: u64) -> Option<(u64, Arc<ClusterMemory>)> {
        // Workers call this rarely, and the lock is held for a short time only, so it costs
        // nothing.
        let state = self.state.lock().expect("nothing panics while it is held");
        (state.0 > number).then(|| state.1.clone().map(|memory| (state.0, memory))).flatten()
    }

    /// Returns the incarnation of the session in a slot of a node whose memory is mapped.
    pub fn incarnation(&self, node: u16, slot: u32) -> Option<u64> {
        let state = self.state.lock().expect("nothing panics while it is held");
        let node = state.1.as_ref()?.nodes.get(usize::from(node))?.as_ref()?;
        incarnation_in(node, slot)
    }

    /// Publishes memory, if it is other memory than before.
    pub fn publish(&self, memory: Arc<ClusterMemory>) {
        let mut state = self.state.lock().expect("nothing panics while it is held");
        if state.1.as_ref().is_some_and(|known| known.identities().eq(memory.identities())) {
            return;
        }
        *state = (state.0 + 1, Some(memory));
        drop(state);
        self.changed.notify_all();
        self.bells().iter().for_each(Bell::ring);
    }

    /// Adds the bell of a worker.
    pub fn add_bell(&self, bell: Bell) {
        self.bells().push(bell);
    }

    fn bells(&self) -> MutexGuard<'_, Vec<Bell>> {
        self.bells.lock().expect("nothing panics while it is held")
    }
}

/// Warns that operations of the node's clients may end as timeouts from now on.
pub(super) fn warn_of_other_memory(back: &Member) {
    tracing::warn!(
        node = back.name,
        socket = %back.socket.display(),
        "a node has come back without its memory: `loch check` shows the losses"
    );
}

/// The thread that attaches the other nodes' memory. Dropping it ends the thread.
pub(crate) struct AttacherThread {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The state of the thread.
struct Attacher {
    home: usize,
    cluster: Vec<PathBuf>,
    known: Vec<Option<Member>>,
    connections: Vec<Option<Connection>>,
    latest_memory: Arc<LatestMemory>,
}

impl AttacherThread {
    /// Starts the thread of node `own`, if the cluster has other nodes. The thread ends when the
    /// returned value is dropped.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn start(
        own: &Member,
        cluster: &[PathBuf],
        latest_memory: Arc<LatestMemory>,
    ) -> Result<Self> {
        let home = usize::from(own.header.node);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(Error::os("make an event for", &own.socket))?);
        let mut known: Vec<_> = cluster.iter().map(|_| None).collect();
        known[home] = Some(own.clone());
        let connections = cluster.iter().map(|_| None).collect();
        let mut attacher =
            Attacher { home, cluster: cluster.into(), known, connections, latest_memory };
        if cluster.len() == 1 {
            attacher.join();
            return Ok(Self { stop, thread: None });
        }
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("loch-attacher".into())
            .spawn(move || attacher.run(&stopped))
            .map_err(Error::os("start a thread for", &own.socket))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for AttacherThread {
    fn drop(&mut self) {
        // The write fails only if the count is full, and then the thread has been woken already.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that attaches the other nodes had panicked");
        }
    }
}

impl Attacher {
    fn run(&mut self, stop: &OwnedFd) {
        let mut pause = NEIGHBOUR_PAUSE;
        loop {
            let (all_there, changed) = self.attach_missing();
            if changed {
                self.join();
            }
            pause = if all_there { NEIGHBOUR_PAUSE } else { (pause * 2).min(NEIGHBOUR_PAUSE_MAX) };
            if self.sleep(stop, (!all_there).then_some(pause)) {
                return;
            }
        }
    }

    /// Connects to the nodes to which there is no connection. Returns whether all nodes are up, and
    /// whether a node has other memory than before.
    fn attach_missing(&mut self) -> (bool, bool) {
        let (mut all_there, mut changed) = (true, false);
        for node in 0..self.cluster.len() {
            if node == self.home {
                continue;
            }
            if self.connections[node].as_ref().is_some_and(Connection::is_open) {
                continue;
            }
            self.connections[node] = None;
            match self.attach(node) {
                Ok(other) => changed |= other,
                Err(error) => {
                    tracing::debug!(%error, "a node of the cluster is down");
                    all_there = false;
                }
            }
        }
        (all_there, changed)
    }

    /// Connects to a node. Returns whether it has other memory than before.
    fn attach(&mut self, node: usize) -> Result<bool> {
        let admitted = Connection::open(&self.cluster[node], false, Instant::now(), CLOSE_TIMEOUT)?;
        let identity = admitted.welcome.identity;
        if self.known[node].as_ref().is_some_and(|known| known.header.identity == identity) {
            self.connections[node] = Some(admitted.connection);
            return Ok(false);
        }
        let (connection, _, member) = admitted.map(false)?;
        if self.known[node].is_some() {
            warn_of_other_memory(&member);
        }
        self.known[node] = Some(member);
        self.connections[node] = Some(connection);
        Ok(true)
    }

    /// Publishes the memory of all nodes, if all are known.
    fn join(&mut self) {
        if self.known.iter().any(Option::is_none) {
            return;
        }
        match ClusterMemory::join(self.known.clone(), self.home) {
            Ok(memory) => self.latest_memory.publish(Arc::new(memory)),
            // The node's clients get the same error.
            Err(error) => tracing::error!(%error, "the nodes do not make a cluster"),
        }
    }

    /// Sleeps until a node goes away or a pause is over. Returns whether it is time to stop.
    fn sleep(&self, stop: &OwnedFd, at_most: Option<Duration>) -> bool {
        let connections = self.connections.iter().flatten().map(Connection::stream);
        let streams = std::iter::once(stop.as_fd()).chain(connections);
        let mut watched: Vec<_> =
            streams.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout =
            at_most.map(|time| Timespec::try_from(time).expect("a pause is not that long"));
        // An interrupted call is treated like an event.
        let _ = rustix::event::poll(&mut watched, timeout.as_ref());
        !watched[0].revents().is_empty()
    }
}
