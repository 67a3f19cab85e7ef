//! The same requests to the gateway and to a real Redis, whose answers have to be the same, byte by
//! byte.

mod support;

use std::collections::BTreeSet;

use loch::{Cluster, EmbeddedConfig};
use loch_gateway::{Gateway, GatewayConfig};
use support::{Client, Reference, differ, text};

/// A request a line, in words as `redis-cli` takes them.
const SCENARIO: &str = include_str!("redis.txt");

#[test]
fn answers_are_those_of_redis_in_both_versions_of_the_protocol() {
    let Some(redis) = Reference::redis() else { return };
    let gateway = support::gateway();
    for resp in ["2", "3"] {
        let (mut ours, mut theirs) = (gateway.resp(), redis.connect());
        for client in [&mut ours, &mut theirs] {
            client.send(format!("HELLO {resp}\r\nFLUSHALL\r\n").as_bytes());
            client.resp_answer();
            client.resp_answer();
        }
        let mut differences = Vec::new();
        for line in SCENARIO.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let request = format!("{line}\r\n");
            let answers = [&mut ours, &mut theirs].map(|client| {
                client.send(request.as_bytes());
                client.resp_answer()
            });
            differences.extend(differ(line, &answers[0], &answers[1]));
        }
        assert!(differences.is_empty(), "RESP{resp}:\n{}", differences.join("\n"));
    }
}

#[test]
fn a_pipeline_has_the_answers_of_its_requests_wherever_it_is_split() {
    let gateway = support::gateway();
    let lines = SCENARIO.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    // Answers that depend on the time are not the same twice.
    let lines: Vec<&str> = lines.filter(|line| !line.contains("TTL")).collect();
    let pipeline: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let run = |parts: &[&[u8]]| {
        let mut client = gateway.resp();
        client.send(b"FLUSHALL\r\n");
        client.resp_answer();
        for part in parts {
            client.send(part);
        }
        lines.iter().map(|_| client.resp_answer()).collect::<Vec<_>>()
    };
    let one_by_one = {
        let mut client = gateway.resp();
        client.send(b"FLUSHALL\r\n");
        client.resp_answer();
        let ask = |line: &&str| {
            client.send(format!("{line}\r\n").as_bytes());
            client.resp_answer()
        };
        lines.iter().map(ask).collect::<Vec<_>>()
    };
    let bytes = pipeline.as_bytes();
    assert_eq!(run(&[bytes]), one_by_one);
    for size in [1, 7, 100, 1000] {
        let parts: Vec<&[u8]> = bytes.chunks(size).collect();
        assert_eq!(run(&parts), one_by_one, "in parts of {size} bytes");
    }
}

/// What is meant to be another answer than that of Redis 7.0, or is younger than it.
#[test]
fn what_the_gateway_does_not_have_is_an_error_in_the_words_of_redis() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    for (request, answer) in [
        ("SELECT 1", "-ERR DB index is out of range"),
        ("LPUSH list a", "-ERR unknown command 'LPUSH', with args beginning with: 'list' 'a' "),
        ("EVAL x 0", "-ERR unknown command 'EVAL', with args beginning with: 'x' '0' "),
        ("CLIENT SETINFO LIB-NAME lib", "+OK"),
        ("CLIENT SETINFO what x", "-ERR Unrecognized option 'what'"),
        ("CLIENT NO-TOUCH on", "+OK"),
        ("CLIENT TRACKING on", "-ERR CLIENT TRACKING is not supported by this gateway"),
        ("CLIENT CACHING yes", "-ERR CLIENT CACHING is not supported by this gateway"),
        ("CLIENT INFO", "$"),
        ("COMMAND DOCS get", "*2\r\n$3\r\nget\r\n*4\r\n$5\r\ngroup\r\n$6\r\nstring\r\n"),
        (
            "MSETNX a 1 b 2",
            "-ERR MSETNX of several keys cannot be done in one step by this gateway",
        ),
    ] {
        client.send(format!("{request}\r\n").as_bytes());
        let said = support::text(&client.resp_answer());
        assert!(said.starts_with(answer), "{request}: {said}");
    }
    for command in ["CLIENT", "COMMAND", "CONFIG", "MEMORY", "OBJECT", "SLOWLOG"] {
        client.send(format!("{command} help\r\n").as_bytes());
        let said = support::text(&client.resp_answer());
        assert!(said.contains(&format!("\r\n+{command} <subcommand> ")), "{said}");
    }
    client.send(b"PING\r\nQUIT\r\nPING\r\n");
    assert_eq!(support::text(&client.rest()), "+PONG\r\n+OK\r\n");
}

/// A page in a browser can make it send such requests to this host.
#[test]
fn a_request_of_http_ends_its_connection_and_nothing_in_it_is_done() {
    let gateway = support::gateway();
    for head in ["POST / HTTP/1.1\r\n", "PUT / HTTP/1.1\r\nHost: localhost:6379\r\n"] {
        let mut client = gateway.resp();
        client.send(format!("{head}\r\nSET k v\r\n").as_bytes());
        let said = support::text(&client.rest());
        assert!(!said.contains("+OK"), "{said}");
        let mut client = gateway.memcached();
        client.send(format!("{head}\r\nset k 0 0 1\r\nv\r\n").as_bytes());
        assert_eq!(support::text(&client.rest()), "");
    }
    let mut client = gateway.resp();
    client.send(b"EXISTS k\r\n");
    assert_eq!(client.resp_answer(), b":0\r\n");
}

/// A cursor goes through all keys, with any count, and ends.
#[test]
fn a_scan_brings_every_key_and_ends() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    for key in 0..500 {
        client.send(format!("SET {}:{key} v\r\n", ["user", "other"][key % 2]).as_bytes());
        client.resp_answer();
    }
    for (options, wanted) in
        [("", 500), (" MATCH user:*", 250), (" COUNT 1000", 500), (" TYPE hash", 0)]
    {
        let (mut cursor, mut found) = ("0".to_owned(), std::collections::BTreeSet::new());
        loop {
            client.send(format!("SCAN {cursor}{options}\r\n").as_bytes());
            let answer = support::text(&client.resp_answer());
            let lines: Vec<&str> = answer.split("\r\n").collect();
            cursor = lines[2].to_owned();
            found
                .extend(lines[4..].iter().filter(|line| line.contains(':')).map(|k| k.to_string()));
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), wanted, "{options}");
    }
    client.send(b"SCAN 18446744073709551615\r\n");
    assert!(support::text(&client.resp_answer()).starts_with("-ERR invalid cursor"));
}

/// Answers of all lengths before a list end near the bound of what is written at a time.
#[test]
fn the_answer_to_mget_has_one_head_wherever_the_answers_before_it_end() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    client.send(b"SET a 1\r\n");
    client.resp_answer();
    for len in (64 << 10) - 40..(64 << 10) + 10 {
        let text = "x".repeat(len);
        client.send(
            format!("*2\r\n$4\r\nECHO\r\n${len}\r\n{text}\r\nMGET a b\r\nPING\r\n").as_bytes(),
        );
        assert_eq!(client.resp_answer().len(), len + 10);
        assert_eq!(support::text(&client.resp_answer()), "*2\r\n$1\r\n1\r\n$-1\r\n");
        assert_eq!(client.resp_answer(), b"+PONG\r\n", "{len}");
    }
}

/// With any engine: a batch has no order.
#[test]
fn of_values_that_mset_has_for_one_key_the_last_one_stays() {
    for engine in ["nessie", "nessie-server", "nessie-hybrid", "herd", "pilaf", "kv-direct"] {
        let gateway = support::gateway_to(engine, GatewayConfig::default());
        let mut client = gateway.resp();
        for number in 0..50 {
            client.send(
                format!("MSET k {number} k 1{number} other x k 2{number}\r\nGET k\r\n").as_bytes(),
            );
            assert_eq!(client.resp_answer(), b"+OK\r\n");
            let right = format!("2{number}");
            let answer = support::text(&client.resp_answer());
            assert_eq!(answer, format!("${}\r\n{right}\r\n", right.len()), "{engine}");
        }
    }
}

#[test]
fn an_exec_whose_commit_fails_has_one_answer() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    // What is appended is longer than a value can be.
    let long = vec![b'x'; 15_000_000];
    client.send(&[b"*3\r\n$3\r\nSET\r\n$1\r\nw\r\n$15000000\r\n", &long[..], b"\r\n"].concat());
    assert_eq!(client.resp_answer(), b"+OK\r\n");
    for watch in ["WATCH w", "PING"] {
        client.send(format!("{watch}\r\nMULTI\r\nAPPEND w {}\r\n", "y".repeat(60_000)).as_bytes());
        for _ in 0..100 {
            client.send(format!("APPEND w {}\r\n", "y".repeat(60_000)).as_bytes());
        }
        client.send(b"EXEC\r\nPING\r\n");
        for answer in ["+OK", "+OK"].iter().chain(&["+QUEUED"; 101]) {
            let said = support::text(&client.resp_answer());
            assert!(said.starts_with(answer) || said == "+PONG\r\n", "{said}");
        }
        let said = support::text(&client.resp_answer());
        assert!(said.starts_with("-ERR string exceeds"), "{said}");
        assert_eq!(client.resp_answer(), b"+PONG\r\n");
    }
    client.send(b"STRLEN w\r\n");
    assert_eq!(client.resp_answer(), b":15000000\r\n");
}

#[test]
fn an_exec_after_a_change_of_what_is_watched_does_nothing() {
    let gateway = support::gateway();
    let (mut client, mut other) = (gateway.resp(), gateway.resp());
    for (transaction, answer) in [
        ("SET k new", "*-1\r\n"),
        ("SET k new\r\nSET second new", "*-1\r\n"),
        ("SET second new", "*-1\r\n"),
    ] {
        client.send(b"SET k old\r\nDEL second\r\nWATCH k\r\n");
        (0..3).for_each(|_| _ = client.resp_answer());
        other.send(b"SET k changed\r\n");
        other.resp_answer();
        client.send(
            format!("MULTI\r\n{transaction}\r\nEXEC\r\nGET k\r\nEXISTS second\r\n").as_bytes(),
        );
        while client.line() != answer.as_bytes() {}
        assert_eq!(support::text(&client.resp_answer()), "$7\r\nchanged\r\n");
        assert_eq!(client.resp_answer(), b":0\r\n");
    }
    // Nothing has changed, but several keys cannot be changed in one step.
    client.send(b"WATCH k\r\nMULTI\r\nSET k 1\r\nSET second 2\r\nEXEC\r\n");
    (0..4).for_each(|_| _ = client.resp_answer());
    let said = support::text(&client.resp_answer());
    assert!(said.starts_with("-ERR EXEC after WATCH is atomic on one key only"), "{said}");
}

/// An EXEC that came too early forgot what was watched, and the next one did not see a change.
#[test]
fn an_exec_without_multi_leaves_watched_what_is_watched() {
    let gateway = support::gateway();
    let (mut client, mut other) = (gateway.resp(), gateway.resp());
    client.send(b"WATCH w\r\nEXEC\r\n");
    assert_eq!(client.resp_answer(), b"+OK\r\n");
    assert_eq!(client.resp_answer(), b"-ERR EXEC without MULTI\r\n");
    other.send(b"SET w 2\r\n");
    other.resp_answer();
    client.send(b"MULTI\r\nSET w 3\r\nEXEC\r\nGET w\r\n");
    for answer in ["+OK\r\n", "+QUEUED\r\n", "*-1\r\n", "$1\r\n2\r\n"] {
        assert_eq!(support::text(&client.resp_answer()), answer);
    }
}

/// An error for the key that cannot be stood in the place of the values before it as well.
#[test]
fn a_key_that_cannot_be_in_the_table_is_missing_and_the_others_are_found() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let long = "k".repeat((64 << 10) + 1);
    client.send(b"MSET a 1 b 2 c 3\r\n");
    client.resp_answer();
    for key in [String::new(), long] {
        let bulk = format!("${}\r\n{key}\r\n", key.len());
        client.send(
            format!("*5\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n{bulk}$1\r\nc\r\n").as_bytes(),
        );
        let answer = support::text(&client.resp_answer());
        assert_eq!(answer, "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n$1\r\n3\r\n");
        client.send(format!("*3\r\n$6\r\nEXISTS\r\n{bulk}$1\r\na\r\n").as_bytes());
        assert_eq!(client.resp_answer(), b":1\r\n");
        client.send(format!("*3\r\n$3\r\nSET\r\n{bulk}$1\r\nv\r\n").as_bytes());
        assert!(client.resp_answer().starts_with(b"-ERR the key "));
    }
}

#[test]
fn a_transaction_has_bounds() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let long = vec![b'x'; 15_000_000];
    client.send(&[b"*3\r\n$3\r\nSET\r\n$1\r\nw\r\n$15000000\r\n", &long[..], b"\r\n"].concat());
    client.resp_answer();
    client.send(
        b"MULTI\r\nGET w\r\nGET w\r\nGET w\r\nGET w\r\nGET w\r\nGET w\r\nSET k v\r\nEXEC\r\nGET k\r\n",
    );
    (0..8).for_each(|_| _ = client.resp_answer());
    assert_eq!(client.line(), b"*7\r\n");
    for _ in 0..5 {
        assert_eq!(client.resp_answer().len(), 15_000_000 + 13);
    }
    for _ in 0..2 {
        let said = support::text(&client.resp_answer());
        assert!(said.starts_with("-ERR the answers of the transaction are too long"), "{said}");
    }
    assert_eq!(client.resp_answer(), b"$-1\r\n");
    let queued = "PING\r\n".repeat(100_001);
    client.send(format!("MULTI\r\n{queued}EXEC\r\n").as_bytes());
    assert_eq!(client.resp_answer(), b"+OK\r\n");
    (0..100_000).for_each(|_| assert_eq!(client.resp_answer(), b"+QUEUED\r\n"));
    let said = support::text(&client.resp_answer());
    assert!(said.starts_with("-ERR the transaction has too many commands"), "{said}");
    assert!(support::text(&client.resp_answer()).starts_with("-EXECABORT"));
}

#[test]
fn random_keys_are_not_always_the_same() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let ask = |client: &mut Client, request: &str| {
        client.send(format!("{request}\r\n").as_bytes());
        support::text(&client.resp_answer())
    };
    assert_eq!(ask(&mut client, "RANDOMKEY"), "$-1\r\n");
    (0..300).for_each(|key| assert_eq!(ask(&mut client, &format!("SET k{key} v")), "+OK\r\n"));
    let found: BTreeSet<String> = (0..300).map(|_| ask(&mut client, "RANDOMKEY")).collect();
    assert!(found.len() > 20, "{found:?}");
    assert!(found.iter().all(|key| key.contains("\r\nk")), "{found:?}");
}

#[test]
fn a_client_that_is_killed_has_no_connection() {
    let gateway = support::gateway();
    let (mut client, mut victim) = (gateway.resp(), gateway.resp());
    victim.send(b"CLIENT ID\r\n");
    let id = support::text(&victim.resp_answer());
    client.send(format!("CLIENT KILL ID {}", &id[1..]).as_bytes());
    assert_eq!(client.resp_answer(), b":1\r\n");
    assert_eq!(support::text(&victim.rest()), "");
}

/// The requests behind it in the pipeline were executed, and the answer could get lost.
#[test]
fn a_client_that_kills_itself_has_its_answer_and_nothing_behind_it() {
    let kills_itself = |connect: &dyn Fn() -> Client| {
        let (mut client, mut other) = (connect(), connect());
        client.send(b"CLIENT ID\r\n");
        let id = text(&client.resp_answer());
        let kill = format!("CLIENT KILL ID {} SKIPME no", id[1..].trim_end());
        client.send(format!("SET a 1\r\n{kill}\r\nSET b 2\r\nPING\r\n").as_bytes());
        assert_eq!(text(&client.rest()), "+OK\r\n:1\r\n");
        other.send(b"MGET a b\r\n");
        assert_eq!(text(&other.resp_answer()), "*2\r\n$1\r\n1\r\n$-1\r\n");
    };
    let gateway = support::gateway();
    kills_itself(&|| gateway.resp());
    if let Some(redis) = Reference::redis() {
        kills_itself(&|| redis.connect());
    }
}

#[test]
fn other_hosts_reach_no_gateway_without_a_password() {
    let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
    for (resp, memcached) in [("0.0.0.0:0", "127.0.0.1:0"), ("127.0.0.1:0", "[::]:0")] {
        let at = |address: &str| vec![address.parse().unwrap()];
        let config =
            GatewayConfig { resp: at(resp), memcached: at(memcached), ..GatewayConfig::default() };
        let error = Gateway::start(cluster.with_home(0).unwrap(), config).err().unwrap();
        assert!(error.to_string().contains("give a password"), "{error}");
    }
}

#[test]
fn a_gateway_is_open_to_other_hosts_if_that_was_said() {
    let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
    let resp = vec!["0.0.0.0:0".parse().unwrap()];
    let config = GatewayConfig { resp, is_open: true, ..GatewayConfig::default() };
    let gateway = Gateway::start(cluster, config).unwrap();
    let loch_gateway::Address::Tcp(address) = gateway.resp()[0] else { panic!("it is one") };
    let mut client = std::net::TcpStream::connect(("127.0.0.1", address.port())).unwrap();
    std::io::Write::write_all(&mut client, b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    std::io::Read::read_exact(&mut client, &mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn an_address_cannot_be_given_twice() {
    let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
    let socket = || vec!["unix:/nowhere/socket".parse().unwrap()];
    let config = GatewayConfig { resp: socket(), memcached: socket(), ..GatewayConfig::default() };
    let error = Gateway::start(cluster, config).err().unwrap();
    assert!(error.to_string().contains("unix:/nowhere/socket is given twice"), "{error}");
}

/// Passwords are no business of the log's.
#[test]
fn commands_about_the_connection_are_not_kept() {
    let config =
        GatewayConfig { slower_than: Some(std::time::Duration::ZERO), ..GatewayConfig::default() };
    let gateway = support::gateway_with(config);
    let mut client = gateway.resp();
    client.send(b"AUTH secret\r\nHELLO 2 AUTH default secret\r\nAUTH default secret\r\n");
    (0..3).for_each(|_| _ = client.resp_answer());
    client.send(b"SLOWLOG GET 10\r\n");
    let said = support::text(&client.resp_answer());
    assert!(!said.contains("secret") && !said.contains("AUTH"), "{said}");
}

#[test]
fn commands_that_took_longer_than_wanted_are_kept() {
    let config = loch_gateway::GatewayConfig {
        slower_than: Some(std::time::Duration::ZERO),
        ..loch_gateway::GatewayConfig::default()
    };
    let gateway = support::gateway_with(config);
    let mut client = gateway.resp();
    for request in ["CLIENT SETNAME me", "SET k v", "APPEND k w", "SLOWLOG GET 2"] {
        client.send(format!("{request}\r\n").as_bytes());
        if request != "SLOWLOG GET 2" {
            client.resp_answer();
        }
    }
    let said = support::text(&client.resp_answer());
    let order = ["*2\r\n", "APPEND", "k\r\n", "w\r\n", "me\r\n", "SET", "v\r\n"];
    let mut at = 0;
    for part in order {
        at += said[at..].find(part).unwrap_or_else(|| panic!("{part:?} in {said}"));
    }
}

#[test]
fn keys_that_cannot_be_are_passed_over_wherever_they_stand_in_a_list() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let keys: Vec<String> = (0..300).map(|n| format!("k{n}")).collect();
    let too_long = "x".repeat(70_000);
    for command in ["EXISTS", "TOUCH", "UNLINK", "DEL"] {
        for key in &keys {
            client.send(format!("SET {key} v\r\n").as_bytes());
            assert_eq!(text(&client.resp_answer()), "+OK\r\n");
        }
        for wrong in ["", &too_long] {
            let mut request = format!("*{}\r\n${}\r\n{command}\r\n", keys.len() + 2, command.len());
            for key in keys.iter().map(String::as_str).chain([wrong]) {
                request += &format!("${}\r\n{key}\r\n", key.len());
            }
            client.send(request.as_bytes());
            let is_gone = command == "DEL" || command == "UNLINK";
            let right = if is_gone && wrong == too_long { 0 } else { keys.len() };
            assert_eq!(text(&client.resp_answer()), format!(":{right}\r\n"), "{command}");
        }
    }
}

#[test]
fn a_transaction_whose_values_would_be_too_long_together_is_answered() {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let far = format!("SETRANGE k {} x\r\n", i64::MAX);
    client.send(format!("MULTI\r\n{far}{far}{far}SET k v\r\nEXEC\r\n").as_bytes());
    let queued = "+QUEUED\r\n".repeat(4);
    assert_eq!(text(&client.exactly(5 + queued.len())), format!("+OK\r\n{queued}"));
    let answer = text(&client.resp_answer());
    assert!(
        answer.starts_with("*4\r\n-ERR string exceeds") && answer.ends_with("+OK\r\n"),
        "{answer}"
    );
}
