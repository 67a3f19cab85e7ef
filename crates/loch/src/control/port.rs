//! The control port: takes links from other nodes, and does what they ask.
//!
//! # Invariants
//! 1. What a node asks is done only on its newest link: when it has said on that who lives, nothing
//!    that it asked before is done afterwards. The registry sees to it ([`super::gate`], invariant 4).
//! 2. What was asked is done before it is answered: who is told `done` to a fence may count on it. If
//!    that lasts the answer is `later`: no lock is held meanwhile, and no other request waits.

use std::collections::{HashMap, HashSet};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Hub;
use super::channel::LinkError;
use super::gate::{Ended, Speaker};
use super::link::Link;
use super::messages::{Ask, Told};
use crate::Error;
use crate::limits::{ASK_TIMEOUT, HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, LINK_SILENCE_MAX, LIVING_MAX};
use crate::node::courier::Caller;
use crate::wire::{Code, Refused};

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
    /// Links whose other side has not proven who it is.
    handshakes: AtomicUsize,
    links: Mutex<HashMap<u64, TcpStream>>,
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
                tracing::warn!(%error, "the control port cannot take a connection");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if doors.handshakes.load(Ordering::Acquire) >= HANDSHAKES_MAX {
            tracing::warn!(%from, "too many strangers at the control port: turned away");
            continue;
        }
        let Ok(clone) = stream.try_clone() else {
            continue;
        };
        number += 1;
        doors.links().insert(number, clone);
        doors.handshakes.fetch_add(1, Ordering::AcqRel);
        let (theirs, hub) = (doors.clone(), hub.clone());
        let spawned = std::thread::Builder::new().name("loch-link".into()).spawn(move || {
            let ended = Visit { number, doors: &theirs, hub: &hub }.receive(stream);
            tracing::debug!(%from, %ended, "a link of the control port has ended");
            theirs.links().remove(&number);
        });
        if spawned.is_err() {
            doors.handshakes.fetch_sub(1, Ordering::AcqRel);
            doors.links().remove(&number);
        }
    }
}

/// One link, from its first byte to its last.
struct Visit<'a> {
    number: u64,
    doors: &'a Doors,
    hub: &'a Hub,
}

impl Visit<'_> {
    fn receive(&self, stream: TcpStream) -> LinkError {
        let entered = self.enter(stream);
        self.doors.handshakes.fetch_sub(1, Ordering::AcqRel);
        match entered {
            Ok((mut link, home)) => self.serve(&mut link, home),
            Err(error) => {
                if !matches!(error, LinkError::Closed) {
                    tracing::warn!(%error, "somebody was refused at the control port");
                }
                error
            }
        }
    }

    /// Until it is clear that a node of this cluster is there, and which one.
    fn enter(&self, stream: TcpStream) -> Result<(Link, usize), LinkError> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut link = Link::accept(stream, &self.hub.credentials, deadline)?;
        let roster = &self.hub.roster;
        let checked = match link.receive(deadline)? {
            Ask::Hello(hello) => roster.check(&hello, None),
            _ => Err(LinkError::Garbage("hello comes first".into())),
        };
        match checked {
            Ok(home) => {
                // The threads of two links may come here in any order.
                let before = self.hub.registry.hear(self.speaker(home));
                self.doors.close(before.ok_or(LinkError::Closed)?);
                link.send(&Told::Welcome(roster.hello()), deadline)?;
                Ok((link, home))
            }
            Err(why) => {
                let refused = Refused::new(Code::Misfit, why.to_string());
                link.send(&Told::Refused(refused), deadline)?;
                Err(why)
            }
        }
    }

    fn speaker(&self, home: usize) -> Speaker {
        Speaker { home: home as u16, link: self.number }
    }

    fn serve(&self, link: &mut Link, home: usize) -> LinkError {
        // Those that live, as far as it has told on this link.
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
