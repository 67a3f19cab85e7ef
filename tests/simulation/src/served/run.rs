//! A run: clients, faults, crashes, and a verdict.
//!
//! [`run`] plays one seed of a [`Design`]. Some clients work on a few keys; workers and clients die
//! and come back; messages are torn, delayed and, where workers SEND their replies, lost and
//! doubled. The clients' answers are checked to be linearizable, every worker's memory is checked
//! now and then, and at the end all memory is.
//!
//! Not every process is honest: see [`Hostile`]. A liar may only harm itself; no request of a
//! forger may be executed.
//!
//! The workers of a node end in order, or die together, or one of them fails and the others end in
//! order ([`node`](super::node)). A worker dies in one of two ways: its process is killed, or, if
//! it receives datagrams, its program is dropped at any point where it waits. A program that ended
//! or was dropped starts anew in the same process, which the datagrams for the old program still
//! reach. Now and then all workers learn that nodes have come back with other memory.
//! The values in the worker's own memory are lost: each of its keys gets a DELETE that no client
//! called, at that very moment, which may have taken effect or not ([`Recorder::lost`]). Clients
//! are killed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loch_engines::epoch::Session;
use loch_engines::requests::{Timing, WorkerId};
use loch_fabric::sim::{Faults, ProcessId};
use loch_fabric::{Fabric, RegionId};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::cluster::Cluster;
use super::design::{Design, Hostile};
use super::node::{SimNode, SimWorker};
use super::recorder::Recorder;
use super::sessions::{SessionEnd, secret_of};
use super::worker;
use crate::report::Report;

/// Operations that a client requests in the name of another session, or a process in the name of a
/// client.
const LIES: usize = 3;
const FORGERIES: usize = 60;
/// The number of such a client or process, for the reader of a failure.
const LIAR: u32 = 1_000;
/// A run that needs more events than this is stuck.
const EVENTS_MAX: u64 = 20_000_000;
/// The share of nodes that end in order, of those that end.
const IN_ORDER: f64 = 0.2;
/// The share of nodes of which only one worker dies, of those that do not end in order.
const ONE_FAILS: f64 = 0.5;
/// The number of looks whether all workers have reported.
const LOOKS_MAX: u32 = 2_000;

/// A client's place.
struct Stool {
    process: ProcessId,
    node: u16,
    slot: u32,
    ops: usize,
    done: bool,
    /// Whether the client has left in order.
    left: Rc<Cell<bool>>,
}

struct Run {
    cluster: Rc<Cluster>,
    nodes: Vec<Rc<SimNode>>,
    stools: Vec<Stool>,
    random: ChaCha8Rng,
    next_kill_ns: u64,
    next_restart_ns: u64,
    next_attach_ns: u64,
    next_cut_ns: u64,
    /// The link that is cut, and the time until which it is cut.
    cut: Option<(RegionId, RegionId, u64)>,
}

/// Plays one seed, from which the design was drawn.
///
/// # Errors
/// The violation, in words, with the history that shows it.
pub fn run(design: Rc<dyn Design>, mut random: ChaCha8Rng) -> Result<Report, String> {
    let cluster = Rc::new(Cluster::new(design.clone(), random.random())?);
    let run = Run {
        cluster,
        nodes: Vec::new(),
        stools: Vec::new(),
        random,
        next_kill_ns: 0,
        next_restart_ns: 0,
        next_attach_ns: 0,
        next_cut_ns: 0,
        cut: None,
    };
    run.play().map_err(|wrong| format!("{wrong}\n{:?}\n{}", design.setting(), design.told()))
}

impl Run {
    fn play(mut self) -> Result<Report, String> {
        let (cluster, mut report) = (self.cluster.clone(), Report::default());
        let setting = cluster.setting();
        for node in 0..setting.nodes {
            let workers = (0..setting.workers()).map(|worker| {
                let process = cluster.world.add_process(RegionId(node as u8));
                Rc::new(SimWorker::new(WorkerId { node, worker }, process))
            });
            let node = Rc::new(SimNode::new(&cluster.table.map, workers.collect()));
            node.workers.iter().for_each(|worker| self.start_worker(&node, worker));
            self.nodes.push(node);
        }
        let hostile = cluster.design.hostile().filter(|_| setting.is_hostile);
        let mut liar = (hostile == Some(Hostile::Liar)).then(|| self.start_liar());
        for number in 0..setting.clients {
            let stool = self.start_client(number, setting.ops);
            self.stools.push(stool);
        }
        let forger = (hostile == Some(Hostile::Forger)).then(|| self.start_forger());
        while !(liar.is_none() && self.stools.iter().all(|stool| stool.done)) {
            self.step()?;
            self.disturb(&mut report);
            if let Some((_, slot)) = liar.take_if(|(process, _)| cluster.world.has_ended(*process))
            {
                cluster.sessions.close(0, slot, SessionEnd::Died);
            }
            self.look_after(&mut report);
        }
        cluster.world.set_faults(Faults::default());
        self.mend(u64::MAX);
        if let Some(forger) = forger {
            cluster.world.kill(forger);
            cluster.world.fence(forger);
        }
        self.audit()?;
        (report.events, report.virtual_ns) = (cluster.world.events(), cluster.world.now_ns());
        report.snapshots = cluster.counted("snapshots");
        report.attached = cluster.counted("attached");
        report.forwarded = cluster.counted("forwarded");
        report.slabs = cluster.watch.as_ref().map(|watch| watch.slabs()).unwrap_or_default();
        cluster.world.clone().end();
        cluster.recorder.judge(&mut report, setting.evicts)?;
        Ok(report)
    }

    fn step(&self) -> Result<(), String> {
        let Cluster { recorder, watch, world, .. } = &*self.cluster;
        recorder.nothing_absurd()?;
        if let Some(broken) = watch.as_ref().and_then(|watch| watch.broken()) {
            return Err(broken);
        }
        if !world.step() {
            return Err("nothing happens any more, and not everybody has ended".into());
        }
        if world.events() > EVENTS_MAX {
            return Err(format!("stuck after {} virtual us", world.now_ns() / 1000));
        }
        Ok(())
    }

    fn start_client(&mut self, number: usize, ops: usize) -> Stool {
        let Cluster { world, sessions, recorder, .. } = &*self.cluster;
        let setting = self.cluster.setting();
        let node = (number % usize::from(setting.nodes)) as u16;
        let process = world.add_process(RegionId(node as u8));
        let session = sessions.admit(process, node);
        let slot = session.slot();
        let endpoint = world.endpoint(process).with_message_bytes_max(setting.message_bytes_max);
        let map = &self.cluster.table.map;
        let client = self.cluster.client(endpoint, map, session, setting.timing);
        let load = self.cluster.load(setting.lanes, ops, setting.timing);
        let (program, seed) = (self.cluster.design.program(client), self.random.random());
        let work = program.work(number as u32, load, recorder.clone(), seed);
        let left = Rc::new(Cell::new(false));
        let told = left.clone();
        world.start(process, async move { told.set(work.await) });
        if setting.faults.deaths > 0.0 {
            world.make_mortal(process);
        } else if setting.faults.pauses > 0.0 {
            world.make_restless(process);
        }
        Stool { process, node, slot, ops, done: false, left }
    }

    /// Starts a client that has the first slot of node 0, and names another session in its
    /// requests. No worker will answer it.
    fn start_liar(&mut self) -> (ProcessId, u32) {
        let cluster = self.cluster.clone();
        let process = cluster.world.add_process(RegionId(0));
        let slot = cluster.sessions.admit(process, 0).slot();
        let session = Session::new(RegionId(0), slot, u64::MAX);
        let timing = Timing { timeout_us: 500, ..cluster.setting().timing };
        self.start_hostile(process, session, timing, LIES, cluster.recorder.clone());
        (process, slot)
    }

    /// Starts a process that sends datagrams in the name of the first client. It knows the client's
    /// number and session, but not its secret. It gives up soon, and goes on with the next request.
    fn start_forger(&mut self) -> ProcessId {
        let Cluster { world, sessions, .. } = &*self.cluster;
        let Stool { node, slot, .. } = self.stools[0];
        let (home, incarnation) = (RegionId(node as u8), sessions.incarnation(node, slot));
        let process = world.add_process(home);
        let secret = Some(secret_of(!incarnation));
        let session = Session::new(home, slot, incarnation).with_secret(secret);
        let timing = Timing { resend_us: 50, timeout_us: 200 };
        let recorder = Rc::new(Recorder::of_a_forger(world.clone()));
        self.start_hostile(process, session, timing, FORGERIES, recorder);
        process
    }

    fn start_hostile(
        &mut self,
        process: ProcessId,
        session: Session,
        timing: Timing,
        ops: usize,
        recorder: Rc<Recorder>,
    ) {
        let Cluster { design, table, world, .. } = &*self.cluster;
        let endpoint = world.endpoint(process);
        let program = design.program(self.cluster.client(endpoint, &table.map, session, timing));
        let load = self.cluster.load(1, ops, timing);
        let work = program.work(LIAR, load, recorder, self.random.random());
        world.start(process, async move {
            work.await;
        });
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
        let cluster = self.cluster.clone();
        let (now, setting) = (cluster.world.now_ns(), cluster.setting());
        let workers = self.nodes.iter().flat_map(|node| &node.workers);
        workers.for_each(|worker| cluster.look_at(worker.id));
        let every = setting.kill_every_us;
        if Self::strikes(&mut self.random, now, &mut self.next_kill_ns, every) {
            let stool = &self.stools[self.random.random_range(0..self.stools.len())];
            if !stool.done {
                cluster.world.kill(stool.process);
            }
        }
        self.cut_a_link(now, report);
        let every = setting.attach_every_us;
        if Self::strikes(&mut self.random, now, &mut self.next_attach_ns, every) {
            cluster.generation.set(cluster.generation.get() + 1);
        }
        // All workers of a node end together, and live as long on average as if each ended alone.
        let every = setting.restart_every_us * u64::from(setting.workers());
        if Self::strikes(&mut self.random, now, &mut self.next_restart_ns, every) {
            report.restarts += 1;
            self.end_a_node(now);
        }
    }

    /// Lets the workers of a node end, or die.
    fn end_a_node(&mut self, now: u64) {
        let node = self.nodes[self.random.random_range(0..self.nodes.len())].clone();
        let down_us_max = self.cluster.setting().down_us_max;
        node.down_until_ns.set(now + self.random.random_range(1_000..down_us_max * 1_000));
        let mut dying = node.running();
        if self.random.random_bool(IN_ORDER) {
            node.stops.set(true);
            return;
        }
        if self.random.random_bool(ONE_FAILS) {
            node.stops.set(true);
            let failed = self.random.random_range(0..dying.len());
            dying = vec![dying.swap_remove(failed)];
        }
        for worker in &dying {
            if self.cluster.sends() {
                worker.crashes.set(worker.crashes.get() + 1);
                self.cluster.dies(worker.id);
            } else {
                self.kill_worker(&node, worker);
            }
        }
        if !self.cluster.sends() {
            dying.iter().for_each(|worker| node.ended(worker));
        }
    }

    /// Cuts a link for a time after which its verbs have not been given up.
    fn cut_a_link(&mut self, now: u64, report: &mut Report) {
        self.mend(now);
        let (nodes, every) = (self.cluster.setting().nodes, self.cluster.setting().cut_every_us);
        let has_link = nodes > 1 && self.cut.is_none();
        if !has_link || !Self::strikes(&mut self.random, now, &mut self.next_cut_ns, every) {
            return;
        }
        let a = self.random.random_range(0..nodes);
        let b = (a + self.random.random_range(1..nodes)) % nodes;
        let (a, b) = (RegionId(a as u8), RegionId(b as u8));
        self.cluster.world.cut(a, b);
        report.cuts += 1;
        let longest = self.cluster.setting().profile.retry_ns * 3 / 4;
        self.cut = Some((a, b, now + self.random.random_range(longest / 50..longest)));
    }

    fn mend(&mut self, now: u64) {
        if let Some((a, b, _)) = self.cut.take_if(|(.., until)| *until <= now) {
            self.cluster.world.heal(a, b);
            // A verb that this cut held up must not be held up by the next one as well.
            let later = now.saturating_add(self.cluster.setting().profile.retry_ns);
            self.next_cut_ns = self.next_cut_ns.max(later);
        }
    }

    fn start_worker(&self, node: &Rc<SimNode>, worker: &Rc<SimWorker>) {
        let work = worker::work(self.cluster.clone(), node.clone(), worker.clone());
        self.cluster.world.start(worker.process.get(), work);
    }

    fn kill_worker(&self, node: &Rc<SimNode>, worker: &Rc<SimWorker>) {
        let Cluster { world, sessions, .. } = &*self.cluster;
        world.kill(worker.process.get());
        self.cluster.dies(worker.id);
        world.fence(worker.process.get());
        let living = worker.slot.take().map(|slot| (slot, SessionEnd::Died));
        if let Some((slot, how)) = living.or(worker.dying.take()) {
            sessions.close(worker.id.node, slot, how);
        }
        worker.process.set(world.add_process(RegionId(worker.id.node as u8)));
        self.start_worker(node, worker);
    }

    /// Ends the sessions of clients that have ended, and replaces clients that have died.
    fn look_after(&mut self, report: &mut Report) {
        let cluster = self.cluster.clone();
        for number in 0..self.stools.len() {
            let Stool { process, node, slot, ops, done, ref left } = self.stools[number];
            if done {
                continue;
            }
            if !cluster.world.is_alive(process) {
                report.deaths += 1;
                cluster.world.fence(process);
                cluster.sessions.close(node, slot, SessionEnd::Died);
                // A client that dies repeatedly does less each time.
                self.stools[number] = self.start_client(number, ops * 2 / 3);
            } else if cluster.world.has_ended(process) {
                let how = if left.get() { SessionEnd::Left } else { SessionEnd::Died };
                cluster.sessions.close(node, slot, how);
                self.stools[number].done = true;
            }
        }
    }

    /// Called after all clients have ended: reads every key, lets all workers report, and checks
    /// the memory.
    fn audit(&mut self) -> Result<(), String> {
        let workers: Vec<_> = self.nodes.iter().flat_map(|node| node.workers.clone()).collect();
        let cluster = self.cluster.clone();
        let process = cluster.world.add_process(RegionId(0));
        let result = Rc::new(RefCell::new(None));
        let into = result.clone();
        self.cluster.world.start(process, async move {
            let session = cluster.sessions.admit(process, 0);
            let slot = session.slot();
            let timing = Timing { timeout_us: 1_000_000, ..cluster.setting().timing };
            let endpoint = cluster.world.endpoint(process);
            let client = cluster.client(endpoint, &cluster.table.map, session, timing);
            let program = cluster.design.program(client);
            let mut looked = program.read_all(&cluster.names, &cluster.recorder).await;
            drop(program);
            // It has only read.
            cluster.sessions.close(0, slot, SessionEnd::Left);
            let reported = all_report(&cluster, process, &workers).await;
            looked = looked.and(reported);
            if let Some(map) = cluster.table.map.nessie() {
                looked = looked.and(cluster.audit(process, map).await);
            }
            *into.borrow_mut() = Some(looked);
        });
        while !self.cluster.world.has_ended(process) {
            self.step()?;
        }
        self.cluster.recorder.nothing_absurd()?;
        result.take().expect("it ended")
    }
}

/// Lets every worker report. Workers may still be executing requests that no client waits for any
/// more.
async fn all_report(
    cluster: &Cluster,
    process: ProcessId,
    workers: &[Rc<SimWorker>],
) -> Result<(), String> {
    let pauses = cluster.world.endpoint(process);
    workers.iter().for_each(|worker| worker.reports.set(true));
    for _ in 0..LOOKS_MAX {
        if workers.iter().all(|worker| !worker.reports.get()) {
            return Ok(());
        }
        pauses.pause(10).await;
    }
    Err("a worker is still at work, and nobody has asked for anything".into())
}
