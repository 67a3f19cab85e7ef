//! A thread of the gateway: its connections, its table, and the loop that serves them.
//!
//! All listeners are every thread's; whoever accepts a connection gives it to the threads in turn.
//! Connections that have something to do are served side by side, as lanes of the thread, so the
//! memory accesses of different clients overlap.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use loch::Table;
use loch::lanes::{block_on, run};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connection::{Connection, Session, Waits};
use crate::context::{Context, Shared};
use crate::figures::add;
use crate::limits::{DRAIN_TIME, LANES};
use crate::protocol::Protocol;
use crate::store::Store;
use crate::stream::Stream;
use crate::{memcached, resp};

/// The events of what is no connection have numbers from this one on, downwards.
const WAKES: u64 = u64::MAX;
const LISTENERS: u64 = 1 << 32;
/// How long a thread rests if the process can have no more descriptors.
const NO_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(10);
/// Events that are taken at a time.
const EVENTS: usize = 256;

struct Thread<'t> {
    cx: Context<'t>,
    poll: OwnedFd,
    connections: Vec<Option<(Connection<'t>, EventFlags)>>,
    free: Vec<usize>,
    /// Connections that have more to do than they did in their last turn.
    again: Vec<usize>,
    drains_until: Option<Instant>,
}

/// Serves connections until the gateway stops.
pub(crate) fn serve(shared: &Arc<Shared>, number: usize, table: &Table) -> io::Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mailbox = &shared.threads[number];
    epoll::add(&poll, mailbox.as_fd(), EventData::new_u64(WAKES), EventFlags::IN)?;
    for (at, (listener, _)) in shared.listeners.iter().enumerate() {
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        epoll::add(&poll, listener, EventData::new_u64(LISTENERS + at as u64), flags)?;
    }
    let cx = Context::new(shared, Store::new(table), number);
    let (connections, free, again) = (Vec::new(), Vec::new(), Vec::new());
    Thread { cx, poll, connections, free, again, drains_until: None }.run()
}

impl<'t> Thread<'t> {
    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let wait = match (self.again.is_empty(), self.drains_until) {
                (false, _) => Some(Duration::ZERO),
                (true, None) => None,
                (true, Some(until)) => Some(until.saturating_duration_since(Instant::now())),
            };
            let wait = wait.map(|wait| Timespec::try_from(wait).expect("a bound of seconds"));
            events.clear();
            match epoll::wait(&self.poll, spare_capacity(&mut events), wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
            let mut ready = std::mem::take(&mut self.again);
            for event in &events {
                match event.data.u64() {
                    WAKES => self.wake(&mut ready)?,
                    listener @ LISTENERS.. => self.accept((listener - LISTENERS) as usize),
                    connection => ready.push(connection as usize),
                }
            }
            ready.sort_unstable();
            ready.dedup();
            self.turns(&ready)?;
            if let Some(until) = self.drains_until
                && (self.free.len() == self.connections.len() || Instant::now() >= until)
            {
                return Ok(());
            }
        }
    }

    /// Somebody has brought connections, wants some to end, or has stopped the gateway.
    fn wake(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        let shared = self.cx.shared;
        let mailbox = &shared.threads[self.cx.thread()];
        for (stream, from, to, protocol) in mailbox.take() {
            self.enter(stream, from, to, protocol)?;
        }
        for number in 0..self.connections.len() {
            let killed =
                self.connections[number].as_ref().is_some_and(|(c, _)| c.client.is_killed());
            if killed {
                self.end(number);
            }
        }
        if shared.is_stopping.load(Ordering::Acquire) && self.drains_until.is_none() {
            self.drains_until = Some(Instant::now() + DRAIN_TIME);
            for (listener, _) in &shared.listeners {
                epoll::delete(&self.poll, listener)?;
            }
            ready.extend(0..self.connections.len());
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        let shared = self.cx.shared;
        if shared.is_stopping.load(Ordering::Acquire) {
            return;
        }
        let (listener, protocol) = &shared.listeners[listener];
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            // Another thread has taken it, or its client is gone.
            Err(error) if is_of_one_client(&error) => return,
            Err(error) => {
                tracing::warn!(%error, "no client can connect");
                // It stays in the queue: a thread that looked again at once would do nothing else.
                std::thread::sleep(NO_DESCRIPTORS_PAUSE);
                return;
            }
        };
        let to = listener.address().to_string();
        let thread = shared.accepted.fetch_add(1, Ordering::Relaxed) % shared.threads.len();
        shared.threads[thread].give((stream, from, to, *protocol));
    }

    fn enter(
        &mut self,
        mut stream: Stream,
        from: String,
        to: String,
        protocol: Protocol,
    ) -> io::Result<()> {
        let counters = &self.cx.figures().counters;
        let Some(client) = self.cx.shared.clients.enter(from, to, self.cx.thread()) else {
            add(&counters.rejected, 1);
            let answer: &[u8] = match protocol {
                Protocol::Resp => b"-ERR max number of clients reached\r\n",
                Protocol::Memcached => b"ERROR Too many open connections\r\n",
            };
            // The client may be gone.
            let _ = io::Write::write(&mut stream, answer);
            return Ok(());
        };
        add(&counters.connections, 1);
        let needs_password = self.cx.shared.password.is_some();
        let session = match protocol {
            Protocol::Resp => Session::Resp(Box::new(resp::Session::new(needs_password))),
            Protocol::Memcached => {
                Session::Memcached(Box::new(memcached::Session::new(needs_password)))
            }
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let data = EventData::new_u64(number as u64);
        epoll::add(&self.poll, stream.as_fd(), data, EventFlags::IN)?;
        let connection = Connection::new(stream, client, session);
        self.connections[number] = Some((connection, EventFlags::IN));
        Ok(())
    }

    fn end(&mut self, number: usize) {
        let (connection, _) = self.connections[number].take().expect("it is there");
        self.cx.shared.clients.leave(connection.client.id);
        // Closing its descriptor takes it out of the poll set.
        connection.end(&self.cx);
        self.free.push(number);
    }

    /// A turn of each of these connections.
    fn turns(&mut self, ready: &[usize]) -> io::Result<()> {
        let mut ended = Vec::with_capacity(ready.len());
        let mut turns: Vec<(usize, &mut Connection<'t>)> = Vec::with_capacity(ready.len());
        let mut rest = self.connections.iter_mut().enumerate();
        for number in ready {
            let Some((number, Some((connection, _)))) = rest.find(|(at, _)| at == number) else {
                continue;
            };
            turns.push((number, connection));
        }
        let cx = &self.cx;
        let turns = turns.into_iter().map(|(number, connection)| turn(cx, number, connection));
        block_on(run(LANES, turns, |done| ended.push(done)));
        for (number, waits) in ended {
            self.after_turn(number, waits)?;
        }
        Ok(())
    }

    fn after_turn(&mut self, number: usize, waits: Waits) -> io::Result<()> {
        let (connection, flags) = self.connections[number].as_mut().expect("it had a turn");
        let wanted = match waits {
            Waits::Ended => {
                self.end(number);
                return Ok(());
            }
            Waits::ForInput if self.drains_until.is_some() => {
                self.end(number);
                return Ok(());
            }
            Waits::ForInput => EventFlags::IN,
            Waits::ForOutput => EventFlags::OUT,
            Waits::No => {
                self.again.push(number);
                return Ok(());
            }
        };
        if *flags != wanted {
            *flags = wanted;
            let data = EventData::new_u64(number as u64);
            epoll::modify(&self.poll, connection.stream.as_fd(), data, wanted)?;
        }
        Ok(())
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

async fn turn<'t>(
    cx: &Context<'t>,
    number: usize,
    connection: &mut Connection<'t>,
) -> (usize, Waits) {
    (number, connection.turn(cx).await)
}
