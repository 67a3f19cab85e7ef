//! The node's only thread that waits for clients. It handles connections, sessions and deaths.
//!
//! # Invariants
//! 1. The thread waits without a timeout, and uses no CPU when there is nothing to do. After a
//!    connection could not be accepted for lack of descriptors, the thread looks again once a
//!    second; and so it does while sessions of the last node's clients go on whose processes have
//!    no number here.
//! 2. The thread never waits for one client, nor for another node. The control plane finds replies
//!    that need other nodes, and the thread sends them when they have come.
//! 3. Every process with a session is watched by a pidfd, so a session ends with its process
//!    whatever becomes of the connection. Only a process of another PID namespace, whose session
//!    was opened at the last node, is watched by the locks of its slots, until it connects again.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::client_connection::{ClientConnection, NextStep, SessionService};
use super::control_client::{Caller, ControlClient, ReplyQueue};
use super::listener::{self, Listener};
use super::region::OwnedRegion;
use super::scrubber::ScrubberHandle;
use super::sessions::{SessionEnd, Sessions};
use super::workers::Inspector;
use crate::limits::CONNECTIONS_MAX;
use crate::session::slot::{Process, SessionId};
use crate::session::wire::{Code, Connect, Question, Refused, Reply, Welcome};
use crate::{Error, Result};

/// The node's state that the server gives clients access to.
pub(super) struct NodeState {
    pub welcome: Welcome,
    pub region: OwnedRegion,
    pub sessions: Arc<Sessions>,
    pub scrubber: ScrubberHandle,
    /// Asks the node's workers what they have.
    pub inspector: Inspector,
    /// Set where memory is reached over a network. It then tells the scrubber when a session was
    /// fenced.
    pub control: Option<Arc<dyn ControlClient>>,
}

/// Stops a server from another thread.
pub(super) struct StopSwitch {
    stopping: AtomicBool,
    event: OwnedFd,
}

/// The state of the server's thread.
pub(super) struct Server {
    poll: OwnedFd,
    listener: Listener,
    /// Whether the listener is watched. It is not while no more connections can be held.
    accepting: bool,
    stop: Arc<StopSwitch>,
    service: NodeService,
    connections: HashMap<u64, (ClientConnection, epoll::EventFlags)>,
    next_token: u64,
    /// Shows that something happened to the region file's name, until the file is gone.
    region_watch: Option<OwnedFd>,
}

/// The node, as connections see it.
struct NodeService {
    state: NodeState,
    watches: ProcessWatches,
    /// Replies that the control plane and the workers have found.
    replies: Arc<ReplyQueue>,
}

/// The processes that hold sessions.
struct ProcessWatches {
    poll: OwnedFd,
    /// The token is that of the descriptor in `poll`. The system uses a process number again, but a
    /// token is never used again.
    pidfds: HashMap<Process, (u64, OwnedFd)>,
    next_token: u64,
    /// Ticks while there are processes that are watched by their locks.
    locks: Option<OwnedFd>,
}

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const REPLIES: u64 = 2;
const LOCKS: u64 = 3;
const REGION: u64 = 4;
/// Tokens from here on are connections. A token with the bit below set is a process.
const FIRST_CONNECTION: u64 = 5;
const PROCESS: u64 = 1 << 63;

/// How long the server waits for descriptors when there were none left.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The pause between two looks at the locks of sessions.
const LOCKS_PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The number of events that one call takes.
const EVENTS: usize = 64;

impl StopSwitch {
    /// Makes a switch that is off.
    pub fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { stopping: AtomicBool::new(false), event })
    }

    /// The descriptor that becomes readable when the switch is turned on.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Turns the switch on; the server ends soon.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // The write fails only if the count is full, and then the server has been woken already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Server {
    /// Makes a server that watches the listener, and the processes whose sessions were kept.
    ///
    /// # Errors
    /// [`Error::Os`] if the system gives no more descriptors.
    pub fn new(state: NodeState, listener: Listener, stop: Arc<StopSwitch>) -> Result<Self> {
        let failed = |e: Errno| Error::os("watch", listener.path())(e);
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&poll, &listener.fd, data(LISTENER), epoll::EventFlags::IN).map_err(failed)?;
        epoll::add(&poll, &stop.event, data(STOP), epoll::EventFlags::IN).map_err(failed)?;
        let watches = ProcessWatches {
            poll: poll.try_clone().map_err(Error::os("watch", listener.path()))?,
            pidfds: HashMap::new(),
            next_token: PROCESS,
            locks: None,
        };
        let replies = Arc::new(ReplyQueue::new().map_err(failed)?);
        epoll::add(&poll, &replies, data(REPLIES), epoll::EventFlags::IN).map_err(failed)?;
        let region_watch = watch_region(&poll, &state.region);
        let mut service = NodeService { state, watches, replies };
        for process in service.state.sessions.processes() {
            service.watch(process, None);
        }
        Ok(Self {
            poll,
            listener,
            accepting: true,
            stop,
            service,
            connections: HashMap::new(),
            next_token: FIRST_CONNECTION,
            region_watch,
        })
    }

    /// Serves until it is stopped, and gives the region back when all connections are closed. The
    /// clients' sessions go on.
    pub fn run(mut self) -> OwnedRegion {
        // The start has succeeded, so the region is kept from now on.
        self.service.state.region.in_vain = false;
        self.look_for_region();
        let mut events = Vec::with_capacity(EVENTS);
        while !self.stop.stopping.load(Ordering::Acquire) {
            events.clear();
            let into = rustix::buffer::spare_capacity(&mut events);
            let timeout = (!self.accepting).then_some(&ACCEPT_PAUSE);
            match epoll::wait(&self.poll, into, timeout) {
                Ok(0) => self.watch_listener(true),
                Ok(_) | Err(Errno::INTR) => (),
                Err(error) => {
                    tracing::error!(%error, "cannot wait for clients: the node stops serving");
                    break;
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => (),
                    REPLIES => self.deliver(),
                    LOCKS => self.service.reap_unlocked(),
                    REGION => self.look_for_region(),
                    token if token & PROCESS != 0 => self.service.reap(token),
                    token => self.go_on(token, event.flags),
                }
            }
        }
        self.service.state.region
    }

    /// Says so if the region file is gone, once.
    fn look_for_region(&mut self) {
        let Some(watch) = &self.region_watch else { return };
        // What has happened matters less than what is there now.
        while rustix::io::read(watch, &mut [0; 1024]).is_ok_and(|bytes| bytes > 0) {}
        let region = &self.service.state.region;
        if !region.is_in_place().unwrap_or(false) {
            tracing::error!(
                region = %region.path.display(),
                "the region file was deleted or renamed: the data ends with this node and its \
                 clients"
            );
            self.region_watch = None;
        }
    }

    /// Accepts all connections that wait.
    fn accept(&mut self) {
        loop {
            if self.connections.len() >= CONNECTIONS_MAX {
                return self.watch_listener(false);
            }
            match self.listener.accept() {
                Ok(Some(stream)) => self.admit(stream),
                Ok(None) => return,
                Err(error) => {
                    // Most likely too many descriptors are open.
                    tracing::warn!(%error, "cannot take a connection");
                    return self.watch_listener(false);
                }
            }
        }
    }

    /// Hands out replies that have come. A connection that was closed meanwhile needs no reply.
    fn deliver(&mut self) {
        for (token, reply) in self.service.replies.take() {
            if let Some((connection, _)) = self.connections.get_mut(&token) {
                connection.deliver(&reply);
                self.go_on(token, epoll::EventFlags::empty());
            }
        }
    }

    fn admit(&mut self, stream: OwnedFd) {
        let Ok((peer, welcome)) = listener::identify(&stream) else {
            return;
        };
        let token = self.next_token;
        self.next_token += 1;
        let connection = if welcome {
            ClientConnection::new(stream, peer, token)
        } else {
            ClientConnection::refusal(stream, peer, token)
        };
        let interest = epoll::EventFlags::IN;
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.poll, connection.stream(), data, interest) {
            tracing::warn!(%error, "cannot watch a connection");
            return;
        }
        self.connections.insert(token, (connection, interest));
        self.go_on(token, epoll::EventFlags::empty());
    }

    fn go_on(&mut self, token: u64, event: epoll::EventFlags) {
        // The event may be for a connection that an earlier event closed.
        let Some((connection, interest)) = self.connections.get_mut(&token) else {
            return;
        };
        let next = connection.advance(&mut self.service);
        let wanted = match next {
            NextStep::Receive => epoll::EventFlags::IN,
            NextStep::Send => epoll::EventFlags::OUT,
            // The system reports a client that hangs up even though no event was asked for.
            NextStep::Wait if event.contains(epoll::EventFlags::HUP) => {
                return self.close(token, NextStep::Closed);
            }
            NextStep::Wait => epoll::EventFlags::empty(),
            NextStep::Closed | NextStep::Close => return self.close(token, next),
        };
        if wanted != *interest {
            let data = epoll::EventData::new_u64(token);
            match epoll::modify(&self.poll, connection.stream(), data, wanted) {
                Ok(()) => *interest = wanted,
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a connection");
                    self.close(token, NextStep::Close);
                }
            }
        }
    }

    /// Closes a connection. If the client closed it, the client is done with its sessions, or dead.
    fn close(&mut self, token: u64, how: NextStep) {
        let Some((connection, _)) = self.connections.remove(&token) else {
            return;
        };
        if let (NextStep::Closed, Some((sessions, process))) = (how, connection.sessions()) {
            let all = &self.service.state.sessions;
            let ended =
                sessions.iter().filter(|s| all.close(**s, process, SessionEnd::Died).is_some());
            self.service.sessions_died(ended.count(), process);
        }
        if let Some(token) = connection.readers() {
            self.service.leave(token);
        }
        drop(connection);
        self.watch_listener(true);
    }

    /// Watches the listener, or stops watching it. A listener whose connections cannot be served
    /// must not make the thread spin.
    fn watch_listener(&mut self, watch: bool) {
        if watch == self.accepting {
            return;
        }
        let interest = if watch { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(LISTENER);
        match epoll::modify(&self.poll, &self.listener.fd, data, interest) {
            Ok(()) => self.accepting = watch,
            Err(error) => tracing::error!(%error, "cannot watch the socket"),
        }
    }
}

impl SessionService for NodeService {
    fn welcome(&self) -> &Welcome {
        &self.state.welcome
    }

    fn region(&self, read_only: bool) -> BorrowedFd<'_> {
        let region = &self.state.region;
        if read_only { region.readable.as_fd() } else { region.writable.as_fd() }
    }

    fn open_session(
        &mut self,
        process: Process,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Option<SessionId> {
        let opened = self.state.sessions.open(process)?;
        self.watch(process, pidfd);
        Some(opened)
    }

    fn close_session(&mut self, session: SessionId, process: Process) -> bool {
        let Some(how) = self.state.sessions.close(session, process, SessionEnd::Left) else {
            return false;
        };
        self.ended(how);
        self.unwatch_idle(process);
        true
    }

    fn member(&self, node: u16) -> Reply {
        match &self.state.control {
            Some(control) => control.member(node),
            None => shared(),
        }
    }

    fn connect(
        &mut self,
        token: u64,
        caller: Caller,
        process: Option<Process>,
        ask: Connect,
    ) -> Option<Reply> {
        let Some(control) = &self.state.control else {
            return Some(shared());
        };
        if let Caller::Session(session) = caller
            && !process.is_some_and(|process| self.state.sessions.holds(session, process))
        {
            let text = format!("this process has no session {session:?}");
            return Some(Reply::Refused(Refused::new(Code::NoSuchSession, text)));
        }
        control.connect(caller, ask, self.replies.clone(), token);
        None
    }

    fn leave(&mut self, connection: u64) {
        if let Some(control) = &self.state.control {
            control.leave(connection);
        }
    }

    fn ask(&mut self, token: u64, node: u16, question: Question) -> Option<Reply> {
        let replies = self.replies.clone();
        if node != self.state.welcome.node {
            let Some(control) = &self.state.control else { return Some(shared()) };
            control.ask(node, question, replies, token);
            return None;
        }
        let answer = move |told| replies.send(token, Reply::Told(told));
        let table = question.table;
        if self.state.inspector.ask(question, Box::new(answer)) {
            return None;
        }
        let text = format!("table {table} has no such workers here");
        Some(Reply::Refused(Refused::new(Code::Other, text)))
    }
}

/// Watches the name of the region file. A node can do without.
fn watch_region(poll: &OwnedFd, region: &OwnedRegion) -> Option<OwnedFd> {
    let watched = region.watch().and_then(|watch| {
        epoll::add(poll, &watch, epoll::EventData::new_u64(REGION), epoll::EventFlags::IN)?;
        Ok(watch)
    });
    let said =
        |error| tracing::warn!(%error, "cannot watch the region file: its end goes unnoticed");
    watched.map_err(said).ok()
}

/// The reply to a client that asks for connections where memory is shared.
fn shared() -> Reply {
    let text = "the memory of this cluster is shared: it is mapped, not connected to";
    Reply::Refused(Refused::new(Code::Other, text))
}

impl NodeService {
    /// Called after sessions have ended. The scrubber puts in order what they held once they are
    /// fenced.
    fn ended(&self, how: SessionEnd) {
        match &self.state.control {
            Some(control) => control.sessions_ended(),
            None => self.state.scrubber.ended(how == SessionEnd::Died),
        }
    }

    /// Called after sessions of a process ended without a request of the client.
    fn sessions_died(&mut self, ended: usize, process: Process) {
        if ended > 0 {
            tracing::info!(%process, sessions = ended, "a client is gone");
            self.ended(SessionEnd::Died);
        }
        self.unwatch_idle(process);
    }

    /// Makes the sessions of a process end with the process.
    fn watch(&mut self, process: Process, pidfd: Option<BorrowedFd<'_>>) {
        if !self.watches.watch(process, pidfd) {
            let ended = self.state.sessions.close_all_of(process);
            self.sessions_died(ended, process);
        }
    }

    /// Ends the sessions of a process that died.
    fn reap(&mut self, token: u64) {
        let mut watched = self.watches.pidfds.iter();
        if let Some((&process, _)) = watched.find(|(_, (t, _))| *t == token) {
            let ended = self.state.sessions.close_all_of(process);
            self.sessions_died(ended, process);
        }
    }

    /// Ends the sessions of processes that are watched by their locks, and hold them no more. Only
    /// sessions that were there before this node count: a client locks the slot of a new one a
    /// moment after it was opened.
    fn reap_unlocked(&mut self) {
        let sessions = self.state.sessions.clone();
        let by_locks =
            |process: &Process| process.is_unseen() && !self.watches.pidfds.contains_key(process);
        let watched: Vec<_> = sessions.processes().into_iter().filter(by_locks).collect();
        for process in &watched {
            let ended = sessions.close_unlocked_of(*process);
            self.sessions_died(ended, *process);
        }
        let tick = &mut [0; size_of::<u64>()];
        match &self.watches.locks {
            // Ticks that were missed are one event.
            Some(ticks) if !watched.is_empty() => drop(rustix::io::read(ticks, tick)),
            _ => self.watches.locks = None,
        }
    }

    fn unwatch_idle(&mut self, process: Process) {
        if !self.state.sessions.has_any_of(process) {
            self.watches.unwatch(process);
        }
    }
}

impl ProcessWatches {
    /// Watches a process, if it is not watched already: by this descriptor if it has no number
    /// here, or else by the locks of its sessions. Returns whether the process lives.
    fn watch(&mut self, process: Process, pidfd: Option<BorrowedFd<'_>>) -> bool {
        if self.pidfds.contains_key(&process) {
            return true;
        }
        let token = self.next_token;
        self.next_token += 1;
        let opened = match pidfd {
            Some(pidfd) => rustix::io::fcntl_dupfd_cloexec(pidfd, 0),
            None if process.is_unseen() => return self.watch_locks(),
            None => i32::try_from(process.pid)
                .ok()
                .and_then(Pid::from_raw)
                .ok_or(Errno::SRCH)
                .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())),
        };
        let watched = opened.and_then(|pidfd| {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&self.poll, &pidfd, data, epoll::EventFlags::IN)?;
            Ok(pidfd)
        });
        match watched {
            // The number may have been given to another process before the pidfd was opened.
            Ok(_) if !process.is_unseen() && process.is_gone() => false,
            Ok(pidfd) => {
                self.pidfds.insert(process, (token, pidfd));
                true
            }
            Err(Errno::SRCH) => false,
            Err(error) => {
                // The sessions of the process end with its connection, or when the node starts
                // again.
                tracing::warn!(%process, %error, "cannot watch a client");
                true
            }
        }
    }

    /// Watches a process no more.
    fn unwatch(&mut self, process: Process) {
        if let Some((_, pidfd)) = self.pidfds.remove(&process)
            // The connection has another descriptor of the same file: closing this one is no end.
            && let Err(error) = epoll::delete(&self.poll, &pidfd)
        {
            tracing::warn!(%process, %error, "cannot stop watching a client");
        }
    }

    /// Has the locks of sessions looked at once a second.
    fn watch_locks(&mut self) -> bool {
        if self.locks.is_some() {
            return true;
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let ticks = timerfd_create(TimerfdClockId::Monotonic, flags).and_then(|ticks| {
            let each = Itimerspec { it_interval: LOCKS_PAUSE, it_value: LOCKS_PAUSE };
            timerfd_settime(&ticks, TimerfdTimerFlags::empty(), &each)?;
            let data = epoll::EventData::new_u64(LOCKS);
            epoll::add(&self.poll, &ticks, data, epoll::EventFlags::IN)?;
            Ok(ticks)
        });
        match ticks {
            Ok(ticks) => self.locks = Some(ticks),
            Err(error) => tracing::warn!(%error, "cannot watch clients of other PID namespaces"),
        }
        true
    }
}
