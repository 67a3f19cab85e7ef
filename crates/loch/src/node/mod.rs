//! A node owns memory and lets clients attach to it.
//!
//! A node has two threads, which sleep unless there is something to do. One answers at the socket
//! ([`server`]), the other puts in order what dead clients left ([`scrubber`]). Neither thread
//! takes part in the operations on the tables. If the engine of a table needs workers, the node has
//! their threads ([`workers`]) and a thread that attaches the memory of the other nodes
//! ([`attacher`]). Where memory is reached over a network the node has a control plane
//! ([`control`]) and a fabric ([`network`]).
//!
//! # Faults
//! A node that is killed leaves its region and its socket. Clients go on with the tables they have.
//! The next start takes region and socket over, keeps the sessions of processes that live, and ends
//! the sessions of all others.

pub(crate) mod attacher;
mod expiry;
#[cfg(feature = "functions")]
pub(crate) mod functions;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod host_memory;
pub(crate) mod region;
pub(crate) mod scrubber;
pub(crate) mod sessions;
pub(crate) mod workers;

mod client_connection;
pub(crate) mod control;
pub(crate) mod control_client;
mod listener;
mod lock;
mod network;
pub(crate) mod plan;
mod preparing;
mod registered;
mod server;
pub(crate) mod storage;

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use loch_fabric::ForkMark;
use loch_fabric::shm::Pages;

use crate::layout::memory::{ClusterMemory, Member};
use crate::layout::plan::{check_private, host_bytes};
use crate::limits::{CLOSE_TIMEOUT, FRAME_BYTES_MAX};
use crate::session::connection::{Connection, mark};
use crate::session::opened::Chosen;
use crate::session::wire::{self, PROTOCOL, Reply, Welcome};
use crate::{Error, NodeConfig, Result};

use attacher::{AttacherThread, LatestMemory, warn_of_other_memory};
use control_client::ControlClient;
use listener::Listener;
use network::NodeNetwork;
use plan::NodePlan;
use preparing::Progress;
use region::OwnedRegion;
use scrubber::{ClusterAccess, MappedAccess, Scrubber};
use server::{NodeState, Server, StopSwitch};
use sessions::Sessions;
use workers::transport::MappedTransport;
use workers::{Inspector, Workers, WorkersStatus};

/// A running node. Dropping it stops it in an orderly way, as [`Node::stop`]. In a process that was
/// forked from the node's, dropping it does nothing.
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
    server: Option<JoinHandle<OwnedRegion>>,
    services: Option<NodeServices>,
    /// A child process inherits this value but not the threads, and must not stop them.
    mark: ForkMark,
}

/// Tells how a node ended. The watch may outlive the node.
#[derive(Clone)]
pub struct NodeWatch {
    failure: Option<Arc<WorkersStatus>>,
}

/// The parts of a node besides its server.
struct NodeServices {
    own: Member,
    sessions: Arc<Sessions>,
    /// The workers end before the parts they need.
    workers: Option<(Workers, Option<AttacherThread>)>,
    scrubber: Scrubber,
    network: Option<NodeNetwork>,
}

impl Node {
    /// Starts a node: makes its region, or takes over the one that is there with all its data, and
    /// listens at its socket.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NoSuchEngine`]; [`Error::SocketInUse`], [`Error::RegionInUse`];
    /// [`Error::NoSpace`], [`Error::HostMemory`], [`Error::NoMemory`]; [`Error::NotPrivate`],
    /// [`Error::RegionMismatch`], [`Error::RegionDamaged`] (the region is left as it is).
    pub fn start(config: NodeConfig) -> Result<Self> {
        Self::start_unless(config, Arc::default())
    }

    /// Like [`Node::start`], but gives up as soon as `stop` is set while the node prepares its
    /// memory, which takes a second for some gigabytes and much longer on a slow host.
    ///
    /// # Errors
    /// As [`Node::start`], and [`Error::StartStopped`].
    pub fn start_unless(config: NodeConfig, stop: Arc<AtomicBool>) -> Result<Self> {
        let mut plan = NodePlan { stop, ..NodePlan::new(&config)? };
        if let Some(network) = plan.network.take() {
            return network::start_node(&config, &plan, network);
        }
        let (listener, region, pages) = prepare(&plan)?;
        let own = read(&config.name, &plan.socket, &region)?;
        let services = NodeServices::shared(own, &plan, region.warm)?;
        Self::serve(&config, &plan, listener, region, pages, services)
    }

    fn serve(
        config: &NodeConfig,
        plan: &NodePlan,
        listener: Listener,
        region: OwnedRegion,
        pages: Pages,
        services: NodeServices,
    ) -> Result<Self> {
        let welcome = welcome(&services, &plan.cluster)?;
        tracing::info!(
            name = config.name,
            socket = %plan.socket.display(),
            node = welcome.node,
            nodes = welcome.nodes,
            warm = region.warm,
            "the node starts"
        );
        let warm = region.warm;
        let mark = mark()?;
        let stop =
            Arc::new(StopSwitch::new().map_err(Error::os("make an event for", &plan.socket))?);
        let state = NodeState {
            welcome,
            region,
            sessions: services.sessions.clone(),
            scrubber: services.scrubber.handle(),
            inspector: services.inspector(),
            control: services.control(),
        };
        let server = Server::new(state, listener, stop.clone())?;
        if let Some((workers, _)) = &services.workers {
            // A client that waits for a worker has to learn that the worker is gone.
            let stop = stop.clone();
            workers.status().set_alarm(move || stop.stop());
        }
        let server = std::thread::Builder::new()
            .name("loch-node".into())
            .spawn(move || server.run())
            .map_err(Error::os("start a thread for", &plan.socket))?;
        Ok(Self {
            socket: plan.socket.clone(),
            ephemeral: plan.ephemeral,
            warm,
            pages,
            stop,
            server: Some(server),
            services: Some(services),
            mark,
        })
    }

    /// The socket at which clients attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns whether the node took over a region that was there, with all its data.
    pub fn is_warm(&self) -> bool {
        self.warm
    }

    /// The pages that back the node's region.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Bytes of the node's region. Some engines keep values in the process's own memory besides.
    pub fn region_bytes(&self) -> u64 {
        self.services.as_ref().map_or(0, |services| services.own.header.region_bytes)
    }

    /// Returns a watch that tells when a worker of the node has failed. From then on the node
    /// serves no client, and has to be stopped.
    pub fn watch(&self) -> NodeWatch {
        let workers = self.services.as_ref().and_then(|services| services.workers.as_ref());
        NodeWatch { failure: workers.map(|(workers, _)| workers.status().clone()) }
    }

    /// Stops in an orderly way. The socket file is removed; the region file stays unless the node
    /// is ephemeral. Clients go on with the tables they have.
    pub fn stop(self) {}

    fn shut_down(&mut self) {
        if self.mark.is_inherited() {
            std::mem::forget((self.server.take(), self.services.take()));
            return;
        }
        self.stop.stop();
        let owned = self.server.take().map(JoinHandle::join);
        let services = self.services.take();
        let workers = services.as_ref().and_then(|services| services.workers.as_ref());
        let failed = workers.is_some_and(|(workers, _)| workers.status().error().is_some());
        drop(services);
        match owned {
            // Data that was there before is kept even if a worker could not begin.
            Some(Ok(owned)) if self.ephemeral && !(self.warm && failed) => region::remove(&owned),
            Some(Err(_)) => tracing::error!("the node's thread had panicked"),
            _ => (),
        }
        tracing::info!(socket = %self.socket.display(), "the node has stopped");
    }
}

impl NodeWatch {
    /// The error of a worker that has failed.
    pub fn failure(&self) -> Option<Error> {
        self.failure.as_ref().and_then(|failure| failure.error())
    }

    /// Waits until a worker fails, and returns its error. Returns `None` when the node stops in an
    /// orderly way, and at once if the node has no workers.
    pub fn wait(&self) -> Option<Error> {
        self.failure.as_ref().and_then(|failure| failure.wait())
    }
}

impl NodeServices {
    /// Starts the parts of a node whose cluster shares all memory.
    fn shared(own: Member, plan: &NodePlan, warm: bool) -> Result<Self> {
        let (sessions, _) = Sessions::restore(&own, false);
        let sessions = Arc::new(sessions);
        let node = own.header.node as usize;
        let cluster = attach_peers(own.clone(), plan.cluster.clone());
        let scrubber = Scrubber::start(node, sessions.clone(), cluster)
            .map_err(Error::os("start a thread for", &own.socket))?;
        if warm {
            scrubber.handle().ended(true);
        }
        let workers = if workers::are_needed(&own) {
            let latest_memory = Arc::<LatestMemory>::default();
            let attacher = AttacherThread::start(&own, &plan.cluster, latest_memory.clone())?;
            let transport = MappedTransport { home: node, latest_memory: latest_memory.clone() };
            let workers =
                Workers::start(&own, &plan.workers, &sessions, &latest_memory, &transport)?;
            Some((workers, Some(attacher)))
        } else {
            None
        };
        Ok(Self { own, sessions, workers, scrubber, network: None })
    }

    fn inspector(&self) -> Inspector {
        self.workers.as_ref().map(|(workers, _)| workers.inspector().clone()).unwrap_or_default()
    }

    fn control(&self) -> Option<Arc<dyn ControlClient>> {
        self.network.as_ref().map(NodeNetwork::control)
    }

    fn chosen(&self) -> Option<Chosen> {
        self.network.as_ref().map(|network| network.chosen.clone())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Makes socket and region. The socket comes first: if another node has it, the region is not
/// touched. Clients that connect meanwhile are told that the node prepares its memory.
fn prepare(plan: &NodePlan) -> Result<(Listener, OwnedRegion, Pages)> {
    plan.plan.tell_what_is_left_out();
    check_private(slice::from_ref(&plan.plan), host_bytes())?;
    region::check_space(&plan.region, plan.plan.header.region_bytes)?;
    let listener = Listener::open(&plan.socket)?;
    let bytes = plan.plan.header.region_bytes;
    let (region, pages) = preparing::serve_refusals(&listener, bytes, || {
        let progress = Progress::new(bytes);
        let tell = |done| {
            progress.tell(done);
            match plan.stop.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let mut region = region::acquire(&plan.region, &plan.plan, &tell)?;
        // A start that fails or is stopped keeps data that was there before. A region that it made
        // itself has no data, and would hold its memory and refuse other configurations.
        region.in_vain = !region.warm;
        // Entered now, pages need not be entered by the kernel at an access.
        let pages = region.region.populate_watched(&tell).ok_or(Error::StartStopped)?;
        tracing::info!(
            region = %region.path.display(),
            bytes,
            %pages,
            took_ms = progress.elapsed().as_millis() as u64,
            "the region is mapped"
        );
        Ok((region, pages))
    })?;
    Ok((listener, region, pages))
}

fn read(name: &str, socket: &Path, owned: &OwnedRegion) -> Result<Member> {
    let region = owned.region.clone();
    Member::read(name.into(), socket.into(), region)
        .map_err(|error| Error::RegionDamaged { path: owned.path.clone(), what: error.to_string() })
}

fn welcome(services: &NodeServices, cluster: &[PathBuf]) -> Result<Welcome> {
    let own = &services.own;
    let chosen = services.chosen().map(|Chosen { medium, reason }| (medium, reason));
    let (medium, reason) = chosen.unzip();
    let welcome = Welcome {
        protocol: PROTOCOL,
        name: own.name.clone(),
        node: own.header.node,
        nodes: own.header.nodes,
        cluster: cluster.to_vec(),
        region_bytes: own.header.region_bytes,
        identity: own.header.identity,
        sessions: own.client_sessions(),
        medium,
        reason: reason.unwrap_or_default(),
    };
    let bytes = wire::encode(&Reply::Welcome(welcome.clone())).len();
    if bytes > FRAME_BYTES_MAX {
        let problem = format!("the sockets' paths are too long: {bytes} bytes as a message");
        return Err(Error::config("cluster", problem));
    }
    Ok(welcome)
}

/// Returns the scrubber's way to the memory of all nodes. Each call asks the other nodes, since a
/// node may have come back with other memory. Memory that is unchanged is not mapped again, and the
/// memory of a node whose process is down stays usable.
fn attach_peers(own: Member, cluster: Vec<PathBuf>) -> impl ClusterAccess {
    let home = own.header.node as usize;
    let mut known: Vec<Option<Member>> = vec![None; cluster.len()];
    known[home] = Some(own);
    MappedAccess::new(home, move || {
        let others = cluster.iter().enumerate().filter(|(n, _)| *n != home);
        for (number, socket) in others {
            match Connection::open(socket, false, Instant::now(), CLOSE_TIMEOUT) {
                Ok(admitted) => {
                    let identity = admitted.welcome.identity;
                    let same = |known: &Member| known.header.identity == identity;
                    if !known[number].as_ref().is_some_and(same) {
                        let back = admitted.map(false)?.2;
                        if known[number].is_some() {
                            warn_of_other_memory(&back);
                        }
                        known[number] = Some(back);
                    }
                }
                Err(error) => tracing::debug!(%error, "a node of the cluster is down"),
            }
        }
        ClusterMemory::join(known.clone(), home).map(Arc::new)
    })
}
