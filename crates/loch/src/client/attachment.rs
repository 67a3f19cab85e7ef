//! A client's attachment to a cluster of processes: the connections to nodes, and their memory.
//! Where memory is shared there is a connection to each node. Over a network there is one to the
//! home node, which tells of the other nodes and has them let the client in.
//!
//! # Invariants
//! 1. The memory is of all nodes, and was checked to fit together.
//! 2. A connection that is replaced lives on in the sessions that were opened over it.
//!
//! # Faults
//! A node's process may go away and come back at any time. Its memory can be used meanwhile. A new
//! session needs the process back; the client then checks whether the node has the same memory as
//! before. If not, the whole cluster is attached anew. Tables that were opened before keep their
//! memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::client::options::ConnectOptions;
use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::{INSPECT_TIMEOUT, RETRY_PAUSE_MAX};
use crate::session::connection::{Admitted, Connection};
use crate::session::opened::AnyMedium;
use crate::session::table_session::{At, TableSession};
use crate::session::wire::{MediumChoice, MemberFacts, Question, Told, Welcome};
use crate::{Error, FabricKind, Result};

/// A cluster that this process is attached to.
pub(crate) struct Attachment {
    home: usize,
    /// The home node's socket, as the user gave it.
    socket: PathBuf,
    options: ConnectOptions,
    /// Never held while a node is waited for: lanes take it.
    state: Mutex<State>,
    /// Held while the attachment is looked at or made anew.
    refreshing: Mutex<()>,
    /// The number of the next endpoint that only reads.
    readers: AtomicU64,
    opened: Mutex<Option<AnyMedium>>,
}

struct State {
    /// By node; `None` for a node that only the home node knows. The home node's connection carries
    /// sessions.
    connections: Vec<Option<Arc<Connection>>>,
    memory: Arc<ClusterMemory>,
    /// Where the nodes listen: their sockets, or over a network their addresses.
    addresses: Vec<PathBuf>,
    /// The fabric over which memory is reached, where it is not shared, and why it is that one.
    medium: Option<MediumChoice>,
    reason: String,
}

impl Attachment {
    /// Attaches to the cluster of the node at `socket`.
    ///
    /// # Errors
    /// As [`Cluster::connect_with`](crate::Cluster::connect_with).
    pub fn new(socket: &Path, options: ConnectOptions) -> Result<Self> {
        let (home, state) = attach(socket, &options)?;
        Ok(Self {
            home,
            socket: socket.into(),
            options,
            state: Mutex::new(state),
            refreshing: Mutex::default(),
            readers: AtomicU64::new(0),
            opened: Mutex::new(None),
        })
    }

    /// The number of the home node.
    pub fn home(&self) -> usize {
        self.home
    }

    /// Where a node listens for other machines; nowhere, if the cluster has fewer nodes by now.
    pub fn address(&self, node: usize) -> String {
        let state = self.state();
        state.addresses.get(node).map(|at| at.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The memory as it is attached now.
    pub fn memory(&self) -> Arc<ClusterMemory> {
        self.state().memory.clone()
    }

    /// Returns whether a node's process is up, as far as its connection shows. Where memory is not
    /// shared the home node is asked.
    pub fn is_up(&self, number: usize) -> bool {
        let connection = self.state().connections[number].clone();
        match connection {
            Some(connection) => connection.is_open(),
            None => self.facts_of(number).is_some_and(|facts| facts.up),
        }
    }

    /// The socket of the first node whose process is not up.
    pub fn down(&self) -> Option<PathBuf> {
        let down = (0..self.nodes()).find(|node| !self.is_up(*node))?;
        Some(self.state().node(down).socket.clone())
    }

    /// Asks the workers of a node. The thread waits.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Refused`].
    pub fn ask(&self, node: usize, question: Question) -> Result<Told> {
        // Where memory is not shared the home node asks the others.
        let by = if self.is_remote() { self.home } else { node };
        let deadline = Instant::now() + self.options.connect_timeout;
        self.line(by, deadline, PATIENCE)?.ask(node, question, INSPECT_TIMEOUT)
    }

    /// Makes a connection of its own to a node, for requests whose answers may take long: the
    /// process's other requests do not wait for them. The arguments are those of
    /// [`Connection::open`].
    ///
    /// # Errors
    /// As [`Connection::open`], and [`Error::ClusterMismatch`].
    pub fn line(&self, node: usize, deadline: Instant, patience: Duration) -> Result<Connection> {
        let member = self.state().node(node).clone();
        let read_only = self.options.read_only;
        let admitted = Connection::open(&member.socket, read_only, deadline, patience)?;
        if admitted.welcome.identity != member.header.identity {
            let problem = "a node has come back with other memory: open the table again";
            return Err(Error::ClusterMismatch { problem: problem.into() });
        }
        Ok(admitted.connection)
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.state().connections.len()
    }

    /// The number of a node's client session slots that are taken, as far as the home node knows.
    pub fn sessions_taken(&self, number: usize) -> Option<u32> {
        Some(self.facts_of(number)?.sessions_taken)
    }

    /// Whether the file of a node's region was deleted, as far as the home node knows.
    pub fn is_deleted(&self, number: usize) -> bool {
        self.facts_of(number).is_some_and(|facts| facts.region_deleted)
    }

    /// The fabric, and why it is that one.
    pub fn fabric(&self) -> (FabricKind, String) {
        let state = self.state();
        match &state.medium {
            None => (FabricKind::Shm, "the nodes share memory".into()),
            Some(MediumChoice::Tcp {}) => (FabricKind::Tcp, state.reason.clone()),
            Some(MediumChoice::Verbs(_)) => (FabricKind::Verbs, state.reason.clone()),
        }
    }

    /// Returns whether memory is reached over a network.
    pub fn is_remote(&self) -> bool {
        self.state().is_remote()
    }

    /// The fabric over which memory is reached. It is opened once, for all tables.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Panics
    /// If memory is shared.
    pub fn medium(&self) -> Result<AnyMedium> {
        let choice = self.state().medium.clone().expect("memory is reached over a network");
        let mut opened = self.opened.lock().expect("nothing panics while it is held");
        if let Some(medium) = &*opened {
            return Ok(medium.clone());
        }
        Ok(opened.insert(AnyMedium::open(&choice)?).clone())
    }

    /// Opens a session for a table. Returns it with the memory in which it is.
    ///
    /// # Errors
    /// As [`Cluster::table`](crate::Cluster::table).
    pub fn table_session(&self) -> Result<(Arc<ClusterMemory>, TableSession)> {
        self.refresh()?;
        if self.options.read_only {
            return Ok(self.reader());
        }
        match self.open_session() {
            // The node has gone since the client last looked.
            Err(Error::NodeUnreachable { .. }) => {
                self.refresh()?;
                self.open_session()
            }
            opened => opened,
        }
    }

    /// For a client that only looks at memory: what it has in place of a session, and the memory.
    pub fn reader(&self) -> (Arc<ClusterMemory>, TableSession) {
        let state = self.state();
        let mark = state.home(self.home).mark();
        let at = match state.medium {
            Some(_) => At::Reader(mark, self.readers.fetch_add(1, Ordering::Relaxed)),
            None => At::Observer(mark),
        };
        (state.memory.clone(), TableSession::new(self.home, state.memory.clone(), at))
    }

    fn open_session(&self) -> Result<(Arc<ClusterMemory>, TableSession)> {
        let (memory, connection, is_remote) = {
            let state = self.state();
            (state.memory.clone(), state.home(self.home).clone(), state.is_remote())
        };
        let home = memory.nodes[self.home].as_ref();
        let sessions = home.map_or(0, Member::client_sessions);
        let wait = self.options.connect_timeout;
        let opened = connection.open_session(sessions, wait)?;
        let at = match is_remote {
            true => At::Fenced(connection, opened, None),
            false => At::Node(connection, opened),
        };
        // If one of these fails, dropping the session ends it.
        let session = TableSession::new(self.home, memory.clone(), at).with_secret()?;
        let session = session.with_lock(opened.slot)?;
        Ok((memory, session))
    }

    /// Connects again to nodes whose processes were away. The home node has to be back, unless the
    /// client needs no session.
    fn refresh(&self) -> Result<()> {
        let _one_at_a_time = self.refreshing.lock().expect("nothing panics while it is held");
        let deadline = Instant::now() + self.options.connect_timeout;
        let needs_home = !self.options.read_only || self.is_remote();
        for number in 0..self.nodes() {
            let connection = self.state().connections[number].clone();
            let kept = match connection {
                Some(connection) if connection.is_open() => true,
                Some(_) if number == self.home && needs_home => self.reopen(number, deadline)?,
                // The memory is used even without the process. But if the process is back, its
                // memory may be new.
                Some(_) => match self.reopen(number, Instant::now()) {
                    Err(Error::NodeUnreachable { .. }) => true,
                    kept => kept?,
                },
                None => {
                    let told = self.facts_of(number);
                    let known = self.state().node(number).header.identity;
                    told.is_none_or(|facts| known == facts.identity)
                }
            };
            if !kept {
                return self.attach_anew(number);
            }
        }
        Ok(())
    }

    /// Connects to a node again. Returns whether the node has the same memory as before.
    fn reopen(&self, number: usize, deadline: Instant) -> Result<bool> {
        let node = self.state().node(number).clone();
        let admitted = open(&node.socket, self.options.read_only, deadline)?;
        if admitted.welcome.identity != node.header.identity {
            return Ok(false);
        }
        self.state().connections[number] = Some(Arc::new(admitted.connection));
        Ok(true)
    }

    fn attach_anew(&self, number: usize) -> Result<()> {
        let name = self.state().node(number).name.clone();
        tracing::warn!(node = name, "a node has come back with other memory");
        let (home, anew) = attach(&self.socket, &self.options)?;
        if home != self.home {
            let problem = format!("the home node was number {}, is {home}", self.home);
            return Err(Error::ClusterMismatch { problem });
        }
        *self.state() = anew;
        Ok(())
    }

    /// The facts that the home node tells of another node, if it can.
    fn facts_of(&self, number: usize) -> Option<MemberFacts> {
        let home = self.state().home(self.home).clone();
        home.member(number as u16, PATIENCE).ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

impl State {
    fn node(&self, number: usize) -> &Member {
        self.memory.nodes[number].as_ref().expect("all nodes are known: invariant 1")
    }

    fn home(&self, home: usize) -> &Arc<Connection> {
        self.connections[home].as_ref().expect("there is always one to the home node")
    }

    fn is_remote(&self) -> bool {
        self.medium.is_some()
    }
}

/// How long one try at a node may take when no waiting time is left.
const PATIENCE: Duration = Duration::from_millis(500);

fn open(socket: &Path, read_only: bool, deadline: Instant) -> Result<Admitted> {
    Connection::open(socket, read_only, deadline, PATIENCE)
}

/// Attaches to all nodes: first to the one at `socket`, which names the others.
fn attach(socket: &Path, options: &ConnectOptions) -> Result<(usize, State)> {
    let deadline = Instant::now() + options.connect_timeout;
    let socket = std::path::absolute(socket).map_err(Error::os("resolve", socket))?;
    let (connection, welcome, mapped) =
        open(&socket, options.read_only, deadline)?.map(options.read_only)?;
    let home = welcome.node as usize;
    // The stand-in for a device in tests is no other build's.
    let lacks_verbs = !cfg!(any(test, feature = "verbs"));
    if lacks_verbs && matches!(welcome.medium, Some(MediumChoice::Verbs(_))) {
        return Err(Error::config(
            "fabric",
            format!(
                "the node at {} needs verbs, and this build has no verbs backend: build Loch \
                     with the feature `verbs`",
                socket.display()
            ),
        ));
    }
    if home >= welcome.cluster.len() {
        return Err(Error::ClusterMismatch {
            problem: format!(
                "the node at {} says it is number {home} of {}",
                socket.display(),
                welcome.cluster.len()
            ),
        });
    }
    let home_connection = Arc::new(connection);
    let mut connections = Vec::with_capacity(welcome.cluster.len());
    let mut nodes = Vec::with_capacity(welcome.cluster.len());
    for (number, theirs) in welcome.cluster.iter().enumerate() {
        let (connection, member) = if number == home {
            (Some(home_connection.clone()), mapped.clone())
        } else if welcome.medium.is_some() {
            (None, ask_home_for(&home_connection, number, theirs, deadline)?)
        } else {
            let (connection, _, mapped) =
                open(theirs, options.read_only, deadline)?.map(options.read_only)?;
            (Some(Arc::new(connection)), mapped)
        };
        if let Some(region) = member.mapped().filter(|_| options.populate) {
            region.populate();
        }
        connections.push(connection);
        nodes.push(Some(member));
    }
    let memory = Arc::new(ClusterMemory::join(nodes, home)?);
    let Welcome { cluster: addresses, medium, reason, .. } = welcome;
    Ok((home, State { connections, memory, addresses, medium, reason }))
}

/// Asks the home node for the facts of another node until it knows them.
fn ask_home_for(
    home: &Connection,
    number: usize,
    address: &Path,
    deadline: Instant,
) -> Result<Member> {
    loop {
        let patience = PATIENCE.max(deadline.saturating_duration_since(Instant::now()));
        match home.member(number as u16, patience) {
            Ok(facts) => return Member::of_facts(&facts, address),
            Err(Error::NodeUnreachable { remedy, .. })
                if !home.is_open() || Instant::now() + RETRY_PAUSE_MAX > deadline =>
            {
                return Err(Error::NodeUnreachable { socket: address.into(), remedy });
            }
            Err(Error::NodeUnreachable { .. }) => (),
            Err(error) => return Err(error),
        }
        std::thread::sleep(RETRY_PAUSE_MAX);
    }
}
