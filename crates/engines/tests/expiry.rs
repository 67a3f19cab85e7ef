//! Values that expire. First a DELETE of one whose time comes meanwhile, found by the simulation
//! (`expiry 176`, `expiry --protocol published 177`): its client stood still between the CAS that
//! removed the value and the look at the clock. It said that there was no value, but others had
//! seen it until then, and missed it before its time.

mod cluster;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use cluster::{Plan, TestCluster};
use loch_engines::nessie::PutOptions;
use loch_engines::nessie::geometry::Protocol;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Fabric, FabricError, RemoteAddr};

const NOW_MS: u64 = 1_000_000;
const EXPIRES_MS: u64 = NOW_MS + 1;

/// Its clock moves on by some milliseconds with every CAS, as if its process had been stopped.
struct Late {
    inner: ShmEndpoint,
    now_ms: Rc<Cell<u64>>,
}

impl Fabric for Late {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes fetch_add write_unsignaled
        write
        is_mapped store store_before store_after announce load reload raw posted is_settled
        now_us random pause => inner
    );

    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        let swapped = self.inner.compare_swap(at, expect, new);
        async move {
            let swapped = swapped.await;
            self.now_ms.set(self.now_ms.get() + 10);
            swapped
        }
    }

    fn wall_ms(&self) -> u64 {
        self.now_ms.get()
    }
}

fn options() -> PutOptions {
    PutOptions { expires_at_ms: Some(EXPIRES_MS) }
}

#[test]
fn a_delete_counts_a_value_that_expires_while_it_is_removed() {
    let cluster = TestCluster::new(Plan::default());
    let now_ms = Rc::new(Cell::new(NOW_MS));
    let client = cluster.client_over(0, |inner| Late { inner, now_ms: now_ms.clone() });
    block_on(client.put(b"k", b"value", options())).unwrap();
    now_ms.set(NOW_MS);
    assert!(block_on(client.delete(b"k")).unwrap(), "the value was there until then");
    // One whose time has come before is none.
    block_on(client.put(b"k", b"value", options())).unwrap();
    now_ms.set(EXPIRES_MS);
    assert!(!block_on(client.delete(b"k")).unwrap());
}

/// A batch takes the usual path with plain values only: of others it does not know when they end.
#[test]
fn a_batch_knows_when_a_value_expires() {
    let cluster = TestCluster::new(Plan::default());
    let client = cluster.client(0);
    let later = client.fabric().wall_ms() + 1_000_000;
    for (key, expires_at_ms) in [("ever", None), ("later", Some(later)), ("over", Some(1))] {
        let value = key.as_bytes();
        block_on(client.put(key.as_bytes(), value, PutOptions { expires_at_ms })).unwrap();
    }
    let keys = ["ever", "later", "over"];
    let mut seen = [None; 3];
    block_on(client.get_many(&keys, |key, found| {
        let value = found.map(|found| found.to_value());
        seen[key] = value.map(|it| (*it == *keys[key].as_bytes(), it.expires_at_ms()));
    }))
    .unwrap();
    assert_eq!(seen, [Some((true, None)), Some((true, Some(later))), None]);
    let mut contained = [false; 3];
    block_on(client.contains_many(&keys, |key, is_there| contained[key] = is_there)).unwrap();
    assert_eq!(contained, [true, true, false]);
    let mut deleted = [false; 3];
    block_on(client.delete_many(&keys, |key, was_there| deleted[key] = was_there)).unwrap();
    assert_eq!(deleted, [true, true, false]);
}

#[test]
fn a_delete_by_the_published_protocol_does_too() {
    let protocol = Protocol::Published { previous_versions: true };
    let cluster = TestCluster::new(Plan { protocol, ..Plan::default() });
    let now_ms = Rc::new(Cell::new(NOW_MS));
    let client = cluster.published_over(0, |inner| Late { inner, now_ms: now_ms.clone() });
    block_on(client.put(b"k", b"value", options())).unwrap();
    now_ms.set(NOW_MS);
    assert!(block_on(client.delete(b"k")).unwrap(), "the value was there until then");
    block_on(client.put(b"k", b"value", options())).unwrap();
    now_ms.set(EXPIRES_MS);
    assert!(!block_on(client.delete(b"k")).unwrap());
}
