//! Operations whose futures are dropped while their client lives, after each number of polls: the
//! slabs that they were about to seize, close, take apart or lease are of use afterwards.

mod cluster;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use cluster::{Plan, TestCluster};
use loch_engines::epoch::Session;
use loch_engines::nessie::geometry::{Geometry, Options};
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::slab::Chunk;
use loch_engines::nessie::{CacheLimits, Client, PutOptions, release_dead};
use loch_engines::region::{session_addr, tables_offset};
use loch_fabric::lanes::block_on;
use loch_fabric::sim::{Faults, Profile, SimEndpoint, World};
use loch_fabric::{Fabric, RegionId, RemoteAddr};

const HERE: RegionId = RegionId(0);
const TABLE_BYTES: u64 = (1 << 20) + (1 << 18);
const INDEX_SLOTS: u64 = 1 << 10;
/// No PUT of these tests takes more polls.
const POLLS_MAX: u32 = 20_000;

/// How a PUT gets memory in a table without free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// It takes slabs of another size apart, which a client has left behind.
    TakesApart,
    /// It seizes slabs of its own size from a client that lives.
    Seizes,
    /// It empties slabs of another size of a client that lives.
    Empties,
}

impl Means {
    const ALL: [Self; 3] = [Self::TakesApart, Self::Seizes, Self::Empties];

    fn options(self) -> Options {
        Options { evicts: self == Self::Empties, checksums: true, ..Options::default() }
    }

    fn bucket_slots(self) -> u8 {
        if self == Self::Empties { 3 } else { 4 }
    }

    fn value(self) -> Vec<u8> {
        vec![2; if self == Self::Seizes { 5000 } else { 12_000 }]
    }

    /// Fills the table, by a client that then uses little of it.
    async fn fill(self, other: &Client<impl Fabric>) {
        let key = |n: u64| format!("old {n}").into_bytes();
        let value = [1; 5000];
        let mut keys = 0;
        while other.put(&key(keys), &value, PutOptions::default()).await.is_ok()
            && keys * 4000 < TABLE_BYTES
        {
            keys += 1;
        }
        assert!(keys * 7000 > TABLE_BYTES, "{keys} values are a full table");
        if self != Self::Empties {
            for n in (0..keys).filter(|n| n % 40 != 0) {
                assert!(other.delete(&key(n)).await.unwrap());
            }
        }
        if self == Self::TakesApart {
            other.detach().await.unwrap();
        }
        other.come_to_rest().await.unwrap();
    }
}

/// What becomes of the client whose future was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It comes to rest, and the future of that is dropped too; then it goes on, and detaches.
    Rests,
    /// It goes on at once, and detaches.
    GoesOn,
    /// It dies.
    Dies,
}

/// Polls a future so many times at most.
async fn polled<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|cx| {
        if left > 0 {
            left -= 1;
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
        }
        if left == 0 { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// A PUT that is dropped after so many polls, and what the client does afterwards. Returns whether
/// the PUT has ended before, or what is wrong.
async fn drops(
    client: &Client<impl Fabric>,
    means: Means,
    polls: u32,
    end: End,
) -> Result<bool, String> {
    let value = means.value();
    let has_ended = polled(polls, client.put(b"new", &value, PutOptions::default())).await;
    if end == End::Rests {
        polled(polls % 7, client.come_to_rest()).await;
        client.come_to_rest().await.unwrap();
    }
    if end != End::Dies {
        let newer = client.put(b"newer", &value, PutOptions::default()).await;
        newer.map_err(|error| format!("there is memory, but: {error}"))?;
        if means == Means::Seizes {
            // When there is no memory any more, all slabs that it has seized are in use.
            let put =
                async |n: u32| client.put(&n.to_le_bytes(), &value, PutOptions::default()).await;
            for n in 0.. {
                if put(n).await.is_err() {
                    break;
                }
            }
        }
        client.detach().await.unwrap();
    }
    Ok(has_ended.is_some())
}

/// What is wrong with the chunk descriptors after the client of this incarnation has ended. Slabs
/// that it has seized may wait for the scrubber.
fn wrong(words: &[u64], incarnation: u64, may_be_seized: bool) -> Option<String> {
    let mut at = 0;
    while at < words.len() {
        let chunk = Chunk::from_word(words[at]);
        let (chunks, is_right) = match chunk {
            Some(Chunk::Free) => (1, true),
            Some(Chunk::Abandoned { chunks, .. }) => (chunks, true),
            Some(Chunk::Leased { chunks, owner, .. }) => (chunks, owner != incarnation as u32),
            Some(Chunk::Seized { chunks, .. }) => (chunks, may_be_seized),
            _ => (1, false),
        };
        let tails = (1..chunks).map(|back| words.get(at + back as usize).copied());
        let is_whole = tails.eq((1..chunks).map(|back| Some(Chunk::Tail { back }.to_word())));
        if !is_right || !is_whole {
            return Some(format!("chunk {at}: {chunk:?}, all of its chunks: {is_whole}"));
        }
        at += chunks as usize;
    }
    None
}

fn words(map: &TableMap, load: impl Fn(RemoteAddr) -> u64) -> Vec<u64> {
    (0..map.shape.geometry.chunks).map(|chunk| load(map.chunk_addr(0, chunk))).collect()
}

/// In shared memory. Returns what is wrong, or whether the PUT has ended before it was dropped.
fn in_shared_memory(means: Means, polls: u32, end: End) -> Result<bool, String> {
    let plan = Plan {
        table_bytes: TABLE_BYTES,
        index_slots: INDEX_SLOTS,
        bucket_slots: means.bucket_slots(),
        options: means.options(),
        sparse: true,
        ..Plan::default()
    };
    let cluster = TestCluster::new(plan);
    let (other, client) = (cluster.client(0), cluster.client(0));
    block_on(means.fill(&other));
    let has_ended = block_on(drops(&client, means, polls, end))?;
    let words = words(&cluster.map, |at| client.fabric().load(at).unwrap());
    wrong(&words, client.incarnation(), means == Means::Empties).map_or(Ok(has_ended), Err)
}

/// A node, and its clients.
fn node(means: Means) -> (World, Arc<TableMap>, [Rc<Client<SimEndpoint>>; 2]) {
    let slots = means.bucket_slots();
    let options = means.options();
    let geometry = Geometry::plan(1, TABLE_BYTES, INDEX_SLOTS, 3, slots, 1 << 20, options).unwrap();
    let (shape, offset) = (geometry.validate().unwrap(), tables_offset(4));
    // A READ may overtake a CAS.
    let faults = Faults { delays: 0.2, delay_ns: 20_000, ..Faults::default() };
    let world = World::new(1, Profile::CONNECTX_3_56, faults);
    assert_eq!(world.add_node(offset + shape.bytes()), HERE);
    let map = Arc::new(TableMap::new(shape, &[(RemoteAddr::new(HERE, offset), 4)]));
    let clients = [0, 1].map(|slot| {
        let incarnation = 1 + u64::from(slot);
        world.store(session_addr(HERE, slot), incarnation);
        let endpoint = world.endpoint(world.add_process(HERE));
        let session = Session::new(HERE, slot, incarnation);
        let cache = CacheLimits::default();
        Rc::new(Client::new(endpoint, map.clone(), session, cache, 1_000_000))
    });
    (world, map, clients)
}

/// Runs a program of a client to its end.
fn run<T: 'static>(
    world: &World,
    client: &Rc<Client<SimEndpoint>>,
    program: impl AsyncFnOnce(Rc<Client<SimEndpoint>>) -> T + 'static,
) -> T {
    let (process, client) = (client.fabric().process(), client.clone());
    let done = Rc::new(RefCell::new(None));
    let result = done.clone();
    world.start(process, async move {
        let output = program(client).await;
        result.replace(Some(output));
    });
    for _ in 0..10_000_000 {
        if world.has_ended(process) {
            break;
        }
        assert!(world.step(), "a program goes on");
    }
    done.take().expect("the program ends")
}

/// The same over a network card, on which a CAS is still under way when the future is dropped that
/// waits for it.
fn over_a_card(means: Means, polls: u32, end: End) -> Result<bool, String> {
    let (world, map, [other, client]) = node(means);
    run(&world, &other, async move |other| means.fill(&other).await);
    let has_ended =
        run(&world, &client, async move |client| drops(&client, means, polls, end).await)?;
    // Verbs that nobody waits for end, too.
    while world.step() {}
    let incarnation = client.incarnation();
    if end == End::Dies {
        world.store(session_addr(HERE, 1), 0);
        run(&world, &other, async move |other| {
            release_dead(other.fabric(), other.map(), 0, incarnation as u32).await.unwrap()
        });
    }
    let words = words(&map, |at| world.load(at));
    wrong(&words, incarnation, end == End::Dies).map_or(Ok(has_ended), Err)
}

/// What is wrong if the future is dropped after some number of polls.
fn failure(
    one: impl Fn(Means, u32, End) -> Result<bool, String>,
    means: Means,
    end: End,
) -> Option<String> {
    for polls in 0..POLLS_MAX {
        match one(means, polls, end) {
            Err(what) => return Some(format!("{means:?} {end:?}, {polls} polls: {what}")),
            Ok(true) => {
                assert!(polls > 20, "the PUT looked for memory");
                return None;
            }
            Ok(false) => (),
        }
    }
    panic!("the PUT takes more than {POLLS_MAX} polls")
}

#[test]
fn in_shared_memory_dropped_futures_leave_no_slab_closed() {
    for means in Means::ALL {
        assert_eq!(failure(in_shared_memory, means, End::GoesOn), None);
    }
}

#[test]
fn over_a_network_dropped_futures_leave_no_slab_closed() {
    for means in Means::ALL {
        assert_eq!(failure(over_a_card, means, End::Rests), None);
        assert_eq!(failure(over_a_card, means, End::GoesOn), None);
    }
}

#[test]
fn a_node_releases_what_a_client_left_that_dropped_a_future_and_died() {
    for means in Means::ALL {
        assert_eq!(failure(over_a_card, means, End::Dies), None);
    }
}

/// Each of these bugs leaves out what a dropped future must not forget.
#[cfg(feature = "planted")]
#[test]
fn slabs_that_are_forgotten_are_noticed() {
    use loch_engines::planted::{Bug, plant};
    for bug in [
        Bug::LeftLeased,
        Bug::LeftSeized,
        Bug::LeftClosing,
        Bug::LeftForming,
        Bug::LeftSeenEarly,
        Bug::GatheredLost,
    ] {
        plant(Some(bug));
        let look = |end| move |means| failure(over_a_card, means, end);
        let mut noticed = Means::ALL.into_iter().find_map(look(End::Rests));
        noticed = noticed.or_else(|| Means::ALL.into_iter().find_map(look(End::GoesOn)));
        plant(None);
        println!("{bug:?}: {noticed:?}");
        assert!(noticed.is_some(), "{bug:?}");
    }
}
