//! A table's engine over a network: an endpoint, and connections that are made again when they
//! break.
//!
//! # Invariants
//! 1. A connection takes the place of another only when its home node has had the other one's
//!    passive end ended: that is what the endpoint has to be promised.
//! 2. A node that cannot be reached is asked for at most once in [`RECONNECT_PAUSE`], whatever the
//!    number of lanes that would need it.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loch_engines::EngineError;
use loch_engines::nessie::Client;
use loch_fabric::verbs::{Answer, Device, DeviceError, Selection, VerbsEndpoint, VerbsError};
use loch_fabric::{Fabric, FabricError, RegionId};

use crate::attachment::Attachment;
use crate::lease::Lease;
use crate::limits::{ADMIT_TIMEOUT, RECONNECT_PAUSE};
use crate::memory::{Member, Memory};
use crate::wire::{Connect, DeviceChoice};
use crate::{ByteSize, ConnectOptions, Error};

/// A client of one table, and how it comes by connections.
pub(crate) struct Remote {
    client: Client<VerbsEndpoint>,
    attachment: Arc<Attachment>,
    memory: Arc<Memory>,
    /// What is asked of every node, but for node, memory and offer.
    ask: Connect,
    timeout: Duration,
    /// By node.
    ways: RefCell<Vec<Way>>,
}

/// The time that a node has to answer is doubled so often at most.
const DOUBLINGS_MAX: u32 = 16;

/// How connecting to a node went so far.
#[derive(Default)]
struct Way {
    /// Whether there was ever a connection. It may have broken since.
    made: bool,
    /// The last try, if it failed.
    failure: Option<Failure>,
    /// How often in a row nobody answered in time.
    silences: u32,
}

struct Failure {
    at: Instant,
    error: Error,
}

/// The attempts at one operation.
pub(crate) struct Attempts {
    /// When the first one failed for want of a connection.
    since: Option<Instant>,
}

impl Remote {
    /// A client of table number `table`, connected to all nodes that can be reached now.
    ///
    /// # Errors
    /// [`Error::Device`]; if the home node cannot let it in, as [`Error::NodeUnreachable`].
    pub fn open(
        attachment: Arc<Attachment>,
        memory: Arc<Memory>,
        table: usize,
        lease: &Lease,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let home = attachment.home();
        let region = memory.nodes[home].as_ref().expect("the home node is known").region();
        let endpoint =
            VerbsEndpoint::new(attachment.device()?, RegionId(home as u8), region.clone())
                .map_err(|error| of_verbs(error, region.len()))?;
        let (session, endpoint_number) = lease.caller();
        let ask = Connect {
            session,
            endpoint: endpoint_number,
            node: 0,
            identity: 0,
            table: table as u32,
            offer: serde_json::Value::Null,
        };
        let client = Client::new(
            endpoint,
            memory.tables[table]
                .nessie()
                .expect("other engines are refused over a network")
                .clone(),
            lease.session(),
            options.cache,
            options.operation_timeout_us(),
        );
        let timeout = Duration::from_micros(options.operation_timeout_us());
        let ways = RefCell::new(memory.nodes.iter().map(|_| Way::default()).collect());
        let remote = Self { client, attachment, memory, ask, timeout, ways };
        // Without its own node a client can do nothing; others are tried again when they are
        // needed.
        remote.connect(home)?;
        remote.ways.borrow_mut()[home].made = true;
        for node in (0..remote.memory.nodes.len()).filter(|node| *node != home) {
            remote.try_connect(node);
        }
        Ok(remote)
    }

    /// The engine.
    pub fn client(&self) -> &Client<VerbsEndpoint> {
        &self.client
    }

    /// Before an operation: makes connections again that broke, so that what became of the verbs on
    /// them is settled, and memory that others wait for is not held back.
    pub fn begin(&self) -> Attempts {
        for region in self.client.fabric().broken() {
            self.try_connect(region.0 as usize);
        }
        Attempts { since: None }
    }

    /// After an operation: whether it is to be begun again, because it lacked a connection that is
    /// there now.
    pub async fn goes_on(&self, attempts: &mut Attempts, error: Option<&EngineError>) -> bool {
        let Some(EngineError::Fabric(error)) = error else {
            return false;
        };
        let Some(node) = self.lacking(*error) else {
            return false;
        };
        let since = *attempts.since.get_or_insert_with(Instant::now);
        loop {
            if since.elapsed() > self.timeout {
                return false;
            }
            // Another lane may have been faster; a connection that works is not replaced.
            if !self.lacks(node) || self.try_connect(node) {
                return true;
            }
            // Other lanes go on meanwhile.
            self.client.fabric().pause(RECONNECT_PAUSE.as_micros() as u64).await;
        }
    }

    /// Runs an operation, again and again while it lacks connections that can be made.
    ///
    /// # Errors
    /// The operation's.
    pub async fn operate<T>(
        &self,
        operation: impl AsyncFn() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut attempts = self.begin();
        loop {
            let done = operation().await;
            if !self.goes_on(&mut attempts, done.as_ref().err()).await {
                return done;
            }
        }
    }

    /// The same, of an operation that changes nothing: of those no outcome is unknown.
    ///
    /// # Errors
    /// The operation's.
    pub async fn read<T>(
        &self,
        operation: impl AsyncFn() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.operate(async || operation().await.map_err(of_read)).await
    }

    /// The node whose connection an operation lacked.
    fn lacking(&self, error: FabricError) -> Option<usize> {
        let region = match error {
            FabricError::Unreachable { region } | FabricError::Unattached { region } => region,
            FabricError::OutcomeUnknown { at } => at.region(),
            _ => return None,
        };
        Some(region.0 as usize).filter(|node| *node < self.memory.nodes.len())
    }

    /// Whether there is no connection to a node.
    fn lacks(&self, node: usize) -> bool {
        !self.ways.borrow()[node].made
            || self.client.fabric().broken().contains(&RegionId(node as u8))
    }

    /// Connects to a node, if the last try was not just now; whether it is connected.
    fn try_connect(&self, node: usize) -> bool {
        let failed = self.ways.borrow()[node].failure.as_ref().map(|failure| failure.at);
        if failed.is_some_and(|at| at.elapsed() < RECONNECT_PAUSE) {
            return false;
        }
        let connected = self.connect(node);
        let done = connected.is_ok();
        let way = &mut self.ways.borrow_mut()[node];
        way.made |= done;
        way.failure = connected.err().map(|error| {
            tracing::debug!(node, %error, "a node cannot be connected");
            Failure { at: Instant::now(), error }
        });
        done
    }

    fn connect(&self, node: usize) -> Result<(), Error> {
        let member = self.member(node);
        let ask =
            Connect { node: node as u16, identity: member.header.identity, ..self.ask.clone() };
        // A node that is slow, as one whose host has too much to do, has done in vain what its client
        // does not wait for any more. So each try waits longer than the one before.
        let silences = self.ways.borrow()[node].silences;
        let wait = self.timeout.saturating_mul(1 << silences).min(ADMIT_TIMEOUT);
        let begun = Instant::now();
        let broker = self.attachment.broker(wait)?;
        let asked = |ask| broker.connect(ask, wait);
        let connected = connect(self.client.fabric(), member, ask, asked);
        let is_silence = connected.is_err() && begun.elapsed() >= wait;
        self.ways.borrow_mut()[node].silences =
            if is_silence { (silences + 1).min(DOUBLINGS_MAX) } else { 0 };
        connected.map_err(|error| match error {
            // Whoever asks knows his home node; it is the other one that he wants to know about.
            Error::NodeUnreachable { remedy, .. } => {
                Error::NodeUnreachable { socket: member.socket.clone(), remedy }
            }
            error => error,
        })
    }

    fn member(&self, node: usize) -> &Member {
        self.memory.nodes[node].as_ref().expect("who attached knows all nodes")
    }

    /// What is known of an error that is for want of a connection.
    pub fn explain(&self, error: FabricError) -> Option<Error> {
        let node = self.lacking(error)?;
        let ways = self.ways.borrow();
        let known = ways[node].failure.as_ref().map(|failure| failure.error.clone());
        Some(known.unwrap_or_else(|| Error::NodeUnreachable {
            socket: self.member(node).socket.clone(),
            remedy: "the connection to it broke".into(),
        }))
    }
}

/// An error of an operation that changes nothing: whatever became of its verbs, that is so.
pub(crate) fn of_read(error: EngineError) -> EngineError {
    match error {
        EngineError::Ambiguous(cause) => EngineError::Fabric(cause),
        error => error,
    }
}

/// Makes a connection of an endpoint to a node: `asked` has the offer taken there.
///
/// # Errors
/// [`Error::Device`], and those of `asked`.
pub(crate) fn connect(
    endpoint: &VerbsEndpoint,
    member: &Member,
    ask: Connect,
    asked: impl FnOnce(Connect) -> Result<serde_json::Value, Error>,
) -> Result<(), Error> {
    let region = RegionId(member.header.node as u8);
    let bytes = member.header.region_bytes;
    let offer = endpoint.offer(region).map_err(|error| of_verbs(error, bytes))?;
    let offer = serde_json::to_value(&offer).expect("an offer is plain data");
    let answer = asked(Connect { offer, ..ask })?;
    let answer: Answer = serde_json::from_value(answer).map_err(|error| Error::Device {
        problem: format!("{} answers what is no answer: {error}", member.socket.display()),
    })?;
    endpoint.connect(region, bytes, &answer).map_err(|error| of_verbs(error, bytes))
}

/// Opens a device.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn open_device(choice: &DeviceChoice) -> Result<Arc<Device>, Error> {
    let DeviceChoice { name, port, gid_index } = choice.clone();
    let selection = Selection { device: name, port, gid_index };
    let opened = Device::open(&selection);
    opened.map_err(|error: DeviceError| Error::Device { problem: error.to_string() })
}

/// An error of the device's, about a region of so many bytes.
pub(crate) fn of_verbs(error: VerbsError, region_bytes: u64) -> Error {
    let locked = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    of_verbs_within(error, region_bytes, locked)
}

fn of_verbs_within(error: VerbsError, region_bytes: u64, limit: Option<u64>) -> Error {
    match (&error, limit) {
        (VerbsError::Register { .. }, Some(limit)) if limit < region_bytes => {
            Error::LockedMemory { needed: ByteSize::new(region_bytes), limit: ByteSize::new(limit) }
        }
        _ => Error::Device { problem: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_locked_memory_is_told_in_numbers() {
        let error = || VerbsError::Register {
            bytes: 1 << 20,
            source: std::io::ErrorKind::OutOfMemory.into(),
        };
        let told = of_verbs_within(error(), 64 << 20, Some(8 << 20)).to_string();
        for word in ["64MiB", "8MiB", "ulimit -l", "LimitMEMLOCK"] {
            assert!(told.contains(word), "{word}: {told}");
        }
        let other = of_verbs_within(error(), 64 << 20, None);
        assert!(matches!(other, Error::Device { .. }), "{other}");
    }

    #[test]
    fn of_a_read_no_outcome_is_unknown() {
        let at = loch_fabric::RemoteAddr::new(RegionId(1), 8);
        let cause = FabricError::OutcomeUnknown { at };
        assert_eq!(of_read(EngineError::Ambiguous(cause)), EngineError::Fabric(cause));
        assert_eq!(of_read(EngineError::KeyEmpty), EngineError::KeyEmpty);
    }
}
