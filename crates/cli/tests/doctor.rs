//! `loch doctor` on this machine, whatever it has.

use std::process::{Command, Output};

use serde_json::Value;

fn doctor(arguments: &[&str]) -> (Option<i32>, String, String) {
    let command = Command::new(env!("CARGO_BIN_EXE_loch")).arg("doctor").args(arguments).output();
    let Output { status, stdout, stderr } = command.expect("the binary under test starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

fn json(arguments: &[&str]) -> (Option<i32>, Value) {
    let (code, stdout, _) = doctor(&[arguments, &["--json"]].concat());
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}")))
}

fn names(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// How often a fabric's verbs worked, and how often they did not.
fn counts(report: &Value, fabric: &str) -> Vec<(u64, u64)> {
    let trials = report["self_test"].as_array().expect("a list").iter();
    let number = |value: &Value| value.as_u64().expect("a count");
    let of_it = trials.filter(|trial| trial["fabric"] == fabric);
    of_it.map(|trial| (number(&trial["count"]), number(&trial["errors"]))).collect()
}

#[test]
fn shared_memory_works_where_loch_is_built() {
    let (code, stdout, stderr) = doctor(&[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    for word in ["this host", "/dev/shm", "locked memory", "RDMA", "libibverbs", "rdma_cm", "p99"] {
        assert!(stdout.contains(word), "no {word:?} in {stdout}");
    }
    let (code, report) = json(&[]);
    assert_eq!((code, &report["ok"], &report["fabric"]), (Some(0), &true.into(), &"shm".into()));
    let fields = [
        "chosen",
        "fabric",
        "findings",
        "has_verbs",
        "host",
        "nodes",
        "ok",
        "rdma",
        "self_test",
        "version",
    ];
    let mut found = names(&report);
    found.sort_unstable();
    assert_eq!(found, fields);
    let trials = counts(&report, "shm");
    assert!(trials.len() >= 7 && trials.iter().all(|(count, errors)| *count > 0 && *errors == 0));
}

#[test]
fn rdma_is_there_and_works_or_is_a_problem_with_a_remedy() {
    let (code, report) = json(&["--fabric", "verbs"]);
    let ok = report["ok"].as_bool().expect("a word");
    assert_eq!(code, Some(if ok { 0 } else { 1 }), "{report}");
    let has_device = !report["chosen"].is_null();
    let trials = counts(&report, "verbs");
    assert_eq!(has_device, !trials.is_empty(), "{report}");
    assert!(trials.iter().all(|(count, errors)| *count > 0 && *errors == 0), "{report}");
    if !has_device {
        let findings = report["findings"].as_array().expect("a list");
        let mut problems = findings.iter().filter(|finding| finding["mark"] == "problem");
        assert!(!ok && problems.any(|problem| problem["remedy"].is_string()), "{report}");
        // As it was tested, and not with whatever its dependencies are by now.
        let mut remedies = findings.iter().filter_map(|finding| finding["remedy"].as_str());
        assert!(!remedies.any(|it| it.contains("install --path")), "without --locked: {report}");
        let (code, _, stderr) = doctor(&["--fabric", "verbs", "--no-self-test"]);
        assert!(code == Some(1) && stderr.starts_with("loch doctor: "), "{stderr}");
    }
}

#[test]
fn a_device_that_is_not_there_is_not_replaced_by_another() {
    let arguments = ["--fabric", "verbs", "--device", "nobody0", "--no-self-test"];
    let (code, report) = json(&arguments);
    assert_eq!((code, &report["chosen"]), (Some(1), &Value::Null));
    assert_eq!(report["self_test"], Value::Array(Vec::new()));
}

#[test]
fn a_wrong_call_is_told_apart_from_a_wrong_machine() {
    for wrong in [&["--fabric", "sim"][..], &["--port", "0"], &["--gid-index", "x"], &["here"]] {
        let (code, stdout, stderr) = doctor(wrong);
        assert!(code == Some(2) && stdout.is_empty() && !stderr.is_empty(), "{wrong:?}: {stderr}");
    }
}
