//! The registry of clients' connections into this node's memory, and the rights that they get.
//!
//! # Invariants
//! 1. A client has at most one connection of a kind to a table. The connection before is ended
//!    *before* another is let in, so the outcome of its verbs is settled when the other is there.
//! 2. A connection can reach the part of its table that its client needs, and no more ([`grants`]).
//!    A reader can change nothing; a client of a table with workers can change no value.
//! 3. Workers are told of a session ([`Registry::holder`]) before its client is told that it is in,
//!    and until its connections begin to end. Workers therefore believe what the session's node
//!    says of it, and not what its client writes.
//! 4. No lock is held while a connection is let in or ended, as a card may take its time: Soft-RoCE
//!    waits for all packets of a queue pair that it destroys. Such a connection is *changing*
//!    meanwhile. No node is told that it has ended ([`Ended::All`]) before the card has said so.
//!    Connections end on a thread of their own, so the node's other requests need not wait.
//! 5. A node speaks over its newest link only. Once it has said hello on the next link, a request
//!    that came over an older link lets no connection in and ends none.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use loch_engines::region::{EPOCH_OFFSET, SESSION_BYTES, SESSIONS_OFFSET, STAMP_OFFSET};
use loch_engines::requests::{Holder, RequestMap, Secret};
use loch_fabric::{Access, Grant};
use serde_json::Value;

use crate::layout::memory::Member;
#[cfg(doc)]
use crate::limits::PROBE_BYTES;
use crate::limits::{CLOSE_ENDING_MAX, FENCE_PATIENCE};
use crate::node::control_client::Caller;
use crate::node::sessions::SCRUBBER_SLOT;
use crate::session::slot::SessionId;
use crate::session::wire::{Code, Connect, Refused, SessionSecret};

/// A connection that was let in. Dropping it is the **fence**: nothing that the client posted on it
/// is executed afterwards.
pub(crate) type Admission = Box<dyn Any + Send>;

/// A connection that asks to be let in.
pub(crate) struct Visit<'a> {
    /// The node of its client.
    pub home: u16,
    pub table: usize,
    /// The client's side, in the fabric's format.
    pub offer: &'a Value,
    pub grants: &'a [Grant],
}

/// Accepts connections into the node's memory: its fabric, or a stand-in for one in tests.
pub(crate) trait Acceptor: Send + Sync {
    /// Lets a connection in. Offer and answer are the fabric's, and no other code looks into them.
    ///
    /// # Errors
    /// The reason why the connection is refused, in words.
    fn accept(&self, visit: &Visit<'_>) -> Result<(Admission, Value), String>;

    /// Lets in a connection of a probe (`probe.rs`), which may READ the first [`PROBE_BYTES`].
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    fn accept_probe(&self) -> Result<(Admission, Value), String> {
        Ok((Box::new(()), Value::Null))
    }
}

/// Invariant 2: the rights of a caller of node `home` to a table of this node and to the words it
/// needs.
///
/// * A reader may read.
/// * A client of nessie may change the table, and so may the scrubber of any node. Grace periods
///   need the epoch and the sessions of every node, and stamps are taken at the home node. But
///   memory is registered once for each set of grants, so all these callers have the same grants.
/// * A client of a table with workers has its own request slots and the parts that its engine
///   reads. It can therefore neither damage a value nor send requests as another client. The memory
///   with these rights is registered once for each session slot.
/// * A worker of another node has the reply slots of this node's clients.
///
/// # Errors
/// The reason why the caller has no rights.
pub(crate) fn grants(
    own: &Member,
    table: usize,
    home: u16,
    caller: Caller,
) -> Result<Vec<Grant>, String> {
    let (Some(entry), Some(parts)) = (own.tables.get(table), own.parts(table)) else {
        return Err(format!("there is no table {table}"));
    };
    let whole = entry.offset..entry.end();
    let (slot, requests) = match (caller, parts.requests()) {
        (Caller::Reader { .. }, _) => return Ok(of_words(own, whole, [Access::Read; 2]).into()),
        (Caller::Session(session), Some(requests)) if session.slot != SCRUBBER_SLOT => {
            (session.slot, requests)
        }
        (Caller::Worker(_), Some(requests)) => {
            return Ok(vec![within(requests, requests.area().reply_slots(), Access::Full)]);
        }
        (Caller::Worker(_), None) => return Err(format!("table {table} has no workers")),
        (Caller::Session(_), _) => return Ok(all_of(own, table).into()),
    };
    let (area, service) = (requests.area(), requests.area().service());
    if home >= area.nodes() || slot >= service.sessions_per_node {
        return Err(format!("table {table} has no session slot {slot} for node {home}"));
    }
    let client = area.client(home, slot);
    let slots = (0..service.workers).map(|worker| area.request_slots_of(worker, client));
    let mut grants: Vec<_> = slots.map(|slots| within(requests, slots, Access::Full)).collect();
    let read =
        |Range { start, end }| Grant { offset: start, len: end - start, access: Access::Read };
    grants.extend(parts.readable(0).into_iter().map(read));
    // A table whose requests are SENT has no request slots.
    grants.retain(|grant| grant.len > 0);
    Ok(grants)
}

/// All rights to a table of this node that a caller can get.
///
/// # Panics
/// If there is no such table.
pub(crate) fn all_of(own: &Member, table: usize) -> [Grant; 4] {
    let entry = &own.tables[table];
    of_words(own, entry.offset..entry.end(), [Access::ReadAtomic, Access::Full])
}

/// The rights to a table and to the words of a node that every client of nessie needs.
fn of_words(own: &Member, table: Range<u64>, [atomic, full]: [Access; 2]) -> [Grant; 4] {
    let word = |offset| Grant { offset, len: 8, access: atomic };
    let sessions = own.header.sessions as u64 * SESSION_BYTES;
    [
        word(EPOCH_OFFSET),
        word(STAMP_OFFSET),
        Grant { offset: SESSIONS_OFFSET, len: sessions, access: Access::Read },
        Grant { offset: table.start, len: table.end - table.start, access: full },
    ]
}

/// The right to a part of a table's requests.
fn within(requests: &RequestMap, part: Range<u64>, access: Access) -> Grant {
    let offset = requests.base(0).offset() + part.start;
    Grant { offset, len: part.end - part.start, access }
}

/// Names a connection by the node of its client, the client and the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ConnectionKey {
    home: u16,
    caller: Caller,
    table: u32,
    unreliable: bool,
}

/// The link over which a node speaks: the number of a link that it dialed, [`OWN_LINK`] for this
/// node.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkId {
    pub home: u16,
    pub number: u64,
}

/// The link of the node's own clients. No link between nodes has this number.
pub(super) const OWN_LINK: u64 = 0;

/// The outcome of an order to end connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what a client held is used again only when its connections have ended"]
pub(super) enum Ended {
    /// All these connections have ended.
    All,
    /// Some of them have not ended yet.
    NotYet,
    /// The order was ignored, because the node speaks over another link now.
    Superseded,
}

/// All connections that were let in.
pub(super) struct Registry {
    own: Member,
    acceptor: Arc<dyn Acceptor>,
    shared: Arc<SharedState>,
}

/// The state that is shared by the threads that let connections in and end them.
#[derive(Default)]
struct SharedState {
    state: Mutex<State>,
    /// Notified whenever a connection has changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    admitted: HashMap<ConnectionKey, Admission>,
    /// Invariant 4: connections that are being let in or ended. A key is either here or in
    /// `admitted`.
    changing: HashSet<ConnectionKey>,
    /// Invariant 3: the session in each slot of each node, for a table that workers serve, and its
    /// secret.
    sessions: HashMap<SlotKey, (SessionId, Secret)>,
    /// Invariant 5: the newest link of each node.
    links: HashMap<u16, u64>,
    closed: bool,
}

/// Connections that are to end. Dropping the value ends them.
struct Ending {
    connections: Vec<(ConnectionKey, Admission)>,
    shared: Arc<SharedState>,
}

/// A connection that is being let in. It is changing until this value is dropped.
struct Entering<'a> {
    key: ConnectionKey,
    shared: &'a SharedState,
}

/// Names a session by the number of its home node, its slot, and its table.
type SlotKey = (u16, u32, u32);

impl Registry {
    /// Makes a registry without connections.
    pub fn new(own: Member, acceptor: Arc<dyn Acceptor>) -> Self {
        Self { own, acceptor, shared: Arc::default() }
    }

    /// A node speaks over this link from now on. Returns the link over which it spoke before, or
    /// `None` if it has dialed a newer one meanwhile.
    pub fn take_over(&self, link_id: LinkId) -> Option<u64> {
        let mut state = self.shared.state();
        let newest = state.links.entry(link_id.home).or_insert(OWN_LINK);
        (*newest < link_id.number).then(|| std::mem::replace(newest, link_id.number))
    }

    /// Lets a connection of a node's client in.
    ///
    /// # Errors
    /// The refusal for the client.
    pub fn admit(&self, link_id: LinkId, caller: Caller, ask: &Connect) -> Result<Value, Refused> {
        if ask.identity != self.own.header.identity {
            let text = "it has come back with other memory: open the table again";
            return Err(Refused::new(Code::OtherMemory, text));
        }
        let (home, table, unreliable) = (link_id.home, ask.table, ask.unreliable);
        let granted = grants(&self.own, table as usize, home, caller);
        let grants = granted.map_err(|why| Refused::new(Code::Other, why))?;
        let secret = self.secret(caller, ask)?;
        let key = ConnectionKey { home, caller, table, unreliable };
        // Invariant 1: the connection before ends first.
        let before = self.end(link_id, |it| *it == key);
        let entering = (before == Ended::All).then(|| self.begin(key)).flatten();
        let Some(entering) = entering else {
            let text = "the client's connection before is still being ended: ask again";
            return Err(Refused::new(Code::Away, text));
        };
        let refused = |why| Refused::new(Code::Other, format!("its fabric refused: {why}"));
        let visit = Visit { home, table: table as usize, offer: &ask.offer, grants: &grants };
        let (admission, answer) = self.acceptor.accept(&visit).map_err(refused)?;
        let mut state = self.shared.state();
        if state.closed || !state.is_newest(link_id) {
            drop(state);
            // No client was told how to use it. It ends before it stops changing.
            drop(admission);
            return Err(Refused::new(Code::Away, "it stops, or was asked again meanwhile"));
        }
        if let Some((session, secret)) = secret {
            state.sessions.insert((home, session.slot, table), (session, secret));
        }
        entering.let_in(state, admission);
        Ok(answer)
    }

    /// Lets the connection of a probe in, which can change nothing: no fence waits for it.
    ///
    /// # Errors
    /// The refusal.
    pub fn admit_probe(&self) -> Result<(Admission, Value), Refused> {
        self.acceptor.accept_probe().map_err(|why| Refused::new(Code::Other, why))
    }

    /// Marks a connection as changing. Returns `None` if it is there, or changing already.
    fn begin(&self, key: ConnectionKey) -> Option<Entering<'_>> {
        let mut state = self.shared.state();
        let is_free = !state.admitted.contains_key(&key) && state.changing.insert(key);
        is_free.then(|| Entering { key, shared: &self.shared })
    }

    /// The session of which workers are told, and its secret, if the caller is their client.
    fn secret(
        &self,
        caller: Caller,
        ask: &Connect,
    ) -> Result<Option<(SessionId, Secret)>, Refused> {
        let Caller::Session(session) = caller else { return Ok(None) };
        let parts = self.own.parts(ask.table as usize);
        if session.slot == SCRUBBER_SLOT || parts.is_none_or(|it| it.requests().is_none()) {
            return Ok(None);
        }
        let Some(SessionSecret(words)) = ask.secret else {
            let text =
                "the client sends no secret for its requests: use the same release everywhere";
            return Err(Refused::new(Code::Release, text));
        };
        Ok(Some((session, Secret::new(words))))
    }

    /// The session that was let in from slot `slot` of node `home` to a table with workers.
    pub fn holder(&self, table: usize, home: u16, slot: u32) -> Option<Holder> {
        let state = self.shared.state();
        let (session, secret) = state.sessions.get(&(home, slot, u32::try_from(table).ok()?))?;
        Some(Holder::new(session.incarnation, Some(*secret)))
    }

    /// Ends all connections, and lets none in any more.
    pub fn close(&self) {
        self.shared.state().closed = true;
        self.begin_to_end(|_| true);
        if !self.wait(CLOSE_ENDING_MAX, |_| true) {
            // The kernel ends them with the process.
            tracing::error!("connections do not end: their card does not answer");
        }
    }

    /// Fences clients of a node.
    pub fn fence(&self, link_id: LinkId, callers: &[Caller]) -> Ended {
        self.end(link_id, |key| key.home == link_id.home && callers.contains(&key.caller))
    }

    /// Fences all clients of a node except these.
    pub fn retain(&self, link_id: LinkId, living: &HashSet<Caller>) -> Ended {
        self.end(link_id, |key| key.home == link_id.home && !living.contains(&key.caller))
    }

    /// Begins to end all connections of clients of node `home`, and returns their number.
    pub fn forget(&self, home: u16) -> usize {
        self.begin_to_end(|key| key.home == home)
    }

    /// The number of connections of clients of node `home`.
    pub fn count(&self, home: u16) -> usize {
        self.shared.state().admitted.keys().filter(|key| key.home == home).count()
    }

    fn end(&self, link_id: LinkId, which: impl Fn(&ConnectionKey) -> bool) -> Ended {
        // The node has taken over with a newer link, and ends those clients itself.
        if !self.shared.state().is_newest(link_id) {
            return Ended::Superseded;
        }
        self.begin_to_end(&which);
        if self.wait(FENCE_PATIENCE, which) { Ended::All } else { Ended::NotYet }
    }

    /// Begins to end connections, and returns their number.
    fn begin_to_end(&self, which: impl Fn(&ConnectionKey) -> bool) -> usize {
        let mut state = self.shared.state();
        let State { admitted, changing, sessions, .. } = &mut *state;
        let connections: Vec<_> = admitted.extract_if(|key, _| which(key)).collect();
        changing.extend(connections.iter().map(|(key, _)| *key));
        for (ConnectionKey { home, caller, table, .. }, _) in &connections {
            if let Caller::Session(session) = caller
                && let Entry::Occupied(known) = sessions.entry((*home, session.slot, *table))
                && known.get().0 == *session
            {
                known.remove();
            }
        }
        drop(state);
        let count = connections.len();
        if count > 0 {
            let ending = Ending { connections, shared: self.shared.clone() };
            let thread = std::thread::Builder::new().name("loch-fence".into());
            if let Err(error) = thread.spawn(move || drop(ending)) {
                // The closure was dropped, and the connections with it.
                tracing::warn!(%error, "connections were ended without a thread for that");
            }
        }
        count
    }

    /// Waits until no such connection is changing. Returns whether that has come about.
    fn wait(&self, patience: Duration, which: impl Fn(&ConnectionKey) -> bool) -> bool {
        let state = self.shared.state();
        let is_changing = |state: &mut State| state.changing.iter().any(&which);
        let waited = self.shared.changed.wait_timeout_while(state, patience, is_changing);
        !waited.expect("nothing panics while it is held").1.timed_out()
    }
}

impl State {
    fn is_newest(&self, link_id: LinkId) -> bool {
        self.links.get(&link_id.home).copied().unwrap_or(OWN_LINK) == link_id.number
    }
}

impl SharedState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    fn has_changed(&self, key: &ConnectionKey) {
        self.state().changing.remove(key);
        self.changed.notify_all();
    }
}

impl Entering<'_> {
    fn let_in(self, mut state: MutexGuard<'_, State>, admission: Admission) {
        state.admitted.insert(self.key, admission);
        // Both changes are one step: afterwards another thread may end it, and then it is changing
        // again.
        state.changing.remove(&self.key);
        drop(state);
        self.shared.changed.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.shared.has_changed(&self.key);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        for (key, admission) in self.connections.drain(..) {
            let begun = Instant::now();
            // If the card fails to end it, this panics, and the connection is never reported as
            // ended.
            drop(admission);
            let took = begun.elapsed();
            if took > FENCE_PATIENCE {
                tracing::info!(
                    home = key.home,
                    took_ms = took.as_millis() as u64,
                    "the card took its time to end a connection"
                );
            }
            self.shared.has_changed(&key);
        }
    }
}
