//! A thread of the gateway: its connections, its table, and the loop that serves them.
//!
//! All listeners are every thread's; whoever accepts a connection gives it to the threads in turn.
//! Connections that have something to do have their turns side by side, so the memory accesses of
//! different clients overlap. While turns are under way, the thread looks from time to time which
//! other connections have something to do.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use loch::Table;
use loch::lanes::block_on;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::clients::Client;
use crate::connection::{Connection, Session, Waits};
use crate::context::{Context, Shared};
use crate::figures::add;
use crate::limits::{
    ACCEPT_PAUSE, ACCEPTS_A_LOOK, DRAIN_TIME, LOGIN_TIME, PARTING_TIME, RESERVATION_TIME, REST,
};
use crate::load::Load;
use crate::protocol::Protocol;
use crate::store::Store;
use crate::stream::Stream;
use crate::turns::Turns;
use crate::{memcached, resp};

/// The events of what is no connection have numbers from this one on, downwards.
const WAKES: u64 = u64::MAX;
const LISTENERS: u64 = 1 << 32;
/// That often it tells that no client can connect.
const WARNINGS_APART: Duration = Duration::from_secs(10);
/// Events that are taken at a time.
const EVENTS: usize = 256;

/// The number of the turn that deletes all keys.
const FLUSH: usize = usize::MAX;
/// What the poll set tells of a client that has ended its side or all of the connection.
const ENDS: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// While turns are under way, the thread looks that often what else there is.
const LOOKS_APART: Duration = Duration::from_micros(50);

struct Thread<'a, 't> {
    cx: &'a Context<'t>,
    poll: OwnedFd,
    places: Vec<Option<Place<'t>>>,
    free: Vec<usize>,
    /// Connections that have something to do.
    ready: VecDeque<usize>,
    drains_until: Option<Instant>,
    /// When the thread deletes all keys: the first one does, and is woken if that has changed.
    flush_at: Option<Instant>,
    /// Connections that hold up others for a moment.
    holding: Vec<usize>,
    /// When the thread looked last whether that moment is over.
    looked: Instant,
    /// Connections whose turns are dropped after a while: their clients have left, or have to.
    leaving: Vec<usize>,
    /// Clients that had to give a password when they came, and their places, the oldest first.
    strangers: VecDeque<(Arc<Client>, usize)>,
    /// When it accepts clients again, if there were no descriptors left.
    accepts_at: Option<Instant>,
    /// When it told last that no client can connect.
    warned: Option<Instant>,
}

/// Where a thread keeps a connection.
struct Place<'t> {
    client: Arc<Client>,
    /// None while it has its turn.
    connection: Option<Box<Connection<'t>>>,
    is_ready: bool,
    /// What the poll set waits for.
    flags: EventFlags,
    /// When the client has ended its side.
    left: Option<Instant>,
}

impl Place<'_> {
    /// Whether nobody waits any more for what is done in its turn.
    fn is_given_up(&self) -> bool {
        let last = self.left.map(|left| left.max(self.client.took_at()));
        self.client.is_killed() || last.is_some_and(|last| last.elapsed() >= PARTING_TIME)
    }
}

/// The end of a turn. One without a connection has deleted all keys.
type Turn<'t> = (usize, Option<Box<Connection<'t>>>, Waits);

/// Serves connections until the gateway stops.
pub(crate) fn serve(shared: &Arc<Shared>, number: usize, table: &Table) -> io::Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mailbox = &shared.threads[number];
    epoll::add(&poll, mailbox.as_fd(), EventData::new_u64(WAKES), EventFlags::IN)?;
    let load = Load::new(&shared.work, &shared.copies);
    let cx = Context::new(shared, Store::new(table, &shared.uses, &load), number);
    let mut thread = Thread {
        cx: &cx,
        poll,
        places: Vec::new(),
        free: Vec::new(),
        ready: VecDeque::new(),
        drains_until: None,
        flush_at: None,
        holding: Vec::new(),
        looked: Instant::now(),
        leaving: Vec::new(),
        strangers: VecDeque::new(),
        accepts_at: None,
        warned: None,
    };
    thread.listen()?;
    thread.run()
}

impl<'a, 't> Thread<'a, 't> {
    fn run(mut self) -> io::Result<()> {
        let cx = self.cx;
        let begin = |number, connection| turn(cx, number, connection);
        let (mut turns, mut events) = (Turns::default(), Vec::with_capacity(EVENTS));
        while !self.is_over() {
            let wait = self.due_in();
            self.look(&mut events, wait)?;
            let mut ended = Vec::new();
            let mut looked = quanta::Instant::now();
            block_on(poll_fn(|lanes| {
                // If no turn can go on, the thread sleeps until it is woken.
                let rests = !turns.is_empty()
                    && self.ready.is_empty()
                    && cx.pace().resting() == turns.len();
                if rests || looked.elapsed() >= LOOKS_APART {
                    let wait = match self.leaving.is_empty() {
                        _ if !rests => Some(Duration::ZERO),
                        true => self.due_in(),
                        false => Some(REST),
                    };
                    self.look(&mut events, wait)?;
                    looked = quanta::Instant::now();
                    self.drop_turns(&mut turns, lanes);
                }
                self.round(&mut turns, &begin, &mut ended, lanes)?;
                if turns.is_empty() { Poll::Ready(io::Result::Ok(())) } else { Poll::Pending }
            }))?;
        }
        Ok(())
    }

    /// After which time the thread has something to do, if nobody wakes it.
    fn due_in(&self) -> Option<Duration> {
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let held = (!self.holding.is_empty()).then_some(RESERVATION_TIME / 2);
        let drained = self.drains_until.map(until);
        let now = (!self.ready.is_empty()).then_some(Duration::ZERO);
        let accepts = self.accepts_at.map(until);
        let flush = self.flush_at.map(until);
        let stranger = self.strangers.front();
        let login = stranger.map(|(client, _)| LOGIN_TIME.saturating_sub(client.since.elapsed()));
        let all = [held, drained, accepts, flush, login, now];
        all.into_iter().flatten().min()
    }

    /// Whether the thread has nothing more to serve.
    fn is_over(&self) -> bool {
        let is_empty = self.free.len() == self.places.len();
        self.drains_until.is_some_and(|until| is_empty || Instant::now() >= until)
    }

    /// Drops the turns that are for nobody any more, or all if the gateway has to end.
    fn drop_turns<F: Future<Output = Turn<'t>>>(
        &mut self,
        turns: &mut Turns<F>,
        lanes: &mut task::Context<'_>,
    ) {
        if self.drains_until.is_some_and(|until| Instant::now() >= until) {
            return turns.drop_those(|_| true, lanes);
        }
        if self.leaving.is_empty() {
            return;
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|number| {
            let Some(place) = &self.places[*number] else { return false };
            if place.connection.is_some() || !place.is_given_up() {
                return place.left.is_some() || place.client.is_killed();
            }
            turns.drop_those(|of| of == *number, lanes);
            self.cx.shared.clients.leave(&place.client);
            self.places[*number] = None;
            self.free.push(*number);
            false
        });
        self.leaving = leaving;
    }

    /// The client of a connection has ended its side, or has to end.
    fn leaves(&mut self, number: usize) {
        if !self.leaving.contains(&number) {
            self.leaving.push(number);
        }
    }

    /// Begins turns of connections that have something to do, and goes on with all of them.
    fn round<F: Future<Output = Turn<'t>>>(
        &mut self,
        turns: &mut Turns<F>,
        begin: &impl Fn(usize, Option<Box<Connection<'t>>>) -> F,
        ended: &mut Vec<Turn<'t>>,
        lanes: &mut task::Context<'_>,
    ) -> io::Result<()> {
        let waiting = self.cx.pace().waiting();
        while !self.ready.is_empty() && turns.has_room(waiting) && !self.is_over() {
            let Some(number) = self.ready.pop_front() else { break };
            // It may have ended since.
            let Some(place) = &mut self.places[number] else { continue };
            place.is_ready = false;
            if let Some(connection) = place.connection.take() {
                turns.begin(number, begin(number, Some(connection)));
            }
        }
        if self.flush_at.is_some_and(|at| at <= Instant::now()) {
            // By now a client may want another time.
            let mut wanted = self.cx.shared.flush_at();
            if wanted.take_if(|at| *at <= Instant::now()).is_some() {
                turns.begin(FLUSH, begin(FLUSH, None));
            }
            self.flush_at = *wanted;
        }
        self.cx.pace().begin_round();
        turns.poll(lanes, ended);
        for (number, connection, waits) in ended.drain(..) {
            let Some(connection) = connection else { continue };
            self.after_turn(number, connection, waits)?;
        }
        Ok(())
    }

    /// Finds the connections that have something to do, after some time at most.
    fn look(&mut self, events: &mut Vec<Event>, wait: Option<Duration>) -> io::Result<()> {
        let wait = wait.map(|wait| Timespec::try_from(wait).expect("a bound of seconds"));
        events.clear();
        match epoll::wait(&self.poll, spare_capacity(events), wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        self.cx.shared.uses.tick();
        for event in events {
            match event.data.u64() {
                WAKES => self.wake(),
                listener @ LISTENERS.. => self.accept((listener - LISTENERS) as usize),
                connection => self.has_come(connection as usize, event.flags),
            }
        }
        if self.accepts_at.is_some_and(|at| at <= Instant::now()) {
            self.listen()?;
        }
        self.end_strangers();
        if !self.holding.is_empty() && self.looked.elapsed() >= RESERVATION_TIME / 2 {
            self.look_at_holding();
        }
        Ok(())
    }

    /// Ends the connections of those that have not given the password for too long.
    fn end_strangers(&mut self) {
        let is_due = |(client, _): &mut (Arc<Client>, usize)| {
            !client.is_stranger() || client.since.elapsed() >= LOGIN_TIME
        };
        while let Some((client, number)) = self.strangers.pop_front_if(is_due) {
            let has_place = |place: &Place<'t>| Arc::ptr_eq(&place.client, &client);
            let place = self.places[number].as_ref().filter(|place| has_place(place));
            match place.filter(|_| client.is_stranger()).map(|place| place.connection.is_some()) {
                None => (),
                Some(true) => self.end(number),
                Some(false) => {
                    client.kill();
                    self.leaves(number);
                }
            }
        }
    }

    /// Connections that have held up others for long enough have something to do.
    fn look_at_holding(&mut self) {
        self.looked = Instant::now();
        let (now, places) = (self.looked, &self.places);
        let due = |number: &usize| {
            let connection = places[*number].as_ref()?.connection.as_ref();
            Some(connection.map(|connection| connection.is_due()))
        };
        let mut late = Vec::new();
        self.holding.retain(|number| match due(number) {
            // It has its turn.
            Some(None) => true,
            Some(Some(Some(until))) => {
                late.extend((until <= now).then_some(*number));
                true
            }
            None | Some(Some(None)) => false,
        });
        late.into_iter().for_each(|number| self.is_ready(number));
    }

    /// The poll set tells something of a connection.
    fn has_come(&mut self, number: usize, flags: EventFlags) {
        if flags.intersects(ENDS)
            && let Some(place) = &mut self.places[number]
            && place.left.is_none()
        {
            place.left = Some(Instant::now());
            self.leaves(number);
        }
        self.is_ready(number);
    }

    /// Somebody has something for this connection to do.
    fn is_ready(&mut self, number: usize) {
        // A connection that has its turn sees by itself what has come.
        if let Some(place) = &mut self.places[number]
            && place.connection.is_some()
            && !std::mem::replace(&mut place.is_ready, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Somebody has brought connections, wants some to end, or has stopped the gateway.
    fn wake(&mut self) {
        let shared = self.cx.shared;
        let mailbox = &shared.threads[self.cx.thread()];
        for (stream, from, to, protocol) in mailbox.take() {
            self.enter(stream, from, to, protocol);
        }
        for number in 0..self.places.len() {
            let Some(place) = &self.places[number] else { continue };
            match (place.client.is_killed(), place.connection.is_some()) {
                (true, true) => self.end(number),
                (true, false) => self.leaves(number),
                (false, _) => (),
            }
        }
        if self.cx.thread() == 0 {
            self.flush_at = *shared.flush_at();
        }
        if shared.is_stopping.load(Ordering::Acquire) && self.drains_until.is_none() {
            self.drains_until = Some(Instant::now() + DRAIN_TIME);
            self.stop_accepting();
            self.accepts_at = None;
            (0..self.places.len()).for_each(|number| self.is_ready(number));
        }
    }

    fn listen(&mut self) -> io::Result<()> {
        self.accepts_at = None;
        for (at, (listener, _)) in self.cx.shared.listeners.iter().enumerate() {
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            epoll::add(&self.poll, listener, EventData::new_u64(LISTENERS + at as u64), flags)?;
        }
        Ok(())
    }

    /// Accepts nobody for a moment.
    fn stop_accepting(&mut self) {
        if self.accepts_at.is_some() {
            return;
        }
        self.accepts_at = Some(Instant::now() + ACCEPT_PAUSE);
        for (listener, _) in &self.cx.shared.listeners {
            // Otherwise it is one that the poll set does not have.
            let _ = epoll::delete(&self.poll, listener);
        }
    }

    /// Accepts the clients that wait, up to a bound: others are served as well.
    fn accept(&mut self, listener: usize) {
        let shared = self.cx.shared;
        let (listener, protocol) = &shared.listeners[listener];
        for _ in 0..ACCEPTS_A_LOOK {
            if shared.is_stopping.load(Ordering::Acquire) {
                return;
            }
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                // Nobody waits any more: another thread may have taken them.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_one_client(&error) => continue,
                Err(error) => {
                    if self.warned.is_none_or(|at| at.elapsed() >= WARNINGS_APART) {
                        self.warned = Some(Instant::now());
                        tracing::warn!(%error, "no client can connect");
                    }
                    // It stays in the queue: a thread that looked again at once would do nothing
                    // else.
                    self.stop_accepting();
                    return;
                }
            };
            let to = listener.address().to_string();
            let thread = shared.accepted.fetch_add(1, Ordering::Relaxed) % shared.threads.len();
            shared.threads[thread].give((stream, from, to, *protocol));
        }
    }

    fn enter(&mut self, mut stream: Stream, from: String, to: String, protocol: Protocol) {
        let counters = &self.cx.figures().counters;
        let needs_password = self.cx.shared.password.is_some();
        let clients = &self.cx.shared.clients;
        let Some(client) = clients.enter(from, to, self.cx.thread(), needs_password) else {
            add(&counters.rejected, 1);
            let answer: &[u8] = match protocol {
                Protocol::Resp => b"-ERR max number of clients reached\r\n",
                Protocol::Memcached => b"ERROR Too many open connections\r\n",
            };
            // The client may be gone.
            let _ = io::Write::write(&mut stream, answer);
            return;
        };
        add(&counters.connections, 1);
        let session = match protocol {
            Protocol::Resp => Session::Resp(Box::new(resp::Session::new(needs_password))),
            Protocol::Memcached => {
                Session::Memcached(Box::new(memcached::Session::new(needs_password)))
            }
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let flags = EventFlags::IN | EventFlags::RDHUP;
        let data = EventData::new_u64(number as u64);
        if let Err(error) = epoll::add(&self.poll, stream.as_fd(), data, flags) {
            tracing::warn!(client = client.address, %error, "the system serves no more clients");
            self.cx.shared.clients.leave(&client);
            self.free.push(number);
            return;
        }
        let copies = &self.cx.shared.copies;
        let connection = Connection::new(stream, client.clone(), session, copies);
        let connection = Some(Box::new(connection));
        if needs_password {
            self.strangers.push_back((Arc::clone(&client), number));
        }
        let (is_ready, left) = (false, None);
        self.places[number] = Some(Place { client, connection, is_ready, flags, left });
    }

    /// Ends a connection that has no turn.
    fn end(&mut self, number: usize) {
        let Some(place) = self.places[number].take() else { return };
        self.cx.shared.clients.leave(&place.client);
        // Closing its descriptor takes it out of the poll set.
        place.connection.expect("it has no turn").end();
        self.free.push(number);
    }

    fn after_turn(
        &mut self,
        number: usize,
        connection: Box<Connection<'t>>,
        waits: Waits,
    ) -> io::Result<()> {
        let place = self.places[number].as_mut().expect("it had a turn");
        let connection = place.connection.insert(connection);
        if connection.is_due().is_some() && !self.holding.contains(&number) {
            self.holding.push(number);
        }
        let has_all = waits == Waits::ForInput && self.drains_until.is_some();
        let wanted = match waits {
            _ if has_all || place.client.is_killed() || waits == Waits::Ended => {
                self.end(number);
                return Ok(());
            }
            Waits::ForInput => EventFlags::IN,
            Waits::ForOutput => EventFlags::OUT,
            Waits::ForEither => EventFlags::IN | EventFlags::OUT,
            // That a client has gone is told whatever is asked for: here once, and not for ever.
            Waits::ForTime | Waits::Ended => EventFlags::ET,
            Waits::No => {
                self.is_ready(number);
                return Ok(());
            }
        };
        // Once is enough: the poll set would tell it again and again.
        let wanted = if place.left.is_none() { wanted | EventFlags::RDHUP } else { wanted };
        if place.flags != wanted {
            place.flags = wanted;
            let data = EventData::new_u64(number as u64);
            epoll::modify(&self.poll, connection.stream.as_fd(), data, wanted)?;
        }
        Ok(())
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

async fn turn<'t>(
    cx: &Context<'t>,
    number: usize,
    mut connection: Option<Box<Connection<'t>>>,
) -> Turn<'t> {
    let waits = match &mut connection {
        Some(connection) => connection.turn(cx).await,
        None => {
            if let Err(failure) = cx.store.flush().await {
                tracing::warn!(why = %failure.in_words(), "a delayed flush_all has not deleted all keys");
            }
            Waits::Ended
        }
    };
    (number, connection, waits)
}
