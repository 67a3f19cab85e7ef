//! A look at the nodes of a list from any of their hosts, which tells an operator what keeps a
//! cluster from working: `loch doctor --fabric tcp`.
//!
//! A probe opens a channel as a node does, by the nodes' own credentials, and asks the node who it
//! is. It does not say hello: it is no node, takes no link over, and no node is told of it. With
//! the answer comes the right to one connection of the fabric, which may READ the beginning of the
//! node's memory, as long as the probe's link lives. So the READs of a probe take the way that the
//! READs of clients take.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use loch_fabric::lanes::{block_on, run};
use loch_fabric::shm::Region;
use loch_fabric::tcp::{Answer, TcpEndpoint};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};
use serde::Deserialize;
use serde_json::Value;

use super::channel::{LinkError, PROTOCOL};
use super::credentials::Credentials;
use super::link::{Link, host_of};
use super::messages::{ControlReply, ControlRequest, Hello};
use super::network::checked;
use super::preface;
use crate::layout::memory::{Member, check_member};
use crate::limits::{DIAL_TIMEOUT, PROBE_BYTES};
use crate::{Error, FabricKind, NodeConfig, Result};

/// Looks at the nodes of a list, one at a time.
///
/// ```no_run
/// use loch::{ClusterProbe, NodeConfig};
/// let config = NodeConfig::load("/etc/loch/node.toml".as_ref())?;
/// let mut cluster = ClusterProbe::new(&config)?;
/// for number in 0..cluster.addresses().len() {
///     let probe = cluster.probe(number);
///     println!("{}: {:?}", probe.address, probe.outcome.err());
/// }
/// # Ok::<(), loch::Error>(())
/// ```
pub struct ClusterProbe {
    addresses: Vec<String>,
    /// Without them, nodes tell nothing but that they are nodes.
    credentials: Option<Credentials>,
    /// The first node that has told what it is: the others have to fit to it.
    first: Option<Member>,
}

/// The observations at one node.
pub struct NodeProbe {
    /// The node's address, as the list has it.
    pub address: String,
    /// The addresses of its name.
    pub found: Vec<IpAddr>,
    /// Whether one of these is this host's.
    pub is_here: bool,
    /// How long a TCP connection to it took, if there was one.
    pub connected: Option<Duration>,
    /// The facts that the node has told, or why it has not.
    pub outcome: Result<NodeFacts, ProbeError>,
}

/// The facts that a node tells of itself.
pub struct NodeFacts {
    /// The node's number.
    pub node: u16,
    /// The number of nodes in its list.
    pub nodes: u16,
    /// The node's name.
    pub name: String,
    /// The name of its fabric.
    pub fabric: String,
    /// A connection to its memory, or why there is none.
    pub reads: Result<ProbeReads, ProbeError>,
}

/// The reason why a node cannot be used from this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// Its name has no address.
    #[error("its name cannot be looked up: {0}")]
    Lookup(String),
    /// Nobody listens there, or a firewall rejects connections.
    #[error("it refuses connections")]
    Refused,
    /// A connection was neither accepted nor refused.
    #[error("no answer to a connection within {} s", DIAL_TIMEOUT.as_secs())]
    Silent,
    /// There is no way to it.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It accepts the connection, and then closes it.
    #[error("it accepts the connection, and closes it without a word")]
    Closed,
    /// It accepts the connection, and says nothing.
    #[error("it accepts the connection, and says nothing within {} s", DIAL_TIMEOUT.as_secs())]
    Mute,
    /// Another program than a node listens there.
    #[error("another program than a Loch node listens there: it says {0}")]
    Stranger(String),
    /// It is of another release.
    #[error("it speaks version {theirs} of the control protocol, this program {PROTOCOL}")]
    Release {
        /// The version of its protocol.
        theirs: u16,
    },
    /// A node that does not admit this host, or that this host does not trust.
    #[error("{0}")]
    NotAdmitted(String),
    /// A node of another cluster, or one that is configured otherwise.
    #[error("{0}")]
    Misfit(String),
    /// A node with credentials, and there are none here to show.
    #[error("a Loch node that wants {0}, and none was given")]
    NoCredentials(&'static str),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// A connection that READs from a node's memory, until it is dropped.
pub struct ProbeReads {
    endpoint: TcpEndpoint,
    at: RemoteAddr,
    /// While it lives, the node lends.
    _link: Link,
}

impl ClusterProbe {
    /// Takes the list of nodes, and the secret or the certificates, from a configuration. Without a
    /// list the node that it describes is the only one.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: &NodeConfig) -> Result<Self> {
        let listed = config.cluster.iter().map(|it| it.to_str().unwrap_or_default());
        let mut addresses: Vec<String> =
            listed.map(|it| checked("cluster", it)).collect::<Result<_>>()?;
        if let (true, Some(own)) = (addresses.is_empty(), &config.listen) {
            addresses.push(checked("listen", own)?);
        }
        let credentials = match (&config.secret, &config.tls) {
            (None, None) => None,
            (secret, tls) => {
                Some(Credentials::load(secret.as_deref(), tls.as_ref(), addresses.len())?)
            }
        };
        Ok(Self { addresses, credentials, first: None })
    }

    #[cfg(test)]
    pub(super) fn of(addresses: Vec<String>, credentials: Credentials) -> Self {
        Self { addresses, credentials: Some(credentials), first: None }
    }

    /// The nodes, in order.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Looks at a node. Takes a few times [`DIAL_TIMEOUT`] if it does not answer.
    ///
    /// # Panics
    /// If the list has no such node.
    pub fn probe(&mut self, number: usize) -> NodeProbe {
        let address = self.addresses[number].clone();
        let mut probe = NodeProbe {
            found: Vec::new(),
            is_here: false,
            connected: None,
            outcome: Err(ProbeError::Lookup("it has no address".into())),
            address,
        };
        let found: Vec<SocketAddr> = match probe.address.to_socket_addrs() {
            Ok(found) => found.collect(),
            Err(error) => {
                probe.outcome = Err(ProbeError::Lookup(error.to_string()));
                return probe;
            }
        };
        probe.found = found.iter().map(SocketAddr::ip).collect();
        probe.is_here = probe.found.iter().any(|ip| is_here(*ip));
        for at in found {
            let begun = Instant::now();
            match TcpStream::connect_timeout(&at, DIAL_TIMEOUT) {
                Ok(stream) => {
                    probe.connected = Some(begun.elapsed());
                    probe.outcome = self.meet(number, at, stream);
                    return probe;
                }
                Err(error) => probe.outcome = Err(not_connected(&error)),
            }
        }
        probe
    }

    /// Asks a node who it is.
    fn meet(
        &mut self,
        number: usize,
        at: SocketAddr,
        stream: TcpStream,
    ) -> Result<NodeFacts, ProbeError> {
        let deadline = Instant::now() + DIAL_TIMEOUT;
        let Some(credentials) = &self.credentials else {
            let wants = preface::look(stream, deadline)?;
            return Err(ProbeError::NoCredentials(wants));
        };
        let host = host_of(&self.addresses[number]);
        let mut link = Link::over_stream(stream, host, credentials, deadline)?;
        let (hello, answer) = match link.ask(&ControlRequest::Probe {}, DIAL_TIMEOUT)? {
            ControlReply::Probed { hello, answer } => (hello, answer),
            ControlReply::Refused(refused) => return Err(ProbeError::NotAdmitted(refused.text)),
            other => return Err(ProbeError::Other(format!("it answers out of turn: {other:?}"))),
        };
        let told = self.check(number, &hello)?;
        let reads = ProbeReads::connect(link, at, &told, answer);
        self.first.get_or_insert(told);
        let Hello { node, nodes, name, fabric, .. } = hello;
        Ok(NodeFacts { node, nodes, name, fabric, reads })
    }

    /// Checks that a node is the one that the list names, and fits to the others.
    fn check(&self, number: usize, hello: &Hello) -> Result<Member, ProbeError> {
        let (misfit, tcp) = (|text| Err(ProbeError::Misfit(text)), FabricKind::Tcp.name());
        let (is, of, nodes) = (hello.node, hello.nodes, self.addresses.len());
        if (usize::from(is), usize::from(of)) != (number, nodes) {
            return misfit(format!(
                "it is node {is} of {of} by its own list, and number {number} of {nodes} in this one"
            ));
        }
        if hello.fabric != tcp {
            return misfit(format!("its fabric is \"{}\", and not \"{tcp}\"", hello.fabric));
        }
        let address = self.addresses[number].as_ref();
        let told = Member::told(&hello.name, address, &hello.header, &hello.directory)
            .map_err(|error| ProbeError::Misfit(error.to_string()))?;
        let first = self.first.as_ref().unwrap_or(&told);
        match check_member(first, &told, number, nodes) {
            Ok(()) => Ok(told),
            Err(Error::ClusterMismatch { problem }) => misfit(problem),
            Err(error) => misfit(error.to_string()),
        }
    }
}

impl ProbeReads {
    fn connect(link: Link, at: SocketAddr, to: &Member, answer: Value) -> Result<Self, ProbeError> {
        let other = |error: &dyn std::fmt::Display| ProbeError::Other(error.to_string());
        let answer = Answer::deserialize(answer).map_err(|error| other(&error))?;
        let node = to.header.node as u8;
        // Nothing is in the home region of a probe.
        let home = Region::anonymous(4096).map_err(|error| other(&error))?;
        let endpoint = TcpEndpoint::new(RegionId(u8::from(node == 0)), home.into());
        let (region, bytes) = (RegionId(node), to.header.region_bytes);
        endpoint.connect(region, bytes, at, &answer, DIAL_TIMEOUT).map_err(|e| other(&e))?;
        Ok(Self { endpoint, at: RemoteAddr::new(region, 0), _link: link })
    }

    /// READs `len` bytes again and again, `lanes` at a time, until `bytes` have come or the time is
    /// over. Returns how many have come, and in which time.
    ///
    /// # Errors
    /// The failure of a READ, in words.
    ///
    /// # Panics
    /// If a probe may not READ so many.
    pub fn read(
        &self,
        len: usize,
        lanes: usize,
        bytes: u64,
        time_max: Duration,
    ) -> Result<(u64, Duration), String> {
        assert!(len as u64 <= PROBE_BYTES, "a probe READs up to {PROBE_BYTES} bytes");
        let (begun, mut posted, mut come) = (Instant::now(), 0, 0);
        let mut result = Ok(());
        let next = || {
            let goes_on = posted < bytes && (posted == 0 || begun.elapsed() < time_max);
            posted += len as u64;
            goes_on.then(|| self.endpoint.read(self.at, len, Buf::with_capacity(len)))
        };
        block_on(run(lanes, std::iter::from_fn(next), |(buf, done): (Buf, _)| {
            come += buf.len() as u64;
            if let Err(error) = done {
                result = Err(error.to_string());
            }
        }));
        result.map(|()| (come, begun.elapsed()))
    }
}

/// Whether an address is one of this host's: nobody can bind to another host's.
fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn not_connected(error: &io::Error) -> ProbeError {
    match error.kind() {
        ErrorKind::ConnectionRefused => ProbeError::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => ProbeError::Silent,
        _ => ProbeError::Unreachable(error.to_string()),
    }
}

impl From<LinkError> for ProbeError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Down => Self::Refused,
            LinkError::Silent => Self::Mute,
            LinkError::Closed => Self::Closed,
            LinkError::Stranger(says) => Self::Stranger(says),
            LinkError::Protocol { theirs } => Self::Release { theirs },
            LinkError::Kind { ours, theirs } => {
                Self::NotAdmitted(format!("it proves itself by {theirs}, and {ours} was given"))
            }
            LinkError::Secret => Self::NotAdmitted("it has another secret".into()),
            LinkError::Certificate(why) => {
                Self::NotAdmitted(format!("certificates were refused: {why}"))
            }
            LinkError::Impostor(text) => Self::NotAdmitted(text),
            LinkError::Misfit(text) => Self::Misfit(text),
            LinkError::Garbage(text) | LinkError::Io(text) => Self::Other(text),
        }
    }
}

impl ProbeError {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Lookup(_) => {
                "write an address in place of the name, or add the name to DNS or /etc/hosts on all \
                 hosts"
            }
            Self::Refused => {
                "start the node there (`loch serve`); if it runs, does it listen at this address, \
                 and does a firewall reject connections?"
            }
            Self::Silent => {
                "is the host up (`ping`)? A firewall that drops packets looks the same: open the \
                 port between the hosts"
            }
            Self::Unreachable(_) => {
                "look at addresses and routes: `ip address`, `ip route get HOST`"
            }
            Self::Closed | Self::Mute => {
                "see which program listens there (`ss -ltnp`); a node that is stopped, starts or \
                 ends does this for a while"
            }
            Self::Stranger(_) => "choose a port that is free (`ss -ltnp` on its host), or stop it",
            Self::Release { .. } => "use the same release of Loch on all hosts",
            Self::NotAdmitted(_) => {
                "give all nodes the same `secret` file, or certificates of one `ca` for the hosts \
                 that `cluster` names; a node that was started without one has a secret of its own"
            }
            Self::Misfit(_) => {
                "give all nodes the same `cluster` list in the same order, the same `fabric`, and \
                 the same tables"
            }
            Self::NoCredentials(_) => {
                "give `--secret FILE`, or `--config FILE` with `secret` or [tls], as `loch serve` \
                 has it"
            }
            Self::Other(_) => "look at the log of the node",
        }
    }
}
