//! The fabrics between machines, as clients, workers and scrubbers use them: endpoints whose home
//! region is mapped, and whose connections to other nodes may break and are made again.

use std::time::Duration;

use loch_fabric::{Fabric, Messages, RegionId, RemoteAddr, UnreliableWrites};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::connection::Connection;
use super::endpoint::WhileWaiting;
use super::table_session::{At, TableSession};
use crate::Result;
use crate::layout::memory::{ClusterMemory, Member};
use crate::session::wire::{self, Reply, Request};

/// A fabric between machines.
pub(crate) trait Medium: Clone + Send + Sync + 'static {
    /// The endpoint of a thread.
    type Endpoint: Fabric + UnreliableWrites;
    /// The messages of a client's thread.
    type Messages: Messages;
    /// A connection that an endpoint can use, once its thread has installed it.
    type Dialed: Send;

    /// An endpoint without connections, whose home region is that of `home`.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device),
    /// [`Error::LockedMemory`](crate::Error::LockedMemory).
    fn endpoint(&self, home: &Member) -> Result<Self::Endpoint>;

    /// The messages of the thread that has this endpoint.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn messages(&self, endpoint: &Self::Endpoint) -> Result<Self::Messages>;

    /// Called before the endpoint of a client is connected: where workers WRITE its replies, and
    /// the bytes of these slots.
    fn take_replies(&self, _endpoint: &Self::Endpoint, _at: RemoteAddr, _len: u32) {}

    /// From now on the endpoint reaches its home region over the network, too, if the fabric can.
    fn go_far(_endpoint: &Self::Endpoint) {}

    /// Bytes that the endpoint's connections have sent, and received, if they are counted.
    fn bytes_carried(_endpoint: &Self::Endpoint) -> Option<[u64; 2]> {
        None
    }

    /// Whether a client of a table has a connection of its own for WRITEs that may get lost.
    fn writes_unreliably(_memory: &ClusterMemory, _table: usize) -> bool {
        false
    }

    /// What a node has to know to let the endpoint in.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn offer(&self, endpoint: &Self::Endpoint, to: &Member, unreliable: bool) -> Result<Value>;

    /// Connects to the node that has given this answer and listens at `address`, for an endpoint of
    /// any thread. The calling thread waits, for `patience` at most if the agent is silent.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device),
    /// [`Error::NodeUnreachable`](crate::Error::NodeUnreachable).
    fn dial(to: &Member, address: &str, answer: Value, patience: Duration) -> Result<Self::Dialed>;

    /// Has an endpoint use a connection from now on. Never waits.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    fn install(&self, endpoint: &Self::Endpoint, to: &Member, dialed: Self::Dialed) -> Result<()>;

    /// While verbs of a client that nobody uses keep its session's announcement up, another thread
    /// calls `mend` now and then, with an endpoint over the same connections. Verbs that only
    /// their own thread can move on wait for that thread.
    fn mend_when_left(
        _endpoint: &Self::Endpoint,
        _mend: impl Fn(&Self::Endpoint) + Send + Sync + 'static,
    ) {
    }

    /// The nodes to which connections broke.
    fn broken(endpoint: &Self::Endpoint) -> Vec<RegionId>;
}

/// Reads the answer of a node that lets an endpoint in.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device).
pub(super) fn read_answer<A: DeserializeOwned>(answer: Value, from: &Member) -> Result<A> {
    A::deserialize(answer).map_err(|error| crate::Error::Device {
        problem: format!("{} sent an answer that cannot be read: {error}", from.socket.display()),
    })
}

/// An endpoint with the links that make its connections.
pub(crate) struct Linked<M: Medium, L> {
    endpoint: M::Endpoint,
    links: L,
}

/// Makes the connections of an endpoint.
pub(crate) trait Links<M: Medium> {
    /// Called now and then while the endpoint's user waits.
    fn wait(&self, endpoint: &M::Endpoint);
}

impl<M: Medium, L> Linked<M, L> {
    pub fn new(endpoint: M::Endpoint, links: L) -> Self {
        Self { endpoint, links }
    }

    pub fn endpoint(&self) -> &M::Endpoint {
        &self.endpoint
    }

    pub fn links(&self) -> &L {
        &self.links
    }
}

impl<M: Medium, L> Fabric for Linked<M, L> {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read chase read_many read_word_and_bytes
        compare_swap compare_swap_many fetch_add write_unsignaled
        write is_mapped is_far store_before store_after announce
        load load_bytes reload will_read will_store raw posted is_settled store_when_settled
        take_back now_us wall_ms random pause poll_wait yield_now store ring
        => endpoint
    );
}

impl<M: Medium, L> UnreliableWrites for Linked<M, L> {
    loch_fabric::pass_on!(write_unreliable => endpoint);
}

impl<M: Medium, L: Links<M>> WhileWaiting for Linked<M, L> {
    fn tend(&self) {
        self.links.wait(&self.endpoint);
    }
}

impl Connection {
    /// Has a node of the cluster let a connection in. Returns that node's side of it.
    ///
    /// # Errors
    /// As [`Connection::member`].
    pub fn connect(&self, connect: wire::Connect, wait: Duration) -> Result<Value> {
        match self.request(&Request::Connect(connect), wait)? {
            Reply::Connected { answer } => Ok(answer),
            other => Err(self.unexpected(&other)),
        }
    }
}

impl TableSession {
    /// The session as a node knows it, and the number of an endpoint without a session.
    pub fn caller(&self) -> (Option<(u32, u64)>, u64) {
        match &self.at {
            At::Reader(_, endpoint) => (None, *endpoint),
            At::Node(_, it) | At::Embedded(_, it) | At::Fenced(_, it, _) => {
                (Some((it.slot, it.incarnation)), 0)
            }
            At::Observer(_) => (None, 0),
        }
    }
}

/// Connects an endpoint to a node, which listens at `address`, and waits for that; `asked` takes
/// the request to the node and returns the answer.
///
/// # Errors
/// The errors of [`Medium::offer`], [`Medium::dial`], [`Medium::install`] and `asked`.
pub(crate) fn connect<M: Medium>(
    medium: &M,
    endpoint: &M::Endpoint,
    (member, address): (&Member, &str),
    ask: wire::Connect,
    patience: Duration,
    asked: impl FnOnce(wire::Connect) -> Result<Value>,
) -> Result<()> {
    let offer = medium.offer(endpoint, member, ask.unreliable)?;
    let answer = asked(wire::Connect { offer, ..ask })?;
    medium.install(endpoint, member, M::dial(member, address, answer, patience)?)
}
