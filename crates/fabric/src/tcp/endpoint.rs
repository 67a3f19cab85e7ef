//! The client's side: one thread's connections to the agents of the nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use super::TcpError;
use super::admission::Replies;
use super::engine::Engine;
use super::frame::{Hello, WELCOME_BYTES, Welcome};
use super::messages::TcpMessages;
use super::noise::{Dialing, MESSAGE_BYTES};
use super::setup::Answer;
use super::stream::Halves;
use crate::away::Away;
use crate::away::keys::Keys;
use crate::limits::TCP_LOOK_EVERY;
use crate::networks::Network;
use crate::shm::{Region, ShmEndpoint};
use crate::{Fabric, RegionId, RemoteAddr, Result, UnreliableWrites};

/// One thread's endpoint to the regions of a cluster, over TCP.
///
/// The home region is mapped into this process: the processor does all verbs there. Dropping the
/// endpoint ends its connections; verbs that have left are executed nevertheless.
pub struct TcpEndpoint {
    away: Away<Engine>,
}

impl TcpEndpoint {
    /// An endpoint without connections.
    pub fn new(home: RegionId, home_region: Arc<Region>) -> Self {
        let mut local = ShmEndpoint::new(home);
        local.attach(home, home_region.clone());
        let engine =
            Arc::new_cyclic(|itself| Mutex::new(Engine::new(itself.clone(), home_region, home)));
        Self { away: Away::new(local, home, engine) }
    }

    /// Workers WRITE replies to these slots, which are in the home region.
    pub fn take_replies(&self, replies: Replies) {
        self.away.carrier().pushed.replies = Some(replies);
    }

    /// The slots into which workers WRITE replies, if there are some.
    pub fn replies(&self) -> Option<Replies> {
        self.away.carrier().pushed.replies
    }

    /// From now on the endpoint reaches its home region over a connection, too: for measurements
    /// of what a client does that is far from its data. What the processor stores and loads there
    /// is not affected.
    pub fn go_far(&self) {
        self.away.is_far.set(true);
    }

    /// Bytes that the endpoint's connections have sent, and received.
    pub fn bytes_carried(&self) -> [u64; 2] {
        self.away.carrier().bytes_carried()
    }

    /// The messages over the endpoint's connections.
    pub fn messages(&self) -> TcpMessages {
        TcpMessages::new(self.away.carrier.clone())
    }

    /// As [`dial`] and [`TcpEndpoint::install`].
    ///
    /// # Errors
    /// [`TcpError`]. An existing connection stays.
    pub fn connect(
        &self,
        node: RegionId,
        region_bytes: u64,
        address: SocketAddr,
        answer: &Answer,
        patience: Duration,
    ) -> Result<(), TcpError> {
        self.install(node, dial(region_bytes, address, answer, [patience; 2])?);
        Ok(())
    }

    /// Uses a connection to `node` from now on: verbs go over it.
    ///
    /// The caller vouches that the node's side of an earlier connection, if there was one, is gone:
    /// that its [`Accepted`](super::Accepted) was dropped, or its process has ended. Verbs of
    /// unknown outcome count as settled from then on.
    pub fn install(&self, node: RegionId, dialed: Dialed) {
        let Dialed { region_bytes, keys, socket, halves } = dialed;
        self.away.carrier().install(node, (region_bytes, keys), socket, halves);
    }

    /// While a word is left to be stored ([`Fabric::store_when_settled`]), another thread calls
    /// `mend` now and then, with an endpoint over the same connections. It makes broken ones again,
    /// without which their verbs do not settle, and never waits.
    pub fn mend_by(&self, mend: impl Fn(&Self) + Send + Sync + 'static) {
        self.away.mend_by(move |away| mend(&Self { away }));
    }

    /// Requests that are under way, or not known to be over.
    #[cfg(test)]
    pub(super) fn flights_held(&self) -> usize {
        self.away.carrier().flights_held()
    }

    /// Bytes that wait to be sent.
    #[cfg(test)]
    pub(super) fn unsent(&self) -> u64 {
        self.away.carrier().unsent()
    }

    /// The nodes to which a connection broke and has to be made again.
    pub fn broken(&self) -> Vec<RegionId> {
        let mut engine = self.away.carrier();
        // A connection with verbs under way is looked at anyway.
        if engine.is_idle() {
            engine.look_every(TCP_LOOK_EVERY);
        }
        engine.broken()
    }
}

/// A connection to an agent that has let the client in, for the endpoint of any thread.
pub struct Dialed {
    region_bytes: u64,
    keys: Keys,
    socket: OwnedFd,
    halves: Halves,
}

/// Connects to the agent at `address`, whose node has given `answer` and has a region of
/// `region_bytes`. The thread waits: until the host has taken the connection, and then until the
/// agent has answered, each for at most its part of `patience`.
///
/// # Errors
/// [`TcpError`].
pub fn dial(
    region_bytes: u64,
    address: SocketAddr,
    answer: &Answer,
    patience: [Duration; 2],
) -> Result<Dialed, TcpError> {
    answer.validate(region_bytes)?;
    let os = |action| move |source| TcpError::Os { action, source };
    let [connecting, answering] = patience;
    let mut stream = TcpStream::connect_timeout(&address, connecting).map_err(os("connect"))?;
    let prepared = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(answering)));
    prepared.map_err(os("prepare a connection"))?;
    let halves = greet(&mut stream, answer)?;
    stream.set_nonblocking(true).map_err(os("prepare a connection"))?;
    let keys = Keys::new(answer.grants.clone());
    Ok(Dialed { region_bytes, keys, socket: stream.into(), halves })
}

/// Says who the client is, and waits until the agent has let it in. An answer with a key makes the
/// connection encrypted, whatever the agent says.
fn greet(stream: &mut TcpStream, answer: &Answer) -> Result<Halves, TcpError> {
    let os = |source| TcpError::Os { action: "greet the agent", source };
    let hello = Hello::new(answer.token, answer.key.is_some());
    let begun = answer.key.as_ref().map(|key| Dialing::begin(key, hello.as_bytes()));
    let mut said = hello.as_bytes().to_vec();
    said.extend(begun.iter().flat_map(|(_, message)| message));
    stream.write_all(&said).map_err(os)?;
    let mut welcome = [0; WELCOME_BYTES];
    stream.read_exact(&mut welcome).map_err(os)?;
    let welcome = Welcome::read_from_bytes(&welcome).expect("it is as long");
    let told = welcome.result().map_err(|garbage| TcpError::Hostile { what: garbage.0 })?;
    told.map_err(TcpError::Unwelcome)?;
    let Some((dialing, _)) = begun else { return Ok(Halves::plain()) };
    let mut message = [0; MESSAGE_BYTES];
    stream.read_exact(&mut message).map_err(os)?;
    let what = "that it lets the client in, without the key of the connection";
    dialing.end(&message).ok_or(TcpError::Hostile { what })
}

impl Fabric for TcpEndpoint {
    crate::pass_on!(
        caps counters read_words read_bucket read read_many read_word_and_bytes compare_swap
        compare_swap_many fetch_add write_unsignaled write is_mapped store store_before store_after
        announce load load_bytes reload will_store raw posted is_settled store_when_settled
        take_back now_us wall_ms random pause => away
    );

    /// What comes may be a worker's reply, so the thread waits for its connections, too.
    fn poll_wait(&self, cx: &mut Context<'_>, bell: Option<RemoteAddr>) {
        let is_lane = self.away.waits(cx);
        if !is_lane {
            self.away.carrier().progress(true);
        }
        // A lane that names no bell goes on whatever comes: the thread must not rest before.
        if !is_lane || bell.is_none() {
            cx.waker().wake_by_ref();
        }
    }

    fn is_far(&self) -> bool {
        self.away.is_far.get()
    }

    /// A WRITE over a connection rings by itself.
    fn ring(&self, bells: &[RemoteAddr]) {
        if !self.is_far() {
            self.away.local.ring(bells);
        }
    }
}

/// Over TCP nothing gets lost but with the connection.
impl UnreliableWrites for TcpEndpoint {
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        self.away.write_unsignaled_of_any_length(at, bytes)
    }
}
