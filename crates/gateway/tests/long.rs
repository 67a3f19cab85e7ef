//! Long values, and clients that take them slowly or not at all.

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use support::{Client, Ours, text};

const MIB: usize = 1 << 20;

/// The memory of the process is measured, so there is one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn value(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at % 251 + number) as u8).collect()
}

fn set(client: &mut Client, key: &str, value: &[u8]) {
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
    client.send(&[head.as_bytes(), value, b"\r\n"].concat());
    assert_eq!(support::text(&client.resp_answer()), "+OK\r\n");
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// Memory of this process that is not shared, in bytes.
fn own_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn gateway_with_long_values() -> (Ours, Vec<Vec<u8>>) {
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let lens = [MIB, 10, 100_000, 32 << 10, (32 << 10) - 1, 5 * MIB, 0, 70_000];
    let values: Vec<Vec<u8>> = lens.iter().enumerate().map(|(i, len)| value(i, *len)).collect();
    for (number, value) in values.iter().enumerate() {
        set(&mut client, &format!("k{number}"), value);
    }
    (gateway, values)
}

#[test]
fn long_and_short_values_come_in_order_in_pipelines_and_lists() {
    let _alone = alone();
    let (gateway, values) = gateway_with_long_values();
    let keys: Vec<String> = (0..values.len()).map(|number| format!("k{number}")).collect();
    let mut client = gateway.resp();
    for _ in 0..2 {
        let requests: String = keys.iter().map(|key| format!("GET {key}\r\n")).collect();
        client.send(
            format!("PING\r\n{requests}GET none\r\nMGET {} none\r\nPING\r\n", keys.join(" "))
                .as_bytes(),
        );
        assert_eq!(client.resp_answer(), b"+PONG\r\n");
        for value in &values {
            assert!(client.resp_answer() == bulk(value));
        }
        assert_eq!(client.resp_answer(), b"$-1\r\n");
        let all: Vec<u8> = values.iter().flat_map(|value| bulk(value)).collect();
        assert!(client.resp_answer() == [b"*9\r\n", &all[..], b"$-1\r\n"].concat());
        assert_eq!(client.resp_answer(), b"+PONG\r\n");
    }
    let mut client = gateway.memcached();
    client.send(format!("get {} none k0\r\nget k5\r\nmn\r\n", keys.join(" ")).as_bytes());
    let hit = |number: usize| {
        let head = format!("VALUE k{number} 0 {}\r\n", values[number].len());
        [head.as_bytes(), &values[number], b"\r\n"].concat()
    };
    for number in (0..values.len()).chain([0]) {
        let wanted = hit(number);
        assert!(client.exactly(wanted.len()) == wanted, "k{number}");
    }
    let rest = [b"END\r\n", &hit(5)[..], b"END\r\nMN\r\n"].concat();
    assert!(client.exactly(rest.len()) == rest);
    let gets: String = keys.iter().map(|key| format!("mg {key} v q\r\nmg {key} s\r\n")).collect();
    client.send(format!("{gets}mg none q\r\nmn\r\n").as_bytes());
    for value in &values {
        let len = value.len();
        let head = format!("VA {len}\r\n");
        let tail = format!("\r\nHD s{len}\r\n");
        let wanted = [head.as_bytes(), value, tail.as_bytes()].concat();
        assert!(client.exactly(wanted.len()) == wanted, "{len}");
    }
    assert_eq!(client.exactly(4), b"MN\r\n");
}

/// Flags stand before the value, and are not sent.
#[test]
fn a_long_value_with_flags_is_sent_without_what_stands_before_it() {
    let _alone = alone();
    let gateway = support::gateway();
    let long = value(3, 200_000);
    let mut client = gateway.memcached();
    client.send(&[b"set k 77 0 200000\r\n", &long[..], b"\r\nget k\r\n"].concat());
    let wanted = [b"STORED\r\nVALUE k 77 200000\r\n", &long[..], b"\r\nEND\r\n"].concat();
    assert!(client.exactly(wanted.len()) == wanted);
    let mut client = gateway.resp();
    client.send(b"GET k\r\n");
    assert!(client.resp_answer() == bulk(&long));
}

#[test]
fn clients_that_do_not_read_hold_little_memory_and_get_their_answers_later() {
    let _alone = alone();
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let long = value(1, MIB);
    set(&mut client, "long", &long);
    client.send(b"GET long\r\n");
    client.resp_answer();
    let before = own_memory();
    let requests = "GET long\r\n".repeat(20);
    let mut slow: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = gateway.resp();
            client.send(requests.as_bytes());
            client
        })
        .collect();
    // Others are served meanwhile.
    for _ in 0..20 {
        client.send(b"GET long\r\n");
        assert!(client.resp_answer() == bulk(&long));
    }
    let held = own_memory().saturating_sub(before);
    assert!(held < 64 * MIB, "{} MiB", held / MIB);
    for client in slow.iter_mut().step_by(40) {
        for _ in 0..20 {
            assert!(client.resp_answer() == bulk(&long));
        }
    }
}

/// Every kind of SET whose value can come into the table as it comes, and one that cannot.
#[test]
fn long_values_come_in_pieces_fast_and_slowly_and_with_a_wrong_end() {
    let _alone = alone();
    let gateway = support::gateway();
    let table = gateway.cluster.table("default").unwrap();
    // The last two begin as the header of an item with flags does.
    let long = value(5, 300_000);
    let marked = [b"\x00\xf9loch\x01\n", &long[..]].concat();
    for (number, pause_ms) in [0, 0, 30, 7].into_iter().enumerate() {
        for long in [&long, &marked] {
            let (len, key) = (long.len(), format!("k{number}"));
            let resp = |name: &str, end: &str| {
                let head = format!("*3\r\n$3\r\n{name}\r\n$2\r\n{key}\r\n${len}\r\n");
                [head.as_bytes(), long, end.as_bytes()].concat()
            };
            let text = |line: &str, end: &str| [line.as_bytes(), long, end.as_bytes()].concat();
            let get = format!("VALUE {key} 77 {len}\r\n");
            let found = text(&get, "\r\nEND\r\n");
            let bad = "CLIENT_ERROR bad data chunk\r\n";
            let set = |rest: &str| format!("set {key} {rest}\r\n");
            // Requests, their answers, whether they are of memcached, and whether there is a value.
            let cases = [
                (resp("SET", "\r\n"), b"+OK\r\n".to_vec(), false, true),
                (resp("set", "xy"), b"+OK\r\n".to_vec(), false, true),
                (text(&set(&format!("77 0 {len}")), "\r\n"), b"STORED\r\n".to_vec(), true, true),
                (
                    text(&set(&format!("77 0 {len} noreply")), &format!("\r\nget {key}\r\n")),
                    found,
                    true,
                    true,
                ),
                (text(&format!("ms {key} {len}\r\n"), "\r\n"), b"HD\r\n".to_vec(), true, true),
                (text(&set(&format!("0 -1 {len}")), "\r\n"), b"STORED\r\n".to_vec(), true, false),
                (text(&set(&format!("0 0 {len}")), "xy"), bad.into(), true, false),
                (text(&format!("ms {key} {len}\r\n"), "\rx"), bad.into(), true, false),
            ];
            for (request, answer, is_memcached, is_there) in cases {
                table.delete(key.as_bytes()).unwrap();
                let mut client = if is_memcached { gateway.memcached() } else { gateway.resp() };
                for piece in request.chunks(100_000 + 997 * number) {
                    client.send(piece);
                    std::thread::sleep(Duration::from_millis(pause_ms));
                }
                let came = client.exactly(answer.len());
                assert!(came == answer, "{}", support::text(&came[..60.min(came.len())]));
                let mut reader = gateway.resp();
                reader.send(format!("GET {key}\r\n").as_bytes());
                let wanted = if is_there { bulk(long) } else { b"$-1\r\n".to_vec() };
                assert!(reader.resp_answer() == wanted);
            }
        }
    }
    assert_eq!(table.check().unwrap().unshown, 0, "entries that nobody sees");
}

/// A reservation that lives holds up those who wait for memory.
#[test]
fn clients_that_stop_in_the_middle_of_a_value_hold_up_nobody_and_change_nothing() {
    let _alone = alone();
    let gateway = support::gateway();
    let table = gateway.cluster.table("default").unwrap();
    let (old, new) = (value(1, MIB), value(2, MIB));
    let mut client = gateway.resp();
    set(&mut client, "half", &old);
    let half: Vec<Client> = (0..10)
        .map(|number| {
            let mut client = if number % 2 == 0 { gateway.resp() } else { gateway.memcached() };
            match number % 2 {
                0 => client.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$1048576\r\n"),
                _ => client.send(b"set half 0 0 1048576\r\n"),
            }
            client.send(&new[..MIB / 2]);
            client
        })
        .collect();
    // Memory is cut for values of other lengths only when nobody can see what was there before.
    let memory = gateway.cluster.info().tables[0].data_bytes as usize;
    for len in [MIB, 150_000, 600_000] {
        let keys: Vec<_> = (0..memory / 2 / len).map(|number| format!("w{number}")).collect();
        let whole = value(3, len);
        keys.iter().for_each(|key| set(&mut client, key, &whole));
        client.send(format!("DEL {}\r\n", keys.join(" ")).as_bytes());
        assert_eq!(support::text(&client.resp_answer()), format!(":{}\r\n", keys.len()));
    }
    client.send(b"GET half\r\n");
    assert!(client.resp_answer() == bulk(&old));
    drop(half);
    // The gateway has seen that they are gone.
    for mut other in [gateway.resp(), gateway.resp()] {
        set(&mut other, "whole", &old);
    }
    client.send(b"GET half\r\n");
    assert!(client.resp_answer() == bulk(&old));
    assert_eq!(table.check().unwrap().unshown, 0, "entries that nobody sees");
}

/// Many clients send all requests of a pipeline before they read the first answer.
#[test]
fn answers_to_a_long_pipeline_wait_for_a_client_that_still_sends() {
    let _alone = alone();
    let gateway = support::gateway();
    let (count, short) = (100_000, value(1, 100));
    let mut client = gateway.resp();
    set(&mut client, "k", &short);
    client.send("GET k\r\n".repeat(count).as_bytes());
    for _ in 0..count {
        assert!(client.resp_answer() == bulk(&short));
    }
    let mut client = gateway.memcached();
    client.send("mg k v\r\n".repeat(count).as_bytes());
    let answer = [b"VA 100\r\n", &short[..], b"\r\n"].concat();
    for _ in 0..count {
        assert!(client.exactly(answer.len()) == answer);
    }
}

/// Answers to commands that change what they read are nowhere else.
#[test]
fn answers_that_are_nowhere_else_have_a_bound_for_all_clients_and_hold_up_no_other_commands() {
    const CLIENTS_MAX: usize = 200;
    let _alone = alone();
    let gateway = support::gateway();
    let (long, mut client) = (value(1, 2 * MIB), gateway.resp());
    (0..10).for_each(|number| set(&mut client, &format!("k{number}"), &long));
    let of_each = |request: &str| -> String {
        (0..30).map(|n| request.replace('#', &(n % 10).to_string()) + "\r\n").collect()
    };
    let before = own_memory();
    // Short answers first, as if the next ones were short as well.
    let slow_client = |number: usize| {
        let is_resp = number.is_multiple_of(2);
        let mut client = if is_resp { gateway.resp() } else { gateway.memcached() };
        let [short, long] = match is_resp {
            true => ["EXISTS k#", "GETEX k# PERSIST"],
            false => ["touch none# 0", "mg k# v T0"],
        };
        client.send((of_each(short).repeat(4) + &of_each(long)).as_bytes());
        client
    };
    let is_refused = |client: &mut Client, request: &str| {
        client.send(format!("{request}\r\n").as_bytes());
        let answer = client.resp_answer();
        let is_refused = answer.starts_with(b"-ERR clients have not taken");
        assert!(is_refused || answer == bulk(&long), "{request}: {}", text(&answer));
        is_refused
    };
    // One by one: a slow client that is refused for a moment has no more answers to wait for.
    let mut slow = Vec::new();
    while !is_refused(&mut client, "GETEX k1") {
        assert!(slow.len() < CLIENTS_MAX, "it is executed, however much is not taken");
        slow.push(slow_client(slow.len()));
    }
    let grown = own_memory().saturating_sub(before);
    // Each has one answer, not one of each command, and the allocator keeps some memory.
    assert!(grown < 400 * MIB, "{} MiB", grown / MIB);
    for request in ["GETDEL k1", "GETSET k1 v", "SET k1 v GET", "KEYS *", "SCAN 0"] {
        assert!(is_refused(&mut client, request), "{request}");
    }
    for (request, answer) in [("PING", "+PONG"), ("SET s v", "+OK"), ("INCR n", ":1")] {
        client.send(format!("{request}\r\n").as_bytes());
        assert_eq!(text(&client.line()), format!("{answer}\r\n"));
    }
    client.send(b"MULTI\r\nDEL k2\r\nEXEC\r\nGET k2\r\n");
    assert_eq!([client.line(), client.line()].concat(), b"+OK\r\n+QUEUED\r\n");
    assert!(client.line().starts_with(b"-EXECABORT"));
    assert!(client.resp_answer() == bulk(&long), "of what is refused nothing is done");
    drop(slow);
    let until = Instant::now() + Duration::from_secs(20);
    while is_refused(&mut client, "GETDEL k1") {
        assert!(Instant::now() < until, "nobody holds anything any more");
    }
}

/// An answer that was begun cannot be taken back.
#[test]
fn an_answer_whose_value_is_gone_ends_its_connection_and_is_never_mixed_with_another() {
    let _alone = alone();
    let gateway = support::gateway();
    let mut client = gateway.resp();
    let (old, new) = (value(1, MIB), value(2, MIB));
    set(&mut client, "long", &old);
    let requests = "GET long\r\n".repeat(10);
    let mut slow: Vec<Client> = (0..60)
        .map(|_| {
            let mut client = gateway.resp();
            client.send(requests.as_bytes());
            client
        })
        .collect();
    // Both threads have had a turn of all of them by now.
    for _ in 0..4 {
        let mut other = gateway.resp();
        other.send(b"GET long\r\n");
        other.resp_answer();
    }
    set(&mut client, "long", &new);
    for client in &mut slow {
        client.try_send(b"QUIT\r\n");
        let all = client.rest();
        let mut rest = &all[..];
        for known in [&old, &new] {
            let answer = bulk(known);
            while rest.starts_with(&answer) {
                rest = &rest[answer.len()..];
            }
        }
        let is_begun = bulk(&old).starts_with(rest);
        assert!(rest == b"+OK\r\n" || is_begun, "{} bytes of something else", rest.len());
    }
}

#[test]
fn idle_connections_take_little_memory() {
    let _alone = alone();
    let gateway = support::gateway();
    let mut clients: Vec<Client> = (0..50).map(|_| gateway.resp()).collect();
    let ask = |client: &mut Client| {
        client.send(b"SET k v\r\nGET k\r\n");
        client.resp_answer();
        client.resp_answer();
    };
    clients.iter_mut().for_each(ask);
    let before = own_memory();
    let count = 500;
    let mut more: Vec<Client> = (0..count).map(|_| gateway.resp()).collect();
    more.iter_mut().for_each(ask);
    let each = own_memory().saturating_sub(before) / count;
    assert!(each < 16 << 10, "{each} bytes for each connection");
}

/// Half a gibibyte is announced, and nothing comes.
#[test]
fn what_is_announced_takes_no_memory_before_it_comes() {
    let _alone = alone();
    let gateway = support::gateway();
    let before = own_memory();
    let clients: Vec<Client> = (0..100)
        .map(|number| {
            let mut client = if number % 2 == 0 { gateway.resp() } else { gateway.memcached() };
            match number % 2 {
                0 => client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc"),
                _ => client.send(b"set k 0 0 60000000\r\nabc"),
            }
            client
        })
        .collect();
    let until = Instant::now() + Duration::from_millis(200);
    let mut client = gateway.resp();
    while Instant::now() < until {
        client.send(b"PING\r\n");
        client.resp_answer();
    }
    let held = own_memory().saturating_sub(before);
    assert!(held < 16 * MIB, "{} MiB", held / MIB);
    drop(clients);
}
