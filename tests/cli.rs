//! The command line, as users and scripts meet it: every command, every exit code, and what a node
//! keeps when it is stopped, killed and started again.

mod support;

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use support::{Node, Process, loch, private_dir, region_of, run, socket_of, wait_for};

const SMALL: &[&str] = &["--memory", "16MiB"];

fn random(bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    ChaCha8Rng::seed_from_u64(50).fill_bytes(&mut random);
    random
}

/// Starts a node that must fail with exit code `code` and all of `words`.
fn refused(dir: &Path, flags: &[&str], code: i32, words: &[&str]) {
    run(&mut Node::command(dir, "n", flags), b"").expect(code, words);
}

#[test]
fn values_go_in_and_come_out() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    node.loch(&["get", "colour"]).expect(1, &["\"colour\" has no value"]);
    let put = node.loch(&["put", "colour", "green"]);
    assert_eq!((put.expect(0, &[]).text(), &*put.stderr), ("", ""));
    assert_eq!(node.loch(&["get", "colour"]).expect(0, &[]).text(), "green");
    node.loch(&["put", "colour", "blue"]).expect(0, &[]);
    assert_eq!(node.loch(&["get", "colour"]).expect(0, &[]).text(), "blue");
    node.loch(&["delete", "colour"]).expect(0, &[]);
    node.loch(&["delete", "colour"]).expect(1, &["has no value"]);
    node.loch(&["get", "colour"]).expect(1, &["has no value"]);

    node.loch(&["put", "empty", ""]).expect(0, &[]);
    assert_eq!(node.loch(&["get", "empty"]).expect(0, &[]).text(), "");
    node.loch(&["put", "minus", "-5"]).expect(0, &[]);
    assert_eq!(node.loch(&["get", "minus"]).expect(0, &[]).text(), "-5");
    node.loch(&["put", "--", "--odd", "--value"]).expect(0, &[]);
    assert_eq!(node.loch(&["get", "--", "--odd"]).expect(0, &[]).text(), "--value");

    let key = std::ffi::OsStr::from_bytes(b"\xff\n\x01");
    node.loch_with(&["put".as_ref(), key, "-".as_ref()], b"\0\xfe\n").expect(0, &[]);
    assert_eq!(node.loch(&["get".as_ref(), key]).expect(0, &[]).stdout, b"\0\xfe\n");
    let longest = "k".repeat(64 << 10);
    node.loch(&["put", &longest, "v"]).expect(0, &[]);
    assert_eq!(node.loch(&["get", &longest]).expect(0, &[]).text(), "v");
}

#[test]
fn numbers_are_computed_where_they_are() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "16MiB", "--engine", "kv-direct"]);
    let says = |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        node.loch(&args).expect(0, &[]).text().to_owned()
    };
    assert_eq!(says("update visits add 41"), "0\n");
    assert_eq!(says("update visits add 0x1"), "41\n");
    assert_eq!(says("update visits compare-swap 42 7"), "42\n");
    assert_eq!(says("update cold min -3.5 --element f64"), "0\n");
    assert_eq!(says("update cold add 1 --element f64"), "-3.5\n");

    let numbers: Vec<u8> = [3i16, -1, 4, -1, 5].iter().flat_map(|n| n.to_le_bytes()).collect();
    node.loch_with(&["put", "v", "-"], &numbers).expect(0, &[]);
    assert_eq!(says("reduce v add --element i16"), "10\n");
    assert_eq!(says("reduce v max --element i16"), "5\n");
    assert_eq!(says("reduce v add --initial -10 --element i16"), "0\n");
    assert_eq!(says("filter v greater 3 --element i16"), "4\n5\n");
    assert_eq!(says("filter v less -1 --element i16"), "");
    assert_eq!(says("update v add 1 --all --element i16"), "");
    let before = says("update v add 0 1 2 3 -4 --each --before --element i16");
    assert_eq!(before, "4\n0\n5\n0\n6\n");
    let each = ["update", "v", "subtract", "-", "--each", "--element", "i16"];
    node.loch_with(&each, b"4 1\n7\n3 2\n").expect(0, &[]);
    let raw = node.loch(&["filter", "v", "equal", "0", "--element", "i16", "--raw"]);
    assert_eq!(raw.expect(0, &[]).stdout, [0; 10]);

    for (line, code, words) in [
        ("reduce none add", 1, "has no value"),
        ("update none add 1 --all", 1, "has no value"),
        ("filter none less 1", 1, "has no value"),
        ("update v add 1", 2, "10 bytes"),
        ("update v add 1 --each --element i16", 2, "10 bytes"),
        ("update v add 70000 --element i16", 2, "-32768 to 32767"),
        ("update v add 1 2", 2, "--each"),
        ("update v less 1 --all --element i16", 2, "filters"),
        ("update v and 1 --all --element f32", 2, "10 bytes"),
        ("update v user:3 1 --all --element i16", 2, "function 3"),
        ("update v plus 1", 2, "saturating-add"),
        ("reduce v user:3", 2, "--initial"),
    ] {
        let args: Vec<_> = line.split(' ').collect();
        node.loch(&args).expect(code, &[words]);
    }
    assert_eq!(node.loch(&["check"]).expect(0, &[]).text().matches("0 broken").count(), 1);
    assert!(says("stats").contains("engine kv-direct with 1 worker"));
}

#[test]
fn who_asks_a_table_that_does_not_compute_is_told_which_do() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    node.loch(&["update", "n", "add", "1"]).expect(2, &["nessie", "kv-direct"]);
    node.loch(&["reduce", "n", "add"]).expect(2, &["nessie", "kv-direct"]);
}

#[test]
fn fifty_mebibytes_come_out_as_they_went_in() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "384MiB", "--value-max", "64MiB"]);
    let value = random(50 << 20);
    node.loch_with(&["put", "large", "-"], &value).expect(0, &[]);
    // Again, so that there are two for a moment.
    node.loch_with(&["put", "large", "-"], &value).expect(0, &[]);
    let got = node.loch(&["get", "large"]);
    assert!(got.expect(0, &[]).stdout == value, "{} bytes", got.stdout.len());
    assert_eq!(node.loch(&["check", "--leaks"]).code, Some(0));
}

#[test]
fn conditions_are_kept() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    let put = |flags: &[&str]| node.loch(&[&["put", "k", "v"], flags].concat());
    put(&["--if-version", "1"]).expect(1, &["it has no value"]);
    let first = put(&["--if-absent", "--show-version"]);
    let first = first.expect(0, &[]).text().trim().to_owned();
    put(&["--if-absent"]).expect(1, &["\"k\" was not changed", &first]);
    let second = put(&["--if-version", &first, "--show-version"]);
    let second = second.expect(0, &[]).text().trim().to_owned();
    assert_ne!(first, second);
    put(&["--if-version", &first]).expect(1, &[&second]);
    let got = node.loch(&["get", "k", "--show-version"]);
    assert!(got.expect(0, &[&second]).stdout == b"v");
    put(&["--if-version", &first, "--if-absent"]).expect(2, &["cannot be used with"]);
}

#[test]
fn keys_are_listed_and_deleted_by_their_beginning() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    for arguments in [&["scan"][..], &["scan", "--page", "begin"], &["delete", "--all"]] {
        node.loch(arguments).expect(1, &["table \"default\" has no keys"]);
    }
    for key in ["user:1", "user:2", "other"] {
        node.loch(&["put", key, "value"]).expect(0, &[]);
    }
    node.loch(&["put", "user:3", "late", "--ttl", "1h"]).expect(0, &[]);
    let lines = |args: &[&str]| {
        let told = node.loch(args);
        let mut lines: Vec<_> = told.expect(0, &[]).text().lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&["scan"]), ["other", "user:1", "user:2", "user:3"]);
    assert_eq!(lines(&["scan", "--prefix", "user:"]), ["user:1", "user:2", "user:3"]);
    assert_eq!(lines(&["scan", "--limit", "2"]).len(), 2);
    assert_eq!(node.loch(&["scan", "--prefix", "o", "-0"]).expect(0, &[]).text(), "other\0");
    let json = lines(&["scan", "--json", "--prefix", "user:3"]);
    let json: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!((&json["key"], &json["value_bytes"]), (&"user:3".into(), &4.into()));
    assert!(json["expires_at_ms"].is_u64() && json["version"].is_u64(), "{json}");

    let mut page = node.loch(&["scan", "--page", "begin"]);
    let mut seen = 0;
    while let Some((_, place)) = page.expect(0, &["page"]).stderr.trim().rsplit_once("--page ") {
        seen += page.text().lines().count();
        page = node.loch(&["scan", "--page", place]);
    }
    assert_eq!(seen + page.text().lines().count(), 4);
    // Few keys in many buckets: a page without keys is none.
    let first = node.loch(&["scan", "--page", "begin", "--prefix", "other"]);
    assert_eq!(first.expect(0, &["page"]).text(), "other\n");
    let nothing = node.loch(&["scan", "--page", "begin", "--prefix", "nobody"]);
    assert!(nothing.expect(1, &["has no key that begins with \"nobody\""]).text().is_empty());
    for place in ["1.x", "1.x@default", "0.5.0.0"] {
        node.loch(&["scan", "--page", place]).expect(2, &[&format!("{place:?}: use `begin`")]);
    }
    // It was taken for the beginning.
    let other = node.loch(&["scan", "--page", "0.5.0.0@other"]);
    other.expect(2, &["a place of table \"other\", and not of \"default\"", "begin"]);

    node.loch(&["delete", "--prefix", ""]).expect(2, &["--all"]);
    node.loch(&["delete"]).expect(2, &["a key", "--prefix", "--all"]);
    node.loch(&["delete", "--prefix", "user:"]).expect(0, &["3 values were removed"]);
    node.loch(&["delete", "--prefix", "user:"]).expect(1, &["begins with \"user:\""]);
    assert_eq!(lines(&["scan"]), ["other"]);
    node.loch(&["delete", "--all"]).expect(0, &["1 value was removed"]);
}

#[test]
fn what_is_appended_comes_behind_the_value() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    let append = |value: &str, flags: &[&str]| {
        node.loch(&[&["put", "k", value, "--append"], flags].concat())
    };
    append("one", &[]).expect(0, &[]);
    let version = append(", two", &["--show-version"]);
    let version = version.expect(0, &[]).text().trim().to_owned();
    node.loch_with(&["put", "k", "-", "--append"], b", three").expect(0, &[]);
    let got = node.loch(&["get", "k"]);
    assert_eq!(got.expect(0, &[]).text(), "one, two, three");
    node.loch(&["put", "k", "x", "--if-version", &version]).expect(1, &["was not changed"]);
    for flags in [&["--ttl", "5s"][..], &["--if-absent"], &["--if-version", "1"]] {
        append("x", flags).expect(2, &["cannot be used with"]);
    }
}

#[test]
fn a_value_is_touched_and_so_lives_longer_or_for_ever() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    node.loch(&["touch", "k", "--ttl", "5m"]).expect(1, &["\"k\" has no value"]);
    node.loch(&["get", "k", "--touch", "5m"]).expect(1, &["\"k\" has no value"]);
    node.loch(&["put", "k", "v", "--ttl", "5m"]).expect(0, &[]);
    let version = node.loch(&["touch", "k", "--persist", "--show-version"]);
    let version = version.expect(0, &[]).text().trim().to_owned();
    let put = node.loch(&["put", "k", "w", "--if-version", &version, "--ttl", "5m"]);
    put.expect(0, &[]);
    assert_eq!(node.loch(&["get", "k", "--persist"]).expect(0, &[]).text(), "w");
    assert_eq!(node.loch(&["get", "k", "--touch", "50ms"]).expect(0, &[]).text(), "w");
    wait_for("the value to expire", || (node.loch(&["get", "k"]).code == Some(1)).then_some(()));
    node.loch(&["touch", "k"]).expect(2, &["--ttl"]);
    for arguments in
        [["touch", "k", "--ttl", "5s", "--persist"], { ["get", "k", "--touch", "5s", "--persist"] }]
    {
        node.loch(&arguments).expect(2, &["cannot be used with"]);
    }
}

#[test]
fn a_value_with_a_lifetime_expires() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    node.loch(&["put", "long", "v", "--ttl", "7d"]).expect(0, &[]);
    node.loch(&["put", "short", "v", "--ttl", "50ms"]).expect(0, &[]);
    wait_for("the value to expire", || {
        (node.loch(&["get", "short"]).code == Some(1)).then_some(())
    });
    assert_eq!(node.loch(&["get", "long"]).expect(0, &[]).text(), "v");
    for bad in ["5", "0s", "x", "-1s"] {
        node.loch(&["put", "k", "v", &format!("--ttl={bad}")]).expect(2, &["--ttl"]);
    }
}

#[test]
fn who_calls_wrongly_is_told_how_to_call() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "16MiB", "--value-max", "1MiB"]);
    let expect = |arguments: &[&str], code, words: &[&str]| {
        node.loch(arguments).expect(code, words);
    };
    expect(&[], 2, &["Usage: loch"]);
    expect(&["dance"], 2, &["dance"]);
    expect(&["get"], 2, &["<KEY>"]);
    expect(&["put", "k"], 2, &["<VALUE>"]);
    expect(&["get", ""], 2, &["the key is empty", "1 to 65536"]);
    expect(&["put", "", "v"], 2, &["the key is empty"]);
    expect(&["delete", ""], 2, &["the key is empty"]);
    let long = "k".repeat((64 << 10) + 1);
    for command in [&["get", &long][..], &["put", &long, "v"], &["delete", &long]] {
        let ended = node.loch(command);
        ended.expect(2, &["65537 bytes", "1 to 65536"]);
        assert!(ended.stderr.len() < 500, "{}", ended.stderr);
    }
    for command in [
        &["get", "k", "--table", "t"][..],
        &["put", "k", "v", "--table", "t"],
        &["delete", "k", "--table", "t"],
        &["check", "--table", "t"],
    ] {
        expect(command, 2, &["no table \"t\"", "default"]);
    }
    for (line, words) in [
        ("scan --limit abc", ["'abc' for '--limit <N>'", "a whole number, such as 16"]),
        ("scan --limit 1.5", ["'1.5' for '--limit <N>'", "a whole number, such as 16"]),
        ("scan --limit 99999999999999999999", ["--limit", "up to 18446744073709551615"]),
        ("put k v --if-version x", ["'x' for '--if-version", "a whole number"]),
        ("bench --reads half", ["'half' for '--reads", "such as 0.5"]),
        ("touch k --ttl 213503982335d", ["'213503982335d'", "213503982334d is the longest"]),
    ] {
        let arguments: Vec<_> = line.split(' ').collect();
        expect(&arguments, 2, &words);
    }
    let value = random((1 << 20) + 1);
    node.loch_with(&["put", "k", "-"], &value[1..]).expect(0, &[]);
    node.loch_with(&["put", "k", "-"], &value).expect(2, &["1048576", "value_max"]);
    assert_eq!(node.loch(&["get", "k"]).stdout, &value[1..], "it has the value it had");
}

#[test]
fn a_cluster_that_fails_says_so() {
    let dir = private_dir();
    let socket = socket_of(dir.path(), "n");
    let get = |wait: &str| {
        let mut get = loch();
        get.args(["get", "k", "--wait", wait, "--socket"]).arg(&socket);
        run(&mut get, b"")
    };
    get("0s").expect(3, &["n.sock", "loch serve"]);
    fs::write(&socket, b"").expect("a file");
    get("20ms").expect(3, &["n.sock"]);
    // Wrong arguments are reported whether or not there is a node.
    run(loch().args(["get", "", "--socket"]).arg(&socket), b"").expect(2, &["the key is empty"]);
    run(&mut Node::command(dir.path(), "n", SMALL), b"").expect(2, &["n.sock", "no socket"]);
    assert!(socket.exists(), "a file that is not the node's is left alone");
    fs::remove_file(&socket).expect("it is there");
    // A client that comes first waits.
    let mut early = loch();
    early.args(["put", "k", "v", "--wait", "60s", "--socket"]).arg(&socket);
    let mut early = Process::new(early.spawn().expect("it starts"));
    let node = Node::start(dir.path(), "n", SMALL);
    assert_eq!(early.ended().code(), Some(0));
    assert_eq!(node.loch(&["get", "k"]).expect(0, &[]).text(), "v");
}

#[test]
fn a_table_that_is_full_says_so() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "16MiB", "--value-max", "3MiB"]);
    let value = random(3 << 20);
    let full = (0..20).map(|n| node.loch_with(&["put", &n.to_string(), "-"], &value));
    let full = full.into_iter().find(|put| put.code != Some(0)).expect("it fills");
    full.expect(3, &["no memory", "delete keys", "more memory"]);
    assert!(node.loch(&["get", "0"]).stdout == value);
    node.loch(&["delete", "0"]).expect(0, &[]);
    node.loch_with(&["put", "again", "-"], &value).expect(0, &[]);
    node.loch(&["check"]).expect(0, &[]);
}

#[test]
fn nodes_that_cannot_start_say_why() {
    let dir = private_dir();
    let at = dir.path();
    refused(at, &["--memory", "1MiB"], 2, &["memory"]);
    refused(at, &["--memory", "lots"], 2, &["--memory", "64, 16KiB"]);
    if cfg!(not(feature = "verbs")) {
        refused(at, &["--fabric", "verbs"], 2, &["no verbs backend", "tcp"]);
    }
    refused(at, &["--fabric", "tcp"], 2, &["listen", "give the address", "shm"]);
    refused(at, &["--listen", "x"], 2, &["listen", "HOST:PORT"]);
    let two = ["--listen", "127.0.0.1:1", "--cluster", "127.0.0.1:1,127.0.0.1:2"];
    refused(at, &two, 2, &["2 nodes", "--secret", "urandom"]);
    refused(at, &["--fabric", "wool"], 2, &["--fabric", "shm"]);
    refused(at, &["--engine", "steam"], 2, &["no engine \"steam\"", "nessie"]);
    let own = socket_of(at, "n").display().to_string();
    refused(at, &["--cluster", "/other.sock"], 2, &["own socket", &own, "add it", "choose"]);
    let twice = format!("{own},{own}");
    refused(at, &["--cluster", &twice], 2, &[&own, "twice", "each node once"]);
    for (flag, value) in [("--secret", "x"), ("--device", "x"), ("--agent-threads", "2")] {
        let field = flag[2..].replace('-', "_");
        refused(at, &[flag, value], 2, &[&field, "leave it out", "give `listen`"]);
    }
    let none = ["--listen", "127.0.0.1:1", "--agent-threads", "0"];
    refused(at, &none, 2, &["agent_threads", "it is 0", "1 to 64"]);
    refused(at, &["--memory", "64KiB"], 2, &["memory = \"2MiB\" it fits"]);
    refused(at, &["--table", "t", "--table", "t"], 2, &["\"t\" is declared twice"]);
    run(loch().args(["serve", "--name", "a/b"]), b"").expect(2, &["name", "A-Z"]);
    let beside = fs::read_dir(at).expect("a directory").count();
    assert_eq!(beside, 0, "nothing is left");
}

/// All that was said was that it cannot be opened, or that it cannot be looked at.
#[test]
fn folders_that_are_not_there_are_named_with_what_to_do() {
    let dir = private_dir();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), b"").expect("a file");
    let refused = |socket: Option<&str>, region: &str, words: &[&str]| {
        let mut serve = loch();
        serve.args(["serve", "--memory", "16MiB", "--region"]).arg(at(region));
        serve.env("XDG_RUNTIME_DIR", at("runtime"));
        socket.map(|socket| serve.arg("--socket").arg(at(socket)));
        run(&mut serve, b"").expect(3, words);
    };
    refused(Some("none/s"), "r", &["/none: No such file", "make it", "another socket"]);
    refused(Some("s"), "none/r", &["/none: No such file", "make it", "another region"]);
    refused(Some("file/s"), "r", &["/file: it is no folder", "another socket"]);
    refused(None, "r", &["/runtime: No such file", "make it", "another XDG_RUNTIME_DIR or socket"]);
    let left: Vec<_> = fs::read_dir(dir.path()).expect("a directory").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_disk_without_room_is_named() {
    let dir = private_dir();
    let room = rustix::fs::statvfs(dir.path()).expect("a file system");
    if room.f_bavail * room.f_frsize > 1 << 40 {
        println!("skipped: this machine has more than 1 TiB of room");
        return;
    }
    // A table of pilaf may be that large.
    let flags = ["--memory", "1TiB", "--engine", "pilaf"];
    refused(dir.path(), &flags, 3, &["no room", "1TiB", "n.region", "less memory"]);
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0, "nothing is left");
}

/// A herd table of more than there is ended the process with a backtrace.
#[test]
fn memory_that_is_not_to_be_had_is_named_with_its_table() {
    let dir = private_dir();
    for engine in ["herd", "kv-direct"] {
        let flags = ["--engine", engine, "--memory", "4TiB", "--workers", "128"];
        let flags = [&flags[..], &["--value-max", "512", "--sessions", "64"]].concat();
        refused(dir.path(), &flags, 3, &["table \"default\"", "this host has", "less memory"]);
        // The host has it, and this process may not have it.
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -v 786432; exec \"$0\" \"$@\"", support::LOCH, "serve"]);
        limited.arg("--socket").arg(socket_of(dir.path(), "n"));
        limited.arg("--region").arg(region_of(dir.path(), "n"));
        limited.args(["--ephemeral", "--engine", engine, "--memory", "1GiB"]);
        run(&mut limited, b"").expect(3, &["table \"default\"", "of memory", "less memory"]);
    }
}

#[test]
fn a_configuration_file_is_read_and_its_mistakes_are_named() {
    let dir = private_dir();
    let at = dir.path();
    let file = at.join("n.toml");
    let config = file.to_str().expect("text").to_owned();
    refused(at, &["--config", &config], 2, &["n.toml", "No such file"]);
    for (text, words) in [
        ("name = \"n\"\nmemry = 1", &["n.toml", "line 2", "memry"][..]),
        ("memory = \"1GB\"", &["n.toml", "line 1", "1GB"]),
        ("[[table]]\nname = 7", &["n.toml", "line 2"]),
        ("name = ", &["n.toml", "line 1"]),
        ("eviction = \"sieve\"", &["line 1", "eviction", "write it below a line [[table]]"]),
        ("[[table]]\nevict = \"sieve\"", &["line 2", "evict;", ", eviction, "]),
        ("[[table]]\neviction = true", &["line 2", "eviction", "`none` or `sieve`"]),
    ] {
        fs::write(&file, text).expect("written");
        let ended = run(&mut Node::command(at, "n", &["--config", &config]), b"");
        ended.expect(2, words);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    let text = "memory = \"1GiB\"\n[[table]]\nname = \"a\"\nvalue_max = \"1KiB\"\n\
                [[table]]\nname = \"b\"\n";
    fs::write(&file, text).expect("written");
    let node = Node::start(at, "n", &["--config", &config, "--memory", "32MiB"]);
    node.loch(&["put", "k", "of a", "--table", "a"]).expect(0, &[]);
    node.loch(&["put", "k", "of b", "--table", "b"]).expect(0, &[]);
    assert_eq!(node.loch(&["get", "k", "--table", "a"]).text(), "of a");
    node.loch(&["get", "k"]).expect(2, &["no table \"default\"", "a, b"]);
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    assert_eq!(stats["nodes"][0]["region_bytes"], 32 << 20);
    assert_eq!(stats["tables"][0]["value_bytes_max"], 1024);
    drop(node);
    // Memory that no table asked for is left out, and the log says so.
    fs::write(&file, "memory = \"1TiB\"\n[[table]]\nmemory = \"8MiB\"\n").expect("written");
    let node = Node::start(at, "sparing", &["--config", &config]);
    let log = node.log();
    assert!(["WARN", "left out", "(1024.0GiB)"].iter().all(|word| log.contains(word)), "{log}");
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    assert!(stats["nodes"][0]["region_bytes"].as_u64().expect("a number") < 9 << 20);
}

#[test]
fn a_live_node_is_left_alone_and_a_dead_ones_place_is_taken() {
    let dir = private_dir();
    let mut node = Node::start(dir.path(), "n", SMALL);
    refused(dir.path(), SMALL, 3, &["a node is running at", "n.sock"]);
    let mut beside = Node::command(dir.path(), "other", SMALL);
    beside.arg("--region").arg(region_of(dir.path(), "n"));
    // The last one of a flag would count, but clap takes none twice.
    run(&mut beside, b"").expect(2, &["--region"]);
    let mut beside = loch();
    beside.args(["serve", "--memory", "16MiB", "--region"]);
    beside.arg(region_of(dir.path(), "n"));
    beside.arg("--socket").arg(socket_of(dir.path(), "other"));
    run(&mut beside, b"").expect(3, &["n.region", "belongs to a running node"]);
    assert!(!socket_of(dir.path(), "other").exists(), "nothing is left");

    node.loch(&["put", "k", "v"]).expect(0, &[]);
    node.process.kill();
    assert!(node.socket.exists(), "a killed node cannot tidy up");
    node.loch(&["get", "k", "--wait", "0s"]).expect(3, &["n.sock", "loch serve"]);
    let node = Node::start(dir.path(), "n", SMALL);
    assert_eq!(node.loch(&["get", "k"]).expect(0, &[]).text(), "v");
}

#[test]
fn a_killed_node_has_everything_when_it_comes_back() {
    let dir = private_dir();
    let mut node = Node::start(dir.path(), "n", SMALL);
    for n in 0..20 {
        let (key, value) = (format!("k{n}"), random(n * 1000));
        node.loch_with(&["put", &key, "-"], &value).expect(0, &[]);
    }
    node.process.kill();

    // With another geometry it must not start, and must not touch anything.
    refused(dir.path(), &["--memory", "32MiB"], 3, &["n.region", "memory 16MiB", "32MiB"]);
    let with = |flags: &[&'static str]| [SMALL, flags].concat();
    refused(dir.path(), &with(&["--table", "other"]), 3, &["table name", "default", "other"]);
    refused(dir.path(), &with(&["--index-slots", "4096"]), 3, &["index_slots", "4096"]);
    refused(dir.path(), &with(&["--value-max", "1KiB"]), 3, &["value_max", "1024"]);
    refused(dir.path(), &with(&["--sessions", "9"]), 3, &["sessions", "9", "1024"]);

    let node = Node::start(dir.path(), "n", SMALL);
    for n in 0..20 {
        let got = node.loch(&["get", &format!("k{n}")]);
        assert!(got.expect(0, &[]).stdout == random(n * 1000), "k{n}");
    }
    node.loch(&["check"]).expect(0, &[]);
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    assert_eq!(stats["tables"][0]["entries"], 20);
}

#[test]
fn a_region_that_is_none_is_refused_and_kept() {
    let dir = private_dir();
    let region = region_of(dir.path(), "n");
    let mode =
        |mode| fs::set_permissions(&region, Permissions::from_mode(mode)).expect("it is ours");
    for bytes in [&b""[..], b"my thesis", &[0; 1 << 16]] {
        fs::write(&region, bytes).expect("written");
        // Somebody else may have changed it: what is in it is not even looked at.
        mode(0o644);
        refused(dir.path(), SMALL, 3, &["n.region", "mode 0644", "chmod 600"]);
        mode(0o600);
        refused(dir.path(), SMALL, 3, &["n.region", "remove the file"]);
        assert_eq!(fs::read(&region).expect("it is there"), bytes);
    }
}

#[test]
fn a_node_that_has_lost_its_memory_is_told_of_by_the_others() {
    let dir = private_dir();
    let sockets = ["a", "b"].map(|name| socket_of(dir.path(), name).display().to_string());
    let cluster = sockets.join(",");
    let flags = [SMALL, &["--engine", "nessie-server", "--cluster", &cluster]].concat();
    let [a, b] = ["a", "b"].map(|name| Node::start(dir.path(), name, &flags));
    a.loch(&["put", "k", "v"]).expect(0, &[]);
    assert!(!a.log().contains("WARN"), "{}", a.log());
    let region = b.region.clone();
    b.stop(Signal::TERM);
    fs::remove_file(region).expect("it is there");
    let _b = Node::start(dir.path(), "b", &flags);
    let told = |line: &str| {
        ["WARN", "without its memory", "b.sock", "loch check"].iter().all(|it| line.contains(it))
    };
    wait_for("a warning", || a.log().lines().any(told).then_some(()));
}

/// Everything goes on, and is lost when the node starts again: nothing said so.
#[test]
fn a_region_file_that_is_deleted_under_a_node_is_told_of() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    node.loch(&["put", "k", "v"]).expect(0, &[]);
    assert!(!node.loch(&["stats"]).expect(0, &[]).text().contains("deleted"));
    assert!(!node.log().contains("was deleted"), "{}", node.log());
    fs::remove_file(&node.region).expect("it is there");
    wait_for("a line in the log", || node.log().contains("was deleted or renamed").then_some(()));
    assert!(node.loch(&["stats"]).expect(0, &[]).text().contains("region file of node \"n\""));
    let json = node.loch(&["stats", "--json"]).json();
    assert_eq!(json["nodes"][0]["region_deleted"], true);
    let checked = node.loch(&["check"]);
    assert_eq!(checked.code, Some(1));
    assert!(checked.stderr.contains("1 deleted region files"), "{}", checked.stderr);
    assert!(checked.text().contains("0 broken\nthe region file"), "{}", checked.text());
    assert_eq!(node.loch(&["get", "k"]).expect(0, &[]).text(), "v", "it goes on");
    assert_eq!(node.log().matches("was deleted").count(), 1);
}

#[test]
fn signals_stop_a_node_in_order() {
    let dir = private_dir();
    for signal in [Signal::TERM, Signal::INT] {
        let node = Node::start(dir.path(), "n", SMALL);
        let (socket, region) = (node.socket.clone(), node.region.clone());
        node.loch(&["put", "k", "v"]).expect(0, &[]);
        assert_eq!(node.stop(signal).code(), Some(0), "{signal:?}");
        assert!(!socket.exists() && region.exists());
    }
    let node = Node::start(dir.path(), "n", SMALL);
    assert_eq!(node.loch(&["get", "k"]).expect(0, &[]).text(), "v");
}

#[test]
fn an_ephemeral_node_leaves_no_file() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "16MiB", "--ephemeral"]);
    let region = node.region.clone();
    node.loch(&["put", "k", "v"]).expect(0, &[]);
    assert!(region.exists());
    assert_eq!(node.stop(Signal::TERM).code(), Some(0));
    let left: Vec<_> = fs::read_dir(dir.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["n.log"]);
}

#[test]
fn a_node_says_when_it_is_ready_and_logs_to_standard_error() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    for word in ["\"n\"", "n.sock", "16MiB", "pages", "default"] {
        assert!(node.ready.contains(word), "no {word:?} in {:?}", node.ready);
    }
    assert!(node.log().contains("INFO"), "{}", node.log());
    assert!(!node.log().contains('\u{1b}'), "no colours in a file");
}

#[test]
fn stats_tell_what_there_is() {
    let dir = private_dir();
    let at = dir.path();
    let sockets = [socket_of(at, "a"), socket_of(at, "b")];
    let cluster = sockets.each_ref().map(|s| s.to_str().expect("text")).join(",");
    let flags = ["--memory", "16MiB", "--table", "t", "--cluster", &cluster];
    let a = Node::start(at, "a", &flags);
    let b = Node::start(at, "b", &flags);
    a.loch(&["put", "k", "v", "--table", "t"]).expect(0, &[]);
    assert_eq!(b.loch(&["get", "k", "--table", "t"]).expect(0, &[]).text(), "v");

    let stats = b.loch(&["stats", "--json"]).expect(0, &[]).json();
    assert_eq!(stats["home"], "b");
    let nodes = stats["nodes"].as_array().expect("a list");
    assert_eq!(nodes.len(), 2);
    for (node, name) in nodes.iter().zip(["a", "b"]) {
        assert_eq!(node["name"], name);
        assert_eq!(node["up"], true);
        assert_eq!(node["region_bytes"], 16 << 20);
        assert_eq!((&node["sessions"], &node["sessions_taken"]), (&1024.into(), &0.into()));
    }
    assert_ne!(nodes[0]["identity"], nodes[1]["identity"]);
    let table = &stats["tables"][0];
    assert_eq!((&table["name"], &table["engine"]), (&"t".into(), &"nessie".into()));
    assert_eq!(table["entries"], 1);
    let usage = |node: usize, field: &str| {
        let count = table["usage"][node][field].as_u64();
        count.unwrap_or_else(|| panic!("{field}: {stats}"))
    };
    assert_eq!((usage(0, "entries"), usage(1, "entries")), (1, 0), "an entry is at its writer's");
    assert!((32..1000).contains(&usage(0, "entry_bytes")));
    assert!(usage(0, "slab_bytes") >= usage(0, "entry_bytes"));
    assert!(usage(0, "index_bytes") + usage(0, "data_bytes") < 16 << 20);
    assert_eq!(usage(0, "leased_slabs") + usage(0, "abandoned_slabs"), 1);

    let words = a.loch(&["stats"]);
    for word in ["a.sock", "b.sock", "16 MiB", "\"t\"", "nessie", "0 of 1024"] {
        assert!(words.expect(0, &[]).text().contains(word), "{word}: {}", words.text());
    }
}

/// Tables of herd said that they do not evict, and that nothing was evicted.
#[test]
fn stats_tell_which_tables_forget_and_count_only_what_is_known() {
    let dir = private_dir();
    let file = dir.path().join("n.toml");
    let tables = [
        ("herd", "engine = \"herd\"", true, false),
        ("store", "engine = \"herd\"\nmode = \"store\"", false, false),
        ("pilaf", "engine = \"pilaf\"", false, false),
        ("sieve", "eviction = \"sieve\"", true, true),
        ("server", "engine = \"nessie-server\"\neviction = \"sieve\"", true, true),
        ("hybrid", "engine = \"nessie-hybrid\"\neviction = \"sieve\"", true, true),
        ("plain", "", false, true),
    ];
    let declared = tables.map(|(name, options, ..)| {
        format!("[[table]]\nname = \"{name}\"\nmemory = \"8MiB\"\n{options}\n")
    });
    fs::write(&file, format!("memory = \"96MiB\"\n{}", declared.concat())).expect("written");
    let config = file.to_str().expect("text");
    let node = Node::start(dir.path(), "n", &["--config", config]);
    let stats = node.loch(&["stats", "--json"]).expect(0, &[]).json();
    let words = node.loch(&["stats"]);
    for (at, (name, _, evicts, counted)) in tables.into_iter().enumerate() {
        let table = &stats["tables"][at];
        assert_eq!((&table["name"], &table["evicts"]), (&name.into(), &evicts.into()));
        let zero = |is_known: bool| is_known.then_some(0);
        assert_eq!(table["evicted"].as_u64(), zero(counted || !evicts), "{table}");
        assert_eq!(table["expired"].as_u64(), zero(counted), "{table}");
        let words = words.expect(0, &[]).text();
        let line = words.lines().find(|line| line.starts_with(&format!("table {name:?}: ")));
        let line = line.unwrap_or_else(|| panic!("{name}: {words}"));
        assert_eq!(line.contains(", a cache"), evicts, "{line}");
        let is_told = evicts && counted;
        assert_eq!(line.contains("values evicted: 0"), is_told, "{line}");
    }
}

#[test]
fn a_check_of_what_is_well_is_clean() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", &["--memory", "32MiB", "--table=t", "--table=u"]);
    for n in 0..30 {
        let key = format!("k{}", n % 20);
        node.loch(&["put", &key, &"v".repeat(n * 100), "--table=t"]).expect(0, &[]);
    }
    let check = node.loch(&["check", "--json", "--leaks"]).expect(0, &[]).json();
    assert_eq!(check["ok"], true);
    let tables = check["tables"].as_array().expect("a list");
    assert_eq!((&tables[0]["table"], &tables[1]["table"]), (&"t".into(), &"u".into()));
    assert_eq!((&tables[0]["values"], &tables[1]["values"]), (&20.into(), &0.into()));
    for field in ["tentative", "moving", "unshown", "unshown_bytes"] {
        assert_eq!(tables[0][field], 0, "{field}");
    }
    assert_eq!(tables[0]["broken"], serde_json::json!([]));
    let words = node.loch(&["check", "--table=t"]);
    assert!(words.expect(0, &[]).text().contains("20 values"), "{}", words.text());
}

#[test]
fn a_check_finds_what_is_broken() {
    let dir = private_dir();
    let mut node = Node::start(dir.path(), "n", SMALL);
    for n in 0..50 {
        node.loch(&["put", &format!("k{n}"), "v"]).expect(0, &[]);
    }
    node.process.kill();
    // One bit fell over: the entry's key is not the one that its slot is for.
    let mut region = fs::read(&node.region).expect("a region");
    let at = find(&region, b"k7v").expect("key and value are there");
    region[at] ^= 1;
    fs::write(&node.region, &region).expect("written");
    let node = Node::start(dir.path(), "n", SMALL);
    let check = node.loch(&["check"]);
    assert_eq!(check.code, Some(1), "{check:?}");
    assert!(check.text().contains("1 broken\n  slot at "), "{}", check.text());
    assert!(check.stderr.contains("1 broken"), "{}", check.stderr);
    let check = node.loch(&["check", "--json"]);
    assert_eq!(check.code, Some(1));
    assert_eq!(check.json()["ok"], false);
    assert_eq!(check.json()["tables"][0]["broken"].as_array().map(Vec::len), Some(1));
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

#[test]
fn output_that_nobody_reads_is_no_error() {
    let dir = private_dir();
    let node = Node::start(dir.path(), "n", SMALL);
    node.loch_with(&["put", "k", "-"], &random(1 << 20)).expect(0, &[]);
    for arguments in [&["get", "k"][..], &["stats"], &["completions", "bash"], &["--help"]] {
        let mut command = loch();
        command.env("LOCH_SOCKET", &node.socket).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::new(command.spawn().expect("it starts"));
        // It is still starting, or finds the pipe full: its reader is gone before it is done.
        drop(process.child.stdout.take());
        let mut stderr = String::new();
        let pipe = process.child.stderr.take();
        pipe.expect("piped").read_to_string(&mut stderr).expect("text");
        assert_eq!((process.ended().code(), &*stderr), (Some(0), ""), "{arguments:?}");
    }
    let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut command = loch();
    command.env("LOCH_SOCKET", &node.socket).args(["get", "k"]);
    command.stdout(full).stderr(Stdio::piped());
    let ended = command.output().expect("it starts");
    assert_eq!(ended.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("standard output"));
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(loch().args(["completions", shell]), b"");
        assert!(script.expect(0, &[]).text().contains("serve"), "{shell}");
        assert!(!script.text().contains("bench-worker"), "{shell}");
    }
    run(loch().args(["completions", "tcsh"]), b"").expect(2, &["tcsh", "bash"]);
}

#[test]
fn help_teaches_by_example() {
    let help = run(loch().arg("--help"), b"");
    assert!(help.expect(0, &[]).text().contains("130 `bench` or `demo`"), "{}", help.text());
    let help = run(loch().args(["serve", "--help"]), b"");
    for words in ["SIGHUP (exit code 0)", "a second signal ends it at once (exit code 3)"] {
        assert!(help.expect(0, &[]).text().contains(words), "{}", help.text());
    }
    for command in ["serve", "put", "get", "delete", "scan", "stats", "check", "completions"] {
        let help = run(loch().args([command, "--help"]), b"");
        let example = format!("Examples:\n  loch {command}");
        assert!(help.expect(0, &[]).text().contains(&example), "{command}");
    }
}
