//! memcached, with its meta protocol.
//!
//! `mg` and `ms` are its leanest commands: a reply does not repeat the key.
//!
//! As a cache it has the memory of the run's options for its slabs. Its hash table is not in that:
//! it is sized for all records beforehand, eight bytes for each.

use std::sync::atomic::AtomicBool;

use loch::ByteSize;

use super::pipeline::Pipeline;
use super::protocol::{Parsed, Protocol, Reply, decimal, line, statistic, value};
use super::server::{Place, Server, installed, threads};
use super::{Endpoint, Result};
use crate::error::TargetError;
use crate::spec::Spec;
use crate::tally::Usage;

const NAME: &str = "memcached";
/// A limit of its protocol.
pub const KEY_SIZE_MAX: usize = 250;
/// Header, CAS, key end and value end of an item, rounded up.
const ITEM_OVERHEAD_BYTES: u64 = 64;
/// Slab classes waste up to a quarter. The memory of memcached is a limit, not an allocation, so it
/// is generous: nothing may be evicted.
const ROOM: f64 = 1.6;
const MIB: u64 = 1 << 20;

/// Starts a private memcached that evicts nothing, unless it is to be a cache.
pub fn start(spec: &Spec, interrupted: &AtomicBool) -> Result<Server> {
    check_memory(spec)?;
    let command = installed(NAME, "memcached", "memcached")?;
    Server::start(NAME, command, spec.peer_transport, interrupted, |_, at| arguments(spec, at))
}

/// Connects one client of `peer`, which speaks the meta protocol.
pub fn connect(
    peer: &'static str,
    spec: &Spec,
    endpoint: &Endpoint,
) -> Result<Pipeline<Memcached>> {
    Pipeline::connect(peer, Memcached::new(spec.value_size), &endpoint.paths[0], spec.lanes)
}

/// Checks that the memory of a cache can be told by its option.
fn check_memory(spec: &Spec) -> Result<()> {
    let reason = match spec.cache_bytes() {
        Some(bytes) if !bytes.is_multiple_of(MIB) => {
            format!("--memory {} is not a whole number of MiB", ByteSize::new(bytes))
        }
        Some(bytes) if bytes < 2 * MIB * item_mib(spec) => format!(
            "--memory {} is less than two of its largest items, of {} MiB",
            ByteSize::new(bytes),
            item_mib(spec)
        ),
        _ => return Ok(()),
    };
    Err(TargetError::Unsuitable { peer: NAME, reason })
}

/// Bytes of a whole item, without the waste of slab classes.
fn item_bytes(spec: &Spec) -> u64 {
    (spec.key_size + spec.value_size) as u64 + ITEM_OVERHEAD_BYTES
}

/// The limit of an item: at least the default.
fn item_mib(spec: &Spec) -> u64 {
    let item = item_bytes(spec);
    (item + item / 4).div_ceil(MIB).max(1)
}

fn arguments(spec: &Spec, place: &Place) -> Vec<String> {
    let (item, item_mib) = (item_bytes(spec), item_mib(spec));
    let data_mib = (spec.records as f64 * item as f64 * ROOM / MIB as f64) as u64;
    // An item may not be larger than half of the memory.
    let enough_mib = data_mib + 4 * item_mib + 128;
    let memory_mib = spec.cache_bytes().map_or(enough_mib, |bytes| bytes / MIB);
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
        ("-t", threads(spec).to_string()),
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
    /// ` <length>\r\n`: the bytes between key and value of an `ms`, for values of the usual size.
    length: Vec<u8>,
    value_size: usize,
}

impl Memcached {
    fn new(value_size: usize) -> Self {
        Memcached { length: format!(" {value_size}\r\n").into_bytes(), value_size }
    }
}

impl Protocol for Memcached {
    #[inline]
    fn get(&self, key: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"mg ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" v\r\n");
    }

    #[inline]
    fn put_head(&self, key: &[u8], len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(b"ms ");
        out.extend_from_slice(key);
        if len == self.value_size {
            out.extend_from_slice(&self.length);
        } else {
            out.extend_from_slice(format!(" {len}\r\n").as_bytes());
        }
    }

    const STATISTICS: &'static [u8] = b"stats\r\n";

    fn parse_statistics<'a>(&self, bytes: &'a [u8]) -> Parsed<'a> {
        match bytes.ends_with(b"END\r\n") {
            true => Parsed::Whole(bytes.len(), Reply::Value(bytes)),
            false => Parsed::Partial(bytes.len() + 1),
        }
    }

    fn usage(statistics: &str) -> Option<Usage> {
        Some(Usage {
            values: statistic(statistics, "STAT curr_items ")?,
            evicted: statistic(statistics, "STAT evictions ")?,
            bytes: statistic(statistics, "STAT bytes "),
        })
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
        memcached.put_head(b"key", 64, &mut out);
        memcached.put_head(b"key", 5, &mut out);
        assert_eq!(out, b"mg key v\r\nms key 64\r\nms key 5\r\n");
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

    #[test]
    fn a_cache_has_the_memory_of_the_run() {
        let cache = |memory: &str| {
            let line = format!("--eviction sieve --nodes 2 --records 10000000 --memory {memory}");
            spec(&line).unwrap()
        };
        let arguments = arguments(&cache("3MiB"), &Place::Unix("s".into()));
        let at = arguments.iter().position(|argument| argument == "-m").unwrap();
        assert_eq!(arguments[at + 1], "6", "of both nodes");
        for (memory, reason) in [("3000KiB", "whole number of MiB"), ("512KiB", "two of its")] {
            let error = check_memory(&cache(memory)).unwrap_err();
            assert!(error.is_skip() && error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn statistics_end_with_a_line_and_tell_the_items() {
        let memcached = Memcached::new(4);
        let text = b"STAT bytes 987\r\nSTAT curr_items 12\r\nSTAT evictions 345\r\nEND\r\n";
        for cut in 0..text.len() {
            assert_eq!(memcached.parse_statistics(&text[..cut]), Parsed::Partial(cut + 1));
        }
        let whole = Parsed::Whole(text.len(), Reply::Value(text));
        assert_eq!(memcached.parse_statistics(text), whole);
        let usage = Memcached::usage(std::str::from_utf8(text).unwrap());
        assert_eq!(usage, Some(Usage { values: 12, evicted: 345, bytes: Some(987) }));
    }
}
