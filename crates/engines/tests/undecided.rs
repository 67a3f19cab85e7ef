//! A writer meets words that other clients, which may be dead, left undecided in a key's slots.
//! The words are put there by hand: so each is in the slot, and comes at the moment, that a rule is
//! about.

mod cluster;

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::limits::PATIENCE_US;
use loch_engines::nessie::geometry::Options;
use loch_engines::nessie::hash::Candidates;
use loch_engines::nessie::ite::{Ite, State};
use loch_engines::nessie::{Client, PutOptions};
use loch_engines::operation::Version;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};

const KEY: &[u8] = b"key";
const EMPTY: Ite = Ite(0);

/// The two ways to insert a key.
#[derive(Clone, Copy, Debug)]
enum Way {
    Alone,
    InBatch,
}

const WAYS: [Way; 2] = [Way::Alone, Way::InBatch];

struct Slots {
    client: Client<ShmEndpoint>,
    candidates: Candidates,
    /// A word of another key, which is in the way.
    foreign: Ite,
    /// The word of an entry of the key that is in no slot.
    own: Ite,
}

impl Slots {
    fn new() -> Self {
        Self::of(&TestCluster::new(Plan::default()))
    }

    fn of(cluster: &TestCluster) -> Self {
        let client = cluster.client(0);
        let word_of = |key: &[u8]| {
            block_on(client.put(key, b"left", PutOptions::default())).unwrap();
            let candidates = Candidates::of(client.map(), key);
            let slots = (0..candidates.count()).map(|slot| candidates.slot(slot));
            let mut words = slots.map(|at| (at, Ite(client.fabric().load(at).unwrap())));
            let is_empty = |word| client.map().codec.is_empty(word);
            let (at, word) = words.find(|(_, word)| !is_empty(*word)).unwrap();
            client
                .fabric()
                .region(at.region())
                .unwrap()
                .word(at.offset())
                .store(0, Ordering::Release);
            word
        };
        let (foreign, own) = (word_of(b"another key"), word_of(KEY));
        let candidates = Candidates::of(client.map(), KEY);
        Self { client, candidates, foreign, own }
    }

    fn set(&self, slot: usize, word: Ite) {
        let at = self.candidates.slot(slot);
        let region = self.client.fabric().region(at.region()).unwrap();
        region.word(at.offset()).store(word.0, Ordering::Release);
    }

    fn tentative(&self) -> Ite {
        self.client.map().codec.with_state(self.own, State::Tentative)
    }

    /// The slots that hold neither nothing nor what is in the way.
    fn taken(&self) -> Vec<(usize, Ite)> {
        let words = (0..self.candidates.count()).map(|slot| {
            (slot, Ite(self.client.fabric().load(self.candidates.slot(slot)).unwrap()))
        });
        words
            .filter(|(_, word)| !self.client.map().codec.is_empty(*word) && *word != self.foreign)
            .collect()
    }

    fn put(&self) -> Result<Version, EngineError> {
        block_on(self.client.put(KEY, b"new", PutOptions::default()))
    }

    /// Puts the key in one of the two ways, and does `then` once the put's own tentative word is in
    /// a slot.
    fn put_and(&self, way: Way, then: impl Fn(&Self)) {
        let mut put: Pin<Box<dyn Future<Output = _>>> = match way {
            Way::Alone => {
                let put = self.client.put(KEY, b"new", PutOptions::default());
                Box::pin(async { put.await.map(drop) })
            }
            Way::InBatch => Box::pin(self.client.put_many(&[(KEY, b"new")], |_, _| ())),
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut done = false;
        loop {
            if let Poll::Ready(result) = put.as_mut().poll(&mut cx) {
                result.unwrap();
                break;
            }
            let state = |word| self.client.map().codec.state(word);
            if !done && self.taken().iter().any(|(_, word)| state(*word) == State::Tentative) {
                done = true;
                then(self);
            }
        }
        assert!(done, "it was to be tentative");
    }

    /// The key has the new value, in one slot and for good: in this one.
    fn assert_shown(&self, slot: usize) {
        let taken = self.taken();
        let [(at, word)] = taken[..] else { panic!("{taken:?}") };
        assert_eq!((at, self.client.map().codec.state(word)), (slot, State::Visible { hop: 0 }));
        let value = block_on(self.client.get(KEY, Buf::new())).unwrap();
        assert_eq!(value.as_deref(), Some(&b"new"[..]));
    }

    fn retries(&self) -> u64 {
        self.client.counts().retries.get()
    }
}

#[test]
fn an_insert_waits_for_a_tentative_one_in_a_lower_slot_but_not_for_ever() {
    let slots = Slots::new();
    slots.set(0, slots.foreign);
    slots.set(1, slots.tentative());
    let began = slots.client.fabric().now_us();
    slots.put().unwrap();
    assert!(slots.client.fabric().now_us() - began >= PATIENCE_US);
    assert!(slots.retries() > 0);
    let shown = slots.taken()[0].0;
    assert!(shown == 1 || shown == 2, "in the first free slot, before or after");
    slots.assert_shown(shown);
}

#[test]
fn an_insert_removes_a_tentative_one_in_a_higher_slot_at_once() {
    let slots = Slots::new();
    slots.set(0, slots.foreign);
    slots.set(slots.candidates.count() - 1, slots.tentative());
    slots.put().unwrap();
    slots.assert_shown(1);
    assert_eq!(slots.retries(), 0);
}

#[test]
fn an_insert_at_home_removes_a_tentative_one_elsewhere() {
    let slots = Slots::new();
    slots.set(3, slots.tentative());
    slots.put().unwrap();
    slots.assert_shown(0);
    assert_eq!(slots.retries(), 0);
}

#[test]
fn a_tentative_insert_in_the_last_slot_there_is_makes_room() {
    let slots = Slots::new();
    (0..slots.candidates.count()).for_each(|slot| slots.set(slot, slots.foreign));
    slots.set(5, slots.tentative());
    slots.put().unwrap();
    slots.assert_shown(5);
    assert_eq!(slots.retries(), 1);
}

/// Home must be used while it is free: whoever inserts there looks only once for others.
#[test]
fn a_tentative_insert_gives_way_when_its_home_becomes_free() {
    for way in WAYS {
        let slots = Slots::new();
        slots.set(0, slots.foreign);
        slots.put_and(way, |slots| slots.set(0, EMPTY));
        slots.assert_shown(0);
    }
}

/// Another insert was committed between our look at the slots and our tentative word.
#[test]
fn a_tentative_insert_gives_way_to_a_value() {
    for (way, slot) in WAYS.into_iter().flat_map(|way| [0, 2, 7].map(|slot| (way, slot))) {
        let slots = Slots::new();
        slots.set(0, slots.foreign);
        slots.put_and(way, |slots| slots.set(slot, slots.own));
        slots.assert_shown(slot);
    }
}

/// Somebody took the insert for a dead one's: it certainly had no effect, and begins again.
#[test]
fn a_tentative_insert_that_was_removed_begins_again() {
    for way in WAYS {
        let slots = Slots::new();
        slots.set(0, slots.foreign);
        slots.put_and(way, |slots| {
            let (slot, _) = slots.taken()[0];
            slots.set(slot, EMPTY);
        });
        slots.assert_shown(1);
    }
}

/// Its entry goes on with the next generation, so that the word that was removed never comes back;
/// where the short generation would start over, another entry does.
#[test]
fn an_insert_that_begins_again_uses_no_word_twice() {
    for way in WAYS {
        let mut others = 0;
        for left in 1..12 {
            let cluster = TestCluster::new(Plan::default());
            cluster.set_stamps(cluster.map.shape.bits.gen_bits, left);
            let slots = Slots::of(&cluster);
            slots.set(0, slots.foreign);
            let removed = Cell::new(EMPTY);
            slots.put_and(way, |slots| {
                let (slot, word) = slots.taken()[0];
                removed.set(word);
                slots.set(slot, EMPTY);
            });
            slots.assert_shown(1);
            let (codec, [was, is]) = (&cluster.map.codec, [removed.get(), slots.word(1)]);
            if codec.place(is) == codec.place(was) {
                let has_grown = codec.generation(is) > codec.generation(was);
                assert!(has_grown, "{way:?}, {left} stamps before the wrap");
            } else {
                others += 1;
            }
        }
        assert!((1..3).contains(&others), "{way:?}: {others} of them took another entry");
    }
}

/// The word that it lost its CAS to is no PUT's value: a move of the one that it found, or one its
/// owner may never show.
#[test]
fn a_put_that_loses_to_no_value_begins_again() {
    // Between its look and its CAS it waits.
    let options = Options { cache: Some(false), batched_reads: Some(true), ..Options::default() };
    for is_moved in [true, false] {
        for steps in 0.. {
            let slots = Slots::of(&TestCluster::new(Plan { options, ..Plan::default() }));
            block_on(slots.client.put(KEY, b"a later insert", PutOptions::default())).unwrap();
            let [(at, later)] = slots.taken()[..] else { panic!("it is in one slot") };
            slots.set(at, slots.own);
            let mut put = pin!(slots.client.put(KEY, b"new", PutOptions::default()));
            let mut cx = Context::from_waker(Waker::noop());
            if !(0..steps).all(|_| put.as_mut().poll(&mut cx).is_pending())
                || slots.word(at) != slots.own
            {
                assert!(steps > 1, "it takes more steps than {steps}");
                break;
            }
            let inserted = slots.client.map().codec.with_state(later, State::Tentative);
            let moved = slots.state(State::Visible { hop: 1 });
            slots.set(at, if is_moved { moved } else { inserted });
            block_on(put).unwrap();
            let value = block_on(slots.client.get(KEY, Buf::new())).unwrap();
            assert_eq!((value.as_deref(), slots.taken().len()), (Some(&b"new"[..]), 1));
        }
    }
}

/// A word that is not its entry's looks, at every look, as if it was about to change.
#[test]
fn an_insert_does_not_look_for_ever_at_a_word_that_lies() {
    let slots = Slots::new();
    slots.set(0, slots.foreign);
    slots.set(1, Ite(slots.tentative().0 ^ 1 << slots.client.map().shape.bits.gen_at));
    let timed_out = slots.put();
    assert!(matches!(timed_out, Err(EngineError::Timeout { .. })), "{timed_out:?}");
    assert_eq!(slots.taken().len(), 1, "it has left nothing");
}

/// A client whose index has sixteen slots.
fn tiny() -> Client<ShmEndpoint> {
    TestCluster::new(Plan { tiny_index: Some(4), ..Plan::default() }).client(0)
}

/// Where they are, and what they hold.
fn words(client: &Client<ShmEndpoint>) -> Vec<(RemoteAddr, Ite)> {
    let first = client.map().shards()[0];
    let at = (0..16).map(|slot| first.add(slot * 8));
    at.map(|at| (at, Ite(client.fabric().load(at).unwrap()))).collect()
}

/// Puts keys until there is no slot for one; those that have one.
fn fill(client: &Client<ShmEndpoint>) -> Vec<u8> {
    let store = |key: u8| match block_on(client.put(&[key], &[key], PutOptions::default())) {
        Ok(_) => true,
        Err(EngineError::IndexFull { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    (0..64u8).filter(|key| store(*key)).collect()
}

/// A tentative word of a dead client in a full index is in the way of others' keys too.
#[test]
fn a_tentative_word_of_any_key_makes_room_in_a_full_index() {
    let client = tiny();
    assert_eq!(fill(&client).len(), 16);
    for n in 0..16u8 {
        let (at, word) = words(&client)[n as usize];
        let tentative = client.map().codec.with_state(word, State::Tentative);
        client
            .fabric()
            .region(at.region())
            .unwrap()
            .word(at.offset())
            .store(tentative.0, Ordering::Release);
        block_on(client.put(&[100 + n], b"new", PutOptions::default())).unwrap();
        let value = block_on(client.get(&[100 + n], Buf::new())).unwrap();
        assert_eq!(value.as_deref(), Some(&b"new"[..]));
        let visible =
            words(&client).iter().filter(|(_, w)| client.map().codec.is_visible(*w)).count();
        assert_eq!(visible, 16);
    }
}

/// A move that a dead client began does not keep others waiting, and its value stays.
#[test]
fn a_move_that_was_begun_is_decided_when_the_index_is_full() {
    for begun in [true, false] {
        let client = tiny();
        block_on(client.put(b"moving", b"stays", PutOptions::default())).unwrap();
        let codec = client.map().codec;
        let (at, word) = *words(&client).iter().find(|(_, w)| codec.is_visible(*w)).unwrap();
        let other = if Candidates::of(client.map(), b"moving").slot(0) == at { 1 } else { 0 };
        let state = match begun {
            true => State::Frozen { hop: 1, to: other },
            false => State::Copy { hop: 1, from: other },
        };
        let left = codec.with_state(word, state);
        client
            .fabric()
            .region(at.region())
            .unwrap()
            .word(at.offset())
            .store(left.0, Ordering::Release);
        let stored = fill(&client);
        assert_eq!(stored.len(), 15);
        let undecided = |(_, word): &(_, Ite)| !matches!(codec.state(*word), State::Visible { .. });
        assert!(!words(&client).iter().any(undecided));
        let get = |key: &[u8]| block_on(client.get(key, Buf::new())).unwrap().map(|v| v.to_vec());
        assert_eq!(get(b"moving").as_deref(), Some(&b"stays"[..]));
        assert!(stored.iter().all(|key| get(&[*key]) == Some(vec![*key])));
    }
}

impl Slots {
    fn state(&self, state: State) -> Ite {
        self.client.map().codec.with_state(self.own, state)
    }

    fn frozen(&self, to: usize) -> Ite {
        self.state(State::Frozen { hop: 1, to: to as u32 })
    }

    fn copy(&self, from: usize) -> Ite {
        self.state(State::Copy { hop: 1, from: from as u32 })
    }

    fn word(&self, slot: usize) -> Ite {
        Ite(self.client.fabric().load(self.candidates.slot(slot)).unwrap())
    }

    fn is_empty(&self, slot: usize) -> bool {
        self.client.map().codec.is_empty(self.word(slot))
    }
}

/// Between copy and drop the mover, and whoever completes its move, looks at all other slots of the
/// key: a tentative insert goes, for it may have seen the value nowhere; a free home gets a new
/// tag, for an insert there expects the old one; all else stays.
#[test]
fn a_writer_completes_a_move_whose_copy_is_in_place() {
    for (source, copy) in [(2, 5), (5, 2)] {
        let slots = Slots::new();
        slots.set(source, slots.frozen(copy));
        slots.set(copy, slots.copy(source));
        slots.set(7, slots.tentative());
        slots.set(8, slots.foreign);
        let foreign = slots.client.map().codec.with_state(slots.foreign, State::Tentative);
        slots.set(9, foreign);
        slots.put().unwrap();
        assert_eq!(slots.word(8), slots.foreign);
        assert_eq!(slots.word(9), foreign, "a tentative word of another key");
        slots.set(9, EMPTY);
        slots.assert_shown(copy);
        assert!(slots.is_empty(0) && slots.word(0) != EMPTY, "home has a new tag");
        assert!([1, 3, 4, 6, 10].iter().all(|slot| slots.word(*slot) == EMPTY));
        assert!(slots.client.counts().helped.get() > 0);
    }
}

/// The tentative word is replaced by another insert's, before the mover has removed it.
#[test]
fn a_mover_removes_a_tentative_word_that_changes_under_its_hands() {
    let mut steps = 0;
    loop {
        let slots = Slots::new();
        block_on(slots.client.put(KEY, b"a later insert", PutOptions::default())).unwrap();
        let [(at, later)] = slots.taken()[..] else { panic!("it is in one slot") };
        slots.set(at, EMPTY);
        slots.set(2, slots.frozen(5));
        slots.set(5, slots.copy(2));
        slots.set(7, slots.tentative());
        let mut put = pin!(slots.client.put(KEY, b"new", PutOptions::default()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!((0..steps).all(|_| put.as_mut().poll(&mut cx).is_pending()));
        if slots.word(7) != slots.tentative() {
            break;
        }
        slots.set(7, slots.client.map().codec.with_state(later, State::Tentative));
        block_on(put).unwrap();
        slots.assert_shown(5);
        steps += 1;
    }
    assert!(steps > 3, "it takes more steps than {steps}");
}

/// The copy was never made: the value stays where it is, and a mover that is only slow can no
/// longer make it.
#[test]
fn a_writer_undoes_a_move_whose_copy_is_not_in_place() {
    let slots = Slots::new();
    slots.set(2, slots.frozen(5));
    slots.put().unwrap();
    slots.assert_shown(2);
    assert!(slots.is_empty(5) && slots.word(5) != EMPTY, "the destination has a new tag");
    // Somebody has taken the destination.
    let slots = Slots::new();
    slots.set(2, slots.frozen(5));
    slots.set(5, slots.foreign);
    slots.put().unwrap();
    slots.assert_shown(2);
    assert_eq!(slots.word(5), slots.foreign);
}

#[test]
fn a_writer_shows_a_copy_whose_source_is_gone() {
    let slots = Slots::new();
    slots.set(5, slots.copy(2));
    slots.put().unwrap();
    slots.assert_shown(5);
}

#[test]
fn a_mover_does_not_look_for_ever_at_a_word_that_lies() {
    let slots = Slots::new();
    slots.set(2, slots.frozen(5));
    slots.set(5, slots.copy(2));
    slots.set(7, Ite(slots.tentative().0 ^ 1 << slots.client.map().shape.bits.gen_at));
    let timed_out = slots.put();
    assert!(matches!(timed_out, Err(EngineError::Timeout { .. })), "{timed_out:?}");
    assert_eq!((slots.word(2), slots.word(5)), (slots.frozen(5), slots.copy(2)));
}

/// A slot's free word has another tag whenever somebody is about to change it, for half a minute.
struct Restless {
    inner: ShmEndpoint,
    at: Cell<Option<RemoteAddr>>,
    until_us: u64,
}

impl Fabric for Restless {
    loch_fabric::pass_on!(
        caps counters read_words read_bucket read read_word_and_bytes fetch_add write_unsignaled
        write
        is_mapped store store_before store_after announce load reload raw posted is_settled
        now_us wall_ms random pause => inner
    );

    fn compare_swap(
        &self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        if self.at.get() == Some(at) && self.inner.now_us() < self.until_us {
            let region = self.inner.region(at.region()).unwrap();
            region.word(at.offset()).fetch_add(1 << 32, Ordering::AcqRel);
        }
        self.inner.compare_swap(at, expect, new)
    }
}

#[test]
fn whoever_undoes_a_move_does_not_fight_for_ever_for_its_destination() {
    let cluster = TestCluster::new(Plan::default());
    let slots = Slots::of(&cluster);
    slots.set(2, slots.frozen(5));
    let client = cluster.client_over(0, |inner| {
        let until_us = inner.now_us() + 30_000_000;
        Restless { inner, at: Cell::new(Some(slots.candidates.slot(5))), until_us }
    });
    let timed_out = block_on(client.put(KEY, b"new", PutOptions::default()));
    assert!(matches!(timed_out, Err(EngineError::Timeout { .. })), "{timed_out:?}");
    assert!(slots.is_empty(5) && slots.word(2) == slots.frozen(5));
    client.fabric().at.set(None);
    block_on(client.put(KEY, b"new", PutOptions::default())).unwrap();
    slots.assert_shown(2);
}
