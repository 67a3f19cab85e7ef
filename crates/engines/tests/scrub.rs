//! Which memory a scrub may free, and which not.

mod cluster;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use cluster::{Plan, TestCluster};
use loch_engines::EngineError;
use loch_engines::nessie::dte::{HEADER_BYTES, note_of};
use loch_engines::nessie::hash::Candidates;
use loch_engines::nessie::ite::{Ite, State};
use loch_engines::nessie::slab::{Chunk, FORMATTED_OFFSET, LARGE, SLAB_HEADER_BYTES, Slab};
use loch_engines::nessie::{Client, PutOptions, release_dead};
use loch_engines::region::EPOCH_OFFSET;
use loch_fabric::lanes::block_on;
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};

const WAIT_US: u64 = 1_000_000;
const FIRST: Slab = Slab { dti: 0, chunk: 0 };

fn set(client: &Client<ShmEndpoint>, at: RemoteAddr, word: u64) {
    let region = client.fabric().region(at.region()).unwrap();
    region.word(at.offset()).store(word, Ordering::Release);
}

fn load(client: &Client<ShmEndpoint>, at: RemoteAddr) -> u64 {
    client.fabric().load(at).unwrap()
}

fn chunk(client: &Client<ShmEndpoint>, at: u64) -> Chunk {
    Chunk::from_word(load(client, client.map().chunk_addr(0, at))).unwrap()
}

fn set_chunk(client: &Client<ShmEndpoint>, at: u64, chunk: Chunk) {
    set(client, client.map().chunk_addr(0, at), chunk.to_word());
}

/// A client takes two entries and dies; how many entries a scrub then frees, if `meanwhile` happens
/// when it has chosen its suspects and waits for its grace period.
fn freed(meanwhile: impl Fn(&Client<ShmEndpoint>)) -> u64 {
    let cluster = TestCluster::new(Plan::default());
    let dead = cluster.client(0);
    for key in [b"one", b"two"] {
        std::mem::forget(block_on(dead.reserve(key, 100, Default::default())).unwrap());
    }
    cluster.kill(dead.incarnation());
    let client = cluster.client(0);
    let epoch = || client.fabric().load(RemoteAddr::new(RegionId(0), EPOCH_OFFSET)).unwrap();
    let before = epoch();
    let mut scrub = pin!(client.scrub(0, WAIT_US));
    let mut cx = Context::from_waker(Waker::noop());
    let mut chosen = false;
    loop {
        if let Poll::Ready(done) = scrub.as_mut().poll(&mut cx) {
            assert!(chosen, "no suspect was found");
            return done.unwrap().freed;
        }
        if !chosen && epoch() != before {
            chosen = true;
            meanwhile(&client);
        }
    }
}

#[test]
fn what_a_dead_client_took_is_freed() {
    assert_eq!(freed(|_| ()), 2);
}

/// A client in the middle of an operation may still need the memory that is suspected.
#[test]
fn a_scrub_waits_for_operations_that_are_under_way_but_not_for_ever() {
    let cluster = TestCluster::new(Plan::default());
    let (dead, busy, client) = (cluster.client(0), cluster.client(0), cluster.client(0));
    std::mem::forget(block_on(dead.reserve(b"one", 100, Default::default())).unwrap());
    cluster.kill(dead.incarnation());
    let reserved = block_on(busy.reserve(b"two", 100, Default::default())).unwrap();
    let given_up = block_on(client.scrub(0, 1000));
    assert!(matches!(given_up, Err(EngineError::Timeout { timeout_us: 1000 })), "{given_up:?}");
    let mut scrub = pin!(client.scrub(0, WAIT_US));
    let mut cx = Context::from_waker(Waker::noop());
    let until = client.fabric().now_us() + 5000;
    while client.fabric().now_us() < until {
        assert!(scrub.as_mut().poll(&mut cx).is_pending());
    }
    drop(reserved);
    assert_eq!(block_on(scrub).unwrap().freed, 1);
}

/// Notes and count of a slab, read while it was cut anew, made a suspect of an entry that was never
/// used. It was freed, and then handed out twice: as a free one, and as a fresh one. The simulation
/// found it (workload `long`).
#[test]
fn an_entry_that_was_never_used_is_not_freed() {
    let used = |entries| {
        freed(move |client| {
            set(client, client.map().slab_addr(FIRST).add(FORMATTED_OFFSET), entries)
        })
    };
    assert_eq!((used(0), used(1), used(2)), (0, 1, 2));
}

/// A client had closed the slab for a moment, and opens it again: a scrub that met it closed forgot
/// its entries, and no other scrub came.
#[test]
fn an_entry_in_a_slab_that_a_client_has_closed_is_put_off() {
    let cluster = TestCluster::new(Plan::default());
    let (dead, client) = (cluster.client(0), cluster.client(0));
    std::mem::forget(block_on(dead.reserve(b"one", 100, Default::default())).unwrap());
    cluster.kill(dead.incarnation());
    let was = chunk(&client, 0);
    let Chunk::Leased { class, chunks, owner } = was else { panic!("{was:?}") };
    let scrub = || {
        let scrubbed = block_on(client.scrub(0, WAIT_US)).unwrap();
        (scrubbed.freed, scrubbed.put_off)
    };
    set_chunk(&client, 0, Chunk::Closing { class, chunks, owner });
    assert_eq!(scrub(), (0, 1));
    set_chunk(&client, 0, was);
    assert_eq!(scrub(), (1, 0));
}

/// The slab was taken apart, or cut for another class, while the scrubber waited.
#[test]
fn an_entry_is_freed_only_while_its_slab_is_cut_as_it_was() {
    type Becomes = fn(u8, u32) -> Chunk;
    let kinds: [(Becomes, u64); 7] = [
        (|class, chunks| Chunk::Leased { class, chunks, owner: 9 }, 2),
        (|class, chunks| Chunk::Abandoned { class, chunks, free_hint: 0 }, 2),
        (|class, chunks| Chunk::Seized { class, chunks, owner: 9 }, 2),
        (|class, chunks| Chunk::Closing { class, chunks, owner: 9 }, 0),
        (|class, chunks| Chunk::Forming { class, chunks, owner: 9 }, 0),
        (|class, chunks| Chunk::Leased { class: class + 1, chunks, owner: 9 }, 0),
        (|_, _| Chunk::Free, 0),
    ];
    for (becomes, expected) in kinds {
        let freed = freed(|client| {
            let Chunk::Leased { class, chunks, .. } = chunk(client, 0) else {
                panic!("the first slab is leased");
            };
            set_chunk(client, 0, becomes(class, chunks));
        });
        assert_eq!(freed, expected, "{:?}", becomes(0, 1));
    }
}

/// Its owner was alive after all, and has given the entry back, or used it again.
#[test]
fn an_entry_that_was_noted_or_used_again_meanwhile_is_not_freed() {
    let entry = |client: &Client<ShmEndpoint>, number| {
        let Chunk::Leased { class, chunks, .. } = chunk(client, 0) else {
            panic!("the first slab is leased");
        };
        let class = client.map().slab_class(0, class, chunks).unwrap();
        let at = client.map().slab_addr(FIRST).add(class.entry_at(number));
        (at, load(client, at))
    };
    // Notes are halves of a word.
    let notes = |of: [bool; 2]| {
        freed(move |client| {
            let note =
                |number| note_of(entry(client, number).1) as u64 * of[number as usize] as u64;
            let at = client.map().slab_addr(FIRST).add(SLAB_HEADER_BYTES);
            set(client, at, note(0) | note(1) << 32);
        })
    };
    assert_eq!((notes([true, false]), notes([false, true]), notes([true; 2])), (1, 1, 0));
    let used_again = freed(|client| {
        let (at, generation) = entry(client, 1);
        set(client, at, generation + 1);
    });
    assert_eq!(used_again, 1);
}

/// A client died with an insert that it had not committed, and with moves at each of their steps.
#[test]
fn what_dead_clients_left_undecided_in_the_index_is_decided() {
    let cluster = TestCluster::new(Plan::default());
    let client = cluster.client(0);
    let map = client.map();
    let codec = map.codec;
    let slots = |key: &[u8]| {
        let candidates = Candidates::of(map, key);
        let words = (0..candidates.count()).map(|c| Ite(load(&client, candidates.slot(c))));
        let words: Vec<Ite> = words.collect();
        let shown = words.iter().position(|word| codec.is_visible(*word)).unwrap();
        let free = words.iter().rposition(|word| codec.is_empty(*word)).unwrap();
        (candidates, shown, free, words)
    };
    let states = |key: &[u8], at_source: Option<State>, at_free: Option<State>| {
        block_on(client.put(key, key, PutOptions::default())).unwrap();
        let (candidates, shown, free, words) = slots(key);
        let word = words[shown];
        let (from, to) = (shown as u32, free as u32);
        let state = |state| match state {
            State::Frozen { hop, .. } => codec.with_state(word, State::Frozen { hop, to }),
            State::Copy { hop, .. } => codec.with_state(word, State::Copy { hop, from }),
            other => codec.with_state(word, other),
        };
        set(&client, candidates.slot(shown), at_source.map_or(Ite(0), state).0);
        if let Some(at_free) = at_free {
            set(&client, candidates.slot(free), state(at_free).0);
        }
        (shown, free)
    };
    let frozen = Some(State::Frozen { hop: 1, to: 0 });
    let copy = Some(State::Copy { hop: 1, from: 0 });
    states(b"tentative", Some(State::Tentative), None);
    let begun = states(b"begun", frozen, None);
    let copied = states(b"copied", frozen, copy);
    let dropped = states(b"dropped", None, copy);
    let class = map.classes.of(HEADER_BYTES + 2 * b"tentative".len());
    let scrubbed = block_on(client.scrub(0, WAIT_US)).unwrap();
    assert_eq!((scrubbed.entries, scrubbed.suspects), (4, 4));
    assert_eq!((scrubbed.tentative, scrubbed.moves), (1, 3));
    assert_eq!((scrubbed.freed, scrubbed.freed_bytes), (1, class.entry_bytes));
    let get = |key: &[u8]| block_on(client.get(key, Buf::new())).unwrap().map(|v| v.to_vec());
    assert_eq!(get(b"tentative"), None);
    for (key, slot) in [(&b"begun"[..], begun.0), (b"copied", copied.1), (b"dropped", dropped.1)] {
        assert_eq!(get(key).as_deref(), Some(key));
        let (_, shown, _, words) = slots(key);
        assert_eq!((shown, codec.state(words[shown])), (slot, State::Visible { hop: 1 }));
        assert_eq!(words.iter().filter(|word| !codec.is_empty(**word)).count(), 1);
    }
    let report = block_on(client.check()).unwrap();
    assert_eq!((report.broken, report.unshown), (Vec::new(), 0));
    let again = block_on(client.scrub(0, WAIT_US)).unwrap();
    assert_eq!((again.entries, again.suspects, again.freed), (3, 0, 0));
}

/// Memory that a dead session leased is free for others; a slab that it was making or taking
/// apart is free; what it was seizing waits for the scrubber; and what others have stays theirs.
#[test]
fn runs_of_a_dead_session_become_abandoned_or_free() {
    const DEAD: u32 = 77;
    const OTHER: u32 = 78;
    let cluster = TestCluster::new(Plan { table_bytes: 4 << 20, ..Plan::default() });
    let client = cluster.client(0);
    let map = client.map();
    let small = map.classes.of(100);
    let (id, chunks) = (small.id, small.chunks);
    assert_eq!(chunks, 1);
    let leased = |owner| Chunk::Leased { class: id, chunks, owner };
    let tail = |back| Chunk::Tail { back };
    let run = |head, tails: u32| std::iter::once(head).chain((1..=tails).map(tail)).collect();
    let closing = |owner| Chunk::Closing { class: LARGE, chunks: 5, owner };
    let forming = |owner| Chunk::Forming { class: LARGE, chunks: 5, owner };
    let large = Chunk::Leased { class: LARGE, chunks: 5, owner: DEAD };
    let abandoned = |class, chunks, free_hint| Chunk::Abandoned { class, chunks, free_hint };
    let free = |chunks| vec![Chunk::Free; chunks];
    let stays = |run: Vec<Chunk>| (run.clone(), run);
    let runs: Vec<(Vec<Chunk>, Vec<Chunk>)> = vec![
        (vec![leased(DEAD)], vec![abandoned(id, chunks, small.entries)]),
        stays(vec![leased(OTHER)]),
        (run(large, 4), run(abandoned(LARGE, 5, 1), 4)),
        (run(closing(DEAD), 4), run(abandoned(LARGE, 5, 1), 4)),
        stays(run(closing(OTHER), 4)),
        (run(forming(DEAD), 4), free(5)),
        // The next run came into its way.
        (run(forming(DEAD), 2), free(3)),
        stays(run(forming(OTHER), 2)),
        // The last ones are free again already.
        ([run(closing(DEAD), 1), free(3)].concat(), free(5)),
        // Behind the first tail that is missing, nothing is the run's.
        (
            vec![forming(DEAD), tail(1), Chunk::Free, tail(3)],
            vec![Chunk::Free, Chunk::Free, Chunk::Free, tail(3)],
        ),
        stays(vec![Chunk::Seized { class: id, chunks, owner: DEAD }]),
        stays(vec![abandoned(id, chunks, DEAD)]),
    ];
    let (before, after): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let (mut before, mut after) = (before.concat(), after.concat());
    // The last chunk heads a run that would end behind the data table.
    let all = map.shape.geometry.chunks as usize;
    before.resize(all - 1, Chunk::Free);
    after.resize(all, Chunk::Free);
    before.push(forming(DEAD));
    before.iter().enumerate().for_each(|(at, chunk)| set_chunk(&client, at as u64, *chunk));
    let heads = before.iter().filter(|chunk| match chunk {
        Chunk::Leased { owner, .. }
        | Chunk::Closing { owner, .. }
        | Chunk::Forming { owner, .. } => *owner == DEAD,
        _ => false,
    });
    let released = block_on(release_dead(client.fabric(), map, 0, DEAD)).unwrap();
    assert_eq!(released, heads.count() as u64);
    for (at, expected) in after.iter().enumerate() {
        assert_eq!(chunk(&client, at as u64), *expected, "chunk {at}, before {:?}", before[at]);
    }
}

/// Sessions are those of all nodes, in whatever slot they are.
#[test]
fn slabs_that_a_dead_session_was_seizing_are_abandoned_and_those_of_the_living_stay() {
    let cluster = TestCluster::new(Plan { nodes: 2, table_bytes: 4 << 20, ..Plan::default() });
    let scrubber = cluster.client(0);
    let others = [cluster.client(0), cluster.client(0), cluster.client(1), cluster.client(1)];
    let class = scrubber.map().classes.of(100);
    let seized = |owner| Chunk::Seized { class: class.id, chunks: class.chunks, owner };
    let owners: Vec<u32> = others.iter().map(|other| other.incarnation() as u32).collect();
    let all = owners.iter().copied().chain([1000, 0]);
    all.enumerate().for_each(|(at, owner)| set_chunk(&scrubber, at as u64, seized(owner)));
    block_on(scrubber.scrub(0, WAIT_US)).unwrap();
    for (at, owner) in owners.iter().enumerate() {
        assert_eq!(chunk(&scrubber, at as u64), seized(*owner));
    }
    for at in owners.len()..owners.len() + 2 {
        let chunks = class.chunks;
        let abandoned = Chunk::Abandoned { class: class.id, chunks, free_hint: class.entries };
        assert_eq!(chunk(&scrubber, at as u64), abandoned);
    }
}

/// The scrubber gives back slabs whose session ended while it was seizing them. It read the
/// sessions first, and then the descriptors: a session that began in between and seized a slab
/// seemed to have ended, and its slab was abandoned under it, open for others without the grace
/// period it waits for.
#[test]
fn a_slab_that_a_new_session_seizes_during_a_scrub_stays_its_own() {
    let mut steps = 0;
    loop {
        let cluster = TestCluster::new(Plan::default());
        let owner = cluster.client(0);
        block_on(owner.put(b"key", b"value", PutOptions::default())).unwrap();
        let table = owner.map().chunk_addr(0, 0);
        let region = owner.fabric().region(table.region()).unwrap();
        let descriptor = region.word(table.offset());
        let Some(Chunk::Leased { class, chunks, .. }) =
            Chunk::from_word(descriptor.load(Ordering::Acquire))
        else {
            panic!("the first slab is leased");
        };
        let scrubber = cluster.client(0);
        let mut scrub = pin!(scrubber.scrub(0, WAIT_US));
        let mut cx = Context::from_waker(Waker::noop());
        let ended = (0..steps).any(|_| scrub.as_mut().poll(&mut cx).is_ready());
        if ended {
            break;
        }
        let thief = cluster.client(0);
        let seized = Chunk::Seized { class, chunks, owner: thief.incarnation() as u32 }.to_word();
        descriptor.store(seized, Ordering::Release);
        block_on(scrub).unwrap();
        let now = Chunk::from_word(descriptor.load(Ordering::Acquire));
        assert_eq!(now, Chunk::from_word(seized), "seized after {steps} steps of the scrub");
        steps += 1;
    }
    assert!(steps > 3, "a scrub takes more steps than {steps}");
}
