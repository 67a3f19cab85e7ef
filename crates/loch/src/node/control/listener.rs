//! The control port: accepts links from other nodes, and does what they ask.
//!
//! # Invariants
//! 1. A request of a node is executed only if it came over the node's newest link. Once the node
//!    has said over that link which clients live, earlier requests are not executed any more. The
//!    registry checks this ([`super::registry`], invariant 5).
//! 2. A request is executed before it is answered, so a node that is told `done` to a fence may
//!    count on it. If the execution takes long the answer is `later`; no lock is held meanwhile,
//!    and no other request waits.
//! 3. A stranger cannot have a line logged as often as it likes ([`RateLimit`]).
//! 4. An error of one connection delays no other: only when the system lacks descriptors or memory
//!    does the port pause.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loch_fabric::{RateLimit, is_of_one_connection, lengthen_queue};

use super::ControlPlane;
use super::arrivals::Arrivals;
use super::channel::LinkError;
use super::handshakes::{Entry, Handshakes};
use super::link::{Link, host_of};
use super::messages::{ControlReply, ControlRequest, Hello};
use super::registry::{Ended, LinkId};
use crate::limits::{ASK_TIMEOUT, HANDSHAKE_TIMEOUT, LINK_SILENCE_MAX, LIVING_MAX, PROBE_TIMEOUT};
use crate::node::control_client::Caller;
use crate::session::wire::{Code, Refused};
use crate::{Error, Result};

/// Where links from other nodes come in.
pub(crate) enum ControlPort {
    /// At this address.
    Listen(String),
    /// The fabric accepts connections at the node's address, and passes them on.
    Passed(Arc<Arrivals>),
}

/// The connections that come in.
enum Incoming {
    Accepted(TcpListener),
    Passed(Arc<Arrivals>),
}

/// Ends [`Incoming`].
enum Closer {
    Socket(TcpListener),
    Arrivals(Arc<Arrivals>),
}

/// Listens at an address, at which many connections may wait to be accepted.
///
/// # Errors
/// [`Error::Os`].
pub(in crate::node) fn listen_at(address: &str) -> Result<TcpListener> {
    let listening = TcpListener::bind(address).and_then(|listener| {
        lengthen_queue(&listener)?;
        Ok(listener)
    });
    listening.map_err(|error| cannot_listen(address, &error))
}

/// Why nobody can be let in at an address, and the way out.
fn cannot_listen(address: &str, error: &io::Error) -> Error {
    let way_out = match error.kind() {
        io::ErrorKind::AddrInUse => ": another process listens there, which `ss -ltnp` names",
        io::ErrorKind::AddrNotAvailable => {
            ": `listen` has to be an address of this host, which `ip address` lists"
        }
        _ => "",
    };
    Error::os("listen at", address.as_ref())(format!("{error}{way_out}"))
}

impl ControlPort {
    fn open(self, handshakes: &Arc<Handshakes>) -> Result<(Incoming, Closer)> {
        Ok(match self {
            Self::Listen(address) => {
                let os = |action| Error::os(action, address.as_ref());
                let listener = listen_at(&address)?;
                let closer = Closer::Socket(listener.try_clone().map_err(os("listen at"))?);
                (Incoming::Accepted(listener), closer)
            }
            Self::Passed(arrivals) => {
                arrivals.knows(handshakes.clone());
                (Incoming::Passed(arrivals.clone()), Closer::Arrivals(arrivals))
            }
        })
    }
}

impl Incoming {
    /// Waits for the next connection. Returns the address from which it was accepted, too: a
    /// connection that has been reset since does not tell it.
    fn next(&self) -> io::Result<(TcpStream, IpAddr)> {
        match self {
            Self::Accepted(listener) => {
                let (stream, from) = listener.accept()?;
                Ok((stream, from.ip()))
            }
            Self::Passed(arrivals) => {
                arrivals.next().ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
            }
        }
    }
}

impl Closer {
    fn close(&self) {
        match self {
            // The shutdown wakes the thread that accepts.
            Self::Socket(listener) => {
                _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
            }
            Self::Arrivals(arrivals) => arrivals.close(),
        }
    }
}

/// A control port that listens. Dropping it closes all links.
pub(super) struct ControlListener {
    closer: Closer,
    open_links: Arc<OpenLinks>,
    thread: Option<JoinHandle<()>>,
}

/// The state of the links from one node.
#[derive(Default)]
pub(super) struct InboundState {
    /// When the node last said something.
    pub last_heard: Option<Instant>,
}

/// The links that are open.
#[derive(Default)]
struct OpenLinks {
    closing: AtomicBool,
    links: Mutex<HashMap<u64, TcpStream>>,
    log_limits: LogLimits,
}

/// The limits of log lines that other hosts can cause.
#[derive(Default)]
struct LogLimits {
    not_accepted: RateLimit,
    turned_away: RateLimit,
    /// Connections from nodes' addresses.
    refused_node: RateLimit,
    refused_stranger: RateLimit,
}

impl ControlListener {
    /// Begins to take links.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn open(port: ControlPort, plane: Arc<ControlPlane>) -> Result<Self> {
        let (incoming, closer) = port.open(&plane.handshakes)?;
        let open_links = Arc::new(OpenLinks::default());
        let theirs = open_links.clone();
        let thread = std::thread::Builder::new()
            .name("loch-control".into())
            .spawn(move || listen(&incoming, &theirs, &plane))
            .map_err(Error::os("start a thread for", "the control port".as_ref()))?;
        Ok(Self { closer, open_links, thread: Some(thread) })
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        self.open_links.closing.store(true, Ordering::Release);
        self.closer.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control port's thread had panicked");
        }
        for stream in self.open_links.links().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl OpenLinks {
    fn links(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.links.lock().expect("nothing panics while it is held")
    }

    fn close(&self, link: u64) {
        if let Some(stream) = self.links().get(&link) {
            // The shutdown fails if the other side has closed the link already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// How long to wait for descriptors when there were none left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn listen(incoming: &Incoming, open_links: &Arc<OpenLinks>, plane: &Arc<ControlPlane>) {
    // Link numbers begin at 1; 0 is `OWN_LINK`.
    let mut number = 0;
    loop {
        let accepted = incoming.next();
        if open_links.closing.load(Ordering::Acquire) {
            return;
        }
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                if let Some(unsaid) = open_links.log_limits.not_accepted.due(Instant::now()) {
                    tracing::warn!(%error, unsaid, "the control port cannot take a connection");
                }
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        number += 1;
        if !wait_for_handshake_slot(open_links, plane, number, from) {
            continue;
        }
        let Ok(clone) = stream.try_clone() else {
            plane.handshakes.leave(number);
            continue;
        };
        open_links.links().insert(number, clone);
        let (theirs, at) = (open_links.clone(), plane.clone());
        let spawned = std::thread::Builder::new().name("loch-link".into()).spawn(move || {
            let link = InboundLink { number, from, open_links: &theirs, plane: &at };
            let ended = link.receive(stream);
            tracing::debug!(%from, %ended, "a link of the control port has ended");
        });
        if spawned.is_err() {
            plane.handshakes.leave(number);
            open_links.links().remove(&number);
        }
    }
}

/// Waits until a link has a place among the handshakes. Returns whether it has one.
fn wait_for_handshake_slot(
    open_links: &OpenLinks,
    plane: &ControlPlane,
    number: u64,
    from: IpAddr,
) -> bool {
    loop {
        let entry = plane.handshakes.enter(number, from, |oldest| open_links.close(oldest));
        if entry == Entry::Entered {
            return true;
        }
        if let Some(unsaid) = open_links.log_limits.turned_away.due(Instant::now()) {
            tracing::warn!(%from, unsaid, "too many connections to the control port without a handshake");
        }
        match entry {
            // The stream of that link is shut down, so its thread ends soon.
            Entry::After(oldest) => plane.handshakes.wait_until_gone(oldest),
            Entry::TurnedAway | Entry::Entered => return false,
        }
    }
}

/// One link, from its first byte to its last.
struct InboundLink<'a> {
    number: u64,
    from: IpAddr,
    open_links: &'a OpenLinks,
    plane: &'a ControlPlane,
}

/// However a link ends, its place becomes free.
impl Drop for InboundLink<'_> {
    fn drop(&mut self) {
        self.plane.handshakes.leave(self.number);
        self.open_links.links().remove(&self.number);
    }
}

impl InboundLink<'_> {
    fn receive(&self, stream: TcpStream) -> LinkError {
        match self.enter(stream) {
            Ok((mut link, home, hello)) => self.serve(&mut link, home, &hello),
            Err(error) => {
                if !matches!(error, LinkError::Closed) {
                    self.log_refusal(&error);
                }
                error
            }
        }
    }

    fn log_refusal(&self, error: &LinkError) {
        let (limits, from) = (&self.open_links.log_limits, self.from);
        // Strangers do not use up the line that says why a node is refused.
        let limit = match self.plane.handshakes.is_nodes(from) {
            true => &limits.refused_node,
            false => &limits.refused_stranger,
        };
        if let Some(unsaid) = limit.due(Instant::now()) {
            tracing::warn!(%from, %error, unsaid, "a connection to the control port was refused");
        }
    }

    /// Reads the handshake. Returns the link, and the number and the hello of the node at its other
    /// end.
    fn enter(&self, stream: TcpStream) -> Result<(Link, usize, Hello), LinkError> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut link = Link::accept(stream, &self.plane.credentials, deadline)?;
        let members = &self.plane.members;
        let checked = match link.receive(deadline)? {
            ControlRequest::Hello(hello) => self.identify(&link, &hello).map(|home| (home, hello)),
            ControlRequest::Probe {} => return Err(self.lend_to_probe(&mut link)),
            _ => Err(LinkError::Garbage("hello comes first".into())),
        };
        match checked {
            Ok((home, hello)) => {
                self.plane.handshakes.prove(self.number, home, self.from);
                // The threads of two links may come here in any order.
                let before = self.plane.registry.take_over(self.link_id(home));
                self.open_links.close(before.ok_or(LinkError::Closed)?);
                link.send(&ControlReply::Welcome(members.hello()), deadline)?;
                Ok((link, home, hello))
            }
            Err(why) => {
                let code = match why {
                    LinkError::Impostor(_) => Code::Untrusted,
                    _ => Code::Misfit,
                };
                link.send(&ControlReply::Refused(Refused::new(code, why.to_string())), deadline)?;
                Err(why)
            }
        }
    }

    /// Returns which node is at the other end. The node has to prove its number, as far as its
    /// credentials can, before it is believed.
    fn identify(&self, link: &Link, hello: &Hello) -> Result<usize, LinkError> {
        let members = &self.plane.members;
        let home = members.check(hello, None)?;
        let (address, host) = (members.address(home), host_of(members.address(home)));
        link.vouch_for(host).map_err(|proven| {
            LinkError::Impostor(format!(
                "it says that it is node {home} at {address}, and its certificate is not for \
                 {host} ({proven}): give each node a certificate for the host by which `cluster` \
                 names it"
            ))
        })?;
        self.plane.fences().check(home, hello.process)?;
        Ok(home)
    }

    /// Answers a probe, and lends to it until its link ends or its time is over. It keeps its place
    /// among the handshakes meanwhile.
    fn lend_to_probe(&self, link: &mut Link) -> LinkError {
        let members = &self.plane.members;
        let mut hosts = (0..members.len()).map(|node| host_of(members.address(node)));
        let admitted = match hosts.any(|host| link.vouch_for(host).is_ok()) {
            true => self.plane.registry.admit_probe(),
            false => Err(Refused::new(
                Code::Untrusted,
                "its certificate is for no host of this node's `cluster` list",
            )),
        };
        let (told, _admission) = match admitted {
            Ok((admission, answer)) => {
                (ControlReply::Probed { hello: members.hello(), answer }, Some(admission))
            }
            Err(refused) => (ControlReply::Refused(refused), None),
        };
        tracing::debug!(from = %self.from, "a probe");
        if link.send(&told, Instant::now() + ASK_TIMEOUT).is_ok() {
            // A probe asks nothing more, and closes the link.
            let _ = link.receive::<ControlRequest>(Instant::now() + PROBE_TIMEOUT);
        }
        LinkError::Closed
    }

    fn link_id(&self, home: usize) -> LinkId {
        LinkId { home: home as u16, number: self.number }
    }

    fn serve(&self, link: &mut Link, home: usize, hello: &Hello) -> LinkError {
        // The clients that live, as far as the node has told on this link.
        let mut living = HashSet::new();
        loop {
            let ask = match link.receive(Instant::now() + LINK_SILENCE_MAX) {
                Ok(ask) => ask,
                Err(error) => return error,
            };
            self.plane.inbound(home).last_heard = Some(Instant::now());
            let Some(told) = self.answer(ask, (home, hello), &mut living) else {
                return LinkError::Closed;
            };
            if let Err(error) = link.send(&told, Instant::now() + ASK_TIMEOUT) {
                return error;
            }
        }
    }

    /// Returns `None` if the node speaks over another link now.
    fn answer(
        &self,
        ask: ControlRequest,
        (home, hello): (usize, &Hello),
        living: &mut HashSet<Caller>,
    ) -> Option<ControlReply> {
        let (registry, link_id) = (&self.plane.registry, self.link_id(home));
        let told = match ask {
            ControlRequest::Hello(_) | ControlRequest::Probe {} => {
                ControlReply::Refused(Refused::new(Code::Order, "hello comes once"))
            }
            ControlRequest::Living { callers, last } => {
                if living.len() + callers.len() > LIVING_MAX {
                    return Some(ControlReply::Refused(Refused::new(
                        Code::Other,
                        "more clients than can live",
                    )));
                }
                living.extend(callers);
                if !last {
                    return Some(ControlReply::Done {});
                }
                let living = std::mem::take(living);
                let ended = registry.retain(link_id, &living);
                tracing::debug!(
                    home,
                    living = living.len(),
                    ?ended,
                    "a node told which clients live"
                );
                return reply_to_ending(ended);
            }
            ControlRequest::Fence { callers } => {
                return reply_to_ending(registry.fence(link_id, &callers));
            }
            ControlRequest::Connect { caller, connect } => {
                match registry.admit(link_id, caller, &connect) {
                    Ok(answer) => {
                        // Not before: the node may refuse this one, and be started fresh then.
                        self.plane.members.meet(home, hello);
                        ControlReply::Connected { answer }
                    }
                    Err(refused) => ControlReply::Refused(refused),
                }
            }
            ControlRequest::Ask(question) => {
                self.plane.ask_own(question).map_or_else(ControlReply::Refused, ControlReply::Told)
            }
            ControlRequest::Ping(state) => {
                self.plane.members.heard(home, state);
                ControlReply::Pong(self.plane.members.own_state())
            }
        };
        Some(told)
    }
}

fn reply_to_ending(ended: Ended) -> Option<ControlReply> {
    match ended {
        Ended::All => Some(ControlReply::Done {}),
        Ended::NotYet => Some(ControlReply::Later {}),
        Ended::Superseded => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_listen_is_told_why_and_what_helps() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().to_string();
        // An address of documents, which no host has.
        for (address, way_out) in [(&*taken, "ss -ltnp"), ("192.0.2.1:7400", "ip address")] {
            let error = TcpListener::bind(address).map(drop).unwrap_err();
            let told = cannot_listen(address, &error).to_string();
            assert!(told.contains(address) && told.contains(way_out), "{told}");
        }
    }
}
