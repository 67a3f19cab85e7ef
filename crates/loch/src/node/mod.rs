//! The node: owns memory, and lets clients attach to it.
//!
//! Two threads, both asleep unless there is something to do: one answers at the socket
//! ([`server`]), one puts in order what dead clients left ([`scrubber`]). Neither takes part in what
//! clients do with the tables.
//!
//! # Faults
//! A node that is killed leaves its region and its socket. Clients go on with the tables they have;
//! the next start takes both over, keeps the sessions of processes that live and ends the others'.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod region;
pub(crate) mod scrubber;
pub(crate) mod sessions;

mod admission;
mod conversation;
mod lock;
mod server;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use loch_fabric::shm::Pages;

use crate::connection::Connection;
use crate::limits::{CLOSE_TIMEOUT, FRAME_BYTES_MAX};
use crate::memory::{Mapped, Memory};
use crate::plan::NodePlan;
use crate::wire::{self, PROTOCOL, Reply, Welcome};
use crate::{Error, NodeConfig};

use admission::Door;
use region::Owned;
use scrubber::{Attach, Scrubber};
use server::{Counter, Server, StopSwitch};
use sessions::Sessions;

/// A running node. Dropping it stops it in an orderly way, as [`Node::stop`].
///
/// ```
/// use loch::{ByteSize, Cluster, Node, NodeConfig};
/// let dir = tempfile::tempdir()?;
/// let config = NodeConfig {
///     socket: dir.path().join("loch.sock"),
///     region: Some(dir.path().join("loch.region")),
///     memory: ByteSize::new(16 << 20),
///     ..NodeConfig::default()
/// };
/// let node = Node::start(config.clone())?;
/// let table = Cluster::connect(node.socket())?.table("default")?;
/// table.put(b"key", b"value")?;
/// node.stop();
///
/// // Clients go on without the process, and the next one has all data.
/// assert!(table.contains(b"key")?);
/// let node = Node::start(config)?;
/// assert!(Cluster::connect(node.socket())?.table("default")?.contains(b"key")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Node {
    socket: PathBuf,
    ephemeral: bool,
    warm: bool,
    pages: Pages,
    stop: Arc<StopSwitch>,
    server: Option<JoinHandle<Owned>>,
    scrubber: Option<Scrubber>,
}

impl Node {
    /// Starts a node: makes its region, or takes over the one that is there with all its data, and
    /// listens at its socket.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NoSuchEngine`]; [`Error::SocketInUse`], [`Error::RegionInUse`];
    /// [`Error::NoSpace`]; [`Error::RegionMismatch`], [`Error::RegionDamaged`] (the file is left as
    /// it is).
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        let plan = NodePlan::new(&config)?;
        region::check_space(&plan.region, plan.plan.header.region_bytes)?;
        plan.plan.check_use()?;
        // The socket comes first: should it be another node's, its region is not touched. Whoever
        // connects already waits until the region is there.
        let door = Door::open(&plan.socket)?;
        let region = region::acquire(&plan.region, &plan.plan)?;
        let pages = populate(&region);
        Self::serve(&config, plan, door, region, pages)
    }

    fn serve(
        config: &NodeConfig,
        plan: NodePlan,
        door: Door,
        region: Owned,
        pages: Pages,
    ) -> Result<Self, Error> {
        let mapped = read(&config.name, &plan.socket, &region)?;
        let welcome = welcome(&mapped, &plan.cluster)?;
        let (sessions, freed) = Sessions::restore(&mapped);
        let sessions = Arc::new(sessions);
        tracing::info!(
            name = config.name,
            socket = %plan.socket.display(),
            node = welcome.node,
            nodes = welcome.nodes,
            warm = region.warm,
            sessions_kept = mapped.client_sessions_taken(),
            sessions_freed = freed,
            "the node starts"
        );
        let os = |action| Error::os(action, &plan.socket);
        let scrubber = Scrubber::start(
            mapped.header.node as usize,
            sessions.clone(),
            attach_peers(mapped, plan.cluster),
        )
        .map_err(os("start a thread for"))?;
        let warm = region.warm;
        if warm {
            scrubber.bell().ended(freed > 0);
        }
        let stop =
            Arc::new(StopSwitch::new().map_err(Error::os("make an event for", &plan.socket))?);
        let counter = Counter { welcome, region, sessions, bell: scrubber.bell() };
        let server = Server::new(counter, door, stop.clone())?;
        let server = std::thread::Builder::new()
            .name("loch-node".into())
            .spawn(move || server.run())
            .map_err(os("start a thread for"))?;
        Ok(Self {
            socket: plan.socket.clone(),
            ephemeral: config.ephemeral,
            warm,
            pages,
            stop,
            server: Some(server),
            scrubber: Some(scrubber),
        })
    }

    /// The socket at which clients attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether it took over a region that was there, with all its data.
    pub fn is_warm(&self) -> bool {
        self.warm
    }

    /// What pages back its region.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Stops in an orderly way: the socket file is removed, the region file stays unless the node
    /// is ephemeral. Clients go on with the tables they have.
    pub fn stop(self) {}

    fn shut_down(&mut self) {
        self.stop.stop();
        let owned = self.server.take().map(JoinHandle::join);
        drop(self.scrubber.take());
        match owned {
            Some(Ok(owned)) if self.ephemeral => region::remove(&owned),
            Some(Err(_)) => tracing::error!("the node's thread had panicked"),
            _ => (),
        }
        tracing::info!(socket = %self.socket.display(), "the node has stopped");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Enters the region's pages, so that no client's first access waits for the kernel to do it.
fn populate(region: &Owned) -> Pages {
    let begun = Instant::now();
    let pages = region.region.populate();
    tracing::info!(
        region = %region.path.display(),
        bytes = region.region.len(),
        ?pages,
        took_ms = begun.elapsed().as_millis() as u64,
        "the region is mapped"
    );
    pages
}

fn read(name: &str, socket: &Path, owned: &Owned) -> Result<Mapped, Error> {
    let region = owned.region.clone();
    Mapped::read(name.into(), socket.into(), region)
        .map_err(|error| Error::RegionDamaged { path: owned.path.clone(), what: error.to_string() })
}

fn welcome(mapped: &Mapped, cluster: &[PathBuf]) -> Result<Welcome, Error> {
    let welcome = Welcome {
        protocol: PROTOCOL,
        name: mapped.name.clone(),
        node: mapped.header.node,
        nodes: mapped.header.nodes,
        cluster: cluster.to_vec(),
        region_bytes: mapped.header.region_bytes,
        identity: mapped.header.identity,
        sessions: mapped.client_sessions(),
    };
    let bytes = wire::encode(&Reply::Welcome(welcome.clone())).len();
    if bytes > FRAME_BYTES_MAX {
        let problem = format!("the sockets' paths are too long: {bytes} bytes as a message");
        return Err(Error::config("cluster", problem));
    }
    Ok(welcome)
}

/// How the scrubber comes by the memory of the other nodes: by asking them, every time, for one may
/// have come back with other memory. What did not change is not mapped anew, and the memory of a
/// node whose process is down is as good as ever.
fn attach_peers(own: Mapped, cluster: Vec<PathBuf>) -> Attach {
    let home = own.header.node as usize;
    let mut known: Vec<Option<Mapped>> = vec![None; cluster.len()];
    known[home] = Some(own);
    Box::new(move || {
        let others = cluster.iter().enumerate().filter(|(n, _)| *n != home);
        for (number, socket) in others {
            match Connection::open(socket, false, Instant::now(), CLOSE_TIMEOUT) {
                Ok(admitted) => {
                    let identity = admitted.welcome.identity;
                    let same = |known: &Mapped| known.header.identity == identity;
                    if !known[number].as_ref().is_some_and(same) {
                        known[number] = Some(admitted.map(false)?.2);
                    }
                }
                Err(error) => tracing::debug!(%error, "a node of the cluster is down"),
            }
        }
        Memory::join(known.clone(), home).map(Arc::new)
    })
}
