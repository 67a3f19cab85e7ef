//! Nessie, through the public API: everything that a program pays for.

use loch::{ByteSize, Cluster, EmbeddedConfig, Table, lanes};

use crate::{Key, Operations, Path, RECORDS, VALUE, key_of};

/// GETs and PUTs, one at a time, in 16 lanes and in batches of 32.
pub fn paths() -> Vec<Path> {
    let runs: [(&str, Operations<Table>); 6] = [
        ("GET", get),
        ("PUT", put),
        ("GET in 16 lanes", get_in_lanes),
        ("PUT in 16 lanes", put_in_lanes),
        ("GET in batches of 32", get_in_batches),
        ("PUT in batches of 32", put_in_batches),
    ];
    let config = EmbeddedConfig { memory: ByteSize::new(16 << 20), ..EmbeddedConfig::default() };
    let cluster = Cluster::embedded(config).expect("there is memory");
    let path = |(name, run): (&str, Operations<Table>)| {
        let table = cluster.table("default").expect("it is declared");
        for record in 0..RECORDS {
            table.put(&key_of(record), &VALUE).expect("there is room");
        }
        Path { name: format!("nessie {name}"), run: Box::new(move |keys| run(&table, keys)) }
    };
    runs.into_iter().map(path).collect()
}

fn get(table: &Table, keys: &[Key]) {
    let mut value = Vec::new();
    for key in keys {
        assert!(table.get_into(key, &mut value).expect("shm does not fail").is_some());
    }
}

fn put(table: &Table, keys: &[Key]) {
    for key in keys {
        table.put(key, &VALUE).expect("there is room");
    }
}

fn get_in_lanes(table: &Table, keys: &[Key]) {
    let table = table.asynch();
    let gets = keys.iter().map(async |key| {
        let mut value = Vec::new();
        table.get_into(key, &mut value).await.expect("shm does not fail").is_some()
    });
    lanes::block_on(lanes::run(16, gets, |found| assert!(found)));
}

fn put_in_lanes(table: &Table, keys: &[Key]) {
    let table = table.asynch();
    let puts = keys.iter().map(|key| table.put(key, &VALUE));
    lanes::block_on(lanes::run(16, puts, |stored| {
        stored.expect("there is room");
    }));
}

fn get_in_batches(table: &Table, keys: &[Key]) {
    for keys in keys.chunks(32) {
        let mut found = 0;
        let done = table.get_each(keys, |_, value| found += usize::from(value.is_some()));
        done.expect("shm does not fail");
        assert_eq!(found, keys.len());
    }
}

fn put_in_batches(table: &Table, keys: &[Key]) {
    let mut puts = [(Key::default(), VALUE); 32];
    for keys in keys.chunks(32) {
        puts.iter_mut().zip(keys).for_each(|(put, key)| put.0 = *key);
        table.put_many(&puts).expect("there is room");
    }
}
