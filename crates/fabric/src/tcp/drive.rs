//! The connections that one thread drives, and their turns.
//!
//! A thread of the [agent](super::agent) drives connections, and so does a worker that has a
//! [seat](super::seat): what its clients send is then executed by the thread that waits for it.

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::admission::SeatId;
use super::connection::{Connection, Cut, Next, Scratch};
use super::inbox::{Come, Inbox};
use super::lent::Lent;
use super::socket;
use super::turns::Waker;
use crate::RateLimit;
use crate::limits::{TCP_EVENTS, TCP_MAILBOX_PAUSE};

/// The events of what the thread watches besides connections have this bit.
pub(super) const OTHER: u64 = 1 << 63;
const BELL: u64 = u64::MAX;

/// The connections of one thread.
pub(super) struct Drive {
    watch: Arc<OwnedFd>,
    inbox: Arc<Inbox>,
    /// The workers that take connections from this thread.
    workers: Option<Arc<dyn Workers>>,
    places: Vec<Place>,
    free: Vec<usize>,
    /// The places of connections that have a turn without waiting for their sockets.
    ready: Vec<usize>,
    /// The places of those that wait for workers. Their sockets are not watched: a peer that has
    /// hung up would not let the thread wait.
    waiting: Vec<usize>,
    /// The number of the thread's turn.
    turn: u64,
    /// Sockets that have come, of peers that have not said who they are.
    pub strangers: Vec<(OwnedFd, IpAddr)>,
    scratch: Scratch,
    cut_off: RateLimit,
}

/// The place of a connection. What was meant for the one before gives it a turn too many.
struct Place {
    /// The events for which its socket is watched: empty if it is not.
    watched: EventFlags,
    /// The thread's turn in which it had its last one.
    served_in: u64,
    connection: Option<Connection>,
}

impl Drive {
    /// The connections of the thread with this inbox.
    ///
    /// # Errors
    /// The system's.
    pub fn new(inbox: Arc<Inbox>) -> io::Result<Self> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&watch, inbox.turns.bell(), EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self {
            watch: Arc::new(watch),
            inbox,
            workers: None,
            places: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            waiting: Vec::new(),
            turn: 0,
            strangers: Vec::new(),
            scratch: Scratch::new(),
            cut_off: RateLimit::default(),
        })
    }

    /// The connections of clients whose workers drive them go to these from now on.
    pub fn has_workers(&mut self, workers: Arc<dyn Workers>) {
        self.workers = Some(workers);
    }

    /// The thread's epoll instance. It may watch other things as well, whose events have [`OTHER`].
    pub fn watch(&self) -> &Arc<OwnedFd> {
        &self.watch
    }

    /// Waits for events, but not for longer than `at_most` or until a connection has to have its
    /// turn, and serves the connections that have one. `others` is empty, and gets the other
    /// events. Returns whether there was anything for connections.
    pub fn turn(&mut self, lent: &Lent, at_most: Option<Duration>, others: &mut Vec<u64>) -> bool {
        let ready = (!self.ready.is_empty()).then_some(Duration::ZERO);
        let workers = (!self.waiting.is_empty()).then_some(TCP_MAILBOX_PAUSE);
        let at_most = [at_most, ready, workers].into_iter().flatten().min();
        let timeout = at_most.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut room = [const { MaybeUninit::uninit() }; TCP_EVENTS];
        // Its errors say that a signal came.
        let waited = epoll::wait(&*self.watch, &mut room, timeout.as_ref());
        let events = waited.map(|(events, _)| &*events).unwrap_or_default();
        self.turn += 1;
        let waiting = std::mem::take(&mut self.waiting);
        for at in std::mem::take(&mut self.ready).into_iter().chain(waiting) {
            self.serve(lent, at);
        }
        for event in events {
            match event.data.u64() {
                BELL => self.take_work(lent),
                other if other & OTHER != 0 => others.push(other),
                // A socket that is still ready says so again.
                at => _ = self.serve(lent, at as usize),
            }
        }
        others.len() < events.len()
    }

    /// Whether a connection has to have its turn, whatever its socket does.
    pub fn has_more(&self) -> bool {
        !self.ready.is_empty() || !self.waiting.is_empty()
    }

    fn take_work(&mut self, lent: &Lent) {
        for at in self.inbox.turns.take() {
            if !self.serve(lent, at) {
                // What it was woken for may have come after its turn.
                self.ready.push(at);
            }
        }
        let Come { strangers, connections } = self.inbox.take();
        self.strangers.extend(strangers);
        for connection in connections {
            self.adopt(connection);
        }
    }

    /// Drives this connection from now on.
    pub fn adopt(&mut self, connection: Connection) {
        let at = self.free.pop().unwrap_or(self.places.len());
        let place = Place { watched: EventFlags::IN, served_in: 0, connection: None };
        match self.places.get_mut(at) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        connection.wakes(Waker::new(self.inbox.turns.clone(), at));
        let connection = self.places[at].connection.insert(connection);
        let data = EventData::new_u64(at as u64);
        match epoll::add(&*self.watch, &**connection.socket(), data, EventFlags::IN) {
            // On its way here nothing was told of what came for it.
            Ok(()) => self.ready.push(at),
            Err(error) => self.end(at, &Cut::Io(error.into())),
        }
    }

    /// A connection's turn. Returns whether it has not had one before in this turn of the thread.
    fn serve(&mut self, lent: &Lent, at: usize) -> bool {
        let place = &mut self.places[at];
        let Some(connection) = &mut place.connection else { return true };
        if std::mem::replace(&mut place.served_in, self.turn) == self.turn {
            return false;
        }
        match connection.turn(lent, &mut self.scratch) {
            Ok(Next::Turn) => self.ready.push(at),
            Ok(Next::Read) => {
                self.watch_for(at, EventFlags::IN);
                self.hand_over(at);
            }
            Ok(Next::Write) => self.watch_for(at, EventFlags::OUT),
            Ok(Next::Worker) => {
                self.watch_for(at, EventFlags::empty());
                self.waiting.push(at);
            }
            Err(cut) => self.end(at, &cut),
        }
        true
    }

    fn watch_for(&mut self, at: usize, flags: EventFlags) {
        let place = &mut self.places[at];
        let Some(connection) = &place.connection else { return };
        if place.watched == flags {
            return;
        }
        let before = std::mem::replace(&mut place.watched, flags);
        let (socket, data) = (&**connection.socket(), EventData::new_u64(at as u64));
        // Also for no events, the system would tell that the peer has hung up.
        let changed = match (before.is_empty(), flags.is_empty()) {
            (true, _) => epoll::add(&*self.watch, socket, data, flags),
            (_, true) => epoll::delete(&*self.watch, socket),
            _ => epoll::modify(&*self.watch, socket, data, flags),
        };
        if let Err(error) = changed {
            self.end(at, &Cut::Io(error.into()));
        }
    }

    /// Gives a connection to the worker that drives it itself, if that one is there.
    fn hand_over(&mut self, at: usize) {
        let Some(workers) = &self.workers else { return };
        let seat = self.places[at].connection.as_ref().and_then(Connection::seat);
        let Some(worker) = seat.and_then(|seat| workers.inbox(seat)) else { return };
        if let Some(connection) = self.take(at)
            && let Err(connection) = worker.give(connection)
        {
            self.adopt(connection);
        }
    }

    /// Takes a connection out of its place.
    fn take(&mut self, at: usize) -> Option<Connection> {
        let connection = self.places[at].connection.take()?;
        self.free.push(at);
        let _ = epoll::delete(&*self.watch, &**connection.socket());
        Some(connection)
    }

    fn end(&mut self, at: usize, cut: &Cut) {
        if let Some(connection) = self.take(at) {
            cut_off(connection.socket(), cut, &mut self.cut_off);
        }
    }

    /// The turns that are to come whatever the sockets do.
    #[cfg(test)]
    pub fn queued(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.places.iter().filter(|place| place.connection.is_some()).count()
    }

    /// Where the thread is given connections.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Gives all connections to the thread that is given work by `inbox`.
    pub fn give_all_to(&mut self, inbox: &Inbox) {
        let here = (0..self.places.len()).filter_map(|at| self.take(at)).collect::<Vec<_>>();
        // Some may be on their way here.
        let on_their_way = self.inbox.close().connections;
        for connection in here.into_iter().chain(on_their_way) {
            // A thread that has ended takes none, and they end.
            let _ = inbox.give(connection);
        }
    }
}

/// The workers of a node, as far as they drive connections themselves.
pub(super) trait Workers: Send + Sync {
    /// Where the worker with this seat is given connections, if there is one now.
    fn inbox(&self, seat: SeatId) -> Option<Arc<Inbox>>;
}

/// Ends a connection.
pub(super) fn cut_off(socket: &OwnedFd, cut: &Cut, limit: &mut RateLimit) {
    let peer = rustix::net::getpeername(socket).ok().flatten();
    let is_usual = matches!(cut, Cut::Ended | Cut::Fenced | Cut::Io(_));
    if is_usual {
        tracing::debug!(?peer, %cut, "a connection has ended");
    } else if let Some(unsaid) = limit.due(Instant::now()) {
        tracing::warn!(?peer, %cut, unsaid, "a connection is cut off");
    }
    // A process that was forked may hold the socket, too: the client is to see that it has ended.
    let _ = socket::shut_down(socket.as_fd());
}
