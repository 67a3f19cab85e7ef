//! The seats of workers at their agent. A worker that has taken its seat drives the connections of
//! its clients itself: a request goes through the hands of one thread, and the requests and replies
//! of a turn share the calls of the system.
//!
//! # Sleep
//! A worker sleeps at its bell, where clients of other hosts cannot ring. Before its last look it
//! has the agent watch its sockets ([`Taken::turn`]): the agent's thread rings when one is ready.
//!
//! # Faults survived
//! A worker that ends gives its connections back to the agent, also if it panics. The next one that
//! takes the seat gets them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::admission::SeatId;
use super::drive::{Drive, OTHER, Workers};
use super::inbox::Inbox;
use super::lent::Lent;
use crate::shm::Bell;

/// The seats of an agent.
pub(super) struct Seats {
    seats: RwLock<Vec<Seat>>,
    /// The agent's thread that drives the connections of seats that nobody has taken, and watches
    /// for workers that sleep.
    agent: Arc<Inbox>,
    watch: Arc<OwnedFd>,
}

struct Seat {
    /// Where the worker sleeps.
    bell: Bell,
    /// Where the worker that has taken the seat is given connections.
    taken: Option<Arc<Inbox>>,
}

/// The agent's thread is told once that something is there.
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

impl Seats {
    /// The seats of the agent one of whose threads has this inbox, and watches this.
    pub fn new(agent: Arc<Inbox>, watch: Arc<OwnedFd>) -> Self {
        Self { seats: RwLock::default(), agent, watch }
    }

    /// Makes a seat for a worker that sleeps at `bell`.
    pub fn add(&self, bell: Bell) -> SeatId {
        let mut seats = self.seats.write().expect("nothing panics while it is held");
        seats.push(Seat { bell, taken: None });
        SeatId(seats.len() as u32 - 1)
    }

    fn seen<T>(&self, seat: SeatId, see: impl FnOnce(&Seat) -> T) -> Option<T> {
        let seats = self.seats.read().expect("nothing panics while it is held");
        seats.get(seat.0 as usize).map(see)
    }

    /// Wakes the worker of the seat with this event.
    pub fn wake(&self, event: u64) {
        self.seen(SeatId(event as u32), |seat| seat.bell.ring());
    }

    /// Takes a seat. A worker that had it before has none from now on.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// If the seat is another agent's.
    pub fn take(self: &Arc<Self>, seat: SeatId) -> io::Result<Taken> {
        let inbox = Arc::new(Inbox::new()?);
        let drive = Drive::new(inbox.clone())?;
        epoll::add(&*self.watch, &**drive.watch(), event_of(seat), ONCE)?;
        let mut seats = self.seats.write().expect("nothing panics while it is held");
        let taken = &mut seats[seat.0 as usize];
        taken.taken = Some(inbox);
        Ok(Taken { bell: taken.bell.clone(), seats: self.clone(), seat, drive })
    }

    fn leave(&self, taken: &mut Taken) {
        let mut seats = self.seats.write().expect("nothing panics while it is held");
        let seat = &mut seats[taken.seat.0 as usize].taken;
        if seat.as_ref().is_some_and(|inbox| Arc::ptr_eq(inbox, taken.drive.inbox())) {
            *seat = None;
        }
        drop(seats);
        let _ = epoll::delete(&*self.watch, &**taken.drive.watch());
        taken.drive.give_all_to(&self.agent);
    }
}

impl Workers for Seats {
    fn inbox(&self, seat: SeatId) -> Option<Arc<Inbox>> {
        self.seen(seat, |seat| seat.taken.clone()).flatten()
    }
}

/// By what the agent's thread knows that a worker has to be woken.
fn event_of(seat: SeatId) -> EventData {
    EventData::new_u64(SEAT | u64::from(seat.0))
}

/// The events of seats have these bits.
pub(super) const SEAT: u64 = OTHER | 1 << 62;

/// A seat that a worker has taken.
pub(super) struct Taken {
    seats: Arc<Seats>,
    seat: SeatId,
    bell: Bell,
    drive: Drive,
}

impl Taken {
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.drive.connections()
    }

    #[cfg(test)]
    pub fn has_more(&self) -> bool {
        self.drive.has_more()
    }

    /// Executes what has come on the worker's connections.
    pub fn turn(&mut self, lent: &Lent) {
        if self.bell.is_armed() {
            // This is the last look before a sleep. It fails only for descriptors that are closed.
            let _ =
                epoll::modify(&*self.seats.watch, &**self.drive.watch(), event_of(self.seat), ONCE);
        }
        self.drive.turn(lent, Some(Duration::ZERO), &mut Vec::new());
        if self.drive.has_more() {
            // No socket wakes the worker for that.
            self.bell.ring();
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let seats = self.seats.clone();
        seats.leave(self);
    }
}
