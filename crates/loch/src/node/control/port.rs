//! The control port: takes links from other nodes, and does what they ask.
//!
//! # Invariants
//! 1. What a node asks is done only on its newest link: when it has said on that who lives, nothing
//!    that it asked before is done afterwards. The registry sees to it ([`super::gate`], invariant
//!    5).
//! 2. What was asked is done before it is answered: who is told `done` to a fence may count on it.
//!    If that lasts the answer is `later`: no lock is held meanwhile, and no other request waits.
//! 3. Nobody can have a line logged as often as he likes ([`Seldom`]).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Hub;
use super::channel::LinkError;
use super::gate::{Ended, Speaker};
use super::handshakes::Entry;
use super::link::{Link, host_of};
use super::messages::{Ask, Hello, Told};
use super::seldom::Seldom;
use crate::Error;
use crate::limits::{ASK_TIMEOUT, HANDSHAKE_TIMEOUT, LINK_SILENCE_MAX, LIVING_MAX};
use crate::node::control_client::Caller;
use crate::session::wire::{Code, Refused};

/// A port that listens. Dropping it closes all links.
pub(super) struct Port {
    listener: TcpListener,
    doors: Arc<Doors>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of the links from one node.
#[derive(Default)]
pub(super) struct Inbound {
    /// When it last said something.
    pub last_heard: Option<Instant>,
}

/// The links there are.
#[derive(Default)]
struct Doors {
    closing: AtomicBool,
    links: Mutex<HashMap<u64, TcpStream>>,
    said: Said,
}

/// What was logged.
#[derive(Default)]
struct Said {
    not_accepted: Seldom,
    turned_away: Seldom,
    /// Of connections from nodes' addresses.
    refused_node: Seldom,
    refused_stranger: Seldom,
}

impl Port {
    /// Listens at `address`.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn open(address: &str, hub: Arc<Hub>) -> Result<Self, Error> {
        let os = |action| Error::os(action, address.as_ref());
        let listener = TcpListener::bind(address).map_err(os("listen at"))?;
        let doors = Arc::new(Doors::default());
        let (ear, theirs) = (listener.try_clone().map_err(os("listen at"))?, doors.clone());
        let thread = std::thread::Builder::new()
            .name("loch-control".into())
            .spawn(move || listen(&ear, &theirs, &hub))
            .map_err(os("start a thread for"))?;
        Ok(Self { listener, doors, thread: Some(thread) })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.doors.closing.store(true, Ordering::Release);
        // It wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control port's thread had panicked");
        }
        for stream in self.doors.links().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Doors {
    fn links(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.links.lock().expect("nothing panics while it is held")
    }

    fn close(&self, link: u64) {
        if let Some(stream) = self.links().get(&link) {
            // It fails if the other side has closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// How long to wait for descriptors when there were none left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn listen(listener: &TcpListener, doors: &Arc<Doors>, hub: &Arc<Hub>) {
    // Zero is nobody's.
    let mut number = 0;
    loop {
        let accepted = listener.accept();
        if doors.closing.load(Ordering::Acquire) {
            return;
        }
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(unsaid) = doors.said.not_accepted.due(Instant::now()) {
                    tracing::warn!(%error, unsaid, "the control port cannot take a connection");
                }
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        number += 1;
        if !find_place(doors, hub, number, from.ip()) {
            continue;
        }
        let Ok(clone) = stream.try_clone() else {
            hub.handshakes.leave(number);
            continue;
        };
        doors.links().insert(number, clone);
        let (theirs, at) = (doors.clone(), hub.clone());
        let spawned = std::thread::Builder::new().name("loch-link".into()).spawn(move || {
            let visit = Visit { number, from: from.ip(), doors: &theirs, hub: &at };
            let ended = visit.receive(stream);
            tracing::debug!(%from, %ended, "a link of the control port has ended");
        });
        if spawned.is_err() {
            hub.handshakes.leave(number);
            doors.links().remove(&number);
        }
    }
}

/// Finds a link a place among those that have to prove who they are; whether there is one.
fn find_place(doors: &Doors, hub: &Hub, number: u64, from: IpAddr) -> bool {
    loop {
        let entry = hub.handshakes.enter(number, from, |oldest| doors.close(oldest));
        if entry == Entry::Entered {
            return true;
        }
        if let Some(unsaid) = doors.said.turned_away.due(Instant::now()) {
            tracing::warn!(%from, unsaid, "too many at the control port who do not say who they are");
        }
        match entry {
            // Its stream is shut, so its thread does not wait for anybody any more.
            Entry::After(oldest) => hub.handshakes.wait_until_gone(oldest),
            Entry::TurnedAway | Entry::Entered => return false,
        }
    }
}

/// One link, from its first byte to its last.
struct Visit<'a> {
    number: u64,
    from: IpAddr,
    doors: &'a Doors,
    hub: &'a Hub,
}

/// However it ends: its place is somebody else's.
impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.hub.handshakes.leave(self.number);
        self.doors.links().remove(&self.number);
    }
}

impl Visit<'_> {
    fn receive(&self, stream: TcpStream) -> LinkError {
        match self.enter(stream) {
            Ok((mut link, home)) => self.serve(&mut link, home),
            Err(error) => {
                if !matches!(error, LinkError::Closed) {
                    self.say_refused(&error);
                }
                error
            }
        }
    }

    fn say_refused(&self, error: &LinkError) {
        let (said, from) = (&self.doors.said, self.from);
        // Strangers do not use up the line that says why a node is refused.
        let said = match self.hub.handshakes.is_nodes(from) {
            true => &said.refused_node,
            false => &said.refused_stranger,
        };
        if let Some(unsaid) = said.due(Instant::now()) {
            tracing::warn!(%from, %error, unsaid, "somebody was refused at the control port");
        }
    }

    /// Until it is clear that a node of this cluster is there, and which one.
    fn enter(&self, stream: TcpStream) -> Result<(Link, usize), LinkError> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut link = Link::accept(stream, &self.hub.credentials, deadline)?;
        let roster = &self.hub.roster;
        let checked = match link.receive(deadline)? {
            Ask::Hello(hello) => self.identify(&link, &hello),
            _ => Err(LinkError::Garbage("hello comes first".into())),
        };
        match checked {
            Ok(home) => {
                self.hub.handshakes.prove(self.number, home, self.from);
                // The threads of two links may come here in any order.
                let before = self.hub.registry.hear(self.speaker(home));
                self.doors.close(before.ok_or(LinkError::Closed)?);
                link.send(&Told::Welcome(roster.hello()), deadline)?;
                Ok((link, home))
            }
            Err(why) => {
                let code = match why {
                    LinkError::Impostor(_) => Code::Untrusted,
                    _ => Code::Misfit,
                };
                link.send(&Told::Refused(Refused::new(code, why.to_string())), deadline)?;
                Err(why)
            }
        }
    }

    /// Which node is there. Nothing that it says is believed before it has proven that, as far as
    /// its credentials can.
    fn identify(&self, link: &Link, hello: &Hello) -> Result<usize, LinkError> {
        let roster = &self.hub.roster;
        let home = roster.check(hello, None)?;
        let (address, host) = (roster.address(home), host_of(roster.address(home)));
        link.vouch_for(host).map_err(|proven| {
            LinkError::Impostor(format!(
                "it says that it is node {home} at {address}, and its certificate is not for \
                 {host} ({proven}): give each node a certificate for the host by which `cluster` \
                 names it"
            ))
        })?;
        self.hub.fences().check(home, hello.process)?;
        Ok(home)
    }

    fn speaker(&self, home: usize) -> Speaker {
        Speaker { home: home as u16, link: self.number }
    }

    fn serve(&self, link: &mut Link, home: usize) -> LinkError {
        // The clients that live, as far as the node has told on this link.
        let mut living = HashSet::new();
        loop {
            let ask = match link.receive(Instant::now() + LINK_SILENCE_MAX) {
                Ok(ask) => ask,
                Err(error) => return error,
            };
            self.hub.inbound(home).last_heard = Some(Instant::now());
            let Some(told) = self.answer(ask, home, &mut living) else {
                return LinkError::Closed;
            };
            if let Err(error) = link.send(&told, Instant::now() + ASK_TIMEOUT) {
                return error;
            }
        }
    }

    /// Nothing if the node speaks over another link now.
    fn answer(&self, ask: Ask, home: usize, living: &mut HashSet<Caller>) -> Option<Told> {
        let (registry, speaker) = (&self.hub.registry, self.speaker(home));
        let told = match ask {
            Ask::Hello(_) => Told::Refused(Refused::new(Code::Order, "hello comes once")),
            Ask::Living { callers, last } => {
                if living.len() + callers.len() > LIVING_MAX {
                    return Some(Told::Refused(Refused::new(Code::Other, "so many cannot live")));
                }
                living.extend(callers);
                if !last {
                    return Some(Told::Done {});
                }
                let living = std::mem::take(living);
                let ended = registry.retain(speaker, &living);
                tracing::debug!(home, living = living.len(), ?ended, "a node said who lives");
                return told_of(ended);
            }
            Ask::Fence { callers } => return told_of(registry.fence(speaker, &callers)),
            Ask::Connect { caller, connect } => match registry.admit(speaker, caller, &connect) {
                Ok(answer) => Told::Connected { answer },
                Err(refused) => Told::Refused(refused),
            },
            Ask::Inspect { table } => {
                self.hub.told_of(table).map_or_else(Told::Refused, Told::Inspected)
            }
            Ask::Ping { sessions_taken } => {
                self.hub.roster.count_sessions(home, sessions_taken);
                Told::Pong { sessions_taken: self.hub.roster.sessions_taken() }
            }
        };
        Some(told)
    }
}

fn told_of(ended: Ended) -> Option<Told> {
    match ended {
        Ended::All => Some(Told::Done {}),
        Ended::NotYet => Some(Told::Later {}),
        Ended::Superseded => None,
    }
}
