//! Tables that evict: a PUT always finds room, and what was evicted reads as absent.

mod cluster;

use cluster::{Plan, TestCluster};
use loch_engines::Kv;
use loch_engines::nessie::geometry::Options;
use loch_engines::nessie::{Client, PutOptions};
use loch_fabric::Buf;
use loch_fabric::lanes::{self, block_on};
use loch_fabric::shm::ShmEndpoint;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn plan(table_bytes: u64, index_slots: u64) -> Plan {
    let options = Options { evicts: true, ..Options::default() };
    Plan { options, bucket_slots: 3, table_bytes, index_slots, ..Plan::default() }
}

fn put(client: &Client<ShmEndpoint>, key: &[u8], value: &[u8]) {
    block_on(client.put(key, value, PutOptions::default())).unwrap();
}

fn get(client: &Client<ShmEndpoint>, key: &[u8]) -> Option<Vec<u8>> {
    block_on(client.get(key, Buf::new())).unwrap().map(|v| v.to_vec())
}

fn key(i: u64) -> Vec<u8> {
    format!("key {i}").into_bytes()
}

/// A value that says whose it is.
fn value(i: u64, len: usize) -> Vec<u8> {
    key(i).into_iter().cycle().take(len).collect()
}

/// How many of the keys have a value. Each value is the key's.
fn present(client: &Client<ShmEndpoint>, keys: impl Iterator<Item = u64>, len: usize) -> usize {
    let has = |i: u64| {
        let found = get(client, &key(i));
        assert!(found.as_ref().is_none_or(|found| *found == value(i, len)), "key {i}");
        found.is_some()
    };
    keys.filter(|i| has(*i)).count()
}

fn check(client: &Client<ShmEndpoint>) {
    let report = block_on(client.check()).unwrap();
    assert_eq!(report.broken, Vec::<String>::new());
    assert_eq!(report.unshown, 0, "{report:?}");
}

#[test]
fn a_full_table_takes_any_number_of_values() {
    for (table_bytes, index_slots, len) in [
        // Memory is short; with long entries; the index is short.
        (2 << 20, 1 << 14, 100),
        (8 << 20, 1 << 12, 3000),
        (8 << 20, 1 << 10, 300_000),
        (4 << 20, 600, 100),
    ] {
        let cluster = TestCluster::new(plan(table_bytes, index_slots));
        let client = cluster.client(0);
        let fit = (table_bytes / (len as u64 + 48)).min(index_slots);
        for i in 0..fit * 4 {
            put(&client, &key(i), &value(i, len));
            assert_eq!(get(&client, &key(i)), Some(value(i, len)), "just put: {i}");
        }
        let count = present(&client, 0..fit * 4, len) as u64;
        assert!(count * 10 > fit * 6, "{len}: {count} of {fit} fit");
        check(&client);
        let report = block_on(client.check()).unwrap();
        let slots = cluster.map.shape.geometry.index_slots();
        assert_eq!((report.values, report.slots), (count, slots), "the check looks at all of them");
        // Whatever is gone was evicted, and is counted.
        let usage = block_on(client.usage(0)).unwrap();
        let [of] = usage.forgotten.as_deref().unwrap() else { panic!("of one class: {usage:?}") };
        assert_eq!((of.evicted, of.expired), (fit * 4 - count, 0), "{len}");
        assert_eq!(client.counts().evicted.get(), of.evicted);
    }
}

/// A batch makes room for all of its keys at once, also if they have values of several sizes.
#[test]
fn batches_fill_a_table_that_evicts() {
    for (table_bytes, index_slots, lens) in [
        // Memory is short; of several sizes; the index is short.
        (2 << 20, 1 << 14, [100, 100]),
        (2 << 20, 1 << 14, [60, 700]),
        (4 << 20, 6000, [100, 100]),
    ] {
        let cluster = TestCluster::new(plan(table_bytes, index_slots));
        let client = cluster.client(0);
        let len_of = |i: u64| lens[i as usize % 2];
        let (all, mut lost) = (40_000, 0);
        for first in (0..all).step_by(32) {
            let batch = first..first + 32;
            let pairs: Vec<_> = batch.clone().map(|i| (key(i), value(i, len_of(i)))).collect();
            let mut stored = [0; 32];
            block_on(client.put_many(&pairs, |pair, _| stored[pair] += 1)).unwrap();
            assert_eq!(stored, [1; 32], "each is stored, and told once");
            for i in batch {
                let found = get(&client, &key(i));
                assert!(found.as_ref().is_none_or(|found| *found == value(i, len_of(i))), "{i}");
                lost += u64::from(found.is_none());
            }
        }
        // The key of a batch may take the slot of another one, which nobody has used yet.
        assert!(lost < all / 20, "{lost} of {all} were gone at once");
        check(&client);
        let report = block_on(client.check()).unwrap();
        let usage = block_on(client.usage(0)).unwrap();
        let evicted: u64 = usage.forgotten.unwrap().iter().map(|of| of.evicted).sum();
        assert_eq!(report.values + evicted, all, "{lens:?}: every value is there or was evicted");
    }
}

/// A bucket may be full long before the index and the memory are.
#[test]
fn nothing_is_evicted_as_long_as_there_is_room() {
    for is_batch in [false, true] {
        let cluster = TestCluster::new(plan(8 << 20, 1 << 12));
        let client = cluster.client(0);
        let all = cluster.map.shape.geometry.index_slots() * 9 / 10;
        let pairs: Vec<_> = (0..all).map(|i| (key(i), value(i, 100))).collect();
        for pairs in pairs.chunks(32) {
            match is_batch {
                true => block_on(client.put_many(pairs, |_, _| ())).unwrap(),
                false => pairs.iter().for_each(|(key, value)| put(&client, key, value)),
            }
        }
        assert_eq!(present(&client, 0..all, 100) as u64, all, "in a batch: {is_batch}");
        check(&client);
    }
}

/// A lane makes room for the others too, but not if that takes much of the memory.
#[test]
fn lanes_that_put_long_values_keep_most_of_them() {
    let (len, table_bytes) = (30_000, 2 << 20);
    let cluster = TestCluster::new(plan(table_bytes, 1 << 10));
    let client = cluster.client(0);
    let puts = (0..600).map(|i| {
        let client = &client;
        async move { client.put(&key(i), &value(i, len), PutOptions::default()).await }
    });
    let mut errors = Vec::new();
    block_on(lanes::run(16, puts, |put| errors.extend(put.err())));
    assert!(errors.is_empty(), "{errors:?}");
    let (count, fit) = (present(&client, 0..600, len), table_bytes as usize / len);
    assert!(count * 10 > fit * 7, "{count} of {fit}");
    check(&client);
}

#[test]
fn what_had_expired_is_told_from_what_was_evicted() {
    let cluster = TestCluster::new(plan(2 << 20, 1 << 14));
    let client = cluster.client(0);
    let long_ago = PutOptions { expires_at_ms: Some(1) };
    // Entries with and without an expiry are of one class.
    let len = 105;
    for i in 0..8000 {
        let options = if i % 2 == 0 { PutOptions::default() } else { long_ago };
        block_on(client.put(&key(i), &value(i, len), options)).unwrap();
    }
    assert_eq!((get(&client, &key(0)), get(&client, &key(1))), (Some(value(0, len)), None));
    (10_000..50_000).for_each(|i| put(&client, &key(i), &value(i, len)));
    let all = block_on(client.usage(0)).unwrap().forgotten.unwrap();
    let expired: u64 = all.iter().map(|of| of.expired).sum();
    let evicted: u64 = all.iter().map(|of| of.evicted).sum();
    assert!((3500..=4000).contains(&expired) && evicted > 30_000, "{all:?}");
    check(&client);
}

#[test]
fn what_is_read_stays_and_what_is_not_goes() {
    let cluster = TestCluster::new(plan(2 << 20, 1 << 14));
    let client = cluster.client(0);
    let hot = 0..1000;
    hot.clone().for_each(|i| put(&client, &key(i), &value(i, 100)));
    let mut survived = 0;
    for round in 1..40 {
        (round * 1000..(round + 1) * 1000).for_each(|i| put(&client, &key(i), &value(i, 100)));
        survived = present(&client, hot.clone(), 100);
    }
    assert!(survived > 950, "{survived} of 1000 that are read all the time");
    // All were read in the last round.
    let cold = present(&client, 1000..39_000, 100);
    assert!((5000..13_000).contains(&cold), "{cold}");
    check(&client);
}

#[test]
fn what_is_touched_stays_as_what_is_read_does() {
    let cluster = TestCluster::new(plan(2 << 20, 1 << 14));
    let client = cluster.client(0);
    let hot = 0..1000;
    hot.clone().for_each(|i| put(&client, &key(i), &value(i, 100)));
    let options = PutOptions { expires_at_ms: Some(u64::MAX) };
    let mut survived = 0;
    for round in 1..40 {
        (round * 1000..(round + 1) * 1000).for_each(|i| put(&client, &key(i), &value(i, 100)));
        let touch = |i: &u64| block_on(client.touch(&key(*i), options)).unwrap().is_some();
        survived = hot.clone().filter(touch).count();
    }
    assert!(survived > 950, "{survived} of 1000 that are touched all the time");
    assert!(present(&client, hot, 100) > 950);
    check(&client);
}

/// The new class has no slab, and there is no free chunk.
#[test]
fn memory_goes_to_the_sizes_that_are_put() {
    let cluster = TestCluster::new(plan(16 << 20, 1 << 15));
    let client = cluster.client(0);
    for (number, len) in [1000, 100_000, 200, 700_000, 1000].into_iter().enumerate() {
        let fit = (16 << 20) / (len as u64 + 48);
        let first = number as u64 * 1_000_000;
        for i in first..first + fit * 3 {
            put(&client, &key(i), &value(i, len));
        }
        let count = present(&client, first..first + fit * 3, len) as u64;
        assert!(count > 0, "{len}: {count} of {fit} fit");
        check(&client);
    }
}

/// Puts a value by a client that does nothing else.
fn put_by_itself(cluster: &TestCluster, i: u64, len: usize) {
    let client = cluster.client(0);
    put(&client, &key(i), &value(i, len));
    block_on(client.detach()).unwrap();
    cluster.kill(client.incarnation());
}

/// All values came in one epoch, so the marks do not tell which of them are the older ones.
#[test]
fn a_size_that_has_just_come_into_use_gets_memory_of_values_that_nobody_used() {
    for (each_by_itself, least_percent) in [(false, 60), (true, 25)] {
        let cluster = TestCluster::new(plan(TABLE_BYTES, 1 << 17));
        let client = cluster.client(0);
        let short = TABLE_BYTES / 112;
        (0..short).for_each(|i| put(&client, &key(i), &value(i, 64)));
        let new = short..short + TABLE_BYTES / 5 / 7000;
        for i in new.clone() {
            if !each_by_itself {
                put(&client, &key(i), &value(i, 7000));
                continue;
            }
            put_by_itself(&cluster, i, 7000);
        }
        let (all, there) = ((new.end - new.start) as usize, present(&client, new, 7000));
        println!("{there} of {all} new values");
        assert!(there * 100 > all * least_percent, "{there} of {all} new values");
        check(&client);
    }
}

/// Each client puts one value and learns nothing: by worth alone short values that were used once
/// would keep the memory of long ones for many turnovers.
#[test]
fn clients_of_one_operation_get_memory_of_values_that_were_used_once() {
    let cluster = TestCluster::new(plan(TABLE_BYTES, 1 << 17));
    let client = cluster.client(0);
    let short = TABLE_BYTES / 112;
    (0..short).for_each(|i| put(&client, &key(i), &value(i, 64)));
    (0..short).for_each(|i| drop(get(&client, &key(i))));
    let new = short..short + TABLE_BYTES / 7000;
    new.clone().for_each(|i| put_by_itself(&cluster, i, 7000));
    let (all, there) = ((new.end - new.start) as usize, present(&client, new, 7000));
    println!("{there} of {all} new values");
    assert!(there * 100 > all * 10, "{there} of {all} new values");
    check(&client);
}

/// Reads values of so many keys, of which the later are in demand less, and puts those that are
/// not there, until memory has new values. Then returns how many of as many reads found theirs.
fn hits(client: &Client<ShmEndpoint>, keys: std::ops::Range<u64>, len: usize) -> u64 {
    let (first, count) = (keys.start, keys.end - keys.start);
    let (mut puts, mut reads, mut hits) = (0, 0, 0);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let turnover = TABLE_BYTES / len as u64;
    while puts < turnover || reads < 4 * turnover {
        let key = key(first + (rng.random::<f64>().powi(3) * count as f64) as u64);
        let found = get(client, &key).is_some();
        if puts >= turnover {
            (reads, hits) = (reads + 1, hits + u64::from(found));
        }
        if !found {
            puts += 1;
            put(client, &key, &value(first, len));
        }
    }
    hits
}

const TABLE_BYTES: u64 = 16 << 20;

#[test]
fn a_cache_whose_sizes_change_finds_almost_as_much_as_a_new_one() {
    let fresh = |len| {
        let cluster = TestCluster::new(plan(TABLE_BYTES, 1 << 15));
        hits(&cluster.client(0), 0..3 * TABLE_BYTES / len as u64, len)
    };
    let cluster = TestCluster::new(plan(TABLE_BYTES, 1 << 15));
    let client = cluster.client(0);
    for (round, len) in [1000, 60_000, 1000].into_iter().enumerate() {
        let first = round as u64 * 1_000_000;
        let found = hits(&client, first..first + 3 * TABLE_BYTES / len as u64, len);
        let fresh = fresh(len);
        println!("{len}: {found} of {fresh}");
        // So few values vary: in seven runs a cache found 0.906 of a new one's hits in the mean,
        // with a deviation of 0.015. Without the balance between sizes it found 0.18.
        assert!(found * 100 > fresh * 84, "values of {len} bytes: {found} of {fresh}");
        check(&client);
    }
}

/// A client that had evicted went on evicting beside memory that others had made free: of as many
/// values as fit it kept a tenth.
#[test]
fn what_others_delete_is_used_before_anything_is_evicted() {
    for len in [1000, 20_000, 300_000] {
        let cluster = TestCluster::new(plan(TABLE_BYTES, 1 << 15));
        let (writer, other) = (cluster.client(0), cluster.client(0));
        let fit = TABLE_BYTES / len as u64;
        (0..2 * fit).for_each(|i| put(&writer, &key(i), &value(i, len)));
        let held = block_on(other.usage(0)).unwrap().entries;
        (0..2 * fit).for_each(|i| _ = block_on(other.delete(&key(i))).unwrap());
        (2 * fit..2 * fit + held).for_each(|i| put(&writer, &key(i), &value(i, len)));
        let kept = block_on(other.usage(0)).unwrap().entries;
        assert!(kept * 100 >= held * 95, "{kept} values of {len} bytes, {held} fit");
        check(&writer);
    }
}

/// So many requests for values of one length, which would fill a table three times. Each is by the
/// next pair of clients, of which the first reads and the second puts what is not there. Returns
/// how many found theirs.
fn requests<'a>(
    by: impl Iterator<Item = [&'a Client<ShmEndpoint>; 2]>,
    table_bytes: u64,
    first: u64,
    len: usize,
    count: u64,
) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(first);
    let keys = 3 * table_bytes / len as u64;
    let mut hits = 0;
    for [reader, writer] in by.take(count as usize) {
        let key = key(first + (random.random::<f64>().powi(3) * keys as f64) as u64);
        match get(reader, &key) {
            Some(_) => hits += 1,
            None => put(writer, &key, &value(first, len)),
        }
    }
    hits
}

/// Each of several clients evicts little, looks at other memory seldom and sees little of the
/// index. Right after a change of sizes eight clients found 0.38 of what they find in a new cache,
/// and find 0.51 now.
#[test]
fn several_clients_follow_the_sizes_as_one_does() {
    const TABLE_BYTES: u64 = 64 << 20;
    let ask = |clients: &[Client<ShmEndpoint>], first, len, count| {
        let by = clients.iter().map(|client| [client, client]).cycle();
        requests(by, TABLE_BYTES, first, len, count)
    };
    let clients = |cluster: &TestCluster| (0..8).map(|_| cluster.client(0)).collect::<Vec<_>>();
    let plan = || plan(TABLE_BYTES, 1 << 16);
    let (short, long) = (1000, 100_000);
    let while_memory_moves = 3 * TABLE_BYTES / long as u64 / 2;
    let fresh = {
        let cluster = TestCluster::new(plan());
        ask(&clients(&cluster), 1_000_000, long, while_memory_moves)
    };
    let cluster = TestCluster::new(plan());
    let clients = clients(&cluster);
    ask(&clients, 0, short, 3 * TABLE_BYTES / short as u64);
    let found = ask(&clients, 1_000_000, long, while_memory_moves);
    println!("{found} of {fresh}");
    assert!(found * 100 > fresh * 45, "{found} of {fresh}");
    check(&clients[0]);
}

/// What such a client puts, others read. So it learns nothing of what values bring, and goes by how
/// old they are: without that, it found 0.70 of what a new cache finds.
#[test]
fn a_client_that_only_puts_follows_the_sizes_too() {
    let ask = |[writer, reader]: &[Client<ShmEndpoint>; 2], first, len, count| {
        requests(std::iter::repeat([reader, writer]), TABLE_BYTES, first, len, count)
    };
    let clients = |cluster: &TestCluster| [cluster.client(0), cluster.client(0)];
    let plan = || plan(TABLE_BYTES, 1 << 15);
    let (long, short) = (10_000, 1000);
    let while_memory_moves = 3 * TABLE_BYTES / short as u64 / 2;
    let fresh = {
        let cluster = TestCluster::new(plan());
        ask(&clients(&cluster), 1_000_000, short, while_memory_moves)
    };
    let cluster = TestCluster::new(plan());
    let clients = clients(&cluster);
    ask(&clients, 0, long, 9 * TABLE_BYTES / long as u64);
    let found = ask(&clients, 1_000_000, short, while_memory_moves);
    println!("{found} of {fresh}");
    assert!(found * 100 > fresh * 85, "{found} of {fresh}");
    check(&clients[0]);
}

/// What a client put was retired in another client's slab when its key was put anew, and the other
/// client evicted instead of using it: of 575 values that fit, eight clients kept 57.
#[test]
fn values_that_several_clients_put_anew_fill_the_memory() {
    for (len, keys) in [(100_000, 800), (1000, 80_000)] {
        let cluster = TestCluster::new(plan(TABLE_BYTES, 1 << 15));
        let clients: Vec<_> = (0..4).map(|_| cluster.client(0)).collect();
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let fit = TABLE_BYTES / len as u64;
        for n in 0..10 * fit.max(500) {
            let i = random.random_range(0..keys);
            put(&clients[n as usize % clients.len()], &key(i), &value(i, len));
        }
        let held = block_on(clients[0].usage(0)).unwrap().entries;
        assert!(held * 100 > fit * 80, "{held} values of {len} bytes, of {fit}");
        check(&clients[0]);
    }
}

#[test]
fn clients_that_come_later_find_room() {
    for len in [100, 100_000] {
        let cluster = TestCluster::new(plan(4 << 20, 1 << 14));
        let clients: Vec<_> = (0..8).map(|_| cluster.client(0)).collect();
        let fit = (4 << 20) / (len as u64 + 48);
        for (number, client) in clients.iter().enumerate() {
            let first = number as u64 * 1_000_000;
            for i in first..first + fit * 2 {
                put(client, &key(i), &value(i, len));
                assert_eq!(get(client, &key(i)), Some(value(i, len)));
            }
        }
        check(&clients[0]);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the clients of several processes")]
fn clients_that_fill_at_once_never_see_an_error() {
    for (len, rounds) in [(100, 20_000), (20_000, 2000)] {
        let cluster = TestCluster::new(plan(8 << 20, 1 << 14));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let cluster = &cluster;
                scope.spawn(move || {
                    let client = cluster.client(0);
                    for i in 0..rounds {
                        // Half of the keys are shared.
                        let i = if i % 2 == 0 { i } else { thread * 1_000_000 + i };
                        put(&client, &key(i), &value(i, len));
                        let found = get(&client, &key(i));
                        assert!(found.is_none_or(|found| found == value(i, len)));
                    }
                    block_on(client.detach()).unwrap();
                });
            }
        });
        let client = cluster.client(0);
        check(&client);
    }
}

/// A value that is pinned for long becomes the one that is worth least.
#[test]
fn pinned_values_do_not_keep_others_from_being_evicted() {
    for (pinned, len) in [(1, 50_000), (16, 8000), (120, 3000)] {
        let cluster = TestCluster::new(plan(1280 << 10, 1 << 10));
        let client = cluster.client(0);
        let others: Vec<_> = (0..4).map(|_| cluster.client(0)).collect();
        (0..pinned).for_each(|i| put(&client, &key(i), &value(i, len)));
        let pin = |i: u64| block_on(others[i as usize / 32].pin(&key(i))).unwrap().unwrap();
        let pins: Vec<_> = (0..pinned).map(pin).collect();
        let fit = (1280 << 10) / len as u64;
        for i in 1000..1000 + 20 * fit {
            put(&client, &key(i), &value(i, len));
            for read in (i.saturating_sub(20)).max(1000)..=i {
                get(&client, &key(read));
            }
        }
        drop(pins);
        check(&client);
    }
}

/// Pins do not keep a word in its slot: if all slots of a key show pinned values, one is moved.
#[test]
fn a_key_whose_slots_all_show_pinned_values_is_put() {
    let options = Options { evicts: true, ..Options::default() };
    let plan = Plan {
        options,
        ways: 2,
        bucket_slots: 1,
        table_bytes: 1280 << 10,
        index_slots: 256,
        ..Plan::default()
    };
    let cluster = TestCluster::new(plan);
    let client = cluster.client(0);
    // Memory is short, the index is not.
    (0..400).for_each(|i| put(&client, &key(i), &value(i, 16_000)));
    let others: Vec<_> = (0..2).map(|_| cluster.client(0)).collect();
    let held: Vec<u64> = (0..400).filter(|i| get(&client, &key(*i)).is_some()).collect();
    let pin = |(n, i): (usize, &u64)| block_on(others[n % 2].pin(&key(*i))).unwrap().unwrap();
    let pins: Vec<_> = held[held.len() / 2..].iter().enumerate().map(pin).collect();
    assert!(pins.len() > 20, "{}", pins.len());
    (1000..3000).for_each(|i| put(&client, &key(i), &value(i, 16_000)));
    drop(pins);
    check(&client);
}

/// A client with lanes evicts for all of them: what it has evicted is not yet there for a look at
/// its own slabs to end with.
#[test]
fn lanes_and_batches_take_over_the_memory_of_a_client_that_has_ended() {
    for (is_batch, len) in [(false, 3000), (true, 3000), (false, 100), (true, 100)] {
        let table_bytes = 8 << 20;
        let cluster = TestCluster::new(plan(table_bytes, 1 << 16));
        let (ends, stays) = (cluster.client(0), cluster.client(0));
        let fit = table_bytes / (len as u64 + 48);
        for i in 0..fit * 2 {
            put(&ends, &key(i), &value(i, len));
            put(&stays, &key(1_000_000 + i), &value(1_000_000 + i, len));
        }
        block_on(ends.detach()).unwrap();
        let all = 2_000_000..2_000_000 + 20 * fit;
        if is_batch {
            let pairs: Vec<_> = all.map(|i| (key(i), value(i, len))).collect();
            let batches = pairs.chunks(32).map(|pairs| stays.put_many(pairs, |_, _| ()));
            batches.for_each(|batch| block_on(batch).unwrap());
        } else {
            let stays = &stays;
            let puts = all.map(|i| async move {
                stays.put(&key(i), &value(i, len), PutOptions::default()).await
            });
            block_on(lanes::run(16, puts, |put| _ = put.unwrap()));
        }
        let left = present(&stays, 0..fit * 2, len);
        assert!(left as u64 * 5 < fit, "{left} of {fit} are old, in a batch: {is_batch}");
        check(&stays);
    }
}

#[test]
fn a_pinned_value_is_not_evicted() {
    let cluster = TestCluster::new(plan(2 << 20, 1 << 14));
    let client = cluster.client(0);
    // As long as the others, so that they are after its memory.
    put(&client, b"pinned", &value(0, 100));
    let pinned = block_on(client.pin(b"pinned")).unwrap().unwrap();
    for i in 0..100_000 {
        put(&client, &key(i), &value(i, 100));
    }
    assert_eq!(get(&client, b"pinned"), Some(value(0, 100)));
    drop(pinned);
    // Values that were never used age the others a quarter as fast.
    for i in 0..400_000 {
        put(&client, &key(i), &value(i, 100));
    }
    assert_eq!(get(&client, b"pinned"), None, "it was not read for long");
    check(&client);
}

#[test]
fn a_key_that_returns_soon_begins_as_used() {
    for is_batch in [false, true] {
        let cluster = TestCluster::new(plan(2 << 20, 1 << 14));
        // The client that evicts does no GETs, so it goes by the guess of what marks are worth.
        let (client, reader) = (cluster.client(0), cluster.client(0));
        let put_all = |keys: std::ops::Range<u64>| {
            let pairs: Vec<_> = keys.map(|i| (key(i), value(i, 100))).collect();
            for pairs in pairs.chunks(32) {
                match is_batch {
                    true => block_on(client.put_many(pairs, |_, _| ())).unwrap(),
                    false => pairs.iter().for_each(|(key, value)| put(&client, key, value)),
                }
            }
        };
        let (returning, new) = (0..1000, 100_000..101_000);
        put_all(returning.clone());
        // Keys come until half of these are gone.
        let mut next = 1000;
        while present(&reader, next - 500..next, 100) > 0 && next < 30_000 {
            put_all(next..next + 500);
            next += 500;
            if returning.clone().filter(|i| get(&reader, &key(*i)).is_some()).count() < 500 {
                break;
            }
        }
        put_all(returning.clone());
        put_all(new.clone());
        put_all(200_000..212_000);
        let [returned, new] = [returning, new].map(|keys| present(&reader, keys, 100));
        assert!(returned > new * 3 / 2, "{returned} that have returned, {new} that are new");
    }
}
