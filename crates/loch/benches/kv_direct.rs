//! What a processor is good for, on shared memory: one counter that everybody wants (kv-direct
//! §5.1.3), and vectors that are computed with where they are (§5.1.5, Table 2). Prints Markdown
//! tables; ends within a minute.
//!
//! ```text
//! cargo bench -p loch --bench kv_direct [-- counter | vectors]
//! ```

use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loch::{ByteSize, Cluster, EmbeddedConfig, Lambda, Number, Table, TableConfig};
use loch_fabric::lanes;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long each row is measured.
const ROW: Duration = Duration::from_millis(1500);

fn main() -> Outcome<()> {
    let asked: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|it| it == name);
    if wants("counter") {
        counter()?;
    }
    if wants("vectors") {
        vectors()?;
    }
    Ok(())
}

fn cluster(engine: &str, nodes: u16, value_max: usize) -> Outcome<Cluster> {
    let table = TableConfig {
        engine: engine.parse().unwrap(),
        value_max: (engine != "herd").then(|| ByteSize::new(value_max as u64)),
        ..TableConfig::default()
    };
    let config = EmbeddedConfig {
        nodes,
        memory: ByteSize::new(1 << 30),
        sessions: 10,
        tables: vec![table],
        batch: 64,
        ..EmbeddedConfig::default()
    };
    Ok(Cluster::embedded(config)?)
}

/// One key, `fetch_add` from many clients: with so many lanes each.
fn counter() -> Outcome<()> {
    const LANES: usize = 32;
    println!("\nOne counter, fetch_add from clients of {LANES} lanes, millions a second:\n");
    println!(
        "| clients | `nessie` | `nessie-server` | `herd` | `kv-direct` | kv-direct / nessie |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for clients in [1, 2, 4, 8] {
        let mut rates = Vec::new();
        for engine in ["nessie", "nessie-server", "herd", "kv-direct"] {
            rates.push(count_up(engine, clients, LANES)? / 1e6);
        }
        let cells: Vec<_> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        let ratio = rates[3] / rates[0];
        println!("| {clients} | {} | {ratio:.1} |", cells.join(" | "));
    }
    Ok(())
}

/// Additions a second. All of them are there at the end.
fn count_up(engine: &str, clients: usize, lanes: usize) -> Outcome<f64> {
    let cluster = cluster(engine, 1, 1024)?;
    let (stop, begin) = (AtomicBool::new(false), Barrier::new(clients + 1));
    let work = |table: Table| -> Outcome<u64> {
        let (mut done, mut failed) = (0u64, None);
        begin.wait();
        let adds = std::iter::from_fn(|| {
            (!stop.load(Ordering::Relaxed)).then(|| table.asynch().fetch_add(b"counter", 1))
        });
        lanes::block_on(pin!(lanes::run(lanes, adds, |added| match added {
            Ok(_) => done += 1,
            Err(error) => failed = Some(error),
        })));
        failed.map_or(Ok(done), |error| Err(error.into()))
    };
    let (sum, seconds) = thread::scope(|scope| -> Outcome<(u64, f64)> {
        let tables = (0..clients).map(|_| cluster.table("default"));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let threads: Vec<_> = tables.into_iter().map(|table| scope.spawn(|| work(table))).collect();
        begin.wait();
        let from = Instant::now();
        thread::sleep(ROW);
        stop.store(true, Ordering::Relaxed);
        let mut sum = 0;
        for thread in threads {
            sum += thread.join().map_err(|_| "a client panicked")??;
        }
        Ok((sum, from.elapsed().as_secs_f64()))
    })?;
    let counted = cluster.table("default")?.fetch_add(b"counter", 0)?;
    assert_eq!(counted, sum, "every addition was counted once");
    Ok(sum as f64 / seconds)
}

/// Bytes of the longest vector.
const VECTOR_BYTES_MAX: usize = 1 << 20;

/// A way to add to every element of a vector, or to look at all of them.
type Way = (&'static str, fn(&Table, &Vector) -> Outcome<()>);

struct Vector {
    key: Vec<u8>,
    /// Keys of its elements, if each has one.
    elements: Vec<Vec<u8>>,
    bytes: usize,
}

const WAYS: [Way; 7] = [
    ("update, returning", |table, v| {
        table.fetch_update_all(&v.key, Lambda::add(1u32))?.map(drop).ok_or("it is there")?;
        Ok(())
    }),
    ("update", |table, v| {
        table.update_all(&v.key, Lambda::add(1u32))?.map(drop).ok_or("it is there")?;
        Ok(())
    }),
    ("update by another vector", |table, v| {
        let operands = vec![1u32; v.bytes / 4];
        table.update_each(&v.key, Lambda::add(0u32), &operands)?.map(drop).ok_or("it is there")?;
        Ok(())
    }),
    ("reduce", |table, v| {
        table.reduce(&v.key, Lambda::add(0u32))?.map(drop).ok_or("it is there")?;
        Ok(())
    }),
    ("filter (keeps nothing)", |table, v| {
        table.filter(&v.key, Lambda::less(0u32))?.map(drop).ok_or("it is there")?;
        Ok(())
    }),
    ("one key per element", |table, v| {
        let adds = v.elements.iter().map(|key| table.asynch().update(key, Lambda::add(1u32)));
        let mut failed = None;
        lanes::block_on(pin!(lanes::run(64, adds, |added| failed = added.err().or(failed.take()))));
        failed.map_or(Ok(()), |error| Err(error.into()))
    }),
    ("fetch to client", |table, v| {
        let value = table.get(&v.key)?.ok_or("it is there")?;
        let mut numbers = u32::of_bytes(&value);
        numbers.iter_mut().for_each(|number| *number = number.wrapping_add(1));
        table.put(&v.key, &u32::bytes(&numbers))?;
        Ok(())
    }),
];

fn vectors() -> Outcome<()> {
    let sizes = [64, 256, 1024, 16 << 10, 256 << 10, VECTOR_BYTES_MAX];
    // The client is at node 0, all vectors at node 1: so its bytes are counted as remote.
    let cluster = cluster("kv-direct", 2, VECTOR_BYTES_MAX)?;
    let table = cluster.table("default")?;
    let mut rates = Vec::new();
    for (name, way) in WAYS {
        let mut cells = Vec::new();
        for bytes in sizes {
            cells.push(if name == "one key per element" && bytes > 16 << 10 {
                ("-".into(), "-".into())
            } else {
                measure(&table, name, bytes, way)?
            });
        }
        rates.push((name, cells));
    }
    let head: Vec<_> = sizes.iter().map(|bytes| bytes.to_string()).collect();
    for (title, pick) in [("GB/s", 0), ("bytes to and from the node, for each byte", 1)] {
        println!("\nVectors of 4-byte numbers, one client: {title}\n");
        println!("| bytes | {} |", head.join(" | "));
        println!("| --- |{}", " ---: |".repeat(sizes.len()));
        for (name, cells) in &rates {
            let cells = cells.iter().map(|(rate, wire)| if pick == 0 { rate } else { wire });
            println!("| {name} | {} |", cells.cloned().collect::<Vec<_>>().join(" | "));
        }
    }
    Ok(())
}

/// GB/s, and bytes over the fabric for each byte of the vector.
fn measure(
    table: &Table,
    name: &str,
    bytes: usize,
    way: fn(&Table, &Vector) -> Outcome<()>,
) -> Outcome<(String, String)> {
    // Keys of their own: an element's value is no vector.
    let mut names = (0u64..).map(|n| format!("{name} {bytes} {n}").into_bytes());
    let mut remote = || -> Outcome<Vec<u8>> {
        loop {
            let name = names.next().ok_or("names do not end")?;
            let before = table.counters().verbs.remote_bytes;
            table.contains(&name)?;
            if table.counters().verbs.remote_bytes > before {
                return Ok(name);
            }
        }
    };
    let count = if name == "one key per element" { bytes / 4 } else { 0 };
    let elements = (0..count).map(|_| remote()).collect::<Outcome<Vec<_>>>()?;
    let vector = Vector { key: remote()?, elements, bytes };
    table.put(&vector.key, &vec![1; bytes])?;
    way(table, &vector)?;
    let before = table.counters().verbs.remote_bytes;
    let (from, mut rounds) = (Instant::now(), 0u64);
    while from.elapsed() < ROW / 4 {
        way(table, &vector)?;
        rounds += 1;
    }
    let seconds = from.elapsed().as_secs_f64();
    let all = (rounds * bytes as u64) as f64;
    let wire = (table.counters().verbs.remote_bytes - before) as f64;
    Ok((format!("{:.2}", all / seconds / 1e9), format!("{:.2}", wire / all)))
}
