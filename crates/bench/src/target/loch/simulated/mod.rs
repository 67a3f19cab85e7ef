//! A whole cluster with its clients in virtual time, in this process and thread.
//!
//! The engine, the lanes, the traces and the counts are those of a real run; the fabric, and with
//! it time, is simulated. These are the differences:
//!
//! * Every operation is timed, and traffic is counted in the measured phase
//!   itself: neither takes virtual time.
//! * A client writes only to the memory of its own node, as over a network. If there are fewer
//!   clients than nodes, a client that leaves before the measurement stores the records of the
//!   other nodes there.
//! * Clients never sleep, but only their work takes processor time: a client that waits for verbs
//!   takes none, and a client that polls memory does.
//! * Workers are processes on their node's host, each with a core of its own unless there are hogs;
//!   the time of their work is a model ([`costs`]). The servers' processor time is all time that
//!   workers spent on requests, without the polls in vain in between.
//!
//! Everything follows from the options: same options, same result.
//!
//! | file | content |
//! | --- | --- |
//! | [`design`] | the interface of a system in the simulator |
//! | `table.rs` | a table of any engine, put together as in a real cluster |
//! | [`host`], [`costs`] | the work of the workers' processors, and its costs |

pub mod costs;
pub mod design;
pub mod host;
mod table;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use loch_engines::region::session_addr;
use loch_engines::requests::WorkerId;
use loch_engines::{EngineError, Kv};
use loch_fabric::RegionId;
use loch_fabric::sim::{Faults, ProcessId, World};

use self::design::{Design, Meter, Seat, Slots};
use self::host::Card;
use self::table::Table;
use super::lane::{load_batch, operate};
use crate::error::TargetError;
use crate::measure::{Budget, Run, Ticks};
use crate::measured::{ClientReport, Measured};
use crate::memory::check_nodes;
use crate::mix::mix;
use crate::options::Connections;
use crate::progress::Progress;
use crate::spec::{Spec, Stop};
use crate::system::Engine;
use crate::tally::{Traffic, pack};
use crate::target::Result;
use crate::trace::Trace;
use crate::workload::{Workload, part};

/// Cores of a simulated host that its processes share with background hogs: as many as the nodes of
/// the Nessie paper have (nessie §6).
const CORES_A_NODE: u32 = 12;
/// Operations of a trace: a simulated run is short.
const TRACE_OPS_MAX: u64 = 1 << 16;
/// No operation takes less time than this, which bounds the length of a trace.
const OPERATION_NS_MIN: f64 = 500.0;
/// Events between two checks for an interruption.
const EVENTS_A_LOOK: u32 = 100_000;

/// Simulates a run of an engine.
pub fn measure(
    engine: Engine,
    spec: &Spec,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> Result<Measured> {
    let setting = Setting { name: engine.name(), spec, progress, interrupted };
    measure_design(setting, Table::new(engine, spec)?)
}

/// The measured system, and its observers.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Its name in errors.
    pub name: &'static str,
    /// The workload.
    pub spec: &'a Spec,
    /// Told how far it is.
    pub progress: &'a Progress,
    /// Ends it early.
    pub interrupted: &'a AtomicBool,
}

/// Simulates a run of a design.
///
/// # Errors
/// Why it cannot be measured.
pub fn measure_design<D: Design>(setting: Setting<'_>, design: D) -> Result<Measured> {
    setting.progress.phase("laying out", None);
    let mut cluster = Cluster::new(setting, design)?;
    cluster.load()?;
    cluster.share_cores();
    let clients = cluster.prepare();
    cluster.run("warming up", &clients, |client| &client.warm_up, Budget::warm_up)?;
    let (busy_ns, answered) = (cluster.busy_ns(), cluster.answered());
    let (reports, sum) =
        cluster.run("measuring", &clients, |client| &client.trace, |budget| budget)?;
    let mut measured = Measured {
        traffic: Some(sum),
        server_cpu_s: Some((cluster.busy_ns() - busy_ns) as f64 / 1e9),
        ..Measured::default()
    };
    measured.add_turn(&reports, None);
    let of_each = cluster.answered().into_iter().zip(answered);
    measured.ops_of_workers =
        cluster.design.serves().then(|| of_each.map(|(end, begin)| end - begin).collect());
    Ok(measured)
}

/// The clock of a simulation: nanoseconds.
#[derive(Clone)]
struct VirtualClock(World);

impl Ticks for VirtualClock {
    const CHECK_EVERY_NS: u64 = 0;

    fn raw(&self) -> u64 {
        self.0.now_ns() + 1
    }

    fn delta_as_nanos(&self, from: u64, to: u64) -> u64 {
        to - from
    }
}

/// A client: its process on a host, and its engine.
struct Client<S> {
    process: ProcessId,
    store: Rc<S>,
}

impl<S> Clone for Client<S> {
    fn clone(&self) -> Self {
        Self { process: self.process, store: self.store.clone() }
    }
}

/// A client with all that it needs for a run.
struct Runner<S> {
    client: Client<S>,
    number: u32,
    /// The trace of the warm-up: another one, because the beginning of the measured trace would
    /// then be in the cache.
    warm_up: Rc<Trace>,
    trace: Rc<Trace>,
}

/// The result of a client's program.
type Ended = Result<(u32, ClientReport, Traffic), EngineError>;

/// The simulated cluster. Dropping it ends every program.
struct Cluster<'a, D: Design> {
    setting: Setting<'a>,
    spec: &'a Spec,
    world: World,
    design: D,
    workload: Rc<Workload>,
    clients: Vec<Client<D::Client>>,
    workers: Vec<ProcessId>,
    /// The work of each worker.
    meters: Vec<Meter>,
    /// Each host's.
    cards: Vec<Card>,
    /// Clients that each node has had.
    attached: Vec<u32>,
    incarnation: u64,
    slots: Slots,
}

impl<D: Design> Drop for Cluster<'_, D> {
    fn drop(&mut self) {
        // Programs that still run hold the world.
        self.world.clone().end();
    }
}

impl<'a, D: Design> Cluster<'a, D> {
    fn new(setting: Setting<'a>, design: D) -> Result<Self> {
        let spec = setting.spec;
        let workers = if design.serves() { spec.servers.workers } else { 0 };
        let region_bytes = design.region_bytes();
        check_nodes(spec, region_bytes * u64::from(spec.nodes))?;
        let world = World::new(mix(spec.seed), spec.hardware.profile(), Faults::default());
        (0..spec.nodes).for_each(|_| _ = world.add_node(region_bytes));
        let client_host_bytes = design.client_host_bytes();
        (0..spec.servers.client_hosts).for_each(|_| _ = world.add_node(client_host_bytes));
        let hosts = spec.nodes + spec.servers.client_hosts;
        let mut cluster = Cluster {
            setting,
            spec,
            world,
            design,
            workload: Rc::new(Workload::new(spec)),
            clients: Vec::new(),
            workers: Vec::new(),
            meters: Vec::new(),
            cards: (0..hosts).map(|_| Card::default()).collect(),
            attached: vec![0; spec.nodes as usize],
            incarnation: 0,
            slots: Slots::default(),
        };
        for node in 0..spec.nodes {
            (0..workers).for_each(|worker| cluster.start_worker(node, worker));
        }
        cluster.clients = (0..spec.clients).map(|client| cluster.attach(client)).collect();
        Ok(cluster)
    }

    fn start_worker(&mut self, node: u32, worker: u16) {
        let seat = self.sit(node, node, self.design.worker_slot(worker));
        let (process, meter) = (seat.process, Meter::default());
        let id = WorkerId { node: node as u16, worker };
        let serves = self.design.serve(seat, id, meter.clone());
        self.world.start(process, serves);
        self.workers.push(process);
        self.meters.push(meter);
    }

    /// A new client, with a session: on the host of the node whose turn it is, or on one of the
    /// hosts for clients alone.
    fn attach(&mut self, client: u32) -> Client<D::Client> {
        let (nodes, own) = (self.spec.nodes, self.spec.servers.client_hosts);
        let node = client % nodes;
        let host = if own > 0 { nodes + client % own } else { node };
        let slot = self.design.client_slot(self.attached[node as usize]);
        self.attached[node as usize] += 1;
        let seat = self.sit(node, host, Some(slot));
        let process = seat.process;
        if self.spec.connections == Connections::Host {
            self.world.share_connections(process);
        }
        Client { process, store: Rc::new(self.design.client(seat, &self.workers)) }
    }

    /// A new process on a host, perhaps with a session slot of a node.
    fn sit(&mut self, node: u32, host: u32, slot: Option<u32>) -> Seat {
        let home = RegionId(host as u8);
        self.incarnation += 1;
        if let Some(slot) = slot {
            let at = session_addr(home, slot);
            self.world.store(at, self.incarnation);
            self.world.store(at.add(8), 0);
            for place in [node, host] {
                self.slots.borrow_mut().insert((place as u16, slot), self.incarnation);
            }
        }
        Seat {
            world: self.world.clone(),
            process: self.world.add_process(home),
            home,
            session: slot.map(|slot| (slot, self.incarnation)),
            node: node as u16,
            card: self.cards[host as usize].clone(),
            slots: self.slots.clone(),
        }
    }

    /// The time that all workers spent on requests so far.
    fn busy_ns(&self) -> u64 {
        self.meters.iter().map(|meter| meter.busy_ns.get()).sum()
    }

    /// Requests that each worker answered so far.
    fn answered(&self) -> Vec<u64> {
        self.meters.iter().map(|meter| meter.answered.get()).collect()
    }

    /// Stores all records: equal parts at all nodes, by all clients of each.
    fn load(&mut self) -> Result<()> {
        self.setting.progress.phase("loading", None);
        let (records, nodes, clients) = (self.spec.records, self.spec.nodes, self.spec.clients);
        let mut loading = Vec::new();
        for node in 0..nodes {
            let (begin, end) = (part(records, node, nodes), part(records, node + 1, nodes));
            let of_node: Vec<u32> = (node..clients).step_by(nodes as usize).collect();
            if of_node.is_empty() {
                let client = self.attach(node);
                loading.push(self.start_loading(client, begin..end, true));
            }
            let count = of_node.len() as u32;
            for (at, client) in (0..).zip(of_node) {
                let first = begin + part(end - begin, at, count);
                let last = begin + part(end - begin, at + 1, count);
                let client = self.clients[client as usize].clone();
                loading.push(self.start_loading(client, first..last, false));
            }
        }
        for ended in self.finish(loading, None)? {
            ended.map_err(|error| self.lost("load a record", error))?;
        }
        Ok(())
    }

    fn start_loading(
        &self,
        client: Client<D::Client>,
        records: Range<u64>,
        leaves: bool,
    ) -> Program<Result<(), EngineError>> {
        let (store, workload) = (client.store, self.workload.clone());
        self.start(client.process, async move {
            // Virtual time does not matter here: one lane is the least work.
            load_batch(&*store, &workload, records, 1).await?;
            if leaves {
                store.detach().await?;
            }
            Ok(())
        })
    }

    fn share_cores(&self) {
        if self.spec.background_hogs == 0 {
            return;
        }
        for node in 0..self.spec.nodes {
            let home = RegionId(node as u8);
            self.world.share_cores(home, CORES_A_NODE, self.spec.background_hogs);
        }
    }

    /// Draws the operations of each client.
    fn prepare(&self) -> Vec<Runner<D::Client>> {
        self.setting.progress.phase("preparing", None);
        let most = match self.spec.stop {
            Stop::Ops(_) => TRACE_OPS_MAX,
            Stop::Seconds(seconds) => {
                let ops = seconds * 1e9 / OPERATION_NS_MIN * self.spec.lanes as f64;
                TRACE_OPS_MAX.min(ops as u64).max(1)
            }
        };
        let runner = |(number, client): (u32, &Client<_>)| Runner {
            client: client.clone(),
            number,
            warm_up: Rc::new(Trace::of_length(self.spec, self.spec.clients + number, most / 8 + 1)),
            trace: Rc::new(Trace::of_length(self.spec, number, most)),
        };
        (0..).zip(&self.clients).map(runner).collect()
    }

    /// Lets all clients do their parts, beginning at the same moment.
    fn run(
        &self,
        phase: &'static str,
        runners: &[Runner<D::Client>],
        trace: impl Fn(&Runner<D::Client>) -> &Rc<Trace>,
        budget: impl Fn(Budget) -> Budget,
    ) -> Result<(Vec<ClientReport>, Traffic)> {
        let cpu_ns = |runner: &Runner<D::Client>| self.world.cpu_ns(runner.client.process);
        let before: Vec<u64> = runners.iter().map(cpu_ns).collect();
        let start = |runner: &Runner<D::Client>| {
            let program = run(
                runner.client.store.clone(),
                self.workload.clone(),
                trace(runner).clone(),
                VirtualClock(self.world.clone()),
                runner.number,
                budget(Budget::of(self.spec, runner.number)),
                self.spec.lanes,
            );
            self.start(runner.client.process, program)
        };
        let programs = runners.iter().map(start).collect();
        let length_ns = budget(Budget::of(self.spec, 0)).ns;
        let total_ns = Some(length_ns).filter(|ns| *ns < u64::MAX);
        self.setting.progress.phase(phase, total_ns);
        let (mut reports, mut sum) = (Vec::new(), Traffic::default());
        for ended in self.finish(programs, total_ns)? {
            let (number, mut report, traffic) =
                ended.map_err(|error| self.lost("run an operation", error))?;
            let runner = &runners[number as usize];
            report.cpu_s = (cpu_ns(runner) - before[number as usize]) as f64 / 1e9;
            self.check_values(&report)?;
            reports.push(report);
            sum.add(traffic);
        }
        Ok((reports, sum))
    }

    fn check_values(&self, report: &ClientReport) -> Result<()> {
        let (wrong, hits) = (report.tally.wrong_values, report.tally.get_hits);
        if wrong == 0 {
            return Ok(());
        }
        let reason = format!("{wrong} of {hits} are not what was written for their keys");
        Err(self.lost("read values", reason))
    }

    /// Gives a process a program.
    fn start<T: 'static>(
        &self,
        process: ProcessId,
        work: impl Future<Output = T> + 'static,
    ) -> Program<T> {
        let output = Rc::new(RefCell::new(None));
        let place = output.clone();
        self.world.start(process, async move {
            let ended = work.await;
            *place.borrow_mut() = Some(ended);
        });
        Program { process, output }
    }

    /// Runs until all programs have ended; returns their outputs, in the same order. `total_ns` is
    /// the length of the phase, for the progress line.
    fn finish<T>(&self, programs: Vec<Program<T>>, total_ns: Option<u64>) -> Result<Vec<T>> {
        let began_ns = self.world.now_ns();
        // The programs before it have ended.
        let first_left = Cell::new(0);
        let all_ended = || {
            let left = &programs[first_left.get()..];
            let ended = left.iter().take_while(|program| self.world.has_ended(program.process));
            first_left.set(first_left.get() + ended.count());
            first_left.get() == programs.len()
        };
        while !all_ended() {
            if self.setting.interrupted.load(Ordering::Relaxed) {
                return Err(self.lost("go on", "it was interrupted"));
            }
            for _ in 0..EVENTS_A_LOOK {
                if all_ended() {
                    break;
                }
                if !self.world.step() {
                    return Err(self.lost("go on", "clients wait, and nothing happens any more"));
                }
            }
            if total_ns.is_some() {
                self.setting.progress.at(self.world.now_ns() - began_ns);
            }
        }
        let output = |program: Program<T>| program.output.take().expect("its program has ended");
        Ok(programs.into_iter().map(output).collect())
    }

    fn lost(&self, action: &'static str, reason: impl ToString) -> TargetError {
        TargetError::Lost { store: self.setting.name, action, reason: reason.to_string() }
    }
}

/// A program under way.
struct Program<T> {
    process: ProcessId,
    output: Rc<RefCell<Option<T>>>,
}

/// One client's part of a phase.
async fn run<S: Kv>(
    store: Rc<S>,
    workload: Rc<Workload>,
    trace: Rc<Trace>,
    clock: VirtualClock,
    number: u32,
    budget: Budget,
    lanes: usize,
) -> Ended {
    let run = Run::begin(&workload, &trace, &clock, number, budget, 1);
    let sums = Cell::new(Traffic::default());
    let refusal = operate(&*store, &run, lanes, Some(&sums)).await?;
    let refusal = refusal.map(|error| error.to_string());
    let (seconds, tally, gets, puts) = run.end();
    let (get_ns, put_ns) = (pack(&gets), pack(&puts));
    let report = ClientReport { seconds, cpu_s: 0.0, tally, get_ns, put_ns, refusal };
    Ok((number, report, sums.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;
    use crate::system::Fabric;
    use crate::target::loch::available::check;

    /// The example of docs/adding-an-engine.md is among them.
    #[test]
    fn every_engine_that_can_be_simulated_finds_what_it_stored() {
        let is_simulated = |engine: &Engine| check(*engine, Fabric::Sim).is_ok();
        let engines: Vec<_> = Engine::all().filter(is_simulated).collect();
        assert!(engines.iter().any(|engine| engine.name() == "example"), "{engines:?}");
        let line =
            "--fabric sim --nodes 2 --clients 3 --lanes 4 --records 500 --reads 0.5 --ops 600";
        let spec = spec(line).unwrap();
        for engine in engines {
            let name = engine.name();
            let measured =
                measure(engine, &spec, &Progress::on_stderr().of(name.into()), &false.into());
            let Measured { tally, ops_of_workers, .. } = measured.expect(name);
            assert!(tally.gets > 200 && tally.get_hits == tally.gets, "{name}: {tally:?}");
            assert_eq!((tally.errors, tally.wrong_values), (0, 0), "{name}");
            assert_eq!(ops_of_workers.is_some(), engine.serves(), "{name}");
        }
    }
}
