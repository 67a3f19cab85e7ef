//! The look of the tables of a results file.

use super::*;

fn result(engine: &str, reads: f64, ops_per_s: f64, more: &str) -> String {
    format!(
        r#"{{{more}"engine":"{engine}","clients":1,"lanes":32,"records":1000000,"key_size":16,
        "value_size":64,"reads":{reads},"dist":"uniform","ops_per_s":{ops_per_s},
        "goodput_bytes_per_s":1,"get_us":{{"p50":1.5,"p99":12.34}},"verbs_per_get":null,
        "verbs_per_put":2,"round_trips_per_get":2.126,"round_trips_per_put":null,
        "bytes_per_get":null,"bytes_per_put":null,"server_cpu_s":0,"limit_ops_per_s":LIMIT}}"#
    )
    .replace("LIMIT", if engine == "nessie" { "10e6" } else { "null" })
    .replace('\n', "")
}

fn header(title: &str) -> String {
    format!(
        r#"{{"title":"{title}","commit":"c0ffee","date":"today","host":"two cores","command":"loch bench"}}"#
    )
}

#[test]
fn systems_are_compared_workload_by_workload() {
    let lines = [
        header("Values"),
        result("nessie", 1.0, 1e6, ""),
        result("nessie", 1.0, 8e6, ""),
        result("redis", 1.0, 0.5e6, ""),
        result("redis", 0.5, 0.25e6, ""),
    ];
    let text = markdown(&lines.join("\n")).unwrap();
    assert!(text.starts_with("Commit c0ffee, today, on two cores."), "{text}");
    for part in [
        "### Values\n\n`loch bench`\n\n64 B values, 1 000 000 records of 16 B keys, 1 client of 32 lanes:",
        "| operations/s | GETs | nessie | redis |\n| --- | ---: | ---: | ---: |",
        "| uniform | 100 % | **8 M** (80 % of the bare loop) | 0.5 M (16 ×) |",
        "| uniform | 50 % | – | 0.25 M |",
        "| uniform | 100 % | 1.5 / 12.3 | 1.5 / 12.3 |",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn variants_show_what_operations_cost() {
    let lines = [
        header("Switches"),
        result("nessie", 1.0, 5e6, r#""variant":"no filter","#),
        header("More"),
    ];
    let text = markdown(&lines.join("\n")).unwrap();
    let row =
        "| no filter | nessie | 5 M | 50 % | 1.5 / 12.3 | – | 2.13 | – | 2.00 | – | – | 0.00 |";
    assert!(text.contains(row), "{text}");
    assert_eq!(text.matches("c0ffee").count(), 1);
}

#[test]
fn what_is_no_result_is_named_by_its_line() {
    let error = markdown(&format!("{}\n{{}}", header("T"))).unwrap_err();
    assert!(error.starts_with("line 2"), "{error}");
}

#[test]
fn numbers_have_three_digits() {
    let shown = [0.0, 0.127, 1.0, 9.996, 12.34, 100.0, 1234.5].map(rounded);
    assert_eq!(shown, ["0", "0.13", "1", "10", "12.3", "100", "1234"]);
    assert_eq!([64, 1024, 1 << 20, 1500].map(size), ["64 B", "1 KiB", "1 MiB", "1500 B"]);
}

fn shown(show: &str, lines: &[String]) -> String {
    let header = header("T").replace('}', &format!(r#","show":["{show}"]}}"#));
    let lines: Vec<_> = std::iter::once(header).chain(lines.iter().cloned()).collect();
    markdown(&lines.join("\n")).unwrap()
}

fn of(variant: &str, engine: &str, ops_per_s: f64, more: &str) -> String {
    let more = format!(r#""variant":"{variant}","seconds":2,{more}"#);
    result(engine, 1.0, ops_per_s, &more)
}

#[test]
fn variants_have_rows_and_systems_columns() {
    let lines = [
        of("0 hogs", "nessie", 8e6, ""),
        of("0 hogs", "nessie-server", 4e6, ""),
        of("2 hogs", "nessie", 6e6, ""),
        of("2 hogs", "nessie-server", 1e6, r#""as":"nessie-server","#),
    ];
    let text = shown("speed-of-first-row", &lines);
    for part in [
        "| operations/s, and of the first row's | nessie | nessie-server |\n| --- | ---: | ---: |",
        "| 2 hogs | 6 M (75 %) | 1 M (25 %) |",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = shown("speed-of-first-column", &lines);
    assert!(text.contains("| 2 hogs | 6 M | 1 M (6 ×) |"), "{text}");
}

#[test]
fn loads_show_what_was_wanted_and_what_it_took() {
    let lines = [of(
        "40 %",
        "nessie-server",
        1e6,
        r#""as":"dedicated","offered_ops_per_s":1.5e6,"client_cpu_s":1,"ops_of_workers":[600,400],"#,
    )];
    let text = shown("speed", &lines);
    assert!(text.contains("| | dedicated |") || text.contains("| dedicated |"), "{text}");
    assert!(text.contains("| 40 % | 1 M of 1.5 M wanted |"), "{text}");
    assert!(shown("client-cores", &lines).contains("| 40 % | 0.50 |"));
    assert!(shown("server-cores", &lines).contains("| 40 % | 0.00 |"));
    assert!(shown("workers", &lines).contains("0.3, 0.2; most / least 1.5"));
    assert!(shown("retries", &lines).contains("| 40 % | – |"));
    let none = shown("speed-per-server-core", &lines);
    assert!(none.contains("| 40 % | – |"), "no processor was taken: {none}");
    let lines = [of("9 %", "pilaf", 9e6, ""), of("9 %", "redis", 1e6, "")]
        .map(|line| line.replace(r#""server_cpu_s":0"#, r#""server_cpu_s":1"#));
    let text = shown("speed-per-server-core", &lines);
    assert!(text.contains("| 9 % | 18 M (1 ×) | 2 M (9 ×) |"), "{text}");
}

#[test]
fn points_have_a_table_for_each_group() {
    let point = |group: &str, series: &str, parameter: &str, value: f64| {
        format!(
            r#"{{"group":"{group}","series":"{series}","parameter":"{parameter}","unit":"M/s","value":{value}}}"#
        )
    };
    let lines = [
        point("accesses", "with", "1", 9.0),
        point("accesses", "without", "1", 3.0),
        point("accesses", "with", "2", 8.0),
        point("probes", "probes/GET", "75 %", 1.6),
        point("races", "torn", "1000 keys", 0.000_33),
    ];
    let text = shown("speed", &lines);
    for part in [
        "accesses:\n\n|  | with | without | with / without |",
        "| 1 | 9 M/s | 3 M/s | 3 × |",
        "| 2 | 8 M/s | – | – |",
        "probes:\n\n|  | probes/GET |",
        "| 1000 keys | 3.3e-4 M/s |",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}
