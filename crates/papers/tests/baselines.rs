//! `loch-papers bench`: the systems that the papers compare theirs with, as real processes for
//! about a second each, and in virtual time.

#[path = "../../../tests/measured/mod.rs"]
mod measured;

use std::process::Command;

use measured::{costs, number, object, simulated_object};

const PAPERS: &str = env!("CARGO_BIN_EXE_loch-papers");

#[test]
fn every_baseline_runs_and_leaves_nothing() {
    let line = "--clients 2 --lanes 4 --records 2000 --value-size 32 --reads 0.5 --ops 8000";
    for baseline in ["pilaf-vo", "farm-em", "farm-em-var"] {
        let object = object(PAPERS, baseline, &format!("--baseline {baseline} {line}"));
        assert_eq!((&object["ops"], &object["errors"]), (&8000.into(), &0.into()), "{object}");
        assert_eq!(object["gets"], object["get_hits"], "{object}");
        assert!(number(&object, "verbs_per_get") >= 1.0, "{object}");
    }
    for baseline in ["echo-send-send", "echo-write-write", "echo-write-send"] {
        let object = object(PAPERS, baseline, &format!("--baseline {baseline} --workers 2 {line}"));
        assert_eq!((&object["ops"], &object["errors"]), (&8000.into(), &0.into()), "{object}");
        assert_eq!(object["get_hits"], 0, "nothing is stored: {object}");
    }
}

#[test]
fn every_baseline_costs_what_the_papers_say() {
    let run = |engine: &str, options: &str| {
        let line = format!(
            "--baseline {engine} --clients 6 --lanes 2 --window 2 --records 2000 --value-size 32 \
             --reads 0.5 --seconds 0.0005 {options}"
        );
        let object = simulated_object(PAPERS, &line);
        assert_eq!((&object["engine"], &object["errors"]), (&engine.into(), &0.into()), "{object}");
        assert!(number(&object, "server_cpu_s") > 0.0, "{object}");
        object
    };
    let hosts = "--client-hosts 3 --workers 2";
    // One READ of 6 * (16 + 32) bytes, or one of pointers and one of the value; a PUT is a WRITE
    // and the WRITE of its reply (herd §5.1.2).
    for (engine, reads, bytes) in [("farm-em", 1.0, 288.0), ("farm-em-var", 2.0, 144.0 + 32.0)] {
        let object = run(engine, hosts);
        assert_eq!(object["gets"], object["get_hits"], "{object}");
        let [get, put] = costs(&object);
        assert!((reads..reads + 0.05).contains(&get.0) && get.0 == get.1, "{object}");
        assert!((bytes..bytes * 1.05).contains(&number(&object, "bytes_per_get")), "{object}");
        assert_eq!(put, (2.0, 1.0), "{object}");
    }
    for engine in ["echo-send-send", "echo-write-write", "echo-write-send"] {
        let object = run(engine, hosts);
        assert_eq!((costs(&object), &object["get_hits"]), ([(2.0, 1.0); 2], &0.into()), "{object}");
        assert!(number(&object, "gets") > 0.0, "{object}");
    }
    let object = run("pilaf-vo", "");
    assert_eq!(object["gets"], object["get_hits"], "{object}");
    // On its nodes' hosts, too, where replies are stored.
    for (engine, hits) in [("farm-em", true), ("farm-em-var", true), ("echo-write-write", false)] {
        let object = run(engine, "--nodes 2");
        assert_eq!(object["gets"] == object["get_hits"], hits, "{object}");
        // Values that were being written when they were read.
        assert!(number(&object, "retries") < 0.01 * number(&object, "gets"), "{object}");
    }
}

/// What a run says that was called wrongly.
fn refused(options: &str) -> String {
    let line = format!("bench --records 10 {options}");
    let output = Command::new(PAPERS).args(line.split_whitespace()).output();
    let output = output.expect("the binary under test starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    stderr
}

#[test]
fn what_no_datagram_holds_is_refused() {
    for baseline in ["pilaf-vo", "echo-write-send"] {
        let stderr = refused(&format!("--fabric sim --baseline {baseline} --value-size 4KiB"));
        assert!(stderr.contains("--value-size") && stderr.contains(baseline), "{stderr}");
    }
}

#[test]
fn what_a_baseline_cannot_do_is_refused() {
    for (options, word) in [
        ("--baseline farm-em --fabric verbs", "--fabric verbs"),
        ("--baseline pilaf-vo --fabric sim --client-hosts 1", "pilaf-vo"),
        ("--baseline farm-em,pilaf-vo --workers 2", "one worker"),
        ("--baseline farm-em --batch 4", "--batch"),
        ("--baseline herd", "farm-em"),
        ("--fabric sim", "--baseline"),
    ] {
        let stderr = refused(options);
        assert!(stderr.contains(word), "{options}: {stderr}");
    }
}
