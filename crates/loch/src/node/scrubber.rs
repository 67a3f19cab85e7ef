//! The node's thread that puts in order what sessions of the node left behind.
//!
//! When a session ends, the chunks that it leased are released. If a chunk descriptor names an
//! owner that was a session of this node and lives no more, the owner is dead. The scrubber reads
//! the owners again each time, on all nodes. After a *death* entries may have leaked too, and the
//! scrubber scrubs the tables. It does the same for sessions that live and say that they have left
//! something: an operation that was dropped, or that lost a connection. They ring the scrubber's
//! bell. A node that starts with a region of before scrubs as well: the scrubber of that time may
//! have ended before it had done what it knew of. Between these works it goes on with the walks
//! that remove what has expired (`expiry.rs`).
//!
//! # Invariants
//! 1. The owners are read before the sessions that live. A session that is in a descriptor but not
//!    among the living afterwards has ended.
//! 2. With nothing to do the thread sleeps, and looks after ever longer pauses at one word of each
//!    table that may have values which expire. Without such a table it sleeps until its bell rings,
//!    or for [`SLEEP_MAX`].
//!    Two scrubs are at least [`SCRUB_INTERVAL`] apart, and [`SCRUB_TIMES`] times as long as the
//!    first one worked, without its waits for other nodes to let it in; a scrub that failed, or met
//!    leaked entries in slabs that clients had closed, is repeated after ever longer pauses.
//! 3. A session that lives may have verbs under way that take entries out of the index. So a scrub
//!    for such sessions waits for a grace period before it lists what no word shows.
//! 4. All clients of the scrubber announce in its one session. A client that could not come to rest
//!    is kept, and none works before its verbs are over: they have settled, or another client of
//!    its table was let in everywhere, which ends the connections of the one before.
//!
//! # Faults
//! A node that cannot be reached is asked again at the next event, and after a pause. The scrubber
//! serves the other nodes meanwhile, but a scrub needs all nodes. A scrubber that dies in the
//! middle of a step leaves the same work as before the step.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loch_engines::epoch::Session;
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::slab::Chunk;
use loch_engines::nessie::{AnyClient, Scrubbed, release_dead};
use loch_engines::net::Access;
use loch_engines::requests::Timing;
use loch_engines::{EngineError, Kv};
use loch_fabric::shm::{Bell, ShmEndpoint};
use loch_fabric::{Buf, Fabric, RegionId};

use super::expiry::{TableWalk, walks_of};
use super::sessions::Sessions;
use crate::layout::memory::{ClusterMemory, TableView};
use crate::limits::{
    EXPIRY_PAUSE, SCRUB_INTERVAL, SCRUB_RETRY_MAX, SCRUB_TIMES, SCRUB_WAIT_US, SLEEP_MAX,
};
use crate::session::slot::SessionId;
use crate::{CacheLimits, Error, Result};

/// The scrubber's way to the memory of its cluster.
pub(crate) trait ClusterAccess: Send + 'static {
    /// The endpoint that posts its verbs.
    type Endpoint: Fabric;
    /// The nodes that can be reached, this one among them.
    fn memory(&mut self) -> Result<Arc<ClusterMemory>>;
    /// An endpoint to a table, for the scrubber's session.
    fn endpoint(
        &mut self,
        memory: &ClusterMemory,
        table: &TableView,
        session: SessionId,
    ) -> Result<Self::Endpoint>;
}

/// The way of a scrubber that has all reachable memory mapped.
pub(crate) struct MappedAccess<A> {
    node: usize,
    attach: A,
}

impl<A: FnMut() -> Result<Arc<ClusterMemory>> + Send + 'static> MappedAccess<A> {
    /// Makes the way of node `node`'s scrubber; `attach` maps the memory.
    pub fn new(node: usize, attach: A) -> Self {
        Self { node, attach }
    }
}

impl<A: FnMut() -> Result<Arc<ClusterMemory>> + Send + 'static> ClusterAccess for MappedAccess<A> {
    type Endpoint = ShmEndpoint;

    fn memory(&mut self) -> Result<Arc<ClusterMemory>> {
        (self.attach)()
    }

    fn endpoint(
        &mut self,
        memory: &ClusterMemory,
        _: &TableView,
        _: SessionId,
    ) -> Result<ShmEndpoint> {
        Ok(memory.endpoint(self.node))
    }
}

/// Tells the scrubber that sessions have ended.
#[derive(Clone)]
pub(crate) struct ScrubberHandle {
    sender: Sender<Event>,
    bell: Bell,
}

/// A running scrubber. Dropping it stops it, even in the middle of a scrub.
pub(crate) struct Scrubber {
    handle: ScrubberHandle,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Event {
    Ended { died: bool },
    Stop,
}

impl ScrubberHandle {
    /// A session of this node has ended, and its slot is free. `died` is set if its client did not
    /// end it.
    pub fn ended(&self, died: bool) {
        // An event after the scrubber has stopped may be lost: the next start scrubs.
        self.tell(Event::Ended { died });
    }

    fn tell(&self, event: Event) {
        let _ = self.sender.send(event);
        self.bell.ring();
    }
}

impl Scrubber {
    /// Starts the thread of node `node`.
    pub fn start(
        node: usize,
        sessions: Arc<Sessions>,
        cluster: impl ClusterAccess,
    ) -> std::io::Result<Self> {
        let (sender, events) = mpsc::channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let handle = ScrubberHandle { sender, bell: sessions.scrubber_bell() };
        let is_stopping = stopping.clone();
        let run = move || ScrubberThread::new(node, sessions, cluster, is_stopping).run(&events);
        let thread = std::thread::Builder::new().name("loch-scrubber".into()).spawn(run)?;
        Ok(Self { handle, stopping, thread: Some(thread) })
    }

    /// Returns the handle that tells the scrubber when a session has ended.
    pub fn handle(&self) -> ScrubberHandle {
        self.handle.clone()
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.handle.tell(Event::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the scrubber had panicked");
        }
    }
}

/// The state of the thread, which makes it: endpoints stay with their thread.
struct ScrubberThread<C: ClusterAccess> {
    node: usize,
    /// The scrubber's own session, once it could be opened.
    session: Option<SessionId>,
    bell: Bell,
    sessions: Arc<Sessions>,
    cluster: C,
    stopping: Arc<AtomicBool>,
    /// Whether chunks may be leased to sessions that have ended.
    release: bool,
    /// Whether entries may have leaked.
    scrub: bool,
    /// Whether sessions that live have left some of them: invariant 3.
    have_left: bool,
    /// How long to wait before work that failed is tried again.
    pause: Duration,
    /// The earliest time of the next scrub.
    next_scrub: Instant,
    /// How long it has driven futures so far, which keeps a processor busy.
    worked: Cell<Duration>,
    /// The walks for what has expired, once it is known which tables there are.
    walks: Option<Vec<TableWalk<C::Endpoint>>>,
    /// The client that worked last, with the number of its table, if it could not come to rest:
    /// invariant 4.
    unrested: Option<(usize, AnyClient<C::Endpoint>)>,
}

/// The reason why a pass did not reach its end.
enum Halt {
    Stopped,
    Failed(ScrubError),
}

#[derive(Debug, thiserror::Error)]
enum ScrubError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error("the session of the scrubber before this one is not fenced yet")]
    NoSession,
    #[error("a node of the cluster cannot be reached")]
    Incomplete,
    #[error("verbs of the scrubber are under way")]
    Unrested,
    #[error("{entries} entries are in slabs that clients have closed")]
    Closed { entries: u64 },
}

impl<E: Into<ScrubError>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl<C: ClusterAccess> ScrubberThread<C> {
    fn new(node: usize, sessions: Arc<Sessions>, cluster: C, stopping: Arc<AtomicBool>) -> Self {
        Self {
            node,
            session: sessions.open_scrubber(),
            bell: sessions.scrubber_bell(),
            // The scrubber before this one may have taken back the words of sessions that live on.
            have_left: sessions.have_kept(),
            sessions,
            cluster,
            stopping,
            release: false,
            scrub: false,
            pause: SCRUB_INTERVAL,
            next_scrub: Instant::now(),
            worked: Cell::default(),
            walks: None,
            unrested: None,
        }
    }

    fn run(mut self, events: &Receiver<Event>) {
        let (mut due, mut walks_due) = (None, Some(Instant::now() + EXPIRY_PAUSE));
        while let Some(is_told) = self.wait(events, due.into_iter().chain(walks_due).min()) {
            let is_over = |due: &Instant| *due <= Instant::now();
            if is_told || due.as_ref().is_some_and(is_over) {
                due = self.work();
            }
            if walks_due.as_ref().is_some_and(is_over) {
                walks_due = self.walk();
                if self.unrested.is_some() {
                    due = due.or_else(|| Some(Instant::now() + SCRUB_INTERVAL));
                }
            }
        }
        (self.walks, self.unrested) = (None, None);
        if let Some(session) = self.session {
            self.sessions.close_scrubber(session);
        }
    }

    /// Waits for an event, or until work is due. Returns whether there was an event; `None`: the
    /// scrubber is to end.
    fn wait(&mut self, events: &Receiver<Event>, due: Option<Instant>) -> Option<bool> {
        loop {
            // The bell is armed before the look (`Bell`, rule 1).
            self.bell.arm();
            let is_told = self.look(events)?;
            let now = Instant::now();
            let left = due.map_or(SLEEP_MAX, |due| due.saturating_duration_since(now));
            if is_told || left.is_zero() {
                self.bell.disarm();
                return Some(is_told);
            }
            self.bell.sleep(left.min(SLEEP_MAX));
        }
    }

    /// Takes the events that have come. Returns whether there were any; `None`: the scrubber is to
    /// end.
    fn look(&mut self, events: &Receiver<Event>) -> Option<bool> {
        let mut is_told = false;
        loop {
            match events.try_recv() {
                Ok(Event::Ended { died }) => {
                    is_told = true;
                    self.release = true;
                    self.scrub |= died;
                }
                Ok(Event::Stop) | Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => break,
            }
        }
        // Their words stay set until the scrub, so nobody rings meanwhile.
        if !self.scrub && self.sessions.have_left() {
            is_told = true;
            self.scrub = true;
        }
        Some(is_told)
    }

    /// Does the work that can be done now. Returns when to look again, if work is left.
    fn work(&mut self) -> Option<Instant> {
        let early = Some(self.next_scrub).filter(|at| Instant::now() < *at);
        let outcome = self.pass(early.is_none()).map_err(|halt| match halt {
            Halt::Stopped => "the node stops".into(),
            Halt::Failed(failure) => failure.to_string(),
        });
        match outcome {
            Ok(()) if !self.release && !self.scrub => {
                self.pause = SCRUB_INTERVAL;
                None
            }
            Ok(()) if early.is_some() && !self.release => early,
            Ok(()) => self.later("a node of the cluster cannot be reached"),
            Err(why) => self.later(&why),
        }
    }

    fn later(&mut self, why: &str) -> Option<Instant> {
        tracing::debug!(why, again_in = ?self.pause, "scrubbing is put off");
        let due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(SCRUB_RETRY_MAX);
        Some(due)
    }

    fn pass(&mut self, may_scrub: bool) -> Result<(), Halt> {
        self.session = self.session.or_else(|| self.sessions.open_scrubber());
        let session = self.session.ok_or(ScrubError::NoSession)?;
        let memory = self.cluster.memory()?;
        if self.release {
            for (number, (table, map)) in memory.nessie_tables().enumerate() {
                self.stop_walk(number);
                let endpoint = self.cluster.endpoint(&memory, table, session)?;
                for dti in reachable(&memory) {
                    self.release_chunks(&endpoint, map, dti)?;
                }
            }
            self.release = !memory.is_complete();
        }
        self.come_to_rest(&memory, session)?;
        if self.scrub && may_scrub && memory.is_complete() {
            let before = self.worked.get();
            let scrubbed = self.scrub_tables(&memory, session);
            let worked = self.worked.get() - before;
            self.next_scrub = Instant::now() + SCRUB_INTERVAL.max(worked * SCRUB_TIMES);
            scrubbed?;
            (self.scrub, self.have_left) = (false, false);
        }
        Ok(())
    }

    /// Has the client that worked last come to rest (invariant 4).
    fn come_to_rest(&mut self, memory: &ClusterMemory, opened: SessionId) -> Result<(), Halt> {
        let Some((number, last)) = self.unrested.take() else { return Ok(()) };
        if last.base().rest().is_ok() && last.base().is_at_rest() {
            return Ok(());
        }
        let next = match memory.is_complete() {
            true => self.client(memory, number, opened),
            false => Err(ScrubError::Incomplete.into()),
        };
        match next {
            Ok(next) => {
                drop(last);
                // When it has ended its epoch, the session announces nothing.
                drop(next.base().hold()?);
                Ok(())
            }
            Err(halt) => {
                // If its verbs settle before the next look, nobody else would notice.
                last.leave();
                self.unrested = Some((number, last));
                Err(halt)
            }
        }
    }

    /// Ends the use of a client, which has come to rest if its verbs are over.
    fn end(&mut self, number: usize, client: AnyClient<C::Endpoint>) -> Result<(), Halt> {
        if client.base().is_at_rest() {
            return Ok(());
        }
        self.unrested = Some((number, client));
        Err(ScrubError::Unrested.into())
    }

    /// Makes the next piece of the walk that is due. Returns when to go on, if there is a table to
    /// walk. The tables are known once they have been looked at.
    fn walk(&mut self) -> Option<Instant> {
        let mut walks = match self.walks.take() {
            Some(walks) => walks,
            None => match self.cluster.memory() {
                Ok(memory) => walks_of(&memory, self.node),
                Err(_) => return Some(Instant::now() + EXPIRY_PAUSE),
            },
        };
        if let Some(next) = walks.iter_mut().min_by_key(|walk| walk.due())
            && let Err(Halt::Failed(error)) = self.piece_of(next)
        {
            next.failed(&error);
        }
        let due = walks.iter().map(TableWalk::due).min();
        self.walks = Some(walks);
        due
    }

    /// Makes a piece of a table's walk.
    fn piece_of(&mut self, walk: &mut TableWalk<C::Endpoint>) -> Result<(), Halt> {
        if walk.is_asleep() {
            return Ok(());
        }
        if !walk.is_under_way() || self.unrested.is_some() {
            self.session = self.session.or_else(|| self.sessions.open_scrubber());
            let opened = self.session.ok_or(ScrubError::NoSession)?;
            let memory = self.cluster.memory()?;
            if !memory.is_complete() {
                return Err(ScrubError::Incomplete.into());
            }
            self.come_to_rest(&memory, opened)?;
            // A client that is kept was none of a walk that is under way.
            if !walk.is_under_way() {
                walk.begin(self.client(&memory, walk.number(), opened)?);
            }
        }
        let piece = self.drive(walk.piece())?;
        let goes_on = matches!(piece, Ok(false));
        let mut ended = Ok(());
        if let Some(client) = walk.stop() {
            match goes_on && client.base().is_at_rest() {
                true => walk.begin(client),
                false => ended = self.end(walk.number(), client),
            }
        }
        piece?;
        ended
    }

    fn scrub_tables(&mut self, memory: &ClusterMemory, opened: SessionId) -> Result<(), Halt> {
        // Sessions may leave more from now on, and say so again.
        self.have_left |= self.sessions.take_back();
        for number in 0..memory.nessie_tables().count() {
            self.stop_walk(number);
            let client = self.client(memory, number, opened)?;
            let scrubbed = self.scrub_table(memory, &client, number);
            let ended = self.end(number, client);
            scrubbed?;
            ended?;
        }
        Ok(())
    }

    /// Stops a table's walk, whose connections end when another endpoint to the table is let in.
    fn stop_walk(&mut self, number: usize) {
        let walk = self.walks.iter_mut().flatten().find(|walk| walk.number() == number);
        drop(walk.and_then(TableWalk::stop));
    }

    /// Scrubs a whole table, by the rules of its protocol.
    fn scrub_table(
        &self,
        memory: &ClusterMemory,
        client: &AnyClient<C::Endpoint>,
        number: usize,
    ) -> Result<(), Halt> {
        if self.have_left {
            self.drive(client.base().outlast(SCRUB_WAIT_US))??;
        }
        let mut put_off = 0;
        for dti in reachable(memory) {
            let scrubbed = self.drive(client.scrub(dti, SCRUB_WAIT_US))??;
            put_off += scrubbed.put_off;
            report(&table_of(memory, number).0.name, dti, scrubbed);
        }
        if put_off > 0 {
            return Err(ScrubError::Closed { entries: put_off }.into());
        }
        Ok(())
    }

    /// A client of a table, in the scrubber's session. Only one of its clients works at a time.
    fn client(
        &mut self,
        memory: &ClusterMemory,
        number: usize,
        opened: SessionId,
    ) -> Result<AnyClient<C::Endpoint>, Halt> {
        let (table, map) = table_of(memory, number);
        let home = RegionId(self.node as u8);
        let access = Access {
            session: Session::new(home, opened.slot, opened.incarnation),
            node: self.node as u16,
            timing: Timing { timeout_us: SCRUB_WAIT_US, ..Timing::default() },
            cache: CacheLimits { lines: 1, entry_bytes_max: 0 },
            batch: 1,
        };
        let endpoint = self.cluster.endpoint(memory, table, opened)?;
        Ok(AnyClient::new(endpoint, map.clone(), access))
    }

    /// Releases what dead sessions of this node leased in a data table.
    fn release_chunks(
        &mut self,
        endpoint: &C::Endpoint,
        map: &TableMap,
        dti: u8,
    ) -> Result<(), Halt> {
        // Invariant 1: the owners come first.
        let owners = self.drive(owners(endpoint, map, dti))??;
        let live = self.sessions.live();
        let is_dead = |owner: &u32| self.sessions.is_ours(*owner) && !live.contains(owner);
        // Chunks that were being seized wait for a grace period, which is part of a scrub.
        self.scrub |= owners.seizing.iter().any(is_dead);
        for dead in owners.all.into_iter().filter(is_dead) {
            let released = self.drive(release_dead(endpoint, map, dti, dead))??;
            tracing::debug!(
                dti,
                owner = dead,
                slabs = released,
                "released the slabs of a session that has ended"
            );
        }
        Ok(())
    }

    /// Runs a future to its end, or until the node stops.
    fn drive<T>(&self, future: impl Future<Output = T>) -> Result<T, Halt> {
        let (mut future, begun) = (pin!(future), Instant::now());
        let mut cx = Context::from_waker(Waker::noop());
        let outcome = loop {
            if self.stopping.load(Ordering::Acquire) {
                break Err(Halt::Stopped);
            }
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                break Ok(output);
            }
        };
        self.worked.set(self.worked.get() + begun.elapsed());
        outcome
    }
}

/// A table that the scrubber looks after, by its number among them.
fn table_of(memory: &ClusterMemory, number: usize) -> (&TableView, &Arc<TableMap>) {
    memory.nessie_tables().nth(number).expect("the tables of a region stay the same")
}

/// The data tables whose nodes are reachable: table `n` is node `n`'s.
fn reachable(memory: &ClusterMemory) -> Vec<u8> {
    let nodes = memory.nodes.iter().enumerate();
    nodes.filter_map(|(n, node)| node.as_ref().map(|_| n as u8)).collect()
}

/// The sessions that the chunk descriptors of a data table name.
#[derive(Default)]
struct Owners {
    all: BTreeSet<u32>,
    seizing: BTreeSet<u32>,
}

async fn owners<F: Fabric>(endpoint: &F, map: &TableMap, dti: u8) -> Result<Owners, EngineError> {
    let bytes = map.shape.geometry.chunks as usize * 8;
    let buf = Buf::with_capacity(bytes);
    let (words, done) = endpoint.read_whole_words(map.chunk_addr(dti, 0), bytes, buf).await;
    done?;
    let mut owners = Owners::default();
    for word in words.chunks_exact(8) {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        match Chunk::from_word(word) {
            Some(
                Chunk::Leased { owner, .. }
                | Chunk::Forming { owner, .. }
                | Chunk::Closing { owner, .. },
            ) => drop(owners.all.insert(owner)),
            Some(Chunk::Seized { owner, .. }) => drop(owners.seizing.insert(owner)),
            _ => (),
        }
    }
    Ok(owners)
}

fn report(table: &str, dti: u8, scrubbed: Scrubbed) {
    let Scrubbed { entries, freed, freed_bytes, tentative, moves, .. } = scrubbed;
    if freed + tentative + moves > 0 {
        tracing::info!(table, dti, entries, freed, freed_bytes, tentative, moves, "scrubbed");
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::AtomicUsize;

    use loch_engines::operation::PutOptions;
    use loch_engines::region::{SCRUBBER_SLOT, session_addr};
    use loch_fabric::lanes::block_on;
    use loch_fabric::shm::Region;
    use loch_fabric::{FabricError, RemoteAddr};

    use super::*;
    use crate::layout::memory::Member;
    use crate::{ByteSize, Node, NodeConfig};

    /// The memory of a node that has ended, and its scrubber.
    fn scrubber<C: ClusterAccess>(
        access: impl FnOnce(Arc<ClusterMemory>) -> C,
    ) -> (Arc<ClusterMemory>, ScrubberThread<C>) {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("r");
        let config = NodeConfig {
            socket: dir.path().join("s"),
            region: Some(at.clone()),
            memory: ByteSize::new(16 << 20),
            ..NodeConfig::default()
        };
        Node::start(config).unwrap().stop();
        let region = Arc::new(Region::open(&at, true).unwrap());
        let own = Member::read(String::new(), PathBuf::new(), region).unwrap();
        let sessions = Arc::new(Sessions::restore(&own, true).0);
        let memory = Arc::new(ClusterMemory::join(vec![Some(own)], 0).unwrap());
        let cluster = access(memory.clone());
        let mut scrubber = ScrubberThread::new(0, sessions, cluster, Arc::default());
        (scrubber.scrub, scrubber.have_left) = (true, true);
        (memory, scrubber)
    }

    /// A node that takes long to let anyone in.
    struct Slow(Arc<ClusterMemory>);

    impl ClusterAccess for Slow {
        type Endpoint = ShmEndpoint;

        fn memory(&mut self) -> Result<Arc<ClusterMemory>> {
            Ok(self.0.clone())
        }

        fn endpoint(
            &mut self,
            memory: &ClusterMemory,
            _: &TableView,
            _: SessionId,
        ) -> Result<ShmEndpoint> {
            std::thread::sleep(SCRUB_INTERVAL / 2);
            Ok(memory.endpoint(0))
        }
    }

    /// A scrub that had waited for a node that stood still was followed by a pause nine times as
    /// long, and what was left meanwhile stayed.
    #[test]
    fn a_wait_for_a_node_is_followed_by_no_long_pause() {
        let (_, mut scrubber) = scrubber(Slow);
        assert!(scrubber.pass(true).is_ok() && !scrubber.scrub);
        assert!(scrubber.worked.get() > Duration::ZERO);
        assert!(scrubber.next_scrub <= Instant::now() + SCRUB_INTERVAL);
    }

    /// The answers of a network, which may be lost.
    #[derive(Clone)]
    struct Network {
        memory: Arc<ClusterMemory>,
        answers: Arc<AtomicBool>,
        /// How often anyone is let in.
        lets_in: Arc<AtomicUsize>,
        connections: Arc<AtomicUsize>,
        left: Arc<AtomicUsize>,
    }

    /// An endpoint whose verbs settle when they are answered.
    struct Distant {
        shm: ShmEndpoint,
        posted: Cell<u64>,
        answers: Arc<AtomicBool>,
        left: Arc<AtomicUsize>,
    }

    impl Fabric for Distant {
        loch_fabric::pass_on!(
            caps counters read_words read_bucket read chase read_word_and_bytes compare_swap
            fetch_add write is_mapped store store_before store_after announce load reload raw
            now_us wall_ms random pause
            => shm
        );

        fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<(), FabricError> {
            self.posted.set(self.posted.get() + 1);
            self.shm.write_unsignaled(at, bytes)
        }

        fn posted(&self) -> u64 {
            self.posted.get()
        }

        fn is_settled(&self, mark: u64) -> bool {
            mark == 0 || self.answers.load(Ordering::Relaxed)
        }

        fn store_when_settled(&self, _: RemoteAddr, _: u64) {
            self.left.fetch_add(1, Ordering::Relaxed);
        }

        fn take_back(&self) {
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl ClusterAccess for Network {
        type Endpoint = Distant;

        fn memory(&mut self) -> Result<Arc<ClusterMemory>> {
            Ok(self.memory.clone())
        }

        fn endpoint(
            &mut self,
            memory: &ClusterMemory,
            _: &TableView,
            _: SessionId,
        ) -> Result<Distant> {
            let less = |left: usize| left.checked_sub(1);
            if self.lets_in.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
                let (socket, remedy) = (PathBuf::new(), "it is away".into());
                return Err(Error::NodeUnreachable { socket, remedy });
            }
            self.connections.fetch_add(1, Ordering::Relaxed);
            let (shm, answers) = (memory.endpoint(0), self.answers.clone());
            Ok(Distant { shm, posted: Cell::default(), answers, left: self.left.clone() })
        }
    }

    /// Answers were lost, and between its works the scrubber went on announcing: memory of the
    /// whole cluster changed hands no more.
    #[test]
    fn a_client_whose_verbs_are_not_over_is_kept_until_they_are() {
        let answers = Arc::<AtomicBool>::default();
        let [lets_in, connections, left] = [0; 3].map(|none| Arc::new(AtomicUsize::new(none)));
        let (memory, mut scrubber) = scrubber(|memory| Network {
            memory,
            answers: answers.clone(),
            lets_in: lets_in.clone(),
            connections: connections.clone(),
            left: left.clone(),
        });
        let let_in = |times| lets_in.store(times, Ordering::Relaxed);
        let made = || connections.load(Ordering::Relaxed);
        let is_left = || left.load(Ordering::Relaxed) == 1;
        let endpoint = memory.endpoint(0);
        let announces =
            || endpoint.load(session_addr(RegionId(0), SCRUBBER_SLOT).add(8)).unwrap() & 1 == 1;
        let map = table_of(&memory, 0).1;
        let access = Access {
            session: Session::new(RegionId(0), 1, 1),
            node: 0,
            timing: Timing::default(),
            cache: CacheLimits { lines: 1, entry_bytes_max: 0 },
            batch: 1,
        };
        let writer = AnyClient::new(memory.endpoint(0), map.clone(), access);
        let expires = |scrubber: &mut ScrubberThread<Network>| {
            let options = PutOptions { expires_at_ms: Some(1) };
            block_on(writer.put(b"key", b"value", options)).unwrap();
            let_in(1);
            scrubber.walk();
            assert!(scrubber.unrested.is_some() && announces() && is_left());
        };
        expires(&mut scrubber);
        // Chunks of the dead are released meanwhile, and the fabric goes on waiting for the verbs.
        scrubber.release = true;
        let_in(1);
        assert!(scrubber.pass(true).is_err() && !scrubber.release);
        assert!(scrubber.unrested.is_some() && announces() && is_left());
        // Another client of the table is let in, and ends the connections of the one before.
        let_in(1);
        assert!(scrubber.pass(false).is_ok() && scrubber.unrested.is_none() && !announces());
        assert_eq!(made(), 3);
        expires(&mut scrubber);
        answers.store(true, Ordering::Relaxed);
        assert!(scrubber.pass(false).is_ok() && scrubber.unrested.is_none() && !announces());
        assert_eq!(made(), 4, "the verbs are over without that");
    }

    /// Each release ended the connections of walks, whose next pieces failed.
    #[test]
    fn a_release_stops_the_walks_whose_connections_it_ends() {
        let (memory, mut scrubber) = scrubber(Slow);
        scrubber.walk();
        let session = scrubber.session.unwrap();
        let client = scrubber.client(&memory, 0, session).ok().unwrap();
        let walk = &mut scrubber.walks.as_mut().unwrap()[0];
        walk.begin(client);
        (scrubber.release, scrubber.scrub) = (true, false);
        assert!(scrubber.pass(true).is_ok() && !scrubber.release);
        assert!(!scrubber.walks.as_ref().unwrap()[0].is_under_way());
    }
}
