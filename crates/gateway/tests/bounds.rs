//! Small requests that ask for much memory or time: the memory has a bound, and others are served
//! meanwhile.
//!
//! How long others wait is counted in answers that they get between the begin and the end of such a
//! request, not in time: that holds on a slow machine as well.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loch::EmbeddedConfig;
use loch_gateway::GatewayConfig;
use support::{Client, Ours, text};

const MIB: usize = 1 << 20;

/// The memory that docs/gateway.md promises for all of these.
const MEMORY_MAX: usize = 512 * MIB;

/// The memory of the process is measured, so there is one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A gateway with one thread: what holds it up holds up all.
fn gateway() -> Ours {
    let nodes = EmbeddedConfig { memory: "1GiB".parse().unwrap(), ..EmbeddedConfig::default() };
    support::gateway_of(nodes, GatewayConfig::default())
}

fn request(words: &[&str]) -> String {
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", words.matches('$').count())
}

fn ask(client: &mut Client, words: &[&str]) -> String {
    client.send(request(words).as_bytes());
    text(&client.resp_answer())
}

/// The fate of others while something was done.
struct Meanwhile {
    /// Answers that another client got, one after the other.
    answers: usize,
    /// The most memory that is not shared, in bytes, above what there was before.
    grown: usize,
}

fn own_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Does something while another client asks for one short answer after the other.
fn meanwhile(gateway: &Ours, work: impl FnOnce()) -> Meanwhile {
    let (before, ends) = (own_memory(), AtomicBool::new(false));
    let (answers, grown) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let mut other = gateway.resp();
        assert_eq!(ask(&mut other, &["SET", "innocent", "v"]), "+OK\r\n");
        scope.spawn(|| {
            let mut other = other;
            while !ends.load(Ordering::Relaxed) {
                assert_eq!(ask(&mut other, &["INCR", "count"]).as_bytes()[0], b':');
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                grown.fetch_max(own_memory().saturating_sub(before), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        ends.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    Meanwhile { answers: answers.into_inner(), grown: grown.into_inner() }
}

impl Meanwhile {
    #[track_caller]
    fn has(&self, answers: usize, grown: usize) {
        assert!(self.answers >= answers, "others got {} answers only", self.answers);
        assert!(self.grown < grown, "{} MiB", self.grown / MIB);
        println!("{} answers, {} MiB", self.answers, self.grown / MIB);
    }
}

/// A client has some answers, however soon the work that goes on has begun.
fn is_served(gateway: &Ours) {
    let mut client = gateway.resp();
    for _ in 0..8 {
        assert_eq!(ask(&mut client, &["PING"]), "+PONG\r\n");
    }
}

/// Each of these copied the value.
#[test]
fn a_transaction_works_on_one_copy_of_its_value_and_lets_others_go_on() {
    let _alone = alone();
    let gateway = gateway();
    let mut client = gateway.resp();
    assert_eq!(ask(&mut client, &["SETRANGE", "big", "20000000", "x"]), ":20000001\r\n");
    const COMMANDS: usize = 80_000;
    let commands = [
        (request(&["STRLEN", "big"]), ":20000001\r\n"),
        (request(&["SETBIT", "big", "1", "0"]), ":0\r\n"),
        (request(&["EXPIRE", "big", "100"]), ":1\r\n"),
        (request(&["GETRANGE", "big", "0", "0"]), "$1\r\n\0\r\n"),
    ];
    let queued = "+QUEUED\r\n".len();
    let seen = meanwhile(&gateway, || {
        let all: String = (0..COMMANDS).map(|at| commands[at % 4].0.as_str()).collect();
        client.send(format!("MULTI\r\n{all}").as_bytes());
        client.exactly(5 + COMMANDS * queued);
        client.send(b"EXEC\r\n");
        assert_eq!(text(&client.line()), format!("*{COMMANDS}\r\n"));
        for at in 0..COMMANDS {
            assert_eq!(text(&client.resp_answer()), commands[at % 4].1);
        }
    });
    seen.has(5, 150 * MIB);
    assert_eq!(ask(&mut client, &["STRLEN", "big"]), ":20000001\r\n");
}

/// A few KB of requests, each of which makes a value of 30 MB, from clients whose requests before
/// were short.
#[test]
fn values_that_are_built_have_a_bound_for_all_clients() {
    let _alone = alone();
    let gateway = gateway();
    let short: String = (0..64).map(|n| request(&["STRLEN", &format!("s{n}")])).collect();
    let mut clients: Vec<Client> = (0..8).map(|_| gateway.resp()).collect();
    for client in &mut clients {
        client.send(short.as_bytes());
        client.exactly(64 * 4);
    }
    let seen = meanwhile(&gateway, || {
        for (of, client) in clients.iter_mut().enumerate() {
            let key = |n: usize| format!("k{of}-{n}");
            let long = |n| request(&["SETRANGE", &key(n), "30000000", "x"]);
            let all: String = (0..16).map(long).collect();
            client.send(all.as_bytes());
        }
        for client in &mut clients {
            for _ in 0..16 {
                let answer = text(&client.resp_answer());
                // The table is full after some of them.
                assert!(answer == ":30000001\r\n" || answer.starts_with("-OOM"), "{answer}");
            }
        }
    });
    seen.has(32, MEMORY_MAX);
}

/// As many of these as a pipeline can have were executed side by side, if a short answer came
/// before them.
#[test]
fn long_answers_have_a_bound_for_all_clients_that_take_none() {
    let _alone = alone();
    let gateway = gateway();
    let mut client = gateway.resp();
    for n in 0..16 {
        assert!(
            ask(&mut client, &["SETRANGE", &format!("k{n}"), "10000000", "x"]).starts_with(':')
        );
    }
    let short: String = (0..64).map(|n| request(&["STRLEN", &format!("s{n}")])).collect();
    for of_each in ["MGET", "GETRANGE"] {
        let rest: &[&str] = if of_each == "MGET" { &[] } else { &["0", "-1"] };
        let long = |n: usize| request(&[&[of_each, &format!("k{n}")], rest].concat());
        let all = request(&["STRLEN", "none"]) + &(0..16).map(long).collect::<String>();
        let mut clients = Vec::new();
        let seen = meanwhile(&gateway, || {
            for _ in 0..8 {
                let mut client = gateway.resp();
                client.send(short.as_bytes());
                client.exactly(64 * 4);
                client.send(all.as_bytes());
                client.exactly(4 + 1000);
                clients.push(client);
            }
            is_served(&gateway);
        });
        seen.has(0, 200 * MIB);
    }
    // All at once, in a transaction: the first commands are answered, and the others are errors.
    let (list, mut clients) = (vec!["k1"; 150], Vec::new());
    let seen = meanwhile(&gateway, || {
        for _ in 0..8 {
            let mut client = gateway.resp();
            let mget = request(&[&["MGET"], &list[..]].concat());
            client.send(format!("MULTI\r\n{mget}PING\r\nEXEC\r\n").as_bytes());
            client.exactly(5 + 2 * 9);
            let begin = text(&client.exactly(4));
            assert!(begin.starts_with("*2\r\n") || begin == "-EXE", "{begin}");
            clients.push(client);
        }
        is_served(&gateway);
    });
    seen.has(0, 300 * MIB);
}

/// It goes on as long as its answers have room beside those that others have not taken.
#[test]
fn a_transaction_has_errors_from_where_its_answers_have_no_room() {
    let _alone = alone();
    let gateway = gateway();
    let (mut other, mut holder) = (gateway.resp(), gateway.resp());
    assert_eq!(ask(&mut other, &["SETRANGE", "long", "9999999", "x"]), ":10000000\r\n");
    assert_eq!(ask(&mut other, &["SETRANGE", "short", "15999", "x"]), ":16000\r\n");
    let held = request(&["GETRANGE", "long", "0", "-1"]).repeat(6);
    holder.send(format!("MULTI\r\n{held}EXEC\r\n").as_bytes());
    let begin = text(&holder.exactly(5 + 6 * 9 + 4 + 11));
    assert!(begin.ends_with("*6\r\n$10000000\r\n"), "{begin}");
    let mut execute = |gets: usize| {
        let short = request(&["GETRANGE", "short", "0", "-1"]).repeat(gets);
        other.send(format!("MULTI\r\n{short}PING\r\nEXEC\r\n").as_bytes());
        (0..gets + 2).for_each(|_| drop(other.line()));
        assert_eq!(text(&other.line()), format!("*{}\r\n", gets + 1));
        (0..gets).for_each(|_| drop(other.resp_answer()));
        text(&other.resp_answer())
    };
    assert_eq!(execute(10), "+PONG\r\n");
    assert!(execute(600).starts_with("-ERR clients have not taken"));
    drop(holder);
    let until = Instant::now() + Duration::from_secs(20);
    while execute(600) != "+PONG\r\n" {
        assert!(Instant::now() < until, "what was held is not given back");
    }
}

/// Quadratic in the key and the pattern.
#[test]
fn a_pattern_that_takes_long_lets_others_go_on_and_ends_with_its_gateway() {
    let _alone = alone();
    let mut gateway = gateway();
    let mut client = gateway.resp();
    for n in 0..10 {
        let key = format!("{}{n}", "a".repeat(65_000));
        assert_eq!(ask(&mut client, &["SET", &key, "v"]), "+OK\r\n");
    }
    let class = format!("*[{}]", "b".repeat(100_000));
    let seen = meanwhile(&gateway, || {
        assert_eq!(ask(&mut client, &["KEYS", &class]), "*0\r\n");
        let stars = format!("*{}b", "a".repeat(500));
        assert_eq!(ask(&mut client, &["KEYS", &stars]), "*0\r\n");
        let scanned = ask(&mut client, &["SCAN", "0", "COUNT", "1000", "MATCH", &stars]);
        assert!(scanned.ends_with("*0\r\n"), "{scanned}");
    });
    seen.has(20, 64 * MIB);
    let answer = ask(&mut client, &["KEYS", &"*".repeat(300_000)]);
    assert!(answer.starts_with("-ERR the pattern has more than"), "{answer}");
    // This one would take minutes.
    let long = format!("*{}b", "a".repeat(32_000));
    client.send(request(&["KEYS", &long]).repeat(3).as_bytes());
    wait_for_command(&gateway, "keys");
    let began = Instant::now();
    gateway.gateway.take().unwrap().stop();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Waits until a client executes a command.
fn wait_for_command(gateway: &Ours, command: &str) -> String {
    let (mut other, wanted) = (gateway.resp(), format!("cmd={command} "));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let all = ask(&mut other, &["CLIENT", "LIST"]);
        if let Some(line) = all.lines().find(|line| line.contains(&wanted)) {
            return line.split_once("id=").unwrap().1.split(' ').next().unwrap().to_owned();
        }
        assert!(Instant::now() < until, "no client has {wanted}: {all}");
    }
}

/// A pipeline of 128 requests that all take long is executed to its end by nobody.
#[test]
fn a_client_that_is_killed_or_gone_and_a_gateway_that_stops_end_what_takes_long() {
    let _alone = alone();
    let mut gateway = gateway();
    let mut client = gateway.resp();
    assert!(ask(&mut client, &["SETRANGE", "big", "60000000", "x"]).starts_with(':'));
    // The gateway and the socket take all of it at once, so nobody waits to send it.
    let long = request(&["BITCOUNT", "big"]).repeat(5_000);
    let begin = |gateway: &Ours| {
        let mut client = gateway.resp();
        client.send(long.as_bytes());
        (wait_for_command(gateway, "bitcount"), client)
    };
    let is_there = |other: &mut Client, id: &str| {
        ask(other, &["CLIENT", "LIST"]).contains(&format!("id={id} "))
    };
    let (killed, mut its) = begin(&gateway);
    assert_eq!(ask(&mut client, &["CLIENT", "KILL", "ID", &killed]), ":1\r\n");
    assert!(its.count_rest() < 4 * 2_500, "it is not served to the end");
    assert!(!is_there(&mut client, &killed));
    let (gone, its) = begin(&gateway);
    drop(its);
    let until = Instant::now() + Duration::from_secs(20);
    while is_there(&mut client, &gone) {
        assert!(Instant::now() < until, "it is served although it is gone");
    }
    let _its = begin(&gateway);
    let began = Instant::now();
    gateway.gateway.take().unwrap().stop();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Each has a third of what there is for all.
#[test]
fn long_requests_that_come_at_the_same_time_wait_for_each_other_and_all_are_answered() {
    let _alone = alone();
    let gateway = gateway();
    let text = "e".repeat(50_000_000);
    let seen = meanwhile(&gateway, || {
        std::thread::scope(|scope| {
            for _ in 0..12 {
                let (mut client, text) = (gateway.resp(), &text);
                scope.spawn(move || {
                    client.send(b"*2\r\n$4\r\nECHO\r\n$50000000\r\n");
                    client.send(text.as_bytes());
                    client.send(b"\r\n");
                    let answer = client.line();
                    let is_refused = answer.starts_with(b"-ERR clients have not taken");
                    assert!(is_refused || answer == b"$50000000\r\n");
                    let rest = if is_refused { 0 } else { text.len() + 2 };
                    client.skip(rest);
                });
            }
        });
    });
    seen.has(20, MEMORY_MAX);
}

/// Their values are in the table for a moment, and then in memory of the gateway.
#[test]
fn values_that_come_slowly_have_a_bound_for_all_clients() {
    let _alone = alone();
    let gateway = gateway();
    let part = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000000\r\n{}", "v".repeat(15_000_000));
    let seen = meanwhile(&gateway, || {
        let begin = |_| {
            let mut client = gateway.resp();
            client.send_some(part.as_bytes());
            client
        };
        let _clients: Vec<Client> = (0..40).map(begin).collect();
    });
    seen.has(20, 250 * MIB);
}

/// The keys were copied for the time until the client takes the answers.
#[test]
fn lists_of_keys_have_a_bound_for_all_clients_that_take_no_answers() {
    let _alone = alone();
    let gateway = gateway();
    let key = "k".repeat(200);
    assert_eq!(ask(&mut gateway.resp(), &["SET", &key, &"v".repeat(2000)]), "+OK\r\n");
    let mut words = vec![key.as_str(); 200_001];
    words[0] = "MGET";
    let list = request(&words);
    let seen = meanwhile(&gateway, || {
        let begin = |_| {
            let mut client = gateway.resp();
            client.send_some(list.as_bytes());
            client
        };
        let mut clients: Vec<Client> = (0..12).map(begin).collect();
        // Those that have room are answered to the end.
        assert_eq!(clients[0].line(), b"*200000\r\n");
        clients[0].skip(200_000 * "$2000\r\n\r\n".len() + 200_000 * 2000);
    });
    seen.has(20, 300 * MIB);
}

#[test]
fn transactions_have_a_bound_for_each_client_and_for_all() {
    let _alone = alone();
    let gateway = gateway();
    let set = request(&["SET", "k", &"v".repeat(1_000_000)]);
    let mut clients: Vec<Client> = (0..6).map(|_| gateway.resp()).collect();
    let mut queued = 0;
    let seen = meanwhile(&gateway, || {
        for client in &mut clients {
            assert_eq!(ask(client, &["MULTI"]), "+OK\r\n");
            for _ in 0..40 {
                client.send(set.as_bytes());
                let answer = text(&client.line());
                queued += usize::from(answer == "+QUEUED\r\n");
                assert!(answer == "+QUEUED\r\n" || answer.starts_with("-OOM"), "{answer}");
            }
        }
    });
    seen.has(20, 200 * MIB);
    assert!((90..=100).contains(&queued), "{queued}");
    // A short one is anybody's, and what has failed is not executed.
    let mut other = gateway.resp();
    other.send(b"MULTI\r\nSET a b\r\nEXEC\r\n");
    let answers = b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n";
    assert_eq!(text(&other.exactly(answers.len())), text(answers));
    assert!(ask(&mut clients[5], &["EXEC"]).starts_with("-EXECABORT"));
    assert!(ask(&mut clients[0], &["EXEC"]).starts_with("*40\r\n"));
    drop(clients);
    // What those had that are gone is others' again.
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        assert_eq!(ask(&mut other, &["MULTI"]), "+OK\r\n");
        let has_room = (0..60).all(|_| {
            other.send(set.as_bytes());
            other.line() == b"+QUEUED\r\n"
        });
        assert_eq!(ask(&mut other, &["DISCARD"]), "+OK\r\n");
        if has_room {
            break;
        }
        assert!(Instant::now() < until);
    }
}

#[test]
fn watched_keys_and_names_have_bounds() {
    let _alone = alone();
    let gateway = gateway();
    let mut client = gateway.resp();
    let keys: Vec<String> = (0..10_001).map(|n| format!("w{n}")).collect();
    let watch = |count: usize| {
        let words: Vec<&str> =
            ["WATCH"].into_iter().chain(keys[..count].iter().map(|k| &**k)).collect();
        request(&words)
    };
    let seen = meanwhile(&gateway, || {
        for _ in 0..20 {
            client.send(watch(10_000).as_bytes());
            assert_eq!(client.line(), b"+OK\r\n");
        }
    });
    seen.has(20, 32 * MIB);
    client.send(watch(10_001).as_bytes());
    assert_eq!(client.line(), b"-ERR this client watches too many keys\r\n");
    assert_eq!(ask(&mut client, &["UNWATCH"]), "+OK\r\n");
    let (fits, too_long) = ("n".repeat(256), "n".repeat(257));
    for words in [&["CLIENT", "SETNAME"][..], &["CLIENT", "SETINFO", "LIB-NAME"]] {
        assert_eq!(ask(&mut client, &[words, &[&fits]].concat()), "+OK\r\n");
        let refused = ask(&mut client, &[words, &[&too_long]].concat());
        assert_eq!(refused, "-ERR Names have up to 256 bytes in this gateway\r\n");
    }
    let refused = ask(&mut client, &["HELLO", "3", "SETNAME", &too_long]);
    assert!(refused.starts_with("-ERR Names have"), "{refused}");
}

/// A command that works on a long value has memory for it, and waits for no more while it has.
#[test]
fn commands_on_two_keys_wait_for_nobody_while_they_have_memory() {
    let _alone = alone();
    let gateway = gateway();
    let mut client = gateway.resp();
    // Three copies of each are most of what there is for all.
    for key in ["a", "b"] {
        assert_eq!(ask(&mut client, &["SETRANGE", key, "40000000", key]), ":40000001\r\n");
    }
    let seen = meanwhile(&gateway, || {
        assert_eq!(ask(&mut client, &["RENAME", "a", "c"]), "+OK\r\n");
        assert_eq!(ask(&mut client, &["EXISTS", "a"]), ":0\r\n");
        assert_eq!(ask(&mut client, &["RENAMENX", "c", "b"]), ":0\r\n");
        assert_eq!(ask(&mut client, &["COPY", "c", "b"]), ":0\r\n");
        assert_eq!(ask(&mut client, &["COPY", "c", "b", "REPLACE"]), ":1\r\n");
        assert_eq!(ask(&mut client, &["GETRANGE", "b", "40000000", "-1"]), "$1\r\na\r\n");
        assert_eq!(ask(&mut client, &["RENAME", "c", "b"]), "+OK\r\n");
        assert_eq!(ask(&mut client, &["STRLEN", "b"]), ":40000001\r\n");
        assert_eq!(ask(&mut client, &["RENAMENX", "b", "a"]), ":1\r\n");
        assert_eq!(ask(&mut client, &["COPY", "a", "b"]), ":1\r\n");
    });
    seen.has(5, 300 * MIB);
    // Many of them at once, each of which has a part.
    assert_eq!(ask(&mut client, &["DEL", "a", "b"]), ":2\r\n");
    let mut clients: Vec<Client> = (0..12).map(|_| gateway.resp()).collect();
    for (of, client) in clients.iter_mut().enumerate() {
        let key = format!("k{of}");
        assert_eq!(ask(client, &["SETRANGE", &key, "8000000", "x"]), ":8000001\r\n");
    }
    let seen = meanwhile(&gateway, || {
        for (of, client) in clients.iter_mut().enumerate() {
            let (from, to) = (format!("k{of}"), format!("l{of}"));
            let there_and_back =
                request(&["RENAME", &from, &to]) + &request(&["RENAME", &to, &from]);
            client.send(there_and_back.repeat(4).as_bytes());
        }
        for client in &mut clients {
            assert_eq!(text(&client.exactly(8 * 5)), "+OK\r\n".repeat(8));
        }
    });
    seen.has(20, 300 * MIB);
}

/// As many of these as a batch can have were executed side by side, if a short answer came before
/// them.
#[test]
fn values_that_are_touched_have_a_bound_and_let_others_go_on() {
    let _alone = alone();
    let gateway = gateway();
    let mut client = gateway.resp();
    for n in 0..20 {
        let key = format!("k{n}");
        assert_eq!(ask(&mut client, &["SETRANGE", &key, "20000000", "x"]), ":20000001\r\n");
    }
    assert_eq!(ask(&mut client, &["SET", "short", "v"]), "+OK\r\n");
    let keys: String = (0..20).map(|n| format!(" k{n}")).collect();
    for expiry in ["100", "0"] {
        let mut client = gateway.memcached();
        let seen = meanwhile(&gateway, || {
            let short = format!("gat {expiry} short\r\n");
            client.send(format!("{short}{short}gat {expiry}{keys}\r\nmn\r\n").as_bytes());
            for _ in 0..2 {
                client.exactly("VALUE short 0 1\r\nv\r\nEND\r\n".len());
            }
            for n in 0..20 {
                assert_eq!(text(&client.line()), format!("VALUE k{n} 0 20000001\r\n"));
                client.skip(20_000_001 + 2);
            }
            assert_eq!(text(&client.exactly(9)), "END\r\nMN\r\n");
        });
        seen.has(20, 200 * MIB);
    }
    // One that is gone once it is touched is answered all the same.
    let mut client = gateway.memcached();
    client.send(b"gat -1 k0 k1\r\nget k0 k1\r\n");
    for n in 0..2 {
        assert_eq!(text(&client.line()), format!("VALUE k{n} 0 20000001\r\n"));
        client.skip(20_000_001 + 2);
    }
    assert_eq!(text(&client.exactly(10)), "END\r\nEND\r\n");
}

/// How often the threads of a gateway have gone to sleep.
fn sleeps() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let served = statuses.filter(|status| status.starts_with("Name:\tloch-gateway-0"));
    let count = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<usize>().unwrap()
    };
    served.map(count).sum()
}

/// The poll set tells of a client that has gone, whatever it is asked for.
#[test]
fn a_connection_that_waits_for_room_and_has_lost_its_client_takes_no_time() {
    let _alone = alone();
    let gateway = gateway();
    let begin = |bytes: usize| {
        let mut client = gateway.resp();
        client.send(format!("*2\r\n$4\r\nECHO\r\n${bytes}\r\nx").as_bytes());
        client
    };
    let mut other = gateway.resp();
    let _has_all = begin(200 << 20);
    assert_eq!(ask(&mut other, &["PING"]), "+PONG\r\n");
    drop(begin(1 << 20));
    assert_eq!(ask(&mut other, &["PING"]), "+PONG\r\n");
    let (before, until) = (sleeps(), Instant::now() + Duration::from_secs(10));
    while sleeps() < before + 30 {
        assert!(Instant::now() < until, "the thread does not rest");
        std::thread::sleep(Duration::from_millis(10));
    }
}
