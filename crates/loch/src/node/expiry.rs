//! When the node's scrubber walks a table for values that have expired.
//!
//! A walk removes what has expired of the values in the node's own memory, without anybody touching
//! it ([`loch_engines::nessie::ExpiryWalk`]). It is made in pieces of about a millisecond, with
//! pauses in proportion between them.
//!
//! # Invariants
//! 1. A table that never had a value with an expiry in this node's memory is not walked. That costs
//!    a look at one word.
//! 2. A walk takes a bounded share of a core: [`EXPIRY_TIMES_IDLE`], [`EXPIRY_TIMES_BUSY`].
//!
//! # Faults
//! A walk that fails, because a node cannot be reached, goes on after a pause with new connections
//! from the place to which it came.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use loch_engines::EngineError;
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::{AnyClient, ExpiryWalk};
use loch_fabric::Fabric;
use loch_fabric::shm::Region;

use crate::layout::memory::{ClusterMemory, TableView};
use crate::limits::{EXPIRY_PAUSE, EXPIRY_PAUSE_MAX, EXPIRY_TIMES_BUSY, EXPIRY_TIMES_IDLE};

/// The walks over one table, one after the other.
pub(super) struct TableWalk<E: Fabric> {
    /// The table's number among those that are walked.
    number: usize,
    /// The node's own memory, and where in it the table says whether it has values that expire.
    own: Arc<Region>,
    expiring_at: u64,
    /// The place of the walk that is under way, or of the next.
    walk: ExpiryWalk,
    /// The client by which a walk is under way.
    client: Option<AnyClient<E>>,
    /// When the next piece is due.
    due: Instant,
    /// The pause after the walk.
    pause: Duration,
    /// What the walk has removed so far.
    removed: u64,
}

/// The walks of a node's tables, all of them due.
pub(super) fn walks_of<E: Fabric>(memory: &ClusterMemory, node: usize) -> Vec<TableWalk<E>> {
    let own = memory.nodes[node].as_ref().expect("the node has its own memory").region();
    let walk = |(number, (_, map)): (usize, (_, &Arc<TableMap>))| TableWalk {
        number,
        own: own.clone(),
        expiring_at: map.ledger(node as u8).expiring().offset(),
        walk: ExpiryWalk::default(),
        client: None,
        due: Instant::now(),
        pause: EXPIRY_PAUSE,
        removed: 0,
    };
    memory.nessie_tables().enumerate().map(walk).collect()
}

impl<E: Fabric> TableWalk<E> {
    /// When the next piece is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Whether no entry of the table in this node's memory ever had an expiry (invariant 1). If so,
    /// the next look is due after a pause.
    pub fn is_asleep(&mut self) -> bool {
        let is_asleep = self.own.word(self.expiring_at).load(Ordering::Relaxed) == 0;
        if is_asleep {
            self.due = Instant::now() + self.pause;
            self.pause = longer(self.pause);
        }
        is_asleep
    }

    /// Whether a walk has begun.
    pub fn is_under_way(&self) -> bool {
        self.client.is_some()
    }

    /// The table, in the memory of the cluster as it is now.
    pub fn of<'a>(&self, memory: &'a ClusterMemory) -> (&'a TableView, &'a Arc<TableMap>) {
        memory.nessie_tables().nth(self.number).expect("the tables of a region stay the same")
    }

    /// Begins a walk, or goes on with one that failed.
    pub fn begin(&mut self, client: AnyClient<E>) {
        self.client = Some(client);
    }

    /// Makes the next piece of the walk that is under way (invariant 2).
    pub async fn piece(&mut self) -> Result<(), EngineError> {
        let client = self.client.as_ref().expect("the walk has begun");
        let began = Instant::now();
        let piece = client.expire_some(&mut self.walk).await?;
        let times = if piece.removed > 0 { EXPIRY_TIMES_BUSY } else { EXPIRY_TIMES_IDLE };
        self.removed += piece.removed;
        let mut pause = began.elapsed() * (times - 1);
        if piece.is_over {
            self.pause = match self.removed {
                0 => longer(self.pause),
                _ => EXPIRY_PAUSE,
            };
            pause = pause.max(self.pause);
            (self.removed, self.client) = (0, None);
        }
        self.due = Instant::now() + pause;
        Ok(())
    }

    /// A piece has failed: the walk goes on after a pause, with a new client.
    pub fn failed(&mut self, why: &dyn Display) {
        tracing::debug!(%why, again_in = ?self.pause, "the walk for what has expired is put off");
        self.client = None;
        self.due = Instant::now() + self.pause;
        self.pause = longer(self.pause);
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(EXPIRY_PAUSE_MAX)
}
