//! What lets clients' connections into this node's memory, and who is in.
//!
//! # Invariants
//! 1. A client has one connection of a kind to a table, at most: the one before is ended *before* another is
//!    let in, so what is unknown of verbs on the first is known when the second is there.
//! 2. What is let in can reach of the table it asked for what it needs, and no more ([`grants`]); a
//!    reader can change nothing, and a client of a table that workers serve no value.
//! 3. Workers are told of a session ([`Registry::holder`]) before its client is told that it is in, and
//!    until its connections are ended: so a session's number counts for what its node says, and what
//!    its client writes about it counts for nothing.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use loch_engines::region::{EPOCH_OFFSET, EngineId, SESSION_BYTES, SESSIONS_OFFSET, STAMP_OFFSET};
use loch_engines::requests::{Holder, RequestMap, Secret};
use loch_fabric::verbs::{Access, Grant};
use serde_json::Value;

use crate::memory::{Member, Parts};
use crate::node::courier::Caller;
use crate::node::sessions::{Opened, SCRUBBER_SLOT};
use crate::wire::{Code, Connect, Refused, SessionSecret};

/// A connection that was let in. Dropping it is the **fence**: nothing that the client posted on it
/// is executed afterwards.
pub(crate) type Admission = Box<dyn Any + Send>;

/// A node's door for connections; the device behind it, or what stands for one in tests.
pub(crate) trait Gate: Send + Sync {
    /// Lets a connection in. Offer and answer are the fabric's; nobody else looks into them.
    ///
    /// # Errors
    /// Why not, for people.
    fn accept(&self, offer: &Value, grants: &[Grant]) -> Result<(Admission, Value), String>;
}

/// Invariant 2: what a caller of node `home` may do with this node's part of a table, and its words.
///
/// * Who reads may read.
/// * A client of nessie may change the table, as may any node's scrubber. Grace periods need the epoch
///   and the sessions of every node, and stamps are taken at home; but memory is registered anew for
///   each set of grants, so all of them have the same.
/// * Where workers serve, a client has its own request slots and what its engine reads; so it can
///   neither damage a value nor speak in another's name. Those are rights of its own, and memory
///   that is registered for them alone, once for each session slot.
/// * A worker of another node has the reply slots of this node's clients.
///
/// # Errors
/// Why it may do nothing.
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
        (Caller::Worker(_), None) => return Err(format!("nobody serves table {table}")),
        (Caller::Session(_), _) => return Ok(all_of(own, table).into()),
    };
    let (area, service) = (requests.area(), requests.area().service());
    if home >= area.nodes() || slot >= service.sessions_per_node {
        return Err(format!("session slot {slot} of node {home} is none of table {table}'s"));
    }
    let client = area.client(home, slot);
    let slots = (0..service.workers).map(|worker| area.request_slots_of(worker, client));
    let mut grants: Vec<_> = slots.map(|slots| within(requests, slots, Access::Full)).collect();
    let read =
        |Range { start, end }| Grant { offset: start, len: end - start, access: Access::Read };
    match (entry.engine(), &parts) {
        (Some(EngineId::NessieHybrid), _) => {
            // Whoever asks for a stamp learns that it may only read.
            grants.push(read(STAMP_OFFSET..STAMP_OFFSET + 8));
            grants.push(read(entry.offset..requests.base(0).offset()));
        }
        (_, Parts::Mailed(mailed)) => {
            grants.push(within(requests, area.worker_lines(), Access::Read));
            if entry.engine() == Some(EngineId::Pilaf) {
                grants.push(read(mailed.root(0).offset()..entry.end()));
            }
        }
        _ => (),
    }
    // Where requests are sent there are no slots.
    grants.retain(|grant| grant.len > 0);
    Ok(grants)
}

/// All rights to a table of this node that anybody is given.
///
/// # Panics
/// If there is no such table.
pub(crate) fn all_of(own: &Member, table: usize) -> [Grant; 4] {
    let entry = &own.tables[table];
    of_words(own, entry.offset..entry.end(), [Access::ReadAtomic, Access::Full])
}

/// The rights to the words of a node that every client of nessie needs, and to a table.
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

/// The rights to a part of a table's requests.
fn within(requests: &RequestMap, part: Range<u64>, access: Access) -> Grant {
    let offset = requests.base(0).offset() + part.start;
    Grant { offset, len: part.end - part.start, access }
}

/// Whose connection it is: which client of which node, to which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    home: u16,
    caller: Caller,
    table: u32,
    unreliable: bool,
}

/// Everybody who is in.
pub(super) struct Registry {
    own: Member,
    gate: Arc<dyn Gate>,
    inside: Mutex<Inside>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Inside {
    admitted: HashMap<Key, Admission>,
    /// The session in each slot of each node, for a table that workers serve, and its secret.
    sessions: HashMap<Place, (Opened, Secret)>,
}

/// Where a session sits: the number of its home, its slot, and the table that it has open.
type Place = (u16, u32, u32);

impl Registry {
    /// Nobody is in.
    pub fn new(own: Member, gate: Arc<dyn Gate>) -> Self {
        Self { own, gate, inside: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// Lets a connection of a client of node `home` in.
    ///
    /// # Errors
    /// What the client is to be told.
    pub fn admit(&self, home: u16, caller: Caller, ask: &Connect) -> Result<Value, Refused> {
        if ask.identity != self.own.header.identity {
            let text = "it has come back with other memory: open the table again";
            return Err(Refused::new(Code::OtherMemory, text));
        }
        let (table, unreliable) = (ask.table, ask.unreliable);
        let granted = grants(&self.own, table as usize, home, caller);
        let grants = granted.map_err(|why| Refused::new(Code::Other, why))?;
        let secret = self.secret(caller, ask)?;
        let key = Key { home, caller, table, unreliable };
        // Invariant 1. The lock is not held while the device is at work: the caller sees to it that
        // nobody else speaks for the same client meanwhile.
        let before = self.inside().admitted.remove(&key);
        drop(before);
        let refused = |why| Refused::new(Code::Other, format!("its device refused: {why}"));
        let (admission, answer) = self.gate.accept(&ask.offer, &grants).map_err(refused)?;
        let mut inside = self.inside();
        if self.closed.load(Ordering::Relaxed) {
            return Err(Refused::new(Code::Away, "it stops"));
        }
        inside.admitted.insert(key, admission);
        if let Some((session, secret)) = secret {
            inside.sessions.insert((home, session.slot, table), (session, secret));
        }
        Ok(answer)
    }

    /// The session that workers are told of, and its secret, if the caller is one's client.
    fn secret(&self, caller: Caller, ask: &Connect) -> Result<Option<(Opened, Secret)>, Refused> {
        let Caller::Session(session) = caller else { return Ok(None) };
        let parts = self.own.parts(ask.table as usize);
        if session.slot == SCRUBBER_SLOT || parts.is_none_or(|it| it.requests().is_none()) {
            return Ok(None);
        }
        let Some(SessionSecret(words)) = ask.secret else {
            let text =
                "the client says no secret for its requests: use the same release everywhere";
            return Err(Refused::new(Code::Release, text));
        };
        Ok(Some((session, Secret::new(words))))
    }

    /// The session that is let in from slot `slot` of node `home` to a table that workers serve.
    pub fn holder(&self, table: usize, home: u16, slot: u32) -> Option<Holder> {
        let inside = self.inside();
        let (session, secret) = inside.sessions.get(&(home, slot, u32::try_from(table).ok()?))?;
        Some(Holder::new(session.incarnation, Some(*secret)))
    }

    /// Ends all connections, and lets nobody in any more.
    pub fn close(&self) {
        let mut inside = self.inside();
        self.closed.store(true, Ordering::Relaxed);
        *inside = Inside::default();
    }

    /// Fences clients of node `home`.
    pub fn fence(&self, home: u16, callers: &[Caller]) {
        self.end(|key| key.home == home && callers.contains(&key.caller));
    }

    /// Fences all clients of node `home` but these; how many connections were ended.
    pub fn retain(&self, home: u16, living: &HashSet<Caller>) -> usize {
        self.end(|key| key.home == home && !living.contains(&key.caller))
    }

    /// How many connections of clients of node `home` there are.
    pub fn count(&self, home: u16) -> usize {
        self.inside().admitted.keys().filter(|key| key.home == home).count()
    }

    fn end(&self, which: impl Fn(&Key) -> bool) -> usize {
        let mut inside = self.inside();
        let ended: Vec<_> = inside.admitted.extract_if(|key, _| which(key)).collect();
        for (Key { home, caller, table, .. }, _) in &ended {
            if let Caller::Session(session) = caller
                && let Entry::Occupied(known) = inside.sessions.entry((*home, session.slot, *table))
                && known.get().0 == *session
            {
                known.remove();
            }
        }
        // The device is at work when connections are dropped.
        drop(inside);
        ended.len()
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("nothing panics while it is held")
    }
}
