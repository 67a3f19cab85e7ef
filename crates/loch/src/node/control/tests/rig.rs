//! A cluster of control planes in one process.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use loch_fabric::shm::Region;
use loch_fabric::{Access, Grant};
use serde_json::{Value, json};

use super::super::credentials::Credentials;
use super::super::registry::{Acceptor, Admission, Visit};
use super::super::{ControlParts, ControlPort, ControlThreads};
use super::ports::free_address;
use crate::layout::memory::Member;
use crate::layout::plan;
use crate::node::control_client::Caller;
use crate::node::sessions::Sessions;
use crate::session::slot::{Process, SessionId};
use crate::session::wire::{Connect, Refused, SessionSecret};
use crate::{ByteSize, EmbeddedConfig, TableConfig};

/// A process that does not exist any more.
pub const GONE: Process = Process { pid: u32::MAX >> 2, started: 1 };

/// A stand-in for a device: it writes down which connections are let in and end.
#[derive(Clone, Default)]
pub struct Book {
    lines: Arc<Mutex<Vec<String>>>,
    admitted: Arc<Mutex<Vec<Guest>>>,
    slow: Arc<Slow>,
}

/// The connections for which the device takes its time.
#[derive(Default)]
struct Slow {
    lines: Mutex<Vec<String>>,
    changed: Condvar,
}

impl Slow {
    fn pass(&self, line: &str) {
        let lines = self.lines.lock().unwrap();
        let is_slow = |lines: &mut Vec<String>| lines.iter().any(|slow| slow == line);
        drop(self.changed.wait_while(lines, is_slow).unwrap());
    }
}

/// An offer, and the rights that were granted to it.
type Guest = (Value, Vec<Grant>);

struct Admitted {
    book: Book,
    offer: Value,
}

impl Acceptor for Book {
    fn accept(&self, visit: &Visit<'_>) -> Result<(Admission, Value), String> {
        let (offer, grants) = (visit.offer, visit.grants);
        if offer == "broken" {
            return Err("no such queue pair".into());
        }
        self.slow.pass(&format!("in {offer}"));
        self.lines.lock().unwrap().push(format!("in {offer}"));
        self.admitted.lock().unwrap().push((offer.clone(), grants.to_vec()));
        let admitted = Admitted { book: self.clone(), offer: offer.clone() };
        Ok((Box::new(admitted), json!({"answers": offer})))
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.book.slow.pass(&format!("out {}", self.offer));
        self.book.lines.lock().unwrap().push(format!("out {}", self.offer));
        self.book.admitted.lock().unwrap().retain(|(offer, _)| *offer != self.offer);
    }
}

impl Book {
    /// From now on the device does not finish connections with this offer.
    pub fn hold(&self, line: &str) {
        self.slow.lines.lock().unwrap().push(line.into());
    }

    /// The device finishes all connections again.
    pub fn release(&self) {
        self.slow.lines.lock().unwrap().clear();
        self.slow.changed.notify_all();
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// The offers of the admitted connections, in the order in which they came.
    pub fn admitted(&self) -> Vec<Value> {
        self.admitted.lock().unwrap().iter().map(|(offer, _)| offer.clone()).collect()
    }

    /// The rights of the connection that was admitted last.
    pub fn access(&self) -> Vec<Access> {
        let admitted = self.admitted.lock().unwrap();
        admitted.last().unwrap().1.iter().map(|grant| grant.access).collect()
    }
}

/// A node: the part that outlives its process, and its process.
pub struct RigNode {
    pub member: Member,
    /// The address at which it listens; by default the one that the others dial.
    pub listen: String,
    pub fabric: &'static str,
    pub sessions: Arc<Sessions>,
    pub book: Book,
    pub control: Option<ControlThreads>,
}

/// Nodes, each of which may be up or down.
pub struct Rig {
    pub addresses: Vec<String>,
    pub places: Vec<RigNode>,
}

pub fn secret(byte: u8) -> Credentials {
    Credentials::Secret([byte; 32])
}

/// The memory of node `node` of `nodes`.
pub fn member(node: usize, nodes: usize, ways: u8) -> Member {
    let mut table = TableConfig::default();
    table.set("ways", i64::from(ways)).unwrap();
    member_with(node, nodes, vec![table])
}

/// The memory of node `node` of `nodes`, with these tables.
pub fn member_with(node: usize, nodes: usize, tables: Vec<TableConfig>) -> Member {
    let config = EmbeddedConfig {
        nodes: nodes as u16,
        memory: ByteSize::new(4 << 20),
        sessions: 4,
        tables,
        ..EmbeddedConfig::default()
    };
    let plan = plan::of_embedded(&config).unwrap().remove(node);
    let region = Region::anonymous(plan.header.region_bytes).unwrap();
    crate::node::region::format(&region, &plan).unwrap();
    Member::read(format!("node-{node}"), "".into(), Arc::new(region)).unwrap()
}

impl Rig {
    /// Makes so many nodes, all up.
    pub fn new(nodes: usize) -> Self {
        let mut rig = Self::down(nodes);
        (0..nodes).for_each(|node| rig.start(node));
        rig
    }

    /// Makes so many nodes, all down.
    pub fn down(nodes: usize) -> Self {
        let addresses: Vec<String> = (0..nodes).map(|_| free_address()).collect();
        let place = |node: usize| {
            let listen = addresses[node].clone();
            let member = member(node, nodes, 3);
            let sessions = Arc::new(Sessions::restore(&member, true).0);
            RigNode {
                member,
                listen,
                fabric: "test",
                sessions,
                book: Book::default(),
                control: None,
            }
        };
        let places = (0..nodes).map(place).collect();
        Self { addresses, places }
    }

    pub fn start(&mut self, node: usize) {
        self.start_with(node, secret(1));
    }

    pub fn start_with(&mut self, node: usize, credentials: Credentials) {
        let place = &mut self.places[node];
        let parts = ControlParts {
            own: place.member.clone(),
            sessions: place.sessions.clone(),
            acceptor: Arc::new(place.book.clone()),
            addresses: self.addresses.clone(),
            fabric: place.fabric,
            port: Some(ControlPort::Listen(place.listen.clone())),
            credentials,
        };
        place.control = Some(ControlThreads::start(parts).unwrap());
    }

    pub fn stop(&mut self, node: usize) {
        self.places[node].control = None;
    }

    /// Stops a node's process and starts another on the same memory.
    pub fn restart(&mut self, node: usize) {
        self.stop(node);
        let place = &mut self.places[node];
        place.sessions = Arc::new(Sessions::restore(&place.member, true).0);
        self.start(node);
    }

    pub fn open(&self, node: usize, process: Process) -> SessionId {
        self.places[node].sessions.open(process).unwrap()
    }

    pub fn control(&self, node: usize) -> &ControlThreads {
        self.places[node].control.as_ref().unwrap()
    }

    /// A client of `home` asks for a connection to `node`.
    pub fn connect(
        &self,
        home: usize,
        caller: Caller,
        node: usize,
        offer: impl Into<Value>,
    ) -> Result<Value, Refused> {
        let ask = Connect {
            session: None,
            secret: Some(SessionSecret([1, 2])),
            endpoint: 0,
            node: node as u16,
            identity: self.places[node].member.header.identity,
            table: 0,
            unreliable: false,
            offer: offer.into(),
        };
        self.control(home).plane().connect_own(caller, ask)
    }

    /// Connects once the node is up.
    pub fn connect_soon(&self, home: usize, caller: Caller, node: usize, offer: &str) {
        eventually("it is connected", || self.connect(home, caller, node, offer).is_ok());
    }

    pub fn admitted(&self, node: usize) -> Vec<Value> {
        self.places[node].book.admitted()
    }
}

/// A firewall before a node. It lets connections pass until it rejects them or is dropped.
pub struct Wall {
    /// Both ends of the connections that pass; `None` once it rejects connections.
    passing: Arc<Mutex<Option<Vec<TcpStream>>>>,
    listener: TcpListener,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Wall {
    /// Makes a firewall at `address`, before a node that listens at `node`.
    pub fn before(node: &str, address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let passing = Arc::new(Mutex::new(Some(Vec::new())));
        let (ear, node, streams) =
            (listener.try_clone().unwrap(), node.to_owned(), passing.clone());
        let thread = std::thread::spawn(move || {
            for near in ear.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(&node);
                match (streams.lock().unwrap().as_mut(), far) {
                    (None, _) => return,
                    // No node listens behind it yet.
                    (_, Err(_)) => (),
                    (Some(passing), Ok(far)) => {
                        for (from, to) in [(&near, &far), (&far, &near)] {
                            let (mut from, mut to) =
                                (from.try_clone().unwrap(), to.try_clone().unwrap());
                            passing.push(from.try_clone().unwrap());
                            std::thread::spawn(move || {
                                let _ = std::io::copy(&mut from, &mut to);
                                let _ = to.shutdown(Shutdown::Both);
                            });
                        }
                    }
                }
            }
        });
        Self { passing, listener, thread: Some(thread) }
    }

    /// From now on no bytes pass, and connections are refused.
    pub fn reject(self) {
        drop(self);
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        let passing = self.passing.lock().unwrap().take();
        // The shutdown wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for stream in passing.unwrap_or_default() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Waits, for a bounded time, until a condition holds.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "it never came about: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
