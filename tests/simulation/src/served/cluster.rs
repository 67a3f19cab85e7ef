//! A simulated cluster whose nodes have workers: clients, faults, crashes, and a verdict.
//!
//! This module serves every engine whose workers take part in operations. An engine implements
//! [`Engine`] (how its table is made, and a worker's program) and [`Program`] (a client's work, for
//! most engines the operations of [`Kv`](loch_engines::Kv)). [`run`] then plays one seed: some
//! clients work on a few keys; workers and clients die and come back; messages are torn, delayed
//! and, where the engine sends datagrams, lost and doubled. The clients' answers are checked to be
//! linearizable.
//!
//! Not every process is honest. In some runs a client names another session than its own in its
//! requests, with the largest possible number. In others a process without a session sends
//! datagrams in the name of a client whose secret it does not know. The client may only harm
//! itself; no request of the process may be executed.
//!
//! A worker dies in two ways: its process is killed ([`Engine::SENDS`] false), or its program is
//! dropped at any point where it waits and started anew in the same process, which the datagrams
//! for the old program still reach. Clients are killed.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use loch_engines::epoch::Session;
use loch_engines::region::session_addr;
use loch_engines::requests::{self, Holder, RequestMap, Secret, Timing, WorkerId};
use loch_fabric::sim::{Faults, ProcessId, SimEndpoint, World};
use loch_fabric::{Fabric, RegionId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::recorder::Recorder;
use super::script::{self, Program};
use super::setting::{SESSIONS, Setting};
use crate::report::Report;
use crate::watch::Watch;

/// Operations that a client requests in the name of another session, or a process in the name of a
/// client.
const LIES: usize = 3;
const FORGERIES: usize = 60;
/// The number of such a client or process, for the reader of a failure.
const LIAR: u32 = 1_000;
/// A run that needs more events than this is stuck.
const EVENTS_MAX: u64 = 20_000_000;

/// A process's identity.
pub struct Seat {
    /// The process's endpoint in the cluster.
    pub endpoint: SimEndpoint,
    /// The process's session at its node.
    pub session: Session,
    world: World,
}

impl Seat {
    /// The knowledge of every node about the sessions.
    pub fn sessions(&self) -> requests::Sessions {
        let world = self.world.clone();
        Box::new(move |node, slot| {
            let incarnation = world.load(session_addr(RegionId(node as u8), slot));
            (incarnation != 0).then(|| Holder::new(incarnation, Some(secret_of(incarnation))))
        })
    }
}

/// The secret of a session, as if its client had drawn it.
fn secret_of(incarnation: u64) -> Secret {
    Secret::new([incarnation, !incarnation])
}

/// An engine under test.
pub trait Engine: Sized + 'static {
    /// The engine's client.
    type Client: Program + 'static;
    /// Whether workers receive datagrams, so that their processes have to stay alive.
    const SENDS: bool;
    /// Whether clients may name a session that they do not have, and processes forge datagrams.
    const DISHONEST: bool = false;

    /// The setting that a seed draws.
    fn draw(random: &mut ChaCha8Rng) -> Setting {
        Setting::draw(random, Self::SENDS)
    }

    /// The engine's table.
    fn new(setting: &Setting) -> Self;

    /// The table's requests.
    fn requests(&self) -> &RequestMap;

    /// Bytes of the table on one node.
    fn bytes(&self) -> u64;

    /// A client. `workers` are the workers' processes, by node and then by worker.
    fn client(&self, seat: Seat, setting: &Setting, workers: &[ProcessId]) -> Self::Client;

    /// A worker's program, which ends when it is dropped. `dead` are the sessions at its node that
    /// ended without cleaning up, for the first worker that asks.
    fn serve(
        self: Rc<Self>,
        seat: Seat,
        id: WorkerId,
        dead: Vec<u64>,
    ) -> impl Future<Output = ()> + 'static;

    /// Takes note that a worker was killed: records the values that are lost with it.
    fn lost(&self, _: WorkerId, _: &Recorder) {}

    /// Checks the memory after all processes have ended. `dead` are, for each node, all sessions
    /// that ended: a worker that was told of some may have died before it cleaned up.
    fn audit(&self, seat: Seat, dead: Vec<Vec<u64>>) -> impl Future<Output = Result<(), String>>;

    /// A client whose requests are all datagrams, if the engine has such clients.
    fn sender(&self, _: Seat, _: &Setting, _: &[ProcessId]) -> Option<Self::Client> {
        None
    }

    /// The watch over every change of the memory, if this engine's memory has such rules.
    fn watch(&self, _: &World) -> Option<Rc<Watch>> {
        None
    }

    /// The number of snapshots that the engine's logs made, if it has logs.
    fn snapshots(&self) -> u64 {
        0
    }

    /// The number of operations that were executed on a value at hand, if the engine does that.
    fn forwarded(&self) -> u64 {
        0
    }

    /// The engine's own drawn options, for the reader of a failure.
    fn told(&self) -> String {
        String::new()
    }
}

/// The sessions of all nodes, as the nodes' own processes hand them out.
struct Sessions {
    world: World,
    next: Cell<u64>,
    /// For each node, the sessions that ended since a worker asked.
    dead: RefCell<Vec<Vec<u64>>>,
    /// For each node, all sessions that ended.
    ended: RefCell<Vec<Vec<u64>>>,
    watch: Option<Rc<Watch>>,
}

impl Sessions {
    fn open(&self, process: ProcessId, node: u16) -> Seat {
        let incarnation = self.next.replace(self.next.get() + 1);
        let home = RegionId(node as u8);
        let is_free = |slot: &u32| self.world.load(session_addr(home, *slot)) == 0;
        let slot = (0..SESSIONS).find(is_free).expect("a node has more slots than processes");
        self.world.store(session_addr(home, slot), incarnation);
        self.world.store(session_addr(home, slot).add(8), 0);
        if let Some(watch) = &self.watch {
            watch.joins(process, incarnation);
        }
        let secret = Some(secret_of(incarnation));
        let session = Session::new(home, slot, incarnation).with_secret(secret);
        Seat { endpoint: self.world.endpoint(process), session, world: self.world.clone() }
    }

    fn close(&self, home: RegionId, slot: u32) {
        let at = session_addr(home, slot);
        let incarnation = self.world.load(at);
        self.dead.borrow_mut()[usize::from(home.0)].push(incarnation);
        self.ended.borrow_mut()[usize::from(home.0)].push(incarnation);
        self.world.store(at, 0);
        self.world.store(at.add(8), 0);
        if let Some(watch) = &self.watch {
            watch.leaves(incarnation, at);
        }
    }
}

/// A worker's place.
struct Desk {
    id: WorkerId,
    process: Cell<ProcessId>,
    /// Goes up when the program in the process has to be dropped.
    crashes: Cell<u32>,
    /// The time until which the program does not run.
    down_until_ns: Cell<u64>,
    slot: Cell<Option<u32>>,
}

/// A client's place.
struct Stool {
    process: ProcessId,
    node: u16,
    slot: u32,
    ops: usize,
    done: bool,
}

struct Run<E: Engine> {
    setting: Rc<Setting>,
    engine: Rc<E>,
    world: World,
    sessions: Rc<Sessions>,
    desks: Vec<Rc<Desk>>,
    stools: Vec<Stool>,
    recorder: Rc<Recorder>,
    random: ChaCha8Rng,
    next_kill_ns: u64,
    next_restart_ns: u64,
    next_cut_ns: u64,
    /// The link that is cut, and the time until which it is cut.
    cut: Option<(RegionId, RegionId, u64)>,
}

/// Plays one seed.
///
/// # Errors
/// The violation, in words, with the history that shows it.
pub fn run<E: Engine>(seed: u64) -> Result<Report, String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let setting = Rc::new(E::draw(&mut random));
    let engine = Rc::new(E::new(&setting));
    let world = World::new(random.random(), setting.profile, Faults::default());
    for _ in 0..setting.nodes {
        world.add_node(setting.offset + engine.bytes());
    }
    world.set_faults(setting.faults);
    let none = || RefCell::new(vec![Vec::new(); usize::from(setting.nodes)]);
    let (dead, ended, watch) = (none(), none(), engine.watch(&world));
    let (next, held) = (Cell::new(1), world.clone());
    let sessions = Rc::new(Sessions { world: held, next, dead, ended, watch });
    let recorder = Rc::new(Recorder::new(world.clone()));
    let run = Run {
        desks: Vec::new(),
        stools: Vec::new(),
        next_kill_ns: 0,
        next_restart_ns: 0,
        next_cut_ns: 0,
        cut: None,
        setting,
        engine,
        world,
        sessions,
        recorder,
        random,
    };
    let (setting, engine) = (run.setting.clone(), run.engine.clone());
    run.play().map_err(|wrong| format!("{wrong}\n{setting:?}\n{}", engine.told()))
}

impl<E: Engine> Run<E> {
    fn play(mut self) -> Result<Report, String> {
        let mut report = Report::default();
        for node in 0..self.setting.nodes {
            for worker in 0..self.setting.service.workers {
                let process = self.world.add_process(RegionId(node as u8));
                let desk = Rc::new(Desk {
                    id: WorkerId { node, worker },
                    process: Cell::new(process),
                    crashes: Cell::new(0),
                    down_until_ns: Cell::new(0),
                    slot: Cell::new(None),
                });
                self.start_worker(&desk);
                self.desks.push(desk);
            }
        }
        let liar = self.start_liar();
        for number in 0..self.setting.clients {
            let stool = self.start_client(number, self.setting.ops);
            self.stools.push(stool);
        }
        let forger = self.start_forger();
        let mut liar = liar.into_iter().collect::<Vec<_>>();
        while !(liar.is_empty() && self.stools.iter().all(|stool| stool.done)) {
            self.step()?;
            self.disturb(&mut report);
            liar.retain(|(process, slot)| {
                let ended = self.world.has_ended(*process);
                if ended {
                    self.sessions.close(RegionId(0), *slot);
                }
                !ended
            });
            for stool in &mut self.stools {
                if !stool.done && self.world.has_ended(stool.process) {
                    stool.done = true;
                    self.sessions.close(RegionId(stool.node as u8), stool.slot);
                }
            }
        }
        self.world.set_faults(Faults::default());
        self.mend(u64::MAX);
        if let Some(forger) = forger {
            self.world.kill(forger);
            self.world.fence(forger);
        }
        self.audit()?;
        (report.events, report.virtual_ns) = (self.world.events(), self.world.now_ns());
        (report.snapshots, report.forwarded) = (self.engine.snapshots(), self.engine.forwarded());
        report.slabs = self.sessions.watch.as_ref().map(|watch| watch.slabs()).unwrap_or_default();
        self.world.clone().end();
        self.recorder.judge(&mut report)?;
        Ok(report)
    }

    fn step(&self) -> Result<(), String> {
        self.recorder.nothing_absurd()?;
        if let Some(broken) = self.sessions.watch.as_ref().and_then(|watch| watch.broken()) {
            return Err(broken);
        }
        if !self.world.step() {
            return Err("nothing happens any more, and not everybody has ended".into());
        }
        if self.world.events() > EVENTS_MAX {
            return Err(format!("stuck after {} virtual us", self.world.now_ns() / 1000));
        }
        Ok(())
    }

    /// Starts the program of a worker's process: the engine's program, again and again.
    fn start_worker(&self, desk: &Rc<Desk>) {
        let (desk, engine) = (desk.clone(), self.engine.clone());
        let (sessions, process) = (self.sessions.clone(), desk.process.get());
        let pauses = self.world.endpoint(process);
        self.world.start(process, async move {
            loop {
                while sessions.world.now_ns() < desk.down_until_ns.get() {
                    pauses.pause(10).await;
                }
                let crash = desk.crashes.get();
                let seat = sessions.open(process, desk.id.node);
                desk.slot.set(Some(seat.session.slot()));
                let home = RegionId(desk.id.node as u8);
                let dead = std::mem::take(&mut sessions.dead.borrow_mut()[usize::from(home.0)]);
                let mut serves = pin!(engine.clone().serve(seat, desk.id, dead));
                std::future::poll_fn(|cx| match desk.crashes.get() == crash {
                    true => serves.as_mut().poll(cx),
                    false => Poll::Ready(()),
                })
                .await;
                let slot = desk.slot.take().expect("it was put there above");
                sessions.close(home, slot);
            }
        });
    }

    fn start_client(&mut self, number: usize, ops: usize) -> Stool {
        let node = (number % usize::from(self.setting.nodes)) as u16;
        let process = self.world.add_process(RegionId(node as u8));
        let seat = self.sessions.open(process, node);
        let slot = seat.session.slot();
        let client = self.engine.client(seat, &self.setting, &self.worker_processes());
        let (load, recorder) = (self.load(self.setting.lanes, ops), self.recorder.clone());
        let program = client.work(number as u32, load, recorder, self.random.random());
        self.world.start(process, program);
        Stool { process, node, slot, ops, done: false }
    }

    fn load(&self, lanes: usize, ops: usize) -> script::Load {
        let Setting { keys, numbers_from, value_bytes, churns, timing, .. } = &*self.setting;
        script::Load {
            lanes,
            ops,
            keys: *keys,
            numbers_from: *numbers_from,
            value_bytes,
            churns: *churns,
            timeout_us: timing.timeout_us,
        }
    }

    fn worker_processes(&self) -> Vec<ProcessId> {
        self.desks.iter().map(|desk| desk.process.get()).collect()
    }

    /// May start a client that has the first slot of node 0, and names another session in its
    /// requests.
    fn start_liar(&mut self) -> Option<(ProcessId, u32)> {
        if !E::DISHONEST || E::SENDS || self.setting.draw >> 30 & 3 != 0 {
            return None;
        }
        let process = self.world.add_process(RegionId(0));
        let mut seat = self.sessions.open(process, 0);
        let slot = seat.session.slot();
        seat.session = Session::new(RegionId(0), slot, u64::MAX);
        // No worker will answer it.
        let timing = Timing { timeout_us: 500, ..self.setting.timing };
        let setting = Setting { timing, ..(*self.setting).clone() };
        let client = self.engine.client(seat, &setting, &self.worker_processes());
        let load = script::Load { timeout_us: timing.timeout_us, ..self.load(1, LIES) };
        let recorder = self.recorder.clone();
        self.world.start(process, client.work(LIAR, load, recorder, self.setting.draw));
        Some((process, slot))
    }

    /// May start a process that sends datagrams in the name of the first client. It knows the
    /// client's number and session, but not its secret.
    fn start_forger(&mut self) -> Option<ProcessId> {
        if !E::DISHONEST || !E::SENDS || self.setting.draw >> 30 & 3 != 0 {
            return None;
        }
        let victim = self.stools.first()?;
        let (home, slot) = (RegionId(victim.node as u8), victim.slot);
        let incarnation = self.world.load(session_addr(home, slot));
        let process = self.world.add_process(home);
        let secret = Some(secret_of(!incarnation));
        let seat = Seat {
            endpoint: self.world.endpoint(process),
            session: Session::new(home, slot, incarnation).with_secret(secret),
            world: self.world.clone(),
        };
        // The process gives up soon, and goes on with the next request.
        let timing = Timing { resend_us: 50, timeout_us: 200 };
        let setting = Setting { timing, ..(*self.setting).clone() };
        let client = self.engine.sender(seat, &setting, &self.worker_processes())?;
        let recorder = Rc::new(Recorder::of_a_forger(self.world.clone()));
        let load = self.load(1, FORGERIES);
        self.world.start(process, client.work(LIAR, load, recorder, self.setting.draw));
        Some(process)
    }

    fn strikes(random: &mut ChaCha8Rng, now: u64, next: &mut u64, every_us: u64) -> bool {
        if every_us == 0 || now < *next {
            return false;
        }
        let is_first = *next == 0;
        *next = now + random.random_range(1..2_000 * every_us);
        !is_first
    }

    fn disturb(&mut self, report: &mut Report) {
        let now = self.world.now_ns();
        for desk in &self.desks {
            self.recorder.look_at(self.engine.requests().incarnation_addr(desk.id));
        }
        let every = self.setting.kill_every_us;
        if Self::strikes(&mut self.random, now, &mut self.next_kill_ns, every) {
            let number = self.random.random_range(0..self.stools.len());
            if !self.stools[number].done {
                report.deaths += 1;
                self.kill_client(number);
            }
        }
        self.cut_a_link(now, report);
        let every = self.setting.restart_every_us;
        if Self::strikes(&mut self.random, now, &mut self.next_restart_ns, every) {
            let desk = self.desks[self.random.random_range(0..self.desks.len())].clone();
            report.restarts += 1;
            desk.down_until_ns.set(now + self.random.random_range(1_000..1_500_000));
            // A node that starts anew forgets the incarnations of its workers first.
            self.world.store(self.engine.requests().incarnation_addr(desk.id), 0);
            if E::SENDS {
                desk.crashes.set(desk.crashes.get() + 1);
            } else {
                self.kill_worker(&desk);
            }
        }
    }

    /// Cuts a link for a time after which its verbs have not been given up.
    fn cut_a_link(&mut self, now: u64, report: &mut Report) {
        self.mend(now);
        let (nodes, every) = (self.setting.nodes, self.setting.cut_every_us);
        let has_link = nodes > 1 && self.cut.is_none();
        if !has_link || !Self::strikes(&mut self.random, now, &mut self.next_cut_ns, every) {
            return;
        }
        let a = self.random.random_range(0..nodes);
        let b = (a + self.random.random_range(1..nodes)) % nodes;
        let (a, b) = (RegionId(a as u8), RegionId(b as u8));
        self.world.cut(a, b);
        report.cuts += 1;
        let longest = self.setting.profile.retry_ns * 3 / 4;
        self.cut = Some((a, b, now + self.random.random_range(longest / 50..longest)));
    }

    fn mend(&mut self, now: u64) {
        if let Some((a, b, _)) = self.cut.take_if(|(.., until)| *until <= now) {
            self.world.heal(a, b);
            // A verb that this cut held up must not be held up by the next one as well.
            let later = now.saturating_add(self.setting.profile.retry_ns);
            self.next_cut_ns = self.next_cut_ns.max(later);
        }
    }

    fn kill_worker(&self, desk: &Rc<Desk>) {
        let home = RegionId(desk.id.node as u8);
        self.world.kill(desk.process.get());
        self.engine.lost(desk.id, &self.recorder);
        self.world.fence(desk.process.get());
        if let Some(slot) = desk.slot.take() {
            self.sessions.close(home, slot);
        }
        desk.process.set(self.world.add_process(home));
        self.start_worker(desk);
    }

    fn kill_client(&mut self, number: usize) {
        let Stool { process, node, slot, ops, .. } = self.stools[number];
        self.world.kill(process);
        self.world.fence(process);
        self.sessions.close(RegionId(node as u8), slot);
        // A client that dies repeatedly does less each time.
        self.stools[number] = self.start_client(number, ops * 2 / 3);
    }

    /// Called after all processes have ended: reads every key, and checks the memory.
    fn audit(&mut self) -> Result<(), String> {
        let process = self.world.add_process(RegionId(0));
        let workers = self.worker_processes();
        let calm = Setting {
            timing: Timing { timeout_us: 1_000_000, ..self.setting.timing },
            ..(*self.setting).clone()
        };
        let seat = self.sessions.open(process, 0);
        let slot = seat.session.slot();
        let client = self.engine.client(seat, &calm, &workers);
        let (engine, sessions) = (self.engine.clone(), self.sessions.clone());
        let (recorder, keys) = (self.recorder.clone(), self.setting.keys);
        let result = Rc::new(RefCell::new(None));
        let into = result.clone();
        self.world.start(process, async move {
            let read = client.read_all(keys, &recorder).await;
            drop(client);
            sessions.close(RegionId(0), slot);
            let seat = sessions.open(process, 0);
            let dead = sessions.ended.take();
            let looked = engine.audit(seat, dead).await;
            *into.borrow_mut() = Some(read.and(looked));
        });
        while !self.world.has_ended(process) {
            self.step()?;
        }
        result.take().expect("it ended")
    }
}
