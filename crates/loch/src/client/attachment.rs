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
    state: Mutex<State>,
    /// The number of the next endpoint that only reads.
    readers: AtomicU64,
    opened: Mutex<Option<AnyMedium>>,
}

pub(super) struct State {
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
            readers: AtomicU64::new(0),
            opened: Mutex::new(None),
        })
    }

    /// The number of the home node.
    pub fn home(&self) -> usize {
        self.home
    }

    /// Where a node listens for other machines.
    pub fn address(&self, node: usize) -> String {
        self.state().addresses[node].to_string_lossy().into_owned()
    }

    /// The memory as it is attached now.
    pub fn memory(&self) -> Arc<ClusterMemory> {
        self.state().memory.clone()
    }

    /// Returns whether a node's process is up, as far as its connection shows.
    pub fn is_up(&self, number: usize) -> bool {
        let state = self.state();
        match &state.connections[number] {
            Some(connection) => connection.is_open(),
            None => state.facts_of(self.home, number).is_some_and(|facts| facts.up),
        }
    }

    /// The socket of the first node whose process is not up.
    pub fn down(&self) -> Option<PathBuf> {
        let nodes = self.state().connections.len();
        let down = (0..nodes).find(|node| !self.is_up(*node))?;
        Some(self.state().node(down).socket.clone())
    }

    /// Asks the workers of a node.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Refused`].
    pub fn ask(&self, node: usize, question: Question) -> Result<Told> {
        let connection = {
            let mut state = self.state();
            // Where memory is not shared the home node asks the others.
            let by = if state.is_remote() { self.home } else { node };
            if !state.connections[by].as_ref().is_some_and(|it| it.is_open()) {
                let deadline = Instant::now() + self.options.connect_timeout;
                if !self.reopen(&mut state, by, deadline)? {
                    let problem = "a node has come back with other memory: open the table again";
                    return Err(Error::ClusterMismatch { problem: problem.into() });
                }
            }
            state.connections[by].clone().expect("it was just made")
        };
        connection.ask(node, question, INSPECT_TIMEOUT)
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.state().connections.len()
    }

    /// The number of a node's client session slots that are taken, as far as the home node knows.
    pub fn sessions_taken(&self, number: usize) -> Option<u32> {
        let state = self.state();
        Some(state.facts_of(self.home, number)?.sessions_taken)
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
        let mut state = self.state();
        self.refresh(&mut state)?;
        if self.options.read_only {
            return Ok((state.memory.clone(), self.observer(&state)));
        }
        let table_session = match self.open_session(&state) {
            // The node has gone since the client last looked.
            Err(Error::NodeUnreachable { .. }) => {
                self.refresh(&mut state)?;
                self.open_session(&state)?
            }
            opened => opened?,
        };
        Ok((state.memory.clone(), table_session))
    }

    /// For a client that only looks at memory: what it has in place of a session, and the memory.
    pub fn reader(&self) -> (Arc<ClusterMemory>, TableSession) {
        let state = self.state();
        (state.memory.clone(), self.observer(&state))
    }

    /// For a client that only reads: what it has in place of a session.
    fn observer(&self, state: &State) -> TableSession {
        let home = state.home(self.home);
        let at = match state.medium {
            Some(_) => At::Reader(home.clone(), self.readers.fetch_add(1, Ordering::Relaxed)),
            None => At::Observer(home.mark()),
        };
        TableSession::new(self.home, state.memory.clone(), at)
    }

    fn open_session(&self, state: &State) -> Result<TableSession> {
        let (memory, connection) = (state.memory.clone(), state.home(self.home).clone());
        let home = state.memory.nodes[self.home].as_ref();
        let sessions = home.map_or(0, Member::client_sessions);
        let (opened, lock) = connection.open_session(sessions, self.options.connect_timeout)?;
        let at = match state.medium {
            None => At::Node(connection, opened),
            Some(_) => At::Fenced(connection, opened, None),
        };
        // If one of these fails, dropping the session ends it.
        let session = TableSession::new(self.home, memory, at).with_secret()?;
        if lock { session.with_lock(opened.slot) } else { Ok(session) }
    }

    /// Connects again to nodes whose processes were away. The home node has to be back, unless the
    /// client needs no session.
    fn refresh(&self, state: &mut State) -> Result<()> {
        let deadline = Instant::now() + self.options.connect_timeout;
        for number in 0..state.connections.len() {
            let kept = match &state.connections[number] {
                Some(connection) if connection.is_open() => true,
                Some(_)
                    if number == self.home && (!self.options.read_only || state.is_remote()) =>
                {
                    self.reopen(state, number, deadline)?
                }
                // The memory is used even without the process. But if the process is back, its
                // memory may be new.
                Some(_) => match self.reopen(state, number, Instant::now()) {
                    Err(Error::NodeUnreachable { .. }) => true,
                    kept => kept?,
                },
                None => {
                    let told = state.facts_of(self.home, number);
                    told.is_none_or(|facts| state.node(number).header.identity == facts.identity)
                }
            };
            if !kept {
                return self.attach_anew(state, number);
            }
        }
        Ok(())
    }

    /// Connects to a node again. Returns whether the node has the same memory as before.
    pub(super) fn reopen(
        &self,
        state: &mut State,
        number: usize,
        deadline: Instant,
    ) -> Result<bool> {
        let node = state.node(number);
        let admitted = open(&node.socket, self.options.read_only, deadline)?;
        if admitted.welcome.identity != node.header.identity {
            return Ok(false);
        }
        state.connections[number] = Some(Arc::new(admitted.connection));
        Ok(true)
    }

    fn attach_anew(&self, state: &mut State, number: usize) -> Result<()> {
        let name = &state.node(number).name;
        tracing::warn!(node = name, "a node has come back with other memory");
        let (home, anew) = attach(&self.socket, &self.options)?;
        if home != self.home {
            let problem = format!("the home node was number {}, is {home}", self.home);
            return Err(Error::ClusterMismatch { problem });
        }
        *state = anew;
        Ok(())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

impl State {
    fn node(&self, number: usize) -> &Member {
        self.memory.nodes[number].as_ref().expect("all nodes are known: invariant 1")
    }

    pub(super) fn home(&self, home: usize) -> &Arc<Connection> {
        self.connections[home].as_ref().expect("there is always one to the home node")
    }

    fn is_remote(&self) -> bool {
        self.medium.is_some()
    }

    /// The facts that the home node tells of another node, if it can.
    fn facts_of(&self, home: usize, number: usize) -> Option<MemberFacts> {
        self.home(home).member(number as u16, PATIENCE).ok()
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
