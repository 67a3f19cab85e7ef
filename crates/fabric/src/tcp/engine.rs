//! The verbs of one thread over TCP: its connections, and what is under way on them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::CAPS;
use super::link::{Flight, Link, Lost, Then};
use super::pushed::{Pushed, TcpWorker};
use super::socket;
use super::stream::Halves;
use crate::away::keys::{Keys, Remote};
use crate::away::ops::{OpId, Ops};
use crate::away::{Carrier, Task};
use crate::limits::TCP_CHUNK_BYTES;
use crate::networks::Network;
use crate::rights::Access;
use crate::shm::{Region, parking};
use crate::{Caps, FabricError, RegionId, RemoteAddr, Result};

/// The verbs of one thread that are under way.
pub(super) struct Engine {
    /// By region.
    ways: Vec<Option<Way>>,
    ops: Ops,
    /// Verbs posted so far.
    posted: u64,
    /// When somebody has looked at all connections.
    looked: Instant,
    scratch: Box<[u8]>,
    pub pushed: Pushed,
    /// This engine, for the thread's rounds.
    itself: Weak<Mutex<Self>>,
}

/// The way to a node, which outlives the connections to it.
struct Way {
    region_bytes: u64,
    keys: Keys,
    /// `None`: it broke.
    link: Option<Link>,
    /// The number of the first verb of unknown outcome, until the connection is made again.
    unknown: Option<u64>,
}

impl Engine {
    pub fn new(itself: Weak<Mutex<Self>>, home: Arc<Region>, region: RegionId) -> Self {
        let (scratch, pushed) = (vec![0; TCP_CHUNK_BYTES].into(), Pushed::new(home, region));
        let (ways, ops, looked) = (Vec::new(), Ops::default(), Instant::now());
        Self { ways, ops, posted: 0, looked, scratch, pushed, itself }
    }

    /// Uses a connection from now on.
    pub fn install(
        &mut self,
        region: RegionId,
        (region_bytes, keys): (u64, Keys),
        socket: OwnedFd,
        halves: Halves,
    ) {
        self.break_link(region, &Lost::Ended);
        let at = usize::from(region.0);
        if self.ways.len() <= at {
            self.ways.resize_with(at + 1, || None);
        }
        let link = Some(Link::new(socket, halves, region_bytes));
        self.ways[at] = Some(Way { region_bytes, keys, link, unknown: None });
    }

    #[cfg(test)]
    pub fn flights_held(&self) -> usize {
        self.links().map(Link::flights_held).sum()
    }

    #[cfg(test)]
    pub fn unsent(&self) -> u64 {
        self.links().map(Link::unsent).sum()
    }

    /// Takes what has arrived on all connections, and notices which of them broke, unless that was
    /// done a short time ago.
    pub fn look_every(&mut self, time: Duration) {
        if self.looked.elapsed() >= time {
            self.progress(true);
        }
    }

    /// The nodes to which a connection broke.
    pub fn broken(&self) -> Vec<RegionId> {
        let ways = self.ways.iter().enumerate();
        let broken = ways.filter(|(_, way)| way.as_ref().is_some_and(|way| way.link.is_none()));
        broken.map(|(region, _)| RegionId(region as u8)).collect()
    }

    /// Queues a message. It is lost if there is no connection to the worker's node, or no room.
    pub fn queue_message(&mut self, to: TcpWorker, message: &[u8]) {
        if self.check_room(to.region).is_ok() {
            self.link(to.region).expect("it was looked at").push_message(to.mailbox, message);
        }
    }

    /// Whether a node takes one more request that nobody awaits: nothing else bounds how many of
    /// these there are. The thread does not wait for room, as it may have to do with other nodes.
    fn check_room(&mut self, region: RegionId) -> Result<()> {
        if self.link(region)?.has_room() {
            return Ok(());
        }
        // A thread that posts one after the other has no rounds in which anything is sent.
        self.progress(false);
        match self.link(region)?.has_room() {
            true => Ok(()),
            false => Err(FabricError::Unreachable { region }),
        }
    }

    fn link(&mut self, region: RegionId) -> Result<&mut Link> {
        let way = self.ways.get_mut(usize::from(region.0)).and_then(Option::as_mut);
        way.and_then(|way| way.link.as_mut()).ok_or(FabricError::Unreachable { region })
    }

    /// Bytes that the connections which are there have sent, and received.
    pub fn bytes_carried(&self) -> [u64; 2] {
        let carried = self.links().filter_map(|link| socket::carried(link.socket()).ok());
        carried.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    }

    fn way(&self, region: RegionId) -> Option<&Way> {
        self.ways.get(usize::from(region.0))?.as_ref()
    }

    fn known(&self, region: RegionId) -> Result<&Way> {
        self.way(region).ok_or(FabricError::Unattached { region })
    }

    #[cold]
    fn break_link(&mut self, region: RegionId, why: &Lost) {
        let Some(Some(way)) = self.ways.get_mut(usize::from(region.0)) else { return };
        let Some(link) = way.link.take() else { return };
        tracing::debug!(region = region.0, %why, "a connection broke");
        let unknown = link.break_off(&mut self.ops);
        way.unknown = way.unknown.into_iter().chain(unknown).min();
    }

    /// Queues the requests of a verb: one for each key.
    fn push(&mut self, op: Option<OpId>, then: Then, at: RemoteAddr, len: usize, bytes: &[u8]) {
        let number = self.posted;
        self.posted += 1;
        let way = self.ways[usize::from(at.region().0)].as_mut().expect("it was checked");
        let link = way.link.as_mut().expect("it was looked at");
        let mut done = 0;
        while done < len {
            let place = at.offset() + done as u64;
            let (to, run) = way.keys.remote(place).expect("rights to every byte were checked");
            let some = run.min((len - done) as u64) as usize;
            if let Some(op) = op.filter(|_| done > 0) {
                self.ops.begin(op);
            }
            let task = match then {
                Then::Verb(Task::At(from)) => Then::Verb(Task::At(from + done)),
                Then::Verb(Task::Words(from)) => Then::Verb(Task::Words(from + done as u16)),
                other => other,
            };
            let flight = Flight { number, op, task, at: at.add(done as u64), len: some };
            let part = bytes.get(done..done + some).unwrap_or_default();
            link.push(flight, to, done, part, &mut self.ops);
            done += some;
        }
    }

    /// Asks for an answer where all that is under way has none.
    fn flush(&mut self, is_due: impl Fn(&Link) -> bool) {
        for (region, way) in self.ways.iter_mut().enumerate() {
            let Some(way) = way else { continue };
            let Some(link) = way.link.as_mut().filter(|link| is_due(link)) else {
                continue;
            };
            let at = RemoteAddr::new(RegionId(region as u8), 0);
            let to: Remote = way.keys.anywhere();
            let flight = Flight { number: self.posted, op: None, task: Then::Flush, at, len: 0 };
            link.push(flight, to, 0, &[], &mut self.ops);
        }
    }

    fn oldest_unsettled(&self) -> Option<u64> {
        let unknown = self.ways.iter().flatten().filter_map(|way| way.unknown);
        self.links().filter_map(Link::oldest_mutating).chain(unknown).min()
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.ways.iter().flatten().filter_map(|way| way.link.as_ref())
    }
}

impl Network for Engine {
    fn receive(&mut self, listens: bool) -> bool {
        let mut has_come = false;
        if listens {
            self.looked = Instant::now();
        }
        for at in 0..self.ways.len() {
            let Some(way) = &mut self.ways[at] else { continue };
            let is_wanted = |link: &&mut Link| listens || !link.is_idle();
            let Some(link) = way.link.as_mut().filter(is_wanted) else { continue };
            let (ops, pushed) = (&mut self.ops, &mut self.pushed);
            pushed.from = RegionId(at as u8);
            // What has arrived may let lanes queue more, which leaves together.
            let received = match link.unsent() > 0 && link.expects_nothing() {
                true => Ok(false),
                false => link.receive(ops, pushed, &mut self.scratch),
            };
            match received {
                Ok(come) => has_come |= come,
                Err(why) => {
                    self.break_link(RegionId(at as u8), &why);
                    has_come = true;
                }
            }
        }
        has_come
    }

    fn send(&mut self, is_busy: bool) {
        for at in 0..self.ways.len() {
            let Some(link) = self.ways[at].as_mut().and_then(|way| way.link.as_mut()) else {
                continue;
            };
            let sent = match link.waits_for_company(is_busy) {
                true => Ok(()),
                false => link.send(&mut self.ops),
            };
            let sent = sent.and_then(|()| match link.is_silent() {
                true => Err(Lost::Silent),
                false => Ok(()),
            });
            if let Err(why) = sent {
                self.break_link(RegionId(at as u8), &why);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.links().all(Link::is_idle)
    }

    fn holds_back(&self) -> bool {
        self.links().any(Link::holds_back)
    }

    fn send_all(&mut self) {
        for way in self.ways.iter_mut().flatten() {
            if let Some(link) = &mut way.link {
                // Its errors are found when something is received.
                let _ = link.send(&mut self.ops);
            }
        }
    }

    fn sockets<'a>(&'a self, watched: &mut Vec<PollFd<'a>>) {
        for link in self.links() {
            let flags = match link.unsent() {
                0 => PollFlags::IN,
                _ => PollFlags::IN | PollFlags::OUT,
            };
            watched.push(PollFd::from_borrowed_fd(link.socket(), flags));
        }
    }
}

impl Carrier for Engine {
    const CAPS: Caps = CAPS;

    fn ops(&mut self) -> &mut Ops {
        &mut self.ops
    }

    fn check(&self, at: RemoteAddr, len: usize, access: Access) -> Result<()> {
        let way = self.known(at.region())?;
        way.keys.check_verb(way.region_bytes, at, len, access)
    }

    fn check_words(&self, at: RemoteAddr, words: usize, access: Access) -> Result<()> {
        let way = self.known(at.region())?;
        way.keys.check_words(way.region_bytes, at, words, access)
    }

    fn queue(&mut self, op: OpId, task: Task, at: RemoteAddr, len: usize) {
        let region = at.region();
        if self.way(region).is_none_or(|way| way.link.is_none()) {
            return self.ops.end(op, Err(FabricError::Unreachable { region }));
        }
        if len == 0 {
            return self.ops.end(op, Ok(()));
        }
        self.push(Some(op), Then::Verb(task), at, len, &[]);
    }

    fn queue_unsignaled(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        self.check_room(at.region())?;
        self.push(None, Then::Unsignaled, at, bytes.len(), bytes);
        self.flush(Link::owes_flush);
        Ok(())
    }

    fn ring(&mut self) {
        parking::network(self.itself.clone(), false);
    }

    fn listen(&mut self) {
        parking::network(self.itself.clone(), true);
    }

    fn posted(&self) -> u64 {
        self.posted
    }

    fn is_settled(&mut self, mark: u64) -> bool {
        if self.oldest_unsettled().is_none_or(|oldest| oldest >= mark) {
            return true;
        }
        // It is asked again and again, often before each operation: what is queued leaves with the
        // next round.
        self.flush(|link| !link.ends_with_answer());
        self.ring();
        false
    }
}
