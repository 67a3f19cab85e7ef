//! A thread of an agent: accepts connections, finds out who they are, and drives those of clients.
//!
//! The first thread accepts connections, and hands them out in turn. A peer that has not said who
//! it is within [`TCP_HELLO_PATIENCE`] is cut off, and sooner if there are too many: those that the
//! address with most of them opened first give way, so that one host does not keep the clients of
//! others out, nor its own. A connection whose first byte is no client's is passed on to
//! [`Others`], so that a node needs one port.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Resource, getrlimit};
use zerocopy::{FromBytes, IntoBytes};

use super::connection::{Connection, Cut};
use super::drive::{Drive, OTHER, cut_off};
use super::frame::{Garbage, HELLO_BYTES, Hello, MAGIC, Welcome};
use super::inbox::Inbox;
use super::lent::{Lent, Redeemed};
use super::noise::MESSAGE_BYTES;
use super::seat::{SEAT, Seats};
use super::socket::{self, Moved};
use crate::RateLimit;
use crate::accepting::is_of_one_connection;
use crate::idle::Idle;
use crate::limits::{
    TCP_ACCEPT_PAUSE, TCP_ACCEPTS_PER_TURN, TCP_HELLO_PATIENCE, TCP_STRANGERS_DESCRIPTORS,
    TCP_STRANGERS_GIVE_WAY, TCP_STRANGERS_MAX,
};

/// Takes the connections to an agent's port that begin with something else than a client does, with
/// the address from which each was accepted: a connection that its peer has reset since does not
/// tell it any more. It is called by the agent's threads, which must not wait there.
pub type Others = Box<dyn Fn(TcpStream, IpAddr) + Send + Sync>;

/// The things that the threads of an agent share.
pub(super) struct Common {
    pub lent: Arc<Lent>,
    pub others: Option<Others>,
    pub inboxes: Vec<Arc<Inbox>>,
    pub seats: Arc<Seats>,
    pub stops: AtomicBool,
}

/// The events of the listener.
const LISTENER: u64 = SEAT - 1;

/// Where connections come in.
pub(super) struct Listening {
    listener: TcpListener,
    /// When to accept connections again, after the system had none left.
    again_at: Option<Instant>,
    /// The thread that gets the next connection.
    next: usize,
}

/// A peer that has not said who it is.
struct Stranger {
    socket: Arc<OwnedFd>,
    from: IpAddr,
    since: Instant,
    hello: Vec<u8>,
}

/// The limits of log lines that other hosts can cause.
#[derive(Default)]
struct LogLimits {
    not_accepted: RateLimit,
    too_many: RateLimit,
    cut_off: RateLimit,
}

/// A thread of an agent.
pub(super) struct Thread {
    common: Arc<Common>,
    drive: Drive,
    listening: Option<Listening>,
    /// By their events, which grow.
    strangers: BTreeMap<u64, Stranger>,
    /// How many of them there may be.
    strangers_max: usize,
    /// The event of the next one.
    next: u64,
    logs: LogLimits,
}

impl Listening {
    /// Watches a listener with the connections of a thread.
    ///
    /// # Errors
    /// The system's.
    pub fn new(listener: TcpListener, drive: &Drive) -> io::Result<Self> {
        let event = EventData::new_u64(LISTENER);
        epoll::add(&**drive.watch(), &listener, event, EventFlags::IN)?;
        Ok(Self { listener, again_at: None, next: 0 })
    }

    fn watch(&self, drive: &Drive, flags: EventFlags) {
        let event = EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&**drive.watch(), &self.listener, event, flags) {
            tracing::warn!(%error, "the agent cannot watch its listener");
        }
    }

    fn accept(&mut self, inboxes: &[Arc<Inbox>], drive: &Drive, logs: &mut LogLimits) {
        // The system tells of the others again, after the turns of other connections.
        for _ in 0..TCP_ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((socket, from)) => {
                    inboxes[self.next % inboxes.len()].give_stranger(socket.into(), from.ip());
                    self.next += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_one_connection(&error) => (),
                Err(error) => {
                    // There are no descriptors left, or no memory. Others wait in the system.
                    if let Some(unsaid) = logs.not_accepted.due(Instant::now()) {
                        tracing::warn!(%error, unsaid, "no connection is accepted for a moment");
                    }
                    self.again_at = Some(Instant::now() + TCP_ACCEPT_PAUSE);
                    return self.watch(drive, EventFlags::empty());
                }
            }
        }
    }
}

impl Thread {
    pub fn new(common: Arc<Common>, mut drive: Drive, listening: Option<Listening>) -> Self {
        drive.has_workers(common.seats.clone());
        let (strangers, logs) = (BTreeMap::new(), LogLimits::default());
        let descriptors = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |it| it as usize);
        let share = descriptors / TCP_STRANGERS_DESCRIPTORS / common.inboxes.len();
        let strangers_max = share.clamp(1, TCP_STRANGERS_MAX);
        Self { common, drive, listening, strangers, strangers_max, next: OTHER, logs }
    }

    pub fn work(mut self) {
        let mut others = Vec::new();
        // To sleep and to be woken takes longer than most clients need for their next requests.
        let (mut idle, mut is_awake) = (Idle::default(), false);
        let common = self.common.clone();
        while !common.stops.load(Ordering::Acquire) {
            let patience = if is_awake { Some(Duration::ZERO) } else { self.patience() };
            if self.drive.turn(&common.lent, patience, &mut others) {
                idle.end();
            }
            for event in others.drain(..) {
                match event {
                    LISTENER => {
                        if let Some(listening) = &mut self.listening {
                            listening.accept(&common.inboxes, &self.drive, &mut self.logs);
                        }
                    }
                    SEAT.. => common.seats.wake(event),
                    stranger => self.hear(stranger),
                }
            }
            for (socket, from) in std::mem::take(&mut self.drive.strangers) {
                self.meet(socket, from);
            }
            is_awake = !idle.go_on();
            self.after_events();
        }
        // Nobody gives it connections any more.
        drop(self.drive.inbox().close());
    }

    /// The longest time to wait for events; `None` if there is nothing else to do.
    fn patience(&self) -> Option<Duration> {
        let strangers = (!self.strangers.is_empty()).then_some(TCP_HELLO_PATIENCE / 4);
        let again_at = self.listening.as_ref().and_then(|listening| listening.again_at);
        let accepts = again_at.map(|at| at.saturating_duration_since(Instant::now()));
        [strangers, accepts].into_iter().flatten().min()
    }

    /// Does what is due at some time.
    fn after_events(&mut self) {
        if let Some(listening) = &mut self.listening
            && listening.again_at.is_some_and(|at| at <= Instant::now())
        {
            listening.again_at = None;
            listening.watch(&self.drive, EventFlags::IN);
        }
        if self.strangers.is_empty() {
            return;
        }
        let is_late = |(_, it): &(&u64, &Stranger)| it.since.elapsed() > TCP_HELLO_PATIENCE;
        let late: Vec<_> = self.strangers.iter().filter(is_late).map(|(event, _)| *event).collect();
        for event in late {
            self.send_away(event, &Cut::Garbage(Garbage("no greeting in time")));
        }
    }

    /// Somebody has connected.
    fn meet(&mut self, socket: OwnedFd, from: IpAddr) {
        if self.strangers.len() >= self.strangers_max {
            self.make_room();
        }
        let event = EventData::new_u64(self.next);
        let prepared = rustix::io::ioctl_fionbio(&socket, true)
            .and_then(|()| rustix::net::sockopt::set_tcp_nodelay(&socket, true))
            .and_then(|()| epoll::add(&**self.drive.watch(), &socket, event, EventFlags::IN));
        if let Err(error) = prepared {
            tracing::debug!(%error, "a connection has ended before it began");
            return;
        }
        let stranger = Stranger {
            socket: Arc::new(socket),
            from,
            since: Instant::now(),
            hello: Vec::with_capacity(HELLO_BYTES + MESSAGE_BYTES),
        };
        self.strangers.insert(self.next, stranger);
        self.next += 1;
    }

    /// Some strangers give way: the first ones of the address that has most.
    fn make_room(&mut self) {
        let mut of_each = HashMap::<_, Vec<u64>>::new();
        for (event, stranger) in &self.strangers {
            of_each.entry(stranger.from).or_default().push(*event);
        }
        let Some((from, most)) = of_each.iter().max_by_key(|(_, events)| events.len()) else {
            return;
        };
        if let Some(unsaid) = self.logs.too_many.due(Instant::now()) {
            let most = most.len();
            tracing::warn!(%from, most, unsaid, "too many connections do not say who they are");
        }
        for event in &most[..most.len().min(TCP_STRANGERS_GIVE_WAY)] {
            self.forget(*event);
        }
    }

    /// A stranger has said something.
    fn hear(&mut self, event: u64) {
        let Some(stranger) = self.strangers.get_mut(&event) else { return };
        match greet(&self.common, stranger) {
            Ok(Greeted::NotYet) => (),
            Ok(Greeted::Client(client)) => {
                self.forget(event);
                self.drive.adopt(client);
            }
            Ok(Greeted::Other) => {
                let from = stranger.from;
                let Some(socket) = self.forget(event).and_then(Arc::into_inner) else { return };
                if let Some(take) = &self.common.others
                    && rustix::io::ioctl_fionbio(&socket, false).is_ok()
                {
                    take(socket.into(), from);
                }
            }
            Err(cut) => self.send_away(event, &cut),
        }
    }

    fn forget(&mut self, event: u64) -> Option<Arc<OwnedFd>> {
        let stranger = self.strangers.remove(&event)?;
        let _ = epoll::delete(&**self.drive.watch(), &*stranger.socket);
        Some(stranger.socket)
    }

    fn send_away(&mut self, event: u64, cut: &Cut) {
        if let Some(socket) = self.forget(event) {
            cut_off(&socket, cut, &mut self.logs.cut_off);
        }
    }
}

/// The kind of a stranger.
enum Greeted {
    Client(Connection),
    /// No client: its first byte shows that, which is still to be received.
    Other,
    NotYet,
}

/// Receives a greeting.
fn greet(common: &Common, stranger: &mut Stranger) -> Result<Greeted, Cut> {
    let Stranger { socket, hello, .. } = stranger;
    if common.others.is_some() && hello.is_empty() {
        let first = socket::peek(socket.as_fd())?;
        if first.is_some_and(|first| first != MAGIC[0]) {
            return Ok(Greeted::Other);
        }
    }
    let mut bytes = [0; HELLO_BYTES + MESSAGE_BYTES];
    // What follows the greeting is for the connection.
    let wanted = greeting_bytes(hello) - hello.len();
    match socket::receive(socket.as_fd(), &mut bytes[..wanted])? {
        Moved::Bytes(count) => hello.extend_from_slice(&bytes[..count]),
        Moved::Nothing => return Ok(Greeted::NotYet),
        Moved::End => return Err(Cut::Ended),
    }
    if hello.len() < greeting_bytes(hello) {
        return Ok(Greeted::NotYet);
    }
    let (said, message) = Hello::read_from_prefix(hello).expect("all of it has come");
    let asked = message.try_into().ok();
    let redeemed =
        said.token()?.and_then(|token| common.lent.redeem(&token, &said, asked.as_ref()));
    match redeemed {
        Ok(Redeemed { client, answer, halves }) => {
            let mut welcome = Welcome::new(Ok(())).as_bytes().to_vec();
            welcome.extend(answer.iter().flatten());
            Connection::new(socket.clone(), client, halves, &welcome).map(Greeted::Client)
        }
        Err(reason) => {
            // It may have gone already.
            let _ = socket::send(socket.as_fd(), Welcome::new(Err(reason)).as_bytes());
            Err(Cut::Unwelcome(reason))
        }
    }
}

/// The bytes of a greeting that begins like this.
fn greeting_bytes(hello: &[u8]) -> usize {
    match Hello::read_from_prefix(hello) {
        Ok((said, _)) if said.is_encrypted() => HELLO_BYTES + MESSAGE_BYTES,
        _ => HELLO_BYTES,
    }
}
