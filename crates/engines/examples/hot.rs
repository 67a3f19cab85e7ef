//! scratch
#[path = "../tests/cluster/mod.rs"]
mod cluster;
use cluster::{Plan, TestCluster};
use loch_engines::nessie::{
    PutOptions,
    hash::{Candidates, TableMap},
    ite::Ite,
};
use loch_fabric::{
    Buf, Fabric, RemoteAddr,
    lanes::{block_on, run},
};
use rand::{Rng, RngExt, SeedableRng};
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    s.split(" ").next().unwrap().parse::<f64>().unwrap() / 1e9
}
struct To<'a>(&'a TableMap, usize);
impl loch_fabric::shm::Chase for To<'_> {
    #[inline(always)]
    fn entry(&self, word: u64) -> (RemoteAddr, usize) {
        let p = self.0.codec.place(Ite(word));
        (self.0.data_base(p.dti).unwrap().add(p.idx as u64 * 16), self.1)
    }
}
fn main() {
    let n: u64 = std::env::args().nth(1).map_or(10_000_000, |a| a.parse().unwrap());
    let lanes: usize = std::env::args().nth(2).map_or(16, |a| a.parse().unwrap());
    let vs: usize = std::env::args().nth(3).map_or(64, |a| a.parse().unwrap());
    let skew = std::env::args().nth(4).is_some();
    let bytes = n * (vs as u64 + 48 + 64) * 5 / 4 + (n * 8 * 4 / 3) + (64 << 20);
    let cluster =
        TestCluster::new(Plan { table_bytes: bytes, index_slots: n * 4 / 3, ..Plan::default() });
    let client = cluster.client(0);
    let c = &client;
    let key = |i: u64| {
        let mut k = [0u8; 16];
        k[..8].copy_from_slice(&i.wrapping_mul(0x9E3779B97F4A7C15).to_le_bytes());
        k
    };
    let t = cpu();
    let value = vec![7u8; vs];
    let v = &value;
    block_on(run(
        lanes,
        (0..n).map(|i| async move {
            c.put(&key(i), v, PutOptions::default()).await.unwrap();
        }),
        |_| (),
    ));
    println!("load {:.2} Mops moves {}", n as f64 / (cpu() - t) / 1e6, c.counts().moves.get());
    if std::env::var("NOPUT").is_ok() && n <= 20000 {
        println!("small");
    }
    let ops = 4_000_000u64.min(n * 100).min((40u64 << 30) / (vs as u64 + 100));
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let trace: Vec<u64> = (0..ops)
        .map(|_| {
            let r = rng.random_range(0..n);
            if skew { (r as f64 / n as f64).powi(6).mul_add(n as f64, 0.0) as u64 } else { r }
        })
        .collect();
    let slots: Vec<RemoteAddr> = trace
        .iter()
        .map(|i| {
            let cand = Candidates::of(&cluster.map, &key(*i));
            (0..cand.len())
                .map(|s| cand.slot(s))
                .find(|a| {
                    let w = c.fabric().load(*a).unwrap();
                    cluster.map.codec.is_visible(Ite(w))
                        && cluster.map.codec.has_filter(Ite(w), cand.filter)
                })
                .unwrap()
        })
        .collect();
    for _ in 0..2 {
        let t = cpu();
        let s = client
            .fabric()
            .chase(&slots, &To(&cluster.map, (48 + vs).next_multiple_of(16)))
            .unwrap();
        let limit = ops as f64 / (cpu() - t) / 1e6;
        println!("limit {limit:.2} Mops ({s})");
        let t = cpu();
        let before = c.fabric().counters().snapshot();
        let hits = std::cell::Cell::new(0u64);
        let h = &hits;
        let per = ops as usize / lanes;
        block_on(run(
            lanes,
            trace.chunks(per).map(|chunk| async move {
                let mut buf = Buf::with_capacity(256);
                for i in chunk {
                    if let Some(f) = c.get(&key(*i), buf).await.unwrap() {
                        h.set(h.get() + f.len() as u64 / f.len().max(1) as u64);
                        buf = f.into_buf();
                    } else {
                        buf = Buf::new();
                    }
                }
            }),
            |_| (),
        ));
        let g = ops as f64 / (cpu() - t) / 1e6;
        let d = c.fabric().counters().snapshot() - before;
        println!(
            "get {g:.2} Mops = {:.0} % of limit; hits {}/{} reads/op {:.2} rt/op {:.2}",
            g / limit * 100.,
            hits.get(),
            ops,
            d.reads as f64 / ops as f64,
            d.round_trips as f64 / ops as f64
        );
        if std::env::var("NOPUT").is_ok() {
            continue;
        }
        let t = cpu();
        block_on(run(
            lanes,
            trace.chunks(per).map(|chunk| async move {
                for i in chunk {
                    c.put(&key(*i), v, PutOptions::default()).await.unwrap();
                }
            }),
            |_| (),
        ));
        let p = ops as f64 / (cpu() - t) / 1e6;
        println!("put {p:.2} Mops = {:.0} % of get", p / g * 100.);
    }
}
