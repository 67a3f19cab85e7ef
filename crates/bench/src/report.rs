//! The output of a run: JSON lines for programs, a table for people.
//!
//! Programs rely on the names and the order of the JSON fields.
//! A field that does not apply to a system is null.

use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use serde::Serialize;

use crate::measured::{Measured, Spread};
use crate::options::{Connections, ReadMode};
use crate::rate::Rate;
use crate::spec::Spec;
use crate::system::Fabric;
use crate::tally::{Latencies, OpTraffic, Tally};
use crate::target::System;
use crate::tuning::Tuning;

/// One JSON object.
#[derive(Debug, Serialize)]
pub struct Object {
    engine: &'static str,
    /// Null for peers, and so is `nodes`: only Loch has these.
    fabric: Option<&'static str>,
    /// Says that times say nothing about a network card; left out if there is a real card.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<&'static str>,
    /// Left out unless connections are encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    encrypted: Option<bool>,
    nodes: Option<u32>,
    clients: u32,
    lanes: usize,
    records: u64,
    key_size: usize,
    value_size: usize,
    reads: f64,
    dist: String,
    /// The file that was replayed; left out if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// The memory that each cache had in all; left out unless the workload is a cache's.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    seconds: f64,
    /// GETs and PUTs that were answered.
    ops: u64,
    ops_per_s: f64,
    /// Operations a second that should have begun in an open loop; left out in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    offered_ops_per_s: Option<f64>,
    gets: u64,
    puts: u64,
    get_hits: u64,
    /// Shares of the GETs that found a value, and of the bytes that GETs asked for; the values that
    /// were held in the end, the bytes of these with keys and headers, if the system says so, and
    /// the values that were evicted in the measured phase. Left out unless the workload is a
    /// cache's.
    #[serde(skip_serializing_if = "Option::is_none")]
    hit_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte_hit_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values_held: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_held: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted: Option<u64>,
    /// Bytes of values found and stored, a second.
    goodput_bytes_per_s: f64,
    get_us: Quantiles,
    put_us: Quantiles,
    /// Null for peers.
    retries: Option<u64>,
    errors: u64,
    verbs_per_get: Option<f64>,
    verbs_per_put: Option<f64>,
    round_trips_per_get: Option<f64>,
    round_trips_per_put: Option<f64>,
    bytes_per_get: Option<f64>,
    bytes_per_put: Option<f64>,
    /// Null for a store without a server.
    server_cpu_s: Option<f64>,
    client_cpu_s: f64,
    /// Operations a second of the bare loop, the best with prefetching and the one without; over
    /// TCP, with as many messages under way as the operations have, and with one: the medians of
    /// the turns. Null where there is no bare loop.
    limit_ops_per_s: Option<f64>,
    limit_one_ops_per_s: Option<f64>,
    /// The share of `limit_ops_per_s` that the workload reached in the same turn: the median of the
    /// turns, and the lowest and highest.
    limit_share: Option<f64>,
    limit_share_spread: Option<[f64; 2]>,
    /// The same of `limit_one_ops_per_s`.
    limit_one_share: Option<f64>,
    limit_one_share_spread: Option<[f64; 2]>,
    /// How many times as fast as the first system of the run, in the same turns; null for the
    /// first one, and where the systems did not take turns.
    times_the_first: Option<f64>,
    times_the_first_spread: Option<[f64; 2]>,
    /// Busy processes beside the measured ones.
    background_hogs: u32,
    /// Whether a client's outstanding operations were batches. An operation's latency begins with
    /// its batch.
    batches: bool,
    /// `copy`, or `pin` where the system reads in place.
    read_mode: ReadMode,
    /// What was simulated; left out if nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<Connections>,
    /// Clients reached the memory of their own node over the network, too; left out if they did
    /// not.
    #[serde(skip_serializing_if = "Option::is_none")]
    far: Option<bool>,
    /// Requests that each worker answered, if that is known; else left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    ops_of_workers: Option<Vec<u64>>,
    /// For the notes under the table.
    #[serde(skip)]
    tuning: Option<Tuning>,
}

/// Latencies in microseconds; null when nothing was timed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
    mean: Option<f64>,
}

impl Object {
    /// The name of the system that was measured.
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    /// The object of one system's measurement.
    ///
    /// `first` is the first system's, if the two took turns.
    pub fn new(
        spec: &Spec,
        system: &dyn System,
        measured: &Measured,
        first: Option<&Measured>,
    ) -> Self {
        let tally = measured.tally;
        let ops = tally.gets + tally.puts;
        let per_s = |count: u64| rounded(count as f64 / measured.seconds.max(1e-9), 1);
        let median = |spread: Spread| rounded(spread.median, 1);
        let [hit_ratio, byte_hit_ratio] = hit_ratios(spec, tally);
        let is_loch = system.is_loch();
        let in_place = system.reads_in_place(spec.fabric);
        let is_simulated = is_loch && spec.fabric == Fabric::Sim;
        let traffic = measured.traffic.unwrap_or_default();
        let (get, put) = (traffic.get, traffic.put);
        let (share, one_share) = (measured.limit_share(), measured.limit_one_share());
        let first = first.filter(|first| !std::ptr::eq(*first, measured));
        let times = first.and_then(|first| measured.times(first));
        Object {
            engine: system.name(),
            fabric: is_loch.then(|| spec.fabric.name()),
            times: spec.soft_roce.then_some("meaningless: Soft-RoCE"),
            encrypted: (is_loch && spec.encrypt).then_some(true),
            nodes: is_loch.then_some(spec.nodes),
            clients: spec.clients,
            lanes: spec.lanes,
            records: spec.records,
            key_size: spec.key_size,
            value_size: spec.value_size,
            reads: if spec.replay.is_some() { 1.0 } else { spec.reads },
            dist: if spec.replay.is_some() { "trace".into() } else { spec.dist.to_string() },
            trace: spec.replay.as_ref().map(|replay| replay.file.display().to_string()),
            memory_bytes: spec.cache_bytes(),
            seconds: rounded(measured.seconds, 6),
            ops,
            ops_per_s: per_s(ops),
            offered_ops_per_s: measured.offered_ops_per_s.map(|offered| rounded(offered, 1)),
            gets: tally.gets,
            puts: tally.puts,
            get_hits: tally.get_hits,
            hit_ratio,
            byte_hit_ratio,
            values_held: measured.usage.map(|usage| usage.values),
            bytes_held: measured.usage.and_then(|usage| usage.bytes),
            evicted: measured.usage.map(|usage| usage.evicted),
            goodput_bytes_per_s: per_s(tally.hit_bytes + tally.put_bytes),
            get_us: Quantiles::of(&measured.gets),
            put_us: Quantiles::of(&measured.puts),
            retries: is_loch.then_some(tally.retries),
            errors: tally.errors,
            verbs_per_get: per_op(get, get.verbs),
            verbs_per_put: per_op(put, put.verbs),
            round_trips_per_get: per_op(get, get.round_trips),
            round_trips_per_put: per_op(put, put.round_trips),
            bytes_per_get: per_op(get, get.bytes),
            bytes_per_put: per_op(put, put.bytes),
            server_cpu_s: measured.server_cpu_s.map(|cpu_s| rounded(cpu_s, 6)),
            client_cpu_s: rounded(measured.client_cpu_s, 6),
            limit_ops_per_s: measured.limit_ops_per_s().map(median),
            limit_one_ops_per_s: measured.limit_one_ops_per_s().map(median),
            limit_share: share.map(Spread::median),
            limit_share_spread: share.map(Spread::bounds),
            limit_one_share: one_share.map(Spread::median),
            limit_one_share_spread: one_share.map(Spread::bounds),
            times_the_first: times.map(Spread::median),
            times_the_first_spread: times.map(Spread::bounds),
            background_hogs: spec.background_hogs,
            batches: measured.batches,
            read_mode: if in_place { spec.read_mode } else { ReadMode::Copy },
            profile: is_simulated.then(|| spec.hardware.profile().name),
            connections: is_simulated.then_some(spec.connections),
            far: (is_loch && spec.far).then_some(true),
            ops_of_workers: measured.ops_of_workers.clone(),
            tuning: measured.tuning,
        }
    }
}

/// The shares of GETs and of bytes that a cache had.
fn hit_ratios(spec: &Spec, tally: Tally) -> [Option<f64>; 2] {
    let of = |hits: u64, all: u64| {
        (spec.is_cache() && all > 0).then(|| rounded(hits as f64 / all as f64, 6))
    };
    [of(tally.get_hits, tally.gets), of(tally.hit_bytes, tally.hit_bytes + tally.miss_bytes)]
}

impl Spread {
    fn median(self) -> f64 {
        rounded(self.median, 4)
    }

    fn bounds(self) -> [f64; 2] {
        [self.min, self.max].map(|bound| rounded(bound, 4))
    }
}

impl Quantiles {
    fn of(latencies: &Latencies) -> Self {
        let us = |ns: f64| (!latencies.is_empty()).then(|| rounded(ns / 1000.0, 3));
        let at = |quantile| us(latencies.value_at_quantile(quantile) as f64);
        Quantiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            mean: us(latencies.mean()),
        }
    }
}

/// Writes one object and a line end.
pub fn print_json(object: &Object) -> io::Result<()> {
    let mut line = serde_json::to_vec(object)?;
    line.push(b'\n');
    put_out(&line)
}

/// Writes the table of all systems.
pub fn print_table(spec: &Spec, objects: &[Object]) -> io::Result<()> {
    let mut text = heading(spec);
    text.push('\n');
    if spec.soft_roce {
        text.push_str("over Soft-RoCE, software in the place of a card: counts are right, times say nothing\n");
    }
    tables(objects).for_each(|table| text.push_str(&format!("\n{table}\n")));
    for object in objects.iter().filter(|object| object.batches) {
        let engine = object.engine;
        text += &format!("{engine}: in batches; an operation's time begins with its batch\n");
    }
    if spec.read_mode == ReadMode::Pin {
        let copies = objects.iter().filter(|object| object.read_mode == ReadMode::Copy);
        copies.for_each(|object| text.push_str(&format!("{}: values are copied\n", object.engine)));
    }
    objects.iter().filter_map(tuning_note).for_each(|note| text.push_str(&note));
    put_out(text.as_bytes())
}

/// If the reader has closed its end, that is no error.
pub fn put_out(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn heading(spec: &Spec) -> String {
    format!(
        "{};\n{}, {} client{} of {} lane{}{}{}{}{}",
        workload(spec),
        match spec.rate {
            None => "closed loop".into(),
            Some(Rate::PerSecond(_)) => "open loop".into(),
            Some(rate) => format!("open loop of {rate} of a closed loop's operations"),
        },
        spec.clients,
        plural(u64::from(spec.clients)),
        spec.lanes,
        plural(spec.lanes as u64),
        match spec.fabric {
            _ if spec.far => ", far from all memory",
            // Over TCP as well: peers have no such half.
            Fabric::Tcp => ", each near the memory of its own node",
            _ => "",
        },
        match spec.read_mode {
            ReadMode::Pin => ", values read in place",
            ReadMode::Copy => "",
        },
        match spec.background_hogs {
            0 => String::new(),
            hogs => format!(", beside {hogs} background hog{}", plural(hogs.into())),
        },
        match spec.fabric {
            Fabric::Sim => format!(
                "; simulated: {}{}",
                spec.hardware.profile().name,
                match spec.connections {
                    Connections::Client => "",
                    Connections::Host => ", connections shared by the clients of a host",
                }
            ),
            _ if spec.encrypt => "; connections are encrypted".into(),
            _ => match &spec.attach {
                Some(attach) => format!("; the cluster of {}", attach.socket.display()),
                None => String::new(),
            },
        },
    )
}

/// The operations, and what they are about.
fn workload(spec: &Spec) -> String {
    let Some(replay) = &spec.replay else {
        return format!(
            "{} records of {} B keys and {} B values, {} % GETs, {}",
            grouped(spec.records as f64),
            spec.key_size,
            spec.value_size,
            rounded(spec.reads * 100.0, 2),
            spec.dist,
        );
    };
    format!(
        "{}: {} requests of {} keys of {} B, whose values have {}; caches of {}",
        replay.file.display(),
        grouped(replay.requests as f64),
        grouped(replay.keys as f64),
        spec.key_size,
        bytes(replay.value_bytes),
        bytes(spec.cache_bytes().unwrap_or_default()),
    )
}

fn bytes(count: u64) -> String {
    match count {
        0..10_000_000 => format!("{} kB", grouped(count as f64 / 1e3)),
        _ => format!("{} MB", grouped(count as f64 / 1e6)),
    }
}

fn tuning_note(object: &Object) -> Option<String> {
    let way = object.tuning?.in_words();
    Some(format!("{}: {way}, the fastest of the ways tried\n", object.engine))
}

/// A line below the header.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));

/// The tables: speed, and what it costs.
fn tables(objects: &[Object]) -> impl Iterator<Item = Table> {
    [SPEED, COSTS].into_iter().map(|columns| table(objects, columns))
}

/// One row for each system; columns without a value are left out.
fn table(objects: &[Object], columns: &[(&str, Show)]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let Some(first) = objects.first() else {
        return table;
    };
    let is_alone = objects.len() == 1;
    let columns: Vec<_> = columns
        .iter()
        .filter(|(name, show)| {
            let compares = name.contains('×');
            !(is_alone && compares) && objects.iter().any(|object| show(object, first).is_some())
        })
        .collect();
    let names = columns.iter().map(|(name, _)| name.replace('_', first.engine));
    table.set_header(cells(String::new(), names));
    for object in objects {
        let values = columns.iter().map(|(_, show)| show(object, first));
        let shown = values.map(|value| value.unwrap_or_else(|| "–".into()));
        table.add_row(cells(object.engine.to_string(), shown));
    }
    table
}

fn cells(name: String, values: impl Iterator<Item = String>) -> Vec<Cell> {
    let values = values.map(|value| Cell::new(value).set_alignment(CellAlignment::Right));
    std::iter::once(Cell::new(name)).chain(values).collect()
}

/// Shows a value of a system, which may be compared with the value of the first system.
type Show = fn(&Object, &Object) -> Option<String>;

/// `_` stands for the name of the first system, with which others are compared.
const SPEED: &[(&str, Show)] = &[
    ("operations/s", |o, _| Some(grouped(o.ops_per_s))),
    ("wanted", |o, _| o.offered_ops_per_s.map(grouped)),
    ("× of\n_", times),
    ("MB/s", |o, _| Some(grouped(o.goodput_bytes_per_s / 1e6))),
    ("GET µs\nmedian", |o, _| digits(o.get_us.p50)),
    ("× of\n_", |o, first| {
        // A latency that begins with a batch cannot be compared with one that does not.
        let first = first.get_us.p50.filter(|_| o.batches == first.batches);
        ratio(o.get_us.p50, first)
    }),
    ("GET µs\n99 %", |o, _| digits(o.get_us.p99)),
    ("GET µs\n99.9 %", |o, _| digits(o.get_us.p999)),
    ("PUT µs\nmedian", |o, _| digits(o.put_us.p50)),
    ("PUT µs\n99 %", |o, _| digits(o.put_us.p99)),
];

const COSTS: &[(&str, Show)] = &[
    ("GETs\nhit", |o, _| {
        let share = 100.0 * o.get_hits as f64 / o.gets as f64;
        (o.gets > 0).then(|| format!("{share:.1} %"))
    }),
    ("bytes\nhit", |o, _| o.byte_hit_ratio.map(|share| format!("{:.1} %", 100.0 * share))),
    ("values\nheld", |o, _| o.values_held.map(|values| grouped(values as f64))),
    ("evicted", |o, _| o.evicted.map(|values| grouped(values as f64))),
    ("errors", |o, _| Some(grouped(o.errors as f64))),
    ("retries", |o, _| o.retries.map(|retries| grouped(retries as f64))),
    ("verbs\n/GET", |o, _| digits(o.verbs_per_get)),
    ("trips\n/GET", |o, _| digits(o.round_trips_per_get)),
    ("verbs\n/PUT", |o, _| digits(o.verbs_per_put)),
    ("trips\n/PUT", |o, _| digits(o.round_trips_per_put)),
    ("server\nCPU s", |o, _| digits(o.server_cpu_s)),
    ("client\nCPU s", |o, _| digits(Some(o.client_cpu_s))),
    ("of bare\nloop", |o, _| {
        let is_one = o.lanes == 1;
        in_percent(o.limit_share, o.limit_share_spread).filter(|_| !is_one)
    }),
    ("of bare loop,\none at a time", |o, _| {
        let is_one = o.lanes == 1;
        in_percent(o.limit_one_share, o.limit_one_share_spread).filter(|_| is_one)
    }),
];

/// How many times as fast as the first system: by turns, if they took turns.
fn times(object: &Object, first: &Object) -> Option<String> {
    match object.times_the_first {
        Some(times) => ratio(Some(times), Some(1.0)),
        None => ratio(Some(object.ops_per_s), Some(first.ops_per_s)),
    }
}

/// The median of shares, and their bounds.
fn in_percent(median: Option<f64>, bounds: Option<[f64; 2]>) -> Option<String> {
    let (median, [min, max]) = median.zip(bounds)?;
    let [median, min, max] = [median, min, max].map(|share| 100.0 * share);
    Some(format!("{median:.0} %\n{min:.0}-{max:.0}"))
}

/// A number with two digits behind the point, and fewer if it is large.
fn digits(value: Option<f64>) -> Option<String> {
    value.map(|value| match value {
        1000.0.. => grouped(value),
        100.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    })
}

fn ratio(value: Option<f64>, of: Option<f64>) -> Option<String> {
    let (value, of) = value.zip(of).filter(|(_, of)| *of > 0.0)?;
    let ratio = value / of;
    Some(if ratio < 0.1 { format!("{ratio:.4} ×") } else { format!("{ratio:.2} ×") })
}

fn per_op(traffic: OpTraffic, total: u64) -> Option<f64> {
    (traffic.ops > 0).then(|| rounded(total as f64 / traffic.ops as f64, 4))
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// A whole number with its thousands apart.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;
    use crate::measured::{Limits, Turn};
    use crate::system::{Engine, Peer};
    use crate::tally::{Traffic, Usage, latencies};

    fn named(name: &str) -> Engine {
        name.parse().unwrap()
    }

    fn measured(system: &dyn System) -> Measured {
        let mut gets = latencies();
        gets.record_n(1500, 100).unwrap();
        let per_get = OpTraffic { ops: 100, verbs: 250, round_trips: 200, bytes: 9600 };
        Measured {
            seconds: 0.5,
            tally: Tally { gets: 100, get_hits: 100, hit_bytes: 6400, ..Tally::default() },
            gets,
            puts: latencies(),
            traffic: system
                .is_loch()
                .then_some(Traffic { get: per_get, put: OpTraffic::default() }),
            usage: None,
            batches: system.is_loch(),
            refusal: None,
            server_cpu_s: Some(0.0),
            client_cpu_s: 0.5,
            turns: vec![Turn {
                ops_per_s: 200.0,
                limits: system
                    .is_loch()
                    .then_some(Limits { ops_per_s: 400.0, one_ops_per_s: 250.0 }),
            }],
            tuning: (!system.is_loch()).then_some(Tuning::OneCore),
            offered_ops_per_s: None,
            ops_of_workers: None,
        }
    }

    fn object(spec: &Spec, system: &dyn System) -> Object {
        Object::new(spec, system, &measured(system), None)
    }

    #[test]
    fn the_json_is_the_contract_to_the_letter() {
        let spec = spec("--records 10 --reads 1").unwrap();
        let object = object(&spec, &named("nessie-hybrid"));
        assert_eq!(
            serde_json::to_string(&object).unwrap(),
            concat!(
                r#"{"engine":"nessie-hybrid","fabric":"shm","nodes":1,"clients":1,"lanes":16,"#,
                r#""records":10,"key_size":16,"value_size":64,"reads":1.0,"dist":"zipf:0.99","#,
                r#""seconds":0.5,"ops":100,"ops_per_s":200.0,"gets":100,"puts":0,"get_hits":100,"#,
                r#""goodput_bytes_per_s":12800.0,"#,
                r#""get_us":{"p50":1.5,"p90":1.5,"p99":1.5,"p999":1.5,"mean":1.5},"#,
                r#""put_us":{"p50":null,"p90":null,"p99":null,"p999":null,"mean":null},"#,
                r#""retries":0,"errors":0,"verbs_per_get":2.5,"verbs_per_put":null,"#,
                r#""round_trips_per_get":2.0,"round_trips_per_put":null,"bytes_per_get":96.0,"#,
                r#""bytes_per_put":null,"server_cpu_s":0.0,"client_cpu_s":0.5,"#,
                r#""limit_ops_per_s":400.0,"limit_one_ops_per_s":250.0,"#,
                r#""limit_share":0.5,"limit_share_spread":[0.5,0.5],"limit_one_share":0.8,"#,
                r#""limit_one_share_spread":[0.8,0.8],"times_the_first":null,"#,
                r#""times_the_first_spread":null,"background_hogs":0,"batches":true,"read_mode":"copy"}"#
            )
        );
    }

    #[test]
    fn a_cache_says_what_it_found_and_what_it_evicted() {
        let spec = spec("--eviction sieve --memory 64MiB").unwrap();
        let tally = Tally { gets: 100, get_hits: 75, ..Tally::default() };
        let tally = Tally { hit_bytes: 1000, miss_bytes: 3000, ..tally };
        let usage = Some(Usage { values: 50, evicted: 1234, bytes: Some(5678) });
        let measured = Measured { tally, usage, ..measured(&Peer::Redis) };
        let object = Object::new(&spec, &Peer::Redis, &measured, None);
        let json = serde_json::to_value(&object).unwrap();
        let found = ["hit_ratio", "byte_hit_ratio"].map(|field| json[field].as_f64());
        assert_eq!(found, [Some(0.75), Some(0.25)]);
        let fields = ["values_held", "bytes_held", "evicted", "memory_bytes"];
        let counted = fields.map(|field| json[field].as_u64());
        assert_eq!(counted, [Some(50), Some(5678), Some(1234), Some(64 << 20)]);
        let text = shown(&[object]);
        assert!(text.contains("75.0 %") && text.contains("25.0 %"), "{text}");
        assert!(text.contains("1 234"), "{text}");
    }

    #[test]
    fn an_open_loop_says_what_was_wanted() {
        let spec = spec("--rate 40%").unwrap();
        let measured = Measured { offered_ops_per_s: Some(250.04), ..measured(&named("nessie")) };
        let object = Object::new(&spec, &named("nessie"), &measured, None);
        let json = serde_json::to_value(object).unwrap();
        assert_eq!(
            (&json["offered_ops_per_s"], &json["ops_per_s"]),
            (&250.0.into(), &200.0.into())
        );
        assert!(heading(&spec).contains("open loop of 40%"), "{}", heading(&spec));
    }

    #[test]
    fn what_does_not_apply_to_a_peer_is_null() {
        let object = object(&spec("").unwrap(), &Peer::Redis);
        let json = serde_json::to_value(&object).unwrap();
        for field in ["fabric", "nodes", "retries", "verbs_per_get", "limit_ops_per_s"] {
            assert!(json[field].is_null(), "{field}");
        }
        assert_eq!(json["engine"], "redis");
    }

    #[test]
    fn systems_are_compared_turn_by_turn() {
        let turns = |rates: [f64; 3]| Measured {
            turns: rates.map(|ops_per_s| Turn { ops_per_s, limits: None }).into(),
            ..measured(&Peer::Lmdb)
        };
        let (first, second) = (turns([10.0, 100.0, 20.0]), turns([5.0, 50.0, 40.0]));
        let spec = spec("").unwrap();
        let object = |measured| Object::new(&spec, &Peer::Lmdb, measured, Some(&first));
        assert_eq!(object(&first).times_the_first, None);
        let second = object(&second);
        assert_eq!(second.times_the_first, Some(0.5));
        assert_eq!(second.times_the_first_spread, Some([0.5, 2.0]));
        // Their rates over all turns are the same.
        let text = shown(&[object(&first), second]);
        assert!(text.contains("0.50 ×"), "{text}");
    }

    fn shown(objects: &[Object]) -> String {
        tables(objects).map(|table| format!("{table}\n")).collect()
    }

    #[test]
    fn the_table_compares_with_the_first() {
        let spec = spec("").unwrap();
        let systems: [&dyn System; 2] = [&named("nessie"), &Peer::Memcached];
        let mut objects = systems.map(|system| object(&spec, system));
        objects[1].ops_per_s = 10.0;
        let text = shown(&objects);
        let row = text.lines().find(|line| line.contains("memcached")).unwrap();
        assert!(text.contains("× of") && row.contains("0.0500 ×"), "{text}");
        assert!(!shown(&objects[..1]).contains('×'), "there is nothing to compare with");
    }

    #[test]
    fn the_table_of_slow_and_fast_systems_fits_a_hundred_columns() {
        let spec = spec("").unwrap();
        let systems: [&dyn System; 3] =
            [&named("nessie"), &named("nessie-published"), &Peer::Memcached];
        let mut objects = systems.map(|system| object(&spec, system));
        for (object, scale) in objects.iter_mut().zip([1.0, 7.0, 2500.0]) {
            let us = |us: f64| Some(us * scale);
            object.ops_per_s = 12_345_678.0 / scale;
            object.goodput_bytes_per_s = object.ops_per_s * 64.0;
            object.get_us.p50 = us(0.5);
            (object.get_us.p99, object.get_us.p999) = (us(4.0), us(8.0));
            (object.put_us.p50, object.put_us.p99) = (us(0.5), us(4.0));
            (object.verbs_per_put, object.round_trips_per_put) = (Some(12.5), Some(10.25));
            object.retries = object.retries.map(|_| 123_456);
            object.limit_share_spread = object.limit_share_spread.map(|_| [0.25, 1.125]);
        }
        let text = shown(&objects);
        let columns = text.lines().map(|line| line.chars().count()).max();
        assert!(columns <= Some(100), "{columns:?}\n{text}");
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(1000.4), "1 000");
        assert_eq!(grouped(12_345_678.0), "12 345 678");
    }
}
