//! Maps inside one process: what an operation costs that nobody else can see.
//!
//! `papaya` is a concurrent map, `hashbrown` is not even that. Both hash by their fastest hasher,
//! which is hashbrown's own. Keys and values of the default sizes lie in the map's entries, as a
//! program with such keys would have them; others are boxed. GETs copy the value out, as GETs of
//! every other store do. One process can have such a map, so only one client is measured.
//!
//! Operations are done in batches, as nessie's are: keys and values are made before the first look
//! into the map, and results are counted after the last, so that the processor overlaps the
//! look-ups of a batch as well as it can. The map's memory has huge pages, as that of nodes has,
//! where the C library can ask for them (`fleet.rs`).

use std::borrow::Borrow;
use std::hash::Hash;
use std::ops::Range;

use hashbrown::DefaultHashBuilder;

use super::{Endpoint, Result, Service, Target};
use crate::error::TargetError;
use crate::measure::{Kind, Op, Outcome, Run};
use crate::spec::Spec;
use crate::workload::Workload;

/// The sizes of keys and values that lie in the entries.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
/// Operations of a batch, which share a guard of papaya's.
const BATCH_OPS: usize = 32;
/// Records loaded between two reports of progress.
const LOAD_BATCH: u64 = 1 << 16;
/// One operation in this many is timed: an operation costs little more than the clock.
const TIME_EVERY: u32 = 29;

/// A map lives in its client.
pub struct Nowhere;

impl Nowhere {
    /// Checks that one client is measured.
    pub fn create(peer: &'static str, spec: &Spec) -> Result<Self> {
        if spec.clients == 1 {
            return Ok(Nowhere);
        }
        let reason = "its map is inside one process: measure it with --clients 1".into();
        Err(TargetError::Unsuitable { peer, reason })
    }
}

impl Service for Nowhere {
    fn endpoint(&self) -> Endpoint {
        Endpoint::default()
    }

    fn cpu_seconds(&self) -> Option<f64> {
        None
    }
}

/// A client with a `papaya` map.
pub fn papaya(spec: &Spec) -> Box<dyn Target> {
    match is_inline(spec) {
        true => Box::new(Client::<Papaya<[u8; KEY_BYTES], [u8; VALUE_BYTES]>>::new(spec)),
        false => Box::new(Client::<Papaya<Box<[u8]>, Box<[u8]>>>::new(spec)),
    }
}

/// A client with a `hashbrown` map.
pub fn hashbrown(spec: &Spec) -> Box<dyn Target> {
    match is_inline(spec) {
        true => Box::new(Client::<Brown<[u8; KEY_BYTES], [u8; VALUE_BYTES]>>::new(spec)),
        false => Box::new(Client::<Brown<Box<[u8]>, Box<[u8]>>>::new(spec)),
    }
}

fn is_inline(spec: &Spec) -> bool {
    (spec.key_size, spec.value_size) == (KEY_BYTES, VALUE_BYTES)
}

/// Bytes as they lie in an entry.
trait Bytes: Borrow<Self::Like> + Hash + Eq {
    /// What a key is looked up by.
    type Like: Hash + Eq + ?Sized;

    /// A copy of bytes, which have the workload's size.
    fn of(bytes: &[u8]) -> Self;

    /// The bytes as a key to look up.
    fn like(bytes: &[u8]) -> &Self::Like;

    /// The bytes.
    fn bytes(&self) -> &[u8];
}

impl<const N: usize> Bytes for [u8; N] {
    type Like = [u8; N];

    #[inline]
    fn of(bytes: &[u8]) -> Self {
        *Self::like(bytes)
    }

    #[inline]
    fn like(bytes: &[u8]) -> &[u8; N] {
        bytes.try_into().expect("the map was chosen by the sizes")
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for Box<[u8]> {
    type Like = [u8];

    #[inline]
    fn of(bytes: &[u8]) -> Self {
        bytes.into()
    }

    #[inline]
    fn like(bytes: &[u8]) -> &[u8] {
        bytes
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A map as the bench uses it.
trait Map {
    /// The map for the operations of one batch.
    type Pinned<'a>: Pinned
    where
        Self: 'a;

    /// Begins a batch: memory that was freed is kept until it ends.
    fn pin(&mut self) -> Self::Pinned<'_>;
}

/// The operations of a batch.
trait Pinned {
    /// Copies the key's value into `value`, and returns whether there is one.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool;

    /// Stores a value.
    fn put(&mut self, key: &[u8], value: &[u8]);
}

type Papaya<K, V> = papaya::HashMap<K, V, DefaultHashBuilder>;
type Brown<K, V> = hashbrown::HashMap<K, V, DefaultHashBuilder>;

impl<K: Bytes, V: Bytes> Map for Papaya<K, V> {
    type Pinned<'a>
        = papaya::HashMapRef<'a, K, V, DefaultHashBuilder, papaya::LocalGuard<'a>>
    where
        Self: 'a;

    fn pin(&mut self) -> Self::Pinned<'_> {
        papaya::HashMap::pin(self)
    }
}

impl<K: Bytes, V: Bytes> Pinned
    for papaya::HashMapRef<'_, K, V, DefaultHashBuilder, papaya::LocalGuard<'_>>
{
    #[inline]
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool {
        copy(papaya::HashMapRef::get(self, K::like(key)), value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.insert(K::of(key), V::of(value));
    }
}

impl<K: Bytes, V: Bytes> Map for Brown<K, V> {
    type Pinned<'a>
        = &'a mut Self
    where
        Self: 'a;

    #[inline]
    fn pin(&mut self) -> &mut Self {
        self
    }
}

impl<K: Bytes, V: Bytes> Pinned for &mut Brown<K, V> {
    #[inline]
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool {
        copy(hashbrown::HashMap::get(self, K::like(key)), value)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.insert(K::of(key), V::of(value));
    }
}

#[inline]
fn copy(found: Option<&impl Bytes>, value: &mut Vec<u8>) -> bool {
    value.clear();
    found.is_some_and(|found| {
        value.extend_from_slice(found.bytes());
        true
    })
}

/// A client, and its map.
struct Client<M> {
    map: M,
    batch: Vec<Slot>,
}

/// An operation's place in a batch.
#[derive(Clone)]
struct Slot {
    op: Op,
    key: Vec<u8>,
    /// The value to store, or the one that was found.
    value: Vec<u8>,
    is_found: bool,
}

impl<M: Map + Default> Client<M> {
    fn new(spec: &Spec) -> Self {
        let (key, value) = (vec![0; spec.key_size], vec![0; spec.value_size]);
        let op = Op::load(0, spec.value_size);
        let slot = Slot { op, key, value, is_found: false };
        Client { map: M::default(), batch: vec![slot; BATCH_OPS] }
    }
}

impl<M: Map> Target for Client<M> {
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let slot = &mut self.batch[0];
        for (done, record) in (1..).zip(records) {
            slot.prepare(workload, Op::load(record, workload.value_size()));
            slot.operate(&mut self.map.pin());
            if done % LOAD_BATCH == 0 {
                progress(done);
            }
        }
        Ok(())
    }

    fn run(&mut self, run: &Run<'_>) -> Result<()> {
        loop {
            let mut taken = 0;
            while taken < BATCH_OPS
                && let Some(op) = run.next()
            {
                self.batch[taken].prepare(run.workload(), op);
                taken += 1;
            }
            if taken == 0 {
                return Ok(());
            }
            let batch = &mut self.batch[..taken];
            let mut map = self.map.pin();
            batch.iter_mut().for_each(|slot| slot.operate(&mut map));
            batch.iter().for_each(|slot| run.finish(&slot.op, slot.outcome()));
        }
    }

    fn batches(&self) -> bool {
        true
    }

    fn time_every(&self) -> u32 {
        TIME_EVERY
    }
}

impl Slot {
    #[inline]
    fn prepare(&mut self, workload: &Workload, op: Op) {
        self.op = op;
        workload.write_key(op.record, &mut self.key);
        if op.kind == Kind::Put {
            self.value.resize(workload.value_size(), 0);
            workload.write_value(op.record, op.version, &mut self.value);
        }
    }

    #[inline]
    fn operate(&mut self, map: &mut impl Pinned) {
        match self.op.kind {
            Kind::Get => self.is_found = map.get(&self.key, &mut self.value),
            Kind::Put => map.put(&self.key, &self.value),
        }
    }

    #[inline]
    fn outcome(&self) -> Outcome<'_> {
        match (self.op.kind, self.is_found) {
            (Kind::Get, true) => Outcome::Found(&self.value),
            (Kind::Get, false) => Outcome::Missing,
            (Kind::Put, _) => Outcome::Stored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;
    use crate::measure::Budget;
    use crate::measure::tests::with_run;

    #[test]
    fn every_map_of_every_size_holds_what_was_put() {
        for sizes in ["", "--value-size 9", "--key-size 40"] {
            let line = format!("--records 500 --ops 3000 --reads 0.5 --verify {sizes}");
            let spec = spec(&line).unwrap();
            for mut client in [papaya(&spec), hashbrown(&spec)] {
                client.load(&Workload::new(&spec), 0..500, &mut |_| ()).unwrap();
                let budget = Budget { ops: 3000, ns: u64::MAX };
                let (tally, _) = with_run(&line, budget, 1, |run| client.run(run).unwrap());
                assert_eq!((tally.gets + tally.puts, tally.wrong_values), (3000, 0), "{line}");
                assert_eq!(tally.gets, tally.get_hits, "{line}");
            }
        }
    }

    #[test]
    fn a_map_has_one_client() {
        let refused = Nowhere::create("papaya", &spec("--clients 2").unwrap());
        let text = refused.err().expect("two processes have two maps").to_string();
        assert!(text.contains("papaya") && text.contains("--clients 1"), "{text}");
    }
}
