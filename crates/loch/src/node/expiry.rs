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

use crate::layout::memory::ClusterMemory;
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
    /// The client by which a walk is under way. Between two pieces it is at rest.
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

    /// Whether the walk has a client.
    pub fn is_under_way(&self) -> bool {
        self.client.is_some()
    }

    /// The table's number among those that are walked.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Begins a walk, or goes on with one.
    pub fn begin(&mut self, client: AnyClient<E>) {
        self.client = Some(client);
    }

    /// Takes the client, if there is one. The walk goes on with another one.
    pub fn stop(&mut self) -> Option<AnyClient<E>> {
        self.client.take()
    }

    /// Makes the next piece of the walk that is under way (invariant 2). Returns whether it was the
    /// last one.
    pub async fn piece(&mut self) -> Result<bool, EngineError> {
        let client = self.client.as_ref().expect("the walk has begun");
        let began = Instant::now();
        let piece = client.expire_some(&mut self.walk).await?;
        self.removed += piece.removed;
        let mut pause = rest_after(began.elapsed(), piece.removed);
        if piece.is_over {
            self.pause = match self.removed {
                0 => longer(self.pause),
                _ => EXPIRY_PAUSE,
            };
            pause = pause.max(self.pause);
            self.removed = 0;
        }
        self.due = Instant::now() + pause;
        Ok(piece.is_over)
    }

    /// A piece has failed: the walk goes on after a pause.
    pub fn failed(&mut self, why: &dyn Display) {
        tracing::debug!(%why, again_in = ?self.pause, "the walk for what has expired is put off");
        self.due = Instant::now() + self.pause;
        self.pause = longer(self.pause);
    }
}

/// The pause after a piece that took so long and removed so many values (invariant 2).
fn rest_after(took: Duration, removed: u64) -> Duration {
    let times = if removed > 0 { EXPIRY_TIMES_BUSY } else { EXPIRY_TIMES_IDLE };
    took * (times - 1)
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(EXPIRY_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use loch_engines::Kv;
    use loch_engines::epoch::Session;
    use loch_engines::net::{Access, CacheLimits};
    use loch_engines::operation::PutOptions;
    use loch_engines::requests::Timing;
    use loch_fabric::RegionId;
    use loch_fabric::lanes::block_on;
    use loch_fabric::shm::ShmEndpoint;

    use super::*;
    use crate::layout::memory::Member;
    use crate::{ByteSize, EmbeddedConfig};

    /// The memory of a cluster of one node, with a client of its table.
    fn cluster() -> (ClusterMemory, AnyClient<ShmEndpoint>) {
        let memory = ByteSize::new(16 << 20);
        let config = EmbeddedConfig { memory, sessions: 4, ..EmbeddedConfig::default() };
        let plan = crate::layout::plan::of_embedded(&config).unwrap().remove(0);
        let region = Region::anonymous(plan.header.region_bytes).unwrap();
        crate::node::region::format(&region, &plan).unwrap();
        let member = Member::read("node".into(), "".into(), Arc::new(region)).unwrap();
        let memory = ClusterMemory::join(vec![Some(member)], 0).unwrap();
        let client = client(&memory, 1);
        (memory, client)
    }

    fn client(memory: &ClusterMemory, slot: u32) -> AnyClient<ShmEndpoint> {
        let (_, map) = memory.nessie_tables().next().unwrap();
        let access = Access {
            session: Session::new(RegionId(0), slot, u64::from(slot)),
            node: 0,
            timing: Timing::default(),
            cache: CacheLimits { lines: 1, entry_bytes_max: 0 },
            batch: 1,
        };
        AnyClient::new(memory.endpoint(0), map.clone(), access)
    }

    fn put(client: &AnyClient<ShmEndpoint>, i: u32, expires_at_ms: Option<u64>) {
        let options = PutOptions { expires_at_ms };
        block_on(client.put(&i.to_le_bytes(), b"value", options)).unwrap();
    }

    /// The time from now until the next piece is due.
    fn pause(walk: &TableWalk<ShmEndpoint>) -> Duration {
        walk.due().saturating_duration_since(Instant::now())
    }

    #[test]
    fn a_table_without_expiries_is_looked_at_ever_more_rarely_until_it_has_one() {
        let (memory, client) = cluster();
        let mut walk = walks_of(&memory, 0).remove(0);
        put(&client, 0, None);
        for pause_s in [1, 2, 4, 8, 16, 30, 30] {
            assert!(walk.is_asleep() && !walk.is_under_way());
            let (least, most) = (Duration::from_secs(pause_s - 1), Duration::from_secs(pause_s));
            assert!((least..=most).contains(&pause(&walk)), "{pause_s} s: {:?}", pause(&walk));
        }
        put(&client, 1, Some(u64::MAX));
        assert!(!walk.is_asleep());
        put(&client, 1, None);
        assert!(!walk.is_asleep(), "it is not known whether there are others");
    }

    #[test]
    fn a_walk_rests_in_proportion_to_its_work_and_less_while_it_removes_something() {
        let (ms, rest_after) =
            (Duration::from_millis, |ms, n| rest_after(Duration::from_millis(ms), n));
        assert_eq!((rest_after(1, 0), rest_after(1, 1)), (ms(49), ms(9)), "2 and 10 per cent");
        assert_eq!((rest_after(20, 0), rest_after(20, 256)), (ms(980), ms(180)));
    }

    #[test]
    fn a_walk_is_made_in_pieces_and_the_next_one_comes_soon_if_it_removed_something() {
        let (memory, writer) = cluster();
        let mut walk = walks_of(&memory, 0).remove(0);
        (0..20_000).for_each(|i| put(&writer, i, Some(1)));
        for (pieces_min, pause) in [(20_000 / 256, 1), (1, 2), (1, 4)] {
            walk.begin(client(&memory, 2));
            let mut pieces = 0;
            loop {
                pieces += 1;
                if block_on(walk.piece()).unwrap() {
                    break;
                }
            }
            assert!(pieces >= pieces_min, "{pieces}");
            assert_eq!(walk.pause, EXPIRY_PAUSE * pause);
            assert_eq!(block_on(writer.usage()).unwrap()[0].entries, 0);
        }
    }

    #[test]
    fn a_walk_that_fails_goes_on_after_a_pause_from_where_it_was() {
        let (memory, writer) = cluster();
        let mut walk = walks_of(&memory, 0).remove(0);
        (0..20_000).for_each(|i| put(&writer, i, Some(u64::MAX)));
        walk.begin(client(&memory, 2));
        block_on(walk.piece()).unwrap();
        let place = walk.walk;
        walk.failed(&"a node is away");
        assert!(walk.stop().is_some() && !walk.is_under_way() && pause(&walk) > EXPIRY_PAUSE / 2);
        assert_eq!((walk.walk, place == ExpiryWalk::default()), (place, false));
    }
}
