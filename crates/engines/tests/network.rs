//! The errors of operations when the network fails in the middle of them, on the simulated fabric.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::EngineError;
use loch_engines::epoch::Session;
use loch_engines::nessie::geometry::{Geometry, Options};
use loch_engines::nessie::hash::{Candidates, TableMap};
use loch_engines::nessie::{CacheLimits, Client, PutOptions};
use loch_engines::region::{session_addr, tables_offset};
use loch_fabric::sim::{Faults, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, RegionId, RemoteAddr};

const HERE: RegionId = RegionId(0);
const THERE: RegionId = RegionId(1);

/// Two nodes, and a client on each.
fn two_nodes() -> (World, [Client<SimEndpoint>; 2]) {
    let options = Options { checksums: true, ..Options::default() };
    let geometry = Geometry::plan(2, 16 << 20, 1 << 12, 3, 4, 1 << 20, options).unwrap();
    let shape = geometry.validate().unwrap();
    let offset = tables_offset(4);
    let profile = Profile { retry_ns: 1_000_000, ..Profile::CONNECTX_3_56 };
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

/// A key all of whose candidate slots are at `node`.
fn key_with_its_slots_at(map: &TableMap, node: RegionId) -> Vec<u8> {
    let all_there = |key: &Vec<u8>| {
        let candidates = Candidates::of(map, key);
        (0..candidates.count()).all(|slot| candidates.slot(slot).region() == node)
    };
    (0..).map(|n| format!("key {n}").into_bytes()).find(all_there).unwrap()
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
