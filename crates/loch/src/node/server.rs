//! The node's one thread that waits for clients: connections, sessions, deaths.
//!
//! # Invariants
//! 1. It waits without a timeout: with nothing to do it uses no CPU. (But when it could not take a
//!    connection for lack of descriptors, it looks again once a second.)
//! 2. It never waits for one client, nor for another node: what others have to find is asked of the
//!    node's control plane, and delivered when it is there.
//! 3. Every process with a session is watched (pidfd), so a session ends with its process whatever
//!    becomes of the connection.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::admission::{self, Door};
use super::conversation::{Conversation, Desk, Turn};
use super::courier::{Caller, Courier, Post, Readers};
use super::region::Owned;
use super::scrubber::Bell;
use super::sessions::{End, Sessions};
use super::workers::Orders;
use crate::Error;
use crate::limits::CONNECTIONS_MAX;
use crate::session::slot::{Opened, Process};
use crate::session::wire::{Code, Connect, Refused, Reply, Welcome};

/// What the server hands out.
pub(super) struct Counter {
    pub welcome: Welcome,
    pub region: Owned,
    pub sessions: Arc<Sessions>,
    pub bell: Bell,
    /// To the workers.
    pub orders: Orders,
    /// Where memory is reached over a network: it rings the bell when a session was fenced.
    pub courier: Option<Arc<dyn Courier>>,
}

/// Stops a server from another thread.
pub(super) struct StopSwitch {
    stopping: AtomicBool,
    event: OwnedFd,
}

/// The state of the thread.
pub(super) struct Server {
    poll: OwnedFd,
    door: Door,
    /// Whether the door is watched: not while no more connections can be held.
    accepting: bool,
    stop: Arc<StopSwitch>,
    desk: NodeDesk,
    conversations: HashMap<u64, (Conversation, epoll::EventFlags)>,
    next_token: u64,
}

/// The node, as conversations see it.
struct NodeDesk {
    counter: Counter,
    watches: Watches,
    /// Replies that others found.
    post: Arc<Post>,
}

/// The processes that hold sessions.
struct Watches {
    poll: OwnedFd,
    /// With the token of each in `poll`. A number is used again by the system, a token is not.
    pidfds: HashMap<Process, (u64, OwnedFd)>,
    next_token: u64,
}

const DOOR: u64 = 0;
const STOP: u64 = 1;
const POST: u64 = 2;
/// Tokens from here on are connections; with this bit set they are processes.
const FIRST_CONNECTION: u64 = 3;
const PROCESS: u64 = 1 << 63;

/// How long to wait for descriptors when there were none left.
const DOOR_PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Events taken at a time.
const EVENTS: usize = 64;

impl StopSwitch {
    /// A switch that is off.
    pub fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { stopping: AtomicBool::new(false), event })
    }

    /// What becomes readable when it is turned on.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Turns it on; the server ends soon.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // It fails only if the count is full, and then the server has been woken already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Server {
    /// A server that watches the door, and the processes whose sessions were kept.
    ///
    /// # Errors
    /// [`Error::Os`] if the system gives no more descriptors.
    pub fn new(counter: Counter, door: Door, stop: Arc<StopSwitch>) -> Result<Self, Error> {
        let failed = |e: Errno| Error::os("watch", door.path())(e);
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&poll, &door.listener, data(DOOR), epoll::EventFlags::IN).map_err(failed)?;
        epoll::add(&poll, &stop.event, data(STOP), epoll::EventFlags::IN).map_err(failed)?;
        let watches = Watches {
            poll: poll.try_clone().map_err(Error::os("watch", door.path()))?,
            pidfds: HashMap::new(),
            next_token: PROCESS,
        };
        let post = Arc::new(Post::new().map_err(failed)?);
        epoll::add(&poll, &post, data(POST), epoll::EventFlags::IN).map_err(failed)?;
        let mut desk = NodeDesk { counter, watches, post };
        for process in desk.counter.sessions.processes() {
            desk.watch(process);
        }
        Ok(Self {
            poll,
            door,
            accepting: true,
            stop,
            desk,
            conversations: HashMap::new(),
            next_token: FIRST_CONNECTION,
        })
    }

    /// Serves until it is stopped. Gives the region back when all connections are closed; the
    /// clients' sessions go on.
    pub fn run(mut self) -> Owned {
        // The start is over.
        self.desk.counter.region.in_vain = false;
        let mut events = Vec::with_capacity(EVENTS);
        while !self.stop.stopping.load(Ordering::Acquire) {
            events.clear();
            let into = rustix::buffer::spare_capacity(&mut events);
            let timeout = (!self.accepting).then_some(&DOOR_PAUSE);
            match epoll::wait(&self.poll, into, timeout) {
                Ok(0) => self.watch_door(true),
                Ok(_) | Err(Errno::INTR) => (),
                Err(error) => {
                    tracing::error!(%error, "cannot wait for clients: the node stops serving");
                    break;
                }
            }
            for event in &events {
                match event.data.u64() {
                    DOOR => self.accept(),
                    STOP => (),
                    POST => self.deliver(),
                    token if token & PROCESS != 0 => self.desk.bury(token),
                    token => self.converse(token, event.flags),
                }
            }
        }
        self.desk.counter.region
    }

    /// Takes everybody in who waits.
    fn accept(&mut self) {
        loop {
            if self.conversations.len() >= CONNECTIONS_MAX {
                return self.watch_door(false);
            }
            match self.door.accept() {
                Ok(Some(stream)) => self.admit(stream),
                Ok(None) => return,
                Err(error) => {
                    // Too many descriptors are open, most likely.
                    tracing::warn!(%error, "cannot take a connection");
                    return self.watch_door(false);
                }
            }
        }
    }

    /// Hands out replies that others found. Who has gone meanwhile needs none.
    fn deliver(&mut self) {
        for (token, reply) in self.desk.post.take() {
            if let Some((conversation, _)) = self.conversations.get_mut(&token) {
                conversation.deliver(&reply);
                self.converse(token, epoll::EventFlags::empty());
            }
        }
    }

    fn admit(&mut self, stream: OwnedFd) {
        let Ok((visitor, welcome)) = admission::identify(&stream) else {
            return;
        };
        let token = self.next_token;
        self.next_token += 1;
        let conversation = if welcome {
            Conversation::new(stream, visitor, token)
        } else {
            Conversation::refusal(stream, visitor, token)
        };
        let interest = epoll::EventFlags::IN;
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.poll, conversation.stream(), data, interest) {
            tracing::warn!(%error, "cannot watch a connection");
            return;
        }
        self.conversations.insert(token, (conversation, interest));
        self.converse(token, epoll::EventFlags::empty());
    }

    fn converse(&mut self, token: u64, event: epoll::EventFlags) {
        // An event may be of a connection that an earlier event closed.
        let Some((conversation, interest)) = self.conversations.get_mut(&token) else {
            return;
        };
        let turn = conversation.turn(&mut self.desk);
        let wanted = match turn {
            Turn::Listen => epoll::EventFlags::IN,
            Turn::Send => epoll::EventFlags::OUT,
            // Whoever hangs up is seen all the same.
            Turn::Wait if event.contains(epoll::EventFlags::HUP) => {
                return self.part(token, Turn::Gone);
            }
            Turn::Wait => epoll::EventFlags::empty(),
            Turn::Gone | Turn::Close => return self.part(token, turn),
        };
        if wanted != *interest {
            let data = epoll::EventData::new_u64(token);
            match epoll::modify(&self.poll, conversation.stream(), data, wanted) {
                Ok(()) => *interest = wanted,
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a connection");
                    self.part(token, Turn::Close);
                }
            }
        }
    }

    /// Closes a connection. If it was the client who did, it is done with its sessions, or dead.
    fn part(&mut self, token: u64, how: Turn) {
        let Some((conversation, _)) = self.conversations.remove(&token) else {
            return;
        };
        if let (Turn::Gone, Some((sessions, process))) = (how, conversation.sessions()) {
            let all = &self.desk.counter.sessions;
            let ended = sessions.iter().filter(|s| all.close(**s, process, End::Died));
            self.desk.mourn(ended.count(), process);
        }
        if let Some(readers) = conversation.readers() {
            self.desk.leave(readers);
        }
        drop(conversation);
        self.watch_door(true);
    }

    /// A door that is not watched wakes nobody: what cannot be served must not spin.
    fn watch_door(&mut self, watch: bool) {
        if watch == self.accepting {
            return;
        }
        let interest = if watch { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(DOOR);
        match epoll::modify(&self.poll, &self.door.listener, data, interest) {
            Ok(()) => self.accepting = watch,
            Err(error) => tracing::error!(%error, "cannot watch the socket"),
        }
    }
}

impl Desk for NodeDesk {
    fn welcome(&self) -> &Welcome {
        &self.counter.welcome
    }

    fn region(&self, read_only: bool) -> BorrowedFd<'_> {
        let region = &self.counter.region;
        if read_only { region.readable.as_fd() } else { region.writable.as_fd() }
    }

    fn open_session(&mut self, process: Process) -> Option<Opened> {
        let opened = self.counter.sessions.open(process)?;
        self.watch(process);
        Some(opened)
    }

    fn close_session(&mut self, session: Opened, process: Process) -> bool {
        let closed = self.counter.sessions.close(session, process, End::Left);
        if closed {
            self.ended(End::Left);
            self.unwatch_idle(process);
        }
        closed
    }

    fn member(&self, node: u16) -> Reply {
        match &self.counter.courier {
            Some(courier) => courier.member(node),
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
        let Some(courier) = &self.counter.courier else {
            return Some(shared());
        };
        if let Caller::Session(session) = caller
            && !process.is_some_and(|process| self.counter.sessions.holds(session, process))
        {
            let text = format!("this process has no session {session:?}");
            return Some(Reply::Refused(Refused::new(Code::NoSuchSession, text)));
        }
        courier.connect(caller, ask, self.post.clone(), token);
        None
    }

    fn leave(&mut self, readers: Readers) {
        if let Some(courier) = &self.counter.courier {
            courier.leave(readers);
        }
    }

    fn inspect(&mut self, token: u64, node: u16, table: u32) -> Option<Reply> {
        let post = self.post.clone();
        if node != self.counter.welcome.node {
            let Some(courier) = &self.counter.courier else { return Some(shared()) };
            courier.inspect(node, table, post, token);
            return None;
        }
        let answer = move |told| post.send(token, Reply::Inspected(told));
        if self.counter.orders.inspect(table as usize, Box::new(answer)) {
            return None;
        }
        let text = format!("table {table} has no workers here");
        Some(Reply::Refused(Refused::new(Code::Other, text)))
    }
}

/// What a client is told who asks for connections where none are needed.
fn shared() -> Reply {
    let text = "the memory of this cluster is shared: it is mapped, not connected to";
    Reply::Refused(Refused::new(Code::Other, text))
}

impl NodeDesk {
    /// After sessions have ended: what they held is put in order once they are fenced.
    fn ended(&self, how: End) {
        match &self.counter.courier {
            Some(courier) => courier.sessions_ended(),
            None => self.counter.bell.ended(how == End::Died),
        }
    }

    /// After sessions of a process ended without its saying so.
    fn mourn(&mut self, ended: usize, process: Process) {
        if ended > 0 {
            tracing::info!(pid = process.pid, sessions = ended, "a client is gone");
            self.ended(End::Died);
        }
        self.unwatch_idle(process);
    }

    /// Sees to it that the sessions of a process end with it.
    fn watch(&mut self, process: Process) {
        if !self.watches.watch(process) {
            let ended = self.counter.sessions.close_all_of(process);
            self.mourn(ended, process);
        }
    }

    /// After a process died.
    fn bury(&mut self, token: u64) {
        let mut watched = self.watches.pidfds.iter();
        if let Some((&process, _)) = watched.find(|(_, (t, _))| *t == token) {
            let ended = self.counter.sessions.close_all_of(process);
            self.mourn(ended, process);
        }
    }

    fn unwatch_idle(&mut self, process: Process) {
        if !self.counter.sessions.has_any_of(process) {
            self.watches.pidfds.remove(&process);
        }
    }
}

impl Watches {
    /// Watches a process, if it is not watched already; whether it lives.
    fn watch(&mut self, process: Process) -> bool {
        if self.pidfds.contains_key(&process) {
            return true;
        }
        let token = self.next_token;
        self.next_token += 1;
        let watched = i32::try_from(process.pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()))
            .and_then(|pidfd| {
                let data = epoll::EventData::new_u64(token);
                epoll::add(&self.poll, &pidfd, data, epoll::EventFlags::IN)?;
                Ok(pidfd)
            });
        match watched {
            // The number may have been given to another process before we opened it.
            Ok(_) if process.is_gone() => false,
            Ok(pidfd) => {
                self.pidfds.insert(process, (token, pidfd));
                true
            }
            Err(Errno::SRCH) => false,
            Err(error) => {
                // Its sessions end with its connection, or when the node starts again.
                tracing::warn!(pid = process.pid, %error, "cannot watch a client");
                true
            }
        }
    }
}
