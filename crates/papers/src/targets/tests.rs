//! The look of the table, and what a comparison notices.

use super::*;

const MEASURED: &str = r#"{"title":"Targets","commit":"c0ffee"}
{"target":"get-batches","engine":"nessie","records":1000,"ops_per_s":10.0,"limit_share":0.5}
{"target":"get-batches","engine":"nessie","records":2000,"ops_per_s":10.0,"limit_share":0.7}
{"target":"get-one","engine":"nessie","ops_per_s":1.0,"limit_one_share":0.8}
{"target":"sockets","engine":"nessie","ops_per_s":10.0,"limit_share":0.1}
{"target":"sockets","engine":"memcached","ops_per_s":0.4,"times_the_first":0.04}
{"target":"sockets","engine":"redis","ops_per_s":0.2,"times_the_first":0.02}
{"target":"short-cores","engine":"herd","ops_per_s":3.0}
{"target":"short-cores","engine":"memcached","ops_per_s":2.0,"times_the_first":0.66}
{"target":"start","value":0.31}"#;

/// The row of a target, by the beginning of its text.
fn row<'a>(table: &'a str, what: &str) -> &'a str {
    table.lines().find(|line| line.starts_with(&format!("| {what}"))).unwrap()
}

#[test]
fn the_worst_run_counts() {
    let (table, falls) = table(&parse(MEASURED).unwrap(), None);
    assert!(row(&table, "GETs in batches").ends_with("| ≥ 0.6 | **0.50** | 0.70 |"));
    assert!(row(&table, "one GET").ends_with("| ≥ 0.75 | 0.80 | 0.80 |"));
    assert!(row(&table, "32 deep, ×").ends_with("| ≥ 20 | 25.00 | 50.00 |"), "{table}");
    assert!(row(&table, "short cores").ends_with("| ≥ 1.5 | 1.50 | 1.50 |"), "{table}");
    assert!(row(&table, "start").ends_with("| ≤ 0.3 | **0.31** | 0.31 |"), "{table}");
    assert!(row(&table, "PUTs").ends_with("| – | – |"), "{table}");
    assert!(falls.is_empty());
}

#[test]
fn a_ratio_below_nine_tenths_of_the_documented_one_is_noticed() {
    let documented = parse(MEASURED).unwrap();
    let falls = |from: &str, to: &str| {
        assert!(MEASURED.contains(from));
        table(&parse(&MEASURED.replace(from, to)).unwrap(), Some(&documented)).1
    };
    assert_eq!(falls(r#"share":0.5"#, r#"share":0.46"#), [""; 0]);
    // A run is compared with itself: others do not make up for it, nor hide it.
    let fallen = falls(r#"share":0.5"#, r#"share":0.44"#);
    assert!(fallen.len() == 1 && fallen[0].contains("1000 records"), "{fallen:?}");
    let fallen = falls(r#"share":0.7"#, r#"share":0.6"#);
    assert!(fallen.len() == 1 && fallen[0].contains("2000 records"), "{fallen:?}");
    assert_eq!(falls(r#""value":0.31"#, r#""value":0.35"#), [""; 0]);
    assert_eq!(falls(r#""value":0.31"#, r#""value":0.4"#).len(), 1);
    // What was not measured is not kept.
    assert_eq!(falls("get-one", "get-two").len(), 1);
    assert_eq!(falls(r#""records":2000"#, r#""records":3000"#).len(), 1);
    let (table, _) = table(&documented, Some(&documented));
    assert!(row(&table, "start").ends_with("| **0.31** | 0.31 | 0.31 |"), "{table}");
}

#[test]
fn processor_time_is_that_of_an_operation_at_both_ends() {
    let measured = r#"{"target":"tcp-deep","engine":"herd","ops":100,"ops_per_s":50.0,"server_cpu_s":2.0,"client_cpu_s":1.0}
{"target":"tcp-deep","engine":"memcached","ops":400,"ops_per_s":200.0,"server_cpu_s":2.0,"client_cpu_s":2.0}"#;
    let (table, _) = table(&parse(measured).unwrap(), None);
    assert!(row(&table, "32 deep: each").ends_with("| ≥ 2 | **0.25** | 0.25 |"), "{table}");
    assert!(row(&table, "the same").ends_with("| ≤ 1 | **3.00** | 3.00 |"), "{table}");
    assert!(!table.contains("papaya"), "{table}");
}

#[test]
fn the_document_has_the_table_of_its_results() {
    let document = include_str!("../../../../docs/performance.md");
    let [shm, tcp] = [
        include_str!("../../../../docs/results/targets.jsonl"),
        include_str!("../../../../docs/results/targets-tcp.jsonl"),
    ];
    for results in [shm, tcp] {
        let renewed = with_table(document, &parse(results).unwrap());
        let renewed = renewed.expect("it has a place for the table");
        assert!(renewed == document, "make it anew: scripts/targets.sh [--tcp] document");
    }
}

#[test]
fn there_is_no_comparison_with_an_empty_document() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = documented(file.path()).unwrap_err().to_string();
    assert!(error.contains(&file.path().display().to_string()) && error.contains("set"), "{error}");
}
