//! A client's attachment to a cluster of processes: one connection to each node, and their memory.
//!
//! # Invariants
//! 1. The memory is of all nodes, and was checked to fit together.
//! 2. A connection that is replaced lives on in the sessions that were opened over it.
//!
//! # Faults
//! A node's process may go away and come back at any time. Its memory can be used all the while; who
//! wants a session needs it back, and then it is looked at whether it has come back with the same
//! memory. If not, the whole cluster is attached anew; tables opened before keep what they have.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::connection::{Admitted, Connection};
use crate::lease::Lease;
use crate::memory::{Mapped, Memory};
use crate::node::sessions::Opened;
use crate::{ConnectOptions, Error};

/// A cluster that this process is attached to.
pub(crate) struct Attachment {
    home: usize,
    /// The home node's socket, as it was given.
    socket: PathBuf,
    options: ConnectOptions,
    state: Mutex<State>,
}

struct State {
    /// By node. The home node's carries sessions.
    connections: Vec<Arc<Connection>>,
    memory: Arc<Memory>,
}

impl Attachment {
    /// Attaches to the cluster of the node at `socket`.
    ///
    /// # Errors
    /// As [`Cluster::connect_with`](crate::Cluster::connect_with).
    pub fn new(socket: &Path, options: ConnectOptions) -> Result<Self, Error> {
        let (home, state) = attach(socket, &options)?;
        Ok(Self { home, socket: socket.into(), options, state: Mutex::new(state) })
    }

    /// The number of the home node.
    pub fn home(&self) -> usize {
        self.home
    }

    /// The memory as it is attached now.
    pub fn memory(&self) -> Arc<Memory> {
        self.state().memory.clone()
    }

    /// Whether a node's process is up, so far as its connection can tell.
    pub fn is_up(&self, number: usize) -> bool {
        self.state().connections[number].is_open()
    }

    /// Opens a session for a table, and says in which memory.
    ///
    /// # Errors
    /// As [`Cluster::table`](crate::Cluster::table).
    pub fn lease(&self) -> Result<(Arc<Memory>, Lease), Error> {
        let mut state = self.state();
        self.refresh(&mut state)?;
        if self.options.read_only {
            let memory = state.memory.clone();
            return Ok((memory.clone(), Lease::observer(self.home, memory)));
        }
        let opened = match self.open_session(&state) {
            // The node has gone since we looked.
            Err(Error::NodeUnreachable { .. }) => {
                self.refresh(&mut state)?;
                self.open_session(&state)?
            }
            opened => opened?,
        };
        let memory = state.memory.clone();
        let connection = state.connections[self.home].clone();
        let lease = Lease::of_node(self.home, memory.clone(), connection, opened);
        Ok((memory, lease))
    }

    fn open_session(&self, state: &State) -> Result<Opened, Error> {
        let home = state.memory.nodes[self.home].as_ref();
        let sessions = home.map_or(0, Mapped::client_sessions);
        let wait = self.options.connect_timeout;
        let (slot, incarnation) = state.connections[self.home].open_session(sessions, wait)?;
        Ok(Opened { slot, incarnation })
    }

    /// Connects again to the nodes whose processes were away. The home node has to be back, unless
    /// no session is wanted of it.
    fn refresh(&self, state: &mut State) -> Result<(), Error> {
        let read_only = self.options.read_only;
        let deadline = Instant::now() + self.options.connect_timeout;
        for number in 0..state.connections.len() {
            if state.connections[number].is_open() {
                continue;
            }
            let node = state.memory.nodes[number].as_ref().expect("all nodes are mapped");
            let needed = number == self.home && !read_only;
            let admitted = if needed {
                open(&node.socket, read_only, deadline)?
            } else {
                // It is used without its process, but should it be there, its memory may be new.
                match open(&node.socket, read_only, Instant::now()) {
                    Ok(admitted) => admitted,
                    Err(Error::NodeUnreachable { .. }) => continue,
                    Err(error) => return Err(error),
                }
            };
            if admitted.welcome.identity != node.header.identity {
                tracing::warn!(node = node.name, "a node has come back with other memory");
                let (home, anew) = attach(&self.socket, &self.options)?;
                if home != self.home {
                    let problem = format!("the home node was number {}, is {home}", self.home);
                    return Err(Error::ClusterMismatch { problem });
                }
                *state = anew;
                return Ok(());
            }
            state.connections[number] = Arc::new(admitted.connection);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

/// How long one try at a node may take when there is no time left to wait for it.
const PATIENCE: Duration = Duration::from_millis(500);

fn open(socket: &Path, read_only: bool, deadline: Instant) -> Result<Admitted, Error> {
    Connection::open(socket, read_only, deadline, PATIENCE)
}

/// Attaches to all nodes: first to the one at `socket`, which names the others.
fn attach(socket: &Path, options: &ConnectOptions) -> Result<(usize, State), Error> {
    let deadline = Instant::now() + options.connect_timeout;
    let socket = std::path::absolute(socket).map_err(Error::os("resolve", socket))?;
    let (connection, welcome, mapped) =
        open(&socket, options.read_only, deadline)?.map(options.read_only)?;
    let home = welcome.node as usize;
    if home >= welcome.cluster.len() {
        return Err(Error::ClusterMismatch {
            problem: format!(
                "the node at {} says it is number {home} of {}",
                socket.display(),
                welcome.cluster.len()
            ),
        });
    }
    let mut first = Some((connection, mapped));
    let mut connections = Vec::with_capacity(welcome.cluster.len());
    let mut nodes = Vec::with_capacity(welcome.cluster.len());
    for (number, theirs) in welcome.cluster.iter().enumerate() {
        let (connection, mapped) = match first.take_if(|_| number == home) {
            Some(home) => home,
            None => {
                let (connection, _, mapped) =
                    open(theirs, options.read_only, deadline)?.map(options.read_only)?;
                (connection, mapped)
            }
        };
        if options.populate {
            mapped.region.populate();
        }
        connections.push(Arc::new(connection));
        nodes.push(Some(mapped));
    }
    let memory = Arc::new(Memory::join(nodes, home)?);
    Ok((home, State { connections, memory }))
}
