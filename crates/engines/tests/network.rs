//! The errors of operations when the network fails in the middle of them, on the simulated fabric.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use loch_engines::epoch::{Grace, Session};
use loch_engines::nessie::geometry::{Geometry, Options};
use loch_engines::nessie::hash::{Candidates, TableMap};
use loch_engines::nessie::ite::Ite;
use loch_engines::nessie::slab::{Chunk, Slab};
use loch_engines::nessie::{CacheLimits, Client, ExpiryWalk, PutOptions};
use loch_engines::operation::{Expect, Operation, Version};
use loch_engines::region::{session_addr, session_left_addr, tables_offset};
use loch_engines::scan::Cursor;
use loch_engines::{EngineError, Kv};
use loch_fabric::sim::{Faults, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Caps, Fabric, RegionId, RemoteAddr, VerbCount};

const HERE: RegionId = RegionId(0);
const THERE: RegionId = RegionId(1);

/// Two nodes, and a client on each.
fn two_nodes() -> (World, [Client<SimEndpoint>; 2]) {
    two_nodes_of(Profile::CONNECTX_3_56.caps)
}

/// The same over a fabric that can do this.
fn two_nodes_of(caps: Caps) -> (World, [Client<SimEndpoint>; 2]) {
    two_nodes_with(caps, Options::default())
}

/// The same with a table of these options.
fn two_nodes_with(caps: Caps, options: Options) -> (World, [Client<SimEndpoint>; 2]) {
    let options = Options { checksums: true, ..options };
    let slots = if options.evicts { 3 } else { 4 };
    let geometry = Geometry::plan(2, 16 << 20, 1 << 12, 3, slots, 1 << 20, options).unwrap();
    let shape = geometry.validate().unwrap();
    let offset = tables_offset(4);
    let profile = Profile { retry_ns: 1_000_000, caps, ..Profile::CONNECTX_3_56 };
    let world = World::new(1, profile, Faults::default());
    let tables = [HERE, THERE].map(|node| {
        assert_eq!(world.add_node(offset + shape.bytes()), node);
        (RemoteAddr::new(node, offset), 4)
    });
    let map = Arc::new(TableMap::new(shape, &tables));
    let clients = [HERE, THERE].map(|node| {
        let incarnation = 1 + u64::from(node.0);
        world.store(session_addr(node, 0), incarnation);
        let endpoint = world.endpoint(world.add_process(node));
        let session = Session::new(node, 0, incarnation);
        Client::new(endpoint, map.clone(), session, CacheLimits::default(), 100_000)
    });
    (world, clients)
}

/// Runs both programs, one after the other, to their ends.
fn run<F: Future<Output = ()> + 'static>(
    world: &World,
    client: &Rc<Client<SimEndpoint>>,
    program: impl FnOnce(Rc<Client<SimEndpoint>>) -> F,
) {
    let process = client.fabric().process();
    world.start(process, program(client.clone()));
    let mut steps = 0;
    while !world.has_ended(process) {
        assert!(world.step() && steps < 1_000_000, "it ends");
        steps += 1;
    }
}

/// Keys all of whose candidate slots are at `node`.
fn keys_with_their_slots_at(map: &TableMap, node: RegionId) -> impl Iterator<Item = Vec<u8>> {
    let all_there = move |key: &Vec<u8>| {
        let candidates = Candidates::of(map, key);
        (0..candidates.count()).all(|slot| candidates.slot(slot).region() == node)
    };
    (0..).map(|n: u64| format!("key {n}").into_bytes()).filter(all_there)
}

/// One of these keys.
fn key_with_its_slots_at(map: &TableMap, node: RegionId) -> Vec<u8> {
    keys_with_their_slots_at(map, node).next().expect("there are many")
}

/// A PUT replaced a value whose entry was at a node that could no longer be reached, could not note
/// there that the entry is free, and said that it had failed. The simulation found it.
#[test]
fn a_put_that_cannot_note_what_it_replaced_is_done_all_the_same() {
    let (world, [here, there]) = two_nodes();
    let (here, there) = (Rc::new(here), Rc::new(there));
    let key = key_with_its_slots_at(here.map(), HERE);
    let (k1, k2, k3) = (key.clone(), key.clone(), key);
    // The value's entry is where its writer is; whoever read it remembers where.
    run(&world, &there, |client| async move {
        client.put(&k1, b"theirs", PutOptions::default()).await.unwrap();
    });
    run(&world, &here, |client| async move {
        assert_eq!(&client.get(&k2, Buf::new()).await.unwrap().unwrap()[..], b"theirs");
    });
    world.cut(HERE, THERE);
    let refused = Rc::new(Cell::new(false));
    let (seen, tables) = (refused.clone(), RemoteAddr::new(THERE, 0));
    run(&world, &here, |client| async move {
        // This is how the client learns that the connection is broken.
        assert!(client.fabric().fetch_add(tables, 0).await.is_err());
        client.put(&k3, b"ours", PutOptions::default()).await.unwrap();
        assert_eq!(&client.get(&k3, Buf::new()).await.unwrap().unwrap()[..], b"ours");
        seen.set(matches!(
            client.fabric().read_words(&[tables], &mut [0]).await.map_err(EngineError::from),
            Err(EngineError::Fabric(_))
        ));
    });
    assert!(refused.get(), "the node was out of reach all the time");
}

/// The other node, which is lost, has half of the index. A client that made room for values of its
/// own node looked there for victims, and its PUT failed.
#[test]
fn a_client_evicts_values_of_the_nodes_that_it_reaches() {
    const VALUES: usize = 250;
    let options = Options { evicts: true, ..Options::default() };
    let (world, [here, _there]) = two_nodes_with(Profile::CONNECTX_3_56.caps, options);
    let here = Rc::new(here);
    let keys = keys_with_their_slots_at(here.map(), HERE).take(2 * VALUES).collect::<Vec<_>>();
    let (first, second) = (keys[..VALUES].to_vec(), keys[VALUES..].to_vec());
    let put_all = async |client: &Client<SimEndpoint>, keys: Vec<Vec<u8>>| {
        for key in keys {
            client.put(&key, &[7; 100_000], PutOptions::default()).await.unwrap();
        }
    };
    run(&world, &here, async move |client| put_all(&client, first).await);
    assert!(here.counts().evicted.get() > 0, "memory is short");
    world.cut(HERE, THERE);
    run(&world, &here, async move |client| {
        // This is how the client learns that the connection is broken.
        assert!(client.fabric().fetch_add(RemoteAddr::new(THERE, 0), 0).await.is_err());
        put_all(&client, second).await;
    });
}

/// The note by which a scrub frees an entry was still on its way when the scrub ended, and the
/// session, which nobody used before the next one, held every grace period up. The simulation found
/// it (workload `reuse`).
#[test]
fn a_scrub_waits_for_its_notes_before_it_ends() {
    let (world, [here, there]) = two_nodes();
    run(&world, &Rc::new(there), |dead| async move {
        std::mem::forget(dead.reserve(b"key", 100, PutOptions::default()).await.unwrap());
    });
    let session = |node| [0, 8].map(|at| world.load(session_addr(node, 0).add(at)));
    assert_eq!(session(THERE)[1] & 1, 1, "it died in the middle of an operation");
    world.store(session_addr(THERE, 0), 0);
    let freed = Rc::new(Cell::new(0));
    let seen = freed.clone();
    run(&world, &Rc::new(here), |agent| async move {
        seen.set(agent.scrub(THERE.0, 100_000).await.unwrap().freed);
    });
    assert_eq!(freed.get(), 1);
    assert_eq!(session(HERE)[1] & 1, 0, "nothing is under way, and nobody has to wait for it");
}

/// A client deleted a value in another node's memory and was not used again: nobody could use
/// memory anew, and a cache over a network stood still.
#[test]
fn a_client_that_comes_to_rest_is_waited_for_by_nobody() {
    let (world, [here, there]) = two_nodes();
    let (here, there) = (Rc::new(here), Rc::new(there));
    let put_theirs = || {
        run(&world, &there, |client| async move {
            client.put(b"key", b"theirs", PutOptions::default()).await.unwrap();
        });
    };
    let session = |world: &World| world.load(session_addr(HERE, 0).add(8)) & 1;
    put_theirs();
    let seen = Rc::new(Cell::new(0));
    let (is_active, within) = (seen.clone(), world.clone());
    run(&world, &here, |client| async move {
        assert!(client.delete(b"key").await.unwrap());
        is_active.set(session(&within));
        client.come_to_rest().await.unwrap();
    });
    assert_eq!((seen.get(), session(&world)), (1, 0), "its note was under way, and is not");
    put_theirs();
    run(&world, &here, |client| async move {
        let place = client.reserve(b"key", 100, PutOptions::default()).await.unwrap();
        place.commit().await.unwrap();
    });
    assert_eq!(session(&world), 0, "a reservation");
}

/// A caller with a timeout drops the future of an operation, and does not use the client again: its
/// session announced the operation for ever, and no grace period passed any more.
#[test]
fn a_client_that_dropped_an_operation_is_waited_for_by_nobody() {
    for is_put in [true, false] {
        let mut left = 0;
        for polls in 1.. {
            let (world, [here, there]) = two_nodes();
            let (here, there) = (Rc::new(here), Rc::new(there));
            run(&world, &there, |client| async move {
                client.put(b"key", b"theirs", PutOptions::default()).await.unwrap();
            });
            let has_ended = Rc::new(Cell::new(false));
            let (ended, session) = (has_ended.clone(), session_addr(HERE, 0).add(8));
            run(&world, &here, |client| async move {
                let operation = async {
                    let _leaving = client.leaving();
                    match is_put {
                        true => _ = client.put(b"key", b"ours", PutOptions::default()).await,
                        false => _ = client.delete(b"key").await,
                    }
                    client.come_to_rest().await.unwrap();
                };
                let (mut operation, mut polled) = (Box::pin(operation), 0);
                poll_fn(|cx| {
                    polled += 1;
                    ended.set(operation.as_mut().poll(cx).is_ready());
                    if ended.get() || polled == polls { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            });
            left += world.load(session) & 1;
            // The client does nothing any more.
            while world.step() {}
            assert_eq!(world.load(session) & 1, 0, "{is_put}, {polls} polls");
            if has_ended.get() {
                break;
            }
        }
        assert!(left > 0, "it was dropped while something was under way");
    }
}

/// A reservation keeps its client's operation open, so what was posted before is waited for by
/// nobody when it ends.
#[test]
fn a_client_whose_reservation_was_dropped_is_waited_for_by_nobody() {
    let (world, [here, there]) = two_nodes();
    run(&world, &Rc::new(there), |client| async move {
        client.put(b"key", b"theirs", PutOptions::default()).await.unwrap();
    });
    let (session, announced) = (session_addr(HERE, 0).add(8), world.clone());
    run(&world, &Rc::new(here), |client| async move {
        // The note that the entry there is not used any more is under way.
        client.put(b"key", b"ours", PutOptions::default()).await.unwrap();
        drop(client.reserve(b"other", 100, PutOptions::default()).await.unwrap());
        assert_eq!(announced.load(session) & 1, 1, "the note is announced");
    });
    // The client does nothing any more.
    while world.step() {}
    assert_eq!(world.load(session) & 1, 0);
}

/// Each kind of operation is the last one of its client. In a table that evicts they also mark
/// slots.
#[test]
fn a_client_that_is_not_used_after_any_kind_of_operation_is_waited_for_by_nobody() {
    let kinds = 0..OPERATIONS.len() + 7;
    for (kind, evicts) in kinds.flat_map(|kind| [(kind, false), (kind, true)]) {
        let caps = Profile::CONNECTX_3_56.caps;
        let (world, [here, there]) = two_nodes_with(caps, Options { evicts, ..Options::default() });
        let (key, other) = (key_with_its_slots_at(here.map(), THERE), b"other".to_vec());
        let theirs = [(key.clone(), 7u64.to_le_bytes()), (other.clone(), [1; 8])];
        let there = Rc::new(there);
        run(&world, &there, |client| async move {
            client.put_many(&theirs, |_, _| ()).await.unwrap();
            client.come_to_rest().await.unwrap();
        });
        let done = Rc::new(Cell::new(false));
        let is_done = done.clone();
        run(&world, &Rc::new(here), |client| async move {
            let keys = [key.clone(), other, b"none".to_vec()];
            match OPERATIONS.get(kind) {
                Some(operation) => _ = client.execute(&key, *operation, Buf::new()).await.unwrap(),
                None => operate_on_many(&client, kind - OPERATIONS.len(), &keys).await,
            }
            client.come_to_rest().await.unwrap();
            assert!(client.fabric().is_settled(client.fabric().posted()), "kind {kind}");
            is_done.set(true);
        });
        let announced = world.load(session_addr(HERE, 0).add(8));
        assert_eq!((done.get(), announced & 1), (true, 0), "kind {kind}, evicts: {evicts}");
        run(&world, &there, |client| async move {
            let mut grace = Grace::begin(client.fabric(), client.map().sessions()).await.unwrap();
            assert!(grace.has_passed(client.fabric()).await.unwrap(), "kind {kind}");
        });
    }
}

const OPERATIONS: [Operation<'_>; 10] = [
    Operation::Contains,
    Operation::Put { value: b"new", options: PutOptions { expires_at_ms: None } },
    Operation::Put { value: b"over", options: PutOptions { expires_at_ms: Some(1) } },
    Operation::PutIf {
        value: b"new",
        expect: Expect::Absent,
        options: PutOptions { expires_at_ms: None },
    },
    Operation::Delete { of: None },
    Operation::Delete { of: Some(Version::from_u64(1)) },
    Operation::FetchAdd(1),
    Operation::Append(b"more"),
    Operation::Touch { of: None, options: PutOptions { expires_at_ms: None } },
    Operation::Touch { of: None, options: PutOptions { expires_at_ms: Some(1) } },
];

/// An operation on several keys, or in several steps, of which the kind has that number.
async fn operate_on_many(client: &Client<SimEndpoint>, kind: usize, keys: &[Vec<u8>]) {
    match kind {
        0 => client.get_many(keys, |_, _| ()).await.unwrap(),
        1 => client.contains_many(keys, |_, _| ()).await.unwrap(),
        2 => client.put_many(&pairs(keys, 3), |_, _| ()).await.unwrap(),
        3 => client.delete_many(keys, |_, _| ()).await.unwrap(),
        4 => _ = client.get(&keys[0], Buf::new()).await.unwrap(),
        5 => _ = client.scan(&Cursor::default(), &mut |_| ()).await.unwrap(),
        _ => {
            let place = client.reserve(&keys[0], 100, PutOptions::default()).await.unwrap();
            place.commit().await.unwrap();
        }
    }
}

/// Nobody waits for the WRITE of a mark, so it may reach its slot after the operation has ended.
#[test]
fn a_mark_that_is_under_way_is_announced() {
    let caps = Profile::CONNECTX_3_56.caps;
    let (world, [here, there]) =
        two_nodes_with(caps, Options { evicts: true, ..Options::default() });
    let key = key_with_its_slots_at(here.map(), THERE);
    let again = key.clone();
    run(&world, &Rc::new(there), |client| async move {
        client.put(&key, b"theirs", PutOptions::default()).await.unwrap();
    });
    let announced = world.clone();
    run(&world, &Rc::new(here), |client| async move {
        let announced = || announced.load(session_addr(HERE, 0).add(8)) & 1 == 1;
        assert!(client.get(&again, Buf::new()).await.unwrap().is_some());
        let fabric = client.fabric();
        assert!(!fabric.is_settled(fabric.posted()), "the mark is under way");
        assert!(announced());
        client.come_to_rest().await.unwrap();
        assert!(fabric.is_settled(fabric.posted()) && !announced());
    });
}

/// The walk removes a value in another node's memory, of which it has seen an old entry in its own.
/// Between two walks its session is not used.
#[test]
fn a_walk_for_what_has_expired_waits_for_its_notes_before_it_ends() {
    let (world, [here, there]) = two_nodes();
    let (here, there) = (Rc::new(here), Rc::new(there));
    let over = PutOptions { expires_at_ms: Some(1) };
    for client in [&here, &there] {
        run(&world, client, |client| async move {
            client.put(b"key", &[1; 100], over).await.unwrap();
            client.come_to_rest().await.unwrap();
        });
    }
    // The note of the old entry gets lost.
    let map = here.map();
    let chunk_at = |chunk: &u64| Chunk::from_word(world.load(map.chunk_addr(0, *chunk)));
    let is_leased = |chunk: &u64| matches!(chunk_at(chunk), Some(Chunk::Leased { .. }));
    let chunk = (0..map.shape.geometry.chunks).find(is_leased).unwrap();
    let Some(Chunk::Leased { class, chunks, .. }) = chunk_at(&chunk) else { unreachable!() };
    let class = map.slab_class(chunk as u32, class, chunks).unwrap();
    let note = map.slab_addr(Slab { dti: 0, chunk: chunk as u32 }).add(class.note_at(0));
    assert_ne!(world.load(note), 0, "it was noted");
    world.store(note, 0);
    let endpoint = world.endpoint(world.add_process(HERE));
    world.store(session_addr(HERE, 1), 3);
    let (session, limits) = (Session::new(HERE, 1, 3), CacheLimits::default());
    let node = Rc::new(Client::new(endpoint, here.map().clone(), session, limits, 100_000));
    let announced = world.clone();
    run(&world, &node, |node| async move {
        let (mut walk, mut removed) = (ExpiryWalk::default(), 0);
        loop {
            let seen = node.expire_some(&mut walk).await.unwrap();
            removed += seen.removed;
            let fabric = node.fabric();
            assert!(fabric.is_settled(fabric.posted()));
            assert_eq!(announced.load(session_addr(HERE, 1).add(8)) & 1, 0);
            if seen.is_over {
                break;
            }
        }
        assert_eq!(removed, 1);
    });
}

/// The client knows how long entries are by the one that it has read before.
#[test]
fn an_entry_is_read_at_once_if_that_costs_less_than_a_round_trip() {
    let caps = Profile::CONNECTX_3_56.caps;
    for (round_trip_bytes, round_trips) in [(caps.round_trip_bytes, 3), (16 << 10, 2)] {
        let (world, [here, there]) = two_nodes_of(Caps { round_trip_bytes, ..caps });
        let (long, keys) = (vec![7; 8 << 10], [b"one", b"two"]);
        let stored = long.clone();
        run(&world, &Rc::new(here), |client| async move {
            for key in keys {
                client.put(key, &stored, PutOptions::default()).await.unwrap();
            }
        });
        run(&world, &Rc::new(there), |client| async move {
            let get = async |key| {
                let found = client.get(key, Buf::new()).await.unwrap();
                assert_eq!(found.expect("it has a value")[..], long);
            };
            get(keys[0]).await;
            assert_eq!(cost_of(&client, get(keys[1])).await.round_trips, round_trips);
        });
    }
}

/// A client remembers where the long entries are that it has put itself.
#[test]
fn a_long_entry_that_was_just_put_is_read_in_one_round_trip() {
    let (world, [here, _]) = two_nodes();
    run(&world, &Rc::new(here), |client| async move {
        let long = vec![7; 8 << 10];
        let pairs = ["one", "two"].map(|key| (key, long.clone()));
        client.put_many(&pairs, |_, _| ()).await.unwrap();
        client.put(b"three", &long, PutOptions::default()).await.unwrap();
        for key in ["one", "two", "three"] {
            let get = async {
                let found = client.get(key.as_bytes(), Buf::new()).await.unwrap();
                assert_eq!(found.expect("it has a value")[..], long);
            };
            assert_eq!(cost_of(&client, get).await.round_trips, 1, "{key}");
        }
    });
}

/// Pairs of a batch of PUTs.
fn pairs(names: &[Vec<u8>], value: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    names.iter().map(|name| (name.clone(), vec![value; 20])).collect()
}

/// The cost of an operation.
async fn cost_of(client: &Client<SimEndpoint>, operation: impl Future<Output = ()>) -> VerbCount {
    let before = client.fabric().counters().snapshot();
    operation.await;
    client.fabric().counters().snapshot() - before
}

/// PUTs 32 pairs in a batch.
async fn put_all(client: &Client<SimEndpoint>, first: u32, value: u8) -> VerbCount {
    let mut stored = 0;
    let pairs = pairs(&names(first), value);
    let put = client.put_many(&pairs, |_, _| stored += 1);
    let cost = cost_of(client, async { put.await.unwrap() }).await;
    assert_eq!(stored, 32);
    cost
}

/// GETs them.
async fn get_all(client: &Client<SimEndpoint>, value: u8) -> VerbCount {
    let (names, mut found) = (names(0), 0);
    let get = client.get_many(&names, |_, seen| {
        assert_eq!(*seen.expect("it has a value"), [value; 20]);
        found += 1;
    });
    let cost = cost_of(client, async { get.await.unwrap() }).await;
    assert_eq!(found, 32);
    cost
}

/// Deletes them.
async fn delete_all(client: &Client<SimEndpoint>) -> VerbCount {
    let (names, mut deleted) = (names(0), 0);
    let delete = client.delete_many(&names, |_, had_value| deleted += u32::from(had_value));
    let cost = cost_of(client, async { delete.await.unwrap() }).await;
    assert_eq!(deleted, 32);
    cost
}

/// Scans the table, whose keys are the first ones.
async fn scan_all(client: &Client<SimEndpoint>) -> VerbCount {
    let mut found = BTreeSet::new();
    let cost = cost_of(client, async {
        let mut from = Some(Cursor::default());
        while let Some(at) = from {
            let next = client.scan(&at, &mut |one| _ = found.insert(one.key.to_vec())).await;
            from = next.unwrap();
        }
    })
    .await;
    assert_eq!(found, names(0).into_iter().collect());
    cost
}

fn names(first: u32) -> Vec<Vec<u8>> {
    (first..first + 32).map(|n| format!("key {n}").into_bytes()).collect()
}

/// Some keys are in their second buckets, and a client may need a block of stamps.
#[test]
fn a_stage_of_a_batch_is_one_round_trip() {
    let (world, [here, there]) = two_nodes();
    let (here, there) = (Rc::new(here), Rc::new(there));
    run(&world, &there, |client| async move {
        assert!(client.takes_batches());
        put_all(&client, 0, 1).await;
        let warm = get_all(&client, 1).await;
        assert_eq!((warm.round_trips, warm.reads), (1, 32), "each is in its slot still");
    });
    run(&world, &here, |client| async move {
        // From now on it has memory.
        put_all(&client, 32, 2).await;
        let cold = put_all(&client, 0, 2).await;
        assert!((3..=6).contains(&cold.round_trips) && cold.reads < 80, "{cold:?}");
    });
    run(&world, &there, |client| async move {
        // The other client has replaced all that this one remembers, whose lengths it has not seen.
        let cold = get_all(&client, 2).await;
        assert!((3..=5).contains(&cold.round_trips) && cold.reads < 112, "{cold:?}");
        put_all(&client, 0, 3).await;
        let warm = put_all(&client, 0, 4).await;
        assert!(warm.round_trips <= 2 && warm.atomics <= 33 && warm.reads == 0, "{warm:?}");
        let gone = delete_all(&client).await;
        assert!(gone.round_trips <= 2 && gone.atomics <= 33 && gone.reads == 0, "{gone:?}");
    });
}

/// The client that reads has put nothing.
#[test]
fn a_batch_remembers_what_it_has_found() {
    let (world, [here, there]) = two_nodes();
    run(&world, &Rc::new(here), |client| async move {
        put_all(&client, 0, 1).await;
    });
    run(&world, &Rc::new(there), |client| async move {
        get_all(&client, 1).await;
        let warm = get_all(&client, 1).await;
        assert_eq!((warm.round_trips, warm.reads), (1, 32), "{warm:?}");
    });
}

/// Over a network nothing but checksums tells that an entry was written while it was read.
#[test]
fn a_batch_believes_no_value_whose_checksum_is_wrong() {
    let (world, [here, there]) = two_nodes();
    let there = Rc::new(there);
    run(&world, &Rc::new(here), |client| async move {
        put_all(&client, 0, 1).await;
    });
    let (map, name) = (there.map().clone(), names(0).remove(0));
    let candidates = Candidates::of(&map, &name);
    let words = (0..candidates.count()).map(|slot| Ite(world.load(candidates.slot(slot))));
    for word in words.filter(|word| map.codec.is_visible(*word)) {
        let place = map.codec.place(word);
        let entry = map.data_base(place.dti).unwrap().add(place.offset);
        let is_of_value = |at: &RemoteAddr| world.load(*at) == u64::from_le_bytes([1; 8]);
        let at = (0..16).map(|n| entry.add(n * 8)).find(is_of_value).expect("of its value");
        world.store(at, u64::from_le_bytes([9; 8]));
    }
    run(&world, &there, |client| async move {
        let names = [name];
        let get = client.get_many(&names, |_, seen| panic!("{seen:?}"));
        assert!(matches!(get.await, Err(EngineError::Timeout { .. })));
    });
}

/// A CAS that may have been executed is neither done nor tried again.
#[test]
fn a_batch_tells_which_of_its_keys_have_an_unknown_outcome() {
    let (world, [here, _]) = two_nodes();
    let here = Rc::new(here);
    let names = [HERE, THERE].map(|node| key_with_its_slots_at(here.map(), node));
    let again = names.clone();
    run(&world, &here, |client| async move {
        client.put_many(&pairs(&names, 1), |_, _| ()).await.unwrap();
    });
    world.cut(HERE, THERE);
    let stored = Rc::new(RefCell::new(Vec::new()));
    let seen = stored.clone();
    run(&world, &here, |client| async move {
        // The keys are remembered, so that the CASes come first.
        let put = client.put_many(&pairs(&again, 2), |pair, _| seen.borrow_mut().push(pair)).await;
        assert!(matches!(put, Err(EngineError::Ambiguous(_))), "{put:?}");
        // Now the connection is known to be broken: nothing is sent.
        let put = client.put_many(&pairs(&again, 3), |pair, _| seen.borrow_mut().push(pair)).await;
        assert!(matches!(put, Err(EngineError::Fabric(_))), "{put:?}");
        let gone = client.delete_many(&again, |pair, _| seen.borrow_mut().push(2 + pair)).await;
        assert!(matches!(gone, Err(EngineError::Fabric(_))), "{gone:?}");
    });
    assert_eq!(*stored.borrow(), [0], "the CAS at the other node had its own outcome");
}

/// Nothing names the entries of PUTs that certainly had no effect: one whose look failed, and one
/// whose CAS was not sent.
#[test]
fn a_batch_that_failed_gives_its_entries_back() {
    let (world, [here, _]) = two_nodes();
    let here = Rc::new(here);
    let key = key_with_its_slots_at(here.map(), THERE);
    let remembered = key.clone();
    run(&world, &here, |client| async move {
        client.put_many(&pairs(&[remembered], 1), |_, _| ()).await.unwrap();
    });
    world.cut(HERE, THERE);
    let report = Rc::new(Cell::new(None));
    let (seen, within) = (report.clone(), world.clone());
    run(&world, &here, |client| async move {
        // This is how the client learns that the connection is broken.
        assert!(client.fabric().fetch_add(RemoteAddr::new(THERE, 0), 0).await.is_err());
        let others = names(0);
        for names in [&others[..], &[key.clone()][..], &[&others[..], &[key]].concat()[..]] {
            let put = client.put_many(&pairs(names, 2), |_, _| ()).await;
            assert!(matches!(put, Err(EngineError::Fabric(_))), "{put:?}");
        }
        within.heal(HERE, THERE);
        client.fabric().reconnect(THERE).await.unwrap();
        seen.set(Some(client.check().await.unwrap()));
    });
    let report = report.take().expect("it has ended");
    assert_eq!((report.unshown, report.broken), (0, vec![]));
}

/// The cache remembers that the value may expire, and not whether it has.
#[test]
fn a_batch_does_not_delete_a_remembered_value_that_has_expired() {
    let (world, [here, _]) = two_nodes();
    run(&world, &Rc::new(here), |client| async move {
        let at_ms = client.fabric().wall_ms() + 2;
        let options = PutOptions { expires_at_ms: Some(at_ms) };
        client.put(b"key", b"value", options).await.unwrap();
        assert!(client.get(b"key", Buf::new()).await.unwrap().is_some());
        while client.fabric().wall_ms() <= at_ms {
            client.fabric().pause(500).await;
        }
        let mut had_values = Vec::new();
        client.delete_many(&[b"key"], |_, had_value| had_values.push(had_value)).await.unwrap();
        assert_eq!(had_values, [false]);
    });
}

/// Grace periods do not wait for an observer: it looks at each slot again after the entry was read.
#[test]
fn an_observer_reads_each_slot_of_a_batch_and_of_a_scan_again() {
    let (world, [here, _]) = two_nodes();
    let endpoint = world.endpoint(world.add_process(THERE));
    let limits = CacheLimits::default();
    let observer = Session::observer(THERE);
    let observer = Rc::new(Client::new(endpoint, here.map().clone(), observer, limits, 100_000));
    let of_client = Rc::new(Cell::new(0));
    let reads = of_client.clone();
    run(&world, &Rc::new(here), |client| async move {
        put_all(&client, 0, 1).await;
        reads.set(scan_all(&client).await.reads);
    });
    run(&world, &observer, |client| async move {
        for _ in 0..3 {
            let cost = get_all(&client, 1).await;
            assert!(cost.reads >= 3 * 32, "{cost:?}");
        }
        assert_eq!(scan_all(&client).await.reads, of_client.get() + 32);
    });
}

/// It has no word to announce in what it posts.
#[test]
fn an_observer_marks_nothing() {
    let evicting = Options { evicts: true, ..Options::default() };
    let (world, [here, _]) = two_nodes_with(Profile::CONNECTX_3_56.caps, evicting);
    let endpoint = world.endpoint(world.add_process(THERE));
    let limits = CacheLimits::default();
    let observer = Session::observer(THERE);
    let observer = Rc::new(Client::new(endpoint, here.map().clone(), observer, limits, 100_000));
    run(&world, &Rc::new(here), |client| async move {
        put_all(&client, 0, 1).await;
    });
    run(&world, &observer, |client| async move {
        let one = async {
            assert!(client.get(&names(0)[0], Buf::new()).await.unwrap().is_some());
        };
        let costs = [cost_of(&client, one).await, get_all(&client, 1).await];
        assert!(costs.iter().all(|cost| cost.writes == 0), "{costs:?}");
    });
}

#[test]
fn of_two_pairs_with_the_same_key_the_later_one_wins() {
    let (world, [here, _]) = two_nodes();
    run(&world, &Rc::new(here), |client| async move {
        for round in 0..3u8 {
            let same = |n: u8| (vec![b'k', n % 3], vec![round, n]);
            let pairs: Vec<_> = (0..50).map(same).collect();
            let mut stored = Vec::new();
            client.put_many(&pairs, |pair, _| stored.push(pair)).await.unwrap();
            stored.sort_unstable();
            assert!(stored.into_iter().eq(0..50));
            for n in 47..50 {
                let found = client.get(&[b'k', n % 3], Buf::new()).await.unwrap().unwrap();
                assert_eq!(found[..], [round, n]);
            }
        }
    });
}

/// Of three nodes one is known to be out of reach, and one is lost while its CAS is under way.
#[test]
fn what_may_have_been_done_is_told_before_what_was_not() {
    let options = Options { checksums: true, ..Options::default() };
    let geometry = Geometry::plan(3, 16 << 20, 1 << 12, 3, 4, 1 << 20, options).unwrap();
    let shape = geometry.validate().unwrap();
    let offset = tables_offset(4);
    let profile = Profile { retry_ns: 1_000_000, ..Profile::CONNECTX_3_56 };
    let world = World::new(1, profile, Faults::default());
    let nodes = [0, 1, 2].map(RegionId);
    let tables = nodes.map(|node| {
        assert_eq!(world.add_node(offset + shape.bytes()), node);
        (RemoteAddr::new(node, offset), 4)
    });
    let map = Arc::new(TableMap::new(shape, &tables));
    world.store(session_addr(HERE, 0), 1);
    let endpoint = world.endpoint(world.add_process(HERE));
    let session = Session::new(HERE, 0, 1);
    let client =
        Rc::new(Client::new(endpoint, map.clone(), session, CacheLimits::default(), 100_000));
    let names = [nodes[2], nodes[1]].map(|node| key_with_its_slots_at(&map, node));
    let again = names.clone();
    run(&world, &client, |client| async move {
        client.put_many(&pairs(&names, 1), |_, _| ()).await.unwrap();
    });
    world.cut(HERE, nodes[2]);
    run(&world, &client, |client| async move {
        assert!(client.fabric().fetch_add(RemoteAddr::new(RegionId(2), 0), 0).await.is_err());
    });
    world.cut(HERE, nodes[1]);
    run(&world, &client, |client| async move {
        let put = client.put_many(&pairs(&again, 2), |_, _| ()).await;
        assert!(matches!(put, Err(EngineError::Ambiguous(_))), "{put:?}");
    });
}

/// Keys that have values of both nodes.
const HAVE_VALUES: [&[u8]; 4] = [b"ours 1", b"ours 2", b"theirs 1", b"theirs 2"];

/// The operations that take entries, or take them out of the index.
const OF_ENTRIES: [&str; 9] = [
    "insert",
    "insert a batch",
    "put over",
    "put over many",
    "put on a condition",
    "commit",
    "delete",
    "delete many",
    "find expired",
];

async fn operate(client: &Client<SimEndpoint>, operation: &str) -> Result<(), EngineError> {
    let options = PutOptions::default();
    match operation {
        "insert" => client.put(b"new", &[3; 100], options).await.map(drop),
        "insert a batch" => client.put_many(&pairs(&names(0)[..5], 3), |_, _| ()).await,
        "put over" => client.put(HAVE_VALUES[2], &[3; 200], options).await.map(drop),
        "put over many" => {
            client.put_many(&HAVE_VALUES.map(|key| (key, [3; 100])), |_, _| ()).await
        }
        "put on a condition" => {
            client.put_if(b"new", &[3; 100], Expect::Absent, options).await.map(drop)
        }
        "commit" => client.reserve(HAVE_VALUES[3], 300, options).await?.commit().await.map(drop),
        "delete" => client.delete(HAVE_VALUES[2]).await.map(drop),
        "delete many" => client.delete_many(&HAVE_VALUES, |_, _| ()).await,
        "find expired" => client.get(b"expired", Buf::new()).await.map(drop),
        _ => unreachable!("it is one of these"),
    }
}

/// How the network or the caller ends an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Its future is dropped after so many polls.
    Dropped,
    /// The wire is cut after so many polls.
    Cut,
}

/// Ends an operation of a client after `polls` polls. Returns whether it took more, and whether it
/// left anything: unshown entries, and the word by which its node is told.
fn end_after(operation: &'static str, ends: Ends, polls: u32) -> (bool, u64, u64) {
    let (world, [here, there]) = two_nodes();
    let (here, there) = (Rc::new(here), Rc::new(there));
    for (client, keys) in [(&here, &HAVE_VALUES[..2]), (&there, &HAVE_VALUES[2..])] {
        run(&world, client, |client| async move {
            for key in keys {
                client.put(key, &[1; 100], PutOptions::default()).await.unwrap();
            }
            let options = PutOptions { expires_at_ms: Some(0) };
            client.put(b"expired", &[1; 100], options).await.unwrap();
            client.come_to_rest().await.unwrap();
        });
    }
    let was_longer = Rc::new(Cell::new(false));
    let (seen, wire) = (was_longer.clone(), world.clone());
    run(&world, &here, |client| async move {
        {
            let (mut operates, mut polled) = (pin!(operate(&client, operation)), 0);
            poll_fn(|cx| {
                let is_over = operates.as_mut().poll(cx).is_ready();
                polled += 1;
                if polled == polls {
                    seen.set(!is_over);
                    match ends {
                        Ends::Dropped => return Poll::Ready(()),
                        Ends::Cut => wire.cut(HERE, THERE),
                    }
                }
                if is_over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        client.come_to_rest().await.unwrap();
        wire.heal(HERE, THERE);
        while !client.fabric().broken().is_empty() {
            _ = client.fabric().reconnect(THERE).await;
        }
        while !client.fabric().is_settled(client.fabric().posted()) {
            client.fabric().pause(1).await;
        }
        client.rest().unwrap();
    });
    let told = world.load(session_left_addr(HERE, 0));
    let unshown = |client: &Rc<Client<SimEndpoint>>| {
        let unshown = Rc::new(Cell::new(0));
        let seen = unshown.clone();
        run(&world, client, |client| async move {
            seen.set(client.check().await.unwrap().unshown);
        });
        unshown.get()
    };
    let left = unshown(&there);
    run(&world, &there, |client| async move {
        client.outlast(100_000).await.unwrap();
        for node in [HERE, THERE] {
            client.scrub(node.0, 100_000).await.unwrap();
        }
    });
    assert_eq!(unshown(&there), 0, "{operation}, {ends:?} after {polls}: what the scrub left");
    (was_longer.get(), left, told)
}

/// Nobody looked for what operations left that were dropped, or had lost a connection, before
/// another client died.
#[test]
fn what_an_operation_leaves_is_told_to_the_scrubber() {
    for ends in [Ends::Dropped, Ends::Cut] {
        let mut leaks = 0;
        for operation in OF_ENTRIES {
            for polls in 1.. {
                let (goes_on, left, told) = end_after(operation, ends, polls);
                let when = format!("{operation}, {ends:?} after {polls} polls");
                assert!(told == 1 || left == 0, "{when}: {left} entries");
                leaks += left;
                if !goes_on {
                    assert!((left, told) == (0, 0) || ends == Ends::Cut, "{when}: {left} {told}");
                    break;
                }
                assert!(polls < 1000, "{operation} ends");
            }
        }
        assert!(leaks > 10, "{ends:?}: {leaks} entries were left");
    }
}
