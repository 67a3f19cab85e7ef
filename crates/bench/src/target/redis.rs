//! Redis, with RESP, without persistence.

use std::sync::atomic::AtomicBool;

use super::pipeline::Pipeline;
use super::protocol::{Parsed, Protocol, Reply, decimal, line, value};
use super::server::{Place, Server, ServerSetup};
use super::{Endpoint, Result};
use crate::spec::Spec;

const NAME: &str = "redis";

/// Starts a private Redis that keeps everything in memory and writes nothing.
pub fn start(spec: &Spec, interrupted: &AtomicBool) -> Result<Server> {
    let setup = ServerSetup { name: NAME, program: "redis-server", package: "redis-server" };
    setup.start(spec.peer_transport, interrupted, |dir, place| {
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
        ];
        let options = options.map(|(option, value)| (option, value.into()));
        let options = place.into_iter().chain(options);
        options.flat_map(|(option, value)| [option.into(), value]).collect()
    })
}

/// Connects one client.
pub fn connect(spec: &Spec, endpoint: &Endpoint) -> Result<Pipeline<Redis>> {
    Pipeline::connect(Redis::new(spec), &endpoint.paths[0], spec.lanes)
}

/// RESP, version 2.
pub struct Redis {
    /// A GET up to its key.
    get: Vec<u8>,
    /// A SET up to its key.
    set: Vec<u8>,
    /// The bytes between key and value of a SET.
    length: Vec<u8>,
}

impl Redis {
    fn new(spec: &Spec) -> Self {
        Redis {
            get: format!("*2\r\n$3\r\nGET\r\n${}\r\n", spec.key_size).into_bytes(),
            set: format!("*3\r\n$3\r\nSET\r\n${}\r\n", spec.key_size).into_bytes(),
            length: format!("\r\n${}\r\n", spec.value_size).into_bytes(),
        }
    }
}

impl Protocol for Redis {
    const NAME: &'static str = NAME;

    #[inline]
    fn get(&self, key: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.get);
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn put_head(&self, key: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.set);
        out.extend_from_slice(key);
        out.extend_from_slice(&self.length);
    }

    #[inline]
    fn parse<'a>(&self, bytes: &'a [u8]) -> Parsed<'a> {
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
        redis().put_head(b"12345678", &mut out);
        let expected =
            "*2\r\n$3\r\nGET\r\n$8\r\n12345678\r\n*3\r\n$3\r\nSET\r\n$8\r\n12345678\r\n$5\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
