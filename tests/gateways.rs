//! The answers of gateways are linearizable, together with those of native clients beside them,
//! while gateways and the node are killed and come back.
//!
//! `LOCH_LONG=1` goes on for forty rounds instead of six.

mod support;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loch::{Cluster, Conditional, Expect, PutOptions, Table, Version};
use loch_history::{Answer, Ask, History, Operation, Outcome, appended, check};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::gateway::Gateway;
use support::{Node, is_long, private_dir, wait_for};

/// Operations of a client in a round.
const OPERATIONS: usize = 4000;
/// The keys of a round; the last one is a counter.
const KEYS: u64 = 4;
/// Clients of each kind.
const CLIENTS: u32 = 2;
/// A client that waits for so long is told nothing any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Configurations that the checker may look at for each key.
const BUDGET: u64 = 20_000_000;
/// Digits of a tag.
const DIGITS: usize = 20;

/// A way to the table.
enum Way {
    Resp(Link),
    Memcached(Link),
    Native(Box<Table>),
}

/// A connection to any of several gateways.
struct Link {
    gateways: Vec<PathBuf>,
    stream: Option<BufReader<UnixStream>>,
}

impl Link {
    fn stream(&mut self) -> &mut BufReader<UnixStream> {
        let Self { gateways, stream } = self;
        stream.get_or_insert_with(|| {
            let connect = || gateways.iter().find_map(|path| UnixStream::connect(path).ok());
            let stream = wait_for("a gateway", connect);
            stream.set_read_timeout(Some(PATIENCE)).expect("it is a socket");
            BufReader::new(stream)
        })
    }

    /// Sends a request, and reads an answer. After an error the next request goes to another
    /// gateway.
    fn ask<T>(
        &mut self,
        request: &[u8],
        read: impl Fn(&mut BufReader<UnixStream>) -> io::Result<T>,
    ) -> io::Result<T> {
        let stream = self.stream();
        let answer = stream.get_mut().write_all(request).and_then(|()| read(stream));
        if answer.is_err() {
            self.stream = None;
            self.gateways.rotate_left(1);
        }
        answer
    }
}

fn line(stream: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

fn bytes(stream: &mut BufReader<UnixStream>, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count + 2];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// The first line of an answer of RESP, and the bytes of a string.
fn resp_answer(stream: &mut BufReader<UnixStream>) -> io::Result<(String, Option<Vec<u8>>)> {
    let line = line(stream)?;
    let count = line.strip_prefix('$').and_then(|count| count.parse::<usize>().ok());
    let value = count.map(|count| bytes(stream, count)).transpose()?;
    Ok((line, value))
}

/// The words of an answer of memcached, and a value.
fn memcached_answer(
    stream: &mut BufReader<UnixStream>,
) -> io::Result<(Vec<String>, Option<Vec<u8>>)> {
    let words: Vec<String> = line(stream)?.split(' ').map(str::to_owned).collect();
    let value = match words[0] == "VA" {
        true => Some(bytes(stream, words[1].parse().map_err(io::Error::other)?)?),
        false => None,
    };
    Ok((words, value))
}

fn is_counter(key: u64) -> bool {
    key % KEYS == KEYS - 1
}

fn name(key: u64) -> String {
    format!("key:{key}")
}

fn value_of(key: u64, tag: u64) -> String {
    if is_counter(key) { tag.to_string() } else { format!("{tag:0DIGITS$}") }
}

/// The tag of a value: of one tag, or of several that were put behind each other.
fn tag_of(key: u64, value: &[u8]) -> u64 {
    let number = |digits: &[u8]| -> u64 {
        let text = std::str::from_utf8(digits).expect("only digits are written");
        text.parse().expect("only digits are written")
    };
    if is_counter(key) {
        return number(value);
    }
    assert_eq!(value.len() % DIGITS, 0, "a value was torn");
    let mut tags = value.chunks(DIGITS).map(number);
    let first = tags.next().expect("no value is empty");
    tags.fold(first, appended)
}

impl Way {
    /// Does an operation. No answer: its outcome is unknown.
    fn execute(&mut self, key: u64, ask: Ask) -> Option<Answer> {
        match self {
            Self::Resp(link) => resp(link, key, ask),
            Self::Memcached(link) => memcached(link, key, ask),
            Self::Native(table) => native(table, key, ask),
        }
    }

    /// What this way can be asked.
    fn draw(&self, key: u64, tag: u64, version: Option<u64>, random: &mut ChaCha8Rng) -> Ask {
        let is_native = matches!(self, Self::Native(_));
        let is_resp = matches!(self, Self::Resp(_));
        match random.random_range(0..10) {
            0..4 => Ask::Get,
            4 if version.is_some() && !is_resp && tag.is_multiple_of(2) => {
                Ask::DeleteIfVersion(version.expect("it is some"))
            }
            4 => Ask::Delete,
            _ if is_counter(key) && is_resp => Ask::Add(1 + tag % 9),
            _ if is_counter(key) => Ask::Get,
            5 => Ask::PutIfAbsent(tag),
            6 if is_resp || !is_native => Ask::Append(tag),
            7 | 8 if version.is_some() => {
                Ask::PutIfVersion { version: version.expect("it is some"), value: tag }
            }
            _ => Ask::Put(tag),
        }
    }
}

fn resp(link: &mut Link, key: u64, ask: Ask) -> Option<Answer> {
    let name = name(key);
    let request = match ask {
        Ask::Get => format!("GET {name}\r\n"),
        Ask::Put(tag) => format!("SET {name} {}\r\n", value_of(key, tag)),
        Ask::PutIfAbsent(tag) => format!("SET {name} {} NX\r\n", value_of(key, tag)),
        Ask::Delete => format!("DEL {name}\r\n"),
        Ask::Append(tag) => format!("APPEND {name} {}\r\n", value_of(key, tag)),
        Ask::Add(number) => format!("INCRBY {name} {number}\r\n"),
        // WATCH, and what a client saw.
        Ask::PutIfVersion { .. } => format!("GET {name}\r\n"),
        other => panic!("{other:?} is not drawn"),
    };
    let (line, value) = link.ask(request.as_bytes(), resp_answer).ok()?;
    if line.starts_with('-') {
        return None;
    }
    Some(match ask {
        Ask::Get => match value {
            Some(value) => Answer::Value(tag_of(key, &value)),
            None => Answer::Found(None),
        },
        Ask::PutIfAbsent(_) if line == "$-1" => Answer::Held,
        Ask::Delete => Answer::Deleted(line == ":1"),
        Ask::Add(number) => {
            let after: u64 = line[1..].parse().expect("a number");
            Answer::Before(after - number)
        }
        _ => Answer::Done,
    })
}

fn memcached(link: &mut Link, key: u64, ask: Ask) -> Option<Answer> {
    let name = name(key);
    let store = |tag, flags: &str| {
        let value = value_of(key, tag);
        format!("ms {name} {} c{flags}\r\n{value}\r\n", value.len())
    };
    let request = match ask {
        Ask::Get => format!("mg {name} v c\r\n"),
        Ask::Put(tag) => store(tag, ""),
        Ask::PutIfAbsent(tag) => store(tag, " ME"),
        Ask::PutIfVersion { version, value } => store(value, &format!(" C{version}")),
        Ask::Append(tag) => store(tag, " MA N0"),
        Ask::Delete => format!("md {name}\r\n"),
        Ask::DeleteIfVersion(version) => format!("md {name} C{version}\r\n"),
        other => panic!("{other:?} is not drawn"),
    };
    let (words, value) = link.ask(request.as_bytes(), memcached_answer).ok()?;
    let cas = words.iter().find_map(|word| word.strip_prefix('c')?.parse::<u64>().ok());
    Some(match (ask, words[0].as_str()) {
        (Ask::Get, "EN") => Answer::Found(None),
        (Ask::Get, "VA") => Answer::Found(Some((tag_of(key, &value?), cas?))),
        (Ask::Delete | Ask::DeleteIfVersion(_), "HD") => Answer::Deleted(true),
        (Ask::Delete, "NF") | (Ask::DeleteIfVersion(_), "NF" | "EX") => Answer::Deleted(false),
        (Ask::PutIfVersion { .. }, "NF") => Answer::Refused(None),
        // It does not say which version there is.
        (Ask::PutIfVersion { .. }, "EX") => Answer::NoEffect,
        (Ask::PutIfAbsent(_), "NS") => Answer::Held,
        (_, "HD") => Answer::Stored(cas?),
        _ => return None,
    })
}

fn native(table: &Table, key: u64, ask: Ask) -> Option<Answer> {
    let name = name(key);
    let name = name.as_bytes();
    let put_if = |tag, expect| -> Option<Answer> {
        let value = value_of(key, tag);
        let options = PutOptions::default();
        Some(match table.put_if(name, value.as_bytes(), expect, options).ok()? {
            Conditional::Done(version) => Answer::Stored(version.as_u64()),
            Conditional::Refused(version) => Answer::Refused(version.map(Version::as_u64)),
        })
    };
    match ask {
        Ask::Get => {
            let found = table.get(name).ok()?;
            let tag = |value: loch::Value| (tag_of(key, &value), value.version().as_u64());
            Some(Answer::Found(found.map(tag)))
        }
        Ask::Put(tag) => {
            let stored = table.put(name, value_of(key, tag).as_bytes()).ok()?;
            Some(Answer::Stored(stored.as_u64()))
        }
        Ask::PutIfAbsent(tag) => put_if(tag, Expect::Absent),
        Ask::PutIfVersion { version, value } => {
            put_if(value, Expect::Version(Version::from_u64(version)))
        }
        Ask::Delete => Some(Answer::Deleted(table.delete(name).ok()?)),
        Ask::DeleteIfVersion(version) => {
            let version = Version::from_u64(version);
            Some(Answer::Deleted(table.delete_if_version(name, version).ok()?))
        }
        other => panic!("{other:?} is not drawn"),
    }
}

/// What a client of a round is given.
struct Task<'a> {
    client: u32,
    round: u64,
    clock: Instant,
    tags: &'a AtomicU64,
    done: &'a AtomicU64,
}

/// A client's operations of a round.
fn work(mut way: Way, task: &Task<'_>) -> Vec<Operation> {
    let seed = task.round * 1000 + u64::from(task.client);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut versions = [None; KEYS as usize];
    let mut operations = Vec::with_capacity(OPERATIONS);
    for _ in 0..OPERATIONS {
        let place = random.random_range(0..KEYS);
        let key = task.round * KEYS + place;
        let tag = task.tags.fetch_add(1, Ordering::Relaxed);
        let ask = way.draw(key, tag, versions[place as usize], &mut random);
        // RESP has no versions.
        let ask = match (&way, ask) {
            (Way::Resp(_), Ask::PutIfVersion { .. }) => Ask::Put(tag),
            (_, ask) => ask,
        };
        let moment = || task.clock.elapsed().as_nanos() as u64;
        let called = moment();
        let answer = way.execute(key, ask);
        let returned = moment();
        if let Some(Answer::Found(Some((_, version))) | Answer::Stored(version)) = answer {
            versions[place as usize] = Some(version);
        }
        let outcome = answer.map_or(Outcome::Unknown, Outcome::Known);
        operations.push(Operation { client: task.client, key, ask, called, returned, outcome });
        task.done.fetch_add(1, Ordering::Relaxed);
    }
    operations
}

#[test]
fn histories_through_gateways_are_linearizable() {
    let dir = private_dir();
    let flags = ["--memory", "32MiB"];
    let mut node = Node::start(dir.path(), "n", &flags);
    let mut gateways = ["a", "b"].map(|name| Gateway::start(dir.path(), &node, name));
    let (clock, tags) = (Instant::now(), AtomicU64::new(1));
    let (mut answered, mut unknown) = (0, 0);
    for round in 0..if is_long() { 40 } else { 6 } {
        let done = AtomicU64::new(0);
        let paths = |of: fn(&Gateway) -> &PathBuf| {
            gateways.iter().map(|gateway| of(gateway).clone()).collect::<Vec<_>>()
        };
        let (resp, memcached) = (paths(|g| &g.resp), paths(|g| &g.memcached));
        let socket = node.socket.clone();
        let way = |client: u32| {
            let mut gateways =
                if client.is_multiple_of(3) { resp.clone() } else { memcached.clone() };
            gateways.rotate_left((client / 3) as usize % 2);
            match client % 3 {
                0 => Way::Resp(Link { gateways, stream: None }),
                1 => Way::Memcached(Link { gateways, stream: None }),
                _ => {
                    let table = Cluster::connect(&socket).and_then(|c| c.table("default"));
                    Way::Native(Box::new(table.expect("the node is up")))
                }
            }
        };
        let all: u64 = 3 * u64::from(CLIENTS) * OPERATIONS as u64;
        let history = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3 * CLIENTS)
                .map(|client| {
                    let (tags, done) = (&tags, &done);
                    let task = Task { client, round, clock, tags, done };
                    // A table is its thread's own.
                    scope.spawn(move || work(way(client), &task))
                })
                .collect();
            let reached = |count| {
                wait_for("operations", || (done.load(Ordering::Relaxed) >= count).then_some(()))
            };
            reached(all / 4);
            let victim = (round % 2) as usize;
            gateways[victim].process.kill();
            reached(all / 3);
            if round % 2 == 1 {
                node.process.kill();
                node = Node::start(dir.path(), "n", &flags);
            }
            gateways[victim] = Gateway::start(dir.path(), &node, ["a", "b"][victim]);
            let mut history = History::new();
            for client in clients {
                let operations = client.join().expect("a client has panicked");
                operations.into_iter().for_each(|operation| history.push(operation));
            }
            history
        });
        let verdict = check(&history, BUDGET);
        assert!(verdict.is_linearizable(), "round {round}: {verdict}");
        let is_known = |operation: &&Operation| matches!(operation.outcome, Outcome::Known(_));
        let known = history.operations().iter().filter(is_known).count();
        answered += known;
        unknown += history.len() - known;
    }
    assert!(answered > 10 * unknown, "{answered} answers, {unknown} unknown outcomes");
    assert!(node.is_clean(), "the table is damaged");
    for gateway in &mut gateways {
        gateway.process.signal(rustix::process::Signal::TERM);
        assert!(gateway.process.ended().success(), "SIGTERM ends a gateway in order");
    }
}
