//! The agent: a node's side of TCP. Its [threads](super::thread) execute the verbs of clients on
//! the node's region, and sleep while there are none. Workers that have a [seat](super::seat) drive
//! the connections of their clients themselves.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::TcpError;
use super::admission::{Client, SeatId};
use super::drive::Drive;
use super::inbox::Inbox;
use super::keys::Keys;
use super::lent::{Accepted, Lent, Ticket};
use super::mailbox::TcpMailbox;
use super::seat::Seats;
use super::serving::AgentEndpoint;
use super::setup::Answer;
use super::thread::{Common, Listening, Others, Thread};
use crate::RegionId;
use crate::accepting::lengthen_queue;
use crate::rights::{self, Access, Grant, Granted};
use crate::shm::{Bell, Region};

/// How an agent works.
pub struct AgentOptions {
    /// Its threads. Default: one.
    pub threads: usize,
    /// Takes the connections that are none of clients. Default: they are closed.
    pub others: Option<Others>,
    /// Whether connections are encrypted. An agent that encrypts lets no client in that does not,
    /// and the other way round. Default: no.
    pub encrypt: bool,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self { threads: 1, others: None, encrypt: false }
    }
}

/// The node's side of TCP: lends a region to clients that connect. Any thread may use it. Dropping
/// it ends all connections.
pub struct Agent {
    common: Arc<Common>,
    seats: Arc<Seats>,
    threads: Vec<JoinHandle<()>>,
    address: SocketAddr,
}

impl Agent {
    /// Lends `region` to the clients that connect to `listener`.
    ///
    /// # Errors
    /// [`TcpError::Os`].
    ///
    /// # Panics
    /// If there are to be no threads.
    pub fn start(
        region: Arc<Region>,
        listener: TcpListener,
        options: AgentOptions,
    ) -> Result<Self, TcpError> {
        let AgentOptions { threads, others, encrypt } = options;
        assert!(threads > 0, "an agent needs a thread");
        let os = |action| move |source| TcpError::Os { action, source };
        listener.set_nonblocking(true).map_err(os("listen"))?;
        lengthen_queue(&listener).map_err(os("listen"))?;
        let address = listener.local_addr().map_err(os("listen"))?;
        let mut drives = Vec::new();
        for _ in 0..threads {
            let inbox = Arc::new(Inbox::new().map_err(os("make a bell"))?);
            drives.push(Drive::new(inbox).map_err(os("watch sockets"))?);
        }
        let first = &drives[0];
        let seats = Arc::new(Seats::new(first.inbox().clone(), first.watch().clone()));
        let inboxes = drives.iter().map(|drive| drive.inbox().clone()).collect();
        let (lent, stops) = (Arc::new(Lent::new(region, encrypt)), AtomicBool::new(false));
        let common = Arc::new(Common { lent, others, inboxes, seats: seats.clone(), stops });
        let mut agent = Self { common: common.clone(), seats, threads: Vec::new(), address };
        let mut listener = Some(listener);
        for (number, drive) in drives.into_iter().enumerate() {
            let listening = listener.take().map(|it| Listening::new(it, &drive)).transpose();
            let listening = listening.map_err(os("watch the listener"))?;
            let thread = Thread::new(common.clone(), drive, listening);
            let builder = std::thread::Builder::new().name(format!("loch-tcp-{number}"));
            let thread = builder.spawn(move || thread.work()).map_err(os("start a thread"))?;
            agent.threads.push(thread);
        }
        Ok(agent)
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[cfg(test)]
    pub(super) fn plant(&self, fault: super::planted::Fault) {
        self.common.lent.planted.plant(fault);
    }

    /// Lets a client in, with the rights in its grants and no others. It connects with the answer,
    /// soon, and once.
    ///
    /// # Errors
    /// [`TcpError::Hostile`] for invalid grants, [`TcpError::ReadOnlyRegion`].
    pub fn accept(&self, client: Client<'_>) -> Result<(Accepted, Answer), TcpError> {
        let (region, grants) = (&self.common.lent.region, client.grants);
        let ranges = grants.iter().map(|grant| (grant.offset, grant.len)).collect();
        rights::check_ranges(ranges, region.len()).map_err(|what| TcpError::Hostile { what })?;
        if !region.is_writable() && grants.iter().any(|grant| grant.access != Access::Read) {
            return Err(TcpError::ReadOnlyRegion);
        }
        let (keys, told) = Keys::new(grants);
        let (accepted, Ticket { token, key }) = self.common.lent.admit(keys, client);
        let granted = |(grant, key): (&Grant, u32)| {
            let Grant { offset, len, access } = *grant;
            Granted { offset, len, access, address: offset, rkey: key }
        };
        let grants = grants.iter().zip(told).map(granted).collect();
        Ok((accepted, Answer { token, key, grants }))
    }

    /// Opens a mailbox for one of the node's workers. Clients find it at its address, which says
    /// that it is at the node with this region. `bell` wakes the worker when something has arrived.
    pub fn mailbox(&self, region: RegionId, bell: Option<Bell>) -> TcpMailbox {
        TcpMailbox::open(self.common.lent.clone(), region, bell)
    }

    /// Makes a seat for one of the node's workers, which sleeps at `bell`. While the worker has an
    /// endpoint with this seat, it drives the connections of the [clients](Client) with this seat.
    pub fn seat(&self, bell: Bell) -> SeatId {
        self.seats.add(bell)
    }

    /// An endpoint for one of the node's workers, whose region is `home`. A worker with a seat has
    /// one endpoint with it at a time.
    ///
    /// # Errors
    /// [`TcpError::Os`] if the system has no descriptors left.
    ///
    /// # Panics
    /// If the seat is another agent's.
    pub fn endpoint(
        &self,
        home: RegionId,
        seat: Option<SeatId>,
    ) -> Result<AgentEndpoint, TcpError> {
        let taken = seat.map(|seat| self.seats.take(seat)).transpose();
        let taken = taken.map_err(|source| TcpError::Os { action: "watch sockets", source })?;
        Ok(AgentEndpoint::new(self.common.lent.clone(), home, taken))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.common.stops.store(true, Ordering::Release);
        self.common.inboxes.iter().for_each(|inbox| inbox.turns.ring());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}
