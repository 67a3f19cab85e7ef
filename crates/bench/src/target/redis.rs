//! Redis, with RESP, without persistence.
//!
//! As a cache it has the memory of the run's options in addition to the megabyte that it uses when
//! it is empty: in a small cache that would be a large share, which no user's cache has.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::pipeline::Pipeline;
use super::protocol::{Parsed, Protocol, Reply, decimal, line, statistic, value};
use super::server::{self, Place, Server, installed};
use super::{Endpoint, Result, Service};
use crate::error::TargetError;
use crate::spec::Spec;
use crate::tally::Usage;

const NAME: &str = "redis";

/// How long Redis may take to answer while it is set up.
const SETUP_LIMIT: Duration = Duration::from_secs(10);

/// Starts a private Redis that keeps everything in memory and writes nothing. If it is to be a
/// cache, `policy` says what it evicts.
pub fn start(spec: &Spec, policy: &str, interrupted: &AtomicBool) -> Result<Server> {
    let command = installed(NAME, "redis-server", "redis-server")?;
    let server = Server::start(NAME, command, spec.peer_transport, interrupted, |dir, place| {
        let dir = dir.to_string_lossy();
        let place = match place {
            Place::Unix(socket) => [
                ("--port", "0".into()),
                ("--unixsocket", socket.to_string_lossy().into_owned()),
                ("--unixsocketperm", "700".into()),
            ],
            Place::Tcp(at) => [
                ("--port", at.port().to_string()),
                ("--bind", at.ip().to_string()),
                ("--protected-mode", "yes".into()),
            ],
        };
        let clients = (spec.clients + 64).to_string();
        let options = [
            ("--dir", &*dir),
            ("--save", ""),
            ("--appendonly", "no"),
            ("--daemonize", "no"),
            ("--maxmemory", "0"),
            ("--maxclients", &clients),
            ("--maxmemory-policy", policy),
        ];
        let options = options.map(|(option, value)| (option, value.into()));
        let options = place.into_iter().chain(options);
        options.flat_map(|(option, value)| [option.into(), value]).collect()
    })?;
    if let Some(bytes) = spec.cache_bytes() {
        let place = &server.endpoint().paths[0];
        limit(place, bytes).map_err(TargetError::lost(NAME, "limit its memory"))?;
    }
    Ok(server)
}

/// Limits the memory of an empty server to this many bytes more than it uses.
fn limit(place: &Path, bytes: u64) -> io::Result<()> {
    let socket = server::connect(place)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(SETUP_LIMIT))?;
    let mut socket = File::from(socket);
    let mut ask = |command: &str| {
        socket.write_all(command.as_bytes())?;
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let read = socket.read(&mut part)?;
            answer.extend_from_slice(&part[..read]);
            match parse_reply(&answer) {
                Parsed::Whole(_, Reply::Value(text)) => {
                    return Ok(String::from_utf8_lossy(text).into_owned());
                }
                Parsed::Whole(_, Reply::Stored) => return Ok(String::new()),
                Parsed::Partial(_) if read > 0 => {}
                _ => return Err(io::Error::other(answer.escape_ascii().to_string())),
            }
        }
    };
    let used = statistic(&ask("INFO memory\r\n")?, "used_memory:");
    let used = used.ok_or_else(|| io::Error::other("INFO has no used_memory"))?;
    ask(&format!("CONFIG SET maxmemory {}\r\n", used + bytes)).map(drop)
}

/// Connects one client of `peer`, which speaks RESP.
pub fn connect(peer: &'static str, spec: &Spec, endpoint: &Endpoint) -> Result<Pipeline<Redis>> {
    Pipeline::connect(peer, Redis::new(spec), &endpoint.paths[0], spec.lanes)
}

/// RESP, version 2.
pub struct Redis {
    /// A GET up to its key.
    get: Vec<u8>,
    /// A SET up to its key.
    set: Vec<u8>,
    /// The bytes between key and value of a SET, for values of the usual size.
    length: Vec<u8>,
    value_size: usize,
}

impl Redis {
    fn new(spec: &Spec) -> Self {
        Redis {
            get: format!("*2\r\n$3\r\nGET\r\n${}\r\n", spec.key_size).into_bytes(),
            set: format!("*3\r\n$3\r\nSET\r\n${}\r\n", spec.key_size).into_bytes(),
            length: format!("\r\n${}\r\n", spec.value_size).into_bytes(),
            value_size: spec.value_size,
        }
    }
}

impl Protocol for Redis {
    #[inline]
    fn get(&self, key: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.get);
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn put_head(&self, key: &[u8], len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.set);
        out.extend_from_slice(key);
        if len == self.value_size {
            out.extend_from_slice(&self.length);
        } else {
            out.extend_from_slice(format!("\r\n${len}\r\n").as_bytes());
        }
    }

    const STATISTICS: &'static [u8] = b"*1\r\n$4\r\nINFO\r\n";

    fn parse_statistics<'a>(&self, bytes: &'a [u8]) -> Parsed<'a> {
        parse_reply(bytes)
    }

    fn usage(statistics: &str) -> Option<Usage> {
        Some(Usage {
            // There is no such line if there are no keys.
            values: statistic(statistics, "db0:keys=").unwrap_or(0),
            evicted: statistic(statistics, "evicted_keys:")?,
            bytes: None,
        })
    }

    #[inline]
    fn parse<'a>(&self, bytes: &'a [u8]) -> Parsed<'a> {
        parse_reply(bytes)
    }
}

#[inline]
fn parse_reply(bytes: &[u8]) -> Parsed<'_> {
    let status = match line(bytes) {
        Ok(status) => status,
        Err(parsed) => return parsed,
    };
    let head = status.len() + 2;
    match status {
        b"$-1" => Parsed::Whole(head, Reply::Missing),
        [b'$', digits @ ..] => match decimal(digits) {
            Some(len) => value(bytes, head, len),
            None => Parsed::Garbage,
        },
        b"+OK" => Parsed::Whole(head, Reply::Stored),
        [b'-', reason @ ..] => Parsed::Whole(head, Reply::Refused(reason)),
        _ => Parsed::Garbage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;
    use crate::target::protocol::tests::holds_when_split;

    fn redis() -> Redis {
        Redis::new(&spec("--key-size 8 --value-size 5").unwrap())
    }

    #[test]
    fn replies_parse_wherever_they_are_cut() {
        holds_when_split(&redis(), b"$5\r\n\r\n$1\r\r\n", Reply::Value(b"\r\n$1\r"));
        holds_when_split(&redis(), b"$0\r\n\r\n", Reply::Value(b""));
        holds_when_split(&redis(), b"$-1\r\n", Reply::Missing);
        holds_when_split(&redis(), b"+OK\r\n", Reply::Stored);
        holds_when_split(&redis(), b"-OOM no\r\n", Reply::Refused(b"OOM no"));
    }

    #[test]
    fn anything_else_is_garbage() {
        for bytes in [&b"+PONG\r\n"[..], b"$x\r\n", b"$1\r\nabc\r\n", b":1\r\n", b"\r\n"] {
            assert_eq!(redis().parse(bytes), Parsed::Garbage, "{bytes:?}");
        }
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        redis().get(b"12345678", &mut out);
        redis().put_head(b"12345678", 5, &mut out);
        redis().put_head(b"12345678", 17, &mut out);
        let expected = "*2\r\n$3\r\nGET\r\n$8\r\n12345678\r\n\
            *3\r\n$3\r\nSET\r\n$8\r\n12345678\r\n$5\r\n\
            *3\r\n$3\r\nSET\r\n$8\r\n12345678\r\n$17\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn statistics_tell_keys_and_evictions() {
        let usage = |text| Redis::usage(text);
        let empty = Some(Usage { values: 0, evicted: 0, bytes: None });
        assert_eq!(usage("# Stats\r\nevicted_keys:0\r\n# Keyspace\r\n"), empty);
        let full = Some(Usage { values: 56, evicted: 7, bytes: None });
        assert_eq!(usage("evicted_keys:7\r\ndb0:keys=56,expires=0,avg_ttl=0\r\n"), full);
        assert_eq!(usage("nothing"), None);
    }
}
