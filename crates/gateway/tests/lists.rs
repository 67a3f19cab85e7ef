//! Requests with more keys than answers fit at once: their answers go out part by part.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use loch_gateway::GatewayConfig;
use support::{Client, Ours, text};

/// As many as a request can have.
const KEYS: usize = 1 << 19;
const VALUE_BYTES: usize = 16_000;

/// One thread: what holds it up holds up all.
fn gateway() -> Ours {
    let gateway = support::gateway_with(GatewayConfig::default());
    let mut client = gateway.resp();
    client.send(format!("SET a {}\r\n", "a".repeat(VALUE_BYTES)).as_bytes());
    assert_eq!(text(&client.resp_answer()), "+OK\r\n");
    gateway
}

/// An MGET or a `get` of one key, again and again.
fn list(is_resp: bool, keys: usize) -> Vec<u8> {
    match is_resp {
        true => [
            format!("*{}\r\n$4\r\nMGET\r\n", keys + 1).as_bytes(),
            "$1\r\na\r\n".repeat(keys).as_bytes(),
        ]
        .concat(),
        false => format!("get{}\r\n", " a".repeat(keys)).into_bytes(),
    }
}

/// Sends it, and returns what the client is to be known by.
fn begin(client: &mut Client, is_resp: bool, other: &mut Client) -> String {
    client.send(&list(is_resp, KEYS));
    client.exactly(1);
    other.send(b"CLIENT LIST\r\n");
    let all = text(&other.resp_answer());
    let command = if is_resp { "cmd=mget" } else { "cmd=get" };
    let line = all.lines().find(|line| line.contains(command));
    let line = line.unwrap_or_else(|| panic!("no client has {command}: {all}"));
    line.split_once("id=").unwrap().1.split(' ').next().unwrap().to_owned()
}

#[test]
fn the_rest_of_a_list_and_what_follows_it_are_answered_as_the_client_takes_them() {
    let gateway = gateway();
    let (keys, value) = (3000, "a".repeat(VALUE_BYTES));
    let mut client = gateway.resp();
    client.send(&[&list(true, keys)[..], b"PING\r\n", &list(true, 2)].concat());
    assert_eq!(text(&client.line()), format!("*{keys}\r\n"));
    let one = format!("${VALUE_BYTES}\r\n{value}\r\n");
    for _ in 0..keys {
        assert!(text(&client.exactly(one.len())) == one);
    }
    assert!(text(&client.exactly(11 + 2 * one.len())) == format!("+PONG\r\n*2\r\n{one}{one}"));
    // A line is as good, but one may not be as long.
    client.send(format!("MGET{}\r\nPING\r\n", " a none".repeat(keys)).as_bytes());
    assert_eq!(text(&client.line()), format!("*{}\r\n", 2 * keys));
    let two = format!("{one}$-1\r\n");
    for _ in 0..keys {
        assert!(text(&client.exactly(two.len())) == two);
    }
    assert_eq!(text(&client.line()), "+PONG\r\n");

    let mut client = gateway.memcached();
    let lists = [&list(false, keys)[..], b"gets none\r\nmn\r\n", &list(false, 1), b"mn\r\n"];
    client.send(&lists.concat());
    let one = format!("VALUE a 0 {VALUE_BYTES}\r\n{value}\r\n");
    for _ in 0..keys {
        assert!(text(&client.exactly(one.len())) == one);
    }
    let rest = format!("END\r\nEND\r\nMN\r\n{one}END\r\nMN\r\n");
    assert!(text(&client.exactly(rest.len())) == rest);
}

#[test]
fn what_is_wrong_behind_a_long_answer_is_told_behind_it() {
    let gateway = gateway();
    let mut client = gateway.resp();
    let long = "v".repeat(100_000);
    client.send(format!("SET L {long}\r\n").as_bytes());
    assert!(client.line().starts_with(b"-ERR Protocol error: too big inline"));
    let mut client = gateway.resp();
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nL\r\n$100000\r\n{long}\r\n").as_bytes());
    assert_eq!(text(&client.line()), "+OK\r\n");
    for keys in [&["L"][..], &["L", "L"], &["a"; 500]] {
        let value = |key: &str| if key == "L" { long.clone() } else { "a".repeat(VALUE_BYTES) };
        let mut client = gateway.resp();
        client.send(format!("MGET {}\r\n*1\r\nx", keys.join(" ")).as_bytes());
        let bulk = |key: &&str| format!("${}\r\n{}\r\n", value(key).len(), value(key));
        let right: String = keys.iter().map(bulk).collect();
        let wrong = "-ERR Protocol error: expected '$', got 'x'\r\n";
        assert!(text(&client.rest()) == format!("*{}\r\n{right}{wrong}", keys.len()));
        let mut client = gateway.memcached();
        let request = format!("get {}\r\n", keys.join(" "));
        client.send(&[request.as_bytes(), b"\x80x"].concat());
        let item = |key: &&str| format!("VALUE {key} 0 {}\r\n{}\r\n", value(key).len(), value(key));
        let right: String = keys.iter().map(item).collect();
        let wrong = "ERROR the binary protocol is not served, choose text or meta commands\r\n";
        assert!(text(&client.rest()) == format!("{right}END\r\n{wrong}"));
    }
}

/// Its answer would have 8 GB.
#[test]
fn a_client_that_reads_as_fast_as_it_can_is_killed_all_the_same() {
    let gateway = gateway();
    let mut other = gateway.resp();
    for is_resp in [true, false] {
        let mut client = if is_resp { gateway.resp() } else { gateway.memcached() };
        let id = begin(&mut client, is_resp, &mut other);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| client.count_rest());
            other.send(format!("CLIENT KILL ID {id}\r\n").as_bytes());
            assert_eq!(text(&other.resp_answer()), ":1\r\n");
            let count = reader.join().unwrap();
            assert!(count < (KEYS * VALUE_BYTES) as u64, "{count} bytes");
        });
    }
}

#[test]
fn a_gateway_ends_whatever_clients_read() {
    let mut gateway = gateway();
    let (mut other, counts) = (gateway.resp(), [AtomicU64::new(0), AtomicU64::new(0)]);
    let mut clients = [gateway.resp(), gateway.memcached()];
    for (client, is_resp) in clients.iter_mut().zip([true, false]) {
        begin(client, is_resp, &mut other);
    }
    std::thread::scope(|scope| {
        for (client, count) in clients.iter_mut().zip(&counts) {
            scope.spawn(|| count.store(client.count_rest(), Ordering::Relaxed));
        }
        gateway.gateway.take().unwrap().stop();
    });
    for count in counts {
        let count = count.into_inner();
        assert!(count < (KEYS * VALUE_BYTES) as u64, "{count} bytes");
    }
}
