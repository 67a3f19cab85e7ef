//! The same requests to the gateway and to a real Redis, whose answers have to be the same, byte by
//! byte.

mod support;

use support::{Reference, differ};

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
