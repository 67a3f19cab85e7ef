//! The agent: a node's side of TCP. Its threads execute the verbs of clients on the node's region,
//! and sleep while there are none.
//!
//! Each connection belongs to one thread. The first thread also accepts connections, and hands them
//! out in turn. A connection that has not said who it is within [`TCP_HELLO_PATIENCE`] is closed.
//! One whose first byte is none of a client's is passed on to [`Others`], so that a node needs one
//! port.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::TcpError;
use super::admission::Client;
use super::connection::{Connection, Cut, Next, Scratch};
use super::frame::{Garbage, HELLO_BYTES, Hello, MAGIC, Unwelcome, WELCOME_BYTES, Welcome};
use super::inbox::{Inbox, Waker, Work};
use super::keys::Keys;
use super::lent::{Accepted, Lent};
use super::mailbox::TcpMailbox;
use super::serving::AgentEndpoint;
use super::setup::Answer;
use super::socket::{self, Moved};
use crate::idle::Idle;
use crate::limits::{
    TCP_ACCEPT_PAUSE, TCP_EVENTS, TCP_HELLO_PATIENCE, TCP_MAILBOX_PAUSE, TCP_STRANGERS_MAX,
};
use crate::rights::{self, Access, Grant, Granted};
use crate::shm::{Bell, Region};
use crate::{RateLimit, RegionId};

/// The node's side of TCP: lends a region to clients that connect. Any thread may use it. Dropping
/// it ends all connections.
pub struct Agent {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    address: SocketAddr,
}

/// Takes the connections to an agent's port that begin with something else than a client does. It
/// is called by the agent's threads, which must not wait there.
pub type Others = Box<dyn Fn(TcpStream) + Send + Sync>;

struct Shared {
    lent: Arc<Lent>,
    others: Option<Others>,
    inboxes: Vec<Arc<Inbox>>,
    /// The thread that gets the next connection.
    next: AtomicUsize,
    stops: AtomicBool,
}

impl Agent {
    /// Lends `region` to the clients that connect to `listener`, by `threads` threads. Connections
    /// that are none of clients go to `others`, or are closed.
    ///
    /// # Errors
    /// [`TcpError::Os`].
    ///
    /// # Panics
    /// If there are to be no threads.
    pub fn start(
        region: Arc<Region>,
        listener: TcpListener,
        threads: usize,
        others: Option<Others>,
    ) -> Result<Self, TcpError> {
        assert!(threads > 0, "an agent needs a thread");
        let os = |action| move |source| TcpError::Os { action, source };
        listener.set_nonblocking(true).map_err(os("listen"))?;
        let address = listener.local_addr().map_err(os("listen"))?;
        let inboxes: io::Result<Vec<_>> =
            (0..threads).map(|_| Inbox::new().map(Arc::new)).collect();
        let shared = Arc::new(Shared {
            lent: Arc::new(Lent::new(region)),
            others,
            inboxes: inboxes.map_err(os("make a bell"))?,
            next: AtomicUsize::new(0),
            stops: AtomicBool::new(false),
        });
        let mut agent = Self { shared: shared.clone(), threads: Vec::new(), address };
        let mut listener = Some(listener);
        for number in 0..threads {
            let mut worker = Worker::new(shared.clone(), number, listener.take())
                .map_err(os("watch sockets"))?;
            let builder = std::thread::Builder::new().name(format!("loch-tcp-{number}"));
            let thread = builder.spawn(move || worker.work()).map_err(os("start a thread"))?;
            agent.threads.push(thread);
        }
        Ok(agent)
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets a client in, with the rights in its grants and no others. It connects with the answer,
    /// soon, and once.
    ///
    /// # Errors
    /// [`TcpError::Hostile`] for invalid grants, [`TcpError::ReadOnlyRegion`].
    pub fn accept(&self, client: Client<'_>) -> Result<(Accepted, Answer), TcpError> {
        let (region, grants) = (&self.shared.lent.region, client.grants);
        let ranges = grants.iter().map(|grant| (grant.offset, grant.len)).collect();
        rights::check_ranges(ranges, region.len()).map_err(|what| TcpError::Hostile { what })?;
        if !region.is_writable() && grants.iter().any(|grant| grant.access != Access::Read) {
            return Err(TcpError::ReadOnlyRegion);
        }
        let (keys, told) = Keys::new(grants);
        let (accepted, token) = self.shared.lent.admit(keys, client);
        let granted = |(grant, key): (&Grant, u32)| {
            let Grant { offset, len, access } = *grant;
            Granted { offset, len, access, address: offset, rkey: key }
        };
        let grants = grants.iter().zip(told).map(granted).collect();
        Ok((accepted, Answer { token, grants }))
    }

    /// Opens a mailbox for one of the node's workers. Clients find it at its address, which says
    /// that it is at the node with this region. `bell` wakes the worker when something has arrived.
    pub fn mailbox(&self, region: RegionId, bell: Option<Bell>) -> TcpMailbox {
        TcpMailbox::open(self.shared.lent.clone(), region, bell)
    }

    /// An endpoint for one of the node's workers, whose region is `home`.
    pub fn endpoint(&self, home: RegionId) -> AgentEndpoint {
        AgentEndpoint::new(self.shared.lent.clone(), home)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Release);
        self.shared.inboxes.iter().for_each(|inbox| inbox.ring());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// What a thread watches besides connections.
const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

/// The limits of log lines that other hosts can cause.
#[derive(Default)]
struct LogLimits {
    not_accepted: RateLimit,
    too_many: RateLimit,
    cut_off: RateLimit,
}

/// One thread of an agent.
struct Worker {
    shared: Arc<Shared>,
    number: usize,
    watch: OwnedFd,
    listener: Option<TcpListener>,
    /// When to accept connections again, after the system had none left.
    accepts_at: Option<Instant>,
    places: Vec<Place>,
    free: Vec<u32>,
    strangers: usize,
    logs: LogLimits,
    /// The connections that have a turn without waiting for their sockets.
    ready: Vec<u64>,
    /// The connections that wait for workers.
    waiting: Vec<u64>,
    scratch: Scratch,
}

/// The place of a connection.
struct Place {
    /// How often the place was taken: an event may be that of a connection that has ended.
    round: u32,
    /// What its socket is watched for.
    watched: EventFlags,
    end: End,
}

/// The other end of a connection.
enum End {
    /// There is none.
    None,
    /// It has not said who it is.
    Stranger {
        socket: Arc<OwnedFd>,
        since: Instant,
        hello: Vec<u8>,
    },
    Client(Connection),
}

impl Worker {
    fn new(shared: Arc<Shared>, number: usize, listener: Option<TcpListener>) -> io::Result<Self> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add =
            |socket, data| epoll::add(&watch, socket, EventData::new_u64(data), EventFlags::IN);
        add(shared.inboxes[number].bell(), BELL)?;
        if let Some(listener) = &listener {
            add(listener.as_fd(), LISTENER)?;
        }
        Ok(Self {
            shared,
            number,
            watch,
            listener,
            accepts_at: None,
            places: Vec::new(),
            free: Vec::new(),
            strangers: 0,
            logs: LogLimits::default(),
            ready: Vec::new(),
            waiting: Vec::new(),
            scratch: Scratch::new(),
        })
    }

    fn work(&mut self) {
        let mut events = Vec::with_capacity(TCP_EVENTS);
        // To sleep and to be woken takes longer than most clients need for their next requests.
        let (mut idle, mut is_awake) = (Idle::default(), false);
        while !self.shared.stops.load(Ordering::Acquire) {
            events.clear();
            let patience = if is_awake { Some(Duration::ZERO) } else { self.patience() };
            let timeout = patience.map(|time| Timespec {
                tv_sec: time.as_secs() as i64,
                tv_nsec: time.subsec_nanos().into(),
            });
            // Its errors say that a signal came.
            let _ = epoll::wait(&self.watch, spare_capacity(&mut events), timeout.as_ref());
            let waiting = std::mem::take(&mut self.waiting);
            for id in std::mem::take(&mut self.ready).into_iter().chain(waiting) {
                self.serve(id);
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    BELL => self.take_work(),
                    id => self.serve(id),
                }
            }
            if !events.is_empty() {
                idle.end();
            }
            is_awake = !idle.go_on();
            self.after_events();
        }
    }

    /// The longest time to wait for events; `None` if there is nothing else to do.
    fn patience(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let workers = (!self.waiting.is_empty()).then_some(TCP_MAILBOX_PAUSE);
        let strangers = (self.strangers > 0).then_some(TCP_HELLO_PATIENCE / 4);
        let accepts = self.accepts_at.map(|at| at.saturating_duration_since(Instant::now()));
        [workers, strangers, accepts].into_iter().flatten().min()
    }

    /// Does what is due at some time.
    fn after_events(&mut self) {
        if self.accepts_at.is_some_and(|at| at <= Instant::now()) {
            self.accepts_at = None;
            self.watch_listener(EventFlags::IN);
        }
        if self.strangers == 0 {
            return;
        }
        for at in 0..self.places.len() {
            if let End::Stranger { since, .. } = &self.places[at].end
                && since.elapsed() > TCP_HELLO_PATIENCE
            {
                self.end(at, &Cut::Garbage(Garbage("no greeting in time")));
            }
        }
    }

    fn watch_listener(&self, flags: EventFlags) {
        if let Some(listener) = &self.listener {
            let data = EventData::new_u64(LISTENER);
            if let Err(error) = epoll::modify(&self.watch, listener, data, flags) {
                tracing::warn!(%error, "the agent cannot watch its listener");
            }
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    let next = self.shared.next.fetch_add(1, Ordering::Relaxed);
                    let inboxes = &self.shared.inboxes;
                    inboxes[next % inboxes.len()].give(socket.into());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => (),
                Err(error) => {
                    // There are no descriptors left, or no memory. Others wait in the system.
                    if let Some(unsaid) = self.logs.not_accepted.due(Instant::now()) {
                        tracing::warn!(%error, unsaid, "no connection is accepted for a moment");
                    }
                    self.accepts_at = Some(Instant::now() + TCP_ACCEPT_PAUSE);
                    return self.watch_listener(EventFlags::empty());
                }
            }
        }
    }

    fn take_work(&mut self) {
        let Work { sockets, turns } = self.shared.inboxes[self.number].take();
        for id in turns {
            self.serve(id);
        }
        for socket in sockets {
            if self.strangers >= TCP_STRANGERS_MAX {
                if let Some(unsaid) = self.logs.too_many.due(Instant::now()) {
                    tracing::warn!(unsaid, "too many connections do not say who they are");
                }
                continue;
            }
            let prepared = rustix::io::ioctl_fionbio(&socket, true)
                .and_then(|()| rustix::net::sockopt::set_tcp_nodelay(&socket, true));
            if let Err(error) = prepared {
                tracing::debug!(%error, "a connection has ended before it began");
                continue;
            }
            self.add(Arc::new(socket));
        }
    }

    fn add(&mut self, socket: Arc<OwnedFd>) {
        let at = self.free.pop().map_or_else(
            || {
                self.places.push(Place { round: 0, watched: EventFlags::IN, end: End::None });
                self.places.len() - 1
            },
            |at| at as usize,
        );
        let place = &mut self.places[at];
        place.round = place.round.wrapping_add(1);
        place.watched = EventFlags::IN;
        let id = u64::from(place.round) << 32 | at as u64;
        let added = epoll::add(&self.watch, &*socket, EventData::new_u64(id), EventFlags::IN);
        if let Err(error) = added {
            tracing::warn!(%error, "a connection cannot be watched");
            self.free.push(at as u32);
            return;
        }
        let (since, hello) = (Instant::now(), Vec::new());
        place.end = End::Stranger { socket, since, hello };
        self.strangers += 1;
        self.serve(id);
    }

    /// A connection's turn.
    fn serve(&mut self, id: u64) {
        let at = id as u32 as usize;
        let Some(place) = self.places.get_mut(at).filter(|place| place.round == (id >> 32) as u32)
        else {
            return;
        };
        let next = match &mut place.end {
            End::None => return,
            End::Stranger { socket, hello, .. } => {
                let waker = Waker::new(self.shared.inboxes[self.number].clone(), id);
                match greet(&self.shared, socket, hello, waker) {
                    Ok(Greeted::Client(client)) => {
                        place.end = End::Client(client);
                        self.strangers -= 1;
                        Ok(Next::Turn)
                    }
                    Ok(Greeted::NotYet) => Ok(Next::Read),
                    Ok(Greeted::Other) => return self.pass_on(at),
                    Err(cut) => Err(cut),
                }
            }
            End::Client(client) => client.turn(&self.shared.lent, &mut self.scratch),
        };
        match next {
            Ok(Next::Turn) => self.ready.push(id),
            Ok(Next::Read) => self.watch(at, id, EventFlags::IN),
            Ok(Next::Write) => self.watch(at, id, EventFlags::OUT),
            Ok(Next::Worker) => {
                self.watch(at, id, EventFlags::empty());
                self.waiting.push(id);
            }
            Err(cut) => self.end(at, &cut),
        }
    }

    /// Gives a stranger to others.
    fn pass_on(&mut self, at: usize) {
        let End::Stranger { socket, .. } = std::mem::replace(&mut self.places[at].end, End::None)
        else {
            return;
        };
        self.strangers -= 1;
        self.free.push(at as u32);
        let _ = epoll::delete(&self.watch, &*socket);
        let others = self.shared.others.as_ref();
        if let (Some(socket), Some(take)) = (Arc::into_inner(socket), others)
            && rustix::io::ioctl_fionbio(&socket, false).is_ok()
        {
            take(socket.into());
        }
    }

    fn watch(&mut self, at: usize, id: u64, flags: EventFlags) {
        let place = &mut self.places[at];
        if place.watched == flags {
            return;
        }
        place.watched = flags;
        let socket = match &place.end {
            End::None => return,
            End::Stranger { socket, .. } => socket,
            End::Client(client) => client.socket(),
        };
        let watched = epoll::modify(&self.watch, &**socket, EventData::new_u64(id), flags);
        if let Err(error) = watched {
            self.end(at, &Cut::Io(error.into()));
        }
    }

    fn end(&mut self, at: usize, cut: &Cut) {
        let end = std::mem::replace(&mut self.places[at].end, End::None);
        let socket = match &end {
            End::None => return,
            End::Stranger { socket, .. } => {
                self.strangers -= 1;
                socket
            }
            End::Client(client) => client.socket(),
        };
        self.free.push(at as u32);
        let peer = rustix::net::getpeername(&**socket).ok();
        let is_usual = matches!(cut, Cut::Ended | Cut::Fenced | Cut::Io(_));
        if is_usual {
            tracing::debug!(?peer, %cut, "a connection has ended");
        } else if let Some(unsaid) = self.logs.cut_off.due(Instant::now()) {
            tracing::warn!(?peer, %cut, unsaid, "a connection is cut off");
        }
        let _ = epoll::delete(&self.watch, &**socket);
        // A fence may hold the socket still: the client is to see that it has ended.
        let _ = rustix::net::shutdown(&**socket, rustix::net::Shutdown::Both);
    }
}

/// What a stranger is.
enum Greeted {
    Client(Connection),
    /// No client: its first byte shows that, which is still to be received.
    Other,
    NotYet,
}

/// Receives a greeting.
fn greet(
    shared: &Shared,
    socket: &Arc<OwnedFd>,
    hello: &mut Vec<u8>,
    waker: Waker,
) -> Result<Greeted, Cut> {
    if shared.others.is_some() && hello.is_empty() {
        let first = socket::peek(socket.as_fd())?;
        if first.is_some_and(|first| first != MAGIC[0]) {
            return Ok(Greeted::Other);
        }
    }
    let mut bytes = [0; HELLO_BYTES];
    match socket::receive(socket.as_fd(), &mut bytes[hello.len()..])? {
        Moved::Bytes(count) => {
            let begin = hello.len();
            hello.extend_from_slice(&bytes[begin..begin + count]);
        }
        Moved::Nothing => return Ok(Greeted::NotYet),
        Moved::End => return Err(Cut::Ended),
    }
    let Ok(said) = Hello::read_from_bytes(hello) else { return Ok(Greeted::NotYet) };
    let client = said.token()?.and_then(|token| {
        let client = shared.lent.redeem(&token, socket, waker);
        client.ok_or(Unwelcome::Token)
    });
    let welcome = Welcome::new(client.as_ref().map(|_| ()).map_err(|reason| *reason));
    match socket::send(socket.as_fd(), welcome.as_bytes())? {
        Moved::Bytes(WELCOME_BYTES) => (),
        _ => return Err(Cut::Ended),
    }
    match client {
        Ok(client) => Ok(Greeted::Client(Connection::new(socket.clone(), client))),
        Err(_) => Err(Cut::Garbage(Garbage("a token that opens nothing, or another version"))),
    }
}
