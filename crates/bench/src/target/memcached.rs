//! memcached, with its meta protocol.
//!
//! `mg` and `ms` are its leanest commands: a reply does not repeat the key.

use std::sync::atomic::AtomicBool;

use super::pipeline::Pipeline;
use super::protocol::{Parsed, Protocol, Reply, decimal, line, value};
use super::server::{Place, Server, ServerSetup, cores};
use super::{Endpoint, Result, check_key_size};
use crate::spec::Spec;

const NAME: &str = "memcached";
/// A limit of its protocol.
const KEY_SIZE_MAX: usize = 250;
/// Header, CAS, key end and value end of an item, rounded up.
const ITEM_OVERHEAD_BYTES: u64 = 64;
/// Slab classes waste up to a quarter. The memory of memcached is a limit, not an allocation, so it
/// is generous: nothing may be evicted.
const ROOM: f64 = 1.6;
const MIB: u64 = 1 << 20;

/// Starts a private memcached that evicts nothing.
pub fn start(spec: &Spec, interrupted: &AtomicBool) -> Result<Server> {
    check_key_size(NAME, spec, KEY_SIZE_MAX)?;
    let setup = ServerSetup { name: NAME, program: "memcached", package: "memcached" };
    setup.start(spec.peer_transport, interrupted, |_, place| arguments(spec, place))
}

/// Connects one client.
pub fn connect(spec: &Spec, endpoint: &Endpoint) -> Result<Pipeline<Memcached>> {
    Pipeline::connect(Memcached::new(spec.value_size), &endpoint.paths[0], spec.lanes)
}

fn arguments(spec: &Spec, place: &Place) -> Vec<String> {
    let item = (spec.key_size + spec.value_size) as u64 + ITEM_OVERHEAD_BYTES;
    let item_mib = (item + item / 4).div_ceil(MIB).max(1);
    let data_mib = (spec.records as f64 * item as f64 * ROOM / MIB as f64) as u64;
    // An item may not be larger than half of the memory.
    let memory_mib = data_mib + 4 * item_mib + 128;
    // Sized before loading: growing the hash table goes on in the background.
    let hashpower = (spec.records.next_power_of_two().trailing_zeros()).clamp(16, 32);
    let place = match place {
        Place::Unix(socket) => {
            [("-s", socket.to_string_lossy().into_owned()), ("-a", "0700".into())]
        }
        Place::Tcp(at) => [("-l", at.ip().to_string()), ("-p", at.port().to_string())],
    };
    let options = [
        ("-m", memory_mib.to_string()),
        ("-I", format!("{item_mib}m")),
        ("-t", cores().to_string()),
        ("-c", (u64::from(spec.clients) + 64).to_string()),
        // Its default of 20 would cut deep pipelines to pieces.
        ("-R", spec.lanes.max(20).to_string()),
        ("-o", format!("hashpower={hashpower}")),
        // Needed only if root starts memcached, which otherwise refuses to run.
        ("-u", "root".into()),
    ];
    let options = place.into_iter().chain(options);
    options.flat_map(|(option, value)| [option.to_string(), value]).collect()
}

/// The meta protocol.
pub struct Memcached {
    /// ` <length>\r\n`: the bytes between key and value of an `ms`.
    length: Vec<u8>,
}

impl Memcached {
    fn new(value_size: usize) -> Self {
        Memcached { length: format!(" {value_size}\r\n").into_bytes() }
    }
}

impl Protocol for Memcached {
    const NAME: &'static str = NAME;

    #[inline]
    fn get(&self, key: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"mg ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" v\r\n");
    }

    #[inline]
    fn put_head(&self, key: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"ms ");
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
            [b'V', b'A', b' ', digits @ ..] => match decimal(digits) {
                Some(len) => value(bytes, head, len),
                None => Parsed::Garbage,
            },
            b"HD" => Parsed::Whole(head, Reply::Stored),
            b"EN" => Parsed::Whole(head, Reply::Missing),
            b"NS" => Parsed::Whole(head, Reply::Refused(status)),
            _ if status.starts_with(b"SERVER_ERROR") => Parsed::Whole(head, Reply::Refused(status)),
            _ => Parsed::Garbage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;
    use crate::target::protocol::tests::holds_when_split;

    #[test]
    fn replies_parse_wherever_they_are_cut() {
        let memcached = Memcached::new(4);
        holds_when_split(&memcached, b"VA 4\r\na\r\nb\r\n", Reply::Value(b"a\r\nb"));
        holds_when_split(&memcached, b"VA 0\r\n\r\n", Reply::Value(b""));
        holds_when_split(&memcached, b"EN\r\n", Reply::Missing);
        holds_when_split(&memcached, b"HD\r\n", Reply::Stored);
        let full = b"SERVER_ERROR out of memory storing object\r\n";
        holds_when_split(&memcached, full, Reply::Refused(&full[..full.len() - 2]));
    }

    #[test]
    fn anything_else_is_garbage() {
        let memcached = Memcached::new(4);
        for bytes in [&b"ERROR\r\n"[..], b"VA x\r\n", b"VA 1\r\nabc\r\n", b"END\r\n", b"\n"] {
            assert_eq!(memcached.parse(bytes), Parsed::Garbage, "{bytes:?}");
        }
    }

    #[test]
    fn requests_are_one_line_and_the_value() {
        let memcached = Memcached::new(64);
        let mut out = Vec::new();
        memcached.get(b"key", &mut out);
        memcached.put_head(b"key", &mut out);
        assert_eq!(out, b"mg key v\r\nms key 64\r\n");
    }

    #[test]
    fn memory_is_sized_so_that_nothing_is_evicted() {
        let large =
            arguments(&spec("--records 100 --value-size 64MiB").unwrap(), &Place::Unix("s".into()));
        let of = |option| -> String {
            large[large.iter().position(|argument| argument == option).unwrap() + 1].clone()
        };
        assert_eq!(of("-I"), "81m");
        assert!(of("-m").parse::<u64>().unwrap() > 100 * 81);
    }
}
