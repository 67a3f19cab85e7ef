//! What lets clients' connections into this node's memory, and who is in.
//!
//! # Invariants
//! 1. A client has one connection to a table, at most: the one before is ended *before* another is
//!    let in, so what is unknown of verbs on the first is known when the second is there.
//! 2. What is let in can reach the table it asked for, and the words of the node that every client
//!    needs; a reader can change nothing.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use loch_engines::region::{EPOCH_OFFSET, SESSION_BYTES, SESSIONS_OFFSET, STAMP_OFFSET};
use loch_fabric::verbs::{Access, Grant};
use serde_json::Value;

use crate::memory::Member;
use crate::node::courier::Caller;
use crate::wire::{Code, Connect, Refused};

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

/// Invariant 2: what a client of a table may do. Grace periods need the epoch and the sessions of
/// every node, and stamps are taken at home; but memory is registered anew for each set of grants,
/// so all that write have the same.
pub(crate) fn grants(own: &Member, table: usize, writes: bool) -> Option<[Grant; 4]> {
    let entry = own.tables.get(table)?;
    let [atomic, full] =
        if writes { [Access::ReadAtomic, Access::Full] } else { [Access::Read, Access::Read] };
    let word = |offset| Grant { offset, len: 8, access: atomic };
    let sessions = own.header.sessions as u64 * SESSION_BYTES;
    Some([
        word(EPOCH_OFFSET),
        word(STAMP_OFFSET),
        Grant { offset: SESSIONS_OFFSET, len: sessions, access: Access::Read },
        Grant { offset: entry.offset, len: entry.end() - entry.offset, access: full },
    ])
}

/// Whose connection it is: which client of which node, to which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    home: u16,
    caller: Caller,
    table: u32,
}

/// Everybody who is in.
pub(super) struct Registry {
    own: Member,
    gate: Arc<dyn Gate>,
    admitted: Mutex<HashMap<Key, Admission>>,
    closed: AtomicBool,
}

impl Registry {
    /// Nobody is in.
    pub fn new(own: Member, gate: Arc<dyn Gate>) -> Self {
        Self { own, gate, admitted: Mutex::default(), closed: AtomicBool::new(false) }
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
        let table = ask.table;
        let writes = matches!(caller, Caller::Session(_));
        let Some(grants) = grants(&self.own, table as usize, writes) else {
            return Err(Refused::new(Code::Other, format!("there is no table {table}")));
        };
        let key = Key { home, caller, table };
        // Invariant 1. The lock is not held while the device is at work: the caller sees to it that
        // nobody else speaks for the same client meanwhile.
        let before = self.admitted().remove(&key);
        drop(before);
        let refused = |why| Refused::new(Code::Other, format!("its device refused: {why}"));
        let (admission, answer) = self.gate.accept(&ask.offer, &grants).map_err(refused)?;
        let mut admitted = self.admitted();
        if self.closed.load(Ordering::Relaxed) {
            return Err(Refused::new(Code::Away, "it stops"));
        }
        admitted.insert(key, admission);
        Ok(answer)
    }

    /// Ends all connections, and lets nobody in any more.
    pub fn close(&self) {
        let mut admitted = self.admitted();
        self.closed.store(true, Ordering::Relaxed);
        admitted.clear();
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
        self.admitted().keys().filter(|key| key.home == home).count()
    }

    fn end(&self, which: impl Fn(&Key) -> bool) -> usize {
        let ended: Vec<_> = self.admitted().extract_if(|key, _| which(key)).collect();
        ended.len()
    }

    fn admitted(&self) -> MutexGuard<'_, HashMap<Key, Admission>> {
        self.admitted.lock().expect("nothing panics while it is held")
    }
}
