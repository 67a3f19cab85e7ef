//! One run: a cluster, its clients, the faults, and the verdict.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use loch_engines::Kv;
use loch_fabric::RegionId;
use loch_fabric::sim::{Faults, World};
use loch_history::{Answer, History, Operation, Outcome};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Client;
use crate::cluster::{Cluster, Seat};
use crate::report::{Report, SEARCH_BUDGET, judge};
use crate::script::{self, Notes, key_name, tag_of};
use crate::subject::Subject;
use crate::workload::{Kind, Setting};

/// A run that needs more events than this is stuck.
const EVENTS_MAX: u64 = 100_000_000;
/// How long after its death a client is buried at the earliest and at the latest.
const BURIED_AFTER_NS: (u64, u64) = (10_000, 500_000);

/// The parts around the engine that a test of the test leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sabotage {
    /// Dead clients are not cut off before their place is given away.
    pub no_fence: bool,
    /// Atomics on a node's own memory are executed by its processor, though the table's network
    /// card has atomics of its own.
    pub cpu_atomics: bool,
    /// A fence leaves the keys of a client valid that shares its host's connections.
    pub keys_outlive_fences: bool,
}

/// Runs one seed.
///
/// # Errors
/// The violation, in words, with the history that shows it.
pub fn run(subject: Subject, seed: u64, sabotage: Sabotage) -> Result<Report, String> {
    let ran = catch_unwind(AssertUnwindSafe(|| match subject {
        Subject::Nessie(kind) => Run::new(kind, seed, sabotage).run(),
        Subject::Served(engine) => engine.run(seed),
    }));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("it panicked: {}", text.unwrap_or("without a word")))
    })
}

/// Of seven seeds, these have APPENDs. The seeds that `plants` knows are others.
const APPENDING: [u64; 4] = [1, 2, 4, 6];

/// Of this many seeds, all but one have nodes that remove what has expired.
const WALKING: u64 = 4;

struct Run {
    /// The failure that was found while a client was stopped in its turn.
    failure: Option<String>,
    setting: Rc<Setting>,
    cluster: Cluster,
    notes: Rc<Notes>,
    random: ChaCha8Rng,
    sabotage: Sabotage,
    clients: Vec<Slot>,
    /// Dead clients, and when they have to be buried.
    graves: Vec<(u64, Seat)>,
    down: Option<(RegionId, u64)>,
    cut: Option<(RegionId, RegionId, u64)>,
    /// The times of the next kill, cut, crash and misuse of a connection.
    next_ns: [u64; 4],
    report: Report,
}

/// A client, and the work that it has left.
struct Slot {
    number: u32,
    seat: Option<Seat>,
    client: Option<Rc<Client>>,
    /// The number of operations with which the client begins when it starts anew; if sessions are
    /// long and short, the number of operations that are left.
    ops: usize,
    done: bool,
}

impl Run {
    fn new(workload: Kind, seed: u64, sabotage: Sabotage) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let setting = workload.setting(&mut random);
        let appends = APPENDING.contains(&(seed % 7));
        let walks = !seed.is_multiple_of(WALKING);
        let setting = Rc::new(Setting { appends, walks, ..setting });
        let cluster = Cluster::new(random.random(), &setting);
        let Sabotage { cpu_atomics, keys_outlive_fences, .. } = sabotage;
        cluster.world.set_faults(Faults { cpu_atomics, keys_outlive_fences, ..setting.faults });
        let notes = Rc::new(Notes::new(cluster.world.clone()));
        let clients = (0..setting.clients as u32).map(|number| Slot {
            number,
            seat: None,
            client: None,
            ops: setting.ops,
            done: false,
        });
        Self {
            failure: None,
            clients: clients.collect(),
            setting,
            cluster,
            notes,
            random,
            sabotage,
            graves: Vec::new(),
            down: None,
            cut: None,
            next_ns: [0; 4],
            report: Report::default(),
        }
    }

    fn run(self) -> Result<Report, String> {
        let run = Rc::new(RefCell::new(self));
        let world = run.borrow().cluster.world.clone();
        let again = Rc::downgrade(&run);
        world.while_stopped(move || {
            let run = again.upgrade().expect("it waits for the stopped");
            let mut run = run.borrow_mut();
            let went_on = run.look_after().map(|()| run.disturb());
            run.failure = run.failure.take().or(went_on.err());
            run.failure.is_none()
        });
        let result = Self::live(&run, &world).and_then(|()| Self::audit(&run, &world));
        let Ok(run) = Rc::try_unwrap(run) else { unreachable!("nothing is stopped any more") };
        run.into_inner().finish(result)
    }

    fn finish(mut self, result: Result<(), String>) -> Result<Report, String> {
        self.report.events = self.cluster.world.events();
        self.report.virtual_ns = self.cluster.world.now_ns();
        self.report.slabs = self.cluster.watch.slabs();
        self.clients.clear();
        let Run { cluster, notes, mut report, setting, .. } = self;
        let mut operations = notes.operations.take();
        cluster.world.clone().end();
        let told = |failure: String| format!("{failure}\n{}", setting.told());
        result.map_err(told)?;
        report.count(&operations);
        (report.freed, report.expired) = (cluster.freed(), cluster.expired());
        operations.extend(notes.expiries.take());
        let mut history = History::from(operations);
        if setting.table.options.evicts {
            history = history.forgetting();
        }
        judge(&history, SEARCH_BUDGET).map_err(told)?;
        Ok(report)
    }

    fn start(&mut self, index: usize) {
        let node = RegionId((index % self.setting.table.nodes as usize) as u8);
        let (seat, client) =
            self.cluster.attach(node, self.setting.shared_misuse_every_us.is_some());
        let client = Rc::new(client);
        self.cluster.watch.remembers(seat.home, &client);
        self.cluster.world.make_mortal(seat.process);
        let slot = &mut self.clients[index];
        let (ops, left) = match self.setting.lives {
            // A client that dies repeatedly does less each time.
            None => (slot.ops, slot.ops * 2 / 3),
            Some(lives) if index < lives.long => (slot.ops, slot.ops / 2),
            Some(lives) => {
                let ops = self.random.random_range(1..=lives.ops_max.min(slot.ops));
                (ops, slot.ops - ops)
            }
        };
        let seed = self.random.random();
        let program = script::work(
            client.clone(),
            slot.number,
            ops,
            self.setting.clone(),
            self.notes.clone(),
            seed,
        );
        slot.ops = left;
        (slot.seat, slot.client) = (Some(seat), Some(client));
        self.cluster.world.start(seat.process, program);
    }

    /// Lets the clients work, and injects faults, until all clients have ended.
    fn live(run: &RefCell<Self>, world: &World) -> Result<(), String> {
        run.borrow_mut().begin();
        while !run.borrow().clients.iter().all(|slot| slot.done) {
            Self::step(run, world)?;
            run.borrow_mut().disturb();
        }
        // No more faults happen from now on.
        let keys_outlive_fences = run.borrow().sabotage.keys_outlive_fences;
        world.set_faults(Faults { keys_outlive_fences, ..Faults::default() });
        run.borrow_mut().mend(u64::MAX);
        run.borrow_mut().dig(u64::MAX);
        run.borrow().cluster.end_agents();
        while !run.borrow().cluster.agents_ended() {
            Self::step(run, world)?;
        }
        Ok(())
    }

    fn begin(&mut self) {
        for node in 0..self.setting.table.nodes {
            self.cluster.start_agent(RegionId(node as u8));
        }
        for index in 0..self.clients.len() {
            self.start(index);
        }
    }

    /// Lets the next event happen. If that is the turn of a client that is stopped in it, many
    /// other events happen meanwhile: so nothing is borrowed here.
    fn step(run: &RefCell<Self>, world: &World) -> Result<(), String> {
        if !world.step() {
            return Err("nothing happens any more, and not everybody has ended".into());
        }
        let mut run = run.borrow_mut();
        match run.failure.take() {
            Some(failure) => Err(failure),
            None => run.look_after(),
        }
    }

    /// Looks after the clients, and checks that all is well.
    fn look_after(&mut self) -> Result<(), String> {
        if self.cluster.world.events() > EVENTS_MAX {
            let left = self.clients.iter().filter(|slot| !slot.done).count();
            return Err(format!(
                "stuck: {EVENTS_MAX} events, {:.1} virtual ms, {} operations, {left} clients left: \
                 {}",
                self.cluster.world.now_ns() as f64 / 1e6,
                self.notes.operations.borrow().len(),
                self.cluster.sessions_told()
            ));
        }
        if let Some(broken) = self.cluster.watch.broken() {
            return Err(broken);
        }
        if let Some(absurd) = self.notes.absurd.borrow().first() {
            return Err(absurd.clone());
        }
        for index in 0..self.clients.len() {
            let Some(seat) = self.clients[index].seat else { continue };
            if !self.cluster.world.is_alive(seat.process) {
                self.died(index, seat);
            } else if self.cluster.world.has_ended(seat.process) {
                // The client's session ends in order: after the client abandoned its slabs, or
                // tried to.
                self.retire(index, seat);
            }
        }
        Ok(())
    }

    fn count(&mut self, index: usize) {
        if let Some(client) = self.clients[index].client.take() {
            let counts = client.counts();
            self.report.retries += counts.retries.get();
            self.report.moves += counts.moves.get();
            self.report.helped += counts.helped.get();
            self.report.evicted += counts.evicted.get();
        }
    }

    fn retire(&mut self, index: usize, seat: Seat) {
        self.count(index);
        self.clients[index].seat = None;
        self.graves.push((self.cluster.world.now_ns(), seat));
        if self.setting.lives.is_none() {
            self.clients[index].done = true;
        } else {
            self.go_on(index, seat.home);
        }
    }

    fn died(&mut self, index: usize, seat: Seat) {
        self.count(index);
        self.report.deaths += 1;
        let (least, most) = BURIED_AFTER_NS;
        let at = self.cluster.world.now_ns() + self.random.random_range(least..most);
        self.graves.push((at, seat));
        self.clients[index].seat = None;
        self.go_on(index, seat.home);
    }

    /// Lets a client begin another session, if it has work left.
    fn go_on(&mut self, index: usize, home: RegionId) {
        if self.clients[index].ops == 0 {
            self.clients[index].done = true;
        } else if self.down.is_none_or(|(node, _)| node != home) {
            self.start(index);
        }
    }

    /// Buries the clients whose time has come.
    fn dig(&mut self, now: u64) {
        let home_is_up = |seat: &Seat| self.down.is_none_or(|(node, _)| node != seat.home);
        let due: Vec<Seat> = {
            let is_due = |(at, seat): &(u64, Seat)| *at <= now && home_is_up(seat);
            self.graves.iter().filter(|grave| is_due(grave)).map(|(_, seat)| *seat).collect()
        };
        self.graves.retain(|(at, seat)| !(*at <= now && home_is_up(seat)));
        for seat in due {
            self.cluster.bury(seat, !self.sabotage.no_fence);
            self.notes.settled(seat.process);
        }
    }

    /// Whether a recurring event happens now. If so, draws the time of the next one.
    fn strikes(&mut self, which: usize, every_us: u64) -> bool {
        let now = self.cluster.world.now_ns();
        if every_us == 0 || now < self.next_ns[which] {
            return false;
        }
        let is_first = self.next_ns[which] == 0;
        self.next_ns[which] = now + self.random.random_range(1..2_000 * every_us);
        !is_first
    }

    fn disturb(&mut self) {
        let now = self.cluster.world.now_ns();
        self.mend(now);
        self.dig(now);
        let nodes = self.setting.table.nodes;
        if self.strikes(0, self.setting.kill_every_us) {
            let index = self.random.random_range(0..self.clients.len());
            if let Some(seat) = self.clients[index].seat {
                self.cluster.world.kill(seat.process);
            }
        }
        if self.strikes(3, self.setting.shared_misuse_every_us.unwrap_or(0)) {
            let index = self.random.random_range(0..self.clients.len());
            let node = RegionId(self.random.random_range(0..nodes) as u8);
            if let Some(seat) = self.clients[index].seat {
                self.cluster.world.misuse_connection(seat.process, node);
            }
        }
        if nodes > 1 && self.cut.is_none() && self.strikes(1, self.setting.cut_every_us) {
            let (a, b) = (self.random.random_range(0..nodes), self.random.random_range(0..nodes));
            let (a, b) = (RegionId(a as u8), RegionId(b as u8));
            if a != b {
                self.cluster.world.cut(a, b);
                self.report.cuts += 1;
                self.cut = Some((a, b, now + self.random.random_range(100_000..8_000_000)));
            }
        }
        if nodes > 1 && self.down.is_none() && self.strikes(2, self.setting.crash_every_us) {
            let node = RegionId(self.random.random_range(0..nodes) as u8);
            self.cluster.world.crash_node(node, false);
            self.report.crashes += 1;
            self.down = Some((node, now + self.random.random_range(100_000..8_000_000)));
        }
    }

    /// Ends cuts and crashes that have lasted long enough.
    fn mend(&mut self, now: u64) {
        if let Some((a, b, until)) = self.cut
            && until <= now
        {
            self.cluster.world.heal(a, b);
            self.cut = None;
        }
        if let Some((node, until)) = self.down
            && until <= now
        {
            self.cluster.world.revive_node(node);
            self.down = None;
            self.cluster.start_agent(node);
            for index in 0..self.clients.len() {
                if self.clients[index].seat.is_none() && !self.clients[index].done {
                    self.start(index);
                }
            }
        }
    }

    /// Called after all clients have ended: reads every key, and checks all of the memory.
    fn audit(run: &RefCell<Self>, world: &World) -> Result<(), String> {
        let result = Rc::new(RefCell::new(None));
        let seat = {
            let run = run.borrow();
            let (seat, client) = run.cluster.attach(RegionId(0), false);
            let (into, notes, setting) = (result.clone(), run.notes.clone(), run.setting.clone());
            world.start(seat.process, async move {
                let looked = look(&client, &notes, &setting).await;
                *into.borrow_mut() = Some(looked);
            });
            seat
        };
        while !world.has_ended(seat.process) {
            Self::step(run, world)?;
        }
        result.take().expect("it ended")
    }
}

async fn look(client: &Client, notes: &Notes, setting: &Setting) -> Result<(), String> {
    for key in 0..setting.keys {
        let called = notes.world.now_ns();
        let found = client.get(&key_name(key), loch_fabric::Buf::new()).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let report = client.check().await;
                let broken = report.map_or_else(|e| vec![e.to_string()], |report| report.broken);
                return Err(format!("key {key} cannot be read: {error}; {broken:?}"));
            }
        };
        let known = match &found {
            None => None,
            Some(value) => {
                let tag = tag_of(value, setting, key < setting.numbers);
                Some((tag.ok_or("a torn value at rest")?, value.version().as_u64()))
            }
        };
        notes.operations.borrow_mut().push(Operation {
            client: u32::MAX,
            key,
            ask: loch_history::Ask::Get,
            called,
            returned: notes.world.now_ns(),
            outcome: Outcome::Known(Answer::Found(known)),
        });
    }
    let report = client.check().await.map_err(|error| format!("check: {error}"))?;
    if !report.broken.is_empty() {
        return Err(format!("the memory is not in order: {:?}", report.broken));
    }
    if report.unshown + report.tentative + report.moving > 0 {
        return Err(format!("left behind at the end: {report:?}"));
    }
    Ok(())
}
