//! Tables over a fabric between machines: an endpoint, and connections that are made again when
//! they break.
//!
//! # Invariants
//! 1. A connection takes the place of another only when its home node has ended the passive end of
//!    the other. The endpoint relies on this.
//! 2. A node that cannot be reached is asked at most once in [`RECONNECT_PAUSE`], however many
//!    lanes need it.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loch_engines::EngineError;
use loch_engines::epoch::Session;
use loch_engines::net::{Connect, Net};
use loch_fabric::{Fabric, FabricError, RegionId, RemoteAddr};

use crate::client::attachment::Attachment;
use crate::client::net::{Network, OpenParams};
use crate::client::nodes::Nodes;
use crate::client::operations::Operations;
use crate::client::table_client::TableClient;
use crate::layout::memory::{ClusterMemory, Member};
use crate::limits::{ADMIT_TIMEOUT, RECONNECT_PAUSE, RESEND_NETWORK_US};
use crate::session::connection::Connection;
use crate::session::endpoint::Yielding;
use crate::session::medium::{Linked, Links, Medium, connect};
use crate::session::opened::{AnyMedium, Opened};
use crate::session::tcp::Tcp;
#[cfg(feature = "verbs")]
use crate::session::verbs::Card;
use crate::session::wire::{self, SessionSecret};
use crate::{Error, Result};

/// The network of a client whose nodes are on other hosts, except for its home node.
pub(crate) struct Remote<M>(PhantomData<M>);

/// The endpoint of a client.
type ClientEndpoint<M> = Linked<M, Connector<M>>;

/// Makes the connections of one client's endpoint.
pub(crate) struct Connector<M> {
    medium: M,
    attachment: Arc<Attachment>,
    memory: Arc<ClusterMemory>,
    /// The request to every node, without node, memory and offer.
    ask: wire::Connect,
    /// For each kind of connection to a node, whether its WRITEs may get lost.
    kinds: &'static [bool],
    timeout: Duration,
    /// By node.
    links: RefCell<Vec<Link>>,
    /// The connection to the home node's process over which that process let the client in.
    let_in: RefCell<Option<Arc<Connection>>>,
}

/// How often at most the time that a node has to answer is doubled.
const DOUBLINGS_MAX: u32 = 16;

/// The state of connecting to a node.
#[derive(Default)]
struct Link {
    /// Whether there was ever a connection, which may have broken since.
    made: bool,
    /// The last try, if it failed.
    failure: Option<FailedTry>,
    /// The number of tries in a row that no node answered in time.
    silences: u32,
}

struct FailedTry {
    at: Instant,
    error: Error,
}

/// The attempts at one operation.
pub(crate) struct Attempts {
    /// When the first attempt failed for want of a connection.
    since: Option<Instant>,
}

impl<M: Medium> Net for Remote<M> {
    type Direct = ClientEndpoint<M>;
    type Waiting = Yielding<ClientEndpoint<M>, Option<M::Messages>>;

    fn direct(waiting: &Self::Waiting) -> &ClientEndpoint<M> {
        waiting.endpoint()
    }
}

impl<M: Opened> Network for Remote<M> {
    const RESEND_US: u64 = RESEND_NETWORK_US;
    const BREAKS: bool = true;
    type Attempts = Attempts;

    fn connector(params: OpenParams<'_>) -> Result<impl Connect<Self, Error = Error>> {
        let attachment = attachment_of(&params);
        let medium = M::of(attachment.medium()?).expect("it is the one that was opened");
        let (endpoint, links) = Connector::open(medium, attachment.clone(), params)?;
        Ok(RemoteConnect { endpoint: Linked::new(endpoint, links) })
    }

    fn begin(endpoint: &ClientEndpoint<M>) -> Attempts {
        endpoint.links().begin(endpoint.endpoint())
    }

    async fn goes_on(
        endpoint: &ClientEndpoint<M>,
        attempts: &mut Attempts,
        error: Option<&EngineError>,
    ) -> bool {
        endpoint.links().goes_on(endpoint.endpoint(), attempts, error).await
    }

    fn bytes_carried(endpoint: &ClientEndpoint<M>) -> Option<[u64; 2]> {
        M::bytes_carried(endpoint.endpoint())
    }

    fn explain(endpoint: &ClientEndpoint<M>, error: FabricError) -> Option<Error> {
        endpoint.links().explain(error)
    }
}

/// The endpoint of a client, connected.
struct RemoteConnect<M: Medium> {
    endpoint: ClientEndpoint<M>,
}

impl<M: Medium> Connect<Remote<M>> for RemoteConnect<M> {
    type Error = Error;

    fn direct(self) -> Result<ClientEndpoint<M>> {
        Ok(self.endpoint)
    }

    fn waiting(self, mailbox: Option<RemoteAddr>) -> Result<<Remote<M> as Net>::Waiting> {
        let open = |_| self.endpoint.links().medium.messages(self.endpoint.endpoint());
        let messages = mailbox.map(open).transpose()?;
        Ok(Yielding::new(self.endpoint, messages))
    }
}

/// Opens a table over a fabric between machines.
///
/// # Errors
/// As [`Connector::open`], and [`Error::SessionsExhausted`].
pub(crate) fn open_table(params: OpenParams<'_>) -> Result<Box<dyn Operations>> {
    Ok(match attachment_of(&params).medium()? {
        AnyMedium::Tcp(_) => Box::new(TableClient::<Remote<Tcp>>::open(params)?),
        #[cfg(feature = "verbs")]
        AnyMedium::Verbs(_) => Box::new(TableClient::<Remote<Card>>::open(params)?),
    })
}

fn attachment_of<'a>(params: &OpenParams<'a>) -> &'a Arc<Attachment> {
    let Nodes::Attached(attachment) = params.nodes else {
        unreachable!("nodes inside this process are not remote");
    };
    attachment
}

impl<M: Medium> Links<M> for Connector<M> {
    /// A process of the home node that has started meanwhile does not know the session's secret
    /// until it is told. No connection shows this, because the client writes its home memory by
    /// stores.
    fn wait(&self, endpoint: &M::Endpoint) {
        self.mend(endpoint);
        let is_another = self.let_in.borrow().as_ref().is_some_and(|known| !known.is_open());
        if is_another {
            self.try_connect(endpoint, self.attachment.home());
        }
        std::thread::yield_now();
    }
}

impl<M: Medium> Connector<M> {
    /// Opens an endpoint for a table, connected to all nodes that can be reached now.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::NodeUnreachable`] if the home node cannot let the client in.
    pub fn open(
        medium: M,
        attachment: Arc<Attachment>,
        params: OpenParams<'_>,
    ) -> Result<(M::Endpoint, Self)> {
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
        let links = RefCell::new(memory.nodes.iter().map(|_| Link::default()).collect());
        let let_in = RefCell::default();
        let made = Self { medium, attachment, memory, ask, kinds, timeout, links, let_in };
        // Without its home node a client can do nothing. Other nodes are tried again when they are
        // needed.
        made.connect(&endpoint, home)?;
        made.links.borrow_mut()[home].made = true;
        for node in (0..made.memory.nodes.len()).filter(|node| *node != home) {
            made.try_connect(&endpoint, node);
        }
        Ok((endpoint, made))
    }

    /// Called before an operation. Makes broken connections again, so that the outcome of their
    /// verbs is settled, and memory for which other clients wait is not held back.
    pub fn begin(&self, endpoint: &M::Endpoint) -> Attempts {
        self.mend(endpoint);
        Attempts { since: None }
    }

    /// Makes broken connections again.
    pub fn mend(&self, endpoint: &M::Endpoint) {
        for region in M::broken(endpoint) {
            self.try_connect(endpoint, region.0 as usize);
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
        loop {
            if since.elapsed() > self.timeout {
                return false;
            }
            // Another lane may have been faster; a connection that works is not replaced. But the
            // missing connection may be that of the node's worker.
            let is_there = !self.lacks(endpoint, node);
            if (is_there && is_first) || (!is_there && self.try_connect(endpoint, node)) {
                return true;
            }
            // Other lanes go on meanwhile.
            endpoint.pause(RECONNECT_PAUSE.as_micros() as u64).await;
            if is_there {
                return true;
            }
        }
    }

    /// Returns the node to which an operation lacked a connection.
    fn lacking(&self, error: FabricError) -> Option<usize> {
        let region = match error {
            FabricError::Unreachable { region } | FabricError::Unattached { region } => region,
            FabricError::OutcomeUnknown { at } => at.region(),
            _ => return None,
        };
        Some(region.0 as usize).filter(|node| *node < self.memory.nodes.len())
    }

    /// Returns whether there is no connection to a node.
    fn lacks(&self, endpoint: &M::Endpoint, node: usize) -> bool {
        !self.links.borrow()[node].made || M::broken(endpoint).contains(&RegionId(node as u8))
    }

    /// Connects to a node, unless the last try was just now. Returns whether it is connected.
    fn try_connect(&self, endpoint: &M::Endpoint, node: usize) -> bool {
        let failed = self.links.borrow()[node].failure.as_ref().map(|failure| failure.at);
        if failed.is_some_and(|at| at.elapsed() < RECONNECT_PAUSE) {
            return false;
        }
        let connected = self.connect(endpoint, node);
        let done = connected.is_ok();
        let link = &mut self.links.borrow_mut()[node];
        if done && link.made {
            self.leaves(endpoint);
        }
        link.made |= done;
        link.failure = connected.err().map(|error| {
            tracing::debug!(node, %error, "a node cannot be connected");
            FailedTry { at: Instant::now(), error }
        });
        done
    }

    /// Notes for which nobody waited may have been lost with a connection: the scrubber finds what
    /// they were about.
    fn leaves(&self, endpoint: &M::Endpoint) {
        if let Some((slot, incarnation)) = self.ask.session {
            let home = RegionId(self.attachment.home() as u8);
            Session::new(home, slot, incarnation).leaves(endpoint);
        }
    }

    fn connect(&self, endpoint: &M::Endpoint, node: usize) -> Result<()> {
        let member = self.member(node);
        let ask = wire::Connect {
            node: node as u16,
            identity: member.header.identity,
            ..self.ask.clone()
        };
        // A slow node, for example on a busy host, does work in vain if its client does not wait
        // for the answer any more. So each try waits longer than the one before.
        let silences = self.links.borrow()[node].silences;
        let wait = self.timeout.saturating_mul(1 << silences).min(ADMIT_TIMEOUT);
        let begun = Instant::now();
        let (broker, address) = (self.attachment.broker(wait)?, self.attachment.address(node));
        let connected = self.kinds.iter().try_for_each(|unreliable| {
            let ask = wire::Connect { unreliable: *unreliable, ..ask.clone() };
            let asked = |ask| broker.connect(ask, wait);
            connect(&self.medium, endpoint, (member, &address), ask, wait, asked)
        });
        let is_silence = connected.is_err() && begun.elapsed() >= wait;
        self.links.borrow_mut()[node].silences =
            if is_silence { (silences + 1).min(DOUBLINGS_MAX) } else { 0 };
        if connected.is_ok() && node == self.attachment.home() {
            self.let_in.replace(Some(broker));
        }
        connected.map_err(|error| match error {
            // The user knows the home node; the error has to name the other node.
            Error::NodeUnreachable { remedy, .. } => {
                Error::NodeUnreachable { socket: member.socket.clone(), remedy }
            }
            error => error,
        })
    }

    fn member(&self, node: usize) -> &Member {
        self.memory.nodes[node].as_ref().expect("who attached knows all nodes")
    }

    /// Explains an error that was caused by a missing connection.
    pub fn explain(&self, error: FabricError) -> Option<Error> {
        let node = self.lacking(error)?;
        let links = self.links.borrow();
        let known = links[node].failure.as_ref().map(|failure| failure.error.clone());
        Some(known.unwrap_or_else(|| Error::NodeUnreachable {
            socket: self.member(node).socket.clone(),
            remedy: "the connection to it broke".into(),
        }))
    }
}

impl Attachment {
    /// Returns the connection to the home node, and makes it again if it broke. The client asks
    /// over it to be let in by other nodes.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub fn broker(&self, within: Duration) -> Result<Arc<Connection>> {
        let mut state = self.state();
        if !state.home(self.home()).is_open()
            && !self.reopen(&mut state, self.home(), Instant::now() + within)?
        {
            let problem = "the home node has come back with other memory: open the table again";
            return Err(Error::ClusterMismatch { problem: problem.into() });
        }
        Ok(state.home(self.home()).clone())
    }
}
