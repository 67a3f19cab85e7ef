//! The tables, one function a figure.

use loch_engines::kv_direct::storage::Options;

use crate::designs::{Cuckoo, Design, Hopscotch, KEY_BYTES, KvDirect, Sizes};
use crate::run::{Kvs, Measured, Run};

/// The figures' contents are drawn from this seed.
const SEED: u64 = 1;

/// Bytes of a line.
const LINE_BYTES: f64 = 64.0;

/// Inline thresholds of Figure 6.
const THRESHOLDS: [usize; 4] = [10, 15, 20, 25];

/// Between two hash index ratios that are tried.
const RATIO_STEP: f64 = 0.01;

/// How many of them are tried at most.
const RATIOS_MAX: usize = 40;

/// How much is done.
pub struct Scale {
    /// Lines of memory.
    pub lines: u32,
    /// Operations of each kind behind a number.
    pub rounds: u64,
}

impl Scale {
    /// As the tables in the docs.
    pub const FULL: Self = Self { lines: 1 << 16, rounds: 20_000 };
    /// Seconds.
    pub const QUICK: Self = Self { lines: 1 << 13, rounds: 1_000 };
}

/// Prints a figure's tables.
type Figure = fn(&Scale);

/// The figures, by their names on the command line.
pub const FIGURES: [(&str, Figure); 5] = [
    ("figure6", figure6),
    ("figure9", figure9),
    ("figure10", figure10),
    ("figure11", figure11),
    ("slabs", slabs),
];

/// Keys and values of 5 to 30 bytes: what is not inline has a slab of 32 bytes, two of them
/// metadata.
fn mixed(inline_bytes_max: usize) -> Kvs {
    Kvs { key_bytes: 4, bytes: 5..=30, inline_bytes_max }
}

/// Keys and values of this size, with keys as the other designs have them.
fn of_size(bytes: usize, inline_bytes_max: usize) -> Kvs {
    Kvs { key_bytes: KEY_BYTES, bytes: bytes..=bytes, inline_bytes_max }
}

/// The keys and values of Figures 9 and 10: all inline, none inline, and some.
fn kinds() -> [Kvs; 3] {
    [of_size(10, 10), of_size(30, 0), mixed(15)]
}

/// An empty table of kv-direct.
fn kv_direct(scale: &Scale, kvs: &Kvs, index_ratio: f64) -> Run<KvDirect> {
    let options = Options {
        bytes: u64::from(scale.lines) * LINE_BYTES as u64,
        index_ratio,
        inline_bytes_max: kvs.inline_bytes_max as u16,
        versions: false,
        value_bytes_max: (kvs.bytes.end() - kvs.key_bytes) as u64,
        key_bytes: Some(kvs.key_bytes as u16),
    };
    Run::new(KvDirect::new(&options, SEED), kvs, SEED)
}

/// Percents from `from` to `to`, as shares.
fn percents(from: usize, to: usize, step: usize) -> Vec<f64> {
    (from..=to).step_by(step).map(|percent| percent as f64 / 100.0).collect()
}

/// Prints a Markdown table.
fn print(title: &str, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    println!("\n### {title}\n\n| {} |", head.join(" | "));
    println!("| {} |", vec!["---:"; head.len()].join(" | "));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// The text of a measurement, or a dash where there is none.
fn cell<T>(measured: Option<&T>, say: impl Fn(&T) -> String) -> String {
    measured.map_or("–".into(), say)
}

/// Accesses of an operation, of a GET and of a PUT.
fn mean_get_put(measured: &Measured) -> String {
    let (mean, get, put) = (measured.mean(), measured.get.mean(), measured.put());
    format!("{mean:.2} ({get:.2}, {put:.2})")
}

/// Fills `run` and measures; none if it does not get or stay so full.
fn measured<D: Design>(scale: &Scale, run: &mut Run<D>, utilisation: f64) -> Option<Measured> {
    let measured = run.fill_to(utilisation).then(|| run.measure(scale.rounds));
    measured.filter(Measured::is_steady)
}

/// Accesses with each utilisation of `full`, while one table is filled.
fn as_it_fills(scale: &Scale, kvs: &Kvs, ratio: f64, full: &[f64]) -> Vec<Option<Measured>> {
    let mut run = kv_direct(scale, kvs, ratio);
    full.iter().map(|utilisation| measured(scale, &mut run, *utilisation)).collect()
}

/// A table with a column for each of `columns` and a row for each of `rows`.
fn transposed(
    rows: &[f64],
    columns: &[Vec<Option<Measured>>],
) -> impl Iterator<Item = Vec<String>> {
    (0..rows.len()).map(|at| {
        let cells = columns.iter().map(|column| cell(column[at].as_ref(), mean_get_put));
        [percent(rows[at])].into_iter().chain(cells).collect()
    })
}

fn figure6(scale: &Scale) {
    let full = percents(5, 60, 5);
    for ratio in [0.3, 0.5] {
        let columns = THRESHOLDS.map(|bytes| as_it_fills(scale, &mixed(bytes), ratio, &full));
        let title = format!("Figure 6: inline thresholds, hash index ratio {}", percent(ratio));
        let head = ["utilisation", "10 B", "15 B", "20 B", "25 B"];
        print(&title, &head, transposed(&full, &columns));
    }
}

fn figure9(scale: &Scale) {
    let head = ["", "inline: 10 B", "not inline: 30 B", "5 to 30 B, up to 15 B inline"];
    let ratios = percents(10, 90, 10);
    let at = |kvs: &Kvs, ratio: &f64| as_it_fills(scale, kvs, *ratio, &[0.4]).remove(0);
    let columns = kinds().map(|kvs| ratios.iter().map(|ratio| at(&kvs, ratio)).collect());
    let title = "Figure 9a: hash index ratio, utilisation 40 %";
    print(title, &["hash index ratio", head[1], head[2], head[3]], transposed(&ratios, &columns));

    let full = percents(5, 60, 5);
    let columns = kinds().map(|kvs| as_it_fills(scale, &kvs, 0.5, &full));
    let title = "Figure 9b: utilisation, hash index ratio 50 %";
    print(title, &["utilisation", head[1], head[2], head[3]], transposed(&full, &columns));
}

fn figure10(scale: &Scale) {
    let row = |ratio: f64| {
        let highest = |kvs: Kvs| {
            let mut run = kv_direct(scale, &kvs, ratio);
            run.fill();
            let full = percent(run.utilisation());
            format!("{full}: {}", mean_get_put(&run.measure(scale.rounds)))
        };
        [percent(ratio)].into_iter().chain(kinds().map(highest)).collect()
    };
    print(
        "Figure 10: the highest utilisation, and the accesses there",
        &["hash index ratio", "inline: 10 B", "not inline: 30 B", "5 to 30 B, up to 15 B inline"],
        percents(10, 90, 10).into_iter().map(row),
    );

    let full = percents(10, 60, 5);
    let columns = THRESHOLDS.map(|bytes| {
        let kvs = mixed(bytes);
        let measure = |ratio, full| measured(scale, &mut kv_direct(scale, &kvs, ratio), full);
        at_largest_index(&full, |_| 1.0, measure)
    });
    let rows = (0..full.len()).map(|at| {
        let say = |(ratio, measured): &(f64, Measured)| {
            format!("{}: {:.2}", percent(*ratio), measured.mean())
        };
        let cells = columns.iter().map(|column| cell(column[at].as_ref(), say));
        [percent(full[at])].into_iter().chain(cells).collect()
    });
    print(
        "Figure 10, dashed line: the largest hash index ratio, and the accesses with it",
        &["utilisation", "10 B", "15 B", "20 B", "25 B"],
        rows,
    );
}

/// For each of `full`: the largest hash index, up to `most`, with which a table becomes so full,
/// and what
/// `measure` says with that index and utilisation.
fn at_largest_index(
    full: &[f64],
    most: impl Fn(f64) -> f64,
    measure: impl Fn(f64, f64) -> Option<Measured>,
) -> Vec<Option<(f64, Measured)>> {
    let mut last = Some(1.0f64);
    let find = |utilisation: &f64| {
        // An index too large for one utilisation is too large for all above, and where none
        // is right, none is there.
        let from = last.take()?.min(most(*utilisation));
        let ratios = (0..RATIOS_MAX).map(|step| from - step as f64 * RATIO_STEP);
        let found = ratios
            .take_while(|ratio| *ratio > 0.0)
            .find_map(|ratio| Some((ratio, measure(ratio, *utilisation)?)));
        last = found.as_ref().map(|(ratio, _)| *ratio);
        found
    };
    full.iter().map(find).collect()
}

/// The two other designs, with slabs from `slab_bytes_min` on.
fn sizes(scale: &Scale, kvs: &Kvs, slab_bytes_min: usize, index_ratio: f64) -> Sizes {
    let value_bytes = kvs.bytes.end() - kvs.key_bytes;
    Sizes { lines: scale.lines, index_ratio, value_bytes, slab_bytes_min }
}

fn cuckoo(kvs: &Kvs, sizes: &Sizes) -> Run<Cuckoo> {
    Run::new(Cuckoo::new(sizes, SEED), kvs, SEED)
}

fn hopscotch(kvs: &Kvs, sizes: &Sizes) -> Run<Hopscotch> {
    Run::new(Hopscotch::new(sizes, SEED), kvs, SEED)
}

fn figure11(scale: &Scale) {
    let small = percents(15, 50, 5).into_iter().chain(percents(52, 76, 3)).collect::<Vec<_>>();
    of_designs(scale, &of_size(10, 10), 0, &small);
    just_filled(scale, &small);
    let large = percents(15, 75, 10).into_iter().chain(percents(80, 96, 2)).collect::<Vec<_>>();
    of_designs(scale, &of_size(254, 0), 256, &large);
    highest(scale);
}

/// Figure 11 for keys and values of one size, which have slabs of so many bytes with kv-direct.
fn of_designs(scale: &Scale, kvs: &Kvs, slab_bytes: usize, full: &[f64]) {
    let bytes = *kvs.bytes.end();
    let value_bytes = (bytes - kvs.key_bytes).next_power_of_two();
    let behind = |slab: usize| move |full: f64| 1.0 - full * slab as f64 / bytes as f64;
    let other = |ratio| sizes(scale, kvs, 1, ratio);
    let designs = [
        at_largest_index(full, behind(slab_bytes), |ratio, full| {
            measured(scale, &mut kv_direct(scale, kvs, ratio), full)
        }),
        at_largest_index(full, behind(value_bytes), |ratio, full| {
            measured(scale, &mut cuckoo(kvs, &other(ratio)), full)
        }),
        at_largest_index(full, behind(value_bytes), |ratio, full| {
            measured(scale, &mut hopscotch(kvs, &other(ratio)), full)
        }),
    ];
    let print = |title: &str, say: &dyn Fn(&(f64, Measured)) -> String| {
        let rows = (0..full.len()).map(|at| {
            let cells = designs.iter().map(|design| cell(design[at].as_ref(), say));
            [percent(full[at])].into_iter().chain(cells).collect()
        });
        let head = ["utilisation", "kv-direct", "cuckoo (MemC3)", "hopscotch (FaRM)"];
        print(&format!("Figure 11, {bytes} B: {title}"), &head, rows);
    };
    print("GET, and lines that it reads", &|(_, measured)| {
        let lines = measured.get_lines as f64 / scale.rounds as f64;
        format!("{:.2}, {lines:.2}", measured.get.mean())
    });
    print("PUT of a new key, and what all but one in 1,000 need at most", &|(_, measured)| {
        format!("{:.2}, {}", measured.insert.mean(), measured.insert.all_but(1_000))
    });
    print("PUT of a key that is there", &|(_, measured)| format!("{:.2}", measured.replace.mean()));
    print("hash index ratio", &|(ratio, _)| percent(*ratio));
}

/// kv-direct's tables of 10 bytes before anything was deleted.
fn just_filled(scale: &Scale, full: &[f64]) {
    let kvs = of_size(10, 10);
    let found = at_largest_index(
        full,
        |_| 1.0,
        |ratio, full| kv_direct(scale, &kvs, ratio).measure_filling(full, scale.rounds),
    );
    let row = |(full, found): (&f64, &Option<(f64, Measured)>)| {
        let number = |say: fn(&Measured) -> f64| {
            cell(found.as_ref(), |(_, measured)| format!("{:.2}", say(measured)))
        };
        vec![
            percent(*full),
            number(|measured| measured.get.mean()),
            number(|measured| measured.insert.mean()),
            number(|measured| measured.replace.mean()),
            cell(found.as_ref(), |(ratio, _)| percent(*ratio)),
        ]
    };
    print(
        "Figure 11, 10 B: kv-direct, nothing deleted yet",
        &["utilisation", "GET", "PUT of a new key", "of one that is there", "hash index ratio"],
        full.iter().zip(&found).map(row),
    );
}

/// The highest utilisation with any hash index ratio.
fn highest(scale: &Scale) {
    fn highest<D: Design>(ratios: &[f64], make: impl Fn(f64) -> Run<D>) -> String {
        let fold = |best: (f64, f64), ratio: &f64| {
            let mut run = make(*ratio);
            run.fill();
            if run.utilisation() > best.0 { (run.utilisation(), *ratio) } else { best }
        };
        let (full, ratio) = ratios.iter().fold((0.0, 0.0), fold);
        format!("{} at {}", percent(full), percent(ratio))
    }
    let scale = &Scale { lines: scale.lines / 8, ..*scale };
    let row = |(kvs, slab_bytes_min, ratios, what): (Kvs, usize, Vec<f64>, &str)| {
        let other = |ratio| sizes(scale, &kvs, slab_bytes_min, ratio);
        vec![
            what.to_owned(),
            highest(&ratios, |ratio| kv_direct(scale, &kvs, ratio)),
            highest(&ratios, |ratio| cuckoo(&kvs, &other(ratio))),
            highest(&ratios, |ratio| hopscotch(&kvs, &other(ratio))),
        ]
    };
    let wide = [percents(10, 80, 10), percents(85, 90, 1)].concat();
    let rows = [
        (of_size(10, 10), 1, wide.clone(), "10 B, values of the others in 2 B"),
        (of_size(10, 10), 32, wide, "10 B, values of the others in 32 B"),
        (of_size(254, 0), 32, percents(3, 12, 1), "254 B"),
    ];
    print(
        "Figure 11: the highest utilisation, and at which hash index ratio",
        &["", "kv-direct", "cuckoo (MemC3)", "hopscotch (FaRM)"],
        rows.map(row),
    );
}

/// The cost of free slabs.
fn slabs(scale: &Scale) {
    let row = |(kvs, ratio, full, what): (Kvs, f64, f64, &str)| {
        let mut run = kv_direct(scale, &kvs, ratio);
        assert!(run.fill_to(full), "{what} do not fill {}", percent(full));
        let filling = run.slabs_each();
        let steady = run.measure(scale.rounds).slabs_each();
        run.drain_to(full / 2.0);
        assert!(run.fill_to(full), "{what} do not fill {} again", percent(full));
        [format!("{what}, {}", percent(full))]
            .into_iter()
            .chain([filling, steady, run.slabs_each()].map(|each| format!("{each:.3}")))
            .collect()
    };
    let rows = [
        (of_size(30, 0), 0.2, 0.6, "30 B"),
        (of_size(254, 0), 0.05, 0.8, "254 B"),
        (mixed(15), 0.5, 0.4, "5 to 30 B, up to 15 B inline"),
        (Kvs { key_bytes: 8, bytes: 9..=500, inline_bytes_max: 15 }, 0.1, 0.5, "9 to 500 B"),
    ];
    print(
        "Accesses to free slabs for each slab that is allocated or freed",
        &["", "filling", "as full as it is", "all, and emptying by half and filling again"],
        rows.map(row),
    );
}
